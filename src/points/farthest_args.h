// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_POINTS_FARTHEST_ARGS_H
#define SPOPS_POINTS_FARTHEST_ARGS_H

#include "points/neighbors.h"

// Farthest point sampling (include/spops/points.h). There are points, and rows are wanted.
typedef struct spops_farthest_args {
    const spops_point_cloud *cloud;
    int32_t count;
    const int32_t *counts; // [samples]; NULL: count of each
    int32_t *rows;         // [samples][count]
    float *distances2;     // [samples][count], or NULL
    void *workspace;       // farthest_workspace_bytes
} spops_farthest_args;

#endif
