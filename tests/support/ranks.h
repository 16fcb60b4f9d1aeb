// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of a test: each with a context and its end of a communicator. A rank does not use
// Criterion's checks, which are for the test's own thread, but RANK_CHECK.
#ifndef SPOPS_TESTS_SUPPORT_RANKS_H
#define SPOPS_TESTS_SUPPORT_RANKS_H

#include <stdbool.h>

#include "spops/spops.h"
#include "tests/support/launch.h"

typedef struct test_rank {
    int32_t rank, num_ranks;
    test_device device; // the rank's own, on a stream of its own
    spops_context *ctx; // device.ctx
    spops_comm *comm;   // destroyed after the body, unless the body did it and set NULL
    void *user;
    char failure[512]; // the first
} test_rank;

typedef void (*test_rank_body)(test_rank *r);

// Runs body on num_ranks threads of a backend at once, each with `user`, and joins them. False where
// there is no such device (test_open). A failure of a rank is one of the test.
bool test_ranks_run(spops_backend_kind backend, int32_t num_ranks, int32_t timeout_ms,
                    test_rank_body body, void *user);

__attribute__((format(printf, 2, 3))) void test_rank_fail(test_rank *r, const char *format, ...);

// The rank's body ends, with a message, where the condition does not hold. What it holds is lost.
#define RANK_CHECK(r, condition, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            test_rank_fail((r), __VA_ARGS__);                                                      \
            return;                                                                                \
        }                                                                                          \
    } while (0)

// A call on the rank's context goes well.
#define RANK_OK(r, call)                                                                           \
    RANK_CHECK((r), (call) == SPOPS_STATUS_OK, "%s: %s", #call, spops_last_error((r)->ctx))

// A call fails with this status and this line.
void test_rank_expect(test_rank *r, spops_status found, spops_status expected, const char *line);

#endif
