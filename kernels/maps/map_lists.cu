// SPDX-License-Identifier: Apache-2.0
// What follows from the tables of kernel maps on the GPU: rows ordered by their masks and tiles by
// their taps; pairs in tap order, and each row's list of them.
#include <cub/block/block_radix_sort.cuh>

#include "kernels/maps/row_sort.cuh"
#include "kernels/core/batch.cuh"
#include "kernels/core/device_wide.h"
#include "kernels/core/scan.cuh"

namespace
{

using spops::blocks_for;
using spops::launch;
using spops::row_sort;
using spops::stream_of;
using spops::WAITS_FOR_PREVIOUS;

constexpr int threads = 256;

// ---- Order --------------------------------------------------------------------------------------

struct order_workspace {
    row_sort sort_rows;     // of few rows; of more:
    uint32_t *keys[2];      // [rows]
    int32_t *rows;          // [rows] 0, 1, ..
    uint32_t *tile_keys[2]; // [tiles]
    int32_t *tiles;         // [tiles] 0, 1, ..
    spops::device_wide wide;
};

bool sorts_in_tiles(int64_t rows)
{
    return rows <= spops::row_sort_most;
}

// Of a tile's key: 0 to num_taps taps are missing.
int tile_bits(const spops_map_arrays *map)
{
    int bits = 1;
    while (map->taps.num_taps >> bits != 0)
        ++bits;
    return bits;
}

order_workspace carve_order(const spops_map_arrays *map, int64_t rows, int64_t tiles,
                            spops_carver *c)
{
    order_workspace ws = {};
    if (rows == 0) return ws;
    for (int i = 0; i < 2; ++i)
        ws.tile_keys[i] = (uint32_t *)spops_carve(c, tiles, 1, sizeof(uint32_t));
    ws.tiles = (int32_t *)spops_carve(c, tiles, 1, sizeof(int32_t));
    ws.wide.needs_sort<uint32_t>(tiles, tile_bits(map));
    if (sorts_in_tiles(rows)) {
        ws.sort_rows = spops::carve_row_sort(rows, map->mask_order.num_bits, c);
    } else {
        for (int i = 0; i < 2; ++i)
            ws.keys[i] = (uint32_t *)spops_carve(c, rows, 1, sizeof(uint32_t));
        ws.rows = (int32_t *)spops_carve(c, rows, 1, sizeof(int32_t));
        ws.wide.needs_sort<uint32_t>(rows, map->mask_order.num_bits);
    }
    ws.wide.carve(c);
    return ws;
}

// The words of masks of up to 32 taps, by their bytes.
struct byte_words {
    uint32_t words[4][256];

    // All threads call it, and wait for each other before a word is asked for.
    __device__ void fill(const spops_mask_order &order)
    {
        if (order.num_taps > SPOPS_MASK_ORDER_SINGLE_TAPS) return;
        for (int byte = (int)threadIdx.x; byte < 256; byte += (int)blockDim.x)
            for (int b = 0; b < 4; ++b)
                words[b][byte] = spops::mask_word(order, (uint32_t)byte << 8 * b);
    }

    __device__ uint32_t of_mask(uint32_t mask) const
    {
        return words[0][mask & 0xff] | words[1][mask >> 8 & 0xff] | words[2][mask >> 16 & 0xff] |
               words[3][mask >> 24];
    }
};

constexpr int rank_rows_at_once = 4; // masks that a thread has under way

// Rows not in use come last: no key is larger, and they stand after all others to begin with.
__global__ void __launch_bounds__(threads)
    rank_masks(const __grid_constant__ spops_mask_order order, const uint32_t *masks,
               const int32_t *num_rows, int64_t max_rows, int32_t mask_words, uint32_t *keys,
               int32_t *rows)
{
    __shared__ union {
        spops::tap_words taps;
        byte_words bytes;
    } words;
    const bool single_taps = order.num_taps <= SPOPS_MASK_ORDER_SINGLE_TAPS;
    words.taps.fill(order);
    words.bytes.fill(order);
    __syncthreads();
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t n = *num_rows;
    for (int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x; r < max_rows;
         r += rank_rows_at_once * (int64_t)gridDim.x * threads) {
        uint32_t mask[rank_rows_at_once];
#pragma unroll
        for (int i = 0; i < rank_rows_at_once; ++i) {
            const int64_t at = r + i * (int64_t)gridDim.x * threads;
            mask[i] = single_taps && at < n ? masks[at] : 0;
        }
#pragma unroll
        for (int i = 0; i < rank_rows_at_once; ++i) {
            const int64_t at = r + i * (int64_t)gridDim.x * threads;
            if (at >= max_rows) continue;
            uint32_t key = UINT32_MAX;
            if (at < n)
                key = spops_mask_rank(
                    single_taps ? words.bytes.of_mask(mask[i])
                                : words.taps.of_mask(masks + at * mask_words, mask_words));
            keys[at] = key;
            rows[at] = (int32_t)at;
        }
    }
}

// A side with an order, and what its tiles are sorted in.
struct tile_job {
    const uint32_t *masks;
    const int32_t *order, *num_rows;
    int64_t num_tiles;
    int32_t tile_rows, num_taps, mask_words;
    int end_bit; // of a tile's key
    uint32_t *tile_masks, *tile_keys;
    int32_t *tiles, *tile_order;
};

constexpr int most_sides = 32;
typedef spops::batch<tile_job, most_sides> tile_jobs;

// Taps that no row of a tile has.
__device__ __forceinline__ uint32_t missing_taps(const tile_job &p, int32_t tile)
{
    int32_t taps = p.num_taps;
    for (int32_t w = 0; w < p.mask_words; ++w)
        taps -= __popc(p.tile_masks[(int64_t)tile * p.mask_words + w]);
    return (uint32_t)taps;
}

// Sides whose tiles one block sorts.
constexpr int sort_threads = 512, most_sort_items = 16;

bool has_few_tiles(const spops_map_side *side)
{
    return side->num_tiles <= most_sort_items * sort_threads;
}

// A warp ors the masks of a tile's rows, where the sort of the rows has not.
__global__ void __launch_bounds__(threads) join_masks(const __grid_constant__ tile_jobs jobs)
{
    int32_t block, num_blocks;
    const tile_job &p = spops::job_of_block(jobs, &block, &num_blocks);
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int lane = threadIdx.x % 32;
    const int64_t t = ((int64_t)block * threads + threadIdx.x) / 32;
    if (t >= p.num_tiles) return;
    const int64_t n = *p.num_rows, begin = t * p.tile_rows;
    const int64_t end = begin + p.tile_rows < n ? begin + p.tile_rows : n;
    int32_t taps = 0;
    for (int32_t w = 0; w < p.mask_words; ++w) {
        uint32_t joined = 0;
        for (int64_t i = begin + lane; i < end; i += 32)
            joined |= p.masks[(int64_t)p.order[i] * p.mask_words + w];
        joined = spops::warp_or(joined);
        taps += __popc(joined);
        if (lane == 0) p.tile_masks[t * p.mask_words + w] = joined;
    }
    if (lane != 0) return;
    p.tile_keys[t] = (uint32_t)(p.num_taps - taps);
    p.tiles[t] = (int32_t)t;
}

// All tiles of a side sorted by one block: for few of them cheaper than a sort of several launches.
template <int ITEMS>
__global__ void __launch_bounds__(sort_threads) sort_tiles(const __grid_constant__ tile_jobs jobs)
{
    const tile_job &p = jobs.job[blockIdx.x];
    const int32_t num_tiles = (int32_t)p.num_tiles;
    typedef cub::BlockRadixSort<uint32_t, sort_threads, ITEMS, int32_t> block_sort;
    __shared__ typename block_sort::TempStorage storage;
    uint32_t keys[ITEMS];
    int32_t tiles[ITEMS];
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        tiles[i] = (int32_t)threadIdx.x * ITEMS + i;
        keys[i] = tiles[i] < num_tiles ? missing_taps(p, tiles[i]) : UINT32_MAX;
    }
    // Places without a tile stand last already, and no key is larger.
    block_sort(storage).SortBlockedToStriped(keys, tiles, 0, p.end_bit);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int32_t at = i * sort_threads + (int32_t)threadIdx.x;
        if (at < num_tiles) p.tile_order[at] = tiles[i];
    }
}

// Rows of a side that is too large for row_sort.
spops_status order_many_rows(spops_context *ctx, const spops_map_arrays *map,
                             const spops_map_side *side, const order_workspace &ws)
{
    const int64_t blocks = (side->max_rows + threads - 1) / threads;
    const int64_t most = 8 * (int64_t)ctx->info.num_processors;
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: rank_masks", rank_masks,
                                         dim3((unsigned)(blocks < most ? blocks : most)), threads,
                                         map->mask_order, side->masks, side->num_rows,
                                         side->max_rows, map->mask_words, ws.keys[0], ws.rows));
    return ws.wide.sort(ctx, "kernel_map: sort of rows by mask", ws.keys[0], ws.keys[1], ws.rows,
                        side->order, side->max_rows, map->mask_order.num_bits);
}

// Where the side of args has its workspace: that of the inputs lies after that of the outputs.
order_workspace order_workspace_of(const spops_map_order_args *args)
{
    const spops_map_arrays *map = args->map;
    spops_carver c = {(char *)args->workspace, 0};
    order_workspace ws = carve_order(map, map->out.max_rows, map->out.num_tiles, &c);
    if (args->side == &map->in) ws = carve_order(map, map->in.max_rows, map->in.num_tiles, &c);
    return ws;
}

// Sort the rows of all sides whose tiles have so many items.
template <int ITEMS> spops_status order_rows(spops_context *ctx, const spops_map_orders_args *args)
{
    spops::row_sort_jobs<spops::most_row_sorts> jobs = {};
    for (int32_t i = 0; i < args->num; ++i) {
        const spops_map_side *side = args->each[i].side;
        if (side->max_rows > 0 && sorts_in_tiles(side->max_rows) &&
            spops::row_sort_items(side->max_rows) == ITEMS)
            jobs.job[jobs.num++] = spops::row_sort_of(order_workspace_of(&args->each[i]).sort_rows,
                                                      args->each[i].map, side, has_few_tiles(side));
        if (jobs.num == 0 || (jobs.num < spops::most_row_sorts && i + 1 < args->num)) continue;
        if (jobs.num == 1) {
            spops::row_sort_jobs<1> alone = {};
            alone.job[0] = jobs.job[0];
            alone.num = 1;
            SPOPS_TRY((spops::enqueue_row_sort<ITEMS>(ctx, &alone)));
        } else {
            SPOPS_TRY((spops::enqueue_row_sort<ITEMS>(ctx, &jobs)));
        }
        jobs.num = 0;
    }
    return SPOPS_STATUS_OK;
}

tile_job tile_job_of(const spops_map_order_args *args, const order_workspace &ws)
{
    const spops_map_arrays *map = args->map;
    const spops_map_side *side = args->side;
    tile_job p = {};
    p.masks = side->masks;
    p.order = side->order;
    p.num_rows = side->num_rows;
    p.num_tiles = side->num_tiles;
    p.tile_rows = map->tile_rows;
    p.num_taps = map->taps.num_taps;
    p.mask_words = map->mask_words;
    p.end_bit = tile_bits(map);
    p.tile_masks = side->tile_masks;
    p.tile_keys = ws.tile_keys[0];
    p.tiles = ws.tiles;
    p.tile_order = side->tile_order;
    return p;
}

// tile_order of jobs of at most ITEMS * sort_threads tiles.
template <int ITEMS> spops_status order_tiles(spops_context *ctx, const tile_jobs &jobs)
{
    return launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: sort_tiles", sort_tiles<ITEMS>,
                                      dim3((unsigned)jobs.num), sort_threads, jobs);
}

// ---- Pairs --------------------------------------------------------------------------------------

struct pairs_workspace {
    int32_t *counts;     // [taps][groups] + 1 pairs of a group of rows, by tap
    int32_t *starts;     // [taps][groups] + 1 those before
    int32_t *row_counts; // [rows + 1] pairs of a row, of either side
    spops::device_wide wide;
};

// Rows are looked at in groups of a block, a row a thread.
int64_t groups_of(int64_t rows)
{
    return (rows + threads - 1) / threads;
}

pairs_workspace carve_pairs(const spops_map_arrays *map, spops_carver *c)
{
    pairs_workspace ws = {};
    const int64_t most =
        map->out.max_rows > map->in.max_rows ? map->out.max_rows : map->in.max_rows;
    const int64_t n = groups_of(map->out.max_rows) * map->taps.num_taps + 1;
    ws.counts = (int32_t *)spops_carve(c, n, 1, sizeof(int32_t));
    ws.starts = (int32_t *)spops_carve(c, n, 1, sizeof(int32_t));
    ws.row_counts = (int32_t *)spops_carve(c, most + 1, 1, sizeof(int32_t));
    ws.wide.needs_scan<int32_t>(n);
    ws.wide.needs_scan<int32_t>(most + 1);
    ws.wide.carve(c);
    return ws;
}

struct pairs_params {
    spops_map_state *state;
    const int32_t *table;
    const uint32_t *masks, *in_masks;
    int32_t num_taps, mask_words, table_stride;
    bool in_mirrored;
    int64_t num_groups, max_rows, max_pairs;
    int32_t *counts;
    const int32_t *starts;
    int32_t *tap_offsets, *in_rows, *out_rows;
    const int32_t *out_offsets, *in_offsets; // NULL: no lists
    int2 *out_row_taps, *in_row_taps;
    int32_t *out_pair_ids, *in_pair_ids;
};

typedef spops::batch<pairs_params, spops::jobs_at_once<pairs_params>()> pairs_jobs;

// Pairs of groups and taps that one block scans, of several maps at once.
constexpr int scan_threads = 1024, scan_items = 8;
constexpr int64_t most_scanned = 2 * scan_threads * scan_items;

int64_t num_counts(const pairs_params &p)
{
    return p.num_groups * p.num_taps + 1;
}

// A bit for each lane whose row has tap 32 w + lane of this one; all lanes call it.
__device__ __forceinline__ uint32_t rows_of_tap(const pairs_params &p, int64_t r, bool used,
                                                int32_t w, uint32_t *mask)
{
    *mask = used ? p.masks[r * p.mask_words + w] : 0;
    return spops::warp_transpose(*mask);
}

// Pairs of each tap and group of rows; none at all where there are more than fit.
__global__ void __launch_bounds__(threads) count_pairs(const __grid_constant__ pairs_jobs jobs)
{
    __shared__ int32_t counts[threads / 32][32];
    int32_t block, num_blocks;
    const pairs_params &p = spops::job_of_block(jobs, &block, &num_blocks);
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = block;
    const bool overflow = p.state->num_pairs > p.max_pairs;
    if (group == 0 && threadIdx.x == 0) {
        p.state->overflow = overflow;
        p.counts[p.num_groups * p.num_taps] = 0;
    }
    if (group >= p.num_groups) return;
    const int64_t r = group * threads + threadIdx.x;
    const bool used = !overflow && r < p.state->num_out;
    for (int32_t w = 0; w < p.mask_words; ++w) {
        uint32_t mask;
        counts[warp][lane] = __popc(rows_of_tap(p, r, used, w, &mask));
        __syncthreads();
        const int32_t k = 32 * w + lane;
        if (warp == 0 && k < p.num_taps) {
            int32_t sum = 0;
#pragma unroll
            for (int v = 0; v < threads / 32; ++v)
                sum += counts[v][lane];
            p.counts[k * p.num_groups + group] = sum;
        }
        __syncthreads();
    }
}

// starts: the pairs before each group and tap, of a map a block.
__global__ void __launch_bounds__(scan_threads) scan_pairs(const __grid_constant__ pairs_jobs jobs)
{
    const pairs_params &p = jobs.job[blockIdx.x];
    const int32_t n = (int32_t)(p.num_groups * p.num_taps + 1);
    int32_t *const starts = const_cast<int32_t *>(p.starts);
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    for (int32_t base = 0, before = 0; base < n; base += scan_threads * scan_items) {
        const int32_t first = base + (int32_t)threadIdx.x * scan_items;
        int32_t count[scan_items], sum = 0, total;
#pragma unroll
        for (int i = 0; i < scan_items; ++i) {
            count[i] = first + i < n ? p.counts[first + i] : 0;
            sum += count[i];
        }
        int32_t start = before + spops::sum_before(sum, &total);
#pragma unroll
        for (int i = 0; i < scan_items; ++i) {
            if (first + i < n) starts[first + i] = start;
            start += count[i];
        }
        before += total;
    }
}

// Pairs of each row of a side; element max_rows and rows not in use: 0.
__global__ void __launch_bounds__(threads)
    count_row_pairs(const spops_map_state *state, const int32_t *num_rows, int64_t max_rows,
                    int64_t max_pairs, const uint32_t *masks, int32_t mask_words, int32_t *counts)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r > max_rows) return;
    int32_t count = 0;
    if (r < *num_rows && state->num_pairs <= max_pairs)
        for (int32_t w = 0; w < mask_words; ++w)
            count += __popc(masks[r * mask_words + w]);
    counts[r] = count;
}

// Set bits of a row's mask below bit k, or above it.
__device__ __forceinline__ int32_t bits_below(const uint32_t *mask, int32_t k)
{
    int32_t count = __popc(mask[k / 32] & ((1u << k % 32) - 1));
    for (int32_t w = 0; w < k / 32; ++w)
        count += __popc(mask[w]);
    return count;
}
__device__ __forceinline__ int32_t bits_above(const uint32_t *mask, int32_t words, int32_t k)
{
    int32_t count = __popc(mask[k / 32] >> k % 32 >> 1);
    for (int32_t w = k / 32 + 1; w < words; ++w)
        count += __popc(mask[w]);
    return count;
}

// What a row's pairs need besides the row.
struct pair_lists {
    int64_t r;
    int32_t at; // in the row's list

    // The pair of tap k with input j, at `position` of all pairs.
    __device__ __forceinline__ void put(const pairs_params &p, int32_t k, int32_t j,
                                        int32_t position)
    {
        p.in_rows[position] = j;
        p.out_rows[position] = (int32_t)r;
        if (p.out_offsets != nullptr) {
            p.out_row_taps[at] = make_int2(j, k);
            p.out_pair_ids[at] = position;
            ++at;
        }
        if (p.in_offsets == nullptr) return;
        // A mirrored side's tap k is bit num_taps - 1 - k.
        const uint32_t *in_mask = p.in_masks + (int64_t)j * p.mask_words;
        const int32_t before = p.in_mirrored ? bits_above(in_mask, p.mask_words, p.num_taps - 1 - k)
                                             : bits_below(in_mask, k);
        const int32_t in_at = p.in_offsets[j] + before;
        p.in_row_taps[in_at] = make_int2((int32_t)r, k);
        p.in_pair_ids[in_at] = position;
    }
};

constexpr int word_quads = 8; // of a row's elements that one word of masks is about
// Lanes that read quads of their own row meet no bank conflict.
constexpr int quad_pitch = word_quads + 1;

// A warp's rows of the table, the quads from `first_quad` on, as they lie in memory.
__device__ __forceinline__ void load_quads(const pairs_params &p, int64_t first_row,
                                           int32_t rows_here, int32_t first_quad, int32_t quads,
                                           int4 *tile)
{
    const int lane = threadIdx.x % 32;
    const int4 *table = (const int4 *)p.table + first_row * (p.table_stride / 4) + first_quad;
    const uint32_t inverse = (65536u + (uint32_t)quads - 1) / (uint32_t)quads; // exact below 256
#pragma unroll
    for (int i = 0; i < word_quads; ++i) {
        const uint32_t at = (uint32_t)(i * 32 + lane), row = at * inverse >> 16;
        const uint32_t quad = at - row * (uint32_t)quads;
        if (i < quads && (int32_t)row < rows_here)
            tile[row * quad_pitch + quad] =
                __ldcs(table + row * (uint32_t)(p.table_stride / 4) + quad);
    }
}

// A warp takes 32 rows tap by tap: within a tap, pairs are by ascending row.
__global__ void __launch_bounds__(threads) put_pairs(const __grid_constant__ pairs_jobs jobs)
{
    __shared__ int4 tiles[threads / 32][32 * quad_pitch];
    __shared__ int32_t counts[threads / 32][32];
    int32_t block, num_blocks;
    const pairs_params &p = spops::job_of_block(jobs, &block, &num_blocks);
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = block;
    for (int64_t k = group * threads + threadIdx.x; k <= p.num_taps;
         k += (int64_t)num_blocks * threads)
        p.tap_offsets[k] = p.starts[k * p.num_groups];
    if (group >= p.num_groups || p.state->num_pairs > p.max_pairs) return;
    const int64_t n = p.state->num_out, r = group * threads + threadIdx.x;
    const int32_t rows_here = (int32_t)max((int64_t)0, min((int64_t)32, n - (r - lane)));
    const bool used = r < n;
    int4 *const tile = tiles[warp];
    pair_lists lists = {r, used && p.out_offsets != nullptr ? p.out_offsets[r] : 0};
    for (int32_t w = 0; w < p.mask_words; ++w) {
        const int32_t quads = min(word_quads, p.table_stride / 4 - word_quads * w);
        uint32_t mask;
        load_quads(p, r - lane, rows_here, word_quads * w, quads, tile);
        const uint32_t rows = rows_of_tap(p, r, used, w, &mask);
        counts[warp][lane] = __popc(rows);
        __syncthreads();
        // Of tap 32 w + lane: where this warp's pairs begin.
        int32_t start =
            32 * w + lane < p.num_taps ? p.starts[(32 * w + lane) * p.num_groups + group] : 0;
        for (int v = 0; v < warp; ++v)
            start += counts[v][lane];
        for (int32_t q = 0; q < quads; ++q) {
            const int4 quad = tile[lane * quad_pitch + q];
            const int32_t inputs[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) { // elements after the last tap are in no mask
                const int bit = 4 * q + i;
                const uint32_t earlier = __shfl_sync(~0u, rows, bit) & ((1u << lane) - 1);
                const int32_t position = __shfl_sync(~0u, start, bit) + __popc(earlier);
                if (mask >> bit & 1) lists.put(p, 32 * w + bit, inputs[i], position);
            }
        }
        __syncthreads();
    }
}

spops_status scan_rows(spops_context *ctx, const spops_map_arrays *map, const spops_map_side *side,
                       const uint32_t *masks, const pairs_workspace &ws)
{
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: count_row_pairs", count_row_pairs,
                                         blocks_for(side->max_rows + 1, threads), threads,
                                         map->state, side->num_rows, side->max_rows, map->max_pairs,
                                         masks, map->mask_words, ws.row_counts));
    return ws.wide.scan(ctx, "kernel_map: scan of a side's pairs", ws.row_counts, side->offsets,
                        side->max_rows + 1);
}

pairs_params pairs_params_of(const spops_map_arrays *map, const pairs_workspace &ws)
{
    pairs_params p = {};
    p.state = map->state;
    p.table = map->out.table;
    p.masks = map->out.masks;
    p.in_mirrored = map->in.mirrored;
    p.in_masks = map->in.mirrored ? map->out.masks : map->in.masks;
    p.num_taps = map->taps.num_taps;
    p.mask_words = map->mask_words;
    p.table_stride = map->table_stride;
    p.num_groups = groups_of(map->out.max_rows);
    p.max_rows = map->out.max_rows;
    p.max_pairs = map->max_pairs;
    p.counts = ws.counts;
    p.starts = ws.starts;
    p.tap_offsets = map->tap_offsets;
    p.in_rows = map->in_rows;
    p.out_rows = map->out_rows;
    p.out_offsets = map->out.offsets;
    p.in_offsets = map->in.offsets;
    p.out_row_taps = (int2 *)map->out.row_taps;
    p.in_row_taps = (int2 *)map->in.row_taps;
    p.out_pair_ids = map->out.pair_ids;
    p.in_pair_ids = map->in.pair_ids;
    return p;
}

pairs_workspace pairs_workspace_of(const spops_map_pairs_args *args)
{
    spops_carver c = {(char *)args->workspace, 0};
    return carve_pairs(args->map, &c);
}

// What is before each group and tap, and each row of lists.
spops_status scan_all(spops_context *ctx, const pairs_jobs &jobs, const spops_map_pairs_args *each)
{
    pairs_jobs few = {};
    for (int j = 0; j < jobs.num; ++j)
        if (num_counts(jobs.job[j]) <= most_scanned) few.job[few.num++] = jobs.job[j];
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: scan_pairs", scan_pairs,
                                         dim3((unsigned)few.num), scan_threads, few));
    for (int j = 0; j < jobs.num; ++j) {
        const pairs_params &p = jobs.job[j];
        const spops_map_arrays *map = each[j].map;
        const pairs_workspace ws = pairs_workspace_of(&each[j]);
        if (num_counts(p) > most_scanned)
            SPOPS_TRY(ws.wide.scan(ctx, "kernel_map: scan of pairs", ws.counts, ws.starts,
                                   num_counts(p)));
        if (p.out_offsets != nullptr) SPOPS_TRY(scan_rows(ctx, map, &map->out, p.masks, ws));
        if (p.in_offsets != nullptr) SPOPS_TRY(scan_rows(ctx, map, &map->in, p.in_masks, ws));
    }
    return SPOPS_STATUS_OK;
}

} // namespace

extern "C" size_t spops_cuda_map_workspace_bytes(spops_context *ctx,
                                                 const spops_map_workspace_args *args)
{
    const spops_map_arrays *map = args->map;
    const int32_t contents = args->contents;
    size_t most = 0;
    (void)ctx;
    if (contents & SPOPS_MAP_ORDER) { // of both sides at once
        spops_carver c = {nullptr, 0};
        carve_order(map, map->out.max_rows, map->out.num_tiles, &c);
        if ((contents & SPOPS_MAP_REVERSE) && !map->in.mirrored)
            carve_order(map, map->in.max_rows, map->in.num_tiles, &c);
        most = c.used;
    }
    if (contents & SPOPS_MAP_PAIRS) {
        spops_carver c = {nullptr, 0};
        carve_pairs(map, &c);
        if (c.used > most) most = c.used;
    }
    return most;
}

extern "C" spops_status spops_cuda_map_order(spops_context *ctx, const spops_map_orders_args *args)
{
    SPOPS_TRY(order_rows<2>(ctx, args));
    SPOPS_TRY(order_rows<4>(ctx, args));
    for (int32_t begin = 0; begin < args->num; begin += most_sides) {
        const int32_t end = begin + most_sides < args->num ? begin + most_sides : args->num;
        tile_jobs all = {}, few = {}, some = {};
        for (int32_t i = begin; i < end; ++i) {
            const spops_map_side *side = args->each[i].side;
            const order_workspace ws = order_workspace_of(&args->each[i]);
            const tile_job job = tile_job_of(&args->each[i], ws);
            if (side->max_rows == 0) continue;
            if (!sorts_in_tiles(side->max_rows))
                SPOPS_TRY(order_many_rows(ctx, args->each[i].map, side, ws));
            if (!sorts_in_tiles(side->max_rows) || !has_few_tiles(side)) all.job[all.num++] = job;
            if (side->num_tiles <= 4 * sort_threads)
                few.job[few.num++] = job;
            else if (has_few_tiles(side))
                some.job[some.num++] = job;
        }
        const dim3 blocks = spops::divide_blocks(
            &all, [](const tile_job &job) { return (32 * job.num_tiles + threads - 1) / threads; });
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: join_masks", join_masks, blocks,
                                             threads, all));
        SPOPS_TRY(order_tiles<4>(ctx, few));
        SPOPS_TRY(order_tiles<most_sort_items>(ctx, some));
        for (int32_t i = begin; i < end; ++i) {
            const spops_map_side *side = args->each[i].side;
            const order_workspace ws = order_workspace_of(&args->each[i]);
            if (has_few_tiles(side)) continue;
            SPOPS_TRY(ws.wide.sort(ctx, "kernel_map: sort of tiles", ws.tile_keys[0],
                                   ws.tile_keys[1], ws.tiles, side->tile_order, side->num_tiles,
                                   tile_bits(args->each[i].map)));
        }
    }
    return SPOPS_STATUS_OK;
}

extern "C" spops_status spops_cuda_map_pairs(spops_context *ctx,
                                             const spops_map_all_pairs_args *args)
{
    pairs_jobs jobs = {};
    for (int32_t i = 0, begin = 0; i < args->num; ++i) {
        jobs.job[jobs.num++] =
            pairs_params_of(args->each[i].map, pairs_workspace_of(&args->each[i]));
        if (jobs.num < spops::jobs_at_once<pairs_params>() && i + 1 < args->num) continue;
        // One block also without a row: it writes the offsets, which are then all 0.
        const dim3 blocks = spops::divide_blocks(
            &jobs, [](const pairs_params &p) { return p.num_groups > 0 ? p.num_groups : 1; });
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: count_pairs", count_pairs, blocks,
                                             threads, jobs));
        SPOPS_TRY(scan_all(ctx, jobs, args->each + begin));
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: put_pairs", put_pairs, blocks,
                                             threads, jobs));
        jobs.num = 0;
        begin = i + 1;
    }
    return SPOPS_STATUS_OK;
}
