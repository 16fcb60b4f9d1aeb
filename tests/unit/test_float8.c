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

static float decode(spops_dtype dtype, unsigned code)
{
    if (dtype == SPOPS_DTYPE_F8E4M3) return spops_float_of_f8e4m3((uint8_t)code);
    if (dtype == SPOPS_DTYPE_F8E5M2) return spops_float_of_f8e5m2((uint8_t)code);
    return spops_float_of_f4e2m1((uint8_t)code);
}

static unsigned encode(spops_dtype dtype, float f)
{
    if (dtype == SPOPS_DTYPE_F8E4M3) return spops_f8e4m3_of_float(f);
    if (dtype == SPOPS_DTYPE_F8E5M2) return spops_f8e5m2_of_float(f);
    return spops_f4e2m1_of_float(f);
}

// Magnitudes from the formats' definitions, digit by digit.
static format make_format(spops_dtype dtype)
{
    format f = {.dtype = dtype};
    const int exponent_bits = dtype == SPOPS_DTYPE_F8E4M3 ? 4 : dtype == SPOPS_DTYPE_F8E5M2 ? 5 : 2;
    const int fraction_bits = dtype == SPOPS_DTYPE_F8E4M3 ? 3 : dtype == SPOPS_DTYPE_F8E5M2 ? 2 : 1;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    f.num_codes = 1 << (exponent_bits + fraction_bits);
    f.sign = (unsigned)f.num_codes;
    f.largest = dtype == SPOPS_DTYPE_F8E4M3 ? 0x7e : dtype == SPOPS_DTYPE_F8E5M2 ? 0x7b : 0x7;
    for (int code = 0; code < f.num_codes; ++code) {
        const int e = code >> fraction_bits, m = code & ((1 << fraction_bits) - 1);
        const double fraction = (double)m / (1 << fraction_bits);
        f.magnitudes[code] =
            e == 0 ? fraction * pow(2.0, 1 - bias) : (1.0 + fraction) * pow(2.0, e - bias);
    }
    if (dtype == SPOPS_DTYPE_F8E4M3) f.magnitudes[0x7f] = (double)NAN;
    if (dtype == SPOPS_DTYPE_F8E5M2) {
        f.magnitudes[0x7c] = (double)INFINITY;
        for (int code = 0x7d; code < 0x80; ++code)
            f.magnitudes[code] = (double)NAN;
    }
    return f;
}

static const spops_dtype dtypes[] = {SPOPS_DTYPE_F8E4M3, SPOPS_DTYPE_F8E5M2, SPOPS_DTYPE_F4E2M1};

Test(float8, decodes_every_code)
{
    cr_assert(make_format(SPOPS_DTYPE_F8E4M3).magnitudes[0x7e] == (double)SPOPS_F8E4M3_MAX);
    cr_assert(make_format(SPOPS_DTYPE_F8E5M2).magnitudes[0x7b] == (double)SPOPS_F8E5M2_MAX);
    cr_assert(make_format(SPOPS_DTYPE_F4E2M1).magnitudes[0x7] == (double)SPOPS_F4E2M1_MAX);
    for (int t = 0; t < 3; ++t) {
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
            const unsigned expected = isinf(magnitude) ? (code & f.sign) | 0x7bu : code;
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
    for (int t = 0; t < 3; ++t) {
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
    for (int t = 0; t < 3; ++t) {
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
