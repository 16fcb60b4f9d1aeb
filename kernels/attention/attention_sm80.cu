// SPDX-License-Identifier: Apache-2.0
// Attention of any rows and heads: the kernels of matrix units that every device with them runs, and
// that of f32.
#include "kernels/attention/attention_f32.cuh"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_sm80.cuh"

namespace spops
{

template <class P> static attention_kernel kernel_of(void (*run)(attention_params))
{
    return {run, (unsigned)P::threads, (size_t)P::shared_bytes};
}

template <class T, int DIM> static attention_kernel sm80_of_dim()
{
    return kernel_of<attention_sm80_policy<T, DIM>>(attention_sm80_kernel<T, DIM>);
}

template <class T> attention_kernel attention_of_tile(int32_t tile)
{
    switch (tile) {
#define SPOPS_TILE(number, bytes, columns)                                                         \
    case number:                                                                                   \
        if constexpr (bytes == sizeof(T)) return sm80_of_dim<T, columns>();                        \
        return {};
        SPOPS_ATTENTION_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, columns)                                                                \
    case number: return kernel_of<attention_f32_policy<columns>>(attention_f32_kernel<columns>);
        SPOPS_ATTENTION_F32_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return {};
    }
}

template attention_kernel attention_of_tile<f16>(int32_t);
template attention_kernel attention_of_tile<bf16>(int32_t);
template attention_kernel attention_of_tile<float>(int32_t);

} // namespace spops
