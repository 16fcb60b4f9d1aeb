// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend and the launchers in kernels/ know of each other. No CUDA type appears
// here: streams are void *, errors are int.
//
// The launchers fill the slots of core/backend_slots.def. backend_cuda.c calls them with the
// context's device current, so they need not set it.
#ifndef SPOPS_KERNELS_LAUNCHERS_H
#define SPOPS_KERNELS_LAUNCHERS_H

#include "core/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// OK for cudaSuccess. Else reports "<what>: <error string>" on ctx, as OUT_OF_MEMORY for
// cudaErrorMemoryAllocation and as CUDA for the rest. Name the call and the CUDA function in
// `what`: "segreduce_execute: cudaLaunchKernel". Clears the error where the runtime remembers it.
spops_status spops_cuda_status(spops_context *ctx, const char *what, int cuda_error);

int spops_cuda_probe(void); // the CUDA error of looking up a kernel on the current device

#define SPOPS_SLOT(name, type, where)                                                              \
    spops_status spops_cuda_##name(spops_context *ctx, const struct type *args);
#define SPOPS_SLOT_BYTES(name, type, where)                                                        \
    size_t spops_cuda_##name(spops_context *ctx, const struct type *args);
#define SPOPS_SLOT_HOST(returned, name, type, where)                                               \
    returned spops_cuda_##name(const spops_context *ctx, const struct type *args);
#include "core/backend_slots.def"

#ifdef __cplusplus
}
#endif

#endif
