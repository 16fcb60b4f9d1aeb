// SPDX-License-Identifier: Apache-2.0
#include "tools/settings.h"

#include <math.h>
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

setting_view setting_view_of(const rig_camera *camera)
{
    setting_view view;
    view.scale = fmax(768.0 / camera->width, (double)SETTING_INPUT_HEIGHT / camera->height);
    view.crop_x = rint(0.5 * (view.scale * camera->width - SETTING_INPUT_WIDTH));
    view.crop_y = rint(view.scale * camera->height - SETTING_INPUT_HEIGHT);
    return view;
}

bool setting_view_fits(const rig_camera *camera, const setting_view *view, char *error,
                       size_t error_bytes)
{
    const double width = view->scale * camera->width, height = view->scale * camera->height;
    const double rounding = 1e-6 * (width + height);
    if (view->crop_x >= 0.0 && view->crop_y >= 0.0 &&
        view->crop_x + SETTING_INPUT_WIDTH <= width + rounding &&
        view->crop_y + SETTING_INPUT_HEIGHT <= height + rounding)
        return true;
    snprintf(error, error_bytes,
             "camera %s: %d x %d px from (%g, %g) on is not within its image, which is %g x %g px "
             "after scaling by %g",
             camera->name, SETTING_INPUT_WIDTH, SETTING_INPUT_HEIGHT, view->crop_x, view->crop_y,
             width, height, view->scale);
    return false;
}

bool setting_geometry(const bev_setting *setting, const rig *r, rig_frame frame,
                      spops_bev_camera *cameras, spops_bev_geometry *geometry, char *error,
                      size_t error_bytes)
{
    return setting_geometry_seen(setting, r, frame, NULL, cameras, geometry, error, error_bytes);
}

bool setting_geometry_seen(const bev_setting *setting, const rig *r, rig_frame frame,
                           const setting_view *view, spops_bev_camera *cameras,
                           spops_bev_geometry *geometry, char *error, size_t error_bytes)
{
    for (int i = 0; i < r->num_cameras; ++i) {
        memcpy(cameras[i].intrinsics, r->cameras[i].intrinsics, sizeof cameras[i].intrinsics);
        if (!rig_camera_to(r, i, frame, cameras[i].camera_to_ego, error, error_bytes)) return false;
        const setting_view seen = view != NULL ? *view : setting_view_of(&r->cameras[i]);
        if (view != NULL && !setting_view_fits(&r->cameras[i], view, error, error_bytes))
            return false;
        spops_bev_camera_set_resize_crop(&cameras[i], seen.scale, seen.crop_x, seen.crop_y);
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
