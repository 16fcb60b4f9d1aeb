/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory regime and traffic: what a plan must move, and which level of memory that is bound by.
 */
#ifndef SPOPS_REGIME_H
#define SPOPS_REGIME_H

#include "spops/context.h"

SPOPS_EXTERN_C_BEGIN

/** Whether a run's working set stays in the device's last-level cache between replays. */
typedef enum spops_regime {
    SPOPS_REGIME_L2_RESIDENT = 0,
    SPOPS_REGIME_DRAM_BOUND = 1
} spops_regime;

/**
 * Bytes of one execution. `compulsory_bytes` is the floor of a cold run (each array read or
 * written once), `gather_bytes` what the cache must deliver when no row is reused closer by.
 */
typedef struct spops_traffic {
    size_t struct_size;        /* set by the caller: sizeof(spops_traffic) */
    int64_t index_bytes;       /* offsets, terms and schedule entries, each once */
    int64_t weight_bytes;      /* distinct weights, each once */
    int64_t input_bytes;       /* distinct input rows, each once */
    int64_t output_bytes;      /* every output element, once */
    int64_t gather_bytes;      /* num_terms rows, as often as they are named */
    int64_t compulsory_bytes;  /* index + weight + input + output */
    int64_t working_set_bytes; /* whole arrays, referenced or not */
    spops_regime regime;       /* working set against the context's cache_bytes */
} spops_traffic;

SPOPS_DEFINE_DEFAULT(spops_traffic)

/** L2_RESIDENT if working_set_bytes fits in ctx's last-level cache, else DRAM_BOUND. */
SPOPS_API spops_regime spops_context_regime(const spops_context *ctx, int64_t working_set_bytes);

/** "L2-resident" or "DRAM-bound". */
SPOPS_API const char *spops_regime_name(spops_regime regime);

SPOPS_EXTERN_C_END

#endif
