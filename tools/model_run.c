// SPDX-License-Identifier: Apache-2.0
#include "tools/model_run.h"

#include <stdlib.h>
#include <string.h>

#include "support/device.h"

model_choices model_choices_default(void)
{
    return (model_choices){.order = "zyx",
                           .int8 = "round",
                           .size_m = {0.075, 0.075, 0.2},
                           .origin_m = {-54, -54, -5},
                           .points_a_voxel = 10};
}

static bool check(const char *command, const session *s, spops_status status)
{
    if (status == SPOPS_STATUS_OK) return true;
    command_fail(command, "%s", spops_last_error(s->ctx));
    return false;
}

static int axis_of(const model_choices *c, int a)
{
    return strcmp(c->order, "xyz") == 0 ? a : 2 - a;
}

bool model_open(const char *command, const session *s, const char *path, const model_choices *c,
                int64_t max_points, spops_model **model)
{
    spops_model_options options = spops_model_options_default();
    spops_voxels_options voxels = spops_voxels_options_default();
    spops_model_array in = spops_model_array_default();

    for (int a = 0; a < 3; ++a) {
        if (!(c->size_m[a] > 0)) {
            command_fail(command, "--size has %g, expected more than 0", c->size_m[a]);
            return false;
        }
        voxels.size_m[a] = c->size_m[axis_of(c, a)];
        voxels.origin_m[a] = c->origin_m[axis_of(c, a)];
    }
    if (c->points_a_voxel > 0) {
        voxels.points = SPOPS_VOXEL_POINTS_FIRST;
        voxels.most_points = (int32_t)c->points_a_voxel;
    }
    options.voxels = &voxels;
    options.max_points = max_points;
    options.max_rows = c->max_rows;
    options.max_inner_rows = c->max_inner_rows;
    options.widen = c->widen;
    options.int8 = strcmp(c->int8, "ignore") == 0   ? SPOPS_MODEL_INT8_IGNORE
                   : strcmp(c->int8, "refuse") == 0 ? SPOPS_MODEL_INT8_REFUSE
                   : strcmp(c->int8, "codes") == 0  ? SPOPS_MODEL_INT8_CODES
                                                    : SPOPS_MODEL_INT8_ROUND;
    if (!check(command, s, spops_model_load_file(s->ctx, path, &options, model))) return false;
    if (!check(command, s, spops_model_get_input(s->ctx, *model, 0, &in))) return false;
    if (in.dims == 3 && in.points != NULL) return true;
    command_fail(command, "%s has %d axes, expected 3", path, (int)in.dims);
    return false;
}

bool model_put_points(const char *command, const session *s, const spops_model *model,
                      const model_choices *c, const float *points, int64_t num_points, int64_t cols)
{
    spops_model_array in = spops_model_array_default();
    const int32_t num = (int32_t)num_points;

    if (!check(command, s, spops_model_get_input(s->ctx, model, 0, &in))) return false;
    const size_t n = (size_t)num_points, stride = (size_t)in.row_stride;
    const size_t each = spops_dtype_bytes(in.dtype);
    float *places = malloc(n * 3 * sizeof *places + 1);
    float *wide = calloc(n * stride + 1, sizeof *wide);
    void *narrow = malloc(n * stride * each + 1);
    bool ok = places != NULL && wide != NULL && narrow != NULL && num_points <= in.shape[0];
    if (!ok) command_fail(command, "%lld points: there is no memory for them", (long long)num);
    for (size_t i = 0; ok && i < n; ++i) {
        for (int a = 0; a < 3; ++a)
            places[3 * i + (size_t)a] = points[i * (size_t)cols + (size_t)axis_of(c, a)];
        for (int64_t k = 0; k < in.shape[1] && k < cols; ++k)
            wide[i * stride + (size_t)k] = points[i * (size_t)cols + (size_t)k];
    }
    if (ok) {
        elements_encode(in.dtype, wide, (int64_t)(n * stride), narrow);
        ok = device_upload(s->backend, in.points, places, n * 3 * sizeof *places) &&
             device_upload(s->backend, in.data, narrow, n * stride * each) &&
             device_upload(s->backend, in.num_rows, &num, sizeof num);
        if (!ok) command_fail(command, "%s", device_error());
    }
    free(places);
    free(wide);
    free(narrow);
    return ok;
}

typedef struct frames {
    const session *s;
    spops_model *model;
} frames;

static spops_status run_frame(void *user)
{
    const frames *f = user;
    return spops_model_execute(f->s->ctx, f->model);
}

bool model_time(const char *command, const session *s, spops_model *model, int runs, double *us,
                double *device_us)
{
    frames f = {s, model};
    return latency_measure(command, s, run_frame, &f, runs, us) &&
           latency_on_device(command, s, run_frame, &f, device_us);
}
