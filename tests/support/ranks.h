// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of a test: each with a context and its end of a communicator. A rank does not use
// Criterion's checks, which are for the test's own thread, but RANK_CHECK.
#ifndef SPOPS_TESTS_SUPPORT_RANKS_H
#define SPOPS_TESTS_SUPPORT_RANKS_H

#include <stdbool.h>

#include "spops/spops.h"
#include "tests/support/launch.h"

typedef enum test_ranks {
    RANKS_CPU = 0,       // threads
    RANKS_CUDA = 1,      // threads, on as many devices as there are, one or more ranks on each
    RANKS_NCCL = 2,      // NCCL, by an id: a device for each rank
    RANKS_NCCL_GIVEN = 3 // NCCL, a communicator of the caller's
} test_ranks;

typedef struct test_rank {
    test_ranks kind;
    int32_t rank, num_ranks;
    test_device device; // the rank's own, on a stream of its own
    spops_context *ctx; // device.ctx
    spops_comm *comm;   // destroyed after the body, unless the body did it and set NULL
    void *user;
    char failure[512]; // the first
} test_rank;

typedef void (*test_rank_body)(test_rank *r);

// Runs body on num_ranks threads at once, each with `user`, and joins them. False, with a line, where
// there are not so many devices, or no NCCL. A failure of a rank is one of the test.
bool test_ranks_run_as(test_ranks kind, int32_t num_ranks, int32_t timeout_ms, test_rank_body body,
                       void *user);

// Threads of a backend.
bool test_ranks_run(spops_backend_kind backend, int32_t num_ranks, int32_t timeout_ms,
                    test_rank_body body, void *user);

// For tests of all kinds that this build and host have: the op of a case is a test_ranks.
struct criterion_test_params every_ranks(void);

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
