// SPDX-License-Identifier: Apache-2.0
// What every plan begins with, and what a kind of plan brings: the life cycle of all plans is written
// once, in plan.c. Kinds are the rows of plans.def; the row `kind` has its functions in
// spops_kind_plan_ops, which the kind's own file defines.
#ifndef SPOPS_CORE_PLAN_H
#define SPOPS_CORE_PLAN_H

#include <string.h>

#include "core/placement.h"
#include "spops/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SPOPS_PLAN_MAX_PARENTS = 3 };

typedef struct spops_plan_ops spops_plan_ops;

// The first member of every plan.
struct spops_plan {
    const spops_plan_ops *ops;
    spops_context *ctx; // made it, frees it
    spops_plan_kind kind;
    const spops_plan *parents[SPOPS_PLAN_MAX_PARENTS];
    int64_t *fields; // [ops->num_fields] of the description; behind the handle
    bool refillable; // counts stay where ctx runs, the workspace is kept
    bool placed;     // in the caller's memory
    void *block;     // arrays
    void *workspace; // that they are made in
    size_t block_bytes, workspace_bytes;
    size_t scratch_bytes;
};

struct spops_plan_ops {
    size_t handle_bytes;
    int32_t num_fields;
    // Of what the plan has besides its base: NULL, nothing.
    void (*destroy)(spops_plan *plan);
    size_t (*bytes)(const spops_plan *plan);
    size_t (*scratch_bytes)(const spops_plan *plan); // NULL: the base's
    // NULL: the kind has no description.
    spops_status (*attach)(spops_context *ctx, const char *call, const int64_t *fields,
                           spops_placement *place, spops_plan **out);
};

// A handle of a kind, all zero but its base; NULL (message set on ctx) without memory.
void *spops_plan_alloc(spops_context *ctx, spops_plan_kind kind);

// The handle alone.
void spops_plan_free(spops_plan *plan);

// A field of the description, also of a plan that cannot be described: what checks of calls read.
static inline int64_t spops_plan_field(const spops_plan *plan, int32_t index)
{
    return plan->fields[index];
}

// Which field of a kind is called `name`, of `length` characters; -1: none.
int32_t spops_plan_field_index(spops_plan_kind kind, const char *name, size_t length);

// Doubles as fields.
static inline int64_t spops_plan_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double spops_plan_double(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// n fields from fields[first] on, to and from arrays.
static inline void spops_plan_put_i32s(int64_t *fields, const int32_t *from, int n)
{
    for (int i = 0; i < n; ++i)
        fields[i] = from[i];
}

static inline void spops_plan_put_f64s(int64_t *fields, const double *from, int n)
{
    for (int i = 0; i < n; ++i)
        fields[i] = spops_plan_bits(from[i]);
}

static inline void spops_plan_get_f64s(const int64_t *fields, double *to, int n)
{
    for (int i = 0; i < n; ++i)
        to[i] = spops_plan_double(fields[i]);
}

// The same for numbers that must be an int32; a field that is none is refused by its name.
spops_status spops_plan_get_i32s(spops_context *ctx, const char *call, spops_plan_kind kind,
                                 const int64_t *fields, int32_t first, int32_t n, int32_t *to);

#ifdef __cplusplus
}
#endif

#endif
