// SPDX-License-Identifier: Apache-2.0
#include "coords/voxel_isa.h"

#include <string.h>

#include "core/half.h"

// Eight at a time, whatever the registers hold; conversions are not vectorised otherwise, as they may
// raise exceptions.
#define LANES 8
typedef double f64s __attribute__((vector_size(8 * LANES)));
typedef int64_t i64s __attribute__((vector_size(8 * LANES)));
typedef int32_t i32s __attribute__((vector_size(4 * LANES)));

// spops_voxel_floor of the spops_voxel_position of LANES coordinates u; outside is -1 where there is
// none, and else as it was.
static inline void floor_lanes(const double *u, double origin, double size, int32_t *to,
                               int32_t *outside)
{
    f64s at, safe;
    i64s inside;
    i32s floor, out;
    memcpy(&at, u, sizeof at);
    memcpy(&out, outside, sizeof out);
    at = (at - origin) / size;
    inside = (at >= -2147483648.0) & (at < 2147483648.0);
    safe = (f64s)((i64s)at & inside);
    floor = __builtin_convertvector(safe, i32s); // towards 0
    floor += __builtin_convertvector(__builtin_convertvector(floor, f64s) > safe, i32s);
    out |= ~__builtin_convertvector(inside, i32s);
    memcpy(to, &floor, sizeof floor);
    memcpy(outside, &out, sizeof out);
}

static uint64_t find(const spops_coords_source *source, int64_t i, int n, spops_voxel_block block)
{
    const int64_t stride = source->points.row_stride;
    const void *points = source->points.data;
    const bool wide = source->points.dtype == SPOPS_DTYPE_F32;
    int32_t outside[SPOPS_VOXEL_BLOCK] = {0}, any = 0;
    uint64_t none = 0;

    for (int p = 0; p < n; ++p)
        block[0][p] = source->batch != NULL ? source->batch[i + p] : 0;
    for (int a = 0; a < source->dims; ++a) {
        const double origin = source->origin[a], size = source->size[a];
        _Alignas(64) double u[SPOPS_VOXEL_BLOCK] = {0};
        for (int p = 0; p < n; ++p) {
            const int64_t at = (i + p) * stride + a;
            u[p] = wide ? ((const float *)points)[at]
                        : spops_float_of_f16(((const uint16_t *)points)[at]);
        }
        for (int p = 0; p < n; p += LANES)
            floor_lanes(u + p, origin, size, block[a + 1] + p, outside + p);
    }
    for (int p = 0; p < n; ++p) {
        outside[p] |= block[0][p] < 0;
        any |= outside[p];
    }
    for (int p = 0; any && p < n; ++p)
        none |= (uint64_t)(outside[p] != 0) << p;
    return none;
}

static void bounds(int n, int columns, const spops_voxel_block block, int32_t *lower,
                   int32_t *upper)
{
    for (int c = 0; c < columns; ++c) {
        int32_t least = INT32_MAX, most = INT32_MIN;
#pragma omp simd reduction(min : least) reduction(max : most)
        for (int p = 0; p < n; ++p) {
            const int32_t v = block[c][p];
            least = v < least ? v : least;
            most = v > most ? v : most;
        }
        lower[c] = least;
        upper[c] = most;
    }
}

static void pack(const spops_key_layout *layout, int n, const spops_voxel_block block,
                 uint64_t *keys)
{
    int32_t outside[SPOPS_VOXEL_BLOCK] = {0}, any = 0;
    for (int p = 0; p < n; ++p)
        keys[p] = 0;
    for (int c = 0; c <= layout->dims; ++c) {
        const int32_t lower = layout->lower[c], upper = layout->upper[c];
        const int shift = layout->shift[c];
#pragma omp simd reduction(| : any)
        for (int p = 0; p < n; ++p) {
            const int32_t v = block[c][p];
            outside[p] |= v < lower || v > upper;
            any |= outside[p];
            keys[p] |= (uint64_t)((uint32_t)v - (uint32_t)lower) << shift;
        }
    }
    for (int p = 0; any && p < n; ++p)
        if (outside[p]) keys[p] = SPOPS_KEY_NONE;
}

const spops_voxel_table SPOPS_ISA_TABLE(spops_voxel_table) = {find, bounds, pack};
