// SPDX-License-Identifier: Apache-2.0
// Which segment a position belongs to, and where it begins, for kernels whose blocks take positions in
// order: warps search for the first and the last segment of a block, marks say what is between.
#ifndef SPOPS_KERNELS_SEGMENTS_SEGMENT_OF_CUH
#define SPOPS_KERNELS_SEGMENTS_SEGMENT_OF_CUH

#include <stdint.h>

namespace spops
{

// The last segment s with offsets[s] <= position, or, COUNTED, with offsets[s] + s <= position; position
// >= 0. All lanes of a warp search, each in one of 33 parts: a step is one load that others wait for.
template <bool COUNTED = false>
__device__ __forceinline__ int32_t segment_search(const int32_t *offsets, int64_t num_segments,
                                                  int64_t position)
{
    const int64_t lane = (int64_t)threadIdx.x & 31;
    int64_t low = 0, high = num_segments;
    while (high - low > 1) {
        const int64_t step = (high - low + 32) / 33, at = low + (lane + 1) * step;
        const bool before = at < high && __ldg(offsets + at) + (COUNTED ? at : 0) <= position;
        low += __popc(__ballot_sync(0xffffffff, before)) * step;
        high = min(high, low + step);
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
        if (warp == 0) s.first = segment_search(offsets, num_segments, begin);
        if (warp == (THREADS > 32)) s.last = segment_search(offsets, num_segments, end - 1);
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

// Where segments begin among POSITIONS positions of a block, a bit each. clear, a barrier, mark, a
// barrier, scan by the first warp, a barrier; then begin and end may be asked.
template <int POSITIONS> struct segment_begins {
    static_assert(POSITIONS % 32 == 0, "words of marks are whole");
    static constexpr int words = POSITIONS / 32, lane_words = (words + 31) / 32;
    uint32_t marks[words];
    int32_t before[words], after[words]; // the last begin before a word, the first one after it

    __device__ __forceinline__ void clear()
    {
        for (int w = (int)threadIdx.x; w < words; w += (int)blockDim.x)
            marks[w] = 0;
    }
    __device__ __forceinline__ void mark(int32_t i) { atomicOr(&marks[i >> 5], 1u << (i & 31)); }

    // first: where the segment of position 0 begins, end: where that of the last one ends; 0 where both
    // are not asked. Each lane has words that follow each other.
    __device__ __forceinline__ void scan(int32_t first, int32_t end)
    {
        const int lane = (int)threadIdx.x, w0 = lane * lane_words;
        int32_t last = first, next = end; // of this lane's words
#pragma unroll
        for (int i = 0; i < lane_words; ++i) {
            const int up = w0 + i, down = w0 + lane_words - 1 - i;
            if (up < words && marks[up] != 0) last = up * 32 + 31 - __clz((int)marks[up]);
            if (down < words && marks[down] != 0) next = down * 32 + __ffs((int)marks[down]) - 1;
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            last = max(last, __shfl_up_sync(0xffffffff, last, step)); // of lane 0: its own again
            next = min(next, __shfl_down_sync(0xffffffff, next, step));
        }
        last = __shfl_up_sync(0xffffffff, last, 1);
        next = __shfl_down_sync(0xffffffff, next, 1);
        if (lane == 0) last = first;
        if (lane == 31) next = end;
#pragma unroll
        for (int i = 0; i < lane_words; ++i) {
            const int up = w0 + i, down = w0 + lane_words - 1 - i;
            if (up < words) {
                before[up] = last;
                if (marks[up] != 0) last = up * 32 + 31 - __clz((int)marks[up]);
            }
            if (down < words) {
                after[down] = next;
                if (marks[down] != 0) next = down * 32 + __ffs((int)marks[down]) - 1;
            }
        }
    }
    // Of the segment that position i belongs to.
    __device__ __forceinline__ int32_t begin(int32_t i) const
    {
        const uint32_t bits = marks[i >> 5] & 0xffffffffu >> (31 - (i & 31));
        return bits != 0 ? (i | 31) - __clz((int)bits) : before[i >> 5];
    }
    __device__ __forceinline__ int32_t end(int32_t i) const
    {
        const uint32_t bits = marks[i >> 5] & ~(0xffffffffu >> (31 - (i & 31)));
        return bits != 0 ? (i & ~31) + __ffs((int)bits) - 1 : after[i >> 5];
    }
};

} // namespace spops

#endif
