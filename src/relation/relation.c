// SPDX-License-Identifier: Apache-2.0
// Which rows a relation names: by whichever of its arrays says it.
#include "relation/relation.h"

#include "core/backend.h"
#include "core/check.h"

spops_status spops_relation_of(spops_context *ctx, const char *call, const spops_plan *plan,
                               spops_relation *relation)
{
    SPOPS_TRY(spops_plan_check(ctx, call, "plan", plan));
    *relation = (spops_relation){0};
    if (plan->ops->relation == NULL)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: plan has no rows that meet others, expected a relation", call);
    plan->ops->relation(plan, relation);
    return SPOPS_STATUS_OK;
}

void spops_relation_of_part(const spops_plan *plan, spops_relation *relation)
{
    const spops_plan *of = NULL;
    for (const spops_plan *part = plan->parts; part != NULL && of == NULL; part = part->next_part)
        if (part->ops->relation != NULL) of = part;
    for (int i = 0; i < SPOPS_PLAN_MAX_PARENTS && of == NULL; ++i)
        if (plan->parents[i] != NULL && plan->parents[i]->ops->relation != NULL)
            of = plan->parents[i];
    if (of != NULL) of->ops->relation(of, relation);
}

spops_status spops_relation_mark_rows(spops_context *ctx, const char *call, const spops_relation *r,
                                      int side, uint8_t *rows)
{
    const spops_relation_side *own = &r->sides[side], *other = &r->sides[1 - side];
    spops_relation_rows_args args = {.rows = rows, .max_rows = own->max_rows};

    SPOPS_REQUIRE_SLOT(ctx, call, relation_rows);
    args.entries.most = r->max_terms;
    args.entries.each = 1;
    if (own->by_row.offsets != NULL) {
        args.offsets = own->by_row.offsets;
    } else if (own->by_key.offsets != NULL) {
        args.entries.num = own->by_key.offsets + r->num_keys;
        args.entries.rows = own->by_key.rows;
        args.entries.stride = own->by_key.stride;
    } else if (other->by_row.offsets != NULL) {
        args.entries.num = other->by_row.offsets + other->max_rows;
        args.entries.rows = other->by_row.rows;
        args.entries.stride = other->by_row.stride;
    } else if (own->table != NULL) {
        args.table = own->table;
        args.table_stride = own->table_stride;
        args.num_rows = own->num_rows;
    } else if (other->table != NULL) {
        args.entries.num = other->num_rows;
        args.entries.most = other->max_rows * other->table_stride;
        args.entries.each = other->table_stride;
        args.entries.rows = other->table;
        args.entries.stride = 1;
    } else {
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: plan keeps nothing of the rows that it was made from", call);
    }
    if (own->max_rows == 0) return SPOPS_STATUS_OK;
    return ctx->backend->relation_rows(ctx, &args);
}
