// SPDX-License-Identifier: Apache-2.0
// Products of summed rows with the matrices of taps, for sm_90a. One block, a tile of
// 64 * GROUPS output rows by COLS columns after the other:
//
//     warps               role
//     4 * GROUPS          multiply: a warpgroup to each 64 rows, sums in registers, epilogue
//     GATHER_WARPS        gather: each alone brings the 64 rows of one group into a stage, and the
//                         next warp of its group does the same for the next stage
//
// A stage is 128 bytes of k for all rows (A) and columns (B) of the tile, in swizzled lines. A row
// that a record names is copied by copy_async. A row that is a sum is added in registers, in f32 and
// in the order of its list, and stored rounded; that takes two or three times the latency of the L2,
// which is why several warps take turns. Weights come by box copies.
//
//     barrier             arrivals                                      means
//     stage full          GROUPS * (32 copies + 32), 1 + bytes of W     rows, weights, note are there
//     stage empty         4 * GROUPS (a lane of each warp)              its products have ended
//
// Tiles are dealt out by number, heaviest first: block b has tiles b, b + blocks, ...
#ifndef SPOPS_KERNELS_IGEMM_POINT_GEMM_SM90_CUH
#define SPOPS_KERNELS_IGEMM_POINT_GEMM_SM90_CUH

#include "kernels/core/sm90/hopper.cuh"
#include "kernels/igemm/igemm_epilogue.cuh"
#include "kernels/igemm/row_sums.cuh"
#include "igemm/igemm_args.h"

namespace spops
{

struct point_gemm_params {
    CUtensorMap w; // 3D: along a line, lines, taps
    const unsigned char *x;
    uint32_t row_stride; // bytes
    int row_bytes;       // of C_in numbers
    int row_stages;      // stages that a record makes
    const int4 *tiles;
    const int *num_tiles;
    const int *records;
    const int *out_rows;
    const int4 *sums;
    const int *members;
    int last_tap; // num_taps - 1 for mirrored taps, else -1
    int col_tiles;
    epilogue_params epilogue;
};

// BATCH sums of a lane are on their way together.
template <int COLS_, int GATHER_WARPS_, int STAGES_, int BATCH_> struct point_gemm_policy {
    static constexpr int COLS = COLS_, GATHER_WARPS = GATHER_WARPS_, STAGES = STAGES_;
    static constexpr int BATCH = BATCH_;
    static constexpr int GROUPS = SPOPS_IGEMM_TILE_ROWS / SPOPS_IGEMM_GROUP_ROWS;
    static constexpr int rows = SPOPS_IGEMM_TILE_ROWS;
    static constexpr int turns = GATHER_WARPS / GROUPS; // warps of a group
    static_assert(GATHER_WARPS % GROUPS == 0 && turns <= STAGES, "each warp has a stage to fill");
    static constexpr int threads = 128 * GROUPS + 32 * GATHER_WARPS;
    // Sums of 256 columns take more registers than a thread has if all have as many.
    static constexpr bool moves_registers = COLS == 256;
    static constexpr int registers = 65536 / threads / 8 * 8, gather_registers = 152;
    static constexpr int multiply_registers =
        (threads * registers - 32 * GATHER_WARPS * gather_registers) / (128 * GROUPS) / 8 * 8;
    static_assert(!moves_registers || GATHER_WARPS % 4 == 0, "warpgroups move registers");
    static constexpr int a_bytes = rows * 128, b_bytes = COLS * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int notes_at = STAGES * stage_bytes; // groups that take part, a stage
    static constexpr int barriers_at = notes_at + STAGES * 16;
    static constexpr int shared_bytes = barriers_at + STAGES * 16 + 1024; // to align
};

template <class P> struct point_gemm_block {
    uint32_t base; // of shared memory, aligned to 1024
    char *shared;  // the same

    __device__ uint32_t stage(int s) const { return base + s * P::stage_bytes; }
    __device__ uint32_t full(int s) const { return base + P::barriers_at + s * 16; }
    __device__ uint32_t empty(int s) const { return full(s) + 8; }
    __device__ volatile int *note(int s) const
    {
        return reinterpret_cast<volatile int *>(shared + P::notes_at + s * 16);
    }
};

// The tiles of a block: {first record, records, tile, column tile}; no records: no more tiles.
__device__ __forceinline__ int4 point_tile(const point_gemm_params &p, int num_tiles, int number)
{
    if (number >= num_tiles * p.col_tiles) return make_int4(0, 0, 0, 0);
    int4 tile = __ldg(p.tiles + number / p.col_tiles);
    tile.w = number % p.col_tiles;
    return tile;
}

// Where byte `piece` (of 16) of a row lies in a group's part of a stage.
__device__ __forceinline__ uint32_t line_of(int row, int piece)
{
    return row * 128 + (piece ^ (row % 8 << 4));
}

// Entries of up to 4 * BATCH sums of a group, 4 apart; those that are not there have no members.
template <int BATCH>
__device__ __forceinline__ void load_sums(const point_gemm_params &p, int4 (&sum)[BATCH], int first,
                                          int num, int lane)
{
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
        sum[u] = 4 * u + lane / 8 < num ? __ldg(p.sums + first + 4 * u + lane / 8)
                                        : make_int4(0, 0, 0, 0);
}

// Bring these sums into a group's part of a stage: 8 lanes to a sum, 16 bytes each, from `x` on in
// each row.
template <class T, int BATCH>
__device__ __forceinline__ void gather_sums(const point_gemm_params &p, uint32_t to,
                                            const int4 (&sum)[BATCH], const unsigned char *x,
                                            int piece)
{
    uint4 row[BATCH][3];
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
        const int count = sum[u].x >> 8;
        const int from[3] = {sum[u].y, sum[u].z, sum[u].w};
#pragma unroll
        for (int m = 0; m < 3; ++m) {
            row[u][m] = make_uint4(0, 0, 0, 0);
            if (count >= 2 && (m < 2 || count == 3))
                row[u][m] = __ldg(reinterpret_cast<const uint4 *>(x + (uint64_t)(uint32_t)from[m] *
                                                                          p.row_stride));
        }
    }
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
        const int count = sum[u].x >> 8;
        if (count == 0) continue;
        float value[8] = {};
        add_numbers<T>(value, row[u][0]);
        add_numbers<T>(value, row[u][1]);
        if (count == 3) add_numbers<T>(value, row[u][2]);
        for (int m = 2; count > 3 && m < count; ++m) {
            const int from = __ldg(p.members + sum[u].w + m);
            add_numbers<T>(value, __ldg(reinterpret_cast<const uint4 *>(
                                      x + (uint64_t)(uint32_t)from * p.row_stride)));
        }
        store_shared_16(to + line_of(sum[u].x & 255, piece), rounded_numbers<T>(value));
    }
}

// What a gather warp brings into one stage.
struct point_unit {
    int4 head, rows[4]; // 16 rows that follow each other in the tile
    int k, col_tile;
    bool there;
};

// The units of a warp, one after the other.
template <class P> struct point_units {
    const point_gemm_params &p;
    const int group, quarter, num_tiles;
    int number, step; // of the block's tiles; of the tile's stages
    int4 tile;

    __device__ point_units(const point_gemm_params &params, int warp, int lane)
        : p(params), group(warp % P::GROUPS), quarter(lane / 8), num_tiles(*p.num_tiles),
          number(blockIdx.x), step(warp / P::GROUPS), tile(point_tile(p, num_tiles, number))
    {
    }

    __device__ point_unit next()
    {
        point_unit unit = {};
        while (tile.y > 0 && step >= tile.y * p.row_stages) {
            step -= tile.y * p.row_stages;
            number += gridDim.x;
            tile = point_tile(p, num_tiles, number);
        }
        unit.there = tile.y > 0;
        if (!unit.there) return unit;
        const int *record =
            p.records + (int64_t)(tile.x + step / p.row_stages) * SPOPS_IGEMM_RECORD_INTS;
        const int4 *my_rows = reinterpret_cast<const int4 *>(
            record + SPOPS_IGEMM_RECORD_HEAD + group * SPOPS_IGEMM_GROUP_ROWS + quarter * 16);
        unit.head = __ldg(reinterpret_cast<const int4 *>(record));
#pragma unroll
        for (int i = 0; i < 4; ++i)
            unit.rows[i] = __ldg(my_rows + i);
        unit.k = step % p.row_stages;
        unit.col_tile = tile.w;
        step += P::turns;
        return unit;
    }
};

// One gather warp.
template <class P, class T, operand B>
__device__ void point_gather(const point_gemm_params &p, const point_gemm_block<P> &block, int warp,
                             int lane)
{
    const int group = warp % P::GROUPS;
    const int piece = lane % 8 * 16, quarter = lane / 8;
    point_units<P> units(p, warp, lane);
    point_unit unit = units.next();
    int slot = warp / P::GROUPS;
    uint32_t parity = 1; // a slot that was never filled is empty

    while (unit.there) {
        const int4 head = unit.head;
        const int byte = unit.k * 128 + piece;
        const bool inside = byte < p.row_bytes;
        const int first = head.z + (group == 0 ? 0 : head.w & 0xffff);
        const int num = !inside ? 0 : group == 0 ? head.w & 0xffff : head.w >> 16;
        int4 sums[P::BATCH];
        load_sums(p, sums, first, num, lane);

        const uint32_t full = block.full(slot), a = block.stage(slot) + group * 64 * 128;
        barrier_wait(block.empty(slot), parity);
        if (group == 0 && lane == 0) {
            *block.note(slot) = head.y;
            if (head.y == 0) {
                barrier_arrive(full);
            } else {
                const int col = unit.col_tile * P::COLS, at = unit.k * 64; // numbers of 2 bytes
                const int matrix = p.last_tap >= 0 ? p.last_tap - head.x : head.x;
                const uint32_t b = block.stage(slot) + P::a_bytes;
                barrier_arrive_expect(full, P::b_bytes);
                if (B == ALONG_K) {
                    copy_box(b, &p.w, at, col, matrix, full);
                } else {
#pragma unroll
                    for (int c = 0; c < P::COLS / 64; ++c)
                        copy_box(b + c * 64 * 128, &p.w, col + c * 64, at, matrix, full);
                }
            }
        }
        __syncwarp();
        const unsigned char *const x = p.x + (inside ? byte : 0);
        if (head.y >> group & 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row[4] = {unit.rows[i].x, unit.rows[i].y, unit.rows[i].z, unit.rows[i].w};
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    if (row[q] != -2 || !inside)
                        copy_async_if(a + line_of(quarter * 16 + 4 * i + q, piece),
                                      x + (uint64_t)(uint32_t)max(row[q], 0) * p.row_stride,
                                      inside && row[q] >= 0);
            }
        }
        barrier_arrive_copies(full);
        unit = units.next(); // asked for before this stage is filled
        gather_sums<T>(p, a, sums, x, piece);
        for (int begin = 4 * P::BATCH; begin < num; begin += 4 * P::BATCH) {
            load_sums(p, sums, first + begin, num - begin, lane);
            gather_sums<T>(p, a, sums, x, piece);
        }
        barrier_arrive(full);
        slot += P::turns;
        if (slot >= P::STAGES) {
            slot -= P::STAGES;
            parity ^= 1;
        }
    }
}

// One warpgroup, rows 64 * group .. of each tile.
template <class P, class T, operand B>
__device__ void point_multiply(const point_gemm_params &p, const point_gemm_block<P> &block,
                               int group, int t)
{
    const uint64_t a_form = descriptor(SWIZZLE_128, 0, 1024);
    const uint64_t b_form =
        B == ACROSS_K ? descriptor(SWIZZLE_128, 64 * 128, 1024) : descriptor(SWIZZLE_128, 0, 1024);
    constexpr int b_step = B == ACROSS_K ? 16 * 128 : 32;
    const int num_tiles = *p.num_tiles;
    ring_position<P::STAGES> stage;
    float sum[P::COLS / 2];

    int4 tile = point_tile(p, num_tiles, blockIdx.x);
    for (int number = blockIdx.x; tile.y > 0; number += gridDim.x) {
        const int4 next = point_tile(p, num_tiles, number + gridDim.x);
        const int *rows = p.out_rows + (int64_t)tile.z * P::rows + group * 64;
        int out_row[2];
#pragma unroll
        for (int h = 0; h < 2; ++h)
            out_row[h] = __ldg(rows + t / 32 * 16 + h * 8 + t % 32 / 4);
        bool begun = false;
        for (int left = tile.y * p.row_stages; left > 0; --left) {
            barrier_wait(block.full(stage.at), stage.full_parity());
            // Read by the lane that gives the stage back, so that tools see the order too.
            const int note = __shfl_sync(~0u, t % 32 == 0 ? *block.note(stage.at) : 0, 0);
            if (note >> group & 1) {
                const uint32_t a = block.stage(stage.at) + group * 64 * 128;
                const uint32_t b = block.stage(stage.at) + P::a_bytes;
                fence_for_wgmma();
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    wgmma<T, P::COLS, ALONG_K, B>::run(sum, at_address(a_form, a + i * 32),
                                                       at_address(b_form, b + i * b_step),
                                                       begun || i > 0);
                wgmma_commit();
                wgmma_wait<0>();
                begun = true;
            }
            __syncwarp();
            if (t % 32 == 0) barrier_arrive(block.empty(stage.at));
            stage.advance();
        }
        if (!begun) {
#pragma unroll
            for (int i = 0; i < P::COLS / 2; ++i)
                sum[i] = 0.0f;
        }
        store_sums<T, P::COLS>(p.epilogue, sum, out_row, tile.w * P::COLS, t % 4);
        tile = next;
    }
}

template <class P, class T, operand B>
__global__ void __launch_bounds__(P::threads, 1)
    point_gemm_kernel(const __grid_constant__ point_gemm_params p)
{
    extern __shared__ char unaligned[];
    point_gemm_block<P> block;
    block.shared = unaligned + (1024 - (__cvta_generic_to_shared(unaligned) & 1023)) % 1024;
    block.base = (uint32_t)__cvta_generic_to_shared(block.shared);
    if (threadIdx.x == 0) {
        for (int s = 0; s < P::STAGES; ++s) {
            barrier_init(block.full(s), P::GROUPS * 64 + 1);
            barrier_init(block.empty(s), 4 * P::GROUPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (role < P::GROUPS) {
        if constexpr (P::moves_registers) set_registers<P::registers, P::multiply_registers>();
        point_multiply<P, T, B>(p, block, role, threadIdx.x % 128);
    } else {
        if constexpr (P::moves_registers) set_registers<P::registers, P::gather_registers>();
        point_gather<P, T, B>(p, block, __shfl_sync(~0u, threadIdx.x / 32, 0) - 4 * P::GROUPS,
                              threadIdx.x % 32);
    }
}

} // namespace spops

#endif
