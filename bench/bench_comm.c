// SPDX-License-Identifier: Apache-2.0
// Communicators: exchanges of equal rows between two or more ranks, and sums of parts. On CUDA the ranks
// have a device each, with NCCL and with copies of threads; two ranks share the device where there is
// one, without NCCL. A sample is some runs back to back, from a common start until the stream of the rank
// is done.
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "bench/bench_report.h"

enum { MAX_RANKS = 8, MAX_SAMPLES = 200, NUM_PARTS = 8 };

typedef struct comm_job {
    bench *b;
    bool is_nccl, is_sum;
    int32_t num_ranks;
    int64_t elements; // f32 that a rank sends each other one; of a sum, columns
    int inner, num_samples;
    spops_comm_group *group;
    uint8_t id[SPOPS_COMM_NCCL_ID_BYTES];
    double samples_us[MAX_SAMPLES];
} comm_job;

typedef struct comm_rank {
    comm_job *job;
    int32_t rank;
    pthread_t thread;
    spops_context *ctx;
    spops_comm *comm;
    void *stream, *from, *to;
    int64_t counts[MAX_RANKS], offsets[MAX_RANKS], parts[MAX_RANKS + 1];
    char failure[256]; // "" or why
} comm_rank;

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static bool went(comm_rank *r, spops_status status)
{
    if (status == SPOPS_STATUS_OK) return true;
    if (r->failure[0] == '\0')
        snprintf(r->failure, sizeof r->failure, "%s", spops_last_error(r->ctx));
    return false;
}

static bool open_rank(comm_rank *r)
{
    comm_job *j = r->job;
    const spops_backend_kind backend = j->b->backend;
    spops_context_options options = spops_context_options_default();
    const size_t bytes =
        (size_t)j->elements * sizeof(float) * (size_t)(j->is_sum ? NUM_PARTS : j->num_ranks);

    options.backend = backend;
    options.num_threads = j->b->options.num_threads;
    options.device = backend == SPOPS_BACKEND_CUDA ? r->rank % device_count() : 0;
    if ((backend == SPOPS_BACKEND_CUDA && !device_use(options.device)) ||
        !device_stream_create(backend, &r->stream) || !device_alloc(backend, bytes, &r->from) ||
        !device_alloc(backend, bytes, &r->to) || !device_fill(backend, r->from, 0, bytes)) {
        snprintf(r->failure, sizeof r->failure, "%s", device_error());
        return false;
    }
    options.stream = r->stream;
    if (spops_context_create(&options, &r->ctx) != SPOPS_STATUS_OK)
        return went(r, SPOPS_STATUS_CUDA);
    if (j->is_nccl &&
        !went(r, spops_comm_create_nccl_id(r->ctx, j->id, j->num_ranks, r->rank, NULL, &r->comm)))
        return false;
    if (!j->is_nccl &&
        !went(r, spops_comm_create_threads(r->ctx, j->group, r->rank, NULL, &r->comm)))
        return false;
    for (int32_t o = 0; o < j->num_ranks; ++o) {
        r->counts[o] = o == r->rank ? 0 : j->elements / 64;
        r->offsets[o] = o * (j->elements / 64);
        r->parts[o + 1] = NUM_PARTS * (o + 1) / j->num_ranks;
    }
    return went(r, spops_context_reserve(r->ctx, spops_comm_sum_scratch_bytes(r->comm, NUM_PARTS,
                                                                              j->elements,
                                                                              SPOPS_DTYPE_F32)));
}

static spops_status enqueue(const comm_rank *r)
{
    const comm_job *j = r->job;
    const spops_comm_layout layout = {r->counts, r->offsets, r->counts, r->offsets};
    const int64_t rows = j->num_ranks * (j->elements / 64),
                  own = r->parts[r->rank + 1] - r->parts[r->rank];
    if (j->is_sum)
        return spops_comm_sum_execute(
            r->ctx, r->comm, r->parts,
            spops_matrix_dense(r->from, own, j->elements, SPOPS_DTYPE_F32),
            spops_matrix_dense(r->to, 1, j->elements, SPOPS_DTYPE_F32));
    return spops_comm_exchange_execute(r->ctx, r->comm, &layout,
                                       spops_matrix_dense(r->from, rows, 64, SPOPS_DTYPE_F32),
                                       spops_matrix_dense(r->to, rows, 64, SPOPS_DTYPE_F32));
}

static void *run_rank(void *argument)
{
    comm_rank *r = argument;
    comm_job *j = r->job;
    bool good = open_rank(r);

    for (int s = -2; s < j->num_samples && good; ++s) { // two to warm up
        good = went(r, spops_comm_barrier_sync(r->ctx, r->comm));
        const double begin = now_us();
        for (int i = 0; i < j->inner && good; ++i)
            good = went(r, enqueue(r));
        good = good && went(r, spops_comm_wait_sync(r->ctx, r->comm));
        if (s >= 0 && r->rank == 0) j->samples_us[s] = (now_us() - begin) / j->inner;
    }
    spops_comm_destroy(r->comm);
    spops_context_destroy(r->ctx);
    device_free(j->b->backend, r->from);
    device_free(j->b->backend, r->to);
    device_stream_destroy(j->b->backend, r->stream);
    return NULL;
}

static bool run_ranks(comm_job *j)
{
    comm_rank ranks[MAX_RANKS] = {{0}};
    bool good = bench_check(j->b, "group", spops_comm_group_create(j->num_ranks, &j->group));
    int started = 0;

    if (good && j->is_nccl)
        good = bench_check(j->b, "NCCL", spops_comm_get_nccl_id(j->b->ctx, j->id));
    for (; good && started < j->num_ranks; ++started) {
        ranks[started].job = j;
        ranks[started].rank = started;
        if (pthread_create(&ranks[started].thread, NULL, run_rank, &ranks[started]) != 0) {
            good = bench_fail(j->b, "no thread for rank %d", started);
            break;
        }
    }
    for (int i = 0; i < started; ++i)
        (void)pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < started; ++i)
        if (ranks[i].failure[0] != '\0')
            good = bench_fail(j->b, "comm: rank %d: %s", i, ranks[i].failure);
    spops_comm_group_destroy(j->group);
    j->group = NULL;
    return good;
}

static void measure(bench *b, bool is_sum, int64_t bytes)
{
    const int32_t devices = b->backend == SPOPS_BACKEND_CUDA ? device_count() : 1;
    comm_job j = {.b = b, .is_sum = is_sum, .elements = bytes / 4};
    bench_case c = {.suite = "comm", .dtype = SPOPS_DTYPE_F32};

    j.num_ranks = devices < 2 ? 2 : devices < MAX_RANKS ? devices : MAX_RANKS;
    j.num_samples = b->options.num_samples < MAX_SAMPLES ? b->options.num_samples : MAX_SAMPLES;
    j.inner = bytes >= 16 << 20 ? 4 : 20;
    snprintf(c.name, sizeof c.name, "%s %lld KiB", is_sum ? "sum" : "exchange",
             (long long)(bytes / 1024));
    snprintf(c.what, sizeof c.what, "%d ranks, devices: %d, %s", (int)j.num_ranks, (int)devices,
             is_sum ? "8 parts" : "each to each");
    bench_case_note(&c, "ranks", j.num_ranks);
    bench_case_note(&c, "devices", devices);
    bench_case_note(&c, "bytes_to_each", bytes);
    const bool has_nccl =
        devices >= 2 && spops_comm_get_nccl_id(b->ctx, j.id) != SPOPS_STATUS_NOT_SUPPORTED;
    for (int kind = has_nccl ? 0 : 1; kind < 2; ++kind) {
        j.is_nccl = kind == 0;
        bench_progress("comm %s: %s", c.name, j.is_nccl ? "nccl" : "threads");
        if (!run_ranks(&j)) return;
        bench_variant *v = bench_case_add(&c, j.is_nccl ? "nccl" : "threads", false);
        v->has[BENCH_HOT] = true;
        device_summarize(j.samples_us, j.num_samples, &v->timing[BENCH_HOT]);
    }
    bench_case_print(b, &c);
}

static void run_suite(bench *b)
{
    static const int64_t kib[] = {64, 1024, 16 * 1024, 256 * 1024};
    const int num = b->options.quick ? 1 : 4;
    for (int i = 0; i < num; ++i)
        measure(b, false, kib[i] * 1024);
    measure(b, true,
            27 * 256 * 256 * 4 / (b->options.quick ? 27 : 1)); // of a convolution's weights
}

const bench_suite bench_suite_comm = {.name = "comm", .run = run_suite};
