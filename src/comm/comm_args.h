// SPDX-License-Identifier: Apache-2.0
// What the slots of communicators are given.
#ifndef SPOPS_COMM_COMM_ARGS_H
#define SPOPS_COMM_COMM_ARGS_H

#include "comm/comm.h"

// A point in the order of a stream, of ctx's device.
typedef struct spops_comm_event_args {
    void **event; // NULL in it: there is none
} spops_comm_event_args;

// out[c] = ((part 0 + part 1) + part 2) + ... of column c, cols > 0; without a part 0.
typedef struct spops_comm_sum_args {
    const void *parts; // part p begins at p * stride elements
    int64_t num_parts, stride, cols;
    void *out;
    spops_dtype dtype; // f32; on the CPU also f64
} spops_comm_sum_args;

// A rank of an NCCL communicator, which is comm->state.
typedef struct spops_comm_nccl_args {
    spops_comm *comm; // rank, num_ranks and timeout_ms are set
    const char *call;
    const spops_comm_meeting *meeting; // of begin and end
    void *given;                       // of open: ncclComm_t of the caller's; NULL: by id
    const uint8_t *id;                 // SPOPS_COMM_NCCL_ID_BYTES of them
} spops_comm_nccl_args;

// Rank and number of ranks of a caller's NCCL communicator on ctx's device, or a new id.
typedef struct spops_comm_nccl_ask_args {
    const char *call;
    void *given; // NULL: an id is wanted
    uint8_t *id;
    int32_t *rank, *num_ranks;
} spops_comm_nccl_ask_args;

#endif
