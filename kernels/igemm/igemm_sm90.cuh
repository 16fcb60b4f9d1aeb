// SPDX-License-Identifier: Apache-2.0
// The main loop of products of gathered rows with the matrices of taps, for sm_90a: out[i] = finish(
// sum over taps k of x[row of i at k] * W[k]). Output-stationary: the sum of a tile of output rows
// stays in registers while the block walks the taps that the tile has, so there are no atomics and
// no buffers, and a sum has the same bits whichever block makes it. The recipe is that of gathered
// products in mixtures of experts (SonicMoE, arXiv 2512.14080); skipping taps by masks is that of
// spconv and TorchSparse++.
//
// Rows of groups (a schedule without records) are the same with one tap a tile and rows that lie
// beside each other, which box copies fetch.
//
// docs/kernels/igemm.md has the timeline, what binds, and what was tried and left.
//
// Several rows of x that meet an output row at one tap may be added first (point convolution): then the
// gather warps bring their sum into the stage, added in f32 and rounded, between L2 and shared memory.
//
// One block, tile of 64 * GROUPS rows by COLS columns, persistent: it takes tiles, heaviest first,
// from a counter. Where tiles are few for the blocks, the records of all tiles are one line of work
// that is dealt to the blocks in equal shares, as they lie. A tile in several shares leaves partial
// sums, which the block that comes last adds in the order of the shares, so that bits do not depend
// on who that is.
//
//     warps               role
//     4 * GROUPS          multiply: a warpgroup to each 64 rows, sums in registers, epilogue
//     GATHER_WARPS        gather: each alone copies the 64 rows of a group into a stage, and the
//                         next warp those of the next group. Those of group 0 also fetch weights,
//                         the first of them finds the next tile
//
// A stage is 128 bytes of k for all rows (A) and columns (B) of the tile: A is gathered by copy_async
// into swizzled lines, one a row; B comes by box copies from W as it lies in memory, one line a
// column or, where W has columns along its lines, one line a k. Where a row has more than 128 bytes,
// a record (igemm_args.h) makes several stages; where it has at most 64, two records share a stage.
//
//     barrier             arrivals                              means
//     stage full          32 copies a group, 1                  rows, weights and note are there
//                         + bytes of the weights;
//                         with sums 32 more a group
//     stage empty         4 * GROUPS (a lane of each warp)      its products have ended
//     tile full           1                                     the next tile's note is there
//     tile empty          GATHER_WARPS (a lane of each)         it has been read
//
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_SM90_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_SM90_CUH

#include "kernels/igemm/igemm_epilogue.cuh"
#include "kernels/core/sm90/pipeline.cuh"
#include "kernels/igemm/row_sums_sm90.cuh"
#include "spops/device/grid_dependency.cuh"

namespace spops
{

struct igemm_sm90_params {
    CUtensorMap w; // 3D: along a line, lines, taps
    CUtensorMap x; // 3D: along a row, rows, 1; of rows of groups
    const unsigned char *gathered;
    uint32_t row_stride; // of gathered rows, bytes
    int row_bytes;       // of C_in numbers
    int record_bytes;    // of a stage's line that one record fills: 128 or 64
    int row_stages;      // stages a record makes (1 where record_bytes is below 128)
    const int4 *tiles;
    const int *num_tiles;
    int max_tiles;
    const int *num_rows; // that count, where tiles are not listed; null: all
    int rows;            // of x, where they are not
    const int *records;  // null: rows of groups
    const int *first;    // record of each tile as tiles lie, and after the last
    const int *out_rows;
    const int4 *sums; // of rows of x that are added first, and their members (igemm_args.h)
    const int *members;
    int last_tap; // num_taps - 1 for mirrored taps, else -1
    int col_tiles;
    uint32_t *tickets;
    int shares;           // blocks that share the work of a column tile; 0: no shares
    int least_share;      // records of a share, at least
    int max_shared_tiles; // of more tiles there are no shares
    int tile_cost;        // records that the epilogue of a tile counts as
    float *partials;      // [2 * shares * col_tiles] tiles of partial sums
    bool early;           // tiles, records and W were there before the kernel before this one began
    bool keeps_numbers;   // bias, scale and shift go to shared memory: there is one tile of columns
    epilogue_params epilogue;
};

constexpr int igemm_tickets = 2; // of blocks; those of tiles in several shares follow

// COLS columns, GROUPS warpgroups of 64 rows, GATHER_WARPS warps that gather, STAGES stages, BLOCKS
// blocks a multiprocessor.
//
// BATCH: rows of -2 are sums, of which a lane has so many on their way together; 0: there are none.
// LATE: a gather warp looks at a record's head when it copies, and the last block of a tile leaves no part. Narrower
// tiles lose 1 to 3 % by it, these gain 2 to 3 %.
template <int COLS_, int GROUPS_, int GATHER_WARPS_, int STAGES_, int BLOCKS_, int BATCH_ = 0>
struct igemm_sm90_policy {
    static constexpr int BATCH = BATCH_;
    static constexpr bool ADDS = BATCH > 0;
    static constexpr bool LATE = !ADDS && COLS_ >= 128;
    static constexpr int COLS = COLS_, GROUPS = GROUPS_, GATHER_WARPS = GATHER_WARPS_;
    static constexpr int STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int stride = GATHER_WARPS / GROUPS; // stages between a gather warp's
    static_assert(GATHER_WARPS % GROUPS == 0 && stride <= STAGES, "a warp has the rows of a group");
    // Whether blocks share tiles where these are few. A narrow tile is too little work for that.
    // Nor are registers left where sums of rows are gathered for 256 columns; few tiles take 128 then.
    static constexpr bool SHARES = COLS >= 96 && (!ADDS || COLS < 256);
    static constexpr int rows = 64 * GROUPS;
    typedef warp_roles<GROUPS, GATHER_WARPS, BLOCKS> roles;
    static constexpr int threads = roles::threads;
    static constexpr int tile_slots = 2;
    static constexpr int line_cols = COLS % 64 == 0 ? 64 : 32; // of a line of B across k
    static constexpr int a_bytes = rows * 128, b_bytes = COLS * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    // The multiplying warps keep what their sums and the epilogue take, the gather warps get the rest.
    static constexpr bool moves_registers = GATHER_WARPS % 4 == 0;
    static constexpr int sums_take = COLS / 2 + (COLS < 256 ? 32 : SHARES ? 72 : 48);
    static constexpr int left = roles::left_to_gather(sums_take);
    static constexpr int most = ADDS ? 152 : COLS == 128 ? 112 : 128; // sums on their way take more
    static constexpr int gather_registers = left < most ? left : most;
    static constexpr int multiply_registers = roles::left_to_multiply(gather_registers);
    // Groups, as store_sums has them.
    static constexpr int residual_ahead = ADDS || COLS < 96 || COLS > 128 ? 0 : COLS / 32;
    // Stages, 16 bytes a note of a stage and of a tile, then barriers.
    static constexpr int stage_notes_at = STAGES * stage_bytes;
    static constexpr int tile_notes_at = stage_notes_at + STAGES * 16;
    static constexpr int barriers_at = tile_notes_at + tile_slots * 16;
    static constexpr int share_at = barriers_at + barrier_ring::bytes * (STAGES + tile_slots);
    static constexpr int turn_at = share_at + 32;
    static constexpr int numbers_at = turn_at + 16;
    static constexpr int shared_bytes = numbers_at + (ADDS ? 0 : 3 * COLS * 4) + stage_alignment;
    static_assert(GROUPS <= 4, "turns before the numbers");
};

// What a stage is to those who multiply it.
enum igemm_note : int {
    NOTE_GROUPS = 15, // bits of groups that take part
    NOTE_FIRST = 16,  // the tile's first
    NOTE_LAST = 32,   // the tile's last
    NOTE_STOP = 64    // no more tiles
};

template <class P> struct igemm_sm90_block {
    uint32_t base; // of shared memory, aligned to 1024

    __device__ uint32_t stage(int s) const { return base + s * P::stage_bytes; }
    __device__ barrier_ring stages() const { return {base + P::barriers_at}; }
    __device__ barrier_ring tiles() const { return {stages().full(P::STAGES)}; }
    // {flags, tile, column tile, -}; of rows of groups {flags, first row, column tile, end}
    __device__ uint32_t stage_note(int s) const { return base + P::stage_notes_at + s * 16; }
    // {first record, records, tile, column tile}; no records: no more tiles
    __device__ uint32_t tile_note(int s) const { return base + P::tile_notes_at + s * 16; }
    __device__ uint32_t share() const { return base + P::share_at; } // igemm_share
    __device__ uint32_t first_tile() const { return share() + 16; }  // as a tile's note
    // Whose turn it is among the shares of a tile.
    __device__ uint32_t turn(int group) const { return base + P::turn_at + 4 * group; }
    // Bias, scale and shift of the columns.
    __device__ uint32_t numbers() const { return base + P::numbers_at; }
};

// ---- Tiles --------------------------------------------------------------------------------------

__device__ __forceinline__ int4 igemm_tile(const igemm_sm90_params &p, int number)
{
    if (number >= *p.num_tiles * p.col_tiles) return make_int4(0, 0, 0, 0);
    int4 tile = __ldg(p.tiles + number / p.col_tiles);
    if (p.records != nullptr) tile.w = number % p.col_tiles;
    return tile;
}

// Of rows of groups, whose tiles may not be listed: then they are the rows in order.
__device__ __forceinline__ int4 igemm_row_tile(const igemm_sm90_params &p, int number)
{
    if (p.tiles != nullptr) return igemm_tile(p, number);
    const int rows = rows_that_count(p);
    const int64_t first = (int64_t)(number / p.col_tiles) * SPOPS_IGEMM_TILE_ROWS;
    if (first >= rows) return make_int4(0, 0, 0, 0);
    return make_int4((int)first, (int)first + min(rows - (int)first, SPOPS_IGEMM_TILE_ROWS), 0, 0);
}

// The range of work that this block owns. `each` is the length of a range; 0: blocks take tiles from a
// counter instead. Work is counted in records. A tile counts p.tile_cost more for its epilogue, because
// rows that lack most taps are neighbours and fill many tiles.
struct igemm_share {
    int begin, end, each, num_tiles;
};

template <class P>
__device__ __forceinline__ igemm_share igemm_share_of(const igemm_sm90_block<P> &block)
{
    if constexpr (!P::SHARES) return {0, 0, 0, 0};
    const int4 v = load_shared4<int4>(block.share());
    return {v.x, v.y, v.z, v.w};
}

__device__ __forceinline__ int igemm_work_before(const igemm_sm90_params &p, int tile)
{
    return __ldg(p.first + tile) + tile * p.tile_cost;
}

// What a share has of a tile.
__device__ __forceinline__ int4 igemm_part(const igemm_sm90_params &p, const igemm_share &share,
                                           int tile)
{
    if (tile >= share.num_tiles) return make_int4(0, 0, 0, 0);
    const int first = __ldg(p.first + tile), records = __ldg(p.first + tile + 1) - first;
    const int before = first + tile * p.tile_cost;
    const int begin = max(share.begin - before, 0), end = min(share.end - before, records);
    return make_int4(first + begin, max(end - begin, 0), tile, blockIdx.x % p.col_tiles);
}

// One warp: what is asked for of tiles before their number is known, where they may be shared and are few. A search
// would wait for memory three or four times.
struct igemm_few_tiles {
    static constexpr int each = 8; // of a lane; lane l has tiles l, l + 32, ..
    int first[each];

    __device__ static bool holds(const igemm_sm90_params &p) { return p.max_tiles < 32 * each; }
    __device__ void ask(const igemm_sm90_params &p, int lane)
    {
#pragma unroll
        for (int i = 0; i < each; ++i)
            first[i] = 32 * i + lane <= p.max_tiles ? __ldg(p.first + 32 * i + lane) : 0;
    }
    __device__ int of(int tile) const
    {
        int value = 0;
#pragma unroll
        for (int i = 0; i < each; ++i) { // chosen before the shuffle they would go to a stack
            const int v = __shfl_sync(~0u, first[i], tile % 32);
            if (tile / 32 == i) value = v;
        }
        return value;
    }
    // The last tile whose work begins at `work` or before.
    __device__ int last_before(const igemm_sm90_params &p, int work, int num_tiles, int lane) const
    {
        int n = 0;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int tile = 32 * i + lane;
            const bool before = tile < num_tiles && first[i] + tile * p.tile_cost <= work;
            n += __popc(__ballot_sync(~0u, before));
        }
        return n - 1;
    }
    // igemm_part.
    __device__ int4 part(const igemm_sm90_params &p, const igemm_share &share, int tile) const
    {
        if (tile >= share.num_tiles) return make_int4(0, 0, 0, 0);
        const int own = of(tile), records = of(tile + 1) - own, before = own + tile * p.tile_cost;
        const int begin = max(share.begin - before, 0), end = min(share.end - before, records);
        return make_int4(own + begin, max(end - begin, 0), tile, blockIdx.x % p.col_tiles);
    }
};

// One warp, for all, where blocks may share: the block's share and its first tile.
template <class P>
__device__ __forceinline__ void igemm_begin(const igemm_sm90_params &p,
                                            const igemm_sm90_block<P> &block, int lane)
{
    // LATE: asked for with the numbers that say whether it counts.
    const int own = blockIdx.x / p.col_tiles;
    int4 tile = make_int4(0, 0, 0, 0), maybe = tile;
    if (P::LATE && own < p.max_tiles) maybe = __ldg(p.tiles + own);
    igemm_few_tiles few;
    const bool are_few = P::LATE && p.shares > 0 && few.holds(p);
    if (are_few) few.ask(p, lane);
    igemm_share share = {0, 0, 0, *p.num_tiles};
    if (p.shares > 0 && share.num_tiles <= p.max_shared_tiles) {
        const int work = p.num_tiles[1] + share.num_tiles * p.tile_cost;
        share.each = max((work + p.shares - 1) / p.shares, p.least_share);
        share.begin = min((int)blockIdx.x / p.col_tiles * share.each, work);
        share.end = min(share.begin + share.each, work);
        if (are_few && share.begin < work) {
            const int low = few.last_before(p, share.begin, share.num_tiles, lane);
            tile = few.part(p, share, low);
            if (tile.y == 0) tile = few.part(p, share, low + 1); // after low's records
        }
        int low = 0, end = !are_few && share.begin < work ? share.num_tiles : 0; // where it begins
        while (end - low > 1) {
            const int step = (end - low + 31) / 32, at = low + lane * step;
            const bool before = at < end && igemm_work_before(p, at) <= share.begin;
            low += (__popc(__ballot_sync(~0u, before)) - 1) * step;
            end = min(low + step, end);
        }
        if (end > 0) tile = igemm_part(p, share, low);
        if (end > 0 && tile.y == 0) tile = igemm_part(p, share, low + 1); // after low's records
    } else if (!P::LATE) {
        tile = igemm_tile(p, blockIdx.x);
    } else if (own < share.num_tiles) {
        tile = maybe;
        tile.w = blockIdx.x % p.col_tiles;
    }
    if (lane == 0) {
        store_shared4(block.share(),
                      make_int4(share.begin, share.end, share.each, share.num_tiles));
        store_shared4(block.first_tile(), tile);
    }
}

// The last block puts the counters back: all of its fellows have read theirs by then.
__device__ __forceinline__ void igemm_leave(const igemm_sm90_params &p)
{
    __threadfence();
    if (atomicAdd(p.tickets + 1, 1) == gridDim.x - 1) {
        p.tickets[0] = 0;
        p.tickets[1] = 0;
    }
}

// One gather lane finds what the block takes next, tiles or pairs of tiles, ahead of time and tells the gather warps. It
// takes one step a stage (a number from the counter, then the rest), so it never waits for memory. Of: igemm_tiles_of, or
// igemm_pairs_of.
template <class Of> struct igemm_finder {
    const typename Of::params &p;
    const typename Of::block_type &block;
    int number, told = 0; // the last one's from the counter, or in the share; those told
    typename Of::found_type found;
    enum { NUMBER, REST, FOUND } state = NUMBER;

    __device__ igemm_finder(const typename Of::params &params, const typename Of::block_type &b,
                            int first)
        : p(params), block(b), number(first)
    {
    }

    __device__ void step()
    {
        if (state == FOUND) return;
        const igemm_share share = igemm_share_of(block);
        if (state == NUMBER) {
            number = share.each > 0 ? number + 1 : (int)(gridDim.x + atomicAdd(p.tickets, 1));
            state = REST;
        } else {
            found = Of::find(p, share, number);
            state = FOUND;
        }
    }

    // Tell number n of the block, its first being 0 and known to all.
    __device__ void tell(int n)
    {
        if (told >= n) return;
        Of::wait_for_counters(p);
        while (state != FOUND)
            step();
        Of::tell(*this, n);
        ++told;
        state = NUMBER;
    }
};

// Tiles, as their notes have them.
template <class P> struct igemm_tiles_of {
    typedef igemm_sm90_params params;
    typedef igemm_sm90_block<P> block_type;
    typedef int4 found_type;

    __device__ static int4 find(const params &p, const igemm_share &share, int number)
    {
        return share.each > 0 ? igemm_part(p, share, number) : igemm_tile(p, number);
    }
    __device__ static void wait_for_counters(const params &p)
    {
        if (p.early) grid_dependency_wait(); // counters are those of the kernel before too
    }
    __device__ static void tell(const igemm_finder<igemm_tiles_of> &f, int)
    {
        const int slot = f.told % P::tile_slots;
        barrier_wait(f.block.tiles().empty(slot), f.told / P::tile_slots % 2 ^ 1);
        store_shared4(f.block.tile_note(slot), f.found);
        barrier_arrive(f.block.tiles().full(slot));
    }
};

// ---- Weights ------------------------------------------------------------------------------------

// The 128 bytes of k that stage k of a record takes, of a matrix's columns: into the part of B that
// is the record's.
template <class P, operand B>
__device__ __forceinline__ void igemm_fetch_weights(const igemm_sm90_params &p, uint32_t b, int k,
                                                    int col_tile, int matrix, int record,
                                                    uint32_t full)
{
    const int at =
        P::LATE ? k * 128 >> (31 - __clz(p.epilogue.x_bytes)) : k * 128 / p.epilogue.x_bytes;
    const int col = col_tile * P::COLS;
    if (B == ALONG_K) {
        copy_box(b + record * P::COLS * p.record_bytes, &p.w, at, col, matrix, full);
    } else {
        const int lines = P::LATE ? p.record_bytes / 2 : p.record_bytes / p.epilogue.x_bytes;
#pragma unroll
        for (int c = 0; c < P::COLS / P::line_cols; ++c)
            copy_box(b + (c * 64 + record * lines) * P::line_cols * 2, &p.w, col + c * P::line_cols,
                     at, matrix, full);
    }
}

// ---- Gathered rows ------------------------------------------------------------------------------

// What a gather warp copies into one stage.
struct igemm_unit {
    int4 rows[4];                  // of 16 rows that follow each other in the tile
    int tap, note, tile, col_tile; // note: groups and flags, as a stage has them, + 256 k
    int groups;                    // LATE: not in the note yet
};

// A warp of group 0: the note of a stage, and the box of its weights.
template <class P, operand B>
__device__ __forceinline__ void
igemm_announce(const igemm_sm90_params &p, const igemm_sm90_block<P> &block, int slot, int4 tile,
               int tap, int note, int my_record, bool fetches, int lane)
{
    const uint32_t full = block.stages().full(slot);
    const int groups = note & NOTE_GROUPS;
    if (lane == 0) {
        store_shared4(block.stage_note(slot), make_int4(note & 255, tile.z, tile.w, 0));
        if (groups == 0)
            barrier_arrive(full);
        else
            barrier_arrive_expect(full, P::b_bytes);
    }
    __syncwarp();
    if (fetches && groups != 0) {
        const int matrix = p.last_tap >= 0 ? p.last_tap - tap : tap;
        igemm_fetch_weights<P, B>(p, block.stage(slot) + P::a_bytes, note >> 8, tile.w, matrix,
                                  my_record, full);
    }
    __syncwarp();
}

// The kernel before has ended, whose output the rows are; one thread then lets the next one begin.
__device__ __forceinline__ void igemm_wait_for_rows(bool lets_next_begin)
{
    grid_dependency_wait();
    if (lets_next_begin) grid_launch_dependents();
}

// One warp. 8 lanes to a row: a lane copies the 16 bytes lane % 8 of 16 rows. Few instructions a
// stage matter here, and that indices are asked for a unit before they are needed.
template <class P, operand B>
__device__ void igemm_gather(const igemm_sm90_params &p, const igemm_sm90_block<P> &block, int warp,
                             int lane)
{
    constexpr int record_ints = 4 + P::rows;
    const int group = warp % P::GROUPS;
    const int piece = lane % 8 * 16, quarter = lane / 8;
    const int records_a_stage = 128 / p.record_bytes;
    const int my_record = piece / p.record_bytes, my_byte = piece % p.record_bytes;
    const bool finds_tiles = warp == 0 && lane == 0;
    const bool fetches = group == 0 && quarter == 0 && my_byte == 0; // the weights of its record
    const int my_row = group * 64 + quarter * 16;
    uint32_t my_line[8]; // in a stage; 8 rows on, 1024 bytes on
#pragma unroll
    for (int j = 0; j < 8; ++j)
        my_line[j] = swizzled(my_row + j, lane % 8);
    ring_position<P::STAGES> stage;
    stage.at = warp / P::GROUPS;
    int tiles = 0; // of the block that this warp has left
    int4 tile = P::SHARES ? load_shared4<int4>(block.first_tile()) : igemm_tile(p, blockIdx.x);
    int record = 0, k = warp / P::GROUPS; // of the tile, where the warp's next stage begins
    igemm_finder<igemm_tiles_of<P>> finder(p, block, tile.z);

    // The warp's next unit, whose rows are asked for.
    const auto locate = [&](igemm_unit &u) {
        while (k >= p.row_stages) {
            k -= p.row_stages;
            record += records_a_stage;
        }
        while (record >= tile.y && tile.y > 0) {
            record -= (tile.y + records_a_stage - 1) & -records_a_stage;
            const int slot = tiles % P::tile_slots;
            if (finds_tiles) finder.tell(tiles + 1);
            __syncwarp();
            barrier_wait(block.tiles().full(slot), tiles / P::tile_slots % 2);
            // A lane reads for all, as igemm_multiply does.
            if (lane == 0) {
                tile = load_shared4<int4>(block.tile_note(slot));
                barrier_arrive(block.tiles().empty(slot));
            }
            tile.x = __shfl_sync(~0u, tile.x, 0);
            tile.y = __shfl_sync(~0u, tile.y, 0);
            tile.z = __shfl_sync(~0u, tile.z, 0);
            tile.w = __shfl_sync(~0u, tile.w, 0);
            ++tiles;
        }
        u.note = NOTE_STOP;
        if (tile.y == 0) return;
        u.note = k << 8;
        if (record == 0 && k == 0) u.note |= NOTE_FIRST;
        if (record + records_a_stage >= tile.y && k == p.row_stages - 1) u.note |= NOTE_LAST;
        u.tile = tile.z;
        u.col_tile = tile.w;
        // In a tile's last stage records may lack: their lines are zero in A, and want numbers in B
        // all the same: the last tap's.
        const bool there = record + my_record < tile.y;
        const int *const from =
            p.records + (int64_t)(tile.x + min(record + my_record, tile.y - 1)) * record_ints;
        const int2 head = __ldg(reinterpret_cast<const int2 *>(from));
        u.tap = head.x;
        if constexpr (P::LATE)
            u.groups = head.y; // or'ed to the note here, it would be waited for here
        else
            u.note |= head.y;
        const int4 *const indices = reinterpret_cast<const int4 *>(from + 4 + my_row);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            u.rows[i] = there ? __ldg(indices + i) : make_int4(-1, -1, -1, -1);
        k += P::stride;
    };

    const auto copy = [&](const igemm_unit &u) {
        const uint32_t to = block.stage(stage.at), full = block.stages().full(stage.at);
        const int own_note = P::LATE ? u.note | u.groups : u.note;
        const int note =
            records_a_stage == 1 ? own_note : (int)__reduce_or_sync(~0u, (unsigned)own_note);
        const int groups = note & NOTE_GROUPS, stage_k = note >> 8;
        const bool waits = p.early && stage.round == 0; // weights need not wait
        if (finds_tiles && !waits) finder.step();
        barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
        if (group == 0)
            igemm_announce<P, B>(p, block, stage.at, make_int4(0, 0, u.tile, u.col_tile), u.tap,
                                 note, my_record, fetches, lane);
        if (waits) igemm_wait_for_rows(finds_tiles);
        if (groups >> group & 1) {
            const int byte = stage_k * 128 + my_byte;
            const bool inside = byte < p.row_bytes;
            const unsigned char *const from = p.gathered + (inside ? byte : 0);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row[4] = {u.rows[i].x, u.rows[i].y, u.rows[i].z, u.rows[i].w};
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    copy_async_if(to + my_line[(4 * i + c) % 8] + i / 2 * 1024,
                                  from + (uint64_t)(uint32_t)max(row[c], 0) * p.row_stride,
                                  inside && row[c] >= 0);
            }
        }
        barrier_arrive_copies(full);
        stage.advance_by(P::stride);
    };

    // Two units by turns: to move one in registers would be to wait for its indices.
    igemm_unit a, b;
    locate(a);
    while ((a.note & NOTE_STOP) == 0) {
        locate(b);
        copy(a);
        if (b.note & NOTE_STOP) break;
        locate(a);
        copy(b);
    }
    if (record == 0 && k == 0) { // the stage after the last is this warp's
        barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
        if (group == 0 && lane == 0) {
            store_shared4(block.stage_note(stage.at), make_int4(NOTE_STOP, 0, 0, 0));
            barrier_arrive(block.stages().full(stage.at));
        }
        barrier_arrive_copies(block.stages().full(stage.at));
    }
    if (p.early) igemm_wait_for_rows(finds_tiles); // a block without work
    if (finds_tiles) igemm_leave(p);
    copy_async_wait_all();
}

// ---- Gathered rows, some of them sums -----------------------------------------------------------

// What a gather warp brings into one stage. It is asked for a stage ahead, and whatever touched it before
// its turn would wait for it. A lane keeps one number of the record's head, because the compiler moves
// what all lanes load alike into uniform registers at once, and waits.
struct igemm_adding_unit {
    int4 rows[4]; // as igemm_unit
    int head;     // number lane % 4
    int note;     // k and flags, without groups
};

// A gather warp's place among its stages.
template <class P> struct igemm_adding_walk {
    const igemm_sm90_params &p;
    const igemm_sm90_block<P> &block;
    int number;        // of the block's tiles, or of the tiles as they lie
    int record = 0, k; // of the tile, where the warp's next stage begins
    int4 tile;         // of the unit that was located last

    __device__ igemm_adding_walk(const igemm_sm90_params &params, const igemm_sm90_block<P> &b,
                                 int turn)
        : p(params), block(b), number(blockIdx.x), k(turn)
    {
        tile = P::SHARES ? load_shared4<int4>(block.first_tile()) : igemm_tile(p, blockIdx.x);
        if (igemm_share_of(block).each > 0) number = tile.z;
    }
    __device__ void next_tile()
    {
        const igemm_share share = igemm_share_of(block);
        if (share.each > 0)
            tile = igemm_part(p, share, ++number);
        else
            tile = igemm_tile(p, number += gridDim.x);
    }
    // The warp's next unit, which is asked for.
    __device__ void locate(igemm_adding_unit &u, int group, int lane)
    {
        while (k >= p.row_stages) { // few, and a division is slower
            k -= p.row_stages;
            ++record;
        }
        while (record >= tile.y && tile.y > 0) {
            record -= tile.y;
            next_tile();
        }
        u.note = NOTE_STOP;
        if (tile.y == 0) return;
        const int *const from = p.records + (int64_t)(tile.x + record) * (4 + P::rows);
        const int4 *const rows = reinterpret_cast<const int4 *>(from + 4 + group * 64);
        u.head = __ldg(from + lane % 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            u.rows[i] = __ldg(rows + lane / 8 * 4 + i);
        u.note = k << 8;
        if (record == 0 && k == 0) u.note |= NOTE_FIRST;
        if (record == tile.y - 1 && k == p.row_stages - 1) u.note |= NOTE_LAST;
        k += P::stride;
    }
};

// igemm_gather with rows that are sums. One takes two or three times the latency of L2, so many warps
// take turns, and each asks for its next stage before it fills this one. Tiles are dealt out by number:
// the registers of a finder would be missed.
template <class P, class T, operand B>
__device__ void igemm_gather_adding(const igemm_sm90_params &p, const igemm_sm90_block<P> &block,
                                    int warp, int lane)
{
    const int group = warp % P::GROUPS;
    const int piece = lane % 8 * 16, quarter = lane / 8;
    ring_position<P::STAGES> stage;
    stage.at = warp / P::GROUPS;
    igemm_adding_walk<P> walk(p, block, stage.at);
    igemm_adding_unit u;
    walk.locate(u, group, lane);

    while ((u.note & NOTE_STOP) == 0) {
        const uint32_t full = block.stages().full(stage.at);
        const uint32_t to = block.stage(stage.at) + group * 64 * 128;
        const int note = u.note | __shfl_sync(~0u, u.head, 1), sums = __shfl_sync(~0u, u.head, 3);
        const int byte = (note >> 8) * 128 + piece;
        const bool inside = byte < p.row_bytes;
        const int first = __shfl_sync(~0u, u.head, 2) + (group == 0 ? 0 : sums & 0xffff);
        const int num = !inside ? 0 : group == 0 ? sums & 0xffff : sums >> 16;
        int4 sum[P::BATCH];
        load_sums(p.sums, first, num, quarter, sum);
        barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
        if (group == 0)
            igemm_announce<P, B>(p, block, stage.at, walk.tile, __shfl_sync(~0u, u.head, 0), note,
                                 0, lane == 0, lane);
        const unsigned char *from = p.gathered + (inside ? byte : 0);
        asm("" : "+l"(from)); // else the base is added again for each row
        if (note >> group & 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row[4] = {u.rows[i].x, u.rows[i].y, u.rows[i].z, u.rows[i].w};
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    if (row[c] != -2 || !inside)
                        copy_async_if(to + swizzled(quarter * 16 + 4 * i + c, lane % 8),
                                      row_at(from, p.row_stride, max(row[c], 0)),
                                      inside && row[c] >= 0);
            }
        }
        barrier_arrive_copies(full);
        walk.locate(u, group, lane); // asked for before this stage is full
        gather_sums<T, 1>(sum, p.members, from, p.row_stride, 0, 16, to, lane % 8, 0);
        for (int begin = 4 * P::BATCH; begin < num; begin += 4 * P::BATCH) {
            load_sums(p.sums, first, num, begin + quarter, sum);
            gather_sums<T, 1>(sum, p.members, from, p.row_stride, 0, 16, to, lane % 8, 0);
        }
        barrier_arrive(full);
        stage.advance_by(P::stride);
    }
    if (walk.record == 0 && walk.k == 0) { // the stage after the last is this warp's
        const uint32_t full = block.stages().full(stage.at);
        barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
        if (group == 0 && lane == 0) {
            store_shared4(block.stage_note(stage.at), make_int4(NOTE_STOP, 0, 0, 0));
            barrier_arrive(full);
        }
        barrier_arrive_copies(full);
        barrier_arrive(full);
    }
    copy_async_wait_all();
}

// ---- Rows of groups -----------------------------------------------------------------------------

// One thread. A tile is {first row, end, matrix, -}. Blocks take every so many-th tile, which are
// nearly alike, so that these calls need no counter.
template <class P, operand B>
__device__ void igemm_load_rows(const igemm_sm90_params &p, const igemm_sm90_block<P> &block)
{
    ring_position<P::STAGES> stage;
    int4 next = igemm_row_tile(p, blockIdx.x);
    for (int number = blockIdx.x; next.y > 0; number += gridDim.x) {
        const int4 tile = next;
        next = igemm_row_tile(p, number + gridDim.x); // on its way while this one is loaded
        const int groups = (1 << (tile.y - tile.x + 63) / 64) - 1;
        for (int k = 0; k < p.row_stages; ++k) {
            const uint32_t to = block.stage(stage.at), full = block.stages().full(stage.at);
            int flags = groups;
            if (k == 0) flags |= NOTE_FIRST;
            if (k == p.row_stages - 1) flags |= NOTE_LAST;
            barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
            store_shared4(block.stage_note(stage.at),
                          make_int4(flags, tile.x, number % p.col_tiles, tile.y));
            barrier_arrive_expect(full, P::b_bytes + __popc(groups) * 64 * 128);
            for (int g = 0; groups >> g & 1; ++g)
                copy_box(to + g * 64 * 128, &p.x, k * 128 / p.epilogue.x_bytes, tile.x + g * 64, 0,
                         full);
            igemm_fetch_weights<P, B>(p, to + P::a_bytes, k, number % p.col_tiles, tile.z, 0, full);
            stage.advance();
        }
    }
    barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
    store_shared4(block.stage_note(stage.at), make_int4(NOTE_STOP, 0, 0, 0));
    barrier_arrive(block.stages().full(stage.at));
}

// ---- Partial sums -------------------------------------------------------------------------------

template <class S> struct four_of;
template <> struct four_of<float> {
    typedef float4 type;
};
template <> struct four_of<int> {
    typedef int4 type;
};

// One warpgroup, which has the sums of its rows of a part of a tile. If the tile is in several
// shares, all but the last leave them and go; the last gets the sums of all. Returns whether the sums
// are the tile's.
template <class P, class S>
__device__ bool igemm_join(const igemm_sm90_params &p, const igemm_sm90_block<P> &block,
                           S (&sum)[P::COLS / 2], int tile, int group, int t)
{
    typedef typename four_of<S>::type four;
    if (p.shares == 0) return true; // no block has a share: nobody wrote one
    const igemm_share share = igemm_share_of(block);
    if (share.each == 0) return true;
    const int before = igemm_work_before(p, tile);
    const int records = __ldg(p.first + tile + 1) - __ldg(p.first + tile);
    const int first = before / share.each, last = (before + records - 1) / share.each;
    if (first == last) return true;
    const int own = blockIdx.x / p.col_tiles, col_tile = blockIdx.x % p.col_tiles;
    // What a share has of a tile that began before it comes first, then of one that goes on.
    const auto place = [&](int s) {
        const int64_t part = (2 * s + (s == first)) * p.col_tiles + col_tile;
        return reinterpret_cast<four *>(p.partials) +
               (part * P::GROUPS + group) * (P::COLS / 8 * 128) + t;
    };
    four *const to = place(own);
#pragma unroll
    for (int i = 0; i < P::COLS / 8; ++i)
        __stcg(to + i * 128, four{sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]});
    __threadfence();
    const auto wait_for_group = [&] { named_barrier_wait<128>(1 + group); };
    uint32_t *const ticket =
        p.tickets + igemm_tickets + (first * p.col_tiles + col_tile) * P::GROUPS + group;
    wait_for_group();
    if (t == 0) {
        const uint32_t turn = atomicAdd(ticket, 1);
        store_shared(block.turn(group), turn);
    }
    wait_for_group();
    if (load_shared_word(block.turn(group)) != last - first) return false;
    __threadfence();
    if (t == 0) *ticket = 0;
#pragma unroll
    for (int i = 0; i < P::COLS / 2; ++i)
        sum[i] = 0.0f;
    for (int s = first; s <= last; ++s) {
        const four *const from = place(s);
        constexpr int at_once = P::COLS % 64 == 0 ? 8 : 4;
#pragma unroll
        for (int begin = 0; begin < P::COLS / 8; begin += at_once) {
            four got[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i)
                got[i] = __ldcg(from + (begin + i) * 128);
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                sum[4 * (begin + i)] += got[i].x;
                sum[4 * (begin + i) + 1] += got[i].y;
                sum[4 * (begin + i) + 2] += got[i].z;
                sum[4 * (begin + i) + 3] += got[i].w;
            }
        }
    }
    return true;
}

// sum[j][..] += the parts of shares begin .. end - 1, each added to those before it. place(s): where share s left
// its part.
template <int HALVES, int N, class Place>
__device__ __forceinline__ void igemm_add_parts(float (&sum)[HALVES][N], int begin, int end,
                                                const Place &place)
{
    constexpr int at_once = N % 32 == 0 ? 8 : 4;
    static_assert(N / 4 % at_once == 0, "all are added, and no more");
    for (int s = begin; s < end; ++s) {
        const float4 *const from = place(s);
#pragma unroll
        for (int at = 0; at < HALVES * N / 4; at += at_once) {
            float4 got[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i)
                got[i] = __ldcg(from + (at + i) * 128);
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                float *const to = &sum[(at + i) / (N / 4)][(at + i) % (N / 4) * 4];
                to[0] += got[i].x;
                to[1] += got[i].y;
                to[2] += got[i].z;
                to[3] += got[i].w;
            }
        }
    }
}

// sum = (part of share first + .. + part of share own - 1) + sum.
template <int HALVES, int N, class Place>
__device__ __forceinline__ void igemm_add_before(float (&sum)[HALVES][N], int first, int own,
                                                 const Place &place)
{
    constexpr int at_once = 4;
    static_assert(N / 4 % at_once == 0, "all are added, and no more");
#pragma unroll
    for (int at = 0; at < HALVES * N / 4; at += at_once) {
        float4 all[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i)
            all[i] = __ldcg(place(first) + (at + i) * 128);
        for (int s = first + 1; s < own; ++s) {
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                const float4 got = __ldcg(place(s) + (at + i) * 128);
                all[i].x += got.x;
                all[i].y += got.y;
                all[i].z += got.z;
                all[i].w += got.w;
            }
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            float *const to = &sum[(at + i) / (N / 4)][(at + i) % (N / 4) * 4];
            to[0] = all[i].x + to[0];
            to[1] = all[i].y + to[1];
            to[2] = all[i].z + to[2];
            to[3] = all[i].w + to[3];
        }
    }
}

// One warpgroup, as igemm_join: GROUPS of them in a block, each with a ticket of its own. The one that comes last
// leaves no part: it takes those of the others, which are there or being written by blocks that run, and adds its own
// where it belongs. So a tile in two shares is written once and read once.
//
// A ticket counts those who came, and above 16 bits those whose part is there.
template <class P, int GROUPS, int HALVES, int N>
__device__ bool igemm_join_parts(const igemm_sm90_params &p, const igemm_sm90_block<P> &block,
                                 float (&sum)[HALVES][N], int tile, int group, int t)
{
    if (p.shares == 0) return true;
    const igemm_share share = igemm_share_of(block);
    if (share.each == 0) return true;
    const int before = igemm_work_before(p, tile);
    const int records = __ldg(p.first + tile + 1) - __ldg(p.first + tile);
    const int first = before / share.each, last = (before + records - 1) / share.each;
    if (first == last) return true;
    const int own = blockIdx.x / p.col_tiles, col_tile = blockIdx.x % p.col_tiles;
    // What a share has of a tile that began before it comes first, then of one that goes on.
    const auto place = [&](int s) {
        const int64_t part = (2 * s + (s == first)) * p.col_tiles + col_tile;
        return reinterpret_cast<float4 *>(p.partials) +
               (part * GROUPS + group) * (HALVES * N / 4 * 128) + t;
    };
    uint32_t *const ticket =
        p.tickets + igemm_tickets + (first * p.col_tiles + col_tile) * GROUPS + group;
    if (t == 0) store_shared(block.turn(group), atomicAdd(ticket, 1) & 0xffff);
    named_barrier_wait<128>(1 + group);
    const uint32_t others = last - first;
    if (load_shared_word(block.turn(group)) < others) {
        float4 *const to = place(own);
#pragma unroll
        for (int i = 0; i < HALVES * N / 4; ++i) {
            const float *const from = &sum[i / (N / 4)][i % (N / 4) * 4];
            __stcg(to + i * 128, float4{from[0], from[1], from[2], from[3]});
        }
        __threadfence();
        named_barrier_wait<128>(1 + group);
        if (t == 0) atomicAdd(ticket, 1 << 16);
        return false;
    }
    if (t == 0) {
        while (*reinterpret_cast<volatile uint32_t *>(ticket) >> 16 != others) {
        }
        *ticket = 0;
    }
    named_barrier_wait<128>(1 + group);
    __threadfence();
    if (own > first) igemm_add_before(sum, first, own, place);
    igemm_add_parts(sum, own + 1, last + 1, place);
    return true;
}

// ---- Products -----------------------------------------------------------------------------------

// One warpgroup, rows 64 * group .. of each tile.
template <class P, class T, operand B>
__device__ void igemm_multiply(const igemm_sm90_params &p, const igemm_sm90_block<P> &block,
                               int group, int t)
{
    // Lines of B hold 128 bytes of k, or of columns; or fewer: along k those of one record, across
    // k the tile's.
    const int line_bytes = B == ACROSS_K ? P::line_cols * 2 : p.record_bytes;
    const swizzle lines = line_bytes == 128 ? SWIZZLE_128 : SWIZZLE_64;
    const uint64_t a_form = descriptor(SWIZZLE_128, 0, 1024);
    const uint64_t b_form = descriptor(lines, B == ACROSS_K ? 64 * line_bytes : 0, 8 * line_bytes);
    int b_step[4]; // where the columns of 32 bytes of k begin in the stage
#pragma unroll
    for (int i = 0; i < 4; ++i)
        b_step[i] = B == ACROSS_K
                        ? i * 16 * line_bytes
                        : i * 32 / line_bytes * P::COLS * line_bytes + i * 32 % line_bytes;
    ring_position<P::STAGES> stage;
    float sums[1][P::COLS / 2];
    float(&sum)[P::COLS / 2] = sums[0];

    if (!P::ADDS && p.early)
        grid_dependency_wait(); // parts and out are those of kernels before too
    for (;;) {
        int out_row[2] = {-1, -1};
        int flags, tile = 0, col_tile = 0;
        bool begun = false;
        do {
            barrier_wait(block.stages().full(stage.at), stage.full_parity());
            // A lane reads the note for all, because it arrives for all that it has been read. A
            // reduction tells them: its result lies in a uniform register, and so the stage's place.
            int4 note = make_int4(0, 0, 0, 0);
            if (t % 32 == 0) note = load_shared4<int4>(block.stage_note(stage.at));
            flags = (int)__reduce_or_sync(~0u, (unsigned)note.x);
            if (flags & NOTE_STOP) return;
            if (flags & NOTE_FIRST) {
                const int end = __shfl_sync(~0u, note.w, 0);
                tile = __shfl_sync(~0u, note.y, 0); // or first row
                col_tile = __shfl_sync(~0u, note.z, 0);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = group * 64 + t / 32 * 16 + h * 8 + t % 32 / 4;
                    if (p.records != nullptr)
                        out_row[h] = __ldg(p.out_rows + (int64_t)tile * P::rows + row);
                    else
                        out_row[h] = tile + row < end ? tile + row : -1;
                }
            }
            if (flags >> group & 1) {
                const uint32_t a = block.stage(stage.at) + group * 64 * 128;
                const uint32_t b = block.stage(stage.at) + P::a_bytes;
                fence_for_wgmma();
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    wgmma<T, P::COLS, ALONG_K, B>::run(sum, at_address(a_form, a + i * 32),
                                                       at_address(b_form, b + b_step[i]),
                                                       begun || i > 0);
                wgmma_commit();
                wgmma_wait<0>();
                begun = true;
            }
            release_slot(block.stages().empty(stage.at), t % 32);
            stage.advance();
        } while ((flags & NOTE_LAST) == 0);
        if (!begun) {
#pragma unroll
            for (int i = 0; i < P::COLS / 2; ++i)
                sum[i] = 0.0f;
        }
        bool whole;
        if constexpr (P::LATE)
            whole = igemm_join_parts<P, P::GROUPS>(p, block, sums, tile, group, t);
        else
            whole = igemm_join<P>(p, block, sum, tile, group, t);
        if (whole)
            store_sums<T, P::COLS, P::residual_ahead>(
                p.epilogue, sum, out_row, col_tile * P::COLS, t % 4,
                !P::ADDS && p.keeps_numbers ? block.numbers() : 0);
    }
}

// Warps 4 to 7: bias, scale and shift to shared memory.
template <class P>
__device__ __forceinline__ void igemm_keep_numbers(const igemm_sm90_params &p,
                                                   const igemm_sm90_block<P> &block)
{
    const epilogue_params &e = p.epilogue;
    for (int i = (int)threadIdx.x - 128; i < 3 * P::COLS; i += 128) {
        const int col = i % P::COLS;
        const float *const from = i < P::COLS ? e.bias : i < 2 * P::COLS ? e.scale : e.shift;
        const float v = from != nullptr && col < e.cols ? __ldg(from + col) : 0.0f;
        store_shared(block.numbers() + 4 * i, __float_as_uint(v));
    }
}

template <class P, class T, operand B>
__global__ void __launch_bounds__(P::threads, P::BLOCKS)
    igemm_sm90_kernel(const __grid_constant__ igemm_sm90_params p)
{
    extern __shared__ char unaligned[];
    igemm_sm90_block<P> block;
    block.base = aligned_shared(unaligned);
    if (P::LATE && threadIdx.x == 32) prefetch_tensor_map(&p.w);
    if (threadIdx.x == 0) {
        const int filling = p.records != nullptr ? (P::ADDS ? 64 : 32) * P::GROUPS + 1 : 1;
        block.stages().init(P::STAGES, filling, 4 * P::GROUPS);
        block.tiles().init(P::tile_slots, 1, P::GATHER_WARPS);
        barrier_init_done();
    }
    if (P::ADDS || !p.early) {
        grid_dependency_wait();
        grid_launch_dependents();
    }
    if (P::SHARES && threadIdx.x / 32 == 1 && p.records != nullptr)
        igemm_begin(p, block, threadIdx.x % 32);
    if (!P::ADDS && p.keeps_numbers && threadIdx.x / 128 == 1) igemm_keep_numbers(p, block);
    __syncthreads();

    run_roles<P>([&](int warp) { igemm_multiply<P, T, B>(p, block, warp / 4, threadIdx.x % 128); },
                 [&](int warp) {
                     if constexpr (P::ADDS)
                         igemm_gather_adding<P, T, B>(p, block, warp, threadIdx.x % 32);
                     else if (p.records != nullptr)
                         igemm_gather<P, B>(p, block, warp, threadIdx.x % 32);
                     else if (threadIdx.x == 128 * P::GROUPS)
                         igemm_load_rows<P, B>(p, block);
                 });
}

} // namespace spops

#endif
