// SPDX-License-Identifier: Apache-2.0
// A camera rig read from JSON: who looks where, in which frame. Only the structure and the
// finiteness of numbers are judged here; whether a calibration can be used is for who uses it.
#ifndef SPOPS_TOOLS_RIG_JSON_H
#define SPOPS_TOOLS_RIG_JSON_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RIG_NAME_BYTES   64
#define RIG_MAX_CAMERAS  256
#define RIG_MAX_IMAGE_PX 65536
#define RIG_MAX_BYTES    ((size_t)16 << 20)
#define RIG_ERROR_BYTES  256

// Matrices are row-major; x2y maps column vectors of frame x to frame y, m.
typedef struct rig_camera {
    char name[RIG_NAME_BYTES];
    int width, height;    // px
    double intrinsics[9]; // px; optical frame: x right, y down, z forward
    double cam2ego[16];   // as mounted
    double cam2lidar[16]; // set where has_cam2lidar: with the vehicle's motion between exposures
    bool has_cam2lidar;
} rig_camera;

typedef struct rig {
    int num_cameras;
    rig_camera *cameras;
    double lidar2ego[16]; // set where has_lidar2ego
    bool has_lidar2ego;
} rig;

typedef enum rig_frame {
    RIG_FRAME_EGO = 0,          // cam2ego
    RIG_FRAME_EGO_BY_LIDAR = 1, // lidar2ego * cam2lidar
    RIG_FRAME_LIDAR = 2         // cam2lidar
} rig_frame;

// Read a rig from `bytes` bytes of JSON; they need not end with a 0. On failure *out is empty and
// error holds one line that names key and element. rig_free is fine either way.
bool rig_parse(const char *text, size_t bytes, rig *out, char *error, size_t error_bytes);

// The same from a file.
bool rig_load(const char *path, rig *out, char *error, size_t error_bytes);

void rig_free(rig *r);

// Camera i to `frame`; false with error where the rig does not have the matrices.
bool rig_camera_to(const rig *r, int i, rig_frame frame, double matrix[16], char *error,
                   size_t error_bytes);

// The frame that this rig's grids are best put into: EGO_BY_LIDAR where the rig has the matrices.
rig_frame rig_best_ego_frame(const rig *r);

// True if every camera has cam2lidar.
bool rig_has_lidar(const rig *r);

#ifdef __cplusplus
}
#endif

#endif
