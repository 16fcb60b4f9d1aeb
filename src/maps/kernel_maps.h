// SPDX-License-Identifier: Apache-2.0
// Kernel maps: what they hold, and what making, saving and loading them share. Tables and lists are
// filled by the backend (slots map_*).
#ifndef SPOPS_MAPS_KERNEL_MAPS_H
#define SPOPS_MAPS_KERNEL_MAPS_H

#include "coords/coords.h"
#include "core/plan.h"
#include "maps/map_arrays.h"

struct spops_kernel_map {
    spops_plan base;
    spops_kernel_map_kind kind;
    spops_kernel_shape kernel; // as the caller gave it
    int32_t contents;          // with those that others bring
    spops_map_arrays arrays;
    spops_kernel_map_side out, in; // the arrays' sides, as a view shows them
    spops_map_state state;         // of a map that is not refillable
    void *own;                     // arrays but those of pairs
    size_t own_bytes;
    void *backend_workspace;
};

// What a map is made with, checked.
typedef struct spops_map_choices {
    spops_kernel_map_kind kind;
    spops_kernel_shape kernel;
    spops_taps taps; // with a submanifold's padding
    int32_t contents, tile_rows;
    int64_t max_pairs;
    bool all_pairs; // of reserve: as many as there can be, instead
    bool no_symmetry;
    spops_plan_memory *memory; // of reserve
} spops_map_choices;

// Contents without those that stand for others.
int32_t spops_map_contents(const spops_context *ctx, int32_t contents);

spops_status spops_map_read_choices(spops_context *ctx, const char *call,
                                    spops_kernel_map_kind kind, const spops_kernel_shape *kernel,
                                    int32_t dims, const spops_kernel_map_options *options,
                                    spops_map_choices *choices);

// A map that is not refilled: its arrays but those of pairs, nothing in them.
spops_status spops_map_alloc(spops_context *ctx, const char *call, const spops_map_choices *choices,
                             int64_t num_in, int64_t num_out, spops_kernel_map **out);

enum { SPOPS_MAPS_AT_ONCE = 16 };

// Enqueue all that follows from out.table, out.masks and tap_counts of several maps, at most
// SPOPS_MAPS_AT_ONCE, but the pairs.
spops_status spops_maps_enqueue_sides(spops_context *ctx, const spops_kernel_map *const *maps,
                                      int32_t num);

// Enqueue the refills of several maps, at most SPOPS_MAPS_AT_ONCE; map i is between in[i] and out[i],
// all of them checked.
spops_status spops_maps_enqueue(spops_context *ctx, const spops_kernel_map *const *maps,
                                const spops_coords *const *in, const spops_coords *const *out,
                                int32_t num);

// Steps of that: tables, masks and counts of the outputs; and, once all tables are there, orders and pairs.
spops_status spops_maps_enqueue_search(spops_context *ctx, const spops_kernel_map *const *maps,
                                       const spops_coords *const *in,
                                       const spops_coords *const *out, int32_t num);
spops_status spops_maps_enqueue_lists(spops_context *ctx, const spops_kernel_map *const *maps,
                                      int32_t num);

// After enqueue_sides, of a map that is not refillable and whose host state is there: its pairs. Waits, and
// frees the workspace.
spops_status spops_map_finish(spops_context *ctx, const char *call, spops_kernel_map *map);

// The inverse of a finished or refillable map, on its arrays, which hold REVERSE and must outlive it.
// Pairs stay as they lie.
spops_status spops_map_share_inverse(spops_context *ctx, const spops_kernel_map *of,
                                     spops_kernel_map **out);
// The same once the arrays have places.
void spops_map_show_inverse(const spops_kernel_map *of, spops_kernel_map *inverse);

extern const spops_plan_file spops_kernel_map_file;

#endif
