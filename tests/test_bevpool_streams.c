// SPDX-License-Identifier: Apache-2.0
// BEV pooling on several contexts at once: each with its own stream, data and scratch, some with a
// plan of their own and some sharing one. Whatever runs beside them, they leave the bits that they
// leave alone.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/bev_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum { NUM_LANES = 7, NUM_OUTPUTS = 3 };

// Under a sanitizer a round takes ten times as long.
static int num_rounds(void)
{
    return test_quick() ? 6 : 30;
}

typedef struct lane_kind {
    bool shared; // runs the plan of the lane before
    bool refill; // the plan is set anew on the stream before it is used
    spops_dtype dtype;
    int64_t cols;
    spops_bev_layout layout;
    int32_t num_threads; // on the CPU
} lane_kind;

// The first two share a plan whose fullest cells are cut into pieces; so do the next two.
static const lane_kind kinds[NUM_LANES] = {
    {false, false, SPOPS_DTYPE_F16, 80, SPOPS_BEV_CHANNELS_LAST, 2},
    {true, false, SPOPS_DTYPE_F32, 33, SPOPS_BEV_CHANNELS_FIRST, 1},
    {false, false, SPOPS_DTYPE_BF16, 128, SPOPS_BEV_CHANNELS_LAST, 3},
    {true, false, SPOPS_DTYPE_BF16, 128, SPOPS_BEV_CHANNELS_LAST, 1},
    {false, true, SPOPS_DTYPE_F16, 24, SPOPS_BEV_CHANNELS_LAST, 2},
    {false, true, SPOPS_DTYPE_F32, 5, SPOPS_BEV_CHANNELS_FIRST, 1},
    {false, false, SPOPS_DTYPE_F32, 256, SPOPS_BEV_CHANNELS_LAST, 2},
};

typedef struct lane {
    const lane_kind *kind;
    void *stream;
    spops_context *ctx;
    spops_bev_plan *plan, *own_plan; // own_plan: NULL where it is another lane's
    double *transforms;              // for refill, where ctx runs
    guarded depth, feat, grad_out;
    guarded outputs[NUM_OUTPUTS]; // out, grad_depth, grad_feat
    unsigned char *alone[NUM_OUTPUTS];
    spops_status status;
    int64_t wrong; // rounds with other bits, counted by the lane's own thread
} lane;

// ---- Lanes ----

static void open_context(const test_device *d, lane *l)
{
    spops_context_options options = spops_context_options_default();
    cr_assert(device_stream_create(d->backend, &l->stream), "%s", device_error());
    options.backend = d->backend;
    options.stream = l->stream;
    options.num_threads = l->kind->num_threads;
    cr_assert(spops_context_create(&options, &l->ctx) == SPOPS_STATUS_OK, "%s",
              spops_last_error(NULL));
}

// `d` as the lane sees it, for the helpers that make plans.
static test_device seen_by(const test_device *d, const lane *l)
{
    test_device view = *d;
    view.ctx = l->ctx;
    view.stream = l->stream;
    return view;
}

// A map with cells of a few points and some of thousands, which both backends cut into pieces.
static void plan_random(const test_device *d, lane *l, int number)
{
    static const spops_bev_shape shape = {2, 3, 16, 6, 11, 23, 17, 1};
    test_device view = seen_by(d, l);
    test_rng rng = test_rng_make(900 + (uint64_t)number);
    spops_bev_options options = spops_bev_options_default();
    options.backward = 1;
    bev_map map = bev_map_random(&shape, 20000 + 500 * number, false, &rng);
    test_expect_ok(l->ctx, bev_map_plan(&view, &map, &options, &l->own_plan), "create");
    const spops_bev_plan_info info = bev_info(&view, l->own_plan);
    cr_assert(info.longest > 2048, "the fullest cell has %lld points", (long long)info.longest);
    bev_map_free(&map);
}

static void plan_refilled(const test_device *d, lane *l, int number)
{
    test_device view = seen_by(d, l);
    bev_geometry_case g = bev_geometry_simulate(1 + number % 2, 4, 0.2 * number);
    spops_bev_options options = spops_bev_options_default();
    const int num_cameras = g.geometry.shape.num_batches * g.geometry.shape.num_cameras;
    double *transforms =
        (double *)calloc((size_t)num_cameras * SPOPS_BEV_TRANSFORM_DOUBLES, sizeof(double));
    options.backward = 1;
    test_expect_ok(l->ctx, spops_bev_geometry_get_transforms(l->ctx, &g.geometry, transforms),
                   "transforms");
    l->transforms = test_upload_f64(&view, transforms, num_cameras * SPOPS_BEV_TRANSFORM_DOUBLES);
    g.geometry.cameras = NULL;
    test_expect_ok(l->ctx, spops_bev_plan_reserve(l->ctx, &g.geometry, &options, &l->own_plan),
                   "reserve");
    free(transforms);
    bev_geometry_free(&g);
}

static void fill_random(guarded *g, test_rng *rng)
{
    free(guarded_fill(g, rng, VALUES_RANDOM, false, 1));
    guarded_upload(g);
}

static void open_data(const test_device *d, lane *l, int number)
{
    test_device view = seen_by(d, l);
    const lane_kind *k = l->kind;
    const spops_bev_plan_info info = bev_info(&view, l->plan);
    const bool first = k->layout == SPOPS_BEV_CHANNELS_FIRST;
    const int64_t batches = info.shape.num_batches;
    const int64_t rows = first ? batches * k->cols : info.num_cells;
    const int64_t cols = first ? info.num_cells / batches : k->cols;
    test_rng rng = test_rng_make(700 + (uint64_t)number);
    l->depth = guarded_create(d->backend, "depth", info.num_depths, 1, 0, 0, k->dtype);
    l->feat = guarded_create(d->backend, "feat", info.num_features, k->cols, 0, 0, k->dtype);
    l->grad_out = guarded_create(d->backend, "grad_out", rows, cols, 0, 0, k->dtype);
    l->outputs[0] = guarded_create(d->backend, "out", rows, cols, 0, 0, k->dtype);
    l->outputs[1] = guarded_create(d->backend, "grad_depth", info.num_depths, 1, 0, 0, k->dtype);
    l->outputs[2] =
        guarded_create(d->backend, "grad_feat", info.num_features, k->cols, 0, 0, k->dtype);
    fill_random(&l->depth, &rng), fill_random(&l->feat, &rng), fill_random(&l->grad_out, &rng);
}

static void open_lanes(const test_device *d, lane lanes[NUM_LANES])
{
    memset(lanes, 0, NUM_LANES * sizeof *lanes);
    for (int i = 0; i < NUM_LANES; ++i) {
        lane *l = &lanes[i];
        l->kind = &kinds[i];
        open_context(d, l);
        if (l->kind->refill)
            plan_refilled(d, l, i);
        else if (!l->kind->shared)
            plan_random(d, l, i);
        l->plan = l->kind->shared ? lanes[i - 1].plan : l->own_plan;
        test_expect_ok(l->ctx, spops_context_reserve(l->ctx, spops_bev_plan_scratch_bytes(l->plan)),
                       "reserve");
        open_data(d, l, i);
    }
}

static void close_lanes(test_device *d, lane lanes[NUM_LANES])
{
    for (int i = NUM_LANES - 1; i >= 0; --i) {
        lane *l = &lanes[i];
        guarded_destroy(&l->depth), guarded_destroy(&l->feat), guarded_destroy(&l->grad_out);
        for (int k = 0; k < NUM_OUTPUTS; ++k) {
            guarded_destroy(&l->outputs[k]);
            free(l->alone[k]);
        }
        if (l->transforms != NULL) test_free(d, l->transforms);
        spops_bev_plan_destroy(l->own_plan);
        spops_context_destroy(l->ctx);
        device_stream_destroy(d->backend, l->stream);
    }
}

// Forward and both gradients; a refilled plan is made anew first. What failed stays in status.
static void enqueue(lane *l)
{
    const lane_kind *k = l->kind;
    spops_status status = SPOPS_STATUS_OK;
    if (k->refill) status = spops_bev_plan_update(l->ctx, l->plan, l->transforms);
    if (status == SPOPS_STATUS_OK)
        status = bev_execute(l->ctx, l->plan, k->layout, l->depth.view, l->feat.view,
                             l->outputs[0].view);
    if (status == SPOPS_STATUS_OK)
        status = spops_bevpool_execute_backward(l->ctx, l->plan, k->layout, l->grad_out.view,
                                                l->depth.view, l->feat.view, &l->outputs[1].view,
                                                &l->outputs[2].view);
    if (l->status == SPOPS_STATUS_OK) l->status = status;
}

static void poison(lane *l)
{
    for (int k = 0; k < NUM_OUTPUTS; ++k) {
        guarded_poison(&l->outputs[k], 0xff);
        guarded_upload(&l->outputs[k]);
    }
}

static void wait_for(const test_device *d, const lane *l)
{
    cr_assert(device_stream_wait(d->backend, l->stream), "%s", device_error());
}

// Each lane by itself, everything else idle. The forward result must not be what was there before.
static void run_alone(const test_device *d, lane lanes[NUM_LANES])
{
    for (int i = 0; i < NUM_LANES; ++i) {
        lane *l = &lanes[i];
        poison(l);
        enqueue(l);
        wait_for(d, l);
        test_expect_ok(l->ctx, l->status, "alone");
        for (int k = 0; k < NUM_OUTPUTS; ++k) {
            guarded_download(&l->outputs[k]);
            guarded_check_padding(&l->outputs[k], "alone");
            l->alone[k] = guarded_elements(&l->outputs[k]);
        }
        int64_t filled = 0;
        const spops_matrix *out = &l->outputs[0].view;
        for (int64_t r = 0; r < out->rows; ++r)
            for (int64_t c = 0; c < out->cols; ++c) {
                const double v = guarded_get(&l->outputs[0], r, c);
                filled += v == v && v != 0.0;
            }
        cr_assert(filled > out->rows * out->cols / 100, "lane %d has %lld results", i,
                  (long long)filled);
    }
}

static void check_bits(const test_device *d, lane lanes[NUM_LANES], const char *what)
{
    for (int i = 0; i < NUM_LANES; ++i)
        wait_for(d, &lanes[i]);
    for (int i = 0; i < NUM_LANES; ++i) {
        char text[256];
        lane *l = &lanes[i];
        test_expect_ok(l->ctx, l->status, what);
        for (int k = 0; k < NUM_OUTPUTS; ++k) {
            const char *where = test_describe(text, "%s, lane %d, %s", what, i, l->outputs[k].name);
            guarded_download(&l->outputs[k]);
            guarded_check_padding(&l->outputs[k], where);
            guarded_check_bits(&l->outputs[k], l->alone[k], where);
        }
    }
}

// ---- One thread, many streams ----

BackendTest(bevpool_streams, side_by_side, .timeout = 300)
{
    test_device d;
    lane lanes[NUM_LANES];
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    open_lanes(&d, lanes);
    run_alone(&d, lanes);
    for (int i = 0; i < NUM_LANES; ++i)
        poison(&lanes[i]);
    for (int round = 0; round < num_rounds(); ++round)
        for (int i = 0; i < NUM_LANES; ++i) // lanes come and go in another order each round
            if ((i + round) % 5 != 0 || round == num_rounds() - 1)
                enqueue(&lanes[(i + round) % NUM_LANES]);
    check_bits(&d, lanes, "side by side");
    close_lanes(&d, lanes);
    test_close(&d);
}

// Graphs captured one after another, replayed all at once.
Test(bevpool_streams, graphs_side_by_side, .timeout = 300)
{
    enum { RUNS = 4 };
    test_device d;
    lane lanes[NUM_LANES];
    device_graph *graphs[NUM_LANES];
    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_STREAM)) return;
    open_lanes(&d, lanes);
    run_alone(&d, lanes);
    for (int i = 0; i < NUM_LANES; ++i) {
        cr_assert(device_capture_begin(lanes[i].stream), "%s", device_error());
        for (int run = 0; run < RUNS; ++run)
            enqueue(&lanes[i]);
        cr_assert(device_capture_end(lanes[i].stream, &graphs[i]), "%s", device_error());
        test_expect_ok(lanes[i].ctx, lanes[i].status, "capture");
    }
    for (int i = 0; i < NUM_LANES; ++i)
        poison(&lanes[i]);
    for (int round = 0; round < num_rounds(); ++round)
        for (int i = 0; i < NUM_LANES; ++i)
            cr_assert(device_graph_launch(graphs[i], lanes[i].stream), "%s", device_error());
    check_bits(&d, lanes, "graphs side by side");
    for (int i = 0; i < NUM_LANES; ++i)
        device_graph_destroy(graphs[i]);
    close_lanes(&d, lanes);
    test_close(&d);
}

// ---- A thread for each context ----

typedef struct runner {
    const test_device *d;
    lane *l;
    pthread_barrier_t *start;
    pthread_t thread;
} runner;

// On the CPU the results of every round are looked at; a device's are looked at in the end. Nothing
// here may end the test: assertions belong to the thread that runs it.
static void *run_rounds(void *argument)
{
    const runner *r = (const runner *)argument;
    lane *l = r->l;
    const bool on_cpu = r->d->backend == SPOPS_BACKEND_CPU;
    pthread_barrier_wait(r->start);
    for (int round = 0; round < num_rounds(); ++round) {
        for (int k = 0; on_cpu && k < NUM_OUTPUTS; ++k) {
            const spops_matrix *m = &l->outputs[k].view;
            memset(m->data, 0xff, (size_t)(m->rows * m->cols) * spops_dtype_bytes(m->dtype));
        }
        enqueue(l);
        if (!device_stream_wait(r->d->backend, l->stream)) ++l->wrong;
        for (int k = 0; on_cpu && k < NUM_OUTPUTS; ++k) {
            const spops_matrix *m = &l->outputs[k].view;
            l->wrong += memcmp(m->data, l->alone[k],
                               (size_t)(m->rows * m->cols) * spops_dtype_bytes(m->dtype)) != 0;
        }
    }
    return NULL;
}

BackendTest(bevpool_streams, in_threads, .timeout = 300)
{
    test_device d;
    lane lanes[NUM_LANES];
    runner runners[NUM_LANES];
    pthread_barrier_t start;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    open_lanes(&d, lanes);
    run_alone(&d, lanes);
    for (int i = 0; i < NUM_LANES; ++i)
        poison(&lanes[i]);
    cr_assert(pthread_barrier_init(&start, NULL, NUM_LANES) == 0);
    for (int i = 0; i < NUM_LANES; ++i) {
        runners[i] = (runner){.d = &d, .l = &lanes[i], .start = &start};
        cr_assert(pthread_create(&runners[i].thread, NULL, run_rounds, &runners[i]) == 0);
    }
    for (int i = 0; i < NUM_LANES; ++i)
        pthread_join(runners[i].thread, NULL);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < NUM_LANES; ++i)
        cr_assert(lanes[i].wrong == 0, "lane %d: %lld outputs with other bits", i,
                  (long long)lanes[i].wrong);
    check_bits(&d, lanes, "in threads");
    close_lanes(&d, lanes);
    test_close(&d);
}
