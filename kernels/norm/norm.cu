// SPDX-License-Identifier: Apache-2.0
// Normalisation on the GPU. Threads of a block share columns by rows of a chunk: lane tx has one
// 16-byte piece of a row, ty every TY-th row. Chunks depend on the number of rows alone, which the
// device knows; what threads and chunks have is merged in a fixed order.
#include <initializer_list>
#include <type_traits>

#include "core/matrix.h"
#include "kernels/core/chunk.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/norm/norm_rows.cuh"
#include "norm/addnorm_args.h"
#include "spops/device/dtypes.cuh"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;
using namespace spops::norm;

struct norm_params {
    const void *x, *grad_out, *grad_more;
    void *out, *grad_x;
    int64_t x_stride, out_stride, grad_out_stride, grad_more_stride, grad_x_stride;
    int64_t max_rows;
    int32_t cols, lanes; // lanes: threads beside each other, a power of two up to 32
    const int32_t *num_rows;
    const float *mean, *var, *gamma, *beta;
    float *mean_out, *var_out, *running_mean, *running_var, *grad_gamma, *grad_beta;
    float epsilon, momentum;
    spops_activated activated;
    bool fixed_statistics, is_rms;
    int64_t total_rows; // grad_beta and grad_gamma are given, as sums over so many; 0: computed
    spops_norm_scratch scratch;
};

// Of norm_params, or of merge_params.
template <class Params> __device__ __forceinline__ int64_t rows_of(const Params &p)
{
    if (p.num_rows == nullptr) return p.max_rows;
    const int64_t given = *p.num_rows < 0 ? 0 : *p.num_rows;
    return given < p.max_rows ? given : p.max_rows;
}

// How many rows there are, of norm_params or other parameters. From here on a kernel reads what the kernel before it
// has left, and the next kernel may start.
template <class Params> __device__ __forceinline__ int64_t rows_after_wait(const Params &p)
{
    grid_dependency_wait();
    grid_launch_dependents();
    return rows_of(p);
}

// The rows of a block's chunk, of n.
struct chunk_rows {
    int64_t begin, end;
    explicit __device__ __forceinline__ chunk_rows(int64_t n)
    {
        const int64_t rows = spops_norm_chunk_rows(n);
        begin = blockIdx.x * rows;
        end = begin + rows < n ? begin + rows : n;
    }
};

// Where a block leaves what its chunk has.
__device__ __forceinline__ float *chunk_partials(const norm_params &p)
{
    return p.scratch.partials + 2 * (int64_t)blockIdx.x * p.cols;
}

// The partials of all chunks of a column, by one warp: lane l merges chunks l, l + 32, ..., then
// the lanes are merged in a tree. Lane 0 has the result.
template <class State>
__device__ __forceinline__ State merge_chunks(const norm_params &p, int64_t n, int c)
{
    const int64_t rows = spops_norm_chunk_rows(n), chunks = (n + rows - 1) / rows;
    const int lane = threadIdx.x % 32;
    State all = {0.0f, 0.0f, 0.0f};
    for (int64_t chunk = lane; chunk < chunks; chunk += 32) {
        const int64_t end = (chunk + 1) * rows;
        const float *partials = p.scratch.partials + 2 * chunk * p.cols + c;
        const float count = (float)((end < n ? end : n) - chunk * rows);
        all.merge({count, partials[0], partials[p.cols]});
    }
    merge_lanes(all);
    return all;
}

// ---- Statistics of columns ----------------------------------------------------------------------

template <bool FULL, class T, int VEC>
__global__ void __launch_bounds__(threads, blocks_held(threads, 4))
    chunk_moments_kernel(const __grid_constant__ norm_params p)
{
    const place at = place_of<VEC, FULL>(p.lanes, p.cols);
    const chunk_rows chunk(rows_after_wait(p));
    half_moments<VEC> own;
    if (chunk.begin >= chunk.end) return;
    if (at.n > 0) {
#pragma unroll 4
        for (int64_t r = chunk.begin + at.ty; r < chunk.end; r += at.step) {
            float v[VEC];
            load_values<T, VEC>(p.x, r * p.x_stride + at.col, at.n, v);
            own.take(v);
        }
        own.undo_halves();
    }
    store_partials<moments, VEC>(chunk_partials(p), p.lanes, p.cols, at, own.count, own.mean,
                                 own.deviations);
}

// Moments of all rows become the statistics of column c of norm_params, or of spops_norm_merge_args.
template <class Params>
__device__ __forceinline__ void store_statistics(const Params &p, const moments &all, int c)
{
    const float var = all.count > 0.0f ? all.b / all.count : 0.0f;
    p.mean_out[c] = all.a;
    p.var_out[c] = var;
    if (p.running_mean == nullptr || all.count == 0.0f) return;
    const float unbiased = all.count > 1.0f ? all.b / (all.count - 1.0f) : var;
    p.running_mean[c] += 2.0f * p.momentum * spops_norm_half_distance(p.running_mean[c], all.a);
    p.running_var[c] += p.momentum * (unbiased - p.running_var[c]);
}

// A warp a column.
__global__ void __launch_bounds__(threads)
    merge_moments_kernel(const __grid_constant__ norm_params p)
{
    const int c = (int)((blockIdx.x * threads + threadIdx.x) / 32);
    grid_dependency_wait();
    grid_launch_dependents();
    if (c >= p.cols) return;
    const moments all = merge_chunks<moments>(p, rows_of(p), c);
    if (threadIdx.x % 32 == 0) store_statistics(p, all, c);
}

// Statistics of chunks that were computed elsewhere, in their order: a thread a column.
__global__ void __launch_bounds__(threads)
    merge_statistics_kernel(const __grid_constant__ spops_norm_merge_args p)
{
    const int cols = (int)(p.chunks.cols / 2), c = (int)(blockIdx.x * threads + threadIdx.x);
    moments all = {0.0f, 0.0f, 0.0f};
    if (c >= cols) return;
    for (int64_t chunk = 0; chunk < p.chunks.rows; ++chunk) {
        const float *row =
            static_cast<const float *>(p.chunks.data) + chunk * p.chunks.row_stride + c;
        const float rows = (float)p.chunk_rows[chunk];
        if (rows > 0.0f) all.merge({rows, row[0], row[cols] * rows});
    }
    store_statistics(p, all, c);
}

// ---- The value and its gradient -----------------------------------------------------------------

// What a thread's columns have in common; layer norm sets mean and rstd anew for each row.
template <int VEC> struct column_params : column_values<VEC> {
    using column_values<VEC>::mean, column_values<VEC>::rstd;

    __device__ __forceinline__ void read(const norm_params &p, const place &at)
    {
        this->read_affine(p.gamma, p.beta, at);
        if (p.mean == nullptr) return;
        load_vector(p.mean, at, 0.0f, mean);
        load_vector(p.var, at, 0.0f, rstd);
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            rstd[j] = j < at.n ? 1.0f / sqrtf(rstd[j] + p.epsilon) : 0.0f;
    }
    __device__ __forceinline__ void set_row(float row_mean, float row_rstd)
    {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            mean[j] = row_mean;
            rstd[j] = row_rstd;
        }
    }
};

// ---- Batch norm: FULL is rows of whole pieces ---------------------------------------------------

// Blocks of a multiprocessor.
constexpr int batch_blocks = 3;

template <bool FULL, bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads, blocks_held(threads, batch_blocks))
    batch_forward_kernel(const __grid_constant__ norm_params p)
{
    const place at = place_of<VEC, FULL>(p.lanes, p.cols);
    const int64_t n = rows_after_wait(p);
    column_params<VEC> s;
    if (at.n == 0) return;
    s.read(p, at);
#pragma unroll 2
    for (int64_t r = (int64_t)blockIdx.x * at.step + at.ty; r < n;
         r += (int64_t)gridDim.x * at.step) {
        float v[VEC];
        load_values<T, VEC>(p.x, r * p.x_stride + at.col, at.n, v);
        s.apply(v);
        activate<ANY>(p.activated, v);
        store_values<T, VEC>(p.out, r * p.out_stride + at.col, at.n, v);
    }
}

// Both norms: sums over the rows of a chunk of g and of g h.
template <bool FULL, bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads, blocks_held(threads, batch_blocks))
    chunk_sums_kernel(const __grid_constant__ norm_params p)
{
    const place at = place_of<VEC, FULL>(p.lanes, p.cols);
    const chunk_rows chunk(rows_after_wait(p));
    float sum[VEC] = {}, product[VEC] = {};
    if (chunk.begin >= chunk.end) return;
    if (at.n > 0) {
        column_params<VEC> s;
        s.read(p, at);
#pragma unroll(ANY ? 1 : 2)
        for (int64_t r = chunk.begin + at.ty; r < chunk.end; r += at.step) {
            float h[VEC], g[VEC];
            if (p.mean == nullptr) s.set_row(p.scratch.row_mean[r], p.scratch.row_rstd[r]);
            load_gradient<ANY, T, VEC>(p, s, r, at, h, g);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                sum[j] += g[j];
                product[j] += g[j] * h[j];
            }
        }
    }
    store_partials<sums, VEC>(chunk_partials(p), p.lanes, p.cols, at, 0.0f, sum, product);
}

constexpr int merge_threads = 1024, merge_warps = merge_threads / 32;

// The sums of chunks of one norm, or two.
struct merge_params {
    const int32_t *num_rows;
    int64_t max_rows;
    int32_t cols;
    const float *partials[2];
    float *sums; // of the first
    float *grad_gamma[2], *grad_beta[2];
};

// 32 columns of a norm a block: warp w adds chunks w, w + 32, ... of both sums, then the warps' are added in their
// order.
__global__ void __launch_bounds__(merge_threads)
    merge_sums_kernel(const __grid_constant__ merge_params p)
{
    __shared__ float shared[2][merge_warps][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, norm = blockIdx.y;
    const int64_t c = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0.0f, product = 0.0f;
    const int64_t n = rows_after_wait(p), rows = spops_norm_chunk_rows(n);
    const int chunks = (int)((n + rows - 1) / rows);
    if (c < p.cols) {
        const float *from = p.partials[norm] + c;
#pragma unroll 8
        for (int chunk = warp; chunk < chunks; chunk += merge_warps) {
            sum += from[2 * (int64_t)chunk * p.cols];
            product += from[(2 * (int64_t)chunk + 1) * p.cols];
        }
    }
    shared[0][warp][lane] = sum;
    shared[1][warp][lane] = product;
    __syncthreads();
    if (warp >= 2 || c >= p.cols) return;
    float all = 0.0f;
#pragma unroll
    for (int other = 0; other < merge_warps; ++other)
        all += shared[warp][other][lane];
    if (norm == 0) p.sums[warp * (int64_t)p.cols + c] = all;
    float *to = warp == 0 ? p.grad_beta[norm] : p.grad_gamma[norm];
    if (to != nullptr) to[c] = all;
}

template <bool FULL, bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads, blocks_held(threads, batch_blocks))
    batch_gradient_kernel(const __grid_constant__ norm_params p)
{
    const place at = place_of<VEC, FULL>(p.lanes, p.cols);
    const int64_t n = rows_after_wait(p);
    column_params<VEC> s;
    float mean[VEC] = {}, slope[VEC] = {};
    if (at.n == 0) return;
    s.read(p, at);
    if (!p.fixed_statistics && n > 0) {
        const bool given = p.total_rows > 0;
        const float *sums = given ? p.grad_beta : p.scratch.sums;
        const float *products = given ? p.grad_gamma : sums + p.cols;
        const float share = 1.0f / (float)(given ? p.total_rows : n);
        load_vector(sums, at, 0.0f, mean);
        load_vector(products, at, 0.0f, slope);
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            mean[j] *= share;
            slope[j] *= share;
        }
    }
    for (int64_t r = (int64_t)blockIdx.x * at.step + at.ty; r < n;
         r += (int64_t)gridDim.x * at.step) {
        float h[VEC], g[VEC];
        load_gradient<ANY, T, VEC>(p, s, r, at, h, g);
        if (!p.fixed_statistics) {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                g[j] -= mean[j] + h[j] * slope[j];
        }
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            g[j] *= s.gamma[j] * s.rstd[j];
        store_values<T, VEC>(p.grad_x, r * p.grad_x_stride + at.col, at.n, g);
    }
}

// ---- Layer norm: a warp has 32 / lanes rows beside each other -----------------------------------

// The rows of a thread: one of the 32 / lanes that its warp has at a time. WHOLE: a row has a warp, which
// the compiler knows.
template <bool WHOLE> struct row_walk {
    int lanes, together;
    int64_t first, step;
    __device__ __forceinline__ row_walk(const norm_params &p)
        : lanes(WHOLE ? 32 : p.lanes), together(WHOLE ? 1 : 32 / p.lanes)
    {
        first = ((int64_t)blockIdx.x * threads + threadIdx.x) / 32 * together +
                (WHOLE ? 0 : threadIdx.x % 32 / lanes);
        step = (int64_t)gridDim.x * (threads / 32) * together;
    }
    // Does the first row of the warp that has row r count?
    __device__ __forceinline__ bool goes_on(int64_t r, int64_t n) const
    {
        return WHOLE ? r < n : r - threadIdx.x % 32 / lanes < n;
    }
};

// The pieces of a row that a lane has, one after the other; none of a row after those that count, whose
// lanes take part in sums alone.
template <int VEC> struct row_pieces {
    int64_t col, step;
    bool counts;
    __device__ __forceinline__ row_pieces(int lanes, bool counts)
        : col(threadIdx.x % lanes * VEC), step((int64_t)lanes * VEC), counts(counts)
    {
    }
    __device__ __forceinline__ bool there(const norm_params &p) const
    {
        return counts && col < p.cols;
    }
    __device__ __forceinline__ void next() { col += step; }
    __device__ __forceinline__ place at(const norm_params &p) const
    {
        const int64_t left = p.cols - col;
        return {0, 0, 0, col, left < VEC ? (int)left : VEC};
    }
};

// The sum over the lanes of a row; every lane has it.
__device__ __forceinline__ float row_sum(int lanes, float value)
{
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// Mean and 1 / sqrt(variance + epsilon) of a row; every lane has them.
template <class T, int VEC>
__device__ __forceinline__ void row_statistics(const norm_params &p, int lanes, int64_t r,
                                               bool counts, float &mean, float &rstd)
{
    float sum = 0.0f, squares = 0.0f;
    for (row_pieces<VEC> piece(lanes, counts && !p.is_rms); piece.there(p); piece.next()) {
        const place at = piece.at(p);
        float v[VEC];
        load_values<T, VEC>(p.x, r * p.x_stride + at.col, at.n, v);
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (j < at.n) sum += v[j];
    }
    mean = row_sum(lanes, sum) / (float)p.cols;
    for (row_pieces<VEC> piece(lanes, counts); piece.there(p); piece.next()) {
        const place at = piece.at(p);
        float v[VEC];
        load_values<T, VEC>(p.x, r * p.x_stride + at.col, at.n, v);
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (j < at.n) squares += (v[j] - mean) * (v[j] - mean);
    }
    rstd = 1.0f / sqrtf(row_sum(lanes, squares) / (float)p.cols + p.epsilon);
}

// The pieces of a row that a lane holds, PIECES at most: where each stands, and its numbers.
template <int PIECES, int VEC> struct held_row {
    place at[PIECES];

    __device__ __forceinline__ held_row(const norm_params &p, int lanes)
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int64_t col = ((int64_t)i * lanes + threadIdx.x % lanes) * VEC;
            const int64_t left = p.cols - col;
            at[i] = {0, 0, 0, col, left < 0 ? 0 : left < VEC ? (int)left : VEC};
        }
    }
    template <class T>
    __device__ __forceinline__ void load(const void *m, int64_t row, float (&v)[PIECES][VEC]) const
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            if (at[i].n > 0) load_values<T, VEC>(m, row + at[i].col, at[i].n, v[i]);
    }
    template <class T>
    __device__ __forceinline__ void store(void *m, int64_t row, const float (&v)[PIECES][VEC]) const
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            if (at[i].n > 0) store_values<T, VEC>(m, row + at[i].col, at[i].n, v[i]);
    }
    // f(piece, number) of all that are there, in their order.
    template <class F> __device__ __forceinline__ void each(const F &f) const
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                if (j < at[i].n) f(i, j);
    }
};

// As row_statistics, of a row that is held.
template <int PIECES, int VEC>
__device__ __forceinline__ void
held_statistics(const norm_params &p, const held_row<PIECES, VEC> &row, int lanes,
                const float (&v)[PIECES][VEC], float &mean, float &rstd)
{
    float sum = 0.0f, squares = 0.0f;
    if (!p.is_rms) row.each([&](int i, int j) { sum += v[i][j]; });
    mean = row_sum(lanes, sum) / (float)p.cols;
    row.each([&](int i, int j) { squares += (v[i][j] - mean) * (v[i][j] - mean); });
    rstd = 1.0f / sqrtf(row_sum(lanes, squares) / (float)p.cols + p.epsilon);
}

// The norm of a held row, before an activation.
template <int PIECES, int VEC>
__device__ __forceinline__ void normalise(column_params<VEC> (&s)[PIECES], float mean, float rstd,
                                          float (&v)[PIECES][VEC])
{
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        s[i].set_row(mean, rstd);
        s[i].apply(v[i]);
    }
}

// A row is read once, and gamma and beta once a thread.
template <bool WHOLE, int PIECES, bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads)
    held_forward_kernel(const __grid_constant__ norm_params p)
{
    const int64_t n = rows_after_wait(p);
    const row_walk<WHOLE> rows(p);
    const held_row<PIECES, VEC> row(p, rows.lanes);
    column_params<VEC> s[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
        s[i].read_affine(p.gamma, p.beta, row.at[i]);
    for (int64_t r = rows.first; rows.goes_on(r, n); r += rows.step) {
        const bool counts = WHOLE || r < n;
        float v[PIECES][VEC] = {}, mean, rstd;
        if (counts) row.template load<T>(p.x, r * p.x_stride, v);
        held_statistics(p, row, rows.lanes, v, mean, rstd);
        if (!counts) continue;
        normalise(s, mean, rstd, v);
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            activate<ANY>(p.activated, v[i]);
        row.template store<T>(p.out, r * p.out_stride, v);
    }
}

// As numbers of T are: what a call that ended before would have left.
template <class T, int PIECES, int VEC>
__device__ __forceinline__ void round_to(float (&v)[PIECES][VEC])
{
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        row_chunk<T, VEC, false> chunk;
        chunk.set(v[i]);
        chunk.get(v[i]);
    }
}

// ---- Layer norm of rows of whole pieces, of which all lanes of a row have as many ---------------

// The sums over the lanes of a row of two numbers; every lane has them.
template <int LANES> __device__ __forceinline__ void row_sums(float &a, float &b)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        a += __shfl_xor_sync(0xffffffffu, a, offset);
        b += __shfl_xor_sync(0xffffffffu, b, offset);
    }
}

// The pieces of 16 bytes of a row that a lane has of PIECES times LANES, as they were loaded.
template <int LANES, int PIECES, class T, int VEC> struct whole_row {
    row_chunk<T, VEC, true> piece[PIECES];

    // Zeros where m is null, or the row does not count.
    __device__ __forceinline__ void load(const void *m, int64_t offset, bool counts)
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            piece[i].clear();
            if (counts && m != nullptr)
                piece[i].load(static_cast<const T *>(m) + offset + i * LANES * VEC, VEC);
        }
    }
    __device__ __forceinline__ void get(float (&v)[PIECES][VEC]) const
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            piece[i].get(v[i]);
    }
};

// As held_statistics, to the bit.
template <int LANES, int PIECES, int VEC>
__device__ __forceinline__ void
whole_statistics(const norm_params &p, const float (&v)[PIECES][VEC], float &mean, float &rstd)
{
    constexpr float cols = (float)(LANES * PIECES * VEC);
    float sum = 0.0f, squares = 0.0f;
    if (!p.is_rms) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                sum += v[i][j];
        sum = row_sum(LANES, sum);
    }
    mean = sum / cols;
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            squares += (v[i][j] - mean) * (v[i][j] - mean);
    rstd = 1.0f / sqrtf(row_sum(LANES, squares) / cols + p.epsilon);
}

// gamma and beta of a thread's columns.
template <int LANES, int PIECES, int VEC> struct whole_affine {
    float gamma[PIECES][VEC], beta[PIECES][VEC];
    __device__ __forceinline__ whole_affine(const float *of_gamma, const float *of_beta)
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const place at = {0, 0, 0, (i * LANES + (int)threadIdx.x % LANES) * VEC, VEC};
            load_vector(of_gamma, at, 1.0f, gamma[i]);
            load_vector(of_beta, at, 0.0f, beta[i]);
        }
    }
    __device__ __forceinline__ void apply(float mean, float rstd, float (&v)[PIECES][VEC]) const
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                v[i][j] = __fmaf_rn((v[i][j] - mean) * rstd, gamma[i][j], beta[i][j]);
    }
};

template <int LANES, int PIECES, class T, int VEC>
__device__ __forceinline__ void store_whole(void *m, int64_t offset, const float (&v)[PIECES][VEC])
{
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
        store_values<T, VEC>(m, offset + i * LANES * VEC, VEC, v[i]);
}

// As held_forward_kernel, without an activation; the next row is on its way while one is worked on.
template <int LANES, int PIECES, class T, int VEC>
__global__ void __launch_bounds__(threads, blocks_held(threads, PIECES > 1 ? 3 : 4))
    whole_forward_kernel(const __grid_constant__ norm_params p)
{
    const int64_t step = (int64_t)gridDim.x * (threads / LANES);
    const int col = (int)threadIdx.x % LANES * VEC;
    const int64_t n = rows_after_wait(p);
    int64_t r = ((int64_t)blockIdx.x * threads + threadIdx.x) / LANES;
    int64_t first = r - (int)threadIdx.x % 32 / LANES; // of the warp
    whole_row<LANES, PIECES, T, VEC> next;
    next.load(p.x, r * p.x_stride + col, r < n);
    const whole_affine<LANES, PIECES, VEC> affine(p.gamma, p.beta);
    for (; first < n; first += step, r += step) {
        float v[PIECES][VEC], mean, rstd;
        next.get(v);
        next.load(p.x, (r + step) * p.x_stride + col, r + step < n);
        whole_statistics<LANES>(p, v, mean, rstd);
        affine.apply(mean, rstd, v);
        if (r < n) store_whole<LANES, PIECES, T, VEC>(p.out, r * p.out_stride + col, v);
    }
}

struct addnorm_params {
    norm_params norm; // of the sum, which is its x
    void *sum;
    const void *x, *y;
    int64_t x_stride, y_stride;
    const float *y_gamma, *y_beta;
    bool norm_y;
};

// A row of a sum, and its norm. sum may be x, and out y: a lane stores what it alone has read.
template <bool WHOLE, int PIECES, bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads) addnorm_kernel(const __grid_constant__ addnorm_params a)
{
    const norm_params &p = a.norm;
    const int64_t n = rows_after_wait(p);
    const row_walk<WHOLE> rows(p);
    const held_row<PIECES, VEC> row(p, rows.lanes);
    column_params<VEC> s[PIECES], of_y[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        s[i].read_affine(p.gamma, p.beta, row.at[i]);
        if (a.norm_y) of_y[i].read_affine(a.y_gamma, a.y_beta, row.at[i]);
    }
    for (int64_t r = rows.first; rows.goes_on(r, n); r += rows.step) {
        const bool counts = WHOLE || r < n;
        float v[PIECES][VEC] = {}, x[PIECES][VEC] = {}, mean, rstd;
        if (counts) row.template load<T>(a.y, r * a.y_stride, v);
        if (counts) row.template load<T>(a.x, r * a.x_stride, x);
        if (a.norm_y) {
            held_statistics(p, row, rows.lanes, v, mean, rstd);
            normalise(of_y, mean, rstd, v);
            round_to<T>(v);
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                v[i][j] += x[i][j];
        round_to<T>(v);
        held_statistics(p, row, rows.lanes, v, mean, rstd);
        if (!counts) continue;
        row.template store<T>(a.sum, r * p.x_stride, v);
        normalise(s, mean, rstd, v);
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            activate<ANY>(p.activated, v[i]);
        row.template store<T>(p.out, r * p.out_stride, v);
    }
}

// The same of rows of whole pieces, without an activation.
template <int LANES, int PIECES, class T, int VEC>
__global__ void __launch_bounds__(threads, blocks_held(threads, PIECES > 1 ? 2 : 3))
    whole_addnorm_kernel(const __grid_constant__ addnorm_params a)
{
    const norm_params &p = a.norm;
    const int64_t step = (int64_t)gridDim.x * (threads / LANES);
    const int col = (int)threadIdx.x % LANES * VEC;
    const int64_t n = rows_after_wait(p);
    int64_t r = ((int64_t)blockIdx.x * threads + threadIdx.x) / LANES;
    int64_t first = r - (int)threadIdx.x % 32 / LANES; // of the warp
    whole_row<LANES, PIECES, T, VEC> next_x, next_y;
    next_y.load(a.y, r * a.y_stride + col, r < n);
    next_x.load(a.x, r * a.x_stride + col, r < n);
    const whole_affine<LANES, PIECES, VEC> affine(p.gamma, p.beta);
    const whole_affine<LANES, PIECES, VEC> of_y(a.norm_y ? a.y_gamma : nullptr,
                                                a.norm_y ? a.y_beta : nullptr);
    for (; first < n; first += step, r += step) {
        const whole_row<LANES, PIECES, T, VEC> own_x = next_x;
        float v[PIECES][VEC], mean, rstd;
        next_y.get(v);
        next_y.load(a.y, (r + step) * a.y_stride + col, r + step < n);
        next_x.load(a.x, (r + step) * a.x_stride + col, r + step < n);
        if (a.norm_y) {
            whole_statistics<LANES>(p, v, mean, rstd);
            of_y.apply(mean, rstd, v);
            round_to<T>(v);
        }
        float x[PIECES][VEC];
        own_x.get(x);
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                v[i][j] += x[i][j];
        round_to<T>(v);
        whole_statistics<LANES>(p, v, mean, rstd);
        if (r < n) store_whole<LANES, PIECES, T, VEC>(a.sum, r * p.x_stride + col, v);
        affine.apply(mean, rstd, v);
        if (r < n) store_whole<LANES, PIECES, T, VEC>(p.out, r * p.out_stride + col, v);
    }
}

// Of rows that no warp can hold.
template <bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads) row_forward_kernel(const __grid_constant__ norm_params p)
{
    const int64_t n = rows_after_wait(p);
    const row_walk<true> rows(p);
    for (int64_t r = rows.first; rows.goes_on(r, n); r += rows.step) {
        float mean, rstd;
        row_statistics<T, VEC>(p, 32, r, true, mean, rstd);
        for (row_pieces<VEC> piece(32, true); piece.there(p); piece.next()) {
            const place at = piece.at(p);
            column_params<VEC> s;
            float v[VEC];
            s.read(p, at);
            s.set_row(mean, rstd);
            load_values<T, VEC>(p.x, r * p.x_stride + at.col, at.n, v);
            s.apply(v);
            activate<ANY>(p.activated, v);
            store_values<T, VEC>(p.out, r * p.out_stride + at.col, at.n, v);
        }
    }
}

template <class T, int VEC>
__global__ void __launch_bounds__(threads)
    row_statistics_kernel(const __grid_constant__ norm_params p)
{
    const int64_t n = rows_of(p);
    const row_walk<true> rows(p);
    for (int64_t r = rows.first; rows.goes_on(r, n); r += rows.step) {
        float mean, rstd;
        row_statistics<T, VEC>(p, 32, r, true, mean, rstd);
        if (threadIdx.x % 32 != 0) continue;
        p.scratch.row_mean[r] = mean;
        p.scratch.row_rstd[r] = rstd;
    }
}

// Statistics, gradient and sums over the columns of a chunk of held rows, which are read once; the same bits
// as by row_statistics, chunk_sums and row_gradient. grad_x may be grad_out or grad_more: a lane stores
// what it alone has read.
template <bool WHOLE, int PIECES, bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads)
    held_backward_kernel(const __grid_constant__ norm_params p)
{
    const int lanes = WHOLE ? 32 : p.lanes, ty = (int)threadIdx.x / lanes, step = threads / lanes;
    const chunk_rows chunk(rows_of(p));
    const held_row<PIECES, VEC> row(p, lanes);
    column_params<VEC> s[PIECES];
    float sums_of_g[PIECES][VEC] = {}, products[PIECES][VEC] = {};
    if (chunk.begin >= chunk.end) return;
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
        s[i].read_affine(p.gamma, p.beta, row.at[i]);
    for (int64_t first = chunk.begin; first < chunk.end; first += step) {
        const int64_t r = first + ty;
        const bool counts = r < chunk.end;
        float h[PIECES][VEC] = {}, g[PIECES][VEC] = {};
        float row_mean, row_rstd, sum = 0.0f, product = 0.0f;
        if (counts) row.template load<T>(p.x, r * p.x_stride, h);
        if (counts) row.template load<T>(p.grad_out, r * p.grad_out_stride, g);
        held_statistics(p, row, lanes, h, row_mean, row_rstd);
        if (counts) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                s[i].set_row(row_mean, row_rstd);
                s[i].template differentiate_values<ANY>(p.activated, h[i], g[i]);
            }
            row.each([&](int i, int j) {
                sums_of_g[i][j] += g[i][j];
                products[i][j] += g[i][j] * h[i][j];
                sum += g[i][j] * s[i].gamma[j];
                product += g[i][j] * s[i].gamma[j] * h[i][j];
            });
        }
        const float mean = p.is_rms ? 0.0f : row_sum(lanes, sum) / (float)p.cols;
        const float slope = row_sum(lanes, product) / (float)p.cols;
        if (!counts) continue;
        row.each([&](int i, int j) {
            g[i][j] = (g[i][j] * s[i].gamma[j] - mean - h[i][j] * slope) * row_rstd;
        });
        if (p.grad_more != nullptr) {
            row.template load<T>(p.grad_more, r * p.grad_more_stride, h);
            row.each([&](int i, int j) { g[i][j] += h[i][j]; });
        }
        row.template store<T>(p.grad_x, r * p.grad_x_stride, g);
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        place at = row.at[i];
        at.tx = (int)threadIdx.x % lanes, at.ty = ty, at.step = step;
        if (i > 0) __syncthreads(); // what the piece before left is read
        store_partials<sums, VEC>(chunk_partials(p), lanes, p.cols, at, 0.0f, sums_of_g[i],
                                  products[i]);
    }
}

// The sums of the threads of a column: in halves over the rows of a warp, then warp after warp.
template <int LANES, int PIECES, int VEC>
__device__ __forceinline__ void store_whole_sums(float *partials, int tx, float (&a)[PIECES][VEC],
                                                 float (&b)[PIECES][VEC])
{
    constexpr int cols = LANES * PIECES * VEC, warps = threads / 32;
    __shared__ __align__(16) float shared[warps][2 * cols];
    float *own = shared[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
#pragma unroll
            for (int offset = 16; offset >= LANES; offset /= 2) {
                a[i][j] += __shfl_xor_sync(0xffffffffu, a[i][j], offset);
                b[i][j] += __shfl_xor_sync(0xffffffffu, b[i][j], offset);
            }
        const int col = (i * LANES + tx) * VEC;
#pragma unroll
        for (int j = 0; j < VEC && threadIdx.x % 32 < LANES; j += 4) {
            *reinterpret_cast<float4 *>(own + col + j) =
                make_float4(a[i][j], a[i][j + 1], a[i][j + 2], a[i][j + 3]);
            *reinterpret_cast<float4 *>(own + cols + col + j) =
                make_float4(b[i][j], b[i][j + 1], b[i][j + 2], b[i][j + 3]);
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * cols; c += threads) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < warps; ++warp)
            sum += shared[warp][c];
        partials[c] = sum;
    }
}

// As held_backward_kernel without an activation, of rows of whole pieces, which all lanes of a row have as
// many of. 512 blocks have at most 64 registers a thread (80 of wide rows), so all of them run at once; the next
// row is on its way while one is worked on. grad_x may be grad_out or grad_more.
template <int LANES, int PIECES, class T, int VEC>
__global__ void __launch_bounds__(threads, blocks_held(threads, PIECES > 1 ? 3 : 4))
    whole_backward_kernel(const __grid_constant__ norm_params p)
{
    constexpr int step = threads / LANES;
    constexpr bool ahead = PIECES * VEC <= 8;
    constexpr float share = 1.0f / (float)(LANES * PIECES * VEC);
    const int tx = (int)threadIdx.x % LANES, ty = (int)threadIdx.x / LANES;
    const chunk_rows chunk(rows_after_wait(p));
    if (chunk.begin >= chunk.end) return;
    const int count = (int)(chunk.end - chunk.begin);
    float gamma[PIECES][VEC], sums_of_g[PIECES][VEC] = {}, products[PIECES][VEC] = {};
    whole_row<LANES, PIECES, T, VEC> next_x, next_g;
    int64_t r = chunk.begin + ty;
    if (ahead) {
        next_x.load(p.x, r * p.x_stride + tx * VEC, ty < count);
        next_g.load(p.grad_out, r * p.grad_out_stride + tx * VEC, ty < count);
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i)
        load_vector(p.gamma, {0, 0, 0, (i * LANES + tx) * VEC, VEC}, 1.0f, gamma[i]);
    for (int first = 0; first < count; first += step, r += step) {
        const bool counts = first + ty < count, goes_on = first + step + ty < count;
        float x[PIECES][VEC], g[PIECES][VEC], sum = 0.0f, sum_of_g = 0.0f;
        if (!ahead) {
            next_x.load(p.x, r * p.x_stride + tx * VEC, counts);
            next_g.load(p.grad_out, r * p.grad_out_stride + tx * VEC, counts);
        }
        next_x.get(x);
        next_g.get(g);
        whole_row<LANES, PIECES, T, VEC> more;
        more.load(p.grad_more, r * p.grad_more_stride + tx * VEC, counts);
        if (ahead) {
            next_x.load(p.x, (r + step) * p.x_stride + tx * VEC, goes_on);
            next_g.load(p.grad_out, (r + step) * p.grad_out_stride + tx * VEC, goes_on);
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                sum += x[i][j];
                sum_of_g += g[i][j] * gamma[i][j];
            }
        row_sums<LANES>(sum, sum_of_g);
        const float mean = p.is_rms ? 0.0f : sum * share;
        const float mean_of_g = p.is_rms ? 0.0f : sum_of_g * share;
        float squares = 0.0f, product = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                x[i][j] -= mean;
                squares += x[i][j] * x[i][j];
                product += g[i][j] * gamma[i][j] * x[i][j];
            }
        row_sums<LANES>(squares, product);
        const float rstd = counts ? rsqrtf(squares * share + p.epsilon) : 0.0f;
        // A row whose squares are beyond f32 is 0, and so may its product be.
        const float slope = rstd == 0.0f ? 0.0f : product * share * rstd;
        float add[PIECES][VEC];
        more.get(add);
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const float h = x[i][j] * rstd;
                sums_of_g[i][j] += g[i][j];
                products[i][j] += g[i][j] * h;
                add[i][j] += (g[i][j] * gamma[i][j] - mean_of_g - h * slope) * rstd;
            }
        if (!counts) continue;
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            store_values<T, VEC>(p.grad_x, r * p.grad_x_stride + (i * LANES + tx) * VEC, VEC,
                                 add[i]);
    }
    store_whole_sums<LANES, PIECES>(chunk_partials(p), tx, sums_of_g, products);
}

// grad_x may be grad_out: a lane stores what it alone has read.
template <bool ANY, class T, int VEC>
__global__ void __launch_bounds__(threads)
    row_gradient_kernel(const __grid_constant__ norm_params p)
{
    const int64_t n = rows_of(p);
    const row_walk<true> rows(p);
    for (int64_t r = rows.first; rows.goes_on(r, n); r += rows.step) {
        const float row_mean = p.scratch.row_mean[r], row_rstd = p.scratch.row_rstd[r];
        float sum = 0.0f, product = 0.0f, h[VEC], g[VEC];
        column_params<VEC> s;
        for (row_pieces<VEC> piece(32, true); piece.there(p); piece.next()) {
            const place at = piece.at(p);
            s.read(p, at);
            s.set_row(row_mean, row_rstd);
            load_gradient<ANY, T, VEC>(p, s, r, at, h, g);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                if (j >= at.n) continue;
                sum += g[j] * s.gamma[j];
                product += g[j] * s.gamma[j] * h[j];
            }
        }
        const float mean = p.is_rms ? 0.0f : row_sum(32, sum) / (float)p.cols;
        const float slope = row_sum(32, product) / (float)p.cols;
        for (row_pieces<VEC> piece(32, true); piece.there(p); piece.next()) {
            const place at = piece.at(p);
            s.read(p, at);
            s.set_row(row_mean, row_rstd);
            load_gradient<ANY, T, VEC>(p, s, r, at, h, g);
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                g[j] = (g[j] * s.gamma[j] - mean - h[j] * slope) * row_rstd;
            if (p.grad_more != nullptr) {
                load_values<T, VEC>(p.grad_more, r * p.grad_more_stride + at.col, at.n, h);
#pragma unroll
                for (int j = 0; j < VEC; ++j)
                    if (j < at.n) g[j] += h[j];
            }
            store_values<T, VEC>(p.grad_x, r * p.grad_x_stride + at.col, at.n, g);
        }
    }
}

// ---- Launching ----------------------------------------------------------------------------------

norm_params params_of(const spops_norm_args *args)
{
    norm_params p = {};
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    p.grad_out = args->grad_out.data;
    p.grad_out_stride = args->grad_out.row_stride;
    p.grad_more = args->grad_more.data;
    p.grad_more_stride = args->grad_more.row_stride;
    p.grad_x = args->grad_x.data;
    p.grad_x_stride = args->grad_x.row_stride;
    p.max_rows = args->x.rows;
    p.cols = (int32_t)args->x.cols;
    p.num_rows = args->num_rows;
    p.mean = args->mean;
    p.var = args->var;
    p.gamma = args->gamma;
    p.beta = args->beta;
    p.mean_out = args->mean_out;
    p.var_out = args->var_out;
    p.running_mean = args->running_mean;
    p.running_var = args->running_var;
    p.grad_gamma = args->grad_gamma;
    p.grad_beta = args->grad_beta;
    p.epsilon = args->epsilon;
    p.momentum = args->momentum;
    p.activated = args->activated;
    p.fixed_statistics = args->fixed_statistics != 0;
    p.is_rms = args->is_rms;
    p.total_rows = args->total_rows;
    p.scratch = args->scratch;
    return p;
}

// Blocks of a call: of the chunks of all columns, of the rows of all columns, of whole rows by lanes,
// and of columns by warps.
struct norm_grids {
    dim3 chunks, rows, whole_rows, columns;
};

template <int VEC>
norm_grids grids_of(const spops_context *ctx, const spops_norm_args *args, norm_params *p)
{
    const int64_t pieces = (args->x.cols + VEC - 1) / VEC;
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    const int64_t few = (int64_t)ctx->info.num_processors * batch_blocks;
    norm_grids g;
    for (p->lanes = 1; p->lanes < 32 && p->lanes < pieces;)
        p->lanes *= 2;
    const unsigned y = (unsigned)((pieces + p->lanes - 1) / p->lanes);
    const int64_t steps = threads / p->lanes, blocks = (args->x.rows + steps - 1) / steps;
    // No number of rows up to the capacity has more chunks than this.
    const int64_t most = (args->x.rows + SPOPS_NORM_MIN_CHUNK_ROWS - 1) / SPOPS_NORM_MIN_CHUNK_ROWS;
    g.chunks = dim3((unsigned)(most < SPOPS_NORM_CHUNKS ? most : SPOPS_NORM_CHUNKS), y);
    g.rows = dim3((unsigned)(blocks < few ? blocks : few), y);
    g.whole_rows = dim3((unsigned)(blocks < resident ? blocks : resident));
    g.columns = dim3((unsigned)((args->x.cols * 32 + threads - 1) / threads));
    return g;
}

// Numbers of a row that a lane holds at most, of pieces of more than one.
constexpr int most_held = SPOPS_NORM_HELD;

template <int N> using count = std::integral_constant<int, N>;

template <bool ANY, class T, int VEC> struct launcher {
    typedef void (*row_kernel)(norm_params);
    // Of three kernels of held rows, and one of wider ones, that of p's rows.
    static row_kernel pick(const norm_params &p, row_kernel narrow, row_kernel whole,
                           row_kernel wide, row_kernel general)
    {
        if (p.lanes < 32) return narrow; // of one piece
        if (p.cols <= 32 * VEC) return whole;
        return VEC > 1 && p.cols <= 32 * most_held ? wide : general;
    }
    static constexpr int pieces = VEC > 1 ? most_held / VEC : 1;
    static bool is_full(const norm_params &p) { return VEC > 1 && p.cols % VEC == 0; }
    static spops_status statistics(spops_context *ctx, const spops_norm_args *args)
    {
        norm_params p = params_of(args);
        const norm_grids g = grids_of<VEC>(ctx, args, &p);
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "norm_statistics: launch of chunk_moments",
                                             is_full(p) ? chunk_moments_kernel<true, T, VEC>
                                                        : chunk_moments_kernel<false, T, VEC>,
                                             g.chunks, threads, p));
        return launch<WAITS_FOR_PREVIOUS>(ctx, "norm_statistics: launch of merge_moments",
                                          merge_moments_kernel, g.columns, threads, p);
    }
    static spops_status forward(spops_context *ctx, const spops_norm_args *args)
    {
        norm_params p = params_of(args);
        const norm_grids g = grids_of<VEC>(ctx, args, &p);
        const row_kernel whole = args->mean == nullptr ? whole_forward(p) : nullptr;
        if (whole != nullptr)
            return launch<WAITS_FOR_PREVIOUS>(ctx, "norm_forward: launch of whole_forward", whole,
                                              resident(ctx, p, 4), threads, p);
        if (args->mean == nullptr)
            return launch<WAITS_FOR_PREVIOUS>(ctx, "norm_forward: launch of row_forward",
                                              pick(p, held_forward_kernel<false, 1, ANY, T, VEC>,
                                                   held_forward_kernel<true, 1, ANY, T, VEC>,
                                                   held_forward_kernel<true, pieces, ANY, T, VEC>,
                                                   row_forward_kernel<ANY, T, VEC>),
                                              g.whole_rows, threads, p);
        return launch<WAITS_FOR_PREVIOUS>(ctx, "norm_forward: launch of batch_forward",
                                          is_full(p) ? batch_forward_kernel<true, ANY, T, VEC>
                                                     : batch_forward_kernel<false, ANY, T, VEC>,
                                          g.rows, threads, p);
    }
    static spops_status addnorm(spops_context *ctx, const spops_addnorm_args *args)
    {
        addnorm_params a = {params_of(&args->norm)};
        const norm_grids g = grids_of<VEC>(ctx, &args->norm, &a.norm);
        a.sum = args->norm.x.data;
        a.x = args->x.data;
        a.y = args->y.data;
        a.x_stride = args->x.row_stride;
        a.y_stride = args->y.row_stride;
        a.y_gamma = args->y_gamma;
        a.y_beta = args->y_beta;
        a.norm_y = args->norm_y;
        const addnorm_function whole = whole_addnorm(a.norm);
        if (whole != nullptr)
            return launch<WAITS_FOR_PREVIOUS>(ctx, "addnorm: launch of whole_addnorm", whole,
                                              resident(ctx, a.norm, 3), threads, a);
        return launch<WAITS_FOR_PREVIOUS>(ctx, "addnorm: launch",
                                          a.norm.lanes < 32 ? addnorm_kernel<false, 1, ANY, T, VEC>
                                          : a.norm.cols <= 32 * VEC
                                              ? addnorm_kernel<true, 1, ANY, T, VEC>
                                              : addnorm_kernel<true, pieces, ANY, T, VEC>,
                                          g.whole_rows, threads, a);
    }
    // Of this norm, and of the one before it that left its sums; nothing where this one leaves them.
    static spops_status merge_sums(spops_context *ctx, const spops_norm_args *args)
    {
        const spops_norm_args *const norms[2] = {args, args->before};
        merge_params p = {args->num_rows, args->x.rows, (int32_t)args->x.cols};
        if (args->leaves_sums) return SPOPS_STATUS_OK;
        p.sums = args->scratch.sums;
        for (int i = 0; i < 2 && norms[i] != nullptr; ++i) {
            p.partials[i] = norms[i]->scratch.partials;
            p.grad_gamma[i] = norms[i]->grad_gamma;
            p.grad_beta[i] = norms[i]->grad_beta;
        }
        return launch<WAITS_FOR_PREVIOUS>(
            ctx, "norm_backward: launch of merge_sums", merge_sums_kernel,
            dim3((unsigned)((args->x.cols + 31) / 32), args->before != nullptr ? 2 : 1),
            merge_threads, p);
    }
    static spops_status sum_chunks(spops_context *ctx, const norm_grids &g, const norm_params &p,
                                   const spops_norm_args *args)
    {
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "norm_backward: launch of chunk_sums",
                                             is_full(p) ? chunk_sums_kernel<true, ANY, T, VEC>
                                                        : chunk_sums_kernel<false, ANY, T, VEC>,
                                             g.chunks, threads, p));
        return merge_sums(ctx, args);
    }
    // f(lanes of a row, pieces of a lane) where all lanes of a row have as many whole pieces and no activation
    // follows; else null.
    template <class Kernel, class F> static Kernel with_whole(const norm_params &p, F f)
    {
        if constexpr (!ANY && VEC > 1) {
            if (p.activated.activation != SPOPS_ACTIVATION_NONE) return nullptr;
            switch (p.cols * (int)sizeof(T)) {
            case 64: return f(count<4>(), count<1>());
            case 128: return f(count<8>(), count<1>());
            case 256: return f(count<16>(), count<1>());
            case 512: return f(count<32>(), count<1>());
            case 1024: return f(count<32>(), count<2>());
            default: return nullptr;
            }
        }
        return nullptr;
    }
    // Blocks of whole rows that run at once, `most` a multiprocessor, or one less of wide rows.
    static dim3 resident(const spops_context *ctx, const norm_params &p, int most)
    {
        const int64_t together = threads / p.lanes, blocks = (p.max_rows + together - 1) / together;
        const int64_t held =
            (int64_t)ctx->info.num_processors * (p.cols > 32 * VEC ? most - 1 : most);
        return dim3((unsigned)(blocks < held ? blocks : held));
    }
    static row_kernel whole_forward(const norm_params &p)
    {
        return with_whole<row_kernel>(p, [](auto lanes, auto own) {
            return whole_forward_kernel<decltype(lanes)::value, decltype(own)::value, T, VEC>;
        });
    }
    static row_kernel whole_backward(const norm_params &p)
    {
        return with_whole<row_kernel>(p, [](auto lanes, auto own) {
            return whole_backward_kernel<decltype(lanes)::value, decltype(own)::value, T, VEC>;
        });
    }
    typedef void (*addnorm_function)(addnorm_params);
    static addnorm_function whole_addnorm(const norm_params &p)
    {
        return with_whole<addnorm_function>(p, [](auto lanes, auto own) {
            return whole_addnorm_kernel<decltype(lanes)::value, decltype(own)::value, T, VEC>;
        });
    }
    // Of layer norm.
    static spops_status backward_of_rows(spops_context *ctx, const spops_norm_args *args)
    {
        norm_params p = params_of(args);
        const norm_grids g = grids_of<VEC>(ctx, args, &p);
        const row_kernel held = pick(p, held_backward_kernel<false, 1, ANY, T, VEC>,
                                     held_backward_kernel<true, 1, ANY, T, VEC>,
                                     held_backward_kernel<true, pieces, ANY, T, VEC>, nullptr);
        const row_kernel whole = whole_backward(p);
        if (whole != nullptr) {
            SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "norm_backward: launch of whole_backward",
                                                 whole, dim3(g.chunks.x), threads, p));
            return merge_sums(ctx, args);
        }
        if (held != nullptr) {
            SPOPS_TRY(launch(ctx, "norm_backward: launch of held_backward", held, dim3(g.chunks.x),
                             threads, p));
            return merge_sums(ctx, args);
        }
        SPOPS_TRY(launch(ctx, "norm_backward: launch of row_statistics",
                         row_statistics_kernel<T, VEC>, g.whole_rows, threads, p));
        SPOPS_TRY(sum_chunks(ctx, g, p, args));
        return launch(ctx, "norm_backward: launch of row_gradient",
                      row_gradient_kernel<ANY, T, VEC>, g.whole_rows, threads, p);
    }
    static spops_status backward(spops_context *ctx, const spops_norm_args *args)
    {
        norm_params p = params_of(args);
        if (args->mean == nullptr) return backward_of_rows(ctx, args);
        const norm_grids g = grids_of<VEC>(ctx, args, &p);
        if (args->total_rows == 0) {
            SPOPS_TRY(sum_chunks(ctx, g, p, args));
        }
        if (args->grad_x.data == nullptr) return SPOPS_STATUS_OK;
        return launch<WAITS_FOR_PREVIOUS>(ctx, "norm_backward: launch of batch_gradient",
                                          is_full(p) ? batch_gradient_kernel<true, ANY, T, VEC>
                                                     : batch_gradient_kernel<false, ANY, T, VEC>,
                                          g.rows, threads, p);
    }
};

// Call f with a launcher for x's dtype and pieces of vec numbers, or of one.
template <class F> spops_status with_pieces(const spops_norm_args *args, int vec, F f)
{
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        constexpr int wide = 16 / (int)sizeof(T);
        if (is_plain(args->activated))
            return vec == 1 ? f(launcher<false, T, 1>()) : f(launcher<false, T, wide>());
        return vec == 1 ? f(launcher<true, T, 1>()) : f(launcher<true, T, wide>());
    });
}

// The widest pieces that all rows allow.
template <class F> spops_status with_launcher(const spops_norm_args *args, F f)
{
    return with_pieces(
        args, common_chunk({args->x, args->out, args->grad_out, args->grad_more, args->grad_x}), f);
}

} // namespace

extern "C" spops_status spops_cuda_addnorm(spops_context *ctx, const spops_addnorm_args *args)
{
    const int vec = common_chunk({args->x, args->y, args->norm.x, args->norm.out});
    return with_pieces(&args->norm, vec, [&](auto l) { return l.addnorm(ctx, args); });
}

extern "C" spops_status spops_cuda_norm_statistics(spops_context *ctx, const spops_norm_args *args)
{
    return with_launcher(args, [&](auto l) { return l.statistics(ctx, args); });
}

extern "C" spops_status spops_cuda_norm_forward(spops_context *ctx, const spops_norm_args *args)
{
    return with_launcher(args, [&](auto l) { return l.forward(ctx, args); });
}

extern "C" spops_status spops_cuda_norm_backward(spops_context *ctx, const spops_norm_args *args)
{
    return with_launcher(args, [&](auto l) { return l.backward(ctx, args); });
}

extern "C" spops_status spops_cuda_norm_merge(spops_context *ctx, const spops_norm_merge_args *args)
{
    return launch(ctx, "norm_merge: launch of merge_statistics", merge_statistics_kernel,
                  dim3((unsigned)((args->chunks.cols / 2 + threads - 1) / threads)), threads,
                  *args);
}
