/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys, sorted and counted: argsort and unique.
 *
 * How many keys count may be known to the device alone (inside a captured graph): num_keys points to
 * that number, and the arrays are then as long as the capacity.
 */
#ifndef SPOPS_KEYS_H
#define SPOPS_KEYS_H

#include "spops/context.h"

SPOPS_EXTERN_C_BEGIN

/** Scratch of spops_argsort_execute for n keys of dtype; 0 where ctx is NULL or n is out of range. */
SPOPS_API size_t spops_argsort_scratch_bytes(spops_context *ctx, spops_dtype dtype, int64_t n);

/**
 * The order that sorts keys, stably: keys[order[0]] <= keys[order[1]] <= ..., and equal keys in the order
 * in which they are given; with descending from the largest to the smallest, equal keys as before.
 *
 * descending 0 or 1.
 * keys      [n, 1] without gaps, i32 or i64; n up to INT32_MAX - 1.
 * num_keys  [1] where ctx runs: the first keys that count; NULL: all. A number outside 0 to n is clamped.
 * order     [n]; -1 after the keys that count.
 * sorted    [n, 1] without gaps, of keys' dtype: keys[order[i]]; 0 after them. Or NULL.
 *
 * Memory    Where ctx runs. No pointer is kept. No output may overlap another, or an input.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_argsort_scratch_bytes, reserved in ctx beforehand.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, SCRATCH_TOO_SMALL, CUDA. After any but CUDA, nothing was
 *           enqueued.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_argsort_execute(spops_context *ctx, int32_t descending,
                                             spops_matrix keys, const int32_t *num_keys,
                                             int32_t *order, const spops_matrix *sorted);

/** Scratch of spops_unique_execute for n keys of dtype; 0 where ctx is NULL or n is out of range. */
SPOPS_API size_t spops_unique_scratch_bytes(spops_context *ctx, spops_dtype dtype, int64_t n);

/**
 * The different keys, in ascending order.
 *
 * keys, num_keys   As in spops_argsort_execute.
 * values      [n, 1] without gaps, of keys' dtype: the different keys; 0 after them.
 * inverse     [n]: which of values key i is; -1 for keys that do not count. Or NULL.
 * counts      [n]: how many keys are values[i]; 0 after them. Or NULL.
 * num_unique  [1]: how many different keys there are.
 *
 * Scratch   spops_unique_scratch_bytes, reserved in ctx beforehand.
 *
 * The rest as spops_argsort_execute.
 */
SPOPS_API spops_status spops_unique_execute(spops_context *ctx, spops_matrix keys,
                                            const int32_t *num_keys, spops_matrix values,
                                            int32_t *inverse, int32_t *counts, int32_t *num_unique);

SPOPS_EXTERN_C_END

#endif
