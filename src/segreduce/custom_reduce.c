// SPDX-License-Identifier: Apache-2.0
// Reductions registered at run time. Compiling one for a device is the backend's.
#include <stdatomic.h>
#include <string.h>

#include "core/check.h"
#include "segreduce/custom_reduce.h"
#include "segreduce/segreduce_args.h"

// Ids count from SPOPS_REDUCE_FIRST_CUSTOM over all contexts, so that one context never takes
// another's for its own.
static atomic_int next_id = SPOPS_REDUCE_FIRST_CUSTOM;

typedef struct custom_registry {
    spops_context_part part;
    int count;
    spops_custom_reduce *reduces[SPOPS_MAX_CUSTOM_REDUCES];
} custom_registry;

static custom_registry *registry_of(const spops_context *ctx)
{
    return (custom_registry *)ctx->custom_reduces;
}

// *copy = text in the context's memory; NULL stays NULL.
static spops_status copy_text(spops_context *ctx, const char *text, const char **copy)
{
    char *memory;
    *copy = NULL;
    if (text == NULL) return SPOPS_STATUS_OK;
    memory = spops_host_alloc(ctx, strlen(text) + 1, 1);
    if (memory == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    *copy = strcpy(memory, text);
    return SPOPS_STATUS_OK;
}

static void free_text(spops_context *ctx, const char *text)
{
    if (text != NULL) spops_host_free(ctx, (void *)(uintptr_t)text, strlen(text) + 1, 1);
}

// Half-built or whole; NULL is fine.
static void destroy_reduce(spops_context *ctx, spops_custom_reduce *custom)
{
    if (custom == NULL) return;
    if (custom->kernels != NULL && ctx->backend->reduce_destroy != NULL)
        (void)ctx->backend->reduce_destroy(ctx, &(const spops_reduce_create_args){custom});
    free_text(ctx, custom->desc.name);
    free_text(ctx, custom->desc.cuda_source);
    free_text(ctx, custom->desc.cuda_op);
    spops_host_free(ctx, custom, 1, sizeof *custom);
}

static void destroy_registry(spops_context *ctx, spops_context_part *part)
{
    custom_registry *registry = (custom_registry *)part;
    for (int i = 0; i < registry->count; ++i)
        destroy_reduce(ctx, registry->reduces[i]);
    spops_host_free(ctx, registry, 1, sizeof *registry);
}

// The context's registry, made by its first reduction.
static spops_status open_registry(spops_context *ctx, custom_registry **out)
{
    if (ctx->custom_reduces == NULL) {
        custom_registry *registry = spops_host_alloc(ctx, 1, sizeof *registry);
        if (registry == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        registry->part.destroy = destroy_registry;
        ctx->custom_reduces = &registry->part;
    }
    *out = registry_of(ctx);
    return SPOPS_STATUS_OK;
}

static spops_status take_id(spops_context *ctx, const char *name, spops_reduce *id)
{
    int next = atomic_load(&next_id);
    do {
        if (next == SPOPS_REDUCE_LAST_CUSTOM)
            return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                              "reduce_create: %s would be reduction %d of the process", name,
                              SPOPS_REDUCE_LAST_CUSTOM - SPOPS_REDUCE_FIRST_CUSTOM + 1);
    } while (!atomic_compare_exchange_weak(&next_id, &next, next + 1));
    *id = (spops_reduce)next;
    return SPOPS_STATUS_OK;
}

static spops_status check_desc(spops_context *ctx, const spops_reduce_desc *desc)
{
    SPOPS_REQUIRE(ctx, desc->name != NULL && desc->name[0] != '\0',
                  "reduce_create: desc.name is %s, expected a name",
                  desc->name == NULL ? "NULL" : "empty");
    SPOPS_REQUIRE(ctx, desc->state_bytes >= 1 && desc->state_bytes <= SPOPS_REDUCE_STATE_BYTES_MAX,
                  "reduce_create: state_bytes of %s is %zu, expected 1 to %d", desc->name,
                  desc->state_bytes, SPOPS_REDUCE_STATE_BYTES_MAX);
    if (ctx->backend->kind == SPOPS_BACKEND_CPU) {
        const char *missing = desc->identity == NULL   ? "identity"
                              : desc->fold == NULL     ? "fold"
                              : desc->combine == NULL  ? "combine"
                              : desc->finalize == NULL ? "finalize"
                                                       : NULL;
        SPOPS_REQUIRE(ctx, missing == NULL,
                      "reduce_create: %s of %s is NULL, expected a function on a CPU context",
                      missing, desc->name);
    } else {
        const char *missing = desc->cuda_source == NULL ? "cuda_source"
                              : desc->cuda_op == NULL   ? "cuda_op"
                                                        : NULL;
        SPOPS_REQUIRE(ctx, missing == NULL,
                      "reduce_create: %s of %s is NULL, expected text on a CUDA context", missing,
                      desc->name);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_reduce_create(spops_context *ctx, const spops_reduce_desc *desc,
                                 spops_reduce *out)
{
    spops_status status = SPOPS_STATUS_OK;
    custom_registry *registry = NULL;
    spops_custom_reduce *custom = NULL;
    spops_reduce_desc read;

    SPOPS_BEGIN_CALL(ctx, "reduce_create");
    ctx->call = "reduce_create";
    SPOPS_REQUIRE(ctx, desc != NULL, "reduce_create: desc is NULL");
    SPOPS_TRY(spops_check_object(ctx, "reduce_create", "out", out, sizeof *out));
    memset(&read, 0, sizeof read);
    SPOPS_TRY(spops_read_options(ctx, "reduce_create", desc, &read, sizeof read));
    SPOPS_TRY(check_desc(ctx, &read));
    SPOPS_TRY(open_registry(ctx, &registry));
    if (registry->count == SPOPS_MAX_CUSTOM_REDUCES) {
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "reduce_create: %s would be reduction %d of the context, expected at "
                          "most %d",
                          read.name, registry->count + 1, SPOPS_MAX_CUSTOM_REDUCES);
    }
    if (ctx->backend->reduce_create != NULL && ctx->backend->is_capturing(ctx)) {
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "reduce_create: %s cannot be compiled while the stream is captured",
                          read.name);
    }
    custom = spops_host_alloc(ctx, 1, sizeof *custom);
    if (custom == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    custom->desc = read;
    custom->desc.struct_size = sizeof custom->desc;
    custom->has_grad = read.grad != NULL; // a compiler finds out for itself
    custom->desc.name = custom->desc.cuda_source = custom->desc.cuda_op = NULL;
    SPOPS_TRY_GOTO(copy_text(ctx, read.name, &custom->desc.name), status, fail);
    SPOPS_TRY_GOTO(copy_text(ctx, read.cuda_source, &custom->desc.cuda_source), status, fail);
    SPOPS_TRY_GOTO(copy_text(ctx, read.cuda_op, &custom->desc.cuda_op), status, fail);
    SPOPS_TRY_GOTO(take_id(ctx, read.name, &custom->id), status, fail);
    if (ctx->backend->reduce_create != NULL) {
        const spops_reduce_create_args args = {custom};
        SPOPS_TRY_GOTO(ctx->backend->reduce_create(ctx, &args), status, fail);
    }
    *out = custom->id;
    registry->reduces[registry->count++] = custom;
    return SPOPS_STATUS_OK;

fail:
    destroy_reduce(ctx, custom);
    return status;
}

const spops_custom_reduce *spops_custom_reduce_find(const spops_context *ctx, spops_reduce reduce)
{
    const custom_registry *registry = registry_of(ctx);
    if (registry == NULL || reduce < SPOPS_REDUCE_FIRST_CUSTOM) return NULL;
    for (int i = 0; i < registry->count; ++i)
        if (registry->reduces[i]->id == reduce) return registry->reduces[i];
    return NULL;
}
