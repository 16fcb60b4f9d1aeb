// SPDX-License-Identifier: Apache-2.0
// Kernel maps as the backends see them: which arrays there are, and what their slots
// (core/backend_slots.def) fill. All arrays lie in the backend's memory.
#ifndef SPOPS_MAPS_MAP_ARRAYS_H
#define SPOPS_MAPS_MAP_ARRAYS_H

#include <stdbool.h>

#include "coords/coord_arrays.h"
#include "maps/mask_order.h"
#include "spops/kernel_map.h"

// In backend memory. Rows in use are the states' of in and out at the time of the build.
typedef struct spops_map_state {
    int32_t num_out, num_in;
    int64_t num_pairs; // found, also past the capacity
    int32_t overflow;  // 1: more pairs than max_pairs; PAIRS and CSR are then empty
    int32_t reserved;
} spops_map_state;

// As spops_kernel_map_side, to be filled. Arrays not wanted are NULL.
typedef struct spops_map_side {
    int64_t max_rows;
    int32_t *num_rows; // in the state
    int32_t *table;    // [max_rows][table_stride]
    uint32_t *masks;   // [max_rows][mask_words]
    bool mirrored;     // table, masks, order and tiles are those of the other side
    int64_t num_tiles;
    int32_t *order;       // [max_rows]
    uint32_t *tile_masks; // [num_tiles][mask_words]
    int32_t *tile_order;  // [num_tiles]
    int32_t *offsets;     // [max_rows + 1]
    int32_t *row_taps;    // [max_pairs][2]
    int32_t *pair_ids;    // [max_pairs]
} spops_map_side;

typedef struct spops_map_arrays {
    spops_taps taps;
    bool transposed;  // outputs are the fine side
    bool symmetric;   // submanifold: tap k of row i is j if and only if tap num_taps-1-k of j is i
    bool no_symmetry; // do not make use of it
    int32_t mask_words, table_stride, tile_rows;
    spops_mask_order mask_order;
    int64_t max_pairs;
    spops_map_state *state; // [1]
    int32_t *tap_counts;    // [num_taps]
    int32_t *tap_offsets;   // [num_taps + 1]; NULL without PAIRS
    int32_t *in_rows;       // [max_pairs]
    int32_t *out_rows;      // [max_pairs]
    spops_map_side out, in;
} spops_map_arrays;

// What the slots of kernel maps are given; workspace: map_workspace_bytes.
typedef struct spops_map_workspace_args {
    const spops_map_arrays *map;
    int32_t contents; // that are wanted, SPOPS_MAP_*
} spops_map_workspace_args;

typedef struct spops_map_search_args {
    const spops_coords_arrays *in, *out;
    const spops_map_arrays *map;
    void *workspace;
} spops_map_search_args;

// Slots that do the same for several maps take their args in a list: maps, or sides of them, that
// have nothing in common but what they read.
typedef struct spops_map_searches_args {
    int32_t num;
    const spops_map_search_args *each; // [num]
} spops_map_searches_args;

typedef struct spops_map_reverse_args {
    const spops_map_arrays *map;
    const spops_map_side *from, *to;
    void *workspace;
} spops_map_reverse_args;

typedef struct spops_map_reverses_args {
    int32_t num;
    const spops_map_reverse_args *each; // [num]
} spops_map_reverses_args;

typedef struct spops_map_order_args {
    const spops_map_arrays *map;
    const spops_map_side *side;
    void *workspace;
} spops_map_order_args;

typedef struct spops_map_orders_args {
    int32_t num;
    const spops_map_order_args *each; // [num]
} spops_map_orders_args;

typedef struct spops_map_pairs_args {
    const spops_map_arrays *map;
    void *workspace;
} spops_map_pairs_args;

typedef struct spops_map_all_pairs_args {
    int32_t num;
    const spops_map_pairs_args *each; // [num]
} spops_map_all_pairs_args;

// Levels whose rows lie as given and whose windows lie beside each other: size = stride, dilation 1, at
// most SPOPS_NEST_TAPS taps. All of them follow from the finest.
enum {
    SPOPS_NEST_LEVELS = 8,
    SPOPS_NEST_TAPS = 64,
    SPOPS_NEST_EXTENT = 256,       // rows of a level along an axis of a cell of the source's level
    SPOPS_NEST_STEPS = 2048,       // positions along all axes that neighbours in such a cell have
    SPOPS_NEST_FEW_ROWS = 1 << 14, // of a source that is searched with the maps that follow from it
    SPOPS_NEST_MAX_ROWS = 1 << 19  // of the finest
};

typedef struct spops_nest_args {
    int32_t num_levels; // at least 2
    // The level whose map within others follow from; 0: none.
    int32_t source;
    const spops_map_arrays *source_within;
    const spops_coords_arrays *levels[SPOPS_NEST_LEVELS]; // the finest, then HASH each
    const spops_map_arrays *down[SPOPS_NEST_LEVELS];      // from a level to the next one
    // The maps within that nest_within makes: of finer levels than the source, and the source itself
    // unless map_search makes it. NULL: none.
    const spops_map_arrays *within[SPOPS_NEST_LEVELS];
    void *workspace;
} spops_nest_args;

#endif
