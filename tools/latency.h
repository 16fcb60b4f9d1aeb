// SPDX-License-Identifier: Apache-2.0
// How long a frame takes: from the call until its results are there, the host's part included.
#ifndef SPOPS_TOOLS_LATENCY_H
#define SPOPS_TOOLS_LATENCY_H

#include "tools/command.h"

// Times of `runs` frames after two that do not count, ascending; us [runs]. False with a message on stderr.
bool latency_measure(const char *command, const session *s, spops_status (*run)(void *user),
                     void *user, int runs, double *us);

// The median of what `run` takes where it runs, without the host's part: on CUDA between events around a graph.
bool latency_on_device(const char *command, const session *s, spops_status (*run)(void *user),
                       void *user, double *us);

// The time that the share p (0 to 1) of ascending times does not exceed: 0.5 the median, 0.99 p99.
double latency_share(const double *us, int runs, double p);

// BEV pooling by a plan, f32, f16 or bf16.
typedef struct pool_latency {
    int runs;
    double p50_us, p99_us, device_us;              // the last without the host's part
    size_t plan_bytes, scratch_bytes, array_bytes; // features, depths and output
} pool_latency;
bool latency_of_pooling(const char *command, const session *s, const spops_bev_plan *plan,
                        spops_dtype dtype, int64_t cols, pool_latency *out);

#endif
