// SPDX-License-Identifier: Apache-2.0
// SDDMM and SpMM on the CPU: positions divided over threads; segments and pieces of the split ones.
#include "backends/backend_cpu.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "sddmm/sddmm_isa.h"
#include "segments/walk_cpu.h"

// ---- SDDMM --------------------------------------------------------------------------------------

typedef struct sddmm_work {
    const spops_sddmm_args *args;
    const spops_sddmm_table *table; // NULL: rows of f64
} sddmm_work;

static void dots_f64(const spops_sddmm_args *args, int64_t segment, int64_t begin, int64_t end)
{
    const int64_t heads = args->out.cols, d = args->q.cols / heads;
    const double *q = spops_row_f64(args->q, segment);
    for (int64_t p = begin; p < end; ++p) {
        const double *k = spops_row_f64(args->k, spops_pair_of(args->lists, p, 0));
        double *out = spops_row_f64(args->out, spops_term_of(args->lists, p));
        for (int64_t h = 0; h < heads; ++h) {
            double sum = 0.0;
            for (int64_t i = h * d; i < (h + 1) * d; ++i)
                sum += q[i] * k[i];
            out[h] = (double)args->scale * sum;
        }
    }
}

// The segment that has position p.
static int64_t segment_of(const spops_lists *lists, int64_t p)
{
    int64_t low = 0, high = lists->num_segments; // offsets[low] <= p < offsets[high]
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (lists->offsets[middle] <= p)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void sddmm_range(const void *work, int64_t begin, int64_t end)
{
    const sddmm_work *w = (const sddmm_work *)work;
    const int32_t *offsets = w->args->lists->offsets;
    for (int64_t s = segment_of(w->args->lists, begin), p = begin; p < end; ++s) {
        const int64_t stop = offsets[s + 1] < end ? offsets[s + 1] : end;
        if (stop <= p) continue;
        if (w->table != NULL)
            w->table->dots[w->args->q.dtype](w->args, s, p, stop);
        else
            dots_f64(w->args, s, p, stop);
        p = stop;
    }
}

static void clear_rows(const void *work, int64_t begin, int64_t end)
{
    spops_clear_rows(((const sddmm_work *)work)->args->out, begin, end);
}

spops_status spops_cpu_sddmm(spops_context *ctx, const spops_sddmm_args *args)
{
    const sddmm_work work = {args,
                             args->q.dtype == SPOPS_DTYPE_F64 ? NULL : spops_sddmm_table_of(ctx)};
    const int64_t terms = args->lists->schedule->num_terms;
    const spops_team clears = spops_team_for(ctx, args->out.rows * args->out.cols);

    if (terms < args->out.rows) spops_parallel_for(clears, args->out.rows, 0, clear_rows, &work);
    if (terms == 0) return SPOPS_STATUS_OK;
    spops_parallel_for(spops_team_for(ctx, terms * args->q.cols), terms, 0, sddmm_range, &work);
    return SPOPS_STATUS_OK;
}

// ---- SpMM ---------------------------------------------------------------------------------------

typedef struct spmm_work {
    const spops_spmm_args *args;
    const spops_sddmm_table *table;
} spmm_work;

static double *partial_of(const spops_spmm_args *args, int64_t piece)
{
    return (double *)args->partials + piece * args->x.cols;
}

static void sums_f64(const spops_spmm_args *args, int64_t segment, int64_t begin, int64_t end,
                     double *partial)
{
    const int64_t d = args->x.cols / args->w.cols;
    double *out = partial != NULL ? partial : spops_row_f64(args->out, segment);

    for (int64_t c = 0; c < args->x.cols; ++c)
        out[c] = 0.0;
    for (int64_t p = begin; p < end; ++p) {
        const double *x = spops_row_f64(args->x, spops_pair_of(args->lists, p, 0));
        const double *w = spops_row_f64(args->w, spops_term_of(args->lists, p));
        for (int64_t h = 0; h < args->w.cols; ++h)
            for (int64_t c = h * d; c < (h + 1) * d; ++c)
                out[c] += w[h] * x[c];
    }
    for (int64_t c = 0; c < args->x.cols && partial == NULL; ++c)
        out[c] *= (double)args->scale;
}

static void spmm_range(const void *work, int64_t segment, int64_t begin, int64_t end, int64_t piece)
{
    const spmm_work *w = (const spmm_work *)work;
    double *partial = piece >= 0 ? partial_of(w->args, piece) : NULL;
    if (w->table != NULL)
        w->table->sums[w->args->x.dtype](w->args, segment, begin, end, partial);
    else
        sums_f64(w->args, segment, begin, end, partial);
}

static void spmm_split(const void *work, const spops_split_segment *split)
{
    const spops_spmm_args *args = ((const spmm_work *)work)->args;
    const int64_t row = split->segment * spops_row_step(args->out);
    for (int64_t c = 0; c < args->x.cols; ++c) {
        double sum = 0.0;
        for (int32_t i = 0; i < split->num_pieces; ++i)
            sum += partial_of(args, split->first_piece + i)[c];
        sum *= (double)args->scale;
        if (args->out.dtype == SPOPS_DTYPE_F64)
            ((double *)args->out.data)[row + c] = sum;
        else
            spops_store_double(args->out.dtype, args->out.data, row + c, (double)(float)sum);
    }
}

spops_status spops_cpu_spmm(spops_context *ctx, const spops_spmm_args *args)
{
    const spmm_work work = {args,
                            args->x.dtype == SPOPS_DTYPE_F64 ? NULL : spops_sddmm_table_of(ctx)};
    spops_cpu_walk walk = {&work, args->lists, spmm_range, spmm_split, 0, 0};
    spops_cpu_walk_run(ctx, &walk, args->x.cols);
    return SPOPS_STATUS_OK;
}
