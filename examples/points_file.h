// SPDX-License-Identifier: Apache-2.0
/*
 * For the examples: points of a file as rows of f32, x y z first.
 *   .npy  f32, [rows, cols]       .bin  KITTI's f32 x y z intensity
 *   .pcd  fields x y z first, all F of 4 bytes; ascii or binary
 * `spops voxelize` reads more of them.
 */
#ifndef POINTS_FILE_H
#define POINTS_FILE_H

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All of a file and a 0 after it; NULL: it cannot be read. */
static inline char *points_file_bytes(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    long size = -1;
    char *all = NULL;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    if (size >= 0 && size < LONG_MAX && fseek(f, 0, SEEK_SET) == 0)
        all = (char *)malloc((size_t)size + 1);
    if (all != NULL && fread(all, 1, (size_t)size, f) == (size_t)size)
        all[ *bytes = (size_t)size] = 0;
    else
        free(all), all = NULL;
    if (f != NULL) fclose(f);
    return all;
}

/* Where the values begin, and how many of them; NULL and *why where the header is another. */
static inline const char *points_of_npy(char *all, size_t bytes, long long *rows, long long *cols,
                                        const char **why)
{
    const unsigned char *u = (const unsigned char *)all;
    const size_t header = bytes < 10 ? 0 : 10 + u[8] + 256u * u[9];
    const char *shape;
    *why = "expected .npy of format 1, '<f4' of shape (rows, cols) in C order";
    if (header <= 10 || header > bytes || u[6] != 1) return NULL;
    all[header - 1] = 0; /* a line end: what is searched ends with the header */
    shape = strstr(all + 10, "'shape': (");
    if (shape == NULL || strstr(all + 10, "'<f4'") == NULL ||
        strstr(all + 10, "'fortran_order': False") == NULL ||
        sscanf(shape, "'shape': (%lld, %lld)", rows, cols) != 2)
        return NULL;
    return all + header;
}

static inline const char *points_of_pcd(const char *all, long long *rows, long long *cols,
                                        int *text, const char **why)
{
    const char *line, *data = NULL;
    *why = "expected .pcd with FIELDS x y z .., all SIZE 4 and TYPE F, DATA ascii or binary";
    for (line = all; data == NULL && *line != 0;
         line += strcspn(line, "\n"), line += *line == '\n') {
        const size_t n = strcspn(line, "\r\n");
        const int size = strncmp(line, "SIZE ", 5) == 0, type = strncmp(line, "TYPE ", 5) == 0;
        size_t i;
        if (strncmp(line, "FIELDS x y z", 12) == 0)
            for (*cols = 0, i = 6; i < n; ++i)
                *cols += line[i] == ' ' && i + 1 < n;
        for (i = 5; (size || type) && i < n; ++i)
            if (line[i] != ' ' && line[i] != (size ? '4' : 'F')) return NULL;
        if (strncmp(line, "COUNT ", 6) == 0 && strspn(line + 6, " 1") < n - 6) return NULL;
        if (strncmp(line, "POINTS ", 7) == 0) *rows = strtoll(line + 7, NULL, 10);
        if (strncmp(line, "DATA ascii", 10) == 0 || strncmp(line, "DATA binary", 11) == 0) {
            *text = line[5] == 'a';
            data = n == (*text ? 10u : 11u) && line[n] != 0 ? line + n + strcspn(line + n, "\n")
                                                            : NULL;
            if (data == NULL) return NULL; /* such as binary_compressed */
        }
    }
    return data == NULL || *cols < 3 ? NULL : data + 1;
}

/* [*rows, *cols], to be freed; NULL with a line on stderr. No memory is taken by a number of the header
   before the file is known to have as much. */
static inline float *points_read(const char *path, int64_t *rows, int64_t *cols)
{
    size_t bytes = 0, left, i;
    long long n = 0, m = 0;
    int text = 0;
    const char *why = "cannot be read", *from = NULL;
    char *all = points_file_bytes(path, &bytes);
    float *points = NULL;
    if (all != NULL && bytes >= 6 && memcmp(all, "\x93NUMPY", 6) == 0)
        from = points_of_npy(all, bytes, &n, &m, &why);
    else if (all != NULL && (strncmp(all, "# .PCD", 6) == 0 || strncmp(all, "VERSION", 7) == 0))
        from = points_of_pcd(all, &n, &m, &text, &why);
    else if (all != NULL && strlen(path) > 4 && strcmp(path + strlen(path) - 4, ".bin") == 0)
        from = all, m = 4, n = (long long)(bytes / 16), why = "";
    else if (all != NULL)
        why = "expected .npy, .pcd or .bin";
    if (from != NULL) {
        left = bytes - (size_t)(from - all);
        if (n < 0 || n >= INT32_MAX || m < 3 || m > 1000 ||
            (uint64_t)(n * m) > (text ? (left + 1) / 2 : left / sizeof(float))) {
            why = "has fewer points than its header says, or fewer columns than x y z";
        } else if ((points = (float *)malloc((size_t)(n * m) * sizeof *points + 1)) == NULL) {
            why = "no memory for it";
        } else if (!text) {
            memcpy(points, from, (size_t)(n * m) * sizeof *points);
        } else {
            for (i = 0; points != NULL && i < (size_t)(n * m); ++i) {
                char *end;
                points[i] = strtof(from, &end);
                if (end == from) free(points), points = NULL, why = "has text that is no number";
                from = end;
            }
        }
    }
    if (points == NULL) fprintf(stderr, "%s: %s\n", path, why);
    free(all);
    *rows = n, *cols = m;
    return points;
}

#endif
