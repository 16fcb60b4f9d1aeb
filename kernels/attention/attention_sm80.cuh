// SPDX-License-Identifier: Apache-2.0
// Attention within patches for sm_80 and later, and for everything that the kernel of sm_90 does not
// take: any head dim up to 256, any stride, biases. f16, bf16, or f32 as tf32, by matrix units
// (mma.sync), sums and softmax in f32.
//
// One block, 64 queries of a patch and one head: 4 warps of 16 queries, which stay in registers as
// the left operand of s = q k^T, or, of more than 128 columns, in shared memory. Tiles of 64 to 16 keys stream through two stages of shared memory; the
// weights are the left operand of o += w v in the registers where the first product left them.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_SM80_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_SM80_CUH

#include "kernels/attention/attention_common.cuh"

namespace spops
{

template <class T, int DIM> struct attention_sm80_policy {
    static constexpr int queries = 64, threads = 128, stages = 2;
    static constexpr int keys = (sizeof(T) == 4 ? 32 : 64) / (DIM > 128 ? 2 : 1);
    static constexpr int q_bytes = tile_bytes<T, queries, DIM>, k_bytes = tile_bytes<T, keys, DIM>;
    static constexpr int coords_bytes = stages * keys * (int)sizeof(int3);
    static constexpr int shared_bytes = q_bytes + stages * 2 * k_bytes + coords_bytes;
};

template <class T, int DIM>
__global__ void __launch_bounds__(128)
    attention_sm80_kernel(const __grid_constant__ attention_params p)
{
    typedef attention_sm80_policy<T, DIM> P;
    extern __shared__ __align__(16) unsigned char shared[];
    attention_clear_rest<T>(p);
    const int head = blockIdx.x % p.heads;
    if ((int)(blockIdx.x / p.heads) >= *p.num_tiles) return;
    const int4 tile = p.tiles[blockIdx.x / p.heads];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = head / p.group;
    const int *const queries = p.q_rows + tile.y;
    const int *const keys = p.k_rows + p.k_offsets[tile.x];
    const int num_keys = tile.w;
    const bool biased = p.bias.table != nullptr;
    unsigned char *const q_tile = shared, *const stages = shared + P::q_bytes;
    int3 *const key_coords = reinterpret_cast<int3 *>(stages + P::stages * 2 * P::k_bytes);

    const auto load_stage = [&](int key) {
        if (key < num_keys) {
            const int stage = key / P::keys % P::stages, left = min(num_keys - key, P::keys);
            const uint32_t to = shared_address(stages + stage * 2 * P::k_bytes);
            load_tile<T, P::keys, DIM, P::threads>(to, p.k.of_head(kv_head), p.k.row, keys + key,
                                                   left, p.dim, p.wide);
            load_tile<T, P::keys, DIM, P::threads>(to + P::k_bytes, p.v.of_head(kv_head), p.v.row,
                                                   keys + key, left, p.dim, p.wide);
            if (biased && threadIdx.x < P::keys)
                key_coords[stage * P::keys + threadIdx.x] =
                    key_coords_of(p.bias, (int)threadIdx.x < left ? keys[key + threadIdx.x] : -1);
        }
        close_copies();
    };

    load_tile<T, P::queries, DIM, P::threads>(shared_address(q_tile), p.q.of_head(head), p.q.row,
                                              queries, tile.z, p.dim, p.wide);
    load_stage(0); // with the queries
    int out_row[2];
    int3 coords[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int at = warp * 16 + h * 8 + lane / 4;
        out_row[h] = at < tile.z ? queries[at] : -1;
        if (biased) coords[h] = query_coords(p.bias, out_row[h]);
    }

    uint32_t q[DIM / step_columns<T>][4];
    float o[DIM / 2];
    softmax_state state = softmax_begin();
#pragma unroll
    for (int i = 0; i < DIM / 2; ++i)
        o[i] = 0.0f;
    // What is not a plain multiple of positive scale is brought into units of log2 beforehand.
    const bool scaled = biased || p.scale < 0.0f;
    const float scale = scaled ? 1.0f : p.scale;

    for (int key = 0; key < num_keys; key += P::keys) {
        const int left = num_keys - key;
        unsigned char *const k_tile = stages + key / P::keys % P::stages * 2 * P::k_bytes;
        load_stage(key + P::keys);
        wait_copies<1>();
        __syncthreads();
        if (key == 0 || DIM > 128) load_left<T, DIM>(q, shared_address(q_tile), warp * 16, lane);

        float s[P::keys / 2];
#pragma unroll
        for (int i = 0; i < P::keys / 2; ++i)
            s[i] = 0.0f;
        multiply_lines<T, P::keys, DIM>(s, q, shared_address(k_tile), lane);
        if (scaled) {
            const int3 *const others = key_coords + key / P::keys % P::stages * P::keys;
#pragma unroll
            for (int i = 0; i < P::keys / 2; ++i) {
                s[i] *= p.scale;
                if (biased)
                    s[i] += bias_of(p.bias, head, coords[i / 2 % 2],
                                    others[i / 4 * 8 + lane % 4 * 2 + i % 2]) *
                            log2_of_e;
            }
        }
        if (left < P::keys) mask_logits<P::keys>(s, left, lane);
        float factor[2];
        if (softmax_step<P::keys>(s, state, scale, factor)) scale_rows(o, factor);
        uint32_t w[P::keys / step_columns<T>][4];
        sums_to_left<T, P::keys>(w, s);
        multiply_columns<T, P::keys, DIM>(o, w, shared_address(k_tile + P::k_bytes), lane);
        __syncthreads(); // before the stage is loaded again
    }
    wait_copies<0>();
    attention_store<T, DIM>(p, head, out_row, o, state, scale, num_keys > 0, lane);
}

} // namespace spops

#endif
