// SPDX-License-Identifier: Apache-2.0
// The vector code of segreduce for any op and dtype. segreduce_plain_isa.c and
// segreduce_traced_isa.c have its instances: together they would be the slowest source of the build.
#ifndef SPOPS_SEGREDUCE_BLOCKS_H
#define SPOPS_SEGREDUCE_BLOCKS_H

#include "segreduce/segreduce_lanes.h"

#include "core/rows_isa.h"

// Where the states of `width` columns go once all terms of an output row are in: acc[from] and on,
// to columns from `col` on. Their values go to value[0] and on.
SPOPS_INLINE void finish_lanes(int op, int width, const spops_segreduce_args *args, int64_t out_row,
                               int64_t col, int64_t count, const accumulators *acc, int from,
                               float *value)
{
#pragma omp simd
    for (int c = 0; c < width; ++c)
        value[c] = finalize(op, get(acc, from + c), count);
    if (has_arg(op) && args->arg.data != NULL) {
        int32_t *arg = (int32_t *)args->arg.data + out_row * args->arg.row_stride + col;
#pragma omp simd
        for (int c = 0; c < width; ++c)
            arg[c] = winner(op, get(acc, from + c));
    }
    if (gradient_reads_state(op) && args->states != NULL) {
        char *states =
            (char *)args->states + (size_t)(out_row * args->x.cols + col) * state_bytes(op);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            store_state(op, get(acc, from + c), states + (size_t)c * state_bytes(op));
    }
}

// The same for a block of any width and dtype. One function for an op, which is not inlined into the
// blocks: it runs once for all the terms of an output row, and an instance for each dtype would be a
// third of the time to compile.
typedef void (*finisher)(int width, const spops_segreduce_args *args, int64_t out_row, int64_t col,
                         int64_t count, const accumulators *acc);

SPOPS_INLINE void finish_block(int op, int width, const spops_segreduce_args *args, int64_t out_row,
                               int64_t col, int64_t count, const accumulators *acc)
{
    float value[MAX_WIDTH];
    int c = 0;
    for (; c + 16 <= width; c += 16)
        finish_lanes(op, 16, args, out_row, col + c, count, acc, c, value + c);
    for (; c + 4 <= width; c += 4)
        finish_lanes(op, 4, args, out_row, col + c, count, acc, c, value + c);
    for (; c < width; ++c)
        finish_lanes(op, 1, args, out_row, col + c, count, acc, c, value + c);
    if (args->out.data != NULL)
        SPOPS_ISA_TABLE(spops_rows_table)
            .store(args->out.dtype, value, width,
                   (char *)spops_element(args->out.dtype, args->out, out_row, col));
}

// A copy for the finisher: accumulators whose address left the block would lie in memory.
SPOPS_INLINE void finish(finisher to, int width, const spops_segreduce_args *args, int64_t out_row,
                         int64_t col, int64_t count, const accumulators *acc)
{
    accumulators copy;
#pragma omp simd
    for (int c = 0; c < width; ++c)
        put(&copy, c, get(acc, c));
    to(width, args, out_row, col, count, &copy);
}

SPOPS_INLINE void reduce_block(int op, int xtype, finisher to, int width,
                               const spops_segreduce_args *args, int64_t out_row, int64_t begin,
                               int64_t end, int64_t col, char *partial)
{
    const int64_t row_bytes = spops_row_step(args->x) * (int64_t)spops_element_bytes(xtype);
    const char *x = spops_element(xtype, args->x, 0, col);
    const weights w = weights_of(args->x, args->w);
    cursor at = cursor_at(args->lists, begin);
    const bool totals = is_sum(op) && (partial != NULL || end - begin > SUM_TERMS);
    double total[MAX_WIDTH];
    accumulators acc;
    int64_t p = begin;

    if (totals) clear_totals(width, total);
    do {
        const int64_t stop = is_sum(op) ? sum_end(p, end) : end;
#pragma omp simd
        for (int c = 0; c < width; ++c)
            put(&acc, c, identity(op));
        for (; p < stop; ++p, cursor_step(&at)) {
            const float weight = weight_at(xtype, false, &w, cursor_b(&at));
            const int32_t term = cursor_term(&at);
            float v[MAX_WIDTH];
            spops_load_lanes(xtype, width, x + cursor_a(&at) * row_bytes, v);
#pragma omp simd
            for (int c = 0; c < width; ++c) {
                if (is_sum(op))
                    acc.first[c] = spops_multiply_add(weight, v[c], acc.first[c]);
                else
                    put(&acc, c, combine(op, get(&acc, c), lift(op, weight * v[c], term)));
            }
        }
        if (totals) add_totals(width, acc.first, total);
    } while (p < end);
    if (partial != NULL && is_sum(op)) {
        memcpy((double *)(void *)partial + col, total, (size_t)width * sizeof *total);
    } else if (partial != NULL) {
#pragma omp simd
        for (int c = 0; c < width; ++c)
            store_state(op, get(&acc, c), partial + (size_t)(col + c) * state_bytes(op));
    } else {
        if (totals) round_totals(width, total, acc.first);
        finish(to, width, args, out_row, col, end - begin, &acc);
    }
}

SPOPS_INLINE void narrow_block(int op, int xtype, finisher to, int width,
                               const spops_segreduce_args *args, int64_t out_row, int64_t begin,
                               int64_t end, int64_t col, char *partial)
{
    double total[NARROW_COLS];
    accumulators acc;

    add_narrow(xtype, false, width, args, begin, end, col, total);
    if (partial != NULL) {
        memcpy((double *)(void *)partial + col, total, (size_t)width * sizeof *total);
        return;
    }
#pragma omp simd
    for (int c = 0; c < width; ++c)
        put(&acc, c, lift(op, (float)total[c], 0));
    finish(to, width, args, out_row, col, end - begin, &acc);
}

SPOPS_INLINE void reduce_range(int op, int xtype, finisher to, const spops_segreduce_args *args,
                               int64_t out_row, int64_t begin, int64_t end, char *partial)
{
    const int64_t cols = args->x.cols;
    if (is_sum(op) && cols <= NARROW_COLS) {
#define BLOCK(width, col)                                                                          \
    narrow_block(op, xtype, to, width, args, out_row, begin, end, col, partial)
        FOR_EACH_NARROW_BLOCK(cols, BLOCK)
#undef BLOCK
        return;
    }
#define BLOCK(width, col)                                                                          \
    reduce_block(op, xtype, to, width, args, out_row, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, wide_of(op), BLOCK)
#undef BLOCK
}

SPOPS_INLINE void split_block(int op, finisher to, int width, const spops_segreduce_args *args,
                              const spops_split_segment *split, int64_t col)
{
    const size_t piece_bytes = (size_t)args->x.cols * piece_bytes_of(op);
    const char *partial = (const char *)args->partials + (size_t)split->first_piece * piece_bytes +
                          (size_t)col * piece_bytes_of(op);
    accumulators acc;

    if (is_sum(op)) {
        double total[MAX_WIDTH];
        load_totals(width, (const double *)(const void *)partial, total);
        for (int32_t i = 1; i < split->num_pieces; ++i) {
            partial += piece_bytes;
            add_piece(width, (const double *)(const void *)partial, total);
        }
        round_totals(width, total, acc.first);
        memset(acc.second, 0, sizeof acc.second);
    } else {
#pragma omp simd
        for (int c = 0; c < width; ++c)
            put(&acc, c, load_state(op, partial + (size_t)c * state_bytes(op)));
        for (int32_t i = 1; i < split->num_pieces; ++i) {
            partial += piece_bytes;
#pragma omp simd
            for (int c = 0; c < width; ++c) {
                const state b = load_state(op, partial + (size_t)c * state_bytes(op));
                put(&acc, c, combine(op, get(&acc, c), b));
            }
        }
    }
    finish(to, width, args, split->segment, col, split->count, &acc);
}

SPOPS_INLINE void reduce_split(int op, finisher to, const spops_segreduce_args *args,
                               const spops_split_segment *split)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) split_block(op, to, width, args, split, col)
    FOR_EACH_BLOCK(cols, 16, BLOCK)
#undef BLOCK
}

// ---- Instances ----------------------------------------------------------------------------------

// The functions of one op; empty where no call is given them.
#define REDUCE_DTYPE(name, op, dtype, used)                                                        \
    static void reduce_range_##name##_##dtype(const spops_segreduce_args *args, int64_t out_row,   \
                                              int64_t begin, int64_t end, void *partial)           \
    {                                                                                              \
        if (used)                                                                                  \
            reduce_range(op, SPOPS_DTYPE_##dtype, finish_##name, args, out_row, begin, end,        \
                         (char *)partial);                                                         \
    }
#define REDUCE(name, op, used)                                                                     \
    static __attribute__((noinline)) void finish_##name(                                           \
        int width, const spops_segreduce_args *args, int64_t out_row, int64_t col, int64_t count,  \
        const accumulators *acc)                                                                   \
    {                                                                                              \
        if (used) finish_block(op, width, args, out_row, col, count, acc);                         \
    }                                                                                              \
    static void reduce_split_##name(const spops_segreduce_args *args,                              \
                                    const spops_split_segment *split)                              \
    {                                                                                              \
        if (used) reduce_split(op, finish_##name, args, split);                                    \
    }                                                                                              \
    REDUCE_DTYPE(name, op, F32, used)                                                              \
    REDUCE_DTYPE(name, op, F16, used)                                                              \
    REDUCE_DTYPE(name, op, BF16, used)

#endif
