// SPDX-License-Identifier: Apache-2.0
/* Sets, maps, plans, memory, and the work of a frame. */
#include "decoder/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) DEVICE_TRY(e->d, call)

static size_t element_bytes(const engine *e)
{
    return spops_dtype_bytes(e->o.dtype);
}

/* ---- Where features lie ----------------------------------------------------------------------- */

static void need(engine *e, int level, feature_kind kind, int64_t rows, int cols, int i)
{
    features *f = &e->features[level][kind];
    if (f->first < 0) f->first = i;
    f->last = i;
    f->rows = rows;
    f->cols = cols;
    f->bytes = ((size_t)rows * (size_t)cols * element_bytes(e) + 255) / 256 * 256;
}

/* Rows of an MLP at a time. */
static int64_t slice_rows(const engine *e, int level)
{
    const int64_t most = e->o.max_rows[level], rows = e->o.slice_rows;
    return rows <= 0 || rows > most ? most : rows;
}

/* Which features operation i reads and writes. */
static void note_needs(engine *e, int i)
{
    const op *o = &e->net->ops[i];
    const int l = o->level, c = e->net->channels[l];
    const int64_t rows = e->o.max_rows[l];

    switch (o->kind) {
    case OP_SET:
    case OP_MAP:
    case OP_CHILDREN: break;
    case OP_LATENT:
    case OP_LOGITS: need(e, l, X, rows, c, i); break;
    case OP_NORM:
    case OP_FINE_NORM: need(e, l, H, rows, c, i); break;
    case OP_MLP: need(e, l, HIDDEN, slice_rows(e, l), 4 * c, i); /* fall through */
    case OP_CONV:
    case OP_UP_NORM:
    case OP_FINE_CONV:
    case OP_OUTPUT:
        need(e, l, X, rows, c, i);
        need(e, l, H, rows, c, i);
        break;
    case OP_UP_CONV:
        need(e, l, H, rows, c, i);
        need(e, l, U, rows, CHILDREN * e->net->channels[l + 1], i);
        break;
    case OP_TO_SPACE:
        need(e, l - 1, X, e->o.max_rows[l - 1], e->net->channels[l - 1], i);
        need(e, l - 1, U, e->o.max_rows[l - 1], CHILDREN * c, i);
        need(e, l, H, rows, c, i);
        need(e, l, S, rows, e->net->channels[l - 1] / CHILDREN, i);
        break;
    case OP_SKIP:
        need(e, l, X, rows, c, i);
        need(e, l, S, rows, e->net->channels[l - 1] / CHILDREN, i);
        break;
    }
}

static int together(const features *a, const features *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest place of f where it meets none of the others that have one. */
static void place(features *const *placed, int num_placed, features *f)
{
    f->at = 0;
    for (int i = 0; i < num_placed; ++i) {
        const features *g = placed[i];
        if (!together(f, g) || f->at >= g->at + g->bytes || g->at >= f->at + f->bytes) continue;
        f->at = g->at + g->bytes;
        i = -1; /* and from the first again */
    }
}

/* The largest first. Returns the bytes of the block. */
static size_t plan_features(engine *e)
{
    features *all[LEVELS * NUM_FEATURES];
    size_t end = 0;
    int n = 0;

    for (int l = 0; l < LEVELS; ++l)
        for (int k = 0; k < NUM_FEATURES; ++k)
            e->features[l][k].first = -1;
    for (int i = 0; i < e->net->num_ops; ++i)
        note_needs(e, i);
    for (int l = 0; l < LEVELS; ++l)
        for (int k = 0; k < NUM_FEATURES; ++k) {
            features *f = &e->features[l][k];
            int at = n;
            if (f->first < 0) continue;
            for (; at > 0 && all[at - 1]->bytes < f->bytes; --at)
                all[at] = all[at - 1];
            all[at] = f;
            ++n;
        }
    for (int i = 0; i < n; ++i) {
        place(all, i, all[i]);
        if (all[i]->at + all[i]->bytes > end) end = all[i]->at + all[i]->bytes;
    }
    return end;
}

/* ---- Memory ----------------------------------------------------------------------------------- */

size_t memory_total(const memory_use *use)
{
    return use->weights + use->features + use->frame + use->sets + use->maps + use->plans +
           use->scratch;
}

static int refuse_too_much(const engine *e)
{
    const size_t total = memory_total(&e->use);
    if (e->o.memory_limit == 0 || total <= e->o.memory_limit) return 0;
    fprintf(stderr, "decoder: needs %.2f GB on the device or more, the limit is %.2f GB\n",
            1e-9 * (double)total, 1e-9 * (double)e->o.memory_limit);
    return 1;
}

static size_t weights_bytes(const engine *e)
{
    size_t bytes = 0;
    for (int i = 0; i < e->net->num_layers; ++i) {
        const layer *l = &e->net->layers[i];
        bytes += (size_t)layer_num_weights(l) * element_bytes(e) + 8 * (size_t)l->out;
    }
    return bytes;
}

static size_t frame_bytes(const engine *e)
{
    size_t bytes = (size_t)e->o.max_rows[0] * (16 + LATENT_CHANNELS * element_bytes(e)) +
                   (size_t)e->o.max_rows[LEVELS - 1] * OUTPUT_CHANNELS * element_bytes(e);
    for (int l = 0; l + 1 < LEVELS; ++l)
        bytes +=
            (size_t)e->o.max_rows[l] * CHILDREN * (4 + 1 + (e->o.shape == SHAPE_GIVEN ? 1 : 0));
    return bytes;
}

static void *take_block(engine *e, size_t bytes)
{
    return e->blocks[e->num_blocks++] = device_alloc(e->d, bytes);
}

/* ---- Plans ------------------------------------------------------------------------------------ */

/* With memory.block NULL these say how many bytes the plan takes, and make none. */
static int reserve_set(engine *e, int level, spops_plan_memory *memory)
{
    spops_coords_options options = spops_coords_options_default();
    spops_coords_box box;
    const int64_t items = level == 0 ? e->o.max_rows[0] : CHILDREN * e->o.max_rows[level - 1];

    memset(&box, 0, sizeof box);
    for (int a = 1; a < 4; ++a)
        box.upper[a] = (e->o.size >> (LEVELS - 1 - level)) - 1;
    options.box = &box;
    options.memory = memory;
    TRY(spops_coords_reserve(e->d->ctx, 3, e->o.max_rows[level], items, &options, &e->sets[level]));
    return 0;
}

static int reserve_map(engine *e, int level, spops_plan_memory *memory)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options options = spops_kernel_map_options_default();

    options.contents = e->implicit_gemm ? SPOPS_MAP_ORDER : SPOPS_MAP_FOR_CONV;
    options.memory = memory;
    TRY(spops_kernel_map_reserve(e->d->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, e->sets[level], NULL,
                                 &options, &e->maps[level]));
    return 0;
}

static int reserve_conv(engine *e, int level, spops_plan_memory *memory)
{
    spops_sparseconv_options options = spops_sparseconv_options_default();

    options.memory = memory;
    options.max_in_channels = e->net->channels[level];
    options.max_out_channels =
        level + 1 < LEVELS ? CHILDREN * e->net->channels[level + 1] : e->net->channels[level];
    if (e->implicit_gemm) options.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    TRY(spops_sparseconv_create(e->d->ctx, e->maps[level], &options, &e->convs[level]));
    return 0;
}

typedef int (*reserve_function)(engine *e, int level, spops_plan_memory *memory);

/* A plan for every level, if all of them fit. */
static int reserve_all(engine *e, reserve_function reserve, size_t *use)
{
    spops_plan_memory memory[LEVELS];

    for (int l = 0; l < LEVELS; ++l) {
        memory[l] = spops_plan_memory_default();
        if (reserve(e, l, &memory[l])) return 1;
        *use += memory[l].bytes;
    }
    if (refuse_too_much(e)) return 1;
    for (int l = 0; l < LEVELS; ++l) {
        memory[l].block = take_block(e, memory[l].bytes);
        if (memory[l].block == NULL || reserve(e, l, &memory[l])) return 1;
    }
    return 0;
}

static int create_plans(engine *e)
{
    size_t scratch = 0;

    if (reserve_all(e, reserve_set, &e->use.sets) || reserve_all(e, reserve_map, &e->use.maps) ||
        reserve_all(e, reserve_conv, &e->use.plans))
        return 1;
    for (int l = 0; l < LEVELS; ++l) {
        const spops_plan *const plans[] = {(spops_plan *)e->sets[l], (spops_plan *)e->maps[l],
                                           (spops_plan *)e->convs[l]};
        spops_coords_view view = spops_coords_view_default();
        for (int i = 0; i < 3; ++i)
            if (spops_plan_scratch_bytes(plans[i]) > scratch)
                scratch = spops_plan_scratch_bytes(plans[i]);
        TRY(spops_coords_get_view(e->d->ctx, e->sets[l], &view));
        e->num_rows[l] = view.num_rows;
    }
    e->use.scratch = spops_context_scratch_memory(scratch);
    return refuse_too_much(e);
}

/* ---- Parameters ------------------------------------------------------------------------------- */

static int upload_vector(engine *e, const float *values, int n, float **to)
{
    *to = (float *)device_alloc(e->d, (size_t)n * sizeof *values);
    return *to == NULL || device_upload(e->d, *to, values, (size_t)n * sizeof *values);
}

static int convert_weights(void *user, spops_dtype dtype, const void *stored, float *values,
                           int64_t num)
{
    const engine *e = (const engine *)user;
    return device_convert(e->d, dtype, stored, SPOPS_DTYPE_F32, values, (size_t)num);
}

static int upload_layer(engine *e, int i)
{
    const layer *l = &e->net->layers[i];
    const size_t n = (size_t)layer_num_weights(l), out = (size_t)l->out;
    float *values = (float *)malloc((n + 2 * out) * sizeof *values);
    void *narrow = malloc(n * element_bytes(e) + 1);
    int failed = values == NULL || narrow == NULL;

    if (!failed) {
        if (e->o.weights == NULL || l->kind == LAYER_REPEAT)
            network_draw(e->net, i, values, values + n, values + n + out);
        else
            failed = weights_read(convert_weights, e, e->o.weights, e->net, i, values, values + n,
                                  values + n + out);
        if (l->kind != LAYER_NORM && !failed) {
            e->weights[i] = device_alloc(e->d, n * element_bytes(e));
            failed = e->weights[i] == NULL ||
                     device_convert(e->d, SPOPS_DTYPE_F32, values, e->o.dtype, narrow, n) ||
                     device_upload(e->d, e->weights[i], narrow, n * element_bytes(e));
        }
        if (l->kind != LAYER_REPEAT)
            failed = failed || upload_vector(e, values + n, l->out, &e->vectors[i][0]);
        if (l->kind == LAYER_NORM)
            failed = failed || upload_vector(e, values + n + out, l->out, &e->vectors[i][1]);
    }
    free(values);
    free(narrow);
    return failed;
}

/* ---- An engine -------------------------------------------------------------------------------- */

static int take_frame(engine *e)
{
    const float least = 1e-30f;
    const size_t coarse = (size_t)e->o.max_rows[0], fine = (size_t)e->o.max_rows[LEVELS - 1];
    int failed;

    e->count = (int32_t *)device_alloc(e->d, sizeof *e->count);
    e->rows = (int32_t *)device_alloc(e->d, coarse * 4 * sizeof *e->rows);
    e->latents = device_alloc(e->d, coarse * LATENT_CHANNELS * element_bytes(e));
    e->out = device_alloc(e->d, fine * OUTPUT_CHANNELS * element_bytes(e));
    e->threshold = (float *)device_alloc(e->d, sizeof *e->threshold);
    failed = e->count == NULL || e->rows == NULL || e->latents == NULL || e->out == NULL ||
             e->threshold == NULL || device_upload(e->d, e->threshold, &least, sizeof least);
    for (int l = 0; l + 1 < LEVELS && !failed; ++l) {
        const size_t n = (size_t)e->o.max_rows[l] * CHILDREN;
        e->logits[l] = (float *)device_alloc(e->d, n * sizeof *e->logits[l]);
        e->predicted[l] = (uint8_t *)device_alloc(e->d, n);
        failed = e->logits[l] == NULL || e->predicted[l] == NULL;
        if (e->o.shape == SHAPE_PREDICTED) continue;
        e->given[l] = (uint8_t *)device_alloc(e->d, n);
        failed |= e->given[l] == NULL;
    }
    return failed;
}

int engine_create(engine *e, const device *d, const network *net, const engine_options *o)
{
    const memory_use *use = &e->use;
    spops_device_info info = spops_device_info_default();

    memset(e, 0, sizeof *e);
    e->d = d;
    e->net = net;
    e->o = *o;
    TRY(spops_context_get_device_info(d->ctx, &info));
    e->implicit_gemm = o->dtype == SPOPS_DTYPE_F16 && info.compute_capability >= 80;
    e->use.weights = weights_bytes(e);
    e->use.features = plan_features(e);
    e->use.frame = frame_bytes(e);
    if (refuse_too_much(e) || create_plans(e)) return 1;
    printf("  memory: %.2f GB (weights %.2f, features %.2f, frame and output %.2f, sets %.2f, maps "
           "%.2f, plans %.2f, scratch %.2f)\n",
           1e-9 * (double)memory_total(use), 1e-9 * (double)use->weights,
           1e-9 * (double)use->features, 1e-9 * (double)use->frame, 1e-9 * (double)use->sets,
           1e-9 * (double)use->maps, 1e-9 * (double)use->plans, 1e-9 * (double)use->scratch);
    fflush(stdout);
    e->feature_block = (char *)device_alloc(d, use->features);
    if (e->feature_block == NULL || take_frame(e)) return 1;
    if (use->scratch > 0) {
        e->scratch = device_alloc(d, use->scratch);
        if (e->scratch == NULL) return 1;
        TRY(spops_context_set_scratch(d->ctx, e->scratch, use->scratch));
    }
    TRY(spops_linear_reserve(d->ctx, 128, 128, 128, 0)); /* loads kernels */
    for (int i = 0; i < net->num_layers; ++i)
        if (upload_layer(e, i)) return 1;
    return 0;
}

void engine_destroy(engine *e)
{
    for (int l = 0; l < LEVELS; ++l) {
        spops_sparseconv_destroy(e->convs[l]);
        spops_kernel_map_destroy(e->maps[l]);
        spops_coords_destroy(e->sets[l]);
        device_free(e->d, e->logits[l]);
        device_free(e->d, e->predicted[l]);
        device_free(e->d, e->given[l]);
    }
    if (e->scratch != NULL) spops_context_set_scratch(e->d->ctx, NULL, 0);
    device_free(e->d, e->scratch);
    for (int i = 0; i < e->num_blocks; ++i)
        device_free(e->d, e->blocks[i]);
    for (int i = 0; i < MAX_LAYERS; ++i) {
        device_free(e->d, e->weights[i]);
        device_free(e->d, e->vectors[i][0]);
        device_free(e->d, e->vectors[i][1]);
    }
    device_free(e->d, e->feature_block);
    device_free(e->d, e->out);
    device_free(e->d, e->count);
    device_free(e->d, e->rows);
    device_free(e->d, e->latents);
    device_free(e->d, e->threshold);
}

int engine_upload(engine *e, const frame *f)
{
    const size_t n = (size_t)f->num_rows, latents = n * LATENT_CHANNELS;
    const int32_t count = (int32_t)f->num_rows;
    void *narrow = malloc(latents * element_bytes(e) + 1);
    int failed = narrow == NULL ||
                 device_convert(e->d, SPOPS_DTYPE_F32, f->latents, e->o.dtype, narrow, latents) ||
                 device_upload(e->d, e->latents, narrow, latents * element_bytes(e)) ||
                 device_upload(e->d, e->rows, f->rows, n * 4 * sizeof *f->rows) ||
                 device_upload(e->d, e->count, &count, sizeof count);

    for (int l = 0; l + 1 < LEVELS && e->o.shape == SHAPE_GIVEN; ++l)
        failed = failed ||
                 device_upload(e->d, e->given[l], f->keep[l], (size_t)f->level_rows[l] * CHILDREN);
    free(narrow);
    return failed;
}

/* ---- A frame ---------------------------------------------------------------------------------- */

/* All rows that there is room for; how many count, the device knows. */
static spops_matrix matrix_of(const engine *e, int level, feature_kind kind)
{
    const features *f = &e->features[level][kind];
    return spops_matrix_dense(e->feature_block + f->at, f->rows, f->cols, e->o.dtype);
}

static spops_matrix weights_of(const engine *e, int i)
{
    const layer *l = &e->net->layers[i];
    return spops_matrix_dense(e->weights[i], layer_num_weights(l) / l->out, l->out, e->o.dtype);
}

static spops_matrix rows_of(spops_matrix m, int64_t first, int64_t count)
{
    m.data = (char *)m.data + (size_t)first * (size_t)m.row_stride * spops_dtype_bytes(m.dtype);
    m.rows = count;
    return m;
}

static spops_status enqueue_linear(engine *e, int level, int i, spops_matrix x,
                                   const spops_matrix *residual, spops_activation activation,
                                   spops_matrix out)
{
    spops_conv_layer epilogue = spops_conv_layer_default();
    epilogue.bias = e->vectors[i][0];
    epilogue.residual = residual;
    epilogue.activation = activation;
    epilogue.num_rows = x.rows == e->o.max_rows[level] ? e->num_rows[level] : NULL;
    return spops_linear_execute(e->d->ctx, x, weights_of(e, i), &epilogue, out);
}

/* With slices of rows hidden columns take less memory. All rows that there is room for are computed then:
   rows that do not count have whatever was there, and nobody reads them. */
static spops_status enqueue_mlp(engine *e, int level, int i)
{
    const spops_matrix x = matrix_of(e, level, X), h = matrix_of(e, level, H);
    const spops_matrix hidden = matrix_of(e, level, HIDDEN);

    for (int64_t first = 0; first < x.rows; first += hidden.rows) {
        const int64_t n = x.rows - first < hidden.rows ? x.rows - first : hidden.rows;
        const spops_matrix out = rows_of(x, first, n), some = rows_of(hidden, 0, n);
        PASS(enqueue_linear(e, level, i, rows_of(h, first, n), NULL, SPOPS_ACTIVATION_SILU, some));
        PASS(enqueue_linear(e, level, i + 1, some, &out, SPOPS_ACTIVATION_NONE, out));
    }
    return SPOPS_STATUS_OK;
}

static spops_status enqueue_norm(engine *e, int level, int i, spops_matrix x,
                                 spops_activation activation, spops_matrix out)
{
    spops_norm_options options = spops_norm_options_default();
    options.num_rows = e->num_rows[level];
    options.epsilon = (float)NORM_EPSILON;
    options.activation = activation;
    return spops_layernorm_execute(e->d->ctx, x, i < 0 ? NULL : e->vectors[i][0],
                                   i < 0 ? NULL : e->vectors[i][1], &options, out);
}

static spops_status enqueue_conv(engine *e, int level, int i, spops_matrix x, spops_matrix out)
{
    spops_conv_layer epilogue = spops_conv_layer_default();
    epilogue.bias = e->vectors[i][0];
    return spops_sparseconv_execute(e->d->ctx, e->convs[level], x, weights_of(e, i), &epilogue,
                                    out);
}

/* Logits below 0 become 0, and then floats of 8 bits over a tiny scale: a byte of 0 where there was 0,
   and another where there was more. */
static spops_status enqueue_logits(engine *e, int level, int i)
{
    const int64_t rows = e->o.max_rows[level];
    const spops_matrix logits =
        spops_matrix_dense(e->logits[level], rows, CHILDREN, SPOPS_DTYPE_F32);

    PASS(enqueue_linear(e, level, i, matrix_of(e, level, X), NULL, SPOPS_ACTIVATION_RELU, logits));
    return spops_quantize_execute(
        e->d->ctx, logits, e->threshold,
        spops_matrix_dense(e->predicted[level], rows, CHILDREN, SPOPS_DTYPE_F8E4M3), NULL);
}

static spops_status enqueue_map(engine *e, int level)
{
    spops_plan *const conv = (spops_plan *)e->convs[level];
    PASS(spops_kernel_map_update(e->d->ctx, e->maps[level], e->sets[level], e->sets[level]));
    return spops_update(e->d->ctx, &conv, 1);
}

static spops_status enqueue_to_space(engine *e, int level)
{
    spops_context *ctx = e->d->ctx;
    PASS(spops_channel_to_space_execute(ctx, e->sets[level - 1], e->sets[level], 2,
                                        matrix_of(e, level - 1, U), matrix_of(e, level, H)));
    return spops_channel_to_space_execute(ctx, e->sets[level - 1], e->sets[level], 2,
                                          matrix_of(e, level - 1, X), matrix_of(e, level, S));
}

static spops_status enqueue_output(engine *e, int level, int i)
{
    const spops_matrix h = matrix_of(e, level, H);
    PASS(enqueue_norm(e, level, -1, matrix_of(e, level, X), SPOPS_ACTIVATION_NONE, h));
    return enqueue_linear(e, level, i, h, NULL, SPOPS_ACTIVATION_NONE,
                          spops_matrix_dense(e->out, h.rows, OUTPUT_CHANNELS, e->o.dtype));
}

spops_status engine_enqueue_op(engine *e, int i)
{
    const op *o = &e->net->ops[i];
    const int l = o->level;
    const spops_matrix x = matrix_of(e, l, X), h = matrix_of(e, l, H);

    switch (o->kind) {
    case OP_SET: return spops_coords_update(e->d->ctx, e->sets[0], e->count, e->rows);
    case OP_LATENT:
        return enqueue_linear(e, l, o->layer,
                              spops_matrix_dense(e->latents, x.rows, LATENT_CHANNELS, e->o.dtype),
                              NULL, SPOPS_ACTIVATION_NONE, x);
    case OP_CONV: return enqueue_conv(e, l, o->layer, x, h);
    case OP_NORM: return enqueue_norm(e, l, o->layer, h, SPOPS_ACTIVATION_NONE, h);
    case OP_MLP: return enqueue_mlp(e, l, o->layer);
    case OP_LOGITS: return enqueue_logits(e, l, o->layer);
    case OP_CHILDREN:
        return spops_coords_update_children(e->d->ctx, e->sets[l], e->sets[l - 1], 2,
                                            e->o.shape == SHAPE_GIVEN ? e->given[l - 1]
                                                                      : e->predicted[l - 1]);
    case OP_MAP: return enqueue_map(e, l);
    case OP_UP_NORM: return enqueue_norm(e, l, o->layer, x, SPOPS_ACTIVATION_SILU, h);
    case OP_UP_CONV: return enqueue_conv(e, l, o->layer, h, matrix_of(e, l, U));
    case OP_TO_SPACE: return enqueue_to_space(e, l);
    case OP_FINE_NORM: return enqueue_norm(e, l, -1, h, SPOPS_ACTIVATION_SILU, h);
    case OP_FINE_CONV: return enqueue_conv(e, l, o->layer, h, x);
    case OP_SKIP:
        return enqueue_linear(e, l, o->layer, matrix_of(e, l, S), &x, SPOPS_ACTIVATION_NONE, x);
    case OP_OUTPUT: break;
    }
    return enqueue_output(e, l, o->layer);
}

spops_status engine_enqueue_frame(void *user)
{
    engine *e = (engine *)user;
    for (int i = 0; i < e->net->num_ops; ++i)
        PASS(engine_enqueue_op(e, i));
    return SPOPS_STATUS_OK;
}

int engine_get_sizes(const engine *e, int64_t rows[LEVELS], int64_t pairs[LEVELS])
{
    for (int l = 0; l < LEVELS; ++l) {
        spops_coords_info set = spops_coords_info_default();
        spops_kernel_map_info map = spops_kernel_map_info_default();
        TRY(spops_coords_get_info_sync(e->d->ctx, e->sets[l], &set));
        TRY(spops_kernel_map_get_info_sync(e->d->ctx, e->maps[l], &map));
        rows[l] = set.num_rows;
        pairs[l] = map.num_pairs;
    }
    return 0;
}
