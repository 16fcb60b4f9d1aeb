#include "tests/support/values.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct float_format {
    int precision;    // significant bits, the hidden one included
    int min_exponent; // of the smallest normal number
    double largest;
} float_format;

static float_format format_of(spops_dtype dtype)
{
    if (dtype == SPOPS_DTYPE_F16) return (float_format){11, -14, 65504.0};
    if (dtype == SPOPS_DTYPE_BF16) return (float_format){8, -126, 0x1.fep127};
    return (float_format){24, -126, (double)FLT_MAX};
}

double test_round(double v, spops_dtype dtype)
{
    if (dtype == SPOPS_DTYPE_F32) return (double)(float)v;
    if (v == 0.0 || !isfinite(v)) return v;
    const float_format f = format_of(dtype);
    int exponent = ilogb(v);
    if (exponent < f.min_exponent) exponent = f.min_exponent;
    // Scaled by powers of two, the candidates are the integers; nearbyint rounds ties to even.
    const int quantum = exponent - (f.precision - 1);
    const double r = scalbn(nearbyint(scalbn(v, -quantum)), quantum);
    return fabs(r) > f.largest ? copysign((double)INFINITY, v) : r;
}

size_t test_dtype_bytes(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F16 || dtype == SPOPS_DTYPE_BF16 ? 2 : 4;
}

const char *test_dtype_name(spops_dtype dtype)
{
    switch (dtype) {
    case SPOPS_DTYPE_F32: return "f32";
    case SPOPS_DTYPE_F16: return "f16";
    case SPOPS_DTYPE_BF16: return "bf16";
    case SPOPS_DTYPE_I32: return "i32";
    default: return "other";
    }
}

const char *test_reduce_name(spops_reduce reduce)
{
    switch ((int)reduce) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name:                                                                      \
        return #plain;
#include "src/core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return "custom";
    }
}

double test_load(const void *p, spops_dtype dtype)
{
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
            if (exponent == 0) return sign * scalbn((double)mantissa, -24);
            return sign * scalbn((double)(mantissa + 1024), exponent - 25);
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
            half = (uint16_t)scalbn(magnitude, 24);
        else {
            const int exponent = ilogb(magnitude);
            half = (uint16_t)((exponent + 14) * 1024 + (int)scalbn(magnitude, 10 - exponent));
        }
        half = (uint16_t)(half | sign);
    }
    memcpy(p, &half, 2);
}

const char *test_values_name(test_values kind)
{
    static const char *names[NUM_VALUES] = {"exact",     "random",   "cancel", "zeros",
                                            "subnormal", "infinite", "nan"};
    return names[kind];
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
            return sign * (double)INFINITY;
        }
        if (kind == VALUES_NAN && test_rng_below(rng, 32) == 0) return (double)NAN;
        const double spread = longest > 40 ? 20.0 / (double)longest : 0.5;
        return test_round(sign * (1.0 + spread * (2.0 * test_rng_unit(rng) - 1.0)), dtype);
    }
    const double unit = test_rng_unit(rng);
    switch (kind) {
    case VALUES_EXACT: return (double)(test_rng_below(rng, 9) - 4);
    case VALUES_CANCEL: {
        const double large = dtype == SPOPS_DTYPE_F16 ? 0x1p14 : 0x1p20;
        return test_round(test_rng_below(rng, 2) == 0 ? sign * large : unit, dtype);
    }
    case VALUES_ZEROS:
        return test_rng_below(rng, 2) == 0 ? sign * 0.0 : sign * (double)test_rng_below(rng, 3);
    case VALUES_SUBNORMAL: {
        const double smallest = dtype == SPOPS_DTYPE_F16    ? 0x1p-24
                                : dtype == SPOPS_DTYPE_BF16 ? 0x1p-133
                                                            : 0x1p-149;
        return sign * smallest * (double)test_rng_below(rng, dtype == SPOPS_DTYPE_BF16 ? 64 : 512);
    }
    case VALUES_INFINITE:
        if (test_rng_below(rng, 32) == 0) return sign * (double)INFINITY;
        break;
    case VALUES_NAN:
        if (test_rng_below(rng, 32) == 0) return (double)NAN;
        break;
    default: break;
    }
    return test_round(scalbn(sign * (1.0 + unit), (int)test_rng_below(rng, 7) - 3), dtype);
}
