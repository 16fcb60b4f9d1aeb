// SPDX-License-Identifier: Apache-2.0
// Gradients of attention: the order of passes, what they keep in the workspace, and which kernels
// serve the arguments.
#include <algorithm>

#include "core/memory.h"
#include "kernels/attention/attention_backward_bias.cuh"
#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_backward_passes.cuh"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/launchers.h"
#include "patches/patch_arrays.h"

namespace
{

using namespace spops;

// Arrays that are not needed are NULL.
struct backward_workspace {
    float *lse, *delta;                                // [heads][queries]
    unsigned char *copies[SPOPS_ATTENTION_NUM_TURNED]; // [rows][heads][padded_dim]
    float *grad_q, *grad_k, *grad_v;                   // [entries][heads * dim]
    float *table_parts;                                // [tiles][heads][bins]
    float *weights[SPOPS_ATTENTION_NUM_TURNED];        // [attention_norm_blocks][heads][dim]
    float *sums;                                       // as attention_fused_params has them
    int *counts, *taken;
};

// Of the heads that one pass for keys and queries is compiled for; 0: each has its own.
int columns_fused(const spops_context *ctx, const spops_attention_scratch_args &a)
{
    const spops_attention_case at = attention_case_of(ctx, &a);
    const spops_attention_row *const row =
        spops_attention_row_of(spops_attention_tile(&at, a.tile));
    const bool taken =
        row != nullptr && row->fused && a.patches->max_queries > 0 && a.patches->max_keys > 0;
    return taken ? row->columns : 0;
}

// Blocks of attention_norm_finish_kernel to a head.
constexpr int64_t attention_norm_blocks = 128;

backward_workspace carve_workspace(const spops_context *ctx, const spops_attention_scratch_args *a,
                                   spops_carver *c)
{
    const spops_patch_arrays *patches = a->patches;
    const int64_t cols = (int64_t)a->heads * a->dim;
    const int64_t rows[] = {patches->num_rows, patches->num_key_rows};
    const int64_t heads[] = {a->heads, a->kv_heads};
    const bool sums = !patches->keys_once || a->kv_heads < a->heads;
    const bool turned[] = {attention_copies(*a, SPOPS_ATTENTION_Q),
                           attention_copies(*a, SPOPS_ATTENTION_K)};
    const size_t bytes = spops_dtype_bytes(a->dtype);
    const int64_t parts = a->dtype == SPOPS_DTYPE_F32 ? attention_blocks_of_tile<float>
                                                      : attention_blocks_of_tile<f16>;
    const auto carve = [&](bool wanted, int64_t rows, int64_t columns, size_t size) {
        return spops_carve(c, wanted ? rows : 0, columns, size);
    };
    backward_workspace w = {};
    w.lse = (float *)carve(true, patches->max_queries, a->heads, sizeof(float));
    w.delta = (float *)carve(true, patches->max_queries, a->heads, sizeof(float));
    for (int side = 0; side < SPOPS_ATTENTION_NUM_TURNED; ++side) {
        w.copies[side] = (unsigned char *)carve(turned[side], rows[side],
                                                heads[side] * padded_dim(a->dim), bytes);
        w.weights[side] = (float *)carve(a->norms[side], attention_norm_blocks,
                                         heads[side] * a->dim, sizeof(float));
    }
    w.grad_q = (float *)carve(turned[SPOPS_ATTENTION_Q], patches->max_queries, cols, sizeof(float));
    w.grad_k =
        (float *)carve(turned[SPOPS_ATTENTION_K] || sums, patches->max_keys, cols, sizeof(float));
    w.grad_v = (float *)carve(sums, patches->max_keys, cols, sizeof(float));
    if (a->bias_range >= 0)
        w.table_parts =
            (float *)carve(true, patches->max_q_tiles[SPOPS_PATCH_TILE_64] * parts * a->heads,
                           spops_attention_table_rows(a->bias_range), sizeof(float));
    const int64_t lines = (int64_t)(columns_fused(ctx, *a) / 64) * a->heads;
    w.sums = (float *)carve(lines > 0, patches->max_queries, lines * 64, sizeof(float));
    w.counts = (int *)carve(lines > 0, patches->max_queries, lines, sizeof(int));
    w.taken = (int *)carve(lines > 0, 1, 1, sizeof(int));
    return w;
}

attention_result result_of(const spops_attention_view &view, int dim)
{
    return {view.data,
            view.row_stride,
            view.head_stride,
            view.dtype == SPOPS_DTYPE_F32,
            false,
            dim % 8 == 0 && is_aligned(rows_of_view(view), 16)};
}

template <class T> struct backward_call {
    spops_context *ctx;
    const spops_attention_backward_args *args;
    const spops_patch_arrays *patches;
    backward_workspace w;
    attention_rows q, k, v, grad_o; // q and k as turned
    spops_attention_scratch_args sizes;
    int32_t tiles[2]; // by attention_side
    int columns;      // of the heads of the pass for keys and queries; 0: each has its own
    int lines;        // of 64 columns, of such a pass; 0: of narrow heads

    backward_call(spops_context *context, const spops_attention_backward_args *arguments,
                  const backward_workspace &workspace)
        : ctx(context), args(arguments), patches(arguments->forward.patches), w(workspace),
          q(turned_rows<T>(&arguments->forward, SPOPS_ATTENTION_Q,
                           workspace.copies[SPOPS_ATTENTION_Q])),
          k(turned_rows<T>(&arguments->forward, SPOPS_ATTENTION_K,
                           workspace.copies[SPOPS_ATTENTION_K])),
          v(rows_of_view(arguments->forward.v)), grad_o(rows_of_view(arguments->grad_o)),
          sizes(spops_attention_scratch_args_of(&arguments->forward, true))
    {
        for (const attention_side side : {OWN_KEYS, OWN_QUERIES})
            tiles[side] = tile_of(params(side, SPOPS_PATCH_TILE_64));
        bool sm90 =
            wants(SPOPS_ATTENTION_Q) && (wants(SPOPS_ATTENTION_K) || args->grad_v.data != nullptr);
        for (int32_t tile : tiles)
            sm90 = sm90 && tile != 0 && attention_kernel_of(tile) == SPOPS_ATTENTION_SM90;
        columns = sm90 ? columns_fused(ctx, sizes) : 0;
        lines = columns / 64;
    }

    spops_status delta()
    {
        constexpr int chunk = 16 / (int)sizeof(T);
        attention_delta_params d = {};
        d.rows = patches->q_rows;
        d.num_entries = &patches->state->num_queries;
        d.o = rows_of_view(args->forward.o);
        d.grad_o = grad_o;
        d.lse_in = args->forward.lse;
        d.lse = w.lse;
        d.delta = w.delta;
        d.query_entries = patches->max_queries;
        d.heads = args->forward.heads;
        d.dim = args->forward.dim;
        d.lanes = 1;
        while (d.lanes < 8 && d.lanes * chunk < d.dim)
            d.lanes *= 2;
        d.wide = d.dim % chunk == 0 && is_aligned(d.o, 16) && is_aligned(d.grad_o, 16);
        d.negative = columns > 0 && lines == 0;
        if (lines > 0) {
            d.counts = w.counts;
            d.lines = lines;
            d.taken = w.taken;
            d.sums = w.sums;
        }
        return launch(ctx, "attention_execute_backward: delta", attention_delta_kernel<T>,
                      dim3(blocks_for(patches->max_queries, attention_delta_entries).x,
                           blocks_for(d.heads, attention_delta_heads).x),
                      attention_pass_threads, d);
    }

    attention_backward_params params(attention_side side, int tile)
    {
        const bool keys = side == OWN_KEYS;
        const spops_attention_args *a = &args->forward;
        attention_backward_params p = {};
        p.tiles =
            reinterpret_cast<const int4 *>(keys ? patches->k_tiles[tile] : patches->q_tiles[tile]);
        p.num_tiles =
            keys ? &patches->state->num_k_tiles[tile] : &patches->state->num_q_tiles[tile];
        p.own_rows = keys ? patches->k_rows : patches->q_rows;
        p.streamed_rows = keys ? patches->q_rows : patches->k_rows;
        p.streamed_offsets = keys ? patches->q_offsets : patches->k_offsets;
        p.own_first = keys ? k : q;
        p.own_second = keys ? v : grad_o;
        p.streamed_first = keys ? q : k;
        p.streamed_second = keys ? grad_o : v;
        p.grad_first = result(keys ? args->grad_k : args->grad_q, keys ? w.grad_k : w.grad_q,
                              wants(keys ? SPOPS_ATTENTION_K : SPOPS_ATTENTION_Q));
        if (keys) p.grad_second = result(args->grad_v, w.grad_v, args->grad_v.data != nullptr);
        p.lse = w.lse;
        p.delta = w.delta;
        p.query_entries = patches->max_queries;
        p.heads = a->heads;
        p.dim = a->dim;
        p.own_group = keys ? a->heads / a->kv_heads : 1;
        p.streamed_group = keys ? 1 : a->heads / a->kv_heads;
        p.scale = a->scale;
        p.scale_log2 = a->scale * log2_of_e;
        p.wide = a->dim * (int)sizeof(T) % 16 == 0 && is_aligned(q, 16) && is_aligned(k, 16) &&
                 is_aligned(v, 16) && is_aligned(grad_o, 16);
        p.bias = a->bias;
        if (!keys && args->grad_table != nullptr) p.table_parts = w.table_parts;
        return p;
    }
    // grad_q or grad_k, or the gradient of weights that follows from it.
    bool wants(int side) const
    {
        const spops_attention_view &view = side == SPOPS_ATTENTION_Q ? args->grad_q : args->grad_k;
        return view.data != nullptr || args->grad_weights[side] != nullptr;
    }
    // Where a kernel writes: to the caller's rows, or what another pass makes them of.
    attention_result result(const spops_attention_view &view, float *parts, bool wanted) const
    {
        if (!wanted || parts == nullptr) return result_of(view, args->forward.dim);
        const int64_t dim = args->forward.dim;
        return {parts, args->forward.heads * dim, dim, true, true, dim % 8 == 0};
    }

    int32_t tile_of(const attention_backward_params &p) const
    {
        const int64_t longest = std::max(std::max(p.own_first.row, p.own_second.row),
                                         std::max(p.streamed_first.row, p.streamed_second.row));
        spops_attention_case at = attention_case_of(ctx, &sizes);
        at.sm90 = at.sm90 && p.wide && longest <= UINT32_MAX;
        return attention_tile_of<T>(
            ctx, at, sizes.tile, attention_backward_of_tile<T>,
            [&](const attention_backward_kernel &kernel) { return kernel.shared_bytes(p); });
    }

    spops_status products(attention_side side)
    {
        const bool sm90 = attention_kernel_of(tiles[side]) == SPOPS_ATTENTION_SM90;
        const int size = sm90 ? SPOPS_PATCH_TILE_128 : SPOPS_PATCH_TILE_64;
        const attention_backward_params p = params(side, size);
        const int64_t max_tiles =
            (side == OWN_KEYS ? patches->max_k_tiles : patches->max_q_tiles)[size];
#ifdef SPOPS_SM90A
        if constexpr (sizeof(T) == 2)
            if (sm90)
                return launch_attention_backward_sm90<T>(ctx, p, side, max_tiles, tiles[side]);
#endif
        const attention_backward_kernel kernel = attention_backward_of_tile<T>(tiles[side]);
        return launch_preparing<AFTER_PREVIOUS>(
            ctx, "attention_execute_backward: launch", kernel.run[side],
            dim3((unsigned)(max_tiles * kernel.blocks_of_tile * p.heads),
                 kernel.splits && side == OWN_KEYS ? 2 : 1),
            kernel.threads, kernel.shared_bytes(p), p);
    }

    // Whether rows of one entry are written by the products, and the others by entry.
    bool leaves_single(const spops_attention_view &view, const float *parts, bool turned) const
    {
        return columns > 0 && lines == 0 && !patches->keys_once && sizes.kv_heads == sizes.heads &&
               !turned && view.data != nullptr && parts != nullptr;
    }

    // Keys and queries of narrow heads.
    spops_status products_narrow()
    {
        attention_narrow_params p = {};
        p.keys = params(OWN_KEYS, SPOPS_PATCH_TILE_128);
        p.grad_q = result(args->grad_q, w.grad_q, true);
        p.own_offsets = patches->k_offsets;
        p.num_patches = &patches->state->num_patches;
        p.key_offsets = patches->key_offsets;
        const bool turned = args->forward.rotary.coords != nullptr;
        if (!sizes.norms[SPOPS_ATTENTION_K] && leaves_single(args->grad_k, w.grad_k, turned))
            p.row_first = result_of(args->grad_k, args->forward.dim);
        if (leaves_single(args->grad_v, w.grad_v, false))
            p.row_second = result_of(args->grad_v, args->forward.dim);
#ifdef SPOPS_SM90A
        if constexpr (sizeof(T) == 2)
            return launch_attention_backward_narrow<T>(ctx, p, patches->max_patches,
                                                       patches->max_queries);
#endif
        return SPOPS_STATUS_OK;
    }

    // Keys and queries, as far as sums of grad_q.
    spops_status products_fused()
    {
        attention_fused_params p = {};
        p.keys = params(OWN_KEYS, SPOPS_PATCH_TILE_128);
        p.own_offsets = patches->k_offsets;
        p.sums = w.sums;
        p.counts = w.counts;
        p.taken = w.taken;
        // Short patches: blocks that add to the same sums begin apart. Long ones: sums of all heads do not
        // fit the cache.
        const int64_t num = std::max<int64_t>(patches->max_patches, 1);
        const int64_t keys = patches->max_keys / num;
        const int64_t sums = patches->max_queries / num * lines * 64 * (int64_t)sizeof(float);
        p.ways = keys <= 2048 ? 4 : 1;
        p.inner = p.keys.heads;
        while (p.inner > 1 && (p.inner * sums > 40 << 20 || p.keys.heads % p.inner != 0))
            --p.inner;
#ifdef SPOPS_SM90A
        if constexpr (sizeof(T) == 2) {
            SPOPS_TRY(launch_attention_backward_fused<T>(
                ctx, p, patches->max_k_tiles[SPOPS_PATCH_TILE_128], lines));
            attention_fused_finish_params f = {};
            f.rows = patches->q_rows;
            f.num_entries = &patches->state->num_queries;
            f.sums = w.sums;
            f.query_entries = patches->max_queries;
            f.to = result(args->grad_q, w.grad_q, true);
            f.heads = p.keys.heads;
            f.lines = lines;
            f.dim = p.keys.dim;
            f.scale = p.keys.scale;
            return launch(ctx, "attention_execute_backward: sums", attention_fused_finish_kernel<T>,
                          blocks_for(patches->max_queries, attention_pass_threads / 8),
                          attention_pass_threads, f);
        }
#endif
        return SPOPS_STATUS_OK;
    }

    attention_finish_params finish_params(const spops_attention_view &view, const float *parts,
                                          bool keys) const
    {
        const spops_attention_args &a = args->forward;
        attention_finish_params f = {};
        f.parts = parts;
        f.rows = keys ? patches->k_rows : patches->q_rows;
        f.num_entries = keys ? &patches->state->num_keys : &patches->state->num_queries;
        if (keys && !patches->keys_once) {
            f.offsets = patches->key_offsets;
            f.entries = patches->key_entries;
        }
        f.num_rows = (int)patches->num_key_rows;
        f.to = result_of(view, a.dim);
        f.heads = keys ? a.kv_heads : a.heads;
        f.group = keys ? a.heads / a.kv_heads : 1;
        f.dim = a.dim;
        return f;
    }

    // From parts by entry to the caller's rows.
    spops_status finish(const spops_attention_view &view, const float *parts, bool keys,
                        bool turned)
    {
        if (view.data == nullptr || parts == nullptr) return SPOPS_STATUS_OK;
        if (keys && leaves_single(view, parts, turned)) return SPOPS_STATUS_OK; // see rest
        const bool sums = keys && !patches->keys_once;
        attention_finish_params f = finish_params(view, parts, keys);
        if (turned) {
            f.rotary = args->forward.rotary;
            f.coords = coords_of_side(f.rotary, keys ? SPOPS_ATTENTION_K : SPOPS_ATTENTION_Q);
        }
        const bool by_two = f.to.wide && f.rotary.pairs % 2 == 0;
        const auto kernel = f.group > 1 ? (by_two ? attention_finish_kernel<T, 2, true>
                                                  : attention_finish_kernel<T, 1, true>)
                                        : (by_two ? attention_finish_kernel<T, 2, false>
                                                  : attention_finish_kernel<T, 1, false>);
        return launch(ctx, "attention_execute_backward: finish", kernel,
                      blocks_of_warps(ctx,
                                      sums   ? patches->num_key_rows
                                      : keys ? patches->max_keys
                                             : patches->max_queries,
                                      attention_pass_threads),
                      attention_pass_threads, f);
    }

    // The same of q or k; where they are normalised, through the norm.
    spops_status finish_turned(int side)
    {
        const bool keys = side == SPOPS_ATTENTION_K;
        const spops_attention_args &a = args->forward;
        const spops_attention_view &view = keys ? args->grad_k : args->grad_q;
        const float *const parts = keys ? w.grad_k : w.grad_q;
        if (!sizes.norms[side]) return finish(view, parts, keys, a.rotary.coords != nullptr);
        if (!wants(side)) return SPOPS_STATUS_OK;
        attention_finish_params f = finish_params(view, parts, keys);
        f.rotary = a.rotary;
        f.coords = coords_of_side(f.rotary, side);
        f.from = rows_of_view(keys ? a.k : a.q);
        f.norm = a.norms[side];
        f.epsilon = a.epsilon;
        f.weights = w.weights[side];
        const bool by_two = (view.data == nullptr || f.to.wide) && a.dim % 2 == 0 &&
                            a.rotary.pairs % 2 == 0 && is_aligned(f.from, 2 * (int)sizeof(T));
        SPOPS_TRY(launch(ctx, "attention_execute_backward: norm",
                         by_two ? (a.dim <= 128 ? attention_norm_finish_kernel<T, 2, 2>
                                                : attention_norm_finish_kernel<T, 4, 2>)
                                : (a.dim <= 128 ? attention_norm_finish_kernel<T, 4, 1>
                                                : attention_norm_finish_kernel<T, 8, 1>),
                         dim3((unsigned)attention_norm_blocks, (unsigned)f.heads),
                         attention_pass_threads, f));
        if (args->grad_weights[side] == nullptr) return SPOPS_STATUS_OK;
        const bool own = f.norm.stride != 0; // a head has weights of its own
        attention_table_params t = {};
        t.parts = f.weights;
        t.parts_of_tile = (int)attention_norm_blocks * (own ? 1 : f.heads);
        t.heads = own ? f.heads : 1;
        t.bins = f.dim;
        t.to = args->grad_weights[side];
        t.stride = 1;
        t.head_stride = args->grad_weights_strides[side];
        return launch(ctx, "attention_execute_backward: weights", attention_table_kernel,
                      dim3((unsigned)((t.bins + 31) / 32), (unsigned)t.heads),
                      attention_pass_threads, t);
    }

    spops_status zero(const int *rows, const int *num, int heads, const spops_attention_view &a,
                      const spops_attention_view *b)
    {
        attention_zero_params z = {};
        z.rows = rows;
        z.num = num;
        z.to[0] = result_of(a, args->forward.dim);
        if (b != nullptr) z.to[1] = result_of(*b, args->forward.dim);
        z.heads = heads;
        z.dim = args->forward.dim;
        if (z.to[0].data == nullptr && z.to[1].data == nullptr) return SPOPS_STATUS_OK;
        return launch(ctx, "attention_execute_backward: rows without entries",
                      attention_zero_kernel<T>,
                      blocks_of_rows(ctx, std::max(patches->num_rows, patches->num_key_rows)),
                      attention_pass_threads, z);
    }

    // All that the products of narrow heads leave of rows that nothing turns.
    spops_status rest()
    {
        const int dim = args->forward.dim;
        const bool turned = args->forward.rotary.coords != nullptr;
        attention_rest_params r = {};
        if (!sizes.norms[SPOPS_ATTENTION_K] && leaves_single(args->grad_k, w.grad_k, turned))
            r.parts[0] = w.grad_k;
        if (leaves_single(args->grad_v, w.grad_v, false)) r.parts[1] = w.grad_v;
        r.offsets = patches->key_offsets;
        r.entries = patches->key_entries;
        r.num_rows = (int)patches->num_key_rows;
        r.to_keys[0] = result_of(args->grad_k, dim);
        r.to_keys[1] = result_of(args->grad_v, dim);
        r.to_queries = result_of(args->grad_q, dim);
        r.rest[0] = patches->k_rest;
        r.rest[1] = patches->q_rest;
        r.num_rest[0] = &patches->state->num_k_rest;
        r.num_rest[1] = &patches->state->num_q_rest;
        r.heads = args->forward.heads;
        r.kv_heads = args->forward.kv_heads;
        r.dim = dim;
        return launch(ctx, "attention_execute_backward: rows that are left",
                      attention_rest_kernel<T>,
                      blocks_of_warps(ctx, std::max(patches->num_rows, patches->num_key_rows),
                                      attention_pass_threads),
                      attention_pass_threads, r);
    }

    spops_status table()
    {
        attention_table_params t = {};
        t.parts = w.table_parts;
        t.num_tiles = &patches->state->num_q_tiles[SPOPS_PATCH_TILE_64];
        t.parts_of_tile = attention_backward_of_tile<T>(tiles[OWN_QUERIES]).blocks_of_tile;
        t.heads = args->forward.heads;
        t.bins = spops_attention_table_rows(args->forward.bias.range);
        t.to = args->grad_table;
        t.stride = args->grad_table_stride;
        t.head_stride = 1;
        return launch(ctx, "attention_execute_backward: table", attention_table_kernel,
                      dim3((unsigned)((t.bins + 31) / 32), (unsigned)t.heads),
                      attention_pass_threads, t);
    }

    // Before anything is enqueued.
    spops_status check()
    {
        if (sizeof(T) == 2 && ctx->info.compute_capability < 80)
            return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                              "attention_execute_backward: f16 and bf16 need a device of sm_80 or "
                              "later, this one has sm_%d",
                              (int)ctx->info.compute_capability);
        SPOPS_TRY(check_attention_blocks(ctx, "attention_execute_backward",
                                         std::max(patches->max_q_tiles[SPOPS_PATCH_TILE_64],
                                                  patches->max_k_tiles[SPOPS_PATCH_TILE_64]),
                                         args->forward.heads));
        if (tiles[OWN_KEYS] == 0 || tiles[OWN_QUERIES] == 0)
            return no_attention_tile(ctx, "attention_execute_backward", sizes.tile);
        const attention_backward_params p = params(OWN_QUERIES, SPOPS_PATCH_TILE_64);
        for (const attention_side side : {OWN_KEYS, OWN_QUERIES})
            if (attention_kernel_of(tiles[side]) != SPOPS_ATTENTION_SM90)
                SPOPS_TRY(check_attention_shared(
                    ctx, "attention_execute_backward", p.dim,
                    attention_backward_of_tile<T>(tiles[side])
                        .shared_bytes(params(OWN_KEYS, SPOPS_PATCH_TILE_64)))); // without a table
        if (args->grad_table != nullptr &&
            attention_backward_of_tile<T>(tiles[OWN_QUERIES]).shared_bytes(p) >
                (size_t)ctx->block_shared_bytes)
            return spops_fail(
                ctx, SPOPS_STATUS_NOT_SUPPORTED,
                "attention_execute_backward: grad_table has %d rows, more than a block "
                "of this device can sum",
                spops_attention_table_rows(args->forward.bias.range));
        return SPOPS_STATUS_OK;
    }

    spops_status run()
    {
        const bool narrow = columns > 0 && lines == 0;
        SPOPS_TRY(check());
        SPOPS_TRY(delta());
        SPOPS_TRY(turn_rows<T>(ctx, &args->forward, q, k));
        if (wants(SPOPS_ATTENTION_K) || args->grad_v.data != nullptr) {
            SPOPS_TRY(narrow        ? products_narrow()
                      : columns > 0 ? products_fused()
                                    : products(OWN_KEYS));
            SPOPS_TRY(finish_turned(SPOPS_ATTENTION_K));
            SPOPS_TRY(finish(args->grad_v, w.grad_v, true, false));
            if (!narrow)
                SPOPS_TRY(zero(patches->k_rest, &patches->state->num_k_rest, args->forward.kv_heads,
                               args->grad_k, &args->grad_v));
        }
        if (wants(SPOPS_ATTENTION_Q) || args->grad_table != nullptr) {
            if (columns == 0) SPOPS_TRY(products(OWN_QUERIES));
            SPOPS_TRY(finish_turned(SPOPS_ATTENTION_Q));
            if (!narrow)
                SPOPS_TRY(zero(patches->q_rest, &patches->state->num_q_rest, args->forward.heads,
                               args->grad_q, nullptr));
        }
        if (narrow) SPOPS_TRY(rest());
        return args->grad_table != nullptr ? table() : SPOPS_STATUS_OK;
    }
};

template <class T>
spops_status prepare(spops_context *ctx, const spops_attention_scratch_args *args)
{
    spops_attention_case at = attention_case_of(ctx, args);
    at.sm80 = ctx->info.compute_capability >= 80; // also of f32, whichever products calls want
    return prepare_attention_tiles(at, args->tile, [&](int32_t tile) -> spops_status {
#ifdef SPOPS_SM90A
        if constexpr (sizeof(T) == 2)
            if (attention_kernel_of(tile) == SPOPS_ATTENTION_SM90) {
                const spops_attention_row *const row = spops_attention_row_of(tile);
                if (row->fused)
                    SPOPS_TRY(row->columns < 64
                                  ? prepare_attention_backward_narrow<T>(ctx)
                                  : prepare_attention_backward_fused<T>(ctx, row->columns / 64));
                return prepare_attention_backward_sm90<T>(ctx, tile);
            }
#endif
        const attention_backward_kernel kernel = attention_backward_of_tile<T>(tile);
        if (kernel.rows_bytes > (size_t)ctx->block_shared_bytes) return SPOPS_STATUS_OK;
        for (int side = 0; side < 2; ++side)
            SPOPS_TRY(prepare_shared(ctx, "attention_execute_backward: prepare", kernel.run[side]));
        return SPOPS_STATUS_OK;
    });
}

} // namespace

extern "C" spops_status spops_cuda_attention_prepare(spops_context *ctx,
                                                     const spops_attention_scratch_args *args)
{
    if (!args->backward) return prepare_attention(ctx, args);
    return with_dtype(args->dtype,
                      [&](auto tag) { return prepare<typename decltype(tag)::type>(ctx, args); });
}

// Where rows are as all kernels take them, without a gradient of the table of biases.
extern "C" int32_t spops_cuda_attention_tile(const spops_context *ctx,
                                             const spops_attention_scratch_args *args)
{
    const spops_attention_case at = attention_case_of(ctx, args);
    int32_t tile = 0;
    if (!args->backward) return attention_forward_tile(ctx, args);
    (void)with_dtype(args->dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        tile = attention_tile_of<T>(
            ctx, at, args->tile, attention_backward_of_tile<T>,
            [](const attention_backward_kernel &kernel) { return kernel.rows_bytes; });
        return SPOPS_STATUS_OK;
    });
    return tile;
}

extern "C" size_t spops_cuda_attention_scratch_bytes(spops_context *ctx,
                                                     const spops_attention_scratch_args *args)
{
    if (!args->backward) return attention_forward_bytes(args);
    spops_carver carver = {};
    carve_workspace(ctx, args, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_attention_backward(spops_context *ctx,
                                                      const spops_attention_backward_args *args)
{
    const spops_attention_args *a = &args->forward;
    const spops_attention_scratch_args sizes = spops_attention_scratch_args_of(a, true);
    spops_carver carver = {static_cast<char *>(a->workspace), 0};
    const backward_workspace w = carve_workspace(ctx, &sizes, &carver);
    return with_dtype(a->q.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return backward_call<T>(ctx, args, w).run();
    });
}
