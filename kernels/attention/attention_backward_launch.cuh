// SPDX-License-Identifier: Apache-2.0
// The kernels of the gradients of attention, for the launcher in attention_backward.cu.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_LAUNCH_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_LAUNCH_CUH

#include "kernels/attention/attention_backward_fused.cuh"
#include "kernels/attention/attention_backward_narrow.cuh"
#include "kernels/attention/attention_launch.cuh"

namespace spops
{

// Tiles of 64 own entries; heads are innermost, and then the blocks of a tile.
struct attention_backward_kernel {
    void (*run[2])(attention_backward_params); // by attention_side
    unsigned threads;
    int blocks_of_tile; // each with a part of grad_table
    bool splits;        // of keys, grad_first and grad_second have blocks of their own
    size_t rows_bytes;  // of shared memory
    size_t pairs_bytes; // besides, where there are biases

    size_t shared_bytes(const attention_backward_params &p) const;
};

// T: f16, bf16; float, which is multiplied as tf32, unless the tile is of plain products.
template <class T> attention_backward_kernel attention_backward_of_tile(int32_t tile);

// At most, of a kernel for T.
template <class T> constexpr int attention_blocks_of_tile = sizeof(T) == 4 ? 2 : 1;

// Tiles of 128 own entries; rows are `wide`, with strides of 32 bits, and there are no biases.
template <class T>
spops_status launch_attention_backward_sm90(spops_context *ctx, const attention_backward_params &p,
                                            attention_side side, int64_t max_tiles, int32_t tile);
template <class T> spops_status prepare_attention_backward_sm90(spops_context *ctx, int32_t tile);

// The same of keys and queries in one pass, of heads whose rows are `lines` of 64 columns, 1 or 2.
template <class T>
spops_status launch_attention_backward_fused(spops_context *ctx, const attention_fused_params &p,
                                             int64_t max_tiles, int lines);
template <class T> spops_status prepare_attention_backward_fused(spops_context *ctx, int lines);

// The same of heads of 16 columns, as far as gradients of rows or entries.
template <class T>
spops_status launch_attention_backward_narrow(spops_context *ctx, const attention_narrow_params &p,
                                              int64_t max_patches, int64_t max_queries);
template <class T> spops_status prepare_attention_backward_narrow(spops_context *ctx);

} // namespace spops

#endif
