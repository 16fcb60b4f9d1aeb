// SPDX-License-Identifier: Apache-2.0
// Reading a buffer from the L2 cache's side of the multiprocessors: to put other, clean data into
// the cache, and to measure how fast it delivers. Only what C cannot say; device_cuda.c has the
// rest.
#include <cuda_runtime.h>

#include "support/device_cuda.h"

namespace
{

constexpr int block_threads = 256;
constexpr int blocks_per_processor = 8;
constexpr int block_stride = 37; // blocks read elsewhere in each pass

// 16 bytes a load, past L1.
__global__ void __launch_bounds__(block_threads)
    read_kernel(const uint4 *data, size_t count, int passes, uint4 *never)
{
    const size_t stride = (size_t)gridDim.x * block_threads;
    uint4 sum = {0, 0, 0, 0};
    for (int pass = 0; pass < passes; ++pass) {
        const unsigned block = (unsigned)((blockIdx.x + (size_t)pass * block_stride) % gridDim.x);
#pragma unroll 4
        for (size_t i = (size_t)block * block_threads + threadIdx.x; i < count; i += stride) {
            const uint4 v = __ldcg(data + i);
            sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
        }
    }
    // The data is one byte repeated: xor of its words is that pattern or 0, never this. The
    // compiler does not know.
    if (sum.x == 0x12345678u && sum.y == ~sum.x) *never = sum;
}

} // namespace

extern "C" bool device_cuda_read(const void *data, size_t bytes, int passes, int num_processors,
                                 void *stream)
{
    const size_t count = bytes / sizeof(uint4);
    const size_t wanted = (count + 4 * block_threads - 1) / (4 * block_threads);
    const size_t most = (size_t)num_processors * blocks_per_processor;
    const unsigned blocks = (unsigned)(wanted < 1 ? 1 : wanted > most ? most : wanted);
    read_kernel<<<blocks, block_threads, 0, (cudaStream_t)stream>>>(
        (const uint4 *)data, count, passes, (uint4 *)const_cast<void *>(data));
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return true;
    return device_fail("reading kernel: %s", cudaGetErrorString(error));
}
