// SPDX-License-Identifier: Apache-2.0
// What kernels share in which a group of lanes, a power of two of them, takes a row.
#ifndef SPOPS_KERNELS_CORE_ROW_GROUPS_CUH
#define SPOPS_KERNELS_CORE_ROW_GROUPS_CUH

#include "spops/device/dtypes.cuh"

namespace spops
{

// Lanes of a group within a warp: as many as leave at most a quarter idle.
inline int lanes_log2_of(int64_t chunks)
{
    int log2 = 5;
    while (log2 > 0) {
        const int64_t rounds = (chunks + (1 << log2) - 1) >> log2;
        if (4 * chunks >= 3 * (rounds << log2)) break;
        --log2;
    }
    return log2;
}

// 16 bytes that nobody reads again.
__device__ __forceinline__ uint4 load_once(const void *p)
{
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}

// A weight that has been asked for: nothing waits for it before get. dtype is a spops_dtype; without
// weights (w null) it is 1.
struct weight_bits {
    uint32_t bits;

    __device__ __forceinline__ void load(const void *w, int dtype, int32_t i)
    {
        bits = 0x3f800000;
        if (w != nullptr && dtype == 0) bits = __ldg(static_cast<const uint32_t *>(w) + i);
        if (w != nullptr && dtype != 0) bits = __ldg(static_cast<const uint16_t *>(w) + i);
    }
    __device__ __forceinline__ float get(const void *w, int dtype) const
    {
        f16 half;
        half.bits = (uint16_t)bits;
        if (w == nullptr || dtype == 0) return __uint_as_float(bits);
        return dtype == 1 ? to_f32(half) : __uint_as_float(bits << 16);
    }
};

} // namespace spops

#endif
