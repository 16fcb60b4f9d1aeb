// SPDX-License-Identifier: Apache-2.0
// Sets of coordinates on the GPU: the box of a source, and a set from its source with the index
// that finds its rows. Counts stay on the device.
//
//     by number:  keys of candidates -> table (the earliest candidate of each key) -> those are
//                 counted, and numbered in their order -> rows, index
//     by sort:    keys of candidates -> sorted (CUB, stable), which says of each candidate the earliest
//                 with its key -> those are counted, and numbered in their order -> rows; the sorted
//                 keys of rows are the index
//     by order:   keys of candidates -> sorted along the set's order (CUB, stable) -> the first of
//                 each run is counted, and numbered -> rows, index
//     as given:   rows that are known to be unique, in order and in the box -> rows, index

#include "kernels/coords/coord_index.cuh"
#include "kernels/coords/coords_source.cuh"
#include "kernels/coords/coords_tuning.h"
#include "kernels/core/device_wide.h"
#include "kernels/core/scan.cuh"

namespace
{

using spops::blocks_for;
using spops::coord_index;
using spops::hash_table;
using spops::launch;
using spops::stream_of;
using spops::WAITS_FOR_PREVIOUS;

constexpr int threads = 256;
constexpr int tile = 1024;             // candidates that a block numbers, one a thread
constexpr int max_summed_tiles = 2048; // more of them are scanned by a launch of its own
constexpr uint64_t no_duplicate = ~0ull;

// ---- Bounds -------------------------------------------------------------------------------------

struct found_bounds {
    unsigned long long bad; // item << 8 | column of the first bad item
    int32_t unordered;      // ROWS: some row is not above the one before
    int32_t lower[SPOPS_KEY_COLUMNS];
    int32_t upper[SPOPS_KEY_COLUMNS];
};

__global__ void clear_bounds(found_bounds *found)
{
    found->bad = ~0ull;
    found->unordered = 0;
    for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
        found->lower[c] = INT32_MAX;
        found->upper[c] = INT32_MIN;
    }
}

// Column c of a point's voxel, if it has one.
__device__ bool point_column(const spops_coords_source &s, int64_t i, int c, int32_t *v)
{
    if (c == 0) {
        *v = s.batch != nullptr ? s.batch[i] : 0;
        return *v >= 0;
    }
    const double u =
        spops_voxel_position(spops::source_point(s, i, c - 1), s.origin[c - 1], s.size[c - 1], 0.0);
    return spops_voxel_floor(u, v);
}

// What a thread has seen of the items.
struct item_bounds {
    int32_t lower[SPOPS_KEY_COLUMNS], upper[SPOPS_KEY_COLUMNS];
    unsigned long long bad;

    // Item i with the columns before `missing`, which it does not have; -1: it has all.
    __device__ __forceinline__ void take(const spops_coords_source &s, const spops_coords_box *box,
                                         int64_t i, const int32_t v[SPOPS_KEY_COLUMNS], int missing)
    {
        int bad_column = missing;
#pragma unroll
        for (int c = SPOPS_KEY_COLUMNS - 1; c >= 0; --c)
            if (c <= s.dims && (missing < 0 || c < missing) && box != nullptr &&
                (v[c] < box->lower[c] || v[c] > box->upper[c]))
                bad_column = c;
        if (bad_column >= 0) {
            bad = min(bad, (unsigned long long)i << 8 | (unsigned)bad_column);
            return;
        }
#pragma unroll
        for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
            if (c > s.dims) break;
            lower[c] = min(lower[c], v[c]);
            upper[c] = max(upper[c], v[c]);
        }
    }
};

constexpr int rows_at_once = 4; // that a thread has under way

// Rows of this thread, and whether each is above the one before.
template <class Row>
__device__ __forceinline__ bool rows_bounds(const spops_coords_source &s, int64_t n,
                                            const spops_coords_box *box, const Row &row_at,
                                            item_bounds *b)
{
    bool ordered = true;
    const int64_t step = (int64_t)gridDim.x * threads;
    for (int64_t first = (int64_t)blockIdx.x * threads + threadIdx.x; first < n;
         first += rows_at_once * step) {
        int32_t row[rows_at_once][SPOPS_KEY_COLUMNS], before[rows_at_once][SPOPS_KEY_COLUMNS];
#pragma unroll
        for (int k = 0; k < rows_at_once; ++k) {
            const int64_t i = first + k * step;
            if (i >= n) continue;
            row_at(i, row[k]);
            row_at(i > 0 ? i - 1 : 0, before[k]);
        }
#pragma unroll
        for (int k = 0; k < rows_at_once; ++k) {
            const int64_t i = first + k * step;
            if (i >= n) continue;
            bool above = false, equal = true;
#pragma unroll
            for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
                if (c > s.dims) break;
                above = above || (equal && row[k][c] > before[k][c]);
                equal = equal && row[k][c] == before[k][c];
            }
            ordered = ordered && (above || i == 0);
            b->take(s, box, i, row[k], row[k][0] < 0 ? 0 : -1);
        }
    }
    return ordered;
}

__device__ __forceinline__ void points_bounds(const spops_coords_source &s, int64_t n,
                                              const spops_coords_box *box, item_bounds *b)
{
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * threads) {
        int32_t v[SPOPS_KEY_COLUMNS];
        int missing = -1;
#pragma unroll
        for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c)
            if (c <= s.dims && missing < 0 && !point_column(s, i, c, &v[c])) missing = c;
        b->take(s, box, i, v, missing);
    }
}

__global__ void __launch_bounds__(threads)
    find_bounds(const __grid_constant__ spops_coords_source s,
                const __grid_constant__ spops_coords_box given, bool has_box, found_bounds *found)
{
    const int64_t n = spops::source_items(s.num_items, s.max_items);
    const spops_coords_box *box = has_box ? &given : nullptr;
    item_bounds b;
    bool ordered = false;
    b.bad = ~0ull;
#pragma unroll
    for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
        b.lower[c] = INT32_MAX;
        b.upper[c] = INT32_MIN;
    }
    if (s.kind == SPOPS_COORDS_POINTS)
        points_bounds(s, n, box, &b);
    else if (s.dims == 3 && (uintptr_t)s.rows % sizeof(int4) == 0)
        ordered = rows_bounds(
            s, n, box,
            [&](int64_t i, int32_t *v) {
                const int4 row = __ldg((const int4 *)s.rows + i);
                v[0] = row.x, v[1] = row.y, v[2] = row.z, v[3] = row.w;
            },
            &b);
    else
        ordered = rows_bounds(
            s, n, box,
            [&](int64_t i, int32_t *v) {
#pragma unroll
                for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c)
                    if (c <= s.dims) v[c] = __ldg(s.rows + i * (1 + s.dims) + c);
            },
            &b);
    if (b.bad != ~0ull) atomicMin(&found->bad, b.bad);
    if (__syncthreads_or(!ordered) && threadIdx.x == 0) found->unordered = 1;
#pragma unroll
    for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
        if (c > s.dims) break;
        const int32_t lower = spops::warp_min(b.lower[c]), upper = spops::warp_max(b.upper[c]);
        if (threadIdx.x % 32 == 0 && lower <= upper) {
            atomicMin(&found->lower[c], lower);
            atomicMax(&found->upper[c], upper);
        }
    }
}

// ---- A build ------------------------------------------------------------------------------------

// Everything a build keeps between its steps. One carving measures and places it.
struct build_workspace {
    uint64_t *keys;                // [candidates] NONE: no candidate
    unsigned long long *duplicate; // [1] candidate << 32 | earliest candidate of its key
    spops_coords_state *state;     // [1] what coords_sort counts
    int32_t *tile_counts; // [tiles] candidates that become rows; then those before the tile
    int32_t *run_counts; // [tiles] by sort: keys that begin in a tile of sorted positions; the same
    uint32_t *slots;     // [candidates] by number: of the table; by sort: row of an earliest one
    int32_t *firsts;     // [candidates] by number: earliest of its key; by order: of the rank
    hash_table table;    // of candidates; entries NULL: the set's own index serves
    // [candidates or max_rows] places along the order; by sort: keys. Then keys of a SORTED index
    // before they are sorted; and what they are of.
    uint64_t *codes[2];
    int32_t *candidates[2];
    int32_t *ranks; // [candidates] by order: of the sorted position
    spops::device_wide wide;
};

// Whether keys are sorted for the index.
bool has_sorted_index(const spops_coords_arrays *c)
{
    return c->search == SPOPS_COORDS_SEARCH_SORTED && !c->ascending;
}

// Whether the caller's rows are known to ascend, so that none comes twice.
bool rows_ascend(const spops_coords_arrays *c)
{
    return c->ascending && c->order == SPOPS_COORDS_ORDER_GIVEN;
}

// Whether equal candidates, where there may be such, are found by sorting them.
bool dedupes_by_sort(const spops_coords_arrays *c)
{
    return has_sorted_index(c) && c->order == SPOPS_COORDS_ORDER_GIVEN;
}

// Whether the set's own table has room for all candidates.
bool dedupes_in_index(const spops_coords_arrays *c, int64_t max_candidates)
{
    return c->search == SPOPS_COORDS_SEARCH_HASH && max_candidates <= c->max_rows;
}

// Bits of the sort keys: the place along the order, and above it one for "none".
int code_bits(const spops_coords_arrays *c)
{
    const spops_key_layout *l = &c->layout;
    const int bits = c->order == SPOPS_COORDS_ORDER_HILBERT
                         ? l->bits[0] + l->dims * l->max_axis_bits
                         : l->key_bits;
    return bits < 64 ? bits : 63;
}

// The most that the tiles of a source with n candidates, or the words of a grid, need.
int64_t tile_counts_of(const spops_coords_arrays *c, int64_t n)
{
    uint64_t step[SPOPS_KEY_COLUMNS];
    int64_t tiles = (n + tile - 1) / tile;
    if (c->search == SPOPS_COORDS_SEARCH_GRID) {
        const uint64_t cells = spops::grid_steps(&c->layout, step);
        const int64_t words = (int64_t)((cells / 64 + tile) / tile + 1);
        if (words > tiles) tiles = words;
    }
    return tiles;
}

build_workspace carve_workspace(const spops_coords_arrays *c, int64_t n, spops_carver *carver)
{
    build_workspace ws = {};
    ws.duplicate = (unsigned long long *)spops_carve(carver, 1, 1, sizeof *ws.duplicate);
    ws.state = (spops_coords_state *)spops_carve(carver, 1, 1, sizeof *ws.state);
    if (rows_ascend(c) && c->search == SPOPS_COORDS_SEARCH_SORTED) return ws; // as given
    ws.keys = (uint64_t *)spops_carve(carver, n, 1, sizeof *ws.keys);
    ws.tile_counts =
        (int32_t *)spops_carve(carver, tile_counts_of(c, n), 1, sizeof *ws.tile_counts);
    if (dedupes_by_sort(c))
        ws.run_counts =
            (int32_t *)spops_carve(carver, (n + tile - 1) / tile, 1, sizeof *ws.run_counts);
    ws.slots = (uint32_t *)spops_carve(carver, n, 1, sizeof *ws.slots);
    ws.firsts = (int32_t *)spops_carve(carver, n, 1, sizeof *ws.firsts);
    if (!dedupes_in_index(c, n) && !dedupes_by_sort(c) && !rows_ascend(c)) {
        void *entries = spops_carve(carver, (int64_t)spops::hash_entries(n), 1, sizeof(uint64_t));
        ws.table = spops::hash_of(entries, c->layout.key_bits, n);
    }
    const bool sorts_candidates =
        n > 0 && (c->order != SPOPS_COORDS_ORDER_GIVEN || has_sorted_index(c));
    const int64_t most = has_sorted_index(c) && c->max_rows > n ? c->max_rows : n;
    if (sorts_candidates || (has_sorted_index(c) && most > 0)) {
        for (int i = 0; i < 2; ++i) {
            ws.codes[i] = (uint64_t *)spops_carve(carver, most, 1, sizeof(uint64_t));
            ws.candidates[i] = (int32_t *)spops_carve(carver, most, 1, sizeof(int32_t));
        }
        ws.wide.needs_sort<uint64_t>(most, code_bits(c) + 1);
    }
    if (c->order != SPOPS_COORDS_ORDER_GIVEN)
        ws.ranks = (int32_t *)spops_carve(carver, n, 1, sizeof(int32_t));
    if (has_sorted_index(c) && c->max_rows > 0)
        ws.wide.needs_sort<uint64_t>(c->max_rows, c->layout.key_bits + 1);
    ws.wide.carve(carver);
    return ws;
}

// What the kernels of a build know.
struct build_params {
    spops_coords_source source;
    spops_coords_arrays coords;
    coord_index index;
    build_workspace ws;
    hash_table table;          // that finds equal candidates; entries NULL: none is needed
    const uint64_t *clear_end; // of `clear`
    uint64_t *clear;           // the index's table, the words of its grid, or its buckets
    uint64_t clear_value;
    uint64_t *clear_table_end; // of ws.table
    int64_t max_source_rows;   // that num_items counts
    int32_t per_item;          // candidates
    int32_t num_tiles;
    bool tiles_scanned; // tile_counts holds what is before a tile
    bool by_order;
    bool by_sort;
    bool as_given;   // rows are known to be unique, in order and in the box
    bool fill_table; // the kernel that makes keys enters them as well
    bool counts;     // rows, in the state, and nothing more
    bool counted;    // that was done: the state begins with it
};

__device__ __forceinline__ void fill_words(uint64_t *begin, const uint64_t *end, uint64_t value)
{
    // Tables are of 64 entries at least and aligned; a grid's words may be odd in number.
    const int64_t n = begin == nullptr ? 0 : end - begin;
    ulonglong2 *pairs = (ulonglong2 *)begin;
    const int64_t stride = (int64_t)gridDim.x * threads;
    const int64_t first = (int64_t)blockIdx.x * threads + threadIdx.x;
    for (int64_t i = first; i < n / 2; i += stride)
        pairs[i] = make_ulonglong2(value, value);
    if (first == 0 && n % 2 != 0) begin[n - 1] = value;
}

__global__ void __launch_bounds__(threads) start_build(const __grid_constant__ build_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    fill_words(p.clear, p.clear_end, p.clear_value);
    fill_words(p.ws.table.entries, p.clear_table_end, spops::hash_empty);
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    if (p.counted) {
        *p.coords.state = *p.ws.state;
        return;
    }
    const spops_coords_source &s = p.source;
    spops_coords_state state = {};
    state.duplicate = state.duplicate_of = -1;
    if (s.kind == SPOPS_COORDS_UNION)
        state.overflow = (s.num_items != nullptr && *s.num_items > s.max_items_a) ||
                         (s.num_items_b != nullptr && *s.num_items_b > s.max_items - s.max_items_a);
    else
        state.overflow = s.num_items != nullptr && *s.num_items > p.max_source_rows;
    *p.coords.state = state;
    *p.ws.duplicate = no_duplicate;
}

__device__ __forceinline__ uint64_t order_code(const spops_coords_arrays &c, uint64_t key,
                                               uint64_t none)
{
    if (key == SPOPS_KEY_NONE) return none;
    if (c.order == SPOPS_COORDS_ORDER_MORTON) return spops_key_morton(&c.layout, key);
    if (c.order == SPOPS_COORDS_ORDER_HILBERT) return spops_key_hilbert(&c.layout, key);
    return key;
}

__device__ __forceinline__ void put_candidate(const build_params &p, int64_t c, uint64_t key,
                                              uint64_t none)
{
    p.ws.keys[c] = key;
    if (p.by_order || p.by_sort) {
        p.ws.codes[0][c] = order_code(p.coords, key, none);
        p.ws.candidates[0][c] = (int32_t)c;
    } else if (p.fill_table && key != SPOPS_KEY_NONE) {
        p.ws.slots[c] = spops::hash_insert(p.table, key, (int32_t)c, nullptr);
    }
}

// Keys of candidates; where there is one an item.
__global__ void __launch_bounds__(threads)
    make_keys(const __grid_constant__ build_params p, uint64_t none)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const spops_coords_source &s = p.source;
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    int dropped = 0;
    if (i < s.max_items) {
        uint64_t key = SPOPS_KEY_NONE;
        if (spops::source_has_item(s, i) && (s.kind != SPOPS_COORDS_KEPT || s.keep[i] != 0)) {
            key = spops::source_key(s, p.coords.layout, i);
            dropped = key == SPOPS_KEY_NONE;
        }
        put_candidate(p, i, key, none);
    }
    dropped = __syncthreads_count(dropped);
    if (threadIdx.x == 0 && dropped > 0) atomicAdd(&p.coords.state->num_dropped, dropped);
}

// Keys of candidates; all taps of an item, the steps of the paper's Appendix A, in one thread.
__global__ void __launch_bounds__(threads)
    make_tap_keys(const __grid_constant__ build_params p, uint64_t none)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const spops_coords_source &s = p.source;
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= s.max_items) return;
    int64_t at = i * p.per_item;
    const int64_t end = at + p.per_item;
    if (spops::source_has_item(s, i)) {
        spops::source_candidates(s, p.coords.layout, spops::source_row(s, i), [&](uint64_t key) {
            if (at < end) put_candidate(p, at++, key, none);
        });
    }
    while (at < end)
        put_candidate(p, at++, SPOPS_KEY_NONE, none);
}

// Into a table that has to look at keys written before.
__global__ void __launch_bounds__(threads) fill_table(const __grid_constant__ build_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t c = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (c >= p.source.max_candidates) return;
    const uint64_t key = p.ws.keys[c];
    if (key != SPOPS_KEY_NONE)
        p.ws.slots[c] = spops::hash_insert(p.table, key, (int32_t)c, p.ws.keys);
}

// By sort: the earliest candidate with the key of each, and how many keys there are.
__global__ void __launch_bounds__(tile)
    mark_firsts(const __grid_constant__ build_params p, uint64_t none)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t c = (int64_t)blockIdx.x * tile + threadIdx.x;
    const uint64_t *keys = p.ws.codes[1];
    const uint64_t key = c < p.source.max_candidates ? keys[c] : none;
    const bool begins = key != none && (c == 0 || keys[c - 1] != key);
    if (key != none) {
        const int64_t first = begins ? c : spops::first_from(keys, 0, (int32_t)c, key);
        p.ws.firsts[p.ws.candidates[1][c]] = p.ws.candidates[1][first];
    }
    const int runs = __syncthreads_count(begins);
    if (threadIdx.x == 0) p.ws.run_counts[blockIdx.x] = runs;
}

// Does position c (a candidate, or a place in their order) begin a row? And is it a candidate?
__device__ __forceinline__ bool begins_row(const build_params &p, int64_t c, bool *valid)
{
    *valid = false;
    if (c >= p.source.max_candidates) return false;
    if (p.by_order) {
        const uint64_t code = p.ws.codes[1][c];
        *valid = p.ws.keys[p.ws.candidates[1][c]] != SPOPS_KEY_NONE;
        return *valid && (c == 0 || p.ws.codes[1][c - 1] != code);
    }
    *valid = p.ws.keys[c] != SPOPS_KEY_NONE;
    if (p.table.entries == nullptr && !p.by_sort) return *valid;
    return *valid && p.ws.firsts[c] == c;
}

// Rows that begin in each tile; and, by number, which candidate is the first of its key.
__global__ void __launch_bounds__(tile) count_rows(const __grid_constant__ build_params p)
{
    __shared__ int32_t first_duplicate;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t c = (int64_t)blockIdx.x * tile + threadIdx.x;
    const bool by_table = !p.by_order && p.table.entries != nullptr;
    if (threadIdx.x == 0) first_duplicate = tile;
    if (by_table && c < p.source.max_candidates && p.ws.keys[c] != SPOPS_KEY_NONE)
        p.ws.firsts[c] = spops::hash_value(p.table, p.table.entries[p.ws.slots[c]]);
    bool valid;
    const bool begins = begins_row(p, c, &valid);
    const int rows = __syncthreads_count(begins);
    const int merged = __syncthreads_count(valid && !begins);
    if (merged > 0 && (by_table || p.by_sort)) {
        if (valid && !begins) atomicMin(&first_duplicate, (int32_t)threadIdx.x);
        __syncthreads();
        if (first_duplicate == (int32_t)threadIdx.x)
            atomicMin(p.ws.duplicate, (unsigned long long)c << 32 | (uint32_t)p.ws.firsts[c]);
    }
    if (threadIdx.x != 0) return;
    p.ws.tile_counts[blockIdx.x] = rows;
    if (p.counts && rows > 0) atomicAdd(&p.coords.state->num_rows, rows);
    if (merged > 0) atomicAdd(&p.coords.state->num_merged, merged);
}

// Counts to what is before each, in one block; a thread takes several that lie together.
__global__ void __launch_bounds__(1024) scan_counts(int32_t *counts, int32_t n)
{
    constexpr int each = 8;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    for (int32_t base = 0, before = 0; base < n; base += 1024 * each) {
        const int32_t first = base + (int32_t)threadIdx.x * each;
        int32_t count[each], sum = 0, total;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            count[i] = first + i < n ? counts[first + i] : 0;
            sum += count[i];
        }
        int32_t start = before + spops::sum_before(sum, &total);
#pragma unroll
        for (int i = 0; i < each; ++i) {
            if (first + i < n) counts[first + i] = start;
            start += count[i];
        }
        before += total;
    }
}

// Of a block of `tile` threads: what the warps before this one in the whole grid have. The block sums
// the tiles before it where nobody has. All threads of the block call it.
__device__ __forceinline__ int32_t before_warp(int32_t of_warp, const int32_t *tile_counts,
                                               bool scanned)
{
    __shared__ int32_t warp_counts[tile / 32], base;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) base = scanned ? tile_counts[blockIdx.x] : 0;
    if (lane == 0) warp_counts[warp] = of_warp;
    __syncthreads();
    if (!scanned) {
        int32_t sum = 0;
        for (unsigned b = threadIdx.x; b < blockIdx.x; b += tile)
            sum += tile_counts[b];
        sum = spops::warp_sum(sum);
        if (lane == 0 && sum != 0) atomicAdd(&base, sum);
    }
    const int32_t before = spops::warp_sum(lane < warp ? warp_counts[lane] : 0);
    __syncthreads();
    return base + before;
}

// How many threads before this one have `flag` set; as before_warp.
__device__ __forceinline__ int32_t rank_of(bool flag, const int32_t *tile_counts, bool scanned)
{
    const uint32_t votes = __ballot_sync(~0u, flag);
    return before_warp(__popc(votes), tile_counts, scanned) +
           __popc(votes & ((1u << threadIdx.x % 32) - 1));
}

__device__ __forceinline__ void put_row(const build_params &p, int32_t r, uint64_t key,
                                        int64_t candidate)
{
    const spops_key_layout &layout = p.coords.layout;
    int32_t *row = p.coords.rows + (int64_t)r * (1 + layout.dims);
    if (layout.dims == 3) {
        *(int4 *)row =
            make_int4(spops_key_unpack(&layout, key, 0), spops_key_unpack(&layout, key, 1),
                      spops_key_unpack(&layout, key, 2), spops_key_unpack(&layout, key, 3));
    } else {
        for (int c = 0; c <= layout.dims; ++c)
            row[c] = spops_key_unpack(&layout, key, c);
    }
    p.coords.keys[r] = key;
    p.coords.row_item[r] = (int32_t)((uint32_t)candidate / (uint32_t)p.per_item);
}

// The rows, the places they get in the index, and the counts of the set.
__global__ void __launch_bounds__(tile) put_rows(const __grid_constant__ build_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t c = (int64_t)blockIdx.x * tile + threadIdx.x;
    bool valid;
    const bool begins = begins_row(p, c, &valid);
    const int32_t r = rank_of(begins, p.ws.tile_counts, p.tiles_scanned);
    const spops_coords_arrays &coords = p.coords;
    if (p.by_order && valid) p.ws.ranks[c] = begins ? r : r - 1;
    if (begins) {
        const int64_t candidate = p.by_order ? p.ws.candidates[1][c] : c;
        const uint64_t key = p.ws.keys[candidate];
        if (p.by_order) p.ws.firsts[r] = (int32_t)candidate;
        if (r < coords.max_rows) {
            put_row(p, r, key, candidate);
            if (coords.search == SPOPS_COORDS_SEARCH_GRID) {
                uint64_t cell = 0;
                for (int k = 0; k <= coords.layout.dims; ++k)
                    cell += (uint64_t)((int64_t)spops_key_unpack(&coords.layout, key, k) -
                                       coords.layout.lower[k]) *
                            p.index.grid.step[k];
                atomicOr((unsigned long long *)p.index.grid.words + (cell >> 6),
                         1ull << (cell & 63));
            } else if (coords.search == SPOPS_COORDS_SEARCH_HASH &&
                       p.table.entries != p.index.hash.entries) {
                // Keys come once here: none has to be compared.
                spops::hash_insert(p.index.hash, key, r, nullptr);
            }
        }
        // From now on the table says the row. Nobody else reads it in this launch.
        if (!p.by_order && p.table.entries != nullptr)
            p.table.entries[p.ws.slots[c]] =
                spops::hash_entry(p.table, spops::hash_begin(p.table, key).tag, r);
        if (p.by_sort) p.ws.slots[c] = (uint32_t)r;
    }
    // Of further appearances of a row put_item_rows says which.
    if (coords.item_row != nullptr && !p.by_order && begins == valid && c < p.source.max_candidates)
        coords.item_row[c] = valid && r < coords.max_rows ? r : -1;
    if (blockIdx.x != (unsigned)p.num_tiles - 1 || threadIdx.x != tile - 1) return;
    const int32_t found = r + (begins ? 1 : 0);
    spops_coords_state *state = coords.state;
    state->num_rows = found < coords.max_rows ? found : (int32_t)coords.max_rows;
    if (found > coords.max_rows) state->overflow = 1;
    const uint64_t duplicate = *p.ws.duplicate;
    if (p.by_order || duplicate == no_duplicate) return;
    state->duplicate = (int32_t)((duplicate >> 32) / (uint64_t)p.per_item);
    state->duplicate_of = (int32_t)((duplicate & 0xffffffffu) / (uint64_t)p.per_item);
}

// Rows that are known to be unique, in their order and in the box, with the buckets of their keys where
// these ascend.
__global__ void __launch_bounds__(threads) put_given_rows(const __grid_constant__ build_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const spops_coords_source &s = p.source;
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x, n = s.max_items;
    const int lane = threadIdx.x % 32;
    const auto key_of = [&](int64_t item) {
        return item < n ? spops_key_pack(&p.coords.layout, spops::source_row(s, item))
                        : SPOPS_KEY_NONE;
    };
    const uint64_t key = key_of(i);
    uint64_t before = __shfl_up_sync(~0u, key, 1), after = __shfl_down_sync(~0u, key, 1);
    if (i == 0) p.coords.state->num_rows = (int32_t)n;
    if (i >= n) return;
    if (p.coords.ascending) {
        if (lane == 0 && i > 0) before = key_of(i - 1);
        if (lane == 31) after = key_of(i + 1);
        spops::put_bucket(p.index.buckets, (int32_t)i, key, i > 0, before, i + 1 < n, after);
    }
    put_row(p, (int32_t)i, key, i);
    if (p.coords.item_row != nullptr) p.coords.item_row[i] = (int32_t)i;
}

// The row that each item became; by order, also the first duplicate.
__global__ void __launch_bounds__(tile) put_item_rows(const __grid_constant__ build_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t c = (int64_t)blockIdx.x * tile + threadIdx.x;
    const spops_coords_arrays &coords = p.coords;
    if (!p.by_order) {
        if (c >= p.source.max_candidates || coords.state->num_merged == 0) return;
        int32_t r = INT32_MAX;
        if (p.ws.keys[c] != SPOPS_KEY_NONE)
            r = p.by_sort ? (int32_t)p.ws.slots[p.ws.firsts[c]]
                          : spops::hash_value(p.table, p.table.entries[p.ws.slots[c]]);
        coords.item_row[c] = r < coords.max_rows ? r : -1;
        return;
    }
    bool valid;
    const bool begins = begins_row(p, c, &valid);
    const int64_t candidate = c < p.source.max_candidates ? p.ws.candidates[1][c] : 0;
    const int32_t r = valid ? p.ws.ranks[c] : INT32_MAX;
    if (coords.item_row != nullptr && c < p.source.max_candidates)
        coords.item_row[candidate] = r < coords.max_rows ? r : -1;
    unsigned long long mine = no_duplicate;
    if (valid && !begins) mine = (unsigned long long)candidate << 32 | (uint32_t)p.ws.firsts[r];
    mine = spops::warp_min(mine);
    if (threadIdx.x % 32 == 0 && mine < spops::load_relaxed((uint64_t *)p.ws.duplicate))
        atomicMin(p.ws.duplicate, mine);
}

__global__ void put_duplicate(spops_coords_state *state, const unsigned long long *duplicate,
                              int32_t per_item)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    if (*duplicate == no_duplicate) return;
    state->duplicate = (int32_t)((*duplicate >> 32) / (uint64_t)per_item);
    state->duplicate_of = (int32_t)((*duplicate & 0xffffffffu) / (uint64_t)per_item);
}

// ---- Grid and sorted indexes --------------------------------------------------------------------

__global__ void __launch_bounds__(tile)
    count_words(const __grid_constant__ spops::grid_index grid, int32_t *tile_counts)
{
    __shared__ int32_t sum;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t w = (int64_t)blockIdx.x * tile + threadIdx.x;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    const int32_t count = spops::warp_sum(w < grid.num_words ? __popcll(grid.words[w]) : 0);
    if (threadIdx.x % 32 == 0 && count > 0) atomicAdd(&sum, count);
    __syncthreads();
    if (threadIdx.x == 0) tile_counts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(tile) put_words(const __grid_constant__ spops::grid_index grid,
                                                  const int32_t *tile_counts, bool scanned)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t w = (int64_t)blockIdx.x * tile + threadIdx.x;
    const int32_t count = w < grid.num_words ? __popcll(grid.words[w]) : 0;
    const int32_t sum = spops::warp_scan(count);
    const int32_t before = before_warp(__shfl_sync(~0u, sum, 31), tile_counts, scanned);
    if (w < grid.num_words) grid.before[w] = before + sum - count;
}

__global__ void __launch_bounds__(threads) put_grid_rows(const __grid_constant__ coord_index x)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int32_t r = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (r >= *x.num_rows) return;
    const uint64_t key = x.keys[r];
    uint64_t cell = 0;
    for (int c = 0; c <= x.layout.dims; ++c)
        cell += (uint64_t)((int64_t)spops_key_unpack(&x.layout, key, c) - x.layout.lower[c]) *
                x.grid.step[c];
    const uint64_t below = ((uint64_t)1 << (cell & 63)) - 1;
    x.grid.rows[x.grid.before[cell >> 6] + __popcll(x.grid.words[cell >> 6] & below)] = r;
}

__global__ void __launch_bounds__(threads)
    prepare_sorted(const uint64_t *keys, const int32_t *num_rows, int64_t max_rows, uint64_t none,
                   uint64_t *index_keys, int32_t *index_rows)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int32_t r = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (r >= max_rows) return;
    index_keys[r] = r < *num_rows ? keys[r] : none;
    index_rows[r] = r;
}

// By sort: whether a sorted position is the first of a key whose row there is room for.
__device__ __forceinline__ bool begins_kept(const build_params &p, int64_t c, uint64_t none,
                                            uint64_t *key, int32_t *row)
{
    if (c >= p.source.max_candidates) return false;
    *key = p.ws.codes[1][c];
    if (*key == none || (c > 0 && p.ws.codes[1][c - 1] == *key)) return false;
    *row = (int32_t)p.ws.slots[p.ws.candidates[1][c]];
    return *row < p.coords.max_rows;
}

// Where all keys have rows, mark_firsts has counted them.
__global__ void __launch_bounds__(tile)
    count_kept(const __grid_constant__ build_params p, uint64_t none)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    if (p.coords.state->overflow == 0) return;
    uint64_t key;
    int32_t row;
    const int kept = __syncthreads_count(
        begins_kept(p, (int64_t)blockIdx.x * tile + threadIdx.x, none, &key, &row));
    if (threadIdx.x == 0) p.ws.run_counts[blockIdx.x] = kept;
}

// The sorted keys, and where all of them are kept also their buckets.
__global__ void __launch_bounds__(tile)
    put_kept(const __grid_constant__ build_params p, uint64_t none, bool scanned)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t c = (int64_t)blockIdx.x * tile + threadIdx.x;
    const spops::key_buckets &buckets = p.index.buckets;
    uint64_t key = none;
    int32_t row = 0;
    const bool kept = begins_kept(p, c, none, &key, &row);
    const int32_t at = rank_of(kept, p.ws.run_counts, scanned);
    if (kept) {
        p.index.sorted_keys[at] = key;
        p.index.sorted_rows[at] = row;
    }
    if (key == none || p.coords.state->overflow != 0) return;
    const uint64_t *keys = p.ws.codes[1];
    const uint64_t bucket = key >> buckets.shift;
    if (kept && (c == 0 || keys[c - 1] >> buckets.shift != bucket)) {
        buckets.ranges[bucket].x = at;
        if (c > 0) buckets.ranges[keys[c - 1] >> buckets.shift].y = at;
    }
    if (c + 1 == p.source.max_candidates || keys[c + 1] == none)
        buckets.ranges[bucket].y = at + (kept ? 1 : 0);
}

// overflow: where it is 0, they are there already; NULL: they are not.
__global__ void __launch_bounds__(threads)
    put_buckets(const __grid_constant__ coord_index x, const int32_t *overflow)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    if (overflow != nullptr && *overflow == 0) return;
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x, n = *x.num_rows;
    if (i >= n) return;
    spops::put_bucket(x.buckets, (int32_t)i, x.sorted_keys[i], i > 0,
                      i > 0 ? x.sorted_keys[i - 1] : 0, i + 1 < n,
                      i + 1 < n ? x.sorted_keys[i + 1] : 0);
}

// ---- What is asked of a set ---------------------------------------------------------------------

__global__ void __launch_bounds__(threads)
    read_batches(const int32_t *rows, const int32_t *num_rows, int32_t columns, int32_t *batches)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r < *num_rows) batches[r] = rows[r * columns];
}

// ---- Steps of a build ---------------------------------------------------------------------------

bool are_scanned(int64_t num_tiles)
{
    return num_tiles > max_summed_tiles;
}

// tile_counts of n tiles: left alone where they are few, else scanned.
spops_status scan_tiles(spops_context *ctx, int32_t *counts, int64_t n, bool *scanned)
{
    *scanned = are_scanned(n);
    if (!*scanned) return SPOPS_STATUS_OK;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "coords: scan_counts", scan_counts, dim3(1), 1024,
                                      counts, (int32_t)n);
}

// What all steps know of a set whose candidates are in ws.
build_params params_of(const spops_coords_source *source, const spops_coords_arrays &coords,
                       const build_workspace &ws)
{
    const int64_t n = source->max_candidates;
    const bool taps = source->kind == SPOPS_COORDS_DOWN || source->kind == SPOPS_COORDS_UP;
    build_params p = {};
    p.source = *source;
    p.coords = coords;
    p.index = spops::index_of(&coords);
    p.ws = ws;
    p.max_source_rows = spops_source_max_rows(source);
    p.per_item = taps && source->max_items > 0 ? (int32_t)(n / source->max_items) : 1;
    p.num_tiles = (int32_t)((n + tile - 1) / tile);
    // A matrix of one row may have any row_stride.
    if (p.source.points.rows <= 1) p.source.points.row_stride = 0;
    p.by_order = coords.order != SPOPS_COORDS_ORDER_GIVEN && !source->ordered && n > 0;
    // What was counted by a table stays so.
    p.by_sort =
        dedupes_by_sort(&coords) && p.ws.table.entries == nullptr && !source->unique && n > 0;
    if (!p.by_order && !p.by_sort && !source->unique)
        p.table = p.ws.table.entries != nullptr ? p.ws.table : p.index.hash;
    if (p.table.entries == nullptr || p.table.entries == p.index.hash.entries)
        p.ws.table.entries = nullptr; // not to be cleared
    p.fill_table = p.table.entries != nullptr && p.table.exact;
    p.as_given = coords.search == SPOPS_COORDS_SEARCH_SORTED && source->kind == SPOPS_COORDS_ROWS &&
                 source->unique && source->num_items == nullptr && !p.by_order &&
                 n <= coords.max_rows;
    return p;
}

// What is counted in or entered into is empty; but what was counted stays.
spops_status start(spops_context *ctx, build_params p)
{
    if (p.coords.search == SPOPS_COORDS_SEARCH_HASH) {
        p.clear = p.index.hash.entries;
        p.clear_end = p.clear + (uint64_t)p.index.hash.mask + 1;
        p.clear_value = spops::hash_empty;
    } else if (p.coords.search == SPOPS_COORDS_SEARCH_GRID) {
        p.clear = p.index.grid.words;
        p.clear_end = p.clear + p.index.grid.num_words;
    } else if (p.coords.search == SPOPS_COORDS_SEARCH_SORTED) {
        p.clear = (uint64_t *)p.index.buckets.ranges;
        p.clear_end = p.clear + p.index.buckets.num;
    }
    if (p.counted) p.ws.table.entries = nullptr;
    if (p.ws.table.entries != nullptr)
        p.clear_table_end = p.ws.table.entries + (uint64_t)p.ws.table.mask + 1;
    const int64_t blocks = 4 * (int64_t)ctx->info.num_processors;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "coords: start_build", start_build,
                                      dim3((unsigned)blocks), threads, p);
}

// Which candidates begin rows, and how many do before each tile.
spops_status find_rows(spops_context *ctx, build_params *p)
{
    const spops_coords_source &source = p->source;
    const int64_t n = source.max_candidates;
    const uint64_t none = (uint64_t)1 << code_bits(&p->coords);

    SPOPS_TRY(start(ctx, *p));
    if (n == 0) return SPOPS_STATUS_OK;
    const bool taps = source.kind == SPOPS_COORDS_DOWN || source.kind == SPOPS_COORDS_UP;
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: make_keys", taps ? make_tap_keys : make_keys,
                                         blocks_for(source.max_items, threads), threads, *p, none));
    if (p->table.entries != nullptr && !p->fill_table)
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: fill_table", fill_table,
                                             blocks_for(n, threads), threads, *p));
    if (p->by_order || p->by_sort)
        SPOPS_TRY(p->ws.wide.sort(ctx, "coords: sort of candidates", p->ws.codes[0], p->ws.codes[1],
                                  p->ws.candidates[0], p->ws.candidates[1], n,
                                  code_bits(&p->coords) + 1));
    if (p->by_sort)
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: mark_firsts", mark_firsts,
                                             dim3((unsigned)p->num_tiles), tile, *p, none));
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: count_rows", count_rows,
                                         dim3((unsigned)p->num_tiles), tile, *p));
    return scan_tiles(ctx, p->ws.tile_counts, p->num_tiles, &p->tiles_scanned);
}

// The rows that were found, and what each item became.
spops_status put_set(spops_context *ctx, const build_params &p)
{
    const dim3 tiles((unsigned)p.num_tiles);
    if (p.num_tiles == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_rows", put_rows, tiles, tile, p));
    if (p.by_order || (p.coords.item_row != nullptr && (p.table.entries != nullptr || p.by_sort)))
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_item_rows", put_item_rows, tiles,
                                             tile, p));
    if (!p.by_order) return SPOPS_STATUS_OK;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_duplicate", put_duplicate, dim3(1), 1u,
                                      p.coords.state, p.ws.duplicate, p.per_item);
}

spops_status build_grid(spops_context *ctx, const build_params &p)
{
    const int64_t tiles = (p.index.grid.num_words + tile - 1) / tile;
    bool scanned;
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: count_words", count_words,
                                         dim3((unsigned)tiles), tile, p.index.grid,
                                         p.ws.tile_counts));
    SPOPS_TRY(scan_tiles(ctx, p.ws.tile_counts, tiles, &scanned));
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_words", put_words, dim3((unsigned)tiles),
                                         tile, p.index.grid, p.ws.tile_counts, scanned));
    return launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_grid_rows", put_grid_rows,
                                      blocks_for(p.coords.max_rows, threads), threads, p.index);
}

// The sorted keys of rows, from those of candidates or by a sort of their own.
spops_status sort_keys(spops_context *ctx, const build_params &p)
{
    const spops_coords_arrays &c = p.coords;
    const uint64_t none = (uint64_t)1 << c.layout.key_bits;
    if (p.by_sort) {
        bool scanned;
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: count_kept", count_kept,
                                             dim3((unsigned)p.num_tiles), tile, p, none));
        SPOPS_TRY(scan_tiles(ctx, p.ws.run_counts, p.num_tiles, &scanned));
        return launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_kept", put_kept,
                                          dim3((unsigned)p.num_tiles), tile, p, none, scanned);
    }
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(
        ctx, "coords: prepare_sorted", prepare_sorted, blocks_for(c.max_rows, threads), threads,
        c.keys, &c.state->num_rows, c.max_rows, none, p.ws.codes[0], p.ws.candidates[0]));
    return p.ws.wide.sort(ctx, "coords: sort of keys", p.ws.codes[0], p.index.sorted_keys,
                          p.ws.candidates[0], p.index.sorted_rows, c.max_rows,
                          c.layout.key_bits + 1);
}

spops_status build_index(spops_context *ctx, const build_params &p)
{
    const spops_coords_arrays &c = p.coords;
    if (c.max_rows == 0) return SPOPS_STATUS_OK;
    if (c.search == SPOPS_COORDS_SEARCH_GRID) return build_grid(ctx, p);
    if (c.search != SPOPS_COORDS_SEARCH_SORTED || (p.as_given && c.ascending))
        return SPOPS_STATUS_OK;
    if (has_sorted_index(&c)) SPOPS_TRY(sort_keys(ctx, p));
    return launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_buckets", put_buckets,
                                      blocks_for(c.max_rows, threads), threads, p.index,
                                      p.by_sort ? &c.state->overflow : nullptr);
}

} // namespace

// ---- Slots --------------------------------------------------------------------------------------

extern "C" int32_t spops_cuda_coords_search(const spops_context *ctx,
                                            const spops_coords_search_args *args)
{
    const spops_key_layout *layout = args->layout;
    const int64_t max_rows = args->max_rows;
    coord_index x;
    spops_carver c = {nullptr, 0};
    double cells = 1.0;
    for (int k = 0; k <= layout->dims; ++k)
        cells *= (double)layout->upper[k] - (double)layout->lower[k] + 1.0;
    const spops_coords_search search =
        spops_search_choice(ctx->info.compute_capability, cells, max_rows);
    if (search == SPOPS_COORDS_SEARCH_GRID &&
        (!spops::carve_index(layout, search, max_rows, false, &c, &x) ||
         c.used > args->max_grid_bytes))
        return SPOPS_COORDS_SEARCH_HASH;
    return search;
}

extern "C" size_t spops_cuda_coords_index_bytes(spops_context *ctx,
                                                const spops_coords_arrays *coords)
{
    (void)ctx;
    spops_carver c = {nullptr, 0};
    coord_index x;
    return spops::carve_index(&coords->layout, coords->search, coords->max_rows, coords->ascending,
                              &c, &x)
               ? c.used
               : SIZE_MAX;
}

extern "C" spops_status spops_cuda_coords_bounds(spops_context *ctx,
                                                 const spops_coords_bounds_args *args)
{
    const spops_coords_source *source = args->source;
    const spops_coords_box *box = args->box;
    spops_coords_bounds *bounds = args->bounds;
    spops_status status = SPOPS_STATUS_OK;
    const spops_coords_box none = {};
    const int64_t blocks = (source->max_items + threads - 1) / threads;
    found_bounds found;
    int32_t num_items = 0;
    void *device = nullptr;

    SPOPS_TRY(spops_backend_alloc(ctx, sizeof found, &device));
    SPOPS_TRY_GOTO(
        launch(ctx, "coords: clear_bounds", clear_bounds, dim3(1), 1u, (found_bounds *)device),
        status, done);
    SPOPS_TRY_GOTO(launch(ctx, "coords: find_bounds", find_bounds,
                          dim3((unsigned)(blocks < 1024 ? blocks : 1024)), threads, *source,
                          box != nullptr ? *box : none, box != nullptr, (found_bounds *)device),
                   status, done);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &found, device, sizeof found), status, done);
    bounds->num_items = source->max_items;
    if (source->num_items != nullptr) {
        SPOPS_TRY_GOTO(ctx->backend->download(ctx, &num_items, source->num_items, sizeof num_items),
                       status, done);
        if (num_items < source->max_items) bounds->num_items = num_items < 0 ? 0 : num_items;
    }
    for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
        bounds->lower[c] = c <= source->dims ? found.lower[c] : 0;
        bounds->upper[c] = c <= source->dims ? found.upper[c] : 0;
    }
    bounds->ascending = found.unordered == 0;
    bounds->bad_item = found.bad == ~0ull ? -1 : (int64_t)(found.bad >> 8);
    bounds->bad_column = found.bad == ~0ull ? 0 : (int32_t)(found.bad & 0xff);

done:
    spops_backend_free(ctx, device, sizeof found);
    return status;
}

extern "C" size_t spops_cuda_coords_workspace_bytes(spops_context *ctx,
                                                    const spops_coords_workspace_args *args)
{
    (void)ctx;
    spops_carver c = {nullptr, 0};
    if (args->max_candidates > INT32_MAX) return SIZE_MAX; // their numbers are 32-bit
    carve_workspace(args->coords, args->max_candidates, &c);
    return c.used;
}

extern "C" spops_status spops_cuda_coords_sort(spops_context *ctx,
                                               const spops_coords_build_args *args)
{
    spops_coords_arrays counted = *args->coords;
    spops_carver carver = {(char *)args->workspace, 0};
    const build_workspace ws = carve_workspace(&counted, args->source->max_candidates, &carver);
    counted.state = ws.state;
    build_params p = params_of(args->source, counted, ws);
    p.counts = true;
    SPOPS_TRY(find_rows(ctx, &p));
    return ctx->backend->download(ctx, args->coords->state, ws.state, sizeof *ws.state);
}

// The rows of a set that was counted. Workspace is as it was then: of a set without an index, which has its
// own here.
static spops_status build_counted(spops_context *ctx, const spops_coords_build_args *args)
{
    const spops_coords_arrays *coords = args->coords;
    const int64_t n = args->source->max_candidates;
    spops_coords_arrays counted = *coords;
    spops_carver carver = {(char *)args->workspace, 0}, measured = {nullptr, 0};
    spops_status status = SPOPS_STATUS_OK;
    void *block = nullptr;

    counted.search = SPOPS_COORDS_SEARCH_AUTO;
    counted.max_rows = n;
    build_params p = params_of(args->source, *coords, carve_workspace(&counted, n, &carver));
    if (coords->search != SPOPS_COORDS_SEARCH_HASH) (void)carve_workspace(coords, 0, &measured);
    SPOPS_TRY(spops_backend_alloc(ctx, measured.used, &block));
    p.counted = true;
    p.tiles_scanned = are_scanned(p.num_tiles);
    SPOPS_TRY_GOTO(start(ctx, p), status, done);
    SPOPS_TRY_GOTO(put_set(ctx, p), status, done);
    carver = {(char *)block, 0};
    p.ws = carve_workspace(coords, 0, &carver); // of which a table of rows needs nothing
    SPOPS_TRY_GOTO(build_index(ctx, p), status, done);
    status = ctx->backend->wait(ctx);

done:
    spops_backend_free(ctx, block, measured.used);
    return status;
}

extern "C" spops_status spops_cuda_coords_build(spops_context *ctx,
                                                const spops_coords_build_args *args)
{
    const spops_coords_arrays *coords = args->coords;
    spops_carver carver = {(char *)args->workspace, 0};
    if (args->sorted) return build_counted(ctx, args);
    build_params p = params_of(args->source, *coords,
                               carve_workspace(coords, args->source->max_candidates, &carver));
    if (p.as_given) {
        SPOPS_TRY(start(ctx, p));
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "coords: put_given_rows", put_given_rows,
                                             blocks_for(p.source.max_items, threads), threads, p));
    } else {
        SPOPS_TRY(find_rows(ctx, &p));
        SPOPS_TRY(put_set(ctx, p));
    }
    return build_index(ctx, p);
}

extern "C" spops_status spops_cuda_coords_batches(spops_context *ctx,
                                                  const spops_coords_batches_args *args)
{
    const spops_coords_arrays *coords = args->coords;
    return launch<WAITS_FOR_PREVIOUS>(
        ctx, "coords: read_batches", read_batches, blocks_for(coords->max_rows, threads), threads,
        coords->rows, &coords->state->num_rows, coords->layout.dims + 1, args->batches);
}
