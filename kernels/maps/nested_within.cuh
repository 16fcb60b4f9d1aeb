// SPDX-License-Identifier: Apache-2.0
// Maps within levels that were made at once: what a launch is given, and ways. A way leads from a row to a
// neighbour: the tap of the neighbour's cell in the source's level, above the taps of the maps down from
// there, place_bits each.
#ifndef SPOPS_KERNELS_NESTED_WITHIN_CUH
#define SPOPS_KERNELS_NESTED_WITHIN_CUH

#include "kernels/maps/nested_levels.cuh"

namespace spops::nest
{

// A level with a map within.
struct within_level {
    coord_index index;
    spops_taps taps;
    const int32_t *rows, *num_rows;
    const int2 *links;
    int32_t *table;
    uint32_t *masks;
    int32_t *tap_counts;
    spops_map_state *state;
    int32_t table_stride, mask_words, level, num_children; // of a cell of the next level
};

// Levels of one launch, each with blocks of its own.
struct within_params {
    within_level job[most_coarser];
    int32_t first_block[most_coarser + 1]; // of a job; [num]: of all
    int32_t num, source;
    spops_taps coarse; // of the source
    const int32_t *coarse_table;
    int32_t coarse_stride;
    // Of the maps down, by their finer level, as the stride of their windows.
    int32_t down_stride[most_coarser];
    const int32_t *down_table[most_coarser];
    const int32_t *overflow[most_coarser]; // not 0: rows of the coarser level are missing
    uint8_t stride[most_coarser][SPOPS_MAX_DIMS];
};

static_assert(sizeof(within_params) <= 4096, "parameters of a kernel");

constexpr int place_bits = 6, cell_shift = place_bits * most_coarser;
static_assert(most_taps <= 1 << place_bits, "a place in a cell of each level, then a tap");

constexpr int bad_shift = cell_shift + 16; // bits above: no tap of the source leads there

// u / d, rounded down.
__host__ __device__ inline int32_t floor_of(int32_t u, int32_t d)
{
    return u >= 0 ? u / d : -((d - 1 - u) / d);
}

// Rows of a level along axis a of a cell of the source's.
__host__ __device__ inline int32_t extent_of(const within_params &p, int level, int a)
{
    int32_t extent = 1;
    for (int m = level; m < p.source; ++m)
        extent *= p.stride[m][a];
    return extent;
}

// What place u along axis a, in rows of a level from the lowest of a row's cell of the source's on, adds to the
// way there: the tap of the cell, above the taps of the maps down from there to the level.
__device__ __forceinline__ uint64_t way_along(const within_params &p, int level, int a, int32_t u)
{
    int32_t extent = extent_of(p, level, a), cell_step = 1;
    const int32_t q = floor_of(u, extent), moved = q + p.coarse.padding[a];
    const int32_t at = moved / p.coarse.dilation[a];
    if (moved < 0 || moved % p.coarse.dilation[a] != 0 || at >= p.coarse.size[a])
        return (uint64_t)1 << bad_shift;
    for (int b = a + 1; b < p.coarse.dims; ++b)
        cell_step *= p.coarse.size[b];
    int32_t rest = u - q * extent;
    uint64_t way = (uint64_t)(at * cell_step) << cell_shift;
    for (int m = p.source - 1; m >= level; --m) {
        uint32_t step = 1;
        for (int b = a + 1; b < p.coarse.dims; ++b)
            step *= p.stride[m][b];
        extent /= p.stride[m][a];
        way += (uint64_t)(step * (uint32_t)(rest / extent)) << place_bits * m;
        rest %= extent;
    }
    return way;
}

// The row of the source's level at the beginning of a way from a row in cell `from` there.
__device__ __forceinline__ int32_t begin_of(const within_params &p, int32_t from, uint64_t way)
{
    return __ldg(p.coarse_table + (int64_t)from * p.coarse_stride + (way >> cell_shift));
}

// A way's tap of the map down to level m.
__device__ __forceinline__ int32_t place_at(uint64_t way, int m)
{
    return (int32_t)(way >> place_bits * m & ((1u << place_bits) - 1));
}

// Rows of the source's level, or -1, become the rows of a level that their ways lead to.
template <int N>
__device__ __forceinline__ void walk_down(const within_params &p, int level,
                                          const uint64_t (&way)[N], int32_t (&found)[N])
{
    for (int m = p.source - 1; m >= level; --m) {
        const int32_t *down = p.down_table[m];
        const int32_t stride = p.down_stride[m];
#pragma unroll
        for (int u = 0; u < N; ++u)
            if (found[u] >= 0)
                found[u] = __ldg(down + (int64_t)found[u] * stride + place_at(way[u], m));
    }
}

} // namespace spops::nest

#endif
