// SPDX-License-Identifier: Apache-2.0
// What a parameterized test runs over. The values are used in another
// process: they are plain numbers, of which `backend` is the first.
#ifndef SPOPS_TESTS_SUPPORT_PARAMS_H
#define SPOPS_TESTS_SUPPORT_PARAMS_H

#include <criterion/parameterized.h>

#include "tests/support/launch.h"

// Those of `all` whose backend is tested here: a process for each case, only to be skipped, is most of
// the time of the small tests. SPOPS_TEST_BACKEND names the only backend; without a device the cases
// on CUDA are left out, unless SPOPS_REQUIRE_DEVICE=1 lets them fail.
struct criterion_test_params tested_here(struct criterion_test_params all);

// A test with a case for each of `values`, which the body knows by the declaration, as `struct case_param *p`;
// behind them what Criterion's Test takes.
#define TestOver(suite, name, declaration, values, ...)                                            \
    ParameterizedTestParameters(suite, name)                                                       \
    {                                                                                              \
        return values;                                                                             \
    }                                                                                              \
    ParameterizedTest(declaration, suite, name, ##__VA_ARGS__)

struct backend_param {
    int backend;
};
struct criterion_test_params every_backend(void);
#define BackendTest(suite, name, ...)                                                              \
    TestOver(suite, name, struct backend_param *p, every_backend(), ##__VA_ARGS__)

// Every backend with the launches that differ most.
struct launch_param {
    int backend, launch;
};
struct criterion_test_params every_launch(void);
#define LaunchTest(suite, name, ...)                                                               \
    TestOver(suite, name, struct launch_param *p, every_launch(), ##__VA_ARGS__)

// Every backend and launch mode that it has, with every dtype and every `op`, a number that means
// what the test likes: a reduction, a kind of call. Without dtypes it is f32, without ops 0.
struct case_param {
    int backend, launch, dtype, op;
};
struct criterion_test_params every_case(const spops_dtype *dtypes, int num_dtypes, const int *ops,
                                        int num_ops);
#define CaseTest(suite, name, cases, ...)                                                          \
    TestOver(suite, name, struct case_param *p, cases, ##__VA_ARGS__)
// A number of a parameter, apart from those of the others: where its random streams begin.
uint64_t case_number(const struct case_param *p);

// The dtypes of rows that every operator takes; and, after these, f64, which the CPU alone takes:
// every_case has no case of it on CUDA.
enum { NUM_ROW_DTYPES = 3, NUM_REAL_DTYPES = 4 };
extern const spops_dtype test_row_dtypes[NUM_REAL_DTYPES];

#endif
