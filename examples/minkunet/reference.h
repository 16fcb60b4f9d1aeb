// SPDX-License-Identifier: Apache-2.0
/* The network once more, in FP64 and as plainly as its formulas, to check the engine's output. */
#ifndef MINKUNET_REFERENCE_H
#define MINKUNET_REFERENCE_H

#include "minkunet/engine.h"

/* Compare the output of the scan that was run last; some thousand voxels at most. Sets the largest
   difference over the largest output. 0 for success. */
int reference_compare(const engine *e, double *difference);

#endif
