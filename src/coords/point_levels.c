// SPDX-License-Identifier: Apache-2.0
// Coarser clouds, made of voxels and the plans that these bring; and interpolation between clouds.
#include "spops/point_levels.h"

#include <math.h>
#include <string.h>

#include "coords/coords.h"
#include "coords/neighbors.h"
#include "spops/voxels.h"

// ---- One level ----------------------------------------------------------------------------------

struct spops_point_level {
    spops_context *ctx; // made it, frees it
    bool mean;
    spops_voxels *voxels;
    spops_voxels_view view;
    spops_segments *all; // NULL: the voxels' segments have all points
    spops_point_cloud cloud;
    int64_t num_fine;
    void *block; // points and offsets of the cloud
    size_t block_bytes;
};

static spops_status read_level_options(spops_context *ctx, const char *call,
                                       const spops_point_level_options *given,
                                       spops_point_level_options *o)
{
    memset(o, 0, sizeof *o);
    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    SPOPS_REQUIRE(ctx, (int)o->keep >= 0 && o->keep <= SPOPS_POINT_KEEP_MEAN,
                  "%s: keep is %d, expected 0 to %d", call, (int)o->keep,
                  (int)SPOPS_POINT_KEEP_MEAN);
    SPOPS_REQUIRE(ctx, isfinite(o->size_m) && o->size_m > 0.0,
                  "%s: size_m is %g, expected more than 0", call, o->size_m);
    SPOPS_TRY(spops_check_gradients(ctx, call, o->gradients));
    return spops_check_max_cols(ctx, call, &o->max_cols);
}

// Voxels of a cloud whose samples are batches.
static spops_status make_voxels(spops_context *ctx, const spops_point_cloud *fine,
                                const spops_point_level_options *o, spops_voxels **voxels)
{
    static const spops_voxel_points points[] = {SPOPS_VOXEL_POINTS_NEAREST,
                                                SPOPS_VOXEL_POINTS_FIRST, SPOPS_VOXEL_POINTS_RANDOM,
                                                SPOPS_VOXEL_POINTS_ALL};
    spops_voxels_options options = spops_voxels_options_default();
    spops_coords_options coords = spops_coords_options_default();
    spops_status status = SPOPS_STATUS_OK;
    const size_t bytes = (size_t)fine->points.rows * sizeof(int32_t);
    void *batch = NULL;

    coords.order = SPOPS_COORDS_ORDER_LEXICOGRAPHIC;
    options.coords = &coords;
    for (int a = 0; a < 3; ++a) {
        options.size_m[a] = o->size_m;
        options.origin_m[a] = o->origin_m[a];
    }
    options.points = points[o->keep];
    options.seed = o->seed;
    options.gradients = o->gradients;
    options.max_cols = o->max_cols;
    if (fine->offsets != NULL && bytes > 0) {
        spops_cloud_samples_args args = {.cloud = fine};
        SPOPS_TRY(spops_backend_alloc(ctx, bytes, &batch));
        args.samples = (int32_t *)batch;
        SPOPS_TRY_GOTO(ctx->backend->cloud_samples(ctx, &args), status, done);
    }
    status = spops_voxels_create(ctx, fine->points, batch, &options, voxels);

done:
    spops_backend_free(ctx, batch, bytes);
    return status;
}

static void carve_cloud(spops_point_level *level, int64_t rows, int64_t num_samples,
                        spops_carver *c)
{
    float *points = spops_carve(c, rows, 3, sizeof *points);
    level->cloud.points = spops_matrix_dense(points, rows, 3, SPOPS_DTYPE_F32);
    level->cloud.num_samples = num_samples;
    level->cloud.offsets =
        num_samples > 0 ? spops_carve(c, num_samples + 1, 1, sizeof(int32_t)) : NULL;
}

static spops_status make_cloud(spops_context *ctx, const spops_point_cloud *fine,
                               spops_point_level *level)
{
    spops_coords_view view = spops_coords_view_default();
    spops_carver carver = {NULL, 0};
    int64_t rows;

    SPOPS_TRY(spops_coords_get_view(ctx, spops_voxels_coords(level->voxels), &view));
    rows = view.max_rows;
    carve_cloud(level, rows, fine->num_samples, &carver);
    SPOPS_TRY(spops_backend_alloc(ctx, carver.used, &level->block));
    level->block_bytes = carver.used;
    carver = (spops_carver){level->block, 0};
    carve_cloud(level, rows, fine->num_samples, &carver);
    if (fine->offsets != NULL) {
        const spops_cloud_offsets_args args = {.rows = view.rows,
                                               .num_rows = rows,
                                               .num_samples = fine->num_samples,
                                               .columns = 4,
                                               .offsets =
                                                   (int32_t *)(uintptr_t)level->cloud.offsets};
        SPOPS_TRY(ctx->backend->cloud_offsets(ctx, &args));
    }
    if (rows == 0) return SPOPS_STATUS_OK;
    // A sum of one row is that row.
    return spops_segreduce_execute(ctx, spops_voxels_segments(level->voxels),
                                   level->mean ? SPOPS_REDUCE_MEAN : SPOPS_REDUCE_SUM, fine->points,
                                   NULL, level->cloud.points, NULL);
}

// A plan of all points of a voxel, where the voxels' own has those that were kept.
static spops_status make_all(spops_context *ctx, const spops_point_level_options *o,
                             spops_point_level *level)
{
    spops_segments_options options = spops_segments_options_default();
    if (level->mean) return SPOPS_STATUS_OK;
    options.gradients = o->gradients;
    options.max_cols = o->max_cols;
    options.num_rows = level->num_fine;
    return spops_segments_create_from_keys(ctx, level->cloud.points.rows, level->num_fine,
                                           level->view.point_voxel, SPOPS_KEYS_UNSORTED, &options,
                                           &level->all);
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
    SPOPS_REQUIRE_SLOT(ctx, call, cloud_samples);
    SPOPS_TRY(spops_cloud_check(ctx, call, "fine", fine));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "fine", fine));
    SPOPS_TRY(read_level_options(ctx, call, given, &o));
    level = spops_host_alloc(ctx, 1, sizeof *level);
    if (level == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    level->ctx = ctx;
    level->mean = o.keep == SPOPS_POINT_KEEP_MEAN;
    level->num_fine = fine->points.rows;
    level->view = spops_voxels_view_default();
    SPOPS_TRY_GOTO(make_voxels(ctx, fine, &o, &level->voxels), status, fail);
    SPOPS_TRY_GOTO(spops_voxels_get_view(ctx, level->voxels, &level->view), status, fail);
    SPOPS_TRY_GOTO(make_cloud(ctx, fine, level), status, fail);
    SPOPS_TRY_GOTO(make_all(ctx, &o, level), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    *out = level;
    return SPOPS_STATUS_OK;

fail:
    spops_point_level_destroy(level);
    return status;
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

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_REQUIRE(ctx, level != NULL, "%s: level is NULL", call);
    SPOPS_TRY(spops_check_home(ctx, call, "level", level->ctx));
    found.num_fine = level->num_fine;
    found.num_coarse = level->cloud.points.rows;
    found.coarse_of = level->view.point_voxel;
    found.fine_of = level->view.chosen_point;
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}

void spops_point_level_destroy(spops_point_level *level)
{
    if (level == NULL) return;
    (void)level->ctx->backend->wait(level->ctx);
    spops_segments_destroy(level->all);
    spops_voxels_destroy(level->voxels);
    spops_backend_free(level->ctx, level->block, level->block_bytes);
    spops_host_free(level->ctx, level, 1, sizeof *level);
}

// ---- Between clouds -----------------------------------------------------------------------------

struct spops_interpolation {
    spops_context *ctx; // made it, frees it
    int64_t num_points;
    int32_t count;
    spops_segments *segments;
    float *weights; // [num_points][count]
    size_t weights_bytes;
};

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
    SPOPS_TRY(spops_segments_alloc(ctx, call, &sizes, NULL, &it->segments));
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
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "to", to));
    SPOPS_REQUIRE(ctx, to->points.rows <= SPOPS_MAX_COUNT / o.count,
                  "%s: to has %" PRId64 " points with %d neighbours each, expected at most %" PRId64
                  " in all",
                  call, to->points.rows, (int)o.count, SPOPS_MAX_COUNT);
    it = spops_host_alloc(ctx, 1, sizeof *it);
    if (it == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    it->ctx = ctx;
    it->num_points = to->points.rows;
    it->count = o.count;
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

void spops_interpolation_destroy(spops_interpolation *it)
{
    if (it == NULL) return;
    spops_segments_destroy(it->segments);
    if (it->weights != NULL) (void)it->ctx->backend->wait(it->ctx);
    spops_backend_free(it->ctx, it->weights, it->weights_bytes);
    spops_host_free(it->ctx, it, 1, sizeof *it);
}
