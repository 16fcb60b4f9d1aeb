// SPDX-License-Identifier: Apache-2.0
// The products of gathered rows with the matrices of taps on sm_80 and later, in f8e4m3.
#include "kernels/igemm/igemm8_sm80.cuh"

template spops_status spops::launch_igemm8_sm80<spops::f8e4m3>(spops_context *,
                                                               const spops_igemm8_args *, int);
template spops_status spops::prepare_igemm8_sm80<spops::f8e4m3>(spops_context *, int);
