// SPDX-License-Identifier: Apache-2.0
// Activations on the CPU: strips of a row.
#include <string.h>

#include "activation/activation_args.h"
#include "backends/backend_cpu.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "core/rows_isa.h"
#include "core/threads.h"

#define STRIP 1024 // columns

typedef struct activation_work {
    const spops_activation_args *args;
    const spops_rows_table *rows;
    const spops_activation_table *activations;
    int64_t strips; // of a row
} activation_work;

static void activate_f64(const spops_activation_args *args, int64_t row, int64_t col, int64_t n)
{
    const double *x = spops_row_f64(args->x, row) + col;
    double *out = spops_row_f64(args->out, row) + col;

    if (args->grad_out.data == NULL) {
        memmove(out, x, (size_t)n * sizeof *out); // out may be x
        spops_activate_f64(args->how, n, out);
        if (args->addend.data == NULL) return;
        const double *addend = spops_row_f64(args->addend, row) + col;
        for (int64_t c = 0; c < n; ++c)
            out[c] += (double)args->addend_scale * addend[c];
    } else {
        memmove(out, spops_row_f64(args->grad_out, row) + col, (size_t)n * sizeof *out);
        spops_differentiate_f64(args->how, n, x, out);
        for (int64_t c = 0; c < n; ++c)
            out[c] *= (double)args->grad_scale;
    }
}

static void activate_strips(const void *work, int64_t begin, int64_t end)
{
    const activation_work *w = (const activation_work *)work;
    const spops_activation_args *args = w->args;
    const spops_matrix x = args->x, g = args->grad_out, out = args->out;
    float v[STRIP], gradient[STRIP];

    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / w->strips, col = i % w->strips * STRIP;
        const int64_t n = x.cols - col < STRIP ? x.cols - col : STRIP;
        if (x.dtype == SPOPS_DTYPE_F64) {
            activate_f64(args, row, col, n);
            continue;
        }
        w->rows->load(x.dtype, spops_row_element(x, row, col), n, v);
        if (g.data == NULL) {
            w->activations->apply(args->how, n, v);
            if (args->addend.data != NULL) {
                w->rows->load(x.dtype, spops_row_element(args->addend, row, col), n, gradient);
                for (int64_t c = 0; c < n; ++c)
                    v[c] += args->addend_scale * gradient[c];
            }
            w->rows->store(out.dtype, v, n, spops_row_element(out, row, col));
        } else {
            w->rows->load(g.dtype, spops_row_element(g, row, col), n, gradient);
            w->activations->differentiate(args->how, n, v, gradient);
            for (int64_t c = 0; c < n; ++c)
                gradient[c] *= args->grad_scale;
            w->rows->store(out.dtype, gradient, n, spops_row_element(out, row, col));
        }
    }
}

spops_status spops_cpu_activation(spops_context *ctx, const spops_activation_args *args)
{
    const activation_work work = {args, spops_rows_table_of(ctx), spops_activation_table_of(ctx),
                                  (args->x.cols + STRIP - 1) / STRIP};
    const int64_t given = args->num_rows == NULL ? args->x.rows : *args->num_rows;
    const int64_t least = given < 0 ? 0 : given, rows = least < args->x.rows ? least : args->x.rows;

    spops_parallel_for(spops_team_for(ctx, rows * args->x.cols), rows * work.strips, 0,
                       activate_strips, &work);
    return SPOPS_STATUS_OK;
}
