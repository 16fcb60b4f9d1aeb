// SPDX-License-Identifier: Apache-2.0
// A build without CUDA has no GPU baselines.
#include "bench/baselines/bev_baselines.h"
#include "bench/baselines/bucket_baselines.h"
#include "bench/baselines/conv_baselines.h"
#include "bench/baselines/dense_baselines.h"
#include "bench/baselines/map_baselines.h"
#include "bench/baselines/mvmr_baselines.h"

const bev_baseline bev_baselines_cuda[] = {{NULL, NULL, NULL}};
const int num_bev_baselines_cuda = 0;

void bucket_race_cuda(bucket_race *race)
{
    race->failed = true;
}

void dense_write_cuda(dense_scatter *d)
{
    d->failed = true;
}

void dense_scatter_cuda(dense_scatter *d)
{
    d->failed = true;
}

void map_stages_cuda(map_stages *stages)
{
    stages->failed = true;
}

void mvmr_atomics_cuda(mvmr_atomics *m)
{
    m->failed = true;
}

void vvor_atomics_cuda(mvmr_atomics *m)
{
    m->failed = true;
}

void conv_movement_cuda(conv_movement *m)
{
    m->failed = true;
}
