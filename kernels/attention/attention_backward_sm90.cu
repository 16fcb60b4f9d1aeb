// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by wgmma.
#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_backward_sm90.cuh"

namespace
{

using namespace spops;

template <class P, class T, attention_side SIDE>
spops_status launch_side(spops_context *ctx, const attention_backward_params &p, int64_t max_tiles)
{
    const int64_t items = max_tiles * p.heads, processors = ctx->info.num_processors;
    return launch_preparing<AFTER_PREVIOUS>(
        ctx, "attention_execute_backward: launch", attention_backward_sm90_kernel<P, T, SIDE>,
        dim3((unsigned)(items < processors ? items : processors)), (unsigned)P::threads,
        (size_t)P::shared_bytes, p);
}

// Of both sides.
template <int DIM, int STAGES, int K_STREAMED, bool K_OWN, bool K_OVERLAP, bool K_TOUCH,
          int Q_STREAMED, bool Q_OWN, bool Q_OVERLAP, bool Q_TOUCH>
struct policies {
    using KEYS = attention_backward_sm90_policy<DIM, K_STREAMED, STAGES, K_OWN, K_OVERLAP, K_TOUCH>;
    using QUERIES =
        attention_backward_sm90_policy<DIM, Q_STREAMED, STAGES, Q_OWN, Q_OVERLAP, Q_TOUCH>;
};

// f(policies of a tile).
template <class F> spops_status with_policies(spops_context *ctx, int32_t tile, F f)
{
    switch (tile) {
#define SPOPS_TILE(number, columns, fused, ...)                                                    \
    case number: return f(policies<columns, __VA_ARGS__>());
        SPOPS_ATTENTION_BACKWARD_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return no_attention_tile(ctx, "attention_execute_backward", tile);
    }
}

} // namespace

template <class T>
spops_status
spops::launch_attention_backward_sm90(spops_context *ctx, const attention_backward_params &p,
                                      attention_side side, int64_t max_tiles, int32_t tile)
{
    return with_policies(ctx, tile, [&](auto both) {
        typedef decltype(both) B;
        return side == OWN_KEYS
                   ? launch_side<typename B::KEYS, T, OWN_KEYS>(ctx, p, max_tiles)
                   : launch_side<typename B::QUERIES, T, OWN_QUERIES>(ctx, p, max_tiles);
    });
}

template <class T>
spops_status spops::prepare_attention_backward_sm90(spops_context *ctx, int32_t tile)
{
    return with_policies(ctx, tile, [&](auto both) {
        typedef decltype(both) B;
        SPOPS_TRY(prepare_shared(ctx, "attention_execute_backward: prepare",
                                 attention_backward_sm90_kernel<typename B::KEYS, T, OWN_KEYS>));
        return prepare_shared(ctx, "attention_execute_backward: prepare",
                              attention_backward_sm90_kernel<typename B::QUERIES, T, OWN_QUERIES>);
    });
}

template spops_status spops::launch_attention_backward_sm90<spops::f16>(
    spops_context *, const attention_backward_params &, attention_side, int64_t, int32_t);
template spops_status spops::launch_attention_backward_sm90<spops::bf16>(
    spops_context *, const attention_backward_params &, attention_side, int64_t, int32_t);
template spops_status spops::prepare_attention_backward_sm90<spops::f16>(spops_context *, int32_t);
template spops_status spops::prepare_attention_backward_sm90<spops::bf16>(spops_context *, int32_t);
