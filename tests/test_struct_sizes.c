// SPDX-License-Identifier: Apache-2.0
// Structs that may grow: a shorter one than today's is read as if the rest were zero, or filled as
// far as it goes; a longer one, or one that forgot its size, is refused. And the same calls with a
// plan that lies elsewhere. Structs that operators read, and operators on another device, are those of
// test_structs_read.c.
#include <criterion/criterion.h>
#include <string.h>

#include "core/context.h"
#include "spops/spops.h"
#include "tests/support/reduce_cases.h"

#define ROWS 6

// Something of every kind, on the CPU.
typedef struct fixture {
    spops_context *ctx;
    spops_segments *segments;
    spops_coords *coords;
    spops_voxels *voxels;
    spops_kernel_map *map;
    spops_pyramid *pyramid;
    spops_bev_plan *bev;
    spops_triplets *triplets;
    spops_sparseconv *conv;
    spops_neighbors *neighbors;
    spops_patches *patches;
    spops_buckets *buckets;
    spops_point_pyramid *clouds;
} fixture;

static const int32_t offsets[] = {0, 2, 2, 5, 6};
static const int32_t rows[ROWS][4] = {{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, 1, 1},
                                      {0, 5, 1, 1}, {1, 0, 0, 0}, {1, 0, 0, 2}};
static const float points[ROWS][3] = {{0.5f, 0.5f, 0.5f}, {0.6f, 0.5f, 0.5f}, {1.5f, 0.5f, 0.5f},
                                      {9.5f, 0.5f, 2.5f}, {3.5f, 3.5f, 3.5f}, {0.5f, 0.2f, 0.5f}};
static const spops_coords_box box = {{0, -8, -8, -8, 0}, {3, 32, 32, 32, 0}};
static const spops_bev_shape bev_shape = {1, 1, 3, 2, 2, 3, 2, 1};
static const int32_t ranks_depth[] = {3, 7, 0}, ranks_feat[] = {3, 3, 0}, ranks_bev[] = {4, 4, 5};
static const int32_t starts[] = {0, 2}, lengths[] = {2, 1};
static const int32_t intervals[2][3] = {{0, 2, 4}, {2, 3, 5}};
static const spops_triplets_shape triplets_shape = {3, 3, 2, 3};
static const int32_t matrices[] = {0, 1, 0};
static int32_t written[5][8];

static spops_matrix points_matrix(void)
{
    return spops_matrix_dense_const(points, ROWS, 3, SPOPS_DTYPE_F32);
}

// ---- What calls read ----------------------------------------------------------------------------

// A struct that is good, and a call that reads it; what the call makes is destroyed.
static spops_context_options good_context(void)
{
    spops_context_options o = spops_context_options_default();
    o.backend = SPOPS_BACKEND_CPU;
    o.num_threads = 2;
    return o;
}
static spops_status read_context(fixture *f, const void *s)
{
    spops_context *made = NULL;
    const spops_status status = spops_context_create((const spops_context_options *)s, &made);
    (void)f;
    spops_context_destroy(made);
    return status;
}

static spops_voxels_options good_voxels(void)
{
    spops_voxels_options o = spops_voxels_options_default();
    for (int a = 0; a < 3; ++a)
        o.size_m[a] = 0.5;
    return o;
}
static spops_status read_voxels(fixture *f, const void *s)
{
    spops_voxels *made = NULL;
    const spops_status status =
        spops_voxels_create(f->ctx, points_matrix(), NULL, (const spops_voxels_options *)s, &made);
    spops_voxels_destroy(made);
    return status;
}

static spops_comm_options good_comm(void)
{
    spops_comm_options o = spops_comm_options_default();
    o.timeout_ms = 1000;
    return o;
}
static spops_status read_comm(fixture *f, const void *s)
{
    spops_comm_group *group = NULL;
    spops_comm *made = NULL;
    cr_assert_eq(spops_comm_group_create(1, &group), SPOPS_STATUS_OK);
    const spops_status status =
        spops_comm_create_threads(f->ctx, group, 0, (const spops_comm_options *)s, &made);
    spops_comm_destroy(made);
    spops_comm_group_destroy(group);
    return status;
}

static spops_bev_ranks good_ranks(void)
{
    const spops_bev_ranks r = {sizeof r, 3, 2, ranks_depth, ranks_feat, ranks_bev, starts, lengths};
    return r;
}
static spops_bev_intervals good_intervals(void)
{
    const spops_bev_intervals i = {sizeof i, 3, 2, ranks_depth, &intervals[0][0]};
    return i;
}
static spops_status read_intervals(fixture *f, const void *s)
{
    spops_bev_plan *made = NULL;
    const spops_status status = spops_bev_plan_create_from_intervals(
        f->ctx, &bev_shape, (const spops_bev_intervals *)s, NULL, &made);
    spops_bev_plan_destroy(made);
    return status;
}

static spops_bev_ranks_out good_ranks_out(void)
{
    const spops_bev_ranks_out r = {sizeof r,   3,          2,          written[0],
                                   written[1], written[2], written[3], written[4]};
    return r;
}
static spops_status read_ranks_out(fixture *f, const void *s)
{
    return spops_bev_plan_get_ranks_sync(f->ctx, f->bev, (const spops_bev_ranks_out *)s);
}

static spops_bev_intervals_out good_intervals_out(void)
{
    const spops_bev_intervals_out i = {sizeof i, 3, 2, written[0], written[1]};
    return i;
}
static spops_status read_intervals_out(fixture *f, const void *s)
{
    return spops_bev_plan_get_intervals_sync(f->ctx, f->bev, (const spops_bev_intervals_out *)s);
}

static spops_status read_desc(fixture *f, const void *s)
{
    spops_reduce id;
    return spops_reduce_create(f->ctx, (const spops_reduce_desc *)s, &id);
}

// ---- What calls fill ----------------------------------------------------------------------------

static spops_status fill_device_info(fixture *f, void *s)
{
    return spops_context_get_device_info(f->ctx, (spops_device_info *)s);
}
static spops_status fill_segments_info(fixture *f, void *s)
{
    return spops_segments_get_info_sync(f->ctx, f->segments, (spops_segments_info *)s);
}
static spops_status fill_segments_view(fixture *f, void *s)
{
    return spops_segments_get_view(f->ctx, f->segments, (spops_segments_view *)s);
}
static spops_status fill_traffic(fixture *f, void *s)
{
    return spops_segments_get_traffic_sync(f->ctx, f->segments, SPOPS_DTYPE_F32, 8, 1,
                                           (spops_traffic *)s);
}
static spops_status fill_coords_info(fixture *f, void *s)
{
    return spops_coords_get_info_sync(f->ctx, f->coords, (spops_coords_info *)s);
}
static spops_status fill_coords_view(fixture *f, void *s)
{
    return spops_coords_get_view(f->ctx, f->coords, (spops_coords_view *)s);
}
static spops_status fill_voxels_view(fixture *f, void *s)
{
    return spops_voxels_get_view(f->ctx, f->voxels, (spops_voxels_view *)s);
}
static spops_status fill_map_info(fixture *f, void *s)
{
    return spops_kernel_map_get_info_sync(f->ctx, f->map, (spops_kernel_map_info *)s);
}
static spops_status fill_map_view(fixture *f, void *s)
{
    return spops_kernel_map_get_view(f->ctx, f->map, (spops_kernel_map_view *)s);
}
static spops_status fill_pyramid_info(fixture *f, void *s)
{
    return spops_pyramid_get_info_sync(f->ctx, f->pyramid, (spops_pyramid_info *)s);
}
static spops_status fill_triplets_info(fixture *f, void *s)
{
    return spops_triplets_get_info_sync(f->ctx, f->triplets, (spops_triplets_info *)s);
}
static spops_status fill_bev_info(fixture *f, void *s)
{
    return spops_bev_plan_get_info_sync(f->ctx, f->bev, (spops_bev_plan_info *)s);
}

// ---- The rules ----------------------------------------------------------------------------------

static spops_neighbors_options good_neighbors(void)
{
    spops_neighbors_options o = spops_neighbors_options_default();
    o.radius_m = 2.0f;
    o.contents = SPOPS_NEIGHBORS_BY_TAP;
    return o;
}
static spops_buckets_options good_buckets(void)
{
    spops_buckets_options o = spops_buckets_options_default();
    o.bucket_rows = 4;
    return o;
}
static spops_status fill_buckets_view(fixture *f, void *s)
{
    return spops_buckets_get_view(f->ctx, f->buckets, (spops_buckets_view *)s);
}
static spops_status fill_buckets_info(fixture *f, void *s)
{
    return spops_buckets_get_info_sync(f->ctx, f->buckets, (spops_buckets_info *)s);
}

static spops_patches_capacity good_patches(void)
{
    spops_patches_capacity shape = spops_patches_capacity_default();
    shape.num_rows = shape.max_queries = ROWS;
    shape.max_patches = 4;
    shape.same = 1;
    return shape;
}
static spops_status read_patches(fixture *f, const void *s)
{
    spops_patches *made = NULL;
    const spops_status status =
        spops_patches_reserve(f->ctx, (const spops_patches_capacity *)s, &made);
    spops_patches_destroy(made);
    return status;
}
static spops_status attend(fixture *f, const spops_attention_options *o)
{
    static float q[ROWS * 6], out[ROWS * 6];
    const spops_matrix m = spops_matrix_dense(q, ROWS, 6, SPOPS_DTYPE_F32);
    cr_assert_eq(spops_context_reserve(f->ctx, 1 << 12), SPOPS_STATUS_OK);
    return spops_attention_execute(f->ctx, f->patches, m, m, m, o,
                                   spops_matrix_dense(out, ROWS, 6, SPOPS_DTYPE_F32), NULL);
}
static int32_t places[ROWS * 3];
static float biases[3];
static spops_attention_rotary good_rotary(void)
{
    spops_attention_rotary r = spops_attention_rotary_default();
    r.coords = spops_matrix_dense(places, ROWS, 3, SPOPS_DTYPE_I32);
    return r;
}
static spops_status read_rotary(fixture *f, const void *s)
{
    spops_attention_options o = spops_attention_options_default();
    o.rotary = (const spops_attention_rotary *)s;
    return attend(f, &o);
}
static spops_attention_bias good_bias(void)
{
    spops_attention_bias b = spops_attention_bias_default();
    b.coords = spops_matrix_dense(places, ROWS, 3, SPOPS_DTYPE_I32);
    b.table = spops_matrix_dense(biases, 3, 1, SPOPS_DTYPE_F32);
    return b;
}
static spops_status read_bias(fixture *f, const void *s)
{
    spops_attention_options o = spops_attention_options_default();
    o.bias = (const spops_attention_bias *)s;
    return attend(f, &o);
}

static spops_status fill_patches_view(fixture *f, void *s)
{
    return spops_patches_get_view(f->ctx, f->patches, (spops_patches_view *)s);
}
static spops_status fill_patches_info(fixture *f, void *s)
{
    return spops_patches_get_info_sync(f->ctx, f->patches, (spops_patches_info *)s);
}

static spops_status fill_neighbors_view(fixture *f, void *s)
{
    return spops_neighbors_get_view(f->ctx, f->neighbors, (spops_neighbors_view *)s);
}
static spops_status fill_neighbors_info(fixture *f, void *s)
{
    return spops_neighbors_get_info_sync(f->ctx, f->neighbors, (spops_neighbors_info *)s);
}

static spops_status fill_level_view(fixture *f, void *s)
{
    return spops_point_level_get_view(f->ctx, spops_point_pyramid_level(f->clouds, 0),
                                      (spops_point_level_view *)s);
}
static spops_status fill_level_info(fixture *f, void *s)
{
    return spops_point_level_get_info_sync(f->ctx, spops_point_pyramid_level(f->clouds, 0),
                                           (spops_point_level_info *)s);
}

static spops_point_pyramid_options good_clouds(void)
{
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    o.num_levels = 2;
    o.tap_size_m = 0.5f;
    return o;
}
static spops_status fill_clouds_info(fixture *f, void *s)
{
    return spops_point_pyramid_get_info_sync(f->ctx, f->clouds, (spops_point_pyramid_info *)s);
}

static fixture open_fixture(void)
{
    const spops_context_options options = good_context();
    const spops_voxels_options voxels = good_voxels();
    const spops_bev_ranks ranks = good_ranks();
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_neighbors_options near = good_neighbors();
    const spops_patches_capacity patches = good_patches();
    const spops_buckets_options buckets = good_buckets();
    const spops_point_pyramid_options clouds = good_clouds();
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    const spops_point_cloud cloud = {points_matrix(), NULL, 0};
    fixture f;
    memset(&f, 0, sizeof f);
    cr_assert_eq(spops_context_create(&options, &f.ctx), SPOPS_STATUS_OK);
    cr_assert_eq(spops_segments_create(f.ctx, 4, offsets, NULL, &f.segments), SPOPS_STATUS_OK);
    cr_assert_eq(spops_coords_create(f.ctx, 3, ROWS, &rows[0][0], NULL, &f.coords),
                 SPOPS_STATUS_OK);
    cr_assert_eq(spops_voxels_create(f.ctx, points_matrix(), NULL, &voxels, &f.voxels),
                 SPOPS_STATUS_OK);
    contents.contents = SPOPS_MAP_TABLE | SPOPS_MAP_PAIRS;
    cr_assert_eq(spops_kernel_map_create(f.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, f.coords, NULL,
                                         &contents, &f.map),
                 SPOPS_STATUS_OK);
    cr_assert_eq(spops_pyramid_create(f.ctx, f.coords, NULL, &f.pyramid), SPOPS_STATUS_OK);
    cr_assert_eq(spops_bev_plan_create_from_ranks(f.ctx, &bev_shape, &ranks, NULL, &f.bev),
                 SPOPS_STATUS_OK);
    cr_assert_eq(
        spops_triplets_create(f.ctx, &triplets_shape, NULL, NULL, matrices, NULL, &f.triplets),
        SPOPS_STATUS_OK);
    cr_assert_eq(spops_sparseconv_create(f.ctx, f.map, NULL, &f.conv), SPOPS_STATUS_OK);
    cr_assert_eq(spops_neighbors_create(f.ctx, NULL, &cloud, &near, &f.neighbors), SPOPS_STATUS_OK);
    cr_assert_eq(spops_patches_reserve(f.ctx, &patches, &f.patches), SPOPS_STATUS_OK);
    cr_assert_eq(spops_buckets_reserve(f.ctx, ROWS, 1, &buckets, &f.buckets), SPOPS_STATUS_OK);
    cr_assert_eq(spops_point_pyramid_create(f.ctx, &cloud, &clouds, &f.clouds), SPOPS_STATUS_OK);
    return f;
}

static void close_fixture(fixture *f)
{
    spops_point_pyramid_destroy(f->clouds);
    spops_neighbors_destroy(f->neighbors);
    spops_patches_destroy(f->patches);
    spops_buckets_destroy(f->buckets);
    spops_sparseconv_destroy(f->conv);
    spops_triplets_destroy(f->triplets);
    spops_bev_plan_destroy(f->bev);
    spops_pyramid_destroy(f->pyramid);
    spops_kernel_map_destroy(f->map);
    spops_voxels_destroy(f->voxels);
    spops_coords_destroy(f->coords);
    spops_segments_destroy(f->segments);
    spops_context_destroy(f->ctx);
}

typedef union room { // a struct and what lies after it
    size_t struct_size;
    unsigned char bytes[1024];
} room;

static void refuse_sizes(fixture *f, const char *name, const room *good, size_t size,
                         spops_status (*call)(fixture *f, const void *s))
{
    // Those below size end within a field, which may be a pointer.
    const size_t bad[] = {0,        4,        sizeof(size_t) - 1, size - 7, size - 4,
                          size - 1, size + 1, size + 8,           SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        room s = *good;
        s.struct_size = bad[i];
        cr_assert_eq(call(f, &s), SPOPS_STATUS_INVALID_ARGUMENT, "%s of %zu bytes", name, bad[i]);
    }
}

// What lies after a shorter struct is not the library's to read: here it is nonsense, where the
// longer struct that must read the same has zeros.
static void check_read(fixture *f, const char *name, const void *value, size_t size,
                       spops_status (*call)(fixture *f, const void *s))
{
    room good;
    memset(&good, 0, sizeof good);
    memcpy(&good, value, size);
    cr_assert_eq(good.struct_size, size, "%s_default() has no size", name);
    cr_assert_eq(call(f, &good), SPOPS_STATUS_OK, "%s: %s", name, spops_last_error(f->ctx));
    for (size_t part = sizeof(size_t); part < size; part += 8) {
        room cut = good, zeros = good;
        memset(cut.bytes + part, 0xee, sizeof cut - part);
        memset(zeros.bytes + part, 0, sizeof zeros - part);
        cut.struct_size = part;
        zeros.struct_size = size;
        const spops_status expected = call(f, &zeros), status = call(f, &cut);
        cr_assert_eq(status, expected, "%s cut at %zu: %s, expected %s", name, part,
                     spops_status_name(status), spops_status_name(expected));
    }
    refuse_sizes(f, name, &good, size, call);
}

#define CHECK_READ(type, value, call)                                                              \
    do {                                                                                           \
        const type value_of_it = (value);                                                          \
        check_read(&f, #type, &value_of_it, sizeof value_of_it, (call));                           \
    } while (0)

Test(struct_sizes, read)
{
    fixture f = open_fixture();
    CHECK_READ(spops_context_options, good_context(), read_context);
    CHECK_READ(spops_comm_options, good_comm(), read_comm);
    CHECK_READ(spops_bev_intervals, good_intervals(), read_intervals);
    CHECK_READ(spops_bev_ranks_out, good_ranks_out(), read_ranks_out);
    CHECK_READ(spops_bev_intervals_out, good_intervals_out(), read_intervals_out);
    CHECK_READ(spops_patches_capacity, good_patches(), read_patches);
    CHECK_READ(spops_attention_rotary, good_rotary(), read_rotary);
    CHECK_READ(spops_attention_bias, good_bias(), read_bias);
    CHECK_READ(spops_reduce_desc, test_plain_sum(), read_desc);
    close_fixture(&f);
}

// Options within options follow the same rule.
Test(struct_sizes, read_inside)
{
    fixture f = open_fixture();
    spops_voxels_options o = good_voxels();
    spops_coords_options coords = spops_coords_options_default();
    coords.box = &box;
    o.coords = &coords;
    cr_assert_eq(read_voxels(&f, &o), SPOPS_STATUS_OK, "%s", spops_last_error(f.ctx));
    coords.struct_size += 8;
    cr_assert_eq(read_voxels(&f, &o), SPOPS_STATUS_INVALID_ARGUMENT);
    close_fixture(&f);
}

static void check_filled(fixture *f, const char *name, const void *value, size_t size,
                         spops_status (*call)(fixture *f, void *s))
{
    room full, untouched;
    memset(&full, 0x5a, sizeof full);
    memset(&untouched, 0x5a, sizeof untouched);
    memcpy(&full, value, size);
    cr_assert_eq(full.struct_size, size, "%s_default() has no size", name);
    cr_assert_eq(call(f, &full), SPOPS_STATUS_OK, "%s: %s", name, spops_last_error(f->ctx));
    cr_assert_eq(full.struct_size, size, "%s: its size was written", name);
    cr_assert_eq(memcmp(full.bytes + size, untouched.bytes + size, sizeof full - size), 0,
                 "%s: written past its end", name);
    for (size_t part = sizeof(size_t); part < size; part += 8) {
        room cut = untouched;
        cut.struct_size = part;
        cr_assert_eq(call(f, &cut), SPOPS_STATUS_OK, "%s of %zu bytes: %s", name, part,
                     spops_last_error(f->ctx));
        cr_assert_eq(cut.struct_size, part, "%s: its size was written", name);
        cr_assert_eq(memcmp(cut.bytes + sizeof part, full.bytes + sizeof part, part - sizeof part),
                     0, "%s of %zu bytes is filled otherwise", name, part);
        cr_assert_eq(memcmp(cut.bytes + part, untouched.bytes + part, sizeof cut - part), 0,
                     "%s of %zu bytes: written past its end", name, part);
    }
    const size_t bad[] = {0,        4,        sizeof(size_t) - 1, size - 7, size - 4,
                          size - 1, size + 1, size + 8,           SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        room s = untouched;
        s.struct_size = bad[i];
        cr_assert_eq(call(f, &s), SPOPS_STATUS_INVALID_ARGUMENT, "%s of %zu bytes", name, bad[i]);
        cr_assert_eq(memcmp(s.bytes + sizeof(size_t), untouched.bytes + sizeof(size_t),
                            sizeof s - sizeof(size_t)),
                     0, "%s of %zu bytes was written", name, bad[i]);
    }
}

#define CHECK_FILLED(type, call)                                                                   \
    do {                                                                                           \
        const type empty = type##_default();                                                       \
        check_filled(&f, #type, &empty, sizeof empty, (call));                                     \
    } while (0)

Test(struct_sizes, filled)
{
    fixture f = open_fixture();
    CHECK_FILLED(spops_device_info, fill_device_info);
    CHECK_FILLED(spops_segments_info, fill_segments_info);
    CHECK_FILLED(spops_segments_view, fill_segments_view);
    CHECK_FILLED(spops_traffic, fill_traffic);
    CHECK_FILLED(spops_coords_info, fill_coords_info);
    CHECK_FILLED(spops_coords_view, fill_coords_view);
    CHECK_FILLED(spops_voxels_view, fill_voxels_view);
    CHECK_FILLED(spops_kernel_map_info, fill_map_info);
    CHECK_FILLED(spops_kernel_map_view, fill_map_view);
    CHECK_FILLED(spops_pyramid_info, fill_pyramid_info);
    CHECK_FILLED(spops_bev_plan_info, fill_bev_info);
    CHECK_FILLED(spops_triplets_info, fill_triplets_info);
    CHECK_FILLED(spops_neighbors_view, fill_neighbors_view);
    CHECK_FILLED(spops_neighbors_info, fill_neighbors_info);
    CHECK_FILLED(spops_point_level_view, fill_level_view);
    CHECK_FILLED(spops_point_level_info, fill_level_info);
    CHECK_FILLED(spops_point_pyramid_info, fill_clouds_info);
    CHECK_FILLED(spops_patches_view, fill_patches_view);
    CHECK_FILLED(spops_patches_info, fill_patches_info);
    CHECK_FILLED(spops_buckets_view, fill_buckets_view);
    CHECK_FILLED(spops_buckets_info, fill_buckets_info);
    close_fixture(&f);
}

// What a view or an info points to says how much of it there is.
Test(struct_sizes, pointed_to)
{
    fixture f = open_fixture();
    spops_kernel_map_view view = spops_kernel_map_view_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();
    cr_assert_eq(fill_map_view(&f, &view), SPOPS_STATUS_OK);
    cr_assert_eq(fill_map_info(&f, &info), SPOPS_STATUS_OK);
    cr_assert_eq(view.out->struct_size, sizeof *view.out);
    cr_assert_eq(view.in->struct_size, sizeof *view.in);
    cr_assert_eq(view.out->max_rows, ROWS);
    cr_assert_eq(view.in->max_rows, ROWS);
    cr_assert_eq(info.kernel->struct_size, sizeof *info.kernel);
    cr_assert_eq(info.kernel->size[2], 3);
    close_fixture(&f);
}

// ---- Plans that lie elsewhere -------------------------------------------------------------------

static void expect_elsewhere(const fixture *f, const char *name, spops_status status)
{
    const char *line = spops_last_error(f->ctx);
    cr_expect_eq(status, SPOPS_STATUS_INVALID_ARGUMENT, "%s: %s", name, spops_status_name(status));
    cr_expect_not_null(strstr(line, " lies on device 0, ctx runs on device 1"), "%s: %s", name,
                       line);
}

#define FILL_ELSEWHERE(type, call)                                                                 \
    do {                                                                                           \
        type empty = type##_default();                                                             \
        expect_elsewhere(&f, #call, (call)(&f, &empty));                                           \
    } while (0)

Test(struct_sizes, plans_of_another_device)
{
    const spops_context_options options = good_context();
    const spops_matrix m = points_matrix();
    const spops_point_cloud cloud = {m, NULL, 0};
    const spops_patch_lists lists = {0, places, NULL, NULL, NULL, 0};
    fixture here = open_fixture(), f = here;
    spops_pointconv *conv = NULL;
    spops_pool *pool = NULL;
    cr_assert_eq(spops_pointconv_create(here.ctx, here.neighbors, NULL, &conv), SPOPS_STATUS_OK);
    cr_assert_eq(spops_pool_create_global(here.ctx, here.coords, 4, NULL, &pool), SPOPS_STATUS_OK);
    cr_assert_eq(spops_context_create(&options, &f.ctx), SPOPS_STATUS_OK);
    f.ctx->info.device = 1;
#define CALL_ELSEWHERE(call, ...) expect_elsewhere(&f, #call, call(f.ctx, __VA_ARGS__))
    CALL_ELSEWHERE(spops_buckets_update, f.buckets, &cloud);
    CALL_ELSEWHERE(spops_patches_update, f.patches, NULL, &lists);
    CALL_ELSEWHERE(spops_patches_update_from_buckets, f.patches, f.buckets, NULL);
    CALL_ELSEWHERE(spops_neighbors_update, f.neighbors, NULL, &cloud);
    CALL_ELSEWHERE(spops_point_pyramid_update, f.clouds, &cloud);
    CALL_ELSEWHERE(spops_pointconv_update, conv);
    CALL_ELSEWHERE(spops_pool_update, pool);
    FILL_ELSEWHERE(spops_segments_info, fill_segments_info);
    FILL_ELSEWHERE(spops_segments_view, fill_segments_view);
    FILL_ELSEWHERE(spops_traffic, fill_traffic);
    FILL_ELSEWHERE(spops_coords_info, fill_coords_info);
    FILL_ELSEWHERE(spops_coords_view, fill_coords_view);
    FILL_ELSEWHERE(spops_voxels_view, fill_voxels_view);
    FILL_ELSEWHERE(spops_kernel_map_info, fill_map_info);
    FILL_ELSEWHERE(spops_kernel_map_view, fill_map_view);
    FILL_ELSEWHERE(spops_pyramid_info, fill_pyramid_info);
    FILL_ELSEWHERE(spops_bev_plan_info, fill_bev_info);
    FILL_ELSEWHERE(spops_triplets_info, fill_triplets_info);
    FILL_ELSEWHERE(spops_neighbors_view, fill_neighbors_view);
    FILL_ELSEWHERE(spops_neighbors_info, fill_neighbors_info);
    FILL_ELSEWHERE(spops_point_level_view, fill_level_view);
    FILL_ELSEWHERE(spops_point_level_info, fill_level_info);
    FILL_ELSEWHERE(spops_point_pyramid_info, fill_clouds_info);
    FILL_ELSEWHERE(spops_patches_view, fill_patches_view);
    FILL_ELSEWHERE(spops_patches_info, fill_patches_info);
    FILL_ELSEWHERE(spops_buckets_view, fill_buckets_view);
    FILL_ELSEWHERE(spops_buckets_info, fill_buckets_info);
    spops_context_destroy(f.ctx);
    spops_pool_destroy(pool);
    spops_pointconv_destroy(conv);
    close_fixture(&here);
}
