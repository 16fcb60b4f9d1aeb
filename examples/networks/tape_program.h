// SPDX-License-Identifier: Apache-2.0
/* The program of a network that is a tape: options, frames through one graph, what each part takes beside its
   floor, and whether what was computed is right. */
#ifndef NETWORKS_TAPE_PROGRAM_H
#define NETWORKS_TAPE_PROGRAM_H

#include "networks/tape_engine.h"
#include "networks/tape_reference.h"

/* All of a program; what main returns. */
int tape_program(const tape_network *network, int argc, char **argv);

/*
 * What an engine computed last against FP64, for its network's check: r and inputs as of reference_run,
 * parameters those of a tape for training. Output, and gradients where it trains; 0: right.
 */
int tape_check(const tape_engine *e, const float *parameters, const reference_relations *r,
               double *const *inputs, const char *name);

#endif
