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

#endif
