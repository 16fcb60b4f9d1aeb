// spops_gather_execute and its reverse: bit-exact copies, scaled rows, gradients, and what they
// refuse.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/ref/ref_gather.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

static const spops_dtype dtypes[] = {SPOPS_DTYPE_F32, SPOPS_DTYPE_F16, SPOPS_DTYPE_BF16};
static const int64_t all_cols[] = {1, 3, 4, 5, 31, 32, 33, 80, 256};
enum { NUM_DTYPES = 3, NUM_COLS = 9 };

struct param {
    int backend, dtype, launch;
};

static struct criterion_test_params every_combination(void)
{
    static struct param params[NUM_DTYPES * (1 + NUM_LAUNCHES)];
    size_t n = 0;
    for (int t = 0; t < NUM_DTYPES; ++t) {
        params[n++] = (struct param){SPOPS_BACKEND_CPU, (int)dtypes[t], LAUNCH_DEFAULT};
        for (int l = 0; l < NUM_LAUNCHES; ++l) {
            params[n++] = (struct param){SPOPS_BACKEND_CUDA, (int)dtypes[t], l};
        }
    }
    return cr_make_param_array(struct param, params, n);
}

typedef enum weighting { WEIGHTS_NONE, WEIGHTS_F32, WEIGHTS_SAME, NUM_WEIGHTINGS } weighting;

typedef struct gather_case {
    const test_relation *relation;
    spops_segments *plan;
    bool backward, want_x, want_w;
    int64_t cols;
    weighting weights;
    test_values values;
    uint64_t stream;
    guarded x, w, rows, grad_x, grad_w; // rows: out, or grad_out
    ref_tensor expected, expected_w;
} gather_case;

static void prepare(void *user, int version)
{
    gather_case *c = (gather_case *)user;
    const ref_relation *r = &c->relation->ref;
    const test_values kind = c->values == VALUES_EXACT ? VALUES_EXACT : VALUES_RANDOM;
    test_rng rng = test_rng_make(c->stream * 2 + (uint64_t)version);
    double *x = guarded_fill(&c->x, &rng, c->values, false, 1), *w = NULL;
    guarded_upload(&c->x);
    if (c->weights != WEIGHTS_NONE) {
        w = guarded_fill(&c->w, &rng, kind, false, 1);
        guarded_upload(&c->w);
    }
    ref_tensor_destroy(&c->expected), ref_tensor_destroy(&c->expected_w);
    if (c->backward) {
        double *grad_out = guarded_fill(&c->rows, &rng, kind, false, 1);
        guarded_upload(&c->rows);
        c->expected = ref_tensor_create(r->num_segments, c->cols);
        c->expected_w = ref_tensor_create(r->num_weights, 1);
        ref_gather_backward(r, c->cols, x, w, grad_out, &c->expected,
                            c->want_w ? &c->expected_w : NULL);
        free(grad_out);
    } else {
        c->expected = ref_tensor_create(r->num_rows, c->cols);
        ref_gather_forward(r, c->cols, x, w, &c->expected);
    }
    free(x), free(w);
}

static spops_status enqueue(void *user, spops_context *ctx)
{
    gather_case *c = (gather_case *)user;
    const spops_matrix *w = c->weights != WEIGHTS_NONE ? &c->w.view : NULL;
    if (!c->backward) return spops_gather_execute(ctx, c->plan, c->x.view, w, c->rows.view);
    return spops_gather_execute_backward(ctx, c->plan, c->rows.view, c->x.view, w,
                                         c->want_x ? &c->grad_x.view : NULL,
                                         c->want_w ? &c->grad_w.view : NULL);
}

static void verify(void *user, int version, const char *what)
{
    gather_case *c = (gather_case *)user;
    const bool exact = c->values == VALUES_EXACT;
    (void)version;
    if (!c->backward) {
        guarded_check(&c->rows, &c->expected, true, what); // one rounding: always exact
        return;
    }
    if (c->want_x) guarded_check(&c->grad_x, &c->expected, exact, what);
    if (c->want_w) guarded_check(&c->grad_w, &c->expected_w, exact, what);
}

static void check_case(test_device *d, const test_shape *shape, gather_case *c, spops_dtype dtype,
                       int64_t padding, int64_t shift)
{
    char text[256];
    const ref_relation *r = &c->relation->ref;
    const char *what = test_describe(
        text,
        "%s gather%s %s, %s, %s: cols %lld + %lld, shift %lld, form %d, indexing %d, weights %d",
        test_backend_name(d->backend), c->backward ? " backward" : "", test_dtype_name(dtype),
        test_launch_name(d->launch), shape->name, (long long)c->cols, (long long)padding,
        (long long)shift, c->relation->form, c->relation->indexing, c->weights);
    const spops_gradients gradients =
        c->backward && c->want_w ? SPOPS_GRADIENTS_LINEAR : SPOPS_GRADIENTS_NONE;
    const spops_dtype w_dtype = c->weights == WEIGHTS_SAME ? dtype : SPOPS_DTYPE_F32;
    test_expect_ok(d->ctx, test_relation_plan(c->relation, d->ctx, c->cols, gradients, &c->plan),
                   what);
    c->x = guarded_create(d->backend, "x", r->num_segments, c->cols, padding, shift, dtype);
    c->w = guarded_create(d->backend, "w", r->num_weights, 1, 0, shift, w_dtype);
    c->rows = guarded_create(d->backend, c->backward ? "grad_out" : "out", r->num_rows, c->cols,
                             padding * 2, shift, dtype);
    c->grad_x =
        guarded_create(d->backend, "grad_x", r->num_segments, c->cols, padding, shift, dtype);
    c->grad_w = guarded_create(d->backend, "grad_w", r->num_weights, 1, 0, 0, w_dtype);
    test_call call = {.user = c,
                      .prepare = prepare,
                      .enqueue = enqueue,
                      .verify = verify,
                      .scratch_bytes = spops_segments_scratch_bytes(c->plan),
                      .what = what};
    int inputs = 0, outputs = 0;
    call.inputs[inputs++] = &c->x;
    if (c->weights != WEIGHTS_NONE) call.inputs[inputs++] = &c->w;
    if (c->backward)
        call.inputs[inputs++] = &c->rows;
    else
        call.outputs[outputs++] = &c->rows;
    if (c->backward && c->want_x) call.outputs[outputs++] = &c->grad_x;
    if (c->backward && c->want_w) call.outputs[outputs++] = &c->grad_w;
    test_run(d, &call);
    guarded_destroy(&c->x), guarded_destroy(&c->w), guarded_destroy(&c->rows);
    guarded_destroy(&c->grad_x), guarded_destroy(&c->grad_w);
    ref_tensor_destroy(&c->expected), ref_tensor_destroy(&c->expected_w);
    spops_segments_destroy(c->plan);
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

ParameterizedTestParameters(gather, agrees)
{
    return every_combination();
}
ParameterizedTest(struct param *p, gather, agrees, .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = (uint64_t)(p->dtype * 8 + p->launch) << 32;
    for (int s = 0; s < test_num_shapes(); ++s) {
        for (int k = 0; k < NUM_COLS; ++k) {
            const test_shape *shape = &test_shapes[s];
            if (all_cols[k] > shape->max_cols) continue;
            for (int backward = 0; backward < 2; ++backward) {
                test_rng rng = test_rng_make(++stream);
                gather_case c = {.backward = backward != 0, .cols = all_cols[k], .stream = stream};
                const bool permuted = test_rng_below(&rng, 2) == 0;
                test_relation relation = test_relation_create(
                    shape, (test_form)test_rng_below(&rng, NUM_FORMS),
                    test_rng_below(&rng, 2) == 0 ? INDEXING_WEIGHTS : INDEXING_NONE, &rng);
                if (permuted) permute_rows(&relation, &rng);
                c.relation = &relation;
                c.weights = (weighting)test_rng_below(&rng, NUM_WEIGHTINGS);
                c.values = (test_values)test_rng_below(&rng, backward ? 3 : NUM_VALUES);
                c.want_w = c.weights != WEIGHTS_NONE && test_rng_below(&rng, 3) != 0;
                c.want_x = !c.want_w || test_rng_below(&rng, 2) == 0;
                check_case(&d, shape, &c, (spops_dtype)p->dtype,
                           test_rng_below(&rng, 2) * (1 + test_rng_below(&rng, 7)),
                           test_rng_below(&rng, 2));
                test_relation_destroy(&relation);
            }
        }
    }
    test_close(&d);
}

// Copies keep every bit, also NaN payloads, and rows that no term names are left as they are.
ParameterizedTestParameters(gather, copies_bits)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, gather, copies_bits)
{
    enum { SOURCES = 5, TERMS = 7, ROWS = 9 };
    static const int32_t keys[TERMS] = {4, 0, 0, 2, 4, 4, 1};
    static const int32_t idx[TERMS] = {8, 0, 3, 4, 1, 7, 6}; // rows 2 and 5 are not named
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int t = 0; t < NUM_DTYPES; ++t) {
        for (int k = 0; k < NUM_COLS; ++k) {
            char text[256];
            const char *what = test_describe(text, "%s copies of %lld columns",
                                             test_dtype_name(dtypes[t]), (long long)all_cols[k]);
            const size_t row_bytes = (size_t)all_cols[k] * test_dtype_bytes(dtypes[t]);
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
            guarded x = guarded_create(d.backend, "x", SOURCES, all_cols[k], 0, 0, dtypes[t]);
            guarded out = guarded_create(d.backend, "out", ROWS, all_cols[k], 0, 0, dtypes[t]);
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

ParameterizedTestParameters(gather, refuses)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, gather, refuses)
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
    spops_matrix m;

#define REFUSED(expected, fragment, call)                                                          \
    do {                                                                                           \
        const spops_status got = (call);                                                           \
        test_expect(ctx, got, (expected), "gather_execute", #call);                                \
        test_expect(ctx, got, (expected), (fragment), #call);                                      \
        test_wait(&d);                                                                             \
        for (int i = 2; i < 5; ++i) {                                                              \
            guarded_download(all[i]);                                                              \
            guarded_check_untouched(all[i], #call);                                                \
        }                                                                                          \
    } while (0)

    test_expect(NULL, spops_gather_execute(NULL, plan, x.view, NULL, out.view), invalid, "ctx",
                "ctx NULL");
    test_expect(NULL, spops_gather_execute_backward(NULL, plan, out.view, x.view, NULL, NULL, NULL),
                invalid, "ctx", "ctx NULL");
    REFUSED(invalid, "NULL", spops_gather_execute(ctx, NULL, x.view, NULL, out.view));
    m = x.view, m.rows = 5;
    REFUSED(invalid, "x", spops_gather_execute(ctx, plan, m, NULL, out.view));
    m = x.view, m.dtype = SPOPS_DTYPE_I32;
    REFUSED(invalid, "x", spops_gather_execute(ctx, plan, m, NULL, out.view));
    m = x.view, m.row_stride = 3;
    REFUSED(invalid, "x", spops_gather_execute(ctx, plan, m, NULL, out.view));
    m = x.view, m.data = NULL;
    REFUSED(invalid, "x", spops_gather_execute(ctx, plan, m, NULL, out.view));
    m = w.view, m.rows = 5;
    REFUSED(invalid, "w", spops_gather_execute(ctx, plan, x.view, &m, out.view));
    m = w.view, m.dtype = SPOPS_DTYPE_BF16;
    REFUSED(invalid, "w", spops_gather_execute(ctx, plan, x.view, &m, out.view));
    m = out.view, m.rows = 7;
    REFUSED(invalid, "out", spops_gather_execute(ctx, plan, x.view, NULL, m));
    m = out.view, m.cols = 4;
    REFUSED(invalid, "out", spops_gather_execute(ctx, plan, x.view, NULL, m));
    m = out.view, m.dtype = SPOPS_DTYPE_F16;
    REFUSED(invalid, "out", spops_gather_execute(ctx, plan, x.view, NULL, m));
    m = x.view, m.data = out.view.data;
    REFUSED(invalid, "overlap", spops_gather_execute(ctx, plan, m, NULL, out.view));

    REFUSED(invalid, "gradients",
            spops_gather_execute_backward(ctx, forward_only, out.view, x.view, &w.view, NULL,
                                          &gw.view));
    m = out.view, m.rows = 5;
    REFUSED(invalid, "grad_out",
            spops_gather_execute_backward(ctx, plan, m, x.view, NULL, &gx.view, NULL));
    m = gx.view, m.rows = 3;
    REFUSED(invalid, "grad_x",
            spops_gather_execute_backward(ctx, plan, out.view, x.view, NULL, &m, NULL));
    m = gx.view, m.dtype = SPOPS_DTYPE_F16;
    REFUSED(invalid, "grad_x",
            spops_gather_execute_backward(ctx, plan, out.view, x.view, NULL, &m, NULL));
    m = gw.view, m.rows = 5;
    REFUSED(invalid, "grad_w",
            spops_gather_execute_backward(ctx, plan, out.view, x.view, &w.view, NULL, &m));
    REFUSED(invalid, "grad_w",
            spops_gather_execute_backward(ctx, plan, out.view, x.view, NULL, NULL, &gw.view));
#undef REFUSED
    test_expect_ok(ctx, spops_gather_execute(ctx, plan, x.view, &w.view, out.view), "after it");
    test_wait(&d);
    for (int i = 0; i < 5; ++i)
        guarded_destroy(all[i]);
    spops_segments_destroy(plan), spops_segments_destroy(forward_only);
    test_free(&d, k);
    test_close(&d);
}
