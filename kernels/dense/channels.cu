// SPDX-License-Identifier: Apache-2.0
// Channels to space and back on the GPU. A block owns a tile of fine rows, or of children of coarse rows:
// it looks up where each comes from, then copies their elements.
#include "dense/channels_args.h"
#include "core/matrix.h"
#include "kernels/coords/coord_index.cuh"
#include "kernels/core/launch.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int tile_bytes = 32 << 10;
constexpr int least_chunks = 8;
constexpr int group_pieces = 1024; // pieces of a chunk that a block copies at once

// A chunk is what a fine row has; steps and channels are pieces: elements, or 16 bytes of them.
struct params {
    coord_index index;              // of the set that is looked into
    const int32_t *rows, *num_rows; // of the other one
    int32_t dims, factor, num_children, chunks;
    int64_t num_chunks, num_channels, wide_step, narrow_step;
    const void *from;
    void *to;
};

template <class F>
__device__ __forceinline__ int32_t find(const params &p, const int64_t at[1 + SPOPS_MAX_DIMS])
{
    uint64_t code = 0;
    bool fits = true;
#pragma unroll
    for (int c = 0; c <= SPOPS_MAX_DIMS; ++c) {
        if (c > p.dims) break;
        fits = fits && spops_key_fits(&p.index.layout, c, at[c]);
        code += F::part(p.index, c, at[c]);
    }
    return fits ? F::finish(p.index, code, F::begin(p.index, code)) : -1;
}

// Where chunk i of the output comes from, in pieces; -1: from nowhere. `to` is where it goes.
template <class F, bool TO_SPACE>
__device__ __forceinline__ int64_t source_of(const params &p, int64_t i, int64_t *to)
{
    int64_t at[1 + SPOPS_MAX_DIMS];
    const int64_t r = TO_SPACE ? i : i / p.num_children;
    int32_t child = TO_SPACE ? 0 : (int32_t)(i % p.num_children);
    const int32_t *const row = p.rows + r * (1 + p.dims);
    *to = TO_SPACE ? r * p.narrow_step : r * p.wide_step + child * p.num_channels;
    if (r >= *p.num_rows) return -1;
    if (TO_SPACE) {
        int32_t coarse[1 + SPOPS_MAX_DIMS];
        child = spops_child_of(p.dims, p.factor, row, coarse);
        for (int c = 0; c <= p.dims; ++c)
            at[c] = coarse[c];
    } else {
        int32_t left = child;
        for (int c = p.dims; c >= 1; --c)
            left = spops_child_axis(p.factor, left, row[c], &at[c]);
        at[0] = row[0];
    }
    const int32_t found = find<F>(p, at);
    if (found < 0) return -1;
    return TO_SPACE ? found * p.wide_step + child * p.num_channels : found * p.narrow_step;
}

template <class F, bool TO_SPACE, class T>
__global__ void __launch_bounds__(threads) move_chunks(const __grid_constant__ params p)
{
    constexpr uint32_t at_once = 4;
    __shared__ int64_t from_of[threads], to_of[threads];
    const int64_t first = (int64_t)blockIdx.x * p.chunks, left = p.num_chunks - first;
    const uint32_t n = (uint32_t)(left < p.chunks ? left : p.chunks);
    if (threadIdx.x < n)
        from_of[threadIdx.x] = source_of<F, TO_SPACE>(p, first + threadIdx.x, &to_of[threadIdx.x]);
    __syncthreads();
    for (int64_t c = (int64_t)blockIdx.y * group_pieces; c < p.num_channels;
         c += (int64_t)gridDim.y * group_pieces) {
        const T *const from = static_cast<const T *>(p.from) + c;
        T *const to = static_cast<T *>(p.to) + c;
        const uint32_t width = (uint32_t)min((int64_t)group_pieces, p.num_channels - c);
        for (uint32_t i = threadIdx.x; i < n * width; i += at_once * threads) {
            T value[at_once];
#pragma unroll
            for (uint32_t u = 0; u < at_once; ++u) {
                const uint32_t k = (i + u * threads) / width, column = (i + u * threads) % width;
                value[u] = T();
                if (k < n && from_of[k] >= 0) value[u] = __ldg(from + from_of[k] + column);
            }
#pragma unroll
            for (uint32_t u = 0; u < at_once; ++u) {
                const uint32_t k = (i + u * threads) / width, column = (i + u * threads) % width;
                if (k < n) to[to_of[k] + column] = value[u];
            }
        }
    }
}

bool is_wide(const spops_matrix &m, int64_t element)
{
    return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && spops_row_step(m) * element % 16 == 0;
}

template <bool TO_SPACE>
spops_status move(spops_context *ctx, const char *what, const spops_channels_args *args)
{
    const int64_t element = spops_dtype_bits(args->wide.dtype) / 8, per_piece = 16 / element;
    const bool wide = is_wide(args->wide, element) && is_wide(args->narrow, element) &&
                      args->num_channels % per_piece == 0;
    const int64_t divisor = wide ? per_piece : 1;
    const spops_coords_arrays *other = TO_SPACE ? args->fine : args->coarse;
    params p = {};
    p.index = index_of(TO_SPACE ? args->coarse : args->fine);
    p.rows = other->rows;
    p.num_rows = &other->state->num_rows;
    p.dims = args->dims;
    p.factor = args->factor;
    p.num_children = args->num_children;
    p.num_channels = args->num_channels / divisor;
    p.wide_step = spops_row_step(args->wide) / divisor;
    p.narrow_step = spops_row_step(args->narrow) / divisor;
    p.from = TO_SPACE ? args->wide.data : args->narrow.data;
    p.to = TO_SPACE ? args->narrow.data : args->wide.data;
    p.num_chunks = TO_SPACE ? args->narrow.rows : args->wide.rows * args->num_children;
    p.chunks = threads;
    while (p.chunks > least_chunks && p.chunks * args->num_channels * element > tile_bytes)
        p.chunks /= 2;
    const int64_t groups = (p.num_channels + group_pieces - 1) / group_pieces;
    const dim3 grid((unsigned)((p.num_chunks + p.chunks - 1) / p.chunks),
                    (unsigned)(groups < 64 ? groups : 64));
    return with_finder(p.index, [&](auto finder) {
        typedef decltype(finder) F;
        if (wide) return launch(ctx, what, move_chunks<F, TO_SPACE, uint4>, grid, threads, p);
        if (element == 2)
            return launch(ctx, what, move_chunks<F, TO_SPACE, uint16_t>, grid, threads, p);
        return launch(ctx, what, move_chunks<F, TO_SPACE, uint32_t>, grid, threads, p);
    });
}

} // namespace

extern "C" spops_status spops_cuda_channel_to_space(spops_context *ctx,
                                                    const spops_channels_args *args)
{
    return move<true>(ctx, "channel_to_space: launch", args);
}

extern "C" spops_status spops_cuda_space_to_channel(spops_context *ctx,
                                                    const spops_channels_args *args)
{
    return move<false>(ctx, "space_to_channel: launch", args);
}
