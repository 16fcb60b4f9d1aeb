// SPDX-License-Identifier: Apache-2.0
// The warpgroups of attention_sm90.cuh that attend, and its kernel.
//
// A step is scores s = q k^T of 64 queries, a head and the keys of a stage, softmax, and values
// o += w v. Queries and weights are left operands in registers, weights where scores were, but queries in
// shared memory where registers do not hold them. Products run beside softmax:
//
//     attention_four      four warpgroups have 64 queries of a head each. Products of one run beside
//                         softmax of the others
//     attention_halves    a warpgroup has two halves of 64 queries by turns. While values of one, and
//                         scores of its next step, are multiplied, weights of the other are made
//     attention_ahead     one half, whose o takes the registers of two: scores of the next step and
//                         values of this one are begun at once, and softmax of the next step runs
//                         beside the values. Warpgroups begin products one after the other
//
// Of the first two, steps of a part follow those of the part before as its own do: scores of the next
// part's first step begin beside the last values of this one, and rows of o are stored while products of
// another warpgroup, or of the next part, run.
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
    uint32_t q[P::Q_SHARED ? 1 : P::STEPS][4];
    float o[P::DIM / 2], s[P::KEYS / 2];
    uint32_t w[P::KEYS / 16][4];
    softmax_state state;
    int out_row[2]; // -1: none
    int head;       // there may be no such head
};

// What begins beside the values of a stage: scores of the next stage of the part, of the first one of the
// next part, or none.
enum attention_scores { OF_PART, OF_NEXT, NO_SCORES };

// What a warpgroup does with a half.
template <class P, class T> struct attention_warpgroup {
    typedef typename wgmma_number<T>::type N;
    typedef attention_half<P> half;
    const attention_params &p;
    const attention_sm90_block<P> &block;
    const int group, lane, warp; // warp of the group
    ring_position<P::STAGES> stage;
    ring_position<P::Q_BUFFERS> q;

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

    // The warpgroup's place among those of its head, and its head among those of the item.
    __device__ __forceinline__ int place() const { return group / P::HEADS; }
    __device__ __forceinline__ int head_of_item() const { return group % P::HEADS; }

    __device__ __forceinline__ int first_row(int number) const
    {
        return place() * P::own + number * 64 + warp * 16;
    }

    __device__ __forceinline__ void clear(half &x, int number, const attention_part &part) const
    {
        x.head = part.head + head_of_item();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = first_row(number) + h * 8 + lane / 4;
            x.out_row[h] = at < part.tile.z ? __ldg(p.q_rows + part.tile.y + at) : -1;
        }
        x.state = softmax_begin();
#pragma unroll
        for (int i = 0; i < P::DIM / 2; ++i)
            x.o[i] = 0.0f;
    }

    __device__ __forceinline__ void load_queries(half &x, int number) const
    {
        const int line = first_row(number) + lane % 16, first = head_of_item() * P::STEPS;
#pragma unroll
        for (int i = 0; i < P::STEPS; ++i) {
            const int step = first + i, chunk = P::CHUNKS > 1 ? step / 4 : 0;
            load_matrices(x.q[i], block.q(0) + chunk * P::queries * 128 + line * 128 +
                                      (((step % 4 * 2 + lane / 16) ^ line % 8) << 4));
        }
    }

    __device__ __forceinline__ void release_queries()
    {
        barrier_arrive(block.q_empty(q.at));
        q.advance();
    }

    // Lane i of four gets the words i of all four.
    __device__ __forceinline__ void turn_words(uint32_t (&w)[4]) const
    {
        const bool odd = lane & 1, high = lane & 2;
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
            w[i] = odd ? got : w[i];
            w[i + 1] = odd ? w[i + 1] : got;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
            w[i] = high ? got : w[i];
            w[i + 2] = high ? w[i + 2] : got;
        }
    }

    // Rows of o by 16 bytes a lane, or by 4 where they do not begin at 16 bytes.
    __device__ __forceinline__ void store(const half &x, bool has_keys) const
    {
        constexpr int words = P::DIM / 8; // of a lane and row
        const bool is_head = P::HEADS == 1 || x.head < p.heads;
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = x.state.sum[h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            inverse[h] = has_keys ? 1.0f / sum : 0.0f;
            if (p.lse != nullptr && lane % 4 == 0 && x.out_row[h] >= 0 && is_head)
                p.lse[(int64_t)x.out_row[h] * p.heads + x.head] =
                    has_keys ? (softmax_base(x.state.top[h], p.scale) + log2f(sum)) * log_of_2
                             : -INFINITY;
        }
#pragma unroll
        for (int g = 0; g < 2 * words; g += 4) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = (g + i) / words, j = (g + i) % words;
                word[i] =
                    pack2<T>(x.o[4 * j + 2 * h] * inverse[h], x.o[4 * j + 2 * h + 1] * inverse[h]);
            }
            unsigned char *const head = p.o.of_head(x.head);
            if (p.wide_o) {
                turn_words(word);
                const int at = g + lane % 4;
                const int64_t row = at < words ? x.out_row[0] : x.out_row[1];
                if (row >= 0 && is_head)
                    *reinterpret_cast<uint4 *>(head + row * p.o.row + at % words * 16) =
                        make_uint4(word[0], word[1], word[2], word[3]);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = (g + i) / words, j = (g + i) % words;
                const int64_t row = x.out_row[h];
                if (row >= 0 && is_head)
                    reinterpret_cast<uint32_t *>(head + row * p.o.row)[4 * j + lane % 4] = word[i];
            }
        }
    }

    // The next part that has keys; rows of those without are stored.
    __device__ __forceinline__ bool take(attention_walk<P> &walk, attention_part &part) const
    {
        while (walk.take(part)) {
            if (part.tile.w > 0) return true;
#pragma unroll
            for (int i = 0; i < P::HALVES; ++i) {
                half none;
                clear(none, i, part);
                store(none, false);
            }
        }
        return false;
    }

    // ---- A step ---------------------------------------------------------------------------------

    // Rows of a slot are there; also for wgmma, after fence_for_wgmma.
    __device__ __forceinline__ void wait_slot(int slot, uint32_t parity) const
    {
        barrier_wait(block.full(slot), parity);
    }
    // Values of a step, and keys of the next stage where SCORES; also for wgmma.
    template <bool SCORES>
    __device__ __forceinline__ void wait_stages(int at, int after_at,
                                                const ring_position<P::STAGES> &after) const
    {
        wait_slot(2 * at + 1, stage.full_parity());
        if (SCORES) wait_slot(2 * after_at, after.full_parity());
        fence_for_wgmma();
    }
    // The first keys of a block or part, which is stage `at`; also for wgmma.
    __device__ __forceinline__ void wait_first_keys(int at) const
    {
        wait_slot(2 * at, stage.full_parity());
        fence_for_wgmma();
    }

    // Of the warpgroup's head, in lines of a slot.
    __device__ __forceinline__ int place_of_head() const
    {
        return head_of_item() * (P::PAIR ? P::KEYS * 128 : P::DIM * 2);
    }

    // With the k of a stage.
    __device__ __forceinline__ void add_scores(half &x, int at) const
    {
        const uint64_t k =
            at_address(descriptor(SWIZZLE_128, 0, 1024), block.slot(2 * at) + place_of_head());
        uint64_t left = 0;
        if (P::Q_SHARED)
            left = at_address(descriptor(SWIZZLE_128, 0, 1024),
                              block.q(uniform(q.at)) + place() * P::own * 128 +
                                  (P::PAIR ? head_of_item() * P::queries * 128 : 0));
#pragma unroll
        for (int i = 0; i < P::STEPS; ++i) {
            const uint64_t right = k + ((i / 4 * P::KEYS * 128 + i % 4 * 32) >> 4);
            if constexpr (P::Q_SHARED)
                wgmma<N, P::KEYS, ALONG_K, ALONG_K>::run(
                    x.s, left + ((i / 4 * P::queries * 128 + i % 4 * 32) >> 4), right, i > 0);
            else
                wgmma_left<N, P::KEYS, ALONG_K>::run(x.s, x.q[i], right, i > 0);
        }
    }

    __device__ __forceinline__ void add_values(half &x, int at) const
    {
        const uint64_t v = at_address(descriptor(SWIZZLE_128, P::KEYS * 128, 1024),
                                      block.slot(2 * at + 1) + place_of_head());
#pragma unroll
        for (int i = 0; i < P::KEYS / 16; ++i)
            wgmma_left<N, P::DIM, ACROSS_K>::run(x.o, x.w[i], v + ((i * 2048) >> 4), 1);
    }

    __device__ __forceinline__ void begin_scores(half &x, int at) const
    {
        wgmma_fence();
        add_scores(x, at);
        wgmma_commit();
    }
    // Values of a step whose weights are there, and scores of the next one where SCORES.
    template <bool SCORES>
    __device__ __forceinline__ void begin_products(half &x, int at, int after_at) const
    {
        wgmma_fence();
        add_values(x, at);
        if (SCORES) add_scores(x, after_at);
        wgmma_commit();
    }
};

// ---- Two halves by turns ------------------------------------------------------------------------

template <class P, class T> struct attention_halves : attention_warpgroup<P, T> {
    typedef attention_warpgroup<P, T> base;
    typedef typename base::half half;
    using base::attention_warpgroup;
    using base::block;
    using base::lane;
    using base::p;
    using base::stage;

    half a, b;

    // Weights of scores, of which the first `left` count. first: of the part.
    //
    // Most steps bring no logit that exceeds the maximum so far by much. So weights relative to it are
    // made at once, and only where a lane's sum shows that one may be too large, scores are asked for
    // their maximum. What a lane adds up is at most KEYS / 4 weights of 2^softmax_slack, or not a
    // number.
    __device__ __forceinline__ void make_weights(half &x, int left, bool first) const
    {
        // The products run beside what follows. The compiler would move it before them; a branch that
        // it cannot decide keeps it where it is.
        asm volatile("" : "+r"(left));
        if (left < P::KEYS) mask_logits<P::KEYS>(x.s, left, lane);
        softmax_state &state = x.state;
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
        if (softmax_step<P::KEYS>(x.s, state, p.scale, factor)) scale_rows(x.o, factor);
        sums_to_left<T, P::KEYS>(x.w, x.s);
    }

    // A stage, and scores of the next one. Scores of a and b are there, and weights of a. first: of the
    // part. AFTER is OF_PART, but in the part's last stage, which stores rows.
    template <attention_scores AFTER>
    __device__ __forceinline__ void attend_stage(int left, bool first, const attention_part &next)
    {
        constexpr bool more = AFTER != NO_SCORES;
        ring_position<P::STAGES> after = stage;
        after.advance();
        const int at = this->uniform(stage.at), after_at = this->uniform(after.at);
        this->template wait_stages<more>(at, after_at, after);
        if (AFTER == OF_NEXT) this->load_queries(a, 0);
        this->template begin_products<more>(a, at, after_at);
        make_weights(b, left, first);
        wgmma_wait<0>();
        pin_registers(a.o);
        pin_registers(a.s);
        if (AFTER == OF_NEXT) {
            this->load_queries(b, 1);
            this->release_queries();
        }
        this->template begin_products<more>(b, at, after_at);
        if (AFTER != OF_PART) this->store(a, true);
        if (AFTER == OF_NEXT) this->clear(a, 0, next);
        if (more)
            make_weights(a, AFTER == OF_NEXT ? next.tile.w : left - P::KEYS, AFTER == OF_NEXT);
        wgmma_wait<0>();
        pin_registers(b.o);
        pin_registers(b.s);
        if (more) this->release(block.empty(2 * after_at));
        this->release(block.empty(2 * at + 1));
        stage = after;
        if (AFTER != OF_PART) this->store(b, true);
        if (AFTER == OF_NEXT) this->clear(b, 1, next);
    }

    // A part, whose first scores are there, and weights of a, until the same is true of the next one. False:
    // there is none. With the loop of attention_four, which leaves in the middle, ten more words are spilled.
    __device__ __forceinline__ bool attend(attention_walk<P> &walk, attention_part &part)
    {
        const int keys = part.tile.w;
        int left = keys;
        for (; left > P::KEYS; left -= P::KEYS)
            attend_stage<OF_PART>(left, left == keys, part);
        attention_part next;
        const bool more = this->take(walk, next);
        if (more)
            attend_stage<OF_NEXT>(left, left == keys, next);
        else
            attend_stage<NO_SCORES>(left, left == keys, part);
        part = next;
        return more;
    }

    // The first scores of a block, and weights of a.
    __device__ __forceinline__ void begin(const attention_part &part)
    {
        const int at = this->uniform(stage.at);
        this->clear(a, 0, part);
        this->clear(b, 1, part);
        this->wait_first_keys(at);
        this->load_queries(a, 0);
        this->load_queries(b, 1);
        this->release_queries();
        this->begin_scores(a, at);
        wgmma_wait<0>();
        pin_registers(a.s);
        this->begin_scores(b, at);
        make_weights(a, part.tile.w, true);
        wgmma_wait<0>();
        pin_registers(b.s);
        this->release(block.empty(2 * at));
    }

    __device__ __forceinline__ void run()
    {
        attention_walk<P> walk(p);
        attention_part part;
        if (!this->take(walk, part)) return;
        begin(part);
        while (attend(walk, part))
            ;
    }
};

// ---- Four warpgroups ----------------------------------------------------------------------------

template <class P, class T> struct attention_four : attention_warpgroup<P, T> {
    typedef attention_warpgroup<P, T> base;
    using base::attention_warpgroup;
    using base::block;
    using base::p;
    using base::stage;
    static_assert(P::HALVES == 1 && !P::IN_TURN, "64 queries");

    typename base::half a;

    // As make_weights of halves, but where the maximum is to be renewed, weights are made again by the same
    // code, which is shorter than a second one.
    __device__ __forceinline__ void make_weights(int left, bool first)
    {
        asm volatile("" : "+r"(left));
        if (left < P::KEYS) mask_logits<P::KEYS>(a.s, left, base::lane);
        constexpr float most = P::KEYS / 4 * (1 << (int)softmax_slack);
        float sum[2];
        for (bool renewed = false;; renewed = true) {
            // Without a maximum so far no weight is a number, so that it is renewed.
            float top[2] = {-a.state.top[0] * p.scale, -a.state.top[1] * p.scale};
            if (first || renewed) {
                float factor[2];
                if (softmax_renew<P::KEYS>(a.s, a.state, p.scale, factor)) scale_rows(a.o, factor);
                top[0] = -softmax_base(a.state.top[0], p.scale);
                top[1] = -softmax_base(a.state.top[1], p.scale);
            }
            sum[0] = sum[1] = 0.0f;
#pragma unroll
            for (int j = 0; j < P::KEYS / 4; ++j) {
                const float w0 = exp2_approximate(fmaf(a.s[2 * j], p.scale, top[j % 2]));
                const float w1 = exp2_approximate(fmaf(a.s[2 * j + 1], p.scale, top[j % 2]));
                sum[j % 2] += w0;
                sum[j % 2] += w1;
                a.w[j / 4][j % 4] = pack2<T>(w0, w1);
            }
            if (first || renewed || __all_sync(~0u, sum[0] <= most && sum[1] <= most)) break;
        }
        a.state.sum[0] += sum[0];
        a.state.sum[1] += sum[1];
    }

    // Values of a stage, whose weights are there, and scores of the next one.
    template <attention_scores AFTER> __device__ __forceinline__ void multiply()
    {
        constexpr bool more = AFTER != NO_SCORES;
        ring_position<P::STAGES> after = stage;
        after.advance();
        const int at = this->uniform(stage.at), after_at = this->uniform(after.at);
        this->template wait_stages<more>(at, after_at, after);
        if (AFTER == OF_NEXT) {
            if constexpr (!P::Q_SHARED) this->load_queries(a, 0);
            this->release_queries();
        }
        this->template begin_products<more>(a, at, after_at);
        wgmma_wait<0>();
        pin_registers(a.o);
        pin_registers(a.s);
        this->release(block.empty(2 * at + 1));
        if (more) this->release(block.empty(2 * after_at));
        stage = after;
    }

    // The first scores of a block.
    __device__ __forceinline__ void begin(const attention_part &part)
    {
        this->clear(a, 0, part);
        const int at = this->uniform(stage.at);
        this->wait_first_keys(at);
        if constexpr (!P::Q_SHARED) {
            this->load_queries(a, 0);
            this->release_queries();
        }
        this->begin_scores(a, at);
        wgmma_wait<0>();
        pin_registers(a.s);
        this->release(block.empty(2 * at));
    }

    __device__ __forceinline__ void run()
    {
        attention_walk<P> walk(p);
        attention_part part;
        if (!this->take(walk, part)) return;
        begin(part);
        for (;;) {
            const int keys = part.tile.w;
            int left = keys;
            for (; left > P::KEYS; left -= P::KEYS) {
                make_weights(left, left == keys);
                multiply<OF_PART>();
            }
            make_weights(left, left == keys);
            if (!this->take(walk, part)) break;
            multiply<OF_NEXT>();
            this->store(a, true);
            this->clear(a, 0, part);
        }
        multiply<NO_SCORES>();
        this->store(a, true);
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
    static_assert(P::HEADS == 1 && P::IN_TURN, "one head an item, parts in turn");

    typename base::half a;

    __device__ __forceinline__ void wait_turn() const { named_barrier_wait<256>(1 + group); }
    __device__ __forceinline__ void pass_turn() const
    {
        named_barrier_arrive<256>(1 + (group + 1) % P::GROUPS);
    }

    // Weights of the stage whose scores are there. Values of the one before may still run. LAST: of the part,
    // so only `left` keys count.
    template <bool LAST> __device__ __forceinline__ void make_weights(int left)
    {
        float factor[2];
        if (LAST) mask_logits<P::KEYS>(a.s, left, lane);
        const bool renewed = softmax_step<P::KEYS>(a.s, a.state, p.scale, factor);
        // The compiler would wait first and take the exponentials then. Sums are never negative, which it
        // does not know. Heads of 128 columns are faster without.
        if (P::DIM > 128 && a.state.sum[0] + a.state.sum[1] < 0.0f)
            asm volatile("nanosleep.u32 0;" ::: "memory");
        wgmma_wait<0>();
        pin_registers(a.o);
        if (renewed) scale_rows(a.o, factor);
        sums_to_left<T, P::KEYS>(a.w, a.s);
    }

    // A stage, whose scores are there, and scores of the next one. first, LAST: of the part.
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
            this->add_scores(a, after_at);
            wgmma_commit();
        }
        this->add_values(a, at);
        wgmma_commit();
        pass_turn();
        if (!LAST) {
            wgmma_wait<1>();
            pin_registers(a.s);
            this->release(block.empty(2 * after_at));
        } else {
            wgmma_wait<0>();
            pin_registers(a.o);
            this->release(block.empty(2 * at + 1));
        }
        stage = after;
    }

    // The first scores of a part.
    __device__ __forceinline__ void begin()
    {
        const int at = this->uniform(stage.at);
        this->wait_first_keys(at);
        if constexpr (!P::Q_SHARED) {
            this->load_queries(a, 0);
            this->release_queries();
        }
        wait_turn();
        this->begin_scores(a, at);
        pass_turn();
        wgmma_wait<0>();
        pin_registers(a.s);
        this->release(block.empty(2 * at));
    }

    __device__ __forceinline__ void attend(const attention_part &part)
    {
        const int keys = part.tile.w;
        this->clear(a, 0, part);
        if (keys > 0) {
            begin();
            int left = keys;
            for (; left > P::KEYS; left -= P::KEYS)
                attend_stage<false>(left, left == keys);
            attend_stage<true>(left, left == keys);
            if constexpr (P::Q_SHARED) this->release_queries();
        }
        this->store(a, keys > 0);
    }

    __device__ __forceinline__ void run()
    {
        if (group == P::GROUPS - 1) pass_turn();
        attention_for_parts<P>(p, [&](const attention_part &part) { attend(part); });
    }
};

template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::blocks)
    attention_sm90_kernel(const __grid_constant__ typename P::params p)
{
    extern __shared__ char unaligned[];
    attention_clear_rest<T>(p);
    attention_sm90_block<P> block;
    block.base = ((uint32_t)__cvta_generic_to_shared(unaligned) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        for (int i = 0; i < P::Q_BUFFERS; ++i)
            barrier_init(block.q_empty(i), 128 * P::GROUPS);
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
        typedef std::conditional_t<
            P::HALVES == 2, attention_halves<P, T>,
            std::conditional_t<P::FOUR, attention_four<P, T>, attention_ahead<P, T>>>
            attending;
        attending group(p, block, warp);
        group.run();
    }
}

} // namespace spops

#endif
