// SPDX-License-Identifier: Apache-2.0
// The part of Criterion that the tests use, for where it is not to be had: cross builds, which run
// under an emulator, and builds under the thread sanitizer. See plain.c.
#ifndef SPOPS_TESTS_PLAIN_CRITERION_H
#define SPOPS_TESTS_PLAIN_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct criterion_test_params {
    size_t size;
    void *params;
    size_t length;
    void (*cleanup)(struct criterion_test_params *params);
};

struct plain_options {
    int zero; // so that there is something to initialise
    double timeout;
    void (*init)(void);
    void (*fini)(void);
    int signal, exit_code;
};

struct plain_test {
    const char *suite, *name; // name NULL: what every test of the suite does
    void (*run)(void);
    void (*run_with)(void *param);
    struct criterion_test_params (*params)(void);
    struct plain_options options;
    struct plain_test *next;
};

void plain_register(struct plain_test *test);

// A check that did not hold; `ends`: the test ends with it.
__attribute__((format(printf, 5, 6))) void plain_fail(bool ends, const char *file, int line,
                                                      const char *text, const char *format, ...);
__attribute__((format(printf, 1, 2))) void plain_log(const char *format, ...);
__attribute__((noreturn)) void plain_skip(void);

#define PLAIN_REGISTER(id, ...)                                                                    \
    __attribute__((constructor)) static void id##_register(void)                                   \
    {                                                                                              \
        static struct plain_test test = {__VA_ARGS__, NULL};                                       \
        plain_register(&test);                                                                     \
    }

#define TestSuite(suite, ...)                                                                      \
    PLAIN_REGISTER(plain_##suite, #suite, NULL, NULL, NULL, NULL, {.zero = 0, __VA_ARGS__})

#define Test(suite, test_name, ...)                                                                \
    static void plain_##suite##_##test_name(void);                                                 \
    PLAIN_REGISTER(plain_##suite##_##test_name, #suite, #test_name, plain_##suite##_##test_name,   \
                   NULL, NULL, {.zero = 0, __VA_ARGS__})                                           \
    static void plain_##suite##_##test_name(void)

#define PLAIN_CHECK(holds, ends, text, ...)                                                        \
    do {                                                                                           \
        if (!(holds)) plain_fail((ends), __FILE__, __LINE__, text, " " __VA_ARGS__);               \
    } while (0)

#define cr_assert(c, ...)            PLAIN_CHECK((c), true, #c, __VA_ARGS__)
#define cr_assert_not(c, ...)        PLAIN_CHECK(!(c), true, "!" #c, __VA_ARGS__)
#define cr_assert_fail(...)          PLAIN_CHECK(false, true, "fail", __VA_ARGS__)
#define cr_assert_eq(a, b, ...)      PLAIN_CHECK((a) == (b), true, #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)     PLAIN_CHECK((a) != (b), true, #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)      PLAIN_CHECK((a) < (b), true, #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)     PLAIN_CHECK((a) <= (b), true, #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)      PLAIN_CHECK((a) > (b), true, #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)     PLAIN_CHECK((a) >= (b), true, #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...)       PLAIN_CHECK((a) == NULL, true, #a " == NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...)   PLAIN_CHECK((a) != NULL, true, #a " != NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)  PLAIN_CHECK(strcmp(a, b) == 0, true, #a " eq " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) PLAIN_CHECK(strcmp(a, b) != 0, true, #a " ne " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...)  PLAIN_CHECK((a)[0] == '\0', true, #a " is empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)                                                             \
    PLAIN_CHECK(memcmp(a, b, n) == 0, true, #a " eq " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, by, ...)                                                          \
    PLAIN_CHECK(fabs((double)(a) - (double)(b)) <= (double)(by), true, #a " is " #b, __VA_ARGS__)

#define cr_expect(c, ...)           PLAIN_CHECK((c), false, #c, __VA_ARGS__)
#define cr_expect_not(c, ...)       PLAIN_CHECK(!(c), false, "!" #c, __VA_ARGS__)
#define cr_expect_eq(a, b, ...)     PLAIN_CHECK((a) == (b), false, #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...)    PLAIN_CHECK((a) != (b), false, #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...)     PLAIN_CHECK((a) < (b), false, #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...)    PLAIN_CHECK((a) <= (b), false, #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...)     PLAIN_CHECK((a) > (b), false, #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...)    PLAIN_CHECK((a) >= (b), false, #a " >= " #b, __VA_ARGS__)
#define cr_expect_null(a, ...)      PLAIN_CHECK((a) == NULL, false, #a " == NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...)  PLAIN_CHECK((a) != NULL, false, #a " != NULL", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) PLAIN_CHECK(strcmp(a, b) == 0, false, #a " eq " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...)                                                             \
    PLAIN_CHECK(memcmp(a, b, n) == 0, false, #a " eq " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, by, ...)                                                          \
    PLAIN_CHECK(fabs((double)(a) - (double)(b)) <= (double)(by), false, #a " is " #b, __VA_ARGS__)

#define cr_log_info(...)  plain_log(__VA_ARGS__)
#define cr_skip(...)      (plain_log(" " __VA_ARGS__), plain_skip())
#define cr_skip_test(...) (plain_log(" " __VA_ARGS__), plain_skip())

#endif
