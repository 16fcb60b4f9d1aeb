// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cloud_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[NUM_CLOUD_CASES] = {"a.bin",          "ascii.pcd",   "binary.pcd",
                                                   "compressed.pcd", "ascii.ply",   "little.ply",
                                                   "big.ply",        "format0.las", "format6.las"};

const char *cloud_case_name(cloud_case what)
{
    return names[what];
}

typedef struct writer {
    unsigned char *data;
    size_t used;
} writer;

static void put(writer *w, uint64_t bits, int bytes, int big_endian)
{
    for (int i = 0; i < bytes; ++i)
        w->data[w->used++] = (unsigned char)(bits >> 8 * (big_endian ? bytes - 1 - i : i));
}

static void put_float(writer *w, float value, int big_endian)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(w, bits, 4, big_endian);
}

static void put_double(writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(w, bits, 8, 0);
}

static void put_text(writer *w, const char *text)
{
    memcpy(w->data + w->used, text, strlen(text));
    w->used += strlen(text);
}

static void put_lines(writer *w, const float *points, int64_t n)
{
    char line[128];
    for (int64_t i = 0; i < n; ++i) {
        const float *p = points + 4 * i;
        snprintf(line, sizeof line, "%.9g %.9g %.9g %.9g\n", (double)p[0], (double)p[1],
                 (double)p[2], (double)p[3]);
        put_text(w, line);
    }
}

// Literals, and where 3 bytes or more came 4 before already, a run of them.
static void put_lzf(writer *w, const unsigned char *from, size_t bytes)
{
    size_t literals = 0, control = 0;
    for (size_t i = 0; i < bytes;) {
        size_t same = 0;
        while (i >= 4 && i + same < bytes && same < 264 && from[i + same] == from[i + same - 4])
            ++same;
        if (same >= 3) {
            const size_t n = same - 2, back = 3; // one less than the distance
            put(w, (n < 7 ? n : 7) << 5 | back >> 8, 1, 0);
            if (n >= 7) put(w, n - 7, 1, 0);
            put(w, back & 255, 1, 0);
            i += same;
            literals = 0;
            continue;
        }
        if (literals == 0) control = w->used++;
        w->data[w->used++] = from[i++];
        w->data[control] = (unsigned char)literals++;
        if (literals == 32) literals = 0;
    }
}

static void put_pcd(writer *w, cloud_case what, const float *points, int64_t n)
{
    char header[512];
    snprintf(header, sizeof header,
             "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z intensity\n"
             "SIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\nWIDTH %lld\nHEIGHT 1\n"
             "VIEWPOINT 0 0 0 1 0 0 0\nPOINTS %lld\nDATA %s\n",
             (long long)n, (long long)n,
             what == CLOUD_CASE_PCD_ASCII    ? "ascii"
             : what == CLOUD_CASE_PCD_BINARY ? "binary"
                                             : "binary_compressed");
    put_text(w, header);
    if (what == CLOUD_CASE_PCD_ASCII) {
        put_lines(w, points, n);
    } else if (what == CLOUD_CASE_PCD_BINARY) {
        for (int64_t i = 0; i < 4 * n; ++i)
            put_float(w, points[i], 0);
    } else {
        writer planes = {malloc((size_t)n * 16 + 1), 0};
        const size_t sizes = w->used;
        for (int64_t c = 0; c < 4; ++c)
            for (int64_t i = 0; i < n; ++i)
                put_float(&planes, points[4 * i + c], 0);
        w->used += 8;
        put_lzf(w, planes.data, planes.used);
        const size_t end = w->used;
        w->used = sizes;
        put(w, end - sizes - 8, 4, 0);
        put(w, planes.used, 4, 0);
        w->used = end;
        free(planes.data);
    }
}

static void put_ply(writer *w, cloud_case what, const float *points, int64_t n)
{
    char header[512];
    snprintf(header, sizeof header,
             "ply\nformat %s 1.0\ncomment made by a test\nelement vertex %lld\nproperty float x\n"
             "property float y\nproperty float z\nproperty float intensity\nelement face 0\n"
             "property list uchar int vertex_indices\nend_header\n",
             what == CLOUD_CASE_PLY_ASCII    ? "ascii"
             : what == CLOUD_CASE_PLY_LITTLE ? "binary_little_endian"
                                             : "binary_big_endian",
             (long long)n);
    put_text(w, header);
    if (what == CLOUD_CASE_PLY_ASCII)
        put_lines(w, points, n);
    else
        for (int64_t i = 0; i < 4 * n; ++i)
            put_float(w, points[i], what == CLOUD_CASE_PLY_BIG);
}

// Units of 1/64 m around (16, -8, 4); 2 bytes of the writer's own after each record.
static void put_las(writer *w, cloud_case what, const float *points, int64_t n)
{
    static const double shift[3] = {16, -8, 4};
    const int newer = what == CLOUD_CASE_LAS_1_4, record = (newer ? 30 : 20) + 2;
    const size_t header = newer ? 375 : 227, start = w->used;
    memset(w->data + start, 0, header + 54);
    put_text(w, "LASF");
    w->used = start + 24;
    put(w, 1, 1, 0), put(w, newer ? 4 : 2, 1, 0);
    w->used = start + 94;
    put(w, header, 2, 0);
    put(w, header + 54, 4, 0); // a record of variable length lies between
    put(w, 1, 4, 0);
    put(w, newer ? 6 : 0, 1, 0);
    put(w, (uint64_t)record, 2, 0);
    put(w, newer ? 0 : (uint64_t)n, 4, 0);
    w->used = start + 131;
    for (int a = 0; a < 3; ++a)
        put_double(w, 0.015625);
    for (int a = 0; a < 3; ++a)
        put_double(w, shift[a]);
    w->used = start + 247;
    if (newer) put(w, (uint64_t)n, 8, 0);
    w->used = start + header + 54;
    for (int64_t i = 0; i < n; ++i) {
        const size_t at = w->used;
        memset(w->data + at, 0, (size_t)record);
        for (int a = 0; a < 3; ++a)
            put(w, (uint64_t)(int64_t)(((double)points[4 * i + a] - shift[a]) * 64), 4, 0);
        put(w, (uint64_t)points[4 * i + 3], 2, 0);
        w->data[at + (newer ? 16 : 15)] = 2; // ground
        w->used = at + (size_t)record;
    }
}

unsigned char *cloud_case_bytes(cloud_case what, const float *points, int64_t n, size_t *bytes)
{
    writer w = {malloc((size_t)n * 128 + 2048), 0};
    if (w.data == NULL) abort();
    if (what == CLOUD_CASE_BIN)
        for (int64_t i = 0; i < 4 * n; ++i)
            put_float(&w, points[i], 0);
    else if (what <= CLOUD_CASE_PCD_COMPRESSED)
        put_pcd(&w, what, points, n);
    else if (what <= CLOUD_CASE_PLY_BIG)
        put_ply(&w, what, points, n);
    else
        put_las(&w, what, points, n);
    w.data[w.used] = 0;
    *bytes = w.used;
    return w.data;
}
