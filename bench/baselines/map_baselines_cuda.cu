// SPDX-License-Identifier: Apache-2.0
// Output coordinates in stages on the GPU, one kernel a stage. Only for measuring.
#include <cuda_runtime.h>

#include "bench/baselines/map_baselines.h"

namespace
{

constexpr int threads = 256;

struct stage_params {
    int64_t n; // candidates
    int32_t taps, size[3], stride[3], padding[3], dilation[3], lower[4], upper[4];
    const int4 *rows;
    int4 *candidates;
    int32_t *keep;
};

__device__ int64_t candidate()
{
    return (int64_t)blockIdx.x * threads + threadIdx.x;
}

__global__ void broadcast_add(const __grid_constant__ stage_params p)
{
    const int64_t c = candidate();
    if (c >= p.n) return;
    int4 row = p.rows[c / p.taps];
    const int32_t k = (int32_t)(c % p.taps);
    row.y += p.padding[0] - p.dilation[0] * (k / (p.size[1] * p.size[2]));
    row.z += p.padding[1] - p.dilation[1] * (k / p.size[2] % p.size[1]);
    row.w += p.padding[2] - p.dilation[2] * (k % p.size[2]);
    p.candidates[c] = row;
}

__global__ void modular_check(const __grid_constant__ stage_params p)
{
    const int64_t c = candidate();
    if (c >= p.n) return;
    const int4 u = p.candidates[c];
    const int4 q = make_int4(u.x, u.y / p.stride[0], u.z / p.stride[1], u.w / p.stride[2]);
    p.keep[c] = q.y * p.stride[0] == u.y && q.z * p.stride[1] == u.z && q.w * p.stride[2] == u.w;
    p.candidates[c] = q;
}

__global__ void boundary_check(const __grid_constant__ stage_params p)
{
    const int64_t c = candidate();
    if (c >= p.n) return;
    const int4 q = p.candidates[c];
    p.keep[c] = p.keep[c] && q.x >= p.lower[0] && q.x <= p.upper[0] && q.y >= p.lower[1] &&
                q.y <= p.upper[1] && q.z >= p.lower[2] && q.z <= p.upper[2] && q.w >= p.lower[3] &&
                q.w <= p.upper[3];
}

__global__ void drop_candidates(const __grid_constant__ stage_params p)
{
    const int64_t c = candidate();
    if (c < p.n && !p.keep[c]) p.candidates[c].x = -1;
}

} // namespace

extern "C" void map_stages_cuda(map_stages *s)
{
    stage_params p = {};
    p.taps = (int32_t)spops_kernel_shape_num_taps(&s->kernel);
    p.n = s->num_rows * p.taps;
    for (int a = 0; a < 3; ++a) {
        p.size[a] = s->kernel.size[a];
        p.stride[a] = s->kernel.stride[a];
        p.padding[a] = s->kernel.padding[a];
        p.dilation[a] = s->kernel.dilation[a];
    }
    for (int c = 0; c < 4; ++c) {
        p.lower[c] = s->box.lower[c];
        p.upper[c] = s->box.upper[c];
    }
    p.rows = (const int4 *)s->rows;
    p.candidates = (int4 *)s->candidates;
    p.keep = s->keep;
    const unsigned blocks = (unsigned)((p.n + threads - 1) / threads);
    const cudaStream_t stream = (cudaStream_t)s->stream;
    if (blocks == 0) return;
    broadcast_add<<<blocks, threads, 0, stream>>>(p);
    modular_check<<<blocks, threads, 0, stream>>>(p);
    boundary_check<<<blocks, threads, 0, stream>>>(p);
    drop_candidates<<<blocks, threads, 0, stream>>>(p);
    if (cudaGetLastError() != cudaSuccess) s->failed = true;
}
