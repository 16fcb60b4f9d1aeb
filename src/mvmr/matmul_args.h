// SPDX-License-Identifier: Apache-2.0
// Dense products by a library that is opened at run time: cuBLAS on CUDA, a CBLAS on the CPU.
#ifndef SPOPS_MVMR_MATMUL_ARGS_H
#define SPOPS_MVMR_MATMUL_ARGS_H

#include "core/context.h"

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of backend memory that products may work in: what cuBLAS recommends on sm_90.
#define SPOPS_MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)

// A matrix of each batch: that of batch b begins b * batch_stride elements after data. Rows are
// row_stride elements apart.
typedef struct spops_matmul_operand {
    void *data;
    int64_t row_stride, batch_stride;
    bool transposed; // stored so; not of the result
} spops_matmul_operand;

// c[b] (+)= a[b] b[b], with a [rows, depth], b [depth, cols], c [rows, cols]; summed in f32.
typedef struct spops_matmul_args {
    spops_context_part *library; // the matmul of a context on this device
    int64_t batches, rows, cols, depth;
    spops_dtype dtype;     // of a and b
    spops_dtype out_dtype; // the same or f32
    spops_matmul_operand a, b, c;
    bool accumulate;
    bool tf32;       // factors of f32 may be rounded to tf32
    void *workspace; // SPOPS_MATMUL_WORKSPACE_BYTES
} spops_matmul_args;

#ifdef __cplusplus
}
#endif

#endif
