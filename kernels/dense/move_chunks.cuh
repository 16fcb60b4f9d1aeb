// SPDX-License-Identifier: Apache-2.0
// Copies of chunks, a row's elements or a part of them, from and to places that a functor tells.
#ifndef SPOPS_KERNELS_DENSE_MOVE_CHUNKS_CUH
#define SPOPS_KERNELS_DENSE_MOVE_CHUNKS_CUH

#include "core/matrix.h"
#include "kernels/core/launch.cuh"

namespace spops
{

constexpr int chunk_threads = 256;
constexpr int chunk_tile_bytes = 32 << 10;
constexpr int least_chunks = 8;          // of a tile
constexpr int chunk_group_pieces = 1024; // pieces of a chunk that a block copies at once

// Pieces are elements, or 16 bytes of them; places are counted in pieces.
struct chunk_params {
    int64_t num_chunks, num_pieces; // pieces: of a chunk
    int chunks;                     // of a block
    const void *from;
    void *to;
};

// places(i, &to) is where chunk i comes from; -1: it is zero. `to` is where it goes.
template <class PLACES, class T>
__global__ void __launch_bounds__(chunk_threads)
    move_chunks(const __grid_constant__ chunk_params p, const __grid_constant__ PLACES places)
{
    constexpr uint32_t at_once = 4;
    __shared__ int64_t from_of[chunk_threads], to_of[chunk_threads];
    const int64_t first = (int64_t)blockIdx.x * p.chunks, left = p.num_chunks - first;
    const uint32_t n = (uint32_t)(left < p.chunks ? left : p.chunks);
    if (threadIdx.x < n) from_of[threadIdx.x] = places(first + threadIdx.x, &to_of[threadIdx.x]);
    __syncthreads();
    for (int64_t c = (int64_t)blockIdx.y * chunk_group_pieces; c < p.num_pieces;
         c += (int64_t)gridDim.y * chunk_group_pieces) {
        const T *const from = static_cast<const T *>(p.from) + c;
        T *const to = static_cast<T *>(p.to) + c;
        const uint32_t width = (uint32_t)min((int64_t)chunk_group_pieces, p.num_pieces - c);
        for (uint32_t i = threadIdx.x; i < n * width; i += at_once * chunk_threads) {
            T value[at_once];
#pragma unroll
            for (uint32_t u = 0; u < at_once; ++u) {
                const uint32_t at = i + u * chunk_threads, k = at / width, column = at % width;
                value[u] = T();
                if (k < n && from_of[k] >= 0) value[u] = __ldg(from + from_of[k] + column);
            }
#pragma unroll
            for (uint32_t u = 0; u < at_once; ++u) {
                const uint32_t at = i + u * chunk_threads, k = at / width, column = at % width;
                if (k < n) to[to_of[k] + column] = value[u];
            }
        }
    }
}

// Rows begin, and follow each other, at multiples of 16 bytes.
inline bool has_wide_rows(const spops_matrix &m, int64_t element)
{
    return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && spops_row_step(m) * element % 16 == 0;
}

// Elements of a piece for chunks of num_channels elements between two matrices of one dtype.
inline int64_t piece_elements(const spops_matrix &a, const spops_matrix &b, int64_t num_channels)
{
    const int64_t element = spops_dtype_bits(a.dtype) / 8;
    const bool wide =
        has_wide_rows(a, element) && has_wide_rows(b, element) && num_channels * element % 16 == 0;
    return wide ? 16 / element : 1;
}

// Pieces of `piece` elements, of which chunks have num_channels.
template <class PLACES>
spops_status launch_chunks(spops_context *ctx, const char *what, spops_dtype dtype, int64_t piece,
                           int64_t num_chunks, int64_t num_channels, const void *from, void *to,
                           const PLACES &places)
{
    const int64_t element = spops_dtype_bits(dtype) / 8;
    chunk_params p = {num_chunks, num_channels / piece, chunk_threads, from, to};
    while (p.chunks > least_chunks && p.chunks * num_channels * element > chunk_tile_bytes)
        p.chunks /= 2;
    const int64_t groups = (p.num_pieces + chunk_group_pieces - 1) / chunk_group_pieces;
    const dim3 grid((unsigned)((num_chunks + p.chunks - 1) / p.chunks),
                    (unsigned)(groups < 64 ? groups : 64));
    if (piece > 1)
        return launch(ctx, what, move_chunks<PLACES, uint4>, grid, chunk_threads, p, places);
    if (element == 2)
        return launch(ctx, what, move_chunks<PLACES, uint16_t>, grid, chunk_threads, p, places);
    return launch(ctx, what, move_chunks<PLACES, uint32_t>, grid, chunk_threads, p, places);
}

} // namespace spops

#endif
