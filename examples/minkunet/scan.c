// SPDX-License-Identifier: Apache-2.0
/* Points of a LiDAR scan: an .npy file, or rays against a road, two walls and a row of cars. */
#include "minkunet/scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(FILE *file, const char *path, const char *why)
{
    fprintf(stderr, "%s: %s\n", path, why);
    if (file != NULL) fclose(file);
    return 1;
}

int scan_load(const char *path, scan *s)
{
    unsigned char start[10];
    char header[4096];
    const char *shape;
    size_t length;
    long long rows = 0, cols = 0;
    FILE *file = fopen(path, "rb");

    memset(s, 0, sizeof *s);
    if (file == NULL) return refuse(file, path, "cannot be opened");
    if (fread(start, 1, sizeof start, file) != sizeof start || memcmp(start, "\x93NUMPY\1", 7) != 0)
        return refuse(file, path, "is no .npy file of version 1");
    length = start[8] + 256u * start[9];
    if (length >= sizeof header || fread(header, 1, length, file) != length)
        return refuse(file, path, "its header is cut off");
    header[length] = 0;
    shape = strstr(header, "'shape': (");
    if (strstr(header, "'<f4'") == NULL || strstr(header, "'fortran_order': False") == NULL ||
        shape == NULL || sscanf(shape, "'shape': (%lld, %lld)", &rows, &cols) != 2 || cols != 4 ||
        rows < 0 || rows > INT32_MAX)
        return refuse(file, path, "is not an array of little-endian f32 with 4 columns");
    s->points = (float *)malloc((size_t)rows * 4 * sizeof *s->points + 1);
    if (s->points == NULL || fread(s->points, 16, (size_t)rows, file) != (size_t)rows) {
        scan_free(s);
        return refuse(file, path, "holds fewer points than its header says");
    }
    s->num_points = rows;
    fclose(file);
    return 0;
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
    if (s->points == NULL) return refuse(NULL, "a simulated scan", "there is no memory for it");
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
