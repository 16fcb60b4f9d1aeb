/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel attends. Plain C without a toolkit. */
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H
#define SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H

/* The kernel of sm_90 by head dim: warpgroups that attend, keys of a stage, stages
   (attention_sm90.cuh). Other head dims take the kernel of sm_80. */
#define SPOPS_ATTENTION_SM90_VARIANTS(X)                                                           \
    X(16, 2, 64, 4)                                                                                \
    X(32, 2, 64, 4)                                                                                \
    X(48, 2, 64, 4)                                                                                \
    X(64, 2, 64, 4)                                                                                \
    X(96, 2, 128, 2)                                                                               \
    X(128, 2, 128, 2)

/* The same where patches have 128 queries or less: two blocks share a multiprocessor. */
#define SPOPS_ATTENTION_SM90_SMALL_VARIANTS(X)                                                     \
    X(48, 1, 64, 5)                                                                                \
    X(64, 1, 64, 5)

#endif
