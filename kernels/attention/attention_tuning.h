/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel attends. Plain C without a toolkit. */
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H
#define SPOPS_KERNELS_ATTENTION_ATTENTION_TUNING_H

/* The kernel of sm_90 by head dim: groups of 64 queries, keys of a stage, stages; AHEAD, Q_SHARED, TURN
   (attention_sm90.cuh). Other head dims take the kernel of sm_80. */
#define SPOPS_ATTENTION_SM90_VARIANTS(X)                                                           \
    X(16, 4, 64, 4, false, true, 0)                                                                \
    X(32, 4, 64, 4, false, true, 0)                                                                \
    X(48, 4, 64, 4, false, false, 0)                                                               \
    X(64, 4, 64, 4, false, false, 0)                                                               \
    X(96, 2, 128, 2, true, false, 1)                                                               \
    X(128, 2, 128, 2, true, false, 1)

#endif
