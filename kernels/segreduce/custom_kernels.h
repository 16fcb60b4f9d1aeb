// SPDX-License-Identifier: Apache-2.0
// Kernels of reductions registered at run time, compiled by NVRTC from the caller's struct and the
// headers in spops/device/.
#ifndef SPOPS_KERNELS_SEGREDUCE_CUSTOM_KERNELS_H
#define SPOPS_KERNELS_SEGREDUCE_CUSTOM_KERNELS_H

#include <cuda_runtime.h>

#include "segreduce/custom_reduce.h"

#define SPOPS_CUSTOM_THREADS 256

enum spops_custom_kernel {
    SPOPS_CUSTOM_SEGREDUCE = 0,
    SPOPS_CUSTOM_SEGGRAD = 1,
    SPOPS_CUSTOM_SEGDOT = 2,
    SPOPS_NUM_CUSTOM_KERNELS = 3
};

// Launch the kernel for dtype, with 16-byte chunks if wide; params points to the kernel's one
// parameter struct. A kernel of gradients is there if custom->has_grad.
spops_status spops_custom_launch(spops_context *ctx, const spops_custom_reduce *custom,
                                 enum spops_custom_kernel kernel, spops_dtype dtype, bool wide,
                                 dim3 grid, void *params);

#endif
