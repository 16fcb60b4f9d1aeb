// SPDX-License-Identifier: Apache-2.0
// Structs that operators read, over the list of operators: the reading of options is taken over here, so
// that each struct that a boxed call hands to its function is cut, or has another size, in turn. And each
// plan on a context of another device.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "tests/support/drawn_call.h"

enum { TRIES = 3000, ROOM = 1024 };

// What happens to the struct that is read as number `at` of a call.
static struct {
    int at;   // -1: nothing
    int seen; // structs that the call has read
    size_t size;
    size_t part;        // of it, that is as given
    size_t struct_size; // that it is to have
    int behind;         // bytes after the part
} hook = {.at = -1};

spops_status __real_spops_read_options(spops_context *ctx, const char *call, const void *options,
                                       void *dst, size_t size);
spops_status __wrap_spops_read_options(spops_context *ctx, const char *call, const void *options,
                                       void *dst, size_t size);

spops_status __wrap_spops_read_options(spops_context *ctx, const char *call, const void *options,
                                       void *dst, size_t size)
{
    unsigned char changed[ROOM];

    // Without a context it is a question that has no way to refuse.
    if (options == NULL || ctx == NULL || hook.seen++ != hook.at)
        return __real_spops_read_options(ctx, call, options, dst, size);
    cr_assert(size <= ROOM);
    hook.size = size;
    memset(changed, hook.behind, sizeof changed);
    memcpy(changed, options, hook.part < size ? hook.part : size);
    memcpy(changed, &hook.struct_size, sizeof hook.struct_size);
    return __real_spops_read_options(ctx, call, changed, dst, size);
}

static spops_status run(drawn_call *c, test_device *d, size_t part, size_t struct_size, int behind)
{
    spops_value ret;
    hook.seen = 0;
    hook.part = part;
    hook.struct_size = struct_size;
    hook.behind = behind;
    const spops_status status = spops_call(d->ctx, c->op, c->values, c->num_values, &ret);
    if (status == SPOPS_STATUS_OK) drawn_call_drop(c, &ret);
    return status;
}

// What lies after a shorter struct is not the library's to read: here it is nonsense, where the
// longer struct that must read the same has zeros.
static void check_struct(drawn_call *c, test_device *d, int at)
{
    hook.at = at;
    hook.size = 0;
    const spops_status refused = run(c, d, 0, 0, 0); // tells the size
    if (at >= 3 && (refused == SPOPS_STATUS_OK || hook.size == 0)) {
        hook.at = -1; // a struct of the library's own: those of the caller are read first
        return;
    }
    cr_assert_neq(refused, SPOPS_STATUS_OK, "%s, struct %d of %zu bytes", c->op->name, at,
                  hook.size);
    const size_t size = hook.size;
    for (size_t part = sizeof(size_t); part < size; part += 8) {
        const spops_status expected = run(c, d, part, size, 0),
                           status = run(c, d, part, part, 0xee);
        cr_expect_eq(status, expected, "%s, struct %d cut at %zu: %s, expected %s", c->op->name, at,
                     part, spops_status_name(status), spops_status_name(expected));
    }
    const size_t bad[] = {0,        4,        sizeof(size_t) - 1, size - 7, size - 4,
                          size - 1, size + 1, size + 8,           SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        cr_expect_eq(run(c, d, size, bad[i], 0), SPOPS_STATUS_INVALID_ARGUMENT,
                     "%s, struct %d of %zu bytes", c->op->name, at, bad[i]);
        cr_expect(strstr(spops_last_error(d->ctx), "struct_size is ") != NULL, "%s: \"%s\"",
                  c->op->name, spops_last_error(d->ctx));
    }
    hook.at = -1;
}

// A matrix whose dtype is cut is f32, and must have memory for it.
static bool is_wide(const drawn_call *c)
{
    for (int i = 0; i < c->row->num_args; ++i)
        if (c->tensors[i].memory != NULL && c->tensors[i].tensor.dtype_bits < 32) return false;
    return true;
}

Test(structs_read, of_every_operator, .timeout = 300)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;
    int structs = 0;

    cr_assert(c != NULL && test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT));
    for (int32_t i = 0; i < num; ++i) {
        for (int draws = 0, used = 0; draws < 40 && used < 3; ++draws) {
            test_rng rng = drawn_call_rng(ops[i], 5000 + draws);
            spops_value ret;
            if (drawn_call_find(c, &d, ops[i], &rng, TRIES, &ret) == 0) continue;
            drawn_call_drop(c, &ret);
            if (!is_wide(c)) {
                drawn_call_free(c);
                continue;
            }
            ++used;
            cr_assert_eq(run(c, &d, 0, 0, 0), SPOPS_STATUS_OK, "%s", ops[i]->name);
            const int read = hook.seen;
            for (int at = 0; at < read; ++at) {
                check_struct(c, &d, at);
                if (getenv("SPOPS_TEST_VERBOSE") != NULL)
                    printf("%-28s %d %zu\n", ops[i]->name, at, hook.size);
            }
            structs += read;
            drawn_call_free(c);
        }
    }
    cr_expect(structs > 100, "%d structs", structs);
    test_close(&d);
    free(c);
}

// Every operator that takes a plan, on a context that says that it is another device's.
Test(structs_read, plans_of_another_device)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;
    int refused = 0;

    cr_assert(c != NULL && test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT));
    spops_context *other = test_context(&d, 1);
    other->info.device = 1;
    for (int32_t i = 0; i < num; ++i) {
        test_rng rng = drawn_call_rng(ops[i], 5000);
        bool takes_plan = false;
        spops_value ret;
        if (drawn_call_find(c, &d, ops[i], &rng, TRIES, &ret) == 0) continue;
        for (int a = 0; a < c->row->num_inputs; ++a)
            takes_plan |= c->values[a].type == SPOPS_VALUE_POINTER;
        drawn_call_drop(c, &ret);
        if (takes_plan) {
            drawn_call_poison(c, 0x11);
            const spops_status status = spops_call(other, ops[i], c->values, c->num_values, &ret);
            const char *line = spops_last_error(other);
            cr_expect(status == SPOPS_STATUS_INVALID_ARGUMENT &&
                          strstr(line, " lies on device 0, ctx runs on device 1") != NULL,
                      "%s: %s, \"%s\"", ops[i]->name, spops_status_name(status), line);
            ++refused;
        }
        drawn_call_free(c);
    }
    cr_expect(refused > 40, "%d operators", refused);
    spops_context_destroy(other);
    test_close(&d);
    free(c);
}
