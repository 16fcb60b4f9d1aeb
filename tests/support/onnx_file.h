// SPDX-License-Identifier: Apache-2.0
// Writes ONNX files: the messages of onnx.proto that models use, field by field, and on them nodes as
// libspconv's exporter makes them (NVIDIA-AI-IOT/Lidar_AI_Solution, 3DSparseConvolution, exptool.py).
#ifndef SPOPS_TESTS_SUPPORT_ONNX_FILE_H
#define SPOPS_TESTS_SUPPORT_ONNX_FILE_H

#include <stddef.h>
#include <stdint.h>

typedef struct onnx_bytes {
    uint8_t *data;
    size_t num, room;
} onnx_bytes;

typedef struct onnx_file {
    onnx_bytes graph, model; // fields so far
    onnx_bytes node;         // that is being written
} onnx_file;

void onnx_file_begin(onnx_file *f);
void onnx_file_free(onnx_file *f);
// The bytes of the whole file, in f->model.
void onnx_file_end(onnx_file *f);

// Types of TensorProto.
enum { ONNX_FLOAT = 1, ONNX_UINT8 = 2, ONNX_INT32 = 6, ONNX_INT64 = 7, ONNX_FLOAT16 = 10 };

// kind: 11 an input, 12 an output, 13 a value.
void onnx_value(onnx_file *f, int kind, const char *name, int type, int num_dims,
                const int64_t *dims);
void onnx_initializer(onnx_file *f, const char *name, int type, int num_dims, const int64_t *dims,
                      const void *data, size_t bytes);

// A node: inputs and outputs are lists that end with NULL.
void onnx_node_begin(onnx_file *f, const char *op, const char *name, const char *domain,
                     const char *const *inputs, const char *const *outputs);
void onnx_int(onnx_file *f, const char *name, int64_t value);
void onnx_float(onnx_file *f, const char *name, float value);
void onnx_text(onnx_file *f, const char *name, const char *value);
void onnx_ints(onnx_file *f, const char *name, int num, const int64_t *values);
// The same in the packed form, which writers of version 3 of the protocol choose.
void onnx_packed_ints(onnx_file *f, const char *name, int num, const int64_t *values);
void onnx_floats(onnx_file *f, const char *name, int num, const float *values);
void onnx_node_end(onnx_file *f);

// A SparseConvolution as exptool.py writes it. Its initializers are NAME.weight, in f16, and NAME.bias.
typedef struct onnx_conv {
    const char *name, *x, *out, *rulebook, *activation;
    int in, out_cols;
    int kernel[3], stride[3], padding[3];
    int in_shape[3], out_shape[3];
    int subm, inverse;
    int output_bound;           // 0: not written
    const uint16_t *weight;     // [out][k][k][k][in]
    const uint16_t *bias;       // NULL: none
    float input_range;          // with weight_ranges
    const float *weight_ranges; // [out]; NULL: not int8
} onnx_conv;
void onnx_put_conv(onnx_file *f, const onnx_conv *c);

// A node without attributes, or with integers under one name.
void onnx_put_node(onnx_file *f, const char *op, const char *name, const char *a, const char *b,
                   const char *out);
void onnx_put_ints(onnx_file *f, const char *op, const char *name, const char *x, const char *out,
                   const char *attribute, int num, const int64_t *values);
void onnx_put_scatter(onnx_file *f, const char *name, const char *x, const char *out,
                      const char *format, int batches, int cols, const int *size);

#endif
