// SPDX-License-Identifier: Apache-2.0
// What the backends compute the cells of frustum points from (core/backend_slots.def).
#ifndef SPOPS_BEVPOOL_BEV_POINTS_H
#define SPOPS_BEVPOOL_BEV_POINTS_H

#include "spops/bevpool.h"

// keys[p] = cell of frustum point p, or -1 outside; feat[p] = its pixel row (bev_geometry.h).
typedef struct spops_bev_points_args {
    spops_bev_shape shape;
    double pixel_step_u, pixel_step_v; // input px per feature px
    double depth_start_m, depth_step_m;
    const double *depths_m; // [num_depths] backend memory, or NULL
    double grid_lower_m[3], cell_size_m[3];
    const double *transforms; // [B * N][12] backend memory
    int32_t *keys;            // [B*N*D*H*W]
    int32_t *feat;            // [B*N*D*H*W]
} spops_bev_points_args;

#endif
