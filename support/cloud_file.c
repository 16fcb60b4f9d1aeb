// SPDX-License-Identifier: Apache-2.0
#include "support/cloud_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "support/cloud_records.h"
#include "support/elements.h"
#include "support/npy.h"

// Coordinates from here on are those of a map: f32 holds them in steps of 1 mm and more.
#define MAP_FROM_M 16384.0

enum { DIMS = 3 };

typedef enum kind { UNKNOWN, NPY, BIN, PCD, PLY, LAS } kind;

static bool ends_with(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcasecmp(name + n - m, ending) == 0;
}

static bool begins_with(const unsigned char *data, size_t bytes, const char *with)
{
    return bytes >= strlen(with) && memcmp(data, with, strlen(with)) == 0;
}

static kind kind_of(const char *name, const unsigned char *start, size_t bytes)
{
    if (begins_with(start, bytes, "\x93NUMPY")) return NPY;
    if (begins_with(start, bytes, "LASF")) return LAS;
    if (begins_with(start, bytes, "ply\n") || begins_with(start, bytes, "ply\r")) return PLY;
    if (begins_with(start, bytes, "# .PCD") || begins_with(start, bytes, "VERSION")) return PCD;
    if (ends_with(name, ".bin")) return BIN;
    return UNKNOWN;
}

bool cloud_file_is(const char *path, const unsigned char *start, size_t bytes)
{
    return kind_of(path, start, bytes) != UNKNOWN;
}

void cloud_file_free(cloud_file *cloud)
{
    free(cloud->values);
    memset(cloud, 0, sizeof *cloud);
}

bool cloud_file_widen(cloud_file *cloud)
{
    const int64_t count = cloud->num_points * cloud->cols;
    float *wide;
    if (cloud->dtype == SPOPS_DTYPE_F32) return true;
    wide = malloc((size_t)count * sizeof *wide + 1);
    if (wide == NULL) return false;
    for (int64_t i = 0; i < count; ++i)
        wide[i] = elements_float_of_f16(((const uint16_t *)cloud->values)[i]);
    free(cloud->values);
    cloud->values = wide;
    cloud->dtype = SPOPS_DTYPE_F32;
    return true;
}

// ---- Numbers of any type to f32 -------------------------------------------------------------------

// Columns as doubles: number c of point i.
typedef struct columns {
    int64_t num, cols;
    double (*number)(const void *of, int64_t i, int64_t c);
    const void *of;
    bool nan_is_missing;
} columns;

static bool is_missing(const columns *from, int64_t i)
{
    for (int64_t a = 0; from->nan_is_missing && a < DIMS; ++a)
        if (isnan(from->number(from->of, i, a))) return true;
    return false;
}

// What is subtracted from an axis of coordinates of a map.
static void choose_origin(const columns *from, double origin_m[DIMS])
{
    for (int a = 0; a < DIMS; ++a) {
        double lower = INFINITY, most = 0.0;
        for (int64_t i = 0; i < from->num; ++i) {
            const double at = from->number(from->of, i, a);
            if (!isfinite(at)) continue;
            lower = fmin(lower, at);
            most = fmax(most, fabs(at));
        }
        origin_m[a] = most >= MAP_FROM_M ? floor(lower) : 0.0;
    }
}

static bool fill(const cloud_source *s, const columns *from, cloud_file *out)
{
    float *values = malloc((size_t)(from->num * from->cols) * sizeof *values + 1);
    if (values == NULL) return cloud_fail(s, "no memory for its points");
    choose_origin(from, out->origin_m);
    out->num_points = 0;
    for (int64_t i = 0; i < from->num; ++i) {
        float *to = values + out->num_points * from->cols;
        if (is_missing(from, i)) {
            ++out->num_invalid;
            continue;
        }
        for (int64_t c = 0; c < from->cols; ++c)
            to[c] = (float)(from->number(from->of, i, c) - (c < DIMS ? out->origin_m[c] : 0.0));
        ++out->num_points;
    }
    out->values = values;
    out->cols = from->cols;
    out->dtype = SPOPS_DTYPE_F32;
    return true;
}

// ---- .pcd, .ply, .las -----------------------------------------------------------------------------

typedef struct chosen {
    const cloud_records *records;
    const cloud_field *fields[CLOUD_MOST_FIELDS];
    int64_t num;
} chosen;

static double chosen_number(const void *of, int64_t i, int64_t c)
{
    const chosen *picked = of;
    return cloud_number(picked->records, i, picked->fields[c]);
}

// Colours packed into the bits of one number are no number.
static bool is_number(const cloud_field *f)
{
    return f->name[0] != '\0' && strcmp(f->name, "rgb") != 0 && strcmp(f->name, "rgba") != 0;
}

static bool is_intensity(const char *name)
{
    static const char *const names[] = {"intensity", "i", "reflectance", "reflectivity",
                                        "scalar_intensity"};
    for (size_t k = 0; k < sizeof names / sizeof *names; ++k)
        if (strcasecmp(name, names[k]) == 0) return true;
    return false;
}

// x y z first, then the others in the file's order.
static bool choose_fields(const cloud_source *s, const cloud_records *r, chosen *to,
                          cloud_file *out)
{
    static const char *const axes[DIMS] = {"x", "y", "z"};
    bool taken[CLOUD_MOST_FIELDS] = {false};

    to->records = r;
    for (int a = 0; a < DIMS; ++a) {
        int f = 0;
        while (f < r->num_fields && strcasecmp(r->fields[f].name, axes[a]) != 0)
            ++f;
        if (f == r->num_fields)
            return cloud_fail(s, "has no field %s among its %d, expected x, y and z", axes[a],
                              r->num_fields);
        to->fields[to->num++] = &r->fields[f];
        taken[f] = true;
    }
    for (int f = 0; f < r->num_fields; ++f) {
        if (taken[f] || !is_number(&r->fields[f])) continue;
        if (out->intensity_col < 0 && is_intensity(r->fields[f].name)) out->intensity_col = to->num;
        to->fields[to->num++] = &r->fields[f];
    }
    return true;
}

static bool take_records(const cloud_source *s, kind what, cloud_file *out)
{
    cloud_records r = {0};
    chosen picked = {0};
    bool ok = what == PCD   ? cloud_records_of_pcd(s, &r)
              : what == PLY ? cloud_records_of_ply(s, &r)
                            : cloud_records_of_las(s, &r);
    ok = ok && choose_fields(s, &r, &picked, out);
    if (ok) {
        const columns from = {r.num, picked.num, chosen_number, &picked, r.nan_is_missing};
        ok = fill(s, &from, out);
        out->format = r.format;
    }
    free(r.owned);
    return ok;
}

// ---- .bin and .npy --------------------------------------------------------------------------------

// f32 [points, 4]: KITTI's x y z intensity; files named .pcd.bin are nuScenes's, which have the beam
// after them.
static bool take_bin(const cloud_source *s, cloud_file *out)
{
    const bool five = ends_with(s->name, ".pcd.bin");
    const size_t cols = five ? 5 : 4, row = cols * sizeof(float), num = s->bytes / row;
    if (s->bytes % row != 0)
        return cloud_fail(s, "has %zu bytes, expected a multiple of %zu: f32 [points, %zu], %s",
                          s->bytes, row, cols, five ? "x y z intensity beam" : "x y z intensity");
    if (num >= INT32_MAX)
        return cloud_fail(s, "has %zu points, expected less than %d", num, INT32_MAX);
    out->values = malloc(s->bytes + 1);
    if (out->values == NULL) return cloud_fail(s, "no memory for its points");
    memcpy(out->values, s->data, s->bytes);
    out->format = five ? "nuScenes .bin" : "KITTI .bin";
    out->num_points = (int64_t)num;
    out->cols = (int64_t)cols;
    out->dtype = SPOPS_DTYPE_F32;
    out->intensity_col = 3;
    return true;
}

static double f64_number(const void *of, int64_t i, int64_t c)
{
    const columns *all = of;
    return ((const double *)all->of)[i * all->cols + c];
}

static bool take_npy(const cloud_source *s, cloud_file *out)
{
    void *values = NULL;
    npy_type type;
    if (!npy_read_matrix(s->name, &type, &out->num_points, &out->cols, &values, s->error,
                         s->error_bytes))
        return false;
    out->format = ".npy";
    out->dtype = type == NPY_F16 ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
    out->intensity_col = out->cols > DIMS ? DIMS : -1;
    out->values = values;
    if (out->cols < DIMS)
        return cloud_fail(s, "has %" PRId64 " columns, expected x y z at least", out->cols);
    if (out->num_points >= INT32_MAX)
        return cloud_fail(s, "has %" PRId64 " points, expected less than %d", out->num_points,
                          INT32_MAX);
    if (type != NPY_F64) return true;
    const columns doubles = {.cols = out->cols, .of = values};
    const columns from = {out->num_points, out->cols, f64_number, &doubles, false};
    const bool ok = fill(s, &from, out);
    free(values);
    if (!ok) out->values = NULL;
    return ok;
}

// ---- Files ------------------------------------------------------------------------------------------

static bool take(const cloud_source *s, kind what, cloud_file *out)
{
    bool ok;
    memset(out, 0, sizeof *out);
    out->intensity_col = -1;
    ok = what == NPY   ? take_npy(s, out)
         : what == BIN ? take_bin(s, out)
                       : take_records(s, what, out);
    if (!ok) cloud_file_free(out);
    return ok;
}

bool cloud_file_parse(const char *name, const unsigned char *data, size_t bytes, cloud_file *out,
                      char *error, size_t error_bytes)
{
    const cloud_source s = {name, data, bytes, error, error_bytes};
    const kind what = kind_of(name, data, bytes);
    memset(out, 0, sizeof *out);
    if (what == UNKNOWN || what == NPY)
        return cloud_fail(&s, "is no cloud that is known, expected " CLOUD_FILE_FORMATS);
    return take(&s, what, out);
}

// All of a file, and a byte 0 after it. Of a .npy, which is read by itself, only the start.
static unsigned char *read_whole(const cloud_source *s, size_t *bytes)
{
    unsigned char *data = NULL;
    struct stat about;
    FILE *f = fopen(s->name, "rb");
    if (f == NULL) {
        cloud_fail(s, "%s", strerror(errno));
        return NULL;
    }
    if (fstat(fileno(f), &about) != 0 || !S_ISREG(about.st_mode)) {
        cloud_fail(s, "is no regular file, expected " CLOUD_FILE_FORMATS);
        goto done;
    }
    unsigned char start[16];
    const size_t started = fread(start, 1, sizeof start, f);
    const bool whole = kind_of(s->name, start, started) != NPY;
    *bytes = whole ? (size_t)about.st_size : started;
    rewind(f);
    data = malloc(*bytes + 1);
    if (data == NULL || fread(data, 1, *bytes, f) != *bytes) {
        cloud_fail(s, "%s", data == NULL ? "no memory for it" : "cannot be read");
        free(data);
        data = NULL;
        goto done;
    }
    data[*bytes] = '\0';

done:
    fclose(f);
    return data;
}

bool cloud_file_read(const char *path, cloud_file *out, char *error, size_t error_bytes)
{
    const cloud_source s = {.name = path, .error = error, .error_bytes = error_bytes};
    size_t bytes = 0;
    unsigned char *data;
    bool ok;

    memset(out, 0, sizeof *out);
    data = read_whole(&s, &bytes);
    if (data == NULL) return false;
    if (kind_of(path, data, bytes) == NPY)
        ok = take(&s, NPY, out);
    else
        ok = cloud_file_parse(path, data, bytes, out, error, error_bytes);
    free(data);
    return ok;
}
