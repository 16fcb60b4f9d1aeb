// SPDX-License-Identifier: Apache-2.0
// Ranks of NCCL communicators, the caller's or ours: arguments. What talks to NCCL is the backend's.
#include "comm/comm_args.h"
#include "core/check.h"

static spops_status begin_nccl(spops_context *ctx, spops_comm *comm,
                               const spops_comm_meeting *meeting)
{
    const spops_comm_nccl_args args = {comm, meeting->call, meeting, NULL, NULL};
    return ctx->backend->comm_nccl_begin(ctx, &args);
}

static spops_status end_nccl(spops_context *ctx, spops_comm *comm,
                             const spops_comm_meeting *meeting)
{
    const spops_comm_nccl_args args = {comm, meeting->call, meeting, NULL, NULL};
    return ctx->backend->comm_nccl_end(ctx, &args);
}

static spops_status wait_nccl(spops_context *ctx, spops_comm *comm, const char *call)
{
    const spops_comm_nccl_args args = {comm, call, NULL, NULL, NULL};
    return ctx->backend->comm_nccl_wait(ctx, &args);
}

static void destroy_nccl(spops_comm *comm)
{
    const spops_comm_nccl_args args = {comm, "comm_destroy", NULL, NULL, NULL};
    (void)comm->home->backend->comm_nccl_close(comm->home, &args);
}

static const spops_comm_transport transport_nccl = {begin_nccl, end_nccl, wait_nccl, destroy_nccl,
                                                    .captures = true};

spops_status spops_comm_get_nccl_id(spops_context *ctx, uint8_t *id)
{
    static const char call[] = "comm_get_nccl_id";
    const spops_comm_nccl_ask_args args = {call, NULL, id, NULL, NULL};

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, id != NULL, "%s: id is NULL", call);
    SPOPS_REQUIRE_SLOT(ctx, call, comm_nccl_ask);
    return ctx->backend->comm_nccl_ask(ctx, &args);
}

static spops_status open_rank(spops_context *ctx, const char *call, int32_t num_ranks, int32_t rank,
                              const spops_comm_options *options, void *given, const uint8_t *id,
                              spops_comm **out)
{
    spops_comm_nccl_args args = {NULL, call, NULL, given, id};
    spops_status status;

    SPOPS_TRY(spops_comm_new(ctx, call, num_ranks, rank, options, &args.comm));
    status = ctx->backend->comm_nccl_open(ctx, &args);
    if (status != SPOPS_STATUS_OK) {
        spops_comm_delete(args.comm);
        return status;
    }
    args.comm->transport = &transport_nccl;
    *out = args.comm;
    return SPOPS_STATUS_OK;
}

spops_status spops_comm_create_nccl(spops_context *ctx, void *nccl_comm,
                                    const spops_comm_options *options, spops_comm **out)
{
    static const char call[] = "comm_create_nccl";
    int32_t rank = 0, num_ranks = 0;
    const spops_comm_nccl_ask_args ask = {call, nccl_comm, NULL, &rank, &num_ranks};

    if (out != NULL) *out = NULL;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_object(ctx, call, "out", out, sizeof *out));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_REQUIRE(ctx, nccl_comm != NULL, "%s: nccl_comm is NULL", call);
    SPOPS_REQUIRE_SLOT(ctx, call, comm_nccl_open);
    SPOPS_TRY(ctx->backend->comm_nccl_ask(ctx, &ask));
    return open_rank(ctx, call, num_ranks, rank, options, nccl_comm, NULL, out);
}

spops_status spops_comm_create_nccl_id(spops_context *ctx, const uint8_t *id, int32_t num_ranks,
                                       int32_t rank, const spops_comm_options *options,
                                       spops_comm **out)
{
    static const char call[] = "comm_create_nccl_id";

    if (out != NULL) *out = NULL;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_object(ctx, call, "out", out, sizeof *out));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_REQUIRE(ctx, id != NULL, "%s: id is NULL", call);
    SPOPS_REQUIRE(ctx, num_ranks >= 1 && num_ranks <= SPOPS_COMM_MAX_RANKS,
                  "%s: num_ranks is %" PRId32 ", expected 1 to %d", call, num_ranks,
                  SPOPS_COMM_MAX_RANKS);
    SPOPS_REQUIRE(ctx, rank >= 0 && rank < num_ranks,
                  "%s: rank is %" PRId32 ", expected 0 to %" PRId32, call, rank, num_ranks - 1);
    SPOPS_REQUIRE_SLOT(ctx, call, comm_nccl_open);
    return open_rank(ctx, call, num_ranks, rank, options, NULL, id, out);
}
