// SPDX-License-Identifier: Apache-2.0
// Features of i8 back to floats, before a dataflow that takes floats.
#ifndef SPOPS_TAPCONV_WIDEN_ARGS_H
#define SPOPS_TAPCONV_WIDEN_ARGS_H

#include <stdbool.h>

#include "spops/types.h"

// out[r, c] = scales[by_channel ? c : 0] * q[r, c], in f32, rounded once. Rows that count: *num_rows.
typedef struct spops_widen_args {
    spops_matrix q;   // i8
    spops_matrix out; // dense, of a real dtype, of the same shape, not empty, aligned to 16 bytes
    const float *scales;
    bool by_channel;
    const int32_t *num_rows;
} spops_widen_args;

#endif
