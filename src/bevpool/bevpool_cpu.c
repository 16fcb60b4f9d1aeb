// The frustum of BEV pooling on the CPU: the cell and the pixel of every point. Compiled without
// contraction of a * b + c, as bev_geometry.h asks, so that the GPU finds the same cells.

#include "backends/backend_cpu.h"
#include "bevpool/bev_points.h"
#include "core/threads.h"
#include "bevpool/bev_geometry.h"

spops_status spops_cpu_bev_points(spops_context *ctx, const spops_bev_points_args *args)
{
    const spops_bev_shape *shape = &args->shape;
    const int64_t num_depths = shape->num_depths;
    const int64_t height = shape->feature_height, width = shape->feature_width;
    const int64_t num_images = (int64_t)shape->num_batches * shape->num_cameras;
    const int32_t cells_per_batch = shape->num_cells_x * shape->num_cells_y * shape->num_cells_z;
    const int64_t num_lines = num_images * num_depths * height; // of pixels at one depth
    const int num_threads = spops_threads_for(ctx->num_threads, num_lines * width);
    spops_bev_grid grid;

    for (int i = 0; i < 3; ++i) {
        grid.lower_m[i] = args->grid_lower_m[i];
        grid.size_m[i] = args->cell_size_m[i];
    }
    grid.num_cells[0] = shape->num_cells_x;
    grid.num_cells[1] = shape->num_cells_y;
    grid.num_cells[2] = shape->num_cells_z;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(static)
    for (int64_t line = 0; line < num_lines; ++line) {
        // line = (image * D + d) * H + h
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
            const int32_t cell = spops_bev_cell(transform, u, v, depth, &grid);
            args->keys[line * width + x] = cell < 0 ? -1 : first_cell + cell;
            args->feat[line * width + x] = (int32_t)((image * height + h) * width + x);
        }
    }
    return SPOPS_STATUS_OK;
}
