// SPDX-License-Identifier: Apache-2.0
// Attention within patches for sm_90a: o = softmax(scale q k^T) v of rows that are gathered from
// wherever they lie. f16 or bf16, products in wgmma, sums and softmax in f32.
//
// One block, persistent: an item is a tile of queries of a patch and the heads of a line. A line is
// 128 bytes of a row: 4 heads of 16, 2 of 32, one of 48 or 64; a head of 96 or 128 is two, of 256 four.
// Of 16 columns, each of two warpgroups takes two of the four heads; items of the last round, where they
// are few, have half of them. Where patches have 128 queries or less, items have two heads of 64, one a
// warpgroup.
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
// PAIR: an item has two heads, a line each.
template <int DIM_, int GROUPS_, int KEYS_, int STAGES_, bool PAIR_ = false>
struct attention_sm90_policy {
    static constexpr int DIM = DIM_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr bool PAIR = PAIR_;
    static constexpr int HALVES = DIM <= 64 ? 2 : 1;
    static constexpr int LINE_HEADS = DIM == 16 ? 4 : DIM == 32 || PAIR ? 2 : 1; // of an item
    // Warpgroups have other heads of the same queries, and not other queries.
    static constexpr bool SPLIT = DIM == 16 || PAIR;
    static constexpr int HEADS = SPLIT ? LINE_HEADS / GROUPS : LINE_HEADS; // of a warpgroup
    static constexpr int CHUNKS = PAIR ? 2 : (DIM + 63) / 64;              // lines a row
    static constexpr bool Q_SHARED = DIM > 64; // queries are left operands from shared memory
    static constexpr int Q_BUFFERS = Q_SHARED && DIM <= 128 ? 2 : 1;
    // Steps of a part follow those of the part before, unless parts come in turn. Of 64 columns and two
    // warpgroups the steps of a part were 8 % slower where they may go on with the next one (H200, 30
    // patches of 4,096 rows, 8 heads: 2.25 ms, 2.06), of 32 columns 3 % (H100, 120 patches of 1,024).
    static constexpr bool IN_TURN = (DIM == 64 || DIM == 32) && GROUPS == 2 && !PAIR;
    static constexpr bool JOINS = DIM <= 128 && !IN_TURN;
    // A step begins scores of the next stage and values of its own. Where stages are few, k of the next
    // one is copied before v of this one.
    static constexpr bool KEYS_AHEAD = DIM > 64;
    static constexpr int STEPS = DIM / 16; // of 16 columns
    static_assert(DIM % 16 == 0 && DIM <= 256, "whole steps");
    static constexpr int own = 64 * HALVES, queries = SPLIT ? own : own * GROUPS;
    static constexpr int TILES = queries / 128;
    static_assert(queries == 128 || queries == 256, "one tile of the plan, or two");
    static constexpr int gather_warps = 4;
    static constexpr int threads = 128 * GROUPS + 32 * gather_warps;
    static constexpr int q_bytes = queries * 128 * CHUNKS, k_bytes = KEYS * 128 * CHUNKS;
    static constexpr int SLOTS = 2 * STAGES; // of k and v by turns
    static constexpr int shared_bytes =
        1024 + Q_BUFFERS * (q_bytes + 8) + SLOTS * k_bytes + 16 * SLOTS;
    static constexpr int blocks = GROUPS == 1 ? 2 : 1; // of a multiprocessor
    // Registers at launch, of those that gather and of those that attend.
    static constexpr int registers = 65536 / blocks / threads / 8 * 8;
    static constexpr int gather_registers = GROUPS == 1 ? 32 : 40;
    static constexpr int attend_registers =
        (registers * threads - gather_registers * 128) / (128 * GROUPS) / 8 * 8;
    static_assert(attend_registers <= 240, "a warpgroup's limit");
};

// Addresses of shared memory. Slot 2 i is k of stage i, slot 2 i + 1 is v. The queries of an item
// are there when its first slot is.
template <class P> struct attention_sm90_block {
    uint32_t base;

    __device__ uint32_t q(int i) const { return base + i * P::q_bytes; }
    __device__ uint32_t slot(int i) const
    {
        return base + P::Q_BUFFERS * P::q_bytes + i * P::k_bytes;
    }
    __device__ uint32_t q_empty(int i) const { return slot(P::SLOTS) + 8 * i; }
    __device__ uint32_t full(int i) const { return q_empty(P::Q_BUFFERS + i); }
    __device__ uint32_t empty(int i) const { return full(P::SLOTS + i); }
};

// What a block does at a time, an item: heads of a tile of the plan; where a block has queries of two
// tiles, of two that follow each other in the list, which are one part where they are of one patch.
struct attention_part {
    int4 tile; // {patch, first query entry, queries, keys}
    int head;  // the first of its line
    int pair;  // of the line, where the item has two heads of it; -1: it has all
};

// Which items there are. Of a line of four heads whole ones come first, as many as fill all blocks some
// times, then halves where they end sooner.
template <class P> struct attention_items {
    int lines, pairs; // of a tile
    int whole, count;

    __device__ explicit attention_items(const attention_params &p)
    {
        const int tiles = (*p.num_tiles + P::TILES - 1) / P::TILES, blocks = gridDim.x;
        lines = (p.heads + P::LINE_HEADS - 1) / P::LINE_HEADS;
        pairs = (p.heads + 1) / 2;
        whole = count = tiles * lines;
        if (P::LINE_HEADS != 4) return;
        const int last = whole % blocks;
        if (p.heads % P::LINE_HEADS != 0)
            whole = 0;
        else if (2 * last <= blocks)
            whole -= last;
        else
            return;
        count = tiles * pairs - whole;
    }

    // The tile, of TILES, of an item.
    __device__ int tile_of(int item, int &head, int &pair) const
    {
        const bool is_half = P::LINE_HEADS == 4 && item >= whole;
        const int at = is_half ? item + whole : item, of_tile = is_half ? pairs : lines;
        const int tile = at / of_tile, place = at - tile * of_tile;
        head = (is_half ? place / 2 : place) * P::LINE_HEADS;
        pair = is_half ? place % 2 : -1;
        return tile;
    }
};

// Walks the parts of what this block does, by whole warps. Tiles are loaded an item ahead: lane i has word
// i % 8 of the next item's, and of this one's.
template <class P> struct attention_walk {
    const attention_params &p;
    const attention_items<P> items;
    const int lane;
    int at, head, pair, next_head, next_pair;
    int words, next_words;
    bool has_other;

    __device__ explicit attention_walk(const attention_params &params)
        : p(params), items(params), lane(threadIdx.x % 32), at(blockIdx.x), has_other(false)
    {
        load();
    }

    __device__ __forceinline__ void load()
    {
        next_words = 0;
        if (at >= items.count) return;
        const int tile = items.tile_of(at, next_head, next_pair) * P::TILES, number = lane % 8 / 4;
        if (number < P::TILES && tile + number < *p.num_tiles)
            next_words = __ldg(reinterpret_cast<const int *>(p.tiles + tile) + lane % 8);
    }

    __device__ __forceinline__ int4 tile(int number) const
    {
        return make_int4(
            __shfl_sync(~0u, words, 4 * number), __shfl_sync(~0u, words, 4 * number + 1),
            __shfl_sync(~0u, words, 4 * number + 2), __shfl_sync(~0u, words, 4 * number + 3));
    }

    // The next part; false: there is none.
    __device__ __forceinline__ bool take(attention_part &part)
    {
        if (P::TILES == 2 && has_other) {
            has_other = false;
            part = {tile(1), head, pair};
            return true;
        }
        words = next_words;
        head = next_head;
        pair = next_pair;
        at += gridDim.x;
        load();
        part = {tile(0), head, pair};
        if (P::TILES == 2) {
            const int4 other = tile(1);
            has_other = other.z > 0 && other.x != part.tile.x;
            if (!has_other) part.tile.z += other.z;
        }
        return part.tile.z > 0;
    }
};

// Parts in turn: f(part) for each. The tiles of an item and of the next one lie in all lanes alike, so the
// compiler knows that a warp stays together, and keeps what follows from a stage in uniform registers.
template <class P> struct attention_item {
    static_assert(P::TILES == 2, "two tiles an item");
    int4 tiles[2]; // without queries: none
};

template <class P>
__device__ __forceinline__ attention_item<P> attention_load_item(const attention_params &p,
                                                                 int item, int items, int lines)
{
    const int4 none = make_int4(0, 0, 0, 0);
    attention_item<P> found = {none, none};
    if (item >= items) return found;
    const int at = item / lines * P::TILES;
    found.tiles[0] = __ldg(p.tiles + at);
    if (at + 1 < *p.num_tiles) found.tiles[1] = __ldg(p.tiles + at + 1);
    return found;
}

template <class P>
__device__ __forceinline__ bool attention_take_part(attention_item<P> &item, int4 &tile)
{
    tile = item.tiles[0];
    if (tile.z == 0) return false;
    int4 &other = item.tiles[1];
    if (other.z > 0 && other.x == tile.x) {
        tile.z += other.z;
        other.z = 0;
    }
    item.tiles[0] = other;
    other.z = 0;
    return true;
}

template <class P, class F>
__device__ __forceinline__ void attention_for_parts(const attention_params &p, const F &f)
{
    const int lines = (p.heads + P::LINE_HEADS - 1) / P::LINE_HEADS; // of a tile
    const int items = (*p.num_tiles + P::TILES - 1) / P::TILES * lines;
    attention_item<P> next = attention_load_item<P>(p, blockIdx.x, items, lines);
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
        attention_item<P> item = next;
        next = attention_load_item<P>(p, i + gridDim.x, items, lines);
        for (int4 tile; attention_take_part(item, tile);)
            f(attention_part{tile, i % lines * P::LINE_HEADS, -1});
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

// Rows of a part's queries and of its first keys, as lanes name them.
template <class P> struct attention_rows_of_part {
    static constexpr int q_share = P::queries / P::gather_warps,
                         k_share = P::KEYS / P::gather_warps;
    attention_part part;
    const int *k_list;
    int q[(q_share + 31) / 32], k[(k_share + 31) / 32];

    // The next part that has keys. Where its list begins is loaded, and not waited for.
    __device__ __forceinline__ bool take(attention_walk<P> &walk)
    {
        bool more;
        do
            more = walk.take(part);
        while (more && part.tile.w == 0);
        if (more) k_list = walk.p.k_rows + __ldg(walk.p.k_offsets + part.tile.x);
        return more;
    }

    __device__ __forceinline__ void name(const attention_params &p, int warp, int lane)
    {
        name_rows<q_share>(q, p.q_rows + part.tile.y, warp * q_share, part.tile.z, lane);
        name_rows<k_share>(k, k_list, warp * k_share, part.tile.w, lane);
    }
};

template <class P>
__device__ void attention_gather(const attention_params &p, const attention_sm90_block<P> &block,
                                 int warp, int lane)
{
    typedef attention_rows_of_part<P> rows_of_part;
    constexpr int q_share = rows_of_part::q_share, k_share = rows_of_part::k_share;
    ring_position<P::STAGES> stage;
    ring_position<P::Q_BUFFERS> q;
    attention_walk<P> walk(p);
    rows_of_part next;
    bool more = next.take(walk);
    if (more) next.name(p, warp, lane);
    while (more) {
        rows_of_part now = next;
        const int keys = now.part.tile.w;
        const int bytes = min(P::LINE_HEADS, p.heads - now.part.head) * P::DIM * 2;
        const int kv_head = P::LINE_HEADS == 1 ? now.part.head / p.group : now.part.head;
        barrier_wait(block.q_empty(q.at), q.empty_parity());
        gather_rows<q_share, P::CHUNKS>(block.q(q.at), warp * q_share, P::queries,
                                        p.q.of_head(now.part.head), (uint32_t)p.q.row, bytes, now.q,
                                        now.part.tile.z - warp * q_share, lane);
        q.advance();
        // A slot, of k (0) or of v (1), whose rows are those that lanes name.
        const auto copy = [&](const ring_position<P::STAGES> &to, int which,
                              const attention_rows &from, const int(&rows)[(k_share + 31) / 32],
                              int left) {
            const int slot = 2 * to.at + which;
            barrier_wait(block.empty(slot), to.empty_parity());
            gather_rows<k_share, P::CHUNKS>(block.slot(slot), warp * k_share, P::KEYS,
                                            from.of_head(kv_head), (uint32_t)from.row, bytes, rows,
                                            left, lane);
            barrier_arrive_copies(block.full(slot)); // also for the queries
        };
        for (int key = 0; key < keys; key += P::KEYS) {
            const int left = keys - key - warp * k_share;
            int rows[(k_share + 31) / 32];
#pragma unroll
            for (int i = 0; i < (k_share + 31) / 32; ++i)
                rows[i] = now.k[i];
            name_rows<k_share>(now.k, now.k_list, key + P::KEYS + warp * k_share, keys, lane);
            ring_position<P::STAGES> after = stage;
            after.advance();
            if (!P::KEYS_AHEAD || key == 0) copy(stage, 0, p.k, rows, left);
            // What the next part needs is loaded beside the copies of this one.
            if (key == 0) more = next.take(walk);
            if (P::KEYS_AHEAD && key + P::KEYS < keys) copy(after, 0, p.k, now.k, left - P::KEYS);
            copy(stage, 1, p.v, rows, left);
            if (key == 0 && more) next.name(p, warp, lane);
            stage = after;
        }
    }
    copy_async_wait_all();
}

// The same where parts come in turn.
template <class P>
__device__ void attention_gather_in_turn(const attention_params &p,
                                         const attention_sm90_block<P> &block, int warp, int lane)
{
    constexpr int q_share = P::queries / P::gather_warps, k_share = P::KEYS / P::gather_warps;
    static_assert(P::LINE_HEADS <= 2 && P::Q_BUFFERS == 1, "whole lines");
    ring_position<P::STAGES> stage;
    uint32_t round = 0; // of q
    attention_for_parts<P>(p, [&](const attention_part &part) {
        const int4 tile = part.tile;
        if (tile.w == 0) return;
        const int bytes = min(P::LINE_HEADS, p.heads - part.head) * P::DIM * 2;
        const int kv_head = P::LINE_HEADS == 1 ? part.head / p.group : part.head;
        const int *const k_list = p.k_rows + __ldg(p.k_offsets + tile.x);
        int q_rows[(q_share + 31) / 32], k_rows[(k_share + 31) / 32];
        name_rows<q_share>(q_rows, p.q_rows + tile.y, warp * q_share, tile.z, lane);
        name_rows<k_share>(k_rows, k_list, warp * k_share, tile.w, lane);
        barrier_wait(block.q_empty(0), round & 1 ^ 1);
        ++round;
        gather_rows<q_share, P::CHUNKS>(block.q(0), warp * q_share, P::queries,
                                        p.q.of_head(part.head), (uint32_t)p.q.row, bytes, q_rows,
                                        tile.z - warp * q_share, lane);
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
