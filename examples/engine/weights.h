// SPDX-License-Identifier: Apache-2.0
/*
 * Parameters in a .safetensors file with the names and layouts of the original's checkpoint, as
 * decoder/weights.h describes it: 8 bytes of a length, a header of JSON, numbers in f32, f16 or bf16.
 */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "decoder/network.h"
#include "engine/graph.h"

#include <stdio.h>

typedef struct weights_file {
    const char *path;
    FILE *file;
    char *header;
    int64_t data_at, data_bytes;
} weights_file;

/* 0 for success; else it said why, as below. */
int weights_open(weights_file *f, const char *path);
void weights_close(weights_file *f);

/* Layer i as network_draw gives it, converted on `host`. */
int weights_read(graph *host, const weights_file *f, const network *net, int i, float *weights,
                 float *first, float *second);

#endif
