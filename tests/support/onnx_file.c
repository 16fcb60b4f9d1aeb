// SPDX-License-Identifier: Apache-2.0
#include "tests/support/onnx_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- The wire format ----------------------------------------------------------------------------------

static void put(onnx_bytes *b, const void *data, size_t num)
{
    if (b->num + num > b->room) {
        b->room = 2 * (b->num + num) + 64;
        b->data = realloc(b->data, b->room);
        if (b->data == NULL) abort();
    }
    if (num > 0) memcpy(b->data + b->num, data, num);
    b->num += num;
}

static void put_varint(onnx_bytes *b, uint64_t value)
{
    do {
        const uint8_t byte = (uint8_t)(value & 0x7f) | (value > 0x7f ? 0x80 : 0);
        put(b, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void put_number(onnx_bytes *b, int field, int64_t value)
{
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, (uint64_t)value);
}

static void put_bytes(onnx_bytes *b, int field, const void *data, size_t num)
{
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, num);
    put(b, data, num);
}

static void put_text(onnx_bytes *b, int field, const char *text)
{
    put_bytes(b, field, text, strlen(text));
}

static void put_float(onnx_bytes *b, int field, float value)
{
    put_varint(b, (uint64_t)field << 3 | 5);
    put(b, &value, sizeof value);
}

// A message into another, and its memory back.
static void put_message(onnx_bytes *b, int field, onnx_bytes *message)
{
    put_bytes(b, field, message->data, message->num);
    free(message->data);
    memset(message, 0, sizeof *message);
}

// ---- Files --------------------------------------------------------------------------------------------

void onnx_file_begin(onnx_file *f)
{
    memset(f, 0, sizeof *f);
    put_number(&f->model, 1, 8); // ir_version
    put_text(&f->model, 2, "pytorch");
    put_text(&f->model, 3, "1.9");
    put_text(&f->graph, 2, "scn");
}

void onnx_file_end(onnx_file *f)
{
    onnx_bytes opset = {NULL, 0, 0};
    put_message(&f->model, 7, &f->graph);
    put_text(&opset, 1, "ai.onnx");
    put_number(&opset, 2, 11);
    put_message(&f->model, 8, &opset);
}

void onnx_file_free(onnx_file *f)
{
    free(f->model.data);
    free(f->graph.data);
    free(f->node.data);
    memset(f, 0, sizeof *f);
}

void onnx_value(onnx_file *f, int kind, const char *name, int type, int num_dims,
                const int64_t *dims)
{
    onnx_bytes value = {NULL, 0, 0}, whole = {NULL, 0, 0}, tensor = {NULL, 0, 0};
    onnx_bytes shape = {NULL, 0, 0};
    for (int i = 0; i < num_dims; ++i) {
        onnx_bytes dim = {NULL, 0, 0};
        put_number(&dim, 1, dims[i]);
        put_message(&shape, 1, &dim);
    }
    put_number(&tensor, 1, type);
    put_message(&tensor, 2, &shape);
    put_message(&whole, 1, &tensor);
    put_text(&value, 1, name);
    put_message(&value, 2, &whole);
    put_message(&f->graph, kind, &value);
}

void onnx_initializer(onnx_file *f, const char *name, int type, int num_dims, const int64_t *dims,
                      const void *data, size_t bytes)
{
    onnx_bytes tensor = {NULL, 0, 0};
    for (int i = 0; i < num_dims; ++i)
        put_number(&tensor, 1, dims[i]);
    put_number(&tensor, 2, type);
    put_text(&tensor, 8, name);
    put_bytes(&tensor, 9, data, bytes);
    put_message(&f->graph, 5, &tensor);
}

void onnx_node_begin(onnx_file *f, const char *op, const char *name, const char *domain,
                     const char *const *inputs, const char *const *outputs)
{
    for (; *inputs != NULL; ++inputs)
        put_text(&f->node, 1, *inputs);
    for (; *outputs != NULL; ++outputs)
        put_text(&f->node, 2, *outputs);
    put_text(&f->node, 3, name);
    put_text(&f->node, 4, op);
    if (*domain != '\0') put_text(&f->node, 7, domain);
}

void onnx_node_end(onnx_file *f)
{
    put_message(&f->graph, 1, &f->node);
}

// type: AttributeProto's.
static void put_attribute(onnx_file *f, onnx_bytes *attribute, int type)
{
    put_number(attribute, 20, type);
    put_message(&f->node, 5, attribute);
}

void onnx_int(onnx_file *f, const char *name, int64_t value)
{
    onnx_bytes a = {NULL, 0, 0};
    put_text(&a, 1, name);
    put_number(&a, 3, value);
    put_attribute(f, &a, 2);
}

void onnx_float(onnx_file *f, const char *name, float value)
{
    onnx_bytes a = {NULL, 0, 0};
    put_text(&a, 1, name);
    put_float(&a, 2, value);
    put_attribute(f, &a, 1);
}

void onnx_text(onnx_file *f, const char *name, const char *value)
{
    onnx_bytes a = {NULL, 0, 0};
    put_text(&a, 1, name);
    put_text(&a, 4, value);
    put_attribute(f, &a, 3);
}

// Lists of ONNX are not packed: its protocol is of version 2.
void onnx_ints(onnx_file *f, const char *name, int num, const int64_t *values)
{
    onnx_bytes a = {NULL, 0, 0};
    put_text(&a, 1, name);
    for (int i = 0; i < num; ++i)
        put_number(&a, 8, values[i]);
    put_attribute(f, &a, 7);
}

void onnx_packed_ints(onnx_file *f, const char *name, int num, const int64_t *values)
{
    onnx_bytes a = {NULL, 0, 0}, list = {NULL, 0, 0};
    put_text(&a, 1, name);
    for (int i = 0; i < num; ++i)
        put_varint(&list, (uint64_t)values[i]);
    put_message(&a, 8, &list);
    put_attribute(f, &a, 7);
}

void onnx_floats(onnx_file *f, const char *name, int num, const float *values)
{
    onnx_bytes a = {NULL, 0, 0};
    put_text(&a, 1, name);
    for (int i = 0; i < num; ++i)
        put_float(&a, 7, values[i]);
    put_attribute(f, &a, 6);
}

// ---- Nodes of libspconv ---------------------------------------------------------------------------------

static void put_three(onnx_file *f, const char *name, const int *values)
{
    const int64_t wide[3] = {values[0], values[1], values[2]};
    onnx_ints(f, name, 3, wide);
}

static void put_ranges(onnx_file *f, const onnx_conv *c)
{
    if (c->weight_ranges == NULL) return;
    onnx_float(f, "input_dynamic_range", c->input_range);
    onnx_floats(f, "weight_dynamic_ranges", c->out_cols, c->weight_ranges);
    onnx_text(f, "precision", "int8");
    onnx_text(f, "output_precision", "int8");
}

void onnx_put_conv(onnx_file *f, const onnx_conv *c)
{
    char weight[64], bias[64];
    const int ones[3] = {1, 1, 1}, none[3] = {0, 0, 0};
    const int64_t dims[5] = {c->out_cols, c->kernel[0], c->kernel[1], c->kernel[2], c->in};
    const size_t count = (size_t)(dims[0] * dims[1] * dims[2] * dims[3] * dims[4]);
    const int64_t in_shape[2] = {1000, c->in}, out_shape[2] = {1000, c->out_cols};

    snprintf(weight, sizeof weight, "%s.weight", c->name);
    snprintf(bias, sizeof bias, "%s.bias", c->name);
    onnx_initializer(f, weight, ONNX_FLOAT16, 5, dims, c->weight, 2 * count);
    if (c->bias != NULL)
        onnx_initializer(f, bias, ONNX_FLOAT16, 1, dims, c->bias, 2 * (size_t)c->out_cols);
    const char *const inputs[] = {c->x, weight, c->bias == NULL ? NULL : bias, NULL};
    const char *const outputs[] = {c->out, NULL};
    onnx_node_begin(f, "SparseConvolution", c->name, "", inputs, outputs);
    onnx_int(f, "ndim", 3);
    put_three(f, "input_spatial_shape", c->in_shape);
    put_three(f, "output_spatial_shape", c->out_shape);
    onnx_int(f, "in_channels", c->in);
    onnx_int(f, "out_channels", c->out_cols);
    put_three(f, "kernel_size", c->kernel);
    if (c->output_bound > 0) onnx_int(f, "output_bound", c->output_bound);
    put_three(f, "stride", c->stride);
    put_three(f, "dilation", ones);
    put_three(f, "padding", c->padding);
    onnx_int(f, "transposed", 0);
    onnx_int(f, "inverse", c->inverse);
    put_three(f, "output_padding", none);
    onnx_int(f, "groups", 1);
    onnx_int(f, "subm", c->subm);
    onnx_text(f, "rulebook", c->rulebook);
    onnx_text(f, "activation", c->activation);
    onnx_ints(f, "input_shape", 2, in_shape);
    onnx_ints(f, "output_shape", 2, out_shape);
    put_ranges(f, c);
    onnx_node_end(f);
}

void onnx_put_node(onnx_file *f, const char *op, const char *name, const char *a, const char *b,
                   const char *out)
{
    const char *const inputs[] = {a, b, NULL}, *const outputs[] = {out, NULL};
    onnx_node_begin(f, op, name, "", inputs, outputs);
    onnx_node_end(f);
}

void onnx_put_ints(onnx_file *f, const char *op, const char *name, const char *x, const char *out,
                   const char *attribute, int num, const int64_t *values)
{
    const char *const inputs[] = {x, NULL}, *const outputs[] = {out, NULL};
    onnx_node_begin(f, op, name, "", inputs, outputs);
    onnx_ints(f, attribute, num, values);
    onnx_node_end(f);
}

void onnx_put_scatter(onnx_file *f, const char *name, const char *x, const char *out,
                      const char *format, int batches, int cols, const int *size)
{
    const char *const inputs[] = {x, NULL}, *const outputs[] = {out, NULL};
    const int64_t shape[5] = {batches, cols, size[0], size[1], size[2]};
    onnx_node_begin(f, "ScatterDense", name, "", inputs, outputs);
    put_three(f, "input_spatial_shape", size);
    onnx_text(f, "format", format);
    onnx_ints(f, "output_shape", 5, shape);
    onnx_node_end(f);
}
