// SPDX-License-Identifier: Apache-2.0
/*
 * A tensor of a framework as a matrix, without a copy, and back: spops/dlpack.h. Here the tensor is
 * [2, 3, 4] and belongs to this program; from PyTorch it comes out of a capsule.
 */
#include <dlpack/dlpack.h>
#include <spops/dlpack.h>

#include "try.h"

int main(void)
{
    float values[2][3][4];
    int64_t shape[3] = {2, 3, 4}, back_shape[2], back_strides[2];
    DLTensor tensor = {0}, back;
    const int32_t offsets[3] = {0, 3, 6}; /* one segment a leading index */
    const char *message = "";
    float sums[2][4];
    spops_matrix x;
    spops_context *ctx = NULL;
    spops_segments *plan = NULL;

    for (int i = 0; i < 24; ++i)
        values[i / 12][i / 4 % 3][i % 4] = (float)i;
    tensor.data = values;
    tensor.device.device_type = kDLCPU;
    tensor.ndim = 3;
    tensor.dtype.code = kDLFloat;
    tensor.dtype.bits = 32;
    tensor.dtype.lanes = 1;
    tensor.shape = shape;
    TRY(open_cpu(&ctx));
    /* The last axis becomes columns, those before it rows. */
    if (spops_matrix_from_dlpack(&tensor, SPOPS_BACKEND_CPU, 0, &x, &message) != SPOPS_STATUS_OK)
        return fprintf(stderr, "%s\n", message), 1;
    const spops_matrix out = spops_matrix_dense(sums, 2, 4, SPOPS_DTYPE_F32);
    TRY(spops_segments_create(ctx, 2, offsets, NULL, &plan));
    TRY(spops_segreduce_execute(ctx, plan, SPOPS_REDUCE_SUM, x, NULL, out, NULL));
    if (spops_matrix_to_dlpack(out, SPOPS_BACKEND_CPU, 0, back_shape, back_strides, &back,
                               &message) != SPOPS_STATUS_OK)
        return fprintf(stderr, "%s\n", message), 1;
    printf("%d x %d from [2, 3, 4]; sums, a tensor of %d axes again: %g %g\n", (int)x.rows,
           (int)x.cols, (int)back.ndim, ((float *)back.data)[0], ((float *)back.data)[7]);
    spops_segments_destroy(plan);
    spops_context_destroy(ctx);
    return 0;
}
