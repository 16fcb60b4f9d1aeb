// SPDX-License-Identifier: Apache-2.0
// Group norm on the GPU. A block has a piece of a sample's rows and up to 32 columns' chunks; pieces
// depend on the sample's number of rows alone, which the device knows. What threads and pieces have is
// merged in a fixed order.
#include "core/matrix.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/norm/norm_rows.cuh"
#include "norm/group_args.h"

namespace
{

using namespace spops;
using namespace spops::norm;

struct group_params {
    spops_group_samples samples;
    const void *x, *grad_out;
    void *out, *grad_x;
    int64_t x_stride, out_stride, grad_out_stride, grad_x_stride;
    int64_t max_pieces;
    int32_t cols, groups, width; // width: columns of a group
    int32_t lanes;               // threads beside each other, a power of two up to 32
    const float *mean, *var, *gamma, *beta;
    float *mean_out, *var_out, *grad_gamma, *grad_beta;
    float epsilon;
    spops_activated activated;
    bool fixed_statistics;
    spops_group_scratch scratch;
};

__device__ __forceinline__ spops_group_piece block_piece(const group_params &p)
{
    return spops_group_piece_of(p.samples.offsets, p.samples.num, blockIdx.x);
}

__device__ __forceinline__ int64_t row_at(const group_params &p, int64_t position)
{
    return p.samples.pairs == nullptr ? position : p.samples.pairs[2 * position];
}

__device__ __forceinline__ float *partials_of(const group_params &p, int64_t piece)
{
    return p.scratch.partials + 2 * piece * p.cols;
}

// What a thread's columns have in a sample.
template <int VEC>
__device__ __forceinline__ column_values<VEC> read_sample(const group_params &p, int64_t sample,
                                                          const place &at)
{
    column_values<VEC> s;
    s.read_affine(p.gamma, p.beta, at);
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
        const bool there = j < at.n;
        const int64_t of = sample * p.groups + (there ? (at.col + j) / p.width : 0);
        s.mean[j] = p.mean[of];
        s.rstd[j] = 1.0f / sqrtf(p.var[of] + p.epsilon);
    }
    return s;
}

// ---- Statistics ---------------------------------------------------------------------------------

template <class T, int VEC>
__global__ void __launch_bounds__(threads)
    piece_moments_kernel(const __grid_constant__ group_params p)
{
    const place at = place_of<VEC>(p.lanes, p.cols);
    const spops_group_piece piece = block_piece(p);
    half_moments<VEC> own;
    if (piece.begin == piece.end) return;
    if (at.n > 0) {
#pragma unroll 2
        for (int64_t i = piece.begin + at.ty; i < piece.end; i += at.step) {
            float v[VEC];
            load_values<T, VEC>(p.x, row_at(p, i) * p.x_stride + at.col, at.n, v);
            own.take(v);
        }
        own.undo_halves();
    }
    store_partials<moments, VEC>(partials_of(p, blockIdx.x), p.lanes, p.cols, at, own.count,
                                 own.mean, own.deviations);
}

// What a warp has to merge: the columns of group `group` in the pieces of a sample.
struct group_place {
    int64_t sample, group, first_piece, rows, columns; // columns: of all pieces
};

__device__ __forceinline__ group_place group_place_of(const group_params &p, int64_t warp)
{
    group_place at;
    at.sample = warp / p.groups;
    at.group = warp % p.groups;
    at.first_piece = spops_group_first_piece(p.samples.offsets, at.sample);
    at.rows = p.samples.offsets[at.sample + 1] - p.samples.offsets[at.sample];
    at.columns = (at.rows + SPOPS_GROUP_PIECE_ROWS - 1) / SPOPS_GROUP_PIECE_ROWS * p.width;
    return at;
}

// A warp a sample and group: lane l merges columns l, l + 32, ... of the pieces, then the lanes are merged
// in a tree.
__global__ void __launch_bounds__(threads)
    merge_moments_kernel(const __grid_constant__ group_params p)
{
    const int64_t warp = ((int64_t)blockIdx.x * threads + threadIdx.x) / 32;
    if (warp >= p.samples.num * p.groups) return;
    const group_place at = group_place_of(p, warp);
    moments all = {0.0f, 0.0f, 0.0f};
    for (int64_t i = threadIdx.x % 32; i < at.columns; i += 32) {
        const int64_t piece = i / p.width, left = at.rows - piece * SPOPS_GROUP_PIECE_ROWS;
        const float *from =
            partials_of(p, at.first_piece + piece) + at.group * p.width + i % p.width;
        const float rows = (float)(left < SPOPS_GROUP_PIECE_ROWS ? left : SPOPS_GROUP_PIECE_ROWS);
        all.merge({rows, from[0], from[p.cols]});
    }
    merge_lanes(all);
    if (threadIdx.x % 32 != 0) return;
    p.mean_out[warp] = all.a;
    p.var_out[warp] = all.count > 0.0f ? all.b / all.count : 0.0f;
}

// ---- Values and gradients -----------------------------------------------------------------------

template <bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads)
    piece_forward_kernel(const __grid_constant__ group_params p)
{
    const place at = place_of<VEC>(p.lanes, p.cols);
    const spops_group_piece piece = block_piece(p);
    if (at.n == 0 || piece.begin == piece.end) return;
    const column_values<VEC> s = read_sample<VEC>(p, piece.sample, at);
#pragma unroll 2
    for (int64_t i = piece.begin + at.ty; i < piece.end; i += at.step) {
        const int64_t row = row_at(p, i);
        float v[VEC];
        load_values<T, VEC>(p.x, row * p.x_stride + at.col, at.n, v);
        s.apply(v);
        activate<ANY>(p.activated, v);
        store_values<T, VEC>(p.out, row * p.out_stride + at.col, at.n, v);
    }
}

// Sums over the rows of a piece of g and of g h; 0 of a piece without rows.
template <bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads) piece_sums_kernel(const __grid_constant__ group_params p)
{
    const place at = place_of<VEC>(p.lanes, p.cols);
    const spops_group_piece piece = block_piece(p);
    float sum[VEC] = {}, product[VEC] = {};
    if (at.n > 0 && piece.begin < piece.end) {
        const column_values<VEC> s = read_sample<VEC>(p, piece.sample, at);
#pragma unroll 2
        for (int64_t i = piece.begin + at.ty; i < piece.end; i += at.step) {
            float h[VEC], g[VEC];
            load_gradient<ANY, T, VEC>(p, s, row_at(p, i), at, h, g);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                sum[j] += g[j];
                product[j] += g[j] * h[j];
            }
        }
    }
    store_partials<sums, VEC>(partials_of(p, blockIdx.x), p.lanes, p.cols, at, 0.0f, sum, product);
}

// Means of q and of q h of a sample and group, a warp each, as merge_moments_kernel.
__global__ void __launch_bounds__(threads)
    merge_group_sums_kernel(const __grid_constant__ group_params p)
{
    const int64_t warp = ((int64_t)blockIdx.x * threads + threadIdx.x) / 32;
    if (warp >= p.samples.num * p.groups) return;
    const group_place at = group_place_of(p, warp);
    sums all = {0.0f, 0.0f, 0.0f};
    for (int64_t i = threadIdx.x % 32; i < at.columns; i += 32) {
        const int64_t c = at.group * p.width + i % p.width;
        const float *from = partials_of(p, at.first_piece + i / p.width) + c;
        const float gamma = p.gamma != nullptr ? p.gamma[c] : 1.0f;
        all.merge({0.0f, gamma * from[0], gamma * from[p.cols]});
    }
    merge_lanes(all);
    if (threadIdx.x % 32 != 0) return;
    const float share = at.rows > 0 ? 1.0f / ((float)at.rows * (float)p.width) : 0.0f;
    float *to = p.scratch.sums + 2 * at.sample * p.groups + at.group;
    to[0] = all.a * share;
    to[p.groups] = all.b * share;
}

// Sums of a column over the pieces of all samples, a warp a column.
__global__ void __launch_bounds__(threads)
    column_sums_kernel(const __grid_constant__ group_params p)
{
    const int64_t c = ((int64_t)blockIdx.x * threads + threadIdx.x) / 32;
    if (c >= p.cols) return;
    sums all = {0.0f, 0.0f, 0.0f};
    for (int64_t piece = threadIdx.x % 32; piece < p.max_pieces; piece += 32) {
        const float *from = partials_of(p, piece) + c;
        all.merge({0.0f, from[0], from[p.cols]});
    }
    merge_lanes(all);
    if (threadIdx.x % 32 != 0) return;
    if (p.grad_beta != nullptr) p.grad_beta[c] = all.a;
    if (p.grad_gamma != nullptr) p.grad_gamma[c] = all.b;
}

// grad_x may be grad_out: a thread stores what it alone has read.
template <bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads)
    piece_gradient_kernel(const __grid_constant__ group_params p)
{
    const place at = place_of<VEC>(p.lanes, p.cols);
    const spops_group_piece piece = block_piece(p);
    if (at.n == 0 || piece.begin == piece.end) return;
    const column_values<VEC> s = read_sample<VEC>(p, piece.sample, at);
    float mean[VEC] = {}, slope[VEC] = {};
    if (!p.fixed_statistics) {
        const float *from = p.scratch.sums + 2 * piece.sample * p.groups;
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            if (j >= at.n) continue;
            mean[j] = from[(at.col + j) / p.width];
            slope[j] = from[p.groups + (at.col + j) / p.width];
        }
    }
    for (int64_t i = piece.begin + at.ty; i < piece.end; i += at.step) {
        const int64_t row = row_at(p, i);
        float h[VEC], g[VEC];
        load_gradient<ANY, T, VEC>(p, s, row, at, h, g);
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            g[j] = (g[j] * s.gamma[j] - mean[j] - h[j] * slope[j]) * s.rstd[j];
        store_values<T, VEC>(p.grad_x, row * p.grad_x_stride + at.col, at.n, g);
    }
}

// ---- Launching ----------------------------------------------------------------------------------

group_params params_of(const spops_group_norm_args *args)
{
    group_params p = {};
    p.samples = args->samples;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    p.grad_out = args->grad_out.data;
    p.grad_out_stride = args->grad_out.row_stride;
    p.grad_x = args->grad_x.data;
    p.grad_x_stride = args->grad_x.row_stride;
    p.max_pieces = spops_group_max_pieces(args->samples.num, args->samples.max_positions);
    p.cols = (int32_t)args->x.cols;
    p.groups = (int32_t)args->groups;
    p.width = p.cols / p.groups;
    p.mean = args->mean;
    p.var = args->var;
    p.gamma = args->gamma;
    p.beta = args->beta;
    p.mean_out = args->mean_out;
    p.var_out = args->var_out;
    p.grad_gamma = args->grad_gamma;
    p.grad_beta = args->grad_beta;
    p.epsilon = args->epsilon;
    p.activated = args->activated;
    p.fixed_statistics = args->fixed_statistics != 0;
    p.scratch = args->scratch;
    return p;
}

dim3 warps_of(int64_t n)
{
    return dim3((unsigned)((n * 32 + threads - 1) / threads));
}

template <bool ANY, class T, int VEC> struct launcher {
    group_params p;
    dim3 pieces, groups;

    explicit launcher(const spops_group_norm_args *args) : p(params_of(args))
    {
        const int64_t chunks = (args->x.cols + VEC - 1) / VEC;
        for (p.lanes = 1; p.lanes < 32 && p.lanes < chunks;)
            p.lanes *= 2;
        pieces = dim3((unsigned)p.max_pieces, (unsigned)((chunks + p.lanes - 1) / p.lanes));
        groups = warps_of(args->samples.num * args->groups);
    }
    spops_status statistics(spops_context *ctx) const
    {
        SPOPS_TRY(launch(ctx, "group_statistics: launch of piece_moments",
                         piece_moments_kernel<T, VEC>, pieces, threads, p));
        return launch(ctx, "group_statistics: launch of merge_moments", merge_moments_kernel,
                      groups, threads, p);
    }
    spops_status forward(spops_context *ctx) const
    {
        return launch(ctx, "group_forward: launch", piece_forward_kernel<ANY, T, VEC>, pieces,
                      threads, p);
    }
    spops_status backward(spops_context *ctx) const
    {
        const bool has_samples = p.samples.num > 0;
        if (has_samples)
            SPOPS_TRY(launch(ctx, "group_backward: launch of piece_sums",
                             piece_sums_kernel<ANY, T, VEC>, pieces, threads, p));
        if (p.grad_gamma != nullptr || p.grad_beta != nullptr)
            SPOPS_TRY(launch(ctx, "group_backward: launch of column_sums", column_sums_kernel,
                             warps_of(p.cols), threads, p));
        if (!has_samples) return SPOPS_STATUS_OK;
        if (!p.fixed_statistics)
            SPOPS_TRY(launch(ctx, "group_backward: launch of merge_sums", merge_group_sums_kernel,
                             groups, threads, p));
        return launch(ctx, "group_backward: launch of piece_gradient",
                      piece_gradient_kernel<ANY, T, VEC>, pieces, threads, p);
    }
};

// Call f with a launcher for x's dtype and the widest chunks that all rows allow.
template <class F> spops_status with_launcher(const spops_group_norm_args *args, F f)
{
    const int vec = common_chunk({args->x, args->out, args->grad_out, args->grad_x});
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        constexpr int wide = 16 / (int)sizeof(T);
        if (is_plain(args->activated))
            return vec == 1 ? f(launcher<false, T, 1>(args)) : f(launcher<false, T, wide>(args));
        return vec == 1 ? f(launcher<true, T, 1>(args)) : f(launcher<true, T, wide>(args));
    });
}

} // namespace

extern "C" spops_status spops_cuda_group_statistics(spops_context *ctx,
                                                    const spops_group_norm_args *args)
{
    return with_launcher(args, [&](auto l) { return l.statistics(ctx); });
}

extern "C" spops_status spops_cuda_group_forward(spops_context *ctx,
                                                 const spops_group_norm_args *args)
{
    return with_launcher(args, [&](auto l) { return l.forward(ctx); });
}

extern "C" spops_status spops_cuda_group_backward(spops_context *ctx,
                                                  const spops_group_norm_args *args)
{
    return with_launcher(args, [&](auto l) { return l.backward(ctx); });
}
