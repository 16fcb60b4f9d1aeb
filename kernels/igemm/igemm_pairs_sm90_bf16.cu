// SPDX-License-Identifier: Apache-2.0
// The products of igemm_pairs_sm90.cuh in bf16.
#include "kernels/igemm/igemm_pairs_sm90_launch.cuh"

template spops_status spops::launch_igemm_pairs<__nv_bfloat16>(spops_context *,
                                                               const spops_igemm_args *,
                                                               const weight_form &, int32_t);
template spops_status spops::prepare_igemm_pairs<__nv_bfloat16>(spops_context *, int32_t);
