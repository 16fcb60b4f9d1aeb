// SPDX-License-Identifier: Apache-2.0
// Coordinates and kernel maps: from int32 coordinates on the stream, into capacities, to all that
// a convolution by neighbour table needs; output coordinates; voxels with mean features. With
// --ablation: one choice changed at a time. With --large: sets of millions of voxels instead.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/map_baselines.h"
#include "bench/bench_data.h"
#include "bench/bench_maps_large.h"
#include "bench/bench_report.h"
#include "bench/bench_scenes.h"

static struct {
    bool ablation, large;
} asked;
static const bench_option suite_options[] = {
    {"--ablation", NULL, "search strategies, symmetry, output coordinates in stages",
     .on = &asked.ablation},
    {"--large", NULL, "sets of 200,000 to 10.9 million voxels and their maps, and nothing else",
     .on = &asked.large},
    {0}};

// ---- Maps ---------------------------------------------------------------------------------------

// Coordinates and a map of theirs, refilled by every run.
typedef struct map_run {
    bench *b;
    const int32_t *rows, *num_rows; // device
    spops_coords *coords, *outputs; // outputs NULL: submanifold
    spops_kernel_map *map;
    spops_kernel_shape kernel;
    map_stages stages;
    const int32_t *num_candidates; // device
    spops_status status;           // of the first call that failed
} map_run;

static void note(map_run *r, spops_status status)
{
    if (r->status == SPOPS_STATUS_OK) r->status = status;
}

static void enqueue_coords(void *user)
{
    map_run *r = user;
    note(r, spops_coords_update(r->b->ctx, r->coords, r->num_rows, r->rows));
}

static void enqueue_map(void *user)
{
    map_run *r = user;
    note(r, spops_kernel_map_update(r->b->ctx, r->map, r->coords,
                                    r->outputs != NULL ? r->outputs : r->coords));
}

static void enqueue_both(void *user)
{
    enqueue_coords(user);
    enqueue_map(user);
}

static void enqueue_fused(void *user)
{
    map_run *r = user;
    note(r, spops_coords_update_downsampled(r->b->ctx, r->outputs, r->coords, &r->kernel));
}

static void enqueue_staged(void *user)
{
    map_run *r = user;
    if (r->b->backend == SPOPS_BACKEND_CUDA)
        map_stages_cuda(&r->stages);
    else
        map_stages_cpu(&r->stages);
    note(r, spops_coords_update(r->b->ctx, r->outputs, r->num_candidates, r->stages.candidates));
}

static void enqueue_sorted(void *user)
{
    map_sorted_cpu(user);
}

static spops_coords_options coords_options(const spops_coords_box *box, spops_coords_search search)
{
    spops_coords_options options = spops_coords_options_default();
    options.search = search;
    options.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
    options.box = box;
    return options;
}

static void close_run(map_run *r)
{
    spops_kernel_map_destroy(r->map);
    spops_coords_destroy(r->outputs);
    spops_coords_destroy(r->coords);
    r->map = NULL;
    r->coords = r->outputs = NULL;
}

// Coordinates and a submanifold map of `parts`, filled once.
static bool open_run(bench *b, const bench_scene *s, const void *rows, const void *num_rows,
                     int32_t size, spops_coords_search search, int32_t contents,
                     int32_t no_symmetry, map_run *r)
{
    const spops_coords_options coords = coords_options(&s->box, search);
    spops_kernel_map_options options = spops_kernel_map_options_default();

    memset(r, 0, sizeof *r);
    r->b = b;
    r->rows = rows;
    r->num_rows = num_rows;
    r->kernel = spops_kernel_shape_cube(3, size, 1, 1);
    options.contents = contents;
    options.no_symmetry = no_symmetry;
    options.max_pairs = s->num_rows * spops_kernel_shape_num_taps(&r->kernel);
    if (options.max_pairs > INT32_MAX - 1) options.max_pairs = INT32_MAX - 1;
    if (!bench_check(
            b, "coords_reserve",
            spops_coords_reserve(b->ctx, 3, s->num_rows, s->num_rows, &coords, &r->coords)) ||
        !bench_check(b, "kernel_map_reserve",
                     spops_kernel_map_reserve(b->ctx, SPOPS_MAP_SUBMANIFOLD, &r->kernel, r->coords,
                                              r->coords, &options, &r->map)))
        return false;
    enqueue_both(r);
    if (!device_stream_wait(b->backend, b->stream)) return bench_fail(b, "%s", device_error());
    return bench_check(b, "kernel_map_update", r->status);
}

// Pairs of every tap, counted by sort and search on the host.
static bool check_run(const map_run *r, const bench_scene *s, const map_sorted *reference)
{
    bench *b = r->b;
    const int64_t taps = spops_kernel_shape_num_taps(&r->kernel);
    spops_kernel_map_view view = spops_kernel_map_view_default();
    int32_t counts[SPOPS_MAX_KERNEL_SIZE * SPOPS_MAX_KERNEL_SIZE * SPOPS_MAX_KERNEL_SIZE];

    if (!bench_check(b, "view", spops_kernel_map_get_view(b->ctx, r->map, &view)) ||
        !bench_download(b, counts, view.tap_counts, (size_t)taps * sizeof *counts))
        return false;
    for (int64_t k = 0; k < taps; ++k)
        if (counts[k] != reference->counts[k])
            return bench_fail(b, "maps %s: tap %lld has %d pairs, expected %lld", s->name,
                              (long long)k, counts[k], (long long)reference->counts[k]);
    return true;
}

static void open_case(const bench_scene *s, const char *name, int64_t num_pairs, bench_case *c)
{
    memset(c, 0, sizeof *c);
    c->suite = "maps";
    snprintf(c->name, sizeof c->name, "%s%s %s", s->from_file ? "conv_" : "made_", s->name, name);
    snprintf(c->what, sizeof c->what, "%lld voxels, %lld pairs", (long long)s->num_rows,
             (long long)num_pairs);
}

// What a map of TABLE and ORDER must move: coordinates in, and out table, masks and order.
static int64_t map_bytes(const bench_scene *s, int64_t taps)
{
    return s->num_rows * (16 + 4 * ((taps + 3) / 4 * 4) + 4 * ((taps + 31) / 32) + 4);
}

// One kernel size: the whole, and its parts.
static void measure_map(bench *b, const bench_scene *s, const void *rows, const void *num_rows,
                        map_sorted *reference, int64_t num_pairs)
{
    const int32_t table = SPOPS_MAP_TABLE, order = SPOPS_MAP_TABLE | SPOPS_MAP_ORDER;
    const int32_t all = order | SPOPS_MAP_PAIRS | SPOPS_MAP_CSR | SPOPS_MAP_REVERSE;
    char name[32];
    bench_case c;
    map_run r;

    snprintf(name, sizeof name, "%dx%dx%d", reference->size, reference->size, reference->size);
    open_case(s, name, num_pairs, &c);
    c.bytes = map_bytes(s, (int64_t)reference->size * reference->size * reference->size);
    if (open_run(b, s, rows, num_rows, reference->size, SPOPS_COORDS_SEARCH_AUTO, order, 0, &r) &&
        check_run(&r, s, reference) &&
        bench_case_time(b, &c, "coordinates to order", false, enqueue_both, &r) &&
        bench_case_time(b, &c, "coordinates alone", false, enqueue_coords, &r) &&
        bench_case_time(b, &c, "table and order", false, enqueue_map, &r))
        (void)bench_check(b, c.name, r.status);
    close_run(&r);
    if (open_run(b, s, rows, num_rows, reference->size, SPOPS_COORDS_SEARCH_AUTO, table, 0, &r) &&
        bench_case_time(b, &c, "table alone", false, enqueue_map, &r))
        (void)bench_check(b, c.name, r.status);
    close_run(&r);
    if (open_run(b, s, rows, num_rows, reference->size, SPOPS_COORDS_SEARCH_AUTO, all, 0, &r) &&
        bench_case_time(b, &c, "every part", false, enqueue_map, &r))
        (void)bench_check(b, c.name, r.status);
    close_run(&r);
    if (b->backend == SPOPS_BACKEND_CPU && b->options.baselines)
        (void)bench_case_time(b, &c, "sort and search", true, enqueue_sorted, reference);
    bench_case_print(b, &c);
}

// Search strategies, with and without the symmetry of the map.
static void measure_searches(bench *b, const bench_scene *s, const void *rows, const void *num_rows,
                             const map_sorted *reference, int64_t num_pairs)
{
    static const char *const names[3][2] = {{"hash, symmetric", "hash, plain"},
                                            {"grid, symmetric", "grid, plain"},
                                            {"sorted, symmetric", "sorted, plain"}};
    char name[64];
    bench_case c;

    snprintf(name, sizeof name, "%dx%dx%d search, coordinates to table", reference->size,
             reference->size, reference->size);
    open_case(s, name, num_pairs, &c);
    for (int search = 0; search < 3; ++search)
        for (int no_symmetry = 0; no_symmetry < 2; ++no_symmetry) {
            map_run r;
            if (open_run(b, s, rows, num_rows, reference->size, (spops_coords_search)(search + 1),
                         SPOPS_MAP_TABLE, no_symmetry, &r) &&
                check_run(&r, s, reference) &&
                bench_case_time(b, &c, names[search][no_symmetry], false, enqueue_both, &r))
                (void)bench_check(b, c.name, r.status);
            close_run(&r);
        }
    bench_case_print(b, &c);
}

static bool reserve_set(bench *b, int64_t max_rows, int64_t max_items,
                        const spops_coords_options *options, spops_coords **out)
{
    return bench_check(b, "coords_reserve",
                       spops_coords_reserve(b->ctx, 3, max_rows, max_items, options, out));
}

// Both ways give as many rows, and are timed.
static void time_downsampled(bench *b, const bench_scene *s, const char *name, map_run *r,
                             spops_coords *fused_outputs, spops_coords *staged_outputs)
{
    spops_coords_info fused = {.struct_size = sizeof fused},
                      staged = {.struct_size = sizeof staged};
    bench_case c;

    enqueue_coords(r);
    r->outputs = fused_outputs;
    enqueue_fused(r);
    r->outputs = staged_outputs;
    enqueue_staged(r);
    if (!bench_check(b, name, r->status) ||
        !bench_check(b, name, spops_coords_get_info_sync(b->ctx, fused_outputs, &fused)) ||
        !bench_check(b, name, spops_coords_get_info_sync(b->ctx, staged_outputs, &staged)))
        return;
    if (fused.num_rows != staged.num_rows || r->stages.failed) {
        bench_fail(b, "maps %s %s: %lld rows, in stages %lld", s->name, name,
                   (long long)fused.num_rows, (long long)staged.num_rows);
        return;
    }
    open_case(s, name, 0, &c);
    snprintf(c.what, sizeof c.what, "%lld voxels to %lld", (long long)s->num_rows,
             (long long)fused.num_rows);
    r->outputs = fused_outputs;
    if (!bench_case_time(b, &c, "fused", false, enqueue_fused, r)) return;
    r->outputs = staged_outputs;
    if (!bench_case_time(b, &c, "in stages", true, enqueue_staged, r) ||
        !bench_check(b, name, r->status))
        return;
    bench_case_print(b, &c);
}

// Output coordinates in one pass, beside the same in stages.
static void measure_downsampled(bench *b, const bench_scene *s, const void *rows,
                                const void *num_rows, int32_t size)
{
    spops_kernel_shape kernel = spops_kernel_shape_cube(3, size, 2, 1);
    const int64_t taps = spops_kernel_shape_num_taps(&kernel);
    const spops_coords_options in = coords_options(&s->box, SPOPS_COORDS_SEARCH_AUTO);
    const int32_t num_candidates = (int32_t)(s->num_rows * taps);
    spops_coords_box box = s->box;
    spops_coords_options out = coords_options(&box, SPOPS_COORDS_SEARCH_AUTO);
    spops_coords *staged_outputs = NULL, *fused_outputs = NULL;
    void *count = NULL, *candidates = NULL, *keep = NULL;
    char name[64];
    map_run r;

    for (int a = 0; a < 3; ++a) {
        kernel.padding[a] = (size - 1) / 2;
        box.lower[a + 1] = (int32_t)floor((box.lower[a + 1] - size) / 2.0);
        box.upper[a + 1] = (int32_t)ceil((box.upper[a + 1] + size) / 2.0);
    }
    memset(&r, 0, sizeof r);
    r.b = b;
    r.rows = rows;
    r.num_rows = num_rows;
    r.kernel = kernel;
    const int64_t most = s->num_rows * spops_kernel_shape_num_candidates(&kernel, 0);
    snprintf(name, sizeof name, "%dx%dx%d stride 2, output coordinates", size, size, size);
    if (!bench_upload(b, &num_candidates, sizeof num_candidates, &count) ||
        !bench_alloc(b, (size_t)num_candidates * 16, &candidates) ||
        !bench_alloc(b, (size_t)num_candidates * 4, &keep) ||
        !reserve_set(b, s->num_rows, s->num_rows, &in, &r.coords) ||
        !reserve_set(b, most, most, &out, &fused_outputs) ||
        !reserve_set(b, num_candidates, num_candidates, &out, &staged_outputs))
        goto done;
    r.num_candidates = count;
    r.stages = (map_stages){.kernel = kernel,
                            .box = box,
                            .num_rows = s->num_rows,
                            .rows = rows,
                            .candidates = candidates,
                            .keep = keep,
                            .stream = b->stream};
    time_downsampled(b, s, name, &r, fused_outputs, staged_outputs);

done:
    r.outputs = NULL;
    close_run(&r);
    spops_coords_destroy(fused_outputs);
    spops_coords_destroy(staged_outputs);
    bench_free(b, count);
    bench_free(b, candidates);
    bench_free(b, keep);
}

// ---- Pyramids -----------------------------------------------------------------------------------

enum { NUM_LEVELS = 5 };

// The levels and maps of a U-Net: planned together, and, beside that, one by one.
typedef struct pyramid_run {
    bench *b;
    const int32_t *rows, *num_rows; // device
    spops_coords *finest;
    spops_pyramid *pyramid;
    spops_kernel_shape cube, window;
    spops_coords *coarser[NUM_LEVELS]; // [0] is not there
    spops_kernel_map *within[NUM_LEVELS], *down[NUM_LEVELS], *up[NUM_LEVELS];
    spops_status status; // of the first call that failed
} pyramid_run;

static const spops_coords *level_of(const pyramid_run *r, int level)
{
    return level == 0 ? r->finest : r->coarser[level];
}

static void note_pyramid(pyramid_run *r, spops_status status)
{
    if (r->status == SPOPS_STATUS_OK) r->status = status;
}

static void enqueue_together(void *user)
{
    pyramid_run *r = user;
    note_pyramid(r, spops_pyramid_update(r->b->ctx, r->pyramid));
}

static void enqueue_one_by_one(void *user)
{
    pyramid_run *r = user;
    spops_context *ctx = r->b->ctx;
    for (int l = 0; l < NUM_LEVELS; ++l) {
        if (l > 0)
            note_pyramid(r, spops_coords_update_downsampled(ctx, r->coarser[l], level_of(r, l - 1),
                                                            &r->window));
        note_pyramid(r, spops_kernel_map_update(ctx, r->within[l], level_of(r, l), NULL));
    }
    for (int l = 0; l + 1 < NUM_LEVELS; ++l) {
        note_pyramid(r,
                     spops_kernel_map_update(ctx, r->down[l], level_of(r, l), level_of(r, l + 1)));
        note_pyramid(r, spops_kernel_map_update(ctx, r->up[l], level_of(r, l + 1), level_of(r, l)));
    }
}

static bool reserve_together(pyramid_run *r, int32_t contents)
{
    spops_pyramid_options options = spops_pyramid_options_default();
    options.num_levels = NUM_LEVELS;
    options.contents = contents;
    return bench_check(r->b, "pyramid_reserve",
                       spops_pyramid_reserve(r->b->ctx, r->finest, &options, &r->pyramid));
}

// With the capacities and boxes that the pyramid's have.
static bool reserve_one_by_one(pyramid_run *r, int32_t contents)
{
    spops_context *ctx = r->b->ctx;
    spops_kernel_map_options options = spops_kernel_map_options_default();
    options.contents = contents;
    for (int l = 1; l < NUM_LEVELS; ++l) {
        spops_coords_info info = spops_coords_info_default();
        if (!bench_check(
                r->b, "info",
                spops_coords_get_info_sync(ctx, spops_pyramid_coords(r->pyramid, l), &info)))
            return false;
        const spops_coords_options coords = coords_options(&info.box, info.search);
        if (!bench_check(r->b, "coords_reserve",
                         spops_coords_reserve(ctx, 3, info.max_rows, info.max_rows, &coords,
                                              &r->coarser[l])))
            return false;
    }
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_coords_view view = spops_coords_view_default();
        if (!bench_check(r->b, "view", spops_coords_get_view(ctx, level_of(r, l), &view)))
            return false;
        options.max_pairs = view.max_rows * 27;
        if (!bench_check(r->b, "kernel_map_reserve",
                         spops_kernel_map_reserve(ctx, SPOPS_MAP_SUBMANIFOLD, &r->cube,
                                                  level_of(r, l), NULL, &options, &r->within[l])))
            return false;
        options.max_pairs = view.max_rows;
        if (l + 1 < NUM_LEVELS &&
            (!bench_check(r->b, "kernel_map_reserve",
                          spops_kernel_map_reserve(ctx, SPOPS_MAP_CONVOLUTION, &r->window,
                                                   level_of(r, l), level_of(r, l + 1), &options,
                                                   &r->down[l])) ||
             !bench_check(r->b, "kernel_map_reserve",
                          spops_kernel_map_reserve(ctx, SPOPS_MAP_TRANSPOSED, &r->window,
                                                   level_of(r, l + 1), level_of(r, l), &options,
                                                   &r->up[l]))))
            return false;
    }
    return true;
}

// Both ways find the same.
static bool check_pyramid(const pyramid_run *r, const bench_scene *s, char *what, size_t size)
{
    spops_context *ctx = r->b->ctx;
    spops_pyramid_info info = spops_pyramid_info_default();
    size_t used = (size_t)snprintf(what, size, "levels of");
    if (!bench_check(r->b, "pyramid", spops_pyramid_get_info_sync(ctx, r->pyramid, &info)))
        return false;
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_kernel_map_info within = spops_kernel_map_info_default(), up = within;
        up.num_pairs = info.num_down_pairs[l];
        if (!bench_check(r->b, "map", spops_kernel_map_get_info_sync(ctx, r->within[l], &within)) ||
            (l + 1 < NUM_LEVELS &&
             !bench_check(r->b, "map", spops_kernel_map_get_info_sync(ctx, r->up[l], &up))))
            return false;
        if (within.num_pairs != info.num_pairs[l] || up.num_pairs != info.num_down_pairs[l])
            return bench_fail(r->b, "maps %s: pyramid and single maps differ at level %d", s->name,
                              l);
        used += (size_t)snprintf(what + used, size - used, "%s %lld", l == 0 ? "" : ",",
                                 (long long)info.num_rows[l]);
    }
    return true;
}

// Kernels of an enqueue, 0 where nothing can be captured.
static int count_kernels(const bench *b, void (*enqueue)(void *user), void *user)
{
    device_graph *graph = NULL;
    int kernels = 0, copies, memsets, others;
    if (b->backend != SPOPS_BACKEND_CUDA || !device_capture_begin(b->stream)) return 0;
    enqueue(user);
    if (!device_capture_end(b->stream, &graph) ||
        !device_graph_count(graph, &kernels, &copies, &memsets, &others))
        kernels = 0;
    device_graph_destroy(graph);
    return kernels;
}

static void close_pyramid(pyramid_run *r)
{
    for (int l = 0; l < NUM_LEVELS; ++l) {
        spops_kernel_map_destroy(r->within[l]);
        spops_kernel_map_destroy(r->down[l]);
        spops_kernel_map_destroy(r->up[l]);
        spops_coords_destroy(r->coarser[l]);
    }
    spops_pyramid_destroy(r->pyramid);
    spops_coords_destroy(r->finest);
}

static void measure_pyramid(bench *b, const bench_scene *s, const void *rows, const void *num_rows,
                            const char *parts, int32_t contents)
{
    const spops_coords_options finest = coords_options(&s->box, SPOPS_COORDS_SEARCH_AUTO);
    pyramid_run r = {.b = b,
                     .rows = rows,
                     .num_rows = num_rows,
                     .cube = spops_kernel_shape_cube(3, 3, 1, 1),
                     .window = spops_kernel_shape_cube(3, 2, 2, 1)};
    char name[64], together[64], one_by_one[64], what[160];
    bench_case c;

    snprintf(name, sizeof name, "pyramid of five levels, %s", parts);
    open_case(s, name, 0, &c);
    if (bench_check(
            b, "coords_reserve",
            spops_coords_reserve(b->ctx, 3, s->num_rows, s->num_rows, &finest, &r.finest)) &&
        bench_check(b, "coords_update", spops_coords_update(b->ctx, r.finest, num_rows, rows)) &&
        reserve_together(&r, contents) && reserve_one_by_one(&r, contents)) {
        enqueue_together(&r);
        enqueue_one_by_one(&r);
        if (bench_check(b, c.name, r.status) && check_pyramid(&r, s, what, sizeof what)) {
            snprintf(c.what, sizeof c.what, "%s", what);
            snprintf(together, sizeof together, "in one call, %d kernels",
                     count_kernels(b, enqueue_together, &r));
            snprintf(one_by_one, sizeof one_by_one, "level by level, %d kernels",
                     count_kernels(b, enqueue_one_by_one, &r));
            if (bench_case_time(b, &c, together, false, enqueue_together, &r) &&
                bench_case_time(b, &c, one_by_one, true, enqueue_one_by_one, &r) &&
                bench_check(b, c.name, r.status))
                bench_case_print(b, &c);
        }
    }
    close_pyramid(&r);
}

static void measure_scene(bench *b, bench_scene *s, bool large)
{
    void *rows = NULL, *num_rows = NULL;
    const int32_t count = (int32_t)s->num_rows;
    map_sorted reference = {.num_rows = s->num_rows, .rows = s->rows};

    reference.keys = bench_host(b, s->num_rows, sizeof *reference.keys);
    reference.order = bench_host(b, s->num_rows, sizeof *reference.order);
    reference.spare = bench_host(b, s->num_rows, sizeof *reference.spare);
    reference.counts = bench_host(b, 343, sizeof *reference.counts);
    if (reference.keys == NULL || reference.order == NULL || reference.spare == NULL ||
        reference.counts == NULL || !bench_upload(b, s->rows, (size_t)s->num_rows * 16, &rows) ||
        !bench_upload(b, &count, sizeof count, &num_rows))
        goto done;
    for (int32_t size = 3; size <= (large ? 5 : 3); size += 2) {
        const int64_t taps = (int64_t)size * size * size;
        int64_t num_pairs = 0;
        reference.size = size;
        reference.table = bench_host(b, s->num_rows * taps, sizeof *reference.table);
        if (reference.table == NULL) goto done;
        bench_progress("maps %s: counting pairs on the host", s->name);
        map_sorted_cpu(&reference);
        for (int64_t k = 0; k < taps; ++k)
            num_pairs += reference.counts[k];
        measure_map(b, s, rows, num_rows, &reference, num_pairs);
        if (asked.ablation) measure_searches(b, s, rows, num_rows, &reference, num_pairs);
        free(reference.table);
        reference.table = NULL;
    }
    measure_pyramid(b, s, rows, num_rows, "tables and orders", SPOPS_MAP_ORDER);
    measure_pyramid(b, s, rows, num_rows, "with pairs", SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS);
    if (asked.ablation) {
        measure_downsampled(b, s, rows, num_rows, 2);
        measure_downsampled(b, s, rows, num_rows, 3);
    }

done:
    bench_free(b, rows);
    bench_free(b, num_rows);
    free(reference.table);
    free(reference.keys);
    free(reference.order);
    free(reference.spare);
    free(reference.counts);
}

// ---- Voxels -------------------------------------------------------------------------------------

typedef struct voxel_run {
    bench *b;
    spops_voxels *voxels;
    const int32_t *num_points;
    spops_matrix points, features, means; // points: the first three columns of features
    spops_status status;
} voxel_run;

static void enqueue_voxels(void *user)
{
    voxel_run *r = user;
    const spops_status status =
        spops_voxels_update(r->b->ctx, r->voxels, r->num_points, r->points, NULL);
    if (r->status == SPOPS_STATUS_OK) r->status = status;
}

static void enqueue_means(void *user)
{
    voxel_run *r = user;
    enqueue_voxels(user);
    const spops_status status =
        spops_segreduce_execute(r->b->ctx, spops_voxels_segments(r->voxels), SPOPS_REDUCE_MEAN,
                                r->features, NULL, r->means, NULL);
    if (r->status == SPOPS_STATUS_OK) r->status = status;
}

// The file's scan, or a made one: points of a sweep, noisy enough to fall into as many voxels.
static float *load_points(bench *b, int64_t *num_points, bool *from_file)
{
    int64_t cols = 0;
    float *values = bench_load_npy(b, "kitti_odom_a.npy", "<f4", num_points, &cols);
    bench_scene made = {.name = "lidar"};
    *from_file = values != NULL;
    if (values != NULL && cols == 4) return values;
    free(values);
    *from_file = false;
    made.rows = bench_host(b, 4 << 18, sizeof *made.rows);
    if (made.rows == NULL) return NULL;
    bench_scene_sweep(&made);
    values = bench_host(b, 4 * made.num_rows, sizeof *values);
    for (int64_t i = 0; values != NULL && i < made.num_rows; ++i)
        for (int a = 0; a < 4; ++a)
            values[4 * i + a] =
                a == 3 ? 0.5f
                       : 0.05f * ((float)made.rows[4 * i + 1 + a] +
                                  bench_uniform(51, (uint64_t)(3 * i + a), 0.0f, 1.0f));
    free(made.rows);
    *num_points = made.num_rows;
    return values;
}

// Voxels that hold a point, counted on the host.
static int64_t count_voxels(bench *b, const float *values, int64_t n, spops_coords_box *box)
{
    const double size = 0.05;
    bench_scene s = {.num_rows = n};
    s.rows = bench_host(b, 4 * n, sizeof *s.rows);
    if (s.rows == NULL) return -1;
    memset(box, 0, sizeof *box);
    for (int a = 0; a < 3; ++a) {
        box->lower[a + 1] = INT32_MAX;
        box->upper[a + 1] = INT32_MIN;
    }
    for (int64_t i = 0; i < n; ++i)
        for (int a = 0; a < 3; ++a) {
            const int32_t v = (int32_t)floor((double)values[4 * i + a] / size);
            s.rows[4 * i + 1 + a] = v;
            if (v < box->lower[a + 1]) box->lower[a + 1] = v;
            if (v > box->upper[a + 1]) box->upper[a + 1] = v;
        }
    bench_scene_unique(&s);
    free(s.rows);
    return s.num_rows;
}

static bool check_means(const voxel_run *r, int64_t expected)
{
    bench *b = r->b;
    spops_coords_info info = {.struct_size = sizeof info};
    if (!bench_check(b, "voxels",
                     spops_coords_get_info_sync(b->ctx, spops_voxels_coords(r->voxels), &info)))
        return false;
    return info.num_rows == expected || bench_fail(b, "maps voxelize: %lld voxels, expected %lld",
                                                   (long long)info.num_rows, (long long)expected);
}

static void measure_voxels(bench *b)
{
    int64_t n = 0, num_voxels;
    bool from_file = false;
    float *values = load_points(b, &n, &from_file);
    void *features = NULL, *means = NULL, *num_points = NULL;
    spops_coords_box box;
    bench_case c = {.suite = "maps"};

    if (values == NULL) return;
    if (b->options.quick && n > BENCH_QUICK_ROWS) n = BENCH_QUICK_ROWS;
    const int32_t count = (int32_t)n;
    num_voxels = count_voxels(b, values, n, &box);
    if (num_voxels < 0 || !bench_upload(b, values, (size_t)n * 16, &features) ||
        !bench_alloc(b, (size_t)n * 16, &means) ||
        !bench_upload(b, &count, sizeof count, &num_points))
        goto done;
    snprintf(c.name, sizeof c.name, "%s voxels of 0.05 m",
             from_file ? "kitti_odom_a" : "made_lidar");
    snprintf(c.what, sizeof c.what, "%lld points in %lld voxels, means of 4 columns of f32",
             (long long)n, (long long)num_voxels);
    c.bytes = 16 * n + num_voxels * (16 + 16) + 4 * n;
    for (int order = SPOPS_COORDS_ORDER_GIVEN; order <= SPOPS_COORDS_ORDER_LEXICOGRAPHIC; ++order) {
        const bool given = order == SPOPS_COORDS_ORDER_GIVEN;
        spops_voxels_options options = spops_voxels_options_default();
        spops_coords_options coords = spops_coords_options_default();
        voxel_run r = {.b = b, .num_points = num_points};
        for (int a = 0; a < 3; ++a)
            options.size_m[a] = 0.05;
        coords.order = (spops_coords_order)order;
        coords.box = &box;
        options.coords = &coords;
        options.max_cols = 4;
        r.features = spops_matrix_dense(features, n, 4, SPOPS_DTYPE_F32);
        r.points = r.features;
        r.points.cols = 3;
        r.means = spops_matrix_dense(means, n, 4, SPOPS_DTYPE_F32);
        if (bench_check(b, "voxels_reserve",
                        spops_voxels_reserve(b->ctx, 3, n, n, &options, &r.voxels))) {
            enqueue_means(&r);
            if (bench_check(b, c.name, r.status) && check_means(&r, num_voxels) &&
                bench_case_time(b, &c, given ? "voxels and means" : "the same, sorted", false,
                                enqueue_means, &r) &&
                bench_case_time(b, &c, given ? "voxels alone" : "voxels, sorted", false,
                                enqueue_voxels, &r))
                (void)bench_check(b, c.name, r.status);
        }
        spops_voxels_destroy(r.voxels);
    }
    bench_case_print(b, &c);

done:
    free(values);
    bench_free(b, features);
    bench_free(b, means);
    bench_free(b, num_points);
}

static void run_suite(bench *b)
{
    bench_scene scenes[] = {{.name = "lidar", .file = "conv_lidar.npy", .most_rows = 82329},
                            {.name = "indoor", .file = "conv_indoor.npy", .most_rows = 200000},
                            {.name = "shell", .file = "conv_shell.npy", .most_rows = 252392}};
    if (asked.large) {
        bench_maps_large(b);
        return;
    }
    for (int i = 0; i < 3; ++i) {
        if (bench_scene_load(b, &scenes[i]))
            measure_scene(b, &scenes[i], i == 1 && !b->options.quick);
        free(scenes[i].rows);
    }
    measure_voxels(b);
}

const bench_suite bench_suite_maps = {.name = "maps", .options = suite_options, .run = run_suite};
