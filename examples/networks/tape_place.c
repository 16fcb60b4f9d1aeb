// SPDX-License-Identifier: Apache-2.0
/* Steps of a tape by the names of a checkpoint. */
#include "networks/tape_place.h"

#include <stdio.h>

const char *place_name(const tape_place *p, const char *layer, char buffer[TAPE_NAME])
{
    snprintf(buffer, TAPE_NAME, "%s.%s", p->prefix, layer);
    return buffer;
}

int place_linear(const tape_place *p, const char *layer, int in, int cols, int residual,
                 spops_activation activation)
{
    char name[TAPE_NAME];
    return tape_linear(p->t, place_name(p, layer, name), p->stage, in, cols, residual, activation);
}

int place_layernorm(const tape_place *p, const char *layer, int in, int residual)
{
    char name[TAPE_NAME];
    return tape_layernorm(p->t, place_name(p, layer, name), p->stage, in, residual);
}

int place_batchnorm(const tape_place *p, const char *layer, int in, spops_activation activation,
                    int residual, float epsilon)
{
    char name[TAPE_NAME];
    return tape_batchnorm(p->t, place_name(p, layer, name), p->stage, in, activation, residual,
                          epsilon);
}
