// SPDX-License-Identifier: Apache-2.0
// Softmax, sort and top-k within segments, and their gradients, against FP64 and plain sorts.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/term_plans.h"

typedef enum kind {
    SOFTMAX,
    SOFTMAX_BACKWARD,
    SORT,
    TOPK,
    SORT_BACKWARD,
    TOPK_BACKWARD,
    NUM_KINDS
} kind;
enum { NUM_VECTOR_KINDS = SORT };
static const int kinds[NUM_KINDS] = {SOFTMAX, SOFTMAX_BACKWARD, SORT,
                                     TOPK,    SORT_BACKWARD,    TOPK_BACKWARD};
static const char *const kind_names[NUM_KINDS] = {"softmax", "softmax backward", "sort",
                                                  "topk",    "sort backward",    "topk backward"};

static const int64_t all_cols[] = {1, 2, 3, 4, 8, 17, 33};
enum { NUM_COLS = 7 };

enum { X, GRAD }; // inputs; of a gradient of places these are places and grad_values
enum { OUT, PLACES };

typedef struct ops_case {
    kind kind;
    const term_plan *plan;
    int64_t *offsets, *terms; // of its segments
    int64_t cols;
    int32_t k;
    bool flag; // descending, smallest
    bool is_f64;
} ops_case;

// ---- References ---------------------------------------------------------------------------------

static void ref_softmax(const ops_case *c, const double *x, ref_tensor *out)
{
    for (int64_t s = 0; s < c->plan->num_segments; ++s)
        for (int64_t col = 0; col < c->cols; ++col) {
            double max = -INFINITY, sum = 0.0;
            const int64_t count = c->offsets[s + 1] - c->offsets[s];
            for (int64_t i = c->offsets[s]; i < c->offsets[s + 1]; ++i) {
                const double v = x[c->terms[i] * c->cols + col];
                if (v > max || isnan(v)) max = v;
                if (isnan(max)) break;
            }
            if (max == -INFINITY) continue; // all 0
            for (int64_t i = c->offsets[s]; i < c->offsets[s + 1]; ++i)
                sum += exp(x[c->terms[i] * c->cols + col] - max);
            for (int64_t i = c->offsets[s]; i < c->offsets[s + 1]; ++i) {
                const int64_t at = c->terms[i] * c->cols + col;
                const double below = fabs(x[at] - max);
                out->value[at] = exp(x[at] - max) / sum;
                // An exponent is off by its own rounding; what is below the smallest normal number
                // may become 0.
                out->scale[at] = out->value[at] + 0x1p-100;
                out->roundings[at] = 24.0 + 2.0 * (isfinite(below) ? below : 0.0) +
                                     (double)(count < 4096 || c->is_f64 ? count : 4096);
            }
        }
}

static void ref_softmax_backward(const ops_case *c, const double *y, const double *g,
                                 ref_tensor *grad)
{
    for (int64_t s = 0; s < c->plan->num_segments; ++s)
        for (int64_t col = 0; col < c->cols; ++col) {
            double sum = 0.0, scale = 0.0;
            const int64_t count = c->offsets[s + 1] - c->offsets[s];
            for (int64_t i = c->offsets[s]; i < c->offsets[s + 1]; ++i) {
                const int64_t at = c->terms[i] * c->cols + col;
                sum += y[at] * g[at];
                scale += fabs(y[at] * g[at]);
            }
            for (int64_t i = c->offsets[s]; i < c->offsets[s + 1]; ++i) {
                const int64_t at = c->terms[i] * c->cols + col;
                grad->value[at] = y[at] * (g[at] - sum);
                grad->scale[at] = fabs(y[at]) * (fabs(g[at]) + scale);
                grad->roundings[at] = 4.0 + (double)count;
            }
        }
}

typedef struct ranked {
    double value; // negated where the largest come first
    int64_t term;
} ranked;

static int compare(const void *a, const void *b)
{
    const ranked *x = (const ranked *)a, *y = (const ranked *)b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->term < y->term ? -1 : x->term > y->term;
}

// NaN is beyond infinity: a number that no dtype has stands for it.
static ranked ranked_of(double v, int64_t term, bool descending)
{
    const double beyond = isnan(v) ? 1e306 : v == INFINITY ? 1e305 : v == -INFINITY ? -1e305 : v;
    return (ranked){descending ? -beyond : beyond, term};
}

static void ref_order(const ops_case *c, const double *x, ref_tensor *values, ref_tensor *places)
{
    const bool descending = c->kind == TOPK ? !c->flag : c->flag;
    ranked *list = malloc((size_t)(c->plan->num_terms + 1) * sizeof *list);
    cr_assert(list != NULL);
    for (int64_t i = 0; i < places->rows * places->cols; ++i) {
        places->value[i] = -1.0;
        values->value[i] = c->kind == SORT ? 0.0 : descending ? -INFINITY : INFINITY;
    }
    for (int64_t s = 0; s < c->plan->num_segments; ++s)
        for (int64_t col = 0; col < c->cols; ++col) {
            const int64_t first = c->offsets[s], n = c->offsets[s + 1] - first;
            for (int64_t i = 0; i < n; ++i)
                list[i] = ranked_of(x[c->terms[first + i] * c->cols + col], c->terms[first + i],
                                    descending);
            qsort(list, (size_t)n, sizeof *list, compare);
            for (int64_t i = 0; i < (c->kind == SORT || n < c->k ? n : c->k); ++i) {
                const int64_t row = c->kind == SORT ? c->terms[first + i] : s * c->k + i;
                values->value[row * c->cols + col] = x[list[i].term * c->cols + col];
                places->value[row * c->cols + col] = (double)list[i].term;
            }
        }
    free(list);
}

static void ref_scatter(const ops_case *c, int64_t rows, const double *places, const double *g,
                        ref_tensor *grad)
{
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t col = 0; col < c->cols; ++col) {
            const int64_t place = (int64_t)places[i * c->cols + col];
            if (place >= 0 && place < grad->rows)
                grad->value[place * c->cols + col] = g[i * c->cols + col];
        }
}

static int64_t rows_of_places(const ops_case *c)
{
    return c->kind == TOPK || c->kind == TOPK_BACKWARD ? c->plan->num_segments * c->k
                                                       : c->plan->num_terms;
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const ops_case *c = (const ops_case *)user;
    switch (c->kind) {
    case SOFTMAX: ref_softmax(c, in[X], out[OUT]); break;
    case SOFTMAX_BACKWARD: ref_softmax_backward(c, in[X], in[GRAD], out[OUT]); break;
    case SORT:
    case TOPK: ref_order(c, in[X], out[OUT], out[PLACES]); break;
    default: ref_scatter(c, rows_of_places(c), in[X], in[GRAD], out[OUT]);
    }
}

// ---- Calls --------------------------------------------------------------------------------------

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const ops_case *c = (const ops_case *)user;
    const spops_segments *plan = c->plan->plan;
    switch (c->kind) {
    case SOFTMAX: return spops_segment_softmax_execute(ctx, plan, *in[X], *out[OUT]);
    case SOFTMAX_BACKWARD:
        return spops_segment_softmax_execute_backward(ctx, plan, *in[GRAD], *in[X], *out[OUT]);
    case SORT:
        return spops_segment_sort_execute(ctx, plan, c->flag, *in[X], *out[OUT], *out[PLACES]);
    case TOPK:
        return spops_segment_topk_execute(ctx, plan, c->k, c->flag, *in[X], *out[OUT],
                                          *out[PLACES]);
    case SORT_BACKWARD:
        return spops_segment_sort_execute_backward(ctx, plan, *in[GRAD], *in[X], *out[OUT]);
    default:
        return spops_segment_topk_execute_backward(ctx, plan, c->k, *in[GRAD], *in[X], *out[OUT]);
    }
}

// Softmax gets segments of -infinity alone, and its gradient numbers that are one; places are those of
// a permutation, with some that name no row.
static void adjust(void *user, int version, test_rng *rng, guarded *const *in,
                   double *const *values)
{
    const ops_case *c = (const ops_case *)user;
    const int64_t rows = rows_of_places(c), terms = c->plan->num_terms;
    if (c->kind == SOFTMAX && test_rng_below(rng, 3) == 0) {
        for (int64_t s = version; s < c->plan->num_segments; s += 3)
            for (int64_t i = c->offsets[s]; i < c->offsets[s + 1]; ++i)
                values[X][c->terms[i] * c->cols] = -INFINITY;
        guarded_fill_from(in[X], values[X]);
    }
    if (c->kind != SORT_BACKWARD && c->kind != TOPK_BACKWARD) return;
    int32_t *order = malloc((size_t)(terms + 1) * sizeof *order);
    cr_assert(order != NULL);
    for (int64_t col = 0; col < c->cols; ++col) {
        for (int64_t t = 0; t < terms; ++t)
            order[t] = (int32_t)t;
        test_rng_shuffle_i32(rng, order, terms);
        for (int64_t i = 0; i < rows; ++i) {
            int64_t place = i < terms ? order[i] : -1;
            if (test_rng_below(rng, 11) == 0) place = test_rng_below(rng, 2) == 0 ? -1 : terms;
            values[X][i * c->cols + col] = (double)place;
        }
    }
    free(order);
    guarded_fill_from(in[X], values[X]);
}

static void describe_matrices(ops_case *c, test_operator *op, spops_dtype dtype, test_rng *rng)
{
    const int64_t terms = c->plan->num_terms, rows = rows_of_places(c);
    const int64_t padding = test_rng_below(rng, 2) * (1 + test_rng_below(rng, 7));
    const int64_t shift = test_rng_below(rng, 2);
    const test_values values =
        (test_values)(c->kind == SOFTMAX_BACKWARD ? (int)VALUES_RANDOM
                                                  : (int)test_rng_below(rng, NUM_VALUES));

    switch (c->kind) {
    case SOFTMAX:
    case SOFTMAX_BACKWARD:
        op->in[X] = test_view(test_input("x", terms, c->cols, dtype, values), padding, shift);
        if (c->kind == SOFTMAX_BACKWARD)
            op->in[GRAD] =
                test_view(test_input("grad_out", terms, c->cols, dtype, values), 0, shift);
        op->out[OUT] = test_view(test_output("out", terms, c->cols, dtype, CHECK_BOUND), shift,
                                 padding > 3 ? 1 : 0);
        break;
    case SORT:
    case TOPK:
        op->in[X] = test_view(test_input("x", terms, c->cols, dtype, values), padding, shift);
        op->out[OUT] = test_view(test_output("values", rows, c->cols, dtype, CHECK_SAME), shift, 0);
        op->out[PLACES] = test_view(
            test_output("places", rows, c->cols, SPOPS_DTYPE_I32, CHECK_SAME), padding, 0);
        break;
    default:
        op->in[X] = test_view(test_input("places", rows, c->cols, SPOPS_DTYPE_I32, VALUES_EXACT),
                              padding, 0);
        op->in[GRAD] = test_view(test_input("grad_values", rows, c->cols, dtype, values), 0, shift);
        op->out[OUT] =
            test_view(test_output("grad_x", terms, c->cols, dtype, CHECK_SAME), padding, 0);
    }
}

static size_t scratch_of(const ops_case *c, spops_context *ctx, spops_dtype dtype)
{
    const spops_segments *plan = c->plan->plan;
    if (c->kind == SORT) return spops_segment_sort_scratch_bytes(ctx, plan, dtype, c->cols);
    if (c->kind == TOPK) return spops_segment_topk_scratch_bytes(ctx, plan, c->k, dtype, c->cols);
    return spops_segments_scratch_bytes(plan);
}

// k: of top-k; 0: one is drawn.
static void check_case_of(test_device *d, const test_shape *shape, kind which, spops_dtype dtype,
                          int64_t cols, int32_t k, uint64_t stream)
{
    static const int32_t ks[] = {1, 2, 3, 16, 40, 100, 700, 5000};
    char text[256];
    test_rng rng = test_rng_make(stream);
    term_plan plan = term_plan_create(d, shape, cols, SPOPS_GRADIENTS_NONE, &rng);
    ops_case c = {.kind = which, .plan = &plan, .cols = cols, .is_f64 = dtype == SPOPS_DTYPE_F64};
    test_operator op = {
        .stream = stream, .user = &c, .run = run, .reference = reference, .adjust = adjust};

    c.k = ks[test_rng_below(&rng, plan.num_segments < 80 ? 8 : 4)];
    while (plan.num_segments * c.k * cols > 1000000)
        c.k /= 2;
    if (k > 0) c.k = k;
    c.flag = test_rng_below(&rng, 2) == 0;
    term_plan_lists(&plan, &c.offsets, &c.terms);
    describe_matrices(&c, &op, dtype, &rng);
    op.what = test_describe(text, "%s, %s, k %d, flag %d, %s", kind_names[which], shape->name, c.k,
                            c.flag, plan.left_out != NULL ? "capacity" : "made");
    op.scratch_bytes = scratch_of(&c, d->ctx, dtype);
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, op.scratch_bytes), "scratch");
    test_operator_run(d, &op);
    free(c.offsets), free(c.terms);
    term_plan_destroy(&plan);
}

static void check_case(test_device *d, const test_shape *shape, kind which, spops_dtype dtype,
                       int64_t cols, uint64_t stream)
{
    check_case_of(d, shape, which, dtype, cols, 0, stream);
}

// Softmax alone has code for each instruction set: where one is forced, the rest would be the same again.
ParameterizedTestParameters(segment_ops, agrees)
{
    const bool forced = getenv("SPOPS_CPU_ISA") != NULL;
    return every_case(test_row_dtypes, NUM_REAL_DTYPES, kinds,
                      forced ? NUM_VECTOR_KINDS : NUM_KINDS);
}
ParameterizedTest(struct case_param *p, segment_ops, agrees, .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 32;
    for (int i = 0; i < test_num_shapes() * NUM_COLS; ++i) {
        const test_shape shape = term_plan_shape(i / NUM_COLS);
        if (all_cols[i % NUM_COLS] > shape.max_cols) continue;
        check_case(&d, &shape, (kind)p->op, (spops_dtype)p->dtype, all_cols[i % NUM_COLS],
                   ++stream);
    }
    test_close(&d);
}

// A few shapes, for tools that are slow: every class of lengths, split segments, empties.
BackendTest(segment_ops, small, .timeout = 600)
{
    static const test_shape shapes[] = {{"edges", 20, LENGTHS_EDGES, 0, 4},
                                        {"one huge", 12, LENGTHS_ONE_HUGE, 9000, 4},
                                        {"empties in front", 40, LENGTHS_EMPTY_FRONT, 3, 4}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_KINDS * 3; ++i)
        check_case(&d, &shapes[i % 3], (kind)(i / 3), test_row_dtypes[i % 2],
                   1 + i % 4 * (i % 3 + 1), 76000 + (uint64_t)i);
    test_close(&d);
}

// Sorts and top-k of shapes that several blocks of a GPU divide: short segments of all lengths, more empty
// ones than a block has room for, and more long ones than it has processors.
BackendTest(segment_ops, several_blocks, .timeout = 600)
{
    static const test_shape shapes[] = {{"many edges", 300, LENGTHS_EDGES, 0, 4},
                                        {"many empties", 9000, LENGTHS_EMPTY_FRONT, 2, 4},
                                        {"many of 1,030", 300, LENGTHS_UNIFORM, 1030, 4}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    static const int32_t ks[] = {16, 32, 8, 20, 3};
    for (int i = 0; i < 30; ++i)
        check_case_of(&d, &shapes[i % 3], i % 5 == 0 ? SORT : TOPK, test_row_dtypes[i % 2],
                      i % 4 == 0 ? 4 : 1, ks[i / 3 % 5], 78500 + (uint64_t)i);
    test_close(&d);
}

// One segment of a million terms among short ones.
BackendTest(segment_ops, a_million_terms, .timeout = 600)
{
    static const test_shape shape = {"a million", 5, LENGTHS_ONE_HUGE, 1000000, 1};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int which = 0; which < NUM_KINDS; ++which)
        check_case(&d, &shape, (kind)which, SPOPS_DTYPE_F32, 1, 77000 + (uint64_t)which);
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

BackendTest(segment_ops, refuses)
{
    enum { SEGMENTS = 3, TERMS = 5, COLS = 4 };
    static const int32_t keys[TERMS] = {2, 0, 2, 2, 0};
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_context *ctx = d.ctx, *bare;
    spops_segments *plan = NULL;
    int32_t *k = test_upload_i32(&d, keys, TERMS);
    test_expect_ok(
        ctx,
        spops_segments_create_from_keys(ctx, SEGMENTS, TERMS, k, SPOPS_KEYS_UNSORTED, NULL, &plan),
        "plan");
    guarded x = guarded_create(d.backend, "x", TERMS, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", TERMS, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded places = guarded_create(d.backend, "places", TERMS, COLS, 0, 0, SPOPS_DTYPE_I32);
    test_rng rng = test_rng_make(9);
    free(guarded_fill(&x, &rng, VALUES_RANDOM, false, 1));
    guarded_upload(&x), guarded_upload(&out), guarded_upload(&places);
    spops_matrix m;

#define REFUSED(expected, fragment, call)                                                          \
    do {                                                                                           \
        test_expect(ctx, (call), (expected), (fragment), #call);                                   \
        test_wait(&d);                                                                             \
        guarded_check_untouched(&out, #call), guarded_check_untouched(&places, #call);             \
    } while (0)

    REFUSED(invalid, "segments is NULL",
            spops_segment_softmax_execute(ctx, NULL, x.view, out.view));
    m = x.view, m.rows = 4;
    REFUSED(invalid, "x", spops_segment_softmax_execute(ctx, plan, m, out.view));
    m = out.view, m.cols = 3;
    REFUSED(invalid, "out", spops_segment_softmax_execute(ctx, plan, x.view, m));
    m = out.view, m.dtype = SPOPS_DTYPE_F16;
    REFUSED(invalid, "out", spops_segment_softmax_execute(ctx, plan, x.view, m));
    REFUSED(invalid, "out overlaps x",
            spops_segment_softmax_execute(ctx, plan, out.view, out.view));
    REFUSED(invalid, "grad_out",
            spops_segment_softmax_execute_backward(ctx, plan, m, x.view, out.view));
    REFUSED(invalid, "descending is 2, expected 0 or 1",
            spops_segment_sort_execute(ctx, plan, 2, x.view, out.view, places.view));
    m = places.view, m.dtype = SPOPS_DTYPE_F32;
    REFUSED(invalid, "places", spops_segment_sort_execute(ctx, plan, 0, x.view, out.view, m));
    REFUSED(invalid, "k is 0",
            spops_segment_topk_execute(ctx, plan, 0, 0, x.view, out.view, places.view));
    REFUSED(invalid, "values is [5, 4], expected [6, 4]",
            spops_segment_topk_execute(ctx, plan, 2, 0, x.view, out.view, places.view));
    REFUSED(invalid, "smallest is -1",
            spops_segment_topk_execute(ctx, plan, 2, -1, x.view, out.view, places.view));
    REFUSED(invalid, "places is [5, 4], expected [6, 4]",
            spops_segment_topk_execute_backward(ctx, plan, 2, x.view, places.view, out.view));
    cr_assert_eq(spops_segment_sort_scratch_bytes(NULL, plan, SPOPS_DTYPE_F32, 1), 0);
    cr_assert_eq(spops_segment_topk_scratch_bytes(ctx, plan, 0, SPOPS_DTYPE_F32, 1), 0);
    bare = test_context(&d, 1);
    if (spops_segment_sort_scratch_bytes(bare, plan, SPOPS_DTYPE_F32, COLS) > 0) {
        test_expect(bare, spops_segment_sort_execute(bare, plan, 0, x.view, out.view, places.view),
                    SPOPS_STATUS_SCRATCH_TOO_SMALL, "reserve with spops_segment_sort_scratch_bytes",
                    "bare");
        guarded_check_untouched(&out, "without scratch");
    }
    spops_context_destroy(bare);
#undef REFUSED
    guarded_destroy(&x), guarded_destroy(&out), guarded_destroy(&places);
    spops_segments_destroy(plan);
    test_free(&d, k);
    test_close(&d);
}
