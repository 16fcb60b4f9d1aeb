// SPDX-License-Identifier: Apache-2.0
// Values as unsigned keys in the order of sorts (segops_args.h), and candidates: a key, and behind it the
// position, which no two candidates of a column share. So their order is a total one. And what the
// kernels within segments are given.
#ifndef SPOPS_KERNELS_SEGOPS_VALUE_KEYS_CUH
#define SPOPS_KERNELS_SEGOPS_VALUE_KEYS_CUH

#include "segments/lists.h"
#include "spops/device/dtypes.cuh"

namespace spops
{

// NaN is the largest, -0 is 0.
__device__ __forceinline__ uint32_t value_key(float v, bool descending)
{
    const uint32_t bits = __float_as_uint(v + 0.0f);
    uint32_t key = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    if (v != v) key = 0xffffffffu;
    return descending ? ~key : key;
}

typedef unsigned long long candidate;
constexpr candidate no_candidate = ~0ull; // after all others: no position is that large

__device__ __forceinline__ candidate candidate_of(uint32_t key, int32_t position)
{
    return (candidate)key << 32 | (uint32_t)position;
}
__device__ __forceinline__ int32_t position_of(candidate c)
{
    return (int32_t)(uint32_t)c;
}

// What calls within segments read and write, a column at a time.
struct order_params {
    const int32_t *order;
    const void *x;
    int64_t x_stride;
    void *values;
    int64_t values_stride;
    int32_t *places;
    int64_t places_stride;
    int32_t cols, k; // k 0: a sort
    bool descending;

    __device__ __forceinline__ int32_t term(int32_t position) const
    {
        return order != nullptr ? __ldg(order + position) : position;
    }
    template <class T> __device__ __forceinline__ T value(int64_t row, int32_t col) const
    {
        return static_cast<const T *>(x)[row * x_stride + col];
    }
    template <class T>
    __device__ __forceinline__ candidate load(int32_t position, int32_t col) const
    {
        return candidate_of(value_key(to_f32(value<T>(term(position), col)), descending), position);
    }
    template <class T>
    __device__ __forceinline__ void put(int64_t row, int32_t col, T v, int32_t place) const
    {
        static_cast<T *>(values)[row * values_stride + col] = v;
        places[row * places_stride + col] = place;
    }
    // The term at a position becomes rank `rank` of segment `segment`, whose positions begin at `begin`.
    template <class T>
    __device__ __forceinline__ void write(int32_t segment, int32_t begin, int32_t rank, int32_t col,
                                          int32_t position) const
    {
        const int32_t from = term(position);
        const int64_t row = k > 0 ? (int64_t)segment * k + rank : term(begin + rank);
        put(row, col, value<T>(from, col), from);
    }
    // Ranks that a segment does not have.
    template <class T>
    __device__ __forceinline__ void write_rest(int32_t segment, int32_t first, int32_t step,
                                               int32_t col) const
    {
        const T last = from_f32<T>(descending ? -INFINITY : INFINITY);
        for (int32_t i = first; i < k; i += step)
            put((int64_t)segment * k + i, col, last, -1);
    }
};

struct segment_params {
    order_params order;
    const int32_t *offsets;
    const spops_work_item *entries, *pieces;
    const spops_split_segment *splits;
    const spops_schedule *schedule;
    int64_t num_segments;
    candidate *found; // [slots][cols][kept] of groups of pieces
    int32_t kept;     // that a group of pieces leaves
    int32_t at_once;  // pieces of a group; 0: split segments are not divided
    // Of top-k whose rows four at once can be written: 2^32 / (k / 4), rounded up; 0: of others.
    uint32_t four_inverse;
};

// Groups of pieces of one split segment have slots of their own: that of its first piece / at_once, and
// one more for each split segment before it, as groups of two segments do not share one.
__device__ __forceinline__ int64_t slot_of(const segment_params &p,
                                           const spops_split_segment &split, int32_t index,
                                           int32_t group)
{
    return (int64_t)split.first_piece / p.at_once + index + group;
}

// The positions begin .. begin + count - 1 of the group of pieces that begins with `piece`, and where
// its candidates go; count 0: a piece within a group.
struct piece_group {
    int32_t begin, count;
    int64_t slot;
};
__device__ __forceinline__ piece_group group_of(const segment_params &p, int32_t piece)
{
    const int32_t index = p.pieces[piece].split;
    const spops_split_segment split = p.splits[index];
    const int32_t local = piece - split.first_piece, begin = p.pieces[piece].begin;
    if (local % p.at_once != 0) return {begin, 0, 0};
    const spops_work_item last =
        p.pieces[min(piece + p.at_once, split.first_piece + split.num_pieces) - 1];
    return {begin, last.begin + last.count - begin, slot_of(p, split, index, local / p.at_once)};
}

// Candidate i of those that the groups of a split segment have left.
struct left_candidates {
    const candidate *from;
    int64_t stride; // of groups
    int32_t kept, count;

    __device__ __forceinline__ left_candidates(const segment_params &p,
                                               const spops_split_segment &split, int32_t index,
                                               int32_t col)
        : from(p.found + (slot_of(p, split, index, 0) * p.order.cols + col) * p.kept),
          stride((int64_t)p.order.cols * p.kept), kept(p.kept),
          count((split.num_pieces + p.at_once - 1) / p.at_once * p.kept)
    {
    }
    __device__ __forceinline__ candidate operator()(int32_t i) const
    {
        const int32_t group = i / kept;
        return from[group * stride + (i - group * kept)];
    }
};

} // namespace spops

#endif
