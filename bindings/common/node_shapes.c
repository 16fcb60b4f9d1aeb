// SPDX-License-Identifier: Apache-2.0
// Dtypes and shapes of a node's outputs: the expressions of its row, over numbers or an engine's symbols.
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/node.h"

// An expression being worked out.
typedef struct reader {
    spops_node_shapes *s;
    const char *at;
    int32_t depth; // of sizes that stand for other sizes
    bool failed;
} reader;

static spops_node_size number(int64_t value)
{
    return (spops_node_size){value, NULL};
}

static spops_node_size fail(reader *r, const char *what, const char *name, size_t length)
{
    if (!r->failed)
        snprintf(r->s->error, sizeof r->s->error, "%s: %s %.*s", r->s->node->row->op->name, what,
                 (int)length, name);
    r->failed = true;
    return number(0);
}

static size_t word_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_')
        ++n;
    return n;
}

static bool is_same(const char *name, const char *s, size_t length)
{
    return strlen(name) == length && memcmp(name, s, length) == 0;
}

// ---- Names --------------------------------------------------------------------------------------

static int32_t arg_of(const spops_node_row *row, const char *s, size_t length)
{
    for (int32_t i = 0; i < row->num_args; ++i)
        if (is_same(spops_node_arg(row, i)->name, s, length)) return i;
    return -1;
}

// Place of a field in descriptions of a kind, -1: none. Fields may be arrays: `name[4][2]`.
static int32_t place_of(const char *kind, const char *s, size_t length)
{
    int32_t num, at = 2;
    const spops_plan_kind_info *kinds = spops_plan_kinds(&num), *found = NULL;

    for (int32_t i = 0; i < num; ++i)
        if (strcmp(kinds[i].name, kind) == 0) found = &kinds[i];
    for (const char *f = found == NULL ? "" : found->fields; *f != '\0'; f += strspn(f, " ")) {
        const size_t n = word_length(f), all = strcspn(f, " ");
        int32_t count = 1;
        if (n == length && memcmp(f, s, n) == 0) return at;
        for (const char *d = f + n; d < f + all && *d == '['; d += strcspn(d, "]") + 1)
            count *= (int32_t)strtol(d + 1, NULL, 10);
        at += count;
        f += all;
    }
    return -1;
}

// Dimensions as a matrix has them: all but the last are rows, of a tensor in blocks all but the first
// are columns.
static spops_node_size combine(reader *r, char op, spops_node_size a, spops_node_size b);

static spops_node_size dimension_of(reader *r, int32_t arg, bool cols)
{
    const spops_node_shapes *s = r->s;
    const spops_node_row *row = s->node->row;
    const int32_t dims = s->num_dims[arg];
    const bool is_array = spops_node_arg(row, arg)->num_dims == 1;
    const int32_t split = row->blocks[arg] >= 0 ? 1 : dims > 1 ? dims - 1 : dims;
    const int32_t begin = cols && !is_array ? split : 0;
    const int32_t end = cols || is_array ? dims : split;
    spops_node_size n = number(1);

    for (int32_t i = begin; i < end; ++i)
        n = i == begin ? s->dims[arg][i] : combine(r, '*', n, s->dims[arg][i]);
    return n;
}

// plan.field, or rows or cols of a tensor.
static spops_node_size member(reader *r, const char *s, size_t owner, size_t member_length)
{
    const spops_node *node = r->s->node;
    const int32_t arg = arg_of(node->row, s, owner);
    const char *name = s + owner + 1;
    char field[48];
    int32_t at;

    if (arg < 0) return fail(r, "there is no argument", s, owner);
    if (spops_node_arg(node->row, arg)->kind != SPOPS_ARGUMENT_PLAN)
        return dimension_of(r, arg, is_same("cols", name, member_length));
    snprintf(field, sizeof field, "%.*s_ints", (int)owner, s);
    at = spops_node_field_find(node->row, field);
    const spops_node_list *ints = &node->fields[at];
    at = place_of(spops_node_arg(node->row, arg)->type, name, member_length);
    if (ints->data == NULL) return fail(r, "this field is not given:", field, strlen(field));
    if (at < 0 || at >= ints->count)
        return fail(r, "the description is too short for", s, owner + 1 + member_length);
    return number(((const int64_t *)ints->data)[at]);
}

static spops_node_size read_sum(reader *r);

// A size that no dimension gives: `name~expression` among the row's types.
static const char *inferred(const spops_operator *op, const char *s, size_t length)
{
    for (const char *at = op->types; *at != '\0'; at += strspn(at, " ")) {
        const size_t name = strcspn(at, ":~ ");
        if (at[name] == '~' && name == length && memcmp(at, s, length) == 0) return at + name + 1;
        at += strcspn(at, " ");
    }
    return NULL;
}

// A size of a dimension: of the first input that has it, those first that are always there.
static bool find_dimension(reader *r, const char *s, size_t length, bool required_alone,
                           spops_node_size *out)
{
    const spops_node_row *row = r->s->node->row;
    for (int32_t optional = 0; optional < (required_alone ? 1 : 2); ++optional) {
        for (int32_t i = 0; i < row->op->num_inputs; ++i) {
            const spops_operator_argument *a = spops_node_arg(row, i);
            if (a->kind != SPOPS_ARGUMENT_TENSOR || a->is_optional != optional ||
                (r->s->given >> i & 1) == 0)
                continue;
            for (int32_t d = 0; d < a->num_dims; ++d) {
                if (!is_same(a->dims[d], s, length)) continue;
                *out = dimension_of(r, i, d == 1);
                return true;
            }
        }
    }
    return false;
}

static spops_node_size named(reader *r, const char *s, size_t length)
{
    const spops_node *node = r->s->node;
    const char *text = inferred(node->row->op, s, length);
    spops_node_size size = number(0);

    for (int32_t i = 0; i < node->row->num_fields; ++i)
        if (node->row->fields[i].attribute != NULL && is_same(node->row->fields[i].name, s, length))
            return number(node->values[i]);
    if (find_dimension(r, s, length, text != NULL, &size)) return size;
    if (text == NULL || r->depth > 4) return fail(r, "no input has the size", s, length);
    reader inner = {r->s, text, r->depth + 1, false};
    size = read_sum(&inner);
    r->failed |= inner.failed;
    return size;
}

// ---- Expressions --------------------------------------------------------------------------------

static spops_node_size combine(reader *r, char op, spops_node_size a, spops_node_size b)
{
    int64_t n = 0;
    bool is_large = false;

    if (a.symbol != NULL || b.symbol != NULL) {
        const void *symbol =
            r->s->algebra == NULL ? NULL : r->s->algebra->combine(r->s->algebra->user, op, a, b);
        if (symbol == NULL) return fail(r, "the engine cannot combine sizes by", &op, 1);
        return (spops_node_size){0, symbol};
    }
    switch (op) {
    case '+': is_large = __builtin_add_overflow(a.value, b.value, &n); break;
    case '-': is_large = __builtin_sub_overflow(a.value, b.value, &n); break;
    case '*': is_large = __builtin_mul_overflow(a.value, b.value, &n); break;
    case '/': n = b.value > 0 ? a.value / b.value : 0; break;
    case 'M': n = a.value > b.value ? a.value : b.value; break;
    default: n = a.value < b.value ? a.value : b.value; break;
    }
    return is_large ? fail(r, "a size leaves 64 bits by", &op, 1) : number(n);
}

static spops_node_size read_call(reader *r, const char *name, size_t length)
{
    spops_node_size args[3] = {{0, NULL}, {0, NULL}, {0, NULL}};
    int32_t n = 0;

    do {
        ++r->at; // ( or ,
        if (n == 3) return fail(r, "too many arguments of", name, length);
        args[n++] = read_sum(r);
    } while (*r->at == ',' && !r->failed);
    if (*r->at == ')') ++r->at;
    if (is_same("max", name, length)) return combine(r, 'M', args[0], args[1]);
    if (is_same("min", name, length)) return combine(r, 'm', args[0], args[1]);
    if (args[0].symbol != NULL) return fail(r, "a size decides:", name, length);
    return args[0].value != 0 ? args[1] : args[2];
}

static spops_node_size read_factor(reader *r)
{
    const char *word = r->at;
    size_t n = word_length(word);

    if (*word == '(') {
        ++r->at;
        const spops_node_size size = read_sum(r);
        if (*r->at == ')') ++r->at;
        return size;
    }
    if (isdigit((unsigned char)*word)) {
        char *end;
        const long long value = strtoll(word, &end, 10);
        r->at = end;
        return number(value);
    }
    if (n == 0) return fail(r, "no size at", word, strlen(word));
    r->at += n;
    if (*r->at == '(') return read_call(r, word, n);
    if (*r->at != '.') return named(r, word, n);
    const size_t more = word_length(r->at + 1);
    r->at += 1 + more;
    return member(r, word, n, more);
}

static spops_node_size read_product(reader *r)
{
    spops_node_size size = read_factor(r);
    while (!r->failed && (*r->at == '*' || *r->at == '/')) {
        const char op = *r->at++;
        size = combine(r, op, size, read_factor(r));
    }
    return size;
}

static spops_node_size read_sum(reader *r)
{
    spops_node_size size = read_product(r);
    while (!r->failed && (*r->at == '+' || *r->at == '-')) {
        const char op = *r->at++;
        size = combine(r, op, size, read_product(r));
    }
    return size;
}

// ---- Dtypes of outputs --------------------------------------------------------------------------

static spops_node_dtype bound(const spops_node_shapes *s, const char *variable, size_t length)
{
    const spops_node_row *row = s->node->row;
    for (int32_t optional = 0; optional < 2; ++optional) {
        for (int32_t i = 0; i < row->op->num_inputs; ++i) {
            const spops_operator_argument *a = spops_node_arg(row, i);
            if (a->kind == SPOPS_ARGUMENT_TENSOR && a->is_optional == optional &&
                (s->given >> i & 1) != 0 && is_same(a->type, variable, length))
                return s->dtypes[i];
        }
    }
    return SPOPS_NODE_NONE;
}

// What the row says of a variable, NULL: it has none of this name.
static const char *variable_text(const spops_operator *op, const char *s, size_t length)
{
    for (const char *at = op->types; *at != '\0'; at += strspn(at, " ")) {
        const size_t name = strcspn(at, ":~ ");
        if (at[name] == ':' && name == length && memcmp(at, s, length) == 0) return at + name + 1;
        at += strcspn(at, " ");
    }
    return NULL;
}

// The dtype of the first of the words that is a variable with one, or stands on one.
static spops_node_dtype bound_word(const spops_node_shapes *s, const char *words)
{
    const spops_operator *op = s->node->row->op;
    while (*words != '\0' && *words != ' ') {
        const size_t n = strcspn(words, "| ");
        const char *text = variable_text(op, words, n);
        if (text != NULL) {
            const spops_node_dtype dtype = bound(s, words, n);
            return dtype != SPOPS_NODE_NONE ? dtype : bound_word(s, text);
        }
        words += n;
        words += *words == '|';
    }
    return SPOPS_NODE_NONE;
}

static bool has_variable(const spops_operator *op, const char *words)
{
    for (;;) {
        const size_t n = strcspn(words, "|");
        if (variable_text(op, words, n) != NULL) return true;
        if (words[n] == '\0') return false;
        words += n + 1;
    }
}

static spops_node_dtype first_dtype(const char *words)
{
    for (int32_t d = 0; d < SPOPS_NODE_NUM_DTYPES; ++d)
        if (is_same(spops_node_dtype_name((spops_node_dtype)d), words, strcspn(words, "|")))
            return (spops_node_dtype)d;
    return SPOPS_NODE_NONE;
}

// That of the first input that is always there, where the output may have it.
static spops_node_dtype first_input_dtype(const spops_node_shapes *s, int32_t arg)
{
    const spops_node_row *row = s->node->row;
    spops_node_dtype none[SPOPS_NODE_MAX_ARGS];

    for (int32_t i = 0; i < SPOPS_NODE_MAX_ARGS; ++i)
        none[i] = SPOPS_NODE_NONE;
    for (int32_t i = 0; i < row->op->num_inputs; ++i) {
        const spops_operator_argument *a = spops_node_arg(row, i);
        if (a->kind != SPOPS_ARGUMENT_TENSOR || a->is_optional) continue;
        if ((s->given >> i & 1) != 0 && spops_node_accepts(row, none, arg, s->dtypes[i]))
            return s->dtypes[i];
        break;
    }
    return SPOPS_NODE_NONE;
}

spops_node_dtype spops_node_output_dtype(spops_node_shapes *s, int32_t arg)
{
    const spops_node_row *row = s->node->row;
    const spops_operator_argument *o = spops_node_arg(row, arg);
    spops_node_dtype dtype;

    if (o->kind == SPOPS_ARGUMENT_PLAN) return SPOPS_NODE_I32;
    if (strncmp(o->type, "sum(", 4) == 0) {
        dtype = bound(s, o->type + 4, strlen(o->type) - 5);
        return dtype == SPOPS_NODE_F64 ? SPOPS_NODE_F64 : SPOPS_NODE_F32;
    }
    if (s->node->output_dtype != SPOPS_NODE_NONE && (row->free_outputs >> arg & 1) != 0)
        return s->node->output_dtype;
    if (!has_variable(row->op, o->type)) return first_dtype(o->type);
    dtype = bound_word(s, o->type);
    if (dtype == SPOPS_NODE_NONE) dtype = first_input_dtype(s, arg);
    if (dtype == SPOPS_NODE_NONE)
        snprintf(s->error, sizeof s->error,
                 "%s: the dtype of %s does not follow from inputs, expected output_dtype",
                 row->op->name, o->name);
    return dtype;
}

// ---- Shapes of outputs --------------------------------------------------------------------------

// Contexts that measure plans, one for each device: how large a block is depends on where it lives.
enum { DLPACK_CUDA = 2, MAX_DEVICES = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static spops_context *measures[1 + MAX_DEVICES];

static spops_status open_measure(bool on_cuda, int32_t device, spops_context **ctx)
{
    spops_context_options options = spops_context_options_default();
    spops_context **at = &measures[on_cuda ? 1 + device : 0];
    spops_status status = SPOPS_STATUS_OK;

    options.backend = on_cuda ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU;
    options.device = on_cuda ? device : 0;
    options.num_threads = 1;
    if (*at == NULL) status = spops_context_create(&options, at);
    *ctx = *at;
    return status;
}

// Bytes of the block of a plan, with those that it stands on; -1: an error.
static int64_t block_bytes(spops_node_shapes *s, const spops_node_list *ints, const char *name)
{
    const bool on_cuda = s->device_type == DLPACK_CUDA;
    spops_context *ctx = NULL;
    size_t bytes = 0;
    spops_status status;

    if (s->device < 0 || s->device >= MAX_DEVICES) return -1;
    pthread_mutex_lock(&lock);
    status = open_measure(on_cuda, s->device, &ctx);
    if (status == SPOPS_STATUS_OK)
        status = spops_plan_measure(ctx, (const int64_t *)ints->data, ints->count, &bytes, NULL);
    if (status != SPOPS_STATUS_OK)
        snprintf(s->error, sizeof s->error, "%s: %s: %s", s->node->row->op->name, name,
                 spops_last_error(ctx));
    pthread_mutex_unlock(&lock);
    return status == SPOPS_STATUS_OK ? (int64_t)bytes : -1;
}

static bool plan_shape(spops_node_shapes *s, int32_t arg)
{
    const spops_node *node = s->node;
    int64_t bytes = -1;

    for (int32_t i = 0; i < node->row->num_fields; ++i) {
        if (node->row->fields[i].arg != arg) continue;
        if (node->fields[i].data == NULL) {
            snprintf(s->error, sizeof s->error,
                     "%s: %s is not given, expected the description of the plan that is made",
                     node->row->op->name, node->row->fields[i].name);
            return false;
        }
        bytes = block_bytes(s, &node->fields[i], node->row->fields[i].name);
    }
    s->num_dims[arg] = 1;
    s->dims[arg][0] = number((bytes + 3) / 4);
    return bytes >= 0;
}

// The first input whose columns lie in blocks as those of the output do; -1: there is none.
static int32_t like_of(const spops_node_shapes *s, int32_t arg)
{
    const spops_node_row *row = s->node->row;
    if (row->blocks[arg] < 0) return -1;
    for (int32_t i = 0; i < row->op->num_inputs; ++i)
        if (row->blocks[i] >= 0 && (s->given >> i & 1) != 0 && s->num_dims[i] > 1 &&
            strcmp(spops_node_arg(row, i)->dims[1], spops_node_arg(row, arg)->dims[1]) == 0)
            return i;
    return -1;
}

int32_t spops_node_output_rank(const spops_node_shapes *s, int32_t arg)
{
    const spops_node_row *row = s->node->row;
    const spops_operator_argument *o = spops_node_arg(row, arg);
    const int32_t like = like_of(s, arg);
    if (o->kind == SPOPS_ARGUMENT_PLAN) return 1;
    return like >= 0 ? s->num_dims[like] : o->num_dims;
}

bool spops_node_output_shape(spops_node_shapes *s, int32_t arg)
{
    const spops_node_row *row = s->node->row;
    const spops_operator_argument *o = spops_node_arg(row, arg);
    const int32_t like = like_of(s, arg);

    s->error[0] = '\0';
    if (o->kind == SPOPS_ARGUMENT_PLAN) return plan_shape(s, arg);
    s->num_dims[arg] = spops_node_output_rank(s, arg);
    for (int32_t d = 0; d < o->num_dims; ++d) {
        reader r = {s, o->dims[d], 0, false};
        s->dims[arg][d] = read_sum(&r);
        if (r.failed) return false;
        if (s->dims[arg][d].symbol == NULL && s->dims[arg][d].value < 0) {
            snprintf(s->error, sizeof s->error, "%s: size %d of %s is negative", row->op->name,
                     (int)d, o->name);
            return false;
        }
    }
    for (int32_t d = 1; like >= 0 && d < s->num_dims[arg]; ++d)
        s->dims[arg][d] = s->dims[like][d];
    return true;
}
