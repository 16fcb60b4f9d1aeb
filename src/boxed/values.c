// SPDX-License-Identifier: Apache-2.0
// Unpacking the values of a boxed call. Shapes are the operator's own to check; here a tensor must have
// a layout that a matrix has, and a value a type that its argument has.
#include "boxed/values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/backend.h"
#include "core/dtypes.h"
#include "core/plan.h"

enum {
    // Objects of tvm-ffi that hold what plain values would: their contents lie after 24 bytes.
    VALUE_SMALL_STRING = 11, // in the value itself; its length in `reserved`
    OBJECT_STRING = 65,
    OBJECT_SHAPE = 69,
    OBJECT_TENSOR = 70,
    OBJECT_HEAD_BYTES = 24,
    DLPACK_BOOL = 6,
    DLPACK_HOST = 1,
    DLPACK_CUDA = 2,
    DLPACK_PINNED = 3,
    DLPACK_MANAGED = 13
};

// The dtypes that a tensor may have, by DLPack's code, bits and lanes; as in spops/dlpack.h, and what
// plans are made from.
static const struct {
    uint8_t code, bits, lanes, dtype;
} dlpack_dtypes[] = {{2, 32, 1, SPOPS_DTYPE_F32},       {2, 16, 1, SPOPS_DTYPE_F16},
                     {4, 16, 1, SPOPS_DTYPE_BF16},      {10, 8, 1, SPOPS_DTYPE_F8E4M3},
                     {12, 8, 1, SPOPS_DTYPE_F8E5M2},    {17, 4, 2, SPOPS_DTYPE_F4E2M1},
                     {0, 8, 1, SPOPS_DTYPE_I8},         {0, 32, 1, SPOPS_DTYPE_I32},
                     {0, 64, 1, SPOPS_DTYPE_I64},       {1, 8, 1, SPOPS_ROW_U8},
                     {DLPACK_BOOL, 8, 1, SPOPS_ROW_U8}, {2, 64, 1, SPOPS_DTYPE_F64}};

// One argument being unpacked.
typedef struct unpacking {
    spops_boxed_call *b;
    spops_call_place *place;
    const char *name;
    bool is_placed; // place is known
} unpacking;

static spops_status refuse(const unpacking *u, const char *found, const char *expected)
{
    return spops_fail(u->b->ctx, SPOPS_STATUS_INVALID_ARGUMENT, "%s: %s is %s, expected %s",
                      u->b->row->call, u->name, found, expected);
}

static const char *type_name(int32_t type)
{
    switch (type) {
    case SPOPS_VALUE_NONE: return "NONE";
    case SPOPS_VALUE_INT: return "an INT";
    case SPOPS_VALUE_BOOL: return "a BOOL";
    case SPOPS_VALUE_FLOAT: return "a FLOAT";
    case SPOPS_VALUE_POINTER: return "a POINTER";
    case SPOPS_VALUE_TENSOR:
    case OBJECT_TENSOR: return "a TENSOR";
    case SPOPS_VALUE_STRING:
    case VALUE_SMALL_STRING:
    case OBJECT_STRING: return "a STRING";
    default: return "a value of another type";
    }
}

static const spops_tensor *tensor_of(const spops_value *value)
{
    if (value->type == SPOPS_VALUE_TENSOR) return value->v.p;
    if (value->type == OBJECT_TENSOR)
        return (const spops_tensor *)(const void *)((const char *)value->v.p + OBJECT_HEAD_BYTES);
    return NULL;
}

// ---- Tensors ------------------------------------------------------------------------------------

static int dtype_of(const spops_tensor *t)
{
    for (size_t i = 0; i < sizeof dlpack_dtypes / sizeof *dlpack_dtypes; ++i)
        if (dlpack_dtypes[i].code == t->dtype_code && dlpack_dtypes[i].bits == t->dtype_bits &&
            dlpack_dtypes[i].lanes == t->dtype_lanes)
            return dlpack_dtypes[i].dtype;
    return -1;
}

void spops_tensor_set_dtype(spops_tensor *t, int dtype)
{
    size_t i = 0;
    while (dlpack_dtypes[i].dtype != dtype)
        ++i;
    t->dtype_code = dlpack_dtypes[i].code;
    t->dtype_bits = dlpack_dtypes[i].bits;
    t->dtype_lanes = dlpack_dtypes[i].lanes;
}

// Memory that both backends reach belongs to the one that other arguments name.
static spops_status check_device(unpacking *u, const spops_tensor *t)
{
    const bool is_host = t->device_type == DLPACK_HOST, is_cuda = t->device_type == DLPACK_CUDA;

    if (!is_host && !is_cuda) {
        if (t->device_type == DLPACK_PINNED || t->device_type == DLPACK_MANAGED)
            return SPOPS_STATUS_OK;
        return refuse(u, "on a device of another kind", "host memory or a CUDA device");
    }
    if (!u->is_placed) {
        u->is_placed = true;
        u->place->backend = is_host ? SPOPS_BACKEND_CPU : SPOPS_BACKEND_CUDA;
        u->place->device = is_host ? 0 : t->device_id;
        return SPOPS_STATUS_OK;
    }
    if (is_host != (u->place->backend == SPOPS_BACKEND_CPU))
        return refuse(u, is_host ? "in host memory" : "on a CUDA device",
                      is_host ? "memory of the CUDA device that the call runs on" : "host memory");
    if (is_cuda && t->device_id != u->place->device)
        return refuse(u, "on another CUDA device", "that of the call");
    return SPOPS_STATUS_OK;
}

// The elements of a dimension lie as far apart as those inside of it take, for all but its first
// `keep` dimensions; sizes are checked.
static bool is_compact(const spops_tensor *t, int32_t keep)
{
    int64_t stride = 1;
    if (t->strides == NULL) return true;
    for (int32_t i = t->num_dims - 1; i >= keep; --i) {
        if (t->shape[i] != 1 && t->strides[i] != stride) return false;
        stride *= t->shape[i];
    }
    return true;
}

static bool has_sizes(const spops_tensor *t, bool *is_empty)
{
    int64_t count = 1;
    *is_empty = false;
    if (t->num_dims < 0 || (t->num_dims > 0 && t->shape == NULL)) return false;
    for (int32_t i = 0; i < t->num_dims; ++i) {
        if (t->shape[i] < 0) return false;
        if (t->shape[i] == 0) *is_empty = true;
        if (t->shape[i] > 0 && __builtin_mul_overflow(count, t->shape[i], &count)) return false;
    }
    return true;
}

static int64_t product(const spops_tensor *t, int32_t begin, int32_t end)
{
    int64_t n = 1;
    for (int32_t i = begin; i < end; ++i)
        n *= t->shape[i];
    return n;
}

// Rows are the first dimension, or all but the last where these leave no gap.
static spops_status unpack_matrix(unpacking *u, const spops_tensor *t, const spops_row_arg *arg,
                                  int index, bool is_empty)
{
    spops_matrix *m = &u->b->matrices[index];
    const int32_t dims = t->num_dims;

    if (dims == 3 && arg->blocks >= 0 && !is_empty) { // [rows, blocks, columns of a block]
        if (t->strides != NULL && t->shape[2] > 1 && t->strides[2] != 1)
            return refuse(u, "a tensor with gaps between its columns", "columns without a gap");
        m->rows = t->shape[0];
        m->cols = t->shape[1] * t->shape[2];
        m->row_stride = t->strides == NULL ? m->cols : t->strides[0];
        u->b->block_strides[index] = t->strides == NULL ? 0 : t->strides[1];
        return SPOPS_STATUS_OK;
    }
    if (dims == 0) return refuse(u, "a tensor without dimensions", "one or more");
    m->cols = dims == 1 ? 1 : t->shape[dims - 1];
    m->rows = dims == 1 ? t->shape[0] : product(t, 0, dims - 1);
    m->row_stride = m->cols;
    if (t->strides == NULL || is_empty) return SPOPS_STATUS_OK;
    if (dims > 1 && m->cols > 1 && t->strides[dims - 1] != 1)
        return refuse(u, "a tensor with gaps between its columns", "columns without a gap");
    if (dims <= 2) {
        m->row_stride = t->strides[0]; // any number, where there is one row
        return SPOPS_STATUS_OK;
    }
    int64_t expected = -1;
    for (int32_t i = dims - 2; i >= 0; --i) {
        if (t->shape[i] == 1) continue;
        if (expected == -1)
            m->row_stride = t->strides[i];
        else if (t->strides[i] != expected)
            return refuse(u, "a tensor whose leading dimensions leave gaps",
                          "rows at equal distances");
        if (__builtin_mul_overflow(t->strides[i], t->shape[i], &expected)) expected = -2;
    }
    return SPOPS_STATUS_OK;
}

// Of a call that is asked for shapes: any sizes, or none.
static spops_status note_tensor(unpacking *u, const spops_value *value, int index)
{
    const spops_tensor *t = tensor_of(value);

    if (value->type == SPOPS_VALUE_NONE) return SPOPS_STATUS_OK;
    if (t == NULL) return refuse(u, type_name(value->type), "a TENSOR");
    SPOPS_TRY(check_device(u, t));
    const int dtype = dtype_of(t);
    if (dtype < 0 && (!u->b->row->args[index].is_output || t->dtype_bits != 0))
        return refuse(u, "of a dtype that is not known here", "one that the row names");
    if (t->num_dims < 0 || t->num_dims > SPOPS_CALL_MAX_DIMS)
        return refuse(u, "a tensor of too many dimensions", "0 to 8");
    u->b->matrices[index].dtype = (spops_dtype)dtype;
    u->b->args[index] = t;
    return SPOPS_STATUS_OK;
}

static spops_status unpack_tensor(unpacking *u, const spops_value *value, int index)
{
    spops_boxed_call *b = u->b;
    const spops_row_arg *arg = &b->row->args[index];
    const spops_tensor *t = tensor_of(value);
    spops_matrix *m = &b->matrices[index];
    bool is_empty;
    int dtype;

    if (b->asks) return note_tensor(u, value, index);
    if (t == NULL) return refuse(u, type_name(value->type), "a TENSOR");
    SPOPS_TRY(check_device(u, t));
    dtype = dtype_of(t);
    if (dtype < 0) return refuse(u, "of a dtype that is not known here", "one that the row names");
    if (!has_sizes(t, &is_empty))
        return refuse(u, "a tensor of impossible sizes", "sizes from 0 on");
    m->dtype = (spops_dtype)dtype;
    m->data = t->data == NULL ? NULL : (char *)t->data + t->byte_offset;
    if (arg->is_array) {
        if (!is_empty && !is_compact(t, 0))
            return refuse(u, "a tensor with gaps", "elements that follow each other");
        if (!is_empty && t->data == NULL && !b->measures)
            return refuse(u, "NULL", "memory of its elements");
        m->rows = is_empty ? 0 : product(t, 0, t->num_dims);
        m->cols = m->row_stride = 1;
    } else {
        SPOPS_TRY(unpack_matrix(u, t, arg, index, is_empty));
    }
    if (m->dtype == SPOPS_DTYPE_F4E2M1) { // DLPack counts pairs of columns
        m->cols *= 2;
        if (m->rows > 1 && __builtin_mul_overflow(m->row_stride, 2, &m->row_stride))
            m->row_stride = INT64_MAX; // odd, as no row stride of pairs is
    }
    b->args[index] = arg->is_array && !b->measures ? m->data : (const void *)m;
    return SPOPS_STATUS_OK;
}

// ---- Plans --------------------------------------------------------------------------------------

// A block; its description follows.
static spops_status unpack_block(unpacking *u, const spops_value *value, int index)
{
    spops_boxed_call *b = u->b;
    const spops_tensor *t = tensor_of(value);
    spops_plan_value *v = &b->blocks[b->num_blocks].value;
    bool is_empty;

    SPOPS_TRY(check_device(u, t));
    if (b->asks) {
        v->ints = NULL;
        b->blocks[b->num_blocks++].arg = index;
        return SPOPS_STATUS_OK;
    }
    if (!has_sizes(t, &is_empty))
        return refuse(u, "a tensor of impossible sizes", "sizes from 0 on");
    if (!is_empty && !is_compact(t, 0))
        return refuse(u, "a tensor with gaps", "a block without a gap");
    if (t->data == NULL && !b->measures) return refuse(u, "NULL", "the block of a plan");
    b->blocks[b->num_blocks++].arg = index;
    v->name = u->name;
    v->block = t->data == NULL ? NULL : (char *)t->data + t->byte_offset;
    v->bytes = is_empty ? 0
                        : (size_t)product(t, 0, t->num_dims) *
                              ((size_t)t->dtype_bits * t->dtype_lanes / 8);
    return SPOPS_STATUS_OK;
}

static spops_status unpack_plan(unpacking *u, const spops_value *value, int index)
{
    spops_boxed_call *b = u->b;
    const spops_row_arg *arg = &b->row->args[index];
    const spops_plan *plan;

    if ((arg->is_output || b->asks) && value->type == SPOPS_VALUE_NONE) return SPOPS_STATUS_OK;
    if (tensor_of(value) != NULL) return unpack_block(u, value, index);
    if (value->type != SPOPS_VALUE_POINTER || arg->is_output)
        return refuse(u, type_name(value->type),
                      arg->is_output ? "NONE, or a TENSOR: a block"
                                     : "the POINTER of a plan, or a TENSOR: its block");
    plan = value->v.p;
    if (plan == NULL) return SPOPS_STATUS_OK; // the function says so
    if (spops_plan_get_kind(plan) != (spops_plan_kind)arg->plan_kind)
        return refuse(u, "a plan of another kind", b->row->op->arguments[index]->type);
    b->args[index] = plan;
    if (!u->is_placed) {
        u->is_placed = true;
        u->place->backend = plan->ctx->backend->kind;
        u->place->device = plan->ctx->info.device;
    }
    return SPOPS_STATUS_OK;
}

static spops_status unpack_comm(unpacking *u, const spops_value *value, int index)
{
    if (u->b->asks && value->type == SPOPS_VALUE_NONE) return SPOPS_STATUS_OK;
    if (value->type != SPOPS_VALUE_POINTER)
        return refuse(u, type_name(value->type), "the POINTER of a communicator");
    u->b->args[index] = value->v.p; // NULL: the function says so
    return SPOPS_STATUS_OK;
}

// What is behind an argument that was refused: others may have to hear of it.
static void note_handle(spops_boxed_call *b, const spops_value *value, int index)
{
    const spops_row_arg *arg = &b->row->args[index];
    const bool is_plan = arg->is_plan && !arg->is_output;

    if (value->type != SPOPS_VALUE_POINTER || value->v.p == NULL || !(is_plan || arg->is_comm))
        return;
    if (!is_plan || spops_plan_get_kind(value->v.p) == (spops_plan_kind)arg->plan_kind)
        b->args[index] = value->v.p;
}

// 64-bit integers, or floats, in host memory: a TENSOR, or integers in an object of tvm-ffi.
static bool list_of(const spops_value *value, bool is_float, const void **list, int64_t *count)
{
    const spops_tensor *t = tensor_of(value);
    bool is_empty;

    if (value->type == OBJECT_SHAPE && !is_float) {
        const struct {
            const int64_t *data;
            size_t size;
        } *shape = (const void *)((const char *)value->v.p + OBJECT_HEAD_BYTES);
        *list = shape->data;
        *count = (int64_t)shape->size;
        return true;
    }
    if (t == NULL || t->dtype_bits != 64 || t->dtype_code != (is_float ? 2 : 0) ||
        t->device_type != DLPACK_HOST || t->num_dims > 1 || !has_sizes(t, &is_empty) ||
        !is_compact(t, 0))
        return false;
    *list = (const char *)t->data + t->byte_offset;
    *count = product(t, 0, t->num_dims);
    return t->data != NULL && (uintptr_t)*list % sizeof(int64_t) == 0;
}

// What a block holds, beside it; NONE for a plan that is no block.
static spops_status unpack_description(unpacking *u, const spops_value *value, int index)
{
    spops_boxed_call *b = u->b;
    int64_t count = 0;

    for (int i = 0; i < b->num_blocks; ++i) {
        spops_plan_value *v = &b->blocks[i].value;
        const void *list = NULL;
        if (b->blocks[i].arg != index) continue;
        if (b->asks && value->type == SPOPS_VALUE_NONE) return SPOPS_STATUS_OK;
        if (!list_of(value, false, &list, &count) || count < 1 || count > INT32_MAX)
            return spops_fail(b->ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                              "%s: the description of %s is %s, expected a TENSOR of i64 in host "
                              "memory",
                              b->row->call, u->name, type_name(value->type));
        v->ints = list;
        v->num_ints = (int32_t)count;
        if (v->ints[0] != b->row->args[index].plan_kind)
            return refuse(u, "a plan of another kind", b->row->op->arguments[index]->type);
        return SPOPS_STATUS_OK;
    }
    if (value->type == SPOPS_VALUE_NONE) return SPOPS_STATUS_OK;
    return spops_fail(b->ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: the description of %s is %s, expected NONE for what is no block",
                      b->row->call, u->name, type_name(value->type));
}

// ---- Attributes ---------------------------------------------------------------------------------

static bool string_of(const spops_value *value, const char **s, size_t *length)
{
    const char *object = value->v.p;
    switch (value->type) {
    case SPOPS_VALUE_STRING:
        *s = value->v.s;
        *length = value->v.s == NULL ? 0 : strlen(value->v.s);
        return value->v.s != NULL;
    case VALUE_SMALL_STRING:
        *s = (const char *)&value->v;
        *length = value->reserved;
        return value->reserved <= sizeof value->v;
    case OBJECT_STRING:
        memcpy(s, object + OBJECT_HEAD_BYTES, sizeof *s);
        memcpy(length, object + OBJECT_HEAD_BYTES + sizeof *s, sizeof *length);
        return true;
    default: return false;
    }
}

// The number of a name, -1 for none.
static int number_of(const char *names, const char *s, size_t length)
{
    int number = 0;
    for (const char *w = names; *w != '\0'; ++number) {
        const size_t n = strcspn(w, " ");
        if (n == length && memcmp(w, s, n) == 0) return number;
        w += n;
        w += strspn(w, " ");
    }
    return -1;
}

static bool numbers_of(const spops_operator_argument *a, const char *s, size_t length, int64_t *to)
{
    if (a->kind == SPOPS_ARGUMENT_ENUM) {
        *to = number_of(a->values, s, length);
        return *to >= 0;
    }
    *to = 0;
    while (length > 0) { // names joined by |
        const char *bar = memchr(s, '|', length);
        const size_t n = bar == NULL ? length : (size_t)(bar - s);
        const int number = number_of(a->values, s, n);
        if (number < 0) return false;
        *to |= (int64_t)1 << number;
        s += n + (bar != NULL);
        length -= n + (bar != NULL);
    }
    return true;
}

static spops_status unpack_list(unpacking *u, const spops_value *value, int index, bool is_float)
{
    spops_boxed_call *b = u->b;
    const spops_operator_argument *a = b->row->attributes[index].row;
    const void *list = NULL;
    int64_t count = 0;

    if (value->type == SPOPS_VALUE_NONE) return SPOPS_STATUS_OK;
    b->counts[index] = 1;
    b->attributes[index].list = &b->single[index];
    if (value->type == SPOPS_VALUE_INT && !is_float) {
        b->single[index] = value->v.i;
        return SPOPS_STATUS_OK;
    }
    if (value->type == SPOPS_VALUE_FLOAT && is_float) {
        memcpy(&b->single[index], &value->v.f, sizeof value->v.f);
        return SPOPS_STATUS_OK;
    }
    if (!list_of(value, is_float, &list, &count))
        return refuse(u, type_name(value->type),
                      is_float ? "a TENSOR of f64 in host memory"
                               : "a TENSOR of i64 in host memory");
    if (count > a->count) return refuse(u, "longer", "fewer numbers");
    b->attributes[index].list = list;
    b->counts[index] = (int32_t)count;
    return SPOPS_STATUS_OK;
}

static spops_status unpack_attribute(unpacking *u, const spops_value *value, int index)
{
    spops_boxed_call *b = u->b;
    const spops_operator_argument *a = b->row->attributes[index].row;
    const bool is_int = value->type == SPOPS_VALUE_INT || value->type == SPOPS_VALUE_BOOL;
    const char *s;
    size_t length;

    switch (a->kind) {
    case SPOPS_ARGUMENT_INTS: return unpack_list(u, value, index, false);
    case SPOPS_ARGUMENT_FLOATS: return unpack_list(u, value, index, true);
    case SPOPS_ARGUMENT_FLOAT:
        if (!is_int && value->type != SPOPS_VALUE_FLOAT)
            return refuse(u, type_name(value->type), "a FLOAT");
        b->attributes[index].f = is_int ? (double)value->v.i : value->v.f;
        return SPOPS_STATUS_OK;
    default:
        if (is_int) {
            b->attributes[index].i = value->v.i;
            return SPOPS_STATUS_OK;
        }
        if (a->values == NULL) return refuse(u, type_name(value->type), "an INT");
        if (!string_of(value, &s, &length)) return refuse(u, type_name(value->type), "a name");
        if (!numbers_of(a, s, length, &b->attributes[index].i)) {
            char found[48];
            snprintf(found, sizeof found, "\"%.*s\"", (int)(length < 40 ? length : 40), s);
            return refuse(u, found, a->values);
        }
        return SPOPS_STATUS_OK;
    }
}

// ---- All of them --------------------------------------------------------------------------------

spops_status spops_values_unpack(spops_boxed_call *b, const spops_value *args, int32_t num_args,
                                 spops_call_place *place)
{
    const spops_row *row = b->row;
    unpacking u = {b, place, "args", b->ctx != NULL};
    const int32_t has_present = row->op->num_optional > 0;
    int64_t present = -1; // all have a value
    int32_t num_values = 0, num_plans = 0, at = 0, optional = 0;
    spops_status status = SPOPS_STATUS_OK;

    SPOPS_REQUIRE(b->ctx, args != NULL || num_args == 0, "%s: args is NULL", row->call);
    if (has_present && num_args > 0 && args[num_args - 1].type == SPOPS_VALUE_INT)
        present = args[num_args - 1].v.i & INT32_MAX;
    for (int i = 0; i < row->num_args; ++i) {
        num_plans += row->args[i].is_plan;
        if (!row->args[i].is_optional || present < 0 || (present >> optional & 1) != 0)
            ++num_values;
        optional += row->args[i].is_optional;
    }
    SPOPS_REQUIRE(b->ctx, num_args == num_values + num_plans + row->num_attributes + has_present,
                  "%s: num_args is %d, expected %d: arguments, descriptions, attributes%s",
                  row->call, (int)num_args,
                  (int)(num_values + num_plans + row->num_attributes + has_present),
                  has_present ? " and present" : "");
    SPOPS_REQUIRE(b->ctx,
                  !has_present || present >= 0 || args[num_args - 1].type == SPOPS_VALUE_NONE,
                  "%s: present is %s, expected an INT or NONE", row->call,
                  type_name(args[num_args - 1].type));
    optional = 0;
    for (int i = 0; i < row->num_args; ++i) {
        const spops_row_arg *arg = &row->args[i];
        const bool is_given = !arg->is_optional || present < 0 || (present >> optional & 1) != 0;
        optional += arg->is_optional;
        if (!is_given) continue;
        u.name = arg->name;
        if (arg->is_optional && present < 0 && args[at].type == SPOPS_VALUE_NONE) {
            ++at;
            continue;
        }
        if (status != SPOPS_STATUS_OK)
            note_handle(b, &args[at], i);
        else
            status = arg->is_plan   ? unpack_plan(&u, &args[at], i)
                     : arg->is_comm ? unpack_comm(&u, &args[at], i)
                                    : unpack_tensor(&u, &args[at], i);
        ++at;
    }
    SPOPS_TRY(status);
    for (int i = 0; i < row->num_args; ++i) {
        u.name = row->args[i].name;
        if (row->args[i].is_plan) SPOPS_TRY(unpack_description(&u, &args[at++], i));
    }
    for (int i = 0; i < row->num_attributes; ++i) {
        u.name = row->attributes[i].row->name;
        SPOPS_TRY(unpack_attribute(&u, &args[at++], i));
    }
    return SPOPS_STATUS_OK;
}
