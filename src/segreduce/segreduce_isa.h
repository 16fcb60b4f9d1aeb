// The vector code of segreduce, seggrad and segdot. segreduce_isa.c is compiled once per
// instruction set and exports one table each; segreduce_cpu.c chooses the table and divides the
// work.
#ifndef SPOPS_SEGREDUCE_ISA_H
#define SPOPS_SEGREDUCE_ISA_H

#include "core/cpu_isa.h"
#include "core/dtypes.h"
#include "segreduce/segreduce_args.h"

// Number of built-in reductions, whose ids count from 0.
enum {
#define SPOPS_REDUCE_OP(name, plain, traced) SPOPS_BUILTIN_##name,
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    SPOPS_NUM_BUILTINS
};

// Reduce positions begin .. end - 1 of an owner. partial NULL: they are all it has; finalize them
// into out, arg and states. Else they are a piece: leave its states, one per column, in partial.
typedef void (*spops_reduce_range)(const spops_segreduce_args *args, int64_t owner, int64_t begin,
                                   int64_t end, void *partial);
// Combine the pieces of a split owner, whose states lie in args->partials, and finalize.
typedef void (*spops_reduce_split)(const spops_segreduce_args *args, const spops_split *split);
// The gradient of an owner's row from positions begin .. end - 1: into grad, or partial as f32.
typedef void (*spops_grad_range)(const spops_grad_args *args, int64_t owner, int64_t begin,
                                 int64_t end, float *partial);
// The gradient of an owner's weight from positions begin .. end - 1.
typedef float (*spops_dot_range)(const spops_grad_args *args, int64_t owner, int64_t begin,
                                 int64_t end);

typedef struct spops_segreduce_table {
    // [..][traced][dtype of x][whether w has that dtype; else f32 or absent]
    spops_reduce_range reduce_range[SPOPS_NUM_BUILTINS][2][SPOPS_NUM_FLOAT_DTYPES][2];
    spops_reduce_split reduce_split[SPOPS_NUM_BUILTINS][2][SPOPS_NUM_FLOAT_DTYPES];
    spops_grad_range grad_range[SPOPS_NUM_BUILTINS][SPOPS_NUM_FLOAT_DTYPES][2];
    spops_dot_range dot_range[SPOPS_NUM_BUILTINS][SPOPS_NUM_FLOAT_DTYPES];
    size_t state_bytes[SPOPS_NUM_BUILTINS][2]; // [..][traced]
    // Sums of other dtypes and scales: [dtype of x][dtype of w]. 8- and 4-bit rows are decoded to
    // f16 beforehand: n elements of a row, with the block scales of f4e2m1.
    spops_reduce_range sum_range[SPOPS_NUM_FLOAT_DTYPES][SPOPS_NUM_DTYPES];
    void (*decode)(spops_dtype dtype, const void *src, const uint8_t *scales, int64_t n,
                   uint16_t *dst);
    spops_reduce_split sum_split;
    // n elements of a float dtype to f32 and back
    void (*load)(spops_dtype dtype, const void *src, int64_t n, float *dst);
    void (*store)(spops_dtype dtype, const float *src, int64_t n, void *dst);
} spops_segreduce_table;

SPOPS_DECLARE_ISA_TABLES(spops_segreduce_table)

#endif
