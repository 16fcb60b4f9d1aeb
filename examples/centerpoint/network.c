// SPDX-License-Identifier: Apache-2.0
/* The network's grids, layers and parameters. */
#include "centerpoint/network.h"

#include <stdio.h>
#include <string.h>

#define EPSILON 1e-3f /* of the batch norms */

/* The first level has 40 cells of height; the original counts 41, and so the next level has 21. */
const level_shape level_shapes[NUM_LEVELS] = {
    {{40, 1440, 1440}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 16},
    {{21, 720, 720}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, 32},
    {{11, 360, 360}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, 64},
    {{5, 180, 180}, {3, 3, 3}, {2, 2, 2}, {0, 1, 1}, 128},
    {{2, 180, 180}, {3, 1, 1}, {2, 1, 1}, {0, 0, 0}, 128},
};
const double voxel_size_m[3] = {0.2, 0.075, 0.075}, voxel_origin_m[3] = {-5, -54, -54};

spops_kernel_shape kernel_to_level(int level)
{
    spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    for (int a = 0; a < 3; ++a) {
        kernel.size[a] = level_shapes[level].kernel[a];
        kernel.stride[a] = level_shapes[level].stride[a];
        kernel.padding[a] = level_shapes[level].padding[a];
    }
    return kernel;
}

static int add_buffer(network *net, int level, int cols)
{
    const feature_buffer b = {level, cols};
    net->buffers[net->num_buffers] = b;
    return net->num_buffers++;
}

static layer *add_layer(network *net, const char *name, int down, int from, int to, int residual)
{
    layer *l = &net->layers[net->num_layers++];
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_shape kernel;

    snprintf(l->name, sizeof l->name, "%s", name);
    l->level = net->buffers[to].level;
    l->down = down;
    kernel = down ? kernel_to_level(l->level) : cube;
    l->taps = (int)spops_kernel_shape_num_taps(&kernel);
    l->in = l->file_in = net->buffers[from].cols;
    l->out = net->buffers[to].cols;
    l->from = from;
    l->to = to;
    l->residual = residual;
    return l;
}

/* relu(conv(relu(conv(x))) + x); its convolutions have a bias. */
static void add_block(network *net, const char *name, int x, int hidden, int out)
{
    char full[32];
    snprintf(full, sizeof full, "%s.conv1", name);
    add_layer(net, full, 0, x, hidden, -1)->has_bias = 1;
    snprintf(full, sizeof full, "%s.conv2", name);
    add_layer(net, full, 0, hidden, out, x)->has_bias = 1;
}

void network_create(network *net)
{
    int from;
    memset(net, 0, sizeof *net);
    from = add_buffer(net, 0, NUM_INPUTS);
    for (int l = 0; l + 1 < NUM_LEVELS; ++l) {
        const int channels = level_shapes[l].channels;
        const int x = add_buffer(net, l, channels), hidden = add_buffer(net, l, channels);
        const int middle = add_buffer(net, l, channels);
        char name[24];
        snprintf(name, sizeof name, l == 0 ? "conv_input.0" : "conv%d.0", l + 1);
        add_layer(net, name, l > 0, from, x, -1);
        /* Names as in a checkpoint: convolution, norm and ReLU come before the blocks. */
        snprintf(name, sizeof name, "conv%d.%d", l + 1, l == 0 ? 0 : 3);
        add_block(net, name, x, hidden, middle);
        snprintf(name, sizeof name, "conv%d.%d", l + 1, l == 0 ? 1 : 4);
        add_block(net, name, middle, hidden, x);
        from = x;
    }
    add_layer(net, "extra_conv.0", 1, from, add_buffer(net, NUM_LEVELS - 1, NUM_OUTPUTS), -1);
    net->layers[0].file_in = NUM_FEATURES;
}

void network_destroy(network *net)
{
    for (int i = 0; i < net->num_layers; ++i)
        folded_parameters_free(&net->layers[i].folded);
}

static int fold_into(layer *l, const parameters *p)
{
    l->folded.in = l->in;
    l->folded.out = l->out;
    return parameters_fold(p, EPSILON, &l->folded);
}

int network_generate(network *net)
{
    uint64_t state = 1;
    int failed = 0;
    for (int i = 0; i < net->num_layers && !failed; ++i) {
        layer *l = &net->layers[i];
        /* Inputs are m and counts to 255: the first norm brings them to about 1. Blocks shall not add
           up. */
        const float gamma = i == 0 ? 0.02f : l->residual >= 0 ? 0.5f : 1.0f;
        parameters p;
        if (parameters_alloc(&p, l->taps, l->file_in, l->out)) return 1;
        parameters_draw(&p, &state, l->taps == 27 ? 9 : 2, gamma);
        for (int o = 0; o < l->out && l->has_bias; ++o)
            p.bias[o] = 0.1f * parameters_uniform(&state);
        failed = fold_into(l, &p);
        parameters_free(&p);
    }
    return failed;
}

static spops_kernel_shape kernel_of(const layer *l)
{
    return l->down ? kernel_to_level(l->level) : spops_kernel_shape_cube(3, 3, 1, 1);
}

static int failed_at(const char *path, const char *name)
{
    fprintf(stderr, "%s: cannot be written or read at %s\n", path, name);
    return 1;
}

int network_save(spops_context *ctx, const network *net, const char *path)
{
    FILE *file = fopen(path, "wb");
    int failed = file == NULL;

    if (failed) return failed_at(path, "its start");
    fprintf(file, "centerpoint-weights 1 %s\n", spops_weights_layout_name(SPOPS_WEIGHTS_SPCONV1));
    for (int i = 0; i < net->num_layers && !failed; ++i) {
        const layer *l = &net->layers[i];
        const spops_kernel_shape kernel = kernel_of(l);
        parameters p;
        failed = parameters_alloc(&p, l->taps, l->file_in, l->out);
        if (!failed) {
            parameters_unfold(&l->folded, EPSILON, &p);
            failed = parameters_write(ctx, &p, l->name, SPOPS_WEIGHTS_SPCONV1, &kernel, l->has_bias,
                                      file);
        }
        if (failed) failed_at(path, l->name);
        parameters_free(&p);
    }
    failed |= fclose(file) != 0;
    return failed;
}

int network_load(spops_context *ctx, network *net, const char *path)
{
    char line[128], name[32];
    spops_weights_layout layout = SPOPS_WEIGHTS_CANONICAL;
    FILE *file = fopen(path, "rb");
    int failed;

    if (file == NULL) return failed_at(path, "its start");
    failed = fgets(line, sizeof line, file) == NULL ||
             sscanf(line, "centerpoint-weights 1 %31s", name) != 1 ||
             parameters_find_layout(name, &layout);
    if (failed) failed_at(path, "its first line");
    for (int i = 0; i < net->num_layers && !failed; ++i) {
        layer *l = &net->layers[i];
        const spops_kernel_shape kernel = kernel_of(l);
        parameters p;
        failed = parameters_alloc(&p, l->taps, l->file_in, l->out) ||
                 parameters_read(ctx, &p, l->name, layout, &kernel, l->has_bias, file) ||
                 fold_into(l, &p);
        parameters_free(&p);
        if (failed) failed_at(path, l->name);
    }
    fclose(file);
    return failed;
}
