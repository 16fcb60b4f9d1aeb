// SPDX-License-Identifier: Apache-2.0
// The threads of a context: every index once, whatever comes in between; a helper that loses its
// core, a fork, and a system that starts no more threads.
#define _GNU_SOURCE // pthread_setattr_default_np
#include <criterion/criterion.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/threads.h"

#define MANY ((int64_t)1 << 30) // items, worth any number of threads

static spops_context *cpu_context(int num_threads)
{
    spops_context *ctx = NULL;
    spops_context_options options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CPU;
    options.num_threads = num_threads;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
    return ctx;
}

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- Ranges and parts ---------------------------------------------------------------------------

static void count_range(const void *work, int64_t begin, int64_t end)
{
    int32_t *counts = *(int32_t *const *)work;
    cr_assert(begin < end);
    for (int64_t i = begin; i < end; ++i)
        ++counts[i];
}

static void count_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    int32_t *counts = *(int32_t *const *)work;
    for (int64_t i = begin; i < end; ++i)
        counts[i] += (int32_t)part;
}

// Every index once, and each by the part it belongs to.
static bool covers(spops_team team, int64_t n, int64_t grain, int num_parts)
{
    int32_t *counts = calloc((size_t)n + 1, sizeof *counts);
    bool right = true;
    spops_parallel_for(team, n, grain, count_range, &counts);
    for (int64_t i = 0; i < n; ++i)
        right &= counts[i] == 1;
    spops_parallel_parts(team, num_parts, n, count_part, &counts);
    for (int part = 0; part < num_parts; ++part)
        for (int64_t i = spops_part_begin(n, part, num_parts);
             i < spops_part_begin(n, part + 1, num_parts); ++i)
            right &= counts[i] == 1 + part;
    right &= counts[n] == 0;
    free(counts);
    return right;
}

Test(threads, ranges_and_parts)
{
    static const int threads[] = {1, 2, 3, 7, 40};
    static const int64_t sizes[] = {0, 1, 2, 3, 63, 64, 65, 1000, 4099};
    static const int64_t grains[] = {0, 1, 3, 64, 5000};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; ++t) {
        spops_context *ctx = cpu_context(threads[t]);
        const spops_team team = spops_team_for(ctx, MANY);
        cr_assert_eq(team.size, threads[t]);
        cr_assert_eq(spops_team_for(ctx, SPOPS_MIN_THREAD_ITEMS).size, 1);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; ++g)
                cr_assert(covers(team, sizes[s], grains[g], spops_team_parts(team, 16)),
                          "%d threads, %d indices, grain %d", threads[t], (int)sizes[s],
                          (int)grains[g]);
        spops_context_destroy(ctx);
    }
}

typedef struct sum_work {
    int64_t *sums; // [part]
    int64_t add;
} sum_work;

static void sum_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const sum_work *w = (const sum_work *)work;
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i)
        sum += i + w->add;
    w->sums[part] = sum;
}

// Loops in close succession, so that threads come late, come again, and sleep and wake in every order.
Test(threads, one_loop_after_another)
{
    enum { PARTS = 9, N = 500 };
    spops_context *ctx = cpu_context(4);
    const spops_team team = spops_team_for(ctx, MANY);
    const int rounds = getenv("SPOPS_TEST_QUICK") != NULL ? 2000 : 20000;
    const struct timespec pause = {0, 50000};
    for (int round = 0; round < rounds; ++round) {
        int64_t sums[PARTS], sum = 0;
        const sum_work work = {sums, round};
        memset(sums, 0xff, sizeof sums);
        spops_parallel_parts(team, PARTS, N, sum_part, &work);
        for (int i = 0; i < PARTS; ++i)
            sum += sums[i];
        cr_assert_eq(sum, (int64_t)N * (N - 1) / 2 + (int64_t)N * round);
        if (round % 100 == 0) nanosleep(&pause, NULL);
    }
    spops_context_destroy(ctx);
}

Test(threads, contexts_come_and_go)
{
    for (int i = 0; i < 50; ++i) {
        spops_context *used = cpu_context(3), *unused = cpu_context(3);
        cr_assert(covers(spops_team_for(used, MANY), 100, 1, 5));
        spops_context_destroy(unused);
        spops_context_destroy(used);
    }
}

// ---- What a helper is like ----------------------------------------------------------------------

typedef struct meeting {
    pthread_t caller;
    int num_helped;  // ranges that a helper has run
    bool wait, nap;  // the caller waits for a helper to come; helpers leave their core
    int round;       // of fegetround
    float third;     // 1 / 3 as the caller rounds it
    int num_wrong;   // results that were rounded otherwise
    bool interrupts; // a helper would take SIGINT
} meeting;

static float third_of(volatile float one)
{
    return one / 3.0f;
}

static void meet(const void *work, int64_t begin, int64_t end)
{
    meeting *m = *(meeting *const *)work;
    const double start = seconds();
    (void)begin, (void)end;
    if (third_of(1.0f) != m->third) __atomic_add_fetch(&m->num_wrong, 1, __ATOMIC_RELAXED);
    if (pthread_equal(pthread_self(), m->caller)) {
        while (m->wait && __atomic_load_n(&m->num_helped, __ATOMIC_RELAXED) == 0 &&
               seconds() - start < 20.0)
            sched_yield();
    } else {
        const struct timespec nap = {0, 30000000};
        sigset_t blocked;
        (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
        if (!sigismember(&blocked, SIGINT)) m->interrupts = true;
        __atomic_add_fetch(&m->num_helped, 1, __ATOMIC_RELAXED);
        if (m->nap) nanosleep(&nap, NULL);
    }
}

static void hold_meeting(spops_context *ctx, meeting *m)
{
    m->caller = pthread_self();
    m->num_helped = 0;
    m->third = third_of(1.0f);
    spops_parallel_for(spops_team_for(ctx, MANY), 4, 1, meet, &m);
}

Test(threads, helpers_round_as_the_caller_does)
{
    static const int rounds[] = {FE_TONEAREST, FE_UPWARD, FE_TONEAREST};
    spops_context *ctx = cpu_context(2);
    meeting m = {.wait = true};
    for (int i = 0; i < 3; ++i) {
        cr_assert_eq(fesetround(rounds[i]), 0);
        hold_meeting(ctx, &m);
        cr_assert(m.num_helped > 0, "no helper came");
        cr_assert_eq(m.num_wrong, 0);
    }
    cr_assert(!m.interrupts, "a helper takes the program's signals");
    spops_context_destroy(ctx);
}

// A helper that is off its core in the middle of a range is waited for; then nobody is asked for a
// while, and later somebody is again.
Test(threads, rest_after_waiting)
{
    spops_context *ctx = cpu_context(2);
    meeting slow = {.wait = true, .nap = true}, quick = {.wait = false};
    const double start = seconds();
    double waited;
    int helped = 0;

    hold_meeting(ctx, &slow);
    waited = seconds() - start;
    cr_assert(slow.num_helped > 0, "no helper came");
    cr_assert(waited > 0.02, "the caller did not wait: %.3f s", waited);
    for (int i = 0; i < 100; ++i) {
        hold_meeting(ctx, &quick);
        helped += quick.num_helped;
    }
    // The rest is 16 times the waiting, about half a second; a machine that stopped for as long in
    // between proves nothing.
    if (seconds() - start < 0.2) cr_assert_eq(helped, 0);
    while (quick.num_helped == 0 && seconds() - start < 60.0)
        hold_meeting(ctx, &quick);
    cr_assert(quick.num_helped > 0, "nobody helps any more");
    spops_context_destroy(ctx);
}

// ---- A busy neighbour ---------------------------------------------------------------------------

static void spin_range(const void *work, int64_t begin, int64_t end)
{
    volatile int64_t sum = 0;
    (void)work;
    for (int64_t i = begin; i < end; ++i)
        sum += i;
}

// A call of many short loops, as building a plan is.
static double time_call(spops_context *ctx)
{
    const double start = seconds();
    for (int loop = 0; loop < 30; ++loop)
        spops_parallel_for(spops_team_for(ctx, MANY), 40000, 0, spin_range, NULL);
    return seconds() - start;
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// Of two cores, for this process and those it starts.
static void keep_two_cores(void)
{
    cpu_set_t all, two;
    int n = 0;
    CPU_ZERO(&two);
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int i = 0; i < CPU_SETSIZE && n < 2; ++i)
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &two);
            ++n;
        }
    cr_assert_eq(sched_setaffinity(0, sizeof two, &two), 0);
}

// Two threads, of whose cores another process uses one, take no multiple of one thread's time. Under
// a load that comes and goes one of several tries has to show it; threads that wait for each other
// took 20 to 80 times as long in every one.
Test(threads, busy_neighbour)
{
    enum { CALLS = 21, TRIES = 6 };
    bool shown = false;
    keep_two_cores();
    const pid_t neighbour = fork();
    cr_assert(neighbour >= 0);
    if (neighbour == 0) {
        alarm(60);
        for (volatile int64_t i = 0;; ++i) {
        }
    }
    spops_context *one = cpu_context(1), *two = cpu_context(2);
    for (int t = 0; t < TRIES && !shown; ++t) {
        double alone[CALLS], together[CALLS];
        for (int i = 0; i < CALLS; ++i) {
            alone[i] = time_call(one);
            together[i] = time_call(two);
        }
        qsort(alone, CALLS, sizeof *alone, by_time);
        qsort(together, CALLS, sizeof *together, by_time);
        shown = together[CALLS / 2] < 3.0 * alone[CALLS / 2];
    }
    (void)kill(neighbour, SIGKILL);
    (void)waitpid(neighbour, NULL, 0);
    cr_assert(shown, "two threads wait for a core that they do not have");
    spops_context_destroy(two);
    spops_context_destroy(one);
}

// ---- Forks and limits ---------------------------------------------------------------------------

// What a child does in its first seconds; the exit status says whether it was right.
static void expect_child(spops_context *ctx, const char *name)
{
    int status = 0;
    const pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        alarm(60); // a child that hangs
        spops_context *own = cpu_context(3);
        const bool right = covers(spops_team_for(ctx, MANY), 1000, 1, 8) &&
                           covers(spops_team_for(own, MANY), 1000, 1, 8);
        spops_context_destroy(own);
        spops_context_destroy(ctx);
        _exit(right ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %x", name, status);
}

Test(threads, children)
{
    spops_context *ctx = cpu_context(3);
    expect_child(ctx, "before the first loop");
    cr_assert(covers(spops_team_for(ctx, MANY), 1000, 1, 8));
    expect_child(ctx, "after a loop");
    cr_assert(covers(spops_team_for(ctx, MANY), 1000, 1, 8));
    expect_child(ctx, "after another");
    spops_context_destroy(ctx);
}

// A system that starts no more threads: no stack is as large as it is asked for.
Test(threads, none_to_be_had)
{
    spops_context *ctx = cpu_context(4), *other = cpu_context(4);
    pthread_attr_t usual, huge;

    cr_assert_eq(pthread_getattr_default_np(&usual), 0);
    cr_assert_eq(pthread_attr_init(&huge), 0);
    cr_assert_eq(pthread_attr_setstacksize(&huge, (size_t)1 << 46), 0);
    cr_assert_eq(pthread_setattr_default_np(&huge), 0);
    cr_assert(covers(spops_team_for(ctx, MANY), 1000, 1, 8));
    cr_assert_eq(pthread_setattr_default_np(&usual), 0);
    cr_assert(covers(spops_team_for(ctx, MANY), 1000, 1, 8));
    cr_assert(covers(spops_team_for(other, MANY), 1000, 1, 8));
    spops_context_destroy(ctx);
    spops_context_destroy(other);
}

// The processors that there are, or fewer where the usual variable says so.
Test(threads, default_number)
{
    cr_assert_eq(setenv("OMP_NUM_THREADS", "1", 1), 0);
    cr_assert_eq(spops_default_num_threads(4096), 1);
    cr_assert_eq(setenv("OMP_NUM_THREADS", "many", 1), 0);
    cr_assert(spops_default_num_threads(4096) >= 1);
    cr_assert_eq(unsetenv("OMP_NUM_THREADS"), 0);
    cr_assert(spops_default_num_threads(4096) >= 1);
    cr_assert_eq(spops_default_num_threads(1), 1);
}
