// SPDX-License-Identifier: Apache-2.0
// Products over the pairs of a relation and sums by them, with their gradients, against FP64.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/term_plans.h"

typedef enum kind { SDDMM, SDDMM_BACKWARD, SPMM, SPMM_BACKWARD, NUM_KINDS } kind;
static const int kinds[NUM_KINDS] = {SDDMM, SDDMM_BACKWARD, SPMM, SPMM_BACKWARD};
static const char *const kind_names[NUM_KINDS] = {"sddmm", "sddmm backward", "spmm",
                                                  "spmm backward"};

// Columns and heads.
static const struct {
    int64_t cols, heads;
} widths[] = {{1, 1},  {3, 1},  {4, 4},   {8, 2},  {17, 1},
              {24, 3}, {32, 4}, {33, 11}, {64, 2}, {80, 80}};
enum { NUM_WIDTHS = sizeof widths / sizeof *widths };

enum { Q, K, GRAD }; // of sddmm; w, x, grad_out of spmm
enum { OUT, OTHER }; // of gradients: of Q and of K

typedef struct pair_case {
    kind kind;
    const term_plan *plan;
    int64_t cols, heads;
    float scale;
} pair_case;

// ---- References ---------------------------------------------------------------------------------

static void add(ref_tensor *t, int64_t at, double part)
{
    t->value[at] += part;
    t->scale[at] += fabs(part);
    t->roundings[at] += 1.0;
}

// out[t, h] = scale <a[s, h], b[j, h]>; absent: NULL.
static void ref_dots(const pair_case *c, double scale, const double *a, const double *b,
                     ref_tensor *out)
{
    const int64_t d = c->cols / c->heads;
    if (out == NULL) return;
    for (int64_t t = 0; t < c->plan->num_terms; ++t) {
        const int64_t s = c->plan->segment[t], j = c->plan->row[t];
        if (s < 0) continue;
        for (int64_t i = 0; i < c->cols; ++i)
            add(out, t * c->heads + i / d, scale * a[s * c->cols + i] * b[j * c->cols + i]);
        for (int64_t h = 0; h < c->heads; ++h)
            out->roundings[t * c->heads + h] += 3.0;
    }
}

// out[to, h] = scale * sum of w[t, h] x[from, h], to the segment or, the other way, to the row.
static void ref_sums(const pair_case *c, double scale, const double *w, const double *x,
                     bool to_rows, ref_tensor *out)
{
    const int64_t d = c->cols / c->heads;
    if (out == NULL) return;
    for (int64_t t = 0; t < c->plan->num_terms; ++t) {
        const int64_t s = c->plan->segment[t], j = c->plan->row[t];
        const int64_t to = to_rows ? j : s, from = to_rows ? s : j;
        if (s < 0) continue;
        for (int64_t i = 0; i < c->cols; ++i)
            add(out, to * c->cols + i, scale * w[t * c->heads + i / d] * x[from * c->cols + i]);
    }
    for (int64_t i = 0; i < out->rows * out->cols; ++i)
        if (out->roundings[i] > 0.0) out->roundings[i] += 3.0;
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const pair_case *c = (const pair_case *)user;
    const double scale = (double)c->scale;
    switch (c->kind) {
    case SDDMM: ref_dots(c, scale, in[Q], in[K], out[OUT]); break;
    case SDDMM_BACKWARD:
        ref_sums(c, scale, in[GRAD], in[K], false, out[OUT]);
        ref_sums(c, scale, in[GRAD], in[Q], true, out[OTHER]);
        break;
    case SPMM: ref_sums(c, 1.0, in[Q], in[K], false, out[OUT]); break;
    default:
        ref_dots(c, 1.0, in[GRAD], in[K], out[OUT]);
        ref_sums(c, 1.0, in[Q], in[GRAD], true, out[OTHER]);
    }
}

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const pair_case *c = (const pair_case *)user;
    const spops_segments *plan = c->plan->plan;
    const int32_t heads = (int32_t)c->heads;
    switch (c->kind) {
    case SDDMM: return spops_sddmm_execute(ctx, plan, heads, c->scale, *in[Q], *in[K], *out[OUT]);
    case SDDMM_BACKWARD:
        return spops_sddmm_execute_backward(ctx, plan, heads, c->scale, *in[GRAD], *in[Q], *in[K],
                                            out[OUT], out[OTHER]);
    case SPMM: return spops_spmm_execute(ctx, plan, heads, *in[Q], *in[K], *out[OUT]);
    default:
        return spops_spmm_execute_backward(ctx, plan, heads, *in[GRAD], *in[Q], *in[K], out[OUT],
                                           out[OTHER]);
    }
}

static void describe_matrices(const pair_case *c, test_operator *op, spops_dtype dtype,
                              test_rng *rng)
{
    const term_plan *p = c->plan;
    const bool sums = c->kind == SPMM || c->kind == SPMM_BACKWARD;
    const bool backward = c->kind == SDDMM_BACKWARD || c->kind == SPMM_BACKWARD;
    const int64_t padding = test_rng_below(rng, 2) * (1 + test_rng_below(rng, 7));
    const int64_t shift = test_rng_below(rng, 2);
    const test_values values = (test_values)test_rng_below(rng, VALUES_SUBNORMAL);
    const int wanted = (int)test_rng_below(rng, 3);
    const test_matrix by_term = test_input("by_term", p->num_terms, c->heads, dtype, values);
    const test_matrix segments = test_input("segments", p->num_segments, c->cols, dtype, values);
    const test_matrix rows = test_input("rows", p->num_rows, c->cols, dtype, values);

    op->in[Q] = test_view(sums ? by_term : segments, padding, shift);
    op->in[K] = test_view(rows, sums ? shift : padding, 0);
    if (backward) op->in[GRAD] = test_view(sums ? segments : by_term, 0, shift);
    if (!backward) {
        op->out[OUT] = test_output("out", sums ? p->num_segments : p->num_terms,
                                   sums ? c->cols : c->heads, dtype, CHECK_BOUND);
        op->out[OUT].padding = padding;
        return;
    }
    if (wanted != 0)
        op->out[OUT] = test_output("grad", sums ? p->num_terms : p->num_segments,
                                   sums ? c->heads : c->cols, dtype, CHECK_BOUND);
    if (wanted != 1)
        op->out[OTHER] = test_view(
            test_output("grad_rows", p->num_rows, c->cols, dtype, CHECK_BOUND), padding, shift);
}

static void check_case(test_device *d, const test_shape *shape, kind which, spops_dtype dtype,
                       int64_t cols, int64_t heads, uint64_t stream)
{
    char text[256];
    test_rng rng = test_rng_make(stream);
    term_plan plan = term_plan_create(d, shape, cols, SPOPS_GRADIENTS_LINEAR, &rng);
    pair_case c = {.kind = which, .plan = &plan, .cols = cols, .heads = heads};
    test_operator op = {.stream = stream, .user = &c, .run = run, .reference = reference};

    c.scale = test_rng_below(&rng, 2) == 0 ? 1.0f : 0.3f;
    describe_matrices(&c, &op, dtype, &rng);
    op.what =
        test_describe(text, "%s, %s, %d heads, scale %g, %s", kind_names[which], shape->name,
                      (int)heads, (double)c.scale, plan.left_out != NULL ? "capacity" : "made");
    op.scratch_bytes = spops_segments_scratch_bytes(plan.plan);
    test_operator_run(d, &op);
    term_plan_destroy(&plan);
}

CaseTest(sddmm, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, kinds, NUM_KINDS),
         .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 32;
    for (int i = 0; i < test_num_shapes() * NUM_WIDTHS; ++i) {
        const test_shape shape = term_plan_shape(i / NUM_WIDTHS);
        const int64_t cols = widths[i % NUM_WIDTHS].cols, heads = widths[i % NUM_WIDTHS].heads;
        if (cols > shape.max_cols) continue;
        check_case(&d, &shape, (kind)p->op, (spops_dtype)p->dtype, cols, heads, ++stream);
    }
    test_close(&d);
}

// A few shapes, for tools that are slow: every class of lengths, split segments, empties.
BackendTest(sddmm, small, .timeout = 600)
{
    static const test_shape shapes[] = {{"edges", 20, LENGTHS_EDGES, 0, 80},
                                        {"one huge", 12, LENGTHS_ONE_HUGE, 900, 80},
                                        {"empties in front", 40, LENGTHS_EMPTY_FRONT, 3, 80}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_KINDS * NUM_WIDTHS; ++i)
        check_case(&d, &shapes[i % 3], (kind)(i / NUM_WIDTHS), test_row_dtypes[i % 2],
                   widths[i % NUM_WIDTHS].cols, widths[i % NUM_WIDTHS].heads, 79000 + (uint64_t)i);
    test_close(&d);
}

// One segment of a million terms among short ones.
BackendTest(sddmm, a_million_terms, .timeout = 600)
{
    static const test_shape shape = {"a million", 5, LENGTHS_ONE_HUGE, 1000000, 4};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int which = 0; which < NUM_KINDS; ++which)
        check_case(&d, &shape, (kind)which, SPOPS_DTYPE_F32, 4, 2, 78000 + (uint64_t)which);
    test_close(&d);
}

BackendTest(sddmm, refuses)
{
    enum { SEGMENTS = 3, TERMS = 5, COLS = 4 };
    static const int32_t keys[TERMS] = {2, 0, 2, 2, 0};
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_context *ctx = d.ctx;
    spops_segments *plan = NULL;
    int32_t *k = test_upload_i32(&d, keys, TERMS);
    test_expect_ok(
        ctx,
        spops_segments_create_from_keys(ctx, SEGMENTS, TERMS, k, SPOPS_KEYS_UNSORTED, NULL, &plan),
        "plan");
    guarded a = guarded_create(d.backend, "a", SEGMENTS, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded b = guarded_create(d.backend, "b", TERMS, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d.backend, "w", TERMS, 2, 0, 0, SPOPS_DTYPE_F32);
    guarded other = guarded_create(d.backend, "other", TERMS, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded *all[] = {&a, &b, &w, &other};
    spops_matrix m;
    for (int i = 0; i < 4; ++i)
        guarded_upload(all[i]);

#define REFUSED(fragment, call)                                                                    \
    do {                                                                                           \
        test_expect(ctx, (call), invalid, (fragment), #call);                                      \
        test_wait(&d);                                                                             \
        for (int i = 0; i < 4; ++i)                                                                \
            guarded_check_untouched(all[i], #call);                                                \
    } while (0)

    REFUSED("segments is NULL", spops_sddmm_execute(ctx, NULL, 2, 1.0f, a.view, b.view, w.view));
    REFUSED("heads is 0", spops_sddmm_execute(ctx, plan, 0, 1.0f, a.view, b.view, w.view));
    REFUSED("out is [5, 2], expected [5, 3]",
            spops_sddmm_execute(ctx, plan, 3, 1.0f, a.view, b.view, w.view));
    m = w.view, m.cols = 1;
    REFUSED("scale is nan", spops_sddmm_execute(ctx, plan, 1, NAN, a.view, b.view, m));
    m = a.view, m.rows = 2;
    REFUSED("q", spops_sddmm_execute(ctx, plan, 2, 1.0f, m, b.view, w.view));
    m = b.view, m.dtype = SPOPS_DTYPE_BF16;
    REFUSED("k", spops_sddmm_execute(ctx, plan, 2, 1.0f, a.view, m, w.view));
    REFUSED("gradients = 0, expected SPOPS_GRADIENTS_LINEAR or ALL for grad_k",
            spops_sddmm_execute_backward(ctx, plan, 2, 1.0f, w.view, a.view, b.view, NULL,
                                         &other.view));
    REFUSED("w", spops_spmm_execute(ctx, plan, 1, w.view, b.view, a.view));
    REFUSED("gradients = 0, expected SPOPS_GRADIENTS_LINEAR or ALL for grad_x",
            spops_spmm_execute_backward(ctx, plan, 2, a.view, w.view, b.view, NULL, &other.view));
    m = b.view, m.cols = 3;
    guarded narrow = guarded_create(d.backend, "narrow", SEGMENTS, 3, 0, 0, SPOPS_DTYPE_F32);
    REFUSED("heads is 2, expected a divisor of 3 columns",
            spops_spmm_execute(ctx, plan, 2, w.view, m, narrow.view));
#undef REFUSED
    guarded_destroy(&narrow);
    for (int i = 0; i < 4; ++i)
        guarded_destroy(all[i]);
    spops_segments_destroy(plan);
    test_free(&d, k);
    test_close(&d);
}

// ---- Attention over neighbours ------------------------------------------------------------------

// Three calls forward and three back are softmax(q k) v and its gradients.
BackendTest(sddmm, is_attention)
{
    enum { POINTS = 60, NEIGHBORS = 7, TERMS = POINTS * NEIGHBORS, HEADS = 2, D = 4, COLS = 8 };
    enum { QUERY, KEY, VALUE, SCORE, PROBABILITY, OUTPUT, NUM };
    static const int64_t rows[NUM] = {POINTS, POINTS, POINTS, TERMS, TERMS, POINTS};
    test_device d;
    test_rng rng = test_rng_make(5);
    int32_t keys[TERMS], idx[TERMS], *there, *there_idx;
    spops_segments_options options = spops_segments_options_default();
    spops_segments *plan = NULL;
    guarded m[NUM];
    double *v[3];

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int t = 0; t < TERMS; ++t) {
        keys[t] = (int32_t)test_rng_below(&rng, POINTS);
        idx[t] = (int32_t)test_rng_below(&rng, POINTS);
    }
    there = test_upload_i32(&d, keys, TERMS);
    options.idx = there_idx = test_upload_i32(&d, idx, TERMS);
    options.num_rows = POINTS;
    test_expect_ok(d.ctx,
                   spops_segments_create_from_keys(d.ctx, POINTS, TERMS, there, SPOPS_KEYS_UNSORTED,
                                                   &options, &plan),
                   "plan");
    for (int i = 0; i < NUM; ++i) {
        m[i] = guarded_create(d.backend, "m", rows[i], rows[i] == TERMS ? HEADS : COLS, 0, 0,
                              SPOPS_DTYPE_F32);
        if (i < 3) v[i] = guarded_fill(&m[i], &rng, VALUES_RANDOM, false, 1);
        guarded_upload(&m[i]);
    }
    test_expect_ok(
        d.ctx,
        spops_sddmm_execute(d.ctx, plan, HEADS, 0.5f, m[QUERY].view, m[KEY].view, m[SCORE].view),
        "sddmm");
    test_expect_ok(d.ctx,
                   spops_segment_softmax_execute(d.ctx, plan, m[SCORE].view, m[PROBABILITY].view),
                   "softmax");
    test_expect_ok(
        d.ctx,
        spops_spmm_execute(d.ctx, plan, HEADS, m[PROBABILITY].view, m[VALUE].view, m[OUTPUT].view),
        "spmm");
    test_wait(&d);
    guarded_download(&m[OUTPUT]);
    for (int s = 0; s < POINTS; ++s) {
        for (int c = 0; c < COLS; ++c) {
            double sum = 0.0, total = 0.0, magnitude = 0.0;
            for (int t = 0; t < TERMS; ++t) {
                double score = 0.0;
                if (keys[t] != s) continue;
                for (int i = c / D * D; i < c / D * D + D; ++i)
                    score += 0.5 * v[QUERY][s * COLS + i] * v[KEY][idx[t] * COLS + i];
                total += exp(score);
                sum += exp(score) * v[VALUE][idx[t] * COLS + c];
                magnitude += exp(score) * fabs(v[VALUE][idx[t] * COLS + c]);
            }
            const double expected = total > 0.0 ? sum / total : 0.0;
            const double got = guarded_get(&m[OUTPUT], s, c);
            cr_assert(fabs(got - expected) <= 1e-4 * (total > 0.0 ? magnitude / total : 0.0),
                      "row %d, column %d: %g, expected %g", s, c, got, expected);
        }
    }
    for (int i = 0; i < NUM; ++i)
        guarded_destroy(&m[i]);
    for (int i = 0; i < 3; ++i)
        free(v[i]);
    spops_segments_destroy(plan);
    test_free(&d, there), test_free(&d, there_idx);
    test_close(&d);
}
