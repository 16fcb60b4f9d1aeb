// SPDX-License-Identifier: Apache-2.0
// Tiles of attention of rows of f64: a row at a time, summed in f64 in the order of the tiles that
// attention_isa.c has, whose table this is too. Memory that the table's types call float holds f64.
#include <math.h>
#include <string.h>

#include "attention/attention_isa.h"
#include "core/rows_f64.h"

#define MAX_DIM SPOPS_ATTENTION_MAX_DIM

static double *place_of(const spops_attention_view *v, int64_t row, int64_t head)
{
    return (double *)v->data + row * v->row_stride + head * v->head_stride;
}

static double dot(int64_t n, const double *a, const double *b)
{
    double sum = 0.0;
    for (int64_t c = 0; c < n; ++c)
        sum += a[c] * b[c];
    return sum;
}

// Turns the columns of a row, or turns them back.
static void turn(const spops_attention_rotary_args *rotary, const float *turns, int64_t row,
                 bool back, double *m)
{
    const int64_t pairs = rotary->pairs;
    const double *turn = (const double *)(const void *)turns + row * 6 * pairs;
    if (rotary->coords == NULL) return;
    for (int64_t axis = 0; axis < 3; ++axis) {
        double *u = m + axis * 2 * pairs, *v = u + pairs;
        for (int64_t p = 0; p < pairs; ++p) {
            const double cosine = turn[2 * (axis * pairs + p)];
            const double sine = turn[2 * (axis * pairs + p) + 1];
            const double s = back ? -sine : sine, old = u[p];
            u[p] = old * cosine - v[p] * s;
            v[p] = v[p] * cosine + old * s;
        }
    }
}

// A head of a row of q, scaled, or of k, as turned.
static void load_turned(const spops_attention_args *args, const spops_attention_memory *memory,
                        int side, int64_t row, int64_t head, double *dst)
{
    const spops_attention_norm_args *norm = &args->norms[side];
    const double *x = place_of(side == SPOPS_ATTENTION_Q ? &args->q : &args->k, row, head);
    const double scale = side == SPOPS_ATTENTION_Q ? args->scale_f64 : 1.0;
    memcpy(dst, x, (size_t)args->dim * sizeof *dst);
    if (norm->weights != NULL) {
        const double *weights = (const double *)(const void *)norm->weights + head * norm->stride;
        const double factor = 1.0 / sqrt(dot(args->dim, x, x) / args->dim + (double)args->epsilon);
        for (int64_t c = 0; c < args->dim; ++c)
            dst[c] *= factor * weights[c];
    }
    turn(&args->rotary, memory->turns[side], row, false, dst);
    for (int64_t c = 0; c < args->dim; ++c)
        dst[c] *= scale;
}

static void store_row(const spops_attention_view *v, int64_t row, int64_t head, int64_t dim,
                      const double *src)
{
    for (int64_t c = 0; v->data != NULL && c < dim; ++c)
        spops_store_double(v->dtype, v->data, row * v->row_stride + head * v->head_stride + c,
                           src[c]);
}

// Where the table has the bias of two rows along an axis.
static int64_t element_of(const spops_attention_bias_args *b, int64_t q_row, int64_t k_row,
                          int axis)
{
    return spops_attention_table_row(b->range, axis, b->coords[q_row * b->stride + axis],
                                     b->key_coords[k_row * b->key_stride + axis]);
}

static double logit(const spops_attention_args *args, const double *q, int64_t q_row,
                    const double *k, int64_t k_row, int64_t head)
{
    const spops_attention_bias_args *b = &args->bias;
    const double *table = (const double *)(const void *)b->table;
    double bias = 0.0;
    for (int axis = 0; table != NULL && axis < 3; ++axis)
        bias += table[element_of(b, q_row, k_row, axis) * b->table_stride + head];
    return dot(args->dim, q, k) + bias;
}

// Rows of a side that may have none at all.
static const int32_t *rows_from(const int32_t *rows, int64_t first)
{
    return rows != NULL ? rows + first : NULL;
}

// ---- Forward ------------------------------------------------------------------------------------

// The largest logit of a query, apart from those that are NaN; -infinity: there is none.
static double largest_logit(const spops_attention_args *args, const spops_attention_memory *memory,
                            const double *q, int64_t q_row, const int32_t *keys, int64_t num_keys,
                            int32_t head)
{
    const int32_t kv_head = spops_attention_kv_head(args, head);
    double max = -INFINITY, k[MAX_DIM];
    for (int64_t j = 0; j < num_keys; ++j) {
        load_turned(args, memory, SPOPS_ATTENTION_K, keys[j], kv_head, k);
        const double s = logit(args, q, q_row, k, keys[j], head);
        if (s > max) max = s;
    }
    return max;
}

static void forward(const spops_attention_args *args, const spops_attention_memory *memory,
                    const spops_patch_tile *tile, int32_t head)
{
    const int32_t kv_head = spops_attention_kv_head(args, head);
    const spops_patch_arrays *patches = args->patches;
    const int32_t *keys = rows_from(patches->k_rows, patches->k_offsets[tile->patch]);
    double *lse = (double *)(void *)args->lse, q[MAX_DIM], k[MAX_DIM], o[MAX_DIM];

    for (int64_t i = 0; i < tile->num_entries; ++i) {
        const int64_t row = patches->q_rows[tile->first_entry + i];
        double sum = 0.0;
        load_turned(args, memory, SPOPS_ATTENTION_Q, row, head, q);
        const double max = largest_logit(args, memory, q, row, keys, tile->num_others, head);
        const double base = max == -INFINITY ? 0.0 : max;
        memset(o, 0, sizeof o);
        for (int64_t j = 0; j < tile->num_others; ++j) {
            const double *v = place_of(&args->v, keys[j], kv_head);
            load_turned(args, memory, SPOPS_ATTENTION_K, keys[j], kv_head, k);
            const double p = exp(logit(args, q, row, k, keys[j], head) - base);
            sum += p;
            for (int64_t c = 0; c < args->dim; ++c)
                o[c] += p * v[c];
        }
        for (int64_t c = 0; tile->num_others > 0 && c < args->dim; ++c)
            o[c] /= sum;
        store_row(&args->o, row, head, args->dim, o);
        if (lse != NULL) lse[row * args->heads + head] = max + log(sum);
    }
}

// ---- Backward -----------------------------------------------------------------------------------

// A query: its row of q, turned and scaled, its lse, and grad_o . o.
typedef struct query {
    double q[MAX_DIM], lse, dot;
    const double *g; // its row of grad_o
} query;

static void load_query(const spops_attention_backward_args *args,
                       const spops_attention_memory *memory, int64_t row, int64_t head, query *to)
{
    const spops_attention_args *f = &args->forward;
    load_turned(f, memory, SPOPS_ATTENTION_Q, row, head, to->q);
    to->g = place_of(&args->grad_o, row, head);
    to->dot = dot(f->dim, to->g, place_of(&f->o, row, head));
    to->lse = ((const double *)(const void *)f->lse)[row * f->heads + head];
}

// The weight of a query and a key, and its slope.
static double weigh(const spops_attention_args *f, const query *of, int64_t q_row, const double *k,
                    int64_t k_row, int32_t head, double *slope)
{
    const double *v = place_of(&f->v, k_row, spops_attention_kv_head(f, head));
    const double p =
        of->lse == -INFINITY ? 0.0 : exp(logit(f, of->q, q_row, k, k_row, head) - of->lse);
    *slope = p * (dot(f->dim, of->g, v) - of->dot);
    return p;
}

// A gradient to its row, or to its entry.
static void store_gradient(const spops_attention_view *view, float *entries, int64_t entry,
                           int64_t row, int64_t heads, int32_t head, int64_t dim,
                           const double *grad)
{
    if (entries == NULL)
        store_row(view, row, head, dim, grad);
    else
        memcpy((double *)(void *)entries + (entry * heads + head) * dim, grad,
               (size_t)dim * sizeof *grad);
}

static void grad_queries(const spops_attention_backward_args *args,
                         const spops_attention_memory *memory, const spops_patch_tile *tile,
                         int32_t head, float *table)
{
    const spops_attention_args *f = &args->forward;
    const int32_t kv_head = spops_attention_kv_head(f, head);
    const spops_patch_arrays *patches = f->patches;
    const int32_t *keys = rows_from(patches->k_rows, patches->k_offsets[tile->patch]);
    double *sums = (double *)(void *)table, k[MAX_DIM];

    for (int64_t i = 0; i < tile->num_entries; ++i) {
        const int64_t row = patches->q_rows[tile->first_entry + i];
        double grad[MAX_DIM] = {0.0}, slope;
        query of;
        load_query(args, memory, row, head, &of);
        for (int64_t j = 0; j < tile->num_others; ++j) {
            load_turned(f, memory, SPOPS_ATTENTION_K, keys[j], kv_head, k);
            (void)weigh(f, &of, row, k, keys[j], head, &slope);
            for (int64_t c = 0; c < f->dim; ++c)
                grad[c] += slope * k[c];
            for (int axis = 0; sums != NULL && axis < 3; ++axis)
                sums[element_of(&f->bias, row, keys[j], axis) * f->heads + head] += slope;
        }
        for (int64_t c = 0; c < f->dim; ++c)
            grad[c] *= f->scale_f64;
        turn(&f->rotary, memory->turns[SPOPS_ATTENTION_Q], row, true, grad);
        store_gradient(&args->grad_q, memory->entry_q, tile->first_entry + i, row, f->heads, head,
                       f->dim, grad);
    }
}

static void grad_keys(const spops_attention_backward_args *args,
                      const spops_attention_memory *memory, const spops_patch_tile *tile,
                      int32_t head)
{
    const spops_attention_args *f = &args->forward;
    const spops_patch_arrays *patches = f->patches;
    const int32_t *queries = rows_from(patches->q_rows, patches->q_offsets[tile->patch]);
    const int32_t first_head = spops_attention_first_head(f, head);
    double k[MAX_DIM];

    for (int64_t i = 0; i < tile->num_entries; ++i) {
        const int64_t entry = tile->first_entry + i, row = patches->k_rows[entry];
        double grad_k[MAX_DIM] = {0.0}, grad_v[MAX_DIM] = {0.0}, slope;
        query of;
        load_turned(f, memory, SPOPS_ATTENTION_K, row, head, k);
        for (int32_t q_head = first_head; q_head < first_head + f->heads / f->kv_heads; ++q_head)
            for (int64_t j = 0; j < tile->num_others; ++j) {
                load_query(args, memory, queries[j], q_head, &of);
                const double p = weigh(f, &of, queries[j], k, row, q_head, &slope);
                for (int64_t c = 0; c < f->dim; ++c) {
                    grad_k[c] += slope * of.q[c];
                    grad_v[c] += p * of.g[c];
                }
            }
        turn(&f->rotary, memory->turns[SPOPS_ATTENTION_K], row, true, grad_k);
        if (spops_attention_wants_k(args))
            store_gradient(&args->grad_k, memory->entry_k, entry, row, f->kv_heads, head, f->dim,
                           grad_k);
        if (args->grad_v.data != NULL)
            store_gradient(&args->grad_v, memory->entry_v, entry, row, f->kv_heads, head, f->dim,
                           grad_v);
    }
}

const spops_attention_table spops_attention_f64 = {
    .forward = forward,
    .grad_queries = grad_queries,
    .grad_keys = grad_keys,
};
