// SPDX-License-Identifier: Apache-2.0
// The memory of schedules, for the plans that hold them.
#ifndef SPOPS_IGEMM_IGEMM_PLAN_H
#define SPOPS_IGEMM_IGEMM_PLAN_H

#include "core/memory.h"
#include "igemm/igemm_args.h"

// Tiles of so many rows.
static inline int64_t spops_igemm_tiles_of(int64_t max_rows)
{
    return (max_rows + SPOPS_IGEMM_TILE_ROWS - 1) / SPOPS_IGEMM_TILE_ROWS;
}

// Arrays that tiles have, and those that records have, of a schedule whose capacities are set.
void spops_igemm_carve_tiles(spops_igemm_schedule *s, spops_carver *c);
void spops_igemm_carve_pairs(spops_igemm_schedule *s, spops_carver *c);
void spops_igemm_carve_records(spops_igemm_schedule *s, spops_carver *c);

#endif
