// SPDX-License-Identifier: Apache-2.0
// What the vector code of segreduce, segsum and seggrad shares. Functions are written for any
// reduction, dtype and block width; these are constants where they are inlined, so that the compiler
// sees plain loops over columns with the accumulators in vector registers.
//
//     terms of an output row        block of columns
//     row a(p) of x  * w --->  acc[0 .. width-1]  --->  out, arg, states or partial
#ifndef SPOPS_SEGREDUCE_LANES_H
#define SPOPS_SEGREDUCE_LANES_H

#include "core/simd_rows.h"

#include "segreduce/segreduce_isa.h"
#include "segreduce/segreduce_states.h"

// Columns whose accumulators fit the vector registers: one word per column, or two.
#if defined(__AVX512F__)
#define WIDE_1 128
#define WIDE_2 64
#elif defined(__AVX2__) || defined(__aarch64__)
#define WIDE_1 80
#define WIDE_2 32
#else
#define WIDE_1 32
#define WIDE_2 16
#endif

_Static_assert(sizeof(state) == SPOPS_REDUCE_STATE_BYTES_MAX, "a state is one or two words");

// ---- Terms: the numbers of a position, whether or not the lists store them ----------------------

// An array that is absent stands for the position itself: its pointer then rests on a zero, and the
// position is added. No branch per term.
typedef struct cursor {
    const int32_t *pair, *order;
    int64_t pair_step, order_step;
    int64_t pair_base, order_base;
} cursor;

static const int32_t no_pair[2] = {0, 0};

SPOPS_INLINE cursor cursor_at(const spops_lists *lists, int64_t position)
{
    const bool pairs = lists->pairs != NULL, order = lists->order != NULL;
    cursor at;
    at.pair = pairs ? lists->pairs + 2 * position : no_pair;
    at.pair_step = pairs ? 2 : 0;
    at.pair_base = pairs ? 0 : position;
    at.order = order ? lists->order + position : no_pair;
    at.order_step = order ? 1 : 0;
    at.order_base = order ? 0 : position;
    return at;
}

SPOPS_INLINE int64_t cursor_a(const cursor *at)
{
    return at->pair[0] + at->pair_base;
}
SPOPS_INLINE int64_t cursor_b(const cursor *at)
{
    return at->pair[1] + at->pair_base;
}
SPOPS_INLINE int32_t cursor_term(const cursor *at)
{
    return (int32_t)(*at->order + at->order_base);
}

SPOPS_INLINE void cursor_step(cursor *at)
{
    at->pair += at->pair_step;
    at->pair_base += at->pair_step == 0;
    at->order += at->order_step;
    at->order_base += at->order_step == 0;
}

// Weights of f32, of the rows' dtype or, where a function says `codes`, of 8 bits; absent ones are a
// one that every term reads. Which they are is asked at every term: the branch is always the same,
// and a constant in its place would double the instances and what they take to compile.
typedef struct weights {
    const char *data;
    int64_t stride; // bytes
    bool like_rows;
    const float *codes; // values of 8-bit codes, or NULL
} weights;

static const float one = 1.0f;

SPOPS_INLINE weights weights_of(spops_matrix rows, spops_matrix w)
{
    weights v = {(const char *)&one, 0, false, NULL};
    if (w.data == NULL) return v;
    v.data = (const char *)w.data;
    v.stride = (int64_t)spops_element_bytes((int)w.dtype);
    v.like_rows = w.dtype == rows.dtype;
    v.codes = spops_code_values(w.dtype);
    return v;
}

SPOPS_INLINE float weight_at(int xtype, bool codes, const weights *w, int64_t index)
{
    const char *src = w->data + index * w->stride;
    if (xtype != SPOPS_DTYPE_F32 && w->like_rows) return spops_load_1(xtype, src);
    if (codes && w->codes != NULL) return w->codes[(uint8_t)*src];
    return spops_load_1(SPOPS_DTYPE_F32, src);
}

// ---- Blocks of columns --------------------------------------------------------------------------

// Run `block(width, col)` over `cols` columns, widest blocks first: each block walks the terms
// anew. Columns left over at the end are served by a block that overlaps the one before: it writes
// the same values again, which is cheaper than a scalar tail.
#define FOR_EACH_BLOCK(cols, wide, block)                                                          \
    for (int64_t col = 0; col < (cols);) {                                                         \
        const int64_t left = (cols)-col;                                                           \
        WIDE_BLOCK(128, wide, block)                                                               \
        WIDE_BLOCK(80, wide, block)                                                                \
        WIDE_BLOCK(64, wide, block)                                                                \
        WIDE_BLOCK(48, wide, block)                                                                \
        WIDE_BLOCK(32, wide, block)                                                                \
        LAST_BLOCK(16, cols, block)                                                                \
        LAST_BLOCK(4, cols, block)                                                                 \
        LAST_BLOCK(1, cols, block)                                                                 \
    }
#define WIDE_BLOCK(width, wide, block)                                                             \
    if ((width) <= (wide) && left >= (width)) {                                                    \
        block((width), col);                                                                       \
        col += (width);                                                                            \
        continue;                                                                                  \
    }
#define LAST_BLOCK(width, cols, block)                                                             \
    if ((cols) >= (width)) {                                                                       \
        col = left >= (width) ? col : (cols) - (width);                                            \
        block((width), col);                                                                       \
        col += (width);                                                                            \
        continue;                                                                                  \
    }

#define MAX_WIDTH 128

SPOPS_INLINE int wide_of(int op)
{
    return state_bytes(op) > 4 ? WIDE_2 : WIDE_1;
}

// Accumulators of one block: the two words of each column's state apart, so that both vectorise.
typedef struct accumulators {
    float first[MAX_WIDTH];
    int32_t second[MAX_WIDTH];
} accumulators;

SPOPS_INLINE state get(const accumulators *acc, int c)
{
    state a;
    a.word.first = acc->first[c];
    a.word.second = acc->second[c];
    return a;
}

SPOPS_INLINE void put(accumulators *acc, int c, state a)
{
    acc->first[c] = a.word.first;
    acc->second[c] = a.word.second;
}

// ---- Long sums ----------------------------------------------------------------------------------

// The error of a sum does not grow with the number of its terms: rows of up to NARROW_COLS columns are
// added up in f64, wider ones SUM_TERMS at a time in f32 and the sums of these in f64. What is done
// follows from the whole width alone, so that every instruction set does the same.
#define NARROW_COLS SPOPS_NARROW_COLS
#define SUM_TERMS   64
#if defined(__GNUC__) && !defined(__clang__)
// Totals are cleared wherever they are read, which GCC does not see: clearing them for short sums
// too would cost these a tenth of their time.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// Of an op; a constant, for tables.
#define IS_SUM(op) (((op) & ~TRACED) == SPOPS_REDUCE_SUM || ((op) & ~TRACED) == SPOPS_REDUCE_MEAN)

// Bytes that a piece leaves for each column: a total, or a state.
#define PIECE_BYTES(op, state_type) (IS_SUM(op) ? sizeof(double) : sizeof(state_type))

SPOPS_INLINE bool is_sum(int op)
{
    return IS_SUM(op);
}

SPOPS_INLINE size_t piece_bytes_of(int op)
{
    return is_sum(op) ? sizeof(double) : state_bytes(op);
}

SPOPS_INLINE void clear_totals(int width, double *total)
{
#pragma omp simd
    for (int c = 0; c < width; ++c)
        total[c] = 0.0;
}

// total[c] += part[c]
SPOPS_INLINE void add_totals(int width, const float *part, double *total)
{
#pragma omp simd
    for (int c = 0; c < width; ++c)
        total[c] += (double)part[c];
}

// The totals of a piece, as its partial states lie in memory, to `total`, or added to it.
SPOPS_INLINE void load_totals(int width, const double *piece, double *total)
{
#pragma omp simd
    for (int c = 0; c < width; ++c)
        total[c] = piece[c];
}
SPOPS_INLINE void add_piece(int width, const double *piece, double *total)
{
#pragma omp simd
    for (int c = 0; c < width; ++c)
        total[c] += piece[c];
}

SPOPS_INLINE void round_totals(int width, const double *total, float *sum)
{
#pragma omp simd
    for (int c = 0; c < width; ++c)
        sum[c] = (float)total[c];
}

// Run `block(width, col)` over the columns of a narrow row.
#define FOR_EACH_NARROW_BLOCK(cols, block)                                                         \
    for (int64_t col = 0; col < (cols);) {                                                         \
        const int64_t left = (cols)-col;                                                           \
        LAST_BLOCK(4, cols, block)                                                                 \
        LAST_BLOCK(1, cols, block)                                                                 \
    }

// Totals of a block of a narrow row.
SPOPS_INLINE void add_narrow(int xtype, bool codes, int width, const spops_segreduce_args *args,
                             int64_t begin, int64_t end, int64_t col, double *total)
{
    const int64_t row_bytes = spops_row_step(args->x) * (int64_t)spops_element_bytes(xtype);
    const char *x = spops_element(xtype, args->x, 0, col);
    const weights w = weights_of(args->x, args->w);
    cursor at = cursor_at(args->lists, begin);

    clear_totals(width, total);
    for (int64_t p = begin; p < end; ++p, cursor_step(&at)) {
        const float weight = weight_at(xtype, codes, &w, cursor_b(&at));
        float v[NARROW_COLS];
        spops_load_lanes(xtype, width, x + cursor_a(&at) * row_bytes, v);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            total[c] += (double)(weight * v[c]);
    }
}

// Where the terms from p on end that are added up in f32.
SPOPS_INLINE int64_t sum_end(int64_t p, int64_t end)
{
    return end - p > SUM_TERMS ? p + SUM_TERMS : end;
}

// The instances f##_F32 ... of a table, by dtype. (A list cannot be expanded within another, so the
// dtypes stand here once more.)
#define FLOATS(f)                                                                                  \
    {                                                                                              \
        [SPOPS_DTYPE_F32] = f##_F32, [SPOPS_DTYPE_F16] = f##_F16, [SPOPS_DTYPE_BF16] = f##_BF16    \
    }
_Static_assert(SPOPS_NUM_FLOAT_DTYPES == 3, "FLOATS and what it names have every float dtype");

#endif
