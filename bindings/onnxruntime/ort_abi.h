// SPDX-License-Identifier: Apache-2.0
// What this binding calls of ONNX Runtime: facts of its C interface, to which later versions only
// append. Nothing of ONNX Runtime is compiled or linked. layout.c compares them with its header, where
// that is at hand.
#ifndef SPOPS_BINDINGS_ORT_ABI_H
#define SPOPS_BINDINGS_ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { ORT_VERSION = 18 }; // that is asked for, and whose members are filled in

typedef struct ort_status ort_status;
typedef struct ort_value ort_value;
typedef struct ort_info ort_info;     // type and shape of a tensor
typedef struct ort_memory ort_memory; // where a tensor is
typedef struct ort_kernel_info ort_kernel_info;
typedef struct ort_kernel_context ort_kernel_context;
typedef struct ort_infer_context ort_infer_context;
typedef struct ort_attribute ort_attribute;
typedef struct ort_domain ort_domain;
typedef struct ort_options ort_options;
typedef struct ort_allocator ort_allocator;

// Codes of statuses.
enum { ORT_CODE_FAIL = 1, ORT_CODE_INVALID_ARGUMENT = 2, ORT_CODE_NOT_IMPLEMENTED = 9 };

// Kinds of attributes.
enum { ORT_ATTRIBUTE_STRING = 5 };

// Whether an input or output must be there.
enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1 };

// Dtypes of tensors.
enum {
    ORT_UNDEFINED = 0,
    ORT_F32 = 1,
    ORT_U8 = 2,
    ORT_I8 = 3,
    ORT_I32 = 6,
    ORT_I64 = 7,
    ORT_BOOL = 9,
    ORT_F16 = 10,
    ORT_F64 = 11,
    ORT_BF16 = 16,
    ORT_F8E4M3 = 17,
    ORT_F8E5M2 = 19,
    ORT_F4E2M1 = 23
};

// Functions of the interface by their place in its table, which holds function pointers alone.
//     ORT_CALL(name, place, parameters)     each returns an ort_status *, NULL for success
#define ORT_CALLS(ORT_CALL)                                                                        \
    ORT_CALL(CreateCustomOpDomain, 26, (const char *domain, ort_domain **out))                     \
    ORT_CALL(CustomOpDomain_Add, 27, (ort_domain * domain, const void *op))                        \
    ORT_CALL(AddCustomOpDomain, 28, (ort_options * options, ort_domain * domain))                  \
    ORT_CALL(GetTensorMutableData, 51, (ort_value * value, void **out))                            \
    ORT_CALL(CreateTensorTypeAndShapeInfo, 57, (ort_info * *out))                                  \
    ORT_CALL(SetTensorElementType, 58, (ort_info * info, int dtype))                               \
    ORT_CALL(SetDimensions, 59, (ort_info * info, const int64_t *dims, size_t num))                \
    ORT_CALL(GetTensorElementType, 60, (const ort_info *info, int *out))                           \
    ORT_CALL(GetDimensionsCount, 61, (const ort_info *info, size_t *out))                          \
    ORT_CALL(GetDimensions, 62, (const ort_info *info, int64_t *dims, size_t num))                 \
    ORT_CALL(GetTensorTypeAndShape, 65, (const ort_value *value, ort_info **out))                  \
    ORT_CALL(MemoryInfoGetId, 72, (const ort_memory *memory, int *out))                            \
    ORT_CALL(AllocatorFree, 76, (ort_allocator * allocator, void *memory))                         \
    ORT_CALL(GetAllocatorWithDefaultOptions, 78, (ort_allocator * *out))                           \
    ORT_CALL(KernelInfoGetAttribute_float, 85,                                                     \
             (const ort_kernel_info *info, const char *name, float *out))                          \
    ORT_CALL(KernelInfoGetAttribute_int64, 86,                                                     \
             (const ort_kernel_info *info, const char *name, int64_t *out))                        \
    ORT_CALL(KernelInfoGetAttribute_string, 87,                                                    \
             (const ort_kernel_info *info, const char *name, char *out, size_t *size))             \
    ORT_CALL(KernelContext_GetInputCount, 88, (const ort_kernel_context *context, size_t *out))    \
    ORT_CALL(KernelContext_GetOutputCount, 89, (const ort_kernel_context *context, size_t *out))   \
    ORT_CALL(KernelContext_GetInput, 90,                                                           \
             (const ort_kernel_context *context, size_t index, const ort_value **out))             \
    ORT_CALL(KernelContext_GetOutput, 91,                                                          \
             (ort_kernel_context * context, size_t index, const int64_t *dims, size_t num_dims,    \
              ort_value **out))                                                                    \
    ORT_CALL(KernelInfoGetAttributeArray_float, 162,                                               \
             (const ort_kernel_info *info, const char *name, float *out, size_t *size))            \
    ORT_CALL(KernelInfoGetAttributeArray_int64, 163,                                               \
             (const ort_kernel_info *info, const char *name, int64_t *out, size_t *size))          \
    ORT_CALL(KernelContext_GetGPUComputeStream, 193,                                               \
             (const ort_kernel_context *context, void **out))                                      \
    ORT_CALL(GetTensorMemoryInfo, 194, (const ort_value *value, const ort_memory **out))           \
    ORT_CALL(KernelInfoGetAttribute_tensor, 236,                                                   \
             (const ort_kernel_info *info, const char *name, ort_allocator *allocator,             \
              ort_value **out))                                                                    \
    ORT_CALL(ShapeInferContext_GetInputCount, 267,                                                 \
             (const ort_infer_context *context, size_t *out))                                      \
    ORT_CALL(ShapeInferContext_GetInputTypeShape, 268,                                             \
             (const ort_infer_context *context, size_t index, ort_info **out))                     \
    ORT_CALL(ShapeInferContext_GetAttribute, 269,                                                  \
             (const ort_infer_context *context, const char *name, const ort_attribute **out))      \
    ORT_CALL(ShapeInferContext_SetOutputTypeShape, 270,                                            \
             (const ort_infer_context *context, size_t index, const ort_info *info))               \
    ORT_CALL(SetSymbolicDimensions, 271, (ort_info * info, const char **names, size_t num))        \
    ORT_CALL(ReadOpAttr, 272,                                                                      \
             (const ort_attribute *attribute, int kind, void *data, size_t size, size_t *out))

enum { // others
    ORT_PLACE_CreateStatus = 0,
    ORT_PLACE_GetErrorMessage = 2,
    ORT_PLACE_ReleaseStatus = 93,
    ORT_PLACE_ReleaseValue = 96,
    ORT_PLACE_ReleaseTensorTypeAndShapeInfo = 99,
    ORT_PLACE_ReleaseCustomOpDomain = 101
};

#define ORT_DECLARE(name, place, parameters) ORT_PLACE_##name = place,
enum { ORT_CALLS(ORT_DECLARE) ORT_NUM_PLACES = 280 };
#undef ORT_DECLARE

typedef void (*ort_function)(void);
typedef ort_function ort_api[ORT_NUM_PLACES];

#define ORT_DECLARE(name, place, parameters) typedef ort_status *(*ort_##name)parameters;
ORT_CALLS(ORT_DECLARE)
#undef ORT_DECLARE
typedef ort_status *(*ort_CreateStatus)(int code, const char *message);
typedef const char *(*ort_GetErrorMessage)(const ort_status *status);
typedef void (*ort_ReleaseStatus)(ort_status *status);
typedef void (*ort_ReleaseValue)(ort_value *value);
typedef void (*ort_ReleaseTensorTypeAndShapeInfo)(ort_info *info);
typedef void (*ort_ReleaseCustomOpDomain)(ort_domain *domain);

// ORT(api, GetDimensions)(info, dims, num)
#define ORT(api, name) ((ort_##name)(*(api))[ORT_PLACE_##name])

typedef struct ort_api_base {
    const ort_api *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} ort_api_base;

// A custom operator, as of version 18.
typedef struct ort_custom_op ort_custom_op;
struct ort_custom_op {
    uint32_t version;
    void *(*create_kernel)(const ort_custom_op *op, const ort_api *api,
                           const ort_kernel_info *info);
    const char *(*get_name)(const ort_custom_op *op);
    const char *(*get_provider)(const ort_custom_op *op);
    int (*get_input_type)(const ort_custom_op *op, size_t index);
    size_t (*get_num_inputs)(const ort_custom_op *op);
    int (*get_output_type)(const ort_custom_op *op, size_t index);
    size_t (*get_num_outputs)(const ort_custom_op *op);
    void (*compute)(void *kernel, ort_kernel_context *context);
    void (*destroy_kernel)(void *kernel);
    int (*get_input_characteristic)(const ort_custom_op *op, size_t index);
    int (*get_output_characteristic)(const ort_custom_op *op, size_t index);
    int (*get_input_memory)(const ort_custom_op *op, size_t index);
    int (*variadic[4])(const ort_custom_op *op);
    ort_status *(*create_kernel_v2)(const ort_custom_op *op, const ort_api *api,
                                    const ort_kernel_info *info, void **kernel);
    ort_status *(*compute_v2)(void *kernel, ort_kernel_context *context);
    ort_status *(*infer_shapes)(const ort_custom_op *op, ort_infer_context *context);
    int (*get_first_version)(const ort_custom_op *op);
    int (*get_last_version)(const ort_custom_op *op);
    size_t (*get_may_inplace)(int **inputs, int **outputs);
    void (*release_may_inplace)(int *inputs, int *outputs);
    size_t (*get_alias_map)(int **inputs, int **outputs);
    void (*release_alias_map)(int *inputs, int *outputs);
};

#endif
