// SPDX-License-Identifier: Apache-2.0
// A stable partition of items by a digit, as the three launches of one pass of a radix sort need
// it:
//
//     1. each block counts the digits of its tile,
//     2. a block a digit sums its counts up over the tiles,
//     3. each block ranks the items of its tile and puts them where they belong.
//
// CUB's sorts make one launch of these, in which a tile waits for the tiles before it one after the
// other. That saves traffic where there are many tiles, but takes some 11 us where there are only
// a few (H200, 249,216 items). Where an item lands depends on the items alone, not on timing.
#ifndef SPOPS_KERNELS_SEGMENTS_PARTITION_CUH
#define SPOPS_KERNELS_SEGMENTS_PARTITION_CUH

#include <cub/block/block_scan.cuh>

#include "kernels/core/launch.cuh"

namespace spops
{

constexpr int tile_threads = 512, tile_warps = tile_threads / 32;
constexpr int max_digit_bits = 9, max_digits = 1 << max_digit_bits;
static_assert(max_digits <= tile_threads, "a thread looks after each digit");

// How often each digit comes, in memory. Row d belongs to digit d.
struct digit_counts {
    int32_t *tiles;  // [num_digits][num_tiles]; after step 2 those in the tiles before
    int32_t *totals; // [num_digits], from step 2
    int32_t num_digits, num_tiles;
};

// The item that a thread meets in round i of its tile, counted from the tile's first: a warp's
// items follow each other, and so do those of a round.
template <int ITEMS> __device__ __forceinline__ int32_t tile_item(int i)
{
    return (int32_t)(threadIdx.x / 32 * (32 * ITEMS) + i * 32 + threadIdx.x % 32);
}

__device__ __forceinline__ unsigned lanes_below()
{
    return (1u << threadIdx.x % 32) - 1;
}

// ---- 1. Digits of a tile ------------------------------------------------------------------------

// Between these two, threads count into found[] (shared) by count_equal.
__device__ __forceinline__ void begin_count(int32_t (&found)[max_digits], int32_t num_digits)
{
    if ((int32_t)threadIdx.x < num_digits) found[threadIdx.x] = 0;
    __syncthreads();
}
__device__ __forceinline__ void end_count(const int32_t (&found)[max_digits], const digit_counts &c,
                                          int32_t tile)
{
    __syncthreads();
    if ((int32_t)threadIdx.x < c.num_digits)
        c.tiles[(int64_t)threadIdx.x * c.num_tiles + tile] = found[threadIdx.x];
}

// How many lanes of the warp have this key, told to the first of them; 0 to the others. All lanes
// call.
__device__ __forceinline__ int32_t count_equal(uint32_t key)
{
    const unsigned peers = __match_any_sync(~0u, key);
    return (peers & lanes_below()) == 0 ? __popc(peers) : 0;
}

// ---- 2. Sums over tiles -------------------------------------------------------------------------

// The counts of digit d become those of the tiles before.
__device__ __forceinline__ void scan_tiles(const digit_counts &c, int32_t d)
{
    typedef cub::BlockScan<int32_t, tile_threads> block_scan;
    __shared__ typename block_scan::TempStorage storage;
    int32_t *row = c.tiles + (int64_t)d * c.num_tiles;
    int32_t done = 0;
    for (int32_t base = 0; base < c.num_tiles; base += tile_threads) {
        const int32_t i = base + (int32_t)threadIdx.x;
        int32_t before, sum;
        block_scan(storage).ExclusiveSum(i < c.num_tiles ? row[i] : 0, before, sum);
        if (i < c.num_tiles) row[i] = done + before;
        done += sum;
        __syncthreads();
    }
    if (threadIdx.x == 0) c.totals[d] = done;
}

// ---- 3. Places ----------------------------------------------------------------------------------

struct partition_storage {
    typedef cub::BlockScan<int32_t, tile_threads> block_scan;
    block_scan::TempStorage scan;
    int32_t begin[max_digits];               // where the tile's items of a digit begin
    uint16_t before[tile_warps][max_digits]; // items of a digit: of a warp, then of warps before
};

// Where the digits of a tile begin; returns the number of items in all tiles. What it wrote may be
// read after the next barrier.
__device__ __forceinline__ int32_t find_begins(partition_storage &s, const digit_counts &c,
                                               int32_t tile)
{
    const int32_t d = (int32_t)threadIdx.x;
    const bool used = d < c.num_digits;
    const int32_t in_tiles_before = used ? c.tiles[(int64_t)d * c.num_tiles + tile] : 0;
    int32_t begin, total;
    partition_storage::block_scan(s.scan).ExclusiveSum(used ? c.totals[d] : 0, begin, total);
    if (used) s.begin[d] = begin + in_tiles_before;
    return total;
}

// Places of a tile's items, whose digits are in the order of tile_item; those of digit -1 get none.
// Has barriers before it reads what find_begins wrote.
template <int ITEMS>
__device__ __forceinline__ void find_places(partition_storage &s, int32_t num_digits,
                                            const int32_t (&digit)[ITEMS], int32_t (&place)[ITEMS])
{
    static_assert(tile_threads * ITEMS <= UINT16_MAX, "the counts of a tile have 16 bits");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t d = lane; d < num_digits; d += 32)
        s.before[warp][d] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned peers = __match_any_sync(~0u, digit[i]);
        const int32_t rank = __popc(peers & lanes_below());
        const int32_t earlier = digit[i] >= 0 ? s.before[warp][digit[i]] : 0;
        place[i] = earlier + rank;
        __syncwarp();
        if (digit[i] >= 0 && rank == 0)
            s.before[warp][digit[i]] = (uint16_t)(earlier + __popc(peers));
        __syncwarp();
    }
    __syncthreads();
    if ((int32_t)threadIdx.x < num_digits) {
        int32_t sum = 0;
#pragma unroll
        for (int w = 0; w < tile_warps; ++w) {
            const int32_t count = s.before[w][threadIdx.x];
            s.before[w][threadIdx.x] = (uint16_t)sum;
            sum += count;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (digit[i] >= 0) place[i] += s.begin[digit[i]] + s.before[warp][digit[i]];
}

} // namespace spops

#endif
