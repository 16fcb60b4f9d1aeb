// SPDX-License-Identifier: Apache-2.0
// Attention of any rows and heads: the kernels of 16 bits that every device with matrix units runs,
// and that of f32.
#include "kernels/attention/attention_f32.cuh"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_sm80.cuh"

namespace spops
{

template <class P>
static spops_status launch_tiles_of_64(spops_context *ctx, const attention_params &p,
                                       int64_t max_tiles, void (*kernel)(attention_params))
{
    return launch_shared<AFTER_PREVIOUS>(ctx, "attention: launch", kernel,
                                         dim3((unsigned)attention_blocks(max_tiles * p.heads)),
                                         (unsigned)P::threads, (size_t)P::shared_bytes, p);
}

template <class T>
spops_status launch_attention_sm80(spops_context *ctx, const attention_params &p, int64_t max_tiles)
{
    const auto with_dim = [&](auto rounded) {
        constexpr int DIM = decltype(rounded)::value;
        return launch_tiles_of_64<attention_sm80_policy<DIM>>(ctx, p, max_tiles,
                                                              attention_sm80_kernel<T, DIM>);
    };
    if (p.dim <= 32) return with_dim(std::integral_constant<int, 32>());
    if (p.dim <= 64) return with_dim(std::integral_constant<int, 64>());
    return with_dim(std::integral_constant<int, 128>());
}

template spops_status launch_attention_sm80<f16>(spops_context *, const attention_params &,
                                                 int64_t);
template spops_status launch_attention_sm80<bf16>(spops_context *, const attention_params &,
                                                  int64_t);

template <>
spops_status launch_attention_sm80<float>(spops_context *ctx, const attention_params &p,
                                          int64_t max_tiles)
{
    if (p.dim <= 64)
        return launch_tiles_of_64<attention_f32_policy<64>>(ctx, p, max_tiles,
                                                            attention_f32_kernel<64>);
    return launch_tiles_of_64<attention_f32_policy<128>>(ctx, p, max_tiles,
                                                         attention_f32_kernel<128>);
}

} // namespace spops
