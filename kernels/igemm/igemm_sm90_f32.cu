// SPDX-License-Identifier: Apache-2.0
// The products of gathered rows with the matrices of taps on sm_90a, in f32, whose products are tf32.
#include "kernels/igemm/igemm_sm90_launch.cuh"

template spops_status spops::launch_igemm_sm90<float>(spops_context *, const spops_igemm_args *,
                                                      const weight_form &, int32_t);
template spops_status spops::prepare_igemm_sm90<float>(spops_context *, bool, int32_t);
