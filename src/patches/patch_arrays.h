// SPDX-License-Identifier: Apache-2.0
// The arrays of a plan of patches, for whoever runs over them: the lists of rows, where each row is a
// key, and the work in tiles. They lie where the plan's context runs, and what stands in `state` is
// known there alone; all else is known to the host.
#ifndef SPOPS_PATCHES_PATCH_ARRAYS_H
#define SPOPS_PATCHES_PATCH_ARRAYS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Tiles of two sizes, each in a list of its own.
enum { SPOPS_PATCH_TILE_64, SPOPS_PATCH_TILE_128, SPOPS_NUM_PATCH_TILES };

// Entries of a full tile of a list.
#define SPOPS_PATCH_TILE_ENTRIES(which) (64 << (which))

// Counts that only the backend's memory holds.
typedef struct spops_patch_state {
    int32_t num_patches;
    int32_t num_queries, num_keys; // entries of the lists
    int32_t num_q_rest, num_k_rest;
    int32_t num_q_tiles[SPOPS_NUM_PATCH_TILES], num_k_tiles[SPOPS_NUM_PATCH_TILES];
    int32_t overflow; // 1: lists exceeded a capacity; all counts above are 0 but those of the rests
} spops_patch_state;

// `num_entries` entries of a patch's list from `first_entry` on (of the whole list, not of the patch),
// which meet `num_others` entries of its other list. A tile never crosses a patch. Patches whose other
// list is empty have tiles like all others; an empty list has none.
typedef struct spops_patch_tile {
    int32_t patch, first_entry, num_entries, num_others;
} spops_patch_tile;

// A row is a query of at most one patch. Where `same`, the arrays of queries and keys are the same
// ones, tiles too.
typedef struct spops_patch_arrays {
    int64_t num_rows, num_key_rows; // of Q and O, of K and V; lists name rows below them
    int64_t max_patches;            // capacities; of plans that are not refilled, the counts
    int64_t max_queries, max_keys;  // entries
    const spops_patch_state *state; // [1]
    const int32_t *q_offsets;       // [num_patches + 1]: entries of each patch
    const int32_t *q_rows;          // [num_queries]
    const int32_t *k_offsets;       // [num_patches + 1]
    const int32_t *k_rows;          // [num_keys]
    const int32_t *q_rest, *k_rest; // [num_*_rest], ascending: rows that are no query, no key
    bool same;                      // the keys of every patch are its queries, in the same order
    bool keys_once;                 // no row is a key twice
    const int32_t *key_offsets;     // [num_key_rows + 1]: entries of k_rows that name a row, and
    const int32_t *key_entries;     // [num_keys] their places, ascending; NULL where keys_once
    // Tiles of queries and of keys, most others first, and then by ascending first_entry.
    const spops_patch_tile *q_tiles[SPOPS_NUM_PATCH_TILES], *k_tiles[SPOPS_NUM_PATCH_TILES];
    int64_t max_q_tiles[SPOPS_NUM_PATCH_TILES], max_k_tiles[SPOPS_NUM_PATCH_TILES];
} spops_patch_arrays;

#ifdef __cplusplus
}
#endif

#endif
