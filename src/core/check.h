// Checks that the public calls of several modules share. They report on ctx, naming `call`.
#ifndef SPOPS_CORE_CHECK_H
#define SPOPS_CORE_CHECK_H

#include "core/backend.h"

// The backend of ctx fills this slot.
#define SPOPS_REQUIRE_SLOT(ctx, call, slot)                                                        \
    SPOPS_TRY(spops_check_slot((ctx), (call), (ctx)->backend->slot != NULL, #slot))
spops_status spops_check_slot(spops_context *ctx, const char *call, bool filled, const char *name);

#endif
