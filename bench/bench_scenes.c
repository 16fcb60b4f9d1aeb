// SPDX-License-Identifier: Apache-2.0
// Clouds for benchmarks: loading them, and making some where there are no files.
#include "bench/bench_scenes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"

#define NPY_HEADER_BYTES 128

static FILE *open_data(const char *file)
{
    const char *dir = getenv("SPOPS_TEST_DATA");
    char path[600];
    snprintf(path, sizeof path, "%s/%s",
             dir != NULL && dir[0] != '\0' ? dir : SPOPS_SOURCE_DIR "/../shared/data", file);
    return fopen(path, "rb");
}

void *bench_load_npy(bench *b, const char *file, const char *type, int64_t *rows, int64_t *cols)
{
    char header[NPY_HEADER_BYTES + 1] = "";
    long long n = 0, m = 0;
    void *values = NULL;
    FILE *f = open_data(file);
    if (f == NULL) return NULL;
    if (fread(header, 1, NPY_HEADER_BYTES, f) == NPY_HEADER_BYTES) {
        const char *shape = strstr(header + 10, "'shape': (");
        if (shape != NULL && strstr(header + 10, type) != NULL &&
            sscanf(shape, "'shape': (%lld, %lld)", &n, &m) == 2 && n > 0 && m > 0 && m <= 4 &&
            (values = bench_host(b, n * m, 4)) != NULL &&
            fread(values, 4, (size_t)(n * m), f) != (size_t)(n * m)) {
            free(values);
            values = NULL;
        }
    }
    fclose(f);
    if (values == NULL) bench_fail(b, "%s: expected %s [n, 1 to 4]", file, type);
    *rows = n;
    *cols = m;
    return values;
}

static int by_row(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    for (int c = 0; c < 4; ++c)
        if (x[c] != y[c]) return x[c] < y[c] ? -1 : 1;
    return 0;
}

void bench_scene_unique(bench_scene *s)
{
    int64_t kept = 0;
    qsort(s->rows, (size_t)s->num_rows, 4 * sizeof *s->rows, by_row);
    for (int64_t i = 0; i < s->num_rows; ++i) {
        if (i > 0 && by_row(s->rows + 4 * i, s->rows + 4 * (i - 1)) == 0) continue;
        memmove(s->rows + 4 * kept++, s->rows + 4 * i, 4 * sizeof *s->rows);
    }
    s->num_rows = kept;
}

static void put_voxel(bench_scene *s, double x, double y, double z, double size)
{
    int32_t *row = s->rows + 4 * s->num_rows++;
    row[0] = 0;
    row[1] = (int32_t)floor(x / size);
    row[2] = (int32_t)floor(y / size);
    row[3] = (int32_t)floor(z / size);
}

// Sum of three uniform numbers, about normal with deviation 1.
static double noise(uint64_t seed, uint64_t i)
{
    double sum = 0.0;
    for (uint64_t k = 0; k < 3; ++k)
        sum += (double)bench_uniform(seed, 3 * i + k, -1.0f, 1.0f);
    return sum;
}

void bench_scene_sweep(bench_scene *s)
{
    enum { BEAMS = 64, AZIMUTHS = 2083, POSTS = 60 };
    for (int i = 0; i < BEAMS * AZIMUTHS; ++i) {
        const double azimuth = 6.283185307179586 * (i / BEAMS) / AZIMUTHS;
        const double up = (2.0 - 26.3 * (i % BEAMS) / (BEAMS - 1)) * 0.017453292519943295;
        const double d[3] = {cos(up) * cos(azimuth), cos(up) * sin(azimuth), sin(up)};
        double range = 1e9;
        if (d[2] < 0) range = 1.73 / -d[2];
        if (fabs(d[1]) > 1e-6) range = fmin(range, (d[1] > 0 ? 14.0 : 17.0) / fabs(d[1]));
        for (int p = 0; p < POSTS; ++p) {
            const double x = (double)bench_uniform(31, (uint64_t)(2 * p), -50.0f, 50.0f);
            const double y =
                (p % 2 ? 1 : -1) * (double)bench_uniform(31, (uint64_t)(2 * p + 1), 3.0f, 12.0f);
            const double along = x * d[0] + y * d[1], flat = d[0] * d[0] + d[1] * d[1];
            const double aside = fabs(x * d[1] - y * d[0]) / sqrt(flat);
            if (along > 0 && aside < 0.3) range = fmin(range, along / flat);
        }
        if (range > 70.0 || range < 1.5) continue;
        range += 0.012 * noise(32, (uint64_t)i);
        put_voxel(s, d[0] * range, d[1] * range, d[2] * range, 0.05);
    }
}

// Points on the faces of a room and of seven boxes in it, 9,000 a square metre.
static void make_indoor(bench_scene *s, int64_t most)
{
    uint64_t point = 0;
    for (int box = 0; box < 8; ++box) {
        double corner[3] = {0, 0, 0}, edge[3] = {4.0, 3.6, 2.5};
        for (int a = 0; a < 3 && box > 0; ++a) {
            edge[a] = (double)bench_uniform(41, (uint64_t)(6 * box + a), 0.4f, 1.4f);
            if (a < 2)
                corner[a] =
                    (double)bench_uniform(41, (uint64_t)(6 * box + 3 + a), 0.0f, 1.0f) * 2.2;
        }
        for (int face = 0; face < 5; ++face) { // not the ceiling, nor the floor under a box
            const int flat = face < 2   ? 0
                             : face < 4 ? 1
                                        : 2,
                      u = (flat + 1) % 3, v = (flat + 2) % 3;
            const double at = face == 4 ? (box > 0 ? edge[2] : 0.0) : face % 2 ? edge[flat] : 0.0;
            const int64_t n = (int64_t)(9000.0 * edge[u] * edge[v]);
            for (int64_t i = 0; i < n && s->num_rows < most; ++i, ++point) {
                double p[3];
                p[flat] = corner[flat] + at + 0.002 * noise(42, point);
                p[u] = corner[u] + edge[u] * (double)bench_uniform(43, point, 0.0f, 1.0f);
                p[v] = corner[v] + edge[v] * (double)bench_uniform(44, point, 0.0f, 1.0f);
                put_voxel(s, p[0], p[1], p[2], 0.02);
            }
        }
    }
}

// The surface of a sphere in a grid of 256 cells a side.
static void make_shell(bench_scene *s)
{
    for (int x = 0; x < 256; ++x)
        for (int y = 0; y < 256; ++y)
            for (int z = 0; z < 256; ++z) {
                const double d = sqrt((x - 127.5) * (x - 127.5) + (y - 127.5) * (y - 127.5) +
                                      (z - 127.5) * (z - 127.5));
                if (d <= 128.0 && d >= 126.75) put_voxel(s, x, y, z, 1.0);
            }
}

static void find_box(bench_scene *s)
{
    memset(&s->box, 0, sizeof s->box);
    for (int a = 1; a < 4; ++a) {
        s->box.lower[a] = INT32_MAX;
        s->box.upper[a] = INT32_MIN;
        for (int64_t i = 0; i < s->num_rows; ++i) {
            const int32_t v = s->rows[4 * i + a];
            if (v < s->box.lower[a]) s->box.lower[a] = v;
            if (v > s->box.upper[a]) s->box.upper[a] = v;
        }
    }
}

bool bench_scene_gyroid(bench *b, int32_t cells, bench_scene *s)
{
    const float unit = 6.2831853071795865f / (float)cells;
    const float most = 0.75f * unit * 2.0f; // no gradient is longer than 2
    int64_t room = 6 * (int64_t)cells * cells;
    float *sines = bench_host(b, cells, sizeof *sines), *cosines = bench_host(b, cells, 4);
    s->rows = bench_host(b, 4 * room, sizeof *s->rows);
    s->num_rows = 0;
    s->from_file = false;
    if (sines == NULL || cosines == NULL || s->rows == NULL) {
        free(sines);
        free(cosines);
        return false;
    }
    for (int32_t i = 0; i < cells; ++i) {
        sines[i] = sinf((float)i * unit);
        cosines[i] = cosf((float)i * unit);
    }
    for (int32_t x = 0; x < cells; ++x)
        for (int32_t y = 0; y < cells; ++y)
            for (int32_t z = 0; z < cells;) {
                const float sx = sines[x], sy = sines[y], sz = sines[z];
                const float cx = cosines[x], cy = cosines[y], cz = cosines[z];
                const float f = sx * cy + sy * cz + sz * cx;
                const float gx = cx * cy - sz * sx, gy = cy * cz - sx * sy, gz = cz * cx - sy * sz;
                const float length = fmaxf(sqrtf(gx * gx + gy * gy + gz * gz), 1e-3f);
                // f changes by at most sqrt(2) units from cell to cell.
                const int32_t far = (int32_t)((fabsf(f) - most) / (1.42f * unit));
                if (fabsf(f) < 0.75f * unit * length && s->num_rows < room) {
                    const int32_t row[4] = {0, x, y, z};
                    memcpy(s->rows + 4 * s->num_rows++, row, sizeof row);
                }
                z += far > 1 ? far : 1;
            }
    free(sines);
    free(cosines);
    find_box(s);
    return s->num_rows < room || bench_fail(b, "%s: too many cells", s->name);
}

bool bench_scene_load(bench *b, bench_scene *s)
{
    int64_t n = 0, cols = 0;
    int32_t *values = bench_load_npy(b, s->file, "<i4", &n, &cols);
    s->from_file = values != NULL;
    if (values == NULL) n = 1 << 20;
    s->rows = bench_host(b, 4 * n, sizeof *s->rows);
    s->num_rows = 0;
    if (s->rows == NULL || (values != NULL && cols != 3)) {
        free(values);
        return s->rows != NULL && bench_fail(b, "%s: expected 3 columns", s->file);
    }
    if (values != NULL) {
        for (int64_t i = 0; i < n; ++i)
            for (int a = 0; a < 3; ++a)
                s->rows[4 * i + 1 + a] = values[3 * i + a];
        s->num_rows = n;
    } else if (strcmp(s->name, "lidar") == 0) {
        bench_scene_sweep(s);
    } else if (strcmp(s->name, "indoor") == 0) {
        make_indoor(s, n);
    } else {
        make_shell(s);
    }
    free(values);
    bench_scene_unique(s);
    if (!s->from_file && s->num_rows > s->most_rows) s->num_rows = s->most_rows;
    if (b->options.quick && s->num_rows > BENCH_QUICK_ROWS) s->num_rows = BENCH_QUICK_ROWS;
    find_box(s);
    return true;
}
