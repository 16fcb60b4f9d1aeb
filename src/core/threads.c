// SPDX-License-Identifier: Apache-2.0
// A pool of threads for each CPU context, made for a machine that runs other things too.
//
// A parallel loop is published, and whoever comes takes its ranges one by one. The caller takes
// ranges itself until there are none left, then closes the loop and waits only for threads that are
// inside a range. A thread that the system has not run yet finds the loop closed, and costs nothing.
// Threads without work look for more during SPIN_NS, offering their core to others meanwhile, and
// then sleep.
//
// What is left is a thread that loses its core in the middle of a range, because another process
// shares it: the caller then waits as long as that process is given. The caller's core, idle
// meanwhile, usually takes the thread over; and where such waiting is measured, the pool rests for
// RESTS times as long, so that it takes a small share of the time at most.
#define _GNU_SOURCE // pthread_setname_np, sched_getaffinity, syscall
#include "core/threads.h"

#include <fenv.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS       20000 // about what falling asleep and being woken costs
#define SPINS         64    // short waits, before each further look offers the core to others
#define MIN_STOLEN_NS 100000
#define RESTS         16
#define MAX_WAIT_NS   5000000 // that a rest is counted from
#define RANGES_EACH   8 // of a thread, where no grain is given: evens out threads of unequal speed
#define PARTS_EACH    4 // likewise; fewer, as the caller keeps something for each part
#define MIN_STACK     ((size_t)1 << 20)
#define WAKES         2 // threads that one thread wakes; those wake others

// The gate of a loop, one word: how many more threads may come in, whether the caller sleeps until
// the last one has left, and how many are inside.
#define GATE_TICKET 0x10000u
#define GATE_SLEEPS 0x8000u
#define GATE_INSIDE 0x7fffu

struct spops_threads {
    _Alignas(64) _Atomic uint32_t gate;
    _Alignas(64) _Atomic uint32_t epoch; // counts published loops; what idle threads sleep on
    _Atomic uint32_t num_asleep;
    _Atomic bool ends;

    // The loop; written while the gate is closed and nobody inside.
    _Alignas(64) spops_parallel_body body;
    const void *work;
    int64_t n, grain, num_ranges;
    fenv_t environment; // the caller's: a range rounds alike on every thread
    // Ranges taken: the caller's from the first on, in the lower half, and the helpers' from the last
    // one back. Loops of a call go over the same data, of which each thread then finds its own share
    // in its cache.
    _Alignas(64) _Atomic uint64_t taken;
    _Atomic uint64_t stolen_ns; // the longest time that a thread inside was off its core

    // The caller's own.
    _Alignas(64) uint64_t rest_until_ns;
    uint64_t process; // forks_seen where the threads were started
    int num_started;
    int most;     // to start: fewer than `capacity` where the system refused one
    int capacity; // of ids
    pthread_t ids[];
};

// ---- Time and sleep -----------------------------------------------------------------------------

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Sleep if *word is `value`, until woken; may return early.
static void sleep_on(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, int num_threads)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, num_threads, NULL, NULL, 0);
}

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

// Look at *word for about SPIN_NS, until it is `value`, or until it is anything else.
static bool spin_until(_Atomic uint32_t *word, bool equal, uint32_t value)
{
    uint64_t begin = 0;
    for (int i = 0;; ++i) {
        if ((atomic_load_explicit(word, memory_order_acquire) == value) == equal) return true;
        if (i < SPINS) {
            pause_briefly();
            continue;
        }
        const uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (begin == 0) begin = now;
        if (now - begin > SPIN_NS) return false;
        (void)sched_yield();
    }
}

// ---- Inside a loop ------------------------------------------------------------------------------

static void take_ranges(spops_threads *t, bool caller)
{
    const uint64_t one = caller ? 1 : (uint64_t)1 << 32;
    for (;;) {
        const uint64_t taken = atomic_fetch_add_explicit(&t->taken, one, memory_order_relaxed);
        const int64_t first = (int64_t)(taken & UINT32_MAX), last = (int64_t)(taken >> 32);
        if (first + last >= t->num_ranges) return;
        const int64_t range = caller ? first : t->num_ranges - 1 - last;
        const int64_t begin = range * t->grain;
        t->body(t->work, begin, t->n - begin < t->grain ? t->n : begin + t->grain);
    }
}

static bool enter(spops_threads *t)
{
    uint32_t gate = atomic_load_explicit(&t->gate, memory_order_relaxed);
    while (gate >= GATE_TICKET) {
        if (atomic_compare_exchange_weak_explicit(&t->gate, &gate, gate - GATE_TICKET + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    }
    return false;
}

static void leave(spops_threads *t)
{
    const uint32_t gate = atomic_fetch_sub_explicit(&t->gate, 1, memory_order_acq_rel);
    if (gate == (GATE_SLEEPS | 1)) wake(&t->gate, 1);
}

static void work_inside(spops_threads *t)
{
    const uint64_t begin = clock_ns(CLOCK_MONOTONIC);
    const uint64_t used_before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint64_t most = atomic_load_explicit(&t->stolen_ns, memory_order_relaxed);

    (void)fesetenv(&t->environment);
    take_ranges(t, false);
    const uint64_t used = clock_ns(CLOCK_THREAD_CPUTIME_ID) - used_before;
    const uint64_t wall = clock_ns(CLOCK_MONOTONIC) - begin;
    const uint64_t stolen = wall > used ? wall - used : 0;
    while (stolen > most &&
           !atomic_compare_exchange_weak_explicit(&t->stolen_ns, &most, stolen,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

// ---- Threads ------------------------------------------------------------------------------------

static void wake_some(spops_threads *t, uint32_t wanted)
{
    if (atomic_load(&t->num_asleep) > 0) wake(&t->epoch, wanted < WAKES ? (int)wanted : WAKES);
}

// Until the epoch is no longer the one that was seen last.
static void await_loop(spops_threads *t, uint32_t seen)
{
    if (spin_until(&t->epoch, false, seen)) return;
    atomic_fetch_add(&t->num_asleep, 1);
    while (atomic_load(&t->epoch) == seen)
        sleep_on(&t->epoch, seen);
    atomic_fetch_sub(&t->num_asleep, 1);
}

static void *run_thread(void *argument)
{
    spops_threads *t = (spops_threads *)argument;
    for (;;) {
        const uint32_t seen = atomic_load(&t->epoch);
        if (atomic_load_explicit(&t->ends, memory_order_relaxed)) return NULL;
        if (enter(t)) {
            const uint32_t tickets =
                atomic_load_explicit(&t->gate, memory_order_relaxed) / GATE_TICKET;
            if (tickets > 0) wake_some(t, tickets);
            work_inside(t);
            leave(t);
        }
        await_loop(t, seen);
    }
}

// Products of matrices keep blocks and sums on the stack, up to 265 KiB; some systems give a thread 128.
static int create_thread(pthread_t *id, spops_threads *t)
{
    pthread_attr_t attributes;
    size_t bytes = 0;
    int failed = pthread_attr_init(&attributes);

    if (failed) return failed;
    (void)pthread_attr_getstacksize(&attributes, &bytes);
    if (bytes < MIN_STACK) failed = pthread_attr_setstacksize(&attributes, MIN_STACK);
    if (!failed) failed = pthread_create(id, &attributes, run_thread, t);
    (void)pthread_attr_destroy(&attributes);
    return failed;
}

// A thread that takes no signal which the program may have a handler for, or wait for.
static bool start_thread(spops_threads *t)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t blocked, before;
    int failed;

    (void)sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; ++i)
        (void)sigdelset(&blocked, own[i]);
    if (pthread_sigmask(SIG_BLOCK, &blocked, &before) != 0) return false;
    failed = create_thread(&t->ids[t->num_started], t);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return false;
    (void)pthread_setname_np(t->ids[t->num_started], "spops");
    ++t->num_started;
    return true;
}

// Counts the forks between the program's first process and this one, whose threads are not here.
static _Atomic uint64_t forks_seen;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
static int forks_error;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&forks_seen, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
    forks_error = pthread_atfork(NULL, NULL, count_fork);
}

// A child after fork() has the memory of the pool, and none of its threads.
static void forget_lost_threads(spops_threads *t)
{
    const uint64_t process = atomic_load_explicit(&forks_seen, memory_order_relaxed);
    if (t->process == process) return;
    t->process = process;
    t->num_started = 0;
    t->most = t->capacity;
    atomic_store(&t->gate, 0);
    atomic_store(&t->num_asleep, 0);
}

spops_status spops_threads_open(spops_context *ctx)
{
    const size_t most = (size_t)ctx->num_threads - 1;
    spops_threads *t;

    if (most == 0) return SPOPS_STATUS_OK;
    if (pthread_once(&forks_once, watch_forks) != 0 || forks_error != 0) {
        return spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                          "context_create: no memory to watch for forks");
    }
    t = (spops_threads *)spops_host_alloc(ctx, 1, sizeof *t + most * sizeof *t->ids);
    if (t == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    t->most = t->capacity = (int)most;
    t->process = atomic_load_explicit(&forks_seen, memory_order_relaxed);
    ctx->threads = t;
    return SPOPS_STATUS_OK;
}

void spops_threads_close(spops_context *ctx)
{
    spops_threads *t = ctx->threads;

    if (t == NULL) return;
    forget_lost_threads(t);
    atomic_store(&t->ends, true);
    atomic_fetch_add(&t->epoch, 1);
    wake(&t->epoch, t->num_started);
    for (int i = 0; i < t->num_started; ++i)
        (void)pthread_join(t->ids[i], NULL);
    ctx->threads = NULL;
    spops_host_free(ctx, t, 1, sizeof *t + (size_t)t->capacity * sizeof *t->ids);
}

int spops_default_num_threads(int most)
{
    const char *text = getenv("OMP_NUM_THREADS");
    const long asked = text != NULL ? strtol(text, NULL, 10) : 0;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
    if (asked > 0 && asked < n) n = asked;
    return n < 1 ? 1 : n > most ? most : (int)n;
}

// ---- Parallel loops -----------------------------------------------------------------------------

spops_team spops_team_for(const spops_context *ctx, int64_t items)
{
    const int64_t useful = items / SPOPS_MIN_THREAD_ITEMS;
    const int64_t size = useful < ctx->num_threads ? useful : ctx->num_threads;
    return (spops_team){ctx->threads, size < 1 ? 1 : (int)size};
}

// Open the loop to `helpers` more threads.
static void publish(spops_threads *t, uint32_t helpers)
{
    atomic_store_explicit(&t->taken, 0, memory_order_relaxed);
    atomic_store_explicit(&t->stolen_ns, 0, memory_order_relaxed);
    (void)fegetenv(&t->environment);
    atomic_store_explicit(&t->gate, helpers * GATE_TICKET, memory_order_release);
    atomic_fetch_add(&t->epoch, 1);
    wake_some(t, helpers);
}

// Nobody comes in any more; wait for those inside.
static void close_gate(spops_threads *t)
{
    uint32_t gate = atomic_fetch_and(&t->gate, GATE_INSIDE) & GATE_INSIDE;
    if (gate == 0) return;
    const uint64_t begin = clock_ns(CLOCK_MONOTONIC);
    if (!spin_until(&t->gate, true, 0)) {
        gate = atomic_fetch_or(&t->gate, GATE_SLEEPS) | GATE_SLEEPS;
        while (gate != GATE_SLEEPS) {
            sleep_on(&t->gate, gate);
            gate = atomic_load(&t->gate);
        }
    }
    const uint64_t end = clock_ns(CLOCK_MONOTONIC);
    const uint64_t stolen = atomic_load_explicit(&t->stolen_ns, memory_order_relaxed);
    const uint64_t waited = end - begin < MAX_WAIT_NS ? end - begin : MAX_WAIT_NS;
    if (stolen > MIN_STOLEN_NS && stolen > waited / 2) t->rest_until_ns = end + RESTS * waited;
}

// How many threads may help with `num_ranges` ranges now.
static int find_helpers(spops_threads *t, int size, int64_t num_ranges)
{
    const int64_t useful = (num_ranges < size ? num_ranges : size) - 1;
    const int wanted = useful < t->most ? (int)useful : t->most;

    if (t->rest_until_ns != 0) {
        if (clock_ns(CLOCK_MONOTONIC) < t->rest_until_ns) return 0;
        t->rest_until_ns = 0;
    }
    forget_lost_threads(t);
    while (t->num_started < wanted && start_thread(t)) {
    }
    if (t->num_started < wanted) t->most = t->num_started; // there is no room for more
    return t->num_started < wanted ? t->num_started : wanted;
}

void spops_parallel_for(spops_team team, int64_t n, int64_t grain, spops_parallel_body body,
                        const void *work)
{
    spops_threads *t = team.threads;
    int64_t num_ranges;
    int helpers = 0;

    if (n <= 0) return;
    if (grain <= 0) grain = (n - 1) / ((int64_t)team.size * RANGES_EACH) + 1;
    if (n / grain >= INT32_MAX) grain = n / INT32_MAX + 1; // the halves of `taken` hold no more
    num_ranges = (n - 1) / grain + 1;
    if (t != NULL && team.size > 1 && num_ranges > 1)
        helpers = find_helpers(t, team.size, num_ranges);
    if (helpers == 0) {
        body(work, 0, n);
        return;
    }
    t->body = body;
    t->work = work;
    t->n = n;
    t->grain = grain;
    t->num_ranges = num_ranges;
    publish(t, (uint32_t)helpers);
    take_ranges(t, true);
    close_gate(t);
}

typedef struct parts_work {
    spops_part_body body;
    const void *work;
    int64_t num_parts, n;
} parts_work;

static void run_parts(const void *work, int64_t begin, int64_t end)
{
    const parts_work *w = (const parts_work *)work;
    for (int64_t part = begin; part < end; ++part)
        w->body(w->work, part, spops_part_begin(w->n, part, w->num_parts),
                spops_part_begin(w->n, part + 1, w->num_parts));
}

void spops_parallel_parts(spops_team team, int64_t num_parts, int64_t n, spops_part_body body,
                          const void *work)
{
    const parts_work parts = {body, work, num_parts, n};
    spops_parallel_for(team, num_parts, 1, run_parts, &parts);
}

int spops_team_parts(spops_team team, int most)
{
    const int parts = team.size > 1 ? team.size * PARTS_EACH : 1;
    return parts < most ? parts : most;
}
