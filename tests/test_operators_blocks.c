// SPDX-License-Identifier: Apache-2.0
// Every operator with plans as blocks, over the list of operators: the same bits as with handles.
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan.h"
#include "support/device.h"
#include "tests/support/drawn_block.h"
#include "tests/support/params.h"

enum { TRIES = 3000, DRAWS = 40, ROUNDS = 6, DEVICE_ROUNDS = 2 };

typedef struct fixture {
    test_device d;
    drawn_call c;
    drawn_blocks blocks;
    spops_value by_handle[DRAWN_MAX_VALUES], by_block[DRAWN_MAX_VALUES];
    void *scratch;            // lent to the context
    int num_same, num_filled; // compared with exact plans; blocks filled
} fixture;

// Plans that the call takes and that can be blocks.
static int num_described(const drawn_call *c)
{
    int num = 0;
    for (int i = 0; i < c->row->num_inputs; ++i)
        num += c->row->args[i].is_plan && c->values[i].type == SPOPS_VALUE_POINTER &&
               ((const spops_plan *)c->values[i].v.p)->ops->read != NULL;
    return num;
}

static bool takes_described(const spops_operator *op)
{
    const spops_row *row = spops_row_of((spops_operator_id)op->index);
    for (int i = 0; i < row->num_inputs; ++i)
        if (row->args[i].is_plan && spops_plan_has_description(row->args[i].plan_kind)) return true;
    return false;
}

static unsigned char *run(fixture *f, spops_context *ctx, const spops_value *values, size_t *bytes)
{
    spops_value ret;
    drawn_call_poison(&f->c, 0x11);
    cr_assert(spops_call(ctx, f->c.op, values, f->c.num_values, &ret) == SPOPS_STATUS_OK, "%s: %s",
              f->c.op->name, spops_last_error(ctx));
    cr_assert(ret.type == SPOPS_VALUE_NONE, "%s", f->c.op->name);
    test_wait(&f->d);
    cr_assert(device_stream_wait(f->d.backend, NULL));
    return drawn_call_outputs(&f->c, bytes);
}

// As much scratch as the call is measured with by its attached handles, for which nobody reserved any.
// What the plans of the draw reserved may be less: a plan that was counted has less work than there is
// room for.
static void lend_scratch(fixture *f)
{
    size_t bytes = 0;
    if (spops_call_scratch_bytes(f->d.ctx, f->c.op, f->by_handle, f->c.num_values, &bytes) !=
        SPOPS_STATUS_OK)
        return; // the call says why
    bytes = spops_context_scratch_memory(bytes);
    if (bytes == 0) return;
    cr_assert(device_alloc(f->d.backend, bytes, &f->scratch), "%s: %zu bytes", f->c.op->name,
              bytes);
    test_expect_ok(f->d.ctx, spops_context_set_scratch(f->d.ctx, f->scratch, bytes), f->c.op->name);
}

static void take_scratch_back(fixture *f)
{
    if (f->scratch == NULL) return;
    test_wait(&f->d);
    test_expect_ok(f->d.ctx, spops_context_set_scratch(f->d.ctx, NULL, 0), f->c.op->name);
    device_free(f->d.backend, f->scratch);
    f->scratch = NULL;
}

static void expect_same(const fixture *f, const unsigned char *a, const unsigned char *b,
                        size_t bytes, const char *what)
{
    size_t at = 0;
    while (at < bytes && a[at] == b[at])
        ++at;
    cr_expect(at == bytes, "%s, %s: byte %zu of %zu differs", f->c.op->name, what, at, bytes);
}

static int compare_words(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

// A set that is searched by a hash table on CUDA has the same entries; timing says where they stand.
static bool has_table(const fixture *f, const spops_plan *made)
{
    spops_coords_info info = spops_coords_info_default();
    if (f->d.backend == SPOPS_BACKEND_CPU || made->kind != SPOPS_PLAN_COORDS) return false;
    test_expect_ok(f->d.ctx,
                   spops_coords_get_info_sync(f->d.ctx, (const spops_coords *)made, &info), "info");
    return info.search == SPOPS_COORDS_SEARCH_HASH;
}

// A plan may serve more than a plan of its description: lists by target that are those by source.
static bool is_served(fixture *f)
{
    spops_value ret;
    const spops_status status = spops_call(f->d.ctx, f->c.op, f->by_handle, f->c.num_values, &ret);
    test_wait(&f->d);
    return status == SPOPS_STATUS_OK ||
           strstr(spops_last_error(f->d.ctx), "the plan was built with backward = 0") == NULL;
}

// Tensors that are written: with attached handles, with blocks on a context of the library's own, twice,
// and, where the blocks were filled with what the plans were made from, with these plans.
static void check_tensors(fixture *f)
{
    size_t bytes, scratch = 1, scratch_of_blocks = 2;
    unsigned char *first, *again;

    test_expect_ok(
        f->d.ctx,
        spops_call_scratch_bytes(f->d.ctx, f->c.op, f->by_handle, f->c.num_values, &scratch),
        f->c.op->name);
    test_expect_ok(
        NULL,
        spops_call_scratch_bytes(NULL, f->c.op, f->by_block, f->c.num_values, &scratch_of_blocks),
        f->c.op->name);
    cr_expect(scratch == scratch_of_blocks, "%s: %zu bytes of scratch, and %zu", f->c.op->name,
              scratch, scratch_of_blocks);
    // An attached plan has none reserved, and one with room for all needs more than the drawn one.
    test_expect_ok(f->d.ctx, spops_context_reserve(f->d.ctx, scratch), f->c.op->name);
    first = run(f, f->d.ctx, f->by_handle, &bytes);
    for (int i = 0; i < 2; ++i) {
        again = run(f, i == 0 ? NULL : f->d.ctx, f->by_block, &bytes);
        expect_same(f, first, again, bytes, "blocks");
        free(again);
    }
    take_scratch_back(f);
    for (int k = 0; k < f->blocks.num; ++k)
        if (!f->blocks.all[k].is_same) bytes = 0;
    if (bytes > 0) {
        again = run(f, f->d.ctx, f->c.values, &bytes);
        expect_same(f, first, again, bytes, "exact plans");
        free(again);
        ++f->num_same;
    }
    free(first);
}

// NULL: the operator fills no block, or not this one.
static unsigned char *fill(fixture *f, drawn_block *b, const spops_value *values)
{
    unsigned char *bytes;
    spops_value ret;
    cr_assert(device_fill(f->d.backend, b->block.data, 0x5a, b->bytes));
    const spops_status status = spops_call(f->d.ctx, f->c.op, values, f->c.num_values, &ret);
    if (status == SPOPS_STATUS_NOT_SUPPORTED) {
        const char *message = spops_last_error(f->d.ctx);
        cr_assert(strstr(message, "this operator fills no block") != NULL ||
                      strstr(message, "shares the arrays of another part") != NULL,
                  "%s", message);
        return NULL;
    }
    test_expect_ok(f->d.ctx, status, f->c.op->name);
    cr_assert(ret.type == SPOPS_VALUE_NONE);
    test_wait(&f->d);
    bytes = malloc(b->bytes + 1);
    cr_assert(bytes != NULL);
    cr_assert(device_download(f->d.backend, bytes, b->block.data, b->bytes));
    return bytes;
}

// A block that is written: the same with handles and with blocks for the plans that it is made from.
static void check_plan(fixture *f, const spops_plan *made)
{
    drawn_block *b = drawn_blocks_output(&f->blocks, &f->c, &f->d, made, f->by_handle);
    unsigned char *first, *again;

    if (b == NULL) return; // no plan of these fields is a block
    for (int i = 0; i < f->c.num_values; ++i)
        if (f->by_handle[i].type == SPOPS_VALUE_TENSOR) f->by_block[i] = f->by_handle[i];
    first = fill(f, b, f->by_handle);
    if (first == NULL) return;
    again = fill(f, b, f->by_block);
    cr_assert(again != NULL);
    if (has_table(f, made)) {
        qsort(first, b->bytes / 4, 4, compare_words);
        qsort(again, b->bytes / 4, 4, compare_words);
    }
    expect_same(f, first, again, b->bytes, "a block");
    ++f->num_filled;
    free(first);
    free(again);
}

static void expect_refused(fixture *f, int arg, const char *fault)
{
    const char *name = f->c.row->args[arg].name;
    spops_value ret;
    size_t bytes, bytes_after;
    unsigned char *before, *after;

    drawn_call_poison(&f->c, 0x11);
    before = drawn_call_outputs(&f->c, &bytes);
    const spops_status status = spops_call(f->d.ctx, f->c.op, f->by_block, f->c.num_values, &ret);
    const char *message = spops_last_error(f->d.ctx);
    cr_expect(status == SPOPS_STATUS_INVALID_ARGUMENT, "%s, %s: %s", f->c.op->name, fault,
              spops_status_name(status));
    cr_expect(strstr(message, f->c.op->function + strlen("spops_")) == message &&
                  strstr(message, name) != NULL,
              "%s, %s of %s: \"%s\"", f->c.op->name, fault, name, message);
    test_wait(&f->d);
    after = drawn_call_outputs(&f->c, &bytes_after);
    cr_expect(bytes == bytes_after && memcmp(before, after, bytes) == 0, "%s, %s: written",
              f->c.op->name, fault);
    free(before);
    free(after);
}

// A block and its description with one fault.
static void break_block(fixture *f, int arg, int number)
{
    spops_value *value = &f->by_block[arg];
    spops_value *description = &f->by_block[f->c.row->num_args + number];
    spops_tensor *block = value->v.p;
    drawn_block *b = (drawn_block *)(void *)((char *)block - offsetof(drawn_block, block));
    const spops_value kept = *value, kept_description = *description;
    const int64_t rows = b->shape[0], num_ints = b->num_ints[0];
    void *data = block->data;

    b->shape[0] = (int64_t)(b->bytes - 1) / 4;
    expect_refused(f, arg, "a short block");
    b->shape[0] = rows;
    block->data = (char *)data + 4;
    expect_refused(f, arg, "a misaligned block");
    block->data = NULL;
    expect_refused(f, arg, "a block that is NULL");
    block->data = data;
    *description = (spops_value){SPOPS_VALUE_NONE, 0, {0}};
    expect_refused(f, arg, "no description");
    *description = kept_description;
    *value = (spops_value){SPOPS_VALUE_INT, 0, {.i = 1}};
    expect_refused(f, arg, "an INT in place of a block");
    *value = f->c.values[arg];
    expect_refused(f, arg, "a description of a handle");
    *value = kept;
    --b->num_ints[0];
    expect_refused(f, arg, "a short description");
    b->num_ints[0] = 0;
    expect_refused(f, arg, "an empty description");
    b->num_ints[0] = num_ints;
    for (int i = 0; i < 2; ++i) {
        b->ints[i] += 1;
        expect_refused(f, arg, i == 0 ? "another kind" : "another version");
        b->ints[i] -= 1;
    }
}

// False where not all of the plans could be blocks.
static bool check_draw(fixture *f, const spops_value *ret)
{
    const int wanted = num_described(&f->c);
    bool is_done = wanted > 0 && drawn_blocks_make(&f->blocks, &f->c, &f->d, f->by_block) == wanted;

    if (is_done) {
        drawn_blocks_attach(&f->blocks, &f->c, &f->d, f->by_handle);
        if (ret->type == SPOPS_VALUE_POINTER) {
            check_plan(f, ret->v.p);
        } else {
            lend_scratch(f);
            is_done = is_served(f);
            if (is_done && drawn_call_is_specified(&f->c)) check_tensors(f);
            take_scratch_back(f);
        }
        for (int i = 0, number = 0; i < f->c.row->num_inputs; ++i) {
            if (!f->c.row->args[i].is_plan) continue;
            if (f->by_block[i].type == SPOPS_VALUE_TENSOR) break_block(f, i, number);
            ++number;
        }
    }
    drawn_call_drop(&f->c, ret);
    drawn_blocks_free(&f->blocks, &f->d);
    return is_done;
}

// The draws of an operator are its own: no other row of the list changes them.
static uint64_t seed_of(const char *name, int round, int draw)
{
    uint64_t seed = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; ++name)
        seed = (seed ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return seed + (uint64_t)(round * DRAWS + draw);
}

static void check_all(int backend, int round)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    fixture *f = calloc(1, sizeof *f);
    int checked = 0;

    cr_assert(f != NULL);
    if (!test_open(&f->d, (spops_backend_kind)backend, LAUNCH_DEFAULT)) {
        free(f);
        return;
    }
    for (int32_t i = 0; i < num; ++i) {
        bool is_done = false;
        spops_value ret;
        if (!takes_described(ops[i])) continue;
        for (int draws = 0; draws < DRAWS && !is_done; ++draws) {
            test_rng rng = test_rng_make(seed_of(ops[i]->name, round, draws));
            if (drawn_call_find(&f->c, &f->d, ops[i], &rng, TRIES, &ret) == 0) break;
            is_done = check_draw(f, &ret);
            drawn_call_free(&f->c);
        }
        cr_expect(is_done, "%s: no plan became a block", ops[i]->name);
        if (getenv("SPOPS_TEST_VERBOSE") != NULL)
            printf("%-28s %d %d %d\n", ops[i]->name, is_done, f->num_same, f->num_filled);
        checked += is_done;
    }
    cr_expect(checked > 25 && f->num_same > 10 && f->num_filled > 8, "%d, %d, %d", checked,
              f->num_same, f->num_filled);
    spops_call_release();
    test_close(&f->d);
    free(f);
}

Test(operators_blocks, cpu)
{
    for (int round = 0; round < ROUNDS; ++round)
        check_all(SPOPS_BACKEND_CPU, round);
}

Test(operators_blocks, cuda)
{
    for (int round = 0; round < DEVICE_ROUNDS; ++round)
        check_all(SPOPS_BACKEND_CUDA, round);
}

// ---- A context that keeps all the handles it may ------------------------------------------------

enum { NUM_KEPT = 70, NUM_ROWS = 8, SIDE = 2 * NUM_ROWS };

// A plan as a block, with a handle, and the two values of a call that it is.
typedef struct plan_block {
    spops_plan *plan;
    void *memory;
    int64_t ints[64], shape[1], num_ints[1];
    spops_tensor block, description;
} plan_block;

// A set of up to so many rows, or with sets of as many a map of one tap between them.
static spops_status reserve(test_device *d, int64_t max_rows, const plan_block *set,
                            spops_plan_memory *memory, spops_plan **plan)
{
    static const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, SIDE, 0, 0, 0}};
    spops_coords_options o = spops_coords_options_default();
    spops_kernel_map_options of = spops_kernel_map_options_default();
    spops_kernel_shape kernel = spops_kernel_shape_default();
    o.box = &box;
    o.memory = of.memory = memory;
    kernel.dims = 1;
    kernel.size[0] = kernel.stride[0] = kernel.dilation[0] = 1;
    if (set == NULL)
        return spops_coords_reserve(d->ctx, 1, max_rows, max_rows, &o, (spops_coords **)plan);
    return spops_kernel_map_reserve(
        d->ctx, SPOPS_MAP_CONVOLUTION, &kernel, (const spops_coords *)set->plan,
        (const spops_coords *)set->plan, &of, (spops_kernel_map **)plan);
}

static void make_block(test_device *d, int64_t max_rows, const plan_block *set, plan_block *b)
{
    spops_plan_memory memory = spops_plan_memory_default();
    int32_t num;
    b->plan = NULL;
    test_expect_ok(d->ctx, reserve(d, max_rows, set, &memory, &b->plan), "measure");
    cr_assert(device_alloc(d->backend, memory.bytes, &b->memory));
    memory.block = b->memory;
    test_expect_ok(d->ctx, reserve(d, max_rows, set, &memory, &b->plan), "place");
    test_expect_ok(d->ctx, spops_plan_describe(d->ctx, b->plan, b->ints, 64, &num), "describe");
    b->num_ints[0] = num;
    b->shape[0] = (int64_t)memory.bytes;
    b->block = (spops_tensor){.data = b->memory,
                              .device_type = d->backend == SPOPS_BACKEND_CPU ? 1 : 2,
                              .num_dims = 1,
                              .dtype_bits = 8,
                              .dtype_lanes = 1,
                              .shape = b->shape};
    b->description = (spops_tensor){b->ints, 1, 0, 1, 0, 64, 1, b->num_ints, NULL, 0};
}

static void free_block(test_device *d, plan_block *b)
{
    spops_plan_destroy(b->plan);
    device_free(d->backend, b->memory);
}

static void fill_set(test_device *d, plan_block *b, int first)
{
    const int32_t num = NUM_ROWS;
    int32_t rows[NUM_ROWS][2] = {{0}}, *num_there = test_upload_i32(d, &num, 1), *there;
    for (int r = 0; r < NUM_ROWS; ++r)
        rows[r][1] = first + r;
    there = test_upload_i32(d, &rows[0][0], NUM_ROWS * 2);
    test_expect_ok(d->ctx, spops_coords_update(d->ctx, (spops_coords *)b->plan, num_there, there),
                   "set");
    test_wait(d);
    test_free(d, num_there), test_free(d, there);
}

// The second of two blocks of one description does not take the handle that the first was just given,
// where there is no room for another.
static void check_kept(spops_backend_kind backend)
{
    const spops_operator *op = spops_operator_find("kernel_map");
    const spops_row *row = spops_row_of((spops_operator_id)op->index);
    spops_kernel_map_info info = spops_kernel_map_info_default();
    spops_value values[DRAWN_MAX_VALUES] = {{0, 0, {0}}}, ret;
    plan_block kept[NUM_KEPT], args[3];
    test_device d;

    if (!test_open(&d, backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < 3; ++i) { // in, out and the map
        make_block(&d, NUM_ROWS, i == 2 ? args : NULL, &args[i]);
        if (i < 2) fill_set(&d, &args[i], i * NUM_ROWS / 2);
        values[i] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &args[i].block}};
        values[row->num_args + i] =
            (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &args[i].description}};
    }
    for (int i = 0; i < op->num_attributes; ++i) // what the description says, or none
        if (row->attributes[i].row->kind != SPOPS_ARGUMENT_INTS)
            values[row->num_args + 3 + i].type = SPOPS_VALUE_INT;
    for (int i = 0; i < NUM_KEPT; ++i) {
        make_block(&d, NUM_ROWS + 1 + i, NULL, &kept[i]);
        const spops_plan_value value = {"kept", kept[i].ints, (int32_t)kept[i].num_ints[0],
                                        kept[i].memory, (size_t)kept[i].shape[0]};
        spops_plan *lent;
        test_expect_ok(d.ctx, spops_plan_lend(d.ctx, "keep", &value, &lent), "as a call does");
    }
    test_expect_ok(d.ctx,
                   spops_call(d.ctx, op, values, row->num_args + 3 + op->num_attributes + 1, &ret),
                   op->name);
    test_expect_ok(
        d.ctx, spops_kernel_map_get_info_sync(d.ctx, (const spops_kernel_map *)args[2].plan, &info),
        "info");
    cr_assert_eq(info.num_pairs, NUM_ROWS / 2, "%d pairs, not half", (int)info.num_pairs);
    for (int i = 0; i < NUM_KEPT; ++i)
        free_block(&d, &kept[i]);
    for (int i = 2; i >= 0; --i)
        free_block(&d, &args[i]);
    test_close(&d);
}

Test(operators_blocks, many_kept)
{
    check_kept(SPOPS_BACKEND_CPU);
    check_kept(SPOPS_BACKEND_CUDA);
}

// A handle that has served one block and serves another of its description has the layout of a new one,
// also where the first was filled with outputs of a convolution, which keep no rows of items.
static void check_served_again(spops_backend_kind backend)
{
    enum { FULL = 64, LATER = 8 };
    spops_kernel_shape kernel = spops_kernel_shape_default();
    plan_block set, first, second, others[FULL - 1];
    spops_plan *lent, *fresh = NULL;
    test_device d;

    if (!test_open(&d, backend, LAUNCH_DEFAULT)) return;
    kernel.dims = 1;
    kernel.size[0] = kernel.stride[0] = 2;
    kernel.dilation[0] = 1;
    make_block(&d, NUM_ROWS, NULL, &set);
    fill_set(&d, &set, 0);
    for (int i = 0; i < FULL - 1; ++i)
        make_block(&d, NUM_ROWS + 2 + i, NULL, &others[i]);
    make_block(&d, NUM_ROWS + 1, NULL, &first);
    make_block(&d, NUM_ROWS + 1, NULL, &second);
    for (int i = 0; i < FULL + LATER;
         ++i) { // the first is the last that there is room for, then used no more
        const plan_block *b = i == FULL - 1 ? &first : &others[i % (FULL - 1)];
        const spops_plan_value value = {"kept", b->ints, (int32_t)b->num_ints[0], b->memory,
                                        (size_t)b->shape[0]};
        test_expect_ok(d.ctx, spops_plan_lend(d.ctx, "keep", &value, &lent), "as a call does");
        if (i == FULL - 1)
            test_expect_ok(d.ctx,
                           spops_coords_update_downsampled(d.ctx, (spops_coords *)lent,
                                                           (const spops_coords *)set.plan, &kernel),
                           "outputs of a convolution");
    }
    const spops_plan_value value = {"again", second.ints, (int32_t)second.num_ints[0],
                                    second.memory, (size_t)second.shape[0]};
    test_expect_ok(d.ctx, spops_plan_lend(d.ctx, "keep", &value, &lent), "again");
    test_expect_ok(d.ctx,
                   spops_plan_attach(d.ctx, second.ints, (int32_t)second.num_ints[0], second.memory,
                                     (size_t)second.shape[0], NULL, 0, &fresh),
                   "a new handle");
    cr_expect_eq(lent->array_bytes, fresh->array_bytes, "%zu bytes of arrays, and %zu of a new one",
                 lent->array_bytes, fresh->array_bytes);
    test_wait(&d);
    spops_plan_destroy(fresh);
    free_block(&d, &second);
    free_block(&d, &first);
    for (int i = 0; i < FULL - 1; ++i)
        free_block(&d, &others[i]);
    free_block(&d, &set);
    test_close(&d);
}

Test(operators_blocks, served_again)
{
    check_served_again(SPOPS_BACKEND_CPU);
    check_served_again(SPOPS_BACKEND_CUDA);
}
