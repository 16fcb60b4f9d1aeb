// SPDX-License-Identifier: Apache-2.0
// Coarser clouds, made of voxels and the plans that these bring; and interpolation between clouds.
#include "spops/point_levels.h"

#include <math.h>
#include <string.h>

#include "coords/coords.h"
#include "core/plan.h"
#include "points/neighbors.h"
#include "spops/voxels.h"

// ---- One level ----------------------------------------------------------------------------------

struct spops_point_level {
    spops_plan base;
    bool mean;
    spops_voxels *voxels;
    spops_voxels_view view;
    const int32_t *num_rows; // [1] of the cloud, in use
    spops_segments *all;     // NULL: the voxels' segments have all points
    spops_point_cloud cloud;
    int64_t num_fine;
    // Of a level that is refilled: the samples of fine points, and how many points are in use; the
    // second number is that of all.
    int32_t *samples, *num_points;
};

// Fields of a description.
enum { MAX_FINE, MAX_COARSE, NUM_SAMPLES, NUM_LEVEL_FIELDS };

// What voxels call what a level was given.
static const char *const level_names[][2] = {{"points", "fine->points"},
                                             {"size_m[0]", "size_m"},
                                             {"max_points", "capacity->max_fine"},
                                             {"max_voxels", "capacity->max_coarse"},
                                             {NULL, NULL}};

static spops_status read_level_options(spops_context *ctx, const char *call,
                                       const spops_point_level_options *given,
                                       spops_point_level_options *o)
{
    memset(o, 0, sizeof *o);
    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    SPOPS_TRY(spops_check_reserved(ctx, call, o->reserved));
    SPOPS_REQUIRE(ctx, (int)o->keep >= 0 && o->keep <= SPOPS_POINT_KEEP_MEAN,
                  "%s: keep is %d, expected 0 to %d", call, (int)o->keep,
                  (int)SPOPS_POINT_KEEP_MEAN);
    SPOPS_REQUIRE(ctx, isfinite(o->size_m) && o->size_m > 0.0,
                  "%s: size_m is %g, expected more than 0", call, o->size_m);
    for (int a = 0; a < 3; ++a)
        SPOPS_REQUIRE(ctx, isfinite(o->origin_m[a]),
                      "%s: origin_m[%d] is %g, expected a finite number", call, a, o->origin_m[a]);
    SPOPS_TRY(spops_check_gradients(ctx, call, o->gradients));
    return spops_check_max_cols(ctx, call, &o->max_cols);
}

// How the voxels of a level are made; coords outlives the options.
static spops_voxels_options voxels_options(const spops_point_level_options *o,
                                           spops_coords_options *coords)
{
    static const spops_voxel_points points[] = {SPOPS_VOXEL_POINTS_NEAREST,
                                                SPOPS_VOXEL_POINTS_FIRST, SPOPS_VOXEL_POINTS_RANDOM,
                                                SPOPS_VOXEL_POINTS_ALL};
    spops_voxels_options options = spops_voxels_options_default();

    *coords = spops_coords_options_default();
    coords->order = SPOPS_COORDS_ORDER_LEXICOGRAPHIC;
    options.coords = coords;
    for (int a = 0; a < 3; ++a) {
        options.size_m[a] = o->size_m;
        options.origin_m[a] = o->origin_m[a];
    }
    options.points = points[o->keep];
    options.seed = o->seed;
    options.gradients = o->gradients;
    options.max_cols = o->max_cols;
    return options;
}

// Voxels of a cloud whose samples are batches.
static spops_status make_voxels(spops_context *ctx, const spops_point_cloud *fine,
                                const spops_point_level_options *o, spops_voxels **voxels)
{
    spops_coords_options coords;
    const spops_voxels_options options = voxels_options(o, &coords);
    spops_status status = SPOPS_STATUS_OK;
    const size_t bytes = (size_t)(fine->points.rows + 1) * sizeof(int32_t);
    void *batch = NULL;

    if (fine->offsets != NULL) {
        spops_cloud_samples_args args = {.cloud = fine};
        SPOPS_TRY(spops_backend_alloc(ctx, bytes, &batch));
        args.samples = (int32_t *)batch;
        args.num_rows = args.samples + fine->points.rows;
        SPOPS_TRY_GOTO(ctx->backend->cloud_samples(ctx, &args), status, done);
    }
    status = spops_voxels_create(ctx, fine->points, batch, &options, voxels);

done:
    spops_backend_free(ctx, batch, bytes);
    return status;
}

static void carve_block(spops_point_level *level, int64_t rows, int64_t num_samples,
                        spops_carver *c)
{
    float *points = spops_carve(c, rows, 3, sizeof *points);
    level->cloud.points = spops_matrix_dense(points, rows, 3, SPOPS_DTYPE_F32);
    level->cloud.num_samples = num_samples;
    level->cloud.offsets =
        num_samples > 0 ? spops_carve(c, num_samples + 1, 1, sizeof(int32_t)) : NULL;
    if (!level->base.refillable) return;
    level->samples = spops_carve(c, level->num_fine, 1, sizeof *level->samples);
    level->num_points = spops_carve(c, 2, 1, sizeof *level->num_points);
}

// Memory of a level that has its voxels, of which there are so many.
static spops_status alloc_block(spops_context *ctx, spops_point_level *level, int64_t rows,
                                int64_t num_samples)
{
    spops_carver carver = {NULL, 0};
    level->base.fields[MAX_FINE] = level->num_fine;
    level->base.fields[MAX_COARSE] = rows;
    level->base.fields[NUM_SAMPLES] = num_samples;
    carve_block(level, rows, num_samples, &carver);
    SPOPS_TRY(spops_backend_alloc(ctx, carver.used, &level->base.block));
    level->base.block_bytes = carver.used;
    carver = (spops_carver){level->base.block, 0};
    carve_block(level, rows, num_samples, &carver);
    return SPOPS_STATUS_OK;
}

// Points and offsets of the coarser cloud, from the voxels.
static spops_status enqueue_cloud(spops_context *ctx, const spops_point_cloud *fine,
                                  const spops_point_level *level)
{
    spops_coords_view view = spops_coords_view_default();

    SPOPS_TRY(spops_coords_get_view(ctx, spops_voxels_coords(level->voxels), &view));
    if (level->cloud.offsets != NULL) {
        const spops_cloud_offsets_args args = {.rows = view.rows,
                                               .num_rows = view.num_rows,
                                               .num_samples = level->cloud.num_samples,
                                               .columns = 4,
                                               .offsets =
                                                   (int32_t *)(uintptr_t)level->cloud.offsets};
        SPOPS_TRY(ctx->backend->cloud_offsets(ctx, &args));
    }
    if (level->cloud.points.rows == 0) return SPOPS_STATUS_OK;
    // A sum of one row is that row.
    return spops_segreduce_execute(ctx, spops_voxels_segments(level->voxels),
                                   level->mean ? SPOPS_REDUCE_MEAN : SPOPS_REDUCE_SUM, fine->points,
                                   NULL, level->cloud.points, NULL);
}

// A plan of all points of a voxel, where the voxels' own has those that were kept.
static spops_status make_all(spops_context *ctx, const spops_point_level_options *o,
                             spops_point_level *level)
{
    const int64_t rows = level->cloud.points.rows;
    spops_segments_options options = spops_segments_options_default();
    if (level->mean) return SPOPS_STATUS_OK;
    options.gradients = o->gradients;
    options.max_cols = o->max_cols;
    options.num_rows = level->num_fine;
    if (level->base.refillable)
        return spops_segments_reserve(ctx, rows, level->num_fine, &options, &level->all);
    return spops_segments_create_from_keys(ctx, rows, level->num_fine, level->view.point_voxel,
                                           SPOPS_KEYS_UNSORTED, &options, &level->all);
}

// What views of a level need of its voxels.
static spops_status show_voxels(spops_context *ctx, spops_point_level *level)
{
    spops_coords_view coords = spops_coords_view_default();
    level->view = spops_voxels_view_default();
    SPOPS_TRY(spops_voxels_get_view(ctx, level->voxels, &level->view));
    SPOPS_TRY(spops_coords_get_view(ctx, spops_voxels_coords(level->voxels), &coords));
    level->num_rows = coords.num_rows;
    return SPOPS_STATUS_OK;
}

spops_status spops_point_level_create(spops_context *ctx, const spops_point_cloud *fine,
                                      const spops_point_level_options *given,
                                      spops_point_level **out)
{
    static const char call[] = "point_level_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_point_level_options o;
    spops_point_level *level = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, level_names);
    SPOPS_REQUIRE_SLOT(ctx, call, cloud_samples);
    SPOPS_TRY(spops_cloud_check(ctx, call, "fine", fine));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "fine", fine));
    SPOPS_TRY(read_level_options(ctx, call, given, &o));
    level = spops_plan_alloc(ctx, SPOPS_PLAN_POINT_LEVEL);
    if (level == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    level->mean = o.keep == SPOPS_POINT_KEEP_MEAN;
    level->num_fine = fine->points.rows;
    SPOPS_TRY_GOTO(make_voxels(ctx, fine, &o, &level->voxels), status, fail);
    SPOPS_TRY_GOTO(show_voxels(ctx, level), status, fail);
    SPOPS_TRY_GOTO(alloc_block(ctx, level, level->view.max_voxels, fine->num_samples), status,
                   fail);
    SPOPS_TRY_GOTO(enqueue_cloud(ctx, fine, level), status, fail);
    SPOPS_TRY_GOTO(make_all(ctx, &o, level), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    *out = level;
    return SPOPS_STATUS_OK;

fail:
    spops_point_level_destroy(level);
    return status;
}

// The box of the voxels that meet the range, of so many batches.
static spops_status read_range(spops_context *ctx, const char *call,
                               const spops_point_level_capacity *capacity,
                               const spops_point_level_options *o, spops_coords_box *box)
{
    memset(box, 0, sizeof *box);
    box->upper[0] = (int32_t)(capacity->num_samples - 1);
    for (int a = 0; a < 3; ++a) {
        const double lower = floor((capacity->lower_m[a] - o->origin_m[a]) / o->size_m);
        const double upper = floor((capacity->upper_m[a] - o->origin_m[a]) / o->size_m);
        SPOPS_REQUIRE(ctx, capacity->lower_m[a] <= capacity->upper_m[a],
                      "%s: capacity->lower_m[%d] is %g, expected at most upper_m[%d] = %g", call, a,
                      capacity->lower_m[a], a, capacity->upper_m[a]);
        SPOPS_REQUIRE(ctx, lower >= (double)INT32_MIN && upper <= (double)INT32_MAX,
                      "%s: capacity's range of axis %d is voxels %.15g to %.15g, expected 32 bits",
                      call, a, lower, upper);
        box->lower[1 + a] = (int32_t)lower;
        box->upper[1 + a] = (int32_t)upper;
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_point_level_reserve(spops_context *ctx,
                                       const spops_point_level_capacity *capacity,
                                       const spops_point_level_options *given,
                                       spops_point_level **out)
{
    static const char call[] = "point_level_reserve";
    spops_status status = SPOPS_STATUS_OK;
    spops_point_level_options o;
    spops_point_level *level = NULL;
    spops_coords_options coords;
    spops_voxels_options options;
    spops_coords_box box;
    int32_t num_points[2];

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, level_names);
    SPOPS_REQUIRE_SLOT(ctx, call, cloud_samples);
    SPOPS_TRY(
        spops_check_object(ctx, call, "capacity", capacity, _Alignof(spops_point_level_capacity)));
    SPOPS_TRY(spops_check_count(ctx, call, "capacity->max_fine", capacity->max_fine));
    SPOPS_TRY(spops_check_count(ctx, call, "capacity->max_coarse", capacity->max_coarse));
    SPOPS_TRY(spops_check_count(ctx, call, "capacity->num_samples", capacity->num_samples));
    SPOPS_REQUIRE(ctx, capacity->num_samples >= 1,
                  "%s: capacity->num_samples is 0, expected 1 or more", call);
    SPOPS_TRY(read_level_options(ctx, call, given, &o));
    SPOPS_TRY(read_range(ctx, call, capacity, &o, &box));
    level = spops_plan_alloc(ctx, SPOPS_PLAN_POINT_LEVEL);
    if (level == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    level->mean = o.keep == SPOPS_POINT_KEEP_MEAN;
    level->base.refillable = true;
    level->num_fine = capacity->max_fine;
    options = voxels_options(&o, &coords);
    coords.box = &box;
    SPOPS_TRY_GOTO(spops_voxels_reserve(ctx, 3, capacity->max_fine, capacity->max_coarse, &options,
                                        &level->voxels),
                   status, fail);
    SPOPS_TRY_GOTO(show_voxels(ctx, level), status, fail);
    SPOPS_TRY_GOTO(alloc_block(ctx, level, capacity->max_coarse, capacity->num_samples), status,
                   fail);
    SPOPS_TRY_GOTO(ctx->backend->fill_zero(ctx, level->base.block, level->base.block_bytes), status,
                   fail);
    num_points[0] = 0;
    num_points[1] = (int32_t)capacity->max_fine;
    SPOPS_TRY_GOTO(ctx->backend->upload(ctx, level->num_points, num_points, sizeof num_points),
                   status, fail);
    SPOPS_TRY_GOTO(make_all(ctx, &o, level), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    *out = level;
    return SPOPS_STATUS_OK;

fail:
    spops_point_level_destroy(level);
    return status;
}

static spops_status check_level(spops_context *ctx, const char *call,
                                const spops_point_level *level)
{
    SPOPS_REQUIRE(ctx, level != NULL, "%s: level is NULL", call);
    return spops_check_home(ctx, call, "level", level->base.ctx);
}

spops_status spops_point_level_update(spops_context *ctx, spops_point_level *level,
                                      const spops_point_cloud *fine)
{
    static const char call[] = "point_level_update";
    const int32_t *num_points, *batch = NULL;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(check_level(ctx, call, level));
    SPOPS_OUTER_CALL(ctx, call, level_names);
    SPOPS_REQUIRE(ctx, level->base.refillable, "%s: the level was not made by point_level_reserve",
                  call);
    SPOPS_TRY(spops_cloud_check(ctx, call, "fine", fine));
    SPOPS_TRY(spops_cloud_check_capacity(ctx, call, "fine", fine, level->num_fine,
                                         level->cloud.num_samples));
    SPOPS_REQUIRE(ctx, spops_cloud_samples(fine) == level->cloud.num_samples,
                  "%s: fine has %" PRId64 " samples, expected %" PRId64, call,
                  spops_cloud_samples(fine), level->cloud.num_samples);
    num_points = level->num_points + 1;
    if (fine->offsets != NULL) {
        const spops_cloud_samples_args args = {fine, level->samples, level->num_points};
        SPOPS_TRY(ctx->backend->cloud_samples(ctx, &args));
        num_points = level->num_points;
        batch = level->samples;
    }
    SPOPS_TRY(spops_voxels_update(ctx, level->voxels, num_points, fine->points, batch));
    SPOPS_TRY(enqueue_cloud(ctx, fine, level));
    if (level->all == NULL) return SPOPS_STATUS_OK;
    return spops_segments_update(ctx, level->all, num_points, level->view.point_voxel, NULL, NULL);
}

const spops_point_cloud *spops_point_level_cloud(const spops_point_level *level)
{
    return level == NULL ? NULL : &level->cloud;
}

const spops_segments *spops_point_level_kept(const spops_point_level *level)
{
    return level == NULL ? NULL : spops_voxels_segments(level->voxels);
}

const spops_segments *spops_point_level_voxels(const spops_point_level *level)
{
    if (level == NULL) return NULL;
    return level->all != NULL ? level->all : spops_voxels_segments(level->voxels);
}

spops_status spops_point_level_get_view(spops_context *ctx, const spops_point_level *level,
                                        spops_point_level_view *view)
{
    static const char call[] = "point_level_get_view";
    spops_point_level_view found = spops_point_level_view_default();

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(check_level(ctx, call, level));
    found.num_fine = level->num_fine;
    found.num_coarse = level->cloud.points.rows;
    found.coarse_of = level->view.point_voxel;
    found.fine_of = level->view.chosen_point;
    found.num_rows = level->num_rows;
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}

spops_status spops_point_level_get_info_sync(spops_context *ctx, const spops_point_level *level,
                                             spops_point_level_info *info)
{
    static const char call[] = "point_level_get_info_sync";
    spops_point_level_info found = spops_point_level_info_default();
    spops_coords_info coords = spops_coords_info_default();
    spops_status status;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(check_level(ctx, call, level));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    status = spops_coords_get_info_sync(ctx, spops_voxels_coords(level->voxels), &coords);
    if (status != SPOPS_STATUS_OK && status != SPOPS_STATUS_CAPACITY_EXCEEDED) return status;
    found.num_coarse = coords.num_rows;
    found.max_coarse = coords.max_rows;
    found.num_dropped = coords.num_dropped;
    found.overflow = coords.overflow;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (status == SPOPS_STATUS_OK) return status;
    return spops_fail(ctx, status, "%s: there are more coarse points than max_coarse = %" PRId64,
                      call, found.max_coarse);
}

static void destroy_point_level(spops_plan *plan)
{
    spops_point_level *level = (spops_point_level *)plan;
    spops_segments_destroy(level->all);
    spops_voxels_destroy(level->voxels);
}

static size_t bytes_of_point_level(const spops_plan *plan)
{
    const spops_point_level *level = (const spops_point_level *)plan;
    const size_t all = level->all == NULL ? 0 : spops_plan_bytes(&level->all->base);
    return all + spops_plan_bytes((const spops_plan *)level->voxels);
}

const spops_plan_ops spops_point_level_plan_ops = {.handle_bytes = sizeof(struct spops_point_level),
                                                   .num_fields = NUM_LEVEL_FIELDS,
                                                   .destroy = destroy_point_level,
                                                   .bytes = bytes_of_point_level};

// ---- Between clouds -----------------------------------------------------------------------------

struct spops_interpolation {
    spops_plan base;
    int64_t num_points;
    int32_t count;
    spops_segments *segments;
    float *weights; // [num_points][count]
    size_t weights_bytes;
};

// Fields of a description.
enum { NUM_POINTS, NUM_FROM, COUNT, MAX_COLS, GRADIENTS, NUM_INTERPOLATION_FIELDS };

typedef struct found_points {
    int32_t *rows, *points; // [num_points][count]
    float *distances2;
} found_points;

static found_points carve_found(int64_t num_terms, spops_carver *c)
{
    const found_points f = {spops_carve(c, num_terms, 1, sizeof *f.rows),
                            spops_carve(c, num_terms, 1, sizeof *f.points),
                            spops_carve(c, num_terms, 1, sizeof *f.distances2)};
    return f;
}

static spops_status make_segments(spops_context *ctx, const char *call,
                                  const spops_interpolation_options *o, int64_t num_from,
                                  const found_points *found, spops_interpolation *it)
{
    const int64_t num_terms = it->num_points * it->count;
    spops_segments_sizes sizes;
    spops_lists_source terms;

    memset(&sizes, 0, sizeof sizes);
    sizes.num_segments = it->num_points;
    sizes.max_terms = sizes.num_weights = sizes.num_sources = num_terms;
    sizes.num_rows = num_from;
    sizes.max_cols = o->max_cols;
    sizes.gradients = o->gradients;
    sizes.weights_unique = true;
    sizes.pairs = sizes.order = true;
    SPOPS_TRY(spops_segments_alloc(ctx, call, &sizes, &it->segments));
    memset(&terms, 0, sizeof terms);
    terms.keys = found->points;
    terms.num_terms = num_terms;
    terms.a = found->rows;
    terms.drop_invalid = true; // of samples with too few points
    terms.a_limit = num_from;
    terms.b_limit = num_terms;
    SPOPS_TRY(spops_segments_enqueue_build(ctx, it->segments, &terms));
    return spops_segments_finish(ctx, it->segments);
}

// What nearest points are searched by.
static const char *const interpolation_names[][2] = {
    {"inputs", "from"}, {"queries", "to"}, {NULL, NULL}};

static spops_status interpolate(spops_context *ctx, const char *call, const spops_point_cloud *from,
                                const spops_point_cloud *to, const spops_interpolation_options *o,
                                spops_interpolation *it)
{
    const int64_t num_terms = it->num_points * it->count;
    spops_inverse_distances_args args = {.num_points = it->num_points, .count = it->count};
    spops_status status = SPOPS_STATUS_OK;
    spops_nearest *nearest = NULL;
    spops_carver carver = {NULL, 0};
    found_points found;
    void *block = NULL;
    size_t bytes;

    (void)carve_found(num_terms, &carver);
    bytes = carver.used;
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &block));
    carver = (spops_carver){block, 0};
    found = carve_found(num_terms, &carver);
    SPOPS_TRY_GOTO(spops_nearest_create(ctx, from, &nearest), status, done);
    if (num_terms > 0) {
        SPOPS_TRY_GOTO(
            spops_nearest_execute(ctx, nearest, to, it->count, found.rows, found.distances2),
            status, done);
        args.rows = found.rows;
        args.distances2 = found.distances2;
        args.weights = it->weights;
        args.points = found.points;
        SPOPS_TRY_GOTO(ctx->backend->inverse_distances(ctx, &args), status, done);
    }
    status = make_segments(ctx, call, o, from->points.rows, &found, it);

done:
    spops_nearest_destroy(nearest);
    spops_backend_free(ctx, block, bytes);
    return status;
}

spops_status spops_interpolation_create(spops_context *ctx, const spops_point_cloud *from,
                                        const spops_point_cloud *to,
                                        const spops_interpolation_options *given,
                                        spops_interpolation **out)
{
    static const char call[] = "interpolation_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_interpolation_options o;
    spops_interpolation *it = NULL;
    void *weights = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, interpolation_names);
    SPOPS_REQUIRE_SLOT(ctx, call, inverse_distances);
    memset(&o, 0, sizeof o);
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    SPOPS_REQUIRE(ctx, o.count >= 0 && o.count <= SPOPS_MAX_NEAREST,
                  "%s: count is %d, expected 0 to %d", call, (int)o.count, SPOPS_MAX_NEAREST);
    if (o.count == 0) o.count = 3;
    SPOPS_TRY(spops_check_gradients(ctx, call, o.gradients));
    SPOPS_TRY(spops_check_max_cols(ctx, call, &o.max_cols));
    SPOPS_TRY(spops_cloud_check(ctx, call, "from", from));
    SPOPS_TRY(spops_cloud_check(ctx, call, "to", to));
    SPOPS_REQUIRE(ctx, spops_cloud_samples(to) == spops_cloud_samples(from),
                  "%s: to has %" PRId64 " samples, expected %" PRId64 " as from has", call,
                  spops_cloud_samples(to), spops_cloud_samples(from));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "to", to));
    SPOPS_REQUIRE(ctx, to->points.rows <= SPOPS_MAX_COUNT / o.count,
                  "%s: to has %" PRId64 " points with %d neighbours each, expected at most %" PRId64
                  " in all",
                  call, to->points.rows, (int)o.count, SPOPS_MAX_COUNT);
    it = spops_plan_alloc(ctx, SPOPS_PLAN_INTERPOLATION);
    if (it == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    it->num_points = to->points.rows;
    it->count = o.count;
    it->base.fields[NUM_POINTS] = it->num_points;
    it->base.fields[NUM_FROM] = from->points.rows;
    it->base.fields[COUNT] = it->count;
    it->base.fields[MAX_COLS] = o.max_cols;
    it->base.fields[GRADIENTS] = o.gradients;
    it->weights_bytes = (size_t)(it->num_points * it->count) * sizeof *it->weights;
    SPOPS_TRY_GOTO(spops_backend_alloc(ctx, it->weights_bytes, &weights), status, fail);
    it->weights = (float *)weights;
    SPOPS_TRY_GOTO(interpolate(ctx, call, from, to, &o, it), status, fail);
    *out = it;
    return SPOPS_STATUS_OK;

fail:
    spops_interpolation_destroy(it);
    return status;
}

const spops_segments *spops_interpolation_segments(const spops_interpolation *interpolation)
{
    return interpolation == NULL ? NULL : interpolation->segments;
}

spops_matrix spops_interpolation_weights(const spops_interpolation *interpolation)
{
    if (interpolation == NULL) return spops_matrix_dense(NULL, 0, 1, SPOPS_DTYPE_F32);
    return spops_matrix_dense(interpolation->weights,
                              interpolation->num_points * interpolation->count, 1, SPOPS_DTYPE_F32);
}

static void destroy_interpolation(spops_plan *plan)
{
    spops_interpolation *it = (spops_interpolation *)plan;
    spops_segments_destroy(it->segments);
    if (it->weights != NULL) (void)plan->ctx->backend->wait(plan->ctx);
    spops_backend_free(plan->ctx, it->weights, it->weights_bytes);
}

static size_t bytes_of_interpolation(const spops_plan *plan)
{
    const spops_interpolation *it = (const spops_interpolation *)plan;
    return it->weights_bytes + spops_plan_bytes(&it->segments->base);
}

static size_t scratch_of_interpolation(const spops_plan *plan)
{
    const spops_interpolation *it = (const spops_interpolation *)plan;
    return it->segments->base.scratch_bytes;
}

const spops_plan_ops spops_interpolation_plan_ops = {.handle_bytes =
                                                         sizeof(struct spops_interpolation),
                                                     .num_fields = NUM_INTERPOLATION_FIELDS,
                                                     .destroy = destroy_interpolation,
                                                     .bytes = bytes_of_interpolation,
                                                     .scratch_bytes = scratch_of_interpolation};
