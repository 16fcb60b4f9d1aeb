// SPDX-License-Identifier: Apache-2.0
// The check of an operator's arguments by its row of operators.def: plans that are there and lie where
// ctx runs, attributes in their ranges, dtypes, shapes, strides, alignment, and outputs apart from all
// else. What a row cannot say stands beside the call of this.
#ifndef SPOPS_CALL_CHECK_H
#define SPOPS_CALL_CHECK_H

#include "call/rows.h"
#include "core/check.h"
#include "core/matrix.h"

// An attribute: i, f of a FLOAT, the numbers of INTS or FLOATS.
typedef union spops_call_number {
    int64_t i;
    double f;
    const void *list;
} spops_call_number;

// args        Inputs and outputs in the order of the row; NULL: absent. A plan; a tensor of two
//             dimensions as a const spops_matrix *, with columns in blocks as a const spops_argument *
//             (core/matrix.h); the address of an array.
// attributes  In the order of the row; NULL for an operator without.
spops_status spops_check_call(spops_context *ctx, spops_operator_id op, const void *const *args,
                              const spops_call_number *attributes);

// The same of a call that is not the row's own, but takes what that takes: messages and the log name `call`.
spops_status spops_check_call_as(spops_context *ctx, const char *call, spops_operator_id op,
                                 const void *const *args, const spops_call_number *attributes);

// What an operator's function cannot see of a boxed call: arrays and matrices without gaps come to it
// as addresses. matrices [inputs and outputs], given where args is not NULL.
spops_status spops_check_boxed(spops_context *ctx, const spops_row *row, const void *const *args,
                               const spops_matrix *matrices, const spops_call_number *attributes);

#endif
