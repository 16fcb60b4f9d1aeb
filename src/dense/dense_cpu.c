// SPDX-License-Identifier: Apache-2.0
// Dense grids on the CPU: the row of every cell in a table, then the grid in the order of its bytes.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/matrix.h"
#include "core/row_convert.h"
#include "core/threads.h"
#include "dense/dense_args.h"

enum { STRIP = 64 }; // cells whose channels are written together

typedef struct dense_work {
    const spops_dense_args *args;
    size_t element;   // bytes of one
    const char *fill; // one element
    int64_t strips;   // of a batch
    int64_t num_rows; // in use
} dense_work;

static void clear_table(const void *work, int64_t begin, int64_t end)
{
    const dense_work *w = (const dense_work *)work;
    memset(w->args->table + begin, 0xff, (size_t)(end - begin) * sizeof(int32_t));
}

static int32_t cell_of(const spops_dense_args *args, int64_t row)
{
    return spops_dense_cell(&args->grid,
                            args->coords->rows + row * (1 + args->coords->layout.dims));
}

static void enter_rows(const void *work, int64_t begin, int64_t end)
{
    const dense_work *w = (const dense_work *)work;
    for (int64_t r = begin; r < end; ++r) {
        const int32_t cell = cell_of(w->args, r);
        if (cell >= 0) w->args->table[cell] = (int32_t)r;
    }
}

static inline void copy_element(char *to, const char *from, size_t bytes)
{
    if (bytes == 4)
        memcpy(to, from, 4);
    else if (bytes == 2)
        memcpy(to, from, 2);
    else
        memcpy(to, from, 8);
}

// Cells of all batches, channels together.
static void write_cells(const void *work, int64_t begin, int64_t end)
{
    const dense_work *w = (const dense_work *)work;
    const spops_dense_args *args = w->args;
    for (int64_t cell = begin; cell < end; ++cell) {
        char *to = spops_row_element(args->dense, cell, 0);
        const int32_t row = args->table[cell];
        if (row >= 0) {
            memcpy(to, spops_row_element(args->rows, row, 0),
                   w->element * (size_t)args->num_channels);
            continue;
        }
        for (int64_t c = 0; c < args->num_channels; ++c)
            copy_element(to + (size_t)c * w->element, w->fill, w->element);
    }
}

// Strips of cells of one batch, a channel after the other.
static void write_strips(const void *work, int64_t begin, int64_t end)
{
    const dense_work *w = (const dense_work *)work;
    const spops_dense_args *args = w->args;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / w->strips, first = i % w->strips * STRIP;
        const int64_t left = args->grid.batch_cells - first, n = left < STRIP ? left : STRIP;
        const int32_t *rows = args->table + batch * args->grid.batch_cells + first;
        for (int64_t c = 0; c < args->num_channels; ++c) {
            char *to = spops_row_element(args->dense, batch * args->num_channels + c, first);
            for (int64_t k = 0; k < n; ++k)
                copy_element(to + (size_t)k * w->element,
                             rows[k] < 0 ? w->fill
                                         : (char *)spops_row_element(args->rows, rows[k], c),
                             w->element);
        }
    }
}

static void read_rows(const void *work, int64_t begin, int64_t end)
{
    const dense_work *w = (const dense_work *)work;
    const spops_dense_args *args = w->args;
    const char *dense = args->dense.data;
    const int64_t step = spops_row_step(args->dense), channels = args->num_channels;
    for (int64_t r = begin; r < end; ++r) {
        char *to = spops_row_element(args->rows, r, 0);
        const int32_t cell = r < w->num_rows ? cell_of(args, r) : -1;
        for (int64_t c = 0; c < channels; ++c) {
            const char *from = w->fill;
            if (cell >= 0)
                from = dense +
                       (size_t)spops_dense_place(&args->grid, step, channels, cell, c) * w->element;
            copy_element(to + (size_t)c * w->element, from, w->element);
        }
    }
}

static dense_work work_of(const spops_dense_args *args)
{
    dense_work w = {args, (size_t)spops_dtype_bits(args->rows.dtype) / 8, (const char *)&args->fill,
                    0, 0};
    w.strips = (args->grid.batch_cells + STRIP - 1) / STRIP;
    w.num_rows = args->coords->state->num_rows;
    return w;
}

spops_status spops_cpu_dense(spops_context *ctx, const spops_dense_args *args)
{
    const dense_work w = work_of(args);
    const int64_t cells = args->grid.num_batches * args->grid.batch_cells;
    const spops_team team = spops_team_for(ctx, cells * args->num_channels);

    spops_parallel_for(team, cells, 0, clear_table, &w);
    spops_parallel_for(team, w.num_rows, 0, enter_rows, &w);
    if (args->grid.channels_last)
        spops_parallel_for(team, cells, 0, write_cells, &w);
    else
        spops_parallel_for(team, args->grid.num_batches * w.strips, 0, write_strips, &w);
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_dense_rows(spops_context *ctx, const spops_dense_args *args)
{
    const dense_work w = work_of(args);
    spops_parallel_for(spops_team_for(ctx, args->rows.rows * args->num_channels), args->rows.rows,
                       0, read_rows, &w);
    return SPOPS_STATUS_OK;
}
