// SPDX-License-Identifier: Apache-2.0
/* A tape's memory, and its steps forward and backward. */
#include "networks/tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "networks/draw.h"

#define TRY(call) DEVICE_TRY(t->d, call)

/* ---- Where things are -------------------------------------------------------------------------- */

static spops_matrix matrix_of(const tape *t, int value, void *data)
{
    const tape_value *v = &t->values[value];
    return spops_matrix_dense(data, t->max_rows[v->level], v->cols, t->dtype);
}

spops_matrix tape_value_matrix(const tape *t, int value)
{
    return matrix_of(t, value, t->values[value].data);
}

spops_matrix tape_grad_matrix(const tape *t, int value)
{
    return matrix_of(t, value, t->values[t->values[value].grad_of].grad);
}

static const int32_t *rows_of(const tape *t, int value)
{
    return t->num_rows[t->values[value].level];
}

/* Vectors are f32; matrices that rows are multiplied by are of their dtype. */
static float *vector(const tape *t, int parameter)
{
    return parameter < 0 ? NULL : t->wide + t->parameters[parameter].offset;
}

static float *grad_vector(const tape *t, int parameter)
{
    return parameter < 0 ? NULL : t->grads + t->parameters[parameter].offset;
}

static spops_matrix weight(const tape *t, int parameter)
{
    const tape_parameter *p = &t->parameters[parameter];
    return spops_matrix_dense((char *)t->narrow + (size_t)p->offset * spops_dtype_bytes(t->dtype),
                              p->rows, p->cols, t->dtype);
}

static spops_matrix grad_weight(const tape *t, int parameter)
{
    const tape_parameter *p = &t->parameters[parameter];
    return spops_matrix_dense(t->grads + p->offset, p->rows, p->cols, SPOPS_DTYPE_F32);
}

static spops_matrix columns(spops_matrix m, int64_t first, int64_t cols)
{
    m.data = (char *)m.data + (size_t)first * spops_dtype_bytes(m.dtype);
    m.cols = cols;
    return m;
}

/* ---- Memory ------------------------------------------------------------------------------------ */

static int alloc_block(tape *t, size_t bytes, void **at)
{
    *at = t->blocks[t->num_blocks] = device_alloc(t->d, bytes);
    t->block_bytes[t->num_blocks++] = bytes;
    return *at == NULL;
}

static size_t value_bytes(const tape *t, const tape_value *v)
{
    return (size_t)t->max_rows[v->level] * (size_t)v->cols * spops_dtype_bytes(t->dtype);
}

/* For inference: each value is where one was that nobody reads any more, the smallest place that is large
   enough. */
static int place_values(tape *t)
{
    int last[TAPE_VALUES]; /* of a block: the last step that reads what is there */

    for (int i = 0; i < t->num_values; ++i)
        if (t->values[i].is_input) {
            last[t->num_blocks] = TAPE_STEPS;
            if (alloc_block(t, value_bytes(t, &t->values[i]), &t->values[i].data)) return 1;
        }
    for (int i = 0; i < t->num_steps; ++i) {
        tape_value *v = &t->values[t->steps[i].out];
        const size_t bytes = value_bytes(t, v);
        int best = -1;
        for (int b = 0; b < t->num_blocks && !t->training; ++b)
            if (last[b] < i && t->block_bytes[b] >= bytes && t->block_bytes[b] <= 4 * bytes &&
                (best < 0 || t->block_bytes[b] < t->block_bytes[best]))
                best = b;
        if (best < 0) {
            best = t->num_blocks;
            if (alloc_block(t, bytes, &v->data)) return 1;
        }
        v->data = t->blocks[best];
        last[best] = t->steps[i].out == t->output ? TAPE_STEPS : v->last_use;
    }
    return 0;
}

/* Which gradients are there before a step's, and which share memory: a residual whose last reader is this
   step takes the gradient of the output as its own. */
static void plan_gradients(tape *t)
{
    char there[TAPE_VALUES] = {0};

    for (int i = t->num_steps; i-- > 0;) {
        tape_step *s = &t->steps[i];
        if (s->residual >= 0 && !t->values[s->residual].is_input) {
            s->adds_residual = t->values[s->residual].last_use != i;
            if (!s->adds_residual) t->values[s->residual].grad_of = t->values[s->out].grad_of;
            there[s->residual] = 1;
        }
        if (s->other >= 0) {
            s->adds_other = there[s->other];
            there[s->other] = 1;
        }
        s->adds_in = there[s->in];
        there[s->in] = 1;
    }
}

static int alloc_gradients(tape *t)
{
    size_t spare[TAPE_LEVELS] = {0};

    plan_gradients(t);
    t->grads = (float *)device_alloc(t->d, (size_t)t->num_elements * sizeof *t->grads);
    if (t->grads == NULL) return 1;
    for (int i = 0; i < t->num_values; ++i) {
        tape_value *v = &t->values[i];
        const size_t bytes = value_bytes(t, v);
        if (bytes > spare[v->level]) spare[v->level] = bytes;
        if (v->is_input || v->grad_of != i) continue;
        v->grad = device_alloc(t->d, bytes);
        if (v->grad == NULL) return 1;
    }
    for (int l = 0; l < TAPE_LEVELS; ++l)
        if (spare[l] > 0 && (t->spare[l] = device_alloc(t->d, spare[l])) == NULL) return 1;
    t->target = device_alloc(t->d, value_bytes(t, &t->values[t->output]));
    return t->target == NULL;
}

static spops_attention_options attention_options(const tape_step *s)
{
    spops_attention_options o = spops_attention_options_default();
    o.heads = s->heads;
    return o;
}

/* What a step keeps for its gradients, and scratch. */
static int reserve_step(tape *t, tape_step *s)
{
    spops_context *ctx = t->d->ctx;
    const int64_t rows = t->max_rows[t->values[s->in].level];
    const int64_t in = t->values[s->in].cols, out = t->values[s->out].cols;
    const spops_attention_options attention = attention_options(s);
    float *moments;

    switch (s->kind) {
    case TAPE_LINEAR:
        TRY(spops_linear_reserve(ctx, rows, in > out ? in : out, in > out ? in : out, t->training));
        if (t->beside != NULL)
            TRY(spops_linear_reserve(t->beside->ctx, rows, in > out ? in : out, in > out ? in : out,
                                     t->training));
        break;
    case TAPE_CONV:
        if (t->beside != NULL)
            TRY(spops_context_reserve(t->beside->ctx,
                                      spops_sparseconv_scratch_bytes(t->convs[s->plan])));
        break;
    case TAPE_ATTENTION:
        TRY(spops_attention_reserve(ctx, t->patches[s->plan], out, t->dtype, &attention,
                                    t->training));
        if (!t->training) break;
        s->lse = device_alloc(t->d, (size_t)rows * (size_t)s->heads * sizeof(float));
        return s->lse == NULL;
    case TAPE_LAYERNORM:
    case TAPE_BATCHNORM:
        TRY(spops_context_reserve(ctx, spops_norm_scratch_bytes(rows, in)));
        if (s->kind == TAPE_LAYERNORM) break;
        moments = (float *)device_alloc(t->d, (size_t)in * 2 * sizeof *moments);
        s->mean = moments;
        s->var = moments + in;
        return moments == NULL;
    default: break;
    }
    return 0;
}

int tape_upload_parameters(tape *t, const float *parameters)
{
    const size_t n = (size_t)t->num_elements, each = spops_dtype_bytes(t->dtype);
    void *narrow = malloc(n * each);
    const int failed = narrow == NULL ||
                       device_convert(t->d, SPOPS_DTYPE_F32, parameters, t->dtype, narrow, n) ||
                       device_upload(t->d, t->narrow, narrow, n * each) ||
                       device_upload(t->d, t->wide, parameters, n * sizeof *parameters);
    free(narrow);
    return failed;
}

static int draw_target(tape *t)
{
    const spops_matrix m = matrix_of(t, t->output, t->target);
    const size_t n = (size_t)(m.rows * m.cols), each = spops_dtype_bytes(t->dtype);
    float *values = (float *)malloc(n * sizeof *values);
    void *narrow = malloc(n * each);
    int failed = values == NULL || narrow == NULL;

    for (size_t i = 0; i < n && !failed; ++i)
        values[i] = drawn_number(i, -1, 1);
    failed = failed || device_convert(t->d, SPOPS_DTYPE_F32, values, t->dtype, narrow, n) ||
             device_upload(t->d, t->target, narrow, n * each);
    free(values);
    free(narrow);
    return failed;
}

int tape_alloc(tape *t, const float *parameters)
{
    const size_t n = (size_t)t->num_elements;

    t->wide = (float *)device_alloc(t->d, n * sizeof *t->wide);
    t->narrow =
        t->dtype == SPOPS_DTYPE_F32 ? t->wide : device_alloc(t->d, n * spops_dtype_bytes(t->dtype));
    if (t->wide == NULL || t->narrow == NULL || tape_upload_parameters(t, parameters) ||
        place_values(t) || (t->training && (alloc_gradients(t) || draw_target(t))))
        return 1;
    for (int i = 0; i < t->num_steps; ++i)
        if (reserve_step(t, &t->steps[i])) return 1;
    return 0;
}

void tape_free(tape *t)
{
    if (t->d == NULL) return;
    if (t->narrow != t->wide) device_free(t->d, t->narrow);
    device_free(t->d, t->wide);
    device_free(t->d, t->grads);
    device_free(t->d, t->target);
    for (int i = 0; i < t->num_blocks; ++i)
        device_free(t->d, t->blocks[i]);
    for (int i = 0; i < t->num_values; ++i) {
        device_free(t->d, t->values[i].grad);
        device_free_mark(t->values[i].read);
    }
    for (int l = 0; l < TAPE_LEVELS; ++l)
        device_free(t->d, t->spare[l]);
    for (int i = 0; i < t->num_steps; ++i) {
        device_free(t->d, t->steps[i].lse);
        device_free(t->d, t->steps[i].mean);
    }
}

/* ---- Forward ----------------------------------------------------------------------------------- */

static spops_norm_options norm_options(const tape *t, const tape_step *s)
{
    spops_norm_options o = spops_norm_options_default();
    o.num_rows = rows_of(t, s->in);
    o.epsilon = s->epsilon;
    o.activation = s->kind == TAPE_BATCHNORM ? s->activation : SPOPS_ACTIVATION_NONE;
    return o;
}

static spops_status add(const tape *t, int value, spops_activation activation, spops_matrix x,
                        spops_matrix y, spops_matrix out)
{
    spops_add_options o = spops_add_options_default();
    o.num_rows = rows_of(t, value);
    o.activation = activation;
    return spops_add_execute(t->d->ctx, x, y, &o, out);
}

/* Parameters and numbers of rows are older than the first product of a pass, plans are waited for before their layer. */
static spops_status forward_product(tape *t, const tape_step *s)
{
    const spops_matrix residual = tape_value_matrix(t, s->residual < 0 ? s->in : s->residual);
    const spops_matrix in = tape_value_matrix(t, s->in), out = tape_value_matrix(t, s->out);
    spops_conv_layer layer = spops_conv_layer_default();

    layer.bias = vector(t, s->bias);
    layer.scale = vector(t, s->scale);
    layer.shift = vector(t, s->shift);
    layer.residual = s->residual < 0 ? NULL : &residual;
    layer.activation = s->activation;
    layer.reads_ahead = t->has_product;
    t->has_product = 1;
    if (s->kind == TAPE_CONV)
        return spops_sparseconv_execute(t->d->ctx, t->convs[s->plan], in, weight(t, s->weight),
                                        &layer, out);
    layer.num_rows = rows_of(t, s->in);
    return spops_linear_execute(t->d->ctx, in, weight(t, s->weight), &layer, out);
}

static spops_status forward_norm(const tape *t, const tape_step *s)
{
    const spops_norm_options o = norm_options(t, s);
    const spops_matrix in = tape_value_matrix(t, s->in), out = tape_value_matrix(t, s->out);
    const float *mean = t->training ? s->mean : vector(t, s->scale);
    const float *var = t->training ? s->var : vector(t, s->shift);

    if (s->kind == TAPE_LAYERNORM) {
        PASS(spops_layernorm_execute(t->d->ctx, in, vector(t, s->weight), vector(t, s->bias), &o,
                                     out));
    } else {
        if (t->training)
            PASS(spops_batchnorm_statistics_execute(t->d->ctx, in, &o, s->mean, s->var,
                                                    vector(t, s->scale), vector(t, s->shift)));
        PASS(spops_batchnorm_execute(t->d->ctx, in, mean, var, vector(t, s->weight),
                                     vector(t, s->bias), &o, out));
    }
    if (s->residual < 0) return SPOPS_STATUS_OK;
    return add(t, s->out, SPOPS_ACTIVATION_NONE, out, tape_value_matrix(t, s->residual), out);
}

/* x + norm(y) and its norm, of this step and the one after it, in one call. */
static spops_status forward_sum_and_norm(const tape *t, const tape_step *s)
{
    const tape_step *next = s + 1;
    spops_addnorm_options o = spops_addnorm_options_default();

    o.num_rows = rows_of(t, s->in);
    o.epsilon = s->epsilon;
    o.norm_y = 1;
    return spops_addnorm_execute(t->d->ctx, tape_value_matrix(t, s->residual),
                                 tape_value_matrix(t, s->in), vector(t, s->weight),
                                 vector(t, s->bias), vector(t, next->weight), vector(t, next->bias),
                                 &o, tape_value_matrix(t, s->out), tape_value_matrix(t, next->out));
}

/* Three matrices side by side, or two and one. */
static void split(const tape_step *s, spops_matrix in, spops_matrix other, spops_matrix parts[3])
{
    const int64_t cols = s->other >= 0 ? other.cols : in.cols / 3;
    parts[0] = columns(in, 0, cols);
    parts[1] = columns(in, cols, cols);
    parts[2] = s->other >= 0 ? other : columns(in, 2 * cols, cols);
}

static spops_status forward_attention(const tape *t, const tape_step *s)
{
    const spops_attention_options o = attention_options(s);
    spops_matrix q[3];
    split(s, tape_value_matrix(t, s->in), tape_value_matrix(t, s->other < 0 ? s->in : s->other), q);
    return spops_attention_execute(t->d->ctx, t->patches[s->plan], q[0], q[1], q[2], &o,
                                   tape_value_matrix(t, s->out), s->lse);
}

static spops_status forward_step(tape *t, const tape_step *s)
{
    const spops_matrix in = tape_value_matrix(t, s->in), out = tape_value_matrix(t, s->out);
    spops_activation_options o = spops_activation_options_default();
    spops_context *ctx = t->d->ctx;

    switch (s->kind) {
    case TAPE_CONV:
    case TAPE_LINEAR: return forward_product(t, s);
    case TAPE_ATTENTION: return forward_attention(t, s);
    case TAPE_LAYERNORM:
    case TAPE_BATCHNORM: return forward_norm(t, s);
    case TAPE_ACTIVATION:
        o.num_rows = rows_of(t, s->in);
        if (s->residual >= 0)
            return add(t, s->in, s->activation, in, tape_value_matrix(t, s->residual), out);
        return spops_activation_execute(ctx, s->activation, in, &o, out);
    case TAPE_POOL: return spops_pool_execute(ctx, t->pools[s->plan], SPOPS_REDUCE_MAX, in, out);
    default:
        return spops_gather_execute(ctx, spops_pool_segments(t->pools[s->plan]), in, NULL, out);
    }
}

static int is_in(const tape_step *s, tape_part part)
{
    return (part.kind < 0 || part.kind == (int)s->kind) &&
           (part.stage < 0 || part.stage == s->stage);
}

spops_status tape_forward(tape *t, tape_part part)
{
    t->has_product = 0;
    for (int i = 0; i < t->num_steps; ++i) {
        const tape_step *s = &t->steps[i];
        if (!is_in(s, part)) continue;
        if (t->before_step != NULL) PASS(t->before_step(t->user, s));
        if (i + 1 < t->num_steps && s[1].is_of_sum) {
            PASS(forward_sum_and_norm(t, s));
            ++i;
        } else {
            PASS(forward_step(t, s));
        }
    }
    return SPOPS_STATUS_OK;
}

/* ---- Backward ---------------------------------------------------------------------------------- */

/* Where the gradient of a step's weights is enqueued: what it reads is there. NULL: that failed. */
static const device *device_of_weights(tape *t)
{
    if (t->beside == NULL) return t->d;
    t->runs_beside = 1;
    return device_follow(t->beside, t->d) ? NULL : t->beside;
}

/* The gradient of a step's output is read beside the main stream by what was enqueued there. */
static spops_status mark_read(tape *t, const tape_step *s)
{
    tape_value *v = &t->values[t->values[s->out].grad_of];
    if (t->beside == NULL) return SPOPS_STATUS_OK;
    v->is_read = 1;
    return device_mark(t->beside, &v->read) ? SPOPS_STATUS_CUDA : SPOPS_STATUS_OK;
}

/* Before a gradient is written: nobody reads what it was. */
static spops_status wait_for_readers(tape *t, int value)
{
    tape_value *v;
    if (value < 0) return SPOPS_STATUS_OK;
    v = &t->values[t->values[value].grad_of];
    if (!v->is_read) return SPOPS_STATUS_OK;
    v->is_read = 0;
    return device_wait(t->d, v->read) ? SPOPS_STATUS_CUDA : SPOPS_STATUS_OK;
}

/* A linear layer adds to a gradient in its epilogue. */
static spops_status backward_linear(tape *t, const tape_step *s, spops_matrix g)
{
    const device *d = device_of_weights(t);
    const spops_matrix w = weight(t, s->weight), grad_w = grad_weight(t, s->weight);
    const spops_matrix grad_x = tape_grad_matrix(t, s->in);
    spops_conv_layer layer = spops_conv_layer_default();

    layer.num_rows = rows_of(t, s->in);
    if (d == NULL) return SPOPS_STATUS_CUDA;
    PASS(spops_linear_execute_backward(d->ctx, g, tape_value_matrix(t, s->in), w, &layer, NULL,
                                       &grad_w, grad_vector(t, s->bias)));
    PASS(mark_read(t, s));
    if (t->values[s->in].is_input) return SPOPS_STATUS_OK;
    layer.w_transposed = 1;
    layer.residual = s->adds_in ? &grad_x : NULL;
    return spops_linear_execute(t->d->ctx, g, w, &layer, grad_x);
}

/* The gradients of a norm, which may have an activation. */
static spops_status backward_norm(const tape *t, const tape_step *s, spops_matrix g,
                                  spops_matrix to)
{
    const spops_norm_options o = norm_options(t, s);
    const spops_matrix in = tape_value_matrix(t, s->in);

    if (s->kind == TAPE_LAYERNORM)
        return spops_layernorm_execute_backward(t->d->ctx, g, in, vector(t, s->weight),
                                                vector(t, s->bias), &o, to,
                                                grad_vector(t, s->weight), grad_vector(t, s->bias));
    return spops_batchnorm_execute_backward(t->d->ctx, g, in, s->mean, s->var, vector(t, s->weight),
                                            vector(t, s->bias), &o, to, grad_vector(t, s->weight),
                                            grad_vector(t, s->bias));
}

static spops_status backward_conv(tape *t, const tape_step *s, spops_matrix g,
                                  const spops_matrix *to)
{
    const spops_matrix grad_w = grad_weight(t, s->weight);
    const spops_matrix in = tape_value_matrix(t, s->in), w = weight(t, s->weight);
    const device *d = device_of_weights(t);

    if (d == NULL) return SPOPS_STATUS_CUDA;
    PASS(spops_sparseconv_execute_backward(d->ctx, t->convs[s->plan], g, in, w, NULL, NULL, &grad_w,
                                           grad_vector(t, s->bias)));
    PASS(mark_read(t, s));
    if (to == NULL) return SPOPS_STATUS_OK;
    return spops_sparseconv_execute_backward(t->d->ctx, t->convs[s->plan], g, in, w, NULL, to, NULL,
                                             NULL);
}

/* Of q, k and v; where v stands apart, its gradient goes to `v_to`. */
static spops_status backward_attention(const tape *t, const tape_step *s, spops_matrix g,
                                       spops_matrix to, spops_matrix v_to)
{
    const spops_attention_options o = attention_options(s);
    spops_matrix q[3], grads[3];
    split(s, tape_value_matrix(t, s->in), tape_value_matrix(t, s->other < 0 ? s->in : s->other), q);
    split(s, to, v_to, grads);
    return spops_attention_execute_backward(t->d->ctx, t->patches[s->plan], g, q[0], q[1], q[2],
                                            tape_value_matrix(t, s->out), s->lse, &o, &grads[0],
                                            &grads[1], &grads[2], NULL, NULL, NULL);
}

/* The gradient of `in` to `to`, where there is none yet. */
static spops_status backward_into(tape *t, const tape_step *s, spops_matrix g, spops_matrix to)
{
    const spops_matrix in = tape_value_matrix(t, s->in);
    const spops_segments *rows;
    spops_activation_options o = spops_activation_options_default();
    spops_context *ctx = t->d->ctx;

    switch (s->kind) {
    case TAPE_CONV: return backward_conv(t, s, g, &to);
    case TAPE_LAYERNORM:
    case TAPE_BATCHNORM: return backward_norm(t, s, g, to);
    case TAPE_ATTENTION:
        return backward_attention(t, s, g, to,
                                  tape_grad_matrix(t, s->other < 0 ? s->in : s->other));
    case TAPE_ACTIVATION:
        o.num_rows = rows_of(t, s->in);
        return spops_activation_execute_backward(ctx, s->activation, g, in, &o, to);
    case TAPE_POOL:
        return spops_pool_execute_backward(ctx, t->pools[s->plan], SPOPS_REDUCE_MAX, g, in, to);
    default:
        rows = spops_pool_segments(t->pools[s->plan]);
        return spops_gather_execute_backward(ctx, rows, g, in, NULL, &to, NULL);
    }
}

/* The gradient of what a step adds to its output. */
static spops_status backward_residual(const tape *t, const tape_step *s)
{
    const spops_matrix more = tape_grad_matrix(t, s->residual);
    return add(t, s->out, SPOPS_ACTIVATION_NONE, more, tape_grad_matrix(t, s->out), more);
}

/* Of both steps of forward_sum_and_norm; the gradient of the sum is that of the residual too. */
static spops_status backward_sum_and_norm(tape *t, const tape_step *s)
{
    const tape_step *next = s + 1;
    const spops_matrix total = tape_grad_matrix(t, s->out);
    spops_addnorm_options o = spops_addnorm_options_default();

    o.num_rows = rows_of(t, s->in);
    o.epsilon = s->epsilon;
    o.norm_y = 1;
    PASS(wait_for_readers(t, s->out));
    PASS(wait_for_readers(t, s->in));
    if (s->adds_residual) PASS(wait_for_readers(t, s->residual));
    PASS(spops_addnorm_execute_backward(
        t->d->ctx, tape_grad_matrix(t, next->out), next->adds_in ? &total : NULL,
        tape_value_matrix(t, s->out), tape_value_matrix(t, s->in), vector(t, s->weight),
        vector(t, s->bias), vector(t, next->weight), vector(t, next->bias), &o, total,
        tape_grad_matrix(t, s->in), grad_vector(t, s->weight), grad_vector(t, s->bias),
        grad_vector(t, next->weight), grad_vector(t, next->bias)));
    return s->adds_residual ? backward_residual(t, s) : SPOPS_STATUS_OK;
}

/* The gradient of a layer norm, added to what there is: that of a sum and its norm, whose branch has none. */
static spops_status backward_adding_norm(const tape *t, const tape_step *s, spops_matrix g,
                                         spops_matrix to)
{
    const spops_matrix in = tape_value_matrix(t, s->in);
    spops_addnorm_options o = spops_addnorm_options_default();

    o.num_rows = rows_of(t, s->in);
    o.epsilon = s->epsilon;
    return spops_addnorm_execute_backward(
        t->d->ctx, g, &to, in, in, NULL, NULL, vector(t, s->weight), vector(t, s->bias), &o, to, to,
        NULL, NULL, grad_vector(t, s->weight), grad_vector(t, s->bias));
}

static spops_status backward_step(tape *t, const tape_step *s)
{
    const spops_matrix g = tape_grad_matrix(t, s->out), to = tape_grad_matrix(t, s->in);
    const spops_matrix spare = matrix_of(t, s->in, t->spare[t->values[s->in].level]);

    PASS(wait_for_readers(t, s->in));
    PASS(wait_for_readers(t, s->other));
    if (s->residual >= 0 && s->adds_residual) {
        PASS(wait_for_readers(t, s->residual));
        PASS(backward_residual(t, s));
    }
    if (s->kind == TAPE_LINEAR) return backward_linear(t, s, g);
    if (t->values[s->in].is_input)
        return s->kind == TAPE_CONV ? backward_conv(t, s, g, NULL) : SPOPS_STATUS_OK;
    if (!s->adds_in) return backward_into(t, s, g, to);
    if (s->kind == TAPE_LAYERNORM) return backward_adding_norm(t, s, g, to);
    if (s->kind == TAPE_ACTIVATION && s->activation == SPOPS_ACTIVATION_NONE)
        return add(t, s->in, SPOPS_ACTIVATION_NONE, to, g, to);
    PASS(backward_into(t, s, g, spare));
    return add(t, s->in, SPOPS_ACTIVATION_NONE, to, spare, to);
}

spops_status tape_loss(tape *t)
{
    spops_add_options o = spops_add_options_default();
    o.num_rows = rows_of(t, t->output);
    o.scale = -1;
    return spops_add_execute(t->d->ctx, tape_value_matrix(t, t->output),
                             matrix_of(t, t->output, t->target), &o,
                             tape_grad_matrix(t, t->output));
}

/* The main stream waits for what was enqueued beside it. */
static spops_status join(tape *t)
{
    if (!t->runs_beside) return SPOPS_STATUS_OK;
    t->runs_beside = 0;
    for (int i = 0; i < t->num_values; ++i)
        t->values[i].is_read = 0;
    return device_follow(t->d, t->beside) ? SPOPS_STATUS_CUDA : SPOPS_STATUS_OK;
}

spops_status tape_backward(tape *t, tape_part part)
{
    for (int i = t->num_steps; i-- > 0;) {
        const tape_step *s = &t->steps[i];
        if (!is_in(s, part)) continue;
        if (s->is_of_sum && !s[-1].adds_in) {
            PASS(backward_sum_and_norm(t, &t->steps[--i]));
        } else {
            PASS(backward_step(t, s));
        }
    }
    return join(t);
}

spops_status tape_update(tape *t, float rate)
{
    const spops_matrix wide =
        spops_matrix_dense(t->wide, t->num_elements / 64, 64, SPOPS_DTYPE_F32);
    const spops_matrix grads =
        spops_matrix_dense(t->grads, t->num_elements / 64, 64, SPOPS_DTYPE_F32);
    spops_add_options o = spops_add_options_default();

    o.scale = -rate;
    PASS(spops_add_execute(t->d->ctx, wide, grads, &o, wide));
    if (t->narrow == t->wide) return SPOPS_STATUS_OK;
    return spops_convert_execute(t->d->ctx, wide,
                                 spops_matrix_dense(t->narrow, t->num_elements / 64, 64, t->dtype));
}

/* ---- What a step must do at least -------------------------------------------------------------- */

/* Rows once, of each of `times` matrices as wide as value. */
static double rows_bytes(const tape *t, const tape_sizes *sizes, int value, double times)
{
    const tape_value *v = &t->values[value];
    return times * (double)sizes->rows[v->level] * v->cols * (double)spops_dtype_bytes(t->dtype);
}

work tape_forward_work(const tape *t, const tape_step *s, const tape_sizes *sizes)
{
    const double rows = (double)sizes->rows[t->values[s->in].level];
    const double in = t->values[s->in].cols, out = t->values[s->out].cols;
    work w = {0, 0, 0};

    w.bytes = rows_bytes(t, sizes, s->in, 1) + rows_bytes(t, sizes, s->out, 1);
    if (s->residual >= 0) w.bytes += rows_bytes(t, sizes, s->residual, 1);
    if (s->other >= 0) w.bytes += rows_bytes(t, sizes, s->other, 1);
    if (s->kind == TAPE_CONV || s->kind == TAPE_LINEAR) {
        const double pairs = s->kind == TAPE_CONV ? (double)sizes->pairs[s->plan] : rows;
        w.flops = 2 * pairs * in * out;
        w.bytes += (s->kind == TAPE_CONV ? 4 * pairs : 0) +
                   (s->taps > 0 ? s->taps : 1) * in * out * (double)spops_dtype_bytes(t->dtype);
    } else if (s->kind == TAPE_ATTENTION) {
        w.flops = 4 * rows * sizes->keys[s->plan] * out;
        w.exps = rows * sizes->keys[s->plan] * s->heads;
    }
    return w;
}

/* Twice the products, of attention 2.5 times; the input, and the gradients of output and input. */
work tape_backward_work(const tape *t, const tape_step *s, const tape_sizes *sizes)
{
    work w = tape_forward_work(t, s, sizes);
    w.flops *= s->kind == TAPE_ATTENTION ? 2.5 : 2;
    w.bytes += rows_bytes(t, sizes, s->in, 1);
    if (s->kind == TAPE_ATTENTION) w.bytes += rows_bytes(t, sizes, s->out, 1);
    return w;
}
