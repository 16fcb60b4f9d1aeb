// SPDX-License-Identifier: Apache-2.0
// The products of point convolutions on sm_90a, in f16.
#include "kernels/igemm/point_gemm_sm90_launch.cuh"

template spops_status spops::launch_point_gemm_sm90<__half>(spops_context *,
                                                            const spops_igemm_args *);
template spops_status spops::prepare_point_gemm_sm90<__half>(spops_context *);
