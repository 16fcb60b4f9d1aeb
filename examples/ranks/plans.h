// SPDX-License-Identifier: Apache-2.0
/* What the network's two files share. */
#ifndef RANKS_PLANS_H
#define RANKS_PLANS_H

#include "ranks/network.h"

/* The layers and values of a MinkUNet; no memory yet. */
void ranks_add_layers(ranks_network *n, double width);

/* Weights in dtype follow from the parameters. */
spops_status ranks_narrow(ranks_network *n);

/* A convolution within level l of all local rows onto some of them, [num][4] where the device is. 0 for success. */
int ranks_create_rows_plan(const ranks_network *n, int l, int64_t num, const int32_t *rows,
                           spops_kernel_map **map, spops_sparseconv **conv);

#endif
