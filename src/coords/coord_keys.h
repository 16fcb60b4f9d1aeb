// SPDX-License-Identifier: Apache-2.0
/*
 * Coordinates as keys, and the small pieces of arithmetic that the CPU and the GPU must do alike:
 * packing, the order of rows, the voxel of a point, taps, and the order of tap masks. Plain C,
 * shared by both backends; f64 with one rounding per operation.
 */
#ifndef SPOPS_COORDS_COORD_KEYS_H
#define SPOPS_COORDS_COORD_KEYS_H

#include "core/exact_f64.h"

#define SPOPS_KEY_COLUMNS 5                     /* batch and at most 4 axes */
#define SPOPS_KEY_BITS    63                    /* of a packed row, at most */
#define SPOPS_KEY_NONE    0xffffffffffffffffULL /* no row has this key */

/*
 * A row (batch, x_0, ..) packed into a key: column c minus lower[c], shifted by shift[c]. The batch
 * is on top and the last axis lowest, so that keys ascend in lexicographic order. Columns after
 * the last axis have lower = upper = 0 and no bits.
 */
typedef struct spops_key_layout {
    int32_t dims;
    int32_t key_bits;                 /* of a packed row */
    int32_t lower[SPOPS_KEY_COLUMNS]; /* the box, inclusive */
    int32_t upper[SPOPS_KEY_COLUMNS];
    int32_t bits[SPOPS_KEY_COLUMNS];
    int32_t shift[SPOPS_KEY_COLUMNS];
    int32_t max_axis_bits; /* the widest axis, without the batch */
    int32_t reserved;
} spops_key_layout;

/* Whether column c may hold v. */
SPOPS_HD int spops_key_fits(const spops_key_layout *layout, int c, int64_t v)
{
    return v >= layout->lower[c] && v <= layout->upper[c];
}

/* Column c's part of a key; v is in the box. */
SPOPS_HD uint64_t spops_key_column(const spops_key_layout *layout, int c, int64_t v)
{
    return (uint64_t)(v - layout->lower[c]) << layout->shift[c];
}

/* Key of a row [1 + dims], or SPOPS_KEY_NONE if it lies outside the box. */
SPOPS_HD uint64_t spops_key_pack(const spops_key_layout *layout, const int32_t *row)
{
    uint64_t key = 0;
    int c;
    for (c = 0; c <= layout->dims; ++c) {
        if (!spops_key_fits(layout, c, row[c])) return SPOPS_KEY_NONE;
        key |= spops_key_column(layout, c, row[c]);
    }
    return key;
}

/* Column c of a key. */
SPOPS_HD int32_t spops_key_unpack(const spops_key_layout *layout, uint64_t key, int c)
{
    const uint64_t mask = ((uint64_t)1 << layout->bits[c]) - 1;
    return (int32_t)((int64_t)(key >> layout->shift[c] & mask) + layout->lower[c]);
}

/*
 * Where a key stands on the Z-order curve, batch on top: from the highest level down, one bit of
 * each axis that is wide enough, axis 0 first. As many bits as the key.
 */
SPOPS_HD uint64_t spops_key_morton(const spops_key_layout *layout, uint64_t key)
{
    uint64_t code = layout->bits[0] > 0 ? key >> layout->shift[0] : 0;
    int level, a;
    for (level = layout->max_axis_bits - 1; level >= 0; --level)
        for (a = 1; a <= layout->dims; ++a)
            if (level < layout->bits[a]) code = code << 1 | (key >> (layout->shift[a] + level) & 1);
    return code;
}

/*
 * Where a key stands on the Hilbert curve through a cube of max_axis_bits levels, batch on top:
 * bits[0] + dims * max_axis_bits bits. Skilling, Programming the Hilbert curve, AIP Conference
 * Proceedings 707 (2004): axes are turned in place into the transposed index, level by level.
 */
SPOPS_HD uint64_t spops_key_hilbert(const spops_key_layout *layout, uint64_t key)
{
    uint32_t x[SPOPS_KEY_COLUMNS - 1] = {0, 0, 0, 0};
    uint64_t code = layout->bits[0] > 0 ? key >> layout->shift[0] : 0;
    const int n = layout->dims, levels = layout->max_axis_bits;
    uint32_t q, t;
    int a, level;
    if (levels == 0) return code;
    for (a = 0; a < n; ++a)
        x[a] = (uint32_t)(spops_key_unpack(layout, key, a + 1) - (int64_t)layout->lower[a + 1]);
    for (q = (uint32_t)1 << (levels - 1); q > 1; q >>= 1) { /* undo the turns of each level */
        for (a = 0; a < n; ++a) {
            if (x[a] & q) {
                x[0] ^= q - 1;
            } else {
                t = (x[0] ^ x[a]) & (q - 1);
                x[0] ^= t;
                x[a] ^= t;
            }
        }
    }
    for (a = 1; a < n; ++a) /* Gray code */
        x[a] ^= x[a - 1];
    t = 0;
    for (q = (uint32_t)1 << (levels - 1); q > 1; q >>= 1)
        if (x[n - 1] & q) t ^= q - 1;
    for (a = 0; a < n; ++a)
        x[a] ^= t;
    for (level = levels - 1; level >= 0; --level)
        for (a = 0; a < n; ++a)
            code = code << 1 | (x[a] >> level & 1);
    return code;
}

/* The voxel of p along one axis, or of its lower neighbour's centre where shift is 0.5. */
SPOPS_HD double spops_voxel_position(float p, double origin, double size, double shift)
{
    const double moved = SPOPS_ADD_F64((double)p, -origin);
    return SPOPS_ADD_F64(moved / size, -shift);
}

/* floor(u) as a coordinate; 0 if it is not finite or no int32. */
SPOPS_HD int spops_voxel_floor(double u, int32_t *coordinate)
{
    if (!(u >= -2147483648.0 && u < 2147483648.0)) return 0;
    *coordinate = (int32_t)u;
    if ((double)*coordinate > u) *coordinate -= 1; /* the conversion goes towards 0 */
    return 1;
}

/* Square of p's distance from its voxel's centre along one axis, where u = spops_voxel_position. */
SPOPS_HD double spops_voxel_distance2(double u, int32_t coordinate, double size)
{
    const double from_centre =
        SPOPS_MUL_F64(SPOPS_ADD_F64(SPOPS_ADD_F64(u, -(double)coordinate), -0.5), size);
    return SPOPS_MUL_F64(from_centre, from_centre);
}

/* What RANDOM draws for point i. */
SPOPS_HD uint32_t spops_voxel_hash(uint32_t seed, uint32_t i)
{
    uint32_t h = i * 0x9e3779b9u ^ (seed + 0x7f4a7c15u) * 0x85ebca6bu;
    h = (h ^ h >> 16) * 0x21f0aaadu;
    h = (h ^ h >> 15) * 0x735a2d97u;
    return h ^ h >> 15;
}

/* What a kernel does along its axes, checked; axes after dims have size 1 and stride 1. */
typedef struct spops_taps {
    int32_t dims;
    int32_t num_taps;
    int32_t size[SPOPS_KEY_COLUMNS - 1];
    int32_t stride[SPOPS_KEY_COLUMNS - 1];
    int32_t padding[SPOPS_KEY_COLUMNS - 1];
    int32_t dilation[SPOPS_KEY_COLUMNS - 1];
} spops_taps;

/* From the coarse side to the fine one: stride * q - padding + dilation * t. */
SPOPS_HD int64_t spops_tap_fine(const spops_taps *taps, int axis, int64_t coarse, int32_t t)
{
    return taps->stride[axis] * coarse - taps->padding[axis] + (int64_t)taps->dilation[axis] * t;
}

/* From the fine side to the coarse one; 0 if the stride does not divide. */
SPOPS_HD int spops_tap_coarse(const spops_taps *taps, int axis, int64_t fine, int32_t t,
                              int64_t *coarse)
{
    const int64_t u = fine + taps->padding[axis] - (int64_t)taps->dilation[axis] * t;
    *coarse = u / taps->stride[axis];
    return *coarse * taps->stride[axis] == u;
}

#endif
