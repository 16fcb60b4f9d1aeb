// SPDX-License-Identifier: Apache-2.0
// Attention on sm_90a, of f16 and bf16.
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_sm90_attend.cuh"

namespace spops
{

namespace
{

struct sm90_kernel {
    void (*run)(attention_params);
    unsigned threads;
    size_t shared_bytes;
    int heads, tiles; // of an item, the smallest that there are
    int blocks;       // of a multiprocessor
};

template <class P, class T> sm90_kernel kernel_of()
{
    return {attention_sm90_kernel<P, T>,
            (unsigned)P::threads,
            (size_t)P::shared_bytes,
            P::LINE_HEADS == 4 ? 2 : P::LINE_HEADS,
            P::TILES,
            P::blocks};
}

// Of a tile of the table.
template <class T> sm90_kernel kernel_of_tile(int32_t tile)
{
    switch (tile) {
#define SPOPS_TILE(number, columns, small, ...)                                                    \
    case number: return kernel_of<attention_sm90_policy<columns, __VA_ARGS__>, T>();
        SPOPS_ATTENTION_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return {};
    }
}

} // namespace

template <class T>
spops_status launch_attention_sm90(spops_context *ctx, const attention_params &p, int64_t max_tiles,
                                   int32_t tile)
{
    const sm90_kernel kernel = kernel_of_tile<T>(tile);
    const int64_t most = (int64_t)ctx->info.num_processors * kernel.blocks;
    const int64_t items = (max_tiles + kernel.tiles - 1) / kernel.tiles *
                          ((p.heads + kernel.heads - 1) / kernel.heads);
    return launch_preparing<AFTER_PREVIOUS>(
        ctx, "attention: launch", kernel.run,
        dim3((unsigned)(items < most ? attention_blocks(items) : most)), kernel.threads,
        kernel.shared_bytes, p);
}

template <class T> spops_status prepare_attention_sm90(spops_context *ctx, int32_t tile)
{
    return prepare_shared(ctx, "attention: prepare", kernel_of_tile<T>(tile).run);
}

template spops_status prepare_attention_sm90<f16>(spops_context *, int32_t);
template spops_status prepare_attention_sm90<bf16>(spops_context *, int32_t);
template spops_status launch_attention_sm90<f16>(spops_context *, const attention_params &, int64_t,
                                                 int32_t);
template spops_status launch_attention_sm90<bf16>(spops_context *, const attention_params &,
                                                  int64_t, int32_t);

} // namespace spops
