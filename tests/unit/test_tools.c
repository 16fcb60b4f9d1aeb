// SPDX-License-Identifier: Apache-2.0
// What the spops command is made of: the scene, pictures, the simulated network, the reference,
// element types, and the commands themselves, run small.
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "support/npy.h"
#include "tests/support/cloud_cases.h"
#include "tests/support/onnx_file.h"
#include "tests/support/relation.h"
#include "tools/bev_map.h"
#include "tools/command.h"
#include "tools/group_picture.h"
#include "tools/picture.h"
#include "tools/scene.h"
#include "tools/simulate.h"

static uint64_t random_state = 12345;

static double random_in(double low, double high)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(random_state >> 11) * 0x1p-53;
}

// ---- The scene ---------------------------------------------------------------------------------

static void random_ray(double origin[3], double direction[3])
{
    origin[0] = random_in(-70.0, 70.0);
    origin[1] = random_in(-70.0, 70.0);
    origin[2] = random_in(0.3, 25.0);
    for (int i = 0; i < 3; ++i)
        direction[i] = random_in(-1.0, 1.0);
    direction[2] *= 0.5;
}

Test(scene, is_made_from_its_seed)
{
    scene *a = scene_create(5), *b = scene_create(5), *c = scene_create(6);
    cr_assert(a != NULL && b != NULL && c != NULL);
    cr_expect_gt(scene_num_objects(a), 300);
    cr_expect_eq(scene_num_objects(a), scene_num_objects(b));
    int differ = 0;
    for (int i = 0; i < 500; ++i) {
        double origin[3], direction[3];
        random_ray(origin, direction);
        const scene_hit x = scene_cast(a, origin, direction, true);
        const scene_hit y = scene_cast(b, origin, direction, true);
        const scene_hit z = scene_cast(c, origin, direction, true);
        cr_assert_eq(memcmp(&x.distance, &y.distance, sizeof x.distance), 0);
        cr_assert_eq(x.what, y.what);
        cr_assert_eq(memcmp(x.rgb, y.rgb, sizeof x.rgb), 0);
        differ += x.distance != z.distance;
    }
    cr_expect_gt(differ, 10);
    scene_destroy(a);
    scene_destroy(b);
    scene_destroy(c);
    scene_destroy(NULL);
}

Test(scene, a_ray_meets_the_same_from_further_on)
{
    // The walk through the grid starts in other cells, what is met must not change.
    scene *s = scene_create(1);
    int objects = 0;
    for (int i = 0; i < 4000; ++i) {
        double origin[3], direction[3], on[3];
        random_ray(origin, direction);
        const scene_hit hit = scene_cast(s, origin, direction, false);
        if (hit.what == SCENE_SKY) {
            cr_assert(isinf(hit.distance));
            continue;
        }
        cr_assert_gt(hit.distance, 0.0);
        const double step = random_in(0.05, 0.95) * hit.distance;
        for (int k = 0; k < 3; ++k)
            on[k] = origin[k] + step * direction[k];
        const scene_hit later = scene_cast(s, on, direction, false);
        cr_assert_float_eq(later.distance, hit.distance - step, 1e-6 * (1.0 + hit.distance),
                           "ray %d: %g, then %g after %g", i, hit.distance, later.distance, step);
        cr_assert_eq(later.what, hit.what);
        objects += hit.what >= SCENE_BUILDING;
        // The length of the direction is the unit.
        const double twice[3] = {2.0 * direction[0], 2.0 * direction[1], 2.0 * direction[2]};
        const scene_hit half = scene_cast(s, origin, twice, false);
        cr_assert_float_eq(half.distance, 0.5 * hit.distance, 1e-9 * (1.0 + hit.distance));
    }
    cr_expect_gt(objects, 500);
    scene_destroy(s);
}

Test(scene, has_every_class_and_a_ground)
{
    scene *s = scene_create(3);
    int seen[SCENE_NUM_CLASSES] = {0};
    const double down[3] = {0.0, 0.0, -1.0};
    for (int y = -300; y < 300; ++y)
        for (int x = -300; x < 300; ++x) {
            const double origin[3] = {0.18 * x, 0.18 * y, 100.0};
            const scene_hit hit = scene_cast(s, origin, down, false);
            cr_assert(hit.distance > 70.0 && hit.distance <= 100.0);
            ++seen[hit.what];
            if (hit.what == SCENE_ROAD || hit.what == SCENE_MARKING || hit.what == SCENE_PAVEMENT)
                cr_assert_float_eq(hit.distance, 100.0, 1e-9);
        }
    for (int k = 1; k < SCENE_NUM_CLASSES; ++k)
        cr_expect_gt(seen[k], 0, "no %s", scene_class_name((scene_class)k));
    cr_expect_eq(seen[SCENE_SKY], 0);
    cr_expect_gt(seen[SCENE_ROAD], seen[SCENE_MARKING]);
    // The lane that the vehicle is in runs along x, and the vehicle's own place is free.
    const double own[3] = {1.0, 0.0, 3.0};
    cr_expect_eq(scene_cast(s, own, down, false).what, SCENE_ROAD);
    scene_destroy(s);
}

Test(scene, odd_rays_meet_the_sky)
{
    scene *s = scene_create(1);
    const double origin[3] = {0.0, 0.0, 1.5};
    const double odd[][3] = {{0.0, 0.0, 0.0},  {NAN, 0.0, 1.0}, {0.0, NAN, -1.0},
                             {INFINITY, 0, 0}, {0.0, 0.0, 1.0}, {1e-300, 0.0, 1e-300}};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; ++i)
        cr_expect_eq(scene_cast(s, origin, odd[i], true).what, SCENE_SKY, "ray %zu", i);
    // From outside of everything, and straight down where nothing stands.
    const double far_off[3] = {900.0, 900.0, 5.0}, down[3] = {0.0, 0.0, -2.0};
    const scene_hit hit = scene_cast(s, far_off, down, true);
    cr_expect_float_eq(hit.distance, 2.5, 1e-12);
    cr_expect_eq(hit.what, SCENE_GRASS);
    cr_expect_str_eq(scene_class_name((scene_class)99), "?");
    scene_destroy(s);
}

// ---- Pictures ----------------------------------------------------------------------------------

static const colour black = {0, 0, 0}, red = {255, 0, 0}, white = {255, 255, 255};

// Of all bytes.
static int64_t sum_of(const picture *p)
{
    int64_t sum = 0;
    for (int y = 0; y < p->height; ++y)
        for (int x = 0; x < p->width; ++x) {
            const colour c = picture_at(p, x, y);
            sum += c.r + c.g + c.b;
        }
    return sum;
}

static bool same(const picture *a, const picture *b)
{
    for (int y = 0; y < a->height; ++y)
        if (memcmp(a->pixels + y * a->stride, b->pixels + y * b->stride, 4 * (size_t)a->width) != 0)
            return false;
    return a->width == b->width && a->height == b->height;
}

Test(picture, drawing_is_clipped)
{
    picture p;
    cr_assert(picture_create(20, 10, black, &p));
    cr_expect_eq(sum_of(&p), 0);
    picture_rect(&p, -5, -5, 7, 8, white, 1.0);
    cr_expect_eq(sum_of(&p), 2 * 3 * 3 * 255);
    picture_rect(&p, 18, 9, 100, 100, white, 1.0);
    cr_expect_eq(sum_of(&p), (2 * 3 + 2) * 3 * 255);
    picture_rect(&p, 10, 5, 1, 1, red, 0.5);
    cr_expect(abs(picture_at(&p, 10, 5).r - 128) <= 1);
    picture_set(&p, 10, 5, red);
    cr_expect_eq(sum_of(&p), (2 * 3 + 2) * 3 * 255 + 255);
    const double square[][2] = {{-100.0, -100.0}, {100.0, -100.0}, {100.0, 100.0}, {-100.0, 100.0}};
    picture_polygon(&p, square, 4, white, 1.0);
    cr_expect_eq(sum_of(&p), 20 * 10 * 3 * 255);
    picture_ring(&p, -50.0, 400.0, 30.0, 2.0, red, 1.0);
    picture_text(&p, -3, 8, 12, black, "clipped \xc3\xa9");
    picture_text(&p, -3, 8, 12, black, "no \xff UTF-8");
    picture_scale_bar(&p, -3, 8, 100, 12, black, "10 m");
    picture_destroy(&p);
    cr_expect_not(picture_create(0, 5, black, &p));
    cr_expect_not(picture_create(5, -1, black, &p));
    cr_expect_not(picture_create(1 << 30, 1 << 30, black, &p));
    cr_expect_null(p.surface);
}

Test(picture, polygons_and_rings_cover_their_area)
{
    picture p;
    cr_assert(picture_create(100, 100, black, &p));
    const double triangle[][2] = {{10.0, 10.0}, {90.0, 10.0}, {10.0, 70.0}};
    picture_polygon(&p, triangle, 3, red, 1.0);
    cr_expect_float_eq((double)sum_of(&p) / 255.0, 0.5 * 80.0 * 60.0, 15.0);
    picture_rect(&p, 0, 0, 100, 100, black, 1.0);
    picture_ring(&p, 50.0, 50.0, 30.0, 2.0, red, 1.0);
    cr_expect_float_eq((double)sum_of(&p) / 255.0, 2.0 * 3.14159265 * 30.0 * 2.0, 12.0);
    picture_destroy(&p);
}

Test(picture, every_letter_differs)
{
    picture p[2];
    char text[2] = {0, 0};
    if (!(picture_text_width(20.0, "m") > 0.0)) {
        cr_log_info("skipped: this system has no font");
        return;
    }
    cr_assert(picture_create(24, 28, black, &p[0]) && picture_create(24, 28, black, &p[1]));
    for (int a = 32; a < 127; ++a) {
        picture_rect(&p[0], 0, 0, 24, 28, black, 1.0);
        text[0] = (char)a;
        cr_expect_float_eq(picture_text(&p[0], 2, 20, 20, white, text),
                           picture_text_width(20, text), 1e-9);
        cr_assert_eq(sum_of(&p[0]) == 0, a == ' ');
        cr_assert_not(a > 32 && same(&p[0], &p[1]), "'%c' looks as the one before", a);
        const picture swap = p[0];
        p[0] = p[1], p[1] = swap;
    }
    cr_expect_gt(picture_text_width(20, "abc"), picture_text_width(20, "ab"));
    picture_destroy(&p[0]);
    picture_destroy(&p[1]);
}

static void make_directory(char *path, size_t bytes)
{
    const char *temporary = getenv("TMPDIR");
    snprintf(path, bytes, "%s/spops_test_XXXXXX", temporary != NULL ? temporary : "/tmp");
    cr_assert_not_null(mkdtemp(path));
}

static void remove_directory(const char *path)
{
    static const char *const names[] = {"a.png",
                                        "demo_bev.png",
                                        "demo_cameras.png",
                                        "demo_depth.png",
                                        "demo_density.png",
                                        "demo.json",
                                        "demo_segment.png",
                                        "demo_segment_view.png",
                                        "demo_segment.json",
                                        "weights",
                                        "out",
                                        "err",
                                        "plan",
                                        "map",
                                        "rig.json",
                                        "small.onnx",
                                        "output_0.npy",
                                        "output_1.npy",
                                        "scan_000001.npy",
                                        "scan_000001_labels.npy"};
    char file[4352];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        unlink(file);
    }
    cr_expect_eq(rmdir(path), 0, "%s is not empty", path);
}

Test(picture, png_there_and_back)
{
    picture p, back;
    char directory[4096], path[4200], error[256];
    make_directory(directory, sizeof directory);
    snprintf(path, sizeof path, "%s/a.png", directory);
    cr_assert(picture_create(37, 23, red, &p));
    for (int i = 0; i < 37 * 23; ++i) {
        const colour c = {(uint8_t)random_in(0.0, 256.0), (uint8_t)random_in(0.0, 256.0),
                          (uint8_t)random_in(0.0, 256.0)};
        picture_set(&p, i % 37, i / 37, c);
    }
    cr_assert(picture_write_png(&p, path, error, sizeof error), "%s", error);
    cr_assert(picture_read_png(path, &back, error, sizeof error), "%s", error);
    cr_assert(back.width == 37 && back.height == 23);
    cr_expect(same(&p, &back));
    picture_destroy(&back);
    cr_assert_eq(truncate(path, 200), 0);
    cr_expect_not(picture_read_png(path, &back, error, sizeof error));
    cr_expect_null(back.surface);
    cr_expect_not(picture_write_png(&p, "/nonexistent/a.png", error, sizeof error));
    cr_expect(strncmp(error, "/nonexistent/a.png: ", 20) == 0, "%s", error);
    picture_destroy(&p);
    remove_directory(directory);
}

Test(picture, srgb)
{
    cr_expect_eq(picture_srgb(0.0), 0);
    cr_expect_eq(picture_srgb(-1.0), 0);
    cr_expect_eq(picture_srgb(NAN), 0);
    cr_expect_eq(picture_srgb(1.0), 255);
    cr_expect_eq(picture_srgb(7.0), 255);
    cr_expect_eq(picture_srgb(0.2140411), 127); // 0.5 in sRGB is 0.2140411
    for (int i = 1; i <= 1000; ++i)
        cr_assert_geq(picture_srgb(i / 1000.0), picture_srgb((i - 1) / 1000.0));
}

// ---- Element types -----------------------------------------------------------------------------

Test(elements, every_f16_and_bf16_comes_back)
{
    for (int dtype = SPOPS_DTYPE_F16; dtype <= SPOPS_DTYPE_BF16; ++dtype)
        for (uint32_t bits = 0; bits < 65536; ++bits) {
            const uint16_t in = (uint16_t)bits;
            uint16_t out;
            double wide;
            float value;
            elements_decode((spops_dtype)dtype, &in, 1, &wide);
            value = (float)wide;
            elements_encode((spops_dtype)dtype, &value, 1, &out);
            if (isnan(wide)) {
                elements_decode((spops_dtype)dtype, &out, 1, &wide);
                cr_assert(isnan(wide));
            } else {
                cr_assert_eq(in, out, "%s: 0x%04x became 0x%04x",
                             spops_dtype_name((spops_dtype)dtype), in, out);
            }
        }
}

Test(elements, rounding)
{
    static const struct {
        spops_dtype dtype;
        float in;
        double out;
    } cases[] = {
        {SPOPS_DTYPE_F16, 1.0f + 0x1p-11f, 1.0},          // a tie, to even
        {SPOPS_DTYPE_F16, 1.0f + 0x3p-11f, 1.0 + 0x1p-9}, // a tie, to even
        {SPOPS_DTYPE_F16, 1.0f + 0x1.1p-11f, 1.0 + 0x1p-10},
        {SPOPS_DTYPE_F16, 65519.0f, 65504.0},
        {SPOPS_DTYPE_F16, 65520.0f, INFINITY},
        {SPOPS_DTYPE_F16, -1e9f, -INFINITY},
        {SPOPS_DTYPE_F16, 0x1p-25f, 0.0},
        {SPOPS_DTYPE_F16, 0x1.8p-24f, 0x1p-23},
        {SPOPS_DTYPE_F16, 0x1.ff8p-15f, 0x1.ff8p-15}, // the largest subnormal
        {SPOPS_DTYPE_F16, 0x1.ffcp-15f, 0x1p-14},     // a tie, to even
        {SPOPS_DTYPE_F16, 0x1.fffp-15f, 0x1p-14},
        {SPOPS_DTYPE_BF16, 1.0f + 0x1p-8f, 1.0},
        {SPOPS_DTYPE_BF16, 1.0f + 0x3p-8f, 1.0 + 0x1p-6},
        {SPOPS_DTYPE_BF16, 0x1.fep127f, 0x1.fep127},
        {SPOPS_DTYPE_BF16, 0x1.fep127f + 0x1.8p118f, 0x1.fep127},
        {SPOPS_DTYPE_BF16, 3.4e38f, INFINITY},
        {SPOPS_DTYPE_BF16, INFINITY, INFINITY},
        {SPOPS_DTYPE_F32, 0.1f, 0.1f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        float buffer;
        double out;
        elements_encode(cases[i].dtype, &cases[i].in, 1, &buffer);
        elements_decode(cases[i].dtype, &buffer, 1, &out);
        cr_expect_eq(out, cases[i].out, "case %zu: %a", i, out);
    }
}

Test(elements, the_bound_holds_and_is_not_loose)
{
    // Against sums in f32 in order, of numbers that cancel.
    for (int n = 1; n < 3000; n += 97) {
        float sum = 0.0f;
        double exact = 0.0, magnitude = 0.0;
        for (int i = 0; i < n; ++i) {
            const float a = (float)random_in(-1.0, 1.0), b = (float)random_in(-1.0, 1.0);
            sum += a * b;
            exact += (double)a * b;
            magnitude += fabs((double)a * b);
        }
        const double bound = elements_sum_bound(SPOPS_DTYPE_F32, n, magnitude, exact);
        cr_assert_leq(fabs(sum - exact), bound);
        cr_assert_leq(bound, 1e-6 * n * magnitude);
    }
    cr_expect_eq(elements_sum_bound(SPOPS_DTYPE_F32, 0, 0.0, 0.0), 0.0);
    cr_expect_gt(elements_sum_bound(SPOPS_DTYPE_F16, 1, 1.0, 1.0), 0x1p-12);
}

// ---- Terminals ---------------------------------------------------------------------------------

// What is printed by print(f, columns); every line must fit.
static void printed(void (*print)(FILE *f, int columns), int columns, char *text, size_t bytes)
{
    FILE *f = tmpfile();
    cr_assert_not_null(f);
    print(f, columns);
    rewind(f);
    text[fread(text, 1, bytes - 1, f)] = '\0';
    fclose(f);
    for (const char *line = text; columns > 0 && *line != '\0'; line += strcspn(line, "\n") + 1)
        cr_expect_leq(strcspn(line, "\n"), (size_t)columns, "%.80s", line);
}

static void print_a_table(FILE *f, int columns)
{
    text_table t;
    memset(&t, 0, sizeof t);
    for (int row = 0; row < 3; ++row) {
        table_cell(&t, "row %d", row);
        for (int col = 0; col < 6; ++col)
            table_cell(&t, "%0*d", 3 + col, 10 * row + col);
        table_end_row(&t);
    }
    table_print(&t, f, 2, columns);
}

static void print_a_paragraph(FILE *f, int columns)
{
    wrapped_print(f, "label ", columns, "some words that go on for longer than a line is wide");
}

Test(terminal, tables_fold_where_they_are_too_wide)
{
    char text[2048];
    printed(print_a_table, 0, text, sizeof text);
    cr_expect(strncmp(text, "  row 0  000  0001  00002  000003  0000004  00000005\n  row 1", 56) ==
                  0,
              "%s", text);
    printed(print_a_table, 30, text, sizeof text);
    cr_expect_str_eq(text, "  row 0  000  0001  00002\n  row 1  010  0011  00012\n"
                           "  row 2  020  0021  00022\n  row 0  000003  0000004\n"
                           "  row 1  000013  0000014\n  row 2  000023  0000024\n"
                           "  row 0  00000005\n  row 1  00000015\n  row 2  00000025\n");
    printed(print_a_paragraph, 30, text, sizeof text);
    cr_expect_str_eq(text, "label some words that go on\n      for longer than a line\n"
                           "      is wide\n");
    printed(print_a_paragraph, 0, text, sizeof text);
    cr_expect_eq(strcspn(text, "\n"), strlen(text) - 1);
}

Test(terminal, progress_fits_and_tells_the_time_left)
{
    char line[512];
    progress_line(line, sizeof line, 0, 0.25, 10.0, "cameras");
    cr_expect_str_eq(line, "[######..................] 30 s left, cameras");
    progress_line(line, sizeof line, 0, 0.01, 10.0, "cameras");
    cr_expect_str_eq(line, "[........................] cameras");
    progress_line(line, sizeof line, 0, -1.0, 10.0, "cases");
    cr_expect_str_eq(line, "10 s: cases");
    for (int columns = 1; columns < 60; ++columns) {
        progress_line(line, sizeof line, columns, 0.5, 3.0, "a text that is rather long for it");
        cr_expect_lt(strlen(line), (size_t)columns, "a full line would wrap");
    }
}

// ---- The simulated network and the reference ----------------------------------------------------

// One camera at the origin, 1.5 m up, that looks along x.
static void make_geometry(spops_bev_camera *camera, spops_bev_geometry *g)
{
    static const double k[9] = {100.0, 0.0, 32.0, 0.0, 100.0, 16.0, 0.0, 0.0, 1.0};
    static const double pose[16] = {0, 0, 1, 0, -1, 0, 0, 0, 0, -1, 0, 1.5, 0, 0, 0, 1};
    memset(g, 0, sizeof *g);
    memcpy(camera->intrinsics, k, sizeof k);
    memcpy(camera->camera_to_ego, pose, sizeof pose);
    spops_bev_camera_set_resize_crop(camera, 1.0, 0.0, 0.0);
    g->struct_size = sizeof *g;
    g->shape = (spops_bev_shape){1, 1, 20, 5, 9, 25, 10, 1};
    g->input_width = 65, g->input_height = 33;
    g->depth_start_m = 1.0, g->depth_step_m = 1.0;
    g->grid_lower_m[0] = 0.0, g->grid_lower_m[1] = -5.0, g->grid_lower_m[2] = -5.0;
    g->cell_size_m[0] = g->cell_size_m[1] = 1.0, g->cell_size_m[2] = 10.0;
    g->cameras = camera;
}

Test(simulate, depths_are_shares_and_stand_where_the_ray_ends)
{
    spops_bev_camera camera;
    spops_bev_geometry g;
    simulation sim;
    char error[256];
    make_geometry(&camera, &g);
    scene *s = scene_create(3);
    cr_assert(simulate(s, &g, 20, NULL, &sim, error, sizeof error), "%s", error);
    cr_assert_eq(sim.num_features, 45);
    cr_assert_eq(sim.num_depths, 900);
    int filled = 0;
    for (int pixel = 0; pixel < 45; ++pixel) {
        double total = 0.0, mean = 0.0;
        for (int d = 0; d < 20; ++d) {
            const double share = sim.depth[d * 45 + pixel];
            cr_assert(share >= 0.0 && share <= 1.0);
            total += share;
            mean += share * (1.0 + d);
        }
        cr_assert_leq(total, 1.0 + 1e-5);
        double classes = 0.0;
        for (int k = 0; k < SCENE_NUM_CLASSES - 1; ++k)
            classes += sim.feat[pixel * 20 + SIM_CHANNEL_CLASS + k];
        cr_assert_eq(sim.feat[pixel * 20 + SIM_CHANNEL_ONE], 1.0f);
        cr_assert(fabs(classes - 1.0) < 1e-5 || (classes == 0.0 && total == 0.0));
        filled += total > 0.5;
        // The lowest row sees the road: input row 32 is 16 px below the horizon, 1.5 * 100 / 16 m
        // off.
        if (pixel / 9 == 4 && pixel % 9 == 4) {
            cr_expect_float_eq(mean / total, 9.4, 1.2);
            cr_expect_gt(sim.feat[pixel * 20 + SIM_CHANNEL_CLASS + SCENE_ROAD - 1] +
                             sim.feat[pixel * 20 + SIM_CHANNEL_CLASS + SCENE_MARKING - 1],
                         0.9f);
        }
    }
    cr_expect_gt(filled, 10);
    simulation_free(&sim);

    cr_expect_not(simulate(s, &g, SIM_MIN_COLS - 1, NULL, &sim, error, sizeof error));
    camera.intrinsics[0] = 0.0;
    cr_expect_not(simulate(s, &g, 20, NULL, &sim, error, sizeof error));
    cr_expect_str_eq(error, "cameras[0] is singular");
    cr_expect_null(sim.depth);
    scene_destroy(s);
}

Test(reference, pools_by_hand)
{
    // One pixel in the middle: point d lies at (d + 1, 0, 1.5) m, y = 0 on the border of two cells.
    spops_bev_camera camera;
    spops_bev_geometry g;
    reference ref;
    char error[256];
    double depth[3] = {0.5, 0.25, 2.0}, feat[2] = {3.0, -4.0};
    int32_t cell_of_point[3] = {4, 5, -1};
    make_geometry(&camera, &g);
    camera.intrinsics[2] = camera.intrinsics[5] = 0.0;
    camera.camera_to_ego[7] = 0.5;
    g.shape.num_depths = 3, g.shape.feature_height = g.shape.feature_width = 1;
    g.shape.num_cells_x = 3, g.shape.num_cells_y = 2;
    g.grid_lower_m[0] = 0.5, g.grid_lower_m[1] = -1.0;
    cr_assert(reference_pool(&g, 2, depth, feat, NULL, &ref, error, sizeof error), "%s", error);
    cr_expect_eq(ref.num_points, 3);
    cr_expect_eq(ref.longest, 1);
    cr_expect_eq(ref.num_border, 0);
    for (int d = 0; d < 3; ++d) { // x cells 0, 1, 2 of the upper row
        const int cell = 3 + d;
        cr_expect_eq(ref.count[cell], 1);
        cr_expect_eq(ref.sum[2 * cell], 3.0 * depth[d]);
        cr_expect_eq(ref.sum[2 * cell + 1], -4.0 * depth[d]);
        cr_expect_eq(ref.magnitude[2 * cell + 1], 4.0 * depth[d]);
        cr_expect_eq(ref.count[d], 0);
    }
    reference_free(&ref);

    // On the border the plan decides, elsewhere it has no say.
    camera.camera_to_ego[7] = 0.0;
    cr_assert(reference_pool(&g, 2, depth, feat, cell_of_point, &ref, error, sizeof error));
    cr_expect_eq(ref.num_border, 3);
    cr_expect_eq(ref.num_points, 2);
    cr_expect_eq(ref.sum[2 * 4], 1.5);
    cr_expect_eq(ref.sum[2 * 3], 0.0);
    reference_free(&ref);
    camera.camera_to_ego[7] = 0.5;
    cr_assert(reference_pool(&g, 2, depth, feat, cell_of_point, &ref, error, sizeof error));
    cr_expect_eq(ref.num_border, 0);
    cr_expect_eq(ref.sum[2 * 3], 1.5);
    reference_free(&ref);
}

Test(bev_map, forward_is_up_and_left_is_left)
{
    spops_bev_camera camera;
    spops_bev_geometry g;
    picture map;
    double range[2];
    make_geometry(&camera, &g);
    g.shape.num_cells_x = g.shape.num_cells_y = 40;
    g.grid_lower_m[0] = g.grid_lower_m[1] = -20.0;
    const int64_t cols = SIM_MIN_COLS;
    float *pooled = calloc((size_t)(1600 * cols), sizeof *pooled);
    cr_assert_not_null(pooled);
    // 15 m ahead and 10 m to the left: cells x 35, y 30. Something dimmer elsewhere sets the scale.
    const int64_t cells[2] = {30 * 40 + 35, 5 * 40 + 5};
    for (int i = 0; i < 2; ++i) {
        pooled[cells[i] * cols + SIM_CHANNEL_ONE] = i == 0 ? 8.0f : 1.0f;
        pooled[cells[i] * cols + SIM_CHANNEL_CLASS + SCENE_VEHICLE - 1] = i == 0 ? 8.0f : 1.0f;
    }
    cr_assert(bev_map_pooled(&g, pooled, cols, BEV_MAP_CLASS, 400, range, &map));
    colour there = picture_at(&map, 95, 45);           // up and left
    const colour mirrored = picture_at(&map, 304, 45); // up and right
    const uint8_t *vehicle = scene_class_colour(SCENE_VEHICLE);
    cr_expect(abs(there.r - vehicle[0]) < 40 && abs(there.g - vehicle[1]) < 40 &&
                  abs(there.b - vehicle[2]) < 40,
              "%d, %d, %d", there.r, there.g, there.b);
    cr_expect_lt(mirrored.b, 60);
    picture_destroy(&map);
    cr_assert(bev_map_pooled(&g, pooled, cols, BEV_MAP_DENSITY, 400, range, &map));
    there = picture_at(&map, 95, 45);
    cr_expect_gt(there.r, 200);
    picture_destroy(&map);
    memset(pooled, 0, (size_t)(1600 * cols) * sizeof *pooled);
    cr_assert(bev_map_pooled(&g, pooled, cols, BEV_MAP_COLOUR, 400, range, &map), "an empty grid");
    picture_destroy(&map);
    free(pooled);
}

// ---- The commands ------------------------------------------------------------------------------

// Run the tool with output into files of `directory`; the output is read back, cut to `bytes`.
static int run_tool(const char *directory, char *out, char *err, size_t bytes, int argc,
                    const char *const *args)
{
    char *argv[24] = {0}, *copies[24]; // a command may put other words into its argv
    char path[4200];
    cr_assert_lt(argc, 23);
    for (int i = 0; i <= argc; ++i)
        argv[i] = copies[i] = strdup(i == 0 ? "spops" : args[i - 1]);
    fflush(stdout);
    fflush(stderr);
    const int old[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    for (int i = 0; i < 2; ++i) {
        snprintf(path, sizeof path, "%s/%s", directory, i == 0 ? "out" : "err");
        FILE *file = fopen(path, "w");
        cr_assert_not_null(file);
        dup2(fileno(file), i == 0 ? STDOUT_FILENO : STDERR_FILENO);
        fclose(file);
    }
    const int status = command_main(argc + 1, argv);
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; ++i) {
        dup2(old[i], i == 0 ? STDOUT_FILENO : STDERR_FILENO);
        close(old[i]);
        snprintf(path, sizeof path, "%s/%s", directory, i == 0 ? "out" : "err");
        FILE *file = fopen(path, "r");
        cr_assert_not_null(file);
        char *to = i == 0 ? out : err;
        to[fread(to, 1, bytes - 1, file)] = '\0';
        fclose(file);
    }
    for (int i = 0; i <= argc; ++i)
        free(copies[i]);
    return status;
}

#define RUN(...)                                                                                   \
    run_tool(directory, out, err, sizeof out,                                                      \
             (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(const char *)),                  \
             (const char *[]){__VA_ARGS__})

Test(tool, demo_tells_what_it_did_and_its_pictures_decode, .timeout = 600)
{
    static const struct {
        const char *name;
        int width, height; // 0: not looked at
    } pictures[] = {{"demo_bev.png", 0, 0},
                    {"demo_density.png", 0, 0},
                    {"demo_cameras.png", 3 * 96 + 16, 2 * 54 + 12},
                    {"demo_depth.png", 3 * 96 + 16, 2 * 54 + 12 + 28}};
    static const struct {
        const char *dtype, *cols, *json;
    } runs[] = {{"f8e4m3", "17", "--json"}, {"f8e5m2", "16", "--json"}, {"nvfp4", "18", "--json"},
                {"f32", "17", "--json"},    {"f16", "17", NULL},        {"bf16", "17", "--json"}};
    static const char *const lines[] = {"device ", "scene ", "sizes ",          "plan ",    "time ",
                                        "bytes ",  "floor ", "check     right", "pictures "};
    char directory[4096], path[4200], out[8192], err[8192], error[256];
    make_directory(directory, sizeof directory);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; ++i) {
        if (test_quick() && i % 2 != 0) continue; // casting the scene takes the time
        const char *const args[] = {"demo",    "--out",       directory,   "--size=a", "--width",
                                    "96",      "--backend",   "cpu",       "--cols",   runs[i].cols,
                                    "--dtype", runs[i].dtype, runs[i].json};
        const int status =
            run_tool(directory, out, err, sizeof out, runs[i].json != NULL ? 13 : 12, args);
        cr_assert_eq(status, 0, "%s", err);
        // Without fonts their library has its say.
        cr_expect_null(strpbrk(err, "\r\033"), "progress is for terminals: %s", err);
        snprintf(path, sizeof path, "%s/demo.json", directory);
        json_t *file = json_load_file(path, 0, NULL);
        cr_assert_not_null(file);
        cr_expect(json_is_true(json_object_get(json_object_get(file, "check"), "right")));
        cr_expect(json_is_true(json_object_get(json_object_get(file, "check"), "same_bits")));
        const double of_bound =
            json_real_value(json_object_get(json_object_get(file, "check"), "worst_of_bound"));
        cr_expect(of_bound >= 0.0 && of_bound <= 1.0);
        cr_expect_gt(json_real_value(json_object_get(json_object_get(file, "time"), "hot_us")),
                     0.0);
        json_t *line = json_loads(out, 0, NULL);
        if (runs[i].json != NULL)
            cr_expect(json_equal(line, file));
        else // for a person
            for (size_t k = 0; k < sizeof lines / sizeof lines[0]; ++k)
                cr_expect_not_null(strstr(out, lines[k]), "no line '%s' in\n%s", lines[k], out);
        json_decref(file);
        json_decref(line);
    }
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; ++i) {
        picture p;
        snprintf(path, sizeof path, "%s/%s", directory, pictures[i].name);
        cr_assert(picture_read_png(path, &p, error, sizeof error), "%s", error);
        if (pictures[i].width > 0) {
            cr_expect_eq(p.width, pictures[i].width);
            cr_expect_eq(p.height, pictures[i].height);
        }
        // Something is drawn: many colours, not one.
        int changes = 0;
        for (int y = 0; y < p.height; ++y)
            for (int x = 1; x < p.width; ++x)
                changes += p.pixels[y * p.stride + x] != p.pixels[y * p.stride + x - 1];
        cr_expect_gt(changes, p.width * p.height / 50, "%s is empty", pictures[i].name);
        picture_destroy(&p);
    }
    remove_directory(directory);
}

Test(tool, demo_labels_a_scan, .timeout = 600)
{
    static const char *const lines[] = {"device ", "scan ", "network ", "time ",
                                        "result ", "IoU ",  "pictures "};
    static const char *const pictures[] = {"demo_segment.png", "demo_segment_view.png"};
    char directory[4096], path[4200], out[8192], err[8192], error[256];
    make_directory(directory, sizeof directory);
    cr_assert_eq(RUN("demo", "--task", "segment", "--out", directory, "--backend", "cpu"), 0, "%s",
                 err);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; ++i)
        cr_expect_not_null(strstr(out, lines[i]), "no line '%s' in\n%s", lines[i], out);
    snprintf(path, sizeof path, "%s/demo_segment.json", directory);
    json_t *file = json_load_file(path, 0, NULL);
    cr_assert_not_null(file);
    // The shipped network is better than chance and than saying road everywhere.
    cr_expect_gt(json_real_value(json_object_get(file, "mean_iou")), 0.6);
    cr_expect_eq(json_object_size(json_object_get(file, "iou")), 9);
    json_decref(file);
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; ++i) {
        picture p;
        snprintf(path, sizeof path, "%s/%s", directory, pictures[i]);
        cr_assert(picture_read_png(path, &p, error, sizeof error), "%s", error);
        int changes = 0;
        for (int k = 1; k < p.width * p.height; ++k)
            changes += p.pixels[k] != p.pixels[k - 1];
        cr_expect_gt(changes, p.width * p.height / 50, "%s is empty", pictures[i]);
        picture_destroy(&p);
    }
    // Another network than the shipped one: there is no such file, and it is none.
    snprintf(path, sizeof path, "%s/weights", directory);
    cr_expect_eq(RUN("demo", "--task", "segment", "--out", directory, "--weights", path), 1);
    cr_expect_not_null(strstr(err, "weights: No such file"), "%s", err);
    FILE *f = fopen(path, "w");
    fputs("SPOPSEGM and no more", f);
    fclose(f);
    cr_expect_eq(RUN("demo", "--task", "segment", "--out", directory, "--weights", path), 1);
    cr_expect_not_null(strstr(err, "weights: version "), "%s", err);
    remove_directory(directory);
}

static int64_t number(const char *text, const char *key)
{
    json_t *line = json_loads(text, 0, NULL);
    cr_assert_not_null(line, "%s", text);
    json_t *value = json_object_get(line, key);
    cr_assert(json_is_integer(value), "no %s in %s", key, text);
    const int64_t result = json_integer_value(value);
    json_decref(line);
    return result;
}

// A tuning of a few voxels: written, shown again, and refused where it is damaged or not there.
Test(tool, tune_writes_what_the_library_reads, .timeout = 600)
{
    char directory[4096], path[4200], part[4300], out[1 << 15], again[1 << 15], err[1 << 15];
    make_directory(directory, sizeof directory);
    snprintf(path, sizeof path, "%s/tuning.txt", directory);
    snprintf(part, sizeof part, "%s.part", path);
    cr_assert_eq(RUN("tune", "--out", path, "--backend", "cpu", "--voxels", "100", "--width",
                     "0.25", "--samples", "1", "--dtype", "f32", "--passes", "forward,grad_w"),
                 0, "%s", err);
    cr_expect_str_eq(err, "", "progress is for terminals");
    cr_expect_not_null(strstr(out, "forward  27 taps,   8 to   8,"), "%s", out);
    cr_expect_not_null(strstr(out, "grad_w    8 taps,"), "%s", out);
    cr_expect_neq(access(part, F_OK), 0, "what was written beside the file is gone");
    memcpy(again, out, sizeof again);
    cr_assert_eq(RUN("tune", "--show", path, "--backend", "cpu", "--json"), 0, "%s", err);
    json_t *line = json_loads(out, 0, NULL), *row;
    size_t rows;
    cr_assert(line != NULL && strchr(out, '\n') == out + strlen(out) - 1, "one line: %s", out);
    json_array_foreach(json_object_get(line, "rows"), rows, row)
    {
        cr_expect_eq(json_integer_value(json_object_get(row, "out")) % 8, 0);
        cr_expect_gt(json_integer_value(json_object_get(row, "taps")), 7);
    }
    json_decref(line);
    char said[64];
    snprintf(said, sizeof said, "\n%zu rows in ", rows);
    cr_expect_not_null(strstr(again, said), "%s not in %s", said, again);

    FILE *file = fopen(path, "r+");
    cr_assert_not_null(file);
    cr_assert(fseek(file, 0, SEEK_END) == 0 && ftruncate(fileno(file), ftell(file) - 4) == 0);
    fclose(file);
    cr_expect_eq(RUN("tune", "--show", path, "--backend", "cpu"), 1);
    cr_expect_not_null(strstr(err, "the text ends too early"), "%s", err);
    cr_expect_eq(RUN("tune", "--show", part, "--backend", "cpu"), 1);
    cr_expect_not_null(strstr(err, "No such file"), "%s", err);
    cr_expect_eq(RUN("tune", "--passes", "sideways"), 2);
    cr_expect_eq(RUN("tune", "--width", "9"), 2);
    cr_expect_not_null(strstr(err, "expected 0.25 to 4"), "%s", err);
    remove(path);
    remove_directory(directory);
}

Test(tool, plan_reads_rigs_maps_and_saved_plans, .timeout = 600)
{
    static const char *const keys[] = {"points",  "cells",        "intervals",
                                       "longest", "feature_rows", "depth_elements"};
    // Points 0 1 2 3 of 3 pixels x 2 depths into cells 1, 1, 3 and 4 of 5.
    static const int32_t map[4 + 3 * 4] = {4, 5, 3, 6, 0, 1, 4, 5, 0, 1, 1, 2, 1, 1, 3, 4};
    static const int64_t expected[] = {4, 5, 3, 2, 3, 6};
    char directory[4096], plan[4200], file[4200], out[8192], again[8192], err[8192];
    make_directory(directory, sizeof directory);
    snprintf(plan, sizeof plan, "%s/plan", directory);
    snprintf(file, sizeof file, "%s/map", directory);

    cr_assert_eq(RUN("plan", "--backend", "cpu", "--json", "--no-floor", "--save", plan), 0, "%s",
                 err);
    memcpy(again, out, sizeof again);
    cr_expect_eq(number(out, "cells"), 128 * 128);
    cr_assert_eq(RUN("plan", plan, "--backend", "cpu", "--json", "--no-floor"), 0, "%s", err);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i)
        cr_expect_eq(number(out, keys[i]), number(again, keys[i]), "%s", keys[i]);
    cr_expect_not_null(strstr(out, "\"kind\":\"saved plan\""));
    cr_assert_eq(RUN("plan", SPOPS_SOURCE_DIR "/data/rig_six_cameras.json", "--backend=cpu",
                     "--json", "--no-floor"),
                 0, "%s", err);
    cr_expect_eq(number(out, "points"), number(again, "points"));

    FILE *f = fopen(file, "wb");
    cr_assert(f != NULL && fwrite(map, sizeof map, 1, f) == 1 && fclose(f) == 0);
    cr_assert_eq(RUN("plan", file, "--backend", "cpu", "--json", "--no-floor"), 0, "%s", err);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i)
        cr_expect_eq(number(out, keys[i]), expected[i], "%s", keys[i]);
    cr_assert_eq(RUN("plan", file, "--backend", "cpu", "--no-floor"), 0, "%s", err);
    cr_expect_not_null(strstr(out, "points of a cell"));
    remove_directory(directory);
}

// The corners of two cubes of 1 m, 100 m apart, in turn: a cut of the Z-order curve keeps each together.
Test(tool, plan_tells_how_local_buckets_are)
{
    float points[16][4];
    char directory[4096], file[4200], png[4200], out[8192], err[8192], error[256];
    make_directory(directory, sizeof directory);
    snprintf(file, sizeof file, "%s/cloud.npy", directory);
    for (int i = 0; i < 16; ++i)
        for (int a = 0; a < 4; ++a)
            points[i][a] = (float)(i >> (a + 1) & 1) + (i % 2 ? 100.0f : 0.0f);
    cr_assert(npy_write(file, NPY_F32, 16, 4, points, error, sizeof error), "%s", error);
    cr_assert_eq(RUN("plan", file, "--backend", "cpu", "--json", "--bucket-rows", "8"), 0, "%s",
                 err);
    cr_expect_not_null(strstr(out, "{\"by\":\"Z-order, sorted\",\"groups\":2,\"late\":0,"
                                   "\"side_m\":1.0,\"diagonal_m\":1.73205080756"),
                       "%s", out);
    cr_expect_not_null(strstr(out, "{\"by\":\"zorder_div\",\"groups\":2,\"late\":0,\"side_m\":1.0"),
                       "%s", out);
    cr_assert_eq(RUN("plan", file, "--backend", "cpu", "--bucket-rows", "16"), 0, "%s", err);
    cr_expect_not_null(strstr(out, "101.00 m"), "%s", out);
    // In the picture all rows of a group, and no others, have its colour.
    picture p;
    snprintf(png, sizeof png, "%s/cloud.png", directory);
    cr_assert_eq(RUN("plan", file, "--backend", "cpu", "--bucket-rows", "8", "--out", png), 0, "%s",
                 err);
    cr_expect_not_null(strstr(out, png), "%s", out);
    cr_assert(picture_read_png(png, &p, error, sizeof error), "%s", error);
    for (int panel = 0; panel < 3; ++panel) { // sorted curves, zorder_div
        int x0, y0, seen[2] = {0, 0};
        group_picture_corner(panel, &x0, &y0);
        for (int i = 0; i < GROUP_PICTURE_SIDE_PX * GROUP_PICTURE_SIDE_PX; ++i) {
            const int x = i % GROUP_PICTURE_SIDE_PX, y = i / GROUP_PICTURE_SIDE_PX;
            const colour found = picture_at(&p, x0 + x, y0 + y);
            for (int64_t g = 0; g < 2; ++g) {
                const colour wanted = group_picture_colour(g);
                if (memcmp(&found, &wanted, sizeof found) != 0) continue;
                ++seen[g];
                // The second group is ahead and to the left: at the top left.
                const bool ahead = x < GROUP_PICTURE_SIDE_PX / 2 && y < GROUP_PICTURE_SIDE_PX / 2;
                cr_expect_eq(ahead, g == 1, "panel %d: (%d, %d)", panel, x, y);
            }
        }
        cr_expect(seen[0] == 4 && seen[1] == 4, "panel %d: %d and %d pixels, expected 4 columns",
                  panel, seen[0], seen[1]);
    }
    picture_destroy(&p);
    cr_expect_eq(RUN("plan", file, "--backend", "cpu", "--out", "/nowhere/cloud.png"), 1);
    cr_expect_not_null(strstr(err, "/nowhere/cloud.png"), "%s", err);
    cr_expect_eq(RUN("plan", file, "--backend", "cpu", "--save", png), 1);
    cr_expect_not_null(strstr(err, "--save"), "%s", err);
    cr_expect_eq(RUN("plan", "--backend", "cpu", "--out", png), 1);
    cr_expect_not_null(strstr(err, "--out draws a cloud"), "%s", err);
    remove(png);
    cr_assert(npy_write(file, NPY_F32, 8, 2, points, error, sizeof error), "%s", error);
    cr_expect_eq(RUN("plan", file, "--backend", "cpu"), 1);
    cr_expect_not_null(strstr(err, "2 columns, expected x y z"), "%s", err);
    points[3][1] = NAN;
    cr_assert(npy_write(file, NPY_F32, 16, 4, points, error, sizeof error), "%s", error);
    cr_expect_eq(RUN("plan", file, "--backend", "cpu"), 1);
    cr_expect_not_null(strstr(err, "cloud->points[3] is ("), "%s", err);
    remove(file);
    remove_directory(directory);
}

Test(tool, plan_has_the_settings_of_the_published_figures, .timeout = 600)
{
    static const struct {
        const char *setting;
        double points;
    } table[] = {{"105k", 105e3}, {"209k", 209e3}, {"572k", 572e3}, {"1280k", 1.28e6}};
    char directory[4096], out[8192], err[8192];
    make_directory(directory, sizeof directory);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i) {
        cr_assert_eq(
            RUN("plan", "--setting", table[i].setting, "--backend", "cpu", "--json", "--no-floor"),
            0, "%s", err);
        cr_expect_float_eq((double)number(out, "points") / table[i].points, 1.0, 0.03, "%s: %s",
                           table[i].setting, out);
    }
    cr_assert_eq(RUN("plan", "--backend", "cpu", "--json", "--no-floor"), 0, "%s", err);
    const int64_t one = number(out, "points");
    cr_assert_eq(RUN("plan", "--setting", "a8", "--backend", "cpu", "--json", "--no-floor"), 0,
                 "%s", err);
    cr_expect_eq(number(out, "points"), 8 * one);
    cr_expect_eq(number(out, "cells"), 8 * 128 * 128);
    remove_directory(directory);
}

static int64_t requested(const char *text, const char *form, const char *array)
{
    json_t *line = json_loads(text, 0, NULL);
    json_t *value =
        json_object_get(json_object_get(json_object_get(line, "requested"), form), array);
    cr_assert(json_is_integer(value), "no %s of %s in %s", array, form, text);
    const int64_t result = json_integer_value(value);
    json_decref(line);
    return result;
}

Test(tool, plan_counts_bytes_by_array_and_form)
{
    // As above: 4 points in 3 of 5 cells.
    static const int32_t map[4 + 3 * 4] = {4, 5, 3, 6, 0, 1, 4, 5, 0, 1, 1, 2, 1, 1, 3, 4};
    char directory[4096], file[4200], out[8192], err[8192];
    make_directory(directory, sizeof directory);
    snprintf(file, sizeof file, "%s/map", directory);
    FILE *f = fopen(file, "wb");
    cr_assert(f != NULL && fwrite(map, sizeof map, 1, f) == 1 && fclose(f) == 0);
    cr_assert_eq(RUN("plan", file, "--backend", "cpu", "--json", "--no-floor", "--cols", "20",
                     "--dtype", "f16"),
                 0, "%s", err);
    // 20 channels are 3 tiles of 8 at most; a row is 40 bytes.
    cr_expect_eq(requested(out, "v2_tile_outer", "indices"), 3 * (8 * 4 + 12 * 3));
    cr_expect_eq(requested(out, "v2_tile_outer", "depth"), 3 * 4 * 2);
    cr_expect_eq(requested(out, "v2_tile_outer", "features"), 4 * 40);
    cr_expect_eq(requested(out, "v2_tile_outer", "output"), (5 + 3) * 40);
    cr_expect_eq(requested(out, "v2_depth_outer", "indices"), 4 * 4 + 12 * 3);
    cr_expect_eq(requested(out, "v2_depth_outer", "depth"), 4 * 2);
    cr_expect_eq(requested(out, "v2_depth_outer", "output"), (5 + 3) * 40);
    cr_expect_eq(requested(out, "spops", "features"), 4 * 40);
    cr_expect_eq(requested(out, "spops", "output"), 5 * 40);
    cr_expect_not_null(strstr(out, "\"kernel\":{\"name\":"));
    cr_assert_eq(RUN("plan", file, "--backend", "cpu"), 0, "%s", err);
    cr_expect_not_null(strstr(out, "\nkernel "));
    cr_expect_not_null(strstr(out, "\nfloor "));
    cr_expect_not_null(strstr(out, "V2, depth outer"));
    remove_directory(directory);
}

Test(tool, plan_sees_what_it_is_told_of_images)
{
    char directory[4096], out[8192], err[8192];
    make_directory(directory, sizeof directory);
    cr_assert_eq(RUN("plan", "--backend", "cpu", "--json", "--no-floor"), 0, "%s", err);
    const int64_t own = number(out, "points");
    cr_assert_eq(
        RUN("plan", "--backend", "cpu", "--json", "--no-floor", "--scale", "0.48", "--crop=32,176"),
        0, "%s", err);
    cr_expect_eq(number(out, "points"), own, "what images of 1600 x 900 get by themselves");
    cr_assert_eq(RUN("plan", "--backend", "cpu", "--json", "--no-floor", "--scale=0.44"), 0, "%s",
                 err);
    cr_expect_neq(number(out, "points"), own);
    cr_expect_eq(RUN("plan", "--backend", "cpu", "--no-floor", "--crop=65,176"), 1);
    cr_expect_not_null(strstr(err, "704 x 256 px from (65, 176) on is not within its image, which "
                                   "is 768 x 432 px after scaling by 0.48"),
                       "%s", err);
    cr_expect_eq(RUN("plan", "--backend", "cpu", "--no-floor", "--scale=0.3"), 1);
    cr_expect_eq(RUN("plan", "--scale=0"), 2);
    cr_expect_eq(RUN("plan", "--crop=1"), 2);
    remove_directory(directory);
}

Test(tool, voxelize_counts_draws_and_crops)
{
    // Points of two voxels of 1 m, of which one is outside the range, with a fourth column.
    static const float points[5][4] = {{0.1f, 0.2f, 0.3f, 9},
                                       {0.9f, 0.2f, 0.3f, 8},
                                       {1.5f, 0.2f, 0.3f, 7},
                                       {1.6f, 0.2f, 0.3f, 7},
                                       {90.0f, 0.0f, 0.0f, 1}};
    char directory[4096], file[4200], png[4200], out[8192], err[8192], error[256];
    picture p;
    make_directory(directory, sizeof directory);
    snprintf(file, sizeof file, "%s/map", directory);
    snprintf(png, sizeof png, "%s/a.png", directory);
    cr_assert(npy_write(file, NPY_F32, 5, 4, points, error, sizeof error), "%s", error);
    cr_assert_eq(RUN("voxelize", file, "--backend", "cpu", "--size=1", "--json", "--out", png), 0,
                 "%s", err);
    cr_expect_eq(number(out, "points"), 5);
    cr_expect_eq(number(out, "columns"), 4);
    cr_expect_eq(number(out, "voxels"), 3);
    cr_expect_eq(number(out, "longest"), 2);
    cr_expect_eq(number(out, "pairs"), 5);
    cr_expect_not_null(strstr(out, "\"map_us\":"));
    cr_assert(picture_read_png(png, &p, error, sizeof error), "%s", error);
    cr_expect_gt(sum_of(&p), 18 * 3 * p.width * p.height);
    picture_destroy(&p);
    cr_assert_eq(RUN("voxelize", file, "--backend=cpu", "--size=1,1,2", "--json", "--no-time",
                     "--out=", "--range=0,0,0,10,10,2"),
                 0, "%s", err);
    cr_expect_eq(number(out, "voxels"), 2);
    cr_expect_eq(number(out, "left_out"), 1);
    cr_assert_eq(RUN("voxelize", file, "--backend=cpu", "--no-time", "--out="), 0, "%s", err);
    cr_expect_not_null(strstr(out, "voxels    5 of 0.1 x 0.1 x 0.1 m"), "%s", out);
    cr_expect_eq(RUN("voxelize"), 2);
    cr_expect_eq(RUN("voxelize", file, "--size=1,2"), 2);
    cr_expect_eq(RUN("voxelize", file, "--size=x"), 2);
    cr_expect_eq(RUN("voxelize", file, "--range=0,1"), 2);
    cr_expect_eq(RUN("voxelize", file, "--size=0"), 2);
    cr_expect_not_null(strstr(err, "--size is 0, expected more than 0"), "%s", err);
    cr_expect_eq(RUN("voxelize", file, "--range=0,0,0,10,0,2"), 2);
    cr_expect_eq(RUN("voxelize", file, "--backend=cpu", "--no-time", "--out=/nonexistent/x.png"),
                 1);
    cr_expect_not_null(strstr(err, "/nonexistent/x.png: No such file"), "%s", err);
    cr_expect_eq(RUN("voxelize", file, "again.npy"), 2);
    cr_expect_not_null(strstr(err, "'again.npy' is one too many: FILE is"), "%s", err);
    cr_expect_eq(RUN("voxelize", SPOPS_SOURCE_DIR "/README.md"), 1);
    cr_assert(npy_write(file, NPY_F32, 5, 2, points, error, sizeof error), "%s", error);
    cr_expect_eq(RUN("voxelize", file, "--backend=cpu"), 1);
    cr_expect_not_null(strstr(err, "has 2 columns, expected x y z at least"), "%s", err);
    cr_assert(npy_write(file, NPY_U8, 5, 2, points, error, sizeof error), "%s", error);
    cr_expect_eq(RUN("voxelize", file, "--backend=cpu"), 1);
    cr_expect_not_null(strstr(err, "is |u1 of shape [5, 2], expected <f4, <f2 or <f8 of shape"),
                       "%s", err);
    remove_directory(directory);
}

// The files that people have: read by voxelize, plan and demo alike.
Test(tool, reads_the_files_that_people_have, .timeout = 600)
{
    static const char *const classes[] = {"road ", "person "};
    float points[400][4];
    char directory[4096], file[4200], out[1 << 15], err[8192], error[256];
    picture p;
    make_directory(directory, sizeof directory);
    // A flat road under a sensor, and a wall beside it.
    for (int i = 0; i < 400; ++i) {
        points[i][0] = (float)(i % 20) - 10;
        points[i][1] = i < 200 ? (float)(i / 20) - 5 : 6;
        points[i][2] = i < 200 ? -1.75f : (float)(i / 20 - 10) * 0.25f - 1.5f;
        points[i][3] = i < 200 ? 50 : 100;
    }
    for (int k = 0; k < NUM_CLOUD_CASES; ++k) {
        size_t bytes;
        unsigned char *data = cloud_case_bytes((cloud_case)k, points[0], 400, &bytes);
        snprintf(file, sizeof file, "%s/%s", directory, cloud_case_name((cloud_case)k));
        FILE *f = fopen(file, "wb");
        cr_assert(f != NULL && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
        free(data);
        cr_assert_eq(
            RUN("voxelize", file, "--backend=cpu", "--size=2", "--json", "--no-time", "--out="), 0,
            "%s", err);
        cr_expect_eq(number(out, "points"), 400);
        cr_expect_eq(number(out, "voxels"), 80, "%s", out);
        cr_assert_eq(RUN("plan", file, "--backend=cpu", "--json"), 0, "%s", err);
        cr_expect_not_null(strstr(out, "zorder_div"), "%s", out);
        if (k < NUM_CLOUD_CASES - 1) remove(file);
    }
    cr_assert_eq(RUN("demo", "--scan", file, "--out", directory, "--backend=cpu"), 0, "%s", err);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; ++i)
        cr_expect_not_null(strstr(out, classes[i]), "%s", out);
    cr_expect_not_null(strstr(out, "(LAS): 400 points, 0 further than 60 m left out"), "%s", out);
    cr_expect_null(strstr(out, "IoU"));
    cr_assert_eq(RUN("demo", "--scan", file, "--out", directory, "--backend=cpu", "--json"), 0,
                 "%s", err);
    cr_expect_eq(number(out, "left_out"), 0);
    remove(file);
    snprintf(file, sizeof file, "%s/demo_segment.png", directory);
    cr_assert(picture_read_png(file, &p, error, sizeof error), "%s", error);
    picture_destroy(&p);
    // Of a map, or nowhere near: no scan of a sensor.
    for (int i = 0; i < 400; ++i)
        points[i][0] += 5e6f;
    snprintf(file, sizeof file, "%s/far.npy", directory);
    cr_assert(npy_write(file, NPY_F32, 400, 4, points, error, sizeof error));
    cr_expect_eq(RUN("demo", "--scan", file, "--out", directory, "--backend=cpu"), 1);
    cr_expect_not_null(strstr(err, "no point within 60 m"), "%s", err);
    remove(file);
    cr_expect_eq(RUN("demo", "--scan", "/nowhere.pcd", "--out", directory), 1);
    cr_expect_not_null(strstr(err, "/nowhere.pcd: No such file"), "%s", err);
    remove_directory(directory);
}

Test(tool, plan_refuses_damaged_files)
{
    static const int32_t maps[][7] = {
        {1, 5, 3, 6, 0, 0, 5}, // the cell is past the last
        {1, 5, 3, 6, 6, 0, 0}, // so is the depth element
        {1, 5, 3, 6, 0, 3, 0}, // and the row
        {1, 0, 3, 6, 0, 0, 0}, // no cells
        {1, 5, 0, 6, 0, 0, 0}, // no rows
        {1, 5, 4, 6, 0, 0, 0}, // no whole number of depths
        {2, 5, 3, 6, 0, 0, 0}, // shorter than it says: no map, and no saved plan either
        {-1, 5, 3, 6, 0, 0, 0},
    };
    char directory[4096], file[4200], out[8192], err[8192];
    make_directory(directory, sizeof directory);
    snprintf(file, sizeof file, "%s/map", directory);
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; ++i) {
        FILE *f = fopen(file, "wb");
        cr_assert(f != NULL && fwrite(maps[i], sizeof maps[i], 1, f) == 1 && fclose(f) == 0);
        cr_expect_eq(RUN("plan", file, "--backend", "cpu", "--no-floor"), 1, "map %zu", i);
        cr_expect(strncmp(err, "spops plan: ", 12) == 0 && strstr(err, file) != NULL, "%s", err);
        cr_expect_str_eq(out, "");
    }
    snprintf(file, sizeof file, "%s/rig.json", directory);
    FILE *f = fopen(file, "wb");
    cr_assert(f != NULL && fputs("  {\"cameras\": 1}", f) >= 0 && fclose(f) == 0);
    cr_expect_eq(RUN("plan", file, "--backend", "cpu"), 1);
    cr_expect_not_null(strstr(err, "cameras is an integer, expected an array"), "%s", err);
    remove_directory(directory);
}

Test(tool, wrong_usage_ends_with_2)
{
    static const char *const wrong[][4] = {
        {"frob"},
        {"demo", "--size", "c"},
        {"demo", "--size"},
        {"demo", "--cols", "3"},
        {"demo", "--cols", "80x"},
        {"demo", "--backend", "gpu"},
        {"demo", "--dtype", "f64"},
        {"demo", "--dtype", "nvfp4", "--cols=17"},
        {"demo", "--out="},
        {"demo", "--task", "frob"},
        {"demo", "--task=segment", "--dtype=f16"},
        {"demo", "extra"},
        {"plan", "--setting", "z"},
        {"plan", "--frame", "world"},
        {"plan", "--frob"},
        {"plan", "a", "b"},
        {"info", "--verbose"},
    };
    char directory[4096], out[8192], err[8192];
    make_directory(directory, sizeof directory);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        int argc = 0;
        while (argc < 4 && wrong[i][argc] != NULL)
            ++argc;
        cr_expect_eq(run_tool(directory, out, err, sizeof out, argc, wrong[i]), 2, "case %zu", i);
        cr_expect_str_eq(out, "");
        cr_expect_not_null(strstr(err, "--help'"), "case %zu: %s", i, err);
    }
    cr_expect_eq(run_tool(directory, out, err, sizeof out, 0, wrong[0]), 2);
    cr_expect_eq(RUN("demo", "--out", "/nonexistent/x"), 1);
    cr_expect_not_null(strstr(err, "/nonexistent/x: "), "%s", err);
    remove_directory(directory);
}

Test(tool, help_and_info)
{
    static const char *const commands[] = {"demo", "scan", "plan", "info", "run"};
    char directory[4096], out[8192], err[8192];
    make_directory(directory, sizeof directory);
    for (int i = 0; i < 5; ++i) {
        cr_expect_eq(RUN(commands[i], "--help"), 0);
        cr_expect(strncmp(out, "Usage: spops ", 13) == 0, "%s", out);
        cr_expect_str_eq(err, "");
    }
    cr_expect_eq(RUN("--help"), 0);
    cr_expect_not_null(strstr(out, "\n  bench "), "%s", out);
    cr_expect_eq(RUN("bench", "--help"), 0);
#ifndef SPOPS_WITH_BENCH
    cr_expect_eq(RUN("bench", "bev", "--maps", "b"), 1);
    cr_expect_not_null(strstr(err, "this build is without bench: configure it with SPOPS_BENCH=ON"),
                       "%s", err);
#endif
    cr_expect_eq(RUN("help", "plan"), 0);
    cr_expect(strncmp(out, "Usage: spops plan ", 18) == 0, "%s", out);
    cr_expect_eq(RUN("plan", "--usage"), 0);
    cr_expect_not_null(strstr(out, "[--save=OUT]"), "%s", out);
    cr_expect_eq(RUN("help", "frob"), 2);
    cr_expect_eq(RUN("help", "--manual"), 0);
    cr_expect_not_null(strstr(out, ".TP\n\\fB\\-\\-setting\\fR"), "%s", out);
    cr_expect_eq(RUN("help", "--completion"), 0);
    cr_expect_not_null(strstr(out, "demo:--size) words=\"a b\" ;;"), "%s", out);
    cr_expect_eq(RUN("--version"), 0);
    cr_expect_not_null(strstr(out, spops_version()));
    cr_expect_eq(RUN("info"), 0);
    cr_expect_not_null(strstr(out, "cpu  0"), "%s", out);
    cr_expect_eq(RUN("info", "--json"), 0);
    json_t *line = json_loads(out, 0, NULL);
    cr_assert_not_null(line, "%s", out);
    cr_expect_geq(json_array_size(json_object_get(line, "devices")), 1);
    cr_expect_eq(json_boolean_value(json_object_get(line, "cuda_backend")), spops_has_cuda() != 0);
    cr_expect_null(json_object_get(line, "report"));
    json_decref(line);
    // The report: each line of the text is in the object too.
    setenv("SPOPS_TEST_REPORT", "a b\"c", 1);
    cr_expect_eq(RUN("info", "--report"), 0);
    static const char *const reported[] = {
        "commit", "flags",     "options",       "instruction sets", "sanitizers",  "CUDA compiler",
        "system", "processor", "NVIDIA driver", "made with",        "log of calls"};
    for (size_t i = 0; i < sizeof reported / sizeof *reported; ++i)
        cr_expect_not_null(strstr(out, reported[i]), "no %s in\n%s", reported[i], out);
    cr_expect_not_null(strstr(out, " SPOPS_TEST_REPORT=a b\"c\n"), "%s", out);
    cr_expect_not_null(strstr(out, "cpu  0"), "%s", out);
    cr_expect_eq(RUN("info", "--report", "--json"), 0);
    line = json_loads(out, 0, NULL);
    const json_t *said = json_object_get(line, "report");
    for (size_t i = 0; i < sizeof reported / sizeof *reported; ++i)
        cr_expect(json_string_length(json_object_get(said, reported[i])) > 0, "%s", reported[i]);
    cr_expect_str_eq(json_string_value(json_object_get(json_object_get(said, "environment"),
                                                       "SPOPS_TEST_REPORT")),
                     "a b\"c");
    json_decref(line);
    remove_directory(directory);
}

// A file of one layer and a dense grid, for voxels of 1 m.
static void write_model(const char *path)
{
    static uint16_t weight[8 * 27 * 6], bias[8];
    const int size[3] = {8, 96, 96};
    const int64_t in[2] = {100, 6}, flat[4] = {1, 64, 96, 96};
    onnx_file f;
    onnx_conv c = {.name = "conv0",
                   .x = "0",
                   .out = "1",
                   .rulebook = "fine",
                   .activation = "ReLU",
                   .in = 6,
                   .out_cols = 8,
                   .kernel = {3, 3, 3},
                   .stride = {1, 1, 1},
                   .padding = {1, 1, 1},
                   .in_shape = {8, 96, 96},
                   .out_shape = {8, 96, 96},
                   .subm = 1,
                   .output_bound = 20000,
                   .weight = weight,
                   .bias = bias};
    for (size_t i = 0; i < sizeof weight / sizeof *weight; ++i)
        weight[i] = (uint16_t)(0x2000 + i * 37 % 1024 + (i % 2 << 15));
    for (int i = 0; i < 8; ++i)
        bias[i] = 0x3c00; // 1
    onnx_file_begin(&f);
    onnx_put_conv(&f, &c);
    onnx_put_scatter(&f, "scatter0", "1", "2", "zyx", 1, 8, size);
    onnx_put_ints(&f, "Reshape", "reshape0", "2", "3", "dims", 4, flat);
    onnx_value(&f, 11, "0", ONNX_FLOAT16, 2, in);
    onnx_value(&f, 12, "3", ONNX_FLOAT16, 4, flat);
    onnx_value(&f, 12, "1", ONNX_FLOAT16, 2, in);
    onnx_file_end(&f);
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL && fwrite(f.model.data, 1, f.model.num, file) == f.model.num);
    cr_assert_eq(fclose(file), 0);
    onnx_file_free(&f);
}

Test(tool, runs_and_plans_a_model, .timeout = 120)
{
    char directory[4096], model[4200], scan_path[4200], path[4300], out[16384], err[8192];
    char error[256];
    make_directory(directory, sizeof directory);
    snprintf(model, sizeof model, "%s/small.onnx", directory);
    snprintf(scan_path, sizeof scan_path, "%s/scan_000001.npy", directory);
    write_model(model);
    cr_assert_eq(RUN("scan", "--out", directory, "--beams", "16", "--columns", "200"), 0, "%s",
                 err);
    cr_assert_eq(RUN("run", model, scan_path, "--size", "1,1,1", "--origin=-48,-48,-3", "--runs",
                     "3", "--backend", "cpu", "--out", directory, "--json"),
                 0, "%s", err);
    json_t *line = json_loads(out, 0, NULL);
    cr_assert_not_null(line, "%s", out);
    const int64_t rows = json_integer_value(json_array_get(json_object_get(line, "rows"), 0));
    const int64_t points = json_integer_value(json_object_get(line, "points"));
    cr_expect(rows > 100 && rows < points && points < 3200, "%d rows", (int)rows);
    cr_expect(json_real_value(json_object_get(line, "p50_us")) > 0 &&
              json_real_value(json_object_get(line, "p50_us")) <=
                  json_real_value(json_object_get(line, "p99_us")));
    const json_t *outputs = json_object_get(line, "outputs");
    cr_assert_eq(json_array_size(outputs), 2);
    // Both outputs hold the same numbers, and the files as many as were counted.
    int64_t nonzero[2] = {0, 0}, read_rows;
    for (int i = 0; i < 2; ++i) {
        float *values = NULL;
        snprintf(path, sizeof path, "%s/output_%d.npy", directory, i);
        cr_assert(npy_read(path, NPY_F32, i == 0 ? 96 : 8, &read_rows, (void **)&values, error,
                           sizeof error),
                  "%s", error);
        cr_expect_eq(read_rows, i == 0 ? 64 * 96 : rows);
        for (int64_t k = 0; k < read_rows * (i == 0 ? 96 : 8); ++k)
            nonzero[i] += values[k] != 0;
        free(values);
        cr_expect_eq(
            json_integer_value(json_object_get(json_array_get(outputs, (size_t)i), "nonzero")),
            nonzero[i]);
    }
    cr_expect(nonzero[0] > rows && nonzero[0] == nonzero[1]);
    json_decref(line);

    // No point is in the grid: an output without elements is 0 to 0.
    cr_assert_eq(RUN("run", model, scan_path, "--size", "1,1,1", "--origin=5000,5000,5000",
                     "--runs", "1", "--backend", "cpu", "--json"),
                 0, "%s", err);
    line = json_loads(out, 0, NULL);
    cr_assert_eq(json_array_size(json_object_get(line, "outputs")), 2, "%s", out);
    outputs = json_array_get(json_object_get(line, "outputs"), 1);
    cr_expect(json_is_real(json_object_get(outputs, "least")), "%s", out);
    cr_expect(json_real_value(json_object_get(outputs, "most")) == 0, "%s", out);
    json_decref(line);

    cr_assert_eq(RUN("run", model, scan_path, "--size", "1,1,1", "--origin=-48,-48,-3", "--runs",
                     "1", "--backend", "cpu", "--widen"),
                 0, "%s", err);
    cr_expect_not_null(strstr(out, "output 3   f32 [1, 64, 96, 96]: 0 to "), "%s", out);
    cr_assert_eq(RUN("plan", model, "--points", "3000", "--time", "--backend", "cpu", "--size",
                     "1,1,1", "--origin=-48,-48,-3"),
                 0, "%s", err);
    cr_expect_not_null(strstr(out, "conv0"), "%s", out);
    cr_expect_not_null(strstr(out, "peak, all together"), "%s", out);
    cr_expect_not_null(strstr(out, " points: p50 "), "%s", out);
    cr_assert_eq(RUN("plan", model, "--points", "3000", "--scan", scan_path, "--time", "--backend",
                     "cpu", "--json", "--size", "1,1,1", "--origin=-48,-48,-3"),
                 0, "%s", err);
    line = json_loads(out, 0, NULL);
    cr_assert_not_null(line, "%s", out);
    cr_expect_eq(json_integer_value(json_object_get(line, "points")), points);
    cr_expect_eq(json_array_size(json_object_get(line, "layers")), 5);
    cr_expect_geq(json_integer_value(json_object_get(line, "weight_bytes")), 27 * 8 * 8 * 2 + 32);
    int64_t sum = 0;
    static const char *const parts[] = {"weight_bytes", "plan_bytes",   "feature_bytes",
                                        "input_bytes",  "output_bytes", "scratch_bytes"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i)
        sum += json_integer_value(json_object_get(line, parts[i]));
    cr_expect_eq(json_integer_value(json_object_get(line, "peak_bytes")), sum);
    json_decref(line);

    cr_expect_eq(RUN("run", model), 2);
    cr_expect_not_null(strstr(err, "MODEL and SCAN are needed"), "%s", err);
    cr_expect_eq(RUN("run", model, scan_path, "more"), 2);
    cr_expect_not_null(strstr(err, "'more' is one too many"), "%s", err);
    cr_expect_eq(RUN("run", scan_path, scan_path, "--backend", "cpu"), 1);
    cr_expect_not_null(strstr(err, "spops run: model_load_file: byte 0: model: "), "%s", err);
    cr_expect_eq(RUN("run", model, scan_path, "--max-rows", "5", "--backend", "cpu", "--size",
                     "1,1,1", "--origin=-48,-48,-3"),
                 1);
    cr_expect_not_null(strstr(err, "model_check_sync: the input has more rows than the 5 "), "%s",
                       err);
    cr_expect_eq(RUN("run", model, scan_path, "--size", "0,1,1", "--backend", "cpu"), 1);
    cr_expect_not_null(strstr(err, "--size has 0, expected more than 0"), "%s", err);
    cr_expect_eq(RUN("plan", "--setting", "a", "--time", "--dtype", "nvfp4"), 2);
    cr_expect_not_null(strstr(err, "--time takes f32, f16 or bf16, not nvfp4"), "%s", err);
    cr_assert_eq(
        RUN("plan", "--setting", "a", "--time", "--no-floor", "--backend", "cpu", "--json"), 0,
        "%s", err);
    line = json_loads(out, 0, NULL);
    cr_assert_not_null(line, "%s", out);
    cr_expect_gt(json_real_value(json_object_get(line, "p50_us")), 0.0);
    cr_expect_gt(json_integer_value(json_object_get(line, "peak_bytes")),
                 json_integer_value(json_object_get(line, "plan_bytes")));
    json_decref(line);
    remove_directory(directory);
}
