// SPDX-License-Identifier: Apache-2.0
// The gradients of the matrices of taps on sm_90a, for the launcher in igemm_wgrad.cu.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_WGRAD_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_WGRAD_LAUNCH_CUH

#include "igemm/igemm_args.h"

namespace spops
{

spops_status launch_igemm_wgrad_sm90(spops_context *ctx, const spops_igemm_wgrad_args *args);

// All kernels, of pairs or of units.
spops_status prepare_igemm_wgrad_sm90(spops_context *ctx, bool units);

// For up to so many channels of x and g.
size_t igemm_wgrad_sm90_scratch_bytes(const spops_context *ctx, int num_taps, int64_t max_rows,
                                      int64_t max_cols);

} // namespace spops

#endif
