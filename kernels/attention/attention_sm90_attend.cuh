// SPDX-License-Identifier: Apache-2.0
// The warpgroups of attention_sm90.cuh that attend, and its kernel.
//
// A step is scores s = q k^T of 64 queries, a head and the keys of a stage, softmax, and values
// o += w v. Queries and weights are left operands in registers, weights where scores were, but queries of
// more than 128 columns in shared memory. Products run beside softmax:
//
//     attention_halves    a warpgroup has two halves of 64 queries by turns. While values of one, and
//                         scores of its next step, are multiplied, weights of the other are made
//     attention_ahead     one half, whose o takes the registers of two: scores of the next step and
//                         values of this one are begun at once, and softmax of the next step runs
//                         beside the values. Warpgroups begin products one after the other
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_ATTEND_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_ATTEND_CUH

#include "kernels/attention/attention_sm90.cuh"

namespace spops
{

template <class T> struct wgmma_number; // what hopper.cuh calls T
template <> struct wgmma_number<f16> {
    typedef __half type;
};
template <> struct wgmma_number<bf16> {
    typedef __nv_bfloat16 type;
};

// 64 queries and their state.
template <class P> struct attention_half {
    uint32_t q[P::Q_SHARED ? 1 : P::HEADS * P::STEPS][4];
    float o[P::HEADS][P::DIM / 2], s[P::KEYS / 2];
    uint32_t w[P::KEYS / 16][4];
    softmax_state state[P::HEADS];
    int out_row[2]; // -1: none
};

// What a warpgroup does with a half.
template <class P, class T> struct attention_warpgroup {
    typedef typename wgmma_number<T>::type N;
    typedef attention_half<P> half;
    static constexpr int last_head = P::HEADS - 1;

    const attention_params &p;
    const attention_sm90_block<P> &block;
    const int group, lane, warp; // warp of the group
    ring_position<P::STAGES> stage;

    __device__ attention_warpgroup(const attention_params &params, const attention_sm90_block<P> &b,
                                   int warp_of_block)
        : p(params), block(b), group(warp_of_block / 4), lane(threadIdx.x % 32),
          warp(warp_of_block % 4)
    {
    }

    // The warps of the group do so one by one.
    __device__ __forceinline__ void release(uint32_t barrier) const
    {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
    }

    // So that a warp computes addresses of a stage once, not each lane.
    __device__ __forceinline__ static int uniform(int i) { return __shfl_sync(~0u, i, 0); }

    // ---- Before and after an item ---------------------------------------------------------------

    __device__ __forceinline__ int first_row(int number) const
    {
        return group * P::own + number * 64 + warp * 16;
    }

    __device__ __forceinline__ void clear(half &x, int number, const int4 &tile) const
    {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = first_row(number) + h * 8 + lane / 4;
            x.out_row[h] = at < tile.z ? __ldg(p.q_rows + tile.y + at) : -1;
        }
#pragma unroll
        for (int h = 0; h < P::HEADS; ++h) {
            x.state[h] = softmax_begin();
#pragma unroll
            for (int i = 0; i < P::DIM / 2; ++i)
                x.o[h][i] = 0.0f;
        }
    }

    __device__ __forceinline__ void load_queries(half &x, int number) const
    {
        const int line = first_row(number) + lane % 16;
#pragma unroll
        for (int i = 0; i < P::HEADS * P::STEPS; ++i)
            load_matrices(x.q[i], block.q() + i / 4 * P::queries * 128 + line * 128 +
                                      (((i % 4 * 2 + lane / 16) ^ line % 8) << 4));
    }

    __device__ __forceinline__ void store(const half &x, int first_head, bool has_keys) const
    {
#pragma unroll
        for (int n = 0; n < P::HEADS; ++n) {
            const int head = first_head + n;
            if (head >= p.heads) break;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float sum = x.state[n].sum[h];
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                const float inverse = has_keys ? 1.0f / sum : 0.0f;
                const int64_t row = x.out_row[h];
                if (row < 0) continue;
                if (p.lse != nullptr && lane % 4 == 0)
                    p.lse[row * p.heads + head] =
                        has_keys
                            ? (softmax_base(x.state[n].top[h], p.scale) + log2f(sum)) * log_of_2
                            : -INFINITY;
                uint32_t *const to =
                    reinterpret_cast<uint32_t *>(p.o.of_head(head) + row * p.o.row) + lane % 4;
#pragma unroll
                for (int j = 0; j < P::DIM / 8; ++j)
                    to[4 * j] = pack2<T>(x.o[n][4 * j + 2 * h] * inverse,
                                         x.o[n][4 * j + 2 * h + 1] * inverse);
            }
        }
    }

    // ---- A step ---------------------------------------------------------------------------------

    // Rows of a slot are there; also for wgmma, after fence_for_wgmma.
    __device__ __forceinline__ void wait_slot(int slot, uint32_t parity) const
    {
        barrier_wait(block.full(slot), parity);
    }

    // Of a head, with the k of a stage.
    __device__ __forceinline__ void add_scores(half &x, int head, int at) const
    {
        const uint64_t k = at_address(descriptor(SWIZZLE_128, 0, 1024), block.slot(2 * at));
#pragma unroll
        for (int i = 0; i < P::STEPS; ++i) {
            const int n = head * P::STEPS + i;
            const uint64_t right = k + ((n / 4 * P::KEYS * 128 + n % 4 * 32) >> 4);
            if constexpr (P::Q_SHARED)
                wgmma<N, P::KEYS, ALONG_K, ALONG_K>::run(
                    x.s,
                    at_address(descriptor(SWIZZLE_128, 0, 1024), block.q() + group * P::own * 128 +
                                                                     n / 4 * P::queries * 128 +
                                                                     n % 4 * 32),
                    right, i > 0);
            else
                wgmma_left<N, P::KEYS, ALONG_K>::run(x.s, x.q[n], right, i > 0);
        }
    }

    __device__ __forceinline__ void add_values(half &x, int head, int at) const
    {
        const uint64_t v =
            at_address(descriptor(SWIZZLE_128, P::KEYS * 128, 1024), block.slot(2 * at + 1));
#pragma unroll
        for (int i = 0; i < P::KEYS / 16; ++i)
            wgmma_left<N, P::DIM, ACROSS_K>::run(x.o[head], x.w[i],
                                                 v + ((head * P::DIM * 2 + i * 2048) >> 4), 1);
    }
};

// ---- Two halves by turns ------------------------------------------------------------------------

template <class P, class T> struct attention_halves : attention_warpgroup<P, T> {
    typedef attention_warpgroup<P, T> base;
    typedef typename base::half half;
    using base::attention_warpgroup;
    using base::block;
    using base::lane;
    using base::last_head;
    using base::p;
    using base::stage;

    half a, b;

    // Weights of scores, of which the first `left` count. FIRST: of the item.
    //
    // Most steps bring no logit that exceeds the maximum so far by much. So weights relative to it are
    // made at once, and only where a lane's sum shows that one may be too large, scores are asked for
    // their maximum. What a lane adds up is at most KEYS / 4 weights of 2^softmax_slack, or not a
    // number.
    __device__ __forceinline__ void make_weights(half &x, int head, int left, bool first) const
    {
        // The products run beside what follows. The compiler would move it before them; a branch that
        // it cannot decide keeps it where it is.
        asm volatile("" : "+r"(left));
        if (left < P::KEYS) mask_logits<P::KEYS>(x.s, left, lane);
        softmax_state &state = x.state[head];
        if (!first) {
            constexpr float most = P::KEYS / 4 * (1 << (int)softmax_slack);
            const float base[2] = {-state.top[0] * p.scale, -state.top[1] * p.scale};
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < P::KEYS / 4; ++j) {
                const float w0 = exp2_approximate(fmaf(x.s[2 * j], p.scale, base[j % 2]));
                const float w1 = exp2_approximate(fmaf(x.s[2 * j + 1], p.scale, base[j % 2]));
                sum[j % 2] += w0;
                sum[j % 2] += w1;
                x.w[j / 4][j % 4] = pack2<T>(w0, w1);
            }
            if (__all_sync(~0u, sum[0] <= most && sum[1] <= most)) {
                state.sum[0] += sum[0];
                state.sum[1] += sum[1];
                return;
            }
        }
        float factor[2];
        if (softmax_step<P::KEYS>(x.s, state, p.scale, factor)) scale_rows(x.o[head], factor);
        sums_to_left<T, P::KEYS>(x.w, x.s);
    }

    // Values of a step whose weights are there, and scores of the next one where there is one.
    template <bool MORE>
    __device__ __forceinline__ void begin_products(half &x, int head, int at, int next_head,
                                                   int next_at) const
    {
        wgmma_fence();
        this->add_values(x, head, at);
        if (MORE) this->add_scores(x, next_head, next_at);
        wgmma_commit();
    }

    // The steps of a stage and scores of the next one. Scores of a and b are there, and weights of a.
    // first, LAST: of the item.
    template <bool LAST>
    __device__ __forceinline__ void attend_stage(int left, bool first, int first_head)
    {
        ring_position<P::STAGES> after = stage;
        after.advance();
        const int at = this->uniform(stage.at), after_at = this->uniform(after.at);
        this->wait_slot(2 * at + 1, stage.full_parity());
        if (!LAST) this->wait_slot(2 * after_at, after.full_parity());
        fence_for_wgmma();
#pragma unroll
        for (int h = 0; h < P::HEADS; ++h) {
            const bool ends = h == last_head;
            const int next_head = ends ? 0 : h + 1, next_at = ends ? after_at : at;
            if (LAST && ends)
                begin_products<false>(a, h, at, 0, 0);
            else
                begin_products<true>(a, h, at, next_head, next_at);
            make_weights(b, h, left, first);
            wgmma_wait<0>();
            pin_registers(a.o[h]);
            pin_registers(a.s);
            if (LAST && ends) {
                begin_products<false>(b, h, at, 0, 0);
                this->store(a, first_head, true);
            } else {
                begin_products<true>(b, h, at, next_head, next_at);
                make_weights(a, next_head, ends ? left - P::KEYS : left, !ends && first);
            }
            wgmma_wait<0>();
            pin_registers(b.o[h]);
            pin_registers(b.s);
            if (!(LAST && ends) && next_head == last_head) this->release(block.empty(2 * next_at));
        }
        this->release(block.empty(2 * at + 1));
        stage = after;
    }

    __device__ __forceinline__ void attend_tile(const int4 &tile, int first_head)
    {
        this->clear(a, 0, tile);
        this->clear(b, 1, tile);
        if (tile.w == 0) {
            this->store(a, first_head, false);
            this->store(b, first_head, false);
            return;
        }
        const int at = this->uniform(stage.at);
        this->wait_slot(2 * at, stage.full_parity());
        fence_for_wgmma();
        this->load_queries(a, 0);
        this->load_queries(b, 1);
        barrier_arrive(block.q_empty());
        wgmma_fence();
        this->add_scores(a, 0, at);
        wgmma_commit();
        wgmma_wait<0>();
        pin_registers(a.s);
        wgmma_fence();
        this->add_scores(b, 0, at);
        wgmma_commit();
        make_weights(a, 0, tile.w, true);
        wgmma_wait<0>();
        pin_registers(b.s);
        if (last_head == 0) this->release(block.empty(2 * at));
        int left = tile.w;
        for (; left > P::KEYS; left -= P::KEYS)
            attend_stage<false>(left, left == tile.w, first_head);
        attend_stage<true>(left, left == tile.w, first_head);
        this->store(b, first_head, true);
    }

    __device__ __forceinline__ void run()
    {
        attention_for_parts<P>(p, [&](const int4 &tile, int head) { attend_tile(tile, head); });
    }
};

// ---- Scores ahead -------------------------------------------------------------------------------

template <class P, class T> struct attention_ahead : attention_warpgroup<P, T> {
    typedef attention_warpgroup<P, T> base;
    using base::attention_warpgroup;
    using base::block;
    using base::group;
    using base::lane;
    using base::p;
    using base::stage;
    static_assert(P::HEADS == 1, "one head an item");

    typename base::half a;

    __device__ __forceinline__ void wait_turn() const
    {
        asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
    }
    __device__ __forceinline__ void pass_turn() const
    {
        asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1) % P::GROUPS) : "memory");
    }

    // Values of the step before may still run. LAST: only `left` keys count.
    template <bool LAST> __device__ __forceinline__ void make_weights(int left)
    {
        float factor[2];
        if (LAST) mask_logits<P::KEYS>(a.s, left, lane);
        const bool renewed = softmax_step<P::KEYS>(a.s, a.state[0], p.scale, factor);
        wgmma_wait<0>();
        pin_registers(a.o[0]);
        if (renewed) scale_rows(a.o[0], factor);
        sums_to_left<T, P::KEYS>(a.w, a.s);
    }

    // A stage, whose scores are there, and scores of the next one. LAST: of the item.
    template <bool LAST> __device__ __forceinline__ void attend_stage(int left, bool first)
    {
        ring_position<P::STAGES> after = stage;
        after.advance();
        const int at = this->uniform(stage.at), after_at = this->uniform(after.at);
        make_weights<LAST>(left);
        if (!first) this->release(block.empty(2 * (at == 0 ? P::STAGES - 1 : at - 1) + 1));
        this->wait_slot(2 * at + 1, stage.full_parity());
        if (!LAST) this->wait_slot(2 * after_at, after.full_parity());
        fence_for_wgmma();
        wait_turn();
        wgmma_fence();
        if (!LAST) {
            this->add_scores(a, 0, after_at);
            wgmma_commit();
        }
        this->add_values(a, 0, at);
        wgmma_commit();
        pass_turn();
        if (!LAST) {
            wgmma_wait<1>();
            pin_registers(a.s);
            this->release(block.empty(2 * after_at));
        } else {
            wgmma_wait<0>();
            pin_registers(a.o[0]);
            this->release(block.empty(2 * at + 1));
        }
        stage = after;
    }

    __device__ __forceinline__ void attend(int num_keys)
    {
        const int at = this->uniform(stage.at);
        this->wait_slot(2 * at, stage.full_parity());
        fence_for_wgmma();
        if constexpr (!P::Q_SHARED) {
            this->load_queries(a, 0);
            barrier_arrive(block.q_empty());
        }
        wait_turn();
        wgmma_fence();
        this->add_scores(a, 0, at);
        wgmma_commit();
        pass_turn();
        wgmma_wait<0>();
        pin_registers(a.s);
        this->release(block.empty(2 * at));
        int left = num_keys;
        for (; left > P::KEYS; left -= P::KEYS)
            attend_stage<false>(left, left == num_keys);
        attend_stage<true>(left, left == num_keys);
        if constexpr (P::Q_SHARED) barrier_arrive(block.q_empty());
    }

    __device__ __forceinline__ void run()
    {
        if (group == P::GROUPS - 1) pass_turn();
        attention_for_parts<P>(p, [&](const int4 &tile, int head) {
            this->clear(a, 0, tile);
            if (tile.w > 0) attend(tile.w);
            this->store(a, head, tile.w > 0);
        });
    }
};

template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::blocks)
    attention_sm90_kernel(const __grid_constant__ attention_params p)
{
    extern __shared__ char unaligned[];
    attention_clear_rest<T>(p);
    attention_sm90_block<P> block;
    block.base = ((uint32_t)__cvta_generic_to_shared(unaligned) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        barrier_init(block.q_empty(), 128 * P::GROUPS);
        for (int i = 0; i < P::SLOTS; ++i) {
            barrier_init(block.full(i), 32 * P::gather_warps);
            barrier_init(block.empty(i), 4 * P::GROUPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= 4 * P::GROUPS) {
        set_registers<P::registers, P::gather_registers>();
        attention_gather<P>(p, block, warp - 4 * P::GROUPS, threadIdx.x % 32);
    } else {
        set_registers<P::registers, P::attend_registers>();
        typedef std::conditional_t<P::HALVES == 2, attention_halves<P, T>, attention_ahead<P, T>>
            attending;
        attending group(p, block, warp);
        group.run();
    }
}

} // namespace spops

#endif
