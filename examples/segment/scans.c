// SPDX-License-Identifier: Apache-2.0
/* Classes, and scans from .npy files. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"
#include "support/npy.h"

static const struct {
    const char *name;
    uint8_t label;
} classes[SEGMENT_NUM_CLASSES] = {{"road", 1},     {"pavement", 3}, {"grass", 4},
                                  {"building", 5}, {"wall", 6},     {"vehicle", 7},
                                  {"pole", 8},     {"tree", 9},     {"person", 10}};

const char *segment_class_name(int what)
{
    return what >= 0 && what < SEGMENT_NUM_CLASSES ? classes[what].name : "?";
}

uint8_t segment_class_of(uint8_t label)
{
    static const uint8_t of[SEGMENT_NUM_LABELS] = {SEGMENT_IGNORED, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    return of[label];
}

uint8_t segment_label_of(uint8_t what)
{
    return what < SEGMENT_NUM_CLASSES ? classes[what].label : 0;
}

bool segment_scan_create(const char *name, int64_t num_points, const float *points,
                         const uint8_t *labels, segment_scan *out, int64_t *num_left_out,
                         char error[SEGMENT_ERROR_BYTES])
{
    memset(out, 0, sizeof *out);
    *num_left_out = 0;
    if (num_points < 1) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: no points", name);
        return false;
    }
    for (int64_t i = 0; i < num_points * SEGMENT_POINT_COLS; ++i)
        if (!isfinite(points[i])) {
            snprintf(error, SEGMENT_ERROR_BYTES, "%s: element %lld of point %lld is not finite",
                     name, (long long)(i % SEGMENT_POINT_COLS),
                     (long long)(i / SEGMENT_POINT_COLS));
            return false;
        }
    for (int64_t i = 0; labels != NULL && i < num_points; ++i)
        if (labels[i] >= SEGMENT_NUM_LABELS) {
            snprintf(error, SEGMENT_ERROR_BYTES,
                     "%s: the label of point %lld is %d, expected 0 to %d", name, (long long)i,
                     labels[i], SEGMENT_NUM_LABELS - 1);
            return false;
        }
    snprintf(out->name, sizeof out->name, "%s", name);
    out->points = malloc((size_t)num_points * SEGMENT_POINT_COLS * sizeof *out->points);
    if (labels != NULL) out->classes = malloc((size_t)num_points);
    if (out->points == NULL || (labels != NULL && out->classes == NULL)) {
        segment_scan_free(out);
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: no memory for it", name);
        return false;
    }
    for (int64_t i = 0; i < num_points; ++i) {
        const float *p = points + i * SEGMENT_POINT_COLS;
        if (hypotf(p[0], p[1]) > (float)SEGMENT_REACH_M || p[2] < -(float)SEGMENT_DEPTH_M ||
            p[2] > (float)SEGMENT_HEIGHT_M) {
            ++*num_left_out;
            continue;
        }
        const int64_t to = out->num_points++;
        memcpy(out->points + to * SEGMENT_POINT_COLS, p, SEGMENT_POINT_COLS * sizeof *p);
        if (labels != NULL) out->classes[to] = segment_class_of(labels[i]);
    }
    if (out->num_points > 0) return true;
    segment_scan_free(out);
    snprintf(error, SEGMENT_ERROR_BYTES, "%s: no point within %g m", name, SEGMENT_REACH_M);
    return false;
}

void segment_scan_free(segment_scan *scan)
{
    free(scan->points);
    free(scan->classes);
    memset(scan, 0, sizeof *scan);
}

#define LABELS_ENDING "_labels.npy"

static int is_scan(const struct dirent *entry)
{
    const size_t length = strlen(entry->d_name), ending = strlen(LABELS_ENDING);
    return strncmp(entry->d_name, "scan_", 5) == 0 && length > 9 &&
           strcmp(entry->d_name + length - 4, ".npy") == 0 &&
           (length < ending || strcmp(entry->d_name + length - ending, LABELS_ENDING) != 0);
}

static bool load_scan(const char *folder, const char *file, segment_scan *out,
                      char error[SEGMENT_ERROR_BYTES])
{
    char path[4096];
    void *points = NULL, *labels = NULL;
    int64_t num_points = 0, num_labels = 0, left_out;
    const int stem = (int)strlen(file) - 4;
    bool ok = snprintf(path, sizeof path, "%s/%s", folder, file) < (int)sizeof path &&
              npy_read(path, NPY_F32, SEGMENT_POINT_COLS, &num_points, &points, error,
                       SEGMENT_ERROR_BYTES);
    ok = ok &&
         snprintf(path, sizeof path, "%s/%.*s" LABELS_ENDING, folder, stem, file) <
             (int)sizeof path &&
         npy_read(path, NPY_U8, 0, &num_labels, &labels, error, SEGMENT_ERROR_BYTES);
    if (ok && num_labels != num_points) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: %lld points and %lld labels", file,
                 (long long)num_points, (long long)num_labels);
        ok = false;
    }
    ok = ok && segment_scan_create(file, num_points, points, labels, out, &left_out, error);
    free(points);
    free(labels);
    return ok;
}

bool segment_scans_load(const char *folder, segment_scans *out, char error[SEGMENT_ERROR_BYTES])
{
    struct dirent **entries = NULL;
    memset(out, 0, sizeof *out);
    const int num = scandir(folder, &entries, is_scan, alphasort);
    if (num < 0) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: %s", folder, strerror(errno));
        return false;
    }
    bool ok = num > 0;
    if (!ok) snprintf(error, SEGMENT_ERROR_BYTES, "%s: no scan_*.npy in it", folder);
    out->scans = calloc((size_t)num + 1, sizeof *out->scans);
    if (ok && out->scans == NULL) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: no memory for %d scans", folder, num);
        ok = false;
    }
    for (int i = 0; ok && i < num; ++i) {
        ok = load_scan(folder, entries[i]->d_name, &out->scans[i], error);
        out->num += ok;
    }
    for (int i = 0; i < num; ++i)
        free(entries[i]);
    free(entries);
    if (!ok) segment_scans_free(out);
    return ok;
}

void segment_scans_free(segment_scans *scans)
{
    for (int32_t i = 0; i < scans->num; ++i)
        segment_scan_free(&scans->scans[i]);
    free(scans->scans);
    memset(scans, 0, sizeof *scans);
}
