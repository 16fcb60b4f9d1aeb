// SPDX-License-Identifier: Apache-2.0
// The values of a node's call, and what CUDA's driver does for it.
#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "common/node.h"

enum { DLPACK_HOST = 1 };

// DLPack's code, bits and lanes.
static const struct {
    uint8_t code, bits;
    uint16_t lanes;
} dlpack[SPOPS_NODE_NUM_DTYPES] = {
    [SPOPS_NODE_F32] = {2, 32, 1},    [SPOPS_NODE_F16] = {2, 16, 1},
    [SPOPS_NODE_BF16] = {4, 16, 1},   [SPOPS_NODE_F64] = {2, 64, 1},
    [SPOPS_NODE_F8E4M3] = {10, 8, 1}, [SPOPS_NODE_F8E5M2] = {12, 8, 1},
    [SPOPS_NODE_F4E2M1] = {17, 4, 2}, [SPOPS_NODE_I8] = {0, 8, 1},
    [SPOPS_NODE_I32] = {0, 32, 1},    [SPOPS_NODE_I64] = {0, 64, 1},
    [SPOPS_NODE_U8] = {1, 8, 1},
};

spops_node_dtype spops_node_dtype_of(const spops_tensor *t)
{
    for (int i = 0; i < SPOPS_NODE_NUM_DTYPES; ++i)
        if (dlpack[i].code == t->dtype_code && dlpack[i].bits == t->dtype_bits &&
            dlpack[i].lanes == t->dtype_lanes)
            return (spops_node_dtype)i;
    return SPOPS_NODE_NONE;
}

void spops_node_set_dtype(spops_tensor *t, spops_node_dtype dtype)
{
    t->dtype_code = dlpack[dtype].code;
    t->dtype_bits = dlpack[dtype].bits;
    t->dtype_lanes = dlpack[dtype].lanes;
}

void spops_node_call_begin(spops_node_call *c, const spops_node *node, int32_t device_type,
                           int32_t device)
{
    c->shapes.node = node;
    c->shapes.algebra = NULL;
    c->shapes.given = 0;
    c->shapes.error[0] = '\0';
    c->shapes.device_type = device_type;
    c->shapes.device = device;
    c->num_lists = c->num_values = 0;
}

void spops_node_call_tensor(spops_node_call *c, int32_t arg, void *data)
{
    const spops_node_dtype dtype = c->shapes.dtypes[arg];
    const int32_t dims = c->shapes.num_dims[arg];
    spops_tensor *t = &c->tensors[arg];

    for (int32_t i = 0; i < dims; ++i)
        c->sizes[arg][i] = c->shapes.dims[arg][i].value;
    if (dtype == SPOPS_NODE_F4E2M1 && dims > 0) c->sizes[arg][dims - 1] /= 2; // pairs
    *t = (spops_tensor){.data = data,
                        .device_type = c->shapes.device_type,
                        .device_id = c->shapes.device,
                        .num_dims = dims,
                        .shape = c->sizes[arg]};
    spops_node_set_dtype(t, dtype);
    c->shapes.given |= 1u << arg;
}

static void add(spops_node_call *c, spops_value_type type, spops_value_content content)
{
    assert(c->num_values < SPOPS_NODE_MAX_VALUES);
    c->values[c->num_values++] = (spops_value){(int32_t)type, 0, content};
}

static void add_none(spops_node_call *c)
{
    add(c, SPOPS_VALUE_NONE, (spops_value_content){.i = 0});
}

// 64-bit numbers in host memory.
static void add_list(spops_node_call *c, const spops_node_list *list, bool is_float)
{
    spops_tensor *t = &c->lists[c->num_lists];

    if (list->data == NULL || list->count == 0) {
        add_none(c);
        return;
    }
    assert(c->num_lists < SPOPS_NODE_MAX_LISTS);
    c->list_sizes[c->num_lists] = list->count;
    *t = (spops_tensor){.data = list->data,
                        .device_type = DLPACK_HOST,
                        .num_dims = 1,
                        .dtype_code = is_float ? 2 : 0,
                        .dtype_bits = 64,
                        .dtype_lanes = 1,
                        .shape = &c->list_sizes[c->num_lists++]};
    add(c, SPOPS_VALUE_TENSOR, (spops_value_content){.p = t});
}

static void add_attribute(spops_node_call *c, int32_t field)
{
    const spops_node *node = c->shapes.node;
    spops_value_content content = {.i = node->values[field]};

    switch (node->row->fields[field].attribute->kind) {
    case SPOPS_ARGUMENT_INTS: add_list(c, &node->fields[field], false); break;
    case SPOPS_ARGUMENT_FLOATS: add_list(c, &node->fields[field], true); break;
    case SPOPS_ARGUMENT_FLOAT:
        memcpy(&content.f, &node->values[field], sizeof content.f);
        add(c, SPOPS_VALUE_FLOAT, content);
        break;
    default: add(c, SPOPS_VALUE_INT, content);
    }
}

void spops_node_call_fill(spops_node_call *c)
{
    const spops_node *node = c->shapes.node;
    const spops_node_row *row = node->row;
    int64_t present = 0;
    int32_t optional = 0;

    c->num_lists = c->num_values = 0;
    for (int32_t i = 0; i < row->num_args; ++i) {
        const bool is_given = (c->shapes.given >> i & 1) != 0;
        if (spops_node_arg(row, i)->is_optional) present |= (int64_t)is_given << optional++;
        if (is_given)
            add(c, SPOPS_VALUE_TENSOR, (spops_value_content){.p = &c->tensors[i]});
        else if (!spops_node_arg(row, i)->is_optional)
            add_none(c); // the call says what is missing
    }
    for (int32_t i = 0; i < row->num_fields; ++i) { // descriptions, then attributes
        const spops_node_field *f = &row->fields[i];
        if (f->arg >= 0 && (c->shapes.given >> f->arg & 1) == 0)
            add_none(c);
        else if (f->arg >= 0)
            add_list(c, &node->fields[i], false);
        else if (f->attribute != NULL)
            add_attribute(c, i);
    }
    if (row->op->num_optional > 0) add(c, SPOPS_VALUE_INT, (spops_value_content){.i = present});
}

spops_status spops_node_call_scratch(spops_node_call *c, size_t *bytes)
{
    size_t scratch = 0;
    spops_status status;

    spops_node_call_fill(c);
    status =
        spops_call_scratch_bytes(NULL, c->shapes.node->row->op, c->values, c->num_values, &scratch);
    *bytes = status == SPOPS_STATUS_OK && scratch > 0 ? spops_context_scratch_memory(scratch) : 0;
    return status;
}

bool spops_node_call_keeps(const spops_node_call *c, int32_t arg)
{
    const spops_node *node = c->shapes.node;
    const spops_node_row *row = node->row;
    bool has_reason = false, keeps = false;

    if (!spops_node_arg(row, arg)->is_updated) return false;
    for (int32_t i = 0; i < row->op->num_inputs; ++i) {
        if (strcmp(spops_node_arg(row, i)->name, "num_rows") != 0) continue;
        has_reason = true;
        keeps |= (c->shapes.given >> i & 1) != 0;
    }
    for (int32_t i = 0; i < row->num_fields; ++i) {
        if (strcmp(row->fields[i].name, "accumulate") != 0 ||
            row->fields[i].attribute->kind == SPOPS_ARGUMENT_ENUM)
            continue;
        has_reason = true;
        keeps |= node->values[i] != 0;
    }
    return keeps || !has_reason;
}

// ---- CUDA's driver ------------------------------------------------------------------------------

static struct {
    int (*get_device)(int *);
    int (*set)(uint64_t, unsigned char, size_t, void *);
    int (*copy)(uint64_t, uint64_t, size_t, void *);
} driver;

static void find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *address;

    if (library == NULL) return;
    address = dlsym(library, "cuCtxGetDevice");
    memcpy(&driver.get_device, &address, sizeof address);
    address = dlsym(library, "cuMemsetD8Async");
    memcpy(&driver.set, &address, sizeof address);
    address = dlsym(library, "cuMemcpyDtoDAsync_v2");
    memcpy(&driver.copy, &address, sizeof address);
}

static bool has_driver(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find_driver);
    return driver.get_device != NULL && driver.set != NULL && driver.copy != NULL;
}

int32_t spops_node_cuda_device(void)
{
    int device = -1;
    if (!has_driver() || driver.get_device(&device) != 0) return -1;
    return device;
}

bool spops_node_begin_output(int32_t device_type, void *to, const void *from, size_t bytes,
                             void *stream)
{
    if (to == from || bytes == 0) return true;
    if (device_type == DLPACK_HOST) {
        if (from == NULL)
            memset(to, 0, bytes);
        else
            memmove(to, from, bytes);
        return true;
    }
    if (!has_driver()) return false;
    if (from == NULL) return driver.set((uint64_t)(uintptr_t)to, 0, bytes, stream) == 0;
    return driver.copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, stream) == 0;
}
