// SPDX-License-Identifier: Apache-2.0
/*
 * The network: the backbone of DSVT (Wang et al., CVPR 2023) on pillars, as OpenPCDet configures it for Waymo.
 *
 * A block has two layers. Rows attend to each other in sets of 36 within windows of 12 x 12 pillars: the sets
 * of the first layer follow x, those of the second y. Windows of every other block are shifted by half. An
 * MLP of the place in the window is added to what queries and keys are made from.
 */
#ifndef DSVT_NETWORK_H
#define DSVT_NETWORK_H

#include "networks/tape.h"

enum {
    DSVT_FEATURES = 4, /* x y z intensity */
    DSVT_INPUTS = 8,   /* padded, for rows of 16 bytes */
    DSVT_OUTPUTS = 16,
    DSVT_WINDOW = 12, /* pillars, along x and y */
    DSVT_SET_ROWS = 36,
    DSVT_SHIFTS = 2,
    DSVT_AXES = 2,
    DSVT_PLANS = DSVT_SHIFTS * DSVT_AXES,
    DSVT_STAGES = 6 /* embedding, up to four blocks, head */
};

typedef struct dsvt_config {
    const char *name;
    int channels, heads, hidden, blocks;
} dsvt_config;

/* Of OpenPCDet, and one that FP64 can follow. */
extern const dsvt_config dsvt_base, dsvt_small;
extern const char *const dsvt_stage_names[DSVT_STAGES];

/* The plan of sets along x (axis 0) or y (1) in windows that are shifted by half (shift 1) or not. */
int dsvt_sets(int shift, int axis);

/* The steps of a tape that was started. Value 0 is features, values 1 and 2 are places in windows of shift 0
   and 1, x and y from the middle of the window on. */
void dsvt_build(tape *t, const dsvt_config *c);

#endif
