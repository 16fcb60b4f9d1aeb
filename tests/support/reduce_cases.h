// SPDX-License-Identifier: Apache-2.0
// The cases of the tests that run every reduction: each with each dtype and launch mode, over
// shapes and columns, and over forms of the plan, weights and places of rows in memory.
#ifndef SPOPS_TESTS_SUPPORT_REDUCE_CASES_H
#define SPOPS_TESTS_SUPPORT_REDUCE_CASES_H

#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

// Every built-in reduction.
extern const spops_reduce test_reduces[];
extern const int test_num_reduces;

// A sum as a reduction to register, on both backends.
spops_reduce_desc test_plain_sum(void);

// As the op of every_case: all of them, and those that have a gradient.
struct criterion_test_params every_reduction(void);
struct criterion_test_params every_reduction_with_gradient(void);

// What the list says of a built-in reduction.
bool test_reduce_has_arg(spops_reduce reduce);
bool test_reduce_is_linear(spops_reduce reduce);

typedef enum test_weighting {
    WEIGHTS_NONE,
    WEIGHTS_F32,
    WEIGHTS_SAME, // of the dtype of the rows
    NUM_WEIGHTINGS
} test_weighting;

typedef struct reduce_choices {
    int64_t cols, padding, shift;
    int64_t max_cols; // of the plan; 0: the default
    test_weighting weights;
    int number;      // of the case, among those that are run
    uint64_t stream; // of its random numbers
} reduce_choices;

// One case; what a test chooses besides comes from rng.
typedef void reduce_check(test_device *d, const test_shape *shape, const test_relation *relation,
                          const struct case_param *p, const reduce_choices *choices, test_rng *rng);

// Every shape and column count, with the rest drawn at random.
void reduce_over_shapes(const struct case_param *p, reduce_check *check);
// One small shape, with every combination of form, indexing, weights, padding and shift.
void reduce_over_options(const struct case_param *p, reduce_check *check);

#endif
