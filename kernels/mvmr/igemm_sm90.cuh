// The main loop of products of gathered rows with the matrices of taps, for sm_90a: out[i] = finish(
// sum over taps k of x[row of i at k] * W[k]). Output-stationary: the sum of a tile of output rows
// stays in registers while the block walks the taps that the tile has, so there are no atomics and
// no buffers, and a sum has the same bits whichever block makes it. The recipe is that of gathered products in mixtures of
// experts (SonicMoE, arXiv 2512.14080); skipping taps by masks is that of spconv and TorchSparse++.
//
// One block, tile of 64 * GROUPS rows by COLS columns, persistent: it takes tiles, heaviest first,
// from a counter.
//
//     warps               role
//     4 * GROUPS          multiply: a warpgroup to each 64 rows, sums in registers, epilogue
//     4                   gather: rows of x into a stage. One of their threads also fetches the
//                         weights, another finds the next tile
//
// A stage is 128 bytes of k for all rows (A) and columns (B) of the tile: A is gathered by copy_async
// into swizzled lines, one a row; B comes by box copies from W as it lies in memory, one line a
// column or, where W has columns along its lines, one line a k. Where a row has more than 128 bytes,
// a record (igemm_args.h) makes several stages; where it has at most 64 or 32, two or four records
// share a stage.
//
//     barrier             arrivals                              means
//     stage full          128 copies of the gather threads, 1   rows, weights and note are there
//                         + bytes of the weights
//     stage empty         4 * GROUPS (a lane of each warp)      its products have ended
//     tile full           1                                     the next tile's note is there
//     tile empty          4 (a lane of each gather warp)        it has been read
//
// Steady state, time downwards, one column a role:
//
//     gather, two threads gather                      multiply
//                         indices of stage s to       wait stage s full
//                           registers, those of       4 wgmma on stage s
//                           stage s+4 asked for
//     step to next tile   for each 128 bytes of k:    wait for them
//                           wait stage empty          stage s given back
//     note, box copies      16-byte copies of rows    ... at a tile's last stage: epilogue from
//       of W                arrive when they land       registers while the next tile's stages
//                                                       fill
//
// So an index is asked for 4 stages before its row is, a row STAGES stages before its product, and
// nothing in the block waits for all of its warps. A group that has no row at a record is neither
// gathered nor multiplied: tiles of 256 rows share weights and still pad like tiles of 64. A group
// waits for the products of a stage before it begins the next: what it would gain by not waiting,
// the other groups and blocks of the multiprocessor do meanwhile, and the compiler keeps products
// asynchronous only where it can see that no branch may skip them.
//
// Tried and left, on an H200: records by bulk copies through a ring that one gather thread kept
// filled (1.2 to 1.8 us a record, more than twice what its rows take); indices asked for one record
// ahead into registers (0.9 to 1.1 us a record: the latency of that load).
#ifndef SPOPS_KERNELS_MVMR_IGEMM_SM90_CUH
#define SPOPS_KERNELS_MVMR_IGEMM_SM90_CUH

#include "kernels/mvmr/igemm_epilogue.cuh"
#include "kernels/mvmr/hopper.cuh"

namespace spops
{

struct igemm_sm90_params {
    CUtensorMap w; // 3D: along a line, lines, taps
    const unsigned char *x;
    uint32_t x_row_bytes;
    int row_bytes;    // of C_in numbers
    int record_bytes; // of a stage's line that one record fills: 128, 64 or 32
    int row_stages;   // stages a record makes (1 where record_bytes is below 128)
    const int4 *tiles;
    const int *num_tiles;
    const int *records;
    const int *out_rows;
    int last_tap; // num_taps - 1 for mirrored taps, else -1
    int col_tiles;
    uint32_t *tickets;
    epilogue_params epilogue;
};

// COLS columns, GROUPS warpgroups of 64 rows, STAGES stages, BLOCKS blocks a multiprocessor.
template <int COLS_, int GROUPS_, int STAGES_, int BLOCKS_> struct igemm_sm90_policy {
    static constexpr int COLS = COLS_, GROUPS = GROUPS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int rows = 64 * GROUPS;
    static constexpr int threads = 128 * GROUPS + 128;
    static constexpr int tile_slots = 2;
    // A gather warp's own ring of records: how many stages ahead they are asked for, and what of a
    // stage's records (at most 4) the warp needs: 16 bytes of head each, 4 of every 16 rows.
    static constexpr int ahead = 4;
    static constexpr int record_parts = 1 + 4 * GROUPS;
    static constexpr int item_bytes = 16 + 4 * record_parts * 16;
    static constexpr int a_bytes = rows * 128, b_bytes = COLS * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    // Where an equal share of the registers is not enough for the sums, the multiplying warps take
    // some of the gather warps'. More than the block began with is never to be had.
    static constexpr bool moves_registers = COLS == 256;
    static constexpr int registers = 65536 / threads / 8 * 8;
    static constexpr int gather_registers = 88;
    static constexpr int multiply_registers =
        ((GROUPS + 1) * registers - gather_registers) / GROUPS / 8 * 8;
    // Stages, rings of records, 16 bytes a note of a stage and of a tile, then barriers.
    static constexpr int items_at = STAGES * stage_bytes;
    static constexpr int stage_notes_at = items_at + 4 * (ahead + 1) * item_bytes;
    static constexpr int tile_notes_at = stage_notes_at + STAGES * 16;
    static constexpr int barriers_at = tile_notes_at + tile_slots * 16;
    static constexpr int shared_bytes = barriers_at + 16 * (STAGES + tile_slots) + 1024; // to align
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
    char *shared;  // the same

    __device__ uint32_t stage(int s) const { return base + s * P::stage_bytes; }
    __device__ uint32_t stage_full(int s) const { return base + P::barriers_at + s * 16; }
    __device__ uint32_t stage_empty(int s) const { return stage_full(s) + 8; }
    __device__ uint32_t tile_full(int s) const { return stage_full(P::STAGES + s); }
    __device__ uint32_t tile_empty(int s) const { return tile_full(s) + 8; }
    // {flags, tile, column tile, -}
    __device__ int4 *stage_note(int s) const
    {
        return reinterpret_cast<int4 *>(shared + P::stage_notes_at) + s;
    }
    // {first record, records, tile, column tile}; no records: no more tiles
    __device__ int4 *tile_note(int s) const
    {
        return reinterpret_cast<int4 *>(shared + P::tile_notes_at) + s;
    }
};

// What finds the block's next tile: one thread of the gather warps, a step a stage, so that it never
// waits for memory: it takes a number from the counter, then asks for the tile, then tells the
// others. It begins as late as that allows, because tiles that a block holds and has not begun are
// what makes blocks end at different times.
template <class P> struct igemm_tiles {
    const igemm_sm90_params &p;
    const igemm_sm90_block<P> &block;
    int total, number;
    int4 tile;
    enum { IDLE, NUMBER, TILE, TOLD } state = IDLE;
    ring_position<P::tile_slots> slot;

    __device__ igemm_tiles(const igemm_sm90_params &params, const igemm_sm90_block<P> &b, int n)
        : p(params), block(b), total(n)
    {
    }

    __device__ int4 load(int n) const
    {
        if (n >= total) return make_int4(0, 0, 0, 0);
        int4 v = __ldg(p.tiles + n / p.col_tiles);
        v.w = n % p.col_tiles;
        return v;
    }

    __device__ void step()
    {
        if (state == IDLE) {
            number = gridDim.x + atomicAdd(p.tickets, 1);
            state = NUMBER;
        } else if (state == NUMBER) {
            tile = load(number);
            state = TILE;
        } else if (state == TILE) {
            barrier_wait(block.tile_empty(slot.at), slot.empty_parity());
            *block.tile_note(slot.at) = tile;
            barrier_arrive(block.tile_full(slot.at));
            slot.advance();
            state = TOLD;
        }
    }

    // The last block puts the counters back: all of its fellows have read theirs by then.
    __device__ void leave()
    {
        __threadfence();
        if (atomicAdd(p.tickets + 1, 1) == gridDim.x - 1) {
            p.tickets[0] = 0;
            p.tickets[1] = 0;
        }
    }
};

// 128 threads, 8 to a row: thread t copies the 16 bytes t % 8 of rows 4 * (t / 8) .. + 3 of each
// group, so that their indices are 16 bytes of a record. Each warp has a ring of its own for the
// indices that its threads need. Few instructions a stage matter here: each warp is alone with them.
template <class P, operand B>
__device__ void igemm_gather(const igemm_sm90_params &p, const igemm_sm90_block<P> &block, int t)
{
    constexpr int record_bytes = (4 + P::rows) * 4;
    const int warp = t / 32, lane = t % 32;
    const int piece = t % 8 * 16, quad = t / 8;
    const int records_a_stage = 128 / p.record_bytes;
    const int my_record = piece / p.record_bytes;
    const int my_byte = piece % p.record_bytes;
    const uint32_t items = block.base + P::items_at + warp * (P::ahead + 1) * P::item_bytes;
    const uint32_t my_rows = 16 + (my_record * P::record_parts + 1 + quad % 4) * 16; // in an item
    uint32_t my_line[4]; // in a group's part of a stage
#pragma unroll
    for (int q = 0; q < 4; ++q)
        my_line[q] = (4 * quad + q) * 128 + (piece ^ ((4 * quad + q) % 8 << 4));
    constexpr int asks = (4 * P::record_parts + 31) / 32; // of a lane, a stage
    uint32_t my_part[asks];                               // in the stage's records
#pragma unroll
    for (int n = 0; n < asks; ++n) {
        const int i = (lane + 32 * n) / P::record_parts, q = (lane + 32 * n) % P::record_parts;
        my_part[n] =
            i * record_bytes + (q == 0 ? 0 : 16 + (q - 1) / 4 * 256 + warp * 64 + (q - 1) % 4 * 16);
    }
    ring_position<P::STAGES> stage;
    ring_position<P::tile_slots> slot;
    ring_position<P::ahead + 1> asked, item;
    igemm_tiles<P> tiles(p, block, *p.num_tiles * p.col_tiles);
    const bool finds_tiles = t == 32; // not the thread that fetches the weights
    int4 tile = tiles.load(blockIdx.x);
    int record = 0; // of the tile, that is asked for next

    // Ask for the records of one more stage. An item: {flags, tile, column tile, records}, then the
    // parts of each record: head, and 16 bytes of indices for each quad of each group.
    const auto ask = [&]() {
        if (record >= tile.y && tile.y > 0) {
            if (finds_tiles) {
                while (tiles.state != tiles.TOLD)
                    tiles.step();
                tiles.state = tiles.IDLE;
            }
            __syncwarp();
            barrier_wait(block.tile_full(slot.at), slot.full_parity());
            tile = *block.tile_note(slot.at);
            __syncwarp();
            if (lane == 0) barrier_arrive(block.tile_empty(slot.at));
            slot.advance();
            record = 0;
        }
        const uint32_t at = items + asked.at * P::item_bytes;
        const int records = min(tile.y - record, records_a_stage);
        if (lane == 0) {
            const int flags = tile.y == 0 ? NOTE_STOP
                                          : (record == 0 ? NOTE_FIRST : 0) |
                                                (record + records >= tile.y ? NOTE_LAST : 0);
            store_shared_16(at, make_int4(flags, tile.z, tile.w, records));
        }
        const char *const from =
            reinterpret_cast<const char *>(p.records) + (int64_t)(tile.x + record) * record_bytes;
#pragma unroll
        for (int n = 0; n < asks; ++n)
            if (lane + 32 * n < records * P::record_parts)
                copy_async(at + 16 + (lane + 32 * n) * 16, from + my_part[n], 16);
        record += records_a_stage;
        asked.advance();
    };

    for (int i = 0; i < P::ahead; ++i) {
        ask();
        copy_async_commit();
    }
    for (;;) {
        copy_async_wait<P::ahead - 1>(); // this stage's records, and rows of stages long before
        __syncwarp();
        const uint32_t here = items + item.at * P::item_bytes;
        const int4 note = load_shared_16(here);
        if (note.x & NOTE_STOP) break;
        const int4 head = load_shared_16(here + 16);
        int4 rows[P::GROUPS];
#pragma unroll
        for (int g = 0; g < P::GROUPS; ++g)
            rows[g] = load_shared_16(here + my_rows + g * 64);
        int groups = head.y;
        bool mine = true; // lines of a record that is not there, in a tile's last stage, are zero
        if (records_a_stage > 1) {
            for (int i = 1; i < note.w; ++i)
                groups |= load_shared_16(here + 16 + i * P::record_parts * 16).y;
            mine = my_record < note.w;
        }
        ask();
        if (finds_tiles && tile.y - record <= 4 * records_a_stage) tiles.step();
        for (int k = 0; k < p.row_stages; ++k) {
            const uint32_t to = block.stage(stage.at), full = block.stage_full(stage.at);
            barrier_wait(block.stage_empty(stage.at), stage.empty_parity());
            if (t == 0) {
                int flags = groups;
                if (k == 0) flags |= note.x & NOTE_FIRST;
                if (k == p.row_stages - 1) flags |= note.x & NOTE_LAST;
                *block.stage_note(stage.at) = make_int4(flags, note.y, note.z, 0);
                if (groups == 0) {
                    barrier_arrive(full);
                } else {
                    barrier_arrive_expect(full, P::b_bytes);
                    const int col = note.z * P::COLS;
                    int tap = head.x;
                    for (int i = 0; i < records_a_stage; ++i) {
                        // Lines that are zero in A want numbers in B all the same: the last tap's.
                        if (i > 0 && i < note.w)
                            tap = load_shared_16(here + 16 + i * P::record_parts * 16).x;
                        const int matrix = p.last_tap >= 0 ? p.last_tap - tap : tap;
                        const int k_bytes = k * 128, b = to + P::a_bytes;
                        if (B == ALONG_K) {
                            copy_box(b + i * P::COLS * p.record_bytes, &p.w,
                                     k_bytes / p.epilogue.x_bytes, col, matrix, full);
                        } else {
#pragma unroll
                            for (int c = 0; c < P::COLS / 64; ++c)
                                copy_box(b + c * 64 * 128 + i * p.record_bytes / 2 * 128, &p.w,
                                         col + c * 64, k_bytes / 2, matrix, full);
                        }
                    }
                }
            }
            __syncwarp();
            const int byte = k * 128 + my_byte;
            const bool inside = mine && byte < p.row_bytes;
            const unsigned char *const from = p.x + (inside ? byte : 0);
#pragma unroll
            for (int g = 0; g < P::GROUPS; ++g) {
                if ((groups >> g & 1) == 0) continue;
                const int row[4] = {rows[g].x, rows[g].y, rows[g].z, rows[g].w};
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    copy_async_if(to + g * 64 * 128 + my_line[q],
                                  from + (uint64_t)(uint32_t)max(row[q], 0) * p.x_row_bytes,
                                  inside && row[q] >= 0);
            }
            barrier_arrive_copies(full);
            stage.advance();
        }
        copy_async_commit();
        item.advance();
    }
    barrier_wait(block.stage_empty(stage.at), stage.empty_parity());
    if (t == 0) {
        *block.stage_note(stage.at) = make_int4(NOTE_STOP, 0, 0, 0);
        barrier_arrive(block.stage_full(stage.at));
    }
    barrier_arrive_copies(block.stage_full(stage.at));
    if (finds_tiles) tiles.leave();
    copy_async_wait_all();
}

// One warpgroup, rows 64 * group .. of each tile.
template <class P, class T, operand B>
__device__ void igemm_multiply(const igemm_sm90_params &p, const igemm_sm90_block<P> &block,
                               int group, int t)
{
    // Lines of B hold 128 bytes of k, or of columns; or, along k, those of one record.
    const swizzle lines = B == ACROSS_K || p.record_bytes == 128 ? SWIZZLE_128
                          : p.record_bytes == 64                 ? SWIZZLE_64
                                                                 : SWIZZLE_32;
    const uint64_t a_form = descriptor(SWIZZLE_128, 0, 1024);
    const uint64_t b_form = B == ACROSS_K ? descriptor(SWIZZLE_128, 64 * 128, 1024)
                                          : descriptor(lines, 0, 8 * p.record_bytes);
    int b_step[4]; // where the columns of 32 bytes of k begin in the stage
#pragma unroll
    for (int i = 0; i < 4; ++i)
        b_step[i] = B == ACROSS_K ? i * 16 * 128
                                  : i * 32 / p.record_bytes * P::COLS * p.record_bytes +
                                        i * 32 % p.record_bytes;
    ring_position<P::STAGES> stage;
    float sum[P::COLS / 2];

    for (;;) {
        int out_row[2] = {-1, -1};
        int4 note;
        bool begun = false;
        do {
            barrier_wait(block.stage_full(stage.at), stage.full_parity());
            note = *block.stage_note(stage.at);
            if (note.x & NOTE_STOP) return;
            if (note.x & NOTE_FIRST) {
                const int *rows = p.out_rows + (int64_t)note.y * P::rows + group * 64;
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    out_row[h] = __ldg(rows + t / 32 * 16 + h * 8 + t % 32 / 4);
            }
            if (note.x >> group & 1) {
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
            __syncwarp();
            if (t % 32 == 0) barrier_arrive(block.stage_empty(stage.at));
            stage.advance();
        } while ((note.x & NOTE_LAST) == 0);
        if (!begun) {
#pragma unroll
            for (int i = 0; i < P::COLS / 2; ++i)
                sum[i] = 0.0f;
        }
        store_sums<T, P::COLS>(p.epilogue, sum, out_row, note.z * P::COLS, t % 4);
    }
}

template <class P, class T, operand B>
__global__ void __launch_bounds__(P::threads, P::BLOCKS)
    igemm_sm90_kernel(const __grid_constant__ igemm_sm90_params p)
{
    extern __shared__ char unaligned[];
    igemm_sm90_block<P> block;
    block.shared = unaligned + (1024 - (__cvta_generic_to_shared(unaligned) & 1023)) % 1024;
    block.base = (uint32_t)__cvta_generic_to_shared(block.shared);
    if (threadIdx.x == 0) {
        for (int s = 0; s < P::STAGES; ++s) {
            barrier_init(block.stage_full(s), 129);
            barrier_init(block.stage_empty(s), 4 * P::GROUPS);
        }
        for (int s = 0; s < P::tile_slots; ++s) {
            barrier_init(block.tile_full(s), 1);
            barrier_init(block.tile_empty(s), 4);
        }
        barrier_init_done();
    }
    __syncthreads();

    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0), t = threadIdx.x % 128;
    if (role == P::GROUPS) {
        if (P::moves_registers) give_registers_back<P::gather_registers>();
        igemm_gather<P, B>(p, block, t);
    } else {
        if (P::moves_registers) take_registers<P::multiply_registers>();
        igemm_multiply<P, T, B>(p, block, role, t);
    }
}

} // namespace spops

#endif
