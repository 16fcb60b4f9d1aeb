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

// Load the kernels of the forward call that heads of a dim may need, and let them have the shared
// memory that they ask for: once a context, before they are launched.
template <class T> spops_status prepare_attention(spops_context *ctx, int dim);

// Is f32 multiplied as tf32, by a kernel whose blocks need so much shared memory?
inline bool takes_tf32(const spops_context *ctx, const spops_attention_args *args,
                       size_t shared_bytes)
{
    return args->tf32 && ctx->info.compute_capability >= 80 &&
           shared_bytes <= (size_t)ctx->block_shared_bytes;
}

// Tiles of 64 entries times heads and their blocks are counted in 32 bits.
inline spops_status check_attention_blocks(spops_context *ctx, const char *call, int64_t max_tiles,
                                           int heads)
{
    if (max_tiles <= INT32_MAX / 2 / heads) return SPOPS_STATUS_OK;
    return spops_fail(
        ctx, SPOPS_STATUS_NOT_SUPPORTED,
        "%s: patches have up to %lld tiles of 64 rows, expected up to %d with %d heads", call,
        (long long)max_tiles, INT32_MAX / 2 / heads, heads);
}

inline attention_rows rows_of_view(const spops_attention_view &view)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(view.dtype);
    return {static_cast<unsigned char *>(view.data), view.row_stride * bytes,
            view.head_stride * bytes};
}

// Are all heads of all rows multiples of `bytes`, in bytes, from address 0 on?
inline bool is_aligned(const attention_rows &rows, int bytes)
{
    return ((uintptr_t)rows.data | (uintptr_t)rows.row | (uintptr_t)rows.head) % bytes == 0;
}

// Blocks of passes that walk rows or entries, a block or a warp to each.
inline dim3 blocks_of_rows(const spops_context *ctx, int64_t rows)
{
    const int64_t most = (int64_t)ctx->info.num_processors * 8;
    return dim3((unsigned)(rows < most ? rows : most));
}
inline dim3 blocks_of_warps(const spops_context *ctx, int64_t rows, int threads)
{
    return blocks_of_rows(ctx, (rows * 32 + threads - 1) / threads);
}

// Every kernel clears the rows that are no query, so that there is a block even without a tile.
inline int64_t attention_blocks(int64_t tiles)
{
    return tiles > 0 ? tiles : 1;
}

// A block of which takes a tile of 64 queries of a head, heads innermost.
struct attention_kernel {
    void (*run)(attention_params);
    unsigned threads;
    size_t shared_bytes;
};

// T: f16, bf16; float, which is multiplied as tf32.
template <class T> attention_kernel attention_sm80(int dim);
attention_kernel attention_f32(int dim);

// Tiles of 128 queries of heads of a dim that attention_tuning.h has, in rows that are `wide`. small:
// patches are hardly larger than a tile.
template <class T>
spops_status launch_attention_sm90(spops_context *ctx, const attention_params &p, int64_t max_tiles,
                                   bool small);
template <class T> spops_status prepare_attention_sm90(spops_context *ctx, int dim);

} // namespace spops

#endif
