// SPDX-License-Identifier: Apache-2.0
// What the kernels of attention have in common: how rows are named, softmax while keys stream by,
// and, for kernels of matrix units (mma.sync), tiles of gathered rows in shared memory and products
// with them.
//
// A tile has lines of DIM numbers, padded by 16 bytes, so that eight lines' pieces of 16 bytes lie in
// different banks. Numbers are f16, bf16, or f32, of which products take the upper 19 bits (tf32). Sums
// of a product s = a b have the registers of mma.m16n8: for lane = 4 g + q of a warp with 16 rows,
// s[4 j + 2 h + i] is row g + 8 h, column 8 j + 2 q + i. A step of a product is 32 bytes of a line: 16
// columns of 16 bits, 8 of f32.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_COMMON_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_COMMON_CUH

#include "attention/attention_args.h"
#include "kernels/core/matrix_units.cuh"

namespace spops
{

// Rows of all heads, in bytes.
struct attention_rows {
    unsigned char *data;
    int64_t row, head; // from one to the next

    __device__ __forceinline__ unsigned char *of_head(int h) const { return data + h * head; }
};

// What forward kernels know.
struct attention_params {
    attention_rows q, k, v, o;
    float *lse;        // [rows][heads], or null
    const int4 *tiles; // {patch, first query entry, queries, keys}
    const int *num_tiles;
    const int *q_rows, *k_rows, *k_offsets;
    const int *q_rest, *num_q_rest; // rows that are no query
    int heads, dim;
    int group;   // heads of q that meet one of k and v
    float scale; // times log2(e): exponentials are powers of 2
    bool wide;   // rows of all heads of q, k and v are whole pieces of 16 bytes, from 16 bytes on
    bool pairs;  // 2 numbers of o at a time
    bool wide_o; // the same of o as of q, k and v
    spops_attention_bias_args bias;
    int64_t key_rows; // of k and v
};

constexpr float log2_of_e = 1.4426950408889634f, log_of_2 = 0.6931471805599453f;

// ---- Softmax ------------------------------------------------------------------------------------

__device__ __forceinline__ float exp2_approximate(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Of the two rows of a lane.
struct softmax_state {
    float top[2]; // what logits are relative to, unscaled
    float sum[2]; // of exponentials; the lane's share
};

__device__ __forceinline__ softmax_state softmax_begin()
{
    return {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
}

// `top` is renewed only where a logit exceeds it by more than this many powers of 2, so that most
// steps rescale nothing. Weights up to 2^8 are far from what f16 and sums in f32 hold.
constexpr float softmax_slack = 8.0f;

// The scaled logit that stands for `top`. Where all logits are -infinity it is not used up, so that
// their exponentials are 0.
__device__ __forceinline__ float softmax_base(float top, float scale)
{
    return top == -INFINITY ? 0.0f : __fmul_rn(top, scale);
}

// `top` is renewed where a logit exceeds it by much. True, for the whole warp, where sums so far are to be
// multiplied by the factors of their rows.
template <int KEYS>
__device__ __forceinline__ bool softmax_renew(const float (&s)[KEYS / 2], softmax_state &state,
                                              float scale, float (&factor)[2])
{
    float top[2] = {state.top[0], state.top[1]};
#pragma unroll
    for (int j = 0; j < KEYS / 2; ++j)
        top[j / 2 % 2] = fmaxf(top[j / 2 % 2], s[j]);
    bool grew = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
        grew = grew || (top[h] - state.top[h]) * scale > softmax_slack;
    }
    const bool renew = __any_sync(~0u, grew);
    if (renew) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            factor[h] =
                top[h] == state.top[h] ? 1.0f : exp2_approximate((state.top[h] - top[h]) * scale);
            state.top[h] = top[h];
            state.sum[h] *= factor[h];
        }
    }
    return renew;
}

// Logits s become weights. True as softmax_renew.
template <int KEYS>
__device__ __forceinline__ bool softmax_step(float (&s)[KEYS / 2], softmax_state &state,
                                             float scale, float (&factor)[2])
{
    const bool renew = softmax_renew<KEYS>(s, state, scale, factor);
    float sum[2] = {0.0f, 0.0f};
    const float base[2] = {-softmax_base(state.top[0], scale), -softmax_base(state.top[1], scale)};
#pragma unroll
    for (int j = 0; j < KEYS / 2; ++j) {
        s[j] = exp2_approximate(fmaf(s[j], scale, base[j / 2 % 2]));
        sum[j / 2 % 2] += s[j];
    }
    state.sum[0] += sum[0];
    state.sum[1] += sum[1];
    return renew;
}

// Keys from `left` on do not count.
template <int KEYS>
__device__ __forceinline__ void mask_logits(float (&s)[KEYS / 2], int left, int lane)
{
#pragma unroll
    for (int j = 0; j < KEYS / 2; ++j)
        if (j / 4 * 8 + lane % 4 * 2 + j % 2 >= left) s[j] = -INFINITY;
}

// Columns of a step of a product.
template <class T> constexpr int step_columns = 32 / (int)sizeof(T);

// Sums as the left operand of a product (multiply_columns). Of f32, columns 2 q and 2 q + 1 of a step
// take the places of q and q + 4, so that they are in the right lane as they are.
template <class T, int KEYS>
__device__ __forceinline__ void sums_to_left(uint32_t (&w)[KEYS / step_columns<T>][4],
                                             const float (&s)[KEYS / 2])
{
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int j = 0; j < KEYS / 2; ++j)
            w[j / 4][j % 2 * 2 + j / 2 % 2] = __float_as_uint(s[j]);
    } else {
#pragma unroll
        for (int j = 0; j < KEYS / 4; ++j)
            w[j / 4][j % 4] = pack2<T>(s[2 * j], s[2 * j + 1]);
    }
}

template <int COUNT>
__device__ __forceinline__ void scale_rows(float (&o)[COUNT], const float (&factor)[2])
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        o[i] *= factor[i / 2 % 2];
}

// Columns col and col + 1 of a row that has `dim`; `pairs`: as one word.
template <class T>
__device__ __forceinline__ void store_two(T *row, int col, int dim, bool pairs, float x, float y)
{
    if (col >= dim) return;
    if constexpr (sizeof(T) == 4) {
        if (pairs) {
            *reinterpret_cast<float2 *>(row + col) = make_float2(x, y);
            return;
        }
        row[col] = x;
        if (col + 1 < dim) row[col + 1] = y;
    } else {
        const uint32_t word = pack2<T>(x, y);
        if (pairs) {
            *reinterpret_cast<uint32_t *>(row + col) = word;
            return;
        }
        row[col].bits = (uint16_t)word;
        if (col + 1 < dim) row[col + 1].bits = (uint16_t)(word >> 16);
    }
}

// The two rows of a lane, of one head. out_row -1: none.
template <class T, int DIM>
__device__ __forceinline__ void
attention_store(const attention_params &p, int head, const int (&out_row)[2], float (&o)[DIM / 2],
                const softmax_state &state, float scale, bool has_keys, int lane)
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = state.sum[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float inverse = has_keys ? 1.0f / sum : 0.0f;
        if (out_row[h] < 0) continue;
        if (p.lse != nullptr && lane % 4 == 0)
            p.lse[(int64_t)out_row[h] * p.heads + head] =
                has_keys ? (softmax_base(state.top[h], scale) + log2f(sum)) * log_of_2 : -INFINITY;
        T *const to = reinterpret_cast<T *>(p.o.of_head(head) + (int64_t)out_row[h] * p.o.row);
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j)
            store_two(to, 8 * j + lane % 4 * 2, p.dim, p.pairs, o[4 * j + 2 * h] * inverse,
                      o[4 * j + 2 * h + 1] * inverse);
    }
}

// Rows that are no query: o = 0, lse = -infinity. By all threads of all blocks.
template <class T> __device__ __forceinline__ void attention_clear_rest(const attention_params &p)
{
    const int rest = *p.num_q_rest;
    for (int i = blockIdx.x; i < rest; i += gridDim.x) {
        const int64_t row = p.q_rest[i];
        for (int c = threadIdx.x; c < p.heads * p.dim; c += blockDim.x)
            reinterpret_cast<T *>(p.o.of_head(c / p.dim) + row * p.o.row)[c % p.dim] = T();
        if (p.lse != nullptr)
            for (int h = threadIdx.x; h < p.heads; h += blockDim.x)
                p.lse[row * p.heads + h] = -INFINITY;
    }
}

// ---- Tiles of rows in shared memory -------------------------------------------------------------

template <class T, int DIM> constexpr int tile_line_bytes = DIM *(int)sizeof(T) + 16;
template <class T, int ROWS, int DIM> constexpr int tile_bytes = ROWS *tile_line_bytes<T, DIM>;

// A tile of the rows that list[0 .. num) names, of one head; other lines, and columns from dim on,
// become zeros. All THREADS of a block. Where `wide`, copies are only begun (close_copies,
// wait_copies) and rows are whole pieces of 16 bytes.
template <class T, int ROWS, int DIM, int THREADS>
__device__ __forceinline__ void load_tile(uint32_t to, const unsigned char *from, int64_t stride,
                                          const int *list, int num, int dim, bool wide)
{
    constexpr int numbers = 16 / (int)sizeof(T); // of a piece
    constexpr int pieces = DIM / numbers, count = ROWS * pieces / THREADS;
    static_assert(count * THREADS == ROWS * pieces, "threads share evenly");
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
        const int line = (threadIdx.x + i * THREADS) / pieces;
        const int piece = (threadIdx.x + i * THREADS) % pieces;
        const bool there = line < num && piece * numbers < dim;
        const unsigned char *at = from;
        if (there) at += (int64_t)__ldg(list + line) * stride + piece * 16;
        const uint32_t place = to + line * tile_line_bytes<T, DIM> + piece * 16;
        if (wide) {
            copy_async<16>(place, at, there);
        } else {
            const T *const row = reinterpret_cast<const T *>(at);
            uint32_t word[4] = {};
#pragma unroll
            for (int c = 0; c < numbers; ++c) {
                if (!there || piece * numbers + c >= dim) continue;
                if constexpr (sizeof(T) == 4)
                    word[c] = __float_as_uint(row[c]);
                else
                    word[c / 2] |= (uint32_t)row[c].bits << c % 2 * 16;
            }
            store_shared4(place, make_uint4(word[0], word[1], word[2], word[3]));
        }
    }
}

// ---- Products of a warp -------------------------------------------------------------------------

// 16 lines of a tile as the left operand.
template <class T, int DIM>
__device__ __forceinline__ void load_left(uint32_t (&a)[DIM / step_columns<T>][4], uint32_t tile,
                                          int first, int lane)
{
    const uint32_t from = tile + (first + lane % 16) * tile_line_bytes<T, DIM> + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < DIM / step_columns<T>; ++i)
        load_matrices(a[i], from + i * 32);
}

template <class T>
__device__ __forceinline__ void add_two_products(float *sum, const uint32_t (&a)[4],
                                                 const uint32_t (&b)[4])
{
    float(&low)[4] = *reinterpret_cast<float(*)[4]>(sum);
    float(&high)[4] = *reinterpret_cast<float(*)[4]>(sum + 4);
    if constexpr (sizeof(T) == 4) {
        add_product_tf32(low, a, b[0], b[1]);
        add_product_tf32(high, a, b[2], b[3]);
    } else {
        add_product(T(), low, a, b[0], b[1]);
        add_product(T(), high, a, b[2], b[3]);
    }
}

// s (16 x ROWS) += a (16 x DIM) times the transposed tile (ROWS x DIM).
template <class T, int ROWS, int DIM>
__device__ __forceinline__ void multiply_lines(float (&s)[ROWS / 2],
                                               const uint32_t (&a)[DIM / step_columns<T>][4],
                                               uint32_t tile, int lane)
{
    constexpr int line = tile_line_bytes<T, DIM>;
    const uint32_t from = tile + (lane / 16 * 8 + lane % 8) * line + lane / 8 % 2 * 16;
#pragma unroll
    for (int j = 0; j < ROWS / 16; ++j)
#pragma unroll
        for (int i = 0; i < DIM / step_columns<T>; ++i) {
            uint32_t b[4];
            load_matrices(b, from + j * 16 * line + i * 32);
            add_two_products<T>(s + 8 * j, a[i], b);
        }
}

// o (16 x DIM) += w (16 x ROWS) times the tile (ROWS x DIM).
template <class T, int ROWS, int DIM>
__device__ __forceinline__ void multiply_columns(float (&o)[DIM / 2],
                                                 const uint32_t (&w)[ROWS / step_columns<T>][4],
                                                 uint32_t tile, int lane)
{
    constexpr int line = tile_line_bytes<T, DIM>, rows = step_columns<T>;
    // Words of f32 are not transposed on their way: a lane takes the two rows whose weights it has.
    const uint32_t from = sizeof(T) == 4 ? tile + lane % 4 * 2 * line + lane / 4 * 4
                                         : tile + lane % 16 * line + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < ROWS / rows; ++i)
#pragma unroll
        for (int j = 0; j < DIM / 16; ++j) {
            const uint32_t at = from + i * rows * line + j * 16 * (int)sizeof(T);
            uint32_t b[4];
            if constexpr (sizeof(T) == 4) {
#pragma unroll
                for (int c = 0; c < 4; ++c) // columns g and g + 8, of both rows
                    b[c] = (uint32_t)load_shared_word(at + c / 2 * 32 + c % 2 * line);
            } else {
                load_transposed(b, at);
            }
            add_two_products<T>(o + 8 * j, w[i], b);
        }
}

// ---- Bias by relative position ------------------------------------------------------------------

// Of a row; what stands at -1 is not used.
__device__ __forceinline__ int3 coords_of(const int *coords, int64_t stride, int row)
{
    if (row < 0) return make_int3(0, 0, 0);
    const int *const at = coords + row * stride;
    return make_int3(__ldg(at), __ldg(at + 1), __ldg(at + 2));
}
__device__ __forceinline__ int3 query_coords(const spops_attention_bias_args &bias, int row)
{
    return coords_of(bias.coords, bias.stride, row);
}
__device__ __forceinline__ int3 key_coords_of(const spops_attention_bias_args &bias, int row)
{
    return coords_of(bias.key_coords, bias.key_stride, row);
}

// Of the table, for the three axes.
__device__ __forceinline__ int3 bias_rows(int range, const int3 &query, const int3 &key)
{
    return make_int3(spops_attention_table_row(range, 0, query.x, key.x),
                     spops_attention_table_row(range, 1, query.y, key.y),
                     spops_attention_table_row(range, 2, query.z, key.z));
}

__device__ __forceinline__ float bias_of(const spops_attention_bias_args &bias, int head,
                                         const int3 &query, const int3 &key)
{
    const int3 row = bias_rows(bias.range, query, key);
    const float *const table = bias.table + head;
    return __ldg(table + row.x * bias.table_stride) + __ldg(table + row.y * bias.table_stride) +
           __ldg(table + row.z * bias.table_stride);
}

} // namespace spops

#endif
