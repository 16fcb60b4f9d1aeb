// SPDX-License-Identifier: Apache-2.0
/* Points of a LiDAR scan: from a file, or simulated. */
#ifndef NETWORKS_SCAN_H
#define NETWORKS_SCAN_H

#include <stdint.h>

typedef struct scan {
    int64_t num_points;
    float *points; /* [num_points][4]: x, y, z in m, and what came back of the pulse, 0 to 1 */
} scan;

/* An .npy file of little-endian f32, [points][4]. 0 for success; else it says why. */
int scan_load(const char *path, scan *s);

/* One turn of a sensor of `beams` beams and `rays` rays each, on a road with walls and cars. */
int scan_simulate(int beams, int rays, scan *s);

void scan_free(scan *s);

#endif
