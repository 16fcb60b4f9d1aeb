// SPDX-License-Identifier: Apache-2.0
// Attention within patches, of f32 rows, by plain multiply-adds: for checks of models and of the
// kernels of 16 bits. The same things are served as by attention_sm80.cuh.
//
// One block, 64 queries of a patch and one head: thread t has queries 4 (t / 8) to + 3, every eighth
// of the 32 keys of a tile, and of o every eighth 4 columns.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_F32_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_F32_CUH

#include "kernels/attention/attention_common.cuh"

namespace spops
{

template <int DIM> struct attention_f32_policy {
    static constexpr int queries = 64, keys = 32, threads = 128;
    static constexpr int line = DIM + 4, weight_line = keys + 4; // numbers
    static constexpr int shared_bytes =
        ((queries + 2 * keys) * line + queries * weight_line) * (int)sizeof(float);
};

// Lines of the rows that list[0 .. num) names, of one head; other lines, and columns from dim on,
// are zeros. All threads of a block.
template <class P, int ROWS, int DIM>
__device__ __forceinline__ void load_lines_f32(float *to, const unsigned char *from, int64_t stride,
                                               const int *list, int num, int dim)
{
#pragma unroll 8
    for (int i = threadIdx.x; i < ROWS * DIM; i += P::threads) {
        const int line = i / DIM, col = i % DIM;
        float v = 0.0f;
        if (line < num && col < dim)
            v = __ldg(reinterpret_cast<const float *>(from + (int64_t)__ldg(list + line) * stride) +
                      col);
        to[line * P::line + col] = v;
    }
}

template <int DIM>
__global__ void __launch_bounds__(128)
    attention_f32_kernel(const __grid_constant__ attention_params p)
{
    typedef attention_f32_policy<DIM> P;
    extern __shared__ __align__(16) float shared_f32[];
    attention_clear_rest<float>(p);
    const int head = blockIdx.x % p.heads;
    if ((int)(blockIdx.x / p.heads) >= *p.num_tiles) return;
    const int4 tile = p.tiles[blockIdx.x / p.heads];
    const int kv_head = head / p.group;
    const int *const queries = p.q_rows + tile.y;
    const int *const keys = p.k_rows + p.k_offsets[tile.x];
    const bool biased = p.bias.table != nullptr;
    float *const q = shared_f32, *const k = q + P::queries * P::line,
                 *const v = k + P::keys * P::line;
    float *const weights = v + P::keys * P::line;
    const int first = threadIdx.x / 8 * 4, part = threadIdx.x % 8;

    load_lines_f32<P, P::queries, DIM>(q, p.q.of_head(head), p.q.row, queries, tile.z, p.dim);
    int out_row[4];
    int3 coords[4] = {};
    float top[4], sum[4], o[4][DIM / 8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        out_row[r] = first + r < tile.z ? queries[first + r] : -1;
        if (biased) coords[r] = query_coords(p.bias, out_row[r]);
        top[r] = -INFINITY;
        sum[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < DIM / 8; ++c)
            o[r][c] = 0.0f;
    }

    for (int key = 0; key < tile.w; key += P::keys) {
        const int left = min(tile.w - key, P::keys);
        __syncthreads(); // the tile before has been read
        load_lines_f32<P, P::keys, DIM>(k, p.k.of_head(kv_head), p.k.row, keys + key, left, p.dim);
        load_lines_f32<P, P::keys, DIM>(v, p.v.of_head(kv_head), p.v.row, keys + key, left, p.dim);
        __syncthreads();
        float s[4][4] = {}; // of query first + r and key part + 8 c
#pragma unroll 4
        for (int d = 0; d < DIM; d += 4) {
            float4 a[4], b[4];
#pragma unroll
            for (int r = 0; r < 4; ++r)
                a[r] = *reinterpret_cast<const float4 *>(q + (first + r) * P::line + d);
#pragma unroll
            for (int c = 0; c < 4; ++c)
                b[c] = *reinterpret_cast<const float4 *>(k + (part + 8 * c) * P::line + d);
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    s[r][c] +=
                        a[r].x * b[c].x + a[r].y * b[c].y + a[r].z * b[c].z + a[r].w * b[c].w;
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int column = part + 8 * c;
            const int3 other =
                biased ? key_coords_of(p.bias, column < left ? keys[key + column] : -1) : int3();
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                s[r][c] *= p.scale;
                if (biased) s[r][c] += bias_of(p.bias, head, coords[r], other) * log2_of_e;
                if (column >= left) s[r][c] = -INFINITY;
            }
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float most = fmaxf(fmaxf(s[r][0], s[r][1]), fmaxf(s[r][2], s[r][3]));
#pragma unroll
            for (int lanes = 1; lanes < 8; lanes *= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
            if (most > top[r]) {
                const float factor = exp2f(top[r] - most);
                top[r] = most;
                sum[r] *= factor;
#pragma unroll
                for (int c = 0; c < DIM / 8; ++c)
                    o[r][c] *= factor;
            }
            const float base = softmax_base(top[r], 1.0f);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float w = exp2f(s[r][c] - base);
                sum[r] += w;
                weights[(first + r) * P::weight_line + part + 8 * c] = w;
            }
        }
        __syncwarp(); // rows of weights are of eight lanes
#pragma unroll 4
        for (int j = 0; j < P::keys; ++j) {
            float w[4];
#pragma unroll
            for (int r = 0; r < 4; ++r)
                w[r] = weights[(first + r) * P::weight_line + j];
#pragma unroll
            for (int c = 0; c < DIM / 32; ++c) {
                const float4 b =
                    *reinterpret_cast<const float4 *>(v + j * P::line + 32 * c + 4 * part);
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    o[r][4 * c] += w[r] * b.x;
                    o[r][4 * c + 1] += w[r] * b.y;
                    o[r][4 * c + 2] += w[r] * b.z;
                    o[r][4 * c + 3] += w[r] * b.w;
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2)
            sum[r] += __shfl_xor_sync(~0u, sum[r], lanes);
        if (out_row[r] < 0) continue;
        const float inverse = tile.w > 0 ? 1.0f / sum[r] : 0.0f;
        if (p.lse != nullptr && part == 0)
            p.lse[(int64_t)out_row[r] * p.heads + head] =
                tile.w > 0 ? (softmax_base(top[r], 1.0f) + log2f(sum[r])) * log_of_2 : -INFINITY;
        float *const to =
            reinterpret_cast<float *>(p.o.of_head(head) + (int64_t)out_row[r] * p.o.row);
#pragma unroll
        for (int c = 0; c < DIM / 8; ++c) {
            const int col = c / 4 * 32 + 4 * part + c % 4;
            if (col < p.dim) to[col] = o[r][c] * inverse;
        }
    }
}

} // namespace spops

#endif
