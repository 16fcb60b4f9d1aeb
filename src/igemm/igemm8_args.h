// SPDX-License-Identifier: Apache-2.0
// Products of rows of 8 bits with the matrices of taps, and what becomes of their sums.
#ifndef SPOPS_IGEMM_IGEMM8_ARGS_H
#define SPOPS_IGEMM_IGEMM8_ARGS_H

#include "igemm/igemm_args.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sums of i8 are exact below so many products of a row.
#define SPOPS_IGEMM8_MAX_PRODUCTS ((int64_t)131071)

// v = sum * (x_scale * w_scales[o]), then what `rest` says, in f32; where out has 8 bits, v * (1 / out_scale)
// is rounded to nearest even and saturates, and the residual counts residual_scale times. Scales that are
// NULL are 1. On the CPU the rest's out is not looked at.
typedef struct spops_epilogue8 {
    const float *x_scale, *w_scales, *residual_scale, *out_scale;
    spops_epilogue rest;
} spops_epilogue8;

// Triplets by tile of output rows (mvmr/mvmr.h), which the CPU walks.
struct spops_triplet_tiles;

// out[i] = epilogue(sum over taps k of x[row of i at k] * W[k]^T); sums of i8 are exact, in s32, those of
// f8e4m3 in f32.
typedef struct spops_igemm8_args {
    const spops_igemm_schedule *schedule;    // CUDA
    const struct spops_triplet_tiles *tiles; // CPU; NULL: row i of out has row i of x, by tap 0
    spops_matrix x;                          // [rows, C_in], f8e4m3 or i8
    spops_matrix
        w; // [num_taps * C_out, C_in rounded up to 16], dense, aligned to 16 bytes, dtype of x
    spops_matrix out; // [rows, C_out]; f32, f16, or dtype of x
    spops_epilogue8 epilogue;
    bool whole_sums;         // as of igemm
    bool fast_sums;          // sums of f8e4m3 may stay in matrix units
    int32_t tile;            // of igemm, whose columns it names; 0: by the arguments
    const int32_t *num_rows; // [1] rows of out that count; NULL: all
    uint32_t *tickets;
    void *scratch; // igemm_scratch_bytes
} spops_igemm8_args;

// Which kernels a plan runs.
typedef struct spops_igemm8_prepare_args {
    int32_t tile; // 0: all
} spops_igemm8_prepare_args;

#ifdef __cplusplus
}
#endif

#endif
