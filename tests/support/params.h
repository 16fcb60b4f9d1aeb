// SPDX-License-Identifier: Apache-2.0
// What a parameterized test runs over. A generator is called where no device is open, and its
// values are used in another process: they are plain numbers. For ParameterizedTestParameters.
#ifndef SPOPS_TESTS_SUPPORT_PARAMS_H
#define SPOPS_TESTS_SUPPORT_PARAMS_H

#include <criterion/parameterized.h>

#include "tests/support/launch.h"

struct backend_param {
    int backend;
};
struct criterion_test_params every_backend(void);

// Every backend with the launches that differ most.
struct launch_param {
    int backend, launch;
};
struct criterion_test_params every_launch(void);

// Every backend and launch mode that it has, with every dtype and every `op`, a number that means
// what the test likes: a reduction, a kind of call. Without dtypes it is f32, without ops 0.
struct case_param {
    int backend, launch, dtype, op;
};
struct criterion_test_params every_case(const spops_dtype *dtypes, int num_dtypes, const int *ops,
                                        int num_ops);
// A number of a parameter, apart from those of the others: where its random streams begin.
uint64_t case_number(const struct case_param *p);

// The dtypes of rows that every operator takes.
enum { NUM_ROW_DTYPES = 3 };
extern const spops_dtype test_row_dtypes[NUM_ROW_DTYPES];

#endif
