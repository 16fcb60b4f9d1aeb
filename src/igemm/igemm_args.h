// SPDX-License-Identifier: Apache-2.0
// What the matrix kernels are told: products of gathered rows with the matrix of a tap, summed where
// the row of the output lies ("output-stationary"), and the gradient of those matrices.
#ifndef SPOPS_IGEMM_IGEMM_ARGS_H
#define SPOPS_IGEMM_IGEMM_ARGS_H

#include "core/context.h"
#include "igemm/epilogue_args.h"
#include "relation/relation.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rows of one product, what a warpgroup multiplies at once; and of a tile, two of these.
#define SPOPS_IGEMM_GROUP_ROWS 64
#define SPOPS_IGEMM_TILE_ROWS  128

// int32 that making a schedule works in.
#define SPOPS_IGEMM_WORKSPACE(max_tiles) (2 * (max_tiles) + 2048)

// int32 before the rows of a record: tap; bit g set where group g has a row; the first of its sums; how
// many of these are group 0's and, above 16 bits, group 1's.
#define SPOPS_IGEMM_RECORD_HEAD 4
#define SPOPS_IGEMM_RECORD_INTS (SPOPS_IGEMM_RECORD_HEAD + SPOPS_IGEMM_TILE_ROWS)

// What num_tiles of a schedule counts.
enum {
    SPOPS_IGEMM_TILES,
    SPOPS_IGEMM_RECORDS,
    SPOPS_IGEMM_SUMS,
    SPOPS_IGEMM_MEMBERS,
    SPOPS_IGEMM_UNITS,
    SPOPS_IGEMM_OVERFLOW, // 1: something did not fit; there are no tiles then
    SPOPS_IGEMM_NUM_TOTALS
};

// The work of a product, tile by tile. A tile is SPOPS_IGEMM_TILE_ROWS output rows; a record is one tap that
// some of them have, with the input row of each (-1: none). The records of a tile follow each
// other, taps ascending; a tile without any has one without groups. Made on the stream.
//
// Of a kernel map a row has one input row a tap at most. Of lists of neighbours it may have several:
// with `adds` these are a sum (row -2), else the tap has as many records as a row of the tile has there.
//
// Rows of groups have no records: taps are matrices, and a tile is {first row, end, matrix, 0} of
// rows that lie beside each other, in x as in out. With one matrix, tiles need not be listed: tiles NULL,
// num_tiles NULL.
typedef struct spops_igemm_schedule {
    int32_t num_taps;
    int64_t max_tiles, max_records;
    int32_t *num_tiles; // [2]; of lists [SPOPS_IGEMM_NUM_TOTALS]; of rows of groups [1]
    int32_t *tiles;     // [max_tiles][4]: first record, records, tile, 0; most records first
    int32_t *out_rows;  // [max_tiles][SPOPS_IGEMM_TILE_ROWS]; -1 after the last row
    int32_t *records;   // [max_records][SPOPS_IGEMM_RECORD_INTS]; NULL: rows of groups
    int32_t *first; // [max_tiles + 1]: first record of each tile, as tiles lie; then their number

    // Pairs of tiles that follow each other, and the taps that either has; of kernel maps of up to 32 taps,
    // NULL else. A pair's taps count like records: `pairs` and `pair_first` are `tiles` and `first` of pairs.
    int32_t *pair_totals; // [2]: pairs, their taps
    int32_t *pairs; // [max_tiles / 2, rounded up][4]: first tap, taps, pair, 0; most taps first
    int32_t *pair_first; // [.. + 1]
    int32_t *group_taps; // [..][4]: bit k: the pair's group has a row at tap k
    int32_t taps_a_row;  // on average; 0: not known

    // Made from lists of neighbours; zero else.
    bool adds;
    bool has_members; // else they lie in the lists
    bool has_units;   // for gradients of weights; needs adds
    int64_t max_rows, max_sums, max_members, max_units;
    // [max_sums][4]: row in its group + 256 * members; two members; the third, or, where there are
    // more than three, where the first would lie among `members`
    int32_t *sums;
    const int32_t *members; // those after the second, of sums of more than three; or the lists
    int32_t *units;         // [max_units][2] 2 * record + group; tile. By tap
    int32_t *unit_offsets;  // [num_taps + 1]
} spops_igemm_schedule;

// What plans and scratch are for: products and gradients with up to so many channels on either side.
typedef struct spops_igemm_scratch_args {
    int32_t num_taps;
    int64_t max_x_cols, max_out_cols;
    bool gradients;      // igemm_wgrad too
    int64_t max_records; // of the schedules
    int32_t tile;        // that is asked for; 0: none is
} spops_igemm_scratch_args;

// Which kernels a plan runs.
typedef struct spops_igemm_prepare_args {
    bool products;      // igemm, of schedules that add no rows
    bool adds;          // igemm, of those that do
    bool gradients;     // igemm_wgrad, of pairs
    bool units;         // igemm_wgrad, of units
    bool row_gradients; // igemm_wgrad, without lists
    int32_t tile;       // the one alone of those like it; 0: all
} spops_igemm_prepare_args;

// A schedule from the table, masks and order of a kernel map's side.
typedef struct spops_igemm_schedule_args {
    const spops_igemm_schedule *schedule; // its arrays are written
    const spops_relation_side *side;      // has a table
    int32_t mask_words;
    const uint32_t *masks; // [max_rows][mask_words]
    const int32_t *order;  // [max_rows]
    // [max_tiles][mask_words] of tiles of SPOPS_IGEMM_TILE_ROWS rows in that order; NULL: not known
    const uint32_t *tile_masks;
    int32_t *workspace; // [SPOPS_IGEMM_WORKSPACE(max_tiles)]
} spops_igemm_schedule_args;

// Several schedules, made in the launches of one. Each has a workspace of its own.
typedef struct spops_igemm_schedules_args {
    int32_t num;
    const spops_igemm_schedule_args *each; // [num]
} spops_igemm_schedules_args;

// A schedule from lists of neighbours, in two passes with one workspace: count writes num_tiles and
// tiles, fill the rest. In between capacities may be set to what was counted.
typedef struct spops_igemm_lists_args {
    const spops_igemm_schedule *schedule;
    int32_t taps;                    // along an axis
    const spops_relation_side *side; // has lists by row, with keys
    void *workspace;                 // igemm_lists_bytes
} spops_igemm_lists_args;

// A schedule of rows of groups, of which group k has the rows offsets[k] .. offsets[k + 1] - 1.
typedef struct spops_igemm_group_args {
    const spops_igemm_schedule *schedule; // its tiles are written
    const int32_t *offsets;               // [num_taps + 1]
} spops_igemm_group_args;

// out[i] = epilogue(sum over taps k of x[row of i at k] * W[k]). W is [num_taps][C_in][C_out], dense; the sum is in f32. With
// w_transposed, W is [num_taps][C_out][C_in] (the forward layer's, seen by its input gradient), and
// with mirrored tap k of the schedule has the matrix num_taps - 1 - k.
typedef struct spops_igemm_args {
    const spops_igemm_schedule *schedule;
    spops_matrix x;   // [rows, C_in] f16, bf16, or f32 (products in tf32)
    spops_matrix w;   // [num_taps * C_in, C_out], or [num_taps * C_out, C_in]; dtype of x
    spops_matrix out; // [rows, C_out]; dtype of x, or f32
    spops_epilogue epilogue;
    bool w_transposed, mirrored;
    bool whole_sums;  // the taps of a row are one sum, however few the tiles are
    bool reads_ahead; // what is read but rows is older than the layer before (spops/layer.h)
    int32_t tile; // a row of kernels/igemm/igemm_tuning.h; 0, or one of gradients: by the arguments
    const int32_t *num_rows; // [1] rows of out that count, where tiles are not listed; NULL: all
    uint32_t *tickets;       // zero; left zero; a quarter of scratch, as a context has them
    void *scratch;           // igemm_scratch_bytes
} spops_igemm_args;

// dW[k] = sum over the pairs p of tap k of x[in_rows[p]]^T g[out_rows[p]], summed in f32. Without
// lists (tap_offsets, in_rows and out_rows NULL; one tap) pair p is row p of both. Or it runs over the
// units of a schedule, whose rows of x are added first: a unit is a group of a record,
// its 64 rows of x, sums among them, and their rows of g.
typedef struct spops_igemm_wgrad_args {
    int32_t num_taps;
    int64_t max_pairs;
    const int32_t *tap_offsets;        // [num_taps + 1]
    const int32_t *in_rows, *out_rows; // [max_pairs]
    const int32_t *num_rows;           // [1] pairs that count, without lists; NULL: all
    const spops_igemm_schedule *units; // has them; instead of the five above. NULL: pairs
    spops_matrix x, g;                 // [rows, C_in], [rows, C_out]: f16 or bf16, both alike
    spops_matrix dw;                   // [num_taps * C_in, C_out], dense: f32, or dtype of x
    float *g_sums; // [C_out] sums of the rows of g that count, without lists; NULL: none
    int32_t tile;  // likewise; 0, or one of products: by the arguments
    void *scratch; // igemm_scratch_bytes
} spops_igemm_wgrad_args;

#ifdef __cplusplus
}
#endif

#endif
