// SPDX-License-Identifier: Apache-2.0
// What the backends' sorts of keys are given (core/backend_slots.def).
#ifndef SPOPS_KEYS_KEYS_ARGS_H
#define SPOPS_KEYS_KEYS_ARGS_H

#include "spops/context.h"

// keys [n, 1] of i32 or i64, of which the first *num_keys count (NULL: all; clamped to 0 .. n).
// order[i] is the number of the key of rank i, sorted its value; after them -1 and 0.
typedef struct spops_argsort_args {
    spops_matrix keys;
    const int32_t *num_keys;
    bool descending;
    int32_t *order;      // [n]
    spops_matrix sorted; // data NULL: not wanted
    void *scratch;
} spops_argsort_args;

// values: the different keys, ascending; after them 0. inverse[i]: which of them key i is; -1 where it
// does not count. counts: how many keys are each. Arrays of n elements; NULL: not wanted.
typedef struct spops_unique_args {
    spops_matrix keys;
    const int32_t *num_keys;
    spops_matrix values;
    int32_t *inverse, *counts, *num_unique;
    void *scratch;
} spops_unique_args;

#endif
