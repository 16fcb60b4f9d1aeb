// SPDX-License-Identifier: Apache-2.0
// Boxes of coordinates, and the fields of the keys that fit them.
#include <string.h>

#include "coords/coords.h"

static int32_t bits_of(uint64_t most)
{
    int32_t bits = 0;
    while (most >> bits != 0)
        ++bits;
    return bits;
}

spops_status spops_key_layout_make(spops_context *ctx, const char *call, int32_t dims,
                                   const spops_coords_box *box, spops_coords_order order,
                                   spops_key_layout *layout)
{
    int32_t shift = 0, curve;
    memset(layout, 0, sizeof *layout);
    layout->dims = dims;
    for (int c = dims; c >= 0; --c) {
        layout->lower[c] = box->lower[c];
        layout->upper[c] = box->upper[c];
        layout->bits[c] = bits_of((uint64_t)((int64_t)box->upper[c] - box->lower[c]));
        layout->shift[c] = shift;
        shift += layout->bits[c];
        if (c > 0 && layout->bits[c] > layout->max_axis_bits)
            layout->max_axis_bits = layout->bits[c];
    }
    layout->key_bits = shift;
    // Shifts of empty columns must stay below the width of a key, too.
    for (int c = 0; c <= dims; ++c)
        if (layout->bits[c] == 0) layout->shift[c] = 0;
    SPOPS_REQUIRE(ctx, shift <= SPOPS_KEY_BITS,
                  "%s: the box of the coordinates needs keys of %" PRId32 " bits (batch %" PRId32
                  ", axes %" PRId32 " %" PRId32 " %" PRId32 " %" PRId32 "), expected at most %d",
                  call, shift, layout->bits[0], layout->bits[1], layout->bits[2], layout->bits[3],
                  layout->bits[4], SPOPS_KEY_BITS);
    curve = layout->bits[0] + dims * layout->max_axis_bits;
    SPOPS_REQUIRE(ctx, order != SPOPS_COORDS_ORDER_HILBERT || curve <= SPOPS_KEY_BITS,
                  "%s: a Hilbert curve through the box of the coordinates needs %" PRId32
                  " bits (%" PRId32 " axes of %" PRId32 ", batch %" PRId32 "), expected at most %d",
                  call, curve, dims, layout->max_axis_bits, layout->bits[0], SPOPS_KEY_BITS);
    return SPOPS_STATUS_OK;
}

spops_coords_box spops_box_of(const spops_key_layout *layout)
{
    spops_coords_box box;
    memcpy(box.lower, layout->lower, sizeof box.lower);
    memcpy(box.upper, layout->upper, sizeof box.upper);
    return box;
}

spops_coords_box spops_box_union(const spops_key_layout *a, const spops_key_layout *b)
{
    spops_coords_box box = spops_box_of(a);
    for (int c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
        if (b->lower[c] < box.lower[c]) box.lower[c] = b->lower[c];
        if (b->upper[c] > box.upper[c]) box.upper[c] = b->upper[c];
    }
    return box;
}

static int64_t floor_div(int64_t a, int64_t b) // b > 0
{
    return a / b - (a % b < 0);
}

static spops_status set_axis(spops_context *ctx, const char *call, int axis, int64_t lower,
                             int64_t upper, spops_coords_box *box)
{
    if (lower > upper) lower = upper; // there are no outputs at all
    SPOPS_REQUIRE(ctx, lower >= INT32_MIN && upper <= INT32_MAX,
                  "%s: outputs reach from %" PRId64 " to %" PRId64
                  " on axis %d, expected coordinates of 32 bits",
                  call, lower, upper, axis);
    box->lower[axis + 1] = (int32_t)lower;
    box->upper[axis + 1] = (int32_t)upper;
    return SPOPS_STATUS_OK;
}

spops_status spops_box_downsampled(spops_context *ctx, const char *call, const spops_key_layout *in,
                                   const spops_taps *taps, spops_coords_box *box)
{
    *box = spops_box_of(in);
    for (int a = 0; a < in->dims; ++a) {
        const int64_t stride = taps->stride[a];
        const int64_t reach = (int64_t)taps->dilation[a] * (taps->size[a] - 1);
        const int64_t lowest = (int64_t)in->lower[a + 1] + taps->padding[a] - reach;
        const int64_t highest = (int64_t)in->upper[a + 1] + taps->padding[a];
        SPOPS_TRY(set_axis(ctx, call, a, floor_div(lowest + stride - 1, stride),
                           floor_div(highest, stride), box));
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_box_upsampled(spops_context *ctx, const char *call, const spops_key_layout *in,
                                 const spops_taps *taps, spops_coords_box *box)
{
    *box = spops_box_of(in);
    for (int a = 0; a < in->dims; ++a)
        SPOPS_TRY(set_axis(ctx, call, a, spops_tap_fine(taps, a, in->lower[a + 1], 0),
                           spops_tap_fine(taps, a, in->upper[a + 1], taps->size[a] - 1), box));
    return SPOPS_STATUS_OK;
}
