// SPDX-License-Identifier: Apache-2.0
// The CUDA half of support/device.h in a build without CUDA: no device, and every call says so.
#include "support/device_cuda.h"

static bool refuse(void)
{
    return device_fail("built without CUDA");
}

bool device_cuda_exists(void)
{
    return refuse();
}

int32_t device_cuda_count(void)
{
    return 0;
}

bool device_cuda_use(int32_t device)
{
    (void)device;
    return refuse();
}

bool device_cuda_alloc(size_t bytes, void **ptr)
{
    (void)bytes;
    *ptr = NULL;
    return refuse();
}

void device_cuda_free(void *ptr)
{
    (void)ptr;
}

bool device_cuda_upload(void *dst, const void *src, size_t bytes)
{
    (void)dst, (void)src, (void)bytes;
    return refuse();
}

bool device_cuda_download(void *dst, const void *src, size_t bytes)
{
    (void)dst, (void)src, (void)bytes;
    return refuse();
}

bool device_cuda_fill(void *dst, int byte, size_t bytes)
{
    (void)dst, (void)byte, (void)bytes;
    return refuse();
}

bool device_cuda_stream_create(void **stream)
{
    *stream = NULL;
    return refuse();
}

void device_cuda_stream_destroy(void *stream)
{
    (void)stream;
}

bool device_cuda_stream_wait(void *stream)
{
    (void)stream;
    return refuse();
}

bool device_capture_begin(void *stream)
{
    (void)stream;
    return device_fail("no graphs on the CPU");
}

bool device_capture_end(void *stream, device_graph **graph)
{
    (void)stream;
    *graph = NULL;
    return device_fail("no graphs on the CPU");
}

bool device_graph_launch(device_graph *graph, void *stream)
{
    (void)graph, (void)stream;
    return device_fail("no graphs on the CPU");
}

bool device_graph_count(const device_graph *graph, int *kernels, int *copies, int *memsets,
                        int *others)
{
    (void)graph;
    *kernels = *copies = *memsets = *others = 0;
    return device_fail("no graphs on the CPU");
}

void device_graph_destroy(device_graph *graph)
{
    (void)graph;
}

bool device_cuda_time(void *stream, void (*enqueue)(void *user), void *user, bool cold,
                      int num_samples, device_timing *timing)
{
    (void)stream, (void)enqueue, (void)user, (void)cold, (void)num_samples, (void)timing;
    return refuse();
}

bool device_cuda_copy_rate(double *bytes_per_s)
{
    *bytes_per_s = 0.0;
    return refuse();
}

bool device_cuda_time_together(int num, void *const *streams, void (*enqueue)(void *user),
                               void *const *users, bool cold, int num_samples,
                               device_timing *timing)
{
    (void)num, (void)streams, (void)enqueue, (void)users, (void)cold, (void)num_samples;
    (void)timing;
    return refuse();
}

bool device_cuda_cache_rate(double *bytes_per_s)
{
    *bytes_per_s = 0.0;
    return refuse();
}
