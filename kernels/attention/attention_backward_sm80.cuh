// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by mma.sync, for sm_80 and later: f16, bf16, or f32 as tf32, every head dim
// up to DIM, rows of any alignment, biases. attention_backward_params.cuh has the form of the sums.
//
// One block, 64 own rows and one head: 4 warps of 16 rows. Streamed rows go through two stages of
// shared memory. The sums of keys of more than 128 columns do not fit the registers: blocks with
// blockIdx.y 0 have those of grad_first, the others those of grad_second.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_SM80_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_SM80_CUH

#include "kernels/attention/attention_backward_bias.cuh"

namespace spops
{

template <class T_, int DIM_> struct attention_backward_sm80_policy {
    typedef T_ T;
    static constexpr int DIM = DIM_, threads = 128, own = 64, stages = 2;
    static constexpr int line = DIM * (int)sizeof(T);
    static constexpr int streamed = line <= 128 ? 64 : line <= 256 ? 32 : 16; // of a stage
    static constexpr int own_bytes = tile_bytes<T, own, DIM>;
    static constexpr int streamed_bytes = tile_bytes<T, streamed, DIM>;
    static constexpr int stage_bytes = 2 * streamed_bytes + 2 * streamed * 4; // with lse, delta
    static constexpr int shared_bytes = 2 * own_bytes + stages * stage_bytes;
    static constexpr bool splits = DIM > 128;
    typedef attention_pairs<own, streamed> pairs; // after that where there are biases, and then
                                                  // the table (attention_table)
};

// sum += the own rows of a warp times streamed rows.
template <class P>
__device__ __forceinline__ void multiply_own(float (&sum)[P::streamed / 2], uint32_t own,
                                             uint32_t streamed, int warp, int lane)
{
    typedef typename P::T T;
    uint32_t left[P::DIM / step_columns<T>][4];
    load_left<T, P::DIM>(left, own, warp * 16, lane);
    multiply_lines<T, P::streamed, P::DIM>(sum, left, streamed, lane);
}

template <class P, attention_side SIDE>
__global__ void __launch_bounds__(P::threads)
    attention_backward_sm80_kernel(const __grid_constant__ attention_backward_params p)
{
    extern __shared__ __align__(16) unsigned char attention_shared[];
    typedef typename P::T T;
    constexpr int D = P::DIM, S = P::streamed;
    const int number = (int)blockIdx.x / p.heads, head = (int)blockIdx.x % p.heads;
    if (number >= *p.num_tiles) return;
    constexpr bool splits = SIDE == OWN_KEYS && P::splits;
    const bool of_second = splits && blockIdx.y == 1;
    if (splits && (of_second ? p.grad_second : p.grad_first).data == nullptr) return;
    const int4 tile = __ldg(p.tiles + number);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, q = lane % 4;
    const int own_head = head / p.own_group, streamed_head = head / p.streamed_group;
    const int num_streamed = tile.w;
    const int *const own_rows = p.own_rows + tile.y;
    const int *const streamed_rows = p.streamed_rows + __ldg(p.streamed_offsets + tile.x);
    const int64_t first_query =
        head * p.query_entries +
        (SIDE == OWN_KEYS ? __ldg(p.streamed_offsets + tile.x) : (int64_t)tile.y);
    const float *const lse = p.lse + first_query, *const delta = p.delta + first_query;
    unsigned char *const stages = attention_shared + 2 * P::own_bytes;
    const uint32_t own_first = shared_address(attention_shared);
    const uint32_t own_second = own_first + P::own_bytes;
    const bool biased = p.bias.table != nullptr;
    const bool tabled = SIDE == OWN_QUERIES && p.table_parts != nullptr;
    typename P::pairs &pairs =
        *reinterpret_cast<typename P::pairs *>(stages + P::stages * P::stage_bytes);
    attention_table table(&pairs + 1, p.bias.range);

    const auto load_stage = [&](int step) {
        unsigned char *const stage = stages + step % P::stages * P::stage_bytes;
        const uint32_t to = shared_address(stage);
        const int *const rows = streamed_rows + step * S;
        const int left = min(num_streamed - step * S, S), t = (int)threadIdx.x;
        load_tile<T, S, D, P::threads>(to, p.streamed_first.of_head(streamed_head),
                                       p.streamed_first.row, rows, left, p.dim, p.wide);
        load_tile<T, S, D, P::threads>(to + P::streamed_bytes,
                                       p.streamed_second.of_head(streamed_head),
                                       p.streamed_second.row, rows, left, p.dim, p.wide);
        close_copies();
        float *const scalars = reinterpret_cast<float *>(stage + 2 * P::streamed_bytes);
        if (SIDE == OWN_KEYS && t < left) {
            scalars[t] = lse[step * S + t];
            scalars[S + t] = delta[step * S + t];
        }
    };
    load_tile<T, P::own, D, P::threads>(own_first, p.own_first.of_head(own_head), p.own_first.row,
                                        own_rows, tile.z, p.dim, p.wide);
    load_tile<T, P::own, D, P::threads>(own_second, p.own_second.of_head(own_head),
                                        p.own_second.row, own_rows, tile.z, p.dim, p.wide);
    close_copies();
    const int steps = (num_streamed + S - 1) / S;
    if (steps > 0) load_stage(0);
    if (tabled) table.clear();
    if (biased && (int)threadIdx.x < P::own)
        pairs.own[threadIdx.x] = side_coords<SIDE, true>(
            p.bias, (int)threadIdx.x < tile.z ? __ldg(own_rows + threadIdx.x) : -1);

    // Of the two rows of this lane.
    int row[2];
    float row_lse[2] = {0.0f, 0.0f}, row_delta[2] = {0.0f, 0.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int own = warp * 16 + h * 8 + lane / 4;
        row[h] = own < tile.z ? __ldg(own_rows + own) : -1;
        if (SIDE == OWN_QUERIES && own < tile.z) {
            row_lse[h] = lse[own];
            row_delta[h] = delta[own];
        }
    }
    float grad_first[D / 2] = {}, grad_second[SIDE == OWN_KEYS && !splits ? D / 2 : 1] = {};
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) {
            load_stage(step + 1);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        __syncthreads();
        const unsigned char *const stage = stages + step % P::stages * P::stage_bytes;
        const uint32_t first = shared_address(stage), second = first + P::streamed_bytes;
        const float *const scalars = reinterpret_cast<const float *>(stage + 2 * P::streamed_bytes);

        float t[S / 2] = {}, u[S / 2] = {};
        multiply_own<P>(t, own_first, first, warp, lane);
        if (!of_second) multiply_own<P>(u, own_second, second, warp, lane);
        const int left = num_streamed - step * S;
        if (biased) {
            const int i = (int)threadIdx.x;
            if (i < S)
                pairs.streamed[i] = side_coords<SIDE, false>(
                    p.bias, i < left ? __ldg(streamed_rows + step * S + i) : -1);
            __syncthreads();
            tile_of_biases<SIDE>(pairs, p.bias, head);
        }
        float *const pair = pairs.tile + (warp * 16 + lane / 4) * pairs.line + q * 2;
#pragma unroll
        for (int i = 0; i < S / 2; ++i) {
            const int col = i / 4 * 8 + q * 2 + i % 2, h = i / 2 % 2;
            const int at = h * 8 * pairs.line + i / 4 * 8 + i % 2; // of pair
            const float logit = t[i] * p.scale_log2 + (biased ? pair[at] : 0.0f);
            const float e =
                exp2_approximate(logit - (SIDE == OWN_KEYS ? scalars[col] : row_lse[h]));
            const float d = SIDE == OWN_KEYS ? scalars[S + col] : row_delta[h];
            // Rows that are not there count nothing, whatever the own rows hold.
            t[i] = col < left ? e : 0.0f;
            u[i] = col < left ? (of_second ? e : e * (u[i] - d)) : 0.0f;
            if (tabled) pair[at] = u[i];
        }
        uint32_t weights[S / step_columns<T>][4];
        if constexpr (SIDE == OWN_KEYS && !splits) {
            sums_to_left<T, S>(weights, t);
            multiply_columns<T, S, D>(grad_second, weights, second, lane);
        }
        sums_to_left<T, S>(weights, u);
        multiply_columns<T, S, D>(grad_first, weights, of_second ? second : first, lane);
        if (tabled) {
            __syncthreads();
            table.add(pairs, p.bias, tile.z, left);
        }
        __syncthreads(); // before the stage is filled again
    }
    wait_copies<0>();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int64_t entry = tile.y + warp * 16 + h * 8 + lane / 4;
        store_gradient<T, D>(of_second ? p.grad_second : p.grad_first, entry, row[h], head, p.dim,
                             grad_first, h, of_second ? 1.0f : p.scale, q);
        if constexpr (SIDE == OWN_KEYS && !splits)
            store_gradient<T, D>(p.grad_second, entry, row[h], head, p.dim, grad_second, h, 1.0f,
                                 q);
    }
    if (tabled) {
        __syncthreads();
        table.store(p.table_parts + (int64_t)blockIdx.x * table.bins);
    }
}

} // namespace spops

#endif
