// SPDX-License-Identifier: Apache-2.0
// Which group of taps has which bit in the order of rows by their masks (mask_order.h).
#include <stdbool.h>
#include <string.h>

#include "maps/mask_order.h"

enum { AXES = SPOPS_KEY_COLUMNS - 1, NO_BIT = 255, FEW_TAPS = 9 };

// Groups in the order in which they get their bits; by number, since the highest bit is known last.
typedef struct group_list {
    int32_t num, most;
    uint8_t plane[AXES][SPOPS_MAX_KERNEL_SIZE]; // number of its group, or NO_BIT
    uint8_t unit[SPOPS_MASK_ORDER_DIRECTIONS];
} group_list;

// Twice the distance of a position from the middle of its axis, with its sign.
static int32_t moved(const spops_taps *taps, int axis, int32_t position)
{
    return 2 * position - (taps->size[axis] - 1);
}

static bool is_single(const spops_taps *taps)
{
    return taps->num_taps <= SPOPS_MASK_ORDER_SINGLE_TAPS;
}

// ---- Planes -------------------------------------------------------------------------------------

typedef enum plane_kind { MIDDLE, OUTERMOST, INNER } plane_kind;

static plane_kind kind_of(const spops_taps *taps, int axis, int32_t position)
{
    if (moved(taps, axis, position) == 0) return MIDDLE;
    return position == 0 || position == taps->size[axis] - 1 ? OUTERMOST : INNER;
}

static void put_planes(const spops_taps *taps, plane_kind kind, group_list *g)
{
    for (int32_t t = 0; t < SPOPS_MAX_KERNEL_SIZE; ++t)
        for (int a = 0; a < AXES; ++a)
            if (taps->size[a] > 1 && t < taps->size[a] && kind_of(taps, a, t) == kind)
                g->plane[a][t] = (uint8_t)g->num++;
}

static int32_t count_planes(const spops_taps *taps, plane_kind kind)
{
    group_list g;
    memset(&g, 0, sizeof g);
    put_planes(taps, kind, &g);
    return g.num;
}

// ---- Units --------------------------------------------------------------------------------------

// Taps, or directions in base 3. `far` says how far each is from the centre; -1: there is no such
// direction, or it is the middle tap of a symmetric map.
typedef struct unit_list {
    int32_t num, first_far, far[SPOPS_MASK_ORDER_DIRECTIONS];
} unit_list;

static int32_t far_of_tap(const spops_taps *taps, int32_t tap)
{
    int32_t far = 0;
    for (int a = AXES - 1; a >= 0; --a) {
        const int32_t m = moved(taps, a, tap % taps->size[a]);
        far += m < 0 ? -m : m;
        tap /= taps->size[a];
    }
    return far;
}

static int32_t far_of_direction(const spops_taps *taps, int32_t direction)
{
    int32_t far = 0;
    for (int a = AXES - 1; a >= 0; --a) {
        const int32_t sign = direction % 3 - 1;
        if (sign == 0 ? taps->size[a] % 2 == 0 : taps->size[a] == 1) return -1;
        far += sign != 0;
        direction /= 3;
    }
    return far;
}

static unit_list list_units(const spops_taps *taps, bool symmetric)
{
    unit_list u = {is_single(taps) ? taps->num_taps : SPOPS_MASK_ORDER_DIRECTIONS, 0, {0}};
    for (int32_t i = 0; i < u.num; ++i) {
        u.far[i] = is_single(taps) ? far_of_tap(taps, i) : far_of_direction(taps, i);
        if (symmetric && u.far[i] == 0) u.far[i] = -1;
        if (u.far[i] > u.first_far) u.first_far = u.far[i];
    }
    return u;
}

static int32_t count_units(const unit_list *u, bool pairs)
{
    int32_t n = 0;
    for (int32_t i = 0; i < u->num; ++i)
        n += u->far[i] >= 0 && !(pairs && u->far[i] == u->first_far && i > u->num - 1 - i);
    return n;
}

// The farthest first, ties by number. The opposite of unit i is unit num - 1 - i.
static void put_units(const unit_list *u, group_list *g)
{
    const int32_t left = g->most - g->num;
    const bool pairs = count_units(u, false) > left;
    const int32_t n = count_units(u, pairs);
    int32_t i = 0;
    for (int32_t far = u->first_far; far >= 0; --far)
        for (int32_t k = 0; k < u->num; ++k) {
            int32_t place = i;
            if (u->far[k] != far) continue;
            if (pairs && far == u->first_far && k > u->num - 1 - k) {
                g->unit[k] = g->unit[u->num - 1 - k];
                continue;
            }
            ++i;
            if (n > 2 * left)
                place = place * left / n; // too many to leave the last ones out
            else if (place >= left)
                continue;
            g->unit[k] = (uint8_t)(g->num + place);
        }
    g->num += n < left ? n : left;
}

// ---- Order --------------------------------------------------------------------------------------

static group_list list_groups(const spops_taps *taps, bool symmetric, bool brief)
{
    const int32_t counted =
        taps->num_taps < SPOPS_MASK_ORDER_BITS ? taps->num_taps : SPOPS_MASK_ORDER_BITS;
    const unit_list u = list_units(taps, symmetric);
    int32_t planes, axes = 0;
    group_list g;
    memset(&g, NO_BIT, sizeof g);
    g.num = 0;
    g.most = (counted + FEW_TAPS - 1) / FEW_TAPS * FEW_TAPS; // no more passes than for single taps
    for (int a = 0; a < AXES; ++a)
        axes += taps->size[a] > 1;
    if (taps->num_taps > FEW_TAPS && axes > 1) {
        if (!symmetric) put_planes(taps, MIDDLE, &g);
        put_planes(taps, OUTERMOST, &g);
        planes = g.num + count_planes(taps, INNER);
        if (is_single(taps) || planes + count_units(&u, false) <= g.most)
            put_planes(taps, INNER, &g);
    }
    if (!brief || g.num == 0) put_units(&u, &g);
    return g;
}

static uint8_t bit_of(const group_list *g, uint8_t group)
{
    return group == NO_BIT ? NO_BIT : (uint8_t)(g->num - 1 - group);
}

spops_mask_order spops_mask_order_of(const spops_taps *taps, bool symmetric, bool brief)
{
    const group_list g = list_groups(taps, symmetric, brief);
    spops_mask_order order;

    memset(&order, 0, sizeof order);
    order.num_bits = g.num > 0 ? g.num : 1; // one tap: nothing to order by
    order.num_taps = taps->num_taps;
    if (is_single(taps)) {
        for (int32_t k = 0; k < taps->num_taps; ++k) {
            int32_t rest = k;
            order.u.tap_bits[k] = spops_mask_bit(bit_of(&g, g.unit[k]));
            for (int a = AXES - 1; a >= 0; --a) {
                const uint8_t plane = g.plane[a][rest % taps->size[a]];
                order.u.tap_bits[k] |= spops_mask_bit(bit_of(&g, plane));
                rest /= taps->size[a];
            }
        }
        return order;
    }
    for (int a = 0; a < AXES; ++a) {
        order.u.large.size[a] = (uint8_t)taps->size[a];
        for (int32_t t = 0; t < SPOPS_MAX_KERNEL_SIZE; ++t)
            order.u.large.plane_bit[a][t] = bit_of(&g, g.plane[a][t]);
    }
    for (int i = 0; i < SPOPS_MASK_ORDER_DIRECTIONS; ++i)
        order.u.large.direction_bit[i] = bit_of(&g, g.unit[i]);
    return order;
}
