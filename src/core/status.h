// SPDX-License-Identifier: Apache-2.0
// Status reporting inside the library: one line of detail, kept in the context (or, without one, in
// the calling thread), formatted into a fixed buffer so that reporting never allocates.
#ifndef SPOPS_CORE_STATUS_H
#define SPOPS_CORE_STATUS_H

#include <inttypes.h>
#include <stdarg.h>

#include "spops/context.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPOPS_ERROR_BYTES 512

// Record a printf-style detail on ctx (NULL: on the thread) and return status.
__attribute__((format(printf, 3, 4))) spops_status
spops_fail(spops_context *ctx, spops_status status, const char *format, ...);

#ifdef __cplusplus
}
#endif

// An argument must satisfy `condition`, else the call returns INVALID_ARGUMENT with this message.
#define SPOPS_REQUIRE(ctx, condition, ...)                                                         \
    do {                                                                                           \
        if (!(condition)) return spops_fail((ctx), SPOPS_STATUS_INVALID_ARGUMENT, __VA_ARGS__);    \
    } while (0)

// Pass a failure up; its message is kept.
#define SPOPS_TRY(call)                                                                            \
    do {                                                                                           \
        const spops_status spops_try_status = (call);                                              \
        if (spops_try_status != SPOPS_STATUS_OK) return spops_try_status;                          \
    } while (0)

// The same by way of the cleanup at `label`, with the failure in `status`.
#define SPOPS_TRY_GOTO(call, status, label)                                                        \
    do {                                                                                           \
        (status) = (call);                                                                         \
        if ((status) != SPOPS_STATUS_OK) goto label;                                               \
    } while (0)

#endif
