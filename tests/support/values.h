// Element types and values for tests: exact rounding to f32, f16 and bf16, loads and stores, and
// the kinds of values that inputs are filled with. Written without the library's own conversions.
#ifndef SPOPS_TESTS_SUPPORT_VALUES_H
#define SPOPS_TESTS_SUPPORT_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "spops/types.h"
#include "tests/support/random.h"

// Nearest value of dtype, ties to even, overflow to infinity.
double test_round(double v, spops_dtype dtype);

size_t test_dtype_bytes(spops_dtype dtype);
const char *test_dtype_name(spops_dtype dtype);
const char *test_reduce_name(spops_reduce reduce);

// Element of dtype (also I32) at p. store rounds.
double test_load(const void *p, spops_dtype dtype);
void test_store(void *p, spops_dtype dtype, double v);

typedef enum test_values {
    VALUES_EXACT = 0,     // sums and products without rounding error: results must agree exactly
    VALUES_RANDOM = 1,    // both signs, several binades
    VALUES_CANCEL = 2,    // large values of alternating sign around small ones
    VALUES_ZEROS = 3,     // many +0 and -0, many ties
    VALUES_SUBNORMAL = 4, // around the smallest numbers of the dtype
    VALUES_INFINITE = 5,  // some infinities of both signs
    VALUES_NAN = 6,       // some NaN
    NUM_VALUES = 7
} test_values;

const char *test_values_name(test_values kind);

// Next value of a kind, exact in dtype. `for_product` with `longest` factors keeps every product of
// a subset of the factors inside the f32 range.
double test_value(test_rng *rng, test_values kind, spops_dtype dtype, bool for_product,
                  int64_t longest);

// v[t] of a term: w * x rounded to f32 once.
double test_term(double w, double x);

#endif
