// SPDX-License-Identifier: Apache-2.0
/* Nodes: the values of an operator's call, and what the library says of them. */
#include "spops_nodes.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[512];

const char *spops_nodes_error(void)
{
    return last_error;
}

static int fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return 1;
}

/* ---- Dtypes ----------------------------------------------------------------------------------- */

/* Names, and DLPack's code and bits. */
static const struct {
    const char *name;
    uint8_t code, bits;
} dtypes[SPOPS_NODES_NUM_DTYPES] = {{"f32", 2, 32},    {"f16", 2, 16}, {"bf16", 4, 16},
                                    {"f8e4m3", 10, 8}, {"i32", 0, 32}, {"u8", 1, 8}};

static int is_same(const char *name, const char *s, size_t length)
{
    return strlen(name) == length && memcmp(name, s, length) == 0;
}

static spops_nodes_dtype dtype_of(const char *s, size_t length)
{
    int d = 0;
    while (d < SPOPS_NODES_NUM_DTYPES && !is_same(dtypes[d].name, s, length))
        ++d;
    return (spops_nodes_dtype)d;
}

int spops_nodes_dtype_read(const char *name, spops_nodes_dtype *dtype)
{
    *dtype = dtype_of(name, strlen(name));
    return *dtype == SPOPS_NODES_NUM_DTYPES && fail("%s: there is no such dtype", name);
}

size_t spops_nodes_bytes(const spops_nodes_tensor *t)
{
    size_t bytes = dtypes[t->dtype].bits / 8;
    for (int32_t d = 0; d < t->num_dims; ++d)
        bytes *= (size_t)t->shape[d];
    return bytes;
}

/* ---- Names ------------------------------------------------------------------------------------ */

static int32_t num_args(const spops_operator *op)
{
    return op->num_inputs + op->num_outputs;
}

int spops_nodes_find(const char *name, spops_nodes_node *node)
{
    memset(node, 0, sizeof *node);
    node->op = spops_operator_find(name);
    if (node->op == NULL) return fail("%s: there is no such operator", name);
    if (num_args(node->op) > SPOPS_NODES_MAX_ARGS ||
        node->op->num_attributes > SPOPS_NODES_MAX_ATTRIBUTES)
        return fail("%s: it has more arguments than a node", name);
    return 0;
}

static int32_t find(const spops_operator *op, int32_t first, int32_t end, const char *s, size_t n)
{
    for (int32_t i = first; i < end; ++i)
        if (is_same(op->arguments[i]->name, s, n)) return i - first;
    return -1;
}

int32_t spops_nodes_arg(const spops_nodes_node *node, const char *name)
{
    return find(node->op, 0, num_args(node->op), name, strlen(name));
}

int32_t spops_nodes_attribute(const spops_nodes_node *node, const char *name)
{
    const int32_t first = num_args(node->op);
    return find(node->op, first, first + node->op->num_attributes, name, strlen(name));
}

static size_t word_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_')
        ++n;
    return n;
}

/* ---- Plans ------------------------------------------------------------------------------------ */

static const spops_plan_kind_info *find_kind(const char *name)
{
    int32_t num = 0;
    const spops_plan_kind_info *kinds = spops_plan_kinds(&num);
    for (int32_t i = 0; i < num; ++i)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

/* A field's place among a kind's fields, and how many numbers it has; s NULL: how many all have. */
static int32_t field_of(const spops_plan_kind_info *kind, const char *s, size_t length,
                        int32_t *count)
{
    int32_t at = 0;
    for (const char *f = kind->fields; *f != 0; f += strspn(f, " ")) {
        const size_t n = word_length(f), all = strcspn(f, " ");
        *count = 1;
        for (const char *d = f + n; d < f + all && *d == '['; d += strcspn(d, "]") + 1)
            *count *= (int32_t)strtol(d + 1, NULL, 10);
        if (s != NULL && n == length && memcmp(f, s, n) == 0) return at;
        at += *count;
        f += all;
    }
    *count = at;
    return -1;
}

int spops_nodes_describe(const char *kind, const char *fields, spops_nodes_tensor *t)
{
    const spops_plan_kind_info *info = find_kind(kind);
    int64_t *ints = t->ints + t->num_ints;
    int32_t num = 0, count = 0;

    if (info == NULL) return fail("%s: there is no such kind of plan", kind);
    field_of(info, NULL, 0, &num);
    if (t->num_ints + 2 + num > SPOPS_NODES_MAX_INTS)
        return fail("%s: a description has at most %d integers", kind, SPOPS_NODES_MAX_INTS);
    memset(ints, 0, (size_t)(2 + num) * sizeof *ints);
    ints[0] = info->kind;
    ints[1] = info->version;
    for (const char *f = fields; *f != 0; f += strspn(f, " ")) {
        const size_t n = word_length(f);
        const int32_t at = field_of(info, f, n, &count);
        char *end = (char *)(uintptr_t)(f + n);
        if (at < 0 || *end != '=') return fail("%s: there is no field %.*s", kind, (int)n, f);
        for (int32_t i = 0; i < count && (i == 0 ? *end == '=' : *end == ','); ++i)
            ints[2 + at + i] = strtoll(end + 1, &end, 10);
        if (*end != ' ' && *end != 0)
            return fail("%s: %.*s has at most %" PRId32 " numbers", kind, (int)n, f, count);
        f = end;
    }
    t->num_ints += 2 + num;
    return 0;
}

int spops_nodes_measure(spops_context *ctx, spops_nodes_tensor *t)
{
    size_t bytes = 0;
    if (spops_plan_measure(ctx, t->ints, t->num_ints, &bytes, NULL) != SPOPS_STATUS_OK)
        return fail("%s", spops_last_error(ctx));
    t->dtype = SPOPS_NODES_I32;
    t->num_dims = 1;
    t->shape[0] = (int64_t)((bytes + 3) / 4);
    return 0;
}

/* ---- Calls ------------------------------------------------------------------------------------ */

/* The values of a call, and what they point to. */
typedef struct values {
    spops_value at[2 * SPOPS_NODES_MAX_ARGS + SPOPS_NODES_MAX_ATTRIBUTES + 1];
    int32_t num;
    spops_tensor tensors[SPOPS_NODES_MAX_ARGS],
        lists[SPOPS_NODES_MAX_ARGS + SPOPS_NODES_MAX_ATTRIBUTES];
    int64_t sizes[SPOPS_NODES_MAX_ARGS + SPOPS_NODES_MAX_ATTRIBUTES];
    int64_t numbers[SPOPS_NODES_MAX_ATTRIBUTES][SPOPS_NODES_MAX_LIST]; /* or bits of doubles */
    int32_t num_lists;
} values;

static spops_value *add(values *v, spops_value_type type)
{
    spops_value *value = &v->at[v->num++];
    memset(value, 0, sizeof *value);
    value->type = (int32_t)type;
    return value;
}

/* Numbers of 64 bits in host memory. */
static void add_list(values *v, const void *data, int64_t count, int is_float)
{
    spops_tensor *t = &v->lists[v->num_lists];
    memset(t, 0, sizeof *t);
    v->sizes[v->num_lists] = count;
    t->data = (void *)(uintptr_t)data;
    t->device_type = 1;
    t->num_dims = 1;
    t->dtype_code = is_float ? 2 : 0;
    t->dtype_bits = 64;
    t->dtype_lanes = 1;
    t->shape = &v->sizes[v->num_lists++];
    add(v, SPOPS_VALUE_TENSOR)->v.p = t;
}

static int add_numbers(values *v, const spops_nodes_node *node, int32_t attribute, int is_float)
{
    const char *text = node->attributes[attribute];
    int64_t *numbers = v->numbers[attribute];
    int32_t n = 0;

    if (text == NULL) {
        add(v, SPOPS_VALUE_NONE);
        return 0;
    }
    for (;;) {
        char *end;
        const double number = strtod(text, &end);
        if (n == SPOPS_NODES_MAX_LIST || end == text || (*end != ',' && *end != 0))
            return fail("%s: %s is no list of at most %d numbers", node->op->name,
                        node->attributes[attribute], SPOPS_NODES_MAX_LIST);
        numbers[n] = strtoll(text, NULL, 10);
        if (is_float) memcpy(&numbers[n], &number, sizeof number);
        ++n;
        if (*end == 0) break;
        text = end + 1;
    }
    add_list(v, numbers, n, is_float);
    return 0;
}

static int add_attribute(values *v, const spops_nodes_node *node, int32_t i)
{
    const spops_operator_argument *a = node->op->arguments[num_args(node->op) + i];
    const char *text = node->attributes[i];

    switch (a->kind) {
    case SPOPS_ARGUMENT_INTS: return add_numbers(v, node, i, 0);
    case SPOPS_ARGUMENT_FLOATS: return add_numbers(v, node, i, 1);
    case SPOPS_ARGUMENT_FLOAT:
        add(v, SPOPS_VALUE_FLOAT)->v.f = text == NULL ? a->float_default : strtod(text, NULL);
        return 0;
    case SPOPS_ARGUMENT_ENUM:
    case SPOPS_ARGUMENT_FLAGS:
        if (text != NULL && !isdigit((unsigned char)*text)) {
            add(v, SPOPS_VALUE_STRING)->v.s = text;
            return 0;
        }
        break;
    default: break;
    }
    add(v, SPOPS_VALUE_INT)->v.i = text == NULL ? a->int_default : strtoll(text, NULL, 10);
    return 0;
}

static int fill_values(spops_context *ctx, const spops_nodes_node *node, values *v)
{
    const int on_cuda = spops_context_backend(ctx) == SPOPS_BACKEND_CUDA;
    const spops_operator *op = node->op;
    spops_device_info info = spops_device_info_default();

    v->num = v->num_lists = 0;
    if (spops_context_get_device_info(ctx, &info) != SPOPS_STATUS_OK)
        return fail("%s", spops_last_error(ctx));
    for (int32_t i = 0; i < num_args(op); ++i) {
        const spops_nodes_tensor *from = node->args[i];
        spops_tensor *t = &v->tensors[i];
        if (from == NULL) {
            add(v, SPOPS_VALUE_NONE);
            continue;
        }
        memset(t, 0, sizeof *t);
        t->data = from->data;
        t->device_type = on_cuda ? 2 : 1;
        t->device_id = on_cuda ? info.device : 0;
        t->num_dims = from->num_dims;
        if (from->dtype != SPOPS_NODES_NUM_DTYPES) {
            t->dtype_code = dtypes[from->dtype].code;
            t->dtype_bits = dtypes[from->dtype].bits;
        }
        t->dtype_lanes = 1;
        t->shape = from->shape;
        add(v, SPOPS_VALUE_TENSOR)->v.p = t;
    }
    for (int32_t i = 0; i < num_args(op); ++i) {
        if (op->arguments[i]->kind != SPOPS_ARGUMENT_PLAN) continue;
        if (node->args[i] == NULL)
            add(v, SPOPS_VALUE_NONE);
        else
            add_list(v, node->args[i]->ints, node->args[i]->num_ints, 0);
    }
    for (int32_t i = 0; i < op->num_attributes; ++i)
        if (add_attribute(v, node, i)) return 1;
    if (op->num_optional > 0) add(v, SPOPS_VALUE_NONE); /* absent ones are NONE */
    return 0;
}

/* ---- Shapes ----------------------------------------------------------------------------------- */

/* Every output without a shape gets what the library says of it. */
int spops_nodes_shapes(spops_context *ctx, spops_nodes_node *node, spops_nodes_dtype wanted)
{
    const spops_operator *op = node->op;
    spops_tensor out;
    values v;

    for (int32_t i = 0; i < num_args(op); ++i) {
        const spops_operator_argument *a = op->arguments[i];
        spops_nodes_tensor *t = node->args[i];
        if (t == NULL && !a->is_optional) return fail("%s: %s is missing", op->name, a->name);
        if (t == NULL || t->num_dims != 0) continue;
        if (i < op->num_inputs || a->kind == SPOPS_ARGUMENT_PLAN)
            return fail("%s: %s has no %s", op->name, a->name,
                        a->kind == SPOPS_ARGUMENT_PLAN ? "description" : "shape");
        t->dtype = wanted;
    }
    if (fill_values(ctx, node, &v)) return 1;
    for (int32_t i = op->num_inputs; i < num_args(op); ++i) {
        spops_nodes_tensor *t = node->args[i];
        int64_t shape[SPOPS_CALL_MAX_DIMS];
        if (t == NULL || t->num_dims != 0) continue;
        if (spops_call_output(ctx, op, v.at, v.num, i - op->num_inputs, NULL, &out, shape) !=
            SPOPS_STATUS_OK)
            return fail("%s", spops_last_error(ctx));
        for (t->dtype = 0; t->dtype < SPOPS_NODES_NUM_DTYPES; ++t->dtype)
            if (dtypes[t->dtype].code == out.dtype_code && dtypes[t->dtype].bits == out.dtype_bits)
                break;
        if (t->dtype == SPOPS_NODES_NUM_DTYPES || out.num_dims > 2)
            return fail("%s: %s has a dtype or shape that nodes have not", op->name,
                        op->arguments[i]->name);
        for (int32_t d = 0; d < out.num_dims; ++d)
            t->shape[d] = shape[d];
        t->num_dims = out.num_dims;
    }
    return 0;
}

int spops_nodes_scratch(spops_context *ctx, const spops_nodes_node *node, size_t *bytes)
{
    values v;
    *bytes = 0;
    if (fill_values(ctx, node, &v)) return 1;
    if (spops_call_scratch_bytes(ctx, node->op, v.at, v.num, bytes) != SPOPS_STATUS_OK)
        return fail("%s", spops_last_error(ctx));
    if (*bytes > 0) *bytes = spops_context_scratch_memory(*bytes);
    return 0;
}

int spops_nodes_run(spops_context *ctx, const spops_nodes_node *node)
{
    spops_value ret;
    values v;
    if (fill_values(ctx, node, &v)) return 1;
    if (spops_call(ctx, node->op, v.at, v.num, &ret) == SPOPS_STATUS_OK) return 0;
    return fail("%s", spops_last_error(ctx));
}
