// SPDX-License-Identifier: Apache-2.0
// What the persistent kernels of sm_90 share: rings of stages that gather warps fill and warpgroups
// multiply, and the registers that move between the two. Only sources compiled for compute_90a may
// include this.
#ifndef SPOPS_KERNELS_CORE_SM90_PIPELINE_CUH
#define SPOPS_KERNELS_CORE_SM90_PIPELINE_CUH

#include "kernels/core/sm90/hopper.cuh"
#include "kernels/core/swizzle.cuh"

namespace spops
{

// Stages begin where swizzled lines do. A block asks for so much more shared memory.
constexpr int stage_alignment = 1024;

__device__ __forceinline__ uint32_t aligned_shared(const void *unaligned)
{
    return (shared_address(unaligned) + stage_alignment - 1) / stage_alignment * stage_alignment;
}

// The barriers of a ring's slots, two each. `at` is an address of shared memory.
struct barrier_ring {
    static constexpr int bytes = 16; // of a slot
    uint32_t at;

    __device__ uint32_t full(int slot) const { return at + slot * bytes; }
    __device__ uint32_t empty(int slot) const { return full(slot) + 8; }
    // Those who fill a slot, and those who empty it.
    __device__ void init(int slots, int filling, int emptying) const
    {
        for (int s = 0; s < slots; ++s) {
            barrier_init(full(s), filling);
            barrier_init(empty(s), emptying);
        }
    }
};

// A place in a ring of N, and how often the ring has been gone round.
template <int N> struct ring_position {
    int at = 0;
    uint32_t round = 0;

    __device__ void advance()
    {
        if (++at == N) {
            at = 0;
            ++round;
        }
    }
    __device__ void advance_by(int steps) // at most N
    {
        at += steps;
        if (at >= N) {
            at -= N;
            ++round;
        }
    }
    __device__ uint32_t full_parity() const { return round & 1; }
    // A slot that was never filled is empty: waiting for the round before the first returns.
    __device__ uint32_t empty_parity() const { return (round & 1) ^ 1; }
};

// A warp is done with a slot; it arrives once.
__device__ __forceinline__ void release_slot(uint32_t empty, int lane)
{
    __syncwarp();
    if (lane == 0) barrier_arrive(empty);
}

// A block of GROUPS warpgroups that multiply and, after them, GATHER warps, BLOCKS of them a
// multiprocessor. What a thread begins with may move between the roles where these are whole
// warpgroups, but there is never more than the block began with, nor more than 240 for a thread.
template <int GROUPS, int GATHER, int BLOCKS> struct warp_roles {
    static constexpr int multiply_warps = 4 * GROUPS, gather_warps = GATHER;
    static constexpr int threads = 32 * (multiply_warps + gather_warps);
    static constexpr int registers = 65536 / (threads * BLOCKS) / 8 * 8; // of a thread, at launch

    // What a thread of one role has where one of the other has so many.
    static constexpr int left_to(int own_warps, int other_warps, int others)
    {
        const int left =
            (threads * registers - 32 * other_warps * others) / (32 * own_warps) / 8 * 8;
        return left < 240 ? left : 240;
    }
    static constexpr int left_to_multiply(int others)
    {
        return left_to(multiply_warps, gather_warps, others);
    }
    static constexpr int left_to_gather(int others)
    {
        return left_to(gather_warps, multiply_warps, others);
    }
};

// P has roles, a warp_roles, and whether registers move, to how many. Calls multiply(warp) or, of those
// after them, gather(warp).
template <class P, class Multiply, class Gather>
__device__ __forceinline__ void run_roles(const Multiply &multiply, const Gather &gather)
{
    typedef typename P::roles roles;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= roles::multiply_warps) {
        set_registers<roles::registers,
                      P::moves_registers ? P::gather_registers : roles::registers>();
        gather(warp - roles::multiply_warps);
    } else {
        set_registers<roles::registers,
                      P::moves_registers ? P::multiply_registers : roles::registers>();
        multiply(warp);
    }
}

} // namespace spops

#endif
