// SPDX-License-Identifier: Apache-2.0
// The interface of a backend: one table of typed functions. What every backend does with memory and
// order stands here; what it computes are the slots of backend_slots.def, one for each core
// pattern. An empty slot makes the public call return NOT_SUPPORTED. Slots get checked arguments.
#ifndef SPOPS_CORE_BACKEND_H
#define SPOPS_CORE_BACKEND_H

#include "core/context.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the slots are given is known to their modules alone.
#define SPOPS_SLOT(name, type, where)                struct type;
#define SPOPS_SLOT_BYTES(name, type, where)          struct type;
#define SPOPS_SLOT_HOST(returned, name, type, where) struct type;
#include "core/backend_slots.def"

typedef struct spops_backend {
    spops_backend_kind kind;
    const char *name;      // "cpu", "cuda"
    uint32_t lacks_dtypes; // of rows of operators: bits 1 << dtype

    // Device. open fills ctx->info and backend_state, or reports BACKEND_UNAVAILABLE.
    spops_status (*open)(spops_context *ctx, int device);
    void (*close)(spops_context *ctx);
    spops_status (*alloc)(spops_context *ctx, size_t bytes, void **ptr);
    void (*free)(spops_context *ctx, void *ptr, size_t bytes);
    spops_status (*upload)(spops_context *ctx, void *dst, const void *src, size_t bytes);   // waits
    spops_status (*download)(spops_context *ctx, void *dst, const void *src, size_t bytes); // waits
    spops_status (*copy)(spops_context *ctx, void *dst, const void *src, size_t bytes); // enqueues
    spops_status (*fill_zero)(spops_context *ctx, void *dst, size_t bytes);             // enqueues
    spops_status (*wait)(spops_context *ctx);
    bool (*is_capturing)(spops_context *ctx);
    // What `enqueue` enqueues on ctx's stream, as one graph, which launch_graph enqueues there. NULL, all
    // three: the backend has none. ctx's stream is not being captured.
    spops_status (*capture)(spops_context *ctx, spops_status (*enqueue)(void *user), void *user,
                            void **graph);
    spops_status (*launch_graph)(spops_context *ctx, void *graph);
    void (*destroy_graph)(spops_context *ctx, void *graph);

#define SPOPS_SLOT(name, type, where)       spops_status (*name)(spops_context *, const struct type *);
#define SPOPS_SLOT_BYTES(name, type, where) size_t (*name)(spops_context *, const struct type *);
#define SPOPS_SLOT_HOST(returned, name, type, where)                                               \
    returned (*name)(const spops_context *, const struct type *);
#include "core/backend_slots.def"
} spops_backend;

extern const spops_backend spops_backend_cpu;

// What a plan that is made has to say to a slot X_prepare, which a backend may do without.
#define SPOPS_PREPARE(ctx, slot, args)                                                             \
    ((ctx)->backend->slot == NULL ? SPOPS_STATUS_OK : (ctx)->backend->slot(ctx, args))

// The CUDA table, or NULL in a build without CUDA.
const spops_backend *spops_backend_cuda(void);

#ifdef __cplusplus
}
#endif

#endif
