/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MVMR and VVOR: rows times matrices, summed, over triplets; and the gradients of it.
 *
 * A triplet t = (i, j, k) says that output row i takes input row j times matrix k. A plan
 * (spops_triplets) holds any relation of triplets: any number of them for an output, in any order,
 * with up to 2^31 - 2 matrices of which most may have none. Sparse and point convolutions, graph
 * layers with relations, and rows times the matrix of their group (i = j) are such relations.
 */
#ifndef SPOPS_MVMR_H
#define SPOPS_MVMR_H

#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/** A relation of triplets (output row, input row, matrix), with the schedule of its products. */
typedef struct spops_triplets spops_triplets;

/** Sizes of a relation; each 0 to INT32_MAX - 1. Final: nothing will be added. */
typedef struct spops_triplets_shape {
    int64_t num_out;      /* rows of out */
    int64_t num_in;       /* rows of x */
    int64_t num_matrices; /* of w */
    int64_t num_triplets; /* the capacity, for spops_triplets_reserve */
} spops_triplets_shape;

/** Choices of the calls that make relations of triplets. */
typedef struct spops_triplets_options {
    size_t struct_size;           /* sizeof(spops_triplets_options) */
    spops_key_order matrix_order; /* whether triplets come sorted by matrix; refused if not so */
    int32_t backward;             /* 1: also what gradients need: lists by input, and scratch */
    int64_t max_matrix_elements;  /* with backward: of the largest matrix that VVOR will meet, for
                                     scratch and schedule; 0: 65,536 */
    spops_plan_memory *memory;    /* of reserve: where the plan lives; NULL: allocated */
    int32_t tile;                 /* as spops_triplets_info.tile has it; 0: the measured one */
    int32_t reserved;             /* 0 */
} spops_triplets_options;

SPOPS_DEFINE_DEFAULT(spops_triplets_options)

/**
 * Plan triplets t = (out_rows[t], in_rows[t], matrices[t]). The same triplet may come twice, and
 * counts twice.
 *
 * shape     num_triplets is the length of the three arrays.
 * out_rows  [num_triplets], each 0 to num_out - 1; NULL: triplet t has output row t.
 * in_rows   [num_triplets], each 0 to num_in - 1; NULL: triplet t has input row t.
 * matrices  [num_triplets], each 0 to num_matrices - 1.
 * options   NULL: defaults.
 * out       The plan; NULL after a failure.
 *
 * Memory    The arrays where ctx runs; read during the call, copied.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs (none without backward).
 * Errors    INVALID_ARGUMENT (names the first bad element), OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 * Source    Triplets after PointCNN++ (MVMR, section 3.3); we sort them by tile of output rows and
 *           then by matrix, so that a row is summed where it is owned: docs/mvmr.md.
 */
SPOPS_API spops_status spops_triplets_create(spops_context *ctx, const spops_triplets_shape *shape,
                                             const int32_t *out_rows, const int32_t *in_rows,
                                             const int32_t *matrices,
                                             const spops_triplets_options *options,
                                             spops_triplets **out);

/**
 * Plan rows times the matrix of their group: row r, of x and of out, belongs to group k where
 * offsets[k] <= r < offsets[k + 1]. It is the relation (r, r, k).
 *
 * num_matrices  Groups, 0 to INT32_MAX - 1. A group may be empty.
 * offsets       [num_matrices + 1] ascending, offsets[0] = 0; the last is the number of rows.
 *
 * The rest as spops_triplets_create.
 */
SPOPS_API spops_status spops_triplets_create_from_offsets(spops_context *ctx, int64_t num_matrices,
                                                          const int32_t *offsets,
                                                          const spops_triplets_options *options,
                                                          spops_triplets **out);

/**
 * Plan into a capacity: room for shape->num_triplets unsorted triplets, filled by spops_triplets_update
 * or spops_triplets_update_offsets, as often as wanted, on the stream, also inside a captured graph.
 * Until the first set it has no triplets. options->matrix_order must be SPOPS_KEYS_UNSORTED.
 *
 * Memory    All that a set needs is allocated here.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 */
SPOPS_API spops_status spops_triplets_reserve(spops_context *ctx, const spops_triplets_shape *shape,
                                              const spops_triplets_options *options,
                                              spops_triplets **out);

/**
 * Refill a plan made by spops_triplets_reserve.
 *
 * num_triplets  One int32 where ctx runs: how many count. More than the capacity sets the plan's
 *               overflow flag, and only the capacity is taken.
 * out_rows      [capacity] or NULL, in_rows likewise, matrices [capacity]; as in
 *               spops_triplets_create. A triplet with a number out of range is left out and counted
 *               in num_dropped.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 *           Runs of the plan on other streams must be ordered by the caller.
 * Scratch   None: the plan has its own.
 * Errors    INVALID_ARGUMENT (not such a plan, NULL), CUDA.
 * Threads   One thread at a time per ctx and per plan.
 */
SPOPS_API spops_status spops_triplets_update(spops_context *ctx, spops_triplets *triplets,
                                             const int32_t *num_triplets, const int32_t *out_rows,
                                             const int32_t *in_rows, const int32_t *matrices);

/**
 * The same with triplets in the order of their matrices: those of matrix k are at the positions
 * offsets[k] .. offsets[k + 1] - 1. Rows times the matrix of their group, whose sizes only the
 * device knows, are this with out_rows and in_rows NULL; the pairs of a kernel map are it too.
 *
 * offsets   [num_matrices + 1] where ctx runs, ascending. Positions before offsets[0], from
 *           offsets[num_matrices] on, and past the capacity are no triplets.
 * out_rows  [capacity], or NULL: the position. in_rows likewise. As in spops_triplets_update.
 *
 * The rest as spops_triplets_update.
 */
SPOPS_API spops_status spops_triplets_update_offsets(spops_context *ctx, spops_triplets *triplets,
                                                     const int32_t *offsets,
                                                     const int32_t *out_rows,
                                                     const int32_t *in_rows);

/** Counts of a plan. For one made by reserve they are read from the device. */
typedef struct spops_triplets_info {
    size_t struct_size; /* set by the caller: sizeof(spops_triplets_info) */
    int64_t num_out, num_in, num_matrices;
    int64_t num_triplets; /* in the plan; those that a set dropped are not among them */
    int64_t max_triplets; /* the capacity; num_triplets of a plan made by create */
    int64_t num_nonempty; /* matrices with triplets */
    int64_t longest;      /* triplets of the matrix that has most */
    int64_t num_dropped;  /* triplets left out by spops_triplets_update */
    int64_t overflow;     /* 1: spops_triplets_update met more triplets than the capacity */
    int32_t direct;       /* 1: each output row has at most one triplet, and it is known */
    int32_t tile;         /* of output rows, by number: on CUDA a row of kernels/mvmr/mvmr_tuning.h,
                             on the CPU 0 */
} spops_triplets_info;

SPOPS_DEFINE_DEFAULT(spops_triplets_info)

/** Fill info; waits for ctx's stream. CAPACITY_EXCEEDED (info still filled) if overflow is 1. */
SPOPS_API spops_status spops_triplets_get_info_sync(spops_context *ctx,
                                                    const spops_triplets *triplets,
                                                    spops_triplets_info *info);

/** Free a plan; NULL is fine. Waits for the creating context; nothing else may be running it. */
static inline void spops_triplets_destroy(spops_triplets *triplets)
{
    spops_plan_destroy((spops_plan *)triplets);
}

/** Scratch that every call with this plan fits in. */
static inline size_t spops_triplets_scratch_bytes(const spops_triplets *triplets)
{
    return spops_plan_scratch_bytes((const spops_plan *)triplets);
}

/** What products are computed in, where a call lets the caller choose. Sums are f32, of f64 f64. */
typedef enum spops_math {
    SPOPS_MATH_EXACT = 0, /* factors as they are stored */
    SPOPS_MATH_TF32 = 1   /* f32 factors may be rounded to tf32 (10 bits) where that is faster */
} spops_math;

/** How matrices apply. Zero is the default of every field. */
typedef struct spops_mvmr_options {
    size_t struct_size; /* sizeof(spops_mvmr_options) */
    int32_t groups;     /* 0 or 1: each output column takes every input column. G: columns fall into
                           G equal groups, and outputs take the inputs of their own group */
    int32_t diagonal;   /* 1: matrices are diagonal: out[i, c] += s w[k, c] x[j, c] */
    int32_t transposed; /* 1: matrices are stored transposed */
    int32_t reversed;   /* 1: inputs and outputs of the triplets change places: x has num_out rows,
                           out has num_in rows. Needs a plan with backward, unless i = j */
    int32_t accumulate; /* 1: add to what out holds; 0: out is overwritten */
    const int32_t *num_rows; /* [1] where ctx runs: rows of the result from there on are left alone,
                                as in matrices that are as long as a capacity; NULL: all rows are
                                written. Of a gradient: rows of grad_x */
    spops_math math;
} spops_mvmr_options;

SPOPS_DEFINE_DEFAULT(spops_mvmr_options)

/**
 * Rows times matrices, summed by output row:
 *
 *     out[i, o] = sum over triplets t = (i, j, k) of  s[t] * sum over c of  x[j, c] * w[k][c, o]
 *
 * x         [num_in, C_in], f32 f16 bf16; on the CPU f64.
 * w         The matrices below each other, dtype of x: [num_matrices * C_in / groups, C_out], matrix
 *           k in rows k C_in / groups and following; in group g of the columns, row c is for input
 *           column g C_in / groups + c. Transposed: [num_matrices * C_out / groups, C_in], row o for
 *           output column o of the group. Diagonal: [num_matrices, C], C = C_in = C_out.
 * s         [num_triplets, 1] (of a reserved plan: its capacity), f32 or the dtype of x,
 *           row_stride 1, in the order of the triplets as given; NULL: all ones.
 * options   NULL: defaults.
 * out       [num_out, C_out], dtype of x or f32. Every element is written; rows without triplets get
 *           0 (with accumulate, they keep what they hold). Must not overlap x, w or s.
 *
 * The gradient with respect to x is this call with reversed and transposed changed over: x is the
 * gradient of out, and w is read as it lies.
 *
 * Memory    Where ctx runs: device memory for CUDA, host memory for CPU. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None.
 * Numerics  Accumulates in f32 (f64 in f64), an output's triplets by ascending matrix and then as given: same
 *           bits on every run and thread count. s is applied in f32; a sum is rounded to the dtype
 *           of out once.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride, no columns, groups that do not divide them),
 *           NOT_SUPPORTED, CUDA. After any but CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx; triplets may be shared.
 * Source    PointCNN++, Algorithm 1; we sum rows where they are owned instead of by atomics.
 */
SPOPS_API spops_status spops_mvmr_execute(spops_context *ctx, const spops_triplets *triplets,
                                          spops_matrix x, spops_matrix w, const spops_matrix *s,
                                          const spops_mvmr_options *options, spops_matrix out);

/**
 * Outer products of rows, summed by matrix: the gradient of spops_mvmr_execute with respect to w.
 *
 *     out[k][c, o] = sum over triplets t = (i, j, k) of  s[t] * x[j, c] * g[i, o]
 *
 * x         [num_in, C_in], f32 f16 bf16; on the CPU f64.
 * g         [num_out, C_out], dtype of x. With reversed, x has num_out rows and g num_in.
 * s         As in spops_mvmr_execute.
 * out       The shape of w there, for the same options; f32, or the dtype of x (f16 overflows
 *           easily). Matrices without triplets get 0. Must not overlap x, g or s.
 *
 * Scratch   spops_triplets_scratch_bytes(triplets), reserved in ctx beforehand. Needs a plan with
 *           backward, and matrices of at most max_matrix_elements.
 *
 * The rest as spops_mvmr_execute. A matrix's triplets are cut into pieces where there are many; the
 * pieces follow from the plan, and their sums are added in order.
 *
 * Source    PointCNN++, Algorithm B; we add pieces in order instead of by atomics.
 */
SPOPS_API spops_status spops_vvor_execute(spops_context *ctx, const spops_triplets *triplets,
                                          spops_matrix x, spops_matrix g, const spops_matrix *s,
                                          const spops_mvmr_options *options, spops_matrix out);

/**
 * Gradients of spops_mvmr_execute with the same options (accumulate aside), each NULL where it is
 * not wanted:
 *
 *     grad_x[j]    = sum over triplets (i, j, k) of  s[t] * w[k] g[i]      reversed, transposed
 *     grad_w[k]    = sum over triplets (i, j, k) of  s[t] * x[j] (x) g[i]  spops_vvor_execute
 *     grad_s[t]    = <g[i], x[j] w[k]>
 *
 * grad_out  [num_out, C_out], dtype of x: g above.
 * grad_x    Shape and dtype of x, or f32.
 * grad_w    Shape of w; f32 or its dtype.
 * grad_s    [num_triplets, 1] f32, of f64 f64, row_stride 1. Elements of triplets that the plan left out keep
 *           what they hold. Also where s is NULL, which counts as ones.
 *
 * accumulate adds to what grad_x and grad_w hold; grad_s is overwritten. The plan must have
 * backward. The rest as the two calls above.
 */
SPOPS_API spops_status spops_mvmr_execute_backward(
    spops_context *ctx, const spops_triplets *triplets, spops_matrix grad_out, spops_matrix x,
    spops_matrix w, const spops_matrix *s, const spops_mvmr_options *options,
    const spops_matrix *grad_x, const spops_matrix *grad_w, const spops_matrix *grad_s);

SPOPS_EXTERN_C_END

#endif
