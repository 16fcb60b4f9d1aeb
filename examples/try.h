// SPDX-License-Identifier: Apache-2.0
/* For the examples: leave main with the library's message where a call fails. Wants `ctx`. */
#ifndef TRY_H
#define TRY_H

#include <spops/spops.h>
#include <stdio.h>

#define TRY(call)                                                                                  \
    if ((call) != SPOPS_STATUS_OK) {                                                               \
        fprintf(stderr, "%s\n", spops_last_error(ctx));                                            \
        return 1;                                                                                  \
    }

#ifdef CUDART_VERSION /* the program includes CUDA's runtime */
#define TRY_CUDA(call)                                                                             \
    do {                                                                                           \
        const cudaError_t e = (call);                                                              \
        if (e != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                             \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#endif

/* A context on the CPU; the same calls run on CUDA with SPOPS_BACKEND_CUDA and device memory. */
static inline spops_status open_cpu(spops_context **ctx)
{
    spops_context_options options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CPU;
    return spops_context_create(&options, ctx);
}

#endif
