// SPDX-License-Identifier: Apache-2.0
// support/device.h: memory, copies, graphs and timing on every backend there is.
#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

#include "support/device.h"
#include "support/device_cuda.h"

static const spops_backend_kind backends[] = {SPOPS_BACKEND_CPU, SPOPS_BACKEND_CUDA};
#define NUM_BACKENDS (sizeof backends / sizeof backends[0])

static bool exists(spops_backend_kind backend)
{
    return backend == SPOPS_BACKEND_CPU || device_has_cuda();
}

Test(device_support, memory_is_aligned_and_poisoned)
{
    for (size_t i = 0; i < NUM_BACKENDS; ++i) {
        unsigned char seen[1000] = {0};
        void *ptr = NULL;
        if (!exists(backends[i])) continue;
        cr_assert(device_alloc(backends[i], sizeof seen, &ptr), "%s", device_error());
        cr_assert((uintptr_t)ptr % 256 == 0);
        cr_assert(device_download(backends[i], seen, ptr, sizeof seen), "%s", device_error());
        for (size_t k = 0; k < sizeof seen; ++k)
            cr_assert(seen[k] == 0xff, "byte %zu is %d", k, seen[k]);
        device_free(backends[i], ptr);
    }
}

Test(device_support, no_bytes_are_no_memory)
{
    for (size_t i = 0; i < NUM_BACKENDS; ++i) {
        void *ptr = &ptr;
        if (!exists(backends[i])) continue;
        cr_assert(device_alloc(backends[i], 0, &ptr));
        cr_assert(ptr == NULL);
        cr_assert(device_upload(backends[i], NULL, NULL, 0));
        cr_assert(device_download(backends[i], NULL, NULL, 0));
        cr_assert(device_fill(backends[i], NULL, 1, 0));
        device_free(backends[i], NULL);
    }
}

Test(device_support, too_much_memory_is_refused)
{
    for (size_t i = 0; i < NUM_BACKENDS; ++i) {
        void *ptr = &ptr;
        if (!exists(backends[i])) continue;
        cr_assert(!device_alloc(backends[i], SIZE_MAX / 2, &ptr));
        cr_assert(ptr == NULL);
        cr_assert(strlen(device_error()) > 0);
    }
}

Test(device_support, copies_and_fills)
{
    for (size_t i = 0; i < NUM_BACKENDS; ++i) {
        unsigned char sent[513], seen[513];
        void *ptr = NULL;
        if (!exists(backends[i])) continue;
        for (size_t k = 0; k < sizeof sent; ++k)
            sent[k] = (unsigned char)(7 * k + 3);
        cr_assert(device_alloc(backends[i], sizeof sent, &ptr), "%s", device_error());
        cr_assert(device_upload(backends[i], ptr, sent, sizeof sent), "%s", device_error());
        cr_assert(device_fill(backends[i], (char *)ptr + 100, 0x21, 5), "%s", device_error());
        cr_assert(device_download(backends[i], seen, ptr, sizeof seen), "%s", device_error());
        memset(sent + 100, 0x21, 5);
        cr_assert(memcmp(sent, seen, sizeof seen) == 0);
        device_free(backends[i], ptr);
    }
}

Test(device_support, unknown_backends_are_refused)
{
    void *ptr = &ptr;
    double rate = 1.0;
    cr_assert(!device_alloc(SPOPS_BACKEND_AUTO, 16, &ptr));
    cr_assert(ptr == NULL);
    cr_assert(strstr(device_error(), "backend is 0") != NULL, "%s", device_error());
    cr_assert(!device_copy_rate((spops_backend_kind)7, &rate));
    cr_assert(rate == 0.0);
}

Test(device_support, the_cpu_has_no_stream_and_no_graph)
{
    void *stream = &stream;
    device_graph *graph = NULL;
    cr_assert(device_stream_create(SPOPS_BACKEND_CPU, &stream));
    cr_assert(stream == NULL);
    cr_assert(device_stream_wait(SPOPS_BACKEND_CPU, stream));
    device_stream_destroy(SPOPS_BACKEND_CPU, stream);
    cr_assert(!device_capture_begin(NULL)); // the default stream where there is a device
    if (device_has_cuda()) return;
    cr_assert(!device_stream_create(SPOPS_BACKEND_CUDA, &stream));
    cr_assert(stream == NULL);
    cr_assert(!device_capture_begin(NULL));
    cr_assert(strcmp(device_error(), "no graphs on the CPU") == 0, "%s", device_error());
    cr_assert(!device_capture_end(NULL, &graph));
    cr_assert(graph == NULL);
}

Test(device_support, samples_are_summarized)
{
    double odd[] = {5, 1, 4, 2, 3}, even[] = {4, 1, 2, 3}, one[] = {7}, many[101];
    device_timing timing;

    device_summarize(odd, 5, &timing);
    cr_assert(timing.median_us == 3.0 && timing.min_us == 1.0);
    device_summarize(even, 4, &timing);
    cr_assert(timing.median_us == 2.5 && timing.min_us == 1.0);
    device_summarize(one, 1, &timing);
    cr_assert(timing.median_us == 7.0 && timing.p10_us == 7.0 && timing.p90_us == 7.0);
    for (int i = 0; i <= 100; ++i)
        many[(37 * i) % 101] = i;
    device_summarize(many, 101, &timing);
    cr_assert(timing.p10_us == 10.0 && timing.median_us == 50.0 && timing.p90_us == 90.0);
}

typedef struct pause {
    int num_runs;
    long sleep_ns;
} pause;

static void sleep_once(void *user)
{
    pause *p = user;
    const struct timespec t = {0, p->sleep_ns};
    ++p->num_runs;
    nanosleep(&t, NULL);
}

Test(device_support, the_cpu_clock_counts_every_run)
{
    for (int cold = 0; cold < 2; ++cold) {
        pause p = {0, 2000000};
        device_timing t;
        cr_assert(device_time(SPOPS_BACKEND_CPU, NULL, sleep_once, &p, cold != 0, 5, &t), "%s",
                  device_error());
        cr_assert(p.num_runs >= 5 + 1, "%d runs", p.num_runs); // samples and a warm-up
        // A sleep may last longer on a busy machine, never shorter.
        cr_assert(t.min_us >= 2000.0 && t.min_us <= t.p10_us && t.p10_us <= t.median_us &&
                      t.median_us <= t.p90_us,
                  "%g %g %g %g", t.min_us, t.p10_us, t.median_us, t.p90_us);
    }
}

static void count_run(void *user)
{
    ++*(volatile int *)user;
}

Test(device_support, short_runs_are_repeated_within_a_sample)
{
    int num_runs = 0;
    device_timing t;
    cr_assert(device_time(SPOPS_BACKEND_CPU, NULL, count_run, &num_runs, false, 4, &t));
    cr_assert(num_runs >= 4 * 100, "%d runs", num_runs);
    cr_assert(t.min_us > 0.0 && t.min_us < 50.0, "%g", t.min_us);
    cr_assert(!device_time(SPOPS_BACKEND_CPU, NULL, count_run, &num_runs, false, 0, &t));
}

Test(device_support, callers_on_the_cpu_run_side_by_side)
{
    enum { NUM = 8 };
    for (int cold = 0; cold < 2; ++cold) {
        pause p[NUM];
        void *users[NUM];
        device_timing t;
        for (int i = 0; i < NUM; ++i) {
            p[i] = (pause){0, 5000000};
            users[i] = &p[i];
        }
        cr_assert(
            device_time_together(SPOPS_BACKEND_CPU, NUM, NULL, sleep_once, users, cold != 0, 5, &t),
            "%s", device_error());
        for (int i = 0; i < NUM; ++i)
            cr_assert(p[i].num_runs >= 5 + 1, "caller %d: %d runs", i, p[i].num_runs);
        // At least as long as one of them; the fastest sample is far from all in a row.
        cr_assert(t.min_us >= 5000.0 && t.min_us < 0.75 * NUM * 5000.0, "%g", t.min_us);
    }
}

Test(device_support, callers_side_by_side_are_counted)
{
    int runs[2] = {0, 0};
    void *users[] = {&runs[0], &runs[1]};
    device_timing t;
    cr_assert(device_time_together(SPOPS_BACKEND_CPU, 2, NULL, count_run, users, false, 4, &t));
    cr_assert(runs[0] >= 4 * 100 && runs[0] == runs[1], "%d and %d runs", runs[0], runs[1]);
    cr_assert(!device_time_together(SPOPS_BACKEND_CPU, 0, NULL, count_run, users, false, 4, &t));
    cr_assert(!device_time_together(SPOPS_BACKEND_CPU, DEVICE_MAX_TOGETHER + 1, NULL, count_run,
                                    users, false, 4, &t));
    cr_assert(strstr(device_error(), "num is 65") != NULL, "%s", device_error());
    cr_assert(!device_time_together(SPOPS_BACKEND_CPU, 2, NULL, count_run, users, false, 0, &t));
}

Test(device_support, callers_on_cuda_have_a_stream_each)
{
    enum { NUM = 3 };
    void *streams[NUM], *users[NUM];
    int runs[NUM] = {0, 0, 0};
    device_timing t;
    if (!device_has_cuda()) cr_skip("no CUDA device: %s", device_error());
    for (int i = 0; i < NUM; ++i) {
        cr_assert(device_stream_create(SPOPS_BACKEND_CUDA, &streams[i]), "%s", device_error());
        users[i] = &runs[i];
    }
    for (int cold = 0; cold < 2; ++cold) {
        cr_assert(device_time_together(SPOPS_BACKEND_CUDA, NUM, streams, count_run, users,
                                       cold != 0, 3, &t),
                  "%s", device_error());
        cr_assert(t.min_us >= 0.0 && t.min_us <= t.median_us && t.median_us < 1e5, "%g",
                  t.median_us);
    }
    for (int i = 0; i < NUM; ++i) {
        cr_assert(runs[i] >= 4, "caller %d: %d runs", i, runs[i]);
        device_stream_destroy(SPOPS_BACKEND_CUDA, streams[i]);
    }
}

Test(device_support, the_cache_delivers_faster_than_memory)
{
    double rate = 1.0, again = 0.0, copy = 0.0;
    cr_assert(device_cache_rate(SPOPS_BACKEND_CPU, &rate));
    cr_assert(rate == 0.0, "%g", rate); // not known
    if (!device_has_cuda()) cr_skip("no CUDA device: %s", device_error());
    cr_assert(device_cache_rate(SPOPS_BACKEND_CUDA, &rate), "%s", device_error());
    cr_assert(device_copy_rate(SPOPS_BACKEND_CUDA, &copy), "%s", device_error());
    cr_assert(rate > 0.8 * copy && rate < 1e14, "%g, copies %g", rate, copy);
    cr_assert(device_cache_rate(SPOPS_BACKEND_CUDA, &again));
    cr_assert(again == rate, "measured twice");
}

Test(device_support, copy_rates_are_plausible)
{
    for (size_t i = 0; i < NUM_BACKENDS; ++i) {
        double rate = 0.0, again = 0.0;
        if (!exists(backends[i])) continue;
        cr_assert(device_copy_rate(backends[i], &rate), "%s", device_error());
        cr_assert(rate > 1e7 && rate < 1e14, "%g", rate);
        cr_assert(device_copy_rate(backends[i], &again));
        cr_assert(again == rate, "measured twice");
    }
}

Test(device_support, cuda_replays_graphs)
{
    void *stream = NULL;
    device_graph *graph = NULL;
    device_timing t;
    int num_runs = 0;
    int kernels = 1, copies = 1, memsets = 1, others = 1;

    if (!device_has_cuda()) cr_skip("no CUDA device: %s", device_error());
    cr_assert(device_stream_create(SPOPS_BACKEND_CUDA, &stream), "%s", device_error());
    cr_assert(!device_capture_begin(NULL), "the default stream was captured");
    cr_assert(device_capture_begin(stream), "%s", device_error());
    cr_assert(device_capture_end(stream, &graph), "%s", device_error());
    cr_assert(device_graph_count(graph, &kernels, &copies, &memsets, &others), "%s",
              device_error());
    cr_assert(kernels == 0 && copies == 0 && memsets == 0 && others == 0);
    cr_assert(device_graph_launch(graph, stream), "%s", device_error());
    cr_assert(device_stream_wait(SPOPS_BACKEND_CUDA, stream), "%s", device_error());
    device_graph_destroy(graph);
    for (int cold = 0; cold < 2; ++cold) {
        num_runs = 0;
        cr_assert(device_time(SPOPS_BACKEND_CUDA, stream, count_run, &num_runs, cold != 0, 3, &t),
                  "%s", device_error());
        cr_assert(num_runs >= 2, "%d runs", num_runs); // once to warm up, then captured
        cr_assert(t.min_us <= t.median_us && t.median_us < 1e5, "%g", t.median_us);
    }
    device_stream_destroy(SPOPS_BACKEND_CUDA, stream);
}
