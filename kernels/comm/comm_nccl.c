// SPDX-License-Identifier: Apache-2.0
// Ranks of an NCCL communicator. NCCL is opened with dlopen, so that the library loads without it, and
// stays open: it has threads of its own. A communicator of the caller's is used, never aborted nor freed.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/comm_args.h"
#include "core/check.h"
#include "kernels/launchers.h"

// The few declarations of nccl.h that are needed, in our own words: its package need not be there where
// this is compiled.
enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7, NCCL_BYTES = 1 };

typedef struct nccl_id {
    char bytes[SPOPS_COMM_NCCL_ID_BYTES];
} nccl_id;

// As of version 2.14, which later ones read: what they added has its default.
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;

#define NCCL_CONFIG_MAGIC   0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u

typedef struct nccl_library {
    int (*get_unique_id)(nccl_id *id);
    int (*init_rank)(void **comm, int num_ranks, nccl_id id, int rank, nccl_config *config);
    int (*abort)(void *comm);
    int (*count)(void *comm, int *num_ranks);
    int (*user_rank)(void *comm, int *rank);
    int (*cu_device)(void *comm, int *device);
    int (*async_error)(void *comm, int *error);
    const char *(*error_text)(int error);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *data, size_t count, int type, int peer, void *comm, void *stream);
    int (*recv)(void *data, size_t count, int type, int peer, void *comm, void *stream);
    const char *missing; // what could not be opened or found; NULL: nothing
} nccl_library;

static nccl_library nccl;
static pthread_once_t nccl_once = PTHREAD_ONCE_INIT;

// A function of NCCL. POSIX lets data pointers carry functions; ISO C wants the detour.
static void find(void *file, const char *name, void *function)
{
    void *symbol = dlsym(file, name);
    memcpy(function, &symbol, sizeof symbol);
    if (symbol == NULL && nccl.missing == NULL) nccl.missing = name;
}

static void open_nccl(void)
{
    void *file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) {
        nccl.missing = "";
        return;
    }
    find(file, "ncclGetUniqueId", &nccl.get_unique_id);
    find(file, "ncclCommInitRankConfig", &nccl.init_rank);
    find(file, "ncclCommAbort", &nccl.abort);
    find(file, "ncclCommCount", &nccl.count);
    find(file, "ncclCommUserRank", &nccl.user_rank);
    find(file, "ncclCommCuDevice", &nccl.cu_device);
    find(file, "ncclCommGetAsyncError", &nccl.async_error);
    find(file, "ncclGetErrorString", &nccl.error_text);
    find(file, "ncclGroupStart", &nccl.group_start);
    find(file, "ncclGroupEnd", &nccl.group_end);
    find(file, "ncclSend", &nccl.send);
    find(file, "ncclRecv", &nccl.recv);
}

static spops_status need_nccl(spops_context *ctx, const char *call)
{
    (void)pthread_once(&nccl_once, open_nccl);
    if (nccl.missing == NULL) return SPOPS_STATUS_OK;
    if (nccl.missing[0] == '\0')
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: NCCL (libnccl.so.2) cannot be opened", call);
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                      "%s: libnccl.so.2 has no %s, expected NCCL 2.14 or newer", call,
                      nccl.missing);
}

// ---- The state of a rank ------------------------------------------------------------------------

enum { SLOT_BYTES = SPOPS_COMM_MAX_VALUE_BYTES };

typedef struct nccl_rank {
    void *comm;          // ncclComm_t; NULL after an abort
    bool is_owned;       // opened here
    bool is_captured;    // graphs may have exchanges of it
    bool broken;         // and why:
    cudaStream_t stream; // the rank's own: host values, and exchanges beside ctx's stream
    cudaEvent_t fork, join, done;
    char *staging; // [1 + num_ranks][SLOT_BYTES] on the device: its own value, and those of all
    size_t staging_bytes;
    char why[SPOPS_ERROR_BYTES];
} nccl_rank;

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

// Between two looks at the device: none in the first 50 us, then longer, up to a millisecond.
static void pause_after(double waited_ms)
{
    struct timespec pause = {0, 0};
    if (waited_ms < 0.05) return;
    pause.tv_nsec = waited_ms < 1.0 ? 20000 : waited_ms < 100.0 ? 100000 : 1000000;
    (void)nanosleep(&pause, NULL);
}

// ncclCommAbort ends the kernels that wait for other ranks, and then waits itself until all graphs that
// were captured with the communicator are destroyed. These are the user's: a thread waits for them.
static void *run_abort(void *comm)
{
    (void)nccl.abort(comm);
    return NULL;
}

static void abort_nccl(nccl_rank *r)
{
    pthread_t thread;

    if (r->is_captured && pthread_create(&thread, NULL, run_abort, r->comm) == 0)
        (void)pthread_detach(thread);
    else
        (void)nccl.abort(r->comm);
    r->comm = NULL;
}

// No later call on the communicator does anything. Kernels of our own communicator that wait for other
// ranks end.
__attribute__((format(printf, 4, 5))) static spops_status
break_rank(spops_context *ctx, const char *call, nccl_rank *r, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(r->why, sizeof r->why, format, arguments);
    va_end(arguments);
    r->broken = true;
    if (r->is_owned && r->comm != NULL) abort_nccl(r);
    return spops_fail(ctx, SPOPS_STATUS_COMM_BROKEN, "%s: the communicator is broken: %.360s%s",
                      call, r->why, r->is_owned ? "" : " (ncclCommAbort is the caller's to call)");
}

static spops_status check_whole(spops_context *ctx, const char *call, const nccl_rank *r)
{
    if (!r->broken) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_COMM_BROKEN, "%s: the communicator is broken: %.400s", call,
                      r->why);
}

// NCCL's own state: an error that came up since, or work that a call without blocking has not done.
static spops_status await_nccl(spops_context *ctx, const char *call, const spops_comm *comm,
                               nccl_rank *r, double begin)
{
    for (;;) {
        int state = NCCL_OK;
        const int error = nccl.async_error(r->comm, &state);
        const double waited = now_ms() - begin;
        if (error != NCCL_OK || (state != NCCL_OK && state != NCCL_IN_PROGRESS))
            return break_rank(ctx, call, r, "NCCL: %s",
                              nccl.error_text(error != NCCL_OK ? error : state));
        if (state == NCCL_OK) return SPOPS_STATUS_OK;
        if (waited > comm->timeout_ms)
            return break_rank(ctx, call, r,
                              "not all ranks came to %s within %" PRId32 " ms, rank %" PRId32
                              " waited",
                              call, comm->timeout_ms, comm->rank);
        pause_after(waited);
    }
}

// Until what was enqueued on `stream` has run.
static spops_status await_stream(spops_context *ctx, const char *call, const spops_comm *comm,
                                 nccl_rank *r, cudaStream_t stream)
{
    const double begin = now_ms();

    SPOPS_TRY(
        spops_cuda_status(ctx, "comm: cudaEventRecord", (int)cudaEventRecord(r->done, stream)));
    for (;;) {
        const cudaError_t error = cudaEventQuery(r->done);
        const double waited = now_ms() - begin;
        if (error == cudaSuccess) return SPOPS_STATUS_OK;
        if (error != cudaErrorNotReady)
            return spops_cuda_status(ctx, "comm: cudaEventQuery", (int)error);
        if (cudaPeekAtLastError() == error) (void)cudaGetLastError();
        SPOPS_TRY(await_nccl(ctx, call, comm, r, begin));
        if (waited > comm->timeout_ms)
            return break_rank(ctx, call, r,
                              "not all ranks came to %s within %" PRId32 " ms, rank %" PRId32
                              " waited",
                              call, comm->timeout_ms, comm->rank);
        pause_after(waited);
    }
}

// ---- Moving -------------------------------------------------------------------------------------

static int enqueue_pieces(const spops_comm *comm, const nccl_rank *r, cudaStream_t stream)
{
    int error = NCCL_OK;

    for (int32_t o = 0; o < comm->num_ranks && error == NCCL_OK; ++o) {
        const spops_comm_pieces *s = &comm->sends[o], *t = &comm->recvs[o];
        if (o == comm->rank && s->data == t->data) continue;
        for (int64_t i = 0; i < s->count && s->bytes > 0 && error == NCCL_OK; ++i)
            error = nccl.send(s->data + (size_t)i * s->stride, s->bytes, NCCL_BYTES, o, r->comm,
                              stream);
        for (int64_t i = 0; i < t->count && t->bytes > 0 && error == NCCL_OK; ++i)
            error = nccl.recv(t->data + (size_t)i * t->stride, t->bytes, NCCL_BYTES, o, r->comm,
                              stream);
    }
    return error;
}

// What comm sends and receives, as one group, which NCCL runs at once.
static spops_status enqueue_group(spops_context *ctx, const char *call, const spops_comm *comm,
                                  nccl_rank *r, cudaStream_t stream)
{
    const double begin = now_ms();
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int error = nccl.group_start(), ended;

    if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess)
        r->is_captured |= capture != cudaStreamCaptureStatusNone;
    if (error != NCCL_OK) return break_rank(ctx, call, r, "NCCL: %s", nccl.error_text(error));
    error = enqueue_pieces(comm, r, stream);
    ended = nccl.group_end();
    if (error == NCCL_OK || error == NCCL_IN_PROGRESS) error = ended;
    if (error != NCCL_OK && error != NCCL_IN_PROGRESS)
        return break_rank(ctx, call, r, "NCCL: %s", nccl.error_text(error));
    return await_nccl(ctx, call, comm, r, begin);
}

// Values go by way of the device, on the rank's own stream, which is waited for.
static spops_status gather_values(spops_context *ctx, spops_comm *comm,
                                  const spops_comm_meeting *meeting)
{
    static const char up[] = "comm: cudaMemcpyAsync to the device";
    nccl_rank *r = comm->state;
    const size_t bytes = meeting->size > 0 ? (size_t)meeting->size : 1; // a barrier moves something
    char *values = comm->recvs[0].data;

    if (meeting->size > 0)
        SPOPS_TRY(spops_cuda_status(ctx, up,
                                    (int)cudaMemcpyAsync(r->staging, comm->sends[0].data, bytes,
                                                         cudaMemcpyHostToDevice, r->stream)));
    for (int32_t o = 0; o < comm->num_ranks; ++o) {
        comm->sends[o] = (spops_comm_pieces){r->staging, 1, bytes, 0};
        comm->recvs[o] =
            (spops_comm_pieces){r->staging + SLOT_BYTES + (size_t)o * bytes, 1, bytes, 0};
    }
    SPOPS_TRY(enqueue_group(ctx, meeting->call, comm, r, r->stream));
    SPOPS_TRY(await_stream(ctx, meeting->call, comm, r, r->stream));
    if (meeting->size == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_cuda_status(ctx, "comm: cudaMemcpyAsync to the host",
                                (int)cudaMemcpyAsync(values, r->staging + SLOT_BYTES,
                                                     bytes * (size_t)comm->num_ranks,
                                                     cudaMemcpyDeviceToHost, r->stream)));
    return spops_cuda_status(ctx, "comm: cudaStreamSynchronize",
                             (int)cudaStreamSynchronize(r->stream));
}

// Beside ctx's stream: after what it has now, and before what comes after the end.
static spops_status begin_beside(spops_context *ctx, const char *call, spops_comm *comm)
{
    nccl_rank *r = comm->state;
    SPOPS_TRY(spops_cuda_status(ctx, "comm: cudaEventRecord",
                                (int)cudaEventRecord(r->fork, (cudaStream_t)ctx->stream)));
    SPOPS_TRY(spops_cuda_status(ctx, "comm: cudaStreamWaitEvent",
                                (int)cudaStreamWaitEvent(r->stream, r->fork, 0)));
    SPOPS_TRY(enqueue_group(ctx, call, comm, r, r->stream));
    return spops_cuda_status(ctx, "comm: cudaEventRecord",
                             (int)cudaEventRecord(r->join, r->stream));
}

spops_status spops_cuda_comm_nccl_begin(spops_context *ctx, const spops_comm_nccl_args *args)
{
    spops_comm *comm = args->comm;
    const spops_comm_meeting *meeting = args->meeting;
    nccl_rank *r = comm->state;

    SPOPS_TRY(check_whole(ctx, meeting->call, r));
    if (meeting->refused != SPOPS_STATUS_OK) return meeting->refused; // nobody else hears of it
    if (meeting->kind >= SPOPS_COMM_GATHER) return gather_values(ctx, comm, meeting);
    if (meeting->is_beside) return begin_beside(ctx, meeting->call, comm);
    return enqueue_group(ctx, meeting->call, comm, r, (cudaStream_t)ctx->stream);
}

spops_status spops_cuda_comm_nccl_end(spops_context *ctx, const spops_comm_nccl_args *args)
{
    const nccl_rank *r = args->comm->state;

    SPOPS_TRY(check_whole(ctx, args->meeting->call, r));
    if (!args->meeting->is_beside) return SPOPS_STATUS_OK;
    return spops_cuda_status(ctx, "comm: cudaStreamWaitEvent",
                             (int)cudaStreamWaitEvent((cudaStream_t)ctx->stream, r->join, 0));
}

spops_status spops_cuda_comm_nccl_wait(spops_context *ctx, const spops_comm_nccl_args *args)
{
    nccl_rank *r = args->comm->state;

    SPOPS_TRY(check_whole(ctx, args->call, r));
    return await_stream(ctx, args->call, args->comm, r, (cudaStream_t)ctx->stream);
}

// ---- Opening and closing ------------------------------------------------------------------------

// Waits for nothing: where a rank has stopped, kernels may wait for it for ever.
static void close_rank(spops_context *ctx, nccl_rank *r)
{
    if (r->is_owned && r->comm != NULL) (void)nccl.abort(r->comm);
    spops_backend_free(ctx, r->staging, r->staging_bytes);
    if (r->fork != NULL) (void)cudaEventDestroy(r->fork);
    if (r->join != NULL) (void)cudaEventDestroy(r->join);
    if (r->done != NULL) (void)cudaEventDestroy(r->done);
    if (r->stream != NULL) (void)cudaStreamDestroy(r->stream);
    spops_host_free(ctx, r, 1, sizeof *r);
}

// NCCL's own way to end waits for the other ranks, which may have stopped; an abort after the work is
// done does not.
spops_status spops_cuda_comm_nccl_close(spops_context *ctx, const spops_comm_nccl_args *args)
{
    nccl_rank *r = args->comm->state;

    if (!r->broken) {
        spops_log_forgive(1);
        if (await_stream(ctx, args->call, args->comm, r, (cudaStream_t)ctx->stream) ==
            SPOPS_STATUS_OK)
            (void)await_stream(ctx, args->call, args->comm, r, r->stream);
        spops_log_forgive(-1);
    }
    close_rank(ctx, r);
    return SPOPS_STATUS_OK;
}

static spops_status make_streams(spops_context *ctx, const spops_comm *comm, nccl_rank *r)
{
    static const char what[] = "comm_create: cudaEventCreateWithFlags";
    const unsigned flags = cudaEventDisableTiming;

    SPOPS_TRY(spops_cuda_status(ctx, "comm_create: cudaStreamCreateWithFlags",
                                (int)cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking)));
    SPOPS_TRY(spops_cuda_status(ctx, what, (int)cudaEventCreateWithFlags(&r->fork, flags)));
    SPOPS_TRY(spops_cuda_status(ctx, what, (int)cudaEventCreateWithFlags(&r->join, flags)));
    SPOPS_TRY(spops_cuda_status(ctx, what, (int)cudaEventCreateWithFlags(&r->done, flags)));
    r->staging_bytes = (size_t)(comm->num_ranks + 1) * SLOT_BYTES;
    SPOPS_TRY(spops_backend_alloc(ctx, r->staging_bytes, (void **)&r->staging));
    SPOPS_TRY(ctx->backend->fill_zero(ctx, r->staging, r->staging_bytes));
    return ctx->backend->wait(ctx); // the rank's own stream uses it as well
}

// Without blocking, so that a rank that never comes ends in an error.
static spops_status open_comm(spops_context *ctx, const spops_comm_nccl_args *args, nccl_rank *r)
{
    const spops_comm *comm = args->comm;
    nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    const double begin = now_ms();
    nccl_id id;
    int error;

    memcpy(id.bytes, args->id, sizeof id.bytes);
    error = nccl.init_rank(&r->comm, comm->num_ranks, id, comm->rank, &config);
    r->is_owned = true;
    if (error != NCCL_OK && error != NCCL_IN_PROGRESS)
        return break_rank(ctx, args->call, r, "NCCL: %s", nccl.error_text(error));
    return await_nccl(ctx, args->call, comm, r, begin);
}

// The first meeting connects all ranks with all, so that no later one has to.
spops_status spops_cuda_comm_nccl_open(spops_context *ctx, const spops_comm_nccl_args *args)
{
    const spops_comm_meeting meeting = {
        .call = args->call, .kind = SPOPS_COMM_BARRIER, .refused = SPOPS_STATUS_OK};
    spops_status status = SPOPS_STATUS_OK;
    nccl_rank *r;

    SPOPS_TRY(need_nccl(ctx, args->call));
    r = spops_host_alloc(ctx, 1, sizeof *r);
    if (r == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY_GOTO(make_streams(ctx, args->comm, r), status, fail);
    r->comm = args->given;
    if (args->given == NULL) SPOPS_TRY_GOTO(open_comm(ctx, args, r), status, fail);
    args->comm->state = r;
    SPOPS_TRY_GOTO(gather_values(ctx, args->comm, &meeting), status, fail);
    return SPOPS_STATUS_OK;

fail:
    args->comm->state = NULL;
    close_rank(ctx, r);
    return status;
}

static spops_status nccl_status(spops_context *ctx, const char *call, const char *what, int error)
{
    if (error == NCCL_OK) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_COMM_BROKEN, "%s: %s: %s", call, what,
                      nccl.error_text(error));
}

spops_status spops_cuda_comm_nccl_ask(spops_context *ctx, const spops_comm_nccl_ask_args *args)
{
    const char *call = args->call;
    int rank = 0, num_ranks = 0, device = 0;

    SPOPS_TRY(need_nccl(ctx, call));
    if (args->given == NULL) {
        nccl_id id;
        SPOPS_TRY(nccl_status(ctx, call, "ncclGetUniqueId", nccl.get_unique_id(&id)));
        memcpy(args->id, id.bytes, sizeof id.bytes);
        return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(nccl_status(ctx, call, "ncclCommCount", nccl.count(args->given, &num_ranks)));
    SPOPS_TRY(nccl_status(ctx, call, "ncclCommUserRank", nccl.user_rank(args->given, &rank)));
    SPOPS_TRY(nccl_status(ctx, call, "ncclCommCuDevice", nccl.cu_device(args->given, &device)));
    SPOPS_REQUIRE(ctx, device == ctx->info.device,
                  "%s: nccl_comm is on device %d, ctx runs on device %" PRId32, call, device,
                  ctx->info.device);
    *args->rank = rank;
    *args->num_ranks = num_ranks;
    return SPOPS_STATUS_OK;
}
