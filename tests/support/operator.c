// SPDX-License-Identifier: Apache-2.0
#include "tests/support/operator.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

// A running operator. The pointers have NULL where a matrix is left out.
typedef struct running {
    const test_operator *op;
    char what[TEXT_BYTES]; // which call, with the matrices that it has
    guarded in[TEST_MAX_MATRICES], out[TEST_MAX_MATRICES];
    guarded *in_at[TEST_MAX_MATRICES], *out_at[TEST_MAX_MATRICES];
    const spops_matrix *in_view[TEST_MAX_MATRICES], *out_view[TEST_MAX_MATRICES];
    double *values[TEST_MAX_MATRICES];
    ref_tensor expected[TEST_MAX_MATRICES];
    ref_tensor *expected_at[TEST_MAX_MATRICES];
} running;

static void forget_version(running *r)
{
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        free(r->values[i]);
        r->values[i] = NULL;
        ref_tensor_destroy(&r->expected[i]);
    }
}

static void prepare(void *user, int version)
{
    running *r = (running *)user;
    const test_operator *op = r->op;
    test_rng rng = test_rng_make(op->stream * 2 + (uint64_t)version);
    forget_version(r);
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        const test_matrix *m = &op->in[i];
        if (r->in_at[i] == NULL) continue;
        r->values[i] =
            guarded_fill(r->in_at[i], &rng, m->values, m->num_factors > 0, m->num_factors);
    }
    if (op->adjust != NULL) op->adjust(op->user, version, &rng, r->in_at, r->values);
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        if (r->in_at[i] != NULL) guarded_upload(r->in_at[i]);
        if (r->out_at[i] == NULL) continue;
        r->expected[i] = ref_tensor_create(op->out[i].rows, op->out[i].cols);
    }
    op->reference(op->user, (const double *const *)r->values, r->expected_at);
}

static spops_status enqueue(void *user, spops_context *ctx)
{
    running *r = (running *)user;
    return r->op->run(r->op->user, ctx, r->in_view, r->out_view);
}

static void verify(void *user, int version, const char *what)
{
    running *r = (running *)user;
    const test_operator *op = r->op;
    (void)version;
    if (op->verify != NULL) {
        op->verify(op->user, (const guarded *const *)r->out_at,
                   (const ref_tensor *const *)r->expected_at, what);
        return;
    }
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        const test_matrix *m = &op->out[i];
        if (r->out_at[i] == NULL) continue;
        if (m->check == CHECK_SAME)
            guarded_check_same(r->out_at[i], &r->expected[i], what);
        else
            guarded_check_unit(r->out_at[i], &r->expected[i], m->check == CHECK_EXACT,
                               m->unit > 0.0 ? m->unit : test_unit(m->dtype), what);
    }
}

static guarded *create(guarded *g, const test_device *d, const test_matrix *m)
{
    if (m->name == NULL) return NULL;
    *g = guarded_create(d->backend, m->name, m->rows, m->cols, m->padding, m->shift, m->dtype);
    return g;
}

__attribute__((format(printf, 2, 3))) static void append(char *text, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text + used, TEXT_BYTES - used, format, list);
    va_end(list);
}

static void append_matrices(char *text, const test_matrix *matrices)
{
    const char *separator = "";
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        const test_matrix *m = &matrices[i];
        if (m->name == NULL) continue;
        append(text, "%s%s %s [%lld, %lld]", separator, m->name, test_dtype_name(m->dtype),
               (long long)m->rows, (long long)m->cols);
        if (m->padding != 0) append(text, " padded by %lld", (long long)m->padding);
        if (m->shift != 0) append(text, " shifted by %lld", (long long)m->shift);
        separator = ", ";
    }
}

static void describe(running *r, const test_device *d)
{
    const test_operator *op = r->op;
    append(r->what, "%s: %s, %s, ", op->what, test_backend_name(d->backend),
           test_launch_name(d->launch));
    append_matrices(r->what, op->in);
    append(r->what, " to ");
    append_matrices(r->what, op->out);
    append(r->what, ", %s values, stream %llu", test_values_name(op->in[0].values),
           (unsigned long long)op->stream);
}

void test_operator_run(test_device *d, const test_operator *op)
{
    running r;
    memset(&r, 0, sizeof r);
    r.op = op;
    describe(&r, d);
    test_call call = {.user = &r,
                      .prepare = prepare,
                      .enqueue = enqueue,
                      .verify = verify,
                      .scratch_bytes = op->scratch_bytes,
                      .other = op->other,
                      .what = r.what};
    int inputs = 0, outputs = 0;
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        r.in_at[i] = create(&r.in[i], d, &op->in[i]);
        r.out_at[i] = create(&r.out[i], d, &op->out[i]);
        if (r.in_at[i] != NULL) {
            call.inputs[inputs++] = r.in_at[i];
            r.in_view[i] = &r.in[i].view;
        }
        if (r.out_at[i] != NULL) {
            call.outputs[outputs++] = r.out_at[i];
            r.out_view[i] = &r.out[i].view;
            r.expected_at[i] = &r.expected[i];
        }
    }
    cr_assert(outputs > 0, "%s: the call has no output", r.what);
    test_run(d, &call);
    forget_version(&r);
    for (int i = 0; i < TEST_MAX_MATRICES; ++i) {
        if (r.in_at[i] != NULL) guarded_destroy(r.in_at[i]);
        if (r.out_at[i] != NULL) guarded_destroy(r.out_at[i]);
    }
}
