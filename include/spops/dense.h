/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a set as a dense grid, and a dense grid's cells as rows: what stands between a sparse encoder
 * and a dense head (ScatterDense, height compression).
 */
#ifndef SPOPS_DENSE_H
#define SPOPS_DENSE_H

#include "spops/coords.h"

SPOPS_EXTERN_C_BEGIN

/** Where the channels of a dense grid lie. */
typedef enum spops_dense_layout {
    /* [B, C, x_0, .., x_last]. With a first axis of Z cells the same bytes are [B, C Z, Y, X], what
       detectors call height compression. */
    SPOPS_DENSE_CHANNELS_FIRST = 0,
    SPOPS_DENSE_CHANNELS_LAST = 1 /* [B, x_0, .., x_last, C] */
} spops_dense_layout;

/** A dense grid: batches 0 to num_batches - 1, and along axis a the coordinates from origin[a] on. */
typedef struct spops_dense_shape {
    size_t struct_size; /* sizeof(spops_dense_shape) */
    spops_dense_layout layout;
    int32_t num_batches;          /* 1 or more */
    int32_t size[SPOPS_MAX_DIMS]; /* cells along an axis: 1 or more; after the set's axes 0 or 1 */
    int32_t origin[SPOPS_MAX_DIMS]; /* the coordinate of the first cell, of any sign */
    float fill;                     /* what cells hold that no row is for */
    int32_t reserved;               /* 0 */
} spops_dense_shape;

SPOPS_DEFINE_DEFAULT(spops_dense_shape)

/**
 * Write rows into a dense grid:
 *
 *     out[batch, :, x - origin] = x[r, :]     for the row r of the set at (batch, x)
 *
 * coords    The set whose rows x has. Rows outside the grid are left out.
 * x         [coords.max_rows, C], f32 f16 bf16 and, on the CPU, f64. Rows not in use are not read.
 * shape     At most 2^31 - 1 cells in all batches together.
 * out       The grid as a matrix, dtype of x: [num_batches * C, cells of a batch] for CHANNELS_FIRST,
 *           [num_batches * cells, C] for CHANNELS_LAST. The last axis runs fastest. Every element is
 *           written, once: nothing needs to be cleared before. Must not overlap x.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None: the row of a cell is looked up in the set.
 * Numerics  Elements are copied bit for bit; fill is rounded to the dtype.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride, overlap), NOT_SUPPORTED, CUDA.
 *           After any but CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx; coords may be shared.
 * Source    spconv's SparseConvTensor.dense and ScatterDense of libspconv clear the grid and scatter
 *           rows. Looking rows up by cell is ours: each element is written once.
 */
SPOPS_API spops_status spops_dense_execute(spops_context *ctx, const spops_coords *coords,
                                           spops_matrix x, const spops_dense_shape *shape,
                                           spops_matrix out);

/**
 * The gradient of spops_dense_execute: grad_x[r, :] = grad_out[batch, :, x - origin], 0 for a row that
 * is outside the grid or not in use. Shapes as there; the rest as spops_dense_rows_execute.
 */
SPOPS_API spops_status spops_dense_execute_backward(spops_context *ctx, const spops_coords *coords,
                                                    spops_matrix grad_out,
                                                    const spops_dense_shape *shape,
                                                    spops_matrix grad_x);

/**
 * Read rows from a dense grid:
 *
 *     out[r, :] = dense[batch, :, x - origin]     0 for a row outside the grid
 *
 * dense     As `out` of spops_dense_execute.
 * shape     Its fill does not count.
 * out       [coords.max_rows, C], dtype of dense. Every element is written: 0 for rows not in use.
 *
 * Scratch   None. The rest as spops_dense_execute.
 */
SPOPS_API spops_status spops_dense_rows_execute(spops_context *ctx, const spops_coords *coords,
                                                spops_matrix dense, const spops_dense_shape *shape,
                                                spops_matrix out);

/**
 * The gradient of spops_dense_rows_execute: rows of grad_out at their cells, 0 in all others. Shapes as
 * there; the rest as spops_dense_execute.
 */
SPOPS_API spops_status spops_dense_rows_execute_backward(spops_context *ctx,
                                                         const spops_coords *coords,
                                                         spops_matrix grad_out,
                                                         const spops_dense_shape *shape,
                                                         spops_matrix grad_dense);

/* ---- Channels and space ---------------------------------------------------------------------- */

/**
 * Channels of rows become rows of their children:
 *
 *     out[f, :] = x[p, t * C .. t * C + C - 1]     where fine row f is child t of coarse row p
 *
 * Child t of a row at x is at factor x + d; d are the digits of t to the base factor, the last axis
 * fastest. A fine row whose coarse row is not in the set is 0.
 *
 * coarse, fine  Sets of as many axes, in any order: fine often by spops_coords_create_children of coarse,
 *               or coarse by spops_coords_create_downsampled of fine, size and stride factor.
 * factor        1 to 7.
 * x             [coarse.max_rows, factor^dims * C], f32 f16 bf16 and, on the CPU, f64.
 * out           [fine.max_rows, C], dtype of x. Every element is written: 0 for rows not in use.
 *
 * Memory    Where ctx runs. No pointer is kept. out must not overlap x.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None: rows are looked up in the sets.
 * Numerics  Elements are copied bit for bit.
 * Errors    INVALID_ARGUMENT (axes, factor, shapes, dtype, stride, overlap), NOT_SUPPORTED, CUDA. After any
 *           but CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx; sets may be shared.
 */
SPOPS_API spops_status spops_channel_to_space_execute(spops_context *ctx,
                                                      const spops_coords *coarse,
                                                      const spops_coords *fine, int32_t factor,
                                                      spops_matrix x, spops_matrix out);

/** Its gradient: as spops_space_to_channel_execute of grad_out. */
SPOPS_API spops_status spops_channel_to_space_execute_backward(
    spops_context *ctx, const spops_coords *coarse, const spops_coords *fine, int32_t factor,
    spops_matrix grad_out, spops_matrix grad_x);

/**
 * Rows of children become channels of their coarse row: out[p, t * C ..] = x[f, :], 0 where child t of p
 * is not in fine. Shapes and the rest as spops_channel_to_space_execute, x and out exchanged.
 */
SPOPS_API spops_status spops_space_to_channel_execute(spops_context *ctx,
                                                      const spops_coords *coarse,
                                                      const spops_coords *fine, int32_t factor,
                                                      spops_matrix x, spops_matrix out);

/** Its gradient: as spops_channel_to_space_execute of grad_out. */
SPOPS_API spops_status spops_space_to_channel_execute_backward(
    spops_context *ctx, const spops_coords *coarse, const spops_coords *fine, int32_t factor,
    spops_matrix grad_out, spops_matrix grad_x);

SPOPS_EXTERN_C_END

#endif
