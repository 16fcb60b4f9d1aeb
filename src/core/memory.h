// SPDX-License-Identifier: Apache-2.0
// Memory: host and backend allocations through the context's hooks, and carving of one block into
// arrays. Failures report OUT_OF_MEMORY on the context.
#ifndef SPOPS_CORE_MEMORY_H
#define SPOPS_CORE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spops/context.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPOPS_ALIGNMENT ((size_t)256)

// count * size zeroed bytes of host memory; NULL (message set on ctx) when there is none or the
// product overflows. Freed with the same numbers. Freeing NULL is fine.
void *spops_host_alloc(spops_context *ctx, size_t count, size_t size);
void spops_host_free(spops_context *ctx, void *ptr, size_t count, size_t size);

// bytes of the backend's memory (device memory for CUDA), not zeroed; *ptr is NULL for 0 bytes.
spops_status spops_backend_alloc(spops_context *ctx, size_t bytes, void **ptr);
void spops_backend_free(spops_context *ctx, void *ptr, size_t bytes);

// a * b, a + b; SIZE_MAX stands for "too large" and sticks.
size_t spops_mul_bytes(size_t a, size_t b);
size_t spops_add_bytes(size_t a, size_t b);

// The next multiple of SPOPS_ALIGNMENT; SIZE_MAX likewise.
size_t spops_align_bytes(size_t bytes);

// Cuts one block into aligned arrays. With base NULL it only measures: the same code that carves
// computes the size, so the two cannot disagree. used is SIZE_MAX after an overflow.
typedef struct spops_carver {
    char *base;
    size_t used;
} spops_carver;

// Next array of rows * cols elements; NULL while measuring (and for an empty array).
void *spops_carve(spops_carver *c, int64_t rows, int64_t cols, size_t element_bytes);

#ifdef __cplusplus
}
#endif

#endif
