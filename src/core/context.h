// SPDX-License-Identifier: Apache-2.0
// The inside of a context, for the core and the backends.
#ifndef SPOPS_CORE_CONTEXT_H
#define SPOPS_CORE_CONTEXT_H

#include <stdbool.h>
#include <string.h>

#include "core/address_set.h"
#include "core/cpu_isa.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/status.h"
#include "spops/context.h"

#ifdef __cplusplus
extern "C" {
#endif

struct spops_backend;                       // core/backend.h
typedef struct spops_threads spops_threads; // core/threads.c

// What another module keeps in a context: the first field of a struct of its own, which destroy
// frees before the backend closes.
typedef struct spops_context_part {
    void (*destroy)(spops_context *ctx, struct spops_context_part *part);
} spops_context_part;

// What opens a library of dense products (slot matmul_open, which makes ctx->matmul, once). `call`
// names the public call in messages.
typedef struct spops_matmul_open_args {
    const char *call;
} spops_matmul_open_args;

struct spops_context {
    const struct spops_backend *backend;
    spops_allocator allocator; // defaults filled in
    bool has_host_hooks;       // host memory is the caller's to allocate
    bool allocates_captured;   // for now: the caller's device_alloc serves a graph that is captured
    bool frees_in_order;       // plans are destroyed in the order of the stream, without a wait
    bool makes_in_order;       // and made in it: calls that make them end with their work enqueued
    void *stream;
    int num_threads;
    spops_threads *threads;     // NULL where num_threads is 1, and on CUDA
    enum spops_cpu_isa cpu_isa; // BASELINE on CUDA
    spops_device_info info;
    // Shared memory that one block can ask for, and that a multiprocessor has; 0 on the CPU.
    int block_shared_bytes, processor_shared_bytes;
    // Kernels that plans of this context have loaded and given the shared memory they ask for, so that
    // the next plan need not ask the driver.
    spops_address_set prepared_kernels;
    void *backend_state; // the backend's own: a memory pool (CUDA), blocks for the next plan (CPU)

    // The public call that may allocate: what messages about memory name.
    const char *call;
    // The public call that runs others to do its work: what all messages name; NULL: none does.
    const struct spops_outer_call *outer;
    // The plan that is being read: plans that are made meanwhile are its parts (core/plan.h).
    struct spops_plan *reading;

    // Scratch of execute calls, as much as was asked for; blocks[0] may hold more. A block that was
    // handed out while the stream was captured is kept until the context ends, because the graph
    // holds its address; others are given back when they are outgrown. Tickets are counters that are
    // zero between calls: kernels count pieces in them and put them back to zero. There are
    // scratch_bytes / SPOPS_TICKETS_FRACTION bytes of them.
    char *scratch;
    size_t scratch_bytes;
    uint32_t *tickets;
    struct spops_block *blocks;
    bool lent_scratch; // scratch and tickets are the caller's; those of blocks[0] wait
    char *own_scratch;
    uint32_t *own_tickets;
    size_t own_scratch_bytes;

    spops_context_part *lent_plans;     // core/plan_value.c; NULL: no block was an argument yet
    spops_context_part *custom_reduces; // segreduce/custom_reduce.c; NULL: none is registered
    spops_context_part
        *matmul;        // a library of dense products (mvmr/matmul_args.h); NULL: not opened
    bool dense_library; // linear layers may use it; false where there is none

    char error[SPOPS_ERROR_BYTES];
};

// A public call whose work other public calls do: until it returns, their messages name it, and the
// argument they begin with by the name that it has for it. Of nested ones the outermost counts.
typedef struct spops_outer_call {
    spops_context *ctx;
    const char *call;
    const char *const (*names)[2]; // an argument of theirs, and of its own; NULL after the last
} spops_outer_call;

void spops_outer_enter(const spops_outer_call *outer);
void spops_outer_leave(const spops_outer_call *outer);

// Declares that the function is such a call, until it returns in whatever way. names: NULL, or an
// array of pairs that ends with NULL.
#define SPOPS_OUTER_CALL(ctx, call, names)                                                         \
    const spops_outer_call spops_outer                                                             \
        __attribute__((cleanup(spops_outer_leave))) = {(ctx), (call), (names)};                    \
    spops_outer_enter(&spops_outer)

// (status) = (call), whose failure `forgiven` is not the caller's, as there is another way: the last
// message stays what it was.
#define SPOPS_TRY_FORGIVING(ctx, forgiven, status, call)                                           \
    do {                                                                                           \
        char spops_kept[SPOPS_ERROR_BYTES];                                                        \
        memcpy(spops_kept, (ctx)->error, sizeof spops_kept);                                       \
        spops_log_forgive(1);                                                                      \
        (status) = (call);                                                                         \
        spops_log_forgive(-1);                                                                     \
        if ((status) == (forgiven))                                                                \
            memcpy((ctx)->error, spops_kept, sizeof spops_kept);                                   \
        else if ((status) != SPOPS_STATUS_OK)                                                      \
            spops_log_failure((status), (ctx)->error);                                             \
    } while (0)

// A segment that is split needs one ticket of 4 bytes per column tile, and has at least two pieces
// with 4 bytes of partial state per column: a quarter of the scratch is always enough.
#define SPOPS_TICKETS_FRACTION 4

// spops_context_reserve for the needs of another call, ctx->call.
spops_status spops_context_grow(spops_context *ctx, size_t bytes);

// Scratch of at least `bytes`, or SCRATCH_TOO_SMALL naming `call`. Every address in it comes from
// here: a call of this tells whether a captured graph may hold the block.
spops_status spops_context_scratch(spops_context *ctx, const char *call, size_t bytes,
                                   void **scratch);

// Copy `size` bytes of caller's options over zeroed `dst`: struct_size rules of every options
// struct. options NULL leaves dst zero.
spops_status spops_read_options(spops_context *ctx, const char *call, const void *options,
                                void *dst, size_t size);

// Copy src, a struct of `size` bytes that begins with its struct_size, to the caller's dst, called
// `name` in messages. The caller's may be shorter, and keeps its struct_size.
spops_status spops_write_struct(spops_context *ctx, const char *call, const char *name, void *dst,
                                const void *src, size_t size);

// Reads the list of operators, once (call/rows.c), before calls are checked by it.
void spops_rows_parse(void);

#ifdef __cplusplus
}
#endif

#endif
