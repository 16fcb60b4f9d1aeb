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
// Maps within levels are made by nested_within.cu.
#include "kernels/maps/nested_levels.cuh"

#include "kernels/core/scan.cuh"
#include "kernels/maps/row_sort.cuh"

namespace
{

using spops::blocks_for;
using spops::hash_table;
using spops::launch;
using spops::WAITS_FOR_PREVIOUS;
using spops::nest::carve_nest;
using spops::nest::most_coarser;
using spops::nest::most_taps;
using spops::nest::nest_workspace;
using spops::nest::tile;

constexpr int threads = 256;

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

// ---- Launches -----------------------------------------------------------------------------------

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
