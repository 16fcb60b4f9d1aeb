// SPDX-License-Identifier: Apache-2.0
// Checks of matrix arguments, shared by every entry.
#ifndef SPOPS_CORE_MATRIX_H
#define SPOPS_CORE_MATRIX_H

#include <stdbool.h>

#include "core/dtypes.h"
#include "core/status.h"

// m is named `name` in messages of `call`: shape rows x cols, data not NULL unless empty, data
// aligned to its element, row_stride >= cols when rows > 1, both even for 4 bits, sizes that do not
// overflow 64 bits, and a dtype among those of `dtypes` (a bit mask of 1 << dtype).
spops_status spops_check_matrix(spops_context *ctx, const char *call, const char *name,
                                spops_matrix m, int64_t rows, int64_t cols, unsigned dtypes);

// Bytes from the first to the end of the last element.
size_t spops_matrix_bytes(spops_matrix m);

// An argument as the checks of overlap see it: a matrix whose columns may lie in equal blocks with
// something else between them, as the heads of an attention do. data NULL, or no element: nothing.
typedef struct spops_argument {
    const char *name; // in messages
    spops_matrix m;   // cols: those of all blocks together
    int64_t num_blocks;
    int64_t block_stride; // elements from one block to the next, at least cols / num_blocks
} spops_argument;

// A matrix without gaps between its columns.
static inline spops_argument spops_plain_argument(const char *name, spops_matrix m)
{
    const spops_argument a = {name, m, 1, 0};
    return a;
}

// n elements one after another; NULL: nothing.
static inline spops_argument spops_array_argument(const char *name, const void *array, int64_t n,
                                                  spops_dtype dtype)
{
    return spops_plain_argument(name, spops_matrix_dense_const(array, 1, n, dtype));
}

// Whether a byte belongs to both. Exact where the rows are as far apart in both, or one is a single
// row, so that columns of one buffer may be passed side by side, and heads of several operands in
// turn; else memory that meets counts as shared. Takes the same time for any number of rows and
// blocks, but for blocks that are apart differently in both.
bool spops_arguments_overlap(const spops_argument *a, const spops_argument *b);

// Every output is apart from every input and from every other output (all checked before).
spops_status spops_check_apart(spops_context *ctx, const char *call, const spops_argument *outs,
                               int num_outs, const spops_argument *ins, int num_ins);

// out must not share a byte with in (both checked before).
spops_status spops_check_no_overlap(spops_context *ctx, const char *call, const char *out_name,
                                    spops_matrix out, const char *in_name, spops_matrix in);

// dtype is `found`, which must be one of `dtypes`: the check above as it stands alone.
spops_status spops_check_dtype(spops_context *ctx, const char *call, const char *what,
                               spops_dtype found, unsigned dtypes);

// Bytes of n elements, which are even in number for 4 bits.
static inline int64_t spops_elements_bytes(spops_dtype dtype, int64_t n)
{
    const int bits = spops_dtype_bits(dtype);
    return bits < 8 ? n / 2 : n * (bits / 8);
}

// Elements from one row to the next, for products that no row number is in: 0 where there is one row,
// whose row_stride is not looked at and may be any number.
static inline int64_t spops_row_step(spops_matrix m)
{
    return m.rows > 1 ? m.row_stride : 0;
}

// Columns of a row of 4-bit codes that share a scale.
#define SPOPS_BLOCK_COLS 16

#endif
