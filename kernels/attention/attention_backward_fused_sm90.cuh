// SPDX-License-Identifier: Apache-2.0
// Fused gradients of attention by wgmma, for sm_90a: one pass over keys makes those of keys and queries in
// five products, and sums of grad_q are a part of it. Heads of 33 to 128 columns, rows that begin on 16 bytes.
//
// A persistent block of 12 warps takes a tile of 128 keys and a head, and all queries of the patch
// stream by in stages. t = k q^T and u = v grad_o^T have keys as rows. ds is a left factor from shared
// memory, along keys of grad_k and across them of grad_q:
//
//     warps 0-3, 4-7    multiply: a warpgroup has 64 keys, and sums of grad_k and grad_v in registers.
//                       Of grad_q it makes 64 x 64 sums a stage, over all 128 keys: of 64 columns half
//                       of the queries, of 128 columns half of the columns
//     warps 8, 9        gather half of the rows of each stage, and the keys of a warpgroup
//     warps 10, 11      add the sums of a warpgroup to those in memory
//
//     barrier           arrivals                        means
//     stage full        2 x 32 lanes' copies            queries, lse and delta are there
//     scalars empty     256 (each lane)                 lse and delta have been read
//     stage empty       8 (a lane of each warp)         its products have ended
//     own full, empty   2 x 32 copies; 8                the same of keys
//     slopes full       8                               both warpgroups have written ds of a stage
//     slopes empty      8                               products of grad_q with it have ended
//     sums full, empty  4; 1                            sums of a warpgroup may be added; have been read
//     item full, empty  1; 384 (each lane)              what to do next; all have read it
//
// What a warpgroup does in stage j, in brackets what products run meanwhile:
//
//     t(j), u(j) begun
//     p(j) = exp2(t(j))               [u(j)]
//     ds(j) written
//     grad_q(j - 1) begun, then grad_v(j), grad_k(j)
//     sums of grad_q(j - 1) written   [grad_v, grad_k of j]
//
// Sums of grad_q lie in memory in f32. Blocks whose keys are of the same patch and head add to them one
// after the other, in the order in which their items are taken from a counter: the first stores, others
// wait until as many as stand before them have added. An item only waits for items taken before it, so
// that any number of blocks gets through.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_FUSED_SM90_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_FUSED_SM90_CUH

#include "kernels/attention/attention_backward_fused.cuh"
#include "kernels/attention/attention_backward_sm90.cuh"

namespace spops
{

// ---- Instructions -------------------------------------------------------------------------------

// Four 8 x 8 matrices of 16 bits; lane 8 i + r says where row r of the i-th goes.
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

// Bytes of shared memory to memory, in bulk; multiples of 16.
__device__ __forceinline__ void bulk_store(float *to, uint32_t from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_add(float *to, uint32_t from, int bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}
__device__ __forceinline__ void bulk_close()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Shared memory has been read.
__device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Memory has been written.
__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void fence_for_bulk()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ int load_acquire(const int *from)
{
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(int *to, int v)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

// A descriptor of what lies so many bytes further, multiples of 16. Its address does not carry.
__device__ __forceinline__ uint64_t moved(uint64_t descriptor, int bytes)
{
    return (descriptor & ~0xFFFFFFFFull) | ((uint32_t)descriptor + bytes / 16);
}

// ---- A block ------------------------------------------------------------------------------------

// DIM columns (64, 128), STAGES stages of queries, SUM_BUFFERS places for sums of grad_q.
template <int DIM_, int STAGES_, int SUM_BUFFERS_> struct attention_fused_policy {
    static constexpr int DIM = DIM_, STAGES = STAGES_, SUM_BUFFERS = SUM_BUFFERS_;
    static constexpr int QUERIES = 8192 / DIM; // of a stage
    static constexpr int LINES = DIM / 64;     // of 64 columns, of a row
    static_assert(LINES == 1 || LINES == 2, "a warpgroup has one of two halves");
    static constexpr int groups = 2, own = 128;
    typedef warp_roles<groups, 4, 1> roles;
    static constexpr int threads = roles::threads, gather_warps = 2;
    static constexpr bool moves_registers = true;
    static constexpr int gather_registers = 40;
    // So many steps before an item's last sums the next item is taken; its rows then arrive in time.
    static constexpr int take_ahead = 6;
    static constexpr int multiply_registers = roles::left_to_multiply(gather_registers);
    static constexpr int line = 128;
    static constexpr swizzle form = SWIZZLE_128;

    static constexpr int own_bytes = 64 * DIM * 2; // of one kind, of a warpgroup
    static constexpr int matrix_bytes = QUERIES * DIM * 2, stage_bytes = 2 * matrix_bytes;
    static constexpr int slopes_bytes = own * QUERIES * 2;
    static constexpr int sums_bytes = 64 * 64 * 4; // of a warpgroup
    static constexpr int scalars_bytes = 2 * QUERIES * 4;
    static constexpr int stages_at = groups * 2 * own_bytes;
    static constexpr int slopes_at = stages_at + STAGES * stage_bytes;
    static constexpr int sums_at = slopes_at + 2 * slopes_bytes;
    static constexpr int scalars_at = sums_at + groups * SUM_BUFFERS * sums_bytes;
    static constexpr int items_at = scalars_at + 2 * scalars_bytes;
    static constexpr int barriers_at = items_at + 2 * 32;
    static constexpr int used_bytes =
        barriers_at + barrier_ring::bytes * (STAGES + 2 + 1 + 2 + groups * SUM_BUFFERS + 2);
    // Of a block of sm_90; the system has 1 KB, which some counts take away.
    static constexpr int most_bytes = (used_bytes <= 226 * 1024 ? 226 : 227) * 1024;
    static constexpr int shared_bytes =
        used_bytes + stage_alignment < most_bytes ? used_bytes + stage_alignment : most_bytes;
    static_assert(used_bytes <= most_bytes, "where shared memory begins aligned");
};

template <class P> struct attention_fused_block {
    uint32_t base; // of shared memory, aligned to 1024

    // Keys of a warpgroup, then their values.
    __device__ uint32_t own(int group) const { return base + group * 2 * P::own_bytes; }
    // Queries of a stage, then rows of grad_o.
    __device__ uint32_t stage(int s) const { return base + P::stages_at + s * P::stage_bytes; }
    // A line of 64 queries a key, and after all keys a line of the other 64.
    __device__ uint32_t slopes(int i) const { return base + P::slopes_at + i * P::slopes_bytes; }
    __device__ uint32_t sums(int group, int i) const
    {
        return base + P::sums_at + (group * P::SUM_BUFFERS + i) * P::sums_bytes;
    }
    // lse of every other stage, then delta.
    __device__ uint32_t scalars(int i) const { return base + P::scalars_at + i * P::scalars_bytes; }
    __device__ uint32_t item(int i) const { return base + P::items_at + i * 32; }

    __device__ barrier_ring stages() const { return {base + P::barriers_at}; }
    __device__ barrier_ring scalars_ring() const { return {stages().full(P::STAGES)}; }
    __device__ barrier_ring owns() const { return {scalars_ring().full(2)}; }
    __device__ barrier_ring slopes_ring() const { return {owns().full(1)}; }
    __device__ barrier_ring sums_ring(int group) const
    {
        return {slopes_ring().full(2 + group * P::SUM_BUFFERS)};
    }
    __device__ barrier_ring items() const { return {sums_ring(P::groups).at}; }

    __device__ void init() const
    {
        stages().init(P::STAGES, 32 * P::gather_warps, 4 * P::groups);
        // Those that are full are so with the stage.
        scalars_ring().init(2, 1, 128 * P::groups);
        owns().init(1, 32 * P::gather_warps, 4 * P::groups);
        slopes_ring().init(2, 4 * P::groups, 4 * P::groups);
        for (int group = 0; group < P::groups; ++group)
            sums_ring(group).init(P::SUM_BUFFERS, 4, 1);
        items().init(2, 1, P::threads);
        barrier_init_done();
    }
};

// ---- Items --------------------------------------------------------------------------------------

struct attention_fused_item {
    int4 tile;          // {patch, first key entry, keys, queries}; 0 keys: there are no more items
    int head, streamed; // streamed: the first query entry of the patch
    int rank;           // how many items add to the same sums before this one
};

// Items by number. The list of tiles is walked in `ways` parts side by side, each with `inner` heads
// innermost; then come other heads.
struct attention_fused_list {
    const attention_fused_params &p;
    int tiles;

    __device__ int start(int part) const
    {
        return part * (tiles / p.ways) + min(part, tiles % p.ways);
    }

    __device__ attention_fused_item find(int number) const
    {
        attention_fused_item item = {};
        if (number >= tiles * p.keys.heads) return item;
        const int outer = number / (tiles * p.inner), rest = number - outer * tiles * p.inner;
        const int at = rest / p.inner, part = at % p.ways, place = at / p.ways;
        const int tile = start(part) + place;
        item.head = outer * p.inner + rest - at * p.inner;
        item.tile = __ldg(p.keys.tiles + tile);
        item.streamed = __ldg(p.keys.streamed_offsets + item.tile.x);
        // Tiles of a patch follow each other in the list.
        const int begin = __ldg(p.own_offsets + item.tile.x);
        const int end = __ldg(p.own_offsets + item.tile.x + 1);
        const int first = tile - (item.tile.y - begin) / 128;
        const int last = first + (end - begin + 127) / 128;
        for (int i = 0; i < p.ways; ++i) {
            const int from = max(first, start(i)), to = min(last, start(i + 1));
            if (from < to)
                item.rank += min(max(place + (i < part) - (from - start(i)), 0), to - from);
        }
        return item;
    }
};

__device__ __forceinline__ attention_fused_item load_item(uint32_t from)
{
    const int4 a = load_shared4<int4>(from), b = load_shared4<int4>(from + 16);
    return {a, b.x, b.y, b.z};
}

// What to do next, after `count` items of the block. All lanes, so that each says what it has read.
template <class P>
__device__ __forceinline__ attention_fused_item take_item(const attention_fused_block<P> &block,
                                                          uint32_t count)
{
    const int slot = (int)(count % 2);
    barrier_wait(block.items().full(slot), count / 2 % 2);
    const attention_fused_item item = load_item(block.item(slot));
    barrier_arrive(block.items().empty(slot));
    return item;
}

// Takes the next item of all blocks, which follows `count` of this one.
template <class P>
__device__ __forceinline__ void publish_item(const attention_fused_params &p,
                                             const attention_fused_block<P> &block, uint32_t count,
                                             int lane)
{
    const attention_fused_list list = {p, *p.keys.num_tiles};
    const int number = lane == 0 ? atomicAdd(p.taken, 1) : 0, slot = (int)(count % 2);
    const attention_fused_item item = list.find(__shfl_sync(~0u, number, 0));
    if (lane == 0) {
        barrier_wait(block.items().empty(slot), count / 2 % 2 ^ 1);
        store_shared4(block.item(slot), item.tile);
        store_shared4(block.item(slot) + 16, make_int4(item.head, item.streamed, item.rank, 0));
        barrier_arrive(block.items().full(slot));
    }
    __syncwarp();
}

// ---- Gathering ----------------------------------------------------------------------------------

// A warp's share of a stage: COUNT rows of both kinds, of which `num` are there.
template <class P, int COUNT>
__device__ __forceinline__ void
attention_fused_copy(const attention_backward_params &p, const unsigned char *first,
                     const unsigned char *second, uint32_t to, const int (&index)[COUNT / 32],
                     int num, int lane)
{
    constexpr int pieces = P::DIM / 8, rows = 32 / pieces; // rows: of a round
    static_assert(rows < 8 && P::line == 128, "a round turns the pieces of all its rows alike");
    static_assert(4 * rows % 8 == 0, "so do four rounds");
    const int mine = lane / pieces;
    const uint32_t place = attention_place<P, P::QUERIES>(mine, lane % pieces);
    const uint32_t first_row = (uint32_t)p.streamed_first.row;
    const uint32_t second_row = (uint32_t)p.streamed_second.row;
    constexpr int at_once = 4;
#pragma unroll
    for (int block = 0; block < COUNT / 32; ++block) {
#pragma unroll 1
        for (int i = 0; i < pieces; i += at_once) {
            uint32_t row[at_once];
#pragma unroll
            for (int j = 0; j < at_once; ++j)
                row[j] = (uint32_t)__shfl_sync(~0u, index[block], (i + j) * rows + mine);
#pragma unroll
            for (int j = 0; j < at_once; ++j) {
                const int line = block * 32 + i * rows + j * rows; // of the first row of a round
                const uint32_t at = to + line * P::line + (place ^ j * rows % 8 * 16);
                const bool there = line + mine < num;
                copy_async_if(at, first + (uint64_t)row[j] * first_row, there);
                copy_async_if(at + P::matrix_bytes, second + (uint64_t)row[j] * second_row, there);
            }
        }
    }
}

// Row numbers of a warp's share, of which `num` are there.
template <int COUNT>
__device__ __forceinline__ void attention_fused_ask(int (&index)[COUNT], const int *list, int num,
                                                    int lane)
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        index[i] = lane + i * 32 < num ? __ldg(list + lane + i * 32) : 0;
}

// A warpgroup's keys.
template <class P>
__device__ __forceinline__ void
attention_fused_own(const attention_backward_params &p, const attention_fused_block<P> &block,
                    const attention_fused_item &item, uint32_t count, int group, int lane)
{
    const uint32_t to = block.own(group);
    const int num = item.tile.z - group * 64;
    int index[2];
    attention_fused_ask(index, p.own_rows + item.tile.y + group * 64, num, lane);
    barrier_wait(block.owns().empty(0), count % 2 ^ 1);
    attention_gather<P, 64>(p.own_first, p.own_second, to, to + P::own_bytes, 0, index, num,
                            item.head / p.own_group, p.dim, lane);
    barrier_arrive_copies(block.owns().full(0));
}

// It is soon the slowest of a block: it spares registers, and asks for row numbers a stage ahead.
template <class P>
__device__ void attention_fused_gather(const attention_fused_params &params,
                                       const attention_fused_block<P> &block, int warp, int lane)
{
    const attention_backward_params &p = params.keys;
    constexpr int share = P::QUERIES / P::gather_warps, piece_bytes = 16;
    const int piece = lane % (P::DIM / 8);
    const bool inside = piece * 8 < p.dim;
    ring_position<P::STAGES> stage;
    uint32_t steps = 0; // of the block, before this one
    for (uint32_t count = 0;; ++count) {
        const attention_fused_item item = take_item(block, count);
        if (item.tile.z == 0) break;
        const unsigned char *first =
            p.streamed_first.of_head(item.head) + (inside ? piece * piece_bytes : 0);
        const unsigned char *second =
            p.streamed_second.of_head(item.head) + (inside ? piece * piece_bytes : 0);
        asm volatile("" : "+l"(first), "+l"(second)); // not made again for each copy
        int64_t entry = item.streamed + warp * share; // of the step
        int left = item.tile.w - warp * share;        // from it on
        int index[share / 32];
        attention_fused_ask(index, p.streamed_rows + entry, left, lane);
        // Stages that do not need the last step of the item before come before keys.
        int before = P::STAGES - 1;
#pragma unroll 1
        for (int of_item = item.tile.w; of_item > 0; of_item -= P::QUERIES, --before) {
            if (before == 0) attention_fused_own(p, block, item, count, warp, lane);
            barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
            int next[share / 32];
            attention_fused_ask(next, p.streamed_rows + entry + P::QUERIES, left - P::QUERIES,
                                lane);
            attention_fused_copy<P, share>(p, first, second,
                                           block.stage(stage.at) + warp * share * P::line, index,
                                           inside ? left : 0, lane);
            const int now = (int)(steps % 2);
            barrier_wait(block.scalars_ring().empty(now), steps / 2 % 2 ^ 1);
            const uint32_t scalars = block.scalars(now) + (warp * share + lane) * 4;
            const int64_t at = item.head * p.query_entries + entry + lane;
#pragma unroll
            for (int i = 0; i < share / 32; ++i) {
                const bool there = lane + i * 32 < left;
                copy_async<4>(scalars + i * 128, p.lse + at + i * 32, there);
                copy_async<4>(scalars + P::QUERIES * 4 + i * 128, p.delta + at + i * 32, there);
                index[i] = next[i];
            }
            barrier_arrive_copies(block.stages().full(stage.at));
            stage.advance();
            ++steps;
            entry += P::QUERIES;
            left -= P::QUERIES;
        }
        if (before >= 0) attention_fused_own(p, block, item, count, warp, lane);
    }
    copy_async_wait_all();
}

// ---- Adding sums of grad_q ----------------------------------------------------------------------

template <class P>
__device__ void attention_fused_add(const attention_fused_params &p,
                                    const attention_fused_block<P> &block, int group, int lane)
{
    const barrier_ring ring = block.sums_ring(group);
    ring_position<P::SUM_BUFFERS> at;
    if (group == 0) publish_item(p, block, 0, lane);
    for (uint32_t count = 0;; ++count) {
        const attention_fused_item item = take_item(block, count);
        if (item.tile.z == 0) break;
        const int first = P::LINES == 1 ? 64 * group : 0;
        const int64_t line =
            (int64_t)(item.head * P::LINES + (P::LINES == 1 ? 0 : group)) * p.keys.query_entries +
            item.streamed + first;
        float *to = p.sums + line * 64;
        int *added = p.counts + line;
        const int steps = (item.tile.w + P::QUERIES - 1) / P::QUERIES;
        int seen = 0; // of the count of the step
        // Blocks add in the order in which items are taken: one that is taken long before it begins may
        // hold up those behind it.
        const int takes_at = group == 0 ? max(steps - P::take_ahead, 0) : -1;
        for (int step = 0;; ++step) {
            if (step == takes_at) publish_item(p, block, count + 1, lane);
            if (step == steps) break;
            const int rows = min(item.tile.w - step * P::QUERIES - first, 64);
            if (lane == 0) {
                barrier_wait(ring.full(at.at), at.full_parity());
                if (rows > 0) {
                    while (seen < item.rank)
                        seen = load_acquire(added);
                    fence_for_bulk();
                    if (item.rank == 0)
                        bulk_store(to, block.sums(group, at.at), rows * 256);
                    else
                        bulk_add(to, block.sums(group, at.at), rows * 256);
                    bulk_close();
                }
                // Meanwhile: may those of the next step be added?
                seen = 0;
                if (item.rank > 0 && item.tile.w - (step + 1) * P::QUERIES - first > 0)
                    seen = load_acquire(added + P::QUERIES);
                bulk_wait_read();
                barrier_arrive(ring.empty(at.at));
                if (rows > 0) {
                    bulk_wait();
                    fence_for_bulk();
                    store_release(added, item.rank + 1);
                }
            }
            to += P::QUERIES * 64;
            added += P::QUERIES;
            at.advance();
        }
        __syncwarp(); // others do not look for the next item meanwhile
    }
}

// ---- Multiplying --------------------------------------------------------------------------------

template <class P, class T> struct attention_fused_group {
    typedef typename attention_element<T>::type E;
    static constexpr int D = P::DIM, S = P::QUERIES;

    const attention_backward_params &p;
    const attention_fused_block<P> &block;
    const int group, warp, lane; // warp: of the warpgroup
    ring_position<P::STAGES> stage;
    uint32_t steps; // before this one, of the block
    float grad_k[D / 2], grad_v[D / 2], t[S / 2], u[S / 2];

    __device__ attention_fused_group(const attention_backward_params &params,
                                     const attention_fused_block<P> &shared, int warp_of_block)
        : p(params), block(shared), group(warp_of_block / 4), warp(warp_of_block % 4),
          lane((int)threadIdx.x % 32), steps(0)
    {
    }

    __device__ __forceinline__ void release(uint32_t barrier) const { release_slot(barrier, lane); }
    // The same in all lanes, as the compiler does not know, nor keeps in registers for later.
    template <class V> static __device__ __forceinline__ V uniform(V v)
    {
        return __shfl_sync(~0u, v, 0);
    }

    // sum = own streamed^T
    __device__ __forceinline__ void begin(float (&sum)[S / 2], uint32_t own,
                                          uint32_t streamed) const
    {
        constexpr uint64_t form = descriptor(P::form, 0, 8 * P::line);
        const uint64_t a = at_address(form, own), b = at_address(form, streamed);
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            const int in_line = d % 4 * 32, lines = d / 4 * P::line;
            wgmma<E, S, ALONG_K, ALONG_K>::run(sum, moved(a, lines * 64 + in_line),
                                               moved(b, lines * S + in_line), d > 0);
        }
        wgmma_commit();
    }
    // sum += left streamed
    __device__ __forceinline__ void add(float (&sum)[D / 2], const uint32_t (&left)[S / 16][4],
                                        uint32_t streamed, bool begun) const
    {
        constexpr uint64_t form = descriptor(P::form, S * P::line, 8 * P::line);
        const uint64_t b = at_address(form, streamed);
#pragma unroll
        for (int s = 0; s < S / 16; ++s)
            wgmma_left<E, D, ACROSS_K>::run(sum, left[s], moved(b, s * 16 * P::line),
                                            begun || s > 0);
    }
    // The same of slopes in shared memory.
    __device__ __forceinline__ void add_shared(float (&sum)[D / 2], uint32_t slopes,
                                               uint32_t streamed, bool begun) const
    {
        constexpr uint64_t form = descriptor(P::form, 0, 8 * P::line);
        constexpr uint64_t across = descriptor(P::form, S * P::line, 8 * P::line);
        const uint64_t a = at_address(form, slopes + uniform((uint32_t)group) * 64 * P::line);
        const uint64_t b = at_address(across, streamed);
#pragma unroll
        for (int s = 0; s < S / 16; ++s)
            wgmma<E, D, ALONG_K, ACROSS_K>::run(sum,
                                                moved(a, s / 4 * P::own * P::line + s % 4 * 32),
                                                moved(b, s * 16 * P::line), begun || s > 0);
    }
    // This warpgroup's sums of grad_q, of the stage whose slopes lie there.
    __device__ __forceinline__ void begin_queries(float (&sum)[32], uint32_t from) const
    {
        constexpr uint64_t form = descriptor(P::form, 64 * P::line, 8 * P::line);
        const uint32_t half = uniform((uint32_t)group);
        const uint64_t a = at_address(form, from + (P::LINES == 1 ? half * P::own * P::line : 0));
        const uint64_t b =
            at_address(form, block.own(0) + (P::LINES == 1 ? 0 : half * 64 * P::line));
#pragma unroll
        for (int k = 0; k < P::own / 16; ++k)
            wgmma<E, 64, ACROSS_K, ACROSS_K>::run(
                sum, moved(a, k * 16 * P::line),
                moved(b, k / 4 * 2 * P::own_bytes + k % 4 * 16 * P::line), k > 0);
        wgmma_commit();
    }

    // Rows of this lane that are no keys, and queries from `left` on, count nothing, whatever rows hold.
    __device__ __forceinline__ void cut(int left, const bool (&there)[2])
    {
#pragma unroll
        for (int i = 0; i < S / 2; ++i)
            if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= left || !there[i / 2 % 2]) t[i] = 0.0f;
    }
    __device__ __forceinline__ void make_weights(uint32_t scalars)
    {
#pragma unroll
        for (int n = 0; n < S / 8; ++n) {
            const uint2 lse = load_shared2(scalars + n * 32);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                t[n * 4 + j] = exp2_approximate(
                    fmaf(t[n * 4 + j], p.scale_log2, -__uint_as_float(j % 2 ? lse.y : lse.x)));
        }
    }
    // t, which are weights, and u as left factors.
    __device__ __forceinline__ void make_slopes(uint32_t (&weights)[S / 16][4],
                                                uint32_t (&slopes)[S / 16][4],
                                                uint32_t scalars) const
    {
#pragma unroll
        for (int n = 0; n < S / 8; ++n) {
            const uint2 delta = load_shared2(scalars + S * 4 + n * 32);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int i = n * 4 + 2 * h;
                weights[n / 2][n % 2 * 2 + h] = pack2<T>(t[i], t[i + 1]);
                slopes[n / 2][n % 2 * 2 + h] =
                    pack2<T>(t[i] * (u[i] - __uint_as_float(delta.x)),
                             t[i + 1] * (u[i + 1] - __uint_as_float(delta.y)));
            }
        }
    }
    __device__ __forceinline__ void cut(uint32_t (&slopes)[S / 16][4], int left,
                                        const bool (&there)[2]) const
    {
#pragma unroll
        for (int i = 0; i < S / 4; ++i) {
            const int query = i / 2 * 8 + lane % 4 * 2;
            const uint32_t mask = query + 1 < left ? ~0u : query < left ? 0xFFFFu : 0;
            slopes[i / 4][i % 4] &= there[i % 2] ? mask : 0;
        }
    }

    // A line a key: 64 queries, which are a left factor across lines.
    __device__ __forceinline__ void store_slopes(uint32_t to,
                                                 const uint32_t (&left)[S / 16][4]) const
    {
        const int row = lane % 8, line = group * 64 + warp * 16 + lane / 8 % 2 * 8 + row;
        const uint32_t piece = (lane / 16 ^ row) * 16;
#pragma unroll
        for (int s = 0; s < S / 16; ++s)
            store_matrices(to + s / 4 * P::own * P::line + line * P::line + (piece ^ s % 4 * 32),
                           left[s]);
    }
    // Of a step, in lines of 64 columns; of row e of all entries, 8 columns at a time change places by
    // e % 4, so that lanes write to different banks. `first`: entry of row 0.
    __device__ __forceinline__ void store_sums(const float (&sum)[32], uint32_t step,
                                               int first) const
    {
        const barrier_ring ring = block.sums_ring(group);
        const int g = lane / 4, q = lane % 4, at = (int)(step % P::SUM_BUFFERS);
        const uint32_t turn = (uint32_t)(g + first) % 4 * 32;
        const uint32_t to = block.sums(group, at) + (warp * 16 + g) * 256 + q * 8;
        barrier_wait(ring.empty(at), step / P::SUM_BUFFERS % 2 ^ 1);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 8; ++j)
                store_shared(to + h * 8 * 256 + (j * 32 ^ turn),
                             make_uint2(__float_as_uint(sum[4 * j + 2 * h]),
                                        __float_as_uint(sum[4 * j + 2 * h + 1])));
        fence_for_wgmma();
        release(ring.full(at));
    }

    // A stage, of which `left` queries are there. FIRST: of the item.
    template <bool FIRST>
    __device__ __forceinline__ void step(int left, const bool (&there)[2], bool whole, int first)
    {
        const int at = uniform(stage.at);
        const uint32_t q = block.stage(at), grad_o = q + P::matrix_bytes;
        const uint32_t own = uniform(block.own(group));
        const uint32_t now = uniform(steps % 2), round = steps / 2;
        const uint32_t scalars = block.scalars(now) + lane % 4 * 8;
        barrier_wait(block.stages().full(at), stage.full_parity());
        fence_for_wgmma();
        wgmma_fence();
        begin(t, own, q);
        begin(u, own + P::own_bytes, grad_o);
        wgmma_wait<1>();
        pin_registers(t);
        make_weights(scalars);
        const bool cuts = left < S || !whole;
        if (cuts) cut(left, there);
        // Left factors in registers are written while no product runs, or the compiler lets
        // products run one by one.
        wgmma_wait<0>();
        pin_registers(u);
        uint32_t weights[S / 16][4], left_slopes[S / 16][4];
        make_slopes(weights, left_slopes, scalars);
        barrier_arrive(block.scalars_ring().empty(now)); // each lane has read them
        if (cuts) cut(left_slopes, left, there);
        const barrier_ring ring = block.slopes_ring();
        barrier_wait(ring.empty(now), round % 2 ^ 1);
        store_slopes(block.slopes(now), left_slopes);
        fence_for_wgmma();
        named_barrier_wait<128>(1 + group); // a left factor of the whole warpgroup
        release(ring.full(now));
        float sum[32];
        if (!FIRST) barrier_wait(ring.full(now ^ 1), (steps - 1) / 2 % 2);
        wgmma_fence();
        if (!FIRST) begin_queries(sum, block.slopes(now ^ 1));
        add(grad_v, weights, grad_o, !FIRST);
        add_shared(grad_k, block.slopes(now), q, !FIRST);
        wgmma_commit();
        if (!FIRST) {
            wgmma_wait<1>();
            pin_registers(sum);
            release(ring.empty(now ^ 1));
            store_sums(sum, steps - 1, first);
        }
        wgmma_wait<0>();
        pin_registers(grad_k);
        pin_registers(grad_v);
        release(block.stages().empty(at));
        ++steps;
        stage.advance();
    }

    // After the last stage: the last sums of grad_q.
    __device__ __forceinline__ void finish(int first)
    {
        const barrier_ring ring = block.slopes_ring();
        const uint32_t last = uniform((steps - 1) % 2);
        float sum[32];
        barrier_wait(ring.full(last), (steps - 1) / 2 % 2);
        wgmma_fence();
        begin_queries(sum, block.slopes(last));
        wgmma_wait<0>();
        pin_registers(sum);
        pin_registers(grad_k);
        pin_registers(grad_v);
        release(ring.empty(last));
        release(block.owns().empty(0));
        store_sums(sum, steps - 1, first);
    }

    __device__ __forceinline__ void store(const attention_fused_item &item) const
    {
        const int num = item.tile.z - group * 64, mine = warp * 16 + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int64_t entry = item.tile.y + group * 64 + mine + h * 8;
            const int row = mine + h * 8 < num ? __ldg(p.own_rows + entry) : -1;
            store_gradient<T, D>(p.grad_first, entry, row, item.head, p.dim, grad_k, h, p.scale,
                                 lane % 4);
            store_gradient<T, D>(p.grad_second, entry, row, item.head, p.dim, grad_v, h, 1.0f,
                                 lane % 4);
        }
    }

    __device__ void run()
    {
        for (uint32_t count = 0;; ++count) {
            const int slot = (int)(count % 2);
            barrier_wait(block.items().full(slot), count / 2 % 2);
            {
                const attention_fused_item item = load_item(block.item(slot));
                if (item.tile.z == 0) break;
                const int num = item.tile.z - group * 64, mine = warp * 16 + lane / 4;
                const bool there[2] = {mine < num, mine + 8 < num};
                barrier_wait(block.owns().full(0), count % 2);
                if (item.tile.w > 0) {
                    step<true>(item.tile.w, there, num >= 64, item.streamed);
                    for (int left = item.tile.w - S; left > 0; left -= S)
                        step<false>(left, there, num >= 64, item.streamed);
                    finish(item.streamed);
                } else {
                    release(block.owns().empty(0));
#pragma unroll
                    for (int i = 0; i < D / 2; ++i)
                        grad_k[i] = grad_v[i] = 0.0f;
                }
            }
            store(load_item(block.item(slot)));
            barrier_arrive(block.items().empty(slot)); // each lane has read it
        }
    }
};

template <class P, class T>
__global__ void __launch_bounds__(P::threads, 1)
    attention_backward_fused_kernel(const __grid_constant__ attention_fused_params p)
{
    extern __shared__ char unaligned_shared[];
    attention_fused_block<P> block;
    block.base = aligned_shared(unaligned_shared);
    if (block.base + P::used_bytes > shared_address(unaligned_shared) + P::shared_bytes) __trap();
    if (threadIdx.x == 0) block.init();
    __syncthreads();
    run_roles<P>(
        [&](int warp) {
            attention_fused_group<P, T> group(p.keys, block, warp);
            group.run();
        },
        [&](int warp) {
            const int lane = threadIdx.x % 32;
            if (warp < P::gather_warps)
                attention_fused_gather<P>(p, block, warp, lane);
            else
                attention_fused_add<P>(p, block, warp - P::gather_warps, lane);
        });
}

} // namespace spops

#endif
