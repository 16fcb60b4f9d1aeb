// SPDX-License-Identifier: Apache-2.0
// Reading happens twice by the same functions: first they count, then they fill arrays of that size.
#include "model/onnx.h"

#include <inttypes.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"

// An array that is counted (items NULL), then filled.
typedef struct pool {
    char *items;
    size_t item_bytes;
    int64_t num, most;
    const char *what;
} pool;

enum { NODES, NAMES, ATTRIBUTES, INTS, FLOATS, INITIALIZERS, INPUTS, OUTPUTS, VALUES, NUM_POOLS };

static const pool pools_empty[NUM_POOLS] = {
    {NULL, sizeof(spops_onnx_node), 0, SPOPS_ONNX_MAX_NODES, "nodes"},
    {NULL, sizeof(spops_span), 0, 1 << 18, "names of inputs and outputs of nodes"},
    {NULL, sizeof(spops_onnx_attribute), 0, 1 << 17, "attributes"},
    {NULL, sizeof(int64_t), 0, SPOPS_ONNX_MAX_NUMBERS, "integers in attributes"},
    {NULL, sizeof(float), 0, SPOPS_ONNX_MAX_NUMBERS, "floats in attributes"},
    {NULL, sizeof(spops_onnx_tensor), 0, SPOPS_ONNX_MAX_TENSORS, "initializers"},
    {NULL, sizeof(spops_onnx_tensor), 0, SPOPS_ONNX_MAX_VALUES, "inputs"},
    {NULL, sizeof(spops_onnx_tensor), 0, SPOPS_ONNX_MAX_VALUES, "outputs"},
    {NULL, sizeof(spops_onnx_tensor), 0, SPOPS_ONNX_MAX_VALUES, "values"}};

typedef struct reader {
    spops_context *ctx;
    const char *call;
    const uint8_t *base;
    pool pools[NUM_POOLS];
    // Where messages are: the node and its name, once known.
    int64_t node;
    spops_span node_name;
} reader;

// "call: node 3 'conv3': byte 120: attribute: what"
static spops_status damaged(const reader *r, const uint8_t *at, const char *part, const char *what)
{
    const int64_t byte = at - r->base;
    int name = (int)spops_span_bytes(r->node_name);
    if (r->node < 0)
        return spops_fail(r->ctx, SPOPS_STATUS_CORRUPT_DATA, "%s: byte %" PRId64 ": %s: %s",
                          r->call, byte, part, what);
    if (name > 64) name = 64;
    return spops_fail(r->ctx, SPOPS_STATUS_CORRUPT_DATA,
                      "%s: node %" PRId64 " '%.*s': byte %" PRId64 ": %s: %s", r->call, r->node,
                      name, name > 0 ? (const char *)r->node_name.at : "", byte, part, what);
}

// One more item of a pool, copied unless items are only counted.
static spops_status put(reader *r, int which, const uint8_t *at, const void *item)
{
    pool *p = &r->pools[which];
    if (p->num >= p->most)
        return spops_fail(r->ctx, SPOPS_STATUS_CORRUPT_DATA,
                          "%s: byte %" PRId64 ": more than %" PRId64 " %s", r->call,
                          (int64_t)(at - r->base), p->most, p->what);
    if (p->items != NULL) memcpy(p->items + (size_t)p->num * p->item_bytes, item, p->item_bytes);
    ++p->num;
    return SPOPS_STATUS_OK;
}

static const void *end_of(const reader *r, int which)
{
    const pool *p = &r->pools[which];
    return p->items == NULL ? NULL : p->items + (size_t)p->num * p->item_bytes;
}

// The next field of a message; *more is false at its end.
static spops_status next(const reader *r, spops_span *message, spops_wire_field *field,
                         const char *part, bool *more)
{
    const char *what = "";
    const spops_wire_result result = spops_wire_next(message, field, &what);
    *more = result == SPOPS_WIRE_FIELD;
    return result == SPOPS_WIRE_DAMAGED ? damaged(r, field->at, part, what) : SPOPS_STATUS_OK;
}

static spops_status need(const reader *r, const spops_wire_field *field, spops_wire_type type,
                         const char *part)
{
    return field->type == type ? SPOPS_STATUS_OK
                               : damaged(r, field->at, part, "a field of another type");
}

static spops_status read_name(const reader *r, const spops_wire_field *field, const char *part,
                              spops_span *name)
{
    SPOPS_TRY(need(r, field, SPOPS_WIRE_BYTES, part));
    if (spops_span_bytes(field->bytes) > SPOPS_ONNX_MAX_NAME_BYTES)
        return damaged(r, field->at, part, "a name of more than 255 bytes");
    if (memchr(field->bytes.at, 0, spops_span_bytes(field->bytes)) != NULL)
        return damaged(r, field->at, part, "a name with a byte 0");
    *name = field->bytes;
    return SPOPS_STATUS_OK;
}

// ---- Tensors ---------------------------------------------------------------------------------------

static spops_status put_dim(const reader *r, const uint8_t *at, spops_onnx_tensor *t, int64_t dim)
{
    if (t->num_dims >= SPOPS_ONNX_MAX_DIMS)
        return damaged(r, at, "shape", "more than 8 dimensions");
    t->dims[t->num_dims++] = dim;
    return SPOPS_STATUS_OK;
}

static spops_status read_dims(const reader *r, const spops_wire_field *field, spops_onnx_tensor *t)
{
    spops_span rest = field->bytes;
    uint64_t value;
    if (field->type == SPOPS_WIRE_VARINT) return put_dim(r, field->at, t, (int64_t)field->value);
    SPOPS_TRY(need(r, field, SPOPS_WIRE_BYTES, "dims of a tensor"));
    while (rest.at < rest.end) {
        if (!spops_wire_varint(&rest, &value))
            return damaged(r, rest.at, "dims of a tensor", "a number that does not end");
        SPOPS_TRY(put_dim(r, field->at, t, (int64_t)value));
    }
    return SPOPS_STATUS_OK;
}

static spops_status parse_tensor(reader *r, const spops_wire_field *whole, spops_onnx_tensor *t)
{
    spops_span message = whole->bytes;
    spops_wire_field f;
    bool more;

    *t = (spops_onnx_tensor){.offset = (size_t)(whole->at - r->base), .has_shape = true};
    t->name = t->data = (spops_span){whole->at, whole->at};
    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "initializer", &more));
        if (!more) return SPOPS_STATUS_OK;
        switch (f.number) {
        case 1: SPOPS_TRY(read_dims(r, &f, t)); break;
        case 2:
            SPOPS_TRY(need(r, &f, SPOPS_WIRE_VARINT, "data_type of an initializer"));
            t->type = f.value > 1000 ? 1000 : (int32_t)f.value;
            break;
        case 4: // floats and doubles, packed, lie as raw data does
        case 9: // raw_data
        case 10:
            SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "data of an initializer"));
            t->data = f.bytes;
            break;
        case 5:
        case 7:
        case 11: return damaged(r, f.at, "initializer", "data as varints, expected raw_data");
        case 8: SPOPS_TRY(read_name(r, &f, "name of an initializer", &t->name)); break;
        case 13:
        case 14:
            if (f.type == SPOPS_WIRE_VARINT && f.value == 0) break;
            return damaged(r, f.at, "initializer", "data in another file, expected raw_data");
        default: break;
        }
    }
}

// ---- Attributes -----------------------------------------------------------------------------------

// Numbers, packed or one by one.
static spops_status read_ints(reader *r, const spops_wire_field *field)
{
    spops_span rest = field->bytes;
    uint64_t value;
    if (field->type == SPOPS_WIRE_VARINT) return put(r, INTS, field->at, &field->value);
    SPOPS_TRY(need(r, field, SPOPS_WIRE_BYTES, "ints of an attribute"));
    while (rest.at < rest.end) {
        const uint8_t *at = rest.at;
        if (!spops_wire_varint(&rest, &value))
            return damaged(r, at, "ints of an attribute", "a number that does not end");
        SPOPS_TRY(put(r, INTS, at, &value));
    }
    return SPOPS_STATUS_OK;
}

static spops_status read_floats(reader *r, const spops_wire_field *field)
{
    uint32_t bits;
    if (field->type == SPOPS_WIRE_FIXED32) {
        bits = (uint32_t)field->value;
        return put(r, FLOATS, field->at, &bits);
    }
    SPOPS_TRY(need(r, field, SPOPS_WIRE_BYTES, "floats of an attribute"));
    if (spops_span_bytes(field->bytes) % 4 != 0)
        return damaged(r, field->at, "floats of an attribute", "bytes that are no multiple of 4");
    for (const uint8_t *at = field->bytes.at; at < field->bytes.end; at += 4) {
        bits =
            (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        SPOPS_TRY(put(r, FLOATS, at, &bits));
    }
    return SPOPS_STATUS_OK;
}

// A tensor as an attribute: f64, since ONNX's own floats have 32 bits.
static spops_status read_doubles(reader *r, const spops_wire_field *field, spops_span *doubles)
{
    spops_onnx_tensor t;
    SPOPS_TRY(need(r, field, SPOPS_WIRE_BYTES, "t of an attribute"));
    SPOPS_TRY(parse_tensor(r, field, &t));
    if (t.type != SPOPS_ONNX_DOUBLE || spops_span_bytes(t.data) % sizeof(double) != 0 ||
        spops_span_bytes(t.data) == 0 || spops_span_bytes(t.data) > 4096)
        return damaged(r, field->at, "t of an attribute", "no tensor of 1 to 512 f64");
    *doubles = t.data;
    return SPOPS_STATUS_OK;
}

static spops_status read_attribute(reader *r, const spops_wire_field *whole)
{
    spops_onnx_attribute a = {.offset = (size_t)(whole->at - r->base)};
    spops_span message = whole->bytes;
    const int64_t ints = r->pools[INTS].num, floats = r->pools[FLOATS].num;
    spops_wire_field f;
    uint32_t bits;
    bool more;

    a.doubles = (spops_span){whole->at, whole->at};
    a.ints = (const int64_t *)end_of(r, INTS);
    a.floats = (const float *)end_of(r, FLOATS);
    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "attribute", &more));
        if (!more) break;
        switch (f.number) {
        case 1: SPOPS_TRY(read_name(r, &f, "name of an attribute", &a.name)); break;
        case 2:
            SPOPS_TRY(need(r, &f, SPOPS_WIRE_FIXED32, "f of an attribute"));
            a.has_f = true;
            bits = (uint32_t)f.value;
            memcpy(&a.f, &bits, sizeof bits);
            break;
        case 3:
            SPOPS_TRY(need(r, &f, SPOPS_WIRE_VARINT, "i of an attribute"));
            a.has_i = true;
            a.i = (int64_t)f.value;
            break;
        case 4:
            SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "s of an attribute"));
            a.has_s = true;
            a.s = f.bytes;
            break;
        case 5: SPOPS_TRY(read_doubles(r, &f, &a.doubles)); break;
        case 7: SPOPS_TRY(read_floats(r, &f)); break;
        case 8: SPOPS_TRY(read_ints(r, &f)); break;
        case 6:
        case 11: return damaged(r, f.at, "attribute", "a graph within the graph");
        default: break;
        }
    }
    a.num_ints = (int32_t)(r->pools[INTS].num - ints);
    a.num_floats = (int32_t)(r->pools[FLOATS].num - floats);
    return put(r, ATTRIBUTES, whole->at, &a);
}

// ---- Nodes ----------------------------------------------------------------------------------------

// All fields `number` of a message into a pool, by `read`.
static spops_status read_names(reader *r, spops_span message, uint32_t number, const char *part,
                               const spops_span **names, int32_t *num)
{
    spops_span name;
    spops_wire_field f;
    bool more;

    *names = (const spops_span *)end_of(r, NAMES);
    *num = 0;
    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "node", &more));
        if (!more) return SPOPS_STATUS_OK;
        if (f.number != number) continue;
        if (++*num > SPOPS_ONNX_MAX_NAMES) return damaged(r, f.at, part, "more than 64 of them");
        SPOPS_TRY(read_name(r, &f, part, &name));
        SPOPS_TRY(put(r, NAMES, f.at, &name));
    }
}

static spops_status read_node(reader *r, const spops_wire_field *whole)
{
    spops_onnx_node n = {.offset = (size_t)(whole->at - r->base)};
    spops_span message = whole->bytes;
    spops_wire_field f;
    bool more;

    r->node = r->pools[NODES].num;
    r->node_name = (spops_span){whole->at, whole->at};
    n.op = n.name = n.domain = r->node_name;
    for (;;) { // the names first, so that messages have them
        SPOPS_TRY(next(r, &message, &f, "node", &more));
        if (!more) break;
        if (f.number == 3) SPOPS_TRY(read_name(r, &f, "name of a node", &n.name));
        if (f.number == 4) SPOPS_TRY(read_name(r, &f, "op_type of a node", &n.op));
        if (f.number == 7) SPOPS_TRY(read_name(r, &f, "domain of a node", &n.domain));
    }
    r->node_name = n.name;
    SPOPS_TRY(read_names(r, whole->bytes, 1, "inputs of a node", &n.inputs, &n.num_inputs));
    SPOPS_TRY(read_names(r, whole->bytes, 2, "outputs of a node", &n.outputs, &n.num_outputs));
    n.attributes = (const spops_onnx_attribute *)end_of(r, ATTRIBUTES);
    for (message = whole->bytes;;) {
        SPOPS_TRY(next(r, &message, &f, "node", &more));
        if (!more) break;
        if (f.number != 5) continue;
        SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "attribute"));
        if (++n.num_attributes > SPOPS_ONNX_MAX_ATTRIBUTES)
            return damaged(r, f.at, "attributes of a node", "more than 64 of them");
        SPOPS_TRY(read_attribute(r, &f));
    }
    r->node = -1;
    return put(r, NODES, whole->at, &n);
}

// ---- Initializers and values ---------------------------------------------------------------------------

static spops_status read_tensor(reader *r, const spops_wire_field *whole)
{
    spops_onnx_tensor t;
    SPOPS_TRY(parse_tensor(r, whole, &t));
    return put(r, INITIALIZERS, whole->at, &t);
}

// TypeProto.Tensor's shape.
static spops_status read_shape(reader *r, spops_span message, spops_onnx_tensor *t)
{
    spops_wire_field f, d;
    bool more;

    t->has_shape = true;
    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "shape", &more));
        if (!more) return SPOPS_STATUS_OK;
        if (f.number != 1) continue;
        SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "dim of a shape"));
        int64_t dim = -1;
        spops_span rest = f.bytes;
        for (;;) {
            SPOPS_TRY(next(r, &rest, &d, "dim of a shape", &more));
            if (!more) break;
            if (d.number == 1 && d.type == SPOPS_WIRE_VARINT) dim = (int64_t)d.value;
        }
        SPOPS_TRY(put_dim(r, f.at, t, dim));
    }
}

static spops_status read_type(reader *r, spops_span message, spops_onnx_tensor *t)
{
    spops_wire_field f, g;
    bool more;

    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "type", &more));
        if (!more) return SPOPS_STATUS_OK;
        if (f.number != 1) continue; // only tensors are known
        SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "tensor_type"));
        spops_span rest = f.bytes;
        for (;;) {
            SPOPS_TRY(next(r, &rest, &g, "tensor_type", &more));
            if (!more) break;
            if (g.number == 1 && g.type == SPOPS_WIRE_VARINT)
                t->type = g.value > 1000 ? 1000 : (int32_t)g.value;
            if (g.number != 2) continue;
            SPOPS_TRY(need(r, &g, SPOPS_WIRE_BYTES, "shape"));
            SPOPS_TRY(read_shape(r, g.bytes, t));
        }
    }
}

static spops_status read_value(reader *r, const spops_wire_field *whole, int which)
{
    spops_onnx_tensor t = {.offset = (size_t)(whole->at - r->base)};
    spops_span message = whole->bytes;
    spops_wire_field f;
    bool more;

    t.name = t.data = (spops_span){whole->at, whole->at};
    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "value", &more));
        if (!more) break;
        if (f.number == 1) SPOPS_TRY(read_name(r, &f, "name of a value", &t.name));
        if (f.number != 2) continue;
        SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "type of a value"));
        SPOPS_TRY(read_type(r, f.bytes, &t));
    }
    return put(r, which, whole->at, &t);
}

// ---- The file ---------------------------------------------------------------------------------------

static spops_status read_graph(reader *r, spops_span message)
{
    spops_wire_field f;
    bool more;

    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "graph", &more));
        if (!more) return SPOPS_STATUS_OK;
        if (f.number != 1 && f.number != 5 && (f.number < 11 || f.number > 13)) {
            if (f.number == 15) return damaged(r, f.at, "graph", "a sparse initializer");
            continue;
        }
        SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "graph"));
        switch (f.number) {
        case 1: SPOPS_TRY(read_node(r, &f)); break;
        case 5: SPOPS_TRY(read_tensor(r, &f)); break;
        case 11: SPOPS_TRY(read_value(r, &f, INPUTS)); break;
        case 12: SPOPS_TRY(read_value(r, &f, OUTPUTS)); break;
        default: SPOPS_TRY(read_value(r, &f, VALUES)); break;
        }
    }
}

static spops_status read_file(reader *r, spops_span message)
{
    spops_wire_field f;
    int graphs = 0;
    bool more;

    for (;;) {
        SPOPS_TRY(next(r, &message, &f, "model", &more));
        if (!more) break;
        if (f.number != 7) continue;
        SPOPS_TRY(need(r, &f, SPOPS_WIRE_BYTES, "graph"));
        if (++graphs > 1) return damaged(r, f.at, "model", "a second graph");
        SPOPS_TRY(read_graph(r, f.bytes));
    }
    return graphs == 1 ? SPOPS_STATUS_OK
                       : damaged(r, message.end, "model", "there is no graph in it");
}

static void place(reader *r, spops_carver *c)
{
    for (int p = 0; p < NUM_POOLS; ++p) {
        r->pools[p].items = (char *)spops_carve(c, r->pools[p].num, 1, r->pools[p].item_bytes);
        if (c->base != NULL) r->pools[p].num = 0;
    }
}

static void describe(const reader *r, spops_onnx *onnx)
{
    onnx->nodes = (const spops_onnx_node *)(const void *)r->pools[NODES].items;
    onnx->num_nodes = (int32_t)r->pools[NODES].num;
    onnx->initializers = (const spops_onnx_tensor *)(const void *)r->pools[INITIALIZERS].items;
    onnx->num_initializers = (int32_t)r->pools[INITIALIZERS].num;
    onnx->inputs = (const spops_onnx_tensor *)(const void *)r->pools[INPUTS].items;
    onnx->num_inputs = (int32_t)r->pools[INPUTS].num;
    onnx->outputs = (const spops_onnx_tensor *)(const void *)r->pools[OUTPUTS].items;
    onnx->num_outputs = (int32_t)r->pools[OUTPUTS].num;
    onnx->values = (const spops_onnx_tensor *)(const void *)r->pools[VALUES].items;
    onnx->num_values = (int32_t)r->pools[VALUES].num;
}

spops_status spops_onnx_read(spops_context *ctx, const char *call, const void *data, size_t bytes,
                             spops_onnx *onnx)
{
    const spops_span file = {(const uint8_t *)data, (const uint8_t *)data + bytes};
    reader r = {.ctx = ctx, .call = call, .base = file.at, .node = -1};
    spops_carver c = {NULL, 0};
    spops_status status;

    memset(onnx, 0, sizeof *onnx);
    onnx->bytes = file;
    memcpy(r.pools, pools_empty, sizeof r.pools);
    SPOPS_TRY(read_file(&r, file));
    place(&r, &c);
    onnx->memory_bytes = c.used > 0 ? c.used : 1;
    onnx->memory = spops_host_alloc(ctx, onnx->memory_bytes, 1);
    if (onnx->memory == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    c = (spops_carver){(char *)onnx->memory, 0};
    place(&r, &c);
    status = read_file(&r, file); // the same bytes: it fails where it failed before
    if (status == SPOPS_STATUS_OK)
        describe(&r, onnx);
    else
        spops_onnx_free(ctx, onnx);
    return status;
}

void spops_onnx_free(spops_context *ctx, spops_onnx *onnx)
{
    spops_host_free(ctx, onnx->memory, onnx->memory_bytes, 1);
    onnx->memory = NULL;
}

const spops_onnx_attribute *spops_onnx_find_attribute(const spops_onnx_node *node, const char *name)
{
    for (int32_t i = 0; i < node->num_attributes; ++i)
        if (spops_span_is(node->attributes[i].name, name)) return &node->attributes[i];
    return NULL;
}

const spops_onnx_tensor *spops_onnx_find_tensor(const spops_onnx_tensor *tensors, int32_t num,
                                                spops_span name)
{
    for (int32_t i = 0; i < num; ++i)
        if (spops_span_same(tensors[i].name, name)) return &tensors[i];
    return NULL;
}
