// SPDX-License-Identifier: Apache-2.0
// Sets of millions of voxels and their submanifold maps: created, by a host's clock, as a program does it
// that gets a new cloud; and updated into capacities, as a captured graph does it. Beside the search
// that the library chooses: the grid, or where that is too large the hash table, that serves small sets.
#include "bench/bench_maps_large.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench_data.h"
#include "bench/bench_scenes.h"

enum { TAPS = 27, CREATED_SAMPLES = 9 };

static const int32_t all_contents =
    SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_REVERSE;

// A set and its map.
typedef struct large_run {
    bench *b;
    const bench_scene *scene;
    const int32_t *rows, *num_rows; // device
    spops_coords_search search;
    spops_kernel_shape kernel;
    spops_coords *coords;
    spops_kernel_map *map;
    spops_status status; // of the first call that failed
} large_run;

static void note(large_run *r, spops_status status)
{
    if (r->status == SPOPS_STATUS_OK) r->status = status;
}

static void close_run(large_run *r)
{
    spops_kernel_map_destroy(r->map);
    spops_coords_destroy(r->coords);
    r->map = NULL;
    r->coords = NULL;
}

static spops_coords_options coords_options(const large_run *r)
{
    spops_coords_options options = spops_coords_options_default();
    options.search = r->search;
    return options;
}

// ---- Created ------------------------------------------------------------------------------------

static bool create(large_run *r)
{
    spops_kernel_map_options options = spops_kernel_map_options_default();
    const spops_coords_options coords = coords_options(r);
    options.contents = all_contents;
    note(r, spops_coords_create(r->b->ctx, 3, r->scene->num_rows, r->rows, &coords, &r->coords));
    if (r->status == SPOPS_STATUS_OK)
        note(r, spops_kernel_map_create(r->b->ctx, SPOPS_MAP_SUBMANIFOLD, &r->kernel, r->coords,
                                        NULL, &options, &r->map));
    return bench_check(r->b, "create", r->status);
}

// What destroying takes is not counted.
static bool time_created(large_run *r, bench_case *c, const char *name, bool is_baseline)
{
    double us[CREATED_SAMPLES];
    bench_variant *v = bench_case_add(c, name, is_baseline);
    if (v == NULL) return bench_fail(r->b, "%s: too many variants", c->name);
    for (int i = -2; i < CREATED_SAMPLES; ++i) {
        struct timespec begin, end;
        if (!device_stream_wait(r->b->backend, r->b->stream))
            return bench_fail(r->b, "%s", device_error());
        clock_gettime(CLOCK_MONOTONIC, &begin);
        if (!create(r)) return false;
        clock_gettime(CLOCK_MONOTONIC, &end);
        close_run(r);
        if (i >= 0)
            us[i] = 1e6 * (double)(end.tv_sec - begin.tv_sec) +
                    1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    }
    device_summarize(us, CREATED_SAMPLES, &v->timing[BENCH_HOT]);
    v->has[BENCH_HOT] = true;
    return true;
}

// The pairs of each tap, as counts[TAPS].
static bool count_taps(large_run *r, int32_t *counts)
{
    spops_kernel_map_view view = spops_kernel_map_view_default();
    return bench_check(r->b, "view", spops_kernel_map_get_view(r->b->ctx, r->map, &view)) &&
           bench_download(r->b, counts, view.tap_counts, TAPS * sizeof *counts);
}

// Both searches find as many pairs of every tap.
static bool check_created(large_run *r, spops_coords_search other, int64_t *num_pairs)
{
    int32_t counts[2][TAPS];
    const spops_coords_search own = r->search;
    for (int i = 0; i < 2; ++i) {
        r->search = i == 0 ? own : other;
        if (!create(r) || !count_taps(r, counts[i])) return false;
        close_run(r);
    }
    r->search = own;
    *num_pairs = 0;
    for (int k = 0; k < TAPS; ++k) {
        *num_pairs += counts[0][k];
        if (counts[0][k] != counts[1][k])
            return bench_fail(r->b, "maps: tap %d has %d pairs, by another search %d", k,
                              counts[0][k], counts[1][k]);
    }
    return true;
}

// ---- Updated ------------------------------------------------------------------------------------

static void update_coords(void *user)
{
    large_run *r = user;
    note(r, spops_coords_update(r->b->ctx, r->coords, r->num_rows, r->rows));
}

static void update_map(void *user)
{
    large_run *r = user;
    note(r, spops_kernel_map_update(r->b->ctx, r->map, r->coords, NULL));
}

static bool reserve(large_run *r, int32_t contents, int64_t num_pairs)
{
    spops_kernel_map_options options = spops_kernel_map_options_default();
    spops_coords_options coords = coords_options(r);
    const int64_t n = r->scene->num_rows;
    coords.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
    coords.box = &r->scene->box;
    options.contents = contents;
    options.max_pairs = num_pairs;
    note(r, spops_coords_reserve(r->b->ctx, 3, n, n, &coords, &r->coords));
    if (r->status == SPOPS_STATUS_OK)
        note(r, spops_kernel_map_reserve(r->b->ctx, SPOPS_MAP_SUBMANIFOLD, &r->kernel, r->coords,
                                         NULL, &options, &r->map));
    if (r->status == SPOPS_STATUS_OK) update_coords(r);
    if (r->status == SPOPS_STATUS_OK) update_map(r);
    return bench_check(r->b, "reserve", r->status);
}

static bool time_updated(large_run *r, bench_case *c, int64_t num_pairs, const char *const names[3],
                         bool is_baseline)
{
    bool ok = reserve(r, SPOPS_MAP_TABLE, 0) &&
              bench_case_time(r->b, c, names[0], is_baseline, update_coords, r) &&
              bench_case_time(r->b, c, names[1], is_baseline, update_map, r);
    close_run(r);
    ok = ok && reserve(r, all_contents, num_pairs) &&
         bench_case_time(r->b, c, names[2], is_baseline, update_map, r);
    close_run(r);
    return ok && bench_check(r->b, "update", r->status);
}

// ---- A cloud ------------------------------------------------------------------------------------

static void open_case(const bench_scene *s, const char *name, int64_t num_pairs, bench_case *c)
{
    memset(c, 0, sizeof *c);
    c->suite = "maps";
    snprintf(c->name, sizeof c->name, "%s, set and map %s", s->name, name);
    snprintf(c->what, sizeof c->what, "%lld voxels, %lld pairs", (long long)s->num_rows,
             (long long)num_pairs);
    // Rows in; rows, keys and numbers of items out; table, masks, order and pairs out.
    c->bytes = s->num_rows * (16 + 16 + 8 + 8 + 4 * (TAPS + 1) + 8) + 8 * num_pairs;
}

// Whether a grid over the box is one that the library makes.
static spops_coords_search small_search(const bench_scene *s)
{
    double bytes = 12.0 / 64.0;
    for (int a = 1; a < 4; ++a)
        bytes *= (double)s->box.upper[a] - (double)s->box.lower[a] + 1.0;
    bytes += 4.0 * (double)s->num_rows + 4096.0;
    return bytes < (double)(256 << 20) ? SPOPS_COORDS_SEARCH_GRID : SPOPS_COORDS_SEARCH_HASH;
}

static void measure_cloud(large_run *r, const int32_t *shuffled)
{
    static const char *const own[3] = {"set alone", "table alone", "table, order, pairs"};
    static const char *const small[3] = {"set, grid or hash", "table, grid or hash",
                                         "all, grid or hash"};
    const int32_t *const rows = r->rows;
    const spops_coords_search other = small_search(r->scene);
    int64_t num_pairs = 0;
    bench_case c;

    if (!check_created(r, other, &num_pairs)) return;
    open_case(r->scene, "created", num_pairs, &c);
    for (int i = 0; i < 2; ++i) {
        r->search = i == 0 ? SPOPS_COORDS_SEARCH_AUTO : other;
        if (!time_created(r, &c, i == 0 ? "rows in order" : "in order, grid or hash", i == 1))
            return;
        r->rows = shuffled;
        if (!time_created(r, &c, i == 0 ? "rows shuffled" : "shuffled, grid or hash", i == 1))
            return;
        r->rows = rows;
    }
    bench_case_print(r->b, &c);
    open_case(r->scene, "updated", num_pairs, &c);
    for (int i = 0; i < 2; ++i) {
        r->search = i == 0 ? SPOPS_COORDS_SEARCH_AUTO : other;
        if (!time_updated(r, &c, num_pairs, i == 0 ? own : small, i == 1)) return;
    }
    bench_case_print(r->b, &c);
}

static void measure_scene(bench *b, const bench_scene *s)
{
    const int64_t n = s->num_rows;
    const int32_t count = (int32_t)n;
    int32_t *order = bench_host(b, n, sizeof *order), *turned = bench_host(b, n, 16);
    void *rows = NULL, *num_rows = NULL, *shuffled = NULL;
    large_run r = {.b = b, .scene = s, .kernel = spops_kernel_shape_cube(3, 3, 1, 1)};

    if (order == NULL || turned == NULL) goto done;
    bench_fill_permutation(order, n, 61);
    for (int64_t i = 0; i < n; ++i)
        memcpy(turned + 4 * i, s->rows + 4 * (int64_t)order[i], 16);
    if (!bench_upload(b, s->rows, (size_t)n * 16, &rows) ||
        !bench_upload(b, turned, (size_t)n * 16, &shuffled) ||
        !bench_upload(b, &count, sizeof count, &num_rows))
        goto done;
    r.rows = rows;
    r.num_rows = num_rows;
    measure_cloud(&r, shuffled);
    close_run(&r);

done:
    bench_free(b, rows);
    bench_free(b, num_rows);
    bench_free(b, shuffled);
    free(order);
    free(turned);
}

void bench_maps_large(bench *b)
{
    static const struct {
        const char *name;
        int32_t cells; // of the gyroid's grid, a side
    } gyroids[] = {{"gyroid 512", 512}, {"gyroid 1024", 1024}, {"gyroid 1536", 1536}};
    const int num = b->options.quick ? 0 : b->backend == SPOPS_BACKEND_CPU ? 1 : 3;
    bench_scene room = {.name = "indoor", .file = "conv_indoor.npy", .most_rows = 200000};
    if (bench_scene_load(b, &room)) measure_scene(b, &room);
    free(room.rows);
    for (int i = 0; i < num; ++i) {
        bench_scene s = {.name = gyroids[i].name};
        bench_progress("maps: making %s", s.name);
        if (bench_scene_gyroid(b, gyroids[i].cells, &s)) measure_scene(b, &s);
        free(s.rows);
    }
}
