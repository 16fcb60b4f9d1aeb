// SPDX-License-Identifier: Apache-2.0
// Plans of patches on the GPU. Lists are copied and checked; then each row learns which entry names
// it first, which says what rows are left over; then patches are sorted by what they meet, and cut
// into tiles. Counts never leave the device, and a list with a fault ends as no patches at all.
#include "kernels/core/device_wide.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/patches/patch_workspace.cuh"

namespace
{

using namespace spops;
using namespace spops::patches;

constexpr int threads = 256;

// ---- The caller's lists -------------------------------------------------------------------------

struct copy_params {
    spops_patch_storage s;
    int num_sides;
    const int32_t *num_patches; // nullptr: max_given
    int32_t max_given;
    const int32_t *offsets[SPOPS_NUM_SIDES], *rows[SPOPS_NUM_SIDES];
};

__device__ int32_t patches_given(const copy_params &p)
{
    if (p.num_patches == nullptr) return p.max_given;
    return max(min(*p.num_patches, p.max_given), 0);
}

__global__ void start_lists(const __grid_constant__ copy_params p)
{
    const bool more = p.num_patches != nullptr && *p.num_patches > p.max_given;
    *p.s.faults = {
        {INT32_MAX, INT32_MAX}, {INT32_MAX, INT32_MAX}, INT32_MAX, INT32_MAX, more, INT32_MAX};
    p.s.state->num_patches = patches_given(p);
}

// A thread an offset. Where offsets do not ascend, what is copied does not count: rows are read up to
// the capacity at most.
__global__ void __launch_bounds__(threads) copy_offsets(const __grid_constant__ copy_params p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i > p.s.max_patches) return;
    const int32_t n = patches_given(p), at = (int32_t)min(i, (int64_t)n);
    for (int side = 0; side < p.num_sides; ++side) {
        const int32_t *offsets = p.offsets[side];
        int32_t *to = p.s.sides[side].offsets;
        if (offsets == nullptr) {
            to[i] = 0;
            continue;
        }
        const int32_t offset = offsets[at];
        to[i] = offset;
        if (i > n) continue;
        const bool falls = i == 0 ? offset != 0 : offset < offsets[i - 1];
        if (falls) atomicMin(&p.s.faults->offsets[side], (int32_t)i);
        if (i == n && offset > p.s.sides[side].max_entries) atomicOr(&p.s.faults->overflow, 1);
    }
}

// A thread an entry.
__global__ void __launch_bounds__(threads) copy_rows(const __grid_constant__ copy_params p)
{
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    for (int side = 0; side < p.num_sides; ++side) {
        const spops_patch_side &to = p.s.sides[side];
        if (p.offsets[side] == nullptr || e >= to.max_entries || p.s.faults->overflow != 0 ||
            p.s.faults->offsets[side] != INT32_MAX || e >= to.offsets[p.s.max_patches])
            continue;
        const int32_t row = p.rows[side] == nullptr ? (int32_t)e : p.rows[side][e];
        to.rows[e] = row;
        if (row < 0 || row >= spops_patch_rows(&p.s, side))
            atomicMin(&p.s.faults->rows[side], (int32_t)e);
    }
}

// ---- An order of rows ---------------------------------------------------------------------------

struct order_params {
    spops_patch_storage s;
    spops_patch_curve_rule rule;
    spops_matrix points;
    const int32_t *offsets; // nullptr: one sample
    int32_t num_samples;
    workspace w;
};

__device__ int32_t offset_of(const order_params &p, int32_t sample)
{
    return p.offsets != nullptr ? p.offsets[sample] : sample == 0 ? 0 : (int32_t)p.s.num_rows;
}

__global__ void __launch_bounds__(sample_threads)
    start_order(const __grid_constant__ order_params p)
{
    const bool valid =
        check_offsets(p.num_samples, p.s.num_rows, p.s.sides[SPOPS_SIDE_TARGET].max_entries,
                      p.s.faults, [&](int32_t b) { return offset_of(p, b); });
    __syncthreads();
    place_samples(p.s, p.w.samples, p.num_samples, valid, [&](int32_t b) {
        const int32_t n = offset_of(p, b + 1) - offset_of(p, b);
        return make_int2(spops_patches_of_rows(&p.rule, n), n + spops_patch_borrows(&p.rule, n));
    });
}

__device__ bool has_order(const order_params &p)
{
    return p.s.faults->offsets[SPOPS_SIDE_TARGET] == INT32_MAX && p.s.faults->overflow == 0;
}

// Codes with the sample on top; rows after the last sample come last.
__global__ void __launch_bounds__(threads) rank_rows(const __grid_constant__ order_params p)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r >= p.s.num_rows) return;
    const int bits = p.rule.code_bits;
    p.w.rows[r] = (int32_t)r;
    if (!has_order(p) || r >= offset_of(p, p.num_samples)) {
        p.w.codes[r] = (uint64_t)p.num_samples << bits;
        return;
    }
    int32_t v[3];
    spops_bucket_row_cell(&p.rule.cells, &p.points, r, v);
    if (!spops_bucket_row_is_finite(&p.points, r)) atomicMin(&p.s.faults->not_finite, (int32_t)r);
    const int32_t sample = p.offsets == nullptr ? 0 : spops_sample_of(p.offsets, p.num_samples, r);
    p.w.codes[r] = (uint64_t)sample << bits | spops_patch_code(&p.rule, v);
}

// Sorted rows as entries, up to the capacity of entries.
__global__ void __launch_bounds__(threads) put_order(const __grid_constant__ order_params p)
{
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (e < p.s.num_rows && has_order(p) && e < offset_of(p, p.num_samples))
        p.s.sides[SPOPS_SIDE_TARGET].rows[e] = p.w.first[SPOPS_SIDE_TARGET][e];
}

// A thread an entry: the caller's order, and whether it is one.
__global__ void __launch_bounds__(threads) copy_order(const __grid_constant__ order_params p)
{
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (e >= p.s.num_rows || !has_order(p) || e >= offset_of(p, p.num_samples)) return;
    const int32_t sample = p.offsets == nullptr ? 0 : spops_sample_of(p.offsets, p.num_samples, e);
    const int32_t row = p.rule.order[e];
    p.s.sides[SPOPS_SIDE_TARGET].rows[e] = row;
    if (row < offset_of(p, sample) || row >= offset_of(p, sample + 1))
        atomicMin(&p.s.faults->rows[SPOPS_SIDE_TARGET], (int32_t)e);
}

// A block a patch, and one for the ends of offsets: where its entries lie, and its keys.
__global__ void __launch_bounds__(threads) cut_order(const __grid_constant__ order_params p)
{
    const spops_patch_side &q = p.s.sides[SPOPS_SIDE_TARGET];
    const spops_patch_side &k = p.s.sides[SPOPS_SIDE_SOURCE];
    const int32_t num = p.s.state->num_patches, thread = (int32_t)threadIdx.x;
    for (int64_t patch = blockIdx.x; patch <= p.s.max_patches; patch += gridDim.x) {
        if (patch >= num) {
            if (thread > 0) continue;
            q.offsets[patch] = num > 0 ? offset_of(p, p.num_samples) : 0;
            if (!p.s.same) k.offsets[patch] = num > 0 ? p.w.samples[p.num_samples].y : 0;
            continue;
        }
        const int32_t sample = sample_of_patch(p.w.samples, p.num_samples, (int32_t)patch);
        const int2 first = p.w.samples[sample];
        const int32_t before = ((int32_t)patch - first.x) * p.rule.patch_rows;
        const int32_t begin = offset_of(p, sample) + before, end = offset_of(p, sample + 1);
        const int32_t n = min(end - begin, p.rule.patch_rows);
        const int32_t borrowed = begin + n == end ? spops_patch_borrows(&p.rule, before + n) : 0;
        if (thread == 0) q.offsets[patch] = begin;
        if (p.s.same) continue;
        const int32_t to = first.y + before;
        if (thread == 0) k.offsets[patch] = to;
        for (int32_t e = thread; e < n + borrowed; e += threads)
            k.rows[to + e] = q.rows[e < n ? begin + e : begin - borrowed + (e - n)];
    }
}

// ---- Windows of a grid --------------------------------------------------------------------------

// Sorted rows e - 1 and e are of different windows, or of different samples.
__device__ bool begins_window(const order_params &p, int64_t e)
{
    if (e == 0) return true;
    const int bits = p.rule.code_bits;
    const uint64_t code = p.w.sorted_codes[e], before = p.w.sorted_codes[e - 1];
    const uint64_t cells = p.rule.grid.cells, places = ((uint64_t)1 << bits) - 1;
    return code >> bits != before >> bits || (code & places) / cells != (before & places) / cells;
}

__device__ int32_t num_ordered(const order_params &p)
{
    return has_order(p) ? offset_of(p, p.num_samples) : 0;
}

// A thread an entry, here and below.
__global__ void __launch_bounds__(threads) flag_windows(const __grid_constant__ order_params p)
{
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (e <= p.s.num_rows) p.w.windows[e] = e < num_ordered(p) && begins_window(p, e);
}

__global__ void __launch_bounds__(threads) place_windows(const __grid_constant__ order_params p)
{
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (e > p.s.num_rows) return;
    const int32_t window = p.w.windows[e];
    if (e == p.s.num_rows)
        p.w.window_begins[window] = num_ordered(p); // where the last one ends
    else if (p.w.windows[e + 1] != window)
        p.w.window_begins[window] = (int32_t)e;
}

// A thread a window.
__global__ void __launch_bounds__(threads) count_sets(const __grid_constant__ order_params p)
{
    const int64_t w = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (w > p.s.num_rows) return;
    const int32_t *begins = p.w.window_begins;
    p.w.window_sets[w] = w < p.w.windows[p.s.num_rows]
                             ? spops_patch_sets(&p.rule.grid, begins[w + 1] - begins[w])
                             : 0;
}

// The set of a window of n rows that begins at place k; -1: none.
__device__ int32_t set_at(const spops_patch_grid_rule &g, int32_t n, int32_t sets, int32_t k)
{
    const int32_t set = g.set_rows == 0 ? (k == 0 ? 0 : sets)
                        : g.even        ? (int32_t)(((int64_t)k * sets + n - 1) / n)
                                        : k / g.set_rows;
    return set < sets && spops_patch_set_begin(&g, n, sets, set) == k ? set : -1;
}

// A thread an entry, and an offset.
__global__ void __launch_bounds__(threads) cut_windows(const __grid_constant__ order_params p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int32_t total = p.w.window_sets[p.s.num_rows];
    const int32_t end = p.w.window_begins[p.w.windows[p.s.num_rows]];
    const bool fits = total <= p.s.max_patches;
    int32_t *offsets = p.s.sides[SPOPS_SIDE_TARGET].offsets;
    if (i == 0) {
        p.s.state->num_patches = fits ? total : 0;
        if (!fits) p.s.faults->overflow = 1;
    }
    if (i <= p.s.max_patches && (!fits || i >= total)) offsets[i] = fits ? end : 0;
    if (i >= end || !fits) return;
    const int32_t window = p.w.windows[i + 1] - 1, begin = p.w.window_begins[window];
    const int32_t set =
        set_at(p.rule.grid, p.w.window_begins[window + 1] - begin,
               p.w.window_sets[window + 1] - p.w.window_sets[window], (int32_t)i - begin);
    if (set >= 0) offsets[p.w.window_sets[window] + set] = (int32_t)i;
}

// ---- Windows of buckets -------------------------------------------------------------------------

struct window_params {
    spops_patch_storage s;
    spops_patch_window_rule rule;
    spops_buckets_arrays b;
    int32_t num_samples;
    workspace w;
};

__device__ int32_t buckets_of(const window_params &p, int32_t sample)
{
    return p.b.sample_buckets[sample + 1] - p.b.sample_buckets[sample];
}

__global__ void __launch_bounds__(sample_threads)
    start_window(const __grid_constant__ window_params p)
{
    const bool fits = p.b.state->num_rows <= p.s.sides[SPOPS_SIDE_TARGET].max_entries;
    if (threadIdx.x == 0)
        *p.s.faults = {
            {INT32_MAX, INT32_MAX}, {INT32_MAX, INT32_MAX}, INT32_MAX, INT32_MAX, !fits, INT32_MAX};
    __syncthreads();
    place_samples(p.s, p.w.samples, p.num_samples, fits, [&](int32_t b) {
        return make_int2(spops_patches_of_buckets(&p.rule, buckets_of(p, b)), 0);
    });
}

// A thread a patch: its rows, which are summed to offsets.
__global__ void __launch_bounds__(threads) count_window(const __grid_constant__ window_params p)
{
    const int64_t patch = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (patch > p.s.max_patches) return;
    int32_t n = 0;
    if (patch < p.s.state->num_patches) {
        const int32_t sample = sample_of_patch(p.w.samples, p.num_samples, (int32_t)patch);
        const int32_t k = buckets_of(p, sample);
        const int32_t *offsets = p.b.offsets + p.b.sample_buckets[sample];
        const int32_t j = (int32_t)patch - p.w.samples[sample].x;
        for (int32_t m = 0, bucket; (bucket = spops_patch_bucket(&p.rule, k, j, m)) >= 0; ++m)
            n += offsets[bucket + 1] - offsets[bucket];
    }
    p.s.sides[SPOPS_SIDE_TARGET].offsets[patch] = n;
}

// A block a patch.
__global__ void __launch_bounds__(threads) copy_window(const __grid_constant__ window_params p)
{
    const spops_patch_side &q = p.s.sides[SPOPS_SIDE_TARGET];
    for (int64_t patch = blockIdx.x; patch < p.s.state->num_patches; patch += gridDim.x) {
        const int32_t sample = sample_of_patch(p.w.samples, p.num_samples, (int32_t)patch);
        const int32_t k = buckets_of(p, sample);
        const int32_t *offsets = p.b.offsets + p.b.sample_buckets[sample];
        const int32_t j = (int32_t)patch - p.w.samples[sample].x;
        int32_t to = q.offsets[patch];
        for (int32_t m = 0, bucket; (bucket = spops_patch_bucket(&p.rule, k, j, m)) >= 0; ++m) {
            const int32_t begin = offsets[bucket], n = offsets[bucket + 1] - begin;
            for (int32_t e = (int32_t)threadIdx.x; e < n; e += threads)
                q.rows[to + e] = p.rule.in_places ? begin + e : p.b.rows[begin + e];
            to += n;
        }
    }
}

// ---- What follows from lists --------------------------------------------------------------------

struct fill_params {
    spops_patch_storage s;
    int num_sides;
    workspace w;
};

__device__ bool is_valid(const spops_patch_storage &s)
{
    return !spops_patches_refused(s.faults) && s.faults->overflow == 0;
}

// Entries of a side; 0 where there is a fault.
__device__ int32_t entries_of(const spops_patch_storage &s, int side)
{
    return is_valid(s) ? s.sides[side].offsets[s.max_patches] : 0;
}

__global__ void __launch_bounds__(threads) clear_rows(const __grid_constant__ fill_params p)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    for (int side = 0; side < p.num_sides; ++side)
        if (r < spops_patch_rows(&p.s, side)) p.w.first[side][r] = INT32_MAX;
}

__global__ void __launch_bounds__(threads) find_rows(const __grid_constant__ fill_params p)
{
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    for (int side = 0; side < p.num_sides; ++side)
        if (e < entries_of(p.s, side))
            atomicMin(&p.w.first[side][p.s.sides[side].rows[e]], (int32_t)e);
}

// Sets a fault that the validity of lists depends on, so it reads no more than find_rows did: the
// offsets and rows are good where the other faults are not there.
__global__ void __launch_bounds__(threads) find_twice(const __grid_constant__ fill_params p)
{
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    const spops_patch_faults *f = p.s.faults;
    if (f->overflow != 0) return;
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        if (f->offsets[side] != INT32_MAX || f->rows[side] != INT32_MAX) return;
    for (int side = 0; side < p.num_sides; ++side) {
        const spops_patch_side &from = p.s.sides[side];
        if (e >= from.offsets[p.s.max_patches] || p.w.first[side][from.rows[e]] == (int32_t)e)
            continue;
        atomicMin(side == SPOPS_SIDE_TARGET ? &p.s.faults->twice : &p.s.faults->keys_twice,
                  (int32_t)e);
    }
}

// Rows without an entry as ones and zeros; the last one, which is no row, gets their number.
__global__ void __launch_bounds__(threads) flag_rest(const __grid_constant__ fill_params p)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r > spops_patch_most_rows(&p.s)) return;
    const bool valid = is_valid(p.s);
    const int32_t query =
        r < p.s.num_rows && !(valid && p.w.first[SPOPS_SIDE_TARGET][r] != INT32_MAX);
    const int32_t key =
        r < p.s.num_key_rows && !(valid && p.w.first[SPOPS_SIDE_SOURCE][r] != INT32_MAX);
    p.w.rest[r] = make_int2(query, key);
}

__global__ void __launch_bounds__(threads) put_rest(const __grid_constant__ fill_params p)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r > spops_patch_most_rows(&p.s)) return;
    const int2 here = p.w.rest[r];
    if (r == spops_patch_most_rows(&p.s)) {
        spops_patch_state *state = p.s.state;
        state->num_q_rest = here.x;
        state->num_k_rest = here.y;
        state->overflow = p.s.faults->overflow;
        if (!is_valid(p.s)) state->num_patches = 0;
        state->num_queries = entries_of(p.s, SPOPS_SIDE_TARGET);
        state->num_keys = p.s.same ? state->num_queries : entries_of(p.s, SPOPS_SIDE_SOURCE);
        return;
    }
    const int2 next = p.w.rest[r + 1];
    if (next.x > here.x) p.s.sides[SPOPS_SIDE_TARGET].rest[here.x] = (int32_t)r;
    if (!p.s.same && next.y > here.y) p.s.sides[SPOPS_SIDE_SOURCE].rest[here.y] = (int32_t)r;
}

// Lists with a fault are none; after everything that asks whether they have one.
__global__ void __launch_bounds__(threads) drop_lists(const __grid_constant__ fill_params p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i > p.s.max_patches || is_valid(p.s)) return;
    for (int side = 0; side < p.num_sides; ++side)
        p.s.sides[side].offsets[i] = 0;
}

// Where queries are rows 0 to num_queries - 1, and keys too: the rest are the rows after them.
__global__ void __launch_bounds__(threads) put_rows_behind(const __grid_constant__ fill_params p)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int32_t n = entries_of(p.s, SPOPS_SIDE_TARGET);
    if (r < p.s.num_rows) {
        for (int side = 0; side < p.num_sides && r >= n; ++side)
            p.s.sides[side].rest[r - n] = (int32_t)r;
        return;
    }
    if (r > p.s.num_rows) return;
    spops_patch_state *state = p.s.state;
    state->num_q_rest = state->num_k_rest = (int32_t)p.s.num_rows - n;
    state->overflow = p.s.faults->overflow;
    if (!is_valid(p.s)) state->num_patches = 0;
    state->num_queries = n;
    state->num_keys = p.s.same ? n : entries_of(p.s, SPOPS_SIDE_SOURCE);
    if (state->num_keys > n) p.s.faults->keys_twice = n;
}

// ---- Tiles --------------------------------------------------------------------------------------

struct tile_params {
    spops_patch_storage s;
    int side;
    const int32_t *offsets, *others; // of patches: the list that is cut, and the other one
    workspace w;
};

__device__ int32_t num_of(const int32_t *offsets, int64_t patch)
{
    return offsets[patch + 1] - offsets[patch];
}

// Keys ascend where what patches meet descends.
__global__ void __launch_bounds__(threads) rank_patches(const __grid_constant__ tile_params p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= p.s.max_patches) return;
    p.w.keys[i] = (uint32_t)INT32_MAX - (uint32_t)num_of(p.others, i);
    p.w.patches[i] = (int32_t)i;
}

__global__ void __launch_bounds__(threads) count_tiles(const __grid_constant__ tile_params p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i > p.s.max_patches) return;
    const int32_t n = i < p.s.max_patches ? num_of(p.offsets, p.w.sorted_patches[i]) : 0;
    p.w.tiles[i] = make_int2((n + 63) / 64, (n + 127) / 128);
}

// A warp a patch.
__global__ void __launch_bounds__(threads) put_tiles(const __grid_constant__ tile_params p)
{
    const int64_t i = ((int64_t)blockIdx.x * threads + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (i > p.s.max_patches) return;
    const int2 to = p.w.tiles[i];
    const int32_t begin[SPOPS_NUM_PATCH_TILES] = {to.x, to.y};
    if (i == p.s.max_patches) {
        spops_patch_state *state = p.s.state;
        if (lane >= SPOPS_NUM_PATCH_TILES) return;
        if (p.side == SPOPS_SIDE_TARGET) state->num_q_tiles[lane] = lane == 0 ? to.x : to.y;
        if (p.side == SPOPS_SIDE_SOURCE || p.s.same)
            state->num_k_tiles[lane] = lane == 0 ? to.x : to.y;
        return;
    }
    const int32_t patch = p.w.sorted_patches[i], first = p.offsets[patch];
    const int32_t n = num_of(p.offsets, patch), others = num_of(p.others, patch);
#pragma unroll
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
        const int32_t full = SPOPS_PATCH_TILE_ENTRIES(t);
        for (int32_t j = lane; j * full < n; j += 32)
            p.s.sides[p.side].tiles[t][begin[t] + j] = {patch, first + j * full,
                                                        min(n - j * full, full), others};
    }
}

// All of the above for few patches, in one block: a patch stands after those that meet more, and
// those of the same number before it.
constexpr int block_patches = 1024;

__global__ void __launch_bounds__(block_patches)
    make_few_tiles(const __grid_constant__ tile_params p)
{
    __shared__ int32_t meets[block_patches], order[block_patches],
        begins[SPOPS_NUM_PATCH_TILES][block_patches];
    const int32_t i = (int32_t)threadIdx.x, n = p.s.state->num_patches;
    const int32_t own = i < n ? num_of(p.others, i) : -1;
    meets[i] = own;
    __syncthreads();
    int32_t rank = 0;
#pragma unroll 8
    for (int32_t j = 0; j < n; ++j)
        rank += meets[j] > own || (meets[j] == own && j < i);
    if (i < n) order[rank] = i;
    __syncthreads();
    const int32_t entries = i < n ? num_of(p.offsets, order[i]) : 0;
    int32_t all[SPOPS_NUM_PATCH_TILES];
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
        const int32_t full = SPOPS_PATCH_TILE_ENTRIES(t);
        begins[t][i] = sum_before((entries + full - 1) / full, &all[t]);
    }
    __syncthreads();
    if (i < SPOPS_NUM_PATCH_TILES) {
        const int32_t count = i == 0 ? all[0] : all[1];
        if (p.side == SPOPS_SIDE_TARGET) p.s.state->num_q_tiles[i] = count;
        if (p.side == SPOPS_SIDE_SOURCE || p.s.same) p.s.state->num_k_tiles[i] = count;
    }
    for (int32_t at = i / 32; at < n; at += block_patches / 32) {
        const int32_t patch = order[at], first = p.offsets[patch];
        const int32_t count = num_of(p.offsets, patch), others = meets[patch];
        for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
            const int32_t full = SPOPS_PATCH_TILE_ENTRIES(t);
            for (int32_t j = i % 32; j * full < count; j += 32)
                p.s.sides[p.side].tiles[t][begins[t][at] + j] = {
                    patch, first + j * full, min(count - j * full, full), others};
        }
    }
}

spops_status make_tiles(spops_context *ctx, const spops_patch_storage *s, int side,
                        const workspace &w)
{
    const int other = side == SPOPS_SIDE_TARGET && !s->same ? SPOPS_SIDE_SOURCE : SPOPS_SIDE_TARGET;
    tile_params p = {*s, side, s->sides[side].offsets, s->sides[other].offsets, w};
    if (s->max_patches <= block_patches)
        return launch(ctx, "patches: make_few_tiles", make_few_tiles, dim3(1),
                      (unsigned)block_patches, p);
    SPOPS_TRY(launch(ctx, "patches: rank_patches", rank_patches,
                     blocks_for(s->max_patches, threads), (unsigned)threads, p));
    if (s->max_patches > 0)
        SPOPS_TRY(w.wide.sort(ctx, "patches: sort", w.keys, w.sorted_keys, w.patches,
                              w.sorted_patches, s->max_patches, 31));
    SPOPS_TRY(launch(ctx, "patches: count_tiles", count_tiles,
                     blocks_for(s->max_patches + 1, threads), (unsigned)threads, p));
    SPOPS_TRY(w.wide.scan(ctx, "patches: scan", w.tiles, s->max_patches + 1));
    return launch(ctx, "patches: put_tiles", put_tiles,
                  blocks_for((s->max_patches + 1) * 32, threads), (unsigned)threads, p);
}

// ---- Keys by row --------------------------------------------------------------------------------

__global__ void __launch_bounds__(threads) rank_entries(const __grid_constant__ fill_params p)
{
    const spops_patch_side &k = p.s.sides[SPOPS_SIDE_SOURCE];
    const int64_t e = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (e >= k.max_entries) return;
    p.w.entry_keys[e] =
        e < k.offsets[p.s.max_patches] ? (uint32_t)k.rows[e] : (uint32_t)p.s.num_key_rows;
    p.w.entries[e] = (int32_t)e;
}

// key_offsets[r]: sorted entries of rows below r.
__global__ void __launch_bounds__(threads) put_key_offsets(const __grid_constant__ fill_params p)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r > p.s.num_key_rows) return;
    int64_t low = 0, high = p.s.sides[SPOPS_SIDE_SOURCE].max_entries;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (p.w.sorted_entry_keys[middle] < r)
            low = middle + 1;
        else
            high = middle;
    }
    p.s.key_offsets[r] = (int32_t)low;
}

spops_status make_key_lists(spops_context *ctx, const fill_params &p)
{
    const int64_t n = p.s.sides[SPOPS_SIDE_SOURCE].max_entries;
    SPOPS_TRY(launch(ctx, "patches: rank_entries", rank_entries, blocks_for(n, threads),
                     (unsigned)threads, p));
    if (n > 0)
        SPOPS_TRY(p.w.wide.sort(ctx, "patches: sort keys", p.w.entry_keys, p.w.sorted_entry_keys,
                                p.w.entries, p.s.key_entries, n,
                                bits_for((uint64_t)p.s.num_key_rows)));
    return launch(ctx, "patches: put_key_offsets", put_key_offsets,
                  blocks_for(p.s.num_key_rows + 1, threads), (unsigned)threads, p);
}

// After the order of rows: where windows, and sets in them, begin.
spops_status cut_grid(spops_context *ctx, const order_params &p)
{
    const int64_t n = p.s.num_rows + 1, most = n > p.s.max_patches + 1 ? n : p.s.max_patches + 1;
    const dim3 blocks = blocks_for(n, threads);

    SPOPS_TRY(launch(ctx, "patches: flag_windows", flag_windows, blocks, (unsigned)threads, p));
    SPOPS_TRY(p.w.wide.scan(ctx, "patches: scan", p.w.windows, p.w.windows, n));
    SPOPS_TRY(launch(ctx, "patches: place_windows", place_windows, blocks, (unsigned)threads, p));
    SPOPS_TRY(launch(ctx, "patches: count_sets", count_sets, blocks, (unsigned)threads, p));
    SPOPS_TRY(p.w.wide.scan(ctx, "patches: scan", p.w.window_sets, p.w.window_sets, n));
    return launch(ctx, "patches: cut_windows", cut_windows, blocks_for(most, threads),
                  (unsigned)threads, p);
}

int64_t most_entries(const spops_patch_storage *s)
{
    const int64_t q = s->sides[SPOPS_SIDE_TARGET].max_entries;
    const int64_t k = s->same ? 0 : s->sides[SPOPS_SIDE_SOURCE].max_entries;
    return q > k ? q : k;
}

} // namespace

extern "C" size_t spops_cuda_patches_workspace_bytes(spops_context *,
                                                     const spops_patches_args *args)
{
    spops_carver carver = {nullptr, 0};
    (void)carve_workspace(args->storage, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_patches_copy(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    copy_params p = {};
    p.s = *s;
    p.num_sides = s->same ? 1 : SPOPS_NUM_SIDES;
    p.num_patches = args->num_patches;
    if (args->lists != nullptr) {
        p.max_given = (int32_t)args->lists->num_patches;
        p.offsets[SPOPS_SIDE_TARGET] = args->lists->query_offsets;
        p.offsets[SPOPS_SIDE_SOURCE] = args->lists->key_offsets;
        p.rows[SPOPS_SIDE_TARGET] = args->lists->query_rows;
        p.rows[SPOPS_SIDE_SOURCE] = args->lists->key_rows;
    }
    SPOPS_TRY(launch(ctx, "patches: start_lists", start_lists, dim3(1), 1u, p));
    SPOPS_TRY(launch(ctx, "patches: copy_offsets", copy_offsets,
                     blocks_for(s->max_patches + 1, threads), (unsigned)threads, p));
    return launch(ctx, "patches: copy_rows", copy_rows, blocks_for(most_entries(s), threads),
                  (unsigned)threads, p);
}

extern "C" spops_status spops_cuda_patches_order(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    const spops_point_cloud *cloud = args->cloud;
    spops_carver carver = {(char *)args->workspace, 0};
    order_params p = {};
    p.s = *s;
    p.rule = *args->curve;
    p.points = cloud->points;
    p.offsets = cloud->offsets;
    p.num_samples = cloud->offsets == nullptr ? 1 : (int32_t)cloud->num_samples;
    p.w = carve_workspace(s, &carver);
    const dim3 rows = blocks_for(s->num_rows, threads);
    SPOPS_TRY(
        launch(ctx, "patches: start_order", start_order, dim3(1), (unsigned)sample_threads, p));
    if (p.rule.order != nullptr) {
        SPOPS_TRY(launch(ctx, "patches: copy_order", copy_order, rows, (unsigned)threads, p));
    } else if (s->num_rows > 0) {
        const int bits = p.rule.code_bits + bits_for((uint64_t)p.num_samples);
        SPOPS_TRY(launch(ctx, "patches: rank_rows", rank_rows, rows, (unsigned)threads, p));
        // Entries of queries are rows of the cloud; those after the last sample do not count.
        SPOPS_TRY(p.w.wide.sort(ctx, "patches: sort rows", p.w.codes, p.w.sorted_codes, p.w.rows,
                                p.w.first[SPOPS_SIDE_TARGET], s->num_rows, bits < 64 ? bits : 64));
        SPOPS_TRY(launch(ctx, "patches: put_order", put_order, rows, (unsigned)threads, p));
    }
    if (p.rule.patch_rows == 0) return cut_grid(ctx, p);
    return launch(ctx, "patches: cut_order", cut_order,
                  dim3((unsigned)(s->max_patches < 65535 ? s->max_patches + 1 : 65535)),
                  (unsigned)threads, p);
}

extern "C" spops_status spops_cuda_patches_window(spops_context *ctx,
                                                  const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    spops_carver carver = {(char *)args->workspace, 0};
    window_params p = {};
    p.s = *s;
    p.rule = *args->window;
    p.b = *args->buckets;
    p.num_samples = (int32_t)args->buckets->max_samples;
    p.w = carve_workspace(s, &carver);
    int32_t *offsets = s->sides[SPOPS_SIDE_TARGET].offsets;
    SPOPS_TRY(
        launch(ctx, "patches: start_window", start_window, dim3(1), (unsigned)sample_threads, p));
    SPOPS_TRY(launch(ctx, "patches: count_window", count_window,
                     blocks_for(s->max_patches + 1, threads), (unsigned)threads, p));
    SPOPS_TRY(p.w.wide.scan(ctx, "patches: scan", offsets, offsets, s->max_patches + 1));
    return launch(ctx, "patches: copy_window", copy_window,
                  dim3((unsigned)(s->max_patches < 65535 ? s->max_patches : 65535)),
                  (unsigned)threads, p);
}

extern "C" spops_status spops_cuda_patches_fill(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    spops_carver carver = {(char *)args->workspace, 0};
    const fill_params p = {*s, s->same ? 1 : SPOPS_NUM_SIDES, carve_workspace(s, &carver)};
    const dim3 rows = blocks_for(spops_patch_most_rows(s) + 1, threads);
    const dim3 entries = blocks_for(most_entries(s), threads);

    if (args->whole) {
        SPOPS_TRY(
            launch(ctx, "patches: put_rows_behind", put_rows_behind, rows, (unsigned)threads, p));
    } else {
        SPOPS_TRY(launch(ctx, "patches: clear_rows", clear_rows, rows, (unsigned)threads, p));
        SPOPS_TRY(launch(ctx, "patches: find_rows", find_rows, entries, (unsigned)threads, p));
        SPOPS_TRY(launch(ctx, "patches: find_twice", find_twice, entries, (unsigned)threads, p));
        SPOPS_TRY(launch(ctx, "patches: flag_rest", flag_rest, rows, (unsigned)threads, p));
        SPOPS_TRY(p.w.wide.scan(ctx, "patches: scan", p.w.rest, spops_patch_most_rows(s) + 1));
        SPOPS_TRY(launch(ctx, "patches: put_rest", put_rest, rows, (unsigned)threads, p));
    }
    SPOPS_TRY(launch(ctx, "patches: drop_lists", drop_lists,
                     blocks_for(s->max_patches + 1, threads), (unsigned)threads, p));
    for (int side = 0; side < p.num_sides; ++side)
        SPOPS_TRY(make_tiles(ctx, s, side, p.w));
    return s->same ? SPOPS_STATUS_OK : make_key_lists(ctx, p);
}
