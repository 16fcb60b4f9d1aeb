// SPDX-License-Identifier: Apache-2.0
// The first k <= 32 of a stream of candidates, by a warp: lane l holds the one of rank l. What comes before
// the last of them waits in shared memory until 32 do, and these are then sorted and merged. The first
// batch is kept short by the k-th of what each lane has first; the more has been read, the less waits.
#ifndef SPOPS_KERNELS_SEGOPS_WARP_FIRST_CUH
#define SPOPS_KERNELS_SEGOPS_WARP_FIRST_CUH

#include "kernels/segops/value_keys.cuh"
#include "spops/device/grid_dependency.cuh"

namespace spops
{

constexpr int first_most = 32; // of k
constexpr int first_threads = 256, first_warps = first_threads / 32;
constexpr int first_batch = 8; // elements of a lane
constexpr int32_t first_stride = 32 * first_batch;
constexpr int32_t first_room = 32 + first_stride; // of a warp's candidates that wait

// Two lanes `step` apart: the smaller to the lower one where up.
template <class K>
__device__ __forceinline__ K lanes_exchange(K c, int32_t lane, int32_t step, bool up)
{
    const K other = __shfl_xor_sync(0xffffffff, c, step);
    return ((lane & step) == 0) == up == (other < c) ? other : c;
}

// Sorted over the lanes, the largest first.
template <class K> __device__ __forceinline__ K lanes_sort(K c, int32_t lane)
{
#pragma unroll
    for (int32_t width = 2; width <= 32; width *= 2)
#pragma unroll
        for (int32_t step = width / 2; step > 0; step /= 2)
            c = lanes_exchange(c, lane, step, (lane & width) != 0);
    return c;
}

struct warp_first {
    candidate best;     // of this lane; of rank `lane`
    candidate limit;    // nothing after it matters
    candidate *waiting; // [first_room] of shared memory
    int32_t count;      // of waiting
    int32_t lane, k;

    __device__ __forceinline__ warp_first(candidate *shared, int32_t num_kept)
        : best(no_candidate), limit(no_candidate), waiting(shared), count(0),
          lane((int32_t)threadIdx.x & 31), k(num_kept)
    {
    }
    // The first 32 of best and of c, whose lanes are sorted with the largest first.
    __device__ __forceinline__ void merge(candidate c)
    {
        best = c < best ? c : best;
#pragma unroll
        for (int32_t step = 16; step > 0; step /= 2)
            best = lanes_exchange(best, lane, step, true);
        limit = min(limit, __shfl_sync(0xffffffff, best, k - 1));
    }
    // The last 32 of those that wait, or as many as there are.
    __device__ __forceinline__ void take_waiting()
    {
        const int32_t first = max(count - 32, 0);
        const candidate c = first + lane < count ? waiting[first + lane] : no_candidate;
        count = first;
        __syncwarp(); // all have read
        merge(lanes_sort(c, lane));
    }
    // Of a batch, what comes before the limit: each lane puts its own behind those of the lanes below.
    __device__ __forceinline__ void put(const candidate (&c)[first_batch])
    {
        int32_t own = 0;
#pragma unroll
        for (int u = 0; u < first_batch; ++u)
            own += c[u] < limit;
        if (!__any_sync(0xffffffff, own > 0)) return;
        int32_t scan = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int32_t below = __shfl_up_sync(0xffffffff, scan, step);
            if (lane >= step) scan += below;
        }
        int32_t at = count + scan - own;
#pragma unroll
        for (int u = 0; u < first_batch; ++u)
            if (c[u] < limit) waiting[at++] = c[u];
        count += __shfl_sync(0xffffffff, scan, 31);
        __syncwarp();
        while (count >= 32)
            take_waiting();
    }
    // Of the first batch: k lanes have something that does not come after the k-th of what lanes have
    // first, so nothing after that matters.
    __device__ __forceinline__ void begin(const candidate (&c)[first_batch])
    {
        candidate own = c[0];
#pragma unroll
        for (int u = 1; u < first_batch; ++u)
            own = min(own, c[u]);
        const uint32_t key = lanes_sort((uint32_t)(own >> 32), lane);
        limit = (candidate)__shfl_sync(0xffffffff, key, 32 - k) << 32 | 0xffffffffu;
    }
    // load(i) of i = begin .. n - 1, of which this warp has every step-th first_stride; the elements of
    // the batch after are loaded before those of this one are looked at.
    template <class Source>
    __device__ __forceinline__ void stream(int32_t begin_at, int32_t n, int32_t step,
                                           const Source &source)
    {
        typename Source::element next[first_batch];
        load_batch(source, begin_at, n, next);
        for (int32_t at = begin_at; at < n; at += step) {
            candidate c[first_batch];
#pragma unroll
            for (int u = 0; u < first_batch; ++u) {
                const int32_t i = at + u * 32 + lane;
                c[u] = i < n ? source.make(next[u], i) : no_candidate;
            }
            load_batch(source, at + step, n, next);
            if (at == begin_at) begin(c);
            put(c);
        }
        if (count > 0) take_waiting();
    }
    template <class Source>
    __device__ __forceinline__ void load_batch(const Source &source, int32_t at, int32_t n,
                                               typename Source::element (&to)[first_batch]) const
    {
#pragma unroll
        for (int u = 0; u < first_batch; ++u) {
            const int32_t i = at + u * 32 + lane;
            if (i < n) to[u] = source.load(i);
        }
    }
};

// Elements of a column at positions from `begin` on.
template <class T> struct column_source {
    typedef T element;
    const order_params &order;
    int32_t begin, col;

    __device__ __forceinline__ T load(int32_t i) const
    {
        return order.value<T>(order.term(begin + i), col);
    }
    __device__ __forceinline__ candidate make(T v, int32_t i) const
    {
        return candidate_of(value_key(to_f32(v), order.descending), begin + i);
    }
};

// Candidates themselves.
struct left_source {
    typedef candidate element;
    const left_candidates &left;

    __device__ __forceinline__ candidate load(int32_t i) const { return left(i); }
    __device__ __forceinline__ candidate make(candidate c, int32_t) const { return c; }
};

typedef candidate first_shared[first_warps][first_room];

// By one warp, or by all of a block, whose warp 0 then has what all have found.
template <bool BLOCK, class Source>
__device__ __forceinline__ candidate first_of(first_shared &shared, int32_t n, int32_t k,
                                              const Source &source)
{
    const int32_t warp = (int32_t)threadIdx.x / 32;
    if (BLOCK) __syncthreads(); // of what was here before
    warp_first found(shared[warp], k);
    found.stream(BLOCK ? warp * first_stride : 0, n, (BLOCK ? first_warps : 1) * first_stride,
                 source);
    if (!BLOCK) return found.best;
    found.waiting[found.lane] = found.best;
    __syncthreads();
    const int32_t busy = min((n + first_stride - 1) / first_stride, first_warps);
    for (int32_t w = 1; warp == 0 && w < busy; ++w)
        found.merge(shared[w][31 - found.lane]);
    return found.best;
}

// What the lanes of a warp have, as rows of the segment.
template <class T>
__device__ __forceinline__ void first_write(const segment_params &p, candidate c, int32_t segment,
                                            int32_t col)
{
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t count = min(p.kept, __popc(__ballot_sync(0xffffffff, c != no_candidate)));
    if (lane < count) p.order.write<T>(segment, 0, lane, col, position_of(c));
    p.order.write_rest<T>(segment, count + lane, 32, col);
}

// Whole segments, of the class BLOCK and split ones, and groups of pieces: a warp each, or a block.
template <class T, bool BLOCK>
__global__ void __launch_bounds__(first_threads)
    first_kernel(const __grid_constant__ segment_params p)
{
    __shared__ first_shared shared;
    grid_launch_dependents();
    const int32_t entries = p.schedule->class_begin[SPOPS_CLASS_BLOCK];
    const int32_t num_entries = p.schedule->class_begin[SPOPS_CLASS_BLOCK + 1] - entries;
    const int32_t others = p.at_once == 0 ? p.schedule->num_splits : p.schedule->num_pieces;
    const int64_t all = (int64_t)(num_entries + others) * p.order.cols;
    const int64_t teams = BLOCK ? 1 : first_warps, warp = threadIdx.x / 32;
    for (int64_t unit = blockIdx.x * teams + (BLOCK ? 0 : warp); unit < all;
         unit += gridDim.x * teams) {
        const int32_t item = (int32_t)(unit / p.order.cols);
        const int32_t col = (int32_t)(unit - (int64_t)item * p.order.cols);
        piece_group group = {};
        int32_t segment = -1;
        if (item < num_entries) {
            const spops_work_item entry = p.entries[entries + item];
            group = {entry.begin, entry.count, 0};
            segment = entry.segment;
        } else if (p.at_once == 0) {
            const spops_split_segment split = p.splits[item - num_entries];
            group = {__ldg(p.offsets + split.segment), split.count, 0};
            segment = split.segment;
        } else {
            group = group_of(p, item - num_entries);
            if (group.count == 0) continue;
        }
        const column_source<T> source = {p.order, group.begin, col};
        const candidate c = first_of<BLOCK>(shared, group.count, p.kept, source);
        if (BLOCK && warp != 0) continue;
        if (segment >= 0)
            first_write<T>(p, c, segment, col);
        else if ((int32_t)threadIdx.x < p.kept)
            p.found[(group.slot * p.order.cols + col) * p.kept + threadIdx.x] = c;
    }
    grid_dependency_wait();
}

// Of what the groups have left: a block a split segment.
template <class T>
__global__ void __launch_bounds__(first_threads)
    first_of_groups_kernel(const __grid_constant__ segment_params p)
{
    __shared__ first_shared shared;
    grid_dependency_wait();
    const int64_t all = (int64_t)p.schedule->num_splits * p.order.cols;
    for (int64_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const int32_t index = (int32_t)(unit / p.order.cols), col = (int32_t)(unit % p.order.cols);
        const spops_split_segment split = p.splits[index];
        const left_candidates left(p, split, index, col);
        const left_source source = {left};
        const candidate c = first_of<true>(shared, left.count, p.kept, source);
        if (threadIdx.x < 32) first_write<T>(p, c, split.segment, col);
    }
}

} // namespace spops

#endif
