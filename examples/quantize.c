// SPDX-License-Identifier: Apache-2.0
/*
 * Features in 8 and 4 bits: a scale for all of them is found, they are quantised, and what they
 * became is read back. NVFP4 has a scale for every 16 columns besides.
 */
#include <math.h>

#include "try.h"

enum { ROWS = 4, COLS = 32 };

int main(void)
{
    static const spops_dtype dtypes[] = {SPOPS_DTYPE_F8E4M3, SPOPS_DTYPE_F8E5M2,
                                         SPOPS_DTYPE_F4E2M1};
    float features[ROWS][COLS], back[ROWS][COLS], scale;
    uint8_t codes[ROWS * COLS], block_codes[ROWS * COLS / SPOPS_QUANTIZE_BLOCK_COLS];
    const spops_matrix x = spops_matrix_dense(features, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix y = spops_matrix_dense(back, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix blocks =
        spops_matrix_dense(block_codes, ROWS, COLS / SPOPS_QUANTIZE_BLOCK_COLS, SPOPS_DTYPE_F8E4M3);
    spops_context *ctx = NULL;

    for (int i = 0; i < ROWS * COLS; ++i)
        features[i / COLS][i % COLS] = (float)sin(0.7 * i) * 10.0f;
    TRY(open_cpu(&ctx));
    for (int d = 0; d < 3; ++d) {
        const spops_matrix q = spops_matrix_dense(codes, ROWS, COLS, dtypes[d]);
        const spops_matrix *in_blocks = dtypes[d] == SPOPS_DTYPE_F4E2M1 ? &blocks : NULL;
        double worst = 0.0;
        TRY(spops_quantize_scale_execute(ctx, x, dtypes[d], &scale));
        TRY(spops_quantize_execute(ctx, x, &scale, q, in_blocks));
        TRY(spops_dequantize_execute(ctx, q, &scale, in_blocks, y));
        for (int i = 0; i < ROWS * COLS; ++i)
            worst = fmax(worst, fabs(back[i / COLS][i % COLS] - features[i / COLS][i % COLS]));
        printf("%s: scale %.4g, largest error %.3g of 10\n", spops_dtype_name(dtypes[d]), scale,
               worst);
    }
    spops_context_destroy(ctx);
    return 0;
}
