// SPDX-License-Identifier: Apache-2.0
// Rows of any length to f32 and back, for code that is not itself compiled once per instruction set:
// spops_rows_table_of(ctx)->load(...).
#ifndef SPOPS_CORE_ROWS_ISA_H
#define SPOPS_CORE_ROWS_ISA_H

#include "core/cpu_isa.h"

typedef struct spops_rows_table {
    // n elements of a float dtype to f32 and back
    void (*load)(spops_dtype dtype, const void *src, int64_t n, float *dst);
    void (*store)(spops_dtype dtype, const float *src, int64_t n, void *dst);
    // n elements of a narrow dtype to f16, with the block scales of f4e2m1
    void (*decode)(spops_dtype dtype, const void *src, const uint8_t *scales, int64_t n,
                   uint16_t *dst);
} spops_rows_table;

SPOPS_DECLARE_ISA_TABLES(spops_rows_table)

#endif
