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

// One replay between two events, after a flush that is not timed. The flush also keeps the device
// busy while the host enqueues the rest, so that the host's own time stays out of the sample.
static bool time_replay(device_graph *graph, void *stream, void *flush, size_t flush_bytes,
                        cudaEvent_t begin, cudaEvent_t end, double *us)
{
    float ms = 0.0f;
    if (flush != NULL && !TRY(cudaMemsetAsync(flush, 0x5a, flush_bytes, stream))) return false;
    if (!TRY(cudaEventRecord(begin, stream)) || !device_graph_launch(graph, stream) ||
        !TRY(cudaEventRecord(end, stream)) || !TRY(cudaEventSynchronize(end)) ||
        !TRY(cudaEventElapsedTime(&ms, begin, end)))
        return false;
    *us = 1e3 * (double)ms;
    return true;
}

static bool l2_bytes(size_t *bytes)
{
    int device = 0, value = 0;
    if (!TRY(cudaGetDevice(&device)) ||
        !TRY(cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, device)))
        return false;
    *bytes = (size_t)value;
    return true;
}

bool device_cuda_time(void *stream, void (*enqueue)(void *user), void *user, bool cold,
                      int num_samples, device_timing *timing)
{
    bool ok = false;
    int inner = 1;
    double us = 0.0, once_us = HUGE_VAL, *samples = NULL;
    void *flush = NULL;
    size_t flush_bytes = 0;
    cudaEvent_t begin = NULL, end = NULL;
    device_graph *graph = NULL;

    if (!device_cuda_exists()) return false;
    samples = malloc((size_t)num_samples * sizeof *samples);
    if (samples == NULL) return device_fail("no host memory for %d samples", num_samples);
    if (!TRY(cudaEventCreate(&begin)) || !TRY(cudaEventCreate(&end))) goto done;
    if (cold) {
        if (!l2_bytes(&flush_bytes)) goto done;
        flush_bytes *= 2;
        if (flush_bytes < MIN_FLUSH_BYTES) flush_bytes = MIN_FLUSH_BYTES;
        if (!TRY(cudaMalloc(&flush, flush_bytes))) goto done;
    }

    enqueue(user); // outside a capture first: kernels are loaded on their first launch
    if (!device_cuda_stream_wait(stream)) goto done;
    if (!capture_runs(stream, enqueue, user, 1, &graph)) goto done;
    for (int i = 0; i < NUM_WARMUP; ++i) {
        if (!time_replay(graph, stream, NULL, 0, begin, end, &us)) goto done;
        once_us = fmin(once_us, us);
    }
    if (!cold) {
        inner = (int)fmax(1.0, fmin(MAX_INNER, MAX_HOT_SAMPLE_US / fmax(once_us, 1.0)));
        device_graph_destroy(graph);
        if (!capture_runs(stream, enqueue, user, inner, &graph)) goto done;
        for (int i = 0; i < NUM_WARMUP; ++i)
            if (!time_replay(graph, stream, NULL, 0, begin, end, &us)) goto done;
    }
    for (int i = 0; i < num_samples; ++i) {
        if (!time_replay(graph, stream, flush, flush_bytes, begin, end, &us)) goto done;
        samples[i] = us / inner;
    }
    device_summarize(samples, num_samples, timing);
    ok = true;

done:
    device_graph_destroy(graph);
    if (flush != NULL) (void)cudaFree(flush);
    if (begin != NULL) (void)cudaEventDestroy(begin);
    if (end != NULL) (void)cudaEventDestroy(end);
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
