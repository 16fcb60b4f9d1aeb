// SPDX-License-Identifier: Apache-2.0
// Checks of calls. What is right passes quickly, by comparisons alone; messages are made elsewhere.
#include "call/call_check.h"

#include <stdio.h>
#include <string.h>

#include "call/call_log.h"
#include "core/plan.h"

// What is left alone while calls are right.
#define COLD __attribute__((noinline, cold))
// What every call does, for typed and for boxed calls on its own.
#define HOT static inline __attribute__((always_inline))

// A call being checked.
typedef struct call_check {
    spops_context *ctx;
    const spops_row *row;
    const char *call; // what messages name
    const void *const *args;
    const spops_matrix *matrices;               // of a boxed call, also of arrays; else NULL
    int64_t slots[SPOPS_ROW_MAX_SLOTS];         // NO_VALUE: of a size that nothing has given one
    int32_t variables[SPOPS_ROW_MAX_VARIABLES]; // dtypes; -1 likewise
} call_check;

// Bytes of an argument, from the first to the end of the last; none: begin is end.
typedef struct byte_range {
    uintptr_t begin, end;
} byte_range;

HOT const spops_matrix *matrix_of(const call_check *c, bool boxed, int i)
{
    if (boxed) return &c->matrices[i];
    if (c->row->args[i].blocks >= 0) return &((const spops_argument *)c->args[i])->m;
    return c->args[i];
}

// ---- Values -------------------------------------------------------------------------------------

HOT void find_fields(call_check *c)
{
    for (int i = 0; i < c->row->num_fields; ++i) {
        const spops_plan *plan = c->args[c->row->fields[i].arg];
        const int16_t field = c->row->fields[i].field;
        if (plan != NULL && field >= 0)
            c->slots[c->row->fields[i].slot] = spops_plan_field(plan, field);
    }
}

HOT spops_status check_plans(call_check *c)
{
    const spops_row *row = c->row;

    for (int p = 0; p < row->num_plans; ++p) {
        const int i = row->plans[p];
        const spops_plan *plan = c->args[i];
        if (plan == NULL && row->args[i].is_optional) continue;
        SPOPS_REQUIRE(c->ctx, plan != NULL, "%s: %s is NULL", c->call, row->args[i].name);
        if (plan->ctx != c->ctx)
            SPOPS_TRY(spops_check_home(c->ctx, c->call, row->args[i].name, plan->ctx));
    }
    find_fields(c);
    return SPOPS_STATUS_OK;
}

COLD static spops_status refuse_attribute(const call_check *c, int i, spops_call_number value)
{
    const spops_operator_argument *a = c->row->attributes[i].row;
    char first[24] = "", last[24] = "";
    const bool is_pair = c->row->attributes[i].max == c->row->attributes[i].min + 1;

    if (strcmp(a->type, "dtype") == 0) {
        const int64_t least = spops_row_eval(&c->row->attributes[i].first, c->slots);
        const int64_t most = spops_row_eval(&c->row->attributes[i].last, c->slots);
        return spops_check_dtype(c->ctx, c->call, a->name, (spops_dtype)value.i,
                                 (2u << most) - (1u << least));
    }
    if (c->row->attributes[i].first.how != SPOPS_NUMBER_NONE)
        snprintf(first, sizeof first, "%" PRId64,
                 spops_row_eval(&c->row->attributes[i].first, c->slots));
    if (c->row->attributes[i].last.how != SPOPS_NUMBER_NONE)
        snprintf(last, sizeof last, "%" PRId64,
                 spops_row_eval(&c->row->attributes[i].last, c->slots));
    if (a->kind == SPOPS_ARGUMENT_FLOAT && last[0] == '\0')
        return spops_fail(c->ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: %s is %g, expected a finite number%s%s%s", c->call, a->name, value.f,
                          first[0] ? ", " : "", first, first[0] ? " or more" : "");
    if (a->kind == SPOPS_ARGUMENT_FLOAT)
        return spops_fail(c->ctx, SPOPS_STATUS_INVALID_ARGUMENT, "%s: %s is %g, expected %s to %s",
                          c->call, a->name, value.f, first, last);
    return spops_fail(c->ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: %s is %" PRId64 ", expected %s%s%s", c->call, a->name, value.i, first,
                      last[0] == '\0' ? " or more"
                      : is_pair       ? " or "
                                      : " to ",
                      last);
}

static inline bool in_range(const spops_row_attribute *a, spops_call_number value)
{
    if (a->row->kind == SPOPS_ARGUMENT_FLOAT) // not of a NaN
        return value.f >= a->float_min && value.f <= a->float_max;
    return value.i >= a->min && value.i <= a->max;
}

HOT spops_status check_attributes(call_check *c, const spops_call_number *attributes)
{
    const spops_row *row = c->row;

    for (int i = 0; i < row->num_attributes; ++i) {
        const spops_operator_argument *a = row->attributes[i].row;
        c->slots[i] = a->kind == SPOPS_ARGUMENT_FLOAT ? 0 : attributes[i].i;
        if (a->kind >= SPOPS_ARGUMENT_INTS) continue;
        if (!in_range(&row->attributes[i], attributes[i]))
            return refuse_attribute(c, i, attributes[i]);
    }
    return SPOPS_STATUS_OK;
}

static uint32_t dtypes_of(const call_check *c, uint32_t dtypes, uint32_t variables)
{
    for (int v = 0; variables != 0; ++v, variables >>= 1) {
        if ((variables & 1) == 0) continue;
        dtypes |= c->variables[v] >= 0
                      ? 1u << c->variables[v]
                      : dtypes_of(c, c->row->variables[v].dtypes, c->row->variables[v].variables);
    }
    return dtypes;
}

HOT void begin_slots(call_check *c)
{
    enum { MOST = 24 }; // a copy of one size is faster
    memcpy(c->slots, c->row->initial, MOST * sizeof *c->slots);
    if (c->row->num_initial > MOST)
        memcpy(c->slots, c->row->initial, (size_t)c->row->num_initial * sizeof *c->slots);
}

// Sizes take their values from the arguments that the row has for them.
HOT void find_sizes(call_check *c, bool boxed)
{
    const spops_row *row = c->row;

    for (int i = 0; i < row->num_sources; ++i) {
        const spops_row_source *s = &row->sources[i];
        const spops_matrix *m;
        if (c->slots[s->slot] != SPOPS_ROW_NO_VALUE || c->args[s->arg] == NULL) continue;
        if (row->args[s->arg].is_array && !boxed) continue;
        m = matrix_of(c, boxed, s->arg);
        c->slots[s->slot] = s->dim == 0 ? m->rows : m->cols;
    }
}

// The same of dtypes.
HOT void find_dtypes(call_check *c, bool boxed)
{
    const spops_row *row = c->row;

    for (int v = 0; v < SPOPS_ROW_MAX_VARIABLES; ++v) // all: a fixed number is one store
        c->variables[v] = -1;
    for (int i = 0; i < row->num_variable_sources; ++i) {
        const spops_row_source *s = &row->variable_sources[i];
        const spops_row_arg *arg = &row->args[s->arg];
        uint32_t may = row->variables[s->slot].dtypes;
        if (c->variables[s->slot] >= 0 || c->args[s->arg] == NULL || arg->is_array) continue;
        const spops_dtype dtype = matrix_of(c, boxed, s->arg)->dtype;
        if (row->variables[s->slot].variables != 0)
            may = dtypes_of(c, may, row->variables[s->slot].variables);
        if ((unsigned)dtype < 32 && (may & 1u << dtype) != 0) c->variables[s->slot] = (int)dtype;
    }
}

// ---- Tensors ------------------------------------------------------------------------------------

// f64 of f64, f32 of all else.
static uint32_t sums_of(const call_check *c, uint32_t variables)
{
    const uint32_t dtypes = dtypes_of(c, 0, variables), f64 = 1u << SPOPS_DTYPE_F64;
    return (dtypes & f64) | ((dtypes & ~f64) != 0 ? 1u << SPOPS_DTYPE_F32 : 0);
}

HOT uint32_t allowed_dtypes(const call_check *c, const spops_row_arg *arg)
{
    if (arg->sums != 0) return arg->dtypes | sums_of(c, arg->sums);
    if (arg->variable == -1) return arg->dtypes;
    if (arg->variable >= 0 && c->variables[arg->variable] >= 0)
        return arg->dtypes | 1u << c->variables[arg->variable];
    return dtypes_of(c, arg->dtypes, arg->variables);
}

// Of an array's elements, which its address does not say.
static spops_dtype array_dtype(const call_check *c, const spops_row_arg *arg)
{
    if (arg->sums == 0) return SPOPS_DTYPE_F32; // or i32: as many bytes
    return allowed_dtypes(c, arg) == 1u << SPOPS_DTYPE_F64 ? SPOPS_DTYPE_F64 : SPOPS_DTYPE_F32;
}

// An array of the function's, which is its address alone.
HOT spops_status check_array(const call_check *c, int i, byte_range *range)
{
    const spops_row_arg *arg = &c->row->args[i];
    const int64_t n = c->slots[arg->dim_slots[0]];
    const uintptr_t at = (uintptr_t)c->args[i];
    const size_t element = (size_t)spops_dtype_bits(array_dtype(c, arg)) / 8;

    if (n <= 0 && n != SPOPS_ROW_NO_VALUE) return SPOPS_STATUS_OK;
    if (at % element != 0)
        return spops_check_aligned(c->ctx, c->call, arg->name, c->args[i], element);
    range->begin = at;
    range->end = at + (n > 0 ? (uintptr_t)n : 1) * element;
    return SPOPS_STATUS_OK;
}

// Elements from the first to the end of the last column of a row.
HOT int64_t width_of(const call_check *c, int i, const spops_matrix *m)
{
    const spops_argument *a;
    if (c->row->args[i].blocks < 0) return m->cols;
    a = c->args[i];
    if (a->num_blocks <= 1 || a->block_stride == 0) return m->cols;
    return (a->num_blocks - 1) * a->block_stride + m->cols / a->num_blocks;
}

// The same as spops_check_matrix, which says what is wrong; rows and cols as expected.
HOT bool is_right(const spops_matrix *m, int64_t rows, int64_t cols, int64_t width, uint32_t dtypes,
                  byte_range *range)
{
    int64_t elements = 0, bytes;
    size_t element;

    if (!spops_dtype_in(m->dtype, dtypes) || m->rows != rows || m->cols != cols || rows < 0 ||
        cols < 0)
        return false;
    if (rows > 1 && m->row_stride < width) return false;
    if (spops_dtype_is_packed(m->dtype)) return false;
    if (rows == 0 || cols == 0) return true;
    element = (size_t)spops_dtype_bits(m->dtype) / 8;
    if (m->data == NULL || ((uintptr_t)m->data & (element - 1)) != 0) return false;
    if (rows > 1 && __builtin_mul_overflow(rows - 1, m->row_stride, &elements)) return false;
    if (__builtin_add_overflow(elements, width, &elements)) return false;
    if (__builtin_mul_overflow(elements, (int64_t)element, &bytes)) return false;
    if ((uint64_t)bytes > UINTPTR_MAX - (uintptr_t)m->data) return false;
    range->begin = (uintptr_t)m->data;
    range->end = range->begin + (uintptr_t)bytes;
    return true;
}

COLD static spops_status refuse_matrix(const call_check *c, int i, const spops_matrix *m,
                                       int64_t rows, int64_t cols, int64_t width, uint32_t dtypes,
                                       byte_range *range)
{
    const char *name = c->row->args[i].name;
    spops_matrix wide = *m;

    if (!spops_dtype_in(m->dtype, dtypes) &&
        spops_dtype_in(m->dtype, allowed_dtypes(c, &c->row->args[i]))) {
        char what[80];
        snprintf(what, sizeof what, "%s.dtype", name);
        SPOPS_TRY(spops_check_backend_dtype(c->ctx, c->ctx->backend, c->call, what, m->dtype));
    }
    SPOPS_TRY(spops_check_matrix(c->ctx, c->call, name, *m, rows, cols, dtypes));
    wide.cols = width;
    SPOPS_REQUIRE(c->ctx, m->rows <= 1 || m->row_stride >= width,
                  "%s: %s.row_stride is %" PRId64 ", less than %" PRId64
                  ", where the last of its heads ends",
                  c->call, name, m->row_stride, width);
    SPOPS_TRY(spops_check_matrix(c->ctx, c->call, name, wide, rows, width, dtypes));
    range->begin = rows == 0 || cols == 0 ? 0 : (uintptr_t)m->data;
    range->end = rows == 0 || cols == 0 ? 0 : range->begin + spops_matrix_bytes(wide);
    return SPOPS_STATUS_OK;
}

static spops_status check_dense(const call_check *c, int i, const spops_matrix *m)
{
    SPOPS_REQUIRE(c->ctx, m->rows <= 1 || m->row_stride == m->cols,
                  "%s: %s.row_stride is %" PRId64 ", expected %" PRId64, c->call,
                  c->row->args[i].name, m->row_stride, m->cols);
    return SPOPS_STATUS_OK;
}

// Of a dimension; what is found, where the row's sizes say nothing of it.
static int64_t value_of(const call_check *c, const spops_row_number *dim, int64_t found)
{
    const int64_t value = spops_row_eval(dim, c->slots);
    return value == found || spops_row_has_value(dim, c->slots) ? value : found;
}

// An array of elements that no matrix has, of a boxed call.
COLD static spops_status check_elements(const call_check *c, int i, const spops_matrix *m,
                                        int64_t rows, uint32_t dtypes)
{
    const char *name = c->row->args[i].name;
    SPOPS_REQUIRE(c->ctx, (dtypes & 1u << m->dtype) != 0, "%s: %s.dtype is another, expected %s",
                  c->call, name, c->row->op->arguments[i]->type);
    SPOPS_REQUIRE(c->ctx, m->rows == rows, "%s: %s is [%" PRId64 "], expected [%" PRId64 "]",
                  c->call, name, m->rows, rows);
    SPOPS_REQUIRE(c->ctx, m->rows == 0 || m->data != NULL, "%s: %s.data is NULL", c->call, name);
    return SPOPS_STATUS_OK;
}

// Those that ctx's backend has; numbers of an array that are always f64, as of cameras, it has.
HOT uint32_t dtypes_here(const call_check *c, const spops_row_arg *arg)
{
    const uint32_t always =
        arg->is_array && arg->variable == -1 && arg->sums == 0 ? arg->dtypes : 0;
    return allowed_dtypes(c, arg) & ~(c->ctx->backend->lacks_dtypes & ~always);
}

HOT spops_status check_matrix(const call_check *c, bool boxed, int i, byte_range *range)
{
    const spops_row_arg *arg = &c->row->args[i];
    const spops_matrix *m = matrix_of(c, boxed, i);
    const uint32_t dtypes = dtypes_here(c, arg);
    int64_t rows = c->slots[arg->dim_slots[0]], cols = c->slots[arg->dim_slots[1]];
    const int64_t width = boxed ? m->cols : width_of(c, i, m);

    if (boxed) { // not all sizes have values
        rows = value_of(c, &arg->dims[0], m->rows);
        cols = arg->is_array ? 1 : value_of(c, &arg->dims[1], m->cols);
    }
    if ((dtypes & 1u << SPOPS_ROW_U8) != 0) return check_elements(c, i, m, rows, dtypes);
    if (!is_right(m, rows, cols, width, dtypes, range))
        SPOPS_TRY(refuse_matrix(c, i, m, rows, cols, width, dtypes, range));
    return arg->is_dense ? check_dense(c, i, m) : SPOPS_STATUS_OK;
}

COLD static spops_status refuse_absent(const call_check *c, int i)
{
    const spops_row_arg *arg = &c->row->args[i];
    if (arg->is_array && spops_row_eval(&arg->dims[0], c->slots) == 0) return SPOPS_STATUS_OK;
    return spops_fail(c->ctx, SPOPS_STATUS_INVALID_ARGUMENT, "%s: %s is NULL", c->call, arg->name);
}

// What it may only be given with is there.
static spops_status check_needed(const call_check *c, int i)
{
    const spops_row_arg *arg = &c->row->args[i];
    SPOPS_REQUIRE(c->ctx, c->args[arg->needs] != NULL, "%s: %s is given, and %s is NULL", c->call,
                  arg->name, c->row->args[arg->needs].name);
    return SPOPS_STATUS_OK;
}

// ---- Overlap ------------------------------------------------------------------------------------

static spops_argument argument_of(const call_check *c, int i)
{
    const spops_row_arg *arg = &c->row->args[i];
    if (arg->blocks >= 0) return *(const spops_argument *)c->args[i];
    if (!arg->is_array || c->matrices != NULL)
        return spops_plain_argument(arg->name, *matrix_of(c, c->matrices != NULL, i));
    const int64_t n = spops_row_eval(&arg->dims[0], c->slots);
    return spops_array_argument(arg->name, c->args[i], n > 0 ? n : 1, array_dtype(c, arg));
}

static bool is_same_matrix(const call_check *c, int i, int j)
{
    const spops_matrix *a = matrix_of(c, c->matrices != NULL, i);
    const spops_matrix *b = matrix_of(c, c->matrices != NULL, j);
    return a->data == b->data && (a->rows <= 1 || a->row_stride == b->row_stride);
}

COLD static spops_status check_pair(const call_check *c, int out, int other)
{
    const spops_argument a = argument_of(c, out), b = argument_of(c, other);

    // What it may be may itself be another.
    for (int i = c->row->args[out].may_be;
         i >= 0 && c->args[i] != NULL && is_same_matrix(c, out, i); i = c->row->args[i].may_be)
        if (i == other) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(c->ctx, !spops_arguments_overlap(&a, &b),
                  "%s: %s overlaps %s, expected separate memory", c->call, c->row->args[out].name,
                  c->row->args[other].name);
    return SPOPS_STATUS_OK;
}

// Every output is apart from every input and from every other output.
HOT spops_status check_apart(const call_check *c, const byte_range *ranges)
{
    const int num_inputs = c->row->num_inputs;

    for (int i = num_inputs; i < c->row->num_args; ++i) {
        for (int j = 0; j < i; ++j)
            if (ranges[i].begin < ranges[j].end && ranges[j].begin < ranges[i].end)
                SPOPS_TRY(check_pair(c, i, j));
    }
    return SPOPS_STATUS_OK;
}

// ---- Calls --------------------------------------------------------------------------------------

// Before anything is checked, so that a call that is refused has its line.
COLD static void log_call(const call_check *c, const spops_call_number *attributes)
{
    call_check own = *c;
    for (int i = 0; i < c->row->num_attributes; ++i)
        own.slots[i] =
            c->row->attributes[i].row->kind == SPOPS_ARGUMENT_FLOAT ? 0 : attributes[i].i;
    find_fields(&own);
    find_sizes(&own, false);
    spops_log_row(c->ctx, c->call, c->row, c->args, attributes, own.slots);
}

// Rows are parsed when the first context is made, and there may have been none.
COLD static spops_status refuse_no_context(const spops_row *row, const char *call)
{
    spops_rows_parse();
    return spops_fail(NULL, SPOPS_STATUS_INVALID_ARGUMENT, "%s: ctx is NULL",
                      call == NULL ? row->call : call);
}

HOT spops_status check_call(spops_context *ctx, const char *call, const spops_row *row,
                            const void *const *args, const spops_call_number *attributes)
{
    byte_range ranges[SPOPS_ROW_MAX_ARGS];
    call_check c;

    if (ctx == NULL) return refuse_no_context(row, call);
    c.ctx = ctx;
    c.row = row;
    c.call = call;
    c.args = args;
    c.matrices = NULL;
    begin_slots(&c);
    if (spops_log_is_on) log_call(&c, attributes);
    SPOPS_TRY(check_plans(&c));
    SPOPS_TRY(check_attributes(&c, attributes));
    find_sizes(&c, false);
    spops_row_run_steps(row, args, c.slots);
    find_dtypes(&c, false);
    for (int i = 0; i < row->num_args; ++i) {
        const spops_row_arg *arg = &row->args[i];
        ranges[i] = (byte_range){0, 0};
        if (arg->is_plan || arg->is_comm) continue;
        if (args[i] == NULL) {
            if (!arg->is_optional) SPOPS_TRY(refuse_absent(&c, i));
            continue;
        }
        if (arg->needs >= 0) SPOPS_TRY(check_needed(&c, i));
        SPOPS_TRY(arg->is_array ? check_array(&c, i, &ranges[i])
                                : check_matrix(&c, false, i, &ranges[i]));
    }
    return check_apart(&c, ranges);
}

spops_status spops_check_call(spops_context *ctx, spops_operator_id op, const void *const *args,
                              const spops_call_number *attributes)
{
    const spops_row *row = spops_row_of(op);
    return check_call(ctx, row->call, row, args, attributes);
}

spops_status spops_check_call_as(spops_context *ctx, const char *call, spops_operator_id op,
                                 const void *const *args, const spops_call_number *attributes)
{
    return check_call(ctx, call, spops_row_of(op), args, attributes);
}

spops_status spops_check_boxed(spops_context *ctx, const spops_row *row, const void *const *args,
                               const spops_matrix *matrices, const spops_call_number *attributes)
{
    byte_range ranges[SPOPS_ROW_MAX_ARGS];
    call_check c;

    c.ctx = ctx;
    c.row = row;
    c.call = row->call;
    c.args = args;
    c.matrices = matrices;
    begin_slots(&c);
    SPOPS_TRY(check_plans(&c));
    SPOPS_TRY(check_attributes(&c, attributes));
    find_sizes(&c, true);
    find_dtypes(&c, true);
    for (int i = 0; i < row->num_args; ++i) {
        const spops_row_arg *arg = &row->args[i];
        ranges[i] = (byte_range){0, 0};
        if (arg->is_comm && (args[i] != NULL || !arg->is_optional))
            SPOPS_TRY(spops_check_comm(ctx, row->call, arg->name, args[i]));
        if (arg->is_plan || arg->is_comm || (args[i] == NULL && matrices[i].rows == 0)) continue;
        if (arg->needs >= 0 && arg->needs < row->num_inputs && args[i] != NULL)
            SPOPS_TRY(check_needed(&c, i));
        if (arg->is_array || arg->is_dense) SPOPS_TRY(check_matrix(&c, true, i, &ranges[i]));
    }
    return row->is_checked ? SPOPS_STATUS_OK : check_apart(&c, ranges);
}
