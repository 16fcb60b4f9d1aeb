// SPDX-License-Identifier: Apache-2.0
// Dense products on the CPU: by a CBLAS where one is installed and the rows are f32, else by the
// vector code of mvmr.
#include <dlfcn.h>
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/integers.h"
#include "core/matrix.h"
#include "core/threads.h"
#include "mvmr/matmul_args.h"
#include "mvmr/mvmr_isa.h"
#include "mvmr/product_tile.h"

#define PANEL       SPOPS_MVMR_PANEL
#define DEPTH       SPOPS_MVMR_DEPTH
#define COLS        SPOPS_PRODUCT_COLS
#define BATCH       SPOPS_MVMR_BATCH
#define OUTER       SPOPS_VVOR_ROWS
#define OUTER_PARTS (SPOPS_PRODUCT_OUTER_ROWS / OUTER)

// ---- A CBLAS ------------------------------------------------------------------------------------

// Of cblas.h, in our own words.
enum { CBLAS_ROWS_FIRST = 101, CBLAS_AS_STORED = 111, CBLAS_TRANSPOSED = 112 };
typedef void (*sgemm_fn)(int order, int op_a, int op_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

typedef struct cblas_library {
    spops_context_part part;
    void *file; // NULL: none is installed
    sgemm_fn sgemm;
} cblas_library;

static void close_cblas(spops_context *ctx, spops_context_part *part)
{
    cblas_library *library = (cblas_library *)part;
    if (library->file != NULL) dlclose(library->file);
    spops_host_free(ctx, library, 1, sizeof *library);
}

spops_status spops_cpu_matmul_open(spops_context *ctx, const spops_matmul_open_args *args)
{
    static const char *const names[] = {"libopenblas.so.0", "libcblas.so.3"};
    cblas_library *library;

    (void)args;
    if (ctx->matmul != NULL) return SPOPS_STATUS_OK;
    library = spops_host_alloc(ctx, 1, sizeof *library);
    if (library == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    library->part.destroy = close_cblas;
    for (size_t i = 0; i < sizeof names / sizeof *names && library->sgemm == NULL; ++i) {
        void *symbol = NULL;
        library->file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library->file != NULL) symbol = dlsym(library->file, "cblas_sgemm");
        // POSIX lets data pointers carry functions; ISO C wants the detour.
        memcpy(&library->sgemm, &symbol, sizeof symbol);
        if (library->file != NULL && symbol == NULL) {
            dlclose(library->file);
            library->file = NULL;
        }
    }
    if (library->sgemm == NULL) ctx->dense_library = false;
    ctx->matmul = &library->part;
    return SPOPS_STATUS_OK;
}

static void multiply_by_cblas(sgemm_fn sgemm, const spops_matmul_args *args)
{
    for (int64_t b = 0; b < args->batches; ++b)
        sgemm(CBLAS_ROWS_FIRST, args->a.transposed ? CBLAS_TRANSPOSED : CBLAS_AS_STORED,
              args->b.transposed ? CBLAS_TRANSPOSED : CBLAS_AS_STORED, (int)args->rows,
              (int)args->cols, (int)args->depth, 1.0f,
              (const float *)args->a.data + b * args->a.batch_stride, (int)args->a.row_stride,
              (const float *)args->b.data + b * args->b.batch_stride, (int)args->b.row_stride,
              args->accumulate ? 1.0f : 0.0f, (float *)args->c.data + b * args->c.batch_stride,
              (int)args->c.row_stride);
}

// ---- Own products -------------------------------------------------------------------------------

// Batch b of an operand as a matrix of `rows` stored rows.
static spops_matrix matrix_of(const spops_matmul_operand *operand, int64_t b, int64_t rows,
                              int64_t cols, spops_dtype dtype)
{
    char *data =
        (char *)operand->data + (size_t)(b * operand->batch_stride) * spops_dtype_bytes(dtype);
    spops_matrix m = spops_matrix_dense(data, rows, cols, dtype);
    m.row_stride = operand->row_stride;
    return m;
}

void spops_ahead_add(spops_ahead *ahead, spops_matrix x, const int32_t *rows, int64_t n,
                     int64_t col, int64_t cols)
{
    const size_t bytes = spops_dtype_bytes(x.dtype);
    const char *data = (const char *)x.data + (size_t)col * bytes;

    for (int64_t first = 0; first < n && cols > 0; first += SPOPS_AHEAD_PART) {
        const char **part = ahead->rows[ahead->num_parts];
        for (int64_t i = 0; i < SPOPS_AHEAD_PART; ++i) // the last row again where there are no more
            part[i] = data + (size_t)(rows[spops_least(first + i, n - 1)] * x.row_stride) * bytes;
        ahead->lines[ahead->num_parts++] = (int32_t)(((size_t)cols * bytes + 63) / 64);
    }
}

// The blocks of b that a tile's rows are multiplied with, DEPTH of its depth.
typedef struct tile_blocks {
    _Alignas(64) float w[SPOPS_MVMR_TOGETHER][DEPTH * PANEL];
} tile_blocks;

// n rows from `first` on.
static void fill_rows(int32_t *rows, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; ++i)
        rows[i] = (int32_t)(first + i);
}

// Rows of a times the blocks, whose depth begins at d.
static void multiply_rows(const spops_mvmr_table *table, const spops_product_tile *t, int64_t d,
                          int64_t depth, const tile_blocks *b, float *sums, int64_t step)
{
    _Alignas(64) float part[BATCH * DEPTH];
    int32_t from[BATCH], next[BATCH];
    spops_ahead ahead;

    for (int64_t r = 0; r < t->rows; r += BATCH) {
        const int64_t n = spops_least(BATCH, t->rows - r);
        const int64_t left =
            spops_ahead_pays(depth, t->cols) ? spops_least(BATCH, t->rows - r - n) : 0;
        fill_rows(from, t->row + r, n);
        fill_rows(next, t->row + r + n, left);
        table->load_rows(t->a, from, n, d, depth, NULL, part, DEPTH);
        spops_ahead_clear(&ahead);
        spops_ahead_add(&ahead, t->a, next, left, d, depth);
        for (int64_t c = 0; c < t->cols; c += PANEL)
            table->multiply(part, n, depth, b->w[c / PANEL], spops_least(PANEL, t->cols - c), NULL,
                            sums + r * step + c, step, &ahead);
    }
}

// The same where a is transposed.
static void multiply_columns(const spops_mvmr_table *table, const spops_product_tile *t, int64_t d,
                             int64_t depth, const tile_blocks *b, float *sums, int64_t step)
{
    _Alignas(64) float part[OUTER_PARTS][DEPTH * OUTER];
    const int64_t left =
        spops_ahead_pays(t->rows, t->cols) ? spops_least(DEPTH, t->end - d - depth) : 0;
    int32_t rows[DEPTH];
    spops_ahead ahead;

    fill_rows(rows, d, depth);
    table->load_rows(t->a, rows, depth, t->row, t->rows, NULL, part[0], OUTER);
    fill_rows(rows, d + depth, left);
    spops_ahead_clear(&ahead);
    spops_ahead_add(&ahead, t->a, rows, left, t->row, t->rows);
    if (!t->b_transposed) spops_ahead_add(&ahead, t->b, rows, left, t->col, t->cols);
    for (int64_t c = 0; c < t->cols; c += PANEL)
        for (int64_t r = 0; r < t->rows; r += OUTER)
            table->multiply_columns(part[r / OUTER], spops_least(OUTER, t->rows - r), depth,
                                    b->w[c / PANEL], spops_least(PANEL, t->cols - c),
                                    sums + r * step + c, step, &ahead);
}

void spops_product_tile_sums(const spops_mvmr_table *table, const spops_product_tile *t,
                             float *sums, int64_t step)
{
    tile_blocks b;

    spops_zero_sums(sums, t->rows, (t->cols + 15) / 16 * 16, step);
    for (int64_t d = t->begin; d < t->end; d += DEPTH) {
        const int64_t depth = spops_least(DEPTH, t->end - d);
        table->load_matrix(t->b, d, t->col, depth, t->cols, t->b_transposed, b.w[0]);
        if (t->a_transposed)
            multiply_columns(table, t, d, depth, &b, sums, step);
        else
            multiply_rows(table, t, d, depth, &b, sums, step);
    }
}

spops_product_tiles spops_product_tiles_of(spops_team team, int64_t products, int64_t rows,
                                           int64_t cols, int64_t most_rows)
{
    spops_product_tiles t = {.rows = most_rows, .cols = COLS};
    for (;;) {
        t.in_rows = spops_ceil_div(rows, t.rows);
        t.in_cols = spops_ceil_div(cols, t.cols);
        if (products * t.in_rows * t.in_cols >= 4 * team.size) return t;
        if (t.rows > OUTER)
            t.rows /= 2;
        else if (t.cols > PANEL)
            t.cols /= 2;
        else
            return t;
    }
}

typedef struct matmul_work {
    const spops_mvmr_table *table;
    const spops_matmul_args *args;
    spops_product_tiles tiles;
    bool in_place;
} matmul_work;

// Sums on the stack, rounded or added when they are complete.
static void finish_tile(const matmul_work *w, const spops_product_tile *t, spops_matrix c)
{
    const int64_t step = spops_product_step(t->cols);
    _Alignas(64) float sums[SPOPS_PRODUCT_STACK_ROWS * COLS];

    spops_product_tile_sums(w->table, t, sums, step);
    for (int64_t r = 0; r < t->rows; ++r)
        w->table->store_row(c, t->row + r, t->col, t->cols, w->args->accumulate, sums + r * step);
}

static void multiply_tiles(const void *work, int64_t begin, int64_t end)
{
    const matmul_work *w = (const matmul_work *)work;
    const spops_matmul_args *args = w->args;
    const int64_t tiles = w->tiles.in_rows * w->tiles.in_cols;

    for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / tiles;
        const spops_matrix c = matrix_of(&args->c, b, args->rows, args->cols, args->out_dtype);
        spops_product_tile t = {.a = matrix_of(&args->a, b, args->rows, args->depth, args->dtype),
                                .b = matrix_of(&args->b, b, args->depth, args->cols, args->dtype),
                                .a_transposed = args->a.transposed,
                                .b_transposed = args->b.transposed,
                                .row = i % tiles / w->tiles.in_cols * w->tiles.rows,
                                .col = i % w->tiles.in_cols * w->tiles.cols,
                                .end = args->depth};
        t.rows = spops_least(w->tiles.rows, args->rows - t.row);
        t.cols = spops_least(w->tiles.cols, args->cols - t.col);
        if (w->in_place)
            spops_product_tile_sums(w->table, &t, (float *)c.data + t.row * c.row_stride + t.col,
                                    c.row_stride);
        else
            finish_tile(w, &t, c);
    }
}

spops_status spops_cpu_matmul(spops_context *ctx, const spops_matmul_args *args)
{
    const cblas_library *library = (const cblas_library *)args->library;
    const spops_team team =
        spops_team_for(ctx, args->batches * (args->rows + args->cols) * args->depth);
    const bool in_place =
        !args->accumulate && spops_sums_fit_in(spops_matrix_dense(args->c.data, args->rows,
                                                                  args->cols, args->out_dtype));
    const int64_t most = args->a.transposed ? SPOPS_PRODUCT_OUTER_ROWS
                         : in_place         ? SPOPS_PRODUCT_ROWS
                                            : SPOPS_PRODUCT_STACK_ROWS;
    const matmul_work work = {
        spops_mvmr_table_of(ctx), args,
        spops_product_tiles_of(team, args->batches, args->rows, args->cols, most), in_place};

    if (args->batches == 0 || args->rows == 0 || args->cols == 0) return SPOPS_STATUS_OK;
    if (library->sgemm != NULL && args->dtype == SPOPS_DTYPE_F32) {
        multiply_by_cblas(library->sgemm, args);
        return SPOPS_STATUS_OK;
    }
    spops_parallel_for(team, args->batches * work.tiles.in_rows * work.tiles.in_cols, 1,
                       multiply_tiles, &work);
    return SPOPS_STATUS_OK;
}
