// SPDX-License-Identifier: Apache-2.0
// How a call under test is run: on which backend, on which stream, directly or as a captured graph
// that is replayed with other inputs; twice, on another context and with other thread counts, with
// the same bits each time.
#ifndef SPOPS_TESTS_SUPPORT_LAUNCH_H
#define SPOPS_TESTS_SUPPORT_LAUNCH_H

#include <stdbool.h>

#include "spops/spops.h"
#include "tests/support/checked_alloc.h"
#include "tests/support/guarded.h"

typedef enum test_launch {
    LAUNCH_DEFAULT = 0,  // the legacy default stream
    LAUNCH_STREAM = 1,   // a stream of its own
    LAUNCH_CAPTURED = 2, // captured once, replayed with changed inputs; CUDA only
    NUM_LAUNCHES = 3
} test_launch;

const char *test_launch_name(test_launch launch);
const char *test_backend_name(spops_backend_kind backend);

// A backend opened for a test. Every context's memory comes from `memory`.
typedef struct test_device {
    spops_backend_kind backend;
    test_launch launch;
    int32_t device; // that the thread used (device_use)
    void *stream;
    spops_context *ctx;
    checked_alloc memory;
} test_device;

// False where there is no such device: the test prints a line and passes, unless
// SPOPS_REQUIRE_DEVICE=1, which makes it fail. SPOPS_TEST_BACKEND=cpu or cuda leaves the other out.
bool test_open(test_device *d, spops_backend_kind backend, test_launch launch);
// Also checks that nothing leaked and no guard was hurt.
void test_close(test_device *d);

// Whether this build has code that SPOPS_CPU_ISA = name can choose (a build for one set has not).
bool test_has_cpu_isa(const char *name);
// One more context on the same device and stream.
spops_context *test_context(test_device *d, int32_t num_threads);
void test_wait(test_device *d);

// A call under test. `prepare` fills and uploads the inputs of a version (0 or 1) and computes the
// references; `enqueue` makes the call on any context; `verify` compares after outputs were
// downloaded. Outputs are poisoned before each run, and their padding checked after it.
typedef struct test_call {
    void *user;
    void (*prepare)(void *user, int version);
    spops_status (*enqueue)(void *user, spops_context *ctx);
    void (*verify)(void *user, int version, const char *what);
    size_t scratch_bytes; // what another context must reserve
    spops_context *other; // where the call is repeated; NULL: on new contexts
    guarded *inputs[12];
    guarded *outputs[12]; // both lists end with NULL
    const char *what;     // in failure messages
} test_call;

void test_run(test_device *d, const test_call *call);

// Failure checks: `status` is as expected and the message of ctx holds `fragment`; a name alone must
// be the one that the call blames ("call: NAME ..."), or the call's own.
void test_expect(spops_context *ctx, spops_status status, spops_status expected,
                 const char *fragment, const char *what);
void test_expect_ok(spops_context *ctx, spops_status status, const char *what);

// A copy of n numbers where d runs (NULL for none); freed with test_free.
void *test_upload(test_device *d, const void *values, size_t bytes);
int32_t *test_upload_i32(test_device *d, const int32_t *values, int64_t n);
double *test_upload_f64(test_device *d, const double *values, int64_t n);
void test_download_i32(test_device *d, int32_t *values, const int32_t *from, int64_t n);
void test_free(test_device *d, void *ptr);

// Fills `text` and returns it: what is being tested, for messages.
__attribute__((format(printf, 2, 3))) const char *test_describe(char text[256], const char *format,
                                                                ...);

#endif
