// SPDX-License-Identifier: Apache-2.0
#include "tests/support/values.h"

#include <float.h>
#include <math.h>
#include <string.h>

// clang-format off: a row is a line.
static const test_format formats[] = {
    {SPOPS_DTYPE_F32, "f32", 32, 24, -126, (double)FLT_MAX, true, 0x1p20},
    {SPOPS_DTYPE_F16, "f16", 16, 11, -14, 65504.0, true, 0x1p14},
    {SPOPS_DTYPE_BF16, "bf16", 16, 8, -126, 0x1.fep127, true, 0x1p20},
    {SPOPS_DTYPE_F8E4M3, "f8e4m3", 8, 4, -6, 448.0, false, 0x1p8},
    {SPOPS_DTYPE_F8E5M2, "f8e5m2", 8, 3, -14, 57344.0, true, 0x1p14},
    {SPOPS_DTYPE_F4E2M1, "f4e2m1", 4, 2, 0, 6.0, false, 6.0},
    {SPOPS_DTYPE_F64, "f64", 64, 53, -1022, DBL_MAX, true, 0x1p49}};
// clang-format on

static const test_format *find_format(spops_dtype dtype)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; ++i)
        if (formats[i].dtype == dtype) return &formats[i];
    return NULL;
}

const test_format *test_format_of(spops_dtype dtype)
{
    const test_format *f = find_format(dtype);
    return f != NULL ? f : &formats[0];
}

static bool saturates(spops_dtype dtype)
{
    return test_dtype_bits(dtype) <= 8;
}

// v 2^n, without libm, where most of the tests' time went. 2^n is a normal double: every number of
// every dtype is far inside that range.
static double times_power(double v, int n)
{
    const uint64_t bits = (uint64_t)(1023 + n) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return v * power;
}

// Of a number that is neither zero nor infinite nor NaN; what double holds as subnormal is too small
// for every dtype.
static int exponent_of(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (int)(bits >> 52 & 0x7ff) - 1023;
}

double test_round(double v, spops_dtype dtype)
{
    if (dtype == SPOPS_DTYPE_F32) return (double)(float)v;
    if (dtype == SPOPS_DTYPE_F64) return v;
    const test_format *f = test_format_of(dtype);
    if (isinf(v) && saturates(dtype)) return copysign(f->largest, v);
    if (v == 0.0 || !isfinite(v)) return v;
    int exponent = exponent_of(v);
    if (exponent < f->min_exponent) exponent = f->min_exponent;
    // Scaled by powers of two, the candidates are the integers; nearbyint rounds ties to even.
    const int quantum = exponent - (f->precision - 1);
    const double r = times_power(nearbyint(times_power(v, -quantum)), quantum);
    if (fabs(r) <= f->largest) return r;
    return copysign(saturates(dtype) ? f->largest : (double)INFINITY, v);
}

size_t test_dtype_bits(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_I8 ? 8 : (size_t)test_format_of(dtype)->bits;
}

size_t test_elements_bytes(spops_dtype dtype, int64_t n)
{
    return (size_t)n * test_dtype_bits(dtype) / 8;
}

size_t test_dtype_bytes(spops_dtype dtype)
{
    return test_dtype_bits(dtype) / 8;
}

const char *test_dtype_name(spops_dtype dtype)
{
    const test_format *f = find_format(dtype);
    return f != NULL ? f->name : dtype == SPOPS_DTYPE_I32 ? "i32" : "other";
}

const char *test_reduce_name(spops_reduce reduce)
{
    switch ((int)reduce) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name:                                                                      \
        return #plain;
#include "src/segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return "custom";
    }
}

// A code of sign, exponent and fraction, as its format has them; without infinity and NaN.
static double decode(unsigned code, spops_dtype dtype)
{
    const test_format *f = test_format_of(dtype);
    const int fraction_bits = f->precision - 1;
    const unsigned sign = 1u << (test_dtype_bits(dtype) - 1), m = code & (sign - 1);
    const int exponent = (int)(m >> fraction_bits);
    const double fraction = (double)(m & ((1u << fraction_bits) - 1));
    const double value = exponent == 0
                             ? times_power(fraction, f->min_exponent - fraction_bits)
                             : times_power(fraction + (double)(1u << fraction_bits),
                                           f->min_exponent + exponent - 1 - fraction_bits);
    return code & sign ? -value : value;
}

// The code of a value that the format has.
static unsigned encode(double v, spops_dtype dtype)
{
    const test_format *f = test_format_of(dtype);
    const int fraction_bits = f->precision - 1;
    const unsigned sign = signbit(v) ? 1u << (test_dtype_bits(dtype) - 1) : 0u;
    const double magnitude = fabs(v);
    const int exponent = magnitude == 0.0 ? f->min_exponent : exponent_of(magnitude);
    if (exponent < f->min_exponent || magnitude == 0.0)
        return sign | (unsigned)times_power(magnitude, fraction_bits - f->min_exponent);
    // The leading one of the fraction counts as one more in the exponent.
    return sign + ((unsigned)(exponent - f->min_exponent) << fraction_bits) +
           (unsigned)times_power(magnitude, fraction_bits - exponent);
}

static double load_small(unsigned char byte, spops_dtype dtype)
{
    const test_format *f = test_format_of(dtype);
    const unsigned m = byte & 0x7fu, largest = encode(f->largest, dtype);
    if (f->bits == 4) return decode(byte & 15u, dtype);
    if (m <= largest) return decode(byte, dtype);
    if (f->has_infinity && m == largest + 1)
        return byte & 0x80u ? -(double)INFINITY : (double)INFINITY;
    return (double)NAN;
}

static void store_small(unsigned char *p, spops_dtype dtype, double v)
{
    const double r = test_round(v, dtype);
    if (dtype == SPOPS_DTYPE_F4E2M1)
        *p = (unsigned char)((*p & 0xf0u) | (isnan(r) ? 7u : encode(r, dtype)));
    else
        *p = (unsigned char)(isnan(r) ? 0x7fu : encode(r, dtype));
}

double test_load(const void *p, spops_dtype dtype)
{
    if (test_dtype_bits(dtype) <= 8) return load_small(*(const unsigned char *)p, dtype);
    if (dtype == SPOPS_DTYPE_F64) {
        double wide;
        memcpy(&wide, p, sizeof wide);
        return wide;
    }
    if (dtype == SPOPS_DTYPE_I32) {
        int32_t i;
        memcpy(&i, p, sizeof i);
        return (double)i;
    }
    uint32_t bits = 0;
    if (dtype == SPOPS_DTYPE_F32) {
        memcpy(&bits, p, 4);
    } else {
        uint16_t half;
        memcpy(&half, p, 2);
        if (dtype == SPOPS_DTYPE_F16) {
            const double sign = half & 0x8000 ? -1.0 : 1.0;
            const int exponent = half >> 10 & 31, mantissa = half & 1023;
            if (exponent == 31) return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
            if (exponent == 0) return sign * times_power((double)mantissa, -24);
            return sign * times_power((double)(mantissa + 1024), exponent - 25);
        }
        bits = (uint32_t)half << 16;
    }
    float v;
    memcpy(&v, &bits, 4);
    return (double)v;
}

void test_store(void *p, spops_dtype dtype, double v)
{
    if (dtype == SPOPS_DTYPE_I32) {
        const int32_t i = (int32_t)v;
        memcpy(p, &i, sizeof i);
        return;
    }
    if (dtype == SPOPS_DTYPE_F64) {
        memcpy(p, &v, sizeof v);
        return;
    }
    if (test_dtype_bits(dtype) <= 8) {
        store_small((unsigned char *)p, dtype, v);
        return;
    }
    const double r = test_round(v, dtype);
    const float f = (float)r; // exact: every f16 and bf16 value is an f32 value
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (dtype == SPOPS_DTYPE_F32) {
        memcpy(p, &bits, 4);
        return;
    }
    uint16_t half;
    if (dtype == SPOPS_DTYPE_BF16) {
        half = isnan(r) ? (uint16_t)0x7fc0 : (uint16_t)(bits >> 16);
    } else {
        const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
        const double magnitude = fabs(r);
        if (isnan(r))
            half = 0x7e00;
        else if (isinf(r))
            half = 0x7c00;
        else if (magnitude < 0x1p-14)
            half = (uint16_t)times_power(magnitude, 24);
        else {
            const int exponent = exponent_of(magnitude);
            half = (uint16_t)((exponent + 14) * 1024 + (int)times_power(magnitude, 10 - exponent));
        }
        half = (uint16_t)(half | sign);
    }
    memcpy(p, &half, 2);
}

const char *test_values_name(test_values kind)
{
    static const char *names[] = {"exact",     "random",   "cancel", "zeros",
                                  "subnormal", "infinite", "nan",    "large"};
    return names[kind];
}

double test_unit(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F64 ? 0x1p-52 : 0x1p-24;
}

double test_term(double w, double x)
{
    return (double)(float)(w * x); // the product of two f32 is exact in f64: one rounding
}

double test_value(test_rng *rng, test_values kind, spops_dtype dtype, bool for_product,
                  int64_t longest)
{
    const double sign = test_rng_next(rng) & 1 ? 1.0 : -1.0;
    if (for_product) {
        // Factors near one. EXACT: signs and, seldom, a factor of two, which multiply exactly.
        if (kind == VALUES_EXACT) {
            const int64_t pick = test_rng_below(rng, longest > 1024 ? longest / 16 : 64);
            return sign * (pick == 0 ? 2.0 : pick == 1 ? 0.5 : 1.0);
        }
        if (kind == VALUES_ZEROS && test_rng_below(rng, 4) == 0) return sign * 0.0;
        if (kind == VALUES_INFINITE && test_rng_below(rng, 16) == 0) {
            return test_round(sign * (double)INFINITY, dtype);
        }
        if (kind == VALUES_NAN && test_rng_below(rng, 32) == 0) return (double)NAN;
        const double spread = longest > 40 ? 20.0 / (double)longest : 0.5;
        return test_round(sign * (1.0 + spread * (2.0 * test_rng_unit(rng) - 1.0)), dtype);
    }
    const double unit = test_rng_unit(rng);
    switch (kind) {
    case VALUES_EXACT: return (double)(test_rng_below(rng, 9) - 4);
    case VALUES_CANCEL: {
        const double large = test_format_of(dtype)->large;
        return test_round(test_rng_below(rng, 2) == 0 ? sign * large : unit, dtype);
    }
    case VALUES_ZEROS:
        return test_rng_below(rng, 2) == 0 ? sign * 0.0 : sign * (double)test_rng_below(rng, 3);
    case VALUES_SUBNORMAL: {
        const test_format *f = test_format_of(dtype);
        const double smallest = ldexp(1.0, f->min_exponent - f->precision + 1);
        return test_round(
            sign * smallest * (double)test_rng_below(rng, f->precision > 8 ? 512 : 64), dtype);
    }
    case VALUES_INFINITE:
        if (test_rng_below(rng, 32) == 0) return test_round(sign * (double)INFINITY, dtype);
        break;
    case VALUES_NAN:
        if (test_rng_below(rng, 32) == 0 && dtype != SPOPS_DTYPE_F4E2M1) return (double)NAN;
        break;
    case VALUES_LARGE:
        return test_round(
            times_power(sign * (1.0 + unit), -3 * test_format_of(dtype)->min_exponent / 4), dtype);
    default: break;
    }
    return test_round(times_power(sign * (1.0 + unit), (int)test_rng_below(rng, 7) - 3), dtype);
}
