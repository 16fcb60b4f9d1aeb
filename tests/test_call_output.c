// SPDX-License-Identifier: Apache-2.0
// Dtypes and shapes of outputs before a call (spops_call_output): those of valid calls of every operator,
// with sizes as numbers and as symbols; and what is refused.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "call/rows.h"
#include "spops/call.h"
#include "tests/support/drawn_block.h"
#include "tests/support/params.h"

enum { TRIES = 3000, DRAWS = 12, MAX_KNOWN = 512 };

// ---- Symbols --------------------------------------------------------------------------------------

// What symbols are: -1 - k is all[k].
typedef struct known_sizes {
    int64_t all[MAX_KNOWN];
    int num;
} known_sizes;

static int64_t as_symbol(known_sizes *k, int64_t size)
{
    cr_assert(k->num < MAX_KNOWN && size >= 0);
    k->all[k->num] = size;
    return -1 - k->num++;
}

static int64_t known(const known_sizes *k, int64_t size)
{
    return size >= 0 ? size : k->all[-1 - size];
}

static int64_t combine(void *user, char op, int64_t a, int64_t b)
{
    known_sizes *k = user;
    const int64_t x = known(k, a), y = known(k, b);
    cr_assert(a < 0 || b < 0, "two numbers");
    switch (op) {
    case '+': return as_symbol(k, x + y);
    case '-': return as_symbol(k, x - y);
    case '*': return as_symbol(k, x * y);
    case '/': return as_symbol(k, y > 0 ? x / y : 0);
    case 'M': return as_symbol(k, x > y ? x : y);
    default: cr_assert_eq(op, 'm'); return as_symbol(k, x < y ? x : y);
    }
}

static int64_t refuse_to_combine(void *user, char op, int64_t a, int64_t b)
{
    (void)user, (void)op, (void)a, (void)b;
    return INT64_MIN;
}

// ---- Valid calls ----------------------------------------------------------------------------------

typedef struct fixture {
    test_device d;
    drawn_call c;
    drawn_blocks blocks;
    spops_value values[DRAWN_MAX_VALUES];
    int num_compared, num_symbolic, num_blocks;
} fixture;

// Then a size that its rows give is 0, as of matrices that there are none of.
static bool has_empty_input(const drawn_call *c)
{
    for (int i = 0; i < c->row->num_inputs; ++i)
        if (!c->row->args[i].is_plan && c->values[i].type == SPOPS_VALUE_TENSOR &&
            c->tensors[i].shape[0] == 0)
            return true;
    return false;
}

static void expect_output(fixture *f, const spops_value *values, int i, const spops_tensor *is,
                          const known_sizes *k, const char *how)
{
    const spops_size_algebra algebra = {combine, (void *)(uintptr_t)k};
    const spops_operator *op = f->c.op;
    const spops_row_arg *arg = &f->c.row->args[i];
    int64_t shape[SPOPS_CALL_MAX_DIMS];
    spops_tensor out;
    const spops_status status =
        spops_call_output(f->d.ctx, op, values, f->c.num_values, i - f->c.row->num_inputs,
                          k == NULL ? NULL : &algebra, &out, shape);

    cr_expect(status == SPOPS_STATUS_OK, "%s, %s, %s: %s", op->name, arg->name, how,
              spops_last_error(f->d.ctx));
    if (status != SPOPS_STATUS_OK) return;
    // Where a dtype may be chosen, an engine takes that of the inputs.
    const bool is_chosen = arg->is_optional && strchr(op->arguments[i]->type, '|') != NULL;
    cr_expect(is_chosen || (out.dtype_code == is->dtype_code && out.dtype_bits == is->dtype_bits &&
                            out.dtype_lanes == is->dtype_lanes),
              "%s, %s, %s: dtype %d of %d bits, expected %d of %d", op->name, arg->name, how,
              out.dtype_code, out.dtype_bits, is->dtype_code, is->dtype_bits);
    cr_expect(out.shape == shape && out.num_dims == is->num_dims, "%s, %s, %s: %d dimensions",
              op->name, arg->name, how, (int)out.num_dims);
    for (int d = 0; d < is->num_dims && d < out.num_dims; ++d) {
        const int64_t size = k == NULL ? shape[d] : known(k, shape[d]);
        cr_expect(is_chosen || size == is->shape[d] || (size == 0 && has_empty_input(&f->c)),
                  "%s, %s, %s: size %d is %lld, expected %lld", op->name, arg->name, how, d,
                  (long long)size, (long long)is->shape[d]);
    }
    ++f->num_compared;
}

// Inputs whose sizes are symbols; their values point to `tensors`.
static void make_symbolic(fixture *f, spops_value *values, spops_tensor *tensors,
                          int64_t (*sizes)[SPOPS_CALL_MAX_DIMS], known_sizes *k)
{
    k->num = 0;
    for (int i = 0; i < f->c.row->num_inputs; ++i) {
        if (f->c.row->args[i].is_plan || values[i].type != SPOPS_VALUE_TENSOR) continue;
        tensors[i] = *(const spops_tensor *)values[i].v.p;
        for (int d = 0; d < tensors[i].num_dims; ++d)
            sizes[i][d] = as_symbol(k, tensors[i].shape[d]);
        tensors[i].shape = sizes[i];
        tensors[i].strides = NULL;
        tensors[i].data = NULL;
        values[i].v.p = &tensors[i];
    }
}

static void check_outputs(fixture *f)
{
    const spops_row *row = f->c.row;
    spops_tensor tensors[SPOPS_ROW_MAX_ARGS];
    int64_t sizes[SPOPS_ROW_MAX_ARGS][SPOPS_CALL_MAX_DIMS];
    spops_value without[DRAWN_MAX_VALUES], symbolic[DRAWN_MAX_VALUES];
    known_sizes k;

    memcpy(symbolic, f->values, sizeof symbolic);
    make_symbolic(f, symbolic, tensors, sizes, &k);
    for (int i = row->num_inputs; i < row->num_args; ++i) {
        const spops_tensor *is = f->values[i].v.p;
        spops_tensor out;
        int64_t shape[SPOPS_CALL_MAX_DIMS];
        if (f->values[i].type != SPOPS_VALUE_TENSOR) continue;
        expect_output(f, f->values, i, is, NULL, "as it is");
        expect_output(f, symbolic, i, is, &k, "of symbols");
        ++f->num_symbolic;
        if (row->args[i].is_plan) continue;
        // An output needs no value for its rows.
        memcpy(without, f->values, sizeof without);
        without[i] = (spops_value){SPOPS_VALUE_NONE, 0, {0}};
        test_expect_ok(f->d.ctx,
                       spops_call_output(f->d.ctx, f->c.op, without, f->c.num_values,
                                         i - row->num_inputs, NULL, &out, shape),
                       f->c.op->name);
        cr_expect(shape[0] == is->shape[0], "%s", f->c.op->name);
    }
}

// A call whose plans are plans, then one whose plans are blocks, as far as they can be.
static void check_draw(fixture *f, spops_value *ret)
{
    spops_value one = *ret;
    memcpy(f->values, f->c.values, sizeof f->values);
    check_outputs(f);
    (void)drawn_blocks_make(&f->blocks, &f->c, &f->d, f->values);
    if (one.type == SPOPS_VALUE_POINTER &&
        drawn_blocks_output(&f->blocks, &f->c, &f->d, one.v.p, f->values) != NULL)
        ++f->num_blocks;
    check_outputs(f);
    test_wait(&f->d);
    drawn_call_drop(&f->c, ret);
    drawn_blocks_free(&f->blocks, &f->d);
}

TestOver(call_output, drawn, struct backend_param *param, every_backend(), .timeout = 300)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    fixture *f = calloc(1, sizeof *f);

    cr_assert(f != NULL);
    if (!test_open(&f->d, (spops_backend_kind)param->backend, LAUNCH_DEFAULT)) return;
    for (int32_t i = 0; i < num; ++i) {
        for (int draw = 0; draw < DRAWS; ++draw) {
            test_rng rng = drawn_call_rng(ops[i], 15000 + draw);
            spops_value ret;
            cr_assert(drawn_call_find(&f->c, &f->d, ops[i], &rng, TRIES, &ret) > 0, "%s: %s",
                      ops[i]->name, spops_last_error(f->d.ctx));
            check_draw(f, &ret);
            drawn_call_free(&f->c);
        }
    }
    cr_expect(f->num_compared > 2000 && f->num_symbolic > 1000 && f->num_blocks > 100, "%d, %d, %d",
              f->num_compared, f->num_symbolic, f->num_blocks);
    test_close(&f->d);
    free(f);
}

// ---- Refusals -------------------------------------------------------------------------------------

static void expect_refused(spops_status status, const char *message)
{
    test_expect(NULL, status, SPOPS_STATUS_INVALID_ARGUMENT, message, message);
}

Test(call_output, refusals)
{
    const spops_operator *gather = spops_operator_find("gather");
    const spops_operator *segments = spops_operator_find("segments");
    const spops_operator *linear = spops_operator_find("linear");
    const spops_size_algebra algebra = {refuse_to_combine, NULL};
    int64_t shape[SPOPS_CALL_MAX_DIMS], sizes[9] = {3, 4, -1, -2, 1, 1, 1, 1, 1}, ints[1] = {77};
    spops_tensor out, x = {.device_type = 1, .num_dims = 2, .dtype_code = 2, .dtype_bits = 32};
    spops_value none[64] = {{0}};

    x.dtype_lanes = 1;
    x.shape = sizes;
    cr_assert(gather != NULL && segments != NULL && linear != NULL);
    expect_refused(spops_call_output(NULL, NULL, none, 0, 0, NULL, &out, shape),
                   "call_output: op is NULL");
    expect_refused(spops_call_output(NULL, gather, none, 6, 0, NULL, NULL, shape),
                   "call_output: out is NULL");
    expect_refused(spops_call_output(NULL, gather, none, 6, -1, NULL, &out, shape),
                   "call_output: output is -1, expected 0 to 0");
    expect_refused(spops_call_output(NULL, gather, none, 6, 1, NULL, &out, shape),
                   "call_output: output is 1, expected 0 to 0");
    expect_refused(spops_call_output(NULL, gather, NULL, 1, 0, NULL, &out, shape), "args is NULL");
    expect_refused(spops_call_output(NULL, gather, none, 1, 0, NULL, &out, shape),
                   "num_args is 1, expected ");

    // Inputs as far as they are known: at first nothing of gather, then its dtype, then all but its rows.
    int32_t num = gather->num_inputs + gather->num_outputs + 1 + gather->num_attributes +
                  (gather->num_optional > 0);
    for (int32_t i = 0; i < gather->num_attributes; ++i)
        none[gather->num_inputs + gather->num_outputs + 1 + i].type = SPOPS_VALUE_INT;
    cr_expect(spops_call_output(NULL, gather, none, num, 0, NULL, &out, NULL) == SPOPS_STATUS_OK &&
                  out.dtype_bits == 0 && out.num_dims == 2,
              "%s", spops_last_error(NULL));
    none[0] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &x}};
    cr_expect(spops_call_output(NULL, gather, none, num, 0, NULL, &out, NULL) == SPOPS_STATUS_OK &&
                  out.dtype_bits == 32 && out.num_dims == 2 && out.shape == NULL,
              "%s", spops_last_error(NULL));
    expect_refused(spops_call_output(NULL, gather, none, num, 0, NULL, &out, shape),
                   "of out does not follow from what is given");
    x.num_dims = 9;
    expect_refused(spops_call_output(NULL, gather, none, num, 0, NULL, &out, shape),
                   "x is a tensor of too many dimensions, expected 0 to 8");
    x.num_dims = 2;
    x.dtype_bits = 33;
    expect_refused(spops_call_output(NULL, gather, none, num, 0, NULL, &out, shape),
                   "x is of a dtype that is not known here");
    x.dtype_bits = 32;
    none[0].type = SPOPS_VALUE_FLOAT;
    expect_refused(spops_call_output(NULL, gather, none, num, 0, NULL, &out, shape),
                   "x is a FLOAT, expected a TENSOR");

    // A plan: no description, and one of another kind.
    memset(none, 0, sizeof none);
    num = segments->num_inputs + segments->num_outputs + 1 + segments->num_attributes +
          (segments->num_optional > 0);
    for (int32_t i = 0; i < segments->num_attributes; ++i)
        none[segments->num_inputs + segments->num_outputs + 1 + i].type = SPOPS_VALUE_INT;
    expect_refused(spops_call_output(NULL, segments, none, num, 0, NULL, &out, shape),
                   "segments: segments has no description, expected that of the plan that is "
                   "wanted");
    spops_tensor description = {.data = ints, .device_type = 1, .num_dims = 1, .dtype_bits = 64};
    const int64_t one[1] = {1};
    description.dtype_lanes = 1;
    description.shape = one;
    none[segments->num_inputs] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &x}};
    none[segments->num_inputs + 1] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &description}};
    expect_refused(spops_call_output(NULL, segments, none, num, 0, NULL, &out, shape),
                   "segments is a plan of another kind");

    // Symbols that cannot be combined.
    memset(none, 0, sizeof none);
    num = linear->num_inputs + linear->num_outputs + linear->num_attributes +
          (linear->num_optional > 0);
    for (int32_t i = 0; i < linear->num_attributes; ++i)
        none[linear->num_inputs + linear->num_outputs + i].type = SPOPS_VALUE_INT;
    x.num_dims = 3;
    x.shape = sizes + 1; // 4, and two symbols: rows are their product
    none[0] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &x}};
    expect_refused(spops_call_output(NULL, linear, none, num, 0, &algebra, &out, shape),
                   "of out does not follow from what is given");
}
