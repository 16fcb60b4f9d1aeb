// SPDX-License-Identifier: Apache-2.0
// Variants of kernels that a plan is asked for: those that exist give the same bits, others are
// refused, and a plan says which one it takes. (What the tuning tables choose: unit/test_tuning.c.)
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bevpool/bev_spans_tuning.h"
#include "kernels/segreduce/segreduce_tuning.h"
#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/params.h"

// Rows of f32 or f16 between 1 and 2 where d runs.
static spops_matrix some_rows(test_device *d, int64_t rows, int64_t cols, spops_dtype dtype)
{
    const size_t bytes = (size_t)(rows * cols) * spops_dtype_bytes(dtype);
    uint8_t *host = malloc(bytes);
    void *data = NULL;
    uint32_t state = 12345;
    for (int64_t i = 0; i < rows * cols; ++i) {
        state = state * 1664525u + 1013904223u;
        if (dtype == SPOPS_DTYPE_F32)
            ((uint32_t *)host)[i] = 0x3f800000u | state >> 9;
        else
            ((uint16_t *)host)[i] = (uint16_t)(0x3c00u | state >> 22);
    }
    cr_assert(device_alloc(d->backend, bytes, &data) &&
              device_upload(d->backend, data, host, bytes));
    free(host);
    return spops_matrix_dense(data, rows, cols, dtype);
}

// The bytes of a matrix, which the caller frees.
static uint8_t *bytes_of(test_device *d, spops_matrix m)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * spops_dtype_bytes(m.dtype);
    uint8_t *host = malloc(bytes);
    test_wait(d);
    cr_assert(device_download(d->backend, host, m.data, bytes));
    return host;
}

static void expect_bits(test_device *d, spops_matrix found, const uint8_t *expected,
                        const char *what)
{
    uint8_t *bits = bytes_of(d, found);
    cr_assert(memcmp(bits, expected,
                     (size_t)(found.rows * found.cols) * spops_dtype_bytes(found.dtype)) == 0,
              "%s", what);
    free(bits);
}

// ---- Sums ---------------------------------------------------------------------------------------

enum { SEGMENTS = 3000, TERMS = 60000, SUM_COLS = 64 };

// Segments of 0 to 30 terms, and one of those that are left.
static int32_t *some_offsets(test_device *d)
{
    int32_t offsets[SEGMENTS + 1] = {0};
    for (int s = 1; s < SEGMENTS; ++s)
        offsets[s] = offsets[s - 1] + s * 7 % 31;
    offsets[SEGMENTS] = TERMS;
    return test_upload_i32(d, offsets, SEGMENTS + 1);
}

static void check_sums(test_device *d, const int32_t *offsets, spops_dtype dtype)
{
    const spops_matrix x = some_rows(d, TERMS, SUM_COLS, dtype);
    const spops_matrix out = some_rows(d, SEGMENTS, SUM_COLS, dtype);
    uint8_t *expected = NULL;
    for (int32_t v = 0; v <= SPOPS_SEGREDUCE_NUM_VARIANTS; ++v) {
        spops_segments_options options = spops_segments_options_default();
        spops_segments_info info = spops_segments_info_default();
        spops_segments *plan = NULL;
        char what[256];
        options.max_cols = SUM_COLS;
        options.sum_variant = v;
        test_describe(what, "%s, sum_variant %d", spops_dtype_name(dtype), (int)v);
        test_expect_ok(d->ctx, spops_segments_create(d->ctx, SEGMENTS, offsets, &options, &plan),
                       what);
        test_expect_ok(d->ctx, spops_segments_get_info_sync(d->ctx, plan, &info), what);
        cr_assert(v == 0 ? info.sum_variant >= 1 && info.sum_variant <= SPOPS_SEGREDUCE_NUM_VARIANTS
                         : info.sum_variant == v,
                  "%s: found %d", what, (int)info.sum_variant);
        device_fill(d->backend, out.data, 0xff,
                    (size_t)(out.rows * out.cols) * spops_dtype_bytes(dtype));
        test_expect_ok(d->ctx,
                       spops_segreduce_execute(d->ctx, plan, SPOPS_REDUCE_SUM, x, NULL, out, NULL),
                       what);
        if (expected == NULL)
            expected = bytes_of(d, out);
        else
            expect_bits(d, out, expected, what);
        spops_segments_destroy(plan);
    }
    free(expected);
    device_free(d->backend, x.data);
    device_free(d->backend, out.data);
}

ParameterizedTestParameters(variants, sums)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, variants, sums)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const bool chooses = p->backend == SPOPS_BACKEND_CUDA;
    spops_segments_options options = spops_segments_options_default();
    spops_segments *plan = NULL;
    int32_t *offsets = some_offsets(&d);
    static const int32_t absent[] = {-1, SPOPS_SEGREDUCE_NUM_VARIANTS + 1, 100};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; ++i) {
        options.sum_variant = absent[i];
        test_expect(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, &options, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, "sum_variant", "no such variant");
        cr_assert(plan == NULL);
    }
    options.sum_variant = 1;
    test_expect(d.ctx, spops_segments_reserve(d.ctx, SEGMENTS, TERMS, &options, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "sum_variant", "a plan that is refilled");
    if (chooses) {
        check_sums(&d, offsets, SPOPS_DTYPE_F32);
        check_sums(&d, offsets, SPOPS_DTYPE_F16);
        check_sums(&d, offsets, SPOPS_DTYPE_BF16);
    } else {
        test_expect(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, &options, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, "expected 0 to 0", "no variants on the CPU");
        options.sum_variant = 0;
        spops_segments_info info = spops_segments_info_default();
        test_expect_ok(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, &options, &plan),
                       "without a variant");
        test_expect_ok(d.ctx, spops_segments_get_info_sync(d.ctx, plan, &info), "info");
        cr_assert(info.sum_variant == 0);
        spops_segments_destroy(plan);
    }
    test_free(&d, offsets);
    test_close(&d);
}

// ---- Pooling over spans -------------------------------------------------------------------------

// All variants that suit rows of cols columns; the others are refused when they are to pool.
static void check_pooling(test_device *d, const spops_bev_geometry *g, int64_t cols)
{
    const spops_bev_shape *s = &g->shape;
    const int64_t pixels =
        (int64_t)s->num_batches * s->num_cameras * s->feature_height * s->feature_width;
    const int64_t cells =
        (int64_t)s->num_batches * s->num_cells_x * s->num_cells_y * s->num_cells_z;
    const spops_matrix feat = some_rows(d, pixels, cols, SPOPS_DTYPE_F16);
    const spops_matrix depth = some_rows(d, pixels * s->num_depths, 1, SPOPS_DTYPE_F16);
    const spops_matrix out = some_rows(d, cells, cols, SPOPS_DTYPE_F16);
    uint8_t *expected = NULL;
    for (int32_t v = 0; v <= SPOPS_BEV_POOL_NUM_VARIANTS; ++v) {
        spops_bev_options options = spops_bev_options_default();
        spops_bev_plan_info info = spops_bev_plan_info_default();
        spops_bev_plan *plan = NULL;
        char what[256];
        options.max_cols = cols;
        options.kernel = SPOPS_BEV_KERNEL_SPANS;
        options.pool_variant = v;
        test_describe(what, "%d columns, pool_variant %d", (int)cols, (int)v);
        test_expect_ok(d->ctx, spops_bev_plan_create(d->ctx, g, &options, &plan), what);
        test_expect_ok(d->ctx, spops_bev_plan_get_info_sync(d->ctx, plan, &info), what);
        const bool accepts = v == 0 || spops_bev_pool_accepts(v, cols);
        cr_assert(v == 0 ? info.pool_variant >= 1 : info.pool_variant == (accepts ? v : 0),
                  "%s: found %d", what, (int)info.pool_variant);
        device_fill(d->backend, out.data, 0xff, (size_t)(cells * cols) * 2);
        spops_bevpool_args pool = spops_bevpool_args_default();
        pool.depth = depth;
        pool.feat = feat;
        pool.out = out;
        const spops_status status = spops_bevpool_execute(d->ctx, plan, &pool);
        if (!accepts) {
            test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, "pool_variant", what);
        } else {
            test_expect_ok(d->ctx, status, what);
            if (expected == NULL)
                expected = bytes_of(d, out);
            else
                expect_bits(d, out, expected, what);
        }
        spops_bev_plan_destroy(plan);
    }
    free(expected);
    device_free(d->backend, feat.data);
    device_free(d->backend, depth.data);
    device_free(d->backend, out.data);
}

ParameterizedTestParameters(variants, pooling)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, variants, pooling)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    bev_geometry_case g = bev_geometry_simulate(2, 4, 0.3);
    spops_bev_options options = spops_bev_options_default();
    spops_bev_plan *plan = NULL;
    static const int32_t absent[] = {-1, SPOPS_BEV_POOL_NUM_VARIANTS + 1, 100};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; ++i) {
        options.pool_variant = absent[i];
        test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, "pool_variant", "no such variant");
        cr_assert(plan == NULL);
    }
    options.kernel = SPOPS_BEV_KERNEL_INTERVALS;
    options.pool_variant = 1;
    test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &options, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "pools by lists", "a plan without spans");
    test_expect(d.ctx, spops_bev_plan_reserve(d.ctx, &g.geometry, &options, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "pools by lists", "a plan that is refilled");
    if (p->backend == SPOPS_BACKEND_CUDA) {
        static const int64_t cols[] = {8, 64, 80, 96, 128, 136, 160, 256};
        for (size_t i = 0; i < sizeof cols / sizeof *cols; ++i)
            check_pooling(&d, &g.geometry, cols[i]);
    }
    bev_geometry_free(&g);
    test_close(&d);
}
