// SPDX-License-Identifier: Apache-2.0
// Operators as calls of XLA: a handler of its foreign function interface. The layouts below are facts of
// that interface, version 0.3, of which later ones only append; nothing of XLA is compiled or linked.
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "call/boxed.h"
#include "call/rows.h"
#include "spops/call.h"

// ---- XLA's side -----------------------------------------------------------------------------------

enum {
    XLA_MAJOR = 0,
    XLA_MINOR = 3,
    XLA_METADATA = 1,   // kind of an extension
    XLA_ATTR_ARRAY = 1, // kinds of attributes
    XLA_ATTR_SCALAR = 3,
    XLA_ATTR_STRING = 4,
    XLA_PRED = 1, // dtypes
    XLA_S64 = 5,
    XLA_F64 = 12,
    XLA_INVALID_ARGUMENT = 3, // codes of errors
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_UNIMPLEMENTED = 12,
    XLA_INTERNAL = 13
};

typedef struct xla_extension {
    size_t struct_size;
    int32_t kind;
    struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
    size_t struct_size;
    xla_extension *extensions;
    int32_t major, minor;
} xla_version;

typedef struct xla_metadata {
    size_t struct_size;
    xla_version version;
    uint32_t traits;
} xla_metadata;

typedef struct xla_metadata_extension {
    xla_extension head;
    xla_metadata *metadata;
} xla_metadata_extension;

typedef struct xla_buffer {
    size_t struct_size;
    xla_extension *extensions;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer;

typedef struct xla_buffers {
    size_t struct_size;
    xla_extension *extensions;
    int64_t size;
    int32_t *kinds;
    void **items;
} xla_buffers;

typedef struct xla_bytes {
    const char *ptr;
    size_t length;
} xla_bytes;

typedef struct xla_scalar {
    int32_t dtype;
    const void *value;
} xla_scalar;

typedef struct xla_array {
    int32_t dtype;
    size_t size;
    const void *data;
} xla_array;

typedef struct xla_attributes { // sorted by name
    size_t struct_size;
    xla_extension *extensions;
    int64_t size;
    int32_t *kinds;
    xla_bytes **names;
    void **items;
} xla_attributes;

typedef struct xla_error_args {
    size_t struct_size;
    xla_extension *extensions;
    const char *message;
    int32_t code;
} xla_error_args;

typedef struct xla_stream_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    void *stream;
} xla_stream_args;

typedef struct xla_device_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    int32_t device;
} xla_device_args;

typedef struct xla_memory_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    size_t size, alignment;
    void *data;
} xla_memory_args;

typedef struct xla_free_args {
    size_t struct_size;
    xla_extension *extensions;
    void *context;
    size_t size;
    void *data;
} xla_free_args;

typedef struct xla_destroy_args {
    size_t struct_size;
    xla_extension *extensions;
    void *error;
} xla_destroy_args;

typedef struct xla_api {
    size_t struct_size;
    xla_extension *extensions;
    xla_version version;
    const void *internal;
    void *(*error_create)(xla_error_args *);
    void (*error_get)(void *);
    void (*error_destroy)(xla_destroy_args *);
    void *(*handler_register)(void *);
    void *(*stream_get)(xla_stream_args *);
    void *(*types[4])(void *); // types and states
    void *(*memory_allocate)(xla_memory_args *);
    void *(*memory_free)(xla_free_args *);
    void *(*between[6])(void *); // threads, futures, the run
    void *(*device_get)(xla_device_args *);
} xla_api;

typedef struct xla_frame {
    size_t struct_size;
    xla_extension *extensions;
    const xla_api *api;
    void *context;
    int32_t stage;
    xla_buffers args, rets;
    xla_attributes attributes;
} xla_frame;

// ---- The call -------------------------------------------------------------------------------------

enum {
    DLPACK_HOST = 1,
    DLPACK_CUDA = 2,
    MAX_VALUES = 2 * SPOPS_ROW_MAX_ARGS + SPOPS_ROW_MAX_ATTRIBUTES + 1
};

// One call, from XLA's frame to values.
typedef struct xla_call {
    const xla_frame *frame;
    const spops_operator *op;
    int32_t device_type, device;
    void *stream; // of the thread's other calls
    int64_t present;
    xla_array descriptions; // of each plan: how many integers, and these
    spops_tensor tensors[SPOPS_ROW_MAX_ARGS];
    spops_tensor lists[SPOPS_ROW_MAX_ARGS + SPOPS_ROW_MAX_ATTRIBUTES];
    int64_t list_sizes[SPOPS_ROW_MAX_ARGS + SPOPS_ROW_MAX_ATTRIBUTES];
    spops_value values[MAX_VALUES];
    int32_t num_tensors, num_lists, num_values;
    char error[192];
} xla_call;

static void *fail(const xla_frame *frame, int32_t code, const char *message)
{
    xla_error_args args = {sizeof args, NULL, message, code};
    return frame->api->error_create(&args);
}

static int32_t code_of(spops_status status)
{
    switch (status) {
    case SPOPS_STATUS_INVALID_ARGUMENT: return XLA_INVALID_ARGUMENT;
    case SPOPS_STATUS_OUT_OF_MEMORY: return XLA_RESOURCE_EXHAUSTED;
    case SPOPS_STATUS_NOT_SUPPORTED: return XLA_UNIMPLEMENTED;
    default: return XLA_INTERNAL;
    }
}

// The attribute of this name and kind, or NULL.
static const void *attribute(const xla_frame *frame, const char *name, int32_t kind)
{
    const xla_attributes *a = &frame->attributes;
    const size_t length = strlen(name);
    for (int64_t i = 0; i < a->size; ++i)
        if (a->names[i]->length == length && memcmp(a->names[i]->ptr, name, length) == 0)
            return a->kinds[i] == kind ? a->items[i] : NULL;
    return NULL;
}

// DLPack's code, bits and lanes of XLA's dtypes that an operator may take.
static bool set_dtype(spops_tensor *t, int32_t dtype)
{
    static const struct {
        int32_t xla;
        uint8_t code, bits;
    } dtypes[] = {{XLA_PRED, 6, 8}, {2, 0, 8},   {4, 0, 32},  {XLA_S64, 0, 64},
                  {6, 1, 8},        {10, 2, 16}, {11, 2, 32}, {12, 2, 64},
                  {16, 4, 16},      {20, 10, 8}, {19, 12, 8}};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i)
        if (dtypes[i].xla == dtype) {
            t->dtype_code = dtypes[i].code;
            t->dtype_bits = dtypes[i].bits;
            t->dtype_lanes = 1;
            return true;
        }
    return false;
}

static bool add_buffer(xla_call *c, const char *name, const xla_buffer *buffer)
{
    spops_tensor *t = &c->tensors[c->num_tensors++];
    t->data = buffer->data;
    t->device_type = c->device_type;
    t->device_id = c->device;
    t->num_dims = (int32_t)buffer->rank;
    t->shape = buffer->dims;
    c->values[c->num_values++] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = t}};
    if (set_dtype(t, buffer->dtype)) return true;
    snprintf(c->error, sizeof c->error, "%s: %s is of a dtype that no operator takes", c->op->name,
             name);
    return false;
}

// 64-bit numbers in host memory.
static void add_list(xla_call *c, const void *data, size_t size, int32_t dtype)
{
    spops_tensor *t = &c->lists[c->num_lists];
    c->list_sizes[c->num_lists] = (int64_t)size;
    t->data = (void *)(uintptr_t)data;
    t->device_type = DLPACK_HOST;
    t->num_dims = 1;
    t->shape = &c->list_sizes[c->num_lists++];
    (void)set_dtype(t, dtype);
    c->values[c->num_values++] = (spops_value){SPOPS_VALUE_TENSOR, 0, {.p = t}};
}

static void add_none(xla_call *c)
{
    c->values[c->num_values++] = (spops_value){SPOPS_VALUE_NONE, 0, {0}};
}

static void add_pointer(xla_call *c, int64_t address)
{
    void *plan = (void *)(uintptr_t)address;
    c->values[c->num_values++] = (spops_value){SPOPS_VALUE_POINTER, 0, {.p = plan}};
}

static bool is_given(const xla_call *c, const spops_operator_argument *a, int32_t *optional)
{
    return !a->is_optional || (c->present >> (*optional)++ & 1) != 0;
}

// The description of the plan that begins at `at`: how many integers, and these; or -1 and an address.
// Moves on to the next; NULL: there is none.
static const int64_t *next_description(const xla_call *c, size_t *at)
{
    const int64_t *ints = c->descriptions.data;
    const size_t left = *at < c->descriptions.size ? c->descriptions.size - *at : 0;
    const int64_t count = left == 0 ? 0 : ints[*at] == -1 ? 1 : ints[*at];
    if (left == 0 || count < 0 || (size_t)count > left - 1) return NULL;
    *at += 1 + (size_t)count;
    return &ints[*at - 1 - (size_t)count];
}

// Inputs from args, outputs from rets; what args has behind the inputs are the contents that outputs
// begin with, in the same memory.
static bool add_buffers(xla_call *c)
{
    const int32_t num = c->op->num_inputs + c->op->num_outputs;
    int64_t arg = 0, ret = 0;
    int32_t optional = 0;
    size_t at_description = 0;

    for (int32_t i = 0; i < num; ++i) {
        const spops_operator_argument *a = c->op->arguments[i];
        const bool is_input = i < c->op->num_inputs;
        const xla_buffers *from = is_input ? &c->frame->args : &c->frame->rets;
        int64_t *at = is_input ? &arg : &ret;
        const int64_t *d = NULL;
        if (a->kind == SPOPS_ARGUMENT_PLAN) {
            d = next_description(c, &at_description);
            if (d == NULL) {
                snprintf(c->error, sizeof c->error, "%s: there is no description of %s",
                         c->op->name, a->name);
                return false;
            }
        }
        if (!is_given(c, a, &optional)) continue;
        if (d != NULL && d[0] == -1) {
            add_pointer(c, d[1]);
            continue;
        }
        if (*at >= from->size) {
            snprintf(c->error, sizeof c->error, "%s: there is no buffer for %s", c->op->name,
                     a->name);
            return false;
        }
        if (!add_buffer(c, a->name, from->items[(*at)++])) return false;
    }
    return true;
}

// After the buffers, which have looked at all of them.
static void add_descriptions(xla_call *c)
{
    const int32_t num = c->op->num_inputs + c->op->num_outputs;
    size_t at = 0;

    for (int32_t i = 0; i < num; ++i) {
        if (c->op->arguments[i]->kind != SPOPS_ARGUMENT_PLAN) continue;
        const int64_t *d = next_description(c, &at);
        if (d[0] <= 0)
            add_none(c);
        else
            add_list(c, d + 1, (size_t)d[0], XLA_S64);
    }
}

static bool add_attribute(xla_call *c, const spops_operator_argument *a)
{
    const bool is_list = a->kind == SPOPS_ARGUMENT_INTS || a->kind == SPOPS_ARGUMENT_FLOATS;
    const bool is_float = a->kind == SPOPS_ARGUMENT_FLOAT || a->kind == SPOPS_ARGUMENT_FLOATS;
    const int32_t dtype = is_float ? XLA_F64 : XLA_S64;

    if (is_list) {
        const xla_array *array = attribute(c->frame, a->name, XLA_ATTR_ARRAY);
        if (array != NULL && array->dtype == dtype) {
            if (array->size == 0)
                add_none(c);
            else
                add_list(c, array->data, array->size, dtype);
            return true;
        }
    } else {
        const xla_scalar *scalar = attribute(c->frame, a->name, XLA_ATTR_SCALAR);
        spops_value *v = &c->values[c->num_values];
        if (scalar != NULL && scalar->dtype == dtype) {
            ++c->num_values;
            v->type = is_float ? SPOPS_VALUE_FLOAT : SPOPS_VALUE_INT;
            memcpy(&v->v, scalar->value, sizeof v->v);
            return true;
        }
    }
    snprintf(c->error, sizeof c->error, "%s: %s is not there as %s of 64 bits", c->op->name,
             a->name, is_list ? "an array of numbers" : "a number");
    return false;
}

static bool fill(xla_call *c)
{
    const int32_t first = c->op->num_inputs + c->op->num_outputs;

    if (!add_buffers(c)) return false;
    add_descriptions(c);
    for (int32_t i = 0; i < c->op->num_attributes; ++i)
        if (!add_attribute(c, c->op->arguments[first + i])) return false;
    if (c->op->num_optional > 0)
        c->values[c->num_values++] = (spops_value){SPOPS_VALUE_INT, 0, {.i = c->present}};
    return true;
}

// The operator, what is present, and the descriptions.
static void *read_call(xla_call *c)
{
    const xla_frame *frame = c->frame;
    const xla_bytes *name = attribute(frame, "_operator", XLA_ATTR_STRING);
    const xla_scalar *present = attribute(frame, "_present", XLA_ATTR_SCALAR);
    const xla_array *descriptions = attribute(frame, "_descriptions", XLA_ATTR_ARRAY);
    char text[64] = "";

    if (name != NULL && name->length < sizeof text) memcpy(text, name->ptr, name->length);
    c->op = spops_operator_find(text);
    if (c->op == NULL)
        return fail(frame, XLA_INVALID_ARGUMENT, "call: _operator is the name of no operator");
    if (c->op->needs_handles != 0)
        return fail(frame, XLA_INVALID_ARGUMENT,
                    "call: _operator takes handles, expected one of arrays and blocks alone");
    if (present == NULL || present->dtype != XLA_S64 || descriptions == NULL ||
        descriptions->dtype != XLA_S64)
        return fail(frame, XLA_INVALID_ARGUMENT,
                    "call: _present and _descriptions are not there as numbers of 64 bits");
    memcpy(&c->present, present->value, sizeof c->present);
    c->descriptions = *descriptions;
    return NULL;
}

static void *read_place(xla_call *c)
{
    const xla_api *api = c->frame->api;
    xla_stream_args stream = {sizeof stream, NULL, c->frame->context, NULL};
    xla_device_args device = {sizeof device, NULL, c->frame->context, 0};
    void *error = api->stream_get(&stream);

    if (error != NULL) return error;
    if (api->struct_size >= sizeof *api) error = api->device_get(&device);
    if (error != NULL) return error;
    c->device = device.device;
    c->stream = spops_call_stream(c->device);
    spops_call_set_stream(c->device, stream.stream);
    return NULL;
}

// ---- Scratch of XLA's memory ------------------------------------------------------------------------

static void drop_error(const xla_frame *frame, void *error)
{
    xla_destroy_args args = {sizeof args, NULL, error};
    if (error != NULL) frame->api->error_destroy(&args);
}

static void *lend(void *user, size_t bytes)
{
    const xla_frame *frame = user;
    xla_memory_args args = {.struct_size = sizeof args,
                            .context = frame->context,
                            .size = bytes,
                            .alignment = SPOPS_PLAN_ALIGNMENT};
    void *error = frame->api->memory_allocate(&args);
    drop_error(frame, error);
    return error == NULL ? args.data : NULL;
}

static void take_back(void *user, void *memory, size_t bytes)
{
    const xla_frame *frame = user;
    xla_free_args args = {sizeof args, NULL, frame->context, bytes, memory};
    drop_error(frame, frame->api->memory_free(&args));
}

static bool answer_metadata(const xla_frame *frame)
{
    xla_extension *e = frame->extensions;
    xla_metadata *metadata;
    if (e == NULL || e->kind != XLA_METADATA) return false;
    metadata = ((xla_metadata_extension *)(void *)e)->metadata;
    metadata->version.major = XLA_MAJOR;
    metadata->version.minor = XLA_MINOR;
    metadata->traits = 0;
    return true;
}

static void *run(xla_call *c)
{
    const spops_lender xla = {(void *)(uintptr_t)c->frame, lend, take_back};
    const bool lends =
        c->device_type == DLPACK_CUDA && c->frame->api->struct_size >= offsetof(xla_api, between);
    spops_value ret;
    spops_status status;

    if (!fill(c)) return fail(c->frame, XLA_INVALID_ARGUMENT, c->error);
    assert(c->num_values <= MAX_VALUES);
    status = spops_call_lent(lends ? &xla : NULL, c->op, c->values, c->num_values, &ret);
    if (status == SPOPS_STATUS_OK) return NULL;
    return fail(c->frame, code_of(status), spops_last_error(NULL));
}

static void *handle(const xla_frame *frame, int32_t device_type)
{
    void *error;

    if (answer_metadata(frame)) return NULL;
    xla_call c = {.frame = frame, .device_type = device_type};
    error = read_call(&c);
    if (error == NULL && device_type == DLPACK_CUDA) error = read_place(&c);
    if (error != NULL) return error;
    error = run(&c);
    // XLA runs programs in the thread that asks for them, too: its calls of others are not on XLA's stream.
    if (device_type == DLPACK_CUDA) spops_call_set_stream(c.device, c.stream);
    return error;
}

void *spops_call_xla_host(void *call_frame)
{
    return handle(call_frame, DLPACK_HOST);
}

void *spops_call_xla_cuda(void *call_frame)
{
    return handle(call_frame, DLPACK_CUDA);
}
