// SPDX-License-Identifier: Apache-2.0
// Attention within patches for sm_90a: o = softmax(scale q k^T) v of rows that are gathered from
// wherever they lie. f16 or bf16, products in wgmma, sums and softmax in f32.
//
// One block, persistent: an item is a tile of 64 * GROUPS queries of a patch and the heads of a
// line. A line is 128 bytes of a row: 4 heads of 16, 2 of 32, one of 64; a head of 128 is two.
//
//     warps           role
//     4 * GROUPS      attend: a warpgroup to each 64 queries
//     4               gather: rows of q once an item, then k and v in stages of KEYS rows, by
//                     copies of 16 bytes (cp.async) into swizzled lines
//
// A warpgroup has its queries in registers, as the left operand of s = q k^T; the weights of keys
// are the left operand of o += w v in the registers where the first product left them.
//
// It takes rows whose heads are 16-byte pieces (of less than 64 columns: that follow each other),
// positive scales, no bias and no rotary embedding.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_CUH

#include "kernels/attention/attention_common.cuh"
#include "kernels/attention/attention_wgmma.cuh"

namespace spops
{

// ORDER   how a warpgroup's products follow each other: step n is scores s(n) = q k^T of a stage and
//         head, softmax, and values o += w(n) v
//     0   w(n) v, then s(n + 1), then softmax
//     1   the same, but both products are begun at once
//     2   s(n + 1) and w(n) v at once, softmax of n + 1 while w(n) v runs
// TURN    when the next warpgroup may begin its products, so that softmax of one runs beside
//         products of another: 0 at any time; 1 when they are begun; 2 when they are there
template <int DIM_, int GROUPS_, int KEYS_, int STAGES_, int BLOCKS_, int ORDER_,
          bool Q_SHARED_ = false, int TURN_ = 0>
struct attention_sm90_policy {
    static constexpr int DIM = DIM_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_, ORDER = ORDER_, TURN = TURN_;
    static constexpr bool Q_SHARED = Q_SHARED_;                     // queries stay in shared memory
    static constexpr int HEADS = DIM == 16 ? 4 : DIM == 32 ? 2 : 1; // of an item
    static constexpr int CHUNKS = DIM > 64 ? 2 : 1;                 // lines a row
    static constexpr int STEPS = DIM / 16;                          // of 16 columns
    static_assert(DIM % 16 == 0 && DIM <= 128, "whole steps");
    static constexpr int queries = 64 * GROUPS;
    static constexpr int gather_warps = 4;
    static constexpr int threads = 128 * GROUPS + 32 * gather_warps;
    static constexpr int q_bytes = queries * 128 * CHUNKS, k_bytes = KEYS * 128 * CHUNKS;
    static constexpr int SLOTS = 2 * STAGES; // of k and v by turns
    static constexpr int LAG = STAGES > 2 ? 4 : 2;
    static constexpr int shared_bytes = 1024 + q_bytes + SLOTS * k_bytes + 8 + 16 * SLOTS;
    // Registers: at launch, of those that gather and those that attend.
    static constexpr int registers = 65536 / BLOCKS / threads / 8 * 8;
    static constexpr int gather_registers = 32;
    static constexpr int wanted_registers =
        (registers * threads - gather_registers * 128) / (128 * GROUPS) / 8 * 8;
    static constexpr int attend_registers = wanted_registers > 240 ? 240 : wanted_registers;
};

// Addresses of shared memory. Slot 2 i is k of stage i, slot 2 i + 1 is v. The queries of an item
// are there when its first slot is.
template <class P> struct attention_sm90_block {
    uint32_t base;

    __device__ uint32_t q() const { return base; }
    __device__ uint32_t slot(int i) const { return base + P::q_bytes + i * P::k_bytes; }
    __device__ uint32_t q_empty() const { return slot(P::SLOTS); }
    __device__ uint32_t full(int i) const { return q_empty() + 8 + 8 * i; }
    __device__ uint32_t empty(int i) const { return full(P::SLOTS + i); }
};

template <class P> __device__ __forceinline__ int attention_head_groups(const attention_params &p)
{
    return (p.heads + P::HEADS - 1) / P::HEADS;
}

__device__ __forceinline__ int4 attention_tile(const attention_params &p, int item, int items,
                                               int head_groups)
{
    return item < items ? __ldg(p.tiles + item / head_groups) : make_int4(0, 0, 0, 0);
}

// ---- Gathering ----------------------------------------------------------------------------------

// One warp copies COUNT rows, whose numbers lanes hold (row i: lane i % 32 of rows[i / 32]; -1: a
// line of zeros), from line `first` of a block of `lines` lines on. 8 lanes to a row.
template <int COUNT, int CHUNKS>
__device__ __forceinline__ void gather_rows(uint32_t to, int first, int lines,
                                            const unsigned char *from, int64_t stride, int bytes,
                                            const int *rows, int lane)
{
    const int piece = lane % 8;
#pragma unroll 4
    for (int i = 0; i < COUNT / 4; ++i) {
        const int line = 4 * i + lane / 8;
        const int row =
            __shfl_sync(~0u, COUNT > 32 && i >= 8 ? rows[COUNT / 33] : rows[0], line % 32);
        const unsigned char *const at =
            from + (uint64_t)(uint32_t)max(row, 0) * stride + piece * 16;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
            copy_async_if(to + (c * lines + first + line) * 128 +
                              ((piece ^ (first + line) % 8) << 4),
                          at + c * 128, row >= 0 && c * 128 + piece * 16 < bytes);
    }
}

// What a thread has copied is announced by that thread when it is there, behind a fence, so that
// those who multiply need none: LAG slots after it was begun, or before the thread has to wait.
template <class P> struct attention_announcer {
    const attention_sm90_block<P> &block;
    int next = 0, pending = 0; // slots

    __device__ explicit attention_announcer(const attention_sm90_block<P> &b) : block(b) {}

    __device__ __forceinline__ void tell()
    {
        barrier_arrive(block.full(next));
        next = next + 1 == P::SLOTS ? 0 : next + 1;
        --pending;
    }
    __device__ __forceinline__ void slot_begun()
    {
        copy_async_commit();
        if (++pending > P::LAG) {
            copy_async_wait<P::LAG>();
            fence_for_wgmma();
            tell();
        }
    }
    __device__ __forceinline__ void tell_all()
    {
        copy_async_wait_all();
        fence_for_wgmma();
        while (pending > 0)
            tell();
    }
    __device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity)
    {
        if (!barrier_passed(barrier, parity)) {
            tell_all();
            barrier_wait(barrier, parity);
        }
        __syncwarp();
    }
};

template <class P>
__device__ void attention_gather(const attention_params &p, const attention_sm90_block<P> &block,
                                 int warp, int lane)
{
    constexpr int q_share = P::queries / P::gather_warps, k_share = P::KEYS / P::gather_warps;
    static_assert(k_share <= 32 && k_share % 4 == 0, "a lane knows one row of a stage");
    const int head_groups = attention_head_groups<P>(p), items = *p.num_tiles * head_groups;
    attention_announcer<P> copies(block);
    ring_position<P::STAGES> stage;
    uint32_t round = 0; // of q
    int4 next = attention_tile(p, blockIdx.x, items, head_groups);
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int4 tile = next;
        next = attention_tile(p, item + gridDim.x, items, head_groups);
        if (tile.w == 0) continue;
        const int head = item % head_groups * P::HEADS; // the first
        const int bytes = min(P::HEADS, p.heads - head) * P::DIM * 2;
        const int *const k_rows = p.k_rows + __ldg(p.k_offsets + tile.x);
        int q_rows[(q_share + 31) / 32];
#pragma unroll
        for (int i = 0; i < (q_share + 31) / 32; ++i) {
            const int at = warp * q_share + i * 32 + lane;
            q_rows[i] = at < tile.z ? __ldg(p.q_rows + tile.y + at) : -1;
        }
        const int my_key = warp * k_share + lane % k_share;
        int row = my_key < tile.w ? __ldg(k_rows + my_key) : -1;
        copies.wait_for(block.q_empty(), round & 1 ^ 1);
        ++round;
        gather_rows<q_share, P::CHUNKS>(block.q(), warp * q_share, P::queries, p.q.of_head(head),
                                        p.q.row, bytes, q_rows, lane);
        for (int key = 0; key < tile.w; key += P::KEYS) {
            const int key_row[1] = {row};
            const int after = key + P::KEYS + my_key, slot = 2 * stage.at;
            row = after < tile.w ? __ldg(k_rows + after) : -1;
            copies.wait_for(block.empty(slot), stage.empty_parity());
            gather_rows<k_share, P::CHUNKS>(block.slot(slot), warp * k_share, P::KEYS,
                                            p.k.of_head(head), p.k.row, bytes, key_row, lane);
            copies.slot_begun();
            copies.wait_for(block.empty(slot + 1), stage.empty_parity());
            gather_rows<k_share, P::CHUNKS>(block.slot(slot + 1), warp * k_share, P::KEYS,
                                            p.v.of_head(head), p.v.row, bytes, key_row, lane);
            copies.slot_begun();
            stage.advance();
        }
    }
    copies.tell_all();
}

// ---- Attending ----------------------------------------------------------------------------------

template <class T> struct wgmma_number; // what hopper.cuh calls T
template <> struct wgmma_number<f16> {
    typedef __half type;
};
template <> struct wgmma_number<bf16> {
    typedef __nv_bfloat16 type;
};

// One warpgroup.
template <class P, class T> struct attention_group {
    typedef typename wgmma_number<T>::type N;
    static constexpr int last_head = P::HEADS - 1;

    const attention_params &p;
    const attention_sm90_block<P> &block;
    const int group, lane, warp; // warp of the group
    ring_position<P::STAGES> stage;
    uint32_t round = 0;

    uint32_t q[P::Q_SHARED ? 1 : P::HEADS * P::STEPS][4];
    float o[P::HEADS][P::DIM / 2], s[P::KEYS / 2];
    uint32_t w[P::KEYS / 16][4];
    softmax_state state[P::HEADS];

    __device__ attention_group(const attention_params &params, const attention_sm90_block<P> &b,
                               int warp_of_block)
        : p(params), block(b), group(warp_of_block / 4), lane(threadIdx.x % 32),
          warp(warp_of_block % 4)
    {
    }

    __device__ __forceinline__ void wait_turn() const
    {
        if (P::TURN > 0) asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
    }
    __device__ __forceinline__ void pass_turn() const
    {
        if (P::TURN > 0)
            asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1) % P::GROUPS) : "memory");
    }
    // The warps of the group do so one by one.
    __device__ __forceinline__ void release(uint32_t barrier) const
    {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
    }

    __device__ __forceinline__ void load_queries()
    {
        const int line = group * 64 + warp * 16 + lane % 16;
#pragma unroll
        for (int i = 0; i < P::HEADS * P::STEPS; ++i)
            load_matrices(q[i], block.q() + i / 4 * P::queries * 128 + line * 128 +
                                    (((i % 4 * 2 + lane / 16) ^ line % 8) << 4));
    }

    __device__ __forceinline__ void begin_scores(int head, int at)
    {
        const uint64_t form = descriptor(SWIZZLE_128, 0, 1024);
        const uint32_t k = block.slot(2 * at);
#pragma unroll
        for (int i = 0; i < P::STEPS; ++i) {
            const int n = head * P::STEPS + i;
            const uint64_t right = at_address(form, k + n / 4 * P::KEYS * 128 + n % 4 * 32);
            if constexpr (P::Q_SHARED)
                wgmma<N, P::KEYS, ALONG_K, ALONG_K>::run(
                    s,
                    at_address(form, block.q() + group * 64 * 128 + n / 4 * P::queries * 128 +
                                         n % 4 * 32),
                    right, i > 0);
            else
                wgmma_left<N, P::KEYS, ALONG_K>::run(s, q[n], right, i > 0);
        }
        wgmma_commit();
    }

    __device__ __forceinline__ void begin_values(int head, int at)
    {
        const uint64_t form = descriptor(SWIZZLE_128, P::KEYS * 128, 1024);
        const uint32_t v = block.slot(2 * at + 1) + head * P::DIM * 2;
#pragma unroll
        for (int i = 0; i < P::KEYS / 16; ++i)
            wgmma_left<N, P::DIM, ACROSS_K>::run(o[head], w[i], at_address(form, v + i * 2048), 1);
        wgmma_commit();
    }

    // In order 2 values of the head before may still run. LAST: only `left` keys count.
    template <bool LAST> __device__ __forceinline__ void softmax(int head, int left)
    {
        float factor[2];
        if (LAST) mask_logits<P::KEYS>(s, left, lane);
        const bool renewed = softmax_step<P::KEYS>(s, state[head], p.scale, factor);
        if (P::ORDER == 2) {
            wgmma_wait<0>();
            pin_registers(o[head == 0 ? last_head : head - 1]);
        }
        if (renewed) scale_rows(o[head], factor);
        sums_to_left<T, P::KEYS>(w, s);
    }

    // The steps of a stage, whose first scores are there, up to the next stage's first scores; of
    // the item's last stage, up to the last values.
    template <bool LAST> __device__ __forceinline__ void attend_stage(int left, bool first)
    {
        ring_position<P::STAGES> after = stage;
        after.advance();
#pragma unroll
        for (int h = 0; h < P::HEADS; ++h) {
            const bool more = h < last_head || !LAST;
            const int next_head = h < last_head ? h + 1 : 0;
            const int next_at = h < last_head ? stage.at : after.at;
            softmax<LAST>(h, left);
            if (P::ORDER == 2 && h == 0 && !first)
                release(block.empty(2 * (stage.at == 0 ? P::STAGES - 1 : stage.at - 1) + 1));
            if (h == 0) barrier_wait(block.full(2 * stage.at + 1), stage.full_parity());
            if (h == last_head && more) barrier_wait(block.full(2 * after.at), after.full_parity());
            wait_turn();
            if (P::ORDER == 2 && more) {
                wgmma_fence();
                begin_scores(next_head, next_at);
            }
            wgmma_fence();
            begin_values(h, stage.at);
            if (P::ORDER == 0 && more) {
                wgmma_wait<0>();
                pin_registers(o[h]);
            }
            if (P::ORDER != 2 && more) {
                wgmma_fence();
                begin_scores(next_head, next_at);
            }
            if (P::TURN == 1) pass_turn();
            if (P::ORDER == 2 && more) {
                wgmma_wait<1>();
            } else {
                wgmma_wait<0>();
                pin_registers(o[h]);
            }
            if (more) pin_registers(s);
            if (P::TURN == 2) pass_turn();
            if (more && next_head == last_head) release(block.empty(2 * next_at));
            if ((P::ORDER != 2 || LAST) && h == last_head) release(block.empty(2 * stage.at + 1));
        }
        stage = after;
    }

    // All keys of the item, of which there is one.
    __device__ __forceinline__ void attend(int num_keys)
    {
        barrier_wait(block.full(2 * stage.at), stage.full_parity());
        if constexpr (!P::Q_SHARED) {
            load_queries();
            release(block.q_empty());
        }
        wait_turn();
        wgmma_fence();
        begin_scores(0, stage.at);
        if (P::TURN == 1) pass_turn();
        wgmma_wait<0>();
        pin_registers(s);
        if (P::TURN == 2) pass_turn();
        if (P::HEADS == 1) release(block.empty(2 * stage.at));
        int left = num_keys;
        for (; left > P::KEYS; left -= P::KEYS)
            attend_stage<false>(left, left == num_keys);
        attend_stage<true>(left, left == num_keys);
        if (P::Q_SHARED) release(block.q_empty());
    }

    __device__ __forceinline__ void run()
    {
        const int head_groups = attention_head_groups<P>(p), items = *p.num_tiles * head_groups;
        int4 next = attention_tile(p, blockIdx.x, items, head_groups);
        if (group == P::GROUPS - 1) pass_turn();
        for (int item = blockIdx.x; item < items; item += gridDim.x) {
            const int4 tile = next;
            next = attention_tile(p, item + gridDim.x, items, head_groups);
            const int first_head = item % head_groups * P::HEADS;
            int out_row[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int at = group * 64 + warp * 16 + h * 8 + lane / 4;
                out_row[h] = at < tile.z ? __ldg(p.q_rows + tile.y + at) : -1;
            }
#pragma unroll
            for (int h = 0; h < P::HEADS; ++h) {
                state[h] = softmax_begin();
#pragma unroll
                for (int i = 0; i < P::DIM / 2; ++i)
                    o[h][i] = 0.0f;
            }
            if (tile.w > 0) attend(tile.w);
#pragma unroll
            for (int h = 0; h < P::HEADS; ++h)
                if (first_head + h < p.heads)
                    attention_store<T, P::DIM>(p, first_head + h, out_row, o[h], state[h], p.scale,
                                               tile.w > 0, lane);
        }
    }
};

template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::BLOCKS)
    attention_sm90_kernel(const __grid_constant__ attention_params p)
{
    extern __shared__ char unaligned[];
    attention_clear_rest<T>(p);
    attention_sm90_block<P> block;
    block.base = ((uint32_t)__cvta_generic_to_shared(unaligned) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        barrier_init(block.q_empty(), 4 * P::GROUPS);
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
        attention_group<P, T> group(p, block, warp);
        group.run();
    }
}

} // namespace spops

#endif
