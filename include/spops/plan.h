/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all plans have in common. A plan is a relation with its work schedule: a handle on the host,
 * and arrays where its context runs. These calls serve every kind of plan; what a kind is made from,
 * and what can be asked of it, stands in the header of its own.
 *
 * A plan with capacities (spops_X_reserve) is a value as well: a block of memory, and a description,
 * a few integers. The block can be the caller's, be kept as a tensor and be copied; a handle is
 * attached to it again from the description.
 */
#ifndef SPOPS_PLAN_H
#define SPOPS_PLAN_H

#include "spops/context.h"

SPOPS_EXTERN_C_BEGIN

/**
 * A plan of any kind. Every handle of a plan, such as a spops_segments *, may be cast to a
 * spops_plan * and back.
 */
typedef struct spops_plan spops_plan;

/** Kinds of plans. */
typedef enum spops_plan_kind {
    SPOPS_PLAN_NONE = 0, /* of no plan */
    SPOPS_PLAN_SEGMENTS = 1,
    SPOPS_PLAN_BEV_PLAN = 2,
    SPOPS_PLAN_KERNEL_MAP = 3,
    SPOPS_PLAN_COORDS = 4,
    SPOPS_PLAN_VOXELS = 5,
    SPOPS_PLAN_DEVOXELS = 6,
    SPOPS_PLAN_TRIPLETS = 7,
    SPOPS_PLAN_SPARSECONV = 8,
    SPOPS_PLAN_POINTCONV = 9,
    SPOPS_PLAN_POOL = 10,
    SPOPS_PLAN_PYRAMID = 11,
    SPOPS_PLAN_NEIGHBORS = 12,
    SPOPS_PLAN_NEAREST = 13,
    SPOPS_PLAN_INTERPOLATION = 14,
    SPOPS_PLAN_PATCHES = 15,
    SPOPS_PLAN_BUCKETS = 16,
    SPOPS_PLAN_POINT_LEVEL = 17,
    SPOPS_PLAN_POINT_PYRAMID = 18,
    SPOPS_PLAN_PARTITION = 19,
    SPOPS_PLAN_HALO = 20,
    SPOPS_PLAN_CHUNK_SUMS = 21
} spops_plan_kind;

/** What a kind of plan is. Static text. */
typedef struct spops_plan_kind_info {
    size_t struct_size; /* sizeof(spops_plan_kind_info) */
    spops_plan_kind kind;
    int32_t version;     /* of the kind's format: of its description and of its block */
    const char *name;    /* "segments" */
    const char *fields;  /* of its description, in their order, separated by spaces: `name`, or
                            `name[n]` or `name[n][m]` for so many; `:f64` after it: the bits of
                            doubles. One that follows from others may be 0 by hand */
    const char *parents; /* the plans that it stands on: `name:kind`, `?` after a name that may be
                            left out; "" without any */
    const char *state;   /* the counts of spops_plan_get_state_sync, in their order, as of fields;
                            `overflow` is among them: 1: more came than there is room for */
} spops_plan_kind_info;

/** All kinds, by ascending number; *num is set to how many there are. Neither fails. */
SPOPS_API const spops_plan_kind_info *spops_plan_kinds(int32_t *num);

/** The kind of a plan; NONE for NULL. */
SPOPS_API spops_plan_kind spops_plan_get_kind(const spops_plan *plan);

/**
 * What a plan with capacities was made with:
 *
 *     ints[0]   its kind
 *     ints[1]   the version of the kind's format
 *     ints[2..] the kind's fields (spops_plan_kinds), in their order
 *
 * Filling the plan again does not change its description.
 *
 * plan      Made by a spops_X_reserve, or attached.
 * ints      [max_ints] in host memory; NULL: only num_ints is wanted.
 * num_ints  How many there are.
 *
 * Errors    INVALID_ARGUMENT (NULL, a plan without capacities, max_ints too small).
 * Threads   Any, with a ctx that no other thread uses.
 */
SPOPS_API spops_status spops_plan_describe(spops_context *ctx, const spops_plan *plan,
                                           int64_t *ints, int32_t max_ints, int32_t *num_ints);

/**
 * How large the block and the scratch of a described plan are, before there is any of them.
 *
 * ints      [num_ints] in host memory, as spops_plan_describe gives them, or put together by hand. Those
 *           of its parents may follow, in their order, 0 for one that is left out: then the block is
 *           one for all (spops/call.h).
 * bytes     Of the block.
 * scratch_bytes  That its calls need in the context. Either may be NULL.
 *
 * Errors    INVALID_ARGUMENT (NULL, a description that no plan has), NOT_SUPPORTED (a plan that has no
 *           block: a convolution by gather-matmul-scatter, a partition, what stands on a communicator),
 *           OUT_OF_MEMORY (too large for an address).
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_plan_measure(spops_context *ctx, const int64_t *ints, int32_t num_ints,
                                          size_t *bytes, size_t *scratch_bytes);

/**
 * A plan in a block that holds one already: that of a plan with this description, or a copy of it.
 *
 * ints      [num_ints], as spops_plan_describe gave them. A kernel reads past a block that holds
 *           another plan than described: they must belong together.
 * block     Of spops_plan_measure's size, where ctx runs, aligned to SPOPS_PLAN_ALIGNMENT. The
 *           caller's: it must outlive the plan.
 * bytes     Of the block.
 * parents   [num_parents] plans that this one stands on, made or attached before, in the order of
 *           the kind's parents.
 * plan      The plan; NULL after a failure.
 *
 * Scratch   Not reserved: spops_plan_scratch_bytes tells how much spops_context_reserve needs.
 * Stream    Nothing is enqueued, and nobody waits; also while ctx's stream is captured.
 * Errors    INVALID_ARGUMENT (NULL, description, parents, block too small or misaligned),
 *           NOT_SUPPORTED, OUT_OF_MEMORY.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_plan_attach(spops_context *ctx, const int64_t *ints, int32_t num_ints,
                                         void *block, size_t bytes,
                                         const spops_plan *const *parents, int32_t num_parents,
                                         spops_plan **plan);

/**
 * The fields of a plan of any kind, in the order of spops_plan_kinds, as a description has them from
 * its third number on. A plan that was made without capacities has them too.
 *
 * fields    [max_fields] in host memory; the first max_fields are written. NULL: none.
 *
 * Returns how many there are; 0 for NULL. Threads: any.
 */
SPOPS_API int32_t spops_plan_get_fields(const spops_plan *plan, int64_t *fields,
                                        int32_t max_fields);

/**
 * What a plan of any kind holds: the counts that the kind's `state` names, as they are when all that was
 * enqueued on ctx's stream has run.
 *
 * counts      [max_counts] in host memory; NULL: only num_counts is wanted, and nobody waits.
 * num_counts  How many there are.
 *
 * Stream    Waits for ctx's stream. Not capturable.
 * Errors    INVALID_ARGUMENT (NULL, max_counts too small), NOT_SUPPORTED (the stream is being captured),
 *           CUDA; CAPACITY_EXCEEDED, with counts filled, where `overflow` is 1.
 * Threads   One thread at a time per ctx; the plan may be shared.
 */
SPOPS_API spops_status spops_plan_get_state_sync(spops_context *ctx, const spops_plan *plan,
                                                 int64_t *counts, int32_t max_counts,
                                                 int32_t *num_counts);

/**
 * Fill plans again from the plans that they stand on, in the order in which they stand on each other
 * and with as few launches as there can be: a chain of maps, convolutions and pools takes one call,
 * once its sets are filled.
 *
 * plans     [num_plans] in host memory, in any order; each once. Pyramids, kernel maps (from the sets that
 *           they were reserved for or set from last, which must still be there), convolutions, point
 *           convolutions and pools.
 *
 * Stream    Enqueues on ctx's stream. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (NULL, a plan that was not made for capacities, or whose parents are not
 *           known), NOT_SUPPORTED (a kind that is filled from the caller's data), CUDA. After the first
 *           two nothing was enqueued.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_update(spops_context *ctx, spops_plan *const *plans,
                                    int32_t num_plans);

/**
 * Save a plan that was made without capacities as bytes, for spops_plan_load: one of segments, a BEV plan, a
 * partition, or a kernel map by create or create_inverse that holds its TABLE.
 *
 * parents   [num_parents] of a kernel map the sets that it was made from: in, and out where that is
 *           another. NULL and 0 of other kinds.
 * buffer    Host memory of `capacity` bytes, written; NULL: nothing is, and *bytes says what would
 *           be.
 * bytes     Set to the bytes written, or needed.
 *
 * Stream    Waits for ctx's stream. Not capturable.
 * Errors    INVALID_ARGUMENT (NULL, buffer too small, a plan made by reserve, sets of other sizes),
 *           NOT_SUPPORTED (a kind that is not saved, a map without its TABLE), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx; the plans may be shared.
 */
SPOPS_API spops_status spops_plan_save(spops_context *ctx, const spops_plan *plan,
                                       const spops_plan *const *parents, int32_t num_parents,
                                       void *buffer, size_t capacity, size_t *bytes);

/**
 * Load a plan that spops_plan_save wrote, on any backend. It holds what the saved one held.
 *
 * kind      That was saved; bytes of another are refused.
 * parents   [num_parents] of a kernel map sets with the rows of those that it was made from. The rows of
 *           a set can be stored (spops_coords_get_view) and made a set again (spops_coords_create).
 * data      [bytes] host memory, checked like a caller's indices. Whatever they say, loading segments
 *           takes at most 2,048 * bytes of memory, scratch included.
 * plan      The plan, to be cast to its kind; NULL after a failure.
 *
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    CORRUPT_DATA (truncated, damaged or hostile bytes, another kind, a map between other sets),
 *           INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED (a kind that is not saved), CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 */
SPOPS_API spops_status spops_plan_load(spops_context *ctx, spops_plan_kind kind,
                                       const spops_plan *const *parents, int32_t num_parents,
                                       const void *data, size_t bytes, spops_plan **plan);

/** Bytes of the plan's arrays where its context runs; 0 for NULL. */
SPOPS_API size_t spops_plan_bytes(const spops_plan *plan);

/** Scratch that calls with the plan need in their context (spops_context_reserve); 0 for NULL. */
SPOPS_API size_t spops_plan_scratch_bytes(const spops_plan *plan);

/** Free a plan, after its context's work. NULL is fine; a caller's block stays the caller's. */
SPOPS_API void spops_plan_destroy(spops_plan *plan);

SPOPS_EXTERN_C_END

#endif
