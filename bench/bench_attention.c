// SPDX-License-Identifier: Apache-2.0
// Attention within patches and to rows of another matrix, forward and backward. The rows of the patches
// lie in a random order, so that what is measured has to gather them. The plan is ready.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_report.h"
#include "spops/attention.h"
#include "spops/patches.h"

#define NUM_SAMPLES  6  // rows whose values are checked, with one head each
#define QUICK_FACTOR 30 // fewer patches
#define CPU_FACTOR   120

typedef struct attention_shape {
    int64_t patches, rows; // of a patch
    int32_t heads, dim;
    int32_t kv_heads; // 0: heads
    int64_t keys;     // of a patch, rows of another matrix; 0: its queries
    bool norm;        // RMS norms and rotary positions, of rows in one place: angles of 0
} attention_shape;
static const attention_shape shapes[] = {
    {120, 1024, 8, 64, 0, 0, false},     {30, 4096, 8, 64, 0, 0, false},
    {480, 256, 8, 64, 0, 0, false},      {120, 1024, 16, 32, 0, 0, false},
    {120, 1024, 32, 16, 0, 0, false},    {120, 1024, 4, 128, 0, 0, false},
    {120, 1024, 2, 64, 0, 0, false},     {960, 128, 8, 64, 0, 0, false},
    {120, 1024, 8, 64, 2, 0, false},     {120, 1024, 4, 128, 1, 0, false},
    {120, 1024, 2, 256, 0, 0, false},    {120, 1024, 4, 128, 0, 0, true},
    {1, 32768, 12, 128, 0, 4101, false}, {1, 32768, 12, 128, 0, 4101, true},
    {120, 1024, 2, 192, 0, 0, false},    {1, 32768, 12, 64, 0, 0, false},
    {1, 32768, 12, 128, 0, 0, false},    {1, 8192, 12, 128, 0, 0, false},
    {4, 1024, 8, 64, 0, 0, false},       {1, 1024, 4, 128, 0, 0, false},
};

static const char *wanted_heads;

// Such as 8x64.
static bool is_heads(const char *item)
{
    char text[64];
    int64_t number;
    const char *by = strchr(item, 'x');
    if (by == NULL || by - item >= (int)sizeof text) return false;
    memcpy(text, item, (size_t)(by - item));
    text[by - item] = 0;
    return options_read_number(text, 1, 1024, &number) &&
           options_read_number(by + 1, 1, 256, &number);
}

static const bench_option options[] = {
    {"--heads", "LIST", "8x64,4x128: shapes of so many heads and columns of one (default: all)",
     .accepts = is_heads, .text = &wanted_heads},
    {0}};

enum { GRAD_O, Q, K, V, NUM_INPUTS, O = NUM_INPUTS, GRAD_Q, GRAD_K, GRAD_V, NUM_MATRICES };
static const char *const names[NUM_MATRICES] = {"grad_o", "q",      "k",      "v",
                                                "o",      "grad_q", "grad_k", "grad_v"};

typedef struct attention_data {
    bench *b;
    attention_shape shape;
    int64_t num_rows, num_key_rows, keys; // keys of a patch
    int32_t *rows, *key_rows; // of the patches, one after the other; host; may be the same
    spops_patches *plan;
    spops_attention_options options;
    spops_attention_norm norm;
    spops_attention_rotary rotary;
    void *ones, *places, *key_places;
    bench_block inputs[NUM_INPUTS];
    void *memory[NUM_MATRICES];
    spops_matrix matrices[NUM_MATRICES];
    float *lse;
    struct expected_row *expected[NUM_MATRICES]; // [NUM_SAMPLES]; NULL: not computed yet
    spops_status status;                         // of the first call that failed
} attention_data;

static void note_status(attention_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static void enqueue_forward(void *user)
{
    attention_data *d = user;
    const spops_matrix *m = d->matrices;
    note_status(d, spops_attention_execute(d->b->ctx, d->plan, m[Q], m[K], m[V], &d->options, m[O],
                                           d->lse));
}

static void enqueue_backward(void *user)
{
    attention_data *d = user;
    const spops_matrix *m = d->matrices;
    note_status(d, spops_attention_execute_backward(d->b->ctx, d->plan, m[GRAD_O], m[Q], m[K], m[V],
                                                    m[O], d->lse, &d->options, &m[GRAD_Q],
                                                    &m[GRAD_K], &m[GRAD_V], NULL, NULL, NULL));
}

// ---- Whether results are right ------------------------------------------------------------------

// Heads of q that meet one of k and v.
static int group_of(const attention_data *d)
{
    return d->options.kv_heads == 0 ? 1 : d->shape.heads / d->options.kv_heads;
}

// Of a head of q.
static const float *input(const attention_data *d, int which, int32_t row, int head)
{
    const int own = which == K || which == V ? head / group_of(d) : head;
    return bench_block_row(&d->inputs[which], row, d->matrices[which].cols) +
           (int64_t)own * d->shape.dim;
}

static double dot(const attention_data *d, const float *a, const float *b)
{
    double sum = 0;
    for (int c = 0; c < d->shape.dim; ++c)
        sum += (double)a[c] * (double)b[c];
    return sum;
}

// What the norm multiplies a row with.
static double factor_of(const attention_data *d, const float *x)
{
    if (!d->shape.norm) return 1.0;
    return 1.0 / sqrt(dot(d, x, x) / d->shape.dim + (double)d->norm.epsilon);
}

// A head of a query of a patch: weights of the keys, o, and grad_o . o.
typedef struct query {
    double *weights;
    double o[BENCH_MAX_WIDTH], magnitude[BENCH_MAX_WIDTH];
    double grad_dot, grad_magnitude;
} query;

static double scale_of(const attention_data *d)
{
    return 1.0 / sqrt((double)d->shape.dim);
}

static void compute_query(const attention_data *d, const int32_t *keys, int32_t row, int head,
                          query *q)
{
    const int64_t n = d->keys;
    const float *x = input(d, Q, row, head);
    const double scale = scale_of(d) * factor_of(d, x);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; ++j) {
        const float *k = input(d, K, keys[j], head);
        q->weights[j] = scale * factor_of(d, k) * dot(d, x, k);
        top = fmax(top, q->weights[j]);
    }
    for (int64_t j = 0; j < n; ++j)
        sum += q->weights[j] = exp(q->weights[j] - top);
    q->grad_dot = q->grad_magnitude = 0;
    for (int c = 0; c < d->shape.dim; ++c)
        q->o[c] = q->magnitude[c] = 0;
    for (int64_t j = 0; j < n; ++j) {
        q->weights[j] /= sum;
        for (int c = 0; c < d->shape.dim; ++c) {
            const double term = q->weights[j] * (double)input(d, V, keys[j], head)[c];
            q->o[c] += term;
            q->magnitude[c] += fabs(term);
        }
    }
    for (int c = 0; c < d->shape.dim; ++c) {
        const double grad = (double)input(d, GRAD_O, row, head)[c];
        q->grad_dot += grad * q->o[c];
        q->grad_magnitude += fabs(grad) * q->magnitude[c];
    }
}

// What a head of a row of a result should be, and the magnitude of what it is made of, where roundings to
// the dtype are relative to it.
typedef struct expected_row {
    int32_t row, head; // of the result
    double value[BENCH_MAX_WIDTH], magnitude[BENCH_MAX_WIDTH];
} expected_row;

static void add_scaled(const attention_data *d, double factor, double bound, const float *from,
                       expected_row *e)
{
    for (int c = 0; c < d->shape.dim; ++c) {
        e->value[c] += factor * (double)from[c];
        e->magnitude[c] += bound * fabs((double)from[c]);
    }
}

// ds[i, j] of a query and its key j, times the scale; its bound: what it is the difference of.
static double logit_gradient(const attention_data *d, const query *q, int32_t row, int32_t key,
                             int64_t j, int head, double *bound)
{
    const double along = dot(d, input(d, GRAD_O, row, head), input(d, V, key, head));
    const double weight = scale_of(d) * q->weights[j];
    *bound = weight * (fabs(along) + q->grad_magnitude);
    return weight * (along - q->grad_dot);
}

// Through the norm of a row x.
static void differentiate_norm(const attention_data *d, const float *x, expected_row *e)
{
    const double factor = factor_of(d, x), n = d->shape.dim;
    double sum = 0, magnitude = 0;
    if (!d->shape.norm) return;
    for (int c = 0; c < d->shape.dim; ++c) {
        sum += e->value[c] * (double)x[c] * factor / n;
        magnitude += e->magnitude[c] * fabs((double)x[c]) * factor / n;
    }
    for (int c = 0; c < d->shape.dim; ++c) {
        e->value[c] = factor * (e->value[c] - (double)x[c] * factor * sum);
        e->magnitude[c] = factor * (e->magnitude[c] + fabs((double)x[c]) * factor * magnitude);
    }
}

// head: of q; of the gradients of keys one that meets theirs.
static void expect_row(const attention_data *d, int64_t patch, int64_t place, int head, int which,
                       query *q, expected_row *e)
{
    const int32_t *queries = d->rows + patch * d->shape.rows;
    const int32_t *keys = d->key_rows + patch * d->keys;
    const int first = head / group_of(d) * group_of(d);
    double bound;
    memset(e, 0, sizeof *e);
    e->row = (which == O || which == GRAD_Q ? queries : keys)[place];
    e->head = which == O || which == GRAD_Q ? head : head / group_of(d);
    if (which == O || which == GRAD_Q) {
        const int32_t row = queries[place];
        compute_query(d, keys, row, head, q);
        for (int64_t j = 0; j < d->keys; ++j) {
            const float *k = input(d, K, keys[j], head);
            const double ds = logit_gradient(d, q, row, keys[j], j, head, &bound);
            if (which == O)
                add_scaled(d, q->weights[j], q->weights[j], input(d, V, keys[j], head), e);
            else
                add_scaled(d, ds * factor_of(d, k), bound * factor_of(d, k), k, e);
        }
        if (which == GRAD_Q) differentiate_norm(d, input(d, Q, row, head), e);
        return;
    }
    for (int64_t i = 0; i < d->shape.rows * group_of(d); ++i) { // a key: of all queries
        const int32_t row = queries[i / group_of(d)];
        const int own = first + (int)(i % group_of(d));
        compute_query(d, keys, row, own, q);
        const float *x = input(d, Q, row, own);
        const double ds = logit_gradient(d, q, row, keys[place], place, own, &bound);
        if (which == GRAD_V)
            add_scaled(d, q->weights[place], q->weights[place], input(d, GRAD_O, row, own), e);
        else
            add_scaled(d, ds * factor_of(d, x), bound * factor_of(d, x), x, e);
    }
    if (which == GRAD_K) differentiate_norm(d, input(d, K, keys[place], head), e);
}

// The rows of a result that are checked, once for all ways of computing them.
static bool expect_rows(attention_data *d, int which, int num_samples)
{
    const bool of_keys = which == GRAD_K || which == GRAD_V;
    const int64_t length = of_keys ? d->keys : d->shape.rows;
    if (d->expected[which] != NULL) return true;
    query q = {.weights = bench_host(d->b, d->keys, sizeof *q.weights)};
    d->expected[which] = bench_host(d->b, NUM_SAMPLES, sizeof *d->expected[which]);
    const bool good = q.weights != NULL && d->expected[which] != NULL;
    for (int s = 0; s < num_samples && good; ++s) {
        const uint64_t random = bench_random(77 + (uint64_t)which, (uint64_t)s);
        const int64_t patch = (int64_t)(random % (uint64_t)d->shape.patches);
        const int64_t place = (int64_t)(random >> 32) % length;
        const int head = (int)((random >> 20) % (uint64_t)d->shape.heads);
        expect_row(d, patch, place, head, which, &q, &d->expected[which][s]);
    }
    free(q.weights);
    return good;
}

static bool check_rows(attention_data *d, int which, int num_samples)
{
    bench *b = d->b;
    const spops_matrix *m = &d->matrices[which];
    const size_t element = spops_dtype_bytes(m->dtype);
    // A weight and the result are rounded to the dtype; a difference also of rounded o. In tf32 each
    // of four factors is, by 2^-10.
    const bool tf32 = d->options.math == SPOPS_MATH_TF32;
    const bool exact = d->matrices[Q].dtype == SPOPS_DTYPE_F32 && !tf32;
    // Normalised rows are rounded too.
    const double roundings = (which == O || which == GRAD_V ? 2.5 : 4) + (d->shape.norm ? 3 : 0);
    const double unit = d->matrices[Q].dtype == SPOPS_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    const double allowed = exact ? 1e-5 : roundings * unit;
    void *got = bench_host(b, m->cols, element);
    bool good = got != NULL && expect_rows(d, which, num_samples);
    for (int s = 0; s < num_samples && good; ++s) {
        const expected_row *e = &d->expected[which][s];
        good = bench_download(b, got,
                              (const char *)m->data + (size_t)(e->row * m->row_stride) * element,
                              (size_t)m->cols * element);
        for (int c = 0; c < d->shape.dim && good; ++c) {
            const double value = bench_get(got, m->dtype, (int64_t)e->head * d->shape.dim + c);
            if (!(fabs(value - e->value[c]) <= allowed * e->magnitude[c]))
                good = bench_fail(b, "attention: %s[%d, %d * %d + %d] is %g, expected %g +- %g",
                                  names[which], (int)e->row, (int)e->head, (int)d->shape.dim, c,
                                  value, e->value[c], allowed * e->magnitude[c]);
        }
    }
    free(got);
    return good;
}

// ---- Measuring ----------------------------------------------------------------------------------

static bool run_once(attention_data *d, void (*enqueue)(void *user), int first, int last)
{
    for (int i = first; i <= last; ++i) {
        const spops_matrix *m = &d->matrices[i];
        if (!bench_poison(d->b, m->data, (size_t)(m->rows * m->cols) * spops_dtype_bytes(m->dtype)))
            return false;
    }
    d->status = SPOPS_STATUS_OK;
    enqueue(d);
    if (!device_stream_wait(d->b->backend, d->b->stream))
        return bench_fail(d->b, "run: %s", device_error());
    return bench_check(d->b, "attention", d->status);
}

typedef struct attention_pass {
    const char *name;
    void (*enqueue)(void *user);
    int first, first_out, last; // matrices that it reads, each once; those that it writes
    int products;
} attention_pass;
enum { FORWARD, BACKWARD };
static const attention_pass passes[] = {{"forward", enqueue_forward, Q, O, O, 2},
                                        {"backward", enqueue_backward, GRAD_O, GRAD_Q, GRAD_V, 5}};

static bool is_backward(const attention_pass *pass)
{
    return pass == &passes[BACKWARD];
}

// The tile of the pass with the options as they are; 0: none takes the rows, or there is no choice.
static int32_t tile_of(const attention_data *d, const attention_pass *pass)
{
    int32_t tile = 0;
    const spops_matrix *q = &d->matrices[Q];
    const spops_status status = spops_attention_get_tile(
        d->b->ctx, d->plan, q->cols, q->dtype, &d->options, is_backward(pass) ? 1 : 0, &tile);
    return status == SPOPS_STATUS_OK ? tile : 0;
}

// With the options as they are: scratch, and whether results are right.
static bool prepare_pass(attention_data *d, const attention_pass *pass)
{
    bench *b = d->b;
    const spops_matrix *q = &d->matrices[Q];
    // Of keys, each of which takes all queries and those all keys.
    const int64_t pairs = d->shape.rows * d->keys;
    const int of_keys = pairs > 1 << 24 ? 0 : pairs > 1 << 20 ? 1 : 2;
    const size_t bytes = spops_attention_scratch_bytes(d->plan, q->cols, q->dtype, &d->options,
                                                       is_backward(pass) ? 1 : 0);
    bool good = bench_check(b, "reserve", spops_context_reserve(b->ctx, bytes)) &&
                run_once(d, pass->enqueue, pass->first_out, pass->last);
    for (int i = pass->first_out; i <= pass->last && good; ++i)
        good = check_rows(d, i, i == GRAD_K || i == GRAD_V ? of_keys : NUM_SAMPLES);
    return good;
}

static void name_case(const attention_data *d, const attention_pass *pass, bench_case *c)
{
    const attention_shape *s = &d->shape;
    char keys[32] = "", shared[32] = "", tile[32] = "";
    if (s->keys > 0) snprintf(keys, sizeof keys, " to %lld", (long long)s->keys);
    if (s->kv_heads > 0) snprintf(shared, sizeof shared, " of %d", (int)s->kv_heads);
    if (d->b->options.tiles != NULL && tile_of(d, pass) > 0)
        snprintf(tile, sizeof tile, "; spops takes tile %d", (int)tile_of(d, pass));
    snprintf(c->name, sizeof c->name, "%lld x %lld rows%s, %d%s x %d,%s %s%s",
             (long long)s->patches, (long long)s->rows, keys, (int)s->heads, shared, (int)s->dim,
             s->norm ? " norm," : "", pass->name, d->b->options.tf32 ? " tf32" : "");
    snprintf(c->what, sizeof c->what, "%lld patches of %lld rows%s in a random order%s",
             (long long)s->patches, (long long)s->rows, keys, tile);
    c->dtype = d->matrices[Q].dtype;
    c->cols = d->matrices[Q].cols;
}

// By what is chosen, then by each tile that is wanted and takes the rows.
static void measure_pass(attention_data *d, const attention_pass *pass)
{
    const attention_shape *s = &d->shape;
    bench *b = d->b;
    bench_case c = {.suite = "attention"};
    name_case(d, pass, &c);
    for (int i = pass->first; i <= pass->last; ++i)
        c.bytes += d->matrices[i].rows * d->matrices[i].cols * (int64_t)spops_dtype_bytes(c.dtype);
    bench_case_note(&c, "flops",
                    2 * pass->products * s->patches * s->rows * d->keys * s->heads * s->dim);
    if (b->options.tiles != NULL) bench_case_note(&c, "default_tile", tile_of(d, pass));
    for (int32_t tile = 0; tile <= BENCH_MAX_TILE; ++tile) {
        if (tile > 0 && !bench_wants_tile(b, tile)) continue;
        d->options.tile = tile;
        if (tile > 0 && tile_of(d, pass) != tile) continue;
        if (!prepare_pass(d, pass) || !bench_case_time_tile(b, &c, tile, pass->enqueue, d) ||
            !bench_check(b, pass->name, d->status))
            break;
    }
    d->options.tile = 0;
    if (c.num_variants > 0) bench_case_print(b, &c);
}

static bool open_matrices(attention_data *d, spops_dtype dtype)
{
    bench *b = d->b;
    for (int i = 0; i < NUM_MATRICES; ++i) {
        const bool of_keys = i == K || i == V || i == GRAD_K || i == GRAD_V;
        const int64_t rows = of_keys ? d->num_key_rows : d->num_rows;
        const int64_t cols = (int64_t)d->shape.heads / (of_keys ? group_of(d) : 1) * d->shape.dim;
        if (!bench_alloc(b, (size_t)(rows * cols) * spops_dtype_bytes(dtype), &d->memory[i]))
            return false;
        d->matrices[i] = spops_matrix_dense(d->memory[i], rows, cols, dtype);
        if (i < NUM_INPUTS &&
            (!bench_block_create(dtype, 20 + (uint64_t)i, -2.0f, 2.0f, &d->inputs[i]) ||
             !bench_block_upload(&d->inputs[i], b->backend, d->memory[i], rows * cols)))
            return bench_fail(b, "no memory for %s", names[i]);
    }
    void *lse = NULL;
    const bool good = bench_alloc(b, (size_t)(d->num_rows * d->shape.heads) * sizeof(float), &lse);
    d->lse = lse;
    return good;
}

// Rows of the patches of a side, `length` each, in a random order; host, and device_rows.
static int32_t *open_rows(bench *b, int64_t n, uint64_t seed, void **device_rows)
{
    int32_t *rows = bench_host(b, n, sizeof *rows);
    if (rows == NULL) return NULL;
    bench_fill_permutation(rows, n, seed);
    if (bench_upload(b, rows, (size_t)n * sizeof *rows, device_rows)) return rows;
    free(rows);
    return NULL;
}

static bool open_offsets(bench *b, int64_t patches, int64_t length, void **device_offsets)
{
    int32_t *offsets = bench_host(b, patches + 1, sizeof *offsets);
    bool good = offsets != NULL;
    for (int64_t p = 0; good && p <= patches; ++p)
        offsets[p] = (int32_t)(p * length);
    good =
        good && bench_upload(b, offsets, (size_t)(patches + 1) * sizeof *offsets, device_offsets);
    free(offsets);
    return good;
}

static bool open_plan(attention_data *d)
{
    bench *b = d->b;
    const bool apart = d->shape.keys > 0;
    void *arrays[4] = {NULL};
    d->rows = open_rows(b, d->num_rows, 5, &arrays[1]);
    d->key_rows = apart ? open_rows(b, d->num_key_rows, 6, &arrays[3]) : d->rows;
    bool good = d->rows != NULL && d->key_rows != NULL &&
                open_offsets(b, d->shape.patches, d->shape.rows, &arrays[0]) &&
                (!apart || open_offsets(b, d->shape.patches, d->keys, &arrays[2]));
    if (good) {
        const spops_patch_lists lists = {.num_patches = d->shape.patches,
                                         .query_offsets = arrays[0],
                                         .query_rows = arrays[1],
                                         .key_offsets = arrays[2],
                                         .key_rows = arrays[3],
                                         .num_key_rows = apart ? d->num_key_rows : 0};
        good =
            bench_check(b, "patches", spops_patches_create(b->ctx, d->num_rows, &lists, &d->plan));
    }
    for (int i = 0; i < 4; ++i)
        bench_free(b, arrays[i]);
    return good;
}

// Weights of 1, and all rows in one place.
static bool open_norm(attention_data *d)
{
    bench *b = d->b;
    const int64_t n = d->shape.dim, rows = d->num_rows, key_rows = d->num_key_rows;
    float *values = bench_host(b, n + 3 * (rows + key_rows), sizeof *values);
    if (values == NULL) return false;
    for (int64_t i = 0; i < n + 3 * (rows + key_rows); ++i)
        values[i] = i < n ? 1.0f : 0.0f;
    const bool good =
        bench_upload(b, values, (size_t)n * sizeof *values, &d->ones) &&
        bench_upload(b, values + n, (size_t)(3 * rows) * sizeof *values, &d->places) &&
        bench_upload(b, values + n, (size_t)(3 * key_rows) * sizeof *values, &d->key_places);
    free(values);
    d->norm = spops_attention_norm_default();
    d->norm.epsilon = 1e-5f;
    d->norm.q_weight = d->norm.k_weight = spops_matrix_dense(d->ones, 1, n, SPOPS_DTYPE_F32);
    d->rotary = spops_attention_rotary_default();
    d->rotary.axis_dim = d->shape.dim / 6 * 2;
    d->rotary.coords = spops_matrix_dense(d->places, rows, 3, SPOPS_DTYPE_F32);
    d->rotary.key_coords = spops_matrix_dense(d->key_places, key_rows, 3, SPOPS_DTYPE_F32);
    d->options.norm = &d->norm;
    d->options.rotary = &d->rotary;
    return good;
}

static void measure_shape(bench *b, attention_shape shape, spops_dtype dtype)
{
    attention_data d = {.b = b, .shape = shape, .num_rows = shape.patches * shape.rows};
    d.keys = shape.keys > 0 ? shape.keys : shape.rows;
    d.num_key_rows = shape.patches * d.keys;

    d.options = spops_attention_options_default();
    d.options.heads = shape.heads;
    d.options.kv_heads = shape.kv_heads;
    d.options.math = b->options.tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    bench_progress("attention %lld x %lld, %d x %d: checking", (long long)shape.patches,
                   (long long)shape.rows, (int)shape.heads, (int)shape.dim);
    if (!open_plan(&d) || !open_matrices(&d, dtype) || (shape.norm && !open_norm(&d))) goto done;
    if (bench_wants(b->options.passes, "forward")) measure_pass(&d, &passes[FORWARD]);
    // Gradients go by what is chosen forward.
    if (bench_wants(b->options.passes, "backward") && prepare_pass(&d, &passes[FORWARD]))
        measure_pass(&d, &passes[BACKWARD]);

done:
    spops_patches_destroy(d.plan);
    for (int i = 0; i < NUM_MATRICES; ++i)
        bench_free(b, d.memory[i]), free(d.expected[i]);
    for (int i = 0; i < NUM_INPUTS; ++i)
        bench_block_destroy(&d.inputs[i]);
    bench_free(b, d.lse);
    bench_free(b, d.ones), bench_free(b, d.places), bench_free(b, d.key_places);
    if (d.key_rows != d.rows) free(d.key_rows);
    free(d.rows);
}

static void run_suite(bench *b)
{
    const bool cpu = b->backend == SPOPS_BACKEND_CPU;
    const int64_t factor = cpu ? CPU_FACTOR : b->options.quick ? QUICK_FACTOR : 1;
    const unsigned own_dtypes = 1u << (cpu ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_BF16);
    for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_BF16; ++t) {
        if (!bench_wants_dtype(b, own_dtypes, (spops_dtype)t)) continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
            attention_shape shape = shapes[i];
            char heads[32];
            snprintf(heads, sizeof heads, "%dx%d", (int)shape.heads, (int)shape.dim);
            if (!bench_wants(wanted_heads, heads)) continue;
            if (b->options.quick && shape.rows > 1024) continue;
            if (shape.patches == 1) shape.rows /= factor; // one long list
            shape.patches = shape.patches / factor > 0 ? shape.patches / factor : 1;
            measure_shape(b, shape, (spops_dtype)t);
        }
    }
}

const bench_suite bench_suite_attention = {"attention", "forward,backward", options, run_suite};
