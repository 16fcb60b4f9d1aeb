// SPDX-License-Identifier: Apache-2.0
/*
 * A plan that changes from frame to frame, on the CPU: reserved once for at most MAX_POINTS points,
 * then refilled and run for every frame. Neither the refill nor the run allocates. refill_graph.c
 * does the same on a GPU, inside a captured graph.
 */
#include <spops/spops.h>
#include <stdio.h>

enum { NUM_VOXELS = 4, MAX_POINTS = 8, NUM_FRAMES = 2 };

#define TRY(call)                                                                                  \
    if ((call) != SPOPS_STATUS_OK) {                                                               \
        fprintf(stderr, "%s\n", spops_last_error(ctx));                                            \
        goto done;                                                                                 \
    }

int main(void)
{
    const int32_t num_points[NUM_FRAMES] = {5, 3};
    const int32_t voxel[NUM_FRAMES][MAX_POINTS] = {{2, 0, 2, 3, 2}, {1, 1, 0}};
    float height_m[NUM_FRAMES][MAX_POINTS] = {{1.0f, 0.5f, 4.0f, 0.25f, 4.0f}, {2.0f, 3.0f, 1.0f}};
    float mean_m[NUM_VOXELS];
    spops_context_options context_options = spops_context_options_default();
    spops_segments_options options = spops_segments_options_default();
    spops_segments_info info = spops_segments_info_default();
    spops_context *ctx = NULL;
    spops_segments *voxels = NULL;
    int result = 1;

    context_options.backend = SPOPS_BACKEND_CPU;
    TRY(spops_context_create(&context_options, &ctx));
    options.max_cols = 1;
    TRY(spops_segments_reserve(ctx, NUM_VOXELS, MAX_POINTS, &options, &voxels));
    for (int f = 0; f < NUM_FRAMES; ++f) {
        TRY(spops_segments_update(ctx, voxels, &num_points[f], voxel[f], NULL, NULL));
        TRY(spops_segreduce_execute(
            ctx, voxels, SPOPS_REDUCE_MEAN,
            spops_matrix_dense(height_m[f], MAX_POINTS, 1, SPOPS_DTYPE_F32), NULL,
            spops_matrix_dense(mean_m, NUM_VOXELS, 1, SPOPS_DTYPE_F32), NULL));
        TRY(spops_segments_get_info_sync(ctx, voxels, &info));
        printf("frame %d: %d points in %d voxels, mean heights", f, (int)info.num_terms,
               (int)info.num_nonempty);
        for (int v = 0; v < NUM_VOXELS; ++v)
            printf(" %g", mean_m[v]);
        printf(" m\n");
    }
    result = 0;

done:
    spops_segments_destroy(voxels);
    spops_context_destroy(ctx);
    return result;
}
