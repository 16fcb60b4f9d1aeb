// SPDX-License-Identifier: Apache-2.0
// The search for a point's nearest neighbours, once, in the common subset of C and CUDA C++: down
// the boxes, nearest first, leaving out those that cannot hold a closer point. Rounding is monotone,
// so the distance from a box in f32 is never more than that from a point in it, and nothing is missed.
#ifndef SPOPS_POINTS_NEAREST_WALK_H
#define SPOPS_POINTS_NEAREST_WALK_H

#include <math.h>

#include "points/neighbors.h"

// How far q is from the box along one axis.
SPOPS_HD float spops_axis_gap(float lower, float upper, float q)
{
    const float below = SPOPS_ADD_F32(lower, -q), above = SPOPS_ADD_F32(q, -upper);
    const float gap = below > above ? below : above;
    return gap > 0.0f ? gap : 0.0f;
}

// Whether a point at distance d comes before the one at place n.
SPOPS_HD int spops_is_nearer(float d, int32_t row, const int32_t *rows, const float *distances,
                             int32_t n)
{
    return d < distances[n] || (d == distances[n] && row < rows[n]);
}

// The count nearest to q among those of its sample, sorted; INT32_MAX at infinity where there are
// fewer.
SPOPS_HD void spops_find_nearest(const spops_nearest_arrays *a, const float *q, int32_t sample,
                                 int32_t count, int32_t *rows, float *distances)
{
    uint32_t stack[SPOPS_NEAREST_LEVELS * SPOPS_NEAREST_FANOUT]; // level above 28 bits of number
    float gaps[SPOPS_NEAREST_LEVELS * SPOPS_NEAREST_FANOUT];
    int32_t top = 0;

    for (int32_t n = 0; n < count; ++n) {
        rows[n] = INT32_MAX;
        distances[n] = INFINITY;
    }
    if (a->num_levels == 0) return;
    stack[top] = (uint32_t)a->num_levels << 28; // one above the highest: it has all of that
    gaps[top++] = 0.0f;
    while (top > 0) {
        const int32_t level = (int32_t)(stack[--top] >> 28);
        const int64_t box = stack[top] & 0x0fffffffu;
        if (gaps[top] > distances[count - 1]) continue;
        if (level == 0) {
            const int64_t begin = box * SPOPS_NEAREST_LEAF;
            int64_t end = begin + SPOPS_NEAREST_LEAF;
            if (end > a->num_points) end = a->num_points;
            for (int64_t i = begin; i < end; ++i) {
                const spops_nearest_point p = a->points[i];
                const float d =
                    spops_distance2(SPOPS_ADD_F32(p.p[0], -q[0]), SPOPS_ADD_F32(p.p[1], -q[1]),
                                    SPOPS_ADD_F32(p.p[2], -q[2]));
                int32_t n = count - 1;
                if (a->samples[i] != sample) continue;
                if (!spops_is_nearer(d, p.row, rows, distances, n)) continue;
                for (; n > 0 && spops_is_nearer(d, p.row, rows, distances, n - 1); --n) {
                    rows[n] = rows[n - 1];
                    distances[n] = distances[n - 1];
                }
                rows[n] = p.row;
                distances[n] = d;
            }
            continue;
        }
        {
            const int64_t first = box * SPOPS_NEAREST_FANOUT;
            const int64_t number = a->level_begin[level] - a->level_begin[level - 1];
            const int32_t bottom = top;
            for (int64_t c = first; c < first + SPOPS_NEAREST_FANOUT && c < number; ++c) {
                const spops_nearest_box *b = &a->boxes[a->level_begin[level - 1] + c];
                float gap;
                int32_t at = top;
                if (sample < b->samples[0] || sample > b->samples[1]) continue;
                gap = spops_distance2(spops_axis_gap(b->lower[0], b->upper[0], q[0]),
                                      spops_axis_gap(b->lower[1], b->upper[1], q[1]),
                                      spops_axis_gap(b->lower[2], b->upper[2], q[2]));
                if (gap > distances[count - 1]) continue;
                for (; at > bottom && gaps[at - 1] < gap; --at) { // nearest on top
                    stack[at] = stack[at - 1];
                    gaps[at] = gaps[at - 1];
                }
                stack[at] = (uint32_t)(level - 1) << 28 | (uint32_t)c;
                gaps[at] = gap;
                ++top;
            }
        }
    }
}

#endif
