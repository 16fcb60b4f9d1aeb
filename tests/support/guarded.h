// SPDX-License-Identifier: Apache-2.0
// Matrices for tests, where a backend runs: with padding between rows, a base that can be shifted
// off its alignment by one element, and guards before and after, so that every byte outside the
// elements can be shown untouched.
#ifndef SPOPS_TESTS_SUPPORT_GUARDED_H
#define SPOPS_TESTS_SUPPORT_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

#include "spops/types.h"
#include "tests/ref/ref_reduce.h"
#include "tests/support/values.h"

typedef struct guarded {
    spops_matrix view; // as the library gets it
    spops_backend_kind backend;
    const char *name;    // in failure messages
    unsigned char *base; // the allocation, where the backend runs
    unsigned char *host; // what was last uploaded or downloaded
    unsigned char *sent; // what was last uploaded
    size_t bytes, first; // of the allocation; of element (0, 0) in it
} guarded;

// rows x cols elements with `padding` elements between rows, shifted by `shift` elements. Of F4E2M1
// all three are even in number.
guarded guarded_create(spops_backend_kind backend, const char *name, int64_t rows, int64_t cols,
                       int64_t padding, int64_t shift, spops_dtype dtype);
void guarded_destroy(guarded *g);

// On the host copy only.
void guarded_set(guarded *g, int64_t r, int64_t c, double v);
double guarded_get(const guarded *g, int64_t r, int64_t c);
// Every byte, padding and guards too.
void guarded_poison(guarded *g, int byte);
// Fill with values of a kind, and return them as rows * cols doubles (to be freed).
double *guarded_fill(guarded *g, test_rng *rng, test_values kind, bool for_product,
                     int64_t longest);
// Set from rows * cols doubles.
void guarded_fill_from(guarded *g, const double *values);

void guarded_upload(guarded *g);
void guarded_download(guarded *g);

// All of it is as uploaded, where the device has ended; else the test fails with `what` in the message.
void guarded_check_untouched(guarded *g, const char *what);
// After a download. Each fails the test with `what` in the message.
void guarded_check_padding(const guarded *g, const char *what); // what is no element is
// A copy of the elements (to be freed), and their comparison bit for bit.
unsigned char *guarded_elements(const guarded *g);
void guarded_check_bits(const guarded *g, const unsigned char *elements, const char *what);

// Elements against a reference.
//
// The bound. Let u = 2^-24, the unit roundoff of f32. A contribution that meets k roundings carries
// a relative error of at most gamma(k) = k u / (1 - k u) (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1), whatever the order of additions; the contributions'
// magnitudes add up to `scale`. A product that underflows adds at most half the spacing of
// subnormals, 2^-150, for each rounding. So the f32 result lies in value +- b with b = gamma(k)
// scale + k 2^-149. The store rounds it to the dtype; rounding is monotonic, so the element lies
// between the rounded ends of that interval. With `exact` inputs no rounding happens before the
// last f32 one: b = 0.
void guarded_check(const guarded *g, const ref_tensor *expected, bool exact, const char *what);
// The same with another u: for sums whose additions are less precise than f32's.
void guarded_check_unit(const guarded *g, const ref_tensor *expected, bool exact, double u,
                        const char *what);
// The same with a bound b of each element, rows * cols of them.
void guarded_check_bounds(const guarded *g, const ref_tensor *expected, const double *bounds,
                          const char *what);
// The very numbers, with the signs of zeros; also integers. NaN is NaN.
void guarded_check_same(const guarded *g, const ref_tensor *expected, const char *what);
// Integer elements, exactly.
void guarded_check_i32(const guarded *g, const int32_t *expected, const char *what);

#endif
