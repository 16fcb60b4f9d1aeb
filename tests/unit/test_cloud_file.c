// SPDX-License-Identifier: Apache-2.0
// Files of points: the same points from every format, fields of any type and order, coordinates of a
// map, points that are none; what is refused with which words; and damage, which is refused or gives
// no more points than the bytes can hold.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/points_file.h"
#include "support/cloud_file.h"
#include "support/npy.h"
#include "tests/support/cloud_cases.h"
#include "tests/support/random.h"

enum { NUM = 300 };

// Intensities are whole numbers, because .las has no others.
static void make_points(float points[NUM][4])
{
    test_rng rng = test_rng_make(1);
    for (int i = 0; i < NUM; ++i) {
        for (int a = 0; a < 3; ++a) // the first half repeats, so that there is what LZF finds
            points[i][a] =
                i < NUM / 2 ? (float)(3 - a) : (float)(test_rng_below(&rng, 16384) - 8192) / 64;
        points[i][3] = (float)test_rng_below(&rng, 65536);
    }
}

static bool parse(const char *name, const void *data, size_t bytes, cloud_file *out, char *error)
{
    // In memory of its own, with the 0 that is promised and not a byte more.
    unsigned char *copy = malloc(bytes + 1);
    memcpy(copy, data, bytes);
    copy[bytes] = 0;
    const bool ok = cloud_file_parse(name, copy, bytes, out, error, 512);
    free(copy);
    return ok;
}

Test(cloud_file, every_format_gives_the_same_points)
{
    float points[NUM][4];
    char error[512];
    make_points(points);
    for (int k = 0; k < NUM_CLOUD_CASES; ++k) {
        const char *name = cloud_case_name((cloud_case)k);
        const bool las = k >= CLOUD_CASE_LAS_1_2;
        cloud_file cloud;
        size_t bytes;
        unsigned char *data = cloud_case_bytes((cloud_case)k, points[0], NUM, &bytes);
        cr_assert(parse(name, data, bytes, &cloud, error), "%s", error);
        cr_assert_eq(cloud.num_points, NUM, "%s", name);
        cr_assert_eq(cloud.cols, las ? 5 : 4, "%s", name);
        cr_expect_eq(cloud.intensity_col, 3, "%s", name);
        cr_expect_eq(cloud.dtype, SPOPS_DTYPE_F32);
        for (int i = 0; i < NUM; ++i) {
            const float *p = (const float *)cloud.values + i * cloud.cols;
            for (int c = 0; c < 4; ++c)
                cr_assert(p[c] == points[i][c], "%s: point %d has %g in column %d, expected %g",
                          name, i, (double)p[c], c, (double)points[i][c]);
            cr_assert(!las || p[4] == 2, "%s: classification is %g", name, (double)p[4]);
        }
        cloud_file_free(&cloud);
        free(data);
        // No points are points.
        data = cloud_case_bytes((cloud_case)k, points[0], 0, &bytes);
        cr_assert(parse(name, data, bytes, &cloud, error), "%s", error);
        cr_assert_eq(cloud.num_points, 0);
        cloud_file_free(&cloud);
        free(data);
    }
}

// Through files, with .npy of each type beside them.
Test(cloud_file, reads_files)
{
    static const float values[3][4] = {{1, 2, 3, 4}, {-5, 6, 7, 8}, {9, 10, 11.5f, 12}};
    static const uint16_t halves[3] = {0x3c00, 0xc000, 0x3800}; // 1, -2, 0.5
    double wide[3][4];
    char directory[] = "/tmp/spops_cloud_XXXXXX", path[128], error[512];
    cloud_file cloud;

    cr_assert_not_null(mkdtemp(directory));
    for (int i = 0; i < 12; ++i)
        wide[i / 4][i % 4] = (double)values[i / 4][i % 4] + (i % 4 < 3 ? 5e6 : 0.0);
    snprintf(path, sizeof path, "%s/a.npy", directory);
    cr_assert(npy_write(path, NPY_F32, 3, 4, values, error, sizeof error));
    cr_assert(cloud_file_read(path, &cloud, error, sizeof error), "%s", error);
    cr_expect_arr_eq(cloud.values, values, sizeof values);
    cr_expect(cloud.intensity_col == 3 && cloud.origin_m[0] == 0.0);
    cloud_file_free(&cloud);
    cr_assert(npy_write(path, NPY_F64, 3, 4, wide, error, sizeof error));
    cr_assert(cloud_file_read(path, &cloud, error, sizeof error), "%s", error);
    cr_expect_eq(cloud.origin_m[0], 4999995.0);
    for (int i = 0; i < 3; ++i)
        cr_expect_eq(((float *)cloud.values)[4 * i + 0] - 5, values[i][0]);
    cloud_file_free(&cloud);
    cr_assert(npy_write(path, NPY_F16, 1, 3, halves, error, sizeof error));
    cr_assert(cloud_file_read(path, &cloud, error, sizeof error), "%s", error);
    cr_expect_eq(cloud.dtype, SPOPS_DTYPE_F16);
    cr_assert(cloud_file_widen(&cloud) && cloud.dtype == SPOPS_DTYPE_F32);
    cr_expect(((float *)cloud.values)[1] == -2 && ((float *)cloud.values)[2] == 0.5f);
    cloud_file_free(&cloud);
    cr_expect_not(cloud_file_read(directory, &cloud, error, sizeof error));
    cr_expect_not_null(
        strstr(error, "is no regular file, expected .npy, .bin, .pcd, .ply or .las"));
    unlink(path);
    cr_expect_not(cloud_file_read(path, &cloud, error, sizeof error));
    cr_expect_not_null(strstr(error, "No such file"));
    FILE *f = fopen(path, "wb");
    cr_assert(f != NULL && fputs("something else", f) >= 0 && fclose(f) == 0);
    cr_expect_not(cloud_file_read(path, &cloud, error, sizeof error));
    cr_expect_not_null(strstr(error, "is no cloud that is known"), "%s", error);
    unlink(path);
    rmdir(directory);
}

// Fields of every type, in any order, padding, packed colours, several numbers to a field.
Test(cloud_file, takes_fields_by_name)
{
    static const char pcd[] =
        "VERSION .7\nFIELDS intensity Z _ x rgb y normal\nSIZE 1 8 1 2 4 4 4\n"
        "TYPE U F U I F I F\nCOUNT 1 1 3 1 1 1 2\nPOINTS 2\nDATA ascii\n"
        "200 1.5 0 0 0 -7 1e9 70000 0.25 -0.5\r\n"
        "\t1 -2 9 9 9 300 0 -1 1 2";
    static const char ply[] = "ply\r\nformat ascii 1.0\r\nobj_info none\r\nelement camera 1\r\n"
                              "property float view\r\nproperty int id\r\nelement vertex 2\r\n"
                              "property uchar red\r\nproperty double y\r\nproperty float32 x\r\n"
                              "property int16 z\r\nelement face 1\r\n"
                              "property list uchar int vertex_index\r\nend_header\r\n"
                              "0.5 3\r\n255 1 2 -3\r\n0 4.5 5 6\r\n3 0 1 1\r\n";
    static const float of_pcd[] = {-7, 70000, 1.5f, 200, 0.25f, -0.5f, 300, -1, -2, 1, 1, 2};
    static const float of_ply[] = {2, 1, -3, 255, 5, 4.5f, 6, 0};
    cloud_file cloud;
    char error[512];

    cr_assert(parse("a", pcd, sizeof pcd - 1, &cloud, error), "%s", error);
    cr_assert(cloud.num_points == 2 && cloud.cols == 6 && cloud.intensity_col == 3);
    cr_expect_eq(cloud.origin_m[1], -1.0); // 70000 m is a coordinate of a map
    for (int i = 0; i < 12; ++i)
        cr_expect_eq(((float *)cloud.values)[i], of_pcd[i] + (i % 6 == 1 ? 1.0f : 0.0f), "%d", i);
    cloud_file_free(&cloud);
    cr_assert(parse("a", ply, sizeof ply - 1, &cloud, error), "%s", error);
    cr_assert(cloud.num_points == 2 && cloud.cols == 4 && cloud.intensity_col == -1);
    cr_expect_arr_eq(cloud.values, of_ply, sizeof of_ply);
    cloud_file_free(&cloud);
}

// Points of a .pcd whose coordinates are NaN stand for no return; a NaN beside them stays.
Test(cloud_file, leaves_out_points_that_are_none)
{
    static const char pcd[] = "VERSION .7\nFIELDS x y z i\nSIZE 4 4 4 4\nTYPE F F F F\nPOINTS 3\n"
                              "DATA ascii\nnan nan nan 0\n1 2 3 nan\n1 nan 3 4\n";
    cloud_file cloud;
    char error[512];
    cr_assert(parse("a", pcd, sizeof pcd - 1, &cloud, error), "%s", error);
    cr_expect(cloud.num_points == 1 && cloud.num_invalid == 2);
    cr_expect(((float *)cloud.values)[1] == 2 && isnan(((float *)cloud.values)[3]));
    cloud_file_free(&cloud);
}

#define PCD(fields, rest) "VERSION .7\nFIELDS " fields "\n" rest
#define XYZ               PCD("x y z", "SIZE 4 4 4\nTYPE F F F\n")
#define PLY(rest)         "ply\nformat binary_little_endian 1.0\n" rest

Test(cloud_file, says_what_is_wrong)
{
    static const struct {
        const char *text, *message;
    } refused[] = {
        {"hello", "b.x: is no cloud that is known, expected .npy, .bin, .pcd, .ply or .las"},
        {"", "b.x: is no cloud that is known, expected .npy, .bin, .pcd, .ply or .las"},
        {"VERSION", "b.x: its header ends early"},
        {PCD("x y", "SIZE 4 4\nTYPE F F\nPOINTS 0\nDATA ascii\n"),
         "b.x: has no field z among its 2, expected x, y and z"},
        {PCD("x y z", "SIZE 4 4\n"), "b.x: SIZE has 2 words, expected 3 as FIELDS before it"},
        {PCD("x y z", "SIZE 4 -4 4\n"), "b.x: SIZE of field y is -4, expected a small count"},
        {PCD("x y z", "SIZE 4 3 4\nTYPE F F F\nPOINTS 0\nDATA ascii\n"),
         "b.x: field y is of TYPE F and SIZE 3, expected I or U of 1, 2, 4 or 8, or F of 4 or 8"},
        {XYZ "POINTS 2147483647\n", "b.x: POINTS is 2147483647, expected 0 to 2147483646"},
        {XYZ "DATA ascii\n", "b.x: its header has no POINTS"},
        {XYZ "POINTS 1\nDATA zip\n",
         "b.x: DATA is zip, expected ascii, binary or binary_compressed"},
        {XYZ "POINTS 2147483646\nDATA ascii\n1 2 3\n",
         "b.x: ends early: 2147483646 points of 3 numbers, found 6 bytes of text"},
        {XYZ "POINTS 2147483646\nDATA binary\n1 2 3\n",
         "b.x: ends early: 2147483646 points of 12 bytes after a header of 76, found 6 bytes"},
        {XYZ "POINTS 2\nDATA ascii\n1 2 3\n4 five 6\n",
         "b.x: y of point 1 is \"five\", expected a number"},
        {XYZ "POINTS 2\nDATA ascii\n1 2 3  \n   4 5 \n",
         "b.x: z of point 1 is \"\", expected a number"},
        {XYZ "POINTS 1\nDATA binary_compressed\n",
         "b.x: ends early: no sizes before its compressed points"},
        {XYZ "POINTS 1\nDATA binary_compressed\n\1   \14   ",
         "b.x: says that 538976257 bytes become 538976268, found 0 bytes for 12"},
        {"ply\nelement vertex 1\nend_header\n", "b.x: its header has no format"},
        {"ply\nformat binary 1.0\n",
         "b.x: format is binary, expected ascii, binary_little_endian or binary_big_endian"},
        {PLY("element face 3\nend_header\n"),
         "b.x: its header has no element vertex with properties"},
        {PLY("element vertex -1\n"),
         "b.x: element vertex has a count of -1, expected 0 to 2147483646"},
        {PLY("element vertex 1\nproperty list uchar int x\n"),
         "b.x: has a list among the vertices, expected numbers"},
        {PLY("element face 1\nproperty list uchar int x\n"),
         "b.x: has a list before the vertices, expected numbers"},
        {PLY("element vertex 1\nproperty half x\n"),
         "b.x: property is of type half, expected char to double"},
        {PLY("element a 2000\nproperty double b\n"), "b.x: ends before its vertices begin"},
        {PLY("element vertex 1000000\nproperty float x\nproperty float y\nproperty float z\n"
             "end_header\n...."),
         "b.x: ends early: 1000000 points of 12 bytes after a header of 121, found 4 bytes"},
        {"LASF", "b.x: has 4 bytes, expected a header of 227"},
    };
    char error[512];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        cloud_file cloud;
        memset(&cloud, 0xee, sizeof cloud);
        cr_expect_not(parse("b.x", refused[i].text, strlen(refused[i].text), &cloud, error), "%s",
                      refused[i].text);
        cr_expect_str_eq(error, refused[i].message, "%s", error);
        cr_expect(cloud.values == NULL && cloud.num_points == 0);
    }
}

// Headers of .las and names of .bin, by their numbers.
Test(cloud_file, says_what_is_wrong_in_numbers)
{
    static const struct {
        size_t at;
        unsigned char value;
        const char *message;
    } refused[] = {
        {24, 2, "a: is LAS 2.2, expected 1.0 to 1.4"},
        {25, 5, "a: is LAS 1.5, expected 1.0 to 1.4"},
        {104, 0x80,
         "a: is compressed (LAZ), expected LAS; `laszip -i FILE.laz -o FILE.las` or "
         "`pdal translate FILE.laz FILE.las` converts it"},
        {104, 11, "a: has points of format 11, expected 0 to 10"},
        {104, 3, "a: has points of 22 bytes, expected 34 or more of format 3"},
        {105, 19, "a: has points of 19 bytes, expected 20 or more of format 0"},
        {97, 0, "a: has its points at byte 25, expected 227 to 6881"},
        {99, 1, "a: has its points at byte 16777497, expected 227 to 6881"},
        {108, 2, "a: ends early: 556 points of 22 bytes after a header of 281, found 6600 bytes"},
        {110, 0x80, "a: has 2147483948 points, expected less than 2147483647"},
    };
    float points[NUM][4];
    char error[512];
    cloud_file cloud;
    size_t bytes;
    make_points(points);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        unsigned char *data = cloud_case_bytes(CLOUD_CASE_LAS_1_2, points[0], NUM, &bytes);
        data[refused[i].at] = refused[i].value;
        cr_expect_not(parse("a", data, bytes, &cloud, error), "%zu", i);
        cr_expect_str_eq(error, refused[i].message, "%s", error);
        free(data);
    }
    cr_expect_not(parse("a.bin", points, 33, &cloud, error));
    cr_expect_str_eq(error,
                     "a.bin: has 33 bytes, expected a multiple of 16: f32 [points, 4], x y z "
                     "intensity");
    cr_assert(parse("A.PCD.BIN", points, 40, &cloud, error), "%s", error);
    cr_expect(cloud.num_points == 2 && cloud.cols == 5 && cloud.intensity_col == 3);
    cloud_file_free(&cloud);
}

// A file that is cut anywhere is refused, but for a .bin between points and a text within its last
// number.
Test(cloud_file, cut_files_are_refused)
{
    float points[NUM][4];
    char error[512];
    make_points(points);
    for (int k = 0; k < NUM_CLOUD_CASES; ++k) {
        const char *name = cloud_case_name((cloud_case)k);
        cloud_file cloud;
        size_t bytes;
        unsigned char *data = cloud_case_bytes((cloud_case)k, points[0], 20, &bytes);
        for (size_t cut = 0; cut < bytes; ++cut) {
            const bool ok = parse(name, data, cut, &cloud, error);
            const bool may = k == CLOUD_CASE_BIN ? cut % 16 == 0
                                                 : strstr(name, "ascii") != NULL && cut + 8 > bytes;
            cr_assert(!ok || may, "%s cut to %zu of %zu bytes is taken", name, cut, bytes);
            cloud_file_free(&cloud);
        }
        free(data);
    }
}

// Bytes changed at random: refused, or no more points than there can be.
Test(cloud_file, damaged_files_do_no_harm, .timeout = 300)
{
    test_rng rng = test_rng_make(2);
    float points[NUM][4];
    char error[512];
    make_points(points);
    for (int k = 0; k < NUM_CLOUD_CASES; ++k) {
        size_t bytes;
        unsigned char *data = cloud_case_bytes((cloud_case)k, points[0], 20, &bytes);
        unsigned char *damaged = malloc(bytes);
        for (int run = 0; run < 4000; ++run) {
            cloud_file cloud;
            memcpy(damaged, data, bytes);
            for (int64_t changes = 1 + test_rng_below(&rng, 4); changes > 0; --changes) {
                // Mostly in the header, where a byte says most.
                const int64_t within = run % 4 == 0  ? (int64_t)bytes
                                       : bytes > 300 ? 300
                                                     : (int64_t)bytes;
                damaged[test_rng_below(&rng, within)] =
                    run % 2 == 0 ? (unsigned char)test_rng_below(&rng, 256)
                                 : (unsigned char)('0' + test_rng_below(&rng, 10));
            }
            error[0] = '\0';
            if (parse(cloud_case_name((cloud_case)k), damaged, bytes, &cloud, error)) {
                cr_assert(cloud.cols >= 3 && cloud.num_points <= (int64_t)bytes * 100);
                double sum = 0;
                for (int64_t i = 0; i < cloud.num_points * cloud.cols; ++i)
                    sum += (double)((const float *)cloud.values)[i];
                cr_assert(sum == sum || isnan(sum));
            } else
                cr_assert(error[0] != '\0' && cloud.values == NULL);
            cloud_file_free(&cloud);
        }
        free(damaged);
        free(data);
    }
}

// ---- The smallest reader, which the examples have -------------------------------------------------------

static float *read_small(const char *path, const void *data, size_t bytes, int64_t *rows,
                         int64_t *cols)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f != NULL && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
    return points_read(path, rows, cols);
}

Test(points_file, reads_and_refuses, .timeout = 300)
{
    static const cloud_case kinds[] = {CLOUD_CASE_BIN, CLOUD_CASE_PCD_ASCII, CLOUD_CASE_PCD_BINARY};
    static const char *const hostile[] = {
        XYZ "POINTS 2147483646\nDATA ascii\n1 2 3\n",
        XYZ "POINTS 9999999999999\nDATA binary\n1 2 3\n",
        XYZ "POINTS -1\nDATA ascii\n1 2 3\n",
        XYZ "POINTS 1\nDATA binary_compressed\n123456789012",
        PCD("x y z", "SIZE 8 8 8\nTYPE F F F\nPOINTS 1\nDATA ascii\n1 2 3\n"),
        "VERSION",
        "ply\n"};
    char directory[] = "/tmp/spops_points_XXXXXX", path[128], error[512];
    float points[NUM][4], *found;
    test_rng rng = test_rng_make(3);
    int64_t rows, cols;

    make_points(points);
    cr_assert_not_null(mkdtemp(directory));
    cr_assert_not_null(freopen("/dev/null", "w", stderr)); // it says why, hundreds of times
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; ++k) {
        size_t bytes;
        unsigned char *data = cloud_case_bytes(kinds[k], points[0], NUM, &bytes);
        snprintf(path, sizeof path, "%s/%s", directory, cloud_case_name(kinds[k]));
        found = read_small(path, data, bytes, &rows, &cols);
        cr_assert(found != NULL && rows == NUM && cols == 4, "%s", path);
        cr_expect_arr_eq(found, points, sizeof points, "%s", path);
        free(found);
        for (int run = 0; run < 150; ++run) { // cut, and with bytes changed
            const size_t most = bytes < 400 ? bytes : 400;
            unsigned char *copy = malloc(bytes);
            memcpy(copy, data, bytes);
            copy[test_rng_below(&rng, (int64_t)most)] = (unsigned char)test_rng_below(&rng, 256);
            const size_t left = run % 2 == 0 ? bytes : (size_t)test_rng_below(&rng, (int64_t)bytes);
            found = read_small(path, copy, left, &rows, &cols);
            cr_assert(found == NULL || (rows >= 0 && (size_t)(rows * cols) <= left), "%s", path);
            free(found);
            free(copy);
        }
        free(data);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/a.pcd", directory);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; ++i)
        cr_expect_null(read_small(path, hostile[i], strlen(hostile[i]), &rows, &cols), "%s",
                       hostile[i]);
    // An .npy that promises more than it has, in each of its numbers.
    cr_assert(npy_write(path, NPY_F32, NUM, 4, points, error, sizeof error));
    found = points_read(path, &rows, &cols);
    cr_assert(found != NULL && rows == NUM && cols == 4);
    free(found);
    cr_assert(truncate(path, 128 + 16 * NUM - 1) == 0);
    cr_expect_null(points_read(path, &rows, &cols));
    for (off_t cut = 127; cut >= 0; --cut) {
        cr_assert(truncate(path, cut) == 0);
        cr_expect_null(points_read(path, &rows, &cols), "%d bytes", (int)cut);
    }
    unlink(path);
    rmdir(directory);
}
