// SPDX-License-Identifier: Apache-2.0
// The vector code of mvmr and vvor on the CPU. mvmr_isa.c is compiled once per instruction set and
// exports one table each; mvmr_cpu.c and vvor_cpu.c choose the table and divide the work.
//
// Products are those of small dense blocks of f32 that both keep on their stacks: rows and
// matrices of any dtype, stride and alignment are loaded into them first.
#ifndef SPOPS_MVMR_MVMR_ISA_H
#define SPOPS_MVMR_MVMR_ISA_H

#include <string.h>

#include "core/cpu_isa.h"
#include "mvmr/mvmr.h"

#define SPOPS_MVMR_PANEL 32  // columns of sums, and of a block of a matrix
#define SPOPS_MVMR_DEPTH 128 // products in a row: input columns, or triplets
#define SPOPS_VVOR_ROWS  64  // rows of a block of vvor's sums

// Rows that are gathered at once: with a block of a matrix they fit the L1 cache.
#define SPOPS_MVMR_BATCH 48
// Panels that gathered rows are multiplied with. On an AMD EPYC (Zen 5) gathering 48 rows takes an
// eighth of the time of one product with a panel.
#define SPOPS_MVMR_TOGETHER 4

// Zeros where sums are made: `cols` columns of num_rows rows, the first at `sums`.
static inline void spops_zero_sums(float *sums, int64_t num_rows, int64_t cols, int64_t step)
{
    if (cols == step) {
        memset(sums, 0, (size_t)(num_rows * step) * sizeof *sums);
        return;
    }
    for (int64_t r = 0; r < num_rows; ++r)
        memset(sums + r * step, 0, (size_t)cols * sizeof *sums);
}

// What is fetched while products are computed, for those after them: lines of rows, in parts of
// SPOPS_AHEAD_PART rows each, of which every block of products takes one line a row.
#define SPOPS_AHEAD_PART  (SPOPS_MVMR_DEPTH / 2)
#define SPOPS_AHEAD_PARTS 4
typedef struct spops_ahead {
    const char *rows[SPOPS_AHEAD_PARTS][SPOPS_AHEAD_PART];
    int32_t lines[SPOPS_AHEAD_PARTS];
    int32_t num_parts;
    int32_t part, line; // what comes next
} spops_ahead;

// Nothing to fetch yet.
static inline void spops_ahead_clear(spops_ahead *ahead)
{
    ahead->num_parts = ahead->part = ahead->line = 0;
}

// Whether a row of `in` numbers that gives `out` sums is worth it: of fewer, listing what comes next took
// longer than waiting for it (32 to 32 columns: a tenth).
static inline bool spops_ahead_pays(int64_t in, int64_t out)
{
    return in * out >= 4096;
}

// Add rows of x, columns col .. col + cols - 1; at most as many as the parts that are left hold.
void spops_ahead_add(spops_ahead *ahead, spops_matrix x, const int32_t *rows, int64_t n,
                     int64_t col, int64_t cols);

typedef struct spops_mvmr_table {
    // n rows of x, columns col .. col + cols - 1, times scale[r] (NULL: 1), to blocks of `width`
    // columns: column c of row r to dst[c / width][r][c % width], [blocks][DEPTH][width].
    void (*load_rows)(spops_matrix x, const int32_t *rows, int64_t n, int64_t col, int64_t cols,
                      const float *scale, float *dst, int64_t width);
    // Rows row .. row + depth - 1, columns col .. col + cols - 1 of w to panels, dst
    // [panels][DEPTH][PANEL], with zeros after the last column. Transposed, rows and columns of w
    // change places.
    void (*load_matrix)(spops_matrix w, int64_t row, int64_t col, int64_t depth, int64_t cols,
                        bool transposed, float *dst);
    // cols columns of m's row, from col on: those of src, added to what is there if so wanted.
    void (*store_row)(spops_matrix m, int64_t row, int64_t col, int64_t cols, bool accumulate,
                      const float *src);
    // sums[to[r]][o] += sum over d < depth of a[r][d] * w[d][o], for o < cols (and to a multiple of
    // 16), with a [num_rows][DEPTH], w [depth][PANEL], sums [..][sums_step]. Rows in order; to
    // NULL: row r to row r. ahead: what to fetch, or NULL.
    void (*multiply)(const float *a, int64_t num_rows, int64_t depth, const float *w, int64_t cols,
                     const int32_t *to, float *sums, int64_t sums_step, spops_ahead *ahead);
    // The same with a [depth][VVOR_ROWS], row r to row r.
    void (*multiply_columns)(const float *a, int64_t num_rows, int64_t depth, const float *w,
                             int64_t cols, float *sums, int64_t sums_step, spops_ahead *ahead);
    // sums[to[r]][o] += a[r][o] * w[o], with a [num_rows][DEPTH].
    void (*multiply_diagonal)(const float *a, int64_t num_rows, const float *w, int64_t cols,
                              const int32_t *to, float *sums, int64_t sums_step);
    // sums[o] += sum over d < depth of a[d][o] * b[d][o], with a and b [depth][PANEL].
    void (*multiply_elements)(const float *a, const float *b, int64_t depth, int64_t cols,
                              float *sums);
    // Sum over o < cols of a[o] * b[o], in an order that cols alone decides.
    float (*dot)(const float *a, const float *b, int64_t cols);
} spops_mvmr_table;

SPOPS_DECLARE_ISA_TABLES(spops_mvmr_table)

#endif
