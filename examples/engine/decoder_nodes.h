// SPDX-License-Identifier: Apache-2.0
/* The decoder of generative sparse voxels (decoder/network.h) as a list of nodes. */
#ifndef ENGINE_DECODER_NODES_H
#define ENGINE_DECODER_NODES_H

#include "decoder/network.h"
#include "decoder/weights.h"
#include "engine/graph.h"

typedef struct decoder_options {
    int f16, given; /* given: children come with the frame; else logits above 0 are kept */
    int size;       /* of the finest grid */
    int64_t
        slice_rows; /* output ranges: MLPs and the last layer run so many rows at a time; 0: all */
    int64_t max_rows[LEVELS];
} decoder_options;

/* Tensors that the host writes and reads. */
typedef struct decoder_tensors {
    graph_tensor *count, *rows, *latents, *least, *given[LEVELS];
    graph_tensor *num_rows[LEVELS], *out;
    graph_tensor *weights[MAX_LAYERS], *vectors[MAX_LAYERS][2];
} decoder_tensors;

/* Fills g. 0 for success. */
int decoder_build(graph *g, const network *net, const decoder_options *o, decoder_tensors *t);

/* Parameters of a file, or drawn ones where it is NULL, to where g has them. */
int decoder_upload(graph *g, const network *net, const weights_file *file,
                   const decoder_tensors *t);

/* Numbers in another dtype, in host memory, by a node of its own. */
int decoder_convert(graph *host, const char *from, const void *x, const char *to, void *out,
                    int64_t n);

#endif
