// SPDX-License-Identifier: Apache-2.0
// Launching igemm_pairs_kernel. Only sources compiled for compute_90a may include this.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_PAIRS_SM90_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_PAIRS_SM90_LAUNCH_CUH

#include "kernels/igemm/igemm_pairs_sm90.cuh"
#include "kernels/igemm/igemm_sm90_launch.cuh"

namespace spops
{

// Pairs are shared by blocks up to so many a block.
constexpr int max_shared_pairs = 4;

template <class P, class T, operand B>
spops_status launch_pairs(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    const spops_igemm_schedule *s = args->schedule;
    igemm_pairs_params p = {};
    int64_t blocks = 0, most = 0;
    SPOPS_TRY((fill_sm90_params<P, B>(ctx, args, f, p, blocks, most)));
    p.tiles = reinterpret_cast<const int4 *>(s->pairs);
    p.num_tiles = s->pair_totals;
    p.max_tiles = (int)((s->max_tiles + 1) / 2);
    p.first = s->pair_first;
    p.group_taps = reinterpret_cast<const int4 *>(s->group_taps);
    p.tile_first = s->first;
    p.tile_count = s->num_tiles;
    p.chunks = (p.row_stages + P::most_chunk_stages - 1) / P::most_chunk_stages;
    p.chunk_stages = (p.row_stages + p.chunks - 1) / p.chunks;
    p.max_shared_tiles = (int)blocks * max_shared_pairs;
    const int32_t cost = spops_igemm_pair_cost(s->max_tiles, ctx->info.num_processors);
    p.tile_cost = (cost + p.row_stages - 1) / p.row_stages;
    if (blocks > most) blocks = most;
    return launch_preparing<WAITS_FOR_PREVIOUS>(ctx, "igemm: launch", igemm_pairs_kernel<P, T, B>,
                                                dim3((unsigned)blocks), (unsigned)P::threads,
                                                (size_t)P::shared_bytes, p);
}

template <class T>
spops_status launch_igemm_pairs(spops_context *ctx, const spops_igemm_args *args,
                                const weight_form &f, int32_t tile)
{
    switch (tile) {
#define SPOPS_TILE(number, ...)                                                                    \
    case number:                                                                                   \
        return f.along_k                                                                           \
                   ? launch_pairs<igemm_pairs_policy<__VA_ARGS__>, T, ALONG_K>(ctx, args, f)       \
                   : launch_pairs<igemm_pairs_policy<__VA_ARGS__>, T, ACROSS_K>(ctx, args, f);
        SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
#undef SPOPS_TILE
    default: return no_igemm_tile(ctx, tile);
    }
}

template <class T> spops_status prepare_igemm_pairs(spops_context *ctx, int32_t forced)
{
    const char *what = "igemm: prepare";
#define SPOPS_TILE(number, ...)                                                                    \
    if (spops_igemm_leaves(forced, number)) {                                                      \
        SPOPS_TRY(prepare_shared(                                                                  \
            ctx, what, igemm_pairs_kernel<igemm_pairs_policy<__VA_ARGS__>, T, ALONG_K>));          \
        SPOPS_TRY(prepare_shared(                                                                  \
            ctx, what, igemm_pairs_kernel<igemm_pairs_policy<__VA_ARGS__>, T, ACROSS_K>));         \
    }
    SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
#undef SPOPS_TILE
    return SPOPS_STATUS_OK;
}

} // namespace spops

#endif
