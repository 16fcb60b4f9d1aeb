// SPDX-License-Identifier: Apache-2.0
/* The network in FP64, by plain loops, to check a small cloud. */
#ifndef SPCONV_BENCHMARK_REFERENCE_H
#define SPCONV_BENCHMARK_REFERENCE_H

#include "spconv_benchmark/engine.h"

/* Largest differences, each over the largest element of its matrix. */
typedef struct differences {
    double output; /* of the network's last rows, computed from its first ones */
    double
        gradients; /* of each part's rows and weights, from the rows and gradients it was given */
} differences;

/* Overwrites all that a step writes with NaN. */
int reference_poison(engine *e);

/* After a step. 0 for success. Differences are NaN where the engine's numbers are. */
int reference_compare(const engine *e, differences *found);

/* The largest difference of n numbers over the largest of `expected`; NaN where there is one. */
double reference_difference(const double *expected, const double *x, size_t n);

#endif
