// SPDX-License-Identifier: Apache-2.0
// Plans of a boxed call that are blocks: handles on those that it takes, and the one that it fills.
#ifndef SPOPS_BOXED_BLOCKS_H
#define SPOPS_BOXED_BLOCKS_H

#include "call/boxed.h"

// Handles on all blocks, on b->ctx; b->into is that of the block that the call fills.
spops_status spops_blocks_attach(spops_boxed_call *b);

// Before and after the operator's function: the block that it fills agrees with the attributes, holds
// what its plan stands on, and begins empty; a part of another plan is copied into it.
spops_status spops_blocks_begin(spops_boxed_call *b);
spops_status spops_blocks_end(spops_boxed_call *b);

#endif
