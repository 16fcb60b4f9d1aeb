// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "steps.h"

namespace
{

constexpr int max_blocks = 4096;

__device__ float wide(float v)
{
    return v;
}
__device__ float wide(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
__device__ void put(float *to, float v)
{
    *to = v;
}
__device__ void put(__nv_bfloat16 *to, float v)
{
    *to = __float2bfloat16_rn(v);
}

// Sum over a block in a tree whose order is fixed; the result is in thread 0.
__device__ float block_sum(float v, float *shared)
{
    shared[threadIdx.x] = v;
    for (int half = STEPS_BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    return shared[0];
}

// A thread has a point, a block has STEPS_BLOCK of them and one partial sum.
template <class T> __global__ void loss_kernel(steps_loss job)
{
    __shared__ float shared[STEPS_BLOCK];
    __shared__ int counts[SEGMENT_NUM_CLASSES * SEGMENT_NUM_CLASSES];
    const int64_t p = (int64_t)blockIdx.x * STEPS_BLOCK + threadIdx.x;
    for (int i = threadIdx.x; i < SEGMENT_NUM_CLASSES * SEGMENT_NUM_CLASSES; i += STEPS_BLOCK)
        counts[i] = 0;
    __syncthreads();
    float loss = 0.0f;
    if (p < job.max_points) {
        const T *logits = static_cast<const T *>(job.logits) + p * SEGMENT_LOGITS;
        const int what = p < job.step->num_points ? job.classes[p] : SEGMENT_IGNORED;
        const bool valid = what < SEGMENT_NUM_CLASSES;
        float z[SEGMENT_NUM_CLASSES], most = -INFINITY, sum = 0.0f, own = 0.0f;
        int best = 0;
#pragma unroll
        for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c) {
            z[c] = valid ? wide(logits[c]) : 0.0f;
            if (z[c] > most) most = z[c], best = c;
            if (c == what) own = z[c];
        }
#pragma unroll
        for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c)
            sum += expf(z[c] - most);
        const float scale = valid ? job.class_weights[what] * job.step->inverse_weight : 0.0f;
        if (valid) {
            loss = scale * (logf(sum) + most - own);
            atomicAdd(&counts[what * SEGMENT_NUM_CLASSES + best], 1);
        }
        if (job.gradient != nullptr) {
            T *gradient = static_cast<T *>(job.gradient) + p * SEGMENT_LOGITS;
#pragma unroll
            for (int c = 0; c < SEGMENT_LOGITS; ++c)
                put(gradient + c,
                    c < SEGMENT_NUM_CLASSES
                        ? scale * (expf(z[c < SEGMENT_NUM_CLASSES ? c : 0] - most) / sum -
                                   (c == what ? 1.0f : 0.0f))
                        : 0.0f);
        }
    }
    const float total = block_sum(loss, shared);
    if (threadIdx.x == 0) job.loss[1 + blockIdx.x] = total;
    // Counts are integers: their order does not matter.
    for (int i = threadIdx.x; i < SEGMENT_NUM_CLASSES * SEGMENT_NUM_CLASSES; i += STEPS_BLOCK)
        if (counts[i] != 0) atomicAdd(job.confusion + i, counts[i]);
}

__global__ void total_kernel(float *loss, int num_blocks)
{
    __shared__ float shared[STEPS_BLOCK];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < num_blocks; i += STEPS_BLOCK)
        sum += loss[1 + i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) loss[0] = sum;
}

template <class T>
__global__ void sum_kernel(const int32_t *num_rows, int64_t cols, T *a, const T *b)
{
    const int64_t num = *num_rows * cols, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < num; i += stride)
        put(a + i, wide(a[i]) + wide(b[i]));
}

__global__ void adamw_kernel(steps_adamw job)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= job.num || !job.trained[i]) return;
    const segment_step s = *job.step;
    const float g = job.gradients[i];
    const float m = STEPS_BETA1 * job.moment1[i] + (1.0f - STEPS_BETA1) * g;
    const float v = STEPS_BETA2 * job.moment2[i] + (1.0f - STEPS_BETA2) * g * g;
    const float decay = i < job.num_decayed ? s.decay * job.parameters[i] : 0.0f;
    const float next =
        job.parameters[i] -
        (s.rate * (m * s.correction1) / (sqrtf(v * s.correction2) + STEPS_EPSILON) + decay);
    job.moment1[i] = m;
    job.moment2[i] = v;
    job.parameters[i] = next;
    if (job.narrow != nullptr) put(reinterpret_cast<__nv_bfloat16 *>(job.narrow) + i, next);
}

__global__ void narrow_kernel(int64_t num, const float *from, __nv_bfloat16 *to)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < num) put(to + i, from[i]);
}

int blocks_for(int64_t num)
{
    return (int)((num + STEPS_BLOCK - 1) / STEPS_BLOCK);
}

const char *last_error()
{
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace

extern "C" const char *steps_cuda_loss(const steps_loss *job, void *stream)
{
    const int blocks = blocks_for(job->max_points);
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (blocks == 0) return "a network without room for points";
    if (job->dtype == SPOPS_DTYPE_F32)
        loss_kernel<float><<<blocks, STEPS_BLOCK, 0, s>>>(*job);
    else
        loss_kernel<__nv_bfloat16><<<blocks, STEPS_BLOCK, 0, s>>>(*job);
    total_kernel<<<1, STEPS_BLOCK, 0, s>>>(job->loss, blocks);
    return last_error();
}

extern "C" const char *steps_cuda_sum(const steps_sum *job, void *stream)
{
    int blocks = blocks_for(job->max_rows * job->cols);
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (blocks > max_blocks) blocks = max_blocks;
    if (job->dtype == SPOPS_DTYPE_F32)
        sum_kernel<<<blocks, STEPS_BLOCK, 0, s>>>(job->num_rows, job->cols,
                                                  static_cast<float *>(job->a),
                                                  static_cast<const float *>(job->b));
    else
        sum_kernel<<<blocks, STEPS_BLOCK, 0, s>>>(job->num_rows, job->cols,
                                                  static_cast<__nv_bfloat16 *>(job->a),
                                                  static_cast<const __nv_bfloat16 *>(job->b));
    return last_error();
}

extern "C" const char *steps_cuda_adamw(const steps_adamw *job, void *stream)
{
    adamw_kernel<<<blocks_for(job->num), STEPS_BLOCK, 0, static_cast<cudaStream_t>(stream)>>>(*job);
    return last_error();
}

extern "C" const char *steps_cuda_narrow(int64_t num, const float *from, uint16_t *to, void *stream)
{
    narrow_kernel<<<blocks_for(num), STEPS_BLOCK, 0, static_cast<cudaStream_t>(stream)>>>(
        num, from, reinterpret_cast<__nv_bfloat16 *>(to));
    return last_error();
}
