// SPDX-License-Identifier: Apache-2.0
// Reads a rig with jansson. The text may be anything: sizes are limited before they are used, and
// what is quoted in a message is made printable.
#include "tools/rig_json.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

typedef struct reader {
    char *error;
    size_t error_bytes;
} reader;

// Always false, so that a failing function can return it.
__attribute__((format(printf, 2, 3))) static bool fail(const reader *r, const char *format, ...)
{
    if (r->error == NULL || r->error_bytes == 0) return false;
    va_list args;
    va_start(args, format);
    vsnprintf(r->error, r->error_bytes, format, args);
    va_end(args);
    for (char *c = r->error; *c != '\0'; ++c)
        if ((unsigned char)*c < 32 || (unsigned char)*c > 126) *c = '?';
    return false;
}

static const char *type_name(const json_t *value)
{
    if (value == NULL) return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

// An n x n matrix as n rows of n finite numbers; the last row must be 0 ... 0 1.
static bool read_matrix(const reader *r, const char *where, const json_t *value, int n, double *out)
{
    if (!json_is_array(value) || json_array_size(value) != (size_t)n) {
        if (json_is_array(value))
            return fail(r, "%s has %zu rows, expected %d", where, json_array_size(value), n);
        return fail(r, "%s is %s, expected an array of %d rows", where, type_name(value), n);
    }
    for (int i = 0; i < n; ++i) {
        const json_t *row = json_array_get(value, (size_t)i);
        if (!json_is_array(row))
            return fail(r, "%s[%d] is %s, expected an array of %d numbers", where, i,
                        type_name(row), n);
        if (json_array_size(row) != (size_t)n)
            return fail(r, "%s[%d] has %zu elements, expected %d", where, i, json_array_size(row),
                        n);
        for (int j = 0; j < n; ++j) {
            const json_t *element = json_array_get(row, (size_t)j);
            if (!json_is_number(element))
                return fail(r, "%s[%d][%d] is %s, expected a number", where, i, j,
                            type_name(element));
            const double v = json_number_value(element);
            if (!isfinite(v))
                return fail(r, "%s[%d][%d] is %g, expected a finite number", where, i, j, v);
            const double last = j == n - 1 ? 1.0 : 0.0;
            if (i == n - 1 && v != last)
                return fail(r, "%s[%d][%d] is %g, expected %g", where, i, j, v, last);
            out[i * n + j] = v;
        }
    }
    return true;
}

static bool read_pixels(const reader *r, const char *where, const json_t *value, int *out)
{
    if (!json_is_integer(value))
        return fail(r, "%s is %s, expected an integer", where, type_name(value));
    const json_int_t v = json_integer_value(value);
    if (v < 1 || v > RIG_MAX_IMAGE_PX)
        return fail(r, "%s is %lld, expected 1 to %d", where, (long long)v, RIG_MAX_IMAGE_PX);
    *out = (int)v;
    return true;
}

static bool read_camera(const reader *r, int i, const json_t *value, rig_camera *camera)
{
    char where[48];
    if (!json_is_object(value))
        return fail(r, "cameras[%d] is %s, expected an object", i, type_name(value));

    const json_t *name = json_object_get(value, "name");
    if (!json_is_string(name))
        return fail(r, "cameras[%d].name is %s, expected a string", i, type_name(name));
    const size_t length = json_string_length(name);
    if (length >= sizeof camera->name)
        return fail(r, "cameras[%d].name has %zu bytes, expected at most %zu", i, length,
                    sizeof camera->name - 1);
    memcpy(camera->name, json_string_value(name), length);
    camera->name[length] = '\0';
    for (size_t k = 0; k < length; ++k)
        if ((unsigned char)camera->name[k] < 32 || camera->name[k] == 127)
            return fail(r, "cameras[%d].name has the control character 0x%02x at byte %zu", i,
                        (unsigned)(unsigned char)camera->name[k], k);

    snprintf(where, sizeof where, "cameras[%d].width", i);
    if (!read_pixels(r, where, json_object_get(value, "width"), &camera->width)) return false;
    snprintf(where, sizeof where, "cameras[%d].height", i);
    if (!read_pixels(r, where, json_object_get(value, "height"), &camera->height)) return false;
    snprintf(where, sizeof where, "cameras[%d].intrinsics", i);
    if (!read_matrix(r, where, json_object_get(value, "intrinsics"), 3, camera->intrinsics))
        return false;
    snprintf(where, sizeof where, "cameras[%d].cam2ego", i);
    if (!read_matrix(r, where, json_object_get(value, "cam2ego"), 4, camera->cam2ego)) return false;
    const json_t *cam2lidar = json_object_get(value, "cam2lidar");
    camera->has_cam2lidar = cam2lidar != NULL;
    snprintf(where, sizeof where, "cameras[%d].cam2lidar", i);
    return cam2lidar == NULL || read_matrix(r, where, cam2lidar, 4, camera->cam2lidar);
}

static bool read_rig(const reader *r, const json_t *root, rig *out)
{
    if (!json_is_object(root)) return fail(r, "the rig is %s, expected an object", type_name(root));
    const json_t *lidar2ego = json_object_get(root, "lidar2ego");
    out->has_lidar2ego = lidar2ego != NULL;
    if (lidar2ego != NULL && !read_matrix(r, "lidar2ego", lidar2ego, 4, out->lidar2ego))
        return false;
    const json_t *cameras = json_object_get(root, "cameras");
    if (!json_is_array(cameras))
        return fail(r, "cameras is %s, expected an array", type_name(cameras));
    const size_t num_cameras = json_array_size(cameras);
    if (num_cameras < 1 || num_cameras > RIG_MAX_CAMERAS)
        return fail(r, "cameras has %zu elements, expected 1 to %d", num_cameras, RIG_MAX_CAMERAS);
    out->cameras = calloc(num_cameras, sizeof *out->cameras);
    if (out->cameras == NULL) return fail(r, "no memory for %zu cameras", num_cameras);
    out->num_cameras = (int)num_cameras;
    for (int i = 0; i < out->num_cameras; ++i)
        if (!read_camera(r, i, json_array_get(cameras, (size_t)i), &out->cameras[i])) return false;
    return true;
}

bool rig_parse(const char *text, size_t bytes, rig *out, char *error, size_t error_bytes)
{
    const reader r = {error, error_bytes};
    json_error_t json_error;

    memset(out, 0, sizeof *out);
    if (error != NULL && error_bytes > 0) error[0] = '\0';
    if (text == NULL || bytes == 0) return fail(&r, "the rig is empty, expected a JSON object");
    if (bytes > RIG_MAX_BYTES)
        return fail(&r, "the rig has %zu bytes, expected at most %zu", bytes, RIG_MAX_BYTES);
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
    if (root == NULL)
        return fail(&r, "line %d, column %d: %s", json_error.line, json_error.column,
                    json_error.text);
    const bool ok = read_rig(&r, root, out);
    json_decref(root);
    if (!ok) rig_free(out);
    return ok;
}

bool rig_load(const char *path, rig *out, char *error, size_t error_bytes)
{
    const reader r = {error, error_bytes};
    char *text = NULL;
    size_t bytes = 0, capacity = 0;
    bool ok = false;

    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return fail(&r, "%s: %s", path, strerror(errno));
    for (;;) { // in pieces, because what is opened need not be a file whose size can be asked for
        if (bytes == capacity) {
            capacity = capacity == 0 ? 65536 : 2 * capacity;
            char *grown = realloc(text, capacity);
            if (grown == NULL) {
                fail(&r, "%s: no memory for %zu bytes", path, capacity);
                goto done;
            }
            text = grown;
        }
        const size_t got = fread(text + bytes, 1, capacity - bytes, file);
        bytes += got;
        if (got == 0 || bytes > RIG_MAX_BYTES) break;
    }
    if (ferror(file)) {
        fail(&r, "%s: %s", path, strerror(errno));
        goto done;
    }
    char detail[RIG_ERROR_BYTES];
    ok = rig_parse(text, bytes, out, detail, sizeof detail);
    if (!ok) fail(&r, "%s: %s", path, detail);

done:
    free(text);
    fclose(file);
    return ok;
}

void rig_free(rig *r)
{
    if (r == NULL) return;
    free(r->cameras);
    memset(r, 0, sizeof *r);
}

bool rig_has_lidar(const rig *r)
{
    for (int i = 0; i < r->num_cameras; ++i)
        if (!r->cameras[i].has_cam2lidar) return false;
    return r->num_cameras > 0;
}

rig_frame rig_best_ego_frame(const rig *r)
{
    return r->has_lidar2ego && rig_has_lidar(r) ? RIG_FRAME_EGO_BY_LIDAR : RIG_FRAME_EGO;
}

bool rig_camera_to(const rig *r, int i, rig_frame frame, double matrix[16], char *error,
                   size_t error_bytes)
{
    const reader messages = {error, error_bytes};
    if (i < 0 || i >= r->num_cameras)
        return fail(&messages, "camera %d of a rig of %d", i, r->num_cameras);
    const rig_camera *camera = &r->cameras[i];
    if (frame != RIG_FRAME_EGO && !camera->has_cam2lidar)
        return fail(&messages, "cameras[%d].cam2lidar is missing", i);
    if (frame == RIG_FRAME_EGO_BY_LIDAR && !r->has_lidar2ego)
        return fail(&messages, "lidar2ego is missing");
    if (frame != RIG_FRAME_EGO_BY_LIDAR) {
        memcpy(matrix, frame == RIG_FRAME_LIDAR ? camera->cam2lidar : camera->cam2ego,
               16 * sizeof *matrix);
        return true;
    }
    for (int row = 0; row < 4; ++row)
        for (int col = 0; col < 4; ++col) {
            double sum = 0.0;
            for (int k = 0; k < 4; ++k)
                sum += r->lidar2ego[4 * row + k] * camera->cam2lidar[4 * k + col];
            matrix[4 * row + col] = sum;
        }
    return true;
}
