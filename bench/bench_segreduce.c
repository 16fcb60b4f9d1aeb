// SPDX-License-Identifier: Apache-2.0
// Segmented reductions: rows that lie in order, and the weighted sum that gathers its rows, on
// segments of three shapes (bench_data.h describes them).
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/cusparse_spmm.h"
#include "bench/baselines/segreduce_baselines.h"
#include "bench/bench_segreduce.h"

#define NUM_SEGMENTS 100000
#define NUM_TERMS    1600000
#define QUICK_FACTOR 16 // fewer of both

static struct {
    const char *shapes;
    bool all_ops;
    int64_t variant;
} asked;
static const bench_option suite_options[] = {
    {"--shapes", "LIST", "uniform,powerlaw,huge (default: these), single: one term a segment",
     "uniform,powerlaw,huge,single", .text = &asked.shapes},
    {"--all-ops", NULL, "every reduction, not only the sum", .on = &asked.all_ops},
    {"--variant", "N", "sum_variant of the plans (default 0: as the tuning table has it)",
     .number = &asked.variant, .least = 0, .most = 255},
    {0}};

size_t segreduce_matrix_bytes(const spops_matrix *m)
{
    return (size_t)m->rows * (size_t)m->cols * spops_dtype_bytes(m->dtype);
}

static void enqueue_segreduce(void *user)
{
    segreduce_data *d = user;
    const spops_status status = spops_segreduce_execute(d->b->ctx, d->plan, d->op->reduce, d->x,
                                                        d->weighted ? &d->w : NULL, d->out, NULL);
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// ---- The reference, in f64 ----------------------------------------------------------------------

void segreduce_values(const segreduce_data *d, int32_t term, double *v)
{
    const float w = d->weighted ? *bench_block_row(d->weights, term, 1) : 1.0f;
    const float *x =
        bench_block_row(d->values, d->plan == d->gathering ? d->idx[term] : term, d->cols);
    for (int64_t c = 0; c < d->cols; ++c)
        v[c] = (double)(w * x[c]);
}

void segreduce_fold(const segreduce_data *d, int32_t begin, int32_t end, reduction_state *states)
{
    double v[BENCH_MAX_WIDTH];
    d->op->clear(d->cols, states);
    for (int32_t t = begin; t < end; ++t) {
        segreduce_values(d, t, v);
        d->op->fold(d->cols, states, v, t);
    }
}

// What one rounding of every term may move the result by: the sum of |v| |d out / d v|; of a
// reduction without a gradient, of |v|.
static void find_scale(const segreduce_data *d, int32_t begin, int32_t end,
                       const reduction_state *states, double *scale)
{
    double v[BENCH_MAX_WIDTH], grad[BENCH_MAX_WIDTH];
    for (int64_t c = 0; c < d->cols; ++c) {
        scale[c] = 0.0;
        grad[c] = 1.0;
    }
    for (int32_t t = begin; t < end; ++t) {
        segreduce_values(d, t, v);
        if (d->op->has_grad && (t == begin || !d->op->is_linear))
            d->op->grad(d->cols, states, end - begin, v, t, grad);
        for (int64_t c = 0; c < d->cols; ++c)
            scale[c] += fabs(v[c] * grad[c]);
    }
}

// How far the result of n terms may lie from the exact one. Values are
// in [-0.5, 1): a product that underflows on the way is below the smallest normal number in the end.
static double bound_of(const segreduce_data *d, int64_t n, double scale, double exact)
{
    if (n == 0) return 0.0;
    return bench_sum_bound(d->out.dtype, n + 1, fmax(scale, fabs(exact)), exact) +
           (d->op->is_linear ? 0.0 : (double)FLT_MIN);
}

static int64_t wrong_in_segment(const segreduce_data *d, const void *out, int64_t segment,
                                bool loose)
{
    const int32_t begin = d->offsets[segment], end = d->offsets[segment + 1];
    reduction_state states[BENCH_MAX_WIDTH];
    double result[BENCH_MAX_WIDTH], scale[BENCH_MAX_WIDTH];
    int64_t wrong = 0;

    segreduce_fold(d, begin, end, states);
    d->op->finalize(d->cols, states, end - begin, result);
    if (!d->op->has_arg) find_scale(d, begin, end, states, scale);
    for (int64_t c = 0; c < d->cols; ++c) {
        const double value = bench_get(out, d->out.dtype, segment * d->cols + c);
        double exact = result[c];
        double bound = d->op->has_arg ? 0.0 : bound_of(d, end - begin, scale[c], exact);
        if (loose) bound += bench_sum_bound(d->out.dtype, 1, 0.0, scale[c]);
        // Long sums leave the range of f16: infinity is then the right result.
        if (d->out.dtype == SPOPS_DTYPE_F16 && fabs(exact) - bound > 65520.0)
            exact = copysign(HUGE_VAL, exact);
        if (!(value == exact || fabs(value - exact) <= bound)) ++wrong;
    }
    return wrong;
}

// loose: another library's, whose partial sums may have been rounded to the dtype.
static bool check_output(const segreduce_data *d, const char *name, bool loose)
{
    bench *b = d->b;
    int64_t wrong = 0, first = 0;
    void *out = bench_host(b, d->out.rows * d->cols, spops_dtype_bytes(d->out.dtype));

    if (out == NULL || !bench_download(b, out, d->out.data, segreduce_matrix_bytes(&d->out))) {
        free(out);
        return false;
    }
#pragma omp parallel for schedule(dynamic, 16) reduction(+ : wrong) reduction(max : first)
    for (int64_t s = 0; s < d->num_segments; ++s) {
        const int64_t found = wrong_in_segment(d, out, s, loose);
        if (found > 0) first = s;
        wrong += found;
    }
    free(out);
    if (wrong == 0) return true;
    if (loose) { // another library's: its time is left out, the rest goes on
        fprintf(stderr, "bench: %s, %s, %lld columns, %s: left out, %lld elements are off\n",
                d->shape, spops_dtype_name(d->out.dtype), (long long)d->cols, name,
                (long long)wrong);
        return false;
    }
    return bench_fail(b, "%s, %s, %lld columns, %s: %lld elements are wrong, some in segment %lld",
                      d->shape, spops_dtype_name(d->out.dtype), (long long)d->cols, name,
                      (long long)wrong, (long long)first);
}

// ---- Cases --------------------------------------------------------------------------------------

static bool run_once(segreduce_data *d, void (*enqueue)(void *user), void *user)
{
    bench *b = d->b;
    if (!bench_poison(b, d->out.data, segreduce_matrix_bytes(&d->out))) return false;
    enqueue(user);
    if (device_stream_wait(b->backend, b->stream)) return true;
    return bench_fail(b, "run: %s", device_error());
}

void segreduce_begin_case(const segreduce_data *d, const char *what, bench_case *c)
{
    memset(c, 0, sizeof *c);
    c->suite = "segreduce";
    snprintf(c->name, sizeof c->name, "%s %s%s", d->shape, what,
             d->weighted ? ", weighted, gathering" : "");
    snprintf(c->what, sizeof c->what, "%lld terms in %lld of %lld segments, longest %lld",
             (long long)d->num_terms, (long long)d->num_nonempty, (long long)d->num_segments,
             (long long)d->longest);
    c->dtype = d->x.dtype;
    c->cols = d->cols;
}

static void begin_forward(const segreduce_data *d, const char *op, bench_case *c)
{
    const int64_t element = (int64_t)spops_dtype_bytes(d->x.dtype);
    segreduce_begin_case(d, op, c);
    // Offsets, every row (each is named once), every output; and an index and a weight a term.
    c->bytes = 4 * (d->num_segments + 1) + element * d->cols * (d->num_terms + d->num_segments);
    if (d->weighted) {
        c->bytes += (4 + element) * d->num_terms;
        c->gather_bytes = element * d->cols * d->num_terms;
    }
}

static bool measure_own(segreduce_data *d, bench_case *c)
{
    bench *b = d->b;
    d->status = SPOPS_STATUS_OK;
    bench_progress("segreduce %s, %s, %lld columns: checking", c->name, spops_dtype_name(c->dtype),
                   (long long)c->cols);
    return run_once(d, enqueue_segreduce, d) && bench_check(b, c->name, d->status) &&
           check_output(d, "spops", false) &&
           bench_case_time(b, c, "spops", false, enqueue_segreduce, d) &&
           bench_check(b, c->name, d->status);
}

static void measure_naive(segreduce_data *d, bench_case *c)
{
    segsum_baseline_args args = {.dtype = d->x.dtype,
                                 .num_segments = d->num_segments,
                                 .cols = (int32_t)d->cols,
                                 .offsets = d->offsets,
                                 .idx = d->plan == d->gathering ? d->idx : NULL,
                                 .x = d->x.data,
                                 .w = d->weighted ? d->w.data : NULL,
                                 .out = d->out.data};
    const struct {
        const char *name;
        void (*enqueue)(void *args);
    } variants[] = {{"naive_loop", segsum_naive}, {"naive_loop_threads", segsum_naive_threads}};

    if (!segsum_naive_accepts(&args)) return;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; ++i)
        if (run_once(d, variants[i].enqueue, &args) && check_output(d, variants[i].name, false))
            (void)bench_case_time(d->b, c, variants[i].name, true, variants[i].enqueue, &args);
}

static void measure_cusparse(segreduce_data *d, bench_case *c)
{
    static const char *const names[] = {"cusparse_csr_alg1", "cusparse_csr_alg2",
                                        "cusparse_csr_alg3"};
    for (int i = 0; i < 3; ++i) {
        char error[200];
        cusparse_spmm *spmm = NULL;
        const cusparse_spmm_desc desc = {.dtype = d->x.dtype,
                                         .num_segments = d->num_segments,
                                         .num_rows = d->num_terms,
                                         .num_terms = d->num_terms,
                                         .cols = d->cols,
                                         .offsets = d->device_offsets,
                                         .idx = d->device_idx,
                                         .w = d->w.data,
                                         .x = d->x.data,
                                         .out = d->out.data,
                                         .stream = d->b->stream,
                                         .algorithm = i + 1};
        if (!cusparse_spmm_create(&desc, &spmm, error, sizeof error)) {
            if (!d->b->options.json) printf("\n%s skipped: %s\n", names[i], error);
            continue;
        }
        if (run_once(d, cusparse_spmm_enqueue, spmm) && !cusparse_spmm_failed(spmm) &&
            check_output(d, names[i], true))
            (void)bench_case_time(d->b, c, names[i], true, cusparse_spmm_enqueue, spmm);
        if (cusparse_spmm_failed(spmm)) bench_fail(d->b, "%s failed to run", names[i]);
        (void)device_stream_wait(d->b->backend, d->b->stream);
        cusparse_spmm_destroy(spmm);
    }
}

static bool wants_op(const bench_reduction *op)
{
    return asked.all_ops || op->reduce == SPOPS_REDUCE_SUM;
}

static void measure_ordered(segreduce_data *d, const bench_reduction *op)
{
    const bool cpu = d->b->backend == SPOPS_BACKEND_CPU;
    bench_case c;
    d->plan = d->ordered;
    d->weighted = false;
    d->op = op;
    begin_forward(d, op->name, &c);
    if (!measure_own(d, &c)) return;
    if (cpu && d->b->options.baselines && op->reduce == SPOPS_REDUCE_SUM) measure_naive(d, &c);
    bench_case_print(d->b, &c);
}

static void measure_gathering(segreduce_data *d)
{
    bench_case c;
    d->plan = d->gathering;
    d->weighted = true;
    d->op = bench_reduction_find(SPOPS_REDUCE_SUM);
    begin_forward(d, d->op->name, &c);
    if (!measure_own(d, &c)) return;
    if (d->b->options.baselines) {
        if (d->b->backend == SPOPS_BACKEND_CPU)
            measure_naive(d, &c);
        else
            measure_cusparse(d, &c);
    }
    bench_case_print(d->b, &c);
}

static void measure_passes(segreduce_data *d)
{
    const bool forward = bench_wants(d->b->options.passes, "forward");
    const bool backward = bench_wants(d->b->options.passes, "backward");
    const bench_reduction *all = bench_reductions;
    for (int i = 0; forward && i < bench_num_reductions; ++i)
        if (wants_op(&all[i])) measure_ordered(d, &all[i]);
    if (forward) measure_gathering(d);
    for (int i = 0; backward && i < bench_num_reductions; ++i)
        if (wants_op(&all[i]) && all[i].has_grad) segreduce_measure_backward(d, &all[i]);
}

// ---- The suite ----------------------------------------------------------------------------------

static void free_shape(segreduce_data *d)
{
    spops_segments_destroy(d->ordered);
    spops_segments_destroy(d->gathering);
    bench_free(d->b, d->device_offsets);
    bench_free(d->b, d->device_idx);
    free(d->offsets);
    free(d->idx);
}

static bool make_shape(bench *b, const char *shape, int64_t num_segments, int64_t num_terms,
                       int64_t cols, segreduce_data *d)
{
    spops_segments_options options = spops_segments_options_default();
    const size_t idx_bytes = (size_t)num_terms * sizeof(int32_t);
    const size_t offsets_bytes = ((size_t)num_segments + 1) * sizeof(int32_t);

    memset(d, 0, sizeof *d);
    d->b = b;
    d->shape = shape;
    d->num_segments = num_segments;
    d->num_terms = num_terms;
    d->offsets = bench_host(b, num_segments + 1, sizeof *d->offsets);
    d->idx = bench_host(b, num_terms, sizeof *d->idx);
    if (d->offsets == NULL || d->idx == NULL) return false;
    if (!bench_fill_offsets(shape, num_segments, num_terms, 7, d->offsets))
        return bench_fail(b, "no segments of shape %s", shape);
    bench_fill_permutation(d->idx, num_terms, 8);
    for (int64_t s = 0; s < num_segments; ++s) {
        const int64_t length = d->offsets[s + 1] - d->offsets[s];
        d->longest = length > d->longest ? length : d->longest;
        d->num_nonempty += length > 0;
    }
    if (!bench_upload(b, d->offsets, offsets_bytes, &d->device_offsets) ||
        !bench_upload(b, d->idx, idx_bytes, &d->device_idx))
        return false;
    options.max_cols = cols;
    options.sum_variant = (int32_t)asked.variant;
    if (!bench_check(
            b, shape,
            spops_segments_create(b->ctx, num_segments, d->device_offsets, &options, &d->ordered)))
        return false;
    options.idx = d->device_idx;
    options.num_rows = num_terms;
    if (bench_wants(b->options.passes, "backward"))
        options.gradients = asked.all_ops ? SPOPS_GRADIENTS_ALL : SPOPS_GRADIENTS_LINEAR;
    return bench_check(
        b, shape,
        spops_segments_create(b->ctx, num_segments, d->device_offsets, &options, &d->gathering));
}

// Arrays of one dtype for the widest rows. Narrower rows take fewer of the values.
typedef struct segreduce_arrays {
    bench_block values, weights, grads;
    void *x, *w, *out, *grad_out, *grad_x, *grad_w;
} segreduce_arrays;

static bool fill_array(bench *b, const bench_block *block, int64_t count, void **array)
{
    if (!bench_alloc(b, (size_t)count * spops_dtype_bytes(block->dtype), array)) return false;
    return bench_block_upload(block, b->backend, *array, count) ||
           bench_fail(b, "upload: %s", device_error());
}

static bool make_arrays(bench *b, spops_dtype dtype, int64_t num_segments, int64_t num_terms,
                        int64_t cols, segreduce_arrays *a)
{
    const size_t element = spops_dtype_bytes(dtype);
    bench_progress("segreduce %s: making values", spops_dtype_name(dtype));
    memset(a, 0, sizeof *a);
    if (!bench_block_create(dtype, 4, -0.5f, 1.0f, &a->values) ||
        !bench_block_create(dtype, 5, 0.0f, 1.0f, &a->weights) ||
        !bench_block_create(dtype, 6, -1.0f, 1.0f, &a->grads))
        return bench_fail(b, "no host memory for values");
    if (!fill_array(b, &a->values, num_terms * cols, &a->x) ||
        !fill_array(b, &a->weights, num_terms, &a->w) ||
        !bench_alloc(b, (size_t)(num_segments * cols) * element, &a->out))
        return false;
    if (!bench_wants(b->options.passes, "backward")) return true;
    return fill_array(b, &a->grads, num_segments * cols, &a->grad_out) &&
           bench_alloc(b, (size_t)(num_terms * cols) * element, &a->grad_x) &&
           bench_alloc(b, (size_t)num_terms * element, &a->grad_w);
}

static void free_arrays(bench *b, segreduce_arrays *a)
{
    bench_free(b, a->x);
    bench_free(b, a->w);
    bench_free(b, a->out);
    bench_free(b, a->grad_out);
    bench_free(b, a->grad_x);
    bench_free(b, a->grad_w);
    bench_block_destroy(&a->values);
    bench_block_destroy(&a->weights);
    bench_block_destroy(&a->grads);
}

static void set_width(segreduce_data *d, const segreduce_arrays *a, int64_t cols)
{
    const spops_dtype dtype = a->values.dtype;
    d->values = &a->values;
    d->weights = &a->weights;
    d->grads = &a->grads;
    d->cols = cols;
    d->x = spops_matrix_dense(a->x, d->num_terms, cols, dtype);
    d->w = spops_matrix_dense(a->w, d->num_terms, 1, dtype);
    d->out = spops_matrix_dense(a->out, d->num_segments, cols, dtype);
    d->grad_out = spops_matrix_dense(a->grad_out, d->num_segments, cols, dtype);
    d->grad_x = spops_matrix_dense(a->grad_x, d->num_terms, cols, dtype);
    d->grad_w = spops_matrix_dense(a->grad_w, d->num_terms, 1, dtype);
}

// As many segments as terms: not among the shapes that run unasked.
static bool is_single(const char *shape)
{
    return strcmp(shape, "single") == 0;
}

static bool wants_shape(const char *shape)
{
    return bench_wants(asked.shapes == NULL ? "uniform,powerlaw,huge" : asked.shapes, shape);
}

// All shapes and widths of one dtype.
static void measure_dtype(bench *b, spops_dtype dtype, const int64_t *cols, int num_cols,
                          int64_t num_segments, int64_t num_terms)
{
    static const char *const shapes[] = {"uniform", "powerlaw", "huge", "single"};
    const int64_t max_segments = wants_shape("single") ? num_terms : num_segments;
    int64_t max_cols = 0;
    segreduce_arrays arrays;

    for (int i = 0; i < num_cols; ++i)
        max_cols = cols[i] > max_cols ? cols[i] : max_cols;
    const bool ready = make_arrays(b, dtype, max_segments, num_terms, max_cols, &arrays);
    for (size_t s = 0; ready && s < sizeof shapes / sizeof shapes[0]; ++s) {
        if (!wants_shape(shapes[s])) continue;
        const int64_t segments = is_single(shapes[s]) ? num_terms : num_segments;
        for (int i = 0; i < num_cols; ++i) { // a plan is made for the rows that it will meet
            segreduce_data d;
            if (make_shape(b, shapes[s], segments, num_terms, cols[i], &d)) {
                set_width(&d, &arrays, cols[i]);
                measure_passes(&d);
            }
            free_shape(&d);
        }
    }
    free_arrays(b, &arrays);
}

static void run_suite(bench *b)
{
    const bool cpu = b->backend == SPOPS_BACKEND_CPU;
    const int64_t factor = b->options.quick ? QUICK_FACTOR : 1;
    const int64_t own_cols[] = {64, 16, 256};
    const unsigned own_dtypes = 1u << SPOPS_DTYPE_F32 | (cpu ? 0u : 1u << SPOPS_DTYPE_F16);
    int64_t cols[BENCH_MAX_COLS];
    const int num_cols = bench_cols(b, own_cols, b->options.quick ? 1 : 3, cols);

    for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype)
        if (bench_wants_dtype(b, own_dtypes, (spops_dtype)dtype))
            measure_dtype(b, (spops_dtype)dtype, cols, num_cols, NUM_SEGMENTS / factor,
                          NUM_TERMS / factor);
}

const bench_suite bench_suite_segreduce = {
    .name = "segreduce", .passes = "forward,backward", .options = suite_options, .run = run_suite};
