// SPDX-License-Identifier: Apache-2.0
/* What the network's two files share. */
#ifndef RANKS_PLANS_H
#define RANKS_PLANS_H

#include "ranks/network.h"

/* The layers and values of a MinkUNet; no memory yet. */
void ranks_add_layers(ranks_network *n, double width);

/* Weights in dtype follow from the parameters. */
spops_status ranks_narrow(ranks_network *n);

#endif
