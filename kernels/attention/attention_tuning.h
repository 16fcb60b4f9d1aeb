/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel attends. Plain C without a toolkit. */
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H
#define SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H

/* The kernel of sm_90 by head dim: groups of 64 queries, keys of a stage, stages, blocks of a
   multiprocessor, order (attention_sm90.cuh). Other head dims take the kernel of sm_80. */
#define SPOPS_ATTENTION_SM90_VARIANTS(X)                                                           \
    X(16, 2, 128, 2, 1, 2)                                                                         \
    X(32, 2, 128, 2, 1, 2)                                                                         \
    X(48, 2, 128, 2, 1, 2)                                                                         \
    X(64, 2, 128, 3, 1, 2)                                                                         \
    X(96, 2, 128, 2, 1, 2)                                                                         \
    X(128, 2, 128, 2, 1, 2)

#endif
