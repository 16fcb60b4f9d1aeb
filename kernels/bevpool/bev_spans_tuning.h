// SPDX-License-Identifier: Apache-2.0
// Which blocks pool and differentiate over spans, and which of them a plan's rows take. Plain C. No
// row asks for the regime: a wedge's block loads everything once, wherever it lies.
#ifndef SPOPS_KERNELS_BEVPOOL_BEV_SPANS_TUNING_H
#define SPOPS_KERNELS_BEVPOOL_BEV_SPANS_TUNING_H

#include "kernels/core/tuning.h"

// ---- Pooling ------------------------------------------------------------------------------------

#define SPOPS_BEV_POOL_VARIANTS(X) /* variant, columns and warps of a block */                     \
    X(1, 64, 8)                                                                                    \
    X(2, 64, 5)                                                                                    \
    X(3, 80, 8)                                                                                    \
    X(4, 80, 5)                                                                                    \
    X(5, 128, 8)                                                                                   \
    X(6, 128, 12)

enum { SPOPS_BEV_POOL_NUM_VARIANTS = 6 };

// Columns of blocks, ascending.
enum { SPOPS_BEV_POOL_WIDTHS = 3 };
static const int32_t spops_bev_pool_widths[SPOPS_BEV_POOL_WIDTHS] = {64, 80, 128};

// What a choice is made for.
typedef struct spops_bev_pool_case {
    int32_t compute_capability;
    int32_t num_processors, processor_shared_bytes;
    int32_t num_wedges;
    int32_t block_bytes[SPOPS_BEV_POOL_WIDTHS]; // shared memory, for the largest wedge
    int64_t cols;
} spops_bev_pool_case;

typedef struct spops_bev_pool_row {
    int32_t min_compute_capability;
    int32_t width;            // columns of a block
    int32_t min_fit, max_fit; // such blocks that a multiprocessor has shared memory for
    int32_t above_blocks;     // of the launch: more than so many a multiprocessor; -1: any number
    int32_t variant;
} spops_bev_pool_row;

static const spops_bev_pool_row spops_bev_pool_rows[] = {
    // Two blocks do not fit: one with more warps. H200, all of 8 bits, C = 256, maps B: 18.2 and
    // 32.0 us; 8 warps: 19.8 and 35.2.
    {80, 128, 0, 1, -1, 6},
    {0, 128, 0, INT32_MAX, -1, 5},
    // Four fit, and two would leave blocks that begin to load when others have ended. H200, f16,
    // C = 80, eight maps A: 13.9 us, cold 18.2; 8 warps: 14.9 and 19.4.
    {80, 80, 4, INT32_MAX, 2, 4},
    {0, 80, 0, INT32_MAX, -1, 3},
    {80, 64, 4, INT32_MAX, 2, 2},
    {0, 64, 0, INT32_MAX, -1, 1},
};

// Blocks that share a wedge's columns.
static inline int64_t spops_bev_pool_rounds(int64_t cols, int32_t width)
{
    return (cols + width - 1) / width;
}

// The widest block that has the fewest columns to spare, as an index of spops_bev_pool_widths.
static inline int spops_bev_pool_width(int64_t cols)
{
    const int64_t with_64 = spops_bev_pool_rounds(cols, 64) * 64;
    if (spops_bev_pool_rounds(cols, 80) * 80 < with_64) return 1;
    return spops_bev_pool_rounds(cols, 128) * 128 <= with_64 ? 2 : 0;
}

// Shared memory that a multiprocessor can give each of so many blocks; a kilobyte of a block's is
// the driver's.
static inline int32_t spops_bev_pool_share(int32_t processor_shared_bytes, int32_t blocks)
{
    return processor_shared_bytes / blocks - (1 << 10);
}

static inline int32_t spops_bev_pool_fit(int32_t processor_shared_bytes, int32_t block_bytes)
{
    int32_t blocks = 0;
    while (blocks < 4 && block_bytes <= spops_bev_pool_share(processor_shared_bytes, blocks + 1))
        ++blocks;
    return blocks;
}

static inline int32_t spops_bev_pool_variant(const spops_bev_pool_case *at)
{
    const int index = spops_bev_pool_width(at->cols);
    const int32_t width = spops_bev_pool_widths[index];
    const int32_t fit = spops_bev_pool_fit(at->processor_shared_bytes, at->block_bytes[index]);
    const int64_t blocks = (int64_t)at->num_wedges * spops_bev_pool_rounds(at->cols, width);
    const spops_bev_pool_row *row = spops_bev_pool_rows;
    while (at->compute_capability < row->min_compute_capability || row->width != width ||
           fit < row->min_fit || fit > row->max_fit ||
           blocks <= (int64_t)row->above_blocks * at->num_processors)
        ++row;
    return row->variant;
}

static inline int32_t spops_bev_pool_variant_width(int32_t variant)
{
#define X(number, columns, warps)                                                                  \
    if (variant == (number)) return columns;
    SPOPS_BEV_POOL_VARIANTS(X)
#undef X
    return 0;
}

// Whether a variant that was asked for pools such rows: blocks of 80 columns do not end where
// shared parts do, but where they waste the least.
static inline bool spops_bev_pool_accepts(int32_t variant, int64_t cols)
{
    const int32_t width = spops_bev_pool_variant_width(variant);
    return width != 0 && (width != 80 || spops_bev_pool_widths[spops_bev_pool_width(cols)] == 80);
}

// ---- Gradients ----------------------------------------------------------------------------------

// Groups of 16 columns as compiled: the least that serve.
#define SPOPS_BEV_GRAD_GROUPS(X) X(2) X(5) X(8) X(16)

typedef struct spops_bev_grad_row {
    int32_t min_compute_capability;
    int32_t max_cols;
    int32_t groups;
} spops_bev_grad_row;

static const spops_bev_grad_row spops_bev_grad_rows[] = {
    // Sums of groups that no column is in cost as much as others, so the fewest are taken: a rule,
    // not a measurement of each.
    {0, 32, 2},
    {0, 80, 5},
    {0, 128, 8},
    {0, INT32_MAX, 16},
};

static inline int32_t spops_bev_grad_groups(int32_t compute_capability, int32_t cols)
{
    const spops_bev_grad_row *row = spops_bev_grad_rows;
    while (compute_capability < row->min_compute_capability || cols > row->max_cols)
        ++row;
    return row->groups;
}

#endif
