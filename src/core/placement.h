// SPDX-License-Identifier: Apache-2.0
// Where the memory of a plan with capacities comes from: the backend's allocator, or one block of
// the caller's (spops_plan_memory). A plan is made by the same code in three ways: measured, which
// leaves a handle without memory; placed in a block; or attached to a block that holds it already.
#ifndef SPOPS_CORE_PLACEMENT_H
#define SPOPS_CORE_PLACEMENT_H

#include "core/memory.h"

// NULL in the calls below stands for the backend's allocator.
typedef struct spops_placement {
    spops_carver carver; // base NULL: measures
    bool attaches;       // the block holds the plan
} spops_placement;

// `bytes` of memory, in the order in which a plan asks for them; NULL while measuring.
spops_status spops_place(spops_context *ctx, spops_placement *place, size_t bytes, void **ptr);

// Give back what spops_place gave; a caller's block stays the caller's.
void spops_displace(spops_context *ctx, bool placed, void *ptr, size_t bytes);

// An option `memory` is right in itself; it is not given, where a call does not reserve.
spops_status spops_check_memory(spops_context *ctx, const char *call,
                                const spops_plan_memory *memory);
spops_status spops_check_no_memory(spops_context *ctx, const char *call,
                                   const spops_plan_memory *memory);

// What every attach begins with: its arguments are there, and out (a plain name), where nothing is
// from here on, whatever fails. It may be called while the stream is captured.
#define SPOPS_BEGIN_ATTACH(ctx, call, description, memory, out)                                    \
    do {                                                                                           \
        if ((out) != NULL && (uintptr_t)(out) % sizeof *(out) == 0) *(out) = NULL;                 \
        SPOPS_TRY(spops_begin_attach((ctx), (call), (description), (memory), (out)));              \
    } while (0)
spops_status spops_begin_attach(spops_context *ctx, const char *call, const void *description,
                                const spops_plan_memory *memory, const void *out);

// After a plan was measured: say what it needs.
spops_status spops_placement_report(spops_context *ctx, const char *call,
                                    const spops_placement *place, spops_plan_memory *memory);

// Bytes used by a plan's blocks up to and with one of `bytes`, where `used` were used before.
static inline size_t spops_placed_bytes(size_t bytes, size_t used)
{
    spops_carver carver = {NULL, used};
    (void)spops_carve(&carver, 1, 1, bytes);
    return carver.used;
}

// After a plan was measured: go on in the caller's block, which must be aligned and large enough.
spops_status spops_placement_enter(spops_context *ctx, const char *call, void *block, size_t bytes,
                                   spops_placement *place);

// Whether a plan made so has to be given its first content, and its scratch.
static inline bool spops_placement_fills(const spops_placement *place)
{
    return place == NULL || (place->carver.base != NULL && !place->attaches);
}

#endif
