// SPDX-License-Identifier: Apache-2.0
// Communicators: arguments, and what each call gives every other rank. How it gets there is the
// transport's (threads.c).
#include "comm/comm_args.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/matrix.h"

// What spops_comm_agree_sync gathers of a rank.
typedef struct spops_comm_report {
    int32_t status;
    char text[SPOPS_ERROR_BYTES - sizeof(int32_t)];
} spops_comm_report;

#define ALL_DTYPES ((1u << (SPOPS_DTYPE_F64 + 1)) - 1)

// ---- Objects ------------------------------------------------------------------------------------

spops_status spops_comm_new(spops_context *ctx, const char *call, int32_t num_ranks, int32_t rank,
                            const spops_comm_options *options, spops_comm **out)
{
    const size_t n = (size_t)num_ranks;
    spops_comm_options read;
    spops_comm *comm;

    *out = NULL;
    memset(&read, 0, sizeof read);
    SPOPS_TRY(spops_read_options(ctx, call, options, &read, sizeof read));
    SPOPS_REQUIRE(ctx, read.timeout_ms >= 0,
                  "%s: timeout_ms is %" PRId32 ", expected 0 to 2147483647", call, read.timeout_ms);
    SPOPS_TRY(spops_check_reserved(ctx, call, read.reserved));
    comm = spops_host_alloc(ctx, 1, sizeof *comm);
    if (comm == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    comm->home = ctx;
    comm->rank = rank;
    comm->num_ranks = num_ranks;
    comm->timeout_ms = read.timeout_ms > 0 ? read.timeout_ms : SPOPS_COMM_DEFAULT_TIMEOUT_MS;
    comm->sends = spops_host_alloc(ctx, n, sizeof *comm->sends);
    comm->recvs = spops_host_alloc(ctx, n, sizeof *comm->recvs);
    comm->reports = spops_host_alloc(ctx, n + 1, sizeof *comm->reports);
    if (comm->sends == NULL || comm->recvs == NULL || comm->reports == NULL) {
        spops_comm_delete(comm);
        return SPOPS_STATUS_OUT_OF_MEMORY;
    }
    *out = comm;
    return SPOPS_STATUS_OK;
}

void spops_comm_delete(spops_comm *comm)
{
    const size_t n = (size_t)comm->num_ranks;
    spops_host_free(comm->home, comm->sends, n, sizeof *comm->sends);
    spops_host_free(comm->home, comm->recvs, n, sizeof *comm->recvs);
    spops_host_free(comm->home, comm->reports, n + 1, sizeof *comm->reports);
    spops_host_free(comm->home, comm, 1, sizeof *comm);
}

static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER; // plans may end in any thread

void spops_comm_join(spops_comm_link *link, spops_comm *comm)
{
    (void)pthread_mutex_lock(&links_lock);
    *link = (spops_comm_link){comm, comm->links, &comm->links};
    if (link->next != NULL) link->next->at = &link->next;
    comm->links = link;
    (void)pthread_mutex_unlock(&links_lock);
}

// With the lock.
static void unlink_plan(spops_comm_link *link)
{
    if (link->comm == NULL) return;
    *link->at = link->next;
    if (link->next != NULL) link->next->at = link->at;
    *link = (spops_comm_link){NULL, NULL, NULL};
}

void spops_comm_leave(spops_comm_link *link)
{
    (void)pthread_mutex_lock(&links_lock);
    unlink_plan(link);
    (void)pthread_mutex_unlock(&links_lock);
}

spops_status spops_comm_check_link(spops_context *ctx, const char *call, const char *name,
                                   const spops_comm_link *link)
{
    SPOPS_REQUIRE(ctx, link->comm != NULL, "%s: the communicator of %s was destroyed", call, name);
    return SPOPS_STATUS_OK;
}

void spops_comm_destroy(spops_comm *comm)
{
    if (comm == NULL) return;
    if (spops_log_is_on) spops_log_call(comm->home, "comm_destroy");
    (void)pthread_mutex_lock(&links_lock);
    while (comm->links != NULL)
        unlink_plan(comm->links);
    (void)pthread_mutex_unlock(&links_lock);
    comm->transport->destroy(comm);
    spops_comm_delete(comm);
}

int32_t spops_comm_rank(const spops_comm *comm)
{
    return comm != NULL ? comm->rank : -1;
}

int32_t spops_comm_num_ranks(const spops_comm *comm)
{
    return comm != NULL ? comm->num_ranks : 0;
}

// A place in memory; NULL where there is none, as where nothing is moved.
static char *at(const void *data, size_t bytes)
{
    return data == NULL ? NULL : (char *)data + bytes;
}

// ---- Meetings -----------------------------------------------------------------------------------

spops_status spops_comm_copy(spops_context *ctx, const spops_comm_pieces *to,
                             const spops_comm_pieces *from)
{
    if (to->bytes == 0) return SPOPS_STATUS_OK; // both may be NULL
    if (to->count == 1 && from->count == 1)
        return ctx->backend->copy(ctx, to->data, from->data, to->bytes);
    for (int64_t i = 0; i < to->count; ++i)
        SPOPS_TRY(ctx->backend->copy(ctx, to->data + (size_t)i * to->stride,
                                     from->data + (size_t)i * from->stride, to->bytes));
    return SPOPS_STATUS_OK;
}

static spops_status meet(spops_context *ctx, spops_comm *comm, const spops_comm_meeting *meeting)
{
    SPOPS_TRY(comm->transport->begin(ctx, comm, meeting));
    return comm->transport->end(ctx, comm, meeting);
}

// What every call on a communicator begins with. A call that fails here has not come to a meeting.
static spops_status begin_call(spops_context *ctx, const char *call, const spops_comm *comm)
{
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, comm != NULL, "%s: comm is NULL", call);
    SPOPS_TRY(spops_check_home(ctx, call, "comm", comm->home));
    SPOPS_REQUIRE(ctx, !comm->begun, "%s: an exchange has begun on comm, and not ended", call);
    return SPOPS_STATUS_OK;
}

// ---- Host values --------------------------------------------------------------------------------

static spops_status check_values(spops_context *ctx, const char *call, const spops_comm *comm,
                                 const void *value, size_t bytes, const void *values)
{
    const uintptr_t one = (uintptr_t)value, all = (uintptr_t)values;

    SPOPS_REQUIRE(ctx, bytes <= SPOPS_COMM_MAX_VALUE_BYTES, "%s: bytes is %zu, expected 0 to %d",
                  call, bytes, SPOPS_COMM_MAX_VALUE_BYTES);
    SPOPS_REQUIRE(ctx, value != NULL || bytes == 0, "%s: value is NULL", call);
    SPOPS_REQUIRE(ctx, values != NULL || bytes == 0, "%s: values is NULL", call);
    SPOPS_REQUIRE(ctx,
                  bytes == 0 || one + bytes <= all || one >= all + bytes * (size_t)comm->num_ranks,
                  "%s: value shares memory with values", call);
    return SPOPS_STATUS_OK;
}

// Each rank's value on all ranks.
static spops_status gather(spops_context *ctx, const char *call, spops_comm *comm,
                           spops_comm_kind kind, spops_status refused, const void *value,
                           size_t bytes, void *values)
{
    const spops_comm_meeting meeting = {
        .call = call, .kind = kind, .size = (int64_t)bytes, .refused = refused};

    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        comm->sends[r] = (spops_comm_pieces){(char *)(uintptr_t)value, 1, bytes, bytes};
        comm->recvs[r] = (spops_comm_pieces){at(values, (size_t)r * bytes), 1, bytes, bytes};
    }
    return meet(ctx, comm, &meeting);
}

spops_status spops_comm_gather_sync(spops_context *ctx, spops_comm *comm, const void *value,
                                    size_t bytes, void *values)
{
    static const char call[] = "comm_gather_sync";
    spops_status refused;

    SPOPS_TRY(begin_call(ctx, call, comm));
    refused = spops_check_not_capturing(ctx, call);
    if (refused == SPOPS_STATUS_OK) refused = check_values(ctx, call, comm, value, bytes, values);
    return gather(ctx, call, comm, SPOPS_COMM_GATHER, refused, value, bytes, values);
}

spops_status spops_comm_barrier_sync(spops_context *ctx, spops_comm *comm)
{
    static const char call[] = "comm_barrier_sync";

    SPOPS_TRY(begin_call(ctx, call, comm));
    return gather(ctx, call, comm, SPOPS_COMM_BARRIER, spops_check_not_capturing(ctx, call), NULL,
                  0, NULL);
}

spops_status spops_comm_agree_sync(spops_context *ctx, spops_comm *comm, spops_status status)
{
    static const char call[] = "comm_agree_sync";
    spops_comm_report *own, *all;
    spops_status refused;

    SPOPS_TRY(begin_call(ctx, call, comm));
    own = comm->reports;
    all = comm->reports + 1;
    memset(own, 0, sizeof *own);
    own->status = (int32_t)status;
    if (status != SPOPS_STATUS_OK)
        (void)snprintf(own->text, sizeof own->text, "%s", spops_last_error(ctx));
    refused = spops_check_not_capturing(ctx, call);
    if (refused == SPOPS_STATUS_OK && (unsigned)status > SPOPS_STATUS_COMM_BROKEN)
        refused = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                             "%s: status is %d, which is no status", call, (int)status);
    SPOPS_TRY(gather(ctx, call, comm, SPOPS_COMM_AGREE, refused, own, sizeof *own, all));
    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        const char *text = all[r].text, *outer = ctx->outer == NULL ? "" : ctx->outer->call;
        const size_t length = strlen(outer);
        if (all[r].status == SPOPS_STATUS_OK) continue;
        // Of a call that agrees the line has the name already.
        if (length > 0 && strncmp(text, outer, length) == 0 && strncmp(text + length, ": ", 2) == 0)
            text += length + 2;
        return spops_fail(ctx, (spops_status)all[r].status, "%s: rank %" PRId32 ": %.460s", call, r,
                          text);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_comm_check_same_sync(spops_context *ctx, spops_comm *comm, const char *call,
                                        const spops_comm_choice *choices, int32_t count)
{
    const size_t size = (size_t)count, n = (size_t)comm->num_ranks * size;
    int64_t own[SPOPS_COMM_MAX_CHOICES], *all = spops_host_alloc(ctx, n, sizeof *all);
    spops_status status = spops_comm_agree_sync(
        ctx, comm, all == NULL ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_OK);

    for (int32_t i = 0; i < count; ++i)
        own[i] = choices[i].value;
    if (status == SPOPS_STATUS_OK)
        status = spops_comm_gather_sync(ctx, comm, own, size * sizeof *own, all);
    for (size_t i = size; status == SPOPS_STATUS_OK && i < n; ++i) {
        const spops_comm_choice *c = &choices[i % size];
        if (all[i] == all[i % size]) continue;
        if (c->is_fingerprint)
            status =
                spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                           "%s: %s of rank %zu is not that of rank 0", call, c->name, i / size);
        else
            status = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                                "%s: %s is %" PRId64 " on rank %zu, %" PRId64 " on rank 0", call,
                                c->name, all[i], i / size, all[i % size]);
    }
    spops_host_free(ctx, all, n, sizeof *all);
    return status;
}

// ---- Exchange -----------------------------------------------------------------------------------

// Rows that follow each other without a gap, of any dtype.
static spops_status check_rows(spops_context *ctx, const char *call, const char *name,
                               spops_matrix m, int64_t cols, unsigned dtypes)
{
    SPOPS_TRY(spops_check_matrix(ctx, call, name, m, m.rows, cols, dtypes));
    SPOPS_REQUIRE(ctx, m.rows <= 1 || m.row_stride == m.cols,
                  "%s: %s.row_stride is %" PRId64 ", expected %" PRId64 ", its cols", call, name,
                  m.row_stride, m.cols);
    return SPOPS_STATUS_OK;
}

// Each rank's range lies in the matrix; ranges that are received follow each other.
static spops_status check_ranges(spops_context *ctx, const char *call, const spops_comm *comm,
                                 const char *name, const int64_t *counts, const int64_t *offsets,
                                 int64_t rows, bool ascend)
{
    int64_t end = 0;

    SPOPS_REQUIRE(ctx, counts != NULL, "%s: layout.%s_counts is NULL", call, name);
    SPOPS_REQUIRE(ctx, offsets != NULL, "%s: layout.%s_offsets is NULL", call, name);
    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        SPOPS_REQUIRE(ctx, counts[r] >= 0 && counts[r] <= rows,
                      "%s: layout.%s_counts[%" PRId32 "] is %" PRId64 ", expected 0 to %" PRId64
                      ", the rows of %s",
                      call, name, r, counts[r], rows, name);
        if (counts[r] == 0) continue;
        SPOPS_REQUIRE(ctx, offsets[r] >= end && offsets[r] <= rows - counts[r],
                      "%s: layout.%s_offsets[%" PRId32 "] is %" PRId64 ", expected %" PRId64
                      " to %" PRId64,
                      call, name, r, offsets[r], end, rows - counts[r]);
        if (ascend) end = offsets[r] + counts[r];
    }
    return SPOPS_STATUS_OK;
}

// Whether bytes from begin to end are among those of a piece.
static bool is_among(const spops_comm_pieces *p, uintptr_t begin, uintptr_t end)
{
    return p->bytes > 0 && (uintptr_t)p->data < end && (uintptr_t)p->data + p->bytes > begin;
}

// What is received shares nothing with what is sent; rows for the rank itself are looked at too. Most often
// all that is sent lies on one side; where rows lie among each other, each is looked at beside each.
static spops_status check_apart(spops_context *ctx, const char *call, const spops_comm *comm)
{
    uintptr_t begin = UINTPTR_MAX, end = 0;

    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        const spops_comm_pieces *p = &comm->sends[r];
        if (p->bytes == 0) continue;
        if ((uintptr_t)p->data < begin) begin = (uintptr_t)p->data;
        if ((uintptr_t)p->data + p->bytes > end) end = (uintptr_t)p->data + p->bytes;
    }
    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        const spops_comm_pieces *p = &comm->recvs[r];
        const uintptr_t data = (uintptr_t)p->data;
        if (!is_among(p, begin, end)) continue;
        for (int32_t s = 0; s < comm->num_ranks; ++s)
            SPOPS_REQUIRE(ctx, !is_among(&comm->sends[s], data, data + p->bytes),
                          "%s: rows of recv from rank %" PRId32 " share memory with rows of send",
                          call, r);
    }
    return SPOPS_STATUS_OK;
}

static spops_comm_pieces rows_of(spops_matrix m, int64_t offset, int64_t count)
{
    const size_t row_bytes = (size_t)spops_elements_bytes(m.dtype, m.cols);
    const spops_comm_pieces p = {count > 0 ? at(m.data, (size_t)offset * row_bytes) : NULL, 1,
                                 (size_t)count * row_bytes, 0};
    return p;
}

static spops_status check_exchange(spops_context *ctx, const char *call, spops_comm *comm,
                                   const spops_comm_layout *l, spops_matrix send, spops_matrix recv)
{
    SPOPS_TRY(spops_check_object(ctx, call, "layout", l, _Alignof(spops_comm_layout)));
    SPOPS_TRY(check_rows(ctx, call, "send", send, send.cols, ALL_DTYPES));
    SPOPS_TRY(check_rows(ctx, call, "recv", recv, send.cols, 1u << (unsigned)send.dtype));
    SPOPS_TRY(
        check_ranges(ctx, call, comm, "send", l->send_counts, l->send_offsets, send.rows, false));
    SPOPS_TRY(
        check_ranges(ctx, call, comm, "recv", l->recv_counts, l->recv_offsets, recv.rows, true));
    SPOPS_REQUIRE(ctx, l->send_counts[comm->rank] == l->recv_counts[comm->rank],
                  "%s: layout.recv_counts[%" PRId32 "] is %" PRId64 ", expected %" PRId64
                  ", what the rank sends itself",
                  call, comm->rank, l->recv_counts[comm->rank], l->send_counts[comm->rank]);
    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        comm->sends[r] = rows_of(send, l->send_offsets[r], l->send_counts[r]);
        comm->recvs[r] = rows_of(recv, l->recv_offsets[r], l->recv_counts[r]);
    }
    return check_apart(ctx, call, comm);
}

// Ranks that are threads meet on the host, which no graph does.
static spops_status check_capture(spops_context *ctx, const char *call, const spops_comm *comm)
{
    return comm->transport->captures ? SPOPS_STATUS_OK : spops_check_not_capturing(ctx, call);
}

// The rank's refusal comes to the meeting, which it ends on all ranks.
static spops_status begin_exchange(spops_context *ctx, const char *call, spops_comm *comm,
                                   bool is_beside, const spops_comm_layout *layout,
                                   spops_matrix send, spops_matrix recv,
                                   spops_comm_meeting *meeting)
{
    spops_status refused;

    SPOPS_TRY(begin_call(ctx, call, comm));
    refused = check_capture(ctx, call, comm);
    if (refused == SPOPS_STATUS_OK) refused = check_exchange(ctx, call, comm, layout, send, recv);
    *meeting = (spops_comm_meeting){.call = call,
                                    .kind = SPOPS_COMM_EXCHANGE,
                                    .refused = refused,
                                    .is_beside = is_beside,
                                    .dtype = send.dtype};
    if (refused != SPOPS_STATUS_OK) return meet(ctx, comm, meeting);
    meeting->size = spops_elements_bytes(send.dtype, send.cols);
    return comm->transport->begin(ctx, comm, meeting);
}

spops_status spops_comm_refuse(spops_context *ctx, spops_comm *comm, const char *call,
                               spops_status refused)
{
    const spops_comm_meeting meeting = {
        .call = call, .kind = SPOPS_COMM_EXCHANGE, .refused = refused};
    // What is enqueued meets nobody, and between begin and end nothing else does.
    if (comm->transport->captures || comm->begun) return refused;
    return meet(ctx, comm, &meeting);
}

spops_status spops_comm_refuse_call(spops_context *ctx, spops_comm *comm, const char *call,
                                    bool moves_rows, spops_status refused)
{
    if (comm->home->backend != ctx->backend || comm->home->info.device != ctx->info.device)
        return refused; // what was refused may be the communicator itself
    if (moves_rows) return spops_comm_refuse(ctx, comm, call, refused);
    // What makes a plan is not captured, and between begin and end nothing meets.
    if (comm->begun || ctx->backend->is_capturing(ctx)) return refused;
    SPOPS_OUTER_CALL(ctx, call, NULL);
    return spops_comm_agree_sync(ctx, comm, refused);
}

spops_status spops_comm_exchange_execute(spops_context *ctx, spops_comm *comm,
                                         const spops_comm_layout *layout, spops_matrix send,
                                         spops_matrix recv)
{
    spops_comm_meeting meeting;
    SPOPS_TRY(
        begin_exchange(ctx, "comm_exchange_execute", comm, false, layout, send, recv, &meeting));
    return comm->transport->end(ctx, comm, &meeting);
}

spops_status spops_comm_exchange_begin(spops_context *ctx, spops_comm *comm,
                                       const spops_comm_layout *layout, spops_matrix send,
                                       spops_matrix recv)
{
    spops_comm_meeting meeting;
    SPOPS_TRY(begin_exchange(ctx, "comm_exchange_begin", comm, true, layout, send, recv, &meeting));
    comm->meeting = meeting;
    comm->begun = true;
    return SPOPS_STATUS_OK;
}

spops_status spops_comm_exchange_end(spops_context *ctx, spops_comm *comm)
{
    static const char call[] = "comm_exchange_end";

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, comm != NULL, "%s: comm is NULL", call);
    SPOPS_TRY(spops_check_home(ctx, call, "comm", comm->home));
    SPOPS_REQUIRE(ctx, comm->begun, "%s: no exchange has begun on comm", call);
    comm->begun = false;
    comm->meeting.call = call;
    return comm->transport->end(ctx, comm, &comm->meeting);
}

// ---- Broadcast and sum --------------------------------------------------------------------------

static spops_status check_broadcast(spops_context *ctx, const char *call, const spops_comm *comm,
                                    int32_t root, spops_matrix rows)
{
    SPOPS_TRY(check_capture(ctx, call, comm));
    SPOPS_REQUIRE(ctx, root >= 0 && root < comm->num_ranks,
                  "%s: root is %" PRId32 ", expected 0 to %" PRId32, call, root,
                  comm->num_ranks - 1);
    return check_rows(ctx, call, "rows", rows, rows.cols, ALL_DTYPES);
}

spops_status spops_comm_broadcast_execute(spops_context *ctx, spops_comm *comm, int32_t root,
                                          spops_matrix rows)
{
    static const char call[] = "comm_broadcast_execute";
    spops_comm_meeting meeting = {.call = call, .kind = SPOPS_COMM_BROADCAST, .dtype = rows.dtype};
    const spops_comm_pieces none = {0};

    SPOPS_TRY(begin_call(ctx, call, comm));
    meeting.refused = check_broadcast(ctx, call, comm, root, rows);
    for (int32_t r = 0; r < comm->num_ranks; ++r)
        comm->sends[r] = comm->recvs[r] = none;
    if (meeting.refused == SPOPS_STATUS_OK) {
        meeting.size = spops_elements_bytes(rows.dtype, rows.cols);
        for (int32_t r = 0; r < comm->num_ranks && comm->rank == root; ++r)
            if (r != root) comm->sends[r] = rows_of(rows, 0, rows.rows);
        if (comm->rank != root) comm->recvs[root] = rows_of(rows, 0, rows.rows);
    }
    return meet(ctx, comm, &meeting);
}

// Columns that a rank sums: whole blocks of 64, so that rows of parts stay aligned.
static int64_t first_column(const spops_comm *comm, int64_t cols, int32_t rank)
{
    const int64_t blocks = (cols + 63) / 64;
    const int64_t first = (blocks + comm->num_ranks - 1) / comm->num_ranks * 64 * rank;
    return first < cols ? first : cols;
}

size_t spops_comm_sum_scratch_bytes(const spops_comm *comm, int64_t num_parts, int64_t cols,
                                    spops_dtype dtype)
{
    if (comm == NULL || comm->num_ranks == 1 || num_parts <= 0 || cols <= 0) return 0;
    return spops_mul_bytes(spops_mul_bytes((size_t)num_parts, (size_t)first_column(comm, cols, 1)),
                           spops_dtype_bytes(dtype));
}

static spops_status check_sum(spops_context *ctx, const char *call, const spops_comm *comm,
                              const int64_t *offsets, spops_matrix parts, spops_matrix out)
{
    SPOPS_TRY(check_capture(ctx, call, comm));
    SPOPS_TRY(spops_check_object(ctx, call, "part_offsets", offsets, sizeof *offsets));
    SPOPS_REQUIRE(ctx, offsets[0] == 0, "%s: part_offsets[0] is %" PRId64 ", expected 0", call,
                  offsets[0]);
    for (int32_t r = 0; r < comm->num_ranks; ++r)
        SPOPS_REQUIRE(ctx, offsets[r + 1] >= offsets[r] && offsets[r + 1] <= SPOPS_MAX_COUNT,
                      "%s: part_offsets[%" PRId32 "] is %" PRId64 ", expected %" PRId64
                      " to %" PRId64,
                      call, r + 1, offsets[r + 1], offsets[r], SPOPS_MAX_COUNT);
    SPOPS_TRY(spops_check_matrix(ctx, call, "parts", parts,
                                 offsets[comm->rank + 1] - offsets[comm->rank], parts.cols,
                                 1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_F64));
    SPOPS_TRY(spops_check_backend_dtype(ctx, ctx->backend, call, "parts", parts.dtype));
    SPOPS_TRY(
        spops_check_matrix(ctx, call, "out", out, 1, parts.cols, 1u << (unsigned)parts.dtype));
    return spops_check_no_overlap(ctx, call, "out", out, "parts", parts);
}

// Each rank's columns of all parts come to it, into scratch.
static void set_parts(const spops_comm *comm, const int64_t *offsets, spops_matrix parts,
                      char *scratch)
{
    const size_t element = spops_dtype_bytes(parts.dtype);
    const int64_t own_parts = offsets[comm->rank + 1] - offsets[comm->rank];
    const size_t own = (size_t)(first_column(comm, parts.cols, comm->rank + 1) -
                                first_column(comm, parts.cols, comm->rank)) *
                       element;

    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        const int64_t begin = first_column(comm, parts.cols, r);
        const size_t theirs = (size_t)(first_column(comm, parts.cols, r + 1) - begin) * element;
        comm->sends[r] =
            (spops_comm_pieces){own_parts > 0 ? at(parts.data, (size_t)begin * element) : NULL,
                                own_parts, theirs, (size_t)spops_row_step(parts) * element};
        comm->recvs[r] = (spops_comm_pieces){at(scratch, (size_t)offsets[r] * own),
                                             offsets[r + 1] - offsets[r], own, own};
    }
}

// And its sums go to all.
static void set_sums(const spops_comm *comm, spops_matrix out)
{
    const size_t element = spops_dtype_bytes(out.dtype);
    const int64_t begin = first_column(comm, out.cols, comm->rank);
    const int64_t end = first_column(comm, out.cols, comm->rank + 1);

    for (int32_t r = 0; r < comm->num_ranks; ++r) {
        const int64_t first = first_column(comm, out.cols, r);
        const size_t bytes = (size_t)(first_column(comm, out.cols, r + 1) - first) * element;
        comm->sends[r] = (spops_comm_pieces){at(out.data, (size_t)begin * element), 1,
                                             (size_t)(end - begin) * element, 0};
        comm->recvs[r] = (spops_comm_pieces){at(out.data, (size_t)first * element), 1, bytes, 0};
    }
}

spops_status spops_comm_sum_execute(spops_context *ctx, spops_comm *comm,
                                    const int64_t *part_offsets, spops_matrix parts,
                                    spops_matrix out)
{
    static const char call[] = "comm_sum_execute";
    spops_comm_meeting meeting = {.call = call, .kind = SPOPS_COMM_SUM_PARTS, .dtype = parts.dtype};
    spops_comm_sum_args sum = {0};
    void *scratch = NULL;
    int64_t begin = 0;

    SPOPS_TRY(begin_call(ctx, call, comm));
    meeting.refused = check_sum(ctx, call, comm, part_offsets, parts, out);
    if (meeting.refused == SPOPS_STATUS_OK && comm->num_ranks > 1)
        meeting.refused =
            spops_context_scratch(ctx, call,
                                  spops_comm_sum_scratch_bytes(comm, part_offsets[comm->num_ranks],
                                                               parts.cols, parts.dtype),
                                  &scratch);
    if (meeting.refused != SPOPS_STATUS_OK) return meet(ctx, comm, &meeting);
    sum = (spops_comm_sum_args){
        parts.data, part_offsets[comm->num_ranks], spops_row_step(parts), parts.cols, out.data,
        parts.dtype};
    if (comm->num_ranks > 1) {
        meeting.size = parts.cols * (int64_t)spops_dtype_bytes(parts.dtype);
        set_parts(comm, part_offsets, parts, scratch);
        SPOPS_TRY(meet(ctx, comm, &meeting));
        begin = first_column(comm, parts.cols, comm->rank);
        sum.cols = first_column(comm, parts.cols, comm->rank + 1) - begin;
        sum.parts = scratch;
        sum.stride = sum.cols;
        sum.out = at(out.data, (size_t)begin * spops_dtype_bytes(out.dtype));
    }
    meeting.kind = SPOPS_COMM_SUM_OUT;
    if (sum.cols > 0) meeting.refused = ctx->backend->comm_sum(ctx, &sum);
    if (comm->num_ranks == 1) return meeting.refused;
    set_sums(comm, out);
    return meet(ctx, comm, &meeting);
}

spops_status spops_comm_wait_sync(spops_context *ctx, spops_comm *comm)
{
    static const char call[] = "comm_wait_sync";

    SPOPS_TRY(begin_call(ctx, call, comm));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    return comm->transport->wait(ctx, comm, call);
}
