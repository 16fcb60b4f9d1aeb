// SPDX-License-Identifier: Apache-2.0
// Blocks of a cluster, which reach each other's shared memory. Only sources compiled for compute_90a may
// include this.
#ifndef SPOPS_KERNELS_CORE_SM90_CLUSTER_CUH
#define SPOPS_KERNELS_CORE_SM90_CLUSTER_CUH

#include "kernels/core/sm90/hopper.cuh"

namespace spops
{

// Where block `rank` of the cluster has what this block has at `address`.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, int rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// 16 bytes, and so many on the barrier; both in one block, by addresses of the cluster. As numbers of f32: as
// words the compiler would keep sums as words, and move them while products that make them run.
__device__ __forceinline__ void cluster_store(uint32_t to, float4 v, uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void cluster_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void cluster_barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_wait_for_all()
{
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
}

} // namespace spops

#endif
