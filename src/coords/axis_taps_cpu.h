// SPDX-License-Identifier: Apache-2.0
// What a kernel's taps do to a coordinate along one axis, with the divisions done beforehand. A
// target is named by an id: a sum over columns of (coordinate - lower) * scale, which is the packed
// key of the target's set, or the cell of its grid.
#ifndef SPOPS_COORDS_AXIS_TAPS_CPU_H
#define SPOPS_COORDS_AXIS_TAPS_CPU_H

#include "coords/coord_arrays.h"

typedef struct spops_axis_taps {
    int32_t size;
    int64_t stride, padding, dilation;
    // -dilation * t = quotient * stride + remainder, 0 <= remainder < stride
    int64_t quotient[SPOPS_MAX_KERNEL_SIZE], remainder[SPOPS_MAX_KERNEL_SIZE];
    bool to_coarse;
    // The target's column
    int64_t lower, upper;
    uint64_t scale;
} spops_axis_taps;

// Targets of one coordinate, by ascending tap.
typedef struct spops_axis_targets {
    int count;
    int32_t tap[SPOPS_MAX_KERNEL_SIZE];
    uint64_t id[SPOPS_MAX_KERNEL_SIZE];
} spops_axis_targets;

static inline spops_axis_taps spops_axis_taps_make(const spops_taps *taps, int axis, bool to_coarse,
                                                   const spops_key_layout *target, uint64_t scale)
{
    spops_axis_taps a;
    a.size = taps->size[axis];
    a.stride = taps->stride[axis];
    a.padding = taps->padding[axis];
    a.dilation = taps->dilation[axis];
    for (int t = 0; t < a.size; ++t) {
        const int64_t moved = -a.dilation * t;
        a.quotient[t] = moved / a.stride - (moved % a.stride < 0);
        a.remainder[t] = moved - a.quotient[t] * a.stride;
    }
    a.to_coarse = to_coarse;
    a.lower = target->lower[axis + 1];
    a.upper = target->upper[axis + 1];
    a.scale = scale;
    return a;
}

static inline void spops_axis_add(const spops_axis_taps *a, int64_t v, int32_t tap,
                                  spops_axis_targets *targets)
{
    if (v < a->lower || v > a->upper) return;
    targets->tap[targets->count] = tap;
    targets->id[targets->count++] = (uint64_t)(v - a->lower) * a->scale;
}

static inline void spops_axis_find(const spops_axis_taps *a, int32_t x, spops_axis_targets *targets)
{
    targets->count = 0;
    if (!a->to_coarse) {
        const int64_t first = a->stride * x - a->padding;
        for (int32_t t = 0; t < a->size; ++t)
            spops_axis_add(a, first + a->dilation * t, t, targets);
    } else if (a->stride == 1) {
        const int64_t first = x + a->padding;
        for (int32_t t = 0; t < a->size; ++t)
            spops_axis_add(a, first - a->dilation * t, t, targets);
    } else {
        const int64_t u = x + a->padding;
        const int64_t q = u / a->stride - (u % a->stride < 0), r = u - q * a->stride;
        for (int32_t t = 0; t < a->size; ++t) {
            const int64_t rest = r + a->remainder[t];
            if (rest == 0)
                spops_axis_add(a, q + a->quotient[t], t, targets);
            else if (rest == a->stride)
                spops_axis_add(a, q + a->quotient[t] + 1, t, targets);
        }
    }
}

#endif
