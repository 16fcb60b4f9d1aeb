// SPDX-License-Identifier: Apache-2.0
/* Layers, operations, drawn parameters. */
#include "decoder/network.h"

#include "networks/draw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int num_blocks[LEVELS] = {4, 16, 8, 4, 0};

static int add_layer(network *net, layer_kind kind, int in, int out, double spread,
                     const char *name)
{
    layer *l = &net->layers[net->num_layers];
    l->kind = kind;
    l->in = in;
    l->out = out;
    l->spread = (float)spread;
    snprintf(l->name, sizeof l->name, "%s", name);
    return net->num_layers++;
}

static void add_op(network *net, op_kind kind, int level, int first)
{
    const op o = {kind, level, first};
    net->ops[net->num_ops++] = o;
}

/* Uniform weights of variance 1 / terms: sums are about as large as what is summed. */
static double spread_of(double terms)
{
    return sqrt(3 / terms);
}

/* About 15 of the 27 taps of a row on a surface have a row. */
static double conv_spread(int in)
{
    return spread_of(15.0 * in);
}

static const char *block_name(char name[32], int level, int block, const char *part)
{
    snprintf(name, 32, "blocks.%d.%d.%s", level, block, part);
    return name;
}

static void add_block(network *net, int level, int block)
{
    const int c = net->channels[level];
    char name[32];
    const int conv =
        add_layer(net, LAYER_CONV, c, c, conv_spread(c), block_name(name, level, block, "conv"));
    const int norm = add_layer(net, LAYER_NORM, c, c, 0.2, block_name(name, level, block, "norm"));
    const int mlp = add_layer(net, LAYER_LINEAR, c, 4 * c, spread_of(c),
                              block_name(name, level, block, "mlp.0"));

    add_layer(net, LAYER_LINEAR, 4 * c, c, spread_of(4.0 * c),
              block_name(name, level, block, "mlp.2"));
    add_op(net, OP_CONV, level, conv);
    add_op(net, OP_NORM, level, norm);
    add_op(net, OP_MLP, level, mlp);
}

/* From a level to the next. */
static void add_up_block(network *net, int level, int block)
{
    const int c = net->channels[level], fine = net->channels[level + 1];
    char name[32];
    const int norm = add_layer(net, LAYER_NORM, c, c, 0.2, block_name(name, level, block, "norm1"));
    const int up = add_layer(net, LAYER_CONV, c, CHILDREN * fine, conv_spread(c),
                             block_name(name, level, block, "conv1"));
    const int conv = add_layer(net, LAYER_CONV, fine, fine, conv_spread(fine),
                               block_name(name, level, block, "conv2"));
    const int logits = add_layer(net, LAYER_LINEAR, c, CHILDREN, spread_of(c),
                                 block_name(name, level, block, "to_subdiv"));
    const int skip = add_layer(net, LAYER_REPEAT, c / CHILDREN, fine, 0, "");

    add_op(net, OP_LOGITS, level, logits);
    add_op(net, OP_CHILDREN, level + 1, -1);
    add_op(net, OP_MAP, level + 1, -1);
    add_op(net, OP_UP_NORM, level, norm);
    add_op(net, OP_UP_CONV, level, up);
    add_op(net, OP_TO_SPACE, level + 1, -1);
    add_op(net, OP_FINE_NORM, level + 1, -1);
    add_op(net, OP_FINE_CONV, level + 1, conv);
    add_op(net, OP_SKIP, level + 1, skip);
}

int network_create(network *net, double width)
{
    int c;

    memset(net, 0, sizeof *net);
    net->width = width;
    for (int l = 0; l < LEVELS; ++l) {
        net->channels[l] = (int)lround(width * (1024 >> l));
        if (net->channels[l] < 8 || net->channels[l] > 1024 || net->channels[l] % 8 != 0 ||
            net->channels[l] * (1 << l) != net->channels[0])
            return 1;
    }
    add_op(net, OP_SET, 0, -1);
    add_op(net, OP_MAP, 0, -1);
    c = net->channels[0];
    add_op(net, OP_LATENT, 0,
           add_layer(net, LAYER_LINEAR, LATENT_CHANNELS, c, spread_of(LATENT_CHANNELS),
                     "from_latent"));
    for (int l = 0; l < LEVELS; ++l) {
        for (int b = 0; b < num_blocks[l]; ++b)
            add_block(net, l, b);
        if (l + 1 < LEVELS) add_up_block(net, l, num_blocks[l]);
    }
    c = net->channels[LEVELS - 1];
    add_op(net, OP_OUTPUT, LEVELS - 1,
           add_layer(net, LAYER_LINEAR, c, OUTPUT_CHANNELS, spread_of(c), "output_layer"));
    return 0;
}

int64_t layer_num_weights(const layer *l)
{
    const int64_t n = (int64_t)l->in * l->out;
    return l->kind == LAYER_NORM ? 0 : l->kind == LAYER_CONV ? TAPS * n : n;
}

int layer_file_outputs(const network *net, int i)
{
    return i + 1 == net->num_layers ? FILE_OUTPUTS : net->layers[i].out;
}

void network_draw(const network *net, int i, float *weights, float *first, float *second)
{
    const layer *l = &net->layers[i];
    const int64_t n = layer_num_weights(l);
    const uint64_t seed = (uint64_t)(i + 1) << 40;
    const int outputs = layer_file_outputs(net, i);

    if (l->kind == LAYER_REPEAT) {
        for (int64_t j = 0; j < n; ++j)
            weights[j] = j % l->out / (l->out / l->in) == j / l->out;
        return;
    }
    for (int64_t j = 0; j < n; ++j)
        weights[j] =
            j % l->out < outputs ? drawn_number(seed + (uint64_t)j, -l->spread, l->spread) : 0;
    for (int o = 0; o < l->out; ++o)
        first[o] = 0;
    for (int o = 0; o < outputs; ++o) {
        const float a = drawn_number(seed + (1u << 30) + (uint64_t)o, -0.1f, 0.1f);
        const float b = drawn_number(seed + (1u << 31) + (uint64_t)o, -0.1f, 0.1f);
        first[o] = l->kind == LAYER_NORM ? 1 + 2 * a : a;
        if (l->kind == LAYER_NORM) second[o] = b;
    }
}

part_kind part_of(op_kind kind)
{
    switch (kind) {
    case OP_SET:
    case OP_LOGITS:
    case OP_CHILDREN: return PART_SETS;
    case OP_MAP: return PART_MAPS;
    case OP_CONV: return PART_CONVS;
    case OP_NORM:
    case OP_UP_NORM:
    case OP_FINE_NORM: return PART_NORMS;
    case OP_MLP: return PART_MLPS;
    case OP_UP_CONV: return PART_UP_CONVS;
    case OP_TO_SPACE: return PART_TO_SPACE;
    case OP_FINE_CONV: return PART_FINE_CONVS;
    case OP_SKIP: return PART_SKIPS;
    case OP_LATENT:
    case OP_OUTPUT: break;
    }
    return PART_ENDS;
}

const char *part_name(part_kind part)
{
    static const char *const names[NUM_PARTS] = {
        "sets",       "maps",  "convolutions", "norms", "MLPs", "up convs", "channel to space",
        "fine convs", "skips", "linear ends"};
    return names[part];
}
