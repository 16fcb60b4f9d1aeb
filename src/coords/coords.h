// SPDX-License-Identifier: Apache-2.0
// Sets of coordinates: what they hold, and what the modules beside them build and check them with.
// Arrays are filled by the backend (slot coords_build).
#ifndef SPOPS_COORDS_COORDS_H
#define SPOPS_COORDS_COORDS_H

#include "core/backend.h"
#include "core/plan.h"
#include "coords/coord_arrays.h"
#include "segments/segments.h"

#define SPOPS_DEFAULT_GRID_BYTES ((size_t)256 << 20)

// Where the voxels of a set lie, in metres.
typedef struct spops_voxel_grid {
    bool known; // the set was made from points, or from such a set by what keeps voxels in a grid
    double size[SPOPS_MAX_DIMS], origin[SPOPS_MAX_DIMS];
} spops_voxel_grid;

struct spops_coords {
    spops_plan base;
    spops_coords_arrays arrays;
    bool keeps_item_row; // there is room for it: never changes, as the layout follows from it
    bool has_item_row;   // after the last fill
    int64_t last_items;  // max_items of the last fill
    spops_voxel_grid grid;
    int64_t max_candidates;   // the workspace serves
    spops_coords_state state; // of a set that is not refillable
};

// Options, read and checked; 0 became the default.
typedef struct spops_coords_choices {
    spops_coords_order order;
    spops_coords_search search;
    spops_coords_duplicates duplicates;
    bool has_box;
    bool ascending;       // what the set is made from has rows in lexicographic order, each once
    spops_coords_box box; // columns after the last axis are 0
    size_t max_grid_bytes;
    spops_plan_memory *memory; // of reserve
} spops_coords_choices;

spops_status spops_coords_read_options(spops_context *ctx, const char *call, int32_t dims,
                                       const spops_coords_options *options,
                                       spops_coords_choices *choices);

spops_status spops_coords_check_dims(spops_context *ctx, const char *call, int64_t dims);

// A kernel, checked, for a set of `dims` axes.
spops_status spops_kernel_shape_read(spops_context *ctx, const char *call,
                                     const spops_kernel_shape *kernel, int32_t dims,
                                     spops_taps *taps);

// The taps of factor^dims children, 1 to SPOPS_MAX_KERNEL_SIZE along an axis.
spops_status spops_children_taps(spops_context *ctx, const char *call, int32_t dims, int32_t factor,
                                 spops_taps *taps);

// coords_layout.c: fields of a box, INVALID_ARGUMENT where they do not fit a key; and the boxes of
// sets made from others (INVALID_ARGUMENT where they leave int32).
spops_status spops_key_layout_make(spops_context *ctx, const char *call, int32_t dims,
                                   const spops_coords_box *box, spops_coords_order order,
                                   spops_key_layout *layout);
spops_status spops_box_downsampled(spops_context *ctx, const char *call, const spops_key_layout *in,
                                   const spops_taps *taps, spops_coords_box *box);
spops_status spops_box_upsampled(spops_context *ctx, const char *call, const spops_key_layout *in,
                                 const spops_taps *taps, spops_coords_box *box);
spops_coords_box spops_box_union(const spops_key_layout *a, const spops_key_layout *b);
spops_coords_box spops_box_of(const spops_key_layout *layout);

// Bounds of ROWS or POINTS, whose first bad item is refused and named; box as choices have it, else
// from the items; and whether rows are known to ascend. Waits.
spops_status spops_coords_find_box(spops_context *ctx, const char *call,
                                   const spops_coords_source *source,
                                   const spops_coords_choices *choices, spops_coords_box *box,
                                   bool *ascending);

// A set of exactly what source holds, in a box. Duplicates are refused where choices say so. Waits.
spops_status spops_coords_make(spops_context *ctx, const char *call,
                               const spops_coords_source *source,
                               const spops_coords_choices *choices, const spops_coords_box *box,
                               spops_coords **out);

// Where the fields of a set stand in a description.
typedef struct spops_coords_fields {
    int32_t dims, order, search, lower, upper;
} spops_coords_fields;
void spops_coords_put_fields(const spops_coords *coords, const spops_coords_fields *at,
                             int64_t *fields);
spops_status spops_coords_read_fields(spops_context *ctx, const char *call, spops_plan_kind kind,
                                      const int64_t *fields, const spops_coords_fields *at,
                                      int32_t *dims, spops_coords_choices *choices);

// Choices of a set with capacities, in their box, with a search that is not AUTO; and as fields.
spops_status spops_coords_choose_search(spops_context *ctx, const char *call, int32_t dims,
                                        int64_t max_rows, spops_coords_choices *choices);
void spops_coords_put_choices(int32_t dims, const spops_coords_choices *choices,
                              const spops_coords_fields *at, int64_t *fields);

// A set that is a part of the plan with these fields.
spops_status spops_coords_read_part(spops_context *ctx, const char *call, const int64_t *fields,
                                    const spops_coords_fields *at, int64_t max_rows,
                                    int64_t max_items, spops_coords **out);

// Enqueue a fill of a refillable set.
spops_status spops_coords_fill(spops_context *ctx, const char *call, spops_coords *coords,
                               const spops_coords_source *source);

// What the host notes of a fill of coords by spops_coords_update_downsampled, which was done otherwise.
spops_status spops_coords_note_downsampled(spops_context *ctx, spops_coords *coords,
                                           const spops_coords *in,
                                           const spops_kernel_shape *kernel);

// The count of rows in use, where ctx runs; NULL of a set that is only measured.
static inline const int32_t *spops_coords_num_rows(const spops_coords *coords)
{
    return coords->arrays.state == NULL ? NULL : &coords->arrays.state->num_rows;
}

// voxels.c: a source of points, its matrix and sizes checked; their axes are its first columns.
// points.rows is max_items.
spops_status spops_points_source(spops_context *ctx, const char *call, int32_t dims,
                                 spops_matrix points, const int32_t *batch, const double *size_m,
                                 const double *origin_m, spops_coords_source *source);
// Where the arrays of voxels are.
void spops_voxels_show(const spops_voxels *voxels, spops_voxels_view *view);

// Where the points of voxels that do not hold all of theirs have their places; others are refused.
spops_status spops_voxels_places(spops_context *ctx, const char *call, const spops_voxels *voxels,
                                 spops_voxel_places *places);
spops_status spops_check_voxel_size(spops_context *ctx, const char *call, int32_t dims,
                                    const double *size_m, const double *origin_m);

#endif
