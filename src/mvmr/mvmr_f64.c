// SPDX-License-Identifier: Apache-2.0
#include "mvmr/mvmr_f64.h"

#include <string.h>

#include "core/integers.h"
#include "core/rows_f64.h"

#define PANEL SPOPS_MVMR_PANEL_F64

// ---- MVMR ---------------------------------------------------------------------------------------

// The elements of a matrix that a group's inputs and outputs meet at: first, and the steps from one
// input, and one output, to the next.
typedef struct factors {
    const double *first;
    int64_t in_step, out_step;
} factors;

static factors factors_of(const spops_mvmr_args *args, int64_t k, int64_t group)
{
    const int64_t stride = spops_row_step(args->w);
    const double *w = (const double *)args->w.data;
    if (args->diagonal) return (factors){w + k * stride, 0, 1};
    if (args->transposed)
        return (factors){w + k * args->out_cols * stride + group * args->x_cols, 1, stride};
    return (factors){w + k * args->x_cols * stride + group * args->out_cols, stride, 1};
}

// sums[o] += scale times output o of x w, for the columns of a panel.
static void add_product(const spops_mvmr_args *args, const spops_triplet *t, spops_f64_panel p,
                        double scale, double *sums)
{
    const factors w = factors_of(args, t->matrix, p.group);
    const int64_t first = p.col - p.group * args->out_cols;
    const double *x = spops_row_f64(args->x, t->from);

    if (args->diagonal) {
        for (int64_t o = 0; o < p.cols; ++o)
            sums[o] += scale * x[p.col + o] * w.first[p.col + o];
        return;
    }
    for (int64_t c = 0; c < args->x_cols; ++c) {
        const double v = scale * x[p.group * args->x_cols + c];
        const double *row = w.first + c * w.in_step + first * w.out_step;
        for (int64_t o = 0; o < p.cols; ++o)
            sums[o] += v * row[o * w.out_step];
    }
}

void spops_mvmr_sums_f64(const spops_mvmr_args *args, int64_t tile, spops_f64_panel panel,
                         double *sums)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t begin = tiles->offsets[tile], end = tiles->offsets[tile + 1];
    const int64_t first_row = tile * tiles->tile_rows;
    const int64_t rows =
        tiles->direct ? end - begin : spops_least(tiles->tile_rows, tiles->num_rows - first_row);

    memset(sums, 0, (size_t)(rows * PANEL) * sizeof *sums);
    for (int64_t p = begin; p < end; ++p) {
        const spops_triplet *t = &tiles->triplets[p];
        const int64_t row = tiles->direct ? p - begin : t->row - first_row;
        add_product(args, t, panel, spops_double_or(args->s, t->number, 1.0), sums + row * PANEL);
    }
}

void spops_mvmr_dots_f64(const spops_mvmr_args *args, int64_t tile)
{
    const spops_triplet_tiles *tiles = args->tiles;

    for (int64_t p = tiles->offsets[tile]; p < tiles->offsets[tile + 1]; ++p) {
        const spops_triplet *t = &tiles->triplets[p];
        const double *g = spops_row_f64(args->g, t->row);
        double dot = 0.0;
        for (int64_t group = 0; group < args->groups; ++group)
            for (int64_t o = 0; o < args->out_cols; o += PANEL) {
                const int64_t col = group * args->out_cols + o;
                const spops_f64_panel panel = {col, spops_least(PANEL, args->out_cols - o), group};
                double sums[PANEL] = {0.0};
                add_product(args, t, panel, 1.0, sums);
                for (int64_t i = 0; i < panel.cols; ++i)
                    dot += g[col + i] * sums[i];
            }
        spops_store_double(args->grad_s.dtype, args->grad_s.data, t->number, dot);
    }
}

// ---- VVOR ---------------------------------------------------------------------------------------

// Rows of a matrix of the result, panels of a row, and the factors: as it is stored, its row r and its
// column c of a group are column r of `rows` and column c of `cols` there.
typedef struct outer_work {
    const spops_vvor_args *args;
    spops_matrix rows, cols;
    int row_side; // which number of a pair names a row of `rows`
    int64_t num_rows, num_cols, panels;
} outer_work;

static void sum_outer(const outer_work *w, int64_t k, int64_t row, int64_t group, int64_t first,
                      int64_t n, double *sums)
{
    const spops_lists *lists = w->args->by_matrix;
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t p = lists->offsets[k]; p < lists->offsets[k + 1]; ++p) {
        const double *a = spops_row_f64(w->rows, lists->pairs[2 * p + w->row_side]);
        const double *b = spops_row_f64(w->cols, lists->pairs[2 * p + 1 - w->row_side]);
        const double s = spops_double_or(w->args->s, spops_term_of(lists, p), 1.0);
        const double v = s * a[group * w->num_rows + row];
        const double *from = b + group * w->num_cols + first;
        if (w->args->diagonal)
            for (int64_t c = 0; c < n; ++c)
                sums[c] += s * a[first + c] * from[c];
        else
            for (int64_t c = 0; c < n; ++c)
                sums[c] += v * from[c];
    }
}

// An item is a panel of columns of a group, of a row, of a matrix.
static void sum_items(const void *work, int64_t begin, int64_t end)
{
    const outer_work *w = (const outer_work *)work;
    const spops_matrix out = w->args->out;
    double sums[PANEL];

    for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % w->panels * PANEL, group = i / w->panels % w->args->groups;
        const int64_t row = i / w->panels / w->args->groups; // of all matrices
        const int64_t n = spops_least(PANEL, w->num_cols - first);
        const int64_t at = row * out.row_stride + group * w->num_cols + first;
        sum_outer(w, row / w->num_rows, row % w->num_rows, group, first, n, sums);
        for (int64_t c = 0; c < n; ++c) {
            const double old =
                w->args->accumulate ? spops_double_of(out.dtype, out.data, at + c) : 0.0;
            spops_store_double(out.dtype, out.data, at + c,
                               w->args->accumulate ? old + sums[c] : sums[c]);
        }
    }
}

void spops_vvor_f64(spops_team team, const spops_vvor_args *args)
{
    const int x_side = args->side == SPOPS_SIDE_TARGET ? 1 : 0; // pairs are (output row, input row)
    outer_work w = {.args = args,
                    .rows = args->transposed ? args->g : args->x,
                    .cols = args->transposed ? args->x : args->g,
                    .row_side = args->transposed ? 1 - x_side : x_side,
                    .num_rows = args->transposed ? args->g_cols : args->x_cols,
                    .num_cols = args->transposed ? args->x_cols : args->g_cols};
    if (args->diagonal) w.num_rows = 1;
    w.panels = (w.num_cols + PANEL - 1) / PANEL;
    spops_parallel_for(team, args->by_matrix->num_segments * w.num_rows * args->groups * w.panels,
                       0, sum_items, &w);
}
