// SPDX-License-Identifier: Apache-2.0
// The plans of a drawn call as blocks: each is made anew by the operator that made it, with what that
// one was given, in memory of the caller's and by a description that has the same fields.
#ifndef SPOPS_TESTS_SUPPORT_DRAWN_BLOCK_H
#define SPOPS_TESTS_SUPPORT_DRAWN_BLOCK_H

#include "tests/support/drawn_call.h"

enum { DRAWN_MAX_BLOCKS = 24, DRAWN_MAX_INTS = 1024 };

typedef struct drawn_block {
    const spops_plan *plan; // that it is like
    unsigned char *memory;  // where the backend runs, with room before and behind the block
    size_t bytes;           // of the block
    bool is_same; // it holds what the plan does; false: some of its inputs were drawn for it
    int64_t ints[DRAWN_MAX_INTS];
    int64_t shape[1], num_ints[1];
    spops_tensor block, description;
    void *drawn[SPOPS_ROW_MAX_ARGS]; // inputs that the block alone has
} drawn_block;

typedef struct drawn_blocks {
    drawn_block all[DRAWN_MAX_BLOCKS];
    int num;
    spops_plan *attached[2 * DRAWN_MAX_BLOCKS];
    int num_attached;
} drawn_blocks;

// Values of c with blocks in place of plans, as far as they can be; how many plans are blocks.
int drawn_blocks_make(drawn_blocks *b, const drawn_call *c, test_device *d,
                      spops_value values[DRAWN_MAX_VALUES]);

// The same with handles that are attached to the blocks.
void drawn_blocks_attach(drawn_blocks *b, const drawn_call *c, test_device *d,
                         spops_value values[DRAWN_MAX_VALUES]);

// A block like `made`, which c's operator made; its two values join `values`. NULL: there is none.
drawn_block *drawn_blocks_output(drawn_blocks *b, const drawn_call *c, test_device *d,
                                 const spops_plan *made, spops_value values[DRAWN_MAX_VALUES]);

void drawn_blocks_free(drawn_blocks *b, test_device *d);

#endif
