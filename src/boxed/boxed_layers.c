// SPDX-License-Identifier: Apache-2.0
// Boxed functions of convolutions, linear layers, pooling, attention, norms, conversions and quantising.
#include "call/boxed.h"
#include "spops/activation.h"
#include "spops/attention.h"
#include "spops/bevpool.h"
#include "spops/convert.h"
#include "spops/linear.h"
#include "spops/norm.h"
#include "spops/pointconv.h"
#include "spops/pool.h"
#include "spops/quantize.h"
#include "spops/sparseconv.h"

static float f32_attribute(const spops_boxed_call *b, int i)
{
    return (float)b->attributes[i].f;
}

// An array that the call writes.
static void *written(const spops_boxed_call *b, int i)
{
    return b->args[i] == NULL ? NULL : b->matrices[i].data;
}

// ---- Convolutions -------------------------------------------------------------------------------

spops_status spops_boxed_sparseconv_plan(spops_boxed_call *b)
{
    enum {
        BACKWARD,
        DATAFLOW,
        MAX_IN,
        MAX_OUT,
        GROUPING,
        EPSILON,
        BATCH_ROWS,
        QUANTIZED,
        CROP_INDEPENDENT
    };
    spops_sparseconv *made = NULL;
    spops_sparseconv_options options = spops_sparseconv_options_default();
    if (b->into != NULL) return SPOPS_STATUS_OK; // filled from its parent when it was emptied
    options.backward = spops_boxed_i32(b, BACKWARD);
    options.dataflow = (spops_dataflow)spops_boxed_i32(b, DATAFLOW);
    options.max_in_channels = b->attributes[MAX_IN].i;
    options.max_out_channels = b->attributes[MAX_OUT].i;
    options.grouping = (spops_grouping)spops_boxed_i32(b, GROUPING);
    options.epsilon = b->attributes[EPSILON].f;
    options.batch_rows = b->attributes[BATCH_ROWS].i;
    options.quantized = spops_boxed_i32(b, QUANTIZED);
    options.crop_independent = spops_boxed_i32(b, CROP_INDEPENDENT);
    SPOPS_TRY(spops_sparseconv_create(b->ctx, b->args[0], &options, &made));
    return spops_boxed_made(b, made);
}

// BIAS, SCALE, SHIFT and RESIDUAL are arguments 2 to 5, groups, activation and math attributes 0 to 2.
static spops_conv_layer layer_of(const spops_boxed_call *b)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.bias = b->args[2];
    layer.scale = b->args[3];
    layer.shift = b->args[4];
    layer.residual = spops_boxed_optional(b, 5);
    layer.groups = spops_boxed_i32(b, 0);
    layer.activation = (spops_activation)spops_boxed_i32(b, 1);
    layer.math = (spops_math)spops_boxed_i32(b, 2);
    return layer;
}

// groups and math are attributes 0 and 1.
static spops_conv_layer backward_layer_of(const spops_boxed_call *b)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.groups = spops_boxed_i32(b, 0);
    layer.math = (spops_math)spops_boxed_i32(b, 1);
    return layer;
}

spops_status spops_boxed_sparseconv(spops_boxed_call *b)
{
    enum { X, W, X_SCALES = 6, CONV, OUT, BY_CHANNEL = 3, SLOPE };
    spops_conv_layer layer = layer_of(b);
    layer.x_scales = b->args[X_SCALES];
    layer.x_scales_by_channel = spops_boxed_i32(b, BY_CHANNEL);
    layer.activation_slope = f32_attribute(b, SLOPE);
    return spops_sparseconv_execute(b->ctx, b->args[CONV], b->matrices[X], b->matrices[W], &layer,
                                    b->matrices[OUT]);
}

// X_SCALE to OUT_SCALE are arguments 2 to 9; activation, its slope and fast_sums attributes 0 to 2.
static spops_quantized_layer quantized_layer_of(const spops_boxed_call *b)
{
    spops_quantized_layer layer = spops_quantized_layer_default();
    layer.x_scale = b->args[2];
    layer.w_scales = b->args[3];
    layer.bias = b->args[4];
    layer.scale = b->args[5];
    layer.shift = b->args[6];
    layer.residual = spops_boxed_optional(b, 7);
    layer.residual_scale = b->args[8];
    layer.out_scale = b->args[9];
    layer.activation = (spops_activation)spops_boxed_i32(b, 0);
    layer.activation_slope = f32_attribute(b, 1);
    layer.fast_sums = spops_boxed_i32(b, 2);
    return layer;
}

spops_status spops_boxed_sparseconv_quantized(spops_boxed_call *b)
{
    enum { X, W, CONV = 10, OUT };
    const spops_quantized_layer layer = quantized_layer_of(b);
    return spops_sparseconv_execute_quantized(b->ctx, b->args[CONV], b->matrices[X], b->matrices[W],
                                              &layer, b->matrices[OUT]);
}

spops_status spops_boxed_sparseconv_backward(spops_boxed_call *b)
{
    enum { X, W, GRAD_SUM, CONV, GRAD_X, GRAD_W, GRAD_BIAS };
    const spops_conv_layer layer = backward_layer_of(b);
    return spops_sparseconv_execute_backward(
        b->ctx, b->args[CONV], b->matrices[GRAD_SUM], b->matrices[X], b->matrices[W], &layer,
        spops_boxed_optional(b, GRAD_X), spops_boxed_optional(b, GRAD_W), written(b, GRAD_BIAS));
}

spops_status spops_boxed_pointconv_plan(spops_boxed_call *b)
{
    enum { BACKWARD, DATAFLOW, MAX_IN, MAX_OUT, SUMS, QUANTIZED, CROP_INDEPENDENT };
    spops_pointconv *made = NULL;
    spops_pointconv_options options = spops_pointconv_options_default();
    if (b->into !=
        NULL) { // filled from its parent when it was emptied, unless it was made to measure
        const int32_t counted = spops_plan_field_index(SPOPS_PLAN_POINTCONV, "counted", 7);
        if (spops_plan_field(b->into, counted) != 0)
            return spops_fail(b->ctx, SPOPS_STATUS_NOT_SUPPORTED,
                              "%s: conv has counted = 1, expected 0 of a block that is filled",
                              b->row->call);
        return SPOPS_STATUS_OK;
    }
    options.backward = spops_boxed_i32(b, BACKWARD);
    options.dataflow = (spops_dataflow)spops_boxed_i32(b, DATAFLOW);
    options.max_in_channels = b->attributes[MAX_IN].i;
    options.max_out_channels = b->attributes[MAX_OUT].i;
    options.sums = (spops_pointconv_sums)spops_boxed_i32(b, SUMS);
    options.quantized = spops_boxed_i32(b, QUANTIZED);
    options.crop_independent = spops_boxed_i32(b, CROP_INDEPENDENT);
    SPOPS_TRY(spops_pointconv_create(b->ctx, b->args[0], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_pointconv(spops_boxed_call *b)
{
    enum { X, W, X_SCALES = 6, CONV, OUT, BY_CHANNEL = 3, SLOPE };
    spops_conv_layer layer = layer_of(b);
    layer.x_scales = b->args[X_SCALES];
    layer.x_scales_by_channel = spops_boxed_i32(b, BY_CHANNEL);
    layer.activation_slope = f32_attribute(b, SLOPE);
    return spops_pointconv_execute(b->ctx, b->args[CONV], b->matrices[X], b->matrices[W], &layer,
                                   b->matrices[OUT]);
}

spops_status spops_boxed_pointconv_backward(spops_boxed_call *b)
{
    enum { X, W, GRAD_SUM, CONV, GRAD_X, GRAD_W, GRAD_BIAS };
    const spops_conv_layer layer = backward_layer_of(b);
    return spops_pointconv_execute_backward(
        b->ctx, b->args[CONV], b->matrices[GRAD_SUM], b->matrices[X], b->matrices[W], &layer,
        spops_boxed_optional(b, GRAD_X), spops_boxed_optional(b, GRAD_W), written(b, GRAD_BIAS));
}

// ---- Pooling ------------------------------------------------------------------------------------

static spops_pool_options pool_options(const spops_boxed_call *b, int first)
{
    spops_pool_options options = spops_pool_options_default();
    options.gradients = (spops_gradients)spops_boxed_i32(b, first);
    options.max_cols = b->attributes[first + 1].i;
    return options;
}

spops_status spops_boxed_pool_plan(spops_boxed_call *b)
{
    if (b->into != NULL) return SPOPS_STATUS_OK; // filled from its parent when it was emptied
    const spops_pool_options options = pool_options(b, 0);
    spops_pool *made = NULL;
    SPOPS_TRY(spops_pool_create(b->ctx, b->args[0], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_pool_global_plan(spops_boxed_call *b)
{
    if (b->into != NULL) return SPOPS_STATUS_OK; // filled from its parent when it was emptied
    const spops_pool_options options = pool_options(b, 1);
    spops_pool *made = NULL;
    SPOPS_TRY(spops_pool_create_global(b->ctx, b->args[0], b->attributes[0].i, &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_pool_buckets_plan(spops_boxed_call *b)
{
    if (b->into != NULL) return SPOPS_STATUS_OK; // filled from its parent when it was emptied
    const spops_pool_options options = pool_options(b, 1);
    spops_pool *made = NULL;
    SPOPS_TRY(
        spops_pool_create_from_buckets(b->ctx, b->args[0], spops_boxed_i32(b, 0), &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_pool_segments(spops_boxed_call *b)
{
    return spops_boxed_part(b, spops_pool_segments(b->args[0]));
}

spops_status spops_boxed_pool(spops_boxed_call *b)
{
    enum { X, POOL, OUT };
    return spops_pool_execute(b->ctx, b->args[POOL], (spops_reduce)spops_boxed_i32(b, 0),
                              b->matrices[X], b->matrices[OUT]);
}

spops_status spops_boxed_pool_backward(spops_boxed_call *b)
{
    enum { X, GRAD_OUT, POOL, GRAD_X };
    return spops_pool_execute_backward(b->ctx, b->args[POOL], (spops_reduce)spops_boxed_i32(b, 0),
                                       b->matrices[GRAD_OUT], b->matrices[X], b->matrices[GRAD_X]);
}

spops_status spops_boxed_bevpool(spops_boxed_call *b)
{
    enum { FEAT, DEPTH, FEAT_SCALES, FEAT_SCALE, DEPTH_SCALE, OUT_SCALE, PLAN, OUT };
    spops_bevpool_args args = spops_bevpool_args_default();
    args.layout = (spops_bev_layout)spops_boxed_i32(b, 0);
    args.accumulate = (spops_accumulate)spops_boxed_i32(b, 1);
    args.depth = b->matrices[DEPTH];
    args.feat = b->matrices[FEAT];
    args.out = b->matrices[OUT];
    args.feat_scales = spops_boxed_optional(b, FEAT_SCALES);
    args.feat_scale = b->args[FEAT_SCALE];
    args.depth_scale = b->args[DEPTH_SCALE];
    args.out_scale = b->args[OUT_SCALE];
    return spops_bevpool_execute(b->ctx, b->args[PLAN], &args);
}

spops_status spops_boxed_bevpool_backward(spops_boxed_call *b)
{
    enum { FEAT, DEPTH, GRAD_OUT, PLAN, GRAD_DEPTH, GRAD_FEAT };
    return spops_bevpool_execute_backward(
        b->ctx, b->args[PLAN], (spops_bev_layout)spops_boxed_i32(b, 0), b->matrices[GRAD_OUT],
        b->matrices[DEPTH], b->matrices[FEAT], spops_boxed_optional(b, GRAD_DEPTH),
        spops_boxed_optional(b, GRAD_FEAT));
}

// ---- Attention ----------------------------------------------------------------------------------

// The options of a call, and what they point to.
typedef struct attention_choice {
    spops_attention_options options;
    spops_attention_rotary rotary;
    spops_attention_bias bias;
    spops_attention_norm norm;
} attention_choice;

// A matrix of the options. Where scratch alone is asked for it may have no data: an address that nobody
// reads stands for that.
static spops_matrix measurable(const spops_boxed_call *b, int i)
{
    static double nothing;
    spops_matrix m = b->matrices[i];
    if (b->measures && m.data == NULL) m.data = &nothing;
    return m;
}

static void read_attention(const spops_boxed_call *b, int positions, int q, int o,
                           attention_choice *c)
{
    enum { HEADS, SCALE, MATH, BASE, AXIS_DIM, KV_HEADS, EPSILON };
    // Arguments from `positions` on.
    enum { OF_Q, OF_K, BIAS_OF_Q, BIAS_OF_K, TABLE, Q_WEIGHT, K_WEIGHT };
    const void *const *given = b->args + positions;
    c->options = spops_attention_options_default();
    c->rotary = spops_attention_rotary_default();
    c->bias = spops_attention_bias_default();
    c->norm = spops_attention_norm_default();
    c->options.heads = spops_boxed_i32(b, HEADS);
    c->options.scale = f32_attribute(b, SCALE);
    c->options.math = (spops_math)spops_boxed_i32(b, MATH);
    c->options.kv_heads = spops_boxed_i32(b, KV_HEADS);
    c->options.qkv_head_stride = b->block_strides[q];
    c->options.o_head_stride = b->block_strides[o];
    if (given[OF_Q] != NULL) {
        c->rotary.coords = measurable(b, positions + OF_Q);
        if (given[OF_K] != NULL) c->rotary.key_coords = measurable(b, positions + OF_K);
        c->rotary.base = f32_attribute(b, BASE);
        c->rotary.axis_dim = spops_boxed_i32(b, AXIS_DIM);
        c->options.rotary = &c->rotary;
    }
    if (given[BIAS_OF_Q] != NULL) {
        c->bias.coords = measurable(b, positions + BIAS_OF_Q);
        if (given[BIAS_OF_K] != NULL) c->bias.key_coords = measurable(b, positions + BIAS_OF_K);
        c->bias.table = measurable(b, positions + TABLE);
        c->options.bias = &c->bias;
    }
    if (given[Q_WEIGHT] == NULL && given[K_WEIGHT] == NULL) return;
    c->norm.epsilon = f32_attribute(b, EPSILON);
    if (given[Q_WEIGHT] != NULL) c->norm.q_weight = measurable(b, positions + Q_WEIGHT);
    if (given[K_WEIGHT] != NULL) c->norm.k_weight = measurable(b, positions + K_WEIGHT);
    c->options.norm = &c->norm;
}

static spops_status reserve_attention(spops_boxed_call *b, int q, const spops_patches *patches,
                                      const attention_choice *c, int backward)
{
    if (!b->is_own && !b->measures) return SPOPS_STATUS_OK;
    return spops_boxed_reserve(b, spops_attention_scratch_bytes(patches, b->matrices[q].cols,
                                                                b->matrices[q].dtype, &c->options,
                                                                backward));
}

// Heads of these arguments are as far apart as those of the first, where their columns lie in blocks.
static spops_status check_strides(const spops_boxed_call *b, const int *args, int num_args)
{
    for (int i = 1; i < num_args; ++i) {
        const int a = args[i];
        if (b->args[a] == NULL) continue;
        SPOPS_REQUIRE(b->ctx, b->block_strides[a] == b->block_strides[args[0]],
                      "%s: heads of %s are %" PRId64 " elements apart, expected %" PRId64
                      " as those of %s",
                      b->row->call, b->row->args[a].name, b->block_strides[a],
                      b->block_strides[args[0]], b->row->args[args[0]].name);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_boxed_attention(spops_boxed_call *b)
{
    enum { Q, K, V, POSITIONS, PATCHES = 10, O, LSE };
    static const int alike[] = {Q, K, V};
    attention_choice c;
    SPOPS_TRY(check_strides(b, alike, 3));
    read_attention(b, POSITIONS, Q, O, &c);
    SPOPS_TRY(reserve_attention(b, Q, b->args[PATCHES], &c, 0));
    return spops_attention_execute(b->ctx, b->args[PATCHES], b->matrices[Q], b->matrices[K],
                                   b->matrices[V], &c.options, b->matrices[O],
                                   b->matrices[LSE].data);
}

spops_status spops_boxed_attention_backward(spops_boxed_call *b)
{
    enum { Q, K, V, O, LSE, POSITIONS, GRAD_O = 12, PATCHES };
    enum { GRAD_Q = 14, GRAD_K, GRAD_V, GRAD_TABLE, GRAD_Q_WEIGHT, GRAD_K_WEIGHT };
    static const int alike[] = {Q, K, V, GRAD_Q, GRAD_K, GRAD_V}, alike_o[] = {O, GRAD_O};
    attention_choice c;
    SPOPS_TRY(check_strides(b, alike, 6));
    SPOPS_TRY(check_strides(b, alike_o, 2));
    read_attention(b, POSITIONS, Q, O, &c);
    SPOPS_TRY(reserve_attention(b, Q, b->args[PATCHES], &c, 1));
    return spops_attention_execute_backward(
        b->ctx, b->args[PATCHES], b->matrices[GRAD_O], b->matrices[Q], b->matrices[K],
        b->matrices[V], b->matrices[O], b->matrices[LSE].data, &c.options,
        spops_boxed_optional(b, GRAD_Q), spops_boxed_optional(b, GRAD_K),
        spops_boxed_optional(b, GRAD_V), spops_boxed_optional(b, GRAD_TABLE),
        spops_boxed_optional(b, GRAD_Q_WEIGHT), spops_boxed_optional(b, GRAD_K_WEIGHT));
}

// ---- Linear layers and conversions --------------------------------------------------------------

static spops_status reserve_linear(spops_boxed_call *b, spops_matrix x, spops_matrix sum,
                                   int32_t backward)
{
    return spops_boxed_reserve(
        b, spops_linear_scratch_bytes(b->ctx, x.rows, x.cols, sum.cols, backward));
}

spops_status spops_boxed_linear(spops_boxed_call *b)
{
    enum { X, W, BIAS, SCALE, SHIFT, RESIDUAL, NUM_ROWS, OUT };
    enum { W_TRANSPOSED, ACTIVATION, MATH, SLOPE };
    spops_conv_layer layer = spops_conv_layer_default();
    layer.bias = b->args[BIAS];
    layer.scale = b->args[SCALE];
    layer.shift = b->args[SHIFT];
    layer.residual = spops_boxed_optional(b, RESIDUAL);
    layer.num_rows = b->args[NUM_ROWS];
    layer.w_transposed = spops_boxed_i32(b, W_TRANSPOSED);
    layer.activation = (spops_activation)spops_boxed_i32(b, ACTIVATION);
    layer.math = (spops_math)spops_boxed_i32(b, MATH);
    layer.activation_slope = f32_attribute(b, SLOPE);
    SPOPS_TRY(reserve_linear(b, b->matrices[X], b->matrices[OUT], 0));
    return spops_linear_execute(b->ctx, b->matrices[X], b->matrices[W], &layer, b->matrices[OUT]);
}

spops_status spops_boxed_linear_quantized(spops_boxed_call *b)
{
    enum { X, W, NUM_ROWS = 10, OUT };
    spops_quantized_layer layer = quantized_layer_of(b);
    layer.num_rows = b->args[NUM_ROWS];
    return spops_linear_execute_quantized(b->ctx, b->matrices[X], b->matrices[W], &layer,
                                          b->matrices[OUT]);
}

spops_status spops_boxed_linear_backward(spops_boxed_call *b)
{
    enum { X, W, GRAD_SUM, NUM_ROWS, GRAD_X, GRAD_W, GRAD_BIAS };
    enum { W_TRANSPOSED, MATH };
    spops_conv_layer layer = spops_conv_layer_default();
    layer.num_rows = b->args[NUM_ROWS];
    layer.w_transposed = spops_boxed_i32(b, W_TRANSPOSED);
    layer.math = (spops_math)spops_boxed_i32(b, MATH);
    SPOPS_TRY(reserve_linear(b, b->matrices[X], b->matrices[GRAD_SUM], 1));
    return spops_linear_execute_backward(b->ctx, b->matrices[GRAD_SUM], b->matrices[X],
                                         b->matrices[W], &layer, spops_boxed_optional(b, GRAD_X),
                                         spops_boxed_optional(b, GRAD_W), written(b, GRAD_BIAS));
}

spops_status spops_boxed_convert(spops_boxed_call *b)
{
    return spops_convert_execute(b->ctx, b->matrices[0], b->matrices[1]);
}

spops_status spops_boxed_convert_indices(spops_boxed_call *b)
{
    return spops_convert_execute(b->ctx, b->matrices[0], b->matrices[1]);
}

// ---- Activations --------------------------------------------------------------------------------

static spops_activation_options activation_options(const spops_boxed_call *b, const void *num_rows)
{
    spops_activation_options options = spops_activation_options_default();
    options.activation_slope = f32_attribute(b, 1);
    options.num_rows = num_rows;
    return options;
}

spops_status spops_boxed_activation(spops_boxed_call *b)
{
    enum { X, NUM_ROWS, OUT };
    const spops_activation_options options = activation_options(b, b->args[NUM_ROWS]);
    return spops_activation_execute(b->ctx, (spops_activation)spops_boxed_i32(b, 0), b->matrices[X],
                                    &options, b->matrices[OUT]);
}

spops_status spops_boxed_activation_backward(spops_boxed_call *b)
{
    enum { X, GRAD_OUT, NUM_ROWS, GRAD_X };
    const spops_activation_options options = activation_options(b, b->args[NUM_ROWS]);
    return spops_activation_execute_backward(b->ctx, (spops_activation)spops_boxed_i32(b, 0),
                                             b->matrices[GRAD_OUT], b->matrices[X], &options,
                                             b->matrices[GRAD_X]);
}

static spops_add_options add_options(const spops_boxed_call *b, const void *num_rows)
{
    spops_add_options options = spops_add_options_default();
    options.scale = f32_attribute(b, 0);
    options.activation = (spops_activation)spops_boxed_i32(b, 1);
    options.activation_slope = f32_attribute(b, 2);
    options.num_rows = num_rows;
    return options;
}

spops_status spops_boxed_add(spops_boxed_call *b)
{
    enum { X, Y, NUM_ROWS, OUT };
    const spops_add_options options = add_options(b, b->args[NUM_ROWS]);
    return spops_add_execute(b->ctx, b->matrices[X], b->matrices[Y], &options, b->matrices[OUT]);
}

spops_status spops_boxed_add_backward(spops_boxed_call *b)
{
    enum { X, GRAD_OUT, NUM_ROWS, GRAD_X, GRAD_Y };
    const spops_add_options options = add_options(b, b->args[NUM_ROWS]);
    return spops_add_execute_backward(b->ctx, b->matrices[GRAD_OUT], b->matrices[X], &options,
                                      spops_boxed_optional(b, GRAD_X),
                                      spops_boxed_optional(b, GRAD_Y));
}

// ---- Norms --------------------------------------------------------------------------------------

static spops_status reserve_norm(spops_boxed_call *b)
{
    const spops_matrix x = b->matrices[0];
    const int64_t wide = x.dtype == SPOPS_DTYPE_F64 ? 2 : 1;
    return spops_boxed_reserve(b, spops_norm_scratch_bytes(wide * x.rows, wide * x.cols));
}

// epsilon and activation are attributes `first` and the next one, the slope is the last.
static spops_norm_options norm_options(const spops_boxed_call *b, int first, const void *num_rows)
{
    spops_norm_options options = spops_norm_options_default();
    options.epsilon = f32_attribute(b, first);
    options.activation = (spops_activation)spops_boxed_i32(b, first + 1);
    options.activation_slope = f32_attribute(b, b->row->num_attributes - 1);
    options.num_rows = num_rows;
    return options;
}

spops_status spops_boxed_batchnorm_statistics(spops_boxed_call *b)
{
    enum { X, NUM_ROWS, MEAN, VAR, RUNNING_MEAN, RUNNING_VAR };
    spops_norm_options options = spops_norm_options_default();
    options.momentum = f32_attribute(b, 0);
    options.num_rows = b->args[NUM_ROWS];
    SPOPS_TRY(reserve_norm(b));
    return spops_batchnorm_statistics_execute(b->ctx, b->matrices[X], &options, written(b, MEAN),
                                              written(b, VAR), written(b, RUNNING_MEAN),
                                              written(b, RUNNING_VAR));
}

spops_status spops_boxed_batchnorm(spops_boxed_call *b)
{
    enum { X, MEAN, VAR, GAMMA, BETA, NUM_ROWS, OUT };
    const spops_norm_options options = norm_options(b, 0, b->args[NUM_ROWS]);
    return spops_batchnorm_execute(b->ctx, b->matrices[X], b->args[MEAN], b->args[VAR],
                                   b->args[GAMMA], b->args[BETA], &options, b->matrices[OUT]);
}

spops_status spops_boxed_batchnorm_backward(spops_boxed_call *b)
{
    enum { X, MEAN, VAR, GAMMA, BETA, GRAD_OUT, NUM_ROWS, GRAD_X, GRAD_GAMMA, GRAD_BETA };
    spops_norm_options options = norm_options(b, 0, b->args[NUM_ROWS]);
    options.fixed_statistics = spops_boxed_i32(b, 2);
    SPOPS_TRY(reserve_norm(b));
    return spops_batchnorm_execute_backward(b->ctx, b->matrices[GRAD_OUT], b->matrices[X],
                                            b->args[MEAN], b->args[VAR], b->args[GAMMA],
                                            b->args[BETA], &options, b->matrices[GRAD_X],
                                            written(b, GRAD_GAMMA), written(b, GRAD_BETA));
}

spops_status spops_boxed_batchnorm_merge(spops_boxed_call *b)
{
    enum { STATISTICS, CHUNK_ROWS, MEAN, VAR, RUNNING_MEAN, RUNNING_VAR };
    spops_norm_options options = spops_norm_options_default();
    options.momentum = f32_attribute(b, 0);
    return spops_batchnorm_merge_execute(b->ctx, b->args[CHUNK_ROWS], b->matrices[STATISTICS],
                                         &options, written(b, MEAN), written(b, VAR),
                                         written(b, RUNNING_MEAN), written(b, RUNNING_VAR));
}

spops_status spops_boxed_batchnorm_sums(spops_boxed_call *b)
{
    enum { X, MEAN, VAR, GAMMA, BETA, GRAD_OUT, NUM_ROWS, GRAD_GAMMA, GRAD_BETA };
    const spops_norm_options options = norm_options(b, 0, b->args[NUM_ROWS]);
    SPOPS_TRY(reserve_norm(b));
    return spops_batchnorm_sums_execute(b->ctx, b->matrices[GRAD_OUT], b->matrices[X],
                                        b->args[MEAN], b->args[VAR], b->args[GAMMA], b->args[BETA],
                                        &options, written(b, GRAD_GAMMA), written(b, GRAD_BETA));
}

spops_status spops_boxed_batchnorm_gradient(spops_boxed_call *b)
{
    enum { X, MEAN, VAR, GAMMA, BETA, GRAD_GAMMA, GRAD_BETA, GRAD_OUT, NUM_ROWS, GRAD_X };
    const spops_norm_options options = norm_options(b, 1, b->args[NUM_ROWS]);
    SPOPS_TRY(reserve_norm(b));
    return spops_batchnorm_gradient_execute(b->ctx, b->matrices[GRAD_OUT], b->matrices[X],
                                            b->args[MEAN], b->args[VAR], b->args[GAMMA],
                                            b->args[BETA], b->args[GRAD_GAMMA], b->args[GRAD_BETA],
                                            b->attributes[0].i, &options, b->matrices[GRAD_X]);
}

spops_status spops_boxed_layernorm(spops_boxed_call *b)
{
    enum { X, GAMMA, BETA, NUM_ROWS, OUT };
    const spops_norm_options options = norm_options(b, 0, b->args[NUM_ROWS]);
    return spops_layernorm_execute(b->ctx, b->matrices[X], b->args[GAMMA], b->args[BETA], &options,
                                   b->matrices[OUT]);
}

spops_status spops_boxed_layernorm_backward(spops_boxed_call *b)
{
    enum { X, GAMMA, BETA, GRAD_OUT, NUM_ROWS, GRAD_X, GRAD_GAMMA, GRAD_BETA };
    const spops_norm_options options = norm_options(b, 0, b->args[NUM_ROWS]);
    SPOPS_TRY(reserve_norm(b));
    return spops_layernorm_execute_backward(
        b->ctx, b->matrices[GRAD_OUT], b->matrices[X], b->args[GAMMA], b->args[BETA], &options,
        b->matrices[GRAD_X], written(b, GRAD_GAMMA), written(b, GRAD_BETA));
}

static spops_addnorm_options addnorm_options(const spops_boxed_call *b, const void *num_rows)
{
    spops_addnorm_options options = spops_addnorm_options_default();
    options.norm_y = spops_boxed_i32(b, 0);
    options.rms = spops_boxed_i32(b, 1);
    options.epsilon = f32_attribute(b, 2);
    options.activation = (spops_activation)spops_boxed_i32(b, 3);
    options.activation_slope = f32_attribute(b, 4);
    options.num_rows = num_rows;
    return options;
}

spops_status spops_boxed_addnorm(spops_boxed_call *b)
{
    enum { X, Y, Y_GAMMA, Y_BETA, GAMMA, BETA, NUM_ROWS, TOTAL, OUT };
    const spops_addnorm_options options = addnorm_options(b, b->args[NUM_ROWS]);
    return spops_addnorm_execute(b->ctx, b->matrices[X], b->matrices[Y], b->args[Y_GAMMA],
                                 b->args[Y_BETA], b->args[GAMMA], b->args[BETA], &options,
                                 b->matrices[TOTAL], b->matrices[OUT]);
}

spops_status spops_boxed_addnorm_backward(spops_boxed_call *b)
{
    enum { TOTAL, Y, Y_GAMMA, Y_BETA, GAMMA, BETA, GRAD_TOTAL, GRAD_OUT, NUM_ROWS };
    enum { GRAD_X = NUM_ROWS + 1, GRAD_Y, GRAD_Y_GAMMA, GRAD_Y_BETA, GRAD_GAMMA, GRAD_BETA };
    const spops_addnorm_options options = addnorm_options(b, b->args[NUM_ROWS]);
    SPOPS_TRY(reserve_norm(b));
    return spops_addnorm_execute_backward(
        b->ctx, b->matrices[GRAD_OUT], spops_boxed_optional(b, GRAD_TOTAL), b->matrices[TOTAL],
        b->matrices[Y], b->args[Y_GAMMA], b->args[Y_BETA], b->args[GAMMA], b->args[BETA], &options,
        b->matrices[GRAD_X], b->matrices[GRAD_Y], written(b, GRAD_Y_GAMMA), written(b, GRAD_Y_BETA),
        written(b, GRAD_GAMMA), written(b, GRAD_BETA));
}

spops_status spops_boxed_rmsnorm(spops_boxed_call *b)
{
    enum { X, GAMMA, NUM_ROWS, OUT };
    const spops_norm_options options = norm_options(b, 0, b->args[NUM_ROWS]);
    return spops_rmsnorm_execute(b->ctx, b->matrices[X], b->args[GAMMA], &options,
                                 b->matrices[OUT]);
}

spops_status spops_boxed_rmsnorm_backward(spops_boxed_call *b)
{
    enum { X, GAMMA, GRAD_OUT, NUM_ROWS, GRAD_X, GRAD_GAMMA };
    const spops_norm_options options = norm_options(b, 0, b->args[NUM_ROWS]);
    SPOPS_TRY(reserve_norm(b));
    return spops_rmsnorm_execute_backward(b->ctx, b->matrices[GRAD_OUT], b->matrices[X],
                                          b->args[GAMMA], &options, b->matrices[GRAD_X],
                                          written(b, GRAD_GAMMA));
}

static spops_status reserve_group_norm(spops_boxed_call *b, const spops_segments *samples)
{
    const spops_matrix x = b->matrices[0];
    const int64_t wide = x.dtype == SPOPS_DTYPE_F64 ? 2 : 1;
    return spops_boxed_reserve(b, spops_groupnorm_scratch_bytes(samples, wide * x.cols));
}

// groups, epsilon and activation are attributes 0 to 2, the slope is the last.
static spops_norm_options group_norm_options(const spops_boxed_call *b)
{
    spops_norm_options options = spops_norm_options_default();
    options.epsilon = f32_attribute(b, 1);
    options.activation = (spops_activation)spops_boxed_i32(b, 2);
    options.activation_slope = f32_attribute(b, b->row->num_attributes - 1);
    return options;
}

spops_status spops_boxed_groupnorm_statistics(spops_boxed_call *b)
{
    enum { X, SAMPLES, MEAN, VAR };
    SPOPS_TRY(reserve_group_norm(b, b->args[SAMPLES]));
    return spops_groupnorm_statistics_execute(b->ctx, b->args[SAMPLES], spops_boxed_i32(b, 0),
                                              b->matrices[X], written(b, MEAN), written(b, VAR));
}

spops_status spops_boxed_groupnorm(spops_boxed_call *b)
{
    enum { X, MEAN, VAR, GAMMA, BETA, SAMPLES, OUT };
    const spops_norm_options options = group_norm_options(b);
    return spops_groupnorm_execute(b->ctx, b->args[SAMPLES], spops_boxed_i32(b, 0), b->matrices[X],
                                   b->args[MEAN], b->args[VAR], b->args[GAMMA], b->args[BETA],
                                   &options, b->matrices[OUT]);
}

spops_status spops_boxed_groupnorm_backward(spops_boxed_call *b)
{
    enum { X, MEAN, VAR, GAMMA, BETA, GRAD_OUT, SAMPLES, GRAD_X, GRAD_GAMMA, GRAD_BETA };
    spops_norm_options options = group_norm_options(b);
    options.fixed_statistics = spops_boxed_i32(b, 3);
    SPOPS_TRY(reserve_group_norm(b, b->args[SAMPLES]));
    return spops_groupnorm_execute_backward(
        b->ctx, b->args[SAMPLES], spops_boxed_i32(b, 0), b->matrices[GRAD_OUT], b->matrices[X],
        b->args[MEAN], b->args[VAR], b->args[GAMMA], b->args[BETA], &options, b->matrices[GRAD_X],
        written(b, GRAD_GAMMA), written(b, GRAD_BETA));
}

// ---- Quantising ---------------------------------------------------------------------------------

spops_status spops_boxed_quantize_scale(spops_boxed_call *b)
{
    return spops_quantize_scale_execute(b->ctx, b->matrices[0], (spops_dtype)spops_boxed_i32(b, 0),
                                        written(b, 1));
}

spops_status spops_boxed_quantize(spops_boxed_call *b)
{
    enum { X, SCALE, OUT, BLOCK_SCALES };
    return spops_quantize_execute(b->ctx, b->matrices[X], b->args[SCALE], b->matrices[OUT],
                                  spops_boxed_optional(b, BLOCK_SCALES));
}

spops_status spops_boxed_quantize_weights(spops_boxed_call *b)
{
    enum { W, Q, SCALES };
    return spops_quantize_weights_execute(b->ctx, b->matrices[W], spops_boxed_i32(b, 0),
                                          spops_boxed_i32(b, 1), b->matrices[Q],
                                          written(b, SCALES));
}

spops_status spops_boxed_dequantize(spops_boxed_call *b)
{
    enum { Q, SCALE, BLOCK_SCALES, OUT };
    return spops_dequantize_execute(b->ctx, b->matrices[Q], b->args[SCALE],
                                    spops_boxed_optional(b, BLOCK_SCALES), b->matrices[OUT]);
}
