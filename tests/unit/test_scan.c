// SPDX-License-Identifier: Apache-2.0
// Simulated scans: that points lie where the scene is, with the labels of what is there; noise and
// losses as asked for; the same bits for a seed; .npy files, whole and damaged; spops scan.
#include <criterion/criterion.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/npy.h"
#include "support/parallel.h"
#include "tools/command.h"
#include "tools/scan.h"

#define PI 3.14159265358979323846

static scan_sensor small_sensor(void)
{
    scan_sensor sensor = scan_sensor_default();
    sensor.beams = 32;
    sensor.columns = 360;
    return sensor;
}

static void make_directory(char *path, size_t bytes)
{
    const char *base = getenv("TMPDIR");
    snprintf(path, bytes, "%s/spops-scan-XXXXXX", base != NULL ? base : "/tmp");
    cr_assert_not_null(mkdtemp(path));
}

static void remove_file(const char *directory, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    cr_expect_eq(unlink(path), 0, "%s", path);
}

Test(scan, the_same_bits_for_a_seed)
{
    const scan_sensor sensor = small_sensor();
    scan taken[3];
    for (int i = 0; i < 3; ++i) {
        scene *street = scene_create_varied(i < 2 ? 11 : 12);
        parallel_set_threads(i == 0 ? 1 : 3);
        cr_assert(scan_take(street, &sensor, 11, &taken[i]));
        scene_destroy(street);
    }
    const size_t n = (size_t)taken[0].num_points;
    cr_expect_gt(n, (size_t)sensor.beams * (size_t)sensor.columns / 2);
    cr_assert_eq(taken[0].num_points, taken[1].num_points);
    cr_expect_eq(memcmp(taken[0].points, taken[1].points, n * SCAN_COLS * sizeof(float)), 0);
    cr_expect_eq(memcmp(taken[0].labels, taken[1].labels, n), 0);
    cr_expect_neq(taken[0].num_points, taken[2].num_points);
    for (int i = 0; i < 3; ++i)
        scan_free(&taken[i]);
}

Test(scan, points_lie_where_the_scene_is)
{
    scan_sensor sensor = small_sensor();
    sensor.noise_m = 0.0;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        scene *street = scene_create_varied(seed);
        double place[3];
        scan taken;
        cr_assert(scan_take(street, &sensor, seed, &taken));
        scene_place(street, place);
        int64_t on_kerb = 0;
        for (int64_t i = 0; i < taken.num_points; ++i) {
            const float *p = taken.points + i * SCAN_COLS;
            const double c = cos(place[2]), n = sin(place[2]);
            const double range =
                sqrt((double)p[0] * p[0] + (double)p[1] * p[1] + (double)p[2] * p[2]);
            const double origin[3] = {place[0], place[1], sensor.height_m};
            const double direction[3] = {(c * p[0] - n * p[1]) / range,
                                         (n * p[0] + c * p[1]) / range, p[2] / range};
            cr_assert(range >= 1.0 && range <= 62.0 && p[3] >= 0.0f && p[3] <= 1.0f);
            cr_assert(taken.labels[i] > SCENE_SKY && taken.labels[i] < SCENE_NUM_CLASSES);
            const scene_hit hit = scene_cast(street, origin, direction, false);
            // A float's direction may pass an edge that the pulse met; elsewhere both agree.
            if (hit.what != taken.labels[i] || taken.labels[i] == SCENE_TREE) continue;
            cr_expect_float_eq(hit.distance, range, 1e-3 * range, "seed %d, point %d: %g, %g",
                               (int)seed, (int)i, hit.distance, range);
            const double height = p[2] + sensor.height_m;
            if (taken.labels[i] == SCENE_ROAD) cr_expect_float_eq(height, 0.0, 1e-4);
            if (taken.labels[i] == SCENE_PAVEMENT) {
                cr_expect(height > -1e-4 && height < 0.17);
                on_kerb += height > 1e-3 && height < 0.09;
            }
        }
        cr_expect_gt(on_kerb, 0, "seed %d: no point on a kerb's face", (int)seed);
        scan_free(&taken);
        scene_destroy(street);
    }
}

Test(scan, almost_every_label_is_that_of_the_ray)
{
    const scan_sensor sensor = small_sensor();
    scene *street = scene_create_varied(3);
    double place[3];
    scan taken;
    int64_t agree = 0;
    cr_assert(scan_take(street, &sensor, 3, &taken));
    scene_place(street, place);
    const double origin[3] = {place[0], place[1], sensor.height_m};
    for (int64_t i = 0; i < taken.num_points; ++i) {
        const double azimuth =
            -PI + 2.0 * PI * (taken.pulses[i] / sensor.beams + 0.5) / sensor.columns;
        const double elevation = sensor.upper_rad - (sensor.upper_rad - sensor.lower_rad) *
                                                        (taken.pulses[i] % sensor.beams) /
                                                        (sensor.beams - 1);
        const double direction[3] = {cos(elevation) * cos(place[2] + azimuth),
                                     cos(elevation) * sin(place[2] + azimuth), sin(elevation)};
        agree += scene_cast(street, origin, direction, false).what == taken.labels[i];
        if (i > 0) cr_assert_gt(taken.pulses[i], taken.pulses[i - 1]);
    }
    cr_expect_eq(agree, taken.num_points);
    scan_free(&taken);
    scene_destroy(street);
}

Test(scan, noise_and_losses_are_as_asked_for)
{
    scan_sensor sensor = small_sensor();
    scene *street = scene_create_varied(4);
    scan clean, noisy, thinned;
    sensor.noise_m = 0.0;
    cr_assert(scan_take(street, &sensor, 9, &clean));
    sensor.noise_m = 0.05;
    cr_assert(scan_take(street, &sensor, 9, &noisy));
    sensor.dropout = 0.5;
    cr_assert(scan_take(street, &sensor, 9, &thinned));
    cr_assert_eq(clean.num_points, noisy.num_points);
    double sum = 0.0, square = 0.0;
    for (int64_t i = 0; i < clean.num_points; ++i) {
        double range[2];
        for (int k = 0; k < 2; ++k) {
            const float *p = (k == 0 ? clean.points : noisy.points) + i * SCAN_COLS;
            range[k] = sqrt((double)p[0] * p[0] + (double)p[1] * p[1] + (double)p[2] * p[2]);
        }
        sum += range[1] - range[0];
        square += (range[1] - range[0]) * (range[1] - range[0]);
    }
    const double n = (double)clean.num_points, mean = sum / n, deviation = sqrt(square / n);
    // Five deviations of the mean and of the deviation of n normal numbers.
    cr_expect_lt(fabs(mean), 5.0 * 0.05 / sqrt(n));
    cr_expect_lt(fabs(deviation - 0.05), 5.0 * 0.05 / sqrt(2.0 * n) + 1e-5);
    const double kept = (double)thinned.num_points / n;
    cr_expect(kept > 0.45 && kept < 0.55, "%g of the points are left", kept);
    scan_free(&clean);
    scan_free(&noisy);
    scan_free(&thinned);
    scene_destroy(street);
}

Test(scan, streets_differ_and_have_every_class)
{
    const scan_sensor sensor = small_sensor();
    int64_t counts[SCENE_NUM_CLASSES] = {0};
    double first[3] = {0.0, 0.0, 0.0};
    int places = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
        scene *street = scene_create_varied(seed);
        double place[3];
        scan taken;
        cr_assert(scan_take(street, &sensor, seed, &taken));
        scene_place(street, place);
        places += seed > 1 && fabs(place[0] - first[0]) > 0.5;
        if (seed == 1) memcpy(first, place, sizeof first);
        // The place is on the road, and nothing stands there.
        const double above[3] = {place[0], place[1], 5.0}, down[3] = {0.0, 0.0, -1.0};
        const scene_class under = scene_cast(street, above, down, false).what;
        cr_expect(under == SCENE_ROAD || under == SCENE_MARKING, "seed %d: %s", (int)seed,
                  scene_class_name(under));
        for (int64_t i = 0; i < taken.num_points; ++i)
            ++counts[taken.labels[i]];
        scan_free(&taken);
        scene_destroy(street);
    }
    cr_expect_geq(places, 10);
    for (int k = 1; k < SCENE_NUM_CLASSES; ++k)
        cr_expect_gt(counts[k], 100, "%s", scene_class_name((scene_class)k));
}

// ---- .npy --------------------------------------------------------------------------------------

Test(npy, there_and_back)
{
    char directory[4096], path[4200], error[4400];
    const float values[6] = {1.0f, -2.5f, 0.0f, 1e30f, 5.0f, 6.0f};
    const uint8_t labels[3] = {0, 7, 255};
    int64_t rows = 0;
    void *back = NULL;
    make_directory(directory, sizeof directory);
    snprintf(path, sizeof path, "%s/a.npy", directory);
    cr_assert(npy_write(path, NPY_F32, 3, 2, values, error, sizeof error), "%s", error);
    cr_assert(npy_read(path, NPY_F32, 2, &rows, &back, error, sizeof error), "%s", error);
    cr_expect_eq(rows, 3);
    cr_expect_eq(memcmp(back, values, sizeof values), 0);
    free(back);
    cr_expect_not(npy_read(path, NPY_F32, 4, &rows, &back, error, sizeof error));
    cr_expect_null(back);
    cr_expect_not_null(strstr(error, "expected <f4 of shape [n, 4]"), "%s", error);
    cr_expect_not(npy_read(path, NPY_U8, 0, &rows, &back, error, sizeof error));
    cr_assert(npy_write(path, NPY_U8, 3, 0, labels, error, sizeof error), "%s", error);
    cr_assert(npy_read(path, NPY_U8, 0, &rows, &back, error, sizeof error), "%s", error);
    cr_expect_eq(memcmp(back, labels, sizeof labels), 0);
    free(back);
    cr_assert(npy_write(path, NPY_F32, 0, 4, values, error, sizeof error), "%s", error);
    cr_assert(npy_read(path, NPY_F32, 4, &rows, &back, error, sizeof error), "%s", error);
    cr_expect_eq(rows, 0);
    cr_expect_not_null(back);
    free(back);
    remove_file(directory, "a.npy");
    cr_expect_not(npy_read(path, NPY_F32, 4, &rows, &back, error, sizeof error));
    cr_expect_not(npy_write("/nonexistent/a.npy", NPY_F32, 0, 4, values, error, sizeof error));
    rmdir(directory);
}

Test(npy, damaged_files_are_refused)
{
    char directory[4096], path[4200], error[4400];
    const float values[8] = {0};
    unsigned char whole[256];
    make_directory(directory, sizeof directory);
    snprintf(path, sizeof path, "%s/a.npy", directory);
    cr_assert(npy_write(path, NPY_F32, 2, 4, values, error, sizeof error));
    FILE *f = fopen(path, "rb");
    const size_t bytes = fread(whole, 1, sizeof whole, f);
    fclose(f);
    cr_assert_eq(bytes, 128 + sizeof values);
    for (size_t cut = 0; cut <= bytes; ++cut) { // cut short, and one byte of the header changed
        for (int change = 0; change < 2; ++change) {
            unsigned char damaged[257];
            if (change == 1 && cut >= 10) break;
            memcpy(damaged, whole, bytes);
            if (change == 1) damaged[cut] ^= 0x55;
            f = fopen(path, "wb");
            fwrite(damaged, 1, change == 1 ? bytes : cut, f);
            fclose(f);
            int64_t rows;
            void *back;
            const bool ok = npy_read(path, NPY_F32, 4, &rows, &back, error, sizeof error);
            cr_expect(ok == (cut == bytes && change == 0) || (change == 1 && cut == 7),
                      "byte %zu, change %d", cut, change);
            free(back);
        }
    }
    remove_file(directory, "a.npy");
    rmdir(directory);
}

// ---- The command -------------------------------------------------------------------------------

static int run_scan(const char *const *args)
{
    char *argv[12] = {NULL};
    int argc = 0;
    argv[argc++] = strdup("scan");
    for (; args[argc - 1] != NULL; ++argc)
        argv[argc] = strdup(args[argc - 1]);
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
    const int status = command_scan(argc, argv);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    for (int i = 0; i < argc; ++i)
        free(argv[i]);
    return status;
}

Test(scan, the_command_writes_what_the_simulator_says)
{
    char directory[4096], path[4200], error[4400];
    make_directory(directory, sizeof directory);
    const char *const args[] = {"--out",   directory, "--count",       "2", "--seed", "7",
                                "--beams", "16",      "--columns=180", NULL};
    cr_assert_eq(run_scan(args), COMMAND_OK);
    for (uint64_t seed = 7; seed < 9; ++seed) {
        scan_sensor sensor = scan_sensor_default();
        sensor.beams = 16;
        sensor.columns = 180;
        scan taken;
        scene *street = scene_create_varied(seed);
        cr_assert(scan_take(street, &sensor, seed, &taken));
        int64_t rows;
        void *points, *labels;
        snprintf(path, sizeof path, "%s/scan_%06d.npy", directory, (int)seed);
        cr_assert(npy_read(path, NPY_F32, SCAN_COLS, &rows, &points, error, sizeof error), "%s",
                  error);
        cr_assert_eq(rows, taken.num_points);
        cr_expect_eq(memcmp(points, taken.points, (size_t)rows * SCAN_COLS * sizeof(float)), 0);
        snprintf(path, sizeof path, "%s/scan_%06d_labels.npy", directory, (int)seed);
        cr_assert(npy_read(path, NPY_U8, 0, &rows, &labels, error, sizeof error), "%s", error);
        cr_assert_eq(rows, taken.num_points);
        cr_expect_eq(memcmp(labels, taken.labels, (size_t)rows), 0);
        free(points);
        free(labels);
        scan_free(&taken);
        scene_destroy(street);
    }
    remove_file(directory, "scan_000007.npy");
    remove_file(directory, "scan_000007_labels.npy");
    remove_file(directory, "scan_000008.npy");
    remove_file(directory, "scan_000008_labels.npy");
    rmdir(directory);
}

Test(scan, the_command_refuses_nonsense)
{
    static const char *const wrong[][3] = {
        {"--beams", "15"},  {"--beams", "65"},   {"--count", "0"}, {"--seed", "-1"}, {"--out="},
        {"--columns", "8"}, {"--dropout", "91"}, {"extra"},        {"--frob"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i)
        cr_expect_eq(run_scan(wrong[i]), COMMAND_USAGE, "case %zu", i);
    const char *const nowhere[] = {"--out", "/nonexistent/x", NULL};
    cr_expect_eq(run_scan(nowhere), COMMAND_FAILED);
}
