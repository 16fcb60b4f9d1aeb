// SPDX-License-Identifier: Apache-2.0
#include "flash3d/transformer.h"

#include "networks/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Parameters ------------------------------------------------------------------------------- */

int parameter_draw(const device *d, parameter *p, int64_t rows, int64_t cols, spops_dtype dtype,
                   float low, float high, uint64_t seed)
{
    const size_t count = (size_t)(rows * cols), bytes = count * spops_dtype_bytes(dtype);
    void *narrow = malloc(bytes);
    int failed;

    p->rows = rows, p->cols = cols, p->dtype = dtype;
    p->host = malloc(count * sizeof *p->host);
    p->data = device_alloc(d, bytes);
    failed = narrow == NULL || p->host == NULL || p->data == NULL;
    for (size_t i = 0; i < count && !failed; ++i)
        p->host[i] = drawn_number(seed * 0x100000001b3u + i, low, high);
    if (failed)
        fprintf(stderr, "parameters: out of memory\n");
    else
        failed = device_convert(d, SPOPS_DTYPE_F32, p->host, dtype, narrow, count) ||
                 device_convert(d, dtype, narrow, SPOPS_DTYPE_F32, p->host, count) ||
                 device_upload(d, p->data, narrow, bytes);
    free(narrow);
    return failed;
}

void parameter_free(const device *d, parameter *p)
{
    free(p->host);
    device_free(d, p->data);
}

spops_matrix parameter_matrix(const parameter *p)
{
    return spops_matrix_dense(p->data, p->rows, p->cols, p->dtype);
}

/* ---- Rows of a stage -------------------------------------------------------------------------- */

static int make_matrix(const device *d, spops_matrix *m, int64_t rows, int64_t cols,
                       spops_dtype dtype)
{
    *m = spops_matrix_dense(device_alloc(d, (size_t)(rows * cols) * spops_dtype_bytes(dtype)), rows,
                            cols, dtype);
    return m->data == NULL;
}

int rows_create(const device *d, stage_rows *r, int64_t rows, int64_t channels, spops_dtype dtype)
{
    r->rows = rows, r->channels = channels, r->dtype = dtype;
    return make_matrix(d, &r->coords, rows, 3, SPOPS_DTYPE_F32) ||
           make_matrix(d, &r->x, rows, channels, dtype) ||
           make_matrix(d, &r->normed, rows, channels, dtype) ||
           make_matrix(d, &r->wide, rows, WIDER * channels, dtype);
}

void rows_destroy(const device *d, stage_rows *r)
{
    device_free(d, r->coords.data);
    device_free(d, r->x.data);
    device_free(d, r->normed.data);
    device_free(d, r->wide.data);
}

/* ---- A block ---------------------------------------------------------------------------------- */

int block_create(const device *d, block *b, int64_t channels, spops_dtype dtype, uint64_t seed)
{
    const int64_t c = channels, wide = WIDER * channels;
    const float spread = sqrtf(3.0f / (float)channels);
    const float wide_spread = sqrtf(3.0f / (float)wide);

    b->channels = channels;
    for (int i = 0; i < 2; ++i)
        if (parameter_draw(d, &b->gamma[i], 1, c, SPOPS_DTYPE_F32, 0.8f, 1.2f,
                           seed + (uint64_t)i) ||
            parameter_draw(d, &b->beta[i], 1, c, SPOPS_DTYPE_F32, -0.1f, 0.1f,
                           seed + 2 + (uint64_t)i))
            return 1;
    return parameter_draw(d, &b->qkv, c, 3 * c, dtype, -spread, spread, seed + 4) ||
           parameter_draw(d, &b->projection, c, c, dtype, -spread, spread, seed + 5) ||
           parameter_draw(d, &b->up, c, wide, dtype, -spread, spread, seed + 6) ||
           parameter_draw(d, &b->down, wide, c, dtype, -wide_spread, wide_spread, seed + 7) ||
           parameter_draw(d, &b->bias, 1, wide, SPOPS_DTYPE_F32, -0.1f, 0.1f, seed + 8);
}

void block_destroy(const device *d, block *b)
{
    parameter *all[] = {&b->gamma[0],   &b->gamma[1], &b->beta[0], &b->beta[1], &b->qkv,
                        &b->projection, &b->up,       &b->down,    &b->bias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        parameter_free(d, all[i]);
}

spops_matrix columns(spops_matrix m, int64_t first, int64_t cols)
{
    m.data = (char *)m.data + (size_t)first * spops_dtype_bytes(m.dtype);
    m.cols = cols;
    return m;
}

spops_status product(const device *d, spops_matrix x, const parameter *w, spops_matrix out)
{
    return spops_linear_execute(d->ctx, x, parameter_matrix(w), NULL, out);
}

static spops_status add_product(const device *d, spops_matrix x, const parameter *w,
                                spops_matrix out)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.residual = &out;
    return spops_linear_execute(d->ctx, x, parameter_matrix(w), &layer, out);
}

spops_attention_options attention_options(const stage_rows *r, spops_attention_rotary *rotary)
{
    spops_attention_options o = spops_attention_options_default();
    *rotary = spops_attention_rotary_default();
    rotary->coords = r->coords;
    rotary->base = 100.0f;
    rotary->axis_dim = AXIS_DIM;
    o.heads = (int32_t)(r->channels / HEAD_DIM);
    o.rotary = rotary;
    return o;
}

static spops_status normalise(const device *d, const block *b, const stage_rows *r, int which)
{
    return spops_layernorm_execute(d->ctx, r->x, b->gamma[which].data, b->beta[which].data, NULL,
                                   r->normed);
}

spops_status block_enqueue(const device *d, const block *b, const stage_rows *r,
                           const spops_patches *patches, int parts)
{
    const int64_t c = r->channels;
    /* Rows of Q, K and V side by side, as one product gives them. */
    const spops_matrix qkv = spops_matrix_dense(r->wide.data, r->rows, 3 * c, r->dtype);
    spops_attention_rotary rotary;
    const spops_attention_options attention = attention_options(r, &rotary);
    spops_conv_layer up = spops_conv_layer_default();
    up.bias = b->bias.data;
    up.activation = SPOPS_ACTIVATION_RELU;

    if (parts & NORMS) PASS(normalise(d, b, r, 0));
    if (parts & ATTENTION) {
        PASS(product(d, r->normed, &b->qkv, qkv));
        PASS(spops_attention_execute(d->ctx, patches, columns(qkv, 0, c), columns(qkv, c, c),
                                     columns(qkv, 2 * c, c), &attention, r->normed, NULL));
        PASS(add_product(d, r->normed, &b->projection, r->x));
    }
    if (parts & NORMS) PASS(normalise(d, b, r, 1));
    if (parts & FEED_FORWARD) {
        PASS(spops_linear_execute(d->ctx, r->normed, parameter_matrix(&b->up), &up, r->wide));
        PASS(add_product(d, r->wide, &b->down, r->x));
    }
    return SPOPS_STATUS_OK;
}
