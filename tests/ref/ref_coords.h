// SPDX-License-Identifier: Apache-2.0
// Coordinates and kernel maps by brute force, from the definitions: rows are compared as rows,
// never packed. Nothing from src/ or include/spops/device/ is used.
#ifndef SPOPS_TESTS_REF_COORDS_H
#define SPOPS_TESTS_REF_COORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "spops/kernel_map.h"

// Unique rows [n][1 + dims], with the item each was first made from.
typedef struct ref_set {
    int32_t dims;
    int64_t n;
    int32_t *rows;
    int32_t *row_item;
    int64_t num_items;
    int32_t *item_row;   // [num_items], or NULL; -1: none
    int64_t num_dropped; // outside the box
    int64_t num_merged;  // candidates that are further appearances
    int32_t *sorted;     // rows in lexicographic order
} ref_set;

void ref_set_free(ref_set *set);

// Candidates in order of appearance, those outside `box` (NULL: none) left out.
ref_set ref_unique(int32_t dims, int64_t n, const int32_t *rows, const spops_coords_box *box);
// Every coarse q (up: every fine p) that a tap joins to a row.
ref_set ref_window(const ref_set *in, const spops_kernel_shape *kernel, bool up,
                   const spops_coords_box *box);
ref_set ref_union(const ref_set *a, const ref_set *b);
ref_set ref_pruned(const ref_set *in, const uint8_t *keep);

// The row that equals `row`, or -1.
int32_t ref_find(const ref_set *set, const int32_t *row);

// Whether a comes before b: on the curve that `order` names (not HILBERT) through a box whose lower
// corner is `lower`.
bool ref_before(spops_coords_order order, int32_t dims, const int32_t *lower, const int32_t *a,
                const int32_t *b);

// table[i * num_taps + k] = input that tap k joins to output i, or -1. The caller frees it.
int32_t *ref_map(spops_kernel_map_kind kind, const spops_kernel_shape *kernel, const ref_set *in,
                 const ref_set *out);
int32_t ref_num_taps(const spops_kernel_shape *kernel);

#endif
