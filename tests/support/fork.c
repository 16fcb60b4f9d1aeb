// SPDX-License-Identifier: Apache-2.0
// Criterion forks a process for each case while threads of its own run. A child whose fork finds one
// of these in the address sanitizer's allocator (GCC 12 does not guard it) waits for a lock that
// nobody holds. They are in there for long only where they are the first to ask for blocks of a size:
// so blocks of every size are asked for before there are threads. What is left of the danger,
// scripts/test meets by trying a program that does not end again.
//
// Now and then the process that starts them loses a timer of a case that has a limit of its own: 48 bytes.
//
// Where the library has CUDA, each of these processes opens the device, one after the other and with
// half a gigabyte of its memory: few at a time, unless CRITERION_JOBS or -j says how many.
#include <stdlib.h>
#include <string.h>

#include "spops/context.h"

__attribute__((constructor)) static void have_few_processes(void)
{
    const char *only = getenv("SPOPS_TEST_BACKEND");
    if (spops_has_cuda() && (only == NULL || strcmp(only, "cpu") != 0))
        (void)setenv("CRITERION_JOBS", "4", 0);
}

#ifdef __SANITIZE_ADDRESS__
__attribute__((constructor)) static void ask_for_every_size(void)
{
    for (size_t bytes = 1; bytes <= (size_t)1 << 16; bytes += bytes < 1024 ? 16 : bytes / 8) {
        void *volatile block = malloc(bytes);
        free(block);
    }
}

const char *__lsan_default_suppressions(void);

// What starts processes runs nothing of ours. Processes of cases, whose stacks go through Criterion too,
// find this variable, and are looked through.
const char *__lsan_default_suppressions(void)
{
    return getenv("BXFI_MAP") == NULL ? "leak:libcriterion\n" : "";
}
#else
typedef int nothing_to_do;
#endif
