// SPDX-License-Identifier: Apache-2.0
// spops_segreduce_execute_backward against the FP64 reference: gradients of rows and weights of
// every reduction, dtype and launch mode, on both backends.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/reduce_cases.h"

enum { X, GRAD_OUT, W }; // inputs
enum { GRAD_X, GRAD_W }; // outputs

typedef struct backward_case {
    const ref_relation *relation;
    spops_segments *plan;
    spops_reduce reduce;
    int64_t cols;
} backward_case;

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const backward_case *c = (const backward_case *)user;
    return spops_segreduce_execute_backward(ctx, c->plan, c->reduce, *in[GRAD_OUT], *in[X], in[W],
                                            out[GRAD_X], out[GRAD_W]);
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const backward_case *c = (const backward_case *)user;
    ref_reduce_backward(c->relation, c->reduce, c->cols, in[X], in[W], in[GRAD_OUT], out[GRAD_X],
                        out[GRAD_W]);
}

// Of a plan: what the reduction needs, and at times more.
static spops_gradients gradients_for(spops_reduce reduce, test_rng *rng)
{
    return test_reduce_is_linear(reduce) && test_rng_below(rng, 2) == 0 ? SPOPS_GRADIENTS_LINEAR
                                                                        : SPOPS_GRADIENTS_ALL;
}

// What has a gradient everywhere.
static test_values values_for(test_rng *rng)
{
    static const test_values kinds[] = {VALUES_EXACT, VALUES_EXACT, VALUES_RANDOM, VALUES_CANCEL,
                                        VALUES_ZEROS};
    return kinds[test_rng_below(rng, 5)];
}

static void check_case(test_device *d, const test_shape *shape, const test_relation *relation,
                       const struct case_param *p, const reduce_choices *choice, test_rng *rng)
{
    char text[256];
    const spops_dtype dtype = (spops_dtype)p->dtype;
    ref_relation ref = relation->ref;
    const ref_relation *r = &ref;
    const int64_t padding = choice->padding, shift = choice->shift;
    backward_case c = {.relation = r, .reduce = (spops_reduce)p->op, .cols = choice->cols};
    test_operator op = {.stream = choice->stream, .user = &c, .run = run, .reference = reference};
    const spops_dtype w_dtype = choice->weights == WEIGHTS_SAME ? dtype : SPOPS_DTYPE_F32;
    const test_values values = values_for(rng);
    const test_values others = values == VALUES_EXACT ? VALUES_EXACT : VALUES_RANDOM;
    const bool exact = values == VALUES_EXACT && ref_reduce_is_exact(c.reduce, true);
    const test_check check = exact ? CHECK_EXACT : CHECK_BOUND;
    const bool weighted = choice->weights != WEIGHTS_NONE;
    const int64_t wanted = weighted ? test_rng_below(rng, 3) : 0; // grad_x, grad_w, both
    const spops_gradients gradients = gradients_for(c.reduce, rng);

    ref.is_f64 = dtype == SPOPS_DTYPE_F64;
    op.in[X] = test_view(test_input("x", r->num_rows, c.cols, dtype, values), padding, shift);
    op.in[GRAD_OUT] = test_view(test_input("grad_out", r->num_segments, c.cols, dtype, others),
                                padding / 2, shift);
    if (weighted)
        op.in[W] = test_view(test_input("w", r->num_weights, 1, w_dtype, others), 0, shift);
    if (wanted != 1)
        op.out[GRAD_X] =
            test_view(test_output("grad_x", r->num_rows, c.cols, dtype, check), padding * 2, shift);
    if (wanted != 0)
        op.out[GRAD_W] =
            test_view(test_output("grad_w", r->num_weights, 1, w_dtype, check), 0, shift);
    op.in[X].num_factors = op.in[W].num_factors =
        ref_reduce_multiplies(c.reduce) ? relation->longest : 0;

    op.what =
        test_describe(text, "%s backward, %s, form %d, indexing %d", test_reduce_name(c.reduce),
                      shape->name, relation->form, relation->indexing);
    test_expect_ok(d->ctx,
                   test_relation_plan(relation, d->ctx, choice->max_cols, gradients, &c.plan),
                   op.what);
    op.scratch_bytes = spops_segments_scratch_bytes(c.plan);
    test_operator_run(d, &op);
    spops_segments_destroy(c.plan);
}

CaseTest(segreduce_backward, agrees_on_shapes, every_reduction_with_gradient(), .timeout = 600)
{
    reduce_over_shapes(p, check_case);
}

CaseTest(segreduce_backward, agrees_on_options, every_reduction_with_gradient(), .timeout = 600)
{
    reduce_over_options(p, check_case);
}

// By hand: d(product) / d(factor) with no zero, one zero and two zeros in a segment.
BackendTest(segreduce_backward, product_with_zeros)
{
    static const int32_t offsets[] = {0, 3, 6, 9};
    static const double x[9] = {2, 3, 4, 2, 0, 4, 0, 5, -0.0};
    static const double grad_out[3] = {1, 10, 100};
    static const double expected[9] = {12, 8, 6, 0, 80, 0, 0, 0, 0};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_segments *plan = NULL;
    spops_segments_options options = spops_segments_options_default();
    options.gradients = SPOPS_GRADIENTS_ALL;
    int32_t *o = test_upload_i32(&d, offsets, 4);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 3, o, &options, &plan), "plan");
    guarded in = guarded_create(d.backend, "x", 9, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded go = guarded_create(d.backend, "grad_out", 3, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded gx = guarded_create(d.backend, "grad_x", 9, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded_fill_from(&in, x), guarded_fill_from(&go, grad_out);
    guarded_upload(&in), guarded_upload(&go), guarded_upload(&gx);
    test_expect_ok(d.ctx,
                   spops_segreduce_execute_backward(d.ctx, plan, SPOPS_REDUCE_PROD, go.view,
                                                    in.view, NULL, &gx.view, NULL),
                   "product");
    test_wait(&d);
    guarded_download(&gx);
    for (int t = 0; t < 9; ++t) {
        cr_assert(guarded_get(&gx, t, 0) == expected[t], "factor %d: %g, expected %g", t,
                  guarded_get(&gx, t, 0), expected[t]);
    }
    guarded_destroy(&in), guarded_destroy(&go), guarded_destroy(&gx);
    spops_segments_destroy(plan);
    test_free(&d, o);
    test_close(&d);
}

typedef struct error_case {
    test_device d;
    spops_segments *plan[3]; // by gradients
    guarded x, w, grad_out, grad_x, grad_w;
} error_case;

static void expect_refused(error_case *e, spops_status status, spops_status expected,
                           const char *fragment, const char *what)
{
    test_expect(e->d.ctx, status, expected, "segreduce_execute_backward: ", what);
    test_expect(e->d.ctx, status, expected, fragment, what);
    test_wait(&e->d);
    guarded_check_untouched(&e->grad_x, what);
    guarded_check_untouched(&e->grad_w, what);
}

// What the row cannot say; tests/test_operators.c has its faults.
BackendTest(segreduce_backward, refuses)
{
    static const int32_t offsets[] = {0, 2, 2, 5, 6};
    error_case e;
    memset(&e, 0, sizeof e);
    if (!test_open(&e.d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_context *ctx = e.d.ctx;
    int32_t *o = test_upload_i32(&e.d, offsets, 5);
    for (int g = 0; g < 3; ++g) {
        spops_segments_options options = spops_segments_options_default();
        options.max_cols = 8;
        options.gradients = (spops_gradients)g;
        test_expect_ok(ctx, spops_segments_create(ctx, 4, o, &options, &e.plan[g]), "plan");
    }
    test_rng rng = test_rng_make(3);
    e.x = guarded_create(e.d.backend, "x", 6, 8, 0, 0, SPOPS_DTYPE_F32);
    e.w = guarded_create(e.d.backend, "w", 6, 1, 0, 0, SPOPS_DTYPE_F32);
    e.grad_out = guarded_create(e.d.backend, "grad_out", 4, 8, 0, 0, SPOPS_DTYPE_F32);
    e.grad_x = guarded_create(e.d.backend, "grad_x", 6, 8, 0, 0, SPOPS_DTYPE_F32);
    e.grad_w = guarded_create(e.d.backend, "grad_w", 6, 1, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&e.x, &rng, VALUES_EXACT, false, 1));
    free(guarded_fill(&e.w, &rng, VALUES_EXACT, false, 1));
    free(guarded_fill(&e.grad_out, &rng, VALUES_EXACT, false, 1));
    guarded_upload(&e.x), guarded_upload(&e.w), guarded_upload(&e.grad_out);
    guarded_upload(&e.grad_x), guarded_upload(&e.grad_w);

    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const spops_reduce sum = SPOPS_REDUCE_SUM, max = SPOPS_REDUCE_MAX;
    const spops_matrix *w = &e.w.view, *gx = &e.grad_x.view, *gw = &e.grad_w.view;
    const spops_matrix go = e.grad_out.view, x = e.x.view;
    spops_segments *plan = e.plan[SPOPS_GRADIENTS_ALL];

#define REFUSED(fragment, plan, reduce, go, x, w, gx, gw)                                          \
    expect_refused(                                                                                \
        &e, spops_segreduce_execute_backward(ctx, (plan), (reduce), (go), (x), (w), (gx), (gw)),   \
        invalid, (fragment), "backward(" #plan ", " #reduce ", " #go ", " #x ", " #w ")")

    REFUSED("reduce", plan, (spops_reduce)17, go, x, w, gx, gw);
    // A plan without the lists that are needed.
    REFUSED("gradients = 0", e.plan[SPOPS_GRADIENTS_NONE], sum, go, x, w, gx, NULL);
    REFUSED("gradients = 0", e.plan[SPOPS_GRADIENTS_NONE], sum, go, x, w, NULL, gw);
    REFUSED("gradients = 1", e.plan[SPOPS_GRADIENTS_LINEAR], max, go, x, w, gx, NULL);
#undef REFUSED

    // Nothing wanted is nothing done; and the context still works.
    test_expect_ok(ctx, spops_segreduce_execute_backward(ctx, plan, sum, go, x, w, NULL, NULL),
                   "nothing wanted");
    test_expect_ok(ctx, spops_segreduce_execute_backward(ctx, plan, max, go, x, w, gx, gw),
                   "after the errors");
    test_wait(&e.d);
    for (int g = 0; g < 3; ++g)
        spops_segments_destroy(e.plan[g]);
    test_free(&e.d, o);
    guarded_destroy(&e.x), guarded_destroy(&e.w), guarded_destroy(&e.grad_out);
    guarded_destroy(&e.grad_x), guarded_destroy(&e.grad_w);
    test_close(&e.d);
}
