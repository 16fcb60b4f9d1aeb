// SPDX-License-Identifier: Apache-2.0
// Integers of sizes.
#ifndef SPOPS_CORE_INTEGERS_H
#define SPOPS_CORE_INTEGERS_H

#include <stdint.h>

static inline int64_t spops_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// a / b, rounded up; a is not negative.
static inline int64_t spops_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
