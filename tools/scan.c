// SPDX-License-Identifier: Apache-2.0
#include "tools/scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/parallel.h"
#include "support/random.h"

#define PI             3.14159265358979323846
#define LEAVES_DEPTH_M 0.25 // mean way into leaves
#define GLASS_LOST     0.8  // share of pulses that go through glass
#define NEAREST_M      1.0  // nearer echoes are the vehicle's own and are left out

scan_sensor scan_sensor_default(void)
{
    const scan_sensor sensor = {.beams = 64,
                                .columns = 1024,
                                .upper_rad = 8.0 * PI / 180.0,
                                .lower_rad = -25.0 * PI / 180.0,
                                .height_m = 1.8,
                                .max_range_m = 60.0,
                                .noise_m = 0.02,
                                .dropout = 0.02,
                                .intensity_off = 0.1};
    return sensor;
}

// Number `draw` of a pulse, 0 to 1.
static double chance(uint64_t seed, uint64_t pulse, uint64_t draw)
{
    uint64_t z = seed * RANDOM_STEP + pulse * 0xd1342543de82ef95u + draw;
    for (int i = 0; i < 2; ++i)
        z = random_mix(z + RANDOM_STEP);
    return ((double)(z >> 11) + 0.5) * 0x1p-53;
}

// Normal with deviation 1 (Box and Muller); takes the draws draw and draw + 1.
static double normal(uint64_t seed, uint64_t pulse, uint64_t draw)
{
    return sqrt(-2.0 * log(chance(seed, pulse, draw))) *
           cos(2.0 * PI * chance(seed, pulse, draw + 1));
}

// Whether a pulse comes back; row gets its point.
static bool measure(const scene *s, const scan_sensor *sensor, const double origin[3],
                    double heading, uint64_t seed, int64_t pulse, float row[SCAN_COLS],
                    uint8_t *label)
{
    const uint64_t id = (uint64_t)pulse;
    const int64_t column = pulse / sensor->beams;
    const int beam = (int)(pulse % sensor->beams);
    const double azimuth = -PI + 2.0 * PI * ((double)column + 0.5) / sensor->columns;
    const double elevation =
        sensor->upper_rad - (sensor->upper_rad - sensor->lower_rad) * beam / (sensor->beams - 1);
    const double turned = heading + azimuth, flat = cos(elevation);
    const double direction[3] = {flat * cos(turned), flat * sin(turned), sin(elevation)};
    const scene_echo echo = scene_probe(s, origin, direction);
    double range = echo.distance;

    if (echo.what == SCENE_SKY || range < NEAREST_M || range > sensor->max_range_m) return false;
    if (echo.leaves) { // in between, but no further than what stands behind
        const double inside[3] = {origin[0] + range * direction[0],
                                  origin[1] + range * direction[1],
                                  origin[2] + range * direction[2]};
        const double behind = scene_probe(s, inside, direction).distance;
        const double deeper = -LEAVES_DEPTH_M * log(chance(seed, id, 0));
        range += fmin(deeper, 0.9 * behind);
    }
    // Dim echoes are lost: dark, grazed or far. What comes back falls with the square of the range.
    const double sent_back = echo.reflectance * (0.25 + 0.75 * echo.facing);
    const double share = range / sensor->max_range_m;
    const double lost = sensor->dropout + 0.35 * exp(-12.0 * sent_back / (0.05 + share * share));
    if (chance(seed, id, 1) < lost) return false;
    if (echo.glass && chance(seed, id, 2) < GLASS_LOST) return false;
    range += sensor->noise_m * normal(seed, id, 3);
    const double intensity = sent_back * (1.0 + sensor->intensity_off * normal(seed, id, 5));
    row[0] = (float)(range * flat * cos(azimuth));
    row[1] = (float)(range * flat * sin(azimuth));
    row[2] = (float)(range * sin(elevation));
    // Sensors report a byte.
    row[3] = (float)(rint(255.0 * fmin(1.0, fmax(0.0, intensity))) / 255.0);
    *label = (uint8_t)echo.what;
    return true;
}

typedef struct pulses {
    const scene *s;
    const scan_sensor *sensor;
    double origin[3], yaw;
    uint64_t seed;
    const scan *out;
} pulses;

static void measure_pulses(const void *work, int64_t begin, int64_t end)
{
    const pulses *p = (const pulses *)work;
    for (int64_t i = begin; i < end; ++i)
        if (!measure(p->s, p->sensor, p->origin, p->yaw, p->seed, i, p->out->points + i * SCAN_COLS,
                     p->out->labels + i))
            p->out->labels[i] = SCAN_UNLABELLED;
}

bool scan_take(const scene *s, const scan_sensor *sensor, uint64_t seed, scan *out)
{
    const int64_t num = (int64_t)sensor->beams * sensor->columns;
    double place[3];

    memset(out, 0, sizeof *out);
    out->points = malloc((size_t)num * SCAN_COLS * sizeof *out->points);
    out->labels = malloc((size_t)num * sizeof *out->labels);
    out->pulses = malloc((size_t)num * sizeof *out->pulses);
    if (out->points == NULL || out->labels == NULL || out->pulses == NULL) {
        scan_free(out);
        return false;
    }
    scene_place(s, place);
    const pulses work = {s, sensor, {place[0], place[1], sensor->height_m}, place[2], seed, out};
    parallel_for(num, 512, measure_pulses, &work);
    for (int64_t i = 0; i < num; ++i) {
        if (out->labels[i] == SCAN_UNLABELLED) continue;
        const int64_t to = out->num_points++;
        memmove(out->points + to * SCAN_COLS, out->points + i * SCAN_COLS,
                SCAN_COLS * sizeof *out->points);
        out->labels[to] = out->labels[i];
        out->pulses[to] = (int32_t)i;
    }
    return true;
}

void scan_free(scan *out)
{
    free(out->points);
    free(out->labels);
    free(out->pulses);
    memset(out, 0, sizeof *out);
}
