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
#include "examples/centerpoint/network.h"
#include "support/device.h"
#include "tests/support/onnx_file.h"
#include "tests/support/params.h"

// ---- CenterPoint's encoder as a file --------------------------------------------------------------------

// Parameters of a layer as the file has them: norms folded into weights, in f16, spconv 2's order.
typedef struct half_layer {
    uint16_t *weight, *bias;
} half_layer;

static half_layer layer_in_halves(const layer *l)
{
    const size_t taps = (size_t)l->taps, in = (size_t)l->file_in, out = (size_t)l->out;
    half_layer h = {malloc(taps * in * out * 2), malloc(out * 2)};
    cr_assert(h.weight != NULL && h.bias != NULL);
    for (size_t o = 0; o < out; ++o) {
        for (size_t k = 0; k < taps; ++k)
            for (size_t c = 0; c < in; ++c)
                h.weight[(o * taps + k) * in + c] = spops_f16_of_float(
                    l->folded.w[(k * (size_t)l->in + c) * out + o] * l->folded.scale[o]);
        h.bias[o] = spops_f16_of_float(l->folded.shift[o]);
    }
    return h;
}

static void free_halves(half_layer *h)
{
    free(h->weight);
    free(h->bias);
}

// The tensor that a buffer holds so far has the name of a number, as the exporter gives.
typedef struct exporter {
    onnx_file file;
    int tensor_of[NUM_BUFFERS], num_tensors, num_adds;
} exporter;

static const char *name_of(char text[16], int tensor)
{
    snprintf(text, 16, "%d", tensor);
    return text;
}

static void put_layer(exporter *e, const network *net, int i)
{
    const layer *l = &net->layers[i];
    half_layer h = layer_in_halves(l);
    char name[32], rulebook[32], x[16], out[16], other[16], sum[32];
    const int in_level = l->level - l->down;
    onnx_conv c = {.in = l->file_in, .out_cols = l->out, .subm = !l->down, .output_bound = 200000};

    snprintf(name, sizeof name, "conv%d", i);
    snprintf(rulebook, sizeof rulebook, l->down ? "spconv%d" : "res%d", l->level);
    c.name = name;
    c.rulebook = rulebook;
    c.activation = l->residual >= 0 ? "None" : "ReLU";
    for (int a = 0; a < 3; ++a) {
        c.kernel[a] = l->down ? level_shapes[l->level].kernel[a] : 3;
        c.stride[a] = l->down ? level_shapes[l->level].stride[a] : 1;
        c.padding[a] = l->down ? level_shapes[l->level].padding[a] : 1;
        c.in_shape[a] = in_level == 0 && a == 0 ? 41 : level_shapes[in_level].size[a];
        c.out_shape[a] = l->level == 0 && a == 0 ? 41 : level_shapes[l->level].size[a];
    }
    c.weight = h.weight;
    c.bias = h.bias;
    c.x = name_of(x, e->tensor_of[l->from]);
    c.out = name_of(out, ++e->num_tensors);
    onnx_put_conv(&e->file, &c);
    if (l->residual >= 0) {
        const int made = e->num_tensors;
        snprintf(sum, sizeof sum, "add%d", e->num_adds);
        onnx_put_node(&e->file, "Add", sum, out, name_of(other, e->tensor_of[l->residual]),
                      name_of(x, made + 1));
        snprintf(sum, sizeof sum, "relu%d", e->num_adds++);
        onnx_put_node(&e->file, "Relu", sum, x, NULL, name_of(out, made + 2));
        e->num_tensors = made + 2;
    }
    e->tensor_of[l->to] = e->num_tensors;
    free_halves(&h);
}

static void put_centerpoint(exporter *e, const network *net)
{
    const int64_t in_dims[2] = {1000, NUM_FEATURES}, out_dims[4] = {1, 256, 180, 180};
    char x[16], out[16];

    memset(e, 0, sizeof *e);
    onnx_file_begin(&e->file);
    for (int i = 0; i < net->num_layers; ++i)
        put_layer(e, net, i);
    onnx_put_scatter(&e->file, "scatter0", name_of(x, e->num_tensors),
                     name_of(out, e->num_tensors + 1), "zyx", 1, NUM_OUTPUTS,
                     level_shapes[NUM_LEVELS - 1].size);
    onnx_put_ints(&e->file, "Reshape", "reshape0", out, name_of(x, e->num_tensors + 2), "dims", 4,
                  out_dims);
    onnx_value(&e->file, 11, "0", ONNX_FLOAT16, 2, in_dims);
    onnx_value(&e->file, 12, x, ONNX_FLOAT16, 4, out_dims);
    onnx_file_end(&e->file);
}

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

static void reserve_level(by_hand *h, int level)
{
    test_device *d = h->d;
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    spops_coords_options options = spops_coords_options_default();
    spops_coords_box box;
    int64_t items = h->max_rows[0];

    memset(&box, 0, sizeof box);
    for (int a = 0; a < 3; ++a)
        box.upper[1 + a] = level_shapes[level].size[a] - 1 + (level == 0 && a == 0);
    options.box = &box;
    contents.contents = SPOPS_MAP_FOR_CONV;
    if (level > 0) {
        const spops_kernel_shape kernel = kernel_to_level(level);
        items = h->max_rows[level - 1] * spops_kernel_shape_num_candidates(&kernel, 0);
    }
    test_expect_ok(
        d->ctx,
        spops_coords_reserve(d->ctx, 3, h->max_rows[level], items, &options, &h->sets[level]),
        "set");
    if (level > 0) {
        const spops_kernel_shape kernel = kernel_to_level(level);
        test_expect_ok(d->ctx,
                       spops_kernel_map_reserve(d->ctx, SPOPS_MAP_CONVOLUTION, &kernel,
                                                h->sets[level - 1], h->sets[level], &contents,
                                                &h->to[level]),
                       "map");
        test_expect_ok(d->ctx,
                       spops_sparseconv_create(d->ctx, h->to[level], NULL, &h->to_conv[level]),
                       "conv");
    }
    if (level + 1 == NUM_LEVELS) return;
    test_expect_ok(d->ctx,
                   spops_kernel_map_reserve(d->ctx, SPOPS_MAP_SUBMANIFOLD, &cube, h->sets[level],
                                            NULL, &contents, &h->within[level]),
                   "map");
    test_expect_ok(d->ctx,
                   spops_sparseconv_create(d->ctx, h->within[level], NULL, &h->within_conv[level]),
                   "conv");
}

// Canonical weights in the dtype, 0 in padded columns.
static void upload_layer(by_hand *h, int i)
{
    const layer *l = &h->net->layers[i];
    const size_t each = spops_dtype_bytes(h->dtype), n = (size_t)l->taps * (size_t)(l->in * l->out);
    half_layer halves = layer_in_halves(l);
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
    free_halves(&halves);
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

static spops_model *load_model(test_device *d, const exporter *e, const spops_model_options *o)
{
    spops_model *model = NULL;
    test_expect_ok(
        d->ctx, spops_model_load(d->ctx, e->file.model.data, e->file.model.num, o, &model), "load");
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
    exporter e;
    network net;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    network_create(&net);
    cr_assert(network_generate(&net) == 0);
    put_centerpoint(&e, &net);
    options.max_rows = MOST;
    options.max_inner_rows = INNER;
    options.widen = p->op;
    spops_model *model = load_model(&d, &e, &options);
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
        test_expect_ok(d.ctx, spops_model_execute(d.ctx, model), "execute");
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
    onnx_file_free(&e.file);
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
    onnx_put_ints(f, "Transpose", "swap", "12", "15", "dims", 5, swapped);
    onnx_put_ints(f, "Transpose", "stay", "15", "16", "dims", 5, same);
    onnx_put_ints(f, "Reshape", "keep", "16", "17", "dims", 3, kept);
    onnx_put_node(f, "Relu", "dense_relu", "17", NULL, "18");
    onnx_value(f, 11, "0", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "11", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "14", ONNX_FLOAT16, 2, in_dims);
    onnx_value(f, 12, "18", ONNX_FLOAT16, 2, in_dims);
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
    spops_model_array out[3];
    void *data[3];
    double largest = 0, difference = 0;

    for (int i = 0; i < 3; ++i) {
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
        }
    }
    for (int i = 1; i < 3; ++i) { // all other cells are 0
        int64_t nonzero = 0, rows_nonzero = 0;
        for (size_t k = 0; k < 8 * GRID_CELLS; ++k)
            nonzero += element(data[i], out[i].dtype, k) != 0;
        for (size_t k = 0; k < (size_t)*num * 8; ++k)
            rows_nonzero += element(data[0], out[0].dtype, k) != 0;
        cr_assert(nonzero == rows_nonzero && (*num < 8 || nonzero > 0));
    }
    cr_assert(difference <= (out[0].dtype == SPOPS_DTYPE_F32 ? 1e-5 : 1e-2) * largest,
              "%g of %g is too far from FP64", difference, largest);
    for (int i = 0; i < 3; ++i)
        free(data[i]);
    free(num);
    free(rows);
}

static void put_pieces_frame(test_device *d, const spops_model *model, const pieces *p)
{
    spops_model_array in = spops_model_array_default();
    uint16_t narrow[GRID_CELLS][8];
    test_expect_ok(d->ctx, spops_model_get_input(d->ctx, model, 0, &in), "input");
    for (int i = 0; i < GRID_CELLS; ++i)
        for (int c = 0; c < 8; ++c)
            narrow[i][c] = spops_f16_of_float(p->features[i][c]);
    upload(d, in.num_rows, &p->num, sizeof p->num);
    upload(d, in.coords, p->rows, (size_t)p->num * sizeof *p->rows);
    upload(d, in.data, in.dtype == SPOPS_DTYPE_F32 ? (const void *)p->features : narrow,
           (size_t)p->num * 8 * spops_dtype_bytes(in.dtype));
}

ParameterizedTestParameters(model, every_node)
{
    static const int wide[] = {0, 1};
    return every_case(NULL, 0, wide, 2);
}
ParameterizedTest(struct case_param *param, model, every_node, .timeout = 120)
{
    static const char *const steps[] = {
        "",          "",           "",          "first", "down",        "relu_alone",
        "sum_alone", "sum_joined", "narrow",    "up",    "relu_joined", "scatter",
        "turn",      "swap",       "dense_relu"};
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
            test_expect_ok(d.ctx, spops_model_execute(d.ctx, model), "execute");
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
    onnx_ints(f, "map_ints", g->num_ints[1], g->ints[1]);
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

ParameterizedTestParameters(model, own_operators)
{
    return every_launch();
}
ParameterizedTest(struct launch_param *p, model, own_operators, .timeout = 120)
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
        test_expect_ok(d.ctx, spops_model_execute(d.ctx, model), "execute");
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
