// SPDX-License-Identifier: Apache-2.0
// Element types and values for tests: exact rounding to the float dtypes, loads and stores, and the
// kinds of values that inputs are filled with. Written without the library's own conversions.
#ifndef SPOPS_TESTS_SUPPORT_VALUES_H
#define SPOPS_TESTS_SUPPORT_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "spops/types.h"
#include "tests/support/random.h"

// A float dtype by its definition. A new one is a row of the table in values.c.
typedef struct test_format {
    spops_dtype dtype;
    const char *name;
    int bits;          // of an element
    int precision;     // significant bits, the hidden one included
    int min_exponent;  // of the smallest normal number
    double largest;    // finite
    bool has_infinity; // as IEEE has it; else only the last code of 8 bits is no number: NaN
    double large;      // what VALUES_CANCEL takes
} test_format;
const test_format *test_format_of(spops_dtype dtype); // that of f32 for what is no float

// Nearest value of dtype, ties to even. Overflows to infinity; the 8- and 4-bit dtypes saturate,
// infinities too. NaN stays NaN (also for F4E2M1, which has none).
double test_round(double v, spops_dtype dtype);

size_t test_dtype_bits(spops_dtype dtype); // of an element
// Bytes of n elements, which are even in number for F4E2M1.
size_t test_elements_bytes(spops_dtype dtype, int64_t n);
size_t test_dtype_bytes(spops_dtype dtype); // of an element of at least 8 bits
const char *test_dtype_name(spops_dtype dtype);
const char *test_reduce_name(spops_reduce reduce);

// Element of dtype (also I32) at p; one of F4E2M1 is the low half of the byte there, and store
// leaves the other half as it is. store rounds; a NaN becomes 0x7f in the 8-bit dtypes.
double test_load(const void *p, spops_dtype dtype);
void test_store(void *p, spops_dtype dtype, double v);

typedef enum test_values {
    VALUES_EXACT = 0,     // sums and products without rounding error: results must agree exactly
    VALUES_RANDOM = 1,    // both signs, several binades
    VALUES_CANCEL = 2,    // large values of alternating sign around small ones
    VALUES_ZEROS = 3,     // many +0 and -0, many ties
    VALUES_SUBNORMAL = 4, // around the smallest numbers of the dtype
    VALUES_INFINITE = 5,  // some infinities of both signs; in 8 and 4 bits, the largest values
    VALUES_NAN = 6,       // some NaN
    NUM_VALUES = 7,       // that may be drawn for any reduction
    VALUES_LARGE = 7      // whose squares are too large for the dtype
} test_values;

const char *test_values_name(test_values kind);

// Next value of a kind, exact in dtype. `for_product` with `longest` factors keeps every product of
// a subset of the factors inside the f32 range.
double test_value(test_rng *rng, test_values kind, spops_dtype dtype, bool for_product,
                  int64_t longest);

// The dtype that sums of rows of a dtype are carried in, and what is f32 beside most rows has.
static inline spops_dtype test_sum_dtype(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F64 ? SPOPS_DTYPE_F64 : SPOPS_DTYPE_F32;
}

// What a sum of rows of a dtype is off by in each rounding, relative to what is rounded. Of f64 twice
// that: references are of f64 themselves.
double test_unit(spops_dtype dtype);

// v[t] of a term: w * x rounded to f32 once.
double test_term(double w, double x);

#endif
