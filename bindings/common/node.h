// SPDX-License-Identifier: Apache-2.0
// Nodes of an engine's network, from the list of operators: what a row takes and gives, the fields that
// a node has besides its tensors, shapes and dtypes of outputs, and the values of a call. The engines'
// plugins (bindings/tensorrt, bindings/onnxruntime) loop over rows by this.
//
// A plan between nodes is its block, a tensor of i32, and a field NAME_ints of each node that makes or
// takes it: its description (spops_plan_describe), with those of the plans that it stands on.
#ifndef SPOPS_BINDINGS_NODE_H
#define SPOPS_BINDINGS_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spops/call.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SPOPS_NODE_MAX_ARGS = 32, // inputs and outputs: bits of a uint32_t
    SPOPS_NODE_MAX_FIELDS = 48,
    SPOPS_NODE_MAX_DIMS = 8,
    SPOPS_NODE_MAX_LISTS = 24, // descriptions and lists of a call
    SPOPS_NODE_MAX_VALUES = 2 * SPOPS_NODE_MAX_ARGS + 33,
    SPOPS_NODE_ERROR = 256 // bytes of a message
};

// ---- Dtypes -------------------------------------------------------------------------------------

typedef enum spops_node_dtype {
    SPOPS_NODE_NONE = -1,
    SPOPS_NODE_F32,
    SPOPS_NODE_F16,
    SPOPS_NODE_BF16,
    SPOPS_NODE_F64,
    SPOPS_NODE_F8E4M3,
    SPOPS_NODE_F8E5M2,
    SPOPS_NODE_F4E2M1,
    SPOPS_NODE_I8,
    SPOPS_NODE_I32,
    SPOPS_NODE_I64,
    SPOPS_NODE_U8,
    SPOPS_NODE_NUM_DTYPES
} spops_node_dtype;

const char *spops_node_dtype_name(spops_node_dtype dtype);

// As DLPack has it: of a tensor, NONE for one that no operator takes, and into one.
spops_node_dtype spops_node_dtype_of(const spops_tensor *t);
void spops_node_set_dtype(spops_tensor *t, spops_node_dtype dtype);

// Bytes of so many elements.
size_t spops_node_dtype_bytes(spops_node_dtype dtype, int64_t count);

// ---- Rows ---------------------------------------------------------------------------------------

typedef enum spops_node_field_kind {
    SPOPS_NODE_FIELD_INTS,   // 64-bit integers: a description, an attribute
    SPOPS_NODE_FIELD_FLOATS, // doubles
    SPOPS_NODE_FIELD_TEXT
} spops_node_field_kind;

// A field: fields of plans (NAME_ints) come first, then attributes, then those of the node itself.
typedef struct spops_node_field {
    char name[40];
    spops_node_field_kind kind;
    int32_t most;                             // numbers that it may have
    int32_t arg;                              // a description: of this argument; else -1
    const spops_operator_argument *attribute; // NULL: none
} spops_node_field;

// What an engine asks of a row.
typedef struct spops_node_row {
    const spops_operator *op;
    int32_t num_args; // inputs, outputs
    int32_t num_fields;
    spops_node_field fields[SPOPS_NODE_MAX_FIELDS];
    // Outputs that a call may leave parts of alone. Inputs after those of the row, one for each of them,
    // say what they begin with; where there is none they begin with zeros.
    int32_t num_begins;
    int8_t begins[SPOPS_NODE_MAX_ARGS];
    uint32_t free_outputs; // bits: the field output_dtype says of which dtype
} spops_node_row;

// All rows of tensors and blocks alone (needs_handles is 0) that have no more arguments and fields than a node
// may have (so has a test all of them); *num is set to how many there are. Does not fail.
const spops_node_row *spops_node_rows(int32_t *num);

const spops_node_row *spops_node_row_find(const char *name);

static inline const spops_operator_argument *spops_node_arg(const spops_node_row *row, int32_t arg)
{
    return row->op->arguments[arg];
}

// The field of this name, -1: none.
int32_t spops_node_field_find(const spops_node_row *row, const char *name);

// Whether an argument may be of a dtype, beside the dtypes of those before it (NONE: not there).
bool spops_node_accepts(const spops_node_row *row, const spops_node_dtype *dtypes, int32_t arg,
                        spops_node_dtype dtype);

// The only dtype that an argument may have, NONE where there are several.
spops_node_dtype spops_node_only_dtype(const spops_node_row *row, int32_t arg);

// ---- Nodes --------------------------------------------------------------------------------------

// One field's numbers.
typedef struct spops_node_list {
    int32_t count;
    void *data; // int64_t, double or char; NULL: not given
} spops_node_list;

typedef struct spops_node {
    const spops_node_row *row;
    spops_node_list fields[SPOPS_NODE_MAX_FIELDS];
    int64_t values[SPOPS_NODE_MAX_FIELDS]; // of attributes that are one number; of floats the bits
    uint32_t present;         // bits of arguments: all that must be, and the field `present`
    uint32_t begins, aliases; // bits of arguments: fields `begin` and `alias`
    spops_node_dtype output_dtype;
} spops_node;

typedef enum spops_node_data {
    SPOPS_NODE_DATA_I32,
    SPOPS_NODE_DATA_I64,
    SPOPS_NODE_DATA_F32,
    SPOPS_NODE_DATA_F64,
    SPOPS_NODE_DATA_TEXT
} spops_node_data;

// A node without fields; NULL: no memory.
spops_node *spops_node_create(const spops_node_row *row);
spops_node *spops_node_copy(const spops_node *node);
void spops_node_destroy(spops_node *node);

// Give a field its numbers, or its text (an enumerator's name, names of flags joined by |). false: it
// cannot have these, with a line in error [SPOPS_NODE_ERROR].
bool spops_node_set(spops_node *node, int32_t field, spops_node_data type, const void *data,
                    int32_t count, char *error);

// ---- Shapes -------------------------------------------------------------------------------------

// A size: a number, or what the engine has for one that it does not know yet.
typedef struct spops_node_size {
    int64_t value;
    const void *symbol; // NULL: value is it
} spops_node_size;

// How an engine combines sizes that are not all numbers: op is + - * / M (max) m (min).
typedef struct spops_node_algebra {
    void *user;
    const void *(*combine)(void *user, char op, spops_node_size a, spops_node_size b);
} spops_node_algebra;

// Tensors of a call, as far as shapes and dtypes go.
typedef struct spops_node_shapes {
    const spops_node *node;
    const spops_node_algebra *algebra; // NULL: all are numbers
    int32_t device_type, device;       // DLPack's: where all tensors are
    uint32_t given;                    // bits of arguments
    int32_t num_dims[SPOPS_NODE_MAX_ARGS];
    spops_node_size dims[SPOPS_NODE_MAX_ARGS][SPOPS_NODE_MAX_DIMS];
    spops_node_dtype dtypes[SPOPS_NODE_MAX_ARGS];
    char error[SPOPS_NODE_ERROR];
} spops_node_shapes;

// The dtype of an output, NONE with a line in error where it does not follow. Descriptions and shapes
// are not looked at.
spops_node_dtype spops_node_output_dtype(spops_node_shapes *s, int32_t arg);

// How many dimensions an output has; of one in blocks as many as the first input in blocks.
int32_t spops_node_output_rank(spops_node_shapes *s, int32_t arg);

// Sets dims and num_dims of an output. false: a line in error.
bool spops_node_output_shape(spops_node_shapes *s, int32_t arg);

// ---- Calls --------------------------------------------------------------------------------------

// One call, from an engine's tensors to values. It lives on the stack: nothing is allocated.
typedef struct spops_node_call {
    spops_node_shapes shapes;
    spops_tensor tensors[SPOPS_NODE_MAX_ARGS];
    int64_t sizes[SPOPS_NODE_MAX_ARGS][SPOPS_NODE_MAX_DIMS];
    spops_tensor lists[SPOPS_NODE_MAX_LISTS];
    int64_t list_sizes[SPOPS_NODE_MAX_LISTS];
    spops_value values[SPOPS_NODE_MAX_VALUES];
    int32_t num_lists, num_values;
} spops_node_call;

// device_type, device: of all tensors.
void spops_node_call_begin(spops_node_call *c, const spops_node *node, int32_t device_type,
                           int32_t device);

// An argument that is there; its shape and dtype are in c->shapes already, numbers all.
void spops_node_call_tensor(spops_node_call *c, int32_t arg, void *data);

// The values of all that is there, into c->values.
void spops_node_call_fill(spops_node_call *c);

// Scratch of the call, with the memory that spops_call_on_stream takes for it.
spops_status spops_node_call_scratch(spops_node_call *c, size_t *bytes);

// Whether an output that a call may leave parts of alone is left alone by this call.
bool spops_node_call_keeps(const spops_node_call *c, int32_t arg);

// ---- CUDA's driver ------------------------------------------------------------------------------
// Looked for when it is first asked: nothing of CUDA is linked.

// The current device of the calling thread, -1: none.
int32_t spops_node_cuda_device(void);

// An output's first contents, on a stream; from: NULL for zeros. Host memory: done at once.
bool spops_node_begin_output(int32_t device_type, void *to, const void *from, size_t bytes,
                             void *stream);

#ifdef __cplusplus
}
#endif

#endif
