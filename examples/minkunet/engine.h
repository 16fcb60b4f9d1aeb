// SPDX-License-Identifier: Apache-2.0
/*
 * The engine: a network's plans and memory for scans of up to a given size, and the work of a frame,
 * enqueued in parts. A graph that holds all of them takes a scan after the other, whatever its
 * size, without the host looking at a count.
 */
#ifndef MINKUNET_ENGINE_H
#define MINKUNET_ENGINE_H

#include "networks/device.h"
#include "minkunet/network.h"
#include "networks/scan.h"

typedef struct engine {
    const device *d;
    device side; /* a stream beside that of d; on the CPU d again */
    const network *net;
    spops_dtype dtype; /* of features and weights: f32 or f16 */
    int implicit_gemm; /* runs every layer */
    /* What is made for the capacities. */
    int64_t max_points, max_rows[NUM_LEVELS], max_pairs[NUM_LEVELS];
    spops_voxels *voxels;
    spops_pyramid *pyramid;
    spops_sparseconv *within[NUM_LEVELS], *down[NUM_LEVELS], *up[NUM_LEVELS];
    spops_plan *plans[3 * NUM_LEVELS]; /* all of these */
    int num_plans;
    const int32_t *num_rows[NUM_LEVELS]; /* where the device says how many rows a level has */
    void *buffers[MAX_BUFFERS];
    void *weights[MAX_LAYERS];
    float *scale[MAX_LAYERS], *shift[MAX_LAYERS];
    /* The scan. */
    int32_t *num_points;
    float *points;  /* [max_points][4] */
    void *features; /* [max_points][NUM_INPUTS] */
    size_t plan_bytes;
} engine;

/* Capacities are what the largest of the scans needs at each level, and a little more. */
int engine_create(engine *e, const device *d, const network *net, spops_dtype dtype, double voxel_m,
                  const scan *scans, int num_scans);
void engine_destroy(engine *e);

/* A scan to where the engine reads it. */
int engine_upload(engine *e, const scan *s);

/* Points to voxels; the levels and maps of these; the plans of convolutions on the maps; features of
   points to voxels; the layers. A frame has which points a voxel has, and the features, on the side
   stream, beside levels, maps and plans. */
spops_status engine_enqueue_voxels(engine *e);
spops_status engine_enqueue_pyramid(engine *e);
spops_status engine_enqueue_plans(engine *e);
spops_status engine_enqueue_features(engine *e);
spops_status engine_enqueue_layer(engine *e, int i);
spops_status engine_enqueue_layers(engine *e);
spops_status engine_enqueue_frame(engine *e);

/* Rows and pairs of the scan that was run last; waits. */
int engine_sizes(const engine *e, spops_pyramid_info *info);

#endif
