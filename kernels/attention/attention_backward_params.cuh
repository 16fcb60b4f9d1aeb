// SPDX-License-Identifier: Apache-2.0
// What the kernels of the gradients of attention have in common.
//
// All gradients have one form. A block owns rows of one side (keys: for grad_k and grad_v; queries:
// for grad_q), whose sums stay in its registers, while the rows of the other side of the patch
// stream by:
//
//     own first, own second              k, v         or  q, grad_o
//     streamed first, streamed second    q, grad_o    or  k, v
//
//     t = first first^T, u = second second^T, p = exp(scale t + bias - lse), ds = p (u - delta)
//     grad_first  += ds streamed_first       grad_k   or  grad_q
//     grad_second += p  streamed_second      grad_v
//
// These are 7 products, where 5 do if blocks of keys add to grad_q in memory
// (attention_backward_fused_sm90.cuh). In exchange no block waits for another to keep an order, nothing is
// added in memory, and p and ds never leave the registers in which the first two products left them.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_PARAMS_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_PARAMS_CUH

#include "kernels/attention/attention_common.cuh"

namespace spops
{

enum attention_side { OWN_KEYS, OWN_QUERIES };

// Element c of head h of row r: data + r * row + h * head + c, in elements.
struct attention_result {
    void *data; // null: not wanted
    int64_t row, head;
    bool f32;      // else of the dtype of the rows
    bool by_entry; // has a row for each own entry, else for each row
    bool wide;     // rows of all heads begin on 16 bytes, and dim is a multiple of 8
};

struct attention_backward_params {
    const int4 *tiles; // {patch, first own entry, number of them, number of streamed entries}
    const int *num_tiles;
    const int *own_rows, *streamed_rows; // of entries
    const int *streamed_offsets;         // of patches
    attention_rows own_first, own_second, streamed_first, streamed_second;
    attention_result grad_first, grad_second;
    const float *lse;   // [heads][query_entries], times log2(e); infinity where nothing counts
    const float *delta; // the same: sums of grad_o * o
    int64_t query_entries;
    int heads, dim;                // heads of q, which results of keys have too
    int own_group, streamed_group; // heads of q that meet one of these rows
    float scale, scale_log2;       // scale_log2: times log2(e)
    bool wide; // rows of all heads begin on 16 bytes, and dim is a multiple of 8
    spops_attention_bias_args bias;
    float *table_parts; // [tiles][heads][rows of the table]: a block's part of grad_table, or null
};

__device__ __forceinline__ int64_t gradient_at(const attention_result &to, int64_t entry,
                                               int64_t row, int head, int col)
{
    return (to.by_entry ? entry : row) * to.row + head * to.head + col;
}

// A lane's share of one row of sums, which have the registers of mma.m16n8k16 (half 0: row g, half 1:
// row g + 8). All lanes of a warp; row -1: none.
template <class T, int DIM>
__device__ __forceinline__ void
store_gradient(const attention_result &to, int64_t entry, int64_t row, int head, int dim,
               const float (&sums)[DIM / 2], int half, float scale, int q)
{
    constexpr int tiles = DIM / 8;
    if (to.data == nullptr) return;
    const int64_t at = gradient_at(to, entry, row, head, 0);
    if (to.f32 || sizeof(T) == 4) {
        float *const p = static_cast<float *>(to.data) + at;
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
            const int i = n * 4 + half * 2;
            if (row >= 0)
                store_two(p, n * 8 + q * 2, dim, to.wide, sums[i] * scale, sums[i + 1] * scale);
        }
        return;
    }
    if constexpr (sizeof(T) == 2) {
        T *const p = static_cast<T *>(to.data) + at;
        if (to.wide && tiles % 4 == 0) {
            // Four lanes have two columns each of four tiles: turn that into a tile for each.
#pragma unroll
            for (int n = 0; n < tiles / 4 * 4; n += 4) {
                uint32_t w[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    w[i] = pack2<T>(sums[(n + i) * 4 + half * 2] * scale,
                                    sums[(n + i) * 4 + half * 2 + 1] * scale);
#pragma unroll
                for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        if (i & bit) continue;
                        const bool upper = (q & bit) != 0;
                        const uint32_t got = __shfl_xor_sync(~0u, upper ? w[i] : w[i + bit], bit);
                        if (upper)
                            w[i] = got;
                        else
                            w[i + bit] = got;
                    }
                const int col = (n + q) * 8;
                if (row >= 0 && col < dim)
                    *reinterpret_cast<uint4 *>(p + col) = make_uint4(w[0], w[1], w[2], w[3]);
            }
            return;
        }
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
            const int i = n * 4 + half * 2;
            if (row >= 0)
                store_two(p, n * 8 + q * 2, dim, to.wide, sums[i] * scale, sums[i + 1] * scale);
        }
    }
}

} // namespace spops

#endif
