// SPDX-License-Identifier: Apache-2.0
/* The block: parameters, plans, memory and work. */
#include "dit_block/block.h"

#include "decoder/surface.h"
#include "networks/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) DEVICE_TRY(b->d, call)

int linear_in(const block *b, int i)
{
    return i == CROSS_KV ? b->s.context_channels : i == NARROW ? b->hidden : b->channels;
}

int linear_out(const block *b, int i)
{
    return i == QKV        ? 3 * b->channels
           : i == CROSS_KV ? 2 * b->channels
           : i == WIDEN    ? b->hidden
                           : b->channels;
}

int vector_length(const block *b, int i)
{
    return i >= Q_WEIGHT ? b->s.heads * b->s.dim : b->channels;
}

/* ---- Making it -------------------------------------------------------------------------------- */

/* Drawn numbers of -spread to spread, in the dtype of m. */
static int draw(const block *b, spops_matrix *m, int64_t rows, int64_t cols, double spread,
                uint64_t seed)
{
    const size_t n = (size_t)(rows * cols), bytes = n * spops_dtype_bytes(b->dtype);
    float *values = (float *)malloc(n * sizeof *values);
    void *narrow = malloc(bytes);
    int failed = values == NULL || narrow == NULL;

    *m = spops_matrix_dense(device_alloc(b->d, bytes), rows, cols, b->dtype);
    for (size_t i = 0; i < n && !failed; ++i)
        values[i] = drawn_number((seed << 40) + i, -(float)spread, (float)spread);
    failed = failed || m->data == NULL ||
             device_convert(b->d, SPOPS_DTYPE_F32, values, b->dtype, narrow, n) ||
             device_upload(b->d, m->data, narrow, bytes);
    free(values);
    free(narrow);
    return failed;
}

/* Of n numbers near `middle`. */
static int draw_vector(const block *b, float **v, int n, float middle, uint64_t seed)
{
    float *values = (float *)malloc((size_t)n * sizeof *values);
    int failed = values == NULL;

    *v = (float *)device_alloc(b->d, (size_t)n * sizeof *values);
    for (int i = 0; i < n && !failed; ++i)
        values[i] = drawn_number((seed << 40) + (uint64_t)i, middle - 0.1f, middle + 0.1f);
    failed = failed || *v == NULL || device_upload(b->d, *v, values, (size_t)n * sizeof *values);
    free(values);
    return failed;
}

static int create_parameters(block *b)
{
    static const float middles[NUM_VECTORS] = {1, 0, 0.5f, 1, 0, 1, 0, 0.5f, 1, 1, 1, 1};
    for (int i = 0; i < NUM_LINEAR; ++i) {
        const int in = linear_in(b, i), out = linear_out(b, i);
        if (draw(b, &b->w[i], in, out, sqrt(3.0 / in), (uint64_t)i + 1) ||
            draw_vector(b, &b->bias[i], out, 0, (uint64_t)i + 100))
            return 1;
    }
    for (int i = 0; i < NUM_VECTORS; ++i)
        if (draw_vector(b, &b->vectors[i], vector_length(b, i), middles[i], (uint64_t)i + 200))
            return 1;
    return 0;
}

/* Tokens are cells of a surface. */
static int create_coords(block *b)
{
    const size_t bytes = (size_t)b->s.tokens * 3 * sizeof(int32_t);
    int64_t n = 0;
    int32_t *rows = surface_rows(b->s.size, &n), *xyz = (int32_t *)malloc(bytes);
    int failed = rows == NULL || xyz == NULL;

    if (!failed && n < b->s.tokens) {
        fprintf(stderr, "a grid of %d^3 has %lld cells on the surface, expected %lld\n", b->s.size,
                (long long)n, (long long)b->s.tokens);
        failed = 1;
    }
    for (int64_t i = 0; i < b->s.tokens && !failed; ++i)
        memcpy(xyz + 3 * i, rows + 4 * i + 1, 3 * sizeof *xyz);
    b->coords = (int32_t *)device_alloc(b->d, bytes);
    failed = failed || b->coords == NULL || device_upload(b->d, b->coords, xyz, bytes);
    free(rows);
    free(xyz);
    return failed;
}

static int upload_pair(const block *b, int32_t **to, int32_t last)
{
    const int32_t pair[2] = {0, last};
    *to = (int32_t *)device_alloc(b->d, sizeof pair);
    return *to == NULL || device_upload(b->d, *to, pair, sizeof pair);
}

/* One patch: every token is a query, and meets every token, or every row of the image. */
static int create_plans(block *b)
{
    int32_t *queries = NULL, *keys = NULL;
    spops_patch_lists lists;
    spops_status status = SPOPS_STATUS_OUT_OF_MEMORY;

    memset(&lists, 0, sizeof lists);
    if (!upload_pair(b, &queries, (int32_t)b->s.tokens) &&
        !upload_pair(b, &keys, (int32_t)b->s.context)) {
        lists.num_patches = 1;
        lists.query_offsets = queries;
        status = spops_patches_create(b->d->ctx, b->s.tokens, &lists, &b->self);
        lists.key_offsets = keys;
        lists.num_key_rows = b->s.context;
        if (status == SPOPS_STATUS_OK)
            status = spops_patches_create(b->d->ctx, b->s.tokens, &lists, &b->cross);
    }
    device_free(b->d, queries);
    device_free(b->d, keys);
    TRY(status);
    return 0;
}

static spops_matrix weight_of(const block *b, int i)
{
    return spops_matrix_dense(b->vectors[i], b->s.heads, b->s.dim, SPOPS_DTYPE_F32);
}

static spops_attention_options options_of(const block *b, int cross)
{
    spops_attention_options o = spops_attention_options_default();
    o.heads = b->s.heads;
    o.norm = cross ? &b->cross_norm : &b->norm;
    o.rotary = cross ? NULL : &b->rotary;
    return o;
}

static int reserve(block *b)
{
    const spops_attention_options self = options_of(b, 0), cross = options_of(b, 1);
    const int64_t c = b->channels;
    const int64_t rows = b->s.tokens > b->s.context ? b->s.tokens : b->s.context;
    TRY(spops_attention_reserve(b->d->ctx, b->self, c, b->dtype, &self, 0));
    TRY(spops_attention_reserve(b->d->ctx, b->cross, c, b->dtype, &cross, 0));
    TRY(spops_linear_reserve(b->d->ctx, rows, b->hidden, b->hidden, 0));
    return 0;
}

static spops_matrix take(const block *b, int64_t rows, int64_t cols)
{
    const size_t bytes = (size_t)(rows * cols) * spops_dtype_bytes(b->dtype);
    return spops_matrix_dense(device_alloc(b->d, bytes), rows, cols, b->dtype);
}

int block_create(block *b, const device *d, const shape *s, spops_dtype dtype)
{
    const int64_t n = s->tokens;
    int c;

    memset(b, 0, sizeof *b);
    b->d = d;
    b->s = *s;
    b->dtype = dtype;
    b->channels = c = s->heads * s->dim;
    b->hidden = c * 16 / 3 / 8 * 8;
    b->x = take(b, n, c);
    b->h = take(b, n, c);
    b->o = take(b, n, c);
    b->qkv = take(b, n, 3 * c);
    b->kv = take(b, s->context, 2 * c);
    b->wide = take(b, n, b->hidden);
    if (b->x.data == NULL || b->h.data == NULL || b->o.data == NULL || b->qkv.data == NULL ||
        b->kv.data == NULL || b->wide.data == NULL || create_coords(b) || create_plans(b) ||
        create_parameters(b) || draw(b, &b->input, n, c, 1, 300) ||
        draw(b, &b->context, s->context, s->context_channels, 1, 301))
        return 1;
    b->rotary = spops_attention_rotary_default();
    b->rotary.coords = spops_matrix_dense(b->coords, n, 3, SPOPS_DTYPE_I32);
    b->rotary.axis_dim = s->dim / 6 * 2; /* the columns of a head that are left over stay */
    b->norm = b->cross_norm = spops_attention_norm_default();
    b->norm.q_weight = weight_of(b, Q_WEIGHT);
    b->norm.k_weight = weight_of(b, K_WEIGHT);
    b->cross_norm.q_weight = weight_of(b, CROSS_Q_WEIGHT);
    b->cross_norm.k_weight = weight_of(b, CROSS_K_WEIGHT);
    return reserve(b);
}

void block_destroy(block *b)
{
    const spops_matrix all[] = {b->x, b->input, b->context, b->h, b->qkv, b->o, b->kv, b->wide};
    spops_patches_destroy(b->self);
    spops_patches_destroy(b->cross);
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        device_free(b->d, all[i].data);
    for (int i = 0; i < NUM_LINEAR; ++i) {
        device_free(b->d, b->w[i].data);
        device_free(b->d, b->bias[i]);
    }
    for (int i = 0; i < NUM_VECTORS; ++i)
        device_free(b->d, b->vectors[i]);
    device_free(b->d, b->coords);
}

/* ---- Its work --------------------------------------------------------------------------------- */

/* gate NULL: 1. */
static spops_status enqueue_linear(block *b, int i, spops_matrix x, const float *gate,
                                   const spops_matrix *residual, spops_activation activation,
                                   spops_matrix out)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.bias = b->bias[i];
    layer.scale = gate;
    layer.residual = residual;
    layer.activation = activation;
    return spops_linear_execute(b->d->ctx, x, b->w[i], &layer, out);
}

/* Modulation is the norm's gamma, 1 + scale, and its beta, shift. */
static spops_status enqueue_norm(block *b, spops_matrix x, int gamma, int beta)
{
    spops_norm_options o = spops_norm_options_default();
    o.epsilon = (float)NORM_EPSILON;
    return spops_layernorm_execute(b->d->ctx, x, b->vectors[gamma], b->vectors[beta], &o, b->h);
}

static spops_status enqueue_attention(block *b, int cross)
{
    const spops_attention_options o = options_of(b, cross);
    const int64_t c = b->channels;
    const spops_matrix q = cross ? b->o : spops_matrix_columns(b->qkv, 0, c);
    const spops_matrix k =
        cross ? spops_matrix_columns(b->kv, 0, c) : spops_matrix_columns(b->qkv, c, c);
    const spops_matrix v =
        cross ? spops_matrix_columns(b->kv, c, c) : spops_matrix_columns(b->qkv, 2 * c, c);
    return spops_attention_execute(b->d->ctx, cross ? b->cross : b->self, q, k, v, &o,
                                   cross ? b->h : b->o, NULL);
}

spops_status block_enqueue_part(block *b, int part)
{
    static const spops_activation none = SPOPS_ACTIVATION_NONE;
    const float *gate1 = b->vectors[GATE1], *gate3 = b->vectors[GATE3];
    switch (part) {
    case PART_NORMS1: return enqueue_norm(b, b->input, GAMMA1, BETA1);
    case PART_QKV: return enqueue_linear(b, QKV, b->h, NULL, NULL, none, b->qkv);
    case PART_SELF: return enqueue_attention(b, 0);
    case PART_OUT: return enqueue_linear(b, OUT, b->o, gate1, &b->input, none, b->x);
    case PART_NORMS2: return enqueue_norm(b, b->x, GAMMA2, BETA2);
    case PART_CROSS_Q: return enqueue_linear(b, CROSS_Q, b->h, NULL, NULL, none, b->o);
    case PART_CROSS_KV: return enqueue_linear(b, CROSS_KV, b->context, NULL, NULL, none, b->kv);
    case PART_CROSS: return enqueue_attention(b, 1);
    case PART_CROSS_OUT: return enqueue_linear(b, CROSS_OUT, b->h, NULL, &b->x, none, b->x);
    case PART_NORMS3: return enqueue_norm(b, b->x, GAMMA3, BETA3);
    case PART_WIDEN:
        return enqueue_linear(b, WIDEN, b->h, NULL, NULL, SPOPS_ACTIVATION_GELU_TANH, b->wide);
    case PART_NARROW: return enqueue_linear(b, NARROW, b->wide, gate3, &b->x, none, b->x);
    default: break;
    }
    return SPOPS_STATUS_OK;
}

spops_status block_enqueue(void *user)
{
    for (int part = 0; part < NUM_PARTS; ++part)
        PASS(block_enqueue_part((block *)user, part));
    return SPOPS_STATUS_OK;
}

/* ---- What it holds ---------------------------------------------------------------------------- */

double *block_download(const block *b, spops_matrix m)
{
    const size_t n = (size_t)(m.rows * m.cols), bytes = n * spops_dtype_bytes(m.dtype);
    float *values = (float *)malloc(n * sizeof *values);
    double *wide = (double *)malloc(n * sizeof *wide);
    void *narrow = malloc(bytes);
    const int failed = values == NULL || wide == NULL || narrow == NULL ||
                       device_download(b->d, narrow, m.data, bytes) ||
                       device_convert(b->d, m.dtype, narrow, SPOPS_DTYPE_F32, values, n);
    for (size_t i = 0; i < n && !failed; ++i)
        wide[i] = (double)values[i];
    free(values);
    free(narrow);
    if (!failed) return wide;
    free(wide);
    return NULL;
}

double *block_download_vector(const block *b, const float *v, int n)
{
    return block_download(b, spops_matrix_dense_const(v, 1, n, SPOPS_DTYPE_F32));
}
