// SPDX-License-Identifier: Apache-2.0
// Rows as engines see them: fields, dtypes.
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/node.h"

enum { MAX_DESCRIPTION = 4096, MAX_TEXT = 256 };

static const struct {
    const char *name;
    int32_t bits;
} dtypes[SPOPS_NODE_NUM_DTYPES] = {
    [SPOPS_NODE_F32] = {"f32", 32},      [SPOPS_NODE_F16] = {"f16", 16},
    [SPOPS_NODE_BF16] = {"bf16", 16},    [SPOPS_NODE_F64] = {"f64", 64},
    [SPOPS_NODE_F8E4M3] = {"f8e4m3", 8}, [SPOPS_NODE_F8E5M2] = {"f8e5m2", 8},
    [SPOPS_NODE_F4E2M1] = {"f4e2m1", 4}, [SPOPS_NODE_I8] = {"i8", 8},
    [SPOPS_NODE_I32] = {"i32", 32},      [SPOPS_NODE_I64] = {"i64", 64},
    [SPOPS_NODE_U8] = {"u8", 8},
};

static const struct {
    const char *name, *members;
} sets[] = {
    {"float", "f32|f16|bf16"}, {"real", "f32|f16|bf16|f64"}, {"narrow", "f8e4m3|f8e5m2|f4e2m1"}};

static struct {
    int32_t num;
    spops_node_row *rows;
} all;

const char *spops_node_dtype_name(spops_node_dtype dtype)
{
    return dtype >= 0 && dtype < SPOPS_NODE_NUM_DTYPES ? dtypes[dtype].name : "none";
}

size_t spops_node_dtype_bytes(spops_node_dtype dtype, int64_t count)
{
    return ((size_t)count * (size_t)dtypes[dtype].bits + 7) / 8;
}

// ---- Words --------------------------------------------------------------------------------------

static bool is_word(const char *word, const char *s, size_t length)
{
    return strlen(word) == length && memcmp(word, s, length) == 0;
}

static spops_node_dtype dtype_of(const char *s, size_t length)
{
    for (int32_t i = 0; i < SPOPS_NODE_NUM_DTYPES; ++i)
        if (is_word(dtypes[i].name, s, length)) return (spops_node_dtype)i;
    return SPOPS_NODE_NONE;
}

// What a variable of the row may be ("f32|f16|bf16" of "T:float"), NULL: there is no such variable.
static const char *variable_of(const spops_operator *op, const char *s, size_t length, size_t *n)
{
    for (const char *at = op->types; *at != '\0'; at += strspn(at, " ")) {
        const size_t all_of_it = strcspn(at, " "), name = strcspn(at, ":~ ");
        if (name == length && at[name] == ':' && memcmp(at, s, length) == 0) {
            *n = all_of_it - name - 1;
            return at + name + 1;
        }
        at += all_of_it;
    }
    return NULL;
}

// The dtype that the arguments before `arg` of exactly this type have.
static spops_node_dtype bound_before(const spops_node_row *row, const spops_node_dtype *of,
                                     int32_t arg, const char *s, size_t length)
{
    for (int32_t i = 0; i < arg; ++i) {
        const spops_operator_argument *a = spops_node_arg(row, i);
        if (a->kind == SPOPS_ARGUMENT_TENSOR && of[i] != SPOPS_NODE_NONE &&
            is_word(a->type, s, length))
            return of[i];
    }
    return SPOPS_NODE_NONE;
}

// Whether `dtype` is among the words of text, which may be sets and variables.
static bool is_among(const spops_node_row *row, const spops_node_dtype *of, int32_t arg,
                     const char *text, size_t length, spops_node_dtype dtype)
{
    for (size_t at = 0; at < length;) {
        size_t n = 0, inner = 0;
        const char *word = text + at, *variable;
        while (at + n < length && word[n] != '|')
            ++n;
        at += n + 1;
        if (dtype_of(word, n) == dtype) return true;
        for (size_t i = 0; i < sizeof sets / sizeof *sets; ++i)
            if (is_word(sets[i].name, word, n) &&
                is_among(row, of, arg, sets[i].members, strlen(sets[i].members), dtype))
                return true;
        variable = variable_of(row->op, word, n, &inner);
        if (variable == NULL) continue;
        const spops_node_dtype bound = bound_before(row, of, arg, word, n);
        if (bound != SPOPS_NODE_NONE ? bound == dtype
                                     : is_among(row, of, arg, variable, inner, dtype))
            return true;
    }
    return false;
}

bool spops_node_accepts(const spops_node_row *row, const spops_node_dtype *of, int32_t arg,
                        spops_node_dtype dtype)
{
    const spops_operator_argument *a = spops_node_arg(row, arg);

    if (a->kind == SPOPS_ARGUMENT_PLAN) return dtype == SPOPS_NODE_I32;
    if (strncmp(a->type, "sum(", 4) == 0) {
        const spops_node_dtype sum = bound_before(row, of, arg, a->type + 4, strlen(a->type) - 5);
        return dtype == (sum == SPOPS_NODE_F64 ? SPOPS_NODE_F64 : SPOPS_NODE_F32);
    }
    return is_among(row, of, arg, a->type, strlen(a->type), dtype);
}

spops_node_dtype spops_node_only_dtype(const spops_node_row *row, int32_t arg)
{
    const spops_operator_argument *a = spops_node_arg(row, arg);
    if (a->kind == SPOPS_ARGUMENT_PLAN) return SPOPS_NODE_I32;
    return dtype_of(a->type, strlen(a->type));
}

// ---- Fields -------------------------------------------------------------------------------------

static spops_node_field *add_field(spops_node_row *row, const char *name, const char *ending,
                                   spops_node_field_kind kind, int32_t most)
{
    spops_node_field *f = &row->fields[row->num_fields++];
    assert(row->num_fields <= SPOPS_NODE_MAX_FIELDS);
    snprintf(f->name, sizeof f->name, "%s%s", name, ending);
    f->kind = kind;
    f->most = most;
    f->arg = -1;
    return f;
}

static void add_attribute(spops_node_row *row, const spops_operator_argument *a)
{
    const bool is_list = a->kind == SPOPS_ARGUMENT_INTS || a->kind == SPOPS_ARGUMENT_FLOATS;
    const bool is_float = a->kind == SPOPS_ARGUMENT_FLOAT || a->kind == SPOPS_ARGUMENT_FLOATS;
    add_field(row, a->name, "", is_float ? SPOPS_NODE_FIELD_FLOATS : SPOPS_NODE_FIELD_INTS,
              is_list ? a->count : 1)
        ->attribute = a;
}

// An output whose dtype no input gives: the caller may say it.
static bool is_free(const spops_node_row *row, const spops_operator_argument *o)
{
    size_t n;
    if (o->kind != SPOPS_ARGUMENT_TENSOR || o->is_optional) return false;
    if (strchr(o->type, '|') != NULL) return true;
    if (variable_of(row->op, o->type, strlen(o->type), &n) == NULL) return false;
    for (int32_t i = 0; i < row->op->num_inputs; ++i) {
        const spops_operator_argument *a = spops_node_arg(row, i);
        if (a->kind == SPOPS_ARGUMENT_TENSOR && !a->is_optional && strcmp(a->type, o->type) == 0)
            return false;
    }
    return true;
}

// False for a row of a later library that has more than a node may have.
static bool read_row(spops_node_row *row, const spops_operator *op)
{
    enum { OWN_FIELDS = 4 };
    int32_t num_fields = OWN_FIELDS + op->num_attributes;

    row->op = op;
    row->num_args = op->num_inputs + op->num_outputs;
    for (int32_t i = 0; i < row->num_args; ++i)
        num_fields += op->arguments[i]->kind == SPOPS_ARGUMENT_PLAN;
    if (row->num_args > SPOPS_NODE_MAX_ARGS || num_fields > SPOPS_NODE_MAX_FIELDS) return false;
    for (int32_t i = 0; i < row->num_args; ++i)
        if (op->arguments[i]->kind == SPOPS_ARGUMENT_PLAN)
            add_field(row, op->arguments[i]->name, "_ints", SPOPS_NODE_FIELD_INTS, MAX_DESCRIPTION)
                ->arg = i;
    for (int32_t i = 0; i < op->num_attributes; ++i)
        add_attribute(row, op->arguments[row->num_args + i]);
    for (int32_t i = op->num_inputs; i < row->num_args; ++i) {
        if (op->arguments[i]->is_updated) row->begins[row->num_begins++] = (int8_t)i;
        if (is_free(row, op->arguments[i])) row->free_outputs |= 1u << i;
    }
    add_field(row, "present", "", SPOPS_NODE_FIELD_TEXT, MAX_TEXT);
    add_field(row, "begin", "", SPOPS_NODE_FIELD_TEXT, MAX_TEXT);
    add_field(row, "alias", "", SPOPS_NODE_FIELD_TEXT, MAX_TEXT);
    add_field(row, "output_dtype", "", SPOPS_NODE_FIELD_TEXT, MAX_TEXT);
    return true;
}

// A library before communicators has a shorter struct.
static bool needs_handles(const spops_operator *op)
{
    const size_t end = offsetof(spops_operator, needs_handles) + sizeof op->needs_handles;
    return op->struct_size >= end && op->needs_handles != 0;
}

static void read_rows(void)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    all.rows = (spops_node_row *)calloc((size_t)num, sizeof *all.rows);
    for (int32_t i = 0; all.rows != NULL && i < num; ++i)
        if (!needs_handles(ops[i]) && read_row(&all.rows[all.num], ops[i])) ++all.num;
}

const spops_node_row *spops_node_rows(int32_t *num)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, read_rows);
    if (num != NULL) *num = all.num;
    return all.rows;
}

const spops_node_row *spops_node_row_find(const char *name)
{
    const spops_node_row *rows = spops_node_rows(NULL);
    for (int32_t i = 0; name != NULL && i < all.num; ++i)
        if (strcmp(rows[i].op->name, name) == 0) return &rows[i];
    return NULL;
}

int32_t spops_node_field_find(const spops_node_row *row, const char *name)
{
    for (int32_t i = 0; name != NULL && i < row->num_fields; ++i)
        if (strcmp(row->fields[i].name, name) == 0) return i;
    return -1;
}

// ---- Nodes --------------------------------------------------------------------------------------

spops_node *spops_node_create(const spops_node_row *row)
{
    spops_node *node = (spops_node *)calloc(1, sizeof *node);
    if (node == NULL) return NULL;
    node->row = row;
    node->output_dtype = SPOPS_NODE_NONE;
    for (int32_t i = 0; i < row->num_args; ++i)
        if (!row->op->arguments[i]->is_optional) node->present |= 1u << i;
    for (int32_t i = 0; i < row->num_fields; ++i) {
        const spops_operator_argument *a = row->fields[i].attribute;
        if (a == NULL) continue;
        node->values[i] = a->int_default;
        if (a->kind == SPOPS_ARGUMENT_FLOAT)
            memcpy(&node->values[i], &a->float_default, sizeof a->float_default);
    }
    return node;
}

static size_t bytes_of(const spops_node_list *list, spops_node_field_kind kind)
{
    return kind == SPOPS_NODE_FIELD_TEXT ? (size_t)list->count + 1 : (size_t)list->count * 8;
}

spops_node *spops_node_copy(const spops_node *node)
{
    spops_node *copy = (spops_node *)malloc(sizeof *copy);
    if (copy == NULL) return NULL;
    *copy = *node;
    for (int32_t i = 0; i < SPOPS_NODE_MAX_FIELDS; ++i)
        copy->fields[i].data = NULL;
    for (int32_t i = 0; i < node->row->num_fields; ++i) {
        if (node->fields[i].data == NULL) continue;
        const size_t bytes = bytes_of(&node->fields[i], node->row->fields[i].kind);
        copy->fields[i].data = malloc(bytes > 0 ? bytes : 1);
        if (copy->fields[i].data == NULL) {
            spops_node_destroy(copy);
            return NULL;
        }
        memcpy(copy->fields[i].data, node->fields[i].data, bytes);
    }
    return copy;
}

void spops_node_destroy(spops_node *node)
{
    if (node == NULL) return;
    for (int32_t i = 0; i < SPOPS_NODE_MAX_FIELDS; ++i)
        free(node->fields[i].data);
    free(node);
}

// ---- Setting fields -----------------------------------------------------------------------------

static bool fail(char *error, const spops_node *node, int32_t field, const char *found,
                 const char *expected)
{
    snprintf(error, SPOPS_NODE_ERROR, "%s: %s is %s, expected %s", node->row->op->name,
             node->row->fields[field].name, found, expected);
    return false;
}

// The number of a name among names separated by spaces, -1: none.
static int64_t number_of(const char *names, const char *s, size_t length)
{
    int64_t number = 0;
    for (const char *w = names; *w != '\0'; ++number) {
        const size_t n = strcspn(w, " ");
        if (n == length && memcmp(w, s, n) == 0) return number;
        w += n;
        w += strspn(w, " ");
    }
    return -1;
}

// An enumerator, or flags, by name.
static bool set_names(spops_node *node, int32_t field, const char *s, size_t length, char *error)
{
    const spops_operator_argument *a = node->row->fields[field].attribute;
    char found[48];
    int64_t value = 0;

    if (a == NULL || a->values == NULL) return fail(error, node, field, "text", "numbers");
    snprintf(found, sizeof found, "\"%.*s\"", (int)(length < 40 ? length : 40), s);
    for (size_t at = 0; at <= length;) {
        const char *bar = (const char *)memchr(s + at, '|', length - at);
        const size_t n = bar == NULL ? length - at : (size_t)(bar - s) - at;
        const int64_t number = number_of(a->values, s + at, n);
        if (number < 0) return fail(error, node, field, found, a->values);
        value = a->kind == SPOPS_ARGUMENT_FLAGS ? value | (int64_t)1 << number : number;
        if (bar == NULL) break;
        if (a->kind != SPOPS_ARGUMENT_FLAGS) return fail(error, node, field, found, a->values);
        at += n + 1;
    }
    node->values[field] = value;
    return true;
}

// Names of arguments, separated by spaces or commas, as bits.
static bool read_names(spops_node *node, int32_t field, const char *s, size_t length,
                       uint32_t among, uint32_t *bits, char *error)
{
    *bits = 0;
    for (size_t at = 0; at < length;) {
        size_t n = 0;
        int32_t arg = -1;
        while (at + n < length && s[at + n] != ' ' && s[at + n] != ',' && s[at + n] != '\0')
            ++n;
        for (int32_t i = 0; i < node->row->num_args; ++i)
            if ((among >> i & 1) != 0 && is_word(spops_node_arg(node->row, i)->name, s + at, n))
                arg = i;
        if (n > 0 && arg < 0) {
            char found[48];
            snprintf(found, sizeof found, "\"%.*s\"", (int)(n < 40 ? n : 40), s + at);
            return fail(error, node, field, found, "names of arguments that it may have");
        }
        if (n > 0) *bits |= 1u << arg;
        at += n + 1;
    }
    return true;
}

static bool set_text(spops_node *node, int32_t field, const char *s, size_t length, char *error)
{
    const spops_node_row *row = node->row;
    const char *name = row->fields[field].name;
    uint32_t optional = 0, updated = 0, in_place = 0;

    for (int32_t i = 0; i < row->num_args; ++i) {
        const spops_operator_argument *a = spops_node_arg(row, i);
        if (a->is_optional) optional |= 1u << i;
        if (a->is_updated) updated |= 1u << i;
        if (a->may_be != NULL && a->kind == SPOPS_ARGUMENT_TENSOR) in_place |= 1u << i;
    }
    if (strcmp(name, "present") == 0) {
        uint32_t bits = 0;
        if (!read_names(node, field, s, length, optional, &bits, error)) return false;
        node->present = (node->present & ~optional) | bits;
        return true;
    }
    if (strcmp(name, "begin") == 0)
        return read_names(node, field, s, length, updated, &node->begins, error);
    if (strcmp(name, "alias") == 0)
        return read_names(node, field, s, length, updated | in_place, &node->aliases, error);
    node->output_dtype = dtype_of(s, length);
    if (length > 0 && node->output_dtype == SPOPS_NODE_NONE)
        return fail(error, node, field, "another text", "the name of a dtype");
    if (length > 0 && row->free_outputs == 0)
        return fail(error, node, field, "given", "none, as inputs say the dtypes of outputs");
    return true;
}

static int64_t int_at(spops_node_data type, const void *data, int32_t i)
{
    return type == SPOPS_NODE_DATA_I32 ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
}

static double float_at(spops_node_data type, const void *data, int32_t i)
{
    if (type == SPOPS_NODE_DATA_F32) return (double)((const float *)data)[i];
    if (type == SPOPS_NODE_DATA_F64) return ((const double *)data)[i];
    return (double)int_at(type, data, i);
}

static bool set_numbers(spops_node *node, int32_t field, spops_node_data type, const void *data,
                        int32_t count, int64_t *to, char *error)
{
    const bool wants_floats = node->row->fields[field].kind == SPOPS_NODE_FIELD_FLOATS;
    const bool has_floats = type == SPOPS_NODE_DATA_F32 || type == SPOPS_NODE_DATA_F64;

    if (has_floats && !wants_floats)
        return fail(error, node, field, "floating-point numbers", "integers");
    for (int32_t i = 0; i < count; ++i) {
        const double d = wants_floats ? float_at(type, data, i) : 0;
        if (wants_floats)
            memcpy(&to[i], &d, sizeof d);
        else
            to[i] = int_at(type, data, i);
    }
    return true;
}

bool spops_node_set(spops_node *node, int32_t field, spops_node_data type, const void *data,
                    int32_t count, char *error)
{
    const spops_node_field *f = &node->row->fields[field];
    spops_node_list *list = &node->fields[field];
    const bool is_text = type == SPOPS_NODE_DATA_TEXT;
    void *copy;

    error[0] = '\0';
    if (count < 0 || (count > 0 && data == NULL)) return fail(error, node, field, "NULL", "data");
    if (is_text)
        while (count > 0 && ((const char *)data)[count - 1] == '\0')
            --count;
    if (!is_text && f->attribute != NULL && f->attribute->kind < SPOPS_ARGUMENT_INTS && count != 1)
        return fail(error, node, field, "a list", "one number");
    if (count > f->most && !is_text) return fail(error, node, field, "longer", "fewer numbers");
    if (is_text && count > MAX_TEXT) return fail(error, node, field, "longer", "fewer letters");
    if (!is_text && f->kind == SPOPS_NODE_FIELD_TEXT)
        return fail(error, node, field, "numbers", "text");
    copy = calloc((size_t)count + 1, is_text ? 1 : sizeof(int64_t));
    if (copy == NULL) return fail(error, node, field, "out of host memory", "memory");
    if (is_text && count > 0)
        memcpy(copy, data, (size_t)count);
    else if (!is_text && !set_numbers(node, field, type, data, count, (int64_t *)copy, error)) {
        free(copy);
        return false;
    }
    if (is_text && !(f->kind == SPOPS_NODE_FIELD_TEXT
                         ? set_text(node, field, (const char *)copy, (size_t)count, error)
                         : set_names(node, field, (const char *)copy, (size_t)count, error))) {
        free(copy);
        return false;
    }
    if (f->kind != SPOPS_NODE_FIELD_TEXT && is_text) { // a number from here on
        free(copy);
        return true;
    }
    if (f->attribute != NULL && f->attribute->kind < SPOPS_ARGUMENT_INTS && count == 1)
        memcpy(&node->values[field], copy, sizeof(int64_t));
    free(list->data);
    list->data = copy;
    list->count = count;
    return true;
}
