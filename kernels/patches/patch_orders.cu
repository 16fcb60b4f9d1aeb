// SPDX-License-Identifier: Apache-2.0
// Plans of patches along curves, several in one launch each: samples, patches and tiles follow from
// offsets alone; rows are sorted by plan, sample and place on the curve, all plans in one sort; then
// entries and the entries of each row are written. Counts never leave the device.
#include "kernels/core/batch.cuh"
#include "kernels/core/device_wide.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/patches/patch_workspace.cuh"

namespace
{

using namespace spops;
using namespace spops::patches;

constexpr int threads = 256;
constexpr int plan_threads = sample_threads; // of the block that a plan has
constexpr int rows_each = 4;                 // of a thread that lists the entries of rows
constexpr int most_patches = SPOPS_PATCHES_AT_ONCE;
static_assert(most_patches <= plan_threads, "a thread a patch");

// One side's lists, to be written.
struct order_lists {
    int32_t *offsets, *rows, *rest;
    spops_patch_tile *tiles[SPOPS_NUM_PATCH_TILES];
};

// A plan, and the cloud and the curve that it is made from.
struct order_job {
    const void *points;
    const int32_t *offsets; // of samples; nullptr: one sample
    int64_t stride;         // of points
    double size[3], origin[3];
    uint64_t first_key;  // below those of the plan's rows
    int64_t first_place; // of the plan's rows, as many as num_rows, among those that are sorted
    order_lists lists[SPOPS_NUM_SIDES];
    int32_t *key_offsets, *key_entries;
    int32_t *places; // [num_rows] the entry of a row
    int2 *samples;   // [num_samples + 1] first patch and first key of a sample
    spops_patch_state *state;
    spops_patch_faults *faults;
    int32_t num_samples, num_rows, max_patches, max_entries[SPOPS_NUM_SIDES];
    int32_t patch_rows, curve;
    int8_t bits, code_bits, dtype;
    bool borrow, same;
};

constexpr int most_jobs = jobs_at_once<order_job>();
typedef batch<order_job, most_jobs> order_jobs;
static_assert(sizeof(order_jobs) + 2 * sizeof(void *) <= 4096, "parameters of a kernel");

struct sort_memory {
    uint64_t *codes, *sorted_codes;
    int32_t *rows, *sorted_rows;
    device_wide wide;
};

__device__ __forceinline__ int32_t offset_of(const order_job &p, int32_t sample)
{
    return p.offsets != nullptr ? p.offsets[sample] : sample == 0 ? 0 : p.num_rows;
}

__device__ __forceinline__ int32_t sample_of_row(const order_job &p, int32_t row)
{
    return p.offsets == nullptr ? 0 : spops_sample_of(p.offsets, p.num_samples, row);
}

// What says how a sample of n rows is cut.
__device__ __forceinline__ spops_patch_curve_rule rule_of(const order_job &p)
{
    spops_patch_curve_rule rule;
    rule.patch_rows = p.patch_rows;
    rule.borrow = p.borrow;
    rule.curve = p.curve;
    rule.cells.bits = p.bits;
    for (int a = 0; a < 3; ++a)
        rule.cells.size[a] = p.size[a], rule.cells.origin[a] = p.origin[a];
    rule.layout.dims = 3;
    rule.layout.max_axis_bits = p.bits;
    for (int c = 0; c <= 3; ++c) {
        rule.layout.lower[c] = 0;
        rule.layout.bits[c] = c == 0 ? 0 : p.bits;
        rule.layout.shift[c] = (3 - c) * p.bits;
    }
    return rule;
}

// ---- Patches and tiles --------------------------------------------------------------------------

// Entries of a patch: where they begin among queries and among keys, and how many there are.
struct cut_patch {
    int32_t begin[SPOPS_NUM_SIDES], num[SPOPS_NUM_SIDES];
};

__device__ cut_patch cut(const order_job &p, int32_t patch)
{
    const spops_patch_curve_rule rule = rule_of(p);
    const int32_t sample = sample_of_patch(p.samples, p.num_samples, patch);
    const int2 first = p.samples[sample];
    const int32_t before = (patch - first.x) * p.patch_rows;
    const int32_t begin = offset_of(p, sample) + before, end = offset_of(p, sample + 1);
    const int32_t n = min(end - begin, p.patch_rows);
    const int32_t borrowed = begin + n == end ? spops_patch_borrows(&rule, before + n) : 0;
    cut_patch c;
    c.begin[SPOPS_SIDE_TARGET] = begin;
    c.num[SPOPS_SIDE_TARGET] = n;
    c.begin[SPOPS_SIDE_SOURCE] = p.same ? begin : first.y + before;
    c.num[SPOPS_SIDE_SOURCE] = p.same ? n : n + borrowed;
    return c;
}

// The tiles of a side, of this thread's patch among num of them: a patch stands after those that meet
// more, and those of the same number before it.
__device__ void put_tiles(const order_job &p, int side, int32_t num, const cut_patch &c)
{
    __shared__ int32_t meets[most_patches], order[most_patches], first[most_patches],
        entries[most_patches], begins[SPOPS_NUM_PATCH_TILES][most_patches];
    const int32_t i = (int32_t)threadIdx.x, own = i < num ? c.num[1 - side] : -1;
    const bool there = i < most_patches;
    __syncthreads(); // those of the other side are read
    if (there) {
        meets[i] = own;
        first[i] = c.begin[side];
        entries[i] = i < num ? c.num[side] : 0;
    }
    __syncthreads();
    int32_t rank = 0;
#pragma unroll 8
    for (int32_t j = 0; j < num; ++j)
        rank += meets[j] > own || (meets[j] == own && j < i);
    if (i < num) order[rank] = i;
    __syncthreads();
    int32_t all[SPOPS_NUM_PATCH_TILES];
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
        const int32_t full = SPOPS_PATCH_TILE_ENTRIES(t), n = i < num ? entries[order[i]] : 0;
        const int32_t before = sum_before((n + full - 1) / full, &all[t]);
        if (there) begins[t][i] = before;
    }
    __syncthreads();
    if (i < SPOPS_NUM_PATCH_TILES) {
        const int32_t count = i == 0 ? all[0] : all[1];
        if (side == SPOPS_SIDE_TARGET) p.state->num_q_tiles[i] = count;
        if (side == SPOPS_SIDE_SOURCE || p.same) p.state->num_k_tiles[i] = count;
    }
    for (int32_t at = i / 32; at < num; at += plan_threads / 32) {
        const int32_t patch = order[at], n = entries[patch];
#pragma unroll
        for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
            const int32_t full = SPOPS_PATCH_TILE_ENTRIES(t);
            for (int32_t j = i % 32; j * full < n; j += 32)
                p.lists[side].tiles[t][begins[t][at] + j] = {patch, first[patch] + j * full,
                                                             min(n - j * full, full), meets[patch]};
        }
    }
}

// A block a plan: all that follows from offsets. A fault leaves no patches.
__global__ void __launch_bounds__(plan_threads)
    start_orders(const __grid_constant__ order_jobs jobs)
{
    const order_job &p = jobs.job[blockIdx.x];
    const spops_patch_curve_rule rule = rule_of(p);
    const int num_sides = p.same ? 1 : SPOPS_NUM_SIDES;
    const bool valid = check_offsets(p.num_samples, p.num_rows, p.max_entries[SPOPS_SIDE_TARGET],
                                     p.faults, [&](int32_t b) { return offset_of(p, b); });
    const int32_t i = (int32_t)threadIdx.x;
    spops_patch_storage s = {}; // what place_samples reads of it
    s.max_patches = p.max_patches;
    s.same = p.same;
    s.state = p.state;
    s.faults = p.faults;
    s.sides[SPOPS_SIDE_SOURCE].max_entries = p.max_entries[SPOPS_SIDE_SOURCE];
    __syncthreads();
    place_samples(s, p.samples, p.num_samples, valid, [&](int32_t b) {
        const int32_t n = offset_of(p, b + 1) - offset_of(p, b);
        return make_int2(spops_patches_of_rows(&rule, n), n + spops_patch_borrows(&rule, n));
    });
    __syncthreads();
    const bool fits = valid && p.faults->overflow == 0;
    const int32_t num = p.state->num_patches, rows = fits ? offset_of(p, p.num_samples) : 0;
    const int32_t keys = !fits ? 0 : p.same ? rows : p.samples[p.num_samples].y;
    cut_patch c = {};
    if (i < num) c = cut(p, i);
    for (int side = 0; side < num_sides; ++side) {
        for (int32_t j = i; j <= p.max_patches; j += plan_threads)
            p.lists[side].offsets[j] = j < num                     ? c.begin[side]
                                       : side == SPOPS_SIDE_TARGET ? rows
                                                                   : keys;
        put_tiles(p, side, num, c);
    }
    if (i > 0) return;
    p.state->num_q_rest = p.state->num_k_rest = p.num_rows - rows;
    p.state->overflow = p.faults->overflow;
    p.state->num_queries = rows;
    p.state->num_keys = keys;
    if (keys > rows) p.faults->keys_twice = rows;
}

// ---- The order ----------------------------------------------------------------------------------

// As spops_patch_code, which knows grids too.
__device__ __forceinline__ uint64_t code_of(const spops_patch_curve_rule &rule, const int32_t v[3])
{
    uint32_t c[3];
    if (spops_patch_is_hilbert(&rule))
        return spops_key_hilbert(&rule.layout, spops_patch_key(&rule, v));
    spops_patch_axes(&rule, v, c);
    return spops_bucket_zorder(c);
}

// A thread a row: its plan, sample and place on the curve. Rows after the last sample come last.
__global__ void __launch_bounds__(threads)
    rank_orders(const __grid_constant__ order_jobs jobs, uint64_t *codes, int32_t *rows)
{
    int32_t block, blocks;
    const order_job &p = job_of_block(jobs, &block, &blocks);
    const int32_t r = block * threads + (int32_t)threadIdx.x;
    if (r >= p.num_rows) return;
    const int64_t at = p.first_place + r;
    uint64_t code = (uint64_t)p.num_samples << p.code_bits;
    rows[at] = r;
    if (r < p.state->num_queries) {
        const spops_patch_curve_rule rule = rule_of(p);
        spops_matrix points = {};
        int32_t v[3];
        points.data = const_cast<void *>(p.points);
        points.row_stride = p.stride;
        points.dtype = (spops_dtype)p.dtype;
        spops_bucket_row_cell(&rule.cells, &points, r, v);
        if (!spops_bucket_row_is_finite(&points, r)) atomicMin(&p.faults->not_finite, r);
        code = (uint64_t)sample_of_row(p, r) << p.code_bits | code_of(rule, v);
    }
    codes[at] = p.first_key + code;
}

// ---- Entries ------------------------------------------------------------------------------------

// The rows that a sample's last patch borrows: queries first to first + num - 1.
struct borrowed_rows {
    int32_t first, num;
};

__device__ __forceinline__ borrowed_rows borrowed_of(const order_job &p, int32_t sample)
{
    const spops_patch_curve_rule rule = rule_of(p);
    const int32_t begin = offset_of(p, sample), n = offset_of(p, sample + 1) - begin;
    const int32_t num = spops_patch_borrows(&rule, n);
    return {begin + (n - 1) / p.patch_rows * p.patch_rows - num, num};
}

// A thread an entry, and a row: queries, the keys that they are, those that are borrowed, and rows
// without an entry.
__global__ void __launch_bounds__(threads)
    put_entries(const __grid_constant__ order_jobs jobs, const int32_t *sorted_rows)
{
    int32_t block, blocks;
    const order_job &p = job_of_block(jobs, &block, &blocks);
    const int32_t e = block * threads + (int32_t)threadIdx.x, n = p.state->num_queries;
    const order_lists &q = p.lists[SPOPS_SIDE_TARGET], &k = p.lists[SPOPS_SIDE_SOURCE];
    if (e >= p.num_rows) return;
    if (e >= n) {
        q.rest[e - n] = e;
        if (!p.same) k.rest[e - n] = e;
        return;
    }
    const int32_t row = sorted_rows[p.first_place + e];
    q.rows[e] = row;
    if (p.same) return;
    const int32_t sample = sample_of_row(p, e), begin = offset_of(p, sample);
    const int32_t first = p.samples[sample].y, end = offset_of(p, sample + 1);
    const borrowed_rows b = borrowed_of(p, sample);
    p.places[row] = e;
    k.rows[first + (e - begin)] = row;
    if (e >= b.first && e < b.first + b.num) k.rows[first + (end - begin) + (e - b.first)] = row;
}

// Borrowed rows of this block's samples: in `marks` those of its own rows, which are [begin, end).
// Returns, to every thread, how many rows below them are borrowed in all.
__device__ int32_t mark_borrowed(const order_job &p, int32_t begin, int32_t end, int32_t *marks)
{
    const int32_t *queries = p.lists[SPOPS_SIDE_TARGET].rows;
    const int32_t from = sample_of_row(p, begin), to = sample_of_row(p, end - 1);
    int32_t below = 0, all;
    for (int32_t sample = from; sample <= to; ++sample) {
        const borrowed_rows b = borrowed_of(p, sample);
        for (int32_t j = (int32_t)threadIdx.x; j < b.num; j += threads) {
            const int32_t row = queries[b.first + j];
            if (row < begin) ++below;
            if (row >= begin && row < end) marks[row - begin] = 1;
        }
    }
    (void)sum_before(below, &all);
    return p.samples[from].y - offset_of(p, from) + all;
}

// The entries of each row among the keys: its own, and after it the one that is borrowed.
__global__ void __launch_bounds__(threads) put_key_lists(const __grid_constant__ order_jobs jobs)
{
    __shared__ int32_t marks[threads * rows_each];
    int32_t block, blocks;
    const order_job &p = job_of_block(jobs, &block, &blocks);
    const int32_t n = p.state->num_queries, begin = block * threads * rows_each;
    const int32_t own = begin + (int32_t)threadIdx.x * rows_each;
    int32_t base = 0, sum = 0, all;
    for (int j = 0; j < rows_each; ++j)
        marks[j * threads + threadIdx.x] = 0;
    __syncthreads();
    if (begin < n) base = mark_borrowed(p, begin, min(begin + threads * rows_each, n), marks);
    __syncthreads();
    for (int j = 0; j < rows_each; ++j)
        sum += marks[threadIdx.x * rows_each + j];
    base += sum_before(sum, &all);
    for (int32_t r = own; r < own + rows_each && r <= p.num_rows; ++r) {
        if (r >= n) {
            p.key_offsets[r] = p.state->num_keys;
            continue;
        }
        const int32_t sample = sample_of_row(p, r), first = p.samples[sample].y, e = p.places[r];
        const int32_t sample_begin = offset_of(p, sample), to = r + base;
        p.key_offsets[r] = to;
        p.key_entries[to] = first + (e - sample_begin);
        if (marks[r - begin] == 0) continue;
        p.key_entries[to + 1] =
            first + (offset_of(p, sample + 1) - sample_begin) + (e - borrowed_of(p, sample).first);
        ++base;
    }
}

// ---- Launching ----------------------------------------------------------------------------------

order_lists lists_of(const spops_patch_side &side)
{
    order_lists lists = {side.offsets, side.rows, side.rest, {}};
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t)
        lists.tiles[t] = side.tiles[t];
    return lists;
}

order_job job_of(const spops_patches_args *args, const workspace &w)
{
    const spops_patch_storage *s = args->storage;
    const spops_patch_curve_rule *rule = args->curve;
    const spops_point_cloud *cloud = args->cloud;
    order_job p = {};
    p.points = cloud->points.data;
    p.stride = cloud->points.row_stride;
    p.dtype = (int8_t)cloud->points.dtype;
    p.offsets = cloud->offsets;
    p.num_samples = cloud->offsets == nullptr ? 1 : (int32_t)cloud->num_samples;
    for (int a = 0; a < 3; ++a)
        p.size[a] = rule->cells.size[a], p.origin[a] = rule->cells.origin[a];
    p.bits = (int8_t)rule->cells.bits;
    p.code_bits = (int8_t)rule->code_bits;
    p.patch_rows = rule->patch_rows;
    p.curve = rule->curve;
    p.borrow = rule->borrow;
    p.same = s->same;
    for (int side = 0; side < (s->same ? 1 : SPOPS_NUM_SIDES); ++side) {
        p.lists[side] = lists_of(s->sides[side]);
        p.max_entries[side] = (int32_t)s->sides[side].max_entries;
    }
    p.key_offsets = s->key_offsets;
    p.key_entries = s->key_entries;
    p.state = s->state;
    p.faults = s->faults;
    p.num_rows = (int32_t)s->num_rows;
    p.max_patches = (int32_t)s->max_patches;
    p.samples = w.samples;
    p.places = w.first[SPOPS_SIDE_SOURCE]; // where keys are others than queries
    return p;
}

uint64_t most_code(const order_job &p)
{
    return (uint64_t)p.num_samples << p.code_bits;
}

int64_t rows_of_plans(const spops_patches_orders_args *args)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < args->num; ++i)
        rows += args->plans[i].storage->num_rows;
    return rows;
}

sort_memory carve_sort(int64_t rows, spops_carver *c)
{
    sort_memory m = {};
    m.codes = (uint64_t *)spops_carve(c, rows, 1, sizeof(uint64_t));
    m.sorted_codes = (uint64_t *)spops_carve(c, rows, 1, sizeof(uint64_t));
    m.rows = (int32_t *)spops_carve(c, rows, 1, sizeof(int32_t));
    m.sorted_rows = (int32_t *)spops_carve(c, rows, 1, sizeof(int32_t));
    m.wide.needs_sort<uint64_t>(rows, 64);
    m.wide.carve(c);
    return m;
}

// Jobs whose places and keys are set; all rows of them, at most INT32_MAX, are sorted at once.
spops_status run_jobs(spops_context *ctx, order_jobs *jobs, const sort_memory &m, int64_t rows,
                      int bits)
{
    const dim3 row_blocks = divide_blocks(
        jobs, [](const order_job &p) { return ((int64_t)p.num_rows + threads - 1) / threads; });
    SPOPS_TRY(launch(ctx, "patches: start_orders", start_orders, dim3((unsigned)jobs->num),
                     (unsigned)plan_threads, *jobs));
    SPOPS_TRY(launch(ctx, "patches: rank_orders", rank_orders, row_blocks, (unsigned)threads, *jobs,
                     m.codes, m.rows));
    if (rows > 0)
        SPOPS_TRY(m.wide.sort(ctx, "patches: sort rows", m.codes, m.sorted_codes, m.rows,
                              m.sorted_rows, rows, bits));
    SPOPS_TRY(launch(ctx, "patches: put_entries", put_entries, row_blocks, (unsigned)threads, *jobs,
                     m.sorted_rows));
    const dim3 key_blocks = divide_blocks(jobs, [](const order_job &p) {
        return p.same ? 0 : (int64_t)p.num_rows / (threads * rows_each) + 1;
    });
    return launch(ctx, "patches: put_key_lists", put_key_lists, key_blocks, (unsigned)threads,
                  *jobs);
}

} // namespace

extern "C" size_t spops_cuda_patches_orders_bytes(spops_context *,
                                                  const spops_patches_orders_args *args)
{
    spops_carver carver = {nullptr, 0};
    const int64_t rows = rows_of_plans(args);
    if (rows > INT32_MAX) return 0;
    (void)carve_sort(rows, &carver);
    return carver.used;
}

// As many plans at a time as one sort's keys and a kernel's parameters hold.
extern "C" spops_status spops_cuda_patches_orders(spops_context *ctx,
                                                  const spops_patches_orders_args *args)
{
    for (int64_t i = 0; i < args->num;) {
        order_jobs jobs = {};
        sort_memory m = {};
        uint64_t last_key = 0;
        int64_t rows = 0;
        for (; i < args->num && jobs.num < most_jobs; ++i) {
            const spops_patches_args *plan = &args->plans[i];
            spops_carver carver = {(char *)plan->workspace, 0};
            const workspace w = carve_workspace(plan->storage, &carver);
            order_job p = job_of(plan, w);
            p.first_key = jobs.num == 0 ? 0 : last_key + 1;
            p.first_place = rows;
            if (jobs.num > 0 &&
                (args->scratch == nullptr || most_code(p) > UINT64_MAX - 1 - last_key))
                break;
            last_key = p.first_key + most_code(p);
            rows += p.num_rows;
            jobs.job[jobs.num++] = p;
            m = {w.codes, w.sorted_codes, w.rows, w.first[SPOPS_SIDE_TARGET], w.wide};
        }
        if (jobs.num > 1) {
            spops_carver carver = {(char *)args->scratch, 0};
            m = carve_sort(rows, &carver);
        }
        SPOPS_TRY(run_jobs(ctx, &jobs, m, rows, bits_for(last_key)));
    }
    return SPOPS_STATUS_OK;
}
