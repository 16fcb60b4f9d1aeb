// Sets of coordinates on the CPU: candidates as keys, a stable sort of them, one row for each run
// of equal keys, and the index. Every pass divides its work over threads such that the result does
// not depend on how many there are.

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/axis_taps_cpu.h"
#include "coords/coord_index_cpu.h"
#include "coords/points_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"

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

static void bounds_of_part(const spops_coords_source *source, const spops_coords_box *box,
                           int64_t begin, int64_t end, spops_coords_bounds *b)
{
    const int columns = source->dims + 1;
    int32_t voxel[SPOPS_KEY_COLUMNS];
    b->bad_item = -1;
    for (int c = 0; c < columns; ++c)
        b->lower[c] = INT32_MAX, b->upper[c] = INT32_MIN;
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

typedef struct bounds_work {
    const spops_coords_bounds_args *args;
    spops_coords_bounds *found; // [part]
} bounds_work;

static void find_bounds(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const bounds_work *w = (const bounds_work *)work;
    bounds_of_part(w->args->source, w->args->box, begin, end, &w->found[part]);
}

spops_status spops_cpu_coords_bounds(spops_context *ctx, const spops_coords_bounds_args *args)
{
    const spops_coords_source *source = args->source;
    spops_coords_bounds *bounds = args->bounds;
    const int64_t n = source->max_items;
    const spops_team team = spops_team_for(ctx, n);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    spops_coords_bounds found[MAX_PARTS];
    const bounds_work work = {args, found};

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

typedef struct build_workspace {
    spops_radix_buffers sort;
    uint64_t *packed; // [max_candidates] keys of candidates, without holes
    int32_t *items;   // [max_candidates] their items
    int32_t *rows;    // [max_candidates] row of a candidate that is the first of its key
} build_workspace;

static build_workspace carve_workspace(int64_t max_candidates, spops_carver *c)
{
    build_workspace w;
    w.sort = spops_radix_carve(sizeof(uint64_t), max_candidates, c);
    w.packed = spops_carve(c, max_candidates, 1, sizeof *w.packed);
    w.items = spops_carve(c, max_candidates, 1, sizeof *w.items);
    w.rows = spops_carve(c, max_candidates, 1, sizeof *w.rows);
    return w;
}

size_t spops_cpu_coords_workspace_bytes(spops_context *ctx, const spops_coords_workspace_args *args)
{
    spops_carver c = {NULL, 0};
    const int64_t max_rows = args->coords->max_rows;
    const int64_t most = args->max_candidates > max_rows ? args->max_candidates : max_rows;
    (void)ctx;
    carve_workspace(most, &c);
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

// The key of a one-candidate item, or NONE; *counts is whether it is dropped then.
static uint64_t item_key(const spops_coords_source *source, const spops_key_layout *layout,
                         int64_t i, bool *counts)
{
    const int columns = source->dims + 1;
    int32_t voxel[SPOPS_KEY_COLUMNS];
    *counts = true;
    switch (source->kind) {
    case SPOPS_COORDS_POINTS:
        return voxel_of(source, i, voxel) >= 0 ? SPOPS_KEY_NONE : spops_key_pack(layout, voxel);
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
    const spops_coords_source *source;
    const spops_key_layout *layout;
    const build_workspace *w;
    items_in_use use;
    bool window;
    int64_t each;              // candidates of an item, at most
    uint64_t *slots;           // those of item i begin at i * each
    int32_t *slots_used;       // [item]
    int64_t *counts, *dropped; // [part]
    spops_axis_taps axes[SPOPS_MAX_DIMS];
} candidates_work;

static void slots_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const candidates_work *w = (const candidates_work *)work;
    const spops_coords_source *source = w->source;
    int64_t count = 0, left_out = 0;
    for (int64_t i = begin; i < end; ++i) {
        int64_t own;
        if (i >= w->use.last_a && i < w->use.first_b) {
            own = 0; // between the rows of a and those of b
        } else if (w->window) {
            own = window_keys(source, w->layout, w->axes, source->rows + i * (source->dims + 1),
                              w->slots + i * w->each);
        } else {
            bool is_counted;
            w->slots[i] = item_key(source, w->layout, i, &is_counted);
            own = w->slots[i] != SPOPS_KEY_NONE;
            left_out += !own && is_counted;
        }
        w->slots_used[i] = (int32_t)own;
        count += own;
    }
    w->counts[part] = count;
    w->dropped[part] = left_out;
}

static void pack_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const candidates_work *w = (const candidates_work *)work;
    int64_t to = w->counts[part];
    for (int64_t i = begin; i < end; ++i)
        for (int32_t s = 0; s < w->slots_used[i]; ++s, ++to) {
            w->w->packed[to] = w->slots[i * w->each + s];
            w->w->items[to] = (int32_t)i;
        }
}

// Fill packed and items of all candidates; returns how many, and counts those left out.
static int64_t find_candidates(const spops_context *ctx, const spops_coords_source *source,
                               const spops_key_layout *layout, const build_workspace *w,
                               spops_coords_state *state)
{
    bool overflow = false;
    const items_in_use use = count_items(source, &overflow);
    const spops_team team = spops_team_for(ctx, use.n);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    int64_t counts[MAX_PARTS], dropped[MAX_PARTS], num_candidates;
    candidates_work work = {.source = source, .layout = layout, .w = w, .use = use, .each = 1};

    work.window = source->kind == SPOPS_COORDS_DOWN || source->kind == SPOPS_COORDS_UP;
    if (source->max_items > 0) work.each = source->max_candidates / source->max_items;
    work.slots = w->sort.keys[1];
    work.slots_used = w->rows;
    work.counts = counts;
    work.dropped = dropped;
    for (int a = 0; work.window && a < source->dims; ++a)
        work.axes[a] = spops_axis_taps_make(&source->taps, a, source->kind == SPOPS_COORDS_DOWN,
                                            layout, key_scale(layout, a + 1));
    spops_parallel_parts(team, num_parts, use.n, slots_of_part, &work);
    num_candidates = scan_parts(counts, num_parts);
    spops_parallel_parts(team, num_parts, use.n, pack_part, &work);
    state->num_dropped = (int32_t)scan_parts(dropped, num_parts);
    state->overflow = overflow;
    return num_candidates;
}

// ---- Rows ---------------------------------------------------------------------------------------

static uint64_t order_code(const spops_coords_arrays *coords, uint64_t key)
{
    if (coords->order == SPOPS_COORDS_ORDER_MORTON) return spops_key_morton(&coords->layout, key);
    if (coords->order == SPOPS_COORDS_ORDER_HILBERT) return spops_key_hilbert(&coords->layout, key);
    return key;
}

static int code_bits(const spops_coords_arrays *coords)
{
    const spops_key_layout *layout = &coords->layout;
    if (coords->order == SPOPS_COORDS_ORDER_HILBERT)
        return layout->bits[0] + layout->dims * layout->max_axis_bits;
    return layout->key_bits;
}

// Candidates by code: codes[p] and the candidate that has it. In the order of the candidates where
// that ascends already.
typedef struct sorted_candidates {
    int64_t n;
    const uint64_t *codes;
    const int32_t *candidates;
    bool in_order; // candidates[p] = p
} sorted_candidates;

typedef struct codes_work {
    const spops_coords_arrays *coords;
    const build_workspace *w;
    bool *descends; // [part]
} codes_work;

static void codes_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const codes_work *w = (const codes_work *)work;
    const uint64_t *packed = w->w->packed;
    uint64_t *codes = w->w->sort.keys[0];
    int32_t *candidates = w->w->sort.values[0];
    bool down = false;
    uint64_t last = begin > 0 ? order_code(w->coords, packed[begin - 1]) : 0;
    for (int64_t c = begin; c < end; ++c) {
        codes[c] = order_code(w->coords, packed[c]);
        candidates[c] = (int32_t)c;
        down |= codes[c] < last;
        last = codes[c];
    }
    w->descends[part] = down;
}

static sorted_candidates sort_candidates(const spops_context *ctx,
                                         const spops_coords_source *source,
                                         const spops_coords_arrays *coords, int64_t n,
                                         const build_workspace *w)
{
    const spops_team team = spops_team_for(ctx, n);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    const bool needed = !(source->unique && coords->search != SPOPS_COORDS_SEARCH_SORTED &&
                          (coords->order == SPOPS_COORDS_ORDER_GIVEN || source->ordered));
    bool descends[MAX_PARTS];
    const codes_work work = {coords, w, descends};
    sorted_candidates sorted = {n, w->sort.keys[0], w->sort.values[0], true};

    spops_parallel_parts(team, num_parts, n, codes_of_part, &work);
    for (int part = 0; part < num_parts; ++part)
        sorted.in_order &= !descends[part];
    if (sorted.in_order || !needed) {
        // Unique candidates that need no sorting are runs of one each, whatever their codes.
        sorted.in_order = true;
        return sorted;
    }
    const int at = spops_radix_sort(team, code_bits(coords), n, &w->sort, 0);
    sorted.codes = w->sort.keys[at];
    sorted.candidates = w->sort.values[at];
    return sorted;
}

static bool is_head(const sorted_candidates *s, int64_t p)
{
    return p == 0 || s->codes[p] != s->codes[p - 1];
}

typedef struct first_duplicate {
    int32_t candidate, of; // candidate numbers; INT32_MAX: none
} first_duplicate;

typedef struct rows_work {
    const spops_coords_arrays *coords;
    const sorted_candidates *s;
    const build_workspace *w;
    bool given;             // rows are numbered by candidate, not by position
    int64_t *counts;        // [part]
    first_duplicate *found; // [part]
} rows_work;

static void count_heads(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *w = (const rows_work *)work;
    int64_t count = 0;
    for (int64_t p = begin; p < end; ++p) {
        const bool head = is_head(w->s, p);
        if (w->given) w->w->rows[w->s->candidates[p]] = head;
        count += head;
    }
    w->counts[part] = count;
}

static void count_given(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *w = (const rows_work *)work;
    int64_t count = 0;
    for (int64_t c = begin; c < end; ++c)
        count += w->w->rows[c];
    w->counts[part] = count;
}

static void number_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *w = (const rows_work *)work;
    int32_t *rows = w->w->rows;
    int64_t row = w->counts[part];
    for (int64_t p = begin; p < end; ++p) {
        if (w->given) {
            const int32_t head = rows[p];
            rows[p] = (int32_t)row;
            row += head;
        } else if (is_head(w->s, p)) {
            rows[w->s->candidates[p]] = (int32_t)row++;
        }
    }
}

// rows[c] = row of candidate c, where it is the first of its run. In the order of the candidates
// (GIVEN), or of the runs. Returns the number of rows.
static int64_t number_rows(spops_team team, rows_work *work)
{
    const int64_t n = work->s->n;
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    int64_t num_rows;

    spops_parallel_parts(team, num_parts, n, count_heads, work);
    if (work->given) spops_parallel_parts(team, num_parts, n, count_given, work);
    num_rows = scan_parts(work->counts, num_parts);
    spops_parallel_parts(team, num_parts, n, number_part, work);
    return num_rows;
}

static void write_row(const spops_coords_arrays *coords, const build_workspace *w, int32_t c,
                      int32_t row)
{
    const int columns = coords->layout.dims + 1;
    const uint64_t key = w->packed[c];
    coords->keys[row] = key;
    coords->row_item[row] = w->items[c];
    for (int column = 0; column < columns; ++column)
        coords->rows[(int64_t)row * columns + column] =
            spops_key_unpack(&coords->layout, key, column);
}

static void write_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const rows_work *work_rows = (const rows_work *)work;
    const sorted_candidates *s = work_rows->s;
    const spops_coords_arrays *coords = work_rows->coords;
    const build_workspace *w = work_rows->w;
    int64_t start = begin;
    int32_t head = 0;
    first_duplicate own = {INT32_MAX, INT32_MAX};
    while (start > 0 && start < end && !is_head(s, start))
        --start; // the run that began in an earlier part
    if (start < end) head = s->candidates[start];
    for (int64_t p = begin; p < end; ++p) {
        const int32_t c = s->candidates[p];
        if (is_head(s, p))
            head = c;
        else if (c < own.candidate)
            own = (first_duplicate){c, head};
        const int32_t row = w->rows[head];
        const bool fits = row < coords->max_rows;
        if (c == head && fits) write_row(coords, w, c, row);
        if (coords->item_row != NULL && fits) coords->item_row[w->items[c]] = row;
    }
    work_rows->found[part] = own;
}

// Rows, keys and row_item from the heads of the runs, item_row from all.
static first_duplicate write_rows(spops_team team, const rows_work *work)
{
    const spops_coords_arrays *coords = work->coords;
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    first_duplicate first = {INT32_MAX, INT32_MAX};

    if (coords->item_row != NULL)
        memset(coords->item_row, 0xff, (size_t)coords->max_items * sizeof *coords->item_row);
    spops_parallel_parts(team, num_parts, work->s->n, write_part, work);
    for (int part = 0; part < num_parts; ++part)
        if (work->found[part].candidate < first.candidate) first = work->found[part];
    return first;
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

spops_status spops_cpu_coords_build(spops_context *ctx, const spops_coords_build_args *args)
{
    const spops_coords_source *source = args->source;
    const spops_coords_arrays *coords = args->coords;
    const int64_t most =
        source->max_candidates > coords->max_rows ? source->max_candidates : coords->max_rows;
    spops_carver carver = {(char *)args->workspace, 0};
    const build_workspace w = carve_workspace(most, &carver);
    spops_coords_state state;
    spops_cpu_index index;
    sorted_candidates sorted;
    first_duplicate duplicates[MAX_PARTS], duplicate;
    int64_t n, found, counts[MAX_PARTS];
    rows_work rows = {coords, &sorted, &w, false, counts, duplicates};
    const index_work index_rows = {coords, &index, counts};
    spops_team team;

    memset(&state, 0, sizeof state);
    n = find_candidates(ctx, source, &coords->layout, &w, &state);
    assert(n <= source->max_candidates);
    sorted = sort_candidates(ctx, source, coords, n, &w);
    team = spops_team_for(ctx, n);
    rows.given = coords->order == SPOPS_COORDS_ORDER_GIVEN && !sorted.in_order;
    found = number_rows(team, &rows);
    duplicate = write_rows(team, &rows);
    state.num_rows = (int32_t)(found < coords->max_rows ? found : coords->max_rows);
    state.num_merged = (int32_t)(n - found);
    state.overflow |= found > coords->max_rows;
    state.duplicate = duplicate.candidate == INT32_MAX ? -1 : w.items[duplicate.candidate];
    state.duplicate_of = duplicate.candidate == INT32_MAX ? -1 : w.items[duplicate.of];
    *coords->state = state;

    index = spops_cpu_index_of(coords);
    if (index.slots != NULL) fill_hash(ctx, &index_rows);
    if (index.words != NULL) fill_grid(ctx, &index_rows);
    if (index.sorted_keys != NULL) fill_sorted(ctx, &index_rows, &w.sort);
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
