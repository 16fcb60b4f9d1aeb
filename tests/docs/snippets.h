// SPDX-License-Identifier: Apache-2.0
// What the snippets of docs/tasks.md and docs/coming-from.md take for granted: a context on the CPU, a
// small cloud in voxels, and memory that lasts until the program ends.
#include <spops/spops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                  \
    if ((call) != SPOPS_STATUS_OK) {                                                               \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, spops_last_error(ctx));                 \
        return 1;                                                                                  \
    }

enum { NUM_POINTS = 900, NUM_KEYS = 7 };
static spops_context *ctx;
static spops_matrix points;
static const spops_coords *coords; // of the voxels of points
static const int32_t *keys, *points_of_frame;
static int64_t num_points = NUM_POINTS, num_keys = NUM_KEYS, num_voxels;

// n numbers, none of them 0.
static float *numbers(int64_t n)
{
    float *memory = malloc((size_t)n * sizeof *memory);
    if (memory == NULL) abort();
    for (int64_t i = 0; i < n; ++i)
        memory[i] = (float)(i % 13 + 1) / 16.0f;
    return memory;
}

static spops_matrix matrix(int64_t rows, int64_t cols)
{
    return spops_matrix_dense(numbers(rows * cols), rows, cols, SPOPS_DTYPE_F32);
}

// Points on a grid of 0.04 m, so that voxels of 0.2 m have several and points have neighbours.
static int prepare(void)
{
    static int32_t key_of[NUM_POINTS], count = NUM_POINTS;
    spops_context_options options = spops_context_options_default();
    spops_voxels_options voxel = spops_voxels_options_default();
    spops_voxels *voxels = NULL;

    options.backend = SPOPS_BACKEND_CPU;
    TRY(spops_context_create(&options, &ctx));
    points = matrix(NUM_POINTS, 3);
    float *at = points.data;
    for (int i = 0; i < NUM_POINTS; ++i) {
        at[3 * i] = (float)(i % 30) * 0.04f;
        at[3 * i + 1] = (float)(i / 30) * 0.04f;
        at[3 * i + 2] = (float)(i * 7 % 11) * 0.04f;
        key_of[i] = i * 5 % NUM_KEYS;
    }
    keys = key_of;
    points_of_frame = &count;
    voxel.size_m[0] = voxel.size_m[1] = voxel.size_m[2] = 0.2;
    TRY(spops_voxels_create(ctx, points, NULL, &voxel, &voxels));
    coords = spops_voxels_coords(voxels);
    TRY(spops_coords_get_num_rows_sync(ctx, coords, &num_voxels));
    return 0;
}
