// SPDX-License-Identifier: Apache-2.0
// Plans of triplets, and what the backends build and run them with. A plan holds the triplets in up
// to three orders: by matrix (VVOR), by tile of output rows and then by matrix (MVMR), and likewise
// by tile of input rows (MVMR reversed).
#ifndef SPOPS_MVMR_MVMR_H
#define SPOPS_MVMR_MVMR_H

#include "core/backend.h"
#include "core/plan.h"
#include "igemm/igemm_args.h"
#include "relation/relation.h"
#include "segments/lists.h"
#include "spops/mvmr.h"

#ifdef __cplusplus
extern "C" {
#endif

// A triplet seen from one side: row of the result, row it takes, matrix, the caller's number.
typedef struct spops_triplet {
    int32_t row, from, matrix, number;
} spops_triplet;

// The triplets of one side. Tile b holds triplets offsets[b] .. offsets[b + 1] - 1, by ascending
// matrix and then in the caller's order.
//
// A tile owns the rows b * tile_rows .. (b + 1) * tile_rows - 1 of the result, with all that is
// summed into them. Or, if `direct`, no row has two triplets: tiles are cut from the triplets in
// order of matrices, at most tile_rows to a tile, and own the rows that they name.
typedef struct spops_triplet_tiles {
    int64_t num_rows; // of the result
    int64_t num_from; // of the rows taken
    int64_t num_tiles;
    int32_t tile_rows; // a power of two
    bool direct;
    bool complete;           // direct, and every row of the result is named
    int32_t *offsets;        // [num_tiles + 1]
    spops_triplet *triplets; // [max_triplets]
} spops_triplet_tiles;

// What a backend chooses a plan's layout by.
typedef struct spops_triplets_layout_args {
    int64_t max_triplets, max_matrix_elements;
    int32_t tile; // that is asked for; 0: none is
} spops_triplets_layout_args;

// Building a side from the lists by matrix, whose segments are matrices and whose pairs are (output
// row, input row):
//     slot tile_keys       keys[p] = tile of the row of position p
//     slot triplets_fill   triplets[q] = the one at position order[q]; order NULL: position q, and
//                          offsets are filled too
// and, for rows times the matrix of their group:
//     slot group_keys      keys[r] = k where offsets[k] <= r < offsets[k + 1], else -1; r < num_rows
typedef struct spops_triplets_args {
    const spops_lists *by_matrix;
    int side;
    spops_triplet_tiles *tiles;
    const int32_t *order;
    const int32_t *offsets;
    int64_t num_matrices, num_rows;
    int32_t *keys;
} spops_triplets_args;

// out (+)= the sum of s x w over the tiles' triplets (include/spops/mvmr.h). Or, with grad_s, the
// inner products of the summands, without s, with rows of g: grad_s[number] = <g[row], x[from] w>;
// then out and s are absent.
typedef struct spops_mvmr_args {
    const spops_triplet_tiles *tiles;
    int64_t num_matrices;
    spops_matrix x, w;
    spops_matrix s; // data NULL: all ones
    spops_matrix out;
    spops_matrix g, grad_s;   // data NULL: not wanted
    const int32_t *num_rows;  // [1] rows of out that are written; NULL: all
    int64_t x_cols, out_cols; // of one group
    int32_t groups;
    bool diagonal, transposed, accumulate;
    spops_math math;
} spops_mvmr_args;

// out[k] (+)= sum of s[t] * x[a] (x) g[b] over positions of matrix k, where the by-matrix pairs are
// (b, a) for the side TARGET and (a, b) for SOURCE; w's layout as above. partials is
// [by_matrix->max_pieces][elements of a matrix] f32.
typedef struct spops_vvor_args {
    const spops_lists *by_matrix;
    int side;
    spops_matrix x, g;
    spops_matrix s; // data NULL: all ones
    spops_matrix out;
    int64_t x_cols, g_cols; // of one group
    int32_t groups;
    bool diagonal, transposed, accumulate;
    spops_math math;
    float *partials;
} spops_vvor_args;

struct spops_triplets {
    spops_plan base;
    spops_triplets_shape shape;
    int64_t max_matrix_elements;
    int32_t tile;
    bool backward;
    bool mirrored; // i = j for all: both sides are the same
    bool apart;    // filled once, in memory that is given back: the plan has no workspace
    spops_lists by_matrix;
    spops_triplet_tiles sides[SPOPS_NUM_SIDES]; // SOURCE only with backward, unless mirrored
    bool has_groups; // the triplets are rows of groups, and the backend has a product for them:
    spops_igemm_schedule groups;
};

// spops_mvmr_execute without scalars, for a call that has checked its own arguments: they fit the plan,
// dtypes and memory are right, and nothing overlaps.
spops_status spops_mvmr_run(spops_context *ctx, const char *call, const spops_triplets *triplets,
                            spops_matrix x, spops_matrix w, const spops_mvmr_options *options,
                            spops_matrix out);

// The workspace of a plan whose workspace is apart, and its filling there: as
// spops_triplets_update_offsets.
size_t spops_triplets_workspace_bytes(const spops_triplets *triplets);
spops_status spops_triplets_fill_apart(spops_context *ctx, const char *call,
                                       spops_triplets *triplets, const int32_t *offsets,
                                       const int32_t *out_rows, const int32_t *in_rows,
                                       void *workspace);

// Scratch of VVOR, the partials of its pieces; measured and carved by this function.
float *spops_triplets_carve_scratch(const spops_triplets *triplets, spops_carver *c);

#ifdef __cplusplus
}
#endif

#endif
