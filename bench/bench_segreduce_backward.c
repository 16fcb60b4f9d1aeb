// SPDX-License-Identifier: Apache-2.0
// The gradients of segmented reductions that gather weighted rows. Every row and every weight
// belongs to one term, so that a term's gradients are elements of grad_x and grad_w.
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_segreduce.h"

static void enqueue_backward(void *user)
{
    segreduce_data *d = user;
    const spops_status status = spops_segreduce_execute_backward(
        d->b->ctx, d->gathering, d->op->reduce, d->grad_out, d->x, &d->w,
        d->wants_x ? &d->grad_x : NULL, d->wants_w ? &d->grad_w : NULL);
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// ---- The reference, in f64 ----------------------------------------------------------------------

static const float *row_of_term(const segreduce_data *d, int32_t term)
{
    return bench_block_row(d->values, d->idx[term], d->cols);
}

static float weight_of_term(const segreduce_data *d, int32_t term)
{
    return *bench_block_row(d->weights, term, 1);
}

// Whether a gradient is computed from the other terms' values: that value itself is then off.
static bool uses_values(const bench_reduction *op)
{
    return !op->is_linear && !op->has_arg;
}

static bool is_near(const void *array, spops_dtype dtype, int64_t i, double exact, double magnitude,
                    double slack, int64_t roundings)
{
    const double bound =
        magnitude == 0.0 ? slack : bench_sum_bound(dtype, roundings, magnitude, exact) + slack;
    return fabs((double)bench_get(array, dtype, i) - exact) <= bound;
}

static int64_t wrong_in_term(const segreduce_data *d, const void *grad_x, const void *grad_w,
                             const float *grad_out, int32_t term, int64_t count,
                             const reduction_state *states)
{
    const spops_dtype dtype = d->x.dtype;
    const float *x = row_of_term(d, term);
    const double w = weight_of_term(d, term);
    // Roundings of one derivative and of what it is multiplied with.
    const int64_t roundings = uses_values(d->op) ? count + 6 : 6;
    double v[BENCH_MAX_WIDTH], grad[BENCH_MAX_WIDTH], own[BENCH_MAX_WIDTH];
    double sum = 0.0, magnitude = 0.0, slack = 0.0;
    int64_t wrong = 0;

    segreduce_values(d, term, v);
    d->op->grad(d->cols, states, count, v, term, grad);
    for (int64_t c = 0; c < d->cols; ++c) {
        const double product = (double)x[c] * (double)grad_out[c] * grad[c];
        // How far the derivative may be off because a product on the way was too small for f32.
        own[c] = !uses_values(d->op) ? 0.0 : v[c] == 0.0 ? FLT_MIN : FLT_MIN / fabs(v[c]);
        sum += product;
        magnitude += fabs(product);
        slack += fabs((double)x[c] * (double)grad_out[c]) * own[c];
    }
    if (grad_w != NULL && !is_near(grad_w, dtype, term, sum, magnitude, slack, roundings + d->cols))
        ++wrong;
    for (int64_t c = 0; grad_x != NULL && c < d->cols; ++c) {
        const double exact = w * (double)grad_out[c] * grad[c];
        if (!is_near(grad_x, dtype, d->idx[term] * d->cols + c, exact, fabs(exact),
                     fabs(w * (double)grad_out[c]) * own[c], roundings))
            ++wrong;
    }
    return wrong;
}

static int64_t wrong_in_segment(const segreduce_data *d, const void *grad_x, const void *grad_w,
                                int64_t segment)
{
    const int32_t begin = d->offsets[segment], end = d->offsets[segment + 1];
    const float *grad_out = bench_block_row(d->grads, segment, d->cols);
    reduction_state states[BENCH_MAX_WIDTH];
    int64_t wrong = 0;

    segreduce_fold(d, begin, end, states);
    for (int32_t t = begin; t < end; ++t)
        wrong += wrong_in_term(d, grad_x, grad_w, grad_out, t, end - begin, states);
    return wrong;
}

// A matrix where the host can read it; *copy is for the caller to free.
static const void *read_matrix(bench *b, const spops_matrix *m, void **copy)
{
    if (b->backend == SPOPS_BACKEND_CPU) return m->data;
    *copy = bench_host(b, m->rows * m->cols, spops_dtype_bytes(m->dtype));
    if (*copy == NULL || !bench_download(b, *copy, m->data, segreduce_matrix_bytes(m))) return NULL;
    return *copy;
}

static bool check_gradients(const segreduce_data *d, const char *name)
{
    bench *b = d->b;
    void *copy_x = NULL, *copy_w = NULL;
    const void *grad_x = d->wants_x ? read_matrix(b, &d->grad_x, &copy_x) : NULL;
    const void *grad_w = d->wants_w ? read_matrix(b, &d->grad_w, &copy_w) : NULL;
    const bool readable = (grad_x != NULL || !d->wants_x) && (grad_w != NULL || !d->wants_w);
    int64_t wrong = 0, first = 0;

    if (readable) {
#pragma omp parallel for schedule(dynamic, 16) reduction(+ : wrong) reduction(max : first)
        for (int64_t s = 0; s < d->num_segments; ++s) {
            const int64_t found = wrong_in_segment(d, grad_x, grad_w, s);
            if (found > 0) first = s;
            wrong += found;
        }
    }
    free(copy_x);
    free(copy_w);
    if (!readable || wrong == 0) return readable;
    return bench_fail(b, "%s, %s, %lld columns: %lld elements are wrong, some in segment %lld",
                      name, spops_dtype_name(d->x.dtype), (long long)d->cols, (long long)wrong,
                      (long long)first);
}

// ---- Cases --------------------------------------------------------------------------------------

// Offsets, an index a term; each array that the gradients need and each that they are, once.
static int64_t compulsory_bytes(const segreduce_data *d)
{
    const int64_t element = (int64_t)spops_dtype_bytes(d->x.dtype);
    const bool values = !d->op->is_linear; // these need x and w for either gradient
    const int64_t per_term = ((d->wants_x || values) + d->wants_w) * element + 4;
    const int64_t rows = d->num_nonempty + ((d->wants_w || values) + d->wants_x) * d->num_terms;
    return 4 * (d->num_segments + 1) + per_term * d->num_terms + element * d->cols * rows;
}

static bool run_once(segreduce_data *d)
{
    bench *b = d->b;
    if (!bench_poison(b, d->grad_x.data, segreduce_matrix_bytes(&d->grad_x)) ||
        !bench_poison(b, d->grad_w.data, segreduce_matrix_bytes(&d->grad_w)))
        return false;
    enqueue_backward(d);
    if (device_stream_wait(b->backend, b->stream)) return true;
    return bench_fail(b, "run: %s", device_error());
}

static void measure_gradients(segreduce_data *d, const char *name, const char *what, bool wants_x,
                              bool wants_w)
{
    bench *b = d->b;
    bench_case c;
    char text[32];

    d->wants_x = wants_x;
    d->wants_w = wants_w;
    d->status = SPOPS_STATUS_OK;
    snprintf(text, sizeof text, "%s %s", name, what);
    segreduce_begin_case(d, text, &c);
    c.bytes = compulsory_bytes(d);
    c.gather_bytes = (int64_t)spops_dtype_bytes(d->x.dtype) * d->cols * d->num_terms;
    bench_progress("segreduce %s, %s, %lld columns: checking", c.name, spops_dtype_name(c.dtype),
                   (long long)c.cols);
    if (run_once(d) && bench_check(b, c.name, d->status) && check_gradients(d, c.name) &&
        bench_case_time(b, &c, "spops", false, enqueue_backward, d) &&
        bench_check(b, c.name, d->status))
        bench_case_print(b, &c);
}

void segreduce_measure_backward(segreduce_data *d, const bench_reduction *op)
{
    d->plan = d->gathering;
    d->weighted = true;
    d->op = op;
    measure_gradients(d, op->name, "backward", true, true);
    // Both gradients of a sum may come from one walk; these are the walks for one of them.
    if (op->reduce != SPOPS_REDUCE_SUM) return;
    measure_gradients(d, op->name, "grad_x", true, false);
    measure_gradients(d, op->name, "grad_w", false, true);
}
