// SPDX-License-Identifier: Apache-2.0
// Results of a part of a set: rows whose neighbours are all there have the bits that the whole set gives
// them, with plans that are crop_independent, and whatever the number of rows of a linear layer.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/random.h"
#include "tests/support/values.h"

// A slab of a box along its first axis, and what its rows see around it.
enum { WIDTH = 96, DEPTH = 40, HEIGHT = 12, CORE_FROM = 37, CORE_TO = 58, HALO = 5 };

typedef struct rows_of {
    int64_t n;
    int32_t (*at)[4];
} rows_of;

static rows_of draw_rows(test_rng *rng, int percent)
{
    rows_of r = {0, malloc(sizeof(int32_t[WIDTH * DEPTH * HEIGHT][4]))};
    for (int32_t x = 0; x < WIDTH; ++x)
        for (int32_t y = 0; y < DEPTH; ++y)
            for (int32_t z = 0; z < HEIGHT; ++z) {
                if ((int)test_rng_below(rng, 100) >= percent) continue;
                const int32_t row[4] = {0, x - WIDTH / 2, y, z};
                memcpy(r.at[r.n++], row, sizeof row);
            }
    return r;
}

static bool is_in(const int32_t row[4], int32_t stride, int32_t around)
{
    const int32_t from = CORE_FROM - WIDTH / 2 - around, to = CORE_TO - WIDTH / 2 + around;
    return row[1] * stride >= from && (row[1] + 1) * stride <= to;
}

static rows_of crop_rows(const rows_of *all)
{
    rows_of r = {0, malloc((size_t)all->n * sizeof *all->at)};
    for (int64_t i = 0; i < all->n; ++i)
        if (is_in(all->at[i], 1, HALO)) memcpy(r.at[r.n++], all->at[i], sizeof *r.at);
    return r;
}

// ---- Sets and maps where d runs -----------------------------------------------------------------

typedef struct cloud {
    spops_coords *fine, *coarse;
    spops_kernel_map *maps[3]; // within, down, up
    rows_of rows, coarse_rows;
} cloud;

enum { WITHIN, DOWN, UP, NUM_MAPS };

static cloud make_cloud(test_device *d, rows_of rows)
{
    const spops_kernel_shape three = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_kernel_shape two = spops_kernel_shape_cube(3, 2, 2, 1);
    spops_coords_view view = spops_coords_view_default();
    cloud c = {.rows = rows};

    c.fine = test_create_set(d, 3, rows.n, rows.at[0], NULL);
    test_expect_ok(d->ctx, spops_coords_create_downsampled(d->ctx, c.fine, &two, NULL, &c.coarse),
                   "down");
    test_expect_ok(d->ctx,
                   spops_kernel_map_create(d->ctx, SPOPS_MAP_SUBMANIFOLD, &three, c.fine, NULL,
                                           NULL, &c.maps[WITHIN]),
                   "within");
    test_expect_ok(d->ctx,
                   spops_kernel_map_create(d->ctx, SPOPS_MAP_CONVOLUTION, &two, c.fine, c.coarse,
                                           NULL, &c.maps[DOWN]),
                   "down");
    test_expect_ok(d->ctx, spops_kernel_map_create_inverse(d->ctx, c.maps[DOWN], NULL, &c.maps[UP]),
                   "up");
    test_expect_ok(d->ctx, spops_coords_get_num_rows_sync(d->ctx, c.coarse, &c.coarse_rows.n), "n");
    test_expect_ok(d->ctx, spops_coords_get_view(d->ctx, c.coarse, &view), "view");
    c.coarse_rows.at = malloc((size_t)c.coarse_rows.n * sizeof *c.coarse_rows.at);
    test_download_i32(d, c.coarse_rows.at[0], view.rows, c.coarse_rows.n * 4);
    return c;
}

static void free_cloud(cloud *c)
{
    for (int m = 0; m < NUM_MAPS; ++m)
        spops_kernel_map_destroy(c->maps[m]);
    spops_coords_destroy(c->coarse);
    spops_coords_destroy(c->fine);
    free(c->rows.at);
    free(c->coarse_rows.at);
}

// ---- Rows by where they are ---------------------------------------------------------------------

// A number that follows from the place, so that a row has the same features in the whole and in a part.
static double feature(const int32_t row[4], int64_t column)
{
    test_rng rng = test_rng_make(((uint64_t)(row[1] + 512) << 40) ^ ((uint64_t)row[2] << 24) ^
                                 ((uint64_t)row[3] << 12) ^ (uint64_t)column);
    return (double)(int64_t)(test_rng_next(&rng) >> 40) / 0x1p23 - 1.0;
}

static spops_matrix upload(test_device *d, int64_t rows, int64_t cols, spops_dtype dtype,
                           const int32_t (*at)[4])
{
    const size_t each = test_dtype_bytes(dtype), bytes = (size_t)(rows * cols) * each;
    char *host = malloc(bytes + 1);
    void *data = NULL;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < cols; ++c) {
            const int32_t itself[4] = {0, (int32_t)i, 1, 2};
            test_store(host + (size_t)(i * cols + c) * each, dtype,
                       feature(at == NULL ? itself : at[i], c));
        }
    cr_assert(device_alloc(d->backend, bytes, &data) &&
              device_upload(d->backend, data, host, bytes));
    free(host);
    return spops_matrix_dense(data, rows, cols, dtype);
}

static spops_matrix poisoned(test_device *d, int64_t rows, int64_t cols, spops_dtype dtype)
{
    void *data = NULL;
    cr_assert(device_alloc(d->backend, (size_t)(rows * cols) * test_dtype_bytes(dtype), &data));
    return spops_matrix_dense(data, rows, cols, dtype); // filled with 0xff
}

static char *download(test_device *d, spops_matrix m)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * test_dtype_bytes(m.dtype);
    char *host = malloc(bytes + 1);
    test_wait(d);
    cr_assert(device_download(d->backend, host, m.data, bytes));
    device_free(d->backend, m.data);
    return host;
}

static int64_t find_row(const rows_of *rows, const int32_t at[4])
{
    for (int64_t i = 0; i < rows->n; ++i)
        if (memcmp(rows->at[i], at, sizeof rows->at[i]) == 0) return i;
    return -1;
}

// Rows of the core whose bytes differ between a part and the whole. Rows that are not there: all differ.
static int64_t differing(const rows_of *part, const char *of_part, const rows_of *whole,
                         const char *of_whole, size_t row_bytes, int32_t stride, int64_t *compared)
{
    int64_t differ = 0, from = 0;

    for (int64_t i = 0; i < part->n; ++i) {
        if (!is_in(part->at[i], stride, 0)) continue;
        int64_t w = from; // both are in one order
        while (w < whole->n && memcmp(whole->at[w], part->at[i], sizeof *part->at) != 0)
            ++w;
        if (w == whole->n) w = find_row(whole, part->at[i]);
        cr_assert(w >= 0, "a row of the part is not in the whole");
        from = w + 1;
        ++*compared;
        differ += memcmp(of_part + (size_t)i * row_bytes, of_whole + (size_t)w * row_bytes,
                         row_bytes) != 0;
    }
    return differ;
}

// ---- Convolutions -------------------------------------------------------------------------------

typedef struct layer {
    int map;
    int64_t in, out;
    spops_dtype dtype;
    spops_math math;
    bool backward; // the gradient of x
    int32_t crop_independent;
} layer;

static char *run_layer(test_device *d, const cloud *c, const layer *l, spops_matrix w)
{
    const rows_of *from = l->map == UP ? &c->coarse_rows : &c->rows;
    const rows_of *to = l->map == DOWN ? &c->coarse_rows : &c->rows;
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_conv_layer how = spops_conv_layer_default();
    spops_sparseconv *conv = NULL;

    options.backward = 1;
    options.crop_independent = l->crop_independent;
    how.math = l->math;
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, c->maps[l->map], &options, &conv),
                   "plan");
    spops_matrix x = upload(d, from->n, l->in, l->dtype, from->at), out;
    if (l->backward) {
        spops_matrix g = upload(d, to->n, l->out, l->dtype, to->at);
        out = poisoned(d, from->n, l->in, l->dtype);
        test_expect_ok(
            d->ctx,
            spops_sparseconv_execute_backward(d->ctx, conv, g, x, w, &how, &out, NULL, NULL),
            "backward");
        test_wait(d);
        device_free(d->backend, g.data);
    } else {
        out = poisoned(d, to->n, l->out, l->dtype);
        test_expect_ok(d->ctx, spops_sparseconv_execute(d->ctx, conv, x, w, &how, out), "forward");
        test_wait(d);
    }
    device_free(d->backend, x.data);
    spops_sparseconv_destroy(conv);
    return download(d, out);
}

// Rows that differ between the part and the whole.
static int64_t differing_rows(test_device *d, const cloud *whole, const cloud *part, const layer *l)
{
    const bool coarse = l->backward ? l->map == UP : l->map == DOWN;
    const int64_t taps = l->map == WITHIN ? 27 : 8;
    const spops_matrix w = upload(d, taps * l->in, l->out, l->dtype, NULL);
    char *of_whole = run_layer(d, whole, l, w), *of_part = run_layer(d, part, l, w);
    const size_t bytes = (size_t)(l->backward ? l->in : l->out) * test_dtype_bytes(l->dtype);
    int64_t compared = 0;
    const int64_t differ = differing(coarse ? &part->coarse_rows : &part->rows, of_part,
                                     coarse ? &whole->coarse_rows : &whole->rows, of_whole, bytes,
                                     coarse ? 2 : 1, &compared);
    cr_assert_gt(compared, 100, "%d rows were compared", (int)compared);
    device_free(d->backend, w.data);
    free(of_whole);
    free(of_part);
    return differ;
}

static const struct {
    int64_t in, out;
} widths[] = {{4, 8}, {16, 32}, {32, 64}, {64, 96}, {96, 128}, {128, 128}, {64, 256}, {256, 192}};
enum { NUM_WIDTHS = sizeof widths / sizeof *widths };

CaseTest(crop, convolutions, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0), .timeout = 900)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    if (d.launch != LAUNCH_DEFAULT) {
        test_close(&d);
        return;
    }
    const spops_dtype dtype = (spops_dtype)p->dtype;
    const bool is_f32 = dtype == SPOPS_DTYPE_F32;
    int64_t without = 0;
    for (int density = 8; density <= 30; density += 22) {
        test_rng rng = test_rng_make(31000 + (uint64_t)density);
        const rows_of all = draw_rows(&rng, density);
        cloud part = make_cloud(&d, crop_rows(&all)), whole = make_cloud(&d, all);
        for (int i = 0; i < NUM_WIDTHS * NUM_MAPS * 2; ++i) {
            layer l = {.map = i / NUM_WIDTHS % NUM_MAPS,
                       .in = widths[i % NUM_WIDTHS].in,
                       .out = widths[i % NUM_WIDTHS].out,
                       .dtype = dtype,
                       .math = is_f32 && i % 2 == 1 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT,
                       .backward = i / NUM_WIDTHS >= NUM_MAPS,
                       .crop_independent = 1};
            if (d.backend == SPOPS_BACKEND_CPU && i % 3 != density % 3) continue; // all alike there
            cr_assert_eq(differing_rows(&d, &whole, &part, &l), 0,
                         "map %d, %d to %d channels, backward %d: %d rows differ", l.map, (int)l.in,
                         (int)l.out, l.backward, (int)differing_rows(&d, &whole, &part, &l));
            l.crop_independent = 0;
            if (d.backend == SPOPS_BACKEND_CUDA) without += differing_rows(&d, &whole, &part, &l);
        }
        free_cloud(&part);
        free_cloud(&whole);
    }
    // Blocks share tiles of sm_90, so that without the option these rows differ.
    if (d.backend == SPOPS_BACKEND_CUDA && d.ctx->info.compute_capability == 90)
        cr_assert_gt(without, 0, "no row differs without the option");
    test_close(&d);
}

// ---- Linear layers ------------------------------------------------------------------------------

static char *run_linear(test_device *d, int64_t rows, int64_t in, int64_t out, spops_dtype dtype)
{
    spops_matrix x = upload(d, rows, in, dtype, NULL), y = poisoned(d, rows, out, dtype);
    spops_matrix w = upload(d, out, in, dtype, NULL);
    spops_conv_layer how = spops_conv_layer_default();
    how.w_transposed = 1;
    how.math = dtype == SPOPS_DTYPE_F32 && in % 2 == 0 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    test_expect_ok(d->ctx, spops_linear_execute(d->ctx, x, w, &how, y), "linear");
    char *found = download(d, y);
    device_free(d->backend, x.data);
    device_free(d->backend, w.data);
    return found;
}

CaseTest(crop, linear_layers, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0), .timeout = 900)
{
    static const int64_t rows[] = {1, 63, 128, 1000, 5000, 40000};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < NUM_WIDTHS && d.launch == LAUNCH_DEFAULT; ++i) {
        const spops_dtype dtype = (spops_dtype)p->dtype;
        const int64_t out = widths[i].out;
        const int last = d.backend == SPOPS_BACKEND_CPU ? 4 : 5;
        char *all = run_linear(&d, rows[last], widths[i].in, out, dtype);
        for (int r = 0; r < last; ++r) {
            char *few = run_linear(&d, rows[r], widths[i].in, out, dtype);
            cr_assert_eq(memcmp(few, all, (size_t)(rows[r] * out) * test_dtype_bytes(dtype)), 0,
                         "%d rows, %d to %d columns", (int)rows[r], (int)widths[i].in, (int)out);
            free(few);
        }
        free(all);
    }
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

BackendTest(crop, refusals, .timeout = 900)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    test_rng rng = test_rng_make(5);
    cloud c = make_cloud(&d, draw_rows(&rng, 2));
    spops_sparseconv_options o = spops_sparseconv_options_default();
    spops_sparseconv *conv = (spops_sparseconv *)&o;
    const spops_conv_choice row = {.pass = SPOPS_PASS_FORWARD,
                                   .num_taps = 27,
                                   .in_channels = 8,
                                   .out_channels = 8,
                                   .dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND};

    o.crop_independent = 2;
    test_expect(d.ctx, spops_sparseconv_create(d.ctx, c.maps[WITHIN], &o, &conv), invalid,
                "sparseconv_create: options->crop_independent is 2, expected 0 or 1", "flag");
    cr_assert_null(conv);
    o.crop_independent = 1, o.dataflow = SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
    test_expect(d.ctx, spops_sparseconv_create(d.ctx, c.maps[WITHIN], &o, &conv), invalid,
                "sparseconv_create: options->crop_independent is 1, expected 0 for "
                "gather_matmul_scatter",
                "dataflow");
    o.dataflow = SPOPS_DATAFLOW_AUTO, o.tuning = &row, o.num_tuning = 1;
    test_expect(d.ctx, spops_sparseconv_create(d.ctx, c.maps[WITHIN], &o, &conv), invalid,
                "sparseconv_create: options->crop_independent is 1, expected 0 with a tuning",
                "tuning");
    o.tuning = NULL, o.num_tuning = 0, o.reserved = 3;
    test_expect(d.ctx, spops_sparseconv_create(d.ctx, c.maps[WITHIN], &o, &conv), invalid,
                "sparseconv_create: reserved is 3, expected 0", "reserved");
    free_cloud(&c);
    test_close(&d);
}
