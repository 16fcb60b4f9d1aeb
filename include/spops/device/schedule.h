/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work schedule of a plan's lists, as it lies in the memory of the backend that runs it. Shared
 * by the code that builds schedules and by every kernel that follows them; plain C, NVRTC-clean.
 */
#ifndef SPOPS_DEVICE_SCHEDULE_H
#define SPOPS_DEVICE_SCHEDULE_H

#include "spops/device/common.h"

/*
 * Segments are classed by length. Within a class a CUDA block gives each segment a team of lane
 * groups: class c works with 2^c groups per segment (as many as the block has, for the last class).
 * Segments longer than the schedule's split_terms are cut into pieces (chunks), one block each,
 * whose partial states the block that finishes last combines in order. A counter per split segment,
 * its ticket, says which block that is.
 *
 * A plan's lists by row and by weight have schedules too: there a segment holds the terms of a row,
 * or of a weight.
 */
enum {
    SPOPS_CLASS_SHORT = 0, /* 1 to SPOPS_SHORT_TERMS terms: one group */
    SPOPS_CLASS_TEAM2 = 1, /* up to 2 * SPOPS_SHORT_TERMS */
    SPOPS_CLASS_TEAM4 = 2, /* up to 4 * SPOPS_SHORT_TERMS */
    SPOPS_CLASS_TEAM8 = 3, /* up to 8 * SPOPS_SHORT_TERMS */
    SPOPS_CLASS_BLOCK = 4, /* up to split_terms: all groups of the block */
    SPOPS_CLASS_EMPTY = 5, /* no terms: written, nothing read */
    SPOPS_CLASS_SPLIT = 6, /* longer: lives in pieces and splits, not in entries */
    SPOPS_NUM_CLASSES = 7
};
#define SPOPS_SHORT_TERMS 16

/* What a team or a block works on: a whole segment (split = -1) or a piece of one (split = index
   into splits). */
typedef struct spops_work_item {
    int32_t segment;
    int32_t begin; /* first position */
    int32_t count; /* positions */
    int32_t split;
} spops_work_item;

/* A segment that is cut into pieces first_piece .. first_piece + num_pieces - 1, in order. */
typedef struct spops_split_segment {
    int32_t segment;
    int32_t first_piece;
    int32_t num_pieces;
    int32_t count; /* positions of the segment */
} spops_split_segment;

/* Work items of whole segments, `entries`, are sorted by class; class c is
   entries[class_begin[c]] .. entries[class_begin[c+1]-1]. */
typedef struct spops_schedule {
    int32_t num_terms;                          /* positions in use */
    int32_t class_begin[SPOPS_NUM_CLASSES + 1]; /* the SPLIT class holds no entries */
    int32_t num_pieces;
    int32_t num_splits;
    int32_t split_terms; /* longest piece */
    int32_t num_nonempty;
    int32_t longest;
    int32_t num_dropped; /* keys left out because they name no segment, row or weight */
    int32_t overflow;    /* 1: more terms came than the plan can hold */
} spops_schedule;

#endif
