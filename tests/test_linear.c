// SPDX-License-Identifier: Apache-2.0
// Linear layers against FP64: forward with everything that follows the sum, and the three gradients;
// rows that only the device counts; residuals in place; a library of products; what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/convert.h"
#include "spops/linear.h"
#include "tests/ref/ref_sparseconv.h"
#include "tests/support/activation.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

enum { X, W, BIAS, SCALE, SHIFT, RESIDUAL }; // inputs, forward
enum { GRAD_SUM = BIAS };                    // backward, beside X and W
enum { OUT };
enum { GRAD_X, GRAD_W, GRAD_BIAS };

typedef struct linear_case {
    int64_t rows, in, out;
    bool w_transposed, tf32;
    ref_activation activation;
} linear_case;

// ---- The reference: a convolution with one tap that joins row to row ----------------------------

static double *turned(const double *w, int64_t rows, int64_t cols)
{
    double *t = (double *)malloc((size_t)(rows * cols + 1) * sizeof *t);
    cr_assert(t != NULL, "no memory");
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
            t[c * rows + r] = w[r * cols + c];
    return t;
}

static int32_t *identity(int64_t n)
{
    int32_t *table = (int32_t *)malloc((size_t)(n + 1) * sizeof *table);
    cr_assert(table != NULL, "no memory");
    for (int64_t i = 0; i < n; ++i)
        table[i] = (int32_t)i;
    return table;
}

static ref_sparseconv convolution(const linear_case *c, const int32_t *table, const double *x,
                                  const double *w)
{
    return (ref_sparseconv){.num_out = c->rows,
                            .num_in = c->rows,
                            .num_taps = 1,
                            .table = table,
                            .in_channels = c->in,
                            .out_channels = c->out,
                            .groups = 1,
                            .x = x,
                            .w = w};
}

static void reference_forward(void *user, const double *const *in, ref_tensor *const *out)
{
    const linear_case *c = (const linear_case *)user;
    int32_t *table = identity(c->rows);
    double *w = c->w_transposed ? turned(in[W], c->out, c->in) : turned(in[W], c->in, c->out);
    double *stored = c->w_transposed ? w : turned(w, c->out, c->in);
    const ref_sparseconv conv = convolution(c, table, in[X], stored);
    const ref_epilogue after = {in[BIAS], in[SCALE], in[SHIFT], in[RESIDUAL], c->activation};
    ref_sparseconv_forward(&conv, &after, out[OUT]);
    if (stored != w) free(stored);
    free(w), free(table);
}

static void reference_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const linear_case *c = (const linear_case *)user;
    int32_t *table = identity(c->rows);
    double *w = c->w_transposed ? turned(in[W], c->out, c->in) : NULL;
    const ref_sparseconv conv = convolution(c, table, in[X], c->w_transposed ? w : in[W]);
    ref_tensor grad_w = ref_tensor_create(c->in, c->out);

    ref_sparseconv_backward(&conv, in[GRAD_SUM], out[GRAD_X], &grad_w);
    for (int64_t a = 0; a < c->in && out[GRAD_W] != NULL; ++a)
        for (int64_t o = 0; o < c->out; ++o) {
            const int64_t from = a * c->out + o, to = c->w_transposed ? o * c->in + a : from;
            out[GRAD_W]->value[to] = grad_w.value[from];
            out[GRAD_W]->scale[to] = grad_w.scale[from];
            out[GRAD_W]->roundings[to] = grad_w.roundings[from];
        }
    for (int64_t i = 0; i < c->rows && out[GRAD_BIAS] != NULL; ++i)
        for (int64_t o = 0; o < c->out; ++o) {
            out[GRAD_BIAS]->value[o] += in[GRAD_SUM][i * c->out + o];
            out[GRAD_BIAS]->scale[o] += fabs(in[GRAD_SUM][i * c->out + o]);
            out[GRAD_BIAS]->roundings[o] += 1;
        }
    ref_tensor_destroy(&grad_w);
    free(w), free(table);
}

// ---- The calls ----------------------------------------------------------------------------------

static const float *vector_of(const spops_matrix *m)
{
    return m == NULL ? NULL : (const float *)m->data;
}

static spops_conv_layer layer_of(const linear_case *c)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.w_transposed = c->w_transposed;
    layer.activation = c->activation.kind;
    layer.activation_slope = c->activation.slope;
    layer.math = c->tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    return layer;
}

static spops_status run_forward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    spops_conv_layer layer = layer_of((const linear_case *)user);
    layer.bias = vector_of(in[BIAS]);
    layer.scale = vector_of(in[SCALE]);
    layer.shift = vector_of(in[SHIFT]);
    layer.residual = in[RESIDUAL];
    return spops_linear_execute(ctx, *in[X], *in[W], &layer, *out[OUT]);
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const spops_conv_layer layer = layer_of((const linear_case *)user);
    return spops_linear_execute_backward(
        ctx, *in[GRAD_SUM], *in[X], *in[W], &layer, out[GRAD_X], out[GRAD_W],
        out[GRAD_BIAS] == NULL ? NULL : (float *)out[GRAD_BIAS]->data);
}

// ---- Against the reference ----------------------------------------------------------------------

static const struct linear_size {
    int64_t rows, in, out;
} sizes[] = {{0, 3, 5},      {1, 1, 1},      {1, 8, 16},     {2, 33, 31},   {63, 16, 16},
             {64, 64, 64},   {65, 72, 40},   {127, 8, 128},  {128, 130, 7}, {129, 256, 24},
             {200, 96, 300}, {513, 5, 3},    {1000, 32, 32}, {2500, 8, 4},  {300, 264, 136},
             {40, 48, 560},  {5000, 16, 24}, {3000, 72, 64}, {0, 32, 64}};

// Few enough values of a kind that all products of exact ones are.
static test_values values_for(test_rng *rng, int64_t rows, int64_t in)
{
    const int64_t any = test_rng_below(rng, 5);
    if (any == 0 && rows * in < 300000) return VALUES_EXACT;
    return any == 1 ? VALUES_CANCEL : VALUES_RANDOM;
}

static test_matrix any_view(test_matrix m, test_rng *rng)
{
    const int64_t kind = test_rng_below(rng, 4); // as it is, aligned stride, any stride, shifted
    if (kind == 1) return test_view(m, 8, 0);
    if (kind == 2) return test_view(m, 1 + test_rng_below(rng, 7), 0);
    return kind == 3 ? test_view(m, test_rng_below(rng, 3), 1) : m;
}

static test_matrix maybe(test_matrix m, test_rng *rng)
{
    return test_rng_below(rng, 2) == 0 ? m : (test_matrix){0};
}

static void check_size(test_device *d, const struct linear_size *s, spops_dtype dtype,
                       bool backward, test_rng *rng, uint64_t stream)
{
    linear_case c = {
        .rows = s->rows, .in = s->in, .out = s->out, .w_transposed = test_rng_below(rng, 2) != 0};
    const test_values values = values_for(rng, s->rows, s->in);
    const test_check check = values == VALUES_EXACT ? CHECK_EXACT : CHECK_BOUND;
    const spops_dtype wide = test_rng_below(rng, 2) == 0 ? dtype : SPOPS_DTYPE_F32;
    const spops_dtype sums = test_sum_dtype(dtype);
    const int64_t w_rows = c.w_transposed ? c.out : c.in, w_cols = c.w_transposed ? c.in : c.out;
    test_operator op = {.stream = stream, .user = &c};
    char text[256];

    c.activation = test_activation(rng, values == VALUES_EXACT);
    c.tf32 = values == VALUES_EXACT && test_rng_below(rng, 2) == 0;
    op.in[X] = any_view(test_input("x", c.rows, c.in, dtype, values), rng);
    op.in[W] = any_view(test_input("w", w_rows, w_cols, dtype, values), rng);
    if (!backward) {
        op.what = test_describe(text, "forward, transposed %d, activation %d, tf32 %d",
                                c.w_transposed, (int)c.activation.kind, c.tf32);
        op.in[BIAS] = maybe(test_input("bias", 1, c.out, sums, values), rng);
        if (test_rng_below(rng, 2) == 0) {
            op.in[SCALE] = maybe(test_input("scale", 1, c.out, sums, values), rng);
            op.in[SHIFT] = maybe(test_input("shift", 1, c.out, sums, values), rng);
        }
        op.in[RESIDUAL] =
            maybe(any_view(test_input("residual", c.rows, c.out, wide, values), rng), rng);
        op.out[OUT] = any_view(test_output("out", c.rows, c.out, wide, check), rng);
        op.run = run_forward;
        op.reference = reference_forward;
    } else {
        op.what = test_describe(text, "backward, transposed %d, tf32 %d", c.w_transposed, c.tf32);
        op.in[GRAD_SUM] = any_view(test_input("grad_sum", c.rows, c.out, dtype, values), rng);
        op.out[GRAD_X] =
            maybe(any_view(test_output("grad_x", c.rows, c.in, wide, check), rng), rng);
        op.out[GRAD_W] = any_view(test_output("grad_w", w_rows, w_cols, wide, check), rng);
        op.out[GRAD_BIAS] = maybe(test_output("grad_bias", 1, c.out, sums, check), rng);
        op.run = run_backward;
        op.reference = reference_backward;
        op.scratch_bytes = spops_linear_scratch_bytes(d->ctx, c.rows, c.in, c.out, 1);
        test_expect_ok(d->ctx, spops_context_reserve(d->ctx, op.scratch_bytes), "reserve");
    }
    test_operator_run(d, &op);
}

static const int both_ways[] = {0, 1};

CaseTest(linear, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, both_ways, 2), .timeout = 600)
{
    uint64_t stream = case_number(p) << 32;
    test_rng rng = test_rng_make(stream + 77);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        for (int n = 0; n < 3; ++n)
            check_size(&d, &sizes[i], (spops_dtype)p->dtype, p->op == 1, &rng, ++stream);
    test_close(&d);
}

// ---- Small whole numbers, which every way of running adds exactly -------------------------------

typedef struct exact_rows {
    guarded x, w, g, out, grad_x, grad_w, grad_bias;
} exact_rows;

static guarded exact_matrix(test_device *d, const char *name, int64_t rows, int64_t cols,
                            spops_dtype dtype, uint64_t seed)
{
    guarded m = guarded_create(d->backend, name, rows, cols, 0, 0, dtype);
    test_rng rng = test_rng_make(seed);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
            guarded_set(&m, r, c, (double)test_rng_below(&rng, 5) - 2);
    guarded_upload(&m);
    return m;
}

static exact_rows exact_create(test_device *d, int64_t rows, int64_t in, int64_t out,
                               spops_dtype dtype)
{
    exact_rows e = {
        .x = exact_matrix(d, "x", rows, in, dtype, 1),
        .w = exact_matrix(d, "w", in, out, dtype, 2),
        .g = exact_matrix(d, "grad_sum", rows, out, dtype, 3),
        .out = guarded_create(d->backend, "out", rows, out, 0, 0, SPOPS_DTYPE_F32),
        .grad_x = guarded_create(d->backend, "grad_x", rows, in, 0, 0, SPOPS_DTYPE_F32),
        .grad_w = guarded_create(d->backend, "grad_w", in, out, 0, 0, SPOPS_DTYPE_F32),
        .grad_bias = guarded_create(d->backend, "grad_bias", 1, out, 0, 0, test_sum_dtype(dtype))};
    guarded *outs[] = {&e.out, &e.grad_x, &e.grad_w, &e.grad_bias};
    for (int i = 0; i < 4; ++i) {
        guarded_poison(outs[i], 0x5a);
        guarded_upload(outs[i]);
    }
    return e;
}

static void exact_destroy(exact_rows *e)
{
    guarded *all[] = {&e->x, &e->w, &e->g, &e->out, &e->grad_x, &e->grad_w, &e->grad_bias};
    for (int i = 0; i < 7; ++i)
        guarded_destroy(all[i]);
}

// What column o of row r of x w is, and of the gradients over the first n rows.
static double product_at(const exact_rows *e, int64_t r, int64_t o)
{
    double sum = 0;
    for (int64_t c = 0; c < e->x.view.cols; ++c)
        sum += guarded_get(&e->x, r, c) * guarded_get(&e->w, c, o);
    return sum;
}

static double outer_at(const exact_rows *e, int64_t n, int64_t c, int64_t o)
{
    double sum = 0;
    for (int64_t r = 0; r < n; ++r)
        sum += (c < 0 ? 1 : guarded_get(&e->x, r, c)) * guarded_get(&e->g, r, o);
    return sum;
}

// All outputs, where the first n rows count and the others are as they were poisoned.
static void check_first_rows(exact_rows *e, int64_t n, double times, const char *what)
{
    guarded_download(&e->out), guarded_download(&e->grad_x);
    guarded_download(&e->grad_w), guarded_download(&e->grad_bias);
    for (int64_t r = 0; r < n; ++r)
        for (int64_t o = 0; o < e->w.view.cols; ++o)
            cr_assert(guarded_get(&e->out, r, o) == times * product_at(e, r, o),
                      "%s: out(%d, %d) is %g, expected %g", what, (int)r, (int)o,
                      guarded_get(&e->out, r, o), times * product_at(e, r, o));
    for (int64_t o = 0; o < e->w.view.cols; ++o) {
        for (int64_t c = 0; c < e->w.view.rows; ++c)
            cr_assert(guarded_get(&e->grad_w, c, o) == outer_at(e, n, c, o),
                      "%s: grad_w(%d, %d) is %g, expected %g", what, (int)c, (int)o,
                      guarded_get(&e->grad_w, c, o), outer_at(e, n, c, o));
        cr_assert(guarded_get(&e->grad_bias, 0, o) == outer_at(e, n, -1, o), "%s: grad_bias(%d)",
                  what, (int)o);
    }
    // Rows after those that count.
    e->out.view.rows = e->grad_x.view.rows = n;
    guarded_check_padding(&e->out, what);
    guarded_check_padding(&e->grad_x, what);
    e->out.view.rows = e->grad_x.view.rows = e->x.view.rows;
}

// A number of rows that the device has, also outside of what there is: rows after them are left
// alone, and NaN in them reaches no sum.
CaseTest(linear, counts_rows_on_the_device, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0))
{
    static const int32_t counts[] = {-5, 0, 1, 64, 100, 127, 128, 1500, 2000, 5000};
    enum { ROWS = 2000 };
    const int64_t widths[][2] = {{16, 24}, {7, 5}};
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int k = 0; k < 2; ++k) {
        const int64_t in = widths[k][0], out = widths[k][1];
        test_expect_ok(
            d.ctx,
            spops_context_reserve(d.ctx, spops_linear_scratch_bytes(d.ctx, ROWS, in, out, 1)),
            "reserve");
        for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
            const int64_t n = counts[i] < 0 ? 0 : counts[i] < ROWS ? counts[i] : ROWS;
            exact_rows e = exact_create(&d, ROWS, in, out, (spops_dtype)p->dtype);
            spops_conv_layer layer = spops_conv_layer_default();
            int32_t *count = test_upload_i32(&d, &counts[i], 1);
            for (int64_t r = n; r < ROWS; ++r)
                for (int64_t c = 0; c < in || c < out; ++c) {
                    if (c < in) guarded_set(&e.x, r, c, (double)NAN);
                    if (c < out) guarded_set(&e.g, r, c, (double)NAN);
                }
            guarded_upload(&e.x), guarded_upload(&e.g);
            layer.num_rows = count;
            test_expect_ok(
                d.ctx, spops_linear_execute(d.ctx, e.x.view, e.w.view, &layer, e.out.view), "out");
            test_expect_ok(d.ctx,
                           spops_linear_execute_backward(d.ctx, e.g.view, e.x.view, e.w.view,
                                                         &layer, &e.grad_x.view, &e.grad_w.view,
                                                         (float *)e.grad_bias.view.data),
                           "gradients");
            test_wait(&d);
            check_first_rows(&e, n, 1, "counted");
            test_free(&d, count);
            exact_destroy(&e);
        }
    }
    test_close(&d);
}

// out += x w, twice; and with a scale, which only the sum meets.
CaseTest(linear, adds_to_a_residual_in_place, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0))
{
    static const int64_t widths[][3] = {{200, 16, 24}, {130, 7, 5}, {1, 8, 8}, {300, 64, 272}};
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int library = 0; library < 2; ++library)
        for (int k = 0; k < 4; ++k) {
            const int64_t rows = widths[k][0], in = widths[k][1], out = widths[k][2];
            exact_rows e = exact_create(&d, rows, in, out, (spops_dtype)p->dtype);
            guarded scale = guarded_create(d.backend, "scale", 1, out, 0, 0,
                                           test_sum_dtype((spops_dtype)p->dtype));
            spops_conv_layer layer = spops_conv_layer_default();
            spops_context_options options = spops_context_options_default();
            spops_context *ctx = d.ctx;
            if (library == 1) {
                options.backend = d.backend;
                options.stream = d.stream;
                options.dense_library = 1;
                if (spops_context_create(&options, &ctx) != SPOPS_STATUS_OK) ctx = d.ctx;
            }
            for (int64_t o = 0; o < out; ++o)
                guarded_set(&scale, 0, o, 4);
            guarded_upload(&scale);
            test_expect_ok(
                ctx, spops_context_reserve(ctx, spops_linear_scratch_bytes(ctx, rows, in, out, 1)),
                "reserve");
            test_expect_ok(ctx, spops_linear_execute(ctx, e.x.view, e.w.view, &layer, e.out.view),
                           "first");
            layer.residual = &e.out.view;
            test_expect_ok(ctx, spops_linear_execute(ctx, e.x.view, e.w.view, &layer, e.out.view),
                           "second");
            layer.scale = (const float *)scale.view.data;
            test_expect_ok(ctx, spops_linear_execute(ctx, e.x.view, e.w.view, &layer, e.out.view),
                           "scaled");
            layer = spops_conv_layer_default();
            test_expect_ok(ctx,
                           spops_linear_execute_backward(ctx, e.g.view, e.x.view, e.w.view, &layer,
                                                         &e.grad_x.view, &e.grad_w.view,
                                                         (float *)e.grad_bias.view.data),
                           "gradients");
            test_expect_ok(ctx, spops_context_wait_sync(ctx), "wait");
            check_first_rows(&e, rows, 6, "in place");
            exact_destroy(&e);
            guarded_destroy(&scale);
            if (ctx != d.ctx) spops_context_destroy(ctx);
        }
    test_close(&d);
}

// relu(x w + bias + out), in place, of rows that outnumber the blocks of a device and that it counts; in the
// dtype of x. W as it is, or transposed.
CaseTest(linear, walks_many_rows, every_case(test_row_dtypes, NUM_REAL_DTYPES, both_ways, 2),
         .timeout = 600)
{
    static const int64_t sizes_of[][3] = {
        {26000, 32, 96},  {9000, 64, 192},   {3000, 128, 272}, {1500, 24, 64}, {1000, 256, 640},
        {700, 512, 136},  {900, 200, 32},    {300, 1024, 72},  {1, 64, 64},    {2000, 640, 128},
        {150, 2048, 136}, {26000, 384, 104}, {17000, 840, 136}};
    const spops_dtype dtype = (spops_dtype)p->dtype;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (size_t k = 0; k < sizeof sizes_of / sizeof *sizes_of; ++k) {
        const int64_t rows = sizes_of[k][0], in = sizes_of[k][1], out = sizes_of[k][2];
        const int32_t n = (int32_t)(rows > 100 ? rows - 37 : rows);
        // What fills a device is slow without one.
        if (d.backend == SPOPS_BACKEND_CPU && rows * in * out > 300000000) continue;
        guarded x = exact_matrix(&d, "x", rows, in, dtype, 4);
        guarded w = p->op == 1 ? exact_matrix(&d, "w", out, in, dtype, 5)
                               : exact_matrix(&d, "w", in, out, dtype, 5);
        guarded bias = exact_matrix(&d, "bias", 1, out, test_sum_dtype(dtype), 6);
        guarded y = exact_matrix(&d, "out", rows, out, dtype, 7);
        guarded before = exact_matrix(&d, "before", rows, out, dtype, 7);
        spops_conv_layer layer = spops_conv_layer_default();
        int32_t *count = test_upload_i32(&d, &n, 1);

        for (int64_t r = n; r < rows; ++r)
            for (int64_t c = 0; c < in; ++c)
                guarded_set(&x, r, c, (double)NAN);
        guarded_upload(&x);
        layer.num_rows = count;
        layer.w_transposed = p->op;
        layer.bias = (const float *)bias.view.data;
        layer.residual = &y.view;
        layer.activation = SPOPS_ACTIVATION_RELU;
        test_expect_ok(d.ctx, spops_linear_execute(d.ctx, x.view, w.view, &layer, y.view), "out");
        test_wait(&d);
        guarded_download(&y);
        for (int64_t r = 0; r < rows; ++r) {
            if (r % 61 != 0 && r < n - 130) continue;
            for (int64_t o = 0; o < out; ++o) {
                double sum = guarded_get(&before, r, o);
                if (r < n) {
                    sum += guarded_get(&bias, 0, o);
                    for (int64_t c = 0; c < in; ++c)
                        sum += guarded_get(&x, r, c) *
                               (p->op == 1 ? guarded_get(&w, o, c) : guarded_get(&w, c, o));
                    sum = test_round(sum < 0 ? 0 : sum, dtype);
                }
                cr_assert(guarded_get(&y, r, o) == sum,
                          "%d rows, %d to %d: out(%d, %d) is %g, expected %g", (int)rows, (int)in,
                          (int)out, (int)r, (int)o, guarded_get(&y, r, o), sum);
            }
        }
        guarded *all[] = {&x, &w, &bias, &y, &before};
        for (int i = 0; i < 5; ++i)
            guarded_destroy(all[i]);
        test_free(&d, count);
    }
    test_close(&d);
}

// Rows of W that calls right before write, to memory that the call before them reads: row r is row
// (r + round) % KINDS of `rows`. The number of rows is written too. Nothing waits in between.
enum { KINDS = 8, ROUNDS = 4 };

typedef struct written_layer {
    guarded x, rows, w, picks[ROUNDS], out[ROUNDS];
    int32_t *counts[ROUNDS], *count; // i64; i32
    int32_t num_rows[ROUNDS];
} written_layer;

static written_layer written_create(test_device *d, const linear_case *c, spops_dtype dtype)
{
    const int64_t w_rows = c->w_transposed ? c->out : c->in;
    const int64_t w_cols = c->w_transposed ? c->in : c->out;
    const int32_t none = 0;
    written_layer l = {.x = exact_matrix(d, "x", c->rows, c->in, dtype, 4),
                       .rows = exact_matrix(d, "rows", KINDS, w_cols, dtype, 5),
                       .w = exact_matrix(d, "w", w_rows, w_cols, dtype, 6),
                       .count = test_upload_i32(d, &none, 1)};
    for (int i = 0; i < ROUNDS; ++i) {
        l.num_rows[i] = (int32_t)c->rows - 41 * i;
        l.counts[i] = test_upload_i32(d, (const int32_t[]){l.num_rows[i], 0}, 2);
        l.picks[i] = guarded_create(d->backend, "picks", w_rows, KINDS, 0, 0, dtype);
        l.out[i] = exact_matrix(d, "out", c->rows, c->out, dtype, 7);
        for (int64_t r = 0; r < w_rows; ++r)
            for (int64_t k = 0; k < KINDS; ++k)
                guarded_set(&l.picks[i], r, k, (r + i) % KINDS == k);
        guarded_upload(&l.picks[i]);
    }
    return l;
}

static void written_enqueue(test_device *d, const linear_case *c, written_layer *l)
{
    for (int i = 0; i < ROUNDS; ++i) {
        spops_conv_layer layer = spops_conv_layer_default();
        test_expect_ok(
            d->ctx,
            spops_convert_execute(d->ctx, spops_matrix_dense(l->counts[i], 1, 1, SPOPS_DTYPE_I64),
                                  spops_matrix_dense(l->count, 1, 1, SPOPS_DTYPE_I32)),
            "count");
        test_expect_ok(
            d->ctx, spops_linear_execute(d->ctx, l->picks[i].view, l->rows.view, NULL, l->w.view),
            "w");
        layer.num_rows = l->count;
        layer.w_transposed = c->w_transposed;
        test_expect_ok(d->ctx,
                       spops_linear_execute(d->ctx, l->x.view, l->w.view, &layer, l->out[i].view),
                       "out");
    }
}

static void written_check(const linear_case *c, written_layer *l, int round, spops_dtype dtype)
{
    guarded *const y = &l->out[round];
    test_rng rng = test_rng_make(7); // of what `out` held: rows after those that count keep it
    for (int64_t r = 0; r < c->rows; ++r)
        for (int64_t o = 0; o < c->out; ++o) {
            double sum = (double)test_rng_below(&rng, 5) - 2;
            if (r % 251 != 0 && r < l->num_rows[round] - 70) continue;
            if (r < l->num_rows[round]) sum = 0;
            for (int64_t k = 0; k < c->in && r < l->num_rows[round]; ++k) {
                const int64_t row = c->w_transposed ? o : k, col = c->w_transposed ? k : o;
                sum += guarded_get(&l->x, r, k) * guarded_get(&l->rows, (row + round) % KINDS, col);
            }
            cr_assert(guarded_get(y, r, o) == test_round(sum, dtype),
                      "%d rows, %d to %d, round %d: out(%d, %d) is %g, expected %g", (int)c->rows,
                      (int)c->in, (int)c->out, round, (int)r, (int)o, guarded_get(y, r, o), sum);
        }
}

CaseTest(linear, reads_what_calls_before_wrote,
         every_case(test_row_dtypes, NUM_REAL_DTYPES, both_ways, 2), .timeout = 600)
{
    static const int64_t sizes_of[][3] = {
        {3000, 16, 24}, {700, 512, 256}, {17000, 656, 136}, {1300, 64, 72}, {200, 1024, 72}};
    const spops_dtype dtype = (spops_dtype)p->dtype;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (size_t k = 0; k < sizeof sizes_of / sizeof *sizes_of; ++k) {
        const linear_case c = {.rows = sizes_of[k][0],
                               .in = sizes_of[k][1],
                               .out = sizes_of[k][2],
                               .w_transposed = p->op == 1};
        if (d.backend == SPOPS_BACKEND_CPU && c.rows * c.in * c.out > 300000000) continue;
        test_expect_ok(
            d.ctx,
            spops_context_reserve(d.ctx, spops_linear_scratch_bytes(d.ctx, c.rows, c.in, c.out, 1)),
            "reserve");
        written_layer l = written_create(&d, &c, dtype);
        written_enqueue(&d, &c, &l);
        test_wait(&d);
        for (int i = 0; i < ROUNDS; ++i) {
            guarded_download(&l.out[i]);
            written_check(&c, &l, i, dtype);
            guarded_destroy(&l.out[i]), guarded_destroy(&l.picks[i]);
            test_free(&d, l.counts[i]);
        }
        guarded_destroy(&l.x), guarded_destroy(&l.rows), guarded_destroy(&l.w);
        test_free(&d, l.count);
    }
    test_close(&d);
}

// Every row of a long sum counts, whichever way it is run: ones add up to their number.
CaseTest(linear, loses_no_row, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0),
         .timeout = 600)
{
    static const int64_t lengths[] = {84508, 65537, 100003};
    enum { IN = 16, OUT_COLS = 8 };
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < 3; ++i) {
        const int64_t n = lengths[i];
        exact_rows e = exact_create(&d, n, IN, OUT_COLS, (spops_dtype)p->dtype);
        spops_context_options options = spops_context_options_default();
        spops_context *ctx = d.ctx;
        options.backend = d.backend;
        options.stream = d.stream;
        options.dense_library = i % 2;
        if (i % 2 == 1 && spops_context_create(&options, &ctx) != SPOPS_STATUS_OK) ctx = d.ctx;
        for (int64_t r = 0; r < n; ++r)
            for (int64_t c = 0; c < IN; ++c) {
                guarded_set(&e.x, r, c, 1);
                if (c < OUT_COLS) guarded_set(&e.g, r, c, 1);
            }
        guarded_upload(&e.x), guarded_upload(&e.g);
        test_expect_ok(
            ctx, spops_context_reserve(ctx, spops_linear_scratch_bytes(ctx, n, IN, OUT_COLS, 1)),
            "reserve");
        test_expect_ok(ctx,
                       spops_linear_execute_backward(ctx, e.g.view, e.x.view, e.w.view, NULL, NULL,
                                                     &e.grad_w.view,
                                                     (float *)e.grad_bias.view.data),
                       "gradients");
        test_expect_ok(ctx, spops_context_wait_sync(ctx), "wait");
        guarded_download(&e.grad_w), guarded_download(&e.grad_bias);
        for (int64_t o = 0; o < OUT_COLS; ++o) {
            cr_assert(guarded_get(&e.grad_bias, 0, o) == (double)n);
            for (int64_t c = 0; c < IN; ++c)
                cr_assert(guarded_get(&e.grad_w, c, o) == (double)n, "grad_w is %g, expected %g",
                          guarded_get(&e.grad_w, c, o), (double)n);
        }
        exact_destroy(&e);
        if (ctx != d.ctx) spops_context_destroy(ctx);
    }
    test_close(&d);
}

// ---- What is refused ----------------------------------------------------------------------------

#define REFUSED(argument, call)                                                                    \
    test_expect(d.ctx, (call), SPOPS_STATUS_INVALID_ARGUMENT, argument, argument)

// What its row cannot say; tests/test_operators.c has the faults of its arguments.
BackendTest(linear, refuses)
{
    enum { ROWS = 2000, IN = 8, COLS = 16 };
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    exact_rows e = exact_create(&d, ROWS, IN, COLS, SPOPS_DTYPE_F16);
    const spops_matrix x = e.x.view, w = e.w.view, out = e.out.view, g = e.g.view;
    spops_matrix wrong = x;
    spops_conv_layer layer = spops_conv_layer_default();

    wrong.cols = 0;
    REFUSED("x has no columns", spops_linear_execute(d.ctx, wrong, w, NULL, out));
    layer.groups = 2;
    REFUSED("layer->groups is 2", spops_linear_execute(d.ctx, x, w, &layer, out));
    layer = spops_conv_layer_default();
    layer.x_scales = (const float *)out.data;
    REFUSED("layer->x_scales", spops_linear_execute(d.ctx, x, w, &layer, out));
    layer = spops_conv_layer_default();
    layer.reads_ahead = -1;
    REFUSED("layer->reads_ahead is -1", spops_linear_execute(d.ctx, x, w, &layer, out));
    layer = spops_conv_layer_default();
    wrong = out, wrong.data = (char *)out.data - 4 * COLS;
    layer.residual = &wrong;
    REFUSED("out overlaps residual", spops_linear_execute(d.ctx, x, w, &layer, out));

    // Gradients: scratch first, which the message tells how to get.
    test_expect(d.ctx,
                spops_linear_execute_backward(d.ctx, g, x, w, NULL, NULL, &e.grad_w.view, NULL),
                SPOPS_STATUS_SCRATCH_TOO_SMALL, "call spops_linear_reserve(ctx, 2000, 8, 16, 1)",
                "scratch");
    REFUSED("linear_reserve: max_rows is -1", spops_linear_reserve(d.ctx, -1, IN, COLS, 1));
    REFUSED("max_in_channels", spops_linear_reserve(d.ctx, ROWS, INT32_MAX, COLS, 1));
    REFUSED("max_out_channels", spops_linear_reserve(d.ctx, ROWS, IN, -2, 1));
    REFUSED("linear_reserve: backward is 2", spops_linear_reserve(d.ctx, ROWS, IN, COLS, 2));
    cr_assert_eq(spops_linear_scratch_bytes(d.ctx, ROWS, IN, COLS, 0), 0);
    cr_assert_eq(spops_linear_scratch_bytes(NULL, ROWS, IN, COLS, 1), 0);
    cr_assert_eq(spops_linear_scratch_bytes(d.ctx, -1, IN, COLS, 1), 0);
    (void)spops_linear_scratch_bytes(d.ctx, ROWS, 0, COLS, 1); // whatever it is
    (void)spops_linear_scratch_bytes(d.ctx, ROWS, IN, 0, 1);
    test_expect_ok(d.ctx, spops_linear_reserve(d.ctx, ROWS, IN, COLS, 1), "reserve");
    test_wait(&d);
    guarded *outs[] = {&e.out, &e.grad_x, &e.grad_w, &e.grad_bias};
    for (int i = 0; i < 4; ++i)
        guarded_check_untouched(outs[i], "refused");
    exact_destroy(&e);
    test_close(&d);
}

// A library of dense products is opened with the context, or not at all.
BackendTest(linear, opens_a_library_with_the_context)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    options.backend = d.backend;
    options.dense_library = 2;
    test_expect(NULL, spops_context_create(&options, &ctx), SPOPS_STATUS_INVALID_ARGUMENT,
                "dense_library is 2, expected 0 or 1", "dense_library");
    options.dense_library = 1;
    options.reserved = 1;
    test_expect(NULL, spops_context_create(&options, &ctx), SPOPS_STATUS_INVALID_ARGUMENT,
                "reserved is 1", "reserved");
    options.reserved = 0;
    const spops_status status = spops_context_create(&options, &ctx);
    if (status != SPOPS_STATUS_OK) { // no cuBLAS here
        test_expect(NULL, status, SPOPS_STATUS_NOT_SUPPORTED, "context_create: cuBLAS", "cuBLAS");
        cr_assert_null(ctx);
        cr_assert_eq(d.backend, SPOPS_BACKEND_CUDA);
    }
    spops_context_destroy(ctx);
    test_close(&d);
}
