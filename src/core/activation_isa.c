// SPDX-License-Identifier: Apache-2.0
// Activations of f32, compiled once per instruction set: loops over values without branches. Products
// and sums are rounded apart, so that every set gives the same bits.
#include "core/simd_rows.h"

#include "core/activation.h"

SPOPS_INLINE uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

SPOPS_INLINE float float_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

// x, but within -limit and limit; a NaN stays.
SPOPS_INLINE float within(float x, float limit)
{
    x = x < -limit ? -limit : x;
    return x > limit ? limit : x;
}

SPOPS_INLINE float magnitude(float x)
{
    return float_of(bits_of(x) & 0x7fffffffu);
}

// Below this exp is 0 in f32.
#define LEAST 104.0f

// exp(x + rest) for x of -LEAST to 0 and a rest far below 1: 2^n e^r, n whole and r within half of
// log 2. 2^n is two factors, as it may be subnormal.
SPOPS_INLINE float exp_of(float x, float rest)
{
    const float shift = 12582912.0f; // 1.5 * 2^23: what is added to it is rounded to whole numbers
    const float shifted = x * 1.44269504f + shift, n = shifted - shift;
    const uint32_t power = bits_of(shifted) - bits_of(shift); // n, modulo 2^32
    const uint32_t half = (uint32_t)((int32_t)power >> 1);
    // log 2 is a number of few bits, whose multiples are exact, and the rest of it.
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f + rest;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * float_of((half + 127u) << 23) * float_of((power - half + 127u) << 23);
}

// exp(-|x|), with |x| at most LEAST.
SPOPS_INLINE float exp_below(float x)
{
    x = -magnitude(x);
    return exp_of(x < -LEAST ? -LEAST : x, 0.0f);
}

// 1 / (1 + exp(-x)), and the same of -x.
typedef struct halves {
    float of, rest;
} halves;

SPOPS_INLINE halves sigmoid_of(float x)
{
    const float e = exp_below(x), sum = 1.0f + e;
    const halves h = {(x < 0.0f ? e : 1.0f) / sum, (x < 0.0f ? 1.0f : e) / sum};
    return h;
}

// The exponent of the sigmoid that is (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
#define TANH_FIRST 1.59576912f
#define TANH_THIRD 0.0713548163f
// Beyond this that sigmoid is 0 or 1.
#define TANH_LIMIT 12.0f

// The normal distribution's share above x, for x of 0 to GELU_LIMIT: density * ratio sqrt(2 pi), where
// the ratio is smooth, and falls as 1 / x.
#define GELU_LIMIT 15.0f
typedef struct upper_tail {
    float density, ratio; // density without 1 / sqrt(2 pi)
} upper_tail;

SPOPS_INLINE upper_tail tail_of(float x)
{
    // x^2 is an exact square and a small rest.
    const float high = float_of(bits_of(x) & 0xfffff000u);
    const float inverse = 1.0f / (x + 4.0f), t = (x - 4.0f) * inverse;
    float p = -0.000136614f;
    p = p * t + 0.00017042518f;
    p = p * t + 0.0015684806f;
    p = p * t + -0.0035071743f;
    p = p * t + -0.0075233863f;
    p = p * t + 0.060402766f;
    p = p * t + -0.1865238f;
    p = p * t + 0.38713697f;
    p = p * t + -0.60789657f;
    p = p * t + 0.75528514f;
    const upper_tail tail = {exp_of(high * high * -0.5f, (x - high) * (x + high) * -0.5f),
                             p * inverse};
    return tail;
}

// ---- Values -------------------------------------------------------------------------------------

SPOPS_INLINE float relu(float y, float slope)
{
    (void)slope;
    return y < 0.0f ? 0.0f : y;
}

SPOPS_INLINE float leaky_relu(float y, float slope)
{
    return y < 0.0f ? slope * y : y;
}

SPOPS_INLINE float silu(float y, float slope)
{
    (void)slope;
    return (y < -LEAST ? -LEAST : y) * sigmoid_of(y).of;
}

SPOPS_INLINE float gelu(float y, float slope)
{
    const float x = within(magnitude(y), GELU_LIMIT);
    const upper_tail tail = tail_of(x);
    (void)slope;
    return (y < 0.0f ? 0.0f : y) - x * tail.density * tail.ratio;
}

SPOPS_INLINE float gelu_tanh(float y, float slope)
{
    const float x = within(y, TANH_LIMIT);
    (void)slope;
    return (y < -TANH_LIMIT ? -TANH_LIMIT : y) *
           sigmoid_of(x * (TANH_FIRST + TANH_THIRD * (x * x))).of;
}

SPOPS_INLINE float sigmoid(float y, float slope)
{
    (void)slope;
    return sigmoid_of(y).of;
}

// ---- Derivatives times g ------------------------------------------------------------------------

SPOPS_INLINE float relu_gradient(float y, float g, float slope)
{
    (void)slope;
    return y <= 0.0f ? 0.0f : g;
}

SPOPS_INLINE float leaky_relu_gradient(float y, float g, float slope)
{
    return y <= 0.0f ? slope * g : g;
}

SPOPS_INLINE float silu_gradient(float y, float g, float slope)
{
    const float x = within(y, LEAST);
    const halves s = sigmoid_of(x);
    (void)slope;
    return g * (s.of + x * s.of * s.rest);
}

SPOPS_INLINE float gelu_gradient(float y, float g, float slope)
{
    const float x = within(magnitude(y), GELU_LIMIT);
    const upper_tail tail = tail_of(x);
    const float below = tail.density * (tail.ratio - 0.39894228f * x);
    (void)slope;
    return g * (y < 0.0f ? below : 1.0f - below);
}

SPOPS_INLINE float gelu_tanh_gradient(float y, float g, float slope)
{
    const float x = within(y, TANH_LIMIT), square = x * x;
    const halves s = sigmoid_of(x * (TANH_FIRST + TANH_THIRD * square));
    (void)slope;
    return g * (s.of + x * (TANH_FIRST + 3.0f * TANH_THIRD * square) * (s.of * s.rest));
}

SPOPS_INLINE float sigmoid_gradient(float y, float g, float slope)
{
    const halves s = sigmoid_of(y);
    (void)slope;
    return g * (s.of * s.rest);
}

// ---- Loops --------------------------------------------------------------------------------------

#define EACH_ACTIVATION(X)                                                                         \
    X(RELU, relu)                                                                                  \
    X(LEAKY_RELU, leaky_relu)                                                                      \
    X(SILU, silu)                                                                                  \
    X(GELU, gelu)                                                                                  \
    X(GELU_TANH, gelu_tanh)                                                                        \
    X(SIGMOID, sigmoid)

static void apply(spops_activated a, int64_t n, float *v)
{
    const float slope = a.slope;
    switch (a.activation) {
#define LOOP(NAME, f)                                                                              \
    case SPOPS_ACTIVATION_##NAME:                                                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) v[i] = f(v[i], slope);                 \
        break;
        EACH_ACTIVATION(LOOP)
#undef LOOP
    default: break;
    }
}

static void differentiate(spops_activated a, int64_t n, const float *y, float *g)
{
    const float slope = a.slope;
    switch (a.activation) {
#define LOOP(NAME, f)                                                                              \
    case SPOPS_ACTIVATION_##NAME:                                                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) g[i] =                                 \
            f##_gradient(y[i], g[i], slope);                                                       \
        break;
        EACH_ACTIVATION(LOOP)
#undef LOOP
    default: break;
    }
}

const spops_activation_table SPOPS_ISA_TABLE(spops_activation_table) = {apply, differentiate};
