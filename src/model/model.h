// SPDX-License-Identifier: Apache-2.0
// The inside of a model: values, sets, maps and steps. A reader (dialect.c, domain.c) describes the
// network; engine.c gives it plans and memory, and runs it.
#ifndef SPOPS_MODEL_MODEL_H
#define SPOPS_MODEL_MODEL_H

#include "core/backend.h"
#include "core/memory.h"
#include "model/onnx.h"
#include "spops/call.h"
#include "spops/model.h"
#include "spops/sparseconv.h"

// Of a value that is u8, which no spops_dtype says.
#define SPOPS_MODEL_U8 ((spops_dtype)16)

// What stands between steps: rows of a set, or a tensor.
typedef struct spops_model_value {
    char *name;
    spops_dtype dtype;
    int32_t set;    // of rows; -1: a tensor
    int32_t parent; // a tensor that is the same bytes as another (Reshape); -1
    int64_t cols, row_stride;
    int32_t num_dims; // of a tensor
    int64_t shape[SPOPS_MODEL_MAX_DIMS];
    bool is_plan; // a block, i32 [shape[0]]
    const int64_t *description;
    int32_t num_description;
    // Memory. Steps `first` to `last` need it; pinned: it is an input, an output or an initializer.
    size_t bytes, offset;
    int32_t first, last;
    bool is_pinned, is_input, is_output, is_placed;
    void *data;
    // An initializer: where its bytes are in the file, until they are uploaded.
    spops_span init;
} spops_model_value;

typedef struct spops_model_set {
    int32_t from; // the set that the convolution reads; -1: the input
    // The rows of `from` with axis a in the place of its axis order[a]: for a dense grid whose axes a file
    // permutes. permuted [max_rows][1 + dims] are these rows.
    bool is_permuted;
    int32_t order[SPOPS_MAX_DIMS];
    int32_t *permuted;
    bool is_dense; // a dense grid is written from it
    spops_kernel_shape kernel;
    int32_t size[SPOPS_MAX_DIMS]; // cells along the axes
    int64_t bound, max_rows;      // what the file, and what the plan has room for
    int32_t node;                 // that makes it
    char *name;                   // of that node
    spops_coords *coords;         // NULL of the input with voxels, which have it
} spops_model_set;

typedef struct spops_model_map {
    spops_kernel_map_kind kind;
    int32_t in, out; // sets
    spops_kernel_shape kernel;
    bool is_narrow; // a layer has columns that kernels of matrix units do not take
    spops_kernel_map *map;
    spops_sparseconv *conv;
    size_t bytes; // of both
} spops_model_map;

typedef enum spops_model_step_kind {
    SPOPS_MODEL_INPUT,      // the input's set from its rows
    SPOPS_MODEL_VOXELS,     // or from points, with their means
    SPOPS_MODEL_SETS,       // all other sets
    SPOPS_MODEL_PLANS,      // maps and convolutions
    SPOPS_MODEL_CONV,       // with its epilogue
    SPOPS_MODEL_ADD,        // of rows, alone
    SPOPS_MODEL_ACTIVATION, // alone
    SPOPS_MODEL_DENSE,
    SPOPS_MODEL_PERMUTE,
    SPOPS_MODEL_CALL // an operator of the list
} spops_model_step_kind;

typedef struct spops_model_step {
    spops_model_step_kind kind;
    char *name;
    const char *op;
    int32_t node, num_nodes;  // of the file; -1
    int32_t x, residual, out; // values; -1
    int32_t map;              // -1
    int32_t permuted_set;     // that a dense grid is written by; -1: the set of x
    char *rulebook;           // of a convolution, as the file names it; "": not
    spops_activation activation;
    // A convolution: weights [taps * in][out] and bias [out] f32, in the block of weights.
    int64_t in_cols, out_cols, num_taps; // columns as the step has them: padded
    int64_t file_cols;                   // of the weights in the file
    spops_span weights, bias;            // in the file, f16; bias without bytes: there is none
    const float *ranges; // of an int8 layer's weights: of all, or one an output column; NULL
    int32_t num_ranges;
    float x_range; // of an int8 layer's rows; 0: not said
    bool has_bias;
    size_t weight_offset, bias_offset, weight_bytes;
    size_t scales_offset; // of codes: of the output columns, then of x
    // A permutation: copies of `in_cols` columns from row to row.
    int32_t order[SPOPS_MODEL_MAX_DIMS];
    spops_segments *copies;
    // An operator: its arguments, made once.
    const struct spops_operator *called;
    struct spops_model_call *call;
    int32_t *used, num_used; // values that it reads and writes
    size_t plan_bytes;
} spops_model_step;

// Arrays that grow while a file is read, and host memory that goes with the model.
typedef struct spops_model_list {
    void *items;
    int32_t num, room;
} spops_model_list;

struct spops_model {
    spops_context *ctx;
    spops_model_options options;
    spops_voxels_options voxel_options;
    bool has_voxels;
    int32_t dims, num_batches;
    int64_t max_points;
    spops_dtype dtype; // of rows and weights
    spops_model_list values, sets, maps, steps, inputs, outputs;
    spops_model_list memory; // blocks that go with the model
    // Where ctx runs: weights; features; inputs and outputs, each in one block.
    void *weights, *features, *arrays;
    size_t weight_bytes, feature_bytes, array_bytes, input_bytes, output_bytes, plan_bytes;
    size_t codes_offset; // among the weights: rows of a layer in i8
    spops_voxels *voxels;
    int32_t *num_rows, *coords, *batch; // of the input
    float *points;
    void *point_features;
    spops_plan **plans; // maps and convolutions, for spops_update
    int32_t num_plans;
    int32_t num_int8;
    size_t scratch_bytes;
    void *graph;
    // While it is loaded.
    const char *call;
    const spops_onnx *onnx;
};

// ---- Lists ----------------------------------------------------------------------------------------

// One more item of `bytes`, zeroed; NULL (message set): no memory.
void *spops_model_add(spops_model *m, spops_model_list *list, size_t bytes);
// A copy of a name that lives as long as the model; NULL likewise.
char *spops_model_text(spops_model *m, spops_span name);
// Zeroed memory that lives as long as the model; NULL likewise.
void *spops_model_memory(spops_model *m, size_t bytes);

#define SPOPS_MODEL_AT(list, type, i) (&((type *)(list).items)[i])
static inline spops_model_value *spops_model_value_at(const spops_model *m, int32_t i)
{
    return SPOPS_MODEL_AT(m->values, spops_model_value, i);
}
static inline spops_model_set *spops_model_set_at(const spops_model *m, int32_t i)
{
    return SPOPS_MODEL_AT(m->sets, spops_model_set, i);
}
static inline spops_model_map *spops_model_map_at(const spops_model *m, int32_t i)
{
    return SPOPS_MODEL_AT(m->maps, spops_model_map, i);
}
static inline spops_model_step *spops_model_step_at(const spops_model *m, int32_t i)
{
    return SPOPS_MODEL_AT(m->steps, spops_model_step, i);
}

// "call: node 3 'conv3' (SparseConvolution): byte 120: ..."
__attribute__((format(printf, 4, 5))) spops_status spops_model_refuse(const spops_model *m,
                                                                      spops_status status,
                                                                      int32_t node,
                                                                      const char *format, ...);
// The same of a failure that ctx has the line of; OK passes.
spops_status spops_model_at_node(const spops_model *m, int32_t node, spops_status status);

// The value of this name; -1: there is none.
int32_t spops_model_find_value(const spops_model *m, spops_span name);

// The set that a dense grid is written by.
static inline int32_t spops_model_dense_set(const spops_model *m, const spops_model_step *s)
{
    return s->permuted_set >= 0 ? s->permuted_set : spops_model_value_at(m, s->x)->set;
}

// ---- Readers --------------------------------------------------------------------------------------

spops_status spops_model_read_dialect(spops_model *m);
spops_status spops_model_read_domain(spops_model *m);

// ---- Running --------------------------------------------------------------------------------------

spops_status spops_model_plan(spops_model *m); // sets, maps, convolutions
void spops_model_free_sets(spops_model *m);
spops_status spops_model_place(spops_model *m); // weights, features, inputs, outputs
// in_turn: all steps before it were enqueued before, in this run.
spops_status spops_model_run_step(const spops_model *m, int32_t i, bool in_turn);
// What a value is for a call, with all the rows that it has room for.
spops_matrix spops_model_matrix(const spops_model *m, int32_t value);

spops_status spops_model_prepare_call(spops_model *m, spops_model_step *s);
spops_status spops_model_run_call(const spops_model *m, const spops_model_step *s);

#endif
