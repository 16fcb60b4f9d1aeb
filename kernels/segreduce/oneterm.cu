// SPDX-License-Identifier: Apache-2.0
// Two walks, neither of which reads an entry of a schedule:
//
//     rows of out in order    a group of lanes takes rows that lie `groups` apart, so that neighbouring
//                             groups write neighbouring rows; rows are gathered
//     terms in order          a group takes a run of neighbouring terms, which mostly have one row in
//                             common: that is read once; the rows of out and others lie scattered
#include "kernels/segreduce/oneterm.cuh"

#include "kernels/core/chunk.cuh"
#include "kernels/core/row_groups.cuh"
#include "kernels/core/with_dtype.cuh"
#include "spops/device/segreduce_backward.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct one_term_params {
    const int32_t *offsets; // null: position o is the term of segment o
    const int2 *pairs;      // null: both are the position
    int32_t num_segments;
    int32_t lanes_log2; // of a group
    int32_t run;        // terms of a group, in order
    int32_t cols;
    const void *rows, *rows_end, *others, *others_end;
    int64_t rows_stride, others_stride;
    const void *w;
    int32_t w_dtype; // also of grad_w
    void *out;
    int64_t out_stride;
    void *grad_w;
};

// What a kernel is compiled for: terms on their way at once, and blocks that a multiprocessor holds; for
// rows that begin anywhere more registers are left.
template <class T, bool FULL_ROWS, bool BY_WEIGHT, bool OUT, bool WEIGHTS, int UNROLL, int RESIDENT>
struct one_term_form {
    typedef T element;
    static constexpr int vec = 16 / (int)sizeof(T);
    static constexpr bool full = FULL_ROWS, by_weight = BY_WEIGHT, out = OUT, weights = WEIGHTS;
    static constexpr int unroll = UNROLL;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 // these hold 1,024 threads
    static constexpr int resident = RESIDENT > 4 ? 4 : RESIDENT;
#else
    static constexpr int resident = RESIDENT;
#endif
    typedef typename chunk_of<T, vec, FULL_ROWS>::type chunk;
};

// The terms of a batch, as loaded: nothing here waits for them. Segment u is first + u * apart; bit u
// says whether it exists, and whether it has a term.
template <int UNROLL> struct one_term_batch {
    int32_t first;
    int2 pair[UNROLL];
    uint32_t exists, named;

    __device__ __forceinline__ void load(const one_term_params &p, int64_t begin, int32_t apart,
                                         int64_t end)
    {
        first = (int32_t)begin;
        exists = named = 0;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64_t o = begin + u * apart;
            pair[u] = make_int2((int32_t)o, (int32_t)o);
            if (o >= end) continue;
            exists |= 1u << u;
            if (p.offsets != nullptr) {
                const int32_t position = __ldg(p.offsets + o);
                if (__ldg(p.offsets + o + 1) == position) continue;
                pair[u] = make_int2(position, position);
            }
            named |= 1u << u;
            if (p.pairs != nullptr) pair[u] = __ldg(p.pairs + pair[u].x);
        }
    }
};

// Bytes that are written once and read by nobody soon leave the L2 to what is gathered.
template <class Form>
__device__ __forceinline__ void store_streamed(typename Form::chunk &chunk,
                                               typename Form::element *to, int n)
{
    if constexpr (Form::full)
        __stcs(reinterpret_cast<uint4 *>(to), chunk.word);
    else
        chunk.store(to, n);
}

// Sums over the lanes of a group of v[0 .. UNROLL - 1]; sum u is in lane u where there are as many
// lanes, else each lane has all. Lanes first exchange halves of what they have.
template <int UNROLL>
__device__ __forceinline__ void sum_over_lanes(float (&v)[UNROLL], int32_t lane, int32_t lanes)
{
    if (lanes < UNROLL) {
        for (int32_t step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                v[u] += __shfl_xor_sync(0xffffffffu, v[u], step);
        }
        return;
    }
    int32_t step = 1;
#pragma unroll
    for (int half = UNROLL / 2; half > 0; half /= 2, step *= 2) {
#pragma unroll
        for (int u = 0; u < half; ++u) {
            const float kept = lane & step ? v[2 * u + 1] : v[2 * u];
            const float sent = lane & step ? v[2 * u] : v[2 * u + 1];
            v[u] = kept + __shfl_xor_sync(0xffffffffu, sent, step);
        }
    }
    for (; step < lanes; step *= 2)
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], step);
}

// One batch of a group. `same` has a bit for each term whose row is that of the term before, of
// which held is the one before the first.
template <class Form>
__device__ __forceinline__ void
serve_batch(const one_term_params &p, const one_term_batch<Form::unroll> &b, int32_t apart,
            uint32_t same, typename Form::chunk &held, int32_t lane, int32_t lanes)
{
    typedef typename Form::element T;
    typedef typename Form::chunk chunk;
    constexpr int unroll = Form::unroll, vec = Form::vec;
    const bool wants_out = Form::out && (Form::full || p.out != nullptr);
    const bool wants_weights = Form::weights && (Form::full || p.grad_w != nullptr);
    const uint32_t writes_out = Form::by_weight ? b.named : b.exists;
    const uint32_t writes_weights = Form::by_weight ? b.exists : b.named;
    int32_t from[unroll], to[unroll], weight_of[unroll];
    weight_bits weight[unroll];
    float dot[unroll] = {};
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        from[u] = Form::by_weight ? b.pair[u].y : b.pair[u].x;
        to[u] = Form::by_weight ? b.pair[u].x : b.first + u * apart;
        weight_of[u] = Form::by_weight ? b.first + u * apart : b.pair[u].y;
        weight[u].bits = 0; // of an absent term
        if (wants_out && b.named >> u & 1) weight[u].load(p.w, p.w_dtype, weight_of[u]);
    }
    for (int32_t first = 0; first < p.cols; first += lanes * vec) {
        const int32_t col = first + lane * vec;
        const int n = p.cols - col;
        chunk row[unroll], other[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            row[u].clear();
            other[u].clear();
            if (!(b.named >> u & 1) || n <= 0) continue;
            if (!(same >> u & 1))
                row[u].load(row_at<Form::full>(static_cast<const T *>(p.rows) + col, from[u],
                                               p.rows_stride),
                            n, p.rows_end);
            if (!wants_weights) continue;
            const T *x =
                row_at<Form::full>(static_cast<const T *>(p.others) + col, to[u], p.others_stride);
            if constexpr (Form::full)
                other[u].word = load_once(x);
            else
                other[u].load(x, n, p.others_end);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const float scale = weight[u].get(p.w, p.w_dtype);
            if (same >> u & 1) row[u] = u == 0 ? held : row[u > 0 ? u - 1 : 0];
            float v[vec], x[vec];
            row[u].get(v);
            other[u].get(x);
#pragma unroll
            for (int j = 0; j < vec; ++j) {
                dot[u] += x[j] * v[j];
                v[j] = scale * v[j] + 0.0f; // a sum has no -0 of its own
            }
            if (!wants_out || n <= 0 || !(writes_out >> u & 1)) continue;
            chunk result;
            result.set(v);
            store_streamed<Form>(
                result, row_at<Form::full>(static_cast<T *>(p.out) + col, to[u], p.out_stride), n);
        }
        held = row[unroll - 1];
    }
    if (!wants_weights) return;
    sum_over_lanes(dot, lane, lanes);
    backward_params result = {};
    result.w_dtype = p.w_dtype;
    result.grad = p.grad_w;
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
        if ((writes_weights >> u & 1) && lane == (lanes < unroll ? 0 : u))
            write_weight(result, weight_of[u], lanes < unroll ? dot[u] : dot[0]);
    }
}

// The bits of terms whose row is the one before; `before` becomes the last one's.
template <int UNROLL>
__device__ __forceinline__ uint32_t find_same(const one_term_batch<UNROLL> &b, int32_t &before)
{
    uint32_t same = 0;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int32_t row = b.named >> u & 1 ? b.pair[u].y : -1;
        same |= (uint32_t)(row >= 0 && row == before) << u;
        before = row;
    }
    return same;
}

template <class Form>
__global__ void __launch_bounds__(threads, spops::blocks_held(threads, Form::resident))
    one_term_kernel(const __grid_constant__ one_term_params p)
{
    const int32_t lanes = 1 << p.lanes_log2, groups = threads >> p.lanes_log2;
    const int32_t lane = (int32_t)threadIdx.x & (lanes - 1);
    const int32_t group = (int32_t)threadIdx.x >> p.lanes_log2;
    typename Form::chunk held;
    held.clear();
    one_term_batch<Form::unroll> batch;
    if constexpr (!Form::by_weight) {
        const int64_t begin = (int64_t)blockIdx.x * groups * Form::unroll;
        batch.load(p, begin + group, groups, p.num_segments);
        serve_batch<Form>(p, batch, groups, 0, held, lane, lanes);
    } else {
        const int64_t begin = ((int64_t)blockIdx.x * groups + group) * p.run;
        const int64_t end = min(begin + p.run, (int64_t)p.num_segments);
        const bool fits = p.cols <= lanes * Form::vec; // held is a whole row
        int32_t before = -1;
        one_term_batch<Form::unroll> next;
        next.load(p, begin, 1, end);
        // Every group of the warp makes the same steps, because dot products shuffle.
        for (int32_t i = 0; i < p.run; i += Form::unroll) {
            batch = next;
            next.load(p, begin + i + Form::unroll, 1, end);
            const uint32_t same = find_same(batch, before);
            serve_batch<Form>(p, batch, 1, same, held, lane, lanes);
            if (!fits) before = -1;
        }
    }
}

// Runs of terms of which each segment has one, in rows of whole chunks. This is the kernel above without
// what the general case needs: registers that it would take too many of cost more than anything else
// (H200, f32, 64 columns, grad_w: 423 us with 120 bytes of a thread's registers in memory).
template <class T, bool OUT, bool WEIGHTS, int CHUNKS, int UNROLL, int RESIDENT>
__global__ void __launch_bounds__(threads, spops::blocks_held(threads, RESIDENT))
    run_kernel(const __grid_constant__ one_term_params p)
{
    constexpr int vec = 16 / (int)sizeof(T);
    const int32_t lanes = 1 << p.lanes_log2, lane = (int32_t)threadIdx.x & (lanes - 1);
    const int64_t group = ((int64_t)blockIdx.x * threads + threadIdx.x) >> p.lanes_log2;
    const int32_t begin = (int32_t)min(group * p.run, (int64_t)p.num_segments);
    const int32_t count = min(p.run, p.num_segments - begin);
    const T *rows = static_cast<const T *>(p.rows), *others = static_cast<const T *>(p.others);
    const bool fits = p.cols <= CHUNKS * lanes * vec; // held is a whole row
    int2 pair[UNROLL];                                // row, segment; of an absent term -1
    uint4 held[CHUNKS] = {};
    int32_t held_row = -1;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        pair[u] = u < count ? __ldg(p.pairs + begin + u) : make_int2(0, -1);
    // Every group of the warp makes the same steps, because dot products shuffle.
    for (int32_t i = 0; i < p.run; i += UNROLL) {
        int2 now[UNROLL];
        weight_bits weight[UNROLL];
        float dot[UNROLL] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            now[u] = pair[u];
            pair[u] =
                i + UNROLL + u < count ? __ldg(p.pairs + begin + i + UNROLL + u) : make_int2(0, -1);
            if (OUT && now[u].y >= 0) weight[u].load(p.w, p.w_dtype, begin + i + u);
        }
        for (int32_t first = lane * vec; first < p.cols; first += CHUNKS * lanes * vec) {
            uint4 row[UNROLL][CHUNKS], other[UNROLL][CHUNKS];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c) {
                    const int32_t col = first + c * lanes * vec;
                    const bool here = now[u].y >= 0 && col < p.cols;
                    const int32_t before = u == 0 ? held_row : now[u > 0 ? u - 1 : 0].y;
                    row[u][c] = other[u][c] = make_uint4(0, 0, 0, 0);
                    if (here && now[u].y != before)
                        row[u][c] = __ldg(reinterpret_cast<const uint4 *>(
                            row_at<true>(rows + col, now[u].y, p.rows_stride)));
                    if (WEIGHTS && here)
                        other[u][c] =
                            load_once(row_at<true>(others + col, now[u].x, p.others_stride));
                }
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c) {
                    const int32_t col = first + c * lanes * vec;
                    const int32_t before = u == 0 ? held_row : now[u > 0 ? u - 1 : 0].y;
                    if (now[u].y == before)
                        row[u][c] = u == 0 ? held[c] : row[u > 0 ? u - 1 : 0][c];
                    float v[vec];
                    unpack_chunk<T>(row[u][c], v);
                    if constexpr (WEIGHTS) {
                        float x[vec];
                        unpack_chunk<T>(other[u][c], x);
#pragma unroll
                        for (int j = 0; j < vec; ++j)
                            dot[u] += x[j] * v[j];
                    }
                    if (!OUT || now[u].y < 0 || col >= p.cols) continue;
                    const float scale = weight[u].get(p.w, p.w_dtype);
#pragma unroll
                    for (int j = 0; j < vec; ++j)
                        v[j] = scale * v[j] + 0.0f; // a sum has no -0 of its own
                    *reinterpret_cast<uint4 *>(row_at<true>(static_cast<T *>(p.out) + col, now[u].x,
                                                            p.out_stride)) = pack_chunk<T>(v);
                }
            }
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
                held[c] = row[UNROLL - 1][c];
        }
        held_row = fits ? now[UNROLL - 1].y : -1;
        if constexpr (WEIGHTS) {
            sum_over_lanes(dot, lane, lanes);
            backward_params result = {};
            result.w_dtype = p.w_dtype;
            result.grad = p.grad_w;
            const int32_t o = begin + i;
            if (lanes >= UNROLL) {
                if (lane < UNROLL && i + lane < count) write_weight(result, o + lane, dot[0]);
            } else {
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    if (lane == 0 && i + u < count) write_weight(result, o + u, dot[u]);
            }
        }
    }
}

// H200, 1.6 million terms: runs of 16 read a row of grad_out least often; rows of less than 128 bytes
// take so many terms a block that these are better in runs of 4 (f16, 16 columns, grad_w: 33 us; 16:
// 39 us), as are plans that would leave multiprocessors idle.
int32_t run_of(const spops_context *ctx, const one_term_params &p, int64_t row_bytes)
{
    constexpr int32_t longest = 16, shortest = 4;
    const int64_t terms_a_block = (int64_t)(threads >> p.lanes_log2) * longest;
    const int64_t enough = (int64_t)ctx->info.num_processors * 4 * terms_a_block;
    return row_bytes < 128 || p.num_segments < enough ? shortest : longest;
}

// Sets what a launch of lanes that hold `chunks` chunks of 16 bytes needs, of `run` terms a group; 0:
// as run_of says.
dim3 shape_launch(const spops_context *ctx, one_term_params &p, int64_t row_bytes, int chunks,
                  int32_t run)
{
    p.lanes_log2 = lanes_log2_of((row_bytes + 16 * chunks - 1) / (16 * chunks));
    p.run = run > 0 ? run : run_of(ctx, p, row_bytes);
    const int64_t per_block = (int64_t)(threads >> p.lanes_log2) * p.run;
    return dim3((unsigned)((p.num_segments + per_block - 1) / per_block));
}

constexpr const char what[] = "segreduce: launch of lists with one term each";

template <class Form> spops_status launch_form(spops_context *ctx, one_term_params p)
{
    const dim3 grid = shape_launch(ctx, p, p.cols * (int64_t)sizeof(typename Form::element), 1,
                                   Form::by_weight ? 0 : Form::unroll);
    return launch(ctx, what, one_term_kernel<Form>, grid, threads, p);
}

template <class T, bool OUT, bool WEIGHTS, int CHUNKS, int UNROLL, int RESIDENT>
spops_status launch_run(spops_context *ctx, one_term_params p)
{
    const dim3 grid = shape_launch(ctx, p, p.cols * (int64_t)sizeof(T), CHUNKS, 0);
    return launch(ctx, what, run_kernel<T, OUT, WEIGHTS, CHUNKS, UNROLL, RESIDENT>, grid, threads,
                  p);
}

// Rows of whole chunks. H200, f32 and f16, 16 to 256 columns, 1.6 million terms; what else was tried:
// docs/history/2026-11-22-sums-of-one-term.md.
template <class T> spops_status launch_runs(spops_context *ctx, const one_term_params &p)
{
    constexpr int resident = sizeof(T) == 4 ? 4 : 3;
    const bool wide = p.cols * sizeof(T) > 512; // more chunks than lanes
    if (p.out != nullptr && p.grad_w != nullptr) return launch_run<T, true, true, 2, 2, 3>(ctx, p);
    if (p.out != nullptr)
        return wide ? launch_run<T, true, false, 2, 2, 4>(ctx, p)
                    : launch_run<T, true, false, 1, 4, resident>(ctx, p);
    return wide ? launch_run<T, false, true, 2, 4, 2>(ctx, p)
                : launch_run<T, false, true, 1, 4, 3>(ctx, p);
}
template <class T> spops_status launch_rows(spops_context *ctx, const one_term_params &p)
{
    return p.grad_w == nullptr
               ? launch_form<one_term_form<T, true, false, true, false, 2, 8>>(ctx, p)
               : launch_form<one_term_form<T, true, false, true, true, 1, 8>>(ctx, p);
}

// Rows that begin anywhere, and weights without a term: what is not wanted, or not there, is asked
// for in the kernel.
template <class T>
spops_status launch_any(spops_context *ctx, const one_term_params &p, bool by_weight)
{
    return by_weight ? launch_form<one_term_form<T, false, true, true, true, 2, 3>>(ctx, p)
                     : launch_form<one_term_form<T, false, false, true, true, 2, 3>>(ctx, p);
}

} // namespace

spops_status spops::one_term(spops_context *ctx, const one_term_args &args)
{
    one_term_params p = {};
    p.offsets = has_one_term_each(args.lists) ? nullptr : args.lists->offsets;
    p.pairs = (const int2 *)args.lists->pairs;
    p.num_segments = (int32_t)args.lists->num_segments;
    p.cols = (int32_t)args.rows.cols;
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
        const bool whole = vec == wide && p.cols % wide == 0;
        if (whole && args.by_weight && p.offsets == nullptr) return launch_runs<T>(ctx, p);
        if (whole && !args.by_weight && p.out != nullptr) return launch_rows<T>(ctx, p);
        return launch_any<T>(ctx, p, args.by_weight);
    });
}
