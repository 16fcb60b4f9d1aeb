// SPDX-License-Identifier: Apache-2.0
// From voxels back to points: the relation whose weighted sum interpolates features at points.
#include <math.h>
#include <string.h>

#include "coords/coords.h"
#include "core/plan.h"
#include "relation/relation.h"

struct spops_devoxels {
    spops_plan base;
    int64_t max_points;
    int64_t max_rows; // of the coordinates
    int32_t dims, corners;
    spops_devoxels_interpolation interpolation;
    spops_devoxels_missing missing;
    double size[SPOPS_MAX_DIMS], origin[SPOPS_MAX_DIMS];
    spops_segments *segments;
    // In backend memory; one block.
    float *weights;     // [max_points * corners]
    int32_t *points;    // likewise: the terms
    int32_t *voxels;    // likewise
    int32_t *num_terms; // [1]
    void *own;
    size_t own_bytes;
};

// Fields of a description.
enum {
    MAX_POINTS,
    MAX_ROWS,
    DIMS,
    CORNERS,
    INTERPOLATION,
    MISSING,
    MAX_COLS,
    GRADIENTS,
    SIZE_M,
    ORIGIN_M = SIZE_M + SPOPS_MAX_DIMS,
    NUM_FIELDS = ORIGIN_M + SPOPS_MAX_DIMS
};

// A grid that is given is the set's, where the set has one.
static spops_status check_grid(spops_context *ctx, const char *call, const spops_coords *coords,
                               const double *size_m, const double *origin_m)
{
    const spops_voxel_grid *grid = &coords->grid;
    for (int a = 0; grid->known && a < coords->arrays.layout.dims; ++a) {
        // Sizes and origins that were computed once more may differ in their last bits.
        const double tolerance = 1e-9 * grid->size[a];
        SPOPS_REQUIRE(ctx, fabs(size_m[a] - grid->size[a]) <= tolerance,
                      "%s: size_m[%d] is %g, and the voxels of coords have %g", call, a, size_m[a],
                      grid->size[a]);
        SPOPS_REQUIRE(ctx, fabs(origin_m[a] - grid->origin[a]) <= tolerance,
                      "%s: origin_m[%d] is %g, and the voxels of coords have %g", call, a,
                      origin_m[a], grid->origin[a]);
    }
    return SPOPS_STATUS_OK;
}

// The grid of the set where none is given.
static spops_status take_grid(spops_context *ctx, const char *call, const spops_coords *coords,
                              spops_devoxels_options *o)
{
    const spops_voxel_grid *grid = &coords->grid;
    const int32_t dims = coords->arrays.layout.dims;
    bool given = false;
    for (int a = 0; a < dims; ++a)
        given = given || o->size_m[a] != 0.0 || o->origin_m[a] != 0.0;
    if (!given && grid->known) {
        memcpy(o->size_m, grid->size, sizeof grid->size);
        memcpy(o->origin_m, grid->origin, sizeof grid->origin);
    }
    SPOPS_TRY(spops_check_voxel_size(ctx, call, dims, o->size_m, o->origin_m));
    return check_grid(ctx, call, coords, o->size_m, o->origin_m);
}

static spops_status read_options(spops_context *ctx, const char *call, const spops_coords *coords,
                                 const spops_devoxels_options *options, spops_devoxels_options *o)
{
    memset(o, 0, sizeof *o);
    SPOPS_TRY(spops_read_options(ctx, call, options, o, sizeof *o));
    SPOPS_TRY(take_grid(ctx, call, coords, o));
    SPOPS_REQUIRE(ctx,
                  o->interpolation == SPOPS_DEVOXELS_INTERPOLATION_NEAREST ||
                      o->interpolation == SPOPS_DEVOXELS_INTERPOLATION_LINEAR,
                  "%s: interpolation is %d, expected %d or %d", call, (int)o->interpolation,
                  (int)SPOPS_DEVOXELS_INTERPOLATION_NEAREST,
                  (int)SPOPS_DEVOXELS_INTERPOLATION_LINEAR);
    SPOPS_REQUIRE(ctx,
                  o->missing == SPOPS_DEVOXELS_MISSING_ZERO ||
                      o->missing == SPOPS_DEVOXELS_MISSING_RESCALE,
                  "%s: missing is %d, expected %d or %d", call, (int)o->missing,
                  (int)SPOPS_DEVOXELS_MISSING_ZERO, (int)SPOPS_DEVOXELS_MISSING_RESCALE);
    SPOPS_TRY(spops_check_reserved(ctx, call, o->reserved));
    SPOPS_TRY(spops_check_gradients(ctx, call, o->gradients));
    return spops_check_max_cols(ctx, call, &o->max_cols);
}

static void carve_devoxels(spops_plan *plan, spops_carver *c)
{
    spops_devoxels *d = (spops_devoxels *)plan;
    const size_t begin = c->used;
    d->num_terms = spops_carve(c, 1, 1, sizeof *d->num_terms);
    d->weights = spops_carve(c, d->max_points, d->corners, sizeof *d->weights);
    d->points = spops_carve(c, d->max_points, d->corners, sizeof *d->points);
    d->voxels = spops_carve(c, d->max_points, d->corners, sizeof *d->voxels);
    d->own = spops_plan_carved(c, begin, &d->own_bytes);
}

// What options and a set ask for, as fields that read_devoxels checks.
static void fields_of(const spops_coords *coords, int64_t max_points,
                      const spops_devoxels_options *o, int64_t fields[NUM_FIELDS])
{
    memset(fields, 0, NUM_FIELDS * sizeof *fields);
    fields[MAX_POINTS] = max_points;
    fields[MAX_ROWS] = coords->arrays.max_rows;
    fields[DIMS] = coords->arrays.layout.dims;
    fields[INTERPOLATION] = o->interpolation;
    fields[MISSING] = o->missing;
    fields[MAX_COLS] = o->max_cols;
    fields[GRADIENTS] = o->gradients;
    spops_plan_put_f64s(fields + SIZE_M, o->size_m, SPOPS_MAX_DIMS);
    spops_plan_put_f64s(fields + ORIGIN_M, o->origin_m, SPOPS_MAX_DIMS);
}

static spops_status read_devoxels(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_devoxels *d = (spops_devoxels *)plan;
    const int64_t *fields = plan->fields;
    spops_segments_sizes sizes;

    SPOPS_REQUIRE_SLOT(ctx, call, devoxelize);
    SPOPS_TRY(spops_check_count(ctx, call, "max_points", fields[MAX_POINTS]));
    SPOPS_TRY(spops_check_count(ctx, call, "max_rows", fields[MAX_ROWS]));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, DIMS, 1, SPOPS_MAX_DIMS));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, INTERPOLATION,
                                     SPOPS_DEVOXELS_INTERPOLATION_NEAREST,
                                     SPOPS_DEVOXELS_INTERPOLATION_LINEAR));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MISSING, SPOPS_DEVOXELS_MISSING_ZERO,
                                     SPOPS_DEVOXELS_MISSING_RESCALE));
    memset(&sizes, 0, sizeof sizes);
    SPOPS_TRY(spops_check_gradients_field(ctx, call, fields[GRADIENTS], &sizes.gradients));
    sizes.max_cols = fields[MAX_COLS];
    SPOPS_TRY(spops_check_max_cols(ctx, call, &sizes.max_cols));
    plan->fields[MAX_COLS] = sizes.max_cols;
    d->max_points = fields[MAX_POINTS];
    d->max_rows = fields[MAX_ROWS];
    d->dims = (int32_t)fields[DIMS];
    d->interpolation = (spops_devoxels_interpolation)fields[INTERPOLATION];
    d->missing = (spops_devoxels_missing)fields[MISSING];
    d->corners = d->interpolation == SPOPS_DEVOXELS_INTERPOLATION_LINEAR ? 1 << d->dims : 1;
    spops_plan_get_f64s(fields + SIZE_M, d->size, SPOPS_MAX_DIMS);
    spops_plan_get_f64s(fields + ORIGIN_M, d->origin, SPOPS_MAX_DIMS);
    SPOPS_TRY(spops_check_voxel_size(ctx, call, d->dims, d->size, d->origin));
    SPOPS_REQUIRE(ctx, d->max_points <= SPOPS_MAX_COUNT / d->corners,
                  "%s: %" PRId64 " points with %" PRId32 " corners each, expected at most %" PRId64
                  " corners",
                  call, d->max_points, d->corners, SPOPS_MAX_COUNT);
    SPOPS_TRY(spops_plan_derive(ctx, call, plan, CORNERS, d->corners));
    sizes.num_segments = d->max_points;
    sizes.max_terms = sizes.num_weights = sizes.num_sources = d->max_points * d->corners;
    sizes.num_rows = d->max_rows;
    sizes.refillable = plan->refillable;
    sizes.weights_unique = true; // a corner of a point is its own weight
    sizes.pairs = sizes.order = true;
    return spops_segments_alloc(ctx, call, &sizes, &d->segments);
}

static spops_status empty_devoxels(spops_context *ctx, spops_plan *plan)
{
    const spops_devoxels *d = (const spops_devoxels *)plan;
    SPOPS_TRY(ctx->backend->fill_zero(ctx, d->own, d->own_bytes));
    return spops_plan_empty_parts(ctx, plan);
}

static spops_status enqueue(spops_context *ctx, const spops_devoxels *d, const spops_coords *coords,
                            const spops_coords_source *source)
{
    spops_devoxelize_args args;
    spops_lists_source terms;

    memset(&args, 0, sizeof args);
    args.source = source;
    args.coords = &coords->arrays;
    args.interpolation = d->interpolation;
    args.missing = d->missing;
    args.corners = d->corners;
    args.points = d->points;
    args.voxels = d->voxels;
    args.weights = d->weights;
    args.num_terms = d->num_terms;
    SPOPS_TRY(ctx->backend->devoxelize(ctx, &args));
    memset(&terms, 0, sizeof terms);
    terms.keys = d->points;
    terms.num_terms = d->max_points * d->corners;
    terms.num_terms_device = terms.num_terms > 0 ? d->num_terms : NULL;
    terms.a = d->voxels;
    terms.drop_invalid = true;
    terms.a_limit = d->max_rows;
    terms.b_limit = terms.num_terms;
    return spops_segments_enqueue_build(ctx, d->segments, &terms);
}

// Points must be finite, wherever they are.
static spops_status check_points(spops_context *ctx, const char *call,
                                 const spops_coords_source *source)
{
    spops_coords_choices choices;
    spops_coords_box box;
    bool ascending;
    memset(&choices, 0, sizeof choices);
    return spops_coords_find_box(ctx, call, source, &choices, &box, &ascending);
}

spops_status spops_devoxels_create(spops_context *ctx, const spops_coords *coords,
                                   spops_matrix points, const int32_t *batch,
                                   const spops_devoxels_options *options, spops_devoxels **out)
{
    static const char call[] = "devoxels_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_devoxels_options o;
    spops_coords_source source;
    spops_devoxels *d = NULL;
    int64_t fields[NUM_FIELDS];

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(read_options(ctx, call, coords, options, &o));
    SPOPS_TRY(spops_points_source(ctx, call, coords->arrays.layout.dims, points, batch, o.size_m,
                                  o.origin_m, &source));
    SPOPS_TRY(check_points(ctx, call, &source));

    fields_of(coords, points.rows, &o, fields);
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_DEVOXELS, fields, &d));
    SPOPS_TRY_GOTO(enqueue(ctx, d, coords, &source), status, fail);
    SPOPS_TRY_GOTO(spops_segments_finish(ctx, d->segments), status, fail);
    *out = d;
    return SPOPS_STATUS_OK;

fail:
    spops_devoxels_destroy(d);
    return status;
}

spops_status spops_devoxels_reserve(spops_context *ctx, const spops_coords *coords,
                                    int64_t max_points, const spops_devoxels_options *options,
                                    spops_devoxels **out)
{
    static const char call[] = "devoxels_reserve";
    spops_devoxels_options o;
    int64_t fields[NUM_FIELDS];

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(spops_check_count(ctx, call, "max_points", max_points));
    SPOPS_TRY(read_options(ctx, call, coords, options, &o));
    fields_of(coords, max_points, &o, fields);
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_DEVOXELS, fields, o.memory, out);
}

spops_status spops_devoxels_update(spops_context *ctx, spops_devoxels *devoxels,
                                   const spops_coords *coords, const int32_t *num_points,
                                   spops_matrix points, const int32_t *batch)
{
    static const char call[] = "devoxels_update";
    spops_coords_source source;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "devoxels", devoxels));
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_REQUIRE(ctx,
                  coords->arrays.max_rows == devoxels->max_rows &&
                      coords->arrays.layout.dims == devoxels->dims,
                  "%s: coords has %" PRId32 " axes and a capacity of %" PRId64
                  " rows, expected %" PRId32 " and %" PRId64,
                  call, coords->arrays.layout.dims, coords->arrays.max_rows, devoxels->dims,
                  devoxels->max_rows);
    SPOPS_TRY(check_grid(ctx, call, coords, devoxels->size, devoxels->origin));
    SPOPS_TRY(spops_check_indices(ctx, call, "num_points", num_points, 1));
    SPOPS_REQUIRE(ctx, points.rows == devoxels->max_points,
                  "%s: points.rows is %" PRId64 ", expected max_points = %" PRId64, call,
                  points.rows, devoxels->max_points);
    SPOPS_TRY(spops_points_source(ctx, call, devoxels->dims, points, batch, devoxels->size,
                                  devoxels->origin, &source));
    source.num_items = num_points;
    return enqueue(ctx, devoxels, coords, &source);
}

const spops_segments *spops_devoxels_segments(const spops_devoxels *devoxels)
{
    return devoxels == NULL ? NULL : devoxels->segments;
}

spops_matrix spops_devoxels_weights(const spops_devoxels *devoxels)
{
    if (devoxels == NULL) return spops_matrix_dense(NULL, 0, 1, SPOPS_DTYPE_F32);
    return spops_matrix_dense(devoxels->weights, devoxels->max_points * devoxels->corners, 1,
                              SPOPS_DTYPE_F32);
}

const spops_plan_ops spops_devoxels_plan_ops = {
    .handle_bytes = sizeof(struct spops_devoxels),
    .num_fields = NUM_FIELDS,
    .read = read_devoxels,
    .carve = carve_devoxels,
    .empty = empty_devoxels,
    .relation = spops_relation_of_part,
};
