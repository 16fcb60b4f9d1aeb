// SPDX-License-Identifier: Apache-2.0
// Communicators of ranks that are threads: what arrives, for random and skewed counts and ranks without
// rows; failures of one rank on all; ranks that stop, leave or do not come.
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/random.h"
#include "tests/support/ranks.h"

// NCCL_STOPS_MS: of ranks over NCCL, which take a second to come, and longer beside other programs.
enum { LONG_MS = 60000, SHORT_MS = 300, NCCL_STOPS_MS = 8000, MAX_RANKS = 8 };

static const int32_t rank_counts[] = {1, 2, 3, 8};

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- Exchange -----------------------------------------------------------------------------------

// Rows from each rank to each, drawn alike by all: skew 0 even, 1 most at one rank, 2 many empty.
typedef struct exchange_case {
    int32_t num_ranks, skew, cols;
    spops_dtype dtype;
    bool in_two_calls;
    uint64_t seed;
} exchange_case;

static int64_t drawn_count(const exchange_case *c, int32_t from, int32_t to)
{
    test_rng rng = test_rng_make(c->seed + (uint64_t)from * 64 + (uint64_t)to);
    if (c->skew == 1) return from == 0 ? 200 + test_rng_below(&rng, 100) : test_rng_below(&rng, 2);
    if (c->skew == 2) return from == 1 || to == 0 ? 0 : test_rng_below(&rng, 9);
    return test_rng_below(&rng, 40);
}

// Byte b of row i that goes from one rank to another.
static unsigned char drawn_byte(const exchange_case *c, int32_t from, int32_t to, int64_t i,
                                int64_t b)
{
    return (unsigned char)(c->seed * 7 + (uint64_t)from * 101 + (uint64_t)to * 53 +
                           (uint64_t)i * 31 + (uint64_t)b * 17);
}

typedef struct exchange_rows {
    int64_t send_counts[MAX_RANKS], send_offsets[MAX_RANKS];
    int64_t recv_counts[MAX_RANKS], recv_offsets[MAX_RANKS];
    int64_t sent, received; // rows with the gaps between ranges
} exchange_rows;

// Ranges with a row between them; those sent in descending order of ranks.
static exchange_rows draw_rows(const exchange_case *c, int32_t rank)
{
    exchange_rows x = {.sent = 1, .received = 1};
    for (int32_t r = c->num_ranks - 1; r >= 0; --r) {
        x.send_counts[r] = drawn_count(c, rank, r);
        x.send_offsets[r] = x.sent;
        x.sent += x.send_counts[r] + 1;
    }
    for (int32_t r = 0; r < c->num_ranks; ++r) {
        x.recv_counts[r] = drawn_count(c, r, rank);
        x.recv_offsets[r] = x.received;
        x.received += x.recv_counts[r] + 1;
    }
    return x;
}

static void exchange_once(test_rank *r, const exchange_case *c)
{
    const exchange_rows x = draw_rows(c, r->rank);
    const spops_comm_layout layout = {x.send_counts, x.send_offsets, x.recv_counts, x.recv_offsets};
    const int64_t row = c->cols * (int64_t)spops_dtype_bytes(c->dtype);
    const size_t sent = (size_t)(x.sent * row), received = (size_t)(x.received * row);
    unsigned char *host = malloc(sent), *back = malloc(received), *expected = malloc(received);
    void *send = NULL, *recv = NULL;
    const spops_backend_kind b = r->device.backend;

    memset(host, 0xee, sent);
    memset(expected, 0x5a, received);
    for (int32_t o = 0; o < c->num_ranks; ++o) {
        for (int64_t i = 0; i < x.send_counts[o] * row; ++i)
            host[x.send_offsets[o] * row + i] = drawn_byte(c, r->rank, o, i / row, i % row);
        for (int64_t i = 0; i < x.recv_counts[o] * row; ++i)
            expected[x.recv_offsets[o] * row + i] = drawn_byte(c, o, r->rank, i / row, i % row);
    }
    RANK_CHECK(r, device_alloc(b, sent, &send) && device_alloc(b, received, &recv), "memory");
    RANK_CHECK(r, device_upload(b, send, host, sent) && device_fill(b, recv, 0x5a, received), "%s",
               device_error());
    const int64_t requests = r->device.memory.requests;
    const spops_matrix s = spops_matrix_dense(send, x.sent, c->cols, c->dtype),
                       t = spops_matrix_dense(recv, x.received, c->cols, c->dtype);
    if (c->in_two_calls) {
        RANK_OK(r, spops_comm_exchange_begin(r->ctx, r->comm, &layout, s, t));
        RANK_OK(r, spops_comm_exchange_end(r->ctx, r->comm));
    } else {
        RANK_OK(r, spops_comm_exchange_execute(r->ctx, r->comm, &layout, s, t));
    }
    RANK_CHECK(r, r->device.memory.requests == requests, "the exchange asked for memory");
    // What was sent may change as soon as the stream gets there.
    RANK_CHECK(r, spops_context_wait_sync(r->ctx) == SPOPS_STATUS_OK, "wait");
    RANK_CHECK(r, device_fill(b, send, 0x11, sent) && device_download(b, back, recv, received),
               "%s", device_error());
    for (size_t i = 0; i < received; ++i)
        RANK_CHECK(r, back[i] == expected[i], "byte %zu is %d, expected %d", i, back[i],
                   expected[i]);
    device_free(b, send);
    device_free(b, recv);
    free(host), free(back), free(expected);
}

static void exchange_rank(test_rank *r)
{
    static const spops_dtype dtypes[] = {SPOPS_DTYPE_F32, SPOPS_DTYPE_BF16, SPOPS_DTYPE_I8,
                                         SPOPS_DTYPE_I64};
    for (int32_t skew = 0; skew < 3; ++skew)
        for (int k = 0; k < 4; ++k) {
            const exchange_case c = {
                r->num_ranks, skew,
                1 + 6 * k,    dtypes[k],
                k % 2 == 1,   100 * (uint64_t)r->num_ranks + 10 * (uint64_t)skew + (uint64_t)k};
            exchange_once(r, &c);
            if (r->failure[0] != '\0') return;
        }
}

CaseTest(comm, exchange_brings_every_row, every_ranks())
{
    for (size_t n = 0; n < sizeof rank_counts / sizeof *rank_counts; ++n)
        (void)test_ranks_run_as((test_ranks)p->op, rank_counts[n], LONG_MS, exchange_rank, NULL);
}

// Many after another, without a pause: the place of a rank is not written while others read it.
static void many_exchanges(test_rank *r)
{
    int64_t counts[MAX_RANKS], offsets[MAX_RANKS];
    int32_t send[MAX_RANKS], recv[MAX_RANKS];
    const spops_comm_layout layout = {counts, offsets, counts, offsets};

    for (int32_t i = 0; i < r->num_ranks; ++i)
        counts[i] = 1, offsets[i] = i;
    for (int32_t round = 0; round < 500; ++round) {
        for (int32_t i = 0; i < r->num_ranks; ++i)
            send[i] = round * 100 + r->rank * 10 + i, recv[i] = -1;
        RANK_OK(r, spops_comm_exchange_execute(
                       r->ctx, r->comm, &layout,
                       spops_matrix_dense(send, r->num_ranks, 1, SPOPS_DTYPE_I32),
                       spops_matrix_dense(recv, r->num_ranks, 1, SPOPS_DTYPE_I32)));
        for (int32_t i = 0; i < r->num_ranks; ++i)
            RANK_CHECK(r, recv[i] == round * 100 + i * 10 + r->rank, "round %d: %d of rank %d",
                       (int)round, (int)recv[i], (int)i);
    }
}

Test(comm, exchanges_follow_each_other)
{
    for (size_t n = 0; n < sizeof rank_counts / sizeof *rank_counts; ++n)
        (void)test_ranks_run(SPOPS_BACKEND_CPU, rank_counts[n], LONG_MS, many_exchanges, NULL);
}

// ---- Broadcast and sum --------------------------------------------------------------------------

static void broadcast_rank(test_rank *r)
{
    const spops_backend_kind b = r->device.backend;
    enum { ROWS = 37, COLS = 5 };
    float host[ROWS * COLS], back[ROWS * COLS];
    void *rows = NULL;

    RANK_CHECK(r, device_alloc(b, sizeof host, &rows), "memory");
    for (int32_t root = 0; root < r->num_ranks; ++root) {
        for (int i = 0; i < ROWS * COLS; ++i)
            host[i] = (float)(r->rank * 1000 + root * 500 + i);
        RANK_CHECK(r, device_upload(b, rows, host, sizeof host), "%s", device_error());
        RANK_OK(
            r, spops_comm_broadcast_execute(r->ctx, r->comm, root,
                                            spops_matrix_dense(rows, ROWS, COLS, SPOPS_DTYPE_F32)));
        RANK_OK(r, spops_comm_wait_sync(r->ctx, r->comm));
        RANK_CHECK(r, device_download(b, back, rows, sizeof back), "%s", device_error());
        for (int i = 0; i < ROWS * COLS; ++i)
            RANK_CHECK(r, back[i] == (float)(root * 1500 + i), "root %d: element %d is %g",
                       (int)root, i, (double)back[i]);
    }
    device_free(b, rows);
}

CaseTest(comm, broadcasts_rows, every_ranks())
{
    for (size_t n = 0; n < sizeof rank_counts / sizeof *rank_counts; ++n)
        (void)test_ranks_run_as((test_ranks)p->op, rank_counts[n], LONG_MS, broadcast_rank, NULL);
}

// num_parts parts of cols columns, dealt to the ranks evenly, or all but one to the last.
typedef struct sum_case {
    int64_t num_parts, cols;
    spops_dtype dtype;
    bool skewed;
    unsigned char *first; // what the first run gave: all others must have the same bits
} sum_case;

// Numbers of all sizes, so that another order has other bits.
static double part_element(int64_t part, int64_t c)
{
    test_rng rng = test_rng_make(7000 + (uint64_t)part * 100003 + (uint64_t)c);
    const double v = test_rng_unit(&rng) - 0.5;
    return v * (double)((int64_t)1 << test_rng_below(&rng, 20));
}

static void put(spops_dtype dtype, void *array, int64_t i, double v)
{
    if (dtype == SPOPS_DTYPE_F64)
        ((double *)array)[i] = v;
    else
        ((float *)array)[i] = (float)v;
}

static void sum_once(test_rank *r, const sum_case *s)
{
    const spops_backend_kind b = r->device.backend;
    const size_t element = spops_dtype_bytes(s->dtype), bytes = (size_t)s->cols * element;
    const int64_t padded = s->cols + 3;
    int64_t offsets[MAX_RANKS + 1] = {0};
    void *parts = NULL, *out = NULL;

    for (int32_t i = 0; i < r->num_ranks; ++i)
        offsets[i + 1] = s->skewed && i + 1 < r->num_ranks ? (s->num_parts > 0)
                                                           : s->num_parts * (i + 1) / r->num_ranks;
    const int64_t first = offsets[r->rank], own = offsets[r->rank + 1] - first;
    unsigned char *host = calloc((size_t)(own * padded) + 1, element), *back = malloc(bytes);
    for (int64_t p = 0; p < own; ++p)
        for (int64_t c = 0; c < s->cols; ++c)
            put(s->dtype, host, p * padded + c, part_element(first + p, c));
    RANK_CHECK(r,
               device_alloc(b, (size_t)(own * padded) * element, &parts) &&
                   device_alloc(b, bytes, &out),
               "memory");
    RANK_CHECK(r,
               device_upload(b, parts, host, (size_t)(own * padded) * element) &&
                   device_fill(b, out, 0x77, bytes),
               "%s", device_error());
    spops_matrix m = spops_matrix_dense(parts, own, s->cols, s->dtype);
    m.row_stride = padded;
    RANK_OK(r, spops_context_reserve(
                   r->ctx, spops_comm_sum_scratch_bytes(r->comm, s->num_parts, s->cols, s->dtype)));
    const int64_t requests = r->device.memory.requests;
    RANK_OK(r, spops_comm_sum_execute(r->ctx, r->comm, offsets, m,
                                      spops_matrix_dense(out, 1, s->cols, s->dtype)));
    RANK_CHECK(r, r->device.memory.requests == requests, "the sum asked for memory");
    RANK_OK(r, spops_comm_wait_sync(r->ctx, r->comm));
    RANK_CHECK(r, device_download(b, back, out, bytes), "%s", device_error());
    RANK_CHECK(r, memcmp(back, s->first, bytes) == 0, "%d parts of %d columns: other bits",
               (int)s->num_parts, (int)s->cols);
    device_free(b, parts), device_free(b, out);
    free(host), free(back);
}

// The order of the contract, written down.
static unsigned char *sum_in_order(const sum_case *s)
{
    unsigned char *sums = calloc((size_t)s->cols + 1, spops_dtype_bytes(s->dtype));
    for (int64_t c = 0; c < s->cols; ++c) {
        volatile float f = 0.0f;
        volatile double d = 0.0;
        for (int64_t p = 0; p < s->num_parts; ++p) {
            f = p == 0 ? (float)part_element(p, c) : f + (float)part_element(p, c);
            d = p == 0 ? part_element(p, c) : d + part_element(p, c);
        }
        put(s->dtype, sums, c, s->dtype == SPOPS_DTYPE_F64 ? d : f);
    }
    return sums;
}

static void sum_rank(test_rank *r)
{
    static const int64_t parts[] = {8, 0, 1, 3, 29}, cols[] = {1, 64, 200, 515, 4099};
    for (int k = 0; k < 5; ++k)
        for (int j = 0; j < 5; ++j) {
            sum_case s = {parts[k], cols[j], SPOPS_DTYPE_F32, (k + j) % 2 == 1, NULL};
            if (r->kind == RANKS_CPU && j % 2 == 1) s.dtype = SPOPS_DTYPE_F64;
            s.first = sum_in_order(&s);
            sum_once(r, &s);
            free(s.first);
            if (r->failure[0] != '\0') return;
        }
}

CaseTest(comm, sums_have_the_bits_of_one_rank, every_ranks())
{
    for (size_t n = 0; n < sizeof rank_counts / sizeof *rank_counts; ++n)
        (void)test_ranks_run_as((test_ranks)p->op, rank_counts[n], LONG_MS, sum_rank, NULL);
}

// ---- Graphs -------------------------------------------------------------------------------------

// Each rank sends each one row. With NCCL the exchange, in one call and in two, is captured once and
// replayed with other rows; ranks that are threads refuse.
typedef struct graph_rows {
    int64_t counts[MAX_RANKS], offsets[MAX_RANKS];
    int32_t host[MAX_RANKS * 4];
    void *send, *recv, *beside; // [num_ranks, 4] each
} graph_rows;

static spops_status enqueue_exchanges(test_rank *r, const graph_rows *g)
{
    const spops_comm_layout l = {g->counts, g->offsets, g->counts, g->offsets};
    const spops_matrix s = spops_matrix_dense(g->send, r->num_ranks, 4, SPOPS_DTYPE_I32),
                       t = spops_matrix_dense(g->recv, r->num_ranks, 4, SPOPS_DTYPE_I32),
                       u = spops_matrix_dense(g->beside, r->num_ranks, 4, SPOPS_DTYPE_I32);
    spops_status status = spops_comm_exchange_execute(r->ctx, r->comm, &l, s, t);
    if (status == SPOPS_STATUS_OK) status = spops_comm_exchange_begin(r->ctx, r->comm, &l, s, u);
    if (status == SPOPS_STATUS_OK) status = spops_comm_exchange_end(r->ctx, r->comm);
    return status;
}

static void check_row(test_rank *r, const graph_rows *g, const void *from, int32_t version)
{
    int32_t back[MAX_RANKS * 4];
    const size_t bytes = (size_t)r->num_ranks * 4 * sizeof *g->host;
    RANK_CHECK(r, device_download(r->device.backend, back, from, bytes), "%s", device_error());
    for (int32_t i = 0; i < r->num_ranks * 4; ++i)
        RANK_CHECK(r, back[i] == 10000 * version + 100 * (i / 4) + 4 * r->rank + i % 4,
                   "version %d, element %d: %d", (int)version, (int)i, (int)back[i]);
}

// Exchanges that are captured, not run; NULL where the test failed.
static device_graph *capture_exchanges(test_rank *r, graph_rows *g, spops_status *status)
{
    const spops_backend_kind b = r->device.backend;
    const size_t bytes = (size_t)r->num_ranks * 4 * sizeof(int32_t);
    device_graph *graph = NULL;

    for (int32_t i = 0; i < r->num_ranks; ++i)
        g->counts[i] = 1, g->offsets[i] = i;
    if (!device_alloc(b, bytes, &g->send) || !device_alloc(b, bytes, &g->recv) ||
        !device_alloc(b, bytes, &g->beside))
        test_rank_fail(r, "memory");
    // Nobody allocates beside a capture.
    if (spops_comm_barrier_sync(r->ctx, r->comm) != SPOPS_STATUS_OK)
        test_rank_fail(r, "%s", spops_last_error(r->ctx));
    if (r->failure[0] != '\0') return NULL;
    if (!device_capture_begin(r->device.stream)) {
        test_rank_fail(r, "%s", device_error());
        return NULL;
    }
    *status = enqueue_exchanges(r, g);
    if (!device_capture_end(r->device.stream, &graph)) test_rank_fail(r, "%s", device_error());
    return graph;
}

static void free_rows(const test_rank *r, graph_rows *g, device_graph *graph)
{
    const spops_backend_kind b = r->device.backend;
    device_graph_destroy(graph);
    device_free(b, g->send), device_free(b, g->recv), device_free(b, g->beside);
}

static void graph_rank(test_rank *r)
{
    const spops_backend_kind b = r->device.backend;
    const size_t bytes = (size_t)r->num_ranks * 4 * sizeof(int32_t);
    spops_status status = SPOPS_STATUS_OK;
    graph_rows g = {.send = NULL};
    device_graph *graph = capture_exchanges(r, &g, &status);

    if (r->failure[0] != '\0') return;
    RANK_OK(r, spops_comm_barrier_sync(r->ctx, r->comm));
    if (r->kind == RANKS_CUDA) {
        RANK_CHECK(r, status == SPOPS_STATUS_NOT_SUPPORTED, "%s", spops_status_name(status));
        RANK_CHECK(r, strstr(spops_last_error(r->ctx), "being captured") != NULL, "%s",
                   spops_last_error(r->ctx));
    } else {
        RANK_CHECK(r, status == SPOPS_STATUS_OK, "%s", spops_last_error(r->ctx));
    }
    for (int32_t version = 0; version < 3 && r->kind != RANKS_CUDA; ++version) {
        for (int32_t i = 0; i < r->num_ranks * 4; ++i)
            g.host[i] = 10000 * version + 100 * r->rank + i;
        RANK_CHECK(r,
                   device_upload(b, g.send, g.host, bytes) && device_fill(b, g.recv, 9, bytes) &&
                       device_fill(b, g.beside, 9, bytes),
                   "%s", device_error());
        RANK_CHECK(r, device_graph_launch(graph, r->device.stream), "%s", device_error());
        RANK_OK(r, spops_comm_wait_sync(r->ctx, r->comm));
        check_row(r, &g, g.recv, version);
        check_row(r, &g, g.beside, version);
    }
    RANK_OK(r, spops_comm_barrier_sync(r->ctx, r->comm));
    free_rows(r, &g, graph);
}

CaseTest(comm, exchanges_in_graphs, every_ranks())
{
    if (p->op == RANKS_CPU) return; // no graphs there
    for (int32_t n = 1; n <= MAX_RANKS; n *= 2)
        (void)test_ranks_run_as((test_ranks)p->op, n, LONG_MS, graph_rank, NULL);
}

// ---- Host values --------------------------------------------------------------------------------

static void gather_rank(test_rank *r)
{
    static const size_t sizes[] = {0, 1, 24, SPOPS_COMM_MAX_VALUE_BYTES};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
        const size_t bytes = sizes[s];
        unsigned char *value = malloc(bytes + 1),
                      *values = malloc(bytes * (size_t)r->num_ranks + 1);
        for (size_t i = 0; i < bytes; ++i)
            value[i] = (unsigned char)((size_t)r->rank * 37 + i * 11);
        values[bytes * (size_t)r->num_ranks] = 0x5a;
        RANK_OK(r, spops_comm_gather_sync(r->ctx, r->comm, value, bytes, values));
        for (int32_t o = 0; o < r->num_ranks; ++o)
            for (size_t i = 0; i < bytes; ++i)
                RANK_CHECK(
                    r, values[(size_t)o * bytes + i] == (unsigned char)((size_t)o * 37 + i * 11),
                    "byte %zu of rank %d", i, (int)o);
        RANK_CHECK(r, values[bytes * (size_t)r->num_ranks] == 0x5a, "it wrote behind values");
        free(value), free(values);
        RANK_OK(r, spops_comm_barrier_sync(r->ctx, r->comm));
    }
    RANK_CHECK(r, spops_comm_rank(r->comm) == r->rank, "rank");
    RANK_CHECK(r, spops_comm_num_ranks(r->comm) == r->num_ranks, "num_ranks");
}

CaseTest(comm, gathers_values, every_ranks())
{
    for (size_t n = 0; n < sizeof rank_counts / sizeof *rank_counts; ++n)
        (void)test_ranks_run_as((test_ranks)p->op, rank_counts[n], LONG_MS, gather_rank, NULL);
}

// ---- One rank's failure is one of all -----------------------------------------------------------

static void agree_rank(test_rank *r)
{
    spops_status own = SPOPS_STATUS_OK;

    RANK_OK(r, spops_comm_agree_sync(r->ctx, r->comm, SPOPS_STATUS_OK));
    if (r->rank >= 1) own = spops_context_get_device_info(r->ctx, NULL);
    test_rank_expect(r, spops_comm_agree_sync(r->ctx, r->comm, own), SPOPS_STATUS_INVALID_ARGUMENT,
                     "comm_agree_sync: rank 1: context_get_device_info: info is NULL");
    RANK_OK(r, spops_comm_agree_sync(r->ctx, r->comm, SPOPS_STATUS_OK)); // it is whole
}

CaseTest(comm, a_failure_of_one_is_agreed, every_ranks())
{
    for (size_t n = 1; n < sizeof rank_counts / sizeof *rank_counts; ++n)
        (void)test_ranks_run_as((test_ranks)p->op, rank_counts[n], LONG_MS, agree_rank, NULL);
}

// Rank 1 is refused by its arguments: the others hear of it, nothing is written, and the next call is good.
static void refused_rank(test_rank *r)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    int64_t ones[3] = {1, 1, 1}, places[3] = {0, 1, 2}, bad[3] = {0, 1, 3};
    int32_t send[3], recv[3] = {-1, -1, -1}, value = r->rank, values[3] = {-1, -1, -1};
    const spops_comm_layout good = {ones, places, ones, places}, wrong = {ones, bad, ones, places};
    const spops_matrix s = spops_matrix_dense(send, 3, 1, SPOPS_DTYPE_I32),
                       t = spops_matrix_dense(recv, 3, 1, SPOPS_DTYPE_I32);
    const char *detail = "layout.send_offsets[2] is 3, expected 0 to 2";
    char text[3][128];

    snprintf(text[0], sizeof text[0], "comm_exchange_execute: %s%s",
             r->rank == 1 ? "" : "rank 1: ", detail);
    snprintf(text[1], sizeof text[1], "comm_exchange_begin: %s", detail);
    snprintf(text[2], sizeof text[2], "comm_exchange_end: rank 1: %s", detail);
    for (int32_t i = 0; i < 3; ++i)
        send[i] = 10 * r->rank + i;
    for (int again = 0; again < 2; ++again) {
        const spops_comm_layout *l = r->rank == 1 ? &wrong : &good;
        test_rank_expect(r, spops_comm_exchange_execute(r->ctx, r->comm, l, s, t), invalid,
                         text[0]);
        // Rank 1 comes to no end, because its begin was refused.
        const spops_status begun = spops_comm_exchange_begin(r->ctx, r->comm, l, s, t);
        if (r->rank == 1)
            test_rank_expect(r, begun, invalid, text[1]);
        else
            test_rank_expect(r, spops_comm_exchange_end(r->ctx, r->comm), invalid, text[2]);
    }
    test_rank_expect(
        r,
        spops_comm_gather_sync(r->ctx, r->comm, &value, r->rank == 2 ? 5000 : sizeof value, values),
        invalid,
        r->rank == 2 ? "comm_gather_sync: bytes is 5000, expected 0 to 4096"
                     : "comm_gather_sync: rank 2: bytes is 5000, expected 0 to 4096");
    RANK_CHECK(r, recv[0] == -1 && recv[1] == -1 && recv[2] == -1 && values[0] == -1,
               "a refused call wrote");
    RANK_OK(r, spops_comm_exchange_execute(r->ctx, r->comm, &good, s, t));
    for (int32_t i = 0; i < 3; ++i)
        RANK_CHECK(r, recv[i] == 10 * i + r->rank, "%d", (int)recv[i]);
}

// What each rank's call takes, and which does not fit together.
static void unequal_rank(test_rank *r)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    int64_t counts[3] = {1, 1, 1}, places[3] = {0, 1, 2}, more[3] = {1, 1, 1};
    int32_t send[8] = {0}, recv[8] = {-1, -1, -1, -1, -1, -1, -1, -1}, value = 0, values[3];
    const spops_comm_layout layout = {counts, places, more, places};

    if (r->rank == 2) more[0] = 0; // rank 0 sends it one
    test_rank_expect(r,
                     spops_comm_exchange_execute(r->ctx, r->comm, &layout,
                                                 spops_matrix_dense(send, 3, 2, SPOPS_DTYPE_I32),
                                                 spops_matrix_dense(recv, 3, 2, SPOPS_DTYPE_I32)),
                     invalid,
                     "comm_exchange_execute: rank 0 sends 1 rows to rank 2, which expects 0");
    more[0] = 1;
    const int32_t cols = r->rank == 1 ? 1 : 2;
    test_rank_expect(
        r,
        spops_comm_exchange_execute(r->ctx, r->comm, &layout,
                                    spops_matrix_dense(send, 3, cols, SPOPS_DTYPE_I32),
                                    spops_matrix_dense(recv, 3, cols, SPOPS_DTYPE_I32)),
        invalid, "comm_exchange_execute: rank 1 has rows of 4 bytes, rank 0 of 8");
    test_rank_expect(r,
                     spops_comm_gather_sync(r->ctx, r->comm, &value, r->rank == 2 ? 2 : 4, values),
                     invalid, "comm_gather_sync: rank 2 has a value of 2 bytes, rank 0 of 4");
    if (r->rank == 1)
        test_rank_expect(
            r, spops_comm_gather_sync(r->ctx, r->comm, &value, 4, values), invalid,
            "comm_gather_sync: rank 1 is in comm_gather_sync, rank 0 in comm_barrier_sync");
    else
        test_rank_expect(
            r, spops_comm_barrier_sync(r->ctx, r->comm), invalid,
            "comm_barrier_sync: rank 1 is in comm_gather_sync, rank 0 in comm_barrier_sync");
    RANK_CHECK(r, recv[0] == -1 && recv[5] == -1, "a refused call wrote");
    RANK_OK(r, spops_comm_barrier_sync(r->ctx, r->comm));
}

// Rows of as many bytes, but of another dtype: a sum would add the bits of one as numbers of the other.
static void other_dtype_rank(test_rank *r)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const bool f64 = r->rank == 1;
    int64_t ones[2] = {1, 1}, places[2] = {0, 1};
    const int64_t offsets[3] = {0, 1, 2};
    const spops_comm_layout layout = {ones, places, ones, places};
    double parts[128] = {1.0}, out[128];
    const spops_dtype dtype = f64 ? SPOPS_DTYPE_F64 : SPOPS_DTYPE_F32;
    const int64_t cols = f64 ? 128 : 256, half = cols / 2;

    memset(out, 0xee, sizeof out);
    RANK_OK(r,
            spops_context_reserve(r->ctx, spops_comm_sum_scratch_bytes(r->comm, 2, cols, dtype)));
    test_rank_expect(r,
                     spops_comm_sum_execute(r->ctx, r->comm, offsets,
                                            spops_matrix_dense(parts, 1, cols, dtype),
                                            spops_matrix_dense(out, 1, cols, dtype)),
                     invalid, "comm_sum_execute: rank 1 has sums of f64, rank 0 of f32");
    test_rank_expect(r,
                     spops_comm_exchange_execute(r->ctx, r->comm, &layout,
                                                 spops_matrix_dense(parts, 2, half, dtype),
                                                 spops_matrix_dense(out, 2, half, dtype)),
                     invalid, "comm_exchange_execute: rank 1 has rows of f64, rank 0 of f32");
    test_rank_expect(
        r,
        spops_comm_broadcast_execute(r->ctx, r->comm, 0, spops_matrix_dense(out, 2, half, dtype)),
        invalid, "comm_broadcast_execute: rank 1 has rows of f64, rank 0 of f32");
    for (size_t i = 0; i < sizeof out; ++i)
        RANK_CHECK(r, ((unsigned char *)out)[i] == 0xee, "byte %zu was written", i);
}

Test(comm, a_refusal_of_one_is_one_of_all)
{
    (void)test_ranks_run(SPOPS_BACKEND_CPU, 3, LONG_MS, refused_rank, NULL);
    (void)test_ranks_run(SPOPS_BACKEND_CPU, 3, LONG_MS, unequal_rank, NULL);
    (void)test_ranks_run(SPOPS_BACKEND_CPU, 2, LONG_MS, other_dtype_rank, NULL);
}

// Rows that are sent and rows that are received lie among each other in one matrix, and none is both.
static void one_matrix_rank(test_rank *r)
{
    int64_t ones[2] = {1, 1}, from[2] = {0, 4}, to[2] = {2, 6}, onto[2] = {2, 4};
    int32_t rows[8], value[4] = {r->rank, -1, -1, -1};
    const spops_comm_layout layout = {ones, from, ones, to}, bad = {ones, from, ones, onto};
    const spops_matrix m = spops_matrix_dense(rows, 8, 1, SPOPS_DTYPE_I32);

    for (int32_t i = 0; i < 8; ++i)
        rows[i] = 10 * r->rank + i;
    test_rank_expect(
        r, spops_comm_exchange_execute(r->ctx, r->comm, r->rank == 0 ? &bad : &layout, m, m),
        SPOPS_STATUS_INVALID_ARGUMENT,
        r->rank == 0 ? "comm_exchange_execute: rows of recv from rank 1 share memory "
                       "with rows of send"
                     : "comm_exchange_execute: rank 0: rows of recv from rank 1 share "
                       "memory with rows of send");
    RANK_OK(r, spops_comm_exchange_execute(r->ctx, r->comm, &layout, m, m));
    for (int32_t i = 0; i < 8; ++i) {
        const int32_t expected = i == 2   ? 4 * r->rank
                                 : i == 6 ? 10 + 4 * r->rank
                                          : 10 * r->rank + i;
        RANK_CHECK(r, rows[i] == expected, "row %d of rank %d is %d", (int)i, (int)r->rank,
                   (int)rows[i]);
    }
    for (int32_t shift = 0; shift < 2; ++shift) // in the first and in the last of values
        test_rank_expect(
            r, spops_comm_gather_sync(r->ctx, r->comm, value + shift, sizeof *value, value),
            SPOPS_STATUS_INVALID_ARGUMENT,
            r->rank == 0 ? "comm_gather_sync: value shares memory with values"
                         : "comm_gather_sync: rank 0: value shares memory with values");
    RANK_CHECK(r, value[0] == r->rank && value[1] == -1, "a refused call wrote");
    RANK_OK(r, spops_comm_gather_sync(r->ctx, r->comm, value, sizeof *value, value + 1));
    RANK_CHECK(r, value[1] == 0 && value[2] == 1, "%d %d", (int)value[1], (int)value[2]);
}

Test(comm, rows_of_one_matrix)
{
    (void)test_ranks_run(SPOPS_BACKEND_CPU, 2, LONG_MS, one_matrix_rank, NULL);
}

// ---- Ranks that stop ----------------------------------------------------------------------------

enum { STOPS_SILENTLY = 0, DESTROYS = 1, BEGINS_ONLY = 2, BEGINS_AND_DESTROYS = 3 };

typedef struct stop_case {
    int how;
    pthread_barrier_t done; // of the rank that stops and those that have seen it
} stop_case;

static void stopping_rank(test_rank *r)
{
    stop_case *c = r->user;
    int64_t ones[3] = {1, 1, 1}, places[3] = {0, 1, 2};
    int32_t send[3] = {0}, recv[3] = {0};
    const spops_comm_layout layout = {ones, places, ones, places};
    const spops_matrix s = spops_matrix_dense(send, 3, 1, SPOPS_DTYPE_I32),
                       t = spops_matrix_dense(recv, 3, 1, SPOPS_DTYPE_I32);
    const bool leaves = c->how == DESTROYS || c->how == BEGINS_AND_DESTROYS;
    const char *why = leaves ? "rank 1 has destroyed its end, rank " : "rank 1 did not come to ";

    RANK_OK(r, spops_comm_barrier_sync(r->ctx, r->comm));
    if (r->rank == 1) {
        if (c->how >= BEGINS_ONLY)
            RANK_OK(r, spops_comm_exchange_begin(r->ctx, r->comm, &layout, s, t));
        if (leaves) {
            spops_comm_destroy(r->comm);
            r->comm = NULL;
        }
        (void)pthread_barrier_wait(&c->done);
        return;
    }
    const double begin = seconds();
    spops_status status = spops_comm_exchange_execute(r->ctx, r->comm, &layout, s, t);
    const double took = seconds() - begin;
    if (status != SPOPS_STATUS_COMM_BROKEN || strstr(spops_last_error(r->ctx), why) == NULL)
        test_rank_fail(r, "%s, \"%s\"", spops_status_name(status), spops_last_error(r->ctx));
    if (took > 10.0) test_rank_fail(r, "it took %.1f s", took);
    // It stays so, at once.
    status = spops_comm_barrier_sync(r->ctx, r->comm);
    if (status != SPOPS_STATUS_COMM_BROKEN ||
        strncmp(spops_last_error(r->ctx), "comm_barrier_sync: the communicator is broken: rank 1 ",
                54) != 0)
        test_rank_fail(r, "%s, \"%s\"", spops_status_name(status), spops_last_error(r->ctx));
    if (spops_comm_agree_sync(r->ctx, r->comm, SPOPS_STATUS_OK) != SPOPS_STATUS_COMM_BROKEN)
        test_rank_fail(r, "agree: %s", spops_last_error(r->ctx));
    (void)pthread_barrier_wait(&c->done);
}

Test(comm, a_rank_that_stops_ends_the_others, .timeout = 60)
{
    for (int how = STOPS_SILENTLY; how <= BEGINS_AND_DESTROYS; ++how) {
        stop_case c = {.how = how};
        cr_assert_eq(pthread_barrier_init(&c.done, NULL, 3), 0);
        // Whoever leaves is seen at once, not after the deadline.
        (void)test_ranks_run(SPOPS_BACKEND_CPU, 3,
                             how == DESTROYS || how == BEGINS_AND_DESTROYS ? LONG_MS : SHORT_MS,
                             stopping_rank, &c);
        (void)pthread_barrier_destroy(&c.done);
    }
}

// With NCCL: rank 1 stops, and rank 0 hears of it after the deadline; its stream is free again where the
// communicator is the library's.
static void nccl_stopping_rank(test_rank *r)
{
    pthread_barrier_t *done = r->user;
    int64_t ones[2] = {1, 1}, places[2] = {0, 1};
    const spops_comm_layout layout = {ones, places, ones, places};
    const spops_backend_kind b = r->device.backend;
    void *rows = NULL;

    if (!device_alloc(b, 64, &rows)) test_rank_fail(r, "memory");
    if (r->rank == 0) {
        const spops_matrix s = spops_matrix_dense(rows, 2, 1, SPOPS_DTYPE_I32),
                           t = spops_matrix_dense((char *)rows + 32, 2, 1, SPOPS_DTYPE_I32);
        const double begin = seconds();
        if (spops_comm_exchange_execute(r->ctx, r->comm, &layout, s, t) != SPOPS_STATUS_OK)
            test_rank_fail(r, "%s", spops_last_error(r->ctx));
        test_rank_expect(r, spops_comm_wait_sync(r->ctx, r->comm), SPOPS_STATUS_COMM_BROKEN,
                         "comm_wait_sync: the communicator is broken: not all ranks came to "
                         "comm_wait_sync within 8000 ms, rank 0 waited");
        if (seconds() - begin > 30.0) test_rank_fail(r, "%.1f s", seconds() - begin);
        test_rank_expect(r, spops_comm_barrier_sync(r->ctx, r->comm), SPOPS_STATUS_COMM_BROKEN,
                         "comm_barrier_sync: the communicator is broken: not all ranks came to "
                         "comm_wait_sync within 8000 ms, rank 0 waited");
        if (spops_context_wait_sync(r->ctx) != SPOPS_STATUS_OK)
            test_rank_fail(r, "%s", spops_last_error(r->ctx));
    }
    (void)pthread_barrier_wait(done);
    device_free(b, rows);
}

Test(comm, a_rank_of_nccl_that_stops_ends_the_others, .timeout = 90)
{
    const char *only = getenv("SPOPS_TEST_BACKEND");
    pthread_barrier_t done;
    if (only != NULL && strcmp(only, "cuda") != 0) return;
    cr_assert_eq(pthread_barrier_init(&done, NULL, 2), 0);
    (void)test_ranks_run_as(RANKS_NCCL, 2, NCCL_STOPS_MS, nccl_stopping_rank, &done);
    (void)pthread_barrier_destroy(&done);
}

// Two ranks are announced to NCCL, and one comes.
static void lonely_rank(test_rank *r)
{
    spops_comm_options options = spops_comm_options_default();
    spops_comm *comm = NULL;
    uint8_t id[SPOPS_COMM_NCCL_ID_BYTES];

    options.timeout_ms = 1500;
    RANK_OK(r, spops_comm_get_nccl_id(r->ctx, id));
    const double begin = seconds();
    test_rank_expect(r, spops_comm_create_nccl_id(r->ctx, id, 2, 0, &options, &comm),
                     SPOPS_STATUS_COMM_BROKEN,
                     "comm_create_nccl_id: the communicator is broken: not all ranks came to "
                     "comm_create_nccl_id within 1500 ms, rank 0 waited");
    RANK_CHECK(r, comm == NULL && seconds() - begin < 30.0, "%.1f s", seconds() - begin);
    RANK_OK(r, spops_context_wait_sync(r->ctx));
    RANK_OK(r, spops_comm_barrier_sync(r->ctx, r->comm)); // another one is whole
}

// NCCL's abort waits for captured graphs; a call that finds that a rank has stopped does not.
static void graph_left_rank(test_rank *r)
{
    pthread_barrier_t *seen = r->user;
    spops_status status = SPOPS_STATUS_OK;
    graph_rows g = {.send = NULL};
    device_graph *graph = capture_exchanges(r, &g, &status);

    if (r->failure[0] == '\0' && status != SPOPS_STATUS_OK)
        test_rank_fail(r, "%s", spops_last_error(r->ctx));
    if (r->rank == 0) {
        const double begin = seconds();
        status = spops_comm_barrier_sync(r->ctx, r->comm);
        if (status != SPOPS_STATUS_COMM_BROKEN)
            test_rank_fail(r, "%s, \"%s\"", spops_status_name(status), spops_last_error(r->ctx));
        if (seconds() - begin > 20.0) test_rank_fail(r, "it took %.1f s", seconds() - begin);
    }
    (void)pthread_barrier_wait(seen);
    free_rows(r, &g, graph);
    (void)nanosleep(&(struct timespec){2, 0},
                    NULL); // NCCL ends now; the process must not do so first
}

Test(comm, a_rank_of_nccl_that_stops_with_graphs_left)
{
    pthread_barrier_t seen;
    cr_assert_eq(pthread_barrier_init(&seen, NULL, 2), 0);
    (void)test_ranks_run_as(RANKS_NCCL, 2, 8000, graph_left_rank, &seen);
    (void)pthread_barrier_destroy(&seen);
}

Test(comm, a_rank_of_nccl_that_never_comes, .timeout = 90)
{
    const char *only = getenv("SPOPS_TEST_BACKEND");
    if (only != NULL && strcmp(only, "cuda") != 0) return;
    (void)test_ranks_run_as(RANKS_NCCL, 1, LONG_MS, lonely_rank, NULL);
}

// Of two ranks one is never made.
Test(comm, a_rank_that_never_comes)
{
    spops_comm_options options = spops_comm_options_default();
    spops_comm_group *group = NULL;
    spops_comm *comm = NULL, *late = NULL;
    test_device d;

    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    options.timeout_ms = SHORT_MS;
    test_expect_ok(NULL, spops_comm_group_create(2, &group), "group");
    test_expect_ok(d.ctx, spops_comm_create_threads(d.ctx, group, 0, &options, &comm), "create");
    const double begin = seconds();
    test_expect(d.ctx, spops_comm_barrier_sync(d.ctx, comm), SPOPS_STATUS_COMM_BROKEN,
                "comm_barrier_sync: the communicator is broken: rank 1 did not come to "
                "comm_barrier_sync within "
                "300 ms, rank 0 waited",
                "barrier");
    cr_assert(seconds() - begin >= 0.29);
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, 1, NULL, &late),
                SPOPS_STATUS_COMM_BROKEN, "the communicator is broken: rank 1 did not come",
                "late");
    cr_assert_null(late);
    spops_comm_group_destroy(group); // its communicator lives on
    test_expect(d.ctx, spops_comm_barrier_sync(d.ctx, comm), SPOPS_STATUS_COMM_BROKEN,
                "the communicator is broken", "again");
    spops_comm_destroy(comm);
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

Test(comm, refusals_of_creating)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_comm_options options = spops_comm_options_default();
    spops_comm_group *group = (spops_comm_group *)&options;
    spops_comm *comm = NULL, *second = (spops_comm *)&options;
    test_device d;

    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    test_expect(NULL, spops_comm_group_create(2, NULL), invalid, "out", "group");
    test_expect(NULL, spops_comm_group_create(0, &group), invalid,
                "comm_group_create: num_ranks is 0, expected 1 to 4096", "group");
    cr_assert_null(group);
    test_expect(NULL, spops_comm_group_create(4097, &group), invalid, "num_ranks", "group");
    test_expect_ok(NULL, spops_comm_group_create(2, &group), "group");
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, 0, NULL, NULL), invalid, "out", "");
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, NULL, 0, NULL, &comm), invalid, "group",
                "");
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, 2, NULL, &comm), invalid,
                "comm_create_threads: rank is 2, expected 0 to 1", "");
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, -1, NULL, &comm), invalid, "rank",
                "");
    options.timeout_ms = -1;
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, 0, &options, &comm), invalid,
                "comm_create_threads: timeout_ms is -1, expected 0 to 2147483647", "");
    options.timeout_ms = 0, options.reserved = 1;
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, 0, &options, &comm), invalid,
                "reserved", "");
    options.reserved = 0, options.struct_size = 1000;
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, 0, &options, &comm), invalid,
                "struct_size is 1000", "");
    cr_assert_null(comm);
    test_expect_ok(d.ctx, spops_comm_create_threads(d.ctx, group, 0, NULL, &comm), "create");
    test_expect(d.ctx, spops_comm_create_threads(d.ctx, group, 0, NULL, &second), invalid,
                "comm_create_threads: rank is 0, which has a communicator already", "");
    cr_assert_null(second);
    test_expect(d.ctx, spops_comm_barrier_sync(d.ctx, NULL), invalid, "comm", "");
    test_expect(d.ctx, spops_comm_exchange_end(d.ctx, comm), invalid,
                "comm_exchange_end: no exchange has begun on comm", "");
    cr_assert_eq(spops_comm_rank(NULL), -1);
    cr_assert_eq(spops_comm_num_ranks(NULL), 0);
    spops_comm_destroy(NULL);
    spops_comm_destroy(comm);
    spops_comm_group_destroy(group);
    spops_comm_group_destroy(NULL);
    test_close(&d);
}

typedef struct exchange_args {
    int64_t send_counts[1], send_offsets[1], recv_counts[1], recv_offsets[1];
    spops_matrix send, recv;
} exchange_args;

static void refuse_exchange(test_device *d, spops_comm *comm, const exchange_args *a,
                            const char *text)
{
    const spops_comm_layout layout = {a->send_counts, a->send_offsets, a->recv_counts,
                                      a->recv_offsets};
    test_expect(d->ctx, spops_comm_exchange_execute(d->ctx, comm, &layout, a->send, a->recv),
                SPOPS_STATUS_INVALID_ARGUMENT, text, text);
}

Test(comm, refusals_of_an_exchange)
{
    spops_comm_group *group = NULL;
    spops_comm *comm = NULL;
    test_device d;
    float data[12] = {0}, out[12] = {0};
    exchange_args a, good = {{2}, {0}, {2}, {1}, {0}, {0}};
    int64_t none[1] = {0};

    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    test_expect_ok(NULL, spops_comm_group_create(1, &group), "group");
    test_expect_ok(d.ctx, spops_comm_create_threads(d.ctx, group, 0, NULL, &comm), "create");
    good.send = spops_matrix_dense(data, 4, 3, SPOPS_DTYPE_F32);
    good.recv = spops_matrix_dense(out, 4, 3, SPOPS_DTYPE_F32);
#define REFUSES(text, ...)                                                                         \
    do {                                                                                           \
        a = good;                                                                                  \
        __VA_ARGS__;                                                                               \
        refuse_exchange(&d, comm, &a, text);                                                       \
    } while (0)
    REFUSES("comm_exchange_execute: layout.send_counts[0] is 5, expected 0 to 4, the rows of send",
            a.send_counts[0] = 5);
    REFUSES("comm_exchange_execute: layout.send_counts[0] is -1", a.send_counts[0] = -1);
    REFUSES("comm_exchange_execute: layout.send_offsets[0] is 3, expected 0 to 2",
            a.send_offsets[0] = 3);
    REFUSES("comm_exchange_execute: layout.send_offsets[0] is 9223372036854775807",
            a.send_offsets[0] = INT64_MAX);
    REFUSES("comm_exchange_execute: layout.recv_offsets[0] is -1, expected 0 to 2",
            a.recv_offsets[0] = -1);
    REFUSES(
        "comm_exchange_execute: layout.recv_counts[0] is 1, expected 2, what the rank sends itself",
        a.recv_counts[0] = 1);
    REFUSES("send.row_stride is 4, expected 3, its cols", a.send.row_stride = 4, a.send.rows = 3);
    REFUSES("recv", a.recv.cols = 2, a.recv.row_stride = 2);
    REFUSES("recv", a.recv.dtype = SPOPS_DTYPE_I32);
    REFUSES("send", a.send.dtype = (spops_dtype)10);
    REFUSES("send", a.send.data = NULL);
    REFUSES("comm_exchange_execute: rows of recv from rank 0 share memory with rows of send",
            a.recv.data = data);
    const spops_comm_layout lacks = {NULL, none, none, none}, also = {none, none, none, NULL};
    test_expect(d.ctx, spops_comm_exchange_execute(d.ctx, comm, &lacks, good.send, good.recv),
                SPOPS_STATUS_INVALID_ARGUMENT, "comm_exchange_execute: layout.send_counts is NULL",
                "");
    test_expect(d.ctx, spops_comm_exchange_execute(d.ctx, comm, &also, good.send, good.recv),
                SPOPS_STATUS_INVALID_ARGUMENT, "comm_exchange_execute: layout.recv_offsets is NULL",
                "");
    test_expect(d.ctx, spops_comm_exchange_execute(d.ctx, comm, NULL, good.send, good.recv),
                SPOPS_STATUS_INVALID_ARGUMENT, "layout", "");
    for (int i = 0; i < 12; ++i)
        cr_assert_eq(out[i], 0.0f);
    const spops_comm_layout l = {none, none, none, none};
    test_expect_ok(d.ctx, spops_comm_exchange_begin(d.ctx, comm, &l, good.send, good.recv),
                   "begin");
    test_expect(d.ctx, spops_comm_barrier_sync(d.ctx, comm), SPOPS_STATUS_INVALID_ARGUMENT,
                "comm_barrier_sync: an exchange has begun on comm, and not ended", "");
    test_expect_ok(d.ctx, spops_comm_exchange_end(d.ctx, comm), "end");
    spops_comm_destroy(comm);
    spops_comm_group_destroy(group);
    test_close(&d);
}

Test(comm, refusals_of_broadcast_and_sum)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_comm_group *group = NULL;
    spops_comm *comm = NULL;
    test_device d;
    float data[12] = {0}, out[4] = {0};
    int64_t offsets[2] = {0, 3};
    const spops_matrix parts = spops_matrix_dense(data, 3, 4, SPOPS_DTYPE_F32);
    spops_matrix sums = spops_matrix_dense(out, 1, 4, SPOPS_DTYPE_F32), bad = parts;

    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    test_expect_ok(NULL, spops_comm_group_create(1, &group), "group");
    test_expect_ok(d.ctx, spops_comm_create_threads(d.ctx, group, 0, NULL, &comm), "create");
    test_expect(d.ctx, spops_comm_broadcast_execute(d.ctx, comm, 1, parts), invalid,
                "comm_broadcast_execute: root is 1, expected 0 to 0", "");
    bad.row_stride = 5;
    test_expect(d.ctx, spops_comm_broadcast_execute(d.ctx, comm, 0, bad), invalid,
                "rows.row_stride is 5, expected 4, its cols", "");
    test_expect(d.ctx, spops_comm_sum_execute(d.ctx, comm, NULL, parts, sums), invalid,
                "part_offsets", "");
    offsets[0] = 1;
    test_expect(d.ctx, spops_comm_sum_execute(d.ctx, comm, offsets, parts, sums), invalid,
                "comm_sum_execute: part_offsets[0] is 1, expected 0", "");
    offsets[0] = 0, offsets[1] = -1;
    test_expect(d.ctx, spops_comm_sum_execute(d.ctx, comm, offsets, parts, sums), invalid,
                "comm_sum_execute: part_offsets[1] is -1, expected 0 to 2147483646", "");
    offsets[1] = 2;
    test_expect(d.ctx, spops_comm_sum_execute(d.ctx, comm, offsets, parts, sums), invalid, "parts",
                "");
    offsets[1] = 3;
    sums.cols = 3;
    test_expect(d.ctx, spops_comm_sum_execute(d.ctx, comm, offsets, parts, sums), invalid, "out",
                "");
    sums = spops_matrix_dense(data + 4, 1, 4, SPOPS_DTYPE_F32);
    test_expect(d.ctx, spops_comm_sum_execute(d.ctx, comm, offsets, parts, sums), invalid, "out",
                "");
    bad = parts, bad.dtype = SPOPS_DTYPE_I32;
    test_expect(d.ctx, spops_comm_sum_execute(d.ctx, comm, offsets, bad, sums), invalid, "parts",
                "");
    cr_assert_eq(spops_comm_sum_scratch_bytes(NULL, 3, 4, SPOPS_DTYPE_F32), 0);
    spops_comm_destroy(comm);
    spops_comm_group_destroy(group);
    test_close(&d);
}

static void scratch_rank(test_rank *r)
{
    float data[256] = {0}, out[128] = {0};
    const int64_t offsets[3] = {0, 1, 2};
    const spops_status status = spops_comm_sum_execute(
        r->ctx, r->comm, offsets, spops_matrix_dense(data, 1, 128, SPOPS_DTYPE_F32),
        spops_matrix_dense(out, 1, 128, SPOPS_DTYPE_F32));
    RANK_CHECK(r, status == SPOPS_STATUS_SCRATCH_TOO_SMALL, "%s", spops_status_name(status));
}

Test(comm, a_sum_needs_scratch)
{
    (void)test_ranks_run(SPOPS_BACKEND_CPU, 2, LONG_MS, scratch_rank, NULL);
}

// A CPU context has no NCCL.
Test(comm, nccl_needs_cuda)
{
    spops_comm *comm = (spops_comm *)&comm;
    uint8_t id[SPOPS_COMM_NCCL_ID_BYTES] = {0};
    test_device d;

    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    test_expect(d.ctx, spops_comm_create_nccl(d.ctx, NULL, NULL, &comm),
                SPOPS_STATUS_INVALID_ARGUMENT, "nccl_comm", "");
    cr_assert_null(comm);
    test_expect(d.ctx, spops_comm_create_nccl(d.ctx, id, NULL, &comm), SPOPS_STATUS_NOT_SUPPORTED,
                "comm_create_nccl: the cpu backend has no comm_nccl_open", "");
    test_expect(d.ctx, spops_comm_get_nccl_id(d.ctx, NULL), SPOPS_STATUS_INVALID_ARGUMENT, "id",
                "");
    test_expect(d.ctx, spops_comm_get_nccl_id(d.ctx, id), SPOPS_STATUS_NOT_SUPPORTED,
                "comm_get_nccl_id: the cpu backend has no comm_nccl_ask", "");
    test_expect(d.ctx, spops_comm_create_nccl_id(d.ctx, id, 2, 2, NULL, &comm),
                SPOPS_STATUS_INVALID_ARGUMENT, "comm_create_nccl_id: rank is 2, expected 0 to 1",
                "");
    test_expect(d.ctx, spops_comm_create_nccl_id(d.ctx, id, 0, 0, NULL, &comm),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_ranks", "");
    test_expect(d.ctx, spops_comm_create_nccl_id(d.ctx, NULL, 1, 0, NULL, &comm),
                SPOPS_STATUS_INVALID_ARGUMENT, "id", "");
    test_expect(d.ctx, spops_comm_create_nccl_id(d.ctx, id, 2, 1, NULL, &comm),
                SPOPS_STATUS_NOT_SUPPORTED,
                "comm_create_nccl_id: the cpu backend has no comm_nccl_open", "");
    test_close(&d);
}
