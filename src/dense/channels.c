// SPDX-License-Identifier: Apache-2.0
// Channels to space and back: arguments checked, then the backend's slots.
#include <inttypes.h>
#include <string.h>

#include "call/call_check.h"
#include "coords/coords.h"
#include "dense/channels_args.h"

// Both directions: `from` is the operator's input, `to` its output.
static spops_status run(spops_context *ctx, spops_operator_id id, const char *call,
                        const spops_coords *coarse, const spops_coords *fine, int32_t factor,
                        spops_matrix from, spops_matrix to, bool to_space)
{
    const void *const given[] = {&from, coarse, fine, &to};
    const spops_call_number numbers[] = {{.i = factor}};
    spops_channels_args args;
    spops_taps taps;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coarse", coarse));
    SPOPS_TRY(spops_plan_check(ctx, call, "fine", fine));
    SPOPS_REQUIRE(ctx, coarse->arrays.layout.dims == fine->arrays.layout.dims,
                  "%s: fine has %" PRId32 " axes, expected %" PRId32 " as coarse has", call,
                  fine->arrays.layout.dims, coarse->arrays.layout.dims);
    SPOPS_TRY(spops_children_taps(ctx, call, coarse->arrays.layout.dims, factor, &taps));
    SPOPS_TRY(spops_check_call(ctx, id, given, numbers));
    SPOPS_REQUIRE(ctx, coarse->arrays.max_rows <= SPOPS_MAX_COUNT / taps.num_taps,
                  "%s: coarse has %" PRId64 " rows of %" PRId32
                  " children, expected at most %" PRId64 " children",
                  call, coarse->arrays.max_rows, taps.num_taps, SPOPS_MAX_COUNT);
    if (to_space)
        SPOPS_REQUIRE_SLOT(ctx, call, channel_to_space);
    else
        SPOPS_REQUIRE_SLOT(ctx, call, space_to_channel);
    memset(&args, 0, sizeof args);
    args.coarse = &coarse->arrays;
    args.fine = &fine->arrays;
    args.dims = taps.dims;
    args.factor = factor;
    args.num_children = taps.num_taps;
    args.wide = to_space ? from : to;
    args.narrow = to_space ? to : from;
    args.num_channels = args.narrow.cols;
    if (to.rows == 0 || to.cols == 0) return SPOPS_STATUS_OK;
    return to_space ? ctx->backend->channel_to_space(ctx, &args)
                    : ctx->backend->space_to_channel(ctx, &args);
}

spops_status spops_channel_to_space_execute(spops_context *ctx, const spops_coords *coarse,
                                            const spops_coords *fine, int32_t factor,
                                            spops_matrix x, spops_matrix out)
{
    return run(ctx, SPOPS_OP_channel_to_space, "channel_to_space_execute", coarse, fine, factor, x,
               out, true);
}

spops_status spops_channel_to_space_execute_backward(spops_context *ctx, const spops_coords *coarse,
                                                     const spops_coords *fine, int32_t factor,
                                                     spops_matrix grad_out, spops_matrix grad_x)
{
    return run(ctx, SPOPS_OP_channel_to_space_backward, "channel_to_space_execute_backward", coarse,
               fine, factor, grad_out, grad_x, false);
}

spops_status spops_space_to_channel_execute(spops_context *ctx, const spops_coords *coarse,
                                            const spops_coords *fine, int32_t factor,
                                            spops_matrix x, spops_matrix out)
{
    return run(ctx, SPOPS_OP_space_to_channel, "space_to_channel_execute", coarse, fine, factor, x,
               out, false);
}

spops_status spops_space_to_channel_execute_backward(spops_context *ctx, const spops_coords *coarse,
                                                     const spops_coords *fine, int32_t factor,
                                                     spops_matrix grad_out, spops_matrix grad_x)
{
    return run(ctx, SPOPS_OP_space_to_channel_backward, "space_to_channel_execute_backward", coarse,
               fine, factor, grad_out, grad_x, true);
}
