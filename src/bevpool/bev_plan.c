// SPDX-License-Identifier: Apache-2.0
// BEV plans: from geometry, from arrays and bytes, and back. A plan is one of segments whose
// segments are cells, rows are pixels and weights are depth elements; this file makes and names
// those numbers.
#include "bevpool/bev_plan.h"

#include <string.h>

#include "kernels/bevpool/bev_spans_tuning.h"

#define SCRATCH_ELEMENT_BYTES 4 // the widest dtype of features

// Fields of a description.
enum {
    NUM_BATCHES,
    NUM_CAMERAS,
    NUM_DEPTHS,
    FEATURE_HEIGHT,
    FEATURE_WIDTH,
    NUM_CELLS_X,
    NUM_CELLS_Y,
    NUM_CELLS_Z,
    INPUT_HEIGHT,
    INPUT_WIDTH,
    HAS_DEPTHS,
    MAX_COLS,
    NUM_INTS = MAX_COLS,
    BACKWARD = MAX_COLS + 1,
    DEPTH_START_M,
    DEPTH_STEP_M,
    GRID_LOWER_M,
    CELL_SIZE_M = GRID_LOWER_M + 3,
    NUM_FEATURES = CELL_SIZE_M + 3, // these follow from others
    NUM_CELLS,
    NUM_FIELDS
};

// What every way to a plan begins with.

spops_status spops_bev_read_options(spops_context *ctx, const char *call,
                                    const spops_bev_options *options, spops_bev_options *read)
{
    memset(read, 0, sizeof *read);
    SPOPS_TRY(spops_read_options(ctx, call, options, read, sizeof *read));
    SPOPS_TRY(spops_check_max_cols(ctx, call, &read->max_cols));
    SPOPS_REQUIRE(ctx, read->backward == 0 || read->backward == 1,
                  "%s: backward is %" PRId32 ", expected 0 or 1", call, read->backward);
    SPOPS_REQUIRE(ctx,
                  read->kernel >= SPOPS_BEV_KERNEL_AUTO && read->kernel <= SPOPS_BEV_KERNEL_SPANS,
                  "%s: kernel is %d, expected %d to %d", call, (int)read->kernel,
                  (int)SPOPS_BEV_KERNEL_AUTO, (int)SPOPS_BEV_KERNEL_SPANS);
    SPOPS_REQUIRE(ctx,
                  read->pool_variant == 0 || spops_bev_pool_variant_width(read->pool_variant) != 0,
                  "%s: pool_variant is %" PRId32 ", expected 0 to %d", call, read->pool_variant,
                  SPOPS_BEV_POOL_NUM_VARIANTS);
    if (read->kernel == SPOPS_BEV_KERNEL_SPANS && !spops_bev_has_spans(ctx))
        return spops_fail(
            ctx, SPOPS_STATUS_NOT_SUPPORTED,
            "%s: kernel is spans, which need the CUDA backend and a device of compute "
            "capability 8.0 or more",
            call);
    return SPOPS_STATUS_OK;
}

spops_gradients spops_bev_gradients(const spops_bev_options *options)
{
    return options->backward ? SPOPS_GRADIENTS_LINEAR : SPOPS_GRADIENTS_NONE;
}

// What calls need besides the scratch of the segments.
static void carve_rows(const spops_context *ctx, const spops_bev_counts *counts, int64_t max_cols,
                       spops_carver *carver, spops_bev_scratch *scratch)
{
    scratch->rows = spops_carve(carver, counts->num_cells, spops_bev_padded_cols(max_cols),
                                SCRATCH_ELEMENT_BYTES);
    scratch->feat_f16 = NULL;
    if (ctx->info.backend == SPOPS_BACKEND_CPU) // on a GPU rows are widened where they are read
        scratch->feat_f16 = spops_carve(carver, counts->num_features, max_cols, sizeof(uint16_t));
}

static void *carve_features(const spops_bev_plan *plan, spops_carver *carver)
{
    return spops_carve(carver, plan->counts.num_features,
                       spops_bev_padded_cols(plan->segments->max_cols), sizeof(uint16_t));
}

spops_bev_scratch spops_bev_carve_scratch(const spops_bev_plan *plan, spops_carver *carver)
{
    const bool spans = plan->spans.kernel == SPOPS_BEV_KERNEL_SPANS;
    const spops_bev_span_counts *counts = &plan->spans.cuts[SPOPS_BEV_CUT_NARROW].host_counts;
    spops_bev_scratch scratch;
    scratch.segments = spops_segments_carve_scratch(plan->segments, carver);
    carve_rows(plan->base.ctx, &plan->counts, plan->segments->max_cols, carver, &scratch);
    scratch.parts = NULL;
    scratch.feat = scratch.grad_feat = NULL;
    if (!spans) return scratch;
    // Either cut has as many shared parts.
    scratch.parts = spops_carve(carver, counts->num_shared_parts,
                                spops_bev_part_cols(plan->segments->max_cols), sizeof(float));
    scratch.feat = carve_features(plan, carver);
    if (plan->segments->gradients != SPOPS_GRADIENTS_NONE)
        scratch.grad_feat = carve_features(plan, carver);
    return scratch;
}

static size_t rows_bytes(const spops_context *ctx, const spops_bev_counts *counts, int64_t max_cols)
{
    spops_carver carver = {NULL, 0};
    spops_bev_scratch scratch;
    carve_rows(ctx, counts, max_cols, &carver, &scratch);
    return carver.used;
}

spops_status spops_bev_plan_alloc(spops_context *ctx, const spops_bev_shape *shape,
                                  const spops_bev_counts *counts, spops_bev_kernel kernel,
                                  spops_bev_plan **out)
{
    spops_bev_plan *plan = spops_plan_alloc(ctx, SPOPS_PLAN_BEV_PLAN);
    if (plan == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    plan->spans.kernel = kernel;
    plan->shape = *shape;
    plan->counts = *counts;
    plan->spans.num_cells = counts->num_cells;
    plan->spans.num_points = counts->num_points;
    *out = plan;
    return SPOPS_STATUS_OK;
}

static void put_shape(const spops_bev_shape *shape, int32_t input_height, int32_t input_width,
                      bool has_depths, int64_t *fields)
{
    fields[NUM_BATCHES] = shape->num_batches;
    fields[NUM_CAMERAS] = shape->num_cameras;
    fields[NUM_DEPTHS] = shape->num_depths;
    fields[FEATURE_HEIGHT] = shape->feature_height;
    fields[FEATURE_WIDTH] = shape->feature_width;
    fields[NUM_CELLS_X] = shape->num_cells_x;
    fields[NUM_CELLS_Y] = shape->num_cells_y;
    fields[NUM_CELLS_Z] = shape->num_cells_z;
    fields[INPUT_HEIGHT] = input_height;
    fields[INPUT_WIDTH] = input_width;
    fields[HAS_DEPTHS] = has_depths;
    fields[NUM_FEATURES] = (int64_t)shape->num_batches * shape->num_cameras *
                           shape->feature_height * shape->feature_width;
    fields[NUM_CELLS] =
        (int64_t)shape->num_batches * shape->num_cells_x * shape->num_cells_y * shape->num_cells_z;
}

static void put_points(const spops_bev_points_args *points, int64_t *fields)
{
    fields[DEPTH_START_M] = spops_plan_bits(points->depth_start_m);
    fields[DEPTH_STEP_M] = spops_plan_bits(points->depth_step_m);
    spops_plan_put_f64s(fields + GRID_LOWER_M, points->grid_lower_m, 3);
    spops_plan_put_f64s(fields + CELL_SIZE_M, points->cell_size_m, 3);
}

// Of a plan that is not refilled.
static void put_fields(spops_bev_plan *plan)
{
    int64_t *fields = plan->base.fields;
    put_shape(&plan->shape, plan->input_height, plan->input_width, plan->has_depths, fields);
    fields[MAX_COLS] = plan->segments->max_cols;
    fields[BACKWARD] = plan->segments->gradients != SPOPS_GRADIENTS_NONE;
    put_points(&plan->points, fields);
}

static void measure_scratch(spops_bev_plan *plan)
{
    spops_carver carver = {NULL, 0};
    (void)spops_bev_carve_scratch(plan, &carver);
    plan->base.scratch_bytes = carver.used;
}

// Of a plan that has its segments.
static spops_status reserve_scratch(spops_context *ctx, spops_bev_plan *plan)
{
    measure_scratch(plan);
    put_fields(plan);
    return spops_context_grow(ctx, plan->base.scratch_bytes);
}

// Once the plan has its segments: what rows its spans are for.
static void set_rows(spops_bev_plan *plan)
{
    plan->spans.max_cols = plan->segments->max_cols;
    plan->spans.backward = plan->segments->gradients != SPOPS_GRADIENTS_NONE;
}

// The cell, or -1, of every frustum point of an image; false where spans cannot say what it does:
// a point twice, or with another pixel's features.
static bool cells_of_image(const spops_bev_plan *plan, const spops_segments_image *image,
                           int32_t *cells)
{
    memset(cells, 0xff, (size_t)plan->counts.num_points * sizeof *cells);
    for (int64_t cell = 0; cell < image->num_segments; ++cell)
        for (int32_t i = image->offsets[cell]; i < image->offsets[cell + 1]; ++i) {
            const int32_t point = image->b[i];
            if (cells[point] >= 0 || image->a[i] != spops_bev_pixel_of(&plan->shape, point))
                return false;
            cells[point] = (int32_t)cell;
        }
    return true;
}

static spops_status build_image_spans(spops_context *ctx, const char *call,
                                      const spops_segments_image *image, spops_bev_plan *plan)
{
    spops_status status = SPOPS_STATUS_OK;
    const size_t n = (size_t)plan->counts.num_points;
    int32_t *cells = NULL;
    void *device_cells = NULL;

    if (!spops_bev_wants_spans(ctx, &plan->spans))
        return spops_bev_spans_finish(ctx, call, &plan->spans);
    cells = spops_host_alloc(ctx, n, sizeof *cells);
    if (cells == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    if (cells_of_image(plan, image, cells)) {
        SPOPS_TRY_GOTO(spops_backend_alloc(ctx, n * sizeof *cells, &device_cells), status, done);
        SPOPS_TRY_GOTO(ctx->backend->upload(ctx, device_cells, cells, n * sizeof *cells), status,
                       done);
        SPOPS_TRY_GOTO(spops_bev_spans_enqueue(ctx, call, &plan->spans, &plan->shape, device_cells),
                       status, done);
    } else if (plan->spans.kernel == SPOPS_BEV_KERNEL_SPANS) {
        status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                            "%s: kernel is spans, and some point is used twice or with the "
                            "features of another pixel",
                            call);
        goto done;
    }
    status = spops_bev_spans_finish(ctx, call, &plan->spans);

done:
    spops_backend_free(ctx, device_cells, n * sizeof *cells);
    spops_host_free(ctx, cells, n, sizeof *cells);
    return status;
}

spops_status spops_bev_plan_build_image(spops_context *ctx, const char *call,
                                        const spops_segments_image *image, spops_bev_plan *plan)
{
    SPOPS_TRY(spops_segments_image_build(
        ctx, call, image, rows_bytes(ctx, &plan->counts, image->max_cols), &plan->segments));
    spops_plan_adopt(&plan->base, &plan->segments->base);
    set_rows(plan);
    SPOPS_TRY(build_image_spans(ctx, call, image, plan));
    return reserve_scratch(ctx, plan);
}

// From geometry

// What the frustum is computed from and into, in the workspace of the segments.
typedef struct frustum {
    double *numbers; // transforms, then depths: one copy brings both
    int32_t *keys, *feat;
} frustum;

static int64_t num_transform_numbers(const spops_bev_counts *counts)
{
    return counts->num_transforms * SPOPS_BEV_TRANSFORM_DOUBLES;
}

static int64_t num_depth_numbers(const spops_bev_plan *plan)
{
    return plan->has_depths ? plan->shape.num_depths : 0;
}

static frustum carve_frustum(const spops_bev_plan *plan, spops_carver *carver)
{
    const spops_bev_counts *counts = &plan->counts;
    frustum f;
    f.numbers = spops_carve(carver, num_transform_numbers(counts) + num_depth_numbers(plan), 1,
                            sizeof *f.numbers);
    f.keys = spops_carve(carver, counts->num_points, 1, sizeof *f.keys);
    f.feat = spops_carve(carver, counts->num_points, 1, sizeof *f.feat);
    return f;
}

static double pixel_step(int32_t input, int32_t feature)
{
    return feature > 1 ? (double)(input - 1) / (double)(feature - 1) : 0.0;
}

static spops_bev_points_args points_args(const spops_bev_geometry *g)
{
    spops_bev_points_args args;
    memset(&args, 0, sizeof args);
    args.shape = g->shape;
    args.pixel_step_u = pixel_step(g->input_width, g->shape.feature_width);
    args.pixel_step_v = pixel_step(g->input_height, g->shape.feature_height);
    args.depth_start_m = g->depth_start_m;
    args.depth_step_m = g->depth_step_m;
    memcpy(args.grid_lower_m, g->grid_lower_m, sizeof args.grid_lower_m);
    memcpy(args.cell_size_m, g->cell_size_m, sizeof args.cell_size_m);
    return args;
}

// Once the segments have their memory.
static void place_frustum(spops_plan *base)
{
    spops_bev_plan *plan = (spops_bev_plan *)base;
    spops_carver carver = {plan->segments->extra, 0};
    const frustum f = carve_frustum(plan, &carver);
    plan->numbers = f.numbers;
    plan->points.keys = f.keys;
    plan->points.feat = f.feat;
    if (plan->has_depths && f.numbers != NULL)
        plan->points.depths_m = f.numbers + num_transform_numbers(&plan->counts);
}

// Transforms (where there are cameras) and depths to the backend.
static spops_status upload_numbers(spops_context *ctx, const char *call,
                                   const spops_bev_geometry *g, const spops_bev_plan *plan)
{
    const spops_bev_counts *counts = &plan->counts;
    spops_status status = SPOPS_STATUS_OK;
    const size_t num_transforms = (size_t)num_transform_numbers(counts);
    const size_t num_depths = (size_t)num_depth_numbers(plan);
    const size_t n = num_transforms + num_depths;
    double *numbers = NULL;

    if (g->cameras == NULL && num_depths == 0) return SPOPS_STATUS_OK;
    numbers = spops_host_alloc(ctx, n, sizeof *numbers);
    if (numbers == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    if (g->cameras != NULL)
        SPOPS_TRY_GOTO(
            spops_bev_make_transforms(ctx, call, g->cameras, counts->num_transforms, numbers),
            status, done);
    if (num_depths > 0) memcpy(numbers + num_transforms, g->depths_m, num_depths * sizeof *numbers);
    SPOPS_TRY_GOTO(ctx->backend->upload(ctx, plan->numbers, numbers, n * sizeof *numbers), status,
                   done);

done:
    spops_host_free(ctx, numbers, n, sizeof *numbers);
    return status;
}

// Enqueue frustum, ranks and lists.
static spops_status enqueue_points(spops_context *ctx, const spops_bev_plan *plan,
                                   const double *transforms)
{
    spops_bev_points_args args = plan->points;
    spops_lists_source source;

    args.transforms = transforms;
    SPOPS_TRY(ctx->backend->bev_points(ctx, &args));
    memset(&source, 0, sizeof source);
    source.keys = args.keys;
    source.num_terms = plan->counts.num_points;
    source.a = args.feat;
    source.drop_invalid = true;
    source.a_limit = plan->counts.num_features;
    source.b_limit = plan->counts.num_points;
    return spops_segments_enqueue_build(ctx, plan->segments, &source);
}

// The sizes of a plan, and its segments: a part of one that is refilled.
static spops_status set_sizes(spops_context *ctx, const char *call, const spops_bev_geometry *g,
                              const spops_bev_options *options, bool has_depths,
                              spops_bev_plan *plan)
{
    const spops_bev_counts *counts = &plan->counts;
    spops_carver carver = {NULL, 0};
    spops_segments_sizes sizes;

    plan->input_height = g->input_height;
    plan->input_width = g->input_width;
    plan->has_depths = has_depths;
    plan->points = points_args(g);
    memset(&sizes, 0, sizeof sizes);
    sizes.num_segments = counts->num_cells;
    sizes.max_terms = counts->num_points;
    sizes.num_rows = counts->num_features;
    sizes.num_weights = counts->num_points;
    sizes.num_sources = counts->num_points;
    sizes.max_cols = options->max_cols;
    sizes.gradients = spops_bev_gradients(options);
    sizes.refillable = plan->base.refillable;
    sizes.weights_unique = true; // a frustum point is its own weight
    sizes.pairs = sizes.order = true;
    (void)carve_frustum(plan, &carver);
    sizes.extra_bytes = carver.used;
    sizes.extra_scratch_bytes = rows_bytes(ctx, counts, options->max_cols);
    SPOPS_TRY(spops_segments_alloc(ctx, call, &sizes, &plan->segments));
    spops_plan_adopt(&plan->base, &plan->segments->base);
    return SPOPS_STATUS_OK;
}

spops_status spops_bev_plan_create(spops_context *ctx, const spops_bev_geometry *geometry,
                                   const spops_bev_options *options, spops_bev_plan **out)
{
    static const char call[] = "bev_plan_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_bev_plan *plan = NULL;
    spops_bev_geometry g;
    spops_bev_options o;
    spops_bev_counts counts;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_REQUIRE_SLOT(ctx, call, bev_points);
    SPOPS_TRY(spops_bev_read_geometry(ctx, call, geometry, &g, &counts));
    SPOPS_REQUIRE(ctx, g.cameras != NULL, "%s: cameras is NULL, expected %" PRId64 " cameras", call,
                  counts.num_transforms);
    SPOPS_TRY(spops_bev_read_options(ctx, call, options, &o));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_TRY(spops_bev_plan_alloc(ctx, &g.shape, &counts, o.kernel, &plan));
    plan->spans.pool_variant = o.pool_variant;
    SPOPS_TRY_GOTO(set_sizes(ctx, call, &g, &o, g.depths_m != NULL, plan), status, fail);
    set_rows(plan);
    place_frustum(&plan->base);
    SPOPS_TRY_GOTO(upload_numbers(ctx, call, &g, plan), status, fail);
    SPOPS_TRY_GOTO(enqueue_points(ctx, plan, plan->numbers), status, fail);
    if (spops_bev_wants_spans(ctx, &plan->spans))
        SPOPS_TRY_GOTO(
            spops_bev_spans_enqueue(ctx, call, &plan->spans, &plan->shape, plan->points.keys),
            status, fail);
    SPOPS_TRY_GOTO(spops_segments_finish(ctx, plan->segments), status, fail);
    SPOPS_TRY_GOTO(spops_bev_spans_finish(ctx, call, &plan->spans), status, fail);
    SPOPS_TRY_GOTO(reserve_scratch(ctx, plan), status, fail);
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_bev_plan_destroy(plan);
    return status;
}

spops_status spops_bev_plan_reserve(spops_context *ctx, const spops_bev_geometry *geometry,
                                    const spops_bev_options *options, spops_bev_plan **out)
{
    static const char call[] = "bev_plan_reserve";
    spops_bev_geometry g;
    spops_bev_options o;
    spops_bev_counts counts;
    spops_bev_points_args points;
    int64_t fields[NUM_FIELDS] = {0};
    spops_status status = SPOPS_STATUS_OK;
    spops_bev_plan *plan = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_REQUIRE_SLOT(ctx, call, bev_points);
    SPOPS_TRY(spops_bev_read_geometry(ctx, call, geometry, &g, &counts));
    SPOPS_TRY(spops_bev_read_options(ctx, call, options, &o));
    if (o.kernel == SPOPS_BEV_KERNEL_SPANS)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: kernel is spans, which a plan that is refilled does not have", call);
    SPOPS_REQUIRE(ctx, o.pool_variant == 0,
                  "%s: pool_variant is %" PRId32 ", and the plan pools by lists, expected 0", call,
                  o.pool_variant);
    put_shape(&g.shape, g.input_height, g.input_width, g.depths_m != NULL, fields);
    fields[MAX_COLS] = o.max_cols;
    fields[BACKWARD] = o.backward;
    points = points_args(&g);
    put_points(&points, fields);
    SPOPS_TRY(spops_plan_reserve(ctx, call, SPOPS_PLAN_BEV_PLAN, fields, o.memory, &plan));
    if (plan == NULL) return SPOPS_STATUS_OK; // it was measured
    SPOPS_TRY_GOTO(upload_numbers(ctx, call, &g, plan), status, fail);
    if (g.cameras != NULL) SPOPS_TRY_GOTO(enqueue_points(ctx, plan, plan->numbers), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_bev_plan_destroy(plan);
    return status;
}

static spops_status read_bev_plan(spops_context *ctx, const char *call, spops_plan *base)
{
    spops_bev_geometry given = spops_bev_geometry_default(), g;
    spops_bev_options wanted = spops_bev_options_default(), o;
    spops_bev_plan *plan = (spops_bev_plan *)base;
    const int64_t *fields = base->fields;
    int32_t numbers[NUM_INTS];
    bool has_depths;

    SPOPS_REQUIRE_SLOT(ctx, call, bev_points);
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, SPOPS_PLAN_BEV_PLAN, fields, 0, MAX_COLS, numbers));
    SPOPS_TRY(
        spops_plan_get_i32s(ctx, call, SPOPS_PLAN_BEV_PLAN, fields, BACKWARD, 1, &wanted.backward));
    SPOPS_TRY(spops_check_flag(ctx, call, "has_depths", numbers[HAS_DEPTHS]));
    has_depths = numbers[HAS_DEPTHS] == 1;
    given.shape = (spops_bev_shape){.num_batches = numbers[NUM_BATCHES],
                                    .num_cameras = numbers[NUM_CAMERAS],
                                    .num_depths = numbers[NUM_DEPTHS],
                                    .feature_height = numbers[FEATURE_HEIGHT],
                                    .feature_width = numbers[FEATURE_WIDTH],
                                    .num_cells_x = numbers[NUM_CELLS_X],
                                    .num_cells_y = numbers[NUM_CELLS_Y],
                                    .num_cells_z = numbers[NUM_CELLS_Z]};
    given.input_height = numbers[INPUT_HEIGHT];
    given.input_width = numbers[INPUT_WIDTH];
    given.depth_start_m = has_depths ? 0.0 : spops_plan_double(fields[DEPTH_START_M]);
    given.depth_step_m = has_depths ? 1.0 : spops_plan_double(fields[DEPTH_STEP_M]);
    spops_plan_get_f64s(fields + GRID_LOWER_M, given.grid_lower_m, 3);
    spops_plan_get_f64s(fields + CELL_SIZE_M, given.cell_size_m, 3);
    SPOPS_TRY(spops_bev_read_geometry(ctx, call, &given, &g, &plan->counts));
    SPOPS_TRY(spops_plan_derive(ctx, call, base, NUM_FEATURES, plan->counts.num_features));
    SPOPS_TRY(spops_plan_derive(ctx, call, base, NUM_CELLS, plan->counts.num_cells));
    wanted.max_cols = fields[MAX_COLS];
    SPOPS_TRY(spops_bev_read_options(ctx, call, &wanted, &o));
    plan->shape = g.shape;
    plan->spans.kernel = SPOPS_BEV_KERNEL_INTERVALS;
    SPOPS_TRY(set_sizes(ctx, call, &g, &o, has_depths, plan));
    if (has_depths) { // these are not looked at
        plan->points.depth_start_m = spops_plan_double(fields[DEPTH_START_M]);
        plan->points.depth_step_m = spops_plan_double(fields[DEPTH_STEP_M]);
    }
    measure_scratch(plan);
    return SPOPS_STATUS_OK;
}

static void destroy_bev_plan(spops_plan *plan)
{
    spops_bev_spans_free(plan->ctx, &((spops_bev_plan *)plan)->spans);
}

static size_t bytes_of_bev_plan(const spops_plan *plan)
{
    return ((const spops_bev_plan *)plan)->spans.block_bytes;
}

static const spops_plan_file bev_file;

const spops_plan_ops spops_bev_plan_plan_ops = {
    .handle_bytes = sizeof(struct spops_bev_plan),
    .num_fields = NUM_FIELDS,
    .read = read_bev_plan,
    .ready = place_frustum,
    .relation = spops_relation_of_part,
    .file = &bev_file,
    .destroy = destroy_bev_plan,
    .bytes = bytes_of_bev_plan,
};

spops_status spops_bev_plan_update(spops_context *ctx, spops_bev_plan *plan,
                                   const double *transforms)
{
    static const char call[] = "bev_plan_update";
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "plan", plan));
    SPOPS_REQUIRE(ctx, transforms != NULL, "%s: transforms is NULL", call);
    SPOPS_TRY(spops_check_aligned(ctx, call, "transforms", transforms, sizeof *transforms));
    return enqueue_points(ctx, plan, transforms);
}

// What can be asked of a plan

spops_status spops_bev_plan_get_info_sync(spops_context *ctx, const spops_bev_plan *plan,
                                          spops_bev_plan_info *info)
{
    static const char call[] = "bev_plan_get_info_sync";
    spops_bev_plan_info found;
    spops_schedule schedule;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "plan", plan));
    SPOPS_TRY(spops_segments_schedule_sync(ctx, plan->segments, &schedule));
    memset(&found, 0, sizeof found);
    found.shape = plan->shape;
    found.num_points = schedule.num_terms;
    found.num_intervals = schedule.num_nonempty;
    found.num_cells = plan->counts.num_cells;
    found.longest = schedule.longest;
    found.num_features = plan->counts.num_features;
    found.num_depths = plan->counts.num_points;
    found.kernel = plan->spans.kernel;
    if (plan->spans.block != NULL) {
        found.num_spans = plan->spans.cuts[SPOPS_BEV_CUT_NARROW].host_counts.num_spans;
        found.num_steps = plan->spans.cuts[SPOPS_BEV_CUT_NARROW].host_counts.num_steps;
        found.pool_variant = spops_bev_variant_for(&plan->spans, plan->segments->max_cols);
    }
    return spops_write_struct(ctx, call, "info", info, &found, sizeof found);
}

const spops_segments *spops_bev_plan_segments(const spops_bev_plan *plan)
{
    return plan == NULL ? NULL : plan->segments;
}

// Save and load: the shape, then the segments

typedef struct bev_image {
    spops_segments_image segments; // what is laid out by its own functions
    spops_bev_shape shape;
    spops_bev_counts counts;
} bev_image;

static void put_numbers(spops_file *f, void *to)
{
    bev_image *image = to;
    spops_file_numbers(f, &image->shape, sizeof image->shape / sizeof(int32_t), sizeof(int32_t));
    spops_segments_image_numbers(f, &image->segments);
}

_Static_assert(sizeof(bev_image) <= SPOPS_FILE_IMAGE_BYTES, "an image has no room");

static spops_status describe(spops_context *ctx, const char *call, const spops_plan *base, void *to)
{
    const spops_bev_plan *plan = (const spops_bev_plan *)base;
    bev_image *image = to;
    (void)call;
    image->shape = plan->shape;
    SPOPS_TRY(spops_segments_image_describe(ctx, plan->segments, &image->segments));
    image->segments.pools = true;
    return SPOPS_STATUS_OK;
}

static spops_status fetch(spops_context *ctx, const spops_plan *plan, void *image)
{
    return spops_segments_image_fetch(ctx, ((const spops_bev_plan *)plan)->segments, image);
}

static spops_status check_image(spops_context *ctx, const char *call, void *to)
{
    bev_image *image = to;
    spops_segments_image *s = &image->segments;
    spops_bev_counts *c = &image->counts;

    s->pools = true;
    SPOPS_TRY(spops_bev_check_shape(ctx, call, &image->shape, c));
    SPOPS_TRY(spops_segments_image_check(ctx, call, s));
    SPOPS_TRY(
        spops_file_check(ctx, call, "num_segments", s->num_segments, c->num_cells, c->num_cells));
    SPOPS_TRY(
        spops_file_check(ctx, call, "num_rows", s->num_rows, c->num_features, c->num_features));
    SPOPS_TRY(
        spops_file_check(ctx, call, "num_weights", s->num_weights, c->num_points, c->num_points));
    SPOPS_REQUIRE(ctx, s->num_terms == 0 || s->parts != 0, "%s: its points have no pixels", call);
    return spops_file_check(ctx, call, "gradients", s->gradients, 0, SPOPS_GRADIENTS_LINEAR);
}

static spops_status make(spops_context *ctx, const char *call, const void *from, void *out)
{
    const bev_image *image = from;
    spops_bev_plan *plan = NULL;
    spops_status status;

    SPOPS_TRY(spops_segments_image_check_arrays(ctx, call, &image->segments));
    SPOPS_TRY(
        spops_bev_plan_alloc(ctx, &image->shape, &image->counts, SPOPS_BEV_KERNEL_AUTO, &plan));
    status = spops_bev_plan_build_image(ctx, call, &image->segments, plan);
    if (status == SPOPS_STATUS_OK)
        *(spops_bev_plan **)out = plan;
    else
        spops_bev_plan_destroy(plan);
    return status;
}

static const spops_plan_file bev_file = {
    .magic = "SPOPBEV",
    .version = 4, // zeros are whole numbers
    .numbers = put_numbers,
    .place = spops_segments_image_place,
    .describe = describe,
    .fetch = fetch,
    .check = check_image,
    .make = make,
};
