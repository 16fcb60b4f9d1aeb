// SPDX-License-Identifier: Apache-2.0
// igemm_sm90.cuh for two tiles at once, which follow each other: a stage has the rows of both, 256, and the
// weights of a tap that either has. So weights are read from L2 once for 256 rows and not for 128, which
// is a quarter of all bytes where a row has 128 columns of the output: bytes from L2 bind there.
//
//     warps               role
//     8                   multiply: a warpgroup to each tile, 64 rows twice, sums in registers, epilogue
//     GATHER_WARPS        gather: each alone copies the 64 rows of a group into the stages of a tap, or a
//                         chunk of them, and the other warp of that group the next
//
// Everything else is as in igemm_sm90.cuh, with pairs in the place of tiles and their taps in the place of
// records: the order of taps in a sum, shares, barriers. A warp finds the records of its rows from the masks of
// groups, and keeps one index of a row in two registers for all lanes.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_PAIRS_SM90_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_PAIRS_SM90_CUH

#include "kernels/igemm/igemm_sm90.cuh"

namespace spops
{

// tiles, first and num_tiles are those of pairs.
struct igemm_pairs_params : igemm_sm90_params {
    const int4 *group_taps; // of each pair
    const int *tile_first;  // record of each tile
    const int *tile_count;  // tiles
    // Stages that a gather warp fills before the next one's turn, and such chunks of a tap. A barrier tells rounds by
    // parity alone, so a warp must not pass more stages than the ring has.
    int chunk_stages, chunks;
};

template <int COLS_, int GATHER_WARPS_, int STAGES_, int REGISTERS> struct igemm_pairs_policy {
    static constexpr int BATCH = 0;
    static constexpr bool ADDS = false, SHARES = true, LATE = true;
    static constexpr int COLS = COLS_, GROUPS = 4, GATHER_WARPS = GATHER_WARPS_;
    static constexpr int STAGES = STAGES_, BLOCKS = 1;
    static constexpr int turns = GATHER_WARPS / GROUPS; // warps of a group
    static_assert(GATHER_WARPS == 2 * GROUPS, "two warps of a group take turns");
    static constexpr int most_chunk_stages = STAGES - 1;
    static constexpr int rows = 64 * GROUPS;
    typedef warp_roles<GROUPS / 2, GATHER_WARPS, BLOCKS> roles;
    static constexpr int threads = roles::threads;
    static constexpr int tile_slots = 4, note_bytes = 48;
    static constexpr int line_cols = COLS % 64 == 0 ? 64 : 32; // of a line of B across k
    static constexpr int a_bytes = rows * 128, b_bytes = COLS * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr bool moves_registers = true;
    static constexpr int multiply_registers = REGISTERS;
    static constexpr int gather_registers = roles::left_to_gather(REGISTERS);
    static constexpr int stage_notes_at = STAGES * stage_bytes;
    static constexpr int tile_notes_at = stage_notes_at + STAGES * 16;
    static constexpr int barriers_at = tile_notes_at + tile_slots * note_bytes;
    static constexpr int share_at = barriers_at + barrier_ring::bytes * (STAGES + tile_slots);
    static constexpr int turn_at = share_at + 32;
    static constexpr int numbers_at = turn_at + 16;
    static constexpr int shared_bytes = numbers_at + 3 * COLS * 4 + stage_alignment;
};

// ---- Pairs --------------------------------------------------------------------------------------

// What a block has of a pair: `count` of the taps that either tile has, after the first `skip`. None: there
// are no more pairs.
struct igemm_pair_part {
    int count, pair, skip;
};

template <class P> struct igemm_pairs_block : igemm_sm90_block<P> {
    // igemm_pair_part; taps of the four groups; first record of both tiles
    __device__ uint32_t pair_note(int n) const
    {
        return this->base + P::tile_notes_at + n % P::tile_slots * P::note_bytes;
    }
    __device__ uint32_t pair_full(int n) const { return this->tiles().full(n % P::tile_slots); }
    __device__ uint32_t pair_empty(int n) const { return this->tiles().empty(n % P::tile_slots); }
};

__device__ __forceinline__ igemm_pair_part igemm_pair_of(const igemm_pairs_params &p,
                                                         const igemm_share &share, int number)
{
    if (number >= share.num_tiles) return {0, 0, 0};
    if (share.each == 0) {
        const int4 tile = __ldg(p.tiles + number);
        return {tile.y, tile.z, 0};
    }
    const int first = __ldg(p.first + number), taps = __ldg(p.first + number + 1) - first;
    const int before = first + number * p.tile_cost;
    const int begin = max(share.begin - before, 0), end = min(share.end - before, taps);
    return {max(end - begin, 0), number, begin};
}

// One lane: pair n of the block is known to all gather warps once its masks have come, for which it does not wait.
template <class P>
__device__ __forceinline__ void igemm_tell_pair(const igemm_pairs_params &p,
                                                const igemm_pairs_block<P> &block, int n,
                                                const igemm_pair_part &part)
{
    const uint32_t note = block.pair_note(n);
    barrier_wait(block.pair_empty(n), n / P::tile_slots % 2 ^ 1);
    store_shared4(note, make_int4(part.count, part.pair, part.skip, 0));
    if (part.count > 0) {
        copy_async<16>(note + 16, p.group_taps + part.pair, 1u);
        copy_async<8>(note + 32, p.tile_first + 2 * part.pair, 1u);
    }
    barrier_arrive(block.pair_full(n));
    barrier_arrive_copies(block.pair_full(n));
}

// For igemm_finder.
template <class P> struct igemm_pairs_of {
    typedef igemm_pairs_params params;
    typedef igemm_pairs_block<P> block_type;
    typedef igemm_pair_part found_type;

    __device__ static igemm_pair_part find(const params &p, const igemm_share &share, int number)
    {
        return igemm_pair_of(p, share, number);
    }
    __device__ static void wait_for_counters(const params &) {} // the kernel has waited
    __device__ static void tell(const igemm_finder<igemm_pairs_of> &f, int n)
    {
        igemm_tell_pair(f.p, f.block, n, f.found);
    }
};

// The block's first pair, which igemm_begin found.
template <class P>
__device__ __forceinline__ void igemm_tell_first(const igemm_pairs_params &p,
                                                 const igemm_pairs_block<P> &block)
{
    const int4 part = load_shared4<int4>(block.first_tile());
    const bool shares = igemm_share_of(block).each > 0 && part.y > 0;
    const int skip = shares ? part.x - __ldg(p.first + part.z) : 0;
    igemm_tell_pair(p, block, 0, {part.y, part.z, skip});
}

// The lowest `count` bits are gone.
__device__ __forceinline__ uint32_t igemm_without_lowest(uint32_t bits, int count)
{
    for (int i = 0; i < count; ++i)
        bits &= bits - 1;
    return bits;
}

// ---- Gathered rows ------------------------------------------------------------------------------

// What a gather warp copies: its group's rows at one tap, a chunk of their stages. Nothing that was loaded is looked at before its turn.
struct igemm_pair_unit {
    int low, high;       // rows lane and lane + 32 of the group
    int note, tap, pair; // note: groups and flags
    int chunk;
};

// A warp of group 0: the note of a stage, and its weights.
template <class P, operand B>
__device__ __forceinline__ void igemm_announce_pair(const igemm_pairs_params &p,
                                                    const igemm_pairs_block<P> &block, int slot,
                                                    const igemm_pair_unit &u, int k)
{
    const uint32_t full = block.stages().full(slot), b = block.stage(slot) + P::a_bytes;
    int flags = u.note & NOTE_GROUPS;
    if (k == 0) flags |= u.note & NOTE_FIRST;
    if (k == p.row_stages - 1) flags |= u.note & NOTE_LAST;
    store_shared4(block.stage_note(slot), make_int4(flags, u.pair, 0, 0));
    if ((u.note & NOTE_GROUPS) == 0) {
        barrier_arrive(full);
        return;
    }
    barrier_arrive_expect(full, P::b_bytes);
    const int matrix = p.last_tap >= 0 ? p.last_tap - u.tap : u.tap;
    if (B == ALONG_K) {
        copy_box(b, &p.w, k * 64, 0, matrix, full);
    } else {
#pragma unroll
        for (int c = 0; c < P::COLS / P::line_cols; ++c)
            copy_box(b + c * 64 * P::line_cols * 2, &p.w, c * P::line_cols, k * 64, matrix, full);
    }
}

// One warp. 8 lanes to a row: a lane copies the 16 bytes lane % 8 of 16 rows, every fourth from lane / 8 on.
template <class P, operand B>
__device__ void igemm_gather_pairs(const igemm_pairs_params &p, const igemm_pairs_block<P> &block,
                                   int warp, int lane)
{
    const int group = warp % P::GROUPS, turn = warp / P::GROUPS, quarter = lane / 8;
    const bool finds_pairs = warp == 0 && lane == 0;
    const uint64_t policy = passing_policy();
    const uint32_t even = group * 64 * 128 + swizzled(quarter, lane % 8);
    const uint32_t odd = group * 64 * 128 + swizzled(quarter + 4, lane % 8) - 512;
    ring_position<P::STAGES> stage;
    int record = turn / p.chunks, chunk = turn % p.chunks; // the next unit's, of a pair's taps
    bool begun = turn > 0;          // another warp's unit is before this one's
    const auto pass = [&](int at) { // the stages of that unit, before chunk `at` of a tap
        if (begun)
            stage.advance_by(at == 0 ? p.row_stages - (p.chunks - 1) * p.chunk_stages
                                     : p.chunk_stages);
        begun = true;
    };
    int pair = 0;      // of the block
    int count = 0;     // of its taps
    uint32_t left = 0; // those from the next unit's on
    igemm_finder<igemm_pairs_of<P>> finder(p, block, (int)load_shared_word(block.first_tile() + 8));
    const auto enter = [&] {
        barrier_wait(block.pair_full(pair), pair / P::tile_slots % 2);
        const int4 part = load_shared4<int4>(block.pair_note(pair));
        count = part.x;
        if (count == 0) return;
        const int4 taps = load_shared4<int4>(block.pair_note(pair) + 16);
        left = igemm_without_lowest(taps.x | taps.y | taps.z | taps.w, part.z + min(record, count));
    };
    enter();

    // The warp's next unit, whose rows are asked for.
    const auto locate = [&](igemm_pair_unit &u) {
        while (record >= count && count > 0) {
            record -= count;
            __syncwarp();
            if (lane == 0) barrier_arrive(block.pair_empty(pair));
            ++pair;
            if (finds_pairs) finder.tell(pair);
            __syncwarp();
            enter();
        }
        u.note = NOTE_STOP;
        if (count == 0) return;
        const int4 taps = load_shared4<int4>(block.pair_note(pair) + 16);
        const uint32_t bit = left & (0u - left);
        u.note = ((taps.x & bit) != 0 ? 1 : 0) | ((taps.y & bit) != 0 ? 2 : 0) |
                 ((taps.z & bit) != 0 ? 4 : 0) | ((taps.w & bit) != 0 ? 8 : 0);
        if (record == 0) u.note |= NOTE_FIRST;
        if (record == count - 1) u.note |= NOTE_LAST;
        u.tap = __ffs((int)bit) - 1;
        u.pair = (int)load_shared_word(block.pair_note(pair) + 4);
        u.low = u.high = -1;
        if (u.note >> group & 1) {
            const uint32_t before = (group < 2 ? taps.x | taps.y : taps.z | taps.w) & (bit - 1);
            const int first = (int)load_shared_word(block.pair_note(pair) + 32 + group / 2 * 4);
            const int *const rows = p.records +
                                    (int64_t)(first + __popc(before)) * SPOPS_IGEMM_RECORD_INTS +
                                    SPOPS_IGEMM_RECORD_HEAD + group % 2 * 64 + lane;
            u.low = load_passing(rows, policy);
            u.high = load_passing(rows + 32, policy);
        }
        u.chunk = chunk;
        chunk += P::turns;
        while (chunk >= p.chunks) {
            chunk -= p.chunks;
            ++record;
            left &= left - 1;
        }
    };

    const auto copy = [&](const igemm_pair_unit &u) {
        if (finds_pairs) finder.step();
        pass(u.chunk);
        const int begin = u.chunk * p.chunk_stages, end = min(begin + p.chunk_stages, p.row_stages);
        for (int k = begin; k < end; ++k) {
            const uint32_t full = block.stages().full(stage.at);
            barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
            if (group == 0 && lane == 0) igemm_announce_pair<P, B>(p, block, stage.at, u, k);
            __syncwarp();
            if (u.note >> group & 1) {
                const int byte = k * 128 + lane % 8 * 16;
                const bool inside = byte < p.row_bytes;
                const unsigned char *const from = p.gathered + (inside ? byte : 0);
                const uint32_t to = block.stage(stage.at);
#pragma unroll
                for (int j = 0; j < 16; ++j) {
                    const int row =
                        __shfl_sync(~0u, j < 8 ? u.low : u.high, (4 * j + quarter) % 32);
                    copy_async_if(to + (j % 2 == 0 ? even : odd) + j * 512,
                                  from + (uint64_t)(uint32_t)max(row, 0) * p.row_stride,
                                  inside && row >= 0);
                }
            }
            barrier_arrive_copies(full);
            stage.advance();
        }
    };

    igemm_pair_unit a, b; // by turns: to move one in registers would be to wait for its rows
    locate(a);
    while ((a.note & NOTE_STOP) == 0) {
        locate(b);
        copy(a);
        if (b.note & NOTE_STOP) break;
        locate(a);
        copy(b);
    }
    if (record == 0 && chunk == 0) { // the stage after the last is this warp's
        pass(0);
        barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
        if (group == 0 && lane == 0) {
            store_shared4(block.stage_note(stage.at), make_int4(NOTE_STOP, 0, 0, 0));
            barrier_arrive(block.stages().full(stage.at));
        }
        barrier_arrive_copies(block.stages().full(stage.at));
    }
    if (finds_pairs) igemm_leave(p);
    copy_async_wait_all();
}

// ---- Products -----------------------------------------------------------------------------------

// One warpgroup: a tile of each pair.
template <class P, class T, operand B>
__device__ void igemm_multiply_pairs(const igemm_pairs_params &p, const igemm_pairs_block<P> &block,
                                     int own, int t)
{
    constexpr int line_bytes = B == ACROSS_K ? P::line_cols * 2 : 128;
    constexpr swizzle lines = line_bytes == 128 ? SWIZZLE_128 : SWIZZLE_64;
    constexpr uint64_t a_form = descriptor(SWIZZLE_128, 0, 1024);
    constexpr uint64_t b_form =
        descriptor(lines, B == ACROSS_K ? 64 * line_bytes : 0, 8 * line_bytes);
    constexpr int b_step = B == ACROSS_K ? 16 * line_bytes : 32; // 32 bytes of k on
    ring_position<P::STAGES> stage;
    float sum[2][P::COLS / 2];

    for (;;) {
        int out_row[2][2] = {{-1, -1}, {-1, -1}};
        int flags, pair = 0;
        int begun = 0; // bits of groups
        do {
            barrier_wait(block.stages().full(stage.at), stage.full_parity());
            int4 note = make_int4(0, 0, 0, 0); // a lane reads for all, as in igemm_multiply
            if (t % 32 == 0) note = load_shared4<int4>(block.stage_note(stage.at));
            flags = (int)__reduce_or_sync(~0u, (unsigned)note.x);
            if (flags & NOTE_STOP) return;
            if (flags & NOTE_FIRST) {
                pair = __shfl_sync(~0u, note.y, 0);
                const int tile = 2 * pair + own;
                const int *const rows =
                    p.out_rows + (int64_t)tile * SPOPS_IGEMM_TILE_ROWS + t / 32 * 16 + t % 32 / 4;
                if (tile < __ldg(p.tile_count)) {
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        out_row[i / 2][i % 2] = __ldg(rows + i / 2 * 64 + i % 2 * 8);
                }
            }
            const uint32_t a = block.stage(stage.at) + own * 128 * 128;
            const uint32_t b = block.stage(stage.at) + P::a_bytes;
            const auto multiply = [&](int h) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    wgmma<T, P::COLS, ALONG_K, B>::run(
                        sum[h], at_address(a_form, a + h * 64 * 128 + i * 32),
                        at_address(b_form, b + i * b_step), (begun >> h & 1) != 0 || i > 0);
            };
            const int mine = flags >> 2 * own & 3;
            if (mine != 0) {
                fence_for_wgmma();
                wgmma_fence();
                if (mine == 3) {
                    multiply(0);
                    multiply(1);
                    wgmma_commit();
                    wgmma_wait<0>();
                } else if (mine == 1) {
                    multiply(0);
                    wgmma_commit();
                    wgmma_wait<0>();
                } else {
                    multiply(1);
                    wgmma_commit();
                    wgmma_wait<0>();
                }
                begun |= mine;
            }
            release_slot(block.stages().empty(stage.at), t % 32);
            stage.advance();
        } while ((flags & NOTE_LAST) == 0);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (begun >> h & 1) continue;
#pragma unroll
            for (int i = 0; i < P::COLS / 2; ++i)
                sum[h][i] = 0.0f;
        }
        if (!igemm_join_parts<P, 2>(p, block, sum, pair, own, t)) continue;
#pragma unroll 1
        for (int h = 0; h < 2; ++h) { // one code for both
            store_sums<T, P::COLS, 0, true>(p.epilogue, sum[0], out_row[0], 0, t % 4,
                                            p.keeps_numbers ? block.numbers() : 0);
            out_row[0][0] = out_row[1][0];
            out_row[0][1] = out_row[1][1];
#pragma unroll
            for (int i = 0; i < P::COLS / 2; ++i)
                sum[0][i] = sum[1][i];
        }
    }
}

template <class P, class T, operand B>
__global__ void __launch_bounds__(P::threads, 1)
    igemm_pairs_kernel(const __grid_constant__ igemm_pairs_params p)
{
    extern __shared__ char unaligned[];
    igemm_pairs_block<P> block;
    block.base = aligned_shared(unaligned);
    if (threadIdx.x == 32) { // who tells the first pair, before the others may use barriers
        prefetch_tensor_map(&p.w);
        block.stages().init(P::STAGES, 32 * P::GROUPS + 1, P::roles::multiply_warps);
        block.tiles().init(P::tile_slots, 2, P::GATHER_WARPS);
        barrier_init_done();
    }
    grid_dependency_wait(); // pairs are of many tiles: reading ahead would cost their loop registers
    grid_launch_dependents();
    if (p.keeps_numbers && threadIdx.x / 128 == 1)
        igemm_keep_numbers(p, static_cast<const igemm_sm90_block<P> &>(block));
    if (threadIdx.x / 32 == 1) {
        igemm_begin(p, static_cast<const igemm_sm90_block<P> &>(block), threadIdx.x % 32);
        if (threadIdx.x % 32 == 0) igemm_tell_first(p, block);
    }
    __syncthreads();

    run_roles<P>(
        [&](int warp) { igemm_multiply_pairs<P, T, B>(p, block, warp / 4, threadIdx.x % 128); },
        [&](int warp) { igemm_gather_pairs<P, B>(p, block, warp, threadIdx.x % 32); });
}

} // namespace spops

#endif
