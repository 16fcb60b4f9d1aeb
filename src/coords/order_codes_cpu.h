// SPDX-License-Identifier: Apache-2.0
// Codes of the orders along a curve: the same numbers as spops_key_morton and spops_key_hilbert
// (coord_keys.h), for many keys at once. Table `codes` of voxel_isa.h runs what is laid out here.
#ifndef SPOPS_COORDS_ORDER_CODES_CPU_H
#define SPOPS_COORDS_ORDER_CODES_CPU_H

#include <stdbool.h>

#include "coords/coord_keys.h"
#include "spops/coords.h"

#define SPOPS_SPREAD_STEPS 5 // that move apart halves of 32 bits, of 16, .., of 2

// A bit of a coordinate above those that all axes have, and where it goes.
typedef struct spops_curve_bit {
    int32_t axis, level, place;
} spops_curve_bit;

typedef struct spops_curve {
    const spops_key_layout *layout;
    bool hilbert;
    // Bits of the levels that all axes have are spread so that dims - 1 others fit in between.
    uint32_t common; // mask of these levels
    uint64_t spread[SPOPS_SPREAD_STEPS];
    int32_t num_bits; // the others, one by one
    spops_curve_bit bits[SPOPS_KEY_BITS];
    int32_t batch_shift;
} spops_curve;

// order: MORTON or HILBERT. The layout is kept.
spops_curve spops_curve_make(const spops_key_layout *layout, spops_coords_order order);

int spops_order_code_bits(const spops_key_layout *layout, spops_coords_order order);

#endif
