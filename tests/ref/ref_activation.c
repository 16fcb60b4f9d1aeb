// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_activation.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static double slope_of(ref_activation a)
{
    return a.slope == 0.0f ? (double)0.01f : (double)a.slope;
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

// GELU_TANH is y logistic(exponent): (1 + tanh(u)) / 2 = logistic(2 u), which keeps small values.
static double exponent(double y)
{
    return 2 * sqrt(2 / pi) * (y + 0.044715 * y * y * y);
}

double ref_activate(ref_activation a, double y)
{
    const bool is_least = y == -INFINITY;
    switch (a.kind) {
    case SPOPS_ACTIVATION_RELU: return y < 0 ? 0 : y;
    case SPOPS_ACTIVATION_LEAKY_RELU: return y < 0 ? slope_of(a) * y : y;
    case SPOPS_ACTIVATION_SILU: return is_least ? 0 : y * logistic(y);
    case SPOPS_ACTIVATION_GELU: return is_least ? 0 : y * (erfc(-y / sqrt(2)) / 2);
    case SPOPS_ACTIVATION_GELU_TANH: return is_least ? 0 : y * logistic(exponent(y));
    case SPOPS_ACTIVATION_SIGMOID: return logistic(y);
    default: return y;
    }
}

double ref_activation_derivative(ref_activation a, double y)
{
    const double s = logistic(y);
    double of_exponent, t;
    switch (a.kind) {
    case SPOPS_ACTIVATION_RELU: return y <= 0 ? 0 : 1;
    case SPOPS_ACTIVATION_LEAKY_RELU: return y <= 0 ? slope_of(a) : 1;
    case SPOPS_ACTIVATION_SILU: return isinf(y) ? y > 0 : s + y * s * logistic(-y);
    case SPOPS_ACTIVATION_GELU:
        return isinf(y) ? y > 0 : erfc(-y / sqrt(2)) / 2 + y * exp(-y * y / 2) / sqrt(2 * pi);
    case SPOPS_ACTIVATION_GELU_TANH:
        if (fabs(y) > 100) return y > 0;
        t = logistic(exponent(y));
        of_exponent = 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * y * y);
        return t + y * of_exponent * t * logistic(-exponent(y));
    case SPOPS_ACTIVATION_SIGMOID: return s * logistic(-y);
    default: return 1;
    }
}

double ref_activation_growth(ref_activation a)
{
    return a.kind == SPOPS_ACTIVATION_LEAKY_RELU ? fmax(1, fabs(slope_of(a))) : 1.13;
}

double ref_activation_curvature(ref_activation a)
{
    return a.kind <= SPOPS_ACTIVATION_LEAKY_RELU ? 0 : 0.81;
}
