// SPDX-License-Identifier: Apache-2.0
// Candidates in the shared memory of a block: sorted, and the first k of a stream of them.
#ifndef SPOPS_KERNELS_SEGOPS_BLOCK_ORDER_CUH
#define SPOPS_KERNELS_SEGOPS_BLOCK_ORDER_CUH

#include "kernels/segops/value_keys.cuh"

namespace spops
{

constexpr int order_threads = 256;
constexpr int order_batch = 4; // candidates of a thread on their way

// The most that are kept of a stream, for a block with room for so many candidates: a batch more fits.
constexpr int order_most(int room)
{
    return room / 2 < room - order_batch * order_threads ? room / 2
                                                         : room - order_batch * order_threads;
}

template <int ROOM> struct order_shared {
    candidate list[ROOM];
    int32_t count;
    candidate limit; // the last of the first k so far; those after it do not matter
};

// Sort list[0 .. n - 1] by a bitonic network over the next power of two. All threads come here, after a
// barrier; ends with one.
__device__ __forceinline__ void block_sort(candidate *list, int32_t n)
{
    int32_t size = 2;
    while (size < n)
        size *= 2;
    for (int32_t i = n + (int32_t)threadIdx.x; i < size; i += order_threads)
        list[i] = no_candidate;
    __syncthreads();
    for (int32_t width = 2; width <= size; width *= 2) {
        for (int32_t step = width / 2; step > 0; step /= 2) {
            for (int32_t i = (int32_t)threadIdx.x; i < size / 2; i += order_threads) {
                const int32_t low = 2 * i - (i & (step - 1)), high = low + step;
                const candidate a = list[low], b = list[high];
                const bool up = (low & width) == 0;
                if ((a > b) == up) {
                    list[low] = b;
                    list[high] = a;
                }
            }
            __syncthreads();
        }
    }
}

// Sort what was collected and keep the first k.
template <int ROOM> __device__ __forceinline__ void block_keep(order_shared<ROOM> &s, int32_t k)
{
    const int32_t n = s.count;
    block_sort(s.list, n);
    if (threadIdx.x == 0) {
        s.count = min(n, k);
        s.limit = n >= k ? s.list[k - 1] : no_candidate;
    }
    __syncthreads();
}

// The first k of get(0) .. get(n - 1), which may be no_candidate: sorted in s.list, s.count of them. k <=
// order_most(ROOM). After the first `order_threads` most of a long stream falls behind the limit, so that
// little is sorted.
template <int ROOM, class Get>
__device__ __forceinline__ void block_first(order_shared<ROOM> &s, int32_t n, int32_t k,
                                            const Get &get)
{
    constexpr int at_once = order_batch;
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t enough = k + max(k, order_threads);
    int32_t begin = 0;
    __syncthreads(); // of what was here before
    if (threadIdx.x == 0) {
        s.count = 0;
        s.limit = no_candidate;
    }
    __syncthreads();
    while (begin < n) {
        const int32_t rounds = begin == 0 && k < order_threads ? 1 : at_once;
        const candidate limit = s.limit;
        candidate c[at_once];
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
            const int32_t i = begin + u * order_threads + (int32_t)threadIdx.x;
            c[u] = u < rounds && i < n ? get(i) : no_candidate;
        }
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
            const bool stays = c[u] < limit;
            const uint32_t all = __ballot_sync(0xffffffff, stays);
            int32_t base = 0;
            if (lane == 0 && all != 0) base = atomicAdd(&s.count, __popc(all));
            base = __shfl_sync(0xffffffff, base, 0);
            if (stays) s.list[base + __popc(all & ((1u << lane) - 1u))] = c[u];
        }
        begin += rounds * order_threads;
        __syncthreads();
        const int32_t count = s.count;
        __syncthreads(); // all have read it
        const bool first = limit == no_candidate && count >= k;
        if (begin < n && (first || count > enough || count > ROOM - at_once * order_threads))
            block_keep(s, k);
    }
    block_keep(s, k);
}

} // namespace spops

#endif
