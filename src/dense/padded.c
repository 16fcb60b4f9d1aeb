// SPDX-License-Identifier: Apache-2.0
// Padded voxels: arguments checked, then the backend's slots.
#include "call/call_check.h"
#include "coords/coords.h"
#include "dense/padded_args.h"

spops_status spops_voxels_padded_execute(spops_context *ctx, const spops_voxels *voxels,
                                         spops_matrix x, spops_matrix out, int32_t *num_points)
{
    static const char call[] = "voxels_padded_execute";
    const void *const given[] = {&x, voxels, &out, num_points};
    spops_padded_args args = {.rows = x, .padded = out, .num_points = num_points};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_voxels_places(ctx, call, voxels, &args.places));
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_voxels_padded, given, NULL));
    SPOPS_REQUIRE_SLOT(ctx, call, voxels_padded);
    return ctx->backend->voxels_padded(ctx, &args);
}

spops_status spops_voxels_padded_execute_backward(spops_context *ctx, const spops_voxels *voxels,
                                                  spops_matrix grad_out, spops_matrix grad_x)
{
    static const char call[] = "voxels_padded_execute_backward";
    const void *const given[] = {&grad_out, voxels, &grad_x};
    spops_padded_args args = {.rows = grad_x, .padded = grad_out};

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_voxels_places(ctx, call, voxels, &args.places));
    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_voxels_padded_backward, given, NULL));
    SPOPS_REQUIRE_SLOT(ctx, call, voxels_padded_backward);
    return ctx->backend->voxels_padded_backward(ctx, &args);
}
