// SPDX-License-Identifier: Apache-2.0
// Sort and top-k within segments of up to 128 terms: a block takes segments that follow each other, its
// terms into shared memory, and a thread counts for each of its terms how many come before it. What is
// read and written lies side by side.
#ifndef SPOPS_KERNELS_SEGOPS_TILE_ORDER_CUH
#define SPOPS_KERNELS_SEGOPS_TILE_ORDER_CUH

#include "kernels/segments/clear_rows.cuh"
#include "kernels/segments/segment_of.cuh"
#include "kernels/segops/value_keys.cuh"
#include "spops/device/grid_dependency.cuh"

namespace spops
{

constexpr int tile_threads = 256;
constexpr int tile_items = 1024; // terms and segments of a block, together
constexpr int tile_longest = 8 * SPOPS_SHORT_TERMS;
constexpr int tile_room = tile_items + tile_longest; // the last segment may go beyond
constexpr int tile_each = (tile_room + tile_threads - 1) / tile_threads; // terms of a thread
constexpr int tile_count_bits = 14; // of a place: how many terms have it, and above it their sum

template <class T> struct tile_shared {
    segment_begins<tile_room> found;
    int32_t begins[tile_items + 1]; // of its segments, and the end of the last
    int32_t range[2];               // segments
    uint32_t keys[tile_room];
    int32_t terms[tile_room];
    T values[tile_room];
    uint32_t
        places[tile_room]; // in order: the term that comes there, and 1; 0: of a longer segment
};

__device__ __forceinline__ int32_t place_count(uint32_t place)
{
    return (int32_t)(place & ((1u << tile_count_bits) - 1));
}

// The segments range[0] .. range[1] - 1 that begin among the block's part of all terms and segments, in
// the order of the lists: segment s comes after offsets[s] terms and s segments.
template <class T>
__device__ __forceinline__ void tile_segments(tile_shared<T> &s, const segment_params &p)
{
    const int64_t first = (int64_t)blockIdx.x * tile_items;
    const int32_t warp = (int32_t)threadIdx.x / 32;
    if (warp < 2) {
        const int64_t before =
            first + warp * tile_items - 1; // what a segment before it has at most
        const int32_t found =
            before < 0 ? 0 : segment_search<true>(p.offsets, p.num_segments, before) + 1;
        if (threadIdx.x % 32 == 0) s.range[warp] = found;
    }
    s.found.clear();
    __syncthreads();
    const int32_t n = s.range[1] - s.range[0];
    for (int32_t i = (int32_t)threadIdx.x; i <= n; i += tile_threads)
        s.begins[i] = __ldg(p.offsets + s.range[0] + i);
    __syncthreads();
}

// Keys of the positions begin .. end - 1 that are less.
__device__ __forceinline__ int32_t count_less(const uint32_t *keys, int32_t begin, int32_t end,
                                              uint32_t own)
{
    int32_t count = 0, j = begin;
    for (; j + 4 <= end; j += 4)
#pragma unroll
        for (int u = 0; u < 4; ++u)
            count += keys[j + u] < own;
    for (; j < end; ++j)
        count += keys[j] < own;
    return count;
}

// The term at each place of the order. A thread counts what is less than each of its terms; terms that
// are equal meet at one place, and go on from there in the order of their numbers. All threads come
// here, after a barrier, with places of 0; ends with one.
template <class T> __device__ __forceinline__ void tile_sort(tile_shared<T> &s, int32_t num_terms)
{
    int32_t place[tile_each];
    bool tied[tile_each], any = false;
#pragma unroll
    for (int u = 0; u < tile_each; ++u) {
        const int32_t i = (int32_t)threadIdx.x + u * tile_threads;
        place[u] = -1;
        if (i >= num_terms) continue;
        const int32_t begin = s.found.begin(i), end = s.found.end(i);
        if (end - begin > tile_longest) continue;
        place[u] = begin + count_less(s.keys, begin, end, s.keys[i]);
        atomicAdd(&s.places[place[u]], (uint32_t)i << tile_count_bits | 1u);
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < tile_each; ++u) {
        tied[u] = place[u] >= 0 && place_count(s.places[place[u]]) > 1;
        any |= tied[u];
    }
    if (!__syncthreads_or(any)) return;
#pragma unroll
    for (int u = 0; u < tile_each; ++u) {
        const int32_t i = (int32_t)threadIdx.x + u * tile_threads;
        if (!tied[u]) continue;
        const uint32_t own = s.keys[i];
        int32_t before = 0;
        for (int32_t j = s.found.begin(i); j < i; ++j)
            before += s.keys[j] == own;
        s.places[place[u] + before] = (uint32_t)i << tile_count_bits | 1u;
    }
    __syncthreads();
}

// Rows of top-k, four at once: k is a multiple of 4, and the four lie at an address for that.
template <class T>
__device__ __forceinline__ void tile_write_fours(const tile_shared<T> &s, const segment_params &p,
                                                 T rest)
{
    struct alignas(4 * sizeof(T)) four {
        T v[4];
    };
    const int32_t first = s.begins[0];
    const uint32_t fours = (uint32_t)p.order.k / 4;
    const uint32_t num = (uint32_t)(s.range[1] - s.range[0]) * fours;
    const int64_t base = (int64_t)s.range[0] * fours;
    for (uint32_t i = threadIdx.x; i < num; i += tile_threads) {
        const uint32_t of = fours == 1 ? i : __umulhi(i, p.four_inverse);
        const int32_t rank = (int32_t)(i - of * fours) * 4, begin = s.begins[of];
        const int32_t count = s.begins[of + 1] - begin;
        four value;
        int32_t place[4];
        if (count > tile_longest) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const bool there = rank + j < count;
            const uint32_t from = there ? s.places[begin - first + rank + j] >> tile_count_bits : 0;
            value.v[j] = there ? s.values[from] : rest;
            place[j] = there ? s.terms[from] : -1;
        }
        static_cast<four *>(p.order.values)[base + i] = value;
        reinterpret_cast<int4 *>(p.order.places)[base + i] =
            make_int4(place[0], place[1], place[2], place[3]);
    }
}

template <class T>
__device__ __forceinline__ void tile_write(const tile_shared<T> &s, const segment_params &p,
                                           int32_t num_terms, int32_t col)
{
    const order_params &order = p.order;
    const int32_t num_segments = s.range[1] - s.range[0], first = s.begins[0];
    if (order.k == 0) {
        for (int32_t i = (int32_t)threadIdx.x; i < num_terms; i += tile_threads) {
            const uint32_t place = s.places[i], from = place >> tile_count_bits;
            if (place != 0) order.put<T>(s.terms[i], col, s.values[from], s.terms[from]);
        }
        return;
    }
    const T rest = from_f32<T>(order.descending ? -INFINITY : INFINITY);
    if (p.four_inverse != 0) {
        tile_write_fours(s, p, rest);
        return;
    }
    const int64_t rows = (int64_t)num_segments * order.k;
    for (int64_t i = threadIdx.x; i < rows; i += tile_threads) {
        const int32_t of = (int32_t)row_of(i, order.k), rank = (int32_t)(i - (int64_t)of * order.k);
        const int32_t begin = s.begins[of], count = s.begins[of + 1] - begin;
        if (count > tile_longest) continue;
        const bool there = rank < count;
        const uint32_t from = there ? s.places[begin - first + rank] >> tile_count_bits : 0;
        order.put<T>((int64_t)s.range[0] * order.k + i, col, there ? s.values[from] : rest,
                     there ? s.terms[from] : -1);
    }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, blocks_held(tile_threads, 8))
    tile_kernel(const __grid_constant__ segment_params p)
{
    __shared__ tile_shared<T> s;
    grid_launch_dependents();
    tile_segments(s, p);
    const int32_t num_segments = s.range[1] - s.range[0];
    if (num_segments <= 0) return;
    const int32_t first = s.begins[0], last = s.begins[num_segments - 1];
    const int32_t end = s.begins[num_segments];
    const int32_t num_terms = (end - last > tile_longest ? last : end) - first;
    for (int32_t i = (int32_t)threadIdx.x; i < num_segments; i += tile_threads)
        if (s.begins[i] - first < num_terms) s.found.mark(s.begins[i] - first);
    for (int32_t i = (int32_t)threadIdx.x; i < num_terms; i += tile_threads)
        s.terms[i] = p.order.term(first + i);
    __syncthreads();
    if (threadIdx.x < 32) s.found.scan(0, num_terms);
    for (int32_t col = 0; col < p.order.cols; ++col) {
        for (int32_t i = (int32_t)threadIdx.x; i < num_terms; i += tile_threads) {
            const T value = p.order.value<T>(s.terms[i], col);
            s.values[i] = value;
            s.keys[i] = value_key(to_f32(value), p.order.descending);
            s.places[i] = 0;
        }
        __syncthreads();
        tile_sort(s, num_terms);
        tile_write(s, p, num_terms, col);
        __syncthreads(); // of what the next column replaces
    }
}

} // namespace spops

#endif
