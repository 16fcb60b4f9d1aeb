// SPDX-License-Identifier: Apache-2.0
/*
 * spconv's benchmark network: seven levels of two submanifold convolutions (3 x 3 x 3, no bias) each,
 * of 64, 96, .. 256 channels, max pooling over 2 x 2 x 2 between levels. Its plans and memory, and the
 * work of a step, forward and backward.
 */
#ifndef SPCONV_BENCHMARK_ENGINE_H
#define SPCONV_BENCHMARK_ENGINE_H

#include "networks/device.h"

enum {
    LEVELS = 7,
    PARTS = 3 * LEVELS - 1, /* two convolutions a level, pooling between levels */
    TAPS = 27,
    BRANCHES = 3,
    INPUTS = 8, /* x, y, z; and zeros, for rows of 16 bytes */
    NUM_FEATURES = 3
};

/* Points within the range of the network, x y z in m. */
typedef struct cloud {
    int64_t num_points;
    float *points; /* [num_points][3] */
} cloud;

/* What makes rows[p + 1] of rows[p]: a convolution within a level, or pooling to the next. */
typedef struct part {
    char name[16];
    int pools, level; /* of its input */
    int in, out;      /* channels */
    spops_matrix w, grad_w;
} part;

typedef struct engine {
    const device *d;
    spops_dtype dtype; /* of rows and weights */
    int64_t num_points;
    float *points;  /* [num_points][3] */
    void *features; /* [num_points][INPUTS] */
    int32_t *count; /* num_points, where the device reads it */
    spops_voxels *voxels;
    spops_pyramid *pyramid;
    spops_sparseconv *conv[LEVELS];
    spops_pool *pool[LEVELS - 1];
    spops_plan *conv_plans[LEVELS], *pool_plans[LEVELS - 1]; /* these */
    device beside[BRANCHES];                                 /* streams for pools */
    spops_pyramid_info sizes;                                /* of the cloud */
    part parts[PARTS];
    spops_matrix rows[PARTS + 1], grads[PARTS + 1]; /* grads[PARTS] is drawn */
} engine;

/* The range, [lower, upper), and the size of a voxel, in m. */
extern const double range_lower_m[3], range_upper_m[3], voxel_m;

/* 0 for success; else it said why. */
int engine_create(engine *e, const device *d, spops_dtype dtype, const cloud *points);
void engine_destroy(engine *e);

spops_status engine_enqueue_voxels(void *e);
spops_status engine_enqueue_pyramid(void *e);
spops_status engine_enqueue_plans(void *e);
spops_status engine_enqueue_features(void *e);
spops_status engine_enqueue_part(engine *e, int p);
spops_status engine_enqueue_part_backward(engine *e, int p);
spops_status engine_enqueue_layers(void *e);          /* forward */
spops_status engine_enqueue_layers_backward(void *e); /* after a forward pass */
spops_status engine_enqueue_step(void *e);            /* all of these */

/* The first `count` rows of a matrix as f64; NULL: no memory, or the copy failed. */
double *engine_download(const engine *e, spops_matrix m, int64_t count);

#endif
