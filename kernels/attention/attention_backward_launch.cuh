// SPDX-License-Identifier: Apache-2.0
// The kernels of the gradients of attention, for the launcher in attention_backward.cu.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_LAUNCH_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_LAUNCH_CUH

#include "kernels/attention/attention_backward_params.cuh"
#include "kernels/core/launch.cuh"

namespace spops
{

// max_tiles: of p.tiles, which have up to 64 own entries for sm_80 and f32, up to 128 for sm_90.
template <class T>
spops_status launch_attention_backward_sm80(spops_context *ctx, const attention_backward_params &p,
                                            attention_side side, int64_t max_tiles);
spops_status launch_attention_backward_f32(spops_context *ctx, const attention_backward_params &p,
                                           attention_side side, int64_t max_tiles);
// That a block of those two needs.
size_t attention_backward_shared_bytes(const attention_backward_params &p, bool f32);
// Rows are `wide`; without biases.
template <class T>
spops_status launch_attention_backward_sm90(spops_context *ctx, const attention_backward_params &p,
                                            attention_side side, int64_t max_tiles);

// Parts of grad_table that a tile of 64 own entries makes.
template <class T> constexpr int attention_table_parts = sizeof(T) == 4 ? 2 : 1;

} // namespace spops

#endif
