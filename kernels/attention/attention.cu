// SPDX-License-Identifier: Apache-2.0
// Attention: which kernel serves a call, and the turned copies of q and k that it reads where there is
// a rotary embedding.
#include <algorithm>

#include "core/memory.h"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_turn.cuh"
#include "kernels/attention/attention_tuning.h"
#include "kernels/core/with_dtype.cuh"
#include "kernels/launchers.h"
#include "patches/patch_arrays.h"

namespace
{

using namespace spops;

#ifdef SPOPS_SM90A
bool sm90_has_dim(int dim)
{
    switch (dim) {
#define SPOPS_VARIANT(dim, ...) case dim:
        SPOPS_ATTENTION_SM90_VARIANTS(SPOPS_VARIANT)
#undef SPOPS_VARIANT
        return true;
    default: return false;
    }
}

// Does the kernel of sm_90 serve such heads?
bool takes_sm90(const spops_context *ctx, const spops_attention_args *args)
{
    return ctx->info.compute_capability == 90 && sm90_has_dim(args->dim) &&
           args->bias.table == nullptr && args->scale > 0.0f;
}
#endif

// Where there is a rotary embedding, kernels read turned copies.
struct forward_workspace {
    unsigned char *q, *k; // [rows][heads][padded_dim]
};

forward_workspace carve_workspace(const spops_attention_scratch_args *a, spops_carver *c)
{
    const int64_t rows = a->rotary_pairs > 0 ? a->patches->num_rows : 0;
    const int64_t cols = (int64_t)a->heads * padded_dim(a->dim);
    const size_t bytes = spops_dtype_bytes(a->dtype);
    forward_workspace w;
    w.q = (unsigned char *)spops_carve(c, rows, cols, bytes);
    w.k = (unsigned char *)spops_carve(c, rows, cols, bytes);
    return w;
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
    attention_params p = {};
    p.q = rows_of_view(args->q);
    p.k = rows_of_view(args->k);
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
    p.scale = args->scale * log2_of_e;
    p.pairs = p.dim % 2 == 0 && is_aligned(p.o, 2 * (int)sizeof(T));
    p.bias = args->bias;
    if (args->rotary.coords != nullptr) {
        const spops_attention_scratch_args sizes = spops_attention_scratch_args_of(args, false);
        spops_carver carver = {static_cast<char *>(args->workspace), 0};
        const forward_workspace w = carve_workspace(&sizes, &carver);
        SPOPS_TRY(turn_rows<T>(ctx, args, &p.q, w.q, &p.k, w.k));
    }

    p.wide = p.dim * (int)sizeof(T) % 16 == 0 && is_aligned(p.q, 16) && is_aligned(p.k, 16) &&
             is_aligned(p.v, 16);
    if constexpr (sizeof(T) == 2) {
#ifdef SPOPS_SM90A
        // Heads of less than 48 columns are taken several at a time; strides count in 32 bits.
        const int64_t head = p.dim * 2;
        const int64_t longest = std::max(p.q.row, std::max(p.k.row, p.v.row));
        if (takes_sm90(ctx, args) && p.wide && p.pairs && longest <= UINT32_MAX &&
            (p.dim >= 48 || (p.q.head == head && p.k.head == head && p.v.head == head))) {
            p.tiles = reinterpret_cast<const int4 *>(patches->q_tiles[SPOPS_PATCH_TILE_128]);
            p.num_tiles = &patches->state->num_q_tiles[SPOPS_PATCH_TILE_128];
            const bool small =
                patches->max_queries <=
                patches->max_patches * SPOPS_PATCH_TILE_ENTRIES(SPOPS_PATCH_TILE_128);
            return launch_attention_sm90<T>(ctx, p, patches->max_q_tiles[SPOPS_PATCH_TILE_128],
                                            small);
        }
#endif
    }
    p.tiles = reinterpret_cast<const int4 *>(patches->q_tiles[SPOPS_PATCH_TILE_64]);
    p.num_tiles = &patches->state->num_q_tiles[SPOPS_PATCH_TILE_64];
    // Rows that are no query may be many where tiles are few: blocks without a tile clear them.
    const int64_t tiles = patches->max_q_tiles[SPOPS_PATCH_TILE_64];
    const int64_t blocks = std::max(tiles * p.heads, (int64_t)ctx->info.num_processors);
    attention_kernel kernel = attention_sm80<T>(p.dim);
    if (sizeof(T) == 4 && !takes_tf32(ctx, args, kernel.shared_bytes))
        kernel = attention_f32(p.dim);
    return launch_preparing<AFTER_PREVIOUS>(ctx, "attention: launch", kernel.run,
                                            dim3((unsigned)blocks), kernel.threads,
                                            kernel.shared_bytes, p);
}

} // namespace

template <class T> spops_status spops::prepare_attention(spops_context *ctx, int dim)
{
    const attention_kernel kernels[] = {attention_sm80<T>(dim), attention_f32(dim)};
    for (int i = 0; i < (sizeof(T) == 4 ? 2 : 1); ++i)
        if (kernels[i].shared_bytes <= (size_t)ctx->block_shared_bytes)
            SPOPS_TRY(prepare_shared(ctx, "attention: prepare", kernels[i].run));
#ifdef SPOPS_SM90A
    if constexpr (sizeof(T) == 2)
        if (ctx->info.compute_capability == 90) return prepare_attention_sm90<T>(ctx, dim);
#endif
    return SPOPS_STATUS_OK;
}
template spops_status spops::prepare_attention<spops::f16>(spops_context *, int);
template spops_status spops::prepare_attention<spops::bf16>(spops_context *, int);
template spops_status spops::prepare_attention<float>(spops_context *, int);

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
