// SPDX-License-Identifier: Apache-2.0
/* What a step of a network over ranks takes, and its parts alone. */
#ifndef RANKS_MEASURE_H
#define RANKS_MEASURE_H

#include "ranks/network.h"

enum { RANKS_PARTS = 24 };

/* A part of a step, of all ranks: from a common start until the last has done it; own_ms: until this one has. */
typedef struct ranks_part {
    char name[32];
    int64_t bytes; /* that this rank sends */
    int exchanges; /* in which */
    int64_t rows;  /* of this rank that are computed; 0: not counted */
    double median_ms, least_ms, own_ms;
} ranks_part;

/* Of a rank. */
typedef struct ranks_measured {
    int num_parts, num_levels;
    ranks_part parts[RANKS_PARTS];
    /* By level: rows that it owns, owned rows that read a ghost, ghosts, rows that it sends. */
    int64_t owned[RANKS_LEVELS], boundary[RANKS_LEVELS], ghosts[RANKS_LEVELS], sent[RANKS_LEVELS];
    double partition_ms, halos_ms, plans_ms;
    int64_t row_bytes, plan_bytes, gradient_bytes;
    double used_gb; /* of the device, by everybody */
    char device[128];
} ranks_measured;

/* All ranks call. captured: a step once more, in a graph; where that fails it is said, and is no failure.
   0 for success. */
int ranks_measure(ranks_network *n, int launches, int captured, ranks_measured *m);

#endif
