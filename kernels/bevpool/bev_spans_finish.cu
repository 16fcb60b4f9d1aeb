// SPDX-License-Identifier: Apache-2.0
// The second launch of pooling over spans: cells without a point are cleared, and the parts of
// shared cells added up, in order.
#include <algorithm>

#include "kernels/bevpool/bev_spans_layout.cuh"
#include "kernels/core/float8.cuh"
#include "spops/device/grid_dependency.cuh"

namespace spops::pool
{

namespace
{

constexpr int finish_threads = 256;

struct finish_params {
    const spops_bev_shared_cell *shared_cells;
    int32_t num_shared_cells;
    int32_t block_cells;    // shared cells of a block
    uint32_t items_inverse; // threads of a shared cell: tid / threads by a multiplication
    int32_t clear_blocks;   // before those of shared cells
    const uint32_t *covered;
    int64_t num_cells;
    const float *parts;
    int32_t part_cols, cols;
    int32_t pool_cols; // of a block that pools
    int32_t items;     // groups of four columns in a part
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    const float *feat_scale, *depth_scale, *out_scale;
};

// Rows of cells that no span is in: 32 cells a warp, 16 bytes a lane.
__device__ void clear_cells(const finish_params &p, int32_t block)
{
    __shared__ int32_t empty_cells[finish_threads];
    const int lane = (int)(threadIdx.x % warp);
    const int64_t word = (int64_t)block * (finish_threads / warp) + threadIdx.x / warp;
    const int64_t cell = word * 32 + lane;
    const bool clears = cell < p.num_cells && !(__ldg(p.covered + word) >> lane & 1u);
    const uint32_t empty = __ballot_sync(whole_warp, clears);
    int32_t *cells = empty_cells + threadIdx.x / warp * warp;
    if (clears) cells[__popc(empty & ((1u << lane) - 1))] = lane;
    __syncwarp();
    const int32_t bytes = p.out_dtype == SPOPS_DTYPE_F32                                      ? 4
                          : p.out_dtype == SPOPS_DTYPE_F16 || p.out_dtype == SPOPS_DTYPE_BF16 ? 2
                                                                                              : 1;
    const int32_t row_pieces = p.cols * bytes / 16, pieces = __popc(empty) * row_pieces;
    const bool exact = row_pieces < 1 << 15; // an f32 tells rows apart
    const float each = 1.0f / (float)row_pieces;
    uint8_t *rows = p.out + word * 32 * p.out_stride;
    for (int32_t i = lane; i < pieces; i += warp) {
        const int32_t row = exact ? (int32_t)(((float)i + 0.5f) * each) : i / row_pieces;
        uint8_t *to = rows + cells[row] * p.out_stride + (i - row * row_pieces) * 16;
        *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void store_shared_cell(const finish_params &p, uint8_t *row, int at,
                                                  const float4 &v)
{
    const float values[4] = {v.x, v.y, v.z, v.w};
    store_row<true>(p.out_dtype, row, at, 4, values);
}

__device__ __forceinline__ void add_parts(float4 &total, const float4 &v)
{
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
}

__global__ void __launch_bounds__(finish_threads)
    finish_kernel(const __grid_constant__ finish_params p)
{
    grid_launch_dependents();
    if ((int32_t)blockIdx.x < p.clear_blocks) {
        // Every kernel before the one that pools has ended: that one waited before it released this
        // one.
        clear_cells(p, (int32_t)blockIdx.x);
        grid_dependency_wait(); // whoever waits for this kernel waits for that one too
        return;
    }
    // A thread adds up four columns of a cell; of wide rows, every so many.
    const int32_t sub = (int32_t)(threadIdx.x * p.items_inverse >> 16);
    const int32_t m = ((int32_t)blockIdx.x - p.clear_blocks) * p.block_cells + sub;
    const bool there = sub < p.block_cells && m < p.num_shared_cells;
    int32_t cell = 0, first = 0, count = 0;
    if (there) {
        cell = __ldg(&p.shared_cells[m].cell);
        first = __ldg(&p.shared_cells[m].first_part);
        count = __ldg(&p.shared_cells[m + 1].first_part) - first;
    }
    const int32_t ahead = p.part_cols / 4;
    const float4 *row = reinterpret_cast<const float4 *>(p.parts) + (int64_t)first * ahead;
    uint8_t *out = p.out + (int64_t)cell * p.out_stride;
    // What was there before the kernel that pools may be read, as the cells may be cleared.
    const float scale = load_scales(p.feat_scale, p.depth_scale, p.out_scale).product();
    grid_dependency_wait();
    if (!there) return;
    const int32_t sub_threads = min(p.items, finish_threads);
    for (int32_t item = (int32_t)threadIdx.x - sub * sub_threads; item < p.items;
         item += finish_threads) {
        const float4 *part = row + item;
        const float4 none = make_float4(0, 0, 0, 0);
        float4 total = __ldcg(part), v[3];
        v[0] = __ldcg(part + ahead); // a shared cell has two parts at least
        v[1] = count > 2 ? __ldcg(part + 2 * ahead) : none;
        v[2] = count > 3 ? __ldcg(part + 3 * ahead) : none;
#pragma unroll
        for (int k = 0; k < 3; ++k)
            add_parts(total, v[k]);
        for (int32_t k = 4; k < count; ++k)
            add_parts(total, __ldcg(part + (int64_t)k * ahead));
        total.x *= scale, total.y *= scale, total.z *= scale, total.w *= scale;
        const int32_t at = channel_of_item(item, p.pool_cols);
        if (at < p.cols) store_shared_cell(p, out, at, total);
    }
}

} // namespace

spops_status finish_cells(spops_context *ctx, const spops_bev_spans_pool_args *args,
                          const pool_params &pool)
{
    const spops_bev_spans &s = *args->spans;
    finish_params p = {};
    p.shared_cells = s.shared_cells;
    p.num_shared_cells = s.host_counts.num_shared_cells;
    p.part_cols = (int32_t)pool.part_cols;
    p.pool_cols = spops_bev_pool_variant_width(args->variant);
    p.items = std::min(p.part_cols,
                       (int32_t)spops_bev_pool_rounds(pool.cols, p.pool_cols) * p.pool_cols) /
              4;
    const int32_t items = std::min(p.items, finish_threads);
    p.block_cells = finish_threads / items;
    p.items_inverse = (uint32_t)((65536 + items - 1) / items);
    const int32_t shared_blocks = (p.num_shared_cells + p.block_cells - 1) / p.block_cells;
    p.clear_blocks = (int32_t)blocks_for(args->num_cells, finish_threads).x;
    p.covered = s.covered;
    p.num_cells = args->num_cells;
    p.parts = pool.parts;
    p.cols = pool.cols;
    p.out = pool.out;
    p.out_stride = pool.out_stride;
    p.out_dtype = pool.out_dtype;
    p.feat_scale = pool.feat_scale;
    p.depth_scale = pool.depth_scale;
    p.out_scale = pool.out_scale;
    const dim3 blocks((unsigned)(p.clear_blocks + shared_blocks));
    // It clears before it waits, which only the kernel that pools makes safe.
    if (s.host_counts.num_wedges == 0)
        return launch(ctx, "bev_spans: finish", finish_kernel, blocks, finish_threads, p);
    return launch<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: finish", finish_kernel, blocks,
                                      finish_threads, p);
}

} // namespace spops::pool
