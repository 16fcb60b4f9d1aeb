// SPDX-License-Identifier: Apache-2.0
/* The encoder in FP64: voxels, sets and sums of its own; cells are found by a table of all cells met. */
#include "centerpoint/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POINTS = 20000 };

typedef struct cell {
    int x[3];
} cell;

/* The cells of a level, and where a cell is among them: a table of 2^bits places, -1 where empty. */
typedef struct cell_set {
    int num, bits;
    cell *cells;
    int *places;
} cell_set;

typedef struct reference {
    const encoder *e;
    cell_set sets[NUM_LEVELS];
    double *buffers[NUM_BUFFERS];
} reference;

static int set_alloc(cell_set *s, int64_t most)
{
    for (s->bits = 4; (int64_t)1 << s->bits < 2 * most;)
        ++s->bits;
    s->cells = (cell *)calloc((size_t)most + 1, sizeof *s->cells);
    s->places = (int *)malloc(sizeof *s->places << s->bits);
    if (s->cells == NULL || s->places == NULL) return 1;
    memset(s->places, 0xff, sizeof *s->places << s->bits);
    return 0;
}

static int inside(cell c, int level)
{
    for (int a = 0; a < 3; ++a)
        if (c.x[a] < 0 || c.x[a] >= level_shapes[level].size[a]) return 0;
    return 1;
}

/* The place of a cell that is there, or the empty place where it would be. */
static int *place_of(const cell_set *s, cell c)
{
    const uint64_t key = ((uint64_t)c.x[0] << 42) ^ ((uint64_t)c.x[1] << 21) ^ (uint64_t)c.x[2];
    uint64_t at = (key * 0x9e3779b97f4a7c15u) >> (64 - s->bits);
    while (s->places[at] >= 0 && memcmp(&s->cells[s->places[at]], &c, sizeof c) != 0)
        at = (at + 1) & (((uint64_t)1 << s->bits) - 1);
    return &s->places[at];
}

static int find_or_add(cell_set *s, cell c)
{
    int *place = place_of(s, c);
    if (*place < 0) {
        s->cells[s->num] = c;
        *place = s->num++;
    }
    return *place;
}

/* ---- Levels --------------------------------------------------------------------------------- */

/* Voxels by first appearance and the means of their first points. */
static int read_points(reference *r, const frame *f)
{
    const size_t n = (size_t)f->num_points;
    double *mean = (double *)calloc(n * NUM_INPUTS + 1, sizeof *mean);
    int *count = (int *)calloc(n + 1, sizeof *count);

    r->buffers[0] = mean;
    if (mean == NULL || count == NULL || set_alloc(&r->sets[0], f->num_points)) {
        free(count);
        return 1;
    }
    for (size_t i = 0; i < n; ++i) {
        const float *p = f->points + NUM_FEATURES * i;
        cell c;
        int row;
        for (int a = 0; a < 3; ++a)
            c.x[a] = (int)floor(((double)p[2 - a] - voxel_origin_m[a]) / voxel_size_m[a]);
        if (!inside(c, 0)) continue;
        row = find_or_add(&r->sets[0], c);
        if (count[row] >= POINTS_A_VOXEL) continue;
        ++count[row];
        for (int k = 0; k < NUM_FEATURES; ++k)
            mean[(size_t)row * NUM_INPUTS + (size_t)k] += (double)p[k];
    }
    for (int i = 0; i < r->sets[0].num; ++i)
        for (int k = 0; k < NUM_FEATURES; ++k)
            mean[i * NUM_INPUTS + k] /= count[i];
    free(count);
    return 0;
}

/* Of a layer: the input cell that tap k joins to an output cell. */
static cell joined(const layer *l, cell out, int k)
{
    const level_shape *s = &level_shapes[l->level];
    const int cube[3] = {3, 3, 3};
    const int *size = l->down ? s->kernel : cube;
    const int t[3] = {k / (size[1] * size[2]), k / size[2] % size[1], k % size[2]};
    cell in;
    for (int a = 0; a < 3; ++a)
        in.x[a] = l->down ? s->stride[a] * out.x[a] - s->padding[a] + t[a] : out.x[a] + t[a] - 1;
    return in;
}

/* Every cell of the grid that a tap joins to a cell of the level before. */
static int derive_level(reference *r, int level)
{
    const level_shape *s = &level_shapes[level];
    const cell_set *in = &r->sets[level - 1];

    if (set_alloc(&r->sets[level], 8 * (int64_t)in->num)) return 1;
    for (int i = 0; i < in->num; ++i)
        for (int k = 0; k < s->kernel[0] * s->kernel[1] * s->kernel[2]; ++k) {
            const int t[3] = {k / (s->kernel[1] * s->kernel[2]), k / s->kernel[2] % s->kernel[1],
                              k % s->kernel[2]};
            cell c;
            int whole = 1;
            for (int a = 0; a < 3; ++a) {
                const int x = in->cells[i].x[a] + s->padding[a] - t[a];
                whole = whole && x >= 0 && x % s->stride[a] == 0;
                c.x[a] = x / s->stride[a];
            }
            if (whole && inside(c, level)) find_or_add(&r->sets[level], c);
        }
    return 0;
}

/* ---- Layers --------------------------------------------------------------------------------- */

static void run_row(const reference *r, const layer *l, const float *w, int i)
{
    const cell_set *in = &r->sets[r->e->net->buffers[l->from].level];
    double *out = r->buffers[l->to] + (size_t)i * (size_t)l->out;

    for (int o = 0; o < l->out; ++o)
        out[o] = 0;
    for (int k = 0; k < l->taps; ++k) {
        const int j = *place_of(in, joined(l, r->sets[l->level].cells[i], k));
        if (j < 0) continue;
        for (int c = 0; c < l->in; ++c) {
            const double x = r->buffers[l->from][(size_t)j * (size_t)l->in + (size_t)c];
            const float *to = w + ((size_t)k * (size_t)l->in + (size_t)c) * (size_t)l->out;
            for (int o = 0; o < l->out; ++o)
                out[o] += x * (double)to[o];
        }
    }
    for (int o = 0; o < l->out; ++o) {
        out[o] = out[o] * (double)l->folded.scale[o] + (double)l->folded.shift[o];
        if (l->residual >= 0)
            out[o] += r->buffers[l->residual][(size_t)i * (size_t)l->out + (size_t)o];
        if (out[o] < 0) out[o] = 0;
    }
}

/* With the weights as the encoder has them, rounded to its dtype. */
static int run_layer(reference *r, const layer *l)
{
    const size_t n = (size_t)l->taps * (size_t)l->in * (size_t)l->out;
    float *w = (float *)malloc(n * sizeof *w);
    void *narrow = malloc(n * sizeof *w);
    const int failed =
        w == NULL || narrow == NULL ||
        device_convert(r->e->d, SPOPS_DTYPE_F32, l->folded.w, r->e->dtype, narrow, n) ||
        device_convert(r->e->d, r->e->dtype, narrow, SPOPS_DTYPE_F32, w, n);
    for (int i = 0; !failed && i < r->sets[l->level].num; ++i)
        run_row(r, l, w, i);
    free(w);
    free(narrow);
    return failed;
}

/* ---- Comparison ----------------------------------------------------------------------------- */

/* The encoder's dense features as f32. */
static float *download_bev(const encoder *e)
{
    const size_t n = (size_t)encoder_bev_elements(), bytes = n * spops_dtype_bytes(e->dtype);
    float *values = (float *)malloc(n * sizeof *values);
    void *narrow = malloc(bytes);
    if (values == NULL || narrow == NULL || device_download(e->d, narrow, e->bev, bytes) ||
        device_convert(e->d, e->dtype, narrow, SPOPS_DTYPE_F32, values, n)) {
        free(values);
        values = NULL;
    }
    free(narrow);
    return values;
}

/* Every element of the dense features: channel c at (z, y, x), 0 where there is no cell. */
static void compare(const reference *r, const float *found, double *difference, int64_t *nonzero)
{
    const int *size = level_shapes[NUM_LEVELS - 1].size;
    const double *features = r->buffers[r->e->net->num_buffers - 1];
    const int cells = size[0] * size[1] * size[2];
    double worst = 0, largest = 0;

    *nonzero = 0;
    for (int i = 0; i < cells; ++i) {
        const cell c = {{i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]}};
        const int row = *place_of(&r->sets[NUM_LEVELS - 1], c);
        for (int o = 0; o < NUM_OUTPUTS; ++o) {
            const double expected = row < 0 ? 0 : features[(size_t)row * NUM_OUTPUTS + (size_t)o];
            const double error =
                fabs((double)found[(size_t)o * (size_t)cells + (size_t)i] - expected);
            if (!(error <= worst)) worst = error; /* also for NaN */
            largest = fmax(largest, fabs(expected));
            *nonzero += expected != 0;
        }
    }
    *difference = largest > 0 ? worst / largest : worst;
}

int reference_compare(const encoder *e, const frame *f, double *difference, int64_t *num_nonzero)
{
    const network *net = e->net;
    reference r;
    float *found = NULL;
    int failed = f->num_points > MAX_POINTS;

    if (failed) {
        fprintf(stderr, "--check takes at most %d points\n", MAX_POINTS);
        return 1;
    }
    memset(&r, 0, sizeof r);
    r.e = e;
    failed = read_points(&r, f);
    for (int l = 1; l < NUM_LEVELS && !failed; ++l)
        failed = derive_level(&r, l);
    for (int b = 1; b < net->num_buffers && !failed; ++b) {
        const size_t rows = (size_t)r.sets[net->buffers[b].level].num;
        r.buffers[b] = (double *)calloc(rows * (size_t)net->buffers[b].cols + 1, sizeof(double));
        failed = r.buffers[b] == NULL;
    }
    for (int i = 0; i < net->num_layers && !failed; ++i)
        failed = run_layer(&r, &net->layers[i]);
    failed = failed || (found = download_bev(e)) == NULL;
    if (!failed) compare(&r, found, difference, num_nonzero);
    for (int b = 0; b < NUM_BUFFERS; ++b)
        free(r.buffers[b]);
    for (int l = 0; l < NUM_LEVELS; ++l) {
        free(r.sets[l].cells);
        free(r.sets[l].places);
    }
    free(found);
    return failed;
}
