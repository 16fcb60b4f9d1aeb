// SPDX-License-Identifier: Apache-2.0
/*
 * Memory, graphs and clocks where a context runs, so that the rest of the example is the same on the
 * CPU and on a GPU. Built with EXAMPLE_WITH_CUDA it knows both. Functions return 0 for success.
 */
#ifndef NETWORKS_DEVICE_H
#define NETWORKS_DEVICE_H

#include <spops/spops.h>
#include <stdio.h>

/* A call that fails ends the function that makes it: with 1, once the message of d's context is written; or with
   the call's status. */
#define DEVICE_TRY(d, call)                                                                        \
    do {                                                                                           \
        if ((call) != SPOPS_STATUS_OK) {                                                           \
            fprintf(stderr, "%s\n", spops_last_error((d)->ctx));                                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define PASS(call)                                                                                 \
    do {                                                                                           \
        const spops_status passed = (call);                                                        \
        if (passed != SPOPS_STATUS_OK) return passed;                                              \
    } while (0)

typedef struct device {
    spops_backend_kind backend;
    spops_context *ctx;
    void *stream;        /* cudaStream_t; NULL on the CPU */
    spops_context *host; /* on the CPU, for what the host prepares; may be ctx */
    void *event;         /* cudaEvent_t of device_follow */
    int borrowed;        /* the contexts are another one's */
} device;

int device_open(device *d, spops_backend_kind backend);
/* On a GPU of this number, which becomes the thread's own. */
int device_open_on(device *d, spops_backend_kind backend, int ordinal);
void device_close(device *d);

/* Another stream beside that of d, with a context of its own; on the CPU d's own context. */
int device_open_beside(device *beside, const device *d);
/* What is enqueued on `after` from here on waits for what was enqueued on `before`, also in a graph. */
int device_follow(const device *after, const device *before);
/* The same in two steps: a mark of what is enqueued on d so far, made where *mark is NULL, and what is enqueued from
   then on waits for it. On the CPU a mark stays NULL. */
int device_mark(const device *d, void **mark);
int device_wait(const device *d, void *mark);
void device_free_mark(void *mark);

void *device_alloc(const device *d, size_t bytes); /* zeroed; NULL: there is none */
void device_free(const device *d, void *ptr);
size_t device_used_bytes(const device *d); /* of a GPU, by everybody; 0 on the CPU */
/* A capacity for n rows: a twentieth more, in whole tiles. */
int64_t rows_with_room(int64_t n);
int device_upload(const device *d, void *to, const void *from, size_t bytes);
int device_download(const device *d, void *to, const void *from, size_t bytes);

/* n numbers in another dtype, in host memory. */
int device_convert(const device *d, spops_dtype from, const void *x, spops_dtype to, void *out,
                   size_t n);

/* What `enqueue` enqueues, `times` over: captured once into a CUDA Graph, or, plain and on the CPU,
   enqueued anew at every launch. */
typedef spops_status (*enqueue_function)(void *user);
typedef struct graph graph;
graph *graph_capture(const device *d, enqueue_function enqueue, void *user, int times);
graph *graph_plain(const device *d, enqueue_function enqueue, void *user);
int graph_launch(graph *g);
int graph_num_kernels(const graph *g); /* 0 where nothing is captured */
void graph_destroy(graph *g);

double host_clock_us(void);

/* Median time of a launch, over a number of them. */
int graph_time(graph *g, int num_launches, double *time_us);
/* Of one launch; waits for it. */
int graph_time_once(graph *g, double *time_us);
/* Latency on the host's clock, from the call to launch until its work is done: the times that half of the
   launches, and 99 in 100, do not exceed. */
int graph_latency(graph *g, int num_launches, double *p50_us, double *p99_us);

/* The same with caches that hold nothing of it, on a GPU. */
int graph_time_cold(graph *g, int num_launches, double *time_us);

/* Median time of one of `times` calls in a graph of their own, and the kernels that a call takes. */
int graph_time_part(const device *d, enqueue_function enqueue, void *user, int times,
                    int num_launches, double *time_us, int *num_kernels);

#endif
