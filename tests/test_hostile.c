// SPDX-License-Identifier: Apache-2.0
// Callers who break a contract in ways that once crashed the library, read what was not there, went
// unnoticed, or cost more than they should.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan_file.h"
#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/checked_alloc.h"
#include "tests/support/reduce_cases.h"
#include "tests/support/saved.h"

static spops_context *open_context(checked_alloc *memory)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    options.backend = SPOPS_BACKEND_CPU;
    options.num_threads = 2;
    if (memory != NULL) {
        checked_alloc_init(memory);
        options.allocator = checked_alloc_hooks(memory);
    }
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK, "%s",
                 spops_last_error(NULL));
    return ctx;
}

static void expect_refused(const spops_context *ctx, spops_status found, const char *line)
{
    cr_assert_eq(found, SPOPS_STATUS_INVALID_ARGUMENT, "%s: %s", spops_status_name(found),
                 spops_last_error(ctx));
    cr_assert_str_eq(spops_last_error(ctx), line);
}

// ---- Messages -----------------------------------------------------------------------------------

// Points without a batch array are of batch 0; a box without that batch refuses them.
Test(hostile, box_without_the_batch_of_all_points)
{
    spops_context *ctx = open_context(NULL);
    const float points[6] = {1, 2, 3, 4, 5, 6};
    const spops_coords_box box = {{1, -100, -100, -100, 0}, {2, 100, 100, 100, 0}};
    spops_voxels_options options = spops_voxels_options_default();
    spops_coords_options coords = spops_coords_options_default();
    spops_voxels *voxels = NULL;
    options.size_m[0] = options.size_m[1] = options.size_m[2] = 1.0;
    options.coords = &coords;
    coords.box = &box;
    expect_refused(
        ctx,
        spops_voxels_create(ctx, spops_matrix_dense_const(points, 2, 3, SPOPS_DTYPE_F32), NULL,
                            &options, &voxels),
        "voxels_create: batch is NULL, so that every point is of batch 0, expected 1 to 2 by the "
        "box");
    cr_assert_null(voxels);
    spops_context_destroy(ctx);
}

// ---- Memory -------------------------------------------------------------------------------------

// Plans made and destroyed one after the other, each a little larger than the one before.
Test(hostile, scratch_of_a_scene_that_grows)
{
    enum { FRAMES = 200 };
    checked_alloc memory;
    spops_context *ctx = open_context(&memory);
    int32_t *offsets = calloc(1000 + 15 * FRAMES + 1, sizeof *offsets);
    cr_assert_not_null(offsets);
    for (int64_t frame = 0; frame <= FRAMES; ++frame) {
        spops_segments_options options = spops_segments_options_default();
        spops_segments *segments = NULL;
        options.gradients = SPOPS_GRADIENTS_ALL;
        options.max_cols = 16;
        cr_assert_eq(spops_segments_create(ctx, 1000 + 15 * frame, offsets, &options, &segments),
                     SPOPS_STATUS_OK, "%s", spops_last_error(ctx));
        const size_t needed = spops_segments_scratch_bytes(segments);
        spops_segments_destroy(segments);
        // Half more, and a quarter of counters.
        cr_assert_lt(memory.live_bytes, needed * 15 / 8 + 16384, "frame %d: %zu bytes for %zu",
                     (int)frame, memory.live_bytes, needed);
    }
    free(offsets);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "scratch_of_a_scene_that_grows");
}

// A captured graph goes on working in the scratch that it was captured with, whatever the context does
// since; scratch that no graph holds is given back.
Test(hostile, scratch_of_a_captured_graph)
{
    enum { TERMS = 100000, COLS = 32 };
    static float x[TERMS][COLS], out[COLS];
    static const int32_t offsets[] = {0, TERMS};
    const spops_backend_kind cuda = SPOPS_BACKEND_CUDA;
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    spops_segments *segments = NULL;
    device_graph *graph = NULL;
    checked_alloc memory;
    void *stream = NULL, *x_there = NULL, *out_there = NULL, *offsets_there = NULL, *other = NULL;
    if (!device_has_cuda()) cr_skip_test("no CUDA device");
    checked_alloc_init(&memory);
    cr_assert(device_stream_create(cuda, &stream));
    options.backend = cuda;
    options.stream = stream;
    options.allocator = checked_alloc_hooks(&memory);
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK, "%s",
                 spops_last_error(NULL));
    for (int i = 0; i < TERMS; ++i)
        for (int c = 0; c < COLS; ++c)
            x[i][c] = 1.0f;
    cr_assert(device_alloc(cuda, sizeof x, &x_there) && device_alloc(cuda, sizeof out, &out_there));
    cr_assert(device_alloc(cuda, sizeof offsets, &offsets_there));
    cr_assert(device_upload(cuda, x_there, x, sizeof x));
    cr_assert(device_upload(cuda, offsets_there, offsets, sizeof offsets));
    const int32_t *where = offsets_there;
    cr_assert_eq(spops_segments_create(ctx, 1, where, NULL, &segments), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    const size_t bytes = spops_segments_scratch_bytes(segments);
    const spops_matrix rows = spops_matrix_dense(x_there, TERMS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix sums = spops_matrix_dense(out_there, 1, COLS, SPOPS_DTYPE_F32);
    cr_assert_gt(bytes, 0, "the segment is not split");

    // Before it is captured, what is outgrown goes.
    cr_assert_eq(spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_SUM, rows, NULL, sums, NULL),
                 SPOPS_STATUS_OK);
    const int64_t live = memory.live;
    cr_assert_eq(spops_context_reserve(ctx, 2 * bytes), SPOPS_STATUS_OK);
    cr_assert_eq(memory.live, live);

    cr_assert(device_capture_begin(stream));
    cr_assert_eq(spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_SUM, rows, NULL, sums, NULL),
                 SPOPS_STATUS_OK, "%s", spops_last_error(ctx));
    cr_assert(device_capture_end(stream, &graph));
    for (size_t larger = 4; larger <= 64; larger *= 2)
        cr_assert_eq(spops_context_reserve(ctx, larger * bytes), SPOPS_STATUS_OK, "%s",
                     spops_last_error(ctx));
    cr_assert_eq(memory.live, live + 2, "the block of the graph, and what describes it");
    cr_assert(device_alloc(cuda, 64 * bytes, &other) && device_fill(cuda, other, 0xff, 64 * bytes));
    for (int i = 0; i < 3; ++i) {
        cr_assert(device_fill(cuda, out_there, 0xff, sizeof out));
        cr_assert(device_graph_launch(graph, stream) && device_stream_wait(cuda, stream));
        cr_assert(device_download(cuda, out, out_there, sizeof out));
        for (int c = 0; c < COLS; ++c)
            cr_assert_eq(out[c], (float)TERMS);
    }
    checked_alloc_check(&memory, "scratch_of_a_captured_graph");
    device_graph_destroy(graph);
    spops_segments_destroy(segments);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "scratch_of_a_captured_graph");
    device_free(cuda, other);
    device_free(cuda, offsets_there);
    device_free(cuda, out_there);
    device_free(cuda, x_there);
    device_stream_destroy(cuda, stream);
}

// Terms in segment order are not sorted, and need no memory to sort them in.
Test(hostile, offsets_need_no_workspace)
{
    const int64_t n = 10000000;
    const int32_t offsets[] = {0, (int32_t)n};
    checked_alloc memory;
    spops_context *ctx = open_context(&memory);
    spops_segments *segments = NULL;
    size_t most = 0;
    // Refusing a request shows what is alive at it; nothing is ever as large as a byte a term.
    for (int64_t request = 1;; ++request) {
        memory.fail_at = memory.requests + request;
        const spops_status status = spops_segments_create(ctx, 1, offsets, NULL, &segments);
        most = memory.live_bytes > most ? memory.live_bytes : most;
        if (status == SPOPS_STATUS_OK) break;
        cr_assert_eq(status, SPOPS_STATUS_OUT_OF_MEMORY);
    }
    cr_assert_lt(most, (size_t)n);
    spops_segments_destroy(segments);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "offsets_need_no_workspace");
}

// ---- Saved plans --------------------------------------------------------------------------------

// Numbers of a saved plan of segments, each of 8 bytes.
enum { SAVED_NUM_TERMS = 12 + 8, SAVED_NUM_ROWS = 12 + 16, SAVED_NUM_WEIGHTS = 12 + 24 };
enum { SAVED_NUM_SOURCES = 12 + 32, SAVED_MAX_COLS = 12 + 40 };

static void put_number(unsigned char *bytes, int64_t value)
{
    for (int i = 0; i < 8; ++i)
        bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
}

static void seal(unsigned char *bytes, size_t n)
{
    const size_t content = n - SPOPS_FILE_CHECKSUM_BYTES;
    put_number(bytes + content, (int64_t)spops_file_checksum(bytes, content));
}

// Four segments, whose terms name neither rows nor weights.
static size_t save_plan(spops_context *ctx, spops_gradients gradients, int64_t max_cols,
                        unsigned char *bytes, size_t capacity)
{
    static const int32_t offsets[] = {0, 2, 3, 3, 6};
    spops_segments_options options = spops_segments_options_default();
    spops_segments *segments = NULL;
    size_t used = 0;
    options.gradients = gradients;
    options.max_cols = max_cols;
    cr_assert_eq(spops_segments_create(ctx, 4, offsets, &options, &segments), SPOPS_STATUS_OK);
    cr_assert_eq(saved_put(ctx, segments, bytes, capacity, &used), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    spops_segments_destroy(segments);
    return used;
}

// What saved bytes claim costs no more than they do, times a constant.
Test(hostile, saved_plan_that_claims_much)
{
    static const struct {
        spops_gradients gradients;
        size_t at;
        int64_t value;
    } claims[] = {{SPOPS_GRADIENTS_NONE, SAVED_NUM_TERMS, INT32_MAX - 1},
                  {SPOPS_GRADIENTS_LINEAR, SAVED_NUM_ROWS, INT32_MAX - 1},
                  {SPOPS_GRADIENTS_LINEAR, SAVED_NUM_WEIGHTS, 100000},
                  {SPOPS_GRADIENTS_ALL, SAVED_MAX_COLS, 100000000},
                  {SPOPS_GRADIENTS_ALL, SAVED_MAX_COLS, 10000}};
    unsigned char bytes[4096];
    for (size_t i = 0; i < sizeof claims / sizeof *claims; ++i) {
        checked_alloc memory;
        spops_context *ctx = open_context(&memory);
        const size_t used = save_plan(ctx, claims[i].gradients, 0, bytes, sizeof bytes);
        const int64_t requests = memory.requests;
        spops_segments *segments = NULL;
        put_number(bytes + claims[i].at, claims[i].value);
        seal(bytes, used);
        cr_assert_eq(saved_get(ctx, SPOPS_PLAN_SEGMENTS, bytes, used, &segments),
                     SPOPS_STATUS_CORRUPT_DATA, "claim %zu: %s", i, spops_last_error(ctx));
        cr_assert_eq(memory.requests, requests, "claim %zu", i);
        spops_context_destroy(ctx);
        checked_alloc_finish(&memory, "saved_plan_that_claims_much");
    }
}

// A plan that does need much is saved with as many bytes as that takes, and comes back.
Test(hostile, saved_plan_that_needs_much)
{
    spops_context *ctx = open_context(NULL);
    unsigned char bytes[16384], again[16384];
    spops_segments *segments = NULL;
    size_t used_again = 0;
    const size_t small = save_plan(ctx, SPOPS_GRADIENTS_ALL, 256, bytes, sizeof bytes);
    const size_t used = save_plan(ctx, SPOPS_GRADIENTS_ALL, 200000, bytes, sizeof bytes);
    cr_assert_lt(small, 256);
    cr_assert_gt(used, 200000 * 8 * 4 / 2048);
    cr_assert_eq(saved_get(ctx, SPOPS_PLAN_SEGMENTS, bytes, used, &segments), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    cr_assert_eq(saved_put(ctx, segments, again, sizeof again, &used_again), SPOPS_STATUS_OK);
    cr_assert(used_again == used && memcmp(bytes, again, used) == 0);
    spops_segments_destroy(segments);
    // Other bytes than zeros, and fewer of them, are damage.
    bytes[used - 9] = 1;
    seal(bytes, used);
    cr_assert_eq(saved_get(ctx, SPOPS_PLAN_SEGMENTS, bytes, used, &segments),
                 SPOPS_STATUS_CORRUPT_DATA);
    bytes[used - 9] = 0;
    seal(bytes, used - 1);
    cr_assert_eq(saved_get(ctx, SPOPS_PLAN_SEGMENTS, bytes, used - 1, &segments),
                 SPOPS_STATUS_CORRUPT_DATA);
    spops_context_destroy(ctx);
}

// No plan has fewer terms to number than it numbers.
Test(hostile, saved_plan_with_fewer_sources_than_terms)
{
    spops_context *ctx = open_context(NULL);
    unsigned char bytes[1024];
    spops_segments *segments = NULL;
    const size_t used = save_plan(ctx, SPOPS_GRADIENTS_NONE, 0, bytes, sizeof bytes);
    put_number(bytes + SAVED_NUM_SOURCES, 6);
    seal(bytes, used);
    cr_assert_eq(saved_get(ctx, SPOPS_PLAN_SEGMENTS, bytes, used, &segments), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    spops_segments_destroy(segments);
    put_number(bytes + SAVED_NUM_SOURCES, 5);
    seal(bytes, used);
    cr_assert_eq(saved_get(ctx, SPOPS_PLAN_SEGMENTS, bytes, used, &segments),
                 SPOPS_STATUS_CORRUPT_DATA);
    cr_assert_not_null(strstr(spops_last_error(ctx), "num_sources is 5"), "%s",
                       spops_last_error(ctx));
    spops_context_destroy(ctx);
}

// A plan may number its terms beyond how many it has: what writes a row for each term refuses it.
Test(hostile, saved_plan_with_more_sources_than_terms)
{
    enum { TERMS = 6 };
    spops_context *ctx = open_context(NULL);
    unsigned char bytes[1024];
    spops_segments *segments = NULL;
    int32_t ranks[TERMS] = {77, 77, 77, 77, 77, 77};
    float x[TERMS] = {0}, out[TERMS] = {0};
    const size_t used = save_plan(ctx, SPOPS_GRADIENTS_NONE, 0, bytes, sizeof bytes);
    put_number(bytes + SAVED_NUM_SOURCES, TERMS + 1);
    seal(bytes, used);
    cr_assert_eq(saved_get(ctx, SPOPS_PLAN_SEGMENTS, bytes, used, &segments), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    cr_assert_eq(spops_rank_execute(ctx, segments, ranks), SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_str_eq(spops_last_error(ctx), "rank_execute: segments has terms numbered up to 6, "
                                            "expected less than 6, as many as it has");
    cr_assert_eq(ranks[0], 77);
    cr_assert_eq(spops_segment_softmax_execute(ctx, segments,
                                               spops_matrix_dense(x, TERMS, 1, SPOPS_DTYPE_F32),
                                               spops_matrix_dense(out, TERMS, 1, SPOPS_DTYPE_F32)),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    spops_segments_destroy(segments);
    spops_context_destroy(ctx);
}

// ---- NULL ---------------------------------------------------------------------------------------

// Every function that takes a context and reports: it says so, and the caller's pointer is NULL.
Test(hostile, no_context)
{
    int num = 0;
#define WITHOUT_CONTEXT(function, ...)                                                             \
    do {                                                                                           \
        int other_thing = 0;                                                                       \
        void *out = &other_thing;                                                                  \
        cr_expect_eq(function(__VA_ARGS__), SPOPS_STATUS_INVALID_ARGUMENT, "%s", #function);       \
        cr_expect_str_eq(spops_last_error(NULL), &#function ": ctx is NULL"[strlen("spops_")]);    \
        cr_expect(out == NULL || strstr(#__VA_ARGS__, "&out") == NULL, "%s", #function);           \
        ++num;                                                                                     \
    } while (0);
#include "without_context.inc"
#undef WITHOUT_CONTEXT
    cr_expect_gt(num, 130);
}

Test(hostile, properties_of_no_context)
{
    cr_assert_eq(spops_context_backend(NULL), SPOPS_BACKEND_AUTO);
    cr_assert_null(spops_context_stream(NULL));
    cr_assert_eq(spops_context_regime(NULL, 1), SPOPS_REGIME_DRAM_BOUND);
    cr_assert_eq(spops_context_regime(NULL, 0), SPOPS_REGIME_L2_RESIDENT);
}

// ---- Ids ----------------------------------------------------------------------------------------

// A context does not take another's reduction for its own.
Test(hostile, reduction_of_another_context)
{
    static const int32_t offsets[] = {0, 2};
    static const float x[2] = {1, 2};
    spops_context *a = open_context(NULL), *b = open_context(NULL);
    const spops_matrix rows = spops_matrix_dense_const(x, 2, 1, SPOPS_DTYPE_F32);
    float y = -1.0f;
    const spops_matrix out = spops_matrix_dense(&y, 1, 1, SPOPS_DTYPE_F32);
    const spops_reduce_desc desc = test_plain_sum();
    spops_reduce of_a = SPOPS_REDUCE_SUM, of_b = SPOPS_REDUCE_SUM;
    spops_segments *segments = NULL;
    cr_assert_eq(spops_segments_create(a, 1, offsets, NULL, &segments), SPOPS_STATUS_OK);
    cr_assert_eq(spops_reduce_create(a, &desc, &of_a), SPOPS_STATUS_OK);
    cr_assert_eq(spops_reduce_create(b, &desc, &of_b), SPOPS_STATUS_OK);
    cr_assert_eq(spops_segreduce_execute(b, segments, of_a, rows, NULL, out, NULL),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_eq(y, -1.0f);
    cr_assert_eq(spops_segreduce_execute(b, segments, of_b, rows, NULL, out, NULL),
                 SPOPS_STATUS_OK);
    cr_assert_eq(y, 3.0f);
    spops_segments_destroy(segments);
    spops_context_destroy(b);
    spops_context_destroy(a);
}

// ---- Addresses ----------------------------------------------------------------------------------

static spops_bev_geometry geometry_of(const spops_bev_camera *camera)
{
    spops_bev_geometry g = spops_bev_geometry_default();
    const spops_bev_shape shape = {1, 1, 10, 4, 8, 8, 8, 1};
    g.shape = shape;
    g.input_height = 64;
    g.input_width = 128;
    g.depth_start_m = 1.0;
    g.depth_step_m = 0.5;
    g.grid_lower_m[1] = -8.0;
    g.grid_lower_m[2] = -5.0;
    g.cell_size_m[0] = 1.0;
    g.cell_size_m[1] = 2.0;
    g.cell_size_m[2] = 10.0;
    g.cameras = camera;
    return g;
}

static const spops_bev_camera camera = {{64, 0, 64, 0, 64, 32, 0, 0, 1},
                                        {0, 0, 1, 0, -1, 0, 0, 0, 0, -1, 0, 1.5, 0, 0, 0, 1},
                                        {1, 0, 0, 0, 1, 0}};

static void expect_misaligned(const spops_context *ctx, spops_status found, const char *name)
{
    cr_assert_eq(found, SPOPS_STATUS_INVALID_ARGUMENT, "%s", name);
    cr_assert_not_null(strstr(spops_last_error(ctx), name), "%s", spops_last_error(ctx));
    cr_assert_not_null(strstr(spops_last_error(ctx), "expected an address aligned to"), "%s",
                       spops_last_error(ctx));
}

Test(hostile, addresses_between_elements)
{
    static const int32_t offsets[] = {0, 1, 2}, rows[][3] = {{0, 1, 2}, {0, 2, 2}};
    spops_context *ctx = open_context(NULL);
    double depths[11], numbers[13];
    char cameras[sizeof camera + 8];
    size_t bytes[2];
    spops_bev_geometry g = geometry_of(&camera);
    spops_bev_plan *plan = NULL;
    spops_segments *segments = NULL;
    spops_coords *coords = NULL;
    spops_kernel_map *map = NULL;
    const spops_kernel_shape kernel = spops_kernel_shape_cube(2, 3, 1, 1);

    expect_misaligned(
        ctx, spops_bev_geometry_get_transforms(ctx, &g, (double *)(void *)((char *)numbers + 4)),
        "transforms");
    memcpy(cameras + 4, &camera, sizeof camera);
    g.cameras = (const spops_bev_camera *)(const void *)(cameras + 4);
    expect_misaligned(ctx, spops_bev_plan_create(ctx, &g, NULL, &plan), "cameras");
    g = geometry_of(&camera);
    g.depths_m = (const double *)(const void *)((char *)depths + 4);
    expect_misaligned(ctx, spops_bev_plan_create(ctx, &g, NULL, &plan), "depths_m");
    g = geometry_of(&camera);
    cr_assert_eq(spops_bev_plan_create(ctx, &g, NULL, &plan), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    cr_assert_eq(spops_segments_create(ctx, 2, offsets, NULL, &segments), SPOPS_STATUS_OK);
    cr_assert_eq(spops_coords_create(ctx, 2, 2, &rows[0][0], NULL, &coords), SPOPS_STATUS_OK);
    cr_assert_eq(
        spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL, NULL, &map),
        SPOPS_STATUS_OK, "%s", spops_last_error(ctx));
    size_t *between = (size_t *)(void *)((char *)bytes + 4);
    expect_misaligned(ctx, saved_put(ctx, segments, NULL, 0, between), "bytes");
    expect_misaligned(ctx, saved_put(ctx, plan, NULL, 0, between), "bytes");
    expect_misaligned(ctx, saved_put_map(ctx, map, coords, coords, NULL, 0, between), "bytes");
    const spops_triplets_shape shape = {2, 2, 1, 2};
    const int32_t *odd = (const int32_t *)(const void *)((const char *)offsets + 1);
    spops_triplets *triplets = NULL;
    cr_assert_eq(spops_triplets_reserve(ctx, &shape, NULL, &triplets), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    expect_misaligned(ctx, spops_triplets_update_offsets(ctx, triplets, offsets, odd, NULL),
                      "out_rows");
    expect_misaligned(ctx, spops_triplets_update_offsets(ctx, triplets, offsets, NULL, odd),
                      "in_rows");
    spops_triplets_destroy(triplets);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    spops_segments_destroy(segments);
    spops_bev_plan_destroy(plan);
    spops_context_destroy(ctx);
}

static void expect_line(const spops_context *ctx, spops_status found, const char *line)
{
    cr_assert_neq(found, SPOPS_STATUS_OK, "%s", line);
    cr_assert_str_eq(spops_last_error(ctx), line);
}

// A call that others do the work of is named, and what it was given; then the others by themselves.
Test(hostile, messages_name_the_call_that_was_made)
{
    static const int32_t rows[] = {0, 0, 0, 0, 0, 1, 1, 1};
    float p[6] = {0, 0, 0, 1, 1, 1e30f}, x[8] = {0};
    spops_context *ctx = open_context(NULL);
    spops_point_level_options lo = spops_point_level_options_default();
    spops_point_pyramid_options po = spops_point_pyramid_options_default();
    spops_pyramid_options yo = spops_pyramid_options_default();
    spops_point_cloud cloud = {spops_matrix_dense(p, 2, 3, SPOPS_DTYPE_F32), NULL, 0};
    spops_point_level *level = NULL;
    spops_point_pyramid *points = NULL;
    spops_interpolation *between = NULL;
    spops_pyramid *pyramid = NULL;
    spops_coords *coords = NULL;
    spops_nearest *nearest = NULL;
    spops_pool *pool = NULL;
    int64_t num_rows;

    lo.size_m = 1;
    expect_line(ctx, spops_point_level_create(ctx, &cloud, &lo, &level),
                "point_level_create: fine->points[1][2] is 1e+30, in voxel 1.00000001504747e+30, "
                "expected one of 32 bits");
    p[5] = 1;
    po.tap_size_m = 1;
    po.contents = 77;
    expect_line(ctx, spops_point_pyramid_create(ctx, &cloud, &po, &points),
                "point_pyramid_create: contents is 77, expected 0 to 15");
    po.contents = 0;
    p[4] = INFINITY;
    expect_line(ctx, spops_point_pyramid_create(ctx, &cloud, &po, &points),
                "point_pyramid_create: finest->points[1] is (1, inf, 1), expected finite numbers");
    expect_line(ctx, spops_interpolation_create(ctx, &cloud, &cloud, NULL, &between),
                "interpolation_create: from->points[1] is (1, inf, 1), expected finite numbers");
    expect_line(ctx, spops_nearest_create(ctx, &cloud, &nearest),
                "nearest_create: inputs->points[1] is (1, inf, 1), expected finite numbers");
    cr_assert_eq(spops_coords_create(ctx, 3, 2, rows, NULL, &coords), SPOPS_STATUS_OK);
    yo.contents = 999;
    expect_line(ctx, spops_pyramid_create(ctx, coords, &yo, &pyramid),
                "pyramid_create: contents is 999, expected a sum of SPOPS_MAP_* (0 to 255)");
    expect_line(ctx, spops_coords_get_num_rows_sync(ctx, NULL, &num_rows),
                "coords_get_num_rows_sync: coords is NULL");
    cr_assert_eq(spops_pool_create_global(ctx, coords, 1, NULL, &pool), SPOPS_STATUS_OK);
    expect_line(ctx,
                spops_pool_execute(ctx, pool, SPOPS_REDUCE_SUM,
                                   spops_matrix_dense(x, 2, 2, SPOPS_DTYPE_F32),
                                   spops_matrix_dense(x, 1, 2, SPOPS_DTYPE_F32)),
                "pool_execute: out overlaps x, expected separate memory");
    expect_line(ctx,
                spops_segreduce_execute(ctx, spops_pool_segments(pool), SPOPS_REDUCE_SUM,
                                        spops_matrix_dense(x, 2, 2, SPOPS_DTYPE_F32), NULL,
                                        spops_matrix_dense(x, 1, 2, SPOPS_DTYPE_F32), NULL),
                "segreduce_execute: out overlaps x, expected separate memory");
    spops_pool_destroy(pool);
    spops_coords_destroy(coords);
    spops_context_destroy(ctx);
}

// What is read or written by address without a struct_size, whose copies take any address.
Test(hostile, structs_between_elements)
{
    static _Alignas(64) char memory[4096];
    static const int32_t rows[][3] = {{0, 1, 2}, {0, 2, 2}};
    static float x[12];
    void *const between = memory + 4, *const odd = memory + 1;
    spops_context *ctx = open_context(NULL);
    const spops_matrix points = spops_matrix_dense(x, 4, 3, SPOPS_DTYPE_F32);
    const spops_triplets_shape shape = {1, 4, 1, 1};
    spops_coords_options co = spops_coords_options_default();
    spops_mvmr_options mo = spops_mvmr_options_default();
    const spops_reduce_desc desc = spops_reduce_desc_default();
    spops_triplets *triplets = NULL;
    spops_coords *coords = NULL;
    cr_assert_eq(spops_triplets_reserve(ctx, &shape, NULL, &triplets), SPOPS_STATUS_OK);
    cr_assert_eq(spops_coords_create(ctx, 2, 2, &rows[0][0], NULL, &coords), SPOPS_STATUS_OK);

#define BETWEEN(call, name) expect_misaligned(ctx, call, ": " name " is at")
    BETWEEN(spops_coords_create(ctx, 2, 2, &rows[0][0], NULL, between), "out");
    BETWEEN(spops_plan_attach(ctx, NULL, 0, NULL, 0, NULL, 0, between), "plan");
    BETWEEN(spops_plan_measure(ctx, NULL, 0, between, NULL), "bytes");
    BETWEEN(spops_plan_measure(ctx, between, 2, NULL, NULL), "ints");
    BETWEEN(spops_plan_describe(ctx, (spops_plan *)coords, NULL, 0, odd), "num_ints");
    BETWEEN(spops_points_get_bounds_sync(ctx, points, odd, x), "lower");
    BETWEEN(spops_points_get_bounds_sync(ctx, points, (float *)(void *)memory, odd), "upper");
    BETWEEN(spops_coords_get_num_rows_sync(ctx, coords, between), "num_rows");
    co.box = odd;
    BETWEEN(spops_coords_reserve(ctx, 3, 1, 1, &co, (spops_coords **)(void *)memory), "box");
    mo.num_rows = odd;
    BETWEEN(spops_mvmr_execute(ctx, triplets, points, spops_matrix_dense(x, 3, 3, SPOPS_DTYPE_F32),
                               NULL, &mo, points),
            "num_rows");
    BETWEEN(spops_sparseconv_load_choices(ctx, "", 0, NULL, 0, between), "num_rows");
    BETWEEN(spops_sparseconv_save_choices(ctx, NULL, 0, NULL, 0, between), "bytes");
    BETWEEN(spops_sparseconv_save_choices(ctx, between, 1, NULL, 0, (size_t *)(void *)memory),
            "rows");
    BETWEEN(spops_nearest_create(ctx, between, (spops_nearest **)(void *)memory), "inputs");
    BETWEEN(spops_buckets_create(ctx, between, NULL, (spops_buckets **)(void *)memory), "cloud");
    BETWEEN(spops_triplets_reserve(ctx, between, NULL, (spops_triplets **)(void *)memory), "shape");
    BETWEEN(
        spops_bev_plan_create_from_ranks(ctx, odd, NULL, NULL, (spops_bev_plan **)(void *)memory),
        "shape");
    BETWEEN(spops_patches_create(ctx, 1, between, (spops_patches **)(void *)memory), "lists");
    BETWEEN(spops_weights_load(ctx, SPOPS_WEIGHTS_CANONICAL, between, 1, 1, 1, SPOPS_DTYPE_F32, x,
                               memory),
            "kernel");
    BETWEEN(spops_reduce_create(ctx, &desc, odd), "out");
#undef BETWEEN
    spops_triplets_destroy(triplets);
    spops_coords_destroy(coords);
    spops_context_destroy(ctx);
}

// Arrays that one call writes are apart.
Test(hostile, written_arrays_overlap)
{
    spops_context *ctx = open_context(NULL);
    const spops_bev_geometry g = geometry_of(&camera);
    spops_bev_plan_info info = spops_bev_plan_info_default();
    spops_bev_intervals_out intervals = spops_bev_intervals_out_default();
    spops_bev_ranks_out ranks = spops_bev_ranks_out_default();
    spops_bev_plan *plan = NULL;
    int32_t a[5][400], whole[2000];

    cr_assert_eq(spops_bev_plan_create(ctx, &g, NULL, &plan), SPOPS_STATUS_OK);
    cr_assert_eq(spops_bev_plan_get_info_sync(ctx, plan, &info), SPOPS_STATUS_OK);
    cr_assert(info.num_points > 1 && info.num_points <= 400 && info.num_intervals <= 100);
    intervals.num_points = info.num_points;
    intervals.num_intervals = info.num_intervals;
    intervals.indices = whole;
    intervals.intervals = whole + info.num_points - 1;
    memset(whole, 0x5a, sizeof whole);
    expect_refused(ctx, spops_bev_plan_get_intervals_sync(ctx, plan, &intervals),
                   "bev_plan_get_intervals_sync: intervals overlaps indices, expected separate "
                   "memory");
    for (int i = 0; i < 2000; ++i)
        cr_assert_eq(whole[i], 0x5a5a5a5a);
    ++intervals.intervals;
    cr_assert_eq(spops_bev_plan_get_intervals_sync(ctx, plan, &intervals), SPOPS_STATUS_OK);

    int32_t *to[5] = {a[0], a[1], a[2], a[3], a[4]};
    for (int i = 0; i < 5; ++i) {
        to[i] = a[(i + 1) % 5];
        ranks.num_points = info.num_points;
        ranks.num_intervals = info.num_intervals;
        ranks.ranks_depth = to[0];
        ranks.ranks_feat = to[1];
        ranks.ranks_bev = to[2];
        ranks.interval_starts = to[3];
        ranks.interval_lengths = to[4];
        cr_assert_eq(spops_bev_plan_get_ranks_sync(ctx, plan, &ranks),
                     SPOPS_STATUS_INVALID_ARGUMENT);
        to[i] = a[i];
    }
    spops_bev_plan_destroy(plan);
    spops_context_destroy(ctx);
}

// ---- Grids --------------------------------------------------------------------------------------

static spops_status devoxelize(spops_context *ctx, const spops_coords *coords, spops_matrix points,
                               double size, double origin, int64_t *num_terms)
{
    spops_devoxels_options options = spops_devoxels_options_default();
    spops_segments_info info = spops_segments_info_default();
    spops_devoxels *devoxels = NULL;
    for (int a = 0; a < 2; ++a) {
        options.size_m[a] = size;
        options.origin_m[a] = origin;
    }
    const spops_status status =
        spops_devoxels_create(ctx, coords, points, NULL, &options, &devoxels);
    cr_assert_eq(status == SPOPS_STATUS_OK, devoxels != NULL);
    if (devoxels != NULL)
        cr_assert_eq(spops_segments_get_info_sync(ctx, spops_devoxels_segments(devoxels), &info),
                     SPOPS_STATUS_OK);
    *num_terms = info.num_terms;
    spops_devoxels_destroy(devoxels);
    return status;
}

// A forgotten origin, or another size, once gave each point the features of somewhere else, or none.
Test(hostile, devoxels_of_another_grid)
{
    static const float xy[3][2] = {{100.2f, 100.2f}, {101.3f, 100.2f}, {103.1f, 102.7f}};
    static const uint8_t keep[3] = {1, 1, 1};
    spops_context *ctx = open_context(NULL);
    const spops_matrix points = spops_matrix_dense_const(xy, 3, 2, SPOPS_DTYPE_F32);
    spops_voxels_options options = spops_voxels_options_default();
    const spops_kernel_shape tile = spops_kernel_shape_cube(2, 2, 2, 1);
    const spops_kernel_shape wide = spops_kernel_shape_cube(2, 3, 2, 1);
    spops_voxels *voxels = NULL;
    spops_coords *derived[4] = {NULL, NULL, NULL, NULL};
    int64_t terms = 0;
    for (int a = 0; a < 2; ++a) {
        options.size_m[a] = 0.5;
        options.origin_m[a] = 100.0;
    }
    cr_assert_eq(spops_voxels_create(ctx, points, NULL, &options, &voxels), SPOPS_STATUS_OK);
    const spops_coords *coords = spops_voxels_coords(voxels);
    cr_assert_eq(devoxelize(ctx, coords, points, 0.0, 0.0, &terms), SPOPS_STATUS_OK);
    cr_assert_eq(terms, 3, "every point lies in a voxel");
    cr_assert_eq(devoxelize(ctx, coords, points, 0.5, 100.0, &terms), SPOPS_STATUS_OK);
    cr_assert_eq(terms, 3);
    expect_refused(ctx, devoxelize(ctx, coords, points, 0.5, 0.0, &terms),
                   "devoxels_create: origin_m[0] is 0, and the voxels of coords have 100");
    expect_refused(ctx, devoxelize(ctx, coords, points, 0.25, 100.0, &terms),
                   "devoxels_create: size_m[0] is 0.25, and the voxels of coords have 0.5");

    // What is made from the set has its grid, or twice its voxels; overlapping windows have none.
    cr_assert_eq(spops_coords_create_pruned(ctx, coords, keep, NULL, &derived[0]), SPOPS_STATUS_OK);
    cr_assert_eq(spops_coords_create_union(ctx, coords, derived[0], NULL, &derived[1]),
                 SPOPS_STATUS_OK);
    cr_assert_eq(spops_coords_create_downsampled(ctx, coords, &tile, NULL, &derived[2]),
                 SPOPS_STATUS_OK);
    cr_assert_eq(spops_coords_create_downsampled(ctx, coords, &wide, NULL, &derived[3]),
                 SPOPS_STATUS_OK);
    for (int i = 0; i < 3; ++i) {
        cr_assert_eq(devoxelize(ctx, derived[i], points, 0.0, 0.0, &terms), SPOPS_STATUS_OK);
        cr_assert_eq(terms, 3);
        cr_assert_eq(devoxelize(ctx, derived[i], points, i < 2 ? 0.5 : 1.0, 100.0, &terms),
                     SPOPS_STATUS_OK);
        cr_assert_eq(devoxelize(ctx, derived[i], points, i < 2 ? 1.0 : 0.5, 100.0, &terms),
                     SPOPS_STATUS_INVALID_ARGUMENT);
    }
    cr_assert_eq(devoxelize(ctx, derived[3], points, 1.0, 100.0, &terms), SPOPS_STATUS_OK);
    expect_refused(ctx, devoxelize(ctx, derived[3], points, 0.0, 0.0, &terms),
                   "devoxels_create: size_m[0] is 0, expected more than 0 on each of 2 axes");
    for (int i = 0; i < 4; ++i)
        spops_coords_destroy(derived[i]);
    spops_voxels_destroy(voxels);
    spops_context_destroy(ctx);
}
