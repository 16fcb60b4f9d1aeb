// SPDX-License-Identifier: Apache-2.0
// Reductions registered at run time: log-sum-exp with its gradient (the softmax), and two whose
// order of terms counts: the last term, and the alternating sum.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/launch.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

// ---- log-sum-exp: (maximum, sum of exp(v - maximum)) ----

typedef struct lse {
    float max, sum;
} lse;

static lse lse_join(lse a, lse b)
{
    if (a.sum == 0.0f) return b;
    if (b.sum == 0.0f) return a;
    const lse r = a.max >= b.max ? (lse){a.max, a.sum + b.sum * expf(b.max - a.max)}
                                 : (lse){b.max, b.sum + a.sum * expf(a.max - b.max)};
    return r;
}

static void lse_identity(void *user, int64_t n, void *state)
{
    ++*(int *)user; // the functions get the user pointer
    for (int64_t i = 0; i < n; ++i)
        ((lse *)state)[i] = (lse){-INFINITY, 0.0f};
}

static void lse_fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    (void)user, (void)term;
    for (int64_t i = 0; i < n; ++i) {
        ((lse *)state)[i] = lse_join(((lse *)state)[i], (lse){v[i], 1.0f});
    }
}

static void lse_combine(void *user, int64_t n, void *a, const void *b)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        ((lse *)a)[i] = lse_join(((lse *)a)[i], ((const lse *)b)[i]);
    }
}

static void lse_finalize(void *user, int64_t n, const void *state, int64_t count, float *out)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        const lse a = ((const lse *)state)[i];
        out[i] = count == 0 ? -INFINITY : a.max + logf(a.sum);
    }
}

static void lse_grad(void *user, int64_t n, const float *v, int32_t term, const void *state,
                     int64_t count, float *dv)
{
    (void)user, (void)term, (void)count;
    for (int64_t i = 0; i < n; ++i) {
        const lse a = ((const lse *)state)[i];
        dv[i] = expf(v[i] - a.max) / a.sum;
    }
}

static const char lse_source[] =
    "struct test_lse {\n"
    "    struct state { float max, sum; };\n"
    "    static constexpr bool uses_term = false;\n"
    "    static constexpr bool has_arg = false;\n"
    "    static __device__ state identity() { state a = {-SPOPS_INFINITY, 0.0f}; return a; }\n"
    "    static __device__ state lift(float v, int) { state a = {v, 1.0f}; return a; }\n"
    "    static __device__ state combine(state a, state b)\n"
    "    {\n"
    "        if (a.sum == 0.0f) return b;\n"
    "        if (b.sum == 0.0f) return a;\n"
    "        state r;\n"
    "        r.max = a.max >= b.max ? a.max : b.max;\n"
    "        r.sum = a.sum * expf(a.max - r.max) + b.sum * expf(b.max - r.max);\n"
    "        return r;\n"
    "    }\n"
    "    static __device__ float finalize(state a, long long count)\n"
    "    {\n"
    "        return count == 0 ? -SPOPS_INFINITY : a.max + logf(a.sum);\n"
    "    }\n"
    "    static __device__ int arg(state) { return -1; }\n"
    "    static __device__ float grad(float v, int, state a, long long)\n"
    "    {\n"
    "        return expf(v - a.max) / a.sum;\n"
    "    }\n"
    "};\n";

// ---- the last term: (value, term), term -1 for none ----

typedef struct last {
    float v;
    int32_t term;
} last;

static void last_identity(void *user, int64_t n, void *state)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        ((last *)state)[i] = (last){0.0f, -1};
}

static void last_fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        ((last *)state)[i] = (last){v[i], term};
}

static void last_combine(void *user, int64_t n, void *a, const void *b)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        if (((const last *)b)[i].term >= 0) ((last *)a)[i] = ((const last *)b)[i];
    }
}

static void last_finalize(void *user, int64_t n, const void *state, int64_t count, float *out)
{
    (void)user, (void)count;
    for (int64_t i = 0; i < n; ++i)
        out[i] = ((const last *)state)[i].v;
}

static void last_grad(void *user, int64_t n, const float *v, int32_t term, const void *state,
                      int64_t count, float *dv)
{
    (void)user, (void)v, (void)count;
    for (int64_t i = 0; i < n; ++i)
        dv[i] = ((const last *)state)[i].term == term ? 1.0f : 0.0f;
}

static const char last_source[] =
    "struct test_last {\n"
    "    struct state { float v; int term; };\n"
    "    static constexpr bool uses_term = true;\n"
    "    static constexpr bool has_arg = false;\n"
    "    static __device__ state identity() { state a = {0.0f, -1}; return a; }\n"
    "    static __device__ state lift(float v, int term) { state a = {v, term}; return a; }\n"
    "    static __device__ state combine(state a, state b) { return b.term >= 0 ? b : a; }\n"
    "    static __device__ float finalize(state a, long long) { return a.v; }\n"
    "    static __device__ int arg(state a) { return a.term; }\n"
    "    static __device__ float grad(float, int term, state a, long long)\n"
    "    {\n"
    "        return term == a.term ? 1.0f : 0.0f;\n"
    "    }\n"
    "};\n";

// ---- the alternating sum v[n-1] - v[n-2] + v[n-3] - ...: (sum, whether the count is odd) ----

typedef struct alternating {
    float sum;
    int32_t odd;
} alternating;

static void alternating_identity(void *user, int64_t n, void *state)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        ((alternating *)state)[i] = (alternating){0.0f, 0};
}

static alternating alternating_join(alternating a, alternating b)
{
    return (alternating){(b.odd ? -a.sum : a.sum) + b.sum, a.odd ^ b.odd};
}

static void alternating_fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    (void)user, (void)term;
    for (int64_t i = 0; i < n; ++i) {
        alternating *s = (alternating *)state + i;
        *s = alternating_join(*s, (alternating){v[i], 1});
    }
}

static void alternating_combine(void *user, int64_t n, void *a, const void *b)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        alternating *s = (alternating *)a + i;
        *s = alternating_join(*s, ((const alternating *)b)[i]);
    }
}

static void alternating_finalize(void *user, int64_t n, const void *state, int64_t count,
                                 float *out)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        const alternating a = ((const alternating *)state)[i];
        out[i] = a.odd == (count & 1) ? a.sum : NAN; // the count is the segment's
    }
}

static const char alternating_source[] =
    "struct test_alternating {\n"
    "    struct state { float sum; int odd; };\n"
    "    static constexpr bool uses_term = false;\n"
    "    static constexpr bool has_arg = false;\n"
    "    static __device__ state identity() { state a = {0.0f, 0}; return a; }\n"
    "    static __device__ state lift(float v, int) { state a = {v, 1}; return a; }\n"
    "    static __device__ state combine(state a, state b)\n"
    "    {\n"
    "        state r = {(b.odd ? -a.sum : a.sum) + b.sum, a.odd ^ b.odd};\n"
    "        return r;\n"
    "    }\n"
    "    static __device__ float finalize(state a, long long count)\n"
    "    {\n"
    "        return a.odd == (int)(count & 1) ? a.sum : __int_as_float(0x7fc00000);\n"
    "    }\n"
    "    static __device__ int arg(state) { return -1; }\n"
    "};\n"; // without grad, on both backends

typedef enum which { LSE = 0, LAST = 1, ALTERNATING = 2, NUM_CUSTOM = 3 } which;

static spops_reduce_desc describe(which w, int *user)
{
    spops_reduce_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.user = user;
    switch (w) {
    case LSE:
        d.name = "lse", d.state_bytes = sizeof(lse);
        d.identity = lse_identity, d.fold = lse_fold, d.combine = lse_combine;
        d.finalize = lse_finalize, d.grad = lse_grad;
        d.cuda_source = lse_source, d.cuda_op = "test_lse";
        break;
    case LAST:
        d.name = "last", d.state_bytes = sizeof(last);
        d.identity = last_identity, d.fold = last_fold, d.combine = last_combine;
        d.finalize = last_finalize, d.grad = last_grad;
        d.cuda_source = last_source, d.cuda_op = "test_last";
        break;
    default:
        d.name = "alternating", d.state_bytes = sizeof(alternating);
        d.identity = alternating_identity, d.fold = alternating_fold;
        d.combine = alternating_combine, d.finalize = alternating_finalize;
        d.cuda_source = alternating_source, d.cuda_op = "test_alternating";
        break;
    }
    return d;
}

// ---- references ----

static double value_of(const ref_relation *r, int64_t t, int64_t c, int64_t cols, const double *x,
                       const double *w)
{
    return test_term(w != NULL ? w[r->weight[t]] : 1.0, x[r->row[t] * cols + c]);
}

// LSE. Each exp and each rescaling of the sum is off by a few roundings, so that n terms give a sum
// off by at most 8 n + 8; its logarithm turns that relative error into an absolute one, to which
// comes the rounding of arguments and results, of the size of the values.
static void reference(which kind, const ref_relation *r, int64_t cols, const double *x,
                      const double *w, ref_tensor *out)
{
    const int64_t n = r->num_segments * cols;
    double *max = (double *)calloc((size_t)n + 1, sizeof(double));
    double *count = (double *)calloc((size_t)n + 1, sizeof(double));
    for (int64_t i = 0; i < n; ++i)
        max[i] = -(double)INFINITY;
    for (int64_t t = 0; t < r->num_terms; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
            const int64_t i = r->segment[t] * cols + c;
            const double v = value_of(r, t, c, cols, x, w);
            count[i] += 1.0;
            if (v > max[i]) max[i] = v;
            if (kind == LAST) out->value[i] = v;
            if (kind == ALTERNATING) out->value[i] = v - out->value[i];
        }
    }
    if (kind == LSE) {
        for (int64_t t = 0; t < r->num_terms; ++t) {
            for (int64_t c = 0; c < cols; ++c) {
                const int64_t i = r->segment[t] * cols + c;
                const double v = value_of(r, t, c, cols, x, w);
                out->value[i] += exp(v - max[i]);
                if (out->scale[i] < fabs(v)) out->scale[i] = fabs(v);
            }
        }
        for (int64_t i = 0; i < n; ++i) {
            out->value[i] = max[i] + log(out->value[i]);
            if (count[i] == 0.0) out->value[i] = -(double)INFINITY;
            out->scale[i] = 1.0 + 2.0 * out->scale[i];
            out->roundings[i] = 8.0 * count[i] + 8.0;
        }
    }
    free(max), free(count);
}

// LSE: weight of the softmax. LAST: 1 at the last term.
static void reference_backward(which kind, const ref_relation *r, int64_t cols, const double *x,
                               const double *w, const double *grad_out, ref_tensor *grad_x,
                               ref_tensor *grad_w)
{
    ref_tensor out = ref_tensor_create(r->num_segments, cols);
    int64_t *last_term = (int64_t *)calloc((size_t)r->num_segments + 1, sizeof(int64_t));
    double *of_row = (double *)calloc((size_t)r->num_rows + 1, sizeof(double));
    double *of_weight = (double *)calloc((size_t)r->num_weights + 1, sizeof(double));
    reference(kind, r, cols, x, w, &out);
    for (int64_t t = 0; t < r->num_terms; ++t) {
        last_term[r->segment[t]] = t;
        of_row[r->row[t]] += 1.0;
        of_weight[r->weight[t]] += (double)cols;
    }
    for (int64_t t = 0; t < r->num_terms; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
            const int64_t s = r->segment[t], o = s * cols + c, i = r->row[t] * cols + c;
            const int64_t m = r->weight[t];
            const double v = value_of(r, t, c, cols, x, w);
            const double g = kind == LSE ? exp(v - out.value[o]) : last_term[s] == t ? 1.0 : 0.0;
            // exp turns the absolute error of its argument, out's, into a relative one.
            const double own = (out.roundings[o] + 8.0) * (kind == LSE ? out.scale[o] : 1.0);
            const double part_x = (w != NULL ? w[m] : 1.0) * g * grad_out[o];
            const double part_w = x[i] * g * grad_out[o];
            grad_x->value[i] += part_x;
            grad_x->scale[i] += fabs(part_x);
            grad_x->roundings[i] = fmax(grad_x->roundings[i], own + of_row[r->row[t]]);
            grad_w->value[m] += part_w;
            grad_w->scale[m] += fabs(part_w);
            grad_w->roundings[m] = fmax(grad_w->roundings[m], own + of_weight[m]);
        }
    }
    free(last_term), free(of_row), free(of_weight);
    ref_tensor_destroy(&out);
}

// ---- cases ----

enum { X, W, GRAD_OUT }; // inputs
enum { OUT };            // outputs, forward
enum { GRAD_X, GRAD_W }; // outputs, backward

typedef struct custom_case {
    const ref_relation *relation;
    spops_segments *plan;
    which kind;
    spops_context *other;              // a second context, which has an id of its own
    spops_reduce reduce, other_reduce; // for the same reduction
    int64_t cols;
} custom_case;

static spops_reduce id_on(const custom_case *c, const spops_context *ctx)
{
    return ctx == c->other ? c->other_reduce : c->reduce;
}

static spops_status run_forward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    const custom_case *c = (const custom_case *)user;
    return spops_segreduce_execute(ctx, c->plan, id_on(c, ctx), *in[X], in[W], *out[OUT], NULL);
}

static void reference_forward(void *user, const double *const *in, ref_tensor *const *out)
{
    const custom_case *c = (const custom_case *)user;
    reference(c->kind, c->relation, c->cols, in[X], in[W], out[OUT]);
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const custom_case *c = (const custom_case *)user;
    return spops_segreduce_execute_backward(ctx, c->plan, id_on(c, ctx), *in[GRAD_OUT], *in[X],
                                            in[W], out[GRAD_X], out[GRAD_W]);
}

static void backward_of_reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const custom_case *c = (const custom_case *)user;
    reference_backward(c->kind, c->relation, c->cols, in[X], in[W], in[GRAD_OUT], out[GRAD_X],
                       out[GRAD_W]);
}

static void check_case(test_device *d, custom_case *c, const test_shape *shape,
                       const test_relation *relation, spops_dtype dtype, bool backward,
                       uint64_t stream)
{
    char text[256];
    const ref_relation *r = &relation->ref;
    const spops_dtype f32 = SPOPS_DTYPE_F32;
    const test_values exact = VALUES_EXACT;
    const test_check check = c->kind == LSE ? CHECK_BOUND : CHECK_EXACT;
    test_operator op = {.stream = stream,
                        .other = c->other,
                        .user = c,
                        .run = backward ? run_backward : run_forward,
                        .reference = backward ? backward_of_reference : reference_forward};
    op.in[X] = test_view(
        test_input("x", r->num_rows, c->cols, dtype, c->kind == LSE ? VALUES_RANDOM : exact), 3, 1);
    op.in[W] = test_input("w", r->num_weights, 1, f32, exact);
    if (backward) {
        op.in[GRAD_OUT] =
            test_view(test_input("grad_out", r->num_segments, c->cols, dtype, exact), 1, 1);
        op.out[GRAD_X] = test_view(test_output("grad_x", r->num_rows, c->cols, dtype, check), 0, 1);
        op.out[GRAD_W] = test_output("grad_w", r->num_weights, 1, f32, check);
    } else {
        op.out[OUT] = test_view(test_output("out", r->num_segments, c->cols, dtype, check), 1, 1);
    }
    op.what = test_describe(text, "custom %d%s, %s, form %d", c->kind, backward ? " backward" : "",
                            shape->name, relation->form);
    const spops_gradients gradients = backward ? SPOPS_GRADIENTS_ALL : SPOPS_GRADIENTS_NONE;
    test_expect_ok(d->ctx, test_relation_plan(relation, d->ctx, c->cols, gradients, &c->plan),
                   op.what);
    op.scratch_bytes = spops_segments_scratch_bytes(c->plan);
    c->relation = r;
    test_operator_run(d, &op);
    spops_segments_destroy(c->plan);
}

// A parameter is a context, as a reduction is compiled for each that it is registered with, which takes
// seconds on a GPU. A context with a stream of its own serves captured calls too.
ParameterizedTestParameters(custom_reduce, agrees)
{
    static struct case_param params[3 * NUM_CUSTOM];
    int n = 0;
    for (int k = 0; k < NUM_CUSTOM; ++k) {
        params[n++] = (struct case_param){SPOPS_BACKEND_CPU, LAUNCH_DEFAULT, 0, k};
        params[n++] = (struct case_param){SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT, 0, k};
        params[n++] = (struct case_param){SPOPS_BACKEND_CUDA, LAUNCH_STREAM, 0, k};
    }
    return tested_here(cr_make_param_array(struct case_param, params, n));
}

static void check_shapes(test_device *d, custom_case *c, spops_dtype dtype, uint64_t stream)
{
    static const test_shape shapes[] = {{"nothing", 0, LENGTHS_EMPTY, 0, 0},
                                        {"edges", 40, LENGTHS_EDGES, 0, 0},
                                        {"empties in front", 100, LENGTHS_EMPTY_FRONT, 3, 0},
                                        {"one huge", 20, LENGTHS_ONE_HUGE, 5000, 0},
                                        {"two huge", 2, LENGTHS_UNIFORM, 9001, 0}};
    static const int64_t all_cols[] = {1, 3, 8, 33};
    for (int s = 0; s < 5; ++s) {
        test_rng rng = test_rng_make(++stream);
        test_relation relation =
            test_relation_create(&shapes[s], (test_form)(s % NUM_FORMS),
                                 s % 2 == 0 ? INDEXING_BOTH : INDEXING_NONE, &rng);
        c->cols = all_cols[(s + (int)dtype) % 4];
        for (int backward = 0; backward < (c->kind == ALTERNATING ? 1 : 2); ++backward)
            check_case(d, c, &shapes[s], &relation, dtype, backward != 0, ++stream);
        test_relation_destroy(&relation);
    }
}

ParameterizedTest(struct case_param *p, custom_reduce, agrees, .timeout = 600)
{
    test_device d;
    int user = 0;
    custom_case c = {.kind = (which)p->op};
    const spops_reduce_desc desc = describe(c.kind, &user);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    test_expect_ok(d.ctx, spops_reduce_create(d.ctx, &desc, &c.reduce), "reduce_create");
    cr_assert((int)c.reduce >= SPOPS_REDUCE_FIRST_CUSTOM);
    // Another context has another id for the same reduction. One on a GPU is enough.
    const bool cpu = d.backend == SPOPS_BACKEND_CPU;
    const bool alone = !cpu && !(c.kind == ALTERNATING && d.launch == LAUNCH_DEFAULT);
    c.other = alone ? d.ctx : test_context(&d, 3);
    c.other_reduce = c.reduce;
    if (!alone)
        test_expect_ok(c.other, spops_reduce_create(c.other, &desc, &c.other_reduce), "second");
    cr_assert(alone == (c.other_reduce == c.reduce));
    uint64_t stream = case_number(p) << 32;
    const test_launch end = d.launch == LAUNCH_STREAM ? LAUNCH_CAPTURED : d.launch;
    for (; d.launch <= end; d.launch = (test_launch)(d.launch + 1))
        for (int t = 0; t < NUM_ROW_DTYPES; ++t)
            check_shapes(&d, &c, test_row_dtypes[t], stream += 1000);
    if (c.kind == LSE && cpu) cr_assert(user > 0, "user was not handed on");
    if (!alone) spops_context_destroy(c.other);
    test_close(&d);
}

BackendTest(custom_reduce, refuses)
{
    static const int32_t offsets[] = {0, 2, 3};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const bool cuda = p->backend == SPOPS_BACKEND_CUDA;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_reduce id = SPOPS_REDUCE_SUM;
    int user = 0;
    spops_reduce_desc desc;
#define REFUSED(expected, fragment, ...)                                                           \
    (desc = describe(ALTERNATING, &user), __VA_ARGS__,                                             \
     test_expect(d.ctx, spops_reduce_create(d.ctx, &desc, &id), expected, fragment, #__VA_ARGS__))
    REFUSED(invalid, "name", desc.name = NULL);
    REFUSED(invalid, "state_bytes", desc.state_bytes = 0);
    REFUSED(invalid, "state_bytes", desc.state_bytes = SPOPS_REDUCE_STATE_BYTES_MAX + 1);
    REFUSED(invalid, "struct_size", desc.struct_size = sizeof desc + 8);
    if (!cuda) {
        REFUSED(invalid, "identity", desc.identity = NULL);
        REFUSED(invalid, "fold", desc.fold = NULL);
        REFUSED(invalid, "combine", desc.combine = NULL);
        REFUSED(invalid, "finalize", desc.finalize = NULL);
    } else {
        REFUSED(invalid, "cuda_source", desc.cuda_source = NULL);
        REFUSED(invalid, "cuda_op", desc.cuda_op = NULL);
        REFUSED(SPOPS_STATUS_COMPILE_FAILED, "alternating",
                desc.cuda_source = "struct test_alternating { this is not C++ };");
        REFUSED(SPOPS_STATUS_COMPILE_FAILED, "alternating", desc.cuda_op = "no_such_struct");
    }
#undef REFUSED
    desc = describe(ALTERNATING, &user);
    test_expect(d.ctx, spops_reduce_create(d.ctx, NULL, &id), invalid, "desc", "desc NULL");
    test_expect(d.ctx, spops_reduce_create(d.ctx, &desc, NULL), invalid, "out", "out NULL");
    test_expect(NULL, spops_reduce_create(NULL, &desc, &id), invalid, "ctx", "ctx NULL");

    // An id counts on its own context only; a gradient that was not given is not there; nor is arg.
    test_expect_ok(d.ctx, spops_reduce_create(d.ctx, &desc, &id), "after the errors");
    spops_segments *plan = NULL;
    spops_segments_options options = spops_segments_options_default();
    options.gradients = SPOPS_GRADIENTS_ALL;
    int32_t *o = test_upload_i32(&d, offsets, 3);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, 2, o, &options, &plan), "plan");
    guarded x = guarded_create(d.backend, "x", 3, 4, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", 2, 4, 0, 0, SPOPS_DTYPE_F32);
    guarded arg = guarded_create(d.backend, "arg", 2, 4, 0, 0, SPOPS_DTYPE_I32);
    guarded gx = guarded_create(d.backend, "grad_x", 3, 4, 0, 0, SPOPS_DTYPE_F32);
    guarded_upload(&x), guarded_upload(&out), guarded_upload(&arg), guarded_upload(&gx);
    spops_context *other = test_context(&d, 1);
    test_expect_ok(other, spops_context_reserve(other, spops_segments_scratch_bytes(plan)), "");
    test_expect(other, spops_segreduce_execute(other, plan, id, x.view, NULL, out.view, NULL),
                invalid, "reduce", "another context's id");
    const spops_status with_arg =
        spops_segreduce_execute(d.ctx, plan, id, x.view, NULL, out.view, &arg.view);
    cr_assert(with_arg == invalid || with_arg == SPOPS_STATUS_NOT_SUPPORTED, "%s",
              spops_status_name(with_arg));
    test_expect(
        d.ctx,
        spops_segreduce_execute_backward(d.ctx, plan, id, out.view, x.view, NULL, &gx.view, NULL),
        SPOPS_STATUS_NOT_SUPPORTED, "without grad", "no gradient");
    guarded_check_untouched(&out, "refused"), guarded_check_untouched(&arg, "refused");
    guarded_check_untouched(&gx, "refused");
    // As many as a context holds, then one more.
    spops_status status = SPOPS_STATUS_OK;
    int created = 1;
    while (!cuda && status == SPOPS_STATUS_OK && created < 1000) {
        status = spops_reduce_create(d.ctx, &desc, &id);
        created += status == SPOPS_STATUS_OK;
    }
    if (!cuda) {
        test_expect(d.ctx, status, SPOPS_STATUS_NOT_SUPPORTED, "reduce_create", "one too many");
    }
    test_expect_ok(
        d.ctx, spops_segreduce_execute(d.ctx, plan, SPOPS_REDUCE_SUM, x.view, NULL, out.view, NULL),
        "after the errors");
    test_wait(&d);
    spops_context_destroy(other);
    guarded_destroy(&x), guarded_destroy(&out), guarded_destroy(&arg), guarded_destroy(&gx);
    spops_segments_destroy(plan);
    test_free(&d, o);
    test_close(&d);
}
