// SPDX-License-Identifier: Apache-2.0
// What the kernels of norms share: a thread's place among rows and columns, what threads and chunks of
// rows have and how two of them are merged, and the normalised values of a thread's columns.
#ifndef SPOPS_KERNELS_NORM_NORM_ROWS_CUH
#define SPOPS_KERNELS_NORM_NORM_ROWS_CUH

#include "kernels/core/activation.cuh"
#include "kernels/core/chunk.cuh"
#include "norm/norm_args.h"
#include "spops/device/dtypes.cuh"

namespace spops
{

namespace norm
{

constexpr int threads = 256;

// A thread's place: its columns, and its first row and step within the block's rows.
struct place {
    int tx, ty, step;
    int64_t col; // of its first column
    int n;       // columns that it has, 0 to VEC
};

// WHOLE: cols are whole pieces, so that a thread has all columns of a piece or none, which the compiler knows.
template <int VEC, bool WHOLE = false>
__device__ __forceinline__ place place_of(int lanes, int64_t cols)
{
    place at;
    at.tx = threadIdx.x % lanes;
    at.ty = threadIdx.x / lanes;
    at.step = threads / lanes;
    at.col = ((int64_t)blockIdx.y * lanes + at.tx) * VEC;
    const int64_t left = cols - at.col;
    at.n = left < 0 ? 0 : left < VEC ? (WHOLE ? 0 : (int)left) : VEC;
    return at;
}

template <class T, int VEC>
__device__ __forceinline__ void load_values(const void *m, int64_t offset, int n, float (&v)[VEC])
{
    row_chunk<T, VEC, false> chunk;
    chunk.load(static_cast<const T *>(m) + offset, n);
    chunk.get(v);
}

template <class T, int VEC>
__device__ __forceinline__ void store_values(void *m, int64_t offset, int n, const float (&v)[VEC])
{
    row_chunk<T, VEC, false> chunk;
    chunk.set(v);
    chunk.store(static_cast<T *>(m) + offset, n);
}

// A thread's rows: how many, and of each of its columns half the mean and a quarter of the sum of squared
// deviations, which are finite where values are (Welford).
template <int VEC> struct half_moments {
    float count, mean[VEC], deviations[VEC];

    __device__ __forceinline__ half_moments() : count(0.0f), mean(), deviations() {}
    __device__ __forceinline__ void take(const float (&v)[VEC])
    {
        count += 1.0f;
        const float share = 1.0f / count;
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            const float half = 0.5f * v[j], delta = half - mean[j];
            mean[j] += delta * share;
            deviations[j] += delta * (half - mean[j]);
        }
    }
    // The moments themselves, from then on.
    __device__ __forceinline__ void undo_halves()
    {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            mean[j] *= 2.0f;
            deviations[j] *= 4.0f;
        }
    }
};

// Rows so far, their mean and their sum of squared deviations (Chan, Golub, LeVeque).
struct moments {
    float count, a, b; // a: mean, b: deviations
    __device__ __forceinline__ void merge(const moments &o)
    {
        if (o.count == 0.0f) return;
        if (count == 0.0f) { // a square may be infinite, and no rows times that are no number
            *this = o;
            return;
        }
        const float total = count + o.count, share = o.count / total;
        const float half = spops_norm_half_distance(a, o.a), delta = 2.0f * half;
        a += half * (2.0f * share);
        b += o.b + delta * delta * (count * share);
        count = total;
    }
};

struct sums {
    float count, a, b;
    __device__ __forceinline__ void merge(const sums &o)
    {
        a += o.a;
        b += o.b;
    }
};

// Merge the states of the threads of a column, ty after ty, and leave them as the chunk's partials
// [2][cols]. Shared memory has a number of all threads side by side, so that no bank is met twice.
template <class State, int VEC>
__device__ __forceinline__ void store_partials(float *partials, int lanes, int64_t cols,
                                               const place &at, float count, float (&a)[VEC],
                                               float (&b)[VEC])
{
    __shared__ float shared_a[threads * VEC], shared_b[threads * VEC], shared_count[threads];
    shared_count[threadIdx.x] = count;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
        shared_a[j * threads + threadIdx.x] = a[j];
        shared_b[j * threads + threadIdx.x] = b[j];
    }
    for (int half = at.step / 2; half > 0; half /= 2) {
        __syncthreads();
        if (at.ty >= half) continue;
        const int mine = threadIdx.x, other = mine + half * lanes;
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            State s = {shared_count[mine], shared_a[j * threads + mine],
                       shared_b[j * threads + mine]};
            s.merge({shared_count[other], shared_a[j * threads + other],
                     shared_b[j * threads + other]});
            shared_a[j * threads + mine] = s.a;
            shared_b[j * threads + mine] = s.b;
        }
        shared_count[mine] += shared_count[other];
    }
    if (at.ty != 0) return;
    partials += at.col;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
        if (j >= at.n) continue;
        partials[j] = shared_a[j * threads + threadIdx.x];
        partials[cols + j] = shared_b[j * threads + threadIdx.x];
    }
}

// The states of a warp's lanes, in a tree: lane 0 has the result.
template <class State> __device__ __forceinline__ void merge_lanes(State &all)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        const State other = {__shfl_down_sync(~0u, all.count, half),
                             __shfl_down_sync(~0u, all.a, half),
                             __shfl_down_sync(~0u, all.b, half)};
        all.merge(other);
    }
}

// ---- Values of a thread's columns ---------------------------------------------------------------

// Columns col to col + n - 1 of a vector, four at a time where it lies so; `otherwise` where it is null, and
// after them.
template <int VEC>
__device__ __forceinline__ void load_vector(const float *vector, const place &at, float otherwise,
                                            float (&to)[VEC])
{
    if constexpr (VEC % 4 == 0) {
        if (vector != nullptr && at.n == VEC && (uintptr_t)vector % 16 == 0) {
#pragma unroll
            for (int j = 0; j < VEC; j += 4) {
                const float4 four = *reinterpret_cast<const float4 *>(vector + at.col + j);
                to[j] = four.x, to[j + 1] = four.y, to[j + 2] = four.z, to[j + 3] = four.w;
            }
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        to[j] = j < at.n && vector != nullptr ? vector[at.col + j] : otherwise;
}

template <int VEC> struct column_values {
    float mean[VEC], rstd[VEC], gamma[VEC], beta[VEC];

    // gamma and beta [cols], or null: 1 and 0.
    __device__ __forceinline__ void read_affine(const float *of_gamma, const float *of_beta,
                                                const place &at)
    {
        load_vector(of_gamma, at, 1.0f, gamma);
        load_vector(of_beta, at, 0.0f, beta);
    }
    __device__ __forceinline__ float normalised(float x, int j) const
    {
        return (x - mean[j]) * rstd[j];
    }
    // One rounding order for the forward pass and for what its gradient computes again.
    __device__ __forceinline__ float value(float h, int j) const
    {
        return __fmaf_rn(h, gamma[j], beta[j]);
    }
    // v becomes what the activation takes.
    __device__ __forceinline__ void apply(float (&v)[VEC]) const
    {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            v[j] = value(normalised(v[j], j), j);
    }
    // x becomes the normalised values, and g the gradient of what the activation takes.
    template <bool ANY>
    __device__ __forceinline__ void differentiate_values(const spops_activated &a, float (&x)[VEC],
                                                         float (&g)[VEC]) const
    {
        float y[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            x[j] = normalised(x[j], j);
            y[j] = value(x[j], j);
        }
        differentiate<ANY>(a, y, g);
    }
};

// h, the normalised values of a piece of a row, and g, the gradient of what the activation takes.
template <bool ANY, class T, int VEC, class Params>
__device__ __forceinline__ void load_gradient(const Params &p, const column_values<VEC> &s,
                                              int64_t r, const place &at, float (&h)[VEC],
                                              float (&g)[VEC])
{
    load_values<T, VEC>(p.x, r * p.x_stride + at.col, at.n, h);
    load_values<T, VEC>(p.grad_out, r * p.grad_out_stride + at.col, at.n, g);
    s.template differentiate_values<ANY>(p.activated, h, g);
}

} // namespace norm

} // namespace spops

#endif
