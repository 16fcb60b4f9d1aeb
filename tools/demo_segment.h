// SPDX-License-Identifier: Apache-2.0
// spops demo --task segment: a simulated scan, or one from a file, labelled point by point by a network
// that was trained on simulated streets.
#ifndef SPOPS_TOOLS_DEMO_SEGMENT_H
#define SPOPS_TOOLS_DEMO_SEGMENT_H

#include "tools/command.h"

typedef struct segment_demo_job {
    const char *command, *out;
    const char *scan;    // a file of points, or NULL: a simulated street
    const char *weights; // a checkpoint of examples/segment, or NULL: the one this program ships
    spops_backend_kind backend;
    spops_dtype dtype; // f32 or bf16
    int64_t seed;
    bool as_json;
} segment_demo_job;

// Seeds of the demo's streets count from here on: no scan of a training has one of these.
#define SEGMENT_DEMO_SEED 3000000

// An exit status.
int demo_segment(const segment_demo_job *job);

#endif
