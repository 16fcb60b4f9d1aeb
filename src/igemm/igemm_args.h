// SPDX-License-Identifier: Apache-2.0
// What the matrix kernels are told: products of gathered rows with the matrix of a tap, summed where
// the row of the output lies ("output-stationary"), and the gradient of those matrices.
#ifndef SPOPS_IGEMM_IGEMM_ARGS_H
#define SPOPS_IGEMM_IGEMM_ARGS_H

#include "core/context.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rows of one product, what a warpgroup multiplies at once; and of a tile, two of these.
#define SPOPS_IGEMM_GROUP_ROWS 64
#define SPOPS_IGEMM_TILE_ROWS  128

// int32 that making a schedule works in.
#define SPOPS_IGEMM_WORKSPACE(max_tiles) ((max_tiles) + 1024)

// int32 before the rows of a record: tap, bit g set where group g has a row, tile, 0.
#define SPOPS_IGEMM_RECORD_HEAD 4
#define SPOPS_IGEMM_RECORD_INTS (SPOPS_IGEMM_RECORD_HEAD + SPOPS_IGEMM_TILE_ROWS)

// The work of a product, tile by tile. A tile is SPOPS_IGEMM_TILE_ROWS output rows; a record is one tap that
// some of them have, with the input row of each (-1: none). The records of a tile follow each
// other, taps ascending; a tile without any has one without groups. Made once a map, on the stream.
//
// Rows of groups have no records: taps are matrices, and a tile is {first row, end, matrix, 0} of
// rows that lie beside each other, in x as in out. With one matrix, tiles need not be listed: tiles NULL,
// num_tiles NULL.
typedef struct spops_igemm_schedule {
    int32_t num_taps;
    int64_t max_tiles, max_records;
    int32_t *num_tiles; // [2]: tiles, records; of rows of groups [1]
    int32_t *tiles;     // [max_tiles][4]: first record, records, tile, 0; most records first
    int32_t *out_rows;  // [max_tiles][SPOPS_IGEMM_TILE_ROWS]; -1 after the last row
    int32_t *records;   // [max_records][SPOPS_IGEMM_RECORD_INTS]; NULL: rows of groups
    int32_t *first; // [max_tiles + 1]: first record of each tile, as tiles lie; then their number
} spops_igemm_schedule;

// What plans and scratch are for: products and gradients with up to so many channels on either side.
typedef struct spops_igemm_scratch_args {
    int32_t num_taps;
    int64_t max_x_cols, max_out_cols;
    bool gradients;      // igemm_wgrad too
    int64_t max_records; // of the schedules; 0: no products
} spops_igemm_scratch_args;

// Which kernels a plan runs.
typedef struct spops_igemm_prepare_args {
    bool products;  // igemm
    bool gradients; // igemm_wgrad, of pairs
    bool units;     // igemm_wgrad, of units
} spops_igemm_prepare_args;

// A schedule from the table, masks and order of a kernel map's side.
typedef struct spops_igemm_schedule_args {
    const spops_igemm_schedule *schedule; // its arrays are written
    int64_t max_rows;
    const int32_t *num_rows; // [1]
    const int32_t *table;    // [max_rows][table_stride]
    int32_t table_stride;
    int32_t mask_words;
    const uint32_t *masks; // [max_rows][mask_words]
    const int32_t *order;  // [max_rows]
    int32_t *workspace;    // [SPOPS_IGEMM_WORKSPACE(max_tiles)]
} spops_igemm_schedule_args;

// Several schedules, made in the launches of one. Each has a workspace of its own.
typedef struct spops_igemm_schedules_args {
    int32_t num;
    const spops_igemm_schedule_args *each; // [num]
} spops_igemm_schedules_args;

// A schedule of rows of groups, of which group k has the rows offsets[k] .. offsets[k + 1] - 1.
typedef struct spops_igemm_group_args {
    const spops_igemm_schedule *schedule; // its tiles are written
    const int32_t *offsets;               // [num_taps + 1]
} spops_igemm_group_args;

// out[i] = finish(sum over taps k of x[row of i at k] * W[k]), with
//     finish(a)[c] = relu((a[c] + bias[c]) * scale[c] + shift[c] + residual[i, c]),
// parts that are NULL or 0 left out. W is [num_taps][C_in][C_out], dense; the sum is in f32. With
// w_transposed, W is [num_taps][C_out][C_in] (the forward layer's, seen by its input gradient), and
// with mirrored tap k of the schedule has the matrix num_taps - 1 - k.
typedef struct spops_igemm_args {
    const spops_igemm_schedule *schedule;
    spops_matrix x;        // [rows, C_in] f16, bf16, or f32 (products in tf32)
    spops_matrix w;        // [num_taps * C_in, C_out], or [num_taps * C_out, C_in]; dtype of x
    spops_matrix out;      // [rows, C_out]; dtype of x, or f32
    spops_matrix residual; // dtype of out; data NULL: none
    const float *bias, *scale, *shift; // [C_out] or NULL
    bool relu, w_transposed, mirrored;
    const int32_t *num_rows; // [1] rows of out that count, where tiles are not listed; NULL: all
    uint32_t *tickets;       // zero; left zero; a quarter of scratch, as a context has them
    void *scratch;           // igemm_scratch_bytes
} spops_igemm_args;

// Work list of the weight gradient for point convolution. Rows of x that meet the same row of g at one
// tap are summed first. A unit is one half of a record: 64 rows. Row index -2 marks a summed row. Words
// 2 and 3 of a record are its first sum and the numbers of sums of its halves, 16 bits each.
typedef struct spops_igemm_units {
    const int32_t *offsets;  // [num_taps + 1] of units. NULL: there are pairs
    const int32_t *units;    // [.][2] 2 * record + group; tile. By tap
    const int32_t *records;  // [.][SPOPS_IGEMM_RECORD_INTS]
    const int32_t *out_rows; // [.][SPOPS_IGEMM_TILE_ROWS]
    // [.][4]: row in its group + 256 * members; two members; the third, or, where there are more
    // than three, where they lie
    const int32_t *sums;
    const int32_t *members;
} spops_igemm_units;

// dW[k] = sum over the pairs p of tap k of x[in_rows[p]]^T g[out_rows[p]], summed in f32. Without
// lists (tap_offsets, in_rows and out_rows NULL; one tap) pair p is row p of both.
typedef struct spops_igemm_wgrad_args {
    int32_t num_taps;
    int64_t max_pairs;
    const int32_t *tap_offsets;        // [num_taps + 1]
    const int32_t *in_rows, *out_rows; // [max_pairs]
    const int32_t *num_rows;           // [1] pairs that count, without lists; NULL: all
    spops_igemm_units units;           // instead of the four above
    spops_matrix x, g;                 // [rows, C_in], [rows, C_out]: f16 or bf16, both alike
    spops_matrix dw;                   // [num_taps * C_in, C_out], dense: f32, or dtype of x
    void *scratch;                     // igemm_scratch_bytes
} spops_igemm_wgrad_args;

#ifdef __cplusplus
}
#endif

#endif
