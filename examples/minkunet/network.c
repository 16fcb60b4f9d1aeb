// SPDX-License-Identifier: Apache-2.0
/* The network's layers and parameters. */
#include "minkunet/network.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EPSILON 1e-5f /* of the batch norms */

/* ---- Layers --------------------------------------------------------------------------------- */

static feature_view all_of(const network *net, int buffer)
{
    const feature_view v = {buffer, 0, net->buffers[buffer].cols};
    return v;
}

static feature_view columns(int buffer, int col, int cols)
{
    const feature_view v = {buffer, col, cols};
    return v;
}

static const feature_view nothing = {0, 0, 0};

static int add_buffer(network *net, int level, int cols)
{
    const feature_buffer b = {level, cols};
    net->buffers[net->num_buffers] = b;
    return net->num_buffers++;
}

static layer *add_layer(network *net, const char *stage, const char *name, layer_relation relation,
                        feature_view in, feature_view out, feature_view residual, int relu)
{
    static const int taps[] = {27, 8, 8, 1};
    layer *l = &net->layers[net->num_layers++];
    snprintf(l->name, sizeof l->name, "%s.%s", stage, name);
    l->relation = relation;
    l->level = net->buffers[out.buffer].level;
    l->taps = taps[relation];
    l->in = in;
    l->out = out;
    l->residual = residual;
    l->relu = relu;
    l->file_in = in.cols;
    l->file_out = out.cols;
    return l;
}

/* Matrices that the blocks of a level work in. */
typedef struct workplace {
    int hidden, projected, first, second; /* buffers */
} workplace;

/* relu(conv(relu(conv(x))) + x), where x passes a layer of its own if its channels differ. */
static void add_block(network *net, const char *stage, const char *block, feature_view in,
                      feature_view out, const workplace *w)
{
    const feature_view hidden = columns(w->hidden, 0, out.cols);
    feature_view residual = in;
    char name[16];
    snprintf(name, sizeof name, "%s.conv1", block);
    add_layer(net, stage, name, WITHIN, in, hidden, nothing, 1);
    if (in.cols != out.cols) {
        residual = columns(w->projected, 0, out.cols);
        snprintf(name, sizeof name, "%s.project", block);
        add_layer(net, stage, name, POINTWISE, in, residual, nothing, 0);
    }
    snprintf(name, sizeof name, "%s.conv2", block);
    add_layer(net, stage, name, WITHIN, hidden, out, residual, 1);
}

void network_create(network *net, double width)
{
    static const int full[9] = {32, 32, 64, 128, 256, 256, 128, 96, 96};
    int cs[9], joined[NUM_LEVELS], l;
    workplace work[NUM_LEVELS];
    feature_view x;
    layer *last;

    memset(net, 0, sizeof *net);
    net->width = width;
    for (int i = 0; i < 9; ++i)
        cs[i] = ((int)(width * full[i]) + 7) / 8 * 8;
    net->input = add_buffer(net, 0, NUM_INPUTS);
    net->output = add_buffer(net, 0, NUM_OUTPUTS);
    for (l = 0; l < NUM_LEVELS; ++l) {
        /* On the way up level l has cs[8 - l] channels, on the way down cs[l]. Both lie side by
           side in `joined`: up, then down. */
        const int up = cs[8 - l], most = up > cs[l] ? up : cs[l];
        joined[l] = l + 1 < NUM_LEVELS ? add_buffer(net, l, up + cs[l]) : -1;
        work[l].hidden = add_buffer(net, l, most);
        work[l].projected = add_buffer(net, l, most);
        work[l].first = add_buffer(net, l, most);
        work[l].second = add_buffer(net, l, most);
    }

    x = columns(work[0].first, 0, cs[0]);
    add_layer(net, "stem", "conv1", WITHIN, all_of(net, net->input), x, nothing, 1)->file_in =
        NUM_FEATURES;
    add_layer(net, "stem", "conv2", WITHIN, x, columns(joined[0], cs[8], cs[0]), nothing, 1);
    x = columns(joined[0], cs[8], cs[0]);
    for (l = 1; l < NUM_LEVELS; ++l) {
        const feature_view down = columns(work[l].first, 0, cs[l - 1]);
        const feature_view middle = columns(work[l].second, 0, cs[l]);
        const feature_view out = l + 1 < NUM_LEVELS ? columns(joined[l], cs[8 - l], cs[l])
                                                    : columns(work[l].first, 0, cs[l]);
        char stage[16];
        snprintf(stage, sizeof stage, "down%d", l);
        add_layer(net, stage, "conv", DOWN, x, down, nothing, 1);
        add_block(net, stage, "a", down, middle, &work[l]);
        add_block(net, stage, "b", middle, out, &work[l]);
        x = out;
    }
    for (l = NUM_LEVELS - 2; l >= 0; --l) {
        const int up = cs[8 - l];
        const feature_view middle = columns(work[l].second, 0, up);
        const feature_view out = columns(work[l].first, 0, up);
        char stage[16];
        snprintf(stage, sizeof stage, "up%d", l);
        add_layer(net, stage, "conv", UP, x, columns(joined[l], 0, up), nothing, 1);
        add_block(net, stage, "a", all_of(net, joined[l]), middle, &work[l]);
        add_block(net, stage, "b", middle, out, &work[l]);
        x = out;
    }
    last =
        add_layer(net, "classifier", "linear", POINTWISE, x, all_of(net, net->output), nothing, 0);
    last->file_out = NUM_CLASSES;
}

static void free_parameters(network *net)
{
    for (int i = 0; i < net->num_layers; ++i)
        folded_parameters_free(&net->layers[i].folded);
}

void network_destroy(network *net)
{
    free_parameters(net);
}

/* ---- Parameters ----------------------------------------------------------------------------- */

static int alloc_of(const layer *l, parameters *p)
{
    return parameters_alloc(p, l->taps, l->file_in, l->file_out);
}

static int fold_into(layer *l, const parameters *p)
{
    l->folded.in = l->in.cols;
    l->folded.out = l->out.cols;
    return parameters_fold(p, EPSILON, &l->folded);
}

int network_generate(network *net)
{
    uint64_t state = 1;
    int failed = 0;
    free_parameters(net);
    for (int i = 0; i < net->num_layers && !failed; ++i) {
        layer *l = &net->layers[i];
        const float gamma = l->residual.cols > 0 ? 0.5f : 1.0f; /* blocks shall not add up */
        parameters p;
        if (alloc_of(l, &p)) return 1;
        /* A third of the taps of a surface have a neighbour. */
        parameters_draw(&p, &state, l->taps == 27 ? 9 : 1, gamma);
        failed = fold_into(l, &p);
        parameters_free(&p);
    }
    return failed;
}

static spops_kernel_shape kernel_of(const layer *l)
{
    const int size = l->taps == 27 ? 3 : l->taps == 8 ? 2 : 1;
    return spops_kernel_shape_cube(3, size, size == 2 ? 2 : 1, 1);
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
    fprintf(file, "minkunet-weights 1 %.4f %s\n", net->width,
            spops_weights_layout_name(SPOPS_WEIGHTS_TORCHSPARSE));
    for (int i = 0; i < net->num_layers && !failed; ++i) {
        const layer *l = &net->layers[i];
        const spops_kernel_shape kernel = kernel_of(l);
        parameters p;
        failed = alloc_of(l, &p);
        if (!failed) {
            parameters_unfold(&l->folded, EPSILON, &p);
            failed =
                parameters_write(ctx, &p, l->name, SPOPS_WEIGHTS_TORCHSPARSE, &kernel, 0, file);
        }
        if (failed) failed_at(path, l->name);
        parameters_free(&p);
    }
    failed |= fclose(file) != 0;
    return failed;
}

static int load_layer(spops_context *ctx, layer *l, spops_weights_layout layout, FILE *file)
{
    const spops_kernel_shape kernel = kernel_of(l);
    parameters p;
    int failed;

    if (alloc_of(l, &p)) return 1;
    failed = parameters_read(ctx, &p, l->name, layout, &kernel, 0, file) || fold_into(l, &p);
    parameters_free(&p);
    return failed;
}

int network_load(spops_context *ctx, network *net, const char *path)
{
    char line[128], name[32];
    double width = 0;
    spops_weights_layout layout = SPOPS_WEIGHTS_CANONICAL;
    FILE *file = fopen(path, "rb");
    int failed;

    if (file == NULL) return failed_at(path, "its start");
    failed = fgets(line, sizeof line, file) == NULL ||
             sscanf(line, "minkunet-weights 1 %lf %31s", &width, name) != 2 ||
             parameters_find_layout(name, &layout);
    if (!failed && fabs(width - net->width) > 1e-3) {
        fprintf(stderr, "%s: is for a width of %g, expected %g\n", path, width, net->width);
        failed = 1;
    } else if (failed) {
        failed_at(path, "its first line");
    }
    free_parameters(net);
    for (int i = 0; i < net->num_layers && !failed; ++i) {
        failed = load_layer(ctx, &net->layers[i], layout, file);
        if (failed) failed_at(path, net->layers[i].name);
    }
    fclose(file);
    return failed;
}
