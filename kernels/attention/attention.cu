// SPDX-License-Identifier: Apache-2.0
// Attention: which kernel serves a call, and the turned copies of q and k that it reads where there is
// a rotary embedding.
#include "core/memory.h"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_turn.cuh"
#include "kernels/attention/attention_tuning.h"
#include "kernels/launchers.h"
#include "patches/patch_arrays.h"

namespace
{

using namespace spops;

#ifdef SPOPS_SM90A
bool sm90_has_dim(int dim)
{
    switch (dim) {
#define SPOPS_VARIANT(dim, groups, keys, stages, blocks, order) case dim:
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

attention_rows rows_of(const spops_attention_view &view)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(view.dtype);
    return {static_cast<unsigned char *>(view.data), view.row_stride * bytes,
            view.head_stride * bytes};
}

// Are all heads of all rows multiples of `bytes`, in bytes, from address 0 on?
bool aligned_to(const attention_rows &rows, int bytes)
{
    return ((uintptr_t)rows.data | (uintptr_t)rows.row | (uintptr_t)rows.head) % bytes == 0;
}

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

template <class T>
spops_status turn(spops_context *ctx, const spops_attention_args *args, bool keys,
                  attention_rows *rows, unsigned char *to)
{
    const spops_patch_arrays *patches = args->patches;
    const int64_t entries = keys ? patches->max_keys : patches->max_queries;
    const int64_t most = (int64_t)ctx->info.num_processors * 8;
    attention_turn_params t = {};
    t.rows = keys ? patches->k_rows : patches->q_rows;
    t.num_entries = keys ? &patches->state->num_keys : &patches->state->num_queries;
    t.from = *rows;
    t.heads = args->heads;
    t.dim = args->dim;
    t.to_dim = padded_dim(t.dim);
    t.to = {to, (int64_t)t.heads * t.to_dim * (int64_t)sizeof(T), t.to_dim * (int64_t)sizeof(T)};
    t.rotary = args->rotary;
    *rows = t.to;
    return launch(ctx, "attention_execute: turn rows", attention_turn_kernel<T>,
                  dim3((unsigned)(entries < most ? entries : most)), attention_turn_threads, t);
}

template <class T> spops_status attend(spops_context *ctx, const spops_attention_args *args)
{
    const spops_patch_arrays *patches = args->patches;
    if (sizeof(T) == 2 && ctx->info.compute_capability < 80)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "attention_execute: f16 and bf16 need a device of sm_80 or later, this "
                          "one has sm_%d",
                          (int)ctx->info.compute_capability);
    attention_params p = {};
    p.q = rows_of(args->q);
    p.k = rows_of(args->k);
    p.v = rows_of(args->v);
    p.o = rows_of(args->o);
    p.lse = args->lse;
    p.q_rows = patches->q_rows;
    p.k_rows = patches->k_rows;
    p.k_offsets = patches->k_offsets;
    p.q_rest = patches->q_rest;
    p.num_q_rest = &patches->state->num_q_rest;
    p.heads = args->heads;
    p.dim = args->dim;
    p.scale = args->scale * log2_of_e;
    p.pairs = p.dim % 2 == 0 && aligned_to(p.o, 4);
    p.bias = args->bias;
    if (args->rotary.coords != nullptr) {
        spops_attention_scratch_args sizes = {};
        sizes.patches = patches;
        sizes.heads = p.heads;
        sizes.dim = p.dim;
        sizes.dtype = args->q.dtype;
        sizes.rotary_pairs = args->rotary.pairs;
        spops_carver carver = {static_cast<char *>(args->workspace), 0};
        const forward_workspace w = carve_workspace(&sizes, &carver);
        SPOPS_TRY(turn<T>(ctx, args, false, &p.q, w.q));
        SPOPS_TRY(turn<T>(ctx, args, true, &p.k, w.k));
    }

    if constexpr (sizeof(T) == 2) {
        p.wide =
            p.dim % 8 == 0 && aligned_to(p.q, 16) && aligned_to(p.k, 16) && aligned_to(p.v, 16);
#ifdef SPOPS_SM90A
        // Heads of less than 64 columns are taken several at a time.
        const int64_t head = p.dim * 2;
        if (takes_sm90(ctx, args) && p.wide && p.pairs &&
            (p.dim >= 48 || (p.q.head == head && p.k.head == head && p.v.head == head))) {
            p.tiles = reinterpret_cast<const int4 *>(patches->q_tiles[SPOPS_PATCH_TILE_128]);
            p.num_tiles = &patches->state->num_q_tiles[SPOPS_PATCH_TILE_128];
            return launch_attention_sm90<T>(ctx, p, patches->max_q_tiles[SPOPS_PATCH_TILE_128]);
        }
#endif
    }
    p.tiles = reinterpret_cast<const int4 *>(patches->q_tiles[SPOPS_PATCH_TILE_64]);
    p.num_tiles = &patches->state->num_q_tiles[SPOPS_PATCH_TILE_64];
    return launch_attention_sm80<T>(ctx, p, patches->max_q_tiles[SPOPS_PATCH_TILE_64]);
}

} // namespace

size_t spops::attention_forward_bytes(const spops_attention_scratch_args *args)
{
    spops_carver carver = {};
    carve_workspace(args, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_attention(spops_context *ctx, const spops_attention_args *args)
{
    switch (args->q.dtype) {
    case SPOPS_DTYPE_F16: return attend<f16>(ctx, args);
    case SPOPS_DTYPE_BF16: return attend<bf16>(ctx, args);
    default: return attend<float>(ctx, args);
    }
}
