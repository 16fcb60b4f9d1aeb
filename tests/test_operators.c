// SPDX-License-Identifier: Apache-2.0
// The list of operators: no operator is named here, so that a new row is tested as it is written.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call/rows.h"
#include "spops/spops.h"
#include "tests/support/launch.h"

enum { MAX_VALUES = 96 };

static const spops_value NONE = {SPOPS_VALUE_NONE, 0, {0}};

static int num_arguments(const spops_operator *op)
{
    return op->num_inputs + op->num_outputs;
}

static int num_plans(const spops_operator *op)
{
    int n = 0;
    for (int i = 0; i < num_arguments(op); ++i)
        n += op->arguments[i]->kind == SPOPS_ARGUMENT_PLAN;
    return n;
}

static int find_argument(const spops_operator *op, const char *name, size_t length)
{
    for (int i = 0; i < num_arguments(op) + op->num_attributes; ++i)
        if (strlen(op->arguments[i]->name) == length &&
            memcmp(op->arguments[i]->name, name, length) == 0)
            return i;
    return -1;
}

Test(operators, rows_are_whole)
{
    int32_t num = 0;
    const spops_operator *const *ops = spops_operators(&num);

    cr_assert(spops_rows_error() == NULL, "%s", spops_rows_error());
    cr_assert(num > 50, "%d operators", (int)num);
    for (int32_t i = 0; i < num; ++i) {
        const spops_operator *op = ops[i];
        cr_assert(op->struct_size == sizeof *op && op->index == i, "%s", op->name);
        cr_assert(spops_operator_find(op->name) == op, "%s is there twice", op->name);
        cr_assert(strncmp(op->function, "spops_", 6) == 0, "%s: %s", op->name, op->function);
        cr_assert(op->entry != NULL && strlen(op->doc) > 10, "%s", op->name);
        for (int k = 0; k < num_arguments(op) + op->num_attributes; ++k) {
            const char *name = op->arguments[k]->name;
            cr_assert(find_argument(op, name, strlen(name)) == k, "%s: two arguments %s", op->name,
                      name);
            cr_assert(k >= num_arguments(op) || op->arguments[k]->kind <= SPOPS_ARGUMENT_PLAN);
        }
    }
    cr_assert(spops_operator_find("no such operator") == NULL);
    cr_assert(spops_operator_find(NULL) == NULL);
}

// The gradient's arguments are those of the forward operator, or gradients of its outputs.
Test(operators, gradients_are_operators)
{
    int32_t num = 0, num_gradients = 0;
    const spops_operator *const *ops = spops_operators(&num);

    for (int32_t i = 0; i < num; ++i) {
        const char *at = ops[i]->gradient;
        char name[64] = "";
        const spops_operator *gradient;
        int k;
        if (*at == '\0') continue;
        ++num_gradients;
        memcpy(name, at, strcspn(at, "("));
        gradient = spops_operator_find(name);
        cr_assert(gradient != NULL, "%s: no operator %s", ops[i]->name, name);
        at += strlen(name) + 1;
        for (k = 0; *at != ')' && *at != '\0'; ++k) {
            const size_t n = strcspn(at, ",)");
            const bool is_gradient = strncmp(at, "grad_", 5) == 0;
            const int found = find_argument(ops[i], at + 5 * is_gradient, n - 5 * is_gradient);
            cr_assert(found >= 0 || is_gradient, "%s: \"%.*s\" in its gradient", ops[i]->name,
                      (int)n, at);
            cr_assert(find_argument(gradient, at, n) >= 0, "%s has no argument \"%.*s\"", name,
                      (int)n, at);
            at += n;
            at += strspn(at, ", ");
        }
        cr_assert(k >= gradient->num_inputs, "%s: its gradient takes %d inputs, %d are given",
                  ops[i]->name, (int)gradient->num_inputs, k);
        at = strstr(ops[i]->gradient, "-> ");
        cr_assert(at != NULL, "%s", ops[i]->name);
        for (k = 0, at += 3; *at != '\0'; ++k) {
            const size_t n = strcspn(at, ",");
            const int found = find_argument(ops[i], at, n);
            cr_assert(found >= 0 && found < ops[i]->num_inputs, "%s: \"%.*s\"", ops[i]->name,
                      (int)n, at);
            at += n;
            at += strspn(at, ", ");
        }
        cr_assert(k == gradient->num_outputs, "%s: %d gradients, %s has %d outputs", ops[i]->name,
                  k, name, (int)gradient->num_outputs);
    }
    cr_assert(num_gradients >= 8);
}

// One STRING among values that are NONE: the message names the argument, or one before it that must
// be there.
Test(operators, refuse_values_of_other_types)
{
    int32_t num = 0;
    const spops_operator *const *ops = spops_operators(&num);

    for (int32_t i = 0; i < num; ++i) {
        const spops_operator *op = ops[i];
        const int count =
            num_arguments(op) + num_plans(op) + op->num_attributes + (op->num_optional > 0);
        spops_value values[MAX_VALUES], ret;
        cr_assert(count < MAX_VALUES);
        for (int k = 0; k < num_arguments(op); ++k) {
            const char *message;
            for (int j = 0; j < count; ++j)
                values[j] = NONE;
            values[k] = (spops_value){SPOPS_VALUE_STRING, 0, {.s = "a string"}};
            cr_assert_eq(spops_call(NULL, op, values, count, &ret), SPOPS_STATUS_INVALID_ARGUMENT);
            message = spops_last_error(NULL);
            cr_assert(strstr(message, op->function + strlen("spops_")) == message, "%s", message);
            cr_assert(strstr(message, " is ") != NULL && strstr(message, ", expected ") != NULL,
                      "%s", message);
            cr_assert(ret.type == SPOPS_VALUE_NONE);
            cr_assert_eq(op->entry(NULL, values, count, &ret), -1);
        }
        cr_assert_eq(spops_call(NULL, op, values, count - 1, &ret), SPOPS_STATUS_INVALID_ARGUMENT);
        cr_assert_eq(spops_call(NULL, op, NULL, count, &ret), SPOPS_STATUS_INVALID_ARGUMENT);
        cr_assert_eq(spops_call(NULL, op, values, count, NULL), SPOPS_STATUS_INVALID_ARGUMENT);
    }
    cr_assert_eq(spops_call(NULL, NULL, NULL, 0, NULL), SPOPS_STATUS_INVALID_ARGUMENT);
    spops_call_release();
}
