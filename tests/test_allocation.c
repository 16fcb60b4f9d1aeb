// SPDX-License-Identifier: Apache-2.0
// Memory that runs out. Of every operator, and of every other call that may allocate, the n-th request
// is refused, for each n until the call succeeds. Each failure is OUT_OF_MEMORY with the call's name,
// makes nothing, leaks nothing, and leaves the context usable. Execute calls make no request at all.
// Plans into capacities: tests/test_plan_memory.c.
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/drawn_call.h"
#include "tests/support/params.h"
#include "tests/support/reduce_cases.h"
#include "tests/support/relation.h"
#include "tests/support/saved.h"

// A call whose memory runs out: *made is what it returns, if anything, and how it goes.
typedef struct allocating_call {
    const char *name; // that messages begin with
    spops_status (*call)(void *user, spops_context *ctx, void **made);
    void (*destroy)(void *user, void *made);
    void *user;
    bool must_ask; // there is a request that can be refused
    size_t scratch_bytes;
} allocating_call;

static void expect_failed(const allocating_call *c, spops_context *ctx, spops_status status,
                          const void *made, const char *what)
{
    spops_context *reports = strcmp(c->name, "context_create") == 0 ? NULL : ctx;
    const char *message = spops_last_error(reports);
    const size_t n = strlen(c->name);
    test_expect(reports, status, SPOPS_STATUS_OUT_OF_MEMORY, " memory", what);
    cr_assert(strncmp(message, c->name, n) == 0 && message[n] == ':', "%s: \"%s\"", what, message);
    cr_assert(made == NULL, "%s: the output is not NULL", what);
}

// Refuses one request after another, each on a new context, so that scratch has to be found too; how
// many requests the call makes.
static int64_t run_out(test_device *d, const allocating_call *c)
{
    checked_alloc *memory = &d->memory;
    int num_served = 0; // in spite of a request that was refused
    for (int64_t nth = 1;; ++nth) {
        const int64_t live = memory->live;
        spops_context *ctx = test_context(d, 1);
        void *made = (void *)16; // anything but NULL
        char what[128];
        (void)snprintf(what, sizeof what, "%s, request %d", c->name, (int)nth);
        cr_assert(nth < 1000, "%s never succeeds", c->name);
        test_expect_ok(ctx, spops_context_reserve(ctx, c->scratch_bytes), what);
        const int64_t kept = memory->live;
        memory->fail_at = memory->requests + nth;
        spops_status status = c->call(c->user, ctx, &made);
        const bool is_refused = memory->requests >= memory->fail_at;
        memory->fail_at = 0;
        if (is_refused && (status != SPOPS_STATUS_OK || ++num_served > 3)) {
            expect_failed(c, ctx, status, made, what);
            // Scratch, and what describes it, may stay with the context; and the context still serves.
            cr_assert(memory->live <= kept + 3, "%s: %d blocks leaked", what,
                      (int)(memory->live - kept));
            status = c->call(c->user, ctx, &made);
        } // else scratch that cannot grow by half is asked for once more, as it is needed
        test_expect_ok(ctx, status, what);
        c->destroy(c->user, made);
        spops_context_destroy(ctx);
        checked_alloc_check(memory, what);
        cr_assert(memory->live == live, "%s: %d blocks outlive the context", what,
                  (int)(memory->live - live));
        if (!is_refused) {
            cr_assert(nth > 1 || !c->must_ask, "%s takes no memory from the allocator", c->name);
            return nth - 1;
        }
    }
}

// ---- Operators ----------------------------------------------------------------------------------

enum { TRIES = 3000, DRAWS = 8, DEVICE_DRAWS = 3 };

static spops_status call_operator(void *user, spops_context *ctx, void **made)
{
    const drawn_call *c = user;
    spops_value ret;
    const spops_status status = spops_call(ctx, c->op, c->values, c->num_values, &ret);
    *made = ret.type == SPOPS_VALUE_POINTER ? ret.v.p : NULL;
    return status;
}

static void drop(void *user, void *made)
{
    const spops_value ret = {SPOPS_VALUE_POINTER, 0, {.p = made}};
    if (made != NULL) drawn_call_drop(user, &ret);
}

static bool makes_plan(const drawn_call *c)
{
    const spops_row_arg *last = &c->row->args[c->row->num_args - 1];
    return last->is_plan && last->is_output && last->may_be < 0;
}

static int64_t run_out_of_operator(test_device *d, drawn_call *c)
{
    const bool executes = strstr(c->op->function, "_execute") != NULL;
    const allocating_call call = {.name = c->op->function + strlen("spops_"),
                                  .call = call_operator,
                                  .destroy = drop,
                                  .user = c,
                                  .must_ask = makes_plan(c)};
    allocating_call reserved = call;
    if (executes)
        test_expect_ok(d->ctx,
                       spops_call_scratch_bytes(d->ctx, c->op, c->values, c->num_values,
                                                &reserved.scratch_bytes),
                       c->op->name);
    cr_log_info("%s", c->op->name);
    const int64_t requests = run_out(d, &reserved);
    cr_assert(requests == 0 || !executes, "%s: an execute call asks for memory", c->op->name);
    return requests;
}

BackendTest(allocation, operators, .timeout = 600)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    const int num_draws = p->backend == SPOPS_BACKEND_CPU ? DRAWS : DEVICE_DRAWS;
    drawn_call *c = calloc(1, sizeof *c);
    test_device d;
    cr_assert(c != NULL);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t i = 0; i < num; ++i) {
        int64_t most = 0;
        for (int draws = 0; draws < num_draws; ++draws) {
            test_rng rng = drawn_call_rng(ops[i], 4000 + draws);
            spops_value ret;
            cr_assert(drawn_call_find(c, &d, ops[i], &rng, TRIES, &ret) > 0, "%s: no valid call",
                      ops[i]->name);
            drawn_call_drop(c, &ret);
            const int64_t requests = run_out_of_operator(&d, c);
            most = requests > most ? requests : most;
            drawn_call_free(c);
        }
        if (getenv("SPOPS_TEST_VERBOSE") != NULL)
            printf("%-28s %d requests\n", ops[i]->name, (int)most);
    }
    test_close(&d);
    free(c);
}

// ---- Calls that are no operator's ---------------------------------------------------------------

// What they work on, made before memory runs out.
typedef struct setting {
    test_device d;
    spops_segments *segments;
    spops_bev_plan *bev;
    spops_coords *coords;
    spops_kernel_map *map;
    spops_bev_ranks_out ranks;
    spops_bev_intervals_out intervals;
    unsigned char saved[3][1 << 14]; // segments, bev, map
    size_t saved_bytes[3];
} setting;

static const spops_bev_shape bev_shape = {2, 2, 6, 3, 4, 7, 5, 2};

static spops_status create_context(void *user, spops_context *ctx, void **made)
{
    setting *s = user;
    spops_context_options o = spops_context_options_default();
    (void)ctx;
    o.backend = s->d.backend;
    o.stream = s->d.stream;
    o.allocator = checked_alloc_hooks(&s->d.memory);
    return spops_context_create(&o, (spops_context **)made);
}

static spops_status reserve_scratch(void *user, spops_context *ctx, void **made)
{
    (void)user;
    *made = NULL;
    return spops_context_reserve(ctx, (size_t)1 << 22);
}

static spops_status create_reduce(void *user, spops_context *ctx, void **made)
{
    const spops_reduce_desc desc = test_plain_sum();
    spops_reduce id;
    (void)user;
    *made = NULL;
    return spops_reduce_create(ctx, &desc, &id);
}

static spops_status load_segments(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    return saved_get(ctx, SPOPS_PLAN_SEGMENTS, s->saved[0], s->saved_bytes[0],
                     (spops_segments **)made);
}

static spops_status save_segments(void *user, spops_context *ctx, void **made)
{
    setting *s = user;
    *made = NULL;
    return saved_put(ctx, s->segments, s->saved[0], sizeof s->saved[0], &s->saved_bytes[0]);
}

static spops_status get_traffic(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    spops_traffic traffic = spops_traffic_default();
    *made = NULL;
    return spops_segments_get_traffic_sync(ctx, s->segments, SPOPS_DTYPE_F32, 8, 1, &traffic);
}

static spops_status load_bev(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    return saved_get(ctx, SPOPS_PLAN_BEV_PLAN, s->saved[1], s->saved_bytes[1],
                     (spops_bev_plan **)made);
}

static spops_status save_bev(void *user, spops_context *ctx, void **made)
{
    setting *s = user;
    *made = NULL;
    return saved_put(ctx, s->bev, s->saved[1], sizeof s->saved[1], &s->saved_bytes[1]);
}

static spops_status get_ranks(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    *made = NULL;
    return spops_bev_plan_get_ranks_sync(ctx, s->bev, &s->ranks);
}

static spops_status get_intervals(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    *made = NULL;
    return spops_bev_plan_get_intervals_sync(ctx, s->bev, &s->intervals);
}

static spops_status create_from_intervals(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    const spops_bev_intervals intervals = spops_bev_intervals_of(&s->intervals);
    spops_bev_options o = spops_bev_options_default();
    o.backward = 1;
    return spops_bev_plan_create_from_intervals(ctx, &bev_shape, &intervals, &o,
                                                (spops_bev_plan **)made);
}

static spops_status load_map(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    return saved_get_map(ctx, s->coords, s->coords, s->saved[2], s->saved_bytes[2],
                         (spops_kernel_map **)made);
}

static spops_status save_map(void *user, spops_context *ctx, void **made)
{
    setting *s = user;
    *made = NULL;
    return saved_put_map(ctx, s->map, s->coords, s->coords, s->saved[2], sizeof s->saved[2],
                         &s->saved_bytes[2]);
}

// Buffers for two groupings.
static spops_status create_tuned_conv(void *user, spops_context *ctx, void **made)
{
    const setting *s = user;
    spops_conv_choice tuning[2] = {{SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, SPOPS_MATH_EXACT, 27, 4, 4,
                                    1, 1, SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER,
                                    SPOPS_GROUPING_FIXED, 0, 0, 0, 0}};
    spops_sparseconv_options o = spops_sparseconv_options_default();
    tuning[1] = tuning[0];
    tuning[1].out_channels = 8;
    tuning[1].grouping = SPOPS_GROUPING_SEPARATE;
    o.tuning = tuning;
    o.num_tuning = 2;
    return spops_sparseconv_create(ctx, s->map, &o, (spops_sparseconv **)made);
}

static void destroy_context(void *user, void *made)
{
    (void)user;
    spops_context_destroy(made);
}

static void destroy_plan(void *user, void *made)
{
    (void)user;
    spops_plan_destroy(made);
}

static void make_setting(setting *s)
{
    static const test_shape shape = {"one huge", 40, LENGTHS_ONE_HUGE, 1000, 0};
    static const int32_t rows[][4] = {{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 1, 0, 1}, {0, 4, 4, 4}};
    const spops_kernel_shape cube = spops_kernel_shape_cube(3, 3, 1, 1);
    const int32_t none[1024] = {0};
    test_device *d = &s->d;
    test_rng rng = test_rng_make(12);
    test_relation relation = test_relation_create(&shape, FORM_OFFSETS, INDEXING_BOTH, &rng);
    bev_map random = bev_map_random(&bev_shape, 400, true, &rng);
    spops_kernel_map_options contents = spops_kernel_map_options_default();
    void *made;

    test_expect_ok(d->ctx,
                   test_relation_plan(&relation, d->ctx, 8, SPOPS_GRADIENTS_ALL, &s->segments),
                   "segments");
    test_expect_ok(d->ctx, bev_map_plan(d, &random, NULL, &s->bev), "bev");
    int32_t *there = test_upload_i32(d, rows[0], 16);
    contents.contents = SPOPS_MAP_FOR_CONV | SPOPS_MAP_PAIRS;
    test_expect_ok(d->ctx, spops_coords_create(d->ctx, 3, 4, there, NULL, &s->coords), "coords");
    test_expect_ok(d->ctx,
                   spops_kernel_map_create(d->ctx, SPOPS_MAP_SUBMANIFOLD, &cube, s->coords, NULL,
                                           &contents, &s->map),
                   "map");
    test_free(d, there);
    const spops_bev_plan_info info = bev_info(d, s->bev);
    const int64_t n = info.num_points;
    cr_assert(n > 100 && 3 * info.num_intervals <= 1024 && n <= 1024);
    s->ranks = (spops_bev_ranks_out){sizeof s->ranks,
                                     n,
                                     info.num_intervals,
                                     test_upload_i32(d, none, n),
                                     test_upload_i32(d, none, n),
                                     test_upload_i32(d, none, n),
                                     test_upload_i32(d, none, n),
                                     test_upload_i32(d, none, n)};
    s->intervals = (spops_bev_intervals_out){sizeof s->intervals, n, info.num_intervals,
                                             test_upload_i32(d, none, n),
                                             test_upload_i32(d, none, 3 * info.num_intervals)};
    test_expect_ok(d->ctx, get_intervals(s, d->ctx, &made), "intervals");
    test_expect_ok(d->ctx, save_segments(s, d->ctx, &made), "save");
    test_expect_ok(d->ctx, save_bev(s, d->ctx, &made), "save");
    test_expect_ok(d->ctx, save_map(s, d->ctx, &made), "save");
    bev_map_free(&random);
    test_relation_destroy(&relation);
}

static void free_setting(setting *s)
{
    int32_t *arrays[] = {s->ranks.ranks_depth,     s->ranks.ranks_feat,       s->ranks.ranks_bev,
                         s->ranks.interval_starts, s->ranks.interval_lengths, s->intervals.indices,
                         s->intervals.intervals};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i)
        test_free(&s->d, arrays[i]);
    spops_kernel_map_destroy(s->map);
    spops_coords_destroy(s->coords);
    spops_bev_plan_destroy(s->bev);
    spops_segments_destroy(s->segments);
}

BackendTest(allocation, other_calls, .timeout = 600)
{
    static setting s;
    const allocating_call calls[] = {
        {"context_create", create_context, destroy_context, &s, true, 0},
        {"context_reserve", reserve_scratch, destroy_plan, &s, true, 0},
        {"reduce_create", create_reduce, destroy_plan, &s, true, 0},
        {"plan_load", load_segments, destroy_plan, &s, true, 0},
        {"plan_save", save_segments, destroy_plan, &s, false, 0},
        {"segments_get_traffic_sync", get_traffic, destroy_plan, &s, false, 0},
        {"plan_load", load_bev, destroy_plan, &s, true, 0},
        {"plan_save", save_bev, destroy_plan, &s, false, 0},
        {"bev_plan_get_ranks_sync", get_ranks, destroy_plan, &s, false, 0},
        {"bev_plan_get_intervals_sync", get_intervals, destroy_plan, &s, false, 0},
        {"bev_plan_create_from_intervals", create_from_intervals, destroy_plan, &s, true, 0},
        {"plan_load", load_map, destroy_plan, &s, true, 0},
        {"plan_save", save_map, destroy_plan, &s, true, 0},
        {"sparseconv_create", create_tuned_conv, destroy_plan, &s, true, 0}};
    memset(&s, 0, sizeof s);
    if (!test_open(&s.d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    make_setting(&s);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i)
        (void)run_out(&s.d, &calls[i]);
    free_setting(&s);
    test_close(&s.d);
}
