/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel maps: which input row meets which output row at which tap of a sparse convolution.
 *
 * A map is built once from two sets of coordinates and serves the forward pass and both gradients
 * of every layer with that geometry. It offers what each way of running a convolution needs; the
 * caller says what it shall hold when the map is made.
 */
#ifndef SPOPS_KERNEL_MAP_H
#define SPOPS_KERNEL_MAP_H

#include "spops/coords.h"

SPOPS_EXTERN_C_BEGIN

/** A kernel map: which input row each tap of a kernel joins to each output row. */
typedef struct spops_kernel_map spops_kernel_map;

/** How inputs and outputs of a kernel map lie to each other. */
typedef enum spops_kernel_map_kind {
    SPOPS_MAP_SUBMANIFOLD = 0, /* out is in; odd sizes, stride 1, the centre tap joins row to row */
    SPOPS_MAP_CONVOLUTION = 1, /* in = stride * out - padding + dilation * t */
    SPOPS_MAP_TRANSPOSED = 2   /* out = stride * in - padding + dilation * t: onto the finer
                                  set that a network had, or generative onto a new one. The way back
                                  up from a convolution is spops_kernel_map_create_inverse */
} spops_kernel_map_kind;

/**
 * What a map holds, to be or-ed. Other libraries' names of the same thing are in brackets.
 *
 * TABLE     For every output row and tap the input row, or -1, and a mask of the taps that are
 *           there [implicit GEMM's pair table and pair mask; neighbour map].
 * ORDER     The output rows sorted by mask, cut into tiles of rows that miss the same taps
 *           [argsort of masks, mask splits; reordering]. Brings TABLE.
 * PAIRS     For every tap its pairs (input row, output row) [rulebook, indice pairs; in-out map].
 * CSR       For every output row its pairs, as compressed sparse rows, and the places of
 *           these pairs among PAIRS. Brings PAIRS.
 * REVERSE   TABLE, ORDER and CSR, as far as they are asked for, also of the inputs [transposed
 *           map; backward map], which gradients of features need.
 * FOR_CONV  What every sparse convolution runs on, the fastest way of this device too: TABLE and PAIRS,
 *           and ORDER where the device has implicit GEMM (compute capability 8.0 or more).
 * FOR_CONV_BACKWARD
 *           The same with what gradients run on: REVERSE too, where the device has implicit GEMM.
 * FOR_ONE_CONV
 *           What one call runs on, before the map is made or filled again, of a layer without gradients
 *           that has up to 32 columns of output: where the device has implicit GEMM, TABLE and an ORDER
 *           that costs less to make and fits tiles less (measured in docs/performance.md); else as
 *           FOR_CONV.
 *
 * The last three stand for others, by the device of ctx: spops_kernel_map_info.contents has these.
 * FOR_ONE_CONV stays beside them: it says which ORDER there is.
 */
typedef enum spops_kernel_map_contents {
    SPOPS_MAP_TABLE = 1,
    SPOPS_MAP_ORDER = 2,
    SPOPS_MAP_PAIRS = 4,
    SPOPS_MAP_CSR = 8,
    SPOPS_MAP_REVERSE = 16,
    SPOPS_MAP_FOR_CONV = 32,
    SPOPS_MAP_FOR_CONV_BACKWARD = 64,
    SPOPS_MAP_FOR_ONE_CONV = 128
} spops_kernel_map_contents;

/** Choices of the calls that make kernel maps. */
typedef struct spops_kernel_map_options {
    size_t struct_size;  /* sizeof(spops_kernel_map_options) */
    int32_t contents;    /* SPOPS_MAP_*; 0: FOR_CONV_BACKWARD */
    int32_t tile_rows;   /* of ORDER: 8 to 1024, a power of two; 0: 128 */
    int64_t max_pairs;   /* of a map made by reserve, with PAIRS. FOR_CONV and contents 0 take 0 for
                            all that there can be: rows of out times taps */
    int32_t no_symmetry; /* 1: search every tap, also where a map is its own mirror image */
    int32_t reserved;
    spops_plan_memory *memory; /* of reserve: where the map lives; NULL: allocated */
} spops_kernel_map_options;

SPOPS_DEFINE_DEFAULT(spops_kernel_map_options)

/**
 * Build a map.
 *
 * kernel    Refused: sizes outside 1 to SPOPS_MAX_KERNEL_SIZE, stride or dilation below 1, even
 *           sizes where kind is SUBMANIFOLD. The padding of a SUBMANIFOLD is 0, or dilation * (size / 2).
 * in, out   The sets that features are rows of; with SUBMANIFOLD, out is `in` or NULL. Not needed
 *           once the map is made.
 *
 * options   NULL: defaults, a map that a convolution made with defaults runs on, with its gradients,
 *           and that spops_kernel_map_create_inverse takes.
 * map       The map; NULL after a failure.
 *
 * Memory    Where ctx runs.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Numerics  The same map, in the same order, whatever the search strategy, backend or run.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (more than INT32_MAX - 1 pairs, where pairs are asked
 *           for), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the map.
 * Source    TorchSparse, Algorithm 1 and section 4.4; docs/coords.md.
 */
SPOPS_API spops_status spops_kernel_map_create(spops_context *ctx, spops_kernel_map_kind kind,
                                               const spops_kernel_shape *kernel,
                                               const spops_coords *in, const spops_coords *out,
                                               const spops_kernel_map_options *options,
                                               spops_kernel_map **map);

/**
 * The map of the layer that undoes another's: outputs and inputs change places, taps stay. For
 * inverse convolution with the map of the layer that went down.
 *
 * of        Must hold its TABLE. Not needed once the map is made.
 * options   As spops_kernel_map_create.
 *
 * Memory, Stream, Numerics, Errors and Threads as spops_kernel_map_create.
 */
SPOPS_API spops_status spops_kernel_map_create_inverse(spops_context *ctx,
                                                       const spops_kernel_map *of,
                                                       const spops_kernel_map_options *options,
                                                       spops_kernel_map **map);

/**
 * A map into capacities, those of in and out and options->max_pairs, filled by spops_kernel_map_update
 * as often as wanted. Until then it is empty.
 *
 * in, out   Their capacities count, and their boxes; what they hold does not yet.
 *
 * Memory    All that a set needs is allocated here.
 * Kernel, options, Stream, Errors and Threads as spops_kernel_map_create.
 */
SPOPS_API spops_status spops_kernel_map_reserve(spops_context *ctx, spops_kernel_map_kind kind,
                                                const spops_kernel_shape *kernel,
                                                const spops_coords *in, const spops_coords *out,
                                                const spops_kernel_map_options *options,
                                                spops_kernel_map **map);

/**
 * Rebuild a map made by spops_kernel_map_reserve from what in and out hold when the stream gets
 * there. Their capacities must be those that the map was reserved with. Where there are more pairs
 * than max_pairs, the overflow flag is set, and PAIRS and CSR are empty; TABLE and ORDER hold.
 *
 * Memory    in and out where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not such a map, NULL, capacities), CUDA.
 * Threads   One thread at a time per ctx and per map.
 */
SPOPS_API spops_status spops_kernel_map_update(spops_context *ctx, spops_kernel_map *map,
                                               const spops_coords *in, const spops_coords *out);

/** A map seen from its outputs, or from its inputs. Arrays of what was not asked for are NULL. */
typedef struct spops_kernel_map_side {
    size_t struct_size;      /* what the library that made the map has of it */
    int64_t max_rows;        /* for a map not made by reserve: the rows */
    const int32_t *num_rows; /* [1] rows in use; arrays hold nothing of use after them */
    /*
     * TABLE. table[r * table_stride + k]: the other side's row that tap k joins to row r, or -1.
     * Elements from num_taps to table_stride (a multiple of 4) are -1. Bit k % 32 of
     * masks[r * mask_words + k / 32] says whether there is one.
     */
    const int32_t *table;
    const uint32_t *masks;
    int32_t mirrored; /* 1: table, masks, order and tiles are those of the outputs, so that column k
                          of the table is for tap num_taps - 1 - k. Of the inputs of a map that is
                          its own mirror image (submanifold). CSR has the pairs' own taps */
    int32_t num_tiles; /* ceil(max_rows / tile_rows) */
    /*
     * ORDER. order[i]: rows by their masks (stable), so that neighbours miss the same taps; planes
     * of taps count most, then the taps farthest from the kernel's centre (docs/coords.md). Tile t
     * holds order[t * tile_rows ..]; tile_masks[t * mask_words ..] are its rows' masks or-ed.
     * tile_order: tiles, those with most taps first (stable); tiles past the rows have no taps.
     */
    const int32_t *order;
    const uint32_t *tile_masks;
    const int32_t *tile_order;
    /*
     * CSR. Row r has the pairs offsets[r] .. offsets[r + 1] - 1, by ascending tap:
     * row_taps[2 * p] is the other side's row, row_taps[2 * p + 1] the tap, pair_ids[p] the place
     * of the pair in tap order. offsets has max_rows + 1 elements, all of them valid.
     */
    const int32_t *offsets;
    const int32_t *row_taps;
    const int32_t *pair_ids;
} spops_kernel_map_side;

/** Arrays of a kernel map where its context runs; valid while it lives. */
typedef struct spops_kernel_map_view {
    size_t struct_size; /* set by the caller: sizeof(spops_kernel_map_view) */
    int32_t num_taps;
    int32_t mask_words;   /* ceil(num_taps / 32) */
    int32_t table_stride; /* num_taps rounded up to 4 */
    int32_t tile_rows;
    const spops_kernel_map_side *out; /* the forward pass; host memory, belongs to the map */
    const spops_kernel_map_side *in;  /* the reverse; without SPOPS_MAP_REVERSE its arrays are
                                         NULL */
    /* PAIRS. Tap k has the pairs tap_offsets[k] .. tap_offsets[k + 1] - 1, by ascending output. */
    const int32_t *tap_offsets; /* [num_taps + 1] */
    const int32_t *in_rows;     /* [max_pairs] */
    const int32_t *out_rows;    /* [max_pairs] */
    int64_t max_pairs;
    const int32_t *tap_counts; /* [num_taps] pairs of a tap, found also past a capacity; always */
} spops_kernel_map_view;

SPOPS_DEFINE_DEFAULT(spops_kernel_map_view)

/**
 * Fill view; its arrays are where the map's context runs and valid while the map lives. What a map
 * made by reserve holds changes with every set, the addresses do not.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx; the map may be shared.
 */
SPOPS_API spops_status spops_kernel_map_get_view(spops_context *ctx, const spops_kernel_map *map,
                                                 spops_kernel_map_view *view);

/** What a kernel map holds. */
typedef struct spops_kernel_map_info {
    size_t struct_size; /* set by the caller */
    spops_kernel_map_kind kind;
    int32_t contents;
    const spops_kernel_shape *kernel; /* belongs to the map */
    int64_t num_taps;
    int64_t num_in, num_out; /* rows in use */
    int64_t num_pairs;       /* found, also where they exceed the capacity */
    int64_t max_pairs;
    int64_t overflow; /* 1: more pairs than max_pairs */
} spops_kernel_map_info;

SPOPS_DEFINE_DEFAULT(spops_kernel_map_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1.
 * Threads   One thread at a time per ctx; the map may be shared.
 */
SPOPS_API spops_status spops_kernel_map_get_info_sync(spops_context *ctx,
                                                      const spops_kernel_map *map,
                                                      spops_kernel_map_info *info);

/** Free a map; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_kernel_map_destroy(spops_kernel_map *map)
{
    spops_plan_destroy((spops_plan *)map);
}

SPOPS_EXTERN_C_END

#endif
