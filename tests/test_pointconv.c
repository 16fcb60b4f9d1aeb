// SPDX-License-Identifier: Apache-2.0
// Point convolution against FP64, forward and both gradients, on both dataflows; against sparse
// convolution where points are centres of voxels; refilled on the stream; and what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "kernels/igemm/igemm_tuning.h"
#include "spops/pointconv.h"
#include "support/device.h"
#include "tests/ref/ref_mvmr.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

// ---- A convolution, here and where d runs -------------------------------------------------------

typedef enum points_kind {
    UNIFORM, // in a cube of 1 m
    LATTICE, // multiples of 0.25 m, several points at a place: many of them share a tap
    CLUSTER, // most within 1 cm: lists of hundreds
    NONE     // no points
} points_kind;

typedef struct geometry {
    const char *name;
    points_kind kind;
    int64_t num_in, num_out; // num_out 0: outputs are inputs
    int32_t samples, taps;
    float radius_m, tap_size_m;
    int32_t max_neighbors; // 0: all
} geometry;

static const geometry geometries[] = {
    {"nothing", NONE, 0, 0, 0, 3, 0.2f, 0.1f, 0},
    {"one point", UNIFORM, 1, 0, 0, 3, 0.2f, 0.1f, 0},
    {"uniform", UNIFORM, 300, 0, 0, 3, 0.14f, 0.08f, 0},
    {"lattice", LATTICE, 300, 0, 2, 3, 0.3f, 0.25f, 0},
    {"cluster", CLUSTER, 80, 0, 0, 3, 0.3f, 0.004f, 0},
    {"strided", UNIFORM, 260, 100, 3, 3, 0.2f, 0.1f, 0},
    {"even taps", UNIFORM, 200, 0, 0, 2, 0.18f, 0.1f, 0},
    {"five taps", UNIFORM, 150, 120, 0, 5, 0.25f, 0.05f, 0},
    {"no neighbours", UNIFORM, 40, 300, 0, 3, 1e-6f, 1.0f, 0},
    {"capped", UNIFORM, 260, 0, 2, 3, 0.2f, 0.1f, 5},
};
enum { NUM_GEOMETRIES = (int)(sizeof geometries / sizeof geometries[0]) };

typedef struct conv_case {
    test_device *d;
    void *in_points, *out_points;
    int32_t *in_offsets, *out_offsets;
    spops_point_cloud in, out;
    spops_neighbors *neighbors;
    spops_pointconv *conv;
    ref_triplets ref;
    ref_mvmr_form form;
    int32_t *out_rows, *in_rows, *taps; // of ref
    double unit;                        // of rounding that comes before the sum in f32; 0: none
    bool is_exact;                      // values that no rounding changes
    spops_math math;
    int32_t capability; // contexts are as those of such a device; 0: as they are
    int wanted;         // gradients: 1 of x, 2 of w, 4 of the bias; 0: drawn
} conv_case;

static void *upload_points(test_device *d, const geometry *g, int64_t n, test_rng *rng)
{
    float *points = malloc((size_t)n * 12 + 1);
    void *there = NULL;
    for (int64_t i = 0; i < 3 * n; ++i) {
        const double unit = test_rng_unit(rng);
        points[i] = g->kind == LATTICE                 ? 0.25f * (float)(int)(unit * 4.0)
                    : g->kind == CLUSTER && i % 7 != 0 ? 0.01f * (float)unit
                                                       : (float)unit;
    }
    cr_assert(device_alloc(d->backend, (size_t)n * 12, &there) &&
                  device_upload(d->backend, there, points, (size_t)n * 12),
              "%s", device_error());
    free(points);
    return there;
}

static int32_t *upload_offsets(test_device *d, int32_t samples, int64_t n)
{
    int32_t offsets[8] = {0};
    for (int32_t b = 1; b <= samples; ++b)
        offsets[b] = (int32_t)(n * b / samples);
    return test_upload_i32(d, offsets, samples > 0 ? samples + 1 : 0);
}

static spops_point_cloud cloud_of(void *points, int64_t n, const int32_t *offsets, int32_t samples)
{
    const spops_point_cloud cloud = {spops_matrix_dense(points, n, 3, SPOPS_DTYPE_F32), offsets,
                                     samples};
    return cloud;
}

static spops_neighbors_options search_of(const geometry *g)
{
    spops_neighbors_options o = spops_neighbors_options_default();
    o.radius_m = g->radius_m;
    o.taps = g->taps;
    o.tap_size_m = g->tap_size_m;
    o.max_neighbors = g->max_neighbors;
    o.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    return o;
}

// The triplets that the library found, by tap; test_points compares them with brute force.
static void download_triplets(conv_case *c)
{
    spops_neighbors_view view = spops_neighbors_view_default();
    spops_neighbors_info info = spops_neighbors_info_default();
    test_expect_ok(c->d->ctx, spops_neighbors_get_view(c->d->ctx, c->neighbors, &view), "view");
    test_expect_ok(c->d->ctx, spops_neighbors_get_info_sync(c->d->ctx, c->neighbors, &info),
                   "info");
    const int64_t n = info.num_pairs;
    int32_t *offsets = malloc((size_t)(view.num_taps + 1) * 4);
    c->out_rows = malloc((size_t)n * 4 + 1);
    c->in_rows = malloc((size_t)n * 4 + 1);
    c->taps = malloc((size_t)n * 4 + 1);
    test_download_i32(c->d, offsets, view.tap_offsets, view.num_taps + 1);
    test_download_i32(c->d, c->out_rows, view.out_rows, n);
    test_download_i32(c->d, c->in_rows, view.in_rows, n);
    for (int32_t k = 0; k < view.num_taps; ++k)
        for (int32_t p = offsets[k]; p < offsets[k + 1]; ++p)
            c->taps[p] = k;
    free(offsets);
    c->ref = (ref_triplets){view.out->max_rows, view.in->max_rows, view.num_taps, n,
                            c->out_rows,        c->in_rows,        c->taps};
}

static void create_case(conv_case *c, test_device *d, const geometry *g, uint64_t stream)
{
    const spops_neighbors_options o = search_of(g);
    test_rng rng = test_rng_make(stream);
    memset(c, 0, sizeof *c);
    c->d = d;
    c->in_points = upload_points(d, g, g->num_in, &rng);
    c->out_points = upload_points(d, g, g->num_out, &rng);
    c->in_offsets = upload_offsets(d, g->samples, g->num_in);
    c->out_offsets = upload_offsets(d, g->samples, g->num_out);
    c->in = cloud_of(c->in_points, g->num_in, c->in_offsets, g->samples);
    c->out = cloud_of(c->out_points, g->num_out, c->out_offsets, g->samples);
    test_expect_ok(
        d->ctx,
        spops_neighbors_create(d->ctx, g->num_out == 0 ? NULL : &c->out, &c->in, &o, &c->neighbors),
        g->name);
    download_triplets(c);
}

static void destroy_case(conv_case *c)
{
    spops_neighbors_destroy(c->neighbors);
    test_free(c->d, c->in_points), test_free(c->d, c->out_points);
    test_free(c->d, c->in_offsets), test_free(c->d, c->out_offsets);
    free(c->out_rows), free(c->in_rows), free(c->taps);
}

// ---- Against FP64 -------------------------------------------------------------------------------

enum { X, W, BIAS, RESIDUAL }; // inputs, forward
enum { OUT };
enum { GRAD_SUM = 2 }; // an input, backward, after x and w
enum { GRAD_X, GRAD_W, GRAD_BIAS };

static spops_conv_layer layer_of(const conv_case *c)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.groups = (int32_t)(c->form.diagonal ? c->form.x_cols : c->form.groups);
    layer.math = c->math;
    return layer;
}

static spops_status run_forward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    const conv_case *c = (const conv_case *)user;
    spops_conv_layer layer = layer_of(c);
    if (c->capability != 0) ctx->info.compute_capability = c->capability;
    layer.bias = in[BIAS] == NULL ? NULL : (const float *)in[BIAS]->data;
    layer.residual = in[RESIDUAL];
    return spops_pointconv_execute(ctx, c->conv, *in[X], *in[W], &layer, *out[OUT]);
}

static void reference_forward(void *user, const double *const *in, ref_tensor *const *out)
{
    const conv_case *c = (const conv_case *)user;
    ref_mvmr(&c->ref, &c->form, in[X], in[W], NULL, out[OUT]);
    for (int64_t i = 0; i < out[OUT]->rows * out[OUT]->cols; ++i) {
        const double bias = in[BIAS] == NULL ? 0.0 : in[BIAS][i % out[OUT]->cols];
        const double residual = in[RESIDUAL] == NULL ? 0.0 : in[RESIDUAL][i];
        out[OUT]->value[i] += bias + residual;
        out[OUT]->scale[i] += fabs(bias) + fabs(residual);
    }
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const conv_case *c = (const conv_case *)user;
    const spops_conv_layer layer = layer_of(c);
    if (c->capability != 0) ctx->info.compute_capability = c->capability;
    return spops_pointconv_execute_backward(ctx, c->conv, *in[GRAD_SUM], *in[X], *in[W], &layer,
                                            out[GRAD_X], out[GRAD_W],
                                            out[GRAD_BIAS] == NULL ? NULL : out[GRAD_BIAS]->data);
}

static void reference_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const conv_case *c = (const conv_case *)user;
    if (out[GRAD_X] != NULL)
        ref_mvmr_grad_x(&c->ref, &c->form, in[GRAD_SUM], in[W], NULL, out[GRAD_X]);
    if (out[GRAD_W] != NULL) ref_vvor(&c->ref, &c->form, in[X], in[GRAD_SUM], NULL, out[GRAD_W]);
    for (int64_t i = 0; out[GRAD_BIAS] != NULL && i < c->ref.num_out * out[GRAD_BIAS]->cols; ++i) {
        const int64_t o = i % out[GRAD_BIAS]->cols;
        out[GRAD_BIAS]->value[o] += in[GRAD_SUM][i];
        out[GRAD_BIAS]->scale[o] += fabs(in[GRAD_SUM][i]);
        out[GRAD_BIAS]->roundings[o] += 1.0;
    }
}

// Sums of rows are rounded once before they are multiplied, which changes each product by a unit at
// most; sums in f32 follow.
static void verify_gemm(void *user, const guarded *const *out, const ref_tensor *const *expected,
                        const char *what)
{
    const conv_case *c = (const conv_case *)user;
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        if (out[i] == NULL) continue;
        const ref_tensor *e = expected[i];
        double *bounds = calloc((size_t)(e->rows * e->cols) + 1, sizeof *bounds);
        for (int64_t n = 0; n < e->rows * e->cols && !c->is_exact; ++n)
            bounds[n] = (c->unit + e->roundings[n] * 0x1.1p-23) * e->scale[n] + 0x1p-120;
        guarded_check_bounds(out[i], e, bounds, what);
        free(bounds);
    }
}

typedef struct channels {
    int64_t in, out, groups;
} channels;
static const channels all_channels[] = {{1, 1, 1},    {3, 5, 1},    {64, 32, 1}, {8, 12, 4},
                                        {7, 7, 7},    {32, 32, 32}, {33, 31, 1}, {24, 72, 1},
                                        {64, 128, 1}, {40, 72, 1},  {16, 16, 1}, {20, 20, 5}};
static const channels gemm_channels[] = {{64, 128, 1}, {64, 64, 1},  {8, 8, 1},    {136, 72, 1},
                                         {24, 200, 1}, {32, 264, 1}, {128, 64, 1}, {256, 16, 1}};

static void check_layer(conv_case *c, const char *what, bool backward, spops_dtype dtype,
                        const channels *width, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    const bool gemm = c->unit > 0.0; // whose rows are aligned to 16 bytes
    const int64_t padding = test_rng_below(&rng, 2) * (gemm ? 8 : 1 + test_rng_below(&rng, 7));
    const int64_t shift = gemm ? 0 : test_rng_below(&rng, 2);
    const test_values values = test_rng_below(&rng, 2) == 0 ? VALUES_EXACT : VALUES_RANDOM;
    const test_check check = values == VALUES_EXACT ? CHECK_EXACT : CHECK_BOUND;
    const spops_dtype sums = test_sum_dtype(dtype);
    const spops_dtype wide = test_rng_below(&rng, 2) != 0 ? SPOPS_DTYPE_F32 : dtype;
    const bool diagonal = width->groups > 1 && width->groups == width->in;
    test_operator op = {.what = what,
                        .stream = stream,
                        .scratch_bytes = spops_pointconv_scratch_bytes(c->conv),
                        .user = c,
                        .run = backward ? run_backward : run_forward,
                        .reference = backward ? reference_backward : reference_forward,
                        .verify = gemm ? verify_gemm : NULL};

    c->is_exact = values == VALUES_EXACT;
    c->form = (ref_mvmr_form){width->in, width->out, diagonal ? 1 : width->groups,
                              diagonal,  false,      false};
    const int64_t w_rows = c->ref.num_matrices * (width->in / width->groups);
    op.in[X] = test_view(test_input("x", c->ref.num_in, width->in, dtype, values), padding, shift);
    op.in[W] = test_view(test_input("w", w_rows, width->out, dtype, values), 0, shift);
    if (backward) {
        const int drawn = 1 + (int)test_rng_below(&rng, 7);
        const int wanted = c->wanted != 0 ? c->wanted : drawn;
        op.in[GRAD_SUM] = test_view(
            test_input("grad_sum", c->ref.num_out, width->out, dtype, values), padding, 0);
        if (wanted & 1)
            op.out[GRAD_X] = test_view(test_output("grad_x", c->ref.num_in, width->in, wide, check),
                                       padding, shift);
        if (wanted & 2) op.out[GRAD_W] = test_output("grad_w", w_rows, width->out, wide, check);
        if (wanted & 4) op.out[GRAD_BIAS] = test_output("grad_bias", 1, width->out, sums, check);
    } else {
        // A sum that is rounded to a narrow dtype before what follows has no simple bound.
        const bool epilogue = test_rng_below(&rng, 2) != 0;
        const spops_dtype out = epilogue ? sums : wide;
        if (epilogue) op.in[BIAS] = test_input("bias", 1, width->out, sums, values);
        if (epilogue && test_rng_below(&rng, 2))
            op.in[RESIDUAL] = test_view(
                test_input("residual", c->ref.num_out, width->out, out, values), padding, 0);
        op.out[OUT] =
            test_view(test_output("out", c->ref.num_out, width->out, out, check), padding, shift);
    }
    test_operator_run(c->d, &op);
}

static void check_plan(conv_case *c, const geometry *g, const spops_pointconv_options *options,
                       spops_dtype dtype, bool gemm, uint64_t stream)
{
    const channels *const from = gemm ? gemm_channels : all_channels;
    const int num = gemm ? (int)(sizeof gemm_channels / sizeof *gemm_channels)
                         : (int)(sizeof all_channels / sizeof *all_channels);
    test_rng rng = test_rng_make(stream);
    char text[256];
    test_expect_ok(c->d->ctx, spops_pointconv_create(c->d->ctx, c->neighbors, options, &c->conv),
                   g->name);
    if (options->detach) { // whose neighbours are not needed any more
        spops_neighbors_destroy(c->neighbors);
        c->neighbors = NULL;
    }
    c->unit = !gemm ? 0.0 : dtype == SPOPS_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    for (int n = 0; n < 1; ++n) {
        const channels *width = &from[test_rng_below(&rng, num)];
        for (int backward = 0; backward < 2; ++backward)
            check_layer(c,
                        test_describe(
                            text, "%s%s, %s, sums %d, %lld to %lld channels in %lld groups",
                            g->name, backward ? " backward" : "",
                            spops_dataflow_name(options->dataflow), (int)options->sums,
                            (long long)width->in, (long long)width->out, (long long)width->groups),
                        backward != 0, dtype, width, ++stream);
    }
    spops_pointconv_destroy(c->conv);
    c->conv = NULL;
}

// Whether d has IMPLICIT_GEMM.
static bool has_gemm(const conv_case *c)
{
    spops_pointconv_options options = spops_pointconv_options_default();
    spops_pointconv *conv = NULL;
    options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    const spops_status status = spops_pointconv_create(c->d->ctx, c->neighbors, &options, &conv);
    cr_assert(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_NOT_SUPPORTED, "%s",
              spops_last_error(c->d->ctx));
    spops_pointconv_destroy(conv);
    return status == SPOPS_STATUS_OK;
}

// Neighbours without triplets by tap, which the plan outlives; and with them, likewise.
static void check_without_triplets(conv_case *c, const geometry *g,
                                   spops_pointconv_options *options, spops_dtype dtype,
                                   uint64_t stream)
{
    spops_neighbors *const whole = c->neighbors;
    for (int contents = 0; contents < 2; ++contents) {
        spops_neighbors_options search = search_of(g);
        if (contents == 0) search.contents = SPOPS_NEIGHBORS_REVERSE;
        test_expect_ok(c->d->ctx,
                       spops_neighbors_create(c->d->ctx, g->num_out == 0 ? NULL : &c->out, &c->in,
                                              &search, &c->neighbors),
                       g->name);
        options->detach = 1;
        check_plan(c, g, options, dtype, true, stream += 50);
    }
    options->detach = 0;
    c->neighbors = whole;
}

ParameterizedTestParameters(pointconv, agrees)
{
    return every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0);
}
// One timeout for all: Criterion leaks memory of its own where a program has several.
ParameterizedTest(struct case_param *p, pointconv, agrees, .timeout = 900)
{
    test_device d;
    uint64_t stream = case_number(p) << 32;
    const spops_dtype dtype = (spops_dtype)p->dtype;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < NUM_GEOMETRIES; ++i) {
        spops_pointconv_options options = spops_pointconv_options_default();
        const geometry *g = &geometries[i];
        conv_case c;
        create_case(&c, &d, g, ++stream);
        options.backward = 1;
        options.max_in_channels = options.max_out_channels = 264;
        options.dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND;
        check_plan(&c, g, &options, dtype, false, stream += 100);
        options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
        if (dtype != SPOPS_DTYPE_F32 && has_gemm(&c)) {
            check_plan(&c, g, &options, dtype, true, stream += 100);
            options.sums = SPOPS_POINTCONV_SUMS_NONE;
            check_plan(&c, g, &options, dtype, true, stream += 100);
            options.sums = SPOPS_POINTCONV_SUMS_AUTO;
            check_without_triplets(&c, g, &options, dtype, stream += 100);
        }
        destroy_case(&c);
    }
    test_close(&d);
}

// ---- Every kernel that adds rows first ----------------------------------------------------------

// A forward pass on IMPLICIT_GEMM, and gradients on whatever serves them, as a device of `capability`
// runs them: kernels of older architectures run on a newer device too. In f32 products are tf32's.
static void check_adding(conv_case *c, const geometry *g, int capability, spops_dtype dtype,
                         spops_pointconv_sums sums, uint64_t stream)
{
    static const channels widths[2][4] = {
        {{16, 37, 1}, {8, 5, 1}, {32, 65, 1}, {64, 129, 1}}, // weights are copied
        {{64, 128, 1}, {136, 64, 1}, {24, 264, 1}, {200, 24, 1}}};
    test_rng rng = test_rng_make(stream);
    const int32_t real = c->d->ctx->info.compute_capability;
    spops_pointconv_options options = spops_pointconv_options_default();
    char text[256];

    options.backward = 1;
    options.max_in_channels = options.max_out_channels = 264;
    options.sums = sums;
    c->d->ctx->info.compute_capability = c->capability = capability;
    test_expect_ok(c->d->ctx, spops_pointconv_create(c->d->ctx, c->neighbors, &options, &c->conv),
                   g->name);
    c->unit = dtype == SPOPS_DTYPE_F32 ? 0x1.1p-9 : dtype == SPOPS_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    c->math = dtype == SPOPS_DTYPE_F32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    for (int n = 0; n < 2; ++n) {
        const channels *const width = &widths[n][test_rng_below(&rng, 4)];
        const spops_conv_layer layer = {.struct_size = sizeof layer, .math = c->math};
        spops_conv_choice choice;
        test_expect_ok(c->d->ctx,
                       spops_pointconv_get_choice(c->d->ctx, c->conv, SPOPS_PASS_FORWARD, dtype,
                                                  width->in, width->out, &layer, &choice),
                       "choice");
        cr_assert_eq(choice.dataflow, SPOPS_DATAFLOW_IMPLICIT_GEMM);
        cr_assert_eq(choice.adds_first, sums != SPOPS_POINTCONV_SUMS_NONE);
        for (int backward = 0; backward < 2; ++backward)
            check_layer(c,
                        test_describe(text, "%s%s, sm_%d, %s, sums %d, %lld to %lld channels",
                                      g->name, backward ? " backward" : "", capability,
                                      test_dtype_name(dtype), (int)sums, (long long)width->in,
                                      (long long)width->out),
                        backward != 0, dtype, width, ++stream);
    }
    spops_pointconv_destroy(c->conv);
    c->conv = NULL;
    c->math = SPOPS_MATH_EXACT;
    c->capability = 0;
    c->d->ctx->info.compute_capability = real;
}

CaseTest(pointconv, adds_rows_first, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0),
         .timeout = 900)
{
    static const int capabilities[] = {90, 80};
    test_device d;
    uint64_t stream = case_number(p) << 32 | 1u << 31;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < NUM_GEOMETRIES && d.backend == SPOPS_BACKEND_CUDA; ++i) {
        conv_case c;
        create_case(&c, &d, &geometries[i], ++stream);
        for (size_t n = 0; n < sizeof capabilities / sizeof *capabilities; ++n) {
            if (d.ctx->info.compute_capability < capabilities[n]) continue;
            check_adding(&c, &geometries[i], capabilities[n], (spops_dtype)p->dtype,
                         SPOPS_POINTCONV_SUMS_FIRST, stream += 100);
            check_adding(&c, &geometries[i], capabilities[n], (spops_dtype)p->dtype,
                         SPOPS_POINTCONV_SUMS_NONE, stream += 100);
        }
        destroy_case(&c);
    }
    test_close(&d);
}

// Each tile of sm_90 that adds rows first, once: little work, for tools that watch each access.
Test(pointconv, each_tile_once, .timeout = 900)
{
    static const geometry g = {.name = "lattice",
                               .kind = LATTICE,
                               .num_in = 200,
                               .taps = 3,
                               .radius_m = 0.3f,
                               .tap_size_m = 0.25f};
    static const channels widths[] = {{64, 128, 1}, {136, 264, 1}};
    test_device d;
    conv_case c;

    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_STREAM)) return;
    create_case(&c, &d, &g, 1);
    c.unit = 0x1p-11;
    for (int32_t v = 1; v <= SPOPS_IGEMM_NUM_TILES; ++v) {
        spops_pointconv_options options = spops_pointconv_options_default();
        if (d.ctx->info.compute_capability != 90 ||
            spops_igemm_kernel_of(v) != SPOPS_IGEMM_SM90_ADDS)
            continue;
        options.backward = 1;
        options.max_in_channels = options.max_out_channels = 264;
        options.sums = SPOPS_POINTCONV_SUMS_FIRST;
        options.tile = v;
        c.wanted = 1;
        test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, c.neighbors, &options, &c.conv),
                       "plan");
        for (int n = 0; n < 2; ++n)
            for (int backward = 0; backward < 2; ++backward) {
                const spops_conv_pass pass = backward ? SPOPS_PASS_GRAD_X : SPOPS_PASS_FORWARD;
                spops_conv_choice choice;
                test_expect_ok(d.ctx,
                               spops_pointconv_get_choice(d.ctx, c.conv, pass, SPOPS_DTYPE_F16,
                                                          widths[n].in, widths[n].out, NULL,
                                                          &choice),
                               "choice");
                cr_assert_eq(choice.tile, v, "pass %d has tile %d, not %d", (int)pass,
                             (int)choice.tile, (int)v);
                check_layer(&c, "a tile", backward != 0, SPOPS_DTYPE_F16, &widths[n],
                            (uint64_t)(v * 4 + n * 2 + backward));
            }
        spops_pointconv_destroy(c.conv);
    }
    destroy_case(&c);
    test_close(&d);
}

// ---- Voxels at their centres --------------------------------------------------------------------

enum { GRID = 9, VOXELS = 260, IN = 64, OUT_COLS = 40 };

// Lexicographic, so that rows of the set are those of the points.
static int64_t draw_voxels(int32_t *rows, float *points, float size_m)
{
    test_rng rng = test_rng_make(4711);
    int64_t n = 0;
    for (int32_t v = 0; v < GRID * GRID * GRID; ++v) {
        if (test_rng_below(&rng, GRID * GRID * GRID) >= 2 * VOXELS || n == VOXELS) continue;
        const int32_t at[3] = {v / (GRID * GRID), v / GRID % GRID, v % GRID};
        rows[4 * n] = 0;
        for (int a = 0; a < 3; ++a) {
            rows[4 * n + 1 + a] = at[a];
            points[3 * n + a] = ((float)at[a] + 0.5f) * size_m;
        }
        ++n;
    }
    return n;
}

static void download(test_device *d, void *to, const void *from, size_t bytes)
{
    cr_assert(device_download(d->backend, to, from, bytes), "%s", device_error());
}

CaseTest(pointconv, equals_sparse_convolution, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0),
         .timeout = 900)
{
    const float size_m = 0.05f;
    const spops_dtype dtype = (spops_dtype)p->dtype, f32 = SPOPS_DTYPE_F32;
    int32_t rows[VOXELS * 4];
    float points[VOXELS * 3];
    test_device d;
    if (p->launch == LAUNCH_CAPTURED) return; // nothing is captured here
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    const int64_t n = draw_voxels(rows, points, size_m);
    int32_t *there = test_upload_i32(&d, rows, 4 * n);
    void *points_there = NULL;
    cr_assert(device_alloc(d.backend, (size_t)n * 12, &points_there) &&
                  device_upload(d.backend, points_there, points, (size_t)n * 12),
              "%s", device_error());

    spops_coords *coords = NULL;
    spops_kernel_map *map = NULL;
    spops_sparseconv *sparse = NULL;
    spops_neighbors *neighbors = NULL;
    spops_pointconv *conv = NULL;
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options map_options = spops_kernel_map_options_default();
    spops_sparseconv_options sparse_options = spops_sparseconv_options_default();
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_pointconv_options options = spops_pointconv_options_default();
    const spops_point_cloud cloud = cloud_of(points_there, n, NULL, 0);
    map_options.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE;
    search.radius_m = 1.5f * size_m;
    search.metric = SPOPS_METRIC_CHEBYSHEV;
    search.taps = 3;
    search.tap_size_m = size_m;
    search.contents = SPOPS_NEIGHBORS_BY_TAP;
    sparse_options.backward = options.backward = 1;
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, n, there, NULL, &coords), "set");
    test_expect_ok(d.ctx,
                   spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &cube, coords, NULL,
                                           &map_options, &map),
                   "map");
    test_expect_ok(d.ctx, spops_neighbors_create(d.ctx, NULL, &cloud, &search, &neighbors),
                   "neighbours");
    // Both by the same dataflow, whatever each would choose.
    conv_case c = {.d = &d, .neighbors = neighbors};
    options.dataflow = dtype != SPOPS_DTYPE_F32 && has_gemm(&c) ? SPOPS_DATAFLOW_IMPLICIT_GEMM
                                                                : SPOPS_DATAFLOW_FETCH_ON_DEMAND;
    sparse_options.dataflow = options.dataflow;
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, map, &sparse_options, &sparse), "sparse");
    test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, neighbors, &options, &conv), "conv");

    // The same triplets in the same order.
    spops_kernel_map_view pairs = spops_kernel_map_view_default();
    spops_neighbors_view view = spops_neighbors_view_default();
    static int32_t from_map[27 * VOXELS], found[27 * VOXELS];
    test_expect_ok(d.ctx, spops_kernel_map_get_view(d.ctx, map, &pairs), "view");
    test_expect_ok(d.ctx, spops_neighbors_get_view(d.ctx, neighbors, &view), "view");
    cr_assert_eq(view.max_pairs, pairs.max_pairs, "%lld pairs, expected %lld",
                 (long long)view.max_pairs, (long long)pairs.max_pairs);
    const int32_t *const both[3][2] = {{pairs.tap_offsets, view.tap_offsets},
                                       {pairs.in_rows, view.in_rows},
                                       {pairs.out_rows, view.out_rows}};
    for (int i = 0; i < 3; ++i) {
        const size_t num = i == 0 ? 28 : (size_t)view.max_pairs;
        test_download_i32(&d, from_map, both[i][0], (int64_t)num);
        test_download_i32(&d, found, both[i][1], (int64_t)num);
        cr_assert_eq(memcmp(from_map, found, num * 4), 0, "array %d", i);
    }

    // The same bits.
    test_rng rng = test_rng_make(11);
    guarded x = guarded_create(d.backend, "x", n, IN, 0, 0, dtype);
    guarded w = guarded_create(d.backend, "w", 27 * IN, OUT_COLS, 0, 0, dtype);
    guarded g = guarded_create(d.backend, "grad_sum", n, OUT_COLS, 0, 0, dtype);
    free(guarded_fill(&x, &rng, VALUES_RANDOM, false, 1));
    free(guarded_fill(&w, &rng, VALUES_RANDOM, false, 1));
    free(guarded_fill(&g, &rng, VALUES_RANDOM, false, 1));
    guarded_upload(&x), guarded_upload(&w), guarded_upload(&g);
    const size_t bytes[3] = {(size_t)n * OUT_COLS * 4, (size_t)n * IN * 4,
                             (size_t)27 * IN * OUT_COLS * 4};
    void *results[2][3];
    for (int i = 0; i < 6; ++i)
        cr_assert(device_alloc(d.backend, bytes[i % 3], &results[i / 3][i % 3]), "%s",
                  device_error());
    for (int which = 0; which < 2; ++which) {
        const spops_matrix out = spops_matrix_dense(results[which][0], n, OUT_COLS, f32);
        const spops_matrix grad_x = spops_matrix_dense(results[which][1], n, IN, f32);
        const spops_matrix grad_w = spops_matrix_dense(results[which][2], 27 * IN, OUT_COLS, f32);
        test_expect_ok(d.ctx,
                       which == 0
                           ? spops_sparseconv_execute(d.ctx, sparse, x.view, w.view, NULL, out)
                           : spops_pointconv_execute(d.ctx, conv, x.view, w.view, NULL, out),
                       "forward");
        test_expect_ok(d.ctx,
                       which == 0
                           ? spops_sparseconv_execute_backward(d.ctx, sparse, g.view, x.view,
                                                               w.view, NULL, &grad_x, &grad_w, NULL)
                           : spops_pointconv_execute_backward(d.ctx, conv, g.view, x.view, w.view,
                                                              NULL, &grad_x, &grad_w, NULL),
                       "backward");
    }
    test_wait(&d);
    for (int i = 0; i < 3; ++i) {
        void *a = malloc(bytes[i]), *b = malloc(bytes[i]);
        download(&d, a, results[0][i], bytes[i]);
        download(&d, b, results[1][i], bytes[i]);
        cr_assert_eq(memcmp(a, b, bytes[i]), 0, "result %d differs", i);
        free(a), free(b);
        test_free(&d, results[0][i]), test_free(&d, results[1][i]);
    }
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&g);
    spops_pointconv_destroy(conv);
    spops_neighbors_destroy(neighbors);
    spops_sparseconv_destroy(sparse);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    test_free(&d, there), test_free(&d, points_there);
    test_close(&d);
}

// ---- A frame after the other, also in one captured graph ----------------------------------------

enum { CAPACITY = 500, FRAME_PAIRS = 40000, FRAME_IN = 64, FRAME_OUT = 72 };

// Points of frame f; rows after them hold what they held.
static int64_t fill_frame(int f, float *points, int32_t *offsets)
{
    static const int64_t sizes[] = {500, 130, 0, 401};
    test_rng rng = test_rng_make(900 + (uint64_t)f);
    for (int64_t i = 0; i < 3 * sizes[f]; ++i)
        points[i] = (float)test_rng_unit(&rng);
    offsets[0] = 0;
    offsets[1] = (int32_t)(sizes[f] / 3);
    offsets[2] = (int32_t)sizes[f];
    return sizes[f];
}

ParameterizedTestParameters(pointconv, serves_frames)
{
    static struct launch_param params[] = {{SPOPS_BACKEND_CPU, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_CAPTURED}};
    return tested_here(cr_make_param_array(struct launch_param, params, 2));
}
ParameterizedTest(struct launch_param *p, pointconv, serves_frames, .timeout = 900)
{
    const geometry g = {"", UNIFORM, 0, 0, 2, 3, 0.16f, 0.08f, 0};
    const spops_neighbors_capacity shape = {0, CAPACITY, 2, FRAME_PAIRS};
    spops_neighbors_options search = search_of(&g);
    spops_pointconv_options options = spops_pointconv_options_default();
    float points[CAPACITY * 3];
    int32_t offsets[3];
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    void *points_there = NULL, *results[2][3];
    int32_t *offsets_there = test_upload_i32(&d, (const int32_t[3]){0}, 3);
    const size_t bytes[3] = {CAPACITY * FRAME_OUT * 2, CAPACITY * FRAME_IN * 2,
                             27 * FRAME_IN * FRAME_OUT * 4};
    cr_assert(device_alloc(d.backend, sizeof points, &points_there), "%s", device_error());
    for (int i = 0; i < 6; ++i)
        cr_assert(device_alloc(d.backend, bytes[i % 3], &results[i / 3][i % 3]), "%s",
                  device_error());
    test_rng rng = test_rng_make(12);
    guarded x = guarded_create(d.backend, "x", CAPACITY, FRAME_IN, 0, 0, SPOPS_DTYPE_F16);
    guarded w = guarded_create(d.backend, "w", 27 * FRAME_IN, FRAME_OUT, 0, 0, SPOPS_DTYPE_F16);
    guarded grad = guarded_create(d.backend, "g", CAPACITY, FRAME_OUT, 0, 0, SPOPS_DTYPE_F16);
    free(guarded_fill(&x, &rng, VALUES_RANDOM, false, 1));
    free(guarded_fill(&w, &rng, VALUES_RANDOM, false, 1));
    free(guarded_fill(&grad, &rng, VALUES_RANDOM, false, 1));
    guarded_upload(&x), guarded_upload(&w), guarded_upload(&grad);

    spops_neighbors *frames = NULL;
    spops_pointconv *conv = NULL;
    device_graph *graph = NULL;
    options.backward = 1;
    test_expect_ok(d.ctx, spops_neighbors_reserve(d.ctx, &shape, 1, &search, &frames), "reserve");
    test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, frames, &options, &conv), "conv");
    const spops_point_cloud cloud = cloud_of(points_there, CAPACITY, offsets_there, 2);
    for (int f = -1; f < 4; ++f) {
        const int64_t n = f < 0 ? 0 : fill_frame(f, points, offsets);
        if (f >= 0)
            cr_assert(device_upload(d.backend, points_there, points, (size_t)n * 12) &&
                          device_upload(d.backend, offsets_there, offsets, sizeof offsets),
                      "%s", device_error());
        for (int i = 0; i < 6; ++i)
            cr_assert(device_fill(d.backend, results[i / 3][i % 3], 0x5a, bytes[i % 3]), "%s",
                      device_error());
        const spops_matrix out =
            spops_matrix_dense(results[0][0], CAPACITY, FRAME_OUT, SPOPS_DTYPE_F16);
        const spops_matrix grad_x =
            spops_matrix_dense(results[0][1], CAPACITY, FRAME_IN, SPOPS_DTYPE_F16);
        const spops_matrix grad_w =
            spops_matrix_dense(results[0][2], 27 * FRAME_IN, FRAME_OUT, SPOPS_DTYPE_F32);
        if (f == -1 && d.launch != LAUNCH_CAPTURED) continue;
        if (f == -1 || graph == NULL) {
            if (f == -1) cr_assert(device_capture_begin(d.stream), "%s", device_error());
            test_expect_ok(d.ctx, spops_neighbors_update(d.ctx, frames, NULL, &cloud), "set");
            test_expect_ok(d.ctx, spops_pointconv_update(d.ctx, conv), "set");
            test_expect_ok(d.ctx, spops_pointconv_execute(d.ctx, conv, x.view, w.view, NULL, out),
                           "run");
            test_expect_ok(d.ctx,
                           spops_pointconv_execute_backward(d.ctx, conv, grad.view, x.view, w.view,
                                                            NULL, &grad_x, &grad_w, NULL),
                           "run");
            if (f == -1) {
                cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
                continue;
            }
        } else {
            cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        }
        test_wait(&d);

        // The same from plans made to measure.
        spops_neighbors *alone = NULL;
        spops_pointconv *alone_conv = NULL;
        spops_matrix rows[5] = {x.view, grad.view, out, grad_x, grad_w};
        spops_point_cloud exact = cloud;
        for (int i = 0; i < 4; ++i)
            rows[i].rows = n;
        for (int i = 0; i < 3; ++i)
            rows[2 + i].data = results[1][i];
        exact.points.rows = n;
        test_expect_ok(d.ctx, spops_neighbors_create(d.ctx, NULL, &exact, &search, &alone),
                       "alone");
        test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, alone, &options, &alone_conv), "alone");
        test_expect_ok(d.ctx,
                       spops_pointconv_execute(d.ctx, alone_conv, rows[0], w.view, NULL, rows[2]),
                       "alone");
        test_expect_ok(d.ctx,
                       spops_pointconv_execute_backward(d.ctx, alone_conv, rows[1], rows[0], w.view,
                                                        NULL, &rows[3], &rows[4], NULL),
                       "alone");
        test_wait(&d);
        for (int i = 0; i < 2; ++i) { // rows not in use keep what they hold
            unsigned char *a = malloc(bytes[i]), *b = malloc(bytes[i]);
            download(&d, a, results[0][i], bytes[i]);
            download(&d, b, results[1][i], bytes[i]);
            cr_assert_eq(memcmp(a, b, bytes[i]), 0, "frame %d, result %d", f, i);
            free(a), free(b);
        }
        float *a = malloc(bytes[2]), *b = malloc(bytes[2]);
        download(&d, a, results[0][2], bytes[2]);
        download(&d, b, results[1][2], bytes[2]);
        for (size_t i = 0; i < bytes[2] / 4; ++i) // pieces differ with the capacity
            cr_assert(fabsf(a[i] - b[i]) <= 1e-3f * (1.0f + fabsf(b[i])), "frame %d, grad_w[%zu]",
                      f, i);
        free(a), free(b);
        spops_pointconv_destroy(alone_conv);
        spops_neighbors_destroy(alone);
    }
    device_graph_destroy(graph);
    spops_pointconv_destroy(conv);
    spops_neighbors_destroy(frames);
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&grad);
    for (int i = 0; i < 6; ++i)
        test_free(&d, results[i / 3][i % 3]);
    test_free(&d, points_there), test_free(&d, offsets_there);
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

// Features of i8 give the bits of the same features in f32.
BackendTest(pointconv, widens_i8, .timeout = 900)
{
    enum { ROWS = 200, COLS_IN = 8, COLS_OUT = 12 };
    const geometry g = {"", UNIFORM, ROWS, 0, 0, 3, 0.3f, 0.1f, 0};
    spops_pointconv_options options = spops_pointconv_options_default();
    spops_conv_layer layer = spops_conv_layer_default();
    spops_pointconv *conv = NULL;
    int8_t numbers[ROWS * COLS_IN];
    test_rng rng = test_rng_make(77);
    test_device d;
    conv_case c;
    void *q;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    create_case(&c, &d, &g, 6);
    guarded x = guarded_create(d.backend, "x", ROWS, COLS_IN, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d.backend, "w", 27 * COLS_IN, COLS_OUT, 0, 0, SPOPS_DTYPE_F32);
    guarded scales = guarded_create(d.backend, "x_scales", 1, COLS_IN, 0, 0, SPOPS_DTYPE_F32);
    guarded wide = guarded_create(d.backend, "wide", ROWS, COLS_OUT, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", ROWS, COLS_OUT, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&w, &rng, VALUES_RANDOM, false, 1));
    for (int i = 0; i < ROWS * COLS_IN; ++i) {
        numbers[i] = (int8_t)(test_rng_below(&rng, 255) - 127);
        guarded_set(&x, i / COLS_IN, i % COLS_IN, numbers[i] * ldexp(1.0, -(i % COLS_IN)));
    }
    for (int i = 0; i < COLS_IN; ++i)
        guarded_set(&scales, 0, i, ldexp(1.0, -i));
    guarded_upload(&x), guarded_upload(&w), guarded_upload(&scales);
    guarded_poison(&out, 0xff);
    guarded_upload(&out), guarded_upload(&wide);
    cr_assert(device_alloc(d.backend, sizeof numbers, &q));
    cr_assert(device_upload(d.backend, q, numbers, sizeof numbers));
    options.quantized = 1;
    test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), "plan");
    const spops_matrix narrow = spops_matrix_dense(q, ROWS, COLS_IN, SPOPS_DTYPE_I8);
    layer.x_scales = (const float *)scales.view.data;
    layer.x_scales_by_channel = 1;
    test_expect_ok(d.ctx, spops_pointconv_execute(d.ctx, conv, x.view, w.view, NULL, wide.view),
                   "f32");
    test_expect_ok(d.ctx, spops_pointconv_execute(d.ctx, conv, narrow, w.view, &layer, out.view),
                   "i8");
    test_wait(&d);
    guarded_download(&wide), guarded_download(&out);
    for (int i = 0; i < ROWS * COLS_OUT; ++i)
        cr_assert_eq(guarded_get(&out, i / COLS_OUT, i % COLS_OUT),
                     guarded_get(&wide, i / COLS_OUT, i % COLS_OUT), "element %d", i);
    guarded_check_padding(&out, "i8");
    device_free(d.backend, q);
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&scales);
    guarded_destroy(&wide), guarded_destroy(&out);
    spops_pointconv_destroy(conv);
    destroy_case(&c);
    test_close(&d);
}

#define REFUSED(call, status, fragment) test_expect(d.ctx, call, status, fragment, fragment)

// What the rows cannot say; tests/test_operators.c has the faults of arguments.
BackendTest(pointconv, refuses, .timeout = 900)
{
    char line[256];
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const geometry g = {"", UNIFORM, 20, 0, 0, 3, 0.3f, 0.1f, 0};
    spops_pointconv_options options = spops_pointconv_options_default();
    spops_neighbors_options search = search_of(&g);
    spops_conv_layer layer = spops_conv_layer_default();
    spops_neighbors *bare = NULL;
    spops_pointconv *conv = NULL;
    test_device d;
    conv_case c;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    create_case(&c, &d, &g, 5);
    search.contents = SPOPS_NEIGHBORS_LISTS;
    test_expect_ok(d.ctx, spops_neighbors_create(d.ctx, NULL, &c.in, &search, &bare), "bare");
    REFUSED(spops_pointconv_create(d.ctx, bare, NULL, &conv), invalid,
            "without SPOPS_NEIGHBORS_BY_TAP");
    options.sums = SPOPS_POINTCONV_SUMS_FIRST;
    options.dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND;
    REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), SPOPS_STATUS_NOT_SUPPORTED,
            "is SPOPS_POINTCONV_SUMS_FIRST");
    options.sums = SPOPS_POINTCONV_SUMS_AUTO;
    options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    options.quantized = 1, options.detach = 1;
    REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), invalid,
            "options->quantized is 1, expected 0 where options->detach is 1");
    options.quantized = options.detach = 0;
    if (d.backend == SPOPS_BACKEND_CUDA && has_gemm(&c)) {
        static const int32_t wrong[] = {-1, 1, 16, 1000}; // 1 adds no rows, 16 takes units
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
            options.tile = wrong[i];
            snprintf(line, sizeof line,
                     "options->tile is %d, expected that of a kernel for this device that adds "
                     "rows first",
                     (int)wrong[i]);
            REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), invalid, line);
        }
        options.tile = 0;
    }
    if (d.backend == SPOPS_BACKEND_CPU) {
        options.tile = 5;
        options.dataflow = SPOPS_DATAFLOW_AUTO;
        REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv),
                SPOPS_STATUS_NOT_SUPPORTED, "options->tile is 5, which needs implicit_gemm");
        options.tile = 0;
        options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    }
    options.max_in_channels = 1 << 20, options.max_out_channels = 1 << 12;
    REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), invalid,
            "max_in_channels is 1048576 and max_out_channels 4096, expected a product of at most");
    options.max_in_channels = options.max_out_channels = 0;
    options.detach = 2;
    REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), invalid, "detach is 2");
    options.detach = 1, options.dataflow = SPOPS_DATAFLOW_AUTO;
    REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), invalid,
            "expected options->dataflow to be implicit_gemm");
    options.detach = 0, options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    options.backward = 1, options.sums = SPOPS_POINTCONV_SUMS_NONE;
    REFUSED(spops_pointconv_create(d.ctx, bare, &options, &conv), invalid,
            "neighbors were made without SPOPS_NEIGHBORS_BY_TAP");
    options.backward = 0, options.sums = SPOPS_POINTCONV_SUMS_AUTO;
    if (d.backend == SPOPS_BACKEND_CPU)
        REFUSED(spops_pointconv_create(d.ctx, c.neighbors, &options, &conv),
                SPOPS_STATUS_NOT_SUPPORTED, "the cpu backend has no implicit_gemm");
    cr_assert(conv == NULL);
    test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, c.neighbors, NULL, &conv), "conv");

    guarded x = guarded_create(d.backend, "x", 20, 8, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d.backend, "w", 27 * 8, 12, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", 20, 12, 0, 0, SPOPS_DTYPE_F32);
    spops_matrix m = x.view;
#define RUN(x_, w_, layer_, out_) spops_pointconv_execute(d.ctx, conv, x_, w_, layer_, out_)
    guarded_poison(&out, 0xa5);
    guarded_upload(&out);
    m = x.view, m.dtype = (spops_dtype)-3;
    REFUSED(RUN(m, w.view, NULL, out.view), invalid, "x.dtype is 4294967293, which is no dtype");
    layer.groups = 3;
    REFUSED(RUN(x.view, w.view, &layer, out.view), invalid, "layer->groups = 3");
    m = x.view;
    REFUSED(spops_pointconv_execute_backward(d.ctx, conv, out.view, x.view, w.view, NULL, &m, NULL,
                                             NULL),
            invalid, "conv was made without gradients");
    spops_pointconv_destroy(conv), conv = NULL;
    options = spops_pointconv_options_default(), options.backward = 1;
    test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, c.neighbors, &options, &conv), "backward");
    m.dtype = (spops_dtype)-3;
    REFUSED(
        spops_pointconv_execute_backward(d.ctx, conv, out.view, m, w.view, NULL, NULL, NULL, NULL),
        invalid, "x.dtype is 4294967293, which is no dtype");
    const struct {
        int pass;
        spops_dtype dtype;
        int64_t in, out;
        int32_t groups;
        const char *line;
    } impossible[] = {{3, SPOPS_DTYPE_F32, 8, 12, 1, "pass is 3, expected 0 to 2"},
                      {0, SPOPS_DTYPE_I8, 8, 12, 1, "dtype is i8, expected f32, f16 or bf16"},
                      {0, SPOPS_DTYPE_F32, -8, 12, 1, "in_channels is -8 and out_channels 12"},
                      {0, SPOPS_DTYPE_F32, 8, 0, 1, "in_channels is 8 and out_channels 0"},
                      {0, SPOPS_DTYPE_F32, 8, 12, -1, "layer->groups is -1, expected 0 or more"}};
    spops_conv_choice choice;
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; ++i) {
        layer = spops_conv_layer_default(), layer.groups = impossible[i].groups;
        REFUSED(spops_pointconv_get_choice(d.ctx, conv, (spops_conv_pass)impossible[i].pass,
                                           impossible[i].dtype, impossible[i].in, impossible[i].out,
                                           &layer, &choice),
                invalid, impossible[i].line);
    }
    layer.groups = 3; // 8 channels are no multiple: nobody serves such a layer
    test_expect_ok(d.ctx,
                   spops_pointconv_get_choice(d.ctx, conv, SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, 8,
                                              12, &layer, &choice),
                   "choice");
    cr_assert_eq(choice.dataflow, SPOPS_DATAFLOW_AUTO);
    layer.groups = 1;
    test_expect_ok(d.ctx,
                   spops_pointconv_get_choice(d.ctx, conv, SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, 8,
                                              12, NULL, &choice),
                   "choice");
    cr_assert_eq(choice.dataflow, SPOPS_DATAFLOW_FETCH_ON_DEMAND);
    cr_assert_eq(choice.num_out, 20);
    cr_assert_eq(choice.num_taps, 27);
    test_wait(&d);
    guarded_check_untouched(&out, "after refusals");
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&out);
    spops_pointconv_destroy(conv);
    spops_pointconv_destroy(NULL);
    spops_neighbors_destroy(bare);
    destroy_case(&c);
    test_close(&d);
}

// Neighbours made with a radius alone serve a plan made with defaults, forward and backward: ones times
// ones count pairs.
CaseTest(pointconv, defaults_fit_each_other, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0))
{
    enum { NUM = 200, COLS = 8 };
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_neighbors_info info = spops_neighbors_info_default();
    spops_pointconv_options options = spops_pointconv_options_default();
    spops_neighbors *neighbors = NULL;
    spops_pointconv *conv = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    guarded points = guarded_create(d.backend, "points", NUM, 3, 0, 0, SPOPS_DTYPE_F32);
    guarded x = guarded_create(d.backend, "x", NUM, COLS, 0, 0, (spops_dtype)p->dtype);
    guarded w = guarded_create(d.backend, "w", COLS, COLS, 0, 0, (spops_dtype)p->dtype);
    guarded out = guarded_create(d.backend, "out", NUM, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded dx = guarded_create(d.backend, "dx", NUM, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded dw = guarded_create(d.backend, "dw", COLS, COLS, 0, 0, SPOPS_DTYPE_F32);
    guarded *ones[] = {&x, &w}, *results[] = {&out, &dx, &dw};
    for (int64_t i = 0; i < NUM; ++i)
        for (int64_t a = 0; a < 3; ++a)
            guarded_set(&points, i, a, a == 0 ? 0.25 * (double)i : 0);
    guarded_upload(&points);
    for (int i = 0; i < 2; ++i) {
        for (int64_t r = 0; r < ones[i]->view.rows; ++r)
            for (int64_t c = 0; c < COLS; ++c)
                guarded_set(ones[i], r, c, 1);
        guarded_upload(ones[i]);
    }
    const spops_point_cloud cloud = {points.view, NULL, 0};
    for (int same = 0; same < 2; ++same) { // the inputs as outputs, or named again
        search.radius_m = 0.6f;
        test_expect_ok(
            d.ctx, spops_neighbors_create(d.ctx, same ? NULL : &cloud, &cloud, &search, &neighbors),
            "neighbours");
        test_expect_ok(d.ctx, spops_neighbors_get_info_sync(d.ctx, neighbors, &info), "info");
        test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, neighbors, NULL, &conv), "plan");
        spops_pointconv_destroy(conv);
        options.backward = 1;
        test_expect_ok(d.ctx, spops_pointconv_create(d.ctx, neighbors, &options, &conv), "plan");
        test_expect_ok(d.ctx, spops_pointconv_execute(d.ctx, conv, x.view, w.view, NULL, out.view),
                       "forward");
        test_expect_ok(d.ctx,
                       spops_pointconv_execute_backward(d.ctx, conv, x.view, x.view, w.view, NULL,
                                                        &dx.view, &dw.view, NULL),
                       "backward");
        test_wait(&d);
        for (int i = 0; i < 3; ++i) {
            double sum = 0;
            guarded_download(results[i]);
            for (int64_t r = 0; r < results[i]->view.rows; ++r)
                for (int64_t c = 0; c < COLS; ++c)
                    sum += guarded_get(results[i], r, c);
            cr_assert_eq(sum, (double)info.num_pairs * COLS * COLS, "%s", results[i]->name);
        }
        cr_assert_eq(info.num_pairs, 5 * NUM - 6);
        spops_pointconv_destroy(conv);
        spops_neighbors_destroy(neighbors);
    }
    guarded_destroy(&points), guarded_destroy(&x), guarded_destroy(&w);
    guarded_destroy(&out), guarded_destroy(&dx), guarded_destroy(&dw);
    test_close(&d);
}
