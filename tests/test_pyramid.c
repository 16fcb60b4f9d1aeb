// SPDX-License-Identifier: Apache-2.0
// Pyramids against their levels and maps made one by one: created, and refilled on the stream as one
// captured graph with clouds of different sizes; scans; what overflows and what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "spops/pyramid.h"
#include "spops/sparseconv.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { MAX_LEVELS = SPOPS_PYRAMID_MAX_LEVELS };
enum { ALL_PARTS = SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_CSR | SPOPS_MAP_REVERSE };

// ---- What a pyramid is to hold ------------------------------------------------------------------

typedef struct pyramid_case {
    const char *name;
    int32_t dims, num_levels, contents;
    int32_t within; // size; 0: no maps within
    int32_t down, down_stride, down_padding;
    spops_coords_order order;
    spops_coords_search search;
    int32_t stem;    // size within level 0; 0: as within
    int32_t skipped; // level without a map within; 0: none
} pyramid_case;

static const pyramid_case cases[] = {
    {"defaults", 3, 0, 0, 3, 2, 2, 0, SPOPS_COORDS_ORDER_GIVEN, SPOPS_COORDS_SEARCH_AUTO, 0, 0},
    {"every part", 3, 3, ALL_PARTS, 3, 2, 2, 0, SPOPS_COORDS_ORDER_GIVEN, SPOPS_COORDS_SEARCH_HASH,
     0, 0},
    {"lexicographic, grids", 3, 4, ALL_PARTS, 3, 2, 2, 0, SPOPS_COORDS_ORDER_LEXICOGRAPHIC,
     SPOPS_COORDS_SEARCH_GRID, 0, 0},
    {"down by 3 x 3 x 3", 3, 4, SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS, 3, 3, 2, 1,
     SPOPS_COORDS_ORDER_GIVEN, SPOPS_COORDS_SEARCH_HASH, 0, 0},
    {"stride 4 along Morton, sorted", 2, 3, SPOPS_MAP_TABLE, 5, 4, 4, 0, SPOPS_COORDS_ORDER_MORTON,
     SPOPS_COORDS_SEARCH_SORTED, 0, 0},
    {"a hash along Hilbert", 3, 4, SPOPS_MAP_ORDER, 3, 2, 2, 0, SPOPS_COORDS_ORDER_HILBERT,
     SPOPS_COORDS_SEARCH_HASH, 0, 0},
    {"padding, eight levels", 3, 8, SPOPS_MAP_ORDER, 1, 2, 2, 1, SPOPS_COORDS_ORDER_GIVEN,
     SPOPS_COORDS_SEARCH_HASH, 0, 0},
    {"one level", 3, 1, SPOPS_MAP_PAIRS, 3, 2, 2, 0, SPOPS_COORDS_ORDER_GIVEN,
     SPOPS_COORDS_SEARCH_AUTO, 0, 0},
    {"between levels only", 3, 3, SPOPS_MAP_PAIRS | SPOPS_MAP_CSR, 0, 2, 2, 0,
     SPOPS_COORDS_ORDER_GIVEN, SPOPS_COORDS_SEARCH_AUTO, 0, 0},
    {"windows of 3, padded, 5 taps within", 3, 4, ALL_PARTS, 5, 3, 3, 1, SPOPS_COORDS_ORDER_GIVEN,
     SPOPS_COORDS_SEARCH_AUTO, 0, 0},
    {"one axis, windows of 5, 7 taps within", 1, 3, ALL_PARTS, 7, 5, 5, 2, SPOPS_COORDS_ORDER_GIVEN,
     SPOPS_COORDS_SEARCH_AUTO, 0, 0},
    {"two axes, six levels", 2, 6, 0, 3, 2, 2, 0, SPOPS_COORDS_ORDER_GIVEN,
     SPOPS_COORDS_SEARCH_HASH, 0, 0},
    {"a stem of 5 taps, no map within level 2", 3, 5, SPOPS_MAP_ORDER, 3, 2, 2, 0,
     SPOPS_COORDS_ORDER_GIVEN, SPOPS_COORDS_SEARCH_AUTO, 5, 2},
    {"a stem of 7 taps, no map within the last level", 2, 4, ALL_PARTS, 3, 2, 2, 1,
     SPOPS_COORDS_ORDER_GIVEN, SPOPS_COORDS_SEARCH_AUTO, 7, 3},
    {"two axes, windows of 7", 2, 3, SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE, 7, 7, 7, 3,
     SPOPS_COORDS_ORDER_GIVEN, SPOPS_COORDS_SEARCH_AUTO, 0, 0},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static int32_t levels_of(const pyramid_case *c)
{
    return c->num_levels == 0 ? 5 : c->num_levels;
}

static spops_kernel_shape within_kernel(const pyramid_case *c, int32_t level)
{
    const bool stem = level == 0 && c->stem > 0;
    return spops_kernel_shape_cube(c->dims, stem ? c->stem : c->within, 1, 1);
}

static bool has_within(const pyramid_case *c, int32_t level)
{
    return c->within > 0 && (c->skipped == 0 || level != c->skipped);
}

static spops_kernel_shape down_kernel(const pyramid_case *c)
{
    spops_kernel_shape kernel = spops_kernel_shape_cube(c->dims, c->down, c->down_stride, 1);
    for (int a = 0; a < c->dims; ++a)
        kernel.padding[a] = c->down_padding;
    return kernel;
}

static spops_status make_pyramid(spops_context *ctx, const pyramid_case *c,
                                 const spops_coords *finest, bool reserve, const int64_t *max_rows,
                                 spops_pyramid **pyramid)
{
    const spops_kernel_shape stem = within_kernel(c, 0), within = within_kernel(c, 1);
    const spops_kernel_shape down = down_kernel(c);
    const spops_kernel_shape *withins[MAX_LEVELS] = {0}, *downs[MAX_LEVELS];
    spops_pyramid_options o = spops_pyramid_options_default();
    for (int level = 0; level < MAX_LEVELS; ++level) {
        if (has_within(c, level)) withins[level] = level == 0 ? &stem : &within;
        downs[level] = &down;
    }
    if (c != &cases[0]) {
        o.num_levels = c->num_levels;
        o.contents = c->contents;
        o.within = withins;
        o.down = downs;
        o.order = c->order;
        o.search = c->search;
    }
    o.max_rows = max_rows;
    return (reserve ? spops_pyramid_reserve : spops_pyramid_create)(ctx, finest, &o, pyramid);
}

// n numbers are the same; neither array need be there for none.
static bool same(const int32_t *a, const int32_t *b, int64_t n)
{
    return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

// Forget the pairs of a map and their places, so that the rest can be compared.
static void drop_pairs(held_map *h)
{
    int32_t **const arrays[] = {&h->in_rows, &h->out_rows, &h->out.pair_ids, &h->in.pair_ids};
    for (int i = 0; i < 4; ++i) {
        free(*arrays[i]);
        *arrays[i] = NULL;
    }
}

// Whether maps are of no rows: their arrays may then be there or not.
static bool check_empty(const held_map *a, const held_map *b, const char *what)
{
    if (b->info.num_in > 0) return false;
    cr_assert(a->info.num_in == 0 && a->info.num_out == 0 && a->info.num_pairs == 0, "%s", what);
    for (int32_t k = 0; a->tap_offsets != NULL && k <= a->view.num_taps; ++k)
        cr_assert(a->tap_offsets[k] == 0, "%s: tap_offsets[%d]", what, k);
    return true;
}

// An UP map, made on its own, has the same sides; its pairs lie by output, not by coarser row.
static void check_up(test_device *d, const pyramid_case *c, const spops_kernel_map *up,
                     const spops_kernel_map *down, const spops_coords *coarse,
                     const spops_coords *fine, const spops_kernel_map_options *o, const char *what)
{
    const spops_kernel_shape kernel = down_kernel(c);
    spops_kernel_map *alone = NULL;
    test_expect_ok(
        d->ctx,
        spops_kernel_map_create(d->ctx, SPOPS_MAP_TRANSPOSED, &kernel, coarse, fine, o, &alone),
        what);
    held_map u = held_map_of(d, up, SPOPS_STATUS_OK, what);
    held_map w = held_map_of(d, down, SPOPS_STATUS_OK, what);
    held_map a = held_map_of(d, alone, SPOPS_STATUS_OK, what);
    cr_assert(u.info.kind == SPOPS_MAP_TRANSPOSED && u.info.num_in == a.info.num_in &&
                  u.info.num_out == a.info.num_out,
              "%s: info", what);
    if (u.in_rows != NULL) {
        cr_assert(same(u.in_rows, w.out_rows, u.info.num_pairs) &&
                      same(u.out_rows, w.in_rows, u.info.num_pairs),
                  "%s: pairs", what);
    }
    for (int side = 0; side < 2 && u.out.pair_ids != NULL; ++side) {
        const held_side *s = side == 0 ? &u.out : &u.in;
        for (int64_t r = 0; r < s->n; ++r)
            for (int32_t p = s->offsets[r]; p < s->offsets[r + 1]; ++p) {
                const int32_t id = s->pair_ids[p], tap = s->row_taps[2 * p + 1];
                cr_assert((side == 0 ? u.out_rows : u.in_rows)[id] == (int32_t)r &&
                              (side == 0 ? u.in_rows : u.out_rows)[id] == s->row_taps[2 * p] &&
                              id >= u.tap_offsets[tap] && id < u.tap_offsets[tap + 1],
                          "%s: pair %d of row %lld", what, p, (long long)r);
            }
    }
    drop_pairs(&u), drop_pairs(&a);
    if (!check_empty(&u, &a, what)) held_map_check_same(&u, &a, what);
    held_map_free(&u), held_map_free(&w), held_map_free(&a);
    spops_kernel_map_destroy(alone);
}

static void check_map(test_device *d, const spops_kernel_map *held, spops_kernel_map_kind kind,
                      const spops_kernel_shape *kernel, const spops_coords *in,
                      const spops_coords *out, const spops_kernel_map_options *o, const char *what)
{
    spops_kernel_map *alone = NULL;
    test_expect_ok(d->ctx, spops_kernel_map_create(d->ctx, kind, kernel, in, out, o, &alone), what);
    held_map x = held_map_of(d, held, SPOPS_STATUS_OK, what);
    held_map y = held_map_of(d, alone, SPOPS_STATUS_OK, what);
    if (!check_empty(&x, &y, what)) held_map_check_same(&x, &y, what);
    held_map_free(&x), held_map_free(&y);
    spops_kernel_map_destroy(alone);
}

// All of a pyramid against levels and maps that are made one by one on `finest`.
static void check_pyramid(test_device *d, const pyramid_case *c, const spops_pyramid *pyramid,
                          const spops_coords *finest, const char *what)
{
    const spops_kernel_shape down = down_kernel(c);
    spops_coords_options co = spops_coords_options_default();
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_pyramid_info info = spops_pyramid_info_default();
    const spops_coords *level = finest;
    spops_coords *own = NULL;

    test_expect_ok(d->ctx, spops_pyramid_get_info_sync(d->ctx, pyramid, &info), what);
    cr_assert(info.num_levels == levels_of(c) && info.overflow == 0, "%s: info", what);
    co.order = c->order;
    co.search = c->search;
    for (int32_t l = 0; l < info.num_levels; ++l) {
        held_set held = held_set_of(d, spops_pyramid_coords(pyramid, l), what);
        held_set alone = held_set_of(d, level, what);
        cr_assert(held.info.num_rows == alone.info.num_rows, "%s: level %d has %lld rows, not %lld",
                  what, l, (long long)held.info.num_rows, (long long)alone.info.num_rows);
        cr_assert(same(held.rows, alone.rows, alone.info.num_rows * (c->dims + 1)),
                  "%s: rows of level %d", what, l);
        cr_assert(same(held.row_item, alone.row_item, alone.info.num_rows), "%s: items of level %d",
                  what, l);
        cr_assert(info.num_rows[l] == alone.info.num_rows, "%s: info of level %d", what, l);
        held_set_free(&held), held_set_free(&alone);

        const spops_kernel_map *map = spops_pyramid_map(pyramid, SPOPS_PYRAMID_WITHIN, l);
        o.contents = c->contents == 0 ? SPOPS_MAP_FOR_CONV_BACKWARD : c->contents;
        const spops_kernel_shape within = within_kernel(c, l);
        cr_assert((map != NULL) == has_within(c, l), "%s: map within level %d", what, l);
        if (map != NULL) check_map(d, map, SPOPS_MAP_SUBMANIFOLD, &within, level, level, &o, what);
        map = spops_pyramid_map(pyramid, SPOPS_PYRAMID_DOWN, l);
        cr_assert((map != NULL) == (l + 1 < info.num_levels), "%s: map down from %d", what, l);
        if (map == NULL) break;
        spops_coords *next = NULL;
        spops_coords_info box = spops_coords_info_default(); // orders along curves depend on it
        test_expect_ok(
            d->ctx, spops_coords_get_info_sync(d->ctx, spops_pyramid_coords(pyramid, l + 1), &box),
            what);
        co.box = &box.box;
        test_expect_ok(d->ctx, spops_coords_create_downsampled(d->ctx, level, &down, &co, &next),
                       what);
        o.contents |= SPOPS_MAP_REVERSE;
        check_map(d, map, SPOPS_MAP_CONVOLUTION, &down, level, next, &o, what);
        check_up(d, c, spops_pyramid_map(pyramid, SPOPS_PYRAMID_UP, l), map, next, level, &o, what);
        spops_coords_destroy(own);
        level = own = next;
    }
    cr_assert_null(spops_pyramid_coords(pyramid, info.num_levels));
    cr_assert_null(spops_pyramid_map(pyramid, SPOPS_PYRAMID_UP, info.num_levels - 1));
    cr_assert_null(spops_pyramid_map(pyramid, SPOPS_PYRAMID_WITHIN, -1));
    spops_coords_destroy(own);
}

// ---- Created, and refilled ----------------------------------------------------------------------

static const spops_coords_box wide_box = {{0, -1100, -1100, -1100, 0}, {9, 1100, 1100, 1100, 0}};
static const spops_coords_box grid_box = {{0, -80, -80, -80, 0}, {9, 80, 80, 80, 0}};

static spops_coords *create_set(test_device *d, const cloud_rows *cloud)
{
    return test_create_set(d, cloud->dims, cloud->n, cloud->rows, NULL);
}

static spops_status set_all(spops_context *ctx, spops_coords *finest, spops_pyramid *pyramid,
                            const int32_t *num_rows, const int32_t *rows)
{
    const spops_status status = spops_coords_update(ctx, finest, num_rows, rows);
    return status != SPOPS_STATUS_OK ? status : spops_pyramid_update(ctx, pyramid);
}

static void check_refilled(test_device *d, const pyramid_case *c, test_rng *rng)
{
    static const test_cloud clouds[] = {CLOUD_CLUMPS, CLOUD_EMPTY, CLOUD_DENSE, CLOUD_ONE,
                                        CLOUD_SPARSE};
    enum { MAX_ROWS = 2000 };
    const bool small = c->search == SPOPS_COORDS_SEARCH_GRID; // the sparse cloud does not fit
    spops_coords_options o = spops_coords_options_default();
    spops_coords *finest = NULL;
    spops_pyramid *pyramid = NULL;
    device_graph *graph = NULL;
    void *num = NULL, *rows = NULL;
    char text[256];

    o.box = small ? &grid_box : &wide_box;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, c->dims, MAX_ROWS, MAX_ROWS, &o, &finest),
                   c->name);
    test_expect_ok(d->ctx, make_pyramid(d->ctx, c, finest, true, NULL, &pyramid), c->name);
    cr_assert(device_alloc(d->backend, 4, &num) &&
                  device_alloc(d->backend, MAX_ROWS * 4 * (size_t)(c->dims + 1), &rows),
              "%s", device_error());
    if (d->launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d->stream), "%s", device_error());
        const spops_status status =
            set_all(d->ctx, finest, pyramid, (const int32_t *)num, (const int32_t *)rows);
        cr_assert(device_capture_end(d->stream, &graph), "%s", device_error());
        test_expect_ok(d->ctx, status, "captured");
    }
    for (int i = 0; i < (test_quick() ? 2 : small ? 4 : 5); ++i) {
        cloud_rows cloud = cloud_make(clouds[i], c->dims, false, rng);
        const char *what =
            test_describe(text, "%s, refilled with %s", c->name, cloud_name(clouds[i]));
        const int32_t n = (int32_t)cloud.n;
        cr_assert(n <= MAX_ROWS && device_upload(d->backend, num, &n, 4) &&
                      device_upload(d->backend, rows, cloud.rows, (size_t)(n * (c->dims + 1)) * 4),
                  "%s: %s", what, device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
        else
            test_expect_ok(
                d->ctx,
                set_all(d->ctx, finest, pyramid, (const int32_t *)num, (const int32_t *)rows),
                what);
        test_wait(d);
        spops_coords *alone = create_set(d, &cloud);
        check_pyramid(d, c, pyramid, alone, what);
        spops_coords_destroy(alone);
        cloud_free(&cloud);
    }
    device_graph_destroy(graph);
    spops_pyramid_destroy(pyramid);
    spops_coords_destroy(finest);
    test_free(d, num), test_free(d, rows);
}

LaunchTest(pyramid, equals_one_by_one)
{
    static const test_cloud clouds[] = {CLOUD_EMPTY, CLOUD_ONE, CLOUD_CLUMPS};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    test_rng rng = test_rng_make(4300 + (uint64_t)p->launch);
    for (int i = 0; i < NUM_CASES; ++i) {
        const pyramid_case *c = &cases[i];
        for (int s = 0; s < 3; ++s) {
            cloud_rows cloud = cloud_make(clouds[s], c->dims, false, &rng);
            char text[256];
            const char *what = test_describe(text, "%s of %s", c->name, cloud_name(clouds[s]));
            spops_coords *finest = create_set(&d, &cloud);
            spops_pyramid *pyramid = NULL;
            test_expect_ok(d.ctx, make_pyramid(d.ctx, c, finest, false, NULL, &pyramid), what);
            cr_assert(spops_pyramid_coords(pyramid, 0) == finest);
            check_pyramid(&d, c, pyramid, finest, what);
            test_expect(d.ctx, spops_pyramid_update(d.ctx, pyramid), SPOPS_STATUS_INVALID_ARGUMENT,
                        "not made by pyramid_reserve", what);
            spops_pyramid_destroy(pyramid);
            spops_coords_destroy(finest);
            cloud_free(&cloud);
        }
        check_refilled(&d, c, &rng);
    }
    test_close(&d);
}

// ---- Descriptions -------------------------------------------------------------------------------

static void expect_fields(const void *a, const void *b, const char *what)
{
    int64_t of_a[512], of_b[512];
    const int32_t num = spops_plan_get_fields(a, of_a, 512);
    cr_assert(num > 0 && num <= 512 && spops_plan_get_fields(b, of_b, 512) == num, "%s", what);
    for (int32_t i = 0; i < num; ++i)
        cr_expect(of_a[i] == of_b[i], "%s: field %d is %" PRId64 " and %" PRId64, what, (int)i,
                  of_a[i], of_b[i]);
}

// A pyramid of what a set holds is described as one of the same capacities: so are its parts.
static void check_described(test_device *d, const spops_coords *finest, const char *what)
{
    spops_pyramid *made = NULL, *reserved = NULL;
    spops_pyramid_info info = spops_pyramid_info_default();
    spops_pyramid_options o = spops_pyramid_options_default();

    test_expect_ok(d->ctx, spops_pyramid_create(d->ctx, finest, NULL, &made), what);
    test_expect_ok(d->ctx, spops_pyramid_get_info_sync(d->ctx, made, &info), what);
    o.max_rows = info.num_rows;
    o.max_pairs = info.num_pairs;
    test_expect_ok(d->ctx, spops_pyramid_reserve(d->ctx, finest, &o, &reserved), what);
    expect_fields(made, reserved, what);
    for (int32_t level = 0; level < info.num_levels; ++level) {
        char text[256];
        test_describe(text, "%s, level %d", what, (int)level);
        expect_fields(spops_pyramid_coords(made, level), spops_pyramid_coords(reserved, level),
                      text);
        for (int r = SPOPS_PYRAMID_WITHIN; r <= SPOPS_PYRAMID_DOWN; ++r) {
            const spops_pyramid_relation relation = (spops_pyramid_relation)r;
            if (spops_pyramid_map(made, relation, level) != NULL)
                expect_fields(spops_pyramid_map(made, relation, level),
                              spops_pyramid_map(reserved, relation, level), text);
        }
    }
    spops_pyramid_destroy(made);
    spops_pyramid_destroy(reserved);
}

Test(pyramid, parts_are_described_alike)
{
    static const spops_coords_box box = {{2, -5, 3, 1, 0}, {2, 9, 30, 40, 0}};
    static const int32_t row[4] = {2, 4, 5, 6};
    spops_coords_options o = spops_coords_options_default();
    test_device d;

    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    for (int num = 0; num < 2; ++num) {
        for (int boxed = 0; boxed < 2; ++boxed) {
            char text[256];
            spops_coords *finest = NULL;
            test_describe(text, "%d rows, %s box", num, boxed != 0 ? "a" : "no");
            o.box = boxed != 0 ? &box : NULL;
            test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, num, row, &o, &finest), text);
            check_described(&d, finest, text);
            spops_coords_destroy(finest);
        }
    }
    test_close(&d);
}

// ---- A scan -------------------------------------------------------------------------------------

BackendTest(pyramid, of_a_scan)
{
    int64_t n = 0, cols = 0;
    int32_t *values = NULL;
    test_device d;
    if (test_quick() || !test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    if (cloud_load_i32("conv_lidar.npy", &n, &cols, &values)) {
        cloud_rows cloud = {3, n, (int32_t *)calloc((size_t)n * 4, sizeof(int32_t))};
        for (int64_t i = 0; i < n; ++i)
            memcpy(cloud.rows + 4 * i + (4 - cols), values + cols * i, (size_t)cols * 4);
        spops_coords *finest = create_set(&d, &cloud);
        spops_pyramid *pyramid = NULL;
        test_expect_ok(d.ctx, make_pyramid(d.ctx, &cases[0], finest, true, NULL, &pyramid), "scan");
        test_expect_ok(d.ctx, spops_pyramid_update(d.ctx, pyramid), "scan");
        check_pyramid(&d, &cases[0], pyramid, finest, "scan");
        spops_pyramid_destroy(pyramid);
        spops_coords_destroy(finest);
        cloud_free(&cloud);
    }
    free(values);
    test_close(&d);
}

// ---- Capacities, and what is refused ------------------------------------------------------------

// Of a plan with gradients, which way every pass of a layer runs.
static void choices_of(test_device *d, const spops_kernel_map *map, spops_dataflow runs[3])
{
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_sparseconv *conv = NULL;

    options.backward = 1;
    test_expect_ok(d->ctx, spops_sparseconv_create(d->ctx, map, &options, &conv), "plan");
    for (int pass = 0; pass < 3; ++pass) {
        spops_conv_choice choice;
        test_expect_ok(d->ctx,
                       spops_sparseconv_get_choice(d->ctx, conv, (spops_conv_pass)pass,
                                                   SPOPS_DTYPE_F16, 64, 64, NULL, &choice),
                       "choice");
        runs[pass] = choice.dataflow;
    }
    spops_sparseconv_destroy(conv);
}

ParameterizedTestParameters(pyramid, defaults_are_for_gradients)
{
    return every_backend();
}

// A map within a level serves gradients the same way as one made alone, whose default is that.
ParameterizedTest(struct backend_param *p, pyramid, defaults_are_for_gradients)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    test_rng rng = test_rng_make(4400);
    spops_pyramid *pyramid = NULL;
    spops_kernel_map *alone = NULL;
    spops_dataflow runs[3], expected[3];
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    cloud_rows cloud = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    spops_coords *set = create_set(&d, &cloud);

    test_expect_ok(d.ctx, spops_pyramid_create(d.ctx, set, NULL, &pyramid), "pyramid");
    test_expect_ok(
        d.ctx,
        spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, set, NULL, NULL, &alone),
        "map");
    choices_of(&d, spops_pyramid_map(pyramid, SPOPS_PYRAMID_WITHIN, 0), runs);
    choices_of(&d, alone, expected);
    for (int pass = 0; pass < 3; ++pass)
        cr_assert(runs[pass] == expected[pass] && runs[pass] != SPOPS_DATAFLOW_AUTO,
                  "pass %d: %s, expected %s", pass, spops_dataflow_name(runs[pass]),
                  spops_dataflow_name(expected[pass]));
    spops_kernel_map_destroy(alone);
    spops_pyramid_destroy(pyramid);
    spops_coords_destroy(set);
    cloud_free(&cloud);
    test_close(&d);
}

// Level `level` of a pyramid and the maps from it on, against a set and maps that are filled one by one
// with the same capacities. Returns the set; `before` is the one of the finer level.
static spops_coords *check_full_level(test_device *d, const pyramid_case *c,
                                      const spops_pyramid *pyramid, int32_t level,
                                      const spops_coords *before, const char *what)
{
    const spops_kernel_shape down = down_kernel(c);
    const spops_kernel_shape within = within_kernel(c, level);
    spops_coords_options co = spops_coords_options_default();
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_kernel_map *maps[2] = {NULL, NULL};
    spops_coords *alone = NULL;
    held_set held = held_set_of(d, spops_pyramid_coords(pyramid, level), what);

    spops_coords_view items = spops_coords_view_default();

    co.box = &held.info.box;
    test_expect_ok(d->ctx, spops_coords_get_view(d->ctx, before, &items), what);
    test_expect_ok(
        d->ctx,
        spops_coords_reserve(d->ctx, c->dims, held.info.max_rows, items.max_rows, &co, &alone),
        what);
    test_expect_ok(d->ctx, spops_coords_update_downsampled(d->ctx, alone, before, &down), what);
    held_set expected = held_set_of(d, alone, what);
    cr_assert(held.info.num_rows == expected.info.num_rows &&
                  held.info.num_merged == expected.info.num_merged &&
                  held.info.num_dropped == expected.info.num_dropped &&
                  held.info.overflow == expected.info.overflow,
              "%s: info of level %d", what, (int)level);
    cr_assert(same(held.rows, expected.rows, expected.info.num_rows * (c->dims + 1)) &&
                  same(held.row_item, expected.row_item, expected.info.num_rows),
              "%s: rows of level %d", what, (int)level);
    held_set_free(&held), held_set_free(&expected);

    const spops_kernel_map *made[2] = {spops_pyramid_map(pyramid, SPOPS_PYRAMID_WITHIN, level),
                                       spops_pyramid_map(pyramid, SPOPS_PYRAMID_DOWN, level - 1)};
    o.contents = c->contents;
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, SPOPS_MAP_SUBMANIFOLD, &within, alone, NULL, &o, &maps[0]),
        what);
    test_expect_ok(d->ctx, spops_kernel_map_update(d->ctx, maps[0], alone, NULL), what);
    o.contents |= SPOPS_MAP_REVERSE;
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, SPOPS_MAP_CONVOLUTION, &down, before, alone, &o, &maps[1]),
        what);
    test_expect_ok(d->ctx, spops_kernel_map_update(d->ctx, maps[1], before, alone), what);
    for (int m = 0; m < 2; ++m) {
        held_map x = held_map_of(d, made[m], SPOPS_STATUS_OK, what);
        held_map y = held_map_of(d, maps[m], SPOPS_STATUS_OK, what);
        held_map_check_same(&x, &y, what);
        held_map_free(&x), held_map_free(&y);
        spops_kernel_map_destroy(maps[m]);
    }
    return alone;
}

ParameterizedTestParameters(pyramid, full_levels_equal_one_by_one)
{
    return every_launch();
}

// Rows that do not fit are dropped with all that hangs on them; maps of the rows that do are whole.
ParameterizedTest(struct launch_param *p, pyramid, full_levels_equal_one_by_one)
{
    static const pyramid_case of[] = {
        {"full", 3, 4, SPOPS_MAP_ORDER, 3, 2, 2, 0, SPOPS_COORDS_ORDER_GIVEN,
         SPOPS_COORDS_SEARCH_AUTO, 0, 0},
        {"full, 5 taps", 2, 4, SPOPS_MAP_ORDER, 5, 3, 3, 2, SPOPS_COORDS_ORDER_GIVEN,
         SPOPS_COORDS_SEARCH_AUTO, 0, 0},
    };
    static const int64_t capacities[][MAX_LEVELS] = {
        {0, 60, 0, 0}, {0, 0, 20, 0}, {0, 0, 0, 3}, {0, 90, 12, 11}, {0, 1, 1, 1}, {0, 50, 40, 2}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    test_rng rng = test_rng_make(4500);
    for (int i = 0; i < 2; ++i)
        for (size_t k = 0; k < sizeof capacities / sizeof capacities[0]; ++k) {
            char text[256];
            const char *what = test_describe(text, "%s, capacities %zu", of[i].name, k);
            cloud_rows cloud = cloud_make(CLOUD_CLUMPS, of[i].dims, false, &rng);
            spops_coords *finest = create_set(&d, &cloud), *sets[MAX_LEVELS] = {NULL};
            const spops_coords *before = finest;
            spops_pyramid *pyramid = NULL;
            test_expect_ok(
                d.ctx, make_pyramid(d.ctx, &of[i], finest, true, capacities[k], &pyramid), what);
            test_expect_ok(d.ctx, spops_pyramid_update(d.ctx, pyramid), what);
            for (int32_t level = 1; level < of[i].num_levels; ++level)
                before = sets[level] = check_full_level(&d, &of[i], pyramid, level, before, what);
            for (int32_t level = 1; level < of[i].num_levels; ++level)
                spops_coords_destroy(sets[level]);
            spops_pyramid_destroy(pyramid);
            spops_coords_destroy(finest);
            cloud_free(&cloud);
        }
    test_close(&d);
}

BackendTest(pyramid, overflows_and_refuses)
{
    static const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const int64_t narrow[5] = {0, 0, 3, 0, 0};
    spops_pyramid_options o = spops_pyramid_options_default();
    spops_pyramid_info info = spops_pyramid_info_default();
    const spops_kernel_shape *const no_down[4] = {0};
    spops_kernel_shape even = spops_kernel_shape_cube(3, 2, 1, 1);
    const spops_kernel_shape *const evens[5] = {&even, &even, &even, &even, &even};
    spops_pyramid *pyramid = NULL;
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    test_rng rng = test_rng_make(4400);
    cloud_rows cloud = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    spops_coords *finest = create_set(&d, &cloud);

    // a level that is full
    test_expect_ok(d.ctx, make_pyramid(d.ctx, &cases[0], finest, true, narrow, &pyramid), "narrow");
    test_expect_ok(d.ctx, spops_pyramid_update(d.ctx, pyramid), "narrow");
    test_expect(
        d.ctx, spops_pyramid_get_info_sync(d.ctx, pyramid, &info), SPOPS_STATUS_CAPACITY_EXCEEDED,
        "pyramid_get_info_sync: level 2 has more rows or pairs than its capacities", "narrow");
    cr_assert(info.overflow == 1 && info.num_rows[2] == 3 && info.max_rows[2] == 3 &&
              info.num_rows[0] == cloud.n && info.max_rows[3] == 3);
    spops_pyramid_destroy(pyramid);
    pyramid = NULL;

    // a finest set that is full itself
    static const int32_t four_rows[4 * 4] = {0, 0, 0, 0, 0, 1, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3};
    static const int32_t four = 4;
    const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, 7, 7, 7, 0}};
    spops_coords_options co = spops_coords_options_default();
    spops_coords *full = NULL;
    int32_t *rows = test_upload_i32(&d, four_rows, 16), *count = test_upload_i32(&d, &four, 1);
    co.box = &box;
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, 2, 4, &co, &full), "full");
    test_expect_ok(d.ctx, spops_coords_update(d.ctx, full, count, rows), "full");
    o.num_levels = 2;
    test_expect_ok(d.ctx, spops_pyramid_reserve(d.ctx, full, &o, &pyramid), "full");
    test_expect_ok(d.ctx, spops_pyramid_update(d.ctx, pyramid), "full");
    info = spops_pyramid_info_default();
    test_expect(
        d.ctx, spops_pyramid_get_info_sync(d.ctx, pyramid, &info), SPOPS_STATUS_CAPACITY_EXCEEDED,
        "pyramid_get_info_sync: level 0 has more rows or pairs than its capacities", "full");
    cr_assert(info.overflow == 1 && info.num_rows[0] == 2);
    spops_pyramid_destroy(pyramid);
    spops_coords_destroy(full);
    test_free(&d, rows), test_free(&d, count);
    pyramid = NULL;

    // pairs that do not fit
    o.num_levels = 2;
    o.max_pairs = (const int64_t[]){0, 5};
    test_expect_ok(d.ctx, spops_pyramid_reserve(d.ctx, finest, &o, &pyramid), "pairs");
    test_expect_ok(d.ctx, spops_pyramid_update(d.ctx, pyramid), "pairs");
    info = spops_pyramid_info_default();
    test_expect(d.ctx, spops_pyramid_get_info_sync(d.ctx, pyramid, &info),
                SPOPS_STATUS_CAPACITY_EXCEEDED, "level 1", "pairs");
    cr_assert(info.num_pairs[1] > 5 && info.max_pairs[1] == 5 && info.num_pairs[0] > 0);
    spops_pyramid_destroy(pyramid);
    pyramid = NULL;

    // arguments
    test_expect(d.ctx, spops_pyramid_create(d.ctx, NULL, NULL, &pyramid), invalid,
                "pyramid_create: finest is NULL", "finest");
    o = spops_pyramid_options_default();
    o.num_levels = 9;
    test_expect(d.ctx, spops_pyramid_create(d.ctx, finest, &o, &pyramid), invalid,
                "num_levels is 9, expected 1 to 8", "levels");
    o.num_levels = 2;
    o.down = no_down;
    test_expect(d.ctx, spops_pyramid_create(d.ctx, finest, &o, &pyramid), invalid,
                "down[0] is NULL", "down");
    o.down = NULL;
    o.within = evens;
    test_expect(d.ctx, spops_pyramid_create(d.ctx, finest, &o, &pyramid), invalid,
                "expected an odd number (submanifold)", "within");
    o.within = NULL;
    o.max_rows = (const int64_t[]){0, -4};
    test_expect(d.ctx, spops_pyramid_reserve(d.ctx, finest, &o, &pyramid), invalid,
                "max_rows[1] is -4", "rows");
    o.max_rows = NULL;
    o.contents = 256;
    test_expect(d.ctx, spops_pyramid_reserve(d.ctx, finest, &o, &pyramid), invalid,
                "contents is 256", "contents");
    cr_assert_null(pyramid);
    test_expect(d.ctx, spops_pyramid_update(d.ctx, NULL), invalid, "plans[0] is NULL", "none");
    test_expect(d.ctx, spops_pyramid_get_info_sync(d.ctx, NULL, &info), invalid, "pyramid is NULL",
                "none");
    spops_pyramid_destroy(NULL);
    spops_coords_destroy(finest);
    cloud_free(&cloud);
    test_close(&d);
}
