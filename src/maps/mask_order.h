/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of rows by their masks of taps, the same on both backends: rows of one tile should miss
 * the same taps, because a tile computes every tap that any of its rows has.
 *
 * A mask of taps becomes a word of at most 27 bits, and rows lie in the order of that word as a Gray
 * code, so that neighbours differ in few bits. A bit says whether there is any tap of a group, and a
 * tap is in several groups. From the highest bit:
 *
 *   planes   all taps at one position of one axis: the middle ones (not of symmetric maps, whose
 *            middle tap is always there), then the outermost, then the others
 *   units    up to 32 taps: single taps, the farthest from the kernel's centre first. More: all taps
 *            in one direction from the centre, directions along the most axes first
 *
 * Where units are more than the bits that are left, opposite ones of the first kind share a bit, and
 * the last have none. Planes tell surfaces apart, which is what most masks of a scan are; counted in
 * docs/coords.md.
 */
#ifndef SPOPS_MAPS_MASK_ORDER_H
#define SPOPS_MAPS_MASK_ORDER_H

#include <stdbool.h>

#include "coords/coord_keys.h"
#include "spops/coords.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SPOPS_MASK_ORDER_BITS = 27,        /* of a rank, at most: three passes of a sort by 9 */
    SPOPS_MASK_ORDER_SINGLE_TAPS = 32, /* up to so many taps, units are single taps */
    SPOPS_MASK_ORDER_DIRECTIONS = 81   /* -1, 0 or 1 along each of four axes */
};

typedef struct spops_mask_order {
    int32_t num_bits; /* of a rank */
    int32_t num_taps;
    union {
        uint32_t tap_bits[SPOPS_MASK_ORDER_SINGLE_TAPS]; /* up to 32 taps: those that tap k sets */
        struct {
            uint8_t size[SPOPS_KEY_COLUMNS - 1];
            /* Which bit a position along an axis, and a direction, set; 255: none. */
            uint8_t plane_bit[SPOPS_KEY_COLUMNS - 1][SPOPS_MAX_KERNEL_SIZE];
            uint8_t direction_bit[SPOPS_MASK_ORDER_DIRECTIONS];
        } large;
    } u;
} spops_mask_order;

/* symmetric: the kernel's middle tap is in every mask. brief: by planes alone, where there are planes: one
   pass of a sort. */
spops_mask_order spops_mask_order_of(const spops_taps *taps, bool symmetric, bool brief);

SPOPS_HD uint32_t spops_mask_bit(uint8_t bit)
{
    return bit == 255 ? 0 : 1u << bit;
}

/* The bits that a tap sets. */
SPOPS_HD uint32_t spops_mask_tap_bits(const spops_mask_order *order, int32_t tap)
{
    uint32_t bits = 0;
    int32_t direction = 0, power = 1;
    int a;
    if (order->num_taps <= SPOPS_MASK_ORDER_SINGLE_TAPS) return order->u.tap_bits[tap];
    for (a = SPOPS_KEY_COLUMNS - 2; a >= 0; --a) {
        const int32_t size = order->u.large.size[a], position = tap % size;
        const int32_t moved = 2 * position - (size - 1);
        direction += power * (moved < 0 ? 0 : moved == 0 ? 1 : 2);
        power *= 3;
        bits |= spops_mask_bit(order->u.large.plane_bit[a][position]);
        tap /= size;
    }
    return bits | spops_mask_bit(order->u.large.direction_bit[direction]);
}

/* A word's rank as a Gray code. */
SPOPS_HD uint32_t spops_mask_rank(uint32_t word)
{
    word ^= word >> 16;
    word ^= word >> 8;
    word ^= word >> 4;
    word ^= word >> 2;
    return word ^ word >> 1;
}

#ifdef __cplusplus
}
#endif

#endif
