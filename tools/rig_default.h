// SPDX-License-Identifier: Apache-2.0
// The rig the tool ships: data/rig_six_cameras.json, put into the program when it is built.
#ifndef SPOPS_TOOLS_RIG_DEFAULT_H
#define SPOPS_TOOLS_RIG_DEFAULT_H

#include <stddef.h>

extern const unsigned char rig_six_cameras_json[];
extern const size_t rig_six_cameras_json_bytes;

#endif
