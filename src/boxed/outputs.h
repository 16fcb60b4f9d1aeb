// SPDX-License-Identifier: Apache-2.0
// What spops_call_output says of a call that asks.
#ifndef SPOPS_BOXED_OUTPUTS_H
#define SPOPS_BOXED_OUTPUTS_H

#include "call/boxed.h"

// Argument `index`, an output. b->ctx measures blocks; shape may be NULL.
spops_status spops_boxed_output(const spops_boxed_call *b, int index,
                                const spops_size_algebra *algebra, spops_tensor *out,
                                int64_t *shape);

#endif
