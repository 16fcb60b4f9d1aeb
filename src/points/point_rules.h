// SPDX-License-Identifier: Apache-2.0
// The rules that points are compared by, once, in the common subset of C and CUDA C++: who is whose
// neighbour, at which tap, and in which cell a point lies. f32 throughout, one rounding an operation.
#ifndef SPOPS_POINTS_POINT_RULES_H
#define SPOPS_POINTS_POINT_RULES_H

#include <stdint.h>

#include "coords/coord_keys.h"
#include "core/exact_f64.h"
#include "spops/points.h"

#ifdef __CUDA_ARCH__
#define SPOPS_ADD_F32(a, b) __fadd_rn((a), (b))
#define SPOPS_MUL_F32(a, b) __fmul_rn((a), (b))
#define SPOPS_DIV_F32(a, b) __fdiv_rn((a), (b))
#else /* compiled with -ffp-contract=off */
#define SPOPS_ADD_F32(a, b) ((a) + (b))
#define SPOPS_MUL_F32(a, b) ((a) * (b))
#define SPOPS_DIV_F32(a, b) ((a) / (b))
#endif

// What decides about pairs.
typedef struct spops_pair_rule {
    float radius, radius2;
    int32_t chebyshev;
    int32_t taps; // along an axis
    float tap_size;
} spops_pair_rule;

SPOPS_HD float spops_distance2(float dx, float dy, float dz)
{
    return SPOPS_ADD_F32(SPOPS_ADD_F32(SPOPS_MUL_F32(dx, dx), SPOPS_MUL_F32(dy, dy)),
                         SPOPS_MUL_F32(dz, dz));
}

SPOPS_HD int spops_are_neighbors(const spops_pair_rule *rule, float dx, float dy, float dz)
{
    const float r = rule->radius;
    if (rule->chebyshev) return dx <= r && -dx <= r && dy <= r && -dy <= r && dz <= r && -dz <= r;
    return spops_distance2(dx, dy, dz) <= rule->radius2;
}

// The tap of offset d along one axis (include/spops/points.h). Borders are exact in f32.
SPOPS_HD int32_t spops_axis_tap(int32_t taps, float size, float d)
{
    const float q = SPOPS_DIV_F32(d, size);
    const int32_t half = taps / 2;
    int32_t steps = 0;
    if (taps % 2 == 1) {
        const float distance = q < 0.0f ? -q : q;
        for (int32_t s = 0; s < half; ++s)
            steps += distance >= (float)s + 0.5f;
        return half + (q < 0.0f ? -steps : steps);
    }
    for (int32_t s = 1 - half; s < half; ++s)
        steps += q >= (float)s;
    return steps;
}

// d = input - output.
SPOPS_HD int32_t spops_pair_tap(const spops_pair_rule *rule, float dx, float dy, float dz)
{
    const int32_t t = rule->taps;
    if (t == 1) return 0;
    return (spops_axis_tap(t, rule->tap_size, dx) * t + spops_axis_tap(t, rule->tap_size, dy)) * t +
           spops_axis_tap(t, rule->tap_size, dz);
}

// ---- At most so many neighbours -----------------------------------------------------------------

typedef struct spops_neighbor_cap {
    int32_t most; // of an output; 0: all
    int32_t keep; // spops_neighbors_keep
    uint32_t seed;
} spops_neighbor_cap;

// Neighbours with the lowest ranks stay. No two of an output have the same.
SPOPS_HD uint64_t spops_neighbor_rank(const spops_neighbor_cap *cap, float d2, int32_t out,
                                      int32_t in)
{
    union {
        float f;
        uint32_t bits;
    } first = {d2}; // not negative: bits ascend as it does
    if (cap->keep == SPOPS_NEIGHBORS_KEEP_FIRST) first.bits = 0;
    if (cap->keep == SPOPS_NEIGHBORS_KEEP_RANDOM)
        first.bits = spops_voxel_hash(spops_voxel_hash(cap->seed, (uint32_t)out), (uint32_t)in);
    return (uint64_t)first.bits << 32 | (uint32_t)in;
}

// Whether one more than the n that stay so far, by rank, would not stay.
SPOPS_HD int spops_drops_neighbor(const spops_neighbor_cap *cap, const uint64_t *ranks, int32_t n,
                                  uint64_t rank)
{
    return n == cap->most && rank > ranks[n - 1];
}

// Those that stay of the n so far, by rank, and one more. Returns how many.
SPOPS_HD int32_t spops_keep_neighbor(const spops_neighbor_cap *cap, uint64_t *ranks, uint16_t *taps,
                                     int32_t n, uint64_t rank, int32_t tap)
{
    int32_t place = n;
    if (spops_drops_neighbor(cap, ranks, n, rank)) return n;
    if (n == cap->most) place = --n;
    for (; place > 0 && ranks[place - 1] > rank; --place) {
        ranks[place] = ranks[place - 1];
        taps[place] = taps[place - 1];
    }
    ranks[place] = rank;
    taps[place] = (uint16_t)tap;
    return n + 1;
}

SPOPS_HD int spops_is_finite(float x)
{
    return x - x == 0.0f;
}

// ---- Cells --------------------------------------------------------------------------------------

// Neighbours lie in the same cell or in adjacent ones, along each axis. A key has the sample and the
// cell along x, y and z, z in the lowest bits; `bits` of them an axis. Cells at 1 to 2^bits - 2, so
// that those next to them have keys too.
typedef struct spops_cell_grid {
    double origin[3];
    double size; // of a cell, m
    int32_t bits;
    int32_t reserved;
} spops_cell_grid;

#define SPOPS_CELL_NONE UINT64_MAX // of a point that has no cell: above all others, in any bits

// Bits that an axis may have beside those of the sample. 2^16 cells along an axis are enough for a
// radius of 1.5 cm in a cloud of 1 km, and leave a sort less to do.
SPOPS_HD int32_t spops_cell_bits(int32_t sample_bits)
{
    const int32_t bits = (63 - sample_bits) / 3;
    return bits < 16 ? bits : 16;
}

// A cell is wider than the radius by more than rounding, which below 1e-20 m, where d * d is
// subnormal, may be as much as the radius itself. And it is so wide that the extent of all points
// fits into the bits.
SPOPS_HD double spops_cell_size(float radius, double extent, int32_t bits)
{
    const double least = 1e-18;
    double size = SPOPS_MUL_F64((double)radius, 1.0 + 1e-5);
    const double fitting = extent / (double)((INT64_C(1) << bits) - 4);
    if (size < fitting) size = fitting;
    return size < least ? least : size;
}

SPOPS_HD uint64_t spops_cell_key(const spops_cell_grid *grid, int32_t sample, float x, float y,
                                 float z)
{
    const double p[3] = {x, y, z};
    const int64_t last = (INT64_C(1) << grid->bits) - 2;
    uint64_t key = (uint64_t)sample;
    for (int a = 0; a < 3; ++a) {
        // Not below the origin, and clamped above: order is kept, so adjacency is too.
        const double u = (p[a] - grid->origin[a]) / grid->size;
        int64_t cell = u < (double)last ? 1 + (int64_t)(u < 0.0 ? 0.0 : u) : last;
        if (cell > last) cell = last;
        key = key << grid->bits | (uint64_t)cell;
    }
    return key;
}

// The same key with the bits of the three axes in turn: points that are near each other in space are
// near each other along the Z-order curve.
SPOPS_HD uint64_t spops_morton_key(uint64_t key, int32_t bits)
{
    uint64_t morton = key >> 3 * bits;
    for (int32_t b = bits - 1; b >= 0; --b)
        morton = morton << 3 | (key >> (2 * bits + b) & 1) << 2 | (key >> (bits + b) & 1) << 1 |
                 (key >> b & 1);
    return morton;
}

// The sample of row r: offsets ascend, offsets[0] <= r < offsets[num].
SPOPS_HD int32_t spops_sample_of(const int32_t *offsets, int32_t num, int64_t r)
{
    int32_t low = 0, high = num; // offsets[low] <= r < offsets[high]
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (offsets[middle] <= r)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
