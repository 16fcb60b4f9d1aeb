// SPDX-License-Identifier: Apache-2.0
// Attention on sm_90a, of f16 and bf16.
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_sm90_attend.cuh"
#include "kernels/attention/attention_tuning.h"

namespace spops
{

namespace
{

struct sm90_kernel {
    void (*run)(attention_params);
    unsigned threads;
    size_t shared_bytes;
    int heads, tiles; // of an item
    int blocks;       // of a multiprocessor
};

template <class P, class T> sm90_kernel kernel_of()
{
    return {attention_sm90_kernel<P, T>,
            (unsigned)P::threads,
            (size_t)P::shared_bytes,
            P::HEADS,
            P::TILES,
            P::blocks};
}

// Of heads of a dim; without run: there is none.
template <class T> sm90_kernel choose_kernel(int dim, bool small)
{
    const int variant = 2 * dim + (small ? 1 : 0);
    switch (variant) {
#define SPOPS_VARIANT(dim, ...)                                                                    \
    case 2 * dim: return kernel_of<attention_sm90_policy<dim, __VA_ARGS__>, T>();
        SPOPS_ATTENTION_SM90_VARIANTS(SPOPS_VARIANT)
#undef SPOPS_VARIANT
#define SPOPS_VARIANT(dim, ...)                                                                    \
    case 2 * dim + 1: return kernel_of<attention_sm90_policy<dim, __VA_ARGS__>, T>();
        SPOPS_ATTENTION_SM90_SMALL_VARIANTS(SPOPS_VARIANT)
#undef SPOPS_VARIANT
    default: return small ? choose_kernel<T>(dim, false) : sm90_kernel{};
    }
}

} // namespace

template <class T>
spops_status launch_attention_sm90(spops_context *ctx, const attention_params &p, int64_t max_tiles,
                                   bool small)
{
    const sm90_kernel kernel = choose_kernel<T>(p.dim, small);
    const int64_t most = (int64_t)ctx->info.num_processors * kernel.blocks;
    const int64_t items = (max_tiles + kernel.tiles - 1) / kernel.tiles *
                          ((p.heads + kernel.heads - 1) / kernel.heads);
    return launch_preparing<AFTER_PREVIOUS>(
        ctx, "attention: launch", kernel.run,
        dim3((unsigned)(items < most ? attention_blocks(items) : most)), kernel.threads,
        kernel.shared_bytes, p);
}

template <class T> spops_status prepare_attention_sm90(spops_context *ctx, int dim)
{
    for (const bool small : {false, true}) {
        const sm90_kernel kernel = choose_kernel<T>(dim, small);
        if (kernel.run != nullptr) SPOPS_TRY(prepare_shared(ctx, "attention: prepare", kernel.run));
    }
    return SPOPS_STATUS_OK;
}

template spops_status prepare_attention_sm90<f16>(spops_context *, int);
template spops_status prepare_attention_sm90<bf16>(spops_context *, int);
template spops_status launch_attention_sm90<f16>(spops_context *, const attention_params &, int64_t,
                                                 bool);
template spops_status launch_attention_sm90<bf16>(spops_context *, const attention_params &,
                                                  int64_t, bool);

} // namespace spops
