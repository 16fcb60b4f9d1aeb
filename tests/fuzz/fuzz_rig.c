// SPDX-License-Identifier: Apache-2.0
// Fuzzes the rig reader, and the planning from whatever rig it accepts.
#include "fuzz.h"
#include "tools/rig_json.h"

static void plan_from(const rig *r)
{
    const int num_cameras = r->num_cameras < 8 ? r->num_cameras : 8;
    char error[RIG_ERROR_BYTES];
    spops_bev_camera cameras[8];
    spops_bev_geometry geometry;
    fuzz_memory memory;
    spops_bev_plan *plan = NULL;
    if (num_cameras < 1) return;
    memset(&geometry, 0, sizeof geometry);
    for (int i = 0; i < num_cameras; ++i) {
        memcpy(cameras[i].intrinsics, r->cameras[i].intrinsics, sizeof cameras[i].intrinsics);
        if (!rig_camera_to(r, i, rig_best_ego_frame(r), cameras[i].camera_to_ego, error,
                           sizeof error))
            return;
        spops_bev_camera_set_resize_crop(&cameras[i], 0.25, 0.0, 8.0);
    }
    geometry.struct_size = sizeof geometry;
    geometry.shape.num_batches = 1;
    geometry.shape.num_cameras = num_cameras;
    geometry.shape.num_depths = 6;
    geometry.shape.feature_height = 3;
    geometry.shape.feature_width = 5;
    geometry.shape.num_cells_x = geometry.shape.num_cells_y = 16;
    geometry.shape.num_cells_z = 2;
    geometry.input_height = 48;
    geometry.input_width = 80;
    geometry.depth_start_m = 1.0;
    geometry.depth_step_m = 8.0;
    for (int i = 0; i < 3; ++i) {
        geometry.grid_lower_m[i] = i < 2 ? -48.0 : -5.0;
        geometry.cell_size_m[i] = i < 2 ? 6.0 : 4.0;
    }
    geometry.cameras = cameras;

    spops_context *ctx = fuzz_context_create(&memory, 1);
    const spops_status status = spops_bev_plan_create(ctx, &geometry, NULL, &plan);
    // A calibration may be singular; everything else about this geometry is right.
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_INVALID_ARGUMENT, "%s: %s",
                 spops_status_name(status), spops_last_error(ctx));
    if (plan != NULL) fuzz_run_bev_plan(ctx, plan);
    spops_bev_plan_destroy(plan);
    fuzz_context_destroy(ctx, &memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes > 0 ? bytes : 1);
    char error[RIG_ERROR_BYTES] = "";
    rig r;
    FUZZ_REQUIRE(text != NULL, "no memory for %zu bytes", bytes);
    if (bytes > 0) memcpy(text, data, bytes);
    if (rig_parse(text, bytes, &r, error, sizeof error))
        plan_from(&r);
    else
        FUZZ_REQUIRE(error[0] != 0, "refused without a message");
    rig_free(&r);
    free(text);
    return 0;
}
