// SPDX-License-Identifier: Apache-2.0
// Dtypes and shapes of a node's outputs, as spops_call_output says, over numbers or an engine's symbols.
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/node.h"

enum { MAX_SYMBOLS = 1024, DLPACK_HOST = 1 };

// Symbols of an engine by number: the library knows symbol k as -1 - k.
typedef struct symbols {
    const spops_node_algebra *algebra;
    const void *all[MAX_SYMBOLS];
    int32_t num;
} symbols;

static int64_t code_of(symbols *s, const void *symbol)
{
    if (symbol == NULL || s->num == MAX_SYMBOLS) return INT64_MIN;
    s->all[s->num] = symbol;
    return -1 - s->num++;
}

static spops_node_size size_of(const symbols *s, int64_t code)
{
    if (code >= 0) return (spops_node_size){code, NULL};
    assert(-1 - code < s->num);
    return (spops_node_size){0, s->all[-1 - code]};
}

static int64_t combine(void *user, char op, int64_t a, int64_t b)
{
    symbols *s = user;
    if (s->algebra == NULL) return INT64_MIN;
    return code_of(s, s->algebra->combine(s->algebra->user, op, size_of(s, a), size_of(s, b)));
}

// An argument as it is given; an output with the dtype that its node wants, if any.
static void add_tensor(spops_node_call *c, symbols *s, int32_t arg, bool has_sizes)
{
    const spops_node_shapes *from = &c->shapes;
    const bool is_output = arg >= from->node->row->op->num_inputs;
    const spops_node_dtype dtype = is_output ? from->node->output_dtype : from->dtypes[arg];
    spops_tensor *t = &c->tensors[arg];

    *t = (spops_tensor){.device_type = from->device_type == 0 ? DLPACK_HOST : from->device_type,
                        .device_id = from->device};
    if (dtype != SPOPS_NODE_NONE) spops_node_set_dtype(t, dtype);
    if (!is_output) t->num_dims = from->num_dims[arg];
    for (int32_t d = 0; d < t->num_dims && has_sizes; ++d) {
        spops_node_size size = from->dims[arg][d];
        if (dtype == SPOPS_NODE_F4E2M1 && d + 1 == t->num_dims) { // DLPack counts pairs
            if (size.symbol == NULL)
                size.value /= 2;
            else if (from->algebra != NULL)
                size.symbol = from->algebra->combine(from->algebra->user, '/', size,
                                                     (spops_node_size){2, NULL});
        }
        c->sizes[arg][d] = size.symbol == NULL ? size.value : code_of(s, size.symbol);
    }
    if (has_sizes) t->shape = c->sizes[arg];
}

// Asks for output `arg`; its sizes too, where they are wanted.
static spops_status ask(spops_node_shapes *s, int32_t arg, symbols *table, spops_tensor *out,
                        int64_t *shape)
{
    const spops_size_algebra algebra = {combine, table};
    const spops_operator *op = s->node->row->op;
    spops_node_call c;

    table->algebra = s->algebra;
    table->num = 0;
    spops_node_call_begin(&c, s->node, s->device_type, s->device);
    c.shapes = *s;
    c.shapes.given |= 1u << arg;
    for (int32_t i = 0; i < s->node->row->num_args; ++i)
        if ((c.shapes.given >> i & 1) != 0) add_tensor(&c, table, i, shape != NULL);
    spops_node_call_fill(&c);
    return spops_call_output(NULL, op, c.values, c.num_values, arg - op->num_inputs, &algebra, out,
                             shape);
}

spops_node_dtype spops_node_output_dtype(spops_node_shapes *s, int32_t arg)
{
    spops_tensor out;
    symbols table;

    if (ask(s, arg, &table, &out, NULL) != SPOPS_STATUS_OK)
        snprintf(s->error, sizeof s->error, "%s", spops_last_error(NULL));
    else if (out.dtype_bits != 0)
        return spops_node_dtype_of(&out);
    else
        snprintf(s->error, sizeof s->error,
                 "%s: the dtype of %s does not follow from inputs, expected output_dtype",
                 s->node->row->op->name, spops_node_arg(s->node->row, arg)->name);
    return SPOPS_NODE_NONE;
}

int32_t spops_node_output_rank(spops_node_shapes *s, int32_t arg)
{
    spops_tensor out;
    symbols table;
    return ask(s, arg, &table, &out, NULL) == SPOPS_STATUS_OK ? out.num_dims : 0;
}

// The field that describes one of these arguments and is not given; NULL: there is none.
static const char *missing_field(const spops_node *node, uint32_t args)
{
    for (int32_t i = 0; i < node->row->num_fields; ++i) {
        const int32_t arg = node->row->fields[i].arg;
        if (arg >= 0 && (args >> arg & 1) != 0 && node->fields[i].data == NULL)
            return node->row->fields[i].name;
    }
    return NULL;
}

bool spops_node_output_shape(spops_node_shapes *s, int32_t arg)
{
    const spops_operator *op = s->node->row->op;
    const bool is_plan = spops_node_arg(s->node->row, arg)->kind == SPOPS_ARGUMENT_PLAN;
    const char *missing = missing_field(s->node, 1u << arg);
    int64_t shape[SPOPS_CALL_MAX_DIMS];
    spops_tensor out;
    symbols table;

    s->error[0] = '\0';
    if (missing != NULL) {
        snprintf(s->error, sizeof s->error,
                 "%s: %s is not given, expected the description of the plan that is made", op->name,
                 missing);
        return false;
    }
    if (ask(s, arg, &table, &out, shape) != SPOPS_STATUS_OK) {
        missing = missing_field(s->node, s->given);
        if (missing != NULL)
            snprintf(s->error, sizeof s->error, "%s: this field is not given: %s", op->name,
                     missing);
        else if (is_plan)
            snprintf(s->error, sizeof s->error, "%s: %s_ints: %s", op->name,
                     spops_node_arg(s->node->row, arg)->name, spops_last_error(NULL));
        else
            snprintf(s->error, sizeof s->error, "%s", spops_last_error(NULL));
        return false;
    }
    s->num_dims[arg] = out.num_dims;
    for (int32_t d = 0; d < out.num_dims; ++d)
        s->dims[arg][d] = size_of(&table, shape[d]);
    if (spops_node_dtype_of(&out) != SPOPS_NODE_F4E2M1 || out.num_dims == 0) return true;
    spops_node_size *last = &s->dims[arg][out.num_dims - 1]; // pairs
    if (last->symbol == NULL)
        last->value *= 2;
    else
        last->symbol =
            s->algebra->combine(s->algebra->user, '*', *last, (spops_node_size){2, NULL});
    return last->symbol != NULL || last->value >= 0;
}
