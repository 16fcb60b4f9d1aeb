// SPDX-License-Identifier: Apache-2.0
// A group of lanes takes `unroll` segments at a time and goes over their rows together: four rows are
// on their way where a walk of the schedule has one, and no entry of a schedule is read.
#include "kernels/segreduce/oneterm.cuh"

#include "kernels/core/chunk.cuh"
#include "kernels/core/with_dtype.cuh"
#include "spops/device/segreduce_backward.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256, unroll = 4, resident = 3;

struct one_term_params {
    const int32_t *offsets; // null: position o is the term of segment o
    const int2 *pairs;      // null: both are the position
    int32_t num_segments;
    int32_t lanes_log2; // of a group
    int32_t cols;
    bool by_weight;
    const void *rows, *rows_end, *others, *others_end;
    int64_t rows_stride, others_stride;
    const void *w;
    int32_t w_dtype; // also of grad_w
    void *out;
    int64_t out_stride;
    void *grad_w;
};

// The terms of a group's next segments, as loaded: nothing here waits for them.
struct one_term_batch {
    int32_t first; // segment; the others lie `groups` apart
    int2 pair[unroll];
    uint32_t named; // a bit for each of them that has a term
};

__device__ __forceinline__ one_term_batch load_terms(const one_term_params &p, int64_t first,
                                                     int32_t groups)
{
    one_term_batch b;
    b.first = (int32_t)first;
    b.named = 0;
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const int64_t o = first + (int64_t)u * groups;
        int32_t position = (int32_t)o;
        bool named = o < p.num_segments;
        if (named && p.offsets != nullptr) {
            position = __ldg(p.offsets + o);
            named = __ldg(p.offsets + o + 1) > position;
        }
        b.pair[u] = make_int2(position, position);
        if (named && p.pairs != nullptr) b.pair[u] = __ldg(p.pairs + position);
        b.named |= (uint32_t)named << u;
    }
    return b;
}

// One batch of a group.
template <class T, int VEC, bool FULL>
__device__ __forceinline__ void serve_batch(const one_term_params &p, const one_term_batch &b,
                                            int32_t groups, int32_t lane, int32_t lanes)
{
    int32_t from[unroll], to[unroll], weight_of[unroll];
    bool writes_row[unroll], writes_weight[unroll];
    float weight[unroll], dot[unroll] = {};
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const int64_t o = b.first + (int64_t)u * groups;
        const bool exists = o < p.num_segments, named = b.named >> u & 1;
        from[u] = p.by_weight ? b.pair[u].y : b.pair[u].x;
        to[u] = p.by_weight ? b.pair[u].x : (int32_t)o;
        weight_of[u] = p.by_weight ? (int32_t)o : b.pair[u].y;
        writes_row[u] = p.out != nullptr && (p.by_weight ? named : exists);
        writes_weight[u] = lane == 0 && (p.by_weight ? exists : named);
        weight[u] = named ? load_weight<WEIGHT_ANY, T>(p.w, p.w_dtype, weight_of[u]) : 0.0f;
    }
    for (int32_t col = lane * VEC; col < p.cols; col += lanes * VEC) {
        const int n = min(p.cols - col, VEC);
        typename chunk_of<T, VEC, FULL>::type row[unroll], other[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            row[u].clear();
            other[u].clear();
            if (!(b.named >> u & 1)) continue;
            row[u].load(static_cast<const T *>(p.rows) + from[u] * p.rows_stride + col, n,
                        p.rows_end);
            if (p.grad_w != nullptr)
                other[u].load(static_cast<const T *>(p.others) + to[u] * p.others_stride + col, n,
                              p.others_end);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            float v[VEC], x[VEC];
            row[u].get(v);
            other[u].get(x);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                dot[u] += x[j] * v[j];
                v[j] = weight[u] * v[j] + 0.0f; // a sum has no -0 of its own
            }
            row[u].set(v);
            if (writes_row[u])
                row[u].store(static_cast<T *>(p.out) + to[u] * p.out_stride + col, n);
        }
    }
    if (p.grad_w == nullptr) return;
    backward_params result = {};
    result.w_dtype = p.w_dtype;
    result.grad = p.grad_w;
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        const float sum = sum_over_lanes(dot[u], lanes);
        if (writes_weight[u]) write_weight(result, weight_of[u], sum);
    }
}

// Blocks stay: the terms of the next batch are fetched while the rows of one are on their way.
template <class T, int VEC, bool FULL>
__global__ void __launch_bounds__(threads, resident)
    one_term_kernel(const __grid_constant__ one_term_params p)
{
    const int32_t lanes = 1 << p.lanes_log2, groups = threads >> p.lanes_log2;
    const int32_t lane = (int32_t)threadIdx.x & (lanes - 1);
    const int32_t group = (int32_t)threadIdx.x >> p.lanes_log2;
    const int64_t block_segments = (int64_t)groups * unroll, step = gridDim.x * block_segments;
    int64_t begin = blockIdx.x * block_segments;
    one_term_batch next = load_terms(p, begin + group, groups);
    for (; begin < p.num_segments; begin += step) {
        const one_term_batch batch = next;
        next = load_terms(p, begin + step + group, groups);
        serve_batch<T, VEC, FULL>(p, batch, groups, lane, lanes);
    }
}

// Lanes of a group, a power of two within a warp: as many as leave at most a quarter idle.
int lanes_log2_of(int64_t chunks)
{
    int log2 = 5;
    while (log2 > 0) {
        const int64_t rounds = (chunks + (1 << log2) - 1) >> log2;
        if (4 * chunks >= 3 * (rounds << log2)) break;
        --log2;
    }
    return log2;
}

template <class T, int VEC, bool FULL>
spops_status launch_form(spops_context *ctx, one_term_params p)
{
    p.lanes_log2 = lanes_log2_of((p.cols + VEC - 1) / VEC);
    const int64_t per_block = (int64_t)(threads >> p.lanes_log2) * unroll;
    const int64_t batches = (p.num_segments + per_block - 1) / per_block;
    const int64_t most = (int64_t)ctx->info.num_processors * resident;
    const dim3 grid((unsigned)(batches < most ? batches : most));
    return launch(ctx, "segreduce: launch of lists with one term each",
                  one_term_kernel<T, VEC, FULL>, grid, threads, p);
}

} // namespace

spops_status spops::one_term(spops_context *ctx, const one_term_args &args)
{
    one_term_params p = {};
    p.offsets = has_one_term_each(args.lists) ? nullptr : args.lists->offsets;
    p.pairs = (const int2 *)args.lists->pairs;
    p.num_segments = (int32_t)args.lists->num_segments;
    p.cols = (int32_t)args.rows.cols;
    p.by_weight = args.by_weight;
    p.rows = args.rows.data;
    p.rows_end = rows_end(args.rows);
    p.rows_stride = args.rows.row_stride;
    p.others = args.others.data;
    p.others_end = rows_end(args.others);
    p.others_stride = args.others.row_stride;
    p.w = args.w.data;
    p.w_dtype = args.grad_w.data != nullptr ? args.grad_w.dtype : args.w.dtype;
    p.out = args.out.data;
    p.out_stride = args.out.row_stride;
    p.grad_w = args.grad_w.data;
    const spops_matrix others = args.grad_w.data != nullptr ? args.others : spops_matrix();
    const int vec = common_chunk({args.rows, others, args.out});
    return with_dtype(args.rows.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        constexpr int wide = 16 / sizeof(T);
        return vec == wide && p.cols % wide == 0 ? launch_form<T, wide, true>(ctx, p)
                                                 : launch_form<T, wide, false>(ctx, p);
    });
}
