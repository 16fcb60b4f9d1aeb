// SPDX-License-Identifier: Apache-2.0
/* Memory, graphs and clocks. Every CUDA call of the example is here. */
#define _POSIX_C_SOURCE 200112L
#include "networks/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef EXAMPLE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

struct graph {
    const device *d;
    enqueue_function enqueue;
    void *user;
    int times, num_kernels, captured;
#ifdef EXAMPLE_WITH_CUDA
    cudaGraph_t cuda;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
#endif
};

#ifdef EXAMPLE_WITH_CUDA
static int check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    return error != cudaSuccess;
}
#define CHECK(call) check(call, #call)
#endif

static int on_cpu(const device *d)
{
    return d->backend == SPOPS_BACKEND_CPU;
}

static int create_event(device *d)
{
#ifdef EXAMPLE_WITH_CUDA
    cudaEvent_t event = NULL;
    if (on_cpu(d)) return 0;
    if (CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return 1;
    d->event = event;
#endif
    (void)d;
    return 0;
}

int device_open(device *d, spops_backend_kind backend)
{
    return device_open_on(d, backend, 0);
}

int device_open_on(device *d, spops_backend_kind backend, int ordinal)
{
    spops_context_options options = spops_context_options_default();

    memset(d, 0, sizeof *d);
    options.backend = backend;
#ifdef EXAMPLE_WITH_CUDA
    if (backend != SPOPS_BACKEND_CPU) {
        if (ordinal > 0 && CHECK(cudaSetDevice(ordinal))) return 1;
        options.device = ordinal;
        cudaStream_t stream = NULL; /* of its own: the legacy stream cannot be captured */
        if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
            d->stream = options.stream = stream;
            options.backend = SPOPS_BACKEND_CUDA;
        } else if (backend == SPOPS_BACKEND_AUTO) {
            options.backend = SPOPS_BACKEND_CPU;
        }
    }
#else
    if (backend == SPOPS_BACKEND_AUTO) options.backend = SPOPS_BACKEND_CPU;
    (void)ordinal;
#endif
    if (spops_context_create(&options, &d->ctx) != SPOPS_STATUS_OK) {
        fprintf(stderr, "%s\n", spops_last_error(NULL));
        return 1;
    }
    d->backend = spops_context_backend(d->ctx);
    d->host = d->ctx;
    if (on_cpu(d)) return 0;
    options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CPU;
    if (spops_context_create(&options, &d->host) == SPOPS_STATUS_OK) return create_event(d);
    fprintf(stderr, "%s\n", spops_last_error(NULL));
    return 1;
}

int device_open_beside(device *beside, const device *d)
{
    if (!on_cpu(d)) return device_open(beside, d->backend);
    *beside = *d;
    beside->borrowed = 1;
    return 0;
}

int device_mark(const device *d, void **mark)
{
#ifdef EXAMPLE_WITH_CUDA
    cudaEvent_t event = (cudaEvent_t)*mark;
    if (on_cpu(d)) return 0;
    if (event == NULL && CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return 1;
    *mark = event;
    return CHECK(cudaEventRecord(event, (cudaStream_t)d->stream));
#endif
    (void)d;
    (void)mark;
    return 0;
}

int device_wait(const device *d, void *mark)
{
#ifdef EXAMPLE_WITH_CUDA
    if (mark != NULL)
        return CHECK(cudaStreamWaitEvent((cudaStream_t)d->stream, (cudaEvent_t)mark, 0));
#endif
    (void)d;
    (void)mark;
    return 0;
}

void device_free_mark(void *mark)
{
#ifdef EXAMPLE_WITH_CUDA
    if (mark != NULL) cudaEventDestroy((cudaEvent_t)mark);
#endif
    (void)mark;
}

int device_follow(const device *after, const device *before)
{
    void *mark = before->event;
    return device_mark(before, &mark) || device_wait(after, mark);
}

int device_convert(const device *d, spops_dtype from, const void *x, spops_dtype to, void *out,
                   size_t n)
{
    if (spops_convert_execute(d->host, spops_matrix_dense_const(x, 1, (int64_t)n, from),
                              spops_matrix_dense(out, 1, (int64_t)n, to)) == SPOPS_STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", spops_last_error(d->host));
    return 1;
}

void device_close(device *d)
{
    if (d->borrowed) return;
    if (d->host != d->ctx) spops_context_destroy(d->host);
    spops_context_destroy(d->ctx);
#ifdef EXAMPLE_WITH_CUDA
    if (d->event != NULL) cudaEventDestroy((cudaEvent_t)d->event);
    if (d->stream != NULL) cudaStreamDestroy((cudaStream_t)d->stream);
#endif
}

#ifdef EXAMPLE_WITH_CUDA
/* A copy or a fill on the legacy stream may end after the call has returned, and the stream of d does not wait
 * for it: so it is enqueued on that of d, and ends here, before other streams use what it wrote. */
static int end_here(const device *d, cudaError_t enqueued, const char *what)
{
    return check(enqueued, what) || CHECK(cudaStreamSynchronize((cudaStream_t)d->stream));
}
#endif

void *device_alloc(const device *d, size_t bytes)
{
    void *ptr = NULL;
#ifdef EXAMPLE_WITH_CUDA
    if (!on_cpu(d)) {
        if (CHECK(cudaMalloc(&ptr, bytes))) return NULL;
        if (!end_here(d, cudaMemsetAsync(ptr, 0, bytes, (cudaStream_t)d->stream), "zeros"))
            return ptr;
        cudaFree(ptr);
        return NULL;
    }
#endif
    (void)d;
    if (posix_memalign(&ptr, 64, bytes + 1) != 0) return NULL;
    memset(ptr, 0, bytes);
    return ptr;
}

void device_free(const device *d, void *ptr)
{
#ifdef EXAMPLE_WITH_CUDA
    if (!on_cpu(d)) {
        cudaFree(ptr);
        return;
    }
#endif
    (void)d;
    free(ptr);
}

size_t device_used_bytes(const device *d)
{
    size_t available = 0, total = 0;
#ifdef EXAMPLE_WITH_CUDA
    if (!on_cpu(d) && CHECK(cudaMemGetInfo(&available, &total))) available = total = 0;
#endif
    (void)d;
    return total - available;
}

int64_t rows_with_room(int64_t n)
{
    return (n + n / 20 + 127) / 128 * 128;
}

int device_upload(const device *d, void *to, const void *from, size_t bytes)
{
#ifdef EXAMPLE_WITH_CUDA
    const cudaStream_t stream = (cudaStream_t)d->stream;
    if (!on_cpu(d))
        return end_here(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream),
                        "upload");
#endif
    (void)d;
    memcpy(to, from, bytes);
    return 0;
}

int device_download(const device *d, void *to, const void *from, size_t bytes)
{
    if (spops_context_wait_sync(d->ctx) != SPOPS_STATUS_OK) return 1;
#ifdef EXAMPLE_WITH_CUDA
    if (!on_cpu(d)) return CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
#endif
    memcpy(to, from, bytes);
    return 0;
}

static int enqueue_all(const graph *g)
{
    for (int i = 0; i < g->times; ++i)
        if (g->enqueue(g->user) != SPOPS_STATUS_OK) {
            fprintf(stderr, "%s\n", spops_last_error(g->d->ctx));
            return 1;
        }
    return 0;
}

#ifdef EXAMPLE_WITH_CUDA
static int capture(graph *g)
{
    const cudaStream_t stream = (cudaStream_t)g->d->stream;
    cudaGraphNode_t *nodes;
    size_t n = 0;
    int failed;

    if (CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))) return 1;
    failed = enqueue_all(g);
    if (CHECK(cudaStreamEndCapture(stream, &g->cuda)) || failed) return 1;
    if (CHECK(cudaGraphGetNodes(g->cuda, NULL, &n))) return 1;
    nodes = (cudaGraphNode_t *)malloc(n * sizeof *nodes + 1);
    if (nodes == NULL || CHECK(cudaGraphGetNodes(g->cuda, nodes, &n))) n = 0;
    for (size_t i = 0; i < n; ++i) {
        enum cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
        if (cudaGraphNodeGetType(nodes[i], &type) == cudaSuccess)
            g->num_kernels += type == cudaGraphNodeTypeKernel;
    }
    free(nodes);
    return CHECK(cudaGraphInstantiateWithFlags(&g->exec, g->cuda, 0));
}
#endif

static graph *graph_create(const device *d, enqueue_function enqueue, void *user, int times,
                           int captured)
{
    graph *g = (graph *)calloc(1, sizeof *g);
    int failed = 0;
    if (g == NULL) return NULL;
    g->d = d;
    g->enqueue = enqueue;
    g->user = user;
    g->times = times;
    g->captured = captured && !on_cpu(d);
#ifdef EXAMPLE_WITH_CUDA
    if (g->captured) failed = capture(g);
    if (!on_cpu(d)) failed |= CHECK(cudaEventCreate(&g->begin)) || CHECK(cudaEventCreate(&g->end));
#endif
    if (!failed) return g;
    graph_destroy(g);
    return NULL;
}

graph *graph_capture(const device *d, enqueue_function enqueue, void *user, int times)
{
    return graph_create(d, enqueue, user, times, 1);
}

graph *graph_plain(const device *d, enqueue_function enqueue, void *user)
{
    return graph_create(d, enqueue, user, 1, 0);
}

int graph_launch(graph *g)
{
#ifdef EXAMPLE_WITH_CUDA
    if (g->captured) return CHECK(cudaGraphLaunch(g->exec, (cudaStream_t)g->d->stream));
#endif
    return enqueue_all(g);
}

int graph_num_kernels(const graph *g)
{
    return g->num_kernels;
}

void graph_destroy(graph *g)
{
    if (g == NULL) return;
#ifdef EXAMPLE_WITH_CUDA
    if (g->exec != NULL) cudaGraphExecDestroy(g->exec);
    if (g->cuda != NULL) cudaGraphDestroy(g->cuda);
    if (g->begin != NULL) cudaEventDestroy(g->begin);
    if (g->end != NULL) cudaEventDestroy(g->end);
#endif
    free(g);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int graph_time_once(graph *g, double *time_us)
{
    struct timespec begin, end;
#ifdef EXAMPLE_WITH_CUDA
    if (!on_cpu(g->d)) {
        const cudaStream_t stream = (cudaStream_t)g->d->stream;
        float time_ms = 0;
        if (CHECK(cudaEventRecord(g->begin, stream)) || graph_launch(g) ||
            CHECK(cudaEventRecord(g->end, stream)) || CHECK(cudaEventSynchronize(g->end)) ||
            CHECK(cudaEventElapsedTime(&time_ms, g->begin, g->end)))
            return 1;
        *time_us = 1e3 * time_ms;
        return 0;
    }
#endif
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (graph_launch(g)) return 1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    *time_us =
        1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    return 0;
}

enum { FLUSH_BYTES = 256 << 20 }; /* more than the caches of any device have */

/* Writes over a memory that is larger than the caches; NULL: leaves them alone. */
static int flush(const device *d, void *memory)
{
#ifdef EXAMPLE_WITH_CUDA
    if (memory != NULL)
        return CHECK(cudaMemsetAsync(memory, 1, FLUSH_BYTES, (cudaStream_t)d->stream));
#endif
    (void)d;
    (void)memory;
    return 0;
}

static int time_launches(graph *g, int num_launches, void *memory, double *time_us)
{
    double *times = (double *)calloc((size_t)num_launches, sizeof *times);
    int failed = times == NULL;

    for (int i = -1; i < num_launches && !failed; ++i) /* the first does not count */
        failed = flush(g->d, memory) || graph_time_once(g, &times[i < 0 ? 0 : i]);
    if (!failed) {
        qsort(times, (size_t)num_launches, sizeof *times, compare_doubles);
        *time_us = times[num_launches / 2] / g->times;
    }
    free(times);
    return failed;
}

double host_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

int graph_latency(graph *g, int num_launches, double *p50_us, double *p99_us)
{
    double *times = (double *)calloc((size_t)num_launches, sizeof *times);
    int failed = times == NULL;

    for (int i = -2; i < num_launches && !failed; ++i) { /* the first two do not count */
        const double start = host_clock_us();
        failed = graph_launch(g) || spops_context_wait_sync(g->d->ctx) != SPOPS_STATUS_OK;
        if (i >= 0) times[i] = host_clock_us() - start;
    }
    if (!failed) {
        qsort(times, (size_t)num_launches, sizeof *times, compare_doubles);
        *p50_us = times[(num_launches - 1) / 2];
        *p99_us = times[(99 * num_launches - 1) / 100];
    }
    free(times);
    return failed;
}

int graph_time(graph *g, int num_launches, double *time_us)
{
    return time_launches(g, num_launches, NULL, time_us);
}

int graph_time_cold(graph *g, int num_launches, double *time_us)
{
    void *memory = on_cpu(g->d) ? NULL : device_alloc(g->d, FLUSH_BYTES);
    const int failed =
        (!on_cpu(g->d) && memory == NULL) || time_launches(g, num_launches, memory, time_us);
    device_free(g->d, memory);
    return failed;
}

int graph_time_part(const device *d, enqueue_function enqueue, void *user, int times,
                    int num_launches, double *time_us, int *num_kernels)
{
    graph *g = graph_capture(d, enqueue, user, times);
    const int failed = g == NULL || graph_time(g, num_launches, time_us);
    if (!failed) *num_kernels = graph_num_kernels(g) / times;
    graph_destroy(g);
    return failed;
}
