// SPDX-License-Identifier: Apache-2.0
// Plans of a boxed call that are blocks.
#include "boxed/blocks.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "core/backend.h"

static int output_of(const spops_boxed_call *b)
{
    return b->row->num_args - 1;
}

spops_status spops_blocks_attach(spops_boxed_call *b)
{
    for (int i = 0; i < b->num_blocks; ++i) {
        const int arg = b->blocks[i].arg;
        spops_plan *plan = NULL;
        SPOPS_TRY(spops_plan_lend(b->ctx, b->row->call, &b->blocks[i].value, &plan));
        b->args[arg] = plan;
        if (b->row->args[arg].is_output) b->into = plan;
    }
    return SPOPS_STATUS_OK;
}

// ---- Attributes ---------------------------------------------------------------------------------

static bool is_default(const spops_boxed_call *b, int i)
{
    const spops_operator_argument *a = b->row->attributes[i].row;
    if (a->kind == SPOPS_ARGUMENT_FLOAT) return b->attributes[i].f == a->float_default;
    if (a->kind >= SPOPS_ARGUMENT_INTS) return b->counts[i] == 0;
    return b->attributes[i].i == a->int_default;
}

// Whether an attribute is what the fields from `field` on say.
static bool agrees(const spops_boxed_call *b, int i, const int64_t *field)
{
    const spops_operator_argument *a = b->row->attributes[i].row;
    const double value = b->attributes[i].f;

    switch (a->kind) {
    case SPOPS_ARGUMENT_FLOAT:
        return spops_plan_double(*field) == value ||
               spops_plan_double(*field) == (double)(float)value;
    case SPOPS_ARGUMENT_INTS:
    case SPOPS_ARGUMENT_FLOATS: // 64 bits each
        return memcmp(field, b->attributes[i].list, (size_t)b->counts[i] * sizeof *field) == 0;
    case SPOPS_ARGUMENT_FLAGS: return true; // some stand for others
    default: return b->attributes[i].i == *field;
    }
}

// Attributes that the description has too are left out, or the same.
static spops_status check_attributes(const spops_boxed_call *b)
{
    for (int i = 0; i < b->row->num_attributes; ++i) {
        const char *name = b->row->attributes[i].row->name;
        const int32_t field = spops_plan_field_index(b->into->kind, name, strlen(name));
        SPOPS_REQUIRE(b->ctx,
                      field < 0 || is_default(b, i) || agrees(b, i, b->into->fields + field),
                      "%s: %s is another than in the description of %s, expected the same, or none",
                      b->row->call, name, b->row->args[output_of(b)].name);
    }
    return SPOPS_STATUS_OK;
}

// ---- What a block is filled with ------------------------------------------------------------------

// The arrays of a plan and of its parts into those of a plan like it. Workspaces stay: a part may have
// a smaller one than a plan that stands alone.
static spops_status copy_arrays(const spops_boxed_call *b, const spops_plan *from,
                                const spops_plan *to)
{
    const spops_plan *of = from->parts;

    SPOPS_REQUIRE(b->ctx, from->array_bytes == to->array_bytes,
                  "%s: %s has arrays of %zu bytes, expected %zu", b->row->call,
                  b->row->args[output_of(b)].name, to->array_bytes, from->array_bytes);
    if (from->array_bytes > 0)
        SPOPS_TRY(b->ctx->backend->copy(b->ctx, to->block, from->block, from->array_bytes));
    for (const spops_plan *part = to->parts; part != NULL && of != NULL;
         part = part->next_part, of = of->next_part)
        if (!part->shares) SPOPS_TRY(copy_arrays(b, of, part));
    return SPOPS_STATUS_OK;
}

// Into the block of `to` what `from`, called `name`, holds: plans of one description.
static spops_status copy_plan(const spops_boxed_call *b, const char *name, const spops_plan *from,
                              const spops_plan *to)
{
    const size_t bytes = (size_t)to->ops->num_fields * sizeof *to->fields;

    if (from->shares)
        return spops_fail(b->ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: this part of %s shares the arrays of another part, expected a part "
                          "with arrays of its own, which can be copied",
                          b->row->call, name);
    SPOPS_REQUIRE(
        b->ctx, from->refillable && from->block != NULL,
        "%s: %s was made with exact sizes, expected a plan with capacities, whose block can "
        "be copied",
        b->row->call, name);
    SPOPS_REQUIRE(b->ctx, from->kind == to->kind && memcmp(from->fields, to->fields, bytes) == 0,
                  "%s: %s is another than in the description of %s", b->row->call, name,
                  b->row->args[output_of(b)].name);
    return from->block == to->block ? SPOPS_STATUS_OK : copy_arrays(b, from, to);
}

static spops_status copy_parents(const spops_boxed_call *b)
{
    for (int p = 0; p < spops_plan_num_parents(b->into); ++p) {
        const spops_plan *parent = b->into->parents[p];
        int i = 0;
        if (parent == NULL) continue;
        while (i < b->row->num_inputs && (spops_plan_kind)b->row->args[i].plan_kind != parent->kind)
            ++i;
        SPOPS_REQUIRE(b->ctx, i < b->row->num_inputs,
                      "%s: the description of %s has another parent than the call", b->row->call,
                      b->row->args[output_of(b)].name);
        SPOPS_TRY(copy_plan(b, b->row->args[i].name, b->args[i], parent));
    }
    return SPOPS_STATUS_OK;
}

// The block that is filled overlaps no other.
static spops_status check_apart(const spops_boxed_call *b)
{
    const spops_plan_value *out = &b->blocks[b->num_blocks - 1].value;
    for (int i = 0; i + 1 < b->num_blocks; ++i) {
        const spops_plan_value *in = &b->blocks[i].value;
        const uintptr_t begin = (uintptr_t)out->block, other = (uintptr_t)in->block;
        SPOPS_REQUIRE(b->ctx, begin >= other + in->bytes || other >= begin + out->bytes,
                      "%s: %s overlaps %s, expected separate memory", b->row->call, out->name,
                      in->name);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_blocks_begin(spops_boxed_call *b)
{
    SPOPS_TRY(check_apart(b));
    if (b->row->args[output_of(b)].may_be >= 0) return SPOPS_STATUS_OK; // a part is copied
    SPOPS_TRY(check_attributes(b));
    SPOPS_TRY(copy_parents(b));
    return spops_plan_empty(b->ctx, b->into);
}

spops_status spops_blocks_end(spops_boxed_call *b)
{
    const spops_plan *part = b->made;

    b->made = NULL;
    if (b->row->args[output_of(b)].may_be < 0) {
        assert(part == NULL); // the operator's function fills blocks, or refuses them
        return SPOPS_STATUS_OK;
    }
    return copy_plan(b, b->row->args[b->row->args[output_of(b)].may_be].name, part, b->into);
}

// ---- For the operators' functions -----------------------------------------------------------------

spops_status spops_boxed_counts(const spops_boxed_call *b, int count, int rows,
                                const char *capacity, bool *fills)
{
    const char *name = b->row->args[count].name;
    int32_t field;

    *fills = b->into != NULL;
    SPOPS_REQUIRE(b->ctx, (b->args[count] != NULL) == *fills, "%s: %s is %s", b->row->call, name,
                  *fills ? "NULL, expected how many count, as a block is filled"
                         : "given, expected NULL, as all count where no block is filled");
    if (!*fills) return SPOPS_STATUS_OK;
    field = spops_plan_field_index(b->into->kind, capacity, strlen(capacity));
    assert(field >= 0);
    SPOPS_REQUIRE(b->ctx, b->matrices[rows].rows >= spops_plan_field(b->into, field),
                  "%s: %s has %" PRId64 " rows, expected at least %s = %" PRId64, b->row->call,
                  b->row->args[rows].name, b->matrices[rows].rows, capacity,
                  spops_plan_field(b->into, field));
    return SPOPS_STATUS_OK;
}

spops_status spops_boxed_no_block(const spops_boxed_call *b)
{
    if (b->into == NULL) return SPOPS_STATUS_OK;
    return spops_fail(b->ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: %s is a TENSOR, expected NONE: this operator fills no block",
                      b->row->call, b->row->args[output_of(b)].name);
}
