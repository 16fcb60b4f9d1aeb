// SPDX-License-Identifier: Apache-2.0
// The span form of BEV plans: when a plan has it, what it says of itself, and that its sums are
// those of the lists. (Its sums against FP64: test_bevpool and test_bevpool_dtypes, which run once
// more with SPOPS_TEST_BEV_KERNEL=spans.)
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bevpool/bev_plan.h"
#include "bevpool/bev_spans_sizes.h"
#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

static spops_bev_options with_kernel(spops_bev_kernel kernel)
{
    spops_bev_options options = spops_bev_options_default();
    options.kernel = kernel;
    return options;
}

// Points of a plan's map that lie in one tile, at one depth and in one cell are one span.
static int64_t count_spans(const bev_map *map)
{
    const spops_bev_shape *s = &map->shape;
    const int32_t image = s->feature_height * s->feature_width;
    int32_t height = SPOPS_BEV_TILE_PIXELS;
    while (height > 8 && height / 2 >= s->feature_height)
        height /= 2;
    const int32_t width = SPOPS_BEV_TILE_PIXELS / height;
    const int64_t tiles_x = (s->feature_width + width - 1) / width;
    const int64_t tiles = (s->feature_height + height - 1) / height * tiles_x;
    const int64_t planes = map->ref.num_depths / image * tiles;
    int64_t num_spans = 0, begin = 0;
    char *seen = (char *)calloc((size_t)planes, 1);
    for (int64_t i = 0; i < map->ref.num_points; ++i) {
        if (i > 0 && map->cell_of[i] != map->cell_of[i - 1]) { // another cell: forget
            for (int64_t k = begin; k < i; ++k) {
                const int32_t p = map->depth_of[k], pixel = p % image;
                seen[p / image * tiles + pixel / s->feature_width / height * tiles_x +
                     pixel % s->feature_width / width] = 0;
            }
            begin = i;
        }
        const int32_t p = map->depth_of[i], pixel = p % image;
        char *plane = &seen[p / image * tiles + pixel / s->feature_width / height * tiles_x +
                            pixel % s->feature_width / width];
        num_spans += !*plane;
        *plane = 1;
    }
    free(seen);
    return num_spans;
}

static void check_plan(test_device *d, const spops_bev_geometry *g, const spops_bev_options *asked,
                       spops_bev_kernel expected, const char *what)
{
    spops_bev_plan *plan = NULL;
    test_expect_ok(d->ctx, spops_bev_plan_create(d->ctx, g, asked, &plan), what);
    const spops_bev_plan_info info = bev_info(d, plan);
    cr_assert(info.kernel == expected, "%s: kernel is %d, expected %d", what, (int)info.kernel,
              (int)expected);
    if (expected == SPOPS_BEV_KERNEL_SPANS) {
        bev_map map = bev_map_of_plan(d, plan);
        const int64_t spans = count_spans(&map);
        cr_assert(info.num_spans == spans, "%s: %lld spans, expected %lld", what,
                  (long long)info.num_spans, (long long)spans);
        cr_assert(info.num_steps * SPOPS_BEV_BUNDLE_PARTS >= spans && info.num_steps <= spans,
                  "%s: %lld steps of %lld spans", what, (long long)info.num_steps,
                  (long long)spans);
        bev_map_free(&map);
    } else {
        cr_assert(info.num_spans == 0 && info.num_steps == 0, "%s", what);
    }
    spops_bev_plan_destroy(plan);
}

static void check_choice(test_device *d, const spops_bev_geometry *g, spops_bev_kernel asked,
                         spops_bev_kernel expected, const char *what)
{
    const spops_bev_options options = with_kernel(asked);
    check_plan(d, g, &options, expected, what);
}

BackendTest(bevpool_spans, choice)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const spops_bev_options forced = with_kernel(SPOPS_BEV_KERNEL_SPANS);
    spops_bev_plan *plan = NULL;
    bev_geometry_case g = bev_geometry_simulate(2, 4, 0.3);
    check_choice(&d, &g.geometry, SPOPS_BEV_KERNEL_AUTO, SPOPS_BEV_KERNEL_INTERVALS,
                 "small: lists");
    check_choice(&d, &g.geometry, SPOPS_BEV_KERNEL_INTERVALS, SPOPS_BEV_KERNEL_INTERVALS, "lists");
    test_expect(d.ctx, spops_bev_plan_reserve(d.ctx, &g.geometry, &forced, &plan),
                SPOPS_STATUS_NOT_SUPPORTED, " spans", "a plan that is refilled");
    if (p->backend == SPOPS_BACKEND_CPU) {
        test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &forced, &plan),
                    SPOPS_STATUS_NOT_SUPPORTED, " spans", "no spans on the CPU");
        cr_assert(plan == NULL);
    } else {
        check_choice(&d, &g.geometry, SPOPS_BEV_KERNEL_SPANS, SPOPS_BEV_KERNEL_SPANS, "simulated");
        // A point twice, which a mask cannot say.
        static const spops_bev_shape shape = {1, 1, 3, 2, 2, 3, 2, 1};
        static int32_t depth[] = {3, 7, 7, 0}, feat[] = {3, 3, 3, 0}, cell[] = {4, 4, 4, 5};
        static int32_t starts[] = {0, 3}, lengths[] = {3, 1};
        const spops_bev_ranks_out r = {sizeof r,
                                       4,
                                       2,
                                       test_upload_i32(&d, depth, 4),
                                       test_upload_i32(&d, feat, 4),
                                       test_upload_i32(&d, cell, 4),
                                       test_upload_i32(&d, starts, 2),
                                       test_upload_i32(&d, lengths, 2)};
        const spops_bev_ranks ranks = spops_bev_ranks_of(&r);
        test_expect(d.ctx, spops_bev_plan_create_from_ranks(d.ctx, &shape, &ranks, &forced, &plan),
                    SPOPS_STATUS_NOT_SUPPORTED, "some point is used twice", "a point twice");
        test_free(&d, r.ranks_depth), test_free(&d, r.ranks_feat), test_free(&d, r.ranks_bev);
        test_free(&d, r.interval_starts), test_free(&d, r.interval_lengths);
        // One cell with the whole frustum: more spans than a part may have.
        g.geometry.shape.num_cells_x = g.geometry.shape.num_cells_y = 1;
        g.geometry.shape.num_cells_z = 1;
        g.geometry.shape.num_depths = SPOPS_BEV_MAX_SPANS + 1;
        for (int i = 0; i < 3; ++i) {
            g.geometry.grid_lower_m[i] = -1e3;
            g.geometry.cell_size_m[i] = 2e3;
        }
        test_expect(d.ctx, spops_bev_plan_create(d.ctx, &g.geometry, &forced, &plan),
                    SPOPS_STATUS_NOT_SUPPORTED, "of a cell in a window", "one cell for all");
        check_choice(&d, &g.geometry, SPOPS_BEV_KERNEL_AUTO, SPOPS_BEV_KERNEL_INTERVALS,
                     "one cell");
    }
    bev_geometry_free(&g);
    for (int i = 0; i < 2 && p->backend == SPOPS_BACKEND_CUDA; ++i) {
        if (!bev_geometry_real('a', i == 0 ? 'A' : 'B', &g)) break;
        check_choice(&d, &g.geometry, SPOPS_BEV_KERNEL_SPANS, SPOPS_BEV_KERNEL_SPANS, "real rig");
        check_choice(&d, &g.geometry, SPOPS_BEV_KERNEL_AUTO, SPOPS_BEV_KERNEL_SPANS,
                     "real rig, auto");
        spops_bev_options backward = with_kernel(SPOPS_BEV_KERNEL_AUTO);
        backward.backward = 1;
        check_plan(&d, &g.geometry, &backward, SPOPS_BEV_KERNEL_SPANS, "with gradients");
        g.geometry.shape.num_depths = i == 0 ? 12 : 3;
        check_choice(&d, &g.geometry, SPOPS_BEV_KERNEL_AUTO, SPOPS_BEV_KERNEL_INTERVALS,
                     "few depths");
        check_plan(&d, &g.geometry, &backward, SPOPS_BEV_KERNEL_INTERVALS,
                   "few depths, with gradients");
        bev_geometry_free(&g);
    }
    test_close(&d);
}

// A plan's call on poisoned rows: the elements of out (to be freed).
static unsigned char *pool_rows(test_device *d, const spops_bev_geometry *g,
                                const spops_bev_options *options, const guarded *depth,
                                const guarded *feat, guarded *out)
{
    spops_bev_plan *plan = NULL;
    test_expect_ok(d->ctx, spops_bev_plan_create(d->ctx, g, options, &plan), "plan");
    guarded_poison(out, 0xa5);
    guarded_upload(out);
    test_expect_ok(
        d->ctx,
        bev_execute(d->ctx, plan, SPOPS_BEV_CHANNELS_LAST, depth->view, feat->view, out->view),
        "execute");
    test_wait(d);
    guarded_download(out);
    guarded_check_padding(out, "out");
    spops_bev_plan_destroy(plan);
    return guarded_elements(out);
}

static void check_some(const unsigned char *sums, int64_t bytes)
{
    bool any = false;
    for (int64_t i = 0; i < bytes; ++i)
        any = any || sums[i] != 0;
    cr_assert(any, "nothing was summed");
}

// A map, with rows of every width that `cols` names, against its lists: sums that are exact in any
// order.
static void check_rows(test_device *d, const spops_bev_geometry *g, const int64_t *cols,
                       int num_cols)
{
    const spops_bev_options any = with_kernel(SPOPS_BEV_KERNEL_AUTO),
                            lists = with_kernel(SPOPS_BEV_KERNEL_INTERVALS);
    const spops_bev_shape *s = &g->shape;
    const int64_t rows = (int64_t)s->num_cameras * s->feature_height * s->feature_width;
    const int64_t cells = (int64_t)s->num_cells_x * s->num_cells_y * s->num_cells_z;
    test_rng rng = test_rng_make(11);
    check_choice(d, g, SPOPS_BEV_KERNEL_AUTO,
                 d->backend == SPOPS_BACKEND_CUDA ? SPOPS_BEV_KERNEL_SPANS
                                                  : SPOPS_BEV_KERNEL_INTERVALS,
                 "large enough");
    guarded depth =
        guarded_create(d->backend, "depth", rows * s->num_depths, 1, 0, 0, SPOPS_DTYPE_F16);
    free(guarded_fill(&depth, &rng, VALUES_EXACT, true, rows));
    guarded_upload(&depth);
    for (int i = 0; i < num_cols; ++i) {
        guarded feat = guarded_create(d->backend, "feat", rows, cols[i], 0, 0, SPOPS_DTYPE_F16);
        guarded out = guarded_create(d->backend, "out", cells, cols[i], 0, 0, SPOPS_DTYPE_F32);
        free(guarded_fill(&feat, &rng, VALUES_EXACT, true, rows));
        guarded_upload(&feat);
        unsigned char *sums = pool_rows(d, g, &lists, &depth, &feat, &out);
        unsigned char *found = pool_rows(d, g, &any, &depth, &feat, &out);
        guarded_check_bits(&out, sums, "rows of either cut");
        check_some(sums, cells * cols[i] * 4);
        free(sums), free(found);
        guarded_destroy(&feat), guarded_destroy(&out);
    }
    guarded_destroy(&depth);
}

// The kernel has blocks of three sizes: how many fit on a multiprocessor decides, and so how wide
// rows are and how many depths a wedge has: many in the second map, few in the third. The first two
// are cut twice.
BackendTest(bevpool_spans, narrow_and_wide_rows)
{
    static const int64_t all_cols[] = {
        SPOPS_BEV_NARROW_COLS, SPOPS_BEV_NARROW_COLS + 32, 192, 240, 256, 77, 3};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    bev_geometry_case g = bev_geometry_simulate(1, 8, 0.2);
    spops_bev_shape *s = &g.geometry.shape;
    s->num_depths = 64, s->feature_height = 32, s->feature_width = 32;
    g.geometry.depth_step_m = 0.15;
    check_rows(&d, &g.geometry, all_cols, 7);
    bev_geometry_free(&g);
    if (p->backend == SPOPS_BACKEND_CUDA) {
        g = bev_geometry_simulate(1, 16, 0.2);
        s->num_depths = 192, s->feature_height = 32, s->feature_width = 32;
        s->num_cells_x *= 6, s->num_cells_y *= 6;
        g.geometry.cell_size_m[0] /= 6.0, g.geometry.cell_size_m[1] /= 6.0;
        g.geometry.depth_step_m = 0.035;
        check_rows(&d, &g.geometry, all_cols + 4, 1);
        bev_geometry_free(&g);

        g = bev_geometry_simulate(1, 16, 0.2);
        s->num_depths = 4, s->feature_height = 32, s->feature_width = 64;
        check_rows(&d, &g.geometry, all_cols + 3, 1);
        bev_geometry_free(&g);
    }
    test_close(&d);
}

// Rows wider than a plan of spans was built for go by its lists; and a plan of spans without any
// clears every cell.
BackendTest(bevpool_spans, limits)
{
    enum { COLS = 80 };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const spops_bev_kernel forced =
        p->backend == SPOPS_BACKEND_CUDA ? SPOPS_BEV_KERNEL_SPANS : SPOPS_BEV_KERNEL_AUTO;
    spops_bev_options narrow = with_kernel(forced), lists = with_kernel(SPOPS_BEV_KERNEL_INTERVALS);
    narrow.max_cols = lists.max_cols = COLS / 5;
    test_rng rng = test_rng_make(7);
    bev_geometry_case g = bev_geometry_simulate(1, 4, 0.3);
    const spops_bev_shape *s = &g.geometry.shape;
    const int64_t rows = (int64_t)s->num_cameras * s->feature_height * s->feature_width;
    const int64_t cells = (int64_t)s->num_cells_x * s->num_cells_y * s->num_cells_z;
    guarded depth =
        guarded_create(d.backend, "depth", rows * s->num_depths, 1, 0, 0, SPOPS_DTYPE_F16);
    guarded feat = guarded_create(d.backend, "feat", rows, COLS, 0, 0, SPOPS_DTYPE_F16);
    guarded out = guarded_create(d.backend, "out", cells, COLS, 0, 0, SPOPS_DTYPE_F16);
    free(guarded_fill(&depth, &rng, VALUES_RANDOM, true, rows));
    free(guarded_fill(&feat, &rng, VALUES_RANDOM, true, rows));
    guarded_upload(&depth);
    guarded_upload(&feat);

    unsigned char *expected = pool_rows(&d, &g.geometry, &lists, &depth, &feat, &out);
    unsigned char *wide = pool_rows(&d, &g.geometry, &narrow, &depth, &feat, &out);
    guarded_check_bits(&out, expected, "rows wider than planned");
    check_some(expected, cells * COLS * 2);

    const spops_bev_options spans = with_kernel(forced);
    g.geometry.grid_lower_m[1] = -1e6; // nothing inside
    unsigned char *empty = pool_rows(&d, &g.geometry, &spans, &depth, &feat, &out);
    for (int64_t i = 0; i < cells * COLS * 2; ++i)
        cr_assert(empty[i] == 0, "byte %lld of a map without points is %d", (long long)i, empty[i]);

    free(expected), free(wide), free(empty);
    guarded_destroy(&depth), guarded_destroy(&feat), guarded_destroy(&out);
    bev_geometry_free(&g);
    test_close(&d);
}
