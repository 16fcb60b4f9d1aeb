// Reductions registered at run time, for the context that owns them.
#ifndef SPOPS_CORE_CUSTOM_REDUCE_H
#define SPOPS_CORE_CUSTOM_REDUCE_H

#include "core/context.h"

// Free a reduction, half-built or whole; NULL is fine.
void spops_custom_reduce_destroy(spops_context *ctx, spops_custom_reduce *custom);

#endif
