// SPDX-License-Identifier: Apache-2.0
// Checks that the public calls of several modules share.
#include "core/check.h"

#include <stdio.h>

#include "core/matrix.h"

spops_status spops_check_slot(spops_context *ctx, const char *call, bool filled, const char *name)
{
    if (filled) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: the %s backend has no %s", call,
                      ctx->backend->name, name);
}

spops_status spops_check_home(spops_context *ctx, const char *call, const char *name,
                              const spops_context *home)
{
    SPOPS_REQUIRE(ctx, home->backend == ctx->backend,
                  "%s: %s was made for the %s backend, ctx runs on %s", call, name,
                  home->backend->name, ctx->backend->name);
    SPOPS_REQUIRE(ctx, home->info.device == ctx->info.device,
                  "%s: %s lies on device %" PRId32 ", ctx runs on device %" PRId32, call, name,
                  home->info.device, ctx->info.device);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_comm(spops_context *ctx, const char *call, const char *name,
                              const void *comm)
{
    SPOPS_REQUIRE(ctx, comm != NULL, "%s: %s is NULL", call, name);
    return spops_check_home(ctx, call, name, *(spops_context *const *)comm);
}

spops_status spops_check_weights(spops_context *ctx, const char *call, const char *name,
                                 spops_matrix m, int64_t rows, spops_dtype x_dtype)
{
    SPOPS_TRY(spops_check_matrix(ctx, call, name, m, rows, 1,
                                 1u << SPOPS_DTYPE_F32 | 1u << (unsigned)x_dtype));
    SPOPS_REQUIRE(ctx, rows <= 1 || m.row_stride == 1,
                  "%s: %s.row_stride is %" PRId64 ", expected 1", call, name, m.row_stride);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_not_capturing(spops_context *ctx, const char *call)
{
    if (ctx->reading != NULL) return SPOPS_STATUS_OK; // a part has no memory of its own
    ctx->call = call;
    if (ctx->backend->is_capturing == NULL || !ctx->backend->is_capturing(ctx))
        return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: ctx's stream is being captured, and this call waits for it", call);
}

spops_status spops_check_aligned(spops_context *ctx, const char *call, const char *name,
                                 const void *ptr, size_t alignment)
{
    SPOPS_REQUIRE(ctx, (uintptr_t)ptr % alignment == 0,
                  "%s: %s is at %p, expected an address aligned to %zu bytes", call, name, ptr,
                  alignment);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_object(spops_context *ctx, const char *call, const char *name,
                                const void *object, size_t alignment)
{
    SPOPS_REQUIRE(ctx, object != NULL, "%s: %s is NULL", call, name);
    return spops_check_aligned(ctx, call, name, object, alignment);
}

spops_status spops_check_indices(spops_context *ctx, const char *call, const char *name,
                                 const int32_t *array, int64_t n)
{
    SPOPS_REQUIRE(ctx, array != NULL || n == 0, "%s: %s is NULL, expected %" PRId64 " elements",
                  call, name, n);
    return spops_check_aligned(ctx, call, name, array, sizeof *array);
}

spops_status spops_check_count(spops_context *ctx, const char *call, const char *name,
                               int64_t count)
{
    SPOPS_REQUIRE(ctx, count >= 0 && count <= SPOPS_MAX_COUNT,
                  "%s: %s is %" PRId64 ", expected 0 to %" PRId64, call, name, count,
                  SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_backend_dtype(spops_context *ctx, const spops_backend *backend,
                                       const char *call, const char *what, spops_dtype dtype)
{
    if (!spops_dtype_in(dtype, backend->lacks_dtypes)) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: %s is %s, which the %s backend does not take", call, what,
                      spops_dtype_name(dtype), backend->name);
}

spops_status spops_check_flag(spops_context *ctx, const char *call, const char *name, int32_t flag)
{
    SPOPS_REQUIRE(ctx, flag == 0 || flag == 1, "%s: %s is %" PRId32 ", expected 0 or 1", call, name,
                  flag);
    return SPOPS_STATUS_OK;
}

spops_status spops_read_struct(spops_context *ctx, const char *call, const char *name,
                               const void *given, void *dst, size_t size)
{
    char where[96];
    snprintf(where, sizeof where, "%s: %s", call, name);
    return spops_read_options(ctx, where, given, dst, size);
}

spops_status spops_check_reserved(spops_context *ctx, const char *call, int32_t reserved)
{
    SPOPS_REQUIRE(ctx, reserved == 0, "%s: reserved is %" PRId32 ", expected 0", call, reserved);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_max_cols(spops_context *ctx, const char *call, int64_t *max_cols)
{
    SPOPS_TRY(spops_check_count(ctx, call, "max_cols", *max_cols));
    if (*max_cols == 0) *max_cols = SPOPS_DEFAULT_MAX_COLS;
    return SPOPS_STATUS_OK;
}
