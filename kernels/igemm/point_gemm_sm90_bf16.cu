// SPDX-License-Identifier: Apache-2.0
// The products of point convolutions on sm_90a, in bf16.
#include "kernels/igemm/point_gemm_sm90_launch.cuh"

template spops_status spops::launch_point_gemm_sm90<__nv_bfloat16>(spops_context *,
                                                                   const spops_igemm_args *);
template spops_status spops::prepare_point_gemm_sm90<__nv_bfloat16>(spops_context *);
