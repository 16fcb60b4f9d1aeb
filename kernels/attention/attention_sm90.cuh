// SPDX-License-Identifier: Apache-2.0
// Attention within patches for sm_90a: o = softmax(scale q k^T) v of rows that are gathered from
// wherever they lie. f16 or bf16, products in wgmma, sums and softmax in f32.
//
// One block, persistent: an item is a tile of queries of a patch and the heads of a line. A line is
// 128 bytes of a row: 4 heads of 16, 2 of 32, one of 48 or 64; a head of 96 or 128 is two, of 256 four.
//
//     warps           role
//     4 * GROUPS      attend (attention_sm90_attend.cuh)
//     4               gather: rows of q once an item, then k and v in stages of KEYS rows, by
//                     copies of 16 bytes (cp.async) into swizzled lines
//
// A head's size must be a multiple of 16 bytes; heads narrower than 48 columns must be contiguous, and
// as many of k and v as of q. The
// scale must be positive, and there is no bias. Rows with rotary positions come rotated already.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_CUH

#include "kernels/attention/attention_common.cuh"
#include "kernels/attention/attention_wgmma.cuh"

namespace spops
{

// GROUPS warpgroups that attend, of HALVES times 64 queries each.
template <int DIM_, int GROUPS_, int KEYS_, int STAGES_> struct attention_sm90_policy {
    static constexpr int DIM = DIM_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr int HALVES = DIM <= 64 ? 2 : 1;
    static constexpr int HEADS = DIM == 16 ? 4 : DIM == 32 ? 2 : 1; // of an item
    static constexpr int CHUNKS = (DIM + 63) / 64;                  // lines a row
    static constexpr bool Q_SHARED = DIM > 128; // queries are left operands from shared memory
    static constexpr int STEPS = DIM / 16;      // of 16 columns
    static_assert(DIM % 16 == 0 && DIM <= 256, "whole steps");
    static constexpr int own = 64 * HALVES, queries = own * GROUPS, TILES = queries / 128;
    static_assert(queries == 128 || queries == 256, "one tile of the plan, or two");
    static constexpr int gather_warps = 4;
    static constexpr int threads = 128 * GROUPS + 32 * gather_warps;
    static constexpr int q_bytes = queries * 128 * CHUNKS, k_bytes = KEYS * 128 * CHUNKS;
    static constexpr int SLOTS = 2 * STAGES; // of k and v by turns
    static constexpr int shared_bytes = 1024 + q_bytes + SLOTS * k_bytes + 8 + 16 * SLOTS;
    static constexpr int blocks = GROUPS == 1 ? 2 : 1; // of a multiprocessor
    // Registers at launch, of those that gather and of those that attend.
    static constexpr int registers = 65536 / blocks / threads / 8 * 8;
    static constexpr int gather_registers = GROUPS == 1 ? 24 : 40;
    static constexpr int attend_registers =
        (registers * threads - gather_registers * 128) / (128 * GROUPS) / 8 * 8;
    static_assert(attend_registers <= 240, "a warpgroup's limit");
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

// What a block does at a time: heads of a tile of the plan; where a block has queries of two tiles,
// of two that follow each other in the list, which are one where they are of one patch.
struct attention_item {
    int4 tile, other; // without queries: none
};

template <class P>
__device__ __forceinline__ attention_item attention_load_item(const attention_params &p, int item,
                                                              int items, int head_groups)
{
    const int4 none = make_int4(0, 0, 0, 0);
    attention_item found = {none, none};
    if (item >= items) return found;
    const int at = item / head_groups * P::TILES;
    found.tile = __ldg(p.tiles + at);
    if (P::TILES == 2 && at + 1 < *p.num_tiles) found.other = __ldg(p.tiles + at + 1);
    return found;
}

// The next part; false: there is none.
__device__ __forceinline__ bool attention_take_part(attention_item &item, int4 &tile)
{
    tile = item.tile;
    if (tile.z == 0) return false;
    if (item.other.z > 0 && item.other.x == tile.x) {
        tile.z += item.other.z;
        item.other.z = 0;
    }
    item.tile = item.other;
    item.other.z = 0;
    return true;
}

// Calls f(tile, its first head) for each part of what this block does.
template <class P, class F>
__device__ __forceinline__ void attention_for_parts(const attention_params &p, const F &f)
{
    const int head_groups = (p.heads + P::HEADS - 1) / P::HEADS;
    const int items = (*p.num_tiles + P::TILES - 1) / P::TILES * head_groups;
    attention_item next = attention_load_item<P>(p, blockIdx.x, items, head_groups);
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
        attention_item item = next;
        next = attention_load_item<P>(p, i + gridDim.x, items, head_groups);
        for (int4 tile; attention_take_part(item, tile);)
            f(tile, i % head_groups * P::HEADS);
    }
}

// ---- Gathering ----------------------------------------------------------------------------------

// One warp copies COUNT rows, whose numbers lanes hold (row i: lane i % 32 of rows[i / 32]) and of
// which `num` are there, to lines from `first` on of a matrix of `lines`; other lines become zeros.
// 8 lanes to a row.
template <int COUNT, int CHUNKS>
__device__ __forceinline__ void gather_rows(uint32_t to, int first, int lines,
                                            const unsigned char *from, uint32_t stride, int bytes,
                                            const int (&rows)[(COUNT + 31) / 32], int num, int lane)
{
    static_assert(COUNT % 8 == 0, "swizzled by 8 lines");
    const int piece = lane % 8, line = lane / 8;
    const uint32_t place = to + (first + line) * 128 + ((piece ^ line) << 4);
    const unsigned char *const at = from + piece * 16;
#pragma unroll
    for (int block = 0; block < (COUNT + 31) / 32; ++block) {
        constexpr int most = 8;
        const int steps = COUNT / 4 - most * block < most ? COUNT / 4 - most * block : most;
#pragma unroll(CHUNKS == 1 ? 4 : 2)
        for (int i = 0; i < steps; ++i) {
            const uint32_t row = (uint32_t)__shfl_sync(~0u, rows[block], 4 * i + line);
            const unsigned char *const source = at + (uint64_t)row * stride;
            const bool there = 32 * block + 4 * i + line < num;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
                copy_async_if((place ^ i % 2 * 64) + (32 * block + 4 * i + c * lines) * 128,
                              source + c * 128, there && c * 128 + piece * 16 < bytes);
        }
    }
}

// COUNT rows from `first` on of a list of `num`: lane i has rows i, i + 32, ...; any where there are
// none.
template <int COUNT>
__device__ __forceinline__ void name_rows(int (&rows)[(COUNT + 31) / 32], const int *list,
                                          int first, int num, int lane)
{
#pragma unroll
    for (int i = 0; i < (COUNT + 31) / 32; ++i) {
        const int at = first + i * 32 + (COUNT < 32 ? lane % COUNT : lane);
        rows[i] = at < num ? __ldg(list + at) : 0;
    }
}

template <class P>
__device__ void attention_gather(const attention_params &p, const attention_sm90_block<P> &block,
                                 int warp, int lane)
{
    constexpr int q_share = P::queries / P::gather_warps, k_share = P::KEYS / P::gather_warps;
    ring_position<P::STAGES> stage;
    uint32_t round = 0; // of q
    attention_for_parts<P>(p, [&](const int4 &tile, int head) {
        if (tile.w == 0) return;
        const int bytes = min(P::HEADS, p.heads - head) * P::DIM * 2;
        const int kv_head = P::HEADS == 1 ? head / p.group : head;
        const int *const k_list = p.k_rows + __ldg(p.k_offsets + tile.x);
        int q_rows[(q_share + 31) / 32], k_rows[(k_share + 31) / 32];
        name_rows<q_share>(q_rows, p.q_rows + tile.y, warp * q_share, tile.z, lane);
        name_rows<k_share>(k_rows, k_list, warp * k_share, tile.w, lane);
        barrier_wait(block.q_empty(), round & 1 ^ 1);
        ++round;
        gather_rows<q_share, P::CHUNKS>(block.q(), warp * q_share, P::queries, p.q.of_head(head),
                                        (uint32_t)p.q.row, bytes, q_rows, tile.z - warp * q_share,
                                        lane);
        for (int key = 0; key < tile.w; key += P::KEYS) {
            const int slot = 2 * stage.at, left = tile.w - key - warp * k_share;
            int now[(k_share + 31) / 32];
#pragma unroll
            for (int i = 0; i < (k_share + 31) / 32; ++i)
                now[i] = k_rows[i];
            name_rows<k_share>(k_rows, k_list, key + P::KEYS + warp * k_share, tile.w, lane);
            barrier_wait(block.empty(slot), stage.empty_parity());
            gather_rows<k_share, P::CHUNKS>(block.slot(slot), warp * k_share, P::KEYS,
                                            p.k.of_head(kv_head), (uint32_t)p.k.row, bytes, now,
                                            left, lane);
            barrier_arrive_copies(block.full(slot)); // also for the queries
            barrier_wait(block.empty(slot + 1), stage.empty_parity());
            gather_rows<k_share, P::CHUNKS>(block.slot(slot + 1), warp * k_share, P::KEYS,
                                            p.v.of_head(kv_head), (uint32_t)p.v.row, bytes, now,
                                            left, lane);
            barrier_arrive_copies(block.full(slot + 1));
            stage.advance();
        }
    });
    copy_async_wait_all();
}

} // namespace spops

#endif
