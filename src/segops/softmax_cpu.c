// SPDX-License-Identifier: Apache-2.0
// Softmax within segments on the CPU: whole segments, and pieces of the split ones, each measured and
// then written by one thread. Pieces combine in order, so the number of threads changes no bit.
#include <math.h>

#include "backends/backend_cpu.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "segments/walk_cpu.h"
#include "segops/softmax_isa.h"

typedef struct softmax_work {
    const spops_segment_softmax_args *args;
    const spops_softmax_table *table; // NULL: rows of f64
} softmax_work;

spops_softmax_state spops_softmax_combine(spops_softmax_state a, spops_softmax_state b,
                                          bool backward)
{
    spops_softmax_state both;
    if (backward) return (spops_softmax_state){0.0, a.sum + b.sum};
    both.max = b.max > a.max || isnan(b.max) ? b.max : a.max;
    if (both.max == -INFINITY) return (spops_softmax_state){-INFINITY, 0.0};
    both.sum = a.sum * exp(a.max - both.max) + b.sum * exp(b.max - both.max);
    return both;
}

// ---- Rows of f64 --------------------------------------------------------------------------------

static double *row_of(const spops_segment_softmax_args *args, spops_matrix m, int64_t p)
{
    return spops_row_f64(m, spops_term_of(args->lists, p));
}

static void measure_f64(const spops_segment_softmax_args *args, int64_t begin, int64_t end,
                        int64_t col, int n, spops_softmax_state *states)
{
    const bool backward = args->grad_out.data != NULL;
    for (int c = 0; c < n; ++c)
        states[c] = (spops_softmax_state){-INFINITY, 0.0};
    for (int64_t p = begin; p < end; ++p) {
        const double *x = row_of(args, args->x, p) + col;
        if (backward) {
            const double *g = row_of(args, args->grad_out, p) + col;
            for (int c = 0; c < n; ++c)
                states[c].sum += x[c] * g[c];
            continue;
        }
        for (int c = 0; c < n; ++c)
            if (x[c] > states[c].max || isnan(x[c])) states[c].max = x[c];
    }
    if (backward) return;
    for (int64_t p = begin; p < end; ++p) {
        const double *x = row_of(args, args->x, p) + col;
        for (int c = 0; c < n; ++c)
            states[c].sum += exp(x[c] - (states[c].max == -INFINITY ? 0.0 : states[c].max));
    }
}

static void emit_f64(const spops_segment_softmax_args *args, int64_t begin, int64_t end,
                     int64_t col, int n, const spops_softmax_state *states)
{
    const bool backward = args->grad_out.data != NULL;
    for (int64_t p = begin; p < end; ++p) {
        const double *x = row_of(args, args->x, p) + col;
        double *out = row_of(args, args->out, p) + col;
        for (int c = 0; c < n; ++c) {
            const double max = states[c].max == -INFINITY ? 0.0 : states[c].max;
            if (backward)
                out[c] = x[c] * (row_of(args, args->grad_out, p)[col + c] - states[c].sum);
            else
                out[c] = states[c].sum == 0.0 ? 0.0 : exp(x[c] - max) / states[c].sum;
        }
    }
}

// ---- Dividing the work --------------------------------------------------------------------------

static void measure(const softmax_work *w, int64_t begin, int64_t end, int64_t col, int n,
                    spops_softmax_state *states)
{
    if (w->table != NULL)
        w->table->measure[w->args->x.dtype](w->args, begin, end, col, n, states);
    else
        measure_f64(w->args, begin, end, col, n, states);
}

static void emit(const softmax_work *w, int64_t begin, int64_t end, int64_t col, int n,
                 const spops_softmax_state *states)
{
    if (w->table != NULL)
        w->table->emit[w->args->x.dtype](w->args, begin, end, col, n, states);
    else
        emit_f64(w->args, begin, end, col, n, states);
}

static int strip(const softmax_work *w, int64_t col)
{
    const int64_t left = w->args->x.cols - col;
    return (int)(left < SPOPS_SOFTMAX_COLS ? left : SPOPS_SOFTMAX_COLS);
}

static spops_softmax_state *states_of(const softmax_work *w, int64_t piece)
{
    return (spops_softmax_state *)w->args->partials + piece * w->args->x.cols;
}

static void softmax_range(const void *work, int64_t segment, int64_t begin, int64_t end,
                          int64_t piece)
{
    const softmax_work *w = (const softmax_work *)work;
    spops_softmax_state states[SPOPS_SOFTMAX_COLS];
    (void)segment;
    for (int64_t col = 0; col < w->args->x.cols && begin < end; col += SPOPS_SOFTMAX_COLS) {
        if (piece >= 0) {
            measure(w, begin, end, col, strip(w, col), states_of(w, piece) + col);
            continue;
        }
        measure(w, begin, end, col, strip(w, col), states);
        emit(w, begin, end, col, strip(w, col), states);
    }
}

// The states of a split segment, at its first piece.
static void softmax_split(const void *work, const spops_split_segment *split)
{
    const softmax_work *w = (const softmax_work *)work;
    const bool backward = w->args->grad_out.data != NULL;
    spops_softmax_state *all = states_of(w, split->first_piece);
    for (int32_t i = 1; i < split->num_pieces; ++i) {
        const spops_softmax_state *piece = states_of(w, split->first_piece + i);
        for (int64_t c = 0; c < w->args->x.cols; ++c)
            all[c] = spops_softmax_combine(all[c], piece[c], backward);
    }
}

static void emit_pieces(const void *work, int64_t begin, int64_t end)
{
    const softmax_work *w = (const softmax_work *)work;
    const spops_lists *lists = w->args->lists;
    for (int64_t i = begin; i < end; ++i) {
        const spops_work_item *piece = &lists->pieces[i];
        const spops_softmax_state *states = states_of(w, lists->splits[piece->split].first_piece);
        for (int64_t col = 0; col < w->args->x.cols; col += SPOPS_SOFTMAX_COLS)
            emit(w, piece->begin, (int64_t)piece->begin + piece->count, col, strip(w, col),
                 states + col);
    }
}

static void clear_rows(const void *work, int64_t begin, int64_t end)
{
    spops_clear_rows(((const softmax_work *)work)->args->out, begin, end);
}

spops_status spops_cpu_segment_softmax(spops_context *ctx, const spops_segment_softmax_args *args)
{
    const softmax_work work = {
        args, args->x.dtype == SPOPS_DTYPE_F64 ? NULL : spops_softmax_table_of(ctx)};
    const spops_schedule *schedule = args->lists->schedule;
    const spops_team team = spops_team_for(ctx, args->out.rows * args->out.cols * 8);
    spops_cpu_walk walk = {&work, args->lists, softmax_range, softmax_split, 0, 0};

    if (schedule->num_terms < args->out.rows)
        spops_parallel_for(team, args->out.rows, 0, clear_rows, &work);
    if (args->lists->num_segments == 0) return SPOPS_STATUS_OK;
    spops_cpu_walk_run(ctx, &walk, args->x.cols * 8);
    spops_parallel_for(team, schedule->num_pieces, 1, emit_pieces, &work);
    return SPOPS_STATUS_OK;
}
