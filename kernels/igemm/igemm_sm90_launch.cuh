// SPDX-License-Identifier: Apache-2.0
// Launching igemm_sm90_kernel: its arguments and tiles. Only sources compiled for compute_90a may
// include this.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_SM90_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_SM90_LAUNCH_CUH

#include "kernels/igemm/igemm_boxes.cuh"
#include "kernels/igemm/igemm_sm90.cuh"

namespace spops
{

// Tiles are shared by blocks up to so many percent of the blocks; tiles of few stages up to fewer, because a share costs
// each the same. No share has less work than so many stages,
// because its sums go to L2 and back; and the epilogue of a tile takes the time of some.
constexpr int shared_percent = 200, few_stages = 32, shared_percent_of_few = 130;
constexpr int least_stages = 8, tile_stages = 8;

// What a kernel is told; how many blocks there may be, and how many have work at most.
template <class P, operand B>
spops_status fill_sm90_params(spops_context *ctx, const spops_igemm_args *args,
                              const weight_form &f, igemm_sm90_params &p, int64_t &blocks,
                              int64_t &most)
{
    static_assert(P::rows % SPOPS_IGEMM_TILE_ROWS == 0, "schedules have tiles of one size");
    const int row_bytes = f.depth * f.bytes;
    const bool gathers = args->schedule->records != nullptr; // else rows of groups
    p.gathered = static_cast<const unsigned char *>(args->x.data);
    p.row_stride = (uint32_t)(args->x.row_stride * f.bytes);
    p.row_bytes = row_bytes;
    p.record_bytes = gathers && !P::ADDS && row_bytes <= 64 ? 64 : 128;
    p.row_stages = (row_bytes + 127) / 128;
    p.tiles = reinterpret_cast<const int4 *>(args->schedule->tiles);
    p.num_tiles = args->schedule->num_tiles;
    p.max_tiles = (int)args->schedule->max_tiles;
    p.num_rows = args->num_rows;
    p.rows = (int)args->x.rows;
    p.records = args->schedule->records;
    p.first = args->schedule->first;
    p.out_rows = args->schedule->out_rows;
    p.sums = reinterpret_cast<const int4 *>(args->schedule->sums);
    p.members = args->schedule->members;
    p.last_tap = args->mirrored ? f.taps - 1 : -1;
    p.col_tiles = (f.cols + P::COLS - 1) / P::COLS;
    p.tickets = args->tickets;
    p.epilogue = epilogue_of(args);
    p.early = args->reads_ahead && gathers && !P::ADDS && !f.copied;
    p.keeps_numbers =
        !P::ADDS && p.col_tiles == 1 &&
        (p.epilogue.bias != nullptr || p.epilogue.scale != nullptr || p.epilogue.shift != nullptr);

    const int record_numbers = p.record_bytes / f.bytes;
    SPOPS_TRY(encode_tensor_map(
        ctx, box_of_weights<B>(args, f, record_numbers, P::COLS, P::line_cols), &p.w));
    if (!gathers)
        SPOPS_TRY(encode_tensor_map(
            ctx, box_of_rows(args->x, 128 / f.bytes, SPOPS_IGEMM_GROUP_ROWS), &p.x));

    blocks = (int64_t)ctx->info.num_processors * P::BLOCKS;
    most = args->schedule->max_tiles * p.col_tiles;
    if (P::SHARES && gathers && !args->whole_sums && p.col_tiles <= blocks) {
        p.least_share = (least_stages + p.row_stages - 1) / p.row_stages;
        p.tile_cost = (tile_stages + p.row_stages - 1) / p.row_stages;
        p.shares = (int)(blocks / p.col_tiles);
        const int percent =
            p.row_stages * f.taps <= few_stages ? shared_percent_of_few : shared_percent;
        p.max_shared_tiles = (int)(blocks * percent / 100 / p.col_tiles);
        p.partials = reinterpret_cast<float *>(static_cast<char *>(args->scratch) +
                                               (f.copied ? weight_copy_bytes(f) : 0));
        const int64_t work = args->schedule->max_records + args->schedule->max_tiles * p.tile_cost;
        most = (work + p.least_share - 1) / p.least_share * p.col_tiles;
    }
    return SPOPS_STATUS_OK;
}

template <class P, class T, operand B>
spops_status launch_policy(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    igemm_sm90_params p = {};
    int64_t blocks = 0, most = 0;
    SPOPS_TRY((fill_sm90_params<P, B>(ctx, args, f, p, blocks, most)));
    if (blocks > most) blocks = most;
    return launch_preparing<WAITS_FOR_PREVIOUS>(ctx, "igemm: launch", igemm_sm90_kernel<P, T, B>,
                                                dim3((unsigned)blocks), (unsigned)P::threads,
                                                (size_t)P::shared_bytes, p);
}

// Of a row of the table.
template <int COLS, int GATHER_WARPS, int STAGES, int BLOCKS, int BATCH>
using igemm_policy = igemm_sm90_policy<COLS, 2, GATHER_WARPS, STAGES, BLOCKS, BATCH>;

template <class T, operand B>
spops_status launch_form(spops_context *ctx, const spops_igemm_args *args, const weight_form &f,
                         int32_t tile)
{
    switch (tile) {
#define SPOPS_TILE(number, where, max, percent, ...)                                               \
    case number: return launch_policy<igemm_policy<__VA_ARGS__>, T, B>(ctx, args, f);
        SPOPS_IGEMM_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return no_igemm_tile(ctx, tile);
    }
}

template <class T>
spops_status launch_igemm_sm90(spops_context *ctx, const spops_igemm_args *args,
                               const weight_form &f, int32_t tile)
{
    if constexpr (sizeof(T) == 2) // tf32 products have k along all lines
        if (!f.along_k) return launch_form<T, ACROSS_K>(ctx, args, f, tile);
    return launch_form<T, ALONG_K>(ctx, args, f, tile);
}

template <class P, class T> spops_status prepare_policy(spops_context *ctx)
{
    if constexpr (sizeof(T) == 2)
        SPOPS_TRY(prepare_shared(ctx, "igemm: prepare", igemm_sm90_kernel<P, T, ACROSS_K>));
    return prepare_shared(ctx, "igemm: prepare", igemm_sm90_kernel<P, T, ALONG_K>);
}

template <class T> spops_status prepare_igemm_sm90(spops_context *ctx, bool adds, int32_t forced)
{
#define SPOPS_TILE(number, where, max, percent, ...)                                               \
    if (igemm_policy<__VA_ARGS__>::ADDS == adds && spops_igemm_leaves(forced, number))             \
        SPOPS_TRY((prepare_policy<igemm_policy<__VA_ARGS__>, T>(ctx)));
    SPOPS_IGEMM_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return SPOPS_STATUS_OK;
}

} // namespace spops

#endif
