// SPDX-License-Identifier: Apache-2.0
// Points from the files that people have: .npy, .bin (KITTI, nuScenes), .pcd, .ply, .las. What a file
// is follows from its first bytes; .bin has none, and goes by its name.
#ifndef SPOPS_SUPPORT_CLOUD_FILE_H
#define SPOPS_SUPPORT_CLOUD_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spops/types.h"

// Formats and endings, for the texts of commands.
#define CLOUD_FILE_FORMATS ".npy, .bin, .pcd, .ply or .las"

typedef struct cloud_file {
    const char *format;    // such as "PCD, binary"; static
    int64_t num_points;    // less than INT32_MAX
    int64_t cols;          // 3 or more: x y z, then what else the file has, in its order
    spops_dtype dtype;     // f32; f16 of a .npy of it
    void *values;          // [num_points, cols]
    int64_t intensity_col; // -1: none is known
    double origin_m[3];  // what was subtracted from x y z: whole metres where coordinates are those
                         // of a map, which f32 holds to no centimetre; else 0
    int64_t num_invalid; // points of a .pcd that are NaN, which stand for no return: left out
} cloud_file;

// False with one line in error; then *out holds nothing. Every length is checked before memory is
// taken by it.
bool cloud_file_read(const char *path, cloud_file *out, char *error, size_t error_bytes);
void cloud_file_free(cloud_file *cloud);

// f32 [num_points, cols] of what may be f16. False: no memory.
bool cloud_file_widen(cloud_file *cloud);

// Whether the first bytes are those of a cloud, or the name ends as a .bin does.
bool cloud_file_is(const char *path, const unsigned char *start, size_t bytes);

// The bytes of a .pcd, .ply or .las (by their start), or of a .bin (by the name). A byte 0 follows them.
bool cloud_file_parse(const char *name, const unsigned char *data, size_t bytes, cloud_file *out,
                      char *error, size_t error_bytes);

#endif
