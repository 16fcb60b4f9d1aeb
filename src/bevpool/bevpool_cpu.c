// SPDX-License-Identifier: Apache-2.0
// The frustum of BEV pooling on the CPU: the cell and the pixel of every point. Compiled without
// contraction of a * b + c, as bev_geometry.h asks, so that the GPU finds the same cells.

#include "backends/backend_cpu.h"
#include "bevpool/bev_points.h"
#include "core/threads.h"
#include "bevpool/bev_geometry.h"

typedef struct points_work {
    const spops_bev_points_args *args;
    spops_bev_grid grid;
} points_work;

// A line is one of pixels at one depth: (image * D + d) * H + h.
static void points_of_lines(const void *work, int64_t begin, int64_t end)
{
    const points_work *w = (const points_work *)work;
    const spops_bev_points_args *args = w->args;
    const spops_bev_shape *shape = &args->shape;
    const int64_t num_depths = shape->num_depths;
    const int64_t height = shape->feature_height, width = shape->feature_width;
    const int32_t cells_per_batch = shape->num_cells_x * shape->num_cells_y * shape->num_cells_z;

    for (int64_t line = begin; line < end; ++line) {
        const int64_t h = line % height, d = line / height % num_depths;
        const int64_t image = line / height / num_depths;
        const int32_t first_cell = (int32_t)(image / shape->num_cameras) * cells_per_batch;
        const double depth =
            args->depths_m != NULL
                ? args->depths_m[d]
                : SPOPS_ADD_F64(args->depth_start_m, SPOPS_MUL_F64((double)d, args->depth_step_m));
        const double v = SPOPS_MUL_F64((double)h, args->pixel_step_v);
        const double *transform = args->transforms + image * SPOPS_BEV_TRANSFORM_DOUBLES;
        for (int64_t x = 0; x < width; ++x) {
            const double u = SPOPS_MUL_F64((double)x, args->pixel_step_u);
            const int32_t cell = spops_bev_cell(transform, u, v, depth, &w->grid);
            args->keys[line * width + x] = cell < 0 ? -1 : first_cell + cell;
            args->feat[line * width + x] = (int32_t)((image * height + h) * width + x);
        }
    }
}

spops_status spops_cpu_bev_points(spops_context *ctx, const spops_bev_points_args *args)
{
    const spops_bev_shape *shape = &args->shape;
    const int64_t num_images = (int64_t)shape->num_batches * shape->num_cameras;
    const int64_t num_lines = num_images * shape->num_depths * shape->feature_height;
    points_work work = {.args = args};

    for (int i = 0; i < 3; ++i) {
        work.grid.lower_m[i] = args->grid_lower_m[i];
        work.grid.size_m[i] = args->cell_size_m[i];
    }
    work.grid.num_cells[0] = shape->num_cells_x;
    work.grid.num_cells[1] = shape->num_cells_y;
    work.grid.num_cells[2] = shape->num_cells_z;
    spops_parallel_for(spops_team_for(ctx, num_lines * shape->feature_width), num_lines, 0,
                       points_of_lines, &work);
    return SPOPS_STATUS_OK;
}
