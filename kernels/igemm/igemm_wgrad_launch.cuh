// SPDX-License-Identifier: Apache-2.0
// The gradients of the matrices of taps on sm_90a, for the launcher in igemm_wgrad.cu.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_WGRAD_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_WGRAD_LAUNCH_CUH

#include "igemm/igemm_args.h"
#include "kernels/igemm/igemm_tuning.h"

namespace spops
{

// The tile of gradients that was asked for, or that of the table.
inline int32_t igemm_wgrad_tile_of(const spops_igemm_wgrad_args *args)
{
    return spops_igemm_is_gradient(args->tile)
               ? args->tile
               : spops_igemm_wgrad_tile(args->units != nullptr, args->x.cols, args->g.cols);
}

// Tiles of channels of x and of g, each a row of blocks.
inline int64_t igemm_wgrad_tiles(const spops_igemm_wgrad_args *args)
{
    switch (igemm_wgrad_tile_of(args)) {
#define SPOPS_TILE(number, units, max_x, max_g, columns, groups, ...)                              \
    case number:                                                                                   \
        return ((args->x.cols + 64 * groups - 1) / (64 * groups)) *                                \
               ((args->g.cols + columns - 1) / columns);
        SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return 0;
    }
}

spops_status launch_igemm_wgrad_sm90(spops_context *ctx, const spops_igemm_wgrad_args *args);

// Where the rows of a product come from: lists of pairs, units, or both matrices in order.
enum wgrad_source { PAIRS, UNITS, ROWS };

// All tiles that a plan may run, of one source.
spops_status prepare_igemm_wgrad_sm90(spops_context *ctx, wgrad_source source, int32_t forced);

// For up to so many channels of x and g.
size_t igemm_wgrad_sm90_scratch_bytes(const spops_context *ctx, int num_taps, int64_t max_rows,
                                      int64_t max_cols, int32_t forced);

} // namespace spops

#endif
