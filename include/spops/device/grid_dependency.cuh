// SPDX-License-Identifier: Apache-2.0
/*
 * Programmatic dependent launch: the two instructions of a kernel that may start before the one
 * before it has ended.
 */
#ifndef SPOPS_DEVICE_GRID_DEPENDENCY_CUH
#define SPOPS_DEVICE_GRID_DEPENDENCY_CUH

#include "spops/device/common.h"

namespace spops
{

// Programmatic dependent launch (sm_90 and later): a kernel launched that way may start while the
// one before it in the stream is still running. It may read what was there before both (a finished
// plan), and must call grid_dependency_wait before it touches anything else. grid_launch_dependents lets a
// kernel launched after this one start in the same way. Without that launch attribute both do
// nothing.
__device__ __forceinline__ void grid_dependency_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The same, not before `loaded` is here, which is never INT32_MIN: of what may be read while the
// kernel before is running, the assembler would otherwise put the loads after the wait.
__device__ __forceinline__ void grid_dependency_wait(int32_t loaded)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .pred here;\n\t"
                 "setp.ne.s32 here, %0, -2147483648;\n\t"
                 "@here griddepcontrol.wait;\n\t}" ::"r"(loaded)
                 : "memory");
#else
    (void)loaded;
#endif
}
__device__ __forceinline__ void grid_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} // namespace spops

#endif
