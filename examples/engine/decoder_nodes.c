// SPDX-License-Identifier: Apache-2.0
/* Tensors and nodes of the decoder, and its parameters. */
#include "engine/decoder_nodes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the nodes are made from. */
typedef struct builder {
    graph *g;
    const network *net;
    const decoder_options *o;
    decoder_tensors *t;
    const char *dtype;
    int num_names; /* of tensors without one of their own */
} builder;

static void name_of(char name[48], const char *what, int i)
{
    snprintf(name, 48, "%s%d", what, i);
}

/* ---- Plans ------------------------------------------------------------------------------------ */

static void describe_set(builder *b, int level)
{
    const int64_t rows = b->o->max_rows[level];
    const int64_t items = level == 0 ? rows : CHILDREN * b->o->max_rows[level - 1];
    const int last = (b->o->size >> (LEVELS - 1 - level)) - 1;
    char text[256], name[48];

    name_of(name, "set", level);
    snprintf(text, sizeof text,
             "coords: dims=3 max_rows=%" PRId64 " max_items=%" PRId64
             " lower=0,0,0,0 upper=0,%d,%d,%d",
             rows, items, last, last, last);
    graph_describe(b->g, name, text);
}

/* The map of a submanifold convolution, and the plan of convolutions, which has a copy of it. Implicit
   GEMM in f16 on a GPU takes a table and an order, other ways a table and pairs. */
static void describe_conv(builder *b, int level)
{
    const int igemm = b->g->on_cuda && b->o->f16;
    const int contents = 1 + (b->g->on_cuda ? 2 : 0) + (igemm ? 0 : 4); /* SPOPS_MAP_* */
    const int64_t rows = b->o->max_rows[level], pairs = igemm ? 0 : TAPS * rows;
    const int in = b->net->channels[level];
    const int out = level + 1 < LEVELS ? CHILDREN * b->net->channels[level + 1] : in;
    char map[400], text[800], name[48];

    snprintf(map, sizeof map,
             "kernel_map: kind=0 max_in=%" PRId64 " max_out=%" PRId64 " max_pairs=%" PRId64
             " contents=%d num_taps=%d dims=3 size=3,3,3,1 stride=1,1,1,1 padding=0,0,0,0 "
             "dilation=1,1,1,1",
             rows, rows, pairs, contents, TAPS);
    name_of(name, "map", level);
    graph_describe(b->g, name, map);
    snprintf(text, sizeof text,
             "sparseconv: num_out=%" PRId64 " num_in=%" PRId64
             " num_taps=%d max_in_channels=%d max_out_channels=%d dataflow=%d max_pairs=%" PRId64
             " out_order=%d; %s",
             rows, rows, TAPS, in, out, igemm ? 2 : 0, pairs, b->g->on_cuda, map);
    name_of(name, "conv", level);
    graph_describe(b->g, name, text);
}

/* How many rows a level has stays on the device, beside the set. */
static void add_counts(builder *b, int level)
{
    char name[48];
    graph_node(b->g, "coords_rows coords=set%d rows=rows%d num_rows=n%d", level, level, level);
    name_of(name, "n", level);
    b->t->num_rows[level] = graph_keep(b->g, name);
    if (level + 1 < LEVELS) return;
    name_of(name, "rows", level);
    graph_keep(b->g, name);
}

/* ---- Inputs ----------------------------------------------------------------------------------- */

static void add_parameters(builder *b)
{
    for (int i = 0; i < b->net->num_layers; ++i) {
        const layer *l = &b->net->layers[i];
        const int64_t n = layer_num_weights(l);
        char name[48];
        name_of(name, "w", i);
        if (n > 0) b->t->weights[i] = graph_input(b->g, name, b->dtype, n / l->out, l->out);
        name_of(name, "v", i);
        if (l->kind != LAYER_REPEAT)
            b->t->vectors[i][0] = graph_input(b->g, name, "f32", l->out, 0);
        name_of(name, "beta", i);
        if (l->kind == LAYER_NORM) b->t->vectors[i][1] = graph_input(b->g, name, "f32", l->out, 0);
    }
}

static void add_inputs(builder *b)
{
    const int64_t *rows = b->o->max_rows;
    b->t->count = graph_input(b->g, "count", "i32", 1, 0);
    b->t->rows = graph_input(b->g, "frame_rows", "i32", rows[0], 4);
    b->t->latents = graph_input(b->g, "latents", b->dtype, rows[0], LATENT_CHANNELS);
    b->t->least = graph_input(b->g, "least", "f32", 1, 0);
    for (int l = 0; l + 1 < LEVELS && b->o->given; ++l) {
        char name[48];
        name_of(name, "given", l);
        b->t->given[l] = graph_input(b->g, name, "u8", CHILDREN * rows[l], 0);
    }
    add_parameters(b);
}

/* ---- Nodes ------------------------------------------------------------------------------------ */

static int64_t slice_of(const builder *b, int level)
{
    const int64_t all = b->o->max_rows[level], rows = b->o->slice_rows;
    return rows <= 0 || rows > all ? all : rows;
}

/* x += linear(silu(linear(h))), in slices of rows. All rows that there is room for are computed then:
   rows that do not count have whatever was there, and nobody reads them. */
static void add_mlp(builder *b, int level, int i, int part)
{
    const int64_t all = b->o->max_rows[level], each = slice_of(b, level);

    if (each == all) {
        graph_node(b->g, "linear x=h%d w=w%d bias=v%d num_rows=n%d activation=silu out=hidden%d_%d",
                   level, i, i, level, level, part);
        graph_node(b->g, "linear x=hidden%d_%d w=w%d bias=v%d residual=x%d num_rows=n%d out=x%d",
                   level, part, i + 1, i + 1, level, level, level);
        return;
    }
    for (int64_t first = 0; first < all; first += each) {
        const int64_t n = all - first < each ? all - first : each;
        const int at = b->num_names++;
        char name[48], of[48];
        snprintf(name, sizeof name, "h_slice%d", at);
        name_of(of, "h", level);
        graph_view(b->g, name, of, b->dtype, first, n);
        snprintf(name, sizeof name, "x_slice%d", at);
        name_of(of, "x", level);
        graph_view(b->g, name, of, b->dtype, first, n);
        graph_node(b->g, "linear x=h_slice%d w=w%d bias=v%d activation=silu out=hidden_slice%d", at,
                   i, i, at);
        graph_node(b->g, "linear x=hidden_slice%d w=w%d bias=v%d residual=x_slice%d out=x_slice%d",
                   at, i + 1, i + 1, at, at);
    }
}

/* out = linear(norm(x)) of the finest level; the linear layer in slices, which write ranges of the output. */
static void add_output(builder *b, int level, int i)
{
    const int64_t all = b->o->max_rows[level], each = slice_of(b, level);

    graph_node(b->g, "layernorm x=x%d num_rows=n%d epsilon=1e-6 out=h%d", level, level, level);
    if (each == all) {
        graph_node(b->g, "linear x=h%d w=w%d bias=v%d num_rows=n%d out=out", level, i, i, level);
        b->t->out = graph_keep(b->g, "out");
        return;
    }
    b->t->out = graph_input(b->g, "out", b->dtype, all, OUTPUT_CHANNELS);
    for (int64_t first = 0; first < all; first += each) {
        const int64_t n = all - first < each ? all - first : each;
        const int at = b->num_names++;
        char name[48], of[48];
        snprintf(name, sizeof name, "h_slice%d", at);
        name_of(of, "h", level);
        graph_view(b->g, name, of, b->dtype, first, n);
        snprintf(name, sizeof name, "out_slice%d", at);
        graph_view(b->g, name, "out", b->dtype, first, n);
        graph_node(b->g, "linear x=h_slice%d w=w%d bias=v%d out=out_slice%d", at, i, i, at);
    }
}

/* Logits below 0 become 0, and then floats of 8 bits over a tiny scale: a byte of 0 where there was 0,
   and another where there was more. */
static void add_logits(builder *b, int level, int i)
{
    char name[48], of[48];
    graph_node(b->g, "linear x=x%d w=w%d bias=v%d num_rows=n%d activation=relu out=logits%d:f32",
               level, i, i, level, level);
    graph_node(b->g, "quantize x=logits%d scale=least out=above%d:f8e4m3", level, level);
    name_of(name, "keep", level);
    name_of(of, "above", level);
    graph_view(b->g, name, of, "u8", 0, -1);
}

static void add_to_space(builder *b, int level)
{
    graph_node(b->g, "channel_to_space x=u%d coarse=set%d fine=set%d factor=2 out=h%d", level - 1,
               level - 1, level, level);
    graph_node(b->g, "channel_to_space x=x%d coarse=set%d fine=set%d factor=2 out=s%d", level - 1,
               level - 1, level, level);
}

static void add_nodes(builder *b, const op *o)
{
    graph *g = b->g;
    const int l = o->level, i = o->layer;

    switch (o->kind) {
    case OP_SET:
        graph_node(g, "coords rows=frame_rows num_rows=count coords=set0");
        add_counts(b, 0);
        break;
    case OP_MAP:
        graph_node(g, "kernel_map in=set%d map=map%d", l, l);
        graph_node(g, "sparseconv_plan map=map%d conv=conv%d", l, l);
        break;
    case OP_LATENT:
        graph_node(g, "linear x=latents w=w%d bias=v%d num_rows=n%d out=x%d", i, i, l, l);
        break;
    case OP_CONV:
        graph_node(g, "sparseconv x=x%d w=w%d bias=v%d conv=conv%d out=h%d", l, i, i, l, l);
        break;
    case OP_NORM:
        graph_node(g, "layernorm x=h%d gamma=v%d beta=beta%d num_rows=n%d epsilon=1e-6 out=h%d", l,
                   i, i, l, l);
        break;
    case OP_MLP: add_mlp(b, l, i, b->num_names++); break;
    case OP_LOGITS: add_logits(b, l, i); break;
    case OP_CHILDREN:
        graph_node(g, "coords_children keep=%s%d in=set%d factor=2 coords=set%d",
                   b->o->given ? "given" : "keep", l - 1, l - 1, l);
        add_counts(b, l);
        break;
    case OP_UP_NORM:
        graph_node(g,
                   "layernorm x=x%d gamma=v%d beta=beta%d num_rows=n%d epsilon=1e-6 "
                   "activation=silu out=h%d",
                   l, i, i, l, l);
        break;
    case OP_UP_CONV:
        graph_node(g, "sparseconv x=h%d w=w%d bias=v%d conv=conv%d out=u%d", l, i, i, l, l);
        break;
    case OP_TO_SPACE: add_to_space(b, l); break;
    case OP_FINE_NORM:
        graph_node(g, "layernorm x=h%d num_rows=n%d epsilon=1e-6 activation=silu out=h%d", l, l, l);
        break;
    case OP_FINE_CONV:
        graph_node(g, "sparseconv x=h%d w=w%d bias=v%d conv=conv%d out=x%d", l, i, i, l, l);
        break;
    case OP_SKIP:
        graph_node(g, "linear x=s%d w=w%d residual=x%d num_rows=n%d out=x%d", l, i, l, l, l);
        break;
    case OP_OUTPUT: add_output(b, l, i); break;
    }
}

int decoder_build(graph *g, const network *net, const decoder_options *o, decoder_tensors *t)
{
    builder b = {g, net, o, t, o->f16 ? "f16" : "f32", 0};

    memset(t, 0, sizeof *t);
    add_inputs(&b);
    for (int l = 0; l < LEVELS; ++l) {
        describe_set(&b, l);
        describe_conv(&b, l);
    }
    for (int i = 0; i < net->num_ops && !g->failed; ++i)
        add_nodes(&b, &net->ops[i]);
    return g->failed;
}

/* ---- Parameters ------------------------------------------------------------------------------- */

int decoder_convert(graph *host, const char *from, const void *x, const char *to, void *out,
                    int64_t n)
{
    spops_nodes_tensor in = {.num_dims = 2, .shape = {1, n}}, converted = in;
    spops_nodes_node node;

    in.data = (void *)(uintptr_t)x;
    converted.data = out;
    if (spops_nodes_dtype_read(from, &in.dtype) || spops_nodes_dtype_read(to, &converted.dtype) ||
        spops_nodes_find("convert", &node))
        return 1;
    node.args[0] = &in;
    node.args[1] = &converted;
    if (!spops_nodes_run(host->ctx, &node)) return 0;
    fprintf(stderr, "engine: %s\n", spops_nodes_error());
    return 1;
}

static int convert_weights(void *host, spops_dtype dtype, const void *stored, float *values,
                           int64_t num)
{
    return decoder_convert((graph *)host, spops_dtype_name(dtype), stored, "f32", values, num);
}

static int upload_layer(graph *g, graph *host, const network *net, int i, const weights_file *file,
                        const decoder_tensors *t)
{
    const layer *l = &net->layers[i];
    const size_t n = (size_t)layer_num_weights(l), out = (size_t)l->out;
    float *values = (float *)malloc((n + 2 * out) * sizeof *values);
    void *narrow = malloc(n * 4 + 1);
    int failed = values == NULL || narrow == NULL;

    if (!failed && (file == NULL || l->kind == LAYER_REPEAT))
        network_draw(net, i, values, values + n, values + n + out);
    else if (!failed)
        failed =
            weights_read(convert_weights, host, file, net, i, values, values + n, values + n + out);
    if (t->weights[i] != NULL && !failed) {
        const int f16 = t->weights[i]->t.dtype == SPOPS_NODES_F16;
        failed = decoder_convert(host, "f32", values, f16 ? "f16" : "f32", narrow, (int64_t)n) ||
                 graph_write(g, t->weights[i], narrow, n * (f16 ? 2 : 4));
    }
    for (int k = 0; k < 2 && !failed; ++k)
        if (t->vectors[i][k] != NULL)
            failed = graph_write(g, t->vectors[i][k], values + n + (size_t)k * out,
                                 out * sizeof *values);
    free(values);
    free(narrow);
    return failed;
}

int decoder_upload(graph *g, const network *net, const weights_file *file, const decoder_tensors *t)
{
    const float least = 1e-30f;
    graph host;
    int failed = graph_open(&host, 0) || graph_write(g, t->least, &least, sizeof least);

    for (int i = 0; i < net->num_layers && !failed; ++i)
        failed = upload_layer(g, &host, net, i, file, t);
    graph_close(&host);
    return failed;
}
