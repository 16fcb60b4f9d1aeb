// SPDX-License-Identifier: Apache-2.0
// What levels that are made at once (nested_levels.cu) and the maps within them (nested_within.cu) share: the
// workspace, which the one fills and the other reads.
#ifndef SPOPS_KERNELS_NESTED_LEVELS_CUH
#define SPOPS_KERNELS_NESTED_LEVELS_CUH

#include "kernels/coords/coord_index.cuh"
#include "maps/map_arrays.h"

namespace spops::nest
{

constexpr int tile = 1024; // rows that a block numbers, one a thread
constexpr int most_coarser = SPOPS_NEST_LEVELS - 1;
constexpr int most_taps = SPOPS_NEST_TAPS;

struct nest_workspace {
    hash_table cells[most_coarser];
    uint32_t *slots[most_coarser];
    int32_t *tile_counts[most_coarser];
    int2 *links[most_coarser];
    uint8_t *leads;
    int32_t *found;
    bool exact; // entries hold whole keys
};

// A table of cells, of which there are mostly less than half as many as finest rows, at most so many.
inline hash_table cells_of(int key_bits, int64_t max_rows, spops_carver *c)
{
    uint64_t entries = 64;
    while (entries < (uint64_t)max_rows + (uint64_t)max_rows / 2)
        entries *= 2;
    hash_table t =
        spops::hash_of(spops_carve(c, (int64_t)entries, 1, sizeof(uint64_t)), key_bits, max_rows);
    t.mask = (uint32_t)(entries - 1);
    t.bucket_shift = 64 - (spops::bits_for(entries - 1) - 2);
    return t;
}

inline nest_workspace carve_nest(const spops_nest_args *args, spops_carver *c)
{
    nest_workspace ws = {};
    const int64_t n = args->levels[0]->max_rows;
    ws.exact = true;
    ws.leads = (uint8_t *)spops_carve(c, n, 1, sizeof(uint8_t));
    ws.found = (int32_t *)spops_carve(c, most_coarser, 1, sizeof(int32_t));
    for (int m = 0; m + 1 < args->num_levels; ++m) {
        ws.cells[m] = cells_of(args->levels[m + 1]->layout.key_bits, n, c);
        ws.exact = ws.exact && ws.cells[m].exact;
        ws.slots[m] = (uint32_t *)spops_carve(c, n, 1, sizeof(uint32_t));
        ws.tile_counts[m] = (int32_t *)spops_carve(c, (n + tile - 1) / tile, 1, sizeof(int32_t));
        if (m < args->source && args->within[m] != nullptr)
            ws.links[m] = (int2 *)spops_carve(c, args->levels[m]->max_rows, 1, sizeof(int2));
    }
    return ws;
}

} // namespace spops::nest

#endif
