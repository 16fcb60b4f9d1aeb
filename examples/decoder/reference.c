// SPDX-License-Identifier: Apache-2.0
/* The decoder in FP64: sets, neighbours and sums of its own. */
#include "decoder/reference.h"

#include "decoder/surface.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 1 << 18 };

/* A level: its rows, and for each row and tap the row there or -1. */
typedef struct level_rows {
    int num;
    int32_t *rows, *table; /* [num][4], [num][TAPS] */
} level_rows;

typedef struct reference {
    const engine *e;
    const frame *f;
    differences *found;
    level_rows levels[LEVELS];
    double *x[LEVELS], *h[LEVELS], *u, *s, *out;
    float *w; /* weights of the layer at hand */
    double *first, *second;
    uint8_t *keep;
} reference;

static double *take(int rows, int cols)
{
    return (double *)calloc((size_t)rows * (size_t)cols + 1, sizeof(double));
}

/* ---- Sets ------------------------------------------------------------------------------------- */

static uint32_t place_of(const level_rows *l, const int32_t *places, uint32_t mask,
                         const int32_t *row)
{
    const uint64_t key =
        ((uint64_t)row[1] << 42) ^ ((uint64_t)row[2] << 21) ^ (uint64_t)(uint32_t)row[3];
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 40) & mask;
    while (places[at] >= 0 && memcmp(l->rows + 4 * places[at], row, 4 * sizeof *row) != 0)
        at = (at + 1) & mask;
    return at;
}

static int find_neighbours(level_rows *l)
{
    uint32_t mask = 15;
    int32_t *places;

    while (mask < 2 * (uint32_t)l->num)
        mask = 2 * mask + 1;
    places = (int32_t *)malloc((mask + 1) * sizeof *places);
    l->table = (int32_t *)malloc(((size_t)l->num * TAPS + 1) * sizeof *l->table);
    if (places == NULL || l->table == NULL) {
        free(places);
        return 1;
    }
    memset(places, 0xff, (mask + 1) * sizeof *places);
    for (int i = 0; i < l->num; ++i)
        places[place_of(l, places, mask, l->rows + 4 * i)] = i;
    for (int i = 0; i < l->num; ++i)
        for (int k = 0; k < TAPS; ++k) {
            const int32_t *r = l->rows + 4 * i;
            const int32_t row[4] = {r[0], r[1] + k / 9 - 1, r[2] + k / 3 % 3 - 1, r[3] + k % 3 - 1};
            l->table[(size_t)i * TAPS + (size_t)k] = places[place_of(l, places, mask, row)];
        }
    free(places);
    return 0;
}

/* The rows of the engine's set are these, in this order. */
static int same_rows(const reference *r, int level)
{
    const level_rows *l = &r->levels[level];
    const size_t bytes = (size_t)l->num * 4 * sizeof *l->rows;
    spops_coords_view view = spops_coords_view_default();
    int32_t *rows = (int32_t *)malloc(bytes + 1), num = -1;
    int same = rows != NULL &&
               spops_coords_get_view(r->e->d->ctx, r->e->sets[level], &view) == SPOPS_STATUS_OK &&
               device_download(r->e->d, &num, view.num_rows, sizeof num) == 0 && num == l->num &&
               device_download(r->e->d, rows, view.rows, bytes) == 0 &&
               memcmp(rows, l->rows, bytes) == 0;
    free(rows);
    if (!same)
        fprintf(stderr, "level %d: %d rows, expected %d, or other rows\n", level, num, l->num);
    return same;
}

static int make_level(reference *r, int level)
{
    level_rows *l = &r->levels[level];
    const level_rows *coarse = level > 0 ? &r->levels[level - 1] : NULL;
    const int most = level == 0 ? (int)r->f->num_rows : CHILDREN * coarse->num;

    l->rows = (int32_t *)malloc(((size_t)most * 4 + 1) * sizeof *l->rows);
    if (l->rows == NULL) return 1;
    if (level == 0) {
        memcpy(l->rows, r->f->rows, (size_t)most * 4 * sizeof *l->rows);
        l->num = most;
    } else {
        for (int i = 0; i < most; ++i) {
            if (r->keep[i] == 0) continue;
            child_of(coarse->rows + 4 * (i / CHILDREN), i % CHILDREN, l->rows + 4 * l->num++);
        }
        r->found->kept += l->num;
    }
    r->x[level] = take(l->num, r->e->net->channels[level]);
    r->h[level] = take(l->num, r->e->net->channels[level]);
    return r->x[level] == NULL || r->h[level] == NULL || l->num > MAX_ROWS || find_neighbours(l) ||
           !same_rows(r, level);
}

/* ---- Layers ----------------------------------------------------------------------------------- */

/* As the engine has them, rounded to its dtype. */
static int load_layer(reference *r, int i)
{
    const engine *e = r->e;
    const layer *l = &e->net->layers[i];
    const size_t n = (size_t)layer_num_weights(l), bytes = n * spops_dtype_bytes(e->o.dtype);
    float *vectors = (float *)calloc(2 * (size_t)l->out, sizeof *vectors);
    void *narrow = malloc(bytes + 1);
    int failed = vectors == NULL || narrow == NULL;

    free(r->w);
    free(r->first);
    r->w = (float *)malloc((n + 1) * sizeof *r->w);
    r->first = take(2, l->out);
    r->second = r->first + l->out;
    failed = failed || r->w == NULL || r->first == NULL;
    if (n > 0)
        failed = failed || device_download(e->d, narrow, e->weights[i], bytes) ||
                 device_convert(e->d, e->o.dtype, narrow, SPOPS_DTYPE_F32, r->w, n);
    for (int k = 0; k < 2 && !failed; ++k) {
        if (e->vectors[i][k] == NULL) continue;
        failed = device_download(e->d, vectors + k * l->out, e->vectors[i][k],
                                 (size_t)l->out * sizeof *vectors);
    }
    for (int o = 0; o < 2 * l->out && !failed; ++o)
        r->first[o] = (double)vectors[o];
    free(vectors);
    free(narrow);
    return failed;
}

static void add_product(double *out, const double *x, const float *w, int in, int cols)
{
    for (int c = 0; c < in; ++c) {
        const float *row = w + (size_t)c * (size_t)cols;
        for (int o = 0; o < cols; ++o)
            out[o] += x[c] * (double)row[o];
    }
}

/* out = bias + x w, or out + x w. */
static void run_linear(const reference *r, const layer *l, int rows, const double *x, int add,
                       double *out)
{
    for (int i = 0; i < rows; ++i) {
        double *to = out + (size_t)i * (size_t)l->out;
        for (int o = 0; o < l->out; ++o)
            to[o] = (add ? to[o] : 0) + r->first[o];
        add_product(to, x + (size_t)i * (size_t)l->in, r->w, l->in, l->out);
    }
}

static void run_conv(const reference *r, const layer *l, int level, const double *x, double *out)
{
    const level_rows *set = &r->levels[level];
    for (int i = 0; i < set->num; ++i) {
        double *to = out + (size_t)i * (size_t)l->out;
        for (int o = 0; o < l->out; ++o)
            to[o] = r->first[o];
        for (int k = 0; k < TAPS; ++k) {
            const int j = set->table[i * TAPS + k];
            if (j < 0) continue;
            add_product(to, x + (size_t)j * (size_t)l->in,
                        r->w + (size_t)k * (size_t)l->in * (size_t)l->out, l->in, l->out);
        }
    }
}

static double silu(double y)
{
    return y / (1 + exp(-y));
}

/* affine: with gamma and beta of the layer at hand. */
static void run_norm(const reference *r, int rows, int cols, const double *x, int affine,
                     int activate, double *out)
{
    for (int i = 0; i < rows; ++i, x += cols, out += cols) {
        double mean = 0, var = 0;
        for (int c = 0; c < cols; ++c)
            mean += x[c] / cols;
        for (int c = 0; c < cols; ++c)
            var += (x[c] - mean) * (x[c] - mean) / cols;
        for (int c = 0; c < cols; ++c) {
            double y = (x[c] - mean) / sqrt(var + NORM_EPSILON);
            if (affine) y = y * r->first[c] + r->second[c];
            out[c] = activate ? silu(y) : y;
        }
    }
}

static int run_mlp(reference *r, int i, int level)
{
    const layer *l = &r->e->net->layers[i];
    const int rows = r->levels[level].num;
    double *hidden = take(rows, l->out);
    int failed = hidden == NULL || load_layer(r, i);

    if (!failed) {
        run_linear(r, l, rows, r->h[level], 0, hidden);
        for (size_t k = 0; k < (size_t)rows * (size_t)l->out; ++k)
            hidden[k] = silu(hidden[k]);
        failed = load_layer(r, i + 1);
    }
    if (!failed) run_linear(r, l + 1, rows, hidden, 1, r->x[level]);
    free(hidden);
    return failed;
}

/* x in rows of the coarse level with CHILDREN * cols columns. */
static void to_space(const reference *r, int level, const double *x, int cols, double *out)
{
    const int most = CHILDREN * r->levels[level - 1].num;
    for (int i = 0; i < most; ++i) {
        if (r->keep[i] == 0) continue;
        memcpy(out, x + (size_t)i * (size_t)cols, (size_t)cols * sizeof *out);
        out += cols;
    }
}

/* Logits of FP64 beside the engine's, and the engine's flags beside its logits. */
static int compare_logits(reference *r, int i, int level)
{
    const engine *e = r->e;
    const size_t n = (size_t)r->levels[level].num * CHILDREN;
    double *logits = take((int)n, 1), worst = 0, largest = 0;
    float *found = (float *)malloc((n + 1) * sizeof *found);
    int failed;

    free(r->keep);
    r->keep = (uint8_t *)malloc(n + 1);
    failed = logits == NULL || found == NULL || r->keep == NULL || load_layer(r, i) ||
             device_download(e->d, found, e->logits[level], n * sizeof *found) ||
             device_download(e->d, r->keep, e->predicted[level], n);
    if (!failed) run_linear(r, &e->net->layers[i], r->levels[level].num, r->x[level], 0, logits);
    for (size_t k = 0; k < n && !failed; ++k) {
        const double error = fabs((double)found[k] - fmax(logits[k], 0));
        if (!(error <= worst)) worst = error;
        largest = fmax(largest, fabs(logits[k]));
        if ((found[k] > 0) == (r->keep[k] != 0)) continue;
        fprintf(stderr, "child %d of level %d: kept against its logit\n", (int)k, level);
        failed = 1;
    }
    if (worst > r->found->logits * largest) r->found->logits = worst / largest;
    if (!failed && e->o.shape == SHAPE_GIVEN) memcpy(r->keep, r->f->keep[level], n);
    free(logits);
    free(found);
    return failed;
}

static int run_op(reference *r, int i)
{
    const op *o = &r->e->net->ops[i];
    const layer *l = o->layer < 0 ? NULL : &r->e->net->layers[o->layer];
    const int v = o->level, c = r->e->net->channels[v], n = r->levels[v].num;

    if (l != NULL && o->kind != OP_MLP && o->kind != OP_LOGITS && load_layer(r, o->layer)) return 1;
    switch (o->kind) {
    case OP_MAP: break;
    case OP_SET:
    case OP_CHILDREN: return make_level(r, v);
    case OP_LATENT: {
        double *latents = take(n, LATENT_CHANNELS);
        if (latents == NULL) return 1;
        for (int k = 0; k < n * LATENT_CHANNELS; ++k)
            latents[k] = (double)r->f->latents[k];
        run_linear(r, l, n, latents, 0, r->x[v]);
        free(latents);
        break;
    }
    case OP_CONV: run_conv(r, l, v, r->x[v], r->h[v]); break;
    case OP_NORM: run_norm(r, n, c, r->h[v], 1, 0, r->h[v]); break;
    case OP_MLP: return run_mlp(r, o->layer, v);
    case OP_LOGITS: return compare_logits(r, o->layer, v);
    case OP_UP_NORM: run_norm(r, n, c, r->x[v], 1, 1, r->h[v]); break;
    case OP_UP_CONV:
        free(r->u);
        r->u = take(n, l->out);
        if (r->u == NULL) return 1;
        run_conv(r, l, v, r->h[v], r->u);
        break;
    case OP_TO_SPACE:
        free(r->s);
        r->s = take(n, r->e->net->channels[v - 1] / CHILDREN);
        if (r->s == NULL) return 1;
        to_space(r, v, r->u, c, r->h[v]);
        to_space(r, v, r->x[v - 1], r->e->net->channels[v - 1] / CHILDREN, r->s);
        break;
    case OP_FINE_NORM: run_norm(r, n, c, r->h[v], 0, 1, r->h[v]); break;
    case OP_FINE_CONV: run_conv(r, l, v, r->h[v], r->x[v]); break;
    case OP_SKIP: run_linear(r, l, n, r->s, 1, r->x[v]); break;
    case OP_OUTPUT:
        run_norm(r, n, c, r->x[v], 0, 0, r->h[v]);
        r->out = take(n, OUTPUT_CHANNELS);
        if (r->out == NULL) return 1;
        run_linear(r, l, n, r->h[v], 0, r->out);
        break;
    }
    return 0;
}

/* ---- Comparison ------------------------------------------------------------------------------- */

float *reference_download_output(const engine *e, int64_t rows)
{
    const size_t n = (size_t)rows * OUTPUT_CHANNELS, bytes = n * spops_dtype_bytes(e->o.dtype);
    float *values = (float *)malloc((n + 1) * sizeof *values);
    void *narrow = malloc(bytes + 1);
    if (values == NULL || narrow == NULL || device_download(e->d, narrow, e->out, bytes) ||
        device_convert(e->d, e->o.dtype, narrow, SPOPS_DTYPE_F32, values, n)) {
        free(values);
        values = NULL;
    }
    free(narrow);
    return values;
}

static int compare_output(const reference *r)
{
    const int n = r->levels[LEVELS - 1].num * OUTPUT_CHANNELS;
    float *found = reference_download_output(r->e, r->levels[LEVELS - 1].num);
    double worst = 0, largest = 0;

    for (int k = 0; k < n && found != NULL; ++k) {
        const double error = fabs((double)found[k] - r->out[k]);
        if (!(error <= worst)) worst = error; /* also for NaN */
        largest = fmax(largest, fabs(r->out[k]));
    }
    r->found->output = largest > 0 ? worst / largest : INFINITY;
    r->found->largest = largest;
    free(found);
    return found == NULL;
}

int reference_compare(const engine *e, const frame *f, differences *found)
{
    reference r;
    int failed = f->num_rows > MAX_ROWS;

    memset(&r, 0, sizeof r);
    memset(found, 0, sizeof *found);
    r.e = e;
    r.f = f;
    r.found = found;
    for (int i = 0; i < e->net->num_ops && !failed; ++i)
        failed = run_op(&r, i);
    if (failed)
        fprintf(stderr, "the reference ended early: rows as above, memory, or more than %d rows\n",
                MAX_ROWS);
    failed = failed || compare_output(&r);
    for (int l = 0; l < LEVELS; ++l) {
        free(r.levels[l].rows);
        free(r.levels[l].table);
        free(r.x[l]);
        free(r.h[l]);
    }
    free(r.u);
    free(r.s);
    free(r.out);
    free(r.w);
    free(r.first);
    free(r.keep);
    return failed;
}
