// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_ACTIVATION_ACTIVATION_ARGS_H
#define SPOPS_ACTIVATION_ACTIVATION_ARGS_H

#include "core/activation.h"

// out = activation(x) + addend_scale addend; with grad_out: out = grad_scale grad_out activation'(x). Not
// empty.
typedef struct spops_activation_args {
    spops_matrix x, grad_out; // grad_out.data NULL: the values
    spops_matrix out;         // may be x, or grad_out where it is there
    spops_matrix addend;      // data NULL: none
    const int32_t *num_rows;  // [1]; NULL: x.rows
    float addend_scale, grad_scale;
    spops_activated how;
} spops_activation_args;

#endif
