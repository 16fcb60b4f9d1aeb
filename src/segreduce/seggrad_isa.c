// SPDX-License-Identifier: Apache-2.0
// The vector code of seggrad and segdot, compiled once per instruction set.
#include "segreduce/segreduce_lanes.h"

// ---- seggrad ------------------------------------------------------------------------------------

SPOPS_INLINE const char *states_of(int op, const void *states, int64_t segment, int64_t cols,
                                   int64_t col)
{
    return (const char *)states + (size_t)(segment * cols + col) * state_bytes(op);
}

// grad[c] = grad_out[segment, col + c] * d out / d v[c]
SPOPS_INLINE void term_gradients(int op, int xtype, int width, spops_matrix grad_out,
                                 const void *states, const int32_t *segment_offsets,
                                 int64_t segment, int32_t term, int64_t col, const float *v,
                                 float *grad)
{
    const int64_t count = segment_offsets != NULL
                              ? (int64_t)segment_offsets[segment + 1] - segment_offsets[segment]
                              : 0;
    float g[MAX_WIDTH];

    spops_load_lanes(xtype, width, spops_element(xtype, grad_out, segment, col), g);
    if (gradient_reads_state(op)) {
        const char *s = states_of(op, states, segment, grad_out.cols, col);
#pragma omp simd
        for (int c = 0; c < width; ++c) {
            const state a = load_state(op, s + (size_t)c * state_bytes(op));
            grad[c] = gradient(op, v[c], term, a, count) * g[c];
        }
    } else {
#pragma omp simd
        for (int c = 0; c < width; ++c)
            grad[c] = gradient(op, v[c], term, identity(op), count) * g[c];
    }
}

SPOPS_INLINE void grad_block(int op, int xtype, int width, const spops_grad_args *args,
                             int64_t out_row, int64_t begin, int64_t end, int64_t col,
                             double *partial)
{
    const weights w = weights_of(args->x, args->w);
    cursor at = cursor_at(args->lists, begin);
    const bool totals = partial != NULL || end - begin > SUM_TERMS;
    double total[MAX_WIDTH];
    float acc[MAX_WIDTH], x[MAX_WIDTH];
    int64_t p = begin;

    spops_load_lanes(xtype, width, spops_element(xtype, args->x, out_row, col), x);
    if (totals) clear_totals(width, total);
    do {
        const int64_t stop = sum_end(p, end);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            acc[c] = 0.0f;
        for (; p < stop; ++p, cursor_step(&at)) {
            const float weight = weight_at(xtype, false, &w, cursor_b(&at));
            float v[MAX_WIDTH], grad[MAX_WIDTH];
#pragma omp simd
            for (int c = 0; c < width; ++c)
                v[c] = weight * x[c];
            term_gradients(op, xtype, width, args->grad_out, args->states, args->segment_offsets,
                           cursor_a(&at), cursor_term(&at), col, v, grad);
#pragma omp simd
            for (int c = 0; c < width; ++c)
                acc[c] = spops_multiply_add(weight, grad[c], acc[c]);
        }
        if (totals) add_totals(width, acc, total);
    } while (p < end);
    if (partial != NULL) {
        memcpy(partial + col, total, (size_t)width * sizeof *total);
        return;
    }
    if (totals) round_totals(width, total, acc);
    spops_store_lanes(xtype, width, acc, (char *)spops_element(xtype, args->grad, out_row, col));
}

SPOPS_INLINE void grad_range(int op, int xtype, const spops_grad_args *args, int64_t out_row,
                             int64_t begin, int64_t end, double *partial)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) grad_block(op, xtype, width, args, out_row, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, WIDE_2, BLOCK)
#undef BLOCK
}

// ---- segdot -------------------------------------------------------------------------------------

#define DOT_WIDTH 16

// acc[c] gathers the products of columns c, c + 16, c + 32 ... of every term.
SPOPS_INLINE void dot_block(int op, int xtype, int width, const spops_grad_args *args, float weight,
                            int64_t row, int64_t segment, int32_t term, int64_t col, float *acc)
{
    float x[MAX_WIDTH], v[MAX_WIDTH], grad[MAX_WIDTH];

    spops_load_lanes(xtype, width, spops_element(xtype, args->x, row, col), x);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        v[c] = weight * x[c];
    term_gradients(op, xtype, width, args->grad_out, args->states, args->segment_offsets, segment,
                   term, col, v, grad);
#pragma omp simd
    for (int c = 0; c < width; ++c)
        acc[c] = spops_multiply_add(x[c], grad[c], acc[c]);
}

SPOPS_INLINE double dot_range(int op, int xtype, const spops_grad_args *args, int64_t out_row,
                              int64_t begin, int64_t end)
{
    const int64_t cols = args->x.cols;
    // A term adds `adds` products, or one more, to each of the 64 sums: so many terms are as many
    // products as SUM_TERMS.
    const int64_t adds = cols / (4 * DOT_WIDTH) + 1;
    const int64_t sum_terms = adds < SUM_TERMS ? SUM_TERMS / adds : 1;
    cursor at = cursor_at(args->lists, begin);
    double total[4 * DOT_WIDTH];
    float acc[4 * DOT_WIDTH];
    float weight = 1.0f;

    if (begin == end) return 0.0;
    if (args->w.data != NULL)
        weight = spops_load_1((int)args->w.dtype,
                              (const char *)args->w.data +
                                  (size_t)out_row * spops_element_bytes((int)args->w.dtype));
    const bool totals = end - begin > sum_terms;
    if (totals) clear_totals(4 * DOT_WIDTH, total);
    for (int64_t p = begin; p < end;) {
        const int64_t stop = end - p > sum_terms ? p + sum_terms : end;
#pragma omp simd
        for (int c = 0; c < 4 * DOT_WIDTH; ++c)
            acc[c] = 0.0f;
        for (; p < stop; ++p, cursor_step(&at)) {
            const int64_t row = cursor_a(&at), segment = cursor_b(&at);
            const int32_t term = cursor_term(&at);
            int64_t col = 0;
            // Four vectors at a time, so that their chains of additions run side by side.
            for (; col + 4 * DOT_WIDTH <= cols; col += 4 * DOT_WIDTH)
                dot_block(op, xtype, 4 * DOT_WIDTH, args, weight, row, segment, term, col, acc);
            for (; col + DOT_WIDTH <= cols; col += DOT_WIDTH)
                dot_block(op, xtype, DOT_WIDTH, args, weight, row, segment, term, col, acc);
            for (; col < cols; ++col)
                dot_block(op, xtype, 1, args, weight, row, segment, term, col,
                          acc + (col & (DOT_WIDTH - 1)));
        }
        if (totals) add_totals(4 * DOT_WIDTH, acc, total);
    }
#pragma omp simd
    for (int c = 0; c < 2 * DOT_WIDTH; ++c)
        total[c] = totals ? total[c] + total[c + 2 * DOT_WIDTH]
                          : (double)acc[c] + (double)acc[c + 2 * DOT_WIDTH];
    for (int half = DOT_WIDTH; half > 0; half /= 2) {
#pragma omp simd
        for (int c = 0; c < half; ++c)
            total[c] += total[c + half];
    }
    return total[0];
}

// ---- Instances ----------------------------------------------------------------------------------

#define GRAD(name, dtype)                                                                          \
    static void grad_range_##name##_##dtype(const spops_grad_args *args, int64_t out_row,          \
                                            int64_t begin, int64_t end, double *partial)           \
    {                                                                                              \
        grad_range(SPOPS_REDUCE_##name + TRACED, SPOPS_DTYPE_##dtype, args, out_row, begin, end,   \
                   partial);                                                                       \
    }                                                                                              \
    static double dot_range_##name##_##dtype(const spops_grad_args *args, int64_t out_row,         \
                                             int64_t begin, int64_t end)                           \
    {                                                                                              \
        return dot_range(SPOPS_REDUCE_##name + TRACED, SPOPS_DTYPE_##dtype, args, out_row, begin,  \
                         end);                                                                     \
    }
#define SPOPS_REDUCE_OP(name, plain, traced) GRAD(name, F32) GRAD(name, F16) GRAD(name, BF16)
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

const spops_seggrad_table SPOPS_ISA_TABLE(spops_seggrad_table) = {
    .grad_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced) [SPOPS_REDUCE_##name] = FLOATS(grad_range_##name),
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
    .dot_range =
        {
#define SPOPS_REDUCE_OP(name, plain, traced) [SPOPS_REDUCE_##name] = FLOATS(dot_range_##name),
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        },
};
