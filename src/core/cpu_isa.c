// SPDX-License-Identifier: Apache-2.0
// Choosing the instruction set of a context.
#include "core/cpu_isa.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "core/context.h"

// The baseline of AArch64 has vectors of its own.
#ifdef __aarch64__
static const char *const names[SPOPS_NUM_ISAS] = {"neon", "avx2", "avx512"};
#else
static const char *const names[SPOPS_NUM_ISAS] = {"baseline", "avx2", "avx512"};
#endif

const char *spops_isa_name(enum spops_cpu_isa isa)
{
    return names[isa];
}

bool spops_isa_is_built(enum spops_cpu_isa isa)
{
    static const bool built[SPOPS_NUM_ISAS] = {
#ifdef SPOPS_BUILT_baseline
        [SPOPS_ISA_BASELINE] = true,
#endif
#ifdef SPOPS_BUILT_avx2
        [SPOPS_ISA_AVX2] = true,
#endif
#ifdef SPOPS_BUILT_avx512
        [SPOPS_ISA_AVX512] = true,
#endif
    };
    return built[isa];
}

static enum spops_cpu_isa detect_isa(void)
{
#if defined(__x86_64__) || defined(__i386__)
    unsigned eax, ebx, ecx = 0, edx;
    // Not every compiler knows f16c by name; the system saves its registers where it does AVX2's.
    const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;

    __builtin_cpu_init();
    if (!has_f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return SPOPS_ISA_BASELINE;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return SPOPS_ISA_AVX512;
    }
    return SPOPS_ISA_AVX2;
#else
    return SPOPS_ISA_BASELINE;
#endif
}

spops_status spops_choose_isa(spops_context *ctx, enum spops_cpu_isa *isa)
{
    const char *wanted = getenv("SPOPS_CPU_ISA");
    int highest = (int)detect_isa(), i;

    if (wanted != NULL && wanted[0] != '\0') {
        for (i = 0; i < SPOPS_NUM_ISAS && strcmp(wanted, names[i]) != 0;)
            ++i;
        if (strcmp(wanted, "baseline") == 0) i = SPOPS_ISA_BASELINE; // whatever its name is here
        if (i == SPOPS_NUM_ISAS)
            return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                              "context_create: environment variable SPOPS_CPU_ISA is \"%.40s\", "
                              "expected baseline, avx2 or avx512",
                              wanted);
        highest = i < highest ? i : highest;
    }
    for (i = highest; i >= 0; --i) {
        *isa = (enum spops_cpu_isa)i;
        if (spops_isa_is_built(*isa)) return SPOPS_STATUS_OK;
    }
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "context_create: this build is for more than %s, which is the highest "
                      "instruction set that the processor and SPOPS_CPU_ISA allow",
                      names[highest]);
}
