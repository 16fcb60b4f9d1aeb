// SPDX-License-Identifier: Apache-2.0
// Activations on the GPU: a thread has 16 bytes of a row, or one element.
#include <initializer_list>

#include "activation/activation_args.h"
#include "core/matrix.h"
#include "kernels/core/activation.cuh"
#include "kernels/core/chunk.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct params {
    spops_activation_args args;
    int64_t pieces; // of a row
};

// FLAT: rows are whole pieces and follow each other without a gap, so that piece i is at i * VEC.
template <bool FLAT, class T, int VEC>
__global__ void __launch_bounds__(threads) activation_kernel(const __grid_constant__ params p)
{
    grid_dependency_wait();
    grid_launch_dependents();
    const spops_matrix &x = p.args.x, &g = p.args.grad_out, &out = p.args.out;
    const int64_t given = p.args.num_rows == nullptr ? x.rows : *p.args.num_rows;
    const int64_t rows = given < x.rows ? given : x.rows; // below 0: none
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < rows * p.pieces;
         i += (int64_t)gridDim.x * threads) {
        const int64_t row = FLAT ? 0 : i / p.pieces, col = (FLAT ? i : i % p.pieces) * VEC;
        const int n = FLAT || x.cols - col >= VEC ? VEC : (int)(x.cols - col);
        float v[VEC];
        row_chunk<T, VEC, false> chunk;
        chunk.load(static_cast<const T *>(x.data) + row * x.row_stride + col, n);
        chunk.get(v);
        if (g.data == nullptr) {
            activate<true>(p.args.how, v);
            if (p.args.addend.data != nullptr) {
                const spops_matrix &a = p.args.addend;
                float more[VEC];
                row_chunk<T, VEC, false> addend;
                addend.load(static_cast<const T *>(a.data) + row * a.row_stride + col, n);
                addend.get(more);
#pragma unroll
                for (int j = 0; j < VEC; ++j)
                    v[j] += p.args.addend_scale * more[j];
            }
            chunk.set(v);
        } else {
            float gradient[VEC];
            row_chunk<T, VEC, false> other;
            other.load(static_cast<const T *>(g.data) + row * g.row_stride + col, n);
            other.get(gradient);
            differentiate<true>(p.args.how, v, gradient);
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                gradient[j] *= p.args.grad_scale;
            chunk.set(gradient);
        }
        chunk.store(static_cast<T *>(out.data) + row * out.row_stride + col, n);
    }
}

bool is_flat(const spops_matrix &m, int64_t cols)
{
    return m.data == nullptr || m.rows <= 1 || m.row_stride == cols;
}

template <class T, int VEC> spops_status run(spops_context *ctx, params p)
{
    const int64_t cols = p.args.x.cols;
    const bool flat = VEC > 1 && cols % VEC == 0 && is_flat(p.args.x, cols) &&
                      is_flat(p.args.grad_out, cols) && is_flat(p.args.addend, cols) &&
                      is_flat(p.args.out, cols);
    p.pieces = (p.args.x.cols + VEC - 1) / VEC;
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    const int64_t blocks = (p.args.x.rows * p.pieces + threads - 1) / threads;
    return launch<WAITS_FOR_PREVIOUS>(
        ctx, "activation: launch",
        flat ? activation_kernel<true, T, VEC> : activation_kernel<false, T, VEC>,
        dim3((unsigned)(blocks < resident ? blocks : resident)), threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_activation(spops_context *ctx, const spops_activation_args *args)
{
    const int vec = common_chunk({args->x, args->grad_out, args->addend, args->out});
    const params p = {*args, 0};
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return vec == 1 ? run<T, 1>(ctx, p) : run<T, 16 / (int)sizeof(T)>(ctx, p);
    });
}
