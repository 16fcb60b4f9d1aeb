// SPDX-License-Identifier: Apache-2.0
/* Points of a LiDAR scan: a file, or rays against a road, two walls and a row of cars. */
#include "networks/scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "points_file.h"

static int refuse(const char *path, const char *why)
{
    fprintf(stderr, "%s: %s\n", path, why);
    return 1;
}

int scan_load(const char *path, scan *s)
{
    int64_t cols;
    memset(s, 0, sizeof *s);
    s->points = points_read(path, &s->num_points, &cols);
    if (s->points == NULL) return 1;
    if (cols == 4) return 0;
    scan_free(s);
    return refuse(path, "expected 4 columns: x y z and intensity");
}

/* Where a ray from the origin along d enters a box; INFINITY where it does not. */
static double enter_box(const double d[3], const double lower[3], const double upper[3])
{
    double from = 0, to = INFINITY;
    for (int a = 0; a < 3; ++a) {
        const double x = lower[a] / d[a], y = upper[a] / d[a];
        from = fmax(from, fmin(x, y));
        to = fmin(to, fmax(x, y));
    }
    return from < to ? from : INFINITY;
}

int scan_simulate(int beams, int rays, scan *s)
{
    enum { NUM_CARS = 8 };
    memset(s, 0, sizeof *s);
    s->points = (float *)malloc((size_t)beams * (size_t)rays * 4 * sizeof *s->points);
    if (s->points == NULL) return refuse("a simulated scan", "there is no memory for it");
    for (int i = 0; i < beams * rays; ++i) {
        const double pitch = -0.43 + 0.47 * (i / rays) / (beams > 1 ? beams - 1 : 1);
        const double yaw = (i % rays + 0.5) * (6.283185307179586 / rays);
        const double d[3] = {cos(yaw) * cos(pitch), sin(yaw) * cos(pitch), sin(pitch) + 1e-9};
        float *p = s->points + 4 * s->num_points;
        double range_m = fabs(9.0 / d[1]); /* walls along the road, 4 m high */
        double bright = 0.6;
        if (range_m * d[2] > 2.3) range_m = INFINITY;
        if (d[2] < 0 && -1.7 / d[2] < range_m) { /* the road, below the sensor */
            range_m = -1.7 / d[2];
            bright = 0.2;
        }
        for (int c = 0; c < NUM_CARS; ++c) {
            const double x = -38.0 + 11.0 * c, y = c % 2 == 0 ? 3.0 : -5.0;
            const double lower[3] = {x, y, -1.7}, upper[3] = {x + 4.2, y + 1.8, -0.2};
            const double car_m = enter_box(d, lower, upper);
            if (car_m > 0 && car_m < range_m) {
                range_m = car_m;
                bright = 0.9;
            }
        }
        if (!(range_m < 80)) continue;
        for (int a = 0; a < 3; ++a)
            p[a] = (float)(d[a] * range_m);
        p[3] = (float)bright;
        ++s->num_points;
    }
    return 0;
}

void scan_free(scan *s)
{
    free(s->points);
    s->points = NULL;
    s->num_points = 0;
}
