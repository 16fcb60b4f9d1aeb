// SPDX-License-Identifier: Apache-2.0
// The products of gathered rows with the matrices of taps on sm_80 and later, in i8.
#include "kernels/igemm/igemm8_sm80.cuh"

template spops_status spops::launch_igemm8_sm80<int8_t>(spops_context *, const spops_igemm8_args *,
                                                        int);
template spops_status spops::prepare_igemm8_sm80<int8_t>(spops_context *, int);
