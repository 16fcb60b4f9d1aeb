// SPDX-License-Identifier: Apache-2.0
// Gradients of weights on a map whose taps have many pairs, so that each is cut into many pieces, by
// every dataflow. Features are small whole numbers and every sum is exact: row and column sums of
// each matrix are known exactly, and one pair that is left out, or added twice, shows.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spops/sparseconv.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { TAPS = 27 };

// Rows of whole numbers from -2 to 2 as f16, here and where d runs.
typedef struct whole_rows {
    int64_t rows, cols;
    int8_t *values;
    void *device;
} whole_rows;

static whole_rows make_rows(test_device *d, test_rng *rng, int64_t rows, int64_t cols)
{
    static const uint16_t f16[] = {0xc000, 0xbc00, 0, 0x3c00, 0x4000};
    whole_rows m = {rows, cols, NULL, NULL};
    const size_t count = (size_t)(rows * cols);
    uint16_t *bits = (uint16_t *)malloc(count * sizeof *bits);
    m.values = (int8_t *)malloc(count);
    for (size_t i = 0; i < count; ++i) {
        const int64_t v = test_rng_below(rng, 5);
        m.values[i] = (int8_t)(v - 2);
        bits[i] = f16[v];
    }
    cr_assert(device_alloc(d->backend, count * sizeof *bits, &m.device) &&
                  device_upload(d->backend, m.device, bits, count * sizeof *bits),
              "%s", device_error());
    free(bits);
    return m;
}

static void free_rows(test_device *d, whole_rows *m)
{
    device_free(d->backend, m->device);
    free(m->values);
}

static int64_t sum_of_row(const whole_rows *m, int32_t row)
{
    int64_t sum = 0;
    for (int64_t c = 0; c < m->cols; ++c)
        sum += m->values[row * m->cols + c];
    return sum;
}

// Sums of the matrices of taps: over columns [TAPS][in], and over rows [TAPS][out].
typedef struct matrix_sums {
    int64_t *rows, *cols;
} matrix_sums;

static matrix_sums expected_sums(const test_device *d, const spops_kernel_map_view *view,
                                 const whole_rows *x, const whole_rows *g)
{
    matrix_sums s = {(int64_t *)calloc((size_t)(TAPS * x->cols), sizeof(int64_t)),
                     (int64_t *)calloc((size_t)(TAPS * g->cols), sizeof(int64_t))};
    int32_t offsets[TAPS + 1];
    cr_assert(device_download(d->backend, offsets, view->tap_offsets, sizeof offsets));
    const size_t pair_bytes = (size_t)offsets[TAPS] * sizeof(int32_t);
    int32_t *in = (int32_t *)malloc(pair_bytes), *out = (int32_t *)malloc(pair_bytes);
    cr_assert(device_download(d->backend, in, view->in_rows, pair_bytes) &&
              device_download(d->backend, out, view->out_rows, pair_bytes));
    for (int k = 0; k < TAPS; ++k) {
        for (int32_t p = offsets[k]; p < offsets[k + 1]; ++p) {
            const int64_t of_g = sum_of_row(g, out[p]), of_x = sum_of_row(x, in[p]);
            for (int64_t c = 0; c < x->cols; ++c)
                s.rows[k * x->cols + c] += x->values[in[p] * x->cols + c] * of_g;
            for (int64_t o = 0; o < g->cols; ++o)
                s.cols[k * g->cols + o] += g->values[out[p] * g->cols + o] * of_x;
        }
    }
    free(in), free(out);
    return s;
}

static void check_sums(const float *dw, const matrix_sums *s, int64_t in, int64_t out,
                       const char *what)
{
    for (int64_t r = 0; r < TAPS * in; ++r) {
        double sum = 0.0;
        for (int64_t o = 0; o < out; ++o)
            sum += (double)dw[r * out + o];
        cr_assert(sum == (double)s->rows[r], "%s: tap %d, row %d sums to %.0f, expected %.0f", what,
                  (int)(r / in), (int)(r % in), sum, (double)s->rows[r]);
    }
    for (int64_t k = 0; k < TAPS; ++k) {
        for (int64_t o = 0; o < out; ++o) {
            double sum = 0.0;
            for (int64_t c = 0; c < in; ++c)
                sum += (double)dw[(k * in + c) * out + o];
            cr_assert(sum == (double)s->cols[k * out + o],
                      "%s: tap %d, column %d sums to %.0f, expected %.0f", what, (int)k, (int)o,
                      sum, (double)s->cols[k * out + o]);
        }
    }
}

// Half of a cube's voxels.
static spops_kernel_map *create_map(test_device *d, int32_t side, spops_coords **coords)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options options = spops_kernel_map_options_default();
    spops_kernel_map *map = NULL;
    test_rng rng = test_rng_make(1);
    int32_t *rows = (int32_t *)malloc((size_t)side * side * side * 4 * sizeof *rows);
    int64_t n = 0;
    for (int32_t i = 0; i < side * side * side; ++i) {
        if (test_rng_below(&rng, 2) == 0) continue;
        rows[4 * n] = 0;
        rows[4 * n + 1] = i / side / side;
        rows[4 * n + 2] = i / side % side;
        rows[4 * n + 3] = i % side;
        ++n;
    }
    *coords = test_create_set(d, 3, n, rows, NULL);
    free(rows);
    options.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE;
    test_expect_ok(d->ctx,
                   spops_kernel_map_create(d->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, *coords, NULL,
                                           &options, &map),
                   "map");
    return map;
}

static void check_widths(test_device *d, const spops_kernel_map *map, int64_t in, int64_t out,
                         int repeats)
{
    const spops_conv_layer layer = spops_conv_layer_default();
    spops_kernel_map_view view = spops_kernel_map_view_default();
    test_rng rng = test_rng_make((uint64_t)(100 * in + out));
    test_expect_ok(d->ctx, spops_kernel_map_get_view(d->ctx, map, &view), "view");
    whole_rows x = make_rows(d, &rng, view.in->max_rows, in);
    whole_rows g = make_rows(d, &rng, view.in->max_rows, out);
    whole_rows w = make_rows(d, &rng, TAPS * in, out);
    const matrix_sums sums = expected_sums(d, &view, &x, &g);
    const size_t dw_bytes = (size_t)(TAPS * in * out) * sizeof(float);
    float *dw = (float *)malloc(dw_bytes);
    void *device = NULL;
    cr_assert(device_alloc(d->backend, dw_bytes, &device), "%s", device_error());
    const spops_matrix grad_w = spops_matrix_dense(device, TAPS * in, out, SPOPS_DTYPE_F32);

    for (int f = SPOPS_DATAFLOW_FETCH_ON_DEMAND; f <= SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER; ++f) {
        spops_sparseconv_options options = spops_sparseconv_options_default();
        spops_sparseconv *conv = NULL;
        char what[128];
        options.backward = 1;
        options.dataflow = (spops_dataflow)f;
        (void)snprintf(what, sizeof what, "%s, %d to %d", spops_dataflow_name(options.dataflow),
                       (int)in, (int)out);
        const spops_status status = spops_sparseconv_create(d->ctx, map, &options, &conv);
        if (status == SPOPS_STATUS_NOT_SUPPORTED) {
            cr_log_info("skipped: %s", spops_last_error(d->ctx));
            continue;
        }
        test_expect_ok(d->ctx, status, what);
        for (int i = 0; i < repeats; ++i) {
            cr_assert(device_fill(d->backend, device, 0xa5, dw_bytes));
            test_expect_ok(d->ctx,
                           spops_sparseconv_execute_backward(
                               d->ctx, conv,
                               spops_matrix_dense(g.device, g.rows, out, SPOPS_DTYPE_F16),
                               spops_matrix_dense(x.device, x.rows, in, SPOPS_DTYPE_F16),
                               spops_matrix_dense(w.device, TAPS * in, out, SPOPS_DTYPE_F16),
                               &layer, NULL, &grad_w, NULL),
                           what);
            test_wait(d);
            cr_assert(device_download(d->backend, dw, device, dw_bytes));
            check_sums(dw, &sums, in, out, what);
        }
        spops_sparseconv_destroy(conv);
    }
    device_free(d->backend, device);
    free(dw), free(sums.rows), free(sums.cols);
    free_rows(d, &x), free_rows(d, &g), free_rows(d, &w);
}

BackendTest(sparseconv_large, gradients_of_weights_miss_no_pair, .timeout = 300)
{
    static const int64_t widths[][2] = {{64, 128}, {128, 64}, {64, 64}, {16, 32}};
    const bool cuda = p->backend == SPOPS_BACKEND_CUDA;
    spops_coords *coords = NULL;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    // On a GPU 108,000 voxels: some 56,000 pairs a tap, or 900 steps of 64, and more than one block
    // for each.
    spops_kernel_map *map = create_map(&d, cuda ? 60 : 14, &coords);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; ++i)
        check_widths(&d, map, widths[i][0], widths[i][1], cuda ? 20 : 2);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    test_close(&d);
}
