// SPDX-License-Identifier: Apache-2.0
// Instructions of sm_90a that the matrix kernels are made of: barriers in shared memory, bulk copies
// that complete on them, and asynchronous products of a warpgroup (wgmma) whose operands lie in
// shared memory. Only sources compiled for compute_90a may include this.
#ifndef SPOPS_KERNELS_CORE_SM90_HOPPER_CUH
#define SPOPS_KERNELS_CORE_SM90_HOPPER_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernels/core/matrix_units.cuh"

namespace spops
{

// ---- Barriers and copies (addresses are those of shared memory) ---------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// After the last barrier_init, before the __syncthreads that lets others use them.
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive, and let the phase wait for `bytes` of bulk copies too.
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Let the phase wait for `bytes` of bulk copies too. Who does so arrives later.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// Arrive once the copies (copy_async) that this thread has begun so far are there.
__device__ __forceinline__ void barrier_arrive_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// The box of a tensor map at (x, y, z), swizzled as the map says. What lies outside is zero.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
// 16 bytes at an address of shared memory, as the block of this rank has it.
__device__ __forceinline__ float4 load_shared_of(uint32_t at, int rank)
{
    float4 v;
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
                 "}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at), "r"(rank)
                 : "memory");
    return v;
}

// A tensor map that copies will soon be made from.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Barrier `id` of the block, 1 to 15, for so many of its threads.
template <int THREADS> __device__ __forceinline__ void named_barrier_wait(int id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void named_barrier_arrive(int id)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// What ordinary stores and copy_async wrote, and a barrier ordered, becomes visible to wgmma.
__device__ __forceinline__ void fence_for_wgmma()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A warpgroup's registers a thread, which were FROM.
template <int FROM, int TO> __device__ __forceinline__ void set_registers()
{
    if constexpr (TO < FROM) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(TO));
    if constexpr (TO > FROM) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(TO));
}

// ---- Products -----------------------------------------------------------------------------------
//
// A descriptor names an operand in shared memory, stored in lines of 32, 64 or 128 bytes whose
// 16-byte pieces are swizzled within groups of 8 lines. "Along k" operands have one line a row (of
// A) or column (of B) and k along the line; "across k" operands have one line a k.
//
//     leading   across k: bytes from one line width of rows to the next; along k: unused
//     stride    bytes from a group of 8 lines to the next

enum swizzle { SWIZZLE_128 = 1, SWIZZLE_64 = 2, SWIZZLE_32 = 3 };

__host__ __device__ constexpr uint64_t descriptor(swizzle s, int leading, int stride)
{
    return (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | (uint64_t)s << 62;
}

__device__ __forceinline__ uint64_t at_address(uint64_t descriptor, uint32_t address)
{
    return descriptor | (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// After a wait: the compiler may neither read sums before it nor keep them in other registers across it.
template <int N> __device__ __forceinline__ void pin_registers(float (&sum)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile("" : "+f"(sum[i])::"memory");
}

enum operand { ALONG_K = 0, ACROSS_K = 1 };

#define SPOPS_ACC_8(d, i)                                                                          \
    "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]),  \
        "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define SPOPS_ACC_32(d, i)                                                                         \
    SPOPS_ACC_8(d, i), SPOPS_ACC_8(d, (i) + 8), SPOPS_ACC_8(d, (i) + 16), SPOPS_ACC_8(d, (i) + 24)
#define SPOPS_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SPOPS_NAMES_32                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPOPS_NAMES_48                                                                             \
    SPOPS_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                   "%47"
#define SPOPS_NAMES_64                                                                             \
    SPOPS_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                   "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
                   "%62, %63"
#define SPOPS_NAMES_128                                                                            \
    SPOPS_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
                   "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, "   \
                   "%94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "      \
                   "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "      \
                   "%119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SPOPS_SUM_32(d)  SPOPS_ACC_8(d, 0), SPOPS_ACC_8(d, 8)
#define SPOPS_SUM_64(d)  SPOPS_ACC_32(d, 0)
#define SPOPS_SUM_96(d)  SPOPS_SUM_64(d), SPOPS_ACC_8(d, 32), SPOPS_ACC_8(d, 40)
#define SPOPS_SUM_128(d) SPOPS_SUM_64(d), SPOPS_ACC_32(d, 32)
#define SPOPS_SUM_256(d) SPOPS_SUM_128(d), SPOPS_ACC_32(d, 64), SPOPS_ACC_32(d, 96)

// sum (64 x COLS) = a b, plus the sum before if `add`. K is 16 numbers of 16 bits, or 8 of tf32.
// Registers of the sum, for lane = 4 g + q of warp w: sum[4 j + 2 h + i] is row 16 w + 8 h + g,
// column 8 j + 2 q + i.
template <class T, int COLS, operand A, operand B> struct wgmma;

#define SPOPS_WGMMA_16(T, TEXT, COLS, NAMES, SUM, a_, b_, add_, ta_, tb_)                          \
    template <operand A, operand B> struct wgmma<T, COLS, A, B> {                                  \
        static __device__ __forceinline__ void run(float (&sum)[COLS / 2], uint64_t a, uint64_t b, \
                                                   int add)                                        \
        {                                                                                          \
            asm volatile("{\n"                                                                     \
                         ".reg .pred p;\n"                                                         \
                         "setp.ne.b32 p, " add_ ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #COLS "k16.f32." TEXT " {" NAMES      \
                         "}, " a_ ", " b_ ", p, 1, 1, " ta_ ", " tb_ ";\n"                         \
                         "}"                                                                       \
                         : SUM(sum)                                                                \
                         : "l"(a), "l"(b), "r"(add), "n"((int)A), "n"((int)B));                    \
        }                                                                                          \
    }
#define SPOPS_WGMMA_TF32(COLS, NAMES, SUM, a_, b_, add_)                                           \
    template <> struct wgmma<float, COLS, ALONG_K, ALONG_K> {                                      \
        static __device__ __forceinline__ void run(float (&sum)[COLS / 2], uint64_t a, uint64_t b, \
                                                   int add)                                        \
        {                                                                                          \
            asm volatile("{\n"                                                                     \
                         ".reg .pred p;\n"                                                         \
                         "setp.ne.b32 p, " add_ ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #COLS "k8.f32.tf32.tf32 {" NAMES      \
                         "}, " a_ ", " b_ ", p, 1, 1;\n"                                           \
                         "}"                                                                       \
                         : SUM(sum)                                                                \
                         : "l"(a), "l"(b), "r"(add));                                              \
        }                                                                                          \
    }
#define SPOPS_WGMMA_COLS(COLS, NAMES, SUM, a_, b_, add_, ta_, tb_)                                 \
    SPOPS_WGMMA_16(__half, "f16.f16", COLS, NAMES, SUM, a_, b_, add_, ta_, tb_);                   \
    SPOPS_WGMMA_16(__nv_bfloat16, "bf16.bf16", COLS, NAMES, SUM, a_, b_, add_, ta_, tb_);          \
    SPOPS_WGMMA_TF32(COLS, NAMES, SUM, a_, b_, add_)

SPOPS_WGMMA_COLS(32, SPOPS_NAMES_16, SPOPS_SUM_32, "%16", "%17", "%18", "%19", "%20");
SPOPS_WGMMA_COLS(64, SPOPS_NAMES_32, SPOPS_SUM_64, "%32", "%33", "%34", "%35", "%36");
SPOPS_WGMMA_COLS(96, SPOPS_NAMES_48, SPOPS_SUM_96, "%48", "%49", "%50", "%51", "%52");
SPOPS_WGMMA_COLS(128, SPOPS_NAMES_64, SPOPS_SUM_128, "%64", "%65", "%66", "%67", "%68");
SPOPS_WGMMA_COLS(256, SPOPS_NAMES_128, SPOPS_SUM_256, "%128", "%129", "%130", "%131", "%132");

#undef SPOPS_WGMMA_COLS
#undef SPOPS_WGMMA_TF32
#undef SPOPS_WGMMA_16

} // namespace spops

#endif
