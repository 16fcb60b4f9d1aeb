// SPDX-License-Identifier: Apache-2.0
// What a set of coordinates is made from, as keys: one function for every kind of source.
#ifndef SPOPS_KERNELS_COORDS_COORDS_SOURCE_CUH
#define SPOPS_KERNELS_COORDS_COORDS_SOURCE_CUH

#include <cuda_fp16.h>

#include "kernels/core/launch.cuh"
#include "coords/coord_arrays.h"

namespace spops
{

// Items that count, of those numbered 0 .. max_items - 1 (of a union: of its first part).
__device__ __forceinline__ int64_t source_items(const int32_t *given, int64_t most)
{
    if (given == nullptr) return most;
    const int32_t n = *given;
    return n < 0 ? 0 : n < most ? n : most;
}

// Whether item i counts; KEPT: but for its keep.
__device__ __forceinline__ bool source_has_item(const spops_coords_source &s, int64_t i)
{
    if (s.kind == SPOPS_COORDS_CHILDREN || s.kind == SPOPS_COORDS_GROWN) {
        int32_t tap;
        const int64_t row = spops_source_tap_row(&s, i, &tap);
        return row < source_items(s.num_items, INT32_MAX) && spops_source_tap_kept(&s, i, row, tap);
    }
    if (s.kind != SPOPS_COORDS_UNION) return i < source_items(s.num_items, s.max_items);
    if (i < s.max_items_a) return i < source_items(s.num_items, s.max_items_a);
    return i - s.max_items_a < source_items(s.num_items_b, s.max_items - s.max_items_a);
}

__device__ __forceinline__ const int32_t *source_row(const spops_coords_source &s, int64_t i)
{
    if (s.kind == SPOPS_COORDS_UNION && i >= s.max_items_a)
        return s.rows_b + (i - s.max_items_a) * (1 + s.dims);
    return s.rows + i * (1 + s.dims);
}

// Axis a of point i, which is f32 or f16.
__device__ __forceinline__ float source_point(const spops_coords_source &s, int64_t i, int a)
{
    const int64_t at = i * s.points.row_stride + a;
    return s.points.dtype == SPOPS_DTYPE_F32 ? ((const float *)s.points.data)[at]
                                             : __half2float(((const __half *)s.points.data)[at]);
}

// Key of an item of the kinds that give one candidate each; NONE: outside the box, or not finite.
__device__ __forceinline__ uint64_t source_key(const spops_coords_source &s,
                                               const spops_key_layout &layout, int64_t i)
{
    if (s.kind == SPOPS_COORDS_CHILDREN || s.kind == SPOPS_COORDS_GROWN) {
        int32_t tap;
        const int64_t row = spops_source_tap_row(&s, i, &tap);
        return spops_source_tap_key(&s, &layout, s.rows + row * (1 + s.dims), tap);
    }
    if (s.kind != SPOPS_COORDS_POINTS) return spops_key_pack(&layout, source_row(s, i));
    const int32_t batch = s.batch != nullptr ? s.batch[i] : 0;
    if (!spops_key_fits(&layout, 0, batch)) return SPOPS_KEY_NONE;
    uint64_t key = spops_key_column(&layout, 0, batch);
    for (int a = 0; a < s.dims; ++a) {
        int32_t v;
        if (!spops_voxel_floor(
                spops_voxel_position(source_point(s, i, a), s.origin[a], s.size[a], 0.0), &v) ||
            !spops_key_fits(&layout, a + 1, v))
            return SPOPS_KEY_NONE;
        key |= spops_key_column(&layout, a + 1, v);
    }
    return key;
}

// Candidates of a row from its axis dims - LEFT on; `key` holds the columns before.
template <int LEFT, class Take>
__device__ __forceinline__ void walk_axes(const spops_coords_source &s,
                                          const spops_key_layout &layout, const int32_t *row,
                                          uint64_t key, bool inside, const Take &take)
{
    if constexpr (LEFT == 0) {
        take(inside ? key : SPOPS_KEY_NONE);
    } else {
        const int a = s.dims - LEFT;
        const int32_t x = row[a + 1];
        for (int32_t t = 0; t < s.taps.size[a]; ++t) {
            int64_t v;
            if (s.kind == SPOPS_COORDS_UP)
                v = spops_tap_fine(&s.taps, a, x, t);
            else if (!spops_tap_coarse(&s.taps, a, x, t, &v))
                continue; // nor do the axes after it matter
            const bool fits = inside && spops_key_fits(&layout, a + 1, v);
            walk_axes<LEFT - 1>(s, layout, row,
                                fits ? key | spops_key_column(&layout, a + 1, v) : key, fits, take);
        }
    }
}

// Calls take(key) for every candidate of a row, by ascending tap; NONE for one outside the box.
template <class Take>
__device__ __forceinline__ void source_candidates(const spops_coords_source &s,
                                                  const spops_key_layout &layout,
                                                  const int32_t *row, const Take &take)
{
    const bool fits = spops_key_fits(&layout, 0, row[0]);
    const uint64_t key = fits ? spops_key_column(&layout, 0, row[0]) : 0;
    if (s.dims == 1) walk_axes<1>(s, layout, row, key, fits, take);
    if (s.dims == 2) walk_axes<2>(s, layout, row, key, fits, take);
    if (s.dims == 3) walk_axes<3>(s, layout, row, key, fits, take);
    if (s.dims == 4) walk_axes<4>(s, layout, row, key, fits, take);
}

} // namespace spops

#endif
