// SPDX-License-Identifier: Apache-2.0
// The list of operators: no operator is named here, so that a new row is tested as it is written.
#include <criterion/criterion.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call/call_check.h"
#include "call/rows.h"
#include "core/plan.h"
#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/checked_alloc.h"
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
        cr_assert(strstr(op->function, "_execute") != NULL || *op->scratch == '\0', "%s", op->name);
        for (int k = 0; k < num_arguments(op) + op->num_attributes; ++k) {
            const char *name = op->arguments[k]->name;
            cr_assert(find_argument(op, name, strlen(name)) == k, "%s: two arguments %s", op->name,
                      name);
            cr_assert(k >= num_arguments(op) || op->arguments[k]->kind <= SPOPS_ARGUMENT_PLAN ||
                      op->arguments[k]->kind == SPOPS_ARGUMENT_COMM);
        }
    }
    cr_assert(spops_operator_find("no such operator") == NULL);
    cr_assert(spops_operator_find(NULL) == NULL);
}

// What tensors and blocks alone cannot be called with says so.
Test(operators, handles)
{
    int32_t num = 0, with = 0;
    const spops_operator *const *ops = spops_operators(&num);

    for (int32_t i = 0; i < num; ++i) {
        int32_t expected = 0;
        for (int k = 0; k < num_arguments(ops[i]); ++k) {
            const spops_operator_argument *a = ops[i]->arguments[k];
            const spops_row_arg *arg = &spops_row_of((spops_operator_id)i)->args[k];
            if (a->kind == SPOPS_ARGUMENT_COMM ||
                (arg->is_plan && !spops_plan_has_description(arg->plan_kind)))
                expected = 1;
        }
        cr_expect_eq(ops[i]->needs_handles, expected, "%s", ops[i]->name);
        with += expected;
    }
    cr_expect(with > 5 && with < num / 2, "%d", (int)with);
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

// A loop over the valid calls of all operators that are wanted (NULL: all): `check` says how much of what
// the test is about a call had, and an operator is done when it had enough.
typedef struct operator_loop {
    int seed, draws, enough;
    bool (*wants)(const spops_operator *op);
    int (*check)(drawn_call *c, test_device *d);
    int num_with, sum; // operators that had some, and all of it
} operator_loop;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// False where the backend is not tested here. SPOPS_TEST_VERBOSE: a line an operator, begun before it.
static bool over_operators(int backend, operator_loop *loop)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    const bool is_verbose = getenv("SPOPS_TEST_VERBOSE") != NULL;
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;

    cr_assert(c != NULL);
    if (!test_open(&d, (spops_backend_kind)backend, LAUNCH_DEFAULT)) {
        free(c);
        return false;
    }
    for (int32_t i = 0; i < num; ++i) {
        const double begin_s = seconds();
        int had = 0, sum_tries = 0;
        if (loop->wants != NULL && !loop->wants(ops[i])) continue;
        if (is_verbose) printf("%-28s", ops[i]->name), fflush(stdout);
        for (int draw = 0; draw < loop->draws && had < loop->enough; ++draw) {
            test_rng rng = drawn_call_rng(ops[i], loop->seed + draw);
            spops_value ret;
            const int tries = drawn_call_find(c, &d, ops[i], &rng, TRIES, &ret);
            sum_tries += tries;
            cr_assert(tries > 0, "%s: none of %d draws was valid, the last: %s", ops[i]->name,
                      TRIES, spops_last_error(d.ctx));
            drawn_call_drop(c, &ret);
            had += loop->check(c, &d);
            drawn_call_free(c);
        }
        loop->num_with += had > 0;
        loop->sum += had;
        if (is_verbose)
            printf(" %d, %d draws, %.0f ms\n", had, sum_tries, 1e3 * (seconds() - begin_s));
    }
    test_close(&d);
    free(c);
    return true;
}

static bool executes(const spops_operator *op)
{
    return strstr(op->function, "_execute") != NULL;
}

// Ranks that are threads meet on the host, which no graph does; what is in host memory is copied there.
static bool can_be_captured(const spops_operator *op)
{
    return op->num_outputs == 0 ||
           (op->arguments[op->num_inputs]->kind != SPOPS_ARGUMENT_PLAN && op->needs_handles == 0);
}

// All bytes of the outputs after a call over a poison (to be freed); ctx NULL: on a context of the
// library's own.
static unsigned char *run_call(drawn_call *c, test_device *d, spops_context *ctx, int poison,
                               const spops_value *values, int32_t num_values, size_t *bytes)
{
    spops_value ret;
    drawn_call_poison(c, poison);
    test_expect_ok(ctx, spops_call(ctx, c->op, values, num_values, &ret), c->op->name);
    if (ctx == NULL && c->row->args[c->row->num_args - 1].may_be < 0 &&
        ret.type == SPOPS_VALUE_POINTER)
        spops_call_destroy(ret.v.p);
    else if (ctx != NULL)
        drawn_call_drop(c, &ret);
    cr_assert(device_stream_wait(d->backend, ctx == NULL ? NULL : spops_context_stream(ctx)));
    return drawn_call_outputs(c, bytes);
}

// A valid call of every operator; again on a context of the library's own, with absent arguments left
// out; and once more: the same bits. Outputs begin with the same poison, as rows behind those in use
// keep what they hold.
static int check_same(drawn_call *c, test_device *d)
{
    spops_value values[DRAWN_MAX_VALUES];
    const int32_t n = drawn_call_compact(c, values);
    unsigned char *first, *again;
    size_t bytes, bytes_again;

    for (int byte = 0x11; byte < 0x13; ++byte) {
        first = run_call(c, d, d->ctx, byte, c->values, c->num_values, &bytes);
        again = run_call(c, d, NULL, byte, values, n, &bytes_again);
        cr_assert(bytes == bytes_again && memcmp(first, again, bytes) == 0, "%s: other bits",
                  c->op->name);
        free(first);
        free(again);
    }
    return 1;
}

static void check_valid(int backend)
{
    operator_loop loop = {.seed = 7000, .draws = 1, .enough = 1, .check = check_same};
    checked_alloc memory; // of the library's own contexts
    spops_allocator hooks;

    checked_alloc_init(&memory);
    memory.device_backend = (spops_backend_kind)backend;
    hooks = checked_alloc_hooks(&memory);
    spops_call_set_allocator(&hooks);
    spops_call_set_device(backend == SPOPS_BACKEND_CUDA && device_has_cuda() ? 0 : -1);
    const bool is_tested = over_operators(backend, &loop);
    spops_call_release();
    spops_call_set_allocator(NULL);
    spops_call_set_device(-1);
    checked_alloc_finish(&memory, "the library's own contexts");
    cr_expect((memory.requests > 0) == (is_tested && backend == SPOPS_BACKEND_CUDA));
}

Test(operators, valid_calls_cpu)
{
    check_valid(backends[0].backend);
}

Test(operators, valid_calls_cuda)
{
    check_valid(backends[1].backend);
}

Test(operators, a_call_without_tensors_runs_where_the_thread_says)
{
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;
    test_rng rng = test_rng_make(3);
    spops_value ret;
    spops_status status;

    cr_assert(c != NULL);
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    cr_assert(drawn_call_find(c, &d, spops_operator_find("bev_plan"), &rng, TRIES, &ret) > 0);
    drawn_call_drop(c, &ret);
    spops_call_set_device(0);
    status = spops_call(NULL, c->op, c->values, c->num_values, &ret);
    spops_call_set_device(-1);
    if (device_has_cuda()) {
        cr_assert_eq(status, SPOPS_STATUS_OK);
        spops_call_destroy(ret.v.p);
    } else {
        cr_assert_eq(status, SPOPS_STATUS_BACKEND_UNAVAILABLE);
        cr_assert(strstr(spops_last_error(NULL), "context_create: ") != NULL, "%s",
                  spops_last_error(NULL));
    }
    cr_assert_eq(spops_call(NULL, c->op, c->values, c->num_values, &ret), SPOPS_STATUS_OK);
    spops_call_destroy(ret.v.p);
    drawn_call_free(c);
    free(c);
    spops_call_release();
    test_close(&d);
}

// ---- Strides ------------------------------------------------------------------------------------

// The row stride of one row is not looked at, whatever it is; UndefinedBehaviorSanitizer tells where it
// is multiplied. How many rows there were.
static int check_strides(drawn_call *c, test_device *d)
{
    static const int64_t strides[] = {0, -1, 3, INT64_MIN, INT64_MAX};
    size_t bytes;
    unsigned char *first = run_call(c, d, d->ctx, 0x11, c->values, c->num_values, &bytes), *again;
    int rows = 0;

    for (int i = 0; i < c->row->num_args; ++i) {
        int64_t *stride = &c->tensors[i].strides[0];
        const int64_t kept = *stride;
        if (c->tensors[i].memory == NULL || c->tensors[i].tensor.num_dims != 2 ||
            c->tensors[i].shape[0] != 1)
            continue;
        for (size_t s = 0; s < sizeof strides / sizeof *strides; ++s) {
            *stride = strides[s];
            again = run_call(c, d, d->ctx, 0x11, c->values, c->num_values, &bytes);
            cr_expect(memcmp(first, again, bytes) == 0, "%s, stride %d of %s: other bits",
                      c->op->name, (int)s, c->op->arguments[i]->name);
            free(again);
        }
        *stride = kept;
        ++rows;
    }
    free(first);
    return rows;
}

Test(operators, stride_of_one_row)
{
    operator_loop loop = {.seed = 5000, .draws = 48, .enough = 3, .check = check_strides};
    if (over_operators(backends[0].backend, &loop)) cr_expect_gt(loop.num_with, 30);
}

// ---- Captured calls -----------------------------------------------------------------------------

// Memory that is there before a capture begins, as a framework's graphs have it.
static struct {
    void *memory;
    size_t used;
} arena;
enum { ARENA_BYTES = 64 << 20 };

static void *arena_alloc(void *user, size_t bytes, void *stream)
{
    const size_t begin = (arena.used + 255) / 256 * 256;
    (void)user, (void)stream;
    if (bytes > ARENA_BYTES - begin) return NULL;
    arena.used = begin + bytes;
    return (char *)arena.memory + begin;
}

static void arena_free(void *user, void *ptr, size_t bytes, void *stream)
{
    (void)user, (void)ptr, (void)bytes, (void)stream;
}

// A valid call of c captured on a new stream, so on a new context of the library's own, and run twice.
static int check_captured(drawn_call *c, test_device *d)
{
    const spops_backend_kind cuda = SPOPS_BACKEND_CUDA;
    spops_value values[DRAWN_MAX_VALUES], ret;
    const int32_t n = drawn_call_compact(c, values);
    size_t bytes, bytes_again;
    unsigned char *first = run_call(c, d, NULL, 0x11, values, n, &bytes), *again;
    device_graph *graph = NULL;
    spops_status status;
    void *stream;

    cr_assert(device_stream_create(cuda, &stream));
    arena.used = 0;
    spops_call_set_stream(0, stream);
    cr_assert(device_capture_begin(stream));
    status = spops_call(NULL, c->op, values, n, &ret);
    cr_assert(device_capture_end(stream, &graph), "%s: %s", c->op->name, spops_last_error(NULL));
    cr_expect(status == SPOPS_STATUS_OK, "%s", spops_last_error(NULL));
    for (int run = 0; status == SPOPS_STATUS_OK && run < 2; ++run) {
        drawn_call_poison(c, 0x11);
        cr_assert(device_stream_wait(cuda, NULL) && device_graph_launch(graph, stream));
        cr_assert(device_stream_wait(cuda, stream));
        again = drawn_call_outputs(c, &bytes_again);
        cr_expect(bytes == bytes_again && memcmp(first, again, bytes) == 0, "%s: other bits",
                  c->op->name);
        free(again);
    }
    free(first);
    device_graph_destroy(graph);
    spops_call_set_stream(0, NULL);
    spops_call_release();
    device_stream_destroy(cuda, stream);
    return 1;
}

Test(operators, captured_calls_need_no_call_before)
{
    const spops_allocator hooks = {NULL, NULL, NULL, arena_alloc, arena_free};
    operator_loop loop = {
        .seed = 9000, .draws = 1, .enough = 1, .wants = can_be_captured, .check = check_captured};

    if (!device_has_cuda()) cr_skip_test("no CUDA device");
    cr_assert(device_alloc(SPOPS_BACKEND_CUDA, ARENA_BYTES, &arena.memory));
    spops_call_release(); // those of other tests have memory of their own
    spops_call_set_allocator(&hooks);
    (void)over_operators(SPOPS_BACKEND_CUDA, &loop);
    spops_call_set_allocator(NULL);
    device_free(SPOPS_BACKEND_CUDA, arena.memory);
}

// ---- Rows of f64 ---------------------------------------------------------------------------------

// Whether a call of the operator can have rows of f64, and whether this one has any.
static bool takes_f64(const spops_row *row)
{
    for (int v = 0; v < row->num_variables; ++v)
        if ((row->variables[v].dtypes & 1u << SPOPS_DTYPE_F64) != 0) return true;
    return false;
}

static bool has_f64(const drawn_call *c)
{
    for (int i = 0; i < c->row->num_args; ++i)
        if (c->tensors[i].memory != NULL && c->tensors[i].tensor.dtype_code == 2 &&
            c->tensors[i].tensor.dtype_bits == 64)
            return true;
    return false;
}

// Every operator that takes rows of f64 has valid calls with them; drawn until one of these is found.
Test(operators, rows_of_f64_cpu)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;

    cr_assert(c != NULL);
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    for (int32_t i = 0; i < num; ++i) {
        test_rng rng = drawn_call_rng(ops[i], 9000);
        spops_value ret;
        int tries = 0;
        bool found = false;
        if (!takes_f64(spops_row_of((spops_operator_id)i))) continue;
        for (; tries < 200 && !found; ++tries) {
            if (drawn_call_find(c, &d, ops[i], &rng, TRIES, &ret) == 0) continue;
            found = has_f64(c);
            if (found) check_same(c, &d);
            drawn_call_free(c);
        }
        cr_expect(found, "%s: none of %d valid calls has rows of f64", ops[i]->name, tries);
    }
    spops_call_release();
    test_close(&d);
    free(c);
}

// On CUDA each is refused by name, whatever else is right or wrong with it.
Test(operators, rows_of_f64_cuda)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;

    cr_assert(c != NULL);
    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_DEFAULT)) {
        free(c);
        return;
    }
    for (int32_t i = 0; i < num; ++i) {
        test_rng rng = drawn_call_rng(ops[i], 9000);
        int named = 0;
        if (!takes_f64(spops_row_of((spops_operator_id)i))) continue;
        for (int tries = 0; tries < 200 && named == 0; ++tries) {
            spops_value ret;
            if (!drawn_call_make(c, &d, ops[i], &rng)) {
                drawn_call_free(c);
                continue;
            }
            if (has_f64(c)) {
                const spops_status status =
                    spops_call(d.ctx, ops[i], c->values, c->num_values, &ret);
                cr_expect_neq(status, SPOPS_STATUS_OK, "%s took rows of f64", ops[i]->name);
                named += status == SPOPS_STATUS_NOT_SUPPORTED &&
                         strstr(spops_last_error(d.ctx),
                                ".dtype is f64, which the cuda backend does not take") != NULL;
            }
            drawn_call_free(c);
        }
        cr_expect(named > 0, "%s: no refusal names f64", ops[i]->name);
    }
    test_close(&d);
    free(c);
}

// ---- Scratch ------------------------------------------------------------------------------------

// The same on a context of the library's own, in scratch that is handed over, on d's stream: the same
// bits; with less scratch nothing is written.
static void check_on_stream(drawn_call *c, test_device *d, void *memory, size_t bytes,
                            const unsigned char *expected, size_t num)
{
    const bool needs = spops_context_scratch_memory(0) < bytes;
    void *stream = spops_context_stream(d->ctx);
    unsigned char *found;
    spops_value ret;
    size_t n;

    drawn_call_poison(c, 0x11);
    test_expect_ok(
        NULL, spops_call_on_stream(stream, memory, bytes, c->op, c->values, c->num_values, &ret),
        c->op->name);
    cr_assert(device_stream_wait(d->backend, stream));
    found = drawn_call_outputs(c, &n);
    cr_expect(n == num && memcmp(found, expected, n) == 0, "%s: other bits on a stream",
              c->op->name);
    free(found);
    if (!needs) return;
    drawn_call_poison(c, 0x11);
    found = drawn_call_outputs(c, &n);
    const spops_status status =
        spops_call_on_stream(stream, memory, bytes - 1, c->op, c->values, c->num_values, &ret);
    cr_expect_eq(status, SPOPS_STATUS_OUT_OF_MEMORY, "%s: %d", c->op->name, (int)status);
    cr_expect(strstr(spops_last_error(NULL), "bytes of scratch are not to be had") != NULL, "%s",
              spops_last_error(NULL));
    unsigned char *after = drawn_call_outputs(c, &n);
    cr_expect(memcmp(found, after, n) == 0, "%s: written without scratch", c->op->name);
    free(found);
    free(after);
}

// On a new context that has the scratch that the row says, with a guard behind it, and no more: the
// same bits. Returns how much it was.
static int check_scratch(drawn_call *c, test_device *d)
{
    enum { GUARD = 256 };
    spops_context *other = test_context(d, 1);
    size_t bytes = 1, without_data = 2, memory_bytes, n;
    unsigned char *first, *again, *memory = NULL, guard[GUARD], expected[GUARD];
    void *data[SPOPS_ROW_MAX_ARGS];

    test_expect_ok(other, spops_call_scratch_bytes(other, c->op, c->values, c->num_values, &bytes),
                   c->op->name);
    for (int i = 0; i < c->row->num_args; ++i) {
        data[i] = c->tensors[i].tensor.data;
        c->tensors[i].tensor.data = NULL;
    }
    test_expect_ok(other,
                   spops_call_scratch_bytes(other, c->op, c->values, c->num_values, &without_data),
                   c->op->name);
    for (int i = 0; i < c->row->num_args; ++i)
        c->tensors[i].tensor.data = data[i];
    cr_expect(bytes == without_data, "%s: %zu bytes, and %zu", c->op->name, bytes, without_data);
    memory_bytes = spops_context_scratch_memory(bytes);
    cr_assert(device_alloc(d->backend, memory_bytes + GUARD, (void **)&memory));
    cr_assert(device_fill(d->backend, memory, 0x77, memory_bytes + GUARD));
    if (bytes > 0)
        test_expect_ok(other, spops_context_set_scratch(other, memory, memory_bytes), c->op->name);
    first = run_call(c, d, d->ctx, 0x11, c->values, c->num_values, &n);
    again = run_call(c, d, other, 0x11, c->values, c->num_values, &n);
    cr_expect(memcmp(first, again, n) == 0, "%s: other bits with %zu bytes of scratch", c->op->name,
              bytes);
    cr_assert(device_download(d->backend, guard, memory + memory_bytes, GUARD));
    memset(expected, 0x77, GUARD);
    cr_expect(memcmp(guard, expected, GUARD) == 0, "%s: writes behind its scratch", c->op->name);
    spops_context_destroy(other);
    if (bytes > 0) check_on_stream(c, d, memory, memory_bytes, first, n);
    device_free(d->backend, memory);
    free(first);
    free(again);
    cr_expect(bytes == 0 || *c->op->scratch != '\0', "%s", c->op->name);
    return bytes > 0;
}

static void check_all_scratch(int backend)
{
    operator_loop loop = {
        .seed = 6000, .draws = 3, .enough = 3, .wants = executes, .check = check_scratch};
    if (over_operators(backend, &loop)) cr_expect_geq(loop.num_with, 8);
}

Test(operators, scratch_suffices_cpu)
{
    check_all_scratch(backends[0].backend);
}

Test(operators, scratch_suffices_cuda)
{
    check_all_scratch(backends[1].backend);
}

// ---- Faults -------------------------------------------------------------------------------------

// A call with one fault: which, in words, and whose name the message must have; NULL: an argument's.
typedef struct faulty {
    drawn_call *c;
    test_device *d;
    unsigned char *outputs; // before
    size_t bytes;
    int num_faults;
} faulty;

static bool has_word(const char *message, const char *name)
{
    const size_t n = strlen(name);
    const char *at = strstr(message, ": ");
    while (at != NULL && (at = strstr(at, name)) != NULL) {
        const bool begins = !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        const bool ends = !(isalnum((unsigned char)at[n]) || at[n] == '_');
        if (begins && ends) return true;
        at += n;
    }
    return false;
}

static bool has_any_word(const char *message, const spops_operator *op)
{
    for (int i = 0; i < num_arguments(op) + op->num_attributes; ++i)
        if (has_word(message, op->arguments[i]->name)) return true;
    return false;
}

// What messages say of faults, after the argument's name.
static const struct {
    const char *fault, *text;
} said[] = {{"NULL", " is NULL"},
            {"another kind", " is a plan of another kind, expected "},
            {"rows", ", expected "},
            {"columns", ", expected "},
            {"another dtype", ".dtype is "},
            {"row stride", "row_stride "},
            {"misalignment", ", expected a"}};

static void check_said(const drawn_call *c, const char *fault, const char *name,
                       const char *message)
{
    char text[160] = "";
    // What has no rows may count as absent.
    if (name == NULL && strstr(message, " is given, and ") != NULL) return;
    for (size_t i = 0; i < sizeof said / sizeof *said; ++i)
        if (strcmp(said[i].fault, fault) == 0) snprintf(text, sizeof text, "%s", said[i].text);
    if (strncmp(fault, "over ", 5) == 0)
        snprintf(text, sizeof text, ": %s overlaps ", name); // or what lies behind a smaller one
    // An array without rows is absent, which another argument may not permit.
    const bool is_absent = strcmp(fault, "rows") == 0 && strstr(message, " is NULL") != NULL;
    cr_expect(strstr(message, text) != NULL || is_absent, "%s, %s of %s: \"%s\" is not in \"%s\"",
              c->op->name, fault, name == NULL ? "?" : name, text, message);
}

// The call is refused, for what is called `name` (NULL: for any argument), and nothing is written.
static void expect_refused(faulty *f, const char *fault, const char *name)
{
    const drawn_call *c = f->c;
    spops_value ret;
    const spops_status status = spops_call(f->d->ctx, c->op, c->values, c->num_values, &ret);
    const char *message = spops_last_error(f->d->ctx);
    unsigned char *after;
    size_t bytes;

    ++f->num_faults;
    if (status == SPOPS_STATUS_OK) drawn_call_drop(c, &ret);
    cr_expect(status == SPOPS_STATUS_INVALID_ARGUMENT || status == SPOPS_STATUS_NOT_SUPPORTED,
              "%s, %s of %s: status %s", c->op->name, fault, name == NULL ? "?" : name,
              spops_status_name(status));
    if (status == SPOPS_STATUS_OK) {
        free(f->outputs);
        f->outputs = drawn_call_outputs(c, &f->bytes);
        return;
    }
    cr_expect(strstr(message, c->op->function + strlen("spops_")) == message ||
                  strchr(message, ':') != NULL,
              "%s: \"%s\"", c->op->name, message);
    cr_expect(name == NULL ? has_any_word(message, c->op) : has_word(message, name),
              "%s, %s of %s: the message is \"%s\"", c->op->name, fault, name == NULL ? "?" : name,
              message);
    check_said(c, fault, name, message);
    test_wait(f->d);
    after = drawn_call_outputs(c, &bytes);
    cr_expect(bytes == f->bytes && memcmp(after, f->outputs, bytes) == 0,
              "%s, %s of %s: something was written", c->op->name, fault, name == NULL ? "?" : name);
    free(after);
}

// How many other dimensions of arguments that are there have this size.
static int count_uses(const drawn_call *c, int32_t slot, int but)
{
    int uses = 0;
    for (int i = 0; i < c->row->num_args; ++i) {
        if (i == but || c->tensors[i].memory == NULL || c->values[i].type == SPOPS_VALUE_NONE)
            continue;
        for (int d = 0; d < c->row->args[i].num_dims; ++d)
            uses += c->row->args[i].dims[d].how == SPOPS_NUMBER_SLOT &&
                    c->row->args[i].dims[d].at == slot;
    }
    return uses;
}

static bool is_field(const spops_row *row, int32_t slot)
{
    for (int i = 0; i < row->num_fields; ++i)
        if (row->fields[i].slot == slot) return true;
    return false;
}

// One more in dimension d: refused by this argument's name where its size follows from others.
static void break_size(faulty *f, int i, int d)
{
    const spops_row_number *dim = &f->c->row->args[i].dims[d];
    const bool is_size = dim->how == SPOPS_NUMBER_SLOT && dim->at >= f->c->row->num_attributes &&
                         !is_field(f->c->row, dim->at);
    const bool is_code = dim->how == SPOPS_NUMBER_CODE;
    int64_t *shape = &f->c->tensors[i].shape[d];

    if (is_size && count_uses(f->c, dim->at, i) == 0) return;
    if (is_code && f->c->row->args[i].ascends) return; // offsets say how many there are
    const int64_t kept = *shape, stride = f->c->tensors[i].strides[0];
    for (int less = 0; less < (kept > 0 ? 3 : 1); ++less) { // one more, one less, impossible
        *shape = less == 0 ? kept + 1 : less == 1 ? kept - 1 : -1;
        if (d == 1) f->c->tensors[i].strides[0] = stride + *shape - kept;
        expect_refused(f, d == 0 ? "rows" : "columns",
                       (is_size || is_code) && less < 2 ? NULL : f->c->op->arguments[i]->name);
    }
    *shape = kept;
    f->c->tensors[i].strides[0] = stride;
}

// Whether its function has another row.
static bool is_shared(const spops_operator *op)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    for (int32_t i = 0; i < num; ++i)
        if (ops[i] != op && strcmp(ops[i]->function, op->function) == 0) return true;
    return false;
}

// Every dtype that the row does not have for it.
static void break_dtype(faulty *f, int i)
{
    static const struct {
        int dtype;
        uint8_t code, bits, lanes;
    } others[] = {{SPOPS_DTYPE_F32, 2, 32, 1},    {SPOPS_DTYPE_F16, 2, 16, 1},
                  {SPOPS_DTYPE_BF16, 4, 16, 1},   {SPOPS_DTYPE_F8E4M3, 10, 8, 1},
                  {SPOPS_DTYPE_F8E5M2, 12, 8, 1}, {SPOPS_DTYPE_F4E2M1, 17, 4, 2},
                  {SPOPS_DTYPE_I8, 0, 8, 1},      {SPOPS_DTYPE_I32, 0, 32, 1},
                  {SPOPS_DTYPE_I64, 0, 64, 1},    {SPOPS_DTYPE_F64, 2, 64, 1}};
    const spops_row *row = f->c->row;
    const spops_row_arg *arg = &row->args[i];
    spops_tensor *t = &f->c->tensors[i].tensor;
    const spops_tensor kept = *t;
    uint32_t may =
        arg->dtypes | (arg->sums != 0 ? 1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_F64 : 0);

    for (int v = 0; v < row->num_variables; ++v) {
        if ((arg->variables & 1u << v) == 0) continue;
        may |= row->variables[v].dtypes;
        for (int u = 0; u < row->num_variables; ++u)
            if ((row->variables[v].variables & 1u << u) != 0) may |= row->variables[u].dtypes;
    }
    for (size_t k = 0; k < sizeof others / sizeof *others; ++k) {
        if ((may & 1u << others[k].dtype) != 0) continue;
        t->dtype_code = others[k].code;
        t->dtype_bits = others[k].bits;
        t->dtype_lanes = others[k].lanes;
        // Of pairs of 4 bits there are twice as many columns; a function of two rows may blame another.
        const bool is_packed = others[k].lanes == 2;
        expect_refused(f, is_packed ? "a dtype of pairs" : "another dtype",
                       is_packed || is_shared(f->c->op) ? NULL : f->c->op->arguments[i]->name);
    }
    *t = kept;
}

// Strides that are too short, run backwards, or lead beyond all memory.
static void break_stride(faulty *f, int i)
{
    int64_t *stride = &f->c->tensors[i].strides[0];
    const int64_t kept = *stride, cols = f->c->tensors[i].shape[1];
    const int64_t strides[] = {cols - 1, -kept, INT64_MAX, INT64_MIN};

    for (int k = 0; k < 4; ++k) {
        *stride = strides[k];
        expect_refused(f, "row stride", f->c->op->arguments[i]->name);
    }
    *stride = kept;
}

// Whether an argument that is there may only be where this one is.
static bool is_needed(const drawn_call *c, int arg)
{
    for (int i = 0; i < c->row->num_args; ++i)
        if (c->row->args[i].needs == arg && c->values[i].type != SPOPS_VALUE_NONE) return true;
    return false;
}

static void break_tensor(faulty *f, int i)
{
    drawn_tensor *t = &f->c->tensors[i];
    const drawn_tensor kept = *t;
    const spops_row_arg *arg = &f->c->row->args[i];
    const char *name = f->c->op->arguments[i]->name;
    const spops_value value = f->c->values[i];
    const bool is_empty = t->shape[0] == 0 || (!arg->is_array && t->shape[1] == 0);

    f->c->values[i] = (spops_value){SPOPS_VALUE_INT, 0, {.i = 1}};
    expect_refused(f, "an INT in place", name);
    f->c->values[i] = NONE;
    if (!arg->is_optional)
        expect_refused(f, "NONE in place", name);
    else if (is_needed(f->c, i))
        expect_refused(f, "NONE in place", NULL);
    f->c->values[i] = value;
    t->tensor.dtype_code = 5; // complex
    expect_refused(f, "dtype", name);
    t->tensor.dtype_code = kept.tensor.dtype_code;
    if (!is_empty) {
        t->tensor.data = NULL;
        expect_refused(f, "NULL", name);
        t->tensor.data = kept.tensor.data;
    }
    if (!is_empty && kept.tensor.dtype_bits > 8) {
        t->tensor.data = (char *)kept.tensor.data + 1;
        expect_refused(f, "misalignment", name);
        t->tensor.data = kept.tensor.data;
    }
    for (int d = 0; d < arg->num_dims; ++d)
        break_size(f, i, d);
    break_dtype(f, i);
    if (!arg->is_array && t->shape[0] > 1 && t->shape[1] > 1) break_stride(f, i);
}

static void *data_end(const drawn_tensor *t)
{
    const int64_t last = (t->shape[0] - 1) * t->strides[0] + t->shape[1];
    return (char *)t->tensor.data + (size_t)last * t->tensor.dtype_bits * t->tensor.dtype_lanes / 8;
}

static void overlap(faulty *f, int i, int other)
{
    drawn_tensor *t = &f->c->tensors[i];
    const drawn_tensor *o = &f->c->tensors[other];
    void *data = t->tensor.data;

    if (t->shape[0] * t->shape[1] == 0 || o->shape[0] * o->shape[1] == 0) return;
    if (f->c->row->args[i].may_be == other || t->tensor.dtype_bits > o->tensor.dtype_bits) return;
    char fault[80];
    snprintf(fault, sizeof fault, "over %s", f->c->op->arguments[other]->name);
    t->tensor.data = o->tensor.data;
    expect_refused(f, fault, f->c->op->arguments[i]->name);
    t->tensor.data = (char *)data_end(o) - o->tensor.dtype_bits / 8;
    expect_refused(f, "one element in common", f->c->op->arguments[i]->name);
    t->tensor.data = data;
}

static void break_handle(faulty *f, int i)
{
    const spops_value value = f->c->values[i];
    const char *name = f->c->op->arguments[i]->name;

    f->c->values[i] = (spops_value){SPOPS_VALUE_POINTER, 0, {.p = NULL}};
    if (!f->c->row->args[i].is_optional) expect_refused(f, "NULL", name);
    f->c->values[i] = (spops_value){SPOPS_VALUE_INT, 0, {.i = 1}};
    expect_refused(f, "an INT in place", name);
    f->c->values[i] = (spops_value){SPOPS_VALUE_POINTER, 0, {.p = NULL}};
    for (int p = 0; p < f->c->num_plans && f->c->row->args[i].is_plan; ++p) {
        f->c->values[i].v.p = f->c->plans[p];
        if (spops_plan_get_kind(f->c->plans[p]) != (spops_plan_kind)f->c->row->args[i].plan_kind)
            expect_refused(f, "another kind", name);
    }
    f->c->values[i] = value;
}

static void break_attribute(faulty *f, int i, spops_value *value)
{
    const spops_row_attribute *a = &f->c->row->attributes[i];
    const spops_value kept = *value;

    if (a->row->kind >= SPOPS_ARGUMENT_INTS) return;
    *value = (spops_value){SPOPS_VALUE_POINTER, 0, {.p = NULL}};
    expect_refused(f, "a POINTER in place", a->row->name);
    *value = kept;
    if (a->row->kind == SPOPS_ARGUMENT_FLOAT) {
        const double floats[] = {NAN, INFINITY, a->float_min - 1.0, a->float_max + 1.0};
        value->type = SPOPS_VALUE_FLOAT;
        for (int k = 0; k < 4; ++k) {
            value->v.f = floats[k];
            if (k < 2 || value->v.f < a->float_min || value->v.f > a->float_max)
                expect_refused(f, "a number out of range", a->row->name);
        }
        *value = kept;
        return;
    }
    if (a->row->values != NULL) {
        *value = (spops_value){SPOPS_VALUE_STRING, 0, {.s = "no such name"}};
        expect_refused(f, "a name that is none", a->row->name);
    }
    *value = (spops_value){SPOPS_VALUE_INT, 0, {.i = 0}};
    if (a->first.how != SPOPS_NUMBER_NONE && a->min > INT64_MIN) {
        value->v.i = a->min - 1;
        expect_refused(f, "less", a->row->name);
    }
    if (a->last.how != SPOPS_NUMBER_NONE && a->max < INT64_MAX) {
        value->v.i = a->max + 1;
        expect_refused(f, "more", a->row->name);
    }
    *value = kept;
}

static int break_call(drawn_call *c, test_device *d)
{
    faulty f = {c, d, NULL, 0, 0};
    const int attributes = c->row->num_args + num_plans(c->op);

    drawn_call_poison(c, 0x11);
    f.outputs = drawn_call_outputs(c, &f.bytes);
    for (int i = 0; i < c->row->num_args; ++i) {
        if (c->values[i].type == SPOPS_VALUE_NONE) continue;
        if (c->row->args[i].is_plan || c->row->args[i].is_comm) {
            break_handle(&f, i);
            continue;
        }
        break_tensor(&f, i);
        for (int j = 0; i >= c->row->num_inputs && j < i; ++j)
            if (c->values[j].type == SPOPS_VALUE_TENSOR) overlap(&f, i, j);
    }
    for (int i = 0; i < c->row->num_attributes; ++i)
        break_attribute(&f, i, &c->values[attributes + i]);
    free(f.outputs);
    return f.num_faults;
}

// One refused call for every argument and fault, of several draws, as each has some arguments alone.
static void check_faults(int backend)
{
    operator_loop loop = {.seed = 8000, .draws = 3, .enough = INT32_MAX, .check = break_call};
    if (over_operators(backend, &loop)) cr_expect(loop.sum > 2000, "%d faults", loop.sum);
}

Test(operators, faults_cpu)
{
    check_faults(backends[0].backend);
}

Test(operators, faults_cuda)
{
    check_faults(backends[1].backend);
}

// ---- The checks of functions themselves ------------------------------------------------------------

// What a boxed call checks before the operator's function does, which is left out here: callers of the
// function alone have its own checks.
static bool leaves_out;

spops_status __real_spops_check_boxed(spops_context *ctx, const spops_row *row,
                                      const void *const *args, const spops_matrix *matrices,
                                      const spops_call_number *attributes);
spops_status __wrap_spops_check_boxed(spops_context *ctx, const spops_row *row,
                                      const void *const *args, const spops_matrix *matrices,
                                      const spops_call_number *attributes);
spops_status __wrap_spops_check_boxed(spops_context *ctx, const spops_row *row,
                                      const void *const *args, const spops_matrix *matrices,
                                      const spops_call_number *attributes)
{
    if (leaves_out) return SPOPS_STATUS_OK;
    return __real_spops_check_boxed(ctx, row, args, matrices, attributes);
}

// Whether the function refuses this value of attribute i, by its name or that of an argument whose size
// follows from it.
static bool is_refused(drawn_call *c, test_device *d, const char *name)
{
    spops_value ret;
    const spops_status status = spops_call(d->ctx, c->op, c->values, c->num_values, &ret);
    const char *message = spops_last_error(d->ctx);
    const char *part = strchr(name, '_'); // rotary_base is options->rotary->base, size0 size[0]
    char letters[64];
    snprintf(letters, sizeof letters, "%.*s", (int)strcspn(name, "0123456789"), name);
    if (status == SPOPS_STATUS_OK) drawn_call_drop(c, &ret);
    if (status != SPOPS_STATUS_INVALID_ARGUMENT) return false;
    if (!c->row->is_checked) return true; // the options of makers have names of their own
    return has_word(message, name) || has_any_word(message, c->op) || has_word(message, letters) ||
           (part != NULL && has_word(message, part + 1));
}

// Of which the function takes whatever its type holds.
static bool takes_all(const char *name)
{
    return strcmp(name, "seed") == 0 || strcmp(name, "shift") == 0 ||
           strcmp(name, "max_grid_bytes") == 0;
}

// The attributes, as bits, of which a value out of range was refused. 0 may be a default.
static uint64_t break_attributes(drawn_call *c, test_device *d, uint64_t *tried)
{
    uint64_t refused = 0;
    for (int i = 0; i < c->row->num_attributes; ++i) {
        const spops_row_attribute *a = &c->row->attributes[i];
        spops_value *value = &c->values[c->row->num_args + num_plans(c->op) + i];
        const spops_value kept = *value;
        if (a->row->kind >= SPOPS_ARGUMENT_INTS || takes_all(a->row->name)) continue;
        for (int more = 0; more < 2; ++more) {
            const int64_t number = more ? a->max : a->min;
            if (a->row->kind == SPOPS_ARGUMENT_FLOAT)
                *value = (spops_value){SPOPS_VALUE_FLOAT, 0, {.f = more ? NAN : -INFINITY}};
            else if (number == (more ? INT64_MAX : INT64_MIN) || (!more && number == 1))
                continue;
            else
                *value = (spops_value){SPOPS_VALUE_INT, 0, {.i = more ? number + 1 : number - 1}};
            *tried |= UINT64_C(1) << i;
            if (is_refused(c, d, a->row->name)) refused |= UINT64_C(1) << i;
            *value = kept;
        }
    }
    return refused;
}

// Addresses between elements, and outputs over other arguments: all that a function sees of an array.
static void break_addresses(drawn_call *c, test_device *d)
{
    faulty f = {c, d, NULL, 0, 0};
    drawn_call_poison(c, 0x11);
    f.outputs = drawn_call_outputs(c, &f.bytes);
    for (int i = 0; i < c->row->num_args; ++i) {
        spops_tensor *t = &c->tensors[i].tensor;
        if (c->values[i].type != SPOPS_VALUE_TENSOR) continue;
        if (c->tensors[i].shape[0] * c->tensors[i].shape[1] > 0 && t->dtype_bits > 8) {
            t->data = (char *)t->data + 1;
            expect_refused(&f, "misalignment", c->op->arguments[i]->name);
            t->data = (char *)t->data - 1;
        }
        for (int j = 0; i >= c->row->num_inputs && j < i; ++j)
            if (c->values[j].type == SPOPS_VALUE_TENSOR) overlap(&f, i, j);
    }
    free(f.outputs);
}

// Whether its function makes a plan; those that are neither this nor execute calls hand out parts.
static bool makes_plan(const spops_row *row)
{
    const spops_row_arg *last = &row->args[row->num_args - 1];
    return last->is_plan && last->is_output && last->may_be < 0;
}

// Every attribute of every operator is refused in some draw, and each of its plans where it is NULL.
Test(operators, functions_check_for_themselves)
{
    enum { DRAWS = 200, FEWEST = 4 };
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;

    cr_assert(c != NULL);
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    for (int32_t i = 0; i < num; ++i) {
        const spops_row *row = spops_row_of((spops_operator_id)i);
        uint64_t tried = 0, refused = 0;
        if (!row->is_checked && !makes_plan(row)) continue;
        for (int draws = 0; draws < DRAWS; ++draws) {
            if (draws >= FEWEST && (tried & ~refused) == 0) break;
            test_rng rng = drawn_call_rng(ops[i], 3000 + draws);
            spops_value ret;
            cr_assert(drawn_call_find(c, &d, ops[i], &rng, TRIES, &ret) > 0);
            drawn_call_drop(c, &ret);
            leaves_out = true;
            refused |= break_attributes(c, &d, &tried);
            if (c->row->is_checked) break_addresses(c, &d);
            for (int k = 0; k < c->row->num_args; ++k) {
                const spops_value kept = c->values[k];
                if (!c->row->args[k].is_plan || c->row->args[k].is_output) continue;
                if (c->row->args[k].is_optional) continue;
                c->values[k] = (spops_value){SPOPS_VALUE_POINTER, 0, {.p = NULL}};
                cr_expect(is_refused(c, &d, c->row->args[k].name), "%s: %s", ops[i]->name,
                          c->row->args[k].name);
                c->values[k] = kept;
            }
            leaves_out = false;
            drawn_call_free(c);
        }
        for (int k = 0; k < ops[i]->num_attributes; ++k)
            cr_expect((tried & ~refused & UINT64_C(1) << k) == 0, "%s does not check %s",
                      ops[i]->function, c->row->attributes[k].row->name);
    }
    test_close(&d);
    free(c);
}

// ---- The log of calls ---------------------------------------------------------------------------

typedef struct line_count {
    const char *call;
    int own, failed;
} line_count;

static void count_line(void *user, const char *line)
{
    line_count *n = user;
    const size_t length = strlen(n->call);
    n->own += strncmp(line, n->call, length) == 0 && strncmp(line + length, " ctx=", 5) == 0;
    n->failed += strncmp(line, "  ", 2) == 0 && strncmp(line, "  = ", 4) != 0;
}

// A valid call of every operator that runs has one line, its own, and no failure.
static int check_log(drawn_call *c, test_device *d)
{
    line_count lines = {c->op->function + strlen("spops_"), 0, 0};
    spops_value ret;
    spops_log_set(count_line, &lines);
    test_expect_ok(d->ctx, spops_call(d->ctx, c->op, c->values, c->num_values, &ret), c->op->name);
    spops_log_set(NULL, NULL);
    cr_expect(lines.own == 1 && lines.failed == 0, "%s: %d lines, %d of failures", c->op->function,
              lines.own, lines.failed);
    return 1;
}

Test(operators, calls_have_a_line_in_the_log)
{
    operator_loop loop = {
        .seed = 7000, .draws = 1, .enough = 1, .wants = executes, .check = check_log};
    (void)over_operators(backends[0].backend, &loop);
}
