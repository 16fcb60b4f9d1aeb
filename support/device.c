// SPDX-License-Identifier: Apache-2.0
// The CPU half of support/device.h and the choice between the halves. CUDA calls are left to
// device_cuda.c (or, in a build without CUDA, to device_none.c).
#include "support/device_cuda.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/parallel.h"

#define ALIGNMENT         ((size_t)256)
#define NUM_WARMUP        3
#define MAX_WARMUP_US     1e5   // a run this long is not repeated to warm up
#define MIN_HOT_SAMPLE_US 200.0 // shorter runs are repeated within a sample: the clock costs 50 ns
#define MAX_HOT_INNER     1000
#define COPY_BYTES        ((size_t)256 << 20)
#define NUM_COPIES        5
#define MIN_SWEEP_BYTES   ((size_t)64 << 20)
#define MAX_SWEEP_BYTES   ((size_t)1 << 30)
#define CACHE_LINE        64

static _Thread_local char last_error[256];

bool device_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return false;
}

const char *device_error(void)
{
    return last_error;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void device_summarize(double *samples_us, int num_samples, device_timing *timing)
{
    const int last = num_samples - 1;
    qsort(samples_us, (size_t)num_samples, sizeof *samples_us, compare_doubles);
    timing->min_us = samples_us[0];
    timing->median_us = 0.5 * (samples_us[last / 2] + samples_us[(last + 1) / 2]);
    timing->p10_us = samples_us[(int)lround(0.1 * last)];
    timing->p90_us = samples_us[(int)lround(0.9 * last)];
}

// Whether the backend is known, and then which.
static bool find(spops_backend_kind backend, bool *cpu)
{
    *cpu = backend == SPOPS_BACKEND_CPU;
    if (*cpu || backend == SPOPS_BACKEND_CUDA) return true;
    return device_fail("backend is %d, expected CPU or CUDA", (int)backend);
}

bool device_has_cuda(void)
{
    return device_cuda_exists();
}

int32_t device_count(void)
{
    return device_cuda_count();
}

static _Thread_local int32_t used_device;

bool device_use(int32_t device)
{
    if (device == used_device) return true;
    if (!device_cuda_use(device)) return false;
    used_device = device;
    return true;
}

int32_t device_used(void)
{
    return used_device;
}

bool device_alloc(spops_backend_kind backend, size_t bytes, void **ptr)
{
    bool cpu;
    *ptr = NULL;
    if (!find(backend, &cpu)) return false;
    if (bytes == 0) return true;
    if (!cpu) return device_cuda_alloc(bytes, ptr);
    if (bytes > PTRDIFF_MAX - ALIGNMENT) return device_fail("no host memory for %zu bytes", bytes);
    *ptr = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (*ptr == NULL) return device_fail("no host memory for %zu bytes", bytes);
    memset(*ptr, 0xff, bytes);
    return true;
}

void device_free(spops_backend_kind backend, void *ptr)
{
    if (ptr == NULL) return;
    if (backend == SPOPS_BACKEND_CUDA)
        device_cuda_free(ptr);
    else
        free(ptr);
}

bool device_upload(spops_backend_kind backend, void *dst, const void *src, size_t bytes)
{
    bool cpu;
    if (!find(backend, &cpu)) return false;
    if (bytes == 0) return true;
    if (!cpu) return device_cuda_upload(dst, src, bytes);
    memcpy(dst, src, bytes);
    return true;
}

bool device_download(spops_backend_kind backend, void *dst, const void *src, size_t bytes)
{
    bool cpu;
    if (!find(backend, &cpu)) return false;
    if (bytes == 0) return true;
    if (!cpu) return device_cuda_download(dst, src, bytes);
    memcpy(dst, src, bytes);
    return true;
}

bool device_fill(spops_backend_kind backend, void *dst, int byte, size_t bytes)
{
    bool cpu;
    if (!find(backend, &cpu)) return false;
    if (bytes == 0) return true;
    if (!cpu) return device_cuda_fill(dst, byte, bytes);
    memset(dst, byte, bytes);
    return true;
}

bool device_stream_create(spops_backend_kind backend, void **stream)
{
    bool cpu;
    *stream = NULL;
    if (!find(backend, &cpu)) return false;
    return cpu ? true : device_cuda_stream_create(stream);
}

void device_stream_destroy(spops_backend_kind backend, void *stream)
{
    if (backend == SPOPS_BACKEND_CUDA && stream != NULL) device_cuda_stream_destroy(stream);
}

bool device_stream_wait(spops_backend_kind backend, void *stream)
{
    bool cpu;
    if (!find(backend, &cpu)) return false;
    return cpu ? true : device_cuda_stream_wait(stream);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static size_t last_level_cache_bytes(void)
{
    long bytes = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : 0;
}

// Writing twice the last-level cache leaves nothing of the caller's data in it. All threads take
// part, so that the private caches of every core are swept as well.
static void sweep_lines(const void *buffer, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; ++i)
        ++((volatile unsigned char *)(uintptr_t)buffer)[i * CACHE_LINE];
}

static void sweep(unsigned char *buffer, size_t bytes)
{
    parallel_for((int64_t)(bytes / CACHE_LINE), 0, sweep_lines, buffer);
}

static size_t sweep_bytes(void)
{
    const size_t bytes = 2 * last_level_cache_bytes();
    if (bytes < MIN_SWEEP_BYTES) return MIN_SWEEP_BYTES;
    return bytes > MAX_SWEEP_BYTES ? MAX_SWEEP_BYTES : bytes;
}

// *buffer is NULL for 0 bytes.
static bool sweep_create(size_t bytes, unsigned char **buffer)
{
    *buffer = NULL;
    if (bytes == 0) return true;
    *buffer = malloc(bytes);
    if (*buffer == NULL) return device_fail("no host memory for a sweep of %zu bytes", bytes);
    memset(*buffer, 1, bytes);
    return true;
}

static double time_runs(void (*enqueue)(void *user), void *user, int num_runs)
{
    const double start = now_us();
    for (int i = 0; i < num_runs; ++i)
        enqueue(user);
    return now_us() - start;
}

// The fastest of a few runs.
static double warm_up(void (*enqueue)(void *user), void *user)
{
    double once_us = time_runs(enqueue, user, 1);
    for (int i = 1; i < NUM_WARMUP && once_us < MAX_WARMUP_US; ++i)
        once_us = fmin(once_us, time_runs(enqueue, user, 1));
    return once_us;
}

// How often to repeat a run of `once_us` within a hot sample.
static int inner_runs(double once_us)
{
    if (once_us >= MIN_HOT_SAMPLE_US) return 1;
    return (int)fmin(MIN_HOT_SAMPLE_US / fmax(once_us, 1e-3) + 1.0, MAX_HOT_INNER);
}

static bool cpu_time(void (*enqueue)(void *user), void *user, bool cold, int num_samples,
                     device_timing *timing)
{
    bool ok = false;
    unsigned char *buffer = NULL;
    const size_t buffer_bytes = cold ? sweep_bytes() : 0;
    int inner = 1;
    double *samples = malloc((size_t)num_samples * sizeof *samples);

    if (samples == NULL) return device_fail("no host memory for %d samples", num_samples);
    if (!sweep_create(buffer_bytes, &buffer)) goto done;
    const double once_us = warm_up(enqueue, user);
    if (!cold) inner = inner_runs(once_us);
    for (int i = 0; i < num_samples; ++i) {
        if (cold) sweep(buffer, buffer_bytes);
        samples[i] = time_runs(enqueue, user, inner) / inner;
    }
    device_summarize(samples, num_samples, timing);
    ok = true;

done:
    free(buffer);
    free(samples);
    return ok;
}

bool device_time(spops_backend_kind backend, void *stream, void (*enqueue)(void *user), void *user,
                 bool cold, int num_samples, device_timing *timing)
{
    bool cpu;
    memset(timing, 0, sizeof *timing);
    if (!find(backend, &cpu)) return false;
    if (num_samples < 1) return device_fail("num_samples is %d, expected 1 or more", num_samples);
    if (cpu) return cpu_time(enqueue, user, cold, num_samples, timing);
    return device_cuda_time(stream, enqueue, user, cold, num_samples, timing);
}

// Callers side by side, a thread each. They start each sample together and wait for each other at
// its end; a sample lasts from the first that began to the last that ended, whenever the thread
// that measures wakes up.
typedef struct together {
    void (*enqueue)(void *user);
    int num, inner, num_samples;
    bool cancelled; // under gate: not every thread could be made
    pthread_mutex_t gate;
    pthread_barrier_t begin, end;
} together;

typedef struct caller {
    together *all;
    void *user;
    double begun_us, ended_us; // of the last sample
    pthread_t thread;
} caller;

static void *call_repeatedly(void *argument)
{
    caller *c = argument;
    together *t = c->all;
    pthread_mutex_lock(&t->gate);
    const bool cancelled = t->cancelled;
    pthread_mutex_unlock(&t->gate);
    for (int i = 0; !cancelled && i < t->num_samples; ++i) {
        pthread_barrier_wait(&t->begin);
        c->begun_us = now_us();
        for (int k = 0; k < t->inner; ++k)
            t->enqueue(c->user);
        c->ended_us = now_us();
        pthread_barrier_wait(&t->end);
    }
    return NULL;
}

static bool run_together(together *t, void *const *users, unsigned char *buffer,
                         size_t buffer_bytes, double *samples)
{
    caller callers[DEVICE_MAX_TOGETHER];
    int made = 0;
    pthread_mutex_init(&t->gate, NULL);
    pthread_barrier_init(&t->begin, NULL, (unsigned)t->num + 1);
    pthread_barrier_init(&t->end, NULL, (unsigned)t->num + 1);
    pthread_mutex_lock(&t->gate);
    for (; made < t->num; ++made) {
        callers[made].all = t;
        callers[made].user = users[made];
        if (pthread_create(&callers[made].thread, NULL, call_repeatedly, &callers[made]) != 0)
            break;
    }
    t->cancelled = made < t->num;
    pthread_mutex_unlock(&t->gate);
    for (int i = 0; !t->cancelled && i < t->num_samples; ++i) {
        if (buffer != NULL) sweep(buffer, buffer_bytes);
        double begun_us = HUGE_VAL, ended_us = 0.0;
        pthread_barrier_wait(&t->begin);
        pthread_barrier_wait(&t->end);
        for (int k = 0; k < t->num; ++k) {
            begun_us = fmin(begun_us, callers[k].begun_us);
            ended_us = fmax(ended_us, callers[k].ended_us);
        }
        samples[i] = (ended_us - begun_us) / t->inner;
    }
    for (int i = 0; i < made; ++i)
        pthread_join(callers[i].thread, NULL);
    pthread_barrier_destroy(&t->begin);
    pthread_barrier_destroy(&t->end);
    pthread_mutex_destroy(&t->gate);
    return !t->cancelled || device_fail("no thread for caller %d of %d", made + 1, t->num);
}

static bool cpu_time_together(int num, void (*enqueue)(void *user), void *const *users, bool cold,
                              int num_samples, device_timing *timing)
{
    bool ok = false;
    together t = {.enqueue = enqueue, .num = num, .inner = 1, .num_samples = num_samples};
    unsigned char *buffer = NULL;
    const size_t buffer_bytes = cold ? sweep_bytes() : 0;
    double once_us = 0.0, *samples = malloc((size_t)num_samples * sizeof *samples);

    if (samples == NULL) return device_fail("no host memory for %d samples", num_samples);
    if (!sweep_create(buffer_bytes, &buffer)) goto done;
    for (int i = 0; i < num; ++i)
        once_us = fmax(once_us, warm_up(enqueue, users[i]));
    if (!cold) t.inner = inner_runs(once_us);
    if (!run_together(&t, users, buffer, buffer_bytes, samples)) goto done;
    device_summarize(samples, num_samples, timing);
    ok = true;

done:
    free(buffer);
    free(samples);
    return ok;
}

bool device_time_together(spops_backend_kind backend, int num, void *const *streams,
                          void (*enqueue)(void *user), void *const *users, bool cold,
                          int num_samples, device_timing *timing)
{
    bool cpu;
    memset(timing, 0, sizeof *timing);
    if (!find(backend, &cpu)) return false;
    if (num_samples < 1) return device_fail("num_samples is %d, expected 1 or more", num_samples);
    if (num < 1 || num > DEVICE_MAX_TOGETHER)
        return device_fail("num is %d, expected 1 to %d", num, DEVICE_MAX_TOGETHER);
    if (cpu) return cpu_time_together(num, enqueue, users, cold, num_samples, timing);
    return device_cuda_time_together(num, streams, enqueue, users, cold, num_samples, timing);
}

typedef struct block_copy {
    const char *from;
    char *to;
    size_t block;
} block_copy;

static void copy_blocks(const void *work, int64_t begin, int64_t end)
{
    const block_copy *c = (const block_copy *)work;
    for (int64_t b = begin; b < end; ++b)
        memcpy(c->to + (size_t)b * c->block, c->from + (size_t)b * c->block, c->block);
}

static bool cpu_copy_rate(double *bytes_per_s)
{
    static double rate; // measured once; a second thread measuring too does no harm
    const int64_t num_blocks = 256;
    double samples[NUM_COPIES];
    device_timing timing;
    char *from, *to;

    if (rate > 0.0) {
        *bytes_per_s = rate;
        return true;
    }
    from = malloc(COPY_BYTES);
    to = malloc(COPY_BYTES);
    if (from == NULL || to == NULL) {
        free(from);
        free(to);
        return device_fail("no host memory for two copies of %zu bytes", COPY_BYTES);
    }
    const block_copy work = {from, to, COPY_BYTES / (size_t)num_blocks};
    for (int i = -1; i < NUM_COPIES; ++i) { // -1 faults the pages in
        if (i < 0) memset(from, 1, COPY_BYTES);
        const double start = now_us();
        parallel_for(num_blocks, 0, copy_blocks, &work);
        if (i >= 0) samples[i] = now_us() - start;
        from[0] = (char)(to[COPY_BYTES - 1] + 1); // keeps the copies from being dropped
    }
    free(from);
    free(to);
    device_summarize(samples, NUM_COPIES, &timing);
    rate = 2.0 * (double)COPY_BYTES / (1e-6 * timing.median_us);
    *bytes_per_s = rate;
    return true;
}

bool device_copy_rate(spops_backend_kind backend, double *bytes_per_s)
{
    bool cpu;
    *bytes_per_s = 0.0;
    if (!find(backend, &cpu)) return false;
    return cpu ? cpu_copy_rate(bytes_per_s) : device_cuda_copy_rate(bytes_per_s);
}

bool device_cache_rate(spops_backend_kind backend, double *bytes_per_s)
{
    bool cpu;
    *bytes_per_s = 0.0;
    if (!find(backend, &cpu)) return false;
    return cpu || device_cuda_cache_rate(bytes_per_s);
}
