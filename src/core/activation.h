// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives on the CPU: of f32 by polynomials, compiled once per instruction
// set, of f64 by libm. kernels/core/activation.cuh has the same formulas for the device.
#ifndef SPOPS_CORE_ACTIVATION_H
#define SPOPS_CORE_ACTIVATION_H

#include "core/cpu_isa.h"
#include "spops/activation.h"

// Which activation; slope is that of LEAKY_RELU.
typedef struct spops_activated {
    spops_activation activation;
    float slope;
} spops_activated;

// What options say: 0 is the default slope.
static inline spops_activated spops_activated_of(spops_activation activation, float slope)
{
    const spops_activated a = {activation, slope == 0.0f ? 0.01f : slope};
    return a;
}

typedef struct spops_activation_table {
    // v = activation(v), of n values
    void (*apply)(spops_activated a, int64_t n, float *v);
    // g = g activation'(y), of n values
    void (*differentiate)(spops_activated a, int64_t n, const float *y, float *g);
} spops_activation_table;

SPOPS_DECLARE_ISA_TABLES(spops_activation_table)

void spops_activate_f64(spops_activated a, int64_t n, double *v);
void spops_differentiate_f64(spops_activated a, int64_t n, const double *y, double *g);

#endif
