// SPDX-License-Identifier: Apache-2.0
// Attention: argument checks, scratch, then the backend's slots.
#include "spops/attention.h"

#include <math.h>
#include <string.h>

#include "attention/attention_args.h"
#include "call/call_check.h"
#include "core/matrix.h"
#include "patches/patches.h"

// A call's options, read, and what follows from them and the width of q.
typedef struct attention_call {
    spops_context *ctx;
    const char *name;
    const spops_patch_arrays *patches;
    spops_attention_options options;
    spops_attention_rotary rotary;
    spops_attention_bias bias;
    spops_attention_norm norm;
    const spops_backend *backend; // of patches
    int64_t cols, dim;
    spops_dtype dtype;
    double scale_f64;
} attention_call;

// ---- Options ------------------------------------------------------------------------------------

static spops_status read_heads(attention_call *c)
{
    spops_attention_options *o = &c->options;

    if (o->heads == 0) o->heads = 1;
    SPOPS_REQUIRE(c->ctx, o->heads > 0 && o->heads <= SPOPS_ATTENTION_MAX_HEADS,
                  "%s: options->heads is %d, expected 1 to %d", c->name, (int)o->heads,
                  SPOPS_ATTENTION_MAX_HEADS);
    SPOPS_REQUIRE(c->ctx, c->cols > 0 && c->cols % o->heads == 0,
                  "%s: q has %" PRId64 " columns, expected a multiple of %d heads", c->name,
                  c->cols, (int)o->heads);
    if (o->kv_heads == 0) o->kv_heads = o->heads;
    SPOPS_REQUIRE(c->ctx, o->kv_heads > 0 && o->heads % o->kv_heads == 0,
                  "%s: options->kv_heads is %d, expected a divisor of %d heads", c->name,
                  (int)o->kv_heads, (int)o->heads);
    c->dim = c->cols / o->heads;
    if (c->dim > SPOPS_ATTENTION_MAX_DIM)
        return spops_fail(c->ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: q has %" PRId64 " columns a head, expected 1 to %d", c->name, c->dim,
                          SPOPS_ATTENTION_MAX_DIM);
    SPOPS_REQUIRE(c->ctx, isfinite(o->scale), "%s: options->scale is %g, expected a finite number",
                  c->name, (double)o->scale);
    c->scale_f64 = o->scale == 0.0f ? 1.0 / sqrt((double)c->dim) : (double)o->scale;
    if (o->scale == 0.0f) o->scale = (float)(1.0 / sqrt((double)c->dim));
    if (o->qkv_head_stride == 0) o->qkv_head_stride = c->dim;
    if (o->o_head_stride == 0) o->o_head_stride = c->dim;
    SPOPS_REQUIRE(c->ctx, o->qkv_head_stride >= c->dim && o->qkv_head_stride <= INT32_MAX,
                  "%s: options->qkv_head_stride is %" PRId64 ", expected %" PRId64 " to %d",
                  c->name, o->qkv_head_stride, c->dim, INT32_MAX);
    SPOPS_REQUIRE(c->ctx, o->o_head_stride >= c->dim && o->o_head_stride <= INT32_MAX,
                  "%s: options->o_head_stride is %" PRId64 ", expected %" PRId64 " to %d", c->name,
                  o->o_head_stride, c->dim, INT32_MAX);
    SPOPS_REQUIRE(c->ctx, o->math == SPOPS_MATH_EXACT || o->math == SPOPS_MATH_TF32,
                  "%s: options->math is %d, expected 0 or 1", c->name, (int)o->math);
    return SPOPS_STATUS_OK;
}

// Coordinates of the rows of k, which are those of q where none are given.
static spops_status read_key_coords(attention_call *c, const char *name, spops_matrix coords,
                                    spops_matrix *key_coords)
{
    if (key_coords->rows == 0 && c->patches->num_key_rows == c->patches->num_rows) {
        *key_coords = coords;
        return SPOPS_STATUS_OK;
    }
    return spops_check_matrix(c->ctx, c->name, name, *key_coords, c->patches->num_key_rows, 3,
                              1u << coords.dtype);
}

static spops_status read_rotary(attention_call *c)
{
    spops_attention_rotary *r = &c->rotary;

    if (c->options.rotary == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(
        spops_read_struct(c->ctx, c->name, "options->rotary", c->options.rotary, r, sizeof *r));
    SPOPS_TRY(spops_check_matrix(c->ctx, c->name, "positions", r->coords, c->patches->num_rows, 3,
                                 1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_I32));
    SPOPS_TRY(read_key_coords(c, "key_positions", r->coords, &r->key_coords));
    if (r->base == 0.0f) r->base = 10000.0f;
    SPOPS_REQUIRE(c->ctx, r->base > 0.0f && isfinite(r->base),
                  "%s: options->rotary->base is %g, expected more than 0", c->name,
                  (double)r->base);
    if (r->axis_dim == 0) {
        SPOPS_REQUIRE(c->ctx, c->dim % 6 == 0,
                      "%s: q has %" PRId64 " columns a head, expected a multiple of 6 for rotary "
                      "positions without an axis_dim",
                      c->name, c->dim);
        r->axis_dim = (int32_t)(c->dim / 3);
    }
    SPOPS_REQUIRE(c->ctx, r->axis_dim > 0 && r->axis_dim % 2 == 0 && r->axis_dim <= c->dim / 3,
                  "%s: options->rotary->axis_dim is %d, expected an even number up to %" PRId64,
                  c->name, (int)r->axis_dim, c->dim / 3);
    return SPOPS_STATUS_OK;
}

// Of a table; -1 without one.
static int64_t bias_range(const attention_call *c)
{
    return c->options.bias == NULL ? -1 : (c->bias.table.rows / 3 - 1) / 2;
}

static spops_status check_table(attention_call *c, const char *name, spops_matrix table)
{
    return spops_check_matrix(c->ctx, c->name, name, table,
                              spops_attention_table_rows((int32_t)bias_range(c)), c->options.heads,
                              1u << spops_sum_dtype(c->dtype));
}

static spops_status read_bias(attention_call *c)
{
    spops_attention_bias *b = &c->bias;

    if (c->options.bias == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_read_struct(c->ctx, c->name, "options->bias", c->options.bias, b, sizeof *b));
    SPOPS_REQUIRE(c->ctx, b->table.rows > 0 && b->table.rows % 6 == 3 && b->table.rows <= INT32_MAX,
                  "%s: bias_table has %" PRId64 " rows, expected 3 * (2 range + 1), 3 or more",
                  c->name, b->table.rows);
    SPOPS_TRY(check_table(c, "bias_table", b->table));
    SPOPS_TRY(spops_check_matrix(c->ctx, c->name, "bias_coords", b->coords, c->patches->num_rows, 3,
                                 1u << SPOPS_DTYPE_I32));
    return read_key_coords(c, "bias_key_coords", b->coords, &b->key_coords);
}

static spops_status check_weights(attention_call *c, const char *name, spops_matrix weights,
                                  int32_t heads)
{
    if (weights.rows == 0) return SPOPS_STATUS_OK;
    return spops_check_matrix(c->ctx, c->name, name, weights, weights.rows == 1 ? 1 : heads, c->dim,
                              1u << spops_sum_dtype(c->dtype));
}

static spops_status read_norm(attention_call *c)
{
    spops_attention_norm *n = &c->norm;

    if (c->options.norm == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_read_struct(c->ctx, c->name, "options->norm", c->options.norm, n, sizeof *n));
    SPOPS_REQUIRE(c->ctx, n->epsilon >= 0.0f && isfinite(n->epsilon),
                  "%s: options->norm->epsilon is %g, expected 0 or more", c->name,
                  (double)n->epsilon);
    if (n->epsilon == 0.0f) n->epsilon = 1e-5f;
    SPOPS_TRY(check_weights(c, "q_weight", n->q_weight, c->options.heads));
    return check_weights(c, "k_weight", n->k_weight, c->options.kv_heads);
}

static spops_attention_scratch_args scratch_args(const attention_call *c, bool backward)
{
    return (spops_attention_scratch_args){
        .patches = c->patches,
        .heads = c->options.heads,
        .dim = (int32_t)c->dim,
        .kv_heads = c->options.kv_heads,
        .dtype = c->dtype,
        .backward = backward,
        .rotary_pairs = c->options.rotary == NULL ? 0 : c->rotary.axis_dim / 2,
        .keys_turn_apart = c->options.rotary != NULL && c->options.rotary->key_coords.rows > 0,
        .norms = {c->norm.q_weight.rows > 0, c->norm.k_weight.rows > 0},
        .bias_range = (int32_t)bias_range(c),
        .tf32 = c->options.math == SPOPS_MATH_TF32,
        .tile = c->options.tile};
}

// 0: the backend has no choice, or none such.
static int32_t tile_of(const attention_call *c, bool backward)
{
    const spops_attention_scratch_args args = scratch_args(c, backward);
    if (c->ctx == NULL || c->ctx->backend->attention_tile == NULL) return 0;
    return c->ctx->backend->attention_tile(c->ctx, &args);
}

static spops_status check_tile(attention_call *c)
{
    const int32_t tile = c->options.tile;
    if (c->ctx == NULL || tile == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(
        c->ctx, tile_of(c, false) == tile || tile_of(c, true) == tile,
        "%s: options->tile is %d, expected that of a kernel for this device and such heads",
        c->name, (int)tile);
    return SPOPS_STATUS_OK;
}

// Everything but the matrices of the call itself, which have q's width and dtype.
static spops_status read_call(attention_call *c, const spops_attention_options *options)
{
    SPOPS_TRY(spops_read_options(c->ctx, c->name, options, &c->options, sizeof c->options));
    SPOPS_TRY(spops_check_backend_dtype(c->ctx, c->backend, c->name, "q.dtype", c->dtype));
    SPOPS_TRY(spops_check_dtype(c->ctx, c->name, "q.dtype", c->dtype,
                                SPOPS_DTYPES_REAL & ~c->backend->lacks_dtypes));
    SPOPS_TRY(read_heads(c));
    SPOPS_TRY(read_rotary(c));
    SPOPS_TRY(read_bias(c));
    SPOPS_TRY(read_norm(c));
    return check_tile(c);
}

// ---- Matrices -----------------------------------------------------------------------------------

typedef enum row_kind { LIKE_Q, LIKE_K, LIKE_O } row_kind;

static int64_t head_stride(const attention_call *c, row_kind like)
{
    return like == LIKE_O ? c->options.o_head_stride : c->options.qkv_head_stride;
}

// Rows of all heads, as checks take them.
static spops_argument by_heads(const attention_call *c, spops_matrix m, row_kind like)
{
    return (spops_argument){.m = m,
                            .num_blocks = like == LIKE_K ? c->options.kv_heads : c->options.heads,
                            .block_stride = head_stride(c, like)};
}

static spops_matrix lse_matrix(const attention_call *c, const void *lse)
{
    return spops_matrix_dense_const(lse, lse == NULL ? 0 : c->patches->num_rows, c->options.heads,
                                    spops_sum_dtype(c->dtype));
}

// What belongs to the options, in the order of the row.
enum {
    POSITIONS,
    KEY_POSITIONS,
    BIAS_COORDS,
    BIAS_KEY_COORDS,
    BIAS_TABLE,
    Q_WEIGHT,
    K_WEIGHT,
    NUM_OF_OPTIONS
};

// By the row. The arguments are in its order; what belongs to the options is put where it says.
static spops_status check_call(const attention_call *c, spops_operator_id op, const void **args,
                               int positions)
{
    const spops_call_number attributes[] = {{.i = c->options.heads},   {.f = c->options.scale},
                                            {.i = c->options.math},    {.f = c->rotary.base},
                                            {.i = c->rotary.axis_dim}, {.i = c->options.kv_heads},
                                            {.f = c->norm.epsilon}};
    if (c->options.rotary != NULL) {
        args[positions + POSITIONS] = &c->rotary.coords;
        args[positions + KEY_POSITIONS] = &c->rotary.key_coords;
    }
    if (c->options.bias != NULL) {
        args[positions + BIAS_COORDS] = &c->bias.coords;
        args[positions + BIAS_KEY_COORDS] = &c->bias.key_coords;
        args[positions + BIAS_TABLE] = &c->bias.table;
    }
    if (c->norm.q_weight.rows > 0) args[positions + Q_WEIGHT] = &c->norm.q_weight;
    if (c->norm.k_weight.rows > 0) args[positions + K_WEIGHT] = &c->norm.k_weight;
    return spops_check_call(c->ctx, op, args, attributes);
}

// ---- Arguments of the slots ---------------------------------------------------------------------

static spops_attention_view view_of(const attention_call *c, spops_matrix m, row_kind like)
{
    const spops_attention_view view = {m.data, spops_row_step(m), head_stride(c, like), m.dtype};
    return view;
}

static void fill_rotary(const attention_call *c, spops_attention_rotary_args *args)
{
    const spops_attention_rotary *r = &c->rotary;

    if (c->options.rotary == NULL) return;
    args->coords = r->coords.data;
    args->dtype = r->coords.dtype;
    args->stride = spops_row_step(r->coords);
    args->key_coords = r->key_coords.data;
    args->key_stride = spops_row_step(r->key_coords);
    args->pairs = r->axis_dim / 2;
    args->base = r->base;
    for (int32_t p = 0; p < args->pairs; ++p)
        args->frequencies[p] = (float)pow((double)r->base, -(double)p / args->pairs);
}

static void fill_bias(const attention_call *c, spops_attention_bias_args *args)
{
    const spops_attention_bias *b = &c->bias;

    if (c->options.bias == NULL) return;
    args->table = (const float *)b->table.data;
    args->table_stride = spops_row_step(b->table);
    args->coords = (const int32_t *)b->coords.data;
    args->stride = spops_row_step(b->coords);
    args->key_coords = (const int32_t *)b->key_coords.data;
    args->key_stride = spops_row_step(b->key_coords);
    args->range = (int32_t)bias_range(c);
}

// Heads of weights that are as many as those of the rows are apart.
static int64_t weights_stride(spops_matrix weights)
{
    return weights.rows > 1 ? spops_row_step(weights) : 0;
}

static void fill_norms(const attention_call *c, spops_attention_args *args)
{
    const spops_matrix weights[] = {c->norm.q_weight, c->norm.k_weight};

    args->epsilon = c->norm.epsilon;
    for (int side = 0; side < SPOPS_ATTENTION_NUM_TURNED; ++side)
        if (weights[side].rows > 0)
            args->norms[side] = (spops_attention_norm_args){(const float *)weights[side].data,
                                                            weights_stride(weights[side])};
}

static void fill_args(const attention_call *c, spops_matrix q, spops_matrix k, spops_matrix v,
                      spops_matrix o, spops_attention_args *args)
{
    args->patches = c->patches;
    args->heads = c->options.heads;
    args->kv_heads = c->options.kv_heads;
    args->dim = (int32_t)c->dim;
    args->scale = c->options.scale;
    args->scale_f64 = c->scale_f64;
    args->tf32 = c->options.math == SPOPS_MATH_TF32;
    args->tile = c->options.tile;
    args->q = view_of(c, q, LIKE_Q);
    args->k = view_of(c, k, LIKE_K);
    args->v = view_of(c, v, LIKE_K);
    args->o = view_of(c, o, LIKE_O);
    fill_rotary(c, &args->rotary);
    fill_bias(c, &args->bias);
    fill_norms(c, args);
}

static size_t scratch_bytes(const attention_call *c, bool backward)
{
    const spops_attention_scratch_args args = scratch_args(c, backward);
    if (c->ctx->backend->attention_scratch_bytes == NULL) return 0;
    return c->ctx->backend->attention_scratch_bytes(c->ctx, &args);
}

static attention_call begin_call(spops_context *ctx, const char *name, const spops_patches *patches,
                                 int64_t cols, spops_dtype dtype)
{
    const attention_call c = {.ctx = ctx,
                              .name = name,
                              .patches = &patches->arrays,
                              .backend = patches->base.ctx->backend,
                              .cols = cols,
                              .dtype = dtype};
    return c;
}

// No plan reserved it: the message says who does.
static spops_status get_scratch(const attention_call *c, const char *call, bool backward,
                                void **scratch)
{
    const size_t bytes = scratch_bytes(c, backward);
    const spops_status status = spops_context_scratch(c->ctx, call, bytes, scratch);
    if (status != SPOPS_STATUS_SCRATCH_TOO_SMALL) return status;
    return spops_fail(c->ctx, status,
                      "%s: the context's scratch is %zu bytes, expected at least %zu: call "
                      "spops_attention_reserve",
                      call, c->ctx->scratch_bytes, bytes);
}

size_t spops_attention_scratch_bytes(const spops_patches *patches, int64_t cols, spops_dtype dtype,
                                     const spops_attention_options *options, int32_t backward)
{
    attention_call c;
    size_t bytes, more = 0;

    if (patches == NULL) return 0;
    c = begin_call(NULL, "attention_scratch_bytes", patches, cols, dtype); // patches may be shared
    if (read_call(&c, options) != SPOPS_STATUS_OK) return 0;
    c.ctx = patches->base.ctx;
    bytes = scratch_bytes(&c, false);
    if (backward) more = scratch_bytes(&c, true);
    return more > bytes ? more : bytes;
}

spops_status spops_attention_reserve(spops_context *ctx, const spops_patches *patches, int64_t cols,
                                     spops_dtype dtype, const spops_attention_options *options,
                                     int32_t backward)
{
    static const char call[] = "attention_reserve";
    attention_call c;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "patches", patches));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_REQUIRE(ctx, backward == 0 || backward == 1, "%s: backward is %d, expected 0 or 1", call,
                  (int)backward);
    c = begin_call(ctx, call, patches, cols, dtype);
    SPOPS_TRY(read_call(&c, options));
    for (int of = 0; of <= backward; ++of) {
        const spops_attention_scratch_args args = scratch_args(&c, of != 0);
        SPOPS_TRY(SPOPS_PREPARE(ctx, attention_prepare, &args));
        SPOPS_TRY(spops_context_grow(ctx, scratch_bytes(&c, of != 0)));
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_attention_get_tile(spops_context *ctx, const spops_patches *patches,
                                      int64_t cols, spops_dtype dtype,
                                      const spops_attention_options *options, int32_t backward,
                                      int32_t *tile)
{
    static const char call[] = "attention_get_tile";
    attention_call c;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "patches", (const spops_plan *)patches));
    SPOPS_REQUIRE(ctx, backward == 0 || backward == 1, "%s: backward is %d, expected 0 or 1", call,
                  (int)backward);
    SPOPS_REQUIRE(ctx, tile != NULL, "%s: tile is NULL", call);
    c = begin_call(ctx, call, patches, cols, dtype);
    SPOPS_TRY(read_call(&c, options));
    *tile = tile_of(&c, backward != 0);
    return SPOPS_STATUS_OK;
}

// ---- Calls --------------------------------------------------------------------------------------

spops_status spops_attention_execute(spops_context *ctx, const spops_patches *patches,
                                     spops_matrix q, spops_matrix k, spops_matrix v,
                                     const spops_attention_options *options, spops_matrix o,
                                     void *lse)
{
    static const char call[] = "attention_execute";
    spops_attention_args args = {0};
    attention_call c;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_plan_check(ctx, call, "patches", patches));
    c = begin_call(ctx, call, patches, q.cols, q.dtype);
    SPOPS_TRY(read_call(&c, options));

    const spops_argument of_q = by_heads(&c, q, LIKE_Q), of_k = by_heads(&c, k, LIKE_K),
                         of_v = by_heads(&c, v, LIKE_K), of_o = by_heads(&c, o, LIKE_O);
    const spops_matrix of_lse = lse_matrix(&c, lse);
    const void *given[3 + NUM_OF_OPTIONS + 3] = {&of_q, &of_k, &of_v};
    given[3 + NUM_OF_OPTIONS] = patches;
    given[4 + NUM_OF_OPTIONS] = &of_o;
    given[5 + NUM_OF_OPTIONS] = lse == NULL ? NULL : &of_lse;
    SPOPS_TRY(check_call(&c, SPOPS_OP_attention, given, 3));
    SPOPS_REQUIRE_SLOT(ctx, call, attention);
    if (c.patches->num_rows == 0) return SPOPS_STATUS_OK;
    fill_args(&c, q, k, v, o, &args);
    args.lse = lse;
    SPOPS_TRY(get_scratch(&c, call, false, &args.workspace));
    return ctx->backend->attention(ctx, &args);
}

spops_status spops_attention_execute_backward(
    spops_context *ctx, const spops_patches *patches, spops_matrix grad_o, spops_matrix q,
    spops_matrix k, spops_matrix v, spops_matrix o, const void *lse,
    const spops_attention_options *options, const spops_matrix *grad_q, const spops_matrix *grad_k,
    const spops_matrix *grad_v, const spops_matrix *grad_table, const spops_matrix *grad_q_weight,
    const spops_matrix *grad_k_weight)
{
    static const char call[] = "attention_execute_backward";
    const spops_matrix absent = {.dtype = SPOPS_DTYPE_F32};
    spops_attention_backward_args args = {0};
    attention_call c;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_plan_check(ctx, call, "patches", patches));
    c = begin_call(ctx, call, patches, q.cols, q.dtype);
    SPOPS_TRY(read_call(&c, options));

    enum { Q, K, V, O, GRAD_O, GRAD_Q, GRAD_K, GRAD_V, NUM_BY_HEADS };
    static const row_kind likes[] = {LIKE_Q, LIKE_K, LIKE_K, LIKE_O,
                                     LIKE_O, LIKE_Q, LIKE_K, LIKE_K};
    const spops_matrix m[] = {q,
                              k,
                              v,
                              o,
                              grad_o,
                              grad_q != NULL ? *grad_q : absent,
                              grad_k != NULL ? *grad_k : absent,
                              grad_v != NULL ? *grad_v : absent};
    spops_argument of[NUM_BY_HEADS];
    const spops_matrix of_lse = lse_matrix(&c, lse);
    for (int i = 0; i < NUM_BY_HEADS; ++i)
        of[i] = by_heads(&c, m[i], likes[i]);
    const void *given[5 + NUM_OF_OPTIONS + 8] = {
        &of[Q], &of[K], &of[V], &of[O], lse == NULL && c.patches->num_rows > 0 ? NULL : &of_lse};
    const void *after[] = {&of[GRAD_O],
                           patches,
                           grad_q == NULL ? NULL : &of[GRAD_Q],
                           grad_k == NULL ? NULL : &of[GRAD_K],
                           grad_v == NULL ? NULL : &of[GRAD_V],
                           grad_table,
                           grad_q_weight,
                           grad_k_weight};
    memcpy(given + 5 + NUM_OF_OPTIONS, after, sizeof after);
    SPOPS_TRY(check_call(&c, SPOPS_OP_attention_backward, given, 5));
    SPOPS_REQUIRE_SLOT(ctx, call, attention_backward);
    fill_args(&c, q, k, v, o, &args.forward);
    args.forward.lse = (float *)(uintptr_t)lse; // which backward reads
    args.grad_o = view_of(&c, grad_o, LIKE_O);
    args.grad_q = view_of(&c, m[GRAD_Q], LIKE_Q);
    args.grad_k = view_of(&c, m[GRAD_K], LIKE_K);
    args.grad_v = view_of(&c, m[GRAD_V], LIKE_K);
    if (grad_table != NULL) {
        args.grad_table = (float *)grad_table->data;
        args.grad_table_stride = spops_row_step(*grad_table);
    }
    const spops_matrix *weights[] = {grad_q_weight, grad_k_weight};
    for (int side = 0; side < SPOPS_ATTENTION_NUM_TURNED; ++side) {
        if (weights[side] == NULL) continue;
        args.grad_weights[side] = (float *)weights[side]->data;
        args.grad_weights_strides[side] = weights_stride(*weights[side]);
    }
    if (c.patches->num_rows == 0 && c.patches->num_key_rows == 0 && grad_table == NULL &&
        grad_q_weight == NULL && grad_k_weight == NULL)
        return SPOPS_STATUS_OK;
    SPOPS_TRY(get_scratch(&c, call, true, &args.forward.workspace));
    return ctx->backend->attention_backward(ctx, &args);
}
