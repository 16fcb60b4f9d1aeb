// SPDX-License-Identifier: Apache-2.0
// Fetching a cache line that will be written.
#ifndef SPOPS_CORE_PREFETCH_H
#define SPOPS_CORE_PREFETCH_H

// Without this, each store to a line that another core wrote last waits for it, one after the other.
// (GCC makes it a fetch to read, which does not take the line from the other core, unless told that
// the processor has the instruction; those that lack it ignore it.)
static inline void spops_fetch_to_write(const void *address)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" ::"m"(*(const char *)address));
#else
    __builtin_prefetch(address, 1);
#endif
}

#endif
