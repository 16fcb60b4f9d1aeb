// SPDX-License-Identifier: Apache-2.0
// spops voxelize: what a scan becomes as voxels on this machine, how long that and a map take, and
// how it looks from above.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "support/cloud_file.h"
#include "support/device.h"
#include "tools/command.h"
#include "tools/picture.h"

enum { DIMS = 3, MAX_RUNS = 15 };

typedef struct voxelize_job {
    const char *file, *out;
    spops_backend_kind backend;
    double size_m[DIMS], range_m[2 * DIMS]; // NAN: not given
    bool no_time, as_json;
} voxelize_job;

static voxelize_job asked;
static const option_row option_rows[] = {
    {"--size", "M[,M,M]", "of a voxel, m; one number or three; default: 0.1", .reals = asked.size_m,
     .least = 1, .most = DIMS},
    {"--range", "X0,Y0,Z0,X1,Y1,Z1",
     "leave out points outside this range, m; write --range=-50,... where it begins with a minus",
     .reals = asked.range_m, .least = 2 * DIMS, .most = 2 * DIMS},
    {"--out", "PNG", "the picture; default: voxels.png; empty: none", .text = &asked.out},
    {"--no-time", NULL, "do not measure times", .on = &asked.no_time},
    OPTION_BACKEND(&asked.backend),
    OPTION_JSON(&asked.as_json),
    {0}};
const option_set voxelize_options = {
    .program = "spops voxelize",
    .summary = "voxels of a scan: counts, times on this machine, a picture",
    .operand = "FILE",
    .file = &asked.file,
    .about = "Put the points of FILE into voxels: " CLOUD_FILE_FORMATS
             ", of which x y z and all other numbers of a point are taken. Prints counts, the time "
             "of voxels with and without the means of "
             "all columns and of the kernel map of a 3 x 3 x 3 submanifold convolution, and draws "
             "the voxels from above.",
    .more = ".npy: f32, f16 or f64 [points, columns], x y z first. .bin: KITTI's f32 x y z "
            "intensity; .pcd.bin: nuScenes's, with the beam. .pcd: ascii, binary, "
            "binary_compressed. .ply: ascii, binary of both byte orders. .las: 1.0 to 1.4, not "
            "compressed. Coordinates of a map lose whole metres, which are printed, so that f32 "
            "holds them; --range counts before that.",
    .rows = option_rows};

// Everything that is made on the way.
typedef struct voxelize {
    const voxelize_job *job;
    session s;
    cloud_file cloud;    // its values only until they are where the backend runs
    spops_matrix points; // where the backend runs
    spops_dtype dtype;
    int64_t num_points, num_cols;
    float *lower, *upper; // [num_cols]
    spops_voxels_options options;
    spops_voxels *voxels;
    spops_coords_info info;
    void *means;
    int32_t *rows, *counts; // of voxels, host
    int64_t longest, num_pairs;
    double voxels_us, means_us, map_us;
} voxelize;

static bool check(const voxelize *v, spops_status status)
{
    if (status == SPOPS_STATUS_OK) return true;
    command_fail(voxelize_options.program, "%s", spops_last_error(v->s.ctx));
    return false;
}

static bool fail(const char *what)
{
    command_fail(voxelize_options.program, "%s", what);
    return false;
}

static bool read_points(voxelize *v)
{
    char error[4096 + 256];
    void *device = NULL;
    cloud_file *cloud = &v->cloud;
    if (!cloud_file_read(v->job->file, cloud, error, sizeof error)) return fail(error);
    v->num_points = cloud->num_points;
    v->num_cols = cloud->cols;
    v->dtype = cloud->dtype;
    const size_t bytes = (size_t)(v->num_points * v->num_cols) * spops_dtype_bytes(v->dtype);
    const bool ok = device_alloc(v->s.backend, bytes, &device) &&
                    (bytes == 0 || device_upload(v->s.backend, device, cloud->values, bytes));
    free(cloud->values);
    cloud->values = NULL;
    v->points = spops_matrix_dense(device, v->num_points, v->num_cols, v->dtype);
    v->lower = calloc((size_t)v->num_cols, sizeof *v->lower);
    v->upper = calloc((size_t)v->num_cols, sizeof *v->upper);
    if (v->lower == NULL || v->upper == NULL) return fail("no memory for bounds");
    return (ok || fail(device_error())) &&
           check(v, spops_points_get_bounds_sync(v->s.ctx, v->points, v->lower, v->upper));
}

static void choose_options(voxelize *v)
{
    const voxelize_job *job = v->job;
    v->options = spops_voxels_options_default();
    v->options.dims = DIMS;
    v->options.max_cols = v->num_cols;
    v->options.crop = !isnan(job->range_m[0]);
    for (int a = 0; a < DIMS; ++a) {
        v->options.size_m[a] = isnan(job->size_m[a]) ? job->size_m[0] : job->size_m[a];
        if (!v->options.crop) continue;
        const double origin_m = v->cloud.origin_m[a];
        v->options.lower_m[a] = v->options.origin_m[a] = job->range_m[a] - origin_m;
        v->options.upper_m[a] = job->range_m[DIMS + a] - origin_m;
    }
}

static bool make_voxels(voxelize *v)
{
    spops_voxels_destroy(v->voxels);
    return check(v, spops_voxels_create(v->s.ctx, v->points, NULL, &v->options, &v->voxels));
}

static bool make_means(voxelize *v)
{
    const spops_matrix out = spops_matrix_dense(v->means, v->info.num_rows, v->num_cols, v->dtype);
    return make_voxels(v) &&
           check(v, spops_segreduce_execute(v->s.ctx, spops_voxels_segments(v->voxels),
                                            SPOPS_REDUCE_MEAN, v->points, NULL, out, NULL)) &&
           check(v, spops_context_wait_sync(v->s.ctx));
}

static bool make_map(voxelize *v)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(DIMS, 3, 1, 1);
    spops_kernel_map_options options = spops_kernel_map_options_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();
    spops_kernel_map *map = NULL;
    options.contents = SPOPS_MAP_TABLE | SPOPS_MAP_PAIRS;
    if (!check(v, spops_kernel_map_create(v->s.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel,
                                          spops_voxels_coords(v->voxels), NULL, &options, &map)))
        return false;
    const bool ok = check(v, spops_kernel_map_get_info_sync(v->s.ctx, map, &info));
    v->num_pairs = info.num_pairs;
    spops_kernel_map_destroy(map);
    return ok;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// The median of up to MAX_RUNS runs, of fewer where one is slow.
static bool time_of(voxelize *v, bool (*run)(voxelize *v), const char *what, double *us)
{
    double times[MAX_RUNS];
    int n = 0;
    const double begin = clock_s();
    if (!run(v)) return false; // the first one pays for memory
    while (n < MAX_RUNS && (n < 3 || clock_s() - begin < 1.0)) {
        progress_show(what, n, MAX_RUNS);
        const double start = clock_s();
        if (!run(v)) return false;
        times[n++] = 1e6 * (clock_s() - start);
    }
    progress_clear();
    qsort(times, (size_t)n, sizeof *times, compare);
    *us = times[n / 2];
    return true;
}

static bool look(voxelize *v)
{
    spops_coords_view coords = spops_coords_view_default();
    spops_voxels_view view = spops_voxels_view_default();
    v->info = spops_coords_info_default();
    if (!make_voxels(v) ||
        !check(v, spops_coords_get_info_sync(v->s.ctx, spops_voxels_coords(v->voxels), &v->info)) ||
        !check(v, spops_coords_get_view(v->s.ctx, spops_voxels_coords(v->voxels), &coords)) ||
        !check(v, spops_voxels_get_view(v->s.ctx, v->voxels, &view)))
        return false;
    const size_t num = (size_t)v->info.num_rows;
    v->rows = malloc(num * (1 + DIMS) * sizeof *v->rows + 1);
    v->counts = malloc(num * sizeof *v->counts + 1);
    if (v->rows == NULL || v->counts == NULL) return fail("no memory for the voxels");
    if (num > 0 &&
        (!device_download(v->s.backend, v->rows, coords.rows, num * (1 + DIMS) * sizeof *v->rows) ||
         !device_download(v->s.backend, v->counts, view.num_points, num * sizeof *v->counts)))
        return fail(device_error());
    for (size_t i = 0; i < num; ++i)
        if (v->counts[i] > v->longest) v->longest = v->counts[i];
    if (!device_alloc(v->s.backend, num * (size_t)v->num_cols * spops_dtype_bytes(v->dtype),
                      &v->means))
        return fail(device_error());
    return make_map(v);
}

// ---- The picture --------------------------------------------------------------------------------

// Heights of the ramp's ends: the 2nd and the 98th percentile, as outliers are few.
static void find_heights(const double *top, int64_t num, double range[2])
{
    double *sorted = malloc((size_t)num * sizeof *sorted);
    int64_t used = 0;
    for (int64_t i = 0; sorted != NULL && i < num; ++i)
        if (isfinite(top[i])) sorted[used++] = top[i];
    if (used > 0) {
        qsort(sorted, (size_t)used, sizeof *sorted, compare);
        range[0] = sorted[used / 50], range[1] = sorted[used - 1 - used / 50];
    }
    free(sorted);
    if (!(range[1] > range[0])) range[1] = range[0] + 1.0;
}

// Voxels from above: x ahead is up, y left is left, the highest voxel of a column by its height.
static bool draw(const voxelize *v)
{
    enum { SIDE = 900, MARGIN = 14, TITLE = 40, LEGEND = 52 };
    const colour paper = {18, 20, 26}, ink = {232, 234, 240}, faint = {150, 156, 168};
    int32_t low[DIMS] = {0, 0, 0}, high[DIMS] = {0, 0, 0};
    char text[256], a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], error[4096 + 256];
    const int64_t num = v->info.num_rows;
    picture p;

    for (int64_t i = 0; i < num; ++i)
        for (int k = 0; k < DIMS; ++k) {
            const int32_t x = v->rows[i * (1 + DIMS) + 1 + k];
            if (i == 0 || x < low[k]) low[k] = x;
            if (i == 0 || x > high[k]) high[k] = x;
        }
    const double wide_m = ((double)high[1] - low[1] + 1.0) * v->options.size_m[1];
    const double tall_m = ((double)high[0] - low[0] + 1.0) * v->options.size_m[0];
    const double px_per_m = SIDE / fmax(wide_m, tall_m);
    const int width = (int)fmax(ceil(wide_m * px_per_m), 360.0);
    const int height = (int)fmax(ceil(tall_m * px_per_m), 40.0);
    if (!picture_create(width + 2 * MARGIN, height + TITLE + LEGEND + MARGIN, paper, &p))
        return fail("no memory for the picture");
    double *top = malloc((size_t)width * (size_t)height * sizeof *top);
    if (top == NULL) {
        picture_destroy(&p);
        return fail("no memory for the picture");
    }
    for (int64_t i = 0; i < (int64_t)width * height; ++i)
        top[i] = -INFINITY;
    for (int64_t i = 0; i < num; ++i) {
        const int32_t *row = v->rows + i * (1 + DIMS);
        const double step_x = v->options.size_m[1] * px_per_m;
        const double step_y = v->options.size_m[0] * px_per_m;
        const int x0 = (int)(((double)high[1] - row[2]) * step_x);
        const int y0 = (int)(((double)high[0] - row[1]) * step_y);
        const int x1 = (int)fmax(x0 + 1.0, ((double)high[1] - row[2] + 1.0) * step_x);
        const int y1 = (int)fmax(y0 + 1.0, ((double)high[0] - row[1] + 1.0) * step_y);
        for (int y = y0; y < y1 && y < height; ++y)
            for (int x = x0; x < x1 && x < width; ++x)
                top[(int64_t)y * width + x] = fmax(top[(int64_t)y * width + x], row[3]);
    }
    double range[2] = {low[2], high[2]};
    find_heights(top, (int64_t)width * height, range);
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            const double z = top[(int64_t)y * width + x];
            if (isfinite(z))
                picture_set(&p, MARGIN + x, TITLE + y,
                            picture_ramp(0.15 + 0.85 * (z - range[0]) / (range[1] - range[0])));
        }
    free(top);
    snprintf(text, sizeof text, "%s points in %s voxels, from above", in_groups(v->num_points, a),
             in_groups(num, b));
    picture_text(&p, MARGIN, 26, 19.0, ink, text);
    double bar_m = pow(10.0, floor(log10(0.5 * fmax(wide_m, tall_m))));
    snprintf(text, sizeof text, "%g m; a voxel is %g x %g x %g m", bar_m, v->options.size_m[0],
             v->options.size_m[1], v->options.size_m[2]);
    picture_scale_bar(&p, MARGIN, TITLE + height + 14, bar_m * px_per_m, 12.0, ink, text);
    for (int i = 0; i < 160; ++i)
        picture_rect(&p, MARGIN + i, TITLE + height + 30, 1, 9,
                     picture_ramp(0.15 + 0.85 * (i + 0.5) / 160), 1.0);
    const double origin = v->options.origin_m[2], size = v->options.size_m[2];
    snprintf(text, sizeof text, "height %.1f to %.1f m", origin + range[0] * size,
             origin + (range[1] + 1.0) * size);
    picture_text(&p, MARGIN + 170, TITLE + height + 39, 12.0, faint, text);
    const bool ok = picture_write_png(&p, v->job->out, error, sizeof error) || fail(error);
    picture_destroy(&p);
    return ok;
}

// ---- The report ---------------------------------------------------------------------------------

static void print_json(const voxelize *v)
{
    json_t *lower = json_array(), *upper = json_array(), *size = json_array();
    json_t *origin = json_array();
    for (int64_t c = 0; c < v->num_cols; ++c) {
        json_t *const low = json_real((double)v->lower[c]);
        json_t *const high = json_real((double)v->upper[c]);
        json_array_append_new(lower, low != NULL ? low : json_null());
        json_array_append_new(upper, high != NULL ? high : json_null());
    }
    for (int a = 0; a < DIMS; ++a)
        json_array_append_new(size, json_real(v->options.size_m[a])),
            json_array_append_new(origin, json_real(v->cloud.origin_m[a]));
    json_t *line = json_pack(
        "{s:s, s:s, s:I, s:o, s:s, s:s, s:I, s:I, s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I}", "file",
        v->job->file, "format", v->cloud.format, "invalid", (json_int_t)v->cloud.num_invalid,
        "origin_m", origin, "backend", v->s.backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu",
        "device", v->s.device.name, "points", (json_int_t)v->num_points, "columns",
        (json_int_t)v->num_cols, "dtype", spops_dtype_name(v->dtype), "lower", lower, "upper",
        upper, "size_m", size, "left_out", (json_int_t)v->info.num_dropped, "voxels",
        (json_int_t)v->info.num_rows, "longest", (json_int_t)v->longest, "pairs",
        (json_int_t)v->num_pairs);
    if (!v->job->no_time) {
        json_object_set_new(line, "voxels_us", json_real(v->voxels_us));
        json_object_set_new(line, "means_us", json_real(v->means_us));
        json_object_set_new(line, "map_us", json_real(v->map_us));
    }
    command_print_json(line);
}

static void print_text(const voxelize *v)
{
    const int columns = terminal_columns(stdout);
    char text[512], a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], c[COMMAND_NUMBER_BYTES];
    const int64_t inside = v->num_points - v->info.num_dropped;
    session_describe(&v->s, text, sizeof text);
    wrapped_print(stdout, "device    ", columns, text);
    snprintf(text, sizeof text,
             "%s of %lld columns %s (%s); x %.4g to %.4g, y %.4g to %.4g, z %.4g to %.4g m",
             in_groups(v->num_points, a), (long long)v->num_cols, spops_dtype_name(v->dtype),
             v->cloud.format, (double)v->lower[0], (double)v->upper[0], (double)v->lower[1],
             (double)v->upper[1], (double)v->lower[2], (double)v->upper[2]);
    wrapped_print(stdout, "points    ", columns, text);
    const double *from_m = v->cloud.origin_m;
    if (from_m[0] != 0.0 || from_m[1] != 0.0 || from_m[2] != 0.0) {
        snprintf(text, sizeof text, "coordinates are those of a map: less %.0f, %.0f, %.0f m here",
                 from_m[0], from_m[1], from_m[2]);
        wrapped_print(stdout, "origin    ", columns, text);
    }
    if (v->cloud.num_invalid > 0) {
        snprintf(text, sizeof text, "%s points are NaN, which stand for no return: left out",
                 in_groups(v->cloud.num_invalid, a));
        wrapped_print(stdout, "invalid   ", columns, text);
    }
    if (v->options.crop) {
        snprintf(
            text, sizeof text, "%s points left out, %.1f %%", in_groups(v->info.num_dropped, a),
            v->num_points > 0 ? 100.0 * (double)v->info.num_dropped / (double)v->num_points : 0.0);
        wrapped_print(stdout, "range     ", columns, text);
    }
    snprintf(text, sizeof text, "%s of %g x %g x %g m; %.1f points in one, up to %s",
             in_groups(v->info.num_rows, a), v->options.size_m[0], v->options.size_m[1],
             v->options.size_m[2],
             v->info.num_rows > 0 ? (double)inside / (double)v->info.num_rows : 0.0,
             in_groups(v->longest, b));
    wrapped_print(stdout, "voxels    ", columns, text);
    snprintf(text, sizeof text, "%s pairs of a 3 x 3 x 3 submanifold convolution, %.1f a voxel",
             in_groups(v->num_pairs, a),
             v->info.num_rows > 0 ? (double)v->num_pairs / (double)v->info.num_rows : 0.0);
    wrapped_print(stdout, "map       ", columns, text);
    if (!v->job->no_time) {
        snprintf(text, sizeof text, "%s voxels, %s with the means of all columns, %s the map",
                 in_time(v->voxels_us, a), in_time(v->means_us, b), in_time(v->map_us, c));
        wrapped_print(stdout, "time      ", columns, text);
    }
    if (v->job->out[0] != '\0') wrapped_print(stdout, "picture   ", columns, v->job->out);
}

static int run(const voxelize_job *job)
{
    voxelize v;
    memset(&v, 0, sizeof v);
    v.job = job;
    if (!session_open(voxelize_options.program, job->backend, &v.s)) return COMMAND_FAILED;
    bool ok = read_points(&v);
    if (ok) choose_options(&v);
    ok = ok && look(&v);
    progress_end();
    if (ok && !job->no_time)
        ok = time_of(&v, make_voxels, "time of voxels", &v.voxels_us) &&
             time_of(&v, make_means, "time of voxels and means", &v.means_us) &&
             time_of(&v, make_map, "time of the map", &v.map_us);
    if (ok && job->out[0] != '\0') ok = draw(&v);
    if (ok && job->as_json)
        print_json(&v);
    else if (ok)
        print_text(&v);
    spops_voxels_destroy(v.voxels);
    device_free(v.s.backend, v.points.data);
    device_free(v.s.backend, v.means);
    session_close(&v.s);
    free(v.rows);
    free(v.counts);
    free(v.lower);
    free(v.upper);
    return ok ? COMMAND_OK : COMMAND_FAILED;
}

int command_voxelize(int argc, char **argv)
{
    asked = (voxelize_job){
        .out = "voxels.png", .size_m = {0.1, NAN, NAN}, .range_m = {NAN, NAN, NAN, NAN, NAN, NAN}};
    const options_result result = options_read(&voxelize_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);
    if (asked.file == NULL)
        return command_status(options_error(&voxelize_options, "FILE is missing"));
    if (!isnan(asked.size_m[1]) && isnan(asked.size_m[2]))
        return command_status(
            options_error(&voxelize_options, "--size has two numbers, expected one or three"));
    for (int a = 0; a < DIMS; ++a) {
        if (asked.size_m[a] <= 0.0)
            return command_status(options_error(
                &voxelize_options, "--size is %g, expected more than 0", asked.size_m[a]));
        if (asked.range_m[a] >= asked.range_m[DIMS + a])
            return command_status(options_error(
                &voxelize_options, "--range is %g to %g in %c, expected from less to more",
                asked.range_m[a], asked.range_m[DIMS + a], "xyz"[a]));
    }
    return run(&asked);
}
