// SPDX-License-Identifier: Apache-2.0
/* BEV pooling in thirty lines: a camera, a plan from its geometry, and one pooling, on the CPU. */
/* clang-format off */
#include <spops/spops.h>
#include <stdio.h>

enum { D = 40, H = 4, W = 8, C = 16, X = 32, Y = 32 }; /* depth bins, features, grid */
static float depth[D * H * W], feat[H * W * C], bev[Y * X * C];

int main(void)
{
    spops_bev_camera camera = {/* 1.5 m above the ground, looking along x */
        .intrinsics = {64, 0, 64,  0, 64, 32,  0, 0, 1},                        /* px */
        .camera_to_ego = {0, 0, 1, 0,  -1, 0, 0, 0,  0, -1, 0, 1.5,  0, 0, 0, 1}, /* m */
        .image_to_input = {1, 0, 0,  0, 1, 0}};
    spops_bev_geometry geometry = {
        .struct_size = sizeof geometry,
        .shape = {.num_batches = 1, .num_cameras = 1, .num_depths = D, .feature_height = H,
                  .feature_width = W, .num_cells_x = X, .num_cells_y = Y, .num_cells_z = 1},
        .input_height = 64, .input_width = 128, /* px */
        .depth_start_m = 1.0, .depth_step_m = 0.5,
        .grid_lower_m = {0, -8, -5}, .cell_size_m = {1, 0.5, 10},
        .cameras = &camera};
    spops_context_options options = spops_context_options_default();
    spops_bevpool_args pool = spops_bevpool_args_default();
    spops_context *ctx = NULL;
    spops_bev_plan *plan = NULL;
    pool.depth = spops_matrix_dense(depth, D * H * W, 1, SPOPS_DTYPE_F32);
    pool.feat = spops_matrix_dense(feat, H * W, C, SPOPS_DTYPE_F32);
    pool.out = spops_matrix_dense(bev, Y * X, C, SPOPS_DTYPE_F32);
    for (int i = 0; i < D * H * W; ++i) depth[i] = 1.0f / D; /* your network's outputs */
    for (int i = 0; i < H * W * C; ++i) feat[i] = 1.0f;

    options.backend = SPOPS_BACKEND_CPU; /* CUDA: the same calls, with device memory */
    if (spops_context_create(&options, &ctx) ||
        spops_bev_plan_create(ctx, &geometry, NULL, &plan) || /* once */
        spops_bevpool_execute(ctx, plan, &pool))              /* for every frame */
        return fprintf(stderr, "%s\n", spops_last_error(ctx)), 1;
    /* On the CPU a call is finished when it returns. CUDA: spops_context_wait_sync(ctx) first. */
    for (int y = Y - 1; y >= 0; --y, putchar('\n'))
        for (int x = 0; x < X; ++x) putchar(bev[(y * X + x) * C] > 0 ? '#' : '.');
    spops_bev_plan_destroy(plan);
    spops_context_destroy(ctx);
    return 0;
}
