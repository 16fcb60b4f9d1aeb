// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU: tiles times heads, divided over the threads. A tile belongs to one owner, who
// adds in an order that the plan alone decides, so that threads change no bit.
#include <math.h>
#include <string.h>

#include "attention/attention_isa.h"
#include "backends/backend_cpu.h"
#include "core/memory.h"
#include "core/rows_f64.h"
#include "core/rows_isa.h"
#include "core/threads.h"

// Tiles are dealt to as many parts for the gradient of a table of biases.
#define TABLE_PARTS 16

static spops_attention_memory carve_memory(const spops_attention_scratch_args *s, spops_carver *c)
{
    const spops_patch_arrays *p = s->patches;
    const int64_t cols = (int64_t)s->heads * s->dim;
    const bool by_entry = s->backward && !p->keys_once;
    const bool has_table = s->backward && s->bias_range >= 0;
    const size_t bytes = spops_dtype_bytes(spops_sum_dtype(s->dtype));
    spops_attention_memory m = {0};

    m.turns =
        spops_carve(c, s->rotary_pairs > 0 ? p->num_rows : 0, 6 * (int64_t)s->rotary_pairs, bytes);
    m.entry_k = spops_carve(c, by_entry ? p->max_keys : 0, cols, bytes);
    m.entry_v = spops_carve(c, by_entry ? p->max_keys : 0, cols, bytes);
    m.tables = spops_carve(c, has_table ? TABLE_PARTS * (int64_t)s->heads : 0,
                           has_table ? spops_attention_table_rows(s->bias_range) : 0, bytes);
    return m;
}

size_t spops_cpu_attention_scratch_bytes(spops_context *ctx,
                                         const spops_attention_scratch_args *args)
{
    spops_carver c = {NULL, 0};
    (void)ctx;
    (void)carve_memory(args, &c);
    return c.used;
}

// What the workers see; backward is NULL in the forward call.
typedef struct attention_work {
    bool is_f64;
    const spops_attention_table *table;
    const spops_rows_table *rows;
    const spops_attention_args *forward;
    const spops_attention_backward_args *backward;
    spops_attention_memory memory;
} attention_work;

static attention_work begin_work(const spops_context *ctx, const spops_attention_args *args,
                                 const spops_attention_backward_args *backward)
{
    const spops_attention_scratch_args sizes =
        spops_attention_scratch_args_of(args, backward != NULL);
    spops_carver c = {args->workspace, 0};
    const bool is_f64 = args->q.dtype == SPOPS_DTYPE_F64;
    const attention_work w = {.is_f64 = is_f64,
                              .table =
                                  is_f64 ? &spops_attention_f64 : spops_attention_table_of(ctx),
                              .rows = spops_rows_table_of(ctx),
                              .forward = args,
                              .backward = backward,
                              .memory = carve_memory(&sizes, &c)};
    return w;
}

// ---- Rotary angles ------------------------------------------------------------------------------

static void find_turns_f64(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_attention_rotary_args *r = &w->forward->rotary;
    double *turn = (double *)(void *)w->memory.turns + begin * 6 * r->pairs;

    for (int64_t i = 3 * begin; i < 3 * end; ++i) {
        const int64_t at = i / 3 * r->stride + i % 3;
        const double x = r->dtype == SPOPS_DTYPE_I32 ? (double)((const int32_t *)r->coords)[at]
                                                     : (double)((const float *)r->coords)[at];
        for (int32_t p = 0; p < r->pairs; ++p) {
            const double angle = x * pow((double)r->base, -(double)p / r->pairs);
            *turn++ = cos(angle);
            *turn++ = sin(angle);
        }
    }
}

static void find_turns(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_attention_rotary_args *r = &w->forward->rotary;
    float *turn = w->memory.turns + begin * 6 * r->pairs;

    for (int64_t row = begin; row < end; ++row) {
        for (int axis = 0; axis < 3; ++axis) {
            const int64_t at = row * r->stride + axis;
            const float x = r->dtype == SPOPS_DTYPE_I32 ? (float)((const int32_t *)r->coords)[at]
                                                        : ((const float *)r->coords)[at];
            for (int32_t p = 0; p < r->pairs; ++p) {
                const float angle = x * r->frequencies[p];
                *turn++ = cosf(angle);
                *turn++ = sinf(angle);
            }
        }
    }
}

static void find_all_turns(const spops_context *ctx, const attention_work *w)
{
    const spops_attention_rotary_args *r = &w->forward->rotary;
    const int64_t rows = w->forward->patches->num_rows;
    if (r->coords == NULL) return;
    spops_parallel_for(spops_team_for(ctx, rows * r->pairs * 6), rows, 0,
                       w->is_f64 ? find_turns_f64 : find_turns, w);
}

// Element i of an array that is f64 where rows are, else f32.
static double sum_at(const attention_work *w, const float *from, int64_t i)
{
    return w->is_f64 ? ((const double *)(const void *)from)[i] : (double)from[i];
}

static void store_sum(const attention_work *w, float *to, int64_t i, double v)
{
    if (w->is_f64)
        ((double *)(void *)to)[i] = v;
    else
        to[i] = (float)v;
}

// ---- Rows outside the lists ---------------------------------------------------------------------

static void clear_row(const attention_work *w, const spops_attention_view *v, int64_t row)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(v->dtype);

    for (int64_t head = 0; v->data != NULL && head < w->forward->heads; ++head)
        memset((char *)v->data + (row * v->row_stride + head * v->head_stride) * bytes, 0,
               (size_t)(w->forward->dim * bytes));
}

static void clear_outputs(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_attention_args *args = w->forward;

    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = args->patches->q_rest[i];
        clear_row(w, &args->o, row);
        for (int64_t head = 0; args->lse != NULL && head < args->heads; ++head)
            store_sum(w, args->lse, row * args->heads + head, -INFINITY);
    }
}

static void clear_grad_queries(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    for (int64_t i = begin; i < end; ++i)
        clear_row(w, &w->backward->grad_q, w->forward->patches->q_rest[i]);
}

static void clear_grad_keys(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        clear_row(w, &w->backward->grad_k, w->forward->patches->k_rest[i]);
        clear_row(w, &w->backward->grad_v, w->forward->patches->k_rest[i]);
    }
}

static void for_rows(const spops_context *ctx, int64_t n, spops_parallel_body body,
                     const attention_work *w)
{
    const int64_t cols = (int64_t)w->forward->heads * w->forward->dim;
    spops_parallel_for(spops_team_for(ctx, n * cols), n, 0, body, w);
}

// ---- Tiles --------------------------------------------------------------------------------------

static void forward_tiles(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_patch_tile *tiles = w->forward->patches->q_tiles[SPOPS_PATCH_TILE_64];
    for (int64_t i = begin; i < end; ++i)
        w->table->forward(w->forward, w->memory.turns, &tiles[i / w->forward->heads],
                          (int32_t)(i % w->forward->heads));
}

static void grad_query_tiles(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_patch_tile *tiles = w->forward->patches->q_tiles[SPOPS_PATCH_TILE_64];
    for (int64_t i = begin; i < end; ++i)
        w->table->grad_queries(w->backward, w->memory.turns, &tiles[i / w->forward->heads],
                               (int32_t)(i % w->forward->heads), NULL);
}

static void grad_key_tiles(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_patch_tile *tiles = w->forward->patches->k_tiles[SPOPS_PATCH_TILE_64];
    for (int64_t i = begin; i < end; ++i)
        w->table->grad_keys(w->backward, &w->memory, &tiles[i / w->forward->heads],
                            (int32_t)(i % w->forward->heads));
}

// Work of tiles times heads, in elements that take some nanoseconds each.
static void for_tiles(const spops_context *ctx, int64_t num_tiles, spops_parallel_body body,
                      const attention_work *w)
{
    const int64_t heads = w->forward->heads;
    spops_parallel_for(
        spops_team_for(ctx, num_tiles * heads * SPOPS_ATTENTION_TILE * w->forward->dim),
        num_tiles * heads, 1, body, w);
}

// ---- Gradients of biases ------------------------------------------------------------------------

// Part p takes the tiles p, p + TABLE_PARTS, ..., of which the longest come first.
static void grad_table_parts(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_patch_arrays *p = w->forward->patches;
    const spops_patch_tile *tiles = p->q_tiles[SPOPS_PATCH_TILE_64];
    const int32_t heads = w->forward->heads;
    const int64_t elements = (int64_t)spops_attention_table_rows(w->forward->bias.range) * heads;

    for (int64_t part = begin; part < end; ++part) {
        const size_t bytes = w->is_f64 ? sizeof(double) : sizeof(float);
        float *table =
            (float *)(void *)((char *)w->memory.tables + (size_t)(part * elements) * bytes);
        memset(table, 0, (size_t)elements * bytes);
        for (int64_t t = part; t < p->state->num_q_tiles[SPOPS_PATCH_TILE_64]; t += TABLE_PARTS)
            for (int32_t head = 0; head < heads; ++head)
                w->table->grad_queries(w->backward, w->memory.turns, &tiles[t], head, table);
    }
}

static void sum_tables_f64(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const int32_t heads = w->forward->heads;
    const int64_t elements = (int64_t)spops_attention_table_rows(w->forward->bias.range) * heads;

    for (int64_t i = begin; i < end; ++i) {
        double sum = 0.0;
        for (int64_t part = 0; part < TABLE_PARTS; ++part)
            sum += sum_at(w, w->memory.tables, part * elements + i);
        store_sum(w, w->backward->grad_table,
                  i / heads * w->backward->grad_table_stride + i % heads, sum);
    }
}

static void sum_tables(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const int32_t heads = w->forward->heads;
    const int64_t elements = (int64_t)spops_attention_table_rows(w->forward->bias.range) * heads;

    for (int64_t i = begin; i < end; ++i) {
        float sum = 0.0f;
        for (int64_t part = 0; part < TABLE_PARTS; ++part)
            sum += w->memory.tables[part * elements + i];
        w->backward->grad_table[i / heads * w->backward->grad_table_stride + i % heads] = sum;
    }
}

// ---- Keys of several patches --------------------------------------------------------------------

static void sum_entries(const attention_work *w, const spops_attention_view *v,
                        const float *entries, int64_t row)
{
    const spops_attention_args *args = w->forward;
    const int32_t *list = args->patches->key_entries;
    const int32_t *offsets = args->patches->key_offsets;
    const int64_t dim = args->dim, bytes = (int64_t)spops_dtype_bytes(v->dtype);

    for (int64_t head = 0; w->is_f64 && v->data != NULL && head < args->heads; ++head)
        for (int64_t c = 0; c < dim; ++c) {
            double sum = 0.0;
            for (int32_t e = offsets[row]; e < offsets[row + 1]; ++e)
                sum += sum_at(w, entries, (list[e] * (int64_t)args->heads + head) * dim + c);
            spops_store_double(v->dtype, v->data, row * v->row_stride + head * v->head_stride + c,
                               sum);
        }
    for (int64_t head = 0; !w->is_f64 && v->data != NULL && head < args->heads; ++head) {
        float sum[SPOPS_ATTENTION_MAX_DIM] = {0};
        for (int32_t e = offsets[row]; e < offsets[row + 1]; ++e)
            for (int64_t c = 0; c < dim; ++c)
                sum[c] += entries[(list[e] * (int64_t)args->heads + head) * dim + c];
        w->rows->store(v->dtype, sum, dim,
                       (char *)v->data + (row * v->row_stride + head * v->head_stride) * bytes);
    }
}

static void sum_key_rows(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    for (int64_t row = begin; row < end; ++row) {
        sum_entries(w, &w->backward->grad_k, w->memory.entry_k, row);
        sum_entries(w, &w->backward->grad_v, w->memory.entry_v, row);
    }
}

// ---- The slots ----------------------------------------------------------------------------------

spops_status spops_cpu_attention(spops_context *ctx, const spops_attention_args *args)
{
    const attention_work w = begin_work(ctx, args, NULL);
    const spops_patch_state *state = args->patches->state;

    find_all_turns(ctx, &w);
    for_rows(ctx, state->num_q_rest, clear_outputs, &w);
    for_tiles(ctx, state->num_q_tiles[SPOPS_PATCH_TILE_64], forward_tiles, &w);
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_attention_backward(spops_context *ctx,
                                          const spops_attention_backward_args *args)
{
    const attention_work w = begin_work(ctx, &args->forward, args);
    const spops_patch_arrays *p = args->forward.patches;
    const spops_patch_state *state = p->state;
    const int64_t q_tiles = state->num_q_tiles[SPOPS_PATCH_TILE_64];

    find_all_turns(ctx, &w);
    if (args->grad_q.data != NULL) for_rows(ctx, state->num_q_rest, clear_grad_queries, &w);
    if (args->grad_table != NULL) { // with grad_q, where that is wanted
        const int64_t elements =
            (int64_t)spops_attention_table_rows(args->forward.bias.range) * args->forward.heads;
        spops_parallel_for(spops_team_for(ctx, q_tiles * SPOPS_MIN_THREAD_ITEMS), TABLE_PARTS, 1,
                           grad_table_parts, &w);
        spops_parallel_for(spops_team_for(ctx, elements * TABLE_PARTS), elements, 0,
                           w.is_f64 ? sum_tables_f64 : sum_tables, &w);
    } else if (args->grad_q.data != NULL) {
        for_tiles(ctx, q_tiles, grad_query_tiles, &w);
    }
    if (args->grad_k.data == NULL && args->grad_v.data == NULL) return SPOPS_STATUS_OK;
    for_tiles(ctx, state->num_k_tiles[SPOPS_PATCH_TILE_64], grad_key_tiles, &w);
    if (p->keys_once)
        for_rows(ctx, state->num_k_rest, clear_grad_keys, &w);
    else
        for_rows(ctx, p->num_rows, sum_key_rows, &w);
    return SPOPS_STATUS_OK;
}
