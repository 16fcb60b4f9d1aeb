// SPDX-License-Identifier: Apache-2.0
// Seeded random numbers for tests. SPOPS_TEST_SEED chooses another sequence; failure messages name
// the seed (test_seed), so that a failing run can be repeated.
#ifndef SPOPS_TESTS_SUPPORT_RANDOM_H
#define SPOPS_TESTS_SUPPORT_RANDOM_H

#include <stdint.h>

typedef struct test_rng {
    uint64_t state;
} test_rng;

// The run's seed: SPOPS_TEST_SEED, else a fixed number.
uint64_t test_seed(void);

// A generator of its own for each `stream` of the run's seed.
test_rng test_rng_make(uint64_t stream);

uint64_t test_rng_next(test_rng *rng);
int64_t test_rng_below(test_rng *rng, int64_t n); // 0 to n - 1; 0 for n <= 1
double test_rng_unit(test_rng *rng);              // [0, 1)
void test_rng_shuffle_i32(test_rng *rng, int32_t *values, int64_t n);

#endif
