// SPDX-License-Identifier: Apache-2.0
// What the blocks of vvor take: pieces of matrices that were cut, then whole matrices, as the
// schedule of the lists by matrix has them.
#ifndef SPOPS_KERNELS_MVMR_VVOR_UNITS_CUH
#define SPOPS_KERNELS_MVMR_VVOR_UNITS_CUH

#include "segments/lists.h"

namespace spops
{

struct vvor_units {
    const spops_schedule *schedule;
    const spops_work_item *entries, *pieces;
};

inline vvor_units units_of(const spops_lists *lists)
{
    return {lists->schedule, lists->entries, lists->pieces};
}

// Blocks for all of them; more than there are, where the host does not know the counts.
inline int64_t num_units(const spops_lists *lists)
{
    if (lists->counts_on_device) return lists->num_segments + lists->max_pieces;
    return lists->num_segments - lists->host_schedule.num_splits + lists->host_schedule.num_pieces;
}

struct vvor_unit {
    bool there;
    int32_t matrix, begin, count;
    int32_t piece; // -1: a whole matrix
};

__device__ __forceinline__ vvor_unit unit_at(const vvor_units &units, int64_t index)
{
    const int32_t num_pieces = units.schedule->num_pieces;
    const int32_t num_entries = units.schedule->class_begin[SPOPS_NUM_CLASSES];
    const bool is_piece = index < num_pieces;
    vvor_unit unit;
    unit.there = is_piece || index - num_pieces < num_entries;
    unit.matrix = unit.begin = unit.count = 0;
    unit.piece = is_piece ? (int32_t)index : -1;
    if (!unit.there) return unit;
    const spops_work_item entry =
        is_piece ? units.pieces[index] : units.entries[index - num_pieces];
    unit.matrix = entry.segment;
    unit.begin = entry.begin;
    unit.count = entry.count;
    return unit;
}

} // namespace spops

#endif
