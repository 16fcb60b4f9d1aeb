// SPDX-License-Identifier: Apache-2.0
// What the matrix kernels of point convolutions are told: the products of summed rows with the matrix
// of a tap, added where the row of the output lies. Rows that share (output, tap) are added while
// they are gathered, so that an output has at most one row a tap.
#ifndef SPOPS_POINTCONV_POINT_GEMM_ARGS_H
#define SPOPS_POINTCONV_POINT_GEMM_ARGS_H

#include "igemm/igemm_args.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPOPS_POINT_GROUP_ROWS SPOPS_IGEMM_GROUP_ROWS // that a warpgroup multiplies at once
#define SPOPS_POINT_GROUPS     2                      // of a tile
#define SPOPS_POINT_TILE_ROWS  (SPOPS_POINT_GROUPS * SPOPS_POINT_GROUP_ROWS)

// int32 of a record: tap; bit g set where group g has a row; the first of its sums; how many of
// these are group 0's, and above 16 bits group 1's; then for each row of the tile the input row, -1
// where it has none, or -2 where a sum tells.
#define SPOPS_POINT_RECORD_HEAD SPOPS_IGEMM_RECORD_HEAD
#define SPOPS_POINT_RECORD_INTS SPOPS_IGEMM_RECORD_INTS

typedef struct spops_point_totals {
    int32_t num_tiles, num_records, num_sums, num_members, num_units;
    int32_t overflow; // 1: something did not fit; there are no tiles then
} spops_point_totals;

// The work of a product, tile by tile. The records of a tile follow each other, taps ascending; a
// tile without any has one without groups.
typedef struct spops_point_schedule {
    int64_t max_rows, max_tiles, max_records, max_sums, max_members, max_units;
    int32_t num_taps;
    bool sums_rows;             // else a tap has as many records as a row of the tile has there
    bool has_members;           // else they lie in the lists
    bool has_units;             // for gradients of weights; needs sums_rows
    spops_point_totals *totals; // [1]
    int32_t *tiles;    // [max_tiles][4]: first record, records, tile, 0; most records first
    int32_t *out_rows; // [max_tiles][tile rows]; -1 after the last row
    int32_t *records;  // [max_records][SPOPS_POINT_RECORD_INTS]
    // [max_sums][4]: row in its group + 256 * members; two members; the third, or, where there are
    // more than three, where the first would lie among `members`
    int32_t *sums;
    const int32_t *members; // those after the second, of sums of more than three; or the lists
    int32_t *units, *unit_offsets; // spops_igemm_units
} spops_point_schedule;

typedef struct spops_point_schedule_args {
    const spops_point_schedule *schedule;
    int32_t taps;            // along an axis
    const int32_t *num_rows; // [1] in use
    const int32_t *offsets;  // lists by row (spops_neighbor_lists)
    const int32_t *rows;
    const uint16_t *row_taps;
    void *workspace; // point_schedule_bytes
} spops_point_schedule_args;

// out[i] = finish(sum over records of the row's sum * W[tap]), as in spops_igemm_args.
typedef struct spops_point_gemm_args {
    const spops_point_schedule *schedule;
    spops_matrix x;        // [rows, C_in] f16 or bf16
    spops_matrix w;        // [num_taps * C_in, C_out], or [num_taps * C_out, C_in]; dtype of x
    spops_matrix out;      // [rows, C_out]; dtype of x, or f32
    spops_matrix residual; // dtype of out; data NULL: none
    const float *bias, *scale, *shift; // [C_out] or NULL
    bool relu, w_transposed, mirrored;
    int32_t variant; // point_gemm_choose
} spops_point_gemm_args;

#ifdef __cplusplus
}
#endif

#endif
