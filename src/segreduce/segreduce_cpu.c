// SPDX-License-Identifier: Apache-2.0
// segreduce, seggrad and segdot on the CPU: divides output rows and pieces over threads and hands
// each range of terms to the vector code of segreduce_isa.c, or to a caller's reduction. An output
// row or a piece is one thread's alone and pieces combine in order, so the number of threads
// changes no bit.

#include <string.h>

#include "backends/backend_cpu.h"
#include "core/matrix.h"
#include "core/rows_isa.h"
#include "core/threads.h"
#include "segments/runs.h"
#include "segments/segments.h"
#include "segreduce/segreduce_isa.h"

// ---- Dividing the work --------------------------------------------------------------------------

// The work of one call on its lists. `args` and `kernels` belong to the call.
typedef struct walk {
    const void *args;
    const void *kernels;
    void (*out_row)(const struct walk *walk, int64_t out_row, int64_t begin, int64_t end);
    void (*piece)(const struct walk *walk, int64_t piece, const spops_work_item *entry);
    void (*split)(const struct walk *walk, const spops_split_segment *split);
    spops_reduce_rows rows; // what out_row does for all rows of a run; NULL: nothing does
    const char *out;        // what an output row writes: out_bytes at out + output row * out_stride
    int64_t out_bytes, out_stride;
} walk;

static int64_t element_bytes(spops_matrix m)
{
    return spops_dtype_bits(m.dtype) / 8;
}

static void set_output(walk *work, spops_matrix out)
{
    work->out = (const char *)out.data;
    work->out_bytes = out.data != NULL ? out.cols * element_bytes(out) : 0;
    work->out_stride = spops_row_step(out) * element_bytes(out);
}

static void walk_run(const walk *work, const spops_lists *lists, int64_t first, int64_t last)
{
    const int32_t split_terms = lists->schedule->split_terms;
    if (work->rows != NULL && first < last) {
        work->rows((const spops_segreduce_args *)work->args, first, last);
        return;
    }
    for (int64_t o = first; o < last; ++o) {
        const int32_t begin = lists->offsets[o], end = lists->offsets[o + 1];
        if (end - begin <= split_terms) work->out_row(work, o, begin, end);
    }
}

// Entries further ahead whose terms and output are fetched into the cache meanwhile: neighbouring
// entries lie anywhere in both, where no hardware prefetcher follows.
#define ENTRIES_AHEAD 4
#define LINE_BYTES    64

static void prefetch_entry(const walk *work, const spops_lists *lists, const spops_work_item *entry)
{
    const char *pairs = (const char *)(lists->pairs + 2 * (int64_t)entry->begin);
    const char *out = work->out + (int64_t)entry->segment * work->out_stride;
    for (int64_t i = 0; i < 2 * (int64_t)sizeof(int32_t) * entry->count; i += LINE_BYTES)
        __builtin_prefetch(pairs + i, 0);
    for (int64_t i = 0; i < work->out_bytes; i += LINE_BYTES)
        __builtin_prefetch(out + i, 1);
}

static void walk_entries(const walk *work, const spops_lists *lists, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; ++i) {
        const spops_work_item *entry = &lists->entries[i];
        if (i + ENTRIES_AHEAD < last) prefetch_entry(work, lists, entry + ENTRIES_AHEAD);
        work->out_row(work, entry->segment, entry->begin, (int64_t)entry->begin + entry->count);
    }
}

typedef struct walk_items {
    const walk *work;
    const spops_lists *lists;
    int64_t num_pieces, num_runs;
    int64_t num_entries, chunk; // of entries, which take the place of runs
} walk_items;

// Items are pieces, which are the largest, and then the short runs or entries that fill the gaps.
static void walk_range(const void *items, int64_t begin, int64_t end)
{
    const walk_items *w = (const walk_items *)items;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i - w->num_pieces, first = r * w->chunk, last = first + w->chunk;
        if (r < 0)
            w->work->piece(w->work, i, &w->lists->pieces[i]);
        else if (w->num_entries > 0)
            walk_entries(w->work, w->lists, first, last < w->num_entries ? last : w->num_entries);
        else
            walk_run(w->work, w->lists, spops_run_begin(w->lists, w->num_runs, r),
                     spops_run_begin(w->lists, w->num_runs, r + 1));
    }
}

static void walk_splits(const void *items, int64_t begin, int64_t end)
{
    const walk_items *w = (const walk_items *)items;
    for (int64_t i = begin; i < end; ++i)
        w->work->split(w->work, &w->lists->splits[i]);
}

// Every output row of the lists, cols columns each. Where the plan has put output rows in the order
// of their rows, that order is followed if an output row writes whole cache lines; neighbours in
// memory are otherwise better written by one thread, one after the other.
static void walk_lists(const spops_context *ctx, const walk *work, const spops_lists *lists,
                       int64_t cols)
{
    const spops_schedule *schedule = lists->schedule;
    const spops_team team = spops_team_for(ctx, spops_runs_cost(lists) * cols);
    walk_items items = {work, lists, schedule->num_pieces, spops_runs_count(lists, team.size),
                        0,    0};

    if (lists->num_segments == 0) return;
    if (work->out_bytes >= LINE_BYTES) items.num_entries = schedule->class_begin[SPOPS_NUM_CLASSES];
    if (items.num_entries > 0) {
        items.chunk =
            items.num_entries / ((int64_t)team.size * 64) + 16; // entries differ in length
        items.num_runs = (items.num_entries - 1) / items.chunk + 1;
    }
    spops_parallel_for(team, items.num_pieces + items.num_runs, 1, walk_range, &items);
    spops_parallel_for(team, schedule->num_splits, 1, walk_splits, &items);
}

// Element (row, col) of a float matrix.
static char *element(spops_matrix m, int64_t row, int64_t col)
{
    return (char *)m.data + (row * m.row_stride + col) * element_bytes(m);
}

static float weight_at(const spops_rows_table *table, spops_matrix w, int64_t index)
{
    float weight = 1.0f;
    if (w.data != NULL) {
        w.row_stride = 1;
        table->load(w.dtype, element(w, index, 0), 1, &weight);
    }
    return weight;
}

// ---- segreduce ----------------------------------------------------------------------------------

typedef struct reduce_kernels {
    spops_reduce_range range;
    spops_reduce_split split;
    size_t piece_bytes; // of partial states
} reduce_kernels;

static void reduce_out_row(const walk *work, int64_t out_row, int64_t begin, int64_t end)
{
    const reduce_kernels *k = (const reduce_kernels *)work->kernels;
    k->range((const spops_segreduce_args *)work->args, out_row, begin, end, NULL);
}

static void reduce_piece(const walk *work, int64_t piece, const spops_work_item *entry)
{
    const spops_segreduce_args *args = (const spops_segreduce_args *)work->args;
    const reduce_kernels *k = (const reduce_kernels *)work->kernels;
    k->range(args, entry->segment, entry->begin, (int64_t)entry->begin + entry->count,
             (char *)args->partials + (size_t)piece * k->piece_bytes);
}

static void reduce_split(const walk *work, const spops_split_segment *split)
{
    const reduce_kernels *k = (const reduce_kernels *)work->kernels;
    k->split((const spops_segreduce_args *)work->args, split);
}

// A caller's reduction works on blocks of columns that fit the stack.
#define CUSTOM_COLS 256

static void finish_custom(const spops_segreduce_args *args, const spops_rows_table *table,
                          int64_t out_row, int64_t col, int64_t n, int64_t count, const void *state)
{
    const spops_reduce_desc *desc = &args->custom->desc;
    if (args->out.data != NULL) {
        float v[CUSTOM_COLS];
        desc->finalize(desc->user, n, state, count, v);
        table->store(args->out.dtype, v, n, element(args->out, out_row, col));
    }
    if (args->states != NULL)
        memcpy((char *)args->states + (size_t)(out_row * args->x.cols + col) * desc->state_bytes,
               state, (size_t)n * desc->state_bytes);
}

static void custom_range(const spops_segreduce_args *args, const spops_rows_table *table,
                         int64_t out_row, int64_t begin, int64_t end, char *partial)
{
    const spops_reduce_desc *desc = &args->custom->desc;
    for (int64_t col = 0; col < args->x.cols; col += CUSTOM_COLS) {
        const int64_t left = args->x.cols - col, n = left < CUSTOM_COLS ? left : CUSTOM_COLS;
        _Alignas(64) char state[CUSTOM_COLS * SPOPS_REDUCE_STATE_BYTES_MAX];
        float v[CUSTOM_COLS];
        desc->identity(desc->user, n, state);
        for (int64_t p = begin; p < end; ++p) {
            const float weight = weight_at(table, args->w, spops_pair_of(args->lists, p, 1));
            table->load(args->x.dtype, element(args->x, spops_pair_of(args->lists, p, 0), col), n,
                        v);
            for (int64_t c = 0; c < n; ++c)
                v[c] *= weight;
            desc->fold(desc->user, n, state, v, spops_term_of(args->lists, p));
        }
        if (partial != NULL)
            memcpy(partial + (size_t)col * desc->state_bytes, state, (size_t)n * desc->state_bytes);
        else
            finish_custom(args, table, out_row, col, n, end - begin, state);
    }
}

static void custom_out_row(const walk *work, int64_t out_row, int64_t begin, int64_t end)
{
    custom_range((const spops_segreduce_args *)work->args, (const spops_rows_table *)work->kernels,
                 out_row, begin, end, NULL);
}

static size_t custom_piece_bytes(const spops_segreduce_args *args)
{
    return (size_t)args->x.cols * args->custom->desc.state_bytes;
}

static void custom_piece(const walk *work, int64_t piece, const spops_work_item *entry)
{
    const spops_segreduce_args *args = (const spops_segreduce_args *)work->args;
    custom_range(args, (const spops_rows_table *)work->kernels, entry->segment, entry->begin,
                 (int64_t)entry->begin + entry->count,
                 (char *)args->partials + (size_t)piece * custom_piece_bytes(args));
}

static void custom_split(const walk *work, const spops_split_segment *split)
{
    const spops_segreduce_args *args = (const spops_segreduce_args *)work->args;
    const spops_reduce_desc *desc = &args->custom->desc;
    for (int64_t col = 0; col < args->x.cols; col += CUSTOM_COLS) {
        const int64_t left = args->x.cols - col, n = left < CUSTOM_COLS ? left : CUSTOM_COLS;
        const size_t bytes = (size_t)n * desc->state_bytes;
        const char *partial = (const char *)args->partials +
                              (size_t)split->first_piece * custom_piece_bytes(args) +
                              (size_t)col * desc->state_bytes;
        // Aligned copies: a partial state may start anywhere.
        _Alignas(64) char state[CUSTOM_COLS * SPOPS_REDUCE_STATE_BYTES_MAX];
        _Alignas(64) char later[CUSTOM_COLS * SPOPS_REDUCE_STATE_BYTES_MAX];
        memcpy(state, partial, bytes);
        for (int32_t i = 1; i < split->num_pieces; ++i) {
            memcpy(later, partial + (size_t)i * custom_piece_bytes(args), bytes);
            desc->combine(desc->user, n, state, later);
        }
        finish_custom(args, (const spops_rows_table *)work->kernels, split->segment, col, n,
                      split->count, state);
    }
}

static void choose_reduce(const spops_context *ctx, const spops_segreduce_args *args,
                          reduce_kernels *kernels)
{
    const bool traced = args->states != NULL || args->arg.data != NULL;
    if (args->x.dtype == SPOPS_DTYPE_F64) {
        kernels->range = spops_segreduce_f64_of[args->reduce].range[traced];
        kernels->split = spops_segreduce_f64_of[args->reduce].split[traced];
        kernels->piece_bytes = (size_t)args->x.cols * SPOPS_STATE_BYTES_F64;
        return;
    }
    const spops_reduce_functions *functions =
        traced ? &spops_segreduce_traced_table_of(ctx)->of[args->reduce]
               : &spops_segreduce_plain_table_of(ctx)->of[args->reduce];
    kernels->range = functions->range[args->x.dtype];
    kernels->split = functions->split;
    kernels->piece_bytes = (size_t)args->x.cols * functions->piece_bytes;
}

// The function for all rows of a run, where there is one.
static spops_reduce_rows choose_rows(const spops_context *ctx, const spops_segreduce_args *args)
{
    const bool sum = args->reduce == SPOPS_REDUCE_SUM || args->reduce == SPOPS_REDUCE_MEAN;
    if (!sum || args->x.dtype == SPOPS_DTYPE_F64 || args->w.data != NULL || args->states != NULL ||
        args->out.data == NULL || args->x.cols > SPOPS_NARROW_COLS || args->lists->pairs == NULL)
        return NULL;
    return spops_segreduce_plain_table_of(ctx)->narrow[args->x.dtype];
}

// Whether SUM is asked for more than one dtype of rows and outputs.
static bool is_extended_sum(const spops_segreduce_args *args)
{
    return (args->w.data != NULL && spops_dtype_is_narrow(args->w.dtype)) ||
           (args->out.data != NULL && args->out.dtype != args->x.dtype) || args->x_scale != NULL ||
           args->w_scale != NULL || args->out_scale != NULL;
}

static void choose_sum(const spops_context *ctx, const spops_segreduce_args *args,
                       reduce_kernels *kernels)
{
    const spops_segsum_table *table = spops_segsum_table_of(ctx);
    kernels->range = table->range[args->x.dtype];
    kernels->split = table->split;
    kernels->piece_bytes = (size_t)args->x.cols * sizeof(double);
}

typedef struct decode_work {
    const spops_segreduce_args *args;
    const spops_rows_table *table;
} decode_work;

static void decode_range(const void *work, int64_t begin, int64_t end)
{
    const decode_work *w = (const decode_work *)work;
    const spops_matrix x = w->args->x, scales = w->args->x_scales;
    for (int64_t r = begin; r < end; ++r)
        w->table->decode(
            x.dtype, (const char *)x.data + spops_elements_bytes(x.dtype, r * x.row_stride),
            scales.data == NULL ? NULL : (const uint8_t *)scales.data + r * scales.row_stride,
            x.cols, (uint16_t *)w->args->x_f16 + r * x.cols);
}

// Rows of 8 or 4 bits as f16, once for all the terms that name them.
static spops_matrix decode_rows(const spops_context *ctx, const spops_segreduce_args *args,
                                const spops_rows_table *table)
{
    const spops_matrix x = args->x;
    const decode_work work = {args, table};
    spops_parallel_for(spops_team_for(ctx, x.rows * x.cols), x.rows, 0, decode_range, &work);
    return spops_matrix_dense(args->x_f16, x.rows, x.cols, SPOPS_DTYPE_F16);
}

spops_status spops_cpu_segreduce(spops_context *ctx, const spops_segreduce_args *given)
{
    const spops_rows_table *table = spops_rows_table_of(ctx);
    spops_segreduce_args decoded = *given;
    const spops_segreduce_args *args = &decoded;
    walk work = {args, table, custom_out_row, custom_piece, custom_split, NULL, NULL, 0, 0};
    reduce_kernels kernels;

    if (args->x.cols == 0) return SPOPS_STATUS_OK;
    if (spops_dtype_is_narrow(args->x.dtype)) decoded.x = decode_rows(ctx, given, table);
    if (args->custom == NULL) {
        if (is_extended_sum(args)) {
            choose_sum(ctx, args, &kernels);
        } else {
            choose_reduce(ctx, args, &kernels);
            work.rows = choose_rows(ctx, args);
        }
        work.kernels = &kernels;
        work.out_row = reduce_out_row;
        work.piece = reduce_piece;
        work.split = reduce_split;
    }
    set_output(&work, args->out);
    walk_lists(ctx, &work, args->lists, args->x.cols);
    return SPOPS_STATUS_OK;
}

// ---- seggrad ------------------------------------------------------------------------------------

typedef struct grad_kernels {
    const spops_rows_table *table;
    spops_grad_range range;
} grad_kernels;

// n totals, at most CUSTOM_COLS, to columns from `col` on.
static void store_totals(const spops_rows_table *table, spops_matrix m, int64_t row, int64_t col,
                         int64_t n, const double *total)
{
    float v[CUSTOM_COLS];
    if (m.dtype == SPOPS_DTYPE_F64) {
        memcpy(element(m, row, col), total, (size_t)n * sizeof *total);
        return;
    }
    for (int64_t c = 0; c < n; ++c)
        v[c] = (float)total[c];
    table->store(m.dtype, v, n, element(m, row, col));
}

static void custom_grad_range(const spops_grad_args *args, const spops_rows_table *table,
                              int64_t out_row, int64_t begin, int64_t end, double *partial)
{
    const spops_reduce_desc *desc = &args->custom->desc;
    for (int64_t col = 0; col < args->x.cols; col += CUSTOM_COLS) {
        const int64_t left = args->x.cols - col, n = left < CUSTOM_COLS ? left : CUSTOM_COLS;
        _Alignas(64) char state[CUSTOM_COLS * SPOPS_REDUCE_STATE_BYTES_MAX];
        double acc[CUSTOM_COLS] = {0.0};
        float x[CUSTOM_COLS], v[CUSTOM_COLS], dv[CUSTOM_COLS], grad_out[CUSTOM_COLS];
        table->load(args->x.dtype, element(args->x, out_row, col), n, x);
        for (int64_t p = begin; p < end; ++p) {
            const int64_t s = spops_pair_of(args->lists, p, 0);
            const float weight = weight_at(table, args->w, spops_pair_of(args->lists, p, 1));
            const int64_t count = (int64_t)args->segment_offsets[s + 1] - args->segment_offsets[s];
            for (int64_t c = 0; c < n; ++c)
                v[c] = weight * x[c];
            memcpy(state,
                   (const char *)args->states +
                       (size_t)(s * args->x.cols + col) * desc->state_bytes,
                   (size_t)n * desc->state_bytes);
            desc->grad(desc->user, n, v, spops_term_of(args->lists, p), state, count, dv);
            table->load(args->grad_out.dtype, element(args->grad_out, s, col), n, grad_out);
            for (int64_t c = 0; c < n; ++c)
                acc[c] += (double)(weight * (dv[c] * grad_out[c]));
        }
        if (partial != NULL)
            memcpy(partial + col, acc, (size_t)n * sizeof *acc);
        else
            store_totals(table, args->grad, out_row, col, n, acc);
    }
}

static void grad_range(const walk *work, int64_t out_row, int64_t begin, int64_t end,
                       double *partial)
{
    const spops_grad_args *args = (const spops_grad_args *)work->args;
    const grad_kernels *k = (const grad_kernels *)work->kernels;
    if (args->custom != NULL)
        custom_grad_range(args, k->table, out_row, begin, end, partial);
    else
        k->range(args, out_row, begin, end, partial);
}

static void grad_out_row(const walk *work, int64_t out_row, int64_t begin, int64_t end)
{
    grad_range(work, out_row, begin, end, NULL);
}

static void grad_piece(const walk *work, int64_t piece, const spops_work_item *entry)
{
    const spops_grad_args *args = (const spops_grad_args *)work->args;
    grad_range(work, entry->segment, entry->begin, (int64_t)entry->begin + entry->count,
               (double *)args->partials + piece * args->x.cols);
}

static void grad_split(const walk *work, const spops_split_segment *split)
{
    const spops_grad_args *args = (const spops_grad_args *)work->args;
    const grad_kernels *k = (const grad_kernels *)work->kernels;
    for (int64_t col = 0; col < args->x.cols; col += CUSTOM_COLS) {
        const int64_t left = args->x.cols - col, n = left < CUSTOM_COLS ? left : CUSTOM_COLS;
        const double *partial =
            (const double *)args->partials + (int64_t)split->first_piece * args->x.cols + col;
        double acc[CUSTOM_COLS];
        memcpy(acc, partial, (size_t)n * sizeof *acc);
        for (int32_t i = 1; i < split->num_pieces; ++i) {
            partial += args->x.cols;
            for (int64_t c = 0; c < n; ++c)
                acc[c] += partial[c];
        }
        store_totals(k->table, args->grad, split->segment, col, n, acc);
    }
}

spops_status spops_cpu_seggrad(spops_context *ctx, const spops_grad_args *args)
{
    const spops_rows_table *table = spops_rows_table_of(ctx);
    grad_kernels kernels = {table, NULL};
    walk work = {args, &kernels, grad_out_row, grad_piece, grad_split, NULL, NULL, 0, 0};

    if (args->x.cols == 0) return SPOPS_STATUS_OK;
    if (args->custom == NULL)
        kernels.range = args->x.dtype == SPOPS_DTYPE_F64
                            ? spops_segreduce_f64_of[args->reduce].grad_range
                            : spops_seggrad_table_of(ctx)->grad_range[args->reduce][args->x.dtype];
    set_output(&work, args->grad);
    walk_lists(ctx, &work, args->lists, args->x.cols);
    return SPOPS_STATUS_OK;
}

// ---- segdot -------------------------------------------------------------------------------------

typedef struct dot_kernels {
    const spops_rows_table *table;
    spops_dot_range range;
} dot_kernels;

// Sum of v[0 .. n-1], n a power of two, by halves. v is overwritten.
static double sum_by_halves(double *v, int64_t n)
{
    for (int64_t half = n / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i)
            v[i] += v[i + half];
    }
    return v[0];
}

static double custom_dot_range(const spops_grad_args *args, const spops_rows_table *table,
                               int64_t out_row, int64_t begin, int64_t end)
{
    const spops_reduce_desc *desc = &args->custom->desc;
    const float weight = weight_at(table, args->w, out_row);
    double acc[CUSTOM_COLS] = {0.0};
    for (int64_t p = begin; p < end; ++p) {
        const int64_t j = spops_pair_of(args->lists, p, 0), s = spops_pair_of(args->lists, p, 1);
        const int64_t count = (int64_t)args->segment_offsets[s + 1] - args->segment_offsets[s];
        for (int64_t col = 0; col < args->x.cols; col += CUSTOM_COLS) {
            const int64_t left = args->x.cols - col, n = left < CUSTOM_COLS ? left : CUSTOM_COLS;
            _Alignas(64) char state[CUSTOM_COLS * SPOPS_REDUCE_STATE_BYTES_MAX];
            float x[CUSTOM_COLS], v[CUSTOM_COLS], dv[CUSTOM_COLS], grad_out[CUSTOM_COLS];
            table->load(args->x.dtype, element(args->x, j, col), n, x);
            for (int64_t c = 0; c < n; ++c)
                v[c] = weight * x[c];
            memcpy(state,
                   (const char *)args->states +
                       (size_t)(s * args->x.cols + col) * desc->state_bytes,
                   (size_t)n * desc->state_bytes);
            desc->grad(desc->user, n, v, spops_term_of(args->lists, p), state, count, dv);
            table->load(args->grad_out.dtype, element(args->grad_out, s, col), n, grad_out);
            for (int64_t c = 0; c < n; ++c)
                acc[c] += (double)(x[c] * (dv[c] * grad_out[c]));
        }
    }
    return sum_by_halves(acc, CUSTOM_COLS);
}

static double dot_range(const walk *work, int64_t out_row, int64_t begin, int64_t end)
{
    const spops_grad_args *args = (const spops_grad_args *)work->args;
    const dot_kernels *k = (const dot_kernels *)work->kernels;
    return args->custom != NULL ? custom_dot_range(args, k->table, out_row, begin, end)
                                : k->range(args, out_row, begin, end);
}

static void store_weight_gradient(const walk *work, int64_t out_row, double total)
{
    const float value = (float)total;
    const spops_grad_args *args = (const spops_grad_args *)work->args;
    const dot_kernels *k = (const dot_kernels *)work->kernels;
    spops_matrix grad = args->grad;
    grad.row_stride = 1;
    if (grad.dtype == SPOPS_DTYPE_F64)
        memcpy(element(grad, out_row, 0), &total, sizeof total);
    else
        k->table->store(grad.dtype, &value, 1, element(grad, out_row, 0));
}

static void dot_out_row(const walk *work, int64_t out_row, int64_t begin, int64_t end)
{
    store_weight_gradient(work, out_row, begin < end ? dot_range(work, out_row, begin, end) : 0.0);
}

static void dot_piece(const walk *work, int64_t piece, const spops_work_item *entry)
{
    const spops_grad_args *args = (const spops_grad_args *)work->args;
    ((double *)args->partials)[piece] =
        dot_range(work, entry->segment, entry->begin, (int64_t)entry->begin + entry->count);
}

static void dot_split(const walk *work, const spops_split_segment *split)
{
    const spops_grad_args *args = (const spops_grad_args *)work->args;
    const double *partial = (const double *)args->partials + split->first_piece;
    double sum = partial[0];
    for (int32_t i = 1; i < split->num_pieces; ++i)
        sum += partial[i];
    store_weight_gradient(work, split->segment, sum);
}

spops_status spops_cpu_segdot(spops_context *ctx, const spops_grad_args *args)
{
    const spops_rows_table *table = spops_rows_table_of(ctx);
    dot_kernels kernels = {table, NULL};
    const walk work = {args, &kernels, dot_out_row, dot_piece, dot_split, NULL, NULL, 0, 0};

    if (args->custom == NULL)
        kernels.range = args->x.dtype == SPOPS_DTYPE_F64
                            ? spops_segreduce_f64_of[args->reduce].dot_range
                            : spops_seggrad_table_of(ctx)->dot_range[args->reduce][args->x.dtype];
    walk_lists(ctx, &work, args->lists, args->x.cols);
    return SPOPS_STATUS_OK;
}
