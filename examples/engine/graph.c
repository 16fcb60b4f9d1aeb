// SPDX-License-Identifier: Apache-2.0
/* Tensors, nodes, the arena. Every CUDA call of the example is here. */
#define _POSIX_C_SOURCE 200112L
#include "engine/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef EXAMPLE_WITH_CUDA
#include <cuda_runtime_api.h>

static int check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    return error != cudaSuccess;
}
#define CHECK(call) check(call, #call)
#endif

enum { ALIGNMENT = 256 };

static int report(graph *g, const char *what, const char *why)
{
    fprintf(stderr, "engine: %s: %s\n", what, why);
    g->failed = 1;
    return 1;
}

int graph_open(graph *g, int cuda)
{
    spops_context_options options = spops_context_options_default();

    memset(g, 0, sizeof *g);
    g->on_cuda = cuda;
    options.backend = cuda ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU;
#ifdef EXAMPLE_WITH_CUDA
    if (cuda) {
        cudaStream_t stream = NULL; /* of its own: the legacy stream cannot be captured */
        if (CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) return 1;
        g->stream = options.stream = stream;
    }
#endif
    if (spops_context_create(&options, &g->ctx) == SPOPS_STATUS_OK) return 0;
    return report(g, "no context", spops_last_error(NULL));
}

void graph_close(graph *g)
{
    if (g->ctx != NULL) (void)spops_context_wait_sync(g->ctx);
    spops_context_destroy(g->ctx);
#ifdef EXAMPLE_WITH_CUDA
    if (g->exec != NULL) cudaGraphExecDestroy((cudaGraphExec_t)g->exec);
    if (g->on_cuda) cudaFree(g->arena);
    if (g->stream != NULL) cudaStreamDestroy((cudaStream_t)g->stream);
#endif
    if (!g->on_cuda) free(g->arena);
    for (int i = 0; i < g->num_tensors; ++i)
        free(g->tensors[i]);
    for (int i = 0; i < g->num_texts; ++i)
        free(g->texts[i]);
    free(g->tensors);
    free(g->nodes);
    free(g->texts);
}

/* ---- Tensors ---------------------------------------------------------------------------------- */

graph_tensor *graph_find(const graph *g, const char *name)
{
    for (int i = g->num_tensors - 1; i >= 0; --i)
        if (strcmp(g->tensors[i]->name, name) == 0) return g->tensors[i];
    return NULL;
}

/* An array of n elements where the next power of two of them has room. */
static void *grown(void *array, int n, size_t each)
{
    return n & (n - 1) ? array : realloc(array, (size_t)(n == 0 ? 1 : 2 * n) * each);
}

static graph_tensor *add_tensor(graph *g, const char *name)
{
    graph_tensor *t = (graph_tensor *)calloc(1, sizeof *t);
    graph_tensor **tensors =
        (graph_tensor **)grown(g->tensors, g->num_tensors, sizeof(graph_tensor *));

    if (tensors != NULL) g->tensors = tensors;
    if (t == NULL || tensors == NULL || strlen(name) >= sizeof t->name ||
        graph_find(g, name) != NULL) {
        report(g, name, "no memory, a long name, or one that is there already");
        free(t);
        return NULL;
    }
    snprintf(t->name, sizeof t->name, "%s", name);
    t->first = -1;
    g->tensors[g->num_tensors++] = t;
    return t;
}

graph_tensor *graph_input(graph *g, const char *name, const char *dtype, int64_t rows, int64_t cols)
{
    graph_tensor *t = add_tensor(g, name);
    if (t == NULL) return NULL;
    if (spops_nodes_dtype_read(dtype, &t->t.dtype)) {
        report(g, name, spops_nodes_error());
        return NULL;
    }
    t->t.num_dims = cols > 0 ? 2 : 1;
    t->t.shape[0] = rows;
    t->t.shape[1] = cols;
    t->is_input = t->stays = 1;
    return t;
}

graph_tensor *graph_describe(graph *g, const char *name, const char *description)
{
    graph_tensor *t = add_tensor(g, name);
    char text[1024], *at = text;

    if (t == NULL) return NULL;
    snprintf(text, sizeof text, "%s", description);
    while (at != NULL && *at != 0) {
        char *fields = strchr(at, ':'), *end = strchr(at, ';');
        if (fields == NULL) break;
        *fields++ = 0;
        if (end != NULL) *end++ = 0;
        if (spops_nodes_describe(at, fields + strspn(fields, " "), &t->t)) {
            report(g, name, spops_nodes_error());
            return NULL;
        }
        at = end == NULL ? NULL : end + strspn(end, " ");
    }
    if (!spops_nodes_measure(g->ctx, &t->t)) return t;
    report(g, name, spops_nodes_error());
    return NULL;
}

graph_tensor *graph_view(graph *g, const char *name, const char *of, const char *dtype, int64_t row,
                         int64_t rows)
{
    graph_tensor *from = graph_find(g, of), *t = add_tensor(g, name);

    if (from == NULL || t == NULL || from->of != NULL ||
        spops_nodes_dtype_read(dtype, &t->t.dtype) || row + rows > from->t.shape[0]) {
        report(g, name, "no view of such a tensor");
        return NULL;
    }
    t->of = from;
    t->row = row;
    t->t.num_dims = rows < 0 ? 1 : from->t.num_dims;
    t->t.shape[0] = rows < 0 ? from->t.shape[0] * from->t.shape[1] : rows;
    t->t.shape[1] = from->t.shape[1];
    return t;
}

graph_tensor *graph_keep(graph *g, const char *name)
{
    graph_tensor *t = graph_find(g, name);
    if (t == NULL)
        report(g, name, "there is no such tensor");
    else
        t->stays = 1;
    return t;
}

/* ---- Nodes ------------------------------------------------------------------------------------ */

static void need(graph_tensor *t, int node)
{
    if (t->of != NULL) t = t->of;
    if (t->first < 0) t->first = node;
    t->last = node;
}

/* NAME=VALUE of a node; attributes stay in their text. */
static int set_argument(graph *g, spops_nodes_node *node, char *name, spops_nodes_dtype *wanted)
{
    char *value = strchr(name, '='), *dtype;
    int32_t arg;
    graph_tensor *t;

    if (value == NULL) return report(g, name, "has no value");
    *value++ = 0;
    arg = spops_nodes_arg(node, name);
    if (arg < 0) {
        arg = spops_nodes_attribute(node, name);
        if (arg < 0) return report(g, name, "is no argument of this operator");
        node->attributes[arg] = value;
        return 0;
    }
    dtype = strchr(value, ':');
    if (dtype != NULL) {
        *dtype++ = 0;
        if (spops_nodes_dtype_read(dtype, wanted)) return report(g, value, spops_nodes_error());
    }
    t = graph_find(g, value);
    if (t == NULL && arg >= node->op->num_inputs) t = add_tensor(g, value);
    if (t == NULL) return report(g, value, "there is no such tensor");
    need(t, g->num_nodes);
    node->args[arg] = &t->t;
    return 0;
}

/* A copy that lives as long as the graph: attributes of nodes are in it. */
static char *keep_text(graph *g, const char *text)
{
    char **texts = (char **)grown(g->texts, g->num_texts, sizeof(char *));
    char *copy = (char *)malloc(strlen(text) + 1);

    if (texts != NULL) g->texts = texts;
    if (texts == NULL || copy == NULL) {
        free(copy);
        return NULL;
    }
    g->texts[g->num_texts++] = copy;
    return strcpy(copy, text);
}

void graph_node(graph *g, const char *format, ...)
{
    spops_nodes_node *nodes =
        (spops_nodes_node *)grown(g->nodes, g->num_nodes, sizeof(spops_nodes_node));
    spops_nodes_dtype wanted = SPOPS_NODES_NUM_DTYPES;
    spops_nodes_node node;
    char line[512], *text, *at;
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (nodes != NULL) g->nodes = nodes;
    text = keep_text(g, line);
    if (g->failed || nodes == NULL || text == NULL) {
        g->failed = 1;
        return;
    }
    at = text + strcspn(text, " ");
    if (*at != 0) *at++ = 0;
    if (spops_nodes_find(text, &node)) {
        report(g, line, spops_nodes_error());
        return;
    }
    while (*at != 0) {
        char *next = at + strcspn(at, " ");
        if (*next != 0) *next++ = 0;
        if (set_argument(g, &node, at, &wanted)) {
            report(g, line, "this node is refused");
            return;
        }
        at = next;
    }
    if (spops_nodes_shapes(g->ctx, &node, wanted)) report(g, line, spops_nodes_error());
    g->nodes[g->num_nodes++] = node;
}

/* ---- The arena -------------------------------------------------------------------------------- */

static int together(const graph_tensor *a, const graph_tensor *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest place of t where it meets none of the others that have one. */
static void place(graph_tensor *const *placed, int num_placed, graph_tensor *t)
{
    t->at = 0;
    for (int i = 0; i < num_placed; ++i) {
        const graph_tensor *p = placed[i];
        if (!together(t, p) || t->at >= p->at + p->bytes || p->at >= t->at + t->bytes) continue;
        t->at = p->at + p->bytes;
        i = -1; /* and from the first again */
    }
}

static int compare_bytes(const void *a, const void *b)
{
    const graph_tensor *x = *(graph_tensor *const *)a, *y = *(graph_tensor *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->first - y->first;
}

/* Inputs one after the other; then what nodes make, the largest first. */
static int place_tensors(graph *g)
{
    graph_tensor **made = (graph_tensor **)calloc((size_t)g->num_tensors + 1, sizeof *made);
    size_t end = 0;
    int n = 0;

    if (made == NULL) return report(g, "places of tensors", "no memory");
    memset(&g->memory, 0, sizeof g->memory);
    for (int i = 0; i < g->num_tensors; ++i) {
        graph_tensor *t = g->tensors[i];
        if (t->of != NULL) continue;
        t->bytes = (spops_nodes_bytes(&t->t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (t->is_input) {
            t->at = g->memory.inputs;
            g->memory.inputs += t->bytes;
        } else if (t->first >= 0) {
            if (t->stays) t->last = g->num_nodes;
            made[n++] = t;
        }
    }
    qsort(made, (size_t)n, sizeof(graph_tensor *), compare_bytes);
    for (int i = 0; i < n; ++i) {
        place(made, i, made[i]);
        if (made[i]->at + made[i]->bytes > end) end = made[i]->at + made[i]->bytes;
    }
    for (int i = 0; i < n; ++i)
        made[i]->at += g->memory.inputs;
    g->memory.made = end;
    free(made);
    return 0;
}

int graph_plan(graph *g)
{
    if (g->failed || place_tensors(g)) return 1;
    for (int i = 0; i < g->num_nodes; ++i) {
        size_t bytes = 0;
        if (spops_nodes_scratch(g->ctx, &g->nodes[i], &bytes))
            return report(g, g->nodes[i].op->name, spops_nodes_error());
        if (bytes > g->memory.scratch) g->memory.scratch = bytes;
    }
    g->memory.total = g->memory.inputs + g->memory.made + g->memory.scratch;
    return 0;
}

int graph_announce(const graph *g, const char *name, size_t limit)
{
    const graph_memory *m = &g->memory;

    if (limit > 0 && m->total > limit) {
        fprintf(stderr, "engine: %s needs %.6f GB, the limit is %.6f GB; nothing was allocated\n",
                name, 1e-9 * (double)m->total, 1e-9 * (double)limit);
        return 1;
    }
    printf("  %s will take %.3f GB: weights and frame %.3f, what nodes make %.3f, scratch %.3f "
           "(%d nodes)\n",
           name, 1e-9 * (double)m->total, 1e-9 * (double)m->inputs, 1e-9 * (double)m->made,
           1e-9 * (double)m->scratch, g->num_nodes);
    fflush(stdout);
    return 0;
}

static int allocate_arena(graph *g)
{
    void *arena = NULL;
#ifdef EXAMPLE_WITH_CUDA
    if (g->on_cuda) {
        if (CHECK(cudaMalloc(&arena, g->memory.total))) return 1;
        g->arena = (char *)arena;
        return 0;
    }
#endif
    if (posix_memalign(&arena, ALIGNMENT, g->memory.total) != 0) return 1;
    g->arena = (char *)arena;
    return 0;
}

int graph_allocate(graph *g)
{
    if (allocate_arena(g)) return report(g, "the arena", "there is no memory for it");
    for (int i = 0; i < g->num_tensors; ++i) {
        graph_tensor *t = g->tensors[i];
        if (t->of == NULL) t->t.data = g->arena + t->at;
    }
    for (int i = 0; i < g->num_tensors; ++i) { /* those that views stand on have a place now */
        graph_tensor *t = g->tensors[i];
        if (t->of == NULL) continue;
        t->t.data = (char *)t->of->t.data +
                    (size_t)t->row * (spops_nodes_bytes(&t->of->t) / (size_t)t->of->t.shape[0]);
    }
    if (g->memory.scratch == 0) return 0;
    if (spops_context_set_scratch(g->ctx, g->arena + g->memory.inputs + g->memory.made,
                                  g->memory.scratch) == SPOPS_STATUS_OK)
        return 0;
    return report(g, "scratch", spops_last_error(g->ctx));
}

/* ---- Running ---------------------------------------------------------------------------------- */

int graph_write(graph *g, const graph_tensor *t, const void *data, size_t bytes)
{
    if (bytes > spops_nodes_bytes(&t->t)) return report(g, t->name, "has no room for so much");
#ifdef EXAMPLE_WITH_CUDA
    if (g->on_cuda)
        /* On the graph's stream: a frame does not wait for the legacy stream, where cudaMemcpy may return early. */
        return CHECK(cudaMemcpyAsync(t->t.data, data, bytes, cudaMemcpyHostToDevice,
                                     (cudaStream_t)g->stream)) ||
               graph_wait(g);
#endif
    memcpy(t->t.data, data, bytes);
    return 0;
}

int graph_read(graph *g, const graph_tensor *t, void *data, size_t bytes)
{
    if (graph_wait(g)) return 1;
#ifdef EXAMPLE_WITH_CUDA
    if (g->on_cuda) return CHECK(cudaMemcpy(data, t->t.data, bytes, cudaMemcpyDeviceToHost));
#endif
    memcpy(data, t->t.data, bytes);
    return 0;
}

int graph_wait(graph *g)
{
    if (spops_context_wait_sync(g->ctx) == SPOPS_STATUS_OK) return 0;
    return report(g, "a frame", spops_last_error(g->ctx));
}

static int run_nodes(graph *g)
{
    for (int i = 0; i < g->num_nodes; ++i)
        if (spops_nodes_run(g->ctx, &g->nodes[i]))
            return report(g, g->nodes[i].op->name, spops_nodes_error());
    return 0;
}

#ifdef EXAMPLE_WITH_CUDA
static int capture(graph *g)
{
    const cudaStream_t stream = (cudaStream_t)g->stream;
    cudaGraphExec_t exec = NULL;
    cudaGraph_t nodes = NULL;
    int failed;

    if (CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))) return 1;
    failed = run_nodes(g);
    failed = CHECK(cudaStreamEndCapture(stream, &nodes)) || failed ||
             CHECK(cudaGraphInstantiateWithFlags(&exec, nodes, 0));
    if (nodes != NULL) cudaGraphDestroy(nodes);
    g->exec = exec;
    return failed;
}

int graph_run(graph *g)
{
    if (!g->on_cuda) return run_nodes(g);
    if (g->exec == NULL && (run_nodes(g) || graph_wait(g) || capture(g)))
        return 1; /* loads kernels */
    return CHECK(cudaGraphLaunch((cudaGraphExec_t)g->exec, (cudaStream_t)g->stream));
}
#else
int graph_run(graph *g)
{
    return run_nodes(g);
}
#endif

size_t graph_device_used(const graph *g)
{
    size_t available = 0, total = 0;
#ifdef EXAMPLE_WITH_CUDA
    if (g->on_cuda && CHECK(cudaMemGetInfo(&available, &total))) available = total = 0;
#endif
    (void)g;
    return total - available;
}
