// SPDX-License-Identifier: Apache-2.0
// The library's own contexts, which boxed calls run on: as many as there are calls at once, for each
// device and stream.
#ifndef SPOPS_BOXED_CONTEXTS_H
#define SPOPS_BOXED_CONTEXTS_H

#include "core/context.h"

// Where a call runs.
typedef struct spops_call_place {
    spops_backend_kind backend;
    int32_t device;
    void *stream;
} spops_call_place;

typedef struct spops_own_context spops_own_context;

// A context that nobody else uses until it is given back.
spops_status spops_own_context_take(const spops_call_place *place, spops_own_context **out);
void spops_own_context_give(spops_own_context *own);
spops_context *spops_own_context_of(spops_own_context *own);

// A plan was made on own, which stays until spops_call_destroy of it.
void spops_own_context_keep(spops_own_context *own);

#endif
