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

// Bytes from the first to behind the last element.
size_t spops_matrix_bytes(spops_matrix m);

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
