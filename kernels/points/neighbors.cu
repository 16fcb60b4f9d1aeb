// SPDX-License-Identifier: Apache-2.0
// Neighbours within a radius on the GPU: points sorted by cell, the nine runs of points in and around
// each occupied cell, and a thread for each centre that tests those runs, once to count and once to
// write. Counts lie where offsets will. Lists are sorted as they are found, in shared memory.
#include "kernels/points/cell_sort.cuh"
#include "kernels/core/scan.cuh"

namespace
{

using namespace spops;

constexpr int threads = 128;
constexpr int num_runs = 9;
constexpr int short_list = 32; // pairs that are sorted in shared memory
constexpr int tap_rows = 32;   // rows whose pairs of a tap are counted together: a warp's

// Points of a cloud by cell.
struct cell_points {
    int max_points;
    unsigned long long *keys[2]; // before and after the sort; the first then has those of cells
    int *values[2];              // likewise; the first then has flags and numbers of cells
    float4 *points;              // [max_points] and the row's bits in w
    int *cell_begin;             // [max_points + 1]
    int *cell_of;                // [max_points]
    int2 *runs;                  // [max_points cells][num_runs], of the other cloud
};

struct workspace {
    cell_points clouds[SPOPS_NUM_SIDES]; // both the same where the clouds are
    int *tap_counts;                     // [num_taps][warps] and one after
    int64_t num_warps;
    device_wide wide;
};

int64_t warps_of(const spops_neighbors_arrays *a)
{
    return (a->sides[SPOPS_SIDE_TARGET].max_rows + tap_rows - 1) / tap_rows;
}

workspace carve_workspace(const spops_neighbors_arrays *a, spops_carver *c)
{
    workspace w = {};
    const int64_t max_rows[SPOPS_NUM_SIDES] = {a->sides[SPOPS_SIDE_TARGET].max_rows,
                                               a->sides[SPOPS_SIDE_SOURCE].max_rows};
    for (int cloud = SPOPS_SIDE_SOURCE; cloud >= 0; --cloud) {
        cell_points *p = &w.clouds[cloud];
        const int64_t n = max_rows[cloud];
        if (cloud == SPOPS_SIDE_TARGET && a->same) {
            *p = w.clouds[SPOPS_SIDE_SOURCE];
            break;
        }
        p->max_points = (int)n;
        for (int i = 0; i < 2; ++i) {
            p->keys[i] = (unsigned long long *)spops_carve(c, n, 1, sizeof *p->keys[i]);
            p->values[i] = (int *)spops_carve(c, n, 1, sizeof *p->values[i]);
        }
        p->points = (float4 *)spops_carve(c, n, 1, sizeof *p->points);
        p->cell_begin = (int *)spops_carve(c, n + 1, 1, sizeof *p->cell_begin);
        p->cell_of = (int *)spops_carve(c, n, 1, sizeof *p->cell_of);
        if (cloud == SPOPS_SIDE_TARGET || a->reverse || a->same)
            p->runs = (int2 *)spops_carve(c, n, num_runs, sizeof *p->runs);
        w.wide.needs_sort<uint64_t>(n, 64);
        w.wide.needs_scan<int32_t>(n + 1);
    }
    w.num_warps = warps_of(a);
    if (a->by_tap) {
        const int64_t n = w.num_warps * a->num_taps + 1;
        w.tap_counts = (int *)spops_carve(c, n, 1, sizeof *w.tap_counts);
        w.wide.needs_scan<int32_t>(n);
    }
    w.wide.carve(c);
    return w;
}

// ---- Cells --------------------------------------------------------------------------------------

struct cell_params {
    cell_points c;
    cloud_view cloud;
    int *num_cells; // in the state
};

// values[0][s]: whether sorted point s begins a cell. Points in their order.
__global__ void __launch_bounds__(threads) place_points(const __grid_constant__ cell_params p)
{
    const int s = blockIdx.x * threads + threadIdx.x;
    if (s >= p.c.max_points) return;
    const unsigned long long key = p.c.keys[1][s];
    const bool used = key != SPOPS_CELL_NONE;
    p.c.values[0][s] = used && (s == 0 || p.c.keys[1][s - 1] != key);
    if (!used) return;
    const int row = p.c.values[1][s];
    const float3 at = point_at(p.cloud, row);
    p.c.points[s] = make_float4(at.x, at.y, at.z, __int_as_float(row));
}

// After the scan of values[0]. Unused points lie last, so a cell ends where a used one has none
// after it.
__global__ void __launch_bounds__(threads) place_cells(const __grid_constant__ cell_params p)
{
    const int s = blockIdx.x * threads + threadIdx.x;
    if (s >= p.c.max_points) return;
    const unsigned long long key = p.c.keys[1][s];
    if (key == SPOPS_CELL_NONE) {
        if (s == 0) p.c.cell_begin[0] = 0;
        return;
    }
    const bool begins = s == 0 || p.c.keys[1][s - 1] != key;
    const int cell = p.c.values[0][s] - !begins; // scanned: cells that begin before s
    p.c.cell_of[s] = cell;
    if (begins) {
        p.c.keys[0][cell] = key;
        p.c.cell_begin[cell] = s;
    }
    if (s == p.c.max_points - 1 || p.c.keys[1][s + 1] == SPOPS_CELL_NONE) {
        p.c.cell_begin[cell + 1] = s + 1;
        *p.num_cells = cell + 1;
    }
}

struct run_params {
    cell_points center, other;
    const int *num_cells, *other_num_cells;
    int bits;
};

__device__ int first_cell(const unsigned long long *keys, int num, unsigned long long key)
{
    int low = 0;
    while (low < num) {
        const int middle = low + (num - low) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            num = middle;
    }
    return low;
}

__global__ void __launch_bounds__(threads) find_runs(const __grid_constant__ run_params p)
{
    const int64_t t = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int64_t cell = t / num_runs;
    const int r = (int)(t % num_runs);
    if (cell >= *p.num_cells) return;
    const int num = *p.other_num_cells;
    const unsigned long long column = p.center.keys[0][cell] +
                                      ((unsigned long long)(long long)(r / 3 - 1) << 2 * p.bits) +
                                      ((unsigned long long)(long long)(r % 3 - 1) << p.bits);
    int at = first_cell(p.other.keys[0], num, column - 1);
    int2 run;
    run.x = num > 0 ? p.other.cell_begin[at] : 0;
    while (at < num && p.other.keys[0][at] <= column + 1)
        ++at;
    run.y = num > 0 ? p.other.cell_begin[at] : 0;
    p.center.runs[t] = run;
}

// ---- Searching ----------------------------------------------------------------------------------

struct search_params {
    cell_points center, other;
    spops_pair_rule rule;
    spops_neighbor_cap cap;
    const int *num_cells;
    bool reversed; // centres are inputs
    int *offsets;  // counts, while they are counted
    int *rows;
    uint16_t *taps;
    unsigned long long *num_pairs; // counted where not nullptr
};

__device__ bool is_used(const search_params &p, int s)
{
    const int cells = *p.num_cells;
    return cells > 0 && s < p.center.cell_begin[cells];
}

// f(point, dx, dy, dz) of every point of the other cloud that lies in or around the cell of sorted point s, which
// is q; UNROLL of them at a time.
template <int UNROLL, class F>
__device__ __forceinline__ void each_candidate(const search_params &p, int s, const float4 &q,
                                               const F &f)
{
    const int2 *runs = p.center.runs + (int64_t)p.center.cell_of[s] * num_runs;
    for (int r = 0; r < num_runs; ++r) {
        const int2 run = runs[r];
#pragma unroll UNROLL
        for (int c = run.x; c < run.y; ++c) {
            const float4 at = p.other.points[c];
            f(at, __fsub_rn(at.x, q.x), __fsub_rn(at.y, q.y), __fsub_rn(at.z, q.z));
        }
    }
}

__global__ void __launch_bounds__(threads) count_lists(const __grid_constant__ search_params p)
{
    const int s = blockIdx.x * threads + threadIdx.x;
    long long count = 0;
    if (is_used(p, s)) {
        const float4 q = p.center.points[s];
        each_candidate<4>(p, s, q, [&](const float4 &, float dx, float dy, float dz) {
            count += spops_are_neighbors(&p.rule, dx, dy, dz);
        });
        if (p.cap.most > 0) count = min(count, (long long)p.cap.most);
        p.offsets[__float_as_int(q.w)] = (int)count;
    }
    if (p.num_pairs == nullptr) return;
    count = warp_sum(count);
    if (threadIdx.x % 32 == 0 && count > 0) atomicAdd(p.num_pairs, (unsigned long long)count);
}

struct overflow_params {
    spops_neighbors_state *state;
    int64_t max_pairs;
    int *offsets;
    int64_t num_offsets;
};

// All offsets become 0 where the pairs do not fit.
__global__ void __launch_bounds__(threads) check_overflow(const __grid_constant__ overflow_params p)
{
    const bool overflow = p.state->num_pairs > p.max_pairs;
    const int64_t first = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (first == 0) p.state->overflow = overflow;
    if (!overflow) return;
    for (int64_t i = first; i < p.num_offsets; i += (int64_t)gridDim.x * threads)
        p.offsets[i] = 0;
}

__device__ bool comes_before(int tap, int row, int other_tap, int other_row)
{
    return tap < other_tap || (tap == other_tap && row < other_row);
}

__global__ void __launch_bounds__(threads) write_lists(const __grid_constant__ search_params p)
{
    __shared__ unsigned long long found[short_list][threads]; // tap, row; a column a thread
    const int s = blockIdx.x * threads + threadIdx.x, t = threadIdx.x;
    if (!is_used(p, s)) return;
    const float4 q = p.center.points[s];
    const int row = __float_as_int(q.w);
    const int begin = p.offsets[row], num = p.offsets[row + 1] - begin;
    if (num == 0) return;
    int n = 0;
    each_candidate<1>(p, s, q, [&](const float4 &at, float dx, float dy, float dz) {
        if (!spops_are_neighbors(&p.rule, dx, dy, dz)) return;
        const int tap = p.reversed ? spops_pair_tap(&p.rule, -dx, -dy, -dz)
                                   : spops_pair_tap(&p.rule, dx, dy, dz);
        const int from = __float_as_int(at.w);
        if (num > short_list) { // sorted by sort_long_lists
            p.rows[begin + n] = from;
            p.taps[begin + n] = (uint16_t)tap;
            ++n;
            return;
        }
        const unsigned long long pair = (unsigned long long)(unsigned)tap << 32 | (unsigned)from;
        int place = n++;
        for (; place > 0 && found[place - 1][t] > pair; --place)
            found[place][t] = found[place - 1][t];
        found[place][t] = pair;
    });
    if (num > short_list) return;
    for (int i = 0; i < num; ++i) {
        const unsigned long long pair = found[i][t];
        p.rows[begin + i] = (int)(unsigned)pair;
        p.taps[begin + i] = (uint16_t)(pair >> 32);
    }
}

// The same of outputs with a cap, by rank: sort_lists sorts them. MOST: places, cap.most at most.
template <int MOST>
__global__ void __launch_bounds__(threads)
    write_capped_lists(const __grid_constant__ search_params p)
{
    const int s = blockIdx.x * threads + threadIdx.x;
    if (!is_used(p, s)) return;
    const float4 q = p.center.points[s];
    const int row = __float_as_int(q.w), begin = p.offsets[row];
    if (p.offsets[row + 1] == begin) return;
    uint64_t ranks[MOST];
    uint16_t taps[MOST];
    int n = 0;
    each_candidate<1>(p, s, q, [&](const float4 &at, float dx, float dy, float dz) {
        if (!spops_are_neighbors(&p.rule, dx, dy, dz)) return;
        const uint64_t rank =
            spops_neighbor_rank(&p.cap, spops_distance2(dx, dy, dz), row, __float_as_int(at.w));
        if (spops_drops_neighbor(&p.cap, ranks, n, rank)) return; // before its tap is found
        n = spops_keep_neighbor(&p.cap, ranks, taps, n, rank, spops_pair_tap(&p.rule, dx, dy, dz));
    });
    for (int i = 0; i < n; ++i) {
        p.rows[begin + i] = (int)(unsigned)ranks[i];
        p.taps[begin + i] = taps[i];
    }
}

// A pair that lies before another but belongs after it changes places with it.
__device__ void order_pairs(int *rows, uint16_t *taps, int64_t i, int64_t j, int64_t n)
{
    if (j >= n) return;
    const int row = rows[i], other = rows[j];
    const uint16_t tap = taps[i], other_tap = taps[j];
    if (!comes_before(other_tap, other, tap, row)) return;
    rows[i] = other;
    rows[j] = row;
    taps[i] = other_tap;
    taps[j] = tap;
}

// Lists of more than `sorted` pairs, such as those too long for shared memory: a bitonic sort in
// place, a warp a list. Each step compares upwards only, so places after the end need not be there.
__global__ void __launch_bounds__(threads)
    sort_lists(const __grid_constant__ search_params p, int64_t max_rows, int sorted)
{
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int length = row < max_rows ? p.offsets[row + 1] - p.offsets[row] : 0;
    for (uint32_t todo = __ballot_sync(~0u, length > sorted); todo != 0; todo &= todo - 1) {
        const int64_t which = row - lane + __ffs((int)todo) - 1;
        const int64_t begin = p.offsets[which], n = p.offsets[which + 1] - begin;
        int *rows = p.rows + begin;
        uint16_t *taps = p.taps + begin;
        for (int64_t size = 2; size < 2 * n; size *= 2) {
            for (int64_t step = size / 2; step > 0; step /= 2) {
                for (int64_t i = lane; i < n; i += 32) {
                    // The first step of a size compares i with its mirror image in the block.
                    const int64_t in_block = i & (size - 1);
                    const int64_t j =
                        step == size / 2 ? i - in_block + size - 1 - in_block : i ^ step;
                    if (j > i) order_pairs(rows, taps, i, j, n);
                }
                __syncwarp();
            }
        }
    }
}

// ---- Lists of inputs from those of outputs ------------------------------------------------------

struct reverse_params {
    const int *out_offsets, *out_rows;
    const uint16_t *out_taps;
    int64_t max_out;
    int *places; // [max_in]: where the next pair of an input goes; counts, while they are counted
    int *in_rows;
    uint16_t *in_taps;
};

// A warp for each output. Which of an input's pairs comes first is left to sort_lists.
template <bool WRITE>
__global__ void __launch_bounds__(threads) walk_outputs(const __grid_constant__ reverse_params p)
{
    const int64_t row = ((int64_t)blockIdx.x * threads + threadIdx.x) / 32;
    if (row >= p.max_out) return;
    for (int i = p.out_offsets[row] + threadIdx.x % 32; i < p.out_offsets[row + 1]; i += 32) {
        const int place = atomicAdd(&p.places[p.out_rows[i]], 1);
        if (!WRITE) continue;
        p.in_rows[place] = (int)row;
        p.in_taps[place] = p.out_taps[i];
    }
}

// ---- Pairs by tap -------------------------------------------------------------------------------

struct tap_params {
    const int *offsets, *rows;
    const uint16_t *taps;
    int64_t max_rows, num_warps;
    int num_taps;
    int *counts; // [num_taps][num_warps], then where each begins
    int *tap_offsets, *in_rows, *out_rows;
};

// A warp for tap_rows rows, a lane a row, whose pairs lie by tap. WRITE: counts were scanned.
template <bool WRITE>
__global__ void __launch_bounds__(threads) walk_taps(const __grid_constant__ tap_params p)
{
    const int64_t row = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int64_t warp = row / tap_rows;
    const int lane = threadIdx.x % 32;
    if (warp >= p.num_warps) return;
    int at = row < p.max_rows ? p.offsets[row] : 0;
    const int end = row < p.max_rows ? p.offsets[row + 1] : 0;
    int tap_here = at < end ? p.taps[at] : p.num_taps;
    for (int tap = 0; tap < p.num_taps; ++tap) {
        const int first = at;
        while (tap_here == tap) {
            ++at;
            tap_here = at < end ? p.taps[at] : p.num_taps;
        }
        const int count = at - first;
        const int sum = warp_scan(count);
        int *const place = p.counts + tap * p.num_warps + warp;
        if (!WRITE) {
            if (lane == 31) *place = sum;
            continue;
        }
        const int begin = *place;
        if (warp == 0 && lane == 0) p.tap_offsets[tap] = begin;
        for (int i = 0; i < count; ++i) {
            p.in_rows[begin + sum - count + i] = p.rows[first + i];
            p.out_rows[begin + sum - count + i] = (int)row;
        }
    }
    if (WRITE && warp == 0 && lane == 0)
        p.tap_offsets[p.num_taps] = p.counts[p.num_taps * p.num_warps];
}

__global__ void clear_tap_offsets(int *tap_offsets, int num)
{
    for (int i = threadIdx.x; i < num; i += blockDim.x)
        tap_offsets[i] = 0;
}

// ---- Launching ----------------------------------------------------------------------------------

search_params search_of(const spops_neighbors_arrays *a, const workspace &w, int side)
{
    search_params p = {};
    p.center = w.clouds[side];
    p.other = w.clouds[1 - side];
    p.rule = a->rule;
    p.cap = a->cap;
    p.num_cells = &a->state->num_cells[a->same ? SPOPS_SIDE_SOURCE : side];
    p.reversed = side == SPOPS_SIDE_SOURCE;
    p.offsets = a->sides[side].offsets;
    p.rows = a->sides[side].rows;
    p.taps = a->sides[side].taps;
    return p;
}

spops_status sort_cells(spops_context *ctx, const char *what, const spops_neighbors_args *args,
                        const workspace &w, int c)
{
    const spops_neighbors_arrays *a = args->arrays;
    const key_bits bits = bits_of_keys(a->max_samples);
    const cell_points &cells = w.clouds[c];
    const int64_t n = cells.max_points;
    const dim3 blocks = blocks_for(n, threads);
    const key_params keys = {
        view_of(args->clouds[c]), a->state, c, a->rule.radius, bits.axis, false, cells.keys[0],
        cells.values[0]};
    const cell_params place = {cells, view_of(args->clouds[c]), &a->state->num_cells[c]};
    if (n == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(
        launch(ctx, what, make_keys, blocks_for(n, key_threads), (unsigned)key_threads, keys));
    SPOPS_TRY(w.wide.sort(ctx, what, (const uint64_t *)cells.keys[0], (uint64_t *)cells.keys[1],
                          cells.values[0], cells.values[1], n, 3 * bits.axis + bits.sample));
    SPOPS_TRY(launch(ctx, what, place_points, blocks, (unsigned)threads, place));
    SPOPS_TRY(w.wide.scan(ctx, what, cells.values[0], cells.values[0], n));
    return launch(ctx, what, place_cells, blocks, (unsigned)threads, place);
}

// The lists of inputs, from those of the outputs, which are written. There are inputs.
spops_status reverse_lists(spops_context *ctx, const char *what, const spops_neighbors_arrays *a,
                           const workspace &w)
{
    const spops_neighbor_side *out = &a->sides[SPOPS_SIDE_TARGET];
    const spops_neighbor_side *in = &a->sides[SPOPS_SIDE_SOURCE];
    // The flags of the sort are not needed any more.
    int *const places = w.clouds[SPOPS_SIDE_SOURCE].values[0];
    const reverse_params counted = {out->offsets, out->rows, out->taps, out->max_rows,
                                    in->offsets,  nullptr,   nullptr};
    const reverse_params written = {out->offsets, out->rows, out->taps, out->max_rows,
                                    places,       in->rows,  in->taps};
    const dim3 blocks = blocks_for(out->max_rows * 32, threads);

    SPOPS_TRY(launch(ctx, what, walk_outputs<false>, blocks, (unsigned)threads, counted));
    SPOPS_TRY(w.wide.scan(ctx, what, in->offsets, in->offsets, in->max_rows + 1));
    SPOPS_TRY(ctx->backend->copy(ctx, places, in->offsets, (size_t)in->max_rows * sizeof *places));
    return launch(ctx, what, walk_outputs<true>, blocks, (unsigned)threads, written);
}

spops_status fill_capped(spops_context *ctx, const char *what, const spops_neighbors_arrays *a,
                         const workspace &w, int side)
{
    const search_params p = search_of(a, w, side);
    const dim3 blocks = blocks_for(p.center.max_points, threads);

    if (side == SPOPS_SIDE_SOURCE)
        SPOPS_TRY(reverse_lists(ctx, what, a, w));
    else if (a->cap.most <= 32)
        SPOPS_TRY(launch(ctx, what, write_capped_lists<32>, blocks, (unsigned)threads, p));
    else
        SPOPS_TRY(launch(ctx, what, write_capped_lists<SPOPS_MAX_NEIGHBORS>, blocks,
                         (unsigned)threads, p));
    return launch(ctx, what, sort_lists, blocks, (unsigned)threads, p, a->sides[side].max_rows, 1);
}

} // namespace

extern "C" size_t spops_cuda_neighbors_workspace_bytes(spops_context *ctx,
                                                       const spops_neighbors_args *args)
{
    spops_carver carver = {nullptr, 0};
    (void)ctx;
    (void)carve_workspace(args->arrays, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_neighbors_search(spops_context *ctx,
                                                    const spops_neighbors_args *args)
{
    const char *what = "neighbors: search";
    const spops_neighbors_arrays *a = args->arrays;
    spops_carver carver = {static_cast<char *>(args->workspace), 0};
    const workspace w = carve_workspace(a, &carver);
    const bounds_params bounds = {
        {view_of(args->clouds[0]), view_of(args->clouds[1])}, a->same, a->state};

    SPOPS_TRY(enqueue_bounds(ctx, what, bounds));
    for (int c = 0; c < SPOPS_NUM_SIDES; ++c)
        if (args->clouds[c] != nullptr) SPOPS_TRY(sort_cells(ctx, what, args, w, c));
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        search_params p = search_of(a, w, side);
        const int64_t n = p.center.max_points, num_offsets = a->sides[side].max_rows + 1;
        if (p.offsets == nullptr) continue;
        SPOPS_TRY(ctx->backend->fill_zero(ctx, p.offsets, (size_t)num_offsets * sizeof *p.offsets));
        if (n == 0) continue;
        if (a->cap.most > 0 && side == SPOPS_SIDE_SOURCE) continue; // after the lists of outputs
        if (!(a->same && side == SPOPS_SIDE_SOURCE)) {              // else they are there
            const run_params runs = {p.center, p.other, p.num_cells,
                                     &a->state->num_cells[a->same ? SPOPS_SIDE_SOURCE : 1 - side],
                                     bits_of_keys(a->max_samples).axis};
            SPOPS_TRY(launch(ctx, what, find_runs, blocks_for(n * num_runs, threads),
                             (unsigned)threads, runs));
        }
        if (side == SPOPS_SIDE_TARGET)
            p.num_pairs = reinterpret_cast<unsigned long long *>(&a->state->num_pairs);
        SPOPS_TRY(launch(ctx, what, count_lists, blocks_for(n, threads), (unsigned)threads, p));
        SPOPS_TRY(w.wide.scan(ctx, what, p.offsets, p.offsets, num_offsets));
    }
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const int64_t num = a->sides[side].max_rows + 1;
        const overflow_params p = {a->state, a->max_pairs, a->sides[side].offsets, num};
        const int64_t blocks = (num + threads - 1) / threads;
        const int64_t most = (int64_t)ctx->info.num_processors;
        if (p.offsets == nullptr) continue;
        SPOPS_TRY(launch(ctx, what, check_overflow, dim3((unsigned)(blocks < most ? blocks : most)),
                         (unsigned)threads, p));
    }
    return SPOPS_STATUS_OK;
}

extern "C" spops_status spops_cuda_neighbors_fill(spops_context *ctx,
                                                  const spops_neighbors_args *args)
{
    const char *what = "neighbors: lists";
    const spops_neighbors_arrays *a = args->arrays;
    spops_carver carver = {static_cast<char *>(args->workspace), 0};
    const workspace w = carve_workspace(a, &carver);
    const spops_neighbor_side *out = &a->sides[SPOPS_SIDE_TARGET];

    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const search_params p = search_of(a, w, side);
        const int64_t n = p.center.max_points;
        if (p.offsets == nullptr || n == 0) continue;
        if (a->cap.most > 0) {
            SPOPS_TRY(fill_capped(ctx, what, a, w, side));
            continue;
        }
        SPOPS_TRY(launch(ctx, what, write_lists, blocks_for(n, threads), (unsigned)threads, p));
        SPOPS_TRY(launch(ctx, what, sort_lists, blocks_for(n, threads), (unsigned)threads, p,
                         a->sides[side].max_rows, short_list));
    }
    if (!a->by_tap) return SPOPS_STATUS_OK;
    if (out->max_rows == 0)
        return launch(ctx, what, clear_tap_offsets, dim3(1), 256u, a->tap_offsets, a->num_taps + 1);
    const tap_params p = {out->offsets, out->rows,    out->taps,      out->max_rows, w.num_warps,
                          a->num_taps,  w.tap_counts, a->tap_offsets, a->in_rows,    a->out_rows};
    const int64_t num = w.num_warps * a->num_taps + 1;
    const dim3 blocks = blocks_for(w.num_warps * tap_rows, threads);
    SPOPS_TRY(launch(ctx, what, walk_taps<false>, blocks, (unsigned)threads, p));
    SPOPS_TRY(w.wide.scan(ctx, what, w.tap_counts, w.tap_counts, num));
    return launch(ctx, what, walk_taps<true>, blocks, (unsigned)threads, p);
}
