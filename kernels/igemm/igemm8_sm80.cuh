// SPDX-License-Identifier: Apache-2.0
// igemm_sm80.cuh for rows of 8 bits. Products of i8 are mma.m16n8k32, summed in s32. Codes of f8e4m3 become
// pairs of f16, which hold each exactly, on their way from shared memory to matrix units: rates are
// those of f16 then, bytes are half.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM8_SM80_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM8_SM80_CUH

#include "kernels/igemm/igemm8_epilogue.cuh"
#include "kernels/igemm/igemm8_launch.cuh"
#include "kernels/igemm/igemm_sm80.cuh"

namespace spops
{

struct igemm8_sm80_params : igemm_sm80_params {
    epilogue8_params finish;
    bool x_wide; // rows of x can be copied 16 bytes at a time
};

template <> struct igemm_sum<int8_t> {
    typedef int type;

    static __device__ __forceinline__ void add(int (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
#if __CUDA_ARCH__ >= 800
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
    }
};

// 32 codes of k as two products of 16. A thread has four neighbouring codes of a register: the first two
// take the place of its lower columns, the others that of the upper ones, alike in both operands.
template <> struct igemm_sum<f8e4m3> {
    typedef float type;

    static __device__ __forceinline__ void add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t wide[4], low, high;
            widen4(f8e4m3(), a[2 * half], wide[0], wide[2]);
            widen4(f8e4m3(), a[2 * half + 1], wide[1], wide[3]);
            widen4(f8e4m3(), half == 0 ? b0 : b1, low, high);
            add_product(f16(), sum, wide, low, high);
        }
    }
};

// 16 bytes of a row, or fewer at its end; a byte at a time where they are not aligned.
__device__ __forceinline__ void igemm_copy_piece(const igemm8_sm80_params &p, uint32_t to, int row,
                                                 int byte, bool there)
{
    const unsigned char *const from = p.x + (there ? row * p.x_stride + byte : 0);
    if (p.x_wide) {
        copy_async<16>(to, from, there);
        return;
    }
    uint32_t words[4] = {};
    const int left = there ? p.row_bytes - byte : 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
        if (i < left) words[i / 4] |= (uint32_t)__ldg(from + i) << i % 4 * 8;
    store_shared4(to, make_uint4(words[0], words[1], words[2], words[3]));
}

template <class T, int COLS, class S>
__device__ __forceinline__ void igemm_finish(const igemm8_sm80_params &p, S (&sum)[COLS / 2],
                                             const int (&row)[2], int col, int q)
{
    store_sums8<T, COLS>(p.finish, sum, row, col, q);
}

template <class P, class T>
spops_status launch_policy8_sm80(spops_context *ctx, const spops_igemm8_args *args)
{
    igemm8_sm80_params p = {};
    const weight_form f = {
        (int)args->x.cols, (int)args->out.cols, args->schedule->num_taps, 1, false, true,
        (int)args->w.cols};
    spops_igemm_args products = {};
    products.schedule = args->schedule;
    products.x = args->x;
    products.w = args->w;
    products.out = args->out;
    products.num_rows = args->num_rows;
    fill_sm80_params<P>(&products, f, &p);
    p.finish = epilogue8_of(args);
    p.x_wide = is_wide(args->x);
    return launch_igemm_sm80_kernel<P, T>(ctx, &products, p);
}

// f(policy) of the tile with so many columns.
template <class F> spops_status with_policy8_sm80(int columns, const F &f)
{
    return columns <= 64 ? f(igemm_sm80_policy<64, 4, 2, true, false>())
                         : f(igemm_sm80_policy<128, 4, 1, true, false>());
}

template <class T>
spops_status launch_igemm8_sm80(spops_context *ctx, const spops_igemm8_args *args, int columns)
{
    return with_policy8_sm80(
        columns, [&](auto policy) { return launch_policy8_sm80<decltype(policy), T>(ctx, args); });
}

template <class T> spops_status prepare_igemm8_sm80(spops_context *ctx, int columns)
{
    return with_policy8_sm80(columns, [&](auto policy) {
        return prepare_shared(ctx, "igemm8: prepare",
                              igemm_sm80_kernel<decltype(policy), T, igemm8_sm80_params>);
    });
}

} // namespace spops

#endif
