// SPDX-License-Identifier: Apache-2.0
#include "tools/demo_segment.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "examples/segment/segment.h"
#include "support/cloud_file.h"
#include "support/device.h"
#include "support/terminal.h"
#include "tools/bev_map.h"
#include "tools/scan.h"
#include "tools/segment_weights.h"

typedef struct demo {
    const segment_demo_job *job;
    session s;
    scan_sensor sensor;
    scan taken;
    segment_scan points;
    cloud_file cloud; // of --scan; its values only while they are read
    int64_t num_left_out;
    unsigned char *file; // of --weights
    const unsigned char *bytes;
    size_t num_bytes;
    segment_checkpoint about;
    segment_capacity capacity;
    segment_network network;
    segment_batch batch;
    device_graph *graph;
    uint8_t *classes;
    int64_t num_said[SEGMENT_NUM_CLASSES]; // points that are said to be of a class
    segment_score score;                   // where the true classes are known
    bool failed;                           // of the timed runs
    double scan_ms, open_ms;
    double part_us[3]; // maps, layers, both
} demo;

static bool fail(const demo *d, const char *what)
{
    command_fail(d->job->command, "%s", what);
    return false;
}

// ---- The scan and the network -----------------------------------------------------------------

static bool take_street(demo *d)
{
    const uint64_t seed = SEGMENT_DEMO_SEED + (uint64_t)d->job->seed;
    char error[SEGMENT_ERROR_BYTES];
    int64_t left_out;
    const double start = clock_s();
    scene *street = scene_create_varied(seed);
    d->sensor = scan_sensor_default();
    d->sensor.max_range_m = SEGMENT_REACH_M - 1.0; // with its noise and its leaves
    const bool ok = street != NULL && scan_take(street, &d->sensor, seed, &d->taken);
    scene_destroy(street);
    if (!ok) return fail(d, "no memory for the scan");
    d->scan_ms = 1e3 * (clock_s() - start);
    if (!segment_scan_create("the scan", d->taken.num_points, d->taken.points, d->taken.labels,
                             &d->points, &left_out, error))
        return fail(d, error);
    if (left_out == 0) return true;
    return fail(d, "the scan reaches further than the network");
}

// The largest intensity that the file's numbers are shares of: 1, or what 8 or 16 bits hold.
static float intensity_unit(const cloud_file *cloud)
{
    float most = 0.0f;
    for (int64_t i = 0; i < cloud->num_points; ++i)
        most = fmaxf(most, ((const float *)cloud->values)[i * cloud->cols + cloud->intensity_col]);
    return most <= 1.0f ? 1.0f : most <= 255.0f ? 255.0f : 65535.0f;
}

// Where points would be in the picture of a sensor that stands at the origin.
static bool place_pulses(demo *d)
{
    const double turn = 2.0 * 3.14159265358979323846;
    double upper = -INFINITY, lower = INFINITY;
    d->sensor = scan_sensor_default();
    d->taken.pulses = malloc((size_t)d->points.num_points * sizeof *d->taken.pulses);
    if (d->taken.pulses == NULL) return false;
    for (int pass = 0; pass < 2; ++pass)
        for (int64_t i = 0; i < d->points.num_points; ++i) {
            const float *p = d->points.points + i * SEGMENT_POINT_COLS;
            const double x = (double)p[0], y = (double)p[1];
            const double elevation = atan2((double)p[2], hypot(x, y));
            upper = fmax(upper, elevation);
            lower = fmin(lower, elevation);
            if (pass == 0) continue;
            const int column = (int)((atan2(y, x) / turn + 0.5) * (d->sensor.columns - 1) + 0.5);
            const double down = upper > lower ? (upper - elevation) / (upper - lower) : 0.0;
            d->taken.pulses[i] =
                column * d->sensor.beams + (int)(down * (d->sensor.beams - 1) + 0.5);
        }
    return true;
}

static bool take_file(demo *d)
{
    enum { COLS = SEGMENT_POINT_COLS };
    const float unknown = 0.3f; // intensity where the file has none
    char error[4096 + 256], why[SEGMENT_ERROR_BYTES];
    const double start = clock_s();
    cloud_file *cloud = &d->cloud;
    const double *origin = cloud->origin_m;
    if (!cloud_file_read(d->job->scan, cloud, error, sizeof error)) return fail(d, error);
    if (origin[0] != 0.0 || origin[1] != 0.0 || origin[2] != 0.0) {
        command_fail(
            d->job->command,
            "%s: coordinates are those of a map (%.0f, %.0f, %.0f m), expected metres from "
            "the sensor",
            d->job->scan, origin[0], origin[1], origin[2]);
        return false;
    }
    float *points = malloc((size_t)cloud->num_points * COLS * sizeof *points + 1);
    if (!cloud_file_widen(cloud) || points == NULL) {
        free(points);
        return fail(d, "no memory for the scan");
    }
    const float unit = cloud->intensity_col < 0 ? 1.0f : intensity_unit(cloud);
    for (int64_t i = 0; i < cloud->num_points; ++i) {
        const float *from = (const float *)cloud->values + i * cloud->cols;
        memcpy(points + i * COLS, from, 3 * sizeof *points);
        points[i * COLS + 3] =
            cloud->intensity_col < 0 ? unknown : from[cloud->intensity_col] / unit;
    }
    const bool ok = segment_scan_create(d->job->scan, cloud->num_points, points, NULL, &d->points,
                                        &d->num_left_out, why);
    free(points);
    free(cloud->values);
    cloud->values = NULL;
    d->scan_ms = 1e3 * (clock_s() - start);
    return ok ? place_pulses(d) || fail(d, "no memory for the scan") : fail(d, why);
}

static bool take(demo *d)
{
    return d->job->scan != NULL ? take_file(d) : take_street(d);
}

static bool open_network(demo *d)
{
    const double start = clock_s();
    segment_scans one = {1, &d->points};
    char error[SEGMENT_ERROR_BYTES];
    d->bytes = segment_weights;
    d->num_bytes = (size_t)(segment_weights_end - segment_weights);
    if (d->job->weights != NULL) {
        if (!segment_checkpoint_read(d->job->weights, &d->file, &d->num_bytes, &d->about, error))
            return fail(d, error);
        d->bytes = d->file;
    } else if (!segment_checkpoint_parse("the shipped network", d->bytes, d->num_bytes, &d->about,
                                         error)) {
        return fail(d, error);
    }
    if (!segment_measure(d->s.ctx, d->s.backend, &d->about.shape, &one, false, 1, &d->capacity,
                         error))
        return fail(d, error);
    if (!segment_network_create(d->s.ctx, d->s.backend, &d->about.shape, d->job->dtype, false,
                                &d->capacity, 0, &d->network) ||
        !segment_checkpoint_load(&d->network, d->bytes, d->num_bytes))
        return fail(d, d->network.error);
    d->open_ms = 1e3 * (clock_s() - start);
    return true;
}

static void enqueue_maps(void *user)
{
    demo *d = user;
    d->failed = !segment_prepare(&d->network) || d->failed;
}

static void enqueue_layers(void *user)
{
    demo *d = user;
    d->failed = !segment_forward(&d->network, false) || d->failed;
}

static void enqueue_all(void *user)
{
    enqueue_maps(user);
    enqueue_layers(user);
}

// On a GPU, everything from points to logits is one graph.
static bool run_network(demo *d)
{
    static const float even[SEGMENT_NUM_CLASSES] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const segment_change none = segment_change_none();
    segment_network *n = &d->network;
    d->classes = malloc((size_t)d->points.num_points);
    if (d->classes == NULL || !segment_batch_create(d->capacity.points, n->dtype, &d->batch) ||
        !segment_batch_add(&d->batch, &n->shape, &d->points, &none))
        return fail(d, "no memory for the points");
    if (!segment_batch_send(&d->batch, even, 0, 1, 0.0, n)) return fail(d, n->error);
    enqueue_all(d);
    if (!d->failed && d->s.backend == SPOPS_BACKEND_CUDA) {
        // The first run loaded what there is to load; the graph's is the one that counts.
        if (!segment_check(n)) return fail(d, n->error);
        if (!device_capture_begin(d->s.stream)) return fail(d, device_error());
        enqueue_all(d);
        if (!device_capture_end(d->s.stream, &d->graph) ||
            !device_graph_launch(d->graph, d->s.stream))
            return fail(d, device_error());
    }
    if (d->failed || !segment_check(n) ||
        !segment_read_classes(n, d->points.num_points, d->classes))
        return fail(d, n->error);
    for (int64_t i = 0; i < d->points.num_points; ++i)
        ++d->num_said[d->classes[i]];
    for (int64_t i = 0; d->points.classes != NULL && i < d->points.num_points; ++i)
        if (d->points.classes[i] < SEGMENT_NUM_CLASSES)
            ++d->score.confusion[d->points.classes[i]][d->classes[i]];
    if (d->points.classes != NULL) segment_score_finish(&d->score);
    return true;
}

// On a GPU medians of replayed graphs; on the CPU the faster of two runs.
static bool measure(demo *d)
{
    enum { SAMPLES = 30 };
    void (*const parts[])(void *user) = {enqueue_maps, enqueue_layers, enqueue_all};
    bool ok = true;
    for (int i = 0; ok && i < 3 && d->s.backend == SPOPS_BACKEND_CUDA; ++i) {
        device_timing timing;
        ok = device_time(d->s.backend, d->s.stream, parts[i], d, false, SAMPLES, &timing);
        d->part_us[i] = timing.median_us;
    }
    for (int run = 0; run < 2 && d->s.backend != SPOPS_BACKEND_CUDA; ++run) {
        double us[3] = {0.0, 0.0, 0.0};
        for (int i = 0; i < 2; ++i) {
            const double start = clock_s();
            parts[i](d);
            us[i] = 1e6 * (clock_s() - start);
            us[2] += us[i];
        }
        if (run == 0 || us[2] < d->part_us[2]) memcpy(d->part_us, us, sizeof us);
    }
    if (d->failed) return fail(d, d->network.error);
    return ok || fail(d, device_error());
}

// ---- Pictures ---------------------------------------------------------------------------------

static const colour paper = {18, 20, 26};

static colour colour_of(uint8_t what)
{
    const uint8_t *rgb = scene_class_colour((scene_class)segment_label_of(what));
    const colour c = {rgb[0], rgb[1], rgb[2]};
    return c;
}

// What a panel shows of a point.
typedef enum panel { SAYS, LABELS, WRONG, HEIGHTS } panel;

static colour colour_of_point(const demo *d, panel what, int64_t i)
{
    const colour red = {255, 60, 60}, grey = {70, 76, 88};
    const double z = (double)d->points.points[i * SEGMENT_POINT_COLS + 2];
    switch (what) {
    case SAYS: return colour_of(d->classes[i]);
    case LABELS: return colour_of(d->points.classes[i]);
    case WRONG: return d->classes[i] != d->points.classes[i] ? red : grey;
    default: return picture_ramp(0.15 + 0.85 * fmin(fmax((z + 2.5) / 6.0, 0.0), 1.0));
    }
}

static bool write_picture(const demo *d, const char *name, const picture *p)
{
    char path[4096], error[512];
    if (snprintf(path, sizeof path, "%s/%s", d->job->out, name) >= (int)sizeof path)
        return fail(d, "--out is too long");
    return picture_write_png(p, path, error, sizeof error) || fail(d, error);
}

typedef struct height {
    float z;
    int32_t point;
} height;

static int by_height(const void *a, const void *b)
{
    const height *x = a, *y = b;
    return x->z != y->z ? (x->z < y->z ? -1 : 1) : x->point - y->point;
}

// From above, ahead is up; what is higher covers what is lower.
static bool draw_top(const demo *d, panel what, int side, double reach_m, picture *out)
{
    const double px_per_m = side / (2.0 * reach_m);
    const int64_t num = d->points.num_points;
    height *order = malloc((size_t)num * sizeof *order);
    if (order == NULL || !picture_create(side, side, paper, out)) {
        free(order);
        return false;
    }
    for (int64_t i = 0; i < num; ++i) {
        order[i].z = d->points.points[i * SEGMENT_POINT_COLS + 2];
        order[i].point = (int32_t)i;
    }
    qsort(order, (size_t)num, sizeof *order, by_height);
    for (int64_t i = 0; i < num; ++i) {
        const float *p = d->points.points + (int64_t)order[i].point * SEGMENT_POINT_COLS;
        const double range = hypot((double)p[0], (double)p[1]);
        // Far points stand for more ground.
        const double px = range < 15.0 ? 1.6 : range < 30.0 ? 2.2 : 3.0;
        picture_rect(out, 0.5 * side - px_per_m * (double)p[1] - 0.5 * px,
                     0.5 * side - px_per_m * (double)p[0] - 0.5 * px, px, px,
                     colour_of_point(d, what, order[i].point), 1.0);
    }
    const double x = 0.5 * side;
    const double us[][2] = {{x, x - 9.0}, {x - 6.0, x + 8.0}, {x, x + 4.0}, {x + 6.0, x + 8.0}};
    const colour yellow = {255, 214, 10};
    picture_polygon(out, us, 4, yellow, 1.0);
    free(order);
    return true;
}

// As the sensor turns: a pixel is a pulse, ahead in the middle, left of us on the left.
static void draw_view(const demo *d, panel what, int y, int px_per_beam, picture *out)
{
    for (int64_t i = 0; i < d->points.num_points; ++i) {
        const int column = d->sensor.columns - 1 - d->taken.pulses[i] / d->sensor.beams;
        const int beam = d->taken.pulses[i] % d->sensor.beams;
        picture_rect(out, column, y + beam * px_per_beam, 1, px_per_beam,
                     colour_of_point(d, what, i), 1.0);
    }
}

// Below the views: where a column looks, what the rows are, and the classes, from (0, y) on.
static void draw_view_legend(const demo *d, int y, picture *out)
{
    static const char *const places[] = {"behind", "left", "ahead", "right", "behind"};
    const colour ink = {232, 234, 240}, faint = {150, 156, 168};
    const double degrees = 180.0 / 3.14159265358979323846;
    char text[160];
    for (int i = 0; i < 5; ++i) {
        const double at = (double)d->sensor.columns * i / 4.0;
        const double width = picture_text_width(11.0, places[i]);
        const double left =
            fmin(fmax(at - 0.5 * width, 4.0), (double)d->sensor.columns - width - 4.0);
        picture_rect(out, fmin(at, (double)d->sensor.columns - 1.0), y, 1, 4, ink, 1.0);
        picture_text(out, left, y + 16, 11.0, ink, places[i]);
    }
    snprintf(
        text, sizeof text,
        "one row a beam, %d of them from %.3g to %.3g degrees; one column a pulse; black: no echo",
        d->sensor.beams, degrees * d->sensor.upper_rad, degrees * d->sensor.lower_rad);
    picture_text(out, 4, y + 32, 11.0, faint, text);
    class_legend(out, 4, y + 42);
}

static bool draw(demo *d)
{
    enum { SIDE = 640, PX_PER_BEAM = 3, TITLE = 24, LEGEND = 66 };
    static const char *const titles[] = {
        [SAYS] = "what the network says",
        [LABELS] = "the labels",
        [WRONG] = "points where they differ, in red",
        [HEIGHTS] = "heights: 2.5 m below the sensor (dark) to 3.5 m above it"};
    static const panel of_street[] = {SAYS, LABELS, WRONG}, of_file[] = {SAYS, HEIGHTS};
    const bool from_file = d->job->scan != NULL;
    const panel *panels_of = from_file ? of_file : of_street;
    const int num_views = from_file ? 2 : 3;
    const char *const both[] = {titles[panels_of[0]], titles[panels_of[1]]};
    const int strip = d->sensor.beams * PX_PER_BEAM + TITLE;
    const colour ink = {232, 234, 240};
    picture panels[2] = {{0}}, sheet = {0};
    char caption[160], number[COMMAND_NUMBER_BYTES];
    if (from_file)
        snprintf(caption, sizeof caption,
                 "one scan, %s points; those within 40 m are seen from above; the network was "
                 "trained on simulated streets",
                 in_groups(d->points.num_points, number));
    else
        snprintf(caption, sizeof caption,
                 "one scan of %d beams, %s points within 40 m seen from above; mean IoU %.3f; "
                 "markings count as road",
                 d->sensor.beams, in_groups(d->points.num_points, number), d->score.mean_iou);
    bool ok = draw_top(d, panels_of[0], SIDE, 40.0, &panels[0]) &&
              draw_top(d, panels_of[1], SIDE, 40.0, &panels[1]) &&
              bev_map_sheet(panels, both, 2, caption, NULL, &sheet);
    ok = ok ? write_picture(d, "demo_segment.png", &sheet) : fail(d, "no memory for the pictures");
    picture_destroy(&panels[0]);
    picture_destroy(&panels[1]);
    picture_destroy(&sheet);
    if (!ok) return false;
    if (!picture_create(d->sensor.columns, num_views * strip + LEGEND, paper, &sheet))
        return fail(d, "no memory for the pictures");
    for (int i = 0; i < num_views; ++i) {
        picture_text(&sheet, 4, i * strip + 16, 13.0, ink, titles[panels_of[i]]);
        draw_view(d, panels_of[i], i * strip + TITLE, PX_PER_BEAM, &sheet);
    }
    draw_view_legend(d, num_views * strip + 4, &sheet);
    ok = write_picture(d, "demo_segment_view.png", &sheet);
    picture_destroy(&sheet);
    return ok;
}

// ---- The report -------------------------------------------------------------------------------

// A number, or null where it is none.
static json_t *real_or_null(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static double share_of(const demo *d, int c)
{
    return (double)d->num_said[c] / (double)d->points.num_points;
}

static json_t *as_json(const demo *d)
{
    const bool from_file = d->job->scan != NULL;
    json_t *shares = json_object(), *classes = json_object(), *all;
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c) {
        json_object_set_new(shares, segment_class_name(c), json_real(share_of(d, c)));
        json_object_set_new(classes, segment_class_name(c), real_or_null(d->score.iou[c]));
    }
    json_t *times =
        json_pack("{s:f, s:f, s:f, s:f, s:f}", "scan_ms", d->scan_ms, "open_ms", d->open_ms,
                  "maps_us", d->part_us[0], "layers_us", d->part_us[1], "all_us", d->part_us[2]);
    json_t *sizes = json_pack(
        "{s:I, s:I, s:I, s:f, s:s}", "points", (json_int_t)d->points.num_points, "voxels",
        (json_int_t)d->capacity.rows[0], "parameters", (json_int_t)d->network.num_parameters,
        "voxel_m", d->about.shape.voxel_m, "dtype", spops_dtype_name(d->job->dtype));
    all = json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o}", "version", spops_version(), "task",
                    "segment", "backend", d->s.backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu",
                    "device", d->s.device.name, "isa", d->s.device.isa, "sizes", sizes, "time",
                    times, "shares", shares);
    if (from_file) {
        json_object_set_new(all, "scan", json_string(d->job->scan));
        json_object_set_new(all, "format", json_string(d->cloud.format));
        json_object_set_new(all, "left_out", json_integer((json_int_t)d->num_left_out));
        json_decref(classes);
        return all;
    }
    json_object_set_new(all, "seed", json_integer((json_int_t)d->job->seed));
    json_object_set_new(all, "mean_iou", json_real(d->score.mean_iou));
    json_object_set_new(all, "accuracy", json_real(d->score.accuracy));
    json_object_set_new(all, "iou", classes);
    return all;
}

// What came out: against the labels where there are any, else how often each class was said.
static void print_result(const demo *d, int columns)
{
    char text[512];
    int used = 0;
    if (d->points.classes == NULL) {
        for (int k = 0; k < SEGMENT_NUM_CLASSES; ++k)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%s %.1f %%",
                             used > 0 ? ", " : "", segment_class_name(k), 100.0 * share_of(d, k));
        wrapped_print(stdout, "result    ", columns, text);
        return;
    }
    snprintf(text, sizeof text, "mean IoU %.3f, %.1f %% of the points right", d->score.mean_iou,
             100.0 * d->score.accuracy);
    wrapped_print(stdout, "result    ", columns, text);
    for (int k = 0; k < SEGMENT_NUM_CLASSES; ++k)
        if (!isnan(d->score.iou[k]))
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%s %.3f",
                             used > 0 ? ", " : "", segment_class_name(k), d->score.iou[k]);
    wrapped_print(stdout, "IoU       ", columns, text);
}

static void print_report(const demo *d)
{
    const int columns = terminal_columns(stdout);
    char text[512], a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], c[COMMAND_NUMBER_BYTES];
    session_describe(&d->s, text, sizeof text);
    wrapped_print(stdout, "device    ", columns, text);
    if (d->job->scan != NULL)
        snprintf(text, sizeof text, "%.200s (%s): %s points, %s further than %g m left out",
                 d->job->scan, d->cloud.format, in_groups(d->points.num_points, a),
                 in_groups(d->num_left_out, b), SEGMENT_REACH_M);
    else
        snprintf(text, sizeof text, "seed %lld, which no training has seen: %s points of %d beams",
                 (long long)d->job->seed, in_groups(d->points.num_points, a), d->sensor.beams);
    wrapped_print(stdout, "scan      ", columns, text);
    snprintf(text, sizeof text, "%s parameters, %s voxels of %g m, %s; opened in %s",
             in_groups(d->network.num_parameters, a), in_groups(d->capacity.rows[0], b),
             d->about.shape.voxel_m, spops_dtype_name(d->job->dtype), in_time(1e3 * d->open_ms, c));
    wrapped_print(stdout, "network   ", columns, text);
    snprintf(text, sizeof text, "%s voxels and maps, %s layers; %s in one go%s",
             in_time(d->part_us[0], a), in_time(d->part_us[1], b), in_time(d->part_us[2], c),
             d->s.backend == SPOPS_BACKEND_CUDA ? ", as one graph" : "");
    wrapped_print(stdout, "time      ", columns, text);
    print_result(d, columns);
    snprintf(text, sizeof text, "%s/demo_segment.png, demo_segment_view.png", d->job->out);
    wrapped_print(stdout, "pictures  ", columns, text);
}

static bool report(const demo *d)
{
    const bool saved = command_save_json(d->job->command, as_json(d), d->job->out,
                                         "demo_segment.json", d->job->as_json);
    if (saved && !d->job->as_json) print_report(d);
    return saved;
}

int demo_segment(const segment_demo_job *job)
{
    demo d;
    memset(&d, 0, sizeof d);
    d.job = job;
    if (!command_make_directory(job->out))
        return command_fail(job->command, "%s: %s", job->out, strerror(errno));
    if (!session_open(job->command, job->backend, &d.s)) return COMMAND_FAILED;
    const bool done =
        take(&d) && open_network(&d) && run_network(&d) && draw(&d) && measure(&d) && report(&d);
    if (d.graph != NULL) device_graph_destroy(d.graph);
    segment_network_destroy(&d.network);
    segment_batch_free(&d.batch);
    cloud_file_free(&d.cloud);
    segment_scan_free(&d.points);
    scan_free(&d.taken);
    session_close(&d.s);
    free(d.classes);
    free(d.file);
    return done ? COMMAND_OK : COMMAND_FAILED;
}
