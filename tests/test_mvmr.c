// SPDX-License-Identifier: Apache-2.0
// MVMR, VVOR and their plans: against FP64 references on every kind of relation; filled on the
// stream; and what they refuse.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/mvmr/mvmr_tuning.h"
#include "support/device.h"
#include "tests/ref/ref_mvmr.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

// ---- Relations ----------------------------------------------------------------------------------

typedef enum relation_kind {
    RANDOM,     // all three numbers at random
    BY_MATRIX,  // the same, sorted by matrix; the plan is told
    BY_OUT,     // sorted by output row
    BY_IN,      // sorted by input row
    DUPLICATES, // few different triplets, each many times
    FIRST_OUT,  // all into output row 0
    ONE_MATRIX, // the last one
    INJECTIVE,  // no output row twice, no input row twice, in random order
    NEIGHBOURS, // as a convolution: every output with input rows near it, a matrix each
    GROUPED     // triplet t is (t, t, k), sorted: create_from_offsets
} relation_kind;

typedef struct relation_shape {
    const char *name;
    relation_kind kind;
    int64_t num_out, num_in, num_matrices, num_triplets;
    int64_t max_cols; // of cases on it, so that references take no long time
} relation_shape;

// Around the rows of a tile (512 on the CPU, fewer on CUDA), those gathered at once, and pieces of
// matrices (4,096 triplets on the CPU).
static const relation_shape shapes[] = {
    {"nothing", RANDOM, 0, 0, 0, 0, 256},
    {"no triplets", RANDOM, 5, 4, 3, 0, 256},
    {"no rows", RANDOM, 0, 0, 3, 0, 256},
    {"one", RANDOM, 1, 1, 1, 1, 256},
    {"random", RANDOM, 70, 50, 27, 600, 64},
    {"by matrix", BY_MATRIX, 70, 50, 27, 600, 64},
    {"by output", BY_OUT, 70, 50, 27, 600, 64},
    {"by input", BY_IN, 70, 50, 27, 600, 64},
    {"duplicates", DUPLICATES, 9, 8, 3, 300, 64},
    {"one output", FIRST_OUT, 40, 300, 5, 1500, 33},
    {"one matrix", ONE_MATRIX, 300, 300, 3, 1000, 64},
    {"32 matrices", RANDOM, 100, 100, 32, 900, 64},
    {"33 matrices", RANDOM, 100, 100, 33, 900, 64},
    {"64 matrices", RANDOM, 100, 100, 64, 900, 64},
    {"65 matrices", RANDOM, 100, 100, 65, 900, 64},
    {"343 matrices", NEIGHBOURS, 120, 120, 343, 2000, 33},
    {"100,000 matrices", RANDOM, 80, 90, 100000, 400, 5},
    {"injective", INJECTIVE, 900, 700, 9, 700, 64},
    {"permutation", INJECTIVE, 640, 640, 7, 640, 64},
    {"groups", GROUPED, 0, 0, 27, 1000, 130},
    {"one group", GROUPED, 0, 0, 1, 513, 64},
    {"many groups", GROUPED, 0, 0, 500, 700, 33},
    {"convolution", NEIGHBOURS, 1100, 1100, 27, 6000, 33},
    {"few to many", RANDOM, 40000, 200, 5, 3000, 4},
    {"many to few", RANDOM, 200, 40000, 5, 3000, 4},
    {"wide", NEIGHBOURS, 60, 60, 5, 150, 300},
    {"wide tiles", NEIGHBOURS, 1100, 1100, 3, 1300, 160},
    {"long matrix", ONE_MATRIX, 50, 60, 2, 20000, 8},
};
enum { NUM_SHAPES = (int)(sizeof shapes / sizeof shapes[0]) };

typedef struct relation {
    ref_triplets ref;
    int32_t *out, *in, *matrix;
    int32_t *offsets; // of groups; GROUPED only
} relation;

static int compare_i32(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int32_t *numbers(int64_t n)
{
    int32_t *p = (int32_t *)calloc((size_t)n + 1, sizeof *p);
    cr_assert(p != NULL, "no memory");
    return p;
}

static void draw(int32_t *to, int64_t n, int64_t limit, test_rng *rng)
{
    for (int64_t t = 0; t < n; ++t)
        to[t] = (int32_t)test_rng_below(rng, limit);
}

// n different numbers below limit.
static void draw_different(int32_t *to, int64_t n, int64_t limit, test_rng *rng)
{
    int32_t *all = numbers(limit);
    for (int64_t i = 0; i < limit; ++i)
        all[i] = (int32_t)i;
    test_rng_shuffle_i32(rng, all, limit);
    memcpy(to, all, (size_t)n * sizeof *to);
    free(all);
}

static relation relation_create(const relation_shape *s, test_rng *rng)
{
    const int64_t n = s->num_triplets;
    relation r = {.out = numbers(n), .in = numbers(n), .matrix = numbers(n)};
    int64_t num_out = s->num_out, num_in = s->num_in;

    draw(r.out, n, num_out, rng);
    draw(r.in, n, num_in, rng);
    draw(r.matrix, n, s->num_matrices, rng);
    switch (s->kind) {
    case BY_MATRIX: qsort(r.matrix, (size_t)n, sizeof *r.matrix, compare_i32); break;
    case BY_OUT: qsort(r.out, (size_t)n, sizeof *r.out, compare_i32); break;
    case BY_IN: qsort(r.in, (size_t)n, sizeof *r.in, compare_i32); break;
    case FIRST_OUT: memset(r.out, 0, (size_t)n * sizeof *r.out); break;
    case DUPLICATES:
        for (int64_t t = 4; t < n; ++t) {
            const int64_t of = test_rng_below(rng, 4);
            r.out[t] = r.out[of], r.in[t] = r.in[of], r.matrix[t] = r.matrix[of];
        }
        break;
    case ONE_MATRIX:
        for (int64_t t = 0; t < n; ++t)
            r.matrix[t] = (int32_t)s->num_matrices - 1;
        break;
    case INJECTIVE:
        draw_different(r.out, n, num_out, rng);
        draw_different(r.in, n, num_in, rng);
        break;
    case NEIGHBOURS:
        for (int64_t t = 0; t < n; ++t) {
            r.out[t] = (int32_t)(t * num_out / n);
            r.in[t] = (int32_t)((r.out[t] + test_rng_below(rng, 9)) % num_in);
        }
        break;
    case GROUPED:
        // Sizes from squares: some groups are long, some empty.
        for (int64_t t = 0; t < n; ++t) {
            const double u = test_rng_unit(rng);
            r.matrix[t] = (int32_t)(u * u * (double)s->num_matrices);
            r.out[t] = r.in[t] = (int32_t)t;
        }
        qsort(r.matrix, (size_t)n, sizeof *r.matrix, compare_i32);
        r.offsets = numbers(s->num_matrices + 1);
        for (int64_t t = 0; t < n; ++t)
            ++r.offsets[r.matrix[t] + 1];
        for (int64_t k = 0; k < s->num_matrices; ++k)
            r.offsets[k + 1] += r.offsets[k];
        num_out = num_in = n;
        break;
    case RANDOM: break;
    }
    r.ref = (ref_triplets){.num_out = num_out,
                           .num_in = num_in,
                           .num_matrices = s->num_matrices,
                           .num_triplets = n,
                           .out = r.out,
                           .in = r.in,
                           .matrix = r.matrix};
    return r;
}

static void relation_destroy(relation *r)
{
    free(r->out), free(r->in), free(r->matrix), free(r->offsets);
}

static spops_triplets_shape shape_of(const ref_triplets *t)
{
    return (spops_triplets_shape){.num_out = t->num_out,
                                  .num_in = t->num_in,
                                  .num_matrices = t->num_matrices,
                                  .num_triplets = t->num_triplets};
}

// How a plan comes about.
typedef enum plan_form { CREATED, FILLED, NUM_PLAN_FORMS } plan_form;

static spops_triplets *plan_of(test_device *d, const relation_shape *s, const relation *r,
                               plan_form form, const spops_triplets_options *options,
                               const char *what)
{
    const ref_triplets *t = &r->ref;
    const int64_t n = t->num_triplets;
    spops_triplets_shape shape = shape_of(t);
    spops_triplets_options o = *options;
    spops_triplets *plan = NULL;
    int32_t *offsets = NULL;
    // Every tile with some relation, and the table's.
    if (d->backend == SPOPS_BACKEND_CUDA) o.tile = (int32_t)(n % (SPOPS_MVMR_NUM_TILES + 1));
    int32_t *out = test_upload_i32(d, r->out, n), *in = test_upload_i32(d, r->in, n);
    int32_t *matrix = test_upload_i32(d, r->matrix, n);
    if (r->offsets != NULL) offsets = test_upload_i32(d, r->offsets, t->num_matrices + 1);

    if (form == CREATED && s->kind == GROUPED) {
        test_expect_ok(
            d->ctx, spops_triplets_create_from_offsets(d->ctx, t->num_matrices, offsets, &o, &plan),
            what);
    } else if (form == CREATED) {
        if (s->kind == BY_MATRIX) o.matrix_order = SPOPS_KEYS_SORTED;
        test_expect_ok(d->ctx, spops_triplets_create(d->ctx, &shape, out, in, matrix, &o, &plan),
                       what);
    } else if (s->kind == GROUPED) {
        test_expect_ok(d->ctx, spops_triplets_reserve(d->ctx, &shape, &o, &plan), what);
        test_expect_ok(d->ctx, spops_triplets_update_offsets(d->ctx, plan, offsets, NULL, NULL),
                       what);
    } else {
        const int32_t count = (int32_t)n;
        int32_t *num = test_upload_i32(d, &count, 1);
        test_expect_ok(d->ctx, spops_triplets_reserve(d->ctx, &shape, &o, &plan), what);
        test_expect_ok(d->ctx, spops_triplets_update(d->ctx, plan, num, out, in, matrix), what);
        test_wait(d);
        test_free(d, num);
    }
    test_wait(d);
    test_free(d, out), test_free(d, in), test_free(d, matrix), test_free(d, offsets);
    return plan;
}

// ---- Agreement with the reference ---------------------------------------------------------------

enum { X, W, S, G };                     // inputs
enum { OUT = 0 };                        // output of mvmr and vvor
enum { GRAD_X = 0, GRAD_W = 1, GRAD_S }; // outputs of backward

typedef enum operation { MVMR, VVOR, BACKWARD, NUM_OPERATIONS } operation;

typedef struct mvmr_case {
    const ref_triplets *triplets;
    ref_mvmr_form form;
    spops_mvmr_options options;
    spops_triplets *plan;
    operation operation;
} mvmr_case;

static spops_status run(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out)
{
    const mvmr_case *c = (const mvmr_case *)user;
    switch (c->operation) {
    case MVMR:
        return spops_mvmr_execute(ctx, c->plan, *in[X], *in[W], in[S], &c->options, *out[OUT]);
    case VVOR:
        return spops_vvor_execute(ctx, c->plan, *in[X], *in[G], in[S], &c->options, *out[OUT]);
    default:
        return spops_mvmr_execute_backward(ctx, c->plan, *in[G], *in[X], *in[W], in[S], &c->options,
                                           out[GRAD_X], out[GRAD_W], out[GRAD_S]);
    }
}

static void reference(void *user, const double *const *in, ref_tensor *const *out)
{
    const mvmr_case *c = (const mvmr_case *)user;
    switch (c->operation) {
    case MVMR: ref_mvmr(c->triplets, &c->form, in[X], in[W], in[S], out[OUT]); break;
    case VVOR: ref_vvor(c->triplets, &c->form, in[X], in[G], in[S], out[OUT]); break;
    default:
        if (out[GRAD_X] != NULL)
            ref_mvmr_grad_x(c->triplets, &c->form, in[G], in[W], in[S], out[GRAD_X]);
        if (out[GRAD_W] != NULL) ref_vvor(c->triplets, &c->form, in[X], in[G], in[S], out[GRAD_W]);
        if (out[GRAD_S] != NULL)
            ref_mvmr_grad_s(c->triplets, &c->form, in[X], in[W], in[G], out[GRAD_S]);
    }
}

// Columns of a group of x and of the result.
static const int64_t group_cols[][2] = {{1, 1},   {3, 5},   {4, 4},   {16, 16},  {31, 33},
                                        {32, 32}, {33, 31}, {64, 64}, {8, 130},  {130, 7},
                                        {1, 64},  {65, 1},  {5, 300}, {256, 16}, {128, 32}};
enum { NUM_GROUP_COLS = (int)(sizeof group_cols / sizeof group_cols[0]) };

static ref_mvmr_form draw_form(int64_t max_cols, test_rng *rng)
{
    ref_mvmr_form form;
    int64_t groups, pick;
    form.diagonal = test_rng_below(rng, 4) == 0;
    form.transposed = test_rng_below(rng, 2) == 0;
    form.reversed = test_rng_below(rng, 3) == 0;
    do {
        pick = test_rng_below(rng, NUM_GROUP_COLS);
        groups = form.diagonal ? 1 : 1 + test_rng_below(rng, 3) * test_rng_below(rng, 2);
    } while (groups * group_cols[pick][0] > max_cols || groups * group_cols[pick][1] > max_cols);
    form.groups = groups;
    form.x_cols = groups * group_cols[pick][0];
    form.out_cols = form.diagonal ? form.x_cols : groups * group_cols[pick][1];
    return form;
}

static void check_case(test_device *d, const relation_shape *shape, operation kind,
                       spops_dtype dtype, uint64_t stream, test_rng *rng)
{
    char text[256];
    relation r = relation_create(shape, rng);
    const ref_triplets *t = &r.ref;
    const ref_mvmr_form f = draw_form(shape->max_cols, rng);
    mvmr_case c = {
        .triplets = t, .form = f, .options = spops_mvmr_options_default(), .operation = kind};
    test_operator op = {.stream = stream, .user = &c, .run = run, .reference = reference};
    spops_triplets_options options = spops_triplets_options_default();
    const plan_form plan = (plan_form)test_rng_below(rng, NUM_PLAN_FORMS);
    const int64_t x_rows = f.reversed ? t->num_out : t->num_in;
    const int64_t out_rows = f.reversed ? t->num_in : t->num_out;
    const int64_t w_rows = ref_mvmr_matrix_rows(t, &f), w_cols = ref_mvmr_matrix_cols(&f);
    const test_values values =
        test_rng_below(rng, 3) == 0 ? VALUES_EXACT : (test_values)test_rng_below(rng, NUM_VALUES);
    // What is lost where a product underflows would be multiplied by the next factor: ones and twos.
    const test_values others = values == VALUES_EXACT       ? VALUES_EXACT
                               : values == VALUES_SUBNORMAL ? VALUES_ZEROS
                                                            : VALUES_RANDOM;
    const test_check check = values == VALUES_EXACT ? CHECK_EXACT : CHECK_BOUND;
    // Matrix units cut sums of sixteen products and a sum off after 24 bits (and may after 23)
    // instead of rounding each addition to nearest.
    const double unit =
        d->backend == SPOPS_BACKEND_CUDA && dtype != SPOPS_DTYPE_F32 ? 0x1p-22 : 0.0;
    const spops_dtype out_dtype = test_rng_below(rng, 2) == 0 ? dtype : SPOPS_DTYPE_F32;
    const int64_t padding = test_rng_below(rng, 2) * (1 + test_rng_below(rng, 8));
    const int64_t shift = test_rng_below(rng, 2);

    c.options.groups = (int32_t)f.groups;
    c.options.diagonal = f.diagonal;
    c.options.transposed = f.transposed;
    c.options.reversed = f.reversed;
    // Whole numbers as small as these are exact in tf32 too.
    if (values == VALUES_EXACT && test_rng_below(rng, 2) == 0) c.options.math = SPOPS_MATH_TF32;
    options.backward = kind != MVMR || f.reversed;
    options.max_matrix_elements =
        f.diagonal ? f.x_cols : f.x_cols / f.groups * f.out_cols; // exactly what is needed

    op.in[X] = test_view(test_input("x", x_rows, f.x_cols, dtype, values), padding, shift);
    if (kind != VVOR)
        op.in[W] = test_view(test_input("w", w_rows, w_cols, dtype, others), padding, shift);
    if (test_rng_below(rng, 2) == 0)
        op.in[S] =
            test_view(test_input("s", t->num_triplets, 1,
                                 test_rng_below(rng, 2) == 0 ? dtype : SPOPS_DTYPE_F32, others),
                      0, shift);
    if (kind != MVMR)
        op.in[G] = test_view(test_input("g", out_rows, f.out_cols, dtype, others), padding * 2, 0);
    if (kind == MVMR)
        op.out[OUT] =
            test_view(test_output("out", out_rows, f.out_cols, out_dtype, check), padding, shift);
    if (kind == VVOR)
        op.out[OUT] = test_view(test_output("out", w_rows, w_cols, out_dtype, check), padding, 0);
    if (kind == BACKWARD) {
        const int64_t wanted = 1 + test_rng_below(rng, 7);
        if (wanted & 1)
            op.out[GRAD_X] = test_view(test_output("grad_x", x_rows, f.x_cols, out_dtype, check),
                                       padding, shift);
        if (wanted & 2)
            op.out[GRAD_W] = test_view(
                test_output("grad_w", w_rows, w_cols, test_sum_dtype(dtype), check), padding, 0);
        if (wanted & 4)
            op.out[GRAD_S] =
                test_output("grad_s", t->num_triplets, 1, test_sum_dtype(dtype), check);
    }
    for (int i = 0; i < TEST_MAX_MATRICES; ++i)
        op.out[i].unit = unit;

    op.what = test_describe(text, "%s, %s%s, %lld groups%s%s%s",
                            kind == MVMR   ? "mvmr"
                            : kind == VVOR ? "vvor"
                                           : "mvmr backward",
                            shape->name, plan == FILLED ? " (filled)" : "", (long long)f.groups,
                            f.diagonal ? ", diagonal" : "", f.transposed ? ", transposed" : "",
                            f.reversed ? ", reversed" : "");
    c.plan = plan_of(d, shape, &r, plan, &options, op.what);
    op.scratch_bytes = spops_triplets_scratch_bytes(c.plan);
    test_operator_run(d, &op);
    spops_triplets_destroy(c.plan);
    relation_destroy(&r);
}

static const int operations[] = {MVMR, VVOR, BACKWARD};

CaseTest(mvmr, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, operations, NUM_OPERATIONS),
         .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    const int rounds = test_quick() ? 2 : 6;
    for (int i = 0; i < NUM_SHAPES * rounds; ++i) {
        const uint64_t stream = (case_number(p) << 32) + (uint64_t)i;
        test_rng rng = test_rng_make(stream);
        check_case(&d, &shapes[i % NUM_SHAPES], (operation)p->op, (spops_dtype)p->dtype, stream,
                   &rng);
    }
    test_close(&d);
}

// ---- Particular promises ------------------------------------------------------------------------

// A small relation with a plan, rows and matrices that are right until a test bends one.
typedef struct small_case {
    test_device d;
    int32_t *out, *in, *matrix;
    spops_triplets *plan, *forward_only, *reserved;
    guarded x, w, s, y, g, grad_x, grad_w, grad_s;
} small_case;

enum { ROWS_OUT = 4, ROWS_IN = 5, MATRICES = 3, TRIPLETS = 7, X_COLS = 4, OUT_COLS = 6 };
static const int32_t small_out[TRIPLETS] = {3, 0, 0, 1, 3, 3, 0};
static const int32_t small_in[TRIPLETS] = {4, 1, 0, 2, 4, 0, 1};
static const int32_t small_matrix[TRIPLETS] = {2, 0, 2, 0, 2, 0, 0};
static const spops_triplets_shape small_shape = {ROWS_OUT, ROWS_IN, MATRICES, TRIPLETS};

static guarded small_matrix_of(small_case *c, const char *name, int64_t rows, int64_t cols,
                               spops_dtype dtype, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    guarded m = guarded_create(c->d.backend, name, rows, cols, 0, 0, dtype);
    free(guarded_fill(&m, &rng, VALUES_EXACT, false, 1));
    guarded_upload(&m);
    return m;
}

static bool small_open(small_case *c, int backend)
{
    spops_triplets_options options = spops_triplets_options_default();
    memset(c, 0, sizeof *c);
    if (!test_open(&c->d, (spops_backend_kind)backend, LAUNCH_DEFAULT)) return false;
    c->out = test_upload_i32(&c->d, small_out, TRIPLETS);
    c->in = test_upload_i32(&c->d, small_in, TRIPLETS);
    c->matrix = test_upload_i32(&c->d, small_matrix, TRIPLETS);
    test_expect_ok(c->d.ctx,
                   spops_triplets_create(c->d.ctx, &small_shape, c->out, c->in, c->matrix, NULL,
                                         &c->forward_only),
                   "forward only");
    options.backward = 1;
    test_expect_ok(
        c->d.ctx,
        spops_triplets_create(c->d.ctx, &small_shape, c->out, c->in, c->matrix, &options, &c->plan),
        "plan");
    test_expect_ok(c->d.ctx, spops_triplets_reserve(c->d.ctx, &small_shape, &options, &c->reserved),
                   "reserved");
    c->x = small_matrix_of(c, "x", ROWS_IN, X_COLS, SPOPS_DTYPE_F32, 1);
    c->w = small_matrix_of(c, "w", MATRICES * X_COLS, OUT_COLS, SPOPS_DTYPE_F32, 2);
    c->s = small_matrix_of(c, "s", TRIPLETS, 1, SPOPS_DTYPE_F32, 3);
    c->y = small_matrix_of(c, "out", ROWS_OUT, OUT_COLS, SPOPS_DTYPE_F32, 4);
    c->g = small_matrix_of(c, "grad_out", ROWS_OUT, OUT_COLS, SPOPS_DTYPE_F32, 5);
    c->grad_x = small_matrix_of(c, "grad_x", ROWS_IN, X_COLS, SPOPS_DTYPE_F32, 6);
    c->grad_w = small_matrix_of(c, "grad_w", MATRICES * X_COLS, OUT_COLS, SPOPS_DTYPE_F32, 7);
    c->grad_s = small_matrix_of(c, "grad_s", TRIPLETS, 1, SPOPS_DTYPE_F32, 8);
    return true;
}

static void small_close(small_case *c)
{
    guarded *all[] = {&c->x, &c->w, &c->s, &c->y, &c->g, &c->grad_x, &c->grad_w, &c->grad_s};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        guarded_destroy(all[i]);
    spops_triplets_destroy(c->plan);
    spops_triplets_destroy(c->forward_only);
    spops_triplets_destroy(c->reserved);
    test_free(&c->d, c->out), test_free(&c->d, c->in), test_free(&c->d, c->matrix);
    test_close(&c->d);
}

static void values_of(const guarded *m, double *values)
{
    for (int64_t i = 0; i < m->view.rows * m->view.cols; ++i)
        values[i] = guarded_get(m, i / m->view.cols, i % m->view.cols);
}

// accumulate adds to what is there, exactly once.
BackendTest(mvmr, accumulates)
{
    small_case c;
    double before[MATRICES * X_COLS * OUT_COLS], once[MATRICES * X_COLS * OUT_COLS];
    spops_mvmr_options options = spops_mvmr_options_default();
    if (!small_open(&c, p->backend)) return;
    spops_context *ctx = c.d.ctx;
    for (int call = 0; call < 2; ++call) {
        guarded *result = call == 0 ? &c.y : &c.grad_w;
        const int64_t n = result->view.rows * result->view.cols;
        values_of(result, before);
        for (int accumulate = 1; accumulate >= 0; --accumulate) {
            options.accumulate = accumulate;
            test_expect_ok(ctx,
                           call == 0 ? spops_mvmr_execute(ctx, c.plan, c.x.view, c.w.view, NULL,
                                                          &options, c.y.view)
                                     : spops_vvor_execute(ctx, c.plan, c.x.view, c.g.view, NULL,
                                                          &options, c.grad_w.view),
                           "accumulates");
            test_wait(&c.d);
            guarded_download(result);
            if (accumulate) values_of(result, once);
        }
        bool any = false;
        for (int64_t i = 0; i < n; ++i) {
            const double sum = guarded_get(result, i / result->view.cols, i % result->view.cols);
            cr_assert(once[i] == before[i] + sum, "%s, element %lld: %g + %g became %g",
                      result->name, (long long)i, before[i], sum, once[i]);
            any = any || sum != 0.0;
        }
        cr_assert(any, "%s: every sum is 0", result->name);
    }
    small_close(&c);
}

static spops_triplets_info info_of(test_device *d, const spops_triplets *plan,
                                   spops_status expected)
{
    spops_triplets_info info = spops_triplets_info_default();
    const spops_status status = spops_triplets_get_info_sync(d->ctx, plan, &info);
    cr_assert(status == expected, "info: %s: %s", spops_status_name(status),
              spops_last_error(d->ctx));
    return info;
}

// Rows from a number on that only the device knows are left alone; the others are as without it.
BackendTest(mvmr, leaves_rows_alone)
{
    static const int32_t counts[] = {2, 0, -3, ROWS_OUT, ROWS_OUT + 9};
    static const int32_t different[ROWS_OUT] = {3, 0, 2, 1};
    small_case c;
    double all[ROWS_OUT * OUT_COLS];
    const spops_triplets_shape half = {ROWS_OUT, ROWS_IN, MATRICES, ROWS_OUT - 1};
    spops_mvmr_options options = spops_mvmr_options_default();
    spops_triplets *direct = NULL;
    if (!small_open(&c, p->backend)) return;
    spops_context *ctx = c.d.ctx;
    int32_t *num = test_upload_i32(&c.d, counts, 5);
    int32_t *out = test_upload_i32(&c.d, different, ROWS_OUT);
    test_expect_ok(ctx, spops_triplets_create(ctx, &half, out, c.in, c.matrix, NULL, &direct),
                   "direct");
    cr_assert(info_of(&c.d, direct, SPOPS_STATUS_OK).direct == 1);
    for (int which = 0; which < 2; ++which) {
        const spops_triplets *plan = which == 0 ? c.plan : direct;
        for (int i = -1; i < 5; ++i) {
            guarded_poison(&c.y, 0xa5);
            guarded_upload(&c.y);
            options.num_rows = i < 0 ? NULL : num + i;
            test_expect_ok(
                ctx, spops_mvmr_execute(ctx, plan, c.x.view, c.w.view, NULL, &options, c.y.view),
                "leaves rows alone");
            test_wait(&c.d);
            guarded_download(&c.y);
            if (i < 0) values_of(&c.y, all);
            for (int64_t e = 0; e < ROWS_OUT * OUT_COLS && i >= 0; ++e) {
                const bool written = e / OUT_COLS < counts[i];
                const unsigned char *is = c.y.host + c.y.first + 4 * e;
                const unsigned char *was = c.y.sent + c.y.first + 4 * e;
                cr_assert(written ? guarded_get(&c.y, e / OUT_COLS, e % OUT_COLS) == all[e]
                                  : memcmp(is, was, 4) == 0,
                          "plan %d, %d rows: element %lld", which, counts[i], (long long)e);
            }
        }
    }
    spops_triplets_destroy(direct);
    test_free(&c.d, num), test_free(&c.d, out);
    small_close(&c);
}

// Factors of f32 may be rounded to tf32, and no more than that: 11 bits of each, to nearest.
BackendTest(mvmr, rounds_to_tf32)
{
    enum { N = 150, X_WIDTH = 40, OUT_WIDTH = 72 };
    static const int32_t offsets[] = {0, 100, N};
    static int32_t rows[N], matrix[N];
    const ref_mvmr_form form = {X_WIDTH, OUT_WIDTH, 1, false, false, false};
    const ref_triplets triplets = {N, N, 2, N, rows, rows, matrix};
    const double u = 0x1p-11, product = 2 * u + u * u; // of a rounded product
    test_device d;
    test_rng rng = test_rng_make(11);
    spops_triplets *plan = NULL;
    spops_triplets_options options = spops_triplets_options_default();
    spops_mvmr_options math = spops_mvmr_options_default();
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int32_t r = 0; r < N; ++r)
        rows[r] = r, matrix[r] = r >= offsets[1];
    int32_t *o = test_upload_i32(&d, offsets, 3);
    options.backward = 1;
    math.math = SPOPS_MATH_TF32;
    test_expect_ok(d.ctx, spops_triplets_create_from_offsets(d.ctx, 2, o, &options, &plan), "plan");
    guarded x = guarded_create(d.backend, "x", N, X_WIDTH, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d.backend, "w", 2 * X_WIDTH, OUT_WIDTH, 0, 0, SPOPS_DTYPE_F32);
    guarded g = guarded_create(d.backend, "g", N, OUT_WIDTH, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", N, OUT_WIDTH, 0, 0, SPOPS_DTYPE_F32);
    guarded dw = guarded_create(d.backend, "dw", 2 * X_WIDTH, OUT_WIDTH, 0, 0, SPOPS_DTYPE_F32);
    double *xs = guarded_fill(&x, &rng, VALUES_RANDOM, false, 1);
    double *ws = guarded_fill(&w, &rng, VALUES_RANDOM, false, 1);
    double *gs = guarded_fill(&g, &rng, VALUES_RANDOM, false, 1);
    guarded_upload(&x), guarded_upload(&w), guarded_upload(&g);
    test_expect_ok(d.ctx, spops_mvmr_execute(d.ctx, plan, x.view, w.view, NULL, &math, out.view),
                   "mvmr");
    test_expect_ok(d.ctx, spops_vvor_execute(d.ctx, plan, x.view, g.view, NULL, &math, dw.view),
                   "vvor");
    test_wait(&d);
    for (int call = 0; call < 2; ++call) {
        guarded *result = call == 0 ? &out : &dw;
        const int64_t n = result->view.rows * result->view.cols;
        ref_tensor expected = ref_tensor_create(result->view.rows, result->view.cols);
        double *bounds = (double *)calloc((size_t)n, sizeof *bounds);
        if (call == 0)
            ref_mvmr(&triplets, &form, xs, ws, NULL, &expected);
        else
            ref_vvor(&triplets, &form, xs, gs, NULL, &expected);
        for (int64_t i = 0; i < n; ++i)
            bounds[i] = (product + expected.roundings[i] * 0x1p-22) * expected.scale[i];
        guarded_download(result);
        guarded_check_bounds(result, &expected, bounds, "tf32");
        ref_tensor_destroy(&expected);
        free(bounds);
    }
    free(xs), free(ws), free(gs);
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&g);
    guarded_destroy(&out), guarded_destroy(&dw);
    spops_triplets_destroy(plan);
    test_free(&d, o);
    test_close(&d);
}

// Gradients of matrices past the range of f16: rows of f16, sums in f32.
BackendTest(mvmr, sums_beyond_f16)
{
    enum { N = 300 };
    static const int32_t offsets[] = {0, N};
    test_device d;
    spops_triplets *plan = NULL;
    spops_triplets_options options = spops_triplets_options_default();
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    int32_t *o = test_upload_i32(&d, offsets, 2);
    options.backward = 1;
    test_expect_ok(d.ctx, spops_triplets_create_from_offsets(d.ctx, 1, o, &options, &plan), "plan");
    guarded x = guarded_create(d.backend, "x", N, 16, 0, 0, SPOPS_DTYPE_F16);
    guarded g = guarded_create(d.backend, "g", N, 16, 0, 0, SPOPS_DTYPE_F16);
    guarded wide = guarded_create(d.backend, "f32", 16, 16, 0, 0, SPOPS_DTYPE_F32);
    guarded narrow = guarded_create(d.backend, "f16", 16, 16, 0, 0, SPOPS_DTYPE_F16);
    for (int64_t i = 0; i < N * 16; ++i)
        guarded_set(&x, i / 16, i % 16, 32.0), guarded_set(&g, i / 16, i % 16, 64.0);
    guarded_upload(&x), guarded_upload(&g);
    test_expect_ok(d.ctx, spops_vvor_execute(d.ctx, plan, x.view, g.view, NULL, NULL, wide.view),
                   "f32");
    test_expect_ok(d.ctx, spops_vvor_execute(d.ctx, plan, x.view, g.view, NULL, NULL, narrow.view),
                   "f16");
    test_wait(&d);
    guarded_download(&wide), guarded_download(&narrow);
    for (int64_t i = 0; i < 16 * 16; ++i) {
        cr_assert(guarded_get(&wide, i / 16, i % 16) == N * 2048.0, "element %lld", (long long)i);
        cr_assert(isinf(guarded_get(&narrow, i / 16, i % 16)), "element %lld", (long long)i);
    }
    guarded_destroy(&x), guarded_destroy(&g), guarded_destroy(&wide), guarded_destroy(&narrow);
    spops_triplets_destroy(plan);
    test_free(&d, o);
    test_close(&d);
}

// Triplets out of range are left out and counted; more than fit set the flag; a plan can be filled
// again.
BackendTest(mvmr, fills)
{
    static const int32_t bad_out[TRIPLETS] = {3, 4, 0, 1, -1, 3, 0};
    static const int32_t bad_in[TRIPLETS] = {4, 1, 5, 2, 4, 0, 1};
    static const int32_t bad_matrix[TRIPLETS] = {2, 0, 2, 0, 2, 3, -7};
    static const int32_t counts[] = {TRIPLETS, TRIPLETS + 1, 0, -5, 2};
    static const int32_t wild[MATRICES + 1] = {2, 100, -50, 4};
    static const int32_t some[MATRICES + 1] = {1, 3, 3, 4};
    small_case c;
    double expected[ROWS_OUT * OUT_COLS];
    if (!small_open(&c, p->backend)) return;
    spops_context *ctx = c.d.ctx;
    int32_t *num = test_upload_i32(&c.d, counts, 5);
    int32_t *out = test_upload_i32(&c.d, bad_out, TRIPLETS);
    int32_t *in = test_upload_i32(&c.d, bad_in, TRIPLETS);
    int32_t *matrix = test_upload_i32(&c.d, bad_matrix, TRIPLETS);
    int32_t *offsets = test_upload_i32(&c.d, wild, MATRICES + 1);
    int32_t *groups = test_upload_i32(&c.d, some, MATRICES + 1);
    spops_triplets_info info;

    info = info_of(&c.d, c.reserved, SPOPS_STATUS_OK);
    cr_assert(info.num_triplets == 0 && info.max_triplets == TRIPLETS);
    test_expect_ok(ctx, spops_triplets_update(ctx, c.reserved, num, out, in, matrix),
                   "bad numbers");
    info = info_of(&c.d, c.reserved, SPOPS_STATUS_OK);
    cr_assert(info.num_triplets == 2 && info.num_dropped == 5, "%lld kept, %lld dropped",
              (long long)info.num_triplets, (long long)info.num_dropped);
    // Positions that no group has are no triplets, so that none of them was left out; a triplet of a
    // group whose row is out of range was.
    test_expect_ok(ctx, spops_triplets_update_offsets(ctx, c.reserved, groups, c.out, c.in),
                   "groups");
    info = info_of(&c.d, c.reserved, SPOPS_STATUS_OK);
    cr_assert(info.num_triplets == 3 && info.num_dropped == 0, "%lld kept, %lld dropped",
              (long long)info.num_triplets, (long long)info.num_dropped);
    test_expect_ok(ctx, spops_triplets_update_offsets(ctx, c.reserved, groups, out, in),
                   "bad rows");
    info = info_of(&c.d, c.reserved, SPOPS_STATUS_OK);
    cr_assert(info.num_triplets == 1 && info.num_dropped == 2, "%lld kept, %lld dropped",
              (long long)info.num_triplets, (long long)info.num_dropped);
    // Of no use, but harmless.
    test_expect_ok(ctx, spops_triplets_update_offsets(ctx, c.reserved, offsets, NULL, NULL),
                   "wild offsets");
    info = info_of(&c.d, c.reserved, SPOPS_STATUS_OK);
    cr_assert(info.num_triplets <= TRIPLETS);
    test_expect_ok(ctx,
                   spops_mvmr_execute(ctx, c.reserved, c.x.view, c.w.view, NULL, NULL, c.y.view),
                   "wild offsets");
    for (int i = 2; i < 4; ++i) {
        test_expect_ok(ctx, spops_triplets_update(ctx, c.reserved, num + i, c.out, c.in, c.matrix),
                       "none");
        info = info_of(&c.d, c.reserved, SPOPS_STATUS_OK);
        cr_assert(info.num_triplets == 0, "%lld triplets", (long long)info.num_triplets);
    }
    test_expect_ok(ctx, spops_triplets_update(ctx, c.reserved, num + 1, c.out, c.in, c.matrix),
                   "too many");
    info = info_of(&c.d, c.reserved, SPOPS_STATUS_CAPACITY_EXCEEDED);
    cr_assert(info.overflow == 1 && info.num_triplets == TRIPLETS);
    test_expect_ok(ctx, spops_triplets_update(ctx, c.reserved, num, c.out, c.in, c.matrix), "all");
    info = info_of(&c.d, c.reserved, SPOPS_STATUS_OK);
    cr_assert(info.overflow == 0 && info.num_nonempty == 2 && info.longest == 4 &&
              info.num_dropped == 0);

    // The same bits as the plan that was created.
    for (int i = 0; i < 2; ++i) {
        test_expect_ok(ctx,
                       spops_mvmr_execute(ctx, i == 0 ? c.plan : c.reserved, c.x.view, c.w.view,
                                          &c.s.view, NULL, c.y.view),
                       "filled");
        test_wait(&c.d);
        guarded_download(&c.y);
        if (i == 0) values_of(&c.y, expected);
    }
    for (int64_t i = 0; i < ROWS_OUT * OUT_COLS; ++i)
        cr_assert(guarded_get(&c.y, i / OUT_COLS, i % OUT_COLS) == expected[i]);

    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_expect(NULL, spops_triplets_update(NULL, c.reserved, num, out, in, matrix), invalid, "ctx",
                "ctx NULL");
    test_expect(ctx, spops_triplets_update(ctx, NULL, num, out, in, matrix), invalid,
                "triplets_update: triplets is NULL", "plan NULL");
    test_expect(ctx, spops_triplets_update(ctx, c.plan, num, out, in, matrix), invalid,
                "not made by triplets_reserve", "created plan");
    test_expect(ctx, spops_triplets_update(ctx, c.reserved, NULL, out, in, matrix), invalid,
                "num_triplets is NULL", "count NULL");
    test_expect(ctx, spops_triplets_update(ctx, c.reserved, num, out, in, NULL), invalid,
                "matrices is NULL", "matrices NULL");
    test_expect(ctx, spops_triplets_update_offsets(ctx, c.reserved, NULL, NULL, NULL), invalid,
                "offsets is NULL", "offsets NULL");
    test_expect(ctx, spops_triplets_update_offsets(ctx, c.plan, offsets, NULL, NULL), invalid,
                "not made by triplets_reserve", "created plan");
    test_free(&c.d, num), test_free(&c.d, out), test_free(&c.d, in), test_free(&c.d, matrix);
    test_free(&c.d, offsets), test_free(&c.d, groups);
    small_close(&c);
}

// One triplet for each output, on the CPU: blocks of any number of rows make the same bits, so that
// it does not matter whether the plan knows that.
Test(mvmr, same_bits_however_made)
{
    enum { N = 600, IN = 33, WEIGHTS = 5, MOST = 70 };
    const spops_triplets_shape shape = {N, N, WEIGHTS, N};
    const int32_t num = N;
    spops_triplets *plans[2] = {NULL, NULL};
    int32_t out[N], in[N], matrix[N];
    test_rng rng = test_rng_make(71);
    test_device d;

    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < N; ++i) {
        out[i] = i;
        in[i] = (i * 7) % N;
        matrix[i] = (int32_t)test_rng_below(&rng, WEIGHTS);
    }
    int32_t *count = test_upload_i32(&d, &num, 1), *outs = test_upload_i32(&d, out, N);
    int32_t *ins = test_upload_i32(&d, in, N), *matrices = test_upload_i32(&d, matrix, N);
    test_expect_ok(d.ctx,
                   spops_triplets_create(d.ctx, &shape, outs, ins, matrices, NULL, &plans[0]),
                   "create");
    test_expect_ok(d.ctx, spops_triplets_reserve(d.ctx, &shape, NULL, &plans[1]), "reserve");
    test_expect_ok(d.ctx, spops_triplets_update(d.ctx, plans[1], count, outs, ins, matrices),
                   "set");
    guarded x = guarded_create(d.backend, "x", N, IN, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&x, &rng, VALUES_RANDOM, false, 0));
    guarded_upload(&x);
    for (int64_t cols = 1; cols <= MOST; cols += 3) {
        guarded w = guarded_create(d.backend, "w", WEIGHTS * IN, cols, 0, 0, SPOPS_DTYPE_F32);
        guarded y = guarded_create(d.backend, "out", N, cols, 0, 0, SPOPS_DTYPE_F32);
        unsigned char *first = NULL;
        free(guarded_fill(&w, &rng, VALUES_RANDOM, false, 0));
        guarded_upload(&w);
        for (int i = 0; i < 2; ++i) {
            test_expect_ok(d.ctx,
                           spops_mvmr_execute(d.ctx, plans[i], x.view, w.view, NULL, NULL, y.view),
                           "execute");
            test_wait(&d);
            guarded_download(&y);
            if (i == 0)
                first = guarded_elements(&y);
            else
                guarded_check_bits(&y, first, "set, after create");
        }
        free(first);
        guarded_destroy(&w), guarded_destroy(&y);
    }
    guarded_destroy(&x);
    spops_triplets_destroy(plans[0]), spops_triplets_destroy(plans[1]);
    test_free(&d, count), test_free(&d, outs), test_free(&d, ins), test_free(&d, matrices);
    test_close(&d);
}

// Sums are made in the result where it is f32, holds nothing and has whole vectors of columns, else apart:
// with accumulate, rows that are left alone, odd columns. Strips of columns are narrower where threads
// are many. None of this changes bits. On the CPU.
enum { APART_ROWS = 1300, APART_IN = 136, APART_TAPS = 6, APART_WRITTEN = 700 };

typedef struct apart_case {
    test_device d;
    spops_context *threads; // with eight
    spops_triplets *plans[2];
    guarded x, w, y;
    unsigned char *first; // its bits
} apart_case;

// Every row with two of its neighbours, or with one alone, so that tiles are direct.
static spops_triplets *apart_plan(spops_context *ctx, bool direct, test_rng *rng)
{
    const int64_t each = direct ? 1 : 2, n = each * APART_ROWS;
    const spops_triplets_shape shape = {APART_ROWS, APART_ROWS, APART_TAPS, n};
    int32_t *out = numbers(n), *in = numbers(n), *matrix = numbers(n);
    spops_triplets *plan = NULL;

    for (int64_t t = 0; t < n; ++t) {
        out[t] = (int32_t)(direct ? t * 7 % APART_ROWS : t / each);
        in[t] = (int32_t)((out[t] + test_rng_below(rng, 9)) % APART_ROWS);
        matrix[t] = (int32_t)test_rng_below(rng, APART_TAPS);
    }
    test_expect_ok(ctx, spops_triplets_create(ctx, &shape, out, in, matrix, NULL, &plan), "plan");
    free(out), free(in), free(matrix);
    return plan;
}

static void apart_run(apart_case *c, int plan, bool accumulate, const int32_t *num_rows,
                      bool threads)
{
    spops_context *ctx = threads ? c->threads : c->d.ctx;
    spops_mvmr_options options = spops_mvmr_options_default();

    options.accumulate = accumulate;
    options.num_rows = num_rows;
    for (int64_t r = 0; r < APART_ROWS; ++r)
        for (int64_t col = 0; col < c->y.view.cols; ++col)
            guarded_set(&c->y, r, col, accumulate || num_rows != NULL ? 0.0 : 1e30);
    guarded_upload(&c->y);
    test_expect_ok(
        ctx,
        spops_mvmr_execute(ctx, c->plans[plan], c->x.view, c->w.view, NULL, &options, c->y.view),
        "execute");
    guarded_download(&c->y);
}

static void apart_columns(apart_case *c, int plan, int64_t cols, test_rng *rng)
{
    const int32_t written = APART_WRITTEN;

    c->w = guarded_create(c->d.backend, "w", APART_TAPS * APART_IN, cols, 0, 0, SPOPS_DTYPE_F32);
    c->y = guarded_create(c->d.backend, "out", APART_ROWS, cols, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&c->w, rng, VALUES_RANDOM, false, 0));
    guarded_upload(&c->w);
    apart_run(c, plan, false, NULL, false);
    c->first = guarded_elements(&c->y);
    apart_run(c, plan, true, NULL, false);
    guarded_check_bits(&c->y, c->first, "added to zeros");
    apart_run(c, plan, false, NULL, true);
    guarded_check_bits(&c->y, c->first, "eight threads");
    apart_run(c, plan, true, NULL, true);
    guarded_check_bits(&c->y, c->first, "added to zeros by eight threads");
    apart_run(c, plan, false, &written, false);
    for (int64_t i = (int64_t)written * cols; i < APART_ROWS * cols; ++i)
        ((float *)(void *)c->first)[i] = 0.0f;
    guarded_check_bits(&c->y, c->first, "rows left alone");
    free(c->first);
    guarded_destroy(&c->w), guarded_destroy(&c->y);
}

Test(mvmr, same_bits_wherever_summed)
{
    static const int64_t columns[] = {16, 33, 48, 128, 144, 272, 300};
    spops_context_options options = spops_context_options_default();
    test_rng rng = test_rng_make(72);
    apart_case c;

    memset(&c, 0, sizeof c);
    if (!test_open(&c.d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    options.backend = SPOPS_BACKEND_CPU;
    options.num_threads = 8;
    cr_assert(spops_context_create(&options, &c.threads) == SPOPS_STATUS_OK);
    c.x = guarded_create(c.d.backend, "x", APART_ROWS, APART_IN, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&c.x, &rng, VALUES_RANDOM, false, 0));
    guarded_upload(&c.x);
    for (int plan = 0; plan < 2; ++plan) {
        c.plans[plan] = apart_plan(c.d.ctx, plan == 1, &rng);
        for (size_t i = 0; i < sizeof columns / sizeof *columns; ++i)
            apart_columns(&c, plan, columns[i], &rng);
        spops_triplets_destroy(c.plans[plan]);
    }
    guarded_destroy(&c.x);
    spops_context_destroy(c.threads);
    test_close(&c.d);
}

// ---- Refusals -----------------------------------------------------------------------------------

BackendTest(mvmr, refuses_plans)
{
    small_case c;
    if (!small_open(&c, p->backend)) return;
    spops_context *ctx = c.d.ctx;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_triplets *plan;
    spops_triplets_options options;
    spops_triplets_shape shape;

#define REFUSED(fragment, call)                                                                    \
    do {                                                                                           \
        plan = c.plan;                                                                             \
        options = spops_triplets_options_default();                                                \
        shape = small_shape;                                                                       \
        const spops_status got = (call);                                                           \
        cr_assert(strncmp(spops_last_error(ctx), "triplets_", 9) == 0, "%s", #call);               \
        test_expect(ctx, got, invalid, (fragment), #call);                                         \
        cr_assert(plan == NULL, "%s left its output", #call);                                      \
    } while (0)
#define CREATE(out, in, matrix) spops_triplets_create(ctx, &shape, out, in, matrix, &options, &plan)

    test_expect(NULL, spops_triplets_create(NULL, &small_shape, c.out, c.in, c.matrix, NULL, &plan),
                invalid, "ctx", "ctx NULL");
    test_expect(ctx, spops_triplets_create(ctx, &small_shape, c.out, c.in, c.matrix, NULL, NULL),
                invalid, "out is NULL", "out NULL");
    REFUSED("shape is NULL",
            spops_triplets_create(ctx, NULL, c.out, c.in, c.matrix, &options, &plan));
    REFUSED("num_triplets is 2147483648",
            (shape.num_triplets = (int64_t)1 << 31, CREATE(c.out, c.in, c.matrix)));
    REFUSED("out_rows[0] is 3, expected 0 to 2",
            (shape.num_out = 3, CREATE(c.out, c.in, c.matrix)));
    REFUSED("in_rows[0] is 4, expected 0 to 3", (shape.num_in = 4, CREATE(c.out, c.in, c.matrix)));
    REFUSED("matrices[0] is 2, expected 0 to 1",
            (shape.num_matrices = 2, CREATE(c.out, c.in, c.matrix)));
    REFUSED("num_matrices is 0", (shape.num_matrices = 0, CREATE(c.out, c.in, c.matrix)));
    REFUSED("num_out is 4, expected at least 7", CREATE(NULL, c.in, c.matrix));
    REFUSED("num_in is 5, expected at least 7", CREATE(c.out, NULL, c.matrix));
    REFUSED("matrices[1] is 0, less than matrices[0] = 2",
            (options.matrix_order = SPOPS_KEYS_SORTED, CREATE(c.out, c.in, c.matrix)));
    REFUSED("struct_size", (options.struct_size = 1000, CREATE(c.out, c.in, c.matrix)));
    REFUSED("options->tile is 1000, expected that of a kernel for this device",
            (options.tile = 1000, CREATE(c.out, c.in, c.matrix)));
    REFUSED("options->tile is -1, expected that of a kernel for this device",
            (options.tile = -1, spops_triplets_reserve(ctx, &shape, &options, &plan)));
    REFUSED("reserved is 1", (options.reserved = 1, CREATE(c.out, c.in, c.matrix)));
    REFUSED("matrix_order is 1", (options.matrix_order = SPOPS_KEYS_SORTED,
                                  spops_triplets_reserve(ctx, &shape, &options, &plan)));
    REFUSED("num_out is -1",
            (shape.num_out = -1, spops_triplets_reserve(ctx, &shape, &options, &plan)));
    REFUSED("offsets[0] is 2",
            spops_triplets_create_from_offsets(ctx, MATRICES, c.matrix, &options, &plan));
    REFUSED("num_matrices is -3",
            spops_triplets_create_from_offsets(ctx, -3, c.matrix, &options, &plan));
#undef CREATE
#undef REFUSED
    small_close(&c);
}

// Outputs are untouched after a refusal.
static void expect_refused(small_case *c, spops_status status, spops_status expected,
                           const char *fragment, const char *what)
{
    guarded *outputs[] = {&c->y, &c->grad_x, &c->grad_w, &c->grad_s};
    test_expect(c->d.ctx, status, expected, fragment, what);
    test_wait(&c->d);
    for (int i = 0; i < 4; ++i)
        guarded_check_untouched(outputs[i], what);
}

static spops_matrix with_cols(spops_matrix m, int64_t cols)
{
    m.cols = cols;
    return m;
}
// What the rows cannot say; tests/test_operators.c has the faults of arguments.
BackendTest(mvmr, refuses_calls)
{
    small_case c;
    if (!small_open(&c, p->backend)) return;
    spops_context *ctx = c.d.ctx;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const spops_matrix x = c.x.view, w = c.w.view, y = c.y.view, g = c.g.view, s = c.s.view,
                       gx = c.grad_x.view, gw = c.grad_w.view, gs = c.grad_s.view;
    spops_mvmr_options options;

#define REFUSED(fragment, call)                                                                    \
    do {                                                                                           \
        options = spops_mvmr_options_default();                                                    \
        expect_refused(&c, (call), invalid, (fragment), #call);                                    \
    } while (0)
#define MVMR_OF(x, w, s, y) spops_mvmr_execute(ctx, c.plan, (x), (w), (s), &options, (y))
#define VVOR_OF(x, g, s, y) spops_vvor_execute(ctx, c.plan, (x), (g), (s), &options, (y))
#define BACKWARD_OF(plan, g, x, w, s, gx, gw, gs)                                                  \
    spops_mvmr_execute_backward(ctx, (plan), (g), (x), (w), (s), &options, (gx), (gw), (gs))

    test_expect(NULL, spops_mvmr_execute(NULL, c.plan, x, w, NULL, NULL, y), invalid, "ctx",
                "ctx NULL");
    REFUSED("x has 0 columns", MVMR_OF(with_cols(x, 0), w, NULL, y));
    REFUSED("out has 0 columns", MVMR_OF(x, w, NULL, with_cols(y, 0)));
    REFUSED("x has 4294967296 columns", MVMR_OF(with_cols(x, (int64_t)1 << 32), w, NULL, y));
    REFUSED("expected a multiple of groups = 3", (options.groups = 3, MVMR_OF(x, w, NULL, y)));
    REFUSED("expected a multiple of groups = 4", (options.groups = 4, MVMR_OF(x, w, NULL, y)));
    REFUSED("the matrices are diagonal", (options.diagonal = 1, MVMR_OF(x, w, NULL, y)));
    REFUSED("groups is 2", (options.diagonal = 1, options.groups = 2, MVMR_OF(x, w, NULL, y)));
    REFUSED("struct_size is 3", (options.struct_size = 3, MVMR_OF(x, w, NULL, y)));
    REFUSED("backward = 0", (options.reversed = options.transposed = 1,
                             spops_mvmr_execute(ctx, c.forward_only, g, w, NULL, &options, gx)));

    REFUSED("vvor_execute: the plan was built with backward = 0",
            spops_vvor_execute(ctx, c.forward_only, x, g, NULL, &options, gw));
    REFUSED("g has 0 columns", VVOR_OF(x, with_cols(g, 0), NULL, gw));

    REFUSED("mvmr_execute_backward: the plan was built with backward = 0",
            BACKWARD_OF(c.forward_only, g, x, w, NULL, &gx, NULL, NULL));
#undef BACKWARD_OF
#undef VVOR_OF
#undef MVMR_OF
#undef REFUSED
    // All of it still works.
    test_expect_ok(ctx, spops_mvmr_execute(ctx, c.plan, x, w, &s, NULL, y), "after the errors");
    test_expect_ok(ctx, spops_mvmr_execute_backward(ctx, c.plan, g, x, w, &s, NULL, &gx, &gw, &gs),
                   "after the errors");
    test_wait(&c.d);
    small_close(&c);
}

// Scratch: a plan with pieces asks for it, a context without it refuses, and matrices wider than
// the plan was told are refused.
BackendTest(mvmr, needs_scratch)
{
    enum { N = 20000 };
    static const int32_t offsets[] = {0, N};
    test_device d;
    spops_triplets *plan = NULL;
    spops_triplets_options options = spops_triplets_options_default();
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    int32_t *o = test_upload_i32(&d, offsets, 2);
    options.backward = 1;
    options.max_matrix_elements = 4;
    test_expect_ok(d.ctx, spops_triplets_create_from_offsets(d.ctx, 1, o, &options, &plan), "plan");
    cr_assert(spops_triplets_scratch_bytes(plan) > 0 && spops_triplets_scratch_bytes(NULL) == 0);
    guarded x = guarded_create(d.backend, "x", N, 2, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d.backend, "w", 2, 2, 0, 0, SPOPS_DTYPE_F32);
    guarded wide = guarded_create(d.backend, "wide", N, 3, 0, 0, SPOPS_DTYPE_F32);
    guarded w_wide = guarded_create(d.backend, "w", 2, 3, 0, 0, SPOPS_DTYPE_F32);
    guarded_upload(&x), guarded_upload(&w), guarded_upload(&wide), guarded_upload(&w_wide);
    spops_context *other = test_context(&d, 1);
    test_expect(other, spops_vvor_execute(other, plan, x.view, x.view, NULL, NULL, w.view),
                SPOPS_STATUS_SCRATCH_TOO_SMALL, "vvor_execute", "no scratch");
    test_expect(d.ctx, spops_vvor_execute(d.ctx, plan, x.view, wide.view, NULL, NULL, w_wide.view),
                SPOPS_STATUS_INVALID_ARGUMENT, "max_matrix_elements = 4", "wide");
    test_wait(&d);
    guarded_check_untouched(&w, "no scratch"), guarded_check_untouched(&w_wide, "wide");
    test_expect_ok(other, spops_context_reserve(other, spops_triplets_scratch_bytes(plan)), "more");
    test_expect_ok(other, spops_vvor_execute(other, plan, x.view, x.view, NULL, NULL, w.view), "");
    test_wait(&d);
    spops_context_destroy(other);
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&wide), guarded_destroy(&w_wide);
    spops_triplets_destroy(plan);
    test_free(&d, o);
    test_close(&d);
}
