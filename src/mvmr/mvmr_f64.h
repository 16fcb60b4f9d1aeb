// SPDX-License-Identifier: Apache-2.0
// MVMR and VVOR of rows of f64 on the CPU: plain loops, summed in f64, in the order of mvmr_cpu.c.
#ifndef SPOPS_MVMR_MVMR_F64_H
#define SPOPS_MVMR_MVMR_F64_H

#include "core/threads.h"
#include "mvmr/mvmr.h"

#define SPOPS_MVMR_PANEL_F64 32 // columns of sums

// Columns col .. col + cols - 1 of a result, at most a panel, all of group `group`.
typedef struct spops_f64_panel {
    int64_t col, cols, group;
} spops_f64_panel;

// sums[r] [SPOPS_MVMR_PANEL_F64] of the rows of a tile, which are zeroed first.
void spops_mvmr_sums_f64(const spops_mvmr_args *args, int64_t tile, spops_f64_panel panel,
                         double *sums);
// grad_s of every triplet of a tile.
void spops_mvmr_dots_f64(const spops_mvmr_args *args, int64_t tile);
void spops_vvor_f64(spops_team team, const spops_vvor_args *args);

#endif
