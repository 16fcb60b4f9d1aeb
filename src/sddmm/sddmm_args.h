// SPDX-License-Identifier: Apache-2.0
// What the backends' products over pairs of rows are given (core/backend_slots.def).
#ifndef SPOPS_SDDMM_SDDMM_ARGS_H
#define SPOPS_SDDMM_SDDMM_ARGS_H

#include "segments/lists.h"

// For every position p of segment s, with t = order(p), and every head h of d = q.cols / out.cols columns:
//     out[t, h] = scale * <q[s, h d ..], k[a(p), h d ..]>
// Terms that the lists leave out get 0. out.cols > 0.
typedef struct spops_sddmm_args {
    const spops_lists *lists;
    float scale;
    spops_matrix q, k, out;
} spops_sddmm_args;

// out[s, c] = scale * sum over the positions p of segment s of w[order(p), c / d] * x[a(p), c], where d
// = x.cols / w.cols.
typedef struct spops_spmm_args {
    const spops_lists *lists;
    float scale;
    spops_matrix w, x, out;
    void *partials; // [lists->max_pieces][x.cols] of 8 bytes, on the CPU 16
    uint32_t *tickets;
} spops_spmm_args;

#endif
