// SPDX-License-Identifier: Apache-2.0
// Pooling over spans of f16 features.
#include "kernels/bevpool/bev_spans_pool.cuh"

namespace spops::pool
{

template spops_status prepare_pool<f16>(spops_context *, int32_t);
template spops_status pool_wedges<f16>(spops_context *, const pool_params &, int32_t, int32_t);

} // namespace spops::pool
