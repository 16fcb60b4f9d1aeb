// SPDX-License-Identifier: Apache-2.0
// Nearest data points on the GPU.
#include "points/nearest_walk.h"

#include "kernels/points/cell_sort.cuh"

namespace
{

using namespace spops;

constexpr int threads = 128;

struct workspace {
    unsigned long long *keys[2];
    int *values[2];
    device_wide wide;
};

workspace carve_workspace(int64_t n, spops_carver *c)
{
    workspace w = {};
    for (int i = 0; i < 2; ++i) {
        w.keys[i] = (unsigned long long *)spops_carve(c, n, 1, sizeof *w.keys[i]);
        w.values[i] = (int *)spops_carve(c, n, 1, sizeof *w.values[i]);
    }
    w.wide.needs_sort<uint64_t>(n, 64);
    w.wide.carve(c);
    return w;
}

struct place_params {
    spops_nearest_arrays a;
    cloud_view cloud;
    const unsigned long long *keys; // in their order
    const int *values;
};

__global__ void __launch_bounds__(threads) place_points(const __grid_constant__ place_params p)
{
    const int64_t s = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (s >= p.a.num_points) return;
    const int row = p.values[s];
    const bool counts = p.keys[s] != SPOPS_CELL_NONE;
    const float3 at = counts ? point_at(p.cloud, row) : make_float3(0.0f, 0.0f, 0.0f);
    const spops_nearest_point point = {{at.x, at.y, at.z}, row};
    p.a.points[s] = point;
    p.a.samples[s] = counts ? sample_of(p.cloud, row) : -1;
}

__global__ void __launch_bounds__(threads)
    make_boxes(const __grid_constant__ spops_nearest_arrays a, int level)
{
    const int64_t b = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int64_t number = a.level_begin[level + 1] - a.level_begin[level];
    const int64_t below =
        level == 0 ? a.num_points : a.level_begin[level] - a.level_begin[level - 1];
    const int fanout = level == 0 ? (int)SPOPS_NEAREST_LEAF : (int)SPOPS_NEAREST_FANOUT;
    if (b >= number) return;
    spops_nearest_box box = {
        {INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}, {INT32_MAX, -1}};
    for (int64_t i = b * fanout; i < (b + 1) * fanout && i < below; ++i) {
        spops_nearest_box of;
        if (level == 0) {
            if (a.samples[i] < 0) continue;
            for (int axis = 0; axis < 3; ++axis)
                of.lower[axis] = of.upper[axis] = a.points[i].p[axis];
            of.samples[0] = of.samples[1] = a.samples[i];
        } else {
            of = a.boxes[a.level_begin[level - 1] + i];
        }
        for (int axis = 0; axis < 3; ++axis) {
            box.lower[axis] = fminf(box.lower[axis], of.lower[axis]);
            box.upper[axis] = fmaxf(box.upper[axis], of.upper[axis]);
        }
        box.samples[0] = min(box.samples[0], of.samples[0]);
        box.samples[1] = max(box.samples[1], of.samples[1]);
    }
    a.boxes[a.level_begin[level] + b] = box;
}

struct find_params {
    spops_nearest_arrays a;
    cloud_view queries;
    int count;
    int *rows;
    float *distances2;
};

// A thread a query. MOST: places for neighbours, count at most.
template <int MOST>
__global__ void __launch_bounds__(threads) find_nearest(const __grid_constant__ find_params p)
{
    const int i = blockIdx.x * threads + threadIdx.x;
    if (i >= p.queries.max_rows) return;
    const float3 at = point_at(p.queries, i);
    const float q[3] = {at.x, at.y, at.z};
    int rows[MOST];
    float distances[MOST];
    const bool counts = is_finite_point(at) && (p.queries.offsets == nullptr ||
                                                i < p.queries.offsets[p.queries.num_samples]);
    spops_find_nearest(&p.a, q, counts ? sample_of(p.queries, i) : -1, p.count, rows, distances);
    for (int k = 0; k < p.count; ++k) {
        p.rows[(int64_t)i * p.count + k] = rows[k] == INT32_MAX ? -1 : rows[k];
        if (p.distances2 != nullptr) p.distances2[(int64_t)i * p.count + k] = distances[k];
    }
}

} // namespace

extern "C" size_t spops_cuda_nearest_workspace_bytes(spops_context *ctx,
                                                     const spops_nearest_build_args *args)
{
    spops_carver carver = {nullptr, 0};
    (void)ctx;
    (void)carve_workspace(args->arrays->num_points, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_nearest_build(spops_context *ctx,
                                                 const spops_nearest_build_args *args)
{
    const char *what = "nearest: build";
    const spops_nearest_arrays *a = args->arrays;
    const int64_t n = a->num_points;
    spops_carver carver = {static_cast<char *>(args->workspace), 0};
    const workspace w = carve_workspace(n, &carver);
    const key_bits bits = bits_of_keys(a->num_samples);
    const bounds_params bounds = {{{}, view_of(args->cloud)}, false, args->state};
    const key_params keys = {
        view_of(args->cloud), args->state, SPOPS_SIDE_SOURCE, 0.0f, bits.axis, true, w.keys[0],
        w.values[0]};
    const place_params place = {*a, view_of(args->cloud), w.keys[1], w.values[1]};

    SPOPS_TRY(enqueue_bounds(ctx, what, bounds));
    SPOPS_TRY(
        launch(ctx, what, make_keys, blocks_for(n, key_threads), (unsigned)key_threads, keys));
    SPOPS_TRY(w.wide.sort(ctx, what, (const uint64_t *)w.keys[0], (uint64_t *)w.keys[1],
                          w.values[0], w.values[1], n, 3 * bits.axis + bits.sample));
    SPOPS_TRY(launch(ctx, what, place_points, blocks_for(n, threads), (unsigned)threads, place));
    for (int level = 0; level < a->num_levels; ++level)
        SPOPS_TRY(launch(ctx, what, make_boxes,
                         blocks_for(a->level_begin[level + 1] - a->level_begin[level], threads),
                         (unsigned)threads, *a, level));
    return SPOPS_STATUS_OK;
}

extern "C" spops_status spops_cuda_nearest_find(spops_context *ctx, const spops_nearest_args *args)
{
    const char *what = "nearest: find";
    const find_params p = {*args->arrays, view_of(args->queries), args->count, args->rows,
                           args->distances2};
    const dim3 blocks = blocks_for(p.queries.max_rows, threads);
    if (args->count <= 4) return launch(ctx, what, find_nearest<4>, blocks, (unsigned)threads, p);
    if (args->count <= 32) return launch(ctx, what, find_nearest<32>, blocks, (unsigned)threads, p);
    return launch(ctx, what, find_nearest<SPOPS_MAX_NEAREST>, blocks, (unsigned)threads, p);
}
