// SPDX-License-Identifier: Apache-2.0
// What tests, benchmarks and tools need besides the library itself: memory where a backend runs,
// streams, graph capture, timing, cache flushing. One API for both backends; a build without CUDA
// links device_none.c, in which the CUDA half answers "no". Functions print nothing; they return
// false on failure, and device_error() then says why.
#ifndef SPOPS_SUPPORT_DEVICE_H
#define SPOPS_SUPPORT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spops/types.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether a CUDA device can be opened. Cheap after the first call. Never call it before a fork
// whose child uses the device.
bool device_has_cuda(void);
const char *device_error(void);

// How many CUDA devices there are, and which one the calling thread works on: 0 until it uses another.
int32_t device_count(void);
bool device_use(int32_t device);
int32_t device_used(void);

// Memory where `backend` runs, aligned to 256 bytes, filled with 0xff; copies wait. NULL for 0
// bytes.
bool device_alloc(spops_backend_kind backend, size_t bytes, void **ptr);
void device_free(spops_backend_kind backend, void *ptr);
bool device_upload(spops_backend_kind backend, void *dst, const void *src, size_t bytes);
bool device_download(spops_backend_kind backend, void *dst, const void *src, size_t bytes);
bool device_fill(spops_backend_kind backend, void *dst, int byte, size_t bytes);

// A CUDA stream of one's own (non-blocking). NULL with true on the CPU.
bool device_stream_create(spops_backend_kind backend, void **stream);
void device_stream_destroy(spops_backend_kind backend, void *stream);
bool device_stream_wait(spops_backend_kind backend, void *stream);

// Capture what is enqueued on `stream` between begin and end into a graph that launch replays.
// On the CPU begin and end return false ("no graphs on the CPU").
typedef struct device_graph device_graph;
bool device_capture_begin(void *stream);
bool device_capture_end(void *stream, device_graph **graph);
bool device_graph_launch(device_graph *graph, void *stream);
// Nodes of a captured graph by kind.
bool device_graph_count(const device_graph *graph, int *kernels, int *copies, int *memsets,
                        int *others);
void device_graph_destroy(device_graph *graph);

// Run `enqueue(user)` on `stream` and time it. hot: run back to back. cold: the last-level cache is
// flushed before each run (written over, then read over, so that no one else's lines have to be
// written back during the run). On CUDA each sample is a graph replay between two events (hot:
// `inner` repetitions in one graph, the sample divided by them); on the CPU a monotonic clock.
// warmup runs are not counted.
typedef struct device_timing {
    double median_us;
    double min_us;
    double p10_us, p90_us; // spread
} device_timing;

// Median, minimum and deciles of samples_us, which gets sorted. num_samples > 0.
void device_summarize(double *samples_us, int num_samples, device_timing *timing);
bool device_time(spops_backend_kind backend, void *stream, void (*enqueue)(void *user), void *user,
                 bool cold, int num_samples, device_timing *timing);

// The same for `num` callers (up to DEVICE_MAX_TOGETHER) side by side: enqueue(users[i]) enqueues
// on streams[i]; on the CPU each has a thread of its own. A sample runs from a common start until
// the last caller is done.
#define DEVICE_MAX_TOGETHER 64
bool device_time_together(spops_backend_kind backend, int num, void *const *streams,
                          void (*enqueue)(void *user), void *const *users, bool cold,
                          int num_samples, device_timing *timing);

// Rate of a large copy on this device (bytes read plus written per second), measured on first use:
// what a memory floor is computed with.
bool device_copy_rate(spops_backend_kind backend, double *bytes_per_s);

// Rate at which the GPU's L2 delivers a buffer of a third of its size to all multiprocessors,
// measured on first use: what a floor for gathered rows is computed with. 0 on the CPU, whose last
// level no gather is bound by.
bool device_cache_rate(spops_backend_kind backend, double *bytes_per_s);

#ifdef __cplusplus
}
#endif

#endif
