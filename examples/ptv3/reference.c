// SPDX-License-Identifier: Apache-2.0
/* Rows that meet, found by looking at all of them, and codes of curves bit by bit. */
#include "networks/tape_program.h"
#include "ptv3/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 4000, BITS = CUBE_BITS };

typedef struct cell {
    int x[3];
} cell;

typedef struct levels {
    reference_relations r;
    cell *cells[PTV3_LEVELS];
} levels;

static int find_cell(const levels *v, int level, cell c)
{
    for (int i = 0; i < v->r.rows[level]; ++i)
        if (memcmp(&v->cells[level][i], &c, sizeof c) == 0) return i;
    return -1;
}

/* ---- Voxels ------------------------------------------------------------------------------------ */

static cell cell_of(const engine *e, const float *point)
{
    cell c;
    for (int a = 0; a < 3; ++a)
        c.x[a] = (int)floor((double)point[a] / e->base.voxel_m);
    return c;
}

static int is_inside(cell c)
{
    for (int a = 0; a < 3; ++a) {
        const int half = 1 << (BITS - 1);
        if (c.x[a] < -half || c.x[a] >= half) return 0;
    }
    return 1;
}

/* The voxels of a scan in the order in which the engine has them, each with the features of its first
   point. What is in one and not in the other is an error. */
static int read_voxels(const engine *e, const scan *s, levels *v, double *features)
{
    spops_coords_view view = spops_coords_view_default();
    int32_t num = 0, *rows = (int32_t *)malloc((size_t)e->max_rows[0] * 4 * sizeof *rows);
    char *seen = (char *)calloc((size_t)e->max_rows[0] + 1, 1);
    int failed = rows == NULL || seen == NULL || v->cells[0] == NULL ||
                 spops_coords_get_view(e->base.d->ctx, spops_voxels_coords(e->base.voxels),
                                       &view) != SPOPS_STATUS_OK ||
                 device_download(e->base.d, &num, view.num_rows, sizeof num) || num > MAX_ROWS ||
                 device_download(e->base.d, rows, view.rows, (size_t)num * 4 * sizeof *rows);
    int found = 0;

    if (!failed) v->r.rows[0] = num;
    for (int i = 0; i < num && !failed; ++i)
        memcpy(&v->cells[0][i], rows + 4 * i + 1, sizeof(cell));
    for (int64_t i = 0; i < s->num_points && !failed; ++i) {
        const float *p = s->points + 4 * i;
        const cell c = cell_of(e, p);
        float about[TAPE_FEATURES];
        const int row = is_inside(c) ? find_cell(v, 0, c) : -1;
        failed = is_inside(c) && row < 0;
        if (row < 0 || seen[row]) continue;
        seen[row] = 1;
        ++found;
        e->base.network->describe_point(&e->base, p, 0, about);
        for (int k = 0; k < TAPE_FEATURES; ++k)
            features[row * TAPE_FEATURES + k] = (double)about[k];
    }
    if (failed || found != num)
        fprintf(stderr, "the check: %d voxels of the engine, %d found, at most %d\n", (int)num,
                found, MAX_ROWS);
    free(rows);
    free(seen);
    return failed || found != num;
}

/* ---- Levels and neighbours --------------------------------------------------------------------- */

static int half(int x) /* rounded down */
{
    return x >= 0 ? x / 2 : -((1 - x) / 2);
}

static int make_level(levels *v, int l)
{
    const int n = v->r.rows[l - 1];
    int *parents = v->r.parents[l - 1] = (int *)malloc((size_t)n * sizeof(int) + 1);
    v->cells[l] = (cell *)calloc((size_t)n + 1, sizeof(cell));
    if (parents == NULL || v->cells[l] == NULL) return 1;
    for (int i = 0; i < n; ++i) {
        cell c = v->cells[l - 1][i];
        for (int a = 0; a < 3; ++a)
            c.x[a] = half(c.x[a]);
        parents[i] = find_cell(v, l, c);
        if (parents[i] >= 0) continue;
        parents[i] = v->r.rows[l];
        v->cells[l][v->r.rows[l]++] = c;
    }
    return 0;
}

static int make_table(levels *v, int plan, int level, int size)
{
    const int n = v->r.rows[level], taps = size * size * size;
    int *table = v->r.tables[plan] = (int *)malloc((size_t)n * (size_t)taps * sizeof(int) + 1);
    if (table == NULL) return 1;
    for (int i = 0; i < n; ++i)
        for (int k = 0; k < taps; ++k) {
            const int t[3] = {k / (size * size), k / size % size, k % size};
            cell c = v->cells[level][i];
            for (int a = 0; a < 3; ++a)
                c.x[a] += t[a] - size / 2;
            table[i * taps + k] = find_cell(v, level, c);
        }
    return 0;
}

/* ---- Patches ----------------------------------------------------------------------------------- */

/* Axes to the transposed index of a Hilbert curve, after Skilling, Programming the Hilbert curve (2004). */
static void turn_axes(unsigned x[3], int bits)
{
    unsigned turned = 0;
    for (unsigned q = 1u << (bits - 1); q > 1; q >>= 1)
        for (int a = 0; a < 3; ++a) {
            const unsigned low = q - 1, both = (x[0] ^ x[a]) & low;
            if (x[a] & q) {
                x[0] ^= low;
            } else {
                x[0] ^= both;
                x[a] ^= both;
            }
        }
    x[1] ^= x[0];
    x[2] ^= x[1];
    for (unsigned q = 1u << (bits - 1); q > 1; q >>= 1)
        if (x[2] & q) turned ^= q - 1;
    for (int a = 0; a < 3; ++a)
        x[a] ^= turned;
}

static uint64_t code_of(cell c, int curve, int bits)
{
    unsigned x[3];
    uint64_t code = 0;
    for (int a = 0; a < 3; ++a)
        x[a] = (unsigned)(c.x[a] + (1 << (bits - 1)));
    if (curve % 2 == 1) { /* transposed */
        const unsigned first = x[0];
        x[0] = x[1];
        x[1] = first;
    }
    if (curve >= 2) turn_axes(x, bits);
    for (int b = bits - 1; b >= 0; --b)
        for (int a = 0; a < 3; ++a)
            code = code << 1 | (x[a] >> b & 1);
    return code;
}

typedef struct coded {
    uint64_t code;
    int row;
} coded;

static int compare_coded(const void *a, const void *b)
{
    const uint64_t x = ((const coded *)a)->code, y = ((const coded *)b)->code;
    return (x > y) - (x < y);
}

/* Patches of patch_rows along a curve; the last also meets the end of the one before. */
static int make_patches(levels *v, int level, int curve, int patch_rows)
{
    reference_patches *p = &v->r.patches[ptv3_patches(level, curve)];
    const int n = v->r.rows[level];
    const size_t most = (size_t)(n + patch_rows) * sizeof(int);
    coded *order = (coded *)malloc((size_t)n * sizeof *order + 1);

    p->query_rows = (int *)malloc(most);
    p->key_rows = (int *)malloc(most);
    p->query_offsets = (int *)calloc((size_t)n + 2, sizeof(int));
    p->key_offsets = (int *)calloc((size_t)n + 2, sizeof(int));
    if (order == NULL || p->query_rows == NULL || p->key_rows == NULL || p->query_offsets == NULL ||
        p->key_offsets == NULL) {
        free(order);
        return 1;
    }
    for (int i = 0; i < n; ++i) {
        order[i].code = code_of(v->cells[level][i], curve, BITS - level);
        order[i].row = i;
    }
    qsort(order, (size_t)n, sizeof *order, compare_coded);
    for (int i = 0; i < n; ++i)
        p->query_rows[i] = order[i].row;
    free(order);
    for (int begin = 0, keys = 0; begin < n; begin += patch_rows) {
        const int end = begin + patch_rows < n ? begin + patch_rows : n;
        for (int i = begin > 0 ? end - patch_rows : begin; i < end; ++i)
            p->key_rows[keys++] = p->query_rows[i];
        p->query_offsets[++p->num] = end;
        p->key_offsets[p->num] = keys;
    }
    return 0;
}

/* ---- Pools ------------------------------------------------------------------------------------- */

/* The engine's rows of a level as rows here, of which there are as many. */
static int *match_rows(const engine *e, const levels *v, int level)
{
    const int n = v->r.rows[level];
    spops_coords_view view = spops_coords_view_default();
    int32_t num = 0, *rows = (int32_t *)malloc((size_t)n * 4 * sizeof *rows + 1);
    int *matched = (int *)malloc((size_t)n * sizeof *matched + 1);
    int failed = rows == NULL || matched == NULL ||
                 spops_coords_get_view(e->base.d->ctx, spops_pyramid_coords(e->pyramid, level),
                                       &view) != SPOPS_STATUS_OK ||
                 device_download(e->base.d, &num, view.num_rows, sizeof num) || num != n ||
                 device_download(e->base.d, rows, view.rows, (size_t)n * 4 * sizeof *rows);

    for (int i = 0; i < n && !failed; ++i) {
        cell c;
        memcpy(&c, rows + 4 * i + 1, sizeof c);
        matched[i] = find_cell(v, level, c);
        failed = matched[i] < 0;
    }
    free(rows);
    if (!failed) return matched;
    fprintf(stderr, "the check: level %d has %d rows, %d expected, or others\n", level, (int)num,
            n);
    free(matched);
    return NULL;
}

/* What the engine's pools took the largest of. */
static int read_compared(const engine *e, levels *v)
{
    for (int i = 0; i < e->base.tape.num_steps; ++i) {
        const tape_step *s = &e->base.tape.steps[i];
        const int level = e->base.tape.values[s->in].level, cols = e->base.tape.values[s->in].cols;
        if (s->kind != TAPE_POOL) continue;
        int *rows = match_rows(e, v, level);
        float *x = reference_download(&e->base.tape, tape_value_matrix(&e->base.tape, s->in),
                                      v->r.rows[level]);
        float *compared =
            (float *)malloc((size_t)v->r.rows[level] * (size_t)cols * sizeof *compared + 1);
        const int failed = rows == NULL || x == NULL || compared == NULL;
        for (int j = 0; j < v->r.rows[level] && !failed; ++j)
            memcpy(compared + rows[j] * cols, x + j * cols, (size_t)cols * sizeof *x);
        v->r.compared[s->plan] = compared;
        free(rows);
        free(x);
        if (failed) return 1;
    }
    return 0;
}

/* ---- Check ------------------------------------------------------------------------------------- */

static int make_relations(const engine *e, levels *v)
{
    if (make_table(v, PTV3_STEM, 0, 5)) return 1;
    for (int l = 0; l < PTV3_LEVELS; ++l) {
        if ((l > 0 && make_level(v, l)) || make_table(v, PTV3_WITHIN + l, l, 3)) return 1;
        for (int curve = 0; curve < PTV3_CURVES; ++curve)
            if (e->patches[ptv3_patches(l, curve)] != NULL &&
                make_patches(v, l, curve, engine_patch_rows(&e->base)))
                return 1;
    }
    return 0;
}

int reference_check(const tape_engine *base, const float *parameters, const scan *s,
                    const char *name)
{
    const engine *e = (const engine *)base;
    double *features = (double *)calloc((size_t)MAX_ROWS * TAPE_FEATURES, sizeof *features);
    levels v;
    int failed;

    memset(&v, 0, sizeof v);
    v.cells[0] = (cell *)calloc(MAX_ROWS, sizeof(cell));
    failed = features == NULL || read_voxels(e, s, &v, features) ||
             tape_engine_round(base, features, (size_t)v.r.rows[0] * TAPE_FEATURES) ||
             make_relations(e, &v) || (base->tape.training && read_compared(e, &v)) ||
             tape_check(base, parameters, &v.r, &features, name);
    for (int l = 0; l < PTV3_LEVELS; ++l)
        free(v.cells[l]);
    reference_relations_free(&v.r);
    free(features);
    return failed;
}
