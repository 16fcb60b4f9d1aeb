// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_SEGREDUCE_RANK_ARGS_H
#define SPOPS_SEGREDUCE_RANK_ARGS_H

#include "segments/lists.h"

// Ranks of the terms of the lists; -1 for those that they leave out.
typedef struct spops_rank_args {
    const spops_lists *lists;
    int32_t *ranks; // [max_terms]
} spops_rank_args;

#endif
