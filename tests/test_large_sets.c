// SPDX-License-Identifier: Apache-2.0
// Sets of many rows and their maps, bit for bit: by sorted keys and by a table; on a device also beside
// the CPU. Surfaces, solid cubes, voxels without neighbours, several samples, the ends of the int32
// range; rows in order and shuffled; into capacities, from one captured graph.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { CONTENTS = SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_REVERSE };

// ---- clouds ----

typedef enum cloud_kind { ONE, SURFACE, CUBE, APART, SAMPLES, ENDS, NUM_KINDS } cloud_kind;
static const char *const kind_names[] = {"one voxel", "a surface",       "a cube",
                                         "apart",     "several samples", "both ends"};

typedef struct large_cloud {
    int64_t n;
    int32_t *rows; // [n][4] lexicographic
} large_cloud;

static bool on_surface(int32_t side, int32_t x, int32_t y, int32_t z)
{
    const double unit = 6.283185307179586 / side;
    const double f = sin(x * unit) * cos(y * unit) + sin(y * unit) * cos(z * unit) +
                     sin(z * unit) * cos(x * unit);
    return fabs(f) < 1.2 * unit;
}

// Whether a cloud has the cell (x, y, z) of its cube, and where that lies.
static bool has_cell(cloud_kind kind, int32_t side, int32_t batch, const int32_t at[3],
                     test_rng *rng)
{
    if (kind == SURFACE) return on_surface(side, at[0], at[1], at[2]);
    if (kind == SAMPLES) return test_rng_below(rng, 3) <= batch;
    return true;
}

static large_cloud make_cloud(cloud_kind kind, test_rng *rng)
{
    // With about half a million rows, but for one: as many as AUTO takes sorted keys for.
    static const int32_t sides[] = {1, 240, 80, 80, 64, 64};
    static const int32_t batches[] = {1, 1, 1, 1, 3, 2};
    const int32_t side = test_quick() && kind != ONE ? sides[kind] / 2 : sides[kind];
    const int64_t room = (int64_t)batches[kind] * side * side * side;
    large_cloud cloud = {0, (int32_t *)calloc((size_t)room, 16)};
    for (int32_t batch = 0; batch < batches[kind]; ++batch)
        for (int32_t x = 0; x < side; ++x)
            for (int32_t y = 0; y < side; ++y)
                for (int32_t z = 0; z < side; ++z) {
                    const int32_t at[3] = {x, y, z};
                    int32_t *row = cloud.rows + 4 * cloud.n;
                    if (!has_cell(kind, side, batch, at, rng)) continue;
                    ++cloud.n;
                    for (int a = 0; a < 3; ++a)
                        row[a + 1] = kind == APART ? 2 * at[a] - side : at[a] - 7;
                    if (kind == ENDS) { // of axis 0; the others at one end
                        row[1] = batch == 0 ? INT32_MIN + x : INT32_MAX - side + 1 + x;
                        row[2] = INT32_MIN + y;
                        row[3] = INT32_MAX - side + 1 + z;
                    } else {
                        row[0] = batch;
                    }
                }
    return cloud;
}

static void shuffle(large_cloud *cloud, test_rng *rng)
{
    for (int64_t i = cloud->n - 1; i > 0; --i) {
        const int64_t j = (int64_t)test_rng_below(rng, i + 1);
        int32_t row[4];
        memcpy(row, cloud->rows + 4 * i, sizeof row);
        memcpy(cloud->rows + 4 * i, cloud->rows + 4 * j, sizeof row);
        memcpy(cloud->rows + 4 * j, row, sizeof row);
    }
}

// ---- what a set and its map hold ----

typedef struct held_pair {
    held_set set;
    held_map map;
} held_pair;

static void free_pair(held_pair *h)
{
    held_set_free(&h->set);
    held_map_free(&h->map);
}

static void check_same(const held_pair *a, const held_pair *b, const char *what)
{
    const size_t n = (size_t)a->set.info.num_rows;
    cr_assert(a->set.info.num_rows == b->set.info.num_rows, "%s: %lld and %lld rows", what,
              (long long)a->set.info.num_rows, (long long)b->set.info.num_rows);
    cr_assert(a->set.info.num_merged == b->set.info.num_merged &&
                  a->set.info.num_dropped == b->set.info.num_dropped &&
                  a->set.info.overflow == b->set.info.overflow,
              "%s: counts", what);
    cr_assert(memcmp(a->set.rows, b->set.rows, n * 16) == 0, "%s: rows", what);
    cr_assert(memcmp(a->set.row_item, b->set.row_item, n * 4) == 0, "%s: row_item", what);
    cr_assert(a->set.view.max_items == b->set.view.max_items, "%s: items", what);
    cr_assert(memcmp(a->set.item_row, b->set.item_row, (size_t)a->set.view.max_items * 4) == 0,
              "%s: item_row", what);
    held_map_check_same(&a->map, &b->map, what);
}

// A context on the host beside the device under test.
static test_device open_host(const test_device *d)
{
    test_device host;
    spops_context_options options = spops_context_options_default();
    memset(&host, 0, sizeof host);
    options.backend = host.backend = SPOPS_BACKEND_CPU;
    test_expect_ok(NULL, spops_context_create(&options, &host.ctx), "host");
    cr_assert(d->backend != SPOPS_BACKEND_CPU);
    return host;
}

// ---- created ----

static held_pair create(test_device *d, const large_cloud *cloud, const spops_coords_options *o,
                        const spops_kernel_shape *kernel, const char *what)
{
    spops_kernel_map_options m = spops_kernel_map_options_default();
    spops_coords *coords = test_create_set(d, 3, cloud->n, cloud->rows, o);
    spops_kernel_map *map = NULL;
    m.contents = CONTENTS;
    test_expect_ok(
        d->ctx,
        spops_kernel_map_create(d->ctx, SPOPS_MAP_SUBMANIFOLD, kernel, coords, NULL, &m, &map),
        what);
    held_pair h = {held_set_of(d, coords, what), held_map_of(d, map, SPOPS_STATUS_OK, what)};
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    return h;
}

static void check_created(test_device *d, cloud_kind kind, bool shuffled, test_rng *rng)
{
    spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_coords_options o = spops_coords_options_default();
    large_cloud cloud = make_cloud(kind, rng);
    char text[256];
    const char *what = test_describe(text, "%s, %lld rows, %s", kind_names[kind],
                                     (long long)cloud.n, shuffled ? "shuffled" : "in order");
    if (shuffled) shuffle(&cloud, rng);
    kernel.dilation[0] = kind == APART ? 2 : 1; // neighbours along one axis after all
    o.search = SPOPS_COORDS_SEARCH_SORTED;
    held_pair sorted = create(d, &cloud, &o, &kernel, what);
    o.search = SPOPS_COORDS_SEARCH_AUTO;
    held_pair chosen = create(d, &cloud, &o, &kernel, what);
    check_same(&sorted, &chosen, what);
    free_pair(&chosen);
    o.search = SPOPS_COORDS_SEARCH_HASH;
    test_device other = d->backend == SPOPS_BACKEND_CPU ? *d : open_host(d);
    held_pair expected = create(&other, &cloud, &o, &kernel, what);
    check_same(&expected, &sorted, what);
    cr_assert(kind == ONE || sorted.map.info.num_pairs > 2 * cloud.n, "%s", what);
    if (other.backend != d->backend) spops_context_destroy(other.ctx);
    free_pair(&expected), free_pair(&sorted);
    free(cloud.rows);
    checked_alloc_check(&d->memory, what);
}

BackendTest(large_sets, created)
{
    test_device d;
    test_rng rng = test_rng_make(811);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int kind = 0; kind < NUM_KINDS; ++kind)
        for (int shuffled = 0; shuffled < (kind == ONE ? 1 : 2); ++shuffled)
            check_created(&d, (cloud_kind)kind, shuffled != 0, &rng);
    test_close(&d);
}

// Rows of which the last is below the one before, or equals it, are not taken for rows in order.
BackendTest(large_sets, almost_in_order)
{
    test_device d;
    test_rng rng = test_rng_make(812);
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_coords_options o = spops_coords_options_default();
    spops_coords *coords = (spops_coords *)16;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    o.search = SPOPS_COORDS_SEARCH_SORTED;
    for (int where = 0; where < 3; ++where) { // at the start, where a warp ends, at the end
        large_cloud cloud = make_cloud(CUBE, &rng);
        cloud.n = cloud.n < 40000 ? cloud.n : 40000;
        const int64_t at = where == 0 ? 1 : where == 1 ? 32 * 70 : cloud.n - 1;
        int32_t *row = cloud.rows + 4 * at, kept[4];
        memcpy(kept, row - 4, sizeof kept);
        memcpy(row - 4, row, sizeof kept);
        memcpy(row, kept, sizeof kept); // exchanged
        held_pair sorted = create(&d, &cloud, &o, &kernel, "exchanged");
        o.search = SPOPS_COORDS_SEARCH_HASH;
        held_pair expected = create(&d, &cloud, &o, &kernel, "exchanged");
        o.search = SPOPS_COORDS_SEARCH_SORTED;
        check_same(&expected, &sorted, "exchanged");
        free_pair(&expected), free_pair(&sorted);
        memcpy(row - 4, row, sizeof kept); // equal
        int32_t *rows = test_upload_i32(&d, cloud.rows, 4 * cloud.n);
        char named[64];
        snprintf(named, sizeof named, "rows[%lld] equals rows[%lld]", (long long)at,
                 (long long)at - 1);
        test_expect(d.ctx, spops_coords_create(d.ctx, 3, cloud.n, rows, &o, &coords),
                    SPOPS_STATUS_INVALID_ARGUMENT, named, "equal rows");
        cr_assert(coords == NULL);
        o.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
        held_pair merged = create(&d, &cloud, &o, &kernel, "merged");
        cr_assert(merged.set.info.num_rows == cloud.n - 1 && merged.set.info.num_merged == 1);
        cr_assert(merged.set.item_row[at] == merged.set.item_row[at - 1]);
        o.duplicates = SPOPS_COORDS_DUPLICATES_REFUSE;
        free_pair(&merged);
        test_free(&d, rows);
        free(cloud.rows);
    }
    test_close(&d);
}

// ---- into capacities ----

typedef struct refilled {
    spops_coords *coords;
    spops_kernel_map *map;
    int32_t *num, *rows;
} refilled;

static spops_status enqueue(test_device *d, const refilled *r)
{
    spops_status s = spops_coords_update(d->ctx, r->coords, r->num, r->rows);
    return s == SPOPS_STATUS_OK ? spops_kernel_map_update(d->ctx, r->map, r->coords, NULL) : s;
}

static refilled reserve(test_device *d, const spops_coords_box *box, spops_coords_search search,
                        int64_t max_rows, int64_t max_items)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_coords_options o = spops_coords_options_default();
    spops_kernel_map_options m = spops_kernel_map_options_default();
    const int32_t none = 0;
    int32_t *empty = (int32_t *)calloc((size_t)max_items, 16);
    refilled r;
    memset(&r, 0, sizeof r);
    o.box = box;
    o.search = search;
    m.contents = CONTENTS;
    m.max_pairs = 20 * max_rows;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, max_rows, max_items, &o, &r.coords),
                   "coords");
    test_expect_ok(d->ctx,
                   spops_kernel_map_reserve(d->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, r.coords, NULL,
                                            &m, &r.map),
                   "map");
    r.num = test_upload_i32(d, &none, 1);
    r.rows = test_upload_i32(d, empty, 4 * max_items);
    free(empty);
    return r;
}

static held_pair refill(test_device *d, const refilled *r, device_graph *graph, int32_t num,
                        const int32_t *rows, int64_t max_items, const char *what)
{
    held_pair h;
    cr_assert(device_upload(d->backend, r->num, &num, sizeof num) &&
                  device_upload(d->backend, r->rows, rows, (size_t)max_items * 16),
              "%s", device_error());
    if (graph != NULL)
        cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
    else
        test_expect_ok(d->ctx, enqueue(d, r), what);
    if (d->backend != SPOPS_BACKEND_CPU) test_wait(d);
    h.set = held_set_of(d, r->coords, what);
    h.map = held_map_of(d, r->map, SPOPS_STATUS_OK, what);
    return h;
}

static void free_refilled(test_device *d, refilled *r)
{
    spops_kernel_map_destroy(r->map);
    spops_coords_destroy(r->coords);
    test_free(d, r->num), test_free(d, r->rows);
}

// Rows of every frame: some twice, some outside the box, in order or not; all, few, none, more than fit.
LaunchTest(large_sets, refilled)
{
    enum { MAX_ITEMS = 500000, MAX_ROWS = 420000 };
    static const spops_coords_box box = {{0, -100, -100, -100, 0}, {2, 99, 99, 99, 0}};
    static const int32_t counts[] = {300000, MAX_ITEMS, 0, 1, 70000, MAX_ITEMS + 5};
    test_device d;
    test_rng rng = test_rng_make(813);
    device_graph *graph = NULL;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    test_device other = d.backend == SPOPS_BACKEND_CPU ? d : open_host(&d);
    refilled own =
        reserve(&d, &box,
                p->launch == LAUNCH_STREAM ? SPOPS_COORDS_SEARCH_AUTO : SPOPS_COORDS_SEARCH_SORTED,
                MAX_ROWS, MAX_ITEMS);
    refilled host = reserve(&other, &box, SPOPS_COORDS_SEARCH_HASH, MAX_ROWS, MAX_ITEMS);
    int32_t *rows = (int32_t *)calloc(MAX_ITEMS, 16);
    if (d.launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        const spops_status status = enqueue(&d, &own);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        test_expect_ok(d.ctx, status, "captured");
    }
    for (int frame = 0; frame < (test_quick() ? 4 : 6); ++frame) {
        char text[256];
        const char *what = test_describe(text, "frame %d", frame);
        const bool ordered = frame % 2 == 0;
        const int32_t extent = frame == 1 || frame == 5 ? 202 : 90; // more rows than fit
        for (int64_t i = 0; i < MAX_ITEMS; ++i) {
            const int64_t cell = test_rng_below(&rng, extent * extent * extent);
            int32_t *row = rows + 4 * i;
            row[0] = ordered ? (int32_t)(i / 200000) : (int32_t)test_rng_below(&rng, 3);
            row[1] = ordered ? (int32_t)(i % 200000 / 2000) - 50
                             : (int32_t)(cell / extent / extent) - 101;
            row[2] = ordered ? (int32_t)(i % 2000 / 40) : (int32_t)(cell / extent % extent) - 101;
            row[3] = ordered ? (int32_t)(i % 40) - (i % 977 == 0) : (int32_t)(cell % extent) - 101;
        }
        held_pair expected = refill(&other, &host, NULL, counts[frame], rows, MAX_ITEMS, what);
        held_pair got = refill(&d, &own, graph, counts[frame], rows, MAX_ITEMS, what);
        cr_assert(got.set.info.overflow == (extent > 90), "%s", what);
        check_same(&expected, &got, what);
        free_pair(&expected), free_pair(&got);
        checked_alloc_check(&d.memory, what);
    }
    device_graph_destroy(graph);
    free_refilled(&d, &own), free_refilled(&other, &host);
    if (other.backend != d.backend) spops_context_destroy(other.ctx);
    free(rows);
    test_close(&d);
}
