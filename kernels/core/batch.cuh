// SPDX-License-Identifier: Apache-2.0
// Several pieces of work of one kind in one launch: a block finds the job that it belongs to among
// the kernel's parameters. For small jobs, whose launches cost more than their work.
#ifndef SPOPS_KERNELS_CORE_BATCH_CUH
#define SPOPS_KERNELS_CORE_BATCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

namespace spops
{

// Job is what a kernel would have as parameters for one of them.
template <class Job, int MOST> struct batch {
    Job job[MOST];
    int32_t first_block[MOST + 1]; // of a job; [num]: of all
    int32_t num;
};

// As many jobs as 4 KiB, a kernel's parameters, hold.
template <class Job> constexpr int jobs_at_once()
{
    return (int)((4096 - 2 * sizeof(int64_t)) / (sizeof(Job) + sizeof(int32_t)));
}

// The job of this block, which is block *block of its *num_blocks.
template <class Job, int MOST>
__device__ __forceinline__ const Job &job_of_block(const batch<Job, MOST> &jobs, int32_t *block,
                                                   int32_t *num_blocks)
{
    static_assert(sizeof(batch<Job, MOST>) <= 4096, "parameters of a kernel");
    *block = (int32_t)blockIdx.x;
    *num_blocks = (int32_t)gridDim.x;
    if (MOST == 1) return jobs.job[0];
    int32_t j = 0;
    while (j + 1 < jobs.num && jobs.first_block[j + 1] <= (int32_t)blockIdx.x)
        ++j;
    *block -= jobs.first_block[j];
    *num_blocks = jobs.first_block[j + 1] - jobs.first_block[j];
    return jobs.job[j];
}

// Give every job the blocks that blocks(job) says. Returns all of them.
template <class Job, int MOST, class F> dim3 divide_blocks(batch<Job, MOST> *jobs, const F &blocks)
{
    jobs->first_block[0] = 0;
    for (int j = 0; j < jobs->num; ++j)
        jobs->first_block[j + 1] = jobs->first_block[j] + (int32_t)blocks(jobs->job[j]);
    return dim3((unsigned)jobs->first_block[jobs->num]);
}

} // namespace spops

#endif
