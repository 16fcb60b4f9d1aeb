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
#include "core/radix_sort.h"
#include "core/threads.h"
#include "core/word_sort.h"

#define MAX_PARTS 64

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

// A block of points at once, if none of them is bad; false, and b as it was, if one may be.
static bool grow_by_block(const spops_voxel_table *table, const spops_coords_source *source,
                          const spops_coords_box *box, int64_t begin, int n, spops_coords_bounds *b)
{
    int32_t lower[SPOPS_KEY_COLUMNS], upper[SPOPS_KEY_COLUMNS];
    spops_voxel_block block;
    if (table->find(source, begin, n, block) != 0) return false;
    table->bounds(n, source->dims + 1, block, lower, upper);
    for (int c = 0; c <= source->dims; ++c)
        if (box != NULL && (lower[c] < box->lower[c] || upper[c] > box->upper[c])) return false;
    for (int c = 0; c <= source->dims; ++c) {
        b->lower[c] = lower[c] < b->lower[c] ? lower[c] : b->lower[c];
        b->upper[c] = upper[c] > b->upper[c] ? upper[c] : b->upper[c];
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
    for (int c = 0; c <= source->dims; ++c)
        b->lower[c] = INT32_MAX, b->upper[c] = INT32_MIN;
    for (int64_t i = begin; i < end && b->bad_item < 0; i += SPOPS_VOXEL_BLOCK) {
        const int n = end - i < SPOPS_VOXEL_BLOCK ? (int)(end - i) : SPOPS_VOXEL_BLOCK;
        if (source->kind != SPOPS_COORDS_POINTS ||
            !grow_by_block(w->table, source, w->args->box, i, n, b))
            grow_bounds(source, w->args->box, i, i + n, b);
    }
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
//     candidates  the key of each, from its item; a candidate's number is its item's, or that
//                 times the most candidates an item has
//     sorted      candidates by key, equal ones in their order: each run of them is a row
//     numbered    which row a run is: the run's number (lexicographic), by its first candidate
//                 (given), or by the code of its key along a curve
//     written     rows, the row of each item, the items of each row, the index of sorted keys
typedef struct sorted_candidates {
    int64_t n, num_slots; // candidates, and the numbers that they may have
    int64_t each;         // numbers for an item
    // Position p has the key words[p] >> index_bits, and its candidate is in the bits below; where
    // keys take too many bits, its key is words[p] and its candidate values[p] (NULL: p).
    const uint64_t *words;
    const int32_t *values;
    int index_bits;
    const uint64_t *keys; // [candidate], where rows by first candidates can be written from them
    bool by_key;
    enum { ROWS_BY_RUN, ROWS_BY_FIRST, ROWS_BY_CODE } numbering;
    int num_parts;               // of the positions
    int64_t runs[MAX_PARTS + 1]; // before each part; the last: all
    spops_coords_state state;
} sorted_candidates;

typedef struct build_workspace {
    sorted_candidates *sorted;
    spops_radix_buffers sort; // of candidates; keys alone where words hold both
    int32_t *counts;          // of sorts of words
    int32_t *run_rows;        // [run]; of an item before: how many candidates it has
    uint8_t *firsts;          // [candidate] whether it begins a run
    uint64_t *keys;           // [candidate], for sets in the given order
    uint64_t *first_bits;     // firsts by bit, and how many there are before each 64
    int32_t *first_ranks;
    spops_order_codes *codes; // these two for orders along a curve
    spops_radix_buffers code_sort;
} build_workspace;

static build_workspace carve_workspace(const spops_coords_arrays *coords, int64_t max_candidates,
                                       spops_carver *c)
{
    const bool curve =
        coords->order == SPOPS_COORDS_ORDER_MORTON || coords->order == SPOPS_COORDS_ORDER_HILBERT;
    build_workspace w;
    memset(&w, 0, sizeof w);
    w.sorted = spops_carve(c, 1, 1, sizeof *w.sorted);
    w.sort = spops_radix_carve(sizeof(uint64_t), max_candidates, c);
    w.counts = spops_carve(c, (int64_t)spops_word_counts(max_candidates), 1, sizeof *w.counts);
    w.run_rows = spops_carve(c, max_candidates, 1, sizeof *w.run_rows);
    w.firsts = spops_carve(c, max_candidates / 64 + 1, 64, sizeof *w.firsts);
    if (coords->order == SPOPS_COORDS_ORDER_GIVEN)
        w.keys = spops_carve(c, max_candidates, 1, sizeof *w.keys);
    w.first_bits = spops_carve(c, max_candidates / 64 + 1, 1, sizeof *w.first_bits);
    w.first_ranks = spops_carve(c, max_candidates / 64 + 1, 1, sizeof *w.first_ranks);
    if (!curve) return w;
    w.codes = spops_carve(c, 1, 1, sizeof *w.codes);
    w.code_sort = spops_radix_carve(sizeof(uint64_t), max_candidates, c);
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

// Whether item i of a union is in use: those of a, or of b, that are counted.
typedef struct items_in_use {
    int64_t n, first_b, last_b; // n: where the last one ends
    int64_t last_a;
} items_in_use;

static items_in_use count_items(const spops_coords_source *source, bool *overflow)
{
    items_in_use use;
    const bool two = source->kind == SPOPS_COORDS_UNION;
    const int64_t max_a = two ? source->max_items_a : source->max_items;
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
    items_in_use use;
    bool window;
    int64_t each;
    int index_bits;      // 0: keys alone
    uint64_t *slots;     // those of item i begin at i * each
    int32_t *slots_used; // [item], of a window
    uint64_t *keys;      // [item], of others; NULL: not wanted
    uint64_t *words;     // without holes, and their candidates where keys are alone
    int32_t *values;
    int64_t *counts, *dropped; // [part]
    uint64_t *first, *last;    // [part] of its slots in use
    bool *descends;            // [part]
    spops_axis_taps axes[SPOPS_MAX_DIMS];
} candidates_work;

// A word's bits are fewer than 64, so that none is SPOPS_KEY_NONE.
static uint64_t word_of(const candidates_work *w, uint64_t key, int64_t slot)
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
        w->table->pack(w->layout, n, block, keys);
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
    uint64_t last = 0, keys[SPOPS_VOXEL_BLOCK];
    bool down = false;
    if (w->window) {
        windows_of_part(w, part, begin, end);
        return;
    }
    w->first[part] = SPOPS_KEY_NONE;
    for (int64_t i = begin; i < end; i += SPOPS_VOXEL_BLOCK) {
        const int n = end - i < SPOPS_VOXEL_BLOCK ? (int)(end - i) : SPOPS_VOXEL_BLOCK;
        left_out += keys_of_block(w, i, n, keys);
        if (w->keys != NULL) memcpy(w->keys + i, keys, (size_t)n * sizeof *keys);
        for (int p = 0; p < n; ++p) {
            if (keys[p] == SPOPS_KEY_NONE) {
                w->slots[i + p] = SPOPS_KEY_NONE;
                continue;
            }
            w->slots[i + p] = word_of(w, keys[p], i + p);
            if (count++ == 0) w->first[part] = keys[p];
            down |= keys[p] < last;
            last = keys[p];
        }
    }
    w->counts[part] = count;
    w->dropped[part] = left_out;
    w->descends[part] = down;
    w->last[part] = last;
}

static void pack_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const candidates_work *w = (const candidates_work *)work;
    int64_t to = w->counts[part];
    for (int64_t i = begin; i < end; ++i) {
        if (w->window) {
            for (int64_t slot = i * w->each; slot < i * w->each + w->slots_used[i]; ++slot) {
                w->words[to] = word_of(w, w->slots[slot], slot);
                w->values[to++] = (int32_t)slot;
            }
        } else if (w->slots[i] != SPOPS_KEY_NONE) {
            w->words[to] = w->slots[i];
            w->values[to++] = (int32_t)i;
        }
    }
}

static void number_values(const void *work, int64_t begin, int64_t end)
{
    int32_t *values = *(int32_t *const *)work;
    for (int64_t i = begin; i < end; ++i)
        values[i] = (int32_t)i;
}

// Candidates as they come: s->n, s->words and how to read them. Returns whether keys ascend.
static bool find_candidates(const spops_context *ctx, const spops_coords_source *source,
                            const spops_key_layout *layout, const build_workspace *w,
                            sorted_candidates *s)
{
    bool overflow = false, ascends = true;
    const items_in_use use = count_items(source, &overflow);
    const spops_team team = spops_team_for(ctx, use.n);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    int64_t counts[MAX_PARTS], dropped[MAX_PARTS];
    uint64_t first[MAX_PARTS], last[MAX_PARTS], before = 0;
    bool descends[MAX_PARTS];
    candidates_work work = {.table = spops_voxel_table_of(ctx),
                            .source = source,
                            .layout = layout,
                            .use = use,
                            .each = 1};

    work.window = source->kind == SPOPS_COORDS_DOWN || source->kind == SPOPS_COORDS_UP;
    if (source->max_items > 0) work.each = source->max_candidates / source->max_items;
    s->each = work.each;
    s->num_slots = use.n * work.each;
    work.index_bits = spops_bits_below(s->num_slots) > 0 ? spops_bits_below(s->num_slots) : 1;
    if (layout->key_bits + work.index_bits > 63) work.index_bits = 0;
    work.slots = w->sort.keys[0];
    work.slots_used = w->run_rows;
    work.keys = w->keys;
    s->keys = work.window ? NULL : w->keys;
    work.words = w->sort.keys[1];
    work.values = w->sort.values[1];
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
        if (work.index_bits == 0) s->values = work.values;
    }
    s->state.num_dropped = (int32_t)scan_parts(dropped, num_parts);
    s->state.overflow = overflow;
    return ascends;
}

// ---- Runs ---------------------------------------------------------------------------------------

static inline uint64_t key_at(const sorted_candidates *s, int64_t p)
{
    return s->words[p] >> s->index_bits;
}

static inline int64_t candidate_at(const sorted_candidates *s, int64_t p)
{
    if (s->index_bits > 0) return (int64_t)(s->words[p] & (((uint64_t)1 << s->index_bits) - 1));
    return s->values != NULL ? s->values[p] : p;
}

static inline bool is_head(const sorted_candidates *s, int64_t p)
{
    return p == 0 || key_at(s, p) != key_at(s, p - 1);
}

static void sort_by_key(spops_team team, const spops_key_layout *layout, const build_workspace *w,
                        sorted_candidates *s)
{
    const int from = s->words == w->sort.keys[0] ? 0 : 1, low = s->index_bits;
    if (low > 0) {
        s->words = spops_word_sort(team, s->n, low, low + layout->key_bits, w->sort.keys[from],
                                   w->sort.keys[1 - from], w->counts);
        return;
    }
    int32_t *values = w->sort.values[from];
    if (s->values == NULL) spops_parallel_for(team, s->n, 0, number_values, &values);
    const int at = spops_radix_sort(team, layout->key_bits, s->n, &w->sort, from);
    s->words = w->sort.keys[at];
    s->values = w->sort.values[at];
}

typedef struct first_duplicate {
    int32_t candidate, of; // INT32_MAX: none
} first_duplicate;

typedef struct runs_work {
    const sorted_candidates *s;
    uint8_t *firsts;
    int64_t *counts;        // [part]
    first_duplicate *found; // [part]
} runs_work;

static void runs_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const runs_work *r = (const runs_work *)work;
    const sorted_candidates *s = r->s;
    first_duplicate own = {INT32_MAX, INT32_MAX};
    bool head = begin > 0 && is_head(s, begin - 1);
    int64_t count = 0;
    for (int64_t p = begin; p < end; ++p) {
        const bool last_was_head = head;
        head = is_head(s, p);
        count += head;
        if (head) {
            if (r->firsts != NULL) r->firsts[candidate_at(s, p)] = 1;
        } else if (last_was_head && candidate_at(s, p) < own.candidate) {
            // The second of a run: those behind it have larger numbers.
            own.candidate = (int32_t)candidate_at(s, p);
            own.of = (int32_t)candidate_at(s, p - 1);
        }
    }
    r->counts[part] = count;
    r->found[part] = own;
}

static void find_runs(spops_team team, const build_workspace *w, sorted_candidates *s)
{
    first_duplicate found[MAX_PARTS], first = {INT32_MAX, INT32_MAX};
    const bool by_first = s->numbering == ROWS_BY_FIRST;
    const runs_work work = {s, by_first ? w->firsts : NULL, s->runs, found};

    s->num_parts = spops_team_parts(team, MAX_PARTS);
    if (by_first) memset(w->firsts, 0, (size_t)(s->num_slots / 64 + 1) * 64 * sizeof *w->firsts);
    spops_parallel_parts(team, s->num_parts, s->n, runs_of_part, &work);
    for (int part = 0; part < s->num_parts; ++part)
        if (found[part].candidate < first.candidate) first = found[part];
    s->runs[s->num_parts] = scan_parts(s->runs, s->num_parts);
    s->state.num_merged = (int32_t)(s->n - s->runs[s->num_parts]);
    s->state.duplicate = first.candidate == INT32_MAX ? -1 : (int32_t)(first.candidate / s->each);
    s->state.duplicate_of = first.candidate == INT32_MAX ? -1 : (int32_t)(first.of / s->each);
}

// All that can be known of a set before there are arrays for its rows.
static void sort_candidates(const spops_context *ctx, const spops_coords_build_args *args,
                            const build_workspace *w)
{
    const spops_coords_source *source = args->source;
    const spops_coords_arrays *coords = args->coords;
    sorted_candidates *s = w->sorted;
    const bool as_they_come = coords->order == SPOPS_COORDS_ORDER_GIVEN || source->ordered;
    spops_team team;

    memset(s, 0, sizeof *s);
    s->by_key = find_candidates(ctx, source, &coords->layout, w, s);
    team = spops_team_for(ctx, s->n);
    if (as_they_come && (s->by_key || source->unique)) {
        s->numbering = ROWS_BY_RUN; // runs come in the order of their first candidates
    } else {
        if (!s->by_key) sort_by_key(team, &coords->layout, w, s);
        s->by_key = true;
        s->numbering = as_they_come                                        ? ROWS_BY_FIRST
                       : coords->order == SPOPS_COORDS_ORDER_LEXICOGRAPHIC ? ROWS_BY_RUN
                                                                           : ROWS_BY_CODE;
    }
    find_runs(team, w, s);
    s->state.num_rows = (int32_t)s->runs[s->num_parts];
}

// ---- Rows ---------------------------------------------------------------------------------------

typedef struct rows_work {
    const spops_coords_arrays *coords;
    const sorted_candidates *s;
    const build_workspace *w;
    int32_t *row_offsets, *row_items; // of the source
    spops_cpu_index index;            // to be filled, if it has sorted keys
    uint64_t *code_words;
    int code_index_bits;
    const uint64_t *sorted_codes;
    const int32_t *code_values;
} rows_work;

static inline void write_row(const rows_work *r, int64_t row, uint64_t key, int64_t item)
{
    const spops_coords_arrays *coords = r->coords;
    const spops_key_layout *layout = &coords->layout;
    const int columns = layout->dims + 1;
    int32_t values[SPOPS_KEY_COLUMNS];
    for (int column = 0; column < SPOPS_KEY_COLUMNS; ++column) // those behind the last are 0
        values[column] = spops_key_unpack(layout, key, column);
    if (columns == 4) // of three axes, in one store
        memcpy(coords->rows + row * columns, values, 4 * sizeof *values);
    else
        memcpy(coords->rows + row * columns, values, (size_t)columns * sizeof *values);
    coords->keys[row] = key;
    coords->row_item[row] = (int32_t)item;
}

static void bits_of_firsts(const void *work, int64_t begin, int64_t end)
{
    const build_workspace *w = ((const rows_work *)work)->w;
    for (int64_t i = begin; i < end; ++i) {
        uint64_t bits = 0;
        for (int byte = 0; byte < 8; ++byte) {
            uint64_t eight;
            memcpy(&eight, w->firsts + 64 * i + 8 * byte, sizeof eight);
            // Eight bytes of 0 or 1 to eight bits: the product brings each to the top byte.
            bits |= (eight * 0x0102040810204080ULL >> 56) << 8 * byte;
        }
        w->first_bits[i] = bits;
        w->first_ranks[i] = __builtin_popcountll(bits);
    }
}

static void rank_firsts(spops_team team, const rows_work *work)
{
    const int64_t n = work->s->num_slots / 64 + 1;
    int32_t sum = 0;
    spops_parallel_for(team, n, 0, bits_of_firsts, work);
    for (int64_t i = 0; i < n; ++i) {
        const int32_t own = work->w->first_ranks[i];
        work->w->first_ranks[i] = sum;
        sum += own;
    }
}

// Rows in their order, which is that of the first candidates: every array is written from its begin
// to its end.
static void write_firsts(const void *work, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    const int64_t max_rows = r->coords->max_rows;
    for (int64_t i = begin; i < end; ++i) {
        int64_t row = r->w->first_ranks[i];
        for (uint64_t bits = r->w->first_bits[i]; bits != 0 && row < max_rows; bits &= bits - 1) {
            const int64_t c = 64 * i + __builtin_ctzll(bits);
            write_row(r, row++, r->s->keys[c], c);
        }
    }
}

static void codes_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    const sorted_candidates *s = r->s;
    int64_t run = s->runs[part], p = begin;
    while (p < end) {
        uint64_t keys[SPOPS_CODES_AT_ONCE], codes[SPOPS_CODES_AT_ONCE];
        int n = 0;
        for (; p < end && n < SPOPS_CODES_AT_ONCE; ++p)
            if (is_head(s, p)) keys[n++] = key_at(s, p);
        spops_order_codes_of(r->w->codes, n, keys, codes);
        for (int i = 0; i < n; ++i, ++run) {
            r->code_words[run] = codes[i] << r->code_index_bits | (uint64_t)run;
            if (r->code_index_bits > 0) continue;
            r->code_words[run] = codes[i];
            r->w->code_sort.values[0][run] = (int32_t)run;
        }
    }
}

static void rows_of_codes(const void *work, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    const uint64_t mask = ((uint64_t)1 << r->code_index_bits) - 1;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t run =
            r->code_index_bits > 0 ? (int64_t)(r->sorted_codes[row] & mask) : r->code_values[row];
        r->w->run_rows[run] = (int32_t)row;
    }
}

// run_rows by the codes of the keys.
static void rank_codes(spops_team team, rows_work *work)
{
    const spops_coords_arrays *coords = work->coords;
    const sorted_candidates *s = work->s;
    const spops_radix_buffers *sort = &work->w->code_sort;
    const int64_t num_runs = s->runs[s->num_parts];
    const int bits = spops_order_code_bits(&coords->layout, coords->order);
    const int index_bits = spops_bits_below(num_runs) > 0 ? spops_bits_below(num_runs) : 1;

    spops_order_codes_make(&coords->layout, coords->order, work->w->codes);
    work->code_words = (uint64_t *)sort->keys[0];
    work->code_index_bits = bits + index_bits <= 64 ? index_bits : 0;
    spops_parallel_parts(team, s->num_parts, s->n, codes_of_part, work);
    if (work->code_index_bits > 0) {
        work->sorted_codes = spops_word_sort(team, num_runs, index_bits, index_bits + bits,
                                             sort->keys[0], sort->keys[1], work->w->counts);
    } else {
        const int at = spops_radix_sort(team, bits, num_runs, sort, 0);
        work->code_values = sort->values[at];
    }
    spops_parallel_for(team, num_runs, 0, rows_of_codes, work);
}

// The row of a run that begins with candidate c.
static inline int64_t row_of_run(const rows_work *r, int64_t run, int64_t c)
{
    switch (r->s->numbering) {
    case ROWS_BY_RUN: return run;
    case ROWS_BY_CODE: return r->w->run_rows[run];
    default: break;
    }
    const uint64_t below = r->w->first_bits[c / 64] & (((uint64_t)1 << (c % 64)) - 1);
    const int32_t row = r->w->first_ranks[c / 64] + __builtin_popcountll(below);
    r->w->run_rows[run] = row;
    return row;
}

static inline int64_t item_of(const sorted_candidates *s, int64_t candidate)
{
    return s->each == 1 ? candidate : candidate / s->each;
}

#define ROWS_AHEAD 12 // items whose rows are fetched into the cache meanwhile

// How many candidates the run that begins at p has.
static int32_t length_of_run(const sorted_candidates *s, int64_t p)
{
    const uint64_t key = key_at(s, p);
    int64_t last = p + 1;
    while (last < s->n && key_at(s, last) == key)
        ++last;
    return (int32_t)(last - p);
}

// Rows of the runs that begin in a part, and the items as far as they are in it. row_offsets: where
// rows are not runs, how many items they have.
static void write_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    const sorted_candidates *s = r->s;
    const int64_t max_rows = r->coords->max_rows;
    const bool by_run = s->numbering == ROWS_BY_RUN;
    const bool written = s->numbering == ROWS_BY_FIRST && s->keys != NULL;
    int32_t *item_row = r->coords->item_row;
    int32_t *row_items = by_run ? r->row_items : NULL, *row_offsets = r->row_offsets;
    uint64_t *sorted_keys = r->index.sorted_keys, key = SPOPS_KEY_NONE;
    int32_t *sorted_rows = r->index.sorted_rows;
    int64_t run = s->runs[part] - 1, row = -1;

    if (begin > 0 && begin < end) key = key_at(s, begin - 1);
    if (begin > 0 && begin < end && key_at(s, begin) == key) {
        int64_t start = begin; // of the run that began in an earlier part
        while (!is_head(s, start))
            --start;
        row = row_of_run(r, run, candidate_at(s, start));
    }
    for (int64_t p = begin; p < end; ++p) {
        const uint64_t last = key;
        const int64_t c = candidate_at(s, p), item = item_of(s, c);
        key = key_at(s, p);
        if (item_row != NULL && p + ROWS_AHEAD < end)
            __builtin_prefetch(&item_row[item_of(s, candidate_at(s, p + ROWS_AHEAD))], 1);
        if (key != last) {
            row = row_of_run(r, ++run, c);
            if (row < max_rows && !written) write_row(r, row, key, item);
            if (sorted_keys != NULL) {
                sorted_keys[run] = key;
                sorted_rows[run] = (int32_t)row;
            }
            if (row_offsets != NULL && row <= max_rows)
                row_offsets[row] = by_run ? (int32_t)p : length_of_run(s, p);
        }
        if (item_row != NULL && row < max_rows) item_row[item] = (int32_t)row;
        if (row_items != NULL) row_items[p] = (int32_t)item;
    }
}

// The items of each row, where runs are not the rows' order.
static void place_items(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *r = (const rows_work *)work;
    const sorted_candidates *s = r->s;
    int64_t run = s->runs[part] - 1, p = begin;
    while (p < end && !is_head(s, p))
        ++p;
    while (p < end) {
        const int32_t row = r->w->run_rows[++run];
        const bool fits = row < r->coords->max_rows;
        int32_t to = fits ? r->row_offsets[row] : 0;
        do {
            if (fits) r->row_items[to++] = (int32_t)item_of(s, candidate_at(s, p));
            ++p;
        } while (p < s->n && !is_head(s, p));
    }
}

// row_offsets behind the rows in use, and all of it where rows are not runs.
static void write_items(spops_team team, const rows_work *work)
{
    const sorted_candidates *s = work->s;
    const int64_t max_rows = work->coords->max_rows, num_runs = s->runs[s->num_parts];
    int32_t *offsets = work->row_offsets, sum = 0;

    if (s->numbering == ROWS_BY_RUN) {
        for (int64_t row = num_runs; row <= max_rows; ++row)
            offsets[row] = (int32_t)s->n;
        return;
    }
    for (int64_t row = 0; row <= max_rows; ++row) {
        const int32_t own = row < num_runs && row < max_rows ? offsets[row] : 0;
        offsets[row] = sum;
        sum += own;
    }
    spops_parallel_parts(team, s->num_parts, s->n, place_items, work);
}

static void write_rows(spops_team team, rows_work *work)
{
    const spops_coords_arrays *coords = work->coords;
    const sorted_candidates *s = work->s;

    if (s->numbering == ROWS_BY_FIRST) rank_firsts(team, work);
    if (s->numbering == ROWS_BY_FIRST && s->keys != NULL)
        spops_parallel_for(team, s->num_slots / 64 + 1, 0, write_firsts, work);
    if (s->numbering == ROWS_BY_CODE) rank_codes(team, work);
    if (coords->item_row != NULL)
        memset(coords->item_row, 0xff, (size_t)coords->max_items * sizeof *coords->item_row);
    spops_parallel_parts(team, s->num_parts, s->n, write_part, work);
    if (work->row_offsets != NULL) write_items(team, work);
}

// ---- Index --------------------------------------------------------------------------------------

typedef struct index_work {
    const spops_coords_arrays *coords;
    const spops_cpu_index *index;
    int64_t *counts; // [part]
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

static void fill_sorted(const spops_context *ctx, const index_work *work,
                        const spops_radix_buffers *sort)
{
    const spops_coords_arrays *coords = work->coords;
    const spops_cpu_index *index = work->index;
    const int64_t n = index->num_rows;
    const spops_team team = spops_team_for(ctx, n);
    bool ascends = true;
    for (int64_t row = 1; row < n && ascends; ++row)
        ascends = coords->keys[row - 1] < coords->keys[row];
    spops_radix_buffers direct = *sort; // into the index itself, by way of the workspace
    direct.keys[0] = index->sorted_keys;
    direct.values[0] = index->sorted_rows;
    direct.keys[1] = sort->keys[0];
    direct.values[1] = sort->values[0];
    spops_parallel_for(team, n, 0, copy_keys, work);
    if (ascends) return;
    if (spops_radix_sort(team, coords->layout.key_bits, n, &direct, 0) == 0) return;
    memcpy(index->sorted_keys, sort->keys[0], (size_t)n * sizeof *index->sorted_keys);
    memcpy(index->sorted_rows, sort->values[0], (size_t)n * sizeof *index->sorted_rows);
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
    rows_work rows = {.coords = coords, .s = s, .w = &w};
    const index_work index_rows = {coords, &index, counts};
    bool all_fit;

    if (!args->sorted) sort_candidates(ctx, args, &w);
    all_fit = s->state.num_rows <= coords->max_rows;
    *coords->state = s->state;
    if (!all_fit) {
        coords->state->num_rows = (int32_t)coords->max_rows;
        coords->state->overflow = 1;
    }
    index = spops_cpu_index_of(coords);
    rows.row_offsets = args->source->row_offsets;
    rows.row_items = args->source->row_items;
    if (s->by_key && all_fit) rows.index = index;
    write_rows(spops_team_for(ctx, s->n), &rows);
    if (index.slots != NULL) fill_hash(ctx, &index_rows);
    if (index.words != NULL) fill_grid(ctx, &index_rows);
    if (index.sorted_keys != NULL && rows.index.sorted_keys == NULL)
        fill_sorted(ctx, &index_rows, &w.sort);
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
