// Checks of matrix arguments, shared by every entry.
#ifndef SPOPS_CORE_MATRIX_H
#define SPOPS_CORE_MATRIX_H

#include <stdbool.h>

#include "core/status.h"

// m is named `name` in messages of `call`: shape rows x cols, data not NULL unless empty, data
// aligned to its element, row_stride >= cols when rows > 1, both even for F4E2M1, sizes that do not
// overflow 64 bits, and a dtype among those of `dtypes` (a bit mask of 1 << dtype).
spops_status spops_check_matrix(spops_context *ctx, const char *call, const char *name,
                                spops_matrix m, int64_t rows, int64_t cols, unsigned dtypes);

// Bytes from the first to behind the last element.
size_t spops_matrix_bytes(spops_matrix m);

// out must not share a byte with in (both checked before).
spops_status spops_check_no_overlap(spops_context *ctx, const char *call, const char *out_name,
                                    spops_matrix out, const char *in_name, spops_matrix in);

// Bytes of n elements, which are even in number for F4E2M1.
static inline int64_t spops_elements_bytes(spops_dtype dtype, int64_t n)
{
    return dtype == SPOPS_DTYPE_F4E2M1 ? n / 2 : n * (int64_t)spops_dtype_bytes(dtype);
}

// Columns of an F4E2M1 row that share a scale.
#define SPOPS_BLOCK_COLS 16

#define SPOPS_DTYPES_FLOAT (1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_F16 | 1u << SPOPS_DTYPE_BF16)

#endif
