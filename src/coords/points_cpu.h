// SPDX-License-Identifier: Apache-2.0
// Points of a source on the CPU.
#ifndef SPOPS_COORDS_POINTS_CPU_H
#define SPOPS_COORDS_POINTS_CPU_H

#include "coords/coord_arrays.h"
#include "core/half.h"

// Point i along its axes: where it lies, or in `wide` where elements are half as wide.
static inline const float *spops_point_of(const spops_coords_source *source, int64_t i,
                                          float wide[SPOPS_MAX_DIMS])
{
    const int64_t at = i * source->points.row_stride;
    if (source->points.dtype == SPOPS_DTYPE_F32) return (const float *)source->points.data + at;
    for (int a = 0; a < source->dims; ++a)
        wide[a] = spops_float_of_f16(((const uint16_t *)source->points.data)[at + a]);
    return wide;
}

#endif
