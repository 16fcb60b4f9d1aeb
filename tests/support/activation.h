// SPDX-License-Identifier: Apache-2.0
// Activations that a test draws.
#ifndef SPOPS_TESTS_SUPPORT_ACTIVATION_H
#define SPOPS_TESTS_SUPPORT_ACTIVATION_H

#include "tests/ref/ref_activation.h"
#include "tests/support/random.h"

// Any; with is_exact one that keeps small whole numbers exact.
static inline ref_activation test_activation(test_rng *rng, bool is_exact)
{
    static const float slopes[] = {0.5f, -2.0f, 0, 0.125f};
    ref_activation a = {(spops_activation)test_rng_below(rng, is_exact ? 3 : REF_NUM_ACTIVATIONS),
                        0};
    if (a.kind == SPOPS_ACTIVATION_LEAKY_RELU)
        a.slope = slopes[test_rng_below(rng, is_exact ? 2 : 4)];
    return a;
}

#endif
