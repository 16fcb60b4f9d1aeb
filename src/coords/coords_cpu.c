// Sets of coordinates on the CPU: candidates as keys, a stable sort of them, one row for each run
// of equal keys, and the index. Every pass divides its work over threads such that the result does
// not depend on how many there are.

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/axis_taps_cpu.h"
#include "coords/coord_index_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"

#define MAX_PARTS 64

static int parts_for(const spops_context *ctx, int64_t items)
{
    const int threads = spops_threads_for(ctx->num_threads, items);
    return threads < MAX_PARTS ? threads : MAX_PARTS;
}

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

static const float *point_of(const spops_coords_source *source, int64_t i)
{
    return (const float *)source->points.data + i * source->points.row_stride;
}

// The voxel of point i as a row. Returns the first column that is none, or -1.
static int voxel_of(const spops_coords_source *source, int64_t i, int32_t *row)
{
    const float *p = point_of(source, i);
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

spops_status spops_cpu_coords_bounds(spops_context *ctx, const spops_coords_bounds_args *args)
{
    const spops_coords_source *source = args->source;
    const spops_coords_box *box = args->box;
    spops_coords_bounds *bounds = args->bounds;
    const int64_t n = source->max_items;
    const int num_parts = parts_for(ctx, n);
    spops_coords_bounds found[MAX_PARTS];

#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        bounds_of_part(source, box, spops_part_begin(n, part, num_parts),
                       spops_part_begin(n, part + 1, num_parts), &found[part]);
    }
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

// Fill packed and items of all candidates; returns how many, and counts those left out.
static int64_t find_candidates(const spops_context *ctx, const spops_coords_source *source,
                               const spops_key_layout *layout, const build_workspace *w,
                               spops_coords_state *state)
{
    const bool window = source->kind == SPOPS_COORDS_DOWN || source->kind == SPOPS_COORDS_UP;
    bool overflow = false;
    const items_in_use use = count_items(source, &overflow);
    const int num_parts = parts_for(ctx, use.n);
    const int64_t each =
        source->max_items > 0 ? source->max_candidates / source->max_items : 1; // at most
    uint64_t *slots = w->sort.keys[1]; // those of item i begin at i * each
    int32_t *slots_used = w->rows;     // [item]
    int64_t counts[MAX_PARTS], dropped[MAX_PARTS];
    spops_axis_taps axes[SPOPS_MAX_DIMS];
    int64_t num_candidates;

    for (int a = 0; window && a < source->dims; ++a)
        axes[a] = spops_axis_taps_make(&source->taps, a, source->kind == SPOPS_COORDS_DOWN, layout,
                                       key_scale(layout, a + 1));
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(use.n, part + 1, num_parts);
        int64_t count = 0, left_out = 0;
        for (int64_t i = spops_part_begin(use.n, part, num_parts); i < end; ++i) {
            int64_t own;
            if (i >= use.last_a && i < use.first_b) {
                own = 0; // between the rows of a and those of b
            } else if (window) {
                own = window_keys(source, layout, axes, source->rows + i * (source->dims + 1),
                                  slots + i * each);
            } else {
                bool is_counted;
                slots[i] = item_key(source, layout, i, &is_counted);
                own = slots[i] != SPOPS_KEY_NONE;
                left_out += !own && is_counted;
            }
            slots_used[i] = (int32_t)own;
            count += own;
        }
        counts[part] = count;
        dropped[part] = left_out;
    }
    num_candidates = scan_parts(counts, num_parts);
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(use.n, part + 1, num_parts);
        int64_t to = counts[part];
        for (int64_t i = spops_part_begin(use.n, part, num_parts); i < end; ++i)
            for (int32_t s = 0; s < slots_used[i]; ++s, ++to) {
                w->packed[to] = slots[i * each + s];
                w->items[to] = (int32_t)i;
            }
    }
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

static sorted_candidates sort_candidates(const spops_context *ctx,
                                         const spops_coords_source *source,
                                         const spops_coords_arrays *coords, int64_t n,
                                         const build_workspace *w)
{
    const int num_parts = parts_for(ctx, n);
    const bool needed = !(source->unique && coords->search != SPOPS_COORDS_SEARCH_SORTED &&
                          (coords->order == SPOPS_COORDS_ORDER_GIVEN || source->ordered));
    uint64_t *codes = w->sort.keys[0];
    int32_t *candidates = w->sort.values[0];
    bool descends[MAX_PARTS];
    sorted_candidates sorted = {n, codes, candidates, true};

#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t begin = spops_part_begin(n, part, num_parts);
        const int64_t end = spops_part_begin(n, part + 1, num_parts);
        bool down = false;
        uint64_t last = begin > 0 ? order_code(coords, w->packed[begin - 1]) : 0;
        for (int64_t c = begin; c < end; ++c) {
            codes[c] = order_code(coords, w->packed[c]);
            candidates[c] = (int32_t)c;
            down |= codes[c] < last;
            last = codes[c];
        }
        descends[part] = down;
    }
    for (int part = 0; part < num_parts; ++part)
        sorted.in_order &= !descends[part];
    if (sorted.in_order || !needed) {
        // Unique candidates that need no sorting are runs of one each, whatever their codes.
        sorted.in_order = true;
        return sorted;
    }
    const int at = spops_radix_sort(num_parts, code_bits(coords), n, &w->sort, 0);
    sorted.codes = w->sort.keys[at];
    sorted.candidates = w->sort.values[at];
    return sorted;
}

static bool is_head(const sorted_candidates *s, int64_t p)
{
    return p == 0 || s->codes[p] != s->codes[p - 1];
}

// rows[c] = row of candidate c, where it is the first of its run. In the order of the candidates
// (GIVEN), or of the runs. Returns the number of rows.
static int64_t number_rows(const spops_context *ctx, const spops_coords_arrays *coords,
                           const sorted_candidates *s, int32_t *rows)
{
    const bool given = coords->order == SPOPS_COORDS_ORDER_GIVEN && !s->in_order;
    const int num_parts = parts_for(ctx, s->n);
    int64_t counts[MAX_PARTS], num_rows;

#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(s->n, part + 1, num_parts);
        int64_t count = 0;
        for (int64_t p = spops_part_begin(s->n, part, num_parts); p < end; ++p) {
            const bool head = is_head(s, p);
            if (given) rows[s->candidates[p]] = head;
            count += head;
        }
        counts[part] = count;
    }
    if (given) { // count again, by candidate
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
        for (int part = 0; part < num_parts; ++part) {
            const int64_t end = spops_part_begin(s->n, part + 1, num_parts);
            int64_t count = 0;
            for (int64_t c = spops_part_begin(s->n, part, num_parts); c < end; ++c)
                count += rows[c];
            counts[part] = count;
        }
    }
    num_rows = scan_parts(counts, num_parts);
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(s->n, part + 1, num_parts);
        int64_t row = counts[part];
        for (int64_t p = spops_part_begin(s->n, part, num_parts); p < end; ++p) {
            if (given) {
                const int32_t head = rows[p];
                rows[p] = (int32_t)row;
                row += head;
            } else if (is_head(s, p)) {
                rows[s->candidates[p]] = (int32_t)row++;
            }
        }
    }
    return num_rows;
}

typedef struct first_duplicate {
    int32_t candidate, of; // candidate numbers; INT32_MAX: none
} first_duplicate;

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

// Rows, keys and row_item from the heads of the runs, item_row from all.
static first_duplicate write_rows(const spops_context *ctx, const spops_coords_arrays *coords,
                                  const sorted_candidates *s, const build_workspace *w)
{
    const int num_parts = parts_for(ctx, s->n);
    first_duplicate found[MAX_PARTS], first = {INT32_MAX, INT32_MAX};

    if (coords->item_row != NULL)
        memset(coords->item_row, 0xff, (size_t)coords->max_items * sizeof *coords->item_row);
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t begin = spops_part_begin(s->n, part, num_parts);
        const int64_t end = spops_part_begin(s->n, part + 1, num_parts);
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
        found[part] = own;
    }
    for (int part = 0; part < num_parts && s->n > 0; ++part)
        if (found[part].candidate < first.candidate) first = found[part];
    return first;
}

// ---- Index --------------------------------------------------------------------------------------

static void fill_hash(const spops_context *ctx, const spops_coords_arrays *coords,
                      const spops_cpu_index *index)
{
    const int64_t num_slots = (int64_t)1 << index->slot_bits, n = index->num_rows;
    const uint64_t mask = (uint64_t)num_slots - 1;
    const int num_parts = parts_for(ctx, num_slots);

#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(num_slots, part + 1, num_parts);
        for (int64_t i = spops_part_begin(num_slots, part, num_parts); i < end; ++i)
            index->slots[i] = (spops_hash_slot){SPOPS_KEY_NONE, -1};
    }
    // Which slot a key gets depends on timing; which row is found does not, as keys are unique.
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(n, part + 1, num_parts);
        for (int64_t row = spops_part_begin(n, part, num_parts); row < end; ++row) {
            uint64_t at = spops_hash_of(coords->keys[row], index->slot_bits);
            uint64_t none = SPOPS_KEY_NONE;
            while (!__atomic_compare_exchange_n(&index->slots[at].key, &none, coords->keys[row],
                                                false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
                none = SPOPS_KEY_NONE;
                at = (at + 1) & mask;
            }
            index->slots[at].row = row;
        }
    }
}

static void fill_grid(const spops_context *ctx, const spops_coords_arrays *coords,
                      const spops_cpu_index *index)
{
    const int64_t n = index->num_rows;
    const int num_parts = parts_for(ctx, index->num_words), row_parts = parts_for(ctx, n);
    int64_t counts[MAX_PARTS];

#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t begin = spops_part_begin(index->num_words, part, num_parts);
        const int64_t end = spops_part_begin(index->num_words, part + 1, num_parts);
        memset(index->words + begin, 0, (size_t)(end - begin) * sizeof *index->words);
    }
#pragma omp parallel for num_threads(row_parts) if (row_parts > 1) schedule(static, 1)
    for (int part = 0; part < row_parts; ++part) {
        const int64_t end = spops_part_begin(n, part + 1, row_parts);
        for (int64_t row = spops_part_begin(n, part, row_parts); row < end; ++row) {
            const int64_t cell = spops_grid_cell(index, &coords->layout, coords->keys[row]);
            __atomic_fetch_or(&index->words[cell / 64], (uint64_t)1 << (cell % 64),
                              __ATOMIC_RELAXED);
        }
    }
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(index->num_words, part + 1, num_parts);
        int64_t count = 0;
        for (int64_t i = spops_part_begin(index->num_words, part, num_parts); i < end; ++i) {
            index->ranks[i] = (int32_t)count;
            count += __builtin_popcountll(index->words[i]);
        }
        counts[part] = count;
    }
    (void)scan_parts(counts, num_parts);
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(index->num_words, part + 1, num_parts);
        for (int64_t i = spops_part_begin(index->num_words, part, num_parts);
             i < end && counts[part] > 0; ++i)
            index->ranks[i] += (int32_t)counts[part];
    }
#pragma omp parallel for num_threads(row_parts) if (row_parts > 1) schedule(static, 1)
    for (int part = 0; part < row_parts; ++part) {
        const int64_t end = spops_part_begin(n, part + 1, row_parts);
        for (int64_t row = spops_part_begin(n, part, row_parts); row < end; ++row) {
            const int64_t cell = spops_grid_cell(index, &coords->layout, coords->keys[row]);
            const uint64_t below = index->words[cell / 64] & (((uint64_t)1 << (cell % 64)) - 1);
            index->ranked_rows[index->ranks[cell / 64] + __builtin_popcountll(below)] =
                (int32_t)row;
        }
    }
}

static void fill_sorted(const spops_context *ctx, const spops_coords_arrays *coords,
                        const spops_cpu_index *index, const spops_radix_buffers *sort)
{
    const int64_t n = index->num_rows;
    const int num_parts = parts_for(ctx, n);
    bool ascends = true;
    for (int64_t row = 1; row < n && ascends; ++row)
        ascends = coords->keys[row - 1] < coords->keys[row];
    spops_radix_buffers direct = *sort; // into the index itself, by way of the workspace
    direct.keys[0] = index->sorted_keys;
    direct.values[0] = index->sorted_rows;
    direct.keys[1] = sort->keys[0];
    direct.values[1] = sort->values[0];
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(n, part + 1, num_parts);
        for (int64_t row = spops_part_begin(n, part, num_parts); row < end; ++row) {
            index->sorted_keys[row] = coords->keys[row];
            index->sorted_rows[row] = (int32_t)row;
        }
    }
    if (ascends) return;
    if (spops_radix_sort(num_parts, coords->layout.key_bits, n, &direct, 0) == 0) return;
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
    first_duplicate duplicate;
    int64_t n, found;

    memset(&state, 0, sizeof state);
    n = find_candidates(ctx, source, &coords->layout, &w, &state);
    assert(n <= source->max_candidates);
    sorted = sort_candidates(ctx, source, coords, n, &w);
    found = number_rows(ctx, coords, &sorted, w.rows);
    duplicate = write_rows(ctx, coords, &sorted, &w);
    state.num_rows = (int32_t)(found < coords->max_rows ? found : coords->max_rows);
    state.num_merged = (int32_t)(n - found);
    state.overflow |= found > coords->max_rows;
    state.duplicate = duplicate.candidate == INT32_MAX ? -1 : w.items[duplicate.candidate];
    state.duplicate_of = duplicate.candidate == INT32_MAX ? -1 : w.items[duplicate.of];
    *coords->state = state;

    index = spops_cpu_index_of(coords);
    if (index.slots != NULL) fill_hash(ctx, coords, &index);
    if (index.words != NULL) fill_grid(ctx, coords, &index);
    if (index.sorted_keys != NULL) fill_sorted(ctx, coords, &index, &w.sort);
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_coords_batches(spops_context *ctx, const spops_coords_batches_args *args)
{
    const spops_coords_arrays *coords = args->coords;
    const int64_t n = coords->state->num_rows, columns = coords->layout.dims + 1;
    const int num_parts = parts_for(ctx, n);
#pragma omp parallel for num_threads(num_parts) if (num_parts > 1) schedule(static, 1)
    for (int part = 0; part < num_parts; ++part) {
        const int64_t end = spops_part_begin(n, part + 1, num_parts);
        for (int64_t row = spops_part_begin(n, part, num_parts); row < end; ++row)
            args->batches[row] = coords->rows[row * columns];
    }
    return SPOPS_STATUS_OK;
}
