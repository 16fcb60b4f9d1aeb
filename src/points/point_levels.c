// SPDX-License-Identifier: Apache-2.0
// Coarser clouds, made of voxels and the plans that these bring.
#include "spops/point_levels.h"

#include <math.h>
#include <string.h>

#include "coords/coords.h"
#include "core/plan.h"
#include "points/neighbors.h"
#include "spops/voxels.h"

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
    void *own; // arrays but those of its parts
    size_t own_bytes;
};

// Fields of a description.
enum {
    MAX_FINE,
    MAX_COARSE,
    NUM_SAMPLES,
    KEEP,
    SEED,
    MAX_COLS,
    GRADIENTS,
    SIZE_M,
    ORIGIN_M,
    LOWER_M = ORIGIN_M + 3,
    UPPER_M = LOWER_M + 3,
    NUM_FIELDS = UPPER_M + 3
};

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
    const int64_t rows = level->base.fields[MAX_COARSE];
    spops_segments_options options = spops_segments_options_default();
    if (level->mean) return SPOPS_STATUS_OK;
    options.gradients = o->gradients;
    options.max_cols = o->max_cols;
    options.num_rows = level->num_fine;
    if (level->base.refillable)
        return spops_segments_reserve(ctx, rows, level->num_fine, &options, &level->all);
    SPOPS_TRY(spops_segments_create_from_keys(ctx, rows, level->num_fine, level->view.point_voxel,
                                              SPOPS_KEYS_UNSORTED, &options, &level->all));
    spops_plan_adopt(&level->base, &level->all->base);
    return SPOPS_STATUS_OK;
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

// ---- Life cycle ---------------------------------------------------------------------------------

static void put_options(const spops_point_level_options *o, int64_t fields[NUM_FIELDS])
{
    fields[KEEP] = o->keep;
    fields[SEED] = o->seed;
    fields[MAX_COLS] = o->max_cols;
    fields[GRADIENTS] = o->gradients;
    fields[SIZE_M] = spops_plan_bits(o->size_m);
    spops_plan_put_f64s(fields + ORIGIN_M, o->origin_m, 3);
}

// The middles of the outermost voxels, of a level that is made with its points.
static void put_range(const spops_coords *coords, const spops_point_level_options *o,
                      int64_t fields[NUM_FIELDS])
{
    const spops_key_layout *layout = &coords->arrays.layout;
    for (int a = 0; a < 3; ++a) {
        const double lower = o->origin_m[a] + (layout->lower[1 + a] + 0.5) * o->size_m;
        const double upper = o->origin_m[a] + (layout->upper[1 + a] + 0.5) * o->size_m;
        fields[LOWER_M + a] = spops_plan_bits(lower);
        fields[UPPER_M + a] = spops_plan_bits(upper);
    }
}

static spops_status read_level(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_point_level *level = (spops_point_level *)plan;
    const int64_t *fields = plan->fields;
    spops_point_level_options given = spops_point_level_options_default(), o;
    spops_point_level_capacity capacity = {.max_fine = fields[MAX_FINE],
                                           .max_coarse = fields[MAX_COARSE],
                                           .num_samples = fields[NUM_SAMPLES]};
    spops_coords_options coords;
    spops_voxels_options options;
    spops_coords_box box;

    SPOPS_OUTER_CALL(ctx, call, level_names);
    SPOPS_REQUIRE_SLOT(ctx, call, cloud_samples);
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_FINE, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_COARSE, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_SAMPLES, plan->refillable ? 1 : 0,
                                     SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, KEEP, 0, SPOPS_POINT_KEEP_MEAN));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SEED, 0, UINT32_MAX));
    SPOPS_TRY(spops_check_gradients_field(ctx, call, fields[GRADIENTS], &given.gradients));
    given.keep = (spops_point_keep)fields[KEEP];
    given.seed = (uint32_t)fields[SEED];
    given.max_cols = fields[MAX_COLS];
    given.size_m = spops_plan_double(fields[SIZE_M]);
    spops_plan_get_f64s(fields + ORIGIN_M, given.origin_m, 3);
    spops_plan_get_f64s(fields + LOWER_M, capacity.lower_m, 3);
    spops_plan_get_f64s(fields + UPPER_M, capacity.upper_m, 3);
    SPOPS_TRY(read_level_options(ctx, call, &given, &o));
    plan->fields[MAX_COLS] = o.max_cols;
    level->mean = o.keep == SPOPS_POINT_KEEP_MEAN;
    level->num_fine = fields[MAX_FINE];
    if (!plan->refillable) return SPOPS_STATUS_OK; // its parts are made with their contents
    SPOPS_TRY(read_range(ctx, call, &capacity, &o, &box));
    options = voxels_options(&o, &coords);
    coords.box = &box;
    SPOPS_TRY(spops_voxels_reserve(ctx, 3, capacity.max_fine, capacity.max_coarse, &options,
                                   &level->voxels));
    return make_all(ctx, &o, level);
}

static void carve_level(spops_plan *plan, spops_carver *c)
{
    spops_point_level *level = (spops_point_level *)plan;
    const int64_t rows = plan->fields[MAX_COARSE], num_samples = plan->fields[NUM_SAMPLES];
    const size_t begin = c->used;
    float *points = spops_carve(c, rows, 3, sizeof *points);
    level->cloud.points = spops_matrix_dense(points, rows, 3, SPOPS_DTYPE_F32);
    level->cloud.num_samples = num_samples;
    level->cloud.offsets =
        num_samples > 0 ? spops_carve(c, num_samples + 1, 1, sizeof(int32_t)) : NULL;
    if (!plan->refillable) return;
    level->samples = spops_carve(c, level->num_fine, 1, sizeof *level->samples);
    level->num_points = spops_carve(c, 1, 1, sizeof *level->num_points);
    level->own = spops_plan_carved(c, begin, &level->own_bytes);
}

// What views of a level need of its voxels.
static void show_voxels(spops_plan *plan)
{
    spops_point_level *level = (spops_point_level *)plan;
    if (level->voxels == NULL) return;
    spops_voxels_show(level->voxels, &level->view);
    level->num_rows = spops_coords_num_rows(spops_voxels_coords(level->voxels));
}

static spops_status empty_level(spops_context *ctx, spops_plan *plan)
{
    spops_point_level *level = (spops_point_level *)plan;
    SPOPS_TRY(ctx->backend->fill_zero(ctx, level->own, level->own_bytes));
    return spops_plan_empty_parts(ctx, plan);
}

const spops_plan_ops spops_point_level_plan_ops = {
    .handle_bytes = sizeof(struct spops_point_level),
    .num_fields = NUM_FIELDS,
    .read = read_level,
    .carve = carve_level,
    .ready = show_voxels,
    .empty = empty_level,
};

// ---- Making -------------------------------------------------------------------------------------

spops_status spops_point_level_create(spops_context *ctx, const spops_point_cloud *fine,
                                      const spops_point_level_options *given,
                                      spops_point_level **out)
{
    static const char call[] = "point_level_create";
    spops_voxels_view view = spops_voxels_view_default();
    int64_t fields[NUM_FIELDS] = {0};
    spops_status status = SPOPS_STATUS_OK;
    spops_point_level_options o;
    spops_point_level *level = NULL;
    spops_voxels *voxels = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, level_names);
    SPOPS_REQUIRE_SLOT(ctx, call, cloud_samples);
    SPOPS_TRY(spops_cloud_check(ctx, call, "fine", fine));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "fine", fine));
    SPOPS_TRY(read_level_options(ctx, call, given, &o));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_TRY(make_voxels(ctx, fine, &o, &voxels));
    spops_voxels_show(voxels, &view);
    put_options(&o, fields);
    fields[MAX_FINE] = fine->points.rows;
    fields[MAX_COARSE] = view.max_voxels;
    fields[NUM_SAMPLES] = fine->num_samples;
    put_range(spops_voxels_coords(voxels), &o, fields);
    SPOPS_TRY_GOTO(spops_plan_open(ctx, call, SPOPS_PLAN_POINT_LEVEL, fields, &level), status,
                   fail);
    level->voxels = voxels;
    spops_plan_adopt(&level->base, (spops_plan *)voxels);
    show_voxels(&level->base);
    SPOPS_TRY_GOTO(enqueue_cloud(ctx, fine, level), status, fail);
    SPOPS_TRY_GOTO(make_all(ctx, &o, level), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    *out = level;
    return SPOPS_STATUS_OK;

fail:
    if (level == NULL) spops_voxels_destroy(voxels);
    spops_point_level_destroy(level);
    return status;
}

spops_status spops_point_level_reserve(spops_context *ctx,
                                       const spops_point_level_capacity *capacity,
                                       const spops_point_level_options *given,
                                       spops_point_level **out)
{
    static const char call[] = "point_level_reserve";
    int64_t fields[NUM_FIELDS] = {0};
    spops_point_level_options o;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, level_names);
    SPOPS_TRY(
        spops_check_object(ctx, call, "capacity", capacity, _Alignof(spops_point_level_capacity)));
    SPOPS_TRY(spops_check_count(ctx, call, "capacity->max_fine", capacity->max_fine));
    SPOPS_TRY(spops_check_count(ctx, call, "capacity->max_coarse", capacity->max_coarse));
    SPOPS_TRY(spops_check_count(ctx, call, "capacity->num_samples", capacity->num_samples));
    SPOPS_REQUIRE(ctx, capacity->num_samples >= 1,
                  "%s: capacity->num_samples is 0, expected 1 or more", call);
    SPOPS_TRY(read_level_options(ctx, call, given, &o));
    put_options(&o, fields);
    fields[MAX_FINE] = capacity->max_fine;
    fields[MAX_COARSE] = capacity->max_coarse;
    fields[NUM_SAMPLES] = capacity->num_samples;
    spops_plan_put_f64s(fields + LOWER_M, capacity->lower_m, 3);
    spops_plan_put_f64s(fields + UPPER_M, capacity->upper_m, 3);
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_POINT_LEVEL, fields, o.memory, out);
}

spops_status spops_point_level_update(spops_context *ctx, spops_point_level *level,
                                      const spops_point_cloud *fine)
{
    static const char call[] = "point_level_update";

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "level", level));
    SPOPS_OUTER_CALL(ctx, call, level_names);
    SPOPS_TRY(spops_cloud_check(ctx, call, "fine", fine));
    SPOPS_TRY(
        spops_cloud_check_full(ctx, call, "fine", fine, level->num_fine, level->cloud.num_samples));
    const spops_cloud_samples_args args = {fine, level->samples, level->num_points};
    SPOPS_TRY(ctx->backend->cloud_samples(ctx, &args));
    SPOPS_TRY(spops_voxels_update(ctx, level->voxels, level->num_points, fine->points,
                                  fine->offsets == NULL ? NULL : level->samples));
    SPOPS_TRY(enqueue_cloud(ctx, fine, level));
    if (level->all == NULL) return SPOPS_STATUS_OK;
    return spops_segments_update(ctx, level->all, level->num_points, level->view.point_voxel, NULL,
                                 NULL);
}

void spops_point_level_range(const spops_point_level *level, double *lower_m, double *upper_m)
{
    spops_plan_get_f64s(level->base.fields + LOWER_M, lower_m, 3);
    spops_plan_get_f64s(level->base.fields + UPPER_M, upper_m, 3);
}

void spops_point_level_widen(spops_point_level *level, const double *lower_m, const double *upper_m)
{
    spops_plan_put_f64s(level->base.fields + LOWER_M, lower_m, 3);
    spops_plan_put_f64s(level->base.fields + UPPER_M, upper_m, 3);
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
    SPOPS_TRY(spops_plan_check(ctx, call, "level", level));
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
    SPOPS_TRY(spops_plan_check(ctx, call, "level", level));
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
