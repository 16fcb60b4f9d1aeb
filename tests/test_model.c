// SPDX-License-Identifier: Apache-2.0
// Models from ONNX files. CenterPoint's encoder as libspconv's exporter writes it has the bits of the same
// network by the C calls, for frames of any size; every node alone against what it means; files that are
// not right are refused with the place; memory that runs out.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/half.h"
#include "support/device.h"
#include "tests/support/centerpoint_file.h"
#include "tests/support/onnx_file.h"
#include "tests/support/params.h"

// ---- The same network by the C calls ----------------------------------------------------------------------

typedef struct by_hand {
    test_device *d;
    const network *net;
    spops_dtype dtype;
    int64_t max_rows[NUM_LEVELS];
    spops_coords *sets[NUM_LEVELS];
    spops_kernel_map *within[NUM_LEVELS], *to[NUM_LEVELS];
    spops_sparseconv *within_conv[NUM_LEVELS], *to_conv[NUM_LEVELS];
    void *buffers[NUM_BUFFERS], *weights[NUM_LAYERS], *bias[NUM_LAYERS], *bev;
    int32_t *num_rows, *rows;
    size_t bev_bytes;
} by_hand;

static void *device_zeros(const test_device *d, size_t bytes)
{
    void *ptr = NULL;
    cr_assert(device_alloc(d->backend, bytes, &ptr) && device_fill(d->backend, ptr, 0, bytes));
    return ptr;
}

static void upload(const test_device *d, void *to, const void *from, size_t bytes)
{
    cr_assert(bytes == 0 || device_upload(d->backend, to, from, bytes), "%s", device_error());
}

// A map and its plan, as examples/centerpoint makes them: where kernels of matrix units take every layer,
// maps need no pairs, and plans no other way of running.
static void make_conv(by_hand *h, spops_kernel_map_kind kind, const spops_kernel_shape *kernel,
                      const spops_coords *in, const spops_coords *out, spops_kernel_map **map,
                      spops_sparseconv **conv)
{
    spops_context *ctx = h->d->ctx;
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();

    contents.contents = SPOPS_MAP_FOR_CONV;
    test_expect_ok(ctx, spops_kernel_map_reserve(ctx, kind, kernel, in, out, &contents, map),
                   "map");
    test_expect_ok(ctx, spops_kernel_map_get_info_sync(ctx, *map, &info), "map");
    if (h->dtype == SPOPS_DTYPE_F16 && (info.contents & SPOPS_MAP_ORDER) != 0) {
        spops_kernel_map_destroy(*map);
        contents.contents = SPOPS_MAP_ORDER;
        options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
        test_expect_ok(ctx, spops_kernel_map_reserve(ctx, kind, kernel, in, out, &contents, map),
                       "map");
    }
    test_expect_ok(ctx, spops_sparseconv_create(ctx, *map, &options, conv), "conv");
}

static void reserve_level(by_hand *h, int level)
{
    test_device *d = h->d;
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_kernel_shape kernel = kernel_to_level(level);
    spops_coords_options options = spops_coords_options_default();
    spops_coords_box box;
    int64_t items = h->max_rows[0];

    memset(&box, 0, sizeof box);
    for (int a = 0; a < 3; ++a)
        box.upper[1 + a] = level_shapes[level].size[a] - 1 + (level == 0 && a == 0);
    options.box = &box;
    if (level > 0) items = h->max_rows[level - 1] * spops_kernel_shape_num_candidates(&kernel, 0);
    test_expect_ok(
        d->ctx,
        spops_coords_reserve(d->ctx, 3, h->max_rows[level], items, &options, &h->sets[level]),
        "set");
    if (level > 0)
        make_conv(h, SPOPS_MAP_CONVOLUTION, &kernel, h->sets[level - 1], h->sets[level],
                  &h->to[level], &h->to_conv[level]);
    if (level + 1 < NUM_LEVELS)
        make_conv(h, SPOPS_MAP_SUBMANIFOLD, &cube, h->sets[level], NULL, &h->within[level],
                  &h->within_conv[level]);
}

// Canonical weights in the dtype, 0 in padded columns.
static void upload_layer(by_hand *h, int i)
{
    const layer *l = &h->net->layers[i];
    const size_t each = spops_dtype_bytes(h->dtype), n = (size_t)l->taps * (size_t)(l->in * l->out);
    half_layer halves = centerpoint_layer_in_halves(l);
    float *w = calloc(n, sizeof *w), *bias = calloc((size_t)l->out, sizeof *bias);
    uint16_t *narrow = calloc(n, sizeof *narrow);

    cr_assert(w != NULL && bias != NULL && narrow != NULL);
    for (int o = 0; o < l->out; ++o) {
        bias[o] = spops_float_of_f16(halves.bias[o]);
        for (int k = 0; k < l->taps; ++k)
            for (int c = 0; c < l->file_in; ++c) {
                const size_t to = (size_t)((k * l->in + c) * l->out + o);
                narrow[to] = halves.weight[(o * l->taps + k) * l->file_in + c];
                w[to] = spops_float_of_f16(narrow[to]);
            }
    }
    h->weights[i] = device_zeros(h->d, n * each);
    h->bias[i] = device_zeros(h->d, (size_t)l->out * sizeof *bias);
    upload(h->d, h->weights[i], h->dtype == SPOPS_DTYPE_F32 ? (void *)w : narrow, n * each);
    upload(h->d, h->bias[i], bias, (size_t)l->out * sizeof *bias);
    free(w);
    free(bias);
    free(narrow);
    centerpoint_free_halves(&halves);
}

static by_hand make_by_hand(test_device *d, const network *net, spops_dtype dtype, int64_t rows,
                            int64_t inner)
{
    by_hand h = {.d = d, .net = net, .dtype = dtype};
    const size_t each = spops_dtype_bytes(dtype);

    for (int l = 0; l < NUM_LEVELS; ++l) {
        h.max_rows[l] = l == 0 ? rows : inner;
        reserve_level(&h, l);
    }
    for (int b = 0; b < net->num_buffers; ++b)
        h.buffers[b] = device_zeros(
            d, (size_t)(h.max_rows[net->buffers[b].level] * net->buffers[b].cols) * each);
    for (int i = 0; i < net->num_layers; ++i)
        upload_layer(&h, i);
    h.bev_bytes = (size_t)256 * 180 * 180 * each;
    h.bev = device_zeros(d, h.bev_bytes);
    h.num_rows = device_zeros(d, sizeof *h.num_rows);
    h.rows = device_zeros(d, (size_t)rows * 4 * sizeof *h.rows);
    return h;
}

static void free_by_hand(by_hand *h)
{
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_sparseconv_destroy(h->within_conv[l]);
        spops_sparseconv_destroy(h->to_conv[l]);
        spops_kernel_map_destroy(h->within[l]);
        spops_kernel_map_destroy(h->to[l]);
    }
    for (int l = 0; l < NUM_LEVELS; ++l)
        spops_coords_destroy(h->sets[l]);
    for (int b = 0; b < h->net->num_buffers; ++b)
        device_free(h->d->backend, h->buffers[b]);
    for (int i = 0; i < h->net->num_layers; ++i) {
        device_free(h->d->backend, h->weights[i]);
        device_free(h->d->backend, h->bias[i]);
    }
    device_free(h->d->backend, h->bev);
    device_free(h->d->backend, h->num_rows);
    device_free(h->d->backend, h->rows);
}

static spops_matrix buffer_of(const by_hand *h, int b)
{
    const feature_buffer *f = &h->net->buffers[b];
    return spops_matrix_dense(h->buffers[b], h->max_rows[f->level], f->cols, h->dtype);
}

static void run_by_hand(by_hand *h)
{
    test_device *d = h->d;
    spops_dense_shape shape = spops_dense_shape_default();

    test_expect_ok(d->ctx, spops_coords_update(d->ctx, h->sets[0], h->num_rows, h->rows), "rows");
    for (int l = 0; l < NUM_LEVELS; ++l) {
        const spops_kernel_shape kernel = kernel_to_level(l);
        if (l > 0) {
            test_expect_ok(
                d->ctx,
                spops_coords_update_downsampled(d->ctx, h->sets[l], h->sets[l - 1], &kernel),
                "set");
            test_expect_ok(d->ctx,
                           spops_kernel_map_update(d->ctx, h->to[l], h->sets[l - 1], h->sets[l]),
                           "map");
            test_expect_ok(d->ctx, spops_sparseconv_update(d->ctx, h->to_conv[l]), "conv");
        }
        if (h->within[l] == NULL) continue;
        test_expect_ok(
            d->ctx, spops_kernel_map_update(d->ctx, h->within[l], h->sets[l], h->sets[l]), "map");
        test_expect_ok(d->ctx, spops_sparseconv_update(d->ctx, h->within_conv[l]), "conv");
    }
    for (int i = 0; i < h->net->num_layers; ++i) {
        const layer *l = &h->net->layers[i];
        spops_conv_layer epilogue = spops_conv_layer_default();
        const spops_matrix residual = buffer_of(h, l->residual >= 0 ? l->residual : 0);
        epilogue.bias = h->bias[i];
        epilogue.residual = l->residual >= 0 ? &residual : NULL;
        epilogue.activation = SPOPS_ACTIVATION_RELU;
        test_expect_ok(
            d->ctx,
            spops_sparseconv_execute(
                d->ctx, l->down ? h->to_conv[l->level] : h->within_conv[l->level],
                buffer_of(h, l->from),
                spops_matrix_dense(h->weights[i], (int64_t)l->taps * l->in, l->out, h->dtype),
                &epilogue, buffer_of(h, l->to)),
            l->name);
    }
    shape.num_batches = 1;
    for (int a = 0; a < 3; ++a)
        shape.size[a] = level_shapes[NUM_LEVELS - 1].size[a];
    test_expect_ok(d->ctx,
                   spops_dense_execute(
                       d->ctx, h->sets[NUM_LEVELS - 1], buffer_of(h, h->net->num_buffers - 1),
                       &shape, spops_matrix_dense(h->bev, NUM_OUTPUTS, 2 * 180 * 180, h->dtype)),
                   "dense");
}

// ---- Frames ---------------------------------------------------------------------------------------------

enum { MOST = 900, INNER = 4000 };

typedef struct rows_frame {
    int32_t num;
    int32_t rows[MOST][4];
    uint16_t features[MOST][8]; // f16, columns after the fifth 0
    float wide[MOST][8];
} rows_frame;

// Rows of a few clusters, each once: neighbours are there, and edges of the grid.
static void draw_frame(rows_frame *f, int32_t num, const int32_t *size, test_rng *rng)
{
    static uint8_t seen[41 * 1440 * 1440 / 8 + 1];
    memset(seen, 0, sizeof seen);
    memset(f, 0, sizeof *f);
    while (f->num < num) {
        const int64_t cluster = test_rng_below(rng, 6);
        int32_t *row = f->rows[f->num];
        for (int a = 0; a < 3; ++a) {
            const int64_t corner = cluster < 2 ? cluster * (size[a] - 8) : cluster * size[a] / 7;
            const int64_t at = corner + test_rng_below(rng, a == 0 ? 8 : 14);
            row[1 + a] = (int32_t)(at < 0 ? 0 : at >= size[a] ? size[a] - 1 : at);
        }
        const size_t cell =
            ((size_t)row[1] * (size_t)size[1] + (size_t)row[2]) * (size_t)size[2] + (size_t)row[3];
        if (seen[cell / 8] >> cell % 8 & 1) continue;
        seen[cell / 8] |= (uint8_t)(1 << cell % 8);
        for (int c = 0; c < NUM_FEATURES; ++c) {
            f->features[f->num][c] = spops_f16_of_float((float)(40 * test_rng_unit(rng) - 20));
            f->wide[f->num][c] = spops_float_of_f16(f->features[f->num][c]);
        }
        ++f->num;
    }
}

static void put_frame(test_device *d, const spops_model *model, const rows_frame *f)
{
    spops_model_array in = spops_model_array_default();
    test_expect_ok(d->ctx, spops_model_get_input(d->ctx, model, 0, &in), "input");
    cr_assert(in.row_stride == 8 && in.shape[1] == NUM_FEATURES && in.dims == 3);
    upload(d, in.num_rows, &f->num, sizeof f->num);
    upload(d, in.coords, f->rows, (size_t)f->num * sizeof *f->rows);
    upload(d, in.data, in.dtype == SPOPS_DTYPE_F32 ? (const void *)f->wide : f->features,
           (size_t)f->num * 8 * spops_dtype_bytes(in.dtype));
}

static void *fetch(test_device *d, const void *from, size_t bytes)
{
    void *host = malloc(bytes + 1);
    cr_assert(host != NULL);
    test_wait(d);
    cr_assert(bytes == 0 || device_download(d->backend, host, from, bytes), "%s", device_error());
    return host;
}

// A frame: by the model's own graph on CUDA, or as calls that the test captures.
static void execute(test_device *d, spops_model *model)
{
    device_graph *graph = NULL;
    if (d->launch != LAUNCH_CAPTURED) {
        test_expect_ok(d->ctx, spops_model_execute(d->ctx, model), "execute");
        return;
    }
    cr_assert(device_capture_begin(d->stream), "%s", device_error());
    const spops_status status = spops_model_execute(d->ctx, model);
    cr_assert(device_capture_end(d->stream, &graph), "%s", device_error());
    test_expect_ok(d->ctx, status, "execute");
    cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
    test_wait(d);
    device_graph_destroy(graph);
}

static spops_model *load_model(test_device *d, const onnx_file *f, const spops_model_options *o)
{
    spops_model *model = NULL;
    test_expect_ok(d->ctx, spops_model_load(d->ctx, f->model.data, f->model.num, o, &model),
                   "load");
    return model;
}

ParameterizedTestParameters(model, centerpoint)
{
    static const int wide[] = {0, 1};
    return every_case(NULL, 0, wide, 2);
}
ParameterizedTest(struct case_param *p, model, centerpoint, .timeout = 300)
{
    static const int32_t sizes[] = {MOST, 0, 120, 1, MOST};
    const int32_t grid[3] = {41, 1440, 1440};
    static rows_frame f;
    test_rng rng = test_rng_make(case_number(p));
    spops_model_options options = spops_model_options_default();
    spops_model_array out = spops_model_array_default();
    spops_model_info info = spops_model_info_default();
    int64_t nonzero = 0;
    onnx_file file;
    network net;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    network_create(&net);
    cr_assert(network_generate(&net) == 0);
    centerpoint_file_put(&file, &net);
    options.max_rows = MOST;
    options.max_inner_rows = INNER;
    options.widen = p->op;
    spops_model *model = load_model(&d, &file, &options);
    by_hand h = make_by_hand(&d, &net, p->op ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16, MOST, INNER);
    test_expect_ok(d.ctx, spops_model_get_info(d.ctx, model, &info), "info");
    cr_assert(info.num_sets == NUM_LEVELS && info.num_layers == 3 + NUM_LAYERS + 1);
    cr_assert(info.has_graph == (d.backend == SPOPS_BACKEND_CUDA));
    test_expect_ok(d.ctx, spops_model_get_output(d.ctx, model, 0, &out), "output");
    cr_assert(out.num_dims == 4 && out.shape[1] == 256 && out.shape[3] == 180 && out.set == -1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        draw_frame(&f, sizes[i], grid, &rng);
        put_frame(&d, model, &f);
        upload(&d, h.num_rows, &f.num, sizeof f.num);
        upload(&d, h.rows, f.rows, (size_t)f.num * sizeof *f.rows);
        upload(&d, h.buffers[0], p->op ? (const void *)f.wide : f.features,
               (size_t)f.num * 8 * spops_dtype_bytes(h.dtype));
        cr_assert(device_fill(d.backend, out.data, 0xff, h.bev_bytes));
        const int64_t requests = d.memory.requests;
        execute(&d, model);
        cr_assert(d.memory.requests == requests, "execute asks for memory");
        test_expect_ok(d.ctx, spops_model_check_sync(d.ctx, model), "check");
        run_by_hand(&h);
        unsigned char *got = fetch(&d, out.data, h.bev_bytes);
        unsigned char *expected = fetch(&d, h.bev, h.bev_bytes);
        for (size_t b = 0; b < h.bev_bytes; ++b) {
            nonzero += expected[b] != 0;
            cr_assert(got[b] == expected[b], "frame %zu of %d rows: byte %zu is %d, expected %d", i,
                      f.num, b, got[b], expected[b]);
        }
        free(got);
        free(expected);
    }
    cr_assert(nonzero > 1000);
    spops_model_destroy(model);
    free_by_hand(&h);
    onnx_file_free(&file);
    network_destroy(&net);
    test_close(&d);
}

// ---- Every node, against FP64 -------------------------------------------------------------------------

enum { GRID_CELLS = 6 * 7 * 8, WIDEST = 24 };

// Rows of a set on a small grid, with all its cells.
typedef struct ref_rows {
    int size[3], cols;
    bool there[GRID_CELLS];
    double x[GRID_CELLS][WIDEST];
} ref_rows;

typedef struct ref_conv {
    int in, out, kernel[3], stride[3], padding[3];
    uint16_t weight[WIDEST * 27 * WIDEST], bias[WIDEST];
} ref_conv;

static int cells_of(const int *size)
{
    return size[0] * size[1] * size[2];
}

static void at_cell(const int *size, int cell, int *at)
{
    at[2] = cell % size[2];
    at[1] = cell / size[2] % size[1];
    at[0] = cell / (size[1] * size[2]);
}

static int taps_of(const ref_conv *c)
{
    return c->kernel[0] * c->kernel[1] * c->kernel[2];
}

// The cell of the finer side that tap k joins to cell `coarse`; -1: none.
static int joined(const ref_conv *c, const int *fine, const int *coarse, int cell, int k)
{
    int q[3], tap[3], p[3];
    at_cell(coarse, cell, q);
    at_cell(c->kernel, k, tap);
    for (int a = 0; a < 3; ++a) {
        p[a] = q[a] * c->stride[a] - c->padding[a] + tap[a];
        if (p[a] < 0 || p[a] >= fine[a]) return -1;
    }
    return (p[0] * fine[1] + p[1]) * fine[2] + p[2];
}

// y += w[k] x for one pair.
static void multiply(const ref_conv *c, int k, const double *x, double *y)
{
    for (int o = 0; o < c->out; ++o)
        for (int i = 0; i < c->in; ++i)
            y[o] += x[i] * (double)spops_float_of_f16(c->weight[(o * taps_of(c) + k) * c->in + i]);
}

// Downwards, or within a set (y has its cells then); inverse: from the coarse x to the fine y.
static void ref_convolve(const ref_conv *c, const ref_rows *x, ref_rows *y, bool within,
                         bool inverse, bool has_bias)
{
    const ref_rows *coarse = inverse ? x : y, *fine = inverse ? y : x;
    y->cols = c->out;
    for (int pass = 0; pass < 2; ++pass) // which cells are there, then their sums
        for (int cell = 0; cell < cells_of(coarse->size); ++cell)
            for (int k = 0; k < taps_of(c); ++k) {
                const int other = joined(c, fine->size, coarse->size, cell, k);
                const int from = inverse ? cell : other, to = inverse ? other : cell;
                if (other < 0 || !x->there[from]) continue;
                if (pass == 0 && !within && !inverse) y->there[to] = true;
                if (pass == 1 && y->there[to]) multiply(c, k, x->x[from], y->x[to]);
            }
    for (int cell = 0; cell < cells_of(y->size); ++cell)
        for (int o = 0; o < c->out && y->there[cell] && has_bias; ++o)
            y->x[cell][o] += (double)spops_float_of_f16(c->bias[o]);
}

static ref_rows like_rows(const ref_rows *x, int cols)
{
    ref_rows y;
    memset(&y, 0, sizeof y);
    memcpy(y.size, x->size, sizeof y.size);
    memcpy(y.there, x->there, sizeof y.there);
    y.cols = cols;
    return y;
}

static void ref_relu(ref_rows *x)
{
    for (int cell = 0; cell < GRID_CELLS; ++cell)
        for (int c = 0; c < x->cols; ++c)
            if (x->x[cell][c] < 0) x->x[cell][c] = 0;
}

static void ref_add(ref_rows *x, const ref_rows *y)
{
    for (int cell = 0; cell < GRID_CELLS; ++cell)
        for (int c = 0; c < x->cols; ++c)
            x->x[cell][c] += y->x[cell][c];
}

static void draw_conv(ref_conv *c, int in, int out, int size, int stride, test_rng *rng)
{
    memset(c, 0, sizeof *c);
    c->in = in;
    c->out = out;
    for (int a = 0; a < 3; ++a) {
        c->kernel[a] = size;
        c->stride[a] = stride;
        c->padding[a] = size / 2;
    }
    for (int i = 0; i < in * taps_of(c) * out; ++i)
        c->weight[i] = spops_f16_of_float((float)(0.6 * (2 * test_rng_unit(rng) - 1)));
    for (int o = 0; o < out; ++o)
        c->bias[o] = spops_f16_of_float((float)(2 * test_rng_unit(rng) - 1));
}

static void put_ref_conv(onnx_file *f, const ref_conv *c, const char *name, const char *x,
                         const char *out, const char *rulebook, const char *activation,
                         const int *in_size, const int *out_size, int kind, bool has_bias)
{
    onnx_conv n = {.name = name,
                   .x = x,
                   .out = out,
                   .rulebook = rulebook,
                   .activation = activation,
                   .in = c->in,
                   .out_cols = c->out,
                   .subm = kind == 0,
                   .inverse = kind == 2,
                   .weight = c->weight,
                   .bias = has_bias ? c->bias : NULL};
    memcpy(n.kernel, c->kernel, sizeof n.kernel);
    memcpy(n.stride, c->stride, sizeof n.stride);
    memcpy(n.padding, c->padding, sizeof n.padding);
    memcpy(n.in_shape, in_size, sizeof n.in_shape);
    memcpy(n.out_shape, out_size, sizeof n.out_shape);
    onnx_put_conv(f, &n);
}

// A network of every node, and its reference.
typedef struct pieces {
    onnx_file file;
    ref_conv first, down, side, narrow, up, join;
    ref_rows in, out;
    int32_t num, rows[GRID_CELLS][4];
    float features[GRID_CELLS][8];
} pieces;

static const int fine_size[3] = {6, 7, 8}, coarse_size[3] = {3, 4, 4};

static void put_pieces(pieces *p, test_rng *rng)
{
    const int64_t in_dims[2] = {100, 5}, dense_dims[2] = {1, -1}, kept[3] = {1, 56, -1};
    const int64_t turned[5] = {0, 1, 4, 2, 3}, swapped[5] = {0, 2, 1, 3, 4},
                  same[5] = {0, 1, 2, 3, 4};
    onnx_file *f = &p->file;

    draw_conv(&p->first, 5, 16, 3, 1, rng);
    draw_conv(&p->down, 16, 24, 3, 2, rng);
    draw_conv(&p->side, 24, 24, 3, 1, rng);
    draw_conv(&p->narrow, 24, 12, 1, 1, rng); // columns that are no 16 bytes
    draw_conv(&p->up, 12, 8, 3, 2, rng);
    draw_conv(&p->join, 16, 8, 3, 1, rng);
    onnx_file_begin(f);
    put_ref_conv(f, &p->first, "first", "0", "1", "fine", "ReLU", fine_size, fine_size, 0, true);
    put_ref_conv(f, &p->down, "down", "1", "2", "down", "None", fine_size, coarse_size, 1, false);
    onnx_put_node(f, "Relu", "relu_alone", "2", NULL, "3"); // 2 is needed again
    onnx_put_node(f, "Add", "sum_alone", "3", "2", "4");
    put_ref_conv(f, &p->side, "side", "4", "5", "coarse", "None", coarse_size, coarse_size, 0,
                 true);
    onnx_put_node(f, "QuantAdd", "sum_joined", "4", "5", "6");
    put_ref_conv(f, &p->narrow, "narrow", "6", "7", "", "Sigmoid", coarse_size, coarse_size, 1,
                 true);
    put_ref_conv(f, &p->up, "up", "7", "8", "down", "None", coarse_size, fine_size, 2, true);
    put_ref_conv(f, &p->join, "join", "1", "9", "fine", "None", fine_size, fine_size, 0, false);
    onnx_put_node(f, "Add", "sum_of_convs", "8", "9", "10");
    onnx_put_node(f, "Relu", "relu_joined", "10", NULL, "11");
    onnx_put_scatter(f, "scatter", "11", "12", "xyz", 1, 8, fine_size);
    onnx_put_ints(f, "Transpose", "turn", "12", "13", "dims", 5, turned);
    onnx_put_ints(f, "Reshape", "flatten", "13", "14", "dims", 2, dense_dims);
    onnx_put_scatter(f, "scatter_again", "11", "19", "xyz", 1, 8, fine_size);
    onnx_put_ints(f, "Transpose", "turn_alone", "19", "20", "dims", 5,
                  turned); // 19 is needed again
    onnx_put_ints(f, "Transpose", "swap", "19", "15", "dims", 5, swapped);
    onnx_put_ints(f, "Transpose", "stay", "15", "16", "dims", 5, same);
    onnx_put_ints(f, "Reshape", "keep", "16", "17", "dims", 3, kept);
    onnx_put_node(f, "Relu", "dense_relu", "17", NULL, "18");
    onnx_value(f, 11, "0", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "11", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "14", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "18", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "20", ONNX_FLOAT16, 2, in_dims);
    onnx_file_end(f);
}

static void draw_pieces_frame(pieces *p, int one_of, test_rng *rng)
{
    memset(&p->in, 0, sizeof p->in);
    memcpy(p->in.size, fine_size, sizeof fine_size);
    p->in.cols = 5;
    p->num = 0;
    memset(p->features, 0, sizeof p->features);
    for (int i = 0; i < GRID_CELLS; ++i) {
        const int cell = i * 29 % GRID_CELLS; // in some order
        int at[3];
        if (test_rng_below(rng, one_of) != 0) continue;
        at_cell(fine_size, cell, at);
        p->in.there[cell] = true;
        p->rows[p->num][0] = 0;
        for (int a = 0; a < 3; ++a)
            p->rows[p->num][1 + a] = at[a];
        for (int c = 0; c < 5; ++c) {
            const float v =
                spops_float_of_f16(spops_f16_of_float((float)test_rng_unit(rng) - 0.5f));
            p->features[p->num][c] = v;
            p->in.x[cell][c] = (double)v;
        }
        ++p->num;
    }
}

static void ref_pieces(pieces *p)
{
    ref_rows one = like_rows(&p->in, 16), two, four, five, seven, nine;
    ref_convolve(&p->first, &p->in, &one, true, false, true);
    ref_relu(&one);
    memset(&two, 0, sizeof two);
    memcpy(two.size, coarse_size, sizeof coarse_size);
    ref_convolve(&p->down, &one, &two, false, false, false);
    four = two;
    ref_relu(&four);
    ref_add(&four, &two);
    five = like_rows(&four, 24);
    ref_convolve(&p->side, &four, &five, true, false, true);
    ref_add(&five, &four);
    seven = like_rows(&five, 12);
    ref_convolve(&p->narrow, &five, &seven, true, false, true);
    for (int i = 0; i < GRID_CELLS; ++i)
        for (int c = 0; c < 12; ++c)
            seven.x[i][c] = 1 / (1 + exp(-seven.x[i][c]));
    p->out = like_rows(&p->in, 8);
    ref_convolve(&p->up, &seven, &p->out, false, true, true);
    nine = like_rows(&p->in, 8);
    ref_convolve(&p->join, &one, &nine, true, false, false);
    ref_add(&p->out, &nine);
    ref_relu(&p->out);
}

static double element(const void *data, spops_dtype dtype, size_t i)
{
    return dtype == SPOPS_DTYPE_F32 ? (double)((const float *)data)[i]
                                    : (double)spops_float_of_f16(((const uint16_t *)data)[i]);
}

// The sparse output against the reference; the dense ones against the sparse one, to the bit.
static void check_pieces(test_device *d, const spops_model *model, const pieces *p)
{
    spops_model_array out[4];
    void *data[4];
    double largest = 0, difference = 0;

    for (int i = 0; i < 4; ++i) {
        out[i] = spops_model_array_default();
        test_expect_ok(d->ctx, spops_model_get_output(d->ctx, model, i, &out[i]), "output");
        size_t bytes = spops_dtype_bytes(out[i].dtype);
        for (int k = 0; k < out[i].num_dims; ++k)
            bytes *= (size_t)out[i].shape[k];
        data[i] = fetch(d, out[i].data, bytes);
    }
    cr_assert(out[0].set == 0 && out[0].shape[1] == 8 && out[1].num_dims == 2 &&
              out[1].shape[1] == 8 * GRID_CELLS && out[2].num_dims == 3 && out[2].shape[2] == 48);
    int32_t *num = fetch(d, out[0].num_rows, sizeof *num);
    int32_t *rows = fetch(d, out[0].coords, (size_t)*num * 4 * sizeof *rows);
    cr_assert(*num == p->num, "%d rows, expected %d", *num, p->num);
    for (int32_t r = 0; r < *num; ++r) {
        const int32_t *at = rows + 4 * r;
        const int cell = (at[1] * 7 + at[2]) * 8 + at[3];
        for (int c = 0; c < 8; ++c) {
            const double got = element(data[0], out[0].dtype, (size_t)(r * 8 + c));
            const double expected = p->out.x[cell][c];
            largest = fmax(largest, fabs(expected));
            difference = fmax(difference, fabs(got - expected));
            // [1, C, X, Y, Z] turned to [1, C, Z, X, Y], and [1, X, C, Y, Z].
            const int turned = ((c * 8 + at[3]) * 6 + at[1]) * 7 + at[2];
            const int swapped = ((at[1] * 8 + c) * 7 + at[2]) * 8 + at[3];
            cr_assert(element(data[1], out[1].dtype, (size_t)turned) == got, "row %d, %d", r, c);
            cr_assert(element(data[2], out[2].dtype, (size_t)swapped) == got, "row %d, %d", r, c);
            cr_assert(element(data[3], out[3].dtype, (size_t)turned) == got, "row %d, %d", r, c);
        }
    }
    for (int i = 1; i < 4; ++i) { // all other cells are 0
        int64_t nonzero = 0, rows_nonzero = 0;
        for (size_t k = 0; k < 8 * GRID_CELLS; ++k)
            nonzero += element(data[i], out[i].dtype, k) != 0;
        for (size_t k = 0; k < (size_t)*num * 8; ++k)
            rows_nonzero += element(data[0], out[0].dtype, k) != 0;
        cr_assert(nonzero == rows_nonzero && (*num < 8 || nonzero > 0));
    }
    cr_assert(difference <= (out[0].dtype == SPOPS_DTYPE_F32 ? 1e-5 : 1e-2) * largest,
              "%g of %g is too far from FP64", difference, largest);
    for (int i = 0; i < 4; ++i)
        free(data[i]);
    free(num);
    free(rows);
}

static void put_pieces_frame(test_device *d, const spops_model *model, const pieces *p)
{
    spops_model_array in = spops_model_array_default();
    const size_t num = p->num < GRID_CELLS ? (size_t)p->num : GRID_CELLS; // that are there
    uint16_t narrow[GRID_CELLS][8];
    test_expect_ok(d->ctx, spops_model_get_input(d->ctx, model, 0, &in), "input");
    for (int i = 0; i < GRID_CELLS; ++i)
        for (int c = 0; c < 8; ++c)
            narrow[i][c] = spops_f16_of_float(p->features[i][c]);
    upload(d, in.num_rows, &p->num, sizeof p->num);
    upload(d, in.coords, p->rows, num * sizeof *p->rows);
    upload(d, in.data, in.dtype == SPOPS_DTYPE_F32 ? (const void *)p->features : narrow,
           num * 8 * spops_dtype_bytes(in.dtype));
}

ParameterizedTestParameters(model, every_node)
{
    static const int wide[] = {0, 1};
    return every_case(NULL, 0, wide, 2);
}
ParameterizedTest(struct case_param *param, model, every_node, .timeout = 120)
{
    static const char *const steps[] = {
        "",           "",          "",   "first",       "down", "relu_alone",    "sum_alone",
        "sum_joined", "narrow",    "up", "relu_joined", "turn", "scatter_again", "turn_alone",
        "swap",       "dense_relu"};
    static pieces p;
    test_rng rng = test_rng_make(9000 + case_number(param));
    spops_model_options options = spops_model_options_default();
    spops_model_info info = spops_model_info_default();
    spops_model *model = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, (test_launch)param->launch)) return;
    put_pieces(&p, &rng);
    options.widen = param->op;
    test_expect_ok(d.ctx,
                   spops_model_load(d.ctx, p.file.model.data, p.file.model.num, &options, &model),
                   "load");
    test_expect_ok(d.ctx, spops_model_get_info(d.ctx, model, &info), "info");
    cr_assert(info.num_layers == (int)(sizeof steps / sizeof *steps), "%d", info.num_layers);
    for (int32_t i = 0; i < info.num_layers; ++i) {
        spops_model_layer l = spops_model_layer_default();
        test_expect_ok(d.ctx, spops_model_get_layer(d.ctx, model, i, &l), "layer");
        cr_assert(strcmp(l.name, steps[i]) == 0, "layer %d is '%s'", i, l.name);
    }
    for (int i = 0; i < 4; ++i) {
        draw_pieces_frame(&p, i == 2 ? 400 : 1 + 2 * i, &rng);
        ref_pieces(&p);
        put_pieces_frame(&d, model, &p);
        if (i % 2 == 0) {
            execute(&d, model);
        } else {
            for (int32_t k = 0; k < info.num_layers; ++k)
                test_expect_ok(d.ctx, spops_model_execute_layer(d.ctx, model, k), steps[k]);
        }
        test_expect_ok(d.ctx, spops_model_check_sync(d.ctx, model), "check");
        check_pieces(&d, model, &p);
    }
    spops_model_destroy(model);
    onnx_file_free(&p.file);
    test_close(&d);
}

// ---- Graphs of the library's own operators ----------------------------------------------------------------

enum { OWN_ROWS = 200 };

// The description of a plan, with those of the plans that it stands on behind it.
static int32_t describe(spops_context *ctx, int64_t *ints, const spops_plan *const *plans, int num)
{
    int32_t all = 0, n = 0;
    for (int i = 0; i < num; ++i) {
        test_expect_ok(ctx, spops_plan_describe(ctx, plans[i], ints + all, 200 - all, &n),
                       "describe");
        all += n;
    }
    return all;
}

// y = relu(conv(x)), z = y + z0, in f32; the plans of the same calls describe those of the file.
typedef struct own_graph {
    onnx_file file;
    spops_coords *set;
    spops_kernel_map *map;
    spops_sparseconv *conv;
    float w[27 * 8 * 16];
    int64_t ints[3][200];
    int32_t num_ints[3];
} own_graph;

static void make_own_plans(test_device *d, own_graph *g)
{
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, 5, 6, 7, 0}};
    spops_coords_options options = spops_coords_options_default();
    options.box = &box;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, OWN_ROWS, OWN_ROWS, &options, &g->set),
                   "set");
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, SPOPS_MAP_SUBMANIFOLD, &cube, g->set, NULL, NULL, &g->map),
        "map");
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, g->map, NULL, &g->conv), "conv");
    const spops_plan *const set[] = {(spops_plan *)g->set};
    const spops_plan *const conv[] = {(spops_plan *)g->conv, (spops_plan *)g->map};
    g->num_ints[0] = describe(d->ctx, g->ints[0], set, 1);
    g->num_ints[1] = describe(d->ctx, g->ints[1], conv + 1, 1);
    g->num_ints[2] = describe(d->ctx, g->ints[2], conv, 2);
}

static void put_own(own_graph *g, test_rng *rng, bool with_shapes)
{
    const int64_t rows[2] = {OWN_ROWS, 4}, one = 1, x[2] = {OWN_ROWS, 8}, y[2] = {OWN_ROWS, 16};
    const int64_t w[2] = {27 * 8, 16}, size[3] = {3, 3, 3};
    onnx_file *f = &g->file;

    for (int i = 0; i < 27 * 8 * 16; ++i)
        g->w[i] = (float)test_rng_unit(rng) - 0.5f;
    onnx_file_begin(f);
    onnx_node_begin(f, "coords", "set", "spops", (const char *const[]){"rows", "num", NULL},
                    (const char *const[]){"set", NULL});
    onnx_ints(f, "coords_ints", g->num_ints[0], g->ints[0]);
    onnx_node_end(f);
    onnx_node_begin(f, "kernel_map", "map", "spops", (const char *const[]){"set", "", NULL},
                    (const char *const[]){"map", NULL});
    onnx_packed_ints(f, "map_ints", g->num_ints[1], g->ints[1]);
    onnx_ints(f, "size", 3, size);
    onnx_node_end(f);
    onnx_node_begin(f, "sparseconv_plan", "plan", "spops", (const char *const[]){"map", NULL},
                    (const char *const[]){"conv", NULL});
    onnx_ints(f, "conv_ints", g->num_ints[2], g->ints[2]);
    onnx_node_end(f);
    // x w bias scale shift residual x_scales conv, and what out begins with
    onnx_node_begin(f, "sparseconv", "layer", "spops",
                    (const char *const[]){"x", "w", "", "", "", "", "", "conv", NULL},
                    (const char *const[]){"y", NULL});
    onnx_text(f, "activation", "relu");
    onnx_node_end(f);
    onnx_node_begin(f, "activation", "gate", "spops", (const char *const[]){"y", "num", NULL},
                    (const char *const[]){"z", NULL});
    onnx_text(f, "kind", "leaky_relu");
    onnx_float(f, "activation_slope", 0.25f);
    onnx_node_end(f);
    onnx_node_begin(f, "Identity", "name", "", (const char *const[]){"z", NULL},
                    (const char *const[]){"out", NULL});
    onnx_node_end(f);
    onnx_initializer(f, "w", ONNX_FLOAT, 2, w, g->w, sizeof g->w);
    onnx_value(f, 11, "rows", ONNX_INT32, 2, rows);
    onnx_value(f, 11, "num", ONNX_INT32, 1, &one);
    onnx_value(f, 11, "x", ONNX_FLOAT, 2, x);
    if (with_shapes) onnx_value(f, 13, "y", ONNX_FLOAT, 2, y);
    onnx_value(f, 13, "z", ONNX_FLOAT, 2, y);
    onnx_value(f, 12, "y", ONNX_FLOAT, 2, y);
    onnx_value(f, 12, "out", ONNX_FLOAT, 2, y);
    onnx_file_end(f);
}

static void free_own(own_graph *g)
{
    spops_sparseconv_destroy(g->conv);
    spops_kernel_map_destroy(g->map);
    spops_coords_destroy(g->set);
    onnx_file_free(&g->file);
}

LaunchTest(model, own_operators, .timeout = 120)
{
    static own_graph g;
    static pieces frame;
    static float x[OWN_ROWS][8];
    test_rng rng = test_rng_make(31);
    spops_model *model = NULL;
    spops_model_array in[3], out[2];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    make_own_plans(&d, &g);
    put_own(&g, &rng, true);
    test_expect_ok(
        d.ctx, spops_model_load(d.ctx, g.file.model.data, g.file.model.num, NULL, &model), "load");
    for (int i = 0; i < 5; ++i) {
        spops_model_array *a = i < 3 ? &in[i] : &out[i - 3];
        *a = spops_model_array_default();
        test_expect_ok(d.ctx,
                       i < 3 ? spops_model_get_input(d.ctx, model, i, a)
                             : spops_model_get_output(d.ctx, model, i - 3, a),
                       "array");
    }
    cr_assert(strcmp(in[2].name, "x") == 0 && in[0].dtype == SPOPS_DTYPE_I32 && in[0].set == -1);
    float *w = device_zeros(&d, sizeof g.w), *expected = device_zeros(&d, OWN_ROWS * 16 * 4);
    upload(&d, w, g.w, sizeof g.w);
    for (int version = 0; version < 3; ++version) {
        spops_conv_layer layer_options = spops_conv_layer_default();
        draw_pieces_frame(&frame, version == 1 ? 20 : 3, &rng);
        cr_assert(frame.num <= OWN_ROWS && frame.num > 0);
        for (int r = 0; r < OWN_ROWS; ++r)
            for (int c = 0; c < 8; ++c)
                x[r][c] = (float)test_rng_unit(&rng) - 0.5f;
        upload(&d, in[0].data, frame.rows, (size_t)frame.num * 16);
        upload(&d, in[1].data, &frame.num, sizeof frame.num);
        upload(&d, in[2].data, x, sizeof x);
        const int64_t requests = d.memory.requests;
        execute(&d, model);
        cr_assert(d.memory.requests == requests, "execute asks for memory");
        test_expect_ok(d.ctx, spops_model_check_sync(d.ctx, model), "check");
        layer_options.activation = SPOPS_ACTIVATION_RELU;
        cr_assert(device_fill(d.backend, expected, 0, OWN_ROWS * 16 * 4));
        test_expect_ok(d.ctx, spops_coords_update(d.ctx, g.set, in[1].data, in[0].data), "set");
        test_expect_ok(d.ctx, spops_kernel_map_update(d.ctx, g.map, g.set, g.set), "map");
        test_expect_ok(d.ctx, spops_sparseconv_update(d.ctx, g.conv), "conv");
        test_expect_ok(d.ctx,
                       spops_sparseconv_execute(
                           d.ctx, g.conv,
                           spops_matrix_dense(in[2].data, OWN_ROWS, 8, SPOPS_DTYPE_F32),
                           spops_matrix_dense(w, 27 * 8, 16, SPOPS_DTYPE_F32), &layer_options,
                           spops_matrix_dense(expected, OWN_ROWS, 16, SPOPS_DTYPE_F32)),
                       "layer");
        void *a = fetch(&d, out[0].data, OWN_ROWS * 16 * 4),
             *b = fetch(&d, expected, OWN_ROWS * 16 * 4);
        void *c = fetch(&d, out[1].data, OWN_ROWS * 16 * 4);
        cr_assert(memcmp(a, b, OWN_ROWS * 16 * 4) == 0, "version %d",
                  version); // rows not in use: 0
        cr_assert(memcmp(b, c, OWN_ROWS * 16 * 4) == 0, "version %d", version); // relu stays itself
        int64_t nonzero = 0;
        for (int i = 0; i < OWN_ROWS * 16; ++i)
            nonzero += ((float *)a)[i] > 0;
        cr_assert(nonzero > frame.num);
        free(a);
        free(b);
        free(c);
    }
    device_free(d.backend, w);
    device_free(d.backend, expected);
    spops_model_destroy(model);
    free_own(&g);
    test_close(&d);
}

// ---- Points, int8, what does not fit --------------------------------------------------------------------

// The points' own means are the rows that the rest runs on: the same bits as from rows.
TestOver(model, points, struct launch_param *param, every_launch(), .timeout = 120)
{
    static pieces p;
    static float places[3 * GRID_CELLS][3];
    static uint16_t features[3 * GRID_CELLS][8];
    test_rng rng = test_rng_make(77);
    spops_voxels_options voxels = spops_voxels_options_default();
    spops_model_options options = spops_model_options_default();
    spops_model_array in = spops_model_array_default(), a = in, b = in;
    spops_model_layer first = spops_model_layer_default();
    spops_coords_info info = spops_coords_info_default();
    spops_model *of_rows = NULL, *of_points = NULL;
    int32_t num = 0;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, (test_launch)param->launch)) return;
    put_pieces(&p, &rng);
    draw_pieces_frame(&p, 3, &rng);
    for (int a2 = 0; a2 < 3; ++a2) {
        voxels.size_m[a2] = 0.5 * (1 + a2);
        voxels.origin_m[a2] = -1;
    }
    voxels.points = SPOPS_VOXEL_POINTS_FIRST;
    voxels.most_points = 2;
    options.voxels = &voxels;
    options.max_points = 3 * GRID_CELLS;
    test_expect_ok(d.ctx,
                   spops_model_load(d.ctx, p.file.model.data, p.file.model.num, NULL, &of_rows),
                   "rows");
    test_expect_ok(
        d.ctx, spops_model_load(d.ctx, p.file.model.data, p.file.model.num, &options, &of_points),
        "points");
    // Two points of each voxel have the row's features, a third that does not count any, and some lie
    // outside.
    for (int turn = 0; turn < 3; ++turn)
        for (int32_t r = 0; r < p.num; ++r, ++num)
            for (int c = 0; c < 8; ++c) {
                if (c < 3)
                    places[num][c] = (float)((p.rows[r][1 + c] + 0.5) * voxels.size_m[c] - 1);
                features[num][c] = spops_f16_of_float(c >= 5      ? 0.0f
                                                      : turn == 2 ? 3.0f
                                                                  : p.features[r][c]);
            }
    places[num - 1][1] = 100;
    test_expect_ok(d.ctx, spops_model_get_input(d.ctx, of_points, 0, &in), "input");
    cr_assert(in.points != NULL && in.coords == NULL && in.shape[0] == 3 * GRID_CELLS);
    upload(&d, in.points, places, sizeof places);
    upload(&d, in.data, features, sizeof features);
    upload(&d, in.num_rows, &num, sizeof num);
    put_pieces_frame(&d, of_rows, &p);
    test_expect_ok(d.ctx, spops_model_execute(d.ctx, of_points), "execute");
    test_expect_ok(d.ctx, spops_model_execute(d.ctx, of_rows), "execute");
    test_expect_ok(d.ctx, spops_model_check_sync(d.ctx, of_points), "check");
    test_expect_ok(d.ctx, spops_model_get_set_sync(d.ctx, of_points, 0, &info), "set");
    cr_assert(info.num_rows == p.num && info.num_dropped == 1);
    test_expect_ok(d.ctx, spops_model_get_layer(d.ctx, of_points, 0, &first), "layer");
    cr_assert(strcmp(first.op, "voxels") == 0 && first.set == 0);
    test_expect_ok(d.ctx, spops_model_get_output(d.ctx, of_rows, 1, &a), "output");
    test_expect_ok(d.ctx, spops_model_get_output(d.ctx, of_points, 1, &b), "output");
    void *expected = fetch(&d, a.data, 8 * GRID_CELLS * 2),
         *got = fetch(&d, b.data, 8 * GRID_CELLS * 2);
    cr_assert(memcmp(expected, got, 8 * GRID_CELLS * 2) == 0);
    free(expected);
    free(got);
    voxels.crop = 1;
    spops_model *none = of_rows;
    test_expect(d.ctx,
                spops_model_load(d.ctx, p.file.model.data, p.file.model.num, &options, &none),
                SPOPS_STATUS_INVALID_ARGUMENT, "voxels has coords, memory, crop or dims", "crop");
    cr_assert(none == NULL);
    spops_model_destroy(of_rows);
    spops_model_destroy(of_points);
    onnx_file_free(&p.file);
    test_close(&d);
}

#define INT8_X_RANGE (127.0f / 64) // a code of a row counts 1 / 64

// One submanifold layer of int8 with the weights of `c`.
static void put_int8(onnx_file *f, const ref_conv *c, const float *ranges)
{
    const int64_t in_dims[2] = {100, 8};
    onnx_conv n = {.name = "conv0",
                   .x = "0",
                   .out = "1",
                   .rulebook = "",
                   .activation = "None",
                   .in = c->in,
                   .out_cols = c->out,
                   .kernel = {3, 3, 3},
                   .stride = {1, 1, 1},
                   .padding = {1, 1, 1},
                   .in_shape = {6, 7, 8},
                   .out_shape = {6, 7, 8},
                   .subm = 1,
                   .weight = c->weight,
                   .input_range = INT8_X_RANGE,
                   .weight_ranges = ranges};
    onnx_file_begin(f);
    onnx_put_conv(f, &n);
    onnx_value(f, 11, "0", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "1", ONNX_FLOAT16, 2, in_dims);
    onnx_file_end(f);
}

static void *run_int8(test_device *d, const onnx_file *f, spops_model_int8 int8, const pieces *p)
{
    spops_model_options options = spops_model_options_default();
    spops_model_array out = spops_model_array_default();
    spops_model_info info = spops_model_info_default();
    spops_model *model = NULL;

    options.int8 = int8;
    test_expect_ok(d->ctx, spops_model_load(d->ctx, f->model.data, f->model.num, &options, &model),
                   "load");
    test_expect_ok(d->ctx, spops_model_get_info(d->ctx, model, &info), "info");
    put_pieces_frame(d, model, p);
    test_expect_ok(d->ctx, spops_model_execute(d->ctx, model), "execute");
    test_expect_ok(d->ctx, spops_model_get_output(d->ctx, model, 0, &out), "output");
    void *data = fetch(d, out.data, (size_t)p->num * 16 * 2);
    spops_model_destroy(model);
    return data;
}

static float largest_weight(const ref_conv *c, int o)
{
    float most = 0;
    for (int k = 0; k < 27 * 8; ++k) {
        const float weight = fabsf(spops_float_of_f16(c->weight[o * 27 * 8 + k]));
        if (weight > most) most = weight;
    }
    return most;
}

// On codes: rows are multiples of what a code counts, so that but for f16's roundings of weights, which
// ROUND has, both are the same.
static void check_codes(test_device *d, const onnx_file *file, const ref_conv *c,
                        const float *ranges, pieces *p)
{
    for (int i = 0; i < p->num; ++i)
        for (int k = 0; k < 5; ++k)
            p->features[i][k] =
                rintf(p->features[i][k] / (INT8_X_RANGE / 127)) * (INT8_X_RANGE / 127);
    uint16_t *round = run_int8(d, file, SPOPS_MODEL_INT8_ROUND, p);
    uint16_t *codes = run_int8(d, file, SPOPS_MODEL_INT8_CODES, p);
    int64_t others = 0;
    for (int i = 0; i < p->num; ++i)
        for (int o = 0; o < 16; ++o) {
            const float most = o == 3 ? largest_weight(c, o) : ranges[o];
            const float a = spops_float_of_f16(round[i * 16 + o]);
            const float b = spops_float_of_f16(codes[i * 16 + o]);
            // Column 3 has a range of 0: its weights are rounded on codes alone, by half a step each.
            const float bound = 27 * 5 * 0.5f * most * (o == 3 ? 0.5f / 127 : 0x1p-11f) + 0x1p-9f;
            cr_assert(fabsf(a - b) <= bound, "row %d, column %d: %g, on codes %g", i, o, (double)a,
                      (double)b);
            others += a != b;
        }
    cr_assert(others > 0 && others < (int64_t)p->num * 16);
    free(round);
    free(codes);
}

TestOver(model, int8, struct backend_param *param, every_backend())
{
    static pieces p;
    static ref_conv c, rounded;
    float ranges[16];
    test_rng rng = test_rng_make(88);
    onnx_file file, plain;
    int64_t changed = 0;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    draw_conv(&c, 8, 16, 3, 1, &rng);
    rounded = c;
    for (int o = 0; o < 16; ++o) {
        ranges[o] =
            o == 3 ? 0.0f : 0.25f + 0.02f * (float)o; // some weights are clipped; 0: none is
        if (o == 3) continue;
        for (int k = 0; k < 27 * 8; ++k) {
            uint16_t *w = &rounded.weight[o * 27 * 8 + k];
            const float step = ranges[o] / 127;
            const float q = fminf(127, fmaxf(-127, rintf(spops_float_of_f16(*w) / step)));
            const uint16_t to = spops_f16_of_float(q * step);
            changed += to != *w;
            *w = to;
        }
    }
    cr_assert(changed > 1000);
    put_int8(&file, &c, ranges);
    put_int8(&plain, &rounded, NULL);
    draw_pieces_frame(&p, 3, &rng);
    void *round = run_int8(&d, &file, SPOPS_MODEL_INT8_ROUND, &p);
    void *by_hand_rounded = run_int8(&d, &plain, SPOPS_MODEL_INT8_ROUND, &p);
    cr_assert(memcmp(round, by_hand_rounded, (size_t)p.num * 32) == 0);
    onnx_file_free(&plain);
    put_int8(&plain, &c, NULL);
    void *ignore = run_int8(&d, &file, SPOPS_MODEL_INT8_IGNORE, &p);
    void *as_is = run_int8(&d, &plain, SPOPS_MODEL_INT8_REFUSE, &p); // none is int8
    cr_assert(memcmp(ignore, as_is, (size_t)p.num * 32) == 0);
    cr_assert(memcmp(ignore, round, (size_t)p.num * 32) != 0);
    check_codes(&d, &file, &c, ranges, &p);
    spops_model_options options = spops_model_options_default();
    spops_model *model = NULL;
    options.int8 = SPOPS_MODEL_INT8_REFUSE;
    test_expect(d.ctx, spops_model_load(d.ctx, file.model.data, file.model.num, &options, &model),
                SPOPS_STATUS_NOT_SUPPORTED, "precision is int8, which the options refuse",
                "refused");
    free(round);
    free(by_hand_rounded);
    free(ignore);
    free(as_is);
    onnx_file_free(&file);
    onnx_file_free(&plain);
    test_close(&d);
}

TestOver(model, says_what_does_not_fit, struct backend_param *param, every_backend())
{
    static pieces p;
    test_rng rng = test_rng_make(99);
    spops_model_options options = spops_model_options_default();
    spops_model *model = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    put_pieces(&p, &rng);
    options.max_rows = GRID_CELLS;
    options.max_inner_rows = 20;
    test_expect_ok(d.ctx,
                   spops_model_load(d.ctx, p.file.model.data, p.file.model.num, &options, &model),
                   "load");
    for (int i = 0; i < 3; ++i) {
        draw_pieces_frame(&p, i == 1 ? 1 : 200, &rng);
        put_pieces_frame(&d, model, &p);
        execute(&d, model);
        if (i != 1)
            test_expect_ok(d.ctx, spops_model_check_sync(d.ctx, model), "fits");
        else
            test_expect(
                d.ctx, spops_model_check_sync(d.ctx, model), SPOPS_STATUS_CAPACITY_EXCEEDED,
                "model_check_sync: the output of 'down' has more rows than the 20 that there "
                "is room for",
                "too many");
    }
    p.num = 3;
    memset(p.rows, 0, sizeof p.rows);
    p.rows[1][2] = 7; // outside; the other two are the same
    put_pieces_frame(&d, model, &p);
    execute(&d, model);
    test_expect(d.ctx, spops_model_check_sync(d.ctx, model), SPOPS_STATUS_INVALID_ARGUMENT,
                "1 rows of the input are outside the grid, and 1 are given twice", "rows");
    p.num = GRID_CELLS + 1;
    put_pieces_frame(&d, model, &p);
    execute(&d, model);
    test_expect(d.ctx, spops_model_check_sync(d.ctx, model), SPOPS_STATUS_CAPACITY_EXCEEDED,
                "the input has more rows than the 336", "input");
    spops_model_destroy(model);
    onnx_file_free(&p.file);
    test_close(&d);
}

// ---- Memory -----------------------------------------------------------------------------------------------

// What info says is what is taken from the allocator, and the most that ever was.
TestOver(model, bytes, struct backend_param *param, every_backend())
{
    static pieces p;
    test_rng rng = test_rng_make(101);
    spops_model_info info = spops_model_info_default();
    size_t weights = 0, plans = 0;
    spops_model *model = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    put_pieces(&p, &rng);
    const size_t before = d.memory.live_bytes;
    test_expect_ok(
        d.ctx, spops_model_load(d.ctx, p.file.model.data, p.file.model.num, NULL, &model), "load");
    test_expect_ok(d.ctx, spops_model_get_info(d.ctx, model, &info), "info");
    cr_assert(info.peak_bytes == info.weight_bytes + info.plan_bytes + info.feature_bytes +
                                     info.input_bytes + info.output_bytes + info.scratch_bytes);
    const size_t live = d.memory.live_bytes - before;
    // Handles and names are in the host's memory, which a CPU context takes from the same place.
    cr_assert(live <= info.peak_bytes + info.scratch_bytes / 2 + 200000 &&
                  live * 2 > info.peak_bytes,
              "%zu bytes are alive, info says %zu", live, info.peak_bytes);
    for (int32_t i = 0; i < info.num_layers; ++i) {
        spops_model_layer l = spops_model_layer_default();
        test_expect_ok(d.ctx, spops_model_get_layer(d.ctx, model, i, &l), "layer");
        weights += l.weight_bytes;
        plans += l.plan_bytes;
    }
    cr_assert(plans == info.plan_bytes && weights <= info.weight_bytes &&
              weights + 512 * (size_t)info.num_layers > info.weight_bytes);
    spops_model_destroy(model);
    onnx_file_free(&p.file);
    test_close(&d);
}

// The n-th request for memory is refused, for each n until loading succeeds.
TestOver(model, runs_out_of_memory, struct backend_param *param, every_backend(), .timeout = 120)
{
    static pieces p;
    static own_graph g;
    test_rng rng = test_rng_make(103);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    put_pieces(&p, &rng);
    make_own_plans(&d, &g);
    put_own(&g, &rng, true);
    for (int which = 0; which < 2; ++which) {
        const onnx_file *f = which == 0 ? &p.file : &g.file;
        int64_t refused = 0;
        for (int64_t nth = 1;; ++nth) {
            const int64_t live = d.memory.live;
            spops_context *ctx = test_context(&d, 1);
            spops_model *model = (spops_model *)16;
            d.memory.fail_at = d.memory.requests + nth;
            const spops_status status =
                spops_model_load(ctx, f->model.data, f->model.num, NULL, &model);
            const bool is_refused = d.memory.requests >= d.memory.fail_at;
            d.memory.fail_at = 0;
            if (status != SPOPS_STATUS_OK) {
                ++refused;
                test_expect(ctx, status, SPOPS_STATUS_OUT_OF_MEMORY, " memory", "load");
                cr_assert(strncmp(spops_last_error(ctx), "model_load", 10) == 0, "%s",
                          spops_last_error(ctx));
                cr_assert(model == NULL);
            }
            spops_model_destroy(model);
            spops_context_destroy(ctx);
            checked_alloc_check(&d.memory, "load");
            cr_assert(d.memory.live == live, "request %d: %d blocks leaked", (int)nth,
                      (int)(d.memory.live - live));
            if (!is_refused) break;
            if (d.backend == SPOPS_BACKEND_CUDA) nth += 6;
        }
        cr_assert(refused > 10);
    }
    free_own(&g);
    onnx_file_free(&p.file);
    test_close(&d);
}

// ---- Refusals ---------------------------------------------------------------------------------------------

// An attribute of the layer that is another one, or is not there (num 0, no text).
typedef struct changed_attribute {
    const char *name, *text;
    int num;
    int64_t values[4];
    spops_status status;
    const char *message;
} changed_attribute;

static const changed_attribute right_attributes[] = {
    {"ndim", NULL, 1, {3}, 0, NULL},
    {"input_spatial_shape", NULL, 3, {6, 7, 8}, 0, NULL},
    {"output_spatial_shape", NULL, 3, {3, 4, 4}, 0, NULL},
    {"in_channels", NULL, 1, {8}, 0, NULL},
    {"out_channels", NULL, 1, {16}, 0, NULL},
    {"kernel_size", NULL, 3, {3, 3, 3}, 0, NULL},
    {"output_bound", NULL, 1, {500}, 0, NULL},
    {"stride", NULL, 3, {2, 2, 2}, 0, NULL},
    {"dilation", NULL, 3, {1, 1, 1}, 0, NULL},
    {"padding", NULL, 3, {1, 1, 1}, 0, NULL},
    {"transposed", NULL, 1, {0}, 0, NULL},
    {"inverse", NULL, 1, {0}, 0, NULL},
    {"groups", NULL, 1, {1}, 0, NULL},
    {"subm", NULL, 1, {0}, 0, NULL},
    {"rulebook", "one", 0, {0}, 0, NULL},
    {"activation", "ReLU", 0, {0}, 0, NULL},
    {"precision", "fp16", 0, {0}, 0, NULL}};

#define DAMAGED SPOPS_STATUS_CORRUPT_DATA
#define UNREAD  SPOPS_STATUS_NOT_SUPPORTED
static const changed_attribute changes[] = {
    {"none", NULL, 0, {0}, SPOPS_STATUS_OK, NULL},
    {"ndim", NULL, 1, {2}, DAMAGED, "ndim is 2, expected 3 to 3"},
    {"input_spatial_shape",
     NULL,
     0,
     {0},
     DAMAGED,
     "input_spatial_shape has 0 integers, expected 1 to 4"},
    {"input_spatial_shape",
     NULL,
     3,
     {6, 0, 8},
     DAMAGED,
     "input_spatial_shape[1] is 0, expected 1 to 16777216"},
    {"output_spatial_shape",
     NULL,
     3,
     {3, 4, 5},
     DAMAGED,
     "output_spatial_shape[2] is 5, expected 4"},
    {"output_spatial_shape", NULL, 0, {0}, SPOPS_STATUS_OK, NULL},
    {"in_channels", NULL, 1, {9}, DAMAGED, "in_channels is 9, expected 8 to 8"},
    {"out_channels", NULL, 1, {15}, DAMAGED, "out_channels is 15, expected 16 to 16"},
    {"kernel_size", NULL, 2, {3, 3}, DAMAGED, "kernel_size has 2 integers, expected 3"},
    {"kernel_size", NULL, 3, {3, 8, 3}, DAMAGED, "kernel_size[1] is 8, expected 1 to 7"},
    {"kernel_size", NULL, 0, {0}, DAMAGED, "it has no kernel_size"},
    {"kernel_size", NULL, 3, {3, 3, 5}, DAMAGED, "output_spatial_shape[2] is 4, expected 3"},
    {"output_bound", NULL, 1, {0}, DAMAGED, "output_bound is 0, expected 1 to 2147483646"},
    {"stride", NULL, 3, {2, 0, 2}, DAMAGED, "stride[1] is 0, expected 1 to 64"},
    {"dilation", NULL, 3, {9, 1, 1}, DAMAGED, "its kernel is larger than the 6 cells of axis 0"},
    {"padding", NULL, 3, {1, -1, 1}, DAMAGED, "padding[1] is -1, expected 0 to 64"},
    {"transposed", NULL, 1, {1}, UNREAD, "transposed is 1 without inverse"},
    {"inverse",
     NULL,
     1,
     {1},
     DAMAGED,
     "inverse is 1, and rulebook 'one' is no convolution that leads to its input"},
    {"groups", NULL, 1, {2}, UNREAD, "groups is 2, expected 1"},
    {"subm",
     NULL,
     1,
     {1},
     DAMAGED,
     "subm is 1 with stride 2 and size 3, expected stride 1 and an odd size"},
    {"subm", NULL, 1, {2}, DAMAGED, "subm is 2, expected 0 to 1"},
    {"subm", "yes", 0, {0}, DAMAGED, "subm has no integer"},
    {"activation", "LeakyReLU", 0, {0}, UNREAD, "activation is none of None, ReLU, Sigmoid"},
    {"precision", "int4", 0, {0}, UNREAD, "precision is neither fp16 nor int8"},
    {"precision",
     "int8",
     0,
     {0},
     DAMAGED,
     "precision is int8, and weight_dynamic_ranges has 0 numbers, expected 1 or 16"}};

static void put_changed(onnx_file *f, const changed_attribute *change, const ref_conv *c)
{
    const int64_t dims[5] = {16, 3, 3, 3, 8}, in_dims[2] = {100, 8}, scatter[5] = {1, 16, 3, 4, 4};
    onnx_file_begin(f);
    onnx_initializer(f, "w", ONNX_FLOAT16, 5, dims, c->weight, 16 * 27 * 8 * 2);
    onnx_initializer(f, "b", ONNX_FLOAT16, 1, dims, c->bias, 32);
    onnx_node_begin(f, "SparseConvolution", "conv0", "", (const char *const[]){"0", "w", "b", NULL},
                    (const char *const[]){"1", NULL});
    for (size_t i = 0; i < sizeof right_attributes / sizeof *right_attributes; ++i) {
        const changed_attribute *a = &right_attributes[i];
        if (strcmp(a->name, change->name) == 0) a = change;
        if (a->text != NULL) onnx_text(f, a->name, a->text);
        if (a->num == 1) onnx_int(f, a->name, a->values[0]);
        if (a->num > 1) onnx_ints(f, a->name, a->num, a->values);
    }
    onnx_node_end(f);
    const char *const x[] = {"1", NULL}, *const y[] = {"2", NULL};
    onnx_node_begin(f, "ScatterDense", "dense", "", x, y);
    onnx_ints(f, "output_shape", 5, scatter);
    onnx_text(f, "format", "zyx");
    onnx_text(f, "output_layout", "NCHW");
    onnx_node_end(f);
    onnx_put_ints(f, "Reshape", "shape0", "2", "3", "dims", 4, (const int64_t[]){1, -1, 4, 4});
    onnx_put_ints(f, "Transpose", "turn0", "3", "4", "dims", 4, (const int64_t[]){0, 1, 3, 2});
    onnx_value(f, 11, "0", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "4", ONNX_FLOAT16, 2, in_dims);
    onnx_file_end(f);
}

// Bytes of the file that are others, in their first place after `after`: a text, or one byte.
typedef struct changed_bytes {
    const char *after, *from, *to;
    int byte; // from `from` on, before it is changed; -1: a text
    int value;
    spops_status status;
    const char *message;
} changed_bytes;

static const changed_bytes byte_changes[] = {
    {"", "SparseConvolution", "SparseConvolutioN", -1, 0, UNREAD,
     "no node is a SparseConvolution or of the domain spops"},
    {"", "ScatterDense", "ScatterDensE", -1, 0, UNREAD, "node 1 'dense' (ScatterDensE), byte"},
    {"ScatterDense", "zyx", "zxy", -1, 0, UNREAD, "format is neither zyx nor xyz"},
    {"ScatterDense", "NCHW", "NHWC", -1, 0, UNREAD, "output_layout is not NCHW"},
    {"output_shape", "\x40\x10", "\x40\x11", -1, 0, DAMAGED,
     "output_shape[1] is 17, expected 16; byte"},
    {"shape0", "\x40\x04", "\x40\x05", -1, 0, DAMAGED,
     "dims do not make the 768 elements of its input"},
    {"turn0", "\x40\x03", "\x40\x02", -1, 0, DAMAGED,
     "dims[3] is 2, expected each of 0 to 3 once; byte"},
    {"turn0", "\x40\x03", "\x40\x04", -1, 0, DAMAGED,
     "dims[2] is 4, expected each of 0 to 3 once; byte"},
    {"conv0", "kernel_size", "kernel_siz\xff", -1, 0, DAMAGED, "it has no kernel_size"},
    {"scn", "\x42\x01w", "\x42\x01v", -1, 0, DAMAGED, "its weight 'w' is no initializer"},
    {"scn",
     "\x42\x01"
     "b",
     "\x42\x01v", -1, 0, DAMAGED, "its bias 'b' is no initializer"},
    {"scn", "\x10\x0a", "\x10\x01", -1, 0, UNREAD,
     "its weight is of data_type 1, expected 10 (f16); byte"},
    {"scn", "\x08\x03", "\x08\x02", -1, 0, DAMAGED,
     "dimension 1 of its weight is 2, expected 3; byte"},
    {"scn", "\x08\x10", "\x08\x0f", -1, 0, DAMAGED,
     "its weight has 6912 bytes, expected 6480; byte"}};

static size_t find_bytes(const onnx_file *f, size_t from, const char *text)
{
    const size_t n = strlen(text);
    for (size_t i = from; i + n <= f->model.num; ++i)
        if (memcmp(f->model.data + i, text, n) == 0) return i;
    cr_assert(false, "%s is not in the file", text);
    return 0;
}

// A failure names the byte of its node, or of what is wrong; nothing is made, nothing leaks.
static void expect_refused(test_device *d, const onnx_file *f, spops_status status,
                           const char *message)
{
    spops_model *model = (spops_model *)16;
    const int64_t live = d->memory.live;
    const spops_status got = spops_model_load(d->ctx, f->model.data, f->model.num, NULL, &model);
    if (status == SPOPS_STATUS_OK) {
        test_expect_ok(d->ctx, got, "right");
        spops_model_destroy(model);
        return;
    }
    test_expect(d->ctx, got, status, message, "refused");
    cr_assert(model == NULL && d->memory.live == live, "%s", message);
}

TestOver(model, refuses_files, struct backend_param *param, every_backend())
{
    static ref_conv c;
    test_rng rng = test_rng_make(111);
    onnx_file f;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    draw_conv(&c, 8, 16, 3, 2, &rng);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; ++i) {
        put_changed(&f, &changes[i], &c);
        expect_refused(&d, &f, changes[i].status, changes[i].message);
        if (strcmp(changes[i].name, "stride") == 0) { // the place is that of the attribute
            char byte[32];
            const size_t at = find_bytes(&f, find_bytes(&f, 0, "SparseConvolution"), "stride");
            snprintf(byte, sizeof byte, "; byte %zu", at - 4); // two tags, two lengths
            cr_assert(strstr(spops_last_error(d.ctx), byte) != NULL, "no %s in %s", byte,
                      spops_last_error(d.ctx));
        }
        onnx_file_free(&f);
    }
    for (size_t i = 0; i < sizeof byte_changes / sizeof *byte_changes; ++i) {
        const changed_bytes *b = &byte_changes[i];
        put_changed(&f, &changes[0], &c);
        const size_t at = find_bytes(&f, find_bytes(&f, 0, b->after), b->from);
        memcpy(f.model.data + at, b->to, strlen(b->to));
        expect_refused(&d, &f, b->status, b->message);
        onnx_file_free(&f);
    }
    test_close(&d);
}

// A file that ends early is refused wherever it ends, by the byte.
TestOver(model, refuses_what_is_cut, struct backend_param *param, every_backend())
{
    static ref_conv c;
    test_rng rng = test_rng_make(112);
    onnx_file f;
    int64_t refused = 0;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    draw_conv(&c, 8, 16, 3, 2, &rng);
    put_changed(&f, &changes[0], &c);
    const size_t all = f.model.num;
    for (size_t n = 0; n<all; n += n> 100 && n < all - 1500 ? 97 : 1) {
        spops_model *model = NULL;
        uint8_t *copy = malloc(n + 1); // reading past it is seen by tools
        cr_assert(copy != NULL);
        memcpy(copy, f.model.data, n);
        const spops_status status = spops_model_load(d.ctx, copy, n, NULL, &model);
        free(copy);
        if (status == SPOPS_STATUS_OK) {
            cr_assert(n > all - 20, "%zu of %zu bytes are a model", n, all); // without an opset
            spops_model_destroy(model);
            continue;
        }
        test_expect(d.ctx, status, DAMAGED, "model_load: byte ", "cut");
        ++refused;
    }
    cr_assert(refused > 1000);
    onnx_file_free(&f);
    test_close(&d);
}

TestOver(model, refuses_own_graphs, struct backend_param *param, every_backend())
{
    static const changed_bytes own_changes[] = {
        {"", "kernel_map", "kernel_mao", -1, 0, UNREAD, "node 1 'map' (kernel_mao), byte"},
        {"", "coords_ints", "coords_intz", -1, 0, DAMAGED,
         "it makes a plan, and coords_ints has 0 integers, expected 2 to 4096"},
        {"map_ints", "size", "sizf", -1, 0, DAMAGED, "it has no attribute 'sizf'; byte"},
        {"size", "map", "may", -1, 0, DAMAGED,
         "map 'may' is no plan of the graph or of a node before it"},
        {"layer", "relu", "rely", -1, 0, SPOPS_STATUS_INVALID_ARGUMENT,
         "sparseconv_execute: activation is \"rely\", expected none relu"},
        {"gate", "spops", "spopz", -1, 0, UNREAD,
         "it is not of the domain spops, as other nodes are"}};
    static own_graph g;
    test_rng rng = test_rng_make(113);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    make_own_plans(&d, &g);
    for (size_t i = 0; i < sizeof own_changes / sizeof *own_changes; ++i) {
        const changed_bytes *b = &own_changes[i];
        put_own(&g, &rng, true);
        const size_t at = find_bytes(&g.file, find_bytes(&g.file, 0, b->after), b->from);
        memcpy(g.file.model.data + at, b->to, strlen(b->to));
        expect_refused(&d, &g.file, b->status, b->message);
        onnx_file_free(&g.file);
    }
    g.ints[0][3] = -5; // a description that no plan has
    put_own(&g, &rng, true);
    expect_refused(&d, &g.file, SPOPS_STATUS_INVALID_ARGUMENT, "node 0 'set' (coords), byte");
    free_own(&g);
    test_close(&d);
}

TestOver(model, refuses_arguments, struct backend_param *param, every_backend())
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    static ref_conv c;
    test_rng rng = test_rng_make(114);
    spops_model_options options = spops_model_options_default();
    spops_model_info info = spops_model_info_default();
    spops_model_layer l = spops_model_layer_default();
    spops_model_array a = spops_model_array_default();
    spops_model *model = NULL;
    onnx_file f;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    draw_conv(&c, 8, 16, 3, 2, &rng);
    put_changed(&f, &changes[0], &c);
    const void *data = f.model.data;
    const size_t n = f.model.num;
    spops_context *ctx = d.ctx, *other = test_context(&d, 1);
    test_expect(ctx, spops_model_load(ctx, NULL, 0, NULL, &model), invalid, "data is NULL", "data");
    test_expect(ctx, spops_model_load(ctx, data, n, NULL, NULL), invalid, "model is NULL", "model");
    options.max_rows = -1;
    test_expect(ctx, spops_model_load(ctx, data, n, &options, &model), invalid,
                "max_rows is -1, expected 0 to 2147483646", "rows");
    options.max_rows = 0;
    options.widen = 2;
    test_expect(ctx, spops_model_load(ctx, data, n, &options, &model), invalid,
                "widen is 2, expected 0 or 1", "widen");
    options.widen = 0;
    options.int8 = (spops_model_int8)4;
    test_expect(ctx, spops_model_load(ctx, data, n, &options, &model), invalid,
                "int8 is 4, expected 0 to 3", "int8");
    test_expect(ctx, spops_model_load_file(ctx, "/nowhere/at/all.onnx", NULL, &model), invalid,
                "model_load_file: /nowhere/at/all.onnx cannot be read: ", "no file");
    test_expect_ok(ctx, spops_model_load(ctx, data, n, NULL, &model), "load");
    test_expect(ctx, spops_model_get_layer(ctx, model, 99, &l), invalid,
                "index is 99, expected 0 to", "layer");
    test_expect(ctx, spops_model_get_input(ctx, model, 1, &a), invalid,
                "index is 1, expected 0 to 0", "input");
    test_expect(ctx, spops_model_get_output(ctx, model, -1, &a), invalid, "index is -1", "output");
    test_expect(ctx, spops_model_get_info(ctx, NULL, &info), invalid, "model is NULL", "info");
    test_expect(other, spops_model_execute(other, model), invalid,
                "model was loaded with another context", "another context");
    test_expect(ctx, spops_model_execute_layer(ctx, model, -1), invalid, "index is -1", "layer");
    spops_context_destroy(other);
    spops_model_destroy(model);
    spops_model_destroy(NULL);
    onnx_file_free(&f);
    test_close(&d);
}

// Shorter structs are read as if the rest were 0, and filled as far as they go; longer ones are refused.
TestOver(model, structs_may_be_shorter, struct backend_param *param, every_backend())
{
    static ref_conv c;
    test_rng rng = test_rng_make(115);
    spops_model_options options = spops_model_options_default();
    spops_model_info info = spops_model_info_default();
    spops_model_array array = spops_model_array_default();
    spops_model *model = NULL;
    onnx_file f;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    draw_conv(&c, 8, 16, 3, 2, &rng);
    put_changed(&f, &changes[0], &c);
    options.max_rows = 7;
    options.widen = 5; // these are not read
    options.num_batches = -3;
    options.struct_size = offsetof(spops_model_options, num_batches);
    test_expect_ok(d.ctx, spops_model_load(d.ctx, f.model.data, f.model.num, &options, &model),
                   "shorter");
    test_expect_ok(d.ctx, spops_model_get_input(d.ctx, model, 0, &array), "input");
    cr_assert(array.shape[0] == 7 && array.dtype == SPOPS_DTYPE_F16);
    info.struct_size = offsetof(spops_model_info, plan_bytes);
    info.plan_bytes = 77;
    test_expect_ok(d.ctx, spops_model_get_info(d.ctx, model, &info), "shorter");
    cr_assert(info.plan_bytes == 77 && info.weight_bytes > 0 &&
              info.struct_size == offsetof(spops_model_info, plan_bytes));
    info.struct_size = sizeof info + 8;
    test_expect(d.ctx, spops_model_get_info(d.ctx, model, &info), SPOPS_STATUS_INVALID_ARGUMENT,
                "struct_size", "longer");
    spops_model_destroy(model);
    options = spops_model_options_default();
    options.struct_size += 8;
    test_expect(d.ctx, spops_model_load(d.ctx, f.model.data, f.model.num, &options, &model),
                SPOPS_STATUS_INVALID_ARGUMENT, "struct_size", "longer");
    onnx_file_free(&f);
    test_close(&d);
}
