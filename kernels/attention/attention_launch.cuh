// SPDX-License-Identifier: Apache-2.0
// Launching attention: what is between the slots and the instances of kernels, which are in a source
// for each architecture.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_LAUNCH_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_LAUNCH_CUH

#include "kernels/attention/attention_common.cuh"
#include "kernels/attention/attention_tuning.h"
#include "kernels/core/launch.cuh"

namespace spops
{

// Workspace of a forward call, and its tile where rows are as all kernels take them.
size_t attention_forward_bytes(const spops_attention_scratch_args *args);
int32_t attention_forward_tile(const spops_context *ctx, const spops_attention_scratch_args *args);

// Load the kernels of the forward call that it may need, and let them have the shared memory that they
// ask for: once a context, before they are launched.
spops_status prepare_attention(spops_context *ctx, const spops_attention_scratch_args *args);

// Whether one pass for keys and queries is faster than a pass for each: patches in the mean.
inline bool attention_is_faster_fused(const spops_context *ctx,
                                      const spops_attention_scratch_args *a)
{
    const spops_patch_arrays *const p = a->patches;
    const int64_t processors = ctx->info.num_processors, num = p->max_patches;
    if (a->dim <= SPOPS_ATTENTION_NARROW_COLUMNS)
        return p->max_keys >= num * SPOPS_ATTENTION_NARROW_KEYS &&
               p->max_keys <= num * SPOPS_ATTENTION_NARROW_MOST &&
               p->max_queries >= num * SPOPS_ATTENTION_FUSED_KEYS &&
               p->max_queries <= num * SPOPS_ATTENTION_NARROW_MOST && num * a->heads >= processors;
    return p->max_keys >= num * SPOPS_ATTENTION_FUSED_KEYS &&
           p->max_k_tiles[SPOPS_PATCH_TILE_128] * a->heads >= processors;
}

// What a tile is chosen by, where rows are as all kernels take them.
inline spops_attention_case attention_case_of(const spops_context *ctx,
                                              const spops_attention_scratch_args *a)
{
    spops_attention_case at = {};
    at.backward = a->backward;
    at.bytes = (int32_t)spops_dtype_bytes(a->dtype);
    at.dim = a->dim;
#ifdef SPOPS_SM90A
    // Forward, several narrow heads lie in a line, of k and v as of q.
    at.sm90 = ctx->info.compute_capability == 90 && a->bias_range < 0 &&
              (a->backward || a->dim >= 48 || a->kv_heads == a->heads);
#endif
    at.sm80 = ctx->info.compute_capability >= 80 && (at.bytes == 2 || a->tf32);
    at.pairs = a->kv_heads == a->heads && a->heads > 1;
    at.small = a->patches->max_queries <=
               a->patches->max_patches * SPOPS_PATCH_TILE_ENTRIES(SPOPS_PATCH_TILE_128);
    at.fused = attention_is_faster_fused(ctx, a);
    return at;
}

inline spops_attention_kernel attention_kernel_of(int32_t tile)
{
    return spops_attention_row_of(tile)->kernel;
}

// Whether a row before this one is taken in its place.
inline bool attention_row_is_behind(const spops_attention_case &at, const spops_attention_row &row)
{
    for (const spops_attention_row *before = spops_attention_rows; before != &row; ++before)
        if (before->kernel == row.kernel && before->small == row.small &&
            before->pair == row.pair && before->fused == row.fused &&
            spops_attention_suits(&at, before))
            return true;
    return false;
}

// Calls prepare(tile) for each that `at` may run: the one alone that is asked for, else all that suit
// rows of any alignment, and both sizes of patches, but one pass for keys and queries where it is taken.
template <class F>
spops_status prepare_attention_tiles(spops_attention_case at, int32_t asked, const F &prepare)
{
    const spops_attention_row *const named = spops_attention_row_of(asked);
    const bool own = named != nullptr && named->backward == at.backward;
    for (const spops_attention_row &row : spops_attention_rows)
        if (spops_attention_suits(&at, &row) &&
            (own ? &row == named : !attention_row_is_behind(at, row) && (at.fused || !row.fused)))
            SPOPS_TRY(prepare(row.number));
    return SPOPS_STATUS_OK;
}

inline spops_status no_attention_tile(spops_context *ctx, const char *call, int32_t tile)
{
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: options->tile is %d, which does not take these rows", call, (int)tile);
}

// Of a kernel that the table has chosen.
inline spops_status check_attention_shared(spops_context *ctx, const char *call, int dim,
                                           size_t bytes)
{
    if (bytes <= (size_t)ctx->block_shared_bytes) return SPOPS_STATUS_OK;
    return spops_fail(
        ctx, SPOPS_STATUS_NOT_SUPPORTED,
        "%s: %d columns a head need %zu bytes of shared memory, a block of this device "
        "has %d",
        call, dim, bytes, (int)ctx->block_shared_bytes);
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

// T: f16, bf16; float, which is multiplied as tf32, unless the tile is of plain products.
template <class T> attention_kernel attention_of_tile(int32_t tile);

// Tiles of 128 queries, in rows that are `wide`.
template <class T>
spops_status launch_attention_sm90(spops_context *ctx, const attention_params &p, int64_t max_tiles,
                                   int32_t tile);
template <class T> spops_status prepare_attention_sm90(spops_context *ctx, int32_t tile);

// The kernel of a tile by matrix units or plain products, and the tile: the table's, or the one asked for.
// bytes_of(kernel) is the shared memory that a block needs; where tf32 needs more than there is, f32 is
// multiplied plainly. 0: none suits.
template <class T, class Kernel, class F>
int32_t attention_tile_of(const spops_context *ctx, spops_attention_case at, int32_t asked,
                          Kernel (*kernel_of)(int32_t), const F &bytes_of)
{
    const int32_t tile = spops_attention_tile(&at, asked);
    if (sizeof(T) == 2 || tile == 0 || attention_kernel_of(tile) != SPOPS_ATTENTION_SM80 ||
        bytes_of(kernel_of(tile)) <= (size_t)ctx->block_shared_bytes)
        return tile;
    at.sm80 = false;
    return spops_attention_tile(&at, asked);
}

} // namespace spops

#endif
