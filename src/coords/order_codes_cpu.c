// SPDX-License-Identifier: Apache-2.0
#include "coords/order_codes_cpu.h"

#include <stdbool.h>
#include <string.h>

int spops_order_code_bits(const spops_key_layout *layout, spops_coords_order order)
{
    return order == SPOPS_COORDS_ORDER_HILBERT
               ? layout->bits[0] + layout->dims * layout->max_axis_bits
               : layout->key_bits;
}

// ---- Where the bits of a coordinate go ----------------------------------------------------------

static void fill_spread(spops_order_codes *c)
{
    const spops_key_layout *layout = c->layout;
    const bool cube = c->order == SPOPS_COORDS_ORDER_HILBERT; // all axes have all levels
    uint64_t place = 1;

    memset(c->spread, 0, sizeof c->spread);
    for (int level = 0; level < c->levels; ++level)
        for (int a = layout->dims - 1; a >= 0; --a) {
            if (!cube && level >= layout->bits[a + 1]) continue;
            c->spread[a][level / 8][1 << level % 8] = place;
            place <<= 1;
        }
    for (int a = 0; a < layout->dims; ++a)
        for (int byte = 0; byte < 4; ++byte)
            for (int v = 1; v < 256; ++v)
                c->spread[a][byte][v] =
                    c->spread[a][byte][v & (v - 1)] | c->spread[a][byte][v & -v];
}

// ---- Steps of a Hilbert curve -------------------------------------------------------------------

// What the levels above have done to those below, as Skilling's loops do it: axis a stands for axis
// turn[a], mirrored where flip says so; and whether the bits of the code are inverted.
typedef struct curve_state {
    uint8_t turn[4], flip[4], inverted;
} curve_state;

static int pack_state(const curve_state *s)
{
    int packed = s->inverted;
    for (int a = 0; a < 4; ++a)
        packed = packed << 3 | s->turn[a] << 1 | s->flip[a];
    return packed;
}

// One level: `bits` of the axes, axis 0 highest, to bits of the code; s becomes the next state.
static int step_curve(int dims, int bits, curve_state *s)
{
    uint8_t y[4], before = 0;
    int code = 0;
    for (int a = 0; a < dims; ++a)
        y[a] = (uint8_t)((bits >> (dims - 1 - s->turn[a]) & 1) ^ s->flip[a]);
    for (int a = 0; a < dims; ++a) {
        if (y[a]) {
            s->flip[0] ^= 1;
        } else {
            const uint8_t turn = s->turn[0], flip = s->flip[0];
            s->turn[0] = s->turn[a], s->flip[0] = s->flip[a];
            s->turn[a] = turn, s->flip[a] = flip;
        }
    }
    for (int a = 0; a < dims; ++a) {
        before ^= y[a]; // Gray code
        code = code << 1 | (before ^ s->inverted);
    }
    s->inverted ^= before;
    return code;
}

static void fill_steps(spops_order_codes *c)
{
    const int dims = c->layout->dims;
    curve_state states[SPOPS_CURVE_STATES] = {{{0, 1, 2, 3}, {0, 0, 0, 0}, 0}};
    int num_states = 1;

    memset(c->state_of, 0xff, sizeof c->state_of);
    c->state_of[pack_state(&states[0])] = 0;
    for (int i = 0; i < num_states; ++i)
        for (int bits = 0; bits < 1 << dims; ++bits) {
            curve_state next = states[i];
            const int code = step_curve(dims, bits, &next);
            int16_t *number = &c->state_of[pack_state(&next)];
            if (*number < 0) {
                *number = (int16_t)num_states;
                states[num_states++] = next;
            }
            c->step[i][bits] = (uint16_t)(*number << 4 | code);
        }
}

void spops_order_codes_make(const spops_key_layout *layout, spops_coords_order order,
                            spops_order_codes *codes)
{
    codes->layout = layout;
    codes->order = order;
    codes->levels = layout->max_axis_bits;
    codes->code_bits = spops_order_code_bits(layout, order);
    fill_spread(codes);
    if (order == SPOPS_COORDS_ORDER_HILBERT) fill_steps(codes);
}

// ---- Codes --------------------------------------------------------------------------------------

static uint64_t spread_key(const spops_order_codes *c, uint64_t key)
{
    const spops_key_layout *layout = c->layout;
    uint64_t code = 0;
    for (int a = 0; a < layout->dims; ++a) {
        uint64_t v = key >> layout->shift[a + 1] & (((uint64_t)1 << layout->bits[a + 1]) - 1);
        for (int byte = 0; v > 0; ++byte, v >>= 8)
            code |= c->spread[a][byte][v & 255];
    }
    return code;
}

void spops_order_codes_of(const spops_order_codes *c, int n, const uint64_t *keys, uint64_t *codes)
{
    const spops_key_layout *layout = c->layout;
    const int dims = layout->dims, batch_shift = c->code_bits - layout->bits[0];
    uint64_t bits[SPOPS_CODES_AT_ONCE], turned[SPOPS_CODES_AT_ONCE] = {0};
    uint16_t state[SPOPS_CODES_AT_ONCE] = {0};

    for (int i = 0; i < n; ++i)
        bits[i] = spread_key(c, keys[i]);
    for (int level = c->levels - 1; c->order == SPOPS_COORDS_ORDER_HILBERT && level >= 0; --level)
        for (int i = 0; i < n; ++i) {
            const uint16_t step = c->step[state[i]][bits[i] >> dims * level & ((1u << dims) - 1)];
            state[i] = step >> 4;
            turned[i] = turned[i] << dims | (step & 15);
        }
    for (int i = 0; i < n; ++i) {
        const uint64_t batch = layout->bits[0] > 0 ? keys[i] >> layout->shift[0] : 0;
        const uint64_t code = c->order == SPOPS_COORDS_ORDER_HILBERT ? turned[i] : bits[i];
        codes[i] = layout->bits[0] > 0 ? batch << batch_shift | code : code;
    }
}
