// SPDX-License-Identifier: Apache-2.0
/* Numbers that look drawn and are the same on every run. */
#ifndef NETWORKS_DRAW_H
#define NETWORKS_DRAW_H

#include <stdint.h>

/* Number i, from low to high. */
static inline float drawn_number(uint64_t i, float low, float high)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return low + (high - low) * ((float)((z ^ (z >> 27)) >> 40) * 0x1p-24f);
}

#endif
