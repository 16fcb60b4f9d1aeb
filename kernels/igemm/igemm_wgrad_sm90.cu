// SPDX-License-Identifier: Apache-2.0
// Gradients of the matrices of taps on sm_90a: dW[k] = sum over the pairs p of tap k of
// x[in_rows[p]]^T g[out_rows[p]].
//
// The product's depth is the pairs. Both operands are gathered rows, one line a pair, so both are
// read across k. All taps' pairs, cut into stages, are one line of work that is dealt to the blocks
// in equal ranges ("stream-K"); a tap that lies in one range only is written at once, and what a
// range has of a tap that it shares goes to scratch, where a second kernel adds the ranges in order.
// The cut depends on the numbers of pairs and of multiprocessors alone, so bits are the same on
// every run.
//
//     warps               role
//     4 * GROUPS          multiply: a warpgroup to each 64 channels of x
//     4                   gather: rows of x and g into a stage
//
//     barrier             arrivals                  means
//     stage full          128 copies, 1             rows and note are there
//                         of units: 32 copies, 33   sums too
//                         of rows: 1 + bytes
//     stage empty         4 * GROUPS                its products have ended
//                         with sums of g 96 more    and it has been added
//
// Where both rows have at most 64 bytes, a line holds the rows of 2 or 4 pairs side by side: the
// product then has their dW on its diagonal (and products of strangers beside it), and a stage holds
// as many more pairs.
//
// Where pair p is row p of both, boxes of rows come by one thread (source ROWS); the other three gather warps
// then add the rows of g, whose sums are the gradient of a bias. Rows of the last stage that do not count
// are cleared before they are multiplied.
//
// Instead of pairs there may be units, whose rows of x are sums in part: point convolutions have
// them. A stage is a unit; its sums are added in registers, in f32 and in the order of their members,
// and stored rounded.
#include "core/matrix.h"
#include "kernels/core/launch.cuh"
#include "kernels/igemm/igemm_epilogue.cuh"
#include "kernels/core/sm90/pipeline.cuh"
#include "kernels/core/sm90/tensor_map.cuh"
#include "kernels/igemm/igemm_launch.cuh"
#include "kernels/igemm/igemm_wgrad_launch.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/igemm/row_sums_sm90.cuh"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

template <int COLS_, int GROUPS_, int STAGES_, int BLOCKS_, wgrad_source SOURCE_>
struct wgrad_policy {
    static constexpr wgrad_source SOURCE = SOURCE_;
    static constexpr int COLS = COLS_, GROUPS = GROUPS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int rows = 64 * GROUPS;
    typedef warp_roles<GROUPS, 4, BLOCKS> roles;
    static constexpr int threads = roles::threads;
    static constexpr int depth = 64;                // lines of a stage
    static constexpr int block_bytes = depth * 128; // 64 channels of them
    static constexpr int a_bytes = GROUPS * block_bytes, b_bytes = COLS / 64 * block_bytes;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr bool moves_registers = COLS == 256;
    static constexpr int gather_registers = SOURCE == UNITS ? 96 : 88; // units have sums
    static constexpr int multiply_registers = roles::left_to_multiply(gather_registers);
    // Diagonals of folded sums; stages; notes; barriers.
    static constexpr int folded_bytes = SOURCE == ROWS ? 96 * 8 * 4 // sums of g instead
                                        : GROUPS == 1 && COLS == 64 ? 64 * 32 * 4
                                                                    : 0;
    static constexpr int folded_at = STAGES * stage_bytes;
    static constexpr int notes_at = folded_at + folded_bytes;
    static constexpr int barriers_at = notes_at + STAGES * 16;
    static constexpr int shared_bytes =
        barriers_at + STAGES * barrier_ring::bytes + stage_alignment;
};

// Units of a schedule, whose offsets by tap are tap_offsets.
struct wgrad_units {
    const int *units, *records, *out_rows, *members;
    const int4 *sums;
};

struct wgrad_params {
    CUtensorMap x_rows, g_rows; // 3D: along a row, rows, 1; of ROWS
    int num_taps;
    const int *tap_offsets, *in_rows, *out_rows; // null: pair p is row p of both
    const int *num_rows;                         // that count then; null: all
    int max_rows;
    wgrad_units units;
    int stage_pairs; // or units
    const unsigned char *x, *g;
    int64_t x_row_bytes, g_row_bytes;
    int x_bytes, g_bytes; // of a row's channels
    int rows, cols;       // channels of x and of g
    int fold;             // pairs a line
    int col_tiles;
    void *dw;
    spops_dtype dw_dtype;
    float *partials; // [ranges + min(ranges, num_taps)][rows][cols]
    int ranges;
    int places;        // along the rows, at which ranges begin; 0: at their first stage
    int add_lanes;     // of wgrad_add
    float *g_sums;     // [cols], or null
    float *g_partials; // [ranges][cols]

    // Which partial is range r's of a tap: it has at most two, one of a tap that began before it,
    // one of a tap that goes on. Along the stages, r or the tap grows from each to the next.
    __device__ int partial(int r, int tap, bool begins) const
    {
        return num_taps < ranges ? r + tap : 2 * r + begins;
    }
};

constexpr int adding_warps = 3; // of g's rows

enum wgrad_note : int { NOTE_LAST = 1, NOTE_STOP = 2 };

// ---- Ranges -------------------------------------------------------------------------------------

__device__ __forceinline__ int pairs_before(const wgrad_params &p, int tap)
{
    if (p.tap_offsets != nullptr) return p.tap_offsets[tap];
    if (tap == 0) return 0;
    return p.num_rows != nullptr ? max(min(*p.num_rows, p.max_rows), 0) : p.max_rows;
}

__device__ __forceinline__ int stages_of_tap(const wgrad_params &p, int tap)
{
    return (pairs_before(p, tap + 1) - pairs_before(p, tap) + p.stage_pairs - 1) / p.stage_pairs;
}

// Stages of taps begin .. end - 1. For whole blocks. A linear layer has one tap, and adds nothing up.
__device__ int stages_of_taps(const wgrad_params &p, int begin, int end)
{
    if (p.num_taps == 1) return begin < end ? stages_of_tap(p, 0) : 0;
    int mine = 0, total;
    for (int k = begin + threadIdx.x; k < end; k += blockDim.x)
        mine += stages_of_tap(p, k);
    sum_before(mine, &total);
    return total;
}

// Of all stages, those of one range; the first lies in `tap`, which begins at `tap_stage`. Which of them is
// done first, `turn`, lies in `turn_tap`; those before it are done last.
struct wgrad_range {
    int begin, end, tap, tap_stage;
    int turn, turn_tap, turn_tap_stage;
};

// Pairs of all taps lie in the order of rows, so a tap's ranges are places along the rows. All blocks begin at
// places that are a p.places-th of the rows apart, whatever their range begins with: then the taps ask
// for the same rows at about the same time, and L2 has them.
__device__ void choose_turn(const wgrad_params &p, wgrad_range &r)
{
    r.turn = r.begin;
    r.turn_tap = r.tap;
    r.turn_tap_stage = r.tap_stage;
    if (p.places == 0 || r.begin == r.end) return;
    const int stages = stages_of_tap(p, r.tap);
    if (r.end <= r.tap_stage + stages) {
        const int64_t place = ((int64_t)(r.begin - r.tap_stage) * p.places + stages - 1) / stages;
        const int turn = r.tap_stage + (int)(place * stages / p.places);
        if (r.begin < turn && turn < r.end) r.turn = turn;
        return;
    }
    int tap = r.tap + 1;
    while (stages_of_tap(p, tap) == 0)
        ++tap;
    if (r.end > r.tap_stage + stages + stages_of_tap(p, tap)) return; // of many taps
    r.turn = r.turn_tap_stage = r.tap_stage + stages;
    r.turn_tap = tap;
}

// Of several taps, that of the range's first stage. For whole blocks.
__device__ void find_tap(const wgrad_params &p, wgrad_range &r)
{
    __shared__ int found_tap, found_stage;
    if (threadIdx.x == 0) found_tap = found_stage = 0;
    int done = 0, chunk_total;
    for (int chunk = 0; chunk < p.num_taps && done <= r.begin; chunk += blockDim.x) {
        const int tap = chunk + threadIdx.x;
        const int stages = tap < p.num_taps ? stages_of_tap(p, tap) : 0;
        const int first = done + sum_before(stages, &chunk_total);
        if (first <= r.begin && r.begin < first + stages) {
            found_tap = tap;
            found_stage = first;
        }
        done += chunk_total;
    }
    __syncthreads();
    r.tap = found_tap;
    r.tap_stage = found_stage;
}

__device__ wgrad_range find_range(const wgrad_params &p, int range)
{
    const int total = stages_of_taps(p, 0, p.num_taps);
    const int share = (total + p.ranges - 1) / p.ranges;
    wgrad_range r = {};
    r.begin = min(range * share, total);
    r.end = min(r.begin + share, total);
    if (p.num_taps > 1) find_tap(p, r);
    choose_turn(p, r);
    return r;
}

// ---- The product --------------------------------------------------------------------------------

template <class P> struct wgrad_block {
    uint32_t base; // of shared memory, aligned to 1024
    char *shared;  // the same

    __device__ uint32_t stage(int s) const { return base + s * P::stage_bytes; }
    __device__ barrier_ring stages() const { return {base + P::barriers_at}; }
    // {flags, tap, which partial or -1 for dW itself, rows of ROWS that count}
    __device__ uint32_t note(int s) const { return base + P::notes_at + s * 16; }
    __device__ float *folded() const { return reinterpret_cast<float *>(shared + P::folded_at); }
};

// Where a range is: the pairs of its next stage.
struct wgrad_walk {
    const wgrad_params &p;
    wgrad_range r;
    int stage, left;                // of all; of the range
    int tap, tap_stage, tap_stages; // of the tap
    int pair, pairs_end;

    __device__ wgrad_walk(const wgrad_params &params, const wgrad_range &range)
        : p(params), r(range), stage(range.turn), left(range.end - range.begin),
          tap(range.turn_tap), tap_stage(range.turn_tap_stage)
    {
        if (more()) enter_tap();
    }
    __device__ bool more() const { return left > 0; }
    __device__ void enter_tap()
    {
        tap_stages = stages_of_tap(p, tap);
        pairs_end = pairs_before(p, tap + 1);
        pair = pairs_before(p, tap) + (stage - tap_stage) * p.stage_pairs;
    }
    // Of the range's part of a tap.
    __device__ bool last() const
    {
        if (left == 1) return true;
        const bool in_one = r.turn > r.begin && r.turn_tap == r.tap;
        return !in_one && (stage + 1 == r.end || stage + 1 == tap_stage + tap_stages);
    }
    // Where the range's part of the tap goes; -1: it has all of it.
    __device__ int partial(int range) const
    {
        const bool begins = tap_stage >= r.begin, ends = tap_stage + tap_stages <= r.end;
        return begins && ends ? -1 : p.partial(range, tap, begins);
    }
    // What a stage says; more() or not.
    __device__ int4 note(int range) const
    {
        if (!more()) return make_int4(NOTE_STOP, 0, 0, 0);
        return make_int4(last() ? NOTE_LAST : 0, tap, partial(range),
                         min(pairs_end - pair, p.stage_pairs));
    }
    __device__ void advance()
    {
        ++stage;
        pair += p.stage_pairs;
        if (--left == 0) return;
        if (stage == r.end) {
            stage = r.begin;
            tap = r.tap;
            tap_stage = r.tap_stage;
            enter_tap();
        }
        while (stage >= tap_stage + tap_stages) {
            tap_stage += tap_stages;
            ++tap;
            enter_tap();
        }
    }
};

template <class P>
__device__ void wgrad_gather(const wgrad_params &p, const wgrad_block<P> &block,
                             const wgrad_range &range, int row_tile, int col_tile, int t)
{
    const int piece = t % 8 * 16, line = t / 8;
    const int pair_bytes = 128 / p.fold;
    const int my_pair = piece / pair_bytes * 64 + line, my_byte = piece % pair_bytes;
    const uint32_t my_line = swizzled(line, t % 8);
    const int x_begin = row_tile * P::rows * 2 + my_byte,
              g_begin = col_tile * P::COLS * 2 + my_byte;
    ring_position<P::STAGES> stage;
    wgrad_walk walk(p, range);

    // Rows of the lines line, line + 16, .. of three stages: this one, and two whose are on the way.
    int in[3][4], out[3][4];
    int4 note[3];
    const auto load = [&](int ahead) {
        note[ahead] = walk.note(blockIdx.x);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const int pair = walk.pair + my_pair + 16 * q;
            const bool there = walk.more() && pair < walk.pairs_end;
            in[ahead][q] = out[ahead][q] = there ? pair : -1;
            if (there && p.in_rows != nullptr) {
                in[ahead][q] = __ldg(p.in_rows + pair);
                out[ahead][q] = __ldg(p.out_rows + pair);
            }
        }
        if (walk.more()) walk.advance();
    };
    load(0);
    load(1);
    while ((note[0].x & NOTE_STOP) == 0) {
        load(2);
        const uint32_t full = block.stages().full(stage.at), to = block.stage(stage.at) + my_line;
        barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
        if (t == 0) {
            store_shared4(block.note(stage.at), note[0]);
            barrier_arrive(full);
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const unsigned char *x = p.x + (int64_t)max(in[0][q], 0) * p.x_row_bytes;
            const unsigned char *g = p.g + (int64_t)max(out[0][q], 0) * p.g_row_bytes;
            const uint32_t to_line = to + q * 16 * 128;
#pragma unroll
            for (int i = 0; i < P::GROUPS; ++i) {
                const int byte = x_begin + i * 128;
                const int bytes = in[0][q] < 0 ? 0 : min(max(p.x_bytes - byte, 0), 16);
                copy_async(to_line + i * P::block_bytes, x + (bytes > 0 ? byte : 0), bytes);
            }
#pragma unroll
            for (int i = 0; i < P::COLS / 64; ++i) {
                const int byte = g_begin + i * 128;
                const int bytes = out[0][q] < 0 ? 0 : min(max(p.g_bytes - byte, 0), 16);
                copy_async(to_line + P::a_bytes + i * P::block_bytes, g + (bytes > 0 ? byte : 0),
                           bytes);
            }
        }
        barrier_arrive_copies(full);
        stage.advance();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            note[i] = note[i + 1];
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                in[i][q] = in[i + 1][q];
                out[i][q] = out[i + 1][q];
            }
        }
    }
    barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
    if (t == 0) {
        store_shared4(block.note(stage.at), make_int4(NOTE_STOP, 0, 0, 0));
        barrier_arrive(block.stages().full(stage.at));
    }
    barrier_arrive_copies(block.stages().full(stage.at));
    copy_async_wait_all();
}

// One thread: boxes of rows.
template <class P>
__device__ void wgrad_load_rows(const wgrad_params &p, const wgrad_block<P> &block,
                                const wgrad_range &range, int row_tile, int col_tile)
{
    ring_position<P::STAGES> stage;
    for (wgrad_walk walk(p, range); walk.more(); walk.advance(), stage.advance()) {
        const uint32_t full = block.stages().full(stage.at), to = block.stage(stage.at);
        barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
        store_shared4(block.note(stage.at), walk.note(blockIdx.x));
        barrier_arrive_expect(full, P::stage_bytes);
        for (int i = 0; i < P::GROUPS; ++i)
            copy_box(to + i * P::block_bytes, &p.x_rows, row_tile * P::rows + i * 64, walk.pair, 0,
                     full);
        for (int i = 0; i < P::COLS / 64; ++i)
            copy_box(to + P::a_bytes + i * P::block_bytes, &p.g_rows, col_tile * P::COLS + i * 64,
                     walk.pair, 0, full);
    }
    barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
    store_shared4(block.note(stage.at), make_int4(NOTE_STOP, 0, 0, 0));
    barrier_arrive(block.stages().full(stage.at));
}

// The adding warps: sums of the range's rows of g, 8 columns a lane, lines in turn; lanes of a column are
// added in order.
template <class P, class T>
__device__ void wgrad_add_rows(const wgrad_params &p, const wgrad_block<P> &block, int col_tile,
                               int t)
{
    constexpr int pieces = P::COLS / 8, threads = 32 * adding_warps, own = threads / pieces;
    const int piece = t % pieces, first = t / pieces;
    ring_position<P::STAGES> stage;
    float sum[8] = {};
    int flags = 0, partial = 0;

    for (;;) {
        barrier_wait(block.stages().full(stage.at), stage.full_parity());
        const int4 note = load_shared4<int4>(block.note(stage.at));
        if (note.x & NOTE_STOP) break;
        partial = note.z;
        const uint32_t g = block.stage(stage.at) + P::a_bytes + piece / 8 * P::block_bytes;
#pragma unroll 4
        for (int line = first; line < note.w; line += own)
            add_numbers<T>(sum, load_shared4<uint4>(g + swizzled(line, piece % 8)));
        flags = 1;
        // Each lane for itself: the lines that it has read may be cleared when they come again.
        barrier_arrive(block.stages().empty(stage.at));
        stage.advance();
    }
    float *const shared = block.folded() + t * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        shared[i] = sum[i];
    named_barrier_wait<threads>(3);
    float *const to = partial < 0 ? p.g_sums : p.g_partials + (int64_t)blockIdx.x * p.cols;
    for (int c = t; c < P::COLS; c += threads) {
        float all = 0.0f;
        for (int k = 0; k < own; ++k)
            all += block.folded()[(k * pieces + c / 8) * 8 + c % 8];
        if (flags != 0 && col_tile * P::COLS + c < p.cols) to[col_tile * P::COLS + c] = all;
    }
}

// What a gather warp knows of a unit before it gathers it.
struct wgrad_unit {
    int4 note;
    int in[2], out[2];   // rows of the lines lane, lane + 32
    int first, num_sums; // of the unit
};

__device__ __forceinline__ int2 load_unit(const wgrad_params &p, const wgrad_walk &walk)
{
    if (!walk.more()) return make_int2(0, 0);
    return __ldg(reinterpret_cast<const int2 *>(p.units.units) + walk.pair);
}

__device__ __forceinline__ void load_rows(const wgrad_params &p, int2 unit, int lane, wgrad_unit &u)
{
    const int group = unit.x & 1;
    const int *record = p.units.records + (int64_t)(unit.x >> 1) * SPOPS_IGEMM_RECORD_INTS;
    const int *in = record + SPOPS_IGEMM_RECORD_HEAD + group * SPOPS_IGEMM_GROUP_ROWS + lane;
    const int *out = p.units.out_rows + (int64_t)unit.y * SPOPS_IGEMM_TILE_ROWS +
                     group * SPOPS_IGEMM_GROUP_ROWS + lane;
    const int2 sums = __ldg(reinterpret_cast<const int2 *>(record) + 1);
    u.first = sums.x + (group == 0 ? 0 : sums.y & 0xffff);
    u.num_sums = group == 0 ? sums.y & 0xffff : sums.y >> 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        u.in[h] = __ldg(in + 32 * h);
        u.out[h] = __ldg(out + 32 * h);
    }
}

// Sums of a lane that are on their way together: a quarter of a warp has one each.
template <class P> constexpr int sum_batch = 2 / P::GROUPS;

// wgrad_gather of units. A sum takes two or three times the latency of the L2, so each warp fills a
// stage alone, every fourth one of the range.
template <class P, class T>
__device__ void wgrad_gather_units(const wgrad_params &p, const wgrad_block<P> &block,
                                   const wgrad_range &range, int row_tile, int col_tile, int warp,
                                   int lane)
{
    constexpr int warps = 4;
    const int piece = lane % 8 * 16, quarter = lane / 8;
    const int x_begin = row_tile * P::rows * 2 + piece, g_begin = col_tile * P::COLS * 2 + piece;
    const int num_stages = range.end - range.begin;
    wgrad_walk walk(p, range);
    wgrad_unit now = {}, next = {};
    int2 later;

    const auto skip = [&](int stages) {
        for (int i = 0; i < stages && walk.more(); ++i)
            walk.advance();
    };
    skip(warp);
    now.note = walk.note(blockIdx.x);
    if (walk.more()) load_rows(p, load_unit(p, walk), lane, now);
    skip(warps);
    next.note = walk.note(blockIdx.x);
    later = load_unit(p, walk);
    skip(warps);
    for (int s = warp; s <= num_stages; s += warps) { // the last one says that there are no more
        const int slot = s % P::STAGES;
        const uint32_t full = block.stages().full(slot), a = block.stage(slot);
        int4 sum[sum_batch<P>];
        load_sums(p.units.sums, now.first, now.num_sums, quarter, sum);
        if ((next.note.x & NOTE_STOP) == 0) load_rows(p, later, lane, next);
        const int4 note_later = walk.note(blockIdx.x);
        later = load_unit(p, walk);
        skip(warps);
        barrier_wait(block.stages().empty(slot), (s / P::STAGES & 1) ^ 1);
        if (lane == 0) {
            store_shared4(block.note(slot), now.note);
            barrier_arrive(full);
        }
        if (s < num_stages) {
#pragma unroll 4
            for (int q = 0; q < 16; ++q) {
                const int line = 4 * q + quarter;
                const int in = __shfl_sync(~0u, q < 8 ? now.in[0] : now.in[1], line % 32);
                const int out = __shfl_sync(~0u, q < 8 ? now.out[0] : now.out[1], line % 32);
                const unsigned char *x = p.x + (int64_t)max(in, 0) * p.x_row_bytes;
                const unsigned char *g = p.g + (int64_t)(in != -1 ? out : 0) * p.g_row_bytes;
                const uint32_t to = a + swizzled(line, lane % 8);
#pragma unroll
                for (int i = 0; i < P::GROUPS; ++i) {
                    const int byte = x_begin + i * 128;
                    const bool inside = in >= 0 && byte < p.x_bytes;
                    if (in != -2)
                        copy_async(to + i * P::block_bytes, x + (inside ? byte : 0),
                                   inside ? 16 : 0);
                }
#pragma unroll
                for (int i = 0; i < P::COLS / 64; ++i) {
                    const int byte = g_begin + i * 128;
                    const bool inside = in != -1 && byte < p.g_bytes;
                    copy_async(to + P::a_bytes + i * P::block_bytes, g + (inside ? byte : 0),
                               inside ? 16 : 0);
                }
            }
        }
        barrier_arrive_copies(full);
        for (int begin = 0; begin < now.num_sums; begin += 4 * sum_batch<P>) {
            int4 more_sums[sum_batch<P>];
            load_sums(p.units.sums, now.first, now.num_sums, begin + 4 * sum_batch<P> + quarter,
                      more_sums);
            gather_sums<T, P::GROUPS>(sum, p.units.members, p.x, p.x_row_bytes, x_begin, p.x_bytes,
                                      a, lane % 8, P::block_bytes);
#pragma unroll
            for (int b = 0; b < sum_batch<P>; ++b)
                sum[b] = more_sums[b];
        }
        barrier_arrive(full);
        now = next;
        next.note = note_later;
        if (now.note.x & NOTE_STOP) now.num_sums = 0;
    }
    copy_async_wait_all();
}

__device__ __forceinline__ void store_number(void *to, spops_dtype dtype, int64_t at, float v)
{
    if (dtype == SPOPS_DTYPE_F32)
        static_cast<float *>(to)[at] = v;
    else if (dtype == SPOPS_DTYPE_F16)
        static_cast<__half *>(to)[at] = __float2half_rn(v);
    else
        static_cast<__nv_bfloat16 *>(to)[at] = __float2bfloat16_rn(v);
}

// A tile of dW, or of a partial sum, to numbers of OUT: rows row, row + 8, columns col + 8 j, + 1.
template <class OUT, int COLS>
__device__ void wgrad_store(const wgrad_params &p, const float (&sum)[COLS / 2], OUT *to, int row,
                            int col)
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        OUT *line = to + (int64_t)(row + 8 * h) * p.cols + col;
        const int left = row + 8 * h < p.rows ? p.cols - col : 0;
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j) {
            if (8 * j < left) line[8 * j] = rounded<OUT>(sum[4 * j + 2 * h]);
            if (8 * j + 1 < left) line[8 * j + 1] = rounded<OUT>(sum[4 * j + 2 * h + 1]);
        }
    }
}

// The same in f32 where rows have an even number of columns.
template <int COLS>
__device__ void wgrad_store_pairs(const wgrad_params &p, const float (&sum)[COLS / 2], float *to,
                                  int row, int col)
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float *line = to + (int64_t)(row + 8 * h) * p.cols + col;
        const int left = row + 8 * h < p.rows ? p.cols - col : 0;
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j)
            if (8 * j < left)
                *reinterpret_cast<float2 *>(line + 8 * j) =
                    make_float2(sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
    }
}

// Sums of pairs that shared lines: the squares on the diagonal, added in order.
__device__ void wgrad_store_folded(const wgrad_params &p, float (&sum)[32], float *shared, void *to,
                                   spops_dtype dtype, int t)
{
    const int side = 64 / p.fold;
    const auto wait_for_group = [] { named_barrier_wait<128>(1); };
    wait_for_group(); // those that still read the sums before
#pragma unroll
    for (int e = 0; e < 32; ++e) {
        const int row = t / 32 * 16 + e / 2 % 2 * 8 + t % 32 / 4;
        const int col = e / 4 * 8 + t % 4 * 2 + e % 2;
        if (row / side == col / side) shared[row * side + col % side] = sum[e];
    }
    wait_for_group();
    for (int i = t; i < side * side; i += 128) {
        const int row = i / side, col = i % side;
        if (row >= p.rows || col >= p.cols) continue;
        float v = 0.0f;
        for (int f = 0; f < p.fold; ++f)
            v += shared[f * side * side + i];
        store_number(to, dtype, (int64_t)row * p.cols + col, v);
    }
}

// The lines of a stage after those that count: whatever rows hold there must not be multiplied, by 0 either.
// A group clears its own of A and every so many-th 64 columns of B.
template <class P> __device__ void wgrad_clear(uint32_t a, uint32_t b, int rows, int group, int t)
{
    for (int i = t; i < (P::depth - rows) * 8; i += 128) {
        const uint32_t at =
            (rows * 8 + i) * 16; // of whole lines, so that pieces may lie as they like
        store_shared4(a + at, make_int4(0, 0, 0, 0));
        for (int j = group; j < P::COLS / 64; j += P::GROUPS)
            store_shared4(b + j * P::block_bytes + at, make_int4(0, 0, 0, 0));
    }
    fence_for_wgmma();
    named_barrier_wait<128 * P::GROUPS>(2);
}

template <class P, class T>
__device__ void wgrad_multiply(const wgrad_params &p, const wgrad_block<P> &block, int row_tile,
                               int col_tile, int group, int t)
{
    const uint64_t form = descriptor(SWIZZLE_128, P::block_bytes, 1024);
    const int64_t tap_numbers = (int64_t)p.rows * p.cols;
    ring_position<P::STAGES> stage;
    float sum[P::COLS / 2];

    for (;;) {
        int4 note = make_int4(0, 0, 0, 0);
        int flags;
        bool begun = false;
        do {
            barrier_wait(block.stages().full(stage.at), stage.full_parity());
            // A lane reads the note for all, because it arrives for all that it has been read.
            if (t % 32 == 0) note = load_shared4<int4>(block.note(stage.at));
            flags = __shfl_sync(~0u, note.x, 0);
            if (flags & NOTE_STOP) return;
            const uint32_t a = block.stage(stage.at) + group * P::block_bytes;
            const uint32_t b = block.stage(stage.at) + P::a_bytes;
            if constexpr (P::SOURCE == ROWS) {
                const int rows = __shfl_sync(~0u, note.w, 0);
                if (rows < P::depth) wgrad_clear<P>(a, b, rows, group, t);
            }
            fence_for_wgmma();
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; ++i)
                wgmma<T, P::COLS, ACROSS_K, ACROSS_K>::run(sum, at_address(form, a + i * 16 * 128),
                                                           at_address(form, b + i * 16 * 128),
                                                           begun || i > 0);
            wgmma_commit();
            wgmma_wait<0>();
            begun = true;
            release_slot(block.stages().empty(stage.at), t % 32);
            stage.advance();
        } while ((flags & NOTE_LAST) == 0);

        const int tap = __shfl_sync(~0u, note.y, 0), partial = __shfl_sync(~0u, note.z, 0);
        void *to = p.partials + partial * tap_numbers;
        spops_dtype dtype = SPOPS_DTYPE_F32;
        if (partial < 0) {
            dtype = p.dw_dtype;
            const int64_t bytes = dtype == SPOPS_DTYPE_F32 ? 4 : 2;
            to = static_cast<char *>(p.dw) + tap * tap_numbers * bytes;
        }
        if constexpr (P::SOURCE == PAIRS && P::folded_bytes > 0) {
            if (p.fold > 1) {
                wgrad_store_folded(p, sum, block.folded(), to, dtype, t);
                continue;
            }
        }
        const int row = row_tile * P::rows + group * 64 + t / 32 * 16 + t % 32 / 4;
        const int col = col_tile * P::COLS + t % 4 * 2;
        if (dtype == SPOPS_DTYPE_F32 && p.cols % 2 == 0)
            wgrad_store_pairs<P::COLS>(p, sum, static_cast<float *>(to), row, col);
        else if (dtype == SPOPS_DTYPE_F32)
            wgrad_store<float, P::COLS>(p, sum, static_cast<float *>(to), row, col);
        else
            wgrad_store<T, P::COLS>(p, sum, static_cast<T *>(to), row, col);
    }
}

template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::BLOCKS)
    wgrad_kernel(const __grid_constant__ wgrad_params p)
{
    extern __shared__ char unaligned[];
    wgrad_block<P> block;
    block.base = aligned_shared(unaligned);
    block.shared = unaligned + (block.base - shared_address(unaligned));
    if (threadIdx.x == 0) {
        const int filling = P::SOURCE == PAIRS ? 129 : P::SOURCE == UNITS ? 65 : 1;
        const bool adds = P::SOURCE == ROWS && p.g_sums != nullptr && blockIdx.y < p.col_tiles;
        block.stages().init(P::STAGES, filling, 4 * P::GROUPS + (adds ? 32 * adding_warps : 0));
        barrier_init_done();
    }
    grid_dependency_wait();
    grid_launch_dependents();
    const wgrad_range range = find_range(p, blockIdx.x);
    __syncthreads();

    const int row_tile = blockIdx.y / p.col_tiles, col_tile = blockIdx.y % p.col_tiles;
    run_roles<P>(
        [&](int warp) {
            wgrad_multiply<P, T>(p, block, row_tile, col_tile, warp / 4, threadIdx.x % 128);
        },
        [&](int warp) {
            if constexpr (P::SOURCE == ROWS) {
                if (warp == adding_warps && threadIdx.x % 32 == 0)
                    wgrad_load_rows<P>(p, block, range, row_tile, col_tile);
                if (warp < adding_warps && p.g_sums != nullptr && row_tile == 0)
                    wgrad_add_rows<P, T>(p, block, col_tile, threadIdx.x % 128);
            } else if constexpr (P::SOURCE == UNITS)
                wgrad_gather_units<P, T>(p, block, range, row_tile, col_tile, warp,
                                         threadIdx.x % 32);
            else
                wgrad_gather<P>(p, block, range, row_tile, col_tile, threadIdx.x % 128);
        });
}

// ---- The sum over ranges ------------------------------------------------------------------------

constexpr int add_threads = 256;

__device__ __forceinline__ void store_numbers(void *to, spops_dtype dtype, int64_t at, float4 v)
{
    store_number(to, dtype, at, v.x);
    store_number(to, dtype, at + 1, v.y);
    store_number(to, dtype, at + 2, v.z);
    store_number(to, dtype, at + 3, v.w);
}

// dW of the taps that no range has alone: what the ranges have of them; empty taps are zero. A row of blocks
// for each tap. A thread has four numbers; `add_lanes` of them, one of whom adds every so many-th range,
// are added in halves, which depends on no more than the cut into ranges does.
__global__ void __launch_bounds__(add_threads) wgrad_add(const __grid_constant__ wgrad_params p)
{
    __shared__ float4 sums[add_threads];
    const int wide = add_threads / p.add_lanes, at = threadIdx.x % wide, lane = threadIdx.x / wide;
    const int64_t numbers = (int64_t)p.rows * p.cols / 4; // columns come in eights
    const int64_t all = numbers + (p.g_sums != nullptr ? p.cols / 4 : 0);
    grid_dependency_wait();
    grid_launch_dependents();
    for (int tap = blockIdx.y; tap < p.num_taps; tap += gridDim.y) {
        const int total = stages_of_taps(p, 0, p.num_taps);
        const int share = max((total + p.ranges - 1) / p.ranges, 1);
        const int begin = stages_of_taps(p, 0, tap), end = begin + stages_of_tap(p, tap);
        const int first = begin / share, last = end > begin ? (end - 1) / share : first - 1;
        if (first == last) continue;
        for (int64_t from = (int64_t)blockIdx.x * wide; from < all;
             from += (int64_t)gridDim.x * wide) {
            const int64_t i = from + at, past = i - numbers; // of dW, then of sums of g
            const float4 *const parts = reinterpret_cast<const float4 *>(p.partials) + i;
            const float4 *const g_parts = reinterpret_cast<const float4 *>(p.g_partials) + past;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
            for (int r = first + lane; r <= last; r += p.add_lanes) {
                float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (i < all)
                    v = __ldcg(past < 0 ? parts + p.partial(r, tap, r == first) * numbers
                                        : g_parts + (int64_t)r * (p.cols / 4));
                sum.x += v.x;
                sum.y += v.y;
                sum.z += v.z;
                sum.w += v.w;
            }
            for (int half = p.add_lanes / 2; half > 0; half /= 2) {
                sums[threadIdx.x] = sum;
                __syncthreads();
                if (lane < half) {
                    const float4 v = sums[threadIdx.x + half * wide];
                    sum.x += v.x;
                    sum.y += v.y;
                    sum.z += v.z;
                    sum.w += v.w;
                }
                __syncthreads();
            }
            if (lane == 0 && past < 0)
                store_numbers(p.dw, p.dw_dtype, (tap * numbers + i) * 4, sum);
            else if (lane == 0 && i < all)
                store_numbers(p.g_sums, SPOPS_DTYPE_F32, past * 4, sum);
        }
    }
}

// ---- Launching ----------------------------------------------------------------------------------

struct wgrad_grid {
    int row_tiles, col_tiles, ranges;
};

template <class P> wgrad_grid grid_of(const spops_context *ctx, const spops_igemm_wgrad_args *args)
{
    wgrad_grid g;
    g.row_tiles = (int)((args->x.cols + P::rows - 1) / P::rows);
    g.col_tiles = (int)((args->g.cols + P::COLS - 1) / P::COLS);
    const int tiles = g.row_tiles * g.col_tiles;
    g.ranges = ctx->info.num_processors * P::BLOCKS / tiles;
    if (g.ranges < 1) g.ranges = 1;
    return g;
}

// Boxes of 64 rows by 64 channels.
spops_status encode_rows(spops_context *ctx, const spops_matrix &m, int64_t rows, CUtensorMap *map)
{
    box_shape box = {};
    box.data = m.data;
    box.line = m.cols;
    box.stride = m.row_stride;
    box.lines = rows;
    box.slabs = 1;
    box.box_line = 64;
    box.box_lines = 64;
    box.dtype = m.dtype;
    return encode_tensor_map(ctx, box, map);
}

// Ranges are as many as blocks fit, so a partial for each is so many tiles, or dW of a tap where that
// is more; beside it there are at most as many, and no more than taps.
template <class P>
int64_t partial_numbers(const spops_context *ctx, int num_taps, int64_t rows, int64_t cols)
{
    const int64_t tiles = (int64_t)ctx->info.num_processors * P::BLOCKS * P::rows * P::COLS;
    const int64_t of_tap = rows * cols, of_ranges = tiles > of_tap ? tiles : of_tap;
    const bool few_taps = of_tap <= of_ranges / (num_taps + 1);
    return of_ranges + (few_taps ? num_taps * of_tap : of_ranges);
}

template <class P, class T>
spops_status launch_policy(spops_context *ctx, const spops_igemm_wgrad_args *args)
{
    const wgrad_grid grid = grid_of<P>(ctx, args);
    wgrad_params p = {};
    p.num_taps = args->num_taps;
    p.tap_offsets = args->tap_offsets;
    if (P::SOURCE == UNITS) {
        const spops_igemm_schedule *s = args->units;
        p.units = {s->units, s->records, s->out_rows, s->members,
                   reinterpret_cast<const int4 *>(s->sums)};
        p.tap_offsets = s->unit_offsets;
    }
    p.in_rows = args->in_rows;
    p.out_rows = args->out_rows;
    p.num_rows = args->num_rows;
    p.max_rows = (int)args->max_pairs;
    p.x = static_cast<const unsigned char *>(args->x.data);
    p.g = static_cast<const unsigned char *>(args->g.data);
    p.x_row_bytes = args->x.row_stride * 2;
    p.g_row_bytes = args->g.row_stride * 2;
    p.rows = (int)args->x.cols;
    p.cols = (int)args->g.cols;
    p.x_bytes = p.rows * 2;
    p.g_bytes = p.cols * 2;
    const int widest = p.rows > p.cols ? p.rows : p.cols;
    const bool folds = P::SOURCE == PAIRS && P::folded_bytes > 0;
    p.fold = !folds || widest > 32 ? 1 : widest > 16 ? 2 : 4;
    p.stage_pairs = P::SOURCE == UNITS ? 1 : 64 * p.fold;
    if (P::SOURCE == ROWS) p.g_sums = args->g_sums;
    if (P::SOURCE == ROWS && args->max_pairs > 0) { // of no rows there is no map, and no stage
        SPOPS_TRY(encode_rows(ctx, args->x, args->max_pairs, &p.x_rows));
        SPOPS_TRY(encode_rows(ctx, args->g, args->max_pairs, &p.g_rows));
    }
    p.col_tiles = grid.col_tiles;
    p.dw = args->dw.data;
    p.dw_dtype = args->dw.dtype;
    p.partials = static_cast<float *>(args->scratch);
    p.ranges = grid.ranges;
    if (P::SOURCE != ROWS && p.num_taps > 1)
        p.places = p.ranges > p.num_taps ? (p.ranges + p.num_taps / 2) / p.num_taps : 1;
    p.g_partials = p.partials + partial_numbers<P>(ctx, p.num_taps, p.rows, p.cols);
    // Eight ranges a lane.
    p.add_lanes = 1;
    while (p.add_lanes < 32 && 8 * p.add_lanes * p.num_taps < p.ranges)
        p.add_lanes *= 2;
    SPOPS_TRY(launch_preparing<WAITS_FOR_PREVIOUS>(
        ctx, "igemm_wgrad: launch", wgrad_kernel<P, T>,
        dim3((unsigned)grid.ranges, (unsigned)(grid.row_tiles * grid.col_tiles)),
        (unsigned)P::threads, (size_t)P::shared_bytes, p));
    const int64_t wide = 4 * (add_threads / p.add_lanes);
    const int64_t across = ((args->x.cols + 1) * args->g.cols + wide - 1) / wide;
    const unsigned taps = (unsigned)(args->num_taps < 65535 ? args->num_taps : 65535);
    return launch<WAITS_FOR_PREVIOUS>(ctx, "igemm_wgrad: launch", wgrad_add,
                                      dim3((unsigned)(across < 1024 ? across : 1024), taps),
                                      (unsigned)add_threads, p);
}

template <class P> spops_status launch_dtype(spops_context *ctx, const spops_igemm_wgrad_args *args)
{
    return args->x.dtype == SPOPS_DTYPE_BF16 ? launch_policy<P, __nv_bfloat16>(ctx, args)
                                             : launch_policy<P, __half>(ctx, args);
}

template <class P> spops_status prepare_policy(spops_context *ctx)
{
    const char *what = "igemm_wgrad: prepare";
    SPOPS_TRY(prepare_shared(ctx, what, wgrad_kernel<P, __half>));
    return prepare_shared(ctx, what, wgrad_kernel<P, __nv_bfloat16>);
}

// Partials, and sums of g of as many ranges.
template <class P>
int64_t scratch_numbers(const spops_context *ctx, int num_taps, int64_t rows, int64_t cols)
{
    const int64_t lines = (int64_t)ctx->info.num_processors * P::BLOCKS * P::COLS;
    return partial_numbers<P>(ctx, num_taps, rows, cols) + (lines > cols ? lines : cols);
}

} // namespace

spops_status spops::launch_igemm_wgrad_sm90(spops_context *ctx, const spops_igemm_wgrad_args *args)
{
    const int32_t tile = igemm_wgrad_tile_of(args);
    switch (tile) {
#define SPOPS_TILE(number, units, max_x, max_g, ...)                                               \
    case number:                                                                                   \
        return !units && args->in_rows == nullptr                                                  \
                   ? launch_dtype<wgrad_policy<__VA_ARGS__, ROWS>>(ctx, args)                      \
                   : launch_dtype<wgrad_policy<__VA_ARGS__, units ? UNITS : PAIRS>>(ctx, args);
        SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return no_igemm_tile(ctx, tile);
    }
}

spops_status spops::prepare_igemm_wgrad_sm90(spops_context *ctx, wgrad_source source,
                                             int32_t forced)
{
#define SPOPS_TILE(number, units, max_x, max_g, ...)                                               \
    if ((source == UNITS) == (units != 0) && spops_igemm_leaves(forced, number)) {                 \
        if (source == ROWS)                                                                        \
            SPOPS_TRY((prepare_policy<wgrad_policy<__VA_ARGS__, units ? UNITS : ROWS>>(ctx)));     \
        else                                                                                       \
            SPOPS_TRY((prepare_policy<wgrad_policy<__VA_ARGS__, units ? UNITS : PAIRS>>(ctx)));    \
    }
    SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return SPOPS_STATUS_OK;
}

// A tile counts for the widest channels that the table gives it. Tiles of units need no more than those
// of pairs for the same channels.
size_t spops::igemm_wgrad_sm90_scratch_bytes(const spops_context *ctx, int num_taps,
                                             int64_t max_rows, int64_t max_cols, int32_t forced)
{
    int64_t numbers = 0, own, rows, cols;
#define SPOPS_TILE(number, units, max_x, max_g, ...)                                               \
    rows = number != forced && max_rows > max_x ? max_x : max_rows;                                \
    cols = number != forced && max_cols > max_g ? max_g : max_cols;                                \
    own = scratch_numbers<wgrad_policy<__VA_ARGS__, PAIRS>>(ctx, num_taps, rows, cols);            \
    if (own > numbers &&                                                                           \
        (number == forced || spops_igemm_wgrad_tile(false, rows, cols) == number))                 \
        numbers = own;
    SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return (size_t)numbers * sizeof(float);
}
