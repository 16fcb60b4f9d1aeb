// SPDX-License-Identifier: Apache-2.0
// Interpolation between clouds: the nearest points of one cloud for each of another, weighted by their
// inverse distances.
#include <string.h>

#include "core/check.h"
#include "points/neighbors.h"
#include "segments/segments.h"
#include "spops/point_levels.h"

#define DEFAULT_COUNT 3

// Fields of a description.
enum { NUM_POINTS, NUM_FROM, COUNT, MAX_COLS, GRADIENTS, NUM_SAMPLES, NUM_FIELDS };

struct spops_interpolation {
    spops_plan base;
    spops_inverse_distances_args found; // [NUM_POINTS][COUNT], of which the weights stay
    int32_t *rows;
    float *distances2;
    spops_nearest *nearest; // a part, of one that is refilled
    spops_segments *segments;
};

// ---- Life cycle ---------------------------------------------------------------------------------

static int64_t num_terms_of(const spops_interpolation *it)
{
    return it->found.num_points * it->found.count;
}

static spops_status read_interpolation(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_interpolation *it = (spops_interpolation *)plan;
    int64_t *fields = plan->fields;
    spops_segments_sizes sizes;

    SPOPS_REQUIRE_SLOT(ctx, call, inverse_distances);
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_POINTS, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_FROM, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, COUNT, 0, SPOPS_MAX_NEAREST));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_SAMPLES, 1, SPOPS_MAX_COUNT));
    if (fields[COUNT] == 0) fields[COUNT] = DEFAULT_COUNT;
    SPOPS_REQUIRE(ctx, fields[NUM_POINTS] <= SPOPS_MAX_COUNT / fields[COUNT],
                  "%s: to has %" PRId64 " points with %d neighbours each, expected at most %" PRId64
                  " in all",
                  call, fields[NUM_POINTS], (int)fields[COUNT], SPOPS_MAX_COUNT);
    it->found.num_points = fields[NUM_POINTS];
    it->found.count = (int32_t)fields[COUNT];
    memset(&sizes, 0, sizeof sizes);
    SPOPS_TRY(spops_check_gradients_field(ctx, call, fields[GRADIENTS], &sizes.gradients));
    SPOPS_TRY(spops_check_max_cols(ctx, call, &fields[MAX_COLS]));
    sizes.num_segments = it->found.num_points;
    sizes.max_terms = sizes.num_weights = sizes.num_sources = num_terms_of(it);
    sizes.num_rows = fields[NUM_FROM];
    sizes.max_cols = fields[MAX_COLS];
    sizes.refillable = plan->refillable;
    sizes.weights_unique = true;
    sizes.pairs = sizes.order = true;
    SPOPS_TRY(spops_segments_alloc(ctx, call, &sizes, &it->segments));
    if (!plan->refillable) return SPOPS_STATUS_OK;
    return spops_nearest_reserve(ctx, fields[NUM_FROM], fields[NUM_SAMPLES], NULL, &it->nearest);
}

static void carve_interpolation(spops_plan *plan, spops_carver *c)
{
    spops_interpolation *it = (spops_interpolation *)plan;
    it->found.weights = spops_carve(c, num_terms_of(it), 1, sizeof *it->found.weights);
}

static void carve_workspace(spops_plan *plan, spops_carver *c)
{
    spops_interpolation *it = (spops_interpolation *)plan;
    const size_t begin = c->used;
    it->rows = spops_carve(c, num_terms_of(it), 1, sizeof *it->rows);
    it->found.points = spops_carve(c, num_terms_of(it), 1, sizeof *it->found.points);
    it->distances2 = spops_carve(c, num_terms_of(it), 1, sizeof *it->distances2);
    it->found.rows = it->rows;
    it->found.distances2 = it->distances2;
    plan->workspace = spops_plan_carved(c, begin, &(size_t){0});
}

static spops_status empty_interpolation(spops_context *ctx, spops_plan *plan)
{
    spops_interpolation *it = (spops_interpolation *)plan;
    const size_t bytes = (size_t)num_terms_of(it) * sizeof *it->found.weights;
    SPOPS_TRY(ctx->backend->fill_zero(ctx, it->found.weights, bytes));
    return spops_plan_empty_parts(ctx, plan);
}

const spops_plan_ops spops_interpolation_plan_ops = {
    .handle_bytes = sizeof(struct spops_interpolation),
    .num_fields = NUM_FIELDS,
    .read = read_interpolation,
    .carve = carve_interpolation,
    .carve_workspace = carve_workspace,
    .empty = empty_interpolation,
    .relation = spops_relation_of_part,
};

// ---- Making -------------------------------------------------------------------------------------

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_interpolation_options *given,
                                 int64_t fields[NUM_FIELDS], spops_plan_memory **memory)
{
    spops_interpolation_options o = {0};
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    fields[COUNT] = o.count;
    fields[MAX_COLS] = o.max_cols;
    fields[GRADIENTS] = o.gradients;
    *memory = o.memory;
    return SPOPS_STATUS_OK;
}

// Enqueue what follows the points that `to` is searched among.
static spops_status fill(spops_context *ctx, spops_interpolation *it, const spops_nearest *nearest,
                         const spops_point_cloud *to)
{
    const spops_nearest_args find = {&nearest->arrays, to, it->found.count, it->rows,
                                     it->distances2};
    const spops_lists_source terms = {.keys = it->found.points,
                                      .num_terms = num_terms_of(it),
                                      .a = it->rows,
                                      .drop_invalid = true, // of samples with too few points
                                      .a_limit = it->base.fields[NUM_FROM],
                                      .b_limit = num_terms_of(it)};

    if (it->found.num_points > 0) {
        SPOPS_TRY(ctx->backend->nearest_find(ctx, &find));
        SPOPS_TRY(ctx->backend->inverse_distances(ctx, &it->found));
    }
    return spops_segments_enqueue_build(ctx, it->segments, &terms);
}

// What nearest points are searched by.
static const char *const own_names[][2] = {{"inputs", "from"}, {NULL, NULL}};

spops_status spops_interpolation_create(spops_context *ctx, const spops_point_cloud *from,
                                        const spops_point_cloud *to,
                                        const spops_interpolation_options *given,
                                        spops_interpolation **out)
{
    static const char call[] = "interpolation_create";
    spops_status status = SPOPS_STATUS_OK;
    int64_t fields[NUM_FIELDS] = {0};
    spops_interpolation *it = NULL;
    spops_nearest *nearest = NULL;
    spops_plan_memory *memory;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(read_options(ctx, call, given, fields, &memory));
    SPOPS_TRY(spops_check_no_memory(ctx, call, memory));
    SPOPS_TRY(spops_cloud_check(ctx, call, "from", from));
    SPOPS_TRY(spops_cloud_check(ctx, call, "to", to));
    SPOPS_REQUIRE(ctx, spops_cloud_samples(to) == spops_cloud_samples(from),
                  "%s: to has %" PRId64 " samples, expected %" PRId64 " as from has", call,
                  spops_cloud_samples(to), spops_cloud_samples(from));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "to", to));
    fields[NUM_POINTS] = to->points.rows;
    fields[NUM_FROM] = from->points.rows;
    fields[NUM_SAMPLES] = spops_cloud_samples(from);
    SPOPS_TRY(spops_nearest_create(ctx, from, &nearest));
    SPOPS_TRY_GOTO(spops_plan_open(ctx, call, SPOPS_PLAN_INTERPOLATION, fields, &it), status, done);
    SPOPS_TRY_GOTO(fill(ctx, it, nearest, to), status, done);
    SPOPS_TRY_GOTO(spops_segments_finish(ctx, it->segments), status, done);
    spops_plan_close(&it->base);
    *out = it;

done:
    if (status != SPOPS_STATUS_OK) spops_interpolation_destroy(it);
    spops_nearest_destroy(nearest);
    return status;
}

spops_status spops_interpolation_reserve(spops_context *ctx, int64_t max_from, int64_t max_to,
                                         int64_t num_samples,
                                         const spops_interpolation_options *given,
                                         spops_interpolation **out)
{
    static const char call[] = "interpolation_reserve";
    int64_t fields[NUM_FIELDS] = {
        [NUM_POINTS] = max_to, [NUM_FROM] = max_from, [NUM_SAMPLES] = num_samples};
    spops_plan_memory *memory;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(read_options(ctx, call, given, fields, &memory));
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_INTERPOLATION, fields, memory, out);
}

spops_status spops_interpolation_update(spops_context *ctx, spops_interpolation *interpolation,
                                        const spops_point_cloud *from, const spops_point_cloud *to)
{
    static const char call[] = "interpolation_update";
    const int64_t *fields;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "interpolation", interpolation));
    fields = interpolation->base.fields;
    SPOPS_TRY(spops_cloud_check(ctx, call, "from", from));
    SPOPS_TRY(
        spops_cloud_check_full(ctx, call, "from", from, fields[NUM_FROM], fields[NUM_SAMPLES]));
    SPOPS_TRY(spops_cloud_check(ctx, call, "to", to));
    SPOPS_TRY(spops_cloud_check_full(ctx, call, "to", to, fields[NUM_POINTS], fields[NUM_SAMPLES]));
    SPOPS_TRY(spops_nearest_fill(ctx, interpolation->nearest, from));
    return fill(ctx, interpolation, interpolation->nearest, to);
}

// ---- What can be asked of it --------------------------------------------------------------------

const spops_segments *spops_interpolation_segments(const spops_interpolation *interpolation)
{
    return interpolation == NULL ? NULL : interpolation->segments;
}

spops_matrix spops_interpolation_weights(const spops_interpolation *interpolation)
{
    if (interpolation == NULL) return spops_matrix_dense(NULL, 0, 1, SPOPS_DTYPE_F32);
    return spops_matrix_dense(interpolation->found.weights, num_terms_of(interpolation), 1,
                              SPOPS_DTYPE_F32);
}
