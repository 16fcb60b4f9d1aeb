// SPDX-License-Identifier: Apache-2.0
// Launching attention: what is between the slots and the instances of kernels, which are in a source
// for each architecture.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_LAUNCH_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_LAUNCH_CUH

#include "kernels/attention/attention_common.cuh"
#include "kernels/core/launch.cuh"

namespace spops
{

// Workspace of a forward call.
size_t attention_forward_bytes(const spops_attention_scratch_args *args);

// Every kernel clears the rows that are no query, so that there is a block even without a tile.
inline int64_t attention_blocks(int64_t tiles)
{
    return tiles > 0 ? tiles : 1;
}

// Tiles of 64 queries. T: f16, bf16, float.
template <class T>
spops_status launch_attention_sm80(spops_context *ctx, const attention_params &p,
                                   int64_t max_tiles);

// Tiles of 128 queries of heads of a dim that attention_tuning.h has, in rows that are `wide`.
template <class T>
spops_status launch_attention_sm90(spops_context *ctx, const attention_params &p,
                                   int64_t max_tiles);

} // namespace spops

#endif
