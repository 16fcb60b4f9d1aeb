// SPDX-License-Identifier: Apache-2.0
// Plans in a caller's block.
#include "core/placement.h"

#include "core/check.h"

spops_status spops_place(spops_context *ctx, spops_placement *place, size_t bytes, void **ptr)
{
    if (place == NULL) return spops_backend_alloc(ctx, bytes, ptr);
    *ptr = spops_carve(&place->carver, 1, 1, bytes);
    return SPOPS_STATUS_OK;
}

void spops_displace(spops_context *ctx, bool placed, void *ptr, size_t bytes)
{
    if (!placed) spops_backend_free(ctx, ptr, bytes);
}

spops_status spops_check_memory(spops_context *ctx, const char *call,
                                const spops_plan_memory *memory)
{
    SPOPS_REQUIRE(ctx, memory != NULL, "%s: memory is NULL", call);
    SPOPS_TRY(spops_check_aligned(ctx, call, "memory", memory, _Alignof(spops_plan_memory)));
    SPOPS_REQUIRE(ctx, memory->struct_size == sizeof *memory,
                  "%s: memory.struct_size is %zu, expected %zu", call, memory->struct_size,
                  sizeof *memory);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_no_memory(spops_context *ctx, const char *call,
                                   const spops_plan_memory *memory)
{
    SPOPS_REQUIRE(ctx, memory == NULL, "%s: memory is given, expected NULL: reserve takes it",
                  call);
    return SPOPS_STATUS_OK;
}

static spops_status check_measured(spops_context *ctx, const char *call,
                                   const spops_placement *place)
{
    if (place->carver.used != SIZE_MAX) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                      "%s: the plan needs more bytes than an address can count", call);
}

spops_status spops_placement_report(spops_context *ctx, const char *call,
                                    const spops_placement *place, spops_plan_memory *memory)
{
    SPOPS_TRY(check_measured(ctx, call, place));
    memory->bytes = place->carver.used;
    return SPOPS_STATUS_OK;
}

spops_status spops_placement_enter(spops_context *ctx, const char *call, const char *owner,
                                   void *block, size_t bytes, spops_placement *place)
{
    const size_t needed = place->carver.used;
    SPOPS_TRY(check_measured(ctx, call, place));
    SPOPS_REQUIRE(ctx, block != NULL, "%s: %sblock is NULL, expected %zu bytes", call, owner,
                  needed);
    SPOPS_REQUIRE(ctx, (uintptr_t)block % SPOPS_PLAN_ALIGNMENT == 0,
                  "%s: %sblock is at %p, expected an address aligned to %d bytes", call, owner,
                  block, SPOPS_PLAN_ALIGNMENT);
    SPOPS_REQUIRE(ctx, bytes >= needed, "%s: %sbytes is %zu, expected at least %zu", call, owner,
                  bytes, needed);
    place->carver = (spops_carver){block, 0};
    return SPOPS_STATUS_OK;
}
