// SPDX-License-Identifier: Apache-2.0
// Argsort and unique: argument checks, scratch, the slots, and boxed functions.
#include "spops/keys.h"

#include "call/boxed.h"
#include "core/check.h"
#include "keys/keys_args.h"

#define KEY_DTYPES (1u << SPOPS_DTYPE_I32 | 1u << SPOPS_DTYPE_I64)

static bool can_measure(const spops_context *ctx, spops_dtype dtype, int64_t n)
{
    return ctx != NULL && spops_dtype_in(dtype, KEY_DTYPES) && n > 0 && n <= SPOPS_MAX_COUNT;
}

size_t spops_argsort_scratch_bytes(spops_context *ctx, spops_dtype dtype, int64_t n)
{
    const spops_argsort_args args = {.keys = spops_matrix_dense(NULL, n, 1, dtype)};
    return can_measure(ctx, dtype, n) ? ctx->backend->argsort_scratch_bytes(ctx, &args) : 0;
}

size_t spops_unique_scratch_bytes(spops_context *ctx, spops_dtype dtype, int64_t n)
{
    const spops_unique_args args = {.keys = spops_matrix_dense(NULL, n, 1, dtype)};
    return can_measure(ctx, dtype, n) ? ctx->backend->unique_scratch_bytes(ctx, &args) : 0;
}

static spops_status get_scratch(spops_context *ctx, const char *call, const char *asked,
                                size_t bytes, void **scratch)
{
    const spops_status status = spops_context_scratch(ctx, call, bytes, scratch);
    if (status == SPOPS_STATUS_SCRATCH_TOO_SMALL)
        return spops_fail(ctx, status,
                          "%s: the context's scratch is %zu bytes, expected at least %zu: call "
                          "spops_context_reserve with %s",
                          call, ctx->scratch_bytes, bytes, asked);
    return status;
}

spops_status spops_argsort_execute(spops_context *ctx, int32_t descending, spops_matrix keys,
                                   const int32_t *num_keys, int32_t *order,
                                   const spops_matrix *sorted)
{
    static const char call[] = "argsort_execute";
    const void *const given[] = {&keys, num_keys, order, sorted};
    const spops_call_number attributes[] = {{.i = descending}};
    spops_argsort_args args = {
        .keys = keys, .num_keys = num_keys, .descending = descending != 0, .order = order};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_argsort, given, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, argsort);
    SPOPS_TRY(spops_check_count(ctx, call, "keys.rows", keys.rows));
    if (keys.rows == 0) return SPOPS_STATUS_OK;
    if (sorted != NULL) args.sorted = *sorted;
    SPOPS_TRY(get_scratch(ctx, call, "spops_argsort_scratch_bytes",
                          ctx->backend->argsort_scratch_bytes(ctx, &args), &args.scratch));
    return ctx->backend->argsort(ctx, &args);
}

spops_status spops_unique_execute(spops_context *ctx, spops_matrix keys, const int32_t *num_keys,
                                  spops_matrix values, int32_t *inverse, int32_t *counts,
                                  int32_t *num_unique)
{
    static const char call[] = "unique_execute";
    const void *const given[] = {&keys, num_keys, &values, num_unique, inverse, counts};
    spops_unique_args args = {keys, num_keys, values, inverse, counts, num_unique, NULL};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_unique, given, NULL));
    SPOPS_REQUIRE_SLOT(ctx, call, unique);
    SPOPS_TRY(spops_check_count(ctx, call, "keys.rows", keys.rows));
    if (keys.rows == 0) return ctx->backend->fill_zero(ctx, num_unique, sizeof *num_unique);
    SPOPS_TRY(get_scratch(ctx, call, "spops_unique_scratch_bytes",
                          ctx->backend->unique_scratch_bytes(ctx, &args), &args.scratch));
    return ctx->backend->unique(ctx, &args);
}

spops_status spops_boxed_argsort(spops_boxed_call *b)
{
    enum { KEYS, NUM_KEYS, ORDER, SORTED };
    const spops_matrix keys = b->matrices[KEYS];
    SPOPS_TRY(spops_boxed_reserve(b, spops_argsort_scratch_bytes(b->ctx, keys.dtype, keys.rows)));
    return spops_argsort_execute(b->ctx, spops_boxed_i32(b, 0), keys, b->args[NUM_KEYS],
                                 b->matrices[ORDER].data, spops_boxed_optional(b, SORTED));
}

// The array of an argument that may be absent.
static int32_t *array_or_null(const spops_boxed_call *b, int i)
{
    return b->args[i] == NULL ? NULL : b->matrices[i].data;
}

spops_status spops_boxed_unique(spops_boxed_call *b)
{
    enum { KEYS, NUM_KEYS, VALUES, NUM_UNIQUE, INVERSE, COUNTS };
    const spops_matrix keys = b->matrices[KEYS];
    SPOPS_TRY(spops_boxed_reserve(b, spops_unique_scratch_bytes(b->ctx, keys.dtype, keys.rows)));
    return spops_unique_execute(b->ctx, keys, b->args[NUM_KEYS], b->matrices[VALUES],
                                array_or_null(b, INVERSE), array_or_null(b, COUNTS),
                                b->matrices[NUM_UNIQUE].data);
}
