// SPDX-License-Identifier: Apache-2.0
// What the slots between channels and space are given, and which child of which row a row is, alike on
// both backends. Children have numbers, the last axis fastest.
#ifndef SPOPS_DENSE_CHANNELS_ARGS_H
#define SPOPS_DENSE_CHANNELS_ARGS_H

#include "coords/coord_arrays.h"
#include "spops/dense.h"

// There are channels.
typedef struct spops_channels_args {
    const spops_coords_arrays *coarse, *fine;
    int32_t dims, factor, num_children; // factor^dims
    int64_t num_channels;               // of a fine row
    spops_matrix wide;                  // [max_rows of coarse, num_children * num_channels]
    spops_matrix narrow;                // [max_rows of fine, num_channels], of equal dtype
} spops_channels_args;

// The coarse row (batch, x_0, ..) that a fine one is a child of, and which one.
SPOPS_HD int32_t spops_child_of(int32_t dims, int32_t factor, const int32_t *fine, int32_t *coarse)
{
    int32_t child = 0;
    int a;
    coarse[0] = fine[0];
    for (a = 1; a <= dims; ++a) {
        const int32_t rest = fine[a] % factor, digit = rest < 0 ? rest + factor : rest;
        coarse[a] = fine[a] / factor - (rest < 0);
        child = child * factor + digit;
    }
    return child;
}

// Column a (from 1 on) of child `child` of a row, the last one first: what is left of it is returned.
SPOPS_HD int32_t spops_child_axis(int32_t factor, int32_t child, int32_t x, int64_t *fine)
{
    *fine = (int64_t)factor * x + child % factor;
    return child / factor;
}

#endif
