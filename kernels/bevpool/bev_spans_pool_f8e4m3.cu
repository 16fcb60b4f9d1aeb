// SPDX-License-Identifier: Apache-2.0
// Pooling over spans of f8e4m3 features.
#include "kernels/bevpool/bev_spans_pool.cuh"

namespace spops::pool
{

template spops_status prepare_pool<f8e4m3>(spops_context *, int32_t);
template spops_status pool_wedges<f8e4m3>(spops_context *, const pool_params &, int32_t, int32_t);

} // namespace spops::pool
