// SPDX-License-Identifier: Apache-2.0
// spops_segreduce_execute against the FP64 reference: every reduction, dtype and launch mode, on
// both backends, over shapes, column counts, strides, weights and forms of the plan.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/reduce_cases.h"

enum { X, W };     // inputs
enum { OUT, ARG }; // outputs

typedef struct segreduce_case {
    const ref_relation *relation;
    spops_segments *plan;
    spops_reduce reduce;
    int64_t cols;
} segreduce_case;

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const segreduce_case *c = (const segreduce_case *)user;
    return spops_segreduce_execute(ctx, c->plan, c->reduce, *in[X], in[W], *out[OUT], out[ARG]);
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const segreduce_case *c = (const segreduce_case *)user;
    const int64_t n = c->relation->num_segments * c->cols;
    int32_t *arg = (int32_t *)calloc((size_t)n + 1, sizeof *arg);
    cr_assert(arg != NULL, "out of memory");
    ref_reduce_forward(c->relation, c->reduce, c->cols, in[X], in[W], out[OUT],
                       out[ARG] != NULL ? arg : NULL);
    for (int64_t i = 0; out[ARG] != NULL && i < n; ++i)
        out[ARG]->value[i] = arg[i];
    free(arg);
}

static void check_case(test_device *d, const test_shape *shape, const test_relation *relation,
                       const struct case_param *p, const reduce_choices *choice, test_rng *rng)
{
    char text[256];
    const spops_dtype dtype = (spops_dtype)p->dtype;
    ref_relation ref = relation->ref;
    const ref_relation *r = &ref;
    segreduce_case c = {.relation = r, .reduce = (spops_reduce)p->op, .cols = choice->cols};
    test_operator op = {.stream = choice->stream, .user = &c, .run = run, .reference = reference};
    // Every kind in turn, exact ones more often; with other column counts the next time, and for
    // other parameters.
    const int turn =
        (choice->number + choice->number / 10 + p->op + 5 * p->dtype) % (NUM_VALUES + 3);
    const test_values values = turn < NUM_VALUES ? (test_values)turn : VALUES_EXACT;
    const test_values w_values = values == VALUES_EXACT ? VALUES_EXACT : VALUES_RANDOM;
    const bool exact = values == VALUES_EXACT && ref_reduce_is_exact(c.reduce, false);
    const bool with_arg = test_reduce_has_arg(c.reduce) && test_rng_below(rng, 2) == 0;

    ref.is_f64 = dtype == SPOPS_DTYPE_F64;
    op.in[X] = test_view(test_input("x", r->num_rows, c.cols, dtype, values), choice->padding,
                         choice->shift);
    op.out[OUT] = test_view(
        test_output("out", r->num_segments, c.cols, dtype, exact ? CHECK_EXACT : CHECK_BOUND),
        choice->padding, choice->shift);
    if (choice->weights != WEIGHTS_NONE)
        op.in[W] = test_view(test_input("w", r->num_weights, 1,
                                        choice->weights == WEIGHTS_SAME ? dtype : SPOPS_DTYPE_F32,
                                        w_values),
                             0, choice->shift);
    if (with_arg)
        op.out[ARG] =
            test_view(test_output("arg", r->num_segments, c.cols, SPOPS_DTYPE_I32, CHECK_SAME),
                      choice->padding, choice->shift);
    op.in[X].num_factors = op.in[W].num_factors =
        ref_reduce_multiplies(c.reduce) ? relation->longest : 0;

    op.what = test_describe(text, "%s, %s, form %d, indexing %d", test_reduce_name(c.reduce),
                            shape->name, relation->form, relation->indexing);
    test_expect_ok(
        d->ctx,
        test_relation_plan(relation, d->ctx, choice->max_cols, SPOPS_GRADIENTS_NONE, &c.plan),
        op.what);
    op.scratch_bytes = spops_segments_scratch_bytes(c.plan);
    test_operator_run(d, &op);
    spops_segments_destroy(c.plan);
}

CaseTest(segreduce, agrees_on_shapes, every_reduction(), .timeout = 600)
{
    reduce_over_shapes(p, check_case);
}

CaseTest(segreduce, agrees_on_options, every_reduction(), .timeout = 600)
{
    reduce_over_options(p, check_case);
}

// Worked by hand, apart from the reference: ties, zeros of both signs, NaN, infinities.
BackendTest(segreduce, winners)
{
    enum { SEGMENTS = 8, TERMS = 16 };
    static const int32_t offsets[SEGMENTS + 1] = {0, 3, 5, 7, 10, 10, 12, 14, 16};
    const double nan = (double)NAN, inf = (double)INFINITY;
    const double x[TERMS] = {2, 2, 1,     // a tie, then a smaller one
                             -0.0, 0.0,   // zeros tie
                             0.0, -0.0,   // likewise
                             1, nan, nan, // the first NaN wins
                             /* empty */
                             -inf, -inf, // the identity of max is no term
                             inf, inf,   // the identity of min is no term
                             nan, 7};
    const double max[SEGMENTS] = {2, 0, 0, nan, -inf, -inf, inf, nan};
    const int32_t argmax[SEGMENTS] = {0, 3, 5, 8, -1, 10, 12, 14};
    const double min[SEGMENTS] = {1, 0, 0, nan, inf, -inf, inf, nan};
    const int32_t argmin[SEGMENTS] = {2, 3, 5, 8, -1, 10, 12, 14};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int t = 0; t < (p->backend == SPOPS_BACKEND_CPU ? NUM_REAL_DTYPES : NUM_ROW_DTYPES); ++t) {
        spops_segments *plan = NULL;
        int32_t *device_offsets = test_upload_i32(&d, offsets, SEGMENTS + 1);
        test_expect_ok(d.ctx, spops_segments_create(d.ctx, SEGMENTS, device_offsets, NULL, &plan),
                       "winners");
        test_free(&d, device_offsets);
        guarded in = guarded_create(d.backend, "x", TERMS, 1, 0, 0, test_row_dtypes[t]);
        guarded out = guarded_create(d.backend, "out", SEGMENTS, 1, 0, 0, test_row_dtypes[t]);
        guarded arg = guarded_create(d.backend, "arg", SEGMENTS, 1, 0, 0, SPOPS_DTYPE_I32);
        guarded_fill_from(&in, x);
        guarded_upload(&in);
        for (int is_max = 0; is_max < 2; ++is_max) {
            for (int with_arg = 0; with_arg < 2; ++with_arg) {
                guarded_poison(&out, 0xa5);
                guarded_upload(&out);
                test_expect_ok(d.ctx,
                               spops_segreduce_execute(
                                   d.ctx, plan, is_max ? SPOPS_REDUCE_MAX : SPOPS_REDUCE_MIN,
                                   in.view, NULL, out.view, with_arg ? &arg.view : NULL),
                               "winners");
                test_wait(&d);
                guarded_download(&out);
                guarded_download(&arg);
                for (int s = 0; s < SEGMENTS; ++s) {
                    const double want = is_max ? max[s] : min[s], got = guarded_get(&out, s, 0);
                    cr_assert(got == want || (isnan(got) && isnan(want)),
                              "segment %d: %s is %g, expected %g", s, is_max ? "max" : "min", got,
                              want);
                }
                if (with_arg) guarded_check_i32(&arg, is_max ? argmax : argmin, "winners");
            }
        }
        guarded_destroy(&in), guarded_destroy(&out), guarded_destroy(&arg);
        spops_segments_destroy(plan);
    }
    test_close(&d);
}

// A plan of 4 segments, 6 rows and weights, and arguments that are right until a test bends one.
typedef struct error_case {
    test_device d;
    spops_segments *plan;
    guarded x, w, out, arg;
} error_case;

static bool open_errors(error_case *e, int backend)
{
    static const int32_t offsets[] = {0, 2, 2, 5, 6};
    memset(e, 0, sizeof *e);
    if (!test_open(&e->d, (spops_backend_kind)backend, LAUNCH_DEFAULT)) return false;
    int32_t *o = test_upload_i32(&e->d, offsets, 5);
    spops_segments_options options = spops_segments_options_default();
    options.max_cols = 8;
    test_expect_ok(e->d.ctx, spops_segments_create(e->d.ctx, 4, o, &options, &e->plan), "errors");
    test_free(&e->d, o);
    e->x = guarded_create(e->d.backend, "x", 6, 8, 0, 0, SPOPS_DTYPE_F32);
    e->w = guarded_create(e->d.backend, "w", 6, 1, 0, 0, SPOPS_DTYPE_F32);
    e->out = guarded_create(e->d.backend, "out", 4, 8, 0, 0, SPOPS_DTYPE_F32);
    e->arg = guarded_create(e->d.backend, "arg", 4, 8, 0, 0, SPOPS_DTYPE_I32);
    test_rng rng = test_rng_make(1);
    free(guarded_fill(&e->x, &rng, VALUES_EXACT, false, 1));
    free(guarded_fill(&e->w, &rng, VALUES_EXACT, false, 1));
    guarded_upload(&e->x), guarded_upload(&e->w);
    guarded_upload(&e->out), guarded_upload(&e->arg);
    return true;
}

static void expect_refused(error_case *e, spops_status status, spops_status expected,
                           const char *fragment, const char *what)
{
    test_expect(e->d.ctx, status, expected, "segreduce_execute: ", what);
    test_expect(e->d.ctx, status, expected, fragment, what);
    test_wait(&e->d);
    guarded_check_untouched(&e->out, what);
    guarded_check_untouched(&e->arg, what);
}

static void close_errors(error_case *e)
{
    // The context still works.
    test_expect_ok(e->d.ctx,
                   spops_segreduce_execute(e->d.ctx, e->plan, SPOPS_REDUCE_MAX, e->x.view,
                                           &e->w.view, e->out.view, &e->arg.view),
                   "after the errors");
    test_wait(&e->d);
    guarded_destroy(&e->x), guarded_destroy(&e->w);
    guarded_destroy(&e->out), guarded_destroy(&e->arg);
    spops_segments_destroy(e->plan);
    test_close(&e->d);
}

// What the row of segreduce cannot say; tests/test_operators.c has its faults.
BackendTest(segreduce, refuses)
{
    error_case e;
    if (!open_errors(&e, p->backend)) return;
    spops_context *ctx = e.d.ctx;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const spops_reduce sum = SPOPS_REDUCE_SUM;

#define REFUSED(expected, fragment, reduce, x, w, out, arg)                                        \
    expect_refused(&e, spops_segreduce_execute(ctx, e.plan, (reduce), (x), (w), (out), (arg)),     \
                   (expected), (fragment), "segreduce(" #reduce ", " #x ", " #w ", " #out ")")

    // The reduction.
    REFUSED(invalid, "reduce", (spops_reduce)1000, e.x.view, NULL, e.out.view, NULL);
    REFUSED(invalid, "reduce", (spops_reduce)-1, e.x.view, NULL, e.out.view, NULL);
    REFUSED(invalid, "reduce", SPOPS_REDUCE_FIRST_CUSTOM, e.x.view, NULL, e.out.view, NULL);
    const spops_status no_arg =
        spops_segreduce_execute(ctx, e.plan, sum, e.x.view, NULL, e.out.view, &e.arg.view);
    cr_assert(no_arg == invalid || no_arg == SPOPS_STATUS_NOT_SUPPORTED);
    expect_refused(&e, no_arg, no_arg, "arg", "arg of a sum");
#undef REFUSED
    close_errors(&e);
}

// Scratch: a context that was not asked to reserve refuses a plan that needs some.
BackendTest(segreduce, needs_scratch)
{
    static const test_shape shape = {"one huge", 3, LENGTHS_ONE_HUGE, 70000, 4};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    test_rng rng = test_rng_make(7);
    test_relation relation = test_relation_create(&shape, FORM_OFFSETS, INDEXING_NONE, &rng);
    spops_segments *plan = NULL;
    test_expect_ok(d.ctx, test_relation_plan(&relation, d.ctx, 4, SPOPS_GRADIENTS_NONE, &plan),
                   "plan");
    cr_assert(spops_segments_scratch_bytes(plan) > 0, "a split segment needs scratch");
    guarded x = guarded_create(d.backend, "x", relation.ref.num_rows, 4, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", 3, 4, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&x, &rng, VALUES_EXACT, false, 1));
    guarded_upload(&x), guarded_upload(&out);
    spops_context *other = test_context(&d, 2);
    test_expect(
        other, spops_segreduce_execute(other, plan, SPOPS_REDUCE_SUM, x.view, NULL, out.view, NULL),
        SPOPS_STATUS_SCRATCH_TOO_SMALL, "segreduce_execute", "nothing reserved");
    test_wait(&d);
    guarded_check_untouched(&out, "nothing reserved");
    test_expect_ok(other, spops_context_reserve(other, spops_segments_scratch_bytes(plan)),
                   "reserve");
    test_expect_ok(
        other, spops_segreduce_execute(other, plan, SPOPS_REDUCE_SUM, x.view, NULL, out.view, NULL),
        "reserved");
    test_wait(&d);
    spops_context_destroy(other);
    guarded_destroy(&x), guarded_destroy(&out);
    spops_segments_destroy(plan);
    test_relation_destroy(&relation);
    test_close(&d);
}

// Zero columns and zero segments do nothing, whatever the pointers.
BackendTest(segreduce, zero_sizes)
{
    static const int32_t offsets[] = {0, 2, 3};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_segments *plan = NULL, *empty = NULL;
    int32_t *o = test_upload_i32(&d, offsets, 3);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 2, o, NULL, &plan), "plan");
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 0, o, NULL, &empty), "no segments");
    for (int r = 0; r < test_num_reduces; ++r) {
        const spops_matrix x = spops_matrix_dense(NULL, 3, 0, SPOPS_DTYPE_F32);
        const spops_matrix out = spops_matrix_dense(NULL, 2, 0, SPOPS_DTYPE_F32);
        test_expect_ok(d.ctx,
                       spops_segreduce_execute(d.ctx, plan, test_reduces[r], x, NULL, out, NULL),
                       "no columns");
        const spops_matrix nothing = spops_matrix_dense(NULL, 0, 5, SPOPS_DTYPE_F16);
        test_expect_ok(
            d.ctx,
            spops_segreduce_execute(d.ctx, empty, test_reduces[r], nothing, NULL, nothing, NULL),
            "no segments");
    }
    test_wait(&d);
    test_free(&d, o);
    spops_segments_destroy(plan), spops_segments_destroy(empty);
    test_close(&d);
}
