// SPDX-License-Identifier: Apache-2.0
/*
 * Operators of libspops as nodes of an engine's graph, through spops/call.h alone: from an operator's
 * name, tensors and attributes to shapes of outputs, bytes, scratch, and the call. This header and
 * spops_nodes.c are what an engine copies; no operator is named in them, and they allocate nothing.
 *
 * A plan (a set of coordinates, a kernel map, a plan of convolutions) is a tensor, the block that it
 * lives in, with a description of some integers. Both have their size before there is any data.
 *
 * Functions return 0 for success; else spops_nodes_error() is a sentence that says what is wrong.
 */
#ifndef SPOPS_NODES_H
#define SPOPS_NODES_H

#include <spops/call.h>

enum {
    SPOPS_NODES_MAX_ARGS = 16, /* inputs and outputs of a node */
    SPOPS_NODES_MAX_ATTRIBUTES = 24,
    SPOPS_NODES_MAX_INTS = 96, /* of a description */
    SPOPS_NODES_MAX_LIST = 8   /* numbers of an attribute */
};

typedef enum spops_nodes_dtype {
    SPOPS_NODES_F32,
    SPOPS_NODES_F16,
    SPOPS_NODES_BF16,
    SPOPS_NODES_F8E4M3,
    SPOPS_NODES_I32,
    SPOPS_NODES_U8,
    SPOPS_NODES_NUM_DTYPES
} spops_nodes_dtype;

typedef struct spops_nodes_tensor {
    spops_nodes_dtype dtype;
    int32_t num_dims; /* 0: an output whose shape is not known yet; 1 or 2 */
    int64_t shape[2];
    int32_t num_ints; /* of a plan: its description; else 0 */
    int64_t ints[SPOPS_NODES_MAX_INTS];
    void *data; /* where the context runs; NULL as long as only sizes are asked for */
} spops_nodes_tensor;

typedef struct spops_nodes_node {
    const spops_operator *op;
    spops_nodes_tensor *args[SPOPS_NODES_MAX_ARGS]; /* inputs, outputs; NULL: absent */
    const char
        *attributes[SPOPS_NODES_MAX_ATTRIBUTES]; /* as text, in the order of the row; NULL: as
                                                           the row says. "3", "0.5", "1,2,3", "silu" */
} spops_nodes_node;

/* The sentence of this thread's last error. */
const char *spops_nodes_error(void);

int spops_nodes_dtype_read(const char *name, spops_nodes_dtype *dtype); /* "f16" */
size_t spops_nodes_bytes(const spops_nodes_tensor *t);

/* An empty node of the operator of this name. */
int spops_nodes_find(const char *name, spops_nodes_node *node);

/* Which argument, or attribute, has this name; -1: none. */
int32_t spops_nodes_arg(const spops_nodes_node *node, const char *name);
int32_t spops_nodes_attribute(const spops_nodes_node *node, const char *name);

/*
 * Append the description of a plan of this kind to t->ints: fields by name as text, those that are left
 * out are 0. "dims=3 max_rows=1000 upper=0,63,63,63". Of a plan that stands on others these follow,
 * in their order. Fields are those of docs/operators.md.
 */
int spops_nodes_describe(const char *kind, const char *fields, spops_nodes_tensor *t);

/* The size of the block of a plan that was described. */
int spops_nodes_measure(spops_context *ctx, spops_nodes_tensor *t);

/* Shapes and dtypes of the outputs that have no shape yet, by spops_call_output. `wanted`: the dtype of
   those that no input gives one; SPOPS_NODES_NUM_DTYPES: as inputs have. Inputs need no data. */
int spops_nodes_shapes(spops_context *ctx, spops_nodes_node *node, spops_nodes_dtype wanted);

/* Bytes for spops_context_set_scratch that the call needs. No tensor needs data. */
int spops_nodes_scratch(spops_context *ctx, const spops_nodes_node *node, size_t *bytes);

/* Enqueue the call on the context's stream. */
int spops_nodes_run(spops_context *ctx, const spops_nodes_node *node);

#endif
