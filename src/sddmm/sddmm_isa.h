// SPDX-License-Identifier: Apache-2.0
// The vector code of SDDMM and SpMM (sddmm_isa.c), compiled once per instruction set.
#ifndef SPOPS_SDDMM_SDDMM_ISA_H
#define SPOPS_SDDMM_SDDMM_ISA_H

#include "core/cpu_isa.h"
#include "core/dtypes.h"
#include "sddmm/sddmm_args.h"

typedef struct spops_sddmm_table {
    // Positions begin .. end - 1, all of one segment.
    void (*dots[SPOPS_NUM_FLOAT_DTYPES])(const spops_sddmm_args *args, int64_t segment,
                                         int64_t begin, int64_t end);
    // A segment, or a piece of one, whose sums go to partial.
    void (*sums[SPOPS_NUM_FLOAT_DTYPES])(const spops_spmm_args *args, int64_t segment,
                                         int64_t begin, int64_t end, double *partial);
} spops_sddmm_table;

SPOPS_DECLARE_ISA_TABLES(spops_sddmm_table)

#endif
