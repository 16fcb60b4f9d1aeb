// SPDX-License-Identifier: Apache-2.0
// The list of operators: no operator is named here, so that a new row is tested as it is written.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call/rows.h"
#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/drawn_call.h"
#include "tests/support/params.h"

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

// ---- Calls --------------------------------------------------------------------------------------

static struct {
    int backend;
} backends[] = {{SPOPS_BACKEND_CPU}, {SPOPS_BACKEND_CUDA}};

enum { TRIES = 3000 };

// A valid call of every operator; again on a context of the library's own, with absent arguments left
// out; and once more: the same bits. Outputs begin with the same poison, as rows behind those in use
// keep what they hold.
static void check_same(drawn_call *c, test_device *d)
{
    spops_value values[DRAWN_MAX_VALUES], ret;
    const int32_t n = drawn_call_compact(c, values);
    unsigned char *first, *again;
    size_t bytes, bytes_again;

    for (int byte = 0; byte < 2; ++byte) {
        drawn_call_poison(c, 0x11 + byte);
        test_expect_ok(d->ctx, spops_call(d->ctx, c->op, c->values, c->num_values, &ret),
                       c->op->name);
        drawn_call_drop(c, &ret);
        test_wait(d);
        first = drawn_call_outputs(c, &bytes);
        drawn_call_poison(c, 0x11 + byte);
        cr_assert(spops_call(NULL, c->op, values, n, &ret) == SPOPS_STATUS_OK, "%s",
                  spops_last_error(NULL));
        cr_assert(device_stream_wait(d->backend, NULL));
        if (c->row->num_args > 0 && c->row->args[c->row->num_args - 1].may_be < 0 &&
            ret.type == SPOPS_VALUE_POINTER)
            spops_call_destroy(ret.v.p);
        again = drawn_call_outputs(c, &bytes_again);
        cr_assert(bytes == bytes_again && memcmp(first, again, bytes) == 0, "%s: other bits",
                  c->op->name);
        free(first);
        free(again);
    }
}

static void check_valid(int backend)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;

    cr_assert(c != NULL);
    if (!test_open(&d, (spops_backend_kind)backend, LAUNCH_DEFAULT)) {
        free(c);
        return;
    }
    for (int32_t i = 0; i < num; ++i) {
        test_rng rng = test_rng_make(7000 + (uint64_t)i);
        spops_value ret;
        const int tries = drawn_call_find(c, &d, ops[i], &rng, TRIES, &ret);
        cr_expect(tries > 0, "%s: none of %d draws was valid, the last: %s", ops[i]->name, TRIES,
                  spops_last_error(d.ctx));
        if (tries == 0) continue;
        if (getenv("SPOPS_TEST_VERBOSE") != NULL) printf("%-28s %4d draws\n", ops[i]->name, tries);
        drawn_call_drop(c, &ret);
        check_same(c, &d);
        drawn_call_free(c);
    }
    spops_call_release();
    test_close(&d);
    free(c);
}

Test(operators, valid_calls_cpu)
{
    check_valid(backends[0].backend);
}

Test(operators, valid_calls_cuda)
{
    check_valid(backends[1].backend);
}
