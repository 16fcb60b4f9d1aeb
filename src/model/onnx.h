// SPDX-License-Identifier: Apache-2.0
// The part of an ONNX file that models are made of, read from the wire format: nodes with attributes,
// initializers, inputs, outputs and values with their shapes. Names and data stay where the file's bytes
// are. What a file may have of each is limited, so that a small one does not ask for much memory.
#ifndef SPOPS_MODEL_ONNX_H
#define SPOPS_MODEL_ONNX_H

#include "model/wire.h"
#include "spops/context.h"

enum {
    SPOPS_ONNX_MAX_NODES = 4096,
    SPOPS_ONNX_MAX_TENSORS = 16384,
    SPOPS_ONNX_MAX_VALUES = 16384,
    SPOPS_ONNX_MAX_ATTRIBUTES = 64, // of a node
    SPOPS_ONNX_MAX_NAMES = 64,      // inputs of a node, and outputs
    SPOPS_ONNX_MAX_DIMS = 8,
    SPOPS_ONNX_MAX_NUMBERS = 1 << 20, // of all lists of attributes
    SPOPS_ONNX_MAX_NAME_BYTES = 255
};

// Numbers of TensorProto.DataType.
typedef enum spops_onnx_type {
    SPOPS_ONNX_FLOAT = 1,
    SPOPS_ONNX_UINT8 = 2,
    SPOPS_ONNX_INT8 = 3,
    SPOPS_ONNX_INT32 = 6,
    SPOPS_ONNX_INT64 = 7,
    SPOPS_ONNX_BOOL = 9,
    SPOPS_ONNX_FLOAT16 = 10,
    SPOPS_ONNX_DOUBLE = 11,
    SPOPS_ONNX_BFLOAT16 = 16
} spops_onnx_type;

typedef struct spops_onnx_attribute {
    spops_span name, s;
    int64_t i;
    float f;
    bool has_i, has_f, has_s;
    const int64_t *ints;
    const float *floats;
    int32_t num_ints, num_floats;
    spops_span doubles; // of a tensor attribute of f64; without bytes: there is none
    size_t offset;      // in the file, here and below
} spops_onnx_attribute;

typedef struct spops_onnx_node {
    spops_span op, name, domain;
    const spops_span *inputs, *outputs;
    const spops_onnx_attribute *attributes;
    int32_t num_inputs, num_outputs, num_attributes;
    size_t offset;
} spops_onnx_node;

// A tensor, or a value of which only type and shape are known.
typedef struct spops_onnx_tensor {
    spops_span name, data;
    int32_t type; // 0: not said
    int32_t num_dims;
    int64_t dims[SPOPS_ONNX_MAX_DIMS]; // -1: not a number
    bool has_shape;
    size_t offset;
} spops_onnx_tensor;

typedef struct spops_onnx {
    const spops_onnx_node *nodes;
    const spops_onnx_tensor *initializers, *inputs, *outputs, *values;
    int32_t num_nodes, num_initializers, num_inputs, num_outputs, num_values;
    spops_span bytes; // the file
    void *memory;
    size_t memory_bytes;
} spops_onnx;

// Errors: CORRUPT_DATA with the place in the file, OUT_OF_MEMORY. `call` begins the message. After any
// there is nothing to free.
spops_status spops_onnx_read(spops_context *ctx, const char *call, const void *data, size_t bytes,
                             spops_onnx *onnx);
void spops_onnx_free(spops_context *ctx, spops_onnx *onnx);

// NULL where there is none.
const spops_onnx_attribute *spops_onnx_find_attribute(const spops_onnx_node *node,
                                                      const char *name);
const spops_onnx_tensor *spops_onnx_find_tensor(const spops_onnx_tensor *tensors, int32_t num,
                                                spops_span name);

#endif
