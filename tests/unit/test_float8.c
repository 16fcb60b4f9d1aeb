// SPDX-License-Identifier: Apache-2.0
// The conversions of the 8- and 4-bit dtypes: every code, and encodings against the nearest value
// that a search among all codes finds.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "core/float8.h"
#include "tests/support/random.h"
#include "tests/support/values.h"

typedef struct format {
    spops_dtype dtype;
    int num_codes; // without the sign: magnitudes ascend with the code
    unsigned sign; // bit
    int largest;   // code
    double magnitudes[128];
} format;

static const spops_dtype dtypes[] = {
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type) SPOPS_DTYPE_##NAME,
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type) SPOPS_DTYPE_##NAME,
#include "core/dtypes.def"
};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static float decode(spops_dtype dtype, unsigned code)
{
    switch (dtype) {
#define DECODE(NAME, name)                                                                         \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return spops_float_of_##name((uint8_t)code);
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type) DECODE(NAME, name)
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type) DECODE(NAME, name)
#include "core/dtypes.def"
    default: return NAN;
    }
}

static unsigned encode(spops_dtype dtype, float f)
{
    switch (dtype) {
#define ENCODE(NAME, name)                                                                         \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return spops_##name##_of_float(f);
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type) ENCODE(NAME, name)
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type) ENCODE(NAME, name)
#include "core/dtypes.def"
    default: return 0;
    }
}

// Magnitudes from the formats' definitions, digit by digit.
static format make_format(spops_dtype dtype)
{
    const test_format *of = test_format_of(dtype);
    const int fraction_bits = of->precision - 1, bias = 1 - of->min_exponent;
    format f = {.dtype = dtype, .num_codes = 1 << (of->bits - 1)};
    f.sign = (unsigned)f.num_codes;
    for (int code = 0; code < f.num_codes; ++code) {
        const int e = code >> fraction_bits, m = code & ((1 << fraction_bits) - 1);
        const double fraction = (double)m / (1 << fraction_bits);
        const double value =
            e == 0 ? fraction * pow(2.0, 1 - bias) : (1.0 + fraction) * pow(2.0, e - bias);
        if (value <= of->largest) f.largest = code;
        f.magnitudes[code] = value <= of->largest                        ? value
                             : of->has_infinity && code == f.largest + 1 ? (double)INFINITY
                                                                         : (double)NAN;
    }
    return f;
}

Test(float8, decodes_every_code)
{
    for (int t = 0; t < NUM_DTYPES; ++t)
        cr_assert((double)spops_largest_narrow(dtypes[t]) ==
                  test_format_of(dtypes[t])->largest *
                      (dtypes[t] == SPOPS_DTYPE_F4E2M1 ? 448.0 : 1.0));
    for (int t = 0; t < NUM_DTYPES; ++t) {
        const format f = make_format(dtypes[t]);
        for (unsigned code = 0; code < 2 * (unsigned)f.num_codes; ++code) {
            const double magnitude = f.magnitudes[code & (f.sign - 1)];
            const float got = decode(f.dtype, code);
            const unsigned char byte = (unsigned char)code;
            const double loaded = test_load(&byte, f.dtype);
            if (isnan(magnitude)) {
                cr_assert(isnan(got) && isnan(loaded), "%s: 0x%02x is %g", test_dtype_name(f.dtype),
                          code, (double)got);
                cr_assert(encode(f.dtype, got) == 0x7f, "%s: NaN 0x%02x", test_dtype_name(f.dtype),
                          code);
                continue;
            }
            cr_assert((double)fabsf(got) == magnitude && !signbit(got) == !(code & f.sign),
                      "%s: 0x%02x is %g, expected %g", test_dtype_name(f.dtype), code, (double)got,
                      magnitude);
            cr_assert(loaded == (double)got, "%s: 0x%02x, as the tests read it",
                      test_dtype_name(f.dtype), code);
            const unsigned expected =
                isinf(magnitude) ? (code & f.sign) | (unsigned)f.largest : code;
            cr_assert(encode(f.dtype, got) == expected, "%s: 0x%02x encodes as 0x%02x",
                      test_dtype_name(f.dtype), code, encode(f.dtype, got));
        }
    }
    // Codes of a 4-bit dtype are the low half of a byte.
    for (unsigned byte = 0; byte < 256; ++byte)
        cr_assert(decode(SPOPS_DTYPE_F4E2M1, byte) == decode(SPOPS_DTYPE_F4E2M1, byte & 15));
}

// The code that v must get: the nearest magnitude, the even code of two that are as near.
static unsigned nearest(const format *f, float v)
{
    const double magnitude = fabs((double)v);
    int best = 0;
    for (int code = 1; code <= f->largest; ++code) {
        const double was = fabs(magnitude - f->magnitudes[best]);
        const double is = fabs(magnitude - f->magnitudes[code]);
        if (is < was || (is == was && code % 2 == 0)) best = code;
    }
    if (magnitude >= f->magnitudes[f->largest]) best = f->largest; // distances no longer differ
    return (unsigned)best | (signbit(v) ? f->sign : 0u);
}

static void check_encode(const format *f, uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    const unsigned got = encode(f->dtype, v);
    const unsigned nan = f->dtype == SPOPS_DTYPE_F4E2M1 ? 0x7 : 0x7f;
    const unsigned expected = isnan(v) ? nan : nearest(f, v);
    cr_assert(got == expected, "%s: %a (0x%08x) encodes as 0x%02x, expected 0x%02x",
              test_dtype_name(f->dtype), (double)v, bits, got, expected);
    unsigned char stored = 0;
    test_store(&stored, f->dtype, (double)v);
    cr_assert(stored == expected, "%s: %a, as the tests store it: 0x%02x, expected 0x%02x",
              test_dtype_name(f->dtype), (double)v, stored, expected);
}

// Every sign, exponent and the leading seven bits of fraction, with what follows them all zero, all
// one, and just beside: ties lie among them.
Test(float8, encodes_to_nearest_even)
{
    static const uint32_t tails[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (int t = 0; t < NUM_DTYPES; ++t) {
        const format f = make_format(dtypes[t]);
        for (uint32_t head = 0; head < 0x10000; ++head) {
            for (int i = 0; i < 6; ++i)
                check_encode(&f, head << 16 | tails[i]);
        }
    }
}

// Every midpoint between two values, and its neighbours; random values; NaN of every kind.
Test(float8, encodes_ties_and_random_values)
{
    test_rng rng = test_rng_make(8);
    for (int t = 0; t < NUM_DTYPES; ++t) {
        const format f = make_format(dtypes[t]);
        for (int code = 0; code <= f.largest; ++code) {
            const double step = code < f.largest ? f.magnitudes[code + 1] - f.magnitudes[code]
                                                 : f.magnitudes[code] - f.magnitudes[code - 1];
            const float middle = (float)(f.magnitudes[code] + step / 2);
            uint32_t bits;
            memcpy(&bits, &middle, sizeof bits);
            for (uint32_t i = 0; i < 3; ++i) {
                check_encode(&f, bits - 1 + i);
                check_encode(&f, (bits - 1 + i) | 0x80000000u);
            }
        }
        for (int i = 0; i < 400000; ++i)
            check_encode(&f, (uint32_t)test_rng_next(&rng));
        for (int i = 0; i < 400000; ++i) // near the format's own range
            check_encode(&f, ((uint32_t)(100 + test_rng_below(&rng, 50)) << 23) ^
                                 ((uint32_t)test_rng_next(&rng) & 0x807fffffu));
        for (int bit = 0; bit < 23; ++bit) {
            check_encode(&f, 0x7f800000u | 1u << bit);
            check_encode(&f, 0xff800000u | 1u << bit);
        }
    }
}
