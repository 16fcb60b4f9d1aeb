// SPDX-License-Identifier: Apache-2.0
// Rows as the rotary embedding turns them, in a matrix of their own: once a row, and not by every
// tile of queries that it is a key of.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_TURN_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_TURN_CUH

#include <algorithm>

#include "kernels/attention/attention_launch.cuh"

namespace spops
{

constexpr int attention_turn_threads = 256;

// Columns of a head of turned rows: whole pieces of 16 bytes of any dtype.
constexpr int padded_dim(int dim)
{
    return (dim + 7) / 8 * 8;
}

// What a lane has of every head of a row: columns col and col + pairs, which turn together, or one
// column that stays.
struct attention_turn_lane {
    int col;
    bool turns;
    float sine, cosine;
};

// Lane `item` of dim - 3 * pairs.
__device__ __forceinline__ attention_turn_lane
turn_lane_of(const spops_attention_rotary_args &rotary, int row, int item)
{
    const int pairs = rotary.pairs;
    attention_turn_lane lane = {item + 3 * pairs, false, 0.0f, 1.0f};
    if (item >= 3 * pairs) return lane;
    const int axis = item / pairs;
    lane.col = item + axis * pairs;
    lane.turns = true;
    sincosf(rotary_angle(rotary, row, axis, item - axis * pairs), &lane.sine, &lane.cosine);
    return lane;
}

// Of q, of k.
struct attention_turn_side {
    const int *rows, *num_entries;
    attention_rows from, to;
};
struct attention_turn_params {
    attention_turn_side sides[2];
    int heads, dim, to_dim;
    spops_attention_rotary_args rotary;
};

template <class T> __device__ __forceinline__ T load_unwritten(const T *p)
{
    if constexpr (sizeof(T) == 2) {
        T v;
        v.bits = __ldg(&p->bits);
        return v;
    } else {
        return __ldg(p);
    }
}

// Rows as the rotary embedding turns them, where they lie in a matrix of their own. Columns from
// dim on (of a head of `to`) are zeros. A warp has a row; grid.y: sides.
template <class T>
__global__ void __launch_bounds__(attention_turn_threads)
    attention_turn_kernel(const __grid_constant__ attention_turn_params p)
{
    const attention_turn_side &side = p.sides[blockIdx.y];
    const int pairs = p.rotary.pairs, items = p.to_dim - 3 * pairs; // of a head
    const int warps = (int)gridDim.x * attention_turn_threads / 32;
    const int entries = *side.num_entries;
    for (int e = (int)(blockIdx.x * attention_turn_threads + threadIdx.x) / 32; e < entries;
         e += warps) {
        const int64_t row = __ldg(side.rows + e);
        for (int i = (int)threadIdx.x % 32; i < items; i += 32) {
            const attention_turn_lane lane = turn_lane_of(p.rotary, (int)row, i);
            const T *const from =
                reinterpret_cast<const T *>(side.from.data + row * side.from.row) + lane.col;
            T *const to = reinterpret_cast<T *>(side.to.data + row * side.to.row) + lane.col;
            const int64_t from_head = side.from.head / (int64_t)sizeof(T);
#pragma unroll 4
            for (int h = 0; h < p.heads; ++h) {
                const T *const head = from + h * from_head;
                T *const to_head = to + h * p.to_dim;
                if (lane.turns) {
                    const float u = to_f32(load_unwritten(head));
                    const float v = to_f32(load_unwritten(head + pairs));
                    to_head[0] = from_f32<T>(u * lane.cosine - v * lane.sine);
                    to_head[pairs] = from_f32<T>(v * lane.cosine + u * lane.sine);
                } else {
                    to_head[0] = lane.col < p.dim ? load_unwritten(head) : from_f32<T>(0.0f);
                }
            }
        }
    }
}

// Turns the rows of q and k that are in the lists. They are then those of the copies
// ([rows][heads][padded_dim]).
template <class T>
spops_status turn_rows(spops_context *ctx, const spops_attention_args *args, attention_rows *q,
                       unsigned char *to_q, attention_rows *k, unsigned char *to_k)
{
    const spops_patch_arrays *patches = args->patches;
    attention_turn_params t = {};
    t.heads = args->heads;
    t.dim = args->dim;
    t.to_dim = padded_dim(t.dim);
    t.rotary = args->rotary;
    const int64_t head = t.to_dim * (int64_t)sizeof(T);
    t.sides[0] = {patches->q_rows, &patches->state->num_queries, *q, {to_q, t.heads * head, head}};
    t.sides[1] = {patches->k_rows, &patches->state->num_keys, *k, {to_k, t.heads * head, head}};
    *q = t.sides[0].to;
    *k = t.sides[1].to;
    dim3 grid = blocks_of_warps(ctx, std::max(patches->max_queries, patches->max_keys),
                                attention_turn_threads);
    grid.y = 2;
    return launch(ctx, "attention: turn rows", attention_turn_kernel<T>, grid,
                  attention_turn_threads, t);
}

} // namespace spops

#endif
