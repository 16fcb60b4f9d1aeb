// SPDX-License-Identifier: Apache-2.0
// The inside of a communicator: what a rank has for each other rank, and how it gets there.
#ifndef SPOPS_COMM_COMM_H
#define SPOPS_COMM_COMM_H

#include <stdbool.h>

#include "core/context.h"
#include "spops/comm.h"

// Pieces for one rank, or of one: count of them, `bytes` each, `stride` bytes apart.
typedef struct spops_comm_pieces {
    char *data;
    int64_t count;
    size_t bytes, stride;
} spops_comm_pieces;

typedef enum spops_comm_kind {
    SPOPS_COMM_EXCHANGE = 1,
    SPOPS_COMM_BROADCAST = 2,
    SPOPS_COMM_SUM_PARTS = 3,
    SPOPS_COMM_SUM_OUT = 4,
    SPOPS_COMM_GATHER =
        5, // this one and what follows are of host memory, the others where contexts run
    SPOPS_COMM_BARRIER = 6,
    SPOPS_COMM_AGREE = 7
} spops_comm_kind;

// A meeting of all ranks: comm->sends and comm->recvs are moved. What must be the same on all ranks.
typedef struct spops_comm_meeting {
    const char *call; // static text, such as "comm_exchange"
    spops_comm_kind kind;
    int64_t size;         // bytes of a row, of a value
    spops_status refused; // the rank's own status; its text is the context's
    bool is_beside;       // begin and end are calls of their own: work goes on between them
    spops_dtype dtype;    // of rows that are moved or summed; 0: bytes
} spops_comm_meeting;

// How ranks meet. begin takes what comm sends, end returns when recvs are there (host values, CPU) or
// enqueued. Failures are reported on ctx and are those of all ranks.
typedef struct spops_comm_transport {
    spops_status (*begin)(spops_context *ctx, spops_comm *comm, const spops_comm_meeting *meeting);
    spops_status (*end)(spops_context *ctx, spops_comm *comm, const spops_comm_meeting *meeting);
    spops_status (*wait)(spops_context *ctx, spops_comm *comm, const char *call);
    void (*destroy)(spops_comm *comm);
    bool captures; // begin and end can be captured
} spops_comm_transport;

// What a plan has of the communicator that it was made with.
typedef struct spops_comm_link {
    spops_comm *comm; // NULL: there is none, or no longer
    struct spops_comm_link *next, **at;
} spops_comm_link;

struct spops_comm {
    spops_context *home; // first, for spops_check_comm
    const spops_comm_transport *transport;
    void *state; // the transport's
    int32_t rank, num_ranks, timeout_ms;
    bool begun;                        // an exchange has, and not ended:
    spops_comm_meeting meeting;        // this one
    spops_comm_pieces *sends, *recvs;  // [num_ranks] each
    struct spops_comm_report *reports; // [1 + num_ranks]: its own, and those of all
    spops_comm_link *links;            // of plans, which learn of its end
};

// A communicator without a transport, in ctx's memory; NULL, with a message, where there is none.
spops_status spops_comm_new(spops_context *ctx, const char *call, int32_t num_ranks, int32_t rank,
                            const spops_comm_options *options, spops_comm **out);
void spops_comm_delete(spops_comm *comm);

// A call that moves rows refuses on this rank, with a text on ctx: where ranks are threads, all refuse.
spops_status spops_comm_refuse(spops_context *ctx, spops_comm *comm, const char *call,
                               spops_status refused);

// The same of a call that was refused before its function, with a text on ctx: one that moves rows, or one
// that makes a plan, which begins by agreeing.
spops_status spops_comm_refuse_call(spops_context *ctx, spops_comm *comm, const char *call,
                                    bool moves_rows, spops_status refused);

// What must be the same on all ranks. A fingerprint is of more than a number: it says that ranks differ, not how.
typedef struct spops_comm_choice {
    const char *name;
    int64_t value;
    bool is_fingerprint;
} spops_comm_choice;

enum { SPOPS_COMM_MAX_CHOICES = 16 };

// INVALID_ARGUMENT on all ranks where one chose otherwise than rank 0. Not captured, all ranks with as many.
spops_status spops_comm_check_same_sync(spops_context *ctx, spops_comm *comm, const char *call,
                                        const spops_comm_choice *choices, int32_t count);

// A plan stands on comm, until the plan's end; the end of comm ends it too. Any thread.
void spops_comm_join(spops_comm_link *link, spops_comm *comm);
void spops_comm_leave(spops_comm_link *link);

// That there is still a communicator, of a plan that is called `name`.
spops_status spops_comm_check_link(spops_context *ctx, const char *call, const char *name,
                                   const spops_comm_link *link);

// count pieces from one place to another, on ctx's stream.
spops_status spops_comm_copy(spops_context *ctx, const spops_comm_pieces *to,
                             const spops_comm_pieces *from);

#endif
