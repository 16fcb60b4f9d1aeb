/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators: ranks that hold parts of one set and exchange rows. The ranks are threads of one
 * process, on the CPU or on GPUs, or they are those of an NCCL communicator (docs/comm.md).
 *
 * A communicator has two kinds of calls. All ranks make both in the same order.
 *
 * - `*_execute`, and spops_comm_exchange_begin with spops_comm_exchange_end, move rows. With NCCL they
 *   are enqueued on ctx's stream, wait for nothing and can be captured. Ranks that are threads meet
 *   inside of the call: it waits on the host, at most timeout_ms, until all ranks have come.
 * - `*_sync` agree on host values. They wait for all ranks, at most timeout_ms.
 *
 * Ranks that do not come: the call ends after timeout_ms on the ranks that wait, with
 * COMM_BROKEN and the number of the first missing rank. A rank that destroyed its communicator ends
 * it at once. From then on the communicator is broken on all ranks, and every call says why; only
 * spops_comm_destroy is left. On CUDA, rows that were sent may be read until the streams of all ranks
 * have run.
 *
 * Refusals: where ranks are threads, an argument that one rank's call refuses, or counts that do not
 * fit together, are an error of the call on all ranks, with the text of the rank; nothing was moved, and
 * the communicator is whole. NCCL has no such way in a call that waits for nothing: what depends on
 * other ranks is agreed before, by spops_comm_agree_sync.
 *
 * Numerics: no call depends on which rank is faster.
 */
#ifndef SPOPS_COMM_H
#define SPOPS_COMM_H

#include "spops/context.h"

SPOPS_EXTERN_C_BEGIN

#define SPOPS_COMM_MAX_RANKS          4096  /* of a group */
#define SPOPS_COMM_MAX_VALUE_BYTES    4096  /* of a value that spops_comm_gather_sync takes */
#define SPOPS_COMM_DEFAULT_TIMEOUT_MS 60000 /* of timeout_ms = 0 */
#define SPOPS_COMM_NCCL_ID_BYTES      128   /* of an id that spops_comm_get_nccl_id makes */

/** One rank's end of a communicator. */
typedef struct spops_comm spops_comm;

/** Where ranks that are threads of one process meet. */
typedef struct spops_comm_group spops_comm_group;

/** Choices of the calls that create a communicator. */
typedef struct spops_comm_options {
    size_t struct_size; /* sizeof(spops_comm_options) */
    int32_t timeout_ms; /* that this rank waits for others in a call; 0: the default */
    int32_t reserved;   /* 0 */
} spops_comm_options;

SPOPS_DEFINE_DEFAULT(spops_comm_options)

/**
 * A meeting place for num_ranks threads. One thread makes it and hands it to the others.
 *
 * num_ranks 1 to SPOPS_COMM_MAX_RANKS.
 * out       The group; NULL after a failure.
 *
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY; without a context: spops_last_error(NULL).
 * Threads   Any.
 */
SPOPS_API spops_status spops_comm_group_create(int32_t num_ranks, spops_comm_group **out);

/**
 * Give the group back. Communicators of it may live on: its memory goes with the last of them. NULL is
 * fine.
 */
SPOPS_API void spops_comm_group_destroy(spops_comm_group *group);

/**
 * A rank of a group: a thread of this process with a context of its own. Does not wait for the other
 * ranks; the first call that needs them does.
 *
 * On CUDA rows are copied between the ranks' devices, of which several may be one: for tests of many
 * ranks on one GPU, and where there is no NCCL. Such calls cannot be captured.
 *
 * ctx       Where the rank's rows lie. All ranks have the same backend. It must outlive the communicator.
 * group     Of spops_comm_group_create.
 * rank      0 to num_ranks - 1, each once.
 * options   NULL: all defaults.
 * out       The communicator; NULL after a failure.
 *
 * Errors    INVALID_ARGUMENT (NULL, rank out of range or taken, another backend than that of other ranks,
 *           options), COMM_BROKEN (the group is), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx. Other ranks may do the same meanwhile.
 */
SPOPS_API spops_status spops_comm_create_threads(spops_context *ctx, spops_comm_group *group,
                                                 int32_t rank, const spops_comm_options *options,
                                                 spops_comm **out);

/**
 * A rank of an NCCL communicator of the caller's. NCCL is opened here (libnccl.so.2, the one that the
 * process has loaded already, if it has); nothing is linked to it. All ranks make this call: it connects
 * each rank with each.
 *
 * ctx       On CUDA, on the communicator's device; its stream is where exchanges are enqueued.
 * nccl_comm An ncclComm_t. It stays the caller's: it is neither aborted nor destroyed here, and must
 *           outlive the communicator. After COMM_BROKEN kernels may still wait on ctx's stream for a rank
 *           that stopped: the caller's ncclCommAbort ends them.
 * options   NULL: all defaults.
 * out       The communicator; NULL after a failure.
 *
 * Stream    Waits for the other ranks, at most timeout_ms.
 * Errors    INVALID_ARGUMENT (NULL, another device, options), NOT_SUPPORTED (a CPU context, no NCCL, or one
 *           older than 2.14), COMM_BROKEN, OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_comm_create_nccl(spops_context *ctx, void *nccl_comm,
                                              const spops_comm_options *options, spops_comm **out);

/**
 * A new id of an NCCL communicator. One rank makes it and hands it to the others, by MPI, a file or a
 * store; all ranks call spops_comm_create_nccl_id with it.
 *
 * id        [SPOPS_COMM_NCCL_ID_BYTES] in host memory.
 *
 * Errors    INVALID_ARGUMENT (NULL), NOT_SUPPORTED (a CPU context, no NCCL), COMM_BROKEN (NCCL failed).
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_comm_get_nccl_id(spops_context *ctx, uint8_t *id);

/**
 * A rank of an NCCL communicator that is opened here, and aborted where a rank stops: kernels that wait
 * for it end, and ctx can be used further. Destroy graphs that were captured with it before it: NCCL
 * waits for them. Other arguments are those of spops_comm_create_nccl.
 *
 * id        [SPOPS_COMM_NCCL_ID_BYTES] of spops_comm_get_nccl_id, the same on all ranks.
 * num_ranks 1 to SPOPS_COMM_MAX_RANKS, each on a device of its own.
 * rank      0 to num_ranks - 1, each once.
 *
 * Stream    Waits for the other ranks, at most timeout_ms.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, COMM_BROKEN, OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx; ranks of one process are in threads of their own.
 */
SPOPS_API spops_status spops_comm_create_nccl_id(spops_context *ctx, const uint8_t *id,
                                                 int32_t num_ranks, int32_t rank,
                                                 const spops_comm_options *options,
                                                 spops_comm **out);

/**
 * Free a rank's end. Waits for the context's work, with NCCL at most timeout_ms. NULL is fine. Other ranks
 * that are threads and wait for this one, then or later, get an error at once.
 *
 * Threads   As calls on the communicator: the rank's thread.
 */
SPOPS_API void spops_comm_destroy(spops_comm *comm);

/** This rank's number; -1 for NULL. */
SPOPS_API int32_t spops_comm_rank(const spops_comm *comm);

/** How many ranks there are; 0 for NULL. */
SPOPS_API int32_t spops_comm_num_ranks(const spops_comm *comm);

/**
 * Make one rank's failure one of all. Each rank says how it went; if any rank says anything but OK, the
 * call returns the status of the lowest such rank on all of them, with its text:
 *
 *     comm_agree_sync: rank 2: coords_create: ...
 *
 *     status = spops_comm_agree_sync(ctx, comm, spops_coords_create(ctx, ...));
 *
 * ctx       Whose spops_last_error(ctx) is the text, where status is not OK.
 * status    Of this rank.
 *
 * Stream    Waits for the other ranks, at most timeout_ms; not while the stream is captured.
 * Errors    The lowest failing rank's, COMM_BROKEN, INVALID_ARGUMENT (NULL, no status), NOT_SUPPORTED
 *           (captured), CUDA.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_agree_sync(spops_context *ctx, spops_comm *comm,
                                             spops_status status);

/**
 * Gather a small value of each rank on all ranks: sizes, boxes, counts.
 *
 * value     [bytes] in host memory.
 * bytes     The same on all ranks, 0 to SPOPS_COMM_MAX_VALUE_BYTES.
 * values    [num_ranks][bytes] in host memory, apart from value, by rank.
 *
 * Stream    Waits for the other ranks, at most timeout_ms; not while the stream is captured.
 * Errors    INVALID_ARGUMENT, COMM_BROKEN, NOT_SUPPORTED (captured), CUDA. After one, values is as it was.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_gather_sync(spops_context *ctx, spops_comm *comm,
                                              const void *value, size_t bytes, void *values);

/**
 * Wait until all ranks are here.
 *
 * Stream    Waits, at most timeout_ms; not while the stream is captured. It does not wait for the streams
 *           of ranks: spops_comm_wait_sync does.
 * Errors    INVALID_ARGUMENT, COMM_BROKEN, NOT_SUPPORTED (captured), CUDA.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_barrier_sync(spops_context *ctx, spops_comm *comm);

/** Rows that a rank sends and receives: host arrays of [num_ranks], read before a call returns. Final. */
typedef struct spops_comm_layout {
    const int64_t *send_counts;  /* rows for each rank; 0: none */
    const int64_t *send_offsets; /* where they begin in `send`, rows */
    const int64_t *recv_counts;  /* rows of each rank; those that it sends here */
    const int64_t *recv_offsets; /* where they begin in `recv`, rows; the ranges ascend by rank */
} spops_comm_layout;

/**
 * Exchange rows: each rank gives each rank a range of its rows.
 *
 *     recv[recv_offsets[r] + i] = rank r's send[its send_offsets[this rank] + i],  i < recv_counts[r]
 *
 * layout    Counts of 0 are fine, also all of them. Ranges of `send` may overlap each other. Rows for the
 *           rank itself are copied. Rows of recv that no range names are left as they are.
 * send      [rows, cols], any dtype, rows without gaps (row_stride = cols).
 * recv      [rows, cols], dtype and cols of send, the same on all ranks; rows without gaps. Ranges that are
 *           received share no byte with ranges that are sent, which may lie in the same matrix.
 *
 * Memory    Both are in use until the stream has run.
 * Stream    NCCL: enqueues, waits for nothing, capturable (all ranks capture, and launch in one order).
 *           Threads: waits for the other ranks, at most timeout_ms; on the CPU recv is filled when the call
 *           returns, on CUDA copies are enqueued; not capturable.
 * Scratch   None.
 * Errors    INVALID_ARGUMENT (NULL, ranges out of range, counts that do not fit those of another rank:
 *           named where ranks are threads), NOT_SUPPORTED (captured, threads), COMM_BROKEN, CUDA.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_exchange_execute(spops_context *ctx, spops_comm *comm,
                                                   const spops_comm_layout *layout,
                                                   spops_matrix send, spops_matrix recv);

/**
 * The same in two calls, between which ctx's stream goes on: rows that need nothing of other ranks are
 * computed while the others travel. begin takes what the stream has computed until then; after end the
 * stream has recv. Between them no other call on comm is made. Arguments and errors are those of
 * spops_comm_exchange_execute.
 *
 * Stream    begin never waits. NCCL: the exchange runs on a stream of the communicator, which is joined to
 *           ctx's by events; capturable, both in one capture. Threads: end waits for the other ranks.
 */
SPOPS_API spops_status spops_comm_exchange_begin(spops_context *ctx, spops_comm *comm,
                                                 const spops_comm_layout *layout, spops_matrix send,
                                                 spops_matrix recv);

/**
 * End the exchange that spops_comm_exchange_begin began.
 *
 * Errors    INVALID_ARGUMENT (none has begun), and those of spops_comm_exchange_execute.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_exchange_end(spops_context *ctx, spops_comm *comm);

/**
 * Give one rank's rows to all.
 *
 * root      The rank, 0 to num_ranks - 1, the same on all ranks.
 * rows      [rows, cols] without gaps, the same shape on all ranks: read on root, written on the others.
 *
 * Stream    As spops_comm_exchange_execute.
 * Errors    As spops_comm_exchange_execute.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_broadcast_execute(spops_context *ctx, spops_comm *comm,
                                                    int32_t root, spops_matrix rows);

/**
 * Sum parts that lie on different ranks, in an order that does not depend on how many ranks there are:
 *
 *     out[c] = ((part[0, c] + part[1, c]) + part[2, c]) + ...     0 without a part
 *
 * Whoever cuts a set at fixed places, makes a part of each piece and gives each rank whole pieces, has the
 * same bits on 1, 2, 4 and 8 ranks: gradients of weights, statistics of norms.
 *
 * part_offsets [num_ranks + 1] in host memory, the same on all ranks: rank r has parts part_offsets[r] to
 *           part_offsets[r + 1] - 1. The first is 0; a rank may have none.
 * parts     [parts of this rank, cols], f32; on the CPU also f64.
 * out       [1, cols] of the same dtype, apart from parts, on every rank.
 *
 * A rank sums a range of columns of all parts, and gives the sums to all: a rank receives about as many
 * bytes as its own parts have, and those of out.
 *
 * Memory    In use until the stream has run.
 * Stream    As spops_comm_exchange_execute.
 * Scratch   spops_comm_sum_scratch_bytes, which the caller reserves (spops_context_reserve).
 * Numerics  In the dtype, in the order above: the same bits on every backend and for any number of ranks.
 * Errors    INVALID_ARGUMENT, SCRATCH_TOO_SMALL, NOT_SUPPORTED (f64 on CUDA), and those of
 *           spops_comm_exchange_execute.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_sum_execute(spops_context *ctx, spops_comm *comm,
                                              const int64_t *part_offsets, spops_matrix parts,
                                              spops_matrix out);

/** Scratch of a sum of num_parts parts, in bytes; SIZE_MAX: too many; 0 for NULL. */
SPOPS_API size_t spops_comm_sum_scratch_bytes(const spops_comm *comm, int64_t num_parts,
                                              int64_t cols, spops_dtype dtype);

/**
 * Wait until what was enqueued on ctx's stream has run, with NCCL at most timeout_ms: where a rank has
 * stopped, spops_context_wait_sync would wait for ever.
 *
 * Stream    Waits; not while the stream is captured.
 * Errors    INVALID_ARGUMENT, COMM_BROKEN, NOT_SUPPORTED (captured), CUDA.
 * Threads   One thread at a time per comm and ctx.
 */
SPOPS_API spops_status spops_comm_wait_sync(spops_context *ctx, spops_comm *comm);

SPOPS_EXTERN_C_END

#endif
