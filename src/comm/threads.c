// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process. They meet at a board with a place for each: a rank posts what
// it gives and takes, waits until all have posted, looks whether it fits together (all ranks see the same
// and come to the same end), takes, and waits until all have taken. Then places may be written anew.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm_args.h"
#include "core/check.h"

typedef struct place {
    bool is_taken, has_left; // a rank has it; had it
    int64_t posted, taken;   // meetings that the rank has posted to, and is through with
    spops_comm_meeting meeting;
    const spops_comm_pieces *sends, *recvs; // the rank's, while it is in a meeting
    char text[SPOPS_ERROR_BYTES];           // of meeting.refused
    void *ready, *done; // on CUDA: its rows may be read; it has read those of others
} place;

struct spops_comm_group {
    pthread_mutex_t lock; // of all that follows, but for what is posted
    pthread_cond_t changed;
    int32_t num_ranks;
    int64_t references;
    int64_t num_reading; // ranks that read what others posted: nobody may return meanwhile
    const spops_backend *backend;
    bool broken;
    char why[SPOPS_ERROR_BYTES];
    place places[];
};

// ---- The group ----------------------------------------------------------------------------------

spops_status spops_comm_group_create(int32_t num_ranks, spops_comm_group **out)
{
    static const char call[] = "comm_group_create";
    pthread_condattr_t attributes;
    spops_comm_group *group;

    SPOPS_REQUIRE(NULL, out != NULL, "%s: out is NULL", call);
    *out = NULL;
    SPOPS_REQUIRE(NULL, num_ranks >= 1 && num_ranks <= SPOPS_COMM_MAX_RANKS,
                  "%s: num_ranks is %" PRId32 ", expected 1 to %d", call, num_ranks,
                  SPOPS_COMM_MAX_RANKS);
    group = calloc(1, sizeof *group + (size_t)num_ranks * sizeof group->places[0]);
    if (group == NULL)
        return spops_fail(NULL, SPOPS_STATUS_OUT_OF_MEMORY, "%s: out of host memory", call);
    group->num_ranks = num_ranks;
    group->references = 1;
    (void)pthread_mutex_init(&group->lock, NULL); // none of these fails on Linux
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&group->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *out = group;
    return SPOPS_STATUS_OK;
}

// Events live as long as the group: a rank that ends may still be waited for by others.
static void free_events(const spops_comm_group *group, place *p)
{
    const spops_comm_event_args ready = {&p->ready}, done = {&p->done};
    if (group->backend == NULL || group->backend->comm_event_destroy == NULL) return;
    (void)group->backend->comm_event_destroy(NULL, &ready);
    (void)group->backend->comm_event_destroy(NULL, &done);
}

static void drop_reference(spops_comm_group *group)
{
    (void)pthread_mutex_lock(&group->lock);
    const bool is_last = --group->references == 0;
    (void)pthread_mutex_unlock(&group->lock);
    if (!is_last) return;
    for (int32_t r = 0; r < group->num_ranks; ++r)
        free_events(group, &group->places[r]);
    (void)pthread_cond_destroy(&group->changed);
    (void)pthread_mutex_destroy(&group->lock);
    free(group);
}

void spops_comm_group_destroy(spops_comm_group *group)
{
    if (group != NULL) drop_reference(group);
}

// ---- Waiting ------------------------------------------------------------------------------------

// The functions of this part are called with the lock.

__attribute__((format(printf, 2, 3))) static void break_group(spops_comm_group *group,
                                                              const char *format, ...)
{
    va_list arguments;

    if (!group->broken) {
        va_start(arguments, format);
        (void)vsnprintf(group->why, sizeof group->why, format, arguments);
        va_end(arguments);
        group->broken = true;
    }
    (void)pthread_cond_broadcast(&group->changed);
}

// The caller may free what it posted: nobody reads it any longer, nor begins to.
static spops_status fail_broken(spops_context *ctx, const char *call, spops_comm_group *group)
{
    while (group->num_reading > 0)
        (void)pthread_cond_wait(&group->changed, &group->lock);
    return spops_fail(ctx, SPOPS_STATUS_COMM_BROKEN, "%s: the communicator is broken: %.400s", call,
                      group->why);
}

static struct timespec deadline_after(int32_t timeout_ms)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (t.tv_nsec >= 1000000000L) t.tv_nsec -= 1000000000L, ++t.tv_sec;
    return t;
}

// The first rank that has not come to a meeting, or is not through with it; -1: all are.
static int32_t missing_rank(const spops_comm_group *group, int64_t meeting, bool through)
{
    for (int32_t r = 0; r < group->num_ranks; ++r) {
        const place *p = &group->places[r];
        if ((through ? p->taken : p->posted) < meeting || (p->has_left && p->taken < meeting))
            return r;
    }
    return -1;
}

// Until all ranks have come to a meeting, or are through with it.
static spops_status await(spops_context *ctx, spops_comm *comm, const char *call, int64_t meeting,
                          bool through)
{
    spops_comm_group *group = comm->state;
    const struct timespec deadline = deadline_after(comm->timeout_ms);
    bool late = false;
    int32_t missing;

    // Who is broken gives nothing more to read; but a meeting that all are through with was good.
    while ((missing = missing_rank(group, meeting, through)) >= 0 && !group->broken) {
        if (group->places[missing].has_left)
            break_group(group,
                        "rank %" PRId32 " has destroyed its end, rank %" PRId32
                        " waits for it in %s",
                        missing, comm->rank, call);
        else if (late)
            break_group(group,
                        "rank %" PRId32 " did not come to %s within %" PRId32 " ms, rank %" PRId32
                        " waited",
                        missing, call, comm->timeout_ms, comm->rank);
        else
            late = pthread_cond_timedwait(&group->changed, &group->lock, &deadline) == ETIMEDOUT;
    }
    if (missing >= 0 || (group->broken && !through)) return fail_broken(ctx, call, group);
    return SPOPS_STATUS_OK;
}

// ---- What all have posted -----------------------------------------------------------------------

// The lowest rank that was refused, whose text all others give.
static spops_status check_refusals(spops_context *ctx, const spops_comm *comm, const char *call)
{
    const spops_comm_group *group = comm->state;

    for (int32_t r = 0; r < group->num_ranks; ++r) {
        const place *p = &group->places[r];
        const char *text = p->text;
        const size_t length = strlen(p->meeting.call);
        if (p->meeting.refused == SPOPS_STATUS_OK) continue;
        if (r == comm->rank) return p->meeting.refused; // the text is there
        if (strncmp(text, p->meeting.call, length) == 0 && strncmp(text + length, ": ", 2) == 0)
            text += length + 2;
        return spops_fail(ctx, p->meeting.refused, "%s: rank %" PRId32 ": %.440s", call, r, text);
    }
    return SPOPS_STATUS_OK;
}

static const char *name_of(spops_comm_kind kind)
{
    return kind <= SPOPS_COMM_BROADCAST ? "rows" : kind < SPOPS_COMM_GATHER ? "sums" : "a value";
}

static int64_t bytes_of(const spops_comm_pieces *pieces)
{
    return pieces->count * (int64_t)pieces->bytes;
}

// Every rank finds the same fault.
static spops_status check_meeting(spops_context *ctx, const spops_comm *comm, const char *call)
{
    const spops_comm_group *group = comm->state;
    const place *first = &group->places[0];

    for (int32_t r = 1; r < group->num_ranks; ++r) {
        const spops_comm_meeting *m = &group->places[r].meeting;
        SPOPS_REQUIRE(ctx, m->kind == first->meeting.kind,
                      "%s: rank %" PRId32 " is in %s, rank 0 in %s", call, r, m->call,
                      first->meeting.call);
    }
    SPOPS_TRY(check_refusals(ctx, comm, call));
    for (int32_t r = 1; r < group->num_ranks; ++r) {
        const spops_comm_meeting *m = &group->places[r].meeting;
        SPOPS_REQUIRE(ctx, m->size == first->meeting.size,
                      "%s: rank %" PRId32 " has %s of %" PRId64 " bytes, rank 0 of %" PRId64, call,
                      r, name_of(m->kind), m->size, first->meeting.size);
        SPOPS_REQUIRE(ctx, m->dtype == first->meeting.dtype,
                      "%s: rank %" PRId32 " has %s of %s, rank 0 of %s", call, r, name_of(m->kind),
                      spops_dtype_name(m->dtype), spops_dtype_name(first->meeting.dtype));
    }
    for (int32_t from = 0; from < group->num_ranks; ++from)
        for (int32_t to = 0; to < group->num_ranks; ++to) {
            const int64_t sent = bytes_of(&group->places[from].sends[to]);
            const int64_t taken = bytes_of(&group->places[to].recvs[from]);
            const bool rows =
                first->meeting.kind <= SPOPS_COMM_BROADCAST && first->meeting.size > 0;
            const int64_t size = rows ? first->meeting.size : 1;
            SPOPS_REQUIRE(ctx, sent == taken,
                          "%s: rank %" PRId32 " sends %" PRId64 " %s to rank %" PRId32
                          ", which expects %" PRId64,
                          call, from, sent / size, rows ? "rows" : "bytes", to, taken / size);
        }
    return SPOPS_STATUS_OK;
}

// ---- Meetings -----------------------------------------------------------------------------------

// On CUDA a rank reads rows of others on its own stream: after `ready` of the other one, and before the
// other one goes on, which waits for `done`.
static bool has_events(const spops_context *ctx, const spops_comm_meeting *meeting)
{
    return ctx->backend->comm_event_record != NULL && meeting->kind < SPOPS_COMM_GATHER;
}

static spops_status record(spops_context *ctx, void **event)
{
    const spops_comm_event_args args = {event};
    return ctx->backend->comm_event_record(ctx, &args);
}

static spops_status wait_for(spops_context *ctx, void **event)
{
    const spops_comm_event_args args = {event};
    return ctx->backend->comm_event_wait(ctx, &args);
}

static spops_status take(spops_context *ctx, const spops_comm *comm,
                         const spops_comm_meeting *meeting)
{
    spops_comm_group *group = comm->state;
    const bool events = has_events(ctx, meeting);

    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        const spops_comm_pieces *from = &group->places[r].sends[comm->rank], *to = &comm->recvs[r];
        if (bytes_of(to) == 0 || to->data == from->data) continue;
        if (events && r != comm->rank) SPOPS_TRY(wait_for(ctx, &group->places[r].ready));
        if (meeting->kind < SPOPS_COMM_GATHER)
            SPOPS_TRY(spops_comm_copy(ctx, to, from));
        else
            memcpy(to->data, from->data, (size_t)bytes_of(to)); // one piece
    }
    return events ? record(ctx, &group->places[comm->rank].done) : SPOPS_STATUS_OK;
}

// Its rows may change once those who have read them are through. Whoever failed before may not have read.
static spops_status wait_for_readers(spops_context *ctx, const spops_comm *comm)
{
    spops_comm_group *group = comm->state;

    for (int32_t r = 0; r < comm->num_ranks; ++r)
        if (r != comm->rank && bytes_of(&comm->sends[r]) > 0)
            SPOPS_TRY(wait_for(ctx, &group->places[r].done));
    return SPOPS_STATUS_OK;
}

static spops_status end_threads(spops_context *ctx, spops_comm *comm,
                                const spops_comm_meeting *meeting)
{
    spops_comm_group *group = comm->state;
    place *own = &group->places[comm->rank];
    spops_status status, waited;

    (void)pthread_mutex_lock(&group->lock);
    const int64_t number = own->posted;
    status = await(ctx, comm, meeting->call, number, false);
    if (status == SPOPS_STATUS_OK) {
        ++group->num_reading;
        (void)pthread_mutex_unlock(&group->lock);
        status = check_meeting(ctx, comm, meeting->call);
        const bool agreed = status == SPOPS_STATUS_OK;
        if (agreed) status = take(ctx, comm, meeting);
        (void)pthread_mutex_lock(&group->lock);
        --group->num_reading;
        own->taken = number;
        if (agreed && status != SPOPS_STATUS_OK)
            break_group(group, "rank %" PRId32 ": %.400s", comm->rank, spops_last_error(ctx));
        (void)pthread_cond_broadcast(&group->changed);
        waited = await(ctx, comm, meeting->call, number, true);
        if (waited != SPOPS_STATUS_OK) status = waited;
        if (status == SPOPS_STATUS_OK && has_events(ctx, meeting))
            status = wait_for_readers(ctx, comm);
    }
    (void)pthread_mutex_unlock(&group->lock);
    return status;
}

static spops_status begin_threads(spops_context *ctx, spops_comm *comm,
                                  const spops_comm_meeting *meeting)
{
    spops_comm_group *group = comm->state;
    place *own = &group->places[comm->rank];
    spops_status status = SPOPS_STATUS_OK, refused = meeting->refused;

    if (has_events(ctx, meeting) && refused == SPOPS_STATUS_OK) refused = record(ctx, &own->ready);
    (void)pthread_mutex_lock(&group->lock);
    if (group->broken) {
        status = fail_broken(ctx, meeting->call, group);
    } else {
        own->meeting = *meeting;
        own->meeting.refused = refused;
        own->sends = comm->sends;
        own->recvs = comm->recvs;
        if (refused != SPOPS_STATUS_OK) memcpy(own->text, ctx->error, sizeof own->text);
        ++own->posted;
        (void)pthread_cond_broadcast(&group->changed);
    }
    (void)pthread_mutex_unlock(&group->lock);
    return status;
}

// Nothing of NCCL is on the stream that could wait for ever.
static spops_status wait_threads(spops_context *ctx, spops_comm *comm, const char *call)
{
    (void)comm, (void)call;
    return ctx->backend->wait(ctx);
}

static void destroy_threads(spops_comm *comm)
{
    spops_comm_group *group = comm->state;

    (void)comm->home->backend->wait(comm->home);

    (void)pthread_mutex_lock(&group->lock);
    group->places[comm->rank].has_left = true;
    (void)pthread_cond_broadcast(&group->changed);
    while (group->num_reading > 0)
        (void)pthread_cond_wait(&group->changed, &group->lock);
    (void)pthread_mutex_unlock(&group->lock);
    drop_reference(group);
}

static const spops_comm_transport transport_threads = {begin_threads, end_threads, wait_threads,
                                                       destroy_threads, .captures = false};

// A place for a rank of this backend.
static spops_status take_place(spops_context *ctx, const char *call, spops_comm_group *group,
                               int32_t rank)
{
    if (group->broken) return fail_broken(ctx, call, group);
    SPOPS_REQUIRE(ctx, !group->places[rank].is_taken,
                  "%s: rank is %" PRId32 ", which has a communicator already", call, rank);
    SPOPS_REQUIRE(ctx, group->backend == NULL || group->backend == ctx->backend,
                  "%s: ctx runs on %s, other ranks on %s", call, ctx->backend->name,
                  group->backend->name);
    group->backend = ctx->backend;
    if (ctx->backend->comm_event_create != NULL) {
        const spops_comm_event_args ready = {&group->places[rank].ready},
                                    done = {&group->places[rank].done};
        if (*ready.event == NULL) SPOPS_TRY(ctx->backend->comm_event_create(ctx, &ready));
        if (*done.event == NULL) SPOPS_TRY(ctx->backend->comm_event_create(ctx, &done));
    }
    group->places[rank].is_taken = true;
    ++group->references;
    return SPOPS_STATUS_OK;
}

spops_status spops_comm_create_threads(spops_context *ctx, spops_comm_group *group, int32_t rank,
                                       const spops_comm_options *options, spops_comm **out)
{
    static const char call[] = "comm_create_threads";
    spops_comm *comm = NULL;
    spops_status status;

    if (out != NULL) *out = NULL;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_object(ctx, call, "out", out, sizeof *out));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_REQUIRE(ctx, group != NULL, "%s: group is NULL", call);
    SPOPS_REQUIRE(ctx, rank >= 0 && rank < group->num_ranks,
                  "%s: rank is %" PRId32 ", expected 0 to %" PRId32, call, rank,
                  group->num_ranks - 1);
    SPOPS_TRY(spops_comm_new(ctx, call, group->num_ranks, rank, options, &comm));
    (void)pthread_mutex_lock(&group->lock);
    status = take_place(ctx, call, group, rank);
    (void)pthread_mutex_unlock(&group->lock);
    if (status != SPOPS_STATUS_OK) {
        spops_comm_delete(comm);
        return status;
    }
    comm->transport = &transport_threads;
    comm->state = group;
    *out = comm;
    return SPOPS_STATUS_OK;
}
