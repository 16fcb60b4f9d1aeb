// SPDX-License-Identifier: Apache-2.0
// A rotating LiDAR in a simulated street: what it measures, and what each point belongs to.
#ifndef SPOPS_TOOLS_SCAN_H
#define SPOPS_TOOLS_SCAN_H

#include "tools/scene.h"

typedef struct scan_sensor {
    int beams;                   // 2 to 128, evenly between lower and upper
    int columns;                 // of a turn, 8 to 4096
    double upper_rad, lower_rad; // elevations
    double height_m;             // above the road
    double max_range_m;
    double noise_m;       // standard deviation of a range
    double dropout;       // share of pulses that are lost whatever they meet, 0 to 1
    double intensity_off; // relative standard deviation of an intensity
} scan_sensor;

// 64 beams from 8 to -25 degrees, 1024 columns, 1.8 m, 60 m, 2 cm, 2 %, 10 %.
scan_sensor scan_sensor_default(void);

#define SCAN_COLS       4 // x, y, z (m), intensity (0 to 1)
#define SCAN_UNLABELLED 0 // what the sky's number stands for: a point that belongs to nothing

// Frame of the points: the sensor's, x ahead of the vehicle, y left, z up. Column by column as the
// sensor turns left from straight behind, in a column from the highest beam down.
typedef struct scan {
    int64_t num_points;
    float *points;   // [num_points, SCAN_COLS]
    uint8_t *labels; // [num_points] scene_class
    int32_t *pulses; // [num_points] column * beams + beam
} scan;

// From a scene's place. The same seed gives the same scan, whatever the number of threads. False
// when there is no memory.
bool scan_take(const scene *s, const scan_sensor *sensor, uint64_t seed, scan *out);
void scan_free(scan *out);

#endif
