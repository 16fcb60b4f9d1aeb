// SPDX-License-Identifier: Apache-2.0
// An allocator for contexts under test: counts what is alive, puts a guard right after each
// request and looks at it on free, and can be told to fail at its n-th request. Host and device
// hooks.
#ifndef SPOPS_TESTS_SUPPORT_CHECKED_ALLOC_H
#define SPOPS_TESTS_SUPPORT_CHECKED_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spops/context.h"

typedef struct checked_block checked_block;

typedef struct checked_alloc {
    int64_t requests; // so far, refused ones included
    int64_t fail_at;  // refuse the request of this number (from 1); 0: none
    int64_t live;     // blocks handed out and not freed
    size_t live_bytes;
    int64_t errors; // frees with wrong bytes, of unknown blocks, or with a damaged guard
    char first_error[160];
    checked_block *blocks;
    spops_backend_kind device_backend; // where device_* take memory from
} checked_alloc;

void checked_alloc_init(checked_alloc *a);
spops_allocator checked_alloc_hooks(checked_alloc *a);

// Fails the test unless every guard is whole, and (for the last look) nothing is alive.
void checked_alloc_check(checked_alloc *a, const char *what);
void checked_alloc_finish(checked_alloc *a, const char *what);

#endif
