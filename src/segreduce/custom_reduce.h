// SPDX-License-Identifier: Apache-2.0
// Reductions registered at run time, for the context that owns them.
#ifndef SPOPS_SEGREDUCE_CUSTOM_REDUCE_H
#define SPOPS_SEGREDUCE_CUSTOM_REDUCE_H

#include "core/context.h"
#include "spops/segreduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct spops_custom_reduce {
    spops_reduce id;
    spops_reduce_desc desc; // strings copied, owned
    bool has_grad;          // on this backend
    void *kernels;          // the CUDA backend's compiled kernels; NULL on the CPU
} spops_custom_reduce;

#define SPOPS_MAX_CUSTOM_REDUCES 64 // of a context

// The registered reduction, or NULL if reduce is not a custom id of ctx.
const spops_custom_reduce *spops_custom_reduce_find(const spops_context *ctx, spops_reduce reduce);

#ifdef __cplusplus
}
#endif

#endif
