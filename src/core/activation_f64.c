// SPDX-License-Identifier: Apache-2.0
// Activations of f64, by libm.
#include <math.h>

#include "core/activation.h"

// Below this exp is 0.
#define LEAST 746.0

static double within(double x, double limit)
{
    return x < -limit ? -limit : x > limit ? limit : x;
}

static double sigmoid(double x)
{
    const double e = exp(-fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

// The share of the normal distribution below x, and its density.
static double normal_below(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}
static double normal_density(double x)
{
    return 0.39894228040143267794 * exp(-0.5 * x * x);
}

// The exponent of the sigmoid that GELU_TANH is made of, and its derivative.
#define TANH_FIRST 1.59576912160573071176
#define TANH_THIRD (0.044715 * TANH_FIRST)
static double tanh_exponent(double x)
{
    return x * (TANH_FIRST + TANH_THIRD * (x * x));
}

static double value(spops_activated a, double y)
{
    switch (a.activation) {
    case SPOPS_ACTIVATION_RELU: return y < 0.0 ? 0.0 : y;
    case SPOPS_ACTIVATION_LEAKY_RELU: return y < 0.0 ? (double)a.slope * y : y;
    case SPOPS_ACTIVATION_SILU: return (y < -LEAST ? -LEAST : y) * sigmoid(y);
    case SPOPS_ACTIVATION_GELU: return (y < -40.0 ? -40.0 : y) * normal_below(y);
    case SPOPS_ACTIVATION_GELU_TANH:
        return (y < -40.0 ? -40.0 : y) * sigmoid(tanh_exponent(within(y, 40.0)));
    case SPOPS_ACTIVATION_SIGMOID: return sigmoid(y);
    default: return y;
    }
}

static double gradient(spops_activated a, double y, double g)
{
    double x, s;
    switch (a.activation) {
    case SPOPS_ACTIVATION_RELU: return y <= 0.0 ? 0.0 : g;
    case SPOPS_ACTIVATION_LEAKY_RELU: return y <= 0.0 ? (double)a.slope * g : g;
    case SPOPS_ACTIVATION_SILU:
        x = within(y, LEAST), s = sigmoid(x);
        return g * (s + x * s * sigmoid(-x));
    case SPOPS_ACTIVATION_GELU:
        x = within(y, 40.0);
        return g * (normal_below(x) + x * normal_density(x));
    case SPOPS_ACTIVATION_GELU_TANH:
        x = within(y, 40.0), s = sigmoid(tanh_exponent(x));
        return g *
               (s + x * (TANH_FIRST + 3.0 * TANH_THIRD * (x * x)) * s * sigmoid(-tanh_exponent(x)));
    case SPOPS_ACTIVATION_SIGMOID: return g * (sigmoid(y) * sigmoid(-y));
    default: return g;
    }
}

void spops_activate_f64(spops_activated a, int64_t n, double *v)
{
    for (int64_t i = 0; i < n; ++i)
        v[i] = value(a, v[i]);
}

void spops_differentiate_f64(spops_activated a, int64_t n, const double *y, double *g)
{
    for (int64_t i = 0; i < n; ++i)
        g[i] = gradient(a, y[i], g[i]);
}
