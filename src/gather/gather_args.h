// SPDX-License-Identifier: Apache-2.0
// What the backends' gathers and transposes are given (core/backend_slots.def).
#ifndef SPOPS_GATHER_GATHER_ARGS_H
#define SPOPS_GATHER_GATHER_ARGS_H

#include "segments/lists.h"

// out[a(p)] = w[b(p)] * x[o] for every position p of segment o. Without lists: out[r] = x[r], and 0 in
// columns that x does not have; those that out does not have are left out (CUDA, 2 or 4 bytes).
typedef struct spops_gather_args {
    const spops_lists *lists;
    const int32_t *keys; // [max_terms] segment of term t, its row and weight; NULL: not known
    spops_matrix x;
    spops_matrix w; // data NULL: plain copies
    spops_matrix out;
    spops_matrix also_x, also_out; // without lists: one more copy, same dtype; data NULL: none
} spops_gather_args;

// out[c, r] = in[r, c] for each of `batches` slices: in [batches * rows, cols] -> out
// [batches * cols, rows]. Any dtype of 1, 2 or 4 bytes, the same on both sides.
typedef struct spops_transpose_args {
    int64_t batches, rows, cols;
    spops_matrix in, out;
} spops_transpose_args;

#endif
