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

// After a plan was measured: say what it needs.
spops_status spops_placement_report(spops_context *ctx, const char *call,
                                    const spops_placement *place, spops_plan_memory *memory);

// After a plan was measured: go on in the caller's block, which must be aligned and large enough;
// `owner` stands before its name in messages.
spops_status spops_placement_enter(spops_context *ctx, const char *call, const char *owner,
                                   void *block, size_t bytes, spops_placement *place);

// Whether a plan made so has to be given its first content, and its scratch.
static inline bool spops_placement_fills(const spops_placement *place)
{
    return place == NULL || (place->carver.base != NULL && !place->attaches);
}

#endif
