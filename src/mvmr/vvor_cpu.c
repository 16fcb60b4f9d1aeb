// SPDX-License-Identifier: Apache-2.0
// VVOR on the CPU. A thread takes a block of one matrix, or of one piece of its terms, and adds the outer
// products of the rows of its pairs on its stack. Pieces of a matrix are joined in their order.
// Each block has one owner and each owner goes through its pairs in order, so that threads change no
// result.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/integers.h"
#include "core/rows_f64.h"
#include "core/threads.h"
#include "mvmr/mvmr_f64.h"
#include "mvmr/mvmr_isa.h"

#define PANEL    SPOPS_MVMR_PANEL
#define DEPTH    SPOPS_MVMR_DEPTH
#define TOGETHER SPOPS_MVMR_TOGETHER

// The largest block of sums that a thread keeps on its stack: each row that is gathered serves as many
// columns as rows. Bits do not depend on the size of a block.
#define OUTER_PARTS 2
#define OUTER_ROWS  (OUTER_PARTS * SPOPS_VVOR_ROWS)
#define OUTER_COLS  (TOGETHER * PANEL)

// The factors of a matrix, as it is stored: its rows and its columns, of one group.
typedef struct outer {
    spops_matrix rows, cols;
    int row_side; // which number of a pair names a row of `rows`
    int64_t num_rows, num_cols;
} outer;

static outer outer_of(const spops_vvor_args *args)
{
    const int x_side = args->side == SPOPS_SIDE_TARGET ? 1 : 0; // pairs are (output row, input row)
    outer o;
    o.rows = args->transposed ? args->g : args->x;
    o.cols = args->transposed ? args->x : args->g;
    o.row_side = args->transposed ? 1 - x_side : x_side;
    o.num_rows = args->diagonal ? 1 : args->transposed ? args->g_cols : args->x_cols;
    o.num_cols = args->transposed ? args->x_cols : args->g_cols;
    return o;
}

// The blocks that a matrix is cut into.
typedef struct outer_blocks {
    int64_t rows, cols;              // of a block, at most
    int64_t in_rows, in_cols, total; // in_cols: of one group
} outer_blocks;

// The largest that still give every thread several of the `units`.
static outer_blocks blocks_of(const spops_vvor_args *args, const outer *o, int64_t units,
                              spops_team team)
{
    outer_blocks b = {.rows = OUTER_ROWS, .cols = OUTER_COLS};
    for (;;) {
        b.in_rows = spops_ceil_div(o->num_rows, b.rows);
        b.in_cols = spops_ceil_div(o->num_cols, b.cols);
        b.total = args->groups * b.in_rows * b.in_cols;
        if (units * b.total >= 4 * (int64_t)team.size) return b;
        if (b.rows > SPOPS_VVOR_ROWS)
            b.rows /= 2;
        else if (b.cols > PANEL)
            b.cols /= 2;
        else
            return b;
    }
}

// A block of sums: of which rows and columns of the factors.
typedef struct outer_sums {
    int64_t row, num_rows, col, num_cols;
    int64_t step; // from row to row
    _Alignas(64) float sums[OUTER_ROWS * OUTER_COLS];
} outer_sums;

// The pairs that are multiplied at once.
typedef struct outer_pairs {
    int64_t n;
    int32_t row[DEPTH], col[DEPTH];
    float scale[DEPTH];
    bool scaled;
} outer_pairs;

// Those from position p on, before end.
static void fill_pairs(const spops_vvor_args *args, const outer *o, int64_t p, int64_t end,
                       outer_pairs *pairs)
{
    const spops_lists *lists = args->by_matrix;
    pairs->n = spops_least(DEPTH, end - p);
    pairs->scaled = args->s.data != NULL;
    for (int64_t d = 0; d < pairs->n; ++d) {
        pairs->row[d] = lists->pairs[2 * (p + d) + o->row_side];
        pairs->col[d] = lists->pairs[2 * (p + d) + 1 - o->row_side];
        if (pairs->scaled)
            pairs->scale[d] =
                (float)spops_double_of(args->s.dtype, args->s.data, lists->order[p + d]);
    }
}

static void add_outer(const spops_mvmr_table *table, const outer *o, const outer_pairs *p,
                      const outer_pairs *next, outer_sums *s)
{
    const int64_t depth = p->n;
    spops_ahead ahead;

    _Alignas(64) float a[OUTER_PARTS][DEPTH * SPOPS_VVOR_ROWS], b[TOGETHER][DEPTH * PANEL];

    table->load_rows(o->rows, p->row, depth, s->row, s->num_rows, p->scaled ? p->scale : NULL, a[0],
                     SPOPS_VVOR_ROWS);
    table->load_rows(o->cols, p->col, depth, s->col, s->num_cols, NULL, b[0], PANEL);
    spops_ahead_clear(&ahead);
    if (spops_ahead_pays(s->num_rows, s->num_cols)) {
        spops_ahead_add(&ahead, o->rows, next->row, next->n, s->row, s->num_rows);
        spops_ahead_add(&ahead, o->cols, next->col, next->n, s->col, s->num_cols);
    }
    for (int64_t c = 0; c < s->num_cols; c += PANEL)
        for (int64_t r = 0; r < s->num_rows; r += SPOPS_VVOR_ROWS)
            table->multiply_columns(a[r / SPOPS_VVOR_ROWS],
                                    spops_least(SPOPS_VVOR_ROWS, s->num_rows - r), depth,
                                    b[c / PANEL], spops_least(PANEL, s->num_cols - c),
                                    s->sums + r * s->step + c, s->step, &ahead);
}

// Of diagonal matrices, whose one row is their diagonal.
static void add_elements(const spops_mvmr_table *table, const outer *o, const outer_pairs *p,
                         outer_sums *s)
{
    const float *scale = p->scaled ? p->scale : NULL;
    const int64_t depth = p->n;
    _Alignas(64) float a[DEPTH * PANEL], b[DEPTH * PANEL];

    for (int64_t c = 0; c < s->num_cols; c += PANEL) {
        const int64_t cols = spops_least(PANEL, s->num_cols - c);
        table->load_rows(o->cols, p->col, depth, s->col + c, cols, NULL, b, PANEL);
        table->load_rows(o->rows, p->row, depth, s->col + c, cols, scale, a, PANEL);
        table->multiply_elements(a, b, depth, cols, s->sums + c);
    }
}

// The block over positions begin .. end - 1.
static void sum_outer(const spops_mvmr_table *table, const spops_vvor_args *args, const outer *o,
                      int64_t begin, int64_t end, outer_sums *s)
{
    const int64_t written = spops_ceil_div(s->num_cols, 16) * 16; // by whole vectors
    outer_pairs pairs[2];                                         // these, and the next

    spops_zero_sums(s->sums, s->num_rows, written, s->step);
    fill_pairs(args, o, begin, end, &pairs[0]);
    for (int64_t p = begin, i = 0; p < end; p += DEPTH, i = 1 - i) {
        fill_pairs(args, o, p + pairs[i].n, end, &pairs[1 - i]);
        if (args->diagonal)
            add_elements(table, o, &pairs[i], s);
        else
            add_outer(table, o, &pairs[i], &pairs[1 - i], s);
    }
}

// One block of one matrix, or of one piece of it.
static void outer_block(const spops_mvmr_table *table, const spops_vvor_args *args, const outer *o,
                        outer_blocks blocks, int64_t index, int64_t unit)
{
    const spops_lists *lists = args->by_matrix;
    const int64_t group = index / (blocks.in_rows * blocks.in_cols);
    const int64_t row = index / blocks.in_cols % blocks.in_rows * blocks.rows;
    const int64_t col = index % blocks.in_cols * blocks.cols;
    const int64_t piece = unit - lists->num_segments;
    int64_t begin, end, first_row;
    bool accumulate = args->accumulate;
    spops_matrix to = args->out;
    outer_sums s;

    if (piece >= 0) {
        begin = lists->pieces[piece].begin;
        end = begin + lists->pieces[piece].count;
        first_row = piece * o->num_rows;
        to = spops_matrix_dense(args->partials, lists->max_pieces * o->num_rows, args->out.cols,
                                SPOPS_DTYPE_F32);
        accumulate = false;
    } else {
        begin = lists->offsets[unit];
        end = lists->offsets[unit + 1];
        first_row = unit * o->num_rows;
        if (end - begin > lists->schedule->split_terms) return; // the pieces' work
    }
    s.row = group * o->num_rows + row;
    s.col = group * o->num_cols + col;
    s.num_rows = spops_least(blocks.rows, o->num_rows - row);
    s.num_cols = spops_least(blocks.cols, o->num_cols - col);
    s.step = spops_ceil_div(s.num_cols, PANEL) * PANEL;
    sum_outer(table, args, o, begin, end, &s);
    for (int64_t r = 0; r < s.num_rows; ++r)
        table->store_row(to, first_row + row + r, s.col, s.num_cols, accumulate,
                         s.sums + r * s.step);
}

// A row of a matrix that was cut: the sum of its pieces, in order.
static void join_row(const spops_mvmr_table *table, const spops_vvor_args *args, const outer *o,
                     const spops_split_segment *split, int64_t row)
{
    const int64_t width = args->out.cols;
    _Alignas(64) float sums[PANEL];
    for (int64_t col = 0; col < width; col += PANEL) {
        const int64_t cols = spops_least(PANEL, width - col);
        memset(sums, 0, sizeof sums);
        for (int32_t i = 0; i < split->num_pieces; ++i) {
            const float *from =
                args->partials + ((split->first_piece + i) * o->num_rows + row) * width + col;
            for (int64_t c = 0; c < cols; ++c)
                sums[c] += from[c];
        }
        table->store_row(args->out, split->segment * o->num_rows + row, col, cols, args->accumulate,
                         sums);
    }
}

typedef struct vvor_work {
    const spops_mvmr_table *table;
    const spops_vvor_args *args;
    outer o;
    outer_blocks blocks;
    int64_t num_items;
} vvor_work;

// Blocks of the last unit first: pieces are the longest.
static void outer_items(const void *work, int64_t begin, int64_t end)
{
    const vvor_work *w = (const vvor_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t item = w->num_items - 1 - i;
        outer_block(w->table, w->args, &w->o, w->blocks, item % w->blocks.total,
                    item / w->blocks.total);
    }
}

static void join_rows(const void *work, int64_t begin, int64_t end)
{
    const vvor_work *w = (const vvor_work *)work;
    for (int64_t i = begin; i < end; ++i)
        join_row(w->table, w->args, &w->o, &w->args->by_matrix->splits[i / w->o.num_rows],
                 i % w->o.num_rows);
}

spops_status spops_cpu_vvor(spops_context *ctx, const spops_vvor_args *args)
{
    const spops_lists *lists = args->by_matrix;
    const outer o = outer_of(args);
    const int64_t num_units = lists->num_segments + lists->schedule->num_pieces;
    const int64_t elements =
        lists->schedule->num_terms * o.num_cols + num_units * o.num_rows * args->out.cols;
    const spops_team team = spops_team_for(ctx, elements);
    const outer_blocks blocks = blocks_of(args, &o, num_units, team);
    const vvor_work work = {spops_mvmr_table_of(ctx), args, o, blocks, num_units * blocks.total};

    if (args->x.dtype == SPOPS_DTYPE_F64) {
        spops_vvor_f64(team, args);
        return SPOPS_STATUS_OK;
    }
    spops_parallel_for(team, work.num_items, 1, outer_items, &work);
    spops_parallel_for(team, lists->schedule->num_splits * o.num_rows, 0, join_rows, &work);
    return SPOPS_STATUS_OK;
}
