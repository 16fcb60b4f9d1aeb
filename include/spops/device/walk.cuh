// SPDX-License-Identifier: Apache-2.0
/*
 * How a CUDA grid walks a schedule: which segments a block serves, and which lane group of the
 * block takes which part of a segment's terms. Every segment-by-segment kernel starts here.
 *
 *     block:   groups of `lanes` threads; a group holds one stretch of a row's columns
 *     team:    neighbouring groups that share one segment's terms, in order (schedule.h, classes)
 */
#ifndef SPOPS_DEVICE_WALK_CUH
#define SPOPS_DEVICE_WALK_CUH

#include "spops/device/grid_dependency.cuh"
#include "spops/device/schedule.h"

namespace spops
{

// Blocks come in slots, longest work first: pieces of split segments, then classes BLOCK down to
// SHORT, then empty segments, of which a group writes several.
enum { WALK_PIECES = 0, WALK_EMPTY = 6, WALK_NUM_SLOTS = 7, WALK_EMPTY_PER_GROUP = 4 };

struct walk_params {
    const spops_work_item *entries;
    const spops_work_item *pieces;
    const spops_split_segment *splits;
    const spops_schedule *schedule;         // read by kernels whose counts are not known
    int32_t lanes;                          // threads of a group
    int32_t lanes_inverse;                  // ceil(65536 / lanes): tid / lanes without a division
    int32_t groups;                         // threads / lanes
    uint32_t groups_inverse;                // above 2^32 / groups, for groups > 1
    int32_t slot_begin[WALK_NUM_SLOTS + 1]; // first block of a slot
    int32_t class_begin[SPOPS_NUM_CLASSES + 1];
};

// Segments that a block of class c serves.
__host__ __device__ __forceinline__ int32_t walk_segments_per_block(int32_t groups, int c)
{
    if (c == SPOPS_CLASS_EMPTY) return groups * WALK_EMPTY_PER_GROUP;
    if (c == SPOPS_CLASS_BLOCK || groups >> c <= 1) return 1;
    return groups >> c;
}
__host__ __device__ __forceinline__ int walk_slot_class(int slot)
{
    return slot == WALK_EMPTY ? SPOPS_CLASS_EMPTY : SPOPS_CLASS_BLOCK + 1 - slot;
}

// Slot limits for a schedule: by the host for plans whose counts it knows, else by the kernel.
__host__ __device__ __forceinline__ void walk_fill(walk_params &w, const spops_schedule &s)
{
    int32_t begin = s.num_pieces;
    w.slot_begin[WALK_PIECES] = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int slot = 1; slot < WALK_NUM_SLOTS; ++slot) {
        const int c = walk_slot_class(slot);
        const int32_t segments = s.class_begin[c + 1] - s.class_begin[c];
        const int32_t per_block = walk_segments_per_block(w.groups, c);
        w.slot_begin[slot] = begin;
        begin += (segments + per_block - 1) / per_block;
    }
    w.slot_begin[WALK_NUM_SLOTS] = begin;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int c = 0; c <= SPOPS_NUM_CLASSES; ++c)
        w.class_begin[c] = s.class_begin[c];
}

// Call serve(walk, block) for every block of work that this block of the grid has to do: exactly
// one where the host knew the counts, else the counts are read first and the grid strides over the
// work.
template <bool COUNTS_KNOWN, class Serve>
__device__ __forceinline__ void walk_blocks(const walk_params &given, const Serve &serve)
{
    if constexpr (COUNTS_KNOWN) {
        serve(given, (int32_t)blockIdx.x);
    } else {
        walk_params w = given;
        walk_fill(w, *given.schedule);
        for (int32_t block = (int32_t)blockIdx.x; block < w.slot_begin[WALK_NUM_SLOTS];
             block += (int32_t)gridDim.x)
            serve(w, block);
    }
}

// What one block does next. All threads of a block agree on all of it.
struct walk_task {
    const spops_work_item *first; // of the segments served, or the one piece
    int32_t segments;             // how many
    int32_t piece;                // index of the piece, or -1
    int32_t shift; // teams of 1 << shift groups; WALK_WHOLE_BLOCK: one team of all groups
    bool empty;
};
enum { WALK_WHOLE_BLOCK = 31 };

__device__ __forceinline__ walk_task walk_locate(const walk_params &w, int32_t block)
{
    walk_task task;
    if (block < w.slot_begin[1]) {
        task.first = w.pieces + block;
        task.segments = 1;
        task.piece = block;
        task.shift = WALK_WHOLE_BLOCK;
        task.empty = false;
        return task;
    }
    int32_t slot_begin = w.slot_begin[1], class_begin = w.class_begin[SPOPS_CLASS_BLOCK];
    int32_t class_end = w.class_begin[SPOPS_CLASS_BLOCK + 1];
    int c = SPOPS_CLASS_BLOCK;
#pragma unroll
    for (int slot = 2; slot < WALK_NUM_SLOTS; ++slot) {
        if (block >= w.slot_begin[slot]) {
            c = walk_slot_class(slot);
            slot_begin = w.slot_begin[slot];
            class_begin = w.class_begin[c];
            class_end = w.class_begin[c + 1];
        }
    }
    task.empty = c == SPOPS_CLASS_EMPTY;
    task.shift = c;
    int32_t per_block = w.groups >> c; // 0 where a team needs more groups than there are
    if (task.empty) {
        task.shift = 0;
        per_block = w.groups * WALK_EMPTY_PER_GROUP;
    } else if (c == SPOPS_CLASS_BLOCK || per_block <= 1) {
        task.shift = WALK_WHOLE_BLOCK;
        per_block = 1;
    }
    const int32_t begin = class_begin + (block - slot_begin) * per_block;
    task.first = w.entries + begin;
    task.segments = min(per_block, class_end - begin);
    task.piece = -1;
    return task;
}

// This thread's place in the block.
struct walk_place {
    int32_t group, lane;
};

__device__ __forceinline__ walk_place walk_here(const walk_params &w)
{
    walk_place here;
    here.group = (int32_t)(threadIdx.x * (uint32_t)w.lanes_inverse >> 16);
    here.lane = (int32_t)threadIdx.x - here.group * w.lanes;
    return here;
}

// This group's part of its team's segment: positions begin .. end - 1 of `entry`, in team order.
struct walk_share {
    spops_work_item entry;
    int32_t begin, end;
    int32_t member; // of the team; 0 holds the earliest terms and writes the result
    bool active;    // the group has a segment
};

__device__ __forceinline__ walk_share walk_divide(const walk_params &w, const walk_task &task,
                                                  int32_t group)
{
    walk_share share;
    const int32_t team = group >> task.shift;
    share.member = group - (team << task.shift);
    share.active = team < task.segments && group < w.groups;
    if (!share.active) {
        share.entry.segment = share.entry.begin = share.entry.count = 0;
        share.entry.split = -1;
        share.begin = share.end = 0;
        return share;
    }
    const int4 e = __ldg(reinterpret_cast<const int4 *>(task.first + team));
    share.entry.segment = e.x;
    share.entry.begin = e.y;
    share.entry.count = e.z;
    share.entry.split = e.w;
    // At least count / members, rounded up; a little more does no harm.
    const int32_t part =
        task.shift != WALK_WHOLE_BLOCK
            ? (e.z + (1 << task.shift) - 1) >> task.shift
            : (w.groups == 1 ? e.z : (int32_t)__umulhi((uint32_t)e.z, w.groups_inverse) + 1);
    const int32_t end = e.y + e.z;
    share.begin = min(e.y + share.member * part, end);
    share.end = min(share.begin + part, end);
    return share;
}

} // namespace spops

#endif
