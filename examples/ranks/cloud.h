// SPDX-License-Identifier: Apache-2.0
/* Made clouds of voxels. */
#ifndef RANKS_CLOUD_H
#define RANKS_CLOUD_H

#include <stdint.h>

typedef struct ranks_cloud {
    int64_t n;
    int32_t (*rows)[4]; /* batch, x, y, z */
} ranks_cloud;

/* Ground with steps, and walls on it, as long as it takes. 0 for success. */
int ranks_cloud_ground(ranks_cloud *c, int64_t voxels);

/* The surface of a gyroid, one period in a cube with a side that has about so many: voxels nearer to it than 0.75
   of a voxel. 0 for success. */
int ranks_cloud_gyroid(ranks_cloud *c, int64_t voxels);

#endif
