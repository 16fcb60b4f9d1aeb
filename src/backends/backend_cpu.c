// SPDX-License-Identifier: Apache-2.0
// The CPU backend: its table, host memory, and what can be found out about the processor.
#include "backends/backend_cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/threads.h"

// The processor's name as the system gives it, or "CPU" (Arm systems give none).
static void read_name(char *name, size_t name_bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");

    snprintf(name, name_bytes, "CPU");
    if (file == NULL) return;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, "model name", strlen("model name")) != 0) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(name, name_bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    fclose(file);
}

static int64_t last_level_cache_bytes(void)
{
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : 0; // not known: everything counts as larger
}

static int64_t host_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (int64_t)pages * page_bytes : 0;
}

// What is the same for all contexts is asked once: the system takes a tenth of a millisecond over it.
static struct {
    char name[sizeof((spops_device_info *)0)->name];
    int64_t cache_bytes, memory_bytes;
} host;
static pthread_once_t host_once = PTHREAD_ONCE_INIT;

static void ask_host(void)
{
    read_name(host.name, sizeof host.name);
    host.cache_bytes = last_level_cache_bytes();
    host.memory_bytes = host_memory_bytes();
}

// ---- Memory -------------------------------------------------------------------------------------

// Whoever makes plans makes the next ones of about the same sizes. Their blocks are kept between them,
// since new pages cost as much as what is written to them; not where the caller allocates. A block's
// size stands in front of it.
#define LEAST_KEPT_BYTES ((size_t)64 << 10)
#define MOST_KEPT_BYTES  ((size_t)64 << 20)
#define KEPT_BLOCKS      12

typedef struct kept_block {
    char *memory; // NULL: none
    size_t bytes; // of the whole, size and all
} kept_block;

typedef struct kept_blocks {
    kept_block blocks[KEPT_BLOCKS];
    size_t bytes; // of all
    int oldest;
} kept_blocks;

static void drop_block(spops_context *ctx, kept_blocks *kept, int i)
{
    kept_block *block = &kept->blocks[i];
    if (block->memory != NULL)
        ctx->allocator.host_free(ctx->allocator.user, block->memory, block->bytes);
    kept->bytes -= block->bytes;
    *block = (kept_block){NULL, 0};
}

// The smallest block of `bytes` or more that is kept, unless it is twice as large; or a new one.
static char *take_block(spops_context *ctx, kept_blocks *kept, size_t bytes)
{
    int best = -1;
    char *memory;
    for (int i = 0; i < KEPT_BLOCKS; ++i) {
        const size_t own = kept->blocks[i].bytes;
        if (own >= bytes && own / 2 <= bytes && (best < 0 || own < kept->blocks[best].bytes))
            best = i;
    }
    if (best < 0) {
        memory = (char *)ctx->allocator.host_alloc(ctx->allocator.user, bytes);
        if (memory != NULL) memcpy(memory, &bytes, sizeof bytes);
        return memory;
    }
    memory = kept->blocks[best].memory;
    kept->bytes -= kept->blocks[best].bytes;
    kept->blocks[best] = (kept_block){NULL, 0};
    return memory;
}

// Keep a block in place of the oldest ones, if it is neither small nor large.
static void keep_block(spops_context *ctx, kept_blocks *kept, char *memory)
{
    kept_block block = {memory, 0};
    memcpy(&block.bytes, memory, sizeof block.bytes);
    if (block.bytes < LEAST_KEPT_BYTES || block.bytes > MOST_KEPT_BYTES) {
        ctx->allocator.host_free(ctx->allocator.user, memory, block.bytes);
        return;
    }
    do {
        kept->oldest = (kept->oldest + 1) % KEPT_BLOCKS;
        drop_block(ctx, kept, kept->oldest);
    } while (kept->bytes + block.bytes > MOST_KEPT_BYTES);
    kept->blocks[kept->oldest] = block;
    kept->bytes += block.bytes;
}

static spops_status alloc_cpu(spops_context *ctx, size_t bytes, void **ptr)
{
    kept_blocks *kept = (kept_blocks *)ctx->backend_state;
    char *memory;
    if (kept == NULL) {
        *ptr = ctx->allocator.host_alloc(ctx->allocator.user, bytes);
    } else {
        memory = bytes <= PTRDIFF_MAX - SPOPS_ALIGNMENT
                     ? take_block(ctx, kept, SPOPS_ALIGNMENT + bytes)
                     : NULL;
        *ptr = memory != NULL ? memory + SPOPS_ALIGNMENT : NULL;
    }
    if (*ptr != NULL) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                      "%s: out of host memory: %zu bytes could not be allocated", ctx->call, bytes);
}

static void free_cpu(spops_context *ctx, void *ptr, size_t bytes)
{
    kept_blocks *kept = (kept_blocks *)ctx->backend_state;
    if (kept != NULL)
        keep_block(ctx, kept, (char *)ptr - SPOPS_ALIGNMENT);
    else
        ctx->allocator.host_free(ctx->allocator.user, ptr, bytes);
}

// ---- Opening and closing ------------------------------------------------------------------------

// A sanitizer sees who reads what was freed only if it is freed.
#if defined(__SANITIZE_ADDRESS__)
#define KEEPS_BLOCKS false
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEEPS_BLOCKS false
#endif
#endif
#ifndef KEEPS_BLOCKS
#define KEEPS_BLOCKS true
#endif

static spops_status open_cpu(spops_context *ctx, int device)
{
    spops_device_info *info = &ctx->info;

    (void)device;
    SPOPS_TRY(spops_choose_isa(ctx, &ctx->cpu_isa));
    (void)pthread_once(&host_once, ask_host);
    info->struct_size = sizeof *info;
    info->backend = SPOPS_BACKEND_CPU;
    memcpy(info->name, host.name, sizeof info->name);
    snprintf(info->isa, sizeof info->isa, "%s", spops_isa_name(ctx->cpu_isa));
    info->num_processors = ctx->num_threads;
    info->cache_bytes = host.cache_bytes;
    info->memory_bytes = host.memory_bytes;
    SPOPS_TRY(spops_threads_open(ctx));
    if (!KEEPS_BLOCKS || ctx->has_host_hooks) return SPOPS_STATUS_OK;
    ctx->backend_state = spops_host_alloc(ctx, 1, sizeof(kept_blocks));
    if (ctx->backend_state != NULL) return SPOPS_STATUS_OK;
    spops_threads_close(ctx);
    return SPOPS_STATUS_OUT_OF_MEMORY;
}

static void close_cpu(spops_context *ctx)
{
    kept_blocks *kept = (kept_blocks *)ctx->backend_state;
    spops_threads_close(ctx);
    for (int i = 0; kept != NULL && i < KEPT_BLOCKS; ++i)
        drop_block(ctx, kept, i);
    spops_host_free(ctx, kept, 1, sizeof *kept);
    ctx->backend_state = NULL;
}

static spops_status copy_cpu(spops_context *ctx, void *dst, const void *src, size_t bytes)
{
    (void)ctx;
    if (bytes > 0) memcpy(dst, src, bytes);
    return SPOPS_STATUS_OK;
}

static spops_status fill_zero_cpu(spops_context *ctx, void *dst, size_t bytes)
{
    (void)ctx;
    if (bytes > 0) memset(dst, 0, bytes);
    return SPOPS_STATUS_OK;
}

static spops_status wait_cpu(spops_context *ctx)
{
    (void)ctx;
    return SPOPS_STATUS_OK;
}

static bool is_capturing_cpu(spops_context *ctx)
{
    (void)ctx;
    return false;
}

const spops_backend spops_backend_cpu = {
    .kind = SPOPS_BACKEND_CPU,
    .name = "cpu",

    .open = open_cpu,
    .close = close_cpu,
    .alloc = alloc_cpu,
    .free = free_cpu,
    .upload = copy_cpu,
    .download = copy_cpu,
    .copy = copy_cpu,
    .fill_zero = fill_zero_cpu,
    .wait = wait_cpu,
    .is_capturing = is_capturing_cpu,

#define FILL_BOTH(name) .name = spops_cpu_##name,
#define FILL_CPU(name)  .name = spops_cpu_##name,
#define FILL_CUDA(name)
#define SPOPS_SLOT(name, type, where)                FILL_##where(name)
#define SPOPS_SLOT_BYTES(name, type, where)          FILL_##where(name)
#define SPOPS_SLOT_HOST(returned, name, type, where) FILL_##where(name)
#include "core/backend_slots.def"
};
