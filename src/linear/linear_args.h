// SPDX-License-Identifier: Apache-2.0
// Linear layers, and sums over rows, by the library's own kernels.
#ifndef SPOPS_LINEAR_LINEAR_ARGS_H
#define SPOPS_LINEAR_LINEAR_ARGS_H

#include "igemm/epilogue_args.h"
#include "igemm/row_sums.h"
#include "spops/mvmr.h"

// out = finish(x w): what `finish` says of a sum (its out and num_rows too), rounded once. The
// residual may be out itself.
typedef struct spops_linear_args {
    spops_matrix x, w;
    bool w_transposed;
    bool reads_ahead; // as spops_igemm_args has it
    spops_math math;
    spops_epilogue_args finish;
} spops_linear_args;

// Rows that count.
static inline int64_t spops_rows_in_use(const int32_t *num_rows, int64_t max_rows)
{
    if (num_rows == NULL) return max_rows;
    return *num_rows < 0 ? 0 : *num_rows < max_rows ? *num_rows : max_rows;
}

#endif
