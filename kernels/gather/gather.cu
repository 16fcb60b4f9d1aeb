// SPDX-License-Identifier: Apache-2.0
// Gather, in two ways:
//
//     by segments   a source row is read once and written to every term, wherever that lies
//     by terms      rows of out are written in order, each from the source row that its key names
//
// and copies of matrices to another width.
//
// Wide rows go by segments. Narrow ones go by terms where the plan has kept its keys: source rows that
// several terms name then come from L2, and memory is written in whole lines.
#include <initializer_list>

#include "kernels/core/chunk.cuh"
#include "kernels/core/row_groups.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segments/few_terms.cuh"
#include "kernels/segments/walk_plan.cuh"
#include "gather/gather_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

// ---- By segments --------------------------------------------------------------------------------

constexpr int unroll = 4;

struct gather_params {
    walk_params walk;
    const int2 *pairs; // out row, weight of a position; null: both are the position
    const void *x;
    int64_t x_stride;
    const void *w;
    int32_t w_dtype;
    int32_t cols;
    void *out;
    int64_t out_stride;
};

template <class T, int VEC, bool WEIGHTED>
__device__ __forceinline__ void gather_block(const gather_params &p, const walk_params &w,
                                             int32_t block)
{
    const walk_place here = walk_here(w);
    const int32_t col = (int32_t)((blockIdx.y * w.lanes + here.lane) * VEC);
    const int n = min(p.cols - col, VEC);
    const walk_task task = walk_locate(w, block);
    const walk_share share = walk_divide(w, task, here.group);
    if (task.empty || !share.active || n <= 0) return;
    T *out = static_cast<T *>(p.out) + col;
    row_chunk<T, VEC, false> row;
    row.load(static_cast<const T *>(p.x) + share.entry.segment * p.x_stride + col, n);
    float v[VEC];
    if (WEIGHTED) row.get(v);
    for (int32_t i = share.begin; i < share.end; i += unroll) {
        int2 pair[unroll];
        if (p.pairs != nullptr)
            load_pairs<true>(p.pairs, i, share.end, pair);
        else
            load_pairs<false>(p.pairs, i, share.end, pair);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (i + u >= share.end) continue;
            row_chunk<T, VEC, false> chunk = row;
            if constexpr (WEIGHTED) {
                const float weight = load_weight<WEIGHT_ANY, T>(p.w, p.w_dtype, pair[u].y);
                float scaled[VEC];
#pragma unroll
                for (int j = 0; j < VEC; ++j)
                    scaled[j] = weight * v[j];
                chunk.set(scaled);
            }
            chunk.store(row_at<(VEC > 1)>(out, pair[u].x, p.out_stride), n);
        }
    }
}

template <class T, int VEC, bool WEIGHTED>
__global__ void __launch_bounds__(threads) gather_kernel(const __grid_constant__ gather_params p)
{
    walk_blocks<false>(p.walk, [&](const walk_params &w, int32_t block) {
        gather_block<T, VEC, WEIGHTED>(p, w, block);
    });
}

// ---- By terms -----------------------------------------------------------------------------------

struct gather_terms_params {
    const int32_t *keys; // [num_terms] source row of row t of out, whose weight is w[t]
    int32_t num_terms;
    int32_t lanes_log2; // of the group that copies a row
    int32_t cols;
    const void *x;
    int64_t x_stride;
    const void *w;
    int32_t w_dtype;
    void *out;
    int64_t out_stride;
};

// H200, f16, 16 columns, 1.6 million terms of 400,000 rows: 23.0 us; four at once 24.6, eight 24.8.
constexpr int terms_at_once = 2, terms_resident = 8;

// Rows of whole chunks. Neighbouring groups write neighbouring rows.
template <class T, bool WEIGHTED>
__global__ void __launch_bounds__(threads, spops::blocks_held(threads, terms_resident))
    gather_terms_kernel(const __grid_constant__ gather_terms_params p)
{
    constexpr int vec = 16 / sizeof(T);
    const int32_t lanes = 1 << p.lanes_log2, groups = threads >> p.lanes_log2;
    const int32_t lane = (int32_t)threadIdx.x & (lanes - 1);
    const int64_t first =
        (int64_t)blockIdx.x * groups * terms_at_once + ((int32_t)threadIdx.x >> p.lanes_log2);
    int32_t key[terms_at_once];
    weight_bits weight[terms_at_once];
#pragma unroll
    for (int u = 0; u < terms_at_once; ++u) {
        const int64_t t = first + u * groups;
        key[u] = t < p.num_terms ? __ldg(p.keys + t) : -1;
        if (WEIGHTED && key[u] >= 0) weight[u].load(p.w, p.w_dtype, (int32_t)t);
    }
    for (int32_t col = lane * vec; col < p.cols; col += lanes * vec) {
        row_chunk<T, vec, true> row[terms_at_once];
#pragma unroll
        for (int u = 0; u < terms_at_once; ++u)
            if (key[u] >= 0)
                row[u].load(row_at<true>(static_cast<const T *>(p.x) + col, key[u], p.x_stride),
                            vec);
#pragma unroll
        for (int u = 0; u < terms_at_once; ++u) {
            if (key[u] < 0) continue;
            if constexpr (WEIGHTED) {
                const float scale = weight[u].get(p.w, p.w_dtype);
                float v[vec];
                row[u].get(v);
#pragma unroll
                for (int j = 0; j < vec; ++j)
                    v[j] = scale * v[j];
                row[u].set(v);
            }
            // Read by nobody soon: the L2 is left to the source rows.
            __stcs(reinterpret_cast<uint4 *>(row_at<true>(
                       static_cast<T *>(p.out) + col, (int32_t)(first + u * groups), p.out_stride)),
                   row[u].word);
        }
    }
}

// ---- To another width ---------------------------------------------------------------------------

struct copy_matrix {
    const void *from;
    void *to;
    int64_t from_stride, to_stride, rows;
    int32_t from_cols, to_cols;
};

struct copy_params {
    copy_matrix first, second;
    int32_t first_blocks; // the others copy the second
};

constexpr int copy_rows = threads / 32; // of a block: a warp takes a row

template <class T>
__global__ void __launch_bounds__(threads) copy_kernel(const __grid_constant__ copy_params p)
{
    const bool is_first = (int32_t)blockIdx.x < p.first_blocks;
    const copy_matrix &m = is_first ? p.first : p.second;
    const int32_t block = (int32_t)blockIdx.x - (is_first ? 0 : p.first_blocks);
    const int64_t row = (int64_t)block * copy_rows + (int32_t)threadIdx.x / 32;
    grid_launch_dependents();
    grid_dependency_wait();
    if (row >= m.rows) return;
    const T *from = static_cast<const T *>(m.from) + row * m.from_stride;
    T *to = static_cast<T *>(m.to) + row * m.to_stride;
#pragma unroll 4
    for (int32_t col = (int32_t)threadIdx.x % 32; col < m.to_cols; col += 32)
        to[col] = col < m.from_cols ? from[col] : T();
}

copy_matrix copy_of(const spops_matrix &from, const spops_matrix &to)
{
    copy_matrix m = {};
    if (to.data == nullptr) return m;
    m.from = from.data;
    m.to = to.data;
    m.from_stride = from.row_stride;
    m.to_stride = to.row_stride;
    m.rows = to.rows;
    m.from_cols = (int32_t)from.cols;
    m.to_cols = (int32_t)to.cols;
    return m;
}

spops_status launch_copies(spops_context *ctx, const spops_gather_args *args)
{
    const copy_params p = {copy_of(args->x, args->out), copy_of(args->also_x, args->also_out),
                           (int32_t)((args->out.rows + copy_rows - 1) / copy_rows)};
    const int64_t blocks = p.first_blocks + (p.second.rows + copy_rows - 1) / copy_rows;
    const char *what = "gather: launch of copies";
    const dim3 grid((unsigned)blocks);
    return spops_dtype_bytes(args->x.dtype) == 2
               ? launch<WAITS_FOR_PREVIOUS>(ctx, what, copy_kernel<uint16_t>, grid, threads, p)
               : launch<WAITS_FOR_PREVIOUS>(ctx, what, copy_kernel<uint32_t>, grid, threads, p);
}

// ---- Launches -----------------------------------------------------------------------------------

// Rows of at most so many bytes go by terms. H200, 1.6 million terms of 400,000 rows, by terms and by
// segments: 32 bytes 23.0 and 48.4 us, 64 bytes 46.4 and 69.4, 128 bytes 89.5 and 100, 256 bytes 185
// and 160.
constexpr int64_t max_bytes_by_terms = 128;

bool goes_by_terms(const spops_gather_args *args)
{
    const int64_t row_bytes = args->x.cols * (int64_t)spops_dtype_bytes(args->x.dtype);
    return args->keys != nullptr && row_bytes <= max_bytes_by_terms && row_bytes % 16 == 0 &&
           common_chunk({args->x, args->out}) > 1;
}

template <class T> spops_status launch_terms(spops_context *ctx, const spops_gather_args *args)
{
    gather_terms_params p = {};
    p.keys = args->keys;
    p.num_terms = (int32_t)args->lists->max_terms;
    p.lanes_log2 = lanes_log2_of(args->x.cols * (int64_t)sizeof(T) / 16);
    p.cols = (int32_t)args->x.cols;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.w = args->w.data;
    p.w_dtype = args->w.dtype;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    const int64_t per_block = (int64_t)(threads >> p.lanes_log2) * terms_at_once;
    const dim3 grid((unsigned)((p.num_terms + per_block - 1) / per_block));
    const char *what = "gather: launch by terms";
    return p.w != nullptr ? launch(ctx, what, gather_terms_kernel<T, true>, grid, threads, p)
                          : launch(ctx, what, gather_terms_kernel<T, false>, grid, threads, p);
}

template <class T, int VEC>
spops_status launch_vec(spops_context *ctx, const spops_gather_args *args)
{
    const walk_launch shape = walk_plan(ctx, args->lists, (args->x.cols + VEC - 1) / VEC, threads);
    gather_params p = {};
    p.walk = shape.walk;
    p.pairs = (const int2 *)args->lists->pairs;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.w = args->w.data;
    p.w_dtype = args->w.dtype;
    p.cols = (int32_t)args->x.cols;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    if (p.w != nullptr)
        return launch(ctx, "gather: launch", gather_kernel<T, VEC, true>, shape.grid, threads, p);
    return launch(ctx, "gather: launch", gather_kernel<T, VEC, false>, shape.grid, threads, p);
}

// ---- Short segments, plain copies of whole chunks -----------------------------------------------

struct gather_few_params {
    few_terms_params lists;
    const uint4 *x;
    int64_t x_stride; // chunks
    uint4 *out;
    int64_t out_stride;
};

__global__ void __launch_bounds__(few_terms_threads, spops::blocks_held(few_terms_threads, 6))
    gather_few(const __grid_constant__ gather_few_params p)
{
    grid_launch_dependents();
    grid_dependency_wait();
    const few_terms_place here(p.lists);
    for (int32_t chunk = here.lane; chunk < p.lists.chunks; chunk += here.lanes) {
        uint4 row[few_terms_segments];
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
            // Of a segment that is not there or names nothing, another one's row, which is not used.
            const int64_t last = p.lists.num_segments - 1;
            const int64_t segment = here.first + u < last ? here.first + u : last;
            row[u] = __ldg(p.x + segment * p.x_stride + chunk);
        }
        for (int32_t step = 0; step < here.steps; ++step) {
            const few_terms_rows rows(p.lists, here, step);
#pragma unroll
            for (int u = 0; u < few_terms_segments; ++u)
#pragma unroll
                for (int t = 0; t < few_terms_step; ++t)
                    if (rows.row[u][t] >= 0) p.out[rows.row[u][t] * p.out_stride + chunk] = row[u];
        }
    }
}

bool few_fit(const spops_gather_args *args)
{
    const int vec = (int)(16 / spops_dtype_bytes(args->x.dtype));
    return has_few_terms(args->lists) && args->w.data == nullptr && args->x.cols % vec == 0 &&
           common_chunk({args->x, args->out}) == vec;
}

spops_status launch_few(spops_context *ctx, const spops_gather_args *args)
{
    const int64_t vec = 16 / (int64_t)spops_dtype_bytes(args->x.dtype);
    gather_few_params p = {};
    p.lists = few_terms_params_of(args->lists, args->x.cols / vec);
    p.x = static_cast<const uint4 *>(args->x.data);
    p.x_stride = args->x.row_stride / vec;
    p.out = static_cast<uint4 *>(args->out.data);
    p.out_stride = args->out.row_stride / vec;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "gather: launch of short segments", gather_few,
                                      dim3(few_terms_blocks(p.lists)), few_terms_threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_gather(spops_context *ctx, const spops_gather_args *args)
{
    if (args->lists == nullptr) return launch_copies(ctx, args);
    if (args->lists->num_segments == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    if (few_fit(args)) return launch_few(ctx, args);
    const bool wide = common_chunk({args->x, args->out}) > 1;
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        if (goes_by_terms(args)) return launch_terms<T>(ctx, args);
        return wide ? launch_vec<T, 16 / sizeof(T)>(ctx, args) : launch_vec<T, 1>(ctx, args);
    });
}
