// SPDX-License-Identifier: Apache-2.0
// The BEV settings the tool knows by name, and the geometry they make of a rig.
#ifndef SPOPS_TOOLS_SETTINGS_H
#define SPOPS_TOOLS_SETTINGS_H

#include "tools/rig_json.h"
#include "spops/bevpool.h"

typedef struct bev_setting {
    const char *name;
    const char *what;
    int feature_height, feature_width, num_depths;
    double depth_start_m, depth_step_m;
    int num_cells_x, num_cells_y;
    double lower_m[3], cell_size_m[3];
    bool lidar_frame; // the grid is in the lidar frame where the rig has one
    int num_batches;  // every batch element is the same rig
} bev_setting;

// Network input of all settings.
#define SETTING_INPUT_WIDTH  704
#define SETTING_INPUT_HEIGHT 256

// How an image becomes the input: resized by scale, then cropped at (crop_x, crop_y) px.
typedef struct setting_view {
    double scale, crop_x, crop_y;
} setting_view;

// Without a wish: 768 px wide (or more, where it would be too low), cropped in the middle and at the
// bottom; an image of 1600 x 900 is resized by 0.48 and cropped at (32, 176).
setting_view setting_view_of(const rig_camera *camera);

// Whether the input lies within the resized image; false with error, which names the camera.
bool setting_view_fits(const rig_camera *camera, const setting_view *view, char *error,
                       size_t error_bytes);

// Their names in the order of size, separated by commas.
#define SETTING_NAMES "105k,a,209k,c,572k,a8,1280k,b"

// NULL if there is no setting of that name.
const bev_setting *setting_find(const char *name);

// Cameras of all batch elements.
int setting_num_cameras(const bev_setting *setting, const rig *r);

// Fill geometry and setting_num_cameras cameras, which the geometry points to. view is for all
// cameras; NULL: each its own, by setting_view_of.
bool setting_geometry_seen(const bev_setting *setting, const rig *r, rig_frame frame,
                           const setting_view *view, spops_bev_camera *cameras,
                           spops_bev_geometry *geometry, char *error, size_t error_bytes);
bool setting_geometry(const bev_setting *setting, const rig *r, rig_frame frame,
                      spops_bev_camera *cameras, spops_bev_geometry *geometry, char *error,
                      size_t error_bytes);

#endif
