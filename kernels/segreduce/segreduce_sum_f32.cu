// SPDX-License-Identifier: Apache-2.0
// Sums of f32 rows.
#include "kernels/segreduce/segreduce_launch.cuh"

namespace spops
{

template spops_status launch_sum<float>(spops_context *, const spops_segreduce_args *);

} // namespace spops
