// SPDX-License-Identifier: Apache-2.0
// What the backends' conversions to and from narrow dtypes are given (core/backend_slots.def).
#ifndef SPOPS_QUANTIZE_QUANTIZE_ARGS_H
#define SPOPS_QUANTIZE_QUANTIZE_ARGS_H

#include <stdbool.h>

#include "spops/types.h"

// scale[0] = max |x| / the largest value of dtype, as spops/quantize.h has it. x may be empty.
typedef struct spops_quantize_scale_args {
    spops_matrix x;
    spops_dtype dtype;
    float *scale; // backend memory
} spops_quantize_scale_args;

// x (f32, f16, bf16) to q (8 or 4 bits) and block_scales, or back. Not empty.
typedef struct spops_quantize_args {
    spops_matrix x, q;
    spops_matrix block_scales; // of an f4e2m1 q; else data NULL
    const float *scale;        // backend memory; NULL: 1
} spops_quantize_args;

// Weights of a layer to codes, K along rows (spops/quantize.h). q is not empty.
typedef struct spops_quantize_weights_args {
    spops_matrix w, q; // q [taps * cols, depth rounded up to 16]
    float *scales;
    int32_t taps;
    int64_t depth, cols; // C_in, C_out
    bool transposed;     // a row of w is an output channel
} spops_quantize_weights_args;

#endif
