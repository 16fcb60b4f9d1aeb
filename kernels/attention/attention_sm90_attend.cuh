// SPDX-License-Identifier: Apache-2.0
// The warpgroups of attention_sm90.cuh that attend, and its kernel.
//
// A step is scores s = q k^T of 64 queries, a head and the keys of a stage, softmax, and values
// o += w v. Queries and weights are left operands in registers, weights where scores were, but queries of
// more than 64 columns in shared memory. Products run beside softmax:
//
//     attention_halves    a warpgroup has two halves of 64 queries by turns. While values of one, and
//                         scores of its next step, are multiplied, weights of the other are made
//     attention_ahead     one half, whose o takes the registers of two: scores of the next step and
//                         values of this one are begun at once, and softmax of the next step runs
//                         beside the values. Warpgroups begin products one after the other
//
// Steps of a part follow those of the part before as its own do: scores of the next part's first step begin
// beside the last values of this one, and rows of o are stored while products of the next part, or of the
// other warpgroup, run.
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
    int out_row[2];  // -1: none
    int head, heads; // unless parts come in turn: where the part's heads begin, and how many it has
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

    __device__ __forceinline__ int first_row(int number) const
    {
        return (P::SPLIT ? 0 : group * P::own) + number * 64 + warp * 16;
    }

    // Of a line, the first head of this warpgroup.
    __device__ __forceinline__ int head_of_line(const attention_part &part) const
    {
        if (!P::SPLIT) return 0;
        return part.pair < 0 ? group * P::HEADS : part.pair * P::GROUPS + group;
    }
    __device__ __forceinline__ static int heads_of(const attention_part &part)
    {
        return P::SPLIT && part.pair >= 0 ? 1 : P::HEADS;
    }

    __device__ __forceinline__ void clear(half &x, int number, const attention_part &part) const
    {
        if (!P::IN_TURN) {
            x.head = part.head + head_of_line(part);
            x.heads = min(heads_of(part), p.heads - x.head);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = first_row(number) + h * 8 + lane / 4;
            x.out_row[h] = at < part.tile.z ? __ldg(p.q_rows + part.tile.y + at) : -1;
        }
#pragma unroll
        for (int h = 0; h < P::HEADS; ++h) {
            x.state[h] = softmax_begin();
#pragma unroll
            for (int i = 0; i < P::DIM / 2; ++i)
                x.o[h][i] = 0.0f;
        }
    }

    __device__ __forceinline__ void load_queries(half &x, int number,
                                                 const attention_part &part) const
    {
        const int line = first_row(number) + lane % 16, first = head_of_line(part) * P::STEPS;
#pragma unroll
        for (int i = 0; i < P::HEADS * P::STEPS; ++i) {
            // Of the line. A head that half an item lacks has any steps of it.
            const int step = first + i, chunk = P::PAIR ? step / 4 : 0;
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

    // first: the first head of the part, which a half of parts in turn does not hold. Those rows go by
    // words: with pieces, or heads held, the registers of the loop over stages fall otherwise, and it was 3
    // to 5 % slower (H100, 64 columns, 120 patches of 1,024 rows: 0.614 ms, 0.597; 30 of 4,096: 2.135, 2.05).
    __device__ __forceinline__ void store(const half &x, bool has_keys, int first = 0) const
    {
        if constexpr (P::IN_TURN)
            store_words(x, first, has_keys);
        else
            store_pieces(x, has_keys);
    }

    // Rows of o by 4 bytes a lane.
    __device__ __forceinline__ void store_words(const half &x, int first, bool has_keys) const
    {
#pragma unroll
        for (int n = 0; n < P::HEADS; ++n) {
            const int head = first + n;
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

    // Rows of o by 16 bytes a lane, or by 4 where they do not begin at 16 bytes.
    __device__ __forceinline__ void store_pieces(const half &x, bool has_keys) const
    {
        constexpr int words = P::DIM / 8, all = P::HEADS * words; // of a lane and row
        float inverse[2][P::HEADS];
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int n = 0; n < P::HEADS; ++n) {
                float sum = x.state[n].sum[h];
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                inverse[h][n] = has_keys ? 1.0f / sum : 0.0f;
                if (p.lse != nullptr && lane % 4 == 0 && x.out_row[h] >= 0 && n < x.heads)
                    p.lse[(int64_t)x.out_row[h] * p.heads + x.head + n] =
                        has_keys
                            ? (softmax_base(x.state[n].top[h], p.scale) + log2f(sum)) * log_of_2
                            : -INFINITY;
            }
#pragma unroll
        for (int g = 0; g < 2 * all; g += 4) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = (g + i) / all, n = (g + i) % all / words, j = (g + i) % words;
                word[i] = pack2<T>(x.o[n][4 * j + 2 * h] * inverse[h][n],
                                   x.o[n][4 * j + 2 * h + 1] * inverse[h][n]);
            }
            if (p.wide_o) {
                turn_words(word);
                const int at = g + lane % 4, n = at % all / words;
                const int64_t row = at < all ? x.out_row[0] : x.out_row[1];
                if (row >= 0 && n < x.heads)
                    *reinterpret_cast<uint4 *>(p.o.of_head(x.head + n) + row * p.o.row +
                                               at % words * 16) =
                        make_uint4(word[0], word[1], word[2], word[3]);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int h = (g + i) / all, n = (g + i) % all / words, j = (g + i) % words;
                const int64_t row = x.out_row[h];
                if (row >= 0 && n < x.heads)
                    reinterpret_cast<uint32_t *>(p.o.of_head(x.head + n) +
                                                 row * p.o.row)[4 * j + lane % 4] = word[i];
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

    // Of a warpgroup's first head, in lines of a slot.
    __device__ __forceinline__ static int place_of(int from)
    {
        return P::PAIR ? from * P::KEYS * 128 : P::SPLIT ? from * P::DIM * 2 : 0;
    }

    // Of a head, with the k of a stage. from: the warpgroup's first head in the line.
    __device__ __forceinline__ void add_scores(half &x, int head, int at, int from) const
    {
        const uint64_t k =
            at_address(descriptor(SWIZZLE_128, 0, 1024), block.slot(2 * at) + place_of(from));
        uint64_t left = 0;
        if (P::Q_SHARED)
            left = at_address(descriptor(SWIZZLE_128, 0, 1024),
                              block.q(uniform(q.at)) + group * P::own * 128);
#pragma unroll
        for (int i = 0; i < P::STEPS; ++i) {
            const int n = head * P::STEPS + i;
            const uint64_t right = k + ((n / 4 * P::KEYS * 128 + n % 4 * 32) >> 4);
            if constexpr (P::Q_SHARED)
                wgmma<N, P::KEYS, ALONG_K, ALONG_K>::run(
                    x.s, left + ((n / 4 * P::queries * 128 + n % 4 * 32) >> 4), right, i > 0);
            else
                wgmma_left<N, P::KEYS, ALONG_K>::run(x.s, x.q[n], right, i > 0);
        }
    }

    __device__ __forceinline__ void add_values(half &x, int head, int at, int from) const
    {
        const uint64_t v = at_address(descriptor(SWIZZLE_128, P::KEYS * 128, 1024),
                                      block.slot(2 * at + 1) + place_of(from));
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
    __device__ __forceinline__ void begin_products(half &x, int head, int at, int from,
                                                   int next_head, int next_at, int next_from) const
    {
        wgmma_fence();
        this->add_values(x, head, at, from);
        if (MORE) this->add_scores(x, next_head, next_at, next_from);
        wgmma_commit();
    }

    // The steps of a stage, HEADS of them, and scores of the next one. Scores of a and b are there, and
    // weights of a. first: of the part. AFTER is OF_PART, but in the part's last stage, which stores rows.
    template <int HEADS, attention_scores AFTER>
    __device__ __forceinline__ void attend_stage(const attention_part &part, int left, bool first,
                                                 const attention_part &next)
    {
        ring_position<P::STAGES> after = stage;
        after.advance();
        const int at = this->uniform(stage.at), after_at = this->uniform(after.at);
        const int from = this->head_of_line(part), next_from = this->head_of_line(next);
        this->wait_slot(2 * at + 1, stage.full_parity());
        if (AFTER != NO_SCORES) this->wait_slot(2 * after_at, after.full_parity());
        fence_for_wgmma();
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const bool ends = h == HEADS - 1, last = ends && AFTER != OF_PART;
            constexpr bool more = true, none = false;
            const int next_head = ends ? 0 : h + 1, next_at = ends ? after_at : at;
            const int then_from = last ? next_from : from;
            if (last && AFTER == OF_NEXT) this->load_queries(a, 0, next);
            if (last && AFTER == NO_SCORES)
                begin_products<none>(a, h, at, from, 0, 0, 0);
            else
                begin_products<more>(a, h, at, from, next_head, next_at, then_from);
            make_weights(b, h, left, first);
            wgmma_wait<0>();
            pin_registers(a.o[h]);
            pin_registers(a.s);
            if (last && AFTER == NO_SCORES) {
                begin_products<none>(b, h, at, from, 0, 0, 0);
                this->store(a, true, part.head);
            } else {
                if (last) {
                    this->load_queries(b, 1, next);
                    this->release_queries();
                }
                begin_products<more>(b, h, at, from, next_head, next_at, then_from);
                if (last) {
                    this->store(a, true, part.head);
                    this->clear(a, 0, next);
                }
                make_weights(a, next_head, last ? next.tile.w : (ends ? left - P::KEYS : left),
                             last || (!ends && first));
            }
            wgmma_wait<0>();
            pin_registers(b.o[h]);
            pin_registers(b.s);
            if (!(last && AFTER == NO_SCORES) &&
                (last ? base::heads_of(next) == 1 : next_head == HEADS - 1))
                this->release(block.empty(2 * next_at));
        }
        this->release(block.empty(2 * at + 1));
        stage = after;
        if (AFTER != OF_PART) this->store(b, true, part.head);
        if (AFTER == OF_NEXT) this->clear(b, 1, next);
    }

    // A part, whose first scores are there, and weights of a, until the same is true of the next one. False:
    // there is none.
    template <int HEADS>
    __device__ __forceinline__ bool attend(attention_walk<P> &walk, attention_part &part)
    {
        const int keys = part.tile.w;
        int left = keys;
        for (; left > P::KEYS; left -= P::KEYS)
            attend_stage<HEADS, OF_PART>(part, left, left == keys, part);
        attention_part next;
        const bool more = this->take(walk, next);
        if (more)
            attend_stage<HEADS, OF_NEXT>(part, left, left == keys, next);
        else
            attend_stage<HEADS, NO_SCORES>(part, left, left == keys, part);
        part = next;
        return more;
    }

    // The first scores of a block, and weights of a.
    __device__ __forceinline__ void begin(const attention_part &part)
    {
        const int at = this->uniform(stage.at), from = this->head_of_line(part);
        if (!P::IN_TURN) {
            this->clear(a, 0, part);
            this->clear(b, 1, part);
        }
        this->wait_slot(2 * at, stage.full_parity());
        fence_for_wgmma();
        this->load_queries(a, 0, part);
        this->load_queries(b, 1, part);
        this->release_queries();
        wgmma_fence();
        this->add_scores(a, 0, at, from);
        wgmma_commit();
        wgmma_wait<0>();
        pin_registers(a.s);
        wgmma_fence();
        this->add_scores(b, 0, at, from);
        wgmma_commit();
        make_weights(a, 0, part.tile.w, true);
        wgmma_wait<0>();
        pin_registers(b.s);
        if (base::heads_of(part) == 1) this->release(block.empty(2 * at));
    }

    // A part alone.
    __device__ __forceinline__ void attend_in_turn(const attention_part &part)
    {
        const int keys = part.tile.w;
        this->clear(a, 0, part);
        this->clear(b, 1, part);
        if (keys == 0) {
            this->store(a, false, part.head);
            this->store(b, false, part.head);
            return;
        }
        begin(part);
        int left = keys;
        for (; left > P::KEYS; left -= P::KEYS)
            attend_stage<P::HEADS, OF_PART>(part, left, left == keys, part);
        attend_stage<P::HEADS, NO_SCORES>(part, left, left == keys, part);
    }

    __device__ __forceinline__ void run()
    {
        if constexpr (P::IN_TURN) {
            attention_for_parts<P>(p, [&](const attention_part &part) { attend_in_turn(part); });
            return;
        }
        attention_walk<P> walk(p);
        attention_part part;
        if (!this->take(walk, part)) return;
        begin(part);
        while (P::SPLIT && part.pair >= 0 ? attend<1>(walk, part) : attend<P::HEADS>(walk, part))
            ;
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
    static_assert(P::HEADS == 1 && P::Q_SHARED, "one head an item");

    typename base::half a;

    __device__ __forceinline__ void wait_turn() const { named_barrier_wait<256>(1 + group); }
    __device__ __forceinline__ void pass_turn() const
    {
        named_barrier_arrive<256>(1 + (group + 1) % P::GROUPS);
    }

    // Values of the step before may still run. FIRST: of the part; those values are of the part before,
    // where there is one, and are then stored. CUT: only `left` keys count.
    template <bool FIRST, bool CUT>
    __device__ __forceinline__ void make_weights(int left, bool has_before,
                                                 const attention_part &part)
    {
        float factor[2];
        softmax_state state = FIRST ? softmax_begin() : a.state[0];
        if (CUT && left < P::KEYS) mask_logits<P::KEYS>(a.s, left, lane);
        const bool renewed = softmax_step<P::KEYS>(a.s, state, p.scale, factor);
        // The compiler would wait first and take the exponentials then. Sums are never negative, which it
        // does not know. Heads of 128 columns are faster without.
        if (P::DIM > 128 && !FIRST && !CUT && state.sum[0] + state.sum[1] < 0.0f)
            asm volatile("nanosleep.u32 0;" ::: "memory");
        wgmma_wait<0>();
        pin_registers(a.o[0]);
        if (FIRST) {
            if (has_before) this->store(a, true);
            this->clear(a, 0, part);
        } else if (renewed) {
            scale_rows(a.o[0], factor);
        }
        a.state[0] = state;
        sums_to_left<T, P::KEYS>(a.w, a.s);
        if (!FIRST || has_before)
            this->release(block.empty(2 * (stage.at == 0 ? P::STAGES - 1 : stage.at - 1) + 1));
    }

    // Values of a stage, whose weights are there, and scores of the next one.
    template <attention_scores AFTER> __device__ __forceinline__ void multiply()
    {
        ring_position<P::STAGES> after = stage;
        after.advance();
        const int at = this->uniform(stage.at), after_at = this->uniform(after.at);
        this->wait_slot(2 * at + 1, stage.full_parity());
        if (AFTER != NO_SCORES) this->wait_slot(2 * after_at, after.full_parity());
        fence_for_wgmma();
        if (AFTER == OF_NEXT) this->release_queries();
        wait_turn();
        wgmma_fence();
        if (AFTER != NO_SCORES) {
            this->add_scores(a, 0, after_at, 0);
            wgmma_commit();
        }
        this->add_values(a, 0, at, 0);
        wgmma_commit();
        pass_turn();
        if (AFTER != NO_SCORES) {
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

    // The first scores of a part that follows none.
    __device__ __forceinline__ void begin()
    {
        const int at = this->uniform(stage.at);
        this->wait_slot(2 * at, stage.full_parity());
        fence_for_wgmma();
        wait_turn();
        wgmma_fence();
        this->add_scores(a, 0, at, 0);
        wgmma_commit();
        pass_turn();
        wgmma_wait<0>();
        pin_registers(a.s);
        this->release(block.empty(2 * at));
    }

    // A part, whose first scores are there, until weights of its last stage are.
    __device__ __forceinline__ void attend(const attention_part &part, bool has_before)
    {
        int left = part.tile.w;
        if (left <= P::KEYS) {
            make_weights<true, true>(left, has_before, part);
            return;
        }
        make_weights<true, false>(left, has_before, part);
        multiply<OF_PART>();
        for (left -= P::KEYS; left > P::KEYS; left -= P::KEYS) {
            make_weights<false, false>(left, true, part);
            multiply<OF_PART>();
        }
        make_weights<false, true>(left, true, part);
    }

    __device__ __forceinline__ void run()
    {
        if (group == P::GROUPS - 1) pass_turn();
        attention_walk<P> walk(p);
        attention_part part;
        if constexpr (!P::JOINS) {
            while (this->take(walk, part)) {
                begin();
                attend(part, false);
                multiply<NO_SCORES>();
                this->release_queries();
                this->store(a, true);
            }
        } else if (this->take(walk, part)) {
            begin();
            attend(part, false);
            while (this->take(walk, part)) {
                multiply<OF_NEXT>();
                attend(part, true);
            }
            multiply<NO_SCORES>();
            this->store(a, true);
        }
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
        if constexpr (P::IN_TURN)
            attention_gather_in_turn<P>(p, block, warp - 4 * P::GROUPS, threadIdx.x % 32);
        else
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
