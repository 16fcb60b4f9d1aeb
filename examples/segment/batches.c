// SPDX-License-Identifier: Apache-2.0
/* Scans as a network takes them: changed, with the features of each point, several to a step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"
#include "steps.h"
#include "support/device.h"
#include "support/elements.h"
#include "support/parallel.h"

#define PI     3.14159265358979323846
#define DIMS   3
#define DECAY  0.01 /* of weights, times the rate */
#define WARMUP 20   /* a step in so many is of the way up of the rate */

static double roll(uint64_t *state, double from, double to)
{
    *state = segment_mix64(*state);
    return from + (to - from) * (double)(*state >> 11) * 0x1p-53;
}

segment_change segment_change_none(void)
{
    const segment_change change = {1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0};
    return change;
}

segment_change segment_change_random(uint64_t seed)
{
    uint64_t dice = segment_mix64(seed);
    const double angle = roll(&dice, 0.0, 2.0 * PI);
    segment_change change = segment_change_none();
    change.cosine = cos(angle);
    change.sine = sin(angle);
    change.mirror = roll(&dice, 0.0, 1.0) < 0.5 ? -1.0 : 1.0;
    change.scale = roll(&dice, 0.95, SEGMENT_MOST_SCALE);
    change.raise_m = roll(&dice, -0.1, 0.1);
    if (roll(&dice, 0.0, 1.0) < 0.3) change.kept = roll(&dice, 0.5, 1.0);
    change.seed = segment_mix64(dice);
    return change;
}

bool segment_batch_create(int64_t max_points, spops_dtype dtype, segment_batch *out)
{
    memset(out, 0, sizeof *out);
    out->dtype = dtype;
    out->max_points = max_points;
    /* Cleared, because all of it is copied although not all of it counts. */
    out->points = calloc((size_t)max_points, DIMS * sizeof *out->points);
    out->batch = calloc((size_t)max_points, sizeof *out->batch);
    out->features = calloc((size_t)max_points, SEGMENT_FEATURES * spops_dtype_bytes(dtype));
    out->classes = calloc((size_t)max_points, 1);
    if (out->points != NULL && out->batch != NULL && out->features != NULL && out->classes != NULL)
        return true;
    segment_batch_free(out);
    return false;
}

void segment_batch_free(segment_batch *batch)
{
    free(batch->points);
    free(batch->batch);
    free(batch->features);
    free(batch->classes);
    memset(batch, 0, sizeof *batch);
}

void segment_batch_clear(segment_batch *batch)
{
    batch->num_points = 0;
}

/* Features of a point: of about the size of 1, and the same wherever in the street it is. */
static void write_features(spops_dtype dtype, const float p[DIMS], float intensity, double voxel_m,
                           void *features, int64_t at)
{
    const double range = sqrt((double)p[0] * p[0] + (double)p[1] * p[1] + (double)p[2] * p[2]);
    float f[SEGMENT_FEATURES];
    f[0] = 1.0f;
    f[1] = 0.5f * (p[2] + 1.0f);
    f[2] = 2.0f * intensity;
    f[3] = (float)(range / 20.0 - 1.0);
    for (int a = 0; a < DIMS; ++a) { /* place in the voxel */
        const double v = (double)p[a] / voxel_m;
        f[4 + a] = (float)(2.0 * (v - floor(v)) - 1.0);
    }
    f[7] = range > 0.0 ? (float)(4.0 * p[2] / range) : 0.0f;
    for (int c = 0; c < SEGMENT_FEATURES; ++c) {
        if (dtype == SPOPS_DTYPE_F32)
            ((float *)features)[at * SEGMENT_FEATURES + c] = f[c];
        else
            ((uint16_t *)features)[at * SEGMENT_FEATURES + c] = elements_bf16_of_float(f[c]);
    }
}

typedef struct added_points {
    segment_batch *batch;
    const segment_shape *shape;
    const segment_scan *scan;
    const segment_change *change;
    const int64_t *from;
    int64_t first;
    int32_t number; /* of the scan in the batch */
} added_points;

static void add_points(const void *work, int64_t begin, int64_t end)
{
    const added_points *a = (const added_points *)work;
    const segment_batch *batch = a->batch;
    const segment_scan *scan = a->scan;
    const segment_change *change = a->change;
    for (int64_t i = begin; i < end; ++i) {
        const float *p = scan->points + a->from[i] * SEGMENT_POINT_COLS;
        const int64_t at = a->first + i;
        const double y = change->mirror * p[1], z = change->scale * p[2] + change->raise_m;
        float *to = batch->points + at * DIMS;
        to[0] = (float)(change->scale * (change->cosine * p[0] - change->sine * y));
        to[1] = (float)(change->scale * (change->sine * p[0] + change->cosine * y));
        to[2] = (float)z;
        batch->batch[at] = a->number;
        batch->classes[at] = scan->classes != NULL ? scan->classes[a->from[i]] : SEGMENT_IGNORED;
        write_features(batch->dtype, to, p[3], a->shape->voxel_m, batch->features, at);
    }
}

bool segment_batch_add(segment_batch *batch, const segment_shape *shape, const segment_scan *scan,
                       const segment_change *change)
{
    const int64_t first = batch->num_points;
    const int32_t number = first == 0 ? 0 : batch->batch[first - 1] + 1;
    int64_t *from = malloc((size_t)scan->num_points * sizeof *from);
    int64_t num = 0;
    if (from == NULL) return false;
    for (int64_t i = 0; i < scan->num_points; ++i) {
        const double chance =
            (double)(segment_mix64(change->seed ^ segment_mix64((uint64_t)i)) >> 11) * 0x1p-53;
        if (change->kept >= 1.0 || chance < change->kept) from[num++] = i;
    }
    if (first + num > batch->max_points) {
        free(from);
        return false;
    }
    const added_points work = {batch, shape, scan, change, from, first, number};
    parallel_for(num, 0, add_points, &work);
    batch->num_points += num;
    free(from);
    return true;
}

double segment_rate(double most, int64_t at, int64_t num_steps)
{
    const int64_t rising = num_steps / WARMUP + 1;
    if (at < rising) return most * (double)(at + 1) / (double)rising;
    return most * 0.5 * (1.0 + cos(PI * (double)(at - rising) / (double)(num_steps - rising + 1)));
}

bool segment_batch_send(segment_batch *batch, const float *weights, int64_t at, int64_t num_steps,
                        double rate, segment_network *n)
{
    const size_t points = (size_t)batch->num_points;
    const double now = segment_rate(rate, at, num_steps);
    double sum = 0.0;
    for (int64_t i = 0; i < batch->num_points; ++i)
        if (batch->classes[i] != SEGMENT_IGNORED) sum += (double)weights[batch->classes[i]];
    const segment_step step = {
        .num_points = (int32_t)batch->num_points,
        .inverse_weight = sum > 0.0 ? (float)(1.0 / sum) : 0.0f,
        .rate = (float)now,
        .decay = (float)(now * DECAY),
        .correction1 = (float)(1.0 / (1.0 - pow((double)STEPS_BETA1, (double)(at + 1)))),
        .correction2 = (float)(1.0 / (1.0 - pow((double)STEPS_BETA2, (double)(at + 1))))};
    const size_t features = points * SEGMENT_FEATURES * spops_dtype_bytes(batch->dtype);
    if (batch->num_points > n->capacity.points) {
        snprintf(n->error, sizeof n->error, "%lld points, and there is room for %lld",
                 (long long)batch->num_points, (long long)n->capacity.points);
        return false;
    }
    if (device_upload(n->backend, n->points, batch->points, points * DIMS * sizeof(float)) &&
        device_upload(n->backend, n->batch, batch->batch, points * sizeof(int32_t)) &&
        device_upload(n->backend, n->features, batch->features, features) &&
        device_upload(n->backend, n->classes, batch->classes, points) &&
        device_upload(n->backend, n->class_weights, weights,
                      SEGMENT_NUM_CLASSES * sizeof *weights) &&
        device_upload(n->backend, n->step, &step, sizeof step))
        return true;
    snprintf(n->error, sizeof n->error, "%s", device_error());
    return false;
}
