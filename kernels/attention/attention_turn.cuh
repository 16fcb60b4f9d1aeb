// SPDX-License-Identifier: Apache-2.0
// Rows as the norm and the rotary embedding make them, in a matrix of their own: once a row, and not by
// every tile of queries that it is a key of.
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

// Where rows are, of which the rotary embedding turns them.
struct attention_coords {
    const void *at; // [rows][3] f32 or i32
    int64_t stride;
    bool f32;

    __device__ __forceinline__ float of(int64_t row, int axis) const
    {
        const int64_t i = row * stride + axis;
        return f32 ? static_cast<const float *>(at)[i] : (float)static_cast<const int32_t *>(at)[i];
    }
};

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

    __device__ __forceinline__ void angles_of(const attention_coords &coords, int64_t row,
                                              float (&sine)[WIDTH], float (&cosine)[WIDTH]) const
    {
        if (!turns) return;
        const float coord = coords.of(row, axis);
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
    const int *rows, *num_entries; // null: the side stays where it is
    attention_rows from, to;
    int heads;
    attention_coords coords;
    spops_attention_norm_args norm;
};
struct attention_turn_params {
    attention_turn_side sides[SPOPS_ATTENTION_NUM_TURNED];
    int dim, to_dim;
    float epsilon;
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
            lane.angles_of(side.coords, row, sine, cosine);
#pragma unroll 4
            for (int h = lane.head; h < side.heads; h += lane.heads_at_once) {
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

// ---- With a norm --------------------------------------------------------------------------------

// Columns of a head that a lane has: WIDTH from (lane + 32 i) WIDTH on, PARTS times. Those that turn do
// so with others of the same axis, which come through a line in shared memory: column c becomes
// x[c] cosine + x[other] sine. WIDTH divides dim and the pairs of an axis.
template <int PARTS, int WIDTH> struct attention_norm_lane {
    int other[PARTS]; // of the first column of a part
    float sine[PARTS][WIDTH], cosine[PARTS][WIDTH];

    __device__ __forceinline__ static int column(int i, int lane)
    {
        return (lane + 32 * i) * WIDTH;
    }

    // back: the other way round.
    __device__ __forceinline__ void find(const spops_attention_rotary_args &rotary,
                                         const attention_coords &coords, int64_t row, bool back,
                                         int lane)
    {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const int c = column(i, lane), pairs = rotary.pairs;
            other[i] = c;
            if (c >= 6 * pairs) continue;
            const int axis = c / (2 * pairs), at = c - axis * 2 * pairs;
            const bool upper = at >= pairs;
            other[i] = upper ? c - pairs : c + pairs;
            const float coord = coords.of(row, axis);
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) {
                const float frequency = rotary.frequencies[(upper ? at - pairs : at) + w];
                sincosf(__fmul_rn(coord, frequency), &sine[i][w], &cosine[i][w]);
                if (upper == back) sine[i][w] = -sine[i][w];
            }
        }
    }

    // x is turned; `line` is the warp's own, with a number for each column.
    __device__ __forceinline__ void turn(float (&x)[PARTS][WIDTH], float *line, int lane) const
    {
        __syncwarp(); // the line has been read
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
            store_columns(line + column(i, lane), x[i]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            if (other[i] == column(i, lane)) continue;
#pragma unroll
            for (int w = 0; w < WIDTH; ++w)
                x[i][w] = x[i][w] * cosine[i][w] + line[other[i] + w] * sine[i][w];
        }
    }
};

__device__ __forceinline__ float sum_of_warp(float x)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

// A head of a row: columns from dim on are zeros.
template <class T, int PARTS, int WIDTH>
__device__ __forceinline__ void load_norm_row(float (&x)[PARTS][WIDTH], const T *from, int dim,
                                              int lane)
{
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const int c = attention_norm_lane<PARTS, WIDTH>::column(i, lane);
#pragma unroll
        for (int w = 0; w < WIDTH; ++w)
            x[i][w] = 0.0f;
        if (c < dim) load_columns(x[i], from + c);
    }
}

// The weights of a head, which may lie anywhere.
template <int PARTS, int WIDTH>
__device__ __forceinline__ void load_norm_weights(float (&x)[PARTS][WIDTH], const float *from,
                                                  int dim, int lane)
{
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) {
            const int c = attention_norm_lane<PARTS, WIDTH>::column(i, lane) + w;
            x[i][w] = c < dim ? __ldg(from + c) : 0.0f;
        }
}

// What the norm multiplies a row with, besides weights.
template <int PARTS, int WIDTH>
__device__ __forceinline__ float norm_factor(const float (&x)[PARTS][WIDTH], int dim, float epsilon)
{
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
#pragma unroll
        for (int w = 0; w < WIDTH; ++w)
            squares = fmaf(x[i][w], x[i][w], squares);
    return 1.0f / sqrtf(sum_of_warp(squares) / (float)dim + epsilon);
}

// Of all heads of a row; a warp has a row. grid.y: sides.
template <class T, int PARTS, int WIDTH>
__global__ void __launch_bounds__(attention_turn_threads)
    attention_norm_kernel(const __grid_constant__ attention_turn_params p)
{
    typedef attention_norm_lane<PARTS, WIDTH> lane_columns;
    __shared__ __align__(8) float lines[attention_turn_threads / 32][32 * PARTS * WIDTH];
    const attention_turn_side &side = p.sides[blockIdx.y];
    if (side.num_entries == nullptr) return;
    const int lane = (int)threadIdx.x % 32, entries = *side.num_entries;
    const int warps = (int)gridDim.x * attention_turn_threads / 32;
    float *const line = lines[threadIdx.x / 32];
    for (int e = (int)(blockIdx.x * attention_turn_threads + threadIdx.x) / 32; e < entries;
         e += warps) {
        const int64_t row = __ldg(side.rows + e);
        lane_columns turned;
        turned.find(p.rotary, side.coords, row, false, lane);
#pragma unroll 4
        for (int h = 0; h < side.heads; ++h) {
            const T *const from =
                reinterpret_cast<const T *>(side.from.of_head(h) + row * side.from.row);
            T *const to = reinterpret_cast<T *>(side.to.of_head(h) + row * side.to.row);
            float x[PARTS][WIDTH];
            load_norm_row(x, from, p.dim, lane);
            if (side.norm.weights != nullptr) {
                float weights[PARTS][WIDTH];
                load_norm_weights(weights, side.norm.weights + h * side.norm.stride, p.dim, lane);
                const float factor = norm_factor(x, p.dim, p.epsilon);
#pragma unroll
                for (int i = 0; i < PARTS; ++i)
#pragma unroll
                    for (int w = 0; w < WIDTH; ++w)
                        x[i][w] *= factor * weights[i][w];
            }
            turned.turn(x, line, lane);
#pragma unroll
            for (int i = 0; i < PARTS; ++i)
                if (lane_columns::column(i, lane) < p.to_dim)
                    store_columns(to + lane_columns::column(i, lane), x[i]);
        }
    }
}

// ---- Launching ----------------------------------------------------------------------------------

// Whether kernels read a copy of q, or of k.
inline bool attention_copies(const spops_attention_scratch_args &a, int side)
{
    return a.rotary_pairs > 0 || a.norms[side];
}

inline int heads_of_side(const spops_attention_args *args, int side)
{
    return side == SPOPS_ATTENTION_Q ? args->heads : args->kv_heads;
}

inline attention_coords coords_of_side(const spops_attention_rotary_args &rotary, int side)
{
    const bool f32 = rotary.dtype == SPOPS_DTYPE_F32;
    return side == SPOPS_ATTENTION_Q ? attention_coords{rotary.coords, rotary.stride, f32}
                                     : attention_coords{rotary.key_coords, rotary.key_stride, f32};
}

// A copy that rows are written to ([rows][heads][padded_dim]); without one, the rows themselves.
template <class T>
attention_rows turned_rows(const spops_attention_args *args, int side, unsigned char *to)
{
    const int64_t head = padded_dim(args->dim) * (int64_t)sizeof(T);
    if (!attention_copies(spops_attention_scratch_args_of(args, false), side))
        return rows_of_view(side == SPOPS_ATTENTION_Q ? args->q : args->k);
    return {to, heads_of_side(args, side) * head, head};
}

// Makes the copies of the rows of q and k that are in the lists, where there are any.
template <class T>
spops_status turn_rows(spops_context *ctx, const spops_attention_args *args,
                       const attention_rows &to_q, const attention_rows &to_k)
{
    const spops_attention_scratch_args sizes = spops_attention_scratch_args_of(args, false);
    const spops_patch_arrays *patches = args->patches;
    const bool normed = sizes.norms[SPOPS_ATTENTION_Q] || sizes.norms[SPOPS_ATTENTION_K];
    if (sizes.rotary_pairs == 0 && !normed) return SPOPS_STATUS_OK;
    attention_turn_params t = {};
    t.dim = args->dim;
    t.to_dim = padded_dim(t.dim);
    t.epsilon = args->epsilon;
    t.rotary = args->rotary;
    t.sides[SPOPS_ATTENTION_Q] = {patches->q_rows, &patches->state->num_queries,
                                  rows_of_view(args->q), to_q};
    t.sides[SPOPS_ATTENTION_K] = {patches->k_rows, &patches->state->num_keys, rows_of_view(args->k),
                                  to_k};
    for (int side = 0; side < SPOPS_ATTENTION_NUM_TURNED; ++side) {
        t.sides[side].heads = heads_of_side(args, side);
        t.sides[side].coords = coords_of_side(args->rotary, side);
        t.sides[side].norm = args->norms[side];
        if (!attention_copies(sizes, side)) t.sides[side].num_entries = nullptr;
    }
    const int two = 2 * (int)sizeof(T);
    const bool by_two = t.dim % 2 == 0 && t.rotary.pairs % 2 == 0 &&
                        is_aligned(t.sides[SPOPS_ATTENTION_Q].from, two) &&
                        is_aligned(t.sides[SPOPS_ATTENTION_K].from, two);
    dim3 grid = blocks_of_warps(ctx, std::max(patches->max_queries, patches->max_keys),
                                attention_turn_threads);
    grid.y = SPOPS_ATTENTION_NUM_TURNED;
    if (normed)
        return launch(
            ctx, "attention: normalise rows",
            by_two
                ? (t.dim <= 128 ? attention_norm_kernel<T, 2, 2> : attention_norm_kernel<T, 4, 2>)
                : (t.dim <= 128 ? attention_norm_kernel<T, 4, 1> : attention_norm_kernel<T, 8, 1>),
            grid, attention_turn_threads, t);
    return launch(ctx, "attention: turn rows",
                  by_two ? attention_turn_kernel<T, 2> : attention_turn_kernel<T, 1>, grid,
                  attention_turn_threads, t);
}

} // namespace spops

#endif
