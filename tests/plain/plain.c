// SPDX-License-Identifier: Apache-2.0
// Runs the tests of a program, each in a process of its own, and prints the line that scripts/test
// counts. An argument is a pattern of suite/test, as Criterion's --filter takes. With
// SPOPS_TEST_ONE_PROCESS=1 all run in the program's own process, where opening a device takes long;
// what a test that failed has left behind stays.
#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criterion/criterion.h"

#define SKIPPED 77

static struct plain_test *tests;
static const char *running;
static bool failed, one_process;
static jmp_buf after_test;

void plain_register(struct plain_test *test)
{
    struct plain_test **last = &tests;
    while (*last != NULL)
        last = &(*last)->next;
    *last = test;
}

void plain_log(const char *format, ...)
{
    (void)format; // what Criterion prints when asked to
}

void plain_skip(void)
{
    if (one_process) longjmp(after_test, 1);
    exit(SKIPPED);
}

void plain_fail(bool ends, const char *file, int line, const char *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: %s:%d: %s:", running, file, line, text);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    failed = true;
    if (ends && one_process) longjmp(after_test, 1);
    if (ends) _exit(1);
}

static const struct plain_options *options_of_suite(const char *suite)
{
    for (const struct plain_test *t = tests; t != NULL; t = t->next)
        if (t->name == NULL && strcmp(t->suite, suite) == 0) return &t->options;
    return NULL;
}

// One test, with its parameter if it has them.
static void run_here(const struct plain_test *test, void *param)
{
    const struct plain_options *suite = options_of_suite(test->suite);
    if (suite != NULL && suite->init != NULL) suite->init();
    if (test->options.init != NULL) test->options.init();
    if (test->run_with != NULL)
        test->run_with(param);
    else
        test->run();
    if (test->options.fini != NULL) test->options.fini();
    if (suite != NULL && suite->fini != NULL) suite->fini();
}

// True if it passed.
static bool run_test(const struct plain_test *test, void *param)
{
    int status = 0;
    fflush(NULL);
    if (one_process) {
        failed = false;
        if (setjmp(after_test) == 0) run_here(test, param);
        return !failed;
    }
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        run_here(test, param);
        exit(failed);
    }
    if (waitpid(child, &status, 0) != child) return false;
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "%s: signal %d\n", running, WTERMSIG(status));
        return WTERMSIG(status) == test->options.signal;
    }
    return WEXITSTATUS(status) == test->options.exit_code || WEXITSTATUS(status) == SKIPPED;
}

int main(int argc, char **argv)
{
    const char *pattern = argc > 1 ? argv[argc - 1] : "*";
    const char *one = getenv("SPOPS_TEST_ONE_PROCESS");
    one_process = one != NULL && strcmp(one, "1") == 0;
    int num_passed = 0, num_failed = 0;
    for (const struct plain_test *t = tests; t != NULL; t = t->next) {
        char name[256];
        struct criterion_test_params params = {0, NULL, 1, NULL};
        snprintf(name, sizeof name, "%s/%s", t->suite, t->name == NULL ? "" : t->name);
        if (t->name == NULL || fnmatch(pattern, name, 0) != 0) continue;
        running = name;
        if (t->params != NULL) params = t->params();
        for (size_t i = 0; i < params.length; ++i) {
            const bool passed = run_test(t, (char *)params.params + i * params.size);
            num_passed += passed;
            num_failed += !passed;
        }
        if (params.cleanup != NULL) params.cleanup(&params);
    }
    printf("Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: 0\n",
           num_passed + num_failed, num_passed, num_failed);
    return num_failed > 0;
}
