#include "tools/settings.h"

#include <stdio.h>
#include <string.h>

// a, b and c are what BEVDet and BEVFusion ship. Those with a number are sized so that the shipped
// rig has about that many points in the grid (104,927, 209,066, 573,075 and 1,292,343), as the
// configurations that BEVPoolV3 was published with.
// clang-format off
// name, what, feature height, width, depths, first m, step m, cells x, y, lower m, cell m, lidar frame, batches
static const bev_setting settings[] = {
    {"a", "16 x 44 features, 59 depths of 1 m, 128 x 128 cells of 0.8 m",
     16, 44, 59, 1.0, 1.0, 128, 128, {-51.2, -51.2, -5.0}, {0.8, 0.8, 8.0}, false, 1},
    {"b", "32 x 88 features, 118 depths of 0.5 m, 360 x 360 cells of 0.3 m",
     32, 88, 118, 1.0, 0.5, 360, 360, {-54.0, -54.0, -10.0}, {0.3, 0.3, 20.0}, true, 1},
    {"c", "16 x 44 features, 118 depths of 0.5 m, 200 x 200 cells of 0.512 m",
     16, 44, 118, 1.0, 0.5, 200, 200, {-51.2, -51.2, -10.0}, {0.512, 0.512, 20.0}, false, 1},
    {"a8", "8 of a: 16 x 44 features, 59 depths of 1 m, 128 x 128 cells of 0.8 m",
     16, 44, 59, 1.0, 1.0, 128, 128, {-51.2, -51.2, -5.0}, {0.8, 0.8, 8.0}, false, 8},
    {"105k", "16 x 44 features, 30 depths of 2 m, 128 x 128 cells of 0.85 m",
     16, 44, 30, 1.0, 2.0, 128, 128, {-54.4, -54.4, -10.0}, {0.85, 0.85, 20.0}, false, 1},
    {"209k", "16 x 44 features, 59 depths of 1 m, 200 x 200 cells of 0.55 m",
     16, 44, 59, 1.0, 1.0, 200, 200, {-55.0, -55.0, -10.0}, {0.55, 0.55, 20.0}, false, 1},
    {"572k", "32 x 88 features, 44 depths of 1.5 m, 200 x 200 cells of 0.55 m",
     32, 88, 44, 1.0, 1.5, 200, 200, {-55.0, -55.0, -10.0}, {0.55, 0.55, 20.0}, false, 1},
    {"1280k", "32 x 88 features, 118 depths of 0.5 m, 360 x 360 cells of 0.3 m, 9 m high",
     32, 88, 118, 1.0, 0.5, 360, 360, {-54.0, -54.0, -5.0}, {0.3, 0.3, 9.0}, false, 1},
};
// clang-format on

const bev_setting *setting_find(const char *name)
{
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i)
        if (strcmp(settings[i].name, name) == 0) return &settings[i];
    return NULL;
}

int setting_num_cameras(const bev_setting *setting, const rig *r)
{
    return setting->num_batches * r->num_cameras;
}

bool setting_geometry(const bev_setting *setting, const rig *r, rig_frame frame,
                      spops_bev_camera *cameras, spops_bev_geometry *geometry, char *error,
                      size_t error_bytes)
{
    for (int i = 0; i < r->num_cameras; ++i) {
        memcpy(cameras[i].intrinsics, r->cameras[i].intrinsics, sizeof cameras[i].intrinsics);
        if (!rig_camera_to(r, i, frame, cameras[i].camera_to_ego, error, error_bytes)) return false;
        spops_bev_camera_set_resize_crop(&cameras[i], SETTING_SCALE, SETTING_CROP_X,
                                         SETTING_CROP_Y);
    }
    for (int i = r->num_cameras; i < setting_num_cameras(setting, r); ++i)
        cameras[i] = cameras[i - r->num_cameras];
    memset(geometry, 0, sizeof *geometry);
    geometry->struct_size = sizeof *geometry;
    geometry->shape.num_batches = setting->num_batches;
    geometry->shape.num_cameras = r->num_cameras;
    geometry->shape.num_depths = setting->num_depths;
    geometry->shape.feature_height = setting->feature_height;
    geometry->shape.feature_width = setting->feature_width;
    geometry->shape.num_cells_x = setting->num_cells_x;
    geometry->shape.num_cells_y = setting->num_cells_y;
    geometry->shape.num_cells_z = 1;
    geometry->input_height = SETTING_INPUT_HEIGHT;
    geometry->input_width = SETTING_INPUT_WIDTH;
    geometry->depth_start_m = setting->depth_start_m;
    geometry->depth_step_m = setting->depth_step_m;
    memcpy(geometry->grid_lower_m, setting->lower_m, sizeof setting->lower_m);
    memcpy(geometry->cell_size_m, setting->cell_size_m, sizeof setting->cell_size_m);
    geometry->cameras = cameras;
    return true;
}
