// SPDX-License-Identifier: Apache-2.0
/* Pillars found by looking at all of them, and sets by sorting. */
#include "dsvt/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "networks/tape_program.h"

enum { MAX_ROWS = 4000 };

typedef struct pillars {
    reference_relations r;
    int cells[MAX_ROWS][2];
    int counts[MAX_ROWS];
    double *inputs[3];
} pillars;

static int find_cell(const pillars *p, const int cell[2])
{
    for (int i = 0; i < p->r.rows[0]; ++i)
        if (p->cells[i][0] == cell[0] && p->cells[i][1] == cell[1]) return i;
    return -1;
}

static int is_inside(const float *point, const int cell[2])
{
    for (int a = 0; a < 2; ++a)
        if (cell[a] < 0 || cell[a] >= 1 << PILLAR_BITS) return 0;
    return point[2] >= -10 && point[2] < 10;
}

/* Pillars in the order of their first points, as the engine has them, and the means of their points, as the
   dtype has both. */
static int read_pillars(const tape_engine *base, const scan *s, pillars *p)
{
    for (int64_t i = 0; i < s->num_points; ++i) {
        const float *point = s->points + 4 * i;
        float about[TAPE_FEATURES];
        int cell[2], row;
        engine_pillar_of(base, point, cell);
        if (!is_inside(point, cell)) continue;
        row = find_cell(p, cell);
        if (row < 0) {
            if (p->r.rows[0] == MAX_ROWS) return 1;
            row = p->r.rows[0]++;
            memcpy(p->cells[row], cell, sizeof cell);
        }
        ++p->counts[row];
        for (int input = 0; input < 3; ++input) {
            double wide[TAPE_FEATURES];
            base->network->describe_point(base, point, input, about);
            for (int k = 0; k < TAPE_FEATURES; ++k)
                wide[k] = (double)about[k];
            if (tape_engine_round(base, wide, TAPE_FEATURES)) return 1;
            for (int k = 0; k < TAPE_FEATURES; ++k)
                p->inputs[input][row * TAPE_FEATURES + k] += wide[k];
        }
    }
    for (int i = 0; i < p->r.rows[0] * TAPE_FEATURES; ++i)
        for (int input = 0; input < 3; ++input)
            p->inputs[input][i] /= p->counts[i / TAPE_FEATURES];
    for (int input = 0; input < 3; ++input)
        if (tape_engine_round(base, p->inputs[input], (size_t)p->r.rows[0] * TAPE_FEATURES))
            return 1;
    return 0;
}

typedef struct keyed {
    int key[4]; /* window along both axes, then cell along both axes */
    int row;
} keyed;

static int compare_keyed(const void *a, const void *b)
{
    const keyed *x = (const keyed *)a, *y = (const keyed *)b;
    for (int k = 0; k < 4; ++k)
        if (x->key[k] != y->key[k]) return x->key[k] < y->key[k] ? -1 : 1;
    return 0;
}

static int same_window(const keyed *a, const keyed *b)
{
    return a->key[0] == b->key[0] && a->key[1] == b->key[1];
}

/* Sets of like size, at most DSVT_SET_ROWS, of the rows of each window along one axis. */
static int make_sets(pillars *p, int shift, int axis)
{
    reference_patches *sets = &p->r.patches[dsvt_sets(shift, axis)];
    const int n = p->r.rows[0];
    keyed *order = (keyed *)malloc((size_t)n * sizeof *order + 1);

    sets->query_rows = (int *)malloc((size_t)n * sizeof(int) + 1);
    sets->key_rows = (int *)malloc((size_t)n * sizeof(int) + 1);
    sets->query_offsets = (int *)calloc((size_t)n + 2, sizeof(int));
    sets->key_offsets = (int *)calloc((size_t)n + 2, sizeof(int));
    if (order == NULL || sets->query_rows == NULL || sets->key_rows == NULL ||
        sets->query_offsets == NULL || sets->key_offsets == NULL) {
        free(order);
        return 1;
    }
    for (int i = 0; i < n; ++i) {
        for (int k = 0; k < 2; ++k) {
            const int x = p->cells[i][k == 0 ? axis : 1 - axis] + shift * DSVT_WINDOW / 2;
            order[i].key[k] = x / DSVT_WINDOW;
            order[i].key[2 + k] = x;
        }
        order[i].row = i;
    }
    qsort(order, (size_t)n, sizeof *order, compare_keyed);
    for (int i = 0; i < n; ++i)
        sets->query_rows[i] = sets->key_rows[i] = order[i].row;
    for (int begin = 0, end; begin < n; begin = end) {
        int num_sets;
        for (end = begin; end < n && same_window(&order[end], &order[begin]);)
            ++end;
        num_sets = (end - begin + DSVT_SET_ROWS - 1) / DSVT_SET_ROWS;
        for (int j = 1; j <= num_sets; ++j) {
            sets->query_offsets[++sets->num] = begin + (end - begin) * j / num_sets;
            sets->key_offsets[sets->num] = sets->query_offsets[sets->num];
        }
    }
    free(order);
    return 0;
}

int reference_check(const tape_engine *base, const float *parameters, const scan *s,
                    const char *name)
{
    static pillars p; /* large */
    tape_sizes sizes;
    int failed = 0;

    memset(&p, 0, sizeof p);
    for (int i = 0; i < 3; ++i) {
        p.inputs[i] = (double *)calloc((size_t)MAX_ROWS * TAPE_FEATURES, sizeof(double));
        failed |= p.inputs[i] == NULL;
    }
    failed = failed || read_pillars(base, s, &p) || base->network->get_sizes(base, &sizes);
    if (!failed && sizes.rows[0] != p.r.rows[0]) {
        fprintf(stderr, "the check: %d pillars, expected %d\n", (int)sizes.rows[0], p.r.rows[0]);
        failed = 1;
    }
    for (int i = 0; i < DSVT_PLANS && !failed; ++i)
        failed = make_sets(&p, i / DSVT_AXES, i % DSVT_AXES);
    failed = failed || tape_check(base, parameters, &p.r, p.inputs, name);
    for (int i = 0; i < 3; ++i)
        free(p.inputs[i]);
    reference_relations_free(&p.r);
    return failed;
}
