// SPDX-License-Identifier: Apache-2.0
// Plans as values: descriptions with those of the plans that they stand on, in one block, and handles
// on such blocks that a context keeps from call to call.
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/plan.h"

enum {
    MAX_LENT = 64,   // handles that a context keeps
    MOST_IN_CALL = 8 // the latest ones may serve the call that is being made: they stay
};

// ---- Trees --------------------------------------------------------------------------------------

int32_t spops_plan_num_parents(const spops_plan *plan)
{
    const char *at = spops_plan_kinds(NULL)[plan->kind - 1].parents;
    int32_t num = 0;
    spops_plan_kind kind;
    bool optional;
    for (; *at != '\0'; ++num)
        at = spops_plan_next_parent(at, &kind, &optional);
    return num;
}

// A plan with its parents, which are its own here.
static void destroy_whole(spops_plan *plan)
{
    const spops_plan *parents[SPOPS_PLAN_MAX_PARENTS] = {NULL};
    int32_t num;

    if (plan == NULL) return;
    num = spops_plan_num_parents(plan);
    memcpy(parents, plan->parents, (size_t)num * sizeof *parents);
    spops_plan_destroy(plan);
    for (int32_t i = 0; i < num; ++i)
        destroy_whole((spops_plan *)(uintptr_t)parents[i]);
}

// The plan at ints, which takes `used` of them, and its parents behind it; without memory.
static spops_status read_whole(spops_context *ctx, const char *call, const int64_t *ints,
                               int32_t num_ints, int32_t *used, spops_plan **out)
{
    const int32_t own = num_ints > 0 ? spops_plan_num_ints(ints[0]) : 0;
    spops_status status = SPOPS_STATUS_OK;
    spops_plan *plan = NULL;
    const char *at;

    SPOPS_TRY(
        spops_plan_read_ints(ctx, call, ints, own > 0 && own < num_ints ? own : num_ints, &plan));
    *used = own;
    at = spops_plan_kinds(NULL)[plan->kind - 1].parents;
    for (int32_t i = 0; *at != '\0'; ++i) {
        const int length = (int)strcspn(at, ":?");
        const char *name = at;
        spops_plan_kind kind;
        bool optional;
        spops_plan *parent = NULL;
        int32_t n = 1;
        at = spops_plan_next_parent(at, &kind, &optional);
        if (*used >= num_ints) {
            status = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                                "%s: num_ints is %" PRId32
                                ", expected more: the description of its parent %.*s",
                                call, num_ints, length, name);
            goto fail;
        }
        if (ints[*used] != SPOPS_PLAN_NONE || !optional) {
            SPOPS_TRY_GOTO(read_whole(ctx, call, ints + *used, num_ints - *used, &n, &parent),
                           status, fail);
        }
        plan->parents[i] = parent;
        *used += n;
    }
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    destroy_whole(plan);
    return status;
}

static spops_status read_all(spops_context *ctx, const char *call, const int64_t *ints,
                             int32_t num_ints, spops_plan **out)
{
    int32_t used = 0;

    SPOPS_TRY(read_whole(ctx, call, ints, num_ints, &used, out));
    if (used == num_ints) return SPOPS_STATUS_OK;
    destroy_whole(*out);
    *out = NULL;
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: num_ints is %" PRId32 ", expected %" PRId32, call, num_ints, used);
}

// Bytes of the plan's own block; they stay what they were when it was placed first.
static spops_status measure_own(spops_context *ctx, const char *call, spops_plan *plan,
                                size_t *bytes)
{
    *bytes = plan->block_bytes;
    return *bytes > 0 ? SPOPS_STATUS_OK : spops_plan_measure_block(ctx, call, plan, bytes);
}

// The plan's own block, then, each from a multiple of SPOPS_ALIGNMENT on, those of its parents.
static spops_status measure_whole(spops_context *ctx, const char *call, spops_plan *plan,
                                  size_t *bytes)
{
    const int32_t num = spops_plan_num_parents(plan);

    SPOPS_TRY(measure_own(ctx, call, plan, bytes));
    for (int32_t i = 0; i < num; ++i) {
        size_t more = 0;
        if (plan->parents[i] == NULL) continue;
        SPOPS_TRY(measure_whole(ctx, call, (spops_plan *)(uintptr_t)plan->parents[i], &more));
        *bytes = spops_add_bytes(spops_align_bytes(*bytes), more);
    }
    return SPOPS_STATUS_OK;
}

// In a block that is large enough; *used is how much of it.
static spops_status place_whole(spops_context *ctx, const char *call, spops_plan *plan, char *block,
                                size_t *used)
{
    const int32_t num = spops_plan_num_parents(plan);
    const spops_plan *parents[SPOPS_PLAN_MAX_PARENTS] = {NULL};
    spops_carver carver = {block, 0};
    size_t own = 0;

    SPOPS_TRY(measure_own(ctx, call, plan, &own));
    *used = own;
    for (int32_t i = 0; i < num; ++i) {
        size_t more = 0;
        parents[i] = plan->parents[i];
        if (parents[i] == NULL) continue;
        *used = spops_align_bytes(*used);
        SPOPS_TRY(
            place_whole(ctx, call, (spops_plan *)(uintptr_t)parents[i], block + *used, &more));
        *used += more;
    }
    SPOPS_TRY(spops_plan_take_parents(ctx, call, plan, parents, num));
    plan->placed = true;
    plan->block = block;
    plan->block_bytes = own;
    spops_plan_carve(plan, &carver);
    return SPOPS_STATUS_OK;
}

static spops_status prepare_whole(spops_context *ctx, spops_plan *plan)
{
    const int32_t num = spops_plan_num_parents(plan);
    for (int32_t i = 0; i < num; ++i)
        if (plan->parents[i] != NULL)
            SPOPS_TRY(prepare_whole(ctx, (spops_plan *)(uintptr_t)plan->parents[i]));
    return spops_plan_prepare(ctx, plan);
}

spops_status spops_plan_measure_whole(spops_context *ctx, const char *call, const int64_t *ints,
                                      int32_t num_ints, size_t *bytes, size_t *scratch_bytes)
{
    spops_plan *plan = NULL;
    spops_status status;
    size_t measured = 0;

    SPOPS_TRY(read_all(ctx, call, ints, num_ints, &plan));
    status = measure_whole(ctx, call, plan, &measured);
    if (status == SPOPS_STATUS_OK && bytes != NULL) *bytes = measured;
    if (status == SPOPS_STATUS_OK && scratch_bytes != NULL)
        *scratch_bytes = spops_plan_scratch_bytes(plan);
    destroy_whole(plan);
    return status;
}

spops_status spops_plan_read_value(spops_context *ctx, const char *call,
                                   const spops_plan_value *value, spops_plan **out)
{
    spops_status status;
    size_t bytes;
    char described[96];

    snprintf(described, sizeof described, "%s: %s", call, value->name); // whose ints messages name
    SPOPS_TRY(read_all(ctx, described, value->ints, value->num_ints, out));
    status = measure_whole(ctx, call, *out, &bytes);
    if (status == SPOPS_STATUS_OK) return status;
    destroy_whole(*out);
    *out = NULL;
    return status;
}

void spops_plan_destroy_value(spops_plan *plan)
{
    destroy_whole(plan);
}

// ---- Handles that a context keeps -----------------------------------------------------------------

typedef struct lent_plan {
    spops_plan *plan;
    void *block;
    size_t bytes; // that it takes
    int64_t *ints;
    int32_t num_ints;
    uint64_t hash; // of ints
    uint64_t last; // call that it served
} lent_plan;

typedef struct lent_plans {
    spops_context_part part;
    uint64_t clock;
    int32_t num, next; // next: behind the last that was found, as calls come in turns
    lent_plan plans[MAX_LENT];
} lent_plans;

static void end_lent(spops_context *ctx, lent_plan *l)
{
    destroy_whole(l->plan);
    spops_host_free(ctx, l->ints, (size_t)l->num_ints, sizeof *l->ints);
}

static void destroy_lent(spops_context *ctx, spops_context_part *part)
{
    lent_plans *all = (lent_plans *)(void *)part;
    for (int32_t i = 0; i < all->num; ++i)
        end_lent(ctx, &all->plans[i]);
    spops_host_free(ctx, all, 1, sizeof *all);
    ctx->lent_plans = NULL;
}

static uint64_t hash_of(const spops_plan_value *v)
{
    uint64_t hash = (uint64_t)v->num_ints;
    for (int32_t i = 0; i < v->num_ints; ++i)
        hash = (hash ^ (uint64_t)v->ints[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return hash;
}

static bool is_described(const lent_plan *l, const spops_plan_value *v)
{
    return l->num_ints == v->num_ints &&
           memcmp(l->ints, v->ints, (size_t)v->num_ints * sizeof *v->ints) == 0;
}

static lent_plan *find_lent(lent_plans *all, const spops_plan_value *v)
{
    for (int32_t i = 0; i < all->num; ++i) {
        const int32_t at = all->next < all->num ? all->next : 0;
        lent_plan *l = &all->plans[at];
        all->next = at + 1;
        if (l->block == v->block && is_described(l, v) && l->bytes <= v->bytes) return l;
    }
    return NULL;
}

// One that may go: of this description, else of any, not used for longest.
static lent_plan *find_oldest(lent_plans *all, const spops_plan_value *v, bool any)
{
    const uint64_t hash = hash_of(v);
    lent_plan *oldest = NULL;
    for (int32_t i = 0; i < all->num; ++i) {
        lent_plan *l = &all->plans[i];
        if (l->last + MOST_IN_CALL > all->clock) continue;
        if (oldest != NULL && l->last >= oldest->last) continue;
        if (any || (l->hash == hash && is_described(l, v))) oldest = l;
    }
    return oldest;
}

static spops_status check_block(spops_context *ctx, const char *call, const spops_plan_value *v,
                                size_t needed)
{
    SPOPS_REQUIRE(ctx, v->bytes >= needed, "%s: %s has %zu bytes, expected at least %zu", call,
                  v->name, v->bytes, needed);
    SPOPS_REQUIRE(ctx, v->block != NULL || needed == 0, "%s: %s is NULL", call, v->name);
    return spops_check_aligned(ctx, call, v->name, v->block, SPOPS_PLAN_ALIGNMENT);
}

// A handle that is new, in `at`.
static spops_status make_lent(spops_context *ctx, const char *call, const spops_plan_value *v,
                              lent_plan *at)
{
    lent_plan l = {.block = v->block, .num_ints = v->num_ints, .hash = hash_of(v)};
    spops_status status = SPOPS_STATUS_OK;

    SPOPS_TRY(spops_plan_read_value(ctx, call, v, &l.plan));
    SPOPS_TRY_GOTO(measure_whole(ctx, call, l.plan, &l.bytes), status, fail);
    SPOPS_TRY_GOTO(check_block(ctx, call, v, l.bytes), status, fail);
    SPOPS_TRY_GOTO(place_whole(ctx, call, l.plan, v->block, &l.bytes), status, fail);
    SPOPS_TRY_GOTO(prepare_whole(ctx, l.plan), status, fail);
    l.ints = spops_host_alloc(ctx, (size_t)v->num_ints, sizeof *l.ints);
    if (l.ints == NULL) {
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        goto fail;
    }
    memcpy(l.ints, v->ints, (size_t)v->num_ints * sizeof *l.ints);
    *at = l;
    return SPOPS_STATUS_OK;

fail:
    destroy_whole(l.plan);
    return status;
}

static spops_status find_or_make(spops_context *ctx, const char *call, const spops_plan_value *v,
                                 lent_plans *all, lent_plan **out)
{
    lent_plan made, *at;

    *out = find_lent(all, v);
    if (*out != NULL) return SPOPS_STATUS_OK;
    at = all->num < MAX_LENT ? NULL : find_oldest(all, v, false);
    if (at != NULL) { // only the place differs: nothing is allocated
        SPOPS_TRY(check_block(ctx, call, v, at->bytes));
        at->block = NULL; // until all of it is elsewhere
        SPOPS_TRY(place_whole(ctx, call, at->plan, v->block, &at->bytes));
        at->block = v->block;
        *out = at;
        return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(make_lent(ctx, call, v, &made));
    at = all->num < MAX_LENT ? &all->plans[all->num++] : find_oldest(all, v, true);
    if (at->plan != NULL) end_lent(ctx, at);
    *at = made;
    *out = at;
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_lend(spops_context *ctx, const char *call, const spops_plan_value *value,
                             spops_plan **out)
{
    lent_plans *all = (lent_plans *)(void *)ctx->lent_plans;
    lent_plan *l = NULL;

    ctx->call = call;
    if (all == NULL) {
        all = spops_host_alloc(ctx, 1, sizeof *all);
        if (all == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        all->part.destroy = destroy_lent;
        ctx->lent_plans = &all->part;
    }
    SPOPS_TRY(find_or_make(ctx, call, value, all, &l));
    l->last = ++all->clock;
    *out = l->plan;
    return SPOPS_STATUS_OK;
}
