// SPDX-License-Identifier: Apache-2.0
// Activations and sums alone: argument checks, then the backend's slot.
#include "spops/activation.h"

#include "activation/activation_args.h"
#include "call/call_check.h"

static spops_status run(spops_context *ctx, const char *call, spops_activation_args *args,
                        const int32_t *num_rows, spops_activation activation, float slope)
{
    SPOPS_REQUIRE_SLOT(ctx, call, activation);
    if (args->x.rows == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    args->num_rows = num_rows;
    args->how = spops_activated_of(activation, slope);
    return ctx->backend->activation(ctx, args);
}

spops_status spops_activation_execute(spops_context *ctx, spops_activation activation,
                                      spops_matrix x, const spops_activation_options *options,
                                      spops_matrix out)
{
    static const char call[] = "activation_execute";
    spops_activation_options read = {0};
    spops_activation_args args = {.x = x, .out = out};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, &read, sizeof read));
    const void *const given[] = {&x, read.num_rows, &out};
    const spops_call_number attributes[] = {{.i = activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_activation, given, attributes));
    return run(ctx, call, &args, read.num_rows, activation, read.activation_slope);
}

spops_status spops_activation_execute_backward(spops_context *ctx, spops_activation activation,
                                               spops_matrix grad_out, spops_matrix x,
                                               const spops_activation_options *options,
                                               spops_matrix grad_x)
{
    static const char call[] = "activation_execute_backward";
    spops_activation_options read = {0};
    spops_activation_args args = {.x = x, .grad_out = grad_out, .out = grad_x, .grad_scale = 1.0f};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, &read, sizeof read));
    const void *const given[] = {&x, &grad_out, read.num_rows, &grad_x};
    const spops_call_number attributes[] = {{.i = activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_activation_backward, given, attributes));
    return run(ctx, call, &args, read.num_rows, activation, read.activation_slope);
}

spops_status spops_add_execute(spops_context *ctx, spops_matrix x, spops_matrix y,
                               const spops_add_options *options, spops_matrix out)
{
    static const char call[] = "add_execute";
    spops_add_options read = {0};
    spops_activation_args args = {.x = x, .addend = y, .out = out};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, &read, sizeof read));
    SPOPS_REQUIRE(ctx, read.reserved == 0, "%s: reserved is %d, expected 0", call,
                  (int)read.reserved);
    const void *const given[] = {&x, &y, read.num_rows, &out};
    const spops_call_number attributes[] = {
        {.f = read.scale}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_add, given, attributes));
    args.addend_scale = read.scale == 0 ? 1.0f : read.scale;
    return run(ctx, call, &args, read.num_rows, read.activation, read.activation_slope);
}

// grad_out times the derivative of an activation and a scale, into `to` where it is there.
static spops_status run_gradient(spops_context *ctx, const char *call, spops_activation_args args,
                                 const spops_add_options *read, spops_activation activation,
                                 float scale, const spops_matrix *to)
{
    if (to == NULL) return SPOPS_STATUS_OK;
    args.out = *to;
    args.grad_scale = scale;
    return run(ctx, call, &args, read->num_rows, activation, read->activation_slope);
}

spops_status spops_add_execute_backward(spops_context *ctx, spops_matrix grad_out, spops_matrix x,
                                        const spops_add_options *options,
                                        const spops_matrix *grad_x, const spops_matrix *grad_y)
{
    static const char call[] = "add_execute_backward";
    spops_add_options read = {0};
    const spops_activation_args args = {.x = x, .grad_out = grad_out};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, &read, sizeof read));
    SPOPS_TRY(spops_check_reserved(ctx, call, read.reserved));
    const void *const given[] = {&x, &grad_out, read.num_rows, grad_x, grad_y};
    const spops_call_number attributes[] = {
        {.f = read.scale}, {.i = read.activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_add_backward, given, attributes));
    // grad_x may be grad_out.
    SPOPS_TRY(run_gradient(ctx, call, args, &read, SPOPS_ACTIVATION_NONE,
                           read.scale == 0 ? 1.0f : read.scale, grad_y));
    return run_gradient(ctx, call, args, &read, read.activation, 1.0f, grad_x);
}
