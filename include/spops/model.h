/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: networks from ONNX files, with all that they need to run planned when they are loaded. A
 * frame is then written to the model's inputs and executed: nothing is allocated, nobody waits, and
 * frames of any size up to the capacities take the same work.
 *
 *     load_file ---> get_input, get_output ---> execute, execute, ... ---> check_sync
 *
 * Two kinds of files are read: those of libspconv, NVIDIA's engine of sparse convolutions, as its
 * exporters write them, and graphs of the operators of this library (domain "spops").
 * docs/onnx.md says what a file may have. Nothing of ONNX or of protocol buffers is linked.
 */
#ifndef SPOPS_MODEL_H
#define SPOPS_MODEL_H

#include "spops/coords.h"
#include "spops/voxels.h"

SPOPS_EXTERN_C_BEGIN

#define SPOPS_MODEL_MAX_DIMS 8 /* of a tensor */

/** A network from a file, with its plans, its memory and, on CUDA, its graph. */
typedef struct spops_model spops_model;

/** What becomes of layers that a file of libspconv marks as int8. Rows keep their dtype in all of them. */
typedef enum spops_model_int8 {
    SPOPS_MODEL_INT8_ROUND =
        0, /* weights are rounded to the 255 values that their range gives them,
                                    those that an int8 layer multiplies by */
    SPOPS_MODEL_INT8_IGNORE = 1, /* weights as they are in the file */
    SPOPS_MODEL_INT8_REFUSE = 2, /* the file is refused */
    SPOPS_MODEL_INT8_CODES = 3   /* they multiply codes of i8: weights by their ranges, rows by
                                    input_dynamic_range, a pass before the layer; sums are exact. Layers
                                    without an input_dynamic_range are as ROUND has them */
} spops_model_int8;

/** Choices of spops_model_load. Those but no_graph are for files of libspconv. */
typedef struct spops_model_options {
    size_t struct_size;     /* sizeof(spops_model_options) */
    int64_t max_points;     /* with voxels: points of a frame; 0: as max_rows */
    int64_t max_rows;       /* of the input; 0: the largest output_bound of layers on its set */
    int64_t max_inner_rows; /* of every other set; 0: the output_bound of the layer that makes it */
    int32_t num_batches;    /* 0: as ScatterDense has, else 1 */
    int32_t widen;          /* 1: rows and weights in f32; 0: in f16, as the file has them */
    spops_model_int8 int8;
    int32_t no_graph; /* 1: every execute enqueues its calls one by one, also on CUDA */
    /*
     * The input is points: voxels of size_m and origin_m, in the order of the set's axes (z first where
     * the file is), with which of their points; dims, coords, crop and memory are left out. Features of
     * a voxel are the means of these points'. NULL: the input is rows and their coordinates.
     */
    const spops_voxels_options *voxels;
} spops_model_options;

SPOPS_DEFINE_DEFAULT(spops_model_options)

/**
 * Read a model and plan it.
 *
 * data      [bytes] host memory: the ONNX file. Not needed afterwards. Every length is checked, and
 *           what there may be of each thing is limited.
 * options   NULL: defaults.
 * model     NULL after a failure.
 *
 * Memory    Weights, plans, features, inputs and outputs where ctx runs; scratch in ctx.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors    CORRUPT_DATA (the place: node, field, byte), NOT_SUPPORTED (an operator, attribute or
 *           layer that is not read: the node), INVALID_ARGUMENT (options), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the model.
 * Source    The dialect: NVIDIA-AI-IOT/Lidar_AI_Solution, 3DSparseConvolution, its exporter and parser.
 */
SPOPS_API spops_status spops_model_load(spops_context *ctx, const void *data, size_t bytes,
                                        const spops_model_options *options, spops_model **model);

/** spops_model_load of the file `path`; INVALID_ARGUMENT where it cannot be read. */
SPOPS_API spops_status spops_model_load_file(spops_context *ctx, const char *path,
                                             const spops_model_options *options,
                                             spops_model **model);

/** What a model consists of, and how much memory it has. */
typedef struct spops_model_info {
    size_t struct_size; /* set by the caller */
    int32_t num_inputs, num_outputs;
    int32_t num_layers; /* what execute does, in order; some of it is no node of the file */
    int32_t num_sets;   /* of coordinates */
    int32_t has_graph;  /* 1: execute launches one graph */
    int32_t num_int8;   /* layers that the file marks as int8 */
    /* Bytes where ctx runs. */
    size_t weight_bytes, plan_bytes;
    size_t feature_bytes; /* between layers; what is not alive at once shares memory */
    size_t input_bytes, output_bytes;
    size_t scratch_bytes; /* memory of ctx that calls work in; shared with all else on ctx */
    size_t peak_bytes;    /* the most at any time: all of these together */
} spops_model_info;

SPOPS_DEFINE_DEFAULT(spops_model_info)

/**
 * Fill info.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_model_get_info(spops_context *ctx, const spops_model *model,
                                            spops_model_info *info);

/** A part of what execute does. Text lives as long as the model. */
typedef struct spops_model_layer {
    size_t struct_size; /* set by the caller */
    const char *name;   /* of the node; of several that run as one the last. "": no node */
    const char *op;     /* of the node, or "voxels", "input", "sets", "plans" */
    int32_t set;        /* that its output is rows of, -1: none */
    int32_t num_nodes;  /* that run as one */
    int64_t max_rows;   /* of its output, as the next three */
    int64_t in_cols, out_cols, num_taps;
    size_t weight_bytes, plan_bytes; /* of its own; plans count where they are used first */
    size_t output_bytes;
} spops_model_layer;

SPOPS_DEFINE_DEFAULT(spops_model_layer)

/** Fill layer; index is 0 to num_layers - 1. The rest as spops_model_get_info. */
SPOPS_API spops_status spops_model_get_layer(spops_context *ctx, const spops_model *model,
                                             int32_t index, spops_model_layer *layer);

/**
 * An input or an output: a tensor, or rows of a set. Memory is the model's, where ctx runs; inputs are
 * written and outputs read there. Its addresses never change.
 */
typedef struct spops_model_array {
    size_t struct_size; /* set by the caller */
    const char *name;
    spops_dtype dtype;
    int32_t num_dims;
    int64_t shape[SPOPS_MODEL_MAX_DIMS]; /* rows: [most rows, columns] */
    int64_t row_stride;                  /* elements from row to row; columns after the last are 0
                                            and stay so */
    void *data;
    /* Rows of a set. */
    int32_t set;       /* -1: a tensor; the other fields are then 0 */
    int32_t dims;      /* axes */
    int32_t *num_rows; /* [1] i32: rows in use; with points, points in use */
    int32_t *coords; /* [most rows][1 + dims] i32: batch, then axes; rows are unique and inside the
                          grid. NULL where the input is points */
    float *points;   /* [most points][dims] f32, m, in the order of the set's axes */
    int32_t *batch;  /* [most points] i32, which is 0 at first; NULL where there is one batch */
} spops_model_array;

SPOPS_DEFINE_DEFAULT(spops_model_array)

/** Fill array; index is 0 to num_inputs - 1. The rest as spops_model_get_info. */
SPOPS_API spops_status spops_model_get_input(spops_context *ctx, const spops_model *model,
                                             int32_t index, spops_model_array *array);

/** The same of an output. Its arrays hold the last frame. */
SPOPS_API spops_status spops_model_get_output(spops_context *ctx, const spops_model *model,
                                              int32_t index, spops_model_array *array);

/**
 * Run the model on what its inputs hold.
 *
 * ctx       The one that the model was loaded with.
 *
 * Stream    Enqueues on ctx's stream and returns: on CUDA one graph, unless the stream is being
 *           captured. Allocates nothing, waits for nothing, capturable.
 * Scratch   Reserved by load. A later call may not take it away (spops_context_set_scratch).
 * Numerics  Those of the calls that it is made of: the same bits as theirs, on every run.
 * Errors    INVALID_ARGUMENT, CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_model_execute(spops_context *ctx, spops_model *model);

/** Run one part of it, 0 to num_layers - 1, on what those before it have left. The rest as execute. */
SPOPS_API spops_status spops_model_execute_layer(spops_context *ctx, spops_model *model,
                                                 int32_t index);

/**
 * What a set of the model holds after the last frame: as spops_coords_get_info_sync.
 *
 * index     0 to num_sets - 1; 0 is the input's.
 */
SPOPS_API spops_status spops_model_get_set_sync(spops_context *ctx, const spops_model *model,
                                                int32_t index, spops_coords_info *info);

/**
 * Whether the last frame was run as a whole.
 *
 * Stream    Waits for ctx's stream. Not capturable.
 * Errors    CAPACITY_EXCEEDED (a set has no room for its rows, named by the layer that makes it),
 *           INVALID_ARGUMENT (rows of the input outside the grid, or given twice), NOT_SUPPORTED
 *           (the stream is being captured), CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_model_check_sync(spops_context *ctx, const spops_model *model);

/** Free a model; NULL is fine. Waits for its context; graphs that hold its calls must not run later. */
SPOPS_API void spops_model_destroy(spops_model *model);

SPOPS_EXTERN_C_END

#endif
