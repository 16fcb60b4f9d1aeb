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

template <class T> attention_kernel attention_sm80(int dim)
{
    if constexpr (sizeof(T) == 2)
        if (dim <= 32) return sm80_of_dim<T, 32>();
    return dim <= 64 ? sm80_of_dim<T, 64>() : sm80_of_dim<T, 128>();
}

template attention_kernel attention_sm80<f16>(int);
template attention_kernel attention_sm80<bf16>(int);
template attention_kernel attention_sm80<float>(int);

attention_kernel attention_f32(int dim)
{
    return dim <= 64 ? kernel_of<attention_f32_policy<64>>(attention_f32_kernel<64>)
                     : kernel_of<attention_f32_policy<128>>(attention_f32_kernel<128>);
}

} // namespace spops
