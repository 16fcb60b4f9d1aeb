// SPDX-License-Identifier: Apache-2.0
// From a camera rig to keys: the grid cell and the feature pixel of every frustum point.
#include "kernels/core/launch.cuh"
#include "bevpool/bev_points.h"
#include "bevpool/bev_geometry.h"
#include "spops/device/grid_dependency.cuh"

namespace
{

constexpr int threads = 256;

struct bev_points_params {
    spops_bev_points_args args;
    spops_bev_grid grid;
};

// Block x covers pixels of a feature map, block y planes (b, n, d) of the frustum.
__global__ void __launch_bounds__(threads)
    bev_points_kernel(const __grid_constant__ bev_points_params p)
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const spops_bev_points_args &a = p.args;
    const spops_bev_shape &s = a.shape;
    const int32_t pixels = s.feature_height * s.feature_width;
    const int32_t pixel = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (pixel >= pixels) return;
    const int32_t h = pixel / s.feature_width, w = pixel - h * s.feature_width;
    const double u = spops_bev_pixel(w, a.pixel_step_u);
    const double v = spops_bev_pixel(h, a.pixel_step_v);
    const int64_t planes = (int64_t)s.num_batches * s.num_cameras * s.num_depths;
    for (int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y) {
        const int32_t camera = (int32_t)(plane / s.num_depths); // b * N + n
        const int32_t d = (int32_t)(plane - (int64_t)camera * s.num_depths);
        const double depth = a.depths_m != nullptr
                                 ? a.depths_m[d]
                                 : spops_bev_depth(d, a.depth_start_m, a.depth_step_m);
        int32_t cell = spops_bev_cell(a.transforms + (int64_t)camera * SPOPS_BEV_TRANSFORM_DOUBLES,
                                      u, v, depth, &p.grid);
        if (cell >= 0)
            cell += camera / s.num_cameras * (s.num_cells_x * s.num_cells_y * s.num_cells_z);
        const int64_t point = plane * pixels + pixel;
        a.keys[point] = cell;
        a.feat[point] = camera * pixels + pixel;
    }
}

} // namespace

extern "C" spops_status spops_cuda_bev_points(spops_context *ctx, const spops_bev_points_args *args)
{
    const spops_bev_shape &s = args->shape;
    const int64_t pixels = (int64_t)s.feature_height * s.feature_width;
    const int64_t planes = (int64_t)s.num_batches * s.num_cameras * s.num_depths;
    if (pixels == 0 || planes == 0) return SPOPS_STATUS_OK;
    bev_points_params p = {};
    p.args = *args;
    for (int i = 0; i < 3; ++i) {
        p.grid.lower_m[i] = args->grid_lower_m[i];
        p.grid.size_m[i] = args->cell_size_m[i];
    }
    p.grid.num_cells[0] = s.num_cells_x;
    p.grid.num_cells[1] = s.num_cells_y;
    p.grid.num_cells[2] = s.num_cells_z;
    const dim3 grid((unsigned)((pixels + threads - 1) / threads),
                    (unsigned)(planes < 65535 ? planes : 65535));
    return spops::launch<spops::WAITS_FOR_PREVIOUS>(ctx, "bev_points: launch", bev_points_kernel,
                                                    grid, threads, p);
}
