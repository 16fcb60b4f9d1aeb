// SPDX-License-Identifier: Apache-2.0
// Rows times one matrix on sm_90a, for the launcher in igemm.cu.
#ifndef SPOPS_KERNELS_IGEMM_DENSE_SM90_CUH
#define SPOPS_KERNELS_IGEMM_DENSE_SM90_CUH

#include "kernels/igemm/igemm_launch.cuh"

namespace spops
{

// Whether these rows, which are all of one matrix, can be multiplied here. It does not depend on their number.
bool dense_sm90_fits(const spops_context *ctx, const spops_igemm_args *args, const weight_form &f);

spops_status launch_dense_sm90(spops_context *ctx, const spops_igemm_args *args,
                               const weight_form &f);

spops_status prepare_dense_sm90(spops_context *ctx);

} // namespace spops

#endif
