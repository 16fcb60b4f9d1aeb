// SPDX-License-Identifier: Apache-2.0
// Neighbours: their arrays, and what the backends find them and the nearest with.
#ifndef SPOPS_POINTS_NEIGHBORS_H
#define SPOPS_POINTS_NEIGHBORS_H

#include <math.h>

#include "points/point_rules.h"
#include "core/backend.h"
#include "core/plan.h"
#include "spops/point_levels.h"
#include "relation/relation.h"

#ifdef __cplusplus
extern "C" {
#endif

// In backend memory.
typedef struct spops_neighbors_state {
    int32_t num_rows[SPOPS_NUM_SIDES]; // in use
    int32_t bad_row[SPOPS_NUM_SIDES];  // the first that is not finite; INT32_MAX: none
    int32_t num_dropped;
    int32_t bad_offsets;
    int32_t overflow;
    int32_t num_cells[SPOPS_NUM_SIDES];
    int32_t reserved;
    int64_t num_pairs;           // found, also past the capacity
    uint32_t lower[3], upper[3]; // of all points, as spops_ordered_float
    spops_cell_grid grid;
} spops_neighbors_state;

// Numbers that ascend as floats do.
SPOPS_HD uint32_t spops_ordered_float(uint32_t bits)
{
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

SPOPS_HD uint32_t spops_float_of_ordered(uint32_t ordered)
{
    return ordered >> 31 ? ordered & 0x7fffffffu : ~ordered;
}

typedef struct spops_neighbor_side {
    int64_t max_rows;
    int32_t *offsets; // [max_rows + 1]
    int32_t *rows;    // [max_pairs]
    uint16_t *taps;   // [max_pairs]
} spops_neighbor_side;

// All there is of neighbours. Pairs are of `out`; those of `in` are there with `reverse`.
typedef struct spops_neighbors_arrays {
    spops_pair_rule rule;
    spops_neighbor_cap cap;
    int32_t num_taps;
    bool same; // outputs are inputs
    bool mirrored;
    bool reverse, by_tap;
    int64_t max_pairs, max_samples;
    spops_neighbors_state *state; // [1]
    spops_neighbor_side sides[SPOPS_NUM_SIDES];
    int32_t *tap_offsets, *in_rows, *out_rows;
} spops_neighbors_arrays;

typedef struct spops_neighbors_args {
    const spops_neighbors_arrays *arrays;
    const spops_point_cloud *clouds[SPOPS_NUM_SIDES]; // TARGET is NULL where they are the same
    void *workspace;                                  // neighbors_workspace_bytes
} spops_neighbors_args;

// Of nearest data points: blocks of SPOPS_NEAREST_LEAF points in the order of their cells, a box
// around each, boxes around SPOPS_NEAREST_FANOUT of those, and so on up to one.
enum { SPOPS_NEAREST_LEAF = 8, SPOPS_NEAREST_FANOUT = 8, SPOPS_NEAREST_LEVELS = 12 };

typedef struct spops_nearest_box {
    float lower[3], upper[3];
    int32_t samples[2]; // first and last
} spops_nearest_box;

typedef struct spops_nearest_point {
    float p[3];
    int32_t row;
} spops_nearest_point;

typedef struct spops_nearest_arrays {
    int64_t num_points, num_samples;
    int32_t num_levels;
    int64_t level_begin[SPOPS_NEAREST_LEVELS + 1]; // of boxes; level 0 has those around points
    spops_nearest_point *points;                   // [num_points] by cell
    int32_t *samples; // [num_points]; -1: the point does not count, and lies after those that do
    spops_nearest_box *boxes;
} spops_nearest_arrays;

typedef struct spops_nearest_build_args {
    const spops_nearest_arrays *arrays;
    const spops_point_cloud *cloud;
    spops_neighbors_state *state; // of the check: bad_row, bad_offsets
    void *workspace;              // nearest_workspace_bytes
} spops_nearest_build_args;

typedef struct spops_nearest_args {
    const spops_nearest_arrays *arrays;
    const spops_point_cloud *queries;
    int32_t count;
    int32_t *rows;
    float *distances2; // or NULL
} spops_nearest_args;

typedef struct spops_cloud_samples_args {
    const spops_point_cloud *cloud;
    int32_t *samples;  // [rows], of those in use; left alone without offsets
    int32_t *num_rows; // [1] in use: 0 where offsets do not ascend from 0 to at most the rows
} spops_cloud_samples_args;

typedef struct spops_cloud_offsets_args {
    const int32_t *rows;     // [.][columns], the sample first
    const int32_t *num_rows; // [1]
    int64_t num_samples;
    int32_t columns;
    int32_t *offsets; // [num_samples + 1]
} spops_cloud_offsets_args;

// weights[n] = (1 / d[n]) / sum of the point's 1 / d, with d2 taken for at least 1e-20 m^2; 0 where
// there is no point.
typedef struct spops_inverse_distances_args {
    int64_t num_points;
    int32_t count;           // of a point
    const int32_t *rows;     // [num_points][count], -1: none
    const float *distances2; // [num_points][count]
    float *weights;          // [num_points][count]
    int32_t *points;         // [num_points][count], the point; for lists
} spops_inverse_distances_args;

// Those of point i. In f64, rounded once, so that backends agree.
SPOPS_HD void spops_inverse_distances(const spops_inverse_distances_args *args, int64_t i)
{
    const int64_t begin = i * args->count, end = begin + args->count;
    double sum = 0.0;
    for (int64_t n = begin; n < end; ++n) {
        const double d2 = args->distances2[n];
        if (args->rows[n] >= 0) sum = SPOPS_ADD_F64(sum, 1.0 / sqrt(d2 > 1e-20 ? d2 : 1e-20));
        args->points[n] = (int32_t)i;
    }
    for (int64_t n = begin; n < end; ++n) {
        const double d2 = args->distances2[n];
        args->weights[n] =
            args->rows[n] >= 0 ? (float)(1.0 / sqrt(d2 > 1e-20 ? d2 : 1e-20) / sum) : 0.0f;
    }
}

struct spops_nearest {
    spops_plan base;
    spops_nearest_arrays arrays;
    spops_neighbors_state *state; // [1]
    int32_t *no_offsets;          // [2] of a cloud without points
};

// Enqueue the filling from a cloud of as many rows.
spops_status spops_nearest_fill(spops_context *ctx, spops_nearest *nearest,
                                const spops_point_cloud *cloud);

struct spops_neighbors {
    spops_plan base;
    spops_neighbors_arrays arrays;
    spops_neighbors_state host;                  // of neighbours that are not refillable
    spops_neighbor_lists lists[SPOPS_NUM_SIDES]; // as views show them
    void *own;                                   // arrays but those of pairs
    size_t own_bytes;
};

// A cloud is there and right in itself; its samples.
spops_status spops_cloud_check(spops_context *ctx, const char *call, const char *name,
                               const spops_point_cloud *cloud);
// The same of its offsets, for which the host waits.
spops_status spops_cloud_check_offsets(spops_context *ctx, const char *call, const char *name,
                                       const spops_point_cloud *cloud);
// INVALID_ARGUMENT for a point that is not finite; INT32_MAX: there is none.
spops_status spops_cloud_refuse_row(spops_context *ctx, const char *call, const char *name,
                                    const spops_point_cloud *cloud, int32_t row);

// The state of neighbours, and of nearest points.
spops_status spops_neighbors_put_state(spops_context *ctx, const spops_neighbors_state *from,
                                       int64_t *counts);

// Where points may be, of a level that is refilled, or are.
void spops_point_level_range(const spops_point_level *level, double *lower_m, double *upper_m);

// Its description has this range, which contains its own.
void spops_point_level_widen(spops_point_level *level, const double *lower_m,
                             const double *upper_m);

// As many rows as a capacity, and no more samples than that.
spops_status spops_cloud_check_capacity(spops_context *ctx, const char *call, const char *name,
                                        const spops_point_cloud *cloud, int64_t max_rows,
                                        int64_t max_samples);

// As many rows, and as many samples.
spops_status spops_cloud_check_full(spops_context *ctx, const char *call, const char *name,
                                    const spops_point_cloud *cloud, int64_t num_rows,
                                    int64_t num_samples);

static inline int64_t spops_cloud_samples(const spops_point_cloud *cloud)
{
    return cloud->offsets == NULL ? 1 : cloud->num_samples;
}

#ifdef __cplusplus
}
#endif

#endif
