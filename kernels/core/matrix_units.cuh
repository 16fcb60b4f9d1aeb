// SPDX-License-Identifier: Apache-2.0
// Instructions of sm_80 and later: copies from memory to shared memory that a thread does not wait
// for, and products of small matrices of f16 or bf16 in shared memory, summed in f32. On older
// devices they do nothing; whoever uses them must not run there.
//
// Registers of a product (mma.m16n8k16), for lane = 4 g + q:
//     a      rows g, g + 8; columns 2 q, 2 q + 1 (+ 8)
//     b      columns (of b) g; rows 2 q, 2 q + 1 (+ 8)
//     sum    rows g, g + 8; columns 2 q, 2 q + 1
#ifndef SPOPS_KERNELS_CORE_MATRIX_UNITS_CUH
#define SPOPS_KERNELS_CORE_MATRIX_UNITS_CUH

#include "spops/device/dtypes.cuh"

namespace spops
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// 16 bytes that no kernel writes meanwhile, or zeros. Without branches.
__device__ __forceinline__ uint4 load_global_if(uint32_t wanted, const void *from)
{
    uint4 v;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %4, 0;\n"
                 "mov.b32 %0, 0;\n"
                 "mov.b32 %1, 0;\n"
                 "mov.b32 %2, 0;\n"
                 "mov.b32 %3, 0;\n"
                 "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%5];\n"
                 "}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(wanted), "l"(from));
    return v;
}

// An element of 16 bits, or 0; and into shared memory, or nothing. Without branches.
__device__ __forceinline__ uint32_t load_shared_if(uint32_t wanted, uint32_t from)
{
    uint32_t v;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b16 h;\n"
                 "setp.ne.u32 p, %1, 0;\n"
                 "mov.b16 h, 0;\n"
                 "@p ld.shared.b16 h, [%2];\n"
                 "cvt.u32.u16 %0, h;\n"
                 "}"
                 : "=r"(v)
                 : "r"(wanted), "r"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_shared_if(uint32_t wanted, uint32_t to, uint16_t v)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %0, 0;\n"
                 "@p st.shared.b16 [%1], %2;\n"
                 "}" ::"r"(wanted),
                 "r"(to), "h"(v)
                 : "memory");
}
// uint4 or int4; float4.
template <class V> __device__ __forceinline__ void store_shared4(uint32_t to, V v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void store_shared4(uint32_t to, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, uint2 v)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint32_t word)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ int32_t load_shared_word(uint32_t from)
{
    int32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}
__device__ __forceinline__ uint2 load_shared2(uint32_t from)
{
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}
template <class V = uint4> __device__ __forceinline__ V load_shared4(uint32_t from)
{
    V v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
template <> __device__ __forceinline__ float4 load_shared4<float4>(uint32_t from)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

#if __CUDA_ARCH__ >= 800
// BYTES (4, 8 or 16) from an address aligned to them; zeros, and nothing is read, where `there` is
// 0.
template <int BYTES>
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, uint32_t there)
{
    asm volatile("{\n"
                 ".reg .pred absent;\n"
                 "setp.eq.u32 absent, %3, 0;\n"
                 "cp.async.ca.shared.global [%0], [%1], %2, absent;\n"
                 "}" ::"r"(to),
                 "l"(from), "n"(BYTES), "r"(there)
                 : "memory");
}
// The first `bytes` (0 to 16) of 16, which pass the L1 by; the rest becomes zero. Aligned to 16.
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
// 16 bytes, which pass the L1 by, or zeros.
__device__ __forceinline__ void copy_async_if(uint32_t to, const void *from, bool there)
{
    asm volatile("{\n"
                 ".reg .pred absent;\n"
                 "setp.eq.u32 absent, %2, 0;\n"
                 "cp.async.cg.shared.global [%0], [%1], 16, absent;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"((uint32_t)there)
                 : "memory");
}
__device__ __forceinline__ void copy_async_wait_all()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}
// Copies since the last close form a batch; wait until at most PENDING batches are not there yet.
__device__ __forceinline__ void close_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8 x 8 matrices; lane 8 i + r says where row r of the i-th lies. The second form
// transposes each.
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&m)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(from)
                 : "memory");
}
// A matrix of 8 x 8 that a warp holds, transposed.
__device__ __forceinline__ uint32_t transposed(uint32_t m)
{
    uint32_t t;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(m));
    return t;
}
// sum += a b; sum = a b + c.
#define SPOPS_PRODUCTS(T, TEXT)                                                                    \
    __device__ __forceinline__ void add_product(T, float(&sum)[4], const uint32_t(&a)[4],          \
                                                uint32_t b0, uint32_t b1)                          \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." TEXT ".f32 {%0, %1, %2, %3}, "                \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                        \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                               \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }                                                                                              \
    __device__ __forceinline__ void product_and(T, float(&sum)[4], const uint32_t(&a)[4],          \
                                                uint32_t b0, uint32_t b1, float4 c)                \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." TEXT ".f32 {%0, %1, %2, %3}, "                \
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                                    \
            : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])                               \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y),    \
              "f"(c.z), "f"(c.w));                                                                 \
    }
SPOPS_PRODUCTS(f16, "f16.f16")
SPOPS_PRODUCTS(bf16, "bf16.bf16")
#undef SPOPS_PRODUCTS
// Of f32, of which the upper 19 bits count (tf32): mma.m16n8k8, registers as above with columns of a
// and rows of b q (+ 4).
__device__ __forceinline__ void add_product_tf32(float (&sum)[4], const uint32_t (&a)[4],
                                                 uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
template <int BYTES> __device__ __forceinline__ void copy_async(uint32_t, const void *, uint32_t) {}
__device__ __forceinline__ void copy_async(uint32_t, const void *, int) {}
__device__ __forceinline__ void copy_async_if(uint32_t, const void *, bool) {}
__device__ __forceinline__ void copy_async_wait_all() {}
__device__ __forceinline__ void close_copies() {}
template <int PENDING> __device__ __forceinline__ void wait_copies() {}
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t)
{
    m[0] = m[1] = m[2] = m[3] = 0;
}
__device__ __forceinline__ void load_transposed(uint32_t (&m)[4], uint32_t)
{
    m[0] = m[1] = m[2] = m[3] = 0;
}
__device__ __forceinline__ uint32_t transposed(uint32_t m)
{
    return m;
}
template <class T>
__device__ __forceinline__ void add_product(T, float (&)[4], const uint32_t (&)[4], uint32_t,
                                            uint32_t)
{
}
template <class T>
__device__ __forceinline__ void product_and(T, float (&)[4], const uint32_t (&)[4], uint32_t,
                                            uint32_t, float4)
{
}
__device__ __forceinline__ void add_product_tf32(float (&)[4], const uint32_t (&)[4], uint32_t,
                                                 uint32_t)
{
}
#endif

} // namespace spops

#endif
