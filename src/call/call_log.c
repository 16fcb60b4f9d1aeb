// SPDX-License-Identifier: Apache-2.0
// Lines of operators in the log of calls.
#include "call/call_log.h"

#include <inttypes.h>
#include <string.h>

#include "core/plan.h"

static void add_matrix(spops_log_line *line, const spops_matrix *m)
{
    spops_log_add(line, "%s[%" PRId64 ",%" PRId64 "]", spops_dtype_name(m->dtype), m->rows,
                  m->cols);
    if (m->rows > 1 && m->row_stride != m->cols) spops_log_add(line, "/%" PRId64, m->row_stride);
    if (m->data == NULL && m->rows != 0 && m->cols != 0) spops_log_add(line, "=NULL");
}

static void add_array(spops_log_line *line, const spops_row_arg *arg, const int64_t *slots)
{
    const char *dtype = (arg->dtypes & 1u << SPOPS_DTYPE_F32) != 0 ? "f32" : "i32";
    if (spops_row_has_value(&arg->dims[0], slots))
        spops_log_add(line, "%s[%" PRId64 "]", dtype, spops_row_eval(&arg->dims[0], slots));
    else
        spops_log_add(line, "%s[]", dtype);
}

// Absent ones are left out.
static void add_argument(spops_log_line *line, const spops_row_arg *arg, const void *given,
                         const int64_t *slots)
{
    if (given == NULL && arg->is_optional) return;
    spops_log_add(line, " %s=", arg->name);
    if (given == NULL)
        spops_log_add(line, "NULL");
    else if (arg->is_plan || arg->is_comm)
        spops_log_add(line, "%p", given);
    else if (arg->is_array)
        add_array(line, arg, slots);
    else if (arg->blocks >= 0)
        add_matrix(line, &((const spops_argument *)given)->m);
    else
        add_matrix(line, given);
}

// The word of a number among the names of an enum; NULL: it has none.
static const char *name_of(const char *names, int64_t number, int *length)
{
    for (; *names != '\0' && number > 0; --number) {
        names += strcspn(names, " ");
        names += *names == ' ';
    }
    *length = (int)strcspn(names, " ");
    return number != 0 || *names == '\0' || *names == '.' ? NULL : names;
}

static void add_attribute(spops_log_line *line, const spops_operator_argument *a,
                          spops_call_number value)
{
    const char *name = NULL;
    int length = 0;

    if (a->kind == SPOPS_ARGUMENT_FLOAT) {
        if (!(value.f == a->float_default)) spops_log_add(line, " %s=%.9g", a->name, value.f);
        return;
    }
    if (a->kind >= SPOPS_ARGUMENT_INTS || value.i == a->int_default) return;
    if (a->kind == SPOPS_ARGUMENT_ENUM) name = name_of(a->values, value.i, &length);
    if (name != NULL)
        spops_log_add(line, " %s=%.*s", a->name, length, name);
    else
        spops_log_add(line, " %s=%" PRId64, a->name, value.i);
}

void spops_log_row(const spops_context *ctx, const char *call, const spops_row *row,
                   const void *const *args, const spops_call_number *attributes,
                   const int64_t *slots)
{
    spops_log_line line = {0};

    if (!spops_log_is_own(ctx, call)) return;
    spops_log_add(&line, "%s ctx=%p", call, (const void *)ctx);
    for (int i = 0; i < row->num_args; ++i)
        add_argument(&line, &row->args[i], args[i], slots);
    for (int i = 0; i < row->num_attributes; ++i)
        add_attribute(&line, row->attributes[i].row, attributes[i]);
    spops_log_write(&line);
}
