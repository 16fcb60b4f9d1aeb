// SPDX-License-Identifier: Apache-2.0
// Conversions on the GPU: a thread has 8 columns of a row, by 16 bytes at a time where rows allow it.
#include "convert/convert_args.h"
#include "core/matrix.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int piece = 8; // columns

struct params {
    const void *x;
    void *out;
    int64_t x_stride, out_stride, rows, cols, pieces; // pieces of a row
    bool wide;                                        // whole pieces lie on 16 bytes in both
};

__device__ __forceinline__ int32_t index_of(int64_t v)
{
    return v < INT32_MIN || v > INT32_MAX ? -1 : (int32_t)v;
}

template <class T> struct converted_to {
    template <class X> static __device__ __forceinline__ T of(X v)
    {
        return from_f32<T>(to_f32(v));
    }
    static __device__ __forceinline__ T of(T v) { return v; }
};
template <> struct converted_to<int32_t> {
    static __device__ __forceinline__ int32_t of(int64_t v) { return index_of(v); }
    static __device__ __forceinline__ int32_t of(int32_t v) { return v; }
};
template <> struct converted_to<int64_t> {
    static __device__ __forceinline__ int64_t of(int64_t v) { return v; }
};

// A whole piece, as words of 16 bytes.
template <class T> union words_of {
    uint4 word[piece * sizeof(T) / 16];
    T element[piece];
};

template <class X, class T>
__global__ void __launch_bounds__(threads) convert_kernel(const __grid_constant__ params p)
{
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < p.rows * p.pieces;
         i += (int64_t)gridDim.x * threads) {
        const int64_t row = i / p.pieces, col = i % p.pieces * piece;
        const X *x = static_cast<const X *>(p.x) + row * p.x_stride + col;
        T *out = static_cast<T *>(p.out) + row * p.out_stride + col;
        const int n = (int)(p.cols - col < piece ? p.cols - col : piece);
        if (p.wide && n == piece) {
            words_of<X> from;
            words_of<T> to;
#pragma unroll
            for (int w = 0; w < (int)(piece * sizeof(X) / 16); ++w)
                from.word[w] = __ldg(reinterpret_cast<const uint4 *>(x) + w);
#pragma unroll
            for (int j = 0; j < piece; ++j)
                to.element[j] = converted_to<T>::of(from.element[j]);
#pragma unroll
            for (int w = 0; w < (int)(piece * sizeof(T) / 16); ++w)
                reinterpret_cast<uint4 *>(out)[w] = to.word[w];
        } else {
            for (int j = 0; j < n; ++j)
                out[j] = converted_to<T>::of(x[j]);
        }
    }
}

bool on_16_bytes(const spops_matrix &m)
{
    return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
           spops_row_step(m) * (int64_t)spops_dtype_bytes(m.dtype) % 16 == 0;
}

template <class X, class T> spops_status run(spops_context *ctx, const spops_convert_args *args)
{
    params p = {};
    p.x = args->x.data;
    p.out = args->out.data;
    p.x_stride = spops_row_step(args->x);
    p.out_stride = spops_row_step(args->out);
    p.rows = args->x.rows;
    p.cols = args->x.cols;
    p.pieces = (p.cols + piece - 1) / piece;
    p.wide = on_16_bytes(args->x) && on_16_bytes(args->out);
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    const int64_t blocks = (p.rows * p.pieces + threads - 1) / threads;
    return launch(ctx, "convert: launch", convert_kernel<X, T>,
                  dim3((unsigned)(blocks < resident ? blocks : resident)), threads, p);
}

// Elements of one dtype, whatever they are.
spops_status copy(spops_context *ctx, const spops_convert_args *args)
{
    switch (spops_dtype_bytes(args->x.dtype)) {
    case 2: return run<uint16_t, uint16_t>(ctx, args);
    case 4: return run<uint32_t, uint32_t>(ctx, args);
    default: return run<int64_t, int64_t>(ctx, args);
    }
}

} // namespace

extern "C" spops_status spops_cuda_convert(spops_context *ctx, const spops_convert_args *args)
{
    if (args->x.dtype == args->out.dtype) return copy(ctx, args);
    if (args->x.dtype == SPOPS_DTYPE_I64) return run<int64_t, int32_t>(ctx, args);
    if (args->x.dtype == SPOPS_DTYPE_I32) return run<int32_t, int64_t>(ctx, args);
    return with_dtype(args->x.dtype, [&](auto from) {
        return with_dtype(args->out.dtype, [&](auto to) {
            typedef typename decltype(from)::type X;
            typedef typename decltype(to)::type T;
            if constexpr (std::is_same<X, T>::value)
                return SPOPS_STATUS_OK; // copied above
            else
                return run<X, T>(ctx, args);
        });
    });
}
