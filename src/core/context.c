// SPDX-License-Identifier: Apache-2.0
// Contexts: options, the choice of a backend, scratch, and what can be asked of one.
#define _DEFAULT_SOURCE // madvise
#include "core/context.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/check.h"
#include "spops/regime.h"
#include "core/cpu_isa.h"
#include "core/threads.h"

// More threads than any host has processors: a larger number is a mistake.
#define MAX_THREADS 4096

// One piece of scratch, with its tickets in front of it: a write after the scratch is a write
// after the block, which a checking allocator sees (unless the block was made larger, to grow into).
typedef struct spops_block {
    struct spops_block *next;
    void *memory;
    size_t bytes;
    size_t scratch_bytes; // what of it is scratch
    bool captured;        // an execute call took it while the stream was captured
} spops_block;

// Blocks from here on, which the C library maps anew each time, lie on large pages where the system
// has any to spare: with pages of 4 KiB half of the time to make a plan of a million points went to
// their first touch.
#define LARGE_BYTES ((size_t)32 << 20)
#define LARGE_PAGE  ((size_t)2 << 20)

static void *default_host_alloc(void *user, size_t bytes)
{
    const bool large = bytes >= LARGE_BYTES;
    void *ptr = NULL;
    (void)user;
    if (posix_memalign(&ptr, large ? LARGE_PAGE : SPOPS_ALIGNMENT, bytes) != 0) return NULL;
    if (large) (void)madvise(ptr, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
    return ptr;
}

static void default_host_free(void *user, void *ptr, size_t bytes)
{
    (void)user, (void)bytes;
    free(ptr);
}

// What begins with a size_t and may hold pointers has a size of whole words, in every version of it;
// any other number would end within a field.
static bool is_struct_size(size_t given, size_t size)
{
    return given >= sizeof given && given <= size && given % sizeof given == 0;
}

spops_status spops_read_options(spops_context *ctx, const char *call, const void *options,
                                void *dst, size_t size)
{
    size_t struct_size;

    if (options == NULL) return SPOPS_STATUS_OK;
    memcpy(&struct_size, options, sizeof struct_size);
    SPOPS_REQUIRE(ctx, is_struct_size(struct_size, size),
                  "%s: struct_size is %zu, expected %zu to %zu in steps of %zu", call, struct_size,
                  sizeof struct_size, size, sizeof struct_size);
    memcpy(dst, options, struct_size);
    return SPOPS_STATUS_OK;
}

spops_status spops_write_struct(spops_context *ctx, const char *call, const char *name, void *dst,
                                const void *src, size_t size)
{
    size_t given;
    SPOPS_REQUIRE(ctx, dst != NULL, "%s: %s is NULL", call, name);
    memcpy(&given, dst, sizeof given);
    SPOPS_REQUIRE(ctx, is_struct_size(given, size),
                  "%s: %s.struct_size is %zu, expected %zu to %zu in steps of %zu", call, name,
                  given, sizeof given, size, sizeof given);
    memcpy((char *)dst + sizeof given, (const char *)src + sizeof given, given - sizeof given);
    return SPOPS_STATUS_OK;
}

void spops_outer_enter(const spops_outer_call *outer)
{
    if (outer->ctx->outer == NULL) outer->ctx->outer = outer;
}

void spops_outer_leave(const spops_outer_call *outer)
{
    if (outer->ctx->outer == outer) outer->ctx->outer = NULL;
}

static spops_status check_options(const spops_context_options *options)
{
    const spops_allocator *a = &options->allocator;

    SPOPS_REQUIRE(NULL, (unsigned)options->backend <= SPOPS_BACKEND_CUDA,
                  "context_create: backend is %u, expected 0 (auto), 1 (CPU) or 2 (CUDA)",
                  (unsigned)options->backend);
    SPOPS_REQUIRE(NULL, options->num_threads >= 0 && options->num_threads <= MAX_THREADS,
                  "context_create: num_threads is %" PRId32 ", expected 0 to %d",
                  options->num_threads, MAX_THREADS);
    SPOPS_REQUIRE(NULL, options->dense_library == 0 || options->dense_library == 1,
                  "context_create: dense_library is %" PRId32 ", expected 0 or 1",
                  options->dense_library);
    SPOPS_REQUIRE(NULL, options->reserved == 0,
                  "context_create: reserved is %" PRId32 ", expected 0", options->reserved);
    SPOPS_REQUIRE(NULL, (a->host_alloc == NULL) == (a->host_free == NULL),
                  "context_create: allocator.%s is NULL while allocator.%s is not",
                  a->host_alloc == NULL ? "host_alloc" : "host_free",
                  a->host_alloc == NULL ? "host_free" : "host_alloc");
    SPOPS_REQUIRE(NULL, (a->device_alloc == NULL) == (a->device_free == NULL),
                  "context_create: allocator.%s is NULL while allocator.%s is not",
                  a->device_alloc == NULL ? "device_alloc" : "device_free",
                  a->device_alloc == NULL ? "device_free" : "device_alloc");
    return SPOPS_STATUS_OK;
}

static spops_status open_backend(spops_context *ctx, const spops_backend *backend, int device)
{
    spops_status status;
    ctx->backend = backend;
    status = backend->open(ctx, device);
    if (status != SPOPS_STATUS_OK) {
        ctx->backend = NULL;
        ctx->backend_state = NULL;
        memset(&ctx->info, 0, sizeof ctx->info);
    }
    return status;
}

static spops_status choose_backend(spops_context *ctx, const spops_context_options *options)
{
    const spops_backend *cuda = spops_backend_cuda();

    if (options->backend != SPOPS_BACKEND_CPU && cuda != NULL) {
        const spops_status status = open_backend(ctx, cuda, options->device);
        if (status == SPOPS_STATUS_OK || options->backend == SPOPS_BACKEND_CUDA) return status;
        // No failure: why there is no CUDA stays to be read.
    }
    if (options->backend == SPOPS_BACKEND_CUDA) {
        return spops_fail(ctx, SPOPS_STATUS_BACKEND_UNAVAILABLE,
                          "context_create: backend is CUDA, and this build is without CUDA");
    }
    return open_backend(ctx, &spops_backend_cpu, 0);
}

// Here, because no call that runs may open anything.
static spops_status open_dense_library(spops_context *ctx, const spops_context_options *options)
{
    const spops_matmul_open_args args = {"context_create"};
    if (options->dense_library == 0) return SPOPS_STATUS_OK;
    ctx->dense_library = true;
    return ctx->backend->matmul_open(ctx, &args);
}

// The context goes, its message stays; the log has it already.
static void keep_message(const spops_context *ctx, spops_status status)
{
    spops_log_forgive(1);
    spops_fail(NULL, status, "%s", ctx->error);
    spops_log_forgive(-1);
}

static void log_context(const spops_context *ctx)
{
    spops_log_line line = {0};
    spops_log_add(&line, "  = ctx=%p %s, %s, %s, device %" PRId32 ", %d threads", (const void *)ctx,
                  spops_version(), ctx->backend->name, ctx->info.isa, ctx->info.device,
                  ctx->num_threads);
    spops_log_write(&line);
}

spops_status spops_context_create(const spops_context_options *options, spops_context **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_context *ctx = NULL;
    spops_context_options read;
    spops_allocator allocator;

    SPOPS_REQUIRE(NULL, out != NULL, "context_create: out is NULL");
    *out = NULL;
    spops_rows_parse();
    SPOPS_TRY(spops_log_open());
    if (spops_log_is_on) spops_log_call(NULL, "context_create");
    memset(&read, 0, sizeof read);
    SPOPS_TRY(spops_read_options(NULL, "context_create", options, &read, sizeof read));
    SPOPS_TRY(check_options(&read));
    allocator = read.allocator;
    if (allocator.host_alloc == NULL) {
        allocator.host_alloc = default_host_alloc;
        allocator.host_free = default_host_free;
    }
    ctx = allocator.host_alloc(allocator.user, sizeof *ctx);
    if (ctx == NULL) {
        return spops_fail(NULL, SPOPS_STATUS_OUT_OF_MEMORY,
                          "context_create: out of host memory: %zu bytes could not be allocated",
                          sizeof *ctx);
    }
    memset(ctx, 0, sizeof *ctx);
    ctx->call = "context_create";
    ctx->allocator = allocator;
    ctx->has_host_hooks = read.allocator.host_alloc != NULL;
    ctx->stream = read.stream;
    ctx->num_threads =
        read.num_threads > 0 ? read.num_threads : spops_default_num_threads(MAX_THREADS);
    SPOPS_TRY_GOTO(choose_backend(ctx, &read), status, fail);
    status = open_dense_library(ctx, &read);
    if (status != SPOPS_STATUS_OK) {
        keep_message(ctx, status);
        spops_context_destroy(ctx);
        return status;
    }
    if (spops_log_is_on) log_context(ctx);
    *out = ctx;
    return SPOPS_STATUS_OK;

fail:
    keep_message(ctx, status);
    allocator.host_free(allocator.user, ctx, sizeof *ctx);
    return status;
}

static void free_block(spops_context *ctx, spops_block *block)
{
    spops_backend_free(ctx, block->memory, block->bytes);
    spops_host_free(ctx, block, 1, sizeof *block);
}

void spops_context_destroy(spops_context *ctx)
{
    spops_allocator allocator;

    if (ctx == NULL) return;
    if (spops_log_is_on) spops_log_call(ctx, "context_destroy");
    (void)ctx->backend->wait(ctx);
    if (ctx->lent_plans != NULL) ctx->lent_plans->destroy(ctx, ctx->lent_plans);
    if (ctx->custom_reduces != NULL) ctx->custom_reduces->destroy(ctx, ctx->custom_reduces);
    if (ctx->matmul != NULL) ctx->matmul->destroy(ctx, ctx->matmul);
    while (ctx->blocks != NULL) {
        spops_block *block = ctx->blocks;
        ctx->blocks = block->next;
        free_block(ctx, block);
    }
    ctx->backend->close(ctx);
    allocator = ctx->allocator;
    allocator.host_free(allocator.user, ctx, sizeof *ctx);
}

spops_status spops_context_get_device_info(spops_context *ctx, spops_device_info *info)
{
    static const char call[] = "context_get_device_info";
    SPOPS_BEGIN_CALL(ctx, call);
    return spops_write_struct(ctx, call, "info", info, &ctx->info, sizeof *info);
}

spops_backend_kind spops_context_backend(const spops_context *ctx)
{
    return ctx != NULL ? ctx->backend->kind : SPOPS_BACKEND_AUTO;
}

void *spops_context_stream(const spops_context *ctx)
{
    return ctx != NULL ? ctx->stream : NULL;
}

enum spops_cpu_isa spops_context_isa(const spops_context *ctx)
{
    return ctx->cpu_isa;
}

// Make a block the context's scratch. One that it replaces is given back, in the order of the stream,
// unless a captured graph may hold its address.
static void use_block(spops_context *ctx, spops_block *block, char *scratch, uint32_t *tickets)
{
    spops_block *outgrown = ctx->blocks;
    if (outgrown != NULL && !outgrown->captured) {
        ctx->blocks = outgrown->next;
        free_block(ctx, outgrown);
    }
    block->next = ctx->blocks;
    ctx->blocks = block;
    ctx->scratch = scratch;
    ctx->tickets = tickets;
}

// A new block with `bytes` of scratch, its tickets zero.
static spops_status grow_scratch(spops_context *ctx, size_t bytes)
{
    spops_status status = SPOPS_STATUS_OK;
    const size_t tickets_bytes = bytes / SPOPS_TICKETS_FRACTION;
    spops_carver measure = {NULL, 0}, carver = {NULL, 0};
    spops_block *block;
    uint32_t *tickets;
    char *scratch;

    (void)spops_carve(&measure, (int64_t)tickets_bytes, 1, 1);
    (void)spops_carve(&measure, (int64_t)bytes, 1, 1);
    block = spops_host_alloc(ctx, 1, sizeof *block);
    if (block == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    block->bytes = measure.used;
    block->scratch_bytes = bytes;
    SPOPS_TRY_GOTO(spops_backend_alloc(ctx, block->bytes, &block->memory), status, fail);
    carver.base = block->memory;
    tickets = spops_carve(&carver, (int64_t)tickets_bytes, 1, 1);
    scratch = spops_carve(&carver, (int64_t)bytes, 1, 1);
    if (tickets != NULL)
        SPOPS_TRY_GOTO(ctx->backend->fill_zero(ctx, tickets, tickets_bytes), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    use_block(ctx, block, scratch, tickets);
    return SPOPS_STATUS_OK;

fail:
    free_block(ctx, block);
    return status;
}

spops_status spops_context_grow(spops_context *ctx, size_t bytes)
{
    const size_t capacity = ctx->blocks != NULL ? ctx->blocks->scratch_bytes : 0;
    // A scene that grows a little with every frame gets a new block for every half more.
    const size_t ample = capacity + capacity / 2;
    spops_status status;

    if (bytes <= ctx->scratch_bytes) return SPOPS_STATUS_OK;
    if (ctx->lent_scratch) return SPOPS_STATUS_OK; // a call that finds too little says so
    SPOPS_REQUIRE(ctx, bytes <= PTRDIFF_MAX / 2,
                  "%s: scratch of %zu bytes is more than the address space holds", ctx->call,
                  bytes);
    if (bytes > capacity) {
        if (ctx->backend->is_capturing(ctx)) {
            return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                              "%s: scratch of %zu bytes cannot grow to %zu while the stream is "
                              "captured",
                              ctx->call, ctx->scratch_bytes, bytes);
        }
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        if (bytes < ample)
            SPOPS_TRY_FORGIVING(ctx, SPOPS_STATUS_OUT_OF_MEMORY, status, grow_scratch(ctx, ample));
        if (status == SPOPS_STATUS_OUT_OF_MEMORY) status = grow_scratch(ctx, bytes);
        SPOPS_TRY(status);
    }
    ctx->scratch_bytes = bytes;
    return SPOPS_STATUS_OK;
}

spops_status spops_context_reserve(spops_context *ctx, size_t bytes)
{
    SPOPS_BEGIN_CALL(ctx, "context_reserve");
    ctx->call = "context_reserve";
    return spops_context_grow(ctx, bytes);
}

// What a caller's memory is cut into.
static char *carve_scratch(spops_carver *c, size_t scratch_bytes, uint32_t **tickets)
{
    *tickets = spops_carve(c, (int64_t)(scratch_bytes / SPOPS_TICKETS_FRACTION), 1, 1);
    return spops_carve(c, (int64_t)scratch_bytes, 1, 1);
}

size_t spops_context_scratch_memory(size_t scratch_bytes)
{
    spops_carver measured = {NULL, 0};
    uint32_t *tickets;
    if (scratch_bytes == 0) return 0;
    if (scratch_bytes > PTRDIFF_MAX / 2) return SIZE_MAX;
    (void)carve_scratch(&measured, scratch_bytes, &tickets);
    return measured.used + SPOPS_ALIGNMENT; // to begin at an aligned address
}

// The most scratch that so many bytes hold: a little less than what counters of a quarter leave.
static size_t scratch_in(size_t bytes)
{
    size_t high = bytes / 5 * 4 + 4, low = high > 1024 ? high - 1024 : 0;
    while (low < high) {
        const size_t middle = low + (high - low + 1) / 2;
        if (spops_context_scratch_memory(middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

spops_status spops_context_set_scratch(spops_context *ctx, void *memory, size_t bytes)
{
    static const char call[] = "context_set_scratch";
    spops_carver carver = {NULL, 0};
    size_t scratch_bytes;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, memory != NULL || bytes == 0, "%s: memory is NULL, expected %zu bytes", call,
                  bytes);
    SPOPS_REQUIRE(ctx, (uintptr_t)memory % SPOPS_PLAN_ALIGNMENT == 0,
                  "%s: memory is at %p, expected an address aligned to %d bytes", call, memory,
                  SPOPS_PLAN_ALIGNMENT);
    if (!ctx->lent_scratch) {
        ctx->own_scratch = ctx->scratch;
        ctx->own_tickets = ctx->tickets;
        ctx->own_scratch_bytes = ctx->scratch_bytes;
    }
    ctx->lent_scratch = memory != NULL;
    if (memory == NULL) {
        ctx->scratch = ctx->own_scratch;
        ctx->tickets = ctx->own_tickets;
        ctx->scratch_bytes = ctx->own_scratch_bytes;
        return SPOPS_STATUS_OK;
    }
    scratch_bytes = scratch_in(bytes);
    carver.base = (char *)memory + (0 - (uintptr_t)memory) % SPOPS_ALIGNMENT;
    ctx->scratch = carve_scratch(&carver, scratch_bytes, &ctx->tickets);
    ctx->scratch_bytes = scratch_bytes;
    if (ctx->tickets == NULL) return SPOPS_STATUS_OK;
    return ctx->backend->fill_zero(ctx, ctx->tickets, scratch_bytes / SPOPS_TICKETS_FRACTION);
}

spops_status spops_context_scratch(spops_context *ctx, const char *call, size_t bytes,
                                   void **scratch)
{
    *scratch = ctx->scratch;
    if (bytes <= ctx->scratch_bytes) {
        if (ctx->blocks != NULL && !ctx->blocks->captured && !ctx->lent_scratch)
            ctx->blocks->captured = ctx->backend->is_capturing(ctx);
        return SPOPS_STATUS_OK;
    }
    *scratch = NULL;
    return spops_fail(ctx, SPOPS_STATUS_SCRATCH_TOO_SMALL,
                      "%s: the context's scratch is %zu bytes, expected at least %zu", call,
                      ctx->scratch_bytes, bytes);
}

spops_status spops_context_wait_sync(spops_context *ctx)
{
    SPOPS_BEGIN_CALL(ctx, "context_wait_sync");
    return ctx->backend->wait(ctx);
}

spops_regime spops_context_regime(const spops_context *ctx, int64_t working_set_bytes)
{
    const int64_t cache_bytes = ctx != NULL ? ctx->info.cache_bytes : 0;
    return working_set_bytes <= cache_bytes ? SPOPS_REGIME_L2_RESIDENT : SPOPS_REGIME_DRAM_BOUND;
}

const char *spops_regime_name(spops_regime regime)
{
    switch (regime) {
    case SPOPS_REGIME_L2_RESIDENT: return "L2-resident";
    case SPOPS_REGIME_DRAM_BOUND: return "DRAM-bound";
    }
    return "?";
}

#define TEXT_OF(x) TEXT(x)
#define TEXT(x)    #x

const char *spops_version(void)
{
    return TEXT_OF(SPOPS_VERSION_MAJOR) "." TEXT_OF(SPOPS_VERSION_MINOR) "." TEXT_OF(
        SPOPS_VERSION_PATCH);
}

int spops_has_cuda(void)
{
    return spops_backend_cuda() != NULL;
}
