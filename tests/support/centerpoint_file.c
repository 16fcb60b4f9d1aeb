// SPDX-License-Identifier: Apache-2.0
#include "tests/support/centerpoint_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/half.h"

half_layer centerpoint_layer_in_halves(const layer *l)
{
    const size_t taps = (size_t)l->taps, in = (size_t)l->file_in, out = (size_t)l->out;
    half_layer h = {malloc(taps * in * out * 2), malloc(out * 2)};
    if (h.weight == NULL || h.bias == NULL) abort();
    for (size_t o = 0; o < out; ++o) {
        for (size_t k = 0; k < taps; ++k)
            for (size_t c = 0; c < in; ++c)
                h.weight[(o * taps + k) * in + c] = spops_f16_of_float(
                    l->folded.w[(k * (size_t)l->in + c) * out + o] * l->folded.scale[o]);
        h.bias[o] = spops_f16_of_float(l->folded.shift[o]);
    }
    return h;
}

void centerpoint_free_halves(half_layer *h)
{
    free(h->weight);
    free(h->bias);
}

// The tensor that a buffer holds so far has the name of a number, as the exporter gives.
typedef struct exporter {
    onnx_file *file;
    int tensor_of[NUM_BUFFERS], num_tensors, num_adds;
} exporter;

static const char *name_of(char text[16], int tensor)
{
    snprintf(text, 16, "%d", tensor);
    return text;
}

static void put_layer(exporter *e, const network *net, int i)
{
    const layer *l = &net->layers[i];
    half_layer h = centerpoint_layer_in_halves(l);
    char name[32], rulebook[32], x[16], out[16], other[16], sum[32];
    const int in_level = l->level - l->down;
    onnx_conv c = {.in = l->file_in, .out_cols = l->out, .subm = !l->down, .output_bound = 200000};

    snprintf(name, sizeof name, "conv%d", i);
    snprintf(rulebook, sizeof rulebook, l->down ? "spconv%d" : "res%d", l->level);
    c.name = name;
    c.rulebook = rulebook;
    c.activation = l->residual >= 0 ? "None" : "ReLU";
    for (int a = 0; a < 3; ++a) {
        c.kernel[a] = l->down ? level_shapes[l->level].kernel[a] : 3;
        c.stride[a] = l->down ? level_shapes[l->level].stride[a] : 1;
        c.padding[a] = l->down ? level_shapes[l->level].padding[a] : 1;
        c.in_shape[a] = in_level == 0 && a == 0 ? 41 : level_shapes[in_level].size[a];
        c.out_shape[a] = l->level == 0 && a == 0 ? 41 : level_shapes[l->level].size[a];
    }
    c.weight = h.weight;
    c.bias = h.bias;
    c.x = name_of(x, e->tensor_of[l->from]);
    c.out = name_of(out, ++e->num_tensors);
    onnx_put_conv(e->file, &c);
    if (l->residual >= 0) {
        const int made = e->num_tensors;
        snprintf(sum, sizeof sum, "add%d", e->num_adds);
        onnx_put_node(e->file, "Add", sum, out, name_of(other, e->tensor_of[l->residual]),
                      name_of(x, made + 1));
        snprintf(sum, sizeof sum, "relu%d", e->num_adds++);
        onnx_put_node(e->file, "Relu", sum, x, NULL, name_of(out, made + 2));
        e->num_tensors = made + 2;
    }
    e->tensor_of[l->to] = e->num_tensors;
    centerpoint_free_halves(&h);
}

void centerpoint_file_put(onnx_file *file, const network *net)
{
    exporter exported, *e = &exported;
    const int64_t in_dims[2] = {1000, NUM_FEATURES}, out_dims[4] = {1, 256, 180, 180};
    char x[16], out[16];

    memset(e, 0, sizeof *e);
    e->file = file;
    onnx_file_begin(file);
    for (int i = 0; i < net->num_layers; ++i)
        put_layer(e, net, i);
    onnx_put_scatter(e->file, "scatter0", name_of(x, e->num_tensors),
                     name_of(out, e->num_tensors + 1), "zyx", 1, NUM_OUTPUTS,
                     level_shapes[NUM_LEVELS - 1].size);
    onnx_put_ints(e->file, "Reshape", "reshape0", out, name_of(x, e->num_tensors + 2), "dims", 4,
                  out_dims);
    onnx_value(e->file, 11, "0", ONNX_FLOAT16, 2, in_dims);
    onnx_value(e->file, 12, x, ONNX_FLOAT16, 4, out_dims);
    onnx_file_end(e->file);
}
