// SPDX-License-Identifier: Apache-2.0
// Asynchronous products of a warpgroup (wgmma) whose left operand lies in registers. Only sources
// compiled for compute_90a may include this.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH

#include "kernels/core/sm90/pipeline.cuh"

namespace spops
{

// sum (64 x COLS) = a b, plus the sum before if `add`. a: 64 x 16, in registers as mma.m16n8k16 has
// them (a warp has 16 rows); b as in hopper.cuh.
template <class T, int COLS, operand B> struct wgmma_left;

#define SPOPS_ATTENTION_SUM_16(d) SPOPS_ACC_8(d, 0)
#define SPOPS_ATTENTION_SUM_48(d) SPOPS_ACC_8(d, 0), SPOPS_ACC_8(d, 8), SPOPS_ACC_8(d, 16)
#define SPOPS_ATTENTION_SUM_96(d) SPOPS_ACC_32(d, 0), SPOPS_ACC_8(d, 32), SPOPS_ACC_8(d, 40)
#define SPOPS_ATTENTION_NAMES_8   "%0, %1, %2, %3, %4, %5, %6, %7"
#define SPOPS_ATTENTION_NAMES_24  SPOPS_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SPOPS_ATTENTION_NAMES_48                                                                   \
    SPOPS_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                   "%47"

#define SPOPS_WGMMA_LEFT(T, TEXT, COLS, NAMES, SUM, a_, b_, add_, tb_)                             \
    template <operand B> struct wgmma_left<T, COLS, B> {                                           \
        static __device__ __forceinline__ void run(float (&sum)[COLS / 2], const uint32_t (&a)[4], \
                                                   uint64_t b, int add)                            \
        {                                                                                          \
            asm volatile("{\n"                                                                     \
                         ".reg .pred p;\n"                                                         \
                         "setp.ne.b32 p, " add_ ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #COLS "k16.f32." TEXT " {" NAMES      \
                         "}, " a_ ", " b_ ", p, 1, 1, " tb_ ";\n"                                  \
                         "}"                                                                       \
                         : SUM(sum)                                                                \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),           \
                           "n"((int)B));                                                           \
        }                                                                                          \
    }
#define SPOPS_WGMMA_LEFT_COLS(COLS, NAMES, SUM, a_, b_, add_, tb_)                                 \
    SPOPS_WGMMA_LEFT(__half, "f16.f16", COLS, NAMES, SUM, a_, b_, add_, tb_);                      \
    SPOPS_WGMMA_LEFT(__nv_bfloat16, "bf16.bf16", COLS, NAMES, SUM, a_, b_, add_, tb_)

SPOPS_WGMMA_LEFT_COLS(16, SPOPS_ATTENTION_NAMES_8, SPOPS_ATTENTION_SUM_16, "{%8, %9, %10, %11}",
                      "%12", "%13", "%14");
SPOPS_WGMMA_LEFT_COLS(32, SPOPS_NAMES_16, SPOPS_SUM_32, "{%16, %17, %18, %19}", "%20", "%21",
                      "%22");
SPOPS_WGMMA_LEFT_COLS(48, SPOPS_ATTENTION_NAMES_24, SPOPS_ATTENTION_SUM_48, "{%24, %25, %26, %27}",
                      "%28", "%29", "%30");
SPOPS_WGMMA_LEFT_COLS(64, SPOPS_NAMES_32, SPOPS_SUM_64, "{%32, %33, %34, %35}", "%36", "%37",
                      "%38");
SPOPS_WGMMA_LEFT_COLS(96, SPOPS_ATTENTION_NAMES_48, SPOPS_ATTENTION_SUM_96, "{%48, %49, %50, %51}",
                      "%52", "%53", "%54");
SPOPS_WGMMA_LEFT_COLS(128, SPOPS_NAMES_64, SPOPS_SUM_128, "{%64, %65, %66, %67}", "%68", "%69",
                      "%70");
SPOPS_WGMMA_LEFT_COLS(256, SPOPS_NAMES_128, SPOPS_SUM_256, "{%128, %129, %130, %131}", "%132",
                      "%133", "%134");

#undef SPOPS_WGMMA_LEFT_COLS
#undef SPOPS_WGMMA_LEFT

} // namespace spops

#endif
