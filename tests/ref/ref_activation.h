// SPDX-License-Identifier: Apache-2.0
// FP64 references of activations and their derivatives, from their formulas.
#ifndef SPOPS_TESTS_REF_ACTIVATION_H
#define SPOPS_TESTS_REF_ACTIVATION_H

#include <stdbool.h>

#include "spops/activation.h"

enum { REF_NUM_ACTIVATIONS = SPOPS_ACTIVATION_SIGMOID + 1 };

// slope: of LEAKY_RELU, as the options have it; 0: 0.01.
typedef struct ref_activation {
    spops_activation kind;
    float slope;
} ref_activation;

double ref_activate(ref_activation a, double y);
double ref_activation_derivative(ref_activation a, double y);

// How much an error of y grows: bounds of the first and of the second derivative. The second of RELU and
// LEAKY_RELU has none at 0, where tests draw no values.
double ref_activation_growth(ref_activation a);
double ref_activation_curvature(ref_activation a);

// Roundings that a value, or a derivative beside 1, meets on its own.
enum { REF_ACTIVATION_ROUNDINGS = 24 };

// Exact values stay exact ones.
static inline bool ref_activation_is_exact(ref_activation a)
{
    return a.kind == SPOPS_ACTIVATION_NONE || a.kind == SPOPS_ACTIVATION_RELU ||
           (a.kind == SPOPS_ACTIVATION_LEAKY_RELU && (a.slope == 0.5f || a.slope == -2.0f));
}

#endif
