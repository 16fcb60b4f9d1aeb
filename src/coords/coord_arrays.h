// SPDX-License-Identifier: Apache-2.0
// Coordinates as the backends see them: which arrays there are, what they are made
// from, and what their slots (core/backend_slots.def) fill. All arrays lie in the backend's memory.
#ifndef SPOPS_COORDS_COORD_ARRAYS_H
#define SPOPS_COORDS_COORD_ARRAYS_H

#include <stdbool.h>

#include "coords/coord_keys.h"
#include "spops/kernel_map.h"
#include "spops/voxels.h"

// ---- Coordinates --------------------------------------------------------------------------------

// What only the backend knows of a set.
typedef struct spops_coords_state {
    int32_t num_rows;    // in use, at most max_rows
    int32_t num_dropped; // items left out: outside the box, or not finite
    int32_t num_merged;  // candidates that are further appearances of a row, found also past
                         // max_rows
    int32_t overflow;    // 1: more unique rows than max_rows, or more items than max_items
    int32_t duplicate; // ROWS: the first item that is a further appearance; -1: none. Other kinds:
                       // anything
    int32_t duplicate_of; // the item whose row it is
} spops_coords_state;

typedef struct spops_coords_arrays {
    spops_key_layout layout;
    spops_coords_order order;
    spops_coords_search search; // not AUTO
    bool ascending;             // rows lie by ascending key: the keys are their own sorted index
    int64_t max_rows;
    int64_t max_items;         // of the source it is filled from
    spops_coords_state *state; // [1]
    int32_t *rows;             // [max_rows][1 + dims]
    uint64_t *keys;            // [max_rows] packed (coord_keys.h)
    int32_t *row_item;         // [max_rows] first item of a row
    int32_t *item_row;         // [max_items] row of an item, -1: none; NULL where not wanted
    void *index;               // by which rows are found: the backend's own
    size_t index_bytes;
} spops_coords_arrays;

// What a set is made from. Items are numbered 0 .. max_items - 1; where num_items is given, only so
// many of them count. An item gives candidates; equal candidates become one row.
typedef enum spops_coords_kind {
    SPOPS_COORDS_ROWS = 0,   // item: rows[i]
    SPOPS_COORDS_POINTS = 1, // item: voxel of point i
    SPOPS_COORDS_DOWN = 2,   // item: rows[i]; candidates: every coarse q of which it is a fine p
    SPOPS_COORDS_UP = 3,     // item: rows[i]; candidates: every fine p of which it is the coarse q
    SPOPS_COORDS_UNION = 4,  // items: rows[i], then rows_b[i - max_items_a]
    SPOPS_COORDS_KEPT = 5,   // item: rows[i] where keep[i] != 0; else it is left out, not counted
    // Items of which each is a row and a tap: the candidate is the fine p of coarse rows[r] at tap t.
    SPOPS_COORDS_CHILDREN = 6, // item r * num_taps + t, where keep[item] != 0
    SPOPS_COORDS_GROWN =
        7 // items: rows[r]; then max_items_a + r * num_taps + t, where keep[r] != 0
} spops_coords_kind;

typedef struct spops_coords_source {
    spops_coords_kind kind;
    int32_t dims;
    bool unique;  // no two candidates are equal: nothing needs to be looked for
    bool ordered; // candidates come in the set's order already
    int64_t max_items;
    const int32_t *num_items; // [1] in backend memory; NULL: max_items. More is an overflow
    const int32_t *rows;      // [max_items][1 + dims] (UNION: [max_items_a][1 + dims])
    int64_t max_items_a;      // UNION: max_items = max_items_a + max_items_b; GROWN: rows
    const int32_t *num_items_b;
    const int32_t *rows_b;
    const uint8_t *keep;           // KEPT, GROWN: [row]; CHILDREN: [item]
    spops_matrix points;           // POINTS: f32 or f16 [max_items, dims]
    const int32_t *batch;          // POINTS: [max_items], or NULL
    double origin[SPOPS_MAX_DIMS]; // POINTS
    double size[SPOPS_MAX_DIMS];
    spops_taps taps;        // DOWN, UP, CHILDREN, GROWN
    int64_t max_candidates; // max_items times the most candidates an item can have
    // Also to be filled, on the CPU and where they are not NULL: the items of each row, in their
    // order; kinds of one candidate per item.
    int32_t *row_offsets; // [max_rows + 1]
    int32_t *row_items;   // [max_items]
} spops_coords_source;

static inline bool spops_source_has_taps(const spops_coords_source *s) // of items, one each
{
    return s->kind == SPOPS_COORDS_CHILDREN || s->kind == SPOPS_COORDS_GROWN;
}

// Rows that an item of such a source may have, and items after the first max_items_a.
static inline int64_t spops_source_max_rows(const spops_coords_source *s)
{
    if (s->kind == SPOPS_COORDS_GROWN) return s->max_items_a;
    return s->kind == SPOPS_COORDS_CHILDREN ? s->max_items / s->taps.num_taps : s->max_items;
}

// The row of an item of CHILDREN or GROWN, and its tap; -1: the row itself.
SPOPS_HD int64_t spops_source_tap_row(const spops_coords_source *s, int64_t i, int32_t *tap)
{
    const uint32_t taps = (uint32_t)s->taps.num_taps; // items are fewer than 2^31
    const uint32_t at = (uint32_t)(s->kind == SPOPS_COORDS_GROWN ? i - s->max_items_a : i);
    if (s->kind == SPOPS_COORDS_GROWN && i < s->max_items_a) {
        *tap = -1;
        return i;
    }
    *tap = (int32_t)(at % taps);
    return (int64_t)(at / taps);
}

// Whether an item of a row that is in use gives its candidate.
SPOPS_HD int spops_source_tap_kept(const spops_coords_source *s, int64_t i, int64_t row,
                                   int32_t tap)
{
    return s->kind == SPOPS_COORDS_CHILDREN ? s->keep[i] != 0 : tap < 0 || s->keep[row] != 0;
}

// The key of the candidate that a row gives by a tap, or SPOPS_KEY_NONE outside the box.
SPOPS_HD uint64_t spops_source_tap_key(const spops_coords_source *s, const spops_key_layout *layout,
                                       const int32_t *row, int32_t tap)
{
    uint64_t key;
    int a;
    if (tap < 0) return spops_key_pack(layout, row);
    if (!spops_key_fits(layout, 0, row[0])) return SPOPS_KEY_NONE;
    key = spops_key_column(layout, 0, row[0]);
    for (a = s->dims - 1; a >= 0; --a) { // the last axis runs fastest
        const int64_t v = spops_tap_fine(&s->taps, a, row[a + 1], tap % s->taps.size[a]);
        tap /= s->taps.size[a];
        if (!spops_key_fits(layout, a + 1, v)) return SPOPS_KEY_NONE;
        key |= spops_key_column(layout, a + 1, v);
    }
    return key;
}

typedef struct spops_coords_search_args {
    const spops_key_layout *layout;
    int64_t max_rows;
    size_t max_grid_bytes; // that a grid may take
} spops_coords_search_args;

typedef struct spops_coords_workspace_args {
    const spops_coords_arrays *coords;
    int64_t max_candidates;
} spops_coords_workspace_args;

typedef struct spops_coords_build_args {
    const spops_coords_source *source;
    const spops_coords_arrays *coords;
    void *workspace; // coords_workspace_bytes
    bool sorted;     // coords_sort has left the source's candidates in workspace
} spops_coords_build_args;

// The batch of each row in use.
typedef struct spops_coords_batches_args {
    const spops_coords_arrays *coords;
    int32_t *batches; // [max_rows]; after the rows in use nothing is written
} spops_coords_batches_args;

// What a pass over ROWS or POINTS finds, before there is a layout.
typedef struct spops_coords_bounds {
    int64_t num_items;
    int32_t lower[SPOPS_KEY_COLUMNS]; // of all items that are not bad; lower > upper without any
    int32_t upper[SPOPS_KEY_COLUMNS];
    // The first bad item: a point whose element `column` - 1 is not finite or gives no int32, or
    // (column 0) a batch below 0; or any column outside the box, where there is one. -1: none.
    int64_t bad_item;
    int32_t bad_column; // the lowest bad one of that item
    bool ascending; // ROWS: each is known to stand above the one before, so that none comes twice
} spops_coords_bounds;

typedef struct spops_coords_bounds_args {
    const spops_coords_source *source; // ROWS or POINTS
    const spops_coords_box *box;       // NULL: none
    spops_coords_bounds *bounds;       // host memory
} spops_coords_bounds_args;

// Which of a voxel's points count, once item_row says which voxel they are in.
typedef struct spops_voxel_points_args {
    const spops_coords_source *source; // POINTS
    const spops_coords_arrays *coords; // filled from it
    spops_voxel_points points;
    uint32_t seed;       // RANDOM
    int32_t most_points; // FIRST and RANDOM: more than 1, or 1
    int32_t *num_points; // [max_rows] points of a voxel; rows not in use get 0
    int32_t *chosen;     // [max_rows] not ALL: a voxel's point, -1 for rows not in use
    int32_t *keys;       // [max_items] segment of a point: its voxel if it counts, else -1.
                         // NULL with ALL, where item_row serves
    uint64_t *ranks; // [max_rows][most_points] of a voxel's points, ascending; UINT64_MAX: none.
                     // Where most_points is more than 1 the low 32 bits are the point
    const int32_t *point_offsets; // [max_rows + 1] where a voxel's points begin; NULL: not known
} spops_voxel_points_args;

// Places of the points that voxels hold, most_points of each voxel; arrays as they are made above.
typedef struct spops_voxel_places {
    int64_t max_points, max_voxels;
    int32_t most_points;
    const int32_t *num_points, *chosen, *keys;
    const uint64_t *ranks;
} spops_voxel_places;

// A point that counts has a place k of its voxel's: the point at the place, -1: none.
SPOPS_HD int32_t spops_voxel_place(const uint64_t *ranks, const int32_t *chosen,
                                   int32_t most_points, int32_t num_points, int64_t voxel,
                                   int32_t k)
{
    if (k >= num_points) return -1;
    return most_points > 1 ? (int32_t)(uint32_t)ranks[voxel * most_points + k] : chosen[voxel];
}

// Terms of a devoxelization: term p * C + c is corner c of point p; points that do not count (from
// num_items on, or not finite) have none.
typedef struct spops_devoxelize_args {
    const spops_coords_source *source; // POINTS
    const spops_coords_arrays *coords; // the voxels
    spops_devoxels_interpolation interpolation;
    spops_devoxels_missing missing;
    int32_t corners;    // C
    int32_t *points;    // [max_items * C] p
    int32_t *voxels;    // [max_items * C] row, or -1: no such voxel, weight 0, or no such point
    float *weights;     // [max_items * C] 0 where voxels is -1
    int32_t *num_terms; // [1] C times the given number of points, also where that is more than fit
                        // (INT32_MAX at most): the plan then flags the overflow
} spops_devoxelize_args;

#endif
