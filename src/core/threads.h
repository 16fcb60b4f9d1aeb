// How many threads of the CPU a piece of work is worth.
#ifndef SPOPS_CORE_THREADS_H
#define SPOPS_CORE_THREADS_H

#include <stdint.h>

#define SPOPS_MIN_THREAD_ITEMS 8192 // elements below which a second thread costs more than it saves

// Threads worth starting for `items` elements of work.
static inline int spops_threads_for(int num_threads, int64_t items)
{
    const int64_t useful = items / SPOPS_MIN_THREAD_ITEMS;
    if (num_threads < 1 || useful < 1) return 1;
    return useful < num_threads ? (int)useful : num_threads;
}

#endif
