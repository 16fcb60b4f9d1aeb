// SPDX-License-Identifier: Apache-2.0
// spops scan: simulated LiDAR scans with labels, as .npy files.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "support/npy.h"
#include "tools/command.h"
#include "tools/scan.h"

#define PATH_BYTES 4096

typedef struct scan_job {
    const char *out;
    int64_t count, seed, beams, columns, range_m, noise_mm, dropout_percent;
    bool as_json;
} scan_job;

static scan_job asked;
static const option_row option_rows[] = {
    {"--out", "DIR", "where to write; made if it is not there; default: spops-scans",
     .text = &asked.out},
    {"--count", "N", "scans, each of a street of its own, 1 to 100000; default: 1",
     .number = &asked.count, .least = 1, .most = 100000},
    {"--seed", "N", "of the first; the next ones count on; default: 1", .number = &asked.seed,
     .most = INT32_MAX},
    {"--beams", "N", "16 to 64, evenly from 8 to -25 degrees; default: 64", .number = &asked.beams,
     .least = 16, .most = 64},
    {"--columns", "N", "directions of a turn, 90 to 4096; default: 1024", .number = &asked.columns,
     .least = 90, .most = 4096},
    {"--range", "M", "farthest point, 10 to 200 m; default: 60", .number = &asked.range_m,
     .least = 10, .most = 200},
    {"--noise-mm", "N", "standard deviation of a range, 0 to 500; default: 20",
     .number = &asked.noise_mm, .most = 500},
    {"--dropout", "N", "percent of pulses that are lost whatever they meet, 0 to 90; default: 2",
     .number = &asked.dropout_percent, .most = 90},
    {"--json", NULL, "one JSON object for each scan instead of a line at the end",
     .on = &asked.as_json},
    {0}};
const option_set scan_options = {
    .program = "spops scan",
    .summary = "simulate LiDAR scans with labels, write them as .npy",
    .about = "Simulate streets, scan each with a rotating LiDAR, and write points and their "
             "labels.",
    .more = "DIR receives, for the street of seed 7,\n"
            " scan_000007.npy         f32 [points, 4]: x ahead, y left, z up (m, from\n"
            "                         the sensor, 1.8 m above the road), intensity\n"
            " scan_000007_labels.npy  u8 [points]: 1 road, 2 marking, 3 pavement,\n"
            "                         4 grass, 5 building, 6 wall, 7 vehicle, 8 pole,\n"
            "                         9 tree, 10 person",
    .rows = option_rows};

static bool write_scan(const scan_job *job, int64_t seed, const scan *taken)
{
    char path[PATH_BYTES], error[PATH_BYTES + 256];
    for (int i = 0; i < 2; ++i) {
        if (snprintf(path, sizeof path, "%s/scan_%06lld%s.npy", job->out, (long long)seed,
                     i == 0 ? "" : "_labels") >= (int)sizeof path)
            return command_fail("spops scan", "--out is too long"), false;
        if (!(i == 0 ? npy_write(path, NPY_F32, taken->num_points, SCAN_COLS, taken->points, error,
                                 sizeof error)
                     : npy_write(path, NPY_U8, taken->num_points, 0, taken->labels, error,
                                 sizeof error)))
            return command_fail("spops scan", "%s", error), false;
    }
    return true;
}

static void print_json(int64_t seed, const scan *taken)
{
    int64_t counts[SCENE_NUM_CLASSES] = {0};
    for (int64_t i = 0; i < taken->num_points; ++i)
        ++counts[taken->labels[i]];
    printf("{\"seed\": %lld, \"points\": %lld", (long long)seed, (long long)taken->num_points);
    for (int k = 1; k < SCENE_NUM_CLASSES; ++k)
        printf(", \"%s\": %lld", scene_class_name((scene_class)k), (long long)counts[k]);
    printf("}\n");
}

static int run(const scan_job *job)
{
    scan_sensor sensor = scan_sensor_default();
    char number[COMMAND_NUMBER_BYTES];
    int64_t points = 0;

    if (!command_make_directory(job->out))
        return command_fail("spops scan", "%s: %s", job->out, strerror(errno));
    sensor.beams = (int)job->beams;
    sensor.columns = (int)job->columns;
    sensor.max_range_m = (double)job->range_m;
    sensor.noise_m = 1e-3 * (double)job->noise_mm;
    sensor.dropout = 1e-2 * (double)job->dropout_percent;
    const double start = clock_s();
    for (int64_t i = 0; i < job->count; ++i) {
        const int64_t seed = job->seed + i;
        char text[64];
        scan taken;
        snprintf(text, sizeof text, "scan %lld of %lld", (long long)i + 1, (long long)job->count);
        progress_show(text, (int)i, (int)job->count);
        scene *street = scene_create_varied((uint64_t)seed);
        if (street == NULL || !scan_take(street, &sensor, (uint64_t)seed, &taken)) {
            scene_destroy(street);
            return command_fail("spops scan", "no memory for a scan");
        }
        const bool ok = write_scan(job, seed, &taken);
        points += taken.num_points;
        if (ok && job->as_json) print_json(seed, &taken);
        scan_free(&taken);
        scene_destroy(street);
        if (!ok) return COMMAND_FAILED;
    }
    progress_clear();
    if (!job->as_json)
        printf("%lld scans of %d beams, %s points, in %s (%.2g s)\n", (long long)job->count,
               sensor.beams, in_groups(points, number), job->out, clock_s() - start);
    return COMMAND_OK;
}

int command_scan(int argc, char **argv)
{
    asked = (scan_job){.out = "spops-scans",
                       .count = 1,
                       .seed = 1,
                       .beams = 64,
                       .columns = 1024,
                       .range_m = 60,
                       .noise_mm = 20,
                       .dropout_percent = 2};
    const options_result result = options_read(&scan_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);
    if (asked.out[0] == '\0') return command_status(options_error(&scan_options, "--out is empty"));
    return run(&asked);
}
