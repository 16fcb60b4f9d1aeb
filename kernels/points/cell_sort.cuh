// SPDX-License-Identifier: Apache-2.0
// Points by cell on the GPU: what is in use of a cloud, the box around it, keys, and their sort.
#ifndef SPOPS_KERNELS_POINTS_CELL_SORT_CUH
#define SPOPS_KERNELS_POINTS_CELL_SORT_CUH

#include "points/neighbors.h"
#include "kernels/core/device_wide.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"

namespace spops
{

struct cloud_view {
    const float *points;
    int64_t stride;
    int max_rows;
    const int *offsets; // nullptr: one sample
    int num_samples;
};

inline cloud_view view_of(const spops_point_cloud *cloud)
{
    cloud_view v = {};
    if (cloud == nullptr) return v;
    v.points = static_cast<const float *>(cloud->points.data);
    v.stride = cloud->points.row_stride;
    v.max_rows = (int)cloud->points.rows;
    v.offsets = cloud->offsets;
    v.num_samples = (int)cloud->num_samples;
    return v;
}

__device__ inline int sample_of(const cloud_view &cloud, int row)
{
    return cloud.offsets == nullptr ? 0 : spops_sample_of(cloud.offsets, cloud.num_samples, row);
}

__device__ inline float3 point_at(const cloud_view &cloud, int row)
{
    const float *p = cloud.points + row * cloud.stride;
    return make_float3(p[0], p[1], p[2]);
}

__device__ inline bool is_finite_point(float3 p)
{
    return spops_is_finite(p.x) && spops_is_finite(p.y) && spops_is_finite(p.z);
}

// Bits of a key: of the sample, and of an axis.
struct key_bits {
    int sample, axis;
};

inline key_bits bits_of_keys(int64_t max_samples)
{
    key_bits b = {0, 0};
    while (b.sample < 31 && (max_samples - 1) >> b.sample != 0)
        ++b.sample;
    b.axis = spops_cell_bits(b.sample);
    return b;
}

struct bounds_params {
    cloud_view clouds[SPOPS_NUM_SIDES]; // without points: not there
    bool same;
    spops_neighbors_state *state;
};

constexpr int bounds_threads = 256;

// Rows in use and an empty box. One block.
static __global__ void __launch_bounds__(bounds_threads)
    start_bounds(const __grid_constant__ bounds_params p)
{
    __shared__ int bad;
    spops_neighbors_state *state = p.state;
    if (threadIdx.x == 0) bad = 0;
    __syncthreads();
    for (int c = 0; c < SPOPS_NUM_SIDES; ++c) {
        const cloud_view &cloud = p.clouds[c];
        if (cloud.offsets == nullptr) continue;
        for (int b = threadIdx.x; b < cloud.num_samples; b += bounds_threads)
            if (cloud.offsets[b + 1] < cloud.offsets[b]) bad = 1;
        if (threadIdx.x == 0 &&
            (cloud.offsets[0] != 0 || cloud.offsets[cloud.num_samples] > cloud.max_rows))
            bad = 1;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int c = 0; c < SPOPS_NUM_SIDES; ++c) {
        const cloud_view &cloud =
            p.clouds[c == SPOPS_SIDE_TARGET && p.same ? SPOPS_SIDE_SOURCE : c];
        const int rows =
            cloud.offsets == nullptr ? cloud.max_rows : cloud.offsets[cloud.num_samples];
        state->num_rows[c] = bad ? 0 : rows;
        state->bad_row[c] = INT32_MAX;
        state->num_cells[c] = 0;
    }
    for (int a = 0; a < 3; ++a) {
        state->lower[a] = ~0u;
        state->upper[a] = 0;
    }
    state->bad_offsets = bad;
    state->num_dropped = 0;
    state->overflow = 0;
    state->num_pairs = 0;
    state->reserved = 0;
}

// The box around the points of cloud c, and those that are not finite.
static __global__ void __launch_bounds__(bounds_threads)
    find_bounds(const __grid_constant__ bounds_params p, int c)
{
    const cloud_view &cloud = p.clouds[c];
    const int rows = p.state->num_rows[c];
    uint32_t lower[3] = {~0u, ~0u, ~0u}, upper[3] = {0, 0, 0};
    for (int i = blockIdx.x * bounds_threads + threadIdx.x; i < rows;
         i += gridDim.x * bounds_threads) {
        const float3 at = point_at(cloud, i);
        if (!is_finite_point(at)) {
            atomicMin(&p.state->bad_row[c], i);
            atomicAdd(&p.state->num_dropped, 1);
            continue;
        }
        const float place[3] = {at.x, at.y, at.z};
#pragma unroll
        for (int a = 0; a < 3; ++a) {
            const uint32_t v = spops_ordered_float(__float_as_uint(place[a]));
            lower[a] = min(lower[a], v);
            upper[a] = max(upper[a], v);
        }
    }
    __shared__ uint32_t low[3], high[3];
    if (threadIdx.x < 3) {
        low[threadIdx.x] = ~0u;
        high[threadIdx.x] = 0;
    }
    __syncthreads();
#pragma unroll
    for (int a = 0; a < 3; ++a) {
        lower[a] = warp_min(lower[a]);
        upper[a] = warp_max(upper[a]);
        if (threadIdx.x % 32 == 0) {
            atomicMin(&low[a], lower[a]);
            atomicMax(&high[a], upper[a]);
        }
    }
    __syncthreads();
    if (threadIdx.x < 3 && low[threadIdx.x] <= high[threadIdx.x]) {
        atomicMin(&p.state->lower[threadIdx.x], low[threadIdx.x]);
        atomicMax(&p.state->upper[threadIdx.x], high[threadIdx.x]);
    }
}

__device__ inline spops_cell_grid grid_of(const spops_neighbors_state *state, float radius,
                                          int bits)
{
    spops_cell_grid grid = {};
    double extent = 0.0;
    grid.bits = bits;
    for (int a = 0; a < 3; ++a) {
        if (state->lower[a] > state->upper[a]) continue; // no points
        const double lower = __uint_as_float(spops_float_of_ordered(state->lower[a]));
        const double upper = __uint_as_float(spops_float_of_ordered(state->upper[a]));
        grid.origin[a] = lower;
        extent = fmax(extent, upper - lower);
    }
    grid.size = spops_cell_size(radius, extent, bits);
    return grid;
}

struct key_params {
    cloud_view cloud;
    const spops_neighbors_state *state;
    int which; // of the state's clouds
    float radius;
    int bits;
    bool morton;
    unsigned long long *keys; // [max_rows]; NONE for rows without a cell
    int *values;
};

constexpr int key_threads = 256;

static __global__ void __launch_bounds__(key_threads)
    make_keys(const __grid_constant__ key_params p)
{
    __shared__ spops_cell_grid grid;
    const int i = blockIdx.x * key_threads + threadIdx.x;
    if (threadIdx.x == 0) grid = grid_of(p.state, p.radius, p.bits);
    __syncthreads();
    if (i >= p.cloud.max_rows) return;
    uint64_t key = SPOPS_CELL_NONE;
    if (i < p.state->num_rows[p.which]) {
        const float3 at = point_at(p.cloud, i);
        if (is_finite_point(at)) {
            key = spops_cell_key(&grid, sample_of(p.cloud, i), at.x, at.y, at.z);
            if (p.morton) key = spops_morton_key(key, p.bits);
        }
    }
    p.keys[i] = key;
    p.values[i] = i;
}

// Start, bounds of the clouds that are there.
inline spops_status enqueue_bounds(spops_context *ctx, const char *what, const bounds_params &p)
{
    SPOPS_TRY(launch(ctx, what, start_bounds, dim3(1), (unsigned)bounds_threads, p));
    for (int c = 0; c < SPOPS_NUM_SIDES; ++c) {
        if (p.clouds[c].max_rows == 0) continue;
        const int64_t blocks = (p.clouds[c].max_rows + bounds_threads - 1) / bounds_threads;
        const int64_t most = (int64_t)ctx->info.num_processors * 4;
        SPOPS_TRY(launch(ctx, what, find_bounds, dim3((unsigned)(blocks < most ? blocks : most)),
                         (unsigned)bounds_threads, p, c));
    }
    return SPOPS_STATUS_OK;
}

} // namespace spops

#endif
