// SPDX-License-Identifier: Apache-2.0
// Schedules of the matrix kernels (igemm_args.h), made from one side of a kernel map.
#include "kernels/core/batch.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/launchers.h"
#include "kernels/core/scan.cuh"
#include "kernels/igemm/igemm_tiles.cuh"
#include "igemm/igemm_args.h"
#include "spops/device/grid_dependency.cuh"

namespace
{

constexpr int head = SPOPS_IGEMM_RECORD_HEAD;
constexpr int group_rows = SPOPS_IGEMM_GROUP_ROWS, tile_rows = SPOPS_IGEMM_TILE_ROWS;
constexpr int record_ints = SPOPS_IGEMM_RECORD_INTS;
constexpr int groups_a_tile = tile_rows / group_rows;
constexpr int scan_threads = spops::tile_scan_threads;
using spops::max_tile_cost;
constexpr int fill_threads = 256;
constexpr int count_threads = 256; // a warp for each tile
constexpr int few_tiles = 1024;    // of which blocks add the counts up by themselves

// Of a schedule of the same names, what a kernel needs.
struct schedule_arrays {
    int num_taps, max_tiles;
    int *num_tiles, *tiles, *out_rows, *records, *first;
    int *pair_totals, *pairs, *pair_first, *group_taps;
};

// A schedule, and what it is made from. Small: all those of a U-Net are made at once.
struct map_params {
    schedule_arrays s;
    const int *num_rows;
    const int *table;
    int table_stride, mask_words;
    const uint32_t *masks;
    const int *order;
    const uint32_t *tile_masks; // NULL: counts are counted
    int *counts, *cost_begin;   // [max_tiles], [max_tile_cost + 1]
    int *taps,
        *pair_cost_begin; // the same sizes: masks of tiles where tile_masks is NULL; of pairs
};

typedef spops::batch<map_params, spops::jobs_at_once<map_params>()> map_jobs;

__device__ int tiles_in_use(const map_params &p)
{
    return spops::tiles_in_use(p.num_rows);
}

// counts[t]: records of tile t, a warp each.
__global__ void __launch_bounds__(count_threads)
    count_records(const __grid_constant__ map_jobs jobs)
{
    int32_t block, num_blocks;
    const map_params &p = spops::job_of_block(jobs, &block, &num_blocks);
    const int tile = (block * count_threads + threadIdx.x) / 32, lane = threadIdx.x % 32;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    if (tile >= tiles_in_use(p)) return;
    int64_t end = (int64_t)(tile + 1) * tile_rows;
    if (end > *p.num_rows) end = *p.num_rows;
    int count = 0;
    uint32_t all = 0; // of the last word, which is the first where pairs are made
    for (int w = 0; w < p.mask_words; ++w) {
        uint32_t mask = 0;
        for (int64_t i = (int64_t)tile * tile_rows + lane; i < end; i += 32)
            mask |= p.masks[(int64_t)p.order[i] * p.mask_words + w];
        all = spops::warp_or(mask);
        count += __popc(all);
    }
    if (lane == 0) p.counts[tile] = max(count, 1);
    if (lane == 0) p.taps[tile] = (int)all;
}

// Records of a tile; one without taps has one.
__device__ __forceinline__ int records_of(const map_params &p, int tile)
{
    if (p.tile_masks == nullptr) return p.counts[tile];
    int count = 0;
    for (int w = 0; w < p.mask_words; ++w)
        count += __popc(p.tile_masks[(int64_t)tile * p.mask_words + w]);
    return max(count, 1);
}

// Taps that either tile of a pair has; one of none has one.
__device__ __forceinline__ int taps_of_pair(const map_params &p, int pair, int num_tiles)
{
    const uint32_t *masks =
        p.tile_masks != nullptr ? p.tile_masks : reinterpret_cast<const uint32_t *>(p.taps);
    uint32_t taps = masks[2 * pair];
    if (2 * pair + 1 < num_tiles) taps |= masks[2 * pair + 1];
    return max(__popc(taps), 1);
}

// first: sums of count(i), i < num; cost_begin[c]: how many have more than c. Returns the sum of all. All
// threads of a block.
template <class F>
__device__ __forceinline__ int scan_counts(int (&of_cost)[max_tile_cost + 1], int num,
                                           const F &count_of, int *first, int *cost_begin)
{
    for (int c = threadIdx.x; c <= max_tile_cost; c += scan_threads)
        of_cost[c] = 0;
    __syncthreads();
    int done = 0, total;
    for (int begin = 0; begin < num; begin += scan_threads) {
        const int i = begin + threadIdx.x;
        const int count = i < num ? count_of(i) : 0;
        if (i < num) atomicAdd(&of_cost[spops::tile_cost(count)], 1);
        const int before = spops::sum_before(count, &total);
        if (i < num) first[i] = done + before;
        done += total;
    }
    __syncthreads();
    spops::begin_costs(of_cost, cost_begin);
    if (threadIdx.x == 0) first[num] = done;
    return done;
}

// s.first: sums of counts; cost_begin[c]: how many tiles have more than c records. A block a job.
__global__ void __launch_bounds__(scan_threads) scan_records(const __grid_constant__ map_jobs jobs)
{
    __shared__ int tiles_of[max_tile_cost + 1];
    const map_params &p = jobs.job[blockIdx.x];
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int num_tiles = tiles_in_use(p);
    const int records = scan_counts(
        tiles_of, num_tiles, [&](int tile) { return records_of(p, tile); }, p.s.first,
        p.cost_begin);
    if (threadIdx.x == 0) {
        p.s.num_tiles[0] = num_tiles;
        p.s.num_tiles[1] = records;
    }
    if (p.s.pairs == nullptr) return;
    const int num_pairs = (num_tiles + 1) / 2;
    __syncthreads();
    const int taps = scan_counts(
        tiles_of, num_pairs, [&](int pair) { return taps_of_pair(p, pair, num_tiles); },
        p.s.pair_first, p.pair_cost_begin);
    if (threadIdx.x == 0) {
        p.s.pair_totals[0] = num_pairs;
        p.s.pair_totals[1] = taps;
    }
}

// A warp: the rows of a tile at 32 taps, `lanes` of them at a time, and which groups have which.
template <int LANES>
__device__ __forceinline__ void take_rows(const map_params &p, const int *rows, int w,
                                          int (&taken)[tile_rows][33], uint32_t *group_taps)
{
    constexpr int at_once = 32 / LANES, warps = fill_threads / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tap = 32 * w + lane % LANES, first = lane / LANES;
    for (int g = 0; g < groups_a_tile; ++g) {
        uint32_t has = 0;
#pragma unroll
        for (int i = 0; i < group_rows / (at_once * warps); ++i) {
            const int r = g * group_rows + (i * warps + warp) * at_once + first;
            const int row = rows[r];
            const int from =
                row >= 0 && tap < p.s.num_taps ? p.table[(int64_t)row * p.table_stride + tap] : -1;
            taken[r][lane % LANES] = from;
            has |= __ballot_sync(~0u, from >= 0);
        }
        for (int l = LANES; l < 32; l *= 2)
            has |= has >> l;
        if (LANES < 32) has &= (1u << LANES % 32) - 1;
        if (lane == 0 && has != 0) atomicOr(group_taps + g, has);
    }
}

__device__ __forceinline__ void take_taps(const map_params &p, const int *rows, int w,
                                          int (&taken)[tile_rows][33], uint32_t *group_taps)
{
    if (p.s.num_taps <= 8)
        take_rows<8>(p, rows, w, taken, group_taps);
    else
        take_rows<32>(p, rows, w, taken, group_taps);
}

// Blocks that put tiles of all costs into their order, a warp each.
__host__ __device__ int cost_blocks(const map_params &p)
{
    constexpr int warps = fill_threads / 32;
    return (spops::tile_cost(p.s.num_taps) + warps - 1) / warps;
}

// A warp of a block that puts few tiles, or pairs, in their order: those of its cost. count_of: records of a tile;
// first: sums of them, of which the number of all is returned.
template <class F>
__device__ __forceinline__ int order_few(const map_params &p, int (&first)[few_tiles + 1], int num,
                                         const F &count_of, int cost, int lane, int *tiles)
{
    constexpr int each = few_tiles / fill_threads;
    const int own = (int)threadIdx.x * each;
    int count[each], sum = 0, total;
#pragma unroll
    for (int i = 0; i < each; ++i) {
        count[i] = own + i < num ? count_of(own + i) : 0;
        sum += count[i];
    }
    int before = spops::sum_before(sum, &total);
#pragma unroll
    for (int i = 0; i < each; ++i) {
        first[own + i] = before;
        before += count[i];
    }
    if (threadIdx.x == fill_threads - 1) first[few_tiles] = before;
    __syncthreads();
    if (cost > spops::tile_cost(p.s.num_taps)) return total;
    int more = 0, alike = 0;
    for (int tile = lane; tile < num; tile += 32) {
        const int of_tile = spops::tile_cost(first[tile + 1] - first[tile]);
        more += of_tile > cost;
        alike += of_tile == cost;
    }
    more = spops::warp_sum(more);
    alike = spops::warp_sum(alike);
    spops::order_tiles_of_cost(first, more, more + alike, num, cost, lane,
                               reinterpret_cast<int4 *>(tiles));
    return total;
}

// As order_few, of pairs; the first block of these writes what is known of all.
__device__ __forceinline__ void order_few_pairs(const map_params &p, int (&first)[few_tiles + 1],
                                                int num_tiles, int cost, int lane, bool writes)
{
    const int num = (num_tiles + 1) / 2;
    const int taps = order_few(
        p, first, num, [&](int pair) { return taps_of_pair(p, pair, num_tiles); }, cost, lane,
        p.s.pairs);
    if (!writes) return;
    for (int i = threadIdx.x; i <= num; i += fill_threads)
        p.s.pair_first[i] = first[i];
    if (threadIdx.x == 0) {
        p.s.pair_totals[0] = num;
        p.s.pair_totals[1] = taps;
    }
}

// A block: the first record of a tile of few, and, of the last tile, how many there are of both. Ends with a
// barrier.
__device__ __forceinline__ int first_of_few(const map_params &p, int tile, int num_tiles)
{
    __shared__ int of_warp[fill_threads / 32];
    int sum = 0, record = 0;
    for (int t = (int)threadIdx.x; t < tile; t += fill_threads)
        sum += records_of(p, t);
    sum = spops::warp_sum(sum);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int w = 0; w < fill_threads / 32; ++w)
        record += of_warp[w];
    if (threadIdx.x == 0) p.s.first[tile] = record;
    if (threadIdx.x == 0 && tile >= num_tiles - 1) {
        const int all = num_tiles == 0 ? 0 : record + records_of(p, tile);
        p.s.num_tiles[0] = num_tiles;
        p.s.num_tiles[1] = all;
        p.s.first[num_tiles] = all;
    }
    return record;
}

// The records of a tile, a block each, and after them tiles: those with most records first, else as they
// lie, a warp for each cost. Records: 32 taps at a time by way of shared memory, because the table
// has the taps of a row together and a record the rows of a tap. FEW: scan_records did not run.
template <bool FEW>
__global__ void __launch_bounds__(fill_threads) fill_records(const __grid_constant__ map_jobs jobs)
{
    __shared__ int few_first[FEW ? few_tiles + 1 : 1];
    __shared__ int rows[tile_rows];
    __shared__ int taken[tile_rows][33];
    __shared__ uint32_t group_taps[groups_a_tile];
    int32_t tile, num_blocks;
    const map_params &p = spops::job_of_block(jobs, &tile, &num_blocks);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int num_tiles = FEW ? tiles_in_use(p) : *p.s.num_tiles;
    if (tile >= p.s.max_tiles) {
        const int block = (int)(tile - p.s.max_tiles), blocks = cost_blocks(p);
        const int cost = block % blocks * (fill_threads / 32) + warp + 1;
        if constexpr (FEW) {
            if (block >= blocks)
                order_few_pairs(p, few_first, num_tiles, cost, lane, block == blocks);
            else
                (void)order_few(
                    p, few_first, num_tiles, [&](int t) { return records_of(p, t); }, cost, lane,
                    p.s.tiles);
            return;
        }
        if (cost > spops::tile_cost(p.s.num_taps)) return;
        const int *const begins = block < blocks ? p.cost_begin : p.pair_cost_begin;
        if (block < blocks)
            spops::order_tiles_of_cost(p.s.first, begins[cost], begins[cost - 1], num_tiles, cost,
                                       lane, reinterpret_cast<int4 *>(p.s.tiles));
        else
            spops::order_tiles_of_cost(p.s.pair_first, begins[cost], begins[cost - 1],
                                       *p.s.pair_totals, cost, lane,
                                       reinterpret_cast<int4 *>(p.s.pairs));
        return;
    }
    if (FEW && tile == 0 && num_tiles == 0) (void)first_of_few(p, 0, 0);
    if (tile >= num_tiles) return;

    for (int r = threadIdx.x; r < tile_rows; r += fill_threads) {
        const int64_t i = (int64_t)tile * tile_rows + r;
        rows[r] = i < *p.num_rows ? p.order[i] : -1;
        p.s.out_rows[i] = rows[r];
    }
    int record = FEW ? first_of_few(p, tile, num_tiles) : p.s.first[tile];
    const int first = record;
    for (int w = 0; w < p.mask_words; ++w) {
        if (threadIdx.x < groups_a_tile) group_taps[threadIdx.x] = 0;
        __syncthreads();
        take_taps(p, rows, w, taken, group_taps);
        __syncthreads();
        if (p.s.pairs != nullptr && threadIdx.x < 2 * groups_a_tile) {
            // Those of a tile that has no other tile in its pair too.
            const bool own = threadIdx.x < groups_a_tile;
            if (own || (tile % 2 == 0 && tile + 1 == num_tiles))
                p.s.group_taps[(int64_t)tile * groups_a_tile + threadIdx.x] =
                    own ? (int)group_taps[threadIdx.x] : 0;
        }
        uint32_t groups[groups_a_tile], all = 0;
        for (int g = 0; g < groups_a_tile; ++g) {
            groups[g] = group_taps[g];
            all |= groups[g];
        }
        for (int b = warp; b < 32; b += fill_threads / 32) {
            if ((all >> b & 1) == 0) continue;
            int *to = p.s.records + (int64_t)(record + __popc(all & ((1u << b) - 1))) * record_ints;
            int active = 0;
            for (int g = 0; g < groups_a_tile; ++g)
                active |= (int)(groups[g] >> b & 1) << g;
            if (lane < head) to[lane] = lane == 0 ? 32 * w + b : lane == 1 ? active : 0;
            for (int r = lane; r < tile_rows; r += 32)
                to[head + r] = taken[r][b];
        }
        record += __popc(all);
        __syncthreads();
    }
    if (record == first) { // no taps at all: the rows are written all the same
        int *to = p.s.records + (int64_t)first * record_ints;
        for (int i = threadIdx.x; i < record_ints; i += fill_threads)
            to[i] = i < head ? 0 : -1;
    }
}

// Where the n-th of `own` tiles of a kind is among them and `others` of another, evenly mixed; those
// that come at once are in the order of `first`.
__device__ __forceinline__ int mixed_place(int n, int own, int others, bool first)
{
    const int64_t at = (2 * (int64_t)n + 1) * others - (first ? 1 : 0);
    return n + (int)((at + own) / (2 * (int64_t)own));
}

// Tiles of rows of groups: whole ones, and what is left of each group. Whole ones wait for their rows
// and the others for matrices, so the two are mixed, evenly for blocks that take every so many-th.
// One block: 1,024 groups at a time are counted, then all threads write the tiles of these.
__global__ void __launch_bounds__(scan_threads)
    tiles_of_groups(const spops_igemm_schedule s, const int *offsets)
{
    __shared__ int first[scan_threads];
    enum { COUNT, WHOLE, REST, NUM_PASSES };
    int whole_tiles = 0, rest_tiles = 0;
    for (int pass = COUNT; pass < NUM_PASSES; ++pass) {
        int done = 0;
        for (int begin = 0; begin < s.num_taps; begin += scan_threads) {
            const int group = begin + threadIdx.x;
            const int rows = group < s.num_taps ? offsets[group + 1] - offsets[group] : 0;
            const int whole = rows / tile_rows, rest = rows > whole * tile_rows;
            int total;
            first[threadIdx.x] = spops::sum_before(pass == REST ? rest : whole, &total);
            if (pass == COUNT) {
                whole_tiles += total;
                spops::sum_before(rest, &total);
                rest_tiles += total;
                continue;
            }
            __syncthreads();
            for (int t = threadIdx.x; t < total; t += scan_threads) {
                int low = 0, high = scan_threads; // the last group that begins at or before t
                while (high - low > 1) {
                    const int middle = (low + high) / 2;
                    if (first[middle] <= t)
                        low = middle;
                    else
                        high = middle;
                }
                const int begin_row = offsets[begin + low], end_row = offsets[begin + low + 1];
                const int skipped =
                    pass == REST ? (end_row - begin_row) / tile_rows : t - first[low];
                const int row = begin_row + skipped * tile_rows;
                const int place = pass == REST
                                      ? mixed_place(done + t, rest_tiles, whole_tiles, false)
                                      : mixed_place(done + t, whole_tiles, rest_tiles, true);
                reinterpret_cast<int4 *>(s.tiles)[place] =
                    make_int4(row, pass == REST ? end_row : row + tile_rows, begin + low, 0);
            }
            done += total;
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) *s.num_tiles = whole_tiles + rest_tiles;
}

} // namespace

namespace
{

map_params params_of(const spops_igemm_schedule_args *args)
{
    map_params p = {};
    const spops_igemm_schedule *s = args->schedule;
    p.s = {s->num_taps, (int)s->max_tiles, s->num_tiles, s->tiles,      s->out_rows,  s->records,
           s->first,    s->pair_totals,    s->pairs,     s->pair_first, s->group_taps};
    p.num_rows = args->side->num_rows;
    p.table = args->side->table;
    p.table_stride = args->side->table_stride;
    p.mask_words = args->mask_words;
    p.masks = args->masks;
    p.order = args->order;
    p.tile_masks = args->tile_masks;
    p.counts = args->workspace;
    p.cost_begin = p.counts + p.s.max_tiles;
    p.taps = p.cost_begin + max_tile_cost + 1;
    p.pair_cost_begin = p.taps + p.s.max_tiles;
    return p;
}

spops_status make_schedules(spops_context *ctx, map_jobs *jobs)
{
    const char *what = "igemm_schedule: launch";
    using spops::divide_blocks;
    using spops::launch;
    using spops::WAITS_FOR_PREVIOUS;
    dim3 blocks;
    bool few = true;
    if (jobs->num == 0) return SPOPS_STATUS_OK;
    for (int j = 0; j < jobs->num; ++j)
        few = few && jobs->job[j].tile_masks != nullptr && jobs->job[j].s.max_tiles <= few_tiles;
    const auto filling = [](const map_params &p) {
        return p.s.max_tiles + cost_blocks(p) * (p.s.pairs != nullptr ? 2 : 1);
    };
    if (few) {
        blocks = divide_blocks(jobs, filling);
        return launch<WAITS_FOR_PREVIOUS>(ctx, what, fill_records<true>, blocks, fill_threads,
                                          *jobs);
    }
    blocks = divide_blocks(jobs, [](const map_params &p) {
        return p.tile_masks != nullptr ? 0
                                       : (p.s.max_tiles * 32 + count_threads - 1) / count_threads;
    });
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, what, count_records, blocks, count_threads, *jobs));
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, what, scan_records, dim3((unsigned)jobs->num),
                                         scan_threads, *jobs));
    blocks = divide_blocks(jobs, filling);
    return launch<WAITS_FOR_PREVIOUS>(ctx, what, fill_records<false>, blocks, fill_threads, *jobs);
}

} // namespace

extern "C" spops_status spops_cuda_igemm_schedule(spops_context *ctx,
                                                  const spops_igemm_schedules_args *args)
{
    map_jobs jobs = {};
    for (int i = 0; i < args->num; ++i) {
        const spops_igemm_schedule *s = args->each[i].schedule;
        if (s->max_tiles > 0 && s->num_taps > 0) jobs.job[jobs.num++] = params_of(&args->each[i]);
        if (jobs.num < spops::jobs_at_once<map_params>() && i + 1 < args->num) continue;
        SPOPS_TRY(make_schedules(ctx, &jobs));
        jobs.num = 0;
    }
    return SPOPS_STATUS_OK;
}

extern "C" spops_status spops_cuda_igemm_group_tiles(spops_context *ctx,
                                                     const spops_igemm_group_args *args)
{
    return spops::launch(ctx, "igemm_group_tiles: launch", tiles_of_groups, dim3(1),
                         (unsigned)scan_threads, *args->schedule, args->offsets);
}
