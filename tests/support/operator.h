// SPDX-License-Identifier: Apache-2.0
// One call of an operator against its reference. A test says which matrices the call has, how it is
// made, and what it should give; drawing, poisons, guards, launches and repeats are here
// (test_run in launch.h says which), and so are the views' strides and shifts.
#ifndef SPOPS_TESTS_SUPPORT_OPERATOR_H
#define SPOPS_TESTS_SUPPORT_OPERATOR_H

#include "tests/support/launch.h"

enum { TEST_MAX_MATRICES = 11 }; // of a call, inputs and outputs each

typedef enum test_check {
    CHECK_BOUND = 0, // within the bound that the reference's scale and roundings give
    CHECK_EXACT = 1, // the reference, rounded to f32 (not of f64) and then to the dtype
    CHECK_SAME = 2   // the very number, with the sign of a zero; also for integers
} test_check;

// A matrix of a call. One without a name is left out: the callbacks get NULL for it.
typedef struct test_matrix {
    const char *name;
    int64_t rows, cols;
    spops_dtype dtype;
    int64_t padding, shift; // elements between rows, and of the base off its alignment
    test_values values;     // of an input
    int64_t num_factors;    // of an input: that are multiplied with each other; 0 for sums
    test_check check;       // of an output
    double unit;            // of an output: the unit roundoff of its sums; 0: test_unit(dtype)
} test_matrix;

static inline test_matrix test_input(const char *name, int64_t rows, int64_t cols,
                                     spops_dtype dtype, test_values values)
{
    return (test_matrix){
        .name = name, .rows = rows, .cols = cols, .dtype = dtype, .values = values};
}

static inline test_matrix test_output(const char *name, int64_t rows, int64_t cols,
                                      spops_dtype dtype, test_check check)
{
    return (test_matrix){.name = name, .rows = rows, .cols = cols, .dtype = dtype, .check = check};
}

static inline test_matrix test_view(test_matrix m, int64_t padding, int64_t shift)
{
    m.padding = padding;
    m.shift = shift;
    return m;
}

typedef struct test_operator {
    const char *what;     // in failure messages, before backend, launch and matrices
    uint64_t stream;      // of the numbers that inputs are drawn from; one a case
    size_t scratch_bytes; // what another context has to reserve
    spops_context *other; // where the call is repeated; NULL: on new contexts
    test_matrix in[TEST_MAX_MATRICES], out[TEST_MAX_MATRICES];

    void *user;
    spops_status (*run)(void *user, spops_context *ctx, const spops_matrix *const *in,
                        const spops_matrix *const *out);
    // in: the values of each input, row by row. expected: zeroed tensors, one an output.
    void (*reference)(void *user, const double *const *in, ref_tensor *const *expected);
    // Optional: change inputs after they were drawn, and their values with them; version 0 or 1.
    void (*adjust)(void *user, int version, test_rng *rng, guarded *const *in,
                   double *const *values);
    // Optional: compare, instead of each output by its check.
    void (*verify)(void *user, const guarded *const *out, const ref_tensor *const *expected,
                   const char *what);
} test_operator;

void test_operator_run(test_device *d, const test_operator *op);

#endif
