// SPDX-License-Identifier: Apache-2.0
// The vector code of softmax within segments (softmax_isa.c), compiled once per instruction set.
#ifndef SPOPS_SEGOPS_SOFTMAX_ISA_H
#define SPOPS_SEGOPS_SOFTMAX_ISA_H

#include "core/cpu_isa.h"
#include "core/dtypes.h"
#include "segops/segops_args.h"

// What is known of a column of a segment, or of a piece of one: forward the largest value and the sum
// of exp(value - largest), backward the sum of softmax times gradient in `sum`.
typedef struct spops_softmax_state {
    double max, sum;
} spops_softmax_state;

enum { SPOPS_SOFTMAX_COLS = 16 }; // of a strip

typedef struct spops_softmax_table {
    // Of n <= SPOPS_SOFTMAX_COLS columns from col on, positions begin .. end - 1.
    void (*measure[SPOPS_NUM_FLOAT_DTYPES])(const spops_segment_softmax_args *args, int64_t begin,
                                            int64_t end, int64_t col, int n,
                                            spops_softmax_state *states);
    // Writes out from the states of whole segments.
    void (*emit[SPOPS_NUM_FLOAT_DTYPES])(const spops_segment_softmax_args *args, int64_t begin,
                                         int64_t end, int64_t col, int n,
                                         const spops_softmax_state *states);
} spops_softmax_table;

SPOPS_DECLARE_ISA_TABLES(spops_softmax_table)

// Two states of one column, the earlier one first.
spops_softmax_state spops_softmax_combine(spops_softmax_state a, spops_softmax_state b,
                                          bool backward);

#endif
