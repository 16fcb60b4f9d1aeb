// SPDX-License-Identifier: Apache-2.0
// FP64 references of BEV pooling: from a rig to the cell of every frustum point, and from a scatter
// map to the pooled grid and its gradients.
#ifndef SPOPS_TESTS_REF_BEVPOOL_H
#define SPOPS_TESTS_REF_BEVPOOL_H

#include "spops/bevpool.h"
#include "tests/ref/ref_reduce.h"

// cell[p] of every point p = (((b N + n) D + d) H + h) W + w, -1 outside the grid; margin[p] is how
// far, in cells, the point is from the nearest cell boundary: where that is tiny, another way to
// round may tell another cell.
void ref_bev_cells(const spops_bev_geometry *geometry, int32_t *cell, double *margin);

// Feature row of a depth element: the same camera and pixel.
int64_t ref_bev_pixel(const spops_bev_shape *shape, int64_t point);

// Point i adds depth[depth_of[i]] * feat[feat_of[i], :] to out[cell_of[i], :].
typedef struct ref_bev_map {
    int64_t num_points, num_cells, num_features, num_depths;
    const int32_t *depth_of, *feat_of, *cell_of;
} ref_bev_map;

// out [num_cells, cols].
void ref_bevpool_forward(const ref_bev_map *map, int64_t cols, const double *depth,
                         const double *feat, ref_tensor *out);

// grad_out as out; grad_depth [num_depths, 1]; grad_feat [num_features, cols].
void ref_bevpool_backward(const ref_bev_map *map, int64_t cols, const double *depth,
                          const double *feat, const double *grad_out, ref_tensor *grad_depth,
                          ref_tensor *grad_feat);

// Channels last, [B * cells, cols], to a layout; CHANNELS_FIRST is [B * cols, cells]. And back.
void ref_bev_to_layout(const ref_tensor *last, spops_bev_layout layout, int64_t num_batches,
                       ref_tensor *out);
void ref_bev_from_layout(const double *values, spops_bev_layout layout, int64_t num_batches,
                         ref_tensor *last);

#endif
