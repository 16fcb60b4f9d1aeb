// SPDX-License-Identifier: Apache-2.0
// Which segment a position belongs to, for kernels whose blocks take positions in order: one search for
// the first and the last segment of a block, and a running maximum for those between.
#ifndef SPOPS_KERNELS_SEGMENTS_SEGMENT_OF_CUH
#define SPOPS_KERNELS_SEGMENTS_SEGMENT_OF_CUH

#include <stdint.h>

namespace spops
{

// The last segment that begins at or before a position that some segment has.
__device__ __forceinline__ int32_t segment_search(const int32_t *offsets, int64_t num_segments,
                                                  int32_t position)
{
    int64_t low = 0, high = num_segments;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (__ldg(offsets + middle) <= position)
            low = middle;
        else
            high = middle;
    }
    return (int32_t)low;
}

template <int THREADS, int EACH> struct segment_finder {
    static constexpr int positions = THREADS * EACH;
    struct shared {
        int32_t marks[positions];
        int32_t warp_last[THREADS / 32];
        int32_t first, last;
    };

    // segment[i]: of position begin + thread * EACH + i, where that is less than end. All threads of the
    // block come here; begin < end <= begin + positions.
    static __device__ void find(shared &s, const int32_t *offsets, int64_t num_segments,
                                int32_t begin, int32_t end, int32_t (&segment)[EACH])
    {
        const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
        if (thread == 0) s.first = segment_search(offsets, num_segments, begin);
        if (thread == 32 % THREADS) s.last = segment_search(offsets, num_segments, end - 1);
        for (int i = thread; i < positions; i += THREADS)
            s.marks[i] = -1;
        __syncthreads();
        const int32_t first = s.first, last = s.last;
        // Of segments that begin at one position the last alone has terms.
        for (int32_t g = first + 1 + thread; g <= last; g += THREADS) {
            const int32_t from = __ldg(offsets + g);
            if (from < __ldg(offsets + g + 1)) s.marks[from - begin] = g;
        }
        __syncthreads();
        int32_t run = -1;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            run = max(run, s.marks[thread * EACH + i]);
            segment[i] = run;
        }
        int32_t scan = run; // inclusive, over the warp
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int32_t before = __shfl_up_sync(0xffffffff, scan, step);
            if (lane >= step) scan = max(scan, before);
        }
        if (lane == 31) s.warp_last[warp] = scan;
        __syncthreads();
        int32_t carry = __shfl_up_sync(0xffffffff, scan, 1);
        if (lane == 0) carry = -1;
        for (int w = 0; w < warp; ++w)
            carry = max(carry, s.warp_last[w]);
        carry = max(carry, first);
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            segment[i] = max(segment[i], carry);
    }
};

} // namespace spops

#endif
