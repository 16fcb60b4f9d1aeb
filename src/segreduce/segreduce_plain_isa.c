// SPDX-License-Identifier: Apache-2.0
// Reductions by their plain ops, which compute values alone. Compiled once per instruction set.
#include "segreduce/segreduce_blocks.h"

#define SPOPS_REDUCE_OP(name, plain, traced) REDUCE(name, SPOPS_REDUCE_##name, true)
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

const spops_segreduce_plain_table SPOPS_ISA_TABLE(spops_segreduce_plain_table) = {{
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {FLOATS(reduce_range_##name), reduce_split_##name,                     \
                             PIECE_BYTES(SPOPS_REDUCE_##name, spops_##plain)},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
}};
