// SPDX-License-Identifier: Apache-2.0
/* The engine: voxels, levels, maps and patches for scans of up to a given size. */
#ifndef PTV3_ENGINE_H
#define PTV3_ENGINE_H

#include "networks/tape_engine.h"
#include "ptv3/network.h"

enum { CUBE_BITS = 12 }; /* voxels lie in a cube of 2^12 a side around the sensor */

typedef struct engine {
    tape_engine base; /* the first */
    /* What is made for the capacities. */
    int implicit_gemm; /* runs every convolution: maps need no pairs */
    int64_t max_rows[PTV3_LEVELS], max_pairs[1 + PTV3_LEVELS];
    spops_pyramid *pyramid;                  /* levels, and maps down */
    spops_kernel_map *maps[1 + PTV3_LEVELS]; /* of the stem, and within each level */
    spops_sparseconv *convs[1 + PTV3_LEVELS];
    spops_pool *pools[PTV3_LEVELS - 1];
    spops_patches *patches[PTV3_LEVELS * PTV3_CURVES];
    spops_point_cloud clouds[PTV3_LEVELS]; /* the cells of a level */
    int32_t *offsets[PTV3_LEVELS];         /* of a level's cloud */
    /* Of a frame that is enqueued: whether they are already. */
    char made_maps[1 + PTV3_LEVELS], made_patches[2], made_pools; /* patches: of level 0 last */
} engine;

extern const tape_network ptv3_network;

/* Of patches. */
int engine_patch_rows(const tape_engine *base);

/* Compare with FP64 and from the points on: voxels, levels, neighbours and patches of its own. */
int reference_check(const tape_engine *base, const float *parameters, const scan *s,
                    const char *name);

#endif
