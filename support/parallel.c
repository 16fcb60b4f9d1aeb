// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE // sched_getaffinity
#include "support/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

enum { MOST_THREADS = 256 };

static int asked_for;

void parallel_set_threads(int num_threads)
{
    asked_for = num_threads;
}

static int num_threads(void)
{
    cpu_set_t set;
    const int n = asked_for > 0                                 ? asked_for
                  : sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                                : 1;
    return n < MOST_THREADS ? n : MOST_THREADS;
}

typedef struct loop {
    int64_t n, grain, next;
    parallel_body body;
    const void *work;
} loop;

static void *run(void *user)
{
    loop *l = user;
    for (;;) {
        const int64_t begin = __atomic_fetch_add(&l->next, l->grain, __ATOMIC_RELAXED);
        if (begin >= l->n) return NULL;
        l->body(l->work, begin, l->n - begin < l->grain ? l->n : begin + l->grain);
    }
}

void parallel_for(int64_t n, int64_t grain, parallel_body body, const void *work)
{
    pthread_t threads[MOST_THREADS];
    const int size = num_threads();
    int started = 0;
    if (n <= 0) return;
    if (grain <= 0) grain = (n + size - 1) / size;
    loop l = {n, grain, 0, body, work};
    while (started < size - 1 && (started + 1) * grain < n &&
           pthread_create(&threads[started], NULL, run, &l) == 0)
        ++started;
    run(&l);
    for (int i = 0; i < started; ++i)
        pthread_join(threads[i], NULL);
}
