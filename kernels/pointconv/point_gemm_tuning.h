// SPDX-License-Identifier: Apache-2.0
// The kernels of point convolutions on sm_90: which variants are compiled, and which is taken.
#ifndef SPOPS_KERNELS_POINTCONV_POINT_GEMM_TUNING_H
#define SPOPS_KERNELS_POINTCONV_POINT_GEMM_TUNING_H

// X(variant, gather warps, sums of a lane on their way together, asks ahead)
#define SPOPS_POINT_GEMM_VARIANTS(X)                                                               \
    X(1, 8, 4, false)                                                                              \
    X(2, 12, 3, true)

#define SPOPS_POINT_GEMM_NUM_VARIANTS 2

// H200, f16, points_200000, cold, us: forward 64 to 128 226, its gradient of x 374. Variant 2 has
// not been measured.
#define SPOPS_POINT_GEMM_DEFAULT_VARIANT 1

#endif
