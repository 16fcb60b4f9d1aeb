// SPDX-License-Identifier: Apache-2.0
// Relations: which rows of the target take which rows of the source, each pair of rows by a key: a
// tap, a matrix, a weight, a patch. Kernel maps, neighbours, patches, segments and triplets are
// relations, and give this view of their arrays (spops_plan_ops); whoever runs over one takes it.
// Arrays lie where the plan's context runs, and keep their addresses as long as the plan lives.
#ifndef SPOPS_RELATION_RELATION_H
#define SPOPS_RELATION_RELATION_H

#include <stdbool.h>

#include "core/context.h"
#include "core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

// Outputs, segments, queries are the target; inputs, pooled rows, keys of attention the source.
enum { SPOPS_SIDE_TARGET = 0, SPOPS_SIDE_SOURCE = 1, SPOPS_NUM_SIDES = 2 };

// Lists of rows. List i has the entries offsets[i] .. offsets[i + 1] - 1.
typedef struct spops_relation_lists {
    int32_t *offsets; // NULL: there are no lists
    int32_t *rows;    // [max_terms] entry e is rows[e * stride]; NULL: it is e
    int32_t stride;
} spops_relation_lists;

typedef struct spops_relation_side {
    int64_t max_rows;
    int32_t *num_rows;           // [1] in use; NULL: all
    spops_relation_lists by_row; // for each row of this side, the rows of the other side
    spops_relation_lists by_key; // for each key, the rows of this side
    uint16_t *keys;              // [max_terms] of the entries of by_row; NULL: none of 16 bits
    int32_t *order;              // [max_terms] which term an entry of by_row is; NULL: not kept
    // [max_rows][table_stride] for each row and key, the other side's row, or -1; NULL: there is no
    // table. Sides of a symmetric relation may share one: keys of the source then count from the end.
    int32_t *table;
    int32_t table_stride; // at least num_keys; further elements are -1
} spops_relation_side;

typedef struct spops_relation {
    int64_t num_keys;
    int64_t max_terms;      // the most entries of a list by row, or of one by key
    bool symmetric;         // (i, j) by key k comes with (j, i) by key num_keys - 1 - k
    int64_t most_of_source; // targets that a source row meets at most; 0: num_keys
    bool all_pairs; // every target row of a key meets every source row of it; else entry by entry
    spops_relation_side sides[SPOPS_NUM_SIDES];
} spops_relation;

// The relation of a plan; NOT_SUPPORTED where its kind is none.
spops_status spops_relation_of(spops_context *ctx, const char *call, const spops_plan *plan,
                               spops_relation *relation);

// The `relation` of kinds whose rows meet as those of a part do, or of a plan that they stand on: the
// first that is a relation.
void spops_relation_of_part(const spops_plan *plan, spops_relation *relation);

// Which rows of a side a relation names: rows[i] becomes 1 where some term has row i of the side, and
// 0 elsewhere. Of the source these are the rows that are read, of the target those that are not empty.
// With all_pairs, the rows of a key count also where the key has none on the other side.
//
// rows [max_rows of the side], where ctx runs. Enqueues, allocates nothing, waits for nothing.
// NOT_SUPPORTED where the relation has neither lists nor a table.
spops_status spops_relation_mark_rows(spops_context *ctx, const char *call,
                                      const spops_relation *relation, int side, uint8_t *rows);

// ---- What the slots of relations are given (core/backend_slots.def) -------------------------------

// Rows [max_rows] are marked that have an entry in a list (offsets), that entries name, or that have
// an entry in a table of their own; the others get 0. One of the three is not NULL.
typedef struct spops_relation_rows_args {
    uint8_t *rows;
    int64_t max_rows;
    const int32_t *offsets; // [max_rows + 1]
    struct {
        const int32_t *num; // [1] times `each`: how many; NULL: none are given
        int64_t most;
        int32_t each;
        const int32_t *rows; // entry e is rows[e * stride], less than 0: none; NULL: it is e
        int32_t stride;
    } entries;
    const int32_t *table, *num_rows; // [num_rows][table_stride]; num_rows NULL: max_rows
    int32_t table_stride;
} spops_relation_rows_args;

// Entries of the lists by key, but those of one key, one after another: the rows of either side, and
// the entry's place, first[k] + how many entries of its key k are before it. NULL is not wanted.
typedef struct spops_relation_places_args {
    const spops_relation *relation;
    int64_t num_entries;  // of all keys
    const int32_t *first; // [num_keys]
    int64_t without;      // the key that is left out; -1: none
    int32_t *rows[SPOPS_NUM_SIDES], *places;
} spops_relation_places_args;

#ifdef __cplusplus
}
#endif

#endif
