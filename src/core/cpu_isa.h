// SPDX-License-Identifier: Apache-2.0
// Which vector instructions the CPU code of a context may use. Decided when the context is created:
// what the processor has, lowered by the environment variable SPOPS_CPU_ISA ("baseline", "avx2",
// "avx512") if that names less. The build may leave sets out (CMake's SPOPS_CPU_ISAS).
#ifndef SPOPS_CORE_CPU_ISA_H
#define SPOPS_CORE_CPU_ISA_H

#include <stdbool.h>
#include <stddef.h>

#include "spops/context.h"

#ifdef __cplusplus
extern "C" {
#endif

// Ascending: code for one level runs on every higher one.
enum spops_cpu_isa {
    SPOPS_ISA_BASELINE = 0,
    SPOPS_ISA_AVX2 = 1,   // avx2, fma, f16c
    SPOPS_ISA_AVX512 = 2, // the same and avx512f, bw, vl, dq
    SPOPS_NUM_ISAS = 3
};

// Of a CPU context; BASELINE for a CUDA one.
enum spops_cpu_isa spops_context_isa(const spops_context *ctx);

// *isa = the highest set that is built, that the processor has and that the environment allows.
spops_status spops_choose_isa(spops_context *ctx, enum spops_cpu_isa *isa);

const char *spops_isa_name(enum spops_cpu_isa isa);
bool spops_isa_is_built(enum spops_cpu_isa isa);

// ---- Code that is compiled once per set: CMakeLists.txt lists such sources ----------------------
//
//     // X_isa.h: what the source offers
//     typedef struct spops_x_table { void (*multiply)(...); } spops_x_table;
//     SPOPS_DECLARE_ISA_TABLES(spops_x_table)
//
//     // X_isa.c, in spops_isa_sources; all else in it is static
//     #include "core/simd_rows.h"
//     const spops_x_table SPOPS_ISA_TABLE(spops_x_table) = {multiply};
//
//     // X_cpu.c
//     spops_x_table_of(ctx)->multiply(...);

#define SPOPS_DECLARE_ISA_TABLES(type)                                                             \
    extern const type type##_baseline, type##_avx2, type##_avx512;                                 \
    static inline const type *type##_of(const spops_context *ctx)                                  \
    {                                                                                              \
        static const type *const tables[SPOPS_NUM_ISAS] = {                                        \
            SPOPS_BASELINE_OR_NULL(type), SPOPS_AVX2_OR_NULL(type), SPOPS_AVX512_OR_NULL(type)};   \
        return tables[spops_context_isa(ctx)];                                                     \
    }

// SPOPS_ISA_NAME and SPOPS_BUILT_* come from CMake: the set that a source is compiled for, and those
// that there are.
#define SPOPS_ISA_TABLE(type)        SPOPS_ISA_PASTE(type, SPOPS_ISA_NAME)
#define SPOPS_ISA_PASTE(type, isa)   SPOPS_ISA_PASTE_2(type, isa)
#define SPOPS_ISA_PASTE_2(type, isa) type##_##isa

#ifdef SPOPS_BUILT_baseline
#define SPOPS_BASELINE_OR_NULL(type) &type##_baseline
#else
#define SPOPS_BASELINE_OR_NULL(type) NULL
#endif
#ifdef SPOPS_BUILT_avx2
#define SPOPS_AVX2_OR_NULL(type) &type##_avx2
#else
#define SPOPS_AVX2_OR_NULL(type) NULL
#endif
#ifdef SPOPS_BUILT_avx512
#define SPOPS_AVX512_OR_NULL(type) &type##_avx512
#else
#define SPOPS_AVX512_OR_NULL(type) NULL
#endif

#ifdef __cplusplus
}
#endif

#endif
