// SPDX-License-Identifier: Apache-2.0
#include "tests/support/drawn_call.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtypes.h"
#include "core/plan.h"
#include "support/device.h"

enum { ROOM = 64, MAX_DEPTH = 6 }; // bytes before and behind elements; plans behind plans
enum { WIDE = 1 << 30 };           // a range of an attribute that is a size

static bool is_large; // DRAWN_LARGE

void drawn_call_scale(drawn_scale scale)
{
    is_large = scale == DRAWN_LARGE;
}

// ---- Tensors ------------------------------------------------------------------------------------

static int bits_of(int dtype)
{
    return dtype == SPOPS_ROW_U8 ? 8 : spops_dtype_bits((spops_dtype)dtype);
}

static void set_dtype(spops_tensor *t, int dtype)
{
    static const struct {
        int dtype;
        uint8_t code, bits, lanes;
    } codes[] = {{SPOPS_DTYPE_F32, 2, 32, 1},    {SPOPS_DTYPE_F16, 2, 16, 1},
                 {SPOPS_DTYPE_BF16, 4, 16, 1},   {SPOPS_DTYPE_F8E4M3, 10, 8, 1},
                 {SPOPS_DTYPE_F8E5M2, 12, 8, 1}, {SPOPS_DTYPE_F4E2M1, 17, 4, 2},
                 {SPOPS_DTYPE_I8, 0, 8, 1},      {SPOPS_DTYPE_I32, 0, 32, 1},
                 {SPOPS_DTYPE_I64, 0, 64, 1},    {SPOPS_ROW_U8, 1, 8, 1},
                 {SPOPS_DTYPE_F64, 2, 64, 1}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; ++i) {
        if (codes[i].dtype != dtype) continue;
        t->dtype_code = codes[i].code;
        t->dtype_bits = codes[i].bits;
        t->dtype_lanes = codes[i].lanes;
    }
}

// One element that is a moderate number in its dtype, or an integer of the range.
static void fill_element(unsigned char *to, int dtype, test_rng *rng, int64_t first, int64_t last)
{
    const float unit = (float)(2.0 * test_rng_unit(rng) - 1.0);
    const uint64_t random = test_rng_next(rng);
    const int32_t integer = (int32_t)(first + test_rng_below(rng, last - first + 1));
    const uint16_t half = (uint16_t)(0x3000 + random % 0x0c00) | (random >> 32 & 1 ? 0x8000 : 0);
    const uint16_t bhalf = (uint16_t)(0x3e00 + random % 0x0180) | (random >> 32 & 1 ? 0x8000 : 0);
    const double wide = unit;

    switch (dtype) {
    case SPOPS_DTYPE_F32: memcpy(to, &unit, sizeof unit); break;
    case SPOPS_DTYPE_F16: memcpy(to, &half, sizeof half); break;
    case SPOPS_DTYPE_BF16: memcpy(to, &bhalf, sizeof bhalf); break;
    case SPOPS_DTYPE_I32: memcpy(to, &integer, sizeof integer); break;
    case SPOPS_DTYPE_F64: memcpy(to, &wide, sizeof wide); break;
    case SPOPS_ROW_U8: *to = (unsigned char)(integer & 1); break;
    default: *to = (unsigned char)(0x30 + random % 16); break;
    }
}

static void fill(drawn_tensor *t, unsigned char *host, int dtype, const spops_row_arg *arg,
                 const int64_t *slots, test_rng *rng)
{
    const bool has_first = arg->first.how != SPOPS_NUMBER_NONE;
    const bool has_last = arg->last.how != SPOPS_NUMBER_NONE;
    const int64_t first = has_first ? spops_row_eval(&arg->first, slots) : 0;
    const bool is_count = is_large && arg->is_array && t->shape[0] == 1;
    const int64_t last =
        has_last ? spops_row_eval(&arg->last, slots) : first + (is_count ? 4000 : 15);
    const size_t element = (size_t)(bits_of(dtype) < 8 ? 8 : bits_of(dtype)) / 8;
    const int64_t rows = t->shape[0], cols = t->tensor.num_dims > 1 ? t->shape[1] : 1;
    const int64_t turn = test_rng_below(rng, 64);
    int64_t at = 0;

    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
            unsigned char *to = host + ROOM + (size_t)(r * t->strides[0] + c) * element;
            if (strcmp(arg->name, "places") == 0) { // of each column once, as sorting gives them
                const int32_t value = (int32_t)((r + turn + c) % rows);
                memcpy(to, &value, sizeof value);
                continue;
            }
            if (arg->ascends) { // from 0 to the last
                const int32_t value = (int32_t)(r == rows - 1 ? last : at);
                memcpy(to, &value, sizeof value);
                at += test_rng_below(rng, 4);
                if (at > last) at = last;
                continue;
            }
            fill_element(to, dtype, rng, first, last < first ? first : last);
        }
    }
}

static void draw_tensor(drawn_call *c, int index, int dtype, int64_t rows, int64_t cols,
                        test_rng *rng)
{
    const spops_row_arg *arg = &c->row->args[index];
    drawn_tensor *t = &c->tensors[index];
    const bool is_packed = dtype == SPOPS_DTYPE_F4E2M1;
    const int64_t padding = arg->is_array || arg->is_dense ? 0 : 8 * test_rng_below(rng, 2);
    unsigned char *host;

    if (is_packed) cols = (cols + 1) / 2; // DLPack counts pairs
    t->tensor.num_dims = arg->is_array ? 1 : 2;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->strides[0] = arg->is_array ? 1 : cols + padding;
    t->strides[1] = 1;
    t->bytes =
        2 * ROOM + (size_t)(rows * t->strides[0]) * (size_t)(is_packed ? 8 : bits_of(dtype)) / 8;
    host = malloc(t->bytes);
    cr_assert(host != NULL && device_alloc(c->backend, t->bytes, (void **)&t->memory));
    memset(host, 0, t->bytes);
    fill(t, host, dtype, arg, c->slots, rng);
    cr_assert(device_upload(c->backend, t->memory, host, t->bytes), "%s", device_error());
    free(host);
    set_dtype(&t->tensor, dtype);
    t->tensor.data = t->memory + ROOM;
    t->tensor.device_type = c->backend == SPOPS_BACKEND_CPU ? 1 : 2;
    t->tensor.shape = t->shape;
    t->tensor.strides = t->strides;
    c->values[index] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = &t->tensor}};
}

// ---- Attributes ---------------------------------------------------------------------------------

// Whether its default is refused.
static bool is_required(const spops_row_attribute *a)
{
    return a->row->kind != SPOPS_ARGUMENT_FLOAT && a->first.how != SPOPS_NUMBER_NONE &&
           a->row->int_default < a->min;
}

static spops_value draw_attribute(drawn_call *c, int index, test_rng *rng)
{
    const spops_row_attribute *a = &c->row->attributes[index];
    const bool takes_default = test_rng_below(rng, 3) == 0 && !is_required(a);
    spops_value v = {SPOPS_VALUE_INT, 0, {.i = a->row->int_default}};
    int64_t first, last;

    switch (a->row->kind) {
    case SPOPS_ARGUMENT_FLOAT:
        v.type = SPOPS_VALUE_FLOAT;
        v.v.f = takes_default ? a->row->float_default : test_rng_unit(rng);
        return v;
    case SPOPS_ARGUMENT_FLOATS:
        v.type = test_rng_below(rng, 3) > 0 ? SPOPS_VALUE_NONE : SPOPS_VALUE_FLOAT;
        v.v.f = 0.5 + test_rng_unit(rng);
        return v;
    case SPOPS_ARGUMENT_INTS:
        v.type = test_rng_below(rng, 2) == 0 ? SPOPS_VALUE_NONE : SPOPS_VALUE_INT;
        v.v.i = 1 + test_rng_below(rng, 3);
        return v;
    default: break;
    }
    if (takes_default) return v;
    first = a->first.how == SPOPS_NUMBER_NONE ? 0 : spops_row_eval(&a->first, c->slots);
    last = a->last.how == SPOPS_NUMBER_NONE ? first + 3 : spops_row_eval(&a->last, c->slots);
    if (first < -8) first = -8;
    if (is_large && first == 0 && last > WIDE && test_rng_below(rng, 2) == 0)
        last = 1000;
    else if (last - first > 11)
        last = first + 11;
    v.v.i = first; // often: one batch, one camera, nothing
    if (test_rng_below(rng, 4) > 0) v.v.i += test_rng_below(rng, last - first + 1);
    return v;
}

// ---- Plans --------------------------------------------------------------------------------------

static bool draw(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng, int depth);

// c's plans take those that another call was made with: they must outlive what it made.
static void take_plans(drawn_call *c, drawn_call *from)
{
    for (int p = 0; p < from->num_plans; ++p) {
        cr_assert(c->num_plans < DRAWN_MAX_PLANS);
        c->plans[c->num_plans++] = from->plans[p];
    }
    from->num_plans = 0;
    for (int p = 0; p < from->num_made; ++p) {
        cr_assert(c->num_made < DRAWN_MAX_PLANS);
        c->made[c->num_made++] = from->made[p];
    }
    from->num_made = 0;
}

// A plan that this operator makes; NULL: the draw was refused.
static spops_plan *draw_plan_by(drawn_call *c, test_device *d, const spops_operator *op,
                                test_rng *rng, int depth)
{
    drawn_call *maker = calloc(1, sizeof *maker);
    spops_plan *made = NULL;
    spops_value ret;

    cr_assert(maker != NULL);
    if (draw(maker, d, op, rng, depth + 1) &&
        spops_call(d->ctx, op, maker->values, maker->num_values, &ret) == SPOPS_STATUS_OK) {
        made = ret.v.p;
        take_plans(c, maker);
        if (maker->row->args[maker->row->num_args - 1].may_be < 0) {
            cr_assert(c->num_plans < DRAWN_MAX_PLANS);
            c->plans[c->num_plans++] = made;
        }
        test_wait(d);
        cr_assert(c->num_made < DRAWN_MAX_PLANS);
        c->made[c->num_made++] = (drawn_plan){made, maker};
        return made;
    }
    drawn_call_free(maker);
    free(maker);
    return NULL;
}

static bool makes(const spops_operator *op, int32_t kind)
{
    const spops_row *row = spops_row_of((spops_operator_id)op->index);
    const spops_row_arg *last = &row->args[row->num_args - 1];
    return row->num_args > 0 && last->is_output && last->plan_kind == kind;
}

// A plan of a kind, made by any operator that makes them, with what it stands on; it joins c's. Of ranks
// (of a halo, say) only where nothing else makes them: such makers stand on many plans that must fit.
static spops_plan *draw_plan(drawn_call *c, test_device *d, int32_t kind, test_rng *rng, int depth)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    bool of_ranks = true;

    for (int32_t i = 0; i < num; ++i)
        if (makes(ops[i], kind) && ops[i]->needs_handles == 0) of_ranks = false;
    for (int tries = 0; tries < 12 && depth < MAX_DEPTH; ++tries) {
        const int32_t from = (int32_t)test_rng_below(rng, num);
        for (int32_t i = 0; i < num; ++i) {
            const spops_operator *op = ops[(from + i) % num];
            spops_plan *made;
            if (!makes(op, kind) || (op->needs_handles != 0 && !of_ranks)) continue;
            made = draw_plan_by(c, d, op, rng, depth);
            if (made != NULL) return made;
            break;
        }
    }
    return NULL;
}

// ---- Calls --------------------------------------------------------------------------------------

// Sizes of columns, of index arrays and of all else, for DRAWN_LARGE.
static int64_t draw_large(const spops_row *row, int32_t slot, test_rng *rng)
{
    static const int64_t columns[] = {1, 3, 4, 5, 8, 16, 33, 64, 64, 80};
    static const int64_t lists[] = {60, 500, 500, 4000}, rows[] = {30, 60, 150};
    bool has_rows = false;
    for (int i = 0; i < row->num_args; ++i) {
        for (int k = 0; k < row->args[i].num_dims; ++k) {
            const spops_row_number *dim = &row->args[i].dims[k];
            if (dim->how != SPOPS_NUMBER_SLOT || dim->at != slot) continue;
            if (k == 1) return columns[test_rng_below(rng, 10)];
            has_rows |= !row->args[i].is_array;
        }
    }
    return has_rows ? rows[test_rng_below(rng, 3)] : lists[test_rng_below(rng, 4)];
}

static int64_t draw_size(test_rng *rng, int64_t common)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 33, 64};
    if (test_rng_below(rng, 5) < 3) return common;
    return sizes[test_rng_below(rng, sizeof sizes / sizeof *sizes)];
}

static int draw_dtype(uint32_t set, test_rng *rng)
{
    int dtype;
    if (is_large && (set & 1u << SPOPS_DTYPE_F32) != 0 && test_rng_below(rng, 2) == 0)
        return SPOPS_DTYPE_F32; // whose products are rounded
    do
        dtype = (int)test_rng_below(rng, 20);
    while ((set & 1u << dtype) == 0);
    return dtype;
}

// A communicator of one rank, which meets nobody but itself.
static void draw_comm(drawn_call *c, test_device *d, int index)
{
    spops_comm_group *group = NULL;

    test_expect_ok(NULL, spops_comm_group_create(1, &group), "comm_group_create");
    test_expect_ok(d->ctx, spops_comm_create_threads(d->ctx, group, 0, NULL, &c->comm),
                   "comm_create_threads");
    spops_comm_group_destroy(group);
    c->values[index] = (spops_value){SPOPS_VALUE_POINTER, 0, {.p = c->comm}};
}

static bool draw(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng, int depth)
{
    const spops_row *row = spops_row_of((spops_operator_id)op->index);
    static const int64_t commons[] = {1, 2, 3, 4, 6, 8, 12};
    const int64_t common = commons[test_rng_below(rng, 7)];
    int variables[SPOPS_ROW_MAX_VARIABLES] = {0};
    int num_plans = 0;

    memset(c, 0, sizeof *c);
    c->backend = d->backend;
    c->op = op;
    c->row = row;
    for (int i = 0; i < row->num_args; ++i)
        num_plans += row->args[i].is_plan;
    for (int i = 0; i < row->num_attributes; ++i) {
        spops_value *v = &c->values[row->num_args + num_plans + i];
        *v = draw_attribute(c, i, rng);
        c->slots[i] = v->type == SPOPS_VALUE_INT ? v->v.i : 0;
    }
    for (int s = row->num_attributes; s < row->num_slots; ++s)
        c->slots[s] = is_large ? draw_large(row, s, rng) : draw_size(rng, common);
    for (int v = 0; v < row->num_variables; ++v) {
        uint32_t set = row->variables[v].dtypes;
        for (int u = 0; u < v; ++u)
            if ((row->variables[v].variables & 1u << u) != 0) set |= 1u << variables[u];
        variables[v] = draw_dtype(set, rng);
    }
    c->num_values = row->num_args + num_plans + row->num_attributes + (op->num_optional > 0);
    for (int i = 0; i < row->num_args; ++i) { // plans first, as shapes name their fields
        if (!row->args[i].is_plan || row->args[i].is_output) continue;
        if (row->args[i].is_optional && test_rng_below(rng, 2) == 0) continue;
        spops_plan *plan = draw_plan(c, d, row->args[i].plan_kind, rng, depth);
        if (plan == NULL) return false;
        c->values[i] = (spops_value){SPOPS_VALUE_POINTER, 0, {.p = plan}};
        for (int f = 0; f < row->num_fields; ++f)
            if (row->fields[f].arg == i && row->fields[f].field >= 0)
                c->slots[row->fields[f].slot] = spops_plan_field(plan, row->fields[f].field);
    }
    for (int i = 0; i < row->num_args; ++i) {
        const spops_row_arg *arg = &row->args[i];
        uint32_t set = arg->dtypes;
        int64_t rows, cols;
        if (arg->is_plan) continue;
        if (arg->is_optional && test_rng_below(rng, 2) == 0) continue;
        if (arg->is_comm) {
            draw_comm(c, d, i);
            continue;
        }
        if (arg->needs >= 0 && c->values[arg->needs].type == SPOPS_VALUE_NONE) continue;
        for (int v = 0; v < row->num_variables; ++v)
            if ((arg->variables & 1u << v) != 0) set |= 1u << variables[v];
        for (int v = 0; v < row->num_variables; ++v)
            if ((arg->sums & 1u << v) != 0) set |= 1u << spops_sum_dtype((spops_dtype)variables[v]);
        rows = spops_row_eval(&arg->dims[0], c->slots);
        cols = arg->is_array ? 1 : spops_row_eval(&arg->dims[1], c->slots);
        if (rows < 0 || cols < 0 || rows > 100000 || rows * cols > (is_large ? 40000 : 1000000))
            return false;
        draw_tensor(c, i, draw_dtype(set, rng), rows, cols, rng);
    }
    return true;
}

test_rng drawn_call_rng(const spops_operator *op, int stream)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *c = op->name; *c != '\0'; ++c)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    return test_rng_make(hash + (uint64_t)stream);
}

bool drawn_call_make(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng)
{
    return draw(c, d, op, rng, 0);
}

bool drawn_call_is_specified(const drawn_call *c)
{
    enum { IDX = 1 }; // segments made without it name each row once
    static const char *const by_row[] = {"gather", "groupnorm", "groupnorm_backward"};
    bool writes_by_row = false;
    for (size_t i = 0; i < sizeof by_row / sizeof *by_row; ++i)
        writes_by_row |= strcmp(c->op->name, by_row[i]) == 0;
    if (!writes_by_row) return true;
    for (int i = 0; i < c->num_made; ++i)
        if (strncmp(c->made[i].maker->op->name, "segments", 8) != 0 ||
            c->made[i].maker->values[IDX].type != SPOPS_VALUE_NONE)
            return false;
    return true;
}

void drawn_call_free(drawn_call *c)
{
    for (int i = 0; i < SPOPS_ROW_MAX_ARGS; ++i) {
        device_free(c->backend, c->tensors[i].memory);
        c->tensors[i].memory = NULL;
    }
    while (c->num_plans > 0)
        spops_plan_destroy(c->plans[--c->num_plans]);
    spops_comm_destroy(c->comm);
    c->comm = NULL;
    while (c->num_made > 0) {
        drawn_call *maker = c->made[--c->num_made].maker;
        drawn_call_free(maker);
        free(maker);
    }
}

// One draw; true for a valid call, which is left in c.
static bool try_draw(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng,
                     spops_value *ret)
{
    if (drawn_call_make(c, d, op, rng)) {
        const spops_row *row = c->row;
        for (int a = 0; a < row->num_args; ++a) // scratch, as a caller would reserve it
            if (row->args[a].is_plan && !row->args[a].is_output && c->values[a].v.p != NULL)
                (void)spops_context_reserve(d->ctx,
                                            spops_plan_scratch_bytes(c->values[a].v.p) + (1 << 16));
        (void)spops_context_reserve(d->ctx, 1 << 20);
        if (spops_call(d->ctx, op, c->values, c->num_values, ret) == SPOPS_STATUS_OK) return true;
    }
    drawn_call_free(c);
    return false;
}

// Where a draw is tried before it is made on a device, whose plans take a thousand times as long.
static test_device *open_host(void)
{
    test_device *host = calloc(1, sizeof *host);
    cr_assert(host != NULL);
    host->backend = SPOPS_BACKEND_CPU;
    checked_alloc_init(&host->memory);
    host->ctx = test_context(host, 1);
    return host;
}

static void close_host(test_device *host)
{
    if (host == NULL) return;
    test_close(host);
    free(host);
}

int drawn_call_find(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng,
                    int tries, spops_value *ret)
{
    enum { UNSEEN = 8 }; // one draw of so many is made anyway: the CPU refuses some that CUDA takes
    test_device *host = d->backend == SPOPS_BACKEND_CUDA ? open_host() : NULL;
    int i;

    for (i = 1; i <= tries; ++i) {
        if (host != NULL && i % UNSEEN != 0) {
            test_rng ahead = *rng;
            const bool is_valid = try_draw(c, host, op, &ahead, ret);
            if (is_valid) {
                drawn_call_drop(c, ret);
                drawn_call_free(c);
            } else {
                *rng = ahead;
                continue;
            }
        }
        if (try_draw(c, d, op, rng, ret)) break;
    }
    close_host(host);
    return i <= tries ? i : 0;
}

int32_t drawn_call_compact(const drawn_call *c, spops_value values[DRAWN_MAX_VALUES])
{
    int64_t present = 0;
    int32_t n = 0, bit = 0;

    for (int i = 0; i < c->row->num_args; ++i) {
        const bool is_optional = c->row->args[i].is_optional;
        const bool is_given = !is_optional || c->values[i].type != SPOPS_VALUE_NONE;
        if (is_given) values[n++] = c->values[i];
        if (is_optional) present |= (int64_t)is_given << bit++;
    }
    for (int i = c->row->num_args; i < c->num_values; ++i)
        values[n++] = c->values[i];
    if (c->op->num_optional > 0) values[n - 1] = (spops_value){SPOPS_VALUE_INT, 0, {.i = present}};
    return n;
}

unsigned char *drawn_call_outputs(const drawn_call *c, size_t *bytes)
{
    unsigned char *all;
    size_t at = 0;

    *bytes = 0;
    for (int i = c->row->num_inputs; i < c->row->num_args; ++i)
        *bytes += c->tensors[i].bytes;
    all = malloc(*bytes + 1);
    cr_assert(all != NULL);
    for (int i = c->row->num_inputs; i < c->row->num_args; ++i) {
        if (c->tensors[i].memory == NULL) continue;
        cr_assert(device_download(c->backend, all + at, c->tensors[i].memory, c->tensors[i].bytes));
        at += c->tensors[i].bytes;
    }
    return all;
}

void drawn_call_poison(drawn_call *c, int byte)
{
    for (int i = c->row->num_inputs; i < c->row->num_args; ++i)
        if (c->tensors[i].memory != NULL)
            cr_assert(device_fill(c->backend, c->tensors[i].memory, byte, c->tensors[i].bytes));
}

void drawn_call_drop(const drawn_call *c, const spops_value *ret)
{
    if (ret->type != SPOPS_VALUE_POINTER) return;
    if (c->row->args[c->row->num_args - 1].may_be < 0) spops_plan_destroy(ret->v.p);
}
