// SPDX-License-Identifier: Apache-2.0
// Checks that the public calls of several modules share. They report on ctx, naming `call`.
#ifndef SPOPS_CORE_CHECK_H
#define SPOPS_CORE_CHECK_H

#include "core/backend.h"
#include "core/log.h"

#define SPOPS_DEFAULT_MAX_COLS 256
#define SPOPS_MAX_COUNT        ((int64_t)INT32_MAX - 1) // of segments, terms, rows, weights

// The backend of ctx fills this slot.
#define SPOPS_REQUIRE_SLOT(ctx, call, slot)                                                        \
    SPOPS_TRY(spops_check_slot((ctx), (call), (ctx)->backend->slot != NULL, #slot))
spops_status spops_check_slot(spops_context *ctx, const char *call, bool filled, const char *name);

// What is called `name` was made by home, and lies where ctx runs.
spops_status spops_check_home(spops_context *ctx, const char *call, const char *name,
                              const spops_context *home);

// A communicator, called `name`, is there, and its rank lies where ctx runs. Its context is what it begins
// with (comm/comm.h).
spops_status spops_check_comm(spops_context *ctx, const char *call, const char *name,
                              const void *comm);

// ctx's stream is not being captured; `call` allocates or waits. Messages about memory name it from
// here on.
spops_status spops_check_not_capturing(spops_context *ctx, const char *call);

// What every public call begins with that has no row in the list of operators (call/call_check.h):
// ctx is there, and the log has the call.
#define SPOPS_BEGIN_CALL(ctx, call)                                                                \
    do {                                                                                           \
        SPOPS_REQUIRE(NULL, (ctx) != NULL, "%s: ctx is NULL", (call));                             \
        if (spops_log_is_on) spops_log_call((ctx), (call));                                        \
    } while (0)

// What every call that makes a plan begins with: ctx is there, and out (a plain name), where
// nothing is from here on, whatever fails; ctx's stream is not being captured. The log has the call,
// and at its end the plan.
#define SPOPS_BEGIN_CREATE(ctx, call, out)                                                         \
    SPOPS_BEGIN_AGREED(ctx, call, out);                                                            \
    SPOPS_TRY(spops_check_not_capturing((ctx), (call)))

// The same, but whether the stream is captured the call asks itself, as one that ranks make together.
#define SPOPS_BEGIN_AGREED(ctx, call, out)                                                         \
    const spops_log_made spops_made __attribute__((cleanup(spops_log_plan))) = {                   \
        (ctx), (call), (uintptr_t)(out) % sizeof *(out) == 0 ? (void *)(out) : NULL};              \
    do {                                                                                           \
        if (spops_made.handle != NULL) *(out) = NULL;                                              \
        SPOPS_BEGIN_CALL(ctx, call);                                                               \
        SPOPS_TRY(spops_check_object((ctx), (call), #out, (out), sizeof *(out)));                  \
    } while (0)

// ptr, which is called `name`, is aligned.
spops_status spops_check_aligned(spops_context *ctx, const char *call, const char *name,
                                 const void *ptr, size_t alignment);

// What the caller gives by address, called `name`, is there and aligned to its type.
spops_status spops_check_object(spops_context *ctx, const char *call, const char *name,
                                const void *object, size_t alignment);

// An index array of n elements is there (unless n is 0) and aligned.
spops_status spops_check_indices(spops_context *ctx, const char *call, const char *name,
                                 const int32_t *array, int64_t n);

// A count is 0 to SPOPS_MAX_COUNT.
spops_status spops_check_count(spops_context *ctx, const char *call, const char *name,
                               int64_t count);

// A choice of the caller's is 0 or 1.
// NOT_SUPPORTED where the backend lacks rows of this dtype; any other dtype passes.
spops_status spops_check_backend_dtype(spops_context *ctx, const spops_backend *backend,
                                       const char *call, const char *what, spops_dtype dtype);
spops_status spops_check_flag(spops_context *ctx, const char *call, const char *name, int32_t flag);

// spops_read_options of a struct beside the call's own options: `name` tells which.
spops_status spops_read_struct(spops_context *ctx, const char *call, const char *name,
                               const void *given, void *dst, size_t size);

// What a struct has for later is 0.
spops_status spops_check_reserved(spops_context *ctx, const char *call, int32_t reserved);

// max_cols of an options struct; 0 becomes the default.
spops_status spops_check_max_cols(spops_context *ctx, const char *call, int64_t *max_cols);

// m is a column of `rows` weights without gaps, f32 or of x's dtype.
spops_status spops_check_weights(spops_context *ctx, const char *call, const char *name,
                                 spops_matrix m, int64_t rows, spops_dtype x_dtype);

#endif
