/*
 * Kernel maps: which input row meets which output row at which tap of a sparse convolution.
 *
 * A map is built once from two sets of coordinates and serves the forward pass and both gradients
 * of every layer with that geometry. It offers what each way of running a convolution needs; the
 * caller names these parts when the map is made.
 */
#ifndef SPOPS_KERNEL_MAP_H
#define SPOPS_KERNEL_MAP_H

#include "spops/coords.h"

SPOPS_EXTERN_C_BEGIN

typedef struct spops_kernel_map spops_kernel_map;

typedef enum spops_kernel_map_kind {
    SPOPS_MAP_SUBMANIFOLD = 0, /* out is in; odd sizes, stride 1, the centre tap joins row to row */
    SPOPS_MAP_CONVOLUTION = 1, /* in = stride * out - padding + dilation * t */
    SPOPS_MAP_TRANSPOSED = 2   /* out = stride * in - padding + dilation * t: also the inverse of a
                                  convolution, and generative layers */
} spops_kernel_map_kind;

/** Parts of a map, to be or-ed. */
typedef enum spops_kernel_map_parts {
    SPOPS_MAP_TABLE = 1,   /* neighbour table and tap masks of the outputs */
    SPOPS_MAP_ORDER = 2,   /* their rows ordered by mask, in tiles; brings TABLE */
    SPOPS_MAP_PAIRS = 4,   /* pairs (input, output) in tap order */
    SPOPS_MAP_LISTS = 8,   /* the pairs of each output, and where they are in tap order; PAIRS */
    SPOPS_MAP_REVERSE = 16 /* TABLE, ORDER, LISTS also by input, for gradients: those asked for */
} spops_kernel_map_parts;

typedef struct spops_kernel_map_options {
    size_t struct_size;
    int32_t parts;     /* SPOPS_MAP_*; 0: TABLE */
    int32_t tile_rows; /* of ORDER: 8 to 1024, a power of two; 0: 128 */
    int64_t max_pairs; /* of a map made by reserve, with PAIRS */
    int32_t plain;     /* 1: search every tap, also where a map is its own mirror image */
    int32_t reserved;
} spops_kernel_map_options;

static inline spops_kernel_map_options spops_kernel_map_options_default(void)
{
    spops_kernel_map_options options = SPOPS_ZERO_INIT;
    options.struct_size = sizeof options;
    return options;
}

/**
 * Build a map.
 *
 * kernel    Refused: sizes outside 1 to SPOPS_MAX_KERNEL_SIZE, stride or dilation below 1, even
 *           sizes where kind is SUBMANIFOLD. A SUBMANIFOLD's padding is 0 or that of its centre.
 * in, out   The sets that features are rows of; with SUBMANIFOLD, out is `in` or NULL. Not needed
 *           once the map is made.
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
 * inverse convolution with the map of the layer that went down. `of` must have its TABLE.
 */
SPOPS_API spops_status spops_kernel_map_create_inverse(spops_context *ctx,
                                                       const spops_kernel_map *of,
                                                       const spops_kernel_map_options *options,
                                                       spops_kernel_map **map);

/** A map into capacities: those of in and out, and max_pairs. Empty until it is set. */
SPOPS_API spops_status spops_kernel_map_reserve(spops_context *ctx, spops_kernel_map_kind kind,
                                                const spops_kernel_shape *kernel,
                                                const spops_coords *in, const spops_coords *out,
                                                const spops_kernel_map_options *options,
                                                spops_kernel_map **map);

/**
 * Rebuild a map made by spops_kernel_map_reserve from what in and out hold when the stream gets
 * there. Their capacities must be those that the map was reserved with. Where there are more pairs
 * than max_pairs, the overflow flag is set, and PAIRS and LISTS are empty; TABLE and ORDER hold.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 */
SPOPS_API spops_status spops_kernel_map_set(spops_context *ctx, spops_kernel_map *map,
                                            const spops_coords *in, const spops_coords *out);

/** A map seen from its outputs, or from its inputs. Arrays of parts not asked for are NULL. */
typedef struct spops_kernel_map_side {
    int64_t max_rows;        /* for a map not made by reserve: the rows */
    const int32_t *num_rows; /* [1] rows in use; arrays hold nothing of use behind them */
    /*
     * TABLE. table[r * table_stride + k]: the other side's row that tap k joins to row r, or -1.
     * Elements from num_taps to table_stride (a multiple of 4) are -1. Bit k % 32 of
     * masks[r * mask_words + k / 32] says whether there is one.
     */
    const int32_t *table;
    const uint32_t *masks;
    int32_t mirrored;  /* 1: the table's tap k is tap num_taps - 1 - k; by input, submanifold */
    int32_t num_tiles; /* ceil(max_rows / tile_rows) */
    /*
     * ORDER. order[i]: rows by their masks in Gray-code order (stable), so that neighbours miss the
     * same taps; the taps farthest from the kernel's centre count most (docs/coords.md). Tile t
     * holds order[t * tile_rows ..]; tile_masks[t * mask_words ..] are its rows' masks or-ed.
     * tile_order: tiles, those with most taps first (stable); tiles past the rows have no taps.
     */
    const int32_t *order;
    const uint32_t *tile_masks;
    const int32_t *tile_order;
    /*
     * LISTS. Row r has the pairs offsets[r] .. offsets[r + 1] - 1, by ascending tap:
     * list[2 * p] is the other side's row, list[2 * p + 1] the tap, positions[p] the pair's place
     * in tap order. offsets has max_rows + 1 elements, all of them valid.
     */
    const int32_t *offsets;
    const int32_t *list;
    const int32_t *positions;
} spops_kernel_map_side;

typedef struct spops_kernel_map_view {
    int32_t num_taps;
    int32_t mask_words;   /* ceil(num_taps / 32) */
    int32_t table_stride; /* num_taps rounded up to 4 */
    int32_t tile_rows;
    spops_kernel_map_side out; /* the forward pass */
    spops_kernel_map_side in;  /* the reverse, with SPOPS_MAP_REVERSE; else its arrays are NULL */
    /* PAIRS. Tap k has the pairs tap_offsets[k] .. tap_offsets[k + 1] - 1, by ascending output. */
    const int32_t *tap_offsets; /* [num_taps + 1] */
    const int32_t *in_rows;     /* [max_pairs] */
    const int32_t *out_rows;    /* [max_pairs] */
    int64_t max_pairs;
    const int32_t *tap_counts; /* [num_taps] pairs of a tap, found also past a capacity; always */
} spops_kernel_map_view;

/** Fill view; its arrays are where the map's context runs and valid while the map lives. */
SPOPS_API spops_status spops_kernel_map_get_view(spops_context *ctx, const spops_kernel_map *map,
                                                 spops_kernel_map_view *view);

typedef struct spops_kernel_map_info {
    size_t struct_size; /* set by the caller */
    spops_kernel_map_kind kind;
    int32_t parts;
    spops_kernel_shape kernel;
    int64_t num_taps;
    int64_t num_in, num_out; /* rows in use */
    int64_t num_pairs;       /* found, also where they exceed the capacity */
    int64_t max_pairs;
    int64_t overflow; /* 1: more pairs than max_pairs */
} spops_kernel_map_info;

/** Fill info; waits for ctx's stream. CAPACITY_EXCEEDED (info still filled) if overflow is 1. */
SPOPS_API spops_status spops_kernel_map_get_info_sync(spops_context *ctx,
                                                      const spops_kernel_map *map,
                                                      spops_kernel_map_info *info);

/**
 * Save a map made by create or create_inverse as bytes, and load it back, on any backend.
 *
 * in, out   The sets it was made from (out NULL: in). load checks that the bytes belong to them.
 * save      buffer NULL: only *bytes is set, to what is needed. Otherwise buffer (host memory)
 *           holds `capacity` bytes, and *bytes is set to what was written. Needs TABLE. Waits.
 * load      Damaged or hostile bytes, or those of a map between other sets, give CORRUPT_DATA. The
 *           map gets the parts that the saved one had.
 *
 * Errors    INVALID_ARGUMENT (buffer too small, a map made by reserve, sets of other sizes),
 *           CORRUPT_DATA, OUT_OF_MEMORY, CUDA.
 */
SPOPS_API spops_status spops_kernel_map_save(spops_context *ctx, const spops_kernel_map *map,
                                             const spops_coords *in, const spops_coords *out,
                                             void *buffer, size_t capacity, size_t *bytes);
SPOPS_API spops_status spops_kernel_map_load(spops_context *ctx, const spops_coords *in,
                                             const spops_coords *out, const void *data,
                                             size_t bytes, spops_kernel_map **map);

/** Free a map; NULL is fine. Waits for its context; nothing else may be using it. */
SPOPS_API void spops_kernel_map_destroy(spops_kernel_map *map);

SPOPS_EXTERN_C_END

#endif
