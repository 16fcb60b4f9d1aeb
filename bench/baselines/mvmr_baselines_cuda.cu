// SPDX-License-Identifier: Apache-2.0
// PointCNN++'s Algorithms 1 and B on the GPU. Only for measuring.
#include <cuda_runtime.h>

#include "bench/baselines/mvmr_baselines.h"
#include "spops/device/dtypes.cuh"

namespace
{

using namespace spops;

constexpr int list = 128, side = 32, warps = 4;

struct atomics_params {
    int64_t num_triplets, num_lists;
    const int32_t *out_rows, *in_rows, *matrices;
    int32_t x_cols, out_cols;
    const void *x, *w, *g;
    float *out;
};

// This warp's list of triplets and block of a matrix.
struct warp_work {
    int64_t begin, end;
    int32_t row, col; // of the block
};
__device__ bool find_work(const atomics_params &p, warp_work *work)
{
    const int64_t index = (int64_t)blockIdx.x * warps + threadIdx.x / 32;
    const int64_t cols = (p.out_cols + side - 1) / side, rows = (p.x_cols + side - 1) / side;
    if (index >= p.num_lists * cols * rows) return false;
    work->col = (int32_t)(index % cols) * side;
    work->row = (int32_t)(index / cols % rows) * side;
    work->begin = index / cols / rows * list;
    work->end = min(work->begin + list, p.num_triplets);
    return true;
}

// A lane has a column of the block, and an element of the row of x.
template <class T>
__global__ void __launch_bounds__(32 * warps) mvmr_kernel(const __grid_constant__ atomics_params p)
{
    const int lane = threadIdx.x % 32;
    warp_work work;
    if (!find_work(p, &work)) return;
    const bool has_col = work.col + lane < p.out_cols, has_row = work.row + lane < p.x_cols;
    const T *x = static_cast<const T *>(p.x) + work.row + lane;
    const T *w = static_cast<const T *>(p.w) + work.row * (int64_t)p.out_cols + work.col + lane;
    float block[side], row = 0.0f, sum = 0.0f;
    int32_t i = -1, j = -1, k = -1;
    for (int64_t t = work.begin; t < work.end; ++t) {
        const int32_t next_i = p.out_rows[t], next_j = p.in_rows[t], next_k = p.matrices[t];
        if (next_j != j) row = has_row ? to_f32(x[next_j * (int64_t)p.x_cols]) : 0.0f;
        if (next_k != k) {
            const T *matrix = w + next_k * (int64_t)p.x_cols * p.out_cols;
#pragma unroll
            for (int c = 0; c < side; ++c)
                block[c] = has_col && work.row + c < p.x_cols
                               ? to_f32(matrix[c * (int64_t)p.out_cols])
                               : 0.0f;
        }
        if (next_i != i) {
            if (i >= 0 && has_col)
                atomicAdd(&p.out[i * (int64_t)p.out_cols + work.col + lane], sum);
            sum = 0.0f;
        }
        i = next_i, j = next_j, k = next_k;
#pragma unroll
        for (int c = 0; c < side; ++c)
            sum = fmaf(__shfl_sync(~0u, row, c), block[c], sum);
    }
    if (i >= 0 && has_col) atomicAdd(&p.out[i * (int64_t)p.out_cols + work.col + lane], sum);
}

template <class T>
__device__ __forceinline__ void add_block(const atomics_params &p, const warp_work &work, int32_t k,
                                          bool has_col, int lane, const float (&block)[side])
{
    float *out = p.out + (k * (int64_t)p.x_cols + work.row) * p.out_cols + work.col + lane;
#pragma unroll
    for (int c = 0; c < side; ++c)
        if (has_col && work.row + c < p.x_cols) atomicAdd(&out[c * (int64_t)p.out_cols], block[c]);
}

template <class T>
__global__ void __launch_bounds__(32 * warps) vvor_kernel(const __grid_constant__ atomics_params p)
{
    const int lane = threadIdx.x % 32;
    warp_work work;
    if (!find_work(p, &work)) return;
    const bool has_col = work.col + lane < p.out_cols, has_row = work.row + lane < p.x_cols;
    const T *x = static_cast<const T *>(p.x) + work.row + lane;
    const T *g = static_cast<const T *>(p.g) + work.col + lane;
    float block[side] = {}, row = 0.0f, col = 0.0f;
    int32_t i = -1, j = -1, k = -1;
    for (int64_t t = work.begin; t < work.end; ++t) {
        const int32_t next_i = p.out_rows[t], next_j = p.in_rows[t], next_k = p.matrices[t];
        if (next_i != i) col = has_col ? to_f32(g[next_i * (int64_t)p.out_cols]) : 0.0f;
        if (next_j != j) row = has_row ? to_f32(x[next_j * (int64_t)p.x_cols]) : 0.0f;
        if (next_k != k) {
            if (k >= 0) add_block<T>(p, work, k, has_col, lane, block);
#pragma unroll
            for (int c = 0; c < side; ++c)
                block[c] = 0.0f;
        }
        i = next_i, j = next_j, k = next_k;
#pragma unroll
        for (int c = 0; c < side; ++c)
            block[c] = fmaf(__shfl_sync(~0u, row, c), col, block[c]);
    }
    if (k >= 0) add_block<T>(p, work, k, has_col, lane, block);
}

typedef void (*atomics_kernel)(atomics_params);

void enqueue(mvmr_atomics *m, atomics_kernel f32, atomics_kernel f16_kernel,
             atomics_kernel bf16_kernel)
{
    const cudaStream_t stream = static_cast<cudaStream_t>(m->stream);
    const int64_t blocks = (m->x_cols + side - 1) / side * ((m->out_cols + side - 1) / side);
    atomics_params p = {};
    p.num_triplets = m->num_triplets;
    p.num_lists = (m->num_triplets + list - 1) / list;
    p.out_rows = m->out_rows;
    p.in_rows = m->in_rows;
    p.matrices = m->matrices;
    p.x_cols = (int32_t)m->x_cols;
    p.out_cols = (int32_t)m->out_cols;
    p.x = m->x;
    p.w = m->w;
    p.g = m->g;
    p.out = m->out;
    void *args[] = {&p};
    const atomics_kernel kernel = m->dtype == SPOPS_DTYPE_F32   ? f32
                                  : m->dtype == SPOPS_DTYPE_F16 ? f16_kernel
                                                                : bf16_kernel;
    const dim3 grid((unsigned)((p.num_lists * blocks + warps - 1) / warps));
    if (cudaMemsetAsync(m->out, 0, (size_t)m->out_bytes, stream) != cudaSuccess ||
        (grid.x > 0 && cudaLaunchKernel((const void *)kernel, grid, dim3(32 * warps), args, 0,
                                        stream) != cudaSuccess))
        m->failed = true;
}

} // namespace

extern "C" void mvmr_atomics_cuda(mvmr_atomics *m)
{
    enqueue(m, mvmr_kernel<float>, mvmr_kernel<f16>, mvmr_kernel<bf16>);
}

extern "C" void vvor_atomics_cuda(mvmr_atomics *m)
{
    enqueue(m, vvor_kernel<float>, vvor_kernel<f16>, vvor_kernel<bf16>);
}
