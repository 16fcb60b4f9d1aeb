// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by mma.sync, and of f32 rows.
#include "kernels/attention/attention_backward_f32.cuh"
#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_backward_sm80.cuh"

namespace spops
{

size_t attention_backward_kernel::shared_bytes(const attention_backward_params &p) const
{
    size_t bytes = rows_bytes;
    if (p.bias.table != nullptr) bytes += pairs_bytes;
    if (p.table_parts != nullptr) bytes += (size_t)attention_table::bytes_of(p.bias.range);
    return bytes;
}

template <class T, int DIM> static attention_backward_kernel sm80_of_dim()
{
    typedef attention_backward_sm80_policy<T, DIM> P;
    return {{attention_backward_sm80_kernel<P, OWN_KEYS>,
             attention_backward_sm80_kernel<P, OWN_QUERIES>},
            (unsigned)P::threads,
            1,
            P::splits,
            (size_t)P::shared_bytes,
            sizeof(typename P::pairs)};
}

template <int DIM> static attention_backward_kernel f32_of_dim()
{
    typedef attention_backward_f32_policy<DIM> P;
    static_assert(P::blocks_of_tile <= attention_blocks_of_tile<float>, "they have parts each");
    return {
        {attention_backward_f32_kernel<P, OWN_KEYS>, attention_backward_f32_kernel<P, OWN_QUERIES>},
        (unsigned)P::threads,
        P::blocks_of_tile,
        false,
        P::shared_bytes + sizeof(typename P::pairs), // whose tile has slopes
        0};
}

template <class T> attention_backward_kernel attention_backward_of_tile(int32_t tile)
{
    switch (tile) {
#define SPOPS_TILE(number, columns)                                                                \
    case number: return sm80_of_dim<T, columns>();
        SPOPS_ATTENTION_BACKWARD_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, columns)                                                                \
    case number: return f32_of_dim<columns>();
        SPOPS_ATTENTION_BACKWARD_F32_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return {};
    }
}

template attention_backward_kernel attention_backward_of_tile<f16>(int32_t);
template attention_backward_kernel attention_backward_of_tile<bf16>(int32_t);
template attention_backward_kernel attention_backward_of_tile<float>(int32_t);

} // namespace spops
