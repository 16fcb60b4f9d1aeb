// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by mma.sync, and of f32 rows.
#include "kernels/attention/attention_backward_f32.cuh"
#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_backward_sm80.cuh"

namespace
{

using namespace spops;

template <class P, bool ALWAYS_PAIRS> size_t shared_bytes(const attention_backward_params &p)
{
    size_t bytes = P::shared_bytes;
    if (ALWAYS_PAIRS || p.bias.table != nullptr) bytes += sizeof(typename P::pairs);
    if (p.table_parts != nullptr) bytes += (size_t)attention_table::bytes_of(p.bias.range);
    return bytes;
}

template <int DIM, class T>
spops_status launch_sm80(spops_context *ctx, const attention_backward_params &p,
                         attention_side side, int64_t max_tiles)
{
    typedef attention_backward_sm80_policy<DIM> P;
    return launch_shared<AFTER_PREVIOUS>(
        ctx, "attention_execute_backward: launch",
        side == OWN_KEYS ? attention_backward_sm80_kernel<P, T, OWN_KEYS>
                         : attention_backward_sm80_kernel<P, T, OWN_QUERIES>,
        dim3((unsigned)(max_tiles * p.heads)), (unsigned)P::threads, shared_bytes<P, false>(p), p);
}

template <int DIM>
spops_status launch_f32(spops_context *ctx, const attention_backward_params &p, attention_side side,
                        int64_t max_tiles)
{
    typedef attention_backward_f32_policy<DIM> P;
    static_assert(P::parts == attention_table_parts<float>, "a block has a part of the table");
    return launch_shared<AFTER_PREVIOUS>(ctx, "attention_execute_backward: launch",
                                         side == OWN_KEYS
                                             ? attention_backward_f32_kernel<P, OWN_KEYS>
                                             : attention_backward_f32_kernel<P, OWN_QUERIES>,
                                         dim3((unsigned)(max_tiles * P::parts * p.heads)),
                                         (unsigned)P::threads, shared_bytes<P, true>(p), p);
}

} // namespace

template <class T>
spops_status spops::launch_attention_backward_sm80(spops_context *ctx,
                                                   const attention_backward_params &p,
                                                   attention_side side, int64_t max_tiles)
{
    if (p.dim <= 64) return launch_sm80<64, T>(ctx, p, side, max_tiles);
    return launch_sm80<128, T>(ctx, p, side, max_tiles);
}
template spops_status spops::launch_attention_backward_sm80<spops::f16>(
    spops_context *, const attention_backward_params &, attention_side, int64_t);
template spops_status spops::launch_attention_backward_sm80<spops::bf16>(
    spops_context *, const attention_backward_params &, attention_side, int64_t);

spops_status spops::launch_attention_backward_f32(spops_context *ctx,
                                                  const attention_backward_params &p,
                                                  attention_side side, int64_t max_tiles)
{
    return p.dim <= 64 ? launch_f32<64>(ctx, p, side, max_tiles)
                       : launch_f32<128>(ctx, p, side, max_tiles);
}

size_t spops::attention_backward_shared_bytes(const attention_backward_params &p, bool f32)
{
    if (f32)
        return p.dim <= 64 ? shared_bytes<attention_backward_f32_policy<64>, true>(p)
                           : shared_bytes<attention_backward_f32_policy<128>, true>(p);
    return p.dim <= 64 ? shared_bytes<attention_backward_sm80_policy<64>, false>(p)
                       : shared_bytes<attention_backward_sm80_policy<128>, false>(p);
}
