// SPDX-License-Identifier: Apache-2.0
// The vector code of mvmr and vvor on the CPU. mvmr_isa.c is compiled once per instruction set and
// exports one table each; mvmr_cpu.c chooses the table and divides the work.
//
// Products are those of small dense blocks of f32 that mvmr_cpu.c keeps on its stack: rows and
// matrices of any dtype, stride and alignment are loaded into them first.
#ifndef SPOPS_MVMR_MVMR_ISA_H
#define SPOPS_MVMR_MVMR_ISA_H

#include "core/cpu_isa.h"
#include "mvmr/mvmr.h"

#define SPOPS_MVMR_PANEL 32  // columns of sums, and of a block of a matrix
#define SPOPS_MVMR_DEPTH 128 // products in a row: input columns, or triplets
#define SPOPS_VVOR_ROWS  64  // rows of a block of vvor's sums

typedef struct spops_mvmr_table {
    // n rows of x, columns col .. col + cols - 1, times scale[r] (NULL: 1), to dst + r * stride.
    void (*load_rows)(spops_matrix x, const int32_t *rows, int64_t n, int64_t col, int64_t cols,
                      const float *scale, float *dst, int64_t stride);
    // Rows row .. row + depth - 1, columns col .. col + cols - 1 of w to dst[depth][PANEL], zeros
    // after them. Transposed, rows and columns of w change places.
    void (*load_matrix)(spops_matrix w, int64_t row, int64_t col, int64_t depth, int64_t cols,
                        bool transposed, float *dst);
    // cols columns of m's row, from col on: those of src, added to what is there if so wanted.
    void (*store_row)(spops_matrix m, int64_t row, int64_t col, int64_t cols, bool accumulate,
                      const float *src);
    // sums[to[r]][o] += sum over d < depth of a[r][d] * w[d][o], for o < cols (and some after)
    // with a [num_rows][DEPTH], w [depth][PANEL], sums [..][PANEL]. Rows in order.
    void (*multiply)(const float *a, int64_t num_rows, int64_t depth, const float *w, int64_t cols,
                     const int32_t *to, float *sums);
    // The same with a [depth][VVOR_ROWS].
    void (*multiply_columns)(const float *a, int64_t num_rows, int64_t depth, const float *w,
                             int64_t cols, const int32_t *to, float *sums);
    // sums[to[r]][o] += a[r][o] * w[o], with a [num_rows][DEPTH].
    void (*multiply_diagonal)(const float *a, int64_t num_rows, const float *w, int64_t cols,
                              const int32_t *to, float *sums);
    // sums[o] += sum over d < depth of a[d][o] * b[d][o], with a and b [depth][PANEL].
    void (*multiply_elements)(const float *a, const float *b, int64_t depth, int64_t cols,
                              float *sums);
    // Sum over o < cols of a[o] * b[o], in an order that cols alone decides.
    float (*dot)(const float *a, const float *b, int64_t cols);
} spops_mvmr_table;

SPOPS_DECLARE_ISA_TABLES(spops_mvmr_table)

#endif
