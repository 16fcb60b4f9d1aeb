// SPDX-License-Identifier: Apache-2.0
// Activations alone: argument checks, then the backend's slot.
#include "spops/activation.h"

#include "activation/activation_args.h"
#include "call/call_check.h"

static spops_status run(spops_context *ctx, const char *call, spops_activation_args *args,
                        const spops_activation_options *options, spops_activation activation)
{
    SPOPS_REQUIRE_SLOT(ctx, call, activation);
    if (args->x.rows == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    args->num_rows = options->num_rows;
    args->how = spops_activated_of(activation, options->activation_slope);
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
    return run(ctx, call, &args, &read, activation);
}

spops_status spops_activation_execute_backward(spops_context *ctx, spops_activation activation,
                                               spops_matrix grad_out, spops_matrix x,
                                               const spops_activation_options *options,
                                               spops_matrix grad_x)
{
    static const char call[] = "activation_execute_backward";
    spops_activation_options read = {0};
    spops_activation_args args = {.x = x, .grad_out = grad_out, .out = grad_x};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, options, &read, sizeof read));
    const void *const given[] = {&x, &grad_out, read.num_rows, &grad_x};
    const spops_call_number attributes[] = {{.i = activation}, {.f = read.activation_slope}};
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_activation_backward, given, attributes));
    return run(ctx, call, &args, &read, activation);
}
