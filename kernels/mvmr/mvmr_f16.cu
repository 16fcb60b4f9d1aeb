// SPDX-License-Identifier: Apache-2.0
// MVMR of f16 rows.
#include "kernels/mvmr/mvmr_kernel.cuh"

namespace spops
{

template spops_status launch_mvmr<f16>(spops_context *, const spops_mvmr_args *,
                                       const mvmr_params &, bool);
template spops_status prepare_mvmr<f16>(spops_context *);

} // namespace spops
