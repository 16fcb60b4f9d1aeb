// SPDX-License-Identifier: Apache-2.0
// Dense products on the CPU: by a CBLAS where one is installed and the rows are f32, else by the
// vector code of mvmr.
#include <dlfcn.h>
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/matrix.h"
#include "core/threads.h"
#include "mvmr/matmul_args.h"
#include "mvmr/mvmr_isa.h"
#include "mvmr/product_tile.h"

#define PANEL SPOPS_MVMR_PANEL
#define DEPTH SPOPS_MVMR_DEPTH
#define TILE  SPOPS_PRODUCT_ROWS

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

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

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

void spops_product_tile_sums(const spops_mvmr_table *table, const spops_product_tile *t,
                             float *sums)
{
    _Alignas(64) float block[DEPTH * PANEL], part[TILE * DEPTH];
    int32_t from[DEPTH], to[TILE];

    memset(sums, 0, (size_t)(t->rows * PANEL) * sizeof *sums);
    for (int32_t r = 0; r < TILE; ++r)
        to[r] = r;
    for (int64_t d = t->begin; d < t->end; d += DEPTH) {
        const int64_t depth = least(DEPTH, t->end - d);
        table->load_matrix(t->b, d, t->col, depth, t->cols, t->b_transposed, block);
        for (int64_t i = 0; i < (t->a_transposed ? depth : t->rows); ++i)
            from[i] = (int32_t)((t->a_transposed ? d : t->row) + i);
        if (t->a_transposed) {
            table->load_rows(t->a, from, depth, t->row, t->rows, NULL, part, SPOPS_VVOR_ROWS);
            table->multiply_columns(part, t->rows, depth, block, t->cols, to, sums);
        } else {
            table->load_rows(t->a, from, t->rows, d, depth, NULL, part, DEPTH);
            table->multiply(part, t->rows, depth, block, t->cols, to, sums);
        }
    }
}

// Rows row .. and columns col .. of c[b]: TILE x PANEL sums.
static void multiply_tile(const spops_mvmr_table *table, const spops_matmul_args *args, int64_t b,
                          int64_t row, int64_t col)
{
    const spops_matrix c = matrix_of(&args->c, b, args->rows, args->cols, args->out_dtype);
    const int64_t rows = least(TILE, args->rows - row), cols = least(PANEL, args->cols - col);
    const spops_product_tile tile = {
        .a = matrix_of(&args->a, b, args->rows, args->depth, args->dtype),
        .b = matrix_of(&args->b, b, args->depth, args->cols, args->dtype),
        .a_transposed = args->a.transposed,
        .b_transposed = args->b.transposed,
        .row = row,
        .rows = rows,
        .col = col,
        .cols = cols,
        .end = args->depth};
    _Alignas(64) float sums[TILE * PANEL];

    spops_product_tile_sums(table, &tile, sums);
    for (int64_t r = 0; r < rows; ++r)
        table->store_row(c, row + r, col, cols, args->accumulate, sums + r * PANEL);
}

typedef struct matmul_work {
    const spops_mvmr_table *table;
    const spops_matmul_args *args;
    int64_t tiles, panels; // of a product; panels of a row of tiles
} matmul_work;

static void multiply_tiles(const void *work, int64_t begin, int64_t end)
{
    const matmul_work *w = (const matmul_work *)work;
    for (int64_t i = begin; i < end; ++i)
        multiply_tile(w->table, w->args, i / w->tiles, i % w->tiles / w->panels * TILE,
                      i % w->panels * PANEL);
}

spops_status spops_cpu_matmul(spops_context *ctx, const spops_matmul_args *args)
{
    const cblas_library *library = (const cblas_library *)args->library;
    const int64_t row_tiles = (args->rows + TILE - 1) / TILE;
    const int64_t panels = (args->cols + PANEL - 1) / PANEL;
    const matmul_work work = {spops_mvmr_table_of(ctx), args, row_tiles * panels, panels};
    const int64_t elements = args->batches * (args->rows + args->cols) * args->depth;

    if (args->batches == 0 || args->rows == 0 || args->cols == 0) return SPOPS_STATUS_OK;
    if (library->sgemm != NULL && args->dtype == SPOPS_DTYPE_F32) {
        multiply_by_cblas(library->sgemm, args);
        return SPOPS_STATUS_OK;
    }
    spops_parallel_for(spops_team_for(ctx, elements), args->batches * work.tiles, 1, multiply_tiles,
                       &work);
    return SPOPS_STATUS_OK;
}
