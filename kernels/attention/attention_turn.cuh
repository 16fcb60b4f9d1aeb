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

__device__ __forceinline__ float rotary_coord(const spops_attention_rotary_args &rotary,
                                              int64_t row, int axis)
{
    const int64_t at = row * rotary.stride + axis;
    return rotary.dtype == SPOPS_DTYPE_F32 ? static_cast<const float *>(rotary.coords)[at]
                                           : (float)static_cast<const int32_t *>(rotary.coords)[at];
}

// What a lane has of heads of rows: an item, which is WIDTH columns from col on that turn together
// with those from col + pairs on, or stay. WIDTH divides the pairs of an axis and the columns that
// stay. Where a head has few items, a warp has several heads: head, head + heads_at_once, ...
template <int WIDTH> struct attention_turn_lane {
    int col, axis, head, heads_at_once;
    bool turns;
    float frequency[WIDTH];

    // `item` is less than turn_lanes(items): the lane's number, and on by 32.
    __device__ __forceinline__ attention_turn_lane(const spops_attention_rotary_args &rotary,
                                                   int item, int items)
        : axis(0), head(0), heads_at_once(1)
    {
        if (items <= 16) {
            heads_at_once = 32 / items;
            head = item / items;
            item %= items;
        }
        const int first = item * WIDTH, pairs = rotary.pairs;
        turns = first < 3 * pairs;
        if (turns) axis = first / pairs;
        col = first + (turns ? axis : 3) * pairs;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w)
            frequency[w] = turns ? rotary.frequencies[first - axis * pairs + w] : 0.0f;
    }

    __device__ __forceinline__ void angles_of(const spops_attention_rotary_args &rotary,
                                              int64_t row, float (&sine)[WIDTH],
                                              float (&cosine)[WIDTH]) const
    {
        if (!turns) return;
        const float coord = rotary_coord(rotary, row, axis);
#pragma unroll
        for (int w = 0; w < WIDTH; ++w)
            sincosf(__fmul_rn(coord, frequency[w]), &sine[w], &cosine[w]);
    }
};

// Items of a warp: those of a head, or of as many whole heads as it has lanes for.
__device__ __forceinline__ int turn_lanes(int items)
{
    return items <= 16 ? 32 / items * items : items;
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

// WIDTH columns that lie at a multiple of their size.
template <class T, int WIDTH>
__device__ __forceinline__ void load_columns(float (&v)[WIDTH], const T *from)
{
    if constexpr (WIDTH == 2 && sizeof(T) == 2) {
        unpack2<T>(__ldg(reinterpret_cast<const uint32_t *>(from)), v[0], v[1]);
    } else if constexpr (WIDTH == 2) {
        const float2 two = __ldg(reinterpret_cast<const float2 *>(from));
        v[0] = two.x;
        v[1] = two.y;
    } else if constexpr (sizeof(T) == 2) {
        T one;
        one.bits = __ldg(&from->bits);
        v[0] = to_f32(one);
    } else {
        v[0] = __ldg(from);
    }
}
template <class T, int WIDTH>
__device__ __forceinline__ void store_columns(T *to, const float (&v)[WIDTH])
{
    if constexpr (WIDTH == 2)
        store_two(to, 0, 2, true, v[0], v[1]);
    else
        to[0] = from_f32<T>(v[0]);
}

// Rows as the rotary embedding turns them, where they lie in a matrix of their own. Columns from
// dim on (of a head of `to`) are zeros. A warp has a row; grid.y: sides.
template <class T, int WIDTH>
__global__ void __launch_bounds__(attention_turn_threads)
    attention_turn_kernel(const __grid_constant__ attention_turn_params p)
{
    const attention_turn_side &side = p.sides[blockIdx.y];
    const int pairs = p.rotary.pairs, items = (p.to_dim - 3 * pairs) / WIDTH; // of a head
    const int64_t from_head = side.from.head / (int64_t)sizeof(T);
    const int warps = (int)gridDim.x * attention_turn_threads / 32;
    const int entries = *side.num_entries;
    for (int i = (int)threadIdx.x % 32; i < turn_lanes(items); i += 32) {
        const attention_turn_lane<WIDTH> lane(p.rotary, i, items);
        for (int e = (int)(blockIdx.x * attention_turn_threads + threadIdx.x) / 32; e < entries;
             e += warps) {
            const int64_t row = __ldg(side.rows + e);
            const T *const from =
                reinterpret_cast<const T *>(side.from.data + row * side.from.row) + lane.col;
            T *const to = reinterpret_cast<T *>(side.to.data + row * side.to.row) + lane.col;
            float sine[WIDTH], cosine[WIDTH];
            lane.angles_of(p.rotary, row, sine, cosine);
#pragma unroll 4
            for (int h = lane.head; h < p.heads; h += lane.heads_at_once) {
                const T *const head = from + h * from_head;
                T *const to_head = to + h * p.to_dim;
                float u[WIDTH] = {}, v[WIDTH];
                if (lane.col < p.dim) load_columns(u, head);
                if (lane.turns) {
                    load_columns(v, head + pairs);
#pragma unroll
                    for (int w = 0; w < WIDTH; ++w) {
                        const float before = u[w];
                        u[w] = before * cosine[w] - v[w] * sine[w];
                        v[w] = v[w] * cosine[w] + before * sine[w];
                    }
                    store_columns(to_head + pairs, v);
                }
                store_columns(to_head, u);
            }
        }
    }
}

// A copy that turned rows are written to ([rows][heads][padded_dim]); without one, the rows themselves.
template <class T>
attention_rows turned_rows(const spops_attention_args *args, const spops_attention_view &view,
                           unsigned char *to)
{
    const int64_t head = padded_dim(args->dim) * (int64_t)sizeof(T);
    if (args->rotary.coords == nullptr) return rows_of_view(view);
    return {to, args->heads * head, head};
}

// Turns the rows of q and k that are in the lists into the copies, where there is a rotary embedding.
template <class T>
spops_status turn_rows(spops_context *ctx, const spops_attention_args *args,
                       const attention_rows &to_q, const attention_rows &to_k)
{
    if (args->rotary.coords == nullptr) return SPOPS_STATUS_OK;
    const attention_rows q = rows_of_view(args->q), k = rows_of_view(args->k);
    const spops_patch_arrays *patches = args->patches;
    attention_turn_params t = {};
    t.heads = args->heads;
    t.dim = args->dim;
    t.to_dim = padded_dim(t.dim);
    t.rotary = args->rotary;
    t.sides[0] = {patches->q_rows, &patches->state->num_queries, q, to_q};
    t.sides[1] = {patches->k_rows, &patches->state->num_keys, k, to_k};
    const int two = 2 * (int)sizeof(T);
    const bool by_two =
        t.dim % 2 == 0 && t.rotary.pairs % 2 == 0 && is_aligned(q, two) && is_aligned(k, two);
    dim3 grid = blocks_of_warps(ctx, std::max(patches->max_queries, patches->max_keys),
                                attention_turn_threads);
    grid.y = 2;
    return launch(ctx, "attention: turn rows",
                  by_two ? attention_turn_kernel<T, 2> : attention_turn_kernel<T, 1>, grid,
                  attention_turn_threads, t);
}

} // namespace spops

#endif
