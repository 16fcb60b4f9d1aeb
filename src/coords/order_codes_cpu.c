// SPDX-License-Identifier: Apache-2.0
#include "coords/order_codes_cpu.h"

#include <string.h>

int spops_order_code_bits(const spops_key_layout *layout, spops_coords_order order)
{
    return order == SPOPS_COORDS_ORDER_HILBERT
               ? layout->bits[0] + layout->dims * layout->max_axis_bits
               : layout->key_bits;
}

// The bits that are in use once each group of `group` neighbours has moved to where dims groups fit.
static uint64_t spread_mask(int dims, int group)
{
    uint64_t mask = 0;
    for (int bit = 0; bit < 32; ++bit) {
        const int place = bit / group * group * dims + bit % group;
        if (place < 64) mask |= (uint64_t)1 << place;
    }
    return mask;
}

spops_curve spops_curve_make(const spops_key_layout *layout, spops_coords_order order)
{
    const int dims = layout->dims, levels = layout->max_axis_bits;
    int common = levels, place;
    spops_curve c;

    memset(&c, 0, sizeof c);
    c.layout = layout;
    c.hilbert = order == SPOPS_COORDS_ORDER_HILBERT; // all axes have all levels
    for (int a = 1; a <= dims && !c.hilbert; ++a)
        common = layout->bits[a] < common ? layout->bits[a] : common;
    c.common = (uint32_t)(((uint64_t)1 << common) - 1);
    for (int step = 0; step < SPOPS_SPREAD_STEPS; ++step)
        c.spread[step] = spread_mask(dims, 16 >> step);
    place = dims * common;
    for (int level = common; level < levels; ++level)
        for (int a = dims - 1; a >= 0; --a)
            if (level < layout->bits[a + 1])
                c.bits[c.num_bits++] = (spops_curve_bit){a, level, place++};
    c.batch_shift = place;
    return c;
}
