// SPDX-License-Identifier: Apache-2.0
// The products of gathered rows with the matrices of taps on sm_80 and later, in bf16.
#include "kernels/igemm/igemm_sm80.cuh"

template spops_status spops::launch_igemm_sm80<__nv_bfloat16>(spops_context *,
                                                              const spops_igemm_args *,
                                                              const weight_form &, int32_t);
template spops_status spops::prepare_igemm_sm80<__nv_bfloat16>(spops_context *, bool, int32_t);
