// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_TESTS_PLAIN_PARAMETERIZED_H
#define SPOPS_TESTS_PLAIN_PARAMETERIZED_H

#include "criterion/criterion.h"

// The array's length, and what frees it (NULL).
#define cr_make_param_array(type, array, ...) PLAIN_PARAMS(type, array, __VA_ARGS__, NULL, 0)
#define PLAIN_PARAMS(type, array, length, cleanup, ...)                                            \
    ((struct criterion_test_params){sizeof(type), (void *)(array), length, cleanup})

#define ParameterizedTestParameters(suite, test_name)                                              \
    static struct criterion_test_params plain_##suite##_##test_name##_params(void)

#define ParameterizedTest(param, suite, test_name, ...)                                            \
    static void plain_##suite##_##test_name(param);                                                \
    PLAIN_REGISTER(plain_##suite##_##test_name, #suite, #test_name, NULL,                          \
                   (void (*)(void *))plain_##suite##_##test_name,                                  \
                   plain_##suite##_##test_name##_params, {.zero = 0, __VA_ARGS__})                 \
    static void plain_##suite##_##test_name(param)

#endif
