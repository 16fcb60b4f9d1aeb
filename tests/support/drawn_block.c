// SPDX-License-Identifier: Apache-2.0
#include "tests/support/drawn_block.h"

#include <criterion/criterion.h>
#include <string.h>

#include "core/plan.h"
#include "support/device.h"

enum { ROOM = 256, POISON = 0xa5 };

// The description of a plan like this one, with its parents'; how many ints it has.
static int describe(const spops_plan *plan, int64_t *ints)
{
    int num = 1;
    ints[0] = spops_plan_get_kind(plan);
    if (plan == NULL) return num;
    ints[num++] = spops_plan_kinds(NULL)[ints[0] - 1].version;
    const int32_t n = spops_plan_get_fields(plan, ints + num, DRAWN_MAX_INTS / 2);
    if (ints[0] == SPOPS_PLAN_POINTCONV) // with room for all, not as it was counted
        for (int32_t i = spops_plan_field_index(SPOPS_PLAN_POINTCONV, "counted", 7); i < n; ++i)
            ints[num + i] = 0;
    num += n;
    for (int p = 0; p < spops_plan_num_parents(plan); ++p)
        num += describe(plan->parents[p], ints + num);
    cr_assert(num <= DRAWN_MAX_INTS);
    return num;
}

static spops_tensor tensor(void *data, int bits, bool is_host, const int64_t *shape)
{
    return (spops_tensor){.data = data,
                          .device_type = is_host ? 1 : 2,
                          .num_dims = 1,
                          .dtype_bits = (uint8_t)bits,
                          .dtype_lanes = 1,
                          .shape = shape};
}

static drawn_block *add_block(drawn_blocks *bs, test_device *d, const spops_plan *plan)
{
    drawn_block *b = &bs->all[bs->num];
    size_t bytes = 0;

    cr_assert(bs->num < DRAWN_MAX_BLOCKS);
    memset(b, 0, sizeof *b);
    b->plan = plan;
    b->is_same = true;
    b->num_ints[0] = describe(plan, b->ints);
    if (spops_plan_measure(d->ctx, b->ints, (int32_t)b->num_ints[0], &bytes, NULL) !=
        SPOPS_STATUS_OK)
        return NULL;
    b->bytes = bytes;
    b->shape[0] = (int64_t)(bytes + 3) / 4;
    cr_assert(device_alloc(d->backend, (size_t)b->shape[0] * 4 + 2 * ROOM, (void **)&b->memory));
    cr_assert(device_fill(d->backend, b->memory, POISON, (size_t)b->shape[0] * 4 + 2 * ROOM));
    b->block = tensor(b->memory + ROOM, 32, d->backend == SPOPS_BACKEND_CPU, b->shape);
    b->description = tensor(b->ints, 64, true, b->num_ints);
    ++bs->num;
    return b;
}

static void free_block(drawn_block *b, test_device *d)
{
    for (int i = 0; i < SPOPS_ROW_MAX_ARGS; ++i)
        device_free(d->backend, b->drawn[i]);
    device_free(d->backend, b->memory);
}

static int plan_number(const spops_row *row, int arg)
{
    int n = 0;
    for (int i = 0; i < arg; ++i)
        n += row->args[i].is_plan;
    return n;
}

static void put(const spops_row *row, int arg, drawn_block *b, spops_value *values)
{
    values[arg] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &b->block}};
    values[row->num_args + plan_number(row, arg)] =
        (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &b->description}};
}

// Inputs that a call has only where it fills a block: all of what is counted, or numbers.
static void draw_inputs(const drawn_call *maker, test_device *d, drawn_block *b,
                        spops_value *values, spops_tensor *tensors, int64_t *sizes)
{
    double numbers[4096];
    for (int k = 0; k < 4096; ++k)
        numbers[k] = (double)((k * 7 + 3) % 11) / 4.0;
    for (int i = 0; i < maker->row->num_inputs; ++i) {
        const spops_row_arg *arg = &maker->row->args[i];
        const bool is_count = arg->dtypes == 1u << SPOPS_DTYPE_I32;
        int32_t count;
        if (arg->needs < maker->row->num_inputs) continue;
        sizes[i] = spops_row_eval(&arg->dims[0], maker->slots);
        cr_assert(sizes[i] <= 4096);
        count = is_count ? (int32_t)spops_row_eval(&arg->last, maker->slots) : 0;
        cr_assert(device_alloc(d->backend, (size_t)sizes[i] * 8 + 8, &b->drawn[i]));
        cr_assert(device_upload(d->backend, b->drawn[i],
                                is_count ? (const void *)&count : (const void *)numbers,
                                is_count ? sizeof count : (size_t)sizes[i] * 8));
        tensors[i] =
            tensor(b->drawn[i], is_count ? 32 : 64, d->backend == SPOPS_BACKEND_CPU, &sizes[i]);
        if (!is_count) tensors[i].dtype_code = 2;
        values[i] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &tensors[i]}};
        b->is_same = b->is_same && is_count;
    }
}

static drawn_block *block_of(drawn_blocks *bs, const drawn_call *c, test_device *d,
                             const spops_plan *plan);

// Blocks in place of a call's plans; how many.
static int put_inputs(drawn_blocks *bs, const drawn_call *root, const drawn_call *of,
                      test_device *d, spops_value *values, bool *is_same)
{
    int num = 0;
    for (int i = 0; i < of->row->num_inputs; ++i) {
        drawn_block *b;
        if (!of->row->args[i].is_plan || of->values[i].type != SPOPS_VALUE_POINTER) continue;
        b = block_of(bs, root, d, of->values[i].v.p);
        if (b == NULL) continue;
        put(of->row, i, b, values);
        if (!b->is_same) *is_same = false;
        ++num;
    }
    return num;
}

// Plans among the values that are no blocks belong to a context of the test's.
static bool has_handle(const drawn_call *c, const spops_value *values)
{
    for (int i = 0; i < c->row->num_inputs; ++i)
        if (values[i].type == SPOPS_VALUE_POINTER) return true;
    return false;
}

// On a device the block is filled by a captured graph, after a call on its stream.
static spops_status call_maker(const drawn_call *maker, test_device *d, const spops_value *values,
                               drawn_block *b)
{
    static void *stream;
    device_graph *graph = NULL;
    void *memory = NULL;
    size_t bytes = 0;
    spops_value ret;
    spops_status status;

    if (d->backend == SPOPS_BACKEND_CPU || has_handle(maker, values))
        return spops_call(d->ctx, maker->op, values, maker->num_values, &ret);
    status = spops_call_scratch_bytes(NULL, maker->op, values, maker->num_values, &bytes);
    if (status != SPOPS_STATUS_OK) return status;
    bytes = bytes > 0 ? spops_context_scratch_memory(bytes) : 0;
    if (bytes > 0) cr_assert(device_alloc(d->backend, bytes, &memory));
    if (stream == NULL) cr_assert(device_stream_create(d->backend, &stream));
    cr_assert(device_stream_wait(d->backend, NULL));
    status =
        spops_call_on_stream(stream, memory, bytes, maker->op, values, maker->num_values, &ret);
    cr_assert(device_stream_wait(d->backend, stream));
    if (status == SPOPS_STATUS_OK) {
        cr_assert(device_fill(d->backend, b->memory + ROOM, POISON, (size_t)b->shape[0] * 4));
        cr_assert(device_stream_wait(d->backend, NULL));
        cr_assert(device_capture_begin(stream), "%s", device_error());
        status =
            spops_call_on_stream(stream, memory, bytes, maker->op, values, maker->num_values, &ret);
        const bool is_whole = device_capture_end(stream, &graph);
        cr_assert(is_whole && status == SPOPS_STATUS_OK, "%s, captured: %s", maker->op->name,
                  is_whole ? spops_last_error(NULL) : device_error());
        cr_assert(device_graph_launch(graph, stream) && device_stream_wait(d->backend, stream));
        device_graph_destroy(graph);
    }
    device_free(d->backend, memory);
    return status;
}

static bool fill(drawn_blocks *bs, const drawn_call *root, const drawn_call *maker, test_device *d,
                 drawn_block *b)
{
    spops_value values[DRAWN_MAX_VALUES];
    spops_tensor tensors[SPOPS_ROW_MAX_ARGS];
    int64_t sizes[SPOPS_ROW_MAX_ARGS];

    memcpy(values, maker->values, sizeof values);
    (void)put_inputs(bs, root, maker, d, values, &b->is_same);
    draw_inputs(maker, d, b, values, tensors, sizes);
    put(maker->row, maker->row->num_args - 1, b, values);
    return call_maker(maker, d, values, b) == SPOPS_STATUS_OK;
}

static drawn_block *block_of(drawn_blocks *bs, const drawn_call *c, test_device *d,
                             const spops_plan *plan)
{
    drawn_block *b = NULL;

    for (int i = 0; i < bs->num; ++i)
        if (bs->all[i].plan == plan) return &bs->all[i];
    for (int i = 0; i < c->num_made; ++i) {
        if (c->made[i].plan != plan) continue;
        b = add_block(bs, d, plan);
        if (b == NULL) return NULL;
        if (fill(bs, c, c->made[i].maker, d, b)) return b;
        b->plan = NULL; // it stays, unused
        return NULL;
    }
    return NULL;
}

int drawn_blocks_make(drawn_blocks *b, const drawn_call *c, test_device *d,
                      spops_value values[DRAWN_MAX_VALUES])
{
    bool is_same = true;
    memset(b, 0, sizeof *b);
    memcpy(values, c->values, DRAWN_MAX_VALUES * sizeof *values);
    return put_inputs(b, c, c, d, values, &is_same);
}

// ---- Handles ------------------------------------------------------------------------------------

static spops_plan *attach(drawn_blocks *bs, test_device *d, const int64_t *ints, int *used,
                          unsigned char *memory, size_t *bytes)
{
    const spops_plan_kind_info *info = &spops_plan_kinds(NULL)[ints[0] - 1];
    const spops_plan *parents[SPOPS_PLAN_MAX_PARENTS] = {NULL};
    const int32_t own = spops_plan_num_ints(ints[0]);
    spops_plan *plan = NULL;
    int num = 0;

    cr_assert(spops_plan_measure(d->ctx, ints, own, bytes, NULL) == SPOPS_STATUS_OK);
    *used = own;
    const size_t own_bytes = *bytes;
    for (const char *at = info->parents; *at != '\0'; at += strcspn(at, " "), at += *at == ' ') {
        int n = 1;
        size_t more = 0;
        if (ints[*used] != 0) {
            *bytes = (*bytes + 255) / 256 * 256;
            parents[num] = attach(bs, d, ints + *used, &n, memory + *bytes, &more);
        }
        *bytes += more;
        *used += n;
        ++num;
    }
    test_expect_ok(d->ctx,
                   spops_plan_attach(d->ctx, ints, own, memory, own_bytes, parents, num, &plan),
                   info->name);
    cr_assert(bs->num_attached < 2 * DRAWN_MAX_BLOCKS);
    bs->attached[bs->num_attached++] = plan;
    return plan;
}

void drawn_blocks_attach(drawn_blocks *b, const drawn_call *c, test_device *d,
                         spops_value values[DRAWN_MAX_VALUES])
{
    memcpy(values, c->values, DRAWN_MAX_VALUES * sizeof *values);
    for (int i = 0; i < c->row->num_inputs; ++i) {
        for (int k = 0; k < b->num && c->row->args[i].is_plan; ++k) {
            int used;
            size_t bytes;
            if (c->values[i].type != SPOPS_VALUE_POINTER || b->all[k].plan != c->values[i].v.p)
                continue;
            values[i].v.p = attach(b, d, b->all[k].ints, &used, b->all[k].memory + ROOM, &bytes);
            cr_assert(used == b->all[k].num_ints[0] && bytes == b->all[k].bytes);
        }
    }
}

drawn_block *drawn_blocks_output(drawn_blocks *bs, const drawn_call *c, test_device *d,
                                 const spops_plan *made, spops_value values[DRAWN_MAX_VALUES])
{
    static spops_tensor tensors[SPOPS_ROW_MAX_ARGS];
    static int64_t sizes[SPOPS_ROW_MAX_ARGS];
    drawn_block *b = add_block(bs, d, made);
    if (b == NULL) return NULL;
    draw_inputs(c, d, b, values, tensors, sizes);
    put(c->row, c->row->num_args - 1, b, values);
    return b;
}

void drawn_blocks_free(drawn_blocks *b, test_device *d)
{
    while (b->num_attached > 0)
        spops_plan_destroy(b->attached[--b->num_attached]);
    while (b->num > 0)
        free_block(&b->all[--b->num], d);
}
