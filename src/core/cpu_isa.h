// Which vector instructions the CPU code of a context may use. Decided when the context is created:
// what the processor has, lowered by the environment variable SPOPS_CPU_ISA ("baseline", "avx2",
// "avx512") if that names less.
#ifndef SPOPS_CORE_CPU_ISA_H
#define SPOPS_CORE_CPU_ISA_H

#include "spops/context.h"

#ifdef __cplusplus
extern "C" {
#endif

// Ascending: code for one level runs on every higher one.
enum spops_cpu_isa {
    SPOPS_ISA_BASELINE = 0,
    SPOPS_ISA_AVX2 = 1,  // avx2, fma, f16c
    SPOPS_ISA_AVX512 = 2 // the same and avx512f, bw, vl, dq
};

// Of a CPU context; BASELINE for a CUDA one.
enum spops_cpu_isa spops_context_isa(const spops_context *ctx);

#ifdef __cplusplus
}
#endif

#endif
