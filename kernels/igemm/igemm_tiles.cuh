// SPDX-License-Identifier: Apache-2.0
// Tiles of a schedule in the order that blocks take them, whatever their records are made from.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_TILES_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_TILES_CUH

#include "igemm/igemm_args.h"
#include "kernels/core/scan.cuh"

namespace spops
{

constexpr int tile_scan_threads = 1024;
constexpr int max_tile_cost = tile_scan_threads - 1; // costs above count as this one

__device__ __forceinline__ int tiles_in_use(const int *num_rows)
{
    return (*num_rows + SPOPS_IGEMM_TILE_ROWS - 1) / SPOPS_IGEMM_TILE_ROWS;
}

__host__ __device__ inline int tile_cost(int records)
{
    return records < max_tile_cost ? records : max_tile_cost;
}

// A block of tile_scan_threads: cost_begin[c] is how many tiles have more than c records.
__device__ __forceinline__ void begin_costs(const int (&tiles_of)[max_tile_cost + 1],
                                            int *cost_begin)
{
    int total;
    const int cost = max_tile_cost - (int)threadIdx.x;
    cost_begin[cost] = sum_before(tiles_of[cost], &total);
}

// A warp: the tiles of a cost from 1 on, as they lie, to places at .. end - 1, after those of higher costs.
// first: record of each tile, and after the last.
__device__ __forceinline__ void order_tiles_of_cost(const int *first, int at, int end,
                                                    int num_tiles, int cost, int lane, int4 *tiles)
{
    constexpr int ahead = 8; // loads under way
    for (int begin = 0; begin < num_tiles && at < end; begin += 32 * ahead) {
        int records[ahead], from[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const int tile = begin + 32 * i + lane;
            from[i] = tile < num_tiles ? first[tile] : 0;
            records[i] = tile < num_tiles ? first[tile + 1] - from[i] : 0; // no tile has 0
        }
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const bool mine = tile_cost(records[i]) == cost;
            const uint32_t all = __ballot_sync(~0u, mine);
            if (mine)
                tiles[at + __popc(all & ((1u << lane) - 1))] =
                    make_int4(from[i], records[i], begin + 32 * i + lane, 0);
            at += __popc(all);
        }
    }
}

} // namespace spops

#endif
