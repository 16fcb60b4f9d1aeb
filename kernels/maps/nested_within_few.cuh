// SPDX-License-Identifier: Apache-2.0
// Maps within levels, of kernels of up to 32 taps that reach two cells of the next level along each axis, as
// 3 x 3 x 3 over windows of 2 does: the cells of four rows, eight each, are found by a warp at once, and the
// taps of a row are a step from them.
#ifndef SPOPS_KERNELS_NESTED_WITHIN_FEW_CUH
#define SPOPS_KERNELS_NESTED_WITHIN_FEW_CUH

#include "kernels/maps/nested_within.cuh"

namespace spops::nest
{

constexpr int cells_of_row = 8, rows_of_warp = 32 / cells_of_row;

// The lowest cell of the next level, from the row's own on, that a row at position t of an axis reaches.
__device__ __forceinline__ int32_t lowest_cell(const within_params &p, const within_level &l, int a,
                                               int32_t t)
{
    const int32_t stride = p.stride[l.level][a];
    return floor_of(t % stride - l.taps.padding[a], stride);
}

// What position t along axis a adds to the way to the `side`-th of the two cells of the next level there.
// At the place of the row's own level: what it adds to the row's tap in its cell.
__device__ __forceinline__ uint64_t cell_step_of(const within_params &p, const within_level &l,
                                                 int a, int32_t t, int32_t side)
{
    const int32_t own = p.stride[l.level][a];
    int32_t own_step = 1;
    for (int b = a + 1; b < p.coarse.dims; ++b)
        own_step *= p.stride[l.level][b];
    return way_along(p, l.level + 1, a, t / own + lowest_cell(p, l, a, t) + side) |
           (uint64_t)(t % own * own_step) << place_bits * l.level;
}

// Where tap k of a row that is tap `child` of its cell lies: which of the row's cells, and above that
// the tap of the cell.
__device__ __forceinline__ uint16_t tap_step_of(const within_params &p, const within_level &l,
                                                int32_t child, int32_t k)
{
    uint32_t cell = 0, place = 0, place_step = 1;
    for (int a = l.taps.dims - 1; a >= 0; --a) {
        const int32_t stride = p.stride[l.level][a], t = child % stride;
        const int32_t u = t + l.taps.dilation[a] * (k % l.taps.size[a]) - l.taps.padding[a];
        const int32_t q = floor_of(u, stride);
        cell |= (uint32_t)(q - lowest_cell(p, l, a, t)) << a;
        place += place_step * (uint32_t)(u - q * stride);
        place_step *= (uint32_t)stride;
        child /= stride;
        k /= l.taps.size[a];
    }
    return (uint16_t)(place << 3 | cell);
}

// Shared words of 8 bytes for the steps of a level; 0: it has more taps, or reaches more cells.
__host__ __device__ inline int32_t few_steps(const within_params &p, const within_level &l)
{
    int32_t words = 0, children = 1;
    if (l.taps.dims > 3 || l.taps.num_taps > 32) return 0;
    for (int a = 0; a < l.taps.dims; ++a) {
        const int32_t stride = p.stride[l.level][a];
        if (2 * l.taps.padding[a] > stride) return 0;
        words += 2 * extent_of(p, l.level, a);
        children *= stride;
    }
    return words + children * 32 / 4;
}

// Rows `first` to first + rows_of_warp - 1 of those before n. Returns how many have this lane's tap.
__device__ __forceinline__ int32_t follow_few(const within_params &p, const within_level &l,
                                              const uint64_t *const (&steps)[3],
                                              const uint16_t *tap_steps, int64_t first, int32_t n)
{
    const int lane = threadIdx.x % 32, cell = lane % cells_of_row;
    const int64_t mine = first + lane / cells_of_row;
    const int2 link = mine < n ? __ldg(l.links + mine) : make_int2(-1, 0);
    uint64_t way[1] = {0};
#pragma unroll
    for (int a = 0; a < 3; ++a)
        if (a < l.taps.dims)
            way[0] += steps[a][2 * ((uint32_t)link.y >> 8 * a & 0xff) + (cell >> a & 1)];
    int32_t found[1] = {-1};
    if (link.x >= 0 && way[0] >> bad_shift == 0 && cell >> l.taps.dims == 0)
        found[0] = begin_of(p, link.x, way[0]);
    walk_down(p, l.level + 1, way, found);
    const int32_t child = place_at(way[0], l.level);
    const int32_t *down = p.down_table[l.level];
    const int32_t stride = p.down_stride[l.level];
    const bool is_tap = lane < l.taps.num_taps, is_column = lane < l.table_stride;
    int32_t j[rows_of_warp], count = 0;
    uint32_t mask = 0;
#pragma unroll
    for (int u = 0; u < rows_of_warp; ++u) {
        const uint32_t step = tap_steps[__shfl_sync(~0u, child, u * cells_of_row) * 32 + lane];
        const int32_t from = __shfl_sync(~0u, found[0], u * cells_of_row + (int)(step & 7u));
        j[u] = is_tap && from >= 0 ? __ldg(down + (int64_t)from * stride + (step >> 3)) : -1;
    }
#pragma unroll
    for (int u = 0; u < rows_of_warp; ++u) {
        const uint32_t votes = __ballot_sync(~0u, j[u] >= 0);
        if (lane == u) mask = votes;
        if (is_column && first + u < n) l.table[(first + u) * l.table_stride + lane] = j[u];
        count += j[u] >= 0;
    }
    if (lane < rows_of_warp && first + lane < n) l.masks[first + lane] = mask;
    return count;
}

} // namespace spops::nest

#endif
