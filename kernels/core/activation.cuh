// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives on the device: the formulas of src/core/activation_isa.c. Which
// activation it is is asked once for all values of a call here; no value branches.
#ifndef SPOPS_KERNELS_CORE_ACTIVATION_CUH
#define SPOPS_KERNELS_CORE_ACTIVATION_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "core/activation.h"

namespace spops
{

namespace activation
{

// x, but within -limit and limit; a NaN stays.
__device__ __forceinline__ float within(float x, float limit)
{
    x = x < -limit ? -limit : x;
    return x > limit ? limit : x;
}

// 1 / x of 1 or more, to a unit of the last place.
__device__ __forceinline__ float inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Below -least exp is 0 in f32.
constexpr float least = 104.0f;

// 1 / (1 + exp(-x)), and the same of -x.
struct halves {
    float of, rest;
};

__device__ __forceinline__ halves sigmoid_of(float x)
{
    const float e = expf(-fabsf(x)), share = inverse(1.0f + e);
    return {(x < 0.0f ? e : 1.0f) * share, (x < 0.0f ? 1.0f : e) * share};
}

// The exponent of the sigmoid that is (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2; beyond the limit
// that sigmoid is 0 or 1.
constexpr float tanh_first = 1.59576912f, tanh_third = 0.0713548163f, tanh_limit = 12.0f;

__device__ __forceinline__ float tanh_exponent(float x)
{
    return x * __fmaf_rn(tanh_third, x * x, tanh_first);
}

// The normal distribution's share above x, for x of 0 to gelu_limit: density * ratio; the density is
// without 1 / sqrt(2 pi).
constexpr float gelu_limit = 15.0f;
struct upper_tail {
    float density, ratio;
};

__device__ __forceinline__ upper_tail tail_of(float x)
{
    const float square = x * x, rest = __fmaf_rn(x, x, -square); // x^2 in two numbers
    const float e = expf(-0.5f * square), by = inverse(x + 4.0f), t = (x - 4.0f) * by;
    float p = -0.000136614f;
    p = __fmaf_rn(p, t, 0.00017042518f);
    p = __fmaf_rn(p, t, 0.0015684806f);
    p = __fmaf_rn(p, t, -0.0035071743f);
    p = __fmaf_rn(p, t, -0.0075233863f);
    p = __fmaf_rn(p, t, 0.060402766f);
    p = __fmaf_rn(p, t, -0.1865238f);
    p = __fmaf_rn(p, t, 0.38713697f);
    p = __fmaf_rn(p, t, -0.60789657f);
    p = __fmaf_rn(p, t, 0.75528514f);
    return {__fmaf_rn(e, -0.5f * rest, e), p * by};
}

template <int A> __device__ __forceinline__ float value(float y, float slope)
{
    if constexpr (A == SPOPS_ACTIVATION_RELU) return y < 0.0f ? 0.0f : y;
    if constexpr (A == SPOPS_ACTIVATION_LEAKY_RELU) return y < 0.0f ? slope * y : y;
    if constexpr (A == SPOPS_ACTIVATION_SILU) return (y < -least ? -least : y) * sigmoid_of(y).of;
    if constexpr (A == SPOPS_ACTIVATION_GELU) {
        const float x = within(fabsf(y), gelu_limit);
        const upper_tail tail = tail_of(x);
        return __fmaf_rn(-x * tail.density, tail.ratio, y < 0.0f ? 0.0f : y);
    }
    if constexpr (A == SPOPS_ACTIVATION_GELU_TANH)
        return (y < -tanh_limit ? -tanh_limit : y) *
               sigmoid_of(tanh_exponent(within(y, tanh_limit))).of;
    if constexpr (A == SPOPS_ACTIVATION_SIGMOID) return sigmoid_of(y).of;
    return y;
}

// g times the derivative at y.
template <int A> __device__ __forceinline__ float gradient(float y, float g, float slope)
{
    if constexpr (A == SPOPS_ACTIVATION_RELU) return y <= 0.0f ? 0.0f : g;
    if constexpr (A == SPOPS_ACTIVATION_LEAKY_RELU) return y <= 0.0f ? slope * g : g;
    if constexpr (A == SPOPS_ACTIVATION_SILU) {
        const float x = within(y, least);
        const halves s = sigmoid_of(x);
        return g * __fmaf_rn(x * s.of, s.rest, s.of);
    }
    if constexpr (A == SPOPS_ACTIVATION_GELU) {
        const float x = within(fabsf(y), gelu_limit);
        const upper_tail tail = tail_of(x);
        const float below = tail.density * __fmaf_rn(-0.39894228f, x, tail.ratio);
        return g * (y < 0.0f ? below : 1.0f - below);
    }
    if constexpr (A == SPOPS_ACTIVATION_GELU_TANH) {
        const float x = within(y, tanh_limit);
        const halves s = sigmoid_of(tanh_exponent(x));
        const float slope_of_exponent = __fmaf_rn(3.0f * tanh_third, x * x, tanh_first);
        return g * __fmaf_rn(x * slope_of_exponent, s.of * s.rest, s.of);
    }
    if constexpr (A == SPOPS_ACTIVATION_SIGMOID) {
        const halves s = sigmoid_of(y);
        return g * (s.of * s.rest);
    }
    return g;
}

// f(index of v) for 0 to N - 1.
template <int N, class F> __device__ __forceinline__ void each(F f)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        f(i);
}

// f(number of the activation as a type), of one that is neither NONE nor RELU.
template <class F> __device__ __forceinline__ void with_activation(spops_activation a, F f)
{
#define SPOPS_CASE(NAME)                                                                           \
    case SPOPS_ACTIVATION_##NAME: f(std::integral_constant<int, SPOPS_ACTIVATION_##NAME>()); break
    switch (a) {
        SPOPS_CASE(LEAKY_RELU);
        SPOPS_CASE(SILU);
        SPOPS_CASE(GELU);
        SPOPS_CASE(GELU_TANH);
        SPOPS_CASE(SIGMOID);
    default: break;
    }
#undef SPOPS_CASE
}

} // namespace activation

// NONE and RELU are common and cheap: kernels that wait for memory have a form for these two alone, in
// which nothing branches, and one for ANY.
inline bool is_plain(const spops_activated &a)
{
    return a.activation == SPOPS_ACTIVATION_NONE || a.activation == SPOPS_ACTIVATION_RELU;
}

// v = activation(v).
template <bool ANY, int N>
__device__ __forceinline__ void activate(const spops_activated &a, float (&v)[N])
{
    const bool relu = a.activation == SPOPS_ACTIVATION_RELU;
    activation::each<N>([&](int i) {
        if (relu && v[i] < 0.0f) v[i] = 0.0f; // a NaN stays one
    });
    if constexpr (ANY)
        activation::with_activation(a.activation, [&](auto tag) {
            constexpr int A = decltype(tag)::value;
            activation::each<N>([&](int i) { v[i] = activation::value<A>(v[i], a.slope); });
        });
}

// g = g activation'(y).
template <bool ANY, int N>
__device__ __forceinline__ void differentiate(const spops_activated &a, const float (&y)[N],
                                              float (&g)[N])
{
    const bool relu = a.activation == SPOPS_ACTIVATION_RELU;
    activation::each<N>([&](int i) {
        if (relu && y[i] <= 0.0f) g[i] = 0.0f;
    });
    if constexpr (ANY)
        activation::with_activation(a.activation, [&](auto tag) {
            constexpr int A = decltype(tag)::value;
            activation::each<N>(
                [&](int i) { g[i] = activation::gradient<A>(y[i], g[i], a.slope); });
        });
}

namespace activation
{

// f of many values, an eighth at a time, after which the values move on: of all at once, the code would be
// up to half of a kernel's, and two kernels of implicit GEMM had a stack (docs/kernels/igemm.md).
template <int N, class F> __device__ __forceinline__ void each_in_turn(float (&v)[N], F f)
{
    constexpr int at_once = N / 8;
    static_assert(N % 8 == 0, "steps are whole");
#pragma unroll 1
    for (int step = 0; step < 8; ++step) {
        float done[at_once];
        each<at_once>([&](int i) { done[i] = f(v[i]); });
        each<N - at_once>([&](int i) { v[i] = v[i + at_once]; });
        each<at_once>([&](int i) { v[N - at_once + i] = done[i]; });
    }
}

// Values that are rounded to 16 bits afterwards. Their errors are a few roundings of f32 of 1, and of values near
// 0 2^-16 of the value in f16 and 2^-13 in bf16.

__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The larger or smaller of x and a bound; a NaN stays.
__device__ __forceinline__ float larger(float x, float bound)
{
#if __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(bound));
    return x;
#else
    return x < bound ? bound : x;
#endif
}
__device__ __forceinline__ float smaller(float x, float bound)
{
#if __CUDA_ARCH__ >= 800
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(bound));
    return x;
#else
    return x > bound ? bound : x;
#endif
}

// log2 of the normal distribution's share above x, a polynomial up to where x times it is 0 in T.
template <class T> struct log_tail;
template <> struct log_tail<__half> {
    static constexpr float limit = 5.8f;
    static __device__ __forceinline__ float at(float x)
    {
        float p = -1.66860922e-06f;
        p = __fmaf_rn(p, x, 5.88088122e-05f);
        p = __fmaf_rn(p, x, -0.000913651291f);
        p = __fmaf_rn(p, x, 0.00846582074f);
        p = __fmaf_rn(p, x, -0.0539333504f);
        p = __fmaf_rn(p, x, -0.458420973f);
        p = __fmaf_rn(p, x, -1.15130523f);
        return __fmaf_rn(p, x, -0.999983438f);
    }
};
template <> struct log_tail<__nv_bfloat16> {
    static constexpr float limit = 13.2f;
    static __device__ __forceinline__ float at(float x)
    {
        float p = -1.99203367e-09f;
        p = __fmaf_rn(p, x, 1.46166857e-07f);
        p = __fmaf_rn(p, x, -4.69361523e-06f);
        p = __fmaf_rn(p, x, 8.73167698e-05f);
        p = __fmaf_rn(p, x, -0.00105460105f);
        p = __fmaf_rn(p, x, 0.00884589572f);
        p = __fmaf_rn(p, x, -0.0544847566f);
        p = __fmaf_rn(p, x, -0.458014974f);
        p = __fmaf_rn(p, x, -1.15143784f);
        return __fmaf_rn(p, x, -0.999969831f);
    }
};

template <class T> __device__ __forceinline__ float rough_gelu(float y)
{
    const float x = fminf(fabsf(y), log_tail<T>::limit);
    return __fmaf_rn(-x, power_of_2(log_tail<T>::at(x)), larger(y, 0.0f));
}

// 1 / (1 + exp(-y)) of y times log2(e).
__device__ __forceinline__ float rough_sigmoid(float y)
{
    const float e = power_of_2(smaller(y, 64.0f));
    return e * inverse(1.0f + e);
}

// The others are a sigmoid, or the value times one.
struct sigmoid_form {
    bool by_value;
    float limit, first, third; // of the exponent: x (first + third x^2), within the limit

    explicit __device__ __forceinline__ sigmoid_form(spops_activation a)
        : by_value(a != SPOPS_ACTIVATION_SIGMOID)
    {
        const bool cubic = a == SPOPS_ACTIVATION_GELU_TANH;
        limit = cubic ? tanh_limit : least;
        first = cubic ? tanh_first : 1.0f;
        third = cubic ? tanh_third : 0.0f;
    }
    __device__ __forceinline__ float rough(float y) const
    {
        constexpr float log2_e = 1.44269504f;
        const float from = larger(y, -limit), x = smaller(from, limit);
        const float s = rough_sigmoid(x * log2_e * __fmaf_rn(third, x * x, first));
        return (by_value ? from : 1.0f) * s;
    }
};

} // namespace activation

// v = activation(v) of the many sums of a tile that stay f32: to the bit what activate computes, in less code.
template <int N>
__device__ __forceinline__ void activate_sums(const spops_activated &a, float (&v)[N])
{
    if (a.activation == SPOPS_ACTIVATION_RELU) {
        activation::each<N>([&](int i) {
            if (v[i] < 0.0f) v[i] = 0.0f; // a NaN stays one
        });
    } else if (a.activation == SPOPS_ACTIVATION_LEAKY_RELU) {
        activation::each<N>([&](int i) {
            if (v[i] < 0.0f) v[i] *= a.slope;
        });
    } else if (a.activation == SPOPS_ACTIVATION_GELU) {
        activation::each_in_turn(
            v, [](float y) { return activation::value<SPOPS_ACTIVATION_GELU>(y, 0.0f); });
    } else if (a.activation != SPOPS_ACTIVATION_NONE) {
        // The others are a sigmoid, or the value times one.
        const bool by_value = a.activation != SPOPS_ACTIVATION_SIGMOID;
        const bool cubic = a.activation == SPOPS_ACTIVATION_GELU_TANH;
        const float limit = cubic ? activation::tanh_limit : activation::least;
        const float first = cubic ? activation::tanh_first : 1.0f;
        const float third = cubic ? activation::tanh_third : 0.0f;
        activation::each_in_turn(v, [&](float y) {
            const float x = activation::within(y, limit);
            const float s = activation::sigmoid_of(x * __fmaf_rn(third, x * x, first)).of;
            return (by_value ? y < -limit ? -limit : y : 1.0f) * s;
        });
    }
}

// The same of sums that are rounded to T, of 16 bits, afterwards, unless they are `exact`: in half of the
// instructions. Few sums, of narrow tiles, are exact, as there are no registers for a second form.
template <class T, int N>
__device__ __forceinline__ void activate_rounded_sums(const spops_activated &a, bool exact,
                                                      float (&v)[N])
{
    const bool rough = N > 16 && !exact && a.activation > SPOPS_ACTIVATION_LEAKY_RELU;
    if (rough && a.activation == SPOPS_ACTIVATION_GELU) {
        activation::each_in_turn(v, [](float y) { return activation::rough_gelu<T>(y); });
    } else if (rough) {
        const activation::sigmoid_form form(a.activation);
        activation::each_in_turn(v, [&](float y) { return form.rough(y); });
    } else {
        activate_sums(a, v);
    }
}

// The same of a few sums: to the bit.
template <class T, int N>
__device__ __forceinline__ void activate_rounded(const spops_activated &a, float (&v)[N])
{
    if (a.activation == SPOPS_ACTIVATION_NONE) return;
    if (a.activation == SPOPS_ACTIVATION_GELU) {
        activation::each<N>([&](int i) { v[i] = activation::rough_gelu<T>(v[i]); });
    } else if (a.activation > SPOPS_ACTIVATION_LEAKY_RELU) {
        const activation::sigmoid_form form(a.activation);
        activation::each<N>([&](int i) { v[i] = form.rough(v[i]); });
    } else {
        const bool relu =
            a.activation == SPOPS_ACTIVATION_RELU; // leaky of slope 0 gives -0, or a NaN
        activation::each<N>([&](int i) {
            if (v[i] < 0.0f) v[i] = relu ? 0.0f : v[i] * a.slope;
        });
    }
}

} // namespace spops

#endif
