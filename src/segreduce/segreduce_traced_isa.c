// SPDX-License-Identifier: Apache-2.0
// Reductions by their traced ops, for winners and states. One that has neither needs no code. Compiled
// once per instruction set.
#include "segreduce/segreduce_blocks.h"

#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    REDUCE(name, SPOPS_REDUCE_##name + TRACED,                                                     \
           spops_##traced##_has_arg || !spops_##traced##_is_linear)
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

const spops_segreduce_traced_table SPOPS_ISA_TABLE(spops_segreduce_traced_table) = {{
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {FLOATS(reduce_range_##name), reduce_split_##name,                     \
                             PIECE_BYTES(SPOPS_REDUCE_##name + TRACED, spops_##traced)},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
}};
