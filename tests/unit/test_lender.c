// SPDX-License-Identifier: Apache-2.0
// Scratch of boxed calls from a lender (call/boxed.h), which is how they run inside of XLA.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "call/boxed.h"
#include "spops/spops.h"

enum { ROWS = 3000, COLS = 24 };

typedef struct counting_lender {
    void *lent;
    size_t bytes, most;
    int num_lent, num_back;
    bool is_empty;
} counting_lender;

static void *lend(void *user, size_t bytes)
{
    counting_lender *c = user;
    cr_assert(c->lent == NULL && bytes > 0);
    if (c->is_empty) return NULL;
    c->lent = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(c->lent, 0xee, bytes);
    c->bytes = bytes;
    if (bytes > c->most) c->most = bytes;
    ++c->num_lent;
    return c->lent;
}

static void take_back(void *user, void *memory, size_t bytes)
{
    counting_lender *c = user;
    cr_assert(memory == c->lent && bytes == c->bytes);
    free(memory);
    c->lent = NULL;
    ++c->num_back;
}

static spops_tensor tensor_of(float *data, int64_t *shape, int32_t num_dims)
{
    return (spops_tensor){.data = data,
                          .device_type = 1,
                          .num_dims = num_dims,
                          .dtype_code = 2,
                          .dtype_bits = 32,
                          .dtype_lanes = 1,
                          .shape = shape};
}

// Statistics of batch norm, whose scratch no plan knows.
static spops_status statistics(const spops_lender *lender, float *x, float *mean, float *var)
{
    int64_t shape[2] = {ROWS, COLS}, cols = COLS;
    spops_tensor tensors[] = {tensor_of(x, shape, 2), tensor_of(mean, &cols, 1),
                              tensor_of(var, &cols, 1)};
    const spops_operator *op = spops_operator_find("batchnorm_statistics");
    spops_value values[5], ret;

    for (int i = 0; i < 3; ++i)
        values[i] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &tensors[i]}};
    values[3] = (spops_value){SPOPS_VALUE_FLOAT, 0, {.f = 0.0}};
    values[4] = (spops_value){SPOPS_VALUE_INT, 0, {.i = 0}}; // none of the optional ones
    return lender == NULL ? spops_call(NULL, op, values, 5, &ret)
                          : spops_call_lent(lender, op, values, 5, &ret);
}

static float *random_rows(void)
{
    float *x = malloc(sizeof(float[ROWS * COLS]));
    for (int i = 0; i < ROWS * COLS; ++i)
        x[i] = (float)(rand() % 2001 - 1000) / 256.0f;
    return x;
}

Test(lender, calls_run_in_what_is_lent)
{
    counting_lender c = {0};
    const spops_lender lender = {&c, lend, take_back};
    float mean[2][COLS], var[2][COLS], *x = random_rows();

    for (int i = 0; i < 3; ++i) {
        memset(mean, 0xff, sizeof mean);
        memset(var, 0xff, sizeof var);
        cr_assert_eq(statistics(&lender, x, mean[0], var[0]), SPOPS_STATUS_OK);
        cr_assert(c.lent == NULL && c.num_lent == i + 1 && c.num_back == i + 1);
        cr_assert_eq(statistics(NULL, x, mean[1], var[1]), SPOPS_STATUS_OK);
        cr_assert_arr_eq(mean[0], mean[1], sizeof mean[0]);
        cr_assert_arr_eq(var[0], var[1], sizeof var[0]);
    }
    cr_assert_eq(c.num_lent, 3, "the context's own scratch is its own again");
    free(x);
}

Test(lender, a_lender_with_nothing_is_an_error)
{
    counting_lender c = {.is_empty = true};
    const spops_lender lender = {&c, lend, take_back};
    float mean[COLS], var[COLS], *x = random_rows();

    memset(mean, 0x7f, sizeof mean);
    cr_assert_eq(statistics(&lender, x, mean, var), SPOPS_STATUS_OUT_OF_MEMORY);
    cr_assert(strstr(spops_last_error(NULL), "of scratch are not to be had from the caller"));
    for (size_t i = 0; i < sizeof mean; ++i)
        cr_assert_eq(((unsigned char *)mean)[i], 0x7f);
    cr_assert_eq(c.num_back, 0);
    c.is_empty = false;
    cr_assert_eq(statistics(&lender, x, mean, var), SPOPS_STATUS_OK);
    free(x);
}
