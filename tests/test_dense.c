// SPDX-License-Identifier: Apache-2.0
// Rows into dense grids and back, element for element: every layout, number of axes and dtype, rows
// outside the grid, sets that hold fewer rows than they have room for, views with gaps; refusals.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "spops/dense.h"
#include "support/device.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

enum { MOST_ROWS = 4096, COLUMNS = 1 + SPOPS_MAX_DIMS };

// A set, some of whose rows lie outside the grid.
typedef struct dense_case {
    int32_t dims, num_rows, max_rows;
    int32_t rows[MOST_ROWS * COLUMNS];
    spops_dense_shape shape;
    int64_t batch_cells, channels;
    spops_coords *set;
    spops_coords_order order;
    spops_coords_search search;
} dense_case;

// Every cell of a box one larger than the grid on each side, and of one batch more, with the
// probability 1 / sparse.
static void draw_rows(dense_case *c, int sparse, test_rng *rng)
{
    int32_t at[COLUMNS] = {0};
    c->num_rows = 0;
    for (int a = 0; a < c->dims; ++a)
        at[1 + a] = -1;
    while (at[0] <= c->shape.num_batches) {
        int a = c->dims;
        if (c->num_rows < MOST_ROWS && test_rng_below(rng, sparse) == 0) {
            int32_t *row = c->rows + c->num_rows++ * (1 + c->dims);
            row[0] = at[0];
            for (int k = 0; k < c->dims; ++k)
                row[1 + k] = at[1 + k] + c->shape.origin[k];
        }
        while (a > 0 && ++at[a] > c->shape.size[a - 1])
            at[a--] = -1;
        if (a == 0) ++at[0];
    }
    for (int32_t i = c->num_rows - 1; i > 0; --i) { // in any order
        const int64_t other = test_rng_below(rng, i + 1);
        for (int k = 0; k <= c->dims; ++k) {
            int32_t *x = &c->rows[i * (1 + c->dims) + k], *y = &c->rows[other * (1 + c->dims) + k];
            const int32_t kept = *x;
            *x = *y;
            *y = kept;
        }
    }
}

// With room for more rows where `spare` is not 0. The case's rows are then in the set's order.
static void make_set(test_device *d, dense_case *c, int32_t spare)
{
    int32_t *rows = test_upload_i32(d, c->rows, (int64_t)c->num_rows * (1 + c->dims));
    spops_coords_options options = spops_coords_options_default();
    spops_coords_view view = spops_coords_view_default();
    c->max_rows = c->num_rows + spare;
    options.order = c->order;
    options.search = c->search;
    if (spare == 0) {
        test_expect_ok(d->ctx,
                       spops_coords_create(d->ctx, c->dims, c->num_rows, rows, &options, &c->set),
                       "create");
    } else {
        spops_coords_box box;
        int32_t *num = test_upload_i32(d, &c->num_rows, 1);
        memset(&box, 0, sizeof box);
        box.upper[0] = c->shape.num_batches;
        for (int a = 0; a < c->dims; ++a) {
            box.lower[1 + a] = c->shape.origin[a] - 1;
            box.upper[1 + a] = c->shape.origin[a] + c->shape.size[a];
        }
        options.box = &box;
        test_expect_ok(
            d->ctx,
            spops_coords_reserve(d->ctx, c->dims, c->max_rows, c->max_rows, &options, &c->set),
            "reserve");
        test_expect_ok(d->ctx, spops_coords_update(d->ctx, c->set, num, rows), "update");
        test_wait(d);
        test_free(d, num);
    }
    test_expect_ok(d->ctx, spops_coords_get_view(d->ctx, c->set, &view), "view");
    cr_assert(c->num_rows == 0 ||
              device_download(d->backend, c->rows, view.rows,
                              (size_t)c->num_rows * (size_t)(1 + c->dims) * sizeof *c->rows));
    test_free(d, rows);
}

// Where channel ch of row r stands in the grid's matrix; false: nowhere.
static bool place_of(const dense_case *c, int32_t r, int64_t ch, int64_t *row, int64_t *col)
{
    const int32_t *at = c->rows + r * (1 + c->dims);
    int64_t cell = 0;
    if (at[0] >= c->shape.num_batches) return false;
    for (int a = 0; a < c->dims; ++a) {
        const int32_t k = at[1 + a] - c->shape.origin[a];
        if (k < 0 || k >= c->shape.size[a]) return false;
        cell = cell * c->shape.size[a] + k;
    }
    if (c->shape.layout == SPOPS_DENSE_CHANNELS_LAST) {
        *row = at[0] * c->batch_cells + cell;
        *col = ch;
    } else {
        *row = at[0] * c->channels + ch;
        *col = cell;
    }
    return true;
}

static spops_status run_dense(void *user, spops_context *ctx, const spops_matrix *const *in,
                              const spops_matrix *const *out)
{
    const dense_case *c = (const dense_case *)user;
    return spops_dense_execute(ctx, c->set, *in[0], &c->shape, *out[0]);
}

static void reference_dense(void *user, const double *const *in, ref_tensor *const *out)
{
    const dense_case *c = (const dense_case *)user;
    int64_t row, col;
    for (int64_t i = 0; i < out[0]->rows * out[0]->cols; ++i)
        out[0]->value[i] = (double)c->shape.fill;
    for (int32_t r = 0; r < c->num_rows; ++r)
        for (int64_t ch = 0; ch < c->channels; ++ch)
            if (place_of(c, r, ch, &row, &col))
                out[0]->value[row * out[0]->cols + col] = in[0][r * c->channels + ch];
}

static spops_status run_rows(void *user, spops_context *ctx, const spops_matrix *const *in,
                             const spops_matrix *const *out)
{
    const dense_case *c = (const dense_case *)user;
    return spops_dense_rows_execute(ctx, c->set, *in[0], &c->shape, *out[0]);
}

static void reference_rows(void *user, const double *const *in, ref_tensor *const *out)
{
    const dense_case *c = (const dense_case *)user;
    const bool last = c->shape.layout == SPOPS_DENSE_CHANNELS_LAST;
    const int64_t cols = last ? c->channels : c->batch_cells;
    int64_t row, col;
    for (int32_t r = 0; r < c->num_rows; ++r)
        for (int64_t ch = 0; ch < c->channels; ++ch)
            if (place_of(c, r, ch, &row, &col))
                out[0]->value[r * c->channels + ch] = in[0][row * cols + col];
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const dense_case *c = (const dense_case *)user;
    return spops_dense_execute_backward(ctx, c->set, *in[0], &c->shape, *out[0]);
}

static spops_status run_rows_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                      const spops_matrix *const *out)
{
    const dense_case *c = (const dense_case *)user;
    return spops_dense_rows_execute_backward(ctx, c->set, *in[0], &c->shape, *out[0]);
}

// Both directions of one case, and their gradients; views with gaps where `pad` is not 0.
static void check_case(test_device *d, dense_case *c, spops_dtype dtype, int64_t pad,
                       uint64_t stream)
{
    const bool last = c->shape.layout == SPOPS_DENSE_CHANNELS_LAST;
    const int64_t batches = c->shape.num_batches;
    const int64_t rows = batches * (last ? c->batch_cells : c->channels);
    const int64_t cols = last ? c->channels : c->batch_cells;
    test_operator op = {.what = "dense",
                        .stream = stream,
                        .user = c,
                        .run = run_dense,
                        .reference = reference_dense};
    test_operator back = {.what = "dense_rows",
                          .stream = stream + 1,
                          .user = c,
                          .run = run_rows,
                          .reference = reference_rows};

    op.in[0] =
        test_view(test_input("x", c->max_rows, c->channels, dtype, VALUES_RANDOM), pad, pad % 3);
    op.out[0] = test_view(test_output("out", rows, cols, dtype, CHECK_SAME), pad, pad % 2);
    test_operator_run(d, &op);
    op.what = "dense_rows_backward";
    op.run = run_rows_backward;
    c->shape.fill = 0.0f;
    test_operator_run(d, &op);
    back.in[0] = test_view(test_input("dense", rows, cols, dtype, VALUES_RANDOM), pad, pad % 2);
    back.out[0] =
        test_view(test_output("out", c->max_rows, c->channels, dtype, CHECK_SAME), pad, pad % 3);
    test_operator_run(d, &back);
    back.what = "dense_backward";
    back.run = run_backward;
    test_operator_run(d, &back);
}

static const int layouts[] = {SPOPS_DENSE_CHANNELS_FIRST, SPOPS_DENSE_CHANNELS_LAST};

CaseTest(dense, moves_every_element, every_case(test_row_dtypes, NUM_REAL_DTYPES, layouts, 2),
         .timeout = 600)
{
    static const struct {
        int32_t dims, batches, size[SPOPS_MAX_DIMS], sparse, spare;
        int64_t channels, pad;
    } cases[] = {{1, 1, {1, 0, 0, 0}, 1, 0, 1, 0},    {1, 2, {130, 1, 1, 1}, 3, 5, 33, 1},
                 {2, 3, {16, 24, 0, 0}, 2, 0, 64, 0}, {2, 1, {64, 64, 0, 0}, 50, 7, 80, 8},
                 {3, 2, {2, 9, 32, 0}, 4, 3, 16, 0},  {3, 1, {5, 8, 8, 1}, 1, 0, 130, 3},
                 {4, 1, {3, 2, 5, 4}, 2, 1, 7, 2},    {3, 4, {3, 3, 3, 0}, 1000, 0, 8, 0},
                 {2, 1, {8, 8, 0, 0}, 1, 2, 0, 0},    {2, 2, {40, 40, 0, 0}, 20, 3, 24, 0},
                 {3, 1, {3, 11, 37, 0}, 40, 0, 5, 0}, {1, 3, {4096, 0, 0, 0}, 200, 9, 40, 0}};
    static dense_case c;
    test_rng rng = test_rng_make((case_number(p) << 32) + 77);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        memset(&c, 0, sizeof c);
        c.shape = spops_dense_shape_default();
        c.dims = cases[i].dims;
        c.channels = cases[i].channels;
        c.shape.layout = (spops_dense_layout)p->op;
        c.shape.num_batches = cases[i].batches;
        c.shape.fill = i % 2 == 0 ? 0.0f : -1.5f;
        c.batch_cells = 1;
        c.order = (spops_coords_order)(i % 4);
        c.search = (spops_coords_search)(i % 3 + SPOPS_COORDS_SEARCH_HASH);
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
            c.shape.size[a] = cases[i].size[a];
            if (a < c.dims) c.shape.origin[a] = (int32_t)test_rng_below(&rng, 200) - 100;
            if (a < c.dims) c.batch_cells *= c.shape.size[a];
        }
        draw_rows(&c, cases[i].sparse, &rng);
        make_set(&d, &c, cases[i].spare);
        check_case(&d, &c, (spops_dtype)p->dtype, cases[i].pad, (case_number(p) << 32) + 2 * i);
        spops_coords_destroy(c.set);
    }
    test_close(&d);
}

// A tile and a part of one, of cells and of channels: little enough for tools that watch memory.
BackendTest(dense, few_cells)
{
    static const spops_dtype dtypes[] = {SPOPS_DTYPE_F16, SPOPS_DTYPE_F32};
    static dense_case c;
    test_rng rng = test_rng_make(78);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < 8; ++i) {
        memset(&c, 0, sizeof c);
        c.shape = spops_dense_shape_default();
        c.dims = 2;
        c.channels = i % 4 < 2 ? 64 : 72;
        c.shape.layout = (spops_dense_layout)layouts[i % 2];
        c.shape.num_batches = 1;
        c.shape.size[0] = 2;
        c.shape.size[1] = i < 4 ? i < 2 ? 64 : 40 : 320;
        c.batch_cells = 2 * c.shape.size[1];
        draw_rows(&c, i < 4 ? 2 : 20, &rng);
        make_set(&d, &c, 1);
        for (int k = 0; k < 2; ++k)
            check_case(&d, &c, dtypes[k], 0, (uint64_t)(500 + 8 * i + 2 * k));
        spops_coords_destroy(c.set);
    }
    test_close(&d);
}

BackendTest(dense, refuses)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    static dense_case c;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    c.shape = spops_dense_shape_default();
    c.dims = 2;
    c.shape.num_batches = 1;
    c.shape.size[0] = c.shape.size[1] = 4;
    c.num_rows = 1;
    make_set(&d, &c, 0);
    void *memory = test_upload_i32(&d, c.rows, 4 * MOST_ROWS);
    const spops_matrix x = spops_matrix_dense(memory, 1, 2, SPOPS_DTYPE_F32);
    const spops_matrix out =
        spops_matrix_dense((int32_t *)memory + MOST_ROWS, 2, 16, SPOPS_DTYPE_F32);
    spops_dense_shape wrong = c.shape;

    test_expect_ok(d.ctx, spops_dense_execute(d.ctx, c.set, x, &c.shape, out), "right");
    test_expect(d.ctx, spops_dense_execute(d.ctx, c.set, x, NULL, out), invalid, "shape is NULL",
                "no shape");
    wrong.num_batches = 0;
    test_expect(d.ctx, spops_dense_execute(d.ctx, c.set, x, &wrong, out), invalid,
                "num_batches is 0, expected 1 or more", "no batch");
    wrong = c.shape;
    wrong.size[1] = 0;
    test_expect(d.ctx, spops_dense_execute(d.ctx, c.set, x, &wrong, out), invalid,
                "size[1] is 0, expected 1 or more of a set with 2 axes", "an empty axis");
    wrong.size[1] = 4;
    wrong.size[2] = 2;
    test_expect(d.ctx, spops_dense_rows_execute(d.ctx, c.set, out, &wrong, x), invalid,
                "size[2] is 2, expected 0 or 1 of a set with 2 axes", "an axis too many");
    wrong.size[2] = 0;
    wrong.size[0] = 1 << 30;
    test_expect(d.ctx, spops_dense_execute(d.ctx, c.set, x, &wrong, out), invalid,
                "size[1] is 4, which makes 2^31 - 1 cells or more of 1 batches", "too large");
    test_free(&d, memory);
    spops_coords_destroy(c.set);
    test_close(&d);
}
