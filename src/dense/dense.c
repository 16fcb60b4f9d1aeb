// SPDX-License-Identifier: Apache-2.0
// Dense grids: the shape and the arguments checked, then the backend's slots.
#include "spops/dense.h"

#include <inttypes.h>
#include <string.h>

#include "call/call_check.h"
#include "coords/coords.h"
#include "core/rows_f64.h"
#include "dense/dense_args.h"

// The shape without its struct: what is checked by hand is what a row cannot say.
static spops_status read_grid(spops_context *ctx, const char *call, int32_t dims,
                              const spops_dense_shape *shape, spops_dense_grid *grid)
{
    int64_t cells = shape->num_batches;

    memset(grid, 0, sizeof *grid);
    grid->dims = dims;
    grid->num_batches = shape->num_batches;
    grid->channels_last = shape->layout == SPOPS_DENSE_CHANNELS_LAST;
    for (int32_t a = 0; a < SPOPS_MAX_DIMS; ++a) {
        const int32_t size = shape->size[a] == 0 && a >= dims ? 1 : shape->size[a];
        SPOPS_REQUIRE(ctx, a < dims ? size >= 1 : size == 1,
                      "%s: size[%" PRId32 "] is %" PRId32 ", expected %s of a set with %" PRId32
                      " axes",
                      call, a, shape->size[a], a < dims ? "1 or more" : "0 or 1", dims);
        cells *= size;
        SPOPS_REQUIRE(ctx, cells < INT32_MAX,
                      "%s: size[%" PRId32 "] is %" PRId32
                      ", which makes 2^31 - 1 cells or more of %" PRId32 " batches",
                      call, a, size, shape->num_batches);
        grid->size[a] = size;
        grid->origin[a] = a < dims ? shape->origin[a] : 0;
    }
    grid->batch_cells = cells / shape->num_batches;
    return SPOPS_STATUS_OK;
}

enum { LAYOUT, NUM_BATCHES, SIZE, ORIGIN = SIZE + SPOPS_MAX_DIMS, FILL };

// Both calls: `from` and `to` are the rows and the grid, in the order of the operator's row.
static spops_status read_call(spops_context *ctx, spops_operator_id id, const char *call,
                              const spops_coords *coords, const spops_dense_shape *shape,
                              const spops_matrix *from, const spops_matrix *to,
                              spops_dense_shape *read, spops_dense_args *args)
{
    const void *const given[] = {from, coords, to};
    spops_call_number numbers[FILL + 1];

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_REQUIRE(ctx, shape != NULL, "%s: shape is NULL", call);
    memset(read, 0, sizeof *read);
    SPOPS_TRY(spops_read_options(ctx, call, shape, read, sizeof *read));
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", (const spops_plan *)coords));
    memset(args, 0, sizeof *args);
    SPOPS_REQUIRE(ctx, read->num_batches >= 1, "%s: num_batches is %" PRId32 ", expected 1 or more",
                  call, read->num_batches);
    SPOPS_TRY(read_grid(ctx, call, coords->arrays.layout.dims, read, &args->grid));
    numbers[LAYOUT].i = read->layout;
    numbers[NUM_BATCHES].i = read->num_batches;
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
        numbers[SIZE + a].i = args->grid.size[a];
    numbers[ORIGIN].i = 0;
    numbers[FILL].f = (double)read->fill;
    SPOPS_TRY(spops_check_call(ctx, id, given, numbers));
    args->coords = &coords->arrays;
    return SPOPS_STATUS_OK;
}

// Rows into a grid, and a grid's cells as rows: each is the other's gradient. Gradients of no row are 0.
static spops_status write_dense(spops_context *ctx, spops_operator_id id, const char *call,
                                const spops_coords *coords, spops_matrix rows,
                                const spops_dense_shape *shape, bool fills, spops_matrix dense)
{
    spops_dense_shape read;
    spops_dense_args args;

    SPOPS_TRY(read_call(ctx, id, call, coords, shape, &rows, &dense, &read, &args));
    SPOPS_REQUIRE_SLOT(ctx, call, dense);
    if (rows.cols == 0) return SPOPS_STATUS_OK;
    spops_store_double(rows.dtype, &args.fill, 0, fills ? (double)read.fill : 0.0);
    args.rows = rows;
    args.dense = dense;
    args.num_channels = rows.cols;
    return ctx->backend->dense(ctx, &args);
}

static spops_status read_dense(spops_context *ctx, spops_operator_id id, const char *call,
                               const spops_coords *coords, spops_matrix dense,
                               const spops_dense_shape *shape, spops_matrix rows)
{
    spops_dense_shape read;
    spops_dense_args args;

    SPOPS_TRY(read_call(ctx, id, call, coords, shape, &dense, &rows, &read, &args));
    SPOPS_REQUIRE_SLOT(ctx, call, dense_rows);
    if (rows.cols == 0 || rows.rows == 0) return SPOPS_STATUS_OK;
    args.rows = rows;
    args.dense = dense;
    args.num_channels = rows.cols;
    return ctx->backend->dense_rows(ctx, &args);
}

spops_status spops_dense_execute(spops_context *ctx, const spops_coords *coords, spops_matrix x,
                                 const spops_dense_shape *shape, spops_matrix out)
{
    return write_dense(ctx, SPOPS_OP_dense, "dense_execute", coords, x, shape, true, out);
}

spops_status spops_dense_execute_backward(spops_context *ctx, const spops_coords *coords,
                                          spops_matrix grad_out, const spops_dense_shape *shape,
                                          spops_matrix grad_x)
{
    return read_dense(ctx, SPOPS_OP_dense_backward, "dense_execute_backward", coords, grad_out,
                      shape, grad_x);
}

spops_status spops_dense_rows_execute(spops_context *ctx, const spops_coords *coords,
                                      spops_matrix dense, const spops_dense_shape *shape,
                                      spops_matrix out)
{
    return read_dense(ctx, SPOPS_OP_dense_rows, "dense_rows_execute", coords, dense, shape, out);
}

spops_status spops_dense_rows_execute_backward(spops_context *ctx, const spops_coords *coords,
                                               spops_matrix grad_out,
                                               const spops_dense_shape *shape,
                                               spops_matrix grad_dense)
{
    return write_dense(ctx, SPOPS_OP_dense_rows_backward, "dense_rows_execute_backward", coords,
                       grad_out, shape, false, grad_dense);
}
