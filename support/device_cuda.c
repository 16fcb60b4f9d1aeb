// SPDX-License-Identifier: Apache-2.0
// The CUDA half of support/device.h. Streams and memory belong to the device's primary context, so
// that handles from here and from the library (which has its own static runtime) work together.
#include "support/device_cuda.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#define NUM_WARMUP        3
#define MAX_INNER         20     // repetitions in one hot graph
#define MAX_HOT_SAMPLE_US 5000.0 // slower runs get fewer repetitions
#define MIN_FLUSH_BYTES   ((size_t)256 << 20)
#define COPY_BYTES        ((size_t)1 << 30)
#define NUM_COPIES        10
#define CACHE_PASSES      200 // reads of the buffer in one sample of the cache's rate

struct device_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

// The failure of `call` as a message; an error the runtime keeps for the next caller is cleared.
static bool report(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();
    return device_fail("%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

#define TRY(call) report((call), #call)

static pthread_once_t probe_once = PTHREAD_ONCE_INIT;
static cudaError_t probe_error = cudaErrorNoDevice;

static void probe(void)
{
    int count = 0;
    probe_error = cudaGetDeviceCount(&count);
    if (probe_error == cudaSuccess && count == 0) probe_error = cudaErrorNoDevice;
    if (probe_error == cudaSuccess) probe_error = cudaFree(NULL); // opens the primary context
    if (probe_error != cudaSuccess) (void)cudaGetLastError();
}

bool device_cuda_exists(void)
{
    pthread_once(&probe_once, probe);
    return report(probe_error, "opening the CUDA device");
}

int32_t device_cuda_count(void)
{
    int count = 0;
    return device_cuda_exists() && TRY(cudaGetDeviceCount(&count)) ? count : 0;
}

bool device_cuda_use(int32_t device)
{
    return TRY(cudaSetDevice(device));
}

bool device_cuda_alloc(size_t bytes, void **ptr)
{
    *ptr = NULL;
    if (!device_cuda_exists()) return false;
    if (!TRY(cudaMalloc(ptr, bytes))) {
        *ptr = NULL;
        return false;
    }
    if (device_cuda_fill(*ptr, 0xff, bytes)) return true;
    cudaFree(*ptr);
    *ptr = NULL;
    return false;
}

void device_cuda_free(void *ptr)
{
    (void)TRY(cudaFree(ptr));
}

// The streams made here are non-blocking and do not wait for the default stream, on which plain
// copies and fills run; hence the explicit waits on both sides.
bool device_cuda_upload(void *dst, const void *src, size_t bytes)
{
    return TRY(cudaDeviceSynchronize()) &&
           TRY(cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice)) && TRY(cudaDeviceSynchronize());
}

bool device_cuda_download(void *dst, const void *src, size_t bytes)
{
    return TRY(cudaDeviceSynchronize()) &&
           TRY(cudaMemcpy(dst, src, bytes, cudaMemcpyDeviceToHost)) && TRY(cudaDeviceSynchronize());
}

bool device_cuda_fill(void *dst, int byte, size_t bytes)
{
    return TRY(cudaDeviceSynchronize()) && TRY(cudaMemset(dst, byte, bytes)) &&
           TRY(cudaDeviceSynchronize());
}

bool device_cuda_stream_create(void **stream)
{
    cudaStream_t created = NULL;
    *stream = NULL;
    if (!device_cuda_exists() || !TRY(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking)))
        return false;
    *stream = created;
    return true;
}

void device_cuda_stream_destroy(void *stream)
{
    (void)TRY(cudaStreamDestroy(stream));
}

bool device_cuda_stream_wait(void *stream)
{
    return TRY(cudaStreamSynchronize(stream));
}

bool device_capture_begin(void *stream)
{
    if (!device_cuda_exists()) return device_fail("no graphs on the CPU");
    if (stream == NULL) return device_fail("the default stream cannot be captured");
    return TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

bool device_capture_end(void *stream, device_graph **graph)
{
    device_graph *g;
    *graph = NULL;
    if (!device_cuda_exists()) return device_fail("no graphs on the CPU");
    g = calloc(1, sizeof *g);
    if (g == NULL) {
        cudaGraph_t dropped = NULL;
        if (cudaStreamEndCapture(stream, &dropped) == cudaSuccess) cudaGraphDestroy(dropped);
        return device_fail("no host memory for a graph");
    }
    if (!TRY(cudaStreamEndCapture(stream, &g->graph)) ||
        !TRY(cudaGraphInstantiate(&g->exec, g->graph, 0))) {
        device_graph_destroy(g);
        return false;
    }
    *graph = g;
    return true;
}

bool device_graph_launch(device_graph *graph, void *stream)
{
    return TRY(cudaGraphLaunch(graph->exec, stream));
}

bool device_graph_count(const device_graph *graph, int *kernels, int *copies, int *memsets,
                        int *others)
{
    bool ok = false;
    size_t num_nodes = 0;
    cudaGraphNode_t *nodes = NULL;

    *kernels = *copies = *memsets = *others = 0;
    if (!TRY(cudaGraphGetNodes(graph->graph, NULL, &num_nodes))) return false;
    if (num_nodes == 0) return true;
    nodes = calloc(num_nodes, sizeof *nodes);
    if (nodes == NULL) return device_fail("no host memory for %zu graph nodes", num_nodes);
    if (!TRY(cudaGraphGetNodes(graph->graph, nodes, &num_nodes))) goto done;
    for (size_t i = 0; i < num_nodes; ++i) {
        enum cudaGraphNodeType type;
        if (!TRY(cudaGraphNodeGetType(nodes[i], &type))) goto done;
        switch (type) {
        case cudaGraphNodeTypeKernel: ++*kernels; break;
        case cudaGraphNodeTypeMemcpy: ++*copies; break;
        case cudaGraphNodeTypeMemset: ++*memsets; break;
        default: ++*others; break;
        }
    }
    ok = true;

done:
    free(nodes);
    return ok;
}

void device_graph_destroy(device_graph *graph)
{
    if (graph == NULL) return;
    if (graph->exec != NULL) (void)cudaGraphExecDestroy(graph->exec);
    if (graph->graph != NULL) (void)cudaGraphDestroy(graph->graph);
    free(graph);
}

static bool capture_runs(void *stream, void (*enqueue)(void *user), void *user, int num_runs,
                         device_graph **graph)
{
    *graph = NULL;
    if (!device_capture_begin(stream)) return false;
    for (int i = 0; i < num_runs; ++i)
        enqueue(user);
    return device_capture_end(stream, graph);
}

// A buffer that is written and then read over to leave nothing of the caller's in L2. After the
// read its own lines are clean: the timed run does not pay for writing them back.
typedef struct flush {
    void *data; // NULL: none
    size_t bytes;
    int num_processors;
} flush;

static bool read_attributes(size_t *l2_bytes, int *num_processors)
{
    int device = 0, bytes = 0;
    if (!TRY(cudaGetDevice(&device)) ||
        !TRY(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device)) ||
        !TRY(cudaDeviceGetAttribute(num_processors, cudaDevAttrMultiProcessorCount, device)))
        return false;
    *l2_bytes = (size_t)bytes;
    return true;
}

static bool flush_create(flush *f)
{
    if (!read_attributes(&f->bytes, &f->num_processors)) return false;
    f->bytes *= 2;
    if (f->bytes < MIN_FLUSH_BYTES) f->bytes = MIN_FLUSH_BYTES;
    return TRY(cudaMalloc(&f->data, f->bytes));
}

static void flush_destroy(flush *f)
{
    if (f->data != NULL) (void)cudaFree(f->data);
}

static bool flush_enqueue(const flush *f, void *stream)
{
    return f->data == NULL || (TRY(cudaMemsetAsync(f->data, 0x5a, f->bytes, stream)) &&
                               device_cuda_read(f->data, f->bytes, 1, f->num_processors, stream));
}

static bool elapsed_us(cudaEvent_t begin, cudaEvent_t end, double *us)
{
    float ms = 0.0f;
    if (!TRY(cudaEventSynchronize(end)) || !TRY(cudaEventElapsedTime(&ms, begin, end)))
        return false;
    *us = 1e3 * (double)ms;
    return true;
}

// One replay between two events, after a flush that is not timed. The flush also keeps the device
// busy while the host enqueues the rest, so that the host's own time stays out of the sample.
static bool time_replay(device_graph *graph, void *stream, const flush *f, cudaEvent_t begin,
                        cudaEvent_t end, double *us)
{
    return flush_enqueue(f, stream) && TRY(cudaEventRecord(begin, stream)) &&
           device_graph_launch(graph, stream) && TRY(cudaEventRecord(end, stream)) &&
           elapsed_us(begin, end, us);
}

// How often to repeat a run of `once_us` in one hot graph.
static int inner_runs(double once_us)
{
    return (int)fmax(1.0, fmin(MAX_INNER, MAX_HOT_SAMPLE_US / fmax(once_us, 1.0)));
}

bool device_cuda_time(void *stream, void (*enqueue)(void *user), void *user, bool cold,
                      int num_samples, device_timing *timing)
{
    bool ok = false;
    int inner = 1;
    double us = 0.0, once_us = HUGE_VAL, *samples = NULL;
    const flush none = {NULL, 0, 0};
    flush f = none;
    cudaEvent_t begin = NULL, end = NULL;
    device_graph *graph = NULL;

    if (!device_cuda_exists()) return false;
    samples = malloc((size_t)num_samples * sizeof *samples);
    if (samples == NULL) return device_fail("no host memory for %d samples", num_samples);
    if (!TRY(cudaEventCreate(&begin)) || !TRY(cudaEventCreate(&end))) goto done;
    if (cold && !flush_create(&f)) goto done;

    enqueue(user); // outside a capture first: kernels are loaded on their first launch
    if (!device_cuda_stream_wait(stream)) goto done;
    if (!capture_runs(stream, enqueue, user, 1, &graph)) goto done;
    for (int i = 0; i < NUM_WARMUP; ++i) {
        if (!time_replay(graph, stream, &none, begin, end, &us)) goto done;
        once_us = fmin(once_us, us);
    }
    if (!cold) {
        inner = inner_runs(once_us);
        device_graph_destroy(graph);
        if (!capture_runs(stream, enqueue, user, inner, &graph)) goto done;
        for (int i = 0; i < NUM_WARMUP; ++i)
            if (!time_replay(graph, stream, &none, begin, end, &us)) goto done;
    }
    for (int i = 0; i < num_samples; ++i) {
        if (!time_replay(graph, stream, &f, begin, end, &us)) goto done;
        samples[i] = us / inner;
    }
    device_summarize(samples, num_samples, timing);
    ok = true;

done:
    device_graph_destroy(graph);
    flush_destroy(&f);
    if (begin != NULL) (void)cudaEventDestroy(begin);
    if (end != NULL) (void)cudaEventDestroy(end);
    free(samples);
    return ok;
}

typedef struct together {
    int num;
    void *const *streams;
    cudaEvent_t begin, end, done[DEVICE_MAX_TOGETHER];
    device_graph *graphs[DEVICE_MAX_TOGETHER];
} together;

// One replay of every graph, each on its stream, between a common start and the last end. The first
// stream is kept busy until the host has enqueued everything: by the flush, or by a replay before
// the start.
static bool time_replays(const together *t, const flush *f, double *us)
{
    void *const first = t->streams[0];
    const bool ready =
        f->data != NULL ? flush_enqueue(f, first) : device_graph_launch(t->graphs[0], first);
    if (!ready || !TRY(cudaEventRecord(t->begin, first))) return false;
    for (int i = 1; i < t->num; ++i)
        if (!TRY(cudaStreamWaitEvent(t->streams[i], t->begin, 0)) ||
            !device_graph_launch(t->graphs[i], t->streams[i]) ||
            !TRY(cudaEventRecord(t->done[i], t->streams[i])))
            return false;
    if (!device_graph_launch(t->graphs[0], first)) return false;
    for (int i = 1; i < t->num; ++i)
        if (!TRY(cudaStreamWaitEvent(first, t->done[i], 0))) return false;
    return TRY(cudaEventRecord(t->end, first)) && elapsed_us(t->begin, t->end, us);
}

static bool capture_all(together *t, void (*enqueue)(void *user), void *const *users, int inner)
{
    for (int i = 0; i < t->num; ++i) {
        device_graph_destroy(t->graphs[i]);
        t->graphs[i] = NULL;
        if (!capture_runs(t->streams[i], enqueue, users[i], inner, &t->graphs[i])) return false;
    }
    return true;
}

bool device_cuda_time_together(int num, void *const *streams, void (*enqueue)(void *user),
                               void *const *users, bool cold, int num_samples,
                               device_timing *timing)
{
    bool ok = false;
    int inner = 1;
    double us = 0.0, once_us = HUGE_VAL, *samples = NULL;
    const flush none = {NULL, 0, 0};
    flush f = none;
    together t = {.num = num, .streams = streams};

    if (!device_cuda_exists()) return false;
    samples = malloc((size_t)num_samples * sizeof *samples);
    if (samples == NULL) return device_fail("no host memory for %d samples", num_samples);
    if (!TRY(cudaEventCreate(&t.begin)) || !TRY(cudaEventCreate(&t.end))) goto done;
    for (int i = 1; i < num; ++i)
        if (!TRY(cudaEventCreateWithFlags(&t.done[i], cudaEventDisableTiming))) goto done;
    if (cold && !flush_create(&f)) goto done;
    for (int i = 0; i < num; ++i) {
        enqueue(users[i]);
        if (!device_cuda_stream_wait(streams[i])) goto done;
    }
    if (!capture_all(&t, enqueue, users, 1)) goto done;
    for (int i = 0; i < NUM_WARMUP; ++i) {
        if (!time_replays(&t, &none, &us)) goto done;
        once_us = fmin(once_us, us);
    }
    if (!cold) {
        inner = inner_runs(once_us);
        if (!capture_all(&t, enqueue, users, inner)) goto done;
        for (int i = 0; i < NUM_WARMUP; ++i)
            if (!time_replays(&t, &none, &us)) goto done;
    }
    for (int i = 0; i < num_samples; ++i) {
        if (!time_replays(&t, &f, &us)) goto done;
        samples[i] = us / inner;
    }
    device_summarize(samples, num_samples, timing);
    ok = true;

done:
    for (int i = 0; i < num; ++i) { // after a failure some may still run
        (void)device_cuda_stream_wait(streams[i]);
        device_graph_destroy(t.graphs[i]);
        if (t.done[i] != NULL) (void)cudaEventDestroy(t.done[i]);
    }
    flush_destroy(&f);
    if (t.begin != NULL) (void)cudaEventDestroy(t.begin);
    if (t.end != NULL) (void)cudaEventDestroy(t.end);
    free(samples);
    return ok;
}

bool device_cuda_copy_rate(double *bytes_per_s)
{
    static double rate; // measured once; a second thread measuring too does no harm
    bool ok = false;
    size_t bytes = COPY_BYTES;
    void *from = NULL, *to = NULL, *stream = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    double samples[NUM_COPIES];
    device_timing timing;

    *bytes_per_s = rate;
    if (rate > 0.0) return true;
    if (!device_cuda_stream_create(&stream)) return false;
    if (!TRY(cudaEventCreate(&begin)) || !TRY(cudaEventCreate(&end))) goto done;
    if (!device_cuda_alloc(bytes, &from) || !device_cuda_alloc(bytes, &to) ||
        !device_cuda_fill(from, 1, bytes))
        goto done;
    for (int i = -2; i < NUM_COPIES; ++i) {
        float ms = 0.0f;
        if (!TRY(cudaEventRecord(begin, stream)) ||
            !TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)) ||
            !TRY(cudaEventRecord(end, stream)) || !TRY(cudaEventSynchronize(end)) ||
            !TRY(cudaEventElapsedTime(&ms, begin, end)))
            goto done;
        if (i >= 0) samples[i] = 1e3 * (double)ms;
    }
    device_summarize(samples, NUM_COPIES, &timing);
    rate = 2.0 * (double)bytes / (1e-6 * timing.median_us);
    *bytes_per_s = rate;
    ok = true;

done:
    if (from != NULL) device_cuda_free(from);
    if (to != NULL) device_cuda_free(to);
    if (begin != NULL) (void)cudaEventDestroy(begin);
    if (end != NULL) (void)cudaEventDestroy(end);
    device_cuda_stream_destroy(stream);
    return ok;
}

bool device_cuda_cache_rate(double *bytes_per_s)
{
    static double rate; // measured once; a second thread measuring too does no harm
    bool ok = false;
    size_t bytes = 0;
    int num_processors = 0;
    void *data = NULL, *stream = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    double samples[NUM_COPIES];
    device_timing timing;

    *bytes_per_s = rate;
    if (rate > 0.0) return true;
    if (!device_cuda_stream_create(&stream)) return false;
    if (!read_attributes(&bytes, &num_processors)) goto done;
    bytes = bytes / 3 / 4096 * 4096;
    if (bytes == 0) {
        device_fail("the device reports no L2 cache");
        goto done;
    }
    if (!TRY(cudaEventCreate(&begin)) || !TRY(cudaEventCreate(&end)) ||
        !device_cuda_alloc(bytes, &data))
        goto done;
    for (int i = -2; i < NUM_COPIES; ++i) {
        double us = 0.0;
        if (!TRY(cudaEventRecord(begin, stream)) ||
            !device_cuda_read(data, bytes, CACHE_PASSES, num_processors, stream) ||
            !TRY(cudaEventRecord(end, stream)) || !elapsed_us(begin, end, &us))
            goto done;
        if (i >= 0) samples[i] = us;
    }
    device_summarize(samples, NUM_COPIES, &timing);
    rate = (double)CACHE_PASSES * (double)bytes / (1e-6 * timing.median_us);
    *bytes_per_s = rate;
    ok = true;

done:
    if (data != NULL) device_cuda_free(data);
    if (begin != NULL) (void)cudaEventDestroy(begin);
    if (end != NULL) (void)cudaEventDestroy(end);
    device_cuda_stream_destroy(stream);
    return ok;
}
