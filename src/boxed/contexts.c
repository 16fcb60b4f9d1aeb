// SPDX-License-Identifier: Apache-2.0
// The library's own contexts.
#include "boxed/contexts.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/plan.h"
#include "spops/call.h"

struct spops_own_context {
    spops_own_context *next;
    spops_call_place place;
    spops_context *ctx;
    bool in_use;
    int64_t num_plans;
    spops_plan *ended; // plans whose end came while it was in use, by next_part
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static spops_own_context *contexts;
static spops_allocator allocator; // of contexts to come, on CUDA

static bool is_at(const spops_own_context *own, const spops_call_place *place)
{
    return own->place.backend == place->backend && own->place.device == place->device &&
           own->place.stream == place->stream;
}

static spops_own_context *take_idle(const spops_call_place *place)
{
    spops_own_context *own;
    pthread_mutex_lock(&lock);
    for (own = contexts; own != NULL; own = own->next)
        if (!own->in_use && is_at(own, place)) break;
    if (own != NULL) own->in_use = true;
    pthread_mutex_unlock(&lock);
    return own;
}

spops_status spops_own_context_take(const spops_call_place *place, spops_own_context **out)
{
    spops_context_options options = spops_context_options_default();
    spops_own_context *own = take_idle(place);
    spops_status status;

    *out = own;
    if (own != NULL) return SPOPS_STATUS_OK;
    own = calloc(1, sizeof *own);
    if (own == NULL) return spops_fail(NULL, SPOPS_STATUS_OUT_OF_MEMORY, "call: no host memory");
    options.backend = place->backend;
    options.device = place->device;
    options.stream = place->stream;
    if (place->backend == SPOPS_BACKEND_CUDA) {
        pthread_mutex_lock(&lock);
        options.allocator = allocator;
        pthread_mutex_unlock(&lock);
    }
    status = spops_context_create(&options, &own->ctx);
    if (status != SPOPS_STATUS_OK) {
        free(own);
        return status;
    }
    own->ctx->frees_in_order = true; // a framework drops plans in the middle of a backward pass
    own->place = *place;
    own->in_use = true;
    pthread_mutex_lock(&lock);
    own->next = contexts;
    contexts = own;
    pthread_mutex_unlock(&lock);
    *out = own;
    return SPOPS_STATUS_OK;
}

// Plans that have ended meanwhile go first, as destroying works on their context.
void spops_own_context_give(spops_own_context *own)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        spops_plan *plan = own->ended;
        if (plan != NULL) {
            own->ended = plan->next_part;
            plan->next_part = NULL;
            --own->num_plans;
        } else {
            own->in_use = false;
        }
        pthread_mutex_unlock(&lock);
        if (plan == NULL) return;
        spops_plan_destroy(plan);
    }
}

spops_context *spops_own_context_of(spops_own_context *own)
{
    return own->ctx;
}

void spops_own_context_keep(spops_own_context *own)
{
    pthread_mutex_lock(&lock);
    ++own->num_plans;
    pthread_mutex_unlock(&lock);
}

void spops_call_set_allocator(const spops_allocator *of_contexts)
{
    const spops_allocator none = {NULL, NULL, NULL, NULL, NULL};
    pthread_mutex_lock(&lock);
    allocator = of_contexts == NULL ? none : *of_contexts;
    allocator.host_alloc = NULL; // contexts keep blocks of host memory for the next plan
    allocator.host_free = NULL;
    pthread_mutex_unlock(&lock);
}

void spops_call_destroy(spops_plan *plan)
{
    spops_own_context *own;

    if (plan == NULL) return;
    pthread_mutex_lock(&lock);
    for (own = contexts; own != NULL && own->ctx != plan->ctx; own = own->next) {
    }
    if (own != NULL && own->in_use) {
        // By another thread, whose call may wait for this one: they may be ranks.
        plan->next_part = own->ended;
        own->ended = plan;
        plan = NULL;
    } else if (own != NULL) {
        own->in_use = true;
        --own->num_plans;
    }
    pthread_mutex_unlock(&lock);
    if (plan == NULL) return;
    spops_plan_destroy(plan);
    if (own != NULL) spops_own_context_give(own);
}

void spops_call_release(void)
{
    spops_own_context *freed = NULL;

    pthread_mutex_lock(&lock);
    for (spops_own_context **at = &contexts; *at != NULL;) {
        spops_own_context *own = *at;
        if (own->in_use || own->num_plans > 0) {
            at = &own->next;
            continue;
        }
        *at = own->next;
        own->next = freed;
        freed = own;
    }
    pthread_mutex_unlock(&lock);
    while (freed != NULL) {
        spops_own_context *own = freed;
        freed = own->next;
        spops_context_destroy(own->ctx);
        free(own);
    }
}
