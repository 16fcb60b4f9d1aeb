// SPDX-License-Identifier: Apache-2.0
// Nearest data points on the CPU.
#include "points/nearest_walk.h"

#include <string.h>

#include "backends/backend_cpu.h"
#include "points/clouds_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"

size_t spops_cpu_nearest_workspace_bytes(spops_context *ctx, const spops_nearest_build_args *args)
{
    spops_carver carver = {NULL, 0};
    (void)ctx;
    (void)spops_radix_carve(8, args->arrays->num_points, &carver);
    return carver.used;
}

static void grow_box(spops_nearest_box *box, const float *lower, const float *upper,
                     const int32_t *samples)
{
    for (int a = 0; a < 3; ++a) {
        if (lower[a] < box->lower[a]) box->lower[a] = lower[a];
        if (upper[a] > box->upper[a]) box->upper[a] = upper[a];
    }
    if (samples[0] < box->samples[0]) box->samples[0] = samples[0];
    if (samples[1] > box->samples[1]) box->samples[1] = samples[1];
}

static void make_boxes(const spops_nearest_arrays *a)
{
    const spops_nearest_box nothing = {
        {INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}, {INT32_MAX, -1}};
    for (int32_t level = 0; level < a->num_levels; ++level) {
        spops_nearest_box *to = a->boxes + a->level_begin[level];
        const int64_t number = a->level_begin[level + 1] - a->level_begin[level];
        const int64_t below =
            level == 0 ? a->num_points : a->level_begin[level] - a->level_begin[level - 1];
        const int64_t fanout = level == 0 ? SPOPS_NEAREST_LEAF : SPOPS_NEAREST_FANOUT;
        for (int64_t b = 0; b < number; ++b) {
            to[b] = nothing;
            for (int64_t i = b * fanout; i < (b + 1) * fanout && i < below; ++i) {
                if (level == 0) {
                    const int32_t samples[2] = {a->samples[i], a->samples[i]};
                    if (a->samples[i] < 0) continue;
                    grow_box(&to[b], a->points[i].p, a->points[i].p, samples);
                } else {
                    const spops_nearest_box *of = &a->boxes[a->level_begin[level - 1] + i];
                    grow_box(&to[b], of->lower, of->upper, of->samples);
                }
            }
        }
    }
}

spops_status spops_cpu_nearest_build(spops_context *ctx, const spops_nearest_build_args *args)
{
    const spops_nearest_arrays *a = args->arrays;
    const int64_t n = a->num_points;
    spops_carver carver = {args->workspace, 0};
    const spops_radix_buffers sort = spops_radix_carve(8, n, &carver);
    uint64_t *keys = sort.keys[0];
    spops_cloud_bounds bounds = {.lower = {INFINITY, INFINITY, INFINITY},
                                 .upper = {-INFINITY, -INFINITY, -INFINITY}};
    const int64_t rows = spops_cloud_rows(args->cloud);
    int32_t sample_bits = 0;
    int from;

    memset(args->state, 0, sizeof *args->state);
    spops_cloud_bound(args->cloud, rows, &bounds);
    args->state->bad_row[SPOPS_SIDE_SOURCE] = bounds.bad_row;
    args->state->num_dropped = (int32_t)bounds.dropped;
    args->state->bad_offsets = rows < 0;
    args->state->num_rows[SPOPS_SIDE_SOURCE] = rows < 0 ? 0 : (int32_t)rows;
    const spops_cell_grid grid = spops_cloud_grid(&bounds, a->num_samples, &sample_bits);
    for (int64_t i = 0; i < n; ++i) {
        const float *p = spops_point_of(args->cloud, i);
        keys[i] = SPOPS_CELL_NONE; // after all others
        sort.values[0][i] = (int32_t)i;
        if (i >= rows || !spops_is_finite_point(p)) continue;
        keys[i] = spops_morton_key(
            spops_cell_key(&grid, spops_cloud_sample_of(args->cloud, i), p[0], p[1], p[2]),
            grid.bits);
    }
    from = spops_radix_sort(spops_team_for(ctx, n), 3 * grid.bits + sample_bits, n, &sort, 0);
    for (int64_t s = 0; s < n; ++s) {
        const int32_t i = sort.values[from][s];
        const bool counts = ((const uint64_t *)sort.keys[from])[s] != SPOPS_CELL_NONE;
        a->points[s] = (spops_nearest_point){.row = i};
        a->samples[s] = counts ? spops_cloud_sample_of(args->cloud, i) : -1;
        if (counts) memcpy(a->points[s].p, spops_point_of(args->cloud, i), sizeof a->points[s].p);
    }
    make_boxes(a);
    return SPOPS_STATUS_OK;
}

static void find_range(const void *work, int64_t begin, int64_t end)
{
    const spops_nearest_args *args = (const spops_nearest_args *)work;
    const spops_point_cloud *queries = args->queries;
    const int32_t count = args->count;

    for (int64_t i = begin; i < end; ++i) {
        const float *q = spops_point_of(queries, i);
        int32_t *rows = args->rows + i * count;
        int32_t found[SPOPS_MAX_NEAREST];
        float distances[SPOPS_MAX_NEAREST];
        // Rows after the last offset have no sample.
        const bool counts =
            (queries->offsets == NULL || i < queries->offsets[queries->num_samples]) &&
            spops_is_finite(q[0]) && spops_is_finite(q[1]) && spops_is_finite(q[2]);
        spops_find_nearest(args->arrays, q, counts ? spops_cloud_sample_of(queries, i) : -1, count,
                           found, distances);
        for (int32_t k = 0; k < count; ++k) {
            rows[k] = found[k] == INT32_MAX ? -1 : found[k];
            if (args->distances2 != NULL) args->distances2[i * count + k] = distances[k];
        }
    }
}

spops_status spops_cpu_nearest_find(spops_context *ctx, const spops_nearest_args *args)
{
    const int64_t n = args->queries->points.rows;
    spops_parallel_for(spops_team_for(ctx, n * 64), n, 0, find_range, args);
    return SPOPS_STATUS_OK;
}
