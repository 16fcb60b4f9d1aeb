// Sparse convolution: checks, the choice of a dataflow, and what each is composed of.
#include "spops/sparseconv.h"

#include "coords/kernel_maps.h"
#include "core/check.h"
#include "core/matrix.h"
#include "mvmr/igemm_args.h"
#include "segments/segments.h"
#include "sparseconv/epilogue_args.h"

#define DEFAULT_MAX_CHANNELS 256

// IMPLICIT_GEMM has a schedule for each size of tile, and for each side that is not the other's
// mirror image.
enum { NARROW_TILES, WIDE_TILES, NUM_TILE_SIZES };
enum { SIDE_OUT, SIDE_IN, NUM_SIDES };

struct spops_sparseconv {
    spops_context *ctx; // made it, frees it
    const spops_kernel_map *map;
    spops_kernel_map_view view; // whose addresses stay
    spops_dataflow dataflow;    // as asked for
    bool backward;
    int64_t max_in_channels, max_out_channels;
    spops_triplets *triplets; // of the map's pairs; NULL where IMPLICIT_GEMM serves every call

    bool has_igemm;   // its schedules are there, those of SIDE_IN with backward
    bool in_mirrored; // SIDE_IN runs on the schedules of SIDE_OUT
    spops_igemm_schedule schedules[NUM_SIDES][NUM_TILE_SIZES];
    int32_t *workspace; // of making them
    void *block;
    size_t block_bytes;
    size_t igemm_scratch_bytes;
};

const char *spops_dataflow_name(spops_dataflow dataflow)
{
    switch (dataflow) {
    case SPOPS_DATAFLOW_AUTO: return "auto";
    case SPOPS_DATAFLOW_FETCH_ON_DEMAND: return "fetch_on_demand";
    case SPOPS_DATAFLOW_IMPLICIT_GEMM: return "implicit_gemm";
    }
    return "?";
}

// ---- Options ------------------------------------------------------------------------------------

static spops_status read_plan_options(spops_context *ctx, const char *call,
                                      const spops_sparseconv_options *given,
                                      spops_sparseconv_options *options)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, options, sizeof *options));
    SPOPS_REQUIRE(ctx, options->backward == 0 || options->backward == 1,
                  "%s: options->backward is %d, expected 0 or 1", call, (int)options->backward);
    SPOPS_REQUIRE(ctx,
                  (int)options->dataflow >= 0 && options->dataflow <= SPOPS_DATAFLOW_IMPLICIT_GEMM,
                  "%s: options->dataflow is %d, expected 0 to %d", call, (int)options->dataflow,
                  SPOPS_DATAFLOW_IMPLICIT_GEMM);
    SPOPS_REQUIRE(ctx, options->max_in_channels >= 0 && options->max_in_channels < INT32_MAX,
                  "%s: options->max_in_channels is %" PRId64 ", expected 0 to %d", call,
                  options->max_in_channels, INT32_MAX - 1);
    SPOPS_REQUIRE(ctx, options->max_out_channels >= 0 && options->max_out_channels < INT32_MAX,
                  "%s: options->max_out_channels is %" PRId64 ", expected 0 to %d", call,
                  options->max_out_channels, INT32_MAX - 1);
    if (options->max_in_channels == 0) options->max_in_channels = DEFAULT_MAX_CHANNELS;
    if (options->max_out_channels == 0) options->max_out_channels = DEFAULT_MAX_CHANNELS;
    return SPOPS_STATUS_OK;
}

// ---- Schedules of IMPLICIT_GEMM -----------------------------------------------------------------

static int32_t igemm_tile_rows(const spops_context *ctx, int64_t cols)
{
    const spops_igemm_tile_args args = {cols};
    return ctx->backend->igemm_tile_rows == NULL ? 0 : ctx->backend->igemm_tile_rows(ctx, &args);
}

static const spops_kernel_map_side *side_of(const spops_sparseconv *conv, int side)
{
    return side == SIDE_OUT ? conv->view.out : conv->view.in;
}

static void carve_schedules(spops_sparseconv *conv, spops_carver *c)
{
    static const int32_t tile_rows[NUM_TILE_SIZES] = {128, 256};
    const int sides = conv->backward && !conv->in_mirrored ? NUM_SIDES : 1;
    int64_t most_tiles = 0;

    for (int side = 0; side < sides; ++side) {
        const int64_t max_rows = side_of(conv, side)->max_rows;
        for (int size = 0; size < NUM_TILE_SIZES; ++size) {
            spops_igemm_schedule *s = &conv->schedules[side][size];
            s->tile_rows = tile_rows[size];
            s->num_taps = conv->view.num_taps;
            s->max_tiles = (max_rows + s->tile_rows - 1) / s->tile_rows;
            s->max_records = s->max_tiles * s->num_taps;
            s->num_tiles = spops_carve(c, 1, 1, sizeof *s->num_tiles);
            s->tiles = spops_carve(c, s->max_tiles, 4, sizeof *s->tiles);
            s->out_rows = spops_carve(c, s->max_tiles, s->tile_rows, sizeof *s->out_rows);
            s->records = spops_carve(c, s->max_records, SPOPS_IGEMM_RECORD_HEAD + s->tile_rows,
                                     sizeof *s->records);
            if (s->max_tiles > most_tiles) most_tiles = s->max_tiles;
        }
    }
    conv->workspace = spops_carve(c, SPOPS_IGEMM_WORKSPACE(most_tiles), 1, sizeof *conv->workspace);
}

// Whether the plan can have IMPLICIT_GEMM. If it was asked for by name, no is a failure.
static spops_status plan_igemm(spops_context *ctx, const char *call, spops_sparseconv *conv)
{
    const bool forced = conv->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM;
    const spops_igemm_scratch_args scratch = {conv->view.num_taps, conv->max_in_channels,
                                              conv->max_out_channels, conv->backward};
    spops_carver c = {NULL, 0};

    if (conv->dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND) return SPOPS_STATUS_OK;
    if (igemm_tile_rows(ctx, 1) == 0) {
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
    conv->in_mirrored = conv->view.in->mirrored != 0;
    carve_schedules(conv, &c);
    SPOPS_TRY(spops_backend_alloc(ctx, c.used, &conv->block));
    conv->block_bytes = c.used;
    c.base = conv->block;
    c.used = 0;
    carve_schedules(conv, &c);
    conv->has_igemm = true;
    conv->igemm_scratch_bytes = ctx->backend->igemm_scratch_bytes(ctx, &scratch);
    return spops_context_grow(ctx, conv->igemm_scratch_bytes);
}

static spops_status set_schedules(spops_context *ctx, const spops_sparseconv *conv)
{
    const int sides = conv->backward && !conv->in_mirrored ? NUM_SIDES : 1;

    for (int side = 0; conv->has_igemm && side < sides; ++side) {
        const spops_kernel_map_side *of = side_of(conv, side);
        for (int size = 0; size < NUM_TILE_SIZES; ++size) {
            const spops_igemm_schedule_args args = {.schedule = &conv->schedules[side][size],
                                                    .max_rows = of->max_rows,
                                                    .num_rows = of->num_rows,
                                                    .table = of->table,
                                                    .table_stride = conv->view.table_stride,
                                                    .mask_words = conv->view.mask_words,
                                                    .masks = of->masks,
                                                    .order = of->order,
                                                    .workspace = conv->workspace};
            SPOPS_TRY(ctx->backend->igemm_schedule(ctx, &args));
        }
    }
    return SPOPS_STATUS_OK;
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
    spops_status status = SPOPS_STATUS_OK;
    spops_sparseconv *conv = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(read_plan_options(ctx, call, given, &options));
    SPOPS_TRY(check_map(ctx, call, map,
                        options.dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM || options.backward));
    conv = spops_host_alloc(ctx, 1, sizeof *conv);
    if (conv == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    conv->ctx = ctx;
    conv->map = map;
    conv->backward = options.backward != 0;
    conv->dataflow = options.dataflow;
    conv->max_in_channels = options.max_in_channels;
    conv->max_out_channels = options.max_out_channels;
    conv->view = spops_kernel_map_view_default();
    SPOPS_TRY_GOTO(spops_kernel_map_get_view(ctx, map, &conv->view), status, fail);

    shape.num_out = conv->view.out->max_rows;
    shape.num_in = conv->view.in->max_rows;
    shape.num_matrices = conv->view.num_taps;
    shape.num_triplets = conv->view.max_pairs;
    triplets_options.backward = options.backward;
    SPOPS_REQUIRE(ctx, options.max_in_channels <= INT64_MAX / options.max_out_channels,
                  "%s: options->max_in_channels is %" PRId64 ", too many", call,
                  options.max_in_channels);
    triplets_options.max_matrix_elements = options.max_in_channels * options.max_out_channels;
    if (conv->dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM)
        SPOPS_TRY_GOTO(spops_triplets_reserve(ctx, &shape, &triplets_options, &conv->triplets),
                       status, fail);
    SPOPS_TRY_GOTO(plan_igemm(ctx, call, conv), status, fail);
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
    return spops_check_home(ctx, call, "conv", conv->ctx);
}

spops_status spops_sparseconv_set(spops_context *ctx, spops_sparseconv *conv)
{
    static const char call[] = "sparseconv_set";

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_TRY(set_schedules(ctx, conv));
    if (conv->triplets == NULL) return SPOPS_STATUS_OK;
    return spops_triplets_set_offsets(ctx, conv->triplets, conv->view.tap_offsets,
                                      conv->view.out_rows, conv->view.in_rows);
}

size_t spops_sparseconv_scratch_bytes(const spops_sparseconv *conv)
{
    if (conv == NULL) return 0;
    const size_t bytes = spops_triplets_scratch_bytes(conv->triplets);
    return bytes > conv->igemm_scratch_bytes ? bytes : conv->igemm_scratch_bytes;
}

size_t spops_sparseconv_bytes(const spops_sparseconv *conv)
{
    if (conv == NULL) return 0;
    return sizeof *conv + conv->block_bytes + spops_triplets_bytes(conv->triplets);
}

void spops_sparseconv_destroy(spops_sparseconv *conv)
{
    if (conv == NULL) return;
    if (conv->block != NULL) (void)conv->ctx->backend->wait(conv->ctx);
    spops_triplets_destroy(conv->triplets);
    spops_backend_free(conv->ctx, conv->block, conv->block_bytes);
    spops_host_free(conv->ctx, conv, 1, sizeof *conv);
}

// ---- Layers -------------------------------------------------------------------------------------

// A layer's numbers, checked.
typedef struct layer_shape {
    int64_t in_channels, out_channels;
    int32_t groups;
} layer_shape;

static spops_status read_layer(spops_context *ctx, const char *call,
                               const spops_sparseconv_layer *given, spops_sparseconv_layer *layer)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, layer, sizeof *layer));
    SPOPS_REQUIRE(ctx, layer->groups >= 0, "%s: layer->groups is %d, expected 0 or more", call,
                  (int)layer->groups);
    SPOPS_REQUIRE(ctx,
                  layer->activation == SPOPS_ACTIVATION_NONE ||
                      layer->activation == SPOPS_ACTIVATION_RELU,
                  "%s: layer->activation is %d, expected 0 or 1", call, (int)layer->activation);
    SPOPS_REQUIRE(ctx, layer->math == SPOPS_MATH_EXACT || layer->math == SPOPS_MATH_TF32,
                  "%s: layer->math is %d, expected 0 or 1", call, (int)layer->math);
    if (layer->groups == 0) layer->groups = 1;
    return SPOPS_STATUS_OK;
}

// x [rows of in, C_in] and sum [rows of out, C_out], and w between them.
static spops_status check_shapes(spops_context *ctx, const char *call, const spops_sparseconv *conv,
                                 int32_t groups, const char *x_name, spops_matrix x,
                                 const char *sum_name, spops_matrix sum, unsigned sum_dtypes,
                                 spops_matrix w, layer_shape *shape)
{
    const int64_t taps = conv->view.num_taps;

    SPOPS_TRY(spops_check_matrix(ctx, call, x_name, x, conv->view.in->max_rows, x.cols,
                                 SPOPS_DTYPES_FLOAT));
    SPOPS_REQUIRE(ctx, x.cols > 0, "%s: %s has no columns, expected 1 or more", call, x_name);
    SPOPS_TRY(spops_check_matrix(ctx, call, sum_name, sum, conv->view.out->max_rows, sum.cols,
                                 sum_dtypes));
    SPOPS_REQUIRE(ctx, sum.cols > 0, "%s: %s has no columns, expected 1 or more", call, sum_name);
    SPOPS_REQUIRE(ctx, x.cols % groups == 0 && sum.cols % groups == 0,
                  "%s: %s has %" PRId64 " columns and %s %" PRId64
                  ", expected multiples of layer->groups = %d",
                  call, x_name, x.cols, sum_name, sum.cols, (int)groups);
    SPOPS_REQUIRE(ctx, x.cols / groups <= INT64_MAX / taps, "%s: %s has too many columns", call,
                  x_name);
    SPOPS_TRY(
        spops_check_matrix(ctx, call, "w", w, taps * (x.cols / groups), sum.cols, 1u << x.dtype));
    SPOPS_REQUIRE(ctx, w.rows <= 1 || w.row_stride == w.cols,
                  "%s: w.row_stride is %" PRId64 ", expected its %" PRId64 " columns", call,
                  w.row_stride, w.cols);
    shape->in_channels = x.cols;
    shape->out_channels = sum.cols;
    shape->groups = groups;
    return SPOPS_STATUS_OK;
}

static bool is_depthwise(const layer_shape *shape)
{
    return shape->groups > 1 && shape->groups == shape->in_channels &&
           shape->groups == shape->out_channels;
}

static spops_mvmr_options mvmr_options_of(const layer_shape *shape, spops_math math)
{
    spops_mvmr_options options = spops_mvmr_options_default();
    if (is_depthwise(shape))
        options.diagonal = 1;
    else
        options.groups = shape->groups;
    options.math = math;
    return options;
}

// What IMPLICIT_GEMM would be called with: the sum over taps of a pass, without what is behind it.
static spops_igemm_args igemm_args_of(const spops_context *ctx, const spops_sparseconv *conv,
                                      int side, spops_matrix x, spops_matrix w, spops_matrix out)
{
    const bool mirrored = side == SIDE_IN && conv->in_mirrored;
    const int size = igemm_tile_rows(ctx, out.cols) == 256 ? WIDE_TILES : NARROW_TILES;
    const spops_igemm_args args = {.schedule = &conv->schedules[mirrored ? SIDE_OUT : side][size],
                                   .x = x,
                                   .w = w,
                                   .out = out,
                                   .w_transposed = side == SIDE_IN,
                                   .mirrored = mirrored,
                                   .tickets = ctx->tickets,
                                   .scratch = ctx->scratch};
    return args;
}

static bool may_use_igemm(const spops_sparseconv *conv, const layer_shape *shape, spops_dtype dtype,
                          spops_math math)
{
    return conv->has_igemm && shape->groups == 1 && shape->in_channels <= conv->max_in_channels &&
           shape->out_channels <= conv->max_out_channels &&
           (dtype != SPOPS_DTYPE_F32 || math == SPOPS_MATH_TF32);
}

static spops_igemm_wgrad_args wgrad_args_of(const spops_context *ctx, const spops_sparseconv *conv,
                                            spops_matrix x, spops_matrix g, spops_matrix dw)
{
    const spops_igemm_wgrad_args args = {.num_taps = conv->view.num_taps,
                                         .max_pairs = conv->view.max_pairs,
                                         .tap_offsets = conv->view.tap_offsets,
                                         .in_rows = conv->view.in_rows,
                                         .out_rows = conv->view.out_rows,
                                         .x = x,
                                         .g = g,
                                         .dw = dw,
                                         .scratch = ctx->scratch};
    return args;
}

// A dataflow that was named and does not serve a call.
static spops_status refuse_forced(spops_context *ctx, const char *call,
                                  const spops_sparseconv *conv)
{
    if (conv->dataflow != SPOPS_DATAFLOW_IMPLICIT_GEMM) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: conv was made for %s, which does not serve this call (groups, dtype, "
                      "math, channels, or rows not aligned to 16 bytes)",
                      call, spops_dataflow_name(conv->dataflow));
}

spops_dataflow spops_sparseconv_dataflow(const spops_sparseconv *conv, spops_sparseconv_pass pass,
                                         spops_dtype dtype, int64_t in_channels,
                                         int64_t out_channels, const spops_sparseconv_layer *layer)
{
    const layer_shape shape = {in_channels, out_channels,
                               layer == NULL || layer->groups == 0 ? 1 : layer->groups};
    const spops_math math = layer == NULL ? SPOPS_MATH_EXACT : layer->math;

    if (conv == NULL || !spops_dtype_is_float(dtype)) return SPOPS_DATAFLOW_AUTO;
    if (pass != SPOPS_PASS_FORWARD && !conv->backward) return SPOPS_DATAFLOW_AUTO;
    if (may_use_igemm(conv, &shape, dtype, math)) {
        // As a call with dense rows would find it.
        const spops_matrix x =
            spops_matrix_dense(NULL, conv->view.in->max_rows, in_channels, dtype);
        const spops_matrix y =
            spops_matrix_dense(NULL, conv->view.out->max_rows, out_channels, dtype);
        const spops_matrix w = spops_matrix_dense(NULL, 0, out_channels, dtype);
        const spops_igemm_wgrad_args wgrad = wgrad_args_of(conv->ctx, conv, x, y, w);
        const spops_igemm_args forward = igemm_args_of(conv->ctx, conv, SIDE_OUT, x, w, y);
        const spops_igemm_args backward = igemm_args_of(conv->ctx, conv, SIDE_IN, y, w, x);
        const bool fits = pass == SPOPS_PASS_GRAD_W
                              ? conv->ctx->backend->igemm_wgrad_fits(conv->ctx, &wgrad)
                              : conv->ctx->backend->igemm_fits(
                                    conv->ctx, pass == SPOPS_PASS_FORWARD ? &forward : &backward);
        if (fits) return SPOPS_DATAFLOW_IMPLICIT_GEMM;
    }
    return conv->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM ? SPOPS_DATAFLOW_AUTO
                                                          : SPOPS_DATAFLOW_FETCH_ON_DEMAND;
}

static spops_matrix channel_vector(const float *v, int64_t channels)
{
    return spops_matrix_dense((void *)(uintptr_t)v, 1, channels, SPOPS_DTYPE_F32);
}

// A vector of a layer, which out must not touch.
static spops_status check_vector(spops_context *ctx, const char *call, const char *name,
                                 const float *v, spops_matrix out)
{
    const spops_matrix m = channel_vector(v, out.cols);
    if (v == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_check_matrix(ctx, call, name, m, 1, out.cols, 1u << SPOPS_DTYPE_F32));
    return spops_check_no_overlap(ctx, call, "out", out, name, m);
}

static bool has_epilogue(const spops_sparseconv_layer *layer)
{
    return layer->bias != NULL || layer->scale != NULL || layer->shift != NULL ||
           layer->residual != NULL || layer->activation != SPOPS_ACTIVATION_NONE;
}

spops_status spops_sparseconv_execute(spops_context *ctx, const spops_sparseconv *conv,
                                      spops_matrix x, spops_matrix w,
                                      const spops_sparseconv_layer *given, spops_matrix out)
{
    static const char call[] = "sparseconv_execute";
    spops_sparseconv_layer layer = {0};
    spops_epilogue_args epilogue = {0};
    spops_mvmr_options options;
    layer_shape shape;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_TRY(read_layer(ctx, call, given, &layer));
    SPOPS_TRY(check_shapes(ctx, call, conv, layer.groups, "x", x, "out", out,
                           1u << x.dtype | 1u << SPOPS_DTYPE_F32, w, &shape));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "x", x));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "w", w));
    SPOPS_TRY(check_vector(ctx, call, "layer->bias", layer.bias, out));
    SPOPS_TRY(check_vector(ctx, call, "layer->scale", layer.scale, out));
    SPOPS_TRY(check_vector(ctx, call, "layer->shift", layer.shift, out));
    if (layer.residual != NULL) {
        SPOPS_TRY(spops_check_matrix(ctx, call, "layer->residual", *layer.residual, out.rows,
                                     out.cols, 1u << out.dtype));
        SPOPS_TRY(
            spops_check_no_overlap(ctx, call, "out", out, "layer->residual", *layer.residual));
    }
    SPOPS_REQUIRE_SLOT(ctx, call, epilogue);
    if (may_use_igemm(conv, &shape, x.dtype, layer.math)) {
        spops_igemm_args args = igemm_args_of(ctx, conv, SIDE_OUT, x, w, out);
        if (ctx->backend->igemm_fits(ctx, &args)) {
            SPOPS_TRY(spops_context_scratch(ctx, call, conv->igemm_scratch_bytes, &args.scratch));
            if (layer.residual != NULL) args.residual = *layer.residual;
            args.bias = layer.bias;
            args.scale = layer.scale;
            args.shift = layer.shift;
            args.relu = layer.activation == SPOPS_ACTIVATION_RELU;
            return ctx->backend->igemm(ctx, &args);
        }
    }
    SPOPS_TRY(refuse_forced(ctx, call, conv));
    if (out.rows == 0) return SPOPS_STATUS_OK;
    options = mvmr_options_of(&shape, layer.math);
    options.num_rows = conv->view.out->num_rows;
    SPOPS_TRY(spops_mvmr_execute(ctx, conv->triplets, x, w, NULL, &options, out));
    if (!has_epilogue(&layer)) return SPOPS_STATUS_OK;
    epilogue.out = out;
    if (layer.residual != NULL) epilogue.residual = *layer.residual;
    epilogue.num_rows = conv->view.out->num_rows;
    epilogue.bias = layer.bias;
    epilogue.scale = layer.scale;
    epilogue.shift = layer.shift;
    epilogue.activation = layer.activation;
    return ctx->backend->epilogue(ctx, &epilogue);
}

// A gradient that is wanted: of the shape of `of`, in its dtype or f32, apart from all inputs.
static spops_status check_gradient(spops_context *ctx, const char *call, const char *name,
                                   const spops_matrix *grad, spops_matrix of, spops_matrix grad_sum,
                                   spops_matrix x, spops_matrix w)
{
    if (grad == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_check_matrix(ctx, call, name, *grad, of.rows, of.cols,
                                 1u << of.dtype | 1u << SPOPS_DTYPE_F32));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, *grad, "grad_sum", grad_sum));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, name, *grad, "x", x));
    return spops_check_no_overlap(ctx, call, name, *grad, "w", w);
}

// The gradients that IMPLICIT_GEMM serves, which become NULL.
static spops_status backward_igemm(spops_context *ctx, const char *call,
                                   const spops_sparseconv *conv, spops_matrix grad_sum,
                                   spops_matrix x, spops_matrix w, const spops_matrix **grad_x,
                                   const spops_matrix **grad_w)
{
    spops_igemm_args product = {0};
    spops_igemm_wgrad_args wgrad = {0};
    bool do_x = *grad_x != NULL, do_w = *grad_w != NULL;
    void *scratch;

    if (do_x) {
        product = igemm_args_of(ctx, conv, SIDE_IN, grad_sum, w, **grad_x);
        do_x = ctx->backend->igemm_fits(ctx, &product);
    }
    if (do_w) {
        wgrad = wgrad_args_of(ctx, conv, x, grad_sum, **grad_w);
        do_w = ctx->backend->igemm_wgrad_fits(ctx, &wgrad);
    }
    // Nothing is enqueued where a forced dataflow does not serve all of the call.
    if ((*grad_x != NULL && !do_x) || (*grad_w != NULL && !do_w))
        SPOPS_TRY(refuse_forced(ctx, call, conv));
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_sparseconv_scratch_bytes(conv), &scratch));
    if (do_x) {
        product.scratch = scratch;
        SPOPS_TRY(ctx->backend->igemm(ctx, &product));
        *grad_x = NULL;
    }
    if (do_w) {
        wgrad.scratch = scratch;
        SPOPS_TRY(ctx->backend->igemm_wgrad(ctx, &wgrad));
        *grad_w = NULL;
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_sparseconv_execute_backward(spops_context *ctx, const spops_sparseconv *conv,
                                               spops_matrix grad_sum, spops_matrix x,
                                               spops_matrix w, const spops_sparseconv_layer *given,
                                               const spops_matrix *grad_x,
                                               const spops_matrix *grad_w)
{
    static const char call[] = "sparseconv_execute_backward";
    spops_sparseconv_layer layer = {0};
    spops_mvmr_options options;
    layer_shape shape;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(check_plan(ctx, call, conv));
    SPOPS_REQUIRE(ctx, conv->backward,
                  "%s: conv was made without gradients, expected options->backward = 1", call);
    SPOPS_TRY(read_layer(ctx, call, given, &layer));
    SPOPS_TRY(check_shapes(ctx, call, conv, layer.groups, "x", x, "grad_sum", grad_sum,
                           1u << x.dtype, w, &shape));
    SPOPS_TRY(check_gradient(ctx, call, "grad_x", grad_x, x, grad_sum, x, w));
    SPOPS_TRY(check_gradient(ctx, call, "grad_w", grad_w, w, grad_sum, x, w));
    if (grad_x != NULL && grad_w != NULL)
        SPOPS_TRY(spops_check_no_overlap(ctx, call, "grad_w", *grad_w, "grad_x", *grad_x));
    if (grad_w != NULL) {
        SPOPS_REQUIRE(ctx, grad_w->rows <= 1 || grad_w->row_stride == grad_w->cols,
                      "%s: grad_w.row_stride is %" PRId64 ", expected its %" PRId64 " columns",
                      call, grad_w->row_stride, grad_w->cols);
        SPOPS_REQUIRE(ctx,
                      shape.in_channels / shape.groups <= conv->max_in_channels &&
                          shape.out_channels <= conv->max_out_channels,
                      "%s: w is %" PRId64 " x %" PRId64 " a tap, more than the %" PRId64
                      " x %" PRId64 " that conv was made for",
                      call, shape.in_channels / shape.groups, shape.out_channels,
                      conv->max_in_channels, conv->max_out_channels);
    }
    if (may_use_igemm(conv, &shape, x.dtype, layer.math))
        SPOPS_TRY(backward_igemm(ctx, call, conv, grad_sum, x, w, &grad_x, &grad_w));
    if (grad_x == NULL && grad_w == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(refuse_forced(ctx, call, conv));
    options = mvmr_options_of(&shape, layer.math);
    options.num_rows = conv->view.in->num_rows;
    return spops_mvmr_execute_backward(ctx, conv->triplets, grad_sum, x, w, NULL, &options, grad_x,
                                       grad_w, NULL);
}
