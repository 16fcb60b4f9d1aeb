// SPDX-License-Identifier: Apache-2.0
// Dense grids on the CPU: strips of cells, whose rows are looked up in the set, in the order of the
// grid's bytes.
#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/coord_index_cpu.h"
#include "core/matrix.h"
#include "core/row_convert.h"
#include "core/threads.h"
#include "dense/dense_args.h"

enum { STRIP = 64 }; // cells whose channels are written together

typedef struct dense_work {
    const spops_dense_args *args;
    spops_cpu_index index; // where the grid is written
    size_t element;        // bytes of one
    const char *fill;      // one element
    int64_t strips;        // of a batch
    int64_t num_rows;      // in use
} dense_work;

static int32_t cell_of(const spops_dense_args *args, int64_t row)
{
    return spops_dense_cell(&args->grid,
                            args->coords->rows + row * (1 + args->coords->layout.dims));
}

// The rows of n cells from `cell` on, counted over all batches; -1: none.
static void find_rows(const dense_work *w, int64_t cell, int64_t n, int32_t *rows)
{
    const spops_key_layout *layout = &w->args->coords->layout;
    const spops_dense_grid *grid = &w->args->grid;
    const int last = grid->dims;
    int64_t at[1 + SPOPS_MAX_DIMS];

    spops_dense_coords(grid, cell, at);
    for (int64_t k = 0; k < n; ++k) {
        uint64_t key = 0;
        bool fits = true;
        for (int c = 0; c <= last && fits; ++c) {
            fits = spops_key_fits(layout, c, at[c]);
            if (fits) key |= spops_key_column(layout, c, at[c]);
        }
        rows[k] = fits ? spops_index_find(&w->index, layout, key) : -1;
        for (int c = last; c >= 0; --c) { // the next cell
            if (c == 0 || ++at[c] < (int64_t)grid->origin[c - 1] + grid->size[c - 1]) {
                if (c == 0) ++at[0];
                break;
            }
            at[c] = grid->origin[c - 1];
        }
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

static void fill_elements(char *to, const char *fill, int64_t n, size_t element)
{
    uint64_t value = 0;
    memcpy(&value, fill, element);
    if (element == 2)
        for (int64_t i = 0; i < n; ++i)
            ((uint16_t *)(void *)to)[i] = (uint16_t)value;
    else if (element == 4)
        for (int64_t i = 0; i < n; ++i)
            ((uint32_t *)(void *)to)[i] = (uint32_t)value;
    else
        for (int64_t i = 0; i < n; ++i)
            ((uint64_t *)(void *)to)[i] = value;
}

// Strips of cells of all batches, channels together.
static void write_cells(const void *work, int64_t begin, int64_t end)
{
    const dense_work *w = (const dense_work *)work;
    const spops_dense_args *args = w->args;
    const int64_t cells = args->grid.num_batches * args->grid.batch_cells;
    const int64_t channels = args->num_channels;
    for (int64_t strip = begin; strip < end; ++strip) {
        const int64_t first = strip * STRIP, left = cells - first, n = left < STRIP ? left : STRIP;
        int32_t rows[STRIP];
        find_rows(w, first, n, rows);
        for (int64_t k = 0; k < n; ++k) {
            char *to = spops_row_element(args->dense, first + k, 0);
            if (rows[k] >= 0)
                memcpy(to, spops_row_element(args->rows, rows[k], 0),
                       w->element * (size_t)channels);
            else
                fill_elements(to, w->fill, channels, w->element);
        }
    }
}

// Strips of cells of one batch, a channel after the other: filled, then the elements of rows.
static void write_strips(const void *work, int64_t begin, int64_t end)
{
    const dense_work *w = (const dense_work *)work;
    const spops_dense_args *args = w->args;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / w->strips, first = i % w->strips * STRIP;
        const int64_t left = args->grid.batch_cells - first, n = left < STRIP ? left : STRIP;
        int32_t rows[STRIP], with_row[STRIP];
        int num = 0;
        find_rows(w, batch * args->grid.batch_cells + first, n, rows);
        for (int32_t k = 0; k < (int32_t)n; ++k)
            if (rows[k] >= 0) with_row[num++] = k;
        for (int64_t c = 0; c < args->num_channels; ++c) {
            char *to = spops_row_element(args->dense, batch * args->num_channels + c, first);
            if (num < (int)n) fill_elements(to, w->fill, n, w->element);
            for (int at = 0; at < num; ++at)
                copy_element(to + (size_t)with_row[at] * w->element,
                             (char *)spops_row_element(args->rows, rows[with_row[at]], c),
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
    return (dense_work){
        .args = args,
        .element = (size_t)spops_dtype_bits(args->rows.dtype) / 8,
        .fill = (const char *)&args->fill,
        .strips = (args->grid.batch_cells + STRIP - 1) / STRIP,
        .num_rows = args->coords->state->num_rows,
    };
}

spops_status spops_cpu_dense(spops_context *ctx, const spops_dense_args *args)
{
    const int64_t cells = args->grid.num_batches * args->grid.batch_cells;
    const spops_team team = spops_team_for(ctx, cells * args->num_channels);
    dense_work w = work_of(args);

    w.index = spops_cpu_index_made(ctx, args->coords);
    if (args->grid.channels_last)
        spops_parallel_for(team, (cells + STRIP - 1) / STRIP, 0, write_cells, &w);
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
