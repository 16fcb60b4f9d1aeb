// SPDX-License-Identifier: Apache-2.0
/*
 * Parameters in a .safetensors file, as the original's checkpoint has them: NAME.weight and NAME.bias of
 * every layer; convolutions [out][3][3][3][in], linear layers [out][in]; f32, f16 or bf16.
 *
 * The original numbers children and taps by the axes x, y, z, of which x is the fastest for children
 * and z for taps. Here the last axis is the fastest for both: with the axes of a row in the order z, y, x
 * children keep their numbers, and taps change their order.
 */
#ifndef DECODER_WEIGHTS_H
#define DECODER_WEIGHTS_H

#include "decoder/network.h"
#include "spops/types.h"

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

/* num numbers as they are stored, of a dtype, to f32; 0 for success. */
typedef int (*weights_convert)(void *user, spops_dtype dtype, const void *stored, float *values,
                               int64_t num);

/* Layer i as network_draw gives it. The last layer of a file has seven outputs; the eighth is 0. */
int weights_read(weights_convert convert, void *user, const weights_file *f, const network *net,
                 int i, float *weights, float *first, float *second);

/* Drawn parameters of all layers in f32. */
int weights_write(const char *path, const network *net);

#endif
