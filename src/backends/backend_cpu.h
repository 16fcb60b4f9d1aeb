// SPDX-License-Identifier: Apache-2.0
// The CPU functions that fill the slots of core/backend_slots.def. They live with the module they
// belong to.
#ifndef SPOPS_BACKENDS_BACKEND_CPU_H
#define SPOPS_BACKENDS_BACKEND_CPU_H

#include "core/backend.h"

#define SPOPS_SLOT(name, type, where)                                                              \
    spops_status spops_cpu_##name(spops_context *ctx, const struct type *args);
#define SPOPS_SLOT_BYTES(name, type, where)                                                        \
    size_t spops_cpu_##name(spops_context *ctx, const struct type *args);
#define SPOPS_SLOT_HOST(returned, name, type, where)                                               \
    returned spops_cpu_##name(const spops_context *ctx, const struct type *args);
#include "core/backend_slots.def"

#endif
