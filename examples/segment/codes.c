// SPDX-License-Identifier: Apache-2.0
/* The network in 8 bits: ranges measured on some scans, weights as codes once, layers from codes to codes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"
#include "support/device.h"

/* What layers read and write: the features of voxels, then what comes out of each layer. */
enum { NUM_TENSORS = 1 + SEGMENT_NUM_LAYERS };

struct segment_codes {
    spops_dtype dtype;
    bool runs;                 /* ranges are known: layers run on codes */
    float ranges[NUM_TENSORS]; /* the largest scale that was seen */
    /* Where the context runs. */
    float *scales; /* [NUM_TENSORS], and a place to measure in */
    void *codes[NUM_TENSORS];
    void *weights[SEGMENT_NUM_LAYERS];
    float
        *weight_scales[SEGMENT_NUM_LAYERS]; /* [out_cols], then scale and shift of a folded norm */
};

static bool fail(segment_network *n, const char *what)
{
    snprintf(n->error, sizeof n->error, "%s", what);
    return false;
}

static bool took(segment_network *n, spops_status status)
{
    return status == SPOPS_STATUS_OK || fail(n, spops_last_error(n->ctx));
}

static bool room(segment_network *n, void *to, int64_t bytes)
{
    void *memory = NULL;
    if (!device_alloc(n->backend, (size_t)bytes, &memory)) return fail(n, device_error());
    memcpy(to, &memory, sizeof memory);
    return true;
}

static int64_t padded(const segment_layer *l)
{
    return (l->in_cols + 15) / 16 * 16;
}

static const void *data_of(const segment_network *n, int tensor)
{
    return tensor == 0 ? n->voxel_features : n->after[tensor - 1];
}

static int tensor_of(const segment_network *n, const void *data)
{
    int tensor = 0;
    while (tensor < NUM_TENSORS - 1 && data_of(n, tensor) != data)
        ++tensor;
    return tensor;
}

static int64_t cols_of(const segment_network *n, int tensor)
{
    return tensor == 0 ? SEGMENT_FEATURES : n->layers[tensor - 1].out_cols;
}

static int level_of(const segment_network *n, int tensor)
{
    return tensor == 0 ? 0 : n->layers[tensor - 1].out_level;
}

bool segment_codes_create(segment_network *n, spops_dtype dtype)
{
    segment_codes *c = calloc(1, sizeof *c);
    if (c == NULL) return fail(n, "no memory for codes");
    n->codes = c;
    c->dtype = dtype;
    if (n->dtype != SPOPS_DTYPE_F32) return fail(n, "codes are made from a network of f32");
    bool ok = room(n, &c->scales, (NUM_TENSORS + 1) * (int64_t)sizeof(float));
    for (int i = 0; ok && i < NUM_TENSORS; ++i)
        ok = room(n, &c->codes[i], n->capacity.rows[level_of(n, i)] * cols_of(n, i));
    for (int i = 0; ok && i < SEGMENT_NUM_LAYERS; ++i) {
        const segment_layer *l = &n->layers[i];
        ok = room(n, &c->weights[i], l->num_taps * l->out_cols * padded(l)) &&
             room(n, &c->weight_scales[i], 3 * l->out_cols * (int64_t)sizeof(float));
    }
    return ok;
}

void segment_codes_destroy(segment_network *n)
{
    segment_codes *c = n->codes;
    if (c == NULL) return;
    device_free(n->backend, c->scales);
    for (int i = 0; i < NUM_TENSORS; ++i)
        device_free(n->backend, c->codes[i]);
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        device_free(n->backend, c->weights[i]);
        device_free(n->backend, c->weight_scales[i]);
    }
    free(c);
    n->codes = NULL;
}

bool segment_codes_measure(segment_network *n)
{
    segment_codes *c = n->codes;
    for (int i = 0; i < NUM_TENSORS; ++i) {
        int32_t rows = 0;
        float scale = 0.0f, *measured = c->scales + NUM_TENSORS;
        if (!took(n, spops_context_wait_sync(n->ctx))) return false;
        if (!device_download(n->backend, &rows, n->num_rows[level_of(n, i)], sizeof rows))
            return fail(n, device_error());
        const spops_matrix x =
            spops_matrix_dense_const(data_of(n, i), rows, cols_of(n, i), n->dtype);
        if (!took(n, spops_quantize_scale_execute(n->ctx, x, c->dtype, measured)) ||
            !took(n, spops_context_wait_sync(n->ctx)))
            return false;
        if (!device_download(n->backend, &scale, measured, sizeof scale))
            return fail(n, device_error());
        if (rows > 0 && scale > c->ranges[i]) c->ranges[i] = scale;
    }
    return true;
}

/* scale and shift of a layer's norm with its running statistics, after the scales of its weights. */
static bool fold_norm(segment_network *n, int at)
{
    const segment_layer *l = &n->layers[at];
    const int64_t num = l->out_cols;
    float norm[2 * 1024], statistics[2 * 1024], folded[2 * 1024];
    if (!device_download(n->backend, norm, n->parameters + l->norm_at,
                         (size_t)(2 * num) * sizeof *norm) ||
        !device_download(n->backend, statistics, n->statistics + l->statistic_at,
                         (size_t)(2 * num) * sizeof *statistics))
        return fail(n, device_error());
    for (int64_t o = 0; o < num; ++o) {
        folded[o] = norm[o] / sqrtf(statistics[num + o] + 1e-5f);
        folded[num + o] = norm[num + o] - statistics[o] * folded[o];
    }
    return device_upload(n->backend, n->codes->weight_scales[at] + num, folded,
                         (size_t)(2 * num) * sizeof *folded) ||
           fail(n, device_error());
}

bool segment_codes_begin(segment_network *n)
{
    segment_codes *c = n->codes;
    if (!device_upload(n->backend, c->scales, c->ranges, sizeof c->ranges))
        return fail(n, device_error());
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        const segment_layer *l = &n->layers[i];
        const spops_matrix w =
            spops_matrix_dense(n->parameters + l->weights_at, (int64_t)l->num_taps * l->in_cols,
                               l->out_cols, SPOPS_DTYPE_F32);
        const spops_matrix q = spops_matrix_dense(c->weights[i], (int64_t)l->num_taps * l->out_cols,
                                                  padded(l), c->dtype);
        if (!took(n, spops_quantize_weights_execute(n->ctx, w, l->num_taps, 0, q,
                                                    c->weight_scales[i])) ||
            !took(n, spops_context_wait_sync(n->ctx)) || (l->norm && !fold_norm(n, i)))
            return false;
    }
    c->runs = true;
    return true;
}

bool segment_codes_run(const segment_network *n)
{
    return n->codes != NULL && n->codes->runs;
}

static spops_matrix codes_of(const segment_network *n, int tensor)
{
    return spops_matrix_dense(n->codes->codes[tensor], n->capacity.rows[level_of(n, tensor)],
                              cols_of(n, tensor), n->codes->dtype);
}

bool segment_codes_layer(segment_network *n, int at, const void *x, const void *residual)
{
    const segment_codes *c = n->codes;
    const segment_layer *l = &n->layers[at];
    const int from = tensor_of(n, x), across = tensor_of(n, residual), to = 1 + at;
    const spops_matrix added = codes_of(n, across);
    const bool last = at == SEGMENT_NUM_LAYERS - 1;
    const spops_matrix out = last ? spops_matrix_dense(n->after[at], n->capacity.rows[l->out_level],
                                                       l->out_cols, SPOPS_DTYPE_F32)
                                  : codes_of(n, to);
    spops_quantized_layer layer = spops_quantized_layer_default();
    if (from == 0 &&
        !took(n, spops_quantize_execute(n->ctx,
                                        spops_matrix_dense(n->voxel_features, n->capacity.rows[0],
                                                           SEGMENT_FEATURES, SPOPS_DTYPE_F32),
                                        c->scales, codes_of(n, 0), NULL)))
        return false;
    layer.x_scale = c->scales + from;
    layer.w_scales = c->weight_scales[at];
    if (l->norm) {
        layer.scale = c->weight_scales[at] + l->out_cols;
        layer.shift = layer.scale + l->out_cols;
        layer.activation = SPOPS_ACTIVATION_RELU;
    }
    if (residual != NULL) {
        layer.residual = &added;
        layer.residual_scale = c->scales + across;
    }
    if (!last) layer.out_scale = c->scales + to;
    return took(n, spops_sparseconv_execute_quantized(
                       n->ctx, n->convs[l->relation][l->level], codes_of(n, from),
                       spops_matrix_dense(c->weights[at], (int64_t)l->num_taps * l->out_cols,
                                          padded(l), c->dtype),
                       &layer, out));
}
