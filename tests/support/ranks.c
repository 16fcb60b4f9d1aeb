// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct started {
    test_rank rank;
    spops_comm_group *group;
    int32_t timeout_ms;
    test_rank_body body;
    pthread_t thread;
} started;

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

static void *run_rank(void *argument)
{
    started *s = argument;
    spops_comm_options options = spops_comm_options_default();
    options.timeout_ms = s->timeout_ms;
    const spops_status status =
        spops_comm_create_threads(s->rank.ctx, s->group, s->rank.rank, &options, &s->rank.comm);
    if (status == SPOPS_STATUS_OK)
        s->body(&s->rank);
    else
        test_rank_fail(&s->rank, "%s", spops_last_error(s->rank.ctx));
    spops_comm_destroy(s->rank.comm);
    return NULL;
}

bool test_ranks_run(spops_backend_kind backend, int32_t num_ranks, int32_t timeout_ms,
                    test_rank_body body, void *user)
{
    started *ranks = calloc((size_t)num_ranks, sizeof *ranks);
    spops_comm_group *group = NULL;

    cr_assert(ranks != NULL);
    cr_assert_eq(spops_comm_group_create(num_ranks, &group), SPOPS_STATUS_OK);
    for (int32_t i = 0; i < num_ranks; ++i) {
        started *s = &ranks[i];
        if (!test_open(&s->rank.device, backend, LAUNCH_STREAM)) {
            cr_assert_eq(i, 0);
            spops_comm_group_destroy(group);
            free(ranks);
            return false;
        }
        s->rank.rank = i;
        s->rank.num_ranks = num_ranks;
        s->rank.ctx = s->rank.device.ctx;
        s->rank.user = user;
        s->group = group;
        s->timeout_ms = timeout_ms;
        s->body = body;
    }
    for (int32_t i = 0; i < num_ranks; ++i)
        cr_assert_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (int32_t i = 0; i < num_ranks; ++i)
        cr_assert_eq(pthread_join(ranks[i].thread, NULL), 0);
    spops_comm_group_destroy(group);
    for (int32_t i = 0; i < num_ranks; ++i) // one that fails is often why others do
        cr_expect(ranks[i].rank.failure[0] == '\0', "rank %d of %d: %s", (int)i, (int)num_ranks,
                  ranks[i].rank.failure);
    for (int32_t i = 0; i < num_ranks; ++i)
        test_close(&ranks[i].rank.device);
    free(ranks);
    return true;
}
