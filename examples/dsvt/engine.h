// SPDX-License-Identifier: Apache-2.0
/* The engine: pillars and sets for scans of up to a given size. */
#ifndef DSVT_ENGINE_H
#define DSVT_ENGINE_H

#include "dsvt/network.h"
#include "networks/tape_engine.h"

typedef struct engine {
    tape_engine base; /* the first */
    int64_t max_rows;
    spops_patches *sets[DSVT_PLANS];
    spops_point_cloud cloud; /* the pillars' cells */
    int32_t *offsets;        /* of the cloud */
} engine;

extern const tape_network dsvt_network;

/* The pillar of a point: 0 or more, and less than 2^9, along both axes for all that is inside. */
enum { PILLAR_BITS = 9 };
void engine_pillar_of(const tape_engine *base, const float *point, int cell[2]);

/* Compare with FP64 and from the points on: pillars and sets of its own. */
int reference_check(const tape_engine *base, const float *parameters, const scan *s,
                    const char *name);

#endif
