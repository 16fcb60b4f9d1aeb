// SPDX-License-Identifier: Apache-2.0
// Allocation through the context's hooks, and carving. What device memory is, the backend knows.
#include "core/memory.h"

#include <string.h>

#include "core/backend.h"
#include "core/context.h"

void *spops_host_alloc(spops_context *ctx, size_t count, size_t size)
{
    const size_t product = spops_mul_bytes(count, size);
    const size_t bytes = product > 0 ? product : 1; // nothing is no failure, so it needs an address
    void *ptr = NULL;

    if (bytes <= PTRDIFF_MAX) ptr = ctx->allocator.host_alloc(ctx->allocator.user, bytes);
    if (ptr == NULL) {
        spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                   "%s: out of host memory: %zu elements of %zu bytes could not be allocated",
                   ctx->call, count, size);
        return NULL;
    }
    return memset(ptr, 0, bytes);
}

void spops_host_free(spops_context *ctx, void *ptr, size_t count, size_t size)
{
    const size_t product = spops_mul_bytes(count, size);
    if (ptr != NULL) {
        ctx->allocator.host_free(ctx->allocator.user, ptr, product > 0 ? product : 1);
    }
}

spops_status spops_backend_alloc(spops_context *ctx, size_t bytes, void **ptr)
{
    *ptr = NULL;
    if (bytes == 0) return SPOPS_STATUS_OK;
    if (bytes > PTRDIFF_MAX) {
        return spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                          "%s: out of %s memory: the size asked for exceeds the address space",
                          ctx->call, ctx->backend->name);
    }
    return ctx->backend->alloc(ctx, bytes, ptr);
}

void spops_backend_free(spops_context *ctx, void *ptr, size_t bytes)
{
    if (ptr != NULL) ctx->backend->free(ctx, ptr, bytes);
}

size_t spops_mul_bytes(size_t a, size_t b)
{
    size_t product;
    if (a == 0 || b == 0) return 0;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

size_t spops_add_bytes(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

size_t spops_align_bytes(size_t bytes)
{
    const size_t end = spops_add_bytes(bytes, SPOPS_ALIGNMENT - 1);
    return end == SIZE_MAX ? end : end & ~(SPOPS_ALIGNMENT - 1);
}

void *spops_carve(spops_carver *c, int64_t rows, int64_t cols, size_t element_bytes)
{
    size_t bytes, begin;

    if (rows < 0 || cols < 0) c->used = SIZE_MAX;
    if (c->used == SIZE_MAX) return NULL;
    bytes = spops_mul_bytes(spops_mul_bytes((size_t)rows, (size_t)cols), element_bytes);
    if (bytes == 0) return NULL;
    begin = spops_align_bytes(c->used);
    c->used = spops_add_bytes(begin, bytes);
    return c->base != NULL && c->used != SIZE_MAX ? c->base + begin : NULL;
}
