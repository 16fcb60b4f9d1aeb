// SPDX-License-Identifier: Apache-2.0
// Memory that runs out: for every call that may allocate, its n-th request is refused, for each n
// until the call succeeds. Each failure is OUT_OF_MEMORY with a message, leaves the output NULL,
// frees what it took, and leaves the context usable.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

// What a call works on, made before memory runs out.
typedef struct setting {
    test_device d;
    test_relation relation;
    int32_t *offsets, *keys, *idx, *weight_idx; // where the backend runs
    unsigned char *saved, *saved_bev;
    size_t saved_bytes, saved_bev_bytes;
    bev_geometry_case geometry;
    bev_map map;
    spops_bev_ranks_out ranks;
    spops_bev_intervals_out intervals;
    spops_segments *segments;
    spops_bev_plan *bev;
} setting;

// A call that may allocate: *made is what it returns, freed by `destroy`.
typedef struct allocating_call {
    const char *name;
    spops_status (*call)(setting *s, spops_context *ctx, void **made);
    void (*destroy)(void *made);
    bool keeps_memory; // scratch that stays with the context
} allocating_call;

static spops_segments_options segments_options(const setting *s)
{
    spops_segments_options o = spops_segments_options_default();
    o.idx = s->idx;
    o.weight_idx = s->weight_idx;
    o.num_rows = s->relation.ref.num_rows;
    o.num_weights = s->relation.ref.num_weights;
    o.gradients = SPOPS_GRADIENTS_ALL;
    return o;
}

static spops_status create_by_offsets(setting *s, spops_context *ctx, void **made)
{
    const spops_segments_options o = segments_options(s);
    return spops_segments_create(ctx, s->relation.ref.num_segments, s->offsets, &o,
                                 (spops_segments **)made);
}

static spops_status create_by_sorted(setting *s, spops_context *ctx, void **made)
{
    const spops_segments_options o = segments_options(s);
    return spops_segments_create_from_keys(ctx, s->relation.ref.num_segments,
                                           s->relation.ref.num_terms, s->keys, SPOPS_KEYS_SORTED,
                                           &o, (spops_segments **)made);
}

static spops_status create_by_unsorted(setting *s, spops_context *ctx, void **made)
{
    const spops_segments_options o = segments_options(s);
    return spops_segments_create_from_keys(ctx, s->relation.ref.num_segments,
                                           s->relation.ref.num_terms, s->keys, SPOPS_KEYS_UNSORTED,
                                           &o, (spops_segments **)made);
}

static spops_status reserve_segments(setting *s, spops_context *ctx, void **made)
{
    spops_segments_options o = segments_options(s);
    o.idx = o.weight_idx = NULL;
    return spops_segments_reserve(ctx, s->relation.ref.num_segments, s->relation.ref.num_terms, &o,
                                  (spops_segments **)made);
}

static spops_status load_segments(setting *s, spops_context *ctx, void **made)
{
    return spops_segments_load(ctx, s->saved, s->saved_bytes, (spops_segments **)made);
}

static spops_bev_options bev_options(void)
{
    spops_bev_options o = spops_bev_options_default();
    o.backward = 1;
    return o;
}

static spops_status create_bev(setting *s, spops_context *ctx, void **made)
{
    const spops_bev_options o = bev_options();
    return spops_bev_plan_create(ctx, &s->geometry.geometry, &o, (spops_bev_plan **)made);
}

static spops_status reserve_bev(setting *s, spops_context *ctx, void **made)
{
    const spops_bev_options o = bev_options();
    return spops_bev_plan_reserve(ctx, &s->geometry.geometry, &o, (spops_bev_plan **)made);
}

static spops_status create_bev_from_ranks(setting *s, spops_context *ctx, void **made)
{
    const spops_bev_options o = bev_options();
    const spops_bev_ranks ranks = spops_bev_ranks_of(&s->ranks);
    return spops_bev_plan_create_from_ranks(ctx, &s->map.shape, &ranks, &o,
                                            (spops_bev_plan **)made);
}

static spops_status create_bev_from_intervals(setting *s, spops_context *ctx, void **made)
{
    const spops_bev_options o = bev_options();
    const spops_bev_intervals intervals = spops_bev_intervals_of(&s->intervals);
    return spops_bev_plan_create_from_intervals(ctx, &s->map.shape, &intervals, &o,
                                                (spops_bev_plan **)made);
}

static spops_status load_bev(setting *s, spops_context *ctx, void **made)
{
    return spops_bev_plan_load(ctx, s->saved_bev, s->saved_bev_bytes, (spops_bev_plan **)made);
}

static spops_status create_context(setting *s, spops_context *ctx, void **made)
{
    spops_context_options o = spops_context_options_default();
    (void)ctx;
    o.backend = s->d.backend;
    o.stream = s->d.stream;
    o.allocator = checked_alloc_hooks(&s->d.memory);
    return spops_context_create(&o, (spops_context **)made);
}

// Calls that return no object.
static spops_status reserve_scratch(setting *s, spops_context *ctx, void **made)
{
    (void)s;
    *made = NULL;
    return spops_context_reserve(ctx, (size_t)1 << 22);
}

static spops_status save_segments(setting *s, spops_context *ctx, void **made)
{
    size_t bytes = 0;
    *made = NULL;
    return spops_segments_save(ctx, s->segments, s->saved, s->saved_bytes, &bytes);
}

static spops_status save_bev(setting *s, spops_context *ctx, void **made)
{
    size_t bytes = 0;
    *made = NULL;
    return spops_bev_plan_save(ctx, s->bev, s->saved_bev, s->saved_bev_bytes, &bytes);
}

static spops_status get_ranks(setting *s, spops_context *ctx, void **made)
{
    *made = NULL;
    return spops_bev_plan_get_ranks_sync(ctx, s->bev, &s->ranks);
}

static spops_status get_intervals(setting *s, spops_context *ctx, void **made)
{
    *made = NULL;
    return spops_bev_plan_get_intervals_sync(ctx, s->bev, &s->intervals);
}

static spops_status get_traffic(setting *s, spops_context *ctx, void **made)
{
    spops_traffic traffic = spops_traffic_default();
    *made = NULL;
    return spops_segments_get_traffic_sync(ctx, s->segments, SPOPS_DTYPE_F32, 8, 1, &traffic);
}

static void identity(void *user, int64_t n, void *state)
{
    (void)user;
    memset(state, 0, (size_t)n * sizeof(float));
}

static void fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    (void)user, (void)term;
    for (int64_t i = 0; i < n; ++i)
        ((float *)state)[i] += v[i];
}

static void combine(void *user, int64_t n, void *a, const void *b)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        ((float *)a)[i] += ((const float *)b)[i];
}

static void finalize(void *user, int64_t n, const void *state, int64_t count, float *out)
{
    (void)user, (void)count;
    memcpy(out, state, (size_t)n * sizeof(float));
}

static spops_status create_reduce(setting *s, spops_context *ctx, void **made)
{
    spops_reduce id;
    spops_reduce_desc desc;
    (void)s;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.name = "plain sum";
    desc.state_bytes = sizeof(float);
    desc.identity = identity, desc.fold = fold, desc.combine = combine, desc.finalize = finalize;
    desc.cuda_op = "plain_sum";
    desc.cuda_source =
        "struct plain_sum {\n"
        "    struct state { float v; };\n"
        "    static constexpr bool uses_term = false;\n"
        "    static constexpr bool has_arg = false;\n"
        "    static __device__ state identity() { state a = {0.0f}; return a; }\n"
        "    static __device__ state lift(float v, int) { state a = {v}; return a; }\n"
        "    static __device__ state combine(state a, state b) { a.v += b.v; return a; }\n"
        "    static __device__ float finalize(state a, long long) { return a.v; }\n"
        "    static __device__ int arg(state) { return -1; }\n"
        "    static __device__ float grad(float, int, state, long long) { return 1.0f; }\n"
        "};\n";
    *made = NULL;
    return spops_reduce_create(ctx, &desc, &id);
}

static void destroy_segments(void *made)
{
    spops_segments_destroy((spops_segments *)made);
}

static void destroy_bev(void *made)
{
    spops_bev_plan_destroy((spops_bev_plan *)made);
}

static void destroy_context(void *made)
{
    spops_context_destroy((spops_context *)made);
}

static const allocating_call calls[] = {
    {"segments_create", create_by_offsets, destroy_segments, true},
    {"segments_create_from_keys (sorted)", create_by_sorted, destroy_segments, true},
    {"segments_create_from_keys (unsorted)", create_by_unsorted, destroy_segments, true},
    {"segments_reserve", reserve_segments, destroy_segments, true},
    {"segments_load", load_segments, destroy_segments, true},
    {"segments_save", save_segments, NULL, false},
    {"segments_get_traffic_sync", get_traffic, NULL, false},
    {"bev_plan_create", create_bev, destroy_bev, true},
    {"bev_plan_reserve", reserve_bev, destroy_bev, true},
    {"bev_plan_create_from_ranks", create_bev_from_ranks, destroy_bev, true},
    {"bev_plan_create_from_intervals", create_bev_from_intervals, destroy_bev, true},
    {"bev_plan_load", load_bev, destroy_bev, true},
    {"bev_plan_save", save_bev, NULL, false},
    {"bev_plan_get_ranks_sync", get_ranks, NULL, false},
    {"bev_plan_get_intervals_sync", get_intervals, NULL, false},
    {"context_create", create_context, destroy_context, false},
    {"context_reserve", reserve_scratch, NULL, true},
    {"reduce_create", create_reduce, NULL, true},
};

static void make_setting(setting *s)
{
    static const test_shape shape = {"one huge", 40, LENGTHS_ONE_HUGE, 3000, 0};
    static const spops_bev_shape bev_shape = {2, 2, 6, 3, 4, 7, 5, 2};
    test_rng rng = test_rng_make(12);
    test_device *d = &s->d;
    s->relation = test_relation_create(&shape, FORM_OFFSETS, INDEXING_BOTH, &rng);
    s->offsets = test_upload_i32(d, s->relation.offsets, 41);
    s->keys = test_upload_i32(d, s->relation.segment, s->relation.ref.num_terms);
    s->idx = test_upload_i32(d, s->relation.row, s->relation.ref.num_terms);
    s->weight_idx = test_upload_i32(d, s->relation.weight, s->relation.ref.num_terms);
    test_expect_ok(d->ctx, create_by_offsets(s, d->ctx, (void **)&s->segments), "segments");
    test_expect_ok(d->ctx, spops_segments_save(d->ctx, s->segments, NULL, 0, &s->saved_bytes), "");
    s->saved = (unsigned char *)malloc(s->saved_bytes);
    test_expect_ok(
        d->ctx, spops_segments_save(d->ctx, s->segments, s->saved, s->saved_bytes, &s->saved_bytes),
        "save");
    s->geometry = bev_geometry_simulate(1, 2, 0.2);
    bev_map random = bev_map_random(&bev_shape, 400, true, &rng);
    test_expect_ok(d->ctx, bev_map_plan(d, &random, NULL, &s->bev), "bev");
    bev_map_free(&random);
    s->map = bev_map_of_plan(d, s->bev);
    const bev_map *m = &s->map;
    int32_t *triples = (int32_t *)calloc((size_t)m->num_intervals * 3 + 1, sizeof(int32_t));
    for (int64_t i = 0; i < m->num_intervals; ++i) {
        triples[3 * i] = m->starts[i];
        triples[3 * i + 1] = m->starts[i] + m->lengths[i];
        triples[3 * i + 2] = m->cell_of[m->starts[i]];
    }
    s->ranks = (spops_bev_ranks_out){sizeof s->ranks,
                                     m->ref.num_points,
                                     m->num_intervals,
                                     test_upload_i32(d, m->depth_of, m->ref.num_points),
                                     test_upload_i32(d, m->feat_of, m->ref.num_points),
                                     test_upload_i32(d, m->cell_of, m->ref.num_points),
                                     test_upload_i32(d, m->starts, m->num_intervals),
                                     test_upload_i32(d, m->lengths, m->num_intervals)};
    s->intervals =
        (spops_bev_intervals_out){sizeof s->intervals, m->ref.num_points, m->num_intervals,
                                  test_upload_i32(d, m->depth_of, m->ref.num_points),
                                  test_upload_i32(d, triples, m->num_intervals * 3)};
    free(triples);
    test_expect_ok(d->ctx, spops_bev_plan_save(d->ctx, s->bev, NULL, 0, &s->saved_bev_bytes), "");
    s->saved_bev = (unsigned char *)malloc(s->saved_bev_bytes);
    test_expect_ok(
        d->ctx,
        spops_bev_plan_save(d->ctx, s->bev, s->saved_bev, s->saved_bev_bytes, &s->saved_bev_bytes),
        "save");
}

static void free_setting(setting *s)
{
    test_device *d = &s->d;
    test_free(d, s->offsets), test_free(d, s->keys), test_free(d, s->idx);
    test_free(d, s->weight_idx);
    test_free(d, s->ranks.ranks_depth), test_free(d, s->ranks.ranks_feat);
    test_free(d, s->ranks.ranks_bev), test_free(d, s->ranks.interval_starts);
    test_free(d, s->ranks.interval_lengths);
    test_free(d, s->intervals.indices), test_free(d, s->intervals.intervals);
    free(s->saved), free(s->saved_bev);
    spops_segments_destroy(s->segments);
    spops_bev_plan_destroy(s->bev);
    test_relation_destroy(&s->relation);
    bev_map_free(&s->map);
    bev_geometry_free(&s->geometry);
}

static void run_out(setting *s, const allocating_call *c)
{
    checked_alloc *memory = &s->d.memory;
    // A fresh context each, so that scratch has to be found too.
    spops_context *ctx = test_context(&s->d, 1);
    int64_t n = 0;
    for (bool done = false; !done;) {
        char text[256];
        void *made = (void *)s; // anything but NULL
        const int64_t live = memory->live;
        cr_assert(++n < 1000, "%s never succeeds", c->name);
        const char *what = test_describe(text, "%s, request %lld refused", c->name, (long long)n);
        memory->fail_at = memory->requests + n;
        const spops_status status = c->call(s, ctx, &made);
        const bool refused = memory->requests >= memory->fail_at;
        memory->fail_at = 0;
        checked_alloc_check(memory, what);
        done = !refused;
        spops_context *reports = c->call == create_context ? NULL : ctx;
        if (!refused) {
            test_expect_ok(reports, status, what);
        } else {
            test_expect(reports, status, SPOPS_STATUS_OUT_OF_MEMORY, "", what);
            cr_assert(strlen(spops_last_error(reports)) > 0, "%s: no message", what);
            cr_assert(made == NULL, "%s: the output is not NULL", what);
            // Scratch and tickets that were had before the failure may stay with the context.
            if (!c->keeps_memory) {
                cr_assert(memory->live == live, "%s: %lld blocks leaked", what,
                          (long long)(memory->live - live));
            }
        }
        if (c->destroy != NULL) c->destroy(made);
    }
    // The last round made no failing request: that is the call's number of requests.
    cr_assert(n > 1 || c->destroy == NULL, "%s takes no memory from the allocator", c->name);
    // The context works.
    spops_segments *plan = NULL;
    test_expect_ok(ctx, create_by_unsorted(s, ctx, (void **)&plan), c->name);
    spops_segments_destroy(plan);
    spops_context_destroy(ctx);
}

ParameterizedTestParameters(allocation, every_request_fails)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, allocation, every_request_fails, .timeout = 600)
{
    setting s;
    memset(&s, 0, sizeof s);
    if (!test_open(&s.d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    make_setting(&s);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; ++i) {
        const int64_t live = s.d.memory.live;
        run_out(&s, &calls[i]);
        cr_assert(s.d.memory.live == live, "%s: %lld blocks outlive their context", calls[i].name,
                  (long long)(s.d.memory.live - live));
    }
    free_setting(&s);
    test_close(&s.d);
}

// Execute calls take no memory at all: the allocator refuses everything while they run.
ParameterizedTestParameters(allocation, execute_takes_none)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, allocation, execute_takes_none)
{
    setting s;
    memset(&s, 0, sizeof s);
    if (!test_open(&s.d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    make_setting(&s);
    const ref_relation *r = &s.relation.ref;
    const spops_backend_kind b = s.d.backend;
    spops_context *ctx = s.d.ctx;
    guarded x = guarded_create(b, "x", r->num_rows, 5, 0, 0, SPOPS_DTYPE_F32);
    guarded w = guarded_create(b, "w", r->num_weights, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(b, "out", r->num_segments, 5, 0, 0, SPOPS_DTYPE_F32);
    guarded gx = guarded_create(b, "grad_x", r->num_rows, 5, 0, 0, SPOPS_DTYPE_F32);
    guarded gw = guarded_create(b, "grad_w", r->num_weights, 1, 0, 0, SPOPS_DTYPE_F32);
    test_rng rng = test_rng_make(6);
    free(guarded_fill(&x, &rng, VALUES_EXACT, false, 1));
    free(guarded_fill(&w, &rng, VALUES_EXACT, false, 1));
    guarded_upload(&x), guarded_upload(&w);
    spops_bev_plan *bev = NULL;
    test_expect_ok(ctx, create_bev(&s, ctx, (void **)&bev), "bev");
    const spops_bev_plan_info info = bev_info(&s.d, bev);
    guarded depth = guarded_create(b, "depth", info.num_depths, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded feat = guarded_create(b, "feat", info.num_features, 5, 0, 0, SPOPS_DTYPE_F32);
    guarded cells = guarded_create(b, "cells", 5, info.num_cells, 0, 0, SPOPS_DTYPE_F32);
    guarded gd = guarded_create(b, "grad_depth", info.num_depths, 1, 0, 0, SPOPS_DTYPE_F32);
    guarded gf = guarded_create(b, "grad_feat", info.num_features, 5, 0, 0, SPOPS_DTYPE_F32);

    const int64_t requests = s.d.memory.requests;
    for (int reduce = 0; reduce < 5; ++reduce) {
        test_expect_ok(ctx,
                       spops_segreduce_execute(ctx, s.segments, (spops_reduce)reduce, x.view,
                                               &w.view, out.view, NULL),
                       "execute");
        test_expect_ok(ctx,
                       spops_segreduce_execute_backward(ctx, s.segments, (spops_reduce)reduce,
                                                        out.view, x.view, &w.view, &gx.view,
                                                        &gw.view),
                       "execute_backward");
    }
    test_expect_ok(
        ctx, bev_execute(ctx, bev, SPOPS_BEV_CHANNELS_FIRST, depth.view, feat.view, cells.view),
        "bevpool_execute");
    test_expect_ok(ctx,
                   spops_bevpool_execute_backward(ctx, bev, SPOPS_BEV_CHANNELS_FIRST, cells.view,
                                                  depth.view, feat.view, &gd.view, &gf.view),
                   "bevpool_execute_backward");
    test_wait(&s.d);
    cr_assert(s.d.memory.requests == requests, "execute calls made %lld requests",
              (long long)(s.d.memory.requests - requests));
    guarded *all[] = {&x, &w, &out, &gx, &gw, &depth, &feat, &cells, &gd, &gf};
    for (int i = 0; i < 10; ++i)
        guarded_destroy(all[i]);
    spops_bev_plan_destroy(bev);
    free_setting(&s);
    test_close(&s.d);
}
