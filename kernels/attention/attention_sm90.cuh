// SPDX-License-Identifier: Apache-2.0
// Attention within patches for sm_90a: o = softmax(scale q k^T) v of rows that are gathered from
// wherever they lie. f16 or bf16, products in wgmma, sums and softmax in f32.
//
// One block, persistent: an item is a tile of queries of a patch and the heads of a line. A line is 128
// bytes of a row: 2 heads of 16 (half of it) or 32, one of 48 or 64; a head of 96 or 128 is two, of 256
// four. Where patches have 128 queries or less, items have two heads of 64, a line each.
//
//     warps           role
//     4 * GROUPS      attend (attention_sm90_attend.cuh)
//     4               gather: rows of q once an item, then k and v in stages of KEYS rows, by
//                     copies of 16 bytes (cp.async) into swizzled lines. Of long lines, rows of k and v
//                     that follow each other in memory are copied as a box
//
// A head's size must be a multiple of 16 bytes; heads narrower than 48 columns must be contiguous, and
// as many of k and v as of q. The scale must be positive, and there is no bias. Rows with rotary positions
// come rotated already.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_SM90_CUH

#include "kernels/attention/attention_common.cuh"
#include "kernels/attention/attention_wgmma.cuh"

namespace spops
{

// What kernels know besides that copy rows of k and v that follow each other as boxes, of as many rows as a
// warp copies.
struct attention_boxes_params : attention_params {
    CUtensorMap k_boxes, v_boxes;
    bool boxes; // whether there are such
};

// GROUPS warpgroups that attend. Four have a head and 64 queries each; of more than 64 columns two have 64
// queries each; fewer, of up to 64 columns, have two halves of 64 queries each.
// PAIR: an item has two heads, a line each.
template <int DIM_, int GROUPS_, int KEYS_, int STAGES_, bool PAIR_ = false>
struct attention_sm90_policy {
    static constexpr int DIM = DIM_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr bool PAIR = PAIR_, FOUR = GROUPS == 4;
    static constexpr int HALVES = DIM <= 64 && !FOUR ? 2 : 1;
    // Heads of an item. Where they are two, warpgroups have one of them each.
    static constexpr int HEADS = DIM <= 32 || PAIR ? 2 : 1;
    static_assert(HEADS == 1 || FOUR || (PAIR && GROUPS == 2), "a head a warpgroup");
    static constexpr int CHUNKS = PAIR ? 2 : (DIM + 63) / 64; // lines a row
    static constexpr int PIECES =
        DIM * HEADS <= 32 ? 4 : 8; // of 16 bytes, that are copied of a line
    // Queries are left operands from shared memory, where registers do not hold them.
    static constexpr bool Q_SHARED = DIM > 128 || (FOUR && DIM > 32);
    static constexpr int Q_BUFFERS = Q_SHARED && FOUR ? 2 : 1;
    // Steps of a part follow those of the part before, unless parts come in turn.
    static constexpr bool IN_TURN = DIM > 64;
    // A step begins scores of the next stage and values of its own. Where stages are few, k of the next
    // one is copied before v of this one.
    static constexpr bool KEYS_AHEAD = DIM > 64;
    // Rows of k and v that follow each other are copied as boxes.
    static constexpr bool BOXES = DIM > 64;
    typedef std::conditional_t<BOXES, attention_boxes_params, attention_params> params;
    static constexpr int STEPS = DIM / 16; // of 16 columns
    static_assert(DIM % 16 == 0 && DIM <= 256, "whole steps");
    static constexpr int own = 64 * HALVES, queries = own * GROUPS / HEADS;
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
    static constexpr int gather_registers = GROUPS == 2 ? 40 : 32;
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
    int head;  // the first of the item
};

// Which items there are.
template <class P> struct attention_items {
    int lines, count; // of a tile; of all

    __device__ explicit attention_items(const attention_params &p)
    {
        lines = (p.heads + P::HEADS - 1) / P::HEADS;
        count = (*p.num_tiles + P::TILES - 1) / P::TILES * lines;
    }

    // The first of TILES tiles of an item, and its first head.
    __device__ int tile_of(int item, int &head) const
    {
        const int tile = item / lines;
        head = (item - tile * lines) * P::HEADS;
        return tile * P::TILES;
    }
};

// Walks the parts of what this block does, by whole warps. Tiles are loaded an item ahead: lane i has word
// i % 8 of the next item's, and of this one's.
template <class P> struct attention_walk {
    const attention_params &p;
    const attention_items<P> items;
    const int lane;
    int at, head, next_head;
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
        const int tile = items.tile_of(at, next_head), number = lane % 8 / 4;
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
            part = {tile(1), head};
            return true;
        }
        words = next_words;
        head = next_head;
        at += gridDim.x;
        load();
        part = {tile(0), head};
        if (P::TILES == 2) {
            const int4 other = tile(1);
            has_other = other.z > 0 && other.x != part.tile.x;
            if (!has_other) part.tile.z += other.z;
        }
        return part.tile.z > 0;
    }
};

// Parts in turn: f(part) for each. The tile of an item and of the next one lie in all lanes alike, so the
// compiler knows that a warp stays together, and keeps what follows from a stage in uniform registers.
template <class P, class F>
__device__ __forceinline__ void attention_for_parts(const attention_params &p, const F &f)
{
    static_assert(P::TILES == 1, "a part an item");
    const attention_items<P> items(p);
    int head, next_head = 0;
    const auto load = [&](int item) {
        return item < items.count ? __ldg(p.tiles + items.tile_of(item, next_head))
                                  : make_int4(0, 0, 0, 0);
    };
    int4 next = load(blockIdx.x);
    for (int i = blockIdx.x; i < items.count; i += gridDim.x) {
        const int4 tile = next;
        head = next_head;
        next = load(i + gridDim.x);
        f(attention_part{tile, head});
    }
}

// ---- Gathering ----------------------------------------------------------------------------------

// One warp copies COUNT rows, whose numbers lanes hold (row i: lane i % 32 of rows[i / 32]) and of
// which `num` are there, to lines from `first` on of a matrix of `lines`; other lines become zeros.
// PIECES lanes to a row.
template <int COUNT, int CHUNKS, int PIECES = 8>
__device__ __forceinline__ void gather_rows(uint32_t to, int first, int lines,
                                            const unsigned char *from, uint32_t stride, int bytes,
                                            const int (&rows)[(COUNT + 31) / 32], int num, int lane)
{
    static_assert(COUNT % 8 == 0, "swizzled by 8 lines");
    constexpr int step = 32 / PIECES; // rows at a time
    const int piece = lane % PIECES, line = lane / PIECES;
    const uint32_t place = to + (first + line) * 128 + ((piece ^ line) << 4);
    const unsigned char *const at = from + piece * 16;
#pragma unroll
    for (int block = 0; block < (COUNT + 31) / 32; ++block) {
        constexpr int most = 32 / step;
        const int steps = COUNT / step - most * block < most ? COUNT / step - most * block : most;
#pragma unroll(CHUNKS == 1 ? 4 : 2)
        for (int i = 0; i < steps; ++i) {
            const uint32_t row = (uint32_t)__shfl_sync(~0u, rows[block], step * i + line);
            const unsigned char *const source = at + (uint64_t)row * stride;
            const bool there = 32 * block + step * i + line < num;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
                copy_async_if((place ^ step * i % 8 * 16) +
                                  (32 * block + step * i + c * lines) * 128,
                              source + c * 128, there && c * 128 + piece * 16 < bytes);
        }
    }
}

// Whether rows that lanes name follow each other in memory.
template <int COUNT>
__device__ __forceinline__ bool follow_each_other(const int (&rows)[(COUNT + 31) / 32], int lane)
{
    static_assert(COUNT <= 32, "rows of a warp");
    return __all_sync(~0u, rows[0] == __shfl_sync(~0u, rows[0], 0) + lane % COUNT);
}

// One lane begins to copy COUNT rows from `row` on, in boxes of 64 columns from `column` on, to lines from
// `first` on of a matrix of `lines`. The barrier's phase waits for them.
template <int COUNT, int CHUNKS>
__device__ __forceinline__ void copy_boxes(uint32_t to, int first, int lines,
                                           const CUtensorMap *boxes, int column, int row,
                                           uint32_t barrier)
{
    barrier_expect(barrier, COUNT * 128 * CHUNKS);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
        copy_box(to + (first + c * lines) * 128, boxes, column + c * 64, row, 0, barrier);
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

// A part's rows. The queries' barrier was passed. BOXES: rows of k and v may follow each other; looking
// whether they do, stage by stage, costs 5 % where they do not (H100, 2 heads of 128).
template <class P, bool BOXES> struct attention_gather_part {
    typedef attention_rows_of_part<P> rows_of_part;
    static constexpr int k_share = rows_of_part::k_share;
    typedef int names[(k_share + 31) / 32];
    const typename P::params &p;
    const attention_sm90_block<P> &block;
    const int warp, lane, kv_head, bytes;

    // A slot, of k (0) or of v (1), whose rows are those that lanes name.
    __device__ __forceinline__ void copy(const ring_position<P::STAGES> &to, int which,
                                         const attention_rows &from, const names &rows,
                                         int left) const
    {
        const int slot = 2 * to.at + which;
        barrier_wait(block.empty(slot), to.empty_parity());
        bool copied = false;
        if constexpr (BOXES) {
            copied = left >= k_share && follow_each_other<k_share>(rows, lane);
            if (copied && lane == 0)
                copy_boxes<k_share, P::CHUNKS>(
                    block.slot(slot), warp * k_share, P::KEYS, which == 0 ? &p.k_boxes : &p.v_boxes,
                    kv_head * (int)(from.head / 2), rows[0], block.full(slot));
        }
        if (!copied)
            gather_rows<k_share, P::CHUNKS, P::PIECES>(block.slot(slot), warp * k_share, P::KEYS,
                                                       from.of_head(kv_head), (uint32_t)from.row,
                                                       bytes, rows, left, lane);
        barrier_arrive_copies(block.full(slot)); // also for the queries
    }

    // True: there is a next part. What it needs is loaded beside the copies of this one.
    __device__ __forceinline__ bool run(ring_position<P::STAGES> &stage, rows_of_part &now,
                                        attention_walk<P> &walk, rows_of_part &next) const
    {
        const int keys = now.part.tile.w;
        bool more = false;
        for (int key = 0; key < keys; key += P::KEYS) {
            const int left = keys - key - warp * k_share;
            names rows;
#pragma unroll
            for (int i = 0; i < (k_share + 31) / 32; ++i)
                rows[i] = now.k[i];
            name_rows<k_share>(now.k, now.k_list, key + P::KEYS + warp * k_share, keys, lane);
            ring_position<P::STAGES> after = stage;
            after.advance();
            if (!P::KEYS_AHEAD || key == 0) copy(stage, 0, p.k, rows, left);
            if (key == 0) more = next.take(walk);
            if (P::KEYS_AHEAD && key + P::KEYS < keys) copy(after, 0, p.k, now.k, left - P::KEYS);
            copy(stage, 1, p.v, rows, left);
            if (key == 0 && more) next.name(p, warp, lane);
            stage = after;
        }
        return more;
    }
};

template <class P>
__device__ void attention_gather(const typename P::params &p, const attention_sm90_block<P> &block,
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
        const int bytes = min(P::HEADS, p.heads - now.part.head) * P::DIM * 2;
        const int kv_head = P::HEADS == 1 ? now.part.head / p.group : now.part.head;
        barrier_wait(block.q_empty(q.at), q.empty_parity());
        gather_rows<q_share, P::CHUNKS, P::PIECES>(
            block.q(q.at), warp * q_share, P::queries, p.q.of_head(now.part.head),
            (uint32_t)p.q.row, bytes, now.q, now.part.tile.z - warp * q_share, lane);
        q.advance();
        if constexpr (P::BOXES) {
            if (p.boxes && now.part.tile.w - warp * k_share >= k_share &&
                follow_each_other<k_share>(now.k, lane)) {
                const attention_gather_part<P, true> part = {p, block, warp, lane, kv_head, bytes};
                more = part.run(stage, now, walk, next);
                continue;
            }
        }
        const attention_gather_part<P, false> part = {p, block, warp, lane, kv_head, bytes};
        more = part.run(stage, now, walk, next);
    }
    copy_async_wait_all();
}

} // namespace spops

#endif
