// SPDX-License-Identifier: Apache-2.0
#include "tapconv/tapconv.h"

#include "call/call_check.h"
#include "igemm/igemm8_args.h"
#include "igemm/row_sums.h"
#include "tapconv/widen_args.h"

#define DEFAULT_MAX_CHANNELS 256

// ---- Making -------------------------------------------------------------------------------------

spops_status spops_tapconv_check_options(spops_context *ctx, const char *call,
                                         spops_tapconv_options *o)
{
    SPOPS_TRY(spops_check_flag(ctx, call, "options->backward", o->backward));
    SPOPS_TRY(spops_check_flag(ctx, call, "options->quantized", o->quantized));
    SPOPS_TRY(spops_check_flag(ctx, call, "options->crop_independent", o->crop_independent));
    SPOPS_REQUIRE(ctx, !o->crop_independent || o->dataflow != SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER,
                  "%s: options->crop_independent is 1, expected 0 for %s", call,
                  spops_dataflow_name(o->dataflow));
    SPOPS_TRY(spops_check_count(ctx, call, "options->max_in_channels", o->max_in_channels));
    SPOPS_TRY(spops_check_count(ctx, call, "options->max_out_channels", o->max_out_channels));
    if (o->max_in_channels == 0) o->max_in_channels = DEFAULT_MAX_CHANNELS;
    if (o->max_out_channels == 0) o->max_out_channels = DEFAULT_MAX_CHANNELS;
    return SPOPS_STATUS_OK;
}

void spops_tapconv_put_options(const spops_tapconv_options *options, int64_t *fields)
{
    fields[SPOPS_TAPCONV_MAX_IN_CHANNELS] = options->max_in_channels;
    fields[SPOPS_TAPCONV_MAX_OUT_CHANNELS] = options->max_out_channels;
    fields[SPOPS_TAPCONV_DATAFLOW] = options->dataflow;
    fields[SPOPS_TAPCONV_BACKWARD] = options->backward + options->weights_only;
    fields[SPOPS_TAPCONV_QUANTIZED] = options->quantized;
    fields[SPOPS_TAPCONV_TILE] = options->tile;
    fields[SPOPS_TAPCONV_CROP_INDEPENDENT] = options->crop_independent;
}

void spops_tapconv_put_relation(const spops_relation *r, bool mirrored, int64_t *fields)
{
    fields[SPOPS_TAPCONV_NUM_OUT] = r->sides[SPOPS_SIDE_TARGET].max_rows;
    fields[SPOPS_TAPCONV_NUM_IN] = r->sides[SPOPS_SIDE_SOURCE].max_rows;
    fields[SPOPS_TAPCONV_NUM_TAPS] = r->num_keys;
    fields[SPOPS_TAPCONV_MAX_PAIRS] = r->max_terms;
    fields[SPOPS_TAPCONV_MIRRORED] = mirrored;
}

spops_status spops_tapconv_read(spops_context *ctx, const char *call, spops_tapconv *conv,
                                spops_dataflow last)
{
    spops_plan *base = &conv->base;
    int64_t *fields = base->fields;

    for (int32_t i = SPOPS_TAPCONV_NUM_OUT; i <= SPOPS_TAPCONV_MAX_OUT_CHANNELS; ++i)
        SPOPS_TRY(spops_plan_check_field(ctx, call, base, i, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_NUM_TAPS, 1, INT32_MAX - 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_DATAFLOW, 0, last));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_BACKWARD, 0,
                                     base->kind == SPOPS_PLAN_SPARSECONV ? 2 : 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_QUANTIZED, 0, 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_TILE, INT32_MIN, INT32_MAX));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_MAX_PAIRS, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_MIRRORED, 0, 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, base, SPOPS_TAPCONV_CROP_INDEPENDENT, 0, 1));
    spops_tapconv_options o = {fields[SPOPS_TAPCONV_BACKWARD] != 0,
                               (int32_t)fields[SPOPS_TAPCONV_QUANTIZED],
                               (spops_dataflow)fields[SPOPS_TAPCONV_DATAFLOW],
                               fields[SPOPS_TAPCONV_MAX_IN_CHANNELS],
                               fields[SPOPS_TAPCONV_MAX_OUT_CHANNELS],
                               (int32_t)fields[SPOPS_TAPCONV_TILE],
                               (int32_t)fields[SPOPS_TAPCONV_CROP_INDEPENDENT],
                               fields[SPOPS_TAPCONV_BACKWARD] == 2};
    SPOPS_TRY(spops_tapconv_check_options(ctx, call, &o));
    spops_tapconv_put_options(&o, fields); // with defaults
    conv->relation = (spops_relation){.num_keys = fields[SPOPS_TAPCONV_NUM_TAPS],
                                      .max_terms = fields[SPOPS_TAPCONV_MAX_PAIRS],
                                      .sides = {{.max_rows = fields[SPOPS_TAPCONV_NUM_OUT]},
                                                {.max_rows = fields[SPOPS_TAPCONV_NUM_IN]}}};
    conv->mirrored = fields[SPOPS_TAPCONV_MIRRORED] != 0;
    conv->backward = o.backward != 0;
    conv->weights_only = o.weights_only != 0;
    conv->quantized = o.quantized != 0;
    conv->dataflow = conv->choice.named = o.dataflow;
    conv->max_in_channels = o.max_in_channels;
    conv->max_out_channels = o.max_out_channels;
    conv->tile = o.tile;
    conv->crop_independent = o.crop_independent != 0;
    return SPOPS_STATUS_OK;
}

spops_status spops_tapconv_wants_igemm(spops_context *ctx, const char *call,
                                       const spops_tapconv *conv, bool *wants)
{
    const spops_igemm_scratch_args args = {0};

    *wants =
        conv->dataflow == SPOPS_DATAFLOW_AUTO || conv->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM;
    if (!*wants || (ctx->backend->igemm_exists != NULL && ctx->backend->igemm_exists(ctx, &args)))
        return SPOPS_STATUS_OK;
    *wants = false;
    if (conv->dataflow == SPOPS_DATAFLOW_AUTO) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: the %s backend has no %s%s", call,
                      ctx->backend->name, spops_dataflow_name(conv->dataflow),
                      ctx->backend->kind == SPOPS_BACKEND_CPU ? "" : " for this device");
}

spops_status spops_tapconv_lacks(spops_context *ctx, const char *call, const spops_tapconv *conv,
                                 const char *what)
{
    if (conv->dataflow == SPOPS_DATAFLOW_AUTO) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: %s, expected it for %s", call, what,
                      spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
}

bool spops_tapconv_has_side(const spops_tapconv *conv, int side)
{
    if (conv->weights_only) return false;
    return side == SPOPS_SIDE_TARGET || (conv->backward && !conv->mirrored);
}

void spops_tapconv_size_igemm(spops_context *ctx, spops_tapconv *conv)
{
    spops_igemm_scratch_args scratch = {.num_taps = (int32_t)conv->relation.num_keys,
                                        .max_x_cols = conv->max_in_channels,
                                        .max_out_cols = conv->max_out_channels,
                                        .gradients = conv->backward,
                                        .tile = conv->tile};

    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        if (conv->schedules[side].max_records > scratch.max_records)
            scratch.max_records = conv->schedules[side].max_records;
    conv->igemm_scratch_bytes = ctx->backend->igemm_scratch_bytes(ctx, &scratch);
    conv->has_igemm = true;
}

spops_status spops_tapconv_check_tile(spops_context *ctx, const char *call,
                                      const spops_tapconv *conv)
{
    const spops_igemm_schedule *s = &conv->schedules[SPOPS_SIDE_TARGET];
    const spops_igemm_args product = {.schedule = s, .tile = conv->tile};
    const spops_igemm_wgrad_args gradient = {.units = s->has_units ? s : NULL, .tile = conv->tile};

    if (conv->tile == 0) return SPOPS_STATUS_OK;
    if (!conv->has_igemm)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: options->tile is %d, which needs %s", call, (int)conv->tile,
                          spops_dataflow_name(SPOPS_DATAFLOW_IMPLICIT_GEMM));
    SPOPS_REQUIRE(
        ctx,
        ctx->backend->igemm_tile(ctx, &product) == conv->tile ||
            (conv->backward && ctx->backend->igemm_wgrad_tile(ctx, &gradient) == conv->tile),
        "%s: options->tile is %d, expected that of a kernel for this device%s", call,
        (int)conv->tile, s->adds ? " that adds rows first" : "");
    return SPOPS_STATUS_OK;
}

spops_status spops_tapconv_prepare(spops_context *ctx, spops_plan *plan)
{
    const spops_tapconv *conv = (const spops_tapconv *)plan;
    const spops_igemm_schedule *s = &conv->schedules[SPOPS_SIDE_TARGET];
    const spops_igemm_prepare_args kernels = {.products = !s->adds && !conv->weights_only,
                                              .adds = s->adds,
                                              .gradients = conv->backward && !s->has_units,
                                              .units = s->has_units,
                                              .tile = conv->tile};
    const spops_igemm8_prepare_args narrow = {.tile = conv->tile};
    if (conv->has_igemm && conv->quantized && !s->adds)
        SPOPS_TRY(SPOPS_PREPARE(ctx, igemm8_prepare, &narrow));
    return conv->has_igemm ? SPOPS_PREPARE(ctx, igemm_prepare, &kernels) : SPOPS_STATUS_OK;
}

spops_status spops_tapconv_read_triplets(spops_context *ctx, spops_tapconv *conv)
{
    const spops_relation *r = &conv->relation;
    const spops_triplets_shape shape = {r->sides[SPOPS_SIDE_TARGET].max_rows,
                                        r->sides[SPOPS_SIDE_SOURCE].max_rows, r->num_keys,
                                        r->max_terms};
    spops_triplets_options options = spops_triplets_options_default();

    options.backward = conv->backward;
    options.max_matrix_elements = conv->max_in_channels * conv->max_out_channels;
    return spops_triplets_reserve(ctx, &shape, &options, &conv->triplets);
}

spops_status spops_tapconv_set_triplets(spops_context *ctx, spops_tapconv *conv)
{
    const spops_relation *r = &conv->relation;
    if (conv->triplets == NULL) return SPOPS_STATUS_OK;
    return spops_triplets_update_offsets(
        ctx, conv->triplets, r->sides[SPOPS_SIDE_TARGET].by_key.offsets,
        r->sides[SPOPS_SIDE_TARGET].by_key.rows, r->sides[SPOPS_SIDE_SOURCE].by_key.rows);
}

void spops_tapconv_destroy(spops_plan *plan)
{
    spops_tapconv *conv = (spops_tapconv *)plan;

    spops_plan_end_use(plan);
    spops_dataflow_choice_free(plan->ctx, &conv->choice);
}

// ---- Sizes --------------------------------------------------------------------------------------

// What the dataflows need; an x of i8 is widened after it.
static size_t dataflow_scratch_bytes(const spops_tapconv *conv)
{
    size_t bytes = spops_triplets_scratch_bytes(conv->triplets);
    const size_t buffers = spops_dataflow_choice_scratch_bytes(&conv->choice);
    const size_t sums =
        conv->backward ? spops_row_partials_bytes(conv->relation.sides[SPOPS_SIDE_TARGET].max_rows,
                                                  conv->max_out_channels)
                       : 0;
    if (buffers > bytes) bytes = buffers;
    if (sums > bytes) bytes = sums;
    return bytes > conv->igemm_scratch_bytes ? bytes : conv->igemm_scratch_bytes;
}

// The place of an x of i8 once it is widened to the widest dtype, in scratch from c on.
static void *carve_widened(const spops_tapconv *conv, spops_carver *c)
{
    const spops_backend *backend = conv->base.ctx->backend;
    const spops_dtype widest =
        spops_dtype_in(SPOPS_DTYPE_F64, backend->lacks_dtypes) ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F64;
    (void)spops_carve(c, 1, 1, dataflow_scratch_bytes(conv));
    return spops_carve(c, conv->quantized ? conv->relation.sides[SPOPS_SIDE_SOURCE].max_rows : 0,
                       conv->max_in_channels, spops_dtype_bytes(widest));
}

size_t spops_tapconv_scratch_bytes(const spops_plan *plan)
{
    const spops_tapconv *conv = (const spops_tapconv *)plan;
    spops_carver c = {NULL, 0};
    if (!conv->quantized) return dataflow_scratch_bytes(conv);
    (void)carve_widened(conv, &c);
    return c.used;
}

size_t spops_tapconv_bytes(const spops_plan *plan)
{
    return spops_dataflow_choice_bytes(&((const spops_tapconv *)plan)->choice);
}

spops_status spops_tapconv_state(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    const spops_tapconv *conv = (const spops_tapconv *)plan;
    int64_t triplets[SPOPS_PLAN_MAX_COUNTS] = {0};
    int32_t totals[SPOPS_IGEMM_NUM_TOTALS] = {0};

    if (conv->triplets != NULL)
        SPOPS_TRY(spops_plan_read_state(ctx, &conv->triplets->base, triplets));
    for (int side = 0; conv->has_igemm && side < SPOPS_NUM_SIDES; ++side) {
        const spops_igemm_schedule *s = &conv->schedules[side];
        const bool from_lists = s->max_rows > 0; // else a map made it, or there is nothing
        const size_t num = from_lists ? SPOPS_IGEMM_NUM_TOTALS : SPOPS_IGEMM_RECORDS + 1;
        int32_t found[SPOPS_IGEMM_NUM_TOTALS] = {0};
        if (!spops_tapconv_has_side(conv, side)) continue;
        SPOPS_TRY(ctx->backend->download(ctx, found, s->num_tiles, num * sizeof *found));
        for (int i = 0; i < SPOPS_IGEMM_NUM_TOTALS; ++i)
            totals[i] += found[i];
    }
    counts[0] = triplets[0];
    counts[1] = totals[SPOPS_IGEMM_TILES];
    counts[2] = totals[SPOPS_IGEMM_RECORDS];
    counts[3] = triplets[4] != 0 || totals[SPOPS_IGEMM_OVERFLOW] != 0;
    return SPOPS_STATUS_OK;
}

// ---- Who serves a pass --------------------------------------------------------------------------

// A pass and its arguments, or their shapes alone: x and y are the rows on either side of the
// relation, w the matrices of taps. What the pass writes has its place among them.
typedef struct conv_pass {
    spops_conv_pass pass;
    spops_dtype dtype; // of what it reads
    spops_math math;
    spops_layer_shape shape;
    spops_matrix x, w, y;
} conv_pass;

// Arguments of igemm for one pass. The caller adds scratch, tickets and the epilogue.
static spops_igemm_args igemm_args_of(const spops_tapconv *conv, const conv_pass *p)
{
    const bool reversed = p->pass == SPOPS_PASS_GRAD_X;
    const bool mirrored = reversed && conv->mirrored;
    const int side = reversed && !mirrored ? SPOPS_SIDE_SOURCE : SPOPS_SIDE_TARGET;

    return (spops_igemm_args){.schedule = &conv->schedules[side],
                              .tile = conv->tile,
                              .whole_sums = conv->crop_independent,
                              .x = reversed ? p->y : p->x,
                              .w = p->w,
                              .out = reversed ? p->x : p->y,
                              .w_transposed = reversed,
                              .mirrored = mirrored};
}

static spops_igemm_wgrad_args wgrad_args_of(const spops_tapconv *conv, const conv_pass *p)
{
    const spops_relation *r = &conv->relation;
    const spops_igemm_schedule *s = &conv->schedules[SPOPS_SIDE_TARGET];

    return (spops_igemm_wgrad_args){.num_taps = (int32_t)r->num_keys,
                                    .max_pairs = r->max_terms,
                                    .tap_offsets = r->sides[SPOPS_SIDE_TARGET].by_key.offsets,
                                    .in_rows = r->sides[SPOPS_SIDE_SOURCE].by_key.rows,
                                    .out_rows = r->sides[SPOPS_SIDE_TARGET].by_key.rows,
                                    .units = s->has_units ? s : NULL,
                                    .x = p->x,
                                    .g = p->y,
                                    .dw = p->w,
                                    .tile = conv->tile};
}

static bool igemm_takes(const spops_tapconv *conv, const conv_pass *p)
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

static bool takes(const spops_tapconv *conv, spops_dataflow dataflow, const conv_pass *p)
{
    if (dataflow == SPOPS_DATAFLOW_AUTO || dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND) return true;
    if (p->dtype == SPOPS_DTYPE_F64) return false;
    if (p->shape.groups != 1 || p->shape.in_channels > conv->max_in_channels ||
        p->shape.out_channels > conv->max_out_channels)
        return false;
    if (dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM) return igemm_takes(conv, p);
    return has_int_stride(p->x) && has_int_stride(p->y); // int32 in the products
}

// The one answer to who serves a pass: what the plan's dataflow, or its tuning, says; else, with AUTO,
// fetch-on-demand. AUTO: nobody.
static spops_wanted_dataflow server_of(const spops_tapconv *conv, const conv_pass *p)
{
    static const spops_wanted_dataflow nobody = {SPOPS_DATAFLOW_AUTO, NULL};
    static const spops_wanted_dataflow fetch = {SPOPS_DATAFLOW_FETCH_ON_DEMAND, NULL};
    const spops_conv_choice layer = {.pass = p->pass,
                                     .dtype = p->dtype,
                                     .math = p->math,
                                     .in_channels = p->shape.in_channels,
                                     .out_channels = p->shape.out_channels};

    if (p->pass != SPOPS_PASS_FORWARD && !conv->backward) return nobody;
    if (p->pass != SPOPS_PASS_GRAD_W && conv->weights_only) return nobody;
    if (!takes(conv, conv->dataflow, p)) return nobody;
    const spops_wanted_dataflow wanted =
        spops_dataflow_choice_get(conv->base.ctx, &conv->choice, &layer, p->shape.groups);
    return takes(conv, wanted.dataflow, p) ? wanted : fetch;
}

// The tile of a pass that IMPLICIT_GEMM serves.
static int32_t tile_of(const spops_tapconv *conv, const conv_pass *p, bool reads_ahead)
{
    const spops_context *ctx = conv->base.ctx;
    spops_igemm_args product = igemm_args_of(conv, p);
    const spops_igemm_wgrad_args gradient = wgrad_args_of(conv, p);
    product.reads_ahead = reads_ahead;
    return p->pass == SPOPS_PASS_GRAD_W ? ctx->backend->igemm_wgrad_tile(ctx, &gradient)
                                        : ctx->backend->igemm_tile(ctx, &product);
}

static spops_status refuse(spops_context *ctx, const char *call, const spops_tapconv *conv)
{
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: conv was made for %s, which does not serve this call (%s)", call,
                      spops_dataflow_name(conv->dataflow),
                      conv->weights_only ? "it has gradients of weights and bias alone"
                      : conv->dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM
                          ? "groups, dtype, math, channels, or rows not aligned to 16 bytes"
                          : "groups, rows of f64, or more channels than it was made for");
}

spops_status spops_tapconv_get_choice(spops_context *ctx, const char *call,
                                      const spops_tapconv *conv, spops_conv_pass pass,
                                      spops_dtype dtype, int64_t in_channels, int64_t out_channels,
                                      const spops_conv_layer *given, spops_conv_choice *choice)
{
    spops_conv_layer layer = {0};
    spops_wanted_dataflow chosen = {SPOPS_DATAFLOW_AUTO, NULL};
    int32_t tile = 0;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "conv", conv));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_check_object(ctx, call, "choice", choice, _Alignof(spops_conv_choice)));
    SPOPS_REQUIRE(ctx, (unsigned)pass <= SPOPS_PASS_GRAD_W, "%s: pass is %d, expected 0 to 2", call,
                  (int)pass);
    SPOPS_REQUIRE(ctx, spops_dtype_in(dtype, SPOPS_DTYPES_REAL & ~ctx->backend->lacks_dtypes),
                  "%s: dtype is %s, expected f32, f16 or bf16", call, spops_dtype_name(dtype));
    SPOPS_REQUIRE(ctx, in_channels > 0 && out_channels > 0,
                  "%s: in_channels is %" PRId64 " and out_channels %" PRId64 ", expected 1 or more",
                  call, in_channels, out_channels);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    const spops_relation *r = &conv->relation;
    const int64_t num_in = r->sides[SPOPS_SIDE_SOURCE].max_rows;
    const int64_t num_out = r->sides[SPOPS_SIDE_TARGET].max_rows;
    if (in_channels % layer.groups == 0 && out_channels % layer.groups == 0) {
        const conv_pass p = {.pass = pass,
                             .dtype = dtype,
                             .math = layer.math,
                             .shape = {in_channels, out_channels, layer.groups},
                             .x = spops_matrix_dense(NULL, num_in, in_channels, dtype),
                             .w = spops_matrix_dense(NULL, 0, out_channels, dtype),
                             .y = spops_matrix_dense(NULL, num_out, out_channels, dtype)};
        chosen = server_of(conv, &p);
        if (chosen.dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM)
            tile = tile_of(conv, &p, pass == SPOPS_PASS_FORWARD && layer.reads_ahead == 1);
    }
    *choice = (spops_conv_choice){.pass = pass,
                                  .dtype = dtype,
                                  .math = layer.math,
                                  .num_taps = (int32_t)r->num_keys,
                                  .in_channels = in_channels,
                                  .out_channels = out_channels,
                                  .num_out = num_out,
                                  .num_pairs = r->max_terms,
                                  .dataflow = chosen.dataflow,
                                  .tile = tile};
    choice->adds_first =
        chosen.dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM &&
        conv->schedules[SPOPS_SIDE_TARGET].adds &&
        (pass != SPOPS_PASS_GRAD_W || conv->schedules[SPOPS_SIDE_TARGET].has_units);
    if (chosen.dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER) {
        choice->grouping = chosen.layout->grouping.grouping;
        choice->epsilon = chosen.layout->grouping.epsilon;
        choice->batch_rows = chosen.layout->grouping.batch_rows;
    }
    return SPOPS_STATUS_OK;
}

// ---- Layers -------------------------------------------------------------------------------------

// An x of i8, checked, becomes the matrix that it will be widened to.
static spops_status place_widened(spops_context *ctx, const char *call, const spops_tapconv *conv,
                                  const spops_conv_layer *layer, spops_matrix w, spops_matrix *x)
{
    spops_carver c = {NULL, 0};
    void *scratch;

    SPOPS_REQUIRE(ctx, conv->quantized,
                  "%s: x.dtype is i8, expected f32, f16 or bf16: conv was made without "
                  "options->quantized",
                  call);
    SPOPS_REQUIRE(ctx, x->cols <= conv->max_in_channels,
                  "%s: x has %" PRId64 " columns, more than the %" PRId64 " that conv was made for",
                  call, x->cols, conv->max_in_channels);
    SPOPS_REQUIRE(ctx, layer->x_scales != NULL, "%s: x_scales is NULL", call);
    SPOPS_REQUIRE_SLOT(ctx, call, widen);
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_tapconv_scratch_bytes(&conv->base), &scratch));
    c.base = scratch;
    *x = spops_matrix_dense(carve_widened(conv, &c), x->rows, x->cols, w.dtype);
    return SPOPS_STATUS_OK;
}

static spops_status widen(spops_context *ctx, const spops_tapconv *conv,
                          const spops_conv_layer *layer, spops_matrix q, spops_matrix x)
{
    const spops_widen_args args = {q, x, layer->x_scales, layer->x_scales_by_channel != 0,
                                   conv->relation.sides[SPOPS_SIDE_SOURCE].num_rows};
    if (q.dtype != SPOPS_DTYPE_I8 || q.rows == 0) return SPOPS_STATUS_OK;
    return ctx->backend->widen(ctx, &args);
}

// What the pass shall run on, but for FETCH_ON_DEMAND. layer: the epilogue of a forward pass.
static spops_status run_pass(spops_context *ctx, const spops_tapconv *conv, const conv_pass *p,
                             spops_wanted_dataflow by, const spops_conv_layer *layer, void *scratch)
{
    const bool reversed = p->pass == SPOPS_PASS_GRAD_X, tf32 = p->math == SPOPS_MATH_TF32;

    // Of no pairs, whose arrays are NULL, nothing is launched.
    if (p->pass == SPOPS_PASS_GRAD_W && conv->relation.max_terms == 0)
        return ctx->backend->fill_zero(
            ctx, p->w.data,
            spops_mul_bytes((size_t)p->w.rows * (size_t)p->w.cols, spops_dtype_bytes(p->w.dtype)));
    if (by.dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM && p->pass == SPOPS_PASS_GRAD_W) {
        spops_igemm_wgrad_args args = wgrad_args_of(conv, p);
        args.scratch = scratch;
        return ctx->backend->igemm_wgrad(ctx, &args);
    }
    if (by.dataflow == SPOPS_DATAFLOW_IMPLICIT_GEMM) {
        spops_igemm_args args = igemm_args_of(conv, p);
        args.tickets = ctx->tickets;
        args.scratch = scratch;
        if (layer != NULL) args.epilogue = spops_layer_epilogue(ctx, layer, p->dtype);
        args.reads_ahead = layer != NULL && layer->reads_ahead == 1;
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
    return spops_layer_finish(ctx, layer, p->dtype,
                              conv->relation.sides[SPOPS_SIDE_TARGET].num_rows, args.out);
}

spops_status spops_tapconv_execute(spops_context *ctx, spops_operator_id op,
                                   const spops_tapconv *conv, spops_matrix x, spops_matrix w,
                                   const spops_conv_layer *given, spops_matrix out)
{
    const char *call = spops_row_of(op)->call;
    const spops_matrix given_x = x;
    spops_conv_layer layer = {0};
    spops_wanted_dataflow by;
    spops_mvmr_options options;
    spops_layer_shape shape;
    void *scratch;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    SPOPS_TRY(spops_layer_shape_of(ctx, call, layer.groups, x.cols, "out", out.cols, &shape));
    const void *const args[] = {
        &x, &w, layer.bias, layer.scale, layer.shift, layer.residual, layer.x_scales, conv, &out};
    const spops_call_number attributes[] = {{.i = layer.groups},
                                            {.i = layer.activation},
                                            {.i = layer.math},
                                            {.i = layer.x_scales_by_channel},
                                            {.f = layer.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, op, args, attributes));
    SPOPS_REQUIRE_SLOT(ctx, call, epilogue);
    if (x.dtype == SPOPS_DTYPE_I8) SPOPS_TRY(place_widened(ctx, call, conv, &layer, w, &x));
    const conv_pass pass = {SPOPS_PASS_FORWARD, x.dtype, layer.math, shape, x, w, out};
    by = server_of(conv, &pass);
    if (by.dataflow == SPOPS_DATAFLOW_AUTO) return refuse(ctx, call, conv);
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_tapconv_scratch_bytes(&conv->base), &scratch));
    if (out.rows == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(widen(ctx, conv, &layer, given_x, x));
    if (by.dataflow != SPOPS_DATAFLOW_FETCH_ON_DEMAND)
        return run_pass(ctx, conv, &pass, by, &layer, scratch);
    options = spops_layer_mvmr_options(&shape, layer.math);
    options.num_rows = conv->relation.sides[SPOPS_SIDE_TARGET].num_rows;
    SPOPS_TRY(spops_mvmr_run(ctx, call, conv->triplets, x, w, &options, out));
    return spops_layer_finish(ctx, &layer, w.dtype, options.num_rows, out);
}

// Scratch of the gradient of w is for the channels that the plan was told of.
static spops_status check_channels(spops_context *ctx, const char *call, const spops_tapconv *conv,
                                   const spops_layer_shape *shape)
{
    SPOPS_REQUIRE(ctx,
                  shape->in_channels / shape->groups <= conv->max_in_channels &&
                      shape->out_channels <= conv->max_out_channels,
                  "%s: w is %" PRId64 " x %" PRId64 " a tap, more than the %" PRId64 " x %" PRId64
                  " that conv was made for",
                  call, shape->in_channels / shape->groups, shape->out_channels,
                  conv->max_in_channels, conv->max_out_channels);
    return SPOPS_STATUS_OK;
}

// The gradient of the bias: sums of columns over the rows in use.
static spops_status sum_bias(spops_context *ctx, const spops_tapconv *conv, spops_matrix grad_sum,
                             void *grad_bias, void *scratch)
{
    const spops_row_pieces pieces = spops_row_pieces_of(grad_sum.rows, grad_sum.cols);
    spops_linear_grad_args args = {
        .g = grad_sum,
        .out = spops_matrix_dense(grad_bias, 1, grad_sum.cols, spops_sum_dtype(grad_sum.dtype)),
        .num_rows = conv->relation.sides[SPOPS_SIDE_TARGET].num_rows,
        .piece_rows = pieces.rows,
        .num_pieces = pieces.num,
        .partials = scratch};
    if (args.g.rows <= 1) args.g.row_stride = args.g.cols;
    return ctx->backend->linear_grad(ctx, &args);
}

spops_status spops_tapconv_execute_backward(spops_context *ctx, spops_operator_id op,
                                            const spops_tapconv *conv, spops_matrix grad_sum,
                                            spops_matrix x, spops_matrix w,
                                            const spops_conv_layer *given,
                                            const spops_matrix *grad_x, const spops_matrix *grad_w,
                                            void *grad_bias)
{
    const char *call = spops_row_of(op)->call;
    const void *const args[] = {&x, &w, &grad_sum, conv, grad_x, grad_w, grad_bias};
    spops_conv_layer layer = {0};
    spops_wanted_dataflow by_x = {SPOPS_DATAFLOW_FETCH_ON_DEMAND, NULL}, by_w = by_x;
    spops_mvmr_options options;
    spops_layer_shape shape;
    void *scratch;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_layer_read(ctx, call, given, &layer));
    SPOPS_TRY(
        spops_layer_shape_of(ctx, call, layer.groups, x.cols, "grad_sum", grad_sum.cols, &shape));
    if (conv != NULL) SPOPS_TRY(spops_check_home(ctx, call, "conv", conv->base.ctx));
    SPOPS_REQUIRE(ctx, conv == NULL || conv->backward,
                  "%s: conv was made without gradients, expected options->backward = 1", call);
    const spops_call_number attributes[] = {{.i = layer.groups}, {.i = layer.math}};
    SPOPS_TRY(spops_check_call(ctx, op, args, attributes));
    if (grad_w != NULL || grad_bias != NULL) SPOPS_TRY(check_channels(ctx, call, conv, &shape));
    SPOPS_REQUIRE_SLOT(ctx, call, linear_grad);
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
    SPOPS_TRY(spops_context_scratch(ctx, call, spops_tapconv_scratch_bytes(&conv->base), &scratch));
    if (grad_bias != NULL) SPOPS_TRY(sum_bias(ctx, conv, grad_sum, grad_bias, scratch));
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
    options.num_rows = conv->relation.sides[SPOPS_SIDE_SOURCE].num_rows;
    return spops_mvmr_execute_backward(ctx, conv->triplets, grad_sum, x, w, NULL, &options, grad_x,
                                       grad_w, NULL);
}
