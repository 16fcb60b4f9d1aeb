// SPDX-License-Identifier: Apache-2.0
// Patches of windows of a grid, and of sets within them, against the description: rows sorted by
// window and cell with a comparison, and cut one after another.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/patches.h"
#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/random.h"

typedef struct grid_case {
    const char *name;
    int32_t n, samples; // 0: no offsets
    spops_patch_grid grid;
} grid_case;

#define GRID(...)                                                                                  \
    {                                                                                              \
        .struct_size = sizeof(spops_patch_grid), __VA_ARGS__                                       \
    }
static const grid_case cases[] = {
    {"nothing", 0, 0, GRID(.window = {4, 4, 4})},
    {"one row", 1, 0, GRID(.window = {4, 4, 4})},
    {"a sample is a window", 700, 3, GRID(.bits = 5)},
    {"windows", 900, 0, GRID(.window = {4, 5, 6}, .bits = 5)},
    {"shifted", 900, 2, GRID(.window = {4, 5, 6}, .shift = {2, -3, 17}, .bits = 5)},
    {"pillars", 900, 4, GRID(.window = {3, 3, 0}, .shift = {1, 0, 9}, .bits = 5)},
    {"windows of a cell", 600, 0, GRID(.window = {1, 1, 1}, .bits = 3)},
    {"sets", 3000, 2, GRID(.window = {16, 16, 0}, .set_rows = 36, .bits = 5)},
    {"rotated sets", 3000, 2,
     GRID(.window = {16, 16, 0}, .axes = {1, 0, 2}, .set_rows = 36, .bits = 5)},
    {"even sets", 3000, 3,
     GRID(.window = {13, 9, 32}, .axes = {2, 0, 1}, .set_rows = 36, .even = 1, .bits = 5)},
    {"even sets of two", 500, 0, GRID(.window = {8, 8, 8}, .set_rows = 2, .even = 1, .bits = 4)},
    {"sets of one", 500, 7, GRID(.window = {8, 8, 8}, .set_rows = 1, .bits = 4)},
    {"sets larger than windows", 500, 0, GRID(.window = {8, 8, 8}, .set_rows = 4096, .bits = 4)},
    {"across windows", 3000, 3,
     GRID(.window = {13, 13, 32}, .set_rows = 256, .across = 1, .bits = 5)},
    {"across, borrowing", 3000, 3,
     GRID(.window = {13, 13, 32}, .axes = {1, 0, 2}, .set_rows = 256, .across = 1, .borrow = 1,
          .bits = 5)},
    {"large cells", 900, 2,
     GRID(.window = {2, 2, 2}, .size_m = {2.5, 2.5, 2.5}, .origin_m = {-3.0, 1.0, 0.0}, .bits = 4)},
    {"all bits", 900, 30, GRID(.window = {40000, 65536, 3}, .shift = {39999, 5, 2})},
};
enum { NUM_CASES = (int)(sizeof cases / sizeof cases[0]) };

// A row as the description sorts it.
typedef struct placed_row {
    int64_t window[3], cell[3]; // by the axes in their order
    int32_t row;
} placed_row;

typedef struct host_cloud {
    float *points;
    int32_t *offsets, samples;
} host_cloud;

static void *zeroed(int64_t n, size_t size)
{
    void *p = calloc((size_t)(n > 0 ? n : 1), size);
    cr_assert(p != NULL, "no memory");
    return p;
}

static host_cloud make_cloud(const grid_case *c, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    host_cloud h = {zeroed(3 * (int64_t)c->n, sizeof(float)),
                    zeroed((c->samples > 0 ? c->samples : 1) + 1, sizeof(int32_t)),
                    c->samples > 0 ? c->samples : 1};
    const float side = (float)(1 << (c->grid.bits > 0 ? c->grid.bits : 5)) + 3.0f;
    for (int64_t i = 0; i < 3 * (int64_t)c->n; ++i) // some outside of the cells
        h.points[i] = side * (float)test_rng_unit(&rng) - 1.5f;
    for (int32_t b = 1; b < h.samples; ++b) { // some samples are empty
        const int32_t mean = c->n / h.samples, at = h.offsets[b - 1];
        const int32_t next = at + (b % 3 == 1 ? 0 : (int32_t)test_rng_below(&rng, 2 * mean + 1));
        h.offsets[b] = next < c->n ? next : c->n;
    }
    h.offsets[h.samples] = c->n;
    return h;
}

static int compare(const void *a, const void *b)
{
    const placed_row *p = a, *q = b;
    for (int i = 0; i < 3; ++i)
        if (p->window[i] != q->window[i]) return p->window[i] < q->window[i] ? -1 : 1;
    for (int i = 0; i < 3; ++i)
        if (p->cell[i] != q->cell[i]) return p->cell[i] < q->cell[i] ? -1 : 1;
    return (p->row > q->row) - (p->row < q->row);
}

static placed_row place(const spops_patch_grid *g, const float *point, int32_t row)
{
    const bool no_axes = g->axes[0] == 0 && g->axes[1] == 0 && g->axes[2] == 0;
    const double most = exp2(g->bits > 0 ? g->bits : 16) - 1.0;
    placed_row p = {.row = row};
    for (int i = 0; i < 3; ++i) {
        const int a = no_axes ? i : g->axes[i];
        const double size = g->size_m[a] > 0.0 ? g->size_m[a] : 1.0;
        double c = floor(((double)point[a] - g->origin_m[a]) / size);
        c = c < 0.0 ? 0.0 : c > most ? most : c;
        p.cell[i] = (int64_t)c;
        p.window[i] = g->window[a] == 0 ? 0 : (int64_t)floor((c + g->shift[a]) / g->window[a]);
    }
    return p;
}

typedef struct host_lists {
    int32_t num_patches, *query_offsets, *query_rows, *key_offsets, *key_rows;
} host_lists;

static void add_patch(host_lists *l, const placed_row *rows, int64_t first, int64_t n,
                      int64_t borrowed)
{
    int32_t *q = &l->query_offsets[l->num_patches], *k = &l->key_offsets[l->num_patches++];
    q[1] = q[0];
    k[1] = k[0];
    for (int64_t i = first; i < first + n; ++i)
        l->query_rows[q[1]++] = l->key_rows[k[1]++] = rows[i].row;
    for (int64_t i = first - borrowed; i < first; ++i)
        l->key_rows[k[1]++] = rows[i].row;
}

// n rows that are cut into patches of their own.
static void cut(const spops_patch_grid *g, const placed_row *rows, int64_t n, host_lists *l)
{
    const int64_t set = g->set_rows == 0 ? n : g->set_rows, num = n == 0 ? 0 : (n + set - 1) / set;
    for (int64_t j = 0; j < num; ++j) {
        const int64_t begin = g->even ? n * j / num : j * set;
        const int64_t end = j == num - 1 ? n : g->even ? n * (j + 1) / num : (j + 1) * set;
        const int64_t lacks = g->borrow && num > 1 && j == num - 1 ? set - (end - begin) : 0;
        add_patch(l, rows, begin, end - begin, lacks);
    }
}

static host_lists expect(const grid_case *c, const host_cloud *h)
{
    const spops_patch_grid *g = &c->grid;
    host_lists l = {0, zeroed(c->n + 1, 4), zeroed(c->n, 4), zeroed(c->n + 1, 4),
                    zeroed(2 * (int64_t)c->n, 4)};
    placed_row *rows = zeroed(c->n, sizeof *rows);
    for (int32_t b = 0; b < h->samples; ++b) {
        const int32_t n = h->offsets[b + 1] - h->offsets[b];
        int32_t begin = 0;
        for (int32_t i = 0; i < n; ++i)
            rows[i] = place(g, h->points + 3 * (h->offsets[b] + i), h->offsets[b] + i);
        if (n > 0) qsort(rows, (size_t)n, sizeof *rows, compare);
        for (int32_t end = 1; end <= n && !g->across; ++end) {
            if (end < n && memcmp(rows[end].window, rows[begin].window, sizeof rows->window) == 0)
                continue;
            cut(g, rows + begin, end - begin, &l);
            begin = end;
        }
        if (g->across) cut(g, rows, n, &l);
    }
    free(rows);
    return l;
}

static void free_lists(host_lists *l)
{
    free(l->query_offsets), free(l->query_rows), free(l->key_offsets), free(l->key_rows);
}

static void check_array(test_device *d, const int32_t *there, const int32_t *expected, int64_t n,
                        const char *what, const char *array)
{
    int32_t *found = zeroed(n, sizeof *found);
    test_download_i32(d, found, there, n);
    for (int64_t i = 0; i < n; ++i)
        cr_assert(found[i] == expected[i], "%s: %s[%d] is %d, expected %d", what, array, (int)i,
                  found[i], expected[i]);
    free(found);
}

static void check_plan(test_device *d, const spops_patches *plan, const host_lists *l, int32_t n,
                       const char *what)
{
    spops_patches_info info = spops_patches_info_default();
    spops_patches_view view = spops_patches_view_default();
    test_expect_ok(d->ctx, spops_patches_get_info_sync(d->ctx, plan, &info), what);
    test_expect_ok(d->ctx, spops_patches_get_view(d->ctx, plan, &view), what);
    cr_assert(info.num_patches == l->num_patches && info.num_queries == n &&
                  info.num_no_queries == info.num_rows - n && info.refused == 0,
              "%s: %d patches, %d queries, expected %d and %d", what, (int)info.num_patches,
              (int)info.num_queries, l->num_patches, n);
    check_array(d, view.query_offsets, l->query_offsets, l->num_patches + 1, what, "query_offsets");
    check_array(d, view.query_rows, l->query_rows, n, what, "query_rows");
    check_array(d, view.key_offsets, l->key_offsets, l->num_patches + 1, what, "key_offsets");
    check_array(d, view.key_rows, l->key_rows, l->key_offsets[l->num_patches], what, "key_rows");
    for (int64_t p = l->num_patches; p <= view.max_patches; ++p)
        check_array(d, view.query_offsets + p, &n, 1, what, "offsets after the last");
}

static spops_point_cloud upload(test_device *d, const grid_case *c, const host_cloud *h,
                                int64_t rows)
{
    void *points;
    cr_assert(device_alloc(d->backend, (size_t)rows * 12, &points) &&
                  device_upload(d->backend, points, h->points, (size_t)c->n * 12),
              "%s", device_error());
    return (spops_point_cloud){.points = spops_matrix_dense(points, rows, 3, SPOPS_DTYPE_F32),
                               .offsets = c->samples > 0 || rows > c->n
                                              ? test_upload_i32(d, h->offsets, h->samples + 1)
                                              : NULL,
                               .num_samples = c->samples > 0 || rows > c->n ? h->samples : 0};
}

static void discard(test_device *d, spops_point_cloud *cloud)
{
    test_free(d, cloud->points.data);
    test_free(d, (void *)(uintptr_t)cloud->offsets);
}

BackendTest(patches_grid, windows_and_sets)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_CASES; ++i) {
        const grid_case *c = &cases[i];
        host_cloud h = make_cloud(c, 8100 + (uint64_t)i);
        host_lists l = expect(c, &h);
        spops_point_cloud there = upload(&d, c, &h, c->n);
        spops_patches *plan = NULL;
        test_expect_ok(d.ctx, spops_patches_create_from_grid(d.ctx, &there, &c->grid, &plan),
                       c->name);
        check_plan(&d, plan, &l, c->n, c->name);
        spops_patches_destroy(plan);
        discard(&d, &there);
        free_lists(&l);
        free(h.points), free(h.offsets);
    }
    test_close(&d);
}

// Frames of two sizes into one plan, also of a captured graph; and one with more windows than fit.
LaunchTest(patches_grid, refilled)
{
    enum { ROWS = 2000, SAMPLES = 3, ROOM = 200 };
    static const int32_t sizes[] = {1500, 0, 900, ROWS};
    spops_patches_capacity shape = spops_patches_capacity_default();
    const spops_patch_grid grid =
        GRID(.window = {1, 9, 0}, .axes = {1, 0, 2}, .set_rows = 24, .even = 1, .bits = 5);
    const grid_case full = {"refilled", ROWS, SAMPLES, grid};
    spops_patches_info info = spops_patches_info_default();
    spops_patches *plan = NULL;
    device_graph *graph = NULL;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    host_cloud first = make_cloud(&full, 8200);
    spops_point_cloud there = upload(&d, &full, &first, ROWS);
    shape.num_rows = shape.max_queries = ROWS;
    shape.max_patches = ROOM;
    shape.same = 1;
    shape.max_samples = SAMPLES;
    test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &plan), "reserve");
    if (d.launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        const spops_status status = spops_patches_update_from_grid(d.ctx, plan, &there, &grid);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        test_expect_ok(d.ctx, status, "captured");
    }
    for (int i = 0; i < 5; ++i) {
        grid_case c = full;
        c.n = sizes[i % 4];
        host_cloud h = make_cloud(&c, 8300 + (uint64_t)i);
        for (int32_t r = 0; r < c.n && i % 2 == 0; ++r)
            h.points[3 * r + 1] = 0.0f; // in a few windows
        host_lists l = expect(&c, &h);
        cr_assert(device_upload(d.backend, there.points.data, h.points, (size_t)c.n * 12) &&
                      device_upload(d.backend, (void *)(uintptr_t)there.offsets, h.offsets,
                                    (SAMPLES + 1) * sizeof *h.offsets),
                  "%s", device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        else
            test_expect_ok(d.ctx, spops_patches_update_from_grid(d.ctx, plan, &there, &grid),
                           "set");
        test_wait(&d);
        cr_assert_eq(l.num_patches > ROOM, i == 3, "frame %d: %d patches", i, l.num_patches);
        if (l.num_patches <= ROOM) check_plan(&d, plan, &l, c.n, "refilled");
        const spops_status status = spops_patches_get_info_sync(d.ctx, plan, &info);
        cr_assert_eq(status,
                     l.num_patches > ROOM ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK);
        cr_assert(info.overflow == (l.num_patches > ROOM));
        cr_assert(info.overflow == 0 || info.num_patches == 0);
        free_lists(&l);
        free(h.points), free(h.offsets);
    }
    device_graph_destroy(graph);
    spops_patches_destroy(plan);
    discard(&d, &there);
    free(first.points), free(first.offsets);
    test_close(&d);
}

BackendTest(patches_grid, refused)
{
    const spops_patch_grid good = GRID(.window = {4, 4, 4}, .bits = 5);
    const grid_case c = {"refused", 40, 2, good};
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_patches *plan = NULL;
    spops_patch_grid g = good;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    host_cloud h = make_cloud(&c, 8400);
    spops_point_cloud cloud = upload(&d, &c, &h, c.n);
#define REFUSED(message)                                                                           \
    do {                                                                                           \
        test_expect(d.ctx, spops_patches_create_from_grid(d.ctx, &cloud, &g, &plan),               \
                    SPOPS_STATUS_INVALID_ARGUMENT, message, "create");                             \
        cr_assert(plan == NULL);                                                                   \
        g = good;                                                                                  \
    } while (0)
    test_expect(d.ctx, spops_patches_create_from_grid(d.ctx, NULL, &g, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "cloud is NULL", "create");
    g.window[1] = -1;
    REFUSED("patches_create_from_grid: window[1] is -1, expected 0 to 32 with cells of 5 bits");
    g.window[2] = 33;
    REFUSED("window[2] is 33, expected 0 to 32");
    g.axes[1] = 3;
    REFUSED("axes[1] is 3, expected 0 to 2");
    g.axes[0] = 1, g.axes[1] = 1;
    REFUSED("axes[1] is 1, an axis that is there before");
    g.set_rows = -1;
    REFUSED("set_rows is -1, expected 0 or more");
    g.across = 1;
    REFUSED("set_rows is 0, expected 1 or more as across is 1");
    g.borrow = 1;
    REFUSED("borrow is 1, expected 0 as across is 0");
    g.even = 2;
    REFUSED("even is 2, expected 0 or 1");
    g.bits = 17;
    REFUSED("bits is 17, expected 0 to 16");
    g.size_m[1] = -1.0;
    REFUSED("size_m[1] is -1");
    h.points[3 * 7 + 2] = NAN;
    cr_assert(device_upload(d.backend, cloud.points.data, h.points, 480), "%s", device_error());
    REFUSED("cloud->points[7] is (");
#undef REFUSED
    shape.num_rows = shape.max_queries = c.n;
    shape.max_patches = c.n;
    shape.max_samples = 2;
    shape.same = 1;
    test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &plan), "reserve");
    g.across = g.borrow = 1, g.set_rows = 5;
    test_expect(d.ctx, spops_patches_update_from_grid(d.ctx, plan, &cloud, &g),
                SPOPS_STATUS_INVALID_ARGUMENT,
                "patches_update_from_grid: borrow is 1, expected 0 as `same` of the plan is 1",
                "set");
    spops_patches_destroy(plan);
    discard(&d, &cloud);
    free(h.points), free(h.offsets);
    test_close(&d);
}
