// SPDX-License-Identifier: Apache-2.0
// Maps within levels that were made at once: what a launch is given, and ways. A way leads from a row to a
// neighbour: the tap of the neighbour's cell in the source's level, above the taps of the maps down from
// there, place_bits each.
#ifndef SPOPS_KERNELS_NESTED_WITHIN_CUH
#define SPOPS_KERNELS_NESTED_WITHIN_CUH

#include "kernels/maps/nested_levels.cuh"

namespace spops::nest
{

// A level with a map within.
struct within_level {
    coord_index index;
    spops_taps taps;
    const int32_t *rows, *num_rows;
    const int2 *links;
    int32_t *table;
    uint32_t *masks;
    int32_t *tap_counts;
    spops_map_state *state;
    int32_t table_stride, mask_words, level, num_children; // of a cell of the next level
};

// Levels of one launch, each with blocks of its own.
struct within_params {
    within_level job[most_coarser];
    int32_t first_block[most_coarser + 1]; // of a job; [num]: of all
    int32_t num, source;
    spops_taps coarse; // of the source
    const int32_t *coarse_table;
    int32_t coarse_stride;
    // Of the maps down, by their finer level, as the stride of their windows.
    int32_t down_stride[most_coarser];
    const int32_t *down_table[most_coarser];
    const int32_t *overflow[most_coarser]; // not 0: rows of the coarser level are missing
    uint8_t stride[most_coarser][SPOPS_MAX_DIMS];
};

static_assert(sizeof(within_params) <= 4096, "parameters of a kernel");

constexpr int place_bits = 6, cell_shift = place_bits * most_coarser;
static_assert(most_taps <= 1 << place_bits, "a place in a cell of each level, then a tap");

// Rows of a level along axis a of a cell of the source's.
__host__ __device__ inline int32_t extent_of(const within_params &p, const within_level &l, int a)
{
    int32_t extent = 1;
    for (int m = l.level; m < p.source; ++m)
        extent *= p.stride[m][a];
    return extent;
}

} // namespace spops::nest

#endif
