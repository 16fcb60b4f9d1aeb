// SPDX-License-Identifier: Apache-2.0
// The life cycle of plans, once for all kinds.
#include "core/plan.h"

#include <stdlib.h>

#include "core/check.h"

#define SPOPS_PLAN(KIND, kind, version, fields, parents)                                           \
    extern const spops_plan_ops spops_##kind##_plan_ops;
#include "core/plans.def"
#undef SPOPS_PLAN

static const spops_plan_kind_info infos[] = {
#define SPOPS_PLAN(KIND, kind, version, fields, parents)                                           \
    {sizeof(spops_plan_kind_info), SPOPS_PLAN_##KIND, version, #kind, fields, parents},
#include "core/plans.def"
#undef SPOPS_PLAN
};

static const spops_plan_ops *const all_ops[] = {
#define SPOPS_PLAN(KIND, kind, version, fields, parents) &spops_##kind##_plan_ops,
#include "core/plans.def"
#undef SPOPS_PLAN
};

enum { NUM_KINDS = sizeof infos / sizeof infos[0], NUM_HEADS = 2 }; // kind and version

// ---- Kinds --------------------------------------------------------------------------------------

const spops_plan_kind_info *spops_plan_kinds(int32_t *num)
{
    if (num != NULL) *num = NUM_KINDS;
    return infos;
}

spops_plan_kind spops_plan_get_kind(const spops_plan *plan)
{
    return plan == NULL ? SPOPS_PLAN_NONE : plan->kind;
}

static const spops_plan_kind_info *info_of(spops_plan_kind kind)
{
    return &infos[(int)kind - 1];
}

// The field at *text: its name's length, and how many ints it takes. *text goes on to the next one.
static size_t next_field(const char **text, int32_t *count)
{
    const char *at = *text;
    const size_t length = strcspn(at, "[: ");
    *count = at[length] == '[' ? (int32_t)strtol(at + length + 1, NULL, 10) : 1;
    at += strcspn(at, " ");
    *text = at + (*at == ' ');
    return length;
}

int32_t spops_plan_field_index(spops_plan_kind kind, const char *name, size_t length)
{
    const char *at = info_of(kind)->fields;
    int32_t index = 0, count;
    while (*at != '\0') {
        const char *field = at;
        if (next_field(&at, &count) == length && memcmp(field, name, length) == 0) return index;
        index += count;
    }
    return -1;
}

spops_status spops_plan_get_i32s(spops_context *ctx, const char *call, spops_plan_kind kind,
                                 const int64_t *fields, int32_t first, int32_t n, int32_t *to)
{
    for (int32_t i = first; i < first + n; ++i) {
        const char *at = info_of(kind)->fields, *field = at;
        int32_t index = 0, count = 0;
        size_t length = 0;
        to[i - first] = (int32_t)fields[i];
        if (fields[i] == to[i - first]) continue;
        for (; index <= i; index += count) {
            field = at;
            length = next_field(&at, &count);
        }
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: ints[%" PRId32 "] (%.*s) is %" PRId64 ", expected 32 bits", call,
                          i + NUM_HEADS, (int)length, field, fields[i]);
    }
    return SPOPS_STATUS_OK;
}

// ---- Handles ------------------------------------------------------------------------------------

static size_t handle_bytes(const spops_plan_ops *ops)
{
    return ops->handle_bytes + (size_t)ops->num_fields * sizeof(int64_t);
}

void *spops_plan_alloc(spops_context *ctx, spops_plan_kind kind)
{
    const spops_plan_ops *ops = all_ops[(int)kind - 1];
    char *memory = spops_host_alloc(ctx, 1, handle_bytes(ops));
    spops_plan *plan = (spops_plan *)(void *)memory;
    if (plan == NULL) return NULL;
    plan->ops = ops;
    plan->ctx = ctx;
    plan->kind = kind;
    plan->fields = (int64_t *)(void *)(memory + ops->handle_bytes);
    return plan;
}

void spops_plan_free(spops_plan *plan)
{
    spops_host_free(plan->ctx, plan, 1, handle_bytes(plan->ops));
}

void spops_plan_destroy(spops_plan *plan)
{
    spops_context *ctx;
    if (plan == NULL) return;
    ctx = plan->ctx;
    if (plan->ops->destroy != NULL) plan->ops->destroy(plan);
    if (plan->block != NULL && !plan->placed) (void)ctx->backend->wait(ctx);
    spops_displace(ctx, plan->placed, plan->workspace, plan->workspace_bytes);
    spops_displace(ctx, plan->placed, plan->block, plan->block_bytes);
    spops_plan_free(plan);
}

size_t spops_plan_bytes(const spops_plan *plan)
{
    if (plan == NULL) return 0;
    return plan->block_bytes + plan->workspace_bytes +
           (plan->ops->bytes == NULL ? 0 : plan->ops->bytes(plan));
}

size_t spops_plan_scratch_bytes(const spops_plan *plan)
{
    if (plan == NULL) return 0;
    return plan->ops->scratch_bytes == NULL ? plan->scratch_bytes : plan->ops->scratch_bytes(plan);
}

// ---- Plans as values ----------------------------------------------------------------------------

spops_status spops_plan_describe(spops_context *ctx, const spops_plan *plan, int64_t *ints,
                                 int32_t max_ints, int32_t *num_ints)
{
    static const char call[] = "plan_describe";
    int32_t num;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_REQUIRE(ctx, plan != NULL, "%s: plan is NULL", call);
    SPOPS_TRY(spops_check_object(ctx, call, "num_ints", num_ints, sizeof *num_ints));
    SPOPS_TRY(spops_check_home(ctx, call, "plan", plan->ctx));
    if (plan->ops->attach == NULL)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: plans of kind %s have none", call,
                          info_of(plan->kind)->name);
    SPOPS_REQUIRE(ctx, plan->refillable, "%s: the plan was not made by %s_reserve", call,
                  info_of(plan->kind)->name);
    num = NUM_HEADS + plan->ops->num_fields;
    if (ints != NULL) {
        SPOPS_TRY(spops_check_aligned(ctx, call, "ints", ints, sizeof *ints));
        SPOPS_REQUIRE(ctx, max_ints >= num,
                      "%s: max_ints is %" PRId32 ", expected at least %" PRId32, call, max_ints,
                      num);
        ints[0] = plan->kind;
        ints[1] = info_of(plan->kind)->version;
        memcpy(ints + NUM_HEADS, plan->fields,
               (size_t)plan->ops->num_fields * sizeof *plan->fields);
    }
    *num_ints = num;
    return SPOPS_STATUS_OK;
}

// A description is one of this library's kinds, whole.
static spops_status check_ints(spops_context *ctx, const char *call, const int64_t *ints,
                               int32_t num_ints, const spops_plan_ops **ops)
{
    int32_t num;

    SPOPS_TRY(spops_check_object(ctx, call, "ints", ints, sizeof *ints));
    SPOPS_REQUIRE(ctx, num_ints >= NUM_HEADS, "%s: num_ints is %" PRId32 ", expected at least %d",
                  call, num_ints, (int)NUM_HEADS);
    SPOPS_REQUIRE(ctx, ints[0] >= 1 && ints[0] <= NUM_KINDS,
                  "%s: ints[0] (kind) is %" PRId64 ", expected 1 to %d", call, ints[0],
                  (int)NUM_KINDS);
    SPOPS_REQUIRE(ctx, ints[1] == infos[ints[0] - 1].version,
                  "%s: ints[1] (version) is %" PRId64 ", expected %" PRId32 " of kind %s", call,
                  ints[1], infos[ints[0] - 1].version, infos[ints[0] - 1].name);
    *ops = all_ops[ints[0] - 1];
    if ((*ops)->attach == NULL)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: plans of kind %s have no description", call,
                          infos[ints[0] - 1].name);
    num = NUM_HEADS + (*ops)->num_fields;
    SPOPS_REQUIRE(ctx, num_ints == num,
                  "%s: num_ints is %" PRId32 ", expected %" PRId32 " of kind %s", call, num_ints,
                  num, infos[ints[0] - 1].name);
    return SPOPS_STATUS_OK;
}

// The plan without memory.
static spops_status measure(spops_context *ctx, const char *call, const spops_plan_ops *ops,
                            const int64_t *fields, spops_placement *place, size_t *scratch_bytes)
{
    spops_plan *plan = NULL;
    *place = (spops_placement){{NULL, 0}, false};
    SPOPS_TRY(ops->attach(ctx, call, fields, place, &plan));
    if (scratch_bytes != NULL) *scratch_bytes = spops_plan_scratch_bytes(plan);
    spops_plan_destroy(plan);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_measure(spops_context *ctx, const int64_t *ints, int32_t num_ints,
                                size_t *bytes, size_t *scratch_bytes)
{
    static const char call[] = "plan_measure";
    const spops_plan_ops *ops = NULL;
    spops_placement place;
    size_t scratch;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    ctx->call = call;
    SPOPS_TRY(spops_check_aligned(ctx, call, "bytes", bytes, sizeof *bytes));
    SPOPS_TRY(spops_check_aligned(ctx, call, "scratch_bytes", scratch_bytes, sizeof *bytes));
    SPOPS_TRY(check_ints(ctx, call, ints, num_ints, &ops));
    SPOPS_TRY(measure(ctx, call, ops, ints + NUM_HEADS, &place, &scratch));
    if (place.carver.used == SIZE_MAX)
        return spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                          "%s: the plan needs more bytes than an address can count", call);
    if (bytes != NULL) *bytes = place.carver.used;
    if (scratch_bytes != NULL) *scratch_bytes = scratch;
    return SPOPS_STATUS_OK;
}

static spops_status check_parents(spops_context *ctx, const char *call, spops_plan_kind kind,
                                  const spops_plan *const *parents, int32_t num_parents)
{
    (void)parents;
    SPOPS_REQUIRE(ctx, num_parents == 0, "%s: num_parents is %" PRId32 ", expected 0 of kind %s",
                  call, num_parents, info_of(kind)->name);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_attach(spops_context *ctx, const int64_t *ints, int32_t num_ints,
                               void *block, size_t bytes, const spops_plan *const *parents,
                               int32_t num_parents, spops_plan **plan)
{
    static const char call[] = "plan_attach";
    const spops_plan_ops *ops = NULL;
    spops_placement place;

    if (plan != NULL && (uintptr_t)plan % sizeof *plan == 0) *plan = NULL;
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    ctx->call = call;
    SPOPS_TRY(spops_check_object(ctx, call, "plan", plan, sizeof *plan));
    SPOPS_TRY(check_ints(ctx, call, ints, num_ints, &ops));
    SPOPS_TRY(check_parents(ctx, call, (spops_plan_kind)ints[0], parents, num_parents));
    SPOPS_TRY(measure(ctx, call, ops, ints + NUM_HEADS, &place, NULL));
    SPOPS_TRY(spops_placement_enter(ctx, call, "", block, bytes, &place));
    place.attaches = true;
    return ops->attach(ctx, call, ints + NUM_HEADS, &place, plan);
}
