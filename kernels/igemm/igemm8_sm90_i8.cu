// SPDX-License-Identifier: Apache-2.0
// The products of gathered rows with the matrices of taps on sm_90a, in i8.
#include "kernels/igemm/igemm8_sm90.cuh"

template spops_status spops::launch_igemm8_sm90<int8_t>(spops_context *, const spops_igemm8_args *,
                                                        int);
template spops_status spops::prepare_igemm8_sm90<int8_t>(spops_context *, int);
