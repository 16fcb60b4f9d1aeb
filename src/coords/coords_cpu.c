// SPDX-License-Identifier: Apache-2.0
// Sets of coordinates on the CPU: candidates as keys, a stable sort of them, one row for each run
// of equal keys, and the index. Every pass divides its work over threads such that the result does
// not depend on how many there are, and there are few passes: each one asks the threads anew.

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/axis_taps_cpu.h"
#include "coords/coord_index_cpu.h"
#include "coords/order_codes_cpu.h"
#include "coords/points_cpu.h"
#include "coords/voxel_isa.h"
#include "core/prefetch.h"
#include "core/radix_sort.h"
#include "core/threads.h"
#include "core/word_sort.h"

#define MAX_PARTS 64
// Items further ahead whose rows are fetched into the cache, as they lie anywhere.
#define ITEMS_AHEAD 32

// Turn counts per part into where each part begins; returns the sum.
static int64_t scan_parts(int64_t *counts, int num_parts)
{
    int64_t sum = 0;
    for (int part = 0; part < num_parts; ++part) {
        const int64_t own = counts[part];
        counts[part] = sum;
        sum += own;
    }
    return sum;
}

// ---- Points -------------------------------------------------------------------------------------

// The voxel of point i as a row. Returns the first column that is none, or -1.
static int voxel_of(const spops_coords_source *source, int64_t i, int32_t *row)
{
    float wide[SPOPS_MAX_DIMS];
    const float *p = spops_point_of(source, i, wide);
    row[0] = source->batch != NULL ? source->batch[i] : 0;
    if (row[0] < 0) return 0;
    for (int a = 0; a < source->dims; ++a) {
        const double u = spops_voxel_position(p[a], source->origin[a], source->size[a], 0.0);
        if (!spops_voxel_floor(u, &row[a + 1])) return a + 1;
    }
    return -1;
}

// ---- Bounds -------------------------------------------------------------------------------------

// Grow b by items begin .. end - 1, as far as the first bad one.
static void grow_bounds(const spops_coords_source *source, const spops_coords_box *box,
                        int64_t begin, int64_t end, spops_coords_bounds *b)
{
    const int columns = source->dims + 1;
    int32_t voxel[SPOPS_KEY_COLUMNS];
    for (int64_t i = begin; i < end; ++i) {
        const int32_t *row = voxel;
        int bad = -1;
        if (source->kind == SPOPS_COORDS_POINTS)
            bad = voxel_of(source, i, voxel);
        else
            row = source->rows + i * columns;
        const int good = bad < 0 ? columns : bad;
        for (int c = 0; c < good; ++c) {
            const bool inside = box != NULL ? row[c] >= box->lower[c] && row[c] <= box->upper[c]
                                            : c > 0 || row[c] >= 0;
            if (!inside) {
                bad = c;
                break;
            }
            b->lower[c] = row[c] < b->lower[c] ? row[c] : b->lower[c];
            b->upper[c] = row[c] > b->upper[c] ? row[c] : b->upper[c];
        }
        if (bad < 0) continue;
        b->bad_item = i;
        b->bad_column = bad;
        return;
    }
}

// Points begin .. end - 1 at once, if none of them is bad; false, and b as it was, if one is. Voxels
// ascend with coordinates, as rounding does: those of the least and the greatest are enough.
static bool grow_by_points(const spops_voxel_table *table, const spops_coords_source *source,
                           const spops_coords_box *box, int64_t begin, int64_t end,
                           spops_coords_bounds *b)
{
    float extent[2][SPOPS_MAX_DIMS];
    int32_t found[2][SPOPS_KEY_COLUMNS] = {{0}};
    if (source->batch != NULL) {
        int32_t lower = INT32_MAX, upper = INT32_MIN;
        for (int64_t i = begin; i < end; ++i) {
            lower = source->batch[i] < lower ? source->batch[i] : lower;
            upper = source->batch[i] > upper ? source->batch[i] : upper;
        }
        found[0][0] = lower;
        found[1][0] = upper;
    }
    table->extent(source, begin, end - begin, extent[0], extent[1]);
    for (int a = 0; a < source->dims; ++a)
        for (int side = 0; side < 2; ++side) {
            const double u =
                spops_voxel_position(extent[side][a], source->origin[a], source->size[a], 0.0);
            if (!spops_voxel_floor(u, &found[side][a + 1])) return false;
        }
    for (int c = 0; c <= source->dims; ++c)
        if (box != NULL ? found[0][c] < box->lower[c] || found[1][c] > box->upper[c]
                        : c == 0 && found[0][0] < 0)
            return false;
    for (int c = 0; c <= source->dims; ++c) {
        b->lower[c] = found[0][c] < b->lower[c] ? found[0][c] : b->lower[c];
        b->upper[c] = found[1][c] > b->upper[c] ? found[1][c] : b->upper[c];
    }
    return true;
}

typedef struct bounds_work {
    const spops_voxel_table *table;
    const spops_coords_bounds_args *args;
    spops_coords_bounds *found; // [part]
} bounds_work;

static void find_bounds(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const bounds_work *w = (const bounds_work *)work;
    const spops_coords_source *source = w->args->source;
    spops_coords_bounds *b = &w->found[part];
    b->bad_item = -1;
    b->ascending = false; // sorting finds that out
    for (int c = 0; c <= source->dims; ++c)
        b->lower[c] = INT32_MAX, b->upper[c] = INT32_MIN;
    if (begin < end && (source->kind != SPOPS_COORDS_POINTS ||
                        !grow_by_points(w->table, source, w->args->box, begin, end, b)))
        grow_bounds(source, w->args->box, begin, end, b);
}

spops_status spops_cpu_coords_bounds(spops_context *ctx, const spops_coords_bounds_args *args)
{
    const spops_coords_source *source = args->source;
    spops_coords_bounds *bounds = args->bounds;
    const int64_t n = source->max_items;
    const spops_team team = spops_team_for(ctx, n);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    spops_coords_bounds found[MAX_PARTS];
    const bounds_work work = {spops_voxel_table_of(ctx), args, found};

    spops_parallel_parts(team, num_parts, n, find_bounds, &work);
    *bounds = found[0];
    bounds->num_items = n;
    for (int part = 1; part < num_parts; ++part) {
        for (int c = 0; c <= source->dims; ++c) {
            if (found[part].lower[c] < bounds->lower[c]) bounds->lower[c] = found[part].lower[c];
            if (found[part].upper[c] > bounds->upper[c]) bounds->upper[c] = found[part].upper[c];
        }
        if (bounds->bad_item < 0) {
            bounds->bad_item = found[part].bad_item;
            bounds->bad_column = found[part].bad_column;
        }
    }
    return SPOPS_STATUS_OK;
}

// ---- Candidates ---------------------------------------------------------------------------------

// A build goes through these steps, and what one leaves for the next is in the workspace:
//
//     candidates  the key of each, from its item, and where it stands along a curve, if rows are
//                 ordered so; a candidate's number is its item's, or that times the most candidates
//                 an item has
//     sorted      candidates by key or code, equal ones in their order: each run of them is a row
//     numbered    which row a run is: the run's number, or (order as given) how many runs have an
//                 earlier first candidate
//     written     rows, the row of each item, the items of each row, the index of sorted keys
//
// Whether a candidate begins a run is a toss of a coin to the processor. Loops over candidates
// therefore count and select, and do not branch.
typedef struct sorted_candidates {
    int64_t n, num_slots; // candidates, and the numbers that they may have
    int64_t each;         // numbers for an item
    bool window; // more than one. (A test of `each` itself would be taken for the division)
    // Position p has the key or code words[p] >> index_bits, and its candidate is in the bits below;
    // where these are too many bits, words[p] and values[p] (NULL: p).
    const uint64_t *words;
    const int32_t *values;
    int index_bits;
    const uint64_t *keys;        // [candidate]; where they are kept
    bool by_code;                // words have codes
    bool by_key;                 // keys ascend
    bool by_first;               // rows are numbered by their first candidates; else by runs
    int num_parts;               // of the positions
    int64_t runs[MAX_PARTS + 1]; // before each part; the last: all
    int64_t next[MAX_PARTS];     // where the first run after a part begins
    spops_coords_state state;
} sorted_candidates;

typedef struct build_workspace {
    sorted_candidates *sorted;
    bool wide;                // key or code and number do not fit a word
    spops_radix_buffers sort; // of candidates; keys alone where words hold both
    int32_t *counts;          // of sorts of words
    int32_t *starts;          // of a part: where runs begin, from its first position on, and (given
                              // order) the other positions, from its last one back; of an item
                              // before: how many candidates it has
    uint64_t *keys;           // [candidate], but for lexicographic order
    uint8_t *firsts;          // these two for the given order. [candidate] whether it begins a run,
    int32_t *first_rows;      // and the row that then begins with it, unless there is item_row
} build_workspace;

static bool along_curve(spops_coords_order order)
{
    return order == SPOPS_COORDS_ORDER_MORTON || order == SPOPS_COORDS_ORDER_HILBERT;
}

// Bits of what candidates are sorted by.
static int sorted_bits(const spops_coords_arrays *coords, bool by_code)
{
    return by_code ? spops_order_code_bits(&coords->layout, coords->order)
                   : coords->layout.key_bits;
}

// Bits of a candidate's number in a word.
static int number_bits(int64_t num_candidates)
{
    const int bits = spops_bits_below(num_candidates);
    return bits > 0 ? bits : 1;
}

static build_workspace carve_workspace(const spops_coords_arrays *coords, int64_t max_candidates,
                                       spops_carver *c)
{
    const int code_bits = sorted_bits(coords, along_curve(coords->order));
    const int most = code_bits > coords->layout.key_bits ? code_bits : coords->layout.key_bits;
    build_workspace w;
    memset(&w, 0, sizeof w);
    w.wide = most + number_bits(max_candidates) > 63;
    w.sorted = spops_carve(c, 1, 1, sizeof *w.sorted);
    if (w.wide) {
        w.sort = spops_radix_carve(sizeof(uint64_t), max_candidates, c);
    } else {
        for (int i = 0; i < 2; ++i)
            w.sort.keys[i] = spops_carve(c, max_candidates, 1, sizeof(uint64_t));
        w.counts = spops_carve(c, (int64_t)spops_word_counts(max_candidates), 1, sizeof *w.counts);
    }
    w.starts = spops_carve(c, max_candidates, 1, sizeof *w.starts);
    if (coords->order != SPOPS_COORDS_ORDER_LEXICOGRAPHIC)
        w.keys = spops_carve(c, max_candidates, 1, sizeof *w.keys);
    if (coords->order != SPOPS_COORDS_ORDER_GIVEN) return w;
    w.firsts = spops_carve(c, max_candidates, 1, sizeof *w.firsts);
    w.first_rows = spops_carve(c, max_candidates, 1, sizeof *w.first_rows);
    return w;
}

size_t spops_cpu_coords_workspace_bytes(spops_context *ctx, const spops_coords_workspace_args *args)
{
    spops_carver c = {NULL, 0};
    const int64_t max_rows = args->coords->max_rows;
    const int64_t most = args->max_candidates > max_rows ? args->max_candidates : max_rows;
    (void)ctx;
    carve_workspace(args->coords, most, &c);
    return c.used;
}

static uint64_t key_scale(const spops_key_layout *layout, int column)
{
    return (uint64_t)1 << layout->shift[column];
}

// Keys of every candidate of a DOWN or UP item, by ascending tap; returns how many.
static int64_t window_keys(const spops_coords_source *source, const spops_key_layout *layout,
                           const spops_axis_taps *axes, const int32_t *row, uint64_t *keys)
{
    const int dims = source->dims;
    spops_axis_targets targets[SPOPS_MAX_DIMS];
    int at[SPOPS_MAX_DIMS] = {0};
    int64_t count = 0;
    uint64_t key;

    if (!spops_key_fits(layout, 0, row[0])) return 0;
    for (int a = 0; a < dims; ++a) {
        spops_axis_find(&axes[a], row[a + 1], &targets[a]);
        if (targets[a].count == 0) return 0;
    }
    key = spops_key_column(layout, 0, row[0]);
    for (;;) {
        uint64_t sum = key;
        int a = dims - 1;
        for (int i = 0; i < dims; ++i)
            sum += targets[i].id[at[i]];
        keys[count++] = sum;
        while (a >= 0 && ++at[a] == targets[a].count)
            at[a--] = 0;
        if (a < 0) return count;
    }
}

// The key of an item that is a row, or NONE; *counts is whether it is dropped then.
static uint64_t item_key(const spops_coords_source *source, const spops_key_layout *layout,
                         int64_t i, bool *counts)
{
    const int columns = source->dims + 1;
    *counts = true;
    if (spops_source_has_taps(source)) {
        int32_t tap;
        const int64_t row = spops_source_tap_row(source, i, &tap);
        *counts = spops_source_tap_kept(source, i, row, tap);
        return *counts ? spops_source_tap_key(source, layout, source->rows + row * columns, tap)
                       : SPOPS_KEY_NONE;
    }
    switch (source->kind) {
    case SPOPS_COORDS_UNION:
        return spops_key_pack(layout, i < source->max_items_a
                                          ? source->rows + i * columns
                                          : source->rows_b + (i - source->max_items_a) * columns);
    case SPOPS_COORDS_KEPT: *counts = source->keep[i] != 0; break;
    default: break;
    }
    return *counts ? spops_key_pack(layout, source->rows + i * columns) : SPOPS_KEY_NONE;
}

static int64_t clamp_items(const int32_t *num_items, int64_t max_items, bool *overflow)
{
    if (num_items == NULL) return max_items;
    if (*num_items > max_items) *overflow = true;
    return *num_items < 0 ? 0 : *num_items > max_items ? max_items : *num_items;
}

// Whether item i is in use. Of a union: the items of a, or of b, that are counted. Of grown rows: the
// rows, or their taps.
typedef struct items_in_use {
    int64_t n, first_b, last_b; // n: where the last one ends
    int64_t last_a;
} items_in_use;

static items_in_use count_items(const spops_coords_source *source, bool *overflow)
{
    items_in_use use;
    const bool two = source->kind == SPOPS_COORDS_UNION;
    const int64_t max_a = two ? source->max_items_a : spops_source_max_rows(source);
    if (spops_source_has_taps(source)) {
        const int64_t rows = clamp_items(source->num_items, max_a, overflow);
        const bool grown = source->kind == SPOPS_COORDS_GROWN;
        use.first_b = grown ? max_a : source->max_items;
        use.last_a = grown ? rows : rows * source->taps.num_taps;
        use.n = use.last_b = grown ? max_a + rows * source->taps.num_taps : use.last_a;
        return use;
    }
    use.last_a = clamp_items(source->num_items, max_a, overflow);
    use.first_b = max_a;
    use.last_b = max_a + clamp_items(source->num_items_b, source->max_items - max_a, overflow);
    use.n = two ? use.last_b : use.last_a;
    return use;
}

typedef struct candidates_work {
    const spops_voxel_table *table;
    const spops_coords_source *source;
    const spops_key_layout *layout;
    const spops_curve *curve; // NULL: words have keys
    items_in_use use;
    bool window;
    int64_t each;
    int index_bits;      // 0: keys or codes alone
    uint64_t *slots;     // those of item i begin at i * each
    int32_t *slots_used; // [item], of a window
    uint64_t *keys;      // [item], of others; NULL: not wanted
    uint8_t *firsts;     // to be cleared; NULL: not wanted
    uint64_t *words;     // without holes, and their candidates where they do not hold them
    int32_t *values;
    int64_t *counts, *dropped; // [part]
    uint64_t *first, *last;    // [part] of its words in use
    bool *descends;            // [part]
    spops_axis_taps axes[SPOPS_MAX_DIMS];
} candidates_work;

// A word's bits are fewer than 64, so that none is SPOPS_KEY_NONE.
static inline uint64_t word_of(const candidates_work *w, uint64_t key, int64_t slot)
{
    return w->index_bits > 0 ? key << w->index_bits | (uint64_t)slot : key;
}

static void windows_of_part(const candidates_work *w, int64_t part, int64_t begin, int64_t end)
{
    const spops_coords_source *source = w->source;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t own =
            window_keys(source, w->layout, w->axes, source->rows + i * (source->dims + 1),
                        w->slots + i * w->each);
        w->slots_used[i] = (int32_t)own;
        count += own;
    }
    w->counts[part] = count;
    w->dropped[part] = 0;
    w->descends[part] = true;
}

// Keys of n items from i on, NONE for those without; returns how many count as left out.
static int keys_of_block(const candidates_work *w, int64_t i, int n, uint64_t *keys)
{
    int left_out = 0;
    if (w->source->kind == SPOPS_COORDS_POINTS) {
        spops_voxel_block block;
        const uint64_t none = w->table->find(w->source, i, n, block);
        const int outside = w->table->pack(w->layout, n, block, keys);
        if (none == 0) return outside;
        for (int p = 0; p < n; ++p) {
            if (none >> p & 1) keys[p] = SPOPS_KEY_NONE;
            left_out += keys[p] == SPOPS_KEY_NONE;
        }
        return left_out;
    }
    for (int p = 0; p < n; ++p) {
        const bool in_use = i + p < w->use.last_a || i + p >= w->use.first_b;
        bool is_counted = false;
        keys[p] = in_use ? item_key(w->source, w->layout, i + p, &is_counted) : SPOPS_KEY_NONE;
        left_out += keys[p] == SPOPS_KEY_NONE && is_counted;
    }
    return left_out;
}

static void slots_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const candidates_work *w = (const candidates_work *)work;
    int64_t count = 0, left_out = 0;
    uint64_t last = 0, own_keys[SPOPS_VOXEL_BLOCK], codes[SPOPS_VOXEL_BLOCK];
    bool down = false;
    if (w->firsts != NULL && begin < end)
        memset(w->firsts + begin * w->each, 0, (size_t)((end - begin) * w->each));
    if (w->window) {
        windows_of_part(w, part, begin, end);
        return;
    }
    w->first[part] = SPOPS_KEY_NONE;
    for (int64_t i = begin; i < end; i += SPOPS_VOXEL_BLOCK) {
        const int n = end - i < SPOPS_VOXEL_BLOCK ? (int)(end - i) : SPOPS_VOXEL_BLOCK;
        uint64_t *keys = w->keys != NULL ? w->keys + i : own_keys;
        const uint64_t *sorted = w->curve != NULL ? codes : keys;
        left_out += keys_of_block(w, i, n, keys);
        if (w->curve != NULL) w->table->codes(w->curve, n, keys, codes);
        for (int p = 0; p < n; ++p) {
            const bool none = keys[p] == SPOPS_KEY_NONE;
            const uint64_t own = none ? last : sorted[p];
            w->slots[i + p] = none ? SPOPS_KEY_NONE : word_of(w, own, i + p);
            if (!none && count == 0) w->first[part] = own;
            count += !none;
            down |= own < last;
            last = own;
        }
    }
    w->counts[part] = count;
    w->dropped[part] = left_out;
    w->descends[part] = down;
    w->last[part] = last;
}

static void put_word(const candidates_work *w, int64_t to, uint64_t word, int64_t slot)
{
    w->words[to] = word;
    if (w->values != NULL) w->values[to] = (int32_t)slot;
}

static void pack_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const candidates_work *w = (const candidates_work *)work;
    int64_t to = w->counts[part];
    for (int64_t i = begin; i < end; ++i) {
        if (!w->window) {
            if (w->slots[i] != SPOPS_KEY_NONE) put_word(w, to++, w->slots[i], i);
            continue;
        }
        for (int64_t used = 0; used < w->slots_used[i]; used += SPOPS_VOXEL_BLOCK) {
            const int64_t left = w->slots_used[i] - used, slot = i * w->each + used;
            const int n = left < SPOPS_VOXEL_BLOCK ? (int)left : SPOPS_VOXEL_BLOCK;
            const uint64_t *keys = w->slots + slot;
            uint64_t codes[SPOPS_VOXEL_BLOCK];
            if (w->curve != NULL) {
                w->table->codes(w->curve, n, keys, codes);
                keys = codes;
            }
            for (int p = 0; p < n; ++p)
                put_word(w, to++, word_of(w, keys[p], slot + p), slot + p);
        }
    }
}

static void number_values(const void *work, int64_t begin, int64_t end)
{
    int32_t *values = *(int32_t *const *)work;
    for (int64_t i = begin; i < end; ++i)
        values[i] = (int32_t)i;
}

// Candidates as they come: s->n, s->words and how to read them. Returns whether words ascend.
static bool find_candidates(const spops_context *ctx, const spops_coords_source *source,
                            const spops_coords_arrays *coords, const build_workspace *w,
                            sorted_candidates *s)
{
    const spops_key_layout *layout = &coords->layout;
    bool overflow = false, ascends = true;
    const items_in_use use = count_items(source, &overflow);
    const spops_team team = spops_team_for(ctx, use.n);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    int64_t counts[MAX_PARTS], dropped[MAX_PARTS];
    uint64_t first[MAX_PARTS], last[MAX_PARTS], before = 0;
    bool descends[MAX_PARTS];
    spops_curve curve;
    candidates_work work = {.table = spops_voxel_table_of(ctx),
                            .source = source,
                            .layout = layout,
                            .use = use,
                            .each = 1};

    work.window = source->kind == SPOPS_COORDS_DOWN || source->kind == SPOPS_COORDS_UP;
    if (source->max_items > 0) work.each = source->max_candidates / source->max_items;
    s->each = work.each;
    s->window = work.window;
    s->num_slots = use.n * work.each;
    if (!w->wide) work.index_bits = number_bits(s->num_slots);
    if (s->by_code) {
        curve = spops_curve_make(layout, coords->order);
        work.curve = &curve;
    }
    // Keys of windows stay where they are found, if they are wanted.
    work.slots = work.window && w->keys != NULL ? w->keys : w->sort.keys[0];
    work.slots_used = w->starts;
    if (!work.window) work.keys = w->keys;
    work.firsts = w->firsts;
    s->keys = w->keys;
    work.words = w->sort.keys[1];
    work.values = w->wide ? w->sort.values[1] : NULL;
    work.counts = counts;
    work.dropped = dropped;
    work.first = first;
    work.last = last;
    work.descends = descends;
    for (int a = 0; work.window && a < source->dims; ++a)
        work.axes[a] = spops_axis_taps_make(&source->taps, a, source->kind == SPOPS_COORDS_DOWN,
                                            layout, key_scale(layout, a + 1));
    spops_parallel_parts(team, num_parts, use.n, slots_of_part, &work);
    for (int part = 0; part < num_parts; ++part) {
        ascends &= !descends[part];
        if (work.window || counts[part] == 0) continue;
        ascends &= first[part] >= before;
        before = last[part];
    }
    s->n = scan_parts(counts, num_parts);
    s->index_bits = work.index_bits;
    s->words = work.slots;
    s->values = NULL;
    if (work.window || s->n < use.n) {
        spops_parallel_parts(team, num_parts, use.n, pack_part, &work);
        s->words = work.words;
        s->values = work.values;
    }
    s->state.num_dropped = (int32_t)scan_parts(dropped, num_parts);
    s->state.overflow = overflow;
    return ascends;
}

// ---- Runs ---------------------------------------------------------------------------------------

// What position p is sorted by.
static inline uint64_t sorted_at(const sorted_candidates *s, int64_t p)
{
    return s->words[p] >> s->index_bits;
}

static inline int64_t candidate_at(const sorted_candidates *s, int64_t p)
{
    if (s->index_bits > 0) return (int64_t)(s->words[p] & (((uint64_t)1 << s->index_bits) - 1));
    return s->values != NULL ? s->values[p] : p;
}

static inline uint64_t key_at(const sorted_candidates *s, int64_t p)
{
    return s->by_code ? s->keys[candidate_at(s, p)] : sorted_at(s, p);
}

// What differs from sorted_at(p) if a run begins at p.
static inline uint64_t sorted_before(const sorted_candidates *s, int64_t p)
{
    return p > 0 ? sorted_at(s, p - 1) : SPOPS_KEY_NONE;
}

static void sort_words(spops_team team, int bits, const build_workspace *w, sorted_candidates *s)
{
    const int from = s->words == w->sort.keys[0] ? 0 : 1, low = s->index_bits;
    if (!w->wide) {
        s->words = spops_word_sort(team, s->n, low, low + bits, w->sort.keys[from],
                                   w->sort.keys[1 - from], w->counts);
        return;
    }
    int32_t *values = w->sort.values[from];
    if (s->values == NULL) spops_parallel_for(team, s->n, 0, number_values, &values);
    const int at = spops_radix_sort(team, bits, s->n, &w->sort, from);
    s->words = w->sort.keys[at];
    s->values = w->sort.values[at];
}

typedef struct first_duplicate {
    int64_t candidate, of; // INT64_MAX: none
} first_duplicate;

typedef struct runs_work {
    const sorted_candidates *s;
    int32_t *starts;
    uint8_t *firsts;        // NULL: not wanted
    first_duplicate *found; // [part]; NULL: not wanted
    int64_t *counts;        // [part]
} runs_work;

// The first candidate of a part that is not the first of its run: the second of one, as candidates of
// a run are in order.
static first_duplicate duplicate_of_part(const sorted_candidates *s, int64_t begin, int64_t end)
{
    first_duplicate first = {INT64_MAX, 0};
    for (int64_t p = begin > 0 ? begin : 1; p < end; ++p)
        if (sorted_at(s, p) == sorted_at(s, p - 1) && candidate_at(s, p) < first.candidate)
            first = (first_duplicate){candidate_at(s, p), candidate_at(s, p - 1)};
    return first;
}

static void runs_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const runs_work *r = (const runs_work *)work;
    const sorted_candidates *s = r->s;
    int32_t *starts = begin < end ? r->starts + begin : NULL;
    uint64_t last = sorted_before(s, begin);
    int64_t count = 0, back = end - begin - 1;
    for (int64_t p = begin; p < end; ++p) {
        const uint64_t own = sorted_at(s, p);
        const bool head = own != last;
        last = own;
        if (s->by_first) { // the same for all: two loops
            starts[head ? count : back] = (int32_t)p;
            back -= !head;
        } else {
            starts[count] = (int32_t)p;
        }
        count += head;
    }
    r->counts[part] = count;
    for (int64_t k = 0; r->firsts != NULL && k < count; ++k)
        r->firsts[candidate_at(s, starts[k])] = 1;
    if (r->found != NULL) r->found[part] = duplicate_of_part(s, begin, end);
}

static void find_runs(spops_team team, const build_workspace *w, bool duplicates,
                      sorted_candidates *s)
{
    first_duplicate found[MAX_PARTS], first = {INT64_MAX, 0};
    const runs_work work = {s, w->starts, s->by_first ? w->firsts : NULL, duplicates ? found : NULL,
                            s->runs};
    int64_t next = s->n;

    s->num_parts = spops_team_parts(team, MAX_PARTS);
    spops_parallel_parts(team, s->num_parts, s->n, runs_of_part, &work);
    for (int part = s->num_parts - 1; part >= 0; --part) {
        s->next[part] = next;
        if (s->runs[part] > 0) next = w->starts[spops_part_begin(s->n, part, s->num_parts)];
        if (duplicates && found[part].candidate < first.candidate) first = found[part];
    }
    s->runs[s->num_parts] = scan_parts(s->runs, s->num_parts);
    s->state.num_merged = (int32_t)(s->n - s->runs[s->num_parts]);
    s->state.duplicate = first.candidate == INT64_MAX ? -1 : (int32_t)first.candidate;
    s->state.duplicate_of = (int32_t)first.of;
}

// All that can be known of a set before there are arrays for its rows.
static void sort_candidates(const spops_context *ctx, const spops_coords_build_args *args,
                            const build_workspace *w)
{
    const spops_coords_source *source = args->source;
    const spops_coords_arrays *coords = args->coords;
    sorted_candidates *s = w->sorted;
    const bool given = coords->order == SPOPS_COORDS_ORDER_GIVEN;
    bool ascends;
    spops_team team;

    memset(s, 0, sizeof *s);
    s->by_code = along_curve(coords->order);
    ascends = find_candidates(ctx, source, coords, w, s);
    team = spops_team_for(ctx, s->n);
    s->by_key = !s->by_code;
    if (!ascends && given && source->unique) {
        s->by_key = false; // a candidate is a run, as it comes
    } else if (!ascends) {
        sort_words(team, sorted_bits(coords, s->by_code), w, s);
        s->by_first = given;
    }
    find_runs(team, w, source->kind == SPOPS_COORDS_ROWS, s);
    s->state.num_rows = (int32_t)s->runs[s->num_parts];
}

// ---- Rows ---------------------------------------------------------------------------------------

typedef struct rows_work {
    const spops_voxel_table *table;
    const spops_coords_arrays *coords;
    const sorted_candidates *s;
    const build_workspace *w;
    int64_t max_rows;
    int32_t *row_offsets, *row_items; // of the source
    spops_cpu_index index;            // to be filled, if it has sorted keys
    uint64_t *key_words; // or else: each row's key as a word, with the row in its lowest bits
    int row_bits;
    int32_t *first_rows; // [first candidate] its row, -1 past max_rows
    int64_t *counts;     // [part] of first candidates, then of candidates of rows
} rows_work;

static inline int64_t item_of(const sorted_candidates *s, int64_t candidate)
{
    return s->window ? candidate / s->each : candidate;
}

// What follows from the keys of n rows from `row` on.
static void finish_rows(const rows_work *r, int64_t row, int64_t n)
{
    const spops_coords_arrays *coords = r->coords;
    if (n <= 0) return;
    r->table->unpack(&coords->layout, n, coords->keys + row,
                     coords->rows + row * (coords->layout.dims + 1));
    for (int64_t i = row; r->key_words != NULL && i < row + n; ++i)
        r->key_words[i] = coords->keys[i] << r->row_bits | (uint64_t)i;
}

static void count_firsts(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    const uint8_t *firsts = r->w->firsts;
    int64_t count = 0;
    for (int64_t c = begin; c < end; ++c)
        count += firsts[c];
    r->counts[part] = count;
}

// Rows in their order, which is that of the first candidates: every array is written from its begin
// to its end. row_offsets: a row's count of candidates as long as it is not known to have more.
static void write_firsts(const void *work, int64_t part, int64_t begin, int64_t end)
{
    enum { BLOCK = 256 };
    const rows_work *r = (const rows_work *)work;
    const spops_coords_arrays *coords = r->coords;
    const uint8_t *firsts = r->w->firsts;
    int64_t row = r->counts[part];
    for (int64_t from = begin; from < end; from += BLOCK) {
        const int64_t to = end - from < BLOCK ? end : from + BLOCK;
        int32_t found[BLOCK];
        int64_t n = 0, fit;
        for (int64_t c = from; c < to; ++c) {
            const bool fits = firsts[c] != 0 && row + n < r->max_rows;
            found[n] = (int32_t)c;
            r->first_rows[c] = fits ? (int32_t)(row + n) : -1;
            n += firsts[c];
        }
        fit = row >= r->max_rows ? 0 : r->max_rows - row < n ? r->max_rows - row : n;
        for (int64_t k = 0; k < fit; ++k) {
            coords->keys[row + k] = r->s->keys[found[k]];
            coords->row_item[row + k] = (int32_t)item_of(r->s, found[k]);
        }
        finish_rows(r, row, fit);
        for (int64_t k = 0; r->row_offsets != NULL && k < fit; ++k)
            r->row_offsets[row + k] = 1;
        row += n;
    }
}

// Runs of a part as rows, one after the other. row_offsets: where their candidates begin.
static void write_runs(const rows_work *r, int64_t part, const int32_t *starts)
{
    const sorted_candidates *s = r->s;
    const spops_coords_arrays *coords = r->coords;
    const int64_t first = s->runs[part], num_runs = s->runs[part + 1] - first;
    const int64_t left = r->max_rows > first ? r->max_rows - first : 0;
    const int64_t n = num_runs < left ? num_runs : left;
    int64_t i;

    for (i = 0; i < n; ++i) {
        const int64_t p = starts[i];
        coords->keys[first + i] = key_at(s, p);
        coords->row_item[first + i] = (int32_t)item_of(s, candidate_at(s, p));
    }
    finish_rows(r, first, n);
    for (i = 0; r->index.sorted_rows != NULL && i < n; ++i) {
        r->index.sorted_keys[first + i] = coords->keys[first + i];
        r->index.sorted_rows[first + i] = (int32_t)(first + i);
    }
    // One more than rows that fit: where those that do not begin.
    const int64_t num_offsets = num_runs < left + 1 ? num_runs : left + 1;
    if (r->row_offsets != NULL && num_runs > 0 && first <= r->max_rows)
        memcpy(r->row_offsets + first, starts, (size_t)num_offsets * sizeof *starts);
}

// What is known of rows by their runs, where rows are numbered otherwise. starts becomes the rows of
// the runs.
static void write_runs_of_firsts(const rows_work *r, int64_t part, int32_t *starts)
{
    const sorted_candidates *s = r->s;
    const int64_t first = s->runs[part], n = s->runs[part + 1] - first;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t p = starts[i], end = i + 1 < n ? starts[i + 1] : s->next[part];
        const int32_t row = r->first_rows[candidate_at(s, p)];
        if (r->index.sorted_rows != NULL) {
            r->index.sorted_keys[first + i] = sorted_at(s, p);
            r->index.sorted_rows[first + i] = row;
        }
        if (end - p > 1 && r->row_offsets != NULL && row >= 0)
            r->row_offsets[row] = (int32_t)(end - p);
        starts[i] = row;
    }
}

// The row of every item, and the items of rows, where rows are runs.
static void write_items(const rows_work *r, int64_t part, int64_t begin, int64_t end)
{
    const sorted_candidates *s = r->s;
    const int32_t max_rows = (int32_t)r->max_rows;
    int32_t *item_row = r->coords->item_row, *row_items = r->row_items;
    uint64_t last = sorted_before(s, begin);
    int32_t row = (int32_t)s->runs[part] - 1;
    for (int64_t p = begin; p < end; ++p) {
        const int64_t ahead = p + ITEMS_AHEAD;
        const uint64_t own = sorted_at(s, p);
        if (ahead < end) spops_fetch_to_write(item_row + candidate_at(s, ahead));
        const int64_t item = candidate_at(s, p);
        row += own != last;
        last = own;
        item_row[item] = row < max_rows ? row : -1;
        if (row_items != NULL) row_items[p] = (int32_t)item;
    }
}

static void write_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    if (begin == end) return;
    if (r->s->by_first) {
        write_runs_of_firsts(r, part, r->w->starts + begin);
        return;
    }
    write_runs(r, part, r->w->starts + begin);
    if (r->coords->item_row != NULL) write_items(r, part, begin, end);
}

// What write_items does, where rows are numbered by their first candidates: those are in their rows
// already and go first, in the order of the rows; the others follow the runs.
static void place_items(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    const sorted_candidates *s = r->s;
    const int64_t rows = s->runs[s->num_parts] < r->max_rows ? s->runs[s->num_parts] : r->max_rows;
    const int64_t num_starts = s->runs[part + 1] - s->runs[part];
    const int32_t *starts = begin < end ? r->w->starts + begin : NULL, *offsets = r->row_offsets;
    int32_t *item_row = r->coords->item_row, *row_items = r->row_items;
    int64_t num_before = 0, to = -1, row = -1;

    for (int64_t o = spops_part_begin(rows, part, s->num_parts);
         row_items != NULL && o < spops_part_begin(rows, part + 1, s->num_parts); ++o)
        row_items[offsets[o]] = r->coords->row_item[o];
    if (begin < end && num_starts < end - begin && begin > 0 &&
        sorted_at(s, begin) == sorted_at(s, begin - 1)) { // the run that goes on here
        int64_t start = begin - 1;
        while (start > 0 && sorted_at(s, start) == sorted_at(s, start - 1))
            --start;
        row = r->first_rows[candidate_at(s, start)];
        if (row_items != NULL && row >= 0) to = offsets[row] + (begin - 1 - start);
    }
    for (int64_t k = 0; k < end - begin - num_starts; ++k) {
        const int64_t p = starts[end - begin - 1 - k], item = candidate_at(s, p);
        const int64_t num_starts_before = p - begin - k;
        if (num_starts_before != num_before) {
            num_before = num_starts_before;
            row = starts[num_before - 1];
            if (row_items != NULL && row >= 0) to = offsets[row];
        }
        if (row < 0) continue;
        item_row[item] = (int32_t)row;
        if (row_items != NULL) row_items[++to] = (int32_t)item;
    }
}

static void sum_counts(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    int64_t sum = 0;
    for (int64_t row = begin; row < end; ++row)
        sum += r->row_offsets[row];
    r->counts[part] = sum;
}

static void offsets_of_counts(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    int32_t sum = (int32_t)r->counts[part];
    for (int64_t row = begin; row < end; ++row) {
        const int32_t own = r->row_offsets[row];
        r->row_offsets[row] = sum;
        sum += own;
    }
}

// row_offsets after the rows in use, and all of it where it has counts.
static void finish_offsets(spops_team team, rows_work *r)
{
    const sorted_candidates *s = r->s;
    const int64_t num_runs = s->runs[s->num_parts];
    const int64_t n = num_runs < r->max_rows ? num_runs : r->max_rows;
    int64_t counts[MAX_PARTS], num_items = s->n;

    if (s->by_first) {
        const int num_parts = spops_team_parts(team, MAX_PARTS);
        r->counts = counts;
        spops_parallel_parts(team, num_parts, n, sum_counts, r);
        num_items = scan_parts(counts, num_parts);
        spops_parallel_parts(team, num_parts, n, offsets_of_counts, r);
    }
    for (int64_t row = num_runs; row <= r->max_rows; ++row)
        r->row_offsets[row] = (int32_t)s->n;
    if (s->by_first && num_runs > r->max_rows) r->row_offsets[r->max_rows] = (int32_t)num_items;
}

static void write_rows(spops_team team, rows_work *work)
{
    const spops_coords_arrays *coords = work->coords;
    const sorted_candidates *s = work->s;
    // What write_firsts and write_part do not write.
    const int64_t known = s->by_first ? s->num_slots : s->n < coords->max_items ? 0 : s->n;

    if (coords->item_row != NULL && known < coords->max_items)
        memset(coords->item_row + known, 0xff,
               (size_t)(coords->max_items - known) * sizeof *coords->item_row);
    if (s->by_first) {
        int64_t counts[MAX_PARTS];
        const int num_parts = spops_team_parts(team, MAX_PARTS);
        work->counts = counts;
        work->first_rows = coords->item_row != NULL ? coords->item_row : work->w->first_rows;
        spops_parallel_parts(team, num_parts, s->num_slots, count_firsts, work);
        (void)scan_parts(counts, num_parts);
        spops_parallel_parts(team, num_parts, s->num_slots, write_firsts, work);
    }
    spops_parallel_parts(team, s->num_parts, s->n, write_part, work);
    if (work->row_offsets != NULL) finish_offsets(team, work);
    if (s->by_first && coords->item_row != NULL)
        spops_parallel_parts(team, s->num_parts, s->n, place_items, work);
}

// ---- Index --------------------------------------------------------------------------------------

typedef struct index_work {
    const spops_coords_arrays *coords;
    const spops_cpu_index *index;
    int64_t *counts; // [part]
    uint64_t *words; // of rows to sort
    int row_bits;
} index_work;

static void clear_slots(const void *work, int64_t begin, int64_t end)
{
    const spops_cpu_index *index = ((const index_work *)work)->index;
    for (int64_t i = begin; i < end; ++i)
        index->slots[i] = (spops_hash_slot){SPOPS_KEY_NONE, -1};
}

// Which slot a key gets depends on timing; which row is found does not, as keys are unique.
static void insert_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_cpu_index *index = ((const index_work *)work)->index;
    const uint64_t *keys = ((const index_work *)work)->coords->keys;
    const uint64_t mask = ((uint64_t)1 << index->slot_bits) - 1;
    for (int64_t row = begin; row < end; ++row) {
        uint64_t at = spops_hash_of(keys[row], index->slot_bits);
        uint64_t none = SPOPS_KEY_NONE;
        while (!__atomic_compare_exchange_n(&index->slots[at].key, &none, keys[row], false,
                                            __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            none = SPOPS_KEY_NONE;
            at = (at + 1) & mask;
        }
        index->slots[at].row = row;
    }
}

static void fill_hash(const spops_context *ctx, const index_work *work)
{
    const int64_t num_slots = (int64_t)1 << work->index->slot_bits;
    const spops_team team = spops_team_for(ctx, num_slots);
    spops_parallel_for(team, num_slots, 0, clear_slots, work);
    spops_parallel_for(team, work->index->num_rows, 0, insert_rows, work);
}

static void clear_words(const void *work, int64_t begin, int64_t end)
{
    const spops_cpu_index *index = ((const index_work *)work)->index;
    memset(index->words + begin, 0, (size_t)(end - begin) * sizeof *index->words);
}

static void set_cells(const void *work, int64_t begin, int64_t end)
{
    const spops_cpu_index *index = ((const index_work *)work)->index;
    const spops_coords_arrays *coords = ((const index_work *)work)->coords;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t cell = spops_grid_cell(index, &coords->layout, coords->keys[row]);
        __atomic_fetch_or(&index->words[cell / 64], (uint64_t)1 << (cell % 64), __ATOMIC_RELAXED);
    }
}

static void count_cells(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const spops_cpu_index *index = ((const index_work *)work)->index;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
        index->ranks[i] = (int32_t)count;
        count += __builtin_popcountll(index->words[i]);
    }
    ((const index_work *)work)->counts[part] = count;
}

static void shift_ranks(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const spops_cpu_index *index = ((const index_work *)work)->index;
    const int64_t before = ((const index_work *)work)->counts[part];
    for (int64_t i = begin; i < end && before > 0; ++i)
        index->ranks[i] += (int32_t)before;
}

static void rank_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_cpu_index *index = ((const index_work *)work)->index;
    const spops_coords_arrays *coords = ((const index_work *)work)->coords;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t cell = spops_grid_cell(index, &coords->layout, coords->keys[row]);
        const uint64_t below = index->words[cell / 64] & (((uint64_t)1 << (cell % 64)) - 1);
        index->ranked_rows[index->ranks[cell / 64] + __builtin_popcountll(below)] = (int32_t)row;
    }
}

static void fill_grid(const spops_context *ctx, const index_work *work)
{
    const int64_t num_words = work->index->num_words, n = work->index->num_rows;
    const spops_team team = spops_team_for(ctx, num_words), row_team = spops_team_for(ctx, n);
    const int num_parts = spops_team_parts(team, MAX_PARTS);

    spops_parallel_for(team, num_words, 0, clear_words, work);
    spops_parallel_for(row_team, n, 0, set_cells, work);
    spops_parallel_parts(team, num_parts, num_words, count_cells, work);
    (void)scan_parts(work->counts, num_parts);
    spops_parallel_parts(team, num_parts, num_words, shift_ranks, work);
    spops_parallel_for(row_team, n, 0, rank_rows, work);
}

static void copy_keys(const void *work, int64_t begin, int64_t end)
{
    const index_work *w = (const index_work *)work;
    for (int64_t row = begin; row < end; ++row) {
        w->index->sorted_keys[row] = w->coords->keys[row];
        w->index->sorted_rows[row] = (int32_t)row;
    }
}

static void keys_of_words(const void *work, int64_t begin, int64_t end)
{
    const index_work *w = (const index_work *)work;
    const uint64_t mask = ((uint64_t)1 << w->row_bits) - 1;
    for (int64_t i = begin; i < end; ++i) {
        w->index->sorted_keys[i] = w->words[i] >> w->row_bits;
        w->index->sorted_rows[i] = (int32_t)(w->words[i] & mask);
    }
}

static void fill_sorted(const spops_context *ctx, index_work *work, const build_workspace *w)
{
    const spops_coords_arrays *coords = work->coords;
    const spops_cpu_index *index = work->index;
    const int64_t n = index->num_rows;
    const spops_team team = spops_team_for(ctx, n);
    if (work->words != NULL) {
        uint64_t *spare = work->words == w->sort.keys[0] ? w->sort.keys[1] : w->sort.keys[0];
        work->words =
            spops_word_sort(team, n, work->row_bits, work->row_bits + coords->layout.key_bits,
                            work->words, spare, w->counts);
        spops_parallel_for(team, n, 0, keys_of_words, work);
        return;
    }
    spops_radix_buffers direct = w->sort; // into the index itself, by way of the workspace
    direct.keys[0] = index->sorted_keys;
    direct.values[0] = index->sorted_rows;
    direct.keys[1] = w->sort.keys[0];
    direct.values[1] = w->sort.values[0];
    spops_parallel_for(team, n, 0, copy_keys, work);
    if (spops_radix_sort(team, coords->layout.key_bits, n, &direct, 0) == 0) return;
    memcpy(index->sorted_keys, w->sort.keys[0], (size_t)n * sizeof *index->sorted_keys);
    memcpy(index->sorted_rows, w->sort.values[0], (size_t)n * sizeof *index->sorted_rows);
}

// ---- Build --------------------------------------------------------------------------------------

static build_workspace workspace_of(const spops_coords_build_args *args)
{
    const int64_t max_candidates = args->source->max_candidates;
    const int64_t max_rows = args->coords->max_rows;
    spops_carver carver = {(char *)args->workspace, 0};
    return carve_workspace(args->coords, max_candidates > max_rows ? max_candidates : max_rows,
                           &carver);
}

spops_status spops_cpu_coords_sort(spops_context *ctx, const spops_coords_build_args *args)
{
    const build_workspace w = workspace_of(args);
    sort_candidates(ctx, args, &w);
    *args->coords->state = w.sorted->state;
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_coords_build(spops_context *ctx, const spops_coords_build_args *args)
{
    const spops_coords_arrays *coords = args->coords;
    const build_workspace w = workspace_of(args);
    sorted_candidates *s = w.sorted;
    int64_t counts[MAX_PARTS];
    spops_cpu_index index;
    rows_work rows = {.table = spops_voxel_table_of(ctx), .coords = coords, .s = s, .w = &w};
    index_work index_rows = {coords, &index, counts, NULL, 0};
    bool all_fit;

    if (!args->sorted) sort_candidates(ctx, args, &w);
    all_fit = s->state.num_rows <= coords->max_rows;
    *coords->state = s->state;
    if (!all_fit) {
        coords->state->num_rows = (int32_t)coords->max_rows;
        coords->state->overflow = 1;
    }
    index = spops_cpu_index_of(coords);
    rows.max_rows = coords->max_rows;
    rows.row_offsets = args->source->row_offsets;
    rows.row_items = args->source->row_items;
    if (s->by_key && all_fit) rows.index = index;
    if (index.late != NULL) __atomic_store_n(index.late, SPOPS_LATE_WANTED, __ATOMIC_RELEASE);
    const bool sorts =
        index.sorted_rows != NULL && index.late == NULL && rows.index.sorted_rows == NULL;
    if (sorts && !w.wide) {
        rows.key_words = index_rows.words =
            s->words == w.sort.keys[0] ? w.sort.keys[1] : w.sort.keys[0];
        rows.row_bits = index_rows.row_bits = number_bits(index.num_rows);
    }
    write_rows(spops_team_for(ctx, s->n), &rows);
    if (index.slots != NULL) fill_hash(ctx, &index_rows);
    if (index.words != NULL) fill_grid(ctx, &index_rows);
    if (sorts) fill_sorted(ctx, &index_rows, &w);
    return SPOPS_STATUS_OK;
}

static void batches_of_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_coords_batches_args *args = (const spops_coords_batches_args *)work;
    const int64_t columns = args->coords->layout.dims + 1;
    for (int64_t row = begin; row < end; ++row)
        args->batches[row] = args->coords->rows[row * columns];
}

spops_status spops_cpu_coords_batches(spops_context *ctx, const spops_coords_batches_args *args)
{
    const int64_t n = args->coords->state->num_rows;
    spops_parallel_for(spops_team_for(ctx, n), n, 0, batches_of_rows, args);
    return SPOPS_STATUS_OK;
}
