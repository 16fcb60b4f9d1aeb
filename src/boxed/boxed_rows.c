// SPDX-License-Identifier: Apache-2.0
// Boxed functions of segments, segmented reduction, gather and products by triplets.
#include "call/boxed.h"
#include "spops/gather.h"
#include "spops/mvmr.h"
#include "spops/segreduce.h"

spops_status spops_boxed_segments(spops_boxed_call *b)
{
    spops_segments *made = NULL;
    enum { KEYS, IDX, WEIGHT_IDX, NUM_TERMS };
    enum { NUM_SEGMENTS, NUM_ROWS, NUM_WEIGHTS, ORDER, MAX_COLS, GRADIENTS };
    spops_segments_options options = spops_segments_options_default();
    bool fills;
    SPOPS_TRY(spops_boxed_counts(b, NUM_TERMS, KEYS, "max_terms", &fills));
    if (fills)
        return spops_segments_update(b->ctx, (spops_segments *)b->into, b->args[NUM_TERMS],
                                     b->args[KEYS], b->args[IDX], b->args[WEIGHT_IDX]);
    options.idx = b->args[IDX];
    options.weight_idx = b->args[WEIGHT_IDX];
    options.num_rows = b->attributes[NUM_ROWS].i;
    options.num_weights = b->attributes[NUM_WEIGHTS].i;
    options.max_cols = b->attributes[MAX_COLS].i;
    options.gradients = (spops_gradients)spops_boxed_i32(b, GRADIENTS);
    SPOPS_TRY(spops_segments_create_from_keys(
        b->ctx, b->attributes[NUM_SEGMENTS].i, b->matrices[KEYS].rows, b->args[KEYS],
        (spops_key_order)spops_boxed_i32(b, ORDER), &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_segments_offsets(spops_boxed_call *b)
{
    spops_segments *made = NULL;
    enum { OFFSETS, IDX, WEIGHT_IDX };
    enum { NUM_ROWS, NUM_WEIGHTS, MAX_COLS, GRADIENTS };
    spops_segments_options options = spops_segments_options_default();
    SPOPS_TRY(spops_boxed_no_block(b));
    options.idx = b->args[IDX];
    options.weight_idx = b->args[WEIGHT_IDX];
    options.num_rows = b->attributes[NUM_ROWS].i;
    options.num_weights = b->attributes[NUM_WEIGHTS].i;
    options.max_cols = b->attributes[MAX_COLS].i;
    options.gradients = (spops_gradients)spops_boxed_i32(b, GRADIENTS);
    SPOPS_TRY(spops_segments_create(b->ctx, b->matrices[OFFSETS].rows - 1, b->args[OFFSETS],
                                    &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_segreduce(spops_boxed_call *b)
{
    enum { X, W, SEGMENTS, OUT, ARG };
    return spops_segreduce_execute(b->ctx, b->args[SEGMENTS], (spops_reduce)spops_boxed_i32(b, 0),
                                   b->matrices[X], spops_boxed_optional(b, W), b->matrices[OUT],
                                   spops_boxed_optional(b, ARG));
}

spops_status spops_boxed_segreduce_backward(spops_boxed_call *b)
{
    enum { X, W, GRAD_OUT, SEGMENTS, GRAD_X, GRAD_W };
    return spops_segreduce_execute_backward(
        b->ctx, b->args[SEGMENTS], (spops_reduce)spops_boxed_i32(b, 0), b->matrices[GRAD_OUT],
        b->matrices[X], spops_boxed_optional(b, W), spops_boxed_optional(b, GRAD_X),
        spops_boxed_optional(b, GRAD_W));
}

spops_status spops_boxed_gather(spops_boxed_call *b)
{
    enum { X, W, ROWS, OUT };
    return spops_gather_execute(b->ctx, b->args[ROWS], b->matrices[X], spops_boxed_optional(b, W),
                                b->matrices[OUT]);
}

spops_status spops_boxed_gather_backward(spops_boxed_call *b)
{
    enum { X, W, GRAD_OUT, ROWS, GRAD_X, GRAD_W };
    return spops_gather_execute_backward(
        b->ctx, b->args[ROWS], b->matrices[GRAD_OUT], b->matrices[X], spops_boxed_optional(b, W),
        spops_boxed_optional(b, GRAD_X), spops_boxed_optional(b, GRAD_W));
}

spops_status spops_boxed_triplets(spops_boxed_call *b)
{
    spops_triplets *made = NULL;
    enum { MATRICES, OUT_ROWS, IN_ROWS, NUM_TRIPLETS };
    enum { NUM_OUT, NUM_IN, NUM_MATRICES, ORDER, BACKWARD, MAX_ELEMENTS };
    const spops_triplets_shape shape = {b->attributes[NUM_OUT].i, b->attributes[NUM_IN].i,
                                        b->attributes[NUM_MATRICES].i, b->matrices[MATRICES].rows};
    spops_triplets_options options = spops_triplets_options_default();
    bool fills;
    SPOPS_TRY(spops_boxed_counts(b, NUM_TRIPLETS, MATRICES, "max_triplets", &fills));
    if (fills)
        return spops_triplets_update(b->ctx, (spops_triplets *)b->into, b->args[NUM_TRIPLETS],
                                     b->args[OUT_ROWS], b->args[IN_ROWS], b->args[MATRICES]);
    options.matrix_order = (spops_key_order)spops_boxed_i32(b, ORDER);
    options.backward = spops_boxed_i32(b, BACKWARD);
    options.max_matrix_elements = b->attributes[MAX_ELEMENTS].i;
    SPOPS_TRY(spops_triplets_create(b->ctx, &shape, b->args[OUT_ROWS], b->args[IN_ROWS],
                                    b->args[MATRICES], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_triplets_offsets(spops_boxed_call *b)
{
    spops_triplets *made = NULL;
    spops_triplets_options options = spops_triplets_options_default();
    if (b->into != NULL)
        return spops_triplets_update_offsets(b->ctx, (spops_triplets *)b->into, b->args[0], NULL,
                                             NULL);
    options.backward = spops_boxed_i32(b, 0);
    options.max_matrix_elements = b->attributes[1].i;
    SPOPS_TRY(spops_triplets_create_from_offsets(b->ctx, b->matrices[0].rows - 1, b->args[0],
                                                 &options, &made));
    return spops_boxed_made(b, made);
}

// Attributes of all three, in one order, but that only two of them have the last before math.
static spops_mvmr_options mvmr_options(const spops_boxed_call *b, const void *num_rows)
{
    spops_mvmr_options options = spops_mvmr_options_default();
    options.groups = spops_boxed_i32(b, 0);
    options.diagonal = spops_boxed_i32(b, 1);
    options.transposed = spops_boxed_i32(b, 2);
    options.reversed = spops_boxed_i32(b, 3);
    options.accumulate = spops_boxed_i32(b, 4);
    options.math = (spops_math)spops_boxed_i32(b, 5);
    options.num_rows = num_rows;
    return options;
}

spops_status spops_boxed_mvmr(spops_boxed_call *b)
{
    enum { X, W, S, NUM_ROWS, TRIPLETS, OUT };
    const spops_mvmr_options options = mvmr_options(b, b->args[NUM_ROWS]);
    return spops_mvmr_execute(b->ctx, b->args[TRIPLETS], b->matrices[X], b->matrices[W],
                              spops_boxed_optional(b, S), &options, b->matrices[OUT]);
}

spops_status spops_boxed_mvmr_backward(spops_boxed_call *b)
{
    enum { X, W, S, NUM_ROWS, GRAD_OUT, TRIPLETS, GRAD_X, GRAD_W, GRAD_S };
    const spops_mvmr_options options = mvmr_options(b, b->args[NUM_ROWS]);
    return spops_mvmr_execute_backward(
        b->ctx, b->args[TRIPLETS], b->matrices[GRAD_OUT], b->matrices[X], b->matrices[W],
        spops_boxed_optional(b, S), &options, spops_boxed_optional(b, GRAD_X),
        spops_boxed_optional(b, GRAD_W), spops_boxed_optional(b, GRAD_S));
}

spops_status spops_boxed_vvor(spops_boxed_call *b)
{
    enum { X, G, S, NUM_ROWS, TRIPLETS, OUT };
    const spops_mvmr_options options = mvmr_options(b, b->args[NUM_ROWS]);
    return spops_vvor_execute(b->ctx, b->args[TRIPLETS], b->matrices[X], b->matrices[G],
                              spops_boxed_optional(b, S), &options, b->matrices[OUT]);
}
