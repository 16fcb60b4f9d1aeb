// SPDX-License-Identifier: Apache-2.0
// Gradients of attention of f32 rows, by plain multiply-adds: for checks of models and of the kernels
// of 16 bits. The same things are served as by attention_backward_sm80.cuh.
//
// One block, 32 own rows and one head. Of the products with streamed rows, a thread has one own row
// and every eighth of 32 streamed ones; of the sums, one column of ROWS own rows.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_F32_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_F32_CUH

#include "kernels/attention/attention_backward_bias.cuh"

namespace spops
{

template <int DIM_> struct attention_backward_f32_policy {
    static constexpr int DIM = DIM_, threads = 256, count = 32; // own rows, streamed rows of a step
    static constexpr int tile_entries = 64, blocks_of_tile = tile_entries / count;
    static constexpr int ROWS = count * DIM / threads; // of a thread's sums
    static constexpr int line = DIM + 4; // numbers; lines are read in pieces of 16 bytes
    // After weights, its tile has slopes; and then, where it is wanted, the table (attention_table).
    typedef attention_pairs<count, count> pairs;
    static constexpr int shared_bytes = (4 * count * line + count * pairs::line) * 4;
};

// Lines of the rows that list[0 .. num) names, of one head; other lines, and columns from dim on,
// are zeros.
template <class P>
__device__ __forceinline__ void load_lines(float *to, const attention_rows &from, int head,
                                           const int *list, int num, int dim)
{
    for (int i = (int)threadIdx.x; i < P::count * P::DIM; i += P::threads) {
        const int line = i / P::DIM, col = i % P::DIM;
        float v = 0.0f;
        if (line < num && col < dim)
            v = __ldg(reinterpret_cast<const float *>(from.of_head(head) +
                                                      (int64_t)__ldg(list + line) * from.row) +
                      col);
        to[line * P::line + col] = v;
    }
}

__device__ __forceinline__ float4 four_of(const float *p)
{
    return *reinterpret_cast<const float4 *>(p);
}

// Four numbers of a column of lines.
template <int LINE> __device__ __forceinline__ float4 column_of(const float *p)
{
    return make_float4(p[0], p[LINE], p[2 * LINE], p[3 * LINE]);
}

__device__ __forceinline__ float add_dot(float sum, const float4 &a, const float4 &b)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Grid: parts of tiles, heads innermost.
template <class P, attention_side SIDE>
__global__ void __launch_bounds__(P::threads)
    attention_backward_f32_kernel(const __grid_constant__ attention_backward_params p)
{
    extern __shared__ __align__(16) float attention_shared_f32[];
    constexpr int N = P::count;
    const int number = (int)blockIdx.x / p.heads / P::blocks_of_tile;
    const int head = (int)blockIdx.x % p.heads;
    if (number >= *p.num_tiles) return;
    const int part = (int)blockIdx.x / p.heads % P::blocks_of_tile * N; // of the tile
    int4 tile = __ldg(p.tiles + number);
    tile.y += part;
    tile.z = max(tile.z - part, 0);
    const int num_streamed = tile.z > 0 ? tile.w : 0;
    const int own_head = head / p.own_group, streamed_head = head / p.streamed_group;
    const int *const own_rows = p.own_rows + tile.y;
    const int *const streamed_rows = p.streamed_rows + __ldg(p.streamed_offsets + tile.x);
    const int64_t first_query =
        head * p.query_entries +
        (SIDE == OWN_KEYS ? __ldg(p.streamed_offsets + tile.x) : (int64_t)tile.y);
    const float *const lse = p.lse + first_query, *const delta = p.delta + first_query;
    float *const own_first = attention_shared_f32, *const own_second = own_first + N * P::line;
    float *const first = own_second + N * P::line, *const second = first + N * P::line;
    float *const weights = second + N * P::line;
    typename P::pairs &pairs = *reinterpret_cast<typename P::pairs *>(weights + N * P::pairs::line);
    float *const slopes = pairs.tile;
    attention_table table(&pairs + 1, p.bias.range);
    const bool biased = p.bias.table != nullptr;
    const bool tabled = SIDE == OWN_QUERIES && p.table_parts != nullptr;

    load_lines<P>(own_first, p.own_first, own_head, own_rows, tile.z, p.dim);
    load_lines<P>(own_second, p.own_second, own_head, own_rows, tile.z, p.dim);
    if (tabled) table.clear();
    const int own = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
    const bool there = own < tile.z;
    if (biased && (int)threadIdx.x < N)
        pairs.own[threadIdx.x] = side_coords<SIDE, true>(
            p.bias, (int)threadIdx.x < tile.z ? __ldg(own_rows + threadIdx.x) : -1);
    const int sum_col = (int)threadIdx.x % P::DIM, sum_row = (int)threadIdx.x / P::DIM * P::ROWS;
    float grad_first[P::ROWS] = {}, grad_second[SIDE == OWN_KEYS ? P::ROWS : 1] = {};
    for (int from = 0; from < num_streamed; from += N) {
        const int left = min(num_streamed - from, N);
        load_lines<P>(first, p.streamed_first, streamed_head, streamed_rows + from, left, p.dim);
        load_lines<P>(second, p.streamed_second, streamed_head, streamed_rows + from, left, p.dim);
        if (biased && (int)threadIdx.x < N)
            pairs.streamed[threadIdx.x] = side_coords<SIDE, false>(
                p.bias, (int)threadIdx.x < left ? __ldg(streamed_rows + from + threadIdx.x) : -1);
        __syncthreads();
        if (biased) tile_of_biases<SIDE>(pairs, p.bias, head);
        float t[4] = {}, u[4] = {};
#pragma unroll 2
        for (int d = 0; d < p.dim; d += 4) {
            const float4 a = four_of(own_first + own * P::line + d);
            const float4 b = four_of(own_second + own * P::line + d);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                t[i] = add_dot(t[i], a, four_of(first + (lane + 8 * i) * P::line + d));
                u[i] = add_dot(u[i], b, four_of(second + (lane + 8 * i) * P::line + d));
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int other = lane + 8 * i, at = own * P::pairs::line + other;
            float weight = 0.0f, slope = 0.0f;
            if (there && other < left) {
                const int scalar = SIDE == OWN_KEYS ? from + other : own;
                const float logit = t[i] * p.scale_log2 + (biased ? slopes[at] : 0.0f);
                weight = exp2f(logit - lse[scalar]);
                slope = weight * (u[i] - delta[scalar]);
            }
            weights[at] = weight;
            slopes[at] = slope;
        }
        __syncthreads();
        // After `left` all factors are zeros.
        for (int s = 0; s < left; s += 4) {
            float4 a, b;
            a = column_of<P::line>(first + s * P::line + sum_col);
            if constexpr (SIDE == OWN_KEYS) b = column_of<P::line>(second + s * P::line + sum_col);
#pragma unroll
            for (int r = 0; r < P::ROWS; ++r) {
                const int at = (sum_row + r) * P::pairs::line + s;
                grad_first[r] = add_dot(grad_first[r], four_of(slopes + at), a);
                if constexpr (SIDE == OWN_KEYS)
                    grad_second[r] = add_dot(grad_second[r], four_of(weights + at), b);
            }
        }
        if (tabled) table.add(pairs, p.bias, tile.z, left);
        __syncthreads(); // before the lines are filled again
    }
    if (sum_col < p.dim) {
#pragma unroll
        for (int r = 0; r < P::ROWS; ++r) {
            if (sum_row + r >= tile.z) continue;
            const int row = __ldg(own_rows + sum_row + r);
            const int64_t entry = tile.y + sum_row + r;
            if (p.grad_first.data != nullptr)
                static_cast<float *>(
                    p.grad_first.data)[gradient_at(p.grad_first, entry, row, head, sum_col)] =
                    grad_first[r] * p.scale;
            if constexpr (SIDE == OWN_KEYS)
                if (p.grad_second.data != nullptr)
                    static_cast<float *>(
                        p.grad_second.data)[gradient_at(p.grad_second, entry, row, head, sum_col)] =
                        grad_second[r];
        }
    }
    if (tabled) {
        __syncthreads();
        table.store(p.table_parts + (int64_t)blockIdx.x * table.bins);
    }
}

} // namespace spops

#endif
