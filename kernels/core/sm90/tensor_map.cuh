// SPDX-License-Identifier: Apache-2.0
// Tensor maps for box copies: descriptions of a three-dimensional array in memory, encoded by the
// driver on the host and passed to kernels by value.
#ifndef SPOPS_KERNELS_CORE_SM90_TENSOR_MAP_CUH
#define SPOPS_KERNELS_CORE_SM90_TENSOR_MAP_CUH

#include <cuda.h>

#include "kernels/core/launch.cuh"

namespace spops
{

struct box_shape {
    const void *data;           // aligned to 16 bytes
    int64_t line, lines, slabs; // numbers in a line
    int64_t stride;             // from a line to the next, numbers, 16 bytes or more; 0: line
    int box_line, box_lines;    // of one slab; box_line numbers are 32, 64 or 128 bytes
    spops_dtype dtype;
};

inline spops_status encode_tensor_map(spops_context *ctx, const box_shape &s, CUtensorMap *map)
{
    // The library does not link the driver: its functions come through the runtime.
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                               12000, cudaEnableDefault, &result);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    SPOPS_TRY(spops_cuda_status(ctx, "cuTensorMapEncodeTiled: lookup", (int)error));
    if (result != cudaDriverEntryPointSuccess)
        return spops_fail(ctx, SPOPS_STATUS_CUDA, "cuTensorMapEncodeTiled: not in this driver");
    using encode_function = CUresult (*)(
        CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
        CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    const auto encode = reinterpret_cast<encode_function>(found);

    const size_t bytes = spops_dtype_bytes(s.dtype);
    const CUtensorMapDataType type = bytes == 1                   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : s.dtype == SPOPS_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                     : s.dtype == SPOPS_DTYPE_BF16
                                         ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                         : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    const CUtensorMapSwizzle swizzle = s.box_line * bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : s.box_line * bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                  : CU_TENSOR_MAP_SWIZZLE_32B;
    const cuuint64_t sizes[3] = {(cuuint64_t)s.line, (cuuint64_t)s.lines, (cuuint64_t)s.slabs};
    const cuuint64_t stride = (cuuint64_t)(s.stride > 0 ? s.stride : s.line) * bytes;
    const cuuint64_t strides[2] = {stride, stride * (cuuint64_t)s.lines};
    const cuuint32_t box[3] = {(cuuint32_t)s.box_line, (cuuint32_t)s.box_lines, 1};
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult status =
        encode(map, type, 3, const_cast<void *>(s.data), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS)
        return spops_fail(ctx, SPOPS_STATUS_CUDA, "cuTensorMapEncodeTiled: error %d", (int)status);
    return SPOPS_STATUS_OK;
}

} // namespace spops

#endif
