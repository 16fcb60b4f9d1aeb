// SPDX-License-Identifier: Apache-2.0
// Buckets as the paper makes them, to measure against.
#ifndef SPOPS_BUCKET_BASELINES_H
#define SPOPS_BUCKET_BASELINES_H

#include <stdbool.h>

#include "spops/buckets.h"

#ifdef __cplusplus
extern "C" {
#endif

// One sample whose rows race for places (Flash3D, Algorithm 2) with counters of blocks for the first
// hash (section 9.1). Who finds every bucket full that its hashes name tries all buckets in turn. The
// result depends on timing. Arrays lie where the baseline runs.
typedef struct bucket_race {
    const float *points; // [num_rows][3]
    int32_t num_rows;
    int32_t num_buckets, bucket_rows, bits, num_rounds;
    spops_bucket_hash hashes[SPOPS_MAX_BUCKET_ROUNDS];
    float size_m[3], origin_m[3];
    uint32_t *counters; // [num_buckets]
    uint32_t *taken;    // [num_rows] bucket, then place
    uint32_t *offsets;  // [num_buckets + 1]
    int32_t *rows;      // [num_rows] the permutation
    void *stream;
    bool failed; // set by a run that could not be enqueued
} bucket_race;

void bucket_race_cuda(bucket_race *race); // in a build without CUDA: fails

#ifdef __cplusplus
}
#endif

#endif
