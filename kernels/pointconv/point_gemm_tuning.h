// SPDX-License-Identifier: Apache-2.0
// The kernels of point convolutions on sm_90: which variants are compiled, and which is taken.
#ifndef SPOPS_KERNELS_POINTCONV_POINT_GEMM_TUNING_H
#define SPOPS_KERNELS_POINTCONV_POINT_GEMM_TUNING_H

// X(variant, gather warps up to 128 columns, sums of a lane on their way together)
#define SPOPS_POINT_GEMM_VARIANTS(X) X(1, 12, 3)

#define SPOPS_POINT_GEMM_NUM_VARIANTS 1

// H200, f16, points_200000, cold, us: forward 64 to 128 224, its gradient of x 316; with 8 gather
// warps that ask for a stage once the one before is full, 234 and 394. 256 to 256 columns 1,315; in
// tiles of 128 columns, which gather each row twice, 1,534. 512 to 512 5,022 and 5,687.
#define SPOPS_POINT_GEMM_DEFAULT_VARIANT 1

#endif
