// SPDX-License-Identifier: Apache-2.0
// Sparse convolution on every kind of map against FP64, forward and both gradients, groups and
// depthwise, with every epilogue; against a dense convolution; on a map that is refilled
// on the stream; and what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "spops/linear.h"
#include "spops/sparseconv.h"
#include "support/device.h"
#include "tests/ref/ref_sparseconv.h"
#include "tests/support/coord_cases.h"
#include "tests/support/activation.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/reduce_cases.h"
#include "tests/support/relation.h"

// ---- A convolution between two sets, here and where d runs --------------------------------------

typedef struct conv_case {
    test_device *d;
    spops_kernel_map_kind kind;
    spops_kernel_shape kernel;
    ref_set in, out; // as the library has them
    spops_coords *in_coords, *out_coords;
    spops_kernel_map *map;
    spops_sparseconv *conv;
    ref_sparseconv ref; // shape and table
    int32_t *table;
    bool has_bias, has_scale, has_residual;
    ref_activation activation;
    spops_math math;
} conv_case;

static spops_coords *create_set(test_device *d, const ref_set *set)
{
    return test_create_set(d, set->dims, set->n, set->rows, NULL);
}

// Outputs of a layer: the inputs themselves, or the set that the kernel reaches.
static void create_sets(conv_case *c, const cloud_rows *cloud)
{
    c->in = ref_unique(cloud->dims, cloud->n, cloud->rows, NULL);
    c->out = c->kind == SPOPS_MAP_SUBMANIFOLD
                 ? ref_unique(cloud->dims, cloud->n, cloud->rows, NULL)
                 : ref_window(&c->in, &c->kernel, c->kind == SPOPS_MAP_TRANSPOSED, NULL);
    c->in_coords = create_set(c->d, &c->in);
    c->out_coords = c->kind == SPOPS_MAP_SUBMANIFOLD ? NULL : create_set(c->d, &c->out);
}

// Where the library of products is not installed, gather-matmul-scatter is not tested.
static void create_conv(conv_case *c, const spops_sparseconv_options *options)
{
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_status status;
    o.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE;
    test_expect_ok(c->d->ctx,
                   spops_kernel_map_create(c->d->ctx, c->kind, &c->kernel, c->in_coords,
                                           c->out_coords, &o, &c->map),
                   "map");
    status = spops_sparseconv_create(c->d->ctx, c->map, options, &c->conv);
    if (status == SPOPS_STATUS_NOT_SUPPORTED &&
        strstr(spops_last_error(c->d->ctx), "cannot be opened") != NULL) {
        spops_sparseconv_options other = *options;
        printf("skipped: %s\n", spops_last_error(c->d->ctx));
        other.dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND;
        status = spops_sparseconv_create(c->d->ctx, c->map, &other, &c->conv);
    }
    test_expect_ok(c->d->ctx, status, "plan");
    c->table = ref_map(c->kind, &c->kernel, &c->in, &c->out);
    c->ref.table = c->table;
    c->ref.num_taps = ref_num_taps(&c->kernel);
    c->ref.num_in = c->in.n;
    c->ref.num_out = c->out.n;
}

static void destroy_case(conv_case *c)
{
    spops_sparseconv_destroy(c->conv);
    spops_kernel_map_destroy(c->map);
    spops_coords_destroy(c->in_coords);
    spops_coords_destroy(c->out_coords);
    ref_set_free(&c->in);
    ref_set_free(&c->out);
    free(c->table);
}

// ---- Against FP64 -------------------------------------------------------------------------------

enum { X, W, BIAS, SCALE, SHIFT, RESIDUAL }; // inputs, forward
enum { OUT };
enum { GRAD_SUM = 2 }; // an input, backward, after x and w
enum { GRAD_X, GRAD_W, GRAD_BIAS };

static const float *vector(const spops_matrix *m)
{
    return m == NULL ? NULL : (const float *)m->data;
}

static spops_status run_forward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    const conv_case *c = (const conv_case *)user;
    spops_conv_layer layer = spops_conv_layer_default();
    layer.groups = (int32_t)c->ref.groups;
    layer.bias = vector(in[BIAS]);
    layer.scale = vector(in[SCALE]);
    layer.shift = vector(in[SHIFT]);
    layer.residual = in[RESIDUAL];
    layer.activation = c->activation.kind;
    layer.activation_slope = c->activation.slope;
    layer.math = c->math;
    return spops_sparseconv_execute(ctx, c->conv, *in[X], *in[W], &layer, *out[OUT]);
}

static void reference_forward(void *user, const double *const *in, ref_tensor *const *out)
{
    const conv_case *c = (const conv_case *)user;
    const ref_epilogue epilogue = {in[BIAS], in[SCALE], in[SHIFT], in[RESIDUAL], c->activation};
    ref_sparseconv conv = c->ref;
    conv.x = in[X];
    conv.w = in[W];
    ref_sparseconv_forward(&conv, &epilogue, out[OUT]);
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const conv_case *c = (const conv_case *)user;
    spops_conv_layer layer = spops_conv_layer_default();
    layer.groups = (int32_t)c->ref.groups;
    return spops_sparseconv_execute_backward(ctx, c->conv, *in[GRAD_SUM], *in[X], *in[W], &layer,
                                             out[GRAD_X], out[GRAD_W],
                                             out[GRAD_BIAS] == NULL ? NULL : out[GRAD_BIAS]->data);
}

static void reference_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const conv_case *c = (const conv_case *)user;
    ref_sparseconv conv = c->ref;
    conv.x = in[X];
    conv.w = in[W];
    ref_sparseconv_backward(&conv, in[GRAD_SUM], out[GRAD_X], out[GRAD_W]);
    for (int64_t i = 0; out[GRAD_BIAS] != NULL && i < c->ref.num_out * out[GRAD_BIAS]->cols; ++i) {
        const int64_t o = i % out[GRAD_BIAS]->cols;
        out[GRAD_BIAS]->value[o] += in[GRAD_SUM][i];
        out[GRAD_BIAS]->scale[o] += fabs(in[GRAD_SUM][i]);
        out[GRAD_BIAS]->roundings[o] += 1.0;
    }
}

// Products of taps that are rounded to out's dtype before they are summed: each product, and the sum
// before that of the middle tap, meets a rounding of that dtype beside those in f32.
static void check_rounded_products(const guarded *g, const ref_tensor *expected, int32_t num_taps,
                                   const char *what)
{
    const bool f16 = g->view.dtype == SPOPS_DTYPE_F16;
    const double unit = f16 ? 0x1p-11 : 0x1p-8, least = f16 ? 0x1p-25 : 0x1p-134;
    const int64_t n = expected->rows * expected->cols;
    double *bounds = malloc((size_t)n * sizeof *bounds + 1);
    cr_assert_not_null(bounds);
    for (int64_t i = 0; i < n; ++i) {
        const double in_f32 = (double)expected->roundings[i] * 0x1.1p-24;
        bounds[i] =
            (in_f32 + 2 * unit) * (1 + in_f32) * expected->scale[i] + (num_taps + 1) * least;
    }
    guarded_check_bounds(g, expected, bounds, what);
    free(bounds);
}

static void verify_gather_scatter(void *user, const guarded *const *out,
                                  const ref_tensor *const *expected, const char *what)
{
    const conv_case *c = (const conv_case *)user;
    if (out[OUT] != NULL) // or GRAD_X
        check_rounded_products(out[OUT], expected[OUT], c->ref.num_taps, what);
    for (int i = GRAD_W; i <= GRAD_BIAS; ++i)
        if (out[i] != NULL) guarded_check(out[i], expected[i], false, what);
}

static spops_dataflow dataflow_of(spops_context *ctx, const spops_sparseconv *conv, int pass,
                                  spops_dtype dtype, int64_t in_channels, int64_t out_channels,
                                  const spops_conv_layer *layer)
{
    spops_conv_choice choice;
    test_expect_ok(ctx,
                   spops_sparseconv_get_choice(ctx, conv, (spops_conv_pass)pass, dtype, in_channels,
                                               out_channels, layer, &choice),
                   "choice");
    return choice.dataflow;
}

// A layer of these channels, with all that rng draws.
static void check_layer(conv_case *c, const char *what, bool backward, spops_dtype dtype,
                        int64_t in_channels, int64_t out_channels, int64_t groups, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    const int64_t padding = test_rng_below(&rng, 2) * (1 + test_rng_below(&rng, 7));
    const int64_t shift = test_rng_below(&rng, 2);
    const test_values values = test_rng_below(&rng, 3) == 0 ? VALUES_EXACT : VALUES_RANDOM;
    const test_check check = values == VALUES_EXACT ? CHECK_EXACT : CHECK_BOUND;
    const int64_t taps = c->ref.num_taps;
    const spops_dtype sums = test_sum_dtype(dtype);
    const spops_dtype wide = test_rng_below(&rng, 2) != 0 ? SPOPS_DTYPE_F32 : dtype;
    test_operator op = {.what = what,
                        .stream = stream,
                        .scratch_bytes = spops_sparseconv_scratch_bytes(c->conv),
                        .user = c,
                        .run = backward ? run_backward : run_forward,
                        .reference = backward ? reference_backward : reference_forward};

    if (dataflow_of(c->d->ctx, c->conv, SPOPS_PASS_FORWARD, dtype, in_channels, out_channels,
                    NULL) == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER &&
        wide != SPOPS_DTYPE_F32)
        op.verify = verify_gather_scatter;
    c->ref.in_channels = in_channels;
    c->ref.out_channels = out_channels;
    c->ref.groups = groups;
    op.in[X] =
        test_view(test_input("x", c->ref.num_in, in_channels, dtype, values), padding, shift);
    op.in[W] = test_view(test_input("w", taps * in_channels / groups, out_channels, dtype, values),
                         0, shift);
    if (backward) {
        const int wanted = 1 + (int)test_rng_below(&rng, 7);
        op.in[GRAD_SUM] = test_view(
            test_input("grad_sum", c->ref.num_out, out_channels, dtype, values), padding, 0);
        if (wanted & 1)
            op.out[GRAD_X] = test_view(
                test_output("grad_x", c->ref.num_in, in_channels, wide, check), padding, shift);
        if (wanted & 2)
            op.out[GRAD_W] =
                test_output("grad_w", taps * in_channels / groups, out_channels, wide, check);
        if (wanted & 4) op.out[GRAD_BIAS] = test_output("grad_bias", 1, out_channels, sums, check);
    } else {
        // A sum that is rounded to a narrow dtype before what follows has no simple bound: layers
        // with an epilogue write the dtype of sums here, and narrow ones have a test of their own.
        const bool epilogue = op.verify == NULL && test_rng_below(&rng, 2) != 0;
        const spops_dtype out = epilogue ? sums : wide;
        c->activation = (ref_activation){0};
        if (epilogue) c->activation = test_activation(&rng, values == VALUES_EXACT);
        if (epilogue && test_rng_below(&rng, 2))
            op.in[BIAS] = test_input("bias", 1, out_channels, sums, values);
        if (epilogue && test_rng_below(&rng, 2)) {
            op.in[SCALE] = test_input("scale", 1, out_channels, sums, values);
            op.in[SHIFT] = test_input("shift", 1, out_channels, sums, values);
        }
        if (epilogue && test_rng_below(&rng, 2))
            op.in[RESIDUAL] = test_view(
                test_input("residual", c->ref.num_out, out_channels, out, values), padding, 0);
        op.out[OUT] = test_view(test_output("out", c->ref.num_out, out_channels, out,
                                            op.in[SCALE].name != NULL ? CHECK_BOUND : check),
                                padding, shift);
    }
    test_operator_run(c->d, &op);
}

typedef struct geometry {
    const char *name;
    spops_kernel_map_kind kind;
    int32_t dims, size, stride, dilation;
} geometry;

static const geometry geometries[] = {
    {"submanifold 3^3", SPOPS_MAP_SUBMANIFOLD, 3, 3, 1, 1},
    {"submanifold 3^3, dilation 2", SPOPS_MAP_SUBMANIFOLD, 3, 3, 1, 2},
    {"submanifold 5^3", SPOPS_MAP_SUBMANIFOLD, 3, 5, 1, 1},
    {"stride 2, 2^3", SPOPS_MAP_CONVOLUTION, 3, 2, 2, 1},
    {"stride 2, 3^3", SPOPS_MAP_CONVOLUTION, 3, 3, 2, 1},
    {"transposed 2^3", SPOPS_MAP_TRANSPOSED, 3, 2, 2, 1},
    {"1^3", SPOPS_MAP_SUBMANIFOLD, 3, 1, 1, 1},
    {"submanifold 3^2", SPOPS_MAP_SUBMANIFOLD, 2, 3, 1, 1},
    {"submanifold 7^1", SPOPS_MAP_SUBMANIFOLD, 1, 7, 1, 1},
};
enum { NUM_GEOMETRIES = sizeof geometries / sizeof *geometries };

static const test_cloud clouds[] = {CLOUD_EMPTY, CLOUD_ONE, CLOUD_DENSE, CLOUD_CLUMPS};
enum { NUM_TESTED_CLOUDS = 4 };

typedef struct channels {
    int64_t in, out, groups;
} channels;
static const channels all_channels[] = {
    {1, 1, 1},    {3, 5, 1},    {16, 16, 1}, {33, 31, 1}, {64, 32, 1}, {8, 12, 4},  {7, 7, 7},
    {32, 32, 32}, {128, 64, 1}, {20, 20, 5}, {4, 96, 1},  {8, 200, 1}, {96, 128, 1}};
enum { NUM_CHANNELS = sizeof all_channels / sizeof *all_channels };

// A dataflow that every backend has, or the plan's choice; with any grouping.
static void draw_dataflow(test_rng *rng, spops_sparseconv_options *options)
{
    static const spops_dataflow dataflows[] = {
        SPOPS_DATAFLOW_AUTO, SPOPS_DATAFLOW_AUTO, SPOPS_DATAFLOW_FETCH_ON_DEMAND,
        SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER, SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER};
    options->dataflow = dataflows[test_rng_below(rng, 5)];
    options->crop_independent =
        options->dataflow != SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER && test_rng_below(rng, 2) != 0;
    options->grouping = (spops_grouping)test_rng_below(rng, SPOPS_GROUPING_ADAPTIVE + 1);
    if (options->grouping != SPOPS_GROUPING_ADAPTIVE) return;
    options->epsilon = 0.25 * (double)test_rng_below(rng, 5);
    options->batch_rows = test_rng_below(rng, 2) != 0 ? 1000000 : test_rng_below(rng, 100);
}

ParameterizedTestParameters(sparseconv, agrees)
{
    return every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0);
}
// One timeout for all: Criterion leaks memory of its own where a program has several.
ParameterizedTest(struct case_param *p, sparseconv, agrees, .timeout = 900)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 32;
    for (int g = 0; g < NUM_GEOMETRIES; ++g) {
        for (int s = 0; s < NUM_TESTED_CLOUDS; ++s) {
            const geometry *shape = &geometries[g];
            test_rng rng = test_rng_make(++stream);
            cloud_rows cloud = cloud_make(clouds[s], shape->dims, false, &rng);
            conv_case c = {.d = &d,
                           .kind = shape->kind,
                           .kernel = spops_kernel_shape_cube(shape->dims, shape->size,
                                                             shape->stride, shape->dilation)};
            spops_sparseconv_options options = spops_sparseconv_options_default();
            char text[256];
            options.backward = 1;
            draw_dataflow(&rng, &options);
            if (p->dtype == SPOPS_DTYPE_F64 &&
                options.dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER)
                options.dataflow = SPOPS_DATAFLOW_AUTO;
            create_sets(&c, &cloud);
            create_conv(&c, &options);
            for (int n = 0; n < (test_quick() ? 1 : 3); ++n) {
                const channels *width = &all_channels[test_rng_below(&rng, NUM_CHANNELS)];
                while (options.dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER &&
                       width->groups > 1)
                    width = &all_channels[test_rng_below(&rng, NUM_CHANNELS)];
                for (int backward = 0; backward < 2; ++backward) {
                    const char *what = test_describe(
                        text, "%s%s of %s, %lld to %lld channels in %lld groups", shape->name,
                        backward ? " backward" : "", cloud_name(clouds[s]), (long long)width->in,
                        (long long)width->out, (long long)width->groups);
                    check_layer(&c, what, backward != 0, (spops_dtype)p->dtype, width->in,
                                width->out, width->groups, ++stream);
                }
            }
            destroy_case(&c);
            cloud_free(&cloud);
        }
    }
    test_close(&d);
}

// Every activation after the sums of every tile that implicit GEMM has: of f16 and bf16 rounded to them
// and to f32, of f32 by tf32 too.
BackendTest(sparseconv, activations, .timeout = 900)
{
    static const int64_t all_out[] = {24, 32, 64, 96, 128, 256};
    test_rng rng = test_rng_make(77);
    cloud_rows cloud = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    spops_sparseconv_options options = spops_sparseconv_options_default();
    uint64_t stream = 0;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    conv_case c = {
        .d = &d, .kind = SPOPS_MAP_SUBMANIFOLD, .kernel = spops_kernel_shape_cube(3, 3, 1, 1)};
    create_sets(&c, &cloud);
    create_conv(&c, &options);
    for (int t = 0; t < NUM_ROW_DTYPES + 1; ++t)
        for (size_t k = 0; k < sizeof all_out / sizeof *all_out; ++k)
            for (int kind = 0; kind < REF_NUM_ACTIVATIONS; ++kind) {
                const bool tf32 = t == NUM_ROW_DTYPES;
                if (test_quick() && (t + (int)k + kind) % 4 != 0) continue;
                const spops_dtype dtype = tf32 ? SPOPS_DTYPE_F32 : test_row_dtypes[t];
                const int64_t in = 32, out = all_out[k];
                test_operator op = {.what = "activations",
                                    .stream = ++stream,
                                    .scratch_bytes = spops_sparseconv_scratch_bytes(c.conv),
                                    .user = &c,
                                    .run = run_forward,
                                    .reference = reference_forward};
                c.activation = (ref_activation){(spops_activation)kind, kind == 2 ? 0.3f : 0};
                c.math = tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
                c.ref.in_channels = in, c.ref.out_channels = out, c.ref.groups = 1;
                const bool fused = dataflow_of(d.ctx, c.conv, SPOPS_PASS_FORWARD, dtype, in, out,
                                               NULL) == SPOPS_DATAFLOW_IMPLICIT_GEMM;
                op.in[X] = test_input("x", c.ref.num_in, in, dtype, VALUES_RANDOM);
                op.in[W] = test_input("w", c.ref.num_taps * in, out, dtype, VALUES_RANDOM);
                op.in[BIAS] = test_input("bias", 1, out, SPOPS_DTYPE_F32, VALUES_RANDOM);
                // What does not apply it in the kernel of the sums rounds these first.
                op.out[OUT] =
                    test_output("out", c.ref.num_out, out,
                                fused && kind % 2 == 0 ? dtype : SPOPS_DTYPE_F32, CHECK_BOUND);
                if (tf32) op.out[OUT].unit = 0x1p-9;
                test_operator_run(&d, &op);
            }
    destroy_case(&c);
    cloud_free(&cloud);
    test_close(&d);
}

// ---- Real scans ---------------------------------------------------------------------------------

BackendTest(sparseconv, agrees_on_scans, .timeout = 900)
{
    enum { POINTS = 1500 };
    static const char *const scans[] = {"kitti_odom_a.npy", "indoor_redkitchen_a.npy"};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int f = 0; f < (test_quick() ? 1 : 2); ++f) {
        int64_t n = 0, cols = 0;
        float *points = NULL;
        int32_t rows[POINTS * 4];
        if (!cloud_load_f32(scans[f], &n, &cols, &points)) continue;
        // From the middle on, in voxels of 0.2 m outside and 0.04 m inside.
        for (int i = 0; i < POINTS; ++i) {
            rows[4 * i] = 0;
            for (int a = 0; a < 3; ++a)
                rows[4 * i + 1 + a] =
                    (int32_t)floor((double)points[(n / 2 + i) * cols + a] / (f == 0 ? 0.2 : 0.04));
        }
        free(points);
        const cloud_rows cloud = {3, POINTS, rows};
        for (int dataflow = SPOPS_DATAFLOW_AUTO; dataflow <= SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
             ++dataflow) {
            conv_case c = {.d = &d,
                           .kind = f == 0 ? SPOPS_MAP_SUBMANIFOLD : SPOPS_MAP_CONVOLUTION,
                           .kernel = spops_kernel_shape_cube(3, 3, f == 0 ? 1 : 2, 1)};
            spops_sparseconv_options options = spops_sparseconv_options_default();
            if (dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM) continue; // AUTO, where it is had
            options.backward = 1;
            options.dataflow = (spops_dataflow)dataflow;
            create_sets(&c, &cloud);
            create_conv(&c, &options);
            for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_F16; ++t)
                for (int backward = 0; backward < 2; ++backward)
                    check_layer(&c, scans[f], backward != 0, (spops_dtype)t, 16, 24, 1,
                                (uint64_t)(8000 + 100 * f + 10 * dataflow + 2 * t + backward));
            destroy_case(&c);
        }
    }
    test_close(&d);
}

// ---- Against a dense convolution ----------------------------------------------------------------

typedef struct dense_case {
    conv_case sparse;
    int32_t in_size[3], out_size[3];
    int32_t stride, padding, dilation;
} dense_case;

static spops_status run_dense(void *user, spops_context *ctx, const spops_matrix *const *in,
                              const spops_matrix *const *out)
{
    return run_forward(&((dense_case *)user)->sparse, ctx, in, out);
}

static void reference_dense(void *user, const double *const *in, ref_tensor *const *out)
{
    const dense_case *c = (const dense_case *)user;
    const ref_sparseconv *ref = &c->sparse.ref;
    ref_dense_convolution(c->in_size, c->out_size, c->sparse.kernel.size, c->stride, c->padding,
                          c->dilation, ref->in_channels, ref->out_channels, in[X], in[W], out[OUT]);
}

// Every cell of a grid, in the order of a dense tensor.
static ref_set full_grid(const int32_t size[3])
{
    const int64_t n = (int64_t)size[0] * size[1] * size[2];
    int32_t *rows = (int32_t *)malloc((size_t)n * 4 * sizeof *rows);
    for (int64_t i = 0; i < n; ++i) {
        rows[4 * i] = 0;
        rows[4 * i + 1] = (int32_t)(i / size[2] / size[1]);
        rows[4 * i + 2] = (int32_t)(i / size[2] % size[1]);
        rows[4 * i + 3] = (int32_t)(i % size[2]);
    }
    ref_set set = ref_unique(3, n, rows, NULL);
    free(rows);
    return set;
}

static void check_dense(test_device *d, int32_t size, int32_t stride, int32_t padding,
                        int32_t dilation, spops_dtype dtype, uint64_t stream)
{
    static const int32_t grid[3] = {6, 5, 9};
    dense_case c = {.sparse = {.d = d}, .stride = stride, .padding = padding, .dilation = dilation};
    conv_case *s = &c.sparse;
    char text[256];

    s->kind = stride == 1 ? SPOPS_MAP_SUBMANIFOLD : SPOPS_MAP_CONVOLUTION;
    s->kernel = spops_kernel_shape_cube(3, size, stride, dilation);
    for (int a = 0; a < 3; ++a) {
        s->kernel.padding[a] = padding;
        c.in_size[a] = grid[a];
        c.out_size[a] = (grid[a] + 2 * padding - dilation * (size - 1) - 1) / stride + 1;
    }
    s->in = full_grid(c.in_size);
    s->out = full_grid(c.out_size);
    s->in_coords = create_set(d, &s->in);
    s->out_coords = stride == 1 ? NULL : create_set(d, &s->out);
    create_conv(s, NULL);
    s->ref.in_channels = 24;
    s->ref.out_channels = 40;
    s->ref.groups = 1;
    test_operator op = {
        .what = test_describe(text, "dense %d^3, stride %d, padding %d", size, stride, padding),
        .stream = stream,
        .scratch_bytes = spops_sparseconv_scratch_bytes(s->conv),
        .user = &c,
        .run = run_dense,
        .reference = reference_dense};
    op.in[X] = test_input("x", s->in.n, 24, dtype, VALUES_RANDOM);
    op.in[W] = test_input("w", s->ref.num_taps * 24, 40, dtype, VALUES_RANDOM);
    op.out[OUT] = test_output("out", s->out.n, 40, dtype, CHECK_BOUND);
    test_operator_run(d, &op);
    destroy_case(s);
}

CaseTest(sparseconv, equals_dense_convolution, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0),
         .timeout = 900)
{
    test_device d;
    const uint64_t stream = case_number(p) << 32;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    check_dense(&d, 3, 1, 1, 1, (spops_dtype)p->dtype, stream + 1);
    check_dense(&d, 5, 1, 2, 1, (spops_dtype)p->dtype, stream + 2);
    check_dense(&d, 3, 1, 2, 2, (spops_dtype)p->dtype, stream + 3);
    check_dense(&d, 2, 2, 0, 1, (spops_dtype)p->dtype, stream + 4);
    check_dense(&d, 3, 2, 1, 1, (spops_dtype)p->dtype, stream + 5);
    test_close(&d);
}

// ---- A frame after the other, from rows to output, also in one captured graph -------------------

enum { FRAME_CAPACITY = 600, FRAME_PAIRS = FRAME_CAPACITY * 27, FRAME_IN = 24, FRAME_OUT = 32 };

typedef struct frame_case {
    test_device *d;
    spops_coords *coords;
    spops_kernel_map *map;
    spops_sparseconv *conv;
    int32_t *num_rows, *rows; // where d runs
    guarded x, w, out;
    ref_tensor expected;
} frame_case;

static guarded capacity_rows(test_device *d, const char *name, int64_t cols)
{
    return guarded_create(d->backend, name, FRAME_CAPACITY, cols, 0, 0, SPOPS_DTYPE_F32);
}

static spops_matrix whole(const guarded *g)
{
    spops_matrix m = g->view;
    m.rows = FRAME_CAPACITY;
    return m;
}

// Another cloud for each version; rows after it are NaN in x.
static void prepare_frame(void *user, int version)
{
    frame_case *c = (frame_case *)user;
    test_rng rng = test_rng_make(77 + (uint64_t)version);
    spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    int32_t rows[FRAME_CAPACITY * 4];
    ref_set given;

    for (int i = 0; i < FRAME_CAPACITY; ++i) {
        rows[4 * i] = 0;
        for (int a = 1; a < 4; ++a)
            rows[4 * i + a] = (int32_t)test_rng_below(&rng, 12);
    }
    given = ref_unique(3, version == 0 ? 500 : 130, rows, NULL);
    c->x.view.rows = c->out.view.rows = given.n;
    guarded_poison(&c->x, 0xff);
    double *x = guarded_fill(&c->x, &rng, VALUES_RANDOM, false, 1);
    double *w = guarded_fill(&c->w, &rng, VALUES_RANDOM, false, 1);
    guarded_upload(&c->x);
    guarded_upload(&c->w);

    int32_t n = (int32_t)given.n;
    cr_assert(device_upload(c->d->backend, c->num_rows, &n, sizeof n));
    cr_assert(device_upload(c->d->backend, c->rows, given.rows, (size_t)given.n * 4 * sizeof n));
    int32_t *table = ref_map(SPOPS_MAP_SUBMANIFOLD, &kernel, &given, &given);
    const ref_sparseconv conv = {given.n, given.n, 27, table, FRAME_IN, FRAME_OUT, 1, x, w};
    ref_tensor_destroy(&c->expected);
    c->expected = ref_tensor_create(given.n, FRAME_OUT);
    ref_sparseconv_forward(&conv, NULL, &c->expected);
    free(table), free(x), free(w);
    ref_set_free(&given);
}

static spops_status enqueue_frame(void *user, spops_context *ctx)
{
    frame_case *c = (frame_case *)user;
    spops_status status = spops_coords_update(ctx, c->coords, c->num_rows, c->rows);
    if (!status) status = spops_kernel_map_update(ctx, c->map, c->coords, NULL);
    if (!status) status = spops_sparseconv_update(ctx, c->conv);
    if (!status)
        status =
            spops_sparseconv_execute(ctx, c->conv, whole(&c->x), c->w.view, NULL, whole(&c->out));
    return status;
}

// Rows after those in use are left alone: they are padding here, which is checked.
static void verify_frame(void *user, int version, const char *what)
{
    frame_case *c = (frame_case *)user;
    (void)version;
    guarded_check(&c->out, &c->expected, false, what);
}

LaunchTest(sparseconv, serves_frames)
{
    test_device d;
    spops_coords_options options = spops_coords_options_default();
    spops_kernel_map_options map_options = spops_kernel_map_options_default();
    const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, 11, 11, 11, 0}};
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    static const int32_t zeros[FRAME_CAPACITY * 4];

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    frame_case c = {.d = &d};
    options.box = &box;
    map_options.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER;
    map_options.max_pairs = FRAME_PAIRS;
    test_expect_ok(
        d.ctx, spops_coords_reserve(d.ctx, 3, FRAME_CAPACITY, FRAME_CAPACITY, &options, &c.coords),
        "");
    test_expect_ok(d.ctx,
                   spops_kernel_map_reserve(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, c.coords, NULL,
                                            &map_options, &c.map),
                   "");
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, c.map, NULL, &c.conv), "");
    c.num_rows = test_upload_i32(&d, zeros, 1);
    c.rows = test_upload_i32(&d, zeros, FRAME_CAPACITY * 4);
    c.x = capacity_rows(&d, "x", FRAME_IN);
    c.w = guarded_create(d.backend, "w", 27 * FRAME_IN, FRAME_OUT, 0, 0, SPOPS_DTYPE_F32);
    c.out = capacity_rows(&d, "out", FRAME_OUT);
    test_call call = {.user = &c,
                      .prepare = prepare_frame,
                      .enqueue = enqueue_frame,
                      .verify = verify_frame,
                      .scratch_bytes = spops_sparseconv_scratch_bytes(c.conv),
                      .inputs = {&c.x, &c.w},
                      .outputs = {&c.out},
                      .what = "frames of a sparse convolution"};
    test_run(&d, &call);
    guarded_destroy(&c.x), guarded_destroy(&c.w), guarded_destroy(&c.out);
    ref_tensor_destroy(&c.expected);
    test_free(&d, c.num_rows), test_free(&d, c.rows);
    spops_sparseconv_destroy(c.conv);
    spops_kernel_map_destroy(c.map);
    spops_coords_destroy(c.coords);
    test_close(&d);
}

// ---- Several plans refilled at once ------------------------------------------------------------

// Refilled together, also where some have no pairs, plans give what each gives when it is refilled
// alone.
BackendTest(sparseconv, sets_several)
{
    enum { PLANS = 3, C = 32, TAPS = 27, CAPACITY = 1200 };
    static const spops_coords_box box = {{0, -1000, -1000, -1000, 0}, {9, 1000, 1000, 1000, 0}};
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    test_rng rng = test_rng_make(611);
    cloud_rows cloud = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    spops_coords_options co = spops_coords_options_default();
    spops_coords *coords = NULL;
    spops_kernel_map *maps[PLANS] = {0};
    spops_sparseconv *convs[PLANS] = {0};
    int32_t num_convs = PLANS;
    co.box = &box;
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, CAPACITY, CAPACITY, &co, &coords), "set");
    for (int i = 0; i < PLANS; ++i) { // the last: without pairs, where implicit GEMM is there
        spops_kernel_map_options mo = spops_kernel_map_options_default();
        spops_sparseconv_options o = spops_sparseconv_options_default();
        mo.contents = SPOPS_MAP_ORDER | (i < PLANS - 1 ? SPOPS_MAP_PAIRS : 0);
        mo.max_pairs = CAPACITY * TAPS;
        if (i == PLANS - 1) o.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
        test_expect_ok(d.ctx,
                       spops_kernel_map_reserve(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL,
                                                &mo, &maps[i]),
                       "map");
        const spops_status status = spops_sparseconv_create(d.ctx, maps[i], &o, &convs[i]);
        if (i == PLANS - 1 && status == SPOPS_STATUS_NOT_SUPPORTED)
            --num_convs;
        else
            test_expect_ok(d.ctx, status, "plan");
    }
    const int32_t n = (int32_t)cloud.n;
    int32_t *num = test_upload_i32(&d, &n, 1);
    int32_t *rows = (int32_t *)calloc(CAPACITY * 4, sizeof *rows);
    memcpy(rows, cloud.rows, (size_t)n * 16);
    int32_t *given = test_upload_i32(&d, rows, CAPACITY * 4);
    guarded x = guarded_create(d.backend, "x", CAPACITY, C, 0, 0, SPOPS_DTYPE_F16);
    guarded w = guarded_create(d.backend, "w", TAPS * C, C, 0, 0, SPOPS_DTYPE_F16);
    guarded out[2 * PLANS];
    free(guarded_fill(&x, &rng, VALUES_RANDOM, false, 1));
    free(guarded_fill(&w, &rng, VALUES_RANDOM, false, 1));
    guarded_upload(&x), guarded_upload(&w);
    test_expect_ok(d.ctx, spops_coords_update(d.ctx, coords, num, given), "set");
    for (int i = 0; i < PLANS; ++i)
        test_expect_ok(d.ctx, spops_kernel_map_update(d.ctx, maps[i], coords, NULL), "map");
    spops_plan *plans[PLANS];
    for (int i = 0; i < num_convs; ++i)
        plans[i] = (spops_plan *)convs[i];
    for (int alone = 0; alone < 2; ++alone) {
        if (alone == 0) test_expect_ok(d.ctx, spops_update(d.ctx, plans, num_convs), "all");
        for (int i = 0; i < num_convs; ++i) {
            guarded *y = &out[alone * PLANS + i];
            *y = guarded_create(d.backend, "out", CAPACITY, C, 0, 0, SPOPS_DTYPE_F16);
            guarded_poison(y, 0xff);
            guarded_upload(y);
            if (alone == 1) test_expect_ok(d.ctx, spops_sparseconv_update(d.ctx, convs[i]), "one");
            test_expect_ok(d.ctx,
                           spops_sparseconv_execute(d.ctx, convs[i], x.view, w.view, NULL, y->view),
                           "run");
        }
    }
    test_wait(&d);
    for (int i = 0; i < 2 * PLANS; ++i)
        if (i % PLANS < num_convs) guarded_download(&out[i]);
    unsigned char *first = guarded_elements(&out[0]);
    for (int i = 0; i < 2 * PLANS; ++i)
        if (i % PLANS < num_convs) guarded_check_bits(&out[i], first, "refilled together, alone");
    free(first);
    for (int i = 0; i < 2 * PLANS; ++i)
        if (i % PLANS < num_convs) guarded_destroy(&out[i]);
    guarded_destroy(&x), guarded_destroy(&w);
    for (int i = 0; i < PLANS; ++i)
        spops_sparseconv_destroy(convs[i]), spops_kernel_map_destroy(maps[i]);
    spops_coords_destroy(coords);
    test_free(&d, num), test_free(&d, given);
    free(rows);
    cloud_free(&cloud);
    test_close(&d);
}

// ---- The epilogue -------------------------------------------------------------------------------

// A layer of as many channels in as out with all that may follow a sum, against FP64.
static void check_finish(test_device *d, const cloud_rows *cloud, int64_t cols, int32_t tile,
                         spops_dtype dtype)
{
    conv_case c = {
        .d = d, .kind = SPOPS_MAP_SUBMANIFOLD, .kernel = spops_kernel_shape_cube(3, 3, 1, 1)};
    const double step = dtype == SPOPS_DTYPE_F16 ? 0x1p-10 : 0x1p-7;
    spops_sparseconv_options o = spops_sparseconv_options_default();
    test_rng rng = test_rng_make(5 + (uint64_t)dtype);
    guarded x, w, bias, scale, shift, residual, out;
    spops_conv_layer layer = spops_conv_layer_default();
    ref_epilogue epilogue = {NULL, NULL, NULL, NULL, {SPOPS_ACTIVATION_RELU, 0}};
    char what[64];

    snprintf(what, sizeof what, "%d columns, tile %d, %s", (int)cols, (int)tile,
             test_dtype_name(dtype));
    o.tile = tile;
    create_sets(&c, cloud);
    create_conv(&c, &o);
    const int64_t rows = c.out.n;
    x = guarded_create(d->backend, "x", rows, cols, 0, 0, dtype);
    w = guarded_create(d->backend, "w", 27 * cols, cols, 0, 0, dtype);
    bias = guarded_create(d->backend, "bias", 1, cols, 0, 0, SPOPS_DTYPE_F32);
    scale = guarded_create(d->backend, "scale", 1, cols, 0, 0, SPOPS_DTYPE_F32);
    shift = guarded_create(d->backend, "shift", 1, cols, 0, 0, SPOPS_DTYPE_F32);
    residual = guarded_create(d->backend, "residual", rows, cols, 0, 0, dtype);
    out = guarded_create(d->backend, "out", rows, cols, 0, 0, dtype);
    guarded *const inputs[] = {&x, &w, &bias, &scale, &shift, &residual};
    double *values[6];
    for (int i = 0; i < 6; ++i) {
        values[i] = guarded_fill(inputs[i], &rng, VALUES_RANDOM, false, 1);
        guarded_upload(inputs[i]);
    }
    guarded_poison(&out, 0xff);
    guarded_upload(&out);
    layer.bias = vector(&bias.view);
    layer.scale = vector(&scale.view);
    layer.shift = vector(&shift.view);
    layer.residual = &residual.view;
    layer.activation = SPOPS_ACTIVATION_RELU;
    test_expect_ok(
        d->ctx, spops_sparseconv_execute(d->ctx, c.conv, x.view, w.view, &layer, out.view), what);
    test_wait(d);
    guarded_download(&out);

    c.ref.in_channels = c.ref.out_channels = cols;
    c.ref.groups = 1;
    c.ref.x = values[0];
    c.ref.w = values[1];
    epilogue.bias = values[2];
    epilogue.scale = values[3];
    epilogue.shift = values[4];
    epilogue.residual = values[5];
    ref_tensor expected = ref_tensor_create(rows, cols);
    double *bounds = malloc((size_t)(rows * cols) * sizeof *bounds);
    ref_sparseconv_forward(&c.ref, &epilogue, &expected);
    for (int64_t i = 0; i < rows * cols; ++i) /* f32's own errors are far below the last term */
        bounds[i] = 2 * step * expected.scale[i];
    guarded_check_bounds(&out, &expected, bounds, what);
    guarded_check_padding(&out, what);
    ref_tensor_destroy(&expected);
    free(bounds);
    for (int i = 0; i < 6; ++i)
        free(values[i]), guarded_destroy(inputs[i]);
    guarded_destroy(&out);
    destroy_case(&c);
}

// A narrow output is rounded before an epilogue and after it: two roundings of the dtype.
BackendTest(sparseconv, finishes_narrow_outputs)
{
    static const int32_t rows[5 * 4] = {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 4, 4, 4, 0, 5, 4, 4};
    const cloud_rows cloud = {3, 5, (int32_t *)(uintptr_t)rows};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int dtype = SPOPS_DTYPE_F16; dtype <= SPOPS_DTYPE_BF16; ++dtype)
        check_finish(&d, &cloud, 12, 0, (spops_dtype)dtype);
    test_close(&d);
}

// Wide outputs, whose residuals come in several parts: tiles of the table's choice, single ones and pairs.
BackendTest(sparseconv, finishes_wide_outputs, .timeout = 600)
{
    static const struct {
        int64_t cols;
        int32_t tile;
    } cases[] = {{96, 0}, {96, 18}, {96, 19}, {128, 0}, {128, 4}, {128, 20}, {128, 21}, {120, 20}};
    test_device d;
    test_rng rng = test_rng_make(41);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const bool has_tiles = d.backend == SPOPS_BACKEND_CUDA && d.ctx->info.compute_capability == 90;
    cloud_rows cloud = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        if (cases[i].tile == 0 || has_tiles)
            check_finish(&d, &cloud, cases[i].cols, cases[i].tile,
                         i % 2 == 0 ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_BF16);
    cloud_free(&cloud);
    test_close(&d);
}

// One row, and as many scales as channels; a NaN that an activation keeps.
BackendTest(sparseconv, one_wide_row)
{
    enum { IN = 600, AT = 256 };
    static const int32_t row[4];
    static int8_t q[IN];
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 1, 1, 1);
    spops_kernel_map_options mo = spops_kernel_map_options_default();
    spops_sparseconv_options o = spops_sparseconv_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    spops_coords *coords = NULL;
    spops_kernel_map *map = NULL;
    spops_sparseconv *conv = NULL;
    void *codes = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    mo.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_CSR;
    o.quantized = 1;
    o.dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND;
    o.max_in_channels = IN;
    guarded x = guarded_create(d.backend, "x", 1, IN, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d.backend, "w", IN, 2, 0, 0, SPOPS_DTYPE_F32);
    guarded scales = guarded_create(d.backend, "x_scales", 1, IN, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", 1, 2, 0, 0, SPOPS_DTYPE_F32);
    for (int c = 0; c < IN; ++c) { // column 0 sums, column 1 takes one channel
        guarded_set(&x, 0, c, c == 3 ? NAN : 1.0);
        guarded_set(&w, c, 0, 1.0), guarded_set(&w, c, 1, c == AT ? 1.0 : 0.0);
        guarded_set(&scales, 0, c, c + 1.0);
        q[c] = 1;
    }
    guarded_upload(&x), guarded_upload(&w), guarded_upload(&scales);
    cr_assert(device_alloc(d.backend, sizeof q, &codes) &&
                  device_upload(d.backend, codes, q, sizeof q),
              "%s", device_error());
    int32_t *rows = test_upload_i32(&d, row, 4);
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, 1, rows, NULL, &coords), "set");
    test_expect_ok(
        d.ctx,
        spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL, &mo, &map),
        "map");
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, map, &o, &conv), "conv");
    layer.x_scales = vector(&scales.view);
    layer.x_scales_by_channel = 1;
    test_expect_ok(d.ctx,
                   spops_sparseconv_execute(d.ctx, conv,
                                            spops_matrix_dense(codes, 1, IN, SPOPS_DTYPE_I8),
                                            w.view, &layer, out.view),
                   "i8");
    test_wait(&d);
    guarded_download(&out);
    cr_assert(guarded_get(&out, 0, 0) == IN * (IN + 1) / 2.0 && guarded_get(&out, 0, 1) == AT + 1.0,
              "%g, %g", guarded_get(&out, 0, 0), guarded_get(&out, 0, 1));
    layer = spops_conv_layer_default();
    layer.activation = SPOPS_ACTIVATION_RELU;
    test_expect_ok(d.ctx, spops_sparseconv_execute(d.ctx, conv, x.view, w.view, &layer, out.view),
                   "NaN");
    test_wait(&d);
    guarded_download(&out);
    cr_assert(isnan(guarded_get(&out, 0, 0)), "%g", guarded_get(&out, 0, 0));
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&scales), guarded_destroy(&out);
    spops_sparseconv_destroy(conv);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    test_free(&d, rows), test_free(&d, codes);
    test_close(&d);
}

// ---- Layers that read ahead -------------------------------------------------------------------------

enum { CHAIN = 6 };

// Layers one after another, the fourth a linear one. `ahead`: those after the first read ahead.
static void run_chain(conv_case *c, guarded *x, guarded *w, guarded *numbers, int32_t ahead)
{
    for (int i = 0; i < CHAIN; ++i) {
        spops_conv_layer layer = spops_conv_layer_default();
        layer.scale = vector(&numbers[2 * i].view);
        layer.shift = vector(&numbers[2 * i + 1].view);
        layer.activation = SPOPS_ACTIVATION_RELU;
        layer.residual = i == CHAIN - 1 ? &x[i].view : NULL;
        layer.reads_ahead = i > 0 ? ahead : 0;
        test_expect_ok(
            c->d->ctx,
            i == 3 ? spops_linear_execute(c->d->ctx, x[i].view, w[i].view, &layer, x[i + 1].view)
                   : spops_sparseconv_execute(c->d->ctx, c->conv, x[i].view, w[i].view, &layer,
                                              x[i + 1].view),
            "layer");
    }
    test_wait(c->d);
}

// Random numbers from -by to by, uploaded.
static guarded random_rows(test_device *d, int64_t rows, int64_t cols, spops_dtype dtype, double by,
                           test_rng *rng)
{
    guarded g = guarded_create(d->backend, "rows", rows, cols, 0, 0, dtype);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
            guarded_set(&g, r, c, by * ((double)test_rng_below(rng, 2001) - 1000) / 1000);
    guarded_upload(&g);
    return g;
}

static void check_chain(test_device *d, int32_t tile, spops_dtype dtype)
{
    static const int64_t cols[CHAIN + 1] = {48, 64, 96, 128, 256, 128, 128};
    conv_case c = {
        .d = d, .kind = SPOPS_MAP_SUBMANIFOLD, .kernel = spops_kernel_shape_cube(3, 3, 1, 1)};
    spops_sparseconv_options o = spops_sparseconv_options_default();
    test_rng rng = test_rng_make(71);
    cloud_rows cloud = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    guarded x[CHAIN + 1], w[CHAIN], numbers[2 * CHAIN];
    unsigned char *wanted[CHAIN + 1];
    double sum = 0;

    o.tile = tile;
    create_sets(&c, &cloud);
    create_conv(&c, &o);
    x[0] = random_rows(d, c.out.n, cols[0], dtype, 1, &rng);
    for (int i = 0; i < CHAIN; ++i) {
        const int64_t depth = (i == 3 ? 1 : 27) * cols[i];
        x[i + 1] = guarded_create(d->backend, "x", c.out.n, cols[i + 1], 0, 0, dtype);
        w[i] = random_rows(d, depth, cols[i + 1], dtype, 1 / sqrt((double)depth), &rng);
        for (int k = 2 * i; k < 2 * i + 2; ++k)
            numbers[k] = random_rows(d, 1, cols[i + 1], SPOPS_DTYPE_F32, 1, &rng);
    }
    for (int32_t ahead = 0; ahead < 2; ++ahead) {
        for (int i = 1; i <= CHAIN; ++i)
            guarded_poison(&x[i], 0xff), guarded_upload(&x[i]);
        run_chain(&c, x, w, numbers, ahead);
        for (int i = 1; i <= CHAIN; ++i) {
            guarded_download(&x[i]);
            if (ahead == 0) wanted[i] = guarded_elements(&x[i]);
            if (ahead == 1) guarded_check_bits(&x[i], wanted[i], "reads ahead");
        }
    }
    for (int64_t k = 0; k < cols[CHAIN]; ++k)
        sum += guarded_get(&x[CHAIN], c.out.n / 2, k); // of a ReLU: NaN and infinity stay
    cr_assert(sum > 0 && isfinite(sum), "the last layer's sum is %g", sum);
    for (int i = 0; i <= CHAIN; ++i) {
        guarded_destroy(&x[i]);
        if (i > 0) free(wanted[i]);
        if (i < CHAIN)
            guarded_destroy(&w[i]), guarded_destroy(&numbers[2 * i]),
                guarded_destroy(&numbers[2 * i + 1]);
    }
    cloud_free(&cloud);
    destroy_case(&c);
}

// The same bits, in tiles of the table's choice and in pairs of tiles.
BackendTest(sparseconv, reads_ahead, .timeout = 600)
{
    static const int32_t tiles[] = {0, 19, 20};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const bool has_pairs = d.backend == SPOPS_BACKEND_CUDA && d.ctx->info.compute_capability == 90;
    for (int t = 0; t < (has_pairs ? 3 : 1); ++t) {
        check_chain(&d, tiles[t], SPOPS_DTYPE_F16);
        if (t == 0) check_chain(&d, 0, SPOPS_DTYPE_BF16);
    }
    test_close(&d);
}

// ---- Features of i8 -----------------------------------------------------------------------------

enum { I8_ROWS = 60, I8_IN = 24, I8_OUT = 40, I8_MOST_STRIDE = 25 };

// Numbers of i8 where d runs, and what they count as in `dtype`.
static int8_t *make_features(test_device *d, test_rng *rng, int64_t rows, int64_t stride,
                             const float *scales, bool by_channel, spops_dtype dtype,
                             double *values)
{
    int8_t host[I8_ROWS * I8_MOST_STRIDE];
    void *device = NULL;
    memset(host, 0x55, sizeof host);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < I8_IN; ++c) {
            const int8_t q = (int8_t)(test_rng_below(rng, 256) - 128);
            const float widened = scales[by_channel ? c : 0] * (float)q;
            host[r * stride + c] = q;
            values[r * I8_IN + c] = test_round((double)widened, dtype);
        }
    cr_assert(device_alloc(d->backend, sizeof host, &device));
    cr_assert(device_upload(d->backend, device, host, sizeof host));
    return (int8_t *)device;
}

static void check_i8(test_device *d, spops_dataflow dataflow, spops_dtype dtype, bool by_channel,
                     test_rng *rng)
{
    cloud_rows cloud = cloud_make(CLOUD_CLUMPS, 3, false, rng);
    conv_case c = {
        .d = d, .kind = SPOPS_MAP_SUBMANIFOLD, .kernel = spops_kernel_shape_cube(3, 3, 1, 1)};
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    float scales[I8_IN];
    char text[256];

    if (cloud.n > I8_ROWS) cloud.n = I8_ROWS;
    options.dataflow = dataflow;
    options.quantized = 1;
    options.max_in_channels = options.max_out_channels = I8_OUT;
    create_sets(&c, &cloud);
    create_conv(&c, &options);
    const int64_t n = c.ref.num_in, stride = by_channel ? I8_MOST_STRIDE : I8_IN;
    guarded scale =
        guarded_create(d->backend, "x_scales", 1, by_channel ? I8_IN : 1, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d->backend, "w", 27 * I8_IN, I8_OUT, 0, 0, dtype);
    guarded out = guarded_create(d->backend, "out", n, I8_OUT, 3, 0, dtype);
    double *given = guarded_fill(&scale, rng, VALUES_RANDOM, false, 1);
    double *weights = guarded_fill(&w, rng, VALUES_RANDOM, false, 1);
    double *x = malloc((size_t)(n * I8_IN) * sizeof *x);
    cr_assert_not_null(x);
    for (int i = 0; i < (by_channel ? I8_IN : 1); ++i)
        scales[i] = (float)given[i];
    guarded_upload(&scale), guarded_upload(&w);
    guarded_poison(&out, 0xff);
    guarded_upload(&out);
    int8_t *q = make_features(d, rng, n, stride, scales, by_channel, dtype, x);
    spops_matrix features = spops_matrix_dense(q, n, I8_IN, SPOPS_DTYPE_I8);
    features.row_stride = stride;
    layer.x_scales = vector(&scale.view);
    layer.x_scales_by_channel = by_channel;
    test_expect_ok(
        d->ctx, spops_sparseconv_execute(d->ctx, c.conv, features, w.view, &layer, out.view), "i8");
    test_wait(d);
    guarded_download(&out);

    c.ref.in_channels = I8_IN;
    c.ref.out_channels = I8_OUT;
    c.ref.groups = 1;
    c.ref.x = x;
    c.ref.w = weights;
    ref_tensor expected = ref_tensor_create(n, I8_OUT);
    ref_sparseconv_forward(&c.ref, NULL, &expected);
    const char *what = test_describe(text, "i8 by %s, %s, %s", by_channel ? "channel" : "tensor",
                                     test_dtype_name(dtype), spops_dataflow_name(dataflow));
    if (dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER && dtype != SPOPS_DTYPE_F32)
        check_rounded_products(&out, &expected, 27, what);
    else
        guarded_check(&out, &expected, false, what);
    guarded_check_padding(&out, what);

    // What is refused.
    features.cols = I8_IN;
    layer.x_scales = NULL;
    test_expect(d->ctx,
                spops_sparseconv_execute(d->ctx, c.conv, features, w.view, &layer, out.view),
                SPOPS_STATUS_INVALID_ARGUMENT, "x_scales is NULL", what);
    layer.x_scales = vector(&scale.view);
    layer.x_scales_by_channel = 2;
    test_expect(d->ctx,
                spops_sparseconv_execute(d->ctx, c.conv, features, w.view, &layer, out.view),
                SPOPS_STATUS_INVALID_ARGUMENT, "layer->x_scales_by_channel is 2", what);
    layer.x_scales_by_channel = 0;
    spops_sparseconv_destroy(c.conv);
    options.quantized = 0;
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, c.map, &options, &c.conv), "plain");
    test_expect(d->ctx,
                spops_sparseconv_execute(d->ctx, c.conv, features, w.view, &layer, out.view),
                SPOPS_STATUS_INVALID_ARGUMENT, "conv was made without options->quantized", what);
    ref_tensor_destroy(&expected);
    free(given), free(weights), free(x);
    device_free(d->backend, q);
    guarded_destroy(&scale), guarded_destroy(&w), guarded_destroy(&out);
    destroy_case(&c);
    cloud_free(&cloud);
}

CaseTest(sparseconv, takes_i8_features, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0),
         .timeout = 900)
{
    static const spops_dataflow dataflows[] = {SPOPS_DATAFLOW_AUTO, SPOPS_DATAFLOW_FETCH_ON_DEMAND,
                                               SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER};
    test_rng rng = test_rng_make(case_number(p) << 32);
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < (p->dtype == SPOPS_DTYPE_F64 ? 2 : 3); ++i)
        for (int by_channel = 0; by_channel < 2; ++by_channel)
            check_i8(&d, dataflows[i], (spops_dtype)p->dtype, by_channel != 0, &rng);
    test_close(&d);
}

// ---- What is refused ----------------------------------------------------------------------------

// Maps whose counts only the device knows, groups, and channels beyond those of the plan.
static void refuse_gather_scatter(test_device *d, const conv_case *c, spops_matrix x,
                                  spops_matrix w, spops_matrix out)
{
    spops_coords_options coords_options = spops_coords_options_default();
    const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, 11, 11, 11, 0}};
    spops_kernel_map_options map_options = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    spops_sparseconv *conv = NULL;
    spops_kernel_map *map = NULL;
    spops_coords *coords = NULL;

    coords_options.box = &box;
    map_options.contents = SPOPS_MAP_PAIRS;
    map_options.max_pairs = 100;
    options.dataflow = SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, 10, 10, &coords_options, &coords), "");
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, c->kind, &c->kernel, coords, NULL, &map_options, &map),
        "");
    test_expect(d->ctx, spops_sparseconv_create(d->ctx, map, &options, &conv),
                SPOPS_STATUS_NOT_SUPPORTED,
                "sparseconv_create: map was made by reserve, expected one made by create for "
                "gather_matmul_scatter",
                "a capacity");
    cr_assert_null(conv);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);

    options.max_in_channels = 2;
    options.backward = 1;
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, c->map, &options, &conv), "narrow");
    test_expect(d->ctx, spops_sparseconv_execute(d->ctx, conv, x, w, NULL, out),
                SPOPS_STATUS_NOT_SUPPORTED,
                "conv was made for gather_matmul_scatter, which does not serve this call", "wide");
    layer.groups = 2;
    w.rows /= 2;
    test_expect(d->ctx, spops_sparseconv_execute(d->ctx, conv, x, w, &layer, out),
                SPOPS_STATUS_NOT_SUPPORTED, "does not serve this call", "groups");
    for (int pass = SPOPS_PASS_FORWARD; pass <= SPOPS_PASS_GRAD_W; ++pass)
        for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype)
            cr_assert_eq(
                dataflow_of(d->ctx, conv, pass, (spops_dtype)dtype, x.cols, out.cols, &layer),
                SPOPS_DATAFLOW_AUTO, "pass %d, %s", pass, spops_dtype_name((spops_dtype)dtype));
    spops_sparseconv_destroy(conv);
}

// What the rows cannot say; tests/test_operators.c has the faults of arguments.
BackendTest(sparseconv, refuses)
{
    enum { ROWS = 2, TAPS = 27, C = 4 };
    static const int32_t rows[ROWS * 4] = {0, 0, 0, 0, 0, 0, 0, 1};
    static const int32_t zeros[TAPS * C * C];
    static const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const cloud_rows cloud = {3, ROWS, (int32_t *)(uintptr_t)rows};
    spops_kernel_map_options no_pairs = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    spops_sparseconv *conv = NULL;
    spops_kernel_map *map = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    conv_case c = {
        .d = &d, .kind = SPOPS_MAP_SUBMANIFOLD, .kernel = spops_kernel_shape_cube(3, 3, 1, 1)};
    create_sets(&c, &cloud);
    create_conv(&c, NULL);
    float *x = (float *)(void *)test_upload_i32(&d, zeros, ROWS * C);
    float *y = (float *)(void *)test_upload_i32(&d, zeros, ROWS * C);
    float *w = (float *)(void *)test_upload_i32(&d, zeros, TAPS * C * C);
    const spops_dtype f32 = SPOPS_DTYPE_F32;
    const spops_matrix mx = spops_matrix_dense(x, ROWS, C, f32);
    const spops_matrix my = spops_matrix_dense(y, ROWS, C, f32);
    const spops_matrix mw = spops_matrix_dense(w, TAPS * C, C, f32);
    spops_context *ctx = d.ctx;

    // plans
    no_pairs.contents = SPOPS_MAP_TABLE;
    test_expect_ok(
        ctx, spops_kernel_map_create(ctx, c.kind, &c.kernel, c.in_coords, NULL, &no_pairs, &map),
        "map");
    test_expect(ctx, spops_sparseconv_create(ctx, map, NULL, &conv), invalid,
                "sparseconv_create: map has no pairs", "no pairs");
    spops_kernel_map_destroy(map);
    if (d.backend == SPOPS_BACKEND_CPU) {
        options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
        test_expect(ctx, spops_sparseconv_create(ctx, c.map, &options, &conv),
                    SPOPS_STATUS_NOT_SUPPORTED, "the cpu backend has no implicit_gemm", "no GEMM");
    }
    refuse_gather_scatter(&d, &c, mx, mw, my);
    cr_assert_null(conv);

    // layers
    test_expect(
        ctx,
        spops_sparseconv_execute(ctx, c.conv, spops_matrix_dense(x, ROWS, 0, f32), mw, NULL, my),
        invalid, "x has no columns", "no channels");
    test_expect(
        ctx,
        spops_sparseconv_execute(ctx, c.conv, mx, mw, NULL, spops_matrix_dense(y, ROWS, 0, f32)),
        invalid, "out has no columns", "no channels");
    layer.groups = 3;
    test_expect(ctx, spops_sparseconv_execute(ctx, c.conv, mx, mw, &layer, my), invalid,
                "expected multiples of layer->groups = 3", "groups");
    layer = spops_conv_layer_default();
    layer.w_transposed = 1; // this and the next are for linear layers alone
    test_expect(ctx, spops_sparseconv_execute(ctx, c.conv, mx, mw, &layer, my), invalid,
                "layer->w_transposed is 1, expected 0", "w_transposed");
    layer = spops_conv_layer_default();
    layer.num_rows = (const int32_t *)(const void *)x;
    test_expect(ctx, spops_sparseconv_execute(ctx, c.conv, mx, mw, &layer, my), invalid,
                "layer->num_rows is not NULL", "num_rows");
    layer = spops_conv_layer_default();
    layer.reads_ahead = 2;
    test_expect(ctx, spops_sparseconv_execute(ctx, c.conv, mx, mw, &layer, my), invalid,
                "layer->reads_ahead is 2, expected 0 or 1", "reads_ahead");
    // gradients
    test_expect(ctx,
                spops_sparseconv_execute_backward(ctx, c.conv, my, mx, mw, NULL, NULL, NULL, NULL),
                invalid, "conv was made without gradients", "no gradients");
    options = spops_sparseconv_options_default();
    options.backward = 1;
    options.max_in_channels = options.max_out_channels = 2;
    test_expect_ok(ctx, spops_sparseconv_create(ctx, c.map, &options, &conv), "small plan");
    float *grad = (float *)(void *)test_upload_i32(&d, zeros, TAPS * C * C);
    const spops_matrix mgrad = spops_matrix_dense(grad, TAPS * C, C, f32);
    test_expect(ctx,
                spops_sparseconv_execute_backward(ctx, conv, my, mx, mw, NULL, NULL, &mgrad, NULL),
                invalid, "w is 4 x 4 a tap, more than the 2 x 2 that conv was made for", "wide");
    test_expect(ctx,
                spops_sparseconv_execute_backward(ctx, conv, my, mx, mw, NULL, NULL, NULL, grad),
                invalid, "w is 4 x 4 a tap, more than the 2 x 2 that conv was made for", "wide");
    spops_sparseconv_destroy(conv);

    int32_t after[ROWS * C];
    test_download_i32(&d, after, (const int32_t *)(const void *)y, ROWS * C);
    cr_assert_arr_eq(after, zeros, sizeof after);
    test_free(&d, x), test_free(&d, y), test_free(&d, w), test_free(&d, grad);
    destroy_case(&c);
    test_close(&d);
}

// ---- Defaults -----------------------------------------------------------------------------------

// Ones times ones, over a map made with defaults and a plan made with them: every output is the number
// of its pairs, every gradient of x that of the input's, and those of w the pairs of a tap.
static void check_ones(test_device *d, const spops_kernel_map *map, spops_dtype dtype,
                       const char *what)
{
    enum { COLS = 8 };
    spops_kernel_map_info info = spops_kernel_map_info_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_sparseconv *conv = NULL;
    double sum = 0, back = 0, of_taps = 0, of_bias = 0;

    options.backward = 1;
    test_expect_ok(d->ctx, spops_kernel_map_get_info_sync(d->ctx, map, &info), what);
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, map, NULL, &conv), what);
    spops_sparseconv_destroy(conv);
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, map, &options, &conv), what);
    const int64_t w_rows = info.num_taps * COLS;
    guarded x = guarded_create(d->backend, "x", info.num_in, COLS, 0, 0, dtype);
    guarded g = guarded_create(d->backend, "g", info.num_out, COLS, 0, 0, dtype);
    guarded w = guarded_create(d->backend, "w", w_rows, COLS, 0, 0, dtype);
    guarded out = guarded_create(d->backend, "out", info.num_out, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded dx = guarded_create(d->backend, "dx", info.num_in, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded dw = guarded_create(d->backend, "dw", w_rows, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded db = guarded_create(d->backend, "db", 1, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded *ones[] = {&x, &g, &w}, *results[] = {&out, &dx, &dw, &db};
    double *sums[] = {&sum, &back, &of_taps, &of_bias};
    for (int i = 0; i < 3; ++i) {
        for (int64_t r = 0; r < ones[i]->view.rows; ++r)
            for (int64_t c = 0; c < COLS; ++c)
                guarded_set(ones[i], r, c, 1);
        guarded_upload(ones[i]);
    }
    test_expect_ok(d->ctx, spops_sparseconv_execute(d->ctx, conv, x.view, w.view, NULL, out.view),
                   what);
    test_expect_ok(d->ctx,
                   spops_sparseconv_execute_backward(d->ctx, conv, g.view, x.view, w.view, NULL,
                                                     &dx.view, &dw.view, db.view.data),
                   what);
    test_wait(d);
    for (int i = 0; i < 4; ++i) {
        guarded_download(results[i]);
        for (int64_t r = 0; r < results[i]->view.rows; ++r)
            for (int64_t c = 0; c < COLS; ++c)
                *sums[i] += guarded_get(results[i], r, c);
    }
    cr_assert(info.num_pairs > 0, "%s", what);
    cr_assert_eq(sum, (double)info.num_pairs * COLS * COLS, "%s: forward", what);
    cr_assert_eq(back, (double)info.num_pairs * COLS * COLS, "%s: gradient of x", what);
    cr_assert_eq(of_taps, (double)info.num_pairs * COLS * COLS, "%s: gradient of w", what);
    cr_assert_eq(of_bias, (double)info.num_out * COLS, "%s: gradient of the bias", what);
    for (int i = 0; i < 4; ++i) {
        if (i < 3) guarded_destroy(ones[i]);
        guarded_destroy(results[i]);
    }
    spops_sparseconv_destroy(conv);
}

// The gradient of the bias alone, over several pieces of rows; those after the rows in use are NaN.
CaseTest(sparseconv, sums_the_bias_over_rows_in_use,
         every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0))
{
    enum { CAPACITY = 5000, COLS = 12, SIDE = 20 };
    static const int32_t counts[] = {CAPACITY, 3001, 1, 0};
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, SIDE - 1, SIDE - 1, SIDE - 1, 0}};
    const spops_dtype dtype = (spops_dtype)p->dtype;
    spops_coords_options co = spops_coords_options_default();
    spops_kernel_map_options mo = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_coords *coords = NULL;
    spops_kernel_map *map = NULL;
    spops_sparseconv *conv = NULL;
    int32_t rows[4 * CAPACITY];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < CAPACITY; ++i) {
        rows[4 * i] = 0;
        rows[4 * i + 1] = i / (SIDE * SIDE);
        rows[4 * i + 2] = i / SIDE % SIDE;
        rows[4 * i + 3] = i % SIDE;
    }
    co.box = &box;
    mo.max_pairs = 27 * CAPACITY;
    options.backward = 1;
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, CAPACITY, CAPACITY, &co, &coords), "set");
    test_expect_ok(
        d.ctx,
        spops_kernel_map_reserve(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL, &mo, &map),
        "map");
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, map, &options, &conv), "plan");
    guarded x = guarded_create(d.backend, "x", CAPACITY, COLS, 0, 0, dtype);
    guarded w = guarded_create(d.backend, "w", 27 * COLS, COLS, 0, 0, dtype);
    guarded g = guarded_create(d.backend, "g", CAPACITY, COLS, 3, 0, dtype);
    guarded db = guarded_create(d.backend, "db", 1, COLS, 0, 0, test_sum_dtype(dtype));
    int32_t *given = test_upload_i32(&d, rows, 4 * CAPACITY), *num = test_upload_i32(&d, counts, 1);
    for (int k = 0; k < 4; ++k) {
        for (int64_t r = 0; r < CAPACITY; ++r)
            for (int64_t c = 0; c < COLS; ++c)
                guarded_set(&g, r, c, r < counts[k] ? (double)(c % 3) - 1 : (double)NAN);
        guarded_upload(&g);
        guarded_poison(&db, 0xff);
        guarded_upload(&db);
        cr_assert(device_upload(d.backend, num, &counts[k], sizeof *counts));
        test_expect_ok(d.ctx, spops_coords_update(d.ctx, coords, num, given), "set");
        test_expect_ok(d.ctx, spops_kernel_map_update(d.ctx, map, coords, NULL), "map");
        test_expect_ok(d.ctx, spops_sparseconv_update(d.ctx, conv), "plan");
        test_expect_ok(d.ctx,
                       spops_sparseconv_execute_backward(d.ctx, conv, g.view, x.view, w.view, NULL,
                                                         NULL, NULL, db.view.data),
                       "bias");
        test_wait(&d);
        guarded_download(&db);
        for (int64_t c = 0; c < COLS; ++c)
            cr_assert_eq(guarded_get(&db, 0, c), (double)counts[k] * (double)(c % 3 - 1),
                         "%d rows, column %d: %g", counts[k], (int)c, guarded_get(&db, 0, c));
        guarded_check_padding(&db, "bias");
    }
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&g), guarded_destroy(&db);
    test_free(&d, given), test_free(&d, num);
    spops_sparseconv_destroy(conv), spops_kernel_map_destroy(map), spops_coords_destroy(coords);
    test_close(&d);
}

// A rank, or a level, may have no rows: plans by any dataflow are made there, and gradients of weights are 0.
BackendTest(sparseconv, no_rows_by_every_dataflow)
{
    static const spops_dataflow dataflows[] = {SPOPS_DATAFLOW_AUTO, SPOPS_DATAFLOW_FETCH_ON_DEMAND,
                                               SPOPS_DATAFLOW_IMPLICIT_GEMM};
    enum { C = 16 };
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_coords *coords = NULL;
    spops_kernel_map *map = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, 0, NULL, NULL, &coords), "set");
    test_expect_ok(
        d.ctx,
        spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL, NULL, &map),
        "map");
    guarded w = guarded_create(d.backend, "w", 27 * C, C, 0, 0, SPOPS_DTYPE_F16);
    guarded dw = guarded_create(d.backend, "dw", 27 * C, C, 0, 0, SPOPS_DTYPE_F32);
    const spops_matrix none = spops_matrix_dense(NULL, 0, C, SPOPS_DTYPE_F16);
    for (int i = 0; i < 3; ++i) {
        spops_sparseconv_options o = spops_sparseconv_options_default();
        spops_sparseconv *conv = NULL;
        o.backward = 1;
        o.dataflow = dataflows[i];
        const spops_status status = spops_sparseconv_create(d.ctx, map, &o, &conv);
        if (status == SPOPS_STATUS_NOT_SUPPORTED && i == 2) // elsewhere there is no implicit GEMM
            cr_assert_not_null(strstr(spops_last_error(d.ctx), "has no implicit_gemm"), "%s",
                               spops_last_error(d.ctx));
        else
            test_expect_ok(d.ctx, status, spops_dataflow_name(dataflows[i]));
        if (conv == NULL) continue;
        guarded_poison(&dw, 0xff);
        guarded_upload(&dw);
        test_expect_ok(d.ctx, spops_sparseconv_execute(d.ctx, conv, none, w.view, NULL, none),
                       "forward");
        test_expect_ok(d.ctx,
                       spops_sparseconv_execute_backward(d.ctx, conv, none, none, w.view, NULL,
                                                         &none, &dw.view, NULL),
                       "backward");
        test_wait(&d);
        guarded_download(&dw);
        for (int64_t r = 0; r < 27 * C; ++r)
            for (int64_t c = 0; c < C; ++c)
                cr_assert_eq(guarded_get(&dw, r, c), 0.0);
        spops_sparseconv_destroy(conv);
    }
    guarded_destroy(&w), guarded_destroy(&dw);
    spops_kernel_map_destroy(map), spops_coords_destroy(coords);
    test_close(&d);
}

CaseTest(sparseconv, defaults_fit_each_other, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0))
{
    enum { SIDE = 9, NUM = SIDE * SIDE * SIDE / 2 };
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_kernel_shape window = spops_kernel_shape_cube(3, 2, 2, 1);
    spops_coords *fine = NULL, *coarse = NULL;
    spops_kernel_map *within = NULL, *down = NULL, *up = NULL, *filled = NULL;
    static int32_t rows[4 * NUM];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < NUM; ++i) { // every other cell
        rows[4 * i + 1] = 2 * i / (SIDE * SIDE);
        rows[4 * i + 2] = 2 * i / SIDE % SIDE;
        rows[4 * i + 3] = 2 * i % SIDE;
    }
    int32_t *given = test_upload_i32(&d, rows, 4 * NUM);
    const spops_dtype dtype = (spops_dtype)p->dtype;
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, NUM, given, NULL, &fine), "fine");
    test_expect_ok(d.ctx, spops_coords_create_downsampled(d.ctx, fine, &window, NULL, &coarse),
                   "coarse");
    test_expect_ok(
        d.ctx,
        spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &cube, fine, NULL, NULL, &within),
        "within");
    test_expect_ok(
        d.ctx,
        spops_kernel_map_create(d.ctx, SPOPS_MAP_CONVOLUTION, &window, fine, coarse, NULL, &down),
        "down");
    test_expect_ok(d.ctx, spops_kernel_map_create_inverse(d.ctx, down, NULL, &up), "up");
    test_expect_ok(d.ctx,
                   spops_kernel_map_reserve(d.ctx, SPOPS_MAP_CONVOLUTION, &window, fine, coarse,
                                            NULL, &filled),
                   "reserve");
    test_expect_ok(d.ctx, spops_kernel_map_update(d.ctx, filled, fine, coarse), "set");
    check_ones(&d, within, dtype, "within");
    check_ones(&d, down, dtype, "down");
    check_ones(&d, up, dtype, "inverse");
    check_ones(&d, filled, dtype, "reserved");
    spops_kernel_map_destroy(filled), spops_kernel_map_destroy(up);
    spops_kernel_map_destroy(down), spops_kernel_map_destroy(within);
    spops_coords_destroy(coarse), spops_coords_destroy(fine);
    test_free(&d, given);
    test_close(&d);
}
