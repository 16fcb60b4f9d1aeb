// SPDX-License-Identifier: Apache-2.0
// The log of calls: lines for the caller's function, or for the place that SPOPS_LOG names. A call that
// begins has a line, what it made or why it failed a second one, so that the last line names a call that
// never came back. While there is no log, a call tests one variable.
#ifndef SPOPS_CORE_LOG_H
#define SPOPS_CORE_LOG_H

#include <stdbool.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether lines are wanted. Hidden, so that it is read without a detour.
extern __attribute__((visibility("hidden"))) bool spops_log_is_on;

#define SPOPS_LOG_LINE_BYTES 1024

// A line that grows by printf; what no longer fits is cut.
typedef struct spops_log_line {
    size_t length;
    char text[SPOPS_LOG_LINE_BYTES];
} spops_log_line;

__attribute__((format(printf, 2, 3))) void spops_log_add(spops_log_line *line, const char *format,
                                                         ...);
void spops_log_write(const spops_log_line *line);

// What SPOPS_LOG asks for, once; INVALID_ARGUMENT, without a context, where it cannot be had.
spops_status spops_log_open(void);

// Whether `call` on ctx is the user's, not a part of another call.
bool spops_log_is_own(const spops_context *ctx, const char *call);

// `call` begins: for calls without a row (call/call_log.h has the others).
void spops_log_call(const spops_context *ctx, const char *call);

// A failure with its message, while none is forgiven.
void spops_log_failure(spops_status status, const char *message);
void spops_log_forgive(int change); // 1 begins, -1 ends

// What a call that makes a plan says at its end, whichever way it returns (core/plan.c).
typedef struct spops_log_made {
    const spops_context *ctx;
    const char *call;
    void *handle; // where the handle goes; NULL: nowhere
} spops_log_made;
void spops_log_plan(const spops_log_made *made);

#ifdef __cplusplus
}
#endif

#endif
