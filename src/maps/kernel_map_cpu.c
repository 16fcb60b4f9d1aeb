// SPDX-License-Identifier: Apache-2.0
// Kernel maps on the CPU. Every pass divides rows over threads such that the result does not depend
// on how many there are.

#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/axis_taps_cpu.h"
#include "coords/coord_index_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"
#include "maps/map_arrays.h"

#define MAX_PARTS   32
#define MAX_COLUMNS 343 // of taps along the last axis, in 4 dimensions

static spops_team team_for(const spops_context *ctx, int64_t rows, int32_t num_taps)
{
    return spops_team_for(ctx, rows * num_taps / 4);
}

typedef struct map_workspace {
    int64_t *counts; // [part][num_taps]
    spops_radix_buffers sort;
} map_workspace;

static map_workspace carve_workspace(const spops_map_arrays *map, int32_t contents, spops_carver *c)
{
    const int64_t rows =
        map->out.max_rows > map->in.max_rows ? map->out.max_rows : map->in.max_rows;
    map_workspace w;
    w.counts = spops_carve(c, MAX_PARTS, map->taps.num_taps, sizeof *w.counts);
    w.sort = spops_radix_carve(sizeof(uint64_t), contents & SPOPS_MAP_ORDER ? rows : 0, c);
    return w;
}

size_t spops_cpu_map_workspace_bytes(spops_context *ctx, const spops_map_workspace_args *args)
{
    spops_carver c = {NULL, 0};
    (void)ctx;
    carve_workspace(args->map, args->contents, &c);
    return c.used;
}

// ---- Search -------------------------------------------------------------------------------------

// One search: what is looked for where. `hint` is per thread.
typedef struct map_search {
    const spops_coords_arrays *in, *out;
    const spops_map_arrays *map;
    spops_cpu_index index;    // of in
    const int32_t *out_order; // rows of out by ascending key, or NULL: as they lie
    spops_axis_taps axes[SPOPS_MAX_DIMS];
    uint64_t batch_scale;
    bool mirror; // look for the first half of the taps; each hit serves its mirror image too
    int32_t last_size, num_columns;
} map_search;

// Position of `key` or of the next one, from a position that was right for another row.
static int64_t seek(const spops_cpu_index *index, int64_t from, uint64_t key)
{
    const uint64_t *keys = index->sorted_keys;
    int64_t step = 1, low = from;
    if (from >= index->num_rows || keys[from] >= key) {
        // Back by growing steps, to where it is certain that nothing was passed.
        while (low > 0 && keys[low - 1] >= key) {
            low = low > step ? low - step : 0;
            step *= 2;
        }
    }
    return spops_sorted_from(index, low, key);
}

// A column: taps along the last axis that share those of all others. Its hits go to row i.
static inline void found(const map_search *s, int64_t i, int32_t tap, int32_t j, int64_t *counts)
{
    int32_t *table = s->map->out.table;
    const int64_t stride = s->map->table_stride;
    table[i * stride + tap] = j;
    ++counts[tap];
    if (s->mirror) table[j * stride + s->map->taps.num_taps - 1 - tap] = (int32_t)i;
}

static inline void search_column(const map_search *s, int64_t i, int32_t first_tap, uint64_t id,
                                 const spops_axis_targets *last, int num_last, int64_t *hint,
                                 int64_t *counts)
{
    const spops_cpu_index *index = &s->index;
    if (index->search == SPOPS_COORDS_SEARCH_HASH) {
        for (int e = 0; e < num_last; ++e) {
            const int32_t j = spops_hash_find(index, id + last->id[e]);
            if (j >= 0) found(s, i, first_tap + last->tap[e], j, counts);
        }
    } else if (index->search == SPOPS_COORDS_SEARCH_GRID) {
        for (int e = 0; e < num_last; ++e) {
            const int32_t j = spops_grid_find(index, (int64_t)(id + last->id[e]));
            if (j >= 0) found(s, i, first_tap + last->tap[e], j, counts);
        }
    } else {
        // Ascending keys: by ascending tap towards the fine side, else by descending.
        const bool down = s->axes[s->out->layout.dims - 1].to_coarse;
        int64_t p = *hint;
        for (int n = 0; n < num_last; ++n) {
            const int e = down ? num_last - 1 - n : n;
            const uint64_t key = id + last->id[e];
            p = n == 0 ? seek(index, p, key) : spops_sorted_from(index, p, key);
            if (n == 0) *hint = p;
            if (p == index->num_rows) return;
            if (index->sorted_keys[p] == key)
                found(s, i, first_tap + last->tap[e], spops_sorted_row(index, p), counts);
        }
    }
}

// All taps of row i.
static void search_row(const map_search *s, int64_t i, int64_t *hints, int64_t *counts)
{
    const int dims = s->out->layout.dims;
    const int32_t *row = s->out->rows + i * (dims + 1);
    const spops_map_arrays *map = s->map;
    const int32_t centre = map->taps.num_taps / 2;
    spops_axis_targets targets[SPOPS_MAX_DIMS];
    const spops_axis_targets *last = &targets[dims - 1];
    int at[SPOPS_MAX_DIMS] = {0};
    uint64_t batch;

    if (s->mirror) {
        map->out.table[i * map->table_stride + centre] = (int32_t)i;
        ++counts[centre];
    }
    if (!spops_key_fits(&s->in->layout, 0, row[0])) return;
    batch = (uint64_t)(row[0] - s->in->layout.lower[0]) * s->batch_scale;
    for (int a = 0; a < dims; ++a) {
        spops_axis_find(&s->axes[a], row[a + 1], &targets[a]);
        if (targets[a].count == 0) return;
    }
    for (;;) {
        uint64_t id = batch;
        int32_t column = 0;
        int num_last = last->count, a = dims - 2;
        for (int c = 0; c < dims - 1; ++c) {
            id += targets[c].id[at[c]];
            column = column * map->taps.size[c] + targets[c].tap[at[c]];
        }
        if (s->mirror && column == s->num_columns / 2)
            while (num_last > 0 && last->tap[num_last - 1] >= s->last_size / 2)
                --num_last;
        if (s->mirror && column > s->num_columns / 2) return;
        search_column(s, i, column * s->last_size, id, last, num_last, &hints[column], counts);
        while (a >= 0 && ++at[a] == targets[a].count)
            at[a--] = 0;
        if (a < 0) return;
    }
}

// masks of rows whose table is there.
static void fill_masks(const spops_map_arrays *map, const spops_map_side *side, int64_t begin,
                       int64_t end)
{
    for (int64_t i = begin; i < end; ++i) {
        const int32_t *taps = side->table + i * map->table_stride;
        uint32_t *mask = side->masks + i * map->mask_words;
        for (int32_t word = 0; word < map->mask_words; ++word) {
            const int32_t first = 32 * word, left = map->table_stride - first;
            const int32_t n = left < 32 ? left : 32; // elements after the last tap are -1
            uint32_t bits = 0;
            for (int32_t k = 0; k < n; ++k)
                bits |= (uint32_t)(taps[first + k] >= 0) << k;
            mask[word] = bits;
        }
    }
}

static void clear_table(const spops_map_arrays *map, const spops_map_side *side, int64_t begin,
                        int64_t end)
{
    if (begin == end) return;
    memset(side->table + begin * map->table_stride, 0xff,
           (size_t)((end - begin) * map->table_stride) * sizeof *side->table);
}

static map_search search_of(const spops_context *ctx, const spops_coords_arrays *in,
                            const spops_coords_arrays *out, const spops_map_arrays *map)
{
    map_search s;
    memset(&s, 0, sizeof s);
    s.in = in;
    s.out = out;
    s.map = map;
    s.index = spops_cpu_index_made(ctx, in);
    if (s.index.search == SPOPS_COORDS_SEARCH_SORTED && out->search == SPOPS_COORDS_SEARCH_SORTED)
        s.out_order = spops_cpu_index_made(ctx, out).sorted_rows;
    for (int a = 0; a < in->layout.dims; ++a) {
        const uint64_t scale = s.index.search == SPOPS_COORDS_SEARCH_GRID
                                   ? (uint64_t)s.index.stride[a + 1]
                                   : (uint64_t)1 << in->layout.shift[a + 1];
        s.axes[a] = spops_axis_taps_make(&map->taps, a, map->transposed, &in->layout, scale);
    }
    s.batch_scale = s.index.search == SPOPS_COORDS_SEARCH_GRID ? (uint64_t)s.index.stride[0]
                                                               : (uint64_t)1 << in->layout.shift[0];
    s.mirror = map->symmetric && !map->no_symmetry;
    s.last_size = map->taps.size[in->layout.dims - 1];
    s.num_columns = map->taps.num_taps / s.last_size;
    return s;
}

typedef struct search_work {
    const map_search *s;
    int64_t *counts; // [part][num_taps]
} search_work;

// Rows out_order[begin] .. out_order[end - 1]: all that a row needs at once, while its table is in
// the cache. A mirrored hit writes another row's table: tables must be clear before, and masks wait.
static void search_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const search_work *w = (const search_work *)work;
    const map_search *s = w->s;
    const int32_t num_taps = s->map->taps.num_taps;
    int64_t hints[MAX_COLUMNS] = {0};
    int64_t *counts = w->counts + part * num_taps;
    memset(counts, 0, (size_t)num_taps * sizeof *counts);
    if (s->index.num_rows == 0) return;
    for (int64_t p = begin; p < end; ++p)
        search_row(s, s->out_order != NULL ? s->out_order[p] : p, hints, counts);
}

typedef struct side_work {
    const spops_map_arrays *map;
    const spops_map_side *side, *from; // from: the side that is reversed into this one
} side_work;

static void clear_range(const void *work, int64_t begin, int64_t end)
{
    const side_work *w = (const side_work *)work;
    clear_table(w->map, w->side, begin, end);
}

static void mask_range(const void *work, int64_t begin, int64_t end)
{
    const side_work *w = (const side_work *)work;
    fill_masks(w->map, w->side, begin, end);
}

static void search_one(spops_context *ctx, const spops_map_search_args *args)
{
    const spops_coords_arrays *in = args->in, *out = args->out;
    const spops_map_arrays *map = args->map;
    const int32_t num_taps = map->taps.num_taps;
    const int64_t n = out->state->num_rows;
    const spops_team team = team_for(ctx, n, num_taps);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    spops_carver carver = {(char *)args->workspace, 0};
    const map_workspace w = carve_workspace(map, 0, &carver);
    const map_search s = search_of(ctx, in, out, map);
    const search_work search = {&s, w.counts};
    const side_work side = {map, &map->out, NULL};
    spops_map_state state;

    memset(&state, 0, sizeof state);
    spops_parallel_for(team, n, 0, clear_range, &side);
    spops_parallel_parts(team, num_parts, n, search_part, &search);
    spops_parallel_for(team, n, 0, mask_range, &side);

    for (int32_t k = 0; k < num_taps; ++k) {
        int64_t count = 0;
        const int32_t searched = s.mirror && k > num_taps / 2 ? num_taps - 1 - k : k;
        for (int part = 0; part < num_parts; ++part)
            count += w.counts[(int64_t)part * num_taps + searched];
        map->tap_counts[k] = (int32_t)count;
        state.num_pairs += count;
    }
    state.num_out = (int32_t)n;
    state.num_in = in->state->num_rows;
    *map->state = state;
}

spops_status spops_cpu_map_search(spops_context *ctx, const spops_map_searches_args *args)
{
    for (int32_t i = 0; i < args->num; ++i)
        search_one(ctx, &args->each[i]);
    return SPOPS_STATUS_OK;
}

static void reverse_range(const void *work, int64_t begin, int64_t end)
{
    const side_work *w = (const side_work *)work;
    const int64_t stride = w->map->table_stride;
    for (int64_t i = begin; i < end; ++i)
        for (int32_t k = 0; k < w->map->taps.num_taps; ++k) {
            const int32_t j = w->from->table[i * stride + k];
            if (j >= 0) w->side->table[j * stride + k] = (int32_t)i; // one i for each j and k
        }
}

static void reverse_one(spops_context *ctx, const spops_map_reverse_args *args)
{
    const spops_map_arrays *map = args->map;
    const int64_t num_from = *args->from->num_rows, num_to = *args->to->num_rows;
    const spops_team to_team = team_for(ctx, num_to, map->taps.num_taps);
    const spops_team from_team = team_for(ctx, num_from, map->taps.num_taps);
    const side_work work = {map, args->to, args->from};

    spops_parallel_for(to_team, num_to, 0, clear_range, &work);
    spops_parallel_for(from_team, num_from, 0, reverse_range, &work);
    spops_parallel_for(to_team, num_to, 0, mask_range, &work);
}

spops_status spops_cpu_map_reverse(spops_context *ctx, const spops_map_reverses_args *args)
{
    for (int32_t i = 0; i < args->num; ++i)
        reverse_one(ctx, &args->each[i]);
    return SPOPS_STATUS_OK;
}

// ---- Order --------------------------------------------------------------------------------------

static int32_t count_bits(const uint32_t *mask, int32_t words)
{
    int32_t count = 0;
    for (int32_t i = 0; i < words; ++i)
        count += __builtin_popcount(mask[i]);
    return count;
}

// tile_order: tiles by falling number of taps, ties by number.
static void order_tiles(const spops_map_arrays *map, const spops_map_side *side, int64_t *first)
{
    int64_t sum = 0;
    memset(first, 0, (size_t)(map->taps.num_taps + 1) * sizeof *first);
    for (int64_t t = 0; t < side->num_tiles; ++t)
        ++first[count_bits(side->tile_masks + t * map->mask_words, map->mask_words)];
    for (int32_t taps = map->taps.num_taps; taps >= 0; --taps) {
        const int64_t own = first[taps];
        first[taps] = sum;
        sum += own;
    }
    for (int64_t t = 0; t < side->num_tiles; ++t) {
        const int32_t taps = count_bits(side->tile_masks + t * map->mask_words, map->mask_words);
        side->tile_order[first[taps]++] = (int32_t)t;
    }
}

// Up to 32 taps: words of masks with one byte in use; that of a mask is its bytes' four, or-ed.
static void fill_byte_words(const spops_mask_order *order, uint32_t words[4][256])
{
    for (int byte = 0; byte < 4; ++byte) {
        words[byte][0] = 0;
        for (uint32_t value = 1; value < 256; ++value)
            words[byte][value] = words[byte][value & (value - 1)] |
                                 spops_mask_tap_bits(order, 8 * byte + __builtin_ctz(value));
    }
}

typedef struct order_work {
    const spops_map_arrays *map;
    const spops_map_side *side;
    uint64_t *keys;
    int32_t *values;
    union {
        uint32_t byte_words[4][256];
        uint32_t tap_bits[SPOPS_MAX_KERNEL_TAPS]; // more than 32 taps
    } u;
} order_work;

static uint32_t word_of_row(const order_work *w, const uint32_t *mask)
{
    uint32_t word = 0;
    if (w->map->taps.num_taps <= SPOPS_MASK_ORDER_SINGLE_TAPS)
        return w->u.byte_words[0][*mask & 255] | w->u.byte_words[1][*mask >> 8 & 255] |
               w->u.byte_words[2][*mask >> 16 & 255] | w->u.byte_words[3][*mask >> 24];
    for (int32_t i = 0; i < w->map->mask_words; ++i)
        for (uint32_t bits = mask[i]; bits != 0; bits &= bits - 1)
            word |= w->u.tap_bits[32 * i + __builtin_ctz(bits)];
    return word;
}

static void ranks_of_rows(const void *work, int64_t begin, int64_t end)
{
    const order_work *w = (const order_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        w->keys[i] = spops_mask_rank(word_of_row(w, w->side->masks + i * w->map->mask_words));
        w->values[i] = (int32_t)i;
    }
}

static void masks_of_tiles(const void *work, int64_t begin, int64_t end)
{
    const order_work *w = (const order_work *)work;
    const spops_map_arrays *map = w->map;
    const spops_map_side *side = w->side;
    const int64_t n = *side->num_rows;
    const int32_t words = map->mask_words;
    for (int64_t t = begin; t < end; ++t) {
        const int64_t first = t * map->tile_rows;
        const int64_t last = first + map->tile_rows < n ? first + map->tile_rows : n;
        uint32_t *tile = side->tile_masks + t * words;
        memset(tile, 0, (size_t)words * sizeof *tile);
        for (int64_t p = first; p < last; ++p)
            for (int32_t i = 0; i < words; ++i)
                tile[i] |= side->masks[(int64_t)side->order[p] * words + i];
    }
}

static void order_one(spops_context *ctx, const spops_map_order_args *args)
{
    const spops_map_arrays *map = args->map;
    const spops_map_side *side = args->side;
    const int64_t n = *side->num_rows;
    const spops_team team = team_for(ctx, n, map->taps.num_taps);
    spops_carver carver = {(char *)args->workspace, 0};
    const map_workspace w = carve_workspace(map, SPOPS_MAP_ORDER, &carver);
    order_work work = {map, side, (uint64_t *)w.sort.keys[0], w.sort.values[0], {{{0}}}};
    int sorted;

    if (map->taps.num_taps <= SPOPS_MASK_ORDER_SINGLE_TAPS)
        fill_byte_words(&map->mask_order, work.u.byte_words);
    else
        for (int32_t k = 0; k < map->taps.num_taps; ++k)
            work.u.tap_bits[k] = spops_mask_tap_bits(&map->mask_order, k);
    spops_parallel_for(team, n, 0, ranks_of_rows, &work);
    sorted = spops_radix_sort(team, map->mask_order.num_bits, n, &w.sort, 0);
    if (n > 0) memcpy(side->order, w.sort.values[sorted], (size_t)n * sizeof *side->order);
    spops_parallel_for(team, side->num_tiles, 0, masks_of_tiles, &work);
    order_tiles(map, side, w.counts); // MAX_PARTS * num_taps counters, num_taps + 1 are needed
}

spops_status spops_cpu_map_order(spops_context *ctx, const spops_map_orders_args *args)
{
    for (int32_t i = 0; i < args->num; ++i)
        order_one(ctx, &args->each[i]);
    return SPOPS_STATUS_OK;
}

// ---- Pairs --------------------------------------------------------------------------------------

// tap_offsets, and counts per part turned into where each part puts its first pair of each tap.
static void place_taps(const spops_map_arrays *map, int num_parts, int64_t *counts)
{
    const int32_t num_taps = map->taps.num_taps;
    int64_t sum = 0;
    for (int32_t k = 0; k < num_taps; ++k) {
        map->tap_offsets[k] = (int32_t)sum;
        for (int part = 0; part < num_parts; ++part) {
            int64_t *count = &counts[(int64_t)part * num_taps + k];
            const int64_t own = *count;
            *count = sum;
            sum += own;
        }
    }
    map->tap_offsets[num_taps] = (int32_t)sum;
}

// offsets of a side from its masks; every element of the capacity.
static void fill_offsets(const spops_map_arrays *map, const spops_map_side *side)
{
    const int64_t n = *side->num_rows;
    int32_t sum = 0;
    for (int64_t i = 0; i < side->max_rows; ++i) {
        side->offsets[i] = sum;
        if (i < n) sum += count_bits(side->masks + i * map->mask_words, map->mask_words);
    }
    side->offsets[side->max_rows] = sum;
}

static void clear_pairs(const spops_map_arrays *map)
{
    memset(map->tap_offsets, 0, (size_t)(map->taps.num_taps + 1) * sizeof *map->tap_offsets);
    if (map->out.offsets != NULL)
        memset(map->out.offsets, 0, (size_t)(map->out.max_rows + 1) * sizeof *map->out.offsets);
    if (map->in.offsets != NULL)
        memset(map->in.offsets, 0, (size_t)(map->in.max_rows + 1) * sizeof *map->in.offsets);
}

// Pairs of rows begin .. end - 1 of the outputs; next[k] is the place of the next one of tap k.
static void write_pairs(const spops_map_arrays *map, int64_t begin, int64_t end, int64_t *next)
{
    const spops_map_side *out = &map->out;
    for (int64_t i = begin; i < end; ++i) {
        int64_t p = out->offsets != NULL ? out->offsets[i] : 0;
        for (int32_t word = 0; word < map->mask_words; ++word) {
            uint32_t bits = out->masks[i * map->mask_words + word];
            for (; bits != 0; bits &= bits - 1) {
                const int32_t k = 32 * word + __builtin_ctz(bits);
                const int32_t j = out->table[i * map->table_stride + k];
                const int64_t place = next[k]++;
                map->in_rows[place] = j;
                map->out_rows[place] = (int32_t)i;
                if (out->row_taps == NULL) continue;
                out->row_taps[2 * p] = j;
                out->row_taps[2 * p + 1] = k;
                out->pair_ids[p++] = (int32_t)place;
            }
        }
    }
}

// Place in tap order of the pair of output i and tap k.
static int32_t position_of(const spops_map_arrays *map, int32_t i, int32_t k)
{
    const uint32_t *mask = map->out.masks + (int64_t)i * map->mask_words;
    const uint32_t below = mask[k / 32] & (((uint32_t)1 << (k % 32)) - 1);
    return map->out
        .pair_ids[map->out.offsets[i] + count_bits(mask, k / 32) + __builtin_popcount(below)];
}

static void write_reverse(const spops_map_arrays *map, int64_t begin, int64_t end)
{
    const spops_map_side *in = &map->in;
    const int32_t num_taps = map->taps.num_taps;
    for (int64_t j = begin; j < end; ++j) {
        const int32_t *taps = in->table + j * map->table_stride;
        int64_t p = in->offsets[j];
        for (int32_t k = 0; k < num_taps; ++k) {
            const int32_t i = taps[in->mirrored ? num_taps - 1 - k : k];
            if (i < 0) continue;
            in->row_taps[2 * p] = i;
            in->row_taps[2 * p + 1] = k;
            in->pair_ids[p++] = position_of(map, i, k);
        }
    }
}

typedef struct pairs_work {
    const spops_map_arrays *map;
    int64_t *counts; // [part][num_taps]
} pairs_work;

static void count_taps(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const pairs_work *w = (const pairs_work *)work;
    const spops_map_arrays *map = w->map;
    int64_t *counts = w->counts + part * map->taps.num_taps;
    memset(counts, 0, (size_t)map->taps.num_taps * sizeof *counts);
    for (int64_t i = begin; i < end; ++i)
        for (int32_t word = 0; word < map->mask_words; ++word) {
            uint32_t bits = map->out.masks[i * map->mask_words + word];
            for (; bits != 0; bits &= bits - 1)
                ++counts[32 * word + __builtin_ctz(bits)];
        }
}

static void pairs_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const pairs_work *w = (const pairs_work *)work;
    write_pairs(w->map, begin, end, w->counts + part * w->map->taps.num_taps);
}

static void reverse_of_range(const void *work, int64_t begin, int64_t end)
{
    write_reverse(((const pairs_work *)work)->map, begin, end);
}

static void put_pairs(spops_context *ctx, const spops_map_pairs_args *args)
{
    const spops_map_arrays *map = args->map;
    const int32_t num_taps = map->taps.num_taps;
    const int64_t n = map->state->num_out, num_in = map->state->num_in;
    const spops_team team = team_for(ctx, n, num_taps);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    spops_carver carver = {(char *)args->workspace, 0};
    const map_workspace w = carve_workspace(map, 0, &carver);
    const pairs_work work = {map, w.counts};

    map->state->overflow = map->state->num_pairs > map->max_pairs;
    if (map->state->overflow) {
        clear_pairs(map);
        return;
    }
    spops_parallel_parts(team, num_parts, n, count_taps, &work);
    place_taps(map, num_parts, w.counts);
    if (map->out.offsets != NULL) fill_offsets(map, &map->out);
    spops_parallel_parts(team, num_parts, n, pairs_of_part, &work);
    if (map->in.offsets == NULL) return;
    fill_offsets(map, &map->in);
    spops_parallel_for(team_for(ctx, num_in, num_taps), num_in, 0, reverse_of_range, &work);
}

spops_status spops_cpu_map_pairs(spops_context *ctx, const spops_map_all_pairs_args *args)
{
    for (int32_t i = 0; i < args->num; ++i)
        put_pairs(ctx, &args->each[i]);
    return SPOPS_STATUS_OK;
}
