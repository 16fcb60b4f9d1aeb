// SPDX-License-Identifier: Apache-2.0
// BEV pooling on the GPU as others publish it, after the descriptions of BEVPoolV2, its depth-outer
// variant and BEVPoolV3. Only for measuring: no claim to be the fastest form of each idea.
#include "bench/baselines/bev_baselines.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace
{

__device__ float to_float(float v)
{
    return v;
}
__device__ float to_float(__half v)
{
    return __half2float(v);
}
__device__ float to_float(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

template <class T> __device__ T from_float(float v);
template <> __device__ float from_float<float>(float v)
{
    return v;
}
template <> __device__ __half from_float<__half>(float v)
{
    return __float2half_rn(v);
}
template <> __device__ __nv_bfloat16 from_float<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}

// N neighbouring channels, loaded and stored as widely as their alignment allows.
template <class T, int N, int Align> struct alignas(Align) channels {
    T v[N];
};

// V2: a thread per (interval, channel).
template <class T>
__global__ void __launch_bounds__(256)
    v2_channel_kernel(int cols, int num_intervals, const T *__restrict__ depth,
                      const T *__restrict__ feat, const int *__restrict__ ranks_depth,
                      const int *__restrict__ ranks_feat, const int *__restrict__ ranks_bev,
                      const int *__restrict__ starts, const int *__restrict__ lengths,
                      T *__restrict__ out)
{
    const int thread = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int interval = thread / cols;
    const int col = thread - interval * cols;
    if (interval >= num_intervals) return;
    const int begin = starts[interval], end = begin + lengths[interval];
    float sum = 0.0f;
    for (int p = begin; p < end; ++p)
        sum +=
            to_float(depth[ranks_depth[p]]) * to_float(feat[(int64_t)ranks_feat[p] * cols + col]);
    out[(int64_t)ranks_bev[begin] * cols + col] = from_float<T>(sum);
}

// V2 with tiles of channels outermost: every tile walks the indices again.
constexpr int tile_cols = 8;

template <class T>
__global__ void __launch_bounds__(128)
    v2_tile_kernel(int cols, int num_intervals, const T *__restrict__ depth,
                   const T *__restrict__ feat, const int *__restrict__ ranks_depth,
                   const int *__restrict__ ranks_feat, const int *__restrict__ ranks_bev,
                   const int *__restrict__ starts, const int *__restrict__ lengths,
                   T *__restrict__ out)
{
    const int interval = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int first_col = (int)blockIdx.y * tile_cols;
    if (interval >= num_intervals) return;
    const int begin = starts[interval], end = begin + lengths[interval];
    float sum[tile_cols] = {};
    for (int p = begin; p < end; ++p) {
        const float d = to_float(depth[ranks_depth[p]]);
        const T *row = feat + (int64_t)ranks_feat[p] * cols + first_col;
#pragma unroll
        for (int j = 0; j < tile_cols; ++j)
            sum[j] += d * to_float(row[j]);
    }
    T *cell = out + (int64_t)ranks_bev[begin] * cols + first_col;
#pragma unroll
    for (int j = 0; j < tile_cols; ++j)
        cell[j] = from_float<T>(sum[j]);
}

// V2 depth-outer: one walk over the indices for all channels, N channels a thread. The feature row
// is worked out from the depth element by division at run time.
template <class T, int N, int Align>
__global__ void __launch_bounds__(1024, 1)
    v2_depth_outer_kernel(int cols, int num_intervals, unsigned num_depths, unsigned feature_area,
                          const T *__restrict__ depth, const T *__restrict__ feat,
                          const int *__restrict__ indices, const int *__restrict__ intervals,
                          T *__restrict__ out)
{
    using pack = channels<T, N, Align>;
    const int interval = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    const int first_col = (int)threadIdx.x * N;
    if (interval >= num_intervals) return;
    const int begin = intervals[3 * interval], end = intervals[3 * interval + 1];
    const int cell = intervals[3 * interval + 2];
    float sum[N] = {};
    for (int p = begin; p < end; ++p) {
        const unsigned element = (unsigned)indices[p];
        const unsigned camera = element / (num_depths * feature_area);
        const unsigned pixel = element % feature_area;
        const float d = to_float(depth[element]);
        const pack f = *reinterpret_cast<const pack *>(
            feat + (int64_t)(camera * feature_area + pixel) * cols + first_col);
#pragma unroll
        for (int j = 0; j < N; ++j)
            sum[j] = fmaf(to_float(f.v[j]), d, sum[j]);
    }
    pack result;
#pragma unroll
    for (int j = 0; j < N; ++j)
        result.v[j] = from_float<T>(sum[j]);
    *reinterpret_cast<pack *>(out + (int64_t)cell * cols + first_col) = result;
}

// V3 as its sketch has it: the owner of an interval walks explicit indices, loads each depth once
// per tile of channels (16 bytes here) and writes the cell once, past the cache.
template <class T>
__global__ void __launch_bounds__(128)
    v3_kernel(int lanes, int num_intervals, const T *__restrict__ depth, const T *__restrict__ feat,
              const int *__restrict__ ranks_depth, const int *__restrict__ ranks_feat,
              const int *__restrict__ ranks_bev, const int *__restrict__ starts,
              const int *__restrict__ lengths, T *__restrict__ out)
{
    constexpr int N = 16 / (int)sizeof(T);
    union pack {
        uint4 bits;
        T v[N];
        __device__ pack() : bits() {}
    };
    const int thread = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int interval = thread / lanes;
    const int lane = thread - interval * lanes;
    if (interval >= num_intervals) return;
    const int begin = starts[interval], end = begin + lengths[interval];
    const uint4 *rows = reinterpret_cast<const uint4 *>(feat) + lane;
    float sum[N] = {};
#pragma unroll 4
    for (int p = begin; p < end; ++p) {
        const float d = to_float(depth[ranks_depth[p]]);
        pack f;
        f.bits = __ldg(rows + (int64_t)ranks_feat[p] * lanes);
#pragma unroll
        for (int j = 0; j < N; ++j)
            sum[j] = fmaf(to_float(f.v[j]), d, sum[j]);
    }
    pack result;
#pragma unroll
    for (int j = 0; j < N; ++j)
        result.v[j] = from_float<T>(sum[j]);
    __stcs(reinterpret_cast<uint4 *>(out) + (int64_t)ranks_bev[begin] * lanes + lane, result.bits);
}

unsigned blocks_for(int64_t threads, int threads_per_block)
{
    return (unsigned)((threads + threads_per_block - 1) / threads_per_block);
}

template <class T> void clear(bev_baseline_args *args)
{
    const size_t bytes = (size_t)args->num_cells * (size_t)args->cols * sizeof(T);
    if (cudaMemsetAsync(args->out, 0, bytes, (cudaStream_t)args->stream) != cudaSuccess)
        args->failed = true;
}

void note_launch(bev_baseline_args *args)
{
    if (cudaGetLastError() != cudaSuccess) args->failed = true;
}

template <class T> struct v2_channel {
    static void run(bev_baseline_args *args)
    {
        const spops_bev_ranks *r = &args->ranks;
        const int num = (int)r->num_intervals;
        clear<T>(args);
        if (num == 0) return;
        v2_channel_kernel<T>
            <<<blocks_for((int64_t)num * args->cols, 256), 256, 0, (cudaStream_t)args->stream>>>(
                args->cols, num, (const T *)args->depth, (const T *)args->feat, r->ranks_depth,
                r->ranks_feat, r->ranks_bev, r->interval_starts, r->interval_lengths,
                (T *)args->out);
        note_launch(args);
    }
};

template <class T> struct v2_tile {
    static void run(bev_baseline_args *args)
    {
        const spops_bev_ranks *r = &args->ranks;
        const int num = (int)r->num_intervals;
        clear<T>(args);
        if (num == 0) return;
        const dim3 grid(blocks_for(num, 128), (unsigned)(args->cols / tile_cols));
        v2_tile_kernel<T><<<grid, 128, 0, (cudaStream_t)args->stream>>>(
            args->cols, num, (const T *)args->depth, (const T *)args->feat, r->ranks_depth,
            r->ranks_feat, r->ranks_bev, r->interval_starts, r->interval_lengths, (T *)args->out);
        note_launch(args);
    }
};

template <class T, int N, int Align> void run_depth_outer(bev_baseline_args *args)
{
    const int num = (int)args->intervals.num_intervals;
    const unsigned width = (unsigned)(args->cols / N);
    const dim3 block(width, 1024 / width);
    v2_depth_outer_kernel<T, N, Align>
        <<<blocks_for(num, (int)block.y), block, 0, (cudaStream_t)args->stream>>>(
            args->cols, num, (unsigned)args->num_depths, (unsigned)args->feature_area,
            (const T *)args->depth, (const T *)args->feat, args->intervals.indices,
            args->intervals.intervals, (T *)args->out);
    note_launch(args);
}

template <class T> struct v2_depth_outer {
    static void run(bev_baseline_args *args)
    {
        clear<T>(args);
        if (args->intervals.num_intervals == 0) return;
        if (args->cols % 10 == 0) // as published: packs of ten, aligned to 4 bytes in half
            run_depth_outer<T, 10, 2 * sizeof(T)>(args);
        else
            run_depth_outer<T, 8, 16>(args);
    }
};

template <class T> struct v3_sketch {
    static void run(bev_baseline_args *args)
    {
        const spops_bev_ranks *r = &args->ranks;
        const int num = (int)r->num_intervals;
        const int lanes = args->cols / (16 / (int)sizeof(T));
        clear<T>(args);
        if (num == 0) return;
        v3_kernel<T><<<blocks_for((int64_t)num * lanes, 128), 128, 0, (cudaStream_t)args->stream>>>(
            lanes, num, (const T *)args->depth, (const T *)args->feat, r->ranks_depth,
            r->ranks_feat, r->ranks_bev, r->interval_starts, r->interval_lengths, (T *)args->out);
        note_launch(args);
    }
};

template <template <class> class Variant> void enqueue(void *user)
{
    bev_baseline_args *args = (bev_baseline_args *)user;
    switch (args->dtype) {
    case SPOPS_DTYPE_F32: Variant<float>::run(args); break;
    case SPOPS_DTYPE_F16: Variant<__half>::run(args); break;
    case SPOPS_DTYPE_BF16: Variant<__nv_bfloat16>::run(args); break;
    default: args->failed = true; break;
    }
}

// Thread numbers are 32-bit, as in the published kernels.
bool fits(const bev_baseline_args *args)
{
    return args->cols > 0 && args->ranks.num_intervals < INT32_MAX / args->cols - 1024;
}

bool accepts_tiles(const bev_baseline_args *args)
{
    return fits(args) && args->cols % tile_cols == 0;
}

bool accepts_depth_outer(const bev_baseline_args *args)
{
    const int pack = args->cols % 10 == 0 ? 10 : 8;
    return fits(args) && args->cols % pack == 0 && args->cols / pack <= 1024;
}

} // namespace

extern "C" const bev_baseline bev_baselines_cuda[] = {
    {"v2_thread_per_channel", fits, enqueue<v2_channel>},
    {"v2_tile_outer", accepts_tiles, enqueue<v2_tile>},
    {"v2_depth_outer", accepts_depth_outer, enqueue<v2_depth_outer>},
    {"v3_sketch", accepts_tiles, enqueue<v3_sketch>},
};
extern "C" const int num_bev_baselines_cuda =
    (int)(sizeof bev_baselines_cuda / sizeof bev_baselines_cuda[0]);
