// SPDX-License-Identifier: Apache-2.0
// MVMR on the CPU. A thread takes a tile of output rows and a strip of columns and walks the
// tile's triplets: a run of triplets with one matrix is a product of gathered rows with blocks of that
// matrix. Sums are made in the result where it is f32 and holds nothing, else on the thread's stack.
// Each row has one owner and each owner goes through its triplets in order, so that threads change
// no result.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/integers.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "core/threads.h"
#include "mvmr/mvmr_f64.h"
#include "mvmr/mvmr_isa.h"

#define PANEL     SPOPS_MVMR_PANEL
#define DEPTH     SPOPS_MVMR_DEPTH
#define TILE_ROWS 512 // of the largest tile; spops_cpu_triplets_tile_rows
_Static_assert(PANEL == SPOPS_MVMR_PANEL_F64, "a panel is one of f64 too");
#define BATCH    SPOPS_MVMR_BATCH
#define TOGETHER SPOPS_MVMR_TOGETHER
// Panels whose sums a thread keeps on its stack, 64 KiB each.
#define ON_STACK 2

// A strip: columns of the result, at most TOGETHER panels, of one group.
typedef struct strip {
    int64_t col, cols; // of the result
    int64_t x_col;     // first column of x of the group
    int64_t w_col;     // along the result, in the matrix: a column, or a row where transposed
} strip;

// `width` columns at most.
static int64_t num_strips(const spops_mvmr_args *args, int64_t width)
{
    return args->groups * spops_ceil_div(args->out_cols, width);
}

static strip strip_at(const spops_mvmr_args *args, int64_t width, int64_t index)
{
    const int64_t in_group = spops_ceil_div(args->out_cols, width), group = index / in_group;
    const int64_t first = index % in_group * width;
    strip s;
    s.cols = spops_least(width, args->out_cols - first);
    s.col = group * args->out_cols + first;
    s.x_col = group * args->x_cols;
    s.w_col = args->transposed ? first : s.col;
    return s;
}

// Columns c .. c + cols - 1 of a strip.
static strip part_of(strip s, int64_t c, int64_t cols)
{
    return (strip){s.col + c, spops_least(cols, s.cols - c), s.x_col, s.w_col + c};
}

// Gathered rows of one matrix.
typedef struct batch {
    int64_t n;
    int32_t from[BATCH], to[BATCH];
    float scale[BATCH];
    bool scaled;
    _Alignas(64) float rows[BATCH * DEPTH];
} batch;

// The blocks of a matrix that a batch is multiplied by, one for each panel of a strip.
typedef struct strip_blocks {
    _Alignas(64) float w[TOGETHER][DEPTH * PANEL];
} strip_blocks;

// Where sums are made: row r begins r * step after `at`.
typedef struct places {
    float *at;
    int64_t step;
    bool in_place; // rows are those of the result; else of the tile
} places;

// The batch of triplets at p .. q - 1, at most BATCH of them.
static void fill_batch(const spops_mvmr_args *args, bool in_place, int64_t first_row, int64_t begin,
                       int64_t p, int64_t q, batch *b)
{
    const spops_triplet_tiles *tiles = args->tiles;
    b->n = spops_least(q - p, BATCH);
    b->scaled = args->s.data != NULL;
    for (int64_t i = 0; i < b->n; ++i) {
        const spops_triplet *t = &tiles->triplets[p + i];
        b->from[i] = t->from;
        b->to[i] = (int32_t)(in_place        ? t->row
                             : tiles->direct ? p + i - begin
                                             : t->row - first_row);
        if (b->scaled) b->scale[i] = (float)spops_double_of(args->s.dtype, args->s.data, t->number);
    }
}

// Inputs of a block: columns of x; of a diagonal matrix, those of the panel itself.
static int64_t num_inputs(const spops_mvmr_args *args)
{
    return args->diagonal ? 1 : args->x_cols;
}

// The blocks of matrix k for a strip and inputs d .. d + depth - 1.
static void load_blocks(const spops_mvmr_table *table, const spops_mvmr_args *args, strip s,
                        int32_t k, int64_t d, int64_t depth, strip_blocks *w)
{
    if (args->diagonal)
        table->load_matrix(args->w, k, s.col, 1, s.cols, false, w->w[0]);
    else if (args->transposed)
        table->load_matrix(args->w, s.x_col + d, k * args->out_cols + s.w_col, depth, s.cols, true,
                           w->w[0]);
    else
        table->load_matrix(args->w, k * args->x_cols + d, s.w_col, depth, s.cols, false, w->w[0]);
}

// sums[to] += inputs d .. d + depth - 1 of the batch's rows times the blocks.
static void multiply_batch(const spops_mvmr_table *table, const spops_mvmr_args *args, strip all,
                           int64_t d, int64_t depth, batch *b, const strip_blocks *w, places to,
                           spops_ahead *ahead)
{
    const float *scale = b->scaled ? b->scale : NULL;
    if (!args->diagonal)
        table->load_rows(args->x, b->from, b->n, all.x_col + d, depth, scale, b->rows, DEPTH);
    for (int64_t c = 0; c < all.cols; c += PANEL) {
        const strip s = part_of(all, c, PANEL);
        const float *block = w->w[c / PANEL];
        if (args->diagonal) {
            table->load_rows(args->x, b->from, b->n, s.col, s.cols, scale, b->rows, DEPTH);
            table->multiply_diagonal(b->rows, b->n, block, s.cols, b->to, to.at + c, to.step);
        } else {
            table->multiply(b->rows, b->n, depth, block, s.cols, b->to, to.at + c, to.step, ahead);
        }
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
    return *args->num_rows < 0 ? 0 : spops_least(*args->num_rows, args->out.rows);
}

// A tile: its triplets, and its rows of the result.
typedef struct tile_rows {
    int64_t index, begin, end, first_row, num_rows;
} tile_rows;

static tile_rows tile_at(const spops_mvmr_args *args, int64_t index)
{
    const spops_triplet_tiles *tiles = args->tiles;
    tile_rows t = {.index = index,
                   .begin = tiles->offsets[index],
                   .end = tiles->offsets[index + 1],
                   .first_row = index * tiles->tile_rows};
    t.num_rows = tiles->direct ? t.end - t.begin
                               : spops_least(tiles->tile_rows, tiles->num_rows - t.first_row);
    return t;
}

// The row of the result that row r of a tile is.
static int64_t row_of(const spops_mvmr_args *args, const tile_rows *t, int64_t r)
{
    return args->tiles->direct ? args->tiles->triplets[t->begin + r].row : t->first_row + r;
}

// Rows of f64.
static void sum_f64(const spops_mvmr_args *args, const tile_rows *t, strip s)
{
    const spops_f64_panel columns = {s.col, s.cols, s.x_col / args->x_cols};
    const spops_matrix out = args->out;
    double sums[TILE_ROWS * PANEL];

    spops_mvmr_sums_f64(args, t->index, columns, sums);
    for (int64_t r = 0; r < t->num_rows; ++r) {
        const int64_t row = row_of(args, t, r);
        if (row >= rows_written(args)) continue;
        for (int64_t c = 0; c < s.cols; ++c) {
            const int64_t at = row * out.row_stride + s.col + c;
            const double sum = sums[r * PANEL + c];
            spops_store_double(out.dtype, out.data, at,
                               args->accumulate ? spops_double_of(out.dtype, out.data, at) + sum
                                                : sum);
        }
    }
}

// What the batch takes that begins at triplet p, before end.
static void look_ahead(const spops_mvmr_args *args, int64_t p, int64_t end, int64_t col,
                       int64_t cols, spops_ahead *ahead)
{
    int32_t rows[BATCH];
    const int64_t n = spops_least(BATCH, end - p);

    for (int64_t i = 0; i < n; ++i)
        rows[i] = args->tiles->triplets[p + i].from;
    spops_ahead_clear(ahead);
    spops_ahead_add(ahead, args->x, rows, n, col, cols);
}

// Tiles that a thread walks together, so that blocks of a matrix are loaded once for all of them: of
// matrices with at least so many elements. Rows of more tiles leave the L2 cache. One core of an AMD EPYC
// (Zen 5), conv_lidar, forward, GFLOP/s with 1, 2, 4 and 8 tiles: 256 to 256 columns 188, 196, 198, 176;
// 128 to 128 193, 187, 191, 190; 64 to 64 167, 168, 152, 140.
#define WIDE_MATRIX 32768
#define TILES       4
typedef struct walk {
    tile_rows tile[TILES];
    int64_t at[TILES], last[TILES]; // a tile's run of triplets with the matrix that is next
    int64_t num;
} walk;

// The next matrix of any tile, -1: none is left. Runs of tiles without it are empty.
static int32_t next_matrix(const spops_triplet *triplets, walk *w)
{
    int32_t k = -1;
    for (int64_t i = 0; i < w->num; ++i) {
        w->at[i] = w->last[i];
        if (w->at[i] == w->tile[i].end) continue;
        const int32_t matrix = triplets[w->at[i]].matrix;
        if (k < 0 || matrix < k) k = matrix;
    }
    for (int64_t i = 0; i < w->num && k >= 0; ++i)
        if (w->at[i] < w->tile[i].end && triplets[w->at[i]].matrix == k)
            w->last[i] = run_end(triplets, w->at[i], w->tile[i].end);
    return k;
}

// Fetch what follows the batch that ends before triplet p of tile i, at inputs d and on.
static void fetch_next(const spops_mvmr_args *args, const walk *w, strip s, int64_t i, int64_t p,
                       int64_t d, spops_ahead *ahead)
{
    const int64_t inputs = num_inputs(args), depth = spops_least(DEPTH, inputs - d);

    spops_ahead_clear(ahead);
    if (!spops_ahead_pays(depth, s.cols)) return;
    if (p == w->last[i] && d + DEPTH < inputs && i + 1 == w->num) {
        p = w->at[0];
        d += DEPTH;
        i = 0;
    } else if (p == w->last[i] && i + 1 < w->num) {
        p = w->at[++i];
    }
    look_ahead(args, p, w->tile[i].end, s.x_col + d, spops_least(DEPTH, inputs - d), ahead);
}

// All triplets of some tiles.
static void add_triplets(const spops_mvmr_table *table, const spops_mvmr_args *args, walk *w,
                         strip s, places to)
{
    const spops_triplet *triplets = args->tiles->triplets;
    const int64_t inputs = num_inputs(args);
    spops_ahead ahead;
    strip_blocks blocks;
    batch b;

    for (int64_t i = 0; i < w->num; ++i)
        w->last[i] = w->tile[i].begin;
    for (int32_t k; (k = next_matrix(triplets, w)) >= 0;)
        for (int64_t d = 0; d < inputs; d += DEPTH) {
            const int64_t depth = spops_least(DEPTH, inputs - d);
            load_blocks(table, args, s, k, d, depth, &blocks);
            for (int64_t i = 0; i < w->num; ++i)
                for (int64_t p = w->at[i]; p < w->last[i]; p += b.n) {
                    const tile_rows *t = &w->tile[i];
                    fill_batch(args, to.in_place, t->first_row, t->begin, p, w->last[i], &b);
                    fetch_next(args, w, s, i, p + b.n, d, &ahead);
                    multiply_batch(table, args, s, d, depth, &b, &blocks, to, &ahead);
                }
        }
}

static void sum_on_stack(const spops_mvmr_table *table, const spops_mvmr_args *args,
                         const tile_rows *t, strip s)
{
    _Alignas(64) float sums[TILE_ROWS * ON_STACK * PANEL];
    const places to = {sums, spops_ceil_div(s.cols, PANEL) * PANEL, false};
    walk w = {.tile = {*t}, .num = 1};

    spops_zero_sums(sums, t->num_rows, spops_ceil_div(s.cols, 16) * 16, to.step);
    add_triplets(table, args, &w, s, to);
    for (int64_t r = 0; r < t->num_rows; ++r) {
        const int64_t row = row_of(args, t, r);
        if (row < rows_written(args))
            table->store_row(args->out, row, s.col, s.cols, args->accumulate, sums + r * to.step);
    }
}

static void sum_in_place(const spops_mvmr_table *table, const spops_mvmr_args *args, walk *w,
                         strip s)
{
    const places to = {(float *)args->out.data + s.col, args->out.row_stride, true};

    for (int64_t i = 0; i < w->num; ++i) {
        const tile_rows *t = &w->tile[i];
        if (args->tiles->direct)
            for (int64_t r = 0; r < t->num_rows; ++r)
                spops_zero_sums(to.at + row_of(args, t, r) * to.step, 1, s.cols, to.step);
        else
            spops_zero_sums(to.at + t->first_row * to.step, t->num_rows, s.cols, to.step);
    }
    add_triplets(table, args, w, s, to);
}

// Whether sums may be made in the result: it is f32, no vector of columns goes past it, nothing there
// is added to, and all rows of the tile are written.
static bool fits_in_place(const spops_mvmr_args *args, const tile_rows *t)
{
    const bool all_written = args->tiles->direct ? rows_written(args) == args->out.rows
                                                 : t->first_row + t->num_rows <= rows_written(args);
    return args->out.dtype == SPOPS_DTYPE_F32 && args->out_cols % 16 == 0 && !args->accumulate &&
           all_written;
}

// A tile, unless it fits in place: then it waits in `together`.
static void sum_tile(const spops_mvmr_table *table, const spops_mvmr_args *args, int64_t index,
                     strip s, walk *together)
{
    const tile_rows t = tile_at(args, index);

    if (!args->tiles->direct && t.first_row >= rows_written(args)) return;
    if (args->x.dtype == SPOPS_DTYPE_F64) {
        for (int64_t c = 0; c < s.cols; c += PANEL)
            sum_f64(args, &t, part_of(s, c, PANEL));
    } else if (fits_in_place(args, &t)) {
        together->tile[together->num++] = t;
    } else {
        for (int64_t c = 0; c < s.cols; c += ON_STACK * PANEL)
            sum_on_stack(table, args, &t, part_of(s, c, ON_STACK * PANEL));
    }
}

// Rows of the result that no triplet names.
static void zero_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_mvmr_args *args = (const spops_mvmr_args *)work;
    spops_clear_rows(args->out, begin, end);
}

// <g[row], x[from] w> of every triplet of a tile.
static void dot_tile(const spops_mvmr_table *table, const spops_mvmr_args *args, int64_t tile)
{
    enum { STRIP = TOGETHER * PANEL };
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t begin = tiles->offsets[tile], end = tiles->offsets[tile + 1];
    const int64_t strips = num_strips(args, STRIP), inputs = num_inputs(args);
    _Alignas(64) float sums[BATCH * STRIP], g[BATCH * STRIP];
    const places to = {sums, STRIP, false};
    float dots[BATCH];
    int32_t rows[BATCH];
    strip_blocks w;
    batch b;

    for (int64_t t = begin; t < end; t += b.n) {
        const int32_t k = tiles->triplets[t].matrix;
        fill_batch(args, false, 0, begin, t, run_end(tiles->triplets, t, end), &b);
        for (int64_t i = 0; i < b.n; ++i) {
            b.to[i] = (int32_t)i;
            rows[i] = tiles->triplets[t + i].row;
            dots[i] = 0.0f;
        }
        for (int64_t index = 0; index < strips; ++index) {
            const strip s = strip_at(args, STRIP, index);
            memset(sums, 0, sizeof sums);
            for (int64_t d = 0; d < inputs; d += DEPTH) {
                const int64_t depth = spops_least(DEPTH, inputs - d);
                load_blocks(table, args, s, k, d, depth, &w);
                multiply_batch(table, args, s, d, depth, &b, &w, to, NULL);
            }
            table->load_rows(args->g, rows, b.n, s.col, s.cols, NULL, g, STRIP);
            for (int64_t i = 0; i < b.n; ++i) // by panel, whatever the width of a strip
                for (int64_t c = 0; c < s.cols; c += PANEL)
                    dots[i] += table->dot(sums + i * STRIP + c, g + i * STRIP + c,
                                          spops_least(PANEL, s.cols - c));
        }
        for (int64_t i = 0; i < b.n; ++i)
            ((float *)args->grad_s.data)[tiles->triplets[t + i].number] = dots[i];
    }
}

typedef struct mvmr_work {
    const spops_mvmr_table *table;
    const spops_mvmr_args *args;
    int64_t width, strips; // columns of a strip, strips
    int64_t together;      // strips of a tile that a thread takes one after another
    int64_t tiles;         // that it takes at once
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

// An item is `together` strips of `tiles` tiles.
static void sum_tiles(const void *work, int64_t begin, int64_t end)
{
    const mvmr_work *w = (const mvmr_work *)work;
    const int64_t num_tiles = w->args->tiles->num_tiles;

    for (int64_t i = begin * w->together; i < end * w->together; ++i) {
        const strip s = strip_at(w->args, w->width, i % w->strips);
        const int64_t first = i / w->strips * w->tiles;
        walk together = {.num = 0};
        for (int64_t tile = first; tile < spops_least(first + w->tiles, num_tiles); ++tile)
            sum_tile(w->table, w->args, tile, s, &together);
        if (together.num > 0) sum_in_place(w->table, w->args, &together, s);
    }
}

spops_status spops_cpu_mvmr(spops_context *ctx, const spops_mvmr_args *args)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t elements = (tiles->offsets[tiles->num_tiles] + tiles->num_rows) * args->x.cols;
    const spops_team team = spops_team_for(ctx, elements);
    mvmr_work work = {spops_mvmr_table_of(ctx), args, TOGETHER * PANEL, 0, 1, 1};

    if (args->grad_s.data != NULL) {
        spops_parallel_for(team, tiles->num_tiles, 1, dot_tiles, &work);
        return SPOPS_STATUS_OK;
    }
    if (tiles->direct && !tiles->complete && !args->accumulate)
        spops_parallel_for(team, rows_written(args), 0, zero_rows, args);
    // Wide strips share rows that are gathered; narrow ones give every thread something where there
    // are few tiles.
    while (work.width > PANEL &&
           tiles->num_tiles * num_strips(args, work.width) < 4 * (int64_t)team.size)
        work.width /= 2;
    work.strips = num_strips(args, work.width);
    // All strips of a tile by one thread, whose cache has its rows then, where there are tiles
    // enough.
    if (tiles->num_tiles >= 4 * team.size) work.together = work.strips;
    while (args->x_cols * args->out_cols >= WIDE_MATRIX && work.tiles < TILES &&
           tiles->num_tiles >= 8 * work.tiles * team.size)
        work.tiles *= 2;
    spops_parallel_for(team,
                       spops_ceil_div(tiles->num_tiles, work.tiles) * (work.strips / work.together),
                       1, sum_tiles, &work);
    return SPOPS_STATUS_OK;
}
