// SPDX-License-Identifier: Apache-2.0
// From a dtype at run time to a type: the one place where instances are chosen by dtype.
//
//     return with_dtype<SPOPS_DTYPES_NARROW>(q.dtype, [&](auto tag) {
//         typedef typename decltype(tag)::type Q;
//         return launch(ctx, "dequantize: launch", dequantize_kernel<Q>, grid, threads, params);
//     });
#ifndef SPOPS_KERNELS_CORE_WITH_DTYPE_CUH
#define SPOPS_KERNELS_CORE_WITH_DTYPE_CUH

#include <assert.h>

#include "core/dtypes.h"
#include "core/status.h"
#include "spops/device/dtypes.cuh"

namespace spops
{

// The device types of narrow dtypes, which kernels/core/float8.cuh defines.
#define SPOPS_DTYPE_FLOAT8(NAME, name, bits, c_type, device_type) struct device_type;
#define SPOPS_DTYPE_FLOAT4(NAME, name, bits, c_type, device_type) struct device_type;
#include "core/dtypes.def"

template <class T> struct type_tag {
    typedef T type;
};

// f(type_tag<T>()), where T is the device type of dtype, which the caller has checked to be in SET
// (bits 1 << dtype). f has instances for the dtypes of SET alone.
template <unsigned SET = SPOPS_DTYPES_FLOAT, class F>
spops_status with_dtype(spops_dtype dtype, F f)
{
    switch (dtype) {
#define SPOPS_DTYPE(NAME, name, bits, c_type, device_type)                                         \
    case SPOPS_DTYPE_##NAME:                                                                       \
        if constexpr ((SET >> SPOPS_DTYPE_##NAME & 1u) != 0)                                       \
            return f(type_tag<device_type>());                                                     \
        else                                                                                       \
            break;
#include "core/dtypes.def"
    }
    assert(!"a dtype of SET");
    return SPOPS_STATUS_NOT_SUPPORTED;
}

// The same within a kernel, where f returns nothing.
template <unsigned SET = SPOPS_DTYPES_FLOAT, class F>
__device__ __forceinline__ void with_device_dtype(int dtype, F f)
{
    switch (dtype) {
#define SPOPS_DTYPE(NAME, name, bits, c_type, device_type)                                         \
    case SPOPS_DTYPE_##NAME:                                                                       \
        if constexpr ((SET >> SPOPS_DTYPE_##NAME & 1u) != 0)                                       \
            f(type_tag<device_type>());                                                            \
        else                                                                                       \
            __builtin_unreachable();                                                               \
        break;
#include "core/dtypes.def"
    default: __builtin_unreachable();
    }
}

} // namespace spops

#endif
