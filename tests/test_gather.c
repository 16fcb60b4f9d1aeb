// SPDX-License-Identifier: Apache-2.0
// spops_gather_execute and its reverse: bit-exact copies, scaled rows, gradients, and what they
// refuse.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/ref/ref_gather.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/reduce_cases.h"
#include "tests/support/saved.h"

static const int64_t all_cols[] = {1, 3, 4, 5, 31, 32, 33, 80, 256};
enum { NUM_COLS = 9 };

enum { X, W, GRAD_OUT }; // inputs
enum { OUT };            // outputs, forward
enum { GRAD_X, GRAD_W }; // outputs, backward

typedef struct gather_case {
    const ref_relation *relation;
    spops_segments *plan;
    int64_t cols;
} gather_case;

static spops_status run_forward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    const gather_case *c = (const gather_case *)user;
    return spops_gather_execute(ctx, c->plan, *in[X], in[W], *out[OUT]);
}

static void reference_forward(void *user, const double *const *in, ref_tensor *const *out)
{
    const gather_case *c = (const gather_case *)user;
    ref_gather_forward(c->relation, c->cols, in[X], in[W], out[OUT]);
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const gather_case *c = (const gather_case *)user;
    return spops_gather_execute_backward(ctx, c->plan, *in[GRAD_OUT], *in[X], in[W], out[GRAD_X],
                                         out[GRAD_W]);
}

static void reference_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const gather_case *c = (const gather_case *)user;
    ref_gather_backward(c->relation, c->cols, in[X], in[W], in[GRAD_OUT], out[GRAD_X], out[GRAD_W]);
}

// The plan that its saved bytes are loaded as.
static void reload(test_device *d, spops_segments **plan)
{
    spops_segments *loaded = NULL;
    size_t bytes = 0;
    test_expect_ok(d->ctx, saved_put(d->ctx, *plan, NULL, 0, &bytes), "size of a plan");
    void *blob = malloc(bytes);
    test_expect_ok(d->ctx, saved_put(d->ctx, *plan, blob, bytes, &bytes), "save");
    test_expect_ok(d->ctx, saved_get(d->ctx, SPOPS_PLAN_SEGMENTS, blob, bytes, &loaded), "load");
    free(blob);
    spops_segments_destroy(*plan);
    *plan = loaded;
}

// A call, with weights, values, wanted gradients and views that rng draws.
static void check_case(test_device *d, const test_shape *shape, const test_relation *relation,
                       bool backward, spops_dtype dtype, int64_t cols, uint64_t stream,
                       test_rng *rng)
{
    char text[256];
    ref_relation ref = relation->ref;
    const ref_relation *r = &ref;
    gather_case c = {.relation = r, .cols = cols};
    test_operator op = {.stream = stream,
                        .user = &c,
                        .run = backward ? run_backward : run_forward,
                        .reference = backward ? reference_backward : reference_forward};
    const test_weighting weights = (test_weighting)test_rng_below(rng, NUM_WEIGHTINGS);
    const test_values values = (test_values)test_rng_below(rng, backward ? 3 : NUM_VALUES);
    const test_values others = values == VALUES_EXACT ? VALUES_EXACT : VALUES_RANDOM;
    const bool want_w = backward && weights != WEIGHTS_NONE && test_rng_below(rng, 3) != 0;
    const bool want_x = backward && (!want_w || test_rng_below(rng, 2) == 0);
    const int64_t padding = test_rng_below(rng, 2) * (1 + test_rng_below(rng, 7));
    const int64_t shift = test_rng_below(rng, 2);
    const spops_dtype w_dtype = weights == WEIGHTS_SAME ? dtype : SPOPS_DTYPE_F32;
    // A copy and a product are rounded once.
    const test_check check = !backward || values == VALUES_EXACT ? CHECK_EXACT : CHECK_BOUND;

    ref.is_f64 = dtype == SPOPS_DTYPE_F64;
    op.in[X] = test_view(test_input("x", r->num_segments, cols, dtype, values), padding, shift);
    if (weights != WEIGHTS_NONE)
        op.in[W] = test_view(test_input("w", r->num_weights, 1, w_dtype, others), 0, shift);
    if (backward)
        op.in[GRAD_OUT] =
            test_view(test_input("grad_out", r->num_rows, cols, dtype, others), padding * 2, shift);
    else
        op.out[OUT] =
            test_view(test_output("out", r->num_rows, cols, dtype, check), padding * 2, shift);
    if (want_x)
        op.out[GRAD_X] =
            test_view(test_output("grad_x", r->num_segments, cols, dtype, check), padding, shift);
    if (want_w) op.out[GRAD_W] = test_output("grad_w", r->num_weights, 1, w_dtype, check);

    op.what = test_describe(text, "gather%s, %s, form %d, indexing %d", backward ? " backward" : "",
                            shape->name, relation->form, relation->indexing);
    const spops_gradients gradients = want_w ? SPOPS_GRADIENTS_LINEAR : SPOPS_GRADIENTS_NONE;
    test_expect_ok(d->ctx, test_relation_plan(relation, d->ctx, cols, gradients, &c.plan), op.what);
    if (test_rng_below(rng, 2) == 0) reload(d, &c.plan);
    op.scratch_bytes = spops_segments_scratch_bytes(c.plan);
    test_operator_run(d, &op);
    spops_segments_destroy(c.plan);
}

// Every row written by one term: the terms' own order, or an idx that is a permutation.
static void permute_rows(test_relation *relation, test_rng *rng)
{
    for (int64_t t = 0; t < relation->ref.num_terms; ++t)
        relation->row[t] = (int32_t)t;
    test_rng_shuffle_i32(rng, relation->row, relation->ref.num_terms);
    relation->ref.num_rows = relation->ref.num_terms;
    relation->indexing = INDEXING_BOTH;
}

CaseTest(gather, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0), .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 32;
    for (int i = 0; i < test_num_shapes() * NUM_COLS * 2; ++i) {
        const test_shape *shape = &test_shapes[i / 2 / NUM_COLS];
        const int64_t cols = all_cols[i / 2 % NUM_COLS];
        if (cols > shape->max_cols) continue;
        test_rng rng = test_rng_make(++stream);
        const bool permuted = test_rng_below(&rng, 2) == 0;
        test_relation relation = test_relation_create(
            shape, (test_form)test_rng_below(&rng, NUM_FORMS),
            test_rng_below(&rng, 2) == 0 ? INDEXING_WEIGHTS : INDEXING_NONE, &rng);
        if (permuted) permute_rows(&relation, &rng);
        check_case(&d, shape, &relation, i % 2 == 1, (spops_dtype)p->dtype, cols, stream, &rng);
        test_relation_destroy(&relation);
    }
    test_close(&d);
}

// Copies keep every bit, also NaN payloads, and rows that no term names are left as they are.
BackendTest(gather, copies_bits)
{
    enum { SOURCES = 5, TERMS = 7, ROWS = 9 };
    static const int32_t keys[TERMS] = {4, 0, 0, 2, 4, 4, 1};
    static const int32_t idx[TERMS] = {8, 0, 3, 4, 1, 7, 6}; // rows 2 and 5 are not named
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int t = 0; t < NUM_ROW_DTYPES; ++t) {
        for (int k = 0; k < NUM_COLS; ++k) {
            char text[256];
            const char *what =
                test_describe(text, "%s copies of %lld columns",
                              test_dtype_name(test_row_dtypes[t]), (long long)all_cols[k]);
            const size_t row_bytes = (size_t)all_cols[k] * test_dtype_bytes(test_row_dtypes[t]);
            test_rng rng = test_rng_make((uint64_t)(t * 16 + k));
            spops_segments *plan = NULL;
            spops_segments_options options = spops_segments_options_default();
            int32_t *device_keys = test_upload_i32(&d, keys, TERMS);
            int32_t *device_idx = test_upload_i32(&d, idx, TERMS);
            options.idx = device_idx;
            options.num_rows = ROWS;
            test_expect_ok(d.ctx,
                           spops_segments_create_from_keys(d.ctx, SOURCES, TERMS, device_keys,
                                                           SPOPS_KEYS_UNSORTED, &options, &plan),
                           what);
            guarded x =
                guarded_create(d.backend, "x", SOURCES, all_cols[k], 0, 0, test_row_dtypes[t]);
            guarded out =
                guarded_create(d.backend, "out", ROWS, all_cols[k], 0, 0, test_row_dtypes[t]);
            for (size_t i = 0; i < SOURCES * row_bytes; ++i) {
                x.host[x.first + i] =
                    (unsigned char)(test_rng_next(&rng) | (i % 3 == 0 ? 0xff : 0));
            }
            guarded_upload(&x), guarded_upload(&out);
            test_expect_ok(d.ctx, spops_gather_execute(d.ctx, plan, x.view, NULL, out.view), what);
            test_wait(&d);
            guarded_download(&out);
            for (int i = 0; i < TERMS; ++i) {
                cr_assert(memcmp(out.host + out.first + (size_t)idx[i] * row_bytes,
                                 x.host + x.first + (size_t)keys[i] * row_bytes, row_bytes) == 0,
                          "%s: row %d is not a copy of source %d", what, idx[i], keys[i]);
            }
            for (int row = 2; row <= 5; row += 3) {
                cr_assert(memcmp(out.host + out.first + (size_t)row * row_bytes,
                                 out.sent + out.first + (size_t)row * row_bytes, row_bytes) == 0,
                          "%s: row %d was written", what, row);
            }
            guarded_destroy(&x), guarded_destroy(&out);
            spops_segments_destroy(plan);
            test_free(&d, device_keys), test_free(&d, device_idx);
        }
    }
    test_close(&d);
}

// What the row of gather cannot say; tests/test_operators.c has its faults.
BackendTest(gather, refuses)
{
    enum { SOURCES = 4, TERMS = 6, COLS = 8 };
    static const int32_t keys[TERMS] = {3, 0, 2, 2, 0, 2};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_context *ctx = d.ctx;
    spops_segments *plan = NULL, *forward_only = NULL;
    spops_segments_options options = spops_segments_options_default();
    int32_t *k = test_upload_i32(&d, keys, TERMS);
    test_expect_ok(ctx,
                   spops_segments_create_from_keys(ctx, SOURCES, TERMS, k, SPOPS_KEYS_UNSORTED,
                                                   &options, &forward_only),
                   "plan");
    options.gradients = SPOPS_GRADIENTS_LINEAR;
    test_expect_ok(ctx,
                   spops_segments_create_from_keys(ctx, SOURCES, TERMS, k, SPOPS_KEYS_UNSORTED,
                                                   &options, &plan),
                   "plan");
    guarded x = guarded_create(d.backend, "x", SOURCES, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d.backend, "w", TERMS, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", TERMS, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded gx = guarded_create(d.backend, "grad_x", SOURCES, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded gw = guarded_create(d.backend, "grad_w", TERMS, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded *all[] = {&x, &w, &out, &gx, &gw};
    test_rng rng = test_rng_make(9);
    for (int i = 0; i < 5; ++i) {
        free(guarded_fill(all[i], &rng, VALUES_EXACT, false, 1));
        guarded_upload(all[i]);
    }
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;

#define REFUSED(expected, fragment, call)                                                          \
    do {                                                                                           \
        const spops_status got = (call);                                                           \
        cr_assert(strncmp(spops_last_error(ctx), "gather_execute", 14) == 0, "%s", #call);         \
        test_expect(ctx, got, (expected), (fragment), #call);                                      \
        test_wait(&d);                                                                             \
        for (int i = 2; i < 5; ++i)                                                                \
            guarded_check_untouched(all[i], #call);                                                \
    } while (0)

    REFUSED(invalid, "gradients = 0",
            spops_gather_execute_backward(ctx, forward_only, out.view, x.view, &w.view, NULL,
                                          &gw.view));
#undef REFUSED
    test_expect_ok(ctx, spops_gather_execute(ctx, plan, x.view, &w.view, out.view), "after it");
    test_wait(&d);
    for (int i = 0; i < 5; ++i)
        guarded_destroy(all[i]);
    spops_segments_destroy(plan), spops_segments_destroy(forward_only);
    test_free(&d, k);
    test_close(&d);
}
