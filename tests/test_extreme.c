// SPDX-License-Identifier: Apache-2.0
// Elements more than 2^31 elements into a matrix, by way of a large row stride: addresses are
// computed in 64 bits. On the CPU the memory is reserved and only touched where the rows lie; on a
// GPU it is allocated, where there is that much.
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/device.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"
#include "tests/support/values.h"

enum { ROWS = 6, COLS = 4, SEGMENTS = 6, WEIGHTS = 6 };
// Row 5 begins at 5 * 2^29 = 2^31 + 2^29 elements.
static const int64_t stride = (int64_t)1 << 29;

typedef struct huge {
    spops_matrix view;
    spops_backend_kind backend;
    size_t bytes;
} huge;

static bool huge_create(huge *h, spops_backend_kind backend, int64_t rows, spops_dtype dtype)
{
    const size_t element = test_dtype_bytes(dtype);
    memset(h, 0, sizeof *h);
    h->backend = backend;
    h->bytes = ((size_t)(rows - 1) * (size_t)stride + COLS) * element;
    h->view = (spops_matrix){NULL, rows, COLS, stride, dtype};
    if (backend == SPOPS_BACKEND_CPU) {
        void *p = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return false;
        h->view.data = p;
        return true;
    }
    return device_alloc(backend, h->bytes, &h->view.data);
}

static void huge_destroy(huge *h)
{
    if (h->view.data == NULL) return;
    if (h->backend == SPOPS_BACKEND_CPU)
        (void)munmap(h->view.data, h->bytes);
    else
        device_free(h->backend, h->view.data);
}

static char *row_of(const huge *h, int64_t r)
{
    return (char *)h->view.data + (size_t)(r * stride) * test_dtype_bytes(h->view.dtype);
}

static void put(huge *h, const double *values)
{
    const size_t element = test_dtype_bytes(h->view.dtype);
    for (int64_t r = 0; r < h->view.rows; ++r) {
        unsigned char row[COLS * 4];
        for (int64_t c = 0; c < COLS; ++c) {
            test_store(row + (size_t)c * element, h->view.dtype, values[r * COLS + c]);
        }
        cr_assert(device_upload(h->backend, row_of(h, r), row, COLS * element), "%s",
                  device_error());
    }
}

static void expect(const huge *h, const double *values, const char *what)
{
    const size_t element = test_dtype_bytes(h->view.dtype);
    for (int64_t r = 0; r < h->view.rows; ++r) {
        unsigned char row[COLS * 4];
        cr_assert(device_download(h->backend, row, row_of(h, r), COLS * element), "%s",
                  device_error());
        for (int64_t c = 0; c < COLS; ++c) {
            const double got = test_load(row + (size_t)c * element, h->view.dtype);
            cr_assert(got == values[r * COLS + c], "%s [%lld, %lld] is %g, expected %g", what,
                      (long long)r, (long long)c, got, values[r * COLS + c]);
        }
    }
}

// Attention of each row to one key, row 5 - i, whose value it takes; the value's gradient goes back.
static void attend_far(test_device *d, const huge *in, huge *result, const double *x,
                       const double *turned)
{
    static const int32_t offsets[] = {0, 1, 2, 3, 4, 5, 6}, keys[] = {5, 4, 3, 2, 1, 0};
    int32_t *there[] = {test_upload_i32(d, offsets, 7), test_upload_i32(d, keys, 6)};
    const spops_patch_lists lists = {ROWS, there[0], NULL, there[0], there[1], 0};
    guarded lse = guarded_create(d->backend, "lse", ROWS, 1, 0, 0, SPOPS_DTYPE_F32);
    spops_attention_options options = spops_attention_options_default();
    spops_patches *patches = NULL;
    options.scale = 1e-30f; // logits of 0, and weights of 1, however they are rounded
    test_expect_ok(d->ctx, spops_patches_create(d->ctx, ROWS, &lists, &patches), "patches");
    test_expect_ok(d->ctx,
                   spops_context_reserve(d->ctx, spops_attention_scratch_bytes(
                                                     patches, COLS, in->view.dtype, &options, 1)),
                   "scratch");
    put(result, x);
    test_expect_ok(d->ctx,
                   spops_attention_execute(d->ctx, patches, in->view, in->view, in->view, &options,
                                           result->view, (float *)lse.view.data),
                   "attention");
    test_wait(d);
    expect(result, turned, "attended");
    put(result, x);
    test_expect_ok(d->ctx,
                   spops_attention_execute_backward(d->ctx, patches, in->view, in->view, in->view,
                                                    in->view, in->view, (float *)lse.view.data,
                                                    &options, NULL, NULL, &result->view, NULL, NULL,
                                                    NULL),
                   "attention, backward");
    test_wait(d);
    expect(result, turned, "gradient of the values");
    guarded_destroy(&lse);
    spops_patches_destroy(patches);
    test_free(d, there[0]), test_free(d, there[1]);
}

// A point convolution whose points have no neighbours but themselves copies rows: points and features
// far apart. Buckets of such points hold them all.
static void convolve_far(test_device *d, const huge *in, huge *result, const double *x)
{
    double identity[COLS * COLS] = {0};
    spops_buckets_options bo = spops_buckets_options_default();
    spops_pointconv_options options = spops_pointconv_options_default();
    spops_neighbors_options search = spops_neighbors_options_default();
    spops_point_cloud cloud = {in->view, NULL, 0};
    spops_neighbors *neighbors = NULL;
    spops_pointconv *conv = NULL;
    spops_buckets *buckets = NULL;
    spops_buckets_info info = spops_buckets_info_default();
    guarded near = guarded_create(d->backend, "points", ROWS, 3, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(d->backend, "w", COLS, COLS, 0, 0, in->view.dtype);
    double points[ROWS * 3];
    for (int i = 0; i < ROWS * 3; ++i)
        points[i] = x[i / 3 * COLS + i % 3];
    for (int c = 0; c < COLS; ++c)
        identity[c * COLS + c] = 1.0;
    guarded_fill_from(&near, points), guarded_upload(&near);
    guarded_fill_from(&w, identity), guarded_upload(&w);
    cloud.points.cols = 3;
    if (in->view.dtype != SPOPS_DTYPE_F32) cloud.points = near.view; // coordinates are f32
    search.contents = SPOPS_NEIGHBORS_BY_TAP;
    options.backward = 1;
    bo.bucket_rows = ROWS;
    test_expect_ok(d->ctx, spops_buckets_create(d->ctx, &cloud, &bo, &buckets), "buckets");
    test_expect_ok(d->ctx, spops_buckets_get_info_sync(d->ctx, buckets, &info), "buckets");
    cr_assert(info.num_placed[0] == ROWS && info.num_buckets == 1);
    test_expect_ok(d->ctx, spops_neighbors_create(d->ctx, NULL, &cloud, &search, &neighbors),
                   "neighbours");
    test_expect_ok(d->ctx, spops_pointconv_create(d->ctx, neighbors, &options, &conv), "conv");
    put(result, (const double[ROWS * COLS]){0});
    test_expect_ok(d->ctx,
                   spops_pointconv_execute(d->ctx, conv, in->view, w.view, NULL, result->view),
                   "convolution");
    test_wait(d);
    expect(result, x, "convolved");
    put(result, (const double[ROWS * COLS]){0});
    test_expect_ok(d->ctx,
                   spops_pointconv_execute_backward(d->ctx, conv, in->view, in->view, w.view, NULL,
                                                    &result->view, NULL, NULL),
                   "convolution, backward");
    test_wait(d);
    expect(result, x, "gradient of the rows");
    spops_pointconv_destroy(conv);
    spops_neighbors_destroy(neighbors);
    spops_buckets_destroy(buckets);
    guarded_destroy(&near), guarded_destroy(&w);
}

struct far_param {
    int backend, dtype;
};

static struct criterion_test_params every_far_backend(void)
{
    static struct far_param params[] = {{SPOPS_BACKEND_CPU, SPOPS_DTYPE_F32},
                                        {SPOPS_BACKEND_CPU, SPOPS_DTYPE_F16},
                                        {SPOPS_BACKEND_CUDA, SPOPS_DTYPE_F32},
                                        {SPOPS_BACKEND_CUDA, SPOPS_DTYPE_BF16}};
    return tested_here(cr_make_param_array(struct far_param, params, 4));
}

TestOver(extreme, rows_far_apart, struct far_param *p, every_far_backend(), .timeout = 600)
{
    // Segment s holds row 5 - s, and row s as well where s is even.
    static const int32_t keys[9] = {0, 1, 2, 3, 4, 5, 0, 2, 4};
    static const int32_t idx[9] = {5, 4, 3, 2, 1, 0, 0, 2, 4};
    const spops_dtype dtype = (spops_dtype)p->dtype;
    const spops_backend_kind b = (spops_backend_kind)p->backend;
    double x[ROWS * COLS], w[9], out[SEGMENTS * COLS] = {0}, grad_x[ROWS * COLS] = {0};
    double grad_w[9] = {0}, gathered[ROWS * COLS];
    test_device d;
    huge in, result;
    spops_device_info info;
    if (test_quick() || !test_open(&d, b, LAUNCH_DEFAULT)) return;
    info.struct_size = sizeof info;
    test_expect_ok(d.ctx, spops_context_get_device_info(d.ctx, &info), "info");
    if (b == SPOPS_BACKEND_CUDA && info.memory_bytes < (int64_t)48 << 30) {
        cr_log_info("skipped: the device has less than 48 GiB");
        test_close(&d);
        return;
    }
    const bool have_in = huge_create(&in, b, ROWS, dtype);
    const bool have_result = huge_create(&result, b, ROWS, dtype);
    if (!have_in || !have_result) {
        cr_assert(b == SPOPS_BACKEND_CPU, "%s", device_error());
        cr_log_info("skipped: no address space for two matrices of %zu bytes", in.bytes);
        if (have_in) huge_destroy(&in);
        if (have_result) huge_destroy(&result);
        test_close(&d);
        return;
    }
    for (int i = 0; i < ROWS * COLS; ++i)
        x[i] = i % 7 - 3;
    for (int t = 0; t < 9; ++t)
        w[t] = t % 3 - 1 + (t == 8);
    for (int t = 0; t < 9; ++t) {
        for (int c = 0; c < COLS; ++c)
            out[keys[t] * COLS + c] += w[t] * x[idx[t] * COLS + c];
    }
    put(&in, x);
    guarded weights = guarded_create(b, "w", 9, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded grad_weights = guarded_create(b, "grad_w", 9, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded_fill_from(&weights, w);
    guarded_upload(&weights);
    int32_t *device_keys = test_upload_i32(&d, keys, 9), *device_idx = test_upload_i32(&d, idx, 9);
    spops_segments *plan = NULL, *copy = NULL;
    spops_segments_options options = spops_segments_options_default();
    options.idx = device_idx;
    options.num_rows = ROWS;
    options.gradients = SPOPS_GRADIENTS_ALL;
    test_expect_ok(d.ctx,
                   spops_segments_create_from_keys(d.ctx, SEGMENTS, 9, device_keys,
                                                   SPOPS_KEYS_UNSORTED, &options, &plan),
                   "plan");
    // Forward: far rows in, far rows out.
    test_expect_ok(d.ctx,
                   spops_segreduce_execute(d.ctx, plan, SPOPS_REDUCE_SUM, in.view, &weights.view,
                                           result.view, NULL),
                   "forward");
    test_wait(&d);
    expect(&result, out, "out");
    // Backward, with x as the gradient of out: far rows in all three matrices' places.
    for (int t = 0; t < 9; ++t) {
        for (int c = 0; c < COLS; ++c) {
            grad_x[idx[t] * COLS + c] += w[t] * x[keys[t] * COLS + c];
            grad_w[t] += x[idx[t] * COLS + c] * x[keys[t] * COLS + c];
        }
    }
    test_expect_ok(d.ctx,
                   spops_segreduce_execute_backward(d.ctx, plan, SPOPS_REDUCE_SUM, in.view, in.view,
                                                    &weights.view, &result.view,
                                                    &grad_weights.view),
                   "backward");
    test_wait(&d);
    expect(&result, grad_x, "grad_x");
    guarded_download(&grad_weights);
    for (int t = 0; t < 9; ++t) {
        cr_assert(guarded_get(&grad_weights, t, 0) == grad_w[t], "grad_w[%d] is %g, expected %g", t,
                  guarded_get(&grad_weights, t, 0), grad_w[t]);
    }
    // The traced kernels: the gradient of a maximum.
    double grad_max[ROWS * COLS] = {0};
    for (int s = 0; s < SEGMENTS; ++s) {
        for (int c = 0; c < COLS; ++c) {
            int winner = -1;
            for (int t = 0; t < 9; ++t) {
                if (keys[t] != s) continue;
                if (winner < 0 || x[idx[t] * COLS + c] > x[idx[winner] * COLS + c]) winner = t;
            }
            grad_max[idx[winner] * COLS + c] += x[s * COLS + c];
        }
    }
    test_expect_ok(d.ctx,
                   spops_segreduce_execute_backward(d.ctx, plan, SPOPS_REDUCE_MAX, in.view, in.view,
                                                    NULL, &result.view, NULL),
                   "backward of max");
    test_wait(&d);
    expect(&result, grad_max, "grad_x of max");
    // Gather: row t of the result is row 5 - t of x.
    test_expect_ok(d.ctx,
                   spops_segments_create_from_keys(d.ctx, ROWS, 6, device_idx, SPOPS_KEYS_UNSORTED,
                                                   NULL, &copy),
                   "plan of a gather");
    test_expect_ok(d.ctx, spops_gather_execute(d.ctx, copy, in.view, NULL, result.view), "gather");
    test_wait(&d);
    for (int i = 0; i < ROWS * COLS; ++i)
        gathered[i] = x[(5 - i / COLS) * COLS + i % COLS];
    expect(&result, gathered, "gathered");
    attend_far(&d, &in, &result, x, gathered);
    convolve_far(&d, &in, &result, x);
    spops_segments_destroy(plan), spops_segments_destroy(copy);
    test_free(&d, device_keys), test_free(&d, device_idx);
    guarded_destroy(&weights), guarded_destroy(&grad_weights);
    huge_destroy(&in), huge_destroy(&result);
    test_close(&d);
}
