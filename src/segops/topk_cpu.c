// SPDX-License-Identifier: Apache-2.0
// The first k of each segment on the CPU, a column at a time. A segment, or a piece of one, goes once
// through a heap whose top is the last of the k that come first so far; heaps of pieces join the first
// one's. All of it by keys and positions, which no two terms share: so the result depends on them alone.
#include "backends/backend_cpu.h"
#include "core/row_convert.h"
#include "segments/walk_cpu.h"
#include "segops/value_keys.h"

// A heap lies at the first position of what it is of.
typedef struct topk_work {
    const spops_segment_sort_args *args;
    uint64_t *keys;     // [max_terms]
    int32_t *positions; // [max_terms]
    int64_t col;
} topk_work;

typedef struct heap {
    uint64_t *keys;
    int32_t *positions;
    int64_t size;
} heap;

static heap heap_at(const topk_work *w, int64_t begin)
{
    return (heap){w->keys + begin, w->positions + begin, 0};
}

static bool comes_after(const heap *h, int64_t i, uint64_t key, int32_t position)
{
    return h->keys[i] > key || (h->keys[i] == key && h->positions[i] > position);
}

static void put(heap *h, int64_t i, uint64_t key, int32_t position)
{
    h->keys[i] = key;
    h->positions[i] = position;
}

// Down from the top, where (key, position) belongs, in the first `size` elements.
static void sift_down(heap *h, int64_t size, uint64_t key, int32_t position)
{
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= size) break;
        if (child + 1 < size && comes_after(h, child + 1, h->keys[child], h->positions[child]))
            ++child;
        if (!comes_after(h, child, key, position)) break;
        put(h, i, h->keys[child], h->positions[child]);
        i = child;
    }
    put(h, i, key, position);
}

static void offer(heap *h, int64_t k, uint64_t key, int32_t position)
{
    int64_t i = h->size;
    if (h->size == k) {
        if (comes_after(h, 0, key, position)) sift_down(h, k, key, position);
        return;
    }
    for (; i > 0 && !comes_after(h, (i - 1) / 2, key, position); i = (i - 1) / 2)
        put(h, i, h->keys[(i - 1) / 2], h->positions[(i - 1) / 2]);
    put(h, i, key, position);
    ++h->size;
}

static heap gather_first(const topk_work *w, int64_t begin, int64_t end)
{
    const spops_segment_sort_args *args = w->args;
    heap h = heap_at(w, begin);
    for (int64_t p = begin; p < end; ++p)
        offer(&h, args->k,
              spops_value_key(args->x, spops_term_of(args->lists, p), w->col, args->descending),
              (int32_t)p);
    return h;
}

// The infinity that comes last.
static void put_last(spops_matrix values, int64_t row, int64_t col, bool descending)
{
    const double last = descending ? -INFINITY : INFINITY;
    spops_store_double(values.dtype, values.data, row * spops_row_step(values) + col, last);
}

static void write_first(const topk_work *w, int64_t segment, heap *h)
{
    const spops_segment_sort_args *args = w->args;
    const int64_t first = segment * args->k, found = h->size;

    for (int64_t size = found; size > 1; --size) { // to ascending order
        const uint64_t key = h->keys[size - 1];
        const int32_t position = h->positions[size - 1];
        put(h, size - 1, h->keys[0], h->positions[0]);
        sift_down(h, size - 1, key, position);
    }
    for (int64_t i = 0; i < args->k; ++i) {
        const int32_t term = i < found ? spops_term_of(args->lists, h->positions[i]) : -1;
        if (term >= 0)
            spops_copy_value(args->x, term, args->values, first + i, w->col);
        else
            put_last(args->values, first + i, w->col, args->descending);
        spops_put_place(args->places, first + i, w->col, term);
    }
}

static void topk_range(const void *work, int64_t segment, int64_t begin, int64_t end, int64_t piece)
{
    const topk_work *w = (const topk_work *)work;
    heap h = gather_first(w, begin, end);
    if (piece < 0) write_first(w, segment, &h);
}

// Elements of a piece's heap.
static int64_t taken(const topk_work *w, const spops_work_item *piece)
{
    return piece->count < w->args->k ? piece->count : w->args->k;
}

// The heap of the first piece takes the others'. It never grows over what it has not read.
static void topk_split(const void *work, const spops_split_segment *split)
{
    const topk_work *w = (const topk_work *)work;
    const spops_work_item *pieces = w->args->lists->pieces + split->first_piece;
    heap h = heap_at(w, pieces[0].begin);
    h.size = taken(w, &pieces[0]);
    for (int32_t i = 1; i < split->num_pieces; ++i)
        for (int64_t at = pieces[i].begin, end = at + taken(w, &pieces[i]); at < end; ++at)
            offer(&h, w->args->k, w->keys[at], w->positions[at]);
    write_first(w, split->segment, &h);
}

static topk_work carve(const spops_segment_sort_args *args, spops_carver *c)
{
    topk_work w = {.args = args};
    w.keys = spops_carve(c, args->lists->max_terms, 1, sizeof *w.keys);
    w.positions = spops_carve(c, args->lists->max_terms, 1, sizeof *w.positions);
    return w;
}

size_t spops_cpu_segment_topk_scratch_bytes(spops_context *ctx, const spops_segment_sort_args *args)
{
    spops_carver c = {NULL, 0};
    (void)ctx;
    (void)carve(args, &c);
    return c.used;
}

spops_status spops_cpu_segment_topk(spops_context *ctx, const spops_segment_sort_args *args)
{
    spops_carver c = {args->scratch, 0};
    topk_work work = carve(args, &c);
    spops_cpu_walk walk = {&work, args->lists, topk_range, topk_split, 0, 0};

    for (work.col = 0; work.col < args->x.cols; ++work.col)
        spops_cpu_walk_run(ctx, &walk, 4);
    return SPOPS_STATUS_OK;
}

// ---- The gradient -------------------------------------------------------------------------------

// Columns are divided, not rows: two places of a column that are one are written in order.
static void scatter_columns(const void *work, int64_t begin, int64_t end)
{
    const spops_scatter_places_args *args = (const spops_scatter_places_args *)work;
    const int32_t *places = (const int32_t *)args->places.data;
    for (int64_t i = 0; i < args->x.rows; ++i)
        for (int64_t c = begin; c < end; ++c) {
            const int32_t place = places[i * spops_row_step(args->places) + c];
            if (place >= 0 && place < args->out.rows)
                spops_copy_value(args->x, i, args->out, place, c);
        }
}

static void clear_rows(const void *work, int64_t begin, int64_t end)
{
    spops_clear_rows(((const spops_scatter_places_args *)work)->out, begin, end);
}

spops_status spops_cpu_scatter_places(spops_context *ctx, const spops_scatter_places_args *args)
{
    const spops_team clears = spops_team_for(ctx, args->out.rows * args->out.cols);
    const spops_team scatters = spops_team_for(ctx, args->x.rows * args->x.cols);
    spops_parallel_for(clears, args->out.rows, 0, clear_rows, args);
    if (args->x.rows > 0) spops_parallel_for(scatters, args->x.cols, 0, scatter_columns, args);
    return SPOPS_STATUS_OK;
}
