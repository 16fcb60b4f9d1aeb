// SPDX-License-Identifier: Apache-2.0
// Parsing operators.def into static storage.
#include "call/rows.h"

#include <assert.h>
#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/plan.h"

enum { MAX_TEXT = 1 << 17, MAX_ARGUMENTS = 2560, MAX_CODE = 8192, MAX_STACK = 16 };

static const struct {
    const char *name, *function, *types, *inputs, *outputs, *attributes, *gradient, *scratch, *doc;
} texts[] = {
#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    {#name, function, types, inputs, outputs, attributes, gradient, scratch, doc},
#include "call/operators.def"
};

static const struct {
    const char *name, *values;
    bool is_flags;
} enums[] = {
#define SPOPS_ENUM(name, values)  {#name, values, false},
#define SPOPS_FLAGS(name, values) {#name, values, true},
#include "call/operators.def"
};

#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    SPOPS_API int __tvm_ffi_##name(void *self, const spops_value *args, int32_t num_args,          \
                                   spops_value *ret);
#include "call/operators.def"

static const spops_boxed entries[] = {
#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    __tvm_ffi_##name,
#include "call/operators.def"
};

// What an instruction does with the top of the stack.
typedef enum code_op {
    OP_CONSTANT,
    OP_SLOT,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_MAX,
    OP_MIN,
    OP_IF
} code_op;

typedef struct code {
    code_op op;
    int64_t value; // constant or slot
} code;

static struct {
    spops_row rows[SPOPS_NUM_OPERATORS];
    spops_operator ops[SPOPS_NUM_OPERATORS];
    const spops_operator *list[SPOPS_NUM_OPERATORS];
    spops_operator_argument arguments[MAX_ARGUMENTS];
    const spops_operator_argument *argument_list[MAX_ARGUMENTS];
    int32_t num_arguments;
    char text[MAX_TEXT];
    int32_t text_used;
    code program[MAX_CODE];
    int32_t program_used;
    char error[160];
    bool failed;
} parsed;

// ---- Words --------------------------------------------------------------------------------------

// One row being read.
typedef struct reader {
    spops_row *row;
    const char *s; // what is left
} reader;

static void fail(reader *r, const char *what)
{
    if (parsed.failed) return;
    parsed.failed = true;
    snprintf(parsed.error, sizeof parsed.error, "%s: %s at \"%.40s\"", r->row->op->name, what,
             r->s);
}

// Whether `used` more than a table has are wanted: the list has outgrown it, which fails the parse.
static bool is_full(int32_t used, int32_t room, const char *table)
{
    if (used <= room) return false;
    if (!parsed.failed)
        snprintf(parsed.error, sizeof parsed.error,
                 "the list of operators needs more than %" PRId32 " %s", room, table);
    parsed.failed = true;
    return true;
}

static bool take(reader *r, char c)
{
    if (*r->s != c) return false;
    ++r->s;
    return true;
}

static void expect(reader *r, char c)
{
    static const char message[] = "another sign expected";
    if (!take(r, c)) fail(r, message);
}

static void skip_spaces(reader *r)
{
    while (*r->s == ' ')
        ++r->s;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static int word_length(const char *s)
{
    int n = 0;
    while (is_word(s[n]))
        ++n;
    return n;
}

static const char *keep(const char *s, int length)
{
    char *to = parsed.text + parsed.text_used;
    if (is_full(parsed.text_used + length + 1, MAX_TEXT, "characters of names")) return "";
    memcpy(to, s, (size_t)length);
    to[length] = '\0';
    parsed.text_used += length + 1;
    return to;
}

static const char *take_word(reader *r)
{
    const int n = word_length(r->s);
    const char *word;
    if (n == 0) fail(r, "a name expected");
    word = keep(r->s, n);
    r->s += n;
    return word;
}

static bool is_same(const char *name, const char *s, int length)
{
    return name != NULL && (int)strlen(name) == length && memcmp(name, s, (size_t)length) == 0;
}

// ---- Sizes --------------------------------------------------------------------------------------

static int find_arg(const spops_row *row, const char *s, int length)
{
    for (int i = 0; i < SPOPS_ROW_MAX_ARGS; ++i)
        if (is_same(row->args[i].name, s, length)) return i;
    return -1;
}

// Names of all arguments, and which are plans, before shapes name them; `at` goes on.
static void name_args(spops_row *row, const char *text, int *at)
{
    while (*text == ' ')
        ++text;
    while (*text != '\0' && *at < SPOPS_ROW_MAX_ARGS) {
        spops_row_arg *arg = &row->args[(*at)++];
        const int n = word_length(text), all = (int)strcspn(text, " ");
        arg->name = keep(text, n);
        arg->is_plan = strncmp(text + strcspn(text, ":"), ":plan(", 6) == 0;
        arg->is_comm = all > 5 && strncmp(text + all - 5, ":comm", 5) == 0;
        text += all;
        while (*text == ' ')
            ++text;
    }
}

// Names of sizes and fields of the row in work, by slot.
static const char *slot_names[SPOPS_ROW_MAX_SLOTS];

static int find_slot(const spops_row *row, const char *s, int length)
{
    for (int i = 0; i < row->num_slots; ++i)
        if (is_same(slot_names[i], s, length)) return i;
    return -1;
}

static int add_slot(reader *r, const char *s, int length)
{
    const int found = find_slot(r->row, s, length);
    if (found >= 0) return found;
    if (r->row->num_slots == SPOPS_ROW_MAX_SLOTS) {
        fail(r, "too many sizes");
        return 0;
    }
    slot_names[r->row->num_slots] = keep(s, length);
    return r->row->num_slots++;
}

// A name in an expression: a size, an attribute, plan.field, or tensor.rows or .cols.
static int named_slot(reader *r)
{
    const char *begin = r->s;
    int n = word_length(begin), arg, slot;

    if (begin[n] != '.' || begin[n + 1] == '.') {
        r->s += n;
        return add_slot(r, begin, n);
    }
    arg = find_arg(r->row, begin, n);
    n += 1 + word_length(begin + n + 1);
    r->s += n;
    slot = find_slot(r->row, begin, n);
    if (slot >= 0) return slot;
    slot = add_slot(r, begin, n);
    if (arg < 0) {
        fail(r, "no such argument");
    } else if (r->row->args[arg].is_plan) {
        const int i = r->row->num_fields++;
        const char *field = strchr(slot_names[slot], '.') + 1;
        assert(i < (int)(sizeof r->row->fields / sizeof *r->row->fields));
        r->row->fields[i].slot = (uint8_t)slot;
        r->row->fields[i].arg = (uint8_t)arg;
        r->row->fields[i].name = field;
    } else {
        const int i = r->row->num_sources++;
        const bool is_cols = strcmp(slot_names[slot] + n - 4, "cols") == 0;
        r->row->sources[i] = (spops_row_source){(uint8_t)slot, (uint8_t)arg, is_cols};
    }
    return slot;
}

static void emit(code_op op, int64_t value)
{
    if (!is_full(parsed.program_used + 1, MAX_CODE, "steps of shapes"))
        parsed.program[parsed.program_used++] = (code){op, value};
}

static void read_sum(reader *r);

static void read_function(reader *r, code_op op, int num_args)
{
    expect(r, '(');
    for (int i = 0; i < num_args; ++i) {
        if (i > 0) expect(r, ',');
        read_sum(r);
    }
    expect(r, ')');
    emit(op, 0);
}

static void read_factor(reader *r)
{
    const int n = word_length(r->s);
    if (take(r, '(')) {
        read_sum(r);
        expect(r, ')');
    } else if (isdigit((unsigned char)*r->s)) {
        char *end;
        emit(OP_CONSTANT, strtoll(r->s, &end, 10));
        r->s = end;
    } else if (r->s[n] == '(') {
        const char *name = r->s;
        r->s += n;
        if (is_same("max", name, n))
            read_function(r, OP_MAX, 2);
        else if (is_same("min", name, n))
            read_function(r, OP_MIN, 2);
        else if (is_same("if", name, n))
            read_function(r, OP_IF, 3);
        else
            fail(r, "no such function");
    } else if (n > 0) {
        emit(OP_SLOT, named_slot(r));
    } else {
        fail(r, "an expression expected");
    }
}

static void read_product(reader *r)
{
    read_factor(r);
    while (!parsed.failed && (*r->s == '*' || *r->s == '/') && r->s[1] != 0) {
        const code_op op = *r->s++ == '*' ? OP_MUL : OP_DIV;
        read_factor(r);
        emit(op, 0);
    }
}

static void read_sum(reader *r)
{
    read_product(r);
    while (!parsed.failed && (*r->s == '+' || *r->s == '-')) {
        const code_op op = *r->s++ == '+' ? OP_ADD : OP_SUB;
        read_product(r);
        emit(op, 0);
    }
}

static spops_row_number read_number(reader *r)
{
    const int32_t begin = parsed.program_used;
    spops_row_number number = {SPOPS_NUMBER_CODE, begin, 0};

    read_sum(r);
    number.value = parsed.program_used - begin;
    if (number.value == 1) { // a constant or a slot
        const code *only = &parsed.program[begin];
        parsed.program_used = begin;
        if (only->op == OP_CONSTANT)
            return (spops_row_number){SPOPS_NUMBER_CONSTANT, 0, only->value};
        return (spops_row_number){SPOPS_NUMBER_SLOT, (int32_t)only->value, 0};
    }
    return number;
}

int64_t spops_row_eval(const spops_row_number *number, const int64_t *slots)
{
    int64_t stack[MAX_STACK];
    int top = -1;

    if (number->how == SPOPS_NUMBER_CONSTANT) return number->value;
    if (number->how == SPOPS_NUMBER_SLOT) return slots[number->at];
    for (int64_t i = 0; i < number->value; ++i) {
        const code *c = &parsed.program[number->at + i];
        if (c->op == OP_CONSTANT || c->op == OP_SLOT) {
            stack[++top] = c->op == OP_CONSTANT ? c->value : slots[c->value];
            continue;
        }
        if (c->op == OP_IF) {
            top -= 2;
            stack[top] = stack[top] != 0 ? stack[top + 1] : stack[top + 2];
            continue;
        }
        const int64_t b = stack[top--], a = stack[top];
        int64_t *to = &stack[top];
        switch (c->op) {
        case OP_ADD:
            if (__builtin_add_overflow(a, b, to)) return INT64_MAX;
            break;
        case OP_SUB:
            if (__builtin_sub_overflow(a, b, to)) return INT64_MAX;
            break;
        case OP_MUL:
            if (__builtin_mul_overflow(a, b, to)) return INT64_MAX;
            break;
        case OP_DIV: *to = b > 0 ? a / b : 0; break;
        case OP_MAX: *to = a > b ? a : b; break;
        default: *to = a < b ? a : b; break;
        }
    }
    return stack[0];
}

static spops_row_size number_size(int64_t value)
{
    return (spops_row_size){SPOPS_SIZE_NUMBER, value};
}

spops_row_size spops_row_combine(const spops_size_algebra *algebra, char op, spops_row_size a,
                                 spops_row_size b)
{
    const spops_row_size none = {SPOPS_SIZE_NONE, 0};
    int64_t n = 0;
    bool is_large = false;

    if (a.how == SPOPS_SIZE_NONE || b.how == SPOPS_SIZE_NONE) return none;
    if (a.how == SPOPS_SIZE_SYMBOL || b.how == SPOPS_SIZE_SYMBOL) {
        if (algebra == NULL || (a.how == SPOPS_SIZE_NUMBER && a.value < 0) ||
            (b.how == SPOPS_SIZE_NUMBER && b.value < 0))
            return none; // a number below 0 would be taken for a symbol
        n = algebra->combine(algebra->user, op, a.value, b.value);
        if (n == INT64_MIN) return none;
        return n < 0 ? (spops_row_size){SPOPS_SIZE_SYMBOL, n} : number_size(n);
    }
    switch (op) {
    case '+': is_large = __builtin_add_overflow(a.value, b.value, &n); break;
    case '-': is_large = __builtin_sub_overflow(a.value, b.value, &n); break;
    case '*': is_large = __builtin_mul_overflow(a.value, b.value, &n); break;
    case '/': n = b.value > 0 ? a.value / b.value : 0; break;
    case 'M': n = a.value > b.value ? a.value : b.value; break;
    default: n = a.value < b.value ? a.value : b.value; break;
    }
    return is_large ? none : number_size(n);
}

spops_row_size spops_row_eval_size(const spops_row_number *number, const spops_row_size *slots,
                                   const spops_size_algebra *algebra)
{
    static const char signs[] = {[OP_ADD] = '+', [OP_SUB] = '-', [OP_MUL] = '*',
                                 [OP_DIV] = '/', [OP_MAX] = 'M', [OP_MIN] = 'm'};
    spops_row_size stack[MAX_STACK];
    int top = -1;

    if (number->how == SPOPS_NUMBER_CONSTANT) return number_size(number->value);
    if (number->how == SPOPS_NUMBER_SLOT) return slots[number->at];
    for (int64_t i = 0; i < number->value; ++i) {
        const code *c = &parsed.program[number->at + i];
        if (c->op == OP_CONSTANT) {
            stack[++top] = number_size(c->value);
        } else if (c->op == OP_SLOT) {
            stack[++top] = slots[c->value];
        } else if (c->op == OP_IF) { // a symbol cannot decide
            top -= 2;
            if (stack[top].how != SPOPS_SIZE_NUMBER)
                stack[top].how = SPOPS_SIZE_NONE;
            else
                stack[top] = stack[top].value != 0 ? stack[top + 1] : stack[top + 2];
        } else {
            --top;
            stack[top] = spops_row_combine(algebra, signs[c->op], stack[top], stack[top + 1]);
        }
    }
    return stack[0];
}

bool spops_row_has_value(const spops_row_number *number, const int64_t *slots)
{
    if (number->how == SPOPS_NUMBER_SLOT) return slots[number->at] != SPOPS_ROW_NO_VALUE;
    if (number->how != SPOPS_NUMBER_CODE) return true;
    for (int64_t i = 0; i < number->value; ++i) {
        const code *c = &parsed.program[number->at + i];
        if (c->op == OP_SLOT && slots[c->value] == SPOPS_ROW_NO_VALUE) return false;
    }
    return true;
}

// ---- Arguments ----------------------------------------------------------------------------------

static spops_operator_argument *add_argument(void)
{
    const bool full = is_full(parsed.num_arguments + 1, MAX_ARGUMENTS, "arguments");
    spops_operator_argument *a = &parsed.arguments[full ? 0 : parsed.num_arguments];
    if (!full) parsed.argument_list[parsed.num_arguments++] = a;
    a->struct_size = sizeof *a;
    return a;
}

static void add_dtype(reader *r, const char *s, int n, uint32_t *dtypes, uint32_t *variables)
{
    for (int i = 0; i < r->row->num_variables; ++i) {
        if (n == 1 && r->row->variables[i].letter == *s) {
            *variables |= 1u << i;
            return;
        }
    }
    if (is_same("float", s, n))
        *dtypes |= SPOPS_DTYPES_FLOAT;
    else if (is_same("real", s, n))
        *dtypes |= SPOPS_DTYPES_REAL;
    else if (is_same("narrow", s, n))
        *dtypes |= SPOPS_DTYPES_NARROW;
    else if (is_same("u8", s, n))
        *dtypes |= 1u << SPOPS_ROW_U8;
    else {
        for (int i = 0; i < SPOPS_NUM_DTYPES; ++i) {
            if (!is_same(spops_dtype_name((spops_dtype)i), s, n)) continue;
            *dtypes |= 1u << i;
            return;
        }
        fail(r, "no such dtype");
    }
}

// sums: of variables in sum(...).
static const char *read_dtypes(reader *r, uint32_t *dtypes, uint32_t *variables, uint32_t *sums)
{
    const char *begin = r->s;
    do {
        const bool is_sum = strncmp(r->s, "sum(", 4) == 0;
        if (is_sum) r->s += 4;
        const int n = word_length(r->s);
        add_dtype(r, r->s, n, dtypes, is_sum ? sums : variables);
        r->s += n;
        if (is_sum) expect(r, ')');
    } while (take(r, '|'));
    return keep(begin, (int)(r->s - begin));
}

// The number of plan kind `name`; 0: there is none.
static int32_t plan_kind(const char *name)
{
    int32_t num;
    const spops_plan_kind_info *kinds = spops_plan_kinds(&num);
    for (int32_t i = 0; i < num; ++i)
        if (strcmp(kinds[i].name, name) == 0) return kinds[i].kind;
    return 0;
}

// Dimensions, and the sizes that stand alone in one.
static void read_dims(reader *r, int index, spops_operator_argument *to)
{
    spops_row_arg *arg = &r->row->args[index];
    expect(r, '[');
    do {
        const char *begin = r->s;
        const int before = r->row->num_slots, d = arg->num_dims++;
        if (d == 2) {
            fail(r, "more than two dimensions");
            return;
        }
        arg->dims[d] = read_number(r);
        to->dims[d] = keep(begin, (int)(r->s - begin));
        (void)before;
        if (arg->dims[d].how == SPOPS_NUMBER_SLOT && arg->dims[d].at >= r->row->num_attributes &&
            strchr(to->dims[d], '.') == NULL) {
            const int i = r->row->num_sources++;
            r->row->sources[i] =
                (spops_row_source){(uint8_t)arg->dims[d].at, (uint8_t)index, (uint8_t)d};
        }
    } while (!parsed.failed && take(r, ','));
    expect(r, ']');
    to->num_dims = arg->num_dims;
    arg->is_array = arg->num_dims == 1;
}

static void read_range(reader *r, spops_row_number *first, spops_row_number *last,
                       const char **first_text, const char **last_text)
{
    const char *begin = r->s;
    if (*r->s != '.') {
        *first = read_number(r);
        *first_text = keep(begin, (int)(r->s - begin));
    }
    expect(r, '.');
    expect(r, '.');
    begin = r->s;
    if (*r->s != '}') {
        *last = read_number(r);
        *last_text = keep(begin, (int)(r->s - begin));
    }
    expect(r, '}');
}

static int8_t take_attribute(reader *r, bool or_none)
{
    const int n = word_length(r->s), slot = find_slot(r->row, r->s, n);
    r->s += n;
    if (slot >= 0 && slot < r->row->num_attributes) return (int8_t)slot;
    if (!or_none) fail(r, "no such attribute");
    return -1;
}

static void needs_handles(const reader *r)
{
    parsed.ops[r->row - parsed.rows].needs_handles = 1;
}

static void read_arg(reader *r, bool is_output)
{
    const int index = r->row->num_args;
    spops_row_arg *arg = &r->row->args[index];
    spops_operator_argument *to = add_argument();

    if (index == SPOPS_ROW_MAX_ARGS) {
        fail(r, "too many arguments");
        return;
    }
    arg->is_output = is_output;
    arg->needs = arg->may_be = arg->blocks = arg->block_stride = -1;
    to->name = take_word(r);
    if (take(r, '?')) {
        arg->is_optional = true;
        to->is_optional = 1;
        ++parsed.ops[r->row - parsed.rows].num_optional;
        if (*r->s != ':') {
            to->needs = take_word(r);
            arg->needs = (int8_t)find_arg(r->row, to->needs, (int)strlen(to->needs));
            if (arg->needs < 0) fail(r, "needs no argument before it");
        }
    }
    expect(r, ':');
    ++r->row->num_args;
    if (strncmp(r->s, "plan(", 5) == 0) {
        r->s += 5;
        to->kind = SPOPS_ARGUMENT_PLAN;
        to->type = take_word(r);
        arg->plan_kind = plan_kind(to->type);
        if (arg->plan_kind == 0) fail(r, "no such kind of plan");
        expect(r, ')');
        if (!spops_plan_has_description(arg->plan_kind)) needs_handles(r);
    } else if (arg->is_comm) {
        to->kind = SPOPS_ARGUMENT_COMM;
        to->type = take_word(r);
        needs_handles(r);
    } else {
        to->type = read_dtypes(r, &arg->dtypes, &arg->variables, &arg->sums);
        read_dims(r, index, to);
    }
    arg->is_dense = take(r, '!');
    to->is_dense = arg->is_dense;
    if (take(r, '{')) {
        arg->ascends = *r->s == '.';
        read_range(r, &arg->first, &arg->last, &to->first, &to->last);
    }
    if (take(r, '/')) {
        arg->blocks = take_attribute(r, false);
        expect(r, ',');
        arg->block_stride = take_attribute(r, true);
    }
    if (take(r, '=')) {
        to->may_be = take_word(r);
        arg->may_be = (int8_t)find_arg(r->row, to->may_be, (int)strlen(to->may_be));
        if (arg->may_be < 0) fail(r, "may be no argument before it");
    }
    to->is_updated = (int32_t)take(r, '+');
}

static void read_args(reader *r, const char *text, bool is_output)
{
    r->s = text;
    for (skip_spaces(r); *r->s != '\0' && !parsed.failed; skip_spaces(r))
        read_arg(r, is_output);
}

// ---- Attributes ---------------------------------------------------------------------------------

static int find_enum(const char *s, int n)
{
    for (int i = 0; i < (int)(sizeof enums / sizeof *enums); ++i)
        if (is_same(enums[i].name, s, n)) return i;
    return -1;
}

// The number of a name among `names`, -1: there is none.
static int number_of(const char *names, const char *s, int n)
{
    int number = 0;
    for (const char *w = names; *w != '\0'; ++number) {
        const int length = word_length(w);
        if (length == n && memcmp(w, s, (size_t)n) == 0) return number;
        w += length;
        while (*w == ' ' || *w == '.')
            ++w;
    }
    return -1;
}

static void read_type(reader *r, spops_operator_argument *to)
{
    static const struct {
        const char *name;
        spops_argument_kind kind;
    } plain[] = {{"int", SPOPS_ARGUMENT_INT},
                 {"bool", SPOPS_ARGUMENT_INT},
                 {"float", SPOPS_ARGUMENT_FLOAT},
                 {"ints", SPOPS_ARGUMENT_INTS},
                 {"floats", SPOPS_ARGUMENT_FLOATS}};
    const int found = find_enum(r->s, word_length(r->s));

    to->type = take_word(r);
    if (found >= 0) {
        to->kind = enums[found].is_flags ? SPOPS_ARGUMENT_FLAGS : SPOPS_ARGUMENT_ENUM;
        to->values = enums[found].values;
        return;
    }
    for (int i = 0; i < 5; ++i) {
        if (strcmp(plain[i].name, to->type) != 0) continue;
        to->kind = plain[i].kind;
        if (take(r, '(')) {
            to->count = (int32_t)strtol(r->s, (char **)(uintptr_t)&r->s, 10);
            expect(r, ')');
        }
        return;
    }
    fail(r, "no such type");
}

static void read_default(reader *r, spops_operator_argument *to)
{
    char *end;
    if (to->kind == SPOPS_ARGUMENT_ENUM || to->kind == SPOPS_ARGUMENT_FLAGS) {
        const int n = word_length(r->s), number = number_of(to->values, r->s, n);
        if (*r->s == '0') {
            ++r->s;
            return;
        }
        if (number < 0) fail(r, "no such name");
        to->int_default = to->kind == SPOPS_ARGUMENT_ENUM ? number : 1 << number;
        r->s += n;
    } else if (to->kind == SPOPS_ARGUMENT_FLOAT) {
        to->float_default = strtod(r->s, &end);
        r->s = end;
    } else {
        to->int_default = strtoll(r->s, &end, 10);
        r->s = end;
    }
}

// How many names there are, and whether other numbers may be valid too.
static int64_t count_names(const char *names, bool *is_open)
{
    int64_t count = 0;
    for (const char *w = names; *w != '\0';) {
        const int n = word_length(w);
        count += n > 0;
        w += n;
        while (*w == ' ' || *w == '.')
            ++w;
    }
    *is_open = strstr(names, "...") != NULL;
    return count;
}

static void read_attribute(reader *r)
{
    spops_operator_argument *to = add_argument();
    const int index = r->row->num_attributes;
    spops_row_attribute *a = &r->row->attributes[index];
    bool is_open = false;

    if (index == SPOPS_ROW_MAX_ATTRIBUTES) {
        fail(r, "too many attributes");
        return;
    }
    to->name = take_word(r);
    (void)add_slot(r, to->name, (int)strlen(to->name));
    ++r->row->num_attributes;
    expect(r, ':');
    read_type(r, to);
    if (take(r, '=')) read_default(r, to);
    if (take(r, '{')) {
        read_range(r, &a->first, &a->last, &to->first, &to->last);
    } else if (to->values != NULL) {
        const int64_t n = count_names(to->values, &is_open);
        const int64_t last = to->kind == SPOPS_ARGUMENT_ENUM ? n - 1 : ((int64_t)1 << n) - 1;
        if (!is_open) {
            a->first = (spops_row_number){SPOPS_NUMBER_CONSTANT, 0, 0};
            a->last = (spops_row_number){SPOPS_NUMBER_CONSTANT, 0, last};
        }
    } else if (strcmp(to->type, "bool") == 0) {
        a->first = (spops_row_number){SPOPS_NUMBER_CONSTANT, 0, 0};
        a->last = (spops_row_number){SPOPS_NUMBER_CONSTANT, 0, 1};
        to->first = "0";
        to->last = "1";
    }
    a->row = to;
}

// ---- Rows ---------------------------------------------------------------------------------------

static void read_types(reader *r, const char *text)
{
    r->s = text;
    for (skip_spaces(r); *r->s != '\0' && !parsed.failed; skip_spaces(r)) {
        const char letter = *r->s;
        const int i = r->row->num_variables;
        if (r->s[1] != ':') { // a size, read when the arguments are
            while (*r->s != ' ' && *r->s != '\0')
                ++r->s;
            continue;
        }
        r->s += 2;
        assert(i < SPOPS_ROW_MAX_VARIABLES);
        uint32_t sums = 0;
        (void)read_dtypes(r, &r->row->variables[i].dtypes, &r->row->variables[i].variables, &sums);
        if (sums != 0) fail(r, "a dtype of sums expected of an argument alone");
        r->row->variables[i].letter = letter;
        ++r->row->num_variables;
    }
}

static void read_inferred(reader *r, const char *text)
{
    for (r->s = text; *r->s != '\0' && !parsed.failed; skip_spaces(r)) {
        const int n = word_length(r->s);
        if (r->s[n] != '~') {
            while (*r->s != ' ' && *r->s != '\0')
                ++r->s;
            continue;
        }
        const int i = r->row->num_inferred++, slot = find_slot(r->row, r->s, n);
        if (slot < 0) fail(r, "no such size");
        r->s += n + 1;
        r->row->inferred[i].slot = (uint8_t)slot;
        r->row->inferred[i].value = read_number(r);
    }
}

// Sources by how sure they are: those of arguments that are always there first, of others only where
// there is no such.
static int order_sources(const spops_row *row, spops_row_source *sources, int n)
{
    spops_row_source ordered[2 * SPOPS_ROW_MAX_ARGS];
    bool is_sure[SPOPS_ROW_MAX_SLOTS] = {false};
    int kept = 0;

    for (int optional = 0; optional < 2; ++optional) {
        for (int i = 0; i < n; ++i) {
            if (row->args[sources[i].arg].is_optional != (optional == 1)) continue;
            if (is_sure[sources[i].slot]) continue;
            is_sure[sources[i].slot] = optional == 0;
            ordered[kept++] = sources[i];
        }
    }
    memcpy(sources, ordered, (size_t)kept * sizeof *ordered);
    return kept;
}

static void find_sources(reader *r)
{
    spops_row *row = r->row;
    row->num_sources = order_sources(row, row->sources, row->num_sources);
    for (int i = 0; i < row->num_args; ++i) {
        for (int v = 0; v < row->num_variables; ++v)
            if ((row->args[i].variables & 1u << v) != 0)
                row->variable_sources[row->num_variable_sources++] =
                    (spops_row_source){(uint8_t)v, (uint8_t)i, 0};
    }
    // T|i8 gives T a value as well as T, but f32|T does not where it is f32: those that are nothing
    // else come first.
    spops_row_source ordered[SPOPS_ROW_MAX_ARGS];
    int kept = 0;
    for (int mixed = 0; mixed < 2; ++mixed)
        for (int i = 0; i < row->num_variable_sources; ++i)
            if ((row->args[row->variable_sources[i].arg].dtypes != 0) == (mixed == 1))
                ordered[kept++] = row->variable_sources[i];
    memcpy(row->variable_sources, ordered, (size_t)kept * sizeof *ordered);
    row->num_variable_sources = order_sources(row, row->variable_sources, kept);
}

// Which fields of their plans' descriptions the row names.
static void find_fields(reader *r)
{
    for (int i = 0; i < r->row->num_fields && !parsed.failed; ++i) {
        const char *name = r->row->fields[i].name;
        const spops_row_arg *arg = &r->row->args[r->row->fields[i].arg];
        r->row->fields[i].field = -1;
        if (strcmp(name, "scratch_bytes") == 0) continue;
        r->row->fields[i].field =
            (int16_t)spops_plan_field_index((spops_plan_kind)arg->plan_kind, name, strlen(name));
        if (r->row->fields[i].field < 0) {
            r->s = name;
            fail(r, "no such field of its plan");
        }
    }
}

static uint8_t add_value_slot(reader *r)
{
    if (r->row->num_all_slots == SPOPS_ROW_MAX_SLOTS) {
        fail(r, "too many sizes");
        return 0;
    }
    return (uint8_t)r->row->num_all_slots++;
}

static uint8_t constant_slot(reader *r, int64_t value)
{
    spops_row *row = r->row;
    for (int i = row->num_slots; i < row->num_initial; ++i)
        if (row->initial[i] == value) return (uint8_t)i;
    const uint8_t slot = add_value_slot(r);
    row->initial[slot] = value;
    row->num_initial = row->num_all_slots;
    return slot;
}

static uint8_t step_slot(reader *r, code_op op, uint8_t a, uint8_t b, uint8_t c, int arg)
{
    spops_row *row = r->row;
    for (int i = 0; i < row->num_steps; ++i) {
        spops_number_step *s = &row->steps[i];
        if (s->op != op || s->a != a || s->b != b || s->c != c) continue;
        if (s->arg != arg) s->arg = -1;
        return s->to;
    }
    if (row->num_steps == SPOPS_ROW_MAX_STEPS) {
        fail(r, "too many expressions");
        return 0;
    }
    const uint8_t slot = add_value_slot(r);
    row->steps[row->num_steps++] = (spops_number_step){(uint8_t)op, a, b, c, slot, (int8_t)arg};
    return slot;
}

// The slot of a number's value: a name's, a constant's, or the last step's of its code. Constants come
// first, so that what every call begins with has no gap.
static uint8_t value_slot(reader *r, const spops_row_number *number, int arg, bool constants_alone)
{
    uint8_t stack[MAX_STACK] = {0};
    int top = -1;

    if (number->how == SPOPS_NUMBER_SLOT) return (uint8_t)number->at;
    if (number->how == SPOPS_NUMBER_CONSTANT) return constant_slot(r, number->value);
    for (int64_t i = 0; i < number->value && !parsed.failed; ++i) {
        const code *c = &parsed.program[number->at + i];
        if (c->op == OP_CONSTANT) stack[++top] = constant_slot(r, c->value);
        if (constants_alone) {
            top = -1;
        } else if (c->op == OP_SLOT) {
            stack[++top] = (uint8_t)c->value;
        } else if (c->op == OP_IF) {
            top -= 2;
            stack[top] = step_slot(r, c->op, stack[top], stack[top + 1], stack[top + 2], arg);
        } else if (c->op != OP_CONSTANT) {
            --top;
            stack[top] = step_slot(r, c->op, stack[top], stack[top + 1], 0, arg);
        }
    }
    return stack[0];
}

void spops_row_run_steps(const spops_row *row, const void *const *args, int64_t *slots)
{
    for (int i = 0; i < row->num_steps; ++i) {
        const spops_number_step *s = &row->steps[i];
        if (s->arg >= 0 && args[s->arg] == NULL) continue;
        const int64_t a = slots[s->a], b = slots[s->b];
        int64_t *to = &slots[s->to];
        bool is_large = (a == INT64_MAX) | (b == INT64_MAX); // of a step before
        switch (s->op) {
        case OP_IF: *to = a != 0 ? b : slots[s->c]; continue;
        case OP_MAX: *to = a > b ? a : b; continue;
        case OP_MIN: *to = a < b ? a : b; continue;
        case OP_ADD: is_large |= __builtin_add_overflow(a, b, to); break;
        case OP_SUB: is_large |= __builtin_sub_overflow(a, b, to); break;
        case OP_MUL: is_large |= __builtin_mul_overflow(a, b, to); break;
        default: *to = b == 1 ? a : b > 0 ? a / b : 0; break;
        }
        if (is_large) *to = INT64_MAX;
    }
}

// What checks look up instead of working it out in each call.
static void prepare(reader *r)
{
    spops_row *row = r->row;
    const spops_row_number one = {SPOPS_NUMBER_CONSTANT, 0, 1};

    row->num_all_slots = row->num_initial = row->num_slots;
    for (int s = 0; s < row->num_slots; ++s)
        row->initial[s] = SPOPS_ROW_NO_VALUE;
    for (int i = 0; i < row->num_args; ++i) {
        for (int d = 0; d < row->args[i].num_dims; ++d)
            (void)value_slot(r, &row->args[i].dims[d], i, true);
        if (row->args[i].is_plan && !row->args[i].is_output)
            row->plans[row->num_plans++] = (int8_t)i;
    }
    (void)constant_slot(r, 1);
    for (int i = 0; i < row->num_args; ++i) {
        spops_row_arg *arg = &row->args[i];
        arg->variable = -1;
        for (int v = 0; v < row->num_variables; ++v)
            if ((arg->variables & 1u << v) != 0)
                arg->variable = (int8_t)(arg->variable == -1 ? v : -2);
        if (arg->is_plan || arg->is_comm) continue;
        arg->dim_slots[0] = value_slot(r, &arg->dims[0], i, false);
        arg->dim_slots[1] = value_slot(r, arg->is_array ? &one : &arg->dims[1], i, false);
    }
    for (int i = 0; i < row->num_attributes; ++i) {
        spops_row_attribute *a = &row->attributes[i];
        const bool has_first = a->first.how != SPOPS_NUMBER_NONE;
        const bool has_last = a->last.how != SPOPS_NUMBER_NONE;
        a->min = has_first ? spops_row_eval(&a->first, row->initial) : INT64_MIN;
        a->max = has_last ? spops_row_eval(&a->last, row->initial) : INT64_MAX;
        a->float_min = has_first ? (double)a->min : -DBL_MAX;
        a->float_max = has_last ? (double)a->max : DBL_MAX;
    }
}

static void read_row(spops_operator_id id)
{
    spops_row *row = &parsed.rows[id];
    spops_operator *op = &parsed.ops[id];
    reader r = {row, ""};
    int32_t attributes;
    int named = 0;

    *op = (spops_operator){.struct_size = sizeof *op,
                           .index = (int32_t)id,
                           .name = texts[id].name,
                           .function = texts[id].function,
                           .types = texts[id].types,
                           .inputs = texts[id].inputs,
                           .outputs = texts[id].outputs,
                           .attributes = texts[id].attributes,
                           .gradient = texts[id].gradient,
                           .scratch = texts[id].scratch,
                           .doc = texts[id].doc,
                           .entry = entries[id]};
    parsed.list[id] = op;
    row->op = op;
    row->call = op->function + strlen("spops_");
    row->is_checked = strstr(row->call, "_execute") != NULL;
    attributes = parsed.num_arguments;
    r.s = op->attributes; // first, as shapes name them
    for (skip_spaces(&r); *r.s != '\0' && !parsed.failed; skip_spaces(&r))
        read_attribute(&r);
    read_types(&r, op->types);
    name_args(row, op->inputs, &named);
    name_args(row, op->outputs, &named);
    op->arguments = &parsed.argument_list[parsed.num_arguments];
    read_args(&r, op->inputs, false);
    row->num_inputs = row->num_args;
    read_args(&r, op->outputs, true);
    if (is_full(parsed.num_arguments + row->num_attributes, MAX_ARGUMENTS, "arguments")) return;
    for (int i = 0; i < row->num_attributes; ++i) // the list has attributes last
        parsed.argument_list[parsed.num_arguments + i] = &parsed.arguments[attributes + i];
    parsed.num_arguments += row->num_attributes;
    op->num_inputs = row->num_inputs;
    op->num_outputs = row->num_args - row->num_inputs;
    op->num_attributes = row->num_attributes;
    read_inferred(&r, op->types);
    if (*op->scratch != '\0' && *op->scratch != '*') {
        r.s = op->scratch;
        row->scratch = read_number(&r);
    }
    find_sources(&r);
    find_fields(&r);
    prepare(&r);
    row->num_sizes = row->num_slots - row->num_attributes - row->num_fields;
}

static void parse_all(void)
{
    for (int i = 0; i < SPOPS_NUM_OPERATORS && !parsed.failed; ++i) {
        memset(slot_names, 0, sizeof slot_names);
        read_row((spops_operator_id)i);
    }
    assert(!parsed.failed);
}

void spops_rows_parse(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, parse_all);
}

const char *spops_rows_error(void)
{
    return parsed.failed ? parsed.error : NULL;
}

const spops_row *spops_row_of(spops_operator_id id)
{
    return &parsed.rows[id];
}

const spops_operator *const *spops_operators(int32_t *num)
{
    spops_rows_parse();
    if (num != NULL) *num = SPOPS_NUM_OPERATORS;
    return parsed.list;
}

const spops_operator *spops_operator_find(const char *name)
{
    spops_rows_parse();
    for (int i = 0; name != NULL && i < SPOPS_NUM_OPERATORS; ++i)
        if (strcmp(parsed.list[i]->name, name) == 0) return parsed.list[i];
    return NULL;
}
