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

// Tiles are dealt to as many parts for the gradient of a table of biases, and rows for those of the
// weights of a norm.
#define TABLE_PARTS 16

static spops_attention_memory carve_memory(const spops_attention_scratch_args *s, spops_carver *c)
{
    const spops_patch_arrays *p = s->patches;
    const int64_t cols = (int64_t)s->heads * s->dim, kv_cols = (int64_t)s->kv_heads * s->dim;
    const int64_t turns = 6 * (int64_t)s->rotary_pairs;
    const bool sums = s->backward && !p->keys_once;
    const bool norm_q = s->backward && s->norms[SPOPS_ATTENTION_Q];
    const bool norm_k = s->backward && s->norms[SPOPS_ATTENTION_K];
    const bool has_table = s->backward && s->bias_range >= 0;
    const size_t bytes = spops_dtype_bytes(spops_sum_dtype(s->dtype));
    spops_attention_memory m = {0};

    m.turns[SPOPS_ATTENTION_Q] = spops_carve(c, turns > 0 ? p->num_rows : 0, turns, bytes);
    m.turns[SPOPS_ATTENTION_K] = m.turns[SPOPS_ATTENTION_Q];
    if (turns > 0 && s->keys_turn_apart)
        m.turns[SPOPS_ATTENTION_K] = spops_carve(c, p->num_key_rows, turns, bytes);
    m.entry_q = spops_carve(c, norm_q ? p->max_queries : 0, cols, bytes);
    m.entry_k = spops_carve(c, sums || norm_k ? p->max_keys : 0, kv_cols, bytes);
    m.entry_v = spops_carve(c, sums ? p->max_keys : 0, kv_cols, bytes);
    m.weights[SPOPS_ATTENTION_Q] = spops_carve(c, norm_q ? TABLE_PARTS : 0, cols, sizeof(double));
    m.weights[SPOPS_ATTENTION_K] =
        spops_carve(c, norm_k ? TABLE_PARTS : 0, kv_cols, sizeof(double));
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

// Of the rows of a side.
typedef struct turns_work {
    const spops_attention_rotary_args *rotary;
    const void *coords;
    int64_t stride;
    float *turns; // f64 of rows of f64
} turns_work;

static void find_turns_f64(const void *work, int64_t begin, int64_t end)
{
    const turns_work *w = (const turns_work *)work;
    const spops_attention_rotary_args *r = w->rotary;
    double *turn = (double *)(void *)w->turns + begin * 6 * r->pairs;

    for (int64_t i = 3 * begin; i < 3 * end; ++i) {
        const int64_t at = i / 3 * w->stride + i % 3;
        const double x = r->dtype == SPOPS_DTYPE_I32 ? (double)((const int32_t *)w->coords)[at]
                                                     : (double)((const float *)w->coords)[at];
        for (int32_t p = 0; p < r->pairs; ++p) {
            const double angle = x * pow((double)r->base, -(double)p / r->pairs);
            *turn++ = cos(angle);
            *turn++ = sin(angle);
        }
    }
}

static void find_turns(const void *work, int64_t begin, int64_t end)
{
    const turns_work *w = (const turns_work *)work;
    const spops_attention_rotary_args *r = w->rotary;
    float *turn = w->turns + begin * 6 * r->pairs;

    for (int64_t row = begin; row < end; ++row) {
        for (int axis = 0; axis < 3; ++axis) {
            const int64_t at = row * w->stride + axis;
            const float x = r->dtype == SPOPS_DTYPE_I32 ? (float)((const int32_t *)w->coords)[at]
                                                        : ((const float *)w->coords)[at];
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
    const spops_patch_arrays *p = w->forward->patches;
    float *const *turns = w->memory.turns;
    const turns_work sides[] = {{r, r->coords, r->stride, turns[SPOPS_ATTENTION_Q]},
                                {r, r->key_coords, r->key_stride, turns[SPOPS_ATTENTION_K]}};
    const int64_t rows[] = {p->num_rows, p->num_key_rows};

    for (int side = 0; r->coords != NULL && side < SPOPS_ATTENTION_NUM_TURNED; ++side)
        if (side == SPOPS_ATTENTION_Q || turns[side] != turns[SPOPS_ATTENTION_Q])
            spops_parallel_for(spops_team_for(ctx, rows[side] * r->pairs * 6), rows[side], 0,
                               w->is_f64 ? find_turns_f64 : find_turns, &sides[side]);
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

static void clear_row(const attention_work *w, const spops_attention_view *v, int64_t heads,
                      int64_t row)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(v->dtype);

    for (int64_t head = 0; v->data != NULL && head < heads; ++head)
        memset((char *)v->data + (row * v->row_stride + head * v->head_stride) * bytes, 0,
               (size_t)(w->forward->dim * bytes));
}

static void clear_outputs(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_attention_args *args = w->forward;

    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = args->patches->q_rest[i];
        clear_row(w, &args->o, args->heads, row);
        for (int64_t head = 0; args->lse != NULL && head < args->heads; ++head)
            store_sum(w, args->lse, row * args->heads + head, -INFINITY);
    }
}

static void clear_grad_queries(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    for (int64_t i = begin; i < end; ++i)
        clear_row(w, &w->backward->grad_q, w->forward->heads, w->forward->patches->q_rest[i]);
}

static void clear_grad_keys(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        clear_row(w, &w->backward->grad_k, w->forward->kv_heads, w->forward->patches->k_rest[i]);
        clear_row(w, &w->backward->grad_v, w->forward->kv_heads, w->forward->patches->k_rest[i]);
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
        w->table->forward(w->forward, &w->memory, &tiles[i / w->forward->heads],
                          (int32_t)(i % w->forward->heads));
}

static void grad_query_tiles(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_patch_tile *tiles = w->forward->patches->q_tiles[SPOPS_PATCH_TILE_64];
    for (int64_t i = begin; i < end; ++i)
        w->table->grad_queries(w->backward, &w->memory, &tiles[i / w->forward->heads],
                               (int32_t)(i % w->forward->heads), NULL);
}

static void grad_key_tiles(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    const spops_patch_tile *tiles = w->forward->patches->k_tiles[SPOPS_PATCH_TILE_64];
    for (int64_t i = begin; i < end; ++i)
        w->table->grad_keys(w->backward, &w->memory, &tiles[i / w->forward->kv_heads],
                            (int32_t)(i % w->forward->kv_heads));
}

// Work of tiles times heads, in elements that take some nanoseconds each.
static void for_tiles(const spops_context *ctx, int64_t num_tiles, int64_t heads,
                      spops_parallel_body body, const attention_work *w)
{
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
                w->table->grad_queries(w->backward, &w->memory, &tiles[t], head, table);
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

    for (int64_t head = 0; w->is_f64 && v->data != NULL && head < args->kv_heads; ++head)
        for (int64_t c = 0; c < dim; ++c) {
            double sum = 0.0;
            for (int32_t e = offsets[row]; e < offsets[row + 1]; ++e)
                sum += sum_at(w, entries, (list[e] * (int64_t)args->kv_heads + head) * dim + c);
            spops_store_double(v->dtype, v->data, row * v->row_stride + head * v->head_stride + c,
                               sum);
        }
    for (int64_t head = 0; !w->is_f64 && v->data != NULL && head < args->kv_heads; ++head) {
        float sum[SPOPS_ATTENTION_MAX_DIM] = {0};
        for (int32_t e = offsets[row]; e < offsets[row + 1]; ++e)
            for (int64_t c = 0; c < dim; ++c)
                sum[c] += entries[(list[e] * (int64_t)args->kv_heads + head) * dim + c];
        w->rows->store(v->dtype, sum, dim,
                       (char *)v->data + (row * v->row_stride + head * v->head_stride) * bytes);
    }
}

// Where k is normalised, grad_k is made with the norm's.
static void sum_key_rows(const void *work, int64_t begin, int64_t end)
{
    const attention_work *w = (const attention_work *)work;
    for (int64_t row = begin; row < end; ++row) {
        if (w->forward->norms[SPOPS_ATTENTION_K].weights == NULL)
            sum_entries(w, &w->backward->grad_k, w->memory.entry_k, row);
        sum_entries(w, &w->backward->grad_v, w->memory.entry_v, row);
    }
}

// ---- Norms --------------------------------------------------------------------------------------

// A side of which gradients go through its norm: by entry, or by row where a row may have several
// entries.
typedef struct norm_work {
    const attention_work *w;
    const spops_attention_norm_args *norm;
    const spops_attention_view *x, *grad_x;
    const float *entries;          // [entries][heads * dim]
    const int32_t *rows;           // of entries
    const int32_t *offsets, *list; // entries of rows; NULL: a row has one
    int64_t num, heads;
    double *parts;       // of the gradient of the weights
    float *grad_weights; // NULL: not wanted
    int64_t grad_stride;
} norm_work;

static norm_work norm_work_of(const attention_work *w, int side)
{
    const spops_patch_arrays *p = w->forward->patches;
    const spops_attention_args *f = w->forward;
    const bool keys = side == SPOPS_ATTENTION_K, sums = keys && !p->keys_once;
    return (norm_work){.w = w,
                       .norm = &f->norms[side],
                       .x = keys ? &f->k : &f->q,
                       .grad_x = keys ? &w->backward->grad_k : &w->backward->grad_q,
                       .entries = keys ? w->memory.entry_k : w->memory.entry_q,
                       .rows = keys ? p->k_rows : p->q_rows,
                       .offsets = sums ? p->key_offsets : NULL,
                       .list = p->key_entries,
                       .num = sums   ? p->num_key_rows
                              : keys ? p->state->num_keys
                                     : p->state->num_queries,
                       .heads = keys ? f->kv_heads : f->heads,
                       .parts = w->memory.weights[side],
                       .grad_weights = w->backward->grad_weights[side],
                       .grad_stride = w->backward->grad_weights_strides[side]};
}

// A head of a row, from the gradient g of what the norm makes of it; `weights` gets its share of theirs.
static void grad_norm_row(const norm_work *n, int64_t row, int64_t head, const double *g,
                          double *weights)
{
    const spops_attention_args *f = n->w->forward;
    const int64_t at = row * n->x->row_stride + head * n->x->head_stride, dim = f->dim;
    const int64_t to = row * n->grad_x->row_stride + head * n->grad_x->head_stride;
    double x[SPOPS_ATTENTION_MAX_DIM], slope[SPOPS_ATTENTION_MAX_DIM], squares = 0.0, sum = 0.0;

    for (int64_t c = 0; c < dim; ++c) {
        x[c] = spops_double_of(n->x->dtype, n->x->data, at + c);
        squares += x[c] * x[c];
    }
    const double factor = 1.0 / sqrt(squares / (double)dim + (double)f->epsilon);
    for (int64_t c = 0; c < dim; ++c) {
        x[c] *= factor;
        weights[c] += g[c] * x[c];
        slope[c] = g[c] * sum_at(n->w, n->norm->weights, head * n->norm->stride + c);
        sum += slope[c] * x[c];
    }
    for (int64_t c = 0; n->grad_x->data != NULL && c < dim; ++c)
        spops_store_double(n->grad_x->dtype, n->grad_x->data, to + c,
                           factor * (slope[c] - x[c] * sum / (double)dim));
}

// Part p takes the rows from p * num / TABLE_PARTS on.
static void grad_norm_parts(const void *work, int64_t begin, int64_t end)
{
    const norm_work *n = (const norm_work *)work;
    const int64_t dim = n->w->forward->dim;

    for (int64_t part = begin; part < end; ++part) {
        double *weights = n->parts + part * n->heads * dim;
        memset(weights, 0, (size_t)(n->heads * dim) * sizeof *weights);
        for (int64_t i = part * n->num / TABLE_PARTS; i < (part + 1) * n->num / TABLE_PARTS; ++i) {
            const int64_t first = n->offsets == NULL ? i : n->offsets[i];
            const int64_t last = n->offsets == NULL ? i + 1 : n->offsets[i + 1];
            for (int64_t head = 0; head < n->heads; ++head) {
                double g[SPOPS_ATTENTION_MAX_DIM] = {0.0};
                for (int64_t e = first; e < last; ++e) {
                    const int64_t entry = n->offsets == NULL ? e : n->list[e];
                    for (int64_t c = 0; c < dim; ++c)
                        g[c] += sum_at(n->w, n->entries, (entry * n->heads + head) * dim + c);
                }
                grad_norm_row(n, n->offsets == NULL ? n->rows[i] : i, head, g,
                              weights + head * dim);
            }
        }
    }
}

static void grad_norm(const spops_context *ctx, const attention_work *w, int side)
{
    const norm_work n = norm_work_of(w, side);
    const int64_t dim = w->forward->dim, own = n.norm->stride != 0 ? 1 : n.heads; // of weights
    spops_parallel_for(spops_team_for(ctx, n.num * n.heads * dim), TABLE_PARTS, 1, grad_norm_parts,
                       &n);
    for (int64_t head = 0; n.grad_weights != NULL && head < n.heads; head += own)
        for (int64_t c = 0; c < dim; ++c) {
            double sum = 0.0;
            for (int64_t part = 0; part < TABLE_PARTS; ++part)
                for (int64_t h = head; h < head + own; ++h)
                    sum += n.parts[(part * n.heads + h) * dim + c];
            store_sum(w, n.grad_weights, head * n.grad_stride + c, sum);
        }
}

// ---- The slots ----------------------------------------------------------------------------------

spops_status spops_cpu_attention(spops_context *ctx, const spops_attention_args *args)
{
    const attention_work w = begin_work(ctx, args, NULL);
    const spops_patch_state *state = args->patches->state;

    find_all_turns(ctx, &w);
    for_rows(ctx, state->num_q_rest, clear_outputs, &w);
    for_tiles(ctx, state->num_q_tiles[SPOPS_PATCH_TILE_64], args->heads, forward_tiles, &w);
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_attention_backward(spops_context *ctx,
                                          const spops_attention_backward_args *args)
{
    const attention_work w = begin_work(ctx, &args->forward, args);
    const spops_patch_arrays *p = args->forward.patches;
    const spops_patch_state *state = p->state;
    const int64_t q_tiles = state->num_q_tiles[SPOPS_PATCH_TILE_64];

    const bool norm_q = args->forward.norms[SPOPS_ATTENTION_Q].weights != NULL;
    const bool norm_k = args->forward.norms[SPOPS_ATTENTION_K].weights != NULL;

    find_all_turns(ctx, &w);
    if (args->grad_q.data != NULL) for_rows(ctx, state->num_q_rest, clear_grad_queries, &w);
    if (args->grad_table != NULL) { // with grad_q, where that is wanted
        const int64_t elements =
            (int64_t)spops_attention_table_rows(args->forward.bias.range) * args->forward.heads;
        spops_parallel_for(spops_team_for(ctx, q_tiles * SPOPS_MIN_THREAD_ITEMS), TABLE_PARTS, 1,
                           grad_table_parts, &w);
        spops_parallel_for(spops_team_for(ctx, elements * TABLE_PARTS), elements, 0,
                           w.is_f64 ? sum_tables_f64 : sum_tables, &w);
    } else if (spops_attention_wants_q(args)) {
        for_tiles(ctx, q_tiles, args->forward.heads, grad_query_tiles, &w);
    }
    if (norm_q && spops_attention_wants_q(args)) grad_norm(ctx, &w, SPOPS_ATTENTION_Q);
    if (!spops_attention_wants_k(args) && args->grad_v.data == NULL) return SPOPS_STATUS_OK;
    for_tiles(ctx, state->num_k_tiles[SPOPS_PATCH_TILE_64], args->forward.kv_heads, grad_key_tiles,
              &w);
    if (p->keys_once)
        for_rows(ctx, state->num_k_rest, clear_grad_keys, &w);
    else
        for_rows(ctx, p->num_key_rows, sum_key_rows, &w);
    if (norm_k && spops_attention_wants_k(args)) grad_norm(ctx, &w, SPOPS_ATTENTION_K);
    return SPOPS_STATUS_OK;
}
