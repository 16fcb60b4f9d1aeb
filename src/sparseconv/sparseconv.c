// SPDX-License-Identifier: Apache-2.0
// Sparse convolution: checks, the choice of a dataflow, and what each is composed of.
#include "spops/sparseconv.h"

#include "maps/kernel_maps.h"
#include "core/check.h"
#include "core/plan.h"
#include "core/matrix.h"
#include "igemm/igemm_args.h"
#include "segments/segments.h"
#include "sparseconv/dataflow.h"
#include "sparseconv/layer.h"
#include "tuning/choices.h"
#include "sparseconv/widen_args.h"

#define DEFAULT_MAX_CHANNELS 256

// IMPLICIT_GEMM has a schedule for each side that is not the other's mirror image.
enum { SIDE_OUT, SIDE_IN, NUM_SIDES };

// Fields of a description.
enum {
    NUM_OUT,
    NUM_IN,
    NUM_TAPS,
    MAX_IN_CHANNELS,
    MAX_OUT_CHANNELS,
    DATAFLOW,
    BACKWARD,
    QUANTIZED,
    NUM_FIELDS
};

struct spops_sparseconv {
    spops_plan base;
    const spops_kernel_map *map;
    spops_kernel_map_view view; // whose addresses stay
    spops_dataflow dataflow;    // as asked for
    bool backward;
    bool quantized;
    int64_t max_in_channels, max_out_channels;
    spops_triplets *triplets; // of the map's pairs; NULL where another dataflow serves every call

    bool has_igemm;   // its schedules are there, those of SIDE_IN with backward
    bool in_mirrored; // SIDE_IN runs on the schedules of SIDE_OUT
    spops_igemm_schedule schedules[NUM_SIDES];
    int32_t *workspaces[NUM_SIDES]; // of making them
    void *block;
    size_t block_bytes;
    size_t igemm_scratch_bytes;

    spops_dataflow_choice choice;
};

// ---- Options ------------------------------------------------------------------------------------

static spops_status read_plan_options(spops_context *ctx, const char *call,
                                      const spops_sparseconv_options *given,
                                      spops_sparseconv_options *options)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, options, sizeof *options));
    SPOPS_TRY(spops_check_reserved(ctx, call, options->reserved));
    SPOPS_REQUIRE(ctx, options->backward == 0 || options->backward == 1,
                  "%s: options->backward is %d, expected 0 or 1", call, (int)options->backward);
    SPOPS_REQUIRE(ctx, (unsigned)options->dataflow <= SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER,
                  "%s: options->dataflow is %d, expected 0 to %d", call, (int)options->dataflow,
                  SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER);
    SPOPS_REQUIRE(ctx, options->quantized == 0 || options->quantized == 1,
                  "%s: options->quantized is %d, expected 0 or 1", call, (int)options->quantized);
    SPOPS_REQUIRE(ctx, (unsigned)options->grouping <= SPOPS_GROUPING_ADAPTIVE,
                  "%s: options->grouping is %d, expected 0 to %d", call, (int)options->grouping,
                  SPOPS_GROUPING_ADAPTIVE);
    SPOPS_REQUIRE(ctx, options->epsilon >= 0.0 && options->epsilon <= 1.0,
                  "%s: options->epsilon is %g, expected 0 to 1", call, options->epsilon);
    SPOPS_REQUIRE(ctx, options->batch_rows >= 0,
                  "%s: options->batch_rows is %" PRId64 ", expected 0 or more", call,
                  options->batch_rows);
    SPOPS_REQUIRE(ctx, options->max_in_channels >= 0 && options->max_in_channels < INT32_MAX,
                  "%s: options->max_in_channels is %" PRId64 ", expected 0 to %d", call,
                  options->max_in_channels, INT32_MAX - 1);
    SPOPS_REQUIRE(ctx, options->max_out_channels >= 0 && options->max_out_channels < INT32_MAX,
                  "%s: options->max_out_channels is %" PRId64 ", expected 0 to %d", call,
                  options->max_out_channels, INT32_MAX - 1);
    SPOPS_TRY(spops_sparseconv_check_choices(ctx, call, "options->tuning", options->tuning,
                                             "options->num_tuning", options->num_tuning));
    if (options->max_in_channels == 0) options->max_in_channels = DEFAULT_MAX_CHANNELS;
    if (options->max_out_channels == 0) options->max_out_channels = DEFAULT_MAX_CHANNELS;
    return SPOPS_STATUS_OK;
}

// ---- Schedules of IMPLICIT_GEMM -----------------------------------------------------------------

static const spops_kernel_map_side *side_of(const spops_sparseconv *conv, int side)
{
    return side == SIDE_OUT ? conv->view.out : conv->view.in;
}

static void carve_schedules(spops_sparseconv *conv, spops_carver *c)
{
    const int sides = conv->backward && !conv->in_mirrored ? NUM_SIDES : 1;

    for (int side = 0; side < sides; ++side) {
        spops_igemm_schedule *s = &conv->schedules[side];
        s->num_taps = conv->view.num_taps;
        s->max_tiles =
            (side_of(conv, side)->max_rows + SPOPS_IGEMM_TILE_ROWS - 1) / SPOPS_IGEMM_TILE_ROWS;
        s->max_records = s->max_tiles * s->num_taps;
        s->num_tiles = spops_carve(c, 2, 1, sizeof *s->num_tiles);
        s->tiles = spops_carve(c, s->max_tiles, 4, sizeof *s->tiles);
        s->first = spops_carve(c, s->max_tiles + 1, 1, sizeof *s->first);
        s->out_rows = spops_carve(c, s->max_tiles, SPOPS_IGEMM_TILE_ROWS, sizeof *s->out_rows);
        s->records = spops_carve(c, s->max_records, SPOPS_IGEMM_RECORD_INTS, sizeof *s->records);
        conv->workspaces[side] =
            spops_carve(c, SPOPS_IGEMM_WORKSPACE(s->max_tiles), 1, sizeof(int32_t));
    }
}

// Whether the plan can have IMPLICIT_GEMM. If it was asked for by name, no is a failure.
static spops_status plan_igemm(spops_context *ctx, const char *call, spops_sparseconv *conv)
{
    const bool forced = conv->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM;
    spops_igemm_scratch_args scratch = {conv->view.num_taps, conv->max_in_channels,
                                        conv->max_out_channels, conv->backward, 0};
    const spops_igemm_prepare_args kernels = {.products = true, .gradients = conv->backward};
    spops_carver c = {NULL, 0};

    if (conv->dataflow != SPOPS_DATAFLOW_AUTO && !forced) return SPOPS_STATUS_OK;
    if (ctx->backend->igemm_exists == NULL || !ctx->backend->igemm_exists(ctx, &scratch)) {
        if (!forced) return SPOPS_STATUS_OK;
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: the %s backend has no %s%s", call,
                          ctx->backend->name, spops_dataflow_name(conv->dataflow),
                          ctx->backend->kind == SPOPS_BACKEND_CPU ? "" : " for this device");
    }
    if (conv->view.out->order == NULL ||
        (conv->backward && !conv->view.in->mirrored && conv->view.in->order == NULL)) {
        if (!forced) return SPOPS_STATUS_OK;
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: map was made without %s, expected it for %s", call,
                          conv->view.out->order == NULL ? "SPOPS_MAP_ORDER" : "SPOPS_MAP_REVERSE",
                          spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    }
    SPOPS_TRY(SPOPS_PREPARE(ctx, igemm_prepare, &kernels));
    conv->in_mirrored = conv->view.in->mirrored != 0;
    carve_schedules(conv, &c);
    SPOPS_TRY(spops_backend_alloc(ctx, c.used, &conv->block));
    conv->block_bytes = c.used;
    c.base = conv->block;
    c.used = 0;
    carve_schedules(conv, &c);
    conv->has_igemm = true;
    for (int side = 0; side < NUM_SIDES; ++side)
        if (conv->schedules[side].max_records > scratch.max_records)
            scratch.max_records = conv->schedules[side].max_records;
    conv->igemm_scratch_bytes = ctx->backend->igemm_scratch_bytes(ctx, &scratch);
    return spops_context_grow(ctx, conv->igemm_scratch_bytes);
}

enum { MAX_SCHEDULES = NUM_SIDES }; // of a plan

// What a plan's schedules are made from; returns how many there are.
static int32_t schedules_of(const spops_sparseconv *conv,
                            spops_igemm_schedule_args args[MAX_SCHEDULES])
{
    const int sides = conv->backward && !conv->in_mirrored ? NUM_SIDES : 1;
    int32_t n = 0;

    for (int side = 0; conv->has_igemm && side < sides; ++side) {
        const spops_kernel_map_side *of = side_of(conv, side);
        args[n++] = (spops_igemm_schedule_args){.schedule = &conv->schedules[side],
                                                .max_rows = of->max_rows,
                                                .num_rows = of->num_rows,
                                                .table = of->table,
                                                .table_stride = conv->view.table_stride,
                                                .mask_words = conv->view.mask_words,
                                                .masks = of->masks,
                                                .order = of->order,
                                                .workspace = conv->workspaces[side]};
    }
    return n;
}

static spops_status make_schedules(spops_context *ctx, const spops_igemm_schedule_args *args,
                                   int32_t num)
{
    const spops_igemm_schedules_args all = {num, args};
    return num == 0 ? SPOPS_STATUS_OK : ctx->backend->igemm_schedule(ctx, &all);
}

// ---- Plans --------------------------------------------------------------------------------------

// The map is there, where ctx runs, and has pairs where the plan needs them.
static spops_status check_map(spops_context *ctx, const char *call, const spops_kernel_map *map,
                              bool needs_pairs)
{
    SPOPS_REQUIRE(ctx, map != NULL, "%s: map is NULL", call);
    SPOPS_TRY(spops_map_check(ctx, call, "map", map));
    SPOPS_REQUIRE(ctx, !needs_pairs || (map->contents & SPOPS_MAP_PAIRS) != 0,
                  "%s: map has no pairs, expected one made with SPOPS_MAP_PAIRS", call);
    return SPOPS_STATUS_OK;
}

spops_status spops_sparseconv_create(spops_context *ctx, const spops_kernel_map *map,
                                     const spops_sparseconv_options *given, spops_sparseconv **out)
{
    static const char call[] = "sparseconv_create";
    spops_sparseconv_options options = {0};
    spops_triplets_options triplets_options = spops_triplets_options_default();
    spops_triplets_shape shape;
    spops_tap_grouping grouping;
    spops_status status = SPOPS_STATUS_OK;
    spops_sparseconv *conv = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_plan_options(ctx, call, given, &options));
    grouping = (spops_tap_grouping){options.grouping, options.epsilon, options.batch_rows};
    SPOPS_TRY(check_map(ctx, call, map,
                        options.dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM || options.backward));
    conv = spops_plan_alloc(ctx, SPOPS_PLAN_SPARSECONV);
    if (conv == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    conv->map = map;
    conv->backward = options.backward != 0;
    conv->quantized = options.quantized != 0;
    conv->dataflow = options.dataflow;
    conv->max_in_channels = options.max_in_channels;
    conv->max_out_channels = options.max_out_channels;
    conv->view = spops_kernel_map_view_default();
    SPOPS_TRY_GOTO(spops_kernel_map_get_view(ctx, map, &conv->view), status, fail);

    conv->base.parents[0] = &map->base;
    conv->base.fields[NUM_OUT] = conv->view.out->max_rows;
    conv->base.fields[NUM_IN] = conv->view.in->max_rows;
    conv->base.fields[NUM_TAPS] = conv->view.num_taps;
    conv->base.fields[MAX_IN_CHANNELS] = conv->max_in_channels;
    conv->base.fields[MAX_OUT_CHANNELS] = conv->max_out_channels;
    conv->base.fields[DATAFLOW] = conv->dataflow;
    conv->base.fields[BACKWARD] = conv->backward;
    conv->base.fields[QUANTIZED] = conv->quantized;
    shape.num_out = conv->view.out->max_rows;
    shape.num_in = conv->view.in->max_rows;
    shape.num_matrices = conv->view.num_taps;
    shape.num_triplets = conv->view.max_pairs;
    triplets_options.backward = options.backward;
    triplets_options.max_matrix_elements = options.max_in_channels * options.max_out_channels;
    if (spops_dataflow_needs_pairs(ctx, conv->dataflow, conv->backward))
        SPOPS_TRY_GOTO(spops_triplets_reserve(ctx, &shape, &triplets_options, &conv->triplets),
                       status, fail);
    SPOPS_TRY_GOTO(plan_igemm(ctx, call, conv), status, fail);
    conv->choice = (spops_dataflow_choice){.map = map,
                                           .num_taps = conv->view.num_taps,
                                           .num_out = conv->view.out->max_rows,
                                           .num_pairs = conv->view.max_pairs,
                                           .max_in_channels = options.max_in_channels,
                                           .max_out_channels = options.max_out_channels,
                                           .named = options.dataflow,
                                           .backward = conv->backward,
                                           .has_igemm = conv->has_igemm};
    SPOPS_TRY_GOTO(spops_dataflow_choice_make(ctx, call, &grouping, options.tuning,
                                              options.num_tuning, &conv->choice),
                   status, fail);
    if (conv->quantized)
        SPOPS_TRY_GOTO(spops_context_reserve(ctx, spops_sparseconv_scratch_bytes(conv)), status,
                       fail);
    SPOPS_TRY_GOTO(spops_sparseconv_set(ctx, conv), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    *out = conv;
    return SPOPS_STATUS_OK;

fail:
    spops_sparseconv_destroy(conv);
    return status;
}

static spops_status check_plan(spops_context *ctx, const char *call, const spops_sparseconv *conv)
{
    SPOPS_REQUIRE(ctx, conv != NULL, "%s: conv is NULL", call);
    return spops_check_home(ctx, call, "conv", conv->base.ctx);
}

spops_status spops_sparseconv_set(spops_context *ctx, spops_sparseconv *conv)
{
    static const char call[] = "sparseconv_set";

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    return spops_sparseconv_set_all(ctx, 1, &conv);
}

spops_status spops_sparseconv_set_all(spops_context *ctx, int32_t num_convs,
                                      spops_sparseconv *const *convs)
{
    static const char call[] = "sparseconv_set_all";
    enum { AT_ONCE = 16 * MAX_SCHEDULES };
    spops_igemm_schedule_args args[AT_ONCE];
    int32_t n = 0;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_REQUIRE(ctx, num_convs >= 0, "%s: num_convs is %" PRId32 ", expected 0 or more", call,
                  num_convs);
    SPOPS_REQUIRE(ctx, convs != NULL || num_convs == 0, "%s: convs is NULL", call);
    SPOPS_TRY(spops_check_aligned(ctx, call, "convs", convs, sizeof *convs));
    for (int32_t i = 0; i < num_convs; ++i)
        SPOPS_TRY(check_plan(ctx, call, convs[i]));
    for (int32_t i = 0; i < num_convs; ++i) {
        n += schedules_of(convs[i], args + n);
        if (n + MAX_SCHEDULES <= AT_ONCE && i + 1 < num_convs) continue;
        SPOPS_TRY(make_schedules(ctx, args, n));
        n = 0;
    }
    for (int32_t i = 0; i < num_convs; ++i)
        if (convs[i]->triplets != NULL)
            SPOPS_TRY(spops_triplets_set_offsets(ctx, convs[i]->triplets,
                                                 convs[i]->view.tap_offsets,
                                                 convs[i]->view.out_rows, convs[i]->view.in_rows));
    return SPOPS_STATUS_OK;
}

// What the dataflows need; an x of i8 is widened after it.
static size_t dataflow_scratch_bytes(const spops_sparseconv *conv)
{
    size_t bytes = spops_triplets_scratch_bytes(conv->triplets);
    const size_t buffers = spops_dataflow_choice_scratch_bytes(&conv->choice);
    if (buffers > bytes) bytes = buffers;
    return bytes > conv->igemm_scratch_bytes ? bytes : conv->igemm_scratch_bytes;
}

// The place of an x of i8 once it is widened to f32, the widest dtype, in scratch from c on.
static void *carve_widened(const spops_sparseconv *conv, spops_carver *c)
{
    (void)spops_carve(c, 1, 1, dataflow_scratch_bytes(conv));
    return spops_carve(c, conv->quantized ? conv->view.in->max_rows : 0, conv->max_in_channels,
                       sizeof(float));
}

size_t spops_sparseconv_scratch_bytes(const spops_sparseconv *conv)
{
    spops_carver c = {NULL, 0};
    if (conv == NULL) return 0;
    if (!conv->quantized) return dataflow_scratch_bytes(conv);
    (void)carve_widened(conv, &c);
    return c.used;
}

size_t spops_sparseconv_bytes(const spops_sparseconv *conv)
{
    if (conv == NULL) return 0;
    return sizeof *conv + conv->block_bytes + spops_triplets_bytes(conv->triplets) +
           spops_dataflow_choice_bytes(&conv->choice);
}

static void destroy_sparseconv(spops_plan *plan)
{
    spops_sparseconv *conv = (spops_sparseconv *)plan;
    if (conv->block != NULL) (void)plan->ctx->backend->wait(plan->ctx);
    spops_triplets_destroy(conv->triplets);
    spops_dataflow_choice_free(plan->ctx, &conv->choice);
    spops_backend_free(plan->ctx, conv->block, conv->block_bytes);
}

static size_t bytes_of_sparseconv(const spops_plan *plan)
{
    const spops_sparseconv *conv = (const spops_sparseconv *)plan;
    return conv->block_bytes + spops_triplets_bytes(conv->triplets) +
           spops_dataflow_choice_bytes(&conv->choice);
}

static size_t scratch_of_sparseconv(const spops_plan *plan)
{
    const spops_sparseconv *conv = (const spops_sparseconv *)plan;
    return spops_sparseconv_scratch_bytes(conv);
}

const spops_plan_ops spops_sparseconv_plan_ops = {.handle_bytes = sizeof(struct spops_sparseconv),
                                                  .num_fields = NUM_FIELDS,
                                                  .destroy = destroy_sparseconv,
                                                  .bytes = bytes_of_sparseconv,
                                                  .scratch_bytes = scratch_of_sparseconv};

// ---- Who serves a pass --------------------------------------------------------------------------

// A pass and its arguments, or their shapes alone: x and y are the rows on either side of the map, w
// the matrices of taps. What the pass writes has its place among them.
typedef struct conv_pass {
    spops_conv_pass pass;
    spops_dtype dtype; // of what it reads
    spops_math math;
    spops_layer_shape shape;
    spops_matrix x, w, y;
} conv_pass;

// Arguments of igemm for one pass. The caller adds scratch, tickets and the epilogue.
static spops_igemm_args igemm_args_of(const spops_sparseconv *conv, const conv_pass *p)
{
    const bool reversed = p->pass == SPOPS_PASS_GRAD_X, mirrored = reversed && conv->in_mirrored;
    const spops_igemm_args args = {.schedule =
                                       &conv->schedules[reversed && !mirrored ? SIDE_IN : SIDE_OUT],
                                   .x = reversed ? p->y : p->x,
                                   .w = p->w,
                                   .out = reversed ? p->x : p->y,
                                   .w_transposed = reversed,
                                   .mirrored = mirrored};
    return args;
}

static spops_igemm_wgrad_args wgrad_args_of(const spops_sparseconv *conv, const conv_pass *p)
{
    const spops_igemm_wgrad_args args = {.num_taps = conv->view.num_taps,
                                         .max_pairs = conv->view.max_pairs,
                                         .tap_offsets = conv->view.tap_offsets,
                                         .in_rows = conv->view.in_rows,
                                         .out_rows = conv->view.out_rows,
                                         .x = p->x,
                                         .g = p->y,
                                         .dw = p->w};
    return args;
}

static bool igemm_takes(const spops_sparseconv *conv, const conv_pass *p)
{
    const spops_backend *backend = conv->base.ctx->backend;

    if (!conv->has_igemm || (p->dtype == SPOPS_DTYPE_F32 && p->math != SPOPS_MATH_TF32))
        return false;
    if (p->pass == SPOPS_PASS_GRAD_W) {
        const spops_igemm_wgrad_args args = wgrad_args_of(conv, p);
        return backend->igemm_wgrad_fits(conv->base.ctx, &args);
    }
    const spops_igemm_args args = igemm_args_of(conv, p);
    return backend->igemm_fits(conv->base.ctx, &args);
}

static bool has_int_stride(spops_matrix m)
{
    return m.rows <= 1 || m.row_stride <= INT32_MAX;
}

static bool takes(const spops_sparseconv *conv, spops_dataflow dataflow, const conv_pass *p)
{
    if (dataflow == SPOPS_DATAFLOW_AUTO || dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND) return true;
    if (p->shape.groups != 1 || p->shape.in_channels > conv->max_in_channels ||
        p->shape.out_channels > conv->max_out_channels)
        return false;
    if (dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM) return igemm_takes(conv, p);
    return has_int_stride(p->x) && has_int_stride(p->y); // int32 in the products
}

// The one answer to who serves a pass: what the plan's dataflow, or its tuning, says; else, with AUTO,
// fetch-on-demand. AUTO: nobody.
static spops_wanted_dataflow server_of(const spops_sparseconv *conv, const conv_pass *p)
{
    static const spops_wanted_dataflow nobody = {SPOPS_DATAFLOW_AUTO, NULL};
    static const spops_wanted_dataflow fetch = {SPOPS_DATAFLOW_FETCH_ON_DEMAND, NULL};
    const spops_conv_choice layer = {.pass = p->pass,
                                     .dtype = p->dtype,
                                     .math = p->math,
                                     .in_channels = p->shape.in_channels,
                                     .out_channels = p->shape.out_channels};

    if (p->pass != SPOPS_PASS_FORWARD && !conv->backward) return nobody;
    if (!takes(conv, conv->dataflow, p)) return nobody;
    const spops_wanted_dataflow wanted =
        spops_dataflow_choice_get(conv->base.ctx, &conv->choice, &layer, p->shape.groups);
    return takes(conv, wanted.dataflow, p) ? wanted : fetch;
}

static spops_status refuse(spops_context *ctx, const char *call, const spops_sparseconv *conv)
{
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: conv was made for %s, which does not serve this call (%s)", call,
                      spops_dataflow_name(conv->dataflow),
                      conv->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM
                          ? "groups, dtype, math, channels, or rows not aligned to 16 bytes"
                          : "groups, or more channels than it was made for");
}

// Of a pass whose rows are dense.
static spops_wanted_dataflow server_of_dense(const spops_sparseconv *conv, spops_conv_pass pass,
                                             spops_dtype dtype, spops_math math,
                                             const spops_layer_shape *shape)
{
    const conv_pass p = {
        .pass = pass,
        .dtype = dtype,
        .math = math,
        .shape = *shape,
        .x = spops_matrix_dense(NULL, conv->view.in->max_rows, shape->in_channels, dtype),
        .w = spops_matrix_dense(NULL, 0, shape->out_channels, dtype),
        .y = spops_matrix_dense(NULL, conv->view.out->max_rows, shape->out_channels, dtype)};
    return server_of(conv, &p);
}

spops_dataflow spops_sparseconv_dataflow(const spops_sparseconv *conv, spops_conv_pass pass,
                                         spops_dtype dtype, int64_t in_channels,
                                         int64_t out_channels, const spops_conv_layer *layer)
{
    const spops_layer_shape shape = {in_channels, out_channels,
                                     layer == NULL || layer->groups == 0 ? 1 : layer->groups};
    const spops_math math = layer == NULL ? SPOPS_MATH_EXACT : layer->math;

    if (conv == NULL || !spops_layer_can_be(pass, dtype, &shape)) return SPOPS_DATAFLOW_AUTO;
    return server_of_dense(conv, pass, dtype, math, &shape).dataflow;
}

spops_status spops_sparseconv_get_choice(spops_context *ctx, const spops_sparseconv *conv,
                                         spops_conv_pass pass, spops_dtype dtype,
                                         int64_t in_channels, int64_t out_channels,
                                         const spops_conv_layer *given, spops_conv_choice *choice)
{
    static const char call[] = "sparseconv_get_choice";
    spops_conv_layer layer = {0};
    spops_layer_shape shape = {in_channels, out_channels, 1};
    spops_wanted_dataflow chosen;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_TRY(spops_check_object(ctx, call, "choice", choice, _Alignof(spops_conv_choice)));
    SPOPS_REQUIRE(ctx, (unsigned)pass <= SPOPS_PASS_GRAD_W, "%s: pass is %d, expected 0 to 2", call,
                  (int)pass);
    SPOPS_REQUIRE(ctx, spops_dtype_is_float(dtype), "%s: dtype is %s, expected f32, f16 or bf16",
                  call, spops_dtype_name(dtype));
    SPOPS_REQUIRE(ctx, in_channels > 0 && out_channels > 0,
                  "%s: in_channels is %" PRId64 " and out_channels %" PRId64 ", expected 1 or more",
                  call, in_channels, out_channels);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    shape.groups = layer.groups;
    chosen = server_of_dense(conv, pass, dtype, layer.math, &shape);
    *choice = (spops_conv_choice){.pass = pass,
                                  .dtype = dtype,
                                  .math = layer.math,
                                  .num_taps = conv->view.num_taps,
                                  .in_channels = in_channels,
                                  .out_channels = out_channels,
                                  .num_out = conv->view.out->max_rows,
                                  .num_pairs = conv->view.max_pairs,
                                  .dataflow = chosen.dataflow};
    if (chosen.dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER) {
        choice->grouping = chosen.layout->grouping.grouping;
        choice->epsilon = chosen.layout->grouping.epsilon;
        choice->batch_rows = chosen.layout->grouping.batch_rows;
    }
    return SPOPS_STATUS_OK;
}

// ---- Layers -------------------------------------------------------------------------------------

static spops_layer_limits limits_of(const spops_sparseconv *conv)
{
    return (spops_layer_limits){conv->view.num_taps, conv->view.in->max_rows,
                                conv->view.out->max_rows, conv->max_in_channels,
                                conv->max_out_channels};
}

static spops_matrix channel_vector(const float *v, int64_t channels)
{
    return spops_matrix_dense((void *)(uintptr_t)v, 1, channels, SPOPS_DTYPE_F32);
}

// An x of i8, checked, becomes the matrix that it will be widened to.
static spops_status place_widened(spops_context *ctx, const char *call,
                                  const spops_sparseconv *conv, const spops_conv_layer *layer,
                                  spops_matrix w, spops_matrix out, spops_matrix *x)
{
    const int64_t num_scales = layer->x_scales_by_channel != 0 ? x->cols : 1;
    spops_carver c = {NULL, 0};
    void *scratch;

    SPOPS_REQUIRE(ctx, conv->quantized,
                  "%s: x.dtype is i8, expected f32, f16 or bf16: conv was made without "
                  "options->quantized",
                  call);
    SPOPS_TRY(spops_check_matrix(ctx, call, "x", *x, conv->view.in->max_rows, x->cols,
                                 1u << SPOPS_DTYPE_I8));
    SPOPS_TRY(spops_check_dtype(ctx, call, "w.dtype", w.dtype, SPOPS_DTYPES_FLOAT));
    SPOPS_REQUIRE(ctx, x->cols <= conv->max_in_channels,
                  "%s: x has %" PRId64 " columns, more than the %" PRId64 " that conv was made for",
                  call, x->cols, conv->max_in_channels);
    SPOPS_REQUIRE(ctx, layer->x_scales != NULL, "%s: layer->x_scales is NULL", call);
    SPOPS_TRY(spops_check_matrix(ctx, call, "layer->x_scales",
                                 channel_vector(layer->x_scales, num_scales), 1, num_scales,
                                 1u << SPOPS_DTYPE_F32));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "layer->x_scales",
                                     channel_vector(layer->x_scales, num_scales)));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "x", *x));
    SPOPS_REQUIRE_SLOT(ctx, call, widen);
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_sparseconv_scratch_bytes(conv), &scratch));
    c.base = scratch;
    *x = spops_matrix_dense(carve_widened(conv, &c), x->rows, x->cols, w.dtype);
    return SPOPS_STATUS_OK;
}

static spops_status widen(spops_context *ctx, const spops_sparseconv *conv,
                          const spops_conv_layer *layer, spops_matrix q, spops_matrix x)
{
    const spops_widen_args args = {q, x, layer->x_scales, layer->x_scales_by_channel != 0,
                                   conv->view.in->num_rows};
    if (q.dtype != SPOPS_DTYPE_I8 || q.rows == 0) return SPOPS_STATUS_OK;
    return ctx->backend->widen(ctx, &args);
}

// What the pass shall run on, but for FETCH_ON_DEMAND. layer: the epilogue of a forward pass.
static spops_status run_pass(spops_context *ctx, const spops_sparseconv *conv, const conv_pass *p,
                             spops_wanted_dataflow by, const spops_conv_layer *layer, void *scratch)
{
    const bool reversed = p->pass == SPOPS_PASS_GRAD_X, tf32 = p->math == SPOPS_MATH_TF32;

    if (by.dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM && p->pass == SPOPS_PASS_GRAD_W) {
        spops_igemm_wgrad_args args = wgrad_args_of(conv, p);
        args.scratch = scratch;
        return ctx->backend->igemm_wgrad(ctx, &args);
    }
    if (by.dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM) {
        spops_igemm_args args = igemm_args_of(conv, p);
        args.tickets = ctx->tickets;
        args.scratch = scratch;
        if (layer != NULL) {
            if (layer->residual != NULL) args.residual = *layer->residual;
            args.bias = layer->bias;
            args.scale = layer->scale;
            args.shift = layer->shift;
            args.relu = layer->activation == SPOPS_ACTIVATION_RELU;
        }
        return ctx->backend->igemm(ctx, &args);
    }
    if (p->pass == SPOPS_PASS_GRAD_W) {
        const spops_gather_scatter_weights_call args = {p->x, p->y, p->w, tf32, scratch};
        return spops_gather_scatter_run_weights(ctx, by.layout->gather_scatter, &args);
    }
    const spops_gather_scatter_call args = {.x = reversed ? p->y : p->x,
                                            .w = p->w,
                                            .out = reversed ? p->x : p->y,
                                            .reversed = reversed,
                                            .tf32 = tf32,
                                            .scratch = scratch};
    if (args.out.rows == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_gather_scatter_run(ctx, by.layout->gather_scatter, &args));
    if (layer == NULL) return SPOPS_STATUS_OK;
    return spops_layer_finish(ctx, layer, conv->view.out->num_rows, args.out);
}

spops_status spops_sparseconv_execute(spops_context *ctx, const spops_sparseconv *conv,
                                      spops_matrix x, spops_matrix w, const spops_conv_layer *given,
                                      spops_matrix out)
{
    static const char call[] = "sparseconv_execute";
    const spops_matrix given_x = x;
    spops_conv_layer layer = {0};
    spops_wanted_dataflow by;
    spops_mvmr_options options;
    spops_layer_shape shape;
    void *scratch;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    if (x.dtype == SPOPS_DTYPE_I8) SPOPS_TRY(place_widened(ctx, call, conv, &layer, w, out, &x));
    const spops_layer_limits limits = limits_of(conv);
    SPOPS_TRY(spops_layer_check(ctx, call, &limits, &layer, x, w, out, &shape));
    const conv_pass pass = {SPOPS_PASS_FORWARD, x.dtype, layer.math, shape, x, w, out};
    by = server_of(conv, &pass);
    if (by.dataflow == SPOPS_DATAFLOW_AUTO) return refuse(ctx, call, conv);
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_sparseconv_scratch_bytes(conv), &scratch));
    if (out.rows == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(widen(ctx, conv, &layer, given_x, x));
    if (by.dataflow != SPOPS_DATAFLOW_FETCH_ON_DEMAND)
        return run_pass(ctx, conv, &pass, by, &layer, scratch);
    options = spops_layer_mvmr_options(&shape, layer.math);
    options.num_rows = conv->view.out->num_rows;
    SPOPS_TRY(spops_mvmr_execute(ctx, conv->triplets, x, w, NULL, &options, out));
    return spops_layer_finish(ctx, &layer, conv->view.out->num_rows, out);
}

spops_status spops_sparseconv_execute_backward(spops_context *ctx, const spops_sparseconv *conv,
                                               spops_matrix grad_sum, spops_matrix x,
                                               spops_matrix w, const spops_conv_layer *given,
                                               const spops_matrix *grad_x,
                                               const spops_matrix *grad_w)
{
    static const char call[] = "sparseconv_execute_backward";
    spops_conv_layer layer = {0};
    spops_wanted_dataflow by_x = {SPOPS_DATAFLOW_FETCH_ON_DEMAND, NULL}, by_w = by_x;
    spops_mvmr_options options;
    spops_layer_shape shape;
    void *scratch;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_REQUIRE(ctx, conv->backward,
                  "%s: conv was made without gradients, expected options->backward = 1", call);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    const spops_layer_limits limits = limits_of(conv);
    SPOPS_TRY(spops_layer_check_backward(ctx, call, &limits, layer.groups, grad_sum, x, w, grad_x,
                                         grad_w, &shape));
    conv_pass pass_x = {SPOPS_PASS_GRAD_X, x.dtype, layer.math, shape, x, w, grad_sum};
    conv_pass pass_w = {SPOPS_PASS_GRAD_W, x.dtype, layer.math, shape, x, w, grad_sum};
    if (grad_x != NULL) {
        pass_x.x = *grad_x;
        by_x = server_of(conv, &pass_x);
    }
    if (grad_w != NULL) {
        pass_w.w = *grad_w;
        by_w = server_of(conv, &pass_w);
    }
    if (by_x.dataflow == SPOPS_DATAFLOW_AUTO || by_w.dataflow == SPOPS_DATAFLOW_AUTO)
        return refuse(ctx, call, conv);
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_sparseconv_scratch_bytes(conv), &scratch));
    if (by_x.dataflow != SPOPS_DATAFLOW_FETCH_ON_DEMAND) {
        SPOPS_TRY(run_pass(ctx, conv, &pass_x, by_x, NULL, scratch));
        grad_x = NULL;
    }
    if (by_w.dataflow != SPOPS_DATAFLOW_FETCH_ON_DEMAND) {
        SPOPS_TRY(run_pass(ctx, conv, &pass_w, by_w, NULL, scratch));
        grad_w = NULL;
    }
    if (grad_x == NULL && grad_w == NULL) return SPOPS_STATUS_OK;
    options = spops_layer_mvmr_options(&shape, layer.math);
    options.num_rows = conv->view.in->num_rows;
    return spops_mvmr_execute_backward(ctx, conv->triplets, grad_sum, x, w, NULL, &options, grad_x,
                                       grad_w, NULL);
}
