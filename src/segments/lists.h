// SPDX-License-Identifier: Apache-2.0
// The relation every core pattern walks: segments, each with a list of terms, and the schedule that
// divides the walk. Forward, by row and by weight are three lists of one relation; a segment of the
// second is the terms of a row, of the third those of a weight.
#ifndef SPOPS_SEGMENTS_LISTS_H
#define SPOPS_SEGMENTS_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/memory.h"
#include "spops/device/schedule.h"
#include "spops/segments.h"

// The variant (kernels/segreduce/segreduce_tuning.h) of a sum over rows of f32, f16 and bf16, by
// their chunks of 16 bytes, one to SPOPS_SUM_CHUNKS or more; 0: there is no choice.
#define SPOPS_SUM_DTYPES 3
#define SPOPS_SUM_CHUNKS 64
typedef struct spops_sum_choice {
    uint8_t variant[SPOPS_SUM_DTYPES][SPOPS_SUM_CHUNKS];
} spops_sum_choice;

static inline int32_t spops_sum_variant(const spops_sum_choice *choice, spops_dtype dtype,
                                        int64_t chunks)
{
    const int64_t most = chunks < SPOPS_SUM_CHUNKS ? chunks : SPOPS_SUM_CHUNKS;
    return most < 1 ? 0 : choice->variant[dtype - SPOPS_DTYPE_F32][most - 1];
}

// All arrays lie in the memory of the backend that built them. "Position" counts the terms in
// segment order; "term" is the caller's own number of the same thing.
typedef struct spops_lists {
    int64_t num_segments;
    int64_t max_terms;           // capacity of pairs and order
    int32_t *offsets;            // [num_segments + 1]
    int32_t *pairs;              // [max_terms][2]: a, b of a position; NULL: both are the position
    int32_t *order;              // [max_terms] term of a position; NULL: the position itself
    int32_t split_terms;         // segments longer than this are cut into pieces
    spops_schedule *schedule;    // [1]
    spops_work_item *entries;    // [num_segments] unsplit segments by class; CPU: none, or by rows
    spops_work_item *pieces;     // [max_pieces], pieces of one segment follow each other in order
    spops_split_segment *splits; // [max_splits]
    int64_t max_pieces;
    int64_t max_splits;
    spops_schedule host_schedule; // copy of *schedule; launch sizes come from it
    spops_sum_choice sum_choice;  // with it; zero where there is no choice
    bool counts_on_device;        // made by reserve: host_schedule has longest alone, a limit or 0
    bool in_order; // only ever built from terms in segment order: nothing is sorted for them
} spops_lists;

// What lists are built from; arrays in the backend's memory. Term t has a segment and two numbers,
// a and b, that land in pairs.
typedef struct spops_lists_source {
    const int32_t
        *offsets;        // [num_segments + 1] of terms in segment order; NULL when keys are given
    const int32_t *keys; // [num_terms] segment of a term; NULL without offsets: the term itself
    bool keys_sorted;
    int64_t num_terms;               // the capacity, where num_terms_device is given
    const int32_t *num_terms_device; // [1] how many of them count; NULL: all
    const int32_t *a;                // [num_terms]; NULL: the term itself
    const int32_t *b;                // likewise
    const int32_t *term;             // [num_terms] what order says; NULL: the term itself
    bool drop_invalid;               // leave out terms whose key, a or b is out of range, and count
    int64_t a_limit, b_limit;        // them; else all are known to be in range. With offsets: those
                                     // that num_terms_device leaves out are counted
    bool skip_negative; // of keys: one below 0 is no term, and is left out without being counted
    int32_t *counts;    // CUDA: [num_segments] terms of each segment, written; NULL: they are not
} spops_lists_source;

// Whether lists built from source need pairs, and order.
static inline bool spops_source_needs_pairs(const spops_lists_source *s)
{
    return s->a != NULL || s->b != NULL || (s->keys != NULL && !s->keys_sorted);
}
static inline bool spops_source_needs_order(const spops_lists_source *s)
{
    return s->term != NULL || (s->keys != NULL && !s->keys_sorted);
}

// Of position p: its pair's first or second number, and its term.
static inline int64_t spops_pair_of(const spops_lists *lists, int64_t position, int which)
{
    return lists->pairs != NULL ? lists->pairs[2 * position + which] : position;
}

static inline int32_t spops_term_of(const spops_lists *lists, int64_t position)
{
    return lists->order != NULL ? lists->order[position] : (int32_t)position;
}

// Whether the terms of a source come in segment order, and all of them count.
static inline bool spops_source_in_order(const spops_lists_source *s)
{
    return s->offsets != NULL || (s->keys != NULL && s->keys_sorted && !s->drop_invalid);
}

// Terms that workspace to sort must hold.
static inline int64_t spops_lists_sorted_terms(const spops_lists *lists)
{
    return lists->in_order ? 0 : lists->max_terms;
}

// Set every array of lists from c (NULL while it measures). num_segments, max_terms and split_terms
// are set before; sizes of pieces and splits follow from them.
static inline void spops_lists_carve(spops_lists *lists, bool pairs, bool order, spops_carver *c)
{
    lists->max_splits = lists->max_terms / lists->split_terms;
    // A segment of n > split_terms terms gives ceil(n / split_terms) < 2 n / split_terms pieces.
    lists->max_pieces = 2 * lists->max_splits;
    if (lists->max_pieces > lists->max_terms) lists->max_pieces = lists->max_terms;
    lists->schedule = (spops_schedule *)spops_carve(c, 1, 1, sizeof(spops_schedule));
    lists->offsets = (int32_t *)spops_carve(c, lists->num_segments + 1, 1, sizeof(int32_t));
    lists->pairs = pairs ? (int32_t *)spops_carve(c, lists->max_terms, 2, sizeof(int32_t)) : NULL;
    lists->order = order ? (int32_t *)spops_carve(c, lists->max_terms, 1, sizeof(int32_t)) : NULL;
    lists->entries =
        (spops_work_item *)spops_carve(c, lists->num_segments, 1, sizeof(spops_work_item));
    lists->pieces =
        (spops_work_item *)spops_carve(c, lists->max_pieces, 1, sizeof(spops_work_item));
    lists->splits =
        (spops_split_segment *)spops_carve(c, lists->max_splits, 1, sizeof(spops_split_segment));
}

static inline spops_segments_view spops_segments_view_of(const spops_lists *lists)
{
    spops_segments_view view = spops_segments_view_default();
    view.num_segments = lists->num_segments;
    view.max_terms = lists->max_terms;
    view.offsets = lists->offsets;
    view.pairs = lists->pairs;
    view.order = lists->order;
    view.schedule = lists->schedule;
    view.entries = lists->entries;
    view.pieces = lists->pieces;
    view.splits = lists->splits;
    view.max_entries = lists->num_segments;
    view.max_pieces = lists->max_pieces;
    view.max_splits = lists->max_splits;
    return view;
}

// ---- What the slots of lists are given (core/backend_slots.def) ---------------------------------

typedef struct spops_split_terms_args {
    int64_t max_terms, max_cols;
} spops_split_terms_args;

// workspace: backend memory of at least lists_workspace_bytes.
typedef struct spops_lists_build_args {
    const spops_lists_source *source;
    spops_lists *lists;
    void *workspace;
} spops_lists_build_args;

// Which of the forward lists' numbers becomes the segment of inverted lists.
typedef enum spops_inverse {
    SPOPS_BY_ROW = 0,   // segment a(p); pairs = segment, b(p)
    SPOPS_BY_WEIGHT = 1 // segment b(p); pairs = a(p), segment
} spops_inverse;

typedef struct spops_lists_invert_args {
    const spops_lists *forward;
    spops_inverse inverse;
    spops_lists *lists;
    void *workspace;
} spops_lists_invert_args;

// A rule for the elements of an index array, and the first that breaks it.
typedef enum spops_check_rule {
    SPOPS_CHECK_RANGE = 0,    // low <= a[i] < high
    SPOPS_CHECK_ASCENDING = 1 // a[i - 1] <= a[i]
} spops_check_rule;

typedef struct spops_check_result {
    int64_t index;    // -1: all are fine
    int32_t value;    // a[index]
    int32_t previous; // a[index - 1], for ASCENDING
} spops_check_result;

typedef struct spops_check_indices_args {
    spops_check_rule rule;
    const int32_t *a; // [n] backend memory
    int64_t n;
    int64_t low, high;          // of RANGE
    spops_check_result *result; // host memory
} spops_check_indices_args;

// The kernels of SUM for lists whose counts the host knows; num_rows: of x. lists NULL: asks only how
// many variants there are.
typedef struct spops_choose_sums_args {
    const spops_lists *lists;
    int64_t num_rows;
    spops_sum_choice *choice;
} spops_choose_sums_args;

#endif
