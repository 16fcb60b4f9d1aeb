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
    test_expect_ok(d->ctx,
                   spops_coords_reserve(d->ctx, 3, h->max_rows[level], items, &options,
                                        &h->sets[level]),
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
            test_expect_ok(d->ctx,
                           spops_coords_update_downsampled(d->ctx, h->sets[l], h->sets[l - 1],
                                                           &kernel),
                           "set");
            test_expect_ok(d->ctx,
                           spops_kernel_map_update(d->ctx, h->to[l], h->sets[l - 1], h->sets[l]),
                           "map");
            test_expect_ok(d->ctx, spops_sparseconv_update(d->ctx, h->to_conv[l]), "conv");
        }
        if (h->within[l] == NULL) continue;
        test_expect_ok(d->ctx,
                       spops_kernel_map_update(d->ctx, h->within[l], h->sets[l], h->sets[l]),
                       "map");
        test_expect_ok(d->ctx, spops_sparseconv_update(d->ctx, h->within_conv[l]), "conv");
    }
    for (int i = 0; i < h->net->num_layers; ++i) {
        const layer *l = &h->net->layers[i];
        spops_conv_layer epilogue = spops_conv_layer_default();
        const spops_matrix residual = buffer_of(h, l->residual >= 0 ? l->residual : 0);
        epilogue.bias = h->bias[i];
        epilogue.residual = l->residual >= 0 ? &residual : NULL;
        epilogue.activation = SPOPS_ACTIVATION_RELU;
        test_expect_ok(d->ctx,
                       spops_sparseconv_execute(
                           d->ctx, l->down ? h->to_conv[l->level] : h->within_conv[l->level],
                           buffer_of(h, l->from),
                           spops_matrix_dense(h->weights[i], (int64_t)l->taps * l->in, l->out,
                                              h->dtype),
                           &epilogue, buffer_of(h, l->to)),
                       l->name);
    }
    shape.num_batches = 1;
    for (int a = 0; a < 3; ++a)
        shape.size[a] = level_shapes[NUM_LEVELS - 1].size[a];
    test_expect_ok(d->ctx,
                   spops_dense_execute(d->ctx, h->sets[NUM_LEVELS - 1],
                                       buffer_of(h, h->net->num_buffers - 1), &shape,
                                       spops_matrix_dense(h->bev, NUM_OUTPUTS, 2 * 180 * 180,
                                                          h->dtype)),
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
    by_hand h =
        make_by_hand(&d, &net, p->op ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16, MOST, INNER);
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
