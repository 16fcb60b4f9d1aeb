// SPDX-License-Identifier: Apache-2.0
// Voxels of points: the set of voxels that points lie in, and the plan that reduces points to them.
#include <math.h>
#include <string.h>

#include "coords/coords.h"
#include "core/half.h"
#include "core/plan.h"
#include "relation/relation.h"
#include "core/matrix.h"
#include "spops/segreduce.h"

struct spops_voxels {
    spops_plan base;
    int64_t max_points, max_voxels;
    spops_voxel_points points;
    uint32_t seed;       // RANDOM
    int32_t most_points; // 1 or more
    double size[SPOPS_MAX_DIMS], origin[SPOPS_MAX_DIMS];
    spops_coords *coords;
    spops_segments *segments;
    bool has_coords; // an update has brought them
    // In backend memory; one block.
    int32_t *num_points; // [max_voxels]
    int32_t *chosen;     // [max_voxels], not with ALL
    int32_t *keys;       // [max_points], not with ALL
    uint64_t *ranks;     // [max_voxels][most_points], not with ALL
    // With ALL, where the backend fills them with the coordinates: a voxel's points, from which the
    // segments are made without another sort. Only while they are made, unless they are made again.
    int32_t *point_offsets; // [max_voxels + 1]
    int32_t *voxel_points;  // [max_points]
    void *own;              // all of these
    size_t own_bytes;
};

enum { MOST_POINTS_OF_VOXEL = 1024 };

// Fields of a description.
enum {
    DIMS,
    MAX_POINTS,
    MAX_VOXELS,
    ORDER,
    SEARCH,
    LOWER,
    UPPER = LOWER + SPOPS_KEY_COLUMNS,
    POINTS = UPPER + SPOPS_KEY_COLUMNS,
    SEED,
    MAX_COLS,
    GRADIENTS,
    SIZE_M,
    ORIGIN_M = SIZE_M + SPOPS_MAX_DIMS,
    MOST_POINTS = ORIGIN_M + SPOPS_MAX_DIMS,
    NUM_FIELDS
};
static const spops_coords_fields coords_fields = {DIMS, ORDER, SEARCH, LOWER, UPPER};

// ---- Points -------------------------------------------------------------------------------------

spops_status spops_check_voxel_size(spops_context *ctx, const char *call, int32_t dims,
                                    const double *size_m, const double *origin_m)
{
    for (int a = 0; a < dims; ++a) {
        SPOPS_REQUIRE(ctx, isfinite(size_m[a]) && size_m[a] > 0.0,
                      "%s: size_m[%d] is %g, expected more than 0 on each of %" PRId32 " axes",
                      call, a, size_m[a], dims);
        SPOPS_REQUIRE(ctx, isfinite(origin_m[a]),
                      "%s: origin_m[%d] is %g, expected a finite number", call, a, origin_m[a]);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_points_source(spops_context *ctx, const char *call, int32_t dims,
                                 spops_matrix points, const int32_t *batch, const double *size_m,
                                 const double *origin_m, spops_coords_source *source)
{
    SPOPS_REQUIRE(ctx, points.cols >= dims,
                  "%s: points.cols is %" PRId64 ", expected at least %" PRId32 ", a column an axis",
                  call, points.cols, dims);
    SPOPS_TRY(spops_check_count(ctx, call, "points.rows", points.rows));
    SPOPS_TRY(spops_check_matrix(ctx, call, "points", points, points.rows, points.cols,
                                 1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_F16));
    if (batch != NULL) SPOPS_TRY(spops_check_indices(ctx, call, "batch", batch, points.rows));
    memset(source, 0, sizeof *source);
    source->kind = SPOPS_COORDS_POINTS;
    source->dims = dims;
    source->max_items = source->max_candidates = points.rows;
    source->points = points;
    source->points.cols = dims;
    source->points.row_stride = spops_row_step(points);
    source->batch = batch;
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        source->size[a] = a < source->dims ? size_m[a] : 1.0;
        source->origin[a] = a < source->dims ? origin_m[a] : 0.0;
    }
    return SPOPS_STATUS_OK;
}

// The box of the voxels that meet the range.
static spops_status read_range(spops_context *ctx, const char *call, int32_t dims,
                               const spops_voxels_options *o, spops_coords_choices *choices)
{
    memset(&choices->box, 0, sizeof choices->box);
    for (int a = 0; a < dims; ++a) {
        // A border that rounding puts next to a voxel's is that voxel's.
        double side[2];
        const double given[2] = {o->lower_m[a], o->upper_m[a]};
        SPOPS_REQUIRE(ctx, isfinite(given[0]) && isfinite(given[1]) && given[0] < given[1],
                      "%s: the range of axis %d is %g to %g, expected lower_m less than upper_m",
                      call, a, given[0], given[1]);
        for (int k = 0; k < 2; ++k) {
            const double u = (given[k] - o->origin_m[a]) / o->size_m[a], near = rint(u);
            const bool on_border = fabs(u - near) <= 1e-6;
            side[k] = on_border ? near : k == 0 ? floor(u) : ceil(u);
        }
        side[1] -= 1.0;
        SPOPS_REQUIRE(ctx, side[0] >= (double)INT32_MIN && side[1] <= (double)INT32_MAX,
                      "%s: the range of axis %d is voxels %.15g to %.15g, expected 32 bits", call,
                      a, side[0], side[1]);
        if (side[1] < side[0]) side[1] = side[0];
        choices->box.lower[a + 1] = (int32_t)side[0];
        choices->box.upper[a + 1] = (int32_t)side[1];
    }
    choices->has_box = true;
    return SPOPS_STATUS_OK;
}

static spops_status read_options(spops_context *ctx, const char *call, int32_t dims,
                                 const spops_voxels_options *options, spops_voxels_options *o,
                                 spops_coords_choices *choices)
{
    memset(o, 0, sizeof *o);
    SPOPS_TRY(spops_read_options(ctx, call, options, o, sizeof *o));
    SPOPS_REQUIRE(ctx, o->most_points >= 0 && o->most_points <= MOST_POINTS_OF_VOXEL,
                  "%s: most_points is %" PRId32 ", expected 0 to %d", call, o->most_points,
                  MOST_POINTS_OF_VOXEL);
    SPOPS_REQUIRE(ctx,
                  o->most_points <= 1 || o->points == SPOPS_VOXEL_POINTS_FIRST ||
                      o->points == SPOPS_VOXEL_POINTS_RANDOM,
                  "%s: most_points is %" PRId32 ", expected 0 or 1 with points = %d", call,
                  o->most_points, (int)o->points);
    SPOPS_TRY(spops_check_voxel_size(ctx, call, dims, o->size_m, o->origin_m));
    SPOPS_REQUIRE(ctx,
                  o->points >= SPOPS_VOXEL_POINTS_ALL && o->points <= SPOPS_VOXEL_POINTS_RANDOM,
                  "%s: points is %d, expected %d to %d", call, (int)o->points,
                  (int)SPOPS_VOXEL_POINTS_ALL, (int)SPOPS_VOXEL_POINTS_RANDOM);
    SPOPS_TRY(spops_check_gradients(ctx, call, o->gradients));
    SPOPS_TRY(spops_check_max_cols(ctx, call, &o->max_cols));
    SPOPS_TRY(spops_coords_read_options(ctx, call, dims, o->coords, choices));
    SPOPS_REQUIRE(ctx, o->dims == 0 || o->dims == dims,
                  "%s: options.dims is %" PRId32 ", expected 0 or %" PRId32, call, o->dims, dims);
    SPOPS_REQUIRE(ctx, o->crop == 0 || o->crop == 1, "%s: crop is %" PRId32 ", expected 0 or 1",
                  call, o->crop);
    if (!o->crop) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, !choices->has_box,
                  "%s: coords.box is given, expected NULL: crop makes the box", call);
    return read_range(ctx, call, dims, o, choices);
}

// The batches from 0 on that points are of, into the box.
static spops_status find_batches(spops_context *ctx, const char *call, const int32_t *batch,
                                 int64_t num_points, spops_coords_box *box)
{
    spops_coords_bounds bounds;
    int32_t value;
    // Rows without an axis, whose first column is all there is.
    const spops_coords_source rows = {
        .kind = SPOPS_COORDS_ROWS, .max_items = num_points, .rows = batch};
    const spops_coords_bounds_args args = {.source = &rows, .bounds = &bounds};
    if (num_points == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, coords_bounds);
    memset(&bounds, 0, sizeof bounds);
    SPOPS_TRY(ctx->backend->coords_bounds(ctx, &args));
    if (bounds.bad_item >= 0) {
        SPOPS_TRY(ctx->backend->download(ctx, &value, batch + bounds.bad_item, sizeof value));
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: batch[%" PRId64 "] is %" PRId32 ", expected at least 0", call,
                          bounds.bad_item, value);
    }
    box->upper[0] = bounds.upper[0];
    return SPOPS_STATUS_OK;
}

// ---- Making voxels ------------------------------------------------------------------------------

// Whether coords_build gives a voxel's points.
static bool points_by_voxel(const spops_voxels *v)
{
    return v->points == SPOPS_VOXEL_POINTS_ALL && v->base.ctx->backend->kind == SPOPS_BACKEND_CPU;
}

// Whether the lists say how many points a voxel has, which is all that is asked of them.
static bool counted_by_lists(const spops_voxels *v)
{
    return v->points == SPOPS_VOXEL_POINTS_ALL && v->base.ctx->backend->kind == SPOPS_BACKEND_CUDA;
}

static void carve_points(spops_voxels *v, int64_t max_voxels, spops_carver *c)
{
    v->point_offsets = spops_carve(c, max_voxels + 1, 1, sizeof *v->point_offsets);
    v->voxel_points = spops_carve(c, v->max_points, 1, sizeof *v->voxel_points);
}

static void carve_voxels(spops_plan *plan, spops_carver *c)
{
    spops_voxels *v = (spops_voxels *)plan;
    const bool choose = v->points != SPOPS_VOXEL_POINTS_ALL;
    const size_t begin = c->used;
    v->num_points = spops_carve(c, v->max_voxels, 1, sizeof *v->num_points);
    v->chosen = choose ? spops_carve(c, v->max_voxels, 1, sizeof *v->chosen) : NULL;
    v->keys = choose ? spops_carve(c, v->max_points, 1, sizeof *v->keys) : NULL;
    v->ranks = choose ? spops_carve(c, v->max_voxels, v->most_points, sizeof *v->ranks) : NULL;
    if (v->base.refillable && points_by_voxel(v)) carve_points(v, v->max_voxels, c);
    v->own = spops_plan_carved(c, begin, &v->own_bytes);
}

static void set_options(const spops_voxels_options *o, int64_t max_points, spops_voxels *v)
{
    v->max_points = max_points;
    v->points = o->points;
    v->seed = o->seed;
    v->most_points = o->most_points > 0 ? o->most_points : 1;
    memcpy(v->size, o->size_m, sizeof v->size);
    memcpy(v->origin, o->origin_m, sizeof v->origin);
}

static void put_options(const spops_voxels_options *o, int64_t *fields)
{
    fields[POINTS] = o->points;
    fields[SEED] = o->seed;
    fields[MOST_POINTS] = o->most_points > 0 ? o->most_points : 1;
    fields[MAX_COLS] = o->max_cols;
    fields[GRADIENTS] = o->gradients;
    spops_plan_put_f64s(fields + SIZE_M, o->size_m, SPOPS_MAX_DIMS);
    spops_plan_put_f64s(fields + ORIGIN_M, o->origin_m, SPOPS_MAX_DIMS);
}

static void put_fields(spops_voxels *v, const spops_voxels_options *o)
{
    spops_coords_put_fields(v->coords, &coords_fields, v->base.fields);
    v->base.fields[MAX_POINTS] = v->max_points;
    v->base.fields[MAX_VOXELS] = v->max_voxels;
    put_options(o, v->base.fields);
}

// Segments of voxels that have their coordinates.
static spops_status make_segments(spops_context *ctx, const char *call,
                                  const spops_voxels_options *o, spops_voxels *v)
{
    spops_segments_sizes sizes;

    v->max_voxels = v->coords->arrays.max_rows;
    v->coords->grid.known = true;
    memcpy(v->coords->grid.size, v->size, sizeof v->size);
    memcpy(v->coords->grid.origin, v->origin, sizeof v->origin);
    put_fields(v, o);
    memset(&sizes, 0, sizeof sizes);
    sizes.num_segments = v->max_voxels;
    sizes.max_terms = sizes.num_rows = sizes.num_weights = sizes.num_sources = v->max_points;
    sizes.max_cols = o->max_cols;
    sizes.gradients = o->gradients;
    sizes.refillable = v->base.refillable;
    sizes.weights_unique = true; // a point is its own weight
    sizes.pairs = sizes.order = true;
    sizes.in_order = points_by_voxel(v);
    SPOPS_TRY(spops_segments_alloc(ctx, call, &sizes, &v->segments));
    spops_plan_adopt(&v->base, &v->segments->base);
    return SPOPS_STATUS_OK;
}

// Enqueue what follows the coordinates: the points that count, and the lists.
static spops_status enqueue_segments(spops_context *ctx, const spops_coords_source *source,
                                     const spops_voxels *v)
{
    spops_voxel_points_args args;
    spops_lists_source terms;

    memset(&args, 0, sizeof args);
    args.source = source;
    args.coords = &v->coords->arrays;
    args.points = v->points;
    args.seed = v->seed;
    args.num_points = v->num_points;
    args.point_offsets = v->point_offsets;
    args.chosen = v->chosen;
    args.keys = v->keys;
    args.most_points = v->most_points;
    args.ranks = v->ranks;
    memset(&terms, 0, sizeof terms);
    if (counted_by_lists(v))
        terms.counts = v->num_points;
    else
        SPOPS_TRY(ctx->backend->voxel_points(ctx, &args));
    if (points_by_voxel(v)) {
        terms.offsets = v->point_offsets;
        terms.num_terms_device = v->point_offsets + v->max_voxels;
        terms.a = terms.b = terms.term = v->voxel_points;
    } else {
        terms.keys = v->keys != NULL ? v->keys : v->coords->arrays.item_row;
    }
    terms.num_terms = v->max_points;
    terms.drop_invalid = true;
    terms.a_limit = terms.b_limit = v->max_points;
    return spops_segments_enqueue_build(ctx, v->segments, &terms);
}

spops_status spops_voxels_create(spops_context *ctx, spops_matrix points, const int32_t *batch,
                                 const spops_voxels_options *options, spops_voxels **out)
{
    static const char call[] = "voxels_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_voxels_options o;
    spops_coords_choices choices;
    spops_coords_source source;
    spops_coords_box box;
    spops_voxels *v = NULL;
    spops_carver carver = {NULL, 0};
    void *by_voxel = NULL;

    memset(&o, 0, sizeof o);
    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_read_options(ctx, call, options, &o, sizeof o));
    const int64_t dims = o.dims != 0 ? o.dims : points.cols;
    SPOPS_TRY(spops_coords_check_dims(ctx, call, dims));
    SPOPS_TRY(read_options(ctx, call, (int32_t)dims, options, &o, &choices));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_TRY(spops_points_source(ctx, call, (int32_t)dims, points, batch, o.size_m, o.origin_m,
                                  &source));
    if (o.crop) {
        box = choices.box;
        if (batch != NULL) SPOPS_TRY(find_batches(ctx, call, batch, points.rows, &box));
    } else {
        SPOPS_TRY(spops_coords_find_box(ctx, call, &source, &choices, &box, &choices.ascending));
    }

    SPOPS_REQUIRE_SLOT(ctx, call, voxel_points);
    v = spops_plan_alloc(ctx, SPOPS_PLAN_VOXELS);
    if (v == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    set_options(&o, points.rows, v);
    if (points_by_voxel(v)) {
        carve_points(v, v->max_points, &carver); // of voxels there are no more
        SPOPS_TRY_GOTO(spops_backend_alloc(ctx, carver.used, &by_voxel), status, fail);
        carver = (spops_carver){by_voxel, 0};
        carve_points(v, v->max_points, &carver);
        source.row_offsets = v->point_offsets;
        source.row_items = v->voxel_points;
    }
    SPOPS_TRY_GOTO(spops_coords_make(ctx, call, &source, &choices, &box, &v->coords), status, fail);
    spops_plan_adopt(&v->base, &v->coords->base);
    SPOPS_TRY_GOTO(make_segments(ctx, call, &o, v), status, fail);
    SPOPS_TRY_GOTO(spops_plan_give_memory(ctx, call, &v->base), status, fail);
    SPOPS_TRY_GOTO(enqueue_segments(ctx, &source, v), status, fail);
    SPOPS_TRY_GOTO(spops_segments_finish(ctx, v->segments), status, fail);
    spops_backend_free(ctx, by_voxel, carver.used);
    v->point_offsets = v->voxel_points = NULL;
    *out = v;
    return SPOPS_STATUS_OK;

fail:
    spops_backend_free(ctx, by_voxel, carver.used);
    spops_voxels_destroy(v);
    return status;
}

static spops_status empty_voxels(spops_context *ctx, spops_plan *plan)
{
    spops_voxels *v = (spops_voxels *)plan;
    SPOPS_TRY(ctx->backend->fill_zero(ctx, v->own, v->own_bytes));
    return spops_plan_empty_parts(ctx, plan);
}

spops_status spops_voxels_reserve(spops_context *ctx, int32_t dims, int64_t max_points,
                                  int64_t max_voxels, const spops_voxels_options *options,
                                  spops_voxels **out)
{
    static const char call[] = "voxels_reserve";
    spops_voxels_options o;
    spops_coords_choices choices;
    int64_t fields[NUM_FIELDS] = {0};

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_coords_check_dims(ctx, call, dims));
    SPOPS_TRY(spops_check_count(ctx, call, "max_points", max_points));
    SPOPS_TRY(spops_check_count(ctx, call, "max_voxels", max_voxels));
    SPOPS_TRY(read_options(ctx, call, dims, options, &o, &choices));
    SPOPS_REQUIRE(ctx, choices.memory == NULL,
                  "%s: coords.memory is given, expected NULL: memory serves all", call);

    SPOPS_TRY(spops_coords_choose_search(ctx, call, dims, max_voxels, &choices));
    put_options(&o, fields);
    fields[MAX_POINTS] = max_points;
    fields[MAX_VOXELS] = max_voxels;
    spops_coords_put_choices(dims, &choices, &coords_fields, fields);
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_VOXELS, fields, o.memory, out);
}

static spops_status read_voxels(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_voxels *v = (spops_voxels *)plan;
    spops_voxels_options given = spops_voxels_options_default(), o;
    spops_coords_choices unused;
    const int64_t *fields = plan->fields;
    int32_t points;

    SPOPS_REQUIRE_SLOT(ctx, call, voxel_points);
    SPOPS_TRY(spops_check_count(ctx, call, "max_points", fields[MAX_POINTS]));
    SPOPS_TRY(spops_check_count(ctx, call, "max_voxels", fields[MAX_VOXELS]));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, SPOPS_PLAN_VOXELS, fields, POINTS, 1, &points));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SEED, 0, UINT32_MAX));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MOST_POINTS, 1, MOST_POINTS_OF_VOXEL));
    SPOPS_TRY(spops_check_gradients_field(ctx, call, fields[GRADIENTS], &given.gradients));
    spops_plan_get_f64s(fields + SIZE_M, given.size_m, SPOPS_MAX_DIMS);
    spops_plan_get_f64s(fields + ORIGIN_M, given.origin_m, SPOPS_MAX_DIMS);
    given.max_cols = fields[MAX_COLS];
    given.points = (spops_voxel_points)points;
    given.seed = (uint32_t)fields[SEED];
    given.most_points = (int32_t)fields[MOST_POINTS];
    SPOPS_TRY(spops_coords_read_part(ctx, call, fields, &coords_fields, fields[MAX_VOXELS],
                                     fields[MAX_POINTS], &v->coords));
    SPOPS_TRY(read_options(ctx, call, v->coords->arrays.layout.dims, &given, &o, &unused));
    set_options(&o, fields[MAX_POINTS], v);
    return make_segments(ctx, call, &o, v);
}

const spops_plan_ops spops_voxels_plan_ops = {
    .handle_bytes = sizeof(struct spops_voxels),
    .num_fields = NUM_FIELDS,
    .read = read_voxels,
    .carve = carve_voxels,
    .empty = empty_voxels,
    .relation = spops_relation_of_part,
};

// The points that a refill brings.
static spops_status read_points(spops_context *ctx, const char *call, const spops_voxels *voxels,
                                const int32_t *num_points, spops_matrix points,
                                const int32_t *batch, spops_coords_source *source)
{
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "voxels", voxels));
    SPOPS_TRY(spops_check_indices(ctx, call, "num_points", num_points, 1));
    SPOPS_REQUIRE(ctx, points.rows == voxels->max_points,
                  "%s: points.rows is %" PRId64 ", expected max_points = %" PRId64, call,
                  points.rows, voxels->max_points);
    SPOPS_TRY(spops_points_source(ctx, call, voxels->coords->arrays.layout.dims, points, batch,
                                  voxels->size, voxels->origin, source));
    source->num_items = num_points;
    source->row_offsets = voxels->point_offsets;
    source->row_items = voxels->voxel_points;
    return SPOPS_STATUS_OK;
}

static spops_status fill_coords(spops_context *ctx, const char *call, spops_voxels *voxels,
                                const int32_t *num_points, spops_matrix points,
                                const int32_t *batch, spops_coords_source *source)
{
    SPOPS_TRY(read_points(ctx, call, voxels, num_points, points, batch, source));
    SPOPS_TRY(spops_coords_fill(ctx, call, voxels->coords, source));
    voxels->has_coords = true;
    return SPOPS_STATUS_OK;
}

spops_status spops_voxels_update(spops_context *ctx, spops_voxels *voxels,
                                 const int32_t *num_points, spops_matrix points,
                                 const int32_t *batch)
{
    static const char call[] = "voxels_update";
    spops_coords_source source;

    SPOPS_TRY(fill_coords(ctx, call, voxels, num_points, points, batch, &source));
    return enqueue_segments(ctx, &source, voxels);
}

spops_status spops_voxels_update_coords(spops_context *ctx, spops_voxels *voxels,
                                        const int32_t *num_points, spops_matrix points,
                                        const int32_t *batch)
{
    static const char call[] = "voxels_update_coords";
    spops_coords_source source;

    return fill_coords(ctx, call, voxels, num_points, points, batch, &source);
}

spops_status spops_voxels_update_segments(spops_context *ctx, spops_voxels *voxels,
                                          const int32_t *num_points, spops_matrix points,
                                          const int32_t *batch)
{
    static const char call[] = "voxels_update_segments";
    spops_coords_source source;

    SPOPS_TRY(read_points(ctx, call, voxels, num_points, points, batch, &source));
    SPOPS_REQUIRE(ctx, voxels->has_coords,
                  "%s: voxels have no coordinates, expected voxels_update_coords before", call);
    return enqueue_segments(ctx, &source, voxels);
}

const spops_coords *spops_voxels_coords(const spops_voxels *voxels)
{
    return voxels == NULL ? NULL : voxels->coords;
}

const spops_segments *spops_voxels_segments(const spops_voxels *voxels)
{
    return voxels == NULL ? NULL : voxels->segments;
}

spops_status spops_voxels_places(spops_context *ctx, const char *call, const spops_voxels *voxels,
                                 spops_voxel_places *places)
{
    SPOPS_TRY(spops_plan_check(ctx, call, "voxels", voxels));
    SPOPS_REQUIRE(ctx, voxels->points != SPOPS_VOXEL_POINTS_ALL,
                  "%s: voxels has all points of each, expected voxels of points FIRST, NEAREST or "
                  "RANDOM",
                  call);
    *places = (spops_voxel_places){.max_points = voxels->max_points,
                                   .max_voxels = voxels->max_voxels,
                                   .most_points = voxels->most_points,
                                   .num_points = voxels->num_points,
                                   .chosen = voxels->chosen,
                                   .keys = voxels->keys,
                                   .ranks = voxels->ranks};
    return SPOPS_STATUS_OK;
}

void spops_voxels_show(const spops_voxels *voxels, spops_voxels_view *view)
{
    view->max_points = voxels->max_points;
    view->max_voxels = voxels->max_voxels;
    view->point_voxel = voxels->coords->arrays.item_row;
    view->num_points = voxels->num_points;
    view->chosen_point = voxels->chosen;
}

spops_status spops_voxels_get_view(spops_context *ctx, const spops_voxels *voxels,
                                   spops_voxels_view *view)
{
    static const char call[] = "voxels_get_view";
    spops_voxels_view found = spops_voxels_view_default();
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "voxels", voxels));
    spops_voxels_show(voxels, &found);
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}

spops_status spops_points_get_bounds_sync(spops_context *ctx, spops_matrix points, float *lower,
                                          float *upper)
{
    static const char call[] = "points_get_bounds_sync";
    static const spops_reduce reduces[] = {SPOPS_REDUCE_MIN, SPOPS_REDUCE_MAX};
    spops_segments_options options = spops_segments_options_default();
    float *const found[] = {lower, upper};
    spops_status status = SPOPS_STATUS_OK;
    spops_segments *all = NULL;
    void *block = NULL;
    uint16_t *narrow = NULL;
    size_t bytes;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_check_object(ctx, call, "lower", lower, _Alignof(float)));
    SPOPS_TRY(spops_check_object(ctx, call, "upper", upper, _Alignof(float)));
    SPOPS_TRY(spops_check_count(ctx, call, "points.rows", points.rows));
    SPOPS_TRY(spops_check_matrix(ctx, call, "points", points, points.rows, points.cols,
                                 1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_F16));
    const spops_argument in = spops_plain_argument("points", points);
    const spops_argument outs[] = {
        spops_array_argument("lower", lower, points.cols, SPOPS_DTYPE_F32),
        spops_array_argument("upper", upper, points.cols, SPOPS_DTYPE_F32)};
    SPOPS_TRY(spops_check_apart(ctx, call, outs, 2, &in, 1));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    for (int64_t c = 0; c < points.cols; ++c) {
        lower[c] = INFINITY;
        upper[c] = -INFINITY;
    }
    if (points.rows == 0 || points.cols == 0) return SPOPS_STATUS_OK;

    // All points are one segment.
    const int32_t offsets[2] = {0, (int32_t)points.rows};
    bytes = (size_t)points.cols * spops_dtype_bytes(points.dtype);
    options.max_cols = points.cols;
    SPOPS_TRY_GOTO(
        spops_backend_alloc(ctx, bytes > sizeof offsets ? bytes : sizeof offsets, &block), status,
        done);
    SPOPS_TRY_GOTO(ctx->backend->upload(ctx, block, offsets, sizeof offsets), status, done);
    SPOPS_TRY_GOTO(spops_segments_create(ctx, 1, block, &options, &all), status, done);
    narrow = spops_host_alloc(ctx, points.cols, sizeof(float));
    if (narrow == NULL) {
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        goto done;
    }
    for (int i = 0; i < 2; ++i) {
        const spops_matrix out = spops_matrix_dense(block, 1, points.cols, points.dtype);
        const bool wide = points.dtype == SPOPS_DTYPE_F32;
        SPOPS_TRY_GOTO(spops_segreduce_execute(ctx, all, reduces[i], points, NULL, out, NULL),
                       status, done);
        SPOPS_TRY_GOTO(
            ctx->backend->download(ctx, wide ? (void *)found[i] : (void *)narrow, block, bytes),
            status, done);
        for (int64_t c = 0; c < points.cols && !wide; ++c)
            found[i][c] = spops_float_of_f16(narrow[c]);
    }

done:
    spops_host_free(ctx, narrow, points.cols, sizeof(float));
    spops_segments_destroy(all);
    spops_backend_free(ctx, block, bytes > sizeof offsets ? bytes : sizeof offsets);
    return status;
}
