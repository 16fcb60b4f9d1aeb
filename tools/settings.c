#include "tools/settings.h"

#include <stdio.h>
#include <string.h>

static const bev_setting settings[] = {
    {"a",
     "16 x 44 features, 59 depths of 1 m, 128 x 128 cells of 0.8 m",
     16,
     44,
     59,
     1.0,
     1.0,
     128,
     128,
     {-51.2, -51.2, -5.0},
     {0.8, 0.8, 8.0},
     false},
    {"b",
     "32 x 88 features, 118 depths of 0.5 m, 360 x 360 cells of 0.3 m",
     32,
     88,
     118,
     1.0,
     0.5,
     360,
     360,
     {-54.0, -54.0, -10.0},
     {0.3, 0.3, 20.0},
     true},
    {"c",
     "16 x 44 features, 118 depths of 0.5 m, 200 x 200 cells of 0.512 m",
     16,
     44,
     118,
     1.0,
     0.5,
     200,
     200,
     {-51.2, -51.2, -10.0},
     {0.512, 0.512, 20.0},
     false},
};

const bev_setting *setting_find(const char *name)
{
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i)
        if (strcmp(settings[i].name, name) == 0) return &settings[i];
    return NULL;
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
    memset(geometry, 0, sizeof *geometry);
    geometry->struct_size = sizeof *geometry;
    geometry->shape.num_batches = 1;
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
