// SPDX-License-Identifier: Apache-2.0
/* What a part of a network took, as a line of JSON that bench/networks.py reads; every network has it. */
#ifndef NETWORKS_REPORT_H
#define NETWORKS_REPORT_H

#include "networks/device.h"

#include <stdio.h>

typedef struct report {
    FILE *json; /* NULL: nothing is written */
    const char *network, *frame;
    const device *d;
    spops_dtype dtype;
} report;

/* Time and floor of a part; the part "whole" is all of a frame at once. 0 for success. */
static inline int report_part(const report *r, const char *part, double us, double floor_us,
                              int kernels)
{
    spops_device_info info = spops_device_info_default();
    if (r->json == NULL) return 0;
    if (spops_context_get_device_info(r->d->ctx, &info) != SPOPS_STATUS_OK) return 1;
    return fprintf(r->json,
                   "{\"network\": \"%s\", \"frame\": \"%s\", \"device\": \"%s\", \"dtype\": "
                   "\"%s\", \"part\": \"%s\", \"us\": %.2f, \"floor_us\": %.2f, \"kernels\": %d}\n",
                   r->network, r->frame, info.name, spops_dtype_name(r->dtype), part, us, floor_us,
                   kernels) < 0;
}

/* Latency of whole frames, and the memory that is in use on a GPU beside used_before; said on stdout too.
   0 for success. */
static inline int report_latency(const report *r, graph *whole, int launches, size_t used_before)
{
    const size_t used = device_used_bytes(r->d);
    double p50_us = 0, p99_us = 0, device_us = 0;
    if (graph_latency(whole, launches, &p50_us, &p99_us) ||
        graph_time(whole, launches > 50 ? 50 : launches, &device_us))
        return 1;
    printf("  latency p50 %.0f us, p99 %.0f us of %d frames", p50_us, p99_us, launches);
    if (used > used_before)
        printf("; %.1f MB of the GPU's memory", 1e-6 * (double)(used - used_before));
    printf("\n");
    if (r->json == NULL) return 0;
    return fprintf(r->json,
                   "{\"latency_of\": \"%s\", \"frame\": \"%s\", \"dtype\": \"%s\", \"device_us\": "
                   "%.1f, \"latency_p50_us\": "
                   "%.1f, \"latency_p99_us\": %.1f, \"memory_bytes\": %.0f}\n",
                   r->network, r->frame, spops_dtype_name(r->dtype), device_us, p50_us, p99_us,
                   used > used_before ? (double)(used - used_before) : 0.0) < 0;
}

#endif
