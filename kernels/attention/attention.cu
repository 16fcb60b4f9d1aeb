// SPDX-License-Identifier: Apache-2.0
// Attention: which kernel serves a call, and the copies of q and k that it reads where there is a norm
// or a rotary embedding.
#include <algorithm>

#include "core/memory.h"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_turn.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/launchers.h"
#include "patches/patch_arrays.h"

namespace
{

using namespace spops;

struct forward_workspace {
    unsigned char *copies[SPOPS_ATTENTION_NUM_TURNED]; // [rows][heads][padded_dim]
};

forward_workspace carve_workspace(const spops_attention_scratch_args *a, spops_carver *c)
{
    const int64_t rows[] = {a->patches->num_rows, a->patches->num_key_rows};
    const int64_t heads[] = {a->heads, a->kv_heads};
    forward_workspace w;
    for (int side = 0; side < SPOPS_ATTENTION_NUM_TURNED; ++side)
        w.copies[side] = (unsigned char *)spops_carve(
            c, attention_copies(*a, side) ? rows[side] : 0, heads[side] * padded_dim(a->dim),
            spops_dtype_bytes(a->dtype));
    return w;
}

// The tile of a call; sm90: rows are as those of sm_90 take them; pairs: heads of a row follow each other.
template <class T>
int32_t tile_of(const spops_context *ctx, const spops_attention_scratch_args *sizes, bool sm90,
                bool pairs)
{
    spops_attention_case at = attention_case_of(ctx, sizes);
    at.sm90 = at.sm90 && sm90;
    at.pairs = at.pairs && pairs;
    return attention_tile_of<T>(ctx, at, sizes->tile, attention_of_tile<T>,
                                [](const attention_kernel &kernel) { return kernel.shared_bytes; });
}

bool heads_follow(const attention_params &p)
{
    const int64_t head = p.dim * 2;
    return p.q.head == head && p.k.head == head && p.v.head == head;
}

// Heads of less than 48 columns are taken several at a time; strides count in 32 bits.
bool sm90_takes(const attention_params &p)
{
    const int64_t longest = std::max(p.q.row, std::max(p.k.row, p.v.row));
    return p.wide && p.pairs && longest <= UINT32_MAX && p.scale > 0.0f &&
           (p.dim >= 48 || heads_follow(p));
}

template <class T> spops_status attend(spops_context *ctx, const spops_attention_args *args)
{
    const spops_patch_arrays *patches = args->patches;
    if (sizeof(T) == 2 && ctx->info.compute_capability < 80)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "attention_execute: f16 and bf16 need a device of sm_80 or later, this "
                          "one has sm_%d",
                          (int)ctx->info.compute_capability);
    SPOPS_TRY(check_attention_blocks(ctx, "attention_execute",
                                     patches->max_q_tiles[SPOPS_PATCH_TILE_64], args->heads));
    const spops_attention_scratch_args sizes = spops_attention_scratch_args_of(args, false);
    spops_carver carver = {static_cast<char *>(args->workspace), 0};
    const forward_workspace w = carve_workspace(&sizes, &carver);
    attention_params p = {};
    p.q = turned_rows<T>(args, SPOPS_ATTENTION_Q, w.copies[SPOPS_ATTENTION_Q]);
    p.k = turned_rows<T>(args, SPOPS_ATTENTION_K, w.copies[SPOPS_ATTENTION_K]);
    p.v = rows_of_view(args->v);
    p.o = rows_of_view(args->o);
    p.lse = args->lse;
    p.q_rows = patches->q_rows;
    p.k_rows = patches->k_rows;
    p.k_offsets = patches->k_offsets;
    p.q_rest = patches->q_rest;
    p.num_q_rest = &patches->state->num_q_rest;
    p.heads = args->heads;
    p.dim = args->dim;
    p.group = args->heads / args->kv_heads;
    p.key_rows = patches->num_key_rows;
    p.scale = args->scale * log2_of_e;
    p.pairs = p.dim % 2 == 0 && is_aligned(p.o, 2 * (int)sizeof(T));
    p.bias = args->bias;
    p.wide = p.dim * (int)sizeof(T) % 16 == 0 && is_aligned(p.q, 16) && is_aligned(p.k, 16) &&
             is_aligned(p.v, 16);
    p.wide_o = is_aligned(p.o, 16);

    const int32_t tile = tile_of<T>(ctx, &sizes, sm90_takes(p), heads_follow(p));
    if (tile == 0) return no_attention_tile(ctx, "attention_execute", args->tile);
    const bool sm90 = attention_kernel_of(tile) == SPOPS_ATTENTION_SM90;
    if (!sm90)
        SPOPS_TRY(check_attention_shared(ctx, "attention_execute", p.dim,
                                         attention_of_tile<T>(tile).shared_bytes));
    SPOPS_TRY(turn_rows<T>(ctx, args, p.q, p.k));
    const int size = sm90 ? SPOPS_PATCH_TILE_128 : SPOPS_PATCH_TILE_64;
    p.tiles = reinterpret_cast<const int4 *>(patches->q_tiles[size]);
    p.num_tiles = &patches->state->num_q_tiles[size];
#ifdef SPOPS_SM90A
    if constexpr (sizeof(T) == 2)
        if (sm90) return launch_attention_sm90<T>(ctx, p, patches->max_q_tiles[size], tile);
#endif
    // Rows that are no query may be many where tiles are few: blocks without a tile clear them.
    const int64_t blocks =
        std::max(patches->max_q_tiles[size] * p.heads, (int64_t)ctx->info.num_processors);
    const attention_kernel kernel = attention_of_tile<T>(tile);
    return launch_preparing<AFTER_PREVIOUS>(ctx, "attention: launch", kernel.run,
                                            dim3((unsigned)blocks), kernel.threads,
                                            kernel.shared_bytes, p);
}

template <class T>
spops_status prepare(spops_context *ctx, const spops_attention_scratch_args *args)
{
    spops_attention_case at = attention_case_of(ctx, args);
    at.sm80 = ctx->info.compute_capability >= 80; // also of f32, whichever products calls want
    return prepare_attention_tiles(at, args->tile, [&](int32_t tile) -> spops_status {
#ifdef SPOPS_SM90A
        if constexpr (sizeof(T) == 2)
            if (attention_kernel_of(tile) == SPOPS_ATTENTION_SM90)
                return prepare_attention_sm90<T>(ctx, tile);
#endif
        const attention_kernel kernel = attention_of_tile<T>(tile);
        if (kernel.shared_bytes > (size_t)ctx->block_shared_bytes) return SPOPS_STATUS_OK;
        return prepare_shared(ctx, "attention: prepare", kernel.run);
    });
}

} // namespace

spops_status spops::prepare_attention(spops_context *ctx, const spops_attention_scratch_args *args)
{
    return with_dtype(args->dtype,
                      [&](auto tag) { return prepare<typename decltype(tag)::type>(ctx, args); });
}

int32_t spops::attention_forward_tile(const spops_context *ctx,
                                      const spops_attention_scratch_args *args)
{
    int32_t tile = 0;
    (void)with_dtype(args->dtype, [&](auto tag) {
        tile = tile_of<typename decltype(tag)::type>(ctx, args, true, true);
        return SPOPS_STATUS_OK;
    });
    return tile;
}

size_t spops::attention_forward_bytes(const spops_attention_scratch_args *args)
{
    spops_carver carver = {};
    carve_workspace(args, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_attention(spops_context *ctx, const spops_attention_args *args)
{
    return with_dtype(args->q.dtype,
                      [&](auto tag) { return attend<typename decltype(tag)::type>(ctx, args); });
}
