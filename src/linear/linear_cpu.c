// SPDX-License-Identifier: Apache-2.0
// Linear layers on the CPU: tiles of a product with what follows the sum, and sums over pieces of rows.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/integers.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "core/threads.h"
#include "linear/linear_args.h"
#include "mvmr/product_tile.h"

#define COLS       SPOPS_PRODUCT_COLS
#define STACK_ROWS SPOPS_PRODUCT_STACK_ROWS
#define OUTER_ROWS SPOPS_PRODUCT_OUTER_ROWS
_Static_assert(COLS <= SPOPS_EPILOGUE_STRIP, "an epilogue takes a row of a tile");

// ---- Forward ------------------------------------------------------------------------------------

typedef struct linear_work {
    const spops_mvmr_table *table;
    const spops_linear_args *args;
    int64_t rows; // that count
    spops_product_tiles tiles;
    bool in_place;
} linear_work;

// Sums on the stack.
static void run_tile(const linear_work *w, const spops_product_tile *t)
{
    const spops_epilogue_args *finish = &w->args->finish;
    const bool empty = spops_epilogue_is_empty(&finish->epilogue);
    const int64_t step = spops_product_step(t->cols);
    _Alignas(64) float sums[STACK_ROWS * COLS];

    spops_product_tile_sums(w->table, t, sums, step);
    for (int64_t r = 0; r < t->rows; ++r) {
        float *row = sums + r * step;
        if (empty)
            w->table->store_row(finish->out, t->row + r, t->col, t->cols, false, row);
        else
            spops_epilogue_finish(finish, t->row + r, t->col, (int)t->cols, row);
    }
}

// Sums where out is.
static void run_tile_in_place(const linear_work *w, const spops_product_tile *t)
{
    const spops_epilogue_args *finish = &w->args->finish;
    const int64_t step = finish->out.row_stride;
    float *sums = (float *)finish->out.data + t->row * step + t->col, row[COLS];

    spops_product_tile_sums(w->table, t, sums, step);
    if (spops_epilogue_is_empty(&finish->epilogue)) return;
    for (int64_t r = 0; r < t->rows; ++r) {
        memcpy(row, sums + r * step, (size_t)t->cols * sizeof *row);
        spops_epilogue_finish(finish, t->row + r, t->col, (int)t->cols, row);
    }
}

static void run_tiles(const void *work, int64_t begin, int64_t end)
{
    const linear_work *w = (const linear_work *)work;
    const spops_linear_args *args = w->args;

    for (int64_t i = begin; i < end; ++i) {
        spops_product_tile tile = {.a = args->x,
                                   .b = args->w,
                                   .b_transposed = args->w_transposed,
                                   .row = i / w->tiles.in_cols * w->tiles.rows,
                                   .col = i % w->tiles.in_cols * w->tiles.cols,
                                   .end = args->x.cols};
        tile.rows = spops_least(w->tiles.rows, w->rows - tile.row);
        tile.cols = spops_least(w->tiles.cols, args->finish.out.cols - tile.col);
        if (w->in_place)
            run_tile_in_place(w, &tile);
        else
            run_tile(w, &tile);
    }
}

// Rows of f64: by a row and COLS columns.
static void run_rows_f64(const void *work, int64_t begin, int64_t end)
{
    const linear_work *w = (const linear_work *)work;
    const spops_linear_args *args = w->args;
    const int64_t in_step = args->w_transposed ? 1 : args->w.row_stride;
    const int64_t out_step = args->w_transposed ? args->w.row_stride : 1;

    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / w->tiles.in_cols, col = i % w->tiles.in_cols * COLS;
        const int64_t n = spops_least(COLS, args->finish.out.cols - col);
        const double *x = spops_row_f64(args->x, row);
        double sums[COLS] = {0.0};
        for (int64_t c = 0; c < args->x.cols; ++c) {
            const double *from = (const double *)args->w.data + c * in_step + col * out_step;
            for (int64_t o = 0; o < n; ++o)
                sums[o] += x[c] * from[o * out_step];
        }
        spops_epilogue_finish_f64(&args->finish, row, col, (int)n, sums);
    }
}

spops_status spops_cpu_linear(spops_context *ctx, const spops_linear_args *args)
{
    const spops_matrix out = args->finish.out;
    const bool in_place = spops_sums_fit_in(out) && args->finish.epilogue.residual.data == NULL;
    const int64_t rows = spops_rows_in_use(args->finish.num_rows, out.rows);
    const spops_team team = spops_team_for(ctx, rows * (args->x.cols + out.cols));
    linear_work work = {.table = spops_mvmr_table_of(ctx), .args = args, .rows = rows};

    if (args->x.dtype == SPOPS_DTYPE_F64) {
        work.tiles.in_cols = spops_ceil_div(out.cols, COLS);
        spops_parallel_for(team, rows * work.tiles.in_cols, 0, run_rows_f64, &work);
        return SPOPS_STATUS_OK;
    }
    work.in_place = in_place;
    work.tiles =
        spops_product_tiles_of(team, 1, rows, out.cols, in_place ? SPOPS_PRODUCT_ROWS : STACK_ROWS);
    spops_parallel_for(team, work.tiles.in_rows * work.tiles.in_cols, 1, run_tiles, &work);
    return SPOPS_STATUS_OK;
}

// ---- Sums over rows -----------------------------------------------------------------------------

typedef struct grad_work {
    const spops_mvmr_table *table;
    const spops_linear_grad_args *args;
    int64_t rows;              // that count
    spops_product_tiles tiles; // of a piece
} grad_work;

// What a piece has of a row of the result: out itself where there is one piece.
static void store_piece(const spops_linear_grad_args *args, int64_t piece, int64_t row, int64_t col,
                        int64_t n, const float *sums)
{
    if (args->num_pieces == 1)
        spops_row_store(args->out, row, col, (int)n, sums);
    else
        memcpy(args->partials + (piece * args->out.rows + row) * args->out.cols + col, sums,
               (size_t)n * sizeof *sums);
}

// Sums of columns of g alone; rows in order.
static void add_columns(spops_matrix g, int64_t begin, int64_t end, int64_t col, int64_t n,
                        float *sums)
{
    float row[COLS];
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t r = begin; r < end; ++r) {
        spops_row_load(g, r, col, (int)n, row);
        for (int64_t c = 0; c < n; ++c)
            sums[c] += row[c];
    }
}

static void run_pieces(const void *work, int64_t begin, int64_t end)
{
    const grad_work *w = (const grad_work *)work;
    const spops_linear_grad_args *args = w->args;
    const int64_t tiles = w->tiles.in_rows * w->tiles.in_cols;
    _Alignas(64) float sums[OUTER_ROWS * COLS];

    for (int64_t i = begin; i < end; ++i) {
        const int64_t piece = i / tiles, in_piece = i % tiles;
        spops_product_tile tile = {.a = args->x,
                                   .b = args->g,
                                   .a_transposed = true,
                                   .row = in_piece / w->tiles.in_cols * w->tiles.rows,
                                   .col = in_piece % w->tiles.in_cols * w->tiles.cols,
                                   .begin = piece * args->piece_rows};
        tile.rows = spops_least(w->tiles.rows, args->out.rows - tile.row);
        tile.cols = spops_least(w->tiles.cols, args->out.cols - tile.col);
        tile.end = spops_least(tile.begin + args->piece_rows, w->rows);
        const int64_t step = spops_product_step(tile.cols);
        if (args->x.data != NULL || tile.end <= tile.begin)
            spops_product_tile_sums(w->table, &tile, sums, step);
        else
            add_columns(args->g, tile.begin, tile.end, tile.col, tile.cols, sums);
        for (int64_t r = 0; r < tile.rows; ++r)
            store_piece(args, piece, tile.row + r, tile.col, tile.cols, sums + r * step);
    }
}

// Rows of the result from the sums of all pieces, in order.
static void join_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_linear_grad_args *args = ((const grad_work *)work)->args;
    const int64_t cols = args->out.cols, numbers = args->out.rows * cols;
    float sums[COLS];

    for (int64_t row = begin; row < end; ++row)
        for (int64_t col = 0; col < cols; col += COLS) {
            const int64_t n = spops_least(COLS, cols - col);
            memset(sums, 0, sizeof sums);
            for (int64_t p = 0; p < args->num_pieces; ++p)
                for (int64_t c = 0; c < n; ++c)
                    sums[c] += args->partials[p * numbers + row * cols + col + c];
            spops_row_store(args->out, row, col, (int)n, sums);
        }
}

// Of f64: a row of the result and COLS columns, over all rows in order.
static void run_sums_f64(const void *work, int64_t begin, int64_t end)
{
    const grad_work *w = (const grad_work *)work;
    const spops_linear_grad_args *args = w->args;
    const spops_matrix out = args->out;

    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / w->tiles.in_cols, col = i % w->tiles.in_cols * COLS;
        const int64_t n = spops_least(COLS, out.cols - col);
        double sums[COLS] = {0.0};
        for (int64_t r = 0; r < w->rows; ++r) {
            const double x = args->x.data != NULL ? spops_row_f64(args->x, r)[row] : 1.0;
            const double *g = spops_row_f64(args->g, r) + col;
            for (int64_t c = 0; c < n; ++c)
                sums[c] += x * g[c];
        }
        for (int64_t c = 0; c < n; ++c)
            spops_store_double(out.dtype, out.data, row * out.row_stride + col + c, sums[c]);
    }
}

spops_status spops_cpu_linear_grad(spops_context *ctx, const spops_linear_grad_args *args)
{
    const int64_t rows = spops_rows_in_use(args->num_rows, args->g.rows);
    const spops_team team = spops_team_for(ctx, rows * (args->out.rows + args->out.cols));
    grad_work work = {.table = spops_mvmr_table_of(ctx), .args = args, .rows = rows};

    if (args->g.dtype == SPOPS_DTYPE_F64) {
        work.tiles.in_cols = spops_ceil_div(args->out.cols, COLS);
        spops_parallel_for(team, args->out.rows * work.tiles.in_cols, 0, run_sums_f64, &work);
        return SPOPS_STATUS_OK;
    }
    work.tiles =
        spops_product_tiles_of(team, args->num_pieces, args->out.rows, args->out.cols, OUTER_ROWS);
    spops_parallel_for(team, work.tiles.in_rows * work.tiles.in_cols * args->num_pieces, 1,
                       run_pieces, &work);
    if (args->num_pieces > 1) spops_parallel_for(team, args->out.rows, 0, join_rows, &work);
    return SPOPS_STATUS_OK;
}
