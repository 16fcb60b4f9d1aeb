// SPDX-License-Identifier: Apache-2.0
// Products of rows of 8 bits: which tile, of which kernel. The columns of a tile are those that the table
// of igemm has for 16 bits.
#include "kernels/core/float8.cuh"
#include "kernels/igemm/igemm8_launch.cuh"
#include "kernels/igemm/igemm_launch.cuh"
#include "kernels/launchers.h"

namespace
{

using namespace spops;

#ifdef SPOPS_SM90A
constexpr bool have_sm90a = true;
#else
constexpr bool have_sm90a = false;
#endif

struct tile8 {
    bool sm90;
    int columns;
};

// Of a number of igemm_tuning.h.
tile8 tile_of_number(int32_t number)
{
    switch (spops_igemm_single_tile(number)) {
#define SPOPS_TILE(n, few, max, percent, columns, ...)                                             \
    case n: return {true, columns <= 64 ? 64 : columns <= 128 ? 128 : 256};
        SPOPS_IGEMM_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(n, max, columns, ...)                                                           \
    case n: return {false, columns};
        SPOPS_IGEMM_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return {false, 0};
    }
}

bool has_sm90(const spops_context *ctx)
{
    return have_sm90a && ctx->info.compute_capability == 90;
}

tile8 tile_of(const spops_context *ctx, const spops_igemm8_args *args)
{
    const spops_igemm_schedule *s = args->schedule;
    const bool sm90 = has_sm90(ctx) && is_wide(args->x);
    const spops_igemm_case at = {
        s->max_tiles,          args->out.cols, ctx->info.num_processors, sm90,
        s->records != nullptr, false,          args->whole_sums};
    const tile8 asked = tile_of_number(args->tile);
    if (asked.columns > 0 && (sm90 || !asked.sm90)) return asked;
    return tile_of_number(spops_igemm_tile(&at));
}

template <class T> spops_status launch_tile(spops_context *ctx, const spops_igemm8_args *args)
{
    const tile8 tile = tile_of(ctx, args);
#ifdef SPOPS_SM90A
    if (tile.sm90) return launch_igemm8_sm90<T>(ctx, args, tile.columns);
#endif
    return launch_igemm8_sm80<T>(ctx, args, tile.columns);
}

// Rows that are not aligned are multiplied by the kernels of sm_80 everywhere.
template <class T> spops_status prepare_tiles(spops_context *ctx)
{
    for (int columns = 64; columns <= 256; columns *= 2) {
#ifdef SPOPS_SM90A
        if (has_sm90(ctx)) SPOPS_TRY(prepare_igemm8_sm90<T>(ctx, columns));
#endif
        if (columns <= 128) SPOPS_TRY(prepare_igemm8_sm80<T>(ctx, columns));
    }
    return SPOPS_STATUS_OK;
}

} // namespace

extern "C" spops_status spops_cuda_igemm8_prepare(spops_context *ctx,
                                                  const spops_igemm8_prepare_args *)
{
    SPOPS_TRY(prepare_tiles<f8e4m3>(ctx));
    return prepare_tiles<int8_t>(ctx);
}

extern "C" spops_status spops_cuda_igemm8(spops_context *ctx, const spops_igemm8_args *args)
{
    if (args->schedule->max_tiles == 0) return SPOPS_STATUS_OK;
    if (args->x.dtype == SPOPS_DTYPE_I8) return launch_tile<int8_t>(ctx, args);
    return launch_tile<f8e4m3>(ctx, args);
}
