// SPDX-License-Identifier: Apache-2.0
/*
 * From a frustum point to its grid cell, written once for the CPU and the GPU. All arithmetic is
 * f64 with one rounding per operation (no fused multiply-add on either side), so that both backends
 * put every point into the same cell.
 */
#ifndef SPOPS_BEVPOOL_BEV_GEOMETRY_H
#define SPOPS_BEVPOOL_BEV_GEOMETRY_H

#include "core/exact_f64.h"

typedef struct spops_bev_grid {
    double lower_m[3];
    double size_m[3];
    int32_t num_cells[3]; /* x, y, z */
} spops_bev_grid;

/* Input px of feature pixel i, and depth of bin d. */
SPOPS_HD double spops_bev_pixel(int32_t i, double step)
{
    return SPOPS_MUL_F64((double)i, step);
}
SPOPS_HD double spops_bev_depth(int32_t d, double start_m, double step_m)
{
    return SPOPS_ADD_F64(start_m, SPOPS_MUL_F64((double)d, step_m));
}

/*
 * Cell (z * Y + y) * X + x of the point T (u d, v d, d, 1), or -1 outside the grid or when a
 * coordinate is not finite. T is a row-major 3x4 matrix.
 */
SPOPS_HD int32_t spops_bev_cell(const double *t, double u, double v, double d,
                                const spops_bev_grid *grid)
{
    const double ud = SPOPS_MUL_F64(u, d), vd = SPOPS_MUL_F64(v, d);
    int32_t cell[3];
    for (int i = 0; i < 3; ++i) {
        const double *row = t + 4 * i;
        const double sum = SPOPS_ADD_F64(SPOPS_MUL_F64(row[0], ud), SPOPS_MUL_F64(row[1], vd));
        const double p = SPOPS_ADD_F64(SPOPS_ADD_F64(sum, SPOPS_MUL_F64(row[2], d)), row[3]);
        const double x = SPOPS_ADD_F64(p, -grid->lower_m[i]) / grid->size_m[i];
        /* x in [0, n) if and only if floor(x) is a cell; false for NaN. */
        if (!(x >= 0.0 && x < (double)grid->num_cells[i])) return -1;
        cell[i] = (int32_t)x;
    }
    return (cell[2] * grid->num_cells[1] + cell[1]) * grid->num_cells[0] + cell[0];
}

#endif
