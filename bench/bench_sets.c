// SPDX-License-Identifier: Apache-2.0
// Sets that follow from others (children that a mask keeps, growth around marked rows), channels of rows
// as rows of children and back, hard voxels, and neighbours with a cap. Each is refilled on the stream,
// beside the bytes that it has to read and write, and compared with plain loops before it is timed.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_scenes.h"

enum { FACTOR = 2, CHILDREN = 8, WINDOW = 27, COLS = 32, POINTS_OF_VOXEL = 10, NEIGHBORS = 16 };
#define VOXEL_M  0.1
#define RADIUS_M 0.3f

typedef struct sets_data {
    bench *b;
    spops_coords *in, *fine, *grown;
    void *mask, *marks; // [rows of in][CHILDREN], [rows of in]; where ctx runs
    spops_kernel_shape window;
    spops_voxels *voxels;
    spops_neighbors *neighbors;
    spops_point_cloud cloud;
    void *count; // [1] points
    spops_matrix coarse_rows, fine_rows, points, features, padded;
    void *num_points;
    spops_status status; // of the first call that failed
} sets_data;

static void note(sets_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// ---- Calls --------------------------------------------------------------------------------------

static void enqueue_children(void *user)
{
    sets_data *d = user;
    note(d, spops_coords_update_children(d->b->ctx, d->fine, d->in, FACTOR, d->mask));
}
static void enqueue_grown(void *user)
{
    sets_data *d = user;
    note(d, spops_coords_update_grown(d->b->ctx, d->grown, d->in, &d->window, d->marks));
}
static void enqueue_to_space(void *user)
{
    sets_data *d = user;
    note(d, spops_channel_to_space_execute(d->b->ctx, d->in, d->fine, FACTOR, d->coarse_rows,
                                           d->fine_rows));
}
static void enqueue_to_channel(void *user)
{
    sets_data *d = user;
    note(d, spops_space_to_channel_execute(d->b->ctx, d->in, d->fine, FACTOR, d->fine_rows,
                                           d->coarse_rows));
}
static void enqueue_voxels(void *user)
{
    sets_data *d = user;
    note(d, spops_voxels_update(d->b->ctx, d->voxels, d->count, d->points, NULL));
}
static void enqueue_padded(void *user)
{
    sets_data *d = user;
    note(d,
         spops_voxels_padded_execute(d->b->ctx, d->voxels, d->features, d->padded, d->num_points));
}
static void enqueue_neighbors(void *user)
{
    sets_data *d = user;
    note(d, spops_neighbors_update(d->b->ctx, d->neighbors, NULL, &d->cloud));
}

// Once, and then what the device says.
static bool run(sets_data *d, const char *what, void (*enqueue)(void *user))
{
    bench_progress("sets %s: checking", what);
    enqueue(d);
    if (!device_stream_wait(d->b->backend, d->b->stream))
        return bench_fail(d->b, "%s: %s", what, device_error());
    return bench_check(d->b, what, d->status);
}

static bool measure(sets_data *d, bench_case *c, void (*enqueue)(void *user))
{
    if (!bench_case_time(d->b, c, "spops", false, enqueue, d) ||
        !bench_check(d->b, c->name, d->status) || !bench_case_time_bytes(d->b, c))
        return false;
    bench_case_print(d->b, c);
    return true;
}

// ---- Sets ---------------------------------------------------------------------------------------

static bool rows_of(sets_data *d, const spops_coords *set, int64_t *num)
{
    spops_coords_info info = {.struct_size = sizeof info};
    const bool known = bench_check(d->b, "set", spops_coords_get_info_sync(d->b->ctx, set, &info));
    *num = info.num_rows;
    return known;
}

// A set of the scene's rows in their order, into a box `factor` times as fine and `margin` cells larger.
static bool reserve(sets_data *d, const bench_scene *s, int64_t max_rows, int64_t max_items,
                    int32_t factor, int32_t margin, spops_coords **out)
{
    spops_coords_options options = spops_coords_options_default();
    spops_coords_box box = s->box;
    for (int a = 1; a <= 3; ++a) {
        box.lower[a] = box.lower[a] * factor - margin;
        box.upper[a] = box.upper[a] * factor + factor - 1 + margin;
    }
    options.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
    options.box = &box;
    return bench_check(d->b, "reserve",
                       spops_coords_reserve(d->b->ctx, 3, max_rows, max_items, &options, out));
}

// Bytes that are 1 with probability `of` / 256; how many are.
static bool make_mask(bench *b, int64_t n, uint64_t seed, unsigned of, uint8_t **host, void **there,
                      int64_t *num)
{
    *host = bench_host(b, n, 1);
    *num = 0;
    for (int64_t i = 0; i < n && *host != NULL; ++i)
        *num += (*host)[i] = (bench_random(seed, (uint64_t)i) & 255) < of;
    return *host != NULL && bench_upload(b, *host, (size_t)n, there);
}

static void measure_children(sets_data *d, const bench_scene *s)
{
    bench *b = d->b;
    const int64_t n = s->num_rows;
    bench_case c = {.suite = "sets"};
    uint8_t *host = NULL;
    int64_t kept = 0, found = 0;

    if (make_mask(b, n * CHILDREN, 61, 77, &host, &d->mask, &kept) &&
        reserve(d, s, kept, n * CHILDREN, FACTOR, 0, &d->fine) &&
        run(d, "children", enqueue_children) && rows_of(d, d->fine, &found) &&
        (found == kept || bench_fail(b, "sets children: %lld rows, expected %lld", (long long)found,
                                     (long long)kept))) {
        snprintf(c.name, sizeof c.name, "children");
        snprintf(c.what, sizeof c.what, "%lld of %lld rows of %s", (long long)kept, (long long)n,
                 s->name);
        c.bytes = (CHILDREN + 16) * n + 16 * kept;
        bench_case_note(&c, "num_rows", kept);
        if (bench_wants(b->options.passes, "children")) (void)measure(d, &c, enqueue_children);
    }
    free(host);
}

// Rows of `in` and the windows around those that are marked, counted by a sort.
static int64_t count_grown(bench *b, const bench_scene *s, const uint8_t *marks, int64_t num_marks)
{
    bench_scene all = {.num_rows = 0};
    all.rows = bench_host(b, 4 * (s->num_rows + num_marks * WINDOW), sizeof *all.rows);
    if (all.rows == NULL) return -1;
    for (int64_t r = 0; r < s->num_rows; ++r)
        for (int i = 0; i <= (marks[r] != 0 ? WINDOW : 0); ++i, ++all.num_rows) {
            const int cell = i == 0 ? WINDOW / 2 : i - 1;
            const int32_t step[4] = {0, cell / 9 - 1, cell / 3 % 3 - 1, cell % 3 - 1};
            for (int a = 0; a < 4; ++a)
                all.rows[4 * all.num_rows + a] = s->rows[4 * r + a] + step[a];
        }
    bench_scene_unique(&all);
    free(all.rows);
    return all.num_rows;
}

static void measure_grown(sets_data *d, const bench_scene *s)
{
    bench *b = d->b;
    const int64_t n = s->num_rows;
    bench_case c = {.suite = "sets"};
    uint8_t *host = NULL;
    int64_t num_marks = 0, expected, found = 0;

    d->window = spops_kernel_shape_cube(3, 3, 1, 1);
    if (!make_mask(b, n, 62, 26, &host, &d->marks, &num_marks)) goto done;
    expected = count_grown(b, s, host, num_marks);
    if (expected < 0 || !reserve(d, s, expected, n * (WINDOW + 1), 1, 1, &d->grown) ||
        !run(d, "growth", enqueue_grown) || !rows_of(d, d->grown, &found))
        goto done;
    if (found != expected) {
        bench_fail(b, "sets growth: %lld rows, expected %lld", (long long)found,
                   (long long)expected);
        goto done;
    }
    snprintf(c.name, sizeof c.name, "growth");
    snprintf(c.what, sizeof c.what, "%lld of %lld rows of %s grow 3x3x3, to %lld rows",
             (long long)num_marks, (long long)n, s->name, (long long)found);
    c.bytes = 17 * n + 16 * found;
    bench_case_note(&c, "num_rows", found);
    (void)measure(d, &c, enqueue_grown);

done:
    free(host);
}

// ---- Channels and space -------------------------------------------------------------------------

static bool check_to_space(sets_data *d, const bench_block *values, int64_t num_fine)
{
    bench *b = d->b;
    spops_coords_view view = spops_coords_view_default();
    int32_t *item = NULL;
    const spops_dtype dtype = d->fine_rows.dtype;
    const size_t bytes = (size_t)(num_fine * COLS) * spops_dtype_bytes(dtype);
    void *out = bench_host(b, (int64_t)bytes, 1);
    bool right = out != NULL &&
                 bench_check(b, "view", spops_coords_get_view(b->ctx, d->fine, &view)) &&
                 bench_fetch_i32(b, view.row_item, num_fine, &item) &&
                 bench_download(b, out, d->fine_rows.data, bytes);
    for (int64_t f = 0; right && f < num_fine; f += 31) {
        const float *row = bench_block_row(values, item[f] / CHILDREN, COLS * CHILDREN);
        for (int64_t k = 0; right && k < COLS; ++k)
            right = bench_get(out, dtype, f * COLS + k) == row[item[f] % CHILDREN * COLS + k] ||
                    bench_fail(b, "sets channel_to_space: row %lld is wrong", (long long)f);
    }
    free(item), free(out);
    return right;
}

static void measure_channels(sets_data *d, spops_dtype dtype)
{
    bench *b = d->b;
    const int64_t element = (int64_t)spops_dtype_bytes(dtype);
    int64_t n = 0, m = 0;
    bench_case to = {.suite = "sets", .name = "channel_to_space", .dtype = dtype, .cols = COLS};
    bench_case back = {.suite = "sets", .name = "space_to_channel", .dtype = dtype, .cols = COLS};
    bench_block values;
    void *coarse = NULL, *fine = NULL;

    if (!rows_of(d, d->in, &n) || !rows_of(d, d->fine, &m)) return;
    if (!bench_block_create(dtype, 7, -2.0f, 2.0f, &values)) {
        bench_fail(b, "no host memory for values");
        return;
    }
    const size_t coarse_bytes = (size_t)(n * CHILDREN * COLS * element);
    const size_t fine_bytes = (size_t)(m * COLS * element);
    if (bench_alloc(b, coarse_bytes, &coarse) && bench_alloc(b, fine_bytes, &fine) &&
        bench_poison(b, fine, fine_bytes) &&
        bench_block_upload(&values, b->backend, coarse, n * CHILDREN * COLS)) {
        d->coarse_rows = spops_matrix_dense(coarse, n, CHILDREN * COLS, dtype);
        d->fine_rows = spops_matrix_dense(fine, m, COLS, dtype);
        snprintf(to.what, sizeof to.what, "%lld rows to %lld of their children", (long long)n,
                 (long long)m);
        snprintf(back.what, sizeof back.what, "%lld rows to %lld parents", (long long)m,
                 (long long)n);
        to.bytes = 2 * element * COLS * m;
        back.bytes = element * COLS * (m + CHILDREN * n);
        if (run(d, to.name, enqueue_to_space) && check_to_space(d, &values, m) &&
            measure(d, &to, enqueue_to_space))
            (void)measure(d, &back, enqueue_to_channel);
    }
    bench_free(b, coarse), bench_free(b, fine);
    bench_block_destroy(&values);
}

// ---- Points -------------------------------------------------------------------------------------

// A scan of the test data, or the centres of the scene's voxels.
static float *load_points(bench *b, const bench_scene *s, int64_t *n)
{
    int64_t cols = 0;
    float *values = bench_load_npy(b, "kitti_odom_a.npy", "<f4", n, &cols);
    if (values == NULL || cols != 4) {
        free(values);
        *n = s->num_rows;
        values = bench_host(b, 4 * *n, sizeof *values);
        for (int64_t i = 0; values != NULL && i < 4 * *n; ++i)
            values[i] = 0.05f * (float)s->rows[i / 4 * 4 + (i % 4 + 1) % 4];
    }
    if (b->options.quick && *n > BENCH_QUICK_ROWS / 4) *n = BENCH_QUICK_ROWS / 4;
    return values;
}

// Every voxel has as many places taken as it has points, up to P; the first is its first point.
static bool check_padded(sets_data *d, const float *values, int64_t num_voxels, int64_t n)
{
    bench *b = d->b;
    spops_voxels_view view = spops_voxels_view_default();
    int32_t *voxel = NULL, *taken = NULL;
    int32_t *seen = bench_host(b, num_voxels, sizeof *seen);
    float *out = bench_host(b, num_voxels * POINTS_OF_VOXEL * 4, sizeof *out);
    bool right =
        seen != NULL && out != NULL &&
        bench_check(b, "view", spops_voxels_get_view(b->ctx, d->voxels, &view)) &&
        bench_fetch_i32(b, view.point_voxel, n, &voxel) &&
        bench_fetch_i32(b, d->num_points, num_voxels, &taken) &&
        bench_download(b, out, d->padded.data, (size_t)(num_voxels * POINTS_OF_VOXEL) * 16);
    for (int64_t i = 0; right && i < n; ++i) {
        const int32_t v = voxel[i];
        if (v < 0 || seen[v]++ >= POINTS_OF_VOXEL) continue;
        right =
            memcmp(out + ((int64_t)v * POINTS_OF_VOXEL + seen[v] - 1) * 4, values + 4 * i, 16) ==
                0 ||
            bench_fail(b, "sets hard_voxels: point %lld is not where it should be", (long long)i);
    }
    for (int64_t v = 0; right && v < num_voxels; ++v)
        right = taken[v] == (seen[v] < POINTS_OF_VOXEL ? seen[v] : POINTS_OF_VOXEL) ||
                bench_fail(b, "sets hard_voxels: voxel %lld has %d points, expected %d",
                           (long long)v, (int)taken[v], (int)seen[v]);
    free(seen), free(out), free(voxel), free(taken);
    return right;
}

static bool reserve_voxels(sets_data *d, const float *values, int64_t n)
{
    spops_voxels_options options = spops_voxels_options_default();
    spops_coords_options coords = spops_coords_options_default();
    spops_coords_box box = {0};
    for (int a = 0; a < 3; ++a) {
        float low = INFINITY, high = -INFINITY;
        for (int64_t i = 0; i < n; ++i) {
            low = fminf(low, values[4 * i + a]);
            high = fmaxf(high, values[4 * i + a]);
        }
        options.size_m[a] = VOXEL_M;
        box.lower[a + 1] = (int32_t)floor((double)low / VOXEL_M);
        box.upper[a + 1] = (int32_t)floor((double)high / VOXEL_M);
    }
    coords.box = &box;
    options.coords = &coords;
    options.points = SPOPS_VOXEL_POINTS_FIRST;
    options.most_points = POINTS_OF_VOXEL;
    return bench_check(d->b, "voxels",
                       spops_voxels_reserve(d->b->ctx, 3, n, n, &options, &d->voxels));
}

static void measure_voxels(sets_data *d, const float *values, int64_t n)
{
    bench *b = d->b;
    bench_case fill = {.suite = "sets", .name = "hard_voxels"};
    bench_case padded = {.suite = "sets", .name = "padded", .dtype = SPOPS_DTYPE_F32, .cols = 4};
    int64_t v = 0;
    void *out = NULL;
    const size_t most = (size_t)(n * POINTS_OF_VOXEL) * 16;

    if (reserve_voxels(d, values, n) && run(d, "hard_voxels", enqueue_voxels) &&
        rows_of(d, spops_voxels_coords(d->voxels), &v) && bench_alloc(b, most, &out) &&
        bench_alloc(b, (size_t)n * 4, &d->num_points) && bench_poison(b, out, most)) {
        d->padded = spops_matrix_dense(out, n * POINTS_OF_VOXEL, 4, SPOPS_DTYPE_F32);
        snprintf(fill.what, sizeof fill.what, "%lld points in %lld voxels of %g m, up to %d each",
                 (long long)n, (long long)v, VOXEL_M, (int)POINTS_OF_VOXEL);
        snprintf(padded.what, sizeof padded.what, "[%lld, %d, 4] of a capacity of %lld voxels",
                 (long long)v, (int)POINTS_OF_VOXEL, (long long)n);
        fill.bytes = 12 * n + 4 * n + 16 * v;
        padded.bytes = 16 * n + 4 * n + (int64_t)most;
        bench_case_note(&fill, "num_rows", v);
        if (run(d, "padded", enqueue_padded) && check_padded(d, values, v, n) &&
            (!bench_wants(b->options.passes, "hard_voxels") || measure(d, &fill, enqueue_voxels)) &&
            bench_wants(b->options.passes, "padded"))
            (void)measure(d, &padded, enqueue_padded);
    }
    bench_free(b, out);
}

// Some outputs have as many neighbours as there are points near them, up to the cap.
static bool check_neighbors(sets_data *d, const float *values, int64_t n)
{
    bench *b = d->b;
    spops_neighbors_view view = spops_neighbors_view_default();
    int32_t *offsets = NULL;
    bool right = bench_check(b, "view", spops_neighbors_get_view(b->ctx, d->neighbors, &view)) &&
                 bench_fetch_i32(b, view.out->offsets, n + 1, &offsets);
    for (int64_t o = 0; right && o < n; o += n / 50 + 1) {
        int64_t near = 0;
        for (int64_t i = 0; i < n; ++i) {
            const float x = values[4 * i] - values[4 * o],
                        y = values[4 * i + 1] - values[4 * o + 1],
                        z = values[4 * i + 2] - values[4 * o + 2];
            const float xx = x * x, yy = y * y, zz = z * z, xy = xx + yy, d2 = xy + zz;
            near += d2 <= RADIUS_M * RADIUS_M;
        }
        if (near > NEIGHBORS) near = NEIGHBORS;
        right = offsets[o + 1] - offsets[o] == near ||
                bench_fail(b, "sets neighbors: point %lld has %d, expected %lld", (long long)o,
                           (int)(offsets[o + 1] - offsets[o]), (long long)near);
    }
    free(offsets);
    return right;
}

static void measure_neighbors(sets_data *d, const float *values, int64_t n)
{
    static const char *const keeps[] = {"nearest", "first", "random"};
    bench *b = d->b;
    const spops_neighbors_capacity capacity = {
        .max_inputs = n, .max_samples = 1, .max_pairs = NEIGHBORS * n};
    spops_neighbors_options options = spops_neighbors_options_default();

    options.radius_m = RADIUS_M;
    options.contents = SPOPS_NEIGHBORS_LISTS;
    options.max_neighbors = NEIGHBORS;
    d->cloud = (spops_point_cloud){d->points, NULL, 0};
    for (int keep = 0; keep < 3 && !b->failed; ++keep) {
        spops_neighbors_info info = {.struct_size = sizeof info};
        bench_case c = {.suite = "sets"};
        options.keep = (spops_neighbors_keep)keep;
        if (bench_check(b, "neighbors",
                        spops_neighbors_reserve(b->ctx, &capacity, 1, &options, &d->neighbors)) &&
            run(d, "neighbors", enqueue_neighbors) && check_neighbors(d, values, n) &&
            bench_check(b, "neighbors",
                        spops_neighbors_get_info_sync(b->ctx, d->neighbors, &info))) {
            snprintf(c.name, sizeof c.name, "neighbors, %d %s", (int)NEIGHBORS, keeps[keep]);
            snprintf(c.what, sizeof c.what, "%lld pairs of %lld points within %g m",
                     (long long)info.num_pairs, (long long)n, (double)RADIUS_M);
            c.bytes = (12 + 4) * n + (4 + 2) * info.num_pairs;
            bench_case_note(&c, "num_pairs", info.num_pairs);
            (void)measure(d, &c, enqueue_neighbors);
        }
        spops_neighbors_destroy(d->neighbors);
        d->neighbors = NULL;
    }
}

static void measure_points(sets_data *d, const bench_scene *s)
{
    bench *b = d->b;
    int64_t n = 0;
    float *values = load_points(b, s, &n);
    const int32_t count = (int32_t)n;
    void *there = NULL;

    if (values != NULL && bench_upload(b, values, (size_t)n * 16, &there) &&
        bench_upload(b, &count, sizeof count, &d->count)) {
        d->features = d->points = spops_matrix_dense(there, n, 4, SPOPS_DTYPE_F32);
        d->points.cols = 3;
        if (bench_wants(b->options.passes, "hard_voxels") ||
            bench_wants(b->options.passes, "padded"))
            measure_voxels(d, values, n);
        if (!b->failed && bench_wants(b->options.passes, "neighbors"))
            measure_neighbors(d, values, n);
    }
    bench_free(b, there), bench_free(b, d->count), bench_free(b, d->num_points);
    spops_voxels_destroy(d->voxels);
    free(values);
}

static void run_suite(bench *b)
{
    bench_scene s = {.name = "indoor", .file = "conv_indoor.npy", .most_rows = 200000};
    sets_data d = {.b = b};
    const spops_dtype dtype = b->backend == SPOPS_BACKEND_CPU ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16;
    void *rows = NULL, *num = NULL;

    if (!bench_scene_load(b, &s)) return;
    const int32_t count = (int32_t)s.num_rows;
    if (bench_upload(b, s.rows, (size_t)s.num_rows * 16, &rows) &&
        bench_upload(b, &count, sizeof count, &num) &&
        reserve(&d, &s, s.num_rows, s.num_rows, 1, 0, &d.in) &&
        bench_check(b, "set", spops_coords_update(b->ctx, d.in, num, rows))) {
        measure_children(&d, &s);
        if (!b->failed && bench_wants(b->options.passes, "growth")) measure_grown(&d, &s);
        if (!b->failed && bench_wants(b->options.passes, "channels")) measure_channels(&d, dtype);
    }
    bench_free(b, rows), bench_free(b, num);
    if (!b->failed) measure_points(&d, &s);
    spops_coords_destroy(d.fine), spops_coords_destroy(d.grown), spops_coords_destroy(d.in);
    bench_free(b, d.mask), bench_free(b, d.marks);
    free(s.rows);
}

const bench_suite bench_suite_sets = {.name = "sets",
                                      .passes =
                                          "children,growth,channels,hard_voxels,padded,neighbors",
                                      .run = run_suite};
