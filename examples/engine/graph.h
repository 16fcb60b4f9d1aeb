// SPDX-License-Identifier: Apache-2.0
/*
 * A minimal graph runner: tensors by name, nodes in the order in which they run, and one arena for all
 * of it. Everything is known before anything is allocated: graph_plan gives each tensor its place where
 * no other lies that is needed at the same time, and the sum is the peak.
 */
#ifndef ENGINE_GRAPH_H
#define ENGINE_GRAPH_H

#include "engine/spops_nodes.h"

typedef struct graph_tensor {
    char name[48];
    spops_nodes_tensor t;
    struct graph_tensor *of; /* a view: rows of this one from `row` on; else NULL */
    int64_t row;
    int is_input, stays; /* the host writes it; it is kept until the end of a frame */
    int first, last;     /* nodes between which it is needed; first < 0: none */
    size_t at, bytes;
} graph_tensor;

/* Where bytes go; scratch is one block for all nodes. */
typedef struct graph_memory {
    size_t inputs, made, scratch; /* made: by nodes, which share it */
    size_t total;                 /* the peak */
} graph_memory;

typedef struct graph {
    spops_context *ctx;
    void *stream; /* cudaStream_t */
    int on_cuda;
    graph_tensor **tensors;
    spops_nodes_node *nodes;
    char **texts; /* of nodes */
    int num_tensors, num_nodes, num_texts, failed;
    graph_memory memory;
    char *arena;
    void *exec; /* cudaGraphExec_t of a captured frame */
} graph;

/* cuda: 1 for a GPU, 0 for the CPU. Functions return 0 for success; else they said why. */
int graph_open(graph *g, int cuda);
void graph_close(graph *g);

/* A tensor that the host writes, such as weights; cols 0: of one dimension. NULL: an error, as below,
   which graph_plan returns too. */
graph_tensor *graph_input(graph *g, const char *name, const char *dtype, int64_t rows,
                          int64_t cols);

/* A plan that a node will make: its description, and those of the plans that it stands on, such as
   "coords: dims=3 max_rows=100" or "sparseconv: num_out=3; kernel_map: max_in=3". */
graph_tensor *graph_describe(graph *g, const char *name, const char *description);

/* Rows of another tensor, or the same bytes with another dtype. rows < 0: all elements as one dimension. */
graph_tensor *graph_view(graph *g, const char *name, const char *of, const char *dtype, int64_t row,
                         int64_t rows);

/*
 * A node, as printf's text: the operator's name, then NAME=VALUE for its arguments (names of tensors) and
 * attributes. An output that has no tensor yet gets one of the shape that the operator gives it; a dtype
 * may follow after a colon: "linear x=a w=b activation=relu out=c:f32".
 */
void graph_node(graph *g, const char *format, ...);

graph_tensor *graph_find(const graph *g, const char *name);
graph_tensor *graph_keep(graph *g, const char *name);

/* Where all tensors lie; fills g->memory. Allocates nothing on the device. */
int graph_plan(graph *g);

/* Says what it will take, and refuses more than limit bytes; 0: any. Allocates nothing either. */
int graph_announce(const graph *g, const char *name, size_t limit);

int graph_allocate(graph *g);
int graph_write(graph *g, const graph_tensor *t, const void *data, size_t bytes);
int graph_read(graph *g, const graph_tensor *t, void *data, size_t bytes); /* waits */
int graph_run(graph *g); /* enqueues all nodes; on a GPU as one graph from the second time on */
int graph_wait(graph *g);
size_t graph_device_used(const graph *g); /* of a GPU, by everybody; 0 on the CPU */

#endif
