// SPDX-License-Identifier: Apache-2.0
// Launching the products of point convolutions on sm_90a; defined in a source of that architecture.
#ifndef SPOPS_KERNELS_IGEMM_POINT_GEMM_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_POINT_GEMM_LAUNCH_CUH

#include "igemm/igemm_args.h"

namespace spops
{

template <class T>
spops_status launch_point_gemm_sm90(spops_context *ctx, const spops_igemm_args *args);
template <class T> spops_status prepare_point_gemm_sm90(spops_context *ctx);

} // namespace spops

#endif
