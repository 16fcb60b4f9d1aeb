// SPDX-License-Identifier: Apache-2.0
// Plans as bytes and back, for handles of any kind.
#ifndef SPOPS_TESTS_SUPPORT_SAVED_H
#define SPOPS_TESTS_SUPPORT_SAVED_H

#include <string.h>

#include "spops/coords.h"
#include "spops/plan.h"

static inline spops_status saved_put(spops_context *ctx, const void *plan, void *buffer,
                                     size_t capacity, size_t *bytes)
{
    return spops_plan_save(ctx, plan, NULL, 0, buffer, capacity, bytes);
}

// `out` is the address of a handle, which is as a failed call leaves it; NULL: the call is given none.
static inline spops_status saved_get_on(spops_context *ctx, spops_plan_kind kind,
                                        const spops_plan *const *parents, int32_t num_parents,
                                        const void *data, size_t bytes, void *out)
{
    spops_plan *plan = (spops_plan *)ctx; // no plan
    const spops_status status =
        spops_plan_load(ctx, kind, parents, num_parents, data, bytes, out != NULL ? &plan : NULL);
    if (out != NULL) memcpy(out, &plan, sizeof plan);
    return status;
}
static inline spops_status saved_get(spops_context *ctx, spops_plan_kind kind, const void *data,
                                     size_t bytes, void *out)
{
    return saved_get_on(ctx, kind, NULL, 0, data, bytes, out);
}

// Of maps; out NULL: in.
static inline spops_status saved_put_map(spops_context *ctx, const void *map,
                                         const spops_coords *in, const spops_coords *out,
                                         void *buffer, size_t capacity, size_t *bytes)
{
    const spops_plan *const sets[] = {(const spops_plan *)in, (const spops_plan *)out};
    return spops_plan_save(ctx, map, sets, out != NULL ? 2 : 1, buffer, capacity, bytes);
}
static inline spops_status saved_get_map(spops_context *ctx, const spops_coords *in,
                                         const spops_coords *out, const void *data, size_t bytes,
                                         void *map)
{
    const spops_plan *const sets[] = {(const spops_plan *)in, (const spops_plan *)out};
    return saved_get_on(ctx, SPOPS_PLAN_KERNEL_MAP, sets, out != NULL ? 2 : 1, data, bytes, map);
}

#endif
