// SPDX-License-Identifier: Apache-2.0
// Compares ort_abi.h with ONNX Runtime's own header, where that is at hand (ONNXRUNTIME_INCLUDE_DIR).
#include <assert.h>
#include <onnxruntime_c_api.h>
#include <stddef.h>

#include "onnxruntime/ort_abi.h"

#define SAME_PLACE(name, place, parameters)                                                        \
    static_assert(offsetof(OrtApi, name) == (place) * sizeof(ort_function), "OrtApi." #name);
#define PLACE_OF(name) SAME_PLACE(name, ORT_PLACE_##name, ())
ORT_CALLS(SAME_PLACE)
PLACE_OF(CreateStatus)
PLACE_OF(GetErrorMessage)
PLACE_OF(ReleaseStatus)
PLACE_OF(ReleaseValue)
PLACE_OF(ReleaseTensorTypeAndShapeInfo)
PLACE_OF(ReleaseCustomOpDomain)

#define SAME_MEMBER(mine, theirs)                                                                  \
    static_assert(offsetof(ort_custom_op, mine) == offsetof(struct OrtCustomOp, theirs),           \
                  "OrtCustomOp." #theirs);
SAME_MEMBER(version, version)
SAME_MEMBER(create_kernel, CreateKernel)
SAME_MEMBER(get_name, GetName)
SAME_MEMBER(get_provider, GetExecutionProviderType)
SAME_MEMBER(get_input_type, GetInputType)
SAME_MEMBER(get_num_inputs, GetInputTypeCount)
SAME_MEMBER(get_output_type, GetOutputType)
SAME_MEMBER(get_num_outputs, GetOutputTypeCount)
SAME_MEMBER(compute, KernelCompute)
SAME_MEMBER(destroy_kernel, KernelDestroy)
SAME_MEMBER(get_input_characteristic, GetInputCharacteristic)
SAME_MEMBER(get_output_characteristic, GetOutputCharacteristic)
SAME_MEMBER(get_input_memory, GetInputMemoryType)
SAME_MEMBER(variadic, GetVariadicInputMinArity)
SAME_MEMBER(create_kernel_v2, CreateKernelV2)
SAME_MEMBER(compute_v2, KernelComputeV2)
SAME_MEMBER(infer_shapes, InferOutputShapeFn)
SAME_MEMBER(get_first_version, GetStartVersion)
SAME_MEMBER(get_last_version, GetEndVersion)
SAME_MEMBER(get_may_inplace, GetMayInplace)
SAME_MEMBER(release_alias_map, ReleaseAliasMap)

#define SAME_NUMBER(mine, theirs) static_assert((int)(mine) == (int)(theirs), #theirs);
SAME_NUMBER(ORT_CODE_FAIL, ORT_FAIL)
SAME_NUMBER(ORT_CODE_INVALID_ARGUMENT, ORT_INVALID_ARGUMENT)
SAME_NUMBER(ORT_CODE_NOT_IMPLEMENTED, ORT_NOT_IMPLEMENTED)
SAME_NUMBER(ORT_REQUIRED, INPUT_OUTPUT_REQUIRED)
SAME_NUMBER(ORT_OPTIONAL, INPUT_OUTPUT_OPTIONAL)
SAME_NUMBER(ORT_ATTRIBUTE_STRING, ORT_OP_ATTR_STRING)
SAME_NUMBER(ORT_F32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
SAME_NUMBER(ORT_U8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8)
SAME_NUMBER(ORT_I8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8)
SAME_NUMBER(ORT_I32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
SAME_NUMBER(ORT_I64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64)
SAME_NUMBER(ORT_BOOL, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL)
SAME_NUMBER(ORT_F16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
SAME_NUMBER(ORT_F64, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE)
SAME_NUMBER(ORT_BF16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16)
SAME_NUMBER(ORT_F8E4M3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN)
SAME_NUMBER(ORT_F8E5M2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2)
SAME_NUMBER(ORT_F4E2M1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1)
