// SPDX-License-Identifier: Apache-2.0
/* Steps of a tape by the names of a checkpoint, "PREFIX.LAYER". */
#ifndef NETWORKS_TAPE_PLACE_H
#define NETWORKS_TAPE_PLACE_H

#include "networks/tape.h"

/* Where steps stand. */
typedef struct tape_place {
    tape *t;
    int stage, level, heads;
    char prefix[40]; /* "enc.enc0.block1" */
} tape_place;

/* The name of a layer there, in the buffer. */
const char *place_name(const tape_place *p, const char *layer, char buffer[TAPE_NAME]);

/* As the functions of tape.h that they are named after. */
int place_linear(const tape_place *p, const char *layer, int in, int cols, int residual,
                 spops_activation activation);
int place_layernorm(const tape_place *p, const char *layer, int in, int residual);
int place_batchnorm(const tape_place *p, const char *layer, int in, spops_activation activation,
                    int residual, float epsilon);

#endif
