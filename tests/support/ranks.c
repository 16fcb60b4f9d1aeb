// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/params.h"

typedef struct started {
    test_rank rank;
    spops_comm_group *group;
    uint8_t id[SPOPS_COMM_NCCL_ID_BYTES];
    void *given; // ncclComm_t
    int32_t timeout_ms;
    test_rank_body body;
    pthread_t thread;
} started;

// ---- NCCL of the caller's -----------------------------------------------------------------------

static void *nccl_file(void)
{
    static void *file;
    if (file == NULL) file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return file;
}

static int (*nccl_function(const char *name))(void *, int, int *)
{
    int (*function)(void *, int, int *) = NULL;
    void *symbol = dlsym(nccl_file(), name);
    cr_assert(symbol != NULL, "%s", name);
    memcpy(&function, &symbol, sizeof function);
    return function;
}

static void init_given(started *ranks, int32_t num_ranks)
{
    void *comms[64] = {NULL};
    cr_assert(num_ranks <= 64);
    cr_assert_eq(nccl_function("ncclCommInitAll")(comms, num_ranks, NULL), 0);
    for (int32_t i = 0; i < num_ranks; ++i)
        ranks[i].given = comms[i];
}

static void destroy_given(void *comm)
{
    int (*destroy)(void *) = NULL;
    void *symbol;
    if (comm == NULL) return;
    symbol = dlsym(nccl_file(), "ncclCommDestroy");
    memcpy(&destroy, &symbol, sizeof destroy);
    if (destroy != NULL) (void)destroy(comm);
}

// ---- Ranks --------------------------------------------------------------------------------------

void test_rank_fail(test_rank *r, const char *format, ...)
{
    va_list arguments;
    if (r->failure[0] != '\0') return;
    va_start(arguments, format);
    (void)vsnprintf(r->failure, sizeof r->failure, format, arguments);
    va_end(arguments);
}

void test_rank_expect(test_rank *r, spops_status found, spops_status expected, const char *line)
{
    if (found != expected || strcmp(spops_last_error(r->ctx), line) != 0)
        test_rank_fail(r, "%s, \"%s\"; expected %s, \"%s\"", spops_status_name(found),
                       spops_last_error(r->ctx), spops_status_name(expected), line);
}

static spops_status create_comm(started *s)
{
    test_rank *r = &s->rank;
    spops_comm_options options = spops_comm_options_default();

    options.timeout_ms = s->timeout_ms;
    if (r->kind == RANKS_NCCL)
        return spops_comm_create_nccl_id(r->ctx, s->id, r->num_ranks, r->rank, &options, &r->comm);
    if (r->kind == RANKS_NCCL_GIVEN)
        return spops_comm_create_nccl(r->ctx, s->given, &options, &r->comm);
    return spops_comm_create_threads(r->ctx, s->group, r->rank, &options, &r->comm);
}

static void *run_rank(void *argument)
{
    started *s = argument;
    if (s->rank.kind != RANKS_CPU && !device_use(s->rank.device.device))
        test_rank_fail(&s->rank, "%s", device_error());
    else if (create_comm(s) == SPOPS_STATUS_OK)
        s->body(&s->rank);
    else
        test_rank_fail(&s->rank, "%s", spops_last_error(s->rank.ctx));
    spops_comm_destroy(s->rank.comm);
    destroy_given(s->given);
    return NULL;
}

static bool open_rank(started *s, test_ranks kind, int32_t rank, int32_t num_ranks)
{
    const spops_backend_kind backend = kind == RANKS_CPU ? SPOPS_BACKEND_CPU : SPOPS_BACKEND_CUDA;
    bool opened;

    if (kind != RANKS_CPU && device_count() > 0)
        cr_assert(device_use(rank % device_count()), "%s", device_error());
    opened = test_open(&s->rank.device, backend, LAUNCH_STREAM);
    (void)device_use(0);
    s->rank.kind = kind;
    s->rank.rank = rank;
    s->rank.num_ranks = num_ranks;
    s->rank.ctx = s->rank.device.ctx;
    return opened;
}

static bool is_there(test_ranks kind, int32_t num_ranks)
{
    if (kind < RANKS_NCCL) return true;
    if (device_count() < num_ranks) {
        cr_log_info("skipped: %d ranks of NCCL, %d devices", (int)num_ranks, (int)device_count());
        return false;
    }
    if (nccl_file() == NULL) cr_log_info("skipped: no libnccl.so.2");
    return nccl_file() != NULL;
}

static void start_and_join(started *ranks, int32_t num_ranks)
{
    for (int32_t i = 0; i < num_ranks; ++i)
        cr_assert_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (int32_t i = 0; i < num_ranks; ++i)
        cr_assert_eq(pthread_join(ranks[i].thread, NULL), 0);
    for (int32_t i = 0; i < num_ranks; ++i) // one that fails is often why others do
        cr_expect(ranks[i].rank.failure[0] == '\0', "rank %d of %d: %s", (int)i, (int)num_ranks,
                  ranks[i].rank.failure);
}

bool test_ranks_run_as(test_ranks kind, int32_t num_ranks, int32_t timeout_ms, test_rank_body body,
                       void *user)
{
    started *ranks = calloc((size_t)num_ranks, sizeof *ranks);
    spops_comm_group *group = NULL;
    bool opened = is_there(kind, num_ranks);

    cr_assert(ranks != NULL);
    cr_assert_eq(spops_comm_group_create(num_ranks, &group), SPOPS_STATUS_OK);
    for (int32_t i = 0; i < num_ranks && opened; ++i) {
        started *s = &ranks[i];
        opened = open_rank(s, kind, i, num_ranks);
        s->rank.user = user;
        s->group = group;
        s->timeout_ms = timeout_ms;
        s->body = body;
        if (opened && kind == RANKS_NCCL && i == 0)
            test_expect_ok(s->rank.ctx, spops_comm_get_nccl_id(s->rank.ctx, s->id), "id");
        memcpy(s->id, ranks[0].id, sizeof s->id);
    }
    if (opened && kind == RANKS_NCCL_GIVEN) init_given(ranks, num_ranks);
    if (opened) start_and_join(ranks, num_ranks);
    spops_comm_group_destroy(group);
    for (int32_t i = 0; i < num_ranks && opened; ++i) {
        cr_assert(device_use(ranks[i].rank.device.device));
        test_close(&ranks[i].rank.device);
    }
    (void)device_use(0);
    free(ranks);
    return opened;
}

bool test_ranks_run(spops_backend_kind backend, int32_t num_ranks, int32_t timeout_ms,
                    test_rank_body body, void *user)
{
    return test_ranks_run_as(backend == SPOPS_BACKEND_CUDA ? RANKS_CUDA : RANKS_CPU, num_ranks,
                             timeout_ms, body, user);
}

struct criterion_test_params every_ranks(void)
{
    static struct case_param all[] = {
        {SPOPS_BACKEND_CPU, 0, 0, RANKS_CPU},
        {SPOPS_BACKEND_CUDA, 0, 0, RANKS_CUDA},
        {SPOPS_BACKEND_CUDA, 0, 0, RANKS_NCCL},
        {SPOPS_BACKEND_CUDA, 0, 0, RANKS_NCCL_GIVEN},
    };
    return tested_here(cr_make_param_array(struct case_param, all, sizeof all / sizeof *all));
}
