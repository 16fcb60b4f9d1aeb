// SPDX-License-Identifier: Apache-2.0
// The rig reader: what it takes, what it refuses with which words, and that damage never gets
// through as a rig with numbers that are not finite.
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rig_default.h"
#include "tools/rig_json.h"
#include "tools/settings.h"

#define K  "[[1000, 0, 800], [0, 1000, 450], [0, 0, 1]]"
#define E4 "[[0, 0, 1, 1.5], [-1, 0, 0, 0.25], [0, -1, 0, 1.5], [0, 0, 0, 1]]"
#define T4 "[[1, 0, 0, 10], [0, 1, 0, 20], [0, 0, 1, 30], [0, 0, 0, 1]]"
#define CAMERA(name, width, height, k, pose)                                                       \
    "{\"name\": " name ", \"width\": " width ", \"height\": " height ", \"intrinsics\": " k        \
    ", \"cam2ego\": " pose "}"
#define RIG(camera) "{\"cameras\": [" camera "]}"
#define GOOD        CAMERA("\"front\"", "1600", "900", K, E4)

static void check_refused(const char *text, const char *message)
{
    rig r;
    char error[RIG_ERROR_BYTES];
    memset(&r, 0xff, sizeof r);
    cr_expect_not(rig_parse(text, strlen(text), &r, error, sizeof error), "taken: %s", text);
    cr_expect_str_eq(error, message);
    cr_expect_null(r.cameras);
    cr_expect_eq(r.num_cameras, 0);
    rig_free(&r);
}

Test(rig_json, reads_what_is_there)
{
    static const char text[] =
        "{\"lidar2ego\": " T4 ", \"other\": [1, {\"deep\": null}], \"cameras\": [" GOOD
        ", {\"name\": \"R\\u00fcck\", \"width\": 640, \"height\": 1, \"intrinsics\": " K
        ", \"cam2ego\": " T4 ", \"cam2lidar\": " E4 "}]}";
    rig r;
    char error[RIG_ERROR_BYTES];
    double m[16];
    cr_assert(rig_parse(text, sizeof text - 1, &r, error, sizeof error), "%s", error);
    cr_assert_eq(r.num_cameras, 2);
    cr_expect(r.has_lidar2ego);
    cr_expect_str_eq(r.cameras[0].name, "front");
    cr_expect_str_eq(r.cameras[1].name, "R\xc3\xbc"
                                        "ck");
    cr_expect_eq(r.cameras[0].width, 1600);
    cr_expect_eq(r.cameras[1].height, 1);
    cr_expect_eq(r.cameras[0].intrinsics[5], 450.0);
    cr_expect_eq(r.cameras[0].cam2ego[3], 1.5);
    cr_expect_eq(r.cameras[0].cam2ego[4], -1.0);
    cr_expect_not(r.cameras[0].has_cam2lidar);
    cr_expect(r.cameras[1].has_cam2lidar);

    // One camera has no cam2lidar: only the mounting is known for all.
    cr_expect_not(rig_has_lidar(&r));
    cr_expect_eq(rig_best_ego_frame(&r), RIG_FRAME_EGO);
    cr_expect(rig_camera_to(&r, 1, RIG_FRAME_EGO, m, error, sizeof error));
    cr_expect_eq(m[3], 10.0);
    cr_expect(rig_camera_to(&r, 1, RIG_FRAME_LIDAR, m, error, sizeof error));
    cr_expect_eq(m[3], 1.5);
    cr_expect(rig_camera_to(&r, 1, RIG_FRAME_EGO_BY_LIDAR, m, error, sizeof error));
    cr_expect_eq(m[3], 11.5); // 10 + 1.5
    cr_expect_eq(m[7], 20.25);
    cr_expect_eq(m[2], 1.0);
    cr_expect_eq(m[15], 1.0);
    cr_expect_not(rig_camera_to(&r, 0, RIG_FRAME_LIDAR, m, error, sizeof error));
    cr_expect_str_eq(error, "cameras[0].cam2lidar is missing");
    cr_expect_not(rig_camera_to(&r, 2, RIG_FRAME_EGO, m, error, sizeof error));
    rig_free(&r);
    rig_free(&r);
    rig_free(NULL);
}

Test(rig_json, refuses_with_key_and_element)
{
    check_refused("", "the rig is empty, expected a JSON object");
    check_refused("[]", "the rig is an array, expected an object");
    check_refused("{}", "cameras is missing, expected an array");
    check_refused("{\"cameras\": {}}", "cameras is an object, expected an array");
    check_refused("{\"cameras\": []}", "cameras has 0 elements, expected 1 to 256");
    check_refused("{\"cameras\": [3]}", "cameras[0] is an integer, expected an object");
    check_refused("{\"lidar2ego\": null, \"cameras\": [" GOOD "]}",
                  "lidar2ego is null, expected an array of 4 rows");
    check_refused(RIG(CAMERA("1", "1600", "900", K, E4)),
                  "cameras[0].name is an integer, expected a string");
    check_refused(RIG(CAMERA("\"a\\nb\"", "1600", "900", K, E4)),
                  "cameras[0].name has the control character 0x0a at byte 1");
    check_refused(RIG(GOOD ", " CAMERA("\"b\"", "0", "900", K, E4)),
                  "cameras[1].width is 0, expected 1 to 65536");
    check_refused(RIG(CAMERA("\"b\"", "16.5", "900", K, E4)),
                  "cameras[0].width is a real number, expected an integer");
    check_refused(RIG(CAMERA("\"b\"", "1600", "70000", K, E4)),
                  "cameras[0].height is 70000, expected 1 to 65536");
    check_refused(RIG(CAMERA("\"b\"", "1600", "900", "[[1, 2, 3], [4, 5, 6]]", E4)),
                  "cameras[0].intrinsics has 2 rows, expected 3");
    check_refused(RIG(CAMERA("\"b\"", "1600", "900", "[[1, 0, 3], [0, 5], [0, 0, 1]]", E4)),
                  "cameras[0].intrinsics[1] has 2 elements, expected 3");
    check_refused(RIG(CAMERA("\"b\"", "1600", "900", "[[1, 0, 3], 7, [0, 0, 1]]", E4)),
                  "cameras[0].intrinsics[1] is an integer, expected an array of 3 numbers");
    check_refused(RIG(CAMERA("\"b\"", "1600", "900", "[[1, 0, 3], [0, \"5\", 0], [0, 0, 1]]", E4)),
                  "cameras[0].intrinsics[1][1] is a string, expected a number");
    check_refused(RIG(CAMERA("\"b\"", "1600", "900", "[[1, 0, 3], [0, 5, 0], [0, 0, 2]]", E4)),
                  "cameras[0].intrinsics[2][2] is 2, expected 1");
    check_refused(RIG(CAMERA("\"b\"", "1600", "900", K,
                             "[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 1]]")),
                  "cameras[0].cam2ego[3][2] is 0.5, expected 0");
    check_refused(RIG(CAMERA("\"b\"", "1600", "900", K, "7")),
                  "cameras[0].cam2ego is an integer, expected an array of 4 rows");
}

Test(rig_json, refuses_what_is_no_json_of_ours)
{
    static const char *const texts[] = {
        "{",
        "nonsense",
        "{\"cameras\": [" GOOD "]} trailing",
        "{\"cameras\": [], \"cameras\": []}",
        "{\"cameras\": [{\"name\": \"\xff\"}]}",
        "{\"cameras\": [1e999]}",
        "{\"cameras\": [123456789012345678901234567890]}",
        "{\"cameras\": [NaN]}",
        "{\"cameras\": [{\"name\": \"a\\u0000b\"}]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
        rig r;
        char error[RIG_ERROR_BYTES] = "";
        cr_expect_not(rig_parse(texts[i], strlen(texts[i]), &r, error, sizeof error), "%s",
                      texts[i]);
        cr_expect(strncmp(error, "line ", 5) == 0, "%s", error);
        for (const char *c = error; *c != '\0'; ++c)
            cr_expect(*c >= 32 && *c < 127, "message has the byte 0x%02x", (unsigned char)*c);
    }
}

Test(rig_json, long_names_and_many_cameras)
{
    char text[1024], error[RIG_ERROR_BYTES];
    char name[80];
    rig r;
    memset(name, 'n', sizeof name);
    for (int length = 63; length <= 64; ++length) {
        snprintf(text, sizeof text, RIG(CAMERA("\"%.*s\"", "1600", "900", K, E4)), length, name);
        const bool ok = rig_parse(text, strlen(text), &r, error, sizeof error);
        cr_expect_eq(ok, length == 63, "%d: %s", length, error);
        if (ok) cr_expect_eq(strlen(r.cameras[0].name), 63);
        rig_free(&r);
    }
    const size_t each = strlen(GOOD ",");
    for (int count = RIG_MAX_CAMERAS; count <= RIG_MAX_CAMERAS + 1; ++count) {
        char *many = malloc(each * (size_t)count + 64);
        cr_assert_not_null(many);
        size_t at = (size_t)sprintf(many, "{\"cameras\": [");
        for (int i = 0; i < count; ++i)
            at += (size_t)sprintf(many + at, "%s%s", i > 0 ? "," : "", GOOD);
        at += (size_t)sprintf(many + at, "]}");
        cr_expect_eq(rig_parse(many, at, &r, error, sizeof error), count == RIG_MAX_CAMERAS);
        rig_free(&r);
        free(many);
    }
}

Test(rig_json, any_damage_is_refused_or_finite)
{
    // Every prefix, and every byte in turn replaced: no crash, and what is taken is sound. The copy
    // is exactly as large as the text, so that a sanitizer sees a byte too many being read.
    static const char text[] =
        "{\"lidar2ego\":" T4 ",\"cameras\":[{\"name\":\"f\",\"width\":16,\"height\":9,"
        "\"intrinsics\":" K ",\"cam2ego\":" E4 ",\"cam2lidar\":" E4 "}]}";
    static const char swaps[] = {'\0', '"', '{', '[', '9', 'e', '-', '\x80', ',', ' '};
    const size_t bytes = sizeof text - 1;
    int taken = 0;
    for (size_t i = 0; i < bytes * (1 + sizeof swaps); ++i) {
        const size_t kind = i / bytes, at = i % bytes;
        const size_t length = kind == 0 ? at : bytes;
        char *copy = malloc(length + (length == 0));
        char error[RIG_ERROR_BYTES] = "";
        rig r;
        cr_assert_not_null(copy);
        memcpy(copy, text, length);
        if (kind > 0) copy[at] = swaps[kind - 1];
        if (rig_parse(copy, length, &r, error, sizeof error)) {
            ++taken;
            cr_assert_eq(r.num_cameras, 1);
            for (int k = 0; k < 16; ++k)
                cr_assert(isfinite(r.cameras[0].cam2ego[k]));
            for (int k = 0; k < 9; ++k)
                cr_assert(isfinite(r.cameras[0].intrinsics[k]));
            cr_assert(r.cameras[0].width >= 1 && r.cameras[0].width <= RIG_MAX_IMAGE_PX);
        } else {
            cr_assert_neq(error[0], '\0');
            cr_assert_null(r.cameras);
        }
        rig_free(&r);
        free(copy);
    }
    cr_expect_gt(taken, 0, "some digits can change");
}

Test(rig_json, small_error_buffers)
{
    rig r;
    char error[4] = {'x', 'x', 'x', 'x'};
    cr_expect_not(rig_parse("{}", 2, &r, error, sizeof error));
    cr_expect_str_eq(error, "cam");
    cr_expect_not(rig_parse("{}", 2, &r, NULL, 0));
    cr_expect_not(rig_parse(NULL, 0, &r, error, sizeof error));
}

Test(rig_json, files)
{
    rig r;
    char error[RIG_ERROR_BYTES];
    cr_expect_not(rig_load("/nonexistent/rig.json", &r, error, sizeof error));
    cr_expect_str_eq(error, "/nonexistent/rig.json: No such file or directory");
    cr_expect_not(rig_load("/", &r, error, sizeof error));
    cr_expect_eq(r.num_cameras, 0);
    cr_assert(rig_load(SPOPS_SOURCE_DIR "/data/rig_six_cameras.json", &r, error, sizeof error),
              "%s", error);
    cr_expect_eq(r.num_cameras, 6);
    rig_free(&r);
}

Test(rig_json, shipped_rig_is_a_rig)
{
    rig r;
    char error[RIG_ERROR_BYTES];
    cr_assert(rig_parse((const char *)rig_six_cameras_json, rig_six_cameras_json_bytes, &r, error,
                        sizeof error),
              "%s", error);
    cr_assert_eq(r.num_cameras, 6);
    cr_expect_eq(rig_best_ego_frame(&r), RIG_FRAME_EGO);
    for (int i = 0; i < r.num_cameras; ++i) {
        const double *m = r.cameras[i].cam2ego;
        for (int a = 0; a < 3; ++a)
            for (int b = 0; b < 3; ++b) {
                double dot = 0.0;
                for (int k = 0; k < 3; ++k)
                    dot += m[4 * a + k] * m[4 * b + k];
                cr_expect_float_eq(dot, a == b ? 1.0 : 0.0, 1e-8, "camera %d is not a rotation", i);
            }
        const double det = m[0] * (m[5] * m[10] - m[6] * m[9]) -
                           m[1] * (m[4] * m[10] - m[6] * m[8]) + m[2] * (m[4] * m[9] - m[5] * m[8]);
        cr_expect_float_eq(det, 1.0, 1e-8);
        cr_expect_gt(m[11], 1.0);
        cr_expect_lt(m[11], 2.0);
        cr_expect_lt(fabs(m[10]), 0.02, "camera %d does not look along the ground", i);
    }
    rig_free(&r);
}

Test(rig_json, settings)
{
    rig r;
    char error[RIG_ERROR_BYTES];
    spops_bev_camera cameras[6];
    spops_bev_geometry g;
    cr_assert(rig_parse((const char *)rig_six_cameras_json, rig_six_cameras_json_bytes, &r, error,
                        sizeof error));
    cr_expect_null(setting_find("d"));
    cr_expect_null(setting_find(""));
    const bev_setting *b = setting_find("b");
    cr_assert_not_null(b);
    cr_assert(setting_geometry(b, &r, RIG_FRAME_EGO, cameras, &g, error, sizeof error));
    cr_expect_eq(g.shape.num_cameras, 6);
    cr_expect_eq(g.shape.num_cells_x, 360);
    cr_expect_eq(g.cameras, cameras);
    // Original pixel (x, y) to input pixel: scaled, then the crop's corner taken off.
    cr_expect_float_eq(cameras[0].image_to_input[0] * 1600.0 + cameras[0].image_to_input[2],
                       0.48 * 1600.0 - 32.0, 1e-9);
    cr_expect_float_eq(cameras[0].image_to_input[4] * 900.0 + cameras[0].image_to_input[5],
                       0.48 * 900.0 - 176.0, 1e-9);
    // Every name that is listed is there; batch elements have the same cameras.
    for (const char *at = SETTING_NAMES; *at != '\0'; at += strspn(at, ",")) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        at += strcspn(at, ",");
        const bev_setting *listed = setting_find(name);
        cr_assert_not_null(listed, "%s", name);
        cr_expect_eq(setting_num_cameras(listed, &r), strcmp(name, "a8") == 0 ? 48 : 6);
    }
    spops_bev_camera batch[48];
    cr_assert(
        setting_geometry(setting_find("a8"), &r, RIG_FRAME_EGO, batch, &g, error, sizeof error));
    cr_expect_eq(g.shape.num_batches, 8);
    cr_expect_eq(g.shape.num_cameras, 6);
    for (int i = 6; i < 48; ++i)
        cr_expect_eq(memcmp(&batch[i], &batch[i % 6], sizeof batch[i]), 0, "camera %d", i);
    cr_expect_not(setting_geometry(b, &r, RIG_FRAME_LIDAR, cameras, &g, error, sizeof error));
    cr_expect_str_eq(error, "cameras[0].cam2lidar is missing");
    rig_free(&r);
}
