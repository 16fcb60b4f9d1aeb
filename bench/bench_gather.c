// SPDX-License-Identifier: Apache-2.0
// Gathering rows by index, one to many, and its reverse, many to one: how close both come to the
// rate of a plain copy.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_report.h"

#define NUM_ROWS     400000
#define NUM_TERMS    1600000
#define QUICK_FACTOR 16 // fewer of both

// One dtype and width. x and grad have a row a key, out a row a term; the reverse goes from out to
// grad.
typedef struct gather_data {
    bench *b;
    int64_t num_rows, num_terms, num_rows_used;
    int32_t *keys, *row_begin, *row_terms; // host; terms of a row, ascending
    void *device_keys;
    spops_segments *plan;
    const bench_block *values;
    spops_matrix x, out, grad;
    spops_status status; // of the first call that failed
} gather_data;

static size_t matrix_bytes(const spops_matrix *m)
{
    return (size_t)m->rows * (size_t)m->cols * spops_dtype_bytes(m->dtype);
}

static void note_status(gather_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static void enqueue_forward(void *user)
{
    gather_data *d = user;
    note_status(d, spops_gather_execute(d->b->ctx, d->plan, d->x, NULL, d->out));
}

static void enqueue_backward(void *user)
{
    gather_data *d = user;
    note_status(
        d, spops_gather_execute_backward(d->b->ctx, d->plan, d->out, d->x, NULL, &d->grad, NULL));
}

static bool report_wrong(const gather_data *d, const char *pass, int64_t wrong, int64_t first)
{
    if (wrong == 0) return true;
    return bench_fail(d->b, "gather %s, %s, %lld columns: %lld rows are wrong, one of them %lld",
                      pass, spops_dtype_name(d->x.dtype), (long long)d->x.cols, (long long)wrong,
                      (long long)first);
}

static bool check_forward(const gather_data *d)
{
    const int64_t cols = d->x.cols;
    int64_t wrong = 0, first = 0;
    void *out = bench_host(d->b, d->num_terms * cols, spops_dtype_bytes(d->out.dtype));

    if (out == NULL || !bench_download(d->b, out, d->out.data, matrix_bytes(&d->out))) {
        free(out);
        return false;
    }
#pragma omp parallel for schedule(static) reduction(+ : wrong) reduction(max : first)
    for (int64_t t = 0; t < d->num_terms; ++t) {
        const float *row = bench_block_row(d->values, d->keys[t], cols);
        bool same = true;
        for (int64_t c = 0; c < cols; ++c)
            same = same && bench_get(out, d->out.dtype, t * cols + c) == row[c];
        if (same) continue;
        ++wrong;
        first = t;
    }
    free(out);
    return report_wrong(d, "forward", wrong, first);
}

static bool check_backward(const gather_data *d)
{
    const int64_t cols = d->x.cols;
    int64_t wrong = 0, first = 0;
    void *grad = bench_host(d->b, d->num_rows * cols, spops_dtype_bytes(d->x.dtype));

    if (grad == NULL || !bench_download(d->b, grad, d->grad.data, matrix_bytes(&d->grad))) {
        free(grad);
        return false;
    }
#pragma omp parallel for schedule(static) reduction(+ : wrong) reduction(max : first)
    for (int64_t j = 0; j < d->num_rows; ++j) {
        double sum[BENCH_MAX_WIDTH] = {0}, magnitude[BENCH_MAX_WIDTH] = {0};
        const int64_t count = d->row_begin[j + 1] - d->row_begin[j];
        bool right = true;
        for (int32_t i = d->row_begin[j]; i < d->row_begin[j + 1]; ++i) {
            const float *row = bench_block_row(d->values, d->row_terms[i], cols);
            for (int64_t c = 0; c < cols; ++c) {
                sum[c] += (double)row[c];
                magnitude[c] += fabs((double)row[c]);
            }
        }
        for (int64_t c = 0; c < cols; ++c) {
            const double value = bench_get(grad, d->x.dtype, j * cols + c);
            const double bound =
                count == 0 ? 0.0 : bench_sum_bound(d->x.dtype, count, magnitude[c], sum[c]);
            right = right && fabs(value - sum[c]) <= bound;
        }
        if (right) continue;
        ++wrong;
        first = j;
    }
    free(grad);
    return report_wrong(d, "backward", wrong, first);
}

static void measure_pass(gather_data *d, const char *pass, spops_matrix *in, spops_matrix *result,
                         void (*enqueue)(void *user), bool (*check)(const gather_data *d),
                         int64_t rows_moved)
{
    bench *b = d->b;
    const int64_t element = (int64_t)spops_dtype_bytes(d->x.dtype);
    bench_case c = {.suite = "gather"};

    snprintf(c.name, sizeof c.name, "%s", pass);
    snprintf(c.what, sizeof c.what, "%lld rows, %lld of them named by %lld terms",
             (long long)d->num_rows, (long long)d->num_rows_used, (long long)d->num_terms);
    c.dtype = d->x.dtype;
    c.cols = d->x.cols;
    c.bytes = 4 * d->num_terms + element * d->x.cols * rows_moved; // an index a term, the rows
    bench_progress("gather %s, %s, %lld columns: checking", pass, spops_dtype_name(c.dtype),
                   (long long)c.cols);
    if (!bench_block_upload(d->values, b->backend, in->data, in->rows * in->cols)) {
        bench_fail(b, "upload: %s", device_error());
        return;
    }
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, result->data, matrix_bytes(result))) return;
    enqueue(d);
    if (!device_stream_wait(b->backend, b->stream)) {
        bench_fail(b, "run: %s", device_error());
        return;
    }
    if (!bench_check(b, pass, d->status) || !check(d) ||
        !bench_case_time(b, &c, "spops", false, enqueue, d) || !bench_check(b, pass, d->status))
        return;
    bench_case_print(b, &c);
}

static bool make_keys(gather_data *d)
{
    bench *b = d->b;
    d->keys = bench_host(b, d->num_terms, sizeof *d->keys);
    d->row_begin = bench_host(b, d->num_rows + 1, sizeof *d->row_begin);
    d->row_terms = bench_host(b, d->num_terms, sizeof *d->row_terms);
    if (d->keys == NULL || d->row_begin == NULL || d->row_terms == NULL) return false;
    for (int64_t t = 0; t < d->num_terms; ++t) {
        d->keys[t] = (int32_t)(bench_random(9, (uint64_t)t) % (uint64_t)d->num_rows);
        ++d->row_begin[d->keys[t]];
    }
    for (int64_t j = 0, end = 0; j <= d->num_rows; ++j) { // counts become ends, then begins below
        if (d->row_begin[j] > 0) ++d->num_rows_used;
        end += d->row_begin[j];
        d->row_begin[j] = (int32_t)end;
    }
    for (int64_t t = d->num_terms - 1; t >= 0; --t)
        d->row_terms[--d->row_begin[d->keys[t]]] = (int32_t)t;
    return bench_upload(b, d->keys, (size_t)d->num_terms * sizeof *d->keys, &d->device_keys);
}

static void measure_dtype(gather_data *d, spops_dtype dtype, const int64_t *cols, int num_cols,
                          int64_t max_cols)
{
    bench *b = d->b;
    const size_t element = spops_dtype_bytes(dtype);
    bench_block values = {0};
    void *x = NULL, *out = NULL, *grad = NULL;

    if (!bench_block_create(dtype, 6, -1.0f, 1.0f, &values)) {
        bench_fail(b, "no host memory for values");
        goto done;
    }
    d->values = &values;
    if (!bench_alloc(b, (size_t)d->num_rows * (size_t)max_cols * element, &x) ||
        !bench_alloc(b, (size_t)d->num_rows * (size_t)max_cols * element, &grad) ||
        !bench_alloc(b, (size_t)d->num_terms * (size_t)max_cols * element, &out))
        goto done;
    for (int i = 0; i < num_cols; ++i) {
        d->x = spops_matrix_dense(x, d->num_rows, cols[i], dtype);
        d->grad = spops_matrix_dense(grad, d->num_rows, cols[i], dtype);
        d->out = spops_matrix_dense(out, d->num_terms, cols[i], dtype);
        if (bench_wants(b->options.passes, "forward"))
            measure_pass(d, "forward", &d->x, &d->out, enqueue_forward, check_forward,
                         d->num_rows_used + d->num_terms);
        if (bench_wants(b->options.passes, "backward"))
            measure_pass(d, "backward", &d->out, &d->grad, enqueue_backward, check_backward,
                         d->num_rows + d->num_terms);
    }

done:
    bench_free(b, x);
    bench_free(b, grad);
    bench_free(b, out);
    bench_block_destroy(&values);
}

static void run_suite(bench *b)
{
    const bool cpu = b->backend == SPOPS_BACKEND_CPU;
    const int64_t factor = b->options.quick ? QUICK_FACTOR : 1;
    const int64_t own_cols[] = {64, 16, 256};
    const unsigned own_dtypes = 1u << SPOPS_DTYPE_F32 | (cpu ? 0u : 1u << SPOPS_DTYPE_F16);
    int64_t cols[BENCH_MAX_COLS], max_cols = 0;
    const int num_cols = bench_cols(b, own_cols, b->options.quick ? 1 : 3, cols);
    spops_segments_options options = spops_segments_options_default();
    gather_data d = {.b = b, .num_rows = NUM_ROWS / factor, .num_terms = NUM_TERMS / factor};

    for (int i = 0; i < num_cols; ++i)
        max_cols = cols[i] > max_cols ? cols[i] : max_cols;
    options.max_cols = max_cols;
    if (make_keys(&d) &&
        bench_check(b, "gather",
                    spops_segments_create_from_keys(b->ctx, d.num_rows, d.num_terms, d.device_keys,
                                                    SPOPS_KEYS_UNSORTED, &options, &d.plan)))
        for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype)
            if (bench_wants_dtype(b, own_dtypes, (spops_dtype)dtype))
                measure_dtype(&d, (spops_dtype)dtype, cols, num_cols, max_cols);
    spops_segments_destroy(d.plan);
    bench_free(b, d.device_keys);
    free(d.keys);
    free(d.row_begin);
    free(d.row_terms);
}

const bench_suite bench_suite_gather = {
    .name = "gather", .passes = "forward,backward", .run = run_suite};
