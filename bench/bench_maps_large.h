// SPDX-License-Identifier: Apache-2.0
// Large sets and their maps, a part of the suite maps.
#ifndef SPOPS_BENCH_MAPS_LARGE_H
#define SPOPS_BENCH_MAPS_LARGE_H

#include "bench/bench_report.h"

// The room of 200,000 voxels, and gyroids of 1.2, 4.9 and 10.9 million (CPU: 1.2): sets and submanifold
// maps of 3 x 3 x 3 taps, created and updated.
void bench_maps_large(bench *b);

#endif
