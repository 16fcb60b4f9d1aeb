// SPDX-License-Identifier: Apache-2.0
// Sums over rows, in pieces: gradients of the matrix and of the bias of a layer.
#ifndef SPOPS_IGEMM_ROW_SUMS_H
#define SPOPS_IGEMM_ROW_SUMS_H

#include "core/context.h"
#include "spops/mvmr.h"

// out[c, o] = sum over rows i of x[i, c] * g[i, o]; without x out[0, o] = sum over i of g[i, o]. Rows
// piece_rows * p and following, at most so many, are piece p, whose sums are partials[p] where there
// are several; these are added in order.
typedef struct spops_linear_grad_args {
    spops_matrix x, g, out;
    const int32_t *num_rows; // [1] rows that count; NULL: all
    spops_math math;
    int64_t piece_rows;
    int32_t num_pieces;
    float *partials; // [num_pieces][out.rows][out.cols]
} spops_linear_grad_args;

// Sums over rows: pieces are at most so many, of at least so many rows, and their partial sums, of all
// pieces, at most so many numbers.
#define SPOPS_ROW_MAX_PIECES   128
#define SPOPS_ROW_MIN_PIECE    1024
#define SPOPS_ROW_MAX_PARTIALS ((int64_t)8 << 20)
#define SPOPS_ROW_PIECE_STEP   64

typedef struct spops_row_pieces {
    int64_t rows; // of a piece
    int32_t num;
} spops_row_pieces;

// Of sums over `rows` rows with `numbers` numbers each.
static inline spops_row_pieces spops_row_pieces_of(int64_t rows, int64_t numbers)
{
    int64_t most = numbers > 0 ? SPOPS_ROW_MAX_PARTIALS / numbers : SPOPS_ROW_MAX_PIECES;
    spops_row_pieces p;
    if (most > SPOPS_ROW_MAX_PIECES) most = SPOPS_ROW_MAX_PIECES;
    if (most < 1) most = 1;
    p.rows = (rows + most - 1) / most;
    if (p.rows < SPOPS_ROW_MIN_PIECE) p.rows = SPOPS_ROW_MIN_PIECE;
    p.rows = (p.rows + SPOPS_ROW_PIECE_STEP - 1) / SPOPS_ROW_PIECE_STEP * SPOPS_ROW_PIECE_STEP;
    p.num = rows == 0 ? 1 : (int32_t)((rows + p.rows - 1) / p.rows);
    return p;
}

// Partial sums over up to so many rows, with up to so many numbers each: fewer of either need no more.
static inline size_t spops_row_partials_bytes(int64_t max_rows, int64_t max_numbers)
{
    const int64_t most = max_rows / SPOPS_ROW_MIN_PIECE + (max_rows % SPOPS_ROW_MIN_PIECE != 0);
    const int64_t pieces = most < SPOPS_ROW_MAX_PIECES ? most : SPOPS_ROW_MAX_PIECES;
    if (pieces <= 1) return 0;
    return (size_t)(max_numbers > SPOPS_ROW_MAX_PARTIALS / pieces ? SPOPS_ROW_MAX_PARTIALS
                                                                  : pieces * max_numbers) *
           sizeof(float);
}

#endif
