// SPDX-License-Identifier: Apache-2.0
// Numbers that look random and follow from a number: the one mixing function of tests, benchmarks and
// tools. (Examples have their own: they use nothing but the library.)
#ifndef SPOPS_SUPPORT_RANDOM_H
#define SPOPS_SUPPORT_RANDOM_H

#include <stdint.h>

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), of which
// this is the output for a state, and RANDOM_STEP what a state grows by.
#define RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

#endif
