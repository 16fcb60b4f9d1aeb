// SPDX-License-Identifier: Apache-2.0
// Schedules of the matrix kernels (igemm_args.h), made from lists of neighbours: rows in the
// Gray-code order of their masks of taps, so that the rows of a tile miss the same taps, then the
// records of each tile, counted first.
#include "kernels/core/device_wide.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/igemm/igemm_tiles.cuh"
#include "igemm/igemm_args.h"

namespace
{

using namespace spops;

constexpr int tile_rows = SPOPS_IGEMM_TILE_ROWS;
constexpr int groups = SPOPS_IGEMM_TILE_ROWS / SPOPS_IGEMM_GROUP_ROWS;
constexpr int head = SPOPS_IGEMM_RECORD_HEAD;
constexpr int record_ints = SPOPS_IGEMM_RECORD_INTS;
constexpr int warps = tile_rows / 32;
constexpr int max_taps = 729;
constexpr int key_threads = 256;
constexpr int scan_threads = tile_scan_threads, max_cost = max_tile_cost;

struct schedule_params {
    spops_igemm_schedule s;
    const int *num_rows;
    const int *offsets, *rows;
    const uint16_t *row_taps;
    uint32_t *keys;
    int *numbers;
    const int *order;
    int *record_counts, *sum_counts, *member_counts; // [max_tiles], then where each begins
    int *unit_counts;               // [num_taps][max_tiles] and one after, likewise
    int *cost_begin;                // [max_cost + 1]
    unsigned char bit_of[max_taps]; // of a tap in the mask, the farthest from the centre highest
};

struct workspace {
    uint32_t *keys[2];
    int *numbers[2];
    int *record_counts, *sum_counts, *member_counts, *unit_counts, *cost_begin;
    int64_t num_unit_counts;
    device_wide wide;
};

workspace carve_workspace(const spops_igemm_schedule *s, spops_carver *c)
{
    workspace w = {};
    for (int i = 0; i < 2; ++i) {
        w.keys[i] = (uint32_t *)spops_carve(c, s->max_rows, 1, sizeof *w.keys[i]);
        w.numbers[i] = (int *)spops_carve(c, s->max_rows, 1, sizeof *w.numbers[i]);
    }
    w.record_counts = (int *)spops_carve(c, s->max_tiles, 1, sizeof *w.record_counts);
    w.sum_counts = (int *)spops_carve(c, s->max_tiles, 1, sizeof *w.sum_counts);
    w.member_counts = (int *)spops_carve(c, s->max_tiles, 1, sizeof *w.member_counts);
    w.cost_begin = (int *)spops_carve(c, max_cost + 1, 1, sizeof *w.cost_begin);
    w.wide.needs_sort<uint32_t>(s->max_rows, 32);
    if (s->has_units) {
        w.num_unit_counts = s->num_taps * s->max_tiles + 1;
        w.unit_counts = (int *)spops_carve(c, w.num_unit_counts, 1, sizeof *w.unit_counts);
        w.wide.needs_scan<int32_t>(w.num_unit_counts);
    }
    w.wide.carve(c);
    return w;
}

// A row's place among masks in Gray-code order. Rows that are not in use come last.
__global__ void __launch_bounds__(key_threads) rank_rows(const __grid_constant__ schedule_params p)
{
    const int64_t row = (int64_t)blockIdx.x * key_threads + threadIdx.x;
    if (row >= p.s.max_rows) return;
    uint32_t mask = 0;
    const int end = p.offsets[row + 1];
    for (int at = p.offsets[row]; at < end; ++at)
        mask |= 1u << p.bit_of[p.row_taps[at]];
    for (int half = 1; half < 32; half *= 2)
        mask ^= mask >> half;
    p.keys[row] = row < *p.num_rows ? mask : ~0u;
    p.numbers[row] = (int)row;
}

// What a thread's row has at a tap, and where.
struct row_taps {
    const uint16_t *taps;
    int at, end, num_taps, tap;

    __device__ row_taps(const schedule_params &p, int row)
        : taps(p.row_taps), at(row < 0 ? 0 : p.offsets[row]), end(row < 0 ? 0 : p.offsets[row + 1]),
          num_taps(p.s.num_taps), tap(at < end ? taps[at] : num_taps)
    {
    }

    // Pairs of tap k, which is the one after that of the last call; they begin at at - count.
    __device__ int take(int k)
    {
        int count = 0;
        while (tap == k) {
            ++count;
            ++at;
            tap = at < end ? taps[at] : num_taps;
        }
        return count;
    }
};

// Members of a row's sums that do not fit into their entries.
__device__ int count_members(const schedule_params &p, int row)
{
    if (row < 0 || !p.s.has_members || !p.s.adds) return 0;
    row_taps taps(p, row);
    int members = 0;
    while (taps.tap < p.s.num_taps) {
        const int count = taps.take(taps.tap);
        if (count > 3) members += count - 2;
    }
    return members;
}

// The records of a tile, a block each, a thread a row. WRITE: they were counted and scanned.
template <bool WRITE>
__global__ void __launch_bounds__(tile_rows) walk_tiles(const __grid_constant__ schedule_params p)
{
    __shared__ int most[warps], sums[warps]; // of a warp's rows: pairs of one row, rows with sums
    const int tile = blockIdx.x, t = threadIdx.x, lane = t % 32, warp = t / 32;
    if (tile >= tiles_in_use(p.num_rows) || (WRITE && p.s.num_tiles[SPOPS_IGEMM_OVERFLOW] != 0))
        return;
    const int64_t i = (int64_t)tile * tile_rows + t;
    const int row = i < *p.num_rows ? p.order[i] : -1;
    if (WRITE) p.s.out_rows[i] = row;
    row_taps taps(p, row);
    int record = WRITE ? p.record_counts[tile] : 0;
    int sum = WRITE ? p.sum_counts[tile] : 0;
    const int first_record = record;
    int num_members;
    int member = sum_before(count_members(p, row), &num_members);
    if (WRITE) member += p.member_counts[tile];
    for (int k = 0; k < p.s.num_taps; ++k) {
        const int count = taps.take(k), first = taps.at - count;
        const bool is_sum = p.s.adds && count > 1;
        const uint32_t with_sum = __ballot_sync(~0u, is_sum);
        const int pairs = warp_max(count);
        if (lane == 0) {
            most[warp] = pairs;
            sums[warp] = __popc(with_sum);
        }
        __syncthreads();
        int repeats = 0, sums_of[groups] = {}, sums_before = 0;
#pragma unroll
        for (int w = 0; w < warps; ++w) {
            repeats = max(repeats, most[w]);
            sums_of[w / 2] += sums[w];
            if (w < warp) sums_before += sums[w];
        }
        if (p.s.adds) repeats = min(repeats, 1);
        if (p.s.has_units && t == 0) { // which has adds
            int *const units = p.unit_counts + k * p.s.max_tiles + tile;
            const bool there[groups] = {max(most[0], most[1]) > 0, max(most[2], most[3]) > 0};
            if (!WRITE) *units = there[0] + there[1];
            for (int g = 0, at = WRITE ? *units : 0; WRITE && g < groups; ++g)
                if (there[g])
                    reinterpret_cast<int2 *>(p.s.units)[at++] = make_int2(2 * record + g, tile);
        }
        for (int n = 0; WRITE && n < repeats; ++n) {
            int *to = p.s.records + (int64_t)(record + n) * record_ints;
            if (t == 0) {
                const int active = (max(most[0], most[1]) > n) | (max(most[2], most[3]) > n) << 1;
                *reinterpret_cast<int4 *>(to) =
                    make_int4(k, active, sum, sums_of[0] | sums_of[1] << 16);
            }
            to[head + t] = is_sum ? -2 : n < count ? p.rows[first + n] : -1;
        }
        if (WRITE && is_sum) {
            const int place = sum + sums_before + __popc(with_sum & ((1u << lane) - 1));
            const bool fits = count <= 3, own = p.s.has_members && !fits;
            reinterpret_cast<int4 *>(p.s.sums)[place] =
                make_int4(t % SPOPS_IGEMM_GROUP_ROWS | count << 8, p.rows[first], p.rows[first + 1],
                          count == 3 ? p.rows[first + 2]
                          : own      ? member - 2
                                     : first);
            for (int m = 2; own && m < count; ++m)
                const_cast<int *>(p.s.members)[member++] = p.rows[first + m];
        }
        record += repeats;
        sum += sums_of[0] + sums_of[1];
        __syncthreads();
    }
    if (record == first_record) { // no taps at all: the rows are written all the same
        int *to = p.s.records + (int64_t)record * record_ints;
        for (int n = t; WRITE && n < record_ints; n += tile_rows)
            to[n] = n < head ? 0 : -1;
        ++record;
    }
    if (!WRITE && t == 0) {
        p.record_counts[tile] = record;
        p.sum_counts[tile] = sum;
        p.member_counts[tile] = num_members;
    }
}

// Counts become where each tile begins; tiles with fewer records are put after. One block.
__global__ void __launch_bounds__(scan_threads)
    scan_tiles(const __grid_constant__ schedule_params p)
{
    __shared__ int tiles_of[max_cost + 1];
    const int num_tiles = tiles_in_use(p.num_rows), t = threadIdx.x;
    tiles_of[t] = 0;
    __syncthreads();
    long long records = 0, sums = 0, members = 0;
    for (int begin = 0; begin < num_tiles; begin += scan_threads) {
        const int tile = begin + t;
        const int count = tile < num_tiles ? p.record_counts[tile] : 0;
        const int sum_count = tile < num_tiles ? p.sum_counts[tile] : 0;
        const int member_count = tile < num_tiles ? p.member_counts[tile] : 0;
        int total, sum_total, member_total;
        if (tile < num_tiles) atomicAdd(&tiles_of[tile_cost(count)], 1);
        const int before = sum_before(count, &total);
        const int sums_here = sum_before(sum_count, &sum_total);
        const int members_here = sum_before(member_count, &member_total);
        if (tile < num_tiles) {
            p.record_counts[tile] = (int)records + before;
            p.sum_counts[tile] = (int)sums + sums_here;
            p.member_counts[tile] = (int)members + members_here;
            p.s.first[tile] = (int)records + before;
        }
        records += total;
        sums += sum_total;
        members += member_total;
    }
    const int64_t num_unit_counts = p.s.num_taps * p.s.max_tiles;
    const int units = p.s.has_units ? p.unit_counts[num_unit_counts] : 0;
    const bool overflow = records > p.s.max_records || sums > p.s.max_sums ||
                          members > p.s.max_members || units > p.s.max_units;
    for (int k = t; p.s.has_units && k <= p.s.num_taps; k += scan_threads)
        p.s.unit_offsets[k] = overflow ? 0 : p.unit_counts[k * p.s.max_tiles];
    __syncthreads();
    begin_costs(tiles_of, p.cost_begin);
    if (t > 0) return;
    int *const totals = p.s.num_tiles;
    p.s.first[num_tiles] = (int)records;
    totals[SPOPS_IGEMM_OVERFLOW] = overflow;
    totals[SPOPS_IGEMM_TILES] = overflow ? 0 : num_tiles;
    totals[SPOPS_IGEMM_RECORDS] = (int)records;
    totals[SPOPS_IGEMM_SUMS] = (int)sums;
    totals[SPOPS_IGEMM_MEMBERS] = (int)members;
    totals[SPOPS_IGEMM_UNITS] = units;
}

// tiles: those with most records first, else as they lie. A warp for each cost.
__global__ void order_tiles(const __grid_constant__ schedule_params p)
{
    const int cost = (int)blockIdx.x + 1;
    order_tiles_of_cost(p.s.first, p.cost_begin[cost], p.cost_begin[cost - 1],
                        tiles_in_use(p.num_rows), cost, (int)threadIdx.x,
                        reinterpret_cast<int4 *>(p.s.tiles));
}

// Taps by their distance from the centre; where there are more than 32, neighbours share a bit.
void place_taps(int taps, unsigned char *bit_of)
{
    const int num = taps * taps * taps, middle = taps - 1; // twice the centre's number
    int place = 0;
    for (int distance = 0; distance <= 3 * middle; ++distance)
        for (int k = 0; k < num; ++k) {
            const int at[3] = {k / (taps * taps), k / taps % taps, k % taps};
            int sum = 0;
            for (int a = 0; a < 3; ++a)
                sum += at[a] * 2 > middle ? at[a] * 2 - middle : middle - at[a] * 2;
            if (sum == distance)
                bit_of[k] = (unsigned char)(num > 32 ? place * 32 / num : place), ++place;
        }
}

schedule_params params_of(const spops_igemm_lists_args *args, const workspace &w)
{
    schedule_params p = {};
    p.s = *args->schedule;
    p.num_rows = args->side->num_rows;
    p.offsets = args->side->by_row.offsets;
    p.rows = args->side->by_row.rows;
    p.row_taps = args->side->keys;
    p.keys = w.keys[0];
    p.numbers = w.numbers[0];
    p.order = w.numbers[1];
    p.record_counts = w.record_counts;
    p.sum_counts = w.sum_counts;
    p.member_counts = w.member_counts;
    p.unit_counts = w.unit_counts;
    p.cost_begin = w.cost_begin;
    place_taps(args->taps, p.bit_of);
    return p;
}

} // namespace

extern "C" size_t spops_cuda_igemm_lists_bytes(spops_context *ctx,
                                               const spops_igemm_lists_args *args)
{
    spops_carver carver = {nullptr, 0};
    (void)ctx;
    (void)carve_workspace(args->schedule, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_igemm_lists_count(spops_context *ctx,
                                                     const spops_igemm_lists_args *args)
{
    const char *what = "igemm_lists: launch";
    const spops_igemm_schedule *s = args->schedule;
    spops_carver carver = {static_cast<char *>(args->workspace), 0};
    const workspace w = carve_workspace(s, &carver);
    const schedule_params p = params_of(args, w);

    if (s->has_units) // also where there are no tiles
        SPOPS_TRY(ctx->backend->fill_zero(ctx, s->unit_offsets,
                                          (size_t)(s->num_taps + 1) * sizeof *s->unit_offsets));
    if (s->max_tiles == 0)
        return ctx->backend->fill_zero(ctx, s->num_tiles,
                                       SPOPS_IGEMM_NUM_TOTALS * sizeof *s->num_tiles);
    if (s->has_units)
        SPOPS_TRY(ctx->backend->fill_zero(ctx, w.unit_counts,
                                          (size_t)w.num_unit_counts * sizeof *w.unit_counts));
    SPOPS_TRY(launch(ctx, what, rank_rows, blocks_for(s->max_rows, key_threads),
                     (unsigned)key_threads, p));
    SPOPS_TRY(
        w.wide.sort(ctx, what, w.keys[0], w.keys[1], w.numbers[0], w.numbers[1], s->max_rows, 32));
    SPOPS_TRY(
        launch(ctx, what, walk_tiles<false>, dim3((unsigned)s->max_tiles), (unsigned)tile_rows, p));
    if (s->has_units)
        SPOPS_TRY(w.wide.scan(ctx, what, w.unit_counts, w.unit_counts, w.num_unit_counts));
    SPOPS_TRY(launch(ctx, what, scan_tiles, dim3(1), (unsigned)scan_threads, p));
    return launch(ctx, what, order_tiles, dim3((unsigned)max_cost), 32u, p);
}

extern "C" spops_status spops_cuda_igemm_lists_fill(spops_context *ctx,
                                                    const spops_igemm_lists_args *args)
{
    const spops_igemm_schedule *s = args->schedule;
    spops_carver carver = {static_cast<char *>(args->workspace), 0};
    const workspace w = carve_workspace(s, &carver);
    if (s->max_tiles == 0) return SPOPS_STATUS_OK;
    return launch(ctx, "igemm_lists: launch", walk_tiles<true>, dim3((unsigned)s->max_tiles),
                  (unsigned)tile_rows, params_of(args, w));
}
