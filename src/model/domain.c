// SPDX-License-Identifier: Apache-2.0
// Graphs of this library's operators: every node is a row of the list, called by way of spops/call.h, as
// ONNX Runtime runs them (docs/onnx.md). The file gives the dtype and the shape of every tensor, and the
// description of every plan, whose block the model owns.
#include <inttypes.h>
#include <string.h>

#include "core/status.h"
#include "model/model.h"

enum {
    MAX_ARGUMENTS = 48,
    MAX_VALUES = 128,
    MAX_PLANS = 56 // a context keeps 64 handles on blocks
};

// The arguments of a node, as spops_call takes them.
struct spops_model_call {
    int32_t num_values;
    spops_value values[MAX_VALUES], ret;
    spops_tensor tensors[MAX_VALUES];
    int64_t lengths[MAX_VALUES];   // of lists
    int32_t owners[MAX_ARGUMENTS]; // tensor i is that of this value
    int32_t num_arguments;
    // Outputs that a call may leave parts of alone: what they begin with; -1: zeros.
    int32_t num_begun, begun[MAX_ARGUMENTS], begins[MAX_ARGUMENTS];
};

#define REFUSE(m, node, ...) spops_model_refuse((m), SPOPS_STATUS_CORRUPT_DATA, (node), __VA_ARGS__)

// ---- Values ---------------------------------------------------------------------------------------

static const struct {
    int32_t onnx;
    spops_dtype dtype;
    uint8_t code, bits; // DLPack's
} dtypes[] = {
    {SPOPS_ONNX_FLOAT, SPOPS_DTYPE_F32, 2, 32},     {SPOPS_ONNX_FLOAT16, SPOPS_DTYPE_F16, 2, 16},
    {SPOPS_ONNX_BFLOAT16, SPOPS_DTYPE_BF16, 4, 16}, {SPOPS_ONNX_DOUBLE, SPOPS_DTYPE_F64, 2, 64},
    {SPOPS_ONNX_INT8, SPOPS_DTYPE_I8, 0, 8},        {SPOPS_ONNX_INT32, SPOPS_DTYPE_I32, 0, 32},
    {SPOPS_ONNX_INT64, SPOPS_DTYPE_I64, 0, 64},     {SPOPS_ONNX_UINT8, SPOPS_MODEL_U8, 1, 8},
    {SPOPS_ONNX_BOOL, SPOPS_MODEL_U8, 1, 8}};
enum { NUM_DTYPES = sizeof dtypes / sizeof *dtypes };

static int find_dtype(int32_t onnx, spops_dtype dtype)
{
    for (int i = 0; i < NUM_DTYPES; ++i)
        if (onnx > 0 ? dtypes[i].onnx == onnx : dtypes[i].dtype == dtype) return i;
    return -1;
}

// A tensor of the file's dtype and shape. bytes of it are at most 2^40.
static spops_status add_tensor(spops_model *m, int32_t node, spops_span name,
                               const spops_onnx_tensor *t, int32_t *index)
{
    spops_model_value v = {.set = -1, .parent = -1};
    int64_t bytes = 1;

    if (spops_span_bytes(name) == 0) return REFUSE(m, node, "a tensor has no name");
    if (spops_model_find_value(m, name) >= 0)
        return REFUSE(m, node, "'%.*s' is there already", (int)spops_span_bytes(name),
                      (const char *)name.at);
    if (t == NULL || !t->has_shape || find_dtype(t->type, SPOPS_DTYPE_F32) < 0 || t->type == 0)
        return REFUSE(m, node, "'%.*s' has no shape in the file, or a data_type that is not read",
                      (int)spops_span_bytes(name), (const char *)name.at);
    v.dtype = dtypes[find_dtype(t->type, SPOPS_DTYPE_F32)].dtype;
    bytes = dtypes[find_dtype(t->type, SPOPS_DTYPE_F32)].bits / 8;
    v.num_dims = t->num_dims;
    for (int32_t i = 0; i < t->num_dims; ++i) {
        v.shape[i] = t->dims[i];
        if (t->dims[i] < 0 || t->dims[i] > INT32_MAX ||
            __builtin_mul_overflow(bytes, t->dims[i] > 0 ? t->dims[i] : 1, &bytes) ||
            bytes > (int64_t)1 << 40)
            return REFUSE(m, node,
                          "dimension %" PRId32 " of '%.*s' is %" PRId64
                          ", expected a number, and 2^40 bytes at most; byte %zu",
                          i, (int)spops_span_bytes(name), (const char *)name.at, t->dims[i],
                          t->offset);
    }
    if (m->values.num >= SPOPS_ONNX_MAX_VALUES)
        return REFUSE(m, node, "more than %d values", SPOPS_ONNX_MAX_VALUES);
    char *text = spops_model_text(m, name);
    spops_model_value *added = text == NULL ? NULL : spops_model_add(m, &m->values, sizeof *added);
    if (added == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    v.name = text;
    *added = v;
    *index = m->values.num - 1;
    return SPOPS_STATUS_OK;
}

static size_t tensor_bytes(const spops_model_value *v)
{
    size_t bytes = dtypes[find_dtype(0, v->dtype)].bits / 8;
    for (int32_t i = 0; i < v->num_dims; ++i)
        bytes *= (size_t)v->shape[i];
    return bytes;
}

static spops_status list(spops_model *m, spops_model_list *to, int32_t index)
{
    int32_t *listed = spops_model_add(m, to, sizeof *listed);
    if (listed == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    *listed = index;
    return SPOPS_STATUS_OK;
}

static spops_status read_inputs(spops_model *m)
{
    const spops_onnx *onnx = m->onnx;
    int32_t index = -1;

    for (int32_t i = 0; i < onnx->num_initializers; ++i) {
        const spops_onnx_tensor *t = &onnx->initializers[i];
        SPOPS_TRY(add_tensor(m, -1, t->name, t, &index));
        spops_model_value *v = spops_model_value_at(m, index);
        v->bytes = tensor_bytes(v);
        v->is_pinned = true;
        v->init = t->data;
        if (v->bytes != spops_span_bytes(t->data))
            return REFUSE(m, -1, "initializer '%s' has %zu bytes, expected %zu; byte %zu", v->name,
                          spops_span_bytes(t->data), v->bytes, t->offset);
    }
    for (int32_t i = 0; i < onnx->num_inputs; ++i) {
        const spops_onnx_tensor *t = &onnx->inputs[i];
        if (spops_onnx_find_tensor(onnx->initializers, onnx->num_initializers, t->name) != NULL)
            continue;
        SPOPS_TRY(add_tensor(m, -1, t->name, t, &index));
        spops_model_value *v = spops_model_value_at(m, index);
        v->is_input = v->is_pinned = true;
        if (v->dtype == SPOPS_MODEL_U8)
            return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, -1,
                                      "input '%s' is of 8 bits without a sign", v->name);
        SPOPS_TRY(list(m, &m->inputs, index));
    }
    return SPOPS_STATUS_OK;
}

static spops_status read_outputs(spops_model *m)
{
    const spops_onnx *onnx = m->onnx;
    for (int32_t i = 0; i < onnx->num_outputs; ++i) {
        const int32_t index = spops_model_find_value(m, onnx->outputs[i].name);
        spops_model_value *v = index < 0 ? NULL : spops_model_value_at(m, index);
        if (v == NULL || v->is_input || v->is_plan || spops_span_bytes(v->init) > 0 ||
            v->dtype == SPOPS_MODEL_U8)
            return REFUSE(m, -1, "output '%.*s' is no tensor that a node makes; byte %zu",
                          (int)spops_span_bytes(onnx->outputs[i].name),
                          (const char *)onnx->outputs[i].name.at, onnx->outputs[i].offset);
        v->is_output = true;
        SPOPS_TRY(list(m, &m->outputs, index));
    }
    return onnx->num_outputs > 0 ? SPOPS_STATUS_OK : REFUSE(m, -1, "the graph has no output");
}

// ---- Nodes ----------------------------------------------------------------------------------------

static void set_list(struct spops_model_call *c, int32_t at, const void *data, int64_t length,
                     uint8_t code)
{
    spops_tensor *t = &c->tensors[at];
    c->lengths[at] = length;
    *t = (spops_tensor){.data = (void *)(uintptr_t)data,
                        .device_type = 1,
                        .num_dims = 1,
                        .dtype_code = code,
                        .dtype_bits = 64,
                        .dtype_lanes = 1,
                        .shape = &c->lengths[at]};
    c->values[at].type = SPOPS_VALUE_TENSOR;
    c->values[at].v.p = t;
}

static spops_status put_attribute(spops_model *m, int32_t node,
                                  const spops_operator_argument *argument,
                                  const spops_onnx_attribute *a, struct spops_model_call *c,
                                  int32_t at)
{
    spops_value *value = &c->values[at];
    if (argument->kind == SPOPS_ARGUMENT_INTS && a->num_ints > 0) {
        int64_t *copy = spops_model_memory(m, (size_t)a->num_ints * sizeof *copy);
        if (copy == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        memcpy(copy, a->ints, (size_t)a->num_ints * sizeof *copy);
        set_list(c, at, copy, a->num_ints, 0);
    } else if (argument->kind == SPOPS_ARGUMENT_FLOATS &&
               a->num_floats + (int32_t)spops_span_bytes(a->doubles) > 0) {
        const size_t bytes = spops_span_bytes(a->doubles);
        const int32_t num = bytes > 0 ? (int32_t)(bytes / sizeof(double)) : a->num_floats;
        double *copy = spops_model_memory(m, (size_t)num * sizeof *copy);
        if (copy == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        if (bytes > 0) memcpy(copy, a->doubles.at, bytes);
        for (int32_t i = 0; i < num && bytes == 0; ++i)
            copy[i] = (double)a->floats[i];
        set_list(c, at, copy, num, 2);
    } else if (argument->kind == SPOPS_ARGUMENT_FLOAT &&
               spops_span_bytes(a->doubles) == sizeof(double)) {
        value->type = SPOPS_VALUE_FLOAT;
        memcpy(&value->v.f, a->doubles.at, sizeof(double));
    } else if (a->has_s && spops_span_bytes(a->s) <= SPOPS_ONNX_MAX_NAME_BYTES) {
        value->type = SPOPS_VALUE_STRING;
        value->v.s = spops_model_text(m, a->s);
        if (value->v.s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    } else if (a->has_i) {
        value->type = SPOPS_VALUE_INT;
        value->v.i = a->i;
    } else if (a->has_f) {
        value->type = SPOPS_VALUE_FLOAT;
        value->v.f = (double)a->f;
    } else if (argument->kind != SPOPS_ARGUMENT_INTS && argument->kind != SPOPS_ARGUMENT_FLOATS) {
        return REFUSE(m, node, "attribute %s is of another type; byte %zu", argument->name,
                      a->offset);
    }
    return SPOPS_STATUS_OK;
}

// Whether a name of the file is argument->name and an ending.
static bool is_field(spops_span name, const spops_operator_argument *argument, const char *ending)
{
    const size_t n = strlen(argument->name), all = spops_span_bytes(name);
    return all == n + strlen(ending) && memcmp(name.at, argument->name, n) == 0 &&
           memcmp(name.at + n, ending, all - n) == 0;
}

// The description of the plan that a node makes: its attribute NAME_ints.
static spops_status read_description(spops_model *m, int32_t node,
                                     const spops_operator_argument *argument, int32_t value)
{
    const spops_onnx_node *n = &m->onnx->nodes[node];
    const spops_onnx_attribute *a = NULL;
    spops_model_value *v = spops_model_value_at(m, value);
    size_t bytes = 0;

    for (int32_t i = 0; i < n->num_attributes && a == NULL; ++i)
        if (is_field(n->attributes[i].name, argument, "_ints")) a = &n->attributes[i];
    if (a == NULL || a->num_ints < 2 || a->num_ints > 4096)
        return REFUSE(m, node,
                      "it makes a plan, and %s_ints has %" PRId32 " integers, expected 2 to 4096",
                      argument->name, a == NULL ? 0 : a->num_ints);
    SPOPS_TRY(spops_model_at_node(m, node,
                                  spops_plan_measure(m->ctx, a->ints, a->num_ints, &bytes, NULL)));
    int64_t *copy = spops_model_memory(m, (size_t)a->num_ints * sizeof *copy);
    if (copy == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    memcpy(copy, a->ints, (size_t)a->num_ints * sizeof *copy);
    v->description = copy;
    v->num_description = a->num_ints;
    v->is_plan = true;
    if (++m->num_plans > MAX_PLANS)
        return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, node,
                                  "it makes plan %d, at most %d", (int)m->num_plans, MAX_PLANS);
    v->dtype = SPOPS_DTYPE_I32;
    v->num_dims = 1;
    v->shape[0] = (int64_t)((bytes + 3) / 4);
    return SPOPS_STATUS_OK;
}

// The value of an input or output; -1: absent.
static spops_status read_argument(spops_model *m, int32_t node, spops_model_step *s, int32_t i,
                                  int32_t *value)
{
    const spops_onnx_node *n = &m->onnx->nodes[node];
    const spops_operator *op = s->called;
    const bool is_output = i >= op->num_inputs;
    const int32_t at = is_output ? i - op->num_inputs : i;
    const spops_span none = {n->op.at, n->op.at};
    const spops_span name = at < (is_output ? n->num_outputs : n->num_inputs)
                                ? (is_output ? n->outputs : n->inputs)[at]
                                : none;
    const spops_operator_argument *argument = op->arguments[i];
    const bool is_plan = argument->kind == SPOPS_ARGUMENT_PLAN;

    *value = -1;
    if (spops_span_bytes(name) == 0) {
        if (argument->is_optional) return SPOPS_STATUS_OK;
        return REFUSE(m, node, "%s is not given", argument->name);
    }
    if (!is_output) {
        *value = spops_model_find_value(m, name);
        if (*value < 0 || spops_model_value_at(m, *value)->is_plan != is_plan)
            return REFUSE(m, node, "%s '%.*s' is no %s of the graph or of a node before it",
                          argument->name, (int)spops_span_bytes(name), (const char *)name.at,
                          is_plan ? "plan" : "tensor");
        return SPOPS_STATUS_OK;
    }
    const spops_onnx *onnx = m->onnx;
    const spops_onnx_tensor plan = {.type = SPOPS_ONNX_INT32, .has_shape = true};
    const spops_onnx_tensor *t = &plan;
    if (!is_plan) {
        t = spops_onnx_find_tensor(onnx->values, onnx->num_values, name);
        if (t == NULL) t = spops_onnx_find_tensor(onnx->outputs, onnx->num_outputs, name);
    }
    SPOPS_TRY(add_tensor(m, node, name, t, value));
    return is_plan ? read_description(m, node, argument, *value) : SPOPS_STATUS_OK;
}

// Value i of the call: a tensor, whose memory comes later.
static void put_tensor(spops_model *m, struct spops_model_call *c, int32_t i, int32_t value)
{
    const spops_model_value *v = spops_model_value_at(m, value);
    const int dtype = find_dtype(0, v->dtype);
    c->owners[i] = value;
    c->tensors[i] =
        (spops_tensor){.device_type = spops_context_backend(m->ctx) == SPOPS_BACKEND_CPU ? 1 : 2,
                       .device_id = m->ctx->info.device,
                       .num_dims = v->num_dims,
                       .dtype_code = dtypes[dtype].code,
                       .dtype_bits = dtypes[dtype].bits,
                       .dtype_lanes = 1,
                       .shape = v->shape}; // bound again once values stay where they are
    c->values[i].type = SPOPS_VALUE_TENSOR;
    c->values[i].v.p = &c->tensors[i];
}

// What the row says where the node says nothing; of lists: none.
static void put_default(const spops_operator_argument *argument, spops_value *value)
{
    if (argument->kind == SPOPS_ARGUMENT_INTS || argument->kind == SPOPS_ARGUMENT_FLOATS) return;
    value->type = argument->kind == SPOPS_ARGUMENT_FLOAT ? SPOPS_VALUE_FLOAT : SPOPS_VALUE_INT;
    if (argument->kind == SPOPS_ARGUMENT_FLOAT)
        value->v.f = argument->float_default;
    else
        value->v.i = argument->int_default;
}

static spops_status check_attributes(spops_model *m, int32_t node, const spops_operator *op)
{
    const spops_onnx_node *n = &m->onnx->nodes[node];
    for (int32_t i = 0; i < n->num_attributes; ++i) {
        const spops_onnx_attribute *a = &n->attributes[i];
        bool known = spops_span_is(a->name, "output_dtype"); // the shape's type says it too
        for (int32_t k = 0; k < op->num_inputs + op->num_outputs + op->num_attributes && !known;
             ++k)
            known = k < op->num_inputs + op->num_outputs
                        ? op->arguments[k]->kind == SPOPS_ARGUMENT_PLAN &&
                              is_field(a->name, op->arguments[k], "_ints")
                        : spops_span_is(a->name, op->arguments[k]->name);
        if (!known)
            return REFUSE(m, node, "it has no attribute '%.*s'; byte %zu",
                          (int)spops_span_bytes(a->name), (const char *)a->name.at, a->offset);
    }
    return SPOPS_STATUS_OK;
}

// Inputs after those of the row: what outputs begin with that a call may leave parts of alone.
static spops_status read_begins(spops_model *m, int32_t node, spops_model_step *s)
{
    const spops_onnx_node *n = &m->onnx->nodes[node];
    const spops_operator *op = s->called;
    struct spops_model_call *c = s->call;
    int32_t at = op->num_inputs;

    for (int32_t i = op->num_inputs; i < c->num_arguments; ++i) {
        if (!op->arguments[i]->is_updated) continue;
        const bool given = at < n->num_inputs && spops_span_bytes(n->inputs[at]) > 0;
        const int32_t from = given ? spops_model_find_value(m, n->inputs[at]) : -1;
        ++at;
        if (c->owners[i] < 0) continue;
        if (given && (from < 0 || tensor_bytes(spops_model_value_at(m, from)) !=
                                      tensor_bytes(spops_model_value_at(m, c->owners[i]))))
            return REFUSE(m, node, "what %s begins with is no tensor of its size",
                          op->arguments[i]->name);
        c->begun[c->num_begun] = c->owners[i];
        c->begins[c->num_begun++] = from;
        if (from >= 0) s->used[s->num_used++] = from;
    }
    return n->num_inputs <= at
               ? SPOPS_STATUS_OK
               : REFUSE(m, node, "it has %" PRId32 " inputs, expected at most %" PRId32,
                        n->num_inputs, at);
}

static spops_status read_call(spops_model *m, int32_t node, spops_model_step *s)
{
    const spops_operator *op = s->called;
    const int32_t num = op->num_inputs + op->num_outputs;
    struct spops_model_call *c = spops_model_memory(m, sizeof *c);
    int32_t value = -1, at;

    if (num > MAX_ARGUMENTS || 2 * num + op->num_attributes >= MAX_VALUES)
        return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, node, "it has %d arguments",
                                  (int)num);
    s->used = c == NULL ? NULL : spops_model_memory(m, 2 * (size_t)num * sizeof *s->used);
    if (s->used == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    s->call = c;
    c->num_arguments = num;
    for (int32_t i = 0; i < num; ++i) {
        SPOPS_TRY(read_argument(m, node, s, i, &value));
        c->owners[i] = value;
        if (value < 0) continue;
        s->used[s->num_used++] = value;
        put_tensor(m, c, i, value);
    }
    SPOPS_TRY(read_begins(m, node, s));
    at = num;
    for (int32_t i = 0; i < num; ++i) {
        if (op->arguments[i]->kind != SPOPS_ARGUMENT_PLAN) continue;
        if (c->owners[i] >= 0) {
            const spops_model_value *v = spops_model_value_at(m, c->owners[i]);
            set_list(c, at, v->description, v->num_description, 0);
        }
        ++at;
    }
    SPOPS_TRY(check_attributes(m, node, op));
    for (int32_t k = 0; k < op->num_attributes; ++k, ++at) {
        const spops_operator_argument *argument = op->arguments[num + k];
        const spops_onnx_attribute *a =
            spops_onnx_find_attribute(&m->onnx->nodes[node], argument->name);
        put_default(argument, &c->values[at]);
        if (a != NULL) SPOPS_TRY(put_attribute(m, node, argument, a, c, at));
    }
    c->num_values = at + (op->num_optional > 0); // `present` is NONE: absent ones have a value
    return SPOPS_STATUS_OK;
}

// Another name of a tensor.
static spops_status read_identity(spops_model *m, int32_t node)
{
    const spops_onnx_node *n = &m->onnx->nodes[node];
    const int32_t x = n->num_inputs == 1 ? spops_model_find_value(m, n->inputs[0]) : -1;

    if (x < 0 || n->num_outputs != 1 || spops_model_find_value(m, n->outputs[0]) >= 0)
        return REFUSE(m, node, "its input is no tensor before it, or its output is there already");
    spops_model_value v = *spops_model_value_at(m, x);
    if (v.is_input || spops_span_bytes(v.init) > 0)
        return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, node,
                                  "its input is that of no node");
    v.name = spops_model_text(m, n->outputs[0]);
    v.parent = x;
    v.is_output = false;
    spops_model_value *added = v.name == NULL ? NULL : spops_model_add(m, &m->values, sizeof v);
    if (added == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    *added = v;
    return SPOPS_STATUS_OK;
}

static spops_status read_node(spops_model *m, int32_t node)
{
    const spops_onnx_node *n = &m->onnx->nodes[node];
    char *op = spops_model_text(m, n->op), *name = spops_model_text(m, n->name);
    spops_model_step s = {.kind = SPOPS_MODEL_CALL, .x = -1, .residual = -1, .out = -1, .map = -1};

    if (op == NULL || name == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    if (spops_span_bytes(n->domain) == 0 && strcmp(op, "Identity") == 0)
        return read_identity(m, node);
    if (!spops_span_is(n->domain, "spops"))
        return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, node,
                                  "it is not of the domain spops, as other nodes are");
    s.called = spops_operator_find(op);
    if (s.called == NULL)
        return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, node, "there is no such operator");
    if (s.called->needs_handles != 0)
        return spops_model_refuse(m, SPOPS_STATUS_NOT_SUPPORTED, node,
                                  "its operator takes handles, which no file has");
    if (n->num_outputs > s.called->num_outputs)
        return REFUSE(m, node, "it has %" PRId32 " outputs, expected at most %" PRId32,
                      n->num_outputs, s.called->num_outputs);
    s.name = name;
    s.op = s.called->name;
    s.node = node;
    s.num_nodes = 1;
    s.rulebook = op;
    SPOPS_TRY(read_call(m, node, &s));
    spops_model_step *added = spops_model_add(m, &m->steps, sizeof *added);
    if (added == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    *added = s;
    return SPOPS_STATUS_OK;
}

spops_status spops_model_read_domain(spops_model *m)
{
    if (m->has_voxels)
        return spops_model_refuse(m, SPOPS_STATUS_INVALID_ARGUMENT, -1,
                                  "options have voxels, which are for files of libspconv");
    SPOPS_TRY(read_inputs(m));
    for (int32_t i = 0; i < m->onnx->num_nodes; ++i)
        SPOPS_TRY(read_node(m, i));
    m->num_plans = 0; // none is updated but by its node
    return read_outputs(m);
}

// ---- Running --------------------------------------------------------------------------------------

static void bind(const spops_model *m, struct spops_model_call *c)
{
    for (int32_t i = 0; i < c->num_arguments; ++i) {
        if (c->owners[i] < 0) continue;
        c->tensors[i].data = spops_model_value_at(m, c->owners[i])->data;
        c->tensors[i].shape = spops_model_value_at(m, c->owners[i])->shape;
    }
}

spops_status spops_model_prepare_call(spops_model *m, spops_model_step *s)
{
    size_t bytes = 0;
    bind(m, s->call);
    SPOPS_TRY(
        spops_call_scratch_bytes(m->ctx, s->called, s->call->values, s->call->num_values, &bytes));
    if (bytes > m->scratch_bytes) m->scratch_bytes = bytes;
    return spops_context_reserve(m->ctx, bytes);
}

spops_status spops_model_run_call(const spops_model *m, const spops_model_step *s)
{
    const struct spops_backend *backend = m->ctx->backend;
    struct spops_model_call *c = s->call;
    bind(m, c);
    for (int32_t i = 0; i < c->num_begun; ++i) {
        const spops_model_value *to = spops_model_value_at(m, c->begun[i]);
        SPOPS_TRY(c->begins[i] < 0
                      ? backend->fill_zero(m->ctx, to->data, to->bytes)
                      : backend->copy(m->ctx, to->data, spops_model_value_at(m, c->begins[i])->data,
                                      to->bytes));
    }
    return spops_call(m->ctx, s->called, s->call->values, s->call->num_values, &s->call->ret);
}
