// SPDX-License-Identifier: Apache-2.0
// Products of rows of 8 bits on the CPU: those of mvmr_cpu.c on codes as f32, which holds each. Products of
// i8 are exact in f32 as long as a part of them is summed, and these parts are added in s32.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/float8.h"
#include "core/integers.h"
#include "core/row_convert.h"
#include "core/threads.h"
#include "igemm/igemm8_args.h"
#include "mvmr/mvmr.h"
#include "mvmr/mvmr_isa.h"

#define PANEL     SPOPS_MVMR_PANEL
#define DEPTH     SPOPS_MVMR_DEPTH
#define TILE_ROWS 512 // of the largest tile
#define BATCH     48
// DEPTH products of -128 by -128 are a sum that f32 has.
_Static_assert(DEPTH * 128 * 128 <= 1 << 24, "sums of a part are exact");

typedef struct work8 {
    const spops_mvmr_table *table;
    const spops_igemm8_args *args;
    int64_t panels, tile_rows, rows; // rows that count
} work8;

// Sums of a tile's panel: those of i8 are exact.
typedef union sums8 {
    _Alignas(64) float sums[TILE_ROWS * PANEL];
    int32_t exact[TILE_ROWS * PANEL];
} sums8;

typedef struct batch8 {
    int64_t n;
    int32_t from[BATCH], to[BATCH];
    _Alignas(64) float rows[BATCH * DEPTH];
} batch8;

static float code_value(spops_dtype dtype, uint8_t code)
{
    return dtype == SPOPS_DTYPE_I8 ? (float)(int8_t)code : spops_float_of_f8e4m3(code);
}

// Rows as f32, DEPTH numbers apart.
static void load_codes(const work8 *w, spops_matrix m, const int32_t *rows, int64_t n, int64_t col,
                       int64_t cols, float *to)
{
    if (m.dtype != SPOPS_DTYPE_I8) {
        w->table->load_rows(m, rows, n, col, cols, NULL, to, DEPTH);
        return;
    }
    for (int64_t r = 0; r < n; ++r) {
        const int8_t *codes = (const int8_t *)m.data + (int64_t)rows[r] * m.row_stride + col;
        for (int64_t c = 0; c < cols; ++c)
            to[r * DEPTH + c] = (float)codes[c];
    }
}

// Columns col .. of matrix k, depth d .. on, as [depth][PANEL].
static void load_block8(const work8 *w, int64_t k, int64_t col, int64_t cols, int64_t d,
                        int64_t depth, float *to)
{
    _Alignas(64) float lines[PANEL * DEPTH];
    int32_t rows[PANEL];

    for (int64_t o = 0; o < cols; ++o)
        rows[o] = (int32_t)(k * w->args->out.cols + col + o);
    load_codes(w, w->args->w, rows, cols, d, depth, lines);
    memset(to, 0, (size_t)(depth * PANEL) * sizeof *to);
    for (int64_t i = 0; i < depth; ++i)
        for (int64_t o = 0; o < cols; ++o)
            to[i * PANEL + o] = lines[o * DEPTH + i];
}

static void multiply8(const work8 *w, batch8 *b, int64_t d, int64_t depth, const float *block,
                      sums8 *s)
{
    const spops_matrix x = w->args->x;
    _Alignas(64) float part[BATCH * PANEL];

    load_codes(w, x, b->from, b->n, d, depth, b->rows);
    if (x.dtype != SPOPS_DTYPE_I8) {
        w->table->multiply(b->rows, b->n, depth, block, PANEL, b->to, s->sums, PANEL, NULL);
        return;
    }
    memset(part, 0, (size_t)(b->n * PANEL) * sizeof *part);
    w->table->multiply(b->rows, b->n, depth, block, PANEL, NULL, part, PANEL, NULL);
    for (int64_t i = 0; i < b->n; ++i)
        for (int o = 0; o < PANEL; ++o)
            s->exact[b->to[i] * PANEL + o] += (int32_t)part[i * PANEL + o];
}

// The rows of x that meet matrix k, `count` of them: pair i joins x's row from[i * stride] to row to[i *
// stride] - first of the tile; from NULL: row first + i of both.
typedef struct pairs8 {
    const int32_t *from, *to;
    int64_t stride, count, first;
} pairs8;

static void add_pairs(const work8 *w, int64_t k, const pairs8 *p, int64_t col, int64_t cols,
                      sums8 *s)
{
    _Alignas(64) float block[DEPTH * PANEL];
    batch8 b;
    for (int64_t d = 0; d < w->args->x.cols; d += DEPTH) {
        const int64_t depth = spops_least(DEPTH, w->args->x.cols - d);
        load_block8(w, k, col, cols, d, depth, block);
        for (int64_t i = 0; i < p->count; i += b.n) {
            b.n = spops_least(p->count - i, BATCH);
            for (int64_t j = 0; j < b.n; ++j) {
                const int64_t at = (i + j) * p->stride;
                b.from[j] = (int32_t)(p->from != NULL ? p->from[at] : p->first + i + j);
                b.to[j] = (int32_t)(p->from != NULL ? p->to[at] - p->first : i + j);
            }
            multiply8(w, &b, d, depth, block, s);
        }
    }
}

// A row's panel: scales, what spops_epilogue_finish does, and codes.
static void finish8(const work8 *w, int64_t row, int64_t col, int n, float *v)
{
    const spops_igemm8_args *args = w->args;
    const spops_epilogue8 *e = &args->epilogue;
    const float x_scale = e->x_scale != NULL ? *e->x_scale : 1.0f;
    spops_epilogue_args finish = {.out = args->out, .epilogue = e->rest};
    const spops_matrix residual = e->rest.residual, out = args->out;
    const bool narrow = spops_dtype_bytes(out.dtype) == 1;
    float values[PANEL], residuals[PANEL];

    for (int c = 0; c < n; ++c)
        v[c] *= e->w_scales != NULL ? x_scale * e->w_scales[col + c] : x_scale;
    if (!narrow) {
        spops_epilogue_finish(&finish, row, col, n, v);
        return;
    }
    // As a matrix of one row of f32, which the panel is all of.
    finish.out = spops_matrix_dense(values, 1, n, SPOPS_DTYPE_F32);
    if (residual.data != NULL) {
        const float scale = e->residual_scale != NULL ? *e->residual_scale : 1.0f;
        const uint8_t *codes = (const uint8_t *)residual.data + row * residual.row_stride + col;
        for (int c = 0; c < n; ++c)
            residuals[c] = code_value(residual.dtype, codes[c]) * scale;
        finish.epilogue.residual = spops_matrix_dense(residuals, 1, n, SPOPS_DTYPE_F32);
    }
    if (e->rest.bias != NULL) finish.epilogue.bias += col;
    if (e->rest.scale != NULL) finish.epilogue.scale += col;
    if (e->rest.shift != NULL) finish.epilogue.shift += col;
    spops_epilogue_finish(&finish, 0, 0, n, v);
    const float inverse = 1.0f / (e->out_scale != NULL ? *e->out_scale : 1.0f);
    uint8_t *to = (uint8_t *)out.data + row * out.row_stride + col;
    for (int c = 0; c < n; ++c)
        to[c] = out.dtype == SPOPS_DTYPE_I8 ? (uint8_t)spops_i8_of_float(values[c] * inverse)
                                            : spops_f8e4m3_of_float(values[c] * inverse);
}

static void sum_tile8(const work8 *w, int64_t tile, int64_t panel)
{
    const spops_igemm8_args *args = w->args;
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t first = tile * w->tile_rows, num = spops_least(w->tile_rows, w->rows - first);
    const int64_t col = panel * PANEL, cols = spops_least(PANEL, args->out.cols - col);
    sums8 s;

    if (num <= 0) return;
    memset(&s, 0, sizeof s);
    if (tiles == NULL) {
        const pairs8 pairs = {.count = num, .first = first};
        add_pairs(w, 0, &pairs, col, cols, &s);
    }
    for (int64_t t = tiles == NULL ? 0 : tiles->offsets[tile],
                 end = tiles == NULL ? 0 : tiles->offsets[tile + 1], last;
         t < end; t = last) {
        const spops_triplet *run = &tiles->triplets[t];
        for (last = t; last < end && tiles->triplets[last].matrix == run->matrix;)
            ++last;
        const pairs8 pairs = {&run->from, &run->row, sizeof *run / sizeof run->row, last - t,
                              first};
        add_pairs(w, run->matrix, &pairs, col, cols, &s);
    }
    for (int64_t r = 0; r < num; ++r) {
        float v[PANEL];
        for (int o = 0; o < PANEL; ++o)
            v[o] = args->x.dtype == SPOPS_DTYPE_I8 ? (float)s.exact[r * PANEL + o]
                                                   : s.sums[r * PANEL + o];
        finish8(w, first + r, col, (int)cols, v);
    }
}

static void sum_tiles8(const void *work, int64_t begin, int64_t end)
{
    const work8 *w = (const work8 *)work;
    for (int64_t i = begin; i < end; ++i)
        sum_tile8(w, i / w->panels, i % w->panels);
}

spops_status spops_cpu_igemm8(spops_context *ctx, const spops_igemm8_args *args)
{
    enum { LINEAR_ROWS = 64 }; // of a tile of a linear layer
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t all = args->out.rows;
    work8 w = {.table = spops_mvmr_table_of(ctx),
               .args = args,
               .panels = (args->out.cols + PANEL - 1) / PANEL,
               .tile_rows = tiles != NULL ? tiles->tile_rows : LINEAR_ROWS,
               .rows = all};

    if (args->num_rows != NULL)
        w.rows = *args->num_rows < 0 ? 0 : spops_least(*args->num_rows, all);
    const int64_t num_tiles = (w.rows + w.tile_rows - 1) / w.tile_rows;
    const int64_t pairs = tiles != NULL ? tiles->offsets[tiles->num_tiles] : all;
    spops_parallel_for(spops_team_for(ctx, (pairs + all) * args->x.cols), num_tiles * w.panels, 1,
                       sum_tiles8, &w);
    return SPOPS_STATUS_OK;
}
