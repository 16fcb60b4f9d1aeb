// SPDX-License-Identifier: Apache-2.0
// Rows ordered by the ranks of their masks, ties by row, for sides small enough that starting
// kernels and waiting for memory, not bytes, is what a sort costs (larger ones: CUB, map_lists.cu).
//
//     rank_rows:  rank of every row; how often the first digit appears in each tile of rows
//     sort_pass:  rows to where they belong by one digit, stable, a block for a tile; and how often
//                 the next digit appears in each tile of what was written. The last pass also joins the
//                 masks of the map's tiles, which rank_rows has cleared
//
// A block adds the counts of all tiles up by itself, which is why there may only be few of them;
// nobody waits for another block, as the counts of a pass are whole when its kernel begins.
#ifndef SPOPS_KERNELS_MAPS_ROW_SORT_CUH
#define SPOPS_KERNELS_MAPS_ROW_SORT_CUH

#include "kernels/core/batch.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "maps/map_arrays.h"
#include "spops/device/grid_dependency.cuh"

namespace spops
{

constexpr int row_sort_threads = 1024, row_sort_warps = row_sort_threads / 32;
constexpr int row_sort_bits = 9, row_sort_digits = 1 << row_sort_bits;
// Counts are at most the rows of a tile and lie in pairs: digit 2 w in the lower half of word w.
constexpr int row_sort_words = row_sort_digits / 2;
constexpr int row_sort_tiles = 128;
constexpr int64_t row_sort_short = (int64_t)64 * 2 * row_sort_threads; // rows for tiles of 2 each
constexpr int64_t row_sort_most = (int64_t)row_sort_tiles * 4 * row_sort_threads;

struct row_sort {
    uint32_t *keys;   // [rows] ranks, as the rows lie
    uint2 *pairs[2];  // [rows] rank and row, between passes
    uint32_t *counts; // [passes][tiles][words]
    int32_t num_tiles, num_passes, digit_bits;
};

// Rows that a thread takes.
inline int row_sort_items(int64_t rows)
{
    return rows <= row_sort_short ? 2 : 4;
}

inline row_sort carve_row_sort(int64_t rows, int bits, spops_carver *c)
{
    row_sort s = {};
    const int64_t tile = (int64_t)row_sort_items(rows) * row_sort_threads;
    s.num_tiles = (int32_t)((rows + tile - 1) / tile);
    s.num_passes = (bits + row_sort_bits - 1) / row_sort_bits;
    s.digit_bits = (bits + s.num_passes - 1) / s.num_passes;
    s.keys = (uint32_t *)spops_carve(c, rows, 1, sizeof(uint32_t));
    for (int i = 0; i < 2; ++i)
        s.pairs[i] = (uint2 *)spops_carve(c, rows, 1, sizeof(uint2));
    s.counts = (uint32_t *)spops_carve(c, (int64_t)s.num_passes * s.num_tiles, row_sort_words,
                                       sizeof(uint32_t));
    return s;
}

// What each tap of more than 32 sets in a mask's word, for the threads of a block.
struct tap_words {
    uint32_t bits[SPOPS_MAX_KERNEL_TAPS];

    // All threads call it, and wait for each other before a word is asked for.
    __device__ void fill(const spops_mask_order &order)
    {
        if (order.num_taps <= SPOPS_MASK_ORDER_SINGLE_TAPS) return;
        for (int32_t k = (int32_t)threadIdx.x; k < order.num_taps; k += (int32_t)blockDim.x)
            bits[k] = spops_mask_tap_bits(&order, k);
    }

    __device__ uint32_t of_mask(const uint32_t *mask, int32_t mask_words) const
    {
        uint32_t word = 0;
        for (int32_t w = 0; w < mask_words; ++w)
            for (uint32_t taps = mask[w]; taps != 0; taps &= taps - 1)
                word |= bits[32 * w + __ffs((int)taps) - 1];
        return word;
    }
};

// The word of a mask of up to 32 taps.
__device__ __forceinline__ uint32_t mask_word(const spops_mask_order &order, uint32_t mask)
{
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < SPOPS_MASK_ORDER_SINGLE_TAPS; ++k)
        word |= order.u.tap_bits[k] & (0u - (mask >> k & 1u));
    return word;
}

// The lanes that hold the same value as this one.
__device__ __forceinline__ uint32_t equal_lanes(uint32_t value)
{
#if __CUDA_ARCH__ >= 700
    return __match_any_sync(~0u, value);
#else
    uint32_t lanes = ~0u;
    for (int bit = 0; bit < 32; ++bit) {
        const uint32_t votes = __ballot_sync(~0u, value >> bit & 1u);
        lanes &= value >> bit & 1u ? votes : ~votes;
    }
    return lanes;
#endif
}

// One more of `digit` for each lane that `counted`, in counts; one atomic for those that agree in
// `value`, which says where to count. All lanes call it.
__device__ __forceinline__ void count_digit(bool counted, uint32_t value, uint32_t *counts,
                                            uint32_t digit)
{
    const uint32_t lanes = equal_lanes(counted ? value : ~0u);
    const uint32_t below = lanes & ((1u << threadIdx.x % 32) - 1);
    if (counted && below == 0)
        atomicAdd(counts + digit / 2, (uint32_t)__popc(lanes) << digit % 2 * 16);
}

// A side, and what its sort works in.
struct row_sort_job {
    row_sort sort;
    spops_mask_order mask_order;
    const uint32_t *masks;
    const int32_t *num_rows;
    int32_t *order;
    uint32_t *tile_masks; // of the map's tiles, of 1 << tile_shift rows; NULL: not to be joined
    int32_t mask_words, tile_shift, num_mask_words;
};

template <int MOST> using row_sort_jobs = batch<row_sort_job, MOST>;
constexpr int most_row_sorts = jobs_at_once<row_sort_job>();

template <int ITEMS, int MOST>
__global__ void __launch_bounds__(row_sort_threads)
    rank_rows(const __grid_constant__ row_sort_jobs<MOST> jobs)
{
    constexpr int tile = ITEMS * row_sort_threads;
    int32_t block, num_blocks;
    const row_sort_job &job = job_of_block(jobs, &block, &num_blocks);
    const row_sort &s = job.sort;
    const uint32_t *masks = job.masks;
    const spops_mask_order &order = job.mask_order;
    const bool single_taps = order.num_taps <= SPOPS_MASK_ORDER_SINGLE_TAPS;
    __shared__ uint32_t counts[row_sort_words];
    __shared__ tap_words words;
    const int thread = (int)threadIdx.x;
    const uint32_t digit_mask = (1u << s.digit_bits) - 1;
    if (thread < row_sort_words) counts[thread] = 0;
    words.fill(order);
    grid_dependency_wait();
    grid_launch_dependents();
    const int64_t n = *job.num_rows, first = (int64_t)block * tile;
    if (job.tile_masks != nullptr)
        for (int32_t w = block * row_sort_threads + thread; w < job.num_mask_words;
             w += num_blocks * row_sort_threads)
            job.tile_masks[w] = 0;
    if (first >= n) return;
    uint32_t *mine = s.counts + (int64_t)block * row_sort_words;
    const int64_t pass_words = (int64_t)s.num_tiles * row_sort_words;
    uint32_t mask[ITEMS]; // read before anything is written, so that the loads overlap
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int64_t r = first + i * row_sort_threads + thread;
        mask[i] = r < n && single_taps ? masks[r] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int64_t r = first + i * row_sort_threads + thread;
        const uint32_t word = single_taps ? mask_word(order, mask[i])
                              : r < n ? words.of_mask(masks + r * job.mask_words, job.mask_words)
                                      : 0;
        const uint32_t key = spops_mask_rank(word);
        if (r < n) s.keys[r] = key;
        count_digit(r < n, key & digit_mask, counts, key & digit_mask);
    }
    __syncthreads();
    if (thread >= row_sort_words) return;
    mine[thread] = counts[thread];
    for (int pass = 1; pass < s.num_passes; ++pass)
        mine[pass * pass_words + thread] = 0;
}

// Row `row` stands at place `to`: its mask is joined to those of its tile of the map. All lanes call it;
// those of one tile, as rows of few masks are, join theirs first, and most rows bring nothing new.
__device__ __forceinline__ void join_mask(const row_sort_job &job, bool used, int32_t to,
                                          int64_t row)
{
    const int32_t tile = to >> job.tile_shift;
    const int32_t first = __shfl_sync(~0u, tile, 0);
    const bool alone = !__all_sync(~0u, used && tile == first);
    for (int32_t w = 0; w < job.mask_words; ++w) {
        uint32_t *const joined = job.tile_masks + (int64_t)tile * job.mask_words + w;
        uint32_t mask = used ? job.masks[row * job.mask_words + w] : 0;
        if (!alone) {
            mask = warp_or(mask);
            if (threadIdx.x % 32 != 0) mask = 0;
        }
        if (mask != 0 && (mask & ~*(volatile uint32_t *)joined) != 0) atomicOr(joined, mask);
    }
}

template <int ITEMS, int MOST>
__global__ void __launch_bounds__(row_sort_threads)
    sort_pass(const __grid_constant__ row_sort_jobs<MOST> jobs, int pass)
{
    constexpr int tile = ITEMS * row_sort_threads;
    __shared__ uint32_t warp_counts[row_sort_warps][row_sort_words];
    __shared__ int32_t starts[row_sort_digits], before[row_sort_digits], sums[32];
    int32_t here, num_blocks;
    const row_sort_job &job = job_of_block(jobs, &here, &num_blocks);
    const row_sort &s = job.sort;
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool last = pass == s.num_passes - 1;
    const int shift = pass * s.digit_bits;
    const uint32_t digit_mask = (1u << s.digit_bits) - 1;
#pragma unroll
    for (int w = 0; w < row_sort_words; w += 32)
        warp_counts[warp][w + lane] = 0;
    if (thread < row_sort_digits) starts[thread] = before[thread] = 0;
    grid_dependency_wait();
    grid_launch_dependents();
    const int32_t n = *job.num_rows, num_tiles = (n + tile - 1) / tile;
    if (here >= num_tiles) return;

    // A warp's rows lie together, so that earlier items stay before later ones.
    const int32_t first = here * tile + warp * ITEMS * 32 + lane;
    uint2 item[ITEMS]; // rank and row
    if (pass == 0) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int32_t at = first + i * 32;
            item[i] = make_uint2(at < n ? s.keys[at] : 0, (uint32_t)at);
        }
    } else {
        const uint2 *pairs = s.pairs[(pass - 1) % 2];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int32_t at = first + i * 32;
            item[i] = at < n ? pairs[at] : make_uint2(0, 0);
        }
    }
    __syncthreads();

    // Of each digit: how many there are, and how many in the tiles before.
    {
        const int word = thread % row_sort_words;
        const uint32_t *counts = s.counts + (int64_t)pass * s.num_tiles * row_sort_words + word;
        int32_t all_low = 0, all_high = 0, low = 0, high = 0;
#pragma unroll 8
        for (int32_t t = thread / row_sort_words; t < num_tiles;
             t += row_sort_threads / row_sort_words) {
            const uint32_t count = counts[(int64_t)t * row_sort_words];
            const uint32_t earlier = t < here ? count : 0;
            all_low += (int32_t)(count & 0xffff);
            all_high += (int32_t)(count >> 16);
            low += (int32_t)(earlier & 0xffff);
            high += (int32_t)(earlier >> 16);
        }
        atomicAdd(starts + 2 * word, all_low);
        atomicAdd(starts + 2 * word + 1, all_high);
        atomicAdd(before + 2 * word, low);
        atomicAdd(before + 2 * word + 1, high);
    }

    // Where an item stands among those of its warp that have its digit.
    uint16_t *mine = (uint16_t *)warp_counts[warp];
    int32_t rank[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const bool used = first + i * 32 < n;
        const uint32_t digit = item[i].x >> shift & digit_mask;
        const uint32_t lanes = equal_lanes(used ? digit : ~0u);
        const int32_t below = __popc(lanes & ((1u << lane) - 1));
        const int32_t earlier = mine[digit];
        rank[i] = earlier + below;
        __syncwarp();
        if (used && below == 0) mine[digit] = (uint16_t)(earlier + __popc(lanes));
        __syncwarp();
    }
    __syncthreads();

    // Counts of warps to those of the warps before; of digits to those of the digits before.
    int32_t total = 0, sum = 0;
    const int digit = thread - row_sort_threads / 2;
    if (thread < row_sort_words) {
        uint32_t running = 0; // two counts: neither leaves its half, a tile has few rows
#pragma unroll
        for (int half = 0; half < row_sort_warps; half += 16) {
            uint32_t count[16];
#pragma unroll
            for (int w = 0; w < 16; ++w)
                count[w] = warp_counts[half + w][thread];
#pragma unroll
            for (int w = 0; w < 16; ++w) {
                warp_counts[half + w][thread] = running;
                running += count[w];
            }
        }
    } else if (digit >= 0) {
        total = starts[digit];
        sum = warp_scan(total);
        if (lane == 31) sums[digit / 32] = sum;
    }
    __syncthreads();
    if (digit >= 0) {
        const int32_t lower = warp_sum(lane < digit / 32 ? sums[lane] : 0);
        starts[digit] = lower + sum - total + before[digit];
    }
    __syncthreads();

    uint32_t *next = s.counts + (int64_t)(pass + 1) * s.num_tiles * row_sort_words;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const bool used = first + i * 32 < n;
        const uint32_t own = item[i].x >> shift & digit_mask;
        const int32_t to = starts[own] + mine[own] + rank[i];
        if (last) {
            if (used) job.order[to] = (int32_t)item[i].y;
            if (job.tile_masks != nullptr) join_mask(job, used, used ? to : 0, item[i].y);
            continue;
        }
        const uint32_t following = item[i].x >> (shift + s.digit_bits) & digit_mask;
        const uint32_t target = (uint32_t)to / tile;
        if (used) s.pairs[pass % 2][to] = item[i];
        count_digit(used, target << row_sort_bits | following,
                    next + (int64_t)target * row_sort_words, following);
    }
}

static_assert(row_sort_digits == row_sort_threads / 2, "the upper half scans a digit a thread");
static_assert(row_sort_words <= row_sort_threads / 2, "the lower half scans a word a thread");
static_assert(4 * row_sort_threads < 1 << 16, "counts of a tile are 16-bit");

// joins: the masks of the side's tiles too.
inline row_sort_job row_sort_of(const row_sort &sort, const spops_map_arrays *map,
                                const spops_map_side *side, bool joins)
{
    row_sort_job job = {};
    job.sort = sort;
    job.mask_order = map->mask_order;
    job.masks = side->masks;
    job.num_rows = side->num_rows;
    job.order = side->order;
    job.mask_words = map->mask_words;
    if (!joins) return job;
    job.tile_masks = side->tile_masks;
    job.num_mask_words = (int32_t)side->num_tiles * map->mask_words;
    while ((int32_t)1 << job.tile_shift < map->tile_rows)
        ++job.tile_shift;
    return job;
}

// Sides for tiles of so many items; their sorts were carved for max_rows.
template <int ITEMS, int MOST>
spops_status enqueue_row_sort(spops_context *ctx, row_sort_jobs<MOST> *jobs)
{
    const auto tiles_from = [jobs](int pass) {
        return divide_blocks(jobs, [pass](const row_sort_job &job) {
            return job.sort.num_passes > pass ? job.sort.num_tiles : 0;
        });
    };
    int most_passes = 0;
    for (int j = 0; j < jobs->num; ++j)
        if (jobs->job[j].sort.num_passes > most_passes) most_passes = jobs->job[j].sort.num_passes;
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: rank_rows", rank_rows<ITEMS, MOST>,
                                         tiles_from(0), row_sort_threads, *jobs));
    for (int pass = 0; pass < most_passes; ++pass) {
        const dim3 tiles = tiles_from(pass);
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: sort_pass", sort_pass<ITEMS, MOST>,
                                             tiles, row_sort_threads, *jobs, pass));
    }
    return SPOPS_STATUS_OK;
}

} // namespace spops

#endif
