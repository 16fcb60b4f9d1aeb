// SPDX-License-Identifier: Apache-2.0
// Reductions other than the sum of f16 rows.
#include "kernels/segreduce/segreduce_launch.cuh"

namespace spops
{

template spops_status launch_other<f16>(spops_context *, const spops_segreduce_args *);

} // namespace spops
