// SPDX-License-Identifier: Apache-2.0
// Levels of a pyramid whose windows lie beside each other (size = stride, dilation 1) and whose rows lie
// as given: a row has one cell in each coarser level, which follows from the row itself, so that all
// levels are made from the finest at once.
//
//     start_levels:   tables and counts are empty
//     enter_cells:    a thread a finest row: its cell in each level gets the earliest row in it
//     count_leaders:  which levels a row is the earliest of its cell in; counted by tile
//     put_levels:     those are numbered in their order: rows, index, empty lines of the maps down
//     link_levels:    the cell of each row of each level is its coarser row: tables down and up
//
// Maps within levels follow from that within a coarse one, the source: a neighbour of a row lies in a
// neighbour of the row's cell there, and is found by the maps down from that.
//
//     follow_within:  a warp a row, a lane a tap; first of the source, by its index, then of all others
#include "kernels/coords/coord_index.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/maps/row_sort.cuh"
#include "maps/map_arrays.h"

namespace
{

using spops::blocks_for;
using spops::coord_index;
using spops::hash_table;
using spops::launch;
using spops::WAITS_FOR_PREVIOUS;

constexpr int threads = 256;
constexpr int tile = 1024; // rows that a block numbers, one a thread
constexpr int most_coarser = SPOPS_NEST_LEVELS - 1;
constexpr int most_taps = SPOPS_NEST_TAPS;

// A coarser level, and the map to it from the level before.
struct level_params {
    spops_key_layout layout;
    int32_t stride[SPOPS_MAX_DIMS], padding[SPOPS_MAX_DIMS];
    int32_t shift[SPOPS_MAX_DIMS]; // the logarithm of stride; -1: it has none
    hash_table cells;              // the earliest finest row of a cell; then the cell's number
    hash_table index;              // the set's own
    spops_coords_state *state;
    int32_t *rows;
    uint64_t *keys;
    int32_t *row_item;
    int64_t max_rows;
    int32_t *table, *fine_table; // the latter NULL where it is not wanted
    uint32_t *masks, *fine_masks;
    int32_t *tap_counts;
    spops_map_state *map_state;
    int32_t table_stride, mask_words;
    uint32_t *slots;      // [finest rows] of cells
    int32_t *tile_counts; // [tiles] cells whose earliest row lies in the tile
    // [rows of the level before] its cell's row in the source's level, -1: it has none; and its place in
    // the cell, 8 bits an axis. NULL where no map follows.
    int2 *links;
};

struct nest_params {
    level_params level[most_coarser];
    int32_t num_coarser, dims;
    int32_t source;   // level of the map that others follow from; 0: none
    int64_t max_rows; // finest
    const int32_t *rows, *num_rows;
    uint8_t *leads; // [finest rows] levels that the row leads: it is the earliest of its cell there
    int32_t *found; // [num_coarser] rows, also past the capacity
    int32_t num_tiles;
};

static_assert(sizeof(nest_params) <= 4096, "parameters of a kernel");

// ---- Empty --------------------------------------------------------------------------------------

struct start_params {
    ulonglong2 *tables[2 * most_coarser];
    int64_t num_pairs[2 * most_coarser]; // of entries
    int32_t *tap_counts[2 * most_coarser + 1];
    int32_t num_taps[2 * most_coarser + 1];
    spops_map_state *states[2 * most_coarser + 1];
    int32_t *found;
    int32_t num_tables, num_maps, num_coarser;
};

__global__ void __launch_bounds__(threads) start_levels(const __grid_constant__ start_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t first = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int64_t stride = (int64_t)gridDim.x * threads;
    for (int t = 0; t < p.num_tables; ++t)
        for (int64_t i = first; i < p.num_pairs[t]; i += stride)
            p.tables[t][i] = make_ulonglong2(spops::hash_empty, spops::hash_empty);
    for (int m = (int)blockIdx.x; m < p.num_maps; m += (int)gridDim.x) {
        for (int32_t k = (int32_t)threadIdx.x; k < p.num_taps[m]; k += threads)
            p.tap_counts[m][k] = 0;
        if (threadIdx.x == 0) p.states[m]->num_pairs = 0;
    }
    if (first < p.num_coarser) p.found[first] = INT32_MAX;
}

// ---- Cells --------------------------------------------------------------------------------------

struct cell {
    int32_t v[SPOPS_KEY_COLUMNS]; // batch and axes
};

__device__ __forceinline__ cell finest_cell(const nest_params &p, int64_t i)
{
    cell c = {};
    if (p.dims == 3) {
        const int4 row = __ldg((const int4 *)p.rows + i);
        c.v[0] = row.x, c.v[1] = row.y, c.v[2] = row.z, c.v[3] = row.w;
        return c;
    }
#pragma unroll
    for (int k = 0; k < SPOPS_KEY_COLUMNS; ++k)
        if (k <= p.dims) c.v[k] = __ldg(p.rows + i * (1 + p.dims) + k);
    return c;
}

// The cell of the next level that c lies in. Returns the tap of c in it; *place has it by axes, 8 bits each.
__device__ __forceinline__ int32_t go_up(const level_params &l, int dims, cell *c, uint32_t *place)
{
    int32_t tap = 0;
    *place = 0;
#pragma unroll
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        if (a >= dims) break;
        const int64_t u = (int64_t)c->v[a + 1] + l.padding[a];
        int64_t q;
        if (l.shift[a] >= 0) {
            q = u >> l.shift[a];
        } else {
            q = u / l.stride[a];
            if (q * l.stride[a] > u) --q;
        }
        const uint32_t t = (uint32_t)(u - q * l.stride[a]);
        tap = tap * l.stride[a] + (int32_t)t;
        *place |= t << 8 * a;
        c->v[a + 1] = (int32_t)q;
    }
    return tap;
}

// The cell of finest row i in level m + 1.
__device__ __forceinline__ cell cell_of(const nest_params &p, int64_t i, int m)
{
    cell c = finest_cell(p, i);
    uint32_t place;
    for (int l = 0; l <= m; ++l)
        (void)go_up(p.level[l], p.dims, &c, &place);
    return c;
}

__device__ __forceinline__ uint64_t key_of(const level_params &l, int dims, const cell &c)
{
    uint64_t key = 0;
#pragma unroll
    for (int k = 0; k < SPOPS_KEY_COLUMNS; ++k)
        if (k <= dims) key |= spops_key_column(&l.layout, k, c.v[k]);
    return key;
}

// A row of blocks a level. Rows beside each other in a cell enter it once.
__global__ void __launch_bounds__(threads) enter_cells(const __grid_constant__ nest_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int lane = threadIdx.x % 32;
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int32_t n = *p.num_rows;
    const bool used = i < n;
    if ((int64_t)blockIdx.x * threads >= n) return;
    const int m = (int)blockIdx.y;
    const level_params &l = p.level[m];
    const cell c = cell_of(p, used ? i : 0, m);
    const uint64_t key = used ? key_of(l, p.dims, c) : SPOPS_KEY_NONE;
    const uint64_t before = __shfl_up_sync(~0u, key, 1);
    const bool begins = lane == 0 || before != key;
    const uint32_t heads = __ballot_sync(~0u, begins);
    uint32_t slot = 0;
    if (used && begins) slot = spops::hash_insert(l.cells, key, (int32_t)i, nullptr);
    slot = __shfl_sync(~0u, slot, 31 - __clz((int)(heads & (~0u >> (31 - lane)))));
    if (used) l.slots[i] = slot;
}

// Whoever leads a level leads all finer ones.
__global__ void __launch_bounds__(tile) count_leaders(const __grid_constant__ nest_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t i = (int64_t)blockIdx.x * tile + threadIdx.x;
    const bool used = i < *p.num_rows;
    uint32_t slot[most_coarser];
    int lead = 0;
#pragma unroll
    for (int m = 0; m < most_coarser; ++m)
        slot[m] = used && m < p.num_coarser ? p.level[m].slots[i] : 0;
#pragma unroll
    for (int m = 0; m < most_coarser; ++m) {
        if (!used || m >= p.num_coarser) continue;
        const hash_table &cells = p.level[m].cells;
        if (spops::hash_value(cells, cells.entries[slot[m]]) == i) lead = m + 1;
    }
    if (used) p.leads[i] = (uint8_t)lead;
    for (int m = 0; m < p.num_coarser; ++m) {
        const int count = __syncthreads_count(lead > m);
        if (threadIdx.x == 0) p.level[m].tile_counts[blockIdx.x] = count;
    }
}

// ---- Rows ---------------------------------------------------------------------------------------

// Row r of a level, which finer row `item` begins, with nothing in its line of the map down.
__device__ __forceinline__ void put_row(const level_params &l, int dims, const cell &c,
                                        uint64_t key, int32_t r, int32_t item)
{
    int32_t *row = l.rows + (int64_t)r * (1 + dims);
    if (dims == 3) {
        *(int4 *)row = make_int4(c.v[0], c.v[1], c.v[2], c.v[3]);
    } else {
#pragma unroll
        for (int k = 0; k < SPOPS_KEY_COLUMNS; ++k)
            if (k <= dims) row[k] = c.v[k];
    }
    l.keys[r] = key;
    l.row_item[r] = item;
    spops::hash_insert(l.index, key, r, nullptr); // keys come once here: none has to be compared
    int4 *line = (int4 *)(l.table + (int64_t)r * l.table_stride);
    for (int32_t q = 0; q < l.table_stride / 4; ++q)
        line[q] = make_int4(-1, -1, -1, -1);
    for (int32_t w = 0; w < l.mask_words; ++w)
        l.masks[(int64_t)r * l.mask_words + w] = 0;
}

// A row of blocks a level. Where a level has more rows than fit, what follows from the first of those
// that do not is dropped in all coarser levels: leaders of a cell are kept up to a number of the finest
// row, in each level.
__global__ void __launch_bounds__(tile) put_levels(const __grid_constant__ nest_params p)
{
    __shared__ int32_t warp_before[most_coarser][tile / 32];
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t i = (int64_t)blockIdx.x * tile + threadIdx.x;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = (int)blockIdx.y;
    const bool used = i < *p.num_rows;
    const int lead = used ? p.leads[i] : 0;
    for (int m = 0; m <= own; ++m) {
        const uint32_t votes = __ballot_sync(~0u, lead > m);
        if (lane == 0) warp_before[m][warp] = __popc(votes);
    }
    __syncthreads();
    if (warp <= own) {
        int32_t base = 0;
        for (unsigned b = lane; b < blockIdx.x; b += 32)
            base += p.level[warp].tile_counts[b];
        base = spops::warp_sum(base);
        const int32_t count = warp_before[warp][lane];
        const int32_t sum = base + spops::warp_scan(count);
        warp_before[warp][lane] = sum - count;
        if (warp == own && blockIdx.x == (unsigned)p.num_tiles - 1 && lane == 31)
            atomicMin(p.found + own, sum);
    }
    __syncthreads();
    int32_t item = (int32_t)i, number = item; // in the level before, in this one
    bool kept = used, ends = false;
    for (int m = 0; m <= own; ++m) {
        const uint32_t votes = __ballot_sync(~0u, lead > m);
        item = number;
        number = warp_before[m][warp] + __popc(votes & ((1u << lane) - 1));
        if (m == own) break;
        kept = kept && lead > m && number < p.level[m].max_rows;
        ends = ends || (lead > m && number == p.level[m].max_rows);
    }
    const level_params &l = p.level[own];
    if (ends) atomicMin(p.found + own, number);
    if (!kept || lead <= own) return;
    const cell c = cell_of(p, i, own);
    const uint64_t key = key_of(l, p.dims, c);
    // From now on the table says the row. Nobody else reads it in this launch.
    l.cells.entries[l.slots[i]] = spops::hash_entry(l.cells, key, number);
    if (number < l.max_rows) put_row(l, p.dims, c, key, number, item);
}

// ---- Links --------------------------------------------------------------------------------------

// Row r of the level before, which is tap `tap` of coarser row `parent`; -1: that was dropped.
__device__ __forceinline__ void put_link(const level_params &l, int32_t r, int32_t parent,
                                         int32_t tap)
{
    if (parent >= 0) {
        l.table[(int64_t)parent * l.table_stride + tap] = r;
        atomicOr(l.masks + (int64_t)parent * l.mask_words + tap / 32, 1u << tap % 32);
    }
    if (l.fine_table == nullptr) return;
    int4 *line = (int4 *)(l.fine_table + (int64_t)r * l.table_stride);
    for (int32_t q = 0; q < l.table_stride / 4; ++q) {
        const int32_t t = tap - 4 * q;
        line[q] = make_int4(t == 0 ? parent : -1, t == 1 ? parent : -1, t == 2 ? parent : -1,
                            t == 3 ? parent : -1);
    }
    for (int32_t w = 0; w < l.mask_words; ++w)
        l.fine_masks[(int64_t)r * l.mask_words + w] =
            parent >= 0 && tap / 32 == w ? 1u << tap % 32 : 0u;
}

// The counts of level m and of the map to it.
__device__ __forceinline__ void put_states(const nest_params &p, int m)
{
    const level_params &l = p.level[m];
    const int32_t found = p.found[m], items = *p.num_rows;
    const int64_t before =
        m == 0 ? (int64_t)items : min((int64_t)p.found[m - 1], p.level[m - 1].max_rows);
    spops_coords_state state = {};
    state.num_rows = (int32_t)min((int64_t)found, l.max_rows);
    state.num_merged = (int32_t)(before - found);
    state.overflow = found > l.max_rows;
    state.duplicate = state.duplicate_of = -1;
    *l.state = state;
    l.map_state->num_out = state.num_rows;
    l.map_state->num_in = (int32_t)before;
    l.map_state->overflow = 0;
    l.map_state->reserved = 0;
}

// Whether the row that finest row i leads in level `level` is there: none of its cells was dropped.
__device__ __forceinline__ bool is_kept(const nest_params &p, int64_t i, int level)
{
    for (int m = 0; m < level; ++m) {
        const level_params &l = p.level[m];
        if (p.found[m] > l.max_rows &&
            spops::hash_value(l.cells, l.cells.entries[l.slots[i]]) >= l.max_rows)
            return false;
    }
    return true;
}

// The cell of finest row i in level m + 1: its row there.
__device__ __forceinline__ int32_t row_of(const nest_params &p, int64_t i, int m)
{
    const level_params &l = p.level[m];
    return spops::hash_value(l.cells, l.cells.entries[l.slots[i]]);
}

// Row `item` of level m, whose cell is c: its cell in the source's level.
__device__ __forceinline__ void put_source(const nest_params &p, int64_t i, int m, cell c,
                                           int32_t item)
{
    const int32_t source = row_of(p, i, p.source - 1);
    uint32_t places = 0, steps[SPOPS_MAX_DIMS] = {1, 1, 1, 1};
    for (int l = m; l < p.source; ++l) {
        uint32_t place;
        (void)go_up(p.level[l], p.dims, &c, &place);
#pragma unroll
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
            places += (place >> 8 * a & 0xff) * steps[a] << 8 * a;
            steps[a] *= (uint32_t)p.level[l].stride[a];
        }
    }
    const bool fits = source < p.level[p.source - 1].max_rows;
    p.level[m].links[item] = make_int2(fits ? source : -1, (int32_t)places);
}

// A row of blocks a level: its rows, to the next one.
__global__ void __launch_bounds__(threads) link_levels(const __grid_constant__ nest_params p)
{
    __shared__ int32_t counts[most_taps];
    const int lane = threadIdx.x % 32, m = (int)blockIdx.y;
    const level_params &l = p.level[m];
    if (threadIdx.x < most_taps) counts[threadIdx.x] = 0;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    if (blockIdx.x == 0 && threadIdx.x == 0) put_states(p, m);
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int32_t n = *p.num_rows;
    if ((int64_t)blockIdx.x * threads >= n) return;
    __syncthreads();
    uint32_t tap = ~0u;
    if (i < n && p.leads[i] >= m && is_kept(p, i, m)) {
        const int32_t item = m == 0 ? (int32_t)i : row_of(p, i, m - 1);
        const int32_t parent = row_of(p, i, m);
        cell c = m == 0 ? finest_cell(p, i) : cell_of(p, i, m - 1);
        if (l.links != nullptr) put_source(p, i, m, c, item);
        uint32_t place;
        const int32_t t = go_up(l, p.dims, &c, &place);
        put_link(l, item, parent < l.max_rows ? parent : -1, t);
        if (parent < l.max_rows) tap = (uint32_t)t;
    }
    const uint32_t lanes = spops::equal_lanes(tap);
    if (tap != ~0u && (lanes & ((1u << lane) - 1)) == 0) atomicAdd(&counts[tap], __popc(lanes));
    __syncthreads();
    if (threadIdx.x >= 32) return;
    unsigned long long sum = 0;
    for (int k = lane; k < most_taps; k += 32) {
        if (counts[k] == 0) continue;
        atomicAdd(l.tap_counts + k, counts[k]);
        sum += (unsigned)counts[k];
    }
    sum = spops::warp_sum(sum);
    if (lane == 0 && sum > 0) atomicAdd((unsigned long long *)&l.map_state->num_pairs, sum);
}

// ---- Maps within --------------------------------------------------------------------------------

// A level with a map within.
struct within_level {
    coord_index index;
    spops_taps taps;
    const int32_t *rows, *num_rows;
    const int2 *links;
    int32_t *table;
    uint32_t *masks;
    int32_t *tap_counts;
    spops_map_state *state;
    int32_t table_stride, mask_words, level, num_children; // of a cell of the next level
};

// Levels of one launch, each with blocks of its own.
struct within_params {
    within_level job[most_coarser];
    int32_t first_block[most_coarser + 1]; // of a job; [num]: of all
    int32_t num, source;
    spops_taps coarse; // of the source
    const int32_t *coarse_table;
    int32_t coarse_stride;
    // Of the maps down, by their finer level, as the stride of their windows.
    int32_t down_stride[most_coarser];
    const int32_t *down_table[most_coarser];
    const int32_t *overflow[most_coarser]; // not 0: rows of the coarser level are missing
    uint8_t stride[most_coarser][SPOPS_MAX_DIMS];
};

static_assert(sizeof(within_params) <= 4096, "parameters of a kernel");

constexpr int follow_threads = 512, follow_warps = follow_threads / 32;
constexpr int rows_at_once = 4; // of a warp
constexpr int place_bits = 6, cell_shift = place_bits * most_coarser;
static_assert(most_taps <= 1 << place_bits, "a place in a cell of each level, then a tap");

// What a position along axis a, from the lowest that a neighbour has in the row's cell on, adds to a
// way: the tap of the cell, above the taps of the maps down that lead from there to the neighbour.
__device__ __forceinline__ uint64_t step_of(const within_params &p, const within_level &l, int a,
                                            int32_t position)
{
    int32_t extent = 1, cell_step = 1;
    for (int m = l.level; m < p.source; ++m)
        extent *= p.stride[m][a];
    const int32_t u = position - l.taps.padding[a];
    const int32_t q = u >= 0 ? u / extent : -((extent - 1 - u) / extent);
    int32_t rest = u - q * extent;
    for (int b = a + 1; b < p.coarse.dims; ++b)
        cell_step *= p.coarse.size[b];
    const int32_t at = (q + p.coarse.padding[a]) / p.coarse.dilation[a];
    uint64_t way = (uint64_t)(at * cell_step) << cell_shift;
    for (int m = p.source - 1; m >= l.level; --m) {
        uint32_t step = 1;
        for (int b = a + 1; b < p.coarse.dims; ++b)
            step *= p.stride[m][b];
        extent /= p.stride[m][a];
        way += (uint64_t)(step * (uint32_t)(rest / extent)) << place_bits * m;
        rest %= extent;
    }
    return way;
}

// Positions along axis a.
__host__ __device__ inline int32_t num_steps(const within_params &p, const within_level &l, int a)
{
    int32_t extent = 1;
    for (int m = l.level; m < p.source; ++m)
        extent *= p.stride[m][a];
    return extent + l.taps.dilation[a] * (l.taps.size[a] - 1);
}

template <class Finder>
__device__ __forceinline__ int32_t find_tap_by(const within_level &l, int32_t r, int32_t k)
{
    const int32_t *row = l.rows + (int64_t)r * (1 + l.taps.dims);
    uint64_t code = Finder::part(l.index, 0, row[0]);
    for (int a = l.taps.dims - 1; a >= 0; --a) {
        const int64_t v = spops_tap_fine(&l.taps, a, row[a + 1], k % l.taps.size[a]);
        if (!spops_key_fits(&l.index.layout, a + 1, v)) return -1;
        code += Finder::part(l.index, a + 1, v);
        k /= l.taps.size[a];
    }
    return Finder::finish(l.index, code, Finder::begin(l.index, code));
}

// The row at tap k of row r, by the level's own index.
__device__ __noinline__ int32_t find_tap(const within_level &l, int32_t r, int32_t k)
{
    if (l.index.search == SPOPS_COORDS_SEARCH_HASH) return find_tap_by<spops::hash_finder>(l, r, k);
    if (l.index.search == SPOPS_COORDS_SEARCH_GRID) return find_tap_by<spops::grid_finder>(l, r, k);
    return find_tap_by<spops::sorted_finder>(l, r, k);
}

// Row r has j at this lane's tap k, in word w. Returns whether that is a row.
__device__ __forceinline__ int32_t put_tap(const within_level &l, int64_t r, int32_t w, int32_t k,
                                           int32_t j)
{
    if (k < l.table_stride) l.table[r * l.table_stride + k] = j;
    const uint32_t mask = __ballot_sync(~0u, j >= 0);
    if (threadIdx.x % 32 == 0) l.masks[r * l.mask_words + w] = mask;
    return j >= 0;
}

// Rows `first` to first + rows_at_once - 1 of those before n, taps of one word; steps[a] are those of
// the lane's tap along axis a. Returns how many of the rows have the tap.
__device__ __forceinline__ int32_t follow_rows(const within_params &p, const within_level &l,
                                               const uint64_t *const (&steps)[SPOPS_MAX_DIMS],
                                               int64_t first, int32_t n, int32_t w)
{
    const int32_t k = 32 * w + (int32_t)threadIdx.x % 32;
    const bool is_tap = k < l.taps.num_taps;
    int32_t found[rows_at_once], count = 0;
    uint64_t way[rows_at_once];
    int2 link[rows_at_once];
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u)
        link[u] = first + u < n ? __ldg(l.links + first + u) : make_int2(-1, 0);
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
        found[u] = -1;
        way[u] = 0;
        if (!is_tap || link[u].x < 0) continue;
#pragma unroll
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
            if (a < l.taps.dims) way[u] += steps[a][(uint32_t)link[u].y >> 8 * a & 0xff];
        found[u] =
            __ldg(p.coarse_table + (int64_t)link[u].x * p.coarse_stride + (way[u] >> cell_shift));
    }
    for (int m = p.source - 1; m >= l.level; --m) {
        const int32_t *down = p.down_table[m];
        const int32_t stride = p.down_stride[m];
#pragma unroll
        for (int u = 0; u < rows_at_once; ++u)
            if (found[u] >= 0)
                found[u] = __ldg(down + (int64_t)found[u] * stride +
                                 (way[u] >> place_bits * m & ((1u << place_bits) - 1)));
    }
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
        if (first + u >= n) break;
        count += put_tap(l, first + u, w, k, found[u]);
    }
    return count;
}

// ---- Of few taps ----
//
// A kernel of up to 32 taps that reaches two cells of the next level along each axis, as 3 x 3 x 3 over
// windows of 2 does: the cells of four rows, eight each, are found by a warp at once, and the taps of a
// row are a step from them.

constexpr int cells_of_row = 8, rows_of_warp = 32 / cells_of_row;
constexpr int bad_shift = cell_shift + 16; // bits above: a cell that no tap leads to

__host__ __device__ inline int32_t extent_of(const within_params &p, const within_level &l, int a)
{
    int32_t extent = 1;
    for (int m = l.level; m < p.source; ++m)
        extent *= p.stride[m][a];
    return extent;
}

// The lowest cell of the next level, from the row's own on, that a row at position t of an axis reaches.
__device__ __forceinline__ int32_t lowest_cell(const within_params &p, const within_level &l, int a,
                                               int32_t t)
{
    const int32_t stride = p.stride[l.level][a], u = t % stride - l.taps.padding[a];
    return u >= 0 ? u / stride : -((stride - 1 - u) / stride);
}

// What position t along axis a adds to the way to the `side`-th of the two cells of the next level there.
// At the place of the row's own level: what it adds to the row's tap in its cell.
__device__ __forceinline__ uint64_t cell_step_of(const within_params &p, const within_level &l,
                                                 int a, int32_t t, int32_t side)
{
    const int32_t own = p.stride[l.level][a];
    int32_t extent = extent_of(p, l, a) / own, cell_step = 1, own_step = 1;
    const int32_t u = t / own + lowest_cell(p, l, a, t) + side;
    const int32_t q = u >= 0 ? u / extent : -((extent - 1 - u) / extent);
    int32_t rest = u - q * extent;
    for (int b = a + 1; b < p.coarse.dims; ++b) {
        cell_step *= p.coarse.size[b];
        own_step *= p.stride[l.level][b];
    }
    const int32_t moved = q + p.coarse.padding[a], at = moved / p.coarse.dilation[a];
    uint64_t way = (uint64_t)(t % own * own_step) << place_bits * l.level;
    if (moved < 0 || moved % p.coarse.dilation[a] != 0 || at >= p.coarse.size[a])
        return way | (uint64_t)1 << bad_shift;
    way |= (uint64_t)(at * cell_step) << cell_shift;
    for (int m = p.source - 1; m > l.level; --m) {
        uint32_t step = 1;
        for (int b = a + 1; b < p.coarse.dims; ++b)
            step *= p.stride[m][b];
        extent /= p.stride[m][a];
        way += (uint64_t)(step * (uint32_t)(rest / extent)) << place_bits * m;
        rest %= extent;
    }
    return way;
}

// Where tap k of a row that is tap `child` of its cell lies: which of the row's cells, and above that
// the tap of the cell.
__device__ __forceinline__ uint16_t tap_step_of(const within_params &p, const within_level &l,
                                                int32_t child, int32_t k)
{
    uint32_t cell = 0, place = 0, place_step = 1;
    for (int a = l.taps.dims - 1; a >= 0; --a) {
        const int32_t stride = p.stride[l.level][a], t = child % stride;
        const int32_t u = t + l.taps.dilation[a] * (k % l.taps.size[a]) - l.taps.padding[a];
        const int32_t q = u >= 0 ? u / stride : -((stride - 1 - u) / stride);
        cell |= (uint32_t)(q - lowest_cell(p, l, a, t)) << a;
        place += place_step * (uint32_t)(u - q * stride);
        place_step *= (uint32_t)stride;
        child /= stride;
        k /= l.taps.size[a];
    }
    return (uint16_t)(place << 3 | cell);
}

// Shared words of 8 bytes for the steps of a level; 0: it has more taps, or reaches more cells.
__host__ __device__ inline int32_t few_steps(const within_params &p, const within_level &l)
{
    int32_t words = 0, children = 1;
    if (l.taps.dims > 3 || l.taps.num_taps > 32) return 0;
    for (int a = 0; a < l.taps.dims; ++a) {
        const int32_t stride = p.stride[l.level][a];
        if (2 * l.taps.padding[a] > stride) return 0;
        words += 2 * extent_of(p, l, a);
        children *= stride;
    }
    return words + children * 32 / 4;
}

// Rows `first` to first + rows_of_warp - 1 of those before n. Returns how many have this lane's tap.
__device__ __forceinline__ int32_t follow_few(const within_params &p, const within_level &l,
                                              const uint64_t *const (&steps)[3],
                                              const uint16_t *tap_steps, int64_t first, int32_t n)
{
    const int lane = threadIdx.x % 32, cell = lane % cells_of_row;
    const int64_t mine = first + lane / cells_of_row;
    const int2 link = mine < n ? __ldg(l.links + mine) : make_int2(-1, 0);
    uint64_t way = 0;
#pragma unroll
    for (int a = 0; a < 3; ++a)
        if (a < l.taps.dims)
            way += steps[a][2 * ((uint32_t)link.y >> 8 * a & 0xff) + (cell >> a & 1)];
    int32_t found = -1;
    if (link.x >= 0 && way >> bad_shift == 0 && cell >> l.taps.dims == 0)
        found = __ldg(p.coarse_table + (int64_t)link.x * p.coarse_stride + (way >> cell_shift));
    for (int m = p.source - 1; m > l.level; --m)
        if (found >= 0)
            found = __ldg(p.down_table[m] + (int64_t)found * p.down_stride[m] +
                          (way >> place_bits * m & ((1u << place_bits) - 1)));
    const int32_t child = (int32_t)(way >> place_bits * l.level & ((1u << place_bits) - 1));
    const int32_t *down = p.down_table[l.level];
    const int32_t stride = p.down_stride[l.level];
    const bool is_tap = lane < l.taps.num_taps, is_column = lane < l.table_stride;
    int32_t j[rows_of_warp], count = 0;
    uint32_t mask = 0;
#pragma unroll
    for (int u = 0; u < rows_of_warp; ++u) {
        const uint32_t step = tap_steps[__shfl_sync(~0u, child, u * cells_of_row) * 32 + lane];
        const int32_t from = __shfl_sync(~0u, found, u * cells_of_row + (int)(step & 7u));
        j[u] = is_tap && from >= 0 ? __ldg(down + (int64_t)from * stride + (step >> 3)) : -1;
    }
#pragma unroll
    for (int u = 0; u < rows_of_warp; ++u) {
        const uint32_t votes = __ballot_sync(~0u, j[u] >= 0);
        if (lane == u) mask = votes;
        if (is_column && first + u < n) l.table[(first + u) * l.table_stride + lane] = j[u];
        count += j[u] >= 0;
    }
    if (lane < rows_of_warp && first + lane < n) l.masks[first + lane] = mask;
    return count;
}

template <bool BY_INDEX>
__global__ void __launch_bounds__(follow_threads)
    follow_within(const __grid_constant__ within_params p)
{
    extern __shared__ uint64_t shared[];
    int job = 0;
    while (job + 1 < p.num && p.first_block[job + 1] <= (int32_t)blockIdx.x)
        ++job;
    const within_level &l = p.job[job];
    const int32_t block = (int32_t)blockIdx.x - p.first_block[job];
    const int32_t num_blocks = p.first_block[job + 1] - p.first_block[job];
    const int32_t num_taps = l.taps.num_taps, thread = (int32_t)threadIdx.x;
    int32_t *counts = (int32_t *)shared; // [num_taps] pairs of a tap
    uint64_t *all_steps = shared + (num_taps + 1) / 2, *axis = all_steps;
    const bool few = !BY_INDEX && few_steps(p, l) > 0;
    const uint64_t *few_axis[3] = {axis, axis, axis};
    if (few) {
        for (int a = 0; a < l.taps.dims; ++a) {
            const int32_t extent = extent_of(p, l, a);
            for (int32_t s = thread; s < 2 * extent; s += follow_threads)
                axis[s] = cell_step_of(p, l, a, s / 2, s % 2);
            few_axis[a] = axis;
            axis += 2 * extent;
        }
        for (int32_t s = thread; s < 32 * l.num_children; s += follow_threads)
            ((uint16_t *)axis)[s] =
                s % 32 < num_taps ? tap_step_of(p, l, s / 32, s % 32) : (uint16_t)0;
    }
    for (int a = 0; !BY_INDEX && !few && a < l.taps.dims; ++a) {
        const int32_t steps = num_steps(p, l, a);
        for (int32_t s = thread; s < steps; s += follow_threads)
            axis[s] = step_of(p, l, a, s);
        axis += steps;
    }
    for (int32_t k = thread; k < num_taps; k += follow_threads)
        counts[k] = 0;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    __syncthreads();
    const int32_t n = *l.num_rows;
    bool by_index = BY_INDEX;
    for (int m = l.level; m < p.source; ++m)
        by_index = by_index || *p.overflow[m] != 0;
    if (block == 0 && thread == 0) {
        l.state->num_out = l.state->num_in = n;
        l.state->overflow = 0;
        l.state->reserved = 0;
    }
    const int64_t warp = (int64_t)block * follow_warps + thread / 32;
    const int64_t num_warps = (int64_t)num_blocks * follow_warps;
    for (int32_t w = 0; w < l.mask_words; ++w) {
        const int32_t k = 32 * w + thread % 32;
        int32_t count = 0;
        if (by_index) {
            for (int64_t r = warp; r < n; r += num_warps)
                count += put_tap(l, r, w, k, k < num_taps ? find_tap(l, (int32_t)r, k) : -1);
        } else if (few) {
            for (int64_t first = warp * rows_of_warp; first < n; first += num_warps * rows_of_warp)
                count += follow_few(p, l, few_axis, (const uint16_t *)axis, first, n);
        } else {
            const uint64_t *steps[SPOPS_MAX_DIMS], *end = axis;
            int32_t rest = k < num_taps ? k : 0;
            for (int a = SPOPS_MAX_DIMS - 1; a >= 0; --a) {
                if (a >= l.taps.dims) continue;
                end -= num_steps(p, l, a);
                steps[a] = end + l.taps.dilation[a] * (rest % l.taps.size[a]);
                rest /= l.taps.size[a];
            }
            for (int64_t first = warp * rows_at_once; first < n; first += num_warps * rows_at_once)
                count += follow_rows(p, l, steps, first, n, w);
        }
        if (count > 0) atomicAdd(counts + k, count);
    }
    __syncthreads();
    unsigned long long found = 0;
    for (int32_t k = thread; k < num_taps; k += follow_threads) {
        if (counts[k] == 0) continue;
        atomicAdd(l.tap_counts + k, counts[k]);
        found += (unsigned)counts[k];
    }
    found = spops::warp_sum(found);
    if (thread % 32 == 0 && found > 0) atomicAdd((unsigned long long *)&l.state->num_pairs, found);
}

// ---- Workspace ----------------------------------------------------------------------------------

struct nest_workspace {
    hash_table cells[most_coarser];
    uint32_t *slots[most_coarser];
    int32_t *tile_counts[most_coarser];
    int2 *links[most_coarser];
    uint8_t *leads;
    int32_t *found;
    bool exact; // entries hold whole keys
};

// A table of cells, of which there are mostly less than half as many as finest rows, at most so many.
hash_table cells_of(int key_bits, int64_t max_rows, spops_carver *c)
{
    uint64_t entries = 64;
    while (entries < (uint64_t)max_rows + (uint64_t)max_rows / 2)
        entries *= 2;
    hash_table t =
        spops::hash_of(spops_carve(c, (int64_t)entries, 1, sizeof(uint64_t)), key_bits, max_rows);
    t.mask = (uint32_t)(entries - 1);
    t.bucket_shift = 64 - (spops::bits_for(entries - 1) - 2);
    return t;
}

nest_workspace carve_nest(const spops_nest_args *args, spops_carver *c)
{
    nest_workspace ws = {};
    const int64_t n = args->levels[0]->max_rows;
    ws.exact = true;
    ws.leads = (uint8_t *)spops_carve(c, n, 1, sizeof(uint8_t));
    ws.found = (int32_t *)spops_carve(c, most_coarser, 1, sizeof(int32_t));
    for (int m = 0; m + 1 < args->num_levels; ++m) {
        ws.cells[m] = cells_of(args->levels[m + 1]->layout.key_bits, n, c);
        ws.exact = ws.exact && ws.cells[m].exact;
        ws.slots[m] = (uint32_t *)spops_carve(c, n, 1, sizeof(uint32_t));
        ws.tile_counts[m] = (int32_t *)spops_carve(c, (n + tile - 1) / tile, 1, sizeof(int32_t));
        if (m < args->source && args->within[m] != nullptr)
            ws.links[m] = (int2 *)spops_carve(c, args->levels[m]->max_rows, 1, sizeof(int2));
    }
    return ws;
}

int log2_of(int32_t n)
{
    int shift = 0;
    while (shift < 31 && (int32_t)1 << shift < n)
        ++shift;
    return n == (int32_t)1 << shift ? shift : -1;
}

level_params level_of(const spops_nest_args *args, const nest_workspace &ws, int m)
{
    const spops_coords_arrays *coords = args->levels[m + 1];
    const spops_map_arrays *down = args->down[m];
    level_params l = {};
    l.layout = coords->layout;
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        l.stride[a] = down->taps.stride[a];
        l.padding[a] = down->taps.padding[a];
        l.shift[a] = log2_of(down->taps.stride[a]);
    }
    l.cells = ws.cells[m];
    l.index = spops::index_of(coords).hash;
    l.state = coords->state;
    l.rows = coords->rows;
    l.keys = coords->keys;
    l.row_item = coords->row_item;
    l.max_rows = coords->max_rows;
    l.table = down->out.table;
    l.masks = down->out.masks;
    l.fine_table = down->in.table;
    l.fine_masks = down->in.masks;
    l.tap_counts = down->tap_counts;
    l.map_state = down->state;
    l.table_stride = down->table_stride;
    l.mask_words = down->mask_words;
    l.slots = ws.slots[m];
    l.tile_counts = ws.tile_counts[m];
    l.links = ws.links[m];
    return l;
}

void put_table(const hash_table &table, start_params *p)
{
    p->tables[p->num_tables] = (ulonglong2 *)table.entries;
    p->num_pairs[p->num_tables++] = ((int64_t)table.mask + 1) / 2;
}

void put_map(const spops_map_arrays *map, start_params *p)
{
    p->tap_counts[p->num_maps] = map->tap_counts;
    p->num_taps[p->num_maps] = map->taps.num_taps;
    p->states[p->num_maps++] = map->state;
}

within_level within_of(const spops_nest_args *args, const nest_workspace &ws, int level)
{
    const spops_map_arrays *map = args->within[level];
    const spops_coords_arrays *coords = args->levels[level];
    within_level l = {};
    l.index = spops::index_of(coords);
    l.taps = map->taps;
    l.rows = coords->rows;
    l.num_rows = &coords->state->num_rows;
    l.links = level < args->source ? ws.links[level] : nullptr;
    l.table = map->out.table;
    l.masks = map->out.masks;
    l.tap_counts = map->tap_counts;
    l.state = map->state;
    l.table_stride = map->table_stride;
    l.mask_words = map->mask_words;
    l.level = level;
    l.num_children = level < args->source ? args->down[level]->taps.num_taps : 1;
    return l;
}

within_params withins_of(const spops_nest_args *args)
{
    const spops_map_arrays *coarse = args->source_within;
    within_params p = {};
    p.source = args->source;
    p.coarse = coarse->taps;
    p.coarse_table = coarse->out.table;
    p.coarse_stride = coarse->table_stride;
    for (int m = 0; m < args->source; ++m) {
        p.down_table[m] = args->down[m]->out.table;
        p.down_stride[m] = args->down[m]->table_stride;
        p.overflow[m] = &args->levels[m + 1]->state->overflow;
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
            p.stride[m][a] = (uint8_t)args->down[m]->taps.stride[a];
    }
    return p;
}

// Another level, of `rows` rows, in blocks of which a warp takes `each` rows at once.
void add_level(const spops_context *ctx, const within_level &l, int64_t rows, int each,
               within_params *p)
{
    const int64_t blocks = (rows + follow_warps * each - 1) / (follow_warps * each);
    const int64_t most = 2 * ctx->info.num_processors;
    p->job[p->num++] = l;
    p->first_block[p->num] = p->first_block[p->num - 1] + (int32_t)(blocks < 1      ? 1
                                                                    : blocks < most ? blocks
                                                                                    : most);
}

template <bool BY_INDEX> spops_status follow(spops_context *ctx, const within_params &p)
{
    size_t most = 0;
    for (int j = 0; j < p.num; ++j) {
        size_t words = (size_t)(p.job[j].taps.num_taps + 1) / 2;
        if (!BY_INDEX && few_steps(p, p.job[j]) > 0) words += (size_t)few_steps(p, p.job[j]);
        for (int a = 0; !BY_INDEX && few_steps(p, p.job[j]) == 0 && a < p.job[j].taps.dims; ++a)
            words += (size_t)num_steps(p, p.job[j], a);
        if (words > most) most = words;
    }
    return spops::launch_prepared<WAITS_FOR_PREVIOUS>(
        ctx, "pyramid: follow_within", follow_within<BY_INDEX>,
        dim3((unsigned)p.first_block[p.num]), (unsigned)follow_threads, most * sizeof(uint64_t), p);
}

} // namespace

// ---- Slots --------------------------------------------------------------------------------------

extern "C" size_t spops_cuda_nest_workspace_bytes(spops_context *ctx, const spops_nest_args *args)
{
    (void)ctx;
    spops_carver c = {nullptr, 0};
    return carve_nest(args, &c).exact ? c.used : 0;
}

extern "C" spops_status spops_cuda_nest_levels(spops_context *ctx, const spops_nest_args *args)
{
    spops_carver c = {(char *)args->workspace, 0};
    const nest_workspace ws = carve_nest(args, &c);
    const spops_coords_arrays *finest = args->levels[0];
    const int64_t n = finest->max_rows;
    start_params start = {};
    nest_params p = {};

    p.num_coarser = start.num_coarser = args->num_levels - 1;
    p.dims = finest->layout.dims;
    p.source = args->source;
    p.max_rows = n;
    p.rows = finest->rows;
    p.num_rows = &finest->state->num_rows;
    p.leads = ws.leads;
    p.found = start.found = ws.found;
    p.num_tiles = (int32_t)((n + tile - 1) / tile);
    for (int m = 0; m < p.num_coarser; ++m) {
        p.level[m] = level_of(args, ws, m);
        put_table(p.level[m].cells, &start);
        put_table(p.level[m].index, &start);
        put_map(args->down[m], &start);
    }
    for (int m = 0; m < args->num_levels; ++m)
        if (args->within[m] != nullptr) put_map(args->within[m], &start);
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "pyramid: start_levels", start_levels,
                                         dim3(4 * (unsigned)ctx->info.num_processors), threads,
                                         start));
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "pyramid: enter_cells", enter_cells,
                                         dim3(blocks_for(n, threads).x, (unsigned)p.num_coarser),
                                         threads, p));
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "pyramid: count_leaders", count_leaders,
                                         dim3((unsigned)p.num_tiles), tile, p));
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "pyramid: put_levels", put_levels,
                                         dim3((unsigned)p.num_tiles, (unsigned)p.num_coarser), tile,
                                         p));
    return launch<WAITS_FOR_PREVIOUS>(ctx, "pyramid: link_levels", link_levels,
                                      dim3(blocks_for(n, threads).x, (unsigned)p.num_coarser),
                                      threads, p);
}

extern "C" spops_status spops_cuda_nest_within(spops_context *ctx, const spops_nest_args *args)
{
    spops_carver c = {(char *)args->workspace, 0};
    const nest_workspace ws = carve_nest(args, &c);
    if (args->source == 0) return SPOPS_STATUS_OK;
    const within_params common = withins_of(args);
    within_params p = common;
    if (args->within[args->source] != nullptr) {
        add_level(ctx, within_of(args, ws, args->source), args->levels[args->source]->max_rows, 1,
                  &p);
        SPOPS_TRY(follow<true>(ctx, p));
        p = common;
    }
    for (int level = 0; level < args->source; ++level)
        if (args->within[level] != nullptr)
            add_level(ctx, within_of(args, ws, level), args->levels[level]->max_rows, rows_at_once,
                      &p);
    return follow<false>(ctx, p);
}
