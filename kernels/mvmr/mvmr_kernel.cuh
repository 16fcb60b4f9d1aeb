// SPDX-License-Identifier: Apache-2.0
// The kernel of MVMR. A block takes a tile of output rows and 64 columns. It goes through the tile's
// triplets in order, up to 64 with one matrix at a time, multiplies the gathered rows by the columns
// of that matrix, and adds the products to the rows' sums in shared memory, which nobody else
// touches; at the end it writes each row once. Plans in which no row has two triplets write products
// directly.
#ifndef SPOPS_KERNELS_MVMR_MVMR_KERNEL_CUH
#define SPOPS_KERNELS_MVMR_MVMR_KERNEL_CUH

#include "kernels/core/launch.cuh"
#include "kernels/mvmr/mvmr_params.cuh"
#include "kernels/mvmr/product.cuh"

namespace spops
{

// Triplets with one matrix that are multiplied together; in shared memory.
struct mvmr_batch {
    int32_t from[product_rows], row[product_rows], number[product_rows];
    int32_t to[product_rows];   // row of the sums
    int32_t rank[product_rows]; // earlier triplets of the batch with the same row
    float scale[product_rows];
    uint32_t seen[max_tile_rows() / 32]; // rows of the sums that occur
};

// The batch at p; returns how many triplets it has. `any_shared` says whether two share a row.
template <class T>
__device__ __forceinline__ int fill_batch(const mvmr_params &p, mvmr_batch &batch, int64_t at,
                                          int64_t end, int64_t first_row, bool *any_shared)
{
    const int i = (int)threadIdx.x;
    const int32_t matrix = p.triplets[at].z;
    int4 t = make_int4(0, 0, -1, 0);
    bool shared = false;
    if (i < product_rows && at + i < end) t = p.triplets[at + i];
    if (i < p.tile_rows / 32) batch.seen[i] = 0;
    // Triplets are sorted by matrix: those with this one come first. This is also where everyone is
    // done with the batch before.
    const int n = __syncthreads_count(i < product_rows && t.z == matrix);
    if (i < n) {
        const int to = p.mode == MODE_SUM ? (int)(t.x - first_row) : i;
        batch.from[i] = t.y;
        batch.row[i] = t.x;
        batch.number[i] = t.w;
        batch.to[i] = to;
        batch.scale[i] = load_weight<WEIGHT_ANY, T>(p.s, p.s_dtype, t.w);
        if (p.mode == MODE_SUM)
            shared = (atomicOr(&batch.seen[to / 32], 1u << to % 32) >> to % 32 & 1u) != 0;
    }
    *any_shared = __syncthreads_or(shared) != 0;
    return n;
}

// sums[to] += scale * product, row by row; where rows meet, in the order of the triplets.
template <class P>
__device__ __forceinline__ void add_batch(const P &product, mvmr_batch &batch, int n,
                                          bool any_shared, float *sums)
{
    const int i = (int)threadIdx.x;
    int own = 0;
    if (any_shared) {
        if (i < n) {
            for (int j = 0; j < i; ++j)
                own += batch.to[j] == batch.to[i];
            batch.rank[i] = own;
        }
        __syncthreads();
    }
    for (int rank = 0;; ++rank) {
        product.each([&](int row, int col, float v0, float v1) {
            if (row >= n || (any_shared && batch.rank[row] != rank)) return;
            float2 *place = reinterpret_cast<float2 *>(&sums[batch.to[row] * sums_stride + col]);
            const float scale = batch.scale[row];
            float2 sum = *place;
            sum.x = fmaf(scale, v0, sum.x);
            sum.y = fmaf(scale, v1, sum.y);
            *place = sum;
        });
        if (!any_shared || __syncthreads_or(i < n && own > rank) == 0) return;
    }
}

// sums[row of the product] = scale * product.
template <class P>
__device__ __forceinline__ void set_batch(const P &product, const mvmr_batch &batch, int n,
                                          bool scaled, float *sums)
{
    product.each([&](int row, int col, float v0, float v1) {
        if (row >= n) return;
        const float scale = scaled ? batch.scale[row] : 1.0f;
        *reinterpret_cast<float2 *>(&sums[row * sums_stride + col]) =
            make_float2(scale * v0, scale * v1);
    });
}

// Columns col .. col + cols - 1 of a group.
struct mvmr_panel {
    int group, col, cols;
};
__device__ __forceinline__ mvmr_panel panel_at(const mvmr_params &p, int64_t index)
{
    const int64_t in_group = (p.out_cols + product_cols - 1) / product_cols;
    mvmr_panel panel;
    panel.group = (int)(index / in_group);
    panel.col = (int)(index % in_group) * product_cols;
    panel.cols = min(product_cols, p.out_cols - panel.col);
    return panel;
}
__host__ __device__ inline int64_t num_panels(const mvmr_params &p)
{
    return p.groups * (int64_t)((p.out_cols + product_cols - 1) / product_cols);
}

// The batch's rows times a panel of matrix k. TRANSPOSED: as matrices are stored.
template <class P, bool TRANSPOSED>
__device__ __forceinline__ void multiply_batch(const mvmr_params &p, const mvmr_batch &batch, int n,
                                               int32_t k, mvmr_panel panel, uint32_t *stage,
                                               P &product)
{
    typedef typename P::element T;
    const T *x = static_cast<const T *>(p.x), *w = static_cast<const T *>(p.w);
    const auto a = rows_by([&](int r) { return x + batch.from[r] * p.x_stride; });
    // A row of the matrix is one of its inputs, or, transposed, one of its outputs.
    const T *first =
        w + (TRANSPOSED ? k * (int64_t)p.out_cols + panel.col : k * (int64_t)p.x_cols) * p.w_stride;
    const auto b = rows_by([&](int r) { return first + r * p.w_stride; });
    const int64_t x_col = panel.group * (int64_t)p.x_cols;
    const int64_t out_col = panel.group * (int64_t)p.out_cols + panel.col;
    product.clear();
    product.run(stage, a, x_col, n, b, TRANSPOSED ? x_col : out_col, panel.cols, p.x_cols);
}

template <class P, bool TRANSPOSED>
__device__ __forceinline__ void sum_tile(const mvmr_params &p, mvmr_panel panel, mvmr_batch &batch,
                                         uint32_t *stage, float *sums)
{
    typedef typename P::element T;
    const int64_t tile = blockIdx.x, first_row = tile * p.tile_rows;
    const int32_t begin = p.offsets[tile], end = p.offsets[tile + 1];
    const int rows = (int)min((int64_t)p.tile_rows, p.num_rows - first_row);
    const int64_t out_col = panel.group * (int64_t)p.out_cols + panel.col;
    const bool direct = p.mode == MODE_DIRECT;
    const int64_t written = rows_written(p.num_written, p.num_rows);
    P product;

    if (!direct && first_row >= written) return;
    if (!direct)
        for (int i = threadIdx.x; i < rows * sums_stride; i += product_threads)
            sums[i] = 0.0f;
    for (int64_t at = begin; at < end;) {
        const int32_t k = p.triplets[at].z;
        bool any_shared;
        const int n = fill_batch<T>(p, batch, at, end, first_row, &any_shared);
        multiply_batch<P, TRANSPOSED>(p, batch, n, k, panel, stage, product);
        if (direct) {
            set_batch(product, batch, n, p.s != nullptr, sums);
            __syncthreads();
            for (int r = threadIdx.x / 8; r < n; r += product_threads / 8)
                if (batch.row[r] < written)
                    p.out.template store<T>(&sums[r * sums_stride], batch.row[r], out_col,
                                            panel.cols, threadIdx.x % 8, 8);
        } else {
            add_batch(product, batch, n, any_shared, sums);
        }
        at += n;
    }
    if (direct) return;
    __syncthreads();
    for (int r = threadIdx.x / 8; r < rows && first_row + r < written; r += product_threads / 8)
        p.out.template store<T>(&sums[r * sums_stride], first_row + r, out_col, panel.cols,
                                threadIdx.x % 8, 8);
}

// <g[row], x[from] w> of a tile's triplets: two threads share a row.
template <class P, bool TRANSPOSED>
__device__ __forceinline__ void dot_tile(const mvmr_params &p, mvmr_batch &batch, uint32_t *stage,
                                         float *sums)
{
    typedef typename P::element T;
    const int32_t begin = p.offsets[blockIdx.x], end = p.offsets[blockIdx.x + 1];
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
    const int64_t panels = num_panels(p);
    P product;

    for (int64_t at = begin; at < end;) {
        const int32_t k = p.triplets[at].z;
        bool any_shared;
        const int n = fill_batch<T>(p, batch, at, end, 0, &any_shared);
        float dot = 0.0f;
        for (int64_t index = 0; index < panels; ++index) {
            const mvmr_panel panel = panel_at(p, index);
            multiply_batch<P, TRANSPOSED>(p, batch, n, k, panel, stage, product);
            set_batch(product, batch, n, false, sums);
            __syncthreads();
            if (row < n) {
                const T *g = static_cast<const T *>(p.g) + batch.row[row] * p.g_stride +
                             panel.group * (int64_t)p.out_cols + panel.col;
                for (int c = half; c < panel.cols; c += 2)
                    dot = fmaf(sums[row * sums_stride + c], to_f32(g[c]), dot);
            }
            __syncthreads();
        }
        dot += __shfl_xor_sync(~0u, dot, 1);
        if (row < n && half == 0) p.grad_s[batch.number[row]] = dot;
        at += n;
    }
}

template <class P, bool TRANSPOSED>
__global__ void __launch_bounds__(product_threads)
    mvmr_kernel(const __grid_constant__ mvmr_params p)
{
    extern __shared__ __align__(16) uint32_t shared[];
    mvmr_batch &batch = *reinterpret_cast<mvmr_batch *>(shared);
    uint32_t *const stage = shared + (sizeof(mvmr_batch) + 15) / 16 * 4;
    float *const sums = reinterpret_cast<float *>(stage + P::shared_words);

    if (p.mode == MODE_DOT) {
        dot_tile<P, TRANSPOSED>(p, batch, stage, sums);
        return;
    }
    for (int64_t index = blockIdx.y; index < num_panels(p); index += gridDim.y) {
        sum_tile<P, TRANSPOSED>(p, panel_at(p, index), batch, stage, sums);
        __syncthreads();
    }
}

// Shared memory of a block whose sums are `rows` rows.
template <class P> constexpr size_t mvmr_shared_bytes(int rows)
{
    return (sizeof(mvmr_batch) + 15) / 16 * 16 +
           (size_t)(P::shared_words + rows * sums_stride) * sizeof(float);
}

template <product_engine ENGINE, class T, int VEC> spops_status prepare_engine(spops_context *ctx)
{
    typedef product<ENGINE, T, VEC, false, true> along;
    typedef product<ENGINE, T, VEC, false, false> across;
    if (mvmr_shared_bytes<along>(max_tile_rows()) > default_shared_bytes)
        SPOPS_TRY(prepare_shared(ctx, "mvmr: prepare", mvmr_kernel<along, false>));
    if (mvmr_shared_bytes<across>(max_tile_rows()) > default_shared_bytes)
        SPOPS_TRY(prepare_shared(ctx, "mvmr: prepare", mvmr_kernel<across, true>));
    return SPOPS_STATUS_OK;
}

template <product_engine ENGINE, class T, int VEC, bool TRANSPOSED>
spops_status launch_kernel(spops_context *ctx, const spops_mvmr_args *args, const mvmr_params &p)
{
    typedef product<ENGINE, T, VEC, false, !TRANSPOSED> P;
    const int64_t panels = p.mode == MODE_DOT ? 1 : num_panels(p);
    const size_t bytes = mvmr_shared_bytes<P>(p.mode == MODE_SUM ? p.tile_rows : product_rows);
    const dim3 grid((unsigned)args->tiles->num_tiles, (unsigned)(panels < 65535 ? panels : 65535));
    return launch_prepared<AFTER_PREVIOUS>(ctx, "mvmr: launch", mvmr_kernel<P, TRANSPOSED>, grid,
                                           product_threads, bytes, p);
}

template <product_engine ENGINE, class T, int VEC>
spops_status launch_transposed(spops_context *ctx, const spops_mvmr_args *args,
                               const mvmr_params &p)
{
    return args->transposed ? launch_kernel<ENGINE, T, VEC, true>(ctx, args, p)
                            : launch_kernel<ENGINE, T, VEC, false>(ctx, args, p);
}

// The engine and the loads that suit device and arguments.
template <class T>
spops_status launch_mvmr(spops_context *ctx, const spops_mvmr_args *args, const mvmr_params &p,
                         bool wide)
{
    constexpr int vec = (int)(16 / sizeof(T));
    const product_engine engine = engine_for(ctx, args->x.dtype, args->math, wide);
    if constexpr (sizeof(T) == 2) {
        if (engine == ENGINE_UNITS)
            return wide ? launch_transposed<ENGINE_UNITS, T, vec>(ctx, args, p)
                        : launch_transposed<ENGINE_UNITS, T, 1>(ctx, args, p);
    } else {
        if (engine == ENGINE_TF32) return launch_transposed<ENGINE_TF32, T, vec>(ctx, args, p);
        if (wide) return launch_transposed<ENGINE_F32, T, vec>(ctx, args, p);
    }
    return launch_transposed<ENGINE_F32, T, 1>(ctx, args, p);
}

// All that launch_mvmr may launch on this device.
template <class T> spops_status prepare_mvmr(spops_context *ctx)
{
    constexpr int vec = (int)(16 / sizeof(T));
    const bool has_units = ctx->info.compute_capability >= 80;
    if constexpr (sizeof(T) == 2) {
        if (has_units) {
            SPOPS_TRY((prepare_engine<ENGINE_UNITS, T, vec>(ctx)));
            return prepare_engine<ENGINE_UNITS, T, 1>(ctx);
        }
    } else {
        if (has_units) SPOPS_TRY((prepare_engine<ENGINE_TF32, T, vec>(ctx)));
        SPOPS_TRY((prepare_engine<ENGINE_F32, T, vec>(ctx)));
    }
    return prepare_engine<ENGINE_F32, T, 1>(ctx);
}

} // namespace spops

#endif
