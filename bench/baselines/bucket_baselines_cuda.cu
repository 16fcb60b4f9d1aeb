// SPDX-License-Identifier: Apache-2.0
// Rows racing for places in buckets. Only for measuring.
#include <cuda_runtime.h>

#include "bench/baselines/bucket_baselines.h"

namespace
{

constexpr int threads = 1024;
constexpr uint32_t no_place = ~0u;

__device__ uint64_t spread(uint32_t v)
{
    uint64_t x = v;
    x = (x | x << 16) & 0x0000ff0000ffull;
    x = (x | x << 8) & 0x00f00f00f00full;
    x = (x | x << 4) & 0x0c30c30c30c3ull;
    return (x | x << 2) & 0x249249249249ull;
}

__device__ uint32_t hash(const bucket_race &r, int round, int32_t row)
{
    uint32_t v[3];
    for (int a = 0; a < 3; ++a) {
        const float u = floorf((r.points[3 * row + a] - r.origin_m[a]) / r.size_m[a]);
        v[a] = (uint32_t)fminf(fmaxf(u, 0.0f), (float)((1 << r.bits) - 1));
    }
    const uint32_t x = v[0] ^ v[1] ^ v[2], k = (uint32_t)r.num_buckets;
    const uint64_t z = spread(v[0]) << 2 | spread(v[1]) << 1 | spread(v[2]);
    switch (r.hashes[round]) {
    case SPOPS_BUCKET_HASH_XOR_MOD: return x % k;
    case SPOPS_BUCKET_HASH_XOR_DIV: return (uint32_t)((uint64_t)x * k >> r.bits);
    case SPOPS_BUCKET_HASH_ZORDER_MOD: return (uint32_t)(z % k);
    default: return (uint32_t)(z * k >> 3 * r.bits);
    }
}

// Counters of the block, one commit to those of all, and places from both.
__global__ void __launch_bounds__(threads) place_first(const __grid_constant__ bucket_race r)
{
    extern __shared__ uint32_t counters[];
    const int32_t row = blockIdx.x * threads + threadIdx.x;
    uint32_t bucket = 0, place = 0;
    for (int b = threadIdx.x; b < r.num_buckets; b += threads)
        counters[b] = 0;
    __syncthreads();
    if (row < r.num_rows) {
        bucket = hash(r, 0, row);
        place = atomicAdd(&counters[bucket], 1u);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < r.num_buckets; b += threads)
        if (counters[b] > 0) counters[b] = atomicAdd(&r.counters[b], counters[b]);
    __syncthreads();
    if (row >= r.num_rows) return;
    place += counters[bucket];
    r.taken[2 * row] = place < (uint32_t)r.bucket_rows ? bucket : no_place;
    r.taken[2 * row + 1] = place;
}

// Rows that came too late have counted all the same.
__global__ void __launch_bounds__(threads) cut_counters(const __grid_constant__ bucket_race r)
{
    const int b = blockIdx.x * threads + threadIdx.x;
    if (b < r.num_buckets) r.counters[b] = min(r.counters[b], (uint32_t)r.bucket_rows);
}

__device__ bool try_bucket(const bucket_race &r, int32_t row, uint32_t bucket)
{
    volatile uint32_t *counter = &r.counters[bucket];
    if (*counter >= (uint32_t)r.bucket_rows) return false;
    const uint32_t place = atomicAdd(&r.counters[bucket], 1u);
    if (place >= (uint32_t)r.bucket_rows) {
        atomicSub(&r.counters[bucket], 1u);
        return false;
    }
    r.taken[2 * row] = bucket;
    r.taken[2 * row + 1] = place;
    return true;
}

__global__ void __launch_bounds__(threads) race_rest(const __grid_constant__ bucket_race r)
{
    const int32_t row = blockIdx.x * threads + threadIdx.x;
    if (row >= r.num_rows || r.taken[2 * row] != no_place) return;
    for (int round = 1; round < r.num_rounds; ++round)
        if (try_bucket(r, row, hash(r, round, row))) return;
    for (uint32_t b = (uint32_t)row % r.num_buckets; !try_bucket(r, row, b);)
        b = (b + 1) % r.num_buckets;
}

__global__ void __launch_bounds__(threads) sum_counters(const __grid_constant__ bucket_race r)
{
    __shared__ uint32_t sums[threads];
    uint32_t before = 0;
    for (int begin = 0; begin < r.num_buckets; begin += threads) {
        const int b = begin + threadIdx.x;
        const uint32_t own = b < r.num_buckets ? r.counters[b] : 0;
        sums[threadIdx.x] = own;
        for (int step = 1; step < threads; step *= 2) {
            __syncthreads();
            const uint32_t other = (int)threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
        }
        __syncthreads();
        if (b < r.num_buckets) r.offsets[b] = before + sums[threadIdx.x] - own;
        before += sums[threads - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) r.offsets[r.num_buckets] = before;
}

__global__ void __launch_bounds__(threads) put_rows(const __grid_constant__ bucket_race r)
{
    const int32_t row = blockIdx.x * threads + threadIdx.x;
    if (row < r.num_rows) r.rows[r.offsets[r.taken[2 * row]] + r.taken[2 * row + 1]] = row;
}

} // namespace

void bucket_race_cuda(bucket_race *race)
{
    const bucket_race &r = *race;
    const cudaStream_t stream = (cudaStream_t)r.stream;
    const int blocks = (r.num_rows + threads - 1) / threads;
    const int of_buckets = (r.num_buckets + threads - 1) / threads;
    cudaError_t error =
        cudaMemsetAsync(r.counters, 0, (size_t)r.num_buckets * sizeof *r.counters, stream);
    place_first<<<blocks, threads, (size_t)r.num_buckets * sizeof(uint32_t), stream>>>(r);
    cut_counters<<<of_buckets, threads, 0, stream>>>(r);
    race_rest<<<blocks, threads, 0, stream>>>(r);
    sum_counters<<<1, threads, 0, stream>>>(r);
    put_rows<<<blocks, threads, 0, stream>>>(r);
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error != cudaSuccess) race->failed = true;
}
