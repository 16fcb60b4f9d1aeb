// SPDX-License-Identifier: Apache-2.0
// Codes of the orders along a curve, from tables: the same numbers as spops_key_morton and
// spops_key_hilbert (coord_keys.h), some ten times as fast.
#ifndef SPOPS_COORDS_ORDER_CODES_CPU_H
#define SPOPS_COORDS_ORDER_CODES_CPU_H

#include "coords/coord_keys.h"
#include "spops/coords.h"

#define SPOPS_CURVE_STATES 768 // of a Hilbert curve in 4 dimensions: 4! turns, 2^4 mirrors, twice

typedef struct spops_order_codes {
    const spops_key_layout *layout;
    spops_coords_order order;
    int levels, code_bits;
    uint64_t spread[4][4][256]; // [axis][byte of a coordinate][its value]: where its bits go
    // Hilbert: (next state) << 4 | bits of the code, by state and the bits of a level. State 0 first.
    uint16_t step[SPOPS_CURVE_STATES][16];
    int16_t state_of[1 << 13]; // while states are found
} spops_order_codes;

// order: MORTON or HILBERT.
void spops_order_codes_make(const spops_key_layout *layout, spops_coords_order order,
                            spops_order_codes *codes);

int spops_order_code_bits(const spops_key_layout *layout, spops_coords_order order);

#define SPOPS_CODES_AT_ONCE 8

// codes[i] of keys[i], for n keys, at most SPOPS_CODES_AT_ONCE: a curve's steps depend on each other,
// those of several keys do not.
void spops_order_codes_of(const spops_order_codes *c, int n, const uint64_t *keys, uint64_t *codes);

#endif
