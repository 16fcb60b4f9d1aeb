// Checks that the public calls of several modules share.
#include "core/check.h"

spops_status spops_check_slot(spops_context *ctx, const char *call, bool filled, const char *name)
{
    if (filled) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: the %s backend has no %s", call,
                      ctx->backend->name, name);
}
