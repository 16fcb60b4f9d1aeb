// SPDX-License-Identifier: Apache-2.0
// Tiles of attention: a tile of 64 rows stays, and the rows that it meets stream by in blocks of 64.
// Scores of a block are kept with the tile's rows along the vectors, so that maxima, exponentials
// and sums are vertical, and neither side of a product is transposed but the tile, once.
#include "core/simd_vec.h"

#include <math.h>

#include "attention/attention_isa.h"

#define TILE    SPOPS_ATTENTION_TILE
#define MAX_DIM SPOPS_ATTENTION_MAX_DIM
#define LANES   SPOPS_SIMD_LANES

// Partial sums of a dot product, as many on every instruction set.
#define SUM_PARTS 16

// Sums of a pass over a product: with as many vectors of one factor and one of the other, they fill
// the registers.
#define MAX_ROWS 6
#if defined(__AVX512F__)
#define MAX_VECS 4
#else
#define MAX_VECS 2
#endif

typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

// a where the mask is set, b elsewhere.
SPOPS_INLINE vec select_vec(ivec mask, vec a, vec b)
{
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}

SPOPS_INLINE vec max_vec(vec a, vec b)
{
    return select_vec(a > b, a, b);
}

SPOPS_INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// n rounded up to whole vectors.
SPOPS_INLINE int64_t whole_vecs(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

// ---- Products -----------------------------------------------------------------------------------

// out[r][c] (+)= sum over d of a[r * row_step + d * depth_step] * w[d][c]
typedef struct product {
    const float *a;
    int64_t row_step, depth_step, rows, depth;
    const float *w;
    int64_t w_stride, cols;
    float *out;
    int64_t out_stride;
    bool accumulate;
} product;

SPOPS_INLINE void multiply_block(int num_rows, int num_vecs, const product *p, int64_t row,
                                 int64_t col)
{
    const float *a = p->a + row * p->row_step, *w = p->w + col;
    float *out = p->out + row * p->out_stride + col;
    vec sum[MAX_ROWS][MAX_VECS];

    UNROLL for (int r = 0; r < num_rows; ++r) UNROLL for (int v = 0; v < num_vecs; ++v) sum[r][v] =
        p->accumulate ? load_vec(out + r * p->out_stride + v * LANES) : (vec){0.0f};
    for (int64_t d = 0; d < p->depth; ++d) {
        vec b[MAX_VECS];
        UNROLL for (int v = 0; v < num_vecs; ++v) b[v] = load_vec(w + d * p->w_stride + v * LANES);
        UNROLL for (int r = 0; r < num_rows; ++r) UNROLL for (int v = 0; v < num_vecs; ++v)
            sum[r][v] =
                add_product(sum[r][v], all_lanes(a[r * p->row_step + d * p->depth_step]), b[v]);
    }
    UNROLL for (int r = 0; r < num_rows; ++r) UNROLL for (int v = 0; v < num_vecs; ++v)
        store_vec(out + r * p->out_stride + v * LANES, sum[r][v]);
}

SPOPS_INLINE void multiply_rows(int num_vecs, const product *p, int64_t col)
{
    int64_t r = 0;
    for (; r + MAX_ROWS <= p->rows; r += MAX_ROWS)
        multiply_block(MAX_ROWS, num_vecs, p, r, col);
#define REST(n)                                                                                    \
    if (r + n <= p->rows) {                                                                        \
        multiply_block(n, num_vecs, p, r, col);                                                    \
        r += n;                                                                                    \
    }
    REST(4)
    REST(2)
    REST(1)
#undef REST
}

// cols are rounded up to whole vectors, of w and of out.
static void multiply(const product *p)
{
    int64_t c = 0;
    for (; c + (MAX_VECS - 1) * LANES < p->cols; c += MAX_VECS * LANES)
        multiply_rows(MAX_VECS, p, c);
    for (; c + LANES < p->cols; c += 2 * LANES)
        multiply_rows(2, p, c);
    if (c < p->cols) multiply_rows(1, p, c);
}

// ---- Exponentials -------------------------------------------------------------------------------

// Of x <= 88, to 2 units in the last place; what is below the smallest normal number is 0. NaN stays.
SPOPS_INLINE vec exp_vec(vec x)
{
    // x = n ln 2 + r with |r| <= ln 2 / 2; the magic number leaves n in the last bits of the sum
    const float magic = 0x1.8p23f, log2_e = 0x1.715476p0f;
    const float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const vec shifted = add_product(all_lanes(magic), x, all_lanes(log2_e)), n = shifted - magic;
    const vec r = add_product(add_product(x, n, all_lanes(-ln2_high)), n, all_lanes(-ln2_low));
    // exp(r) - 1 - r over r^2: Taylor's coefficients, whose next one is 2^-29 of the value
    vec p = add_product(all_lanes(1.0f / 720.0f), r, all_lanes(1.0f / 5040.0f));
    p = add_product(all_lanes(1.0f / 120.0f), p, r);
    p = add_product(all_lanes(1.0f / 24.0f), p, r);
    p = add_product(all_lanes(1.0f / 6.0f), p, r);
    p = add_product(all_lanes(0.5f), p, r);
    p = add_product(r, p * r, r) + 1.0f;
    const vec power = (vec)(((ivec)shifted + 127) << 23);
    return select_vec(x < -87.3f, (vec){0.0f}, p * power);
}

// 0 in place of -infinity, so that a difference to it is a number.
SPOPS_INLINE vec finite_or_0(vec m)
{
    return select_vec(m == -INFINITY, (vec){0.0f}, m);
}

// ---- Rows ---------------------------------------------------------------------------------------

SPOPS_INLINE char *view_row(int dtype, const spops_attention_view *v, int64_t row, int64_t head)
{
    return (char *)v->data +
           (row * v->row_stride + head * v->head_stride) * (int64_t)spops_element_bytes(dtype);
}

// Rows of a side that may have none at all.
static const int32_t *rows_from(const int32_t *rows, int64_t first)
{
    return rows != NULL ? rows + first : NULL;
}

// A head of the rows that a list names, to dst[i][dim], with zeros up to whole vectors.
static void load_rows(const spops_attention_view *v, const int32_t *rows, int64_t n, int64_t head,
                      int64_t dim, float *dst)
{
    const int64_t stride = whole_vecs(dim);
    switch (v->dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (int64_t i = 0; i < n; ++i)                                                            \
            spops_load_row(SPOPS_DTYPE_##NAME, view_row(SPOPS_DTYPE_##NAME, v, rows[i], head),     \
                           dim, dst + i * stride);                                                 \
        break;
#include "core/dtypes.def"
    default: break;
    }
    for (int64_t i = 0; stride > dim && i < n; ++i)
        memset(dst + i * stride + dim, 0, (size_t)(stride - dim) * sizeof *dst);
}

static void store_row(const spops_attention_view *v, int64_t row, int64_t head, int64_t dim,
                      const float *src)
{
    switch (v->dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        spops_store_row(SPOPS_DTYPE_##NAME, src, dim, view_row(SPOPS_DTYPE_##NAME, v, row, head)); \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

// Turns the columns of n rows, or turns them back.
static void turn_rows(const spops_attention_rotary_args *rotary, const float *turns,
                      const int32_t *rows, int64_t n, int64_t stride, bool back, float *m)
{
    const int64_t pairs = rotary->pairs;
    if (rotary->coords == NULL) return;
    for (int64_t i = 0; i < n; ++i) {
        const float *turn = turns + (int64_t)rows[i] * 6 * pairs;
        for (int64_t axis = 0; axis < 3; ++axis) {
            float *u = m + i * stride + axis * 2 * pairs, *v = u + pairs;
            for (int64_t p = 0; p < pairs; ++p) {
                const float cosine = turn[2 * (axis * pairs + p)];
                const float sine = turn[2 * (axis * pairs + p) + 1];
                const float s = back ? -sine : sine, old = u[p];
                // A compiler that contracts may fuse either product, and another on each instruction set.
                u[p] = spops_multiply_add(old, cosine, -(v[p] * s));
                v[p] = spops_multiply_add(v[p], cosine, old * s);
            }
        }
    }
}

// Normalises a head of n rows.
static void norm_rows(const spops_attention_norm_args *norm, float epsilon, int64_t n, int64_t head,
                      int64_t dim, float *m)
{
    const int64_t stride = whole_vecs(dim);
    const float *weights;
    if (norm->weights == NULL) return;
    weights = norm->weights + head * norm->stride;
    for (int64_t i = 0; i < n; ++i) {
        float *x = m + i * stride, parts[SUM_PARTS] = {0.0f}, sum = 0.0f;
        for (int64_t c = 0; c < dim; c += SUM_PARTS) {
            const int64_t width = least(SUM_PARTS, dim - c);
#pragma omp simd
            for (int64_t part = 0; part < width; ++part)
                parts[part] = spops_multiply_add(x[c + part], x[c + part], parts[part]);
        }
        for (int part = 0; part < SUM_PARTS; ++part)
            sum += parts[part];
        const float factor = 1.0f / sqrtf(sum / (float)dim + epsilon);
        for (int64_t c = 0; c < dim; ++c)
            x[c] = x[c] * factor * weights[c];
    }
}

// A head of rows of q or of k, as they are multiplied.
static void load_turned(const spops_attention_args *args, const spops_attention_memory *memory,
                        int side, const int32_t *rows, int64_t n, int64_t head, float *dst)
{
    const spops_attention_view *v = side == SPOPS_ATTENTION_Q ? &args->q : &args->k;
    load_rows(v, rows, n, head, args->dim, dst);
    norm_rows(&args->norms[side], args->epsilon, n, head, args->dim, dst);
    turn_rows(&args->rotary, memory->turns[side], rows, n, whole_vecs(args->dim), false, dst);
}

static void scale_rows(float factor, int64_t n, float *m)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_vec(m + i, load_vec(m + i) * factor);
}

// dst[c][TILE] from n rows of `stride`, with zeros after them up to whole vectors.
static void transpose(const float *m, int64_t n, int64_t dim, int64_t stride, float *dst)
{
    for (int64_t c = 0; c < dim; ++c) {
        for (int64_t i = 0; i < n; ++i)
            dst[c * TILE + i] = m[i * stride + c];
        for (int64_t i = n; i < whole_vecs(n); ++i)
            dst[c * TILE + i] = 0.0f;
    }
}

// ---- Biases -------------------------------------------------------------------------------------

// The row of the table that has the bias of two rows along an axis.
SPOPS_INLINE int64_t bias_row(const spops_attention_bias_args *bias, int64_t q_row, int64_t k_row,
                              int axis)
{
    return spops_attention_table_row(bias->range, axis, bias->coords[q_row * bias->stride + axis],
                                     bias->key_coords[k_row * bias->key_stride + axis]);
}

static float bias_of(const spops_attention_bias_args *bias, int64_t q_row, int64_t k_row,
                     int64_t head)
{
    float sum = 0.0f;
    for (int axis = 0; axis < 3; ++axis)
        sum += bias->table[bias_row(bias, q_row, k_row, axis) * bias->table_stride + head];
    return sum;
}

// s[j][i] += the bias of row rows[i] of the tile and row others[j]; the tile's rows are queries, or
// keys.
static void add_biases(const spops_attention_bias_args *bias, bool queries, const int32_t *rows,
                       int64_t n, const int32_t *others, int64_t m, int64_t head, float *s)
{
    if (bias->table == NULL) return;
    for (int64_t j = 0; j < m; ++j)
        for (int64_t i = 0; i < n; ++i)
            s[j * TILE + i] += queries ? bias_of(bias, rows[i], others[j], head)
                                       : bias_of(bias, others[j], rows[i], head);
}

// ---- Forward ------------------------------------------------------------------------------------

// Softmax of a block of m keys, as far as it is known: s becomes exp(s - max), max and sum go on, and
// what was summed before is to be multiplied by `factor`.
static void soften(float *s, int64_t n, int64_t m, float *max, float *sum, float *factor)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const vec before = load_vec(max + i);
        vec now = before, total = {0.0f};
        for (int64_t j = 0; j < m; ++j)
            now = max_vec(load_vec(s + j * TILE + i), now);
        const vec base = finite_or_0(now);
        for (int64_t j = 0; j < m; ++j) {
            const vec p = exp_vec(load_vec(s + j * TILE + i) - base);
            store_vec(s + j * TILE + i, p);
            total += p;
        }
        const vec f = exp_vec(before - base);
        store_vec(max + i, now);
        store_vec(sum + i, add_product(total, load_vec(sum + i), f));
        store_vec(factor + i, f);
    }
}

static void forward(const spops_attention_args *args, const spops_attention_memory *memory,
                    const spops_patch_tile *tile, int32_t head)
{
    const spops_patch_arrays *patches = args->patches;
    const int32_t kv_head = spops_attention_kv_head(args, head);
    const int64_t dim = args->dim, stride = whole_vecs(dim), n = tile->num_entries;
    const int32_t *q_rows = patches->q_rows + tile->first_entry;
    const int32_t *k_rows = rows_from(patches->k_rows, patches->k_offsets[tile->patch]);
    _Alignas(64) float columns[MAX_DIM * TILE], k[TILE * MAX_DIM], v[TILE * MAX_DIM];
    _Alignas(64) float s[TILE * TILE], o[TILE * MAX_DIM], max[TILE], sum[TILE], factor[TILE];

    load_turned(args, memory, SPOPS_ATTENTION_Q, q_rows, n, head, o);
    scale_rows(args->scale, n * stride, o);
    transpose(o, n, dim, stride, columns);
    memset(o, 0, (size_t)(n * stride) * sizeof *o);
    for (int64_t i = 0; i < TILE; ++i) {
        max[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    for (int64_t first = 0; first < tile->num_others; first += TILE) {
        const int32_t *rows = k_rows + first;
        const int64_t m = least(TILE, tile->num_others - first);
        const product scores = {k, stride, 1, m, dim, columns, TILE, n, s, TILE, false};
        const product outputs = {s, 1, TILE, n, m, v, stride, dim, o, stride, true};
        load_turned(args, memory, SPOPS_ATTENTION_K, rows, m, kv_head, k);
        load_rows(&args->v, rows, m, kv_head, dim, v);
        multiply(&scores);
        add_biases(&args->bias, true, q_rows, n, rows, m, head, s);
        soften(s, n, m, max, sum, factor);
        for (int64_t i = 0; first > 0 && i < n; ++i)
            if (factor[i] != 1.0f) scale_rows(factor[i], stride, o + i * stride);
        multiply(&outputs);
    }
    for (int64_t i = 0; i < n; ++i) {
        if (tile->num_others > 0) scale_rows(1.0f / sum[i], stride, o + i * stride);
        store_row(&args->o, q_rows[i], head, dim, o + i * stride);
        if (args->lse != NULL)
            args->lse[(int64_t)q_rows[i] * args->heads + head] = max[i] + logf(sum[i]);
    }
}

// ---- Backward -----------------------------------------------------------------------------------

// Of n queries: rows of q, turned and scaled, rows of grad_o, and lse and grad_o . o.
static void load_queries(const spops_attention_backward_args *args,
                         const spops_attention_memory *memory, const int32_t *rows, int64_t n,
                         int64_t head, float *q, float *g, float *lse, float *dot)
{
    const spops_attention_args *forward_args = &args->forward;
    const int64_t dim = forward_args->dim, stride = whole_vecs(dim);
    _Alignas(64) float o[MAX_DIM];

    load_turned(forward_args, memory, SPOPS_ATTENTION_Q, rows, n, head, q);
    scale_rows(forward_args->scale, n * stride, q);
    load_rows(&args->grad_o, rows, n, head, dim, g);
    for (int64_t i = 0; i < n; ++i) {
        float parts[SUM_PARTS] = {0.0f};
        load_rows(&forward_args->o, rows + i, 1, head, dim, o);
        for (int64_t c = 0; c < dim; c += SUM_PARTS) {
            const int64_t width = least(SUM_PARTS, dim - c);
#pragma omp simd
            for (int64_t part = 0; part < width; ++part)
                parts[part] =
                    spops_multiply_add(g[i * stride + c + part], o[c + part], parts[part]);
        }
        dot[i] = 0.0f;
        for (int part = 0; part < SUM_PARTS; ++part)
            dot[i] += parts[part];
        lse[i] = forward_args->lse[(int64_t)rows[i] * forward_args->heads + head];
    }
}

// Gradients of a tile to the rows, or to the entries.
static void store_gradients(const spops_attention_view *view, float *entries,
                            const spops_patch_tile *tile, const int32_t *rows, int64_t heads,
                            int32_t head, int64_t dim, const float *grad)
{
    const int64_t stride = whole_vecs(dim);
    for (int64_t i = 0; i < tile->num_entries; ++i) {
        if (entries != NULL)
            memcpy(entries + ((tile->first_entry + i) * heads + head) * dim, grad + i * stride,
                   (size_t)dim * sizeof *grad);
        else if (view->data != NULL)
            store_row(view, rows[i], head, dim, grad + i * stride);
    }
}

static void grad_queries(const spops_attention_backward_args *args,
                         const spops_attention_memory *memory, const spops_patch_tile *tile,
                         int32_t head, float *table)
{
    const spops_attention_args *f = &args->forward;
    const int32_t kv_head = spops_attention_kv_head(f, head);
    const bool wants_q = spops_attention_wants_q(args);
    const spops_patch_arrays *patches = f->patches;
    const int64_t dim = f->dim, stride = whole_vecs(dim), n = tile->num_entries;
    const int32_t *q_rows = patches->q_rows + tile->first_entry;
    const int32_t *k_rows = rows_from(patches->k_rows, patches->k_offsets[tile->patch]);
    _Alignas(64) float q_columns[MAX_DIM * TILE], g_columns[MAX_DIM * TILE];
    _Alignas(64) float k[TILE * MAX_DIM], v[TILE * MAX_DIM], grad[TILE * MAX_DIM];
    _Alignas(64) float s[TILE * TILE], t[TILE * TILE], lse[TILE] = {0}, dot[TILE] = {0};

    load_queries(args, memory, q_rows, n, head, k, v, lse, dot);
    transpose(k, n, dim, stride, q_columns);
    transpose(v, n, dim, stride, g_columns);
    memset(grad, 0, (size_t)(n * stride) * sizeof *grad);
    for (int64_t first = 0; first < tile->num_others; first += TILE) {
        const int32_t *rows = k_rows + first;
        const int64_t m = least(TILE, tile->num_others - first);
        const product scores = {k, stride, 1, m, dim, q_columns, TILE, n, s, TILE, false};
        const product slopes = {v, stride, 1, m, dim, g_columns, TILE, n, t, TILE, false};
        const product sums = {s, 1, TILE, n, m, k, stride, dim, grad, stride, true};
        load_turned(f, memory, SPOPS_ATTENTION_K, rows, m, kv_head, k);
        load_rows(&f->v, rows, m, kv_head, dim, v);
        multiply(&scores);
        add_biases(&f->bias, true, q_rows, n, rows, m, head, s);
        multiply(&slopes);
        for (int64_t j = 0; j < m; ++j) {
            for (int64_t i = 0; i < n; i += LANES) {
                float *at = s + j * TILE + i;
                const vec p = exp_vec(load_vec(at) - load_vec(lse + i));
                store_vec(at, p * (load_vec(t + j * TILE + i) - load_vec(dot + i)));
            }
        }
        if (wants_q) multiply(&sums);
        for (int64_t j = 0; table != NULL && j < m; ++j)
            for (int64_t i = 0; i < n; ++i)
                for (int axis = 0; axis < 3; ++axis)
                    table[bias_row(&f->bias, q_rows[i], rows[j], axis) * f->heads + head] +=
                        s[j * TILE + i];
    }
    if (!wants_q) return;
    scale_rows(f->scale, n * stride, grad);
    turn_rows(&f->rotary, memory->turns[SPOPS_ATTENTION_Q], q_rows, n, stride, true, grad);
    store_gradients(&args->grad_q, memory->entry_q, tile, q_rows, f->heads, head, dim, grad);
}

// Of a block of m queries: logits s become weights, and t, products of grad_o and v, their slopes.
static void weigh_and_slope(int64_t n, int64_t m, const float *lse, const float *dot, float *s,
                            float *t)
{
    for (int64_t j = 0; j < m; ++j) {
        for (int64_t i = 0; i < n; i += LANES) {
            float *at_s = s + j * TILE + i, *at_t = t + j * TILE + i;
            const vec p = exp_vec(load_vec(at_s) - lse[j]);
            store_vec(at_s, p);
            store_vec(at_t, p * (load_vec(at_t) - dot[j]));
        }
    }
}

static void grad_keys(const spops_attention_backward_args *args,
                      const spops_attention_memory *memory, const spops_patch_tile *tile,
                      int32_t head)
{
    const spops_attention_args *f = &args->forward;
    const int32_t first_head = spops_attention_first_head(f, head);
    const spops_patch_arrays *patches = f->patches;
    const int64_t dim = f->dim, stride = whole_vecs(dim), n = tile->num_entries;
    const int32_t *k_rows = patches->k_rows + tile->first_entry;
    const int32_t *q_rows = rows_from(patches->q_rows, patches->q_offsets[tile->patch]);
    _Alignas(64) float k_columns[MAX_DIM * TILE], v_columns[MAX_DIM * TILE];
    _Alignas(64) float q[TILE * MAX_DIM], g[TILE * MAX_DIM];
    _Alignas(64) float grad_k[TILE * MAX_DIM], grad_v[TILE * MAX_DIM];
    _Alignas(64) float s[TILE * TILE], t[TILE * TILE], lse[TILE], dot[TILE];

    load_turned(f, memory, SPOPS_ATTENTION_K, k_rows, n, head, q);
    transpose(q, n, dim, stride, k_columns);
    load_rows(&f->v, k_rows, n, head, dim, q);
    transpose(q, n, dim, stride, v_columns);
    memset(grad_k, 0, (size_t)(n * stride) * sizeof *grad_k);
    memset(grad_v, 0, (size_t)(n * stride) * sizeof *grad_v);
    for (int32_t q_head = first_head; q_head < first_head + f->heads / f->kv_heads; ++q_head)
        for (int64_t first = 0; first < tile->num_others; first += TILE) {
            const int32_t *rows = q_rows + first;
            const int64_t m = least(TILE, tile->num_others - first);
            const product scores = {q, stride, 1, m, dim, k_columns, TILE, n, s, TILE, false};
            const product slopes = {g, stride, 1, m, dim, v_columns, TILE, n, t, TILE, false};
            const product sums_v = {s, 1, TILE, n, m, g, stride, dim, grad_v, stride, true};
            const product sums_k = {t, 1, TILE, n, m, q, stride, dim, grad_k, stride, true};
            load_queries(args, memory, rows, m, q_head, q, g, lse, dot);
            multiply(&scores);
            add_biases(&f->bias, false, k_rows, n, rows, m, q_head, s);
            multiply(&slopes);
            weigh_and_slope(n, m, lse, dot, s, t);
            if (args->grad_v.data != NULL) multiply(&sums_v);
            if (spops_attention_wants_k(args)) multiply(&sums_k);
        }
    turn_rows(&f->rotary, memory->turns[SPOPS_ATTENTION_K], k_rows, n, stride, true, grad_k);
    if (spops_attention_wants_k(args))
        store_gradients(&args->grad_k, memory->entry_k, tile, k_rows, f->kv_heads, head, dim,
                        grad_k);
    if (args->grad_v.data != NULL)
        store_gradients(&args->grad_v, memory->entry_v, tile, k_rows, f->kv_heads, head, dim,
                        grad_v);
}

const spops_attention_table SPOPS_ISA_TABLE(spops_attention_table) = {
    .forward = forward,
    .grad_queries = grad_queries,
    .grad_keys = grad_keys,
};
