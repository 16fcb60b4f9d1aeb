// SPDX-License-Identifier: Apache-2.0
// Sorts within segments on the CPU, a column at a time: short segments by merging, many at once; long
// ones by digits, all threads in one.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/radix_sort.h"
#include "core/row_convert.h"
#include "segments/runs.h"
#include "segops/value_keys.h"

enum { LONG_TERMS = 1 << 15, RUN_TERMS = 16 };

typedef struct sort_work {
    const spops_segment_sort_args *args;
    spops_radix_buffers buffers; // keys of a column by position, and the positions
    int64_t col, num_runs;
} sort_work;

static uint64_t *keys_of(const sort_work *w, int which)
{
    return (uint64_t *)w->buffers.keys[which];
}

static void fill_keys(const void *work, int64_t begin, int64_t end)
{
    const sort_work *w = (const sort_work *)work;
    for (int64_t p = begin; p < end; ++p) {
        keys_of(w, 0)[p] = spops_value_key(w->args->x, spops_term_of(w->args->lists, p), w->col,
                                           w->args->descending);
        w->buffers.values[0][p] = (int32_t)p;
    }
}

static void sort_run(uint64_t *keys, int32_t *values, int64_t n)
{
    for (int64_t i = 1; i < n; ++i) {
        const uint64_t key = keys[i];
        const int32_t value = values[i];
        int64_t j = i;
        for (; j > 0 && keys[j - 1] > key; --j) {
            keys[j] = keys[j - 1];
            values[j] = values[j - 1];
        }
        keys[j] = key;
        values[j] = value;
    }
}

static void merge(const uint64_t *keys, const int32_t *values, int64_t middle, int64_t n,
                  uint64_t *to_keys, int32_t *to_values)
{
    int64_t a = 0, b = middle;
    for (int64_t i = 0; i < n; ++i) {
        const bool first = a < middle && (b >= n || keys[a] <= keys[b]);
        const int64_t from = first ? a++ : b++;
        to_keys[i] = keys[from];
        to_values[i] = values[from];
    }
}

// Stable; the result is where the keys are.
static void merge_sort(const sort_work *w, int64_t begin, int64_t n)
{
    uint64_t *keys = keys_of(w, 0) + begin, *spare_keys = keys_of(w, 1) + begin;
    int32_t *values = w->buffers.values[0] + begin, *spare = w->buffers.values[1] + begin;

    for (int64_t i = 0; i < n; i += RUN_TERMS)
        sort_run(keys + i, values + i, n - i < RUN_TERMS ? n - i : RUN_TERMS);
    for (int64_t width = RUN_TERMS; width < n; width *= 2) {
        for (int64_t i = 0; i < n; i += 2 * width) {
            const int64_t left = n - i, both = left < 2 * width ? left : 2 * width;
            merge(keys + i, values + i, left < width ? left : width, both, spare_keys + i,
                  spare + i);
        }
        memcpy(keys, spare_keys, (size_t)n * sizeof *keys);
        memcpy(values, spare, (size_t)n * sizeof *values);
    }
}

static void sort_short(const void *work, int64_t begin, int64_t end)
{
    const sort_work *w = (const sort_work *)work;
    const spops_lists *lists = w->args->lists;
    for (int64_t run = begin; run < end; ++run) {
        const int64_t last = spops_run_begin(lists, w->num_runs, run + 1);
        for (int64_t s = spops_run_begin(lists, w->num_runs, run); s < last; ++s) {
            const int64_t n = lists->offsets[s + 1] - lists->offsets[s];
            if (n <= LONG_TERMS) merge_sort(w, lists->offsets[s], n);
        }
    }
}

static void sort_long(spops_team team, const sort_work *w, int64_t begin, int64_t n)
{
    spops_radix_buffers own = w->buffers;
    for (int i = 0; i < 2; ++i) {
        own.keys[i] = keys_of(w, i) + begin;
        own.values[i] += begin;
    }
    if (spops_radix_sort(team, spops_value_key_bits(w->args->x.dtype), n, &own, 0) == 1)
        memcpy(own.values[0], own.values[1], (size_t)n * sizeof *own.values[0]);
}

static void write_sorted(const void *work, int64_t begin, int64_t end)
{
    const sort_work *w = (const sort_work *)work;
    const spops_segment_sort_args *args = w->args;
    for (int64_t p = begin; p < end; ++p) {
        const int32_t to = spops_term_of(args->lists, p);
        const int32_t from = spops_term_of(args->lists, w->buffers.values[0][p]);
        spops_copy_value(args->x, from, args->values, to, w->col);
        spops_put_place(args->places, to, w->col, from);
    }
}

static void leave_out(const void *work, int64_t begin, int64_t end)
{
    const spops_segment_sort_args *args = ((const sort_work *)work)->args;
    spops_clear_rows(args->values, begin, end);
    for (int64_t t = begin; t < end; ++t)
        for (int64_t c = 0; c < args->places.cols; ++c)
            spops_put_place(args->places, t, c, -1);
}

size_t spops_cpu_segment_sort_scratch_bytes(spops_context *ctx, const spops_segment_sort_args *args)
{
    spops_carver c = {NULL, 0};
    (void)ctx;
    (void)spops_radix_carve((int)sizeof(uint64_t), args->lists->max_terms, &c);
    return c.used;
}

spops_status spops_cpu_segment_sort(spops_context *ctx, const spops_segment_sort_args *args)
{
    const spops_lists *lists = args->lists;
    const int64_t terms = lists->schedule->num_terms;
    spops_carver c = {args->scratch, 0};
    sort_work work = {.args = args};
    const spops_team all = spops_team_for(ctx, args->x.rows * args->x.cols);
    const spops_team team = spops_team_for(ctx, terms * 8);

    work.buffers = spops_radix_carve((int)sizeof(uint64_t), lists->max_terms, &c);
    if (terms < args->values.rows) spops_parallel_for(all, args->values.rows, 0, leave_out, &work);
    if (terms == 0) return SPOPS_STATUS_OK;
    work.num_runs = spops_runs_count(lists, team.size);
    for (work.col = 0; work.col < args->x.cols; ++work.col) {
        spops_parallel_for(team, terms, 0, fill_keys, &work);
        spops_parallel_for(team, work.num_runs, 1, sort_short, &work);
        for (int64_t s = 0; s < lists->num_segments && lists->schedule->longest > LONG_TERMS; ++s)
            if (lists->offsets[s + 1] - lists->offsets[s] > LONG_TERMS)
                sort_long(team, &work, lists->offsets[s],
                          lists->offsets[s + 1] - lists->offsets[s]);
        spops_parallel_for(team, terms, 0, write_sorted, &work);
    }
    return SPOPS_STATUS_OK;
}
