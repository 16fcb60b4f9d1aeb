// SPDX-License-Identifier: Apache-2.0
// Reductions of rows of f64, in f64: the ops of spops/device/reduce_ops.h once more, compiled once.
#define SPOPS_REDUCE_REAL double
#include "segreduce/segreduce_states.h"

#include "core/rows_f64.h"
#include "segments/segments.h"
#include "segreduce/segreduce_isa.h"

#define BLOCK 64 // columns whose states are kept at once

_Static_assert(sizeof(state) == SPOPS_STATE_BYTES_F64, "what scratch has for each column");

static int block_of(int64_t cols, int64_t col)
{
    return (int)(cols - col < BLOCK ? cols - col : BLOCK);
}

SPOPS_INLINE void finish(int op, const spops_segreduce_args *args, int64_t out_row, int64_t col,
                         int n, int64_t count, const state *acc)
{
    if (args->out.data != NULL) {
        double *out = spops_row_f64(args->out, out_row) + col;
        for (int c = 0; c < n; ++c)
            out[c] = finalize(op, acc[c], count);
    }
    if (has_arg(op) && args->arg.data != NULL) {
        int32_t *arg = (int32_t *)args->arg.data + out_row * args->arg.row_stride + col;
        for (int c = 0; c < n; ++c)
            arg[c] = winner(op, acc[c]);
    }
    if (gradient_reads_state(op) && args->states != NULL)
        memcpy((state *)args->states + out_row * args->x.cols + col, acc, (size_t)n * sizeof *acc);
}

SPOPS_INLINE void reduce_range(int op, const spops_segreduce_args *args, int64_t out_row,
                               int64_t begin, int64_t end, state *partial)
{
    const int64_t cols = args->x.cols;
    for (int64_t col = 0; col < cols; col += BLOCK) {
        const int n = block_of(cols, col);
        state acc[BLOCK];
        for (int c = 0; c < n; ++c)
            acc[c] = identity(op);
        for (int64_t p = begin; p < end; ++p) {
            const double *x = spops_row_f64(args->x, spops_pair_of(args->lists, p, 0)) + col;
            const double w = spops_double_or(args->w, spops_pair_of(args->lists, p, 1), 1.0);
            const int32_t term = spops_term_of(args->lists, p);
            for (int c = 0; c < n; ++c)
                acc[c] = combine(op, acc[c], lift(op, w * x[c], term));
        }
        if (partial != NULL)
            memcpy(partial + col, acc, (size_t)n * sizeof *acc);
        else
            finish(op, args, out_row, col, n, end - begin, acc);
    }
}

SPOPS_INLINE void reduce_split(int op, const spops_segreduce_args *args,
                               const spops_split_segment *split)
{
    const int64_t cols = args->x.cols;
    for (int64_t col = 0; col < cols; col += BLOCK) {
        const state *piece = (const state *)args->partials + split->first_piece * cols + col;
        const int n = block_of(cols, col);
        state acc[BLOCK];
        memcpy(acc, piece, (size_t)n * sizeof *acc);
        for (int32_t i = 1; i < split->num_pieces; ++i) {
            piece += cols;
            for (int c = 0; c < n; ++c)
                acc[c] = combine(op, acc[c], piece[c]);
        }
        finish(op, args, split->segment, col, n, split->count, acc);
    }
}

// grad_out[segment, col] * d out / d v of one term.
SPOPS_INLINE double term_gradient(int op, const spops_grad_args *args, int64_t segment,
                                  int32_t term, int64_t col, double v)
{
    const int32_t *offsets = args->segment_offsets;
    const int64_t count = offsets != NULL ? (int64_t)offsets[segment + 1] - offsets[segment] : 0;
    const state *states = (const state *)args->states;
    const state a = gradient_reads_state(op) ? states[segment * args->x.cols + col] : identity(op);
    return gradient(op, v, term, a, count) * spops_row_f64(args->grad_out, segment)[col];
}

SPOPS_INLINE void grad_range(int op, const spops_grad_args *args, int64_t out_row, int64_t begin,
                             int64_t end, double *partial)
{
    const double *x = spops_row_f64(args->x, out_row);
    double *grad = partial != NULL ? partial : spops_row_f64(args->grad, out_row);
    for (int64_t c = 0; c < args->x.cols; ++c)
        grad[c] = 0.0;
    for (int64_t p = begin; p < end; ++p) {
        const int64_t segment = spops_pair_of(args->lists, p, 0);
        const double w = spops_double_or(args->w, spops_pair_of(args->lists, p, 1), 1.0);
        const int32_t term = spops_term_of(args->lists, p);
        for (int64_t c = 0; c < args->x.cols; ++c)
            grad[c] += w * term_gradient(op, args, segment, term, c, w * x[c]);
    }
}

SPOPS_INLINE double dot_range(int op, const spops_grad_args *args, int64_t out_row, int64_t begin,
                              int64_t end)
{
    const double w = spops_double_or(args->w, out_row, 1.0);
    double sum = 0.0;
    for (int64_t p = begin; p < end; ++p) {
        const double *x = spops_row_f64(args->x, spops_pair_of(args->lists, p, 0));
        const int64_t segment = spops_pair_of(args->lists, p, 1);
        const int32_t term = spops_term_of(args->lists, p);
        for (int64_t c = 0; c < args->x.cols; ++c)
            sum += x[c] * term_gradient(op, args, segment, term, c, w * x[c]);
    }
    return sum;
}

// ---- Instances ----------------------------------------------------------------------------------

#define VALUES(name, op)                                                                           \
    static void range_##name(const spops_segreduce_args *args, int64_t out_row, int64_t begin,     \
                             int64_t end, void *partial)                                           \
    {                                                                                              \
        reduce_range(op, args, out_row, begin, end, (state *)partial);                             \
    }                                                                                              \
    static void split_##name(const spops_segreduce_args *args, const spops_split_segment *split)   \
    {                                                                                              \
        reduce_split(op, args, split);                                                             \
    }
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    VALUES(name, SPOPS_REDUCE_##name)                                                              \
    VALUES(name##_traced, SPOPS_REDUCE_##name + TRACED)                                            \
    static void grad_##name(const spops_grad_args *args, int64_t out_row, int64_t begin,           \
                            int64_t end, double *partial)                                          \
    {                                                                                              \
        grad_range(SPOPS_REDUCE_##name + TRACED, args, out_row, begin, end, partial);              \
    }                                                                                              \
    static double dot_##name(const spops_grad_args *args, int64_t out_row, int64_t begin,          \
                             int64_t end)                                                          \
    {                                                                                              \
        return dot_range(SPOPS_REDUCE_##name + TRACED, args, out_row, begin, end);                 \
    }
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

const spops_segreduce_f64 spops_segreduce_f64_of[SPOPS_NUM_BUILTINS] = {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {{range_##name, range_##name##_traced},                                \
                             {split_##name, split_##name##_traced},                                \
                             grad_##name,                                                          \
                             dot_##name},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
