// SPDX-License-Identifier: Apache-2.0
/* Nodes: shapes from the expressions of an operator's row, and the values of its call. */
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

/* ---- Shapes ----------------------------------------------------------------------------------- */

/* An expression of a row that is being worked out. */
typedef struct reader {
    const spops_nodes_node *node;
    const char *at;
    int depth, failed;
} reader;

static int64_t read_sum(reader *r);

static int64_t unknown(reader *r, const char *s, size_t length)
{
    if (!r->failed) fail("%s: no input has the size %.*s", r->node->op->name, (int)length, s);
    r->failed = 1;
    return 0;
}

/* plan.field, or rows or cols of a tensor. */
static int64_t member_size(reader *r, const char *s, size_t owner, size_t length)
{
    const spops_operator *op = r->node->op;
    const int32_t arg = find(op, 0, num_args(op), s, owner);
    const spops_nodes_tensor *t = arg < 0 ? NULL : r->node->args[arg];
    const char *name = s + owner + 1;
    int32_t count, at;

    if (t == NULL) return unknown(r, s, owner + 1 + length);
    if (op->arguments[arg]->kind != SPOPS_ARGUMENT_PLAN)
        return is_same("cols", name, length) ? t->shape[t->num_dims - 1] : t->shape[0];
    at = field_of(find_kind(op->arguments[arg]->type), name, length, &count);
    return at < 0 || 2 + at >= t->num_ints ? unknown(r, s, owner + 1 + length) : t->ints[2 + at];
}

/* An attribute, a size of an input, or what the row says of a size that no input has. */
static int64_t named_size(reader *r, const char *s, size_t length)
{
    const spops_operator *op = r->node->op;
    const int32_t first = num_args(op);
    const int32_t attribute = find(op, first, first + op->num_attributes, s, length);

    if (attribute >= 0) {
        const char *text = r->node->attributes[attribute];
        return text == NULL ? op->arguments[first + attribute]->int_default
                            : strtoll(text, NULL, 10);
    }
    for (const char *at = op->types; *at != 0; at += strspn(at, " ")) {
        const size_t n = strcspn(at, ":~ ");
        if (at[n] == '~' && n == length && memcmp(at, s, n) == 0 && r->depth < 4) {
            reader inner = {r->node, at + n + 1, r->depth + 1, 0};
            const int64_t size = read_sum(&inner);
            r->failed |= inner.failed;
            return size;
        }
        at += strcspn(at, " ");
    }
    for (int32_t i = 0; i < op->num_inputs; ++i)
        for (int32_t d = 0; d < op->arguments[i]->num_dims && r->node->args[i] != NULL; ++d)
            if (op->arguments[i]->kind == SPOPS_ARGUMENT_TENSOR &&
                is_same(op->arguments[i]->dims[d], s, length))
                return r->node->args[i]->shape[d];
    return unknown(r, s, length);
}

/* max(a, b), min(a, b), if(a, b, c). */
static int64_t read_function(reader *r, const char *name, size_t length)
{
    int64_t a[3] = {0, 0, 0};
    int n = 0;

    do {
        ++r->at; /* ( or , */
        a[n++] = read_sum(r);
    } while (*r->at == ',' && n < 3 && !r->failed);
    r->at += *r->at == ')';
    if (is_same("max", name, length)) return a[0] > a[1] ? a[0] : a[1];
    if (is_same("min", name, length)) return a[0] < a[1] ? a[0] : a[1];
    return a[0] != 0 ? a[1] : a[2];
}

static int64_t read_factor(reader *r)
{
    const char *word = r->at;
    const size_t n = word_length(word);
    size_t more;

    if (*word == '(') {
        int64_t size;
        ++r->at;
        size = read_sum(r);
        r->at += *r->at == ')';
        return size;
    }
    if (n == 0) return unknown(r, word, strlen(word));
    r->at += n;
    if (isdigit((unsigned char)*word)) return strtoll(word, NULL, 10);
    if (*r->at == '(') return read_function(r, word, n);
    if (*r->at != '.') return named_size(r, word, n);
    more = word_length(r->at + 1);
    r->at += 1 + more;
    return member_size(r, word, n, more);
}

static int64_t read_product(reader *r)
{
    int64_t size = read_factor(r);
    while (!r->failed && (*r->at == '*' || *r->at == '/')) {
        const char op = *r->at++;
        const int64_t by = read_factor(r);
        size = op == '*' ? size * by : by > 0 ? size / by : 0;
    }
    return size;
}

static int64_t read_sum(reader *r)
{
    int64_t size = read_product(r);
    while (!r->failed && (*r->at == '+' || *r->at == '-')) {
        const char op = *r->at++;
        const int64_t by = read_product(r);
        size = op == '+' ? size + by : size - by;
    }
    return size;
}

/* The only dtype that a row lets an output have, or the one that is wanted, or that of the first
   matrix among the inputs. */
static spops_nodes_dtype output_dtype(const spops_nodes_node *node, int32_t arg,
                                      spops_nodes_dtype wanted)
{
    const char *type = node->op->arguments[arg]->type;
    const spops_nodes_dtype only = dtype_of(type, strlen(type));

    if (only != SPOPS_NODES_NUM_DTYPES) return only;
    if (wanted != SPOPS_NODES_NUM_DTYPES) return wanted;
    for (int32_t i = 0; i < node->op->num_inputs; ++i)
        if (node->args[i] != NULL && node->op->arguments[i]->kind == SPOPS_ARGUMENT_TENSOR &&
            node->op->arguments[i]->num_dims == 2)
            return node->args[i]->dtype;
    return SPOPS_NODES_F32;
}

int spops_nodes_shapes(spops_nodes_node *node, spops_nodes_dtype wanted)
{
    for (int32_t i = 0; i < num_args(node->op); ++i) {
        const spops_operator_argument *a = node->op->arguments[i];
        spops_nodes_tensor *t = node->args[i];
        if (t == NULL && !a->is_optional) return fail("%s: %s is missing", node->op->name, a->name);
        if (t == NULL || t->num_dims != 0) continue;
        if (i < node->op->num_inputs || a->kind == SPOPS_ARGUMENT_PLAN)
            return fail("%s: %s has no %s", node->op->name, a->name,
                        a->kind == SPOPS_ARGUMENT_PLAN ? "description" : "shape");
        t->dtype = output_dtype(node, i, wanted);
        for (int32_t d = 0; d < a->num_dims; ++d) {
            reader r = {node, a->dims[d], 0, 0};
            t->shape[d] = read_sum(&r);
            if (r.failed) return 1;
            if (t->shape[d] < 0) return fail("%s: %s has no size", node->op->name, a->name);
        }
        t->num_dims = a->num_dims;
    }
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
        t->dtype_code = dtypes[from->dtype].code;
        t->dtype_bits = dtypes[from->dtype].bits;
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
