// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_coords.h"

#include <stdlib.h>
#include <string.h>

static int compare_rows(int32_t dims, const int32_t *a, const int32_t *b)
{
    for (int32_t c = 0; c <= dims; ++c)
        if (a[c] != b[c]) return a[c] < b[c] ? -1 : 1;
    return 0;
}

// A row and where it came from, for sorting.
typedef struct entry {
    int32_t row[1 + SPOPS_MAX_DIMS];
    int32_t dims;
    int64_t number;
} entry;

static int compare_entries(const void *x, const void *y)
{
    const entry *a = (const entry *)x, *b = (const entry *)y;
    const int order = compare_rows(a->dims, a->row, b->row);
    if (order != 0) return order;
    return a->number < b->number ? -1 : a->number > b->number;
}

static void *alloc(int64_t n, size_t size)
{
    void *p = calloc((size_t)n + 1, size);
    if (p == NULL) abort();
    return p;
}

void ref_set_free(ref_set *set)
{
    free(set->rows), free(set->row_item), free(set->item_row), free(set->sorted);
    memset(set, 0, sizeof *set);
}

static bool inside(const spops_coords_box *box, int32_t dims, const int64_t *row)
{
    for (int32_t c = 0; c <= dims; ++c) {
        const int64_t low = box != NULL ? box->lower[c] : INT32_MIN;
        const int64_t high = box != NULL ? box->upper[c] : INT32_MAX;
        if (row[c] < low || row[c] > high) return false;
    }
    return true;
}

// A set from candidates (entries in order of appearance, `number` the item).
static ref_set set_of(int32_t dims, int64_t num_candidates, const entry *candidates,
                      int64_t num_items)
{
    ref_set set = {.dims = dims, .num_items = num_items};
    entry *sorted = (entry *)alloc(num_candidates, sizeof *sorted);
    int32_t *first = (int32_t *)alloc(num_candidates, sizeof *first); // candidate of the same row
    int32_t *row_of = (int32_t *)alloc(num_candidates, sizeof *row_of);
    for (int64_t c = 0; c < num_candidates; ++c) {
        sorted[c] = candidates[c];
        sorted[c].number = c;
    }
    qsort(sorted, (size_t)num_candidates, sizeof *sorted, compare_entries);
    for (int64_t p = 0; p < num_candidates; ++p) {
        const bool same = p > 0 && compare_rows(dims, sorted[p].row, sorted[p - 1].row) == 0;
        first[sorted[p].number] = same ? first[sorted[p - 1].number] : (int32_t)sorted[p].number;
    }
    set.rows = (int32_t *)alloc(num_candidates * (dims + 1), sizeof *set.rows);
    set.row_item = (int32_t *)alloc(num_candidates, sizeof *set.row_item);
    set.item_row = (int32_t *)alloc(num_items, sizeof *set.item_row);
    set.sorted = (int32_t *)alloc(num_candidates, sizeof *set.sorted);
    for (int64_t i = 0; i < num_items; ++i)
        set.item_row[i] = -1;
    for (int64_t c = 0; c < num_candidates; ++c) {
        if (first[c] == c) {
            memcpy(set.rows + set.n * (dims + 1), candidates[c].row,
                   (size_t)(dims + 1) * sizeof(int32_t));
            set.row_item[set.n] = (int32_t)candidates[c].number;
            row_of[c] = (int32_t)set.n++;
        }
        set.item_row[candidates[c].number] = row_of[first[c]];
    }
    for (int64_t p = 0, to = 0; p < num_candidates; ++p)
        if (first[sorted[p].number] == sorted[p].number)
            set.sorted[to++] = row_of[sorted[p].number];
    set.num_merged = num_candidates - set.n;
    free(sorted), free(first), free(row_of);
    return set;
}

static void add(entry *candidates, int64_t *count, int32_t dims, const int64_t *row, int64_t item)
{
    entry *e = &candidates[(*count)++];
    memset(e, 0, sizeof *e);
    e->dims = dims;
    e->number = item;
    for (int32_t c = 0; c <= dims; ++c)
        e->row[c] = (int32_t)row[c];
}

ref_set ref_unique(int32_t dims, int64_t n, const int32_t *rows, const spops_coords_box *box)
{
    entry *candidates = (entry *)alloc(n, sizeof *candidates);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        int64_t row[1 + SPOPS_MAX_DIMS];
        for (int32_t c = 0; c <= dims; ++c)
            row[c] = rows[i * (dims + 1) + c];
        if (inside(box, dims, row)) add(candidates, &count, dims, row, i);
    }
    ref_set set = set_of(dims, count, candidates, n);
    set.num_dropped = n - count;
    free(candidates);
    return set;
}

int32_t ref_num_taps(const spops_kernel_shape *kernel)
{
    int32_t taps = 1;
    for (int32_t a = 0; a < kernel->dims; ++a)
        taps *= kernel->size[a];
    return taps;
}

static void taps_of(const spops_kernel_shape *kernel, int32_t k, int32_t *t)
{
    for (int32_t a = kernel->dims - 1; a >= 0; --a) {
        t[a] = k % kernel->size[a];
        k /= kernel->size[a];
    }
}

// The other end of tap t from x: fine from coarse, or coarse from fine where that is whole.
static bool other_end(const spops_kernel_shape *kernel, int32_t a, int32_t t, bool to_fine,
                      int64_t x, int64_t *y)
{
    const int64_t s = kernel->stride[a], reach = (int64_t)kernel->dilation[a] * t;
    int64_t u;
    if (to_fine) {
        *y = s * x - kernel->padding[a] + reach;
        return true;
    }
    u = x + kernel->padding[a] - reach;
    if (u % s != 0) return false;
    *y = u / s;
    return true;
}

static bool reach_row(const spops_kernel_shape *kernel, int32_t k, bool to_fine, const int32_t *row,
                      int64_t *reached)
{
    int32_t t[SPOPS_MAX_DIMS];
    taps_of(kernel, k, t);
    reached[0] = row[0];
    for (int32_t a = 0; a < kernel->dims; ++a)
        if (!other_end(kernel, a, t[a], to_fine, row[a + 1], &reached[a + 1])) return false;
    return true;
}

ref_set ref_window(const ref_set *in, const spops_kernel_shape *kernel, bool up,
                   const spops_coords_box *box)
{
    const int32_t taps = ref_num_taps(kernel);
    entry *candidates = (entry *)alloc(in->n * taps, sizeof *candidates);
    int64_t count = 0;
    for (int64_t i = 0; i < in->n; ++i)
        for (int32_t k = 0; k < taps; ++k) {
            int64_t row[1 + SPOPS_MAX_DIMS];
            if (reach_row(kernel, k, up, in->rows + i * (in->dims + 1), row) &&
                inside(box, in->dims, row))
                add(candidates, &count, in->dims, row, i);
        }
    ref_set set = set_of(in->dims, count, candidates, in->n);
    free(set.item_row);
    set.item_row = NULL;
    free(candidates);
    return set;
}

ref_set ref_union(const ref_set *a, const ref_set *b)
{
    const int32_t columns = a->dims + 1;
    int32_t *rows = (int32_t *)alloc((a->n + b->n) * columns, sizeof *rows);
    memcpy(rows, a->rows, (size_t)(a->n * columns) * sizeof *rows);
    memcpy(rows + a->n * columns, b->rows, (size_t)(b->n * columns) * sizeof *rows);
    ref_set set = ref_unique(a->dims, a->n + b->n, rows, NULL);
    free(rows);
    return set;
}

ref_set ref_pruned(const ref_set *in, const uint8_t *keep)
{
    entry *candidates = (entry *)alloc(in->n, sizeof *candidates);
    int64_t count = 0;
    for (int64_t i = 0; i < in->n; ++i) {
        int64_t row[1 + SPOPS_MAX_DIMS];
        for (int32_t c = 0; c <= in->dims; ++c)
            row[c] = in->rows[i * (in->dims + 1) + c];
        if (keep[i]) add(candidates, &count, in->dims, row, i);
    }
    ref_set set = set_of(in->dims, count, candidates, in->n);
    free(candidates);
    return set;
}

int32_t ref_find(const ref_set *set, const int32_t *row)
{
    int64_t low = 0, high = set->n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const int32_t *at = set->rows + (int64_t)set->sorted[middle] * (set->dims + 1);
        const int order = compare_rows(set->dims, at, row);
        if (order == 0) return set->sorted[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

bool ref_before(spops_coords_order order, int32_t dims, const int32_t *lower, const int32_t *a,
                const int32_t *b)
{
    int32_t axis = 0;
    uint32_t highest = 0;
    if (order == SPOPS_COORDS_ORDER_LEXICOGRAPHIC || a[0] != b[0])
        return compare_rows(dims, a, b) < 0;
    // On a Z-order curve the axis decides in which the highest bit differs; the first one on ties.
    for (int32_t c = 1; c <= dims; ++c) {
        const uint32_t x = (uint32_t)((int64_t)a[c] - lower[c]);
        const uint32_t y = (uint32_t)((int64_t)b[c] - lower[c]);
        uint32_t top = x ^ y;
        while (top & (top - 1))
            top &= top - 1;
        if (top > highest) highest = top, axis = c;
    }
    return axis > 0 && a[axis] < b[axis];
}

int32_t *ref_map(spops_kernel_map_kind kind, const spops_kernel_shape *kernel, const ref_set *in,
                 const ref_set *out)
{
    const int32_t taps = ref_num_taps(kernel);
    int32_t *table = (int32_t *)alloc(out->n * taps, sizeof *table);
    spops_kernel_shape shape = *kernel;
    if (kind == SPOPS_MAP_SUBMANIFOLD)
        for (int32_t a = 0; a < shape.dims; ++a)
            shape.padding[a] = shape.dilation[a] * (shape.size[a] / 2);
    for (int64_t i = 0; i < out->n; ++i)
        for (int32_t k = 0; k < taps; ++k) {
            int64_t reached[1 + SPOPS_MAX_DIMS];
            int32_t row[1 + SPOPS_MAX_DIMS];
            table[i * taps + k] = -1;
            if (!reach_row(&shape, k, kind != SPOPS_MAP_TRANSPOSED, out->rows + i * (out->dims + 1),
                           reached) ||
                !inside(NULL, out->dims, reached))
                continue;
            for (int32_t c = 0; c <= out->dims; ++c)
                row[c] = (int32_t)reached[c];
            table[i * taps + k] = ref_find(in, row);
        }
    return table;
}
