// SPDX-License-Identifier: Apache-2.0
// Unpacking the values of a boxed call by its row.
#ifndef SPOPS_BOXED_VALUES_H
#define SPOPS_BOXED_VALUES_H

#include "boxed/contexts.h"
#include "call/boxed.h"

// Fill b from args. Errors are reported on b->ctx, which may be NULL; b->args then has the plans and
// communicators that are some. place: where the arguments lie; its stream is left alone.
spops_status spops_values_unpack(spops_boxed_call *b, const spops_value *args, int32_t num_args,
                                 spops_call_place *place);

// The dtype, a spops_dtype or SPOPS_ROW_U8, as DLPack has it; of 4 bits pairs.
void spops_tensor_set_dtype(spops_tensor *t, int dtype);

#endif
