// SPDX-License-Identifier: Apache-2.0
// Dtypes and shapes of a call's outputs, from what its inputs have: the expressions of its row, over
// numbers and a caller's symbols.
#include <inttypes.h>
#include <string.h>

#include "boxed/outputs.h"
#include "boxed/values.h"
#include "core/check.h"
#include "core/dtypes.h"

typedef struct asked {
    const spops_boxed_call *b;
    const spops_size_algebra *algebra;
    spops_row_size slots[SPOPS_ROW_MAX_SLOTS];
} asked;

static const spops_row_size none = {SPOPS_SIZE_NONE, 0};

static const spops_tensor *tensor_at(const spops_boxed_call *b, int arg)
{
    return b->row->args[arg].is_plan || b->row->args[arg].is_comm ? NULL : b->args[arg];
}

// ---- Dtypes -------------------------------------------------------------------------------------

enum { NO_DTYPE = -1 };

// That of the first input of just this variable, those first that are always there.
static int bound(const spops_boxed_call *b, int variable)
{
    const spops_row *row = b->row;
    for (int optional = 0; optional < 2; ++optional)
        for (int i = 0; i < row->num_inputs; ++i)
            if (row->args[i].is_optional == (optional == 1) && row->args[i].dtypes == 0 &&
                row->args[i].sums == 0 && row->args[i].variables == 1u << variable &&
                tensor_at(b, i) != NULL)
                return (int)b->matrices[i].dtype;
    return NO_DTYPE;
}

// The same, or that of a variable that it may be.
static int bound_among(const spops_boxed_call *b, uint32_t variables)
{
    for (int v = 0; v < b->row->num_variables; ++v) {
        if ((variables & 1u << v) == 0) continue;
        const int dtype = bound(b, v);
        return dtype != NO_DTYPE ? dtype : bound_among(b, b->row->variables[v].variables);
    }
    return NO_DTYPE;
}

// All that an argument may be, whatever others are.
static uint32_t may_be(const spops_row *row, const spops_row_arg *arg)
{
    uint32_t dtypes = arg->dtypes, variables = arg->variables;
    for (int depth = 0; variables != 0 && depth < SPOPS_ROW_MAX_VARIABLES; ++depth) {
        uint32_t inner = 0;
        for (int v = 0; v < row->num_variables; ++v) {
            if ((variables & 1u << v) == 0) continue;
            dtypes |= row->variables[v].dtypes;
            inner |= row->variables[v].variables;
        }
        variables = inner;
    }
    return dtypes;
}

// Whether the caller may say the dtype of an output, as no input that is always there gives it.
static bool is_free(const spops_row *row, const spops_row_arg *arg)
{
    if (arg->is_optional || arg->sums != 0) return false;
    if (__builtin_popcount(arg->dtypes) + __builtin_popcount(arg->variables) > 1) return true;
    if (arg->variables == 0) return false;
    for (int i = 0; i < row->num_inputs; ++i) {
        const spops_row_arg *in = &row->args[i];
        if (!in->is_plan && !in->is_comm && !in->is_optional && in->dtypes == 0 && in->sums == 0 &&
            in->variables == arg->variables)
            return false;
    }
    return true;
}

static int dtype_of_output(const spops_boxed_call *b, int index)
{
    const spops_row *row = b->row;
    const spops_row_arg *arg = &row->args[index];
    const spops_tensor *given = tensor_at(b, index);
    int dtype;

    if (arg->sums != 0)
        return bound_among(b, arg->sums) == SPOPS_DTYPE_F64 ? SPOPS_DTYPE_F64 : SPOPS_DTYPE_F32;
    if (given != NULL && given->dtype_bits != 0 && is_free(row, arg))
        return (int)b->matrices[index].dtype;
    if (arg->variables == 0) return __builtin_ctz(arg->dtypes);
    dtype = bound_among(b, arg->variables);
    for (int i = 0; dtype == NO_DTYPE && i < row->num_inputs; ++i) { // of the first input
        if (row->args[i].is_plan || row->args[i].is_comm || row->args[i].is_optional) continue;
        const int found = tensor_at(b, i) == NULL ? NO_DTYPE : (int)b->matrices[i].dtype;
        return found >= 0 && (may_be(row, arg) & 1u << found) != 0 ? found : NO_DTYPE;
    }
    return dtype;
}

// ---- Sizes --------------------------------------------------------------------------------------

static spops_row_size size_of(const spops_tensor *t, int32_t d)
{
    const int64_t size = t->shape == NULL ? INT64_MIN : t->shape[d];
    if (size == INT64_MIN) return none;
    return (spops_row_size){size < 0 ? SPOPS_SIZE_SYMBOL : SPOPS_SIZE_NUMBER, size};
}

static spops_row_size number(int64_t value)
{
    return (spops_row_size){SPOPS_SIZE_NUMBER, value};
}

// Rows or columns, as a matrix has them: all but the last dimension are rows, of a tensor in blocks all but
// the first are columns; of pairs of 4 bits there are two.
static spops_row_size dimension(const asked *a, int arg, bool cols)
{
    const spops_tensor *t = tensor_at(a->b, arg);
    const spops_row_arg *row = &a->b->row->args[arg];
    const int32_t dims = t->num_dims;
    const int32_t split = row->blocks >= 0 ? 1 : dims > 1 ? dims - 1 : dims;
    const int32_t begin = cols && !row->is_array ? split : 0;
    const int32_t end = cols || row->is_array ? dims : split;
    const bool is_pairs = end == dims && a->b->matrices[arg].dtype == SPOPS_DTYPE_F4E2M1;
    spops_row_size n = number(is_pairs ? 2 : 1);

    for (int32_t i = begin; i < end; ++i)
        n = i == begin && !is_pairs ? size_of(t, i)
                                    : spops_row_combine(a->algebra, '*', size_of(t, i), n);
    return n;
}

static void put_attributes(asked *a)
{
    const spops_row *row = a->b->row;
    for (int i = 0; i < row->num_attributes; ++i)
        if (row->attributes[i].row->kind != SPOPS_ARGUMENT_FLOAT &&
            row->attributes[i].row->kind < SPOPS_ARGUMENT_INTS)
            a->slots[i] = number(a->b->attributes[i].i);
}

static const spops_plan_value *block_at(const spops_boxed_call *b, int arg)
{
    for (int i = 0; i < b->num_blocks; ++i)
        if (b->blocks[i].arg == arg) return &b->blocks[i].value;
    return NULL;
}

static void put_fields(asked *a)
{
    enum { HEAD = 2 }; // kind, version
    const spops_row *row = a->b->row;
    for (int i = 0; i < row->num_fields; ++i) {
        const int arg = row->fields[i].arg, field = row->fields[i].field;
        const spops_plan_value *block = block_at(a->b, arg);
        if (field < 0) continue;
        if (block != NULL && block->ints != NULL && HEAD + field < block->num_ints)
            a->slots[row->fields[i].slot] = number(block->ints[HEAD + field]);
        else if (a->b->args[arg] != NULL)
            a->slots[row->fields[i].slot] = number(spops_plan_field(a->b->args[arg], field));
    }
}

static bool is_inferred(const spops_row *row, int slot)
{
    for (int i = 0; i < row->num_inferred; ++i)
        if (row->inferred[i].slot == slot) return true;
    return false;
}

// Of inputs that are there; what the row says of a size otherwise comes before those that may be absent.
static void put_sizes(asked *a)
{
    const spops_row *row = a->b->row;
    for (int i = 0; i < row->num_sources; ++i) {
        const spops_row_source *s = &row->sources[i];
        const spops_row_arg *arg = &row->args[s->arg];
        if (arg->is_output || tensor_at(a->b, s->arg) == NULL) continue;
        if (arg->is_optional && is_inferred(row, s->slot)) continue;
        if (a->slots[s->slot].how == SPOPS_SIZE_NONE)
            a->slots[s->slot] = dimension(a, s->arg, s->dim == 1);
    }
    for (int i = 0; i < row->num_inferred; ++i)
        if (a->slots[row->inferred[i].slot].how == SPOPS_SIZE_NONE)
            a->slots[row->inferred[i].slot] =
                spops_row_eval_size(&row->inferred[i].value, a->slots, a->algebra);
}

// The first input whose columns lie in blocks as those of the output do; -1: there is none.
static int like_of(const spops_boxed_call *b, int index)
{
    const spops_row *row = b->row;
    const spops_operator_argument *const *arguments = row->op->arguments;
    if (row->args[index].blocks < 0) return -1;
    for (int i = 0; i < row->num_inputs; ++i)
        if (row->args[i].blocks >= 0 && tensor_at(b, i) != NULL && tensor_at(b, i)->num_dims > 1 &&
            strcmp(arguments[i]->dims[1], arguments[index]->dims[1]) == 0)
            return i;
    return -1;
}

static spops_status put_shape(const asked *a, int index, int like, bool is_pairs, int64_t *shape)
{
    const spops_boxed_call *b = a->b;
    const spops_row_arg *arg = &b->row->args[index];

    for (int d = 0; d < arg->num_dims; ++d) {
        spops_row_size size = spops_row_eval_size(&arg->dims[d], a->slots, a->algebra);
        if (is_pairs && d + 1 == arg->num_dims)
            size = spops_row_combine(a->algebra, '/', size, number(2));
        SPOPS_REQUIRE(b->ctx, size.how != SPOPS_SIZE_NONE,
                      "%s: %s of %s does not follow from what is given", b->row->op->name,
                      b->row->op->arguments[index]->dims[d], arg->name);
        SPOPS_REQUIRE(b->ctx, size.how == SPOPS_SIZE_SYMBOL || size.value >= 0,
                      "%s: %s of %s is %" PRId64 ", expected 0 or more", b->row->op->name,
                      b->row->op->arguments[index]->dims[d], arg->name, size.value);
        shape[d] = size.value;
    }
    for (int d = 1; like >= 0 && d < tensor_at(b, like)->num_dims; ++d) {
        const spops_row_size size = size_of(tensor_at(b, like), d);
        SPOPS_REQUIRE(b->ctx, size.how != SPOPS_SIZE_NONE, "%s: %s has no shape", b->row->op->name,
                      b->row->args[like].name);
        shape[d] = size.value;
    }
    return SPOPS_STATUS_OK;
}

static spops_status put_block(const spops_boxed_call *b, int index, int64_t *shape)
{
    const spops_plan_value *block = block_at(b, index);
    size_t bytes = 0;

    SPOPS_REQUIRE(b->ctx, block != NULL && block->ints != NULL,
                  "%s: %s has no description, expected that of the plan that is wanted",
                  b->row->op->name, b->row->args[index].name);
    SPOPS_TRY(spops_plan_measure(b->ctx, block->ints, block->num_ints, &bytes, NULL));
    shape[0] = (int64_t)((bytes + sizeof(int32_t) - 1) / sizeof(int32_t));
    return SPOPS_STATUS_OK;
}

spops_status spops_boxed_output(const spops_boxed_call *b, int index,
                                const spops_size_algebra *algebra, spops_tensor *out,
                                int64_t *shape)
{
    const spops_row *row = b->row;
    const spops_row_arg *arg = &row->args[index];
    const int like = arg->is_plan ? -1 : like_of(b, index);
    const int dtype = arg->is_plan ? SPOPS_DTYPE_I32 : dtype_of_output(b, index);
    asked a = {.b = b, .algebra = algebra};

    *out = (spops_tensor){.dtype_bits = 0};
    if (dtype >= 0) spops_tensor_set_dtype(out, dtype);
    out->num_dims = arg->is_plan ? 1 : like >= 0 ? tensor_at(b, like)->num_dims : arg->num_dims;
    out->shape = shape;
    if (shape == NULL) return SPOPS_STATUS_OK;
    if (arg->is_plan) return put_block(b, index, shape);
    put_attributes(&a);
    put_fields(&a);
    put_sizes(&a);
    return put_shape(&a, index, like, dtype == SPOPS_DTYPE_F4E2M1, shape);
}
