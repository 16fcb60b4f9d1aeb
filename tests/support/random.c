// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random.h"

#include <stdlib.h>

#include "support/random.h"

uint64_t test_seed(void)
{
    const char *text = getenv("SPOPS_TEST_SEED");
    return text != NULL ? strtoull(text, NULL, 0) : 20250117u;
}

test_rng test_rng_make(uint64_t stream)
{
    test_rng rng = {test_seed() * RANDOM_STEP + stream};
    (void)test_rng_next(&rng);
    return rng;
}

uint64_t test_rng_next(test_rng *rng)
{
    return random_mix(rng->state += RANDOM_STEP);
}

int64_t test_rng_below(test_rng *rng, int64_t n)
{
    return n <= 1 ? 0 : (int64_t)(test_rng_next(rng) % (uint64_t)n);
}

double test_rng_unit(test_rng *rng)
{
    return (double)(test_rng_next(rng) >> 11) * 0x1p-53;
}

void test_rng_shuffle_i32(test_rng *rng, int32_t *values, int64_t n)
{
    for (int64_t i = n - 1; i > 0; --i) {
        const int64_t j = test_rng_below(rng, i + 1);
        const int32_t v = values[i];
        values[i] = values[j];
        values[j] = v;
    }
}
