// SPDX-License-Identifier: Apache-2.0
// Points of a cloud on the CPU: where they are, and which of them count.
#ifndef SPOPS_POINTS_CLOUDS_CPU_H
#define SPOPS_POINTS_CLOUDS_CPU_H

#include <stdbool.h>

#include "points/neighbors.h"

static inline const float *spops_point_of(const spops_point_cloud *cloud, int64_t i)
{
    return (const float *)cloud->points.data + i * cloud->points.row_stride;
}

static inline bool spops_is_finite_point(const float *p)
{
    return spops_is_finite(p[0]) && spops_is_finite(p[1]) && spops_is_finite(p[2]);
}

static inline int32_t spops_cloud_sample_of(const spops_point_cloud *cloud, int64_t i)
{
    return cloud->offsets == NULL ? 0
                                  : spops_sample_of(cloud->offsets, (int32_t)cloud->num_samples, i);
}

// Rows in use; -1 where offsets do not ascend from 0 to at most the rows.
static inline int64_t spops_cloud_rows(const spops_point_cloud *cloud)
{
    const int32_t *offsets = cloud->offsets;
    const int64_t n = cloud->num_samples;
    if (offsets == NULL) return cloud->points.rows;
    if (offsets[0] != 0 || offsets[n] > cloud->points.rows) return -1;
    for (int64_t b = 0; b < n; ++b)
        if (offsets[b + 1] < offsets[b]) return -1;
    return offsets[n];
}

// The box around the points in use, and those of them that are not finite.
typedef struct spops_cloud_bounds {
    double lower[3], upper[3];
    int64_t dropped;
    int32_t bad_row; // the first; INT32_MAX: none
} spops_cloud_bounds;

static inline void spops_cloud_bound(const spops_point_cloud *cloud, int64_t n,
                                     spops_cloud_bounds *b)
{
    b->bad_row = INT32_MAX;
    for (int64_t i = 0; i < n; ++i) {
        const float *p = spops_point_of(cloud, i);
        if (!spops_is_finite_point(p)) {
            if (b->bad_row == INT32_MAX) b->bad_row = (int32_t)i;
            ++b->dropped;
            continue;
        }
        for (int a = 0; a < 3; ++a) {
            if (p[a] < b->lower[a]) b->lower[a] = p[a];
            if (p[a] > b->upper[a]) b->upper[a] = p[a];
        }
    }
}

// The finest cells that points within the bounds have keys of, and the bits that the sample takes.
static inline spops_cell_grid spops_cloud_grid(const spops_cloud_bounds *bounds,
                                               int64_t num_samples, int32_t *sample_bits)
{
    spops_cell_grid grid = {{0.0, 0.0, 0.0}, 0.0, 0, 0};
    double extent = 0.0;
    *sample_bits = 0;
    while (*sample_bits < 31 && (num_samples - 1) >> *sample_bits != 0)
        ++*sample_bits;
    grid.bits = spops_cell_bits(*sample_bits);
    for (int a = 0; a < 3 && bounds->lower[a] <= bounds->upper[a]; ++a) {
        grid.origin[a] = bounds->lower[a];
        extent = fmax(extent, bounds->upper[a] - bounds->lower[a]);
    }
    grid.size = spops_cell_size(0.0f, extent, grid.bits);
    return grid;
}

#endif
