// SPDX-License-Identifier: Apache-2.0
// MVMR and VVOR on the CPU. A thread takes a tile of output rows and some columns, keeps their sums
// on its stack, and walks the tile's triplets: a run of triplets with one matrix is a product of
// gathered rows with a block of that matrix. Each row has one owner and each owner goes through
// its triplets in order, so that threads change no result.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/rows_f64.h"
#include "core/threads.h"
#include "mvmr/mvmr_f64.h"
#include "mvmr/mvmr_isa.h"

#define PANEL     SPOPS_MVMR_PANEL
#define DEPTH     SPOPS_MVMR_DEPTH
#define TILE_ROWS 512 // of the largest tile; spops_cpu_triplets_tile_rows
_Static_assert(PANEL == SPOPS_MVMR_PANEL_F64, "a panel is one of f64 too");
#define BATCH 48 // rows that are gathered at once: with a block of a matrix they fit the L1 cache

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static float scalar_at(spops_matrix s, int64_t i)
{
    switch (s.dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return spops_float_of_##name(((const c_type *)s.data)[i]);
#include "core/dtypes.def"
    default: return 1.0f;
    }
}

// ---- MVMR ---------------------------------------------------------------------------------------

// A panel: columns of the result, at most PANEL, of one group.
typedef struct panel {
    int64_t col, cols; // of the result
    int64_t x_col;     // first column of x of the group
    int64_t w_col;     // along the result, in the matrix: a column, or a row where transposed
} panel;

static int64_t num_panels(const spops_mvmr_args *args)
{
    return args->groups * ceil_div(args->out_cols, PANEL);
}

static panel panel_at(const spops_mvmr_args *args, int64_t index)
{
    const int64_t in_group = ceil_div(args->out_cols, PANEL), group = index / in_group;
    const int64_t first = index % in_group * PANEL;
    panel p;
    p.cols = least(PANEL, args->out_cols - first);
    p.col = group * args->out_cols + first;
    p.x_col = group * args->x_cols;
    p.w_col = args->transposed ? first : p.col;
    return p;
}

// Gathered rows of one matrix.
typedef struct batch {
    int64_t n;
    int32_t from[BATCH], to[BATCH];
    float scale[BATCH];
    bool scaled;
    _Alignas(64) float rows[BATCH * DEPTH];
} batch;

// The block of a matrix that a batch is multiplied by.
typedef struct block {
    _Alignas(64) float w[DEPTH * PANEL];
} block;

// The batch of triplets at p .. q - 1, at most BATCH of them.
static void fill_batch(const spops_mvmr_args *args, int64_t first_row, int64_t begin, int64_t p,
                       int64_t q, batch *b)
{
    const spops_triplet_tiles *tiles = args->tiles;
    b->n = least(q - p, BATCH);
    b->scaled = args->s.data != NULL;
    for (int64_t i = 0; i < b->n; ++i) {
        const spops_triplet *t = &tiles->triplets[p + i];
        b->from[i] = t->from;
        b->to[i] = (int32_t)(tiles->direct ? p + i - begin : t->row - first_row);
        if (b->scaled) b->scale[i] = scalar_at(args->s, t->number);
    }
}

// Inputs of a block: columns of x; of a diagonal matrix, those of the panel itself.
static int64_t num_inputs(const spops_mvmr_args *args)
{
    return args->diagonal ? 1 : args->x_cols;
}

// The block of matrix k for a panel and inputs d .. d + depth - 1.
static void load_block(const spops_mvmr_table *table, const spops_mvmr_args *args, panel p,
                       int32_t k, int64_t d, int64_t depth, block *w)
{
    if (args->diagonal)
        table->load_matrix(args->w, k, p.col, 1, p.cols, false, w->w);
    else if (args->transposed)
        table->load_matrix(args->w, p.x_col + d, k * args->out_cols + p.w_col, depth, p.cols, true,
                           w->w);
    else
        table->load_matrix(args->w, k * args->x_cols + d, p.w_col, depth, p.cols, false, w->w);
}

// sums[to] += inputs d .. d + depth - 1 of the batch's rows times the block.
static void multiply_batch(const spops_mvmr_table *table, const spops_mvmr_args *args, panel p,
                           int64_t d, int64_t depth, batch *b, const block *w, float *sums)
{
    const float *scale = b->scaled ? b->scale : NULL;
    if (args->diagonal) {
        table->load_rows(args->x, b->from, b->n, p.col, p.cols, scale, b->rows, DEPTH);
        table->multiply_diagonal(b->rows, b->n, w->w, p.cols, b->to, sums);
    } else {
        table->load_rows(args->x, b->from, b->n, p.x_col + d, depth, scale, b->rows, DEPTH);
        table->multiply(b->rows, b->n, depth, w->w, p.cols, b->to, sums);
    }
}

// The first triplet after p, before end, with another matrix.
static int64_t run_end(const spops_triplet *triplets, int64_t p, int64_t end)
{
    const int32_t k = triplets[p].matrix;
    while (p < end && triplets[p].matrix == k)
        ++p;
    return p;
}

// Rows of the result that are written; those after them are left alone.
static int64_t rows_written(const spops_mvmr_args *args)
{
    if (args->num_rows == NULL) return args->out.rows;
    return *args->num_rows < 0 ? 0 : least(*args->num_rows, args->out.rows);
}

// The same of rows of f64.
static void sum_tile_f64(const spops_mvmr_args *args, int64_t tile, panel p)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t begin = tiles->offsets[tile], first_row = tile * tiles->tile_rows;
    const int64_t num_rows = tiles->direct ? tiles->offsets[tile + 1] - begin
                                           : least(tiles->tile_rows, tiles->num_rows - first_row);
    const spops_f64_panel columns = {p.col, p.cols, p.x_col / args->x_cols};
    const spops_matrix out = args->out;
    double sums[TILE_ROWS * PANEL];

    spops_mvmr_sums_f64(args, tile, columns, sums);
    for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t row = tiles->direct ? tiles->triplets[begin + r].row : first_row + r;
        if (row >= rows_written(args)) continue;
        for (int64_t c = 0; c < p.cols; ++c) {
            const int64_t at = row * out.row_stride + p.col + c;
            const double sum = sums[r * PANEL + c];
            spops_store_double(out.dtype, out.data, at,
                               args->accumulate ? spops_double_of(out.dtype, out.data, at) + sum
                                                : sum);
        }
    }
}

static void sum_tile(const spops_mvmr_table *table, const spops_mvmr_args *args, int64_t tile,
                     panel p)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t begin = tiles->offsets[tile], end = tiles->offsets[tile + 1];
    const int64_t first_row = tile * tiles->tile_rows;
    const int64_t num_rows =
        tiles->direct ? end - begin : least(tiles->tile_rows, tiles->num_rows - first_row);
    const int64_t inputs = num_inputs(args);
    const int64_t written = rows_written(args);
    _Alignas(64) float sums[TILE_ROWS * PANEL];
    block w;
    batch b;

    if (!tiles->direct && first_row >= written) return;
    if (args->x.dtype == SPOPS_DTYPE_F64) {
        sum_tile_f64(args, tile, p);
        return;
    }
    memset(sums, 0, (size_t)(num_rows * PANEL) * sizeof *sums);
    for (int64_t t = begin, last; t < end; t = last) {
        last = run_end(tiles->triplets, t, end);
        for (int64_t d = 0; d < inputs; d += DEPTH) {
            const int64_t depth = least(DEPTH, inputs - d);
            load_block(table, args, p, tiles->triplets[t].matrix, d, depth, &w);
            for (int64_t i = t; i < last; i += b.n) {
                fill_batch(args, first_row, begin, i, last, &b);
                multiply_batch(table, args, p, d, depth, &b, &w, sums);
            }
        }
    }
    for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t row = tiles->direct ? tiles->triplets[begin + r].row : first_row + r;
        if (row >= written) continue;
        table->store_row(args->out, row, p.col, p.cols, args->accumulate, sums + r * PANEL);
    }
}

// Rows of the result that no triplet names.
static void zero_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_mvmr_args *args = (const spops_mvmr_args *)work;
    const int64_t cols = args->out.cols, stride = args->out.row_stride;
    const size_t bytes = spops_dtype_bytes(args->out.dtype);
    for (int64_t r = begin; r < end; ++r)
        memset((char *)args->out.data + (size_t)(r * stride) * bytes, 0, (size_t)cols * bytes);
}

// <g[row], x[from] w> of every triplet of a tile.
static void dot_tile(const spops_mvmr_table *table, const spops_mvmr_args *args, int64_t tile)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t begin = tiles->offsets[tile], end = tiles->offsets[tile + 1];
    const int64_t panels = num_panels(args), inputs = num_inputs(args);
    _Alignas(64) float sums[BATCH * PANEL], g[BATCH * PANEL];
    float dots[BATCH];
    int32_t rows[BATCH];
    block w;
    batch b;

    for (int64_t t = begin; t < end; t += b.n) {
        const int32_t k = tiles->triplets[t].matrix;
        fill_batch(args, 0, begin, t, run_end(tiles->triplets, t, end), &b);
        for (int64_t i = 0; i < b.n; ++i) {
            b.to[i] = (int32_t)i;
            rows[i] = tiles->triplets[t + i].row;
            dots[i] = 0.0f;
        }
        for (int64_t index = 0; index < panels; ++index) {
            const panel p = panel_at(args, index);
            memset(sums, 0, sizeof sums);
            for (int64_t d = 0; d < inputs; d += DEPTH) {
                const int64_t depth = least(DEPTH, inputs - d);
                load_block(table, args, p, k, d, depth, &w);
                multiply_batch(table, args, p, d, depth, &b, &w, sums);
            }
            table->load_rows(args->g, rows, b.n, p.col, p.cols, NULL, g, PANEL);
            for (int64_t i = 0; i < b.n; ++i)
                dots[i] += table->dot(sums + i * PANEL, g + i * PANEL, p.cols);
        }
        for (int64_t i = 0; i < b.n; ++i)
            ((float *)args->grad_s.data)[tiles->triplets[t + i].number] = dots[i];
    }
}

typedef struct mvmr_work {
    const spops_mvmr_table *table;
    const spops_mvmr_args *args;
    int64_t panels, together;
} mvmr_work;

static void dot_tiles(const void *work, int64_t begin, int64_t end)
{
    const mvmr_work *w = (const mvmr_work *)work;
    for (int64_t tile = begin; tile < end; ++tile)
        if (w->args->x.dtype == SPOPS_DTYPE_F64)
            spops_mvmr_dots_f64(w->args, tile);
        else
            dot_tile(w->table, w->args, tile);
}

// An item is `together` panels of a tile.
static void sum_tiles(const void *work, int64_t begin, int64_t end)
{
    const mvmr_work *w = (const mvmr_work *)work;
    for (int64_t i = begin * w->together; i < end * w->together; ++i)
        sum_tile(w->table, w->args, i / w->panels, panel_at(w->args, i % w->panels));
}

spops_status spops_cpu_mvmr(spops_context *ctx, const spops_mvmr_args *args)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t elements = (tiles->offsets[tiles->num_tiles] + tiles->num_rows) * args->x.cols;
    const spops_team team = spops_team_for(ctx, elements);
    mvmr_work work = {spops_mvmr_table_of(ctx), args, num_panels(args), 1};

    if (args->grad_s.data != NULL) {
        spops_parallel_for(team, tiles->num_tiles, 1, dot_tiles, &work);
        return SPOPS_STATUS_OK;
    }
    if (tiles->direct && !tiles->complete && !args->accumulate)
        spops_parallel_for(team, rows_written(args), 0, zero_rows, args);
    // All panels of a tile by one thread, whose cache has its rows then, where there are tiles
    // enough.
    if (tiles->num_tiles >= 4 * team.size) work.together = work.panels;
    spops_parallel_for(team, tiles->num_tiles * (work.panels / work.together), 1, sum_tiles, &work);
    return SPOPS_STATUS_OK;
}

// ---- VVOR ---------------------------------------------------------------------------------------

// Two panels of sums: each row that is gathered serves VVOR_ROWS x OUTER_COLS of them.
#define OUTER_PANELS 2
#define OUTER_COLS   (OUTER_PANELS * PANEL)
#define OUTER_ROWS   SPOPS_VVOR_ROWS

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
    int64_t in_rows, in_cols, total; // in_cols: of one group
} outer_blocks;

static outer_blocks blocks_of(const spops_vvor_args *args, const outer *o)
{
    outer_blocks blocks;
    blocks.in_rows = ceil_div(o->num_rows, OUTER_ROWS);
    blocks.in_cols = ceil_div(o->num_cols, OUTER_COLS);
    blocks.total = args->groups * blocks.in_rows * blocks.in_cols;
    return blocks;
}

// sums [OUTER_PANELS][OUTER_ROWS][PANEL] of a block over positions begin .. end - 1; row, col and
// group say which block it is.
static void sum_outer(const spops_mvmr_table *table, const spops_vvor_args *args, const outer *o,
                      int64_t group, int64_t row, int64_t col, int64_t begin, int64_t end,
                      float *sums)
{
    const spops_lists *lists = args->by_matrix;
    const int64_t num_rows = least(OUTER_ROWS, o->num_rows - row);
    const int64_t num_cols = least(OUTER_COLS, o->num_cols - col);
    const bool scaled = args->s.data != NULL;
    _Alignas(64) float a[DEPTH * OUTER_ROWS], b[DEPTH * PANEL];
    int32_t row_index[DEPTH], col_index[DEPTH], to[OUTER_ROWS];
    float scale[DEPTH];

    for (int32_t r = 0; r < OUTER_ROWS; ++r)
        to[r] = r;
    memset(sums, 0, OUTER_PANELS * OUTER_ROWS * PANEL * sizeof *sums);
    for (int64_t p = begin; p < end; p += DEPTH) {
        const int64_t depth = least(DEPTH, end - p);
        for (int64_t d = 0; d < depth; ++d) {
            row_index[d] = lists->pairs[2 * (p + d) + o->row_side];
            col_index[d] = lists->pairs[2 * (p + d) + 1 - o->row_side];
            if (scaled) scale[d] = scalar_at(args->s, lists->order[p + d]);
        }
        if (!args->diagonal)
            table->load_rows(o->rows, row_index, depth, group * o->num_rows + row, num_rows,
                             scaled ? scale : NULL, a, OUTER_ROWS);
        for (int64_t c = 0; c < num_cols; c += PANEL) {
            const int64_t cols = least(PANEL, num_cols - c);
            const int64_t at = group * o->num_cols + col + c;
            float *panel_sums = sums + c / PANEL * OUTER_ROWS * PANEL;
            table->load_rows(o->cols, col_index, depth, at, cols, NULL, b, PANEL);
            if (args->diagonal) {
                table->load_rows(o->rows, row_index, depth, at, cols, scaled ? scale : NULL, a,
                                 PANEL);
                table->multiply_elements(a, b, depth, cols, panel_sums);
            } else {
                table->multiply_columns(a, num_rows, depth, b, cols, to, panel_sums);
            }
        }
    }
}

// One block of one matrix, or of one piece of it.
static void outer_block(const spops_mvmr_table *table, const spops_vvor_args *args, const outer *o,
                        outer_blocks blocks, int64_t index, int64_t unit)
{
    const spops_lists *lists = args->by_matrix;
    const int64_t group = index / (blocks.in_rows * blocks.in_cols);
    const int64_t row = index / blocks.in_cols % blocks.in_rows * OUTER_ROWS;
    const int64_t col = index % blocks.in_cols * OUTER_COLS;
    const int64_t num_rows = least(OUTER_ROWS, o->num_rows - row);
    const int64_t num_cols = least(OUTER_COLS, o->num_cols - col);
    const int64_t piece = unit - lists->num_segments;
    int64_t begin, end, first_row;
    bool accumulate = args->accumulate;
    spops_matrix to = args->out;
    _Alignas(64) float sums[OUTER_PANELS * OUTER_ROWS * PANEL];

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
    sum_outer(table, args, o, group, row, col, begin, end, sums);
    for (int64_t c = 0; c < num_cols; c += PANEL)
        for (int64_t r = 0; r < num_rows; ++r)
            table->store_row(to, first_row + row + r, group * o->num_cols + col + c,
                             least(PANEL, num_cols - c), accumulate,
                             sums + (c / PANEL * OUTER_ROWS + r) * PANEL);
}

// A row of a matrix that was cut: the sum of its pieces, in order.
static void join_row(const spops_mvmr_table *table, const spops_vvor_args *args, const outer *o,
                     const spops_split_segment *split, int64_t row)
{
    const int64_t width = args->out.cols;
    _Alignas(64) float sums[PANEL];
    for (int64_t col = 0; col < width; col += PANEL) {
        const int64_t cols = least(PANEL, width - col);
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
    const outer_blocks blocks = blocks_of(args, &o);
    const int64_t num_units = lists->num_segments + lists->schedule->num_pieces;
    const vvor_work work = {spops_mvmr_table_of(ctx), args, o, blocks, num_units * blocks.total};
    const int64_t elements =
        lists->schedule->num_terms * o.num_cols + num_units * o.num_rows * args->out.cols;
    const spops_team team = spops_team_for(ctx, elements);

    if (args->x.dtype == SPOPS_DTYPE_F64) {
        spops_vvor_f64(team, args);
        return SPOPS_STATUS_OK;
    }
    spops_parallel_for(team, work.num_items, 1, outer_items, &work);
    spops_parallel_for(team, lists->schedule->num_splits * o.num_rows, 0, join_rows, &work);
    return SPOPS_STATUS_OK;
}
