// SPDX-License-Identifier: Apache-2.0
// What the backends' gathers and transposes are given (core/backend_slots.def).
#ifndef SPOPS_GATHER_GATHER_ARGS_H
#define SPOPS_GATHER_GATHER_ARGS_H

#include "segments/lists.h"

// out[a(p)] = w[b(p)] * x[o] for every position p of segment o.
typedef struct spops_gather_args {
    const spops_lists *lists;
    spops_matrix x;
    spops_matrix w; // data NULL: plain copies
    spops_matrix out;
} spops_gather_args;

// out[c, r] = in[r, c] for each of `batches` slices: in [batches * rows, cols] -> out
// [batches * cols, rows]. Any dtype of 1, 2 or 4 bytes, the same on both sides.
typedef struct spops_transpose_args {
    int64_t batches, rows, cols;
    spops_matrix in, out;
} spops_transpose_args;

#endif
