// SPDX-License-Identifier: Apache-2.0
#include "tests/support/checked_alloc.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

enum { GUARD_BYTES = 256, GUARD_BYTE = 0xd7 };

struct checked_block {
    checked_block *next;
    unsigned char *ptr;
    size_t bytes;
    bool on_device;
};

void checked_alloc_init(checked_alloc *a)
{
    memset(a, 0, sizeof *a);
    a->device_backend = SPOPS_BACKEND_CUDA;
}

static void note_error(checked_alloc *a, const char *text, size_t bytes)
{
    if (a->errors++ == 0) {
        (void)snprintf(a->first_error, sizeof a->first_error, "%s (block of %zu bytes)", text,
                       bytes);
    }
}

static void check_guard(checked_alloc *a, const checked_block *b)
{
    unsigned char guard[GUARD_BYTES];
    const spops_backend_kind kind = b->on_device ? a->device_backend : SPOPS_BACKEND_CPU;
    if (!device_download(kind, guard, b->ptr + b->bytes, GUARD_BYTES)) {
        note_error(a, "the guard could not be read", b->bytes);
        return;
    }
    for (int i = 0; i < GUARD_BYTES; ++i) {
        if (guard[i] != GUARD_BYTE) {
            note_error(a, "something wrote after a block", b->bytes);
            return;
        }
    }
}

static void *take(checked_alloc *a, size_t bytes, bool on_device)
{
    void *ptr = NULL;
    const spops_backend_kind kind = on_device ? a->device_backend : SPOPS_BACKEND_CPU;
    if (++a->requests == a->fail_at) return NULL;
    checked_block *b = (checked_block *)malloc(sizeof *b);
    if (b == NULL) return NULL;
    if (!device_alloc(kind, bytes + GUARD_BYTES, &ptr) ||
        !device_fill(kind, (unsigned char *)ptr + bytes, GUARD_BYTE, GUARD_BYTES)) {
        device_free(kind, ptr);
        free(b);
        return NULL;
    }
    b->next = a->blocks;
    b->ptr = (unsigned char *)ptr;
    b->bytes = bytes;
    b->on_device = on_device;
    a->blocks = b;
    ++a->live;
    a->live_bytes += bytes;
    return ptr;
}

static void give(checked_alloc *a, void *ptr, size_t bytes, bool on_device)
{
    for (checked_block **at = &a->blocks; *at != NULL; at = &(*at)->next) {
        checked_block *b = *at;
        if (b->ptr != ptr || b->on_device != on_device) continue;
        if (b->bytes != bytes) note_error(a, "freed with other bytes than it was taken", b->bytes);
        check_guard(a, b);
        device_free(on_device ? a->device_backend : SPOPS_BACKEND_CPU, b->ptr);
        --a->live;
        a->live_bytes -= b->bytes;
        *at = b->next;
        free(b);
        return;
    }
    note_error(a, "freed what is not alive", bytes);
}

static void *host_alloc(void *user, size_t bytes)
{
    return take((checked_alloc *)user, bytes, false);
}

static void host_free(void *user, void *ptr, size_t bytes)
{
    give((checked_alloc *)user, ptr, bytes, false);
}

static void *device_alloc_hook(void *user, size_t bytes, void *stream)
{
    (void)stream; // the memory is nobody else's: it is free for any stream
    return take((checked_alloc *)user, bytes, true);
}

static void device_free_hook(void *user, void *ptr, size_t bytes, void *stream)
{
    checked_alloc *a = (checked_alloc *)user;
    // Free comes in the order of the stream: wait for what still uses the block.
    if (!device_stream_wait(a->device_backend, stream)) {
        note_error(a, "the stream could not be waited for", bytes);
    }
    give(a, ptr, bytes, true);
}

spops_allocator checked_alloc_hooks(checked_alloc *a)
{
    spops_allocator hooks = {a, host_alloc, host_free, device_alloc_hook, device_free_hook};
    return hooks;
}

void checked_alloc_check(checked_alloc *a, const char *what)
{
    for (const checked_block *b = a->blocks; b != NULL; b = b->next)
        check_guard(a, b);
    cr_assert(a->errors == 0, "%s: %s", what, a->first_error);
}

void checked_alloc_finish(checked_alloc *a, const char *what)
{
    checked_alloc_check(a, what);
    cr_assert(a->live == 0, "%s: %lld blocks of %zu bytes were not freed", what, (long long)a->live,
              a->live_bytes);
}
