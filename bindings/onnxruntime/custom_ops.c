// SPDX-License-Identifier: Apache-2.0
// ONNX Runtime's custom operators from the list of operators: domain "spops", for the CPU and for CUDA
// streams. docs/onnxruntime.md says what nodes look like.
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/node.h"
#include "onnxruntime/ort_abi.h"

enum { DLPACK_HOST = 1, DLPACK_CUDA = 2, MAX_NUMBERS = 4096 };

static const char domain_name[] = "spops";
static const char cuda_provider[] = "CUDAExecutionProvider";

// A row for one provider; ONNX Runtime sees the struct that it begins with.
typedef struct custom_op {
    ort_custom_op base;
    const spops_node_row *row;
    const char *provider; // NULL: the CPU
    const ort_api *api;
} custom_op;

// A node of a session.
typedef struct kernel {
    const ort_api *api;
    spops_node *node;
    bool on_cuda;
} kernel;

// ---- Dtypes -------------------------------------------------------------------------------------

static const int ort_dtypes[SPOPS_NODE_NUM_DTYPES] = {
    [SPOPS_NODE_F32] = ORT_F32,       [SPOPS_NODE_F16] = ORT_F16,
    [SPOPS_NODE_BF16] = ORT_BF16,     [SPOPS_NODE_F64] = ORT_F64,
    [SPOPS_NODE_F8E4M3] = ORT_F8E4M3, [SPOPS_NODE_F8E5M2] = ORT_F8E5M2,
    [SPOPS_NODE_F4E2M1] = ORT_F4E2M1, [SPOPS_NODE_I8] = ORT_I8,
    [SPOPS_NODE_I32] = ORT_I32,       [SPOPS_NODE_I64] = ORT_I64,
    [SPOPS_NODE_U8] = ORT_U8,
};

static int ort_dtype(spops_node_dtype dtype)
{
    return dtype == SPOPS_NODE_NONE ? ORT_UNDEFINED : ort_dtypes[dtype];
}

static spops_node_dtype dtype_of(int ort)
{
    for (int i = 0; i < SPOPS_NODE_NUM_DTYPES; ++i)
        if (ort_dtypes[i] == ort) return (spops_node_dtype)i;
    return ort == ORT_BOOL ? SPOPS_NODE_U8 : SPOPS_NODE_NONE;
}

// ---- Statuses -----------------------------------------------------------------------------------

#define TRY(expression)                                                                            \
    do {                                                                                           \
        ort_status *const try_status = (expression);                                               \
        if (try_status != NULL) return try_status;                                                 \
    } while (0)

static ort_status *refuse(const ort_api *api, const char *message)
{
    return ORT(api, CreateStatus)(ORT_CODE_INVALID_ARGUMENT, message);
}

static ort_status *fail(const ort_api *api, spops_status status)
{
    const int code = status == SPOPS_STATUS_INVALID_ARGUMENT ? ORT_CODE_INVALID_ARGUMENT
                     : status == SPOPS_STATUS_NOT_SUPPORTED  ? ORT_CODE_NOT_IMPLEMENTED
                                                             : ORT_CODE_FAIL;
    return ORT(api, CreateStatus)(code, spops_last_error(NULL));
}

// Whether a call that may fail has been made.
static bool has(const ort_api *api, ort_status *status)
{
    if (status != NULL) ORT(api, ReleaseStatus)(status);
    return status == NULL;
}

// ---- What ONNX Runtime asks of an operator --------------------------------------------------------

static const spops_node_row *row_of(const ort_custom_op *op)
{
    return ((const custom_op *)op)->row;
}

static const char *get_name(const ort_custom_op *op)
{
    return row_of(op)->op->name;
}

static const char *get_provider(const ort_custom_op *op)
{
    return ((const custom_op *)op)->provider;
}

// Inputs of the row, then what outputs begin with.
static size_t get_num_inputs(const ort_custom_op *op)
{
    return (size_t)(row_of(op)->op->num_inputs + row_of(op)->num_begins);
}

static size_t get_num_outputs(const ort_custom_op *op)
{
    return (size_t)row_of(op)->op->num_outputs;
}

// The argument that an input is, or is the first contents of.
static int32_t arg_of_input(const spops_node_row *row, size_t index)
{
    const int32_t i = (int32_t)index;
    return i < row->op->num_inputs ? i : row->begins[i - row->op->num_inputs];
}

static int get_input_type(const ort_custom_op *op, size_t index)
{
    const spops_node_row *row = row_of(op);
    return ort_dtype(spops_node_only_dtype(row, arg_of_input(row, index)));
}

static int get_output_type(const ort_custom_op *op, size_t index)
{
    const spops_node_row *row = row_of(op);
    return ort_dtype(spops_node_only_dtype(row, row->op->num_inputs + (int32_t)index));
}

static int get_input_characteristic(const ort_custom_op *op, size_t index)
{
    const spops_node_row *row = row_of(op);
    if ((int32_t)index >= row->op->num_inputs) return ORT_OPTIONAL;
    return spops_node_arg(row, (int32_t)index)->is_optional ? ORT_OPTIONAL : ORT_REQUIRED;
}

static int get_output_characteristic(const ort_custom_op *op, size_t index)
{
    const spops_node_row *row = row_of(op);
    return spops_node_arg(row, row->op->num_inputs + (int32_t)index)->is_optional ? ORT_OPTIONAL
                                                                                  : ORT_REQUIRED;
}

static int get_input_memory(const ort_custom_op *op, size_t index)
{
    (void)op, (void)index;
    return 0; // where the provider has its tensors
}

static int get_none(const ort_custom_op *op)
{
    (void)op;
    return 0;
}

static int get_first_version(const ort_custom_op *op)
{
    (void)op;
    return 1;
}

static int get_last_version(const ort_custom_op *op)
{
    (void)op;
    return INT32_MAX;
}

// ---- Dtypes and ranks of outputs, when a model is loaded --------------------------------------------

static void infer_input(const ort_api *api, ort_infer_context *context, size_t index, int32_t arg,
                        spops_node_shapes *s)
{
    ort_info *info = NULL;
    size_t dims = 0;
    int dtype = ORT_UNDEFINED;

    if (!has(api, ORT(api, ShapeInferContext_GetInputTypeShape)(context, index, &info)) ||
        info == NULL)
        return;
    if (has(api, ORT(api, GetTensorElementType)(info, &dtype)) && dtype_of(dtype) >= 0) {
        s->dtypes[arg] = dtype_of(dtype);
        s->given |= 1u << arg;
    }
    if (has(api, ORT(api, GetDimensionsCount)(info, &dims)) && dims <= SPOPS_NODE_MAX_DIMS)
        s->num_dims[arg] = (int32_t)dims; // the context keeps info
}

// A dtype that the node itself says.
static spops_node_dtype said_dtype(const ort_api *api, const ort_infer_context *context)
{
    const ort_attribute *attribute = NULL;
    char text[32] = "";
    size_t size = 0;

    if (!has(api, ORT(api, ShapeInferContext_GetAttribute)(context, "output_dtype", &attribute)) ||
        attribute == NULL ||
        !has(api,
             ORT(api, ReadOpAttr)(attribute, ORT_ATTRIBUTE_STRING, text, sizeof text - 1, &size)))
        return SPOPS_NODE_NONE;
    for (int i = 0; i < SPOPS_NODE_NUM_DTYPES; ++i)
        if (strcmp(spops_node_dtype_name((spops_node_dtype)i), text) == 0)
            return (spops_node_dtype)i;
    return SPOPS_NODE_NONE;
}

static ort_status *infer_output(const ort_api *api, ort_infer_context *context, int32_t index,
                                spops_node_shapes *s)
{
    const int32_t arg = s->node->row->op->num_inputs + index;
    const spops_node_dtype dtype = spops_node_output_dtype(s, arg);
    const int32_t rank = spops_node_output_rank(s, arg);
    // Sizes of one name, or of none, are taken to be the same, and memory for one then serves another.
    static atomic_int num_names;
    char text[SPOPS_NODE_MAX_DIMS][32];
    const char *names[SPOPS_NODE_MAX_DIMS];
    int64_t unknown[SPOPS_NODE_MAX_DIMS];
    ort_info *info = NULL;
    ort_status *status;

    if (dtype == SPOPS_NODE_NONE) // of an output that may be absent: nobody may ask
        return spops_node_arg(s->node->row, arg)->is_optional ? NULL : refuse(api, s->error);
    for (int32_t i = 0; i < rank; ++i) {
        snprintf(text[i], sizeof text[i], "spops_%d", atomic_fetch_add(&num_names, 1));
        names[i] = text[i];
        unknown[i] = -1;
    }
    TRY(ORT(api, CreateTensorTypeAndShapeInfo)(&info));
    status = ORT(api, SetTensorElementType)(info, ort_dtype(dtype));
    if (status == NULL) status = ORT(api, SetDimensions)(info, unknown, (size_t)rank);
    if (status == NULL) status = ORT(api, SetSymbolicDimensions)(info, names, (size_t)rank);
    if (status == NULL)
        status = ORT(api, ShapeInferContext_SetOutputTypeShape)(context, (size_t)index, info);
    ORT(api, ReleaseTensorTypeAndShapeInfo)(info);
    return status;
}

static ort_status *infer_shapes(const ort_custom_op *op, ort_infer_context *context)
{
    const ort_api *api = ((const custom_op *)op)->api;
    const spops_node_row *row = row_of(op);
    spops_node *node = spops_node_create(row);
    spops_node_shapes s = {.node = node};
    size_t num = 0;
    ort_status *status = NULL;

    if (node == NULL) return ORT(api, CreateStatus)(ORT_CODE_FAIL, "spops: out of host memory");
    for (int i = 0; i < SPOPS_NODE_MAX_ARGS; ++i)
        s.dtypes[i] = SPOPS_NODE_NONE;
    status = ORT(api, ShapeInferContext_GetInputCount)(context, &num);
    for (size_t i = 0; status == NULL && i < num && (int32_t)i < row->op->num_inputs; ++i)
        infer_input(api, context, i, (int32_t)i, &s);
    node->output_dtype = said_dtype(api, context);
    for (int32_t i = 0; status == NULL && i < row->op->num_outputs; ++i)
        status = infer_output(api, context, i, &s);
    spops_node_destroy(node);
    return status;
}

// ---- Fields of a node -----------------------------------------------------------------------------

// Doubles as a tensor: ONNX's own floats have 32 bits.
static bool read_tensor(const ort_api *api, const ort_kernel_info *info, const char *name,
                        spops_node *node, int32_t field, char *error)
{
    ort_allocator *allocator = NULL;
    ort_value *value = NULL;
    ort_info *shape = NULL;
    size_t dims = 0;
    int64_t sizes[SPOPS_NODE_MAX_DIMS], count = 1;
    int dtype = ORT_UNDEFINED;
    void *data = NULL;
    bool is_good;

    if (!has(api, ORT(api, GetAllocatorWithDefaultOptions)(&allocator)) ||
        !has(api, ORT(api, KernelInfoGetAttribute_tensor)(info, name, allocator, &value)))
        return true; // not there
    is_good = has(api, ORT(api, GetTensorTypeAndShape)(value, &shape)) &&
              has(api, ORT(api, GetTensorElementType)(shape, &dtype)) &&
              has(api, ORT(api, GetDimensionsCount)(shape, &dims)) && dims <= SPOPS_NODE_MAX_DIMS &&
              has(api, ORT(api, GetDimensions)(shape, sizes, dims)) &&
              has(api, ORT(api, GetTensorMutableData)(value, &data)) &&
              (dtype == ORT_F64 || dtype == ORT_I64);
    for (size_t i = 0; is_good && i < dims; ++i)
        count *= sizes[i];
    if (!is_good || count > MAX_NUMBERS)
        snprintf(error, SPOPS_NODE_ERROR, "%s: %s is another tensor, expected one of f64 or i64",
                 node->row->op->name, name);
    else
        is_good = spops_node_set(node, field,
                                 dtype == ORT_F64 ? SPOPS_NODE_DATA_F64 : SPOPS_NODE_DATA_I64, data,
                                 (int32_t)count, error);
    if (shape != NULL) ORT(api, ReleaseTensorTypeAndShapeInfo)(shape);
    ORT(api, ReleaseValue)(value);
    return is_good && count <= MAX_NUMBERS;
}

// How many numbers an attribute has: a list, or one; 0: it is not there, or of another type.
static size_t read_ints(const ort_api *api, const ort_kernel_info *info, const char *name,
                        int64_t *to)
{
    size_t size = MAX_NUMBERS;
    if (has(api, ORT(api, KernelInfoGetAttribute_int64)(info, name, to))) return 1;
    return has(api, ORT(api, KernelInfoGetAttributeArray_int64)(info, name, to, &size)) ? size : 0;
}

static size_t read_floats(const ort_api *api, const ort_kernel_info *info, const char *name,
                          float *to)
{
    size_t size = MAX_NUMBERS;
    if (has(api, ORT(api, KernelInfoGetAttribute_float)(info, name, to))) return 1;
    return has(api, ORT(api, KernelInfoGetAttributeArray_float)(info, name, to, &size)) ? size : 0;
}

static size_t read_text(const ort_api *api, const ort_kernel_info *info, const char *name, char *to)
{
    size_t size = MAX_NUMBERS;
    return has(api, ORT(api, KernelInfoGetAttribute_string)(info, name, to, &size)) ? strlen(to)
                                                                                    : 0;
}

// numbers: [MAX_NUMBERS] to work in. false: a line in error.
static bool read_field(const ort_api *api, const ort_kernel_info *info, spops_node *node,
                       int32_t field, void *numbers, char *error)
{
    const spops_node_field *f = &node->row->fields[field];
    size_t size = 0;

    if (f->kind != SPOPS_NODE_FIELD_TEXT && (size = read_ints(api, info, f->name, numbers)) > 0)
        return spops_node_set(node, field, SPOPS_NODE_DATA_I64, numbers, (int32_t)size, error);
    if (f->kind == SPOPS_NODE_FIELD_FLOATS && (size = read_floats(api, info, f->name, numbers)) > 0)
        return spops_node_set(node, field, SPOPS_NODE_DATA_F32, numbers, (int32_t)size, error);
    if (f->kind != SPOPS_NODE_FIELD_FLOATS && (size = read_text(api, info, f->name, numbers)) > 0)
        return spops_node_set(node, field, SPOPS_NODE_DATA_TEXT, numbers, (int32_t)size, error);
    return f->kind == SPOPS_NODE_FIELD_TEXT || read_tensor(api, info, f->name, node, field, error);
}

static void destroy_kernel(void *k)
{
    if (k == NULL) return;
    spops_node_destroy(((kernel *)k)->node);
    free(k);
}

static ort_status *create_kernel(const ort_custom_op *op, const ort_api *api,
                                 const ort_kernel_info *info, void **out)
{
    const spops_node_row *row = row_of(op);
    kernel *k = (kernel *)calloc(1, sizeof *k);
    void *numbers = calloc(MAX_NUMBERS, sizeof(int64_t));
    char error[SPOPS_NODE_ERROR] = "spops: out of host memory";
    bool is_good = k != NULL && numbers != NULL;

    *out = NULL;
    if (is_good) {
        k->api = api;
        k->on_cuda = ((const custom_op *)op)->provider != NULL;
        k->node = spops_node_create(row);
        is_good = k->node != NULL;
    }
    for (int32_t i = 0; is_good && i < row->num_fields; ++i)
        is_good = read_field(api, info, k->node, i, numbers, error);
    free(numbers);
    if (!is_good) {
        destroy_kernel(k);
        return refuse(api, error);
    }
    *out = k;
    return NULL;
}

// ---- Calls ----------------------------------------------------------------------------------------

static ort_status *read_shape(const kernel *k, const ort_value *value, int32_t arg,
                              spops_node_call *c)
{
    const ort_api *api = k->api;
    spops_node_shapes *s = &c->shapes;
    int64_t sizes[SPOPS_NODE_MAX_DIMS];
    ort_info *info = NULL;
    size_t dims = 0;
    int dtype = ORT_UNDEFINED;
    ort_status *status;

    TRY(ORT(api, GetTensorTypeAndShape)(value, &info));
    status = ORT(api, GetTensorElementType)(info, &dtype);
    if (status == NULL) status = ORT(api, GetDimensionsCount)(info, &dims);
    if (status == NULL && dims > SPOPS_NODE_MAX_DIMS)
        status = refuse(api, "spops: a tensor of more than 8 dimensions");
    if (status == NULL) status = ORT(api, GetDimensions)(info, sizes, dims);
    ORT(api, ReleaseTensorTypeAndShapeInfo)(info);
    if (status != NULL) return status;
    s->dtypes[arg] = dtype_of(dtype);
    if (s->dtypes[arg] == SPOPS_NODE_NONE)
        return refuse(api, "spops: a tensor of a dtype that no operator takes");
    s->num_dims[arg] = (int32_t)dims;
    for (size_t i = 0; i < dims; ++i)
        s->dims[arg][i] = (spops_node_size){sizes[i], NULL};
    return NULL;
}

static ort_status *place(const kernel *k, const ort_kernel_context *context, const ort_value *value,
                         spops_node_call *c, void **stream)
{
    const ort_memory *memory = NULL;
    int device = 0;

    TRY(ORT(k->api, KernelContext_GetGPUComputeStream)(context, stream));
    if (value != NULL) {
        TRY(ORT(k->api, GetTensorMemoryInfo)(value, &memory));
        TRY(ORT(k->api, MemoryInfoGetId)(memory, &device));
    }
    c->shapes.device = device;
    return NULL;
}

static ort_status *add_inputs(const kernel *k, ort_kernel_context *context, spops_node_call *c,
                              void **stream)
{
    const ort_api *api = k->api;
    bool is_placed = !k->on_cuda;
    size_t num = 0;

    TRY(ORT(api, KernelContext_GetInputCount)(context, &num));
    for (int32_t i = 0; i < k->node->row->op->num_inputs && (size_t)i < num; ++i) {
        const ort_value *value = NULL;
        void *data = NULL;
        TRY(ORT(api, KernelContext_GetInput)(context, (size_t)i, &value));
        if (value == NULL) continue;
        if (!is_placed) TRY(place(k, context, value, c, stream));
        is_placed = true;
        TRY(read_shape(k, value, i, c));
        TRY(ORT(api, GetTensorMutableData)((ort_value *)(uintptr_t)value, &data));
        spops_node_call_tensor(c, i, data);
    }
    return is_placed ? NULL : place(k, context, NULL, c, stream);
}

// What output `arg` begins with: an input after those of the row, or zeros where it is left alone.
static ort_status *begin_output(const kernel *k, ort_kernel_context *context, spops_node_call *c,
                                int32_t arg, void *data, void *stream)
{
    const spops_node_row *row = k->node->row;
    const ort_value *value = NULL;
    void *from = NULL;
    size_t num = 0;
    int64_t count = 1;

    if (!spops_node_arg(row, arg)->is_updated) return NULL;
    TRY(ORT(k->api, KernelContext_GetInputCount)(context, &num));
    for (int32_t i = 0; i < row->num_begins; ++i) {
        const size_t index = (size_t)(row->op->num_inputs + i);
        if (row->begins[i] == arg && index < num)
            TRY(ORT(k->api, KernelContext_GetInput)(context, index, &value));
    }
    for (int32_t d = 0; d < c->shapes.num_dims[arg]; ++d)
        count *= c->shapes.dims[arg][d].value;
    if (value != NULL) {
        spops_node_call begin;
        int64_t has_count = 1;
        TRY(read_shape(k, value, arg, &begin));
        for (int32_t d = 0; d < begin.shapes.num_dims[arg]; ++d)
            has_count *= begin.shapes.dims[arg][d].value;
        if (has_count != count || begin.shapes.dtypes[arg] != c->shapes.dtypes[arg])
            return refuse(k->api, "spops: what an output begins with has not its size or dtype");
        TRY(ORT(k->api, GetTensorMutableData)((ort_value *)(uintptr_t)value, &from));
    } else if (!spops_node_call_keeps(c, arg)) {
        return NULL;
    }
    if (!spops_node_begin_output(c->shapes.device_type, data, from,
                                 spops_node_dtype_bytes(c->shapes.dtypes[arg], count), stream))
        return ORT(k->api, CreateStatus)(ORT_CODE_FAIL, "spops: an output could not be filled");
    return NULL;
}

static ort_status *add_outputs(const kernel *k, ort_kernel_context *context, spops_node_call *c,
                               void *stream)
{
    const spops_node_row *row = k->node->row;
    spops_node_shapes *s = &c->shapes;
    size_t num = 0;

    TRY(ORT(k->api, KernelContext_GetOutputCount)(context, &num));
    for (int32_t i = 0; i < row->op->num_outputs && (size_t)i < num; ++i) {
        const int32_t arg = row->op->num_inputs + i;
        int64_t sizes[SPOPS_NODE_MAX_DIMS];
        ort_value *value = NULL;
        void *data = NULL;
        s->dtypes[arg] = spops_node_output_dtype(s, arg);
        if (s->dtypes[arg] == SPOPS_NODE_NONE || !spops_node_output_shape(s, arg))
            return refuse(k->api, s->error);
        for (int32_t d = 0; d < s->num_dims[arg]; ++d)
            sizes[d] = s->dims[arg][d].value;
        TRY(ORT(k->api, KernelContext_GetOutput)(context, (size_t)i, sizes,
                                                 (size_t)s->num_dims[arg], &value));
        if (value == NULL) continue; // nobody wants it
        TRY(ORT(k->api, GetTensorMutableData)(value, &data));
        TRY(begin_output(k, context, c, arg, data, stream));
        spops_node_call_tensor(c, arg, data);
    }
    return NULL;
}

static ort_status *compute(void *state, ort_kernel_context *context)
{
    const kernel *k = (const kernel *)state;
    spops_node_call c;
    spops_value ret;
    spops_status status;
    void *stream = NULL;

    spops_node_call_begin(&c, k->node, k->on_cuda ? DLPACK_CUDA : DLPACK_HOST, 0);
    TRY(add_inputs(k, context, &c, &stream));
    TRY(add_outputs(k, context, &c, stream));
    spops_node_call_fill(&c);
    status = spops_call_on_stream(stream, NULL, 0, k->node->row->op, c.values, c.num_values, &ret);
    return status == SPOPS_STATUS_OK ? NULL : fail(k->api, status);
}

// ---- The library ------------------------------------------------------------------------------------

static const ort_custom_op template_op = {
    .version = ORT_VERSION,
    .get_name = get_name,
    .get_provider = get_provider,
    .get_input_type = get_input_type,
    .get_num_inputs = get_num_inputs,
    .get_output_type = get_output_type,
    .get_num_outputs = get_num_outputs,
    .destroy_kernel = destroy_kernel,
    .get_input_characteristic = get_input_characteristic,
    .get_output_characteristic = get_output_characteristic,
    .get_input_memory = get_input_memory,
    .variadic = {get_none, get_none, get_none, get_none},
    .create_kernel_v2 = create_kernel,
    .compute_v2 = compute,
    .infer_shapes = infer_shapes,
    .get_first_version = get_first_version,
    .get_last_version = get_last_version,
};

SPOPS_API ort_status *RegisterCustomOps(ort_options *options, const ort_api_base *base);

// Called for every session; operators and the domain live as long as the process, as sessions do not
// say when they end.
ort_status *RegisterCustomOps(ort_options *options, const ort_api_base *base)
{
    static const char *const providers[] = {NULL, cuda_provider};
    const int32_t num_providers = spops_has_cuda() ? 2 : 1;
    const ort_api *api = base->get_api(ORT_VERSION);
    ort_domain *domain = NULL;
    ort_status *status;
    int32_t num = 0;
    const spops_node_row *rows = spops_node_rows(&num);
    custom_op *ops;

    if (api == NULL)
        return NULL; // older than 1.18: the session says that there are no such operators
    ops = (custom_op *)calloc((size_t)(num * num_providers), sizeof *ops);
    if (ops == NULL) return ORT(api, CreateStatus)(ORT_CODE_FAIL, "spops: out of host memory");
    status = ORT(api, CreateCustomOpDomain)(domain_name, &domain);
    for (int32_t p = 0; p < num_providers; ++p) {
        for (int32_t i = 0; status == NULL && i < num; ++i) {
            custom_op *op = &ops[p * num + i];
            *op = (custom_op){template_op, &rows[i], providers[p], api};
            status = ORT(api, CustomOpDomain_Add)(domain, &op->base);
        }
    }
    if (status == NULL) status = ORT(api, AddCustomOpDomain)(options, domain);
    if (status == NULL) return NULL;
    if (domain != NULL) ORT(api, ReleaseCustomOpDomain)(domain);
    free(ops);
    return status;
}
