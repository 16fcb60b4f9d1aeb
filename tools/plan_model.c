// SPDX-License-Identifier: Apache-2.0
// What a network from a file takes: bytes of weights, plans, features and scratch, layer by layer, and on a
// scan the time of each.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "support/cloud_file.h"
#include "support/device.h"
#include "tools/model_run.h"
#include "tools/scan.h"

enum { SAMPLES = 21, FRAMES = 200 };

typedef struct model_plan {
    const char *command, *path;
    const session *s;
    const model_choices *choices;
    spops_model *model;
    spops_model_info info;
    float *points; // f32 [num_points, cols] that it is timed on; NULL: none
    int64_t num_points, cols;
    double *layer_us, frame_us[FRAMES], device_us;
    int num_frames;
} model_plan;

static bool check(const model_plan *p, spops_status status)
{
    if (status == SPOPS_STATUS_OK) return true;
    command_fail(p->command, "%s", spops_last_error(p->s->ctx));
    return false;
}

static bool read_scan(model_plan *p, const char *path)
{
    char error[4096 + 256];
    cloud_file cloud;
    if (!cloud_file_read(path, &cloud, error, sizeof error)) {
        command_fail(p->command, "%s", error);
        return false;
    }
    if (!cloud_file_widen(&cloud)) {
        cloud_file_free(&cloud);
        command_fail(p->command, "no memory for a scan");
        return false;
    }
    p->points = cloud.values;
    p->num_points = cloud.num_points;
    p->cols = cloud.cols;
    return true;
}

// A street, scanned by enough beams for so many points; fewer where they are too many for a sensor.
static bool simulate_scan(model_plan *p, int64_t wanted)
{
    scan_sensor sensor = scan_sensor_default();
    scene *street = scene_create_varied(1);
    scan taken;
    sensor.beams = wanted > 150000 ? 128 : 64;
    sensor.columns = (int)(wanted * 2 / sensor.beams);
    if (sensor.columns < 8) sensor.columns = 8;
    if (sensor.columns > 4096) sensor.columns = 4096;
    if (street == NULL || !scan_take(street, &sensor, 1, &taken)) {
        scene_destroy(street);
        command_fail(p->command, "no memory for a scan");
        return false;
    }
    scene_destroy(street);
    p->points = taken.points;
    taken.points = NULL;
    p->num_points = taken.num_points < wanted ? taken.num_points : wanted;
    p->cols = SCAN_COLS;
    scan_free(&taken);
    return true;
}

typedef struct one_layer {
    const model_plan *p;
    int32_t index;
    spops_status status;
} one_layer;

static void enqueue_layer(void *user)
{
    one_layer *l = user;
    const spops_status status = spops_model_execute_layer(l->p->s->ctx, l->p->model, l->index);
    if (status != SPOPS_STATUS_OK) l->status = status;
}

static bool time_layers(model_plan *p)
{
    p->layer_us = calloc((size_t)p->info.num_layers + 1, sizeof *p->layer_us);
    if (p->layer_us == NULL) return command_fail(p->command, "no memory for times"), false;
    if (!model_put_points(p->command, p->s, p->model, p->choices, p->points, p->num_points,
                          p->cols))
        return false;
    for (int32_t i = 0; i < p->info.num_layers; ++i) {
        one_layer layer = {p, i, SPOPS_STATUS_OK};
        device_timing timing;
        progress_show("layers", i, p->info.num_layers);
        if (!device_time(p->s->backend, p->s->stream, enqueue_layer, &layer, false, SAMPLES,
                         &timing)) {
            progress_clear();
            command_fail(p->command, "%s", device_error());
            return false;
        }
        if (!check(p, layer.status)) return false;
        p->layer_us[i] = timing.median_us;
    }
    progress_clear();
    p->num_frames = p->s->backend == SPOPS_BACKEND_CPU ? 20 : FRAMES;
    return model_time(p->command, p->s, p->model, p->num_frames, p->frame_us, &p->device_us) &&
           check(p, spops_model_check_sync(p->s->ctx, p->model));
}

static void print_total(const char *what, size_t bytes)
{
    char text[COMMAND_NUMBER_BYTES];
    printf("  %-28s %14s\n", what, in_bytes((double)bytes, text));
}

static void begin_table(const model_plan *p, text_table *t)
{
    static const char *const heads[] = {"layer", "op",      "rows",  "in",    "out",
                                        "taps",  "weights", "plans", "output"};
    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; ++i)
        table_cell(t, "%s", heads[i]);
    if (p->layer_us != NULL) table_cell(t, "time");
    table_end_row(t);
}

static void print_layers(const model_plan *p)
{
    char text[COMMAND_NUMBER_BYTES];
    text_table t;
    begin_table(p, &t);
    for (int32_t i = 0; i < p->info.num_layers; ++i) {
        spops_model_layer l = spops_model_layer_default();
        if (!check(p, spops_model_get_layer(p->s->ctx, p->model, i, &l))) break;
        if (t.num_rows == TABLE_MAX_ROWS) { // the next one goes on
            table_print(&t, stdout, 2, terminal_columns(stdout));
            begin_table(p, &t);
        }
        table_cell(&t, "%s", l.name);
        table_cell(&t, l.num_nodes > 1 ? "%s, %d nodes" : "%s", l.op, (int)l.num_nodes);
        table_cell(&t, "%s", in_groups(l.max_rows, text));
        table_cell(&t, "%lld", (long long)l.in_cols);
        table_cell(&t, "%lld", (long long)l.out_cols);
        table_cell(&t, "%lld", (long long)l.num_taps);
        table_cell(&t, "%s", in_bytes((double)l.weight_bytes, text));
        table_cell(&t, "%s", in_bytes((double)l.plan_bytes, text));
        table_cell(&t, "%s", in_bytes((double)l.output_bytes, text));
        if (p->layer_us != NULL) table_cell(&t, "%s", in_time(p->layer_us[i], text));
        table_end_row(&t);
    }
    table_print(&t, stdout, 2, terminal_columns(stdout));
}

static void print_text(const model_plan *p)
{
    char device[256], a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], c[COMMAND_NUMBER_BYTES];
    const spops_model_info *i = &p->info;
    session_describe(p->s, device, sizeof device);
    printf("model %s on %s\n\n", p->path, device);
    print_layers(p);
    printf("\nbytes\n");
    print_total("weights", i->weight_bytes);
    print_total("plans", i->plan_bytes);
    print_total("features between layers", i->feature_bytes);
    print_total("input", i->input_bytes);
    print_total("output", i->output_bytes);
    print_total("scratch", i->scratch_bytes);
    print_total("peak, all together", i->peak_bytes);
    if (i->num_int8 > 0) printf("\n%d nodes are marked as int8; they run in f16\n", i->num_int8);
    if (p->layer_us == NULL) return;
    printf("\na frame of %s points: p50 %s, p99 %s of %d frames%s", in_groups(p->num_points, a),
           in_time(latency_share(p->frame_us, p->num_frames, 0.5), b),
           in_time(latency_share(p->frame_us, p->num_frames, 0.99), c), p->num_frames,
           i->has_graph ? ", one graph each" : "");
    printf("; %s without the host\n", in_time(p->device_us, a));
}

static void print_json(const model_plan *p)
{
    const spops_model_info *m = &p->info;
    json_t *layers = json_array();
    for (int32_t i = 0; i < m->num_layers; ++i) {
        spops_model_layer l = spops_model_layer_default();
        if (!check(p, spops_model_get_layer(p->s->ctx, p->model, i, &l))) break;
        json_t *line = json_pack(
            "{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", l.name, "op", l.op,
            "nodes", (int)l.num_nodes, "max_rows", (json_int_t)l.max_rows, "in",
            (json_int_t)l.in_cols, "out", (json_int_t)l.out_cols, "taps", (json_int_t)l.num_taps,
            "weight_bytes", (json_int_t)l.weight_bytes, "plan_bytes", (json_int_t)l.plan_bytes,
            "output_bytes", (json_int_t)l.output_bytes);
        if (p->layer_us != NULL) json_object_set_new(line, "us", json_real(p->layer_us[i]));
        json_array_append_new(layers, line);
    }
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:o}", "file", p->path, "backend",
        p->s->backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu", "device", p->s->device.name,
        "weight_bytes", (json_int_t)m->weight_bytes, "plan_bytes", (json_int_t)m->plan_bytes,
        "feature_bytes", (json_int_t)m->feature_bytes, "input_bytes", (json_int_t)m->input_bytes,
        "output_bytes", (json_int_t)m->output_bytes, "scratch_bytes", (json_int_t)m->scratch_bytes,
        "peak_bytes", (json_int_t)m->peak_bytes, "int8_nodes", (int)m->num_int8, "layers", layers);
    if (line != NULL && p->layer_us != NULL) {
        json_object_set_new(line, "points", json_integer(p->num_points));
        json_object_set_new(line, "p50_us",
                            json_real(latency_share(p->frame_us, p->num_frames, 0.5)));
        json_object_set_new(line, "p99_us",
                            json_real(latency_share(p->frame_us, p->num_frames, 0.99)));
        json_object_set_new(line, "device_us", json_real(p->device_us));
    }
    command_print_json(line);
}

int plan_model(const char *command, const char *path, const session *s, const model_choices *c,
               const char *points, bool timed, bool as_json)
{
    model_plan *p = calloc(1, sizeof *p);
    int status = COMMAND_FAILED;
    if (p == NULL) return command_fail(command, "no memory");
    p->command = command;
    p->path = path;
    p->s = s;
    p->choices = c;
    p->info = spops_model_info_default();
    int64_t most = c->max_points;
    if (points != NULL && !read_scan(p, points)) goto done;
    if (points != NULL && p->num_points > most) most = p->num_points;
    if (!model_open(command, s, path, c, most, &p->model) ||
        !check(p, spops_model_get_info(s->ctx, p->model, &p->info)))
        goto done;
    if (timed && points == NULL && !simulate_scan(p, most)) goto done;
    if (timed && !time_layers(p)) goto done;
    if (as_json)
        print_json(p);
    else
        print_text(p);
    status = COMMAND_OK;
done:
    spops_model_destroy(p->model);
    free(p->points);
    free(p->layer_us);
    free(p);
    return status;
}
