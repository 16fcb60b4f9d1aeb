// SPDX-License-Identifier: Apache-2.0
/*
 * The segmented-reduction kernel, for the library and for reductions of the caller's own.
 *
 * A reduction is a struct of static device functions:
 *
 *     struct log_sum_exp {
 *         struct state { float max, sum; };              // trivially copyable, at most 8 bytes
 *         static constexpr bool uses_term = false;       // lift reads its term number
 *         static constexpr bool has_arg = false;         // arg exists (index outputs)
 *         static __device__ state identity();
 *         static __device__ state lift(float v, int term);
 *         static __device__ state combine(state a, state b);        // a holds the earlier terms
 *         static __device__ float finalize(state a, long long count);
 *         static __device__ int arg(state a);                       // only if has_arg
 *         static __device__ float grad(float v, int term, state a, long long count); // gradients
 *     };
 *
 * Callers of their own kernels use spops::segreduce_launch below; reductions registered at run time
 * (spops_reduce_create) give this struct as source text. Compiles under NVRTC with these headers
 * alone.
 *
 * Source: interval-owned reduction after BEVPoolV3; teams by length and split segments are ours
 * (docs/segreduce.md).
 */
#ifndef SPOPS_DEVICE_SEGREDUCE_CUH
#define SPOPS_DEVICE_SEGREDUCE_CUH

#include "spops/device/dtypes.cuh"
#include "spops/device/reduce_ops.h"
#include "spops/device/walk.cuh"

namespace spops
{

struct segreduce_params {
    walk_params walk;
    const int2 *pairs;     // x row, weight of a position; null: both are the position
    const int32_t *order;  // term of a position; null: the position
    const void *x, *x_end; // end of the last row; null where rows begin on 16 bytes
    int64_t x_stride;
    const void *w;
    int32_t w_dtype;
    int32_t cols;
    void *out; // null: not wanted
    int64_t out_stride;
    int32_t *arg; // null: not wanted
    int64_t arg_stride;
    void *states;      // [num_segments][cols], null: not wanted
    void *partials;    // [max_pieces][cols]
    uint32_t *tickets; // one per split and column tile, zero between launches
};

// Threads per block, how many terms a thread has in flight, and whether the host knew the
// schedule's counts (then they come with the parameters; else they are read from the device first).
template <int THREADS, int UNROLL, int RESIDENT, bool FULL, bool COUNTS_KNOWN>
struct segreduce_policy {
    static constexpr int threads = THREADS;
    static constexpr int unroll = UNROLL;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 // these hold 1,024 threads
    static constexpr int resident = RESIDENT * THREADS > 1024 ? 1024 / THREADS : RESIDENT;
#else
    static constexpr int resident = RESIDENT;
#endif
    static constexpr bool full = FULL;
    static constexpr bool counts_known = COUNTS_KNOWN;
};

// Combine the states of a team's members, earliest member first; member 0 gets the result. Every
// thread of the block comes here. `shared` holds threads * VEC states.
template <int VEC, class Op>
__device__ __forceinline__ void
combine_team(typename Op::state (&acc)[VEC], typename Op::state *shared, const walk_params &w,
             const walk_task &task, const walk_place &here, const walk_share &share)
{
    if (task.shift == 0 || w.groups == 1) return;
    // Element j of a lane lies `lanes` apart, so that neighbouring threads hit neighbouring banks.
    const int32_t row = w.lanes * VEC;
    __syncthreads(); // the previous task's reads are over
    if (share.active) {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            shared[here.group * row + j * w.lanes + here.lane] = acc[j];
    }
    __syncthreads();
    if (share.active) {
        const int32_t members = task.shift == WALK_WHOLE_BLOCK ? w.groups : 1 << task.shift;
        const int32_t first = (here.group - share.member) * row;
        const int32_t team_threads = members * w.lanes;
        for (int32_t i = share.member * w.lanes + here.lane; i < row; i += team_threads) {
            typename Op::state a = shared[first + i];
            for (int32_t m = 1; m < members; ++m)
                a = Op::combine(a, shared[first + m * row + i]);
            shared[first + i] = a;
        }
    }
    __syncthreads();
    if (share.active && share.member == 0) {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            acc[j] = shared[here.group * row + j * w.lanes + here.lane];
    }
}

// Pairs of positions begin .. min(begin + UNROLL, end) - 1; those after end are not read. Without
// PAIRS a position is its own row and weight.
template <bool PAIRS, int UNROLL>
__device__ __forceinline__ void load_pairs(const int2 *pairs, int32_t begin, int32_t end,
                                           int2 (&pair)[UNROLL])
{
    const int2 *from = pairs + begin;
    const int count = end - begin;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (!PAIRS)
            pair[u] = make_int2(begin + u, begin + u);
        else if (u < count)
            pair[u] = __ldg(from + u);
    }
}

// grid_dependency_wait, not before these pairs are here (unread ones are 0).
template <int UNROLL> __device__ __forceinline__ void wait_with_pairs(const int2 (&pair)[UNROLL])
{
    int32_t here = 0;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        here |= pair[u].x;
    grid_dependency_wait(here);
}

// Row of a matrix. Rows of whole chunks imply a stride of less than 2^32 bytes (chunk_elements).
template <bool WHOLE, class T>
__device__ __forceinline__ T *row_at(T *base, int32_t row, int64_t stride)
{
    if (!WHOLE) return base + row * stride;
    typedef unsigned char byte;
    const uint32_t stride_bytes = (uint32_t)stride * (uint32_t)sizeof(T);
    return (T *)((const byte *)base + (uint64_t)(uint32_t)row * stride_bytes);
}

// A batch of terms on their way: rows and weights that have been asked for.
template <class T, int VEC, bool FULL, int UNROLL> struct term_batch {
    typename chunk_of<T, VEC, FULL>::type row[UNROLL];
    float weight[UNROLL];
};

template <int WEIGHT, class T, int VEC, bool FULL, int UNROLL>
__device__ __forceinline__ void load_batch(const segreduce_params &p, const T *x,
                                           const int2 (&pair)[UNROLL], int count, int n,
                                           term_batch<T, VEC, FULL, UNROLL> &batch)
{
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (u < count) {
            batch.row[u].load(row_at<FULL>(x, pair[u].x, p.x_stride), n, p.x_end);
            batch.weight[u] = load_weight<WEIGHT, T>(p.w, p.w_dtype, pair[u].y);
        }
    }
}

template <class Op, int WEIGHT, class T, int VEC, bool FULL, int UNROLL>
__device__ __forceinline__ void
fold_batch(const segreduce_params &p, const term_batch<T, VEC, FULL, UNROLL> &batch,
           int32_t position, int count, typename Op::state (&acc)[VEC])
{
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (u < count) {
            int32_t term = position + u;
            if (Op::uses_term && p.order != nullptr) term = __ldg(p.order + term);
            float v[VEC];
            batch.row[u].get(v);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const float t = WEIGHT == WEIGHT_NONE ? v[j] : batch.weight[u] * v[j];
                acc[j] = Op::combine(acc[j], Op::lift(t, term));
            }
        }
    }
}

// Fold positions begin .. end - 1 into acc: whole batches, then what is left. The next pairs are
// fetched while a batch of rows is under way, so that a batch costs one memory latency and not two.
template <class Op, class T, int WEIGHT, int VEC, bool FULL, int UNROLL, bool PAIRS>
__device__ __forceinline__ void fold_terms(const segreduce_params &p, int32_t begin, int32_t end,
                                           int32_t col, int n, typename Op::state (&acc)[VEC])
{
    const T *x = static_cast<const T *>(p.x) + col;
    int2 pair[UNROLL] = {};
    term_batch<T, VEC, FULL, UNROLL> batch;
    int32_t i = begin;
    load_pairs<PAIRS>(p.pairs, i, end, pair);
    wait_with_pairs(pair); // x and w may come from the kernel before
    for (; i + UNROLL <= end; i += UNROLL) {
        load_batch<WEIGHT>(p, x, pair, UNROLL, n, batch);
        load_pairs<PAIRS>(p.pairs, i + UNROLL, end, pair);
        fold_batch<Op, WEIGHT>(p, batch, i, UNROLL, acc);
    }
    if (i < end) {
        load_batch<WEIGHT>(p, x, pair, end - i, n, batch);
        fold_batch<Op, WEIGHT>(p, batch, i, end - i, acc);
    }
}

template <class Op, class T, int VEC, bool FULL, bool TRACED>
__device__ __forceinline__ void write_segment(const segreduce_params &p, int32_t segment,
                                              int32_t count, int32_t col, int n,
                                              const typename Op::state (&acc)[VEC])
{
    if (!TRACED || p.out != nullptr) {
        float v[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            v[j] = Op::finalize(acc[j], count);
        typename chunk_of<T, VEC, FULL>::type chunk;
        chunk.set(v);
        chunk.store(row_at<FULL>(static_cast<T *>(p.out) + col, segment, p.out_stride), n);
    }
    if constexpr (TRACED && Op::has_arg) {
        if (p.arg != nullptr) {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                if (j < n) p.arg[segment * p.arg_stride + col + j] = Op::arg(acc[j]);
        }
    }
    if (TRACED && p.states != nullptr) {
        typename Op::state *states = static_cast<typename Op::state *>(p.states);
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (j < n) states[(int64_t)segment * p.cols + col + j] = acc[j];
    }
}

// One block finished a piece: leave its states where the others' are, and tell whether it was the
// last of its segment. All threads of the block get the same answer.
template <class Op, int VEC>
__device__ __forceinline__ bool leave_piece(const segreduce_params &p, int32_t piece,
                                            const spops_split_segment &split, int32_t split_index,
                                            bool writer, int32_t col, int n,
                                            const typename Op::state (&acc)[VEC])
{
    __shared__ bool last;
    typename Op::state *partials = static_cast<typename Op::state *>(p.partials);
    if (writer) {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (j < n) partials[(int64_t)piece * p.cols + col + j] = acc[j];
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *ticket = p.tickets + (int64_t)split_index * gridDim.y + blockIdx.y;
        last = atomicAdd(ticket, 1u) == (uint32_t)split.num_pieces - 1u;
        if (last) *ticket = 0; // as the next launch expects it
        __threadfence();
    }
    __syncthreads();
    return last;
}

template <class Op, int VEC>
__device__ __forceinline__ void fold_pieces(const segreduce_params &p,
                                            const spops_split_segment &split, int32_t group,
                                            int32_t col, int n, typename Op::state (&acc)[VEC])
{
    const typename Op::state *partials = static_cast<const typename Op::state *>(p.partials);
    const int32_t part = (split.num_pieces + p.walk.groups - 1) / p.walk.groups;
    const int32_t begin = min(group * part, split.num_pieces);
    const int32_t end = min(begin + part, split.num_pieces);
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        acc[j] = Op::identity();
#pragma unroll 4
    for (int32_t i = begin; i < end; ++i) {
        const typename Op::state *from = partials + (int64_t)(split.first_piece + i) * p.cols + col;
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (j < n) acc[j] = Op::combine(acc[j], from[j]);
    }
}

// What this group adds to its segment; the identity where it has none.
template <class Policy, class Op, class T, int WEIGHT, int VEC>
__device__ __forceinline__ void fold_share(const segreduce_params &p, const walk_share &share,
                                           int32_t col, int n, typename Op::state (&acc)[VEC])
{
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        acc[j] = Op::identity();
    if (!share.active || n <= 0)
        grid_dependency_wait();
    else if (p.pairs != nullptr)
        fold_terms<Op, T, WEIGHT, VEC, Policy::full, Policy::unroll, true>(p, share.begin,
                                                                           share.end, col, n, acc);
    else
        fold_terms<Op, T, WEIGHT, VEC, Policy::full, Policy::unroll, false>(p, share.begin,
                                                                            share.end, col, n, acc);
}

// The segments of one block of the schedule. fold(share, col, n, acc) makes acc what a group adds
// to its segment, and calls grid_dependency_wait; write(segment, count, col, n, acc) writes the
// result.
template <class Op, int VEC, class Fold, class Write>
__device__ __forceinline__ void reduce_block_with(const segreduce_params &p, const walk_params &w,
                                                  int32_t block, typename Op::state *shared,
                                                  const Fold &fold, const Write &write)
{
    const walk_place here = walk_here(w);
    const int32_t col = (int32_t)((blockIdx.y * w.lanes + here.lane) * VEC);
    const int n = min(p.cols - col, VEC); // <= 0 in lanes after the last column
    const walk_task task = walk_locate(w, block);
    typename Op::state acc[VEC];
    if (task.empty) {
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            acc[j] = Op::identity();
        grid_dependency_wait();
        for (int32_t i = here.group; i < task.segments && here.group < w.groups; i += w.groups)
            if (n > 0) write(task.first[i].segment, 0, col, n, acc);
        return;
    }
    const walk_share share = walk_divide(w, task, here.group);
    fold(share, col, n, acc);
    combine_team<VEC, Op>(acc, shared, w, task, here, share);
    const bool writer = share.active && share.member == 0 && n > 0;
    int32_t segment = share.entry.segment, count = share.entry.count;
    if (task.piece >= 0) {
        const int32_t split_index = task.first->split;
        const spops_split_segment split = w.splits[split_index];
        if (!leave_piece<Op, VEC>(p, task.piece, split, split_index, writer, col, n, acc)) return;
        fold_pieces<Op, VEC>(p, split, here.group, col, n, acc);
        combine_team<VEC, Op>(acc, shared, w, task, here, share);
        segment = split.segment;
        count = split.count;
    }
    if (writer) write(segment, count, col, n, acc);
}

template <class Policy, class Op, class T, int WEIGHT, int VEC, bool TRACED>
__device__ __forceinline__ void reduce_block(const segreduce_params &p, const walk_params &w,
                                             int32_t block, typename Op::state *shared)
{
    typedef typename Op::state state;
    if (Policy::counts_known) grid_launch_dependents();
    reduce_block_with<Op, VEC>(
        p, w, block, shared,
        [&](const walk_share &share, int32_t col, int n, state(&acc)[VEC]) {
            fold_share<Policy, Op, T, WEIGHT, VEC>(p, share, col, n, acc);
        },
        [&](int32_t segment, int32_t count, int32_t col, int n, const state(&acc)[VEC]) {
            write_segment<Op, T, VEC, Policy::full, TRACED>(p, segment, count, col, n, acc);
        });
}

template <class Policy, class Op, class T, int WEIGHT, int VEC, bool TRACED>
__global__ void __launch_bounds__(Policy::threads, Policy::resident)
    segreduce_kernel(const __grid_constant__ segreduce_params p)
{
    static_assert(sizeof(typename Op::state) <= 8, "SPOPS_REDUCE_STATE_BYTES_MAX");
    // Raw bytes: a state need not have a trivial constructor.
    __shared__ __align__(
        8) unsigned char shared[Policy::threads * VEC * sizeof(typename Op::state)];
    walk_blocks<Policy::counts_known>(p.walk, [&](const walk_params &w, int32_t block) {
        reduce_block<Policy, Op, T, WEIGHT, VEC, TRACED>(
            p, w, block, reinterpret_cast<typename Op::state *>(shared));
    });
}

} // namespace spops

#ifndef __CUDACC_RTC__

#include <cuda_runtime.h>

#include "spops/segments.h"

namespace spops
{

// Shape of a launch over segments: lanes for `cols` columns of `vec` per thread, blocks for the
// schedule. `known` is the host's copy of the schedule; NULL: the device's counts are used, and the
// grid is what fits on the device at once. No group straddles a border of `unit` threads.
struct walk_launch {
    dim3 grid;
    walk_params walk;
};

inline walk_launch walk_plan(const spops_segments_view &view, const spops_schedule *known,
                             int64_t vectors, int threads, int resident_blocks, int unit)
{
    walk_launch launch;
    walk_params &w = launch.walk;
    w.entries = view.entries;
    w.pieces = view.pieces;
    w.splits = view.splits;
    w.schedule = view.schedule;
    w.lanes = (int32_t)(vectors < unit ? vectors : unit);
    w.lanes_inverse = (65536 + w.lanes - 1) / w.lanes;
    w.groups = threads / unit * (unit / w.lanes);
    w.groups_inverse = (uint32_t)(((uint64_t)1 << 32) / (uint64_t)w.groups) + 1;
    const int64_t tiles = (vectors + w.lanes - 1) / w.lanes;
    int64_t blocks;
    if (known != nullptr) {
        walk_fill(w, *known);
        blocks = w.slot_begin[WALK_NUM_SLOTS];
    } else {
        blocks = view.max_pieces + view.num_segments;
        if (blocks > resident_blocks) blocks = resident_blocks;
    }
    launch.grid = dim3((unsigned)blocks, (unsigned)tiles);
    return launch;
}

/*
 * Reduce f32 rows with a reduction of one's own, on the caller's stream:
 * out[s, c] = Op over terms of x[row(t), c] * w[weight(t)] (w NULL: without weights). Matrices are
 * dense or strided rows as in spops_segreduce_execute; nothing is checked here.
 *
 * scratch   view.max_pieces * cols * 8 bytes of device memory; tickets: view.max_splits * cols
 *           counters, zero before the first launch (they are zero again after each).
 */
template <class Op>
cudaError_t segreduce_launch(const spops_segments_view &view, const float *x, int64_t x_stride,
                             const float *w, float *out, int64_t out_stride, int64_t cols,
                             void *scratch, uint32_t *tickets, cudaStream_t stream)
{
    typedef segreduce_policy<256, 4, 4, false, false> policy;
    if (view.num_segments == 0 || cols == 0) return cudaSuccess;
    const int vec_x = chunk_elements(x, x_stride, 2, sizeof(float));
    const int vec_out = chunk_elements(out, out_stride, 2, sizeof(float));
    const int vec = vec_x < vec_out ? vec_x : vec_out;
    int device = 0, processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    const walk_launch launch = walk_plan(view, nullptr, (cols + vec - 1) / vec, policy::threads,
                                         processors * 8, policy::threads);
    segreduce_params p = {};
    p.walk = launch.walk;
    p.pairs = reinterpret_cast<const int2 *>(view.pairs);
    p.order = view.order;
    p.x = x;
    p.x_stride = x_stride;
    p.w = w;
    p.cols = (int32_t)cols;
    p.out = out;
    p.out_stride = out_stride;
    p.partials = scratch;
    p.tickets = tickets;
    if (vec == 4)
        segreduce_kernel<policy, Op, float, WEIGHT_ANY, 4, false>
            <<<launch.grid, policy::threads, 0, stream>>>(p);
    else
        segreduce_kernel<policy, Op, float, WEIGHT_ANY, 1, false>
            <<<launch.grid, policy::threads, 0, stream>>>(p);
    return cudaPeekAtLastError();
}

} // namespace spops

#endif

#endif
