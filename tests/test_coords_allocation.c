// SPDX-License-Identifier: Apache-2.0
// Memory that runs out while sets, voxels and maps are made: the n-th request is refused, for each
// n until the call succeeds. Each failure is OUT_OF_MEMORY with a message, leaves the output NULL,
// frees what it took, and leaves the context usable.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"

// What the calls work on, made before memory runs out.
typedef struct setting {
    test_device d;
    cloud_rows cloud;
    int32_t *rows; // where the backend runs, as are all pointers below
    int64_t num_rows;
    float *points;
    uint8_t *keep;
    spops_coords *in, *fewer;
    spops_kernel_shape window, cube;
    spops_kernel_map *map;
    spops_neighbors *neighbors;
    spops_buckets *buckets;
    unsigned char *saved;
    size_t saved_bytes;
} setting;

typedef struct allocating_call {
    const char *name;
    spops_status (*call)(setting *s, spops_context *ctx, void **made);
    void (*destroy)(void *made);
} allocating_call;

static const spops_coords_box box = {{0, -500, -500, -500, 0}, {4, 500, 500, 500, 0}};

static spops_status create(setting *s, spops_context *ctx, void **made)
{
    spops_coords_options o = spops_coords_options_default();
    o.order = SPOPS_COORDS_ORDER_MORTON;
    o.duplicates = SPOPS_COORDS_DUPLICATES_MERGE; // there are some: made twice over
    return spops_coords_create(ctx, 3, s->num_rows, s->rows, &o, (spops_coords **)made);
}

static spops_status reserve(setting *s, spops_context *ctx, void **made)
{
    spops_coords_options o = spops_coords_options_default();
    o.box = &box;
    return spops_coords_reserve(ctx, 3, s->num_rows, s->num_rows, &o, (spops_coords **)made);
}

static spops_status create_down(setting *s, spops_context *ctx, void **made)
{
    return spops_coords_create_downsampled(ctx, s->in, &s->window, NULL, (spops_coords **)made);
}

static spops_status create_up(setting *s, spops_context *ctx, void **made)
{
    return spops_coords_create_upsampled(ctx, s->fewer, &s->window, NULL, (spops_coords **)made);
}

static spops_status create_union(setting *s, spops_context *ctx, void **made)
{
    return spops_coords_create_union(ctx, s->in, s->fewer, NULL, (spops_coords **)made);
}

static spops_status create_pruned(setting *s, spops_context *ctx, void **made)
{
    return spops_coords_create_pruned(ctx, s->in, s->keep, NULL, (spops_coords **)made);
}

static spops_voxels_options voxel_options(void)
{
    spops_voxels_options o = spops_voxels_options_default();
    o.size_m[0] = o.size_m[1] = o.size_m[2] = 0.25;
    o.points = SPOPS_VOXEL_POINTS_NEAREST;
    o.gradients = SPOPS_GRADIENTS_ALL;
    o.max_cols = 8;
    return o;
}

static spops_status create_voxels(setting *s, spops_context *ctx, void **made)
{
    const spops_voxels_options o = voxel_options();
    return spops_voxels_create(ctx, spops_matrix_dense(s->points, s->num_rows, 3, SPOPS_DTYPE_F32),
                               NULL, &o, (spops_voxels **)made);
}

static spops_status reserve_voxels(setting *s, spops_context *ctx, void **made)
{
    spops_coords_options coords = spops_coords_options_default();
    spops_voxels_options o = voxel_options();
    coords.box = &box;
    o.coords = &coords;
    return spops_voxels_reserve(ctx, 3, s->num_rows, s->num_rows, &o, (spops_voxels **)made);
}

static spops_devoxels_options devoxel_options(void)
{
    spops_devoxels_options o = spops_devoxels_options_default();
    o.size_m[0] = o.size_m[1] = o.size_m[2] = 0.25;
    o.interpolation = SPOPS_DEVOXELS_INTERPOLATION_LINEAR;
    o.gradients = SPOPS_GRADIENTS_LINEAR;
    return o;
}

static spops_status create_devoxels(setting *s, spops_context *ctx, void **made)
{
    const spops_devoxels_options o = devoxel_options();
    return spops_devoxels_create(ctx, s->in,
                                 spops_matrix_dense(s->points, s->num_rows, 3, SPOPS_DTYPE_F32),
                                 NULL, &o, (spops_devoxels **)made);
}

static spops_status reserve_devoxels(setting *s, spops_context *ctx, void **made)
{
    const spops_devoxels_options o = devoxel_options();
    return spops_devoxels_reserve(ctx, s->in, s->num_rows, &o, (spops_devoxels **)made);
}

static spops_kernel_map_options map_options(void)
{
    spops_kernel_map_options o = spops_kernel_map_options_default();
    o.contents = 31;
    o.max_pairs = 1000;
    return o;
}

static spops_status create_map(setting *s, spops_context *ctx, void **made)
{
    const spops_kernel_map_options o = map_options();
    return spops_kernel_map_create(ctx, SPOPS_MAP_CONVOLUTION, &s->window, s->in, s->fewer, &o,
                                   (spops_kernel_map **)made);
}

static spops_status create_lists(setting *s, spops_context *ctx, void **made)
{
    spops_kernel_map_options o = map_options();
    o.contents = SPOPS_MAP_CSR;
    return spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &s->cube, s->in, NULL, &o,
                                   (spops_kernel_map **)made);
}

static spops_status create_inverse(setting *s, spops_context *ctx, void **made)
{
    const spops_kernel_map_options o = map_options();
    return spops_kernel_map_create_inverse(ctx, s->map, &o, (spops_kernel_map **)made);
}

static spops_status reserve_map(setting *s, spops_context *ctx, void **made)
{
    const spops_kernel_map_options o = map_options();
    return spops_kernel_map_reserve(ctx, SPOPS_MAP_SUBMANIFOLD, &s->cube, s->in, NULL, &o,
                                    (spops_kernel_map **)made);
}

static spops_status load_map(setting *s, spops_context *ctx, void **made)
{
    return spops_kernel_map_load(ctx, s->in, s->fewer, s->saved, s->saved_bytes,
                                 (spops_kernel_map **)made);
}

static spops_status save_map(setting *s, spops_context *ctx, void **made)
{
    size_t bytes = 0;
    *made = NULL;
    return spops_kernel_map_save(ctx, s->map, s->in, s->fewer, s->saved, s->saved_bytes, &bytes);
}

static spops_pyramid_options pyramid_options(void)
{
    spops_pyramid_options o = spops_pyramid_options_default();
    o.num_levels = 2;
    return o;
}

static spops_status create_pyramid(setting *s, spops_context *ctx, void **made)
{
    const spops_pyramid_options o = pyramid_options();
    return spops_pyramid_create(ctx, s->in, &o, (spops_pyramid **)made);
}

static spops_status reserve_pyramid(setting *s, spops_context *ctx, void **made)
{
    const spops_pyramid_options o = pyramid_options();
    return spops_pyramid_reserve(ctx, s->in, &o, (spops_pyramid **)made);
}

static spops_status create_pool(setting *s, spops_context *ctx, void **made)
{
    return spops_pool_create(ctx, s->map, NULL, (spops_pool **)made);
}

static spops_status create_global_pool(setting *s, spops_context *ctx, void **made)
{
    return spops_pool_create_global(ctx, s->in, 10, NULL, (spops_pool **)made);
}

static spops_status create_conv(setting *s, spops_context *ctx, void **made)
{
    spops_sparseconv_options o = spops_sparseconv_options_default();
    o.backward = 1;
    o.quantized = 1;
    return spops_sparseconv_create(ctx, s->map, &o, (spops_sparseconv **)made);
}

// Buffers for two groupings.
static spops_status create_tuned_conv(setting *s, spops_context *ctx, void **made)
{
    const spops_conv_choice tuning[2] = {
        {SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, SPOPS_MATH_EXACT, 27, 4, 4, 1, 1,
         SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER, SPOPS_GROUPING_FIXED, 0, 0, 0, 0},
        {SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, SPOPS_MATH_EXACT, 27, 4, 8, 1, 1,
         SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER, SPOPS_GROUPING_SEPARATE, 0, 0, 0, 0}};
    spops_sparseconv_options o = spops_sparseconv_options_default();
    o.tuning = tuning;
    o.num_tuning = 2;
    return spops_sparseconv_create(ctx, s->map, &o, (spops_sparseconv **)made);
}

static void destroy_conv(void *made)
{
    spops_sparseconv_destroy((spops_sparseconv *)made);
}

static void destroy_coords(void *made)
{
    spops_coords_destroy((spops_coords *)made);
}

static void destroy_voxels(void *made)
{
    spops_voxels_destroy((spops_voxels *)made);
}

static void destroy_devoxels(void *made)
{
    spops_devoxels_destroy((spops_devoxels *)made);
}

static void destroy_map(void *made)
{
    spops_kernel_map_destroy((spops_kernel_map *)made);
}

static void destroy_pyramid(void *made)
{
    spops_pyramid_destroy((spops_pyramid *)made);
}

static void destroy_pool(void *made)
{
    spops_pool_destroy((spops_pool *)made);
}

static spops_point_cloud cloud_of(const setting *s)
{
    const spops_point_cloud cloud = {spops_matrix_dense(s->points, s->num_rows, 3, SPOPS_DTYPE_F32),
                                     NULL, 0};
    return cloud;
}

static spops_neighbors_options search_options(void)
{
    spops_neighbors_options o = spops_neighbors_options_default();
    o.radius_m = 0.5f;
    o.taps = 3;
    o.tap_size_m = 0.3f;
    o.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    return o;
}

static spops_status create_neighbors(setting *s, spops_context *ctx, void **made)
{
    const spops_point_cloud cloud = cloud_of(s);
    const spops_neighbors_options o = search_options();
    return spops_neighbors_create(ctx, &cloud, &cloud, &o, (spops_neighbors **)made);
}

static spops_status reserve_neighbors(setting *s, spops_context *ctx, void **made)
{
    const spops_neighbors_capacity shape = {0, s->num_rows, 1, 1000};
    const spops_neighbors_options o = search_options();
    return spops_neighbors_reserve(ctx, &shape, 1, &o, (spops_neighbors **)made);
}

static void destroy_neighbors(void *made)
{
    spops_neighbors_destroy((spops_neighbors *)made);
}

static spops_status create_nearest(setting *s, spops_context *ctx, void **made)
{
    const spops_point_cloud cloud = cloud_of(s);
    return spops_nearest_create(ctx, &cloud, (spops_nearest **)made);
}

static void destroy_nearest(void *made)
{
    spops_nearest_destroy((spops_nearest *)made);
}

static spops_status create_interpolation(setting *s, spops_context *ctx, void **made)
{
    const spops_point_cloud cloud = cloud_of(s);
    return spops_interpolation_create(ctx, &cloud, &cloud, NULL, (spops_interpolation **)made);
}

static void destroy_interpolation(void *made)
{
    spops_interpolation_destroy((spops_interpolation *)made);
}

static spops_status create_point_pyramid(setting *s, spops_context *ctx, void **made)
{
    const spops_point_cloud cloud = cloud_of(s);
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    o.num_levels = 2;
    o.tap_size_m = 0.3f;
    return spops_point_pyramid_create(ctx, &cloud, &o, (spops_point_pyramid **)made);
}

static spops_status reserve_point_pyramid(setting *s, spops_context *ctx, void **made)
{
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    spops_point_pyramid_capacity shape = {.max_rows = {s->num_rows}, .num_samples = 1};
    o.num_levels = 2;
    o.tap_size_m = 0.3f;
    for (int a = 0; a < 3; ++a)
        shape.lower_m[a] = -100.0, shape.upper_m[a] = 100.0;
    return spops_point_pyramid_reserve(ctx, &shape, &o, (spops_point_pyramid **)made);
}

static void destroy_point_pyramid(void *made)
{
    spops_point_pyramid_destroy((spops_point_pyramid *)made);
}

static spops_status create_pointconv(setting *s, spops_context *ctx, void **made)
{
    spops_pointconv_options o = spops_pointconv_options_default();
    o.backward = 1;
    o.max_in_channels = o.max_out_channels = 8;
    return spops_pointconv_create(ctx, s->neighbors, &o, (spops_pointconv **)made);
}

static void destroy_pointconv(void *made)
{
    spops_pointconv_destroy((spops_pointconv *)made);
}

static spops_status create_buckets(setting *s, spops_context *ctx, void **made)
{
    const spops_point_cloud cloud = cloud_of(s);
    spops_buckets_options o = spops_buckets_options_default();
    o.bucket_rows = 16;
    return spops_buckets_create(ctx, &cloud, &o, (spops_buckets **)made);
}

static spops_status reserve_buckets(setting *s, spops_context *ctx, void **made)
{
    spops_buckets_options o = spops_buckets_options_default();
    o.bucket_rows = 16;
    return spops_buckets_reserve(ctx, s->num_rows, 3, &o, (spops_buckets **)made);
}

static void destroy_buckets(void *made)
{
    spops_buckets_destroy((spops_buckets *)made);
}

static spops_status pool_buckets(setting *s, spops_context *ctx, void **made)
{
    spops_pool_options o = spops_pool_options_default();
    o.gradients = SPOPS_GRADIENTS_ALL;
    return spops_pool_create_from_buckets(ctx, s->buckets, 2, &o, (spops_pool **)made);
}

static spops_status order_patches(setting *s, spops_context *ctx, void **made)
{
    const spops_point_cloud cloud = cloud_of(s);
    spops_patch_order o = spops_patch_order_default();
    o.patch_rows = 16;
    o.borrow = 1;
    return spops_patches_create_from_order(ctx, &cloud, &o, (spops_patches **)made);
}

static spops_status window_patches(setting *s, spops_context *ctx, void **made)
{
    return spops_patches_create_from_buckets(ctx, s->buckets, NULL, (spops_patches **)made);
}

static spops_status list_patches(setting *s, spops_context *ctx, void **made)
{
    spops_buckets_view view = spops_buckets_view_default();
    spops_patch_lists lists = {0};
    const spops_status status = spops_buckets_get_view(ctx, s->buckets, &view);
    if (status != SPOPS_STATUS_OK) return status;
    lists.num_patches = view.max_buckets;
    lists.query_offsets = lists.key_offsets = view.offsets;
    lists.query_rows = view.rows;
    return spops_patches_create(ctx, s->num_rows, &lists, (spops_patches **)made);
}

static spops_status reserve_patches(setting *s, spops_context *ctx, void **made)
{
    spops_patches_capacity shape = spops_patches_capacity_default();
    shape.num_rows = shape.max_queries = shape.max_keys = s->num_rows;
    shape.max_patches = shape.max_samples = 9;
    return spops_patches_reserve(ctx, &shape, (spops_patches **)made);
}

static void destroy_patches(void *made)
{
    spops_patches_destroy((spops_patches *)made);
}

static const allocating_call calls[] = {
    {"coords_create", create, destroy_coords},
    {"coords_reserve", reserve, destroy_coords},
    {"coords_create_downsampled", create_down, destroy_coords},
    {"coords_create_upsampled", create_up, destroy_coords},
    {"coords_create_union", create_union, destroy_coords},
    {"coords_create_pruned", create_pruned, destroy_coords},
    {"voxels_create", create_voxels, destroy_voxels},
    {"voxels_reserve", reserve_voxels, destroy_voxels},
    {"devoxels_create", create_devoxels, destroy_devoxels},
    {"devoxels_reserve", reserve_devoxels, destroy_devoxels},
    {"kernel_map_create", create_map, destroy_map},
    {"kernel_map_create (lists)", create_lists, destroy_map},
    {"kernel_map_create_inverse", create_inverse, destroy_map},
    {"kernel_map_reserve", reserve_map, destroy_map},
    {"kernel_map_load", load_map, destroy_map},
    {"kernel_map_save", save_map, NULL},
    {"sparseconv_create", create_conv, destroy_conv},
    {"sparseconv_create (tuned)", create_tuned_conv, destroy_conv},
    {"pool_create", create_pool, destroy_pool},
    {"pool_create_global", create_global_pool, destroy_pool},
    {"pyramid_create", create_pyramid, destroy_pyramid},
    {"pyramid_reserve", reserve_pyramid, destroy_pyramid},
    {"neighbors_create", create_neighbors, destroy_neighbors},
    {"neighbors_reserve", reserve_neighbors, destroy_neighbors},
    {"nearest_create", create_nearest, destroy_nearest},
    {"interpolation_create", create_interpolation, destroy_interpolation},
    {"point_pyramid_create", create_point_pyramid, destroy_point_pyramid},
    {"point_pyramid_reserve", reserve_point_pyramid, destroy_point_pyramid},
    {"pointconv_create", create_pointconv, destroy_pointconv},
    {"buckets_create", create_buckets, destroy_buckets},
    {"buckets_reserve", reserve_buckets, destroy_buckets},
    {"pool_create_from_buckets", pool_buckets, destroy_pool},
    {"patches_create", list_patches, destroy_patches},
    {"patches_create_from_order", order_patches, destroy_patches},
    {"patches_create_from_buckets", window_patches, destroy_patches},
    {"patches_reserve", reserve_patches, destroy_patches},
};

static void make_setting(setting *s)
{
    test_rng rng = test_rng_make(801);
    test_device *d = &s->d;
    s->cloud = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    const int64_t n = s->cloud.n, columns = 4;
    int32_t *twice = (int32_t *)calloc((size_t)(2 * n * columns), sizeof *twice);
    float *points = (float *)calloc((size_t)(6 * n), sizeof *points);
    uint8_t *keep = (uint8_t *)calloc((size_t)n, 1);
    memcpy(twice, s->cloud.rows, (size_t)(n * columns) * sizeof *twice);
    memcpy(twice + n * columns, s->cloud.rows, (size_t)(n * columns) * sizeof *twice);
    for (int64_t i = 0; i < 6 * n; ++i)
        points[i] = (float)(4.0 * test_rng_unit(&rng) - 2.0);
    for (int64_t i = 0; i < n; i += 3)
        keep[i] = 1;
    s->num_rows = 2 * n;
    s->rows = test_upload_i32(d, twice, 2 * n * columns);
    s->points = test_upload_f32(d, points, 6 * n);
    s->keep = test_upload_u8(d, keep, n);
    free(twice), free(points), free(keep);
    s->cube = spops_kernel_shape_cube(3, 3, 1, 1);
    s->window = spops_kernel_shape_cube(3, 3, 2, 1);
    test_expect_ok(d->ctx, spops_coords_create(d->ctx, 3, n, s->rows, NULL, &s->in), "in");
    test_expect_ok(d->ctx, create_down(s, d->ctx, (void **)&s->fewer), "fewer");
    test_expect_ok(d->ctx, create_map(s, d->ctx, (void **)&s->map), "map");
    test_expect_ok(d->ctx, create_neighbors(s, d->ctx, (void **)&s->neighbors), "neighbours");
    test_expect_ok(d->ctx, create_buckets(s, d->ctx, (void **)&s->buckets), "buckets");
    test_expect_ok(d->ctx,
                   spops_kernel_map_save(d->ctx, s->map, s->in, s->fewer, NULL, 0, &s->saved_bytes),
                   "size");
    s->saved = (unsigned char *)malloc(s->saved_bytes);
    test_expect_ok(d->ctx,
                   spops_kernel_map_save(d->ctx, s->map, s->in, s->fewer, s->saved, s->saved_bytes,
                                         &s->saved_bytes),
                   "save");
}

static void free_setting(setting *s)
{
    spops_neighbors_destroy(s->neighbors);
    spops_buckets_destroy(s->buckets);
    spops_kernel_map_destroy(s->map);
    spops_coords_destroy(s->in), spops_coords_destroy(s->fewer);
    test_free(&s->d, s->rows), test_free(&s->d, s->points), test_free(&s->d, s->keep);
    cloud_free(&s->cloud);
    free(s->saved);
}

static void check_call(setting *s, const allocating_call *call)
{
    checked_alloc *memory = &s->d.memory;
    int num_served = 0; // in spite of a request that was refused
    for (int64_t nth = 1;; ++nth) {
        spops_context *ctx = test_context(&s->d, 1);
        void *made = (void *)16;
        const int64_t live = memory->live;
        char what[128];
        (void)snprintf(what, sizeof what, "%s, request %lld", call->name, (long long)nth);
        cr_assert(nth < 200, "%s: it never succeeds", call->name);
        memory->fail_at = memory->requests + nth;
        const spops_status status = call->call(s, ctx, &made);
        const bool reached = memory->requests >= memory->fail_at;
        memory->fail_at = 0;
        if (!reached) {
            test_expect_ok(ctx, status, what);
            cr_assert(nth > 1, "%s asks for no memory", call->name);
            if (call->destroy != NULL) call->destroy(made);
            spops_context_destroy(ctx);
            return;
        }
        // Scratch that cannot grow by half is asked for once more, as it is needed: no failure.
        if (status == SPOPS_STATUS_OK && ++num_served <= 3) {
            if (call->destroy != NULL) call->destroy(made);
            spops_context_destroy(ctx);
            checked_alloc_check(memory, what);
            continue;
        }
        test_expect(ctx, status, SPOPS_STATUS_OUT_OF_MEMORY, " memory", what);
        cr_assert(made == NULL, "%s: the output is not NULL", what);
        // Scratch may stay with the context; and the context still serves.
        cr_assert(memory->live <= live + 3, "%s: %lld blocks leaked", what,
                  (long long)(memory->live - live));
        test_expect_ok(ctx, call->call(s, ctx, &made), what);
        if (call->destroy != NULL) call->destroy(made);
        spops_context_destroy(ctx);
        checked_alloc_check(memory, what);
    }
}

ParameterizedTestParameters(coords_allocation, fails_cleanly)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, coords_allocation, fails_cleanly)
{
    setting s;
    memset(&s, 0, sizeof s);
    if (!test_open(&s.d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    make_setting(&s);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i)
        check_call(&s, &calls[i]);
    free_setting(&s);
    test_close(&s.d);
}

// Calls on the stream ask for nothing at all.
ParameterizedTestParameters(coords_allocation, set_allocates_nothing)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, coords_allocation, set_allocates_nothing)
{
    setting s;
    memset(&s, 0, sizeof s);
    if (!test_open(&s.d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    make_setting(&s);
    test_device *d = &s.d;
    spops_coords_options o = spops_coords_options_default();
    spops_voxels_options vo = voxel_options();
    spops_devoxels_options po = devoxel_options();
    spops_kernel_map_options mo = map_options();
    spops_coords *in = NULL, *out = NULL;
    spops_voxels *voxels = NULL;
    spops_devoxels *devoxels = NULL;
    spops_kernel_map *flat = NULL, *down = NULL;
    o.box = &box;
    vo.coords = &o;
    const int64_t n = s.num_rows;
    const spops_matrix points = spops_matrix_dense(s.points, n, 3, SPOPS_DTYPE_F32);
    int32_t *num = test_upload_i32(d, (int32_t[]){(int32_t)n}, 1);
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, n, n, &o, &in), "in");
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, n, 8 * n, &o, &out), "out");
    test_expect_ok(d->ctx, spops_voxels_reserve(d->ctx, 3, n, n, &vo, &voxels), "voxels");
    test_expect_ok(d->ctx, spops_devoxels_reserve(d->ctx, in, n, &po, &devoxels), "devoxels");
    mo.max_pairs = 40 * n;
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, SPOPS_MAP_SUBMANIFOLD, &s.cube, in, NULL, &mo, &flat),
        "flat");
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, SPOPS_MAP_CONVOLUTION, &s.window, in, out, &mo, &down),
        "down");
    const int64_t requests = d->memory.requests;
    test_expect_ok(d->ctx, spops_coords_update(d->ctx, in, num, s.rows), "set");
    test_expect_ok(d->ctx, spops_coords_update_downsampled(d->ctx, out, in, &s.window), "down");
    test_expect_ok(d->ctx, spops_voxels_update(d->ctx, voxels, num, points, NULL), "voxels");
    test_expect_ok(d->ctx, spops_devoxels_update(d->ctx, devoxels, in, num, points, NULL),
                   "devoxels");
    test_expect_ok(d->ctx, spops_kernel_map_update(d->ctx, flat, in, NULL), "flat");
    test_expect_ok(d->ctx, spops_kernel_map_update(d->ctx, down, in, out), "down");
    test_wait(d);
    cr_assert(d->memory.requests == requests, "%lld requests for memory",
              (long long)(d->memory.requests - requests));
    test_free(d, num);
    spops_kernel_map_destroy(flat), spops_kernel_map_destroy(down);
    spops_devoxels_destroy(devoxels);
    spops_voxels_destroy(voxels);
    spops_coords_destroy(in), spops_coords_destroy(out);
    free_setting(&s);
    test_close(&s.d);
}
