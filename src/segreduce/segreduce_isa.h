// SPDX-License-Identifier: Apache-2.0
// The vector code of segreduce (segreduce_plain_isa.c, segreduce_traced_isa.c, segsum_isa.c), seggrad
// and segdot (seggrad_isa.c), compiled once per instruction set; segreduce_cpu.c chooses the tables and divides the work.
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

// Reduce positions begin .. end - 1 of an output row. partial NULL: they are all it has; finalize
// them into out, arg and states. Else they are a piece: leave its states (of sums f64 totals), one per
// column, in partial.
typedef void (*spops_reduce_range)(const spops_segreduce_args *args, int64_t out_row, int64_t begin,
                                   int64_t end, void *partial);
// SUM or MEAN of the output rows first .. last - 1 that are not split, whose terms have pairs and no
// weights: the values that spops_reduce_range gives one by one. At most SPOPS_NARROW_COLS columns.
typedef void (*spops_reduce_rows)(const spops_segreduce_args *args, int64_t first, int64_t last);
#define SPOPS_NARROW_COLS 8
// Combine the pieces of a split output row, whose states lie in args->partials, and finalize.
typedef void (*spops_reduce_split)(const spops_segreduce_args *args,
                                   const spops_split_segment *split);
// The gradient of a row of x from positions begin .. end - 1: into grad, or partial as f64.
typedef void (*spops_grad_range)(const spops_grad_args *args, int64_t out_row, int64_t begin,
                                 int64_t end, double *partial);
// The gradient of a weight from positions begin .. end - 1.
typedef double (*spops_dot_range)(const spops_grad_args *args, int64_t out_row, int64_t begin,
                                  int64_t end);

typedef struct spops_reduce_functions {
    spops_reduce_range range[SPOPS_NUM_FLOAT_DTYPES]; // [dtype of x]; w is absent, f32 or like x
    spops_reduce_split split;
    size_t piece_bytes; // that a piece leaves for each column
} spops_reduce_functions;

// By plain ops for values alone, and by traced ops for winners and states.
typedef struct spops_segreduce_plain_table {
    spops_reduce_functions of[SPOPS_NUM_BUILTINS];
    spops_reduce_rows narrow[SPOPS_NUM_FLOAT_DTYPES]; // [dtype of x]
} spops_segreduce_plain_table;
typedef struct spops_segreduce_traced_table {
    spops_reduce_functions of[SPOPS_NUM_BUILTINS];
} spops_segreduce_traced_table;

// Sums of other dtypes and scales: [dtype of x]; w may be of 8 bits too. Rows of 8 and 4 bits are
// decoded to f16 beforehand.
typedef struct spops_segsum_table {
    spops_reduce_range range[SPOPS_NUM_FLOAT_DTYPES];
    spops_reduce_split split;
} spops_segsum_table;

typedef struct spops_seggrad_table { // [..][dtype of x]
    spops_grad_range grad_range[SPOPS_NUM_BUILTINS][SPOPS_NUM_FLOAT_DTYPES];
    spops_dot_range dot_range[SPOPS_NUM_BUILTINS][SPOPS_NUM_FLOAT_DTYPES];
} spops_seggrad_table;

// Rows of f64 (segreduce_f64.c), one code for all instruction sets. w is absent, f32 or f64; pieces
// leave SPOPS_STATE_BYTES_F64 for each column.
typedef struct spops_segreduce_f64 {
    spops_reduce_range range[2]; // by the plain op, by the traced one
    spops_reduce_split split[2];
    spops_grad_range grad_range;
    spops_dot_range dot_range;
} spops_segreduce_f64;
extern const spops_segreduce_f64 spops_segreduce_f64_of[SPOPS_NUM_BUILTINS];

SPOPS_DECLARE_ISA_TABLES(spops_segreduce_plain_table)
SPOPS_DECLARE_ISA_TABLES(spops_segreduce_traced_table)
SPOPS_DECLARE_ISA_TABLES(spops_segsum_table)
SPOPS_DECLARE_ISA_TABLES(spops_seggrad_table)

#endif
