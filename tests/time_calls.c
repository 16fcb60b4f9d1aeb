// SPDX-License-Identifier: Apache-2.0
// Host times of boxed calls, over the list of operators: nanoseconds of the operator's own function with
// its check, and what a boxed call takes besides: with plans as handles, on a context of the library's
// own, with a plan as a block, and as a block that lies elsewhere in each call. A program, no test: time_calls prints a table of calls on little data, on the CPU with one thread.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "boxed/values.h"
#include "call/boxed.h"
#include "tests/support/drawn_block.h"

enum { TRIES = 3000, DRAWS = 24, ROUNDS = 21, CALLS = 200, PLACES = 100 };

static spops_status (*const functions[])(spops_boxed_call *) = {
#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    spops_boxed_##name,
#include "call/operators.def"
};

typedef struct timed {
    drawn_call *c;
    spops_context *ctx; // NULL: one of the library's own
    const spops_value *values;
    spops_boxed_call *unpacked; // the function alone
    spops_tensor *moves;        // lies elsewhere in each call; NULL: nothing does
    char *places;
    size_t apart;
} timed;

static double now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void call_once(const timed *t)
{
    static int place;
    spops_value ret;
    if (t->moves != NULL) {
        place = (place + 1) % PLACES;
        t->moves->data = t->places + (size_t)place * t->apart;
    }
    if (t->unpacked != NULL)
        (void)functions[t->c->op->index](t->unpacked);
    else
        (void)spops_call(t->ctx, t->c->op, t->values, t->c->num_values, &ret);
}

// The least of rounds in turns, so that what disturbs one disturbs all.
static void measure(const timed *calls, int num, double *ns)
{
    for (int r = 0; r < ROUNDS; ++r) {
        for (int i = 0; i < num; ++i) {
            const double begin = now_ns();
            for (int k = 0; k < CALLS; ++k)
                call_once(&calls[i]);
            const double taken = (now_ns() - begin) / CALLS;
            if (r == 0 || taken < ns[i]) ns[i] = taken;
        }
    }
}

// One that computes little, with its first plan as a block where that can be, of several draws.
static bool draw_small(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng,
                       drawn_blocks *blocks, spops_value *by_block)
{
    spops_value ret;
    for (int i = 0; i < DRAWS; ++i) {
        int64_t size = 0;
        bool is_described = false;
        if (drawn_call_find(c, d, op, rng, TRIES, &ret) == 0) return false;
        for (int a = 0; a < c->row->num_args; ++a) {
            size += (int64_t)c->tensors[a].bytes;
            is_described |= spops_plan_has_description(c->row->args[a].plan_kind);
        }
        if (size < 6000 && drawn_blocks_make(blocks, c, d, by_block) == is_described) return true;
        if (size < 6000) drawn_blocks_free(blocks, d);
        drawn_call_free(c);
    }
    return false;
}

// Copies of a block, so many that a context does not keep handles on all of them.
static char *copy_block(const drawn_block *b, size_t *apart)
{
    char *places;
    *apart = (b->bytes + 255) / 256 * 256;
    places = aligned_alloc(256, PLACES * *apart);
    cr_assert(places != NULL);
    for (int i = 0; i < PLACES; ++i)
        memcpy(places + (size_t)i * *apart, b->block.data, b->bytes);
    return places;
}

static void print_row(drawn_call *c, test_device *d, drawn_blocks *blocks, spops_value *by_block)
{
    spops_call_place place = {SPOPS_BACKEND_CPU, 0, NULL};
    spops_boxed_call unpacked = {.ctx = d->ctx, .row = c->row};
    timed calls[] = {{.unpacked = &unpacked},
                     {.ctx = d->ctx, .values = c->values},
                     {.values = c->values},
                     {.ctx = d->ctx, .values = by_block},
                     {.ctx = d->ctx, .values = by_block}};
    const int num = blocks->num > 0 ? 5 : 3;
    double ns[5] = {0};

    cr_assert(spops_values_unpack(&unpacked, c->values, c->num_values, &place) == SPOPS_STATUS_OK);
    for (int i = 0; i < num; ++i)
        calls[i].c = c;
    if (blocks->num > 0) {
        drawn_block *b = &blocks->all[0];
        for (int i = 0; i < c->row->num_args; ++i)
            if (c->row->args[i].is_plan && by_block[i].type == SPOPS_VALUE_TENSOR)
                calls[4].moves = by_block[i].v.p;
        while (&b->block != calls[4].moves)
            ++b;
        calls[4].places = copy_block(b, &calls[4].apart);
    }
    measure(calls, num, ns);
    printf("%-28s %9.0f", c->op->name, ns[0]);
    for (int i = 1; i < num; ++i)
        printf(" %9.0f", ns[i] - ns[0]);
    printf("\n");
    free(calls[4].places);
}

Test(time_calls, boxed, .timeout = 600)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    drawn_call *c = calloc(1, sizeof *c);
    drawn_blocks *blocks = calloc(1, sizeof *blocks);
    test_device d;

    setenv("SPOPS_NUM_THREADS", "1", 1);
    cr_assert(c != NULL && blocks != NULL && test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT));
    printf("%-28s %9s %9s %9s %9s %9s\n", "operator", "typed", "+ boxed", "+ own ctx", "+ block",
           "+ moved");
    for (int32_t i = 0; i < num; ++i) {
        test_rng rng = test_rng_make(700 + (uint64_t)i);
        spops_value by_block[DRAWN_MAX_VALUES];
        if (strstr(ops[i]->function, "_execute") == NULL ||
            !draw_small(c, &d, ops[i], &rng, blocks, by_block))
            continue;
        print_row(c, &d, blocks, by_block);
        drawn_blocks_free(blocks, &d);
        drawn_call_free(c);
    }
    spops_call_release();
    test_close(&d);
    free(blocks);
    free(c);
}
