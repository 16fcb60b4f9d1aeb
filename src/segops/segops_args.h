// SPDX-License-Identifier: Apache-2.0
// What the backends' calls within segments are given (core/backend_slots.def).
#ifndef SPOPS_SEGOPS_SEGOPS_ARGS_H
#define SPOPS_SEGOPS_SEGOPS_ARGS_H

#include "segments/lists.h"

// Rows of all matrices here are terms, by the caller's numbers. Terms that the lists leave out get 0.
// With grad_out.data NULL: out = softmax of x. Else x is the softmax, and out the gradient of its input:
//     out[t] = x[t] * (grad_out[t] - sum over the terms u of t's segment of x[u] * grad_out[u])
typedef struct spops_segment_softmax_args {
    const spops_lists *lists;
    spops_matrix x, grad_out, out;
    void *partials; // [lists->max_pieces][x.cols] of 8 bytes, on the CPU 16
    uint32_t *tickets;
} spops_segment_softmax_args;

// The terms of each segment by value, column by column, stably: NaN counts as the largest value, and
// -0 as 0. segment_sort puts the one of rank r, its value and its number, where term r of the segment
// is; segment_topk puts those of the ranks 0 to k - 1 to row segment * k + r, and, where the segment
// has no more, the infinity that sorts last, and -1.
typedef struct spops_segment_sort_args {
    const spops_lists *lists;
    bool descending;
    int32_t k; // of segment_topk
    spops_matrix x, values, places;
    void *scratch; // segment_sort_scratch_bytes, or segment_topk_scratch_bytes
} spops_segment_sort_args;

// out = 0, and then out[places[i, c], c] = x[i, c] where 0 <= places[i, c] < out.rows.
typedef struct spops_scatter_places_args {
    spops_matrix x, places, out;
} spops_scatter_places_args;

#endif
