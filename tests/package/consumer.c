// SPDX-License-Identifier: Apache-2.0
/* A stranger's C99 program: a mean over two segments, on the CPU. */
#include <spops/spops.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    const int32_t offsets[] = {0, 3, 3, 5};
    float x[5][2] = {{1, 10}, {2, 20}, {6, 30}, {5, 1}, {7, 3}};
    float out[3][2];
    const float expected[3][2] = {{3, 20}, {0, 0}, {6, 2}};
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    spops_segments *segments = NULL;
    spops_status status;

    options.backend = SPOPS_BACKEND_CPU;
    status = spops_context_create(&options, &ctx);
    if (status == SPOPS_STATUS_OK) status = spops_segments_create(ctx, 3, offsets, NULL, &segments);
    if (status == SPOPS_STATUS_OK)
        status = spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_MEAN,
                                         spops_matrix_dense(x, 5, 2, SPOPS_DTYPE_F32), NULL,
                                         spops_matrix_dense(out, 3, 2, SPOPS_DTYPE_F32), NULL);
    if (status == SPOPS_STATUS_OK) status = spops_context_wait_sync(ctx);
    if (status != SPOPS_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", spops_status_name(status), spops_last_error(ctx));
        return 1;
    }
    spops_segments_destroy(segments);
    spops_context_destroy(ctx);
    if (memcmp(out, expected, sizeof out) != 0) {
        fprintf(stderr, "wrong means\n");
        return 1;
    }
    printf("C: spops %s, means are right\n", spops_version());
    return 0;
}
