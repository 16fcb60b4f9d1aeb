// SPDX-License-Identifier: Apache-2.0
// spops plan: what a scatter map asks of the machine.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "spops/device/schedule.h"
#include "support/cloud_file.h"
#include "support/device.h"
#include "tools/command.h"
#include "tools/model_run.h"
#include "tools/plan_cloud.h"
#include "tools/settings.h"

#define MAX_FILE_BYTES ((size_t)1 << 34)
#define NUM_BINS       31 // interval lengths from 2^i on

typedef struct plan_job {
    const char *command, *file, *setting, *frame, *save, *out;
    spops_backend_kind backend;
    spops_dtype dtype;
    int64_t cols, bucket_rows;
    double scale, crop[2]; // NAN: not given
    bool backward, no_floor, as_json, timed;
    model_choices model;
    const char *scan;
} plan_job;

static plan_job asked;
static const option_row option_rows[] = {
    {"--setting", "NAME",
     "sizes for a rig. a: 16 x 44 features, 59 depths, 128 x 128 cells of 0.8 m; b: 32 x 88 "
     "features, 118 depths, 360 x 360 cells of 0.3 m; c: 16 x 44 features, 118 depths, 200 x 200 "
     "cells of 0.512 m; a8: a batch of eight a; 105k, 209k, 572k, 1280k: so many points, from the "
     "shipped rig; default: a",
     SETTING_NAMES, .text = &asked.setting},
    {"--frame", "ego|lidar",
     "frame of a rig's grid; default: b lidar where the rig has one, else ego", "ego,lidar",
     .text = &asked.frame},
    {"--scale", "S", "images of a rig are resized by S; default: to 768 px of width",
     .reals = &asked.scale, .least = 1, .most = 1},
    {"--crop", "X,Y",
     "the corner of the 704 x 256 px that the network sees of a resized image; default: in the "
     "middle, at the bottom",
     .reals = asked.crop, .least = 2, .most = 2},
    OPTION_BACKEND(&asked.backend),
    {"--cols", "C", "channels; default: 80", .number = &asked.cols, .least = 1, .most = 65536},
    {"--bucket-rows", "S", "rows of a bucket of a cloud, at most; default: 512",
     .number = &asked.bucket_rows, .least = 1, .most = SPOPS_MAX_BUCKET_ROWS},
    {"--out", "PNG", "of a cloud: draw its groups from above, a colour a group",
     .text = &asked.out},
    OPTION_DTYPE(&asked.dtype, "f16"),
    {"--backward", NULL, "plan for gradients as well", .on = &asked.backward},
    {"--save", "OUT", "write the plan to OUT", .text = &asked.save},
    {"--no-floor", NULL, "do not measure the rates of memory and cache", .on = &asked.no_floor},
    {"--points", "N", "of a model: points of a frame, at most; default: 120000",
     .number = &asked.model.max_points, .least = 1, .most = INT32_MAX - 1},
    {"--time", NULL,
     "measure the latency (p50, p99): of pooling in --dtype f32, f16 or bf16; of a model each "
     "layer "
     "and the frame, on --scan or a simulated scan of --points",
     .on = &asked.timed},
    {"--scan", "FILE", "of a model: points to time it on", .text = &asked.scan},
    MODEL_OPTIONS(asked.model),
    OPTION_JSON(&asked.as_json),
    {0}};
const option_set plan_options = {
    .program = "spops plan",
    .summary = "look into a scatter map: sizes, balance, memory regime, floor; or into buckets, or "
               "a model",
    .operand = "[FILE]",
    .file = &asked.file,
    .about = "Print what a BEV pooling plan asks of the machine: sizes, balance, working set and "
             "regime, bytes by array here and in the published kernels, the floor, the kernel "
             "chosen and why.\n"
             "\n"
             "FILE is one of\n"
             "  a rig as JSON       planned with --setting; left out: the shipped rig\n"
             "  a saved plan        as --save and spops_plan_save write it\n"
             "  a scatter map       raw int32 numbers: points, cells, feature rows, depth\n"
             "                      elements, then ranks_depth, ranks_feat, ranks_bev,\n"
             "                      each [points]\n"
             "  a model             .onnx: bytes of weights, plans, features and scratch, by\n"
             "                      layer, for frames of --points; with --time the times\n"
             "  a cloud             " CLOUD_FILE_FORMATS ":\n"
             "                      how near to each other the rows of buckets lie, by\n"
             "                      hash, beside cuts of sorted curves",
    .rows = option_rows};

static const char *const class_names[SPOPS_NUM_CLASSES] = {
    "short (up to 16 points)", "team of 2 (up to 32)",  "team of 4 (up to 64)",
    "team of 8 (up to 128)",   "block (up to a piece)", "empty",
    "split into pieces",
};

// ---- Where a plan comes from ------------------------------------------------------------------

static bool read_file(const char *command, const char *path, unsigned char **data, size_t *bytes)
{
    size_t capacity = 0;
    *data = NULL;
    *bytes = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        command_fail(command, "%s: %s", path, strerror(errno));
        return false;
    }
    for (;;) {
        if (*bytes == capacity) {
            capacity = capacity == 0 ? 65536 : 2 * capacity;
            unsigned char *grown = capacity <= MAX_FILE_BYTES ? realloc(*data, capacity) : NULL;
            if (grown == NULL) {
                command_fail(command, "%s: too large", path);
                goto fail;
            }
            *data = grown;
        }
        const size_t got = fread(*data + *bytes, 1, capacity - *bytes, file);
        *bytes += got;
        if (got == 0) break;
    }
    if (!ferror(file)) {
        fclose(file);
        return true;
    }
    command_fail(command, "%s: %s", path, strerror(errno));

fail:
    fclose(file);
    free(*data);
    *data = NULL;
    return false;
}

static bool looks_like_json(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; ++i) {
        if (data[i] == ' ' || data[i] == '\t' || data[i] == '\r' || data[i] == '\n') continue;
        return data[i] == '{';
    }
    return false;
}

static bool looks_like_map(const unsigned char *data, size_t bytes)
{
    int32_t header[4];
    if (bytes < sizeof header) return false;
    memcpy(header, data, sizeof header);
    return header[0] >= 0 && bytes == sizeof header + 12 * (size_t)header[0];
}

static bool upload(const session *s, const int32_t *from, int64_t count, int32_t **to)
{
    const size_t bytes = (size_t)count * sizeof *from;
    void *at = NULL;
    if (!device_alloc(s->backend, bytes, &at)) return false;
    *to = at;
    return bytes == 0 || device_upload(s->backend, at, from, bytes);
}

// A map has no shape of its own: all pixels in one row, all cells in one row.
static spops_bev_plan *plan_of_map(const plan_job *job, const session *s, const unsigned char *data)
{
    int32_t header[4];
    spops_bev_shape shape = {1, 1, 0, 1, 0, 0, 1, 1};
    spops_bev_ranks_out ranks = spops_bev_ranks_out_default();
    spops_bev_ranks given;
    spops_bev_options options = spops_bev_options_default();
    spops_bev_plan *plan = NULL;
    int32_t *starts = NULL, *lengths = NULL;

    memcpy(header, data, sizeof header);
    const int64_t num_points = header[0];
    if (header[1] < 1 || header[2] < 1 || header[3] < 1 || header[3] % header[2] != 0) {
        command_fail(
            job->command,
            "%s: the header says %d cells, %d feature rows, %d depth elements, expected at least "
            "1 each, and depth elements to be a multiple of feature rows",
            job->file, (int)header[1], (int)header[2], (int)header[3]);
        return NULL;
    }
    shape.num_cells_x = header[1];
    shape.feature_width = header[2];
    shape.num_depths = header[3] / header[2];
    const int32_t *arrays = (const int32_t *)(const void *)(data + sizeof header);
    const int32_t *bev = arrays + 2 * num_points;
    starts = malloc(((size_t)num_points + 1) * sizeof *starts);
    lengths = malloc(((size_t)num_points + 1) * sizeof *lengths);
    if (starts == NULL || lengths == NULL) {
        command_fail(job->command, "%s: no memory for its intervals", job->file);
        goto done;
    }
    for (int64_t i = 0; i < num_points; ++i) {
        if (i == 0 || bev[i] != bev[i - 1]) {
            starts[ranks.num_intervals] = (int32_t)i;
            lengths[ranks.num_intervals++] = 0;
        }
        ++lengths[ranks.num_intervals - 1];
    }
    ranks.num_points = num_points;
    options.max_cols = job->cols;
    options.backward = job->backward;
    if (!upload(s, arrays, num_points, &ranks.ranks_depth) ||
        !upload(s, arrays + num_points, num_points, &ranks.ranks_feat) ||
        !upload(s, bev, num_points, &ranks.ranks_bev) ||
        !upload(s, starts, ranks.num_intervals, &ranks.interval_starts) ||
        !upload(s, lengths, ranks.num_intervals, &ranks.interval_lengths)) {
        command_fail(job->command, "%s", device_error());
        goto done;
    }
    given = spops_bev_ranks_of(&ranks);
    if (spops_bev_plan_create_from_ranks(s->ctx, &shape, &given, &options, &plan) !=
        SPOPS_STATUS_OK)
        command_fail(job->command, "%s: %s", job->file, spops_last_error(s->ctx));

done:
    device_free(s->backend, ranks.ranks_depth);
    device_free(s->backend, ranks.ranks_feat);
    device_free(s->backend, ranks.ranks_bev);
    device_free(s->backend, ranks.interval_starts);
    device_free(s->backend, ranks.interval_lengths);
    free(starts);
    free(lengths);
    return plan;
}

static spops_bev_plan *plan_of_rig(const plan_job *job, const session *s, const rig *r)
{
    const bev_setting *setting = setting_find(job->setting);
    spops_bev_options options = spops_bev_options_default();
    spops_bev_geometry geometry;
    spops_bev_plan *plan = NULL;
    char error[RIG_ERROR_BYTES];
    const bool lidar = job->frame != NULL ? strcmp(job->frame, "lidar") == 0
                                          : setting->lidar_frame && rig_has_lidar(r);
    const rig_frame frame = lidar ? RIG_FRAME_LIDAR : rig_best_ego_frame(r);
    const int num_cameras = setting_num_cameras(setting, r);
    spops_bev_camera *cameras = calloc((size_t)num_cameras, sizeof *cameras);
    if (cameras == NULL) {
        command_fail(job->command, "no memory for %d cameras", num_cameras);
        return NULL;
    }
    options.max_cols = job->cols;
    options.backward = job->backward;
    setting_view view = setting_view_of(&r->cameras[0]);
    const bool given = !isnan(job->scale) || !isnan(job->crop[0]);
    if (!isnan(job->scale)) {
        view.scale = job->scale;
        view.crop_x = rint(0.5 * (view.scale * r->cameras[0].width - SETTING_INPUT_WIDTH));
        view.crop_y = rint(view.scale * r->cameras[0].height - SETTING_INPUT_HEIGHT);
    }
    if (!isnan(job->crop[0])) view.crop_x = job->crop[0], view.crop_y = job->crop[1];
    if (!setting_geometry_seen(setting, r, frame, given ? &view : NULL, cameras, &geometry, error,
                               sizeof error))
        command_fail(job->command, "%s", error);
    else if (spops_bev_plan_create(s->ctx, &geometry, &options, &plan) != SPOPS_STATUS_OK)
        command_fail(job->command, "%s", spops_last_error(s->ctx));
    free(cameras);
    return plan;
}

// NULL with a message when there is none. *kind says what the file was.
static spops_bev_plan *make_plan(const plan_job *job, const session *s, const char **kind)
{
    unsigned char *data = NULL;
    size_t bytes = 0;
    spops_bev_plan *plan = NULL;
    char error[RIG_ERROR_BYTES];
    rig r;

    *kind = "rig";
    if (job->file == NULL) {
        if (!command_rig(job->command, NULL, &r)) return NULL;
        plan = plan_of_rig(job, s, &r);
        rig_free(&r);
        return plan;
    }
    if (!read_file(job->command, job->file, &data, &bytes)) return NULL;
    if (looks_like_json(data, bytes)) {
        if (!rig_parse((const char *)data, bytes, &r, error, sizeof error)) {
            command_fail(job->command, "%s: %s", job->file, error);
        } else {
            plan = plan_of_rig(job, s, &r);
            rig_free(&r);
        }
    } else if (looks_like_map(data, bytes)) {
        *kind = "scatter map";
        plan = plan_of_map(job, s, data);
    } else {
        spops_plan *loaded;
        *kind = "saved plan";
        const spops_status status =
            spops_plan_load(s->ctx, SPOPS_PLAN_BEV_PLAN, NULL, 0, data, bytes, &loaded);
        plan = (spops_bev_plan *)loaded;
        if (status != SPOPS_STATUS_OK)
            command_fail(job->command,
                         "%s: no rig (JSON), scatter map (int32) or cloud (.npy), and as a saved "
                         "plan: %s",
                         job->file, spops_last_error(s->ctx));
    }
    free(data);
    return plan;
}

static bool save_plan(const plan_job *job, const session *s, const spops_bev_plan *plan,
                      size_t *bytes)
{
    unsigned char *buffer = NULL;
    FILE *file = NULL;
    bool ok = false;

    const spops_plan *any = (const spops_plan *)plan;
    if (spops_plan_save(s->ctx, any, NULL, 0, NULL, 0, bytes) != SPOPS_STATUS_OK) {
        command_fail(job->command, "%s", spops_last_error(s->ctx));
        return false;
    }
    buffer = malloc(*bytes > 0 ? *bytes : 1);
    if (buffer == NULL) {
        command_fail(job->command, "no memory for %zu bytes", *bytes);
        return false;
    }
    if (spops_plan_save(s->ctx, any, NULL, 0, buffer, *bytes, bytes) != SPOPS_STATUS_OK) {
        command_fail(job->command, "%s", spops_last_error(s->ctx));
        goto done;
    }
    file = fopen(job->save, "wb");
    ok = file != NULL && fwrite(buffer, 1, *bytes, file) == *bytes;
    if (file != NULL && fclose(file) != 0) ok = false;
    if (!ok) command_fail(job->command, "%s: %s", job->save, strerror(errno));

done:
    free(buffer);
    return ok;
}

// ---- What is told about it --------------------------------------------------------------------

// Bytes that one run asks its loads and stores for, however often a cache serves them.
typedef struct form_bytes {
    const char *key, *what;
    int64_t indices, depth, features, output;
} form_bytes;

enum { NUM_FORMS = 3 };

typedef struct plan_facts {
    spops_bev_plan_info info;
    spops_traffic traffic;
    form_bytes forms[NUM_FORMS];
    spops_schedule schedule;
    int64_t num_pieces;
    int64_t histogram[NUM_BINS]; // cells by floor(log2(points))
    int64_t points_in[NUM_BINS];
    size_t scratch_bytes;
    pool_latency pool;                         // runs 0: not timed
    double copy_bytes_per_s, floor_us;         // 0: not measured
    double cache_bytes_per_s, gather_floor_us; // 0: not known
    double build_ms;
} plan_facts;

static bool read_lengths(const plan_job *job, const session *s, const spops_segments_view *view,
                         plan_facts *facts)
{
    const size_t bytes = ((size_t)view->num_segments + 1) * sizeof(int32_t);
    int32_t *offsets = malloc(bytes);
    if (offsets == NULL) {
        command_fail(job->command, "no memory for %zu bytes", bytes);
        return false;
    }
    if (!device_download(s->backend, offsets, view->offsets, bytes)) {
        command_fail(job->command, "%s", device_error());
        free(offsets);
        return false;
    }
    for (int64_t i = 0; i < view->num_segments; ++i) {
        const int32_t length = offsets[i + 1] - offsets[i];
        int bin = 0;
        if (length == 0) continue;
        while (length >> (bin + 1) != 0)
            ++bin;
        facts->histogram[bin] += 1;
        facts->points_in[bin] += length;
    }
    free(offsets);
    return true;
}

#define V2_TILE_COLS 8

// The published forms, as their kernels load (bench/baselines has them): V2 walks its indices again
// for each tile of channels; depth-outer walks them once and works the feature row out; both clear
// the output first. Here a pair of indices serves all channels, and empty cells are written as part
// of the run.
static void count_forms(const plan_job *job, plan_facts *facts)
{
    const spops_traffic *t = &facts->traffic;
    const int64_t points = facts->info.num_points, intervals = facts->info.num_intervals;
    const int64_t tiles = (job->cols + V2_TILE_COLS - 1) / V2_TILE_COLS;
    const int64_t written =
        facts->info.num_cells > 0 ? t->output_bytes / facts->info.num_cells * intervals : 0;
    const form_bytes forms[NUM_FORMS] = {
        {"v2_tile_outer", "V2, tiles", tiles * (8 * points + 12 * intervals),
         tiles * t->weight_bytes, t->gather_bytes, t->output_bytes + written},
        {"v2_depth_outer", "V2, depth outer", 4 * points + 12 * intervals, t->weight_bytes,
         t->gather_bytes, t->output_bytes + written},
        {"spops", "this plan", t->index_bytes, t->weight_bytes, t->gather_bytes, t->output_bytes},
    };
    memcpy(facts->forms, forms, sizeof forms);
}

static int64_t form_sum(const form_bytes *form)
{
    return form->indices + form->depth + form->features + form->output;
}

static bool measure_floors(const plan_job *job, const session *s, plan_facts *facts)
{
    progress_show("measuring the rates of memory and cache", 1, 2);
    const bool ok = device_copy_rate(s->backend, &facts->copy_bytes_per_s) &&
                    device_cache_rate(s->backend, &facts->cache_bytes_per_s);
    progress_clear();
    if (!ok) {
        command_fail(job->command, "%s", device_error());
        return false;
    }
    facts->floor_us = 1e6 * (double)facts->traffic.compulsory_bytes / facts->copy_bytes_per_s;
    if (facts->cache_bytes_per_s > 0.0)
        facts->gather_floor_us =
            1e6 * (double)facts->traffic.gather_bytes / facts->cache_bytes_per_s;
    return true;
}

static bool read_facts(const plan_job *job, const session *s, const spops_bev_plan *plan,
                       plan_facts *facts)
{
    const spops_segments *segments = spops_bev_plan_segments(plan);
    spops_segments_view view = spops_segments_view_default();
    facts->info = spops_bev_plan_info_default();
    facts->traffic = spops_traffic_default();
    if (spops_bev_plan_get_info_sync(s->ctx, plan, &facts->info) != SPOPS_STATUS_OK ||
        spops_segments_get_traffic_sync(s->ctx, segments, job->dtype, job->cols, 1,
                                        &facts->traffic) != SPOPS_STATUS_OK ||
        spops_segments_get_view(s->ctx, segments, &view) != SPOPS_STATUS_OK) {
        command_fail(job->command, "%s", spops_last_error(s->ctx));
        return false;
    }
    if (!device_download(s->backend, &facts->schedule, view.schedule, sizeof facts->schedule)) {
        command_fail(job->command, "%s", device_error());
        return false;
    }
    facts->scratch_bytes = spops_bev_plan_scratch_bytes(plan);
    count_forms(job, facts);
    if (!read_lengths(job, s, &view, facts)) return false;
    return job->no_floor || measure_floors(job, s, facts);
}

static int64_t class_size(const spops_schedule *schedule, int c)
{
    if (c == SPOPS_CLASS_SPLIT) return schedule->num_splits;
    return schedule->class_begin[c + 1] - schedule->class_begin[c];
}

// ---- The kernel, and why it is this one ---------------------------------------------------------

typedef struct kernel_choice {
    const char *name;
    char why[320];
} kernel_choice;

// Both outputs take it from here: what the forward pass runs.
static void describe_kernel(const session *s, spops_dtype dtype, const plan_facts *f,
                            kernel_choice *k)
{
    const bool cuda = s->backend == SPOPS_BACKEND_CUDA;
    const bool resident = f->traffic.regime == SPOPS_REGIME_L2_RESIDENT;
    const double mean = f->info.num_intervals > 0
                            ? (double)f->info.num_points / (double)f->info.num_intervals
                            : 0.0;
    const bool skewed = (double)f->info.longest > 4.0 * mean;
    char balance[160];

    if (f->info.kernel == SPOPS_BEV_KERNEL_SPANS && dtype != SPOPS_DTYPE_F32) {
        k->name = "spans, on tensor cores";
        snprintf(k->why, sizeof k->why,
                 "neighbouring pixels share cells: %lld spans of %.1f points, "
                 "%lld products of 16 cells by 32 pixels",
                 (long long)f->info.num_spans,
                 (double)f->info.num_points / (double)f->info.num_spans,
                 (long long)f->info.num_steps);
        return;
    }
    k->name = "segreduce, interval-owned sum";
    if (f->schedule.num_splits > 0)
        snprintf(balance, sizeof balance, "the %d fullest cells are cut into %d pieces",
                 (int)f->schedule.num_splits, (int)f->schedule.num_pieces);
    else if (cuda && skewed)
        snprintf(balance, sizeof balance,
                 "the fullest cell has %.0f times the mean: teams by class of length",
                 (double)f->info.longest / mean);
    else if (cuda)
        snprintf(balance, sizeof balance, "cells are of like length: few classes are in use");
    else
        snprintf(balance, sizeof balance, "threads take runs of cells with like numbers of points");
    snprintf(k->why, sizeof k->why, "%s; %s", balance,
             !cuda      ? "vector code for this processor"
             : resident ? "the working set stays in L2, so gathered rows and instructions bind"
                        : "the working set does not stay in L2, so compulsory bytes count");
}

// {"v2_tile_outer": {"indices": ..., "depth": ..., ...}, ...}
static json_t *forms_object(const plan_facts *f)
{
    json_t *forms = json_object();
    for (int i = 0; i < NUM_FORMS; ++i) {
        const form_bytes *b = &f->forms[i];
        json_object_set_new(forms, b->key,
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "indices",
                                      (json_int_t)b->indices, "depth", (json_int_t)b->depth,
                                      "features", (json_int_t)b->features, "output",
                                      (json_int_t)b->output, "together", (json_int_t)form_sum(b)));
    }
    return forms;
}

static size_t peak_of(const pool_latency *p)
{
    return p->plan_bytes + p->scratch_bytes + p->array_bytes;
}

static void print_latency(const plan_facts *f)
{
    char a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], c[COMMAND_NUMBER_BYTES],
        d[COMMAND_NUMBER_BYTES], text[256];
    if (f->pool.runs == 0) return;
    snprintf(text, sizeof text,
             "p50 %s, p99 %s of %d calls; %s without the host; %s with plan, scratch, features, "
             "depths and output",
             in_time(f->pool.p50_us, a), in_time(f->pool.p99_us, b), f->pool.runs,
             in_time(f->pool.device_us, d), in_bytes((double)peak_of(&f->pool), c));
    wrapped_print(stdout, "latency     ", terminal_columns(stdout), text);
}

static void print_json(const plan_job *job, const session *s, const char *kind, const plan_facts *f)
{
    const spops_traffic *t = &f->traffic;
    json_t *classes = json_object(), *histogram = json_array();
    kernel_choice kernel;
    static const char *const keys[SPOPS_NUM_CLASSES] = {"short", "team2", "team4", "team8",
                                                        "block", "empty", "split"};
    for (int c = 0; c < SPOPS_NUM_CLASSES; ++c)
        json_object_set_new(classes, keys[c], json_integer(class_size(&f->schedule, c)));
    for (int i = 0; i < NUM_BINS; ++i)
        if (f->histogram[i] > 0)
            json_array_append_new(histogram, json_pack("{s:I, s:I, s:I}", "from",
                                                       (json_int_t)((int64_t)1 << i), "cells",
                                                       (json_int_t)f->histogram[i], "points",
                                                       (json_int_t)f->points_in[i]));
    json_t *line = json_pack(
        "{s:s, s:s?, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:o, s:I, s:I, "
        "s:o}",
        "kind", kind, "file", job->file, "backend",
        s->backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu", "device", s->device.name, "cols",
        (json_int_t)job->cols, "dtype", elements_name(job->dtype), "points",
        (json_int_t)f->info.num_points, "depth_elements", (json_int_t)f->info.num_depths,
        "feature_rows", (json_int_t)f->info.num_features, "cells", (json_int_t)f->info.num_cells,
        "intervals", (json_int_t)f->info.num_intervals, "longest", (json_int_t)f->info.longest,
        "build_ms", f->build_ms, "scratch_bytes", (json_int_t)f->scratch_bytes, "classes", classes,
        "pieces", (json_int_t)f->schedule.num_pieces, "piece_points",
        (json_int_t)f->schedule.split_terms, "lengths", histogram);
    json_t *bytes = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "indices", (json_int_t)t->index_bytes, "depth",
        (json_int_t)t->weight_bytes, "features", (json_int_t)t->input_bytes, "output",
        (json_int_t)t->output_bytes, "compulsory", (json_int_t)t->compulsory_bytes, "gathered",
        (json_int_t)t->gather_bytes, "working_set", (json_int_t)t->working_set_bytes);
    if (line != NULL) {
        json_object_set_new(line, "bytes", bytes);
        if (f->pool.runs > 0)
            json_object_update_new(line, json_pack("{s:f, s:f, s:f, s:I, s:I}", "device_us",
                                                   f->pool.device_us, "p50_us", f->pool.p50_us,
                                                   "p99_us", f->pool.p99_us, "plan_bytes",
                                                   (json_int_t)f->pool.plan_bytes, "peak_bytes",
                                                   (json_int_t)peak_of(&f->pool)));
        json_object_set_new(line, "regime", json_string(spops_regime_name(t->regime)));
        json_object_set_new(line, "cache_bytes", json_integer(s->device.cache_bytes));
        if (!job->no_floor) {
            json_object_set_new(line, "copy_bytes_per_s", json_real(f->copy_bytes_per_s));
            json_object_set_new(line, "floor_us", json_real(f->floor_us));
        }
        if (f->gather_floor_us > 0.0) {
            json_object_set_new(line, "cache_bytes_per_s", json_real(f->cache_bytes_per_s));
            json_object_set_new(line, "gather_floor_us", json_real(f->gather_floor_us));
        }
        json_object_set_new(line, "requested", forms_object(f));
        describe_kernel(s, job->dtype, f, &kernel);
        json_object_set_new(line, "kernel",
                            json_pack("{s:s, s:s}", "name", kernel.name, "why", kernel.why));
    }
    command_print_json(line);
}

static void print_share(const char *what, int64_t count, int64_t all)
{
    char text[COMMAND_NUMBER_BYTES];
    printf("  %-28s %14s  %5.1f %%\n", what, in_groups(count, text),
           all > 0 ? 100.0 * (double)count / (double)all : 0.0);
}

static void print_bytes(const char *what, int64_t bytes)
{
    char text[COMMAND_NUMBER_BYTES];
    printf("  %-28s %14s\n", what, in_bytes((double)bytes, text));
}

static void print_forms(const plan_job *job, const plan_facts *f)
{
    static const char *const rows[] = {"indices", "depth weights", "rows gathered", "output",
                                       "together"};
    char text[COMMAND_NUMBER_BYTES];
    text_table t;
    memset(&t, 0, sizeof t);
    printf("\nbytes asked for in one run, C = %lld, %s\n", (long long)job->cols,
           elements_name(job->dtype));
    table_cell(&t, "%s", "");
    for (int i = 0; i < NUM_FORMS; ++i)
        table_cell(&t, "%s", f->forms[i].what);
    table_end_row(&t);
    for (int row = 0; row < 5; ++row) {
        table_cell(&t, "%s", rows[row]);
        for (int i = 0; i < NUM_FORMS; ++i) {
            const form_bytes *b = &f->forms[i];
            const int64_t bytes[] = {b->indices, b->depth, b->features, b->output, form_sum(b)};
            table_cell(&t, "%s", in_bytes((double)bytes[row], text));
        }
        table_end_row(&t);
    }
    table_print(&t, stdout, 2, terminal_columns(stdout));
}

static void print_floors(const plan_job *job, const plan_facts *f)
{
    char a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], text[256];
    if (job->no_floor) return;
    snprintf(text, sizeof text, "%s: what must move at %s/s (a copy on this device)",
             in_time(f->floor_us, a), in_bytes(f->copy_bytes_per_s, b));
    wrapped_print(stdout, "floor       ", terminal_columns(stdout), text);
    if (!(f->gather_floor_us > 0.0)) return;
    snprintf(text, sizeof text,
             "%s: rows gathered at %s/s (reads from its L2), unless rows are used again closer by",
             in_time(f->gather_floor_us, a), in_bytes(f->cache_bytes_per_s, b));
    wrapped_print(stdout, "            ", terminal_columns(stdout), text);
}

static void print_histogram(const plan_facts *f, int columns)
{
    char a[COMMAND_NUMBER_BYTES];
    printf("\npoints of a cell        cells            share of cells\n");
    int64_t most = 1;
    const double widest = columns <= 0 || columns >= 80 ? 40.0
                          : columns > 50                ? columns - 40.0
                                                        : 1.0;
    for (int i = 0; i < NUM_BINS; ++i)
        if (f->histogram[i] > most) most = f->histogram[i];
    for (int i = 0; i < NUM_BINS; ++i) {
        char range[48];
        if (f->histogram[i] == 0) continue;
        snprintf(range, sizeof range, i == 0 ? "1" : "%lld - %lld", 1LL << i, (2LL << i) - 1);
        printf("  %-15s %12s  %5.1f %% ", range, in_groups(f->histogram[i], a),
               100.0 * (double)f->histogram[i] / (double)f->info.num_intervals);
        const int length = (int)(widest * (double)f->histogram[i] / (double)most + 0.5);
        for (int k = 0; k < length; ++k)
            putchar('#');
        putchar('\n');
    }
}

static void print_text(const plan_job *job, const session *s, const char *kind, const plan_facts *f)
{
    const spops_traffic *t = &f->traffic;
    const int columns = terminal_columns(stdout);
    char device[256], text[512], a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES];
    kernel_choice kernel;
    session_describe(s, device, sizeof device);
    printf("%s %s on %s\n", kind, job->file != NULL ? job->file : "(shipped)", device);
    if (job->file == NULL || strcmp(kind, "rig") == 0) {
        snprintf(text, sizeof text, "%s: %s", job->setting, setting_find(job->setting)->what);
        wrapped_print(stdout, "setting ", columns, text);
    }
    printf("plan made in %s, scratch %s\n", in_time(1e3 * f->build_ms, a),
           in_bytes((double)f->scratch_bytes, b));

    printf("\nsizes\n");
    print_share("points in the grid", f->info.num_points, f->info.num_depths);
    print_share("cells that hold a point", f->info.num_intervals, f->info.num_cells);
    printf("  %-28s %14s\n", "feature rows", in_groups(f->info.num_features, a));
    printf("  %-28s %14s\n", "points of the fullest cell", in_groups(f->info.longest, a));
    if (f->info.num_intervals > 0)
        printf("  %-28s %14.1f\n", "points of a cell, mean",
               (double)f->info.num_points / (double)f->info.num_intervals);

    print_histogram(f, columns);
    printf("\nschedule\n");
    int64_t classed = 0;
    for (int c = 0; c < SPOPS_NUM_CLASSES; ++c)
        classed += class_size(&f->schedule, c);
    for (int c = 0; c < SPOPS_NUM_CLASSES && classed > 0; ++c)
        if (class_size(&f->schedule, c) > 0) // a CPU has few
            print_share(class_names[c], class_size(&f->schedule, c), f->info.num_cells);
    if (classed == 0)
        printf("  cells in order, shared out by points (this backend has no classes)\n");
    printf("  %-28s %14d  of up to %d points\n", "pieces", (int)f->schedule.num_pieces,
           (int)f->schedule.split_terms);

    print_forms(job, f);
    printf("\nbytes that must move, each once\n");
    print_bytes("indices", t->index_bytes);
    print_bytes("depth weights", t->weight_bytes);
    print_bytes("features", t->input_bytes);
    print_bytes("output", t->output_bytes);
    print_bytes("together", t->compulsory_bytes);
    snprintf(text, sizeof text, "%s, last-level cache %s: %s",
             in_bytes((double)t->working_set_bytes, a), in_bytes((double)s->device.cache_bytes, b),
             t->regime == SPOPS_REGIME_L2_RESIDENT && s->backend == SPOPS_BACKEND_CPU
                 ? "stays there"
                 : spops_regime_name(t->regime));
    putchar('\n');
    wrapped_print(stdout, "working set ", columns, text);
    print_floors(job, f);
    print_latency(f);
    describe_kernel(s, job->dtype, f, &kernel);
    wrapped_print(stdout, "kernel      ", columns, kernel.name);
    wrapped_print(stdout, "            ", columns, kernel.why);
}

// A scatter map, which says how long it is, may be called .bin as well.
static bool is_cloud(const plan_job *job)
{
    unsigned char start[16];
    struct stat about;
    FILE *file = job->file == NULL ? NULL : fopen(job->file, "rb");
    if (file == NULL) return false;
    const size_t bytes = fread(start, 1, sizeof start, file);
    const bool sized = fstat(fileno(file), &about) == 0;
    fclose(file);
    if (bytes == sizeof start && sized && looks_like_map(start, (size_t)about.st_size))
        return false;
    return cloud_file_is(job->file, start, bytes);
}

static bool is_model(const plan_job *job)
{
    const size_t n = job->file == NULL ? 0 : strlen(job->file);
    return n > 5 && strcmp(job->file + n - 5, ".onnx") == 0;
}

static int run(const plan_job *job)
{
    session s;
    plan_facts facts;
    const char *kind;
    char text[COMMAND_NUMBER_BYTES];
    size_t saved = 0;
    int status = COMMAND_FAILED;

    memset(&facts, 0, sizeof facts);
    if (is_model(job)) {
        if (!session_open(job->command, job->backend, &s)) return COMMAND_FAILED;
        status = plan_model(job->command, job->file, &s, &job->model, job->scan, job->timed,
                            job->as_json);
        session_close(&s);
        return status;
    }
    const bool cloud = is_cloud(job);
    if (cloud ? job->save != NULL : job->out != NULL)
        return command_fail(job->command, cloud ? "--save writes BEV pooling plans, no cloud's"
                                                : "--out draws a cloud, no BEV pooling plan");
    if (!session_open(job->command, job->backend, &s)) return COMMAND_FAILED;
    if (cloud) {
        status = plan_cloud(job->command, job->file, &s, job->bucket_rows, job->out, job->as_json);
        session_close(&s);
        return status;
    }
    const double start = clock_s();
    spops_bev_plan *plan = make_plan(job, &s, &kind);
    facts.build_ms = 1e3 * (clock_s() - start);
    if (plan == NULL || !read_facts(job, &s, plan, &facts)) goto done;
    if (job->timed &&
        !latency_of_pooling(job->command, &s, plan, job->dtype, job->cols, &facts.pool))
        goto done;
    if (job->save != NULL && !save_plan(job, &s, plan, &saved)) goto done;
    if (job->as_json)
        print_json(job, &s, kind, &facts);
    else
        print_text(job, &s, kind, &facts);
    if (job->save != NULL && !job->as_json)
        printf("saved       %s, %s\n", job->save, in_bytes((double)saved, text));
    status = COMMAND_OK;

done:
    spops_bev_plan_destroy(plan);
    session_close(&s);
    return status;
}

int command_plan(int argc, char **argv)
{
    asked = (plan_job){.command = plan_options.program,
                       .setting = "a",
                       .dtype = SPOPS_DTYPE_F16,
                       .cols = 80,
                       .bucket_rows = 512,
                       .scale = NAN,
                       .crop = {NAN, NAN},
                       .model = model_choices_default()};
    asked.model.max_points = 120000;
    const options_result result = options_read(&plan_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);
    if (!isnan(asked.scale) && !(asked.scale > 0.0))
        return command_status(
            options_error(&plan_options, "--scale is %g, expected more than 0", asked.scale));
    if (asked.timed && elements_narrow(asked.dtype))
        return command_status(options_error(&plan_options, "--time takes f32, f16 or bf16, not %s",
                                            elements_name(asked.dtype)));
    return run(&asked);
}
