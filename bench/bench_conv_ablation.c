// SPDX-License-Identifier: Apache-2.0
// The layers of a MinkUNet on a LiDAR scan, forward: each dataflow alone, gather-matmul-scatter with
// every grouping of its products, and the tuner's choice; the movement of gather-matmul-scatter beside
// one that is scalar, f32 and weight-stationary; and the sums over the network.
#include "bench/bench_conv_ablation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/conv_baselines.h"
#include "bench/bench_data.h"
#include "bench/bench_scenes.h"
#include "support/unet.h"

#define CELL_M      0.1
#define NUM_SAMPLES 16 // rows whose values are checked
#define QUICK_RUNS  5  // samples of a configuration in the search

// Ways to run a layer. ADAPTIVE is searched as the paper's Algorithm 5 does: every epsilon and S of
// two lists, and the fastest is measured; on the CPU, where that takes long, the first of each list.
enum { FETCH, IGEMM, SEPARATE, SYMMETRIC, FIXED, ADAPTIVE, CHOSEN, NUM_WAYS };
static const char *const way_names[NUM_WAYS] = {
    "fetch_on_demand", "implicit_gemm", "separate", "symmetric", "fixed", "adaptive", "chosen"};
static const double epsilons[] = {0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0};
static const int64_t batch_rows[] = {65536, 4096, 16384, 262144};
enum {
    NUM_EPSILONS = sizeof epsilons / sizeof *epsilons,
    NUM_LIMITS = sizeof batch_rows / sizeof *batch_rows,
    NUM_ADAPTIVE = NUM_EPSILONS * NUM_LIMITS
};

enum { MOVED, MOVED_WIDE, MOVED_SCALAR, NUM_MOVEMENTS };
static const char *const movement_names[NUM_MOVEMENTS] = {"vectorised, local", "the same in f32",
                                                          "scalar f32, tap by tap"};

static int num_adaptive(const bench *b)
{
    return b->backend == SPOPS_BACKEND_CUDA ? NUM_ADAPTIVE : 1;
}

// Times of every layer, summed over the network; only of what all layers have.
typedef struct totals {
    device_timing timing[BENCH_NUM_MODES];
    int layers; // that were added, each as often as it comes
} totals;

typedef struct ablation {
    bench *b;
    spops_dtype dtype;
    unet net;
    int num_layers; // of the network
    spops_conv_choice *tuning;
    int64_t num_tuning;
    bench_block values, weights;
    totals whole[NUM_WAYS], products[NUM_WAYS], movement[NUM_MOVEMENTS];
} ablation;

// A map with its plans, and its pairs without those of a tap that joins row to row, which nobody
// moves: here, and where the benchmark runs.
typedef struct map_plans {
    const spops_kernel_map *map;
    spops_sparseconv *ways[NUM_WAYS];
    spops_sparseconv *adaptive[NUM_ADAPTIVE];
    int32_t *all_offsets, *all_in_rows, *all_out_rows; // with all pairs
    int32_t *tap_offsets;
    int64_t num_pairs;
    void *in_rows, *out_rows;       // device
    spops_segments *by_in, *by_out; // pairs of a row
} map_plans;

// A layer's matrices, and what is timed of it.
typedef struct layer_run {
    ablation *a;
    const unet_layer *layer;
    const map_plans *m;
    const spops_sparseconv *plan;
    spops_matrix x, w, out;
    spops_matrix gathered, products; // [pairs]
    conv_movement scalar;
    spops_status status; // of the first call that failed
} layer_run;

static void note_status(layer_run *r, spops_status status)
{
    if (r->status == SPOPS_STATUS_OK) r->status = status;
}

static void enqueue_layer(void *user)
{
    layer_run *r = user;
    note_status(r, spops_sparseconv_execute(r->a->b->ctx, r->plan, r->x, r->w, NULL, r->out));
}

static void enqueue_movement(void *user)
{
    layer_run *r = user;
    spops_context *ctx = r->a->b->ctx;
    note_status(r, spops_gather_execute(ctx, r->m->by_in, r->x, NULL, r->gathered));
    note_status(r, spops_segreduce_execute(ctx, r->m->by_out, SPOPS_REDUCE_SUM, r->products, NULL,
                                           r->out, NULL));
}

static void enqueue_scalar(void *user)
{
    layer_run *r = user;
    conv_movement_cuda(&r->scalar);
}

// ---- Plans of a map -----------------------------------------------------------------------------

// What a plan cannot be had for here stays NULL.
static bool make_plan(ablation *a, const map_plans *m, spops_sparseconv_options options,
                      int64_t in_channels, int64_t out_channels, spops_sparseconv **out)
{
    options.max_in_channels = in_channels;
    options.max_out_channels = out_channels;
    const spops_status status = spops_sparseconv_create(a->b->ctx, m->map, &options, out);
    return status == SPOPS_STATUS_NOT_SUPPORTED || bench_check(a->b, "plan", status);
}

static bool make_plans(ablation *a, map_plans *m, int64_t in_channels, int64_t out_channels)
{
    bool good = true;
    for (int w = 0; w < NUM_WAYS && good; ++w) {
        spops_sparseconv_options o = spops_sparseconv_options_default();
        if (w == ADAPTIVE) continue;
        if (w == CHOSEN) {
            o.tuning = a->tuning;
            o.num_tuning = a->num_tuning;
        } else if (w >= SEPARATE) {
            o.dataflow = SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
            o.grouping = (spops_grouping)(SPOPS_GROUPING_SEPARATE + w - SEPARATE);
        } else {
            o.dataflow = w == FETCH ? SPOPS_DATAFLOW_FETCH_ON_DEMAND : SPOPS_DATAFLOW_IMPLICIT_GEMM;
        }
        good = make_plan(a, m, o, in_channels, out_channels, &m->ways[w]);
    }
    for (int i = 0; i < num_adaptive(a->b) && good && m->ways[SEPARATE] != NULL; ++i) {
        spops_sparseconv_options o = spops_sparseconv_options_default();
        o.dataflow = SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
        o.grouping = SPOPS_GROUPING_ADAPTIVE;
        o.epsilon = epsilons[i / NUM_LIMITS];
        o.batch_rows = batch_rows[i % NUM_LIMITS];
        good = make_plan(a, m, o, in_channels, out_channels, &m->adaptive[i]);
    }
    return good;
}

// Pairs that are moved, and the lists of the library's movement.
static bool make_movement(ablation *a, map_plans *m, const unet_layer *layer)
{
    bench *b = a->b;
    const int32_t taps = layer->num_taps, middle = taps % 2 != 0 ? taps / 2 : -1;
    spops_kernel_map_view view = spops_kernel_map_view_default();
    spops_segments_options o = spops_segments_options_default();
    int32_t *in_rows, *out_rows;
    bool good;

    if (!bench_check(b, "map", spops_kernel_map_get_view(b->ctx, m->map, &view)) ||
        !bench_fetch_i32(b, view.tap_offsets, taps + 1, &m->all_offsets) ||
        !bench_fetch_i32(b, view.in_rows, view.max_pairs, &m->all_in_rows) ||
        !bench_fetch_i32(b, view.out_rows, view.max_pairs, &m->all_out_rows))
        return false;
    m->tap_offsets = bench_host(b, taps + 1, sizeof *m->tap_offsets);
    in_rows = bench_host(b, view.max_pairs + 1, sizeof *in_rows);
    out_rows = bench_host(b, view.max_pairs + 1, sizeof *out_rows);
    good = m->tap_offsets != NULL && in_rows != NULL && out_rows != NULL;
    for (int32_t k = 0; k < taps && good; ++k) {
        const int32_t begin = m->all_offsets[k];
        const int32_t n = k == middle ? 0 : m->all_offsets[k + 1] - begin;
        memcpy(in_rows + m->num_pairs, m->all_in_rows + begin, (size_t)n * sizeof *in_rows);
        memcpy(out_rows + m->num_pairs, m->all_out_rows + begin, (size_t)n * sizeof *out_rows);
        m->num_pairs += n;
        m->tap_offsets[k + 1] = (int32_t)m->num_pairs;
    }
    const size_t bytes = (size_t)m->num_pairs * sizeof *in_rows;
    o.max_cols = BENCH_MAX_WIDTH;
    good =
        good && bench_upload(b, in_rows, bytes, &m->in_rows) &&
        bench_upload(b, out_rows, bytes, &m->out_rows) &&
        bench_check(b, "lists",
                    spops_segments_create_from_keys(b->ctx, layer->num_in, m->num_pairs, m->in_rows,
                                                    SPOPS_KEYS_UNSORTED, &o, &m->by_in)) &&
        bench_check(b, "lists",
                    spops_segments_create_from_keys(b->ctx, layer->num_out, m->num_pairs,
                                                    m->out_rows, SPOPS_KEYS_UNSORTED, &o,
                                                    &m->by_out));
    free(in_rows), free(out_rows);
    return good;
}

static void close_map(bench *b, map_plans *m)
{
    for (int i = 0; i < NUM_WAYS; ++i)
        spops_sparseconv_destroy(m->ways[i]);
    for (int i = 0; i < NUM_ADAPTIVE; ++i)
        spops_sparseconv_destroy(m->adaptive[i]);
    spops_segments_destroy(m->by_in), spops_segments_destroy(m->by_out);
    bench_free(b, m->in_rows), bench_free(b, m->out_rows);
    free(m->all_offsets), free(m->all_in_rows), free(m->all_out_rows), free(m->tap_offsets);
    memset(m, 0, sizeof *m);
}

// ---- Whether results are right ------------------------------------------------------------------

// One run over poison, then some rows in f64.
static bool check_layer(layer_run *r, int way)
{
    ablation *a = r->a;
    bench *b = a->b;
    const map_plans *m = r->m;
    const int64_t in = r->x.cols, out = r->out.cols;
    const size_t row_bytes = (size_t)out * spops_dtype_bytes(r->out.dtype);
    const double unit = way < SEPARATE                     ? 0.0
                        : r->out.dtype == SPOPS_DTYPE_F16  ? 0x1.01p-10
                        : r->out.dtype == SPOPS_DTYPE_BF16 ? 0x1.01p-7
                                                           : 0.0;
    unsigned char row[BENCH_MAX_WIDTH * 4];

    r->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, r->out.data, (size_t)r->out.rows * row_bytes)) return false;
    enqueue_layer(r);
    if (!device_stream_wait(b->backend, b->stream)) return bench_fail(b, "run: %s", device_error());
    if (!bench_check(b, "conv", r->status)) return false;
    for (int i = 0; i < NUM_SAMPLES; ++i) {
        const int64_t at = (int64_t)(bench_random(23, (uint64_t)i) % (uint64_t)r->out.rows);
        double sums[BENCH_MAX_WIDTH] = {0}, magnitudes[BENCH_MAX_WIDTH] = {0};
        int64_t terms = 0;
        for (int32_t k = 0; k < r->layer->num_taps; ++k)
            for (int32_t p = m->all_offsets[k]; p < m->all_offsets[k + 1]; ++p) {
                if (m->all_out_rows[p] != at) continue;
                const float *x = bench_block_row(&a->values, m->all_in_rows[p], in);
                for (int64_t c = 0; c < in; ++c) {
                    const float *w = bench_block_row(&a->weights, k * in + c, out);
                    for (int64_t o = 0; o < out; ++o) {
                        sums[o] += (double)x[c] * (double)w[o];
                        magnitudes[o] += fabs((double)x[c] * (double)w[o]);
                    }
                }
                terms += in;
            }
        if (!bench_download(b, row, (const char *)r->out.data + (size_t)at * row_bytes, row_bytes))
            return false;
        for (int64_t o = 0; o < out; ++o) {
            const double value = bench_get(row, r->out.dtype, o);
            // Matrix units cut off instead of rounding, which doubles the unit.
            const double bound =
                2.0 * bench_sum_bound(r->out.dtype, terms, magnitudes[o], sums[o]) +
                unit * magnitudes[o];
            if (!(fabs(value - sums[o]) <= bound))
                return bench_fail(b, "conv %s, %s: element [%lld, %lld] is %g, expected %g",
                                  r->layer->name, way_names[way], (long long)at, (long long)o,
                                  value, sums[o]);
        }
    }
    return true;
}

// ---- A layer ------------------------------------------------------------------------------------

static void add_total(totals *t, const bench_variant *v, int count)
{
    for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
        t->timing[mode].median_us += count * v->timing[mode].median_us;
        t->timing[mode].min_us += count * v->timing[mode].min_us;
        t->timing[mode].p10_us += count * v->timing[mode].p10_us;
        t->timing[mode].p90_us += count * v->timing[mode].p90_us;
    }
    t->layers += count;
}

// The fastest epsilon and S for a layer (Algorithm 5).
static bool search(layer_run *r, spops_sparseconv *const *plans, int *best)
{
    bench *b = r->a->b;
    double least = INFINITY;
    for (int i = 0; i < num_adaptive(b) && num_adaptive(b) > 1; ++i) {
        device_timing timing;
        r->plan = plans[i];
        if (!device_time(b->backend, b->stream, enqueue_layer, r, false, QUICK_RUNS, &timing))
            return bench_fail(b, "timing: %s", device_error());
        if (timing.median_us < least) {
            least = timing.median_us;
            *best = i;
        }
    }
    return bench_check(b, "conv", r->status);
}

static void describe(const ablation *a, const unet_layer *layer, const char *what, bench_case *c)
{
    const double flops =
        2.0 * (double)layer->num_pairs * (double)(layer->in_channels * layer->out_channels);
    const int64_t element = (int64_t)spops_dtype_bytes(a->dtype);

    memset(c, 0, sizeof *c);
    c->suite = "conv_ablation";
    snprintf(c->name, sizeof c->name, "%s%s", layer->name, what);
    snprintf(c->what, sizeof c->what, "%d of the network; %lld voxels, %lld pairs, %.2f GFLOP",
             layer->count, (long long)layer->num_out, (long long)layer->num_pairs, flops * 1e-9);
    c->dtype = a->dtype;
    c->cols = layer->in_channels;
    c->bytes =
        element * (layer->num_in * layer->in_channels + layer->num_out * layer->out_channels +
                   layer->num_taps * layer->in_channels * layer->out_channels);
    c->gather_bytes = element * layer->num_pairs * layer->in_channels;
    bench_case_note(c, "flops", (int64_t)flops);
    bench_case_note(c, "out_cols", layer->out_channels);
    bench_case_note(c, "layers", layer->count);
}

// AUTO: the plan refuses the layer.
static spops_dataflow dataflow_of(const layer_run *r)
{
    spops_conv_choice choice;
    return spops_sparseconv_get_choice(r->a->b->ctx, r->plan, SPOPS_PASS_FORWARD, r->a->dtype,
                                       r->x.cols, r->out.cols, NULL, &choice) == SPOPS_STATUS_OK
               ? choice.dataflow
               : SPOPS_DATAFLOW_AUTO;
}

static bool time_ways(layer_run *r, bench_case *c, bench_variant times[NUM_WAYS])
{
    ablation *a = r->a;
    for (int w = 0; w < NUM_WAYS; ++w) {
        int best = 0;
        r->plan = r->m->ways[w];
        if (w == ADAPTIVE && r->m->adaptive[0] != NULL) {
            if (!search(r, r->m->adaptive, &best)) return false;
            r->plan = r->m->adaptive[best];
            bench_case_note(c, "epsilon_percent", (int64_t)(100 * epsilons[best / NUM_LIMITS]));
            bench_case_note(c, "batch_rows", batch_rows[best % NUM_LIMITS]);
        }
        if (r->plan == NULL || (w == IGEMM && dataflow_of(r) != SPOPS_DATAFLOW_IMPLICIT_GEMM))
            continue;
        if (w == CHOSEN) {
            bench_case_note_text(c, "chosen", spops_dataflow_name(dataflow_of(r)));
        }
        bench_progress("conv ablation, %s: %s", r->layer->name, way_names[w]);
        if (!check_layer(r, w) ||
            !bench_case_time(a->b, c, way_names[w], false, enqueue_layer, r) ||
            !bench_check(a->b, "conv", r->status))
            return false;
        times[w] = c->variants[c->num_variants - 1];
        add_total(&a->whole[w], &times[w], r->layer->count);
    }
    bench_case_print(a->b, c);
    return true;
}

// Buffers of all pairs in dtype, which movement fills and reads.
static bool make_buffers(layer_run *r, spops_dtype dtype)
{
    bench *b = r->a->b;
    const size_t bytes = (size_t)r->m->num_pairs * spops_dtype_bytes(dtype);
    r->gathered = spops_matrix_dense(NULL, r->m->num_pairs, r->x.cols, dtype);
    r->products = spops_matrix_dense(NULL, r->m->num_pairs, r->out.cols, dtype);
    return bench_alloc(b, bytes * (size_t)r->x.cols, &r->gathered.data) &&
           bench_alloc(b, bytes * (size_t)r->out.cols, &r->products.data) &&
           bench_block_upload(&r->a->values, b->backend, r->products.data,
                              r->m->num_pairs * r->out.cols);
}

static void free_buffers(layer_run *r)
{
    bench_free(r->a->b, r->gathered.data), bench_free(r->a->b, r->products.data);
    r->gathered.data = r->products.data = NULL;
}

// One movement; the matrices of f32 are made for it alone.
static bool time_movement(layer_run *r, bench_case *c, int movement, bench_variant *times)
{
    bench *b = r->a->b;
    layer_run wide = *r;
    const bool is_wide = movement != MOVED;
    bool good = true;

    if (is_wide) {
        bench_block values = {0};
        wide.x.dtype = wide.out.dtype = SPOPS_DTYPE_F32;
        wide.x.data = wide.out.data = NULL;
        good = bench_block_create(SPOPS_DTYPE_F32, 3, -1.0f, 1.0f, &values) &&
               bench_alloc(b, (size_t)(wide.x.rows * wide.x.cols) * 4, &wide.x.data) &&
               bench_alloc(b, (size_t)(wide.out.rows * wide.out.cols) * 4, &wide.out.data) &&
               bench_block_upload(&values, b->backend, wide.x.data, wide.x.rows * wide.x.cols);
        bench_block_destroy(&values);
    }
    good = good && make_buffers(&wide, wide.x.dtype);
    wide.scalar = (conv_movement){.num_taps = r->layer->num_taps,
                                  .tap_offsets = r->m->tap_offsets,
                                  .in_rows = r->m->in_rows,
                                  .out_rows = r->m->out_rows,
                                  .num_out = wide.out.rows,
                                  .in_cols = (int32_t)wide.x.cols,
                                  .out_cols = (int32_t)wide.out.cols,
                                  .x = wide.x.data,
                                  .gathered = wide.gathered.data,
                                  .products = wide.products.data,
                                  .out = wide.out.data,
                                  .stream = b->stream};
    wide.status = SPOPS_STATUS_OK;
    good = good &&
           bench_case_time(b, c, movement_names[movement], movement == MOVED_SCALAR,
                           movement == MOVED_SCALAR ? enqueue_scalar : enqueue_movement, &wide) &&
           bench_check(b, "movement", wide.status) &&
           (!wide.scalar.failed || bench_fail(b, "the scalar movement failed"));
    if (good) {
        *times = c->variants[c->num_variants - 1];
        add_total(&r->a->movement[movement], times, r->layer->count);
    }
    free_buffers(&wide);
    if (is_wide) bench_free(b, wide.x.data), bench_free(b, wide.out.data);
    return good;
}

// The difference of two timings, as if spreads were those of the first.
static device_timing without(device_timing a, device_timing b)
{
    const double part = b.median_us;
    return (device_timing){fmax(a.median_us - part, 0), fmax(a.min_us - part, 0),
                           fmax(a.p10_us - part, 0), fmax(a.p90_us - part, 0)};
}

// Time of gather-matmul-scatter without its movement.
static void derive_products(layer_run *r, const bench_variant *times, const bench_variant *moved)
{
    bench_case c;
    describe(r->a, r->layer, ", products", &c);
    c.gather_bytes = c.bytes = 0; // no floor
    for (int w = SEPARATE; w <= ADAPTIVE; ++w) {
        bench_variant *v = bench_case_add(&c, way_names[w], false);
        if (times[w].name == NULL) return;
        for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
            v->has[mode] = times[w].has[mode] && moved->has[mode];
            v->timing[mode] = without(times[w].timing[mode], moved->timing[mode]);
        }
        add_total(&r->a->products[w], v, r->layer->count);
    }
    bench_case_print(r->a->b, &c);
}

static bool measure_layer(ablation *a, const map_plans *m, const unet_layer *layer)
{
    bench *b = a->b;
    const size_t element = spops_dtype_bytes(a->dtype);
    const int64_t w_rows = layer->num_taps * layer->in_channels;
    layer_run r = {.a = a, .layer = layer, .m = m};
    bench_variant times[NUM_WAYS] = {{0}}, moved[NUM_MOVEMENTS] = {{0}};
    bench_case c;
    bool good;

    r.x = spops_matrix_dense(NULL, layer->num_in, layer->in_channels, a->dtype);
    r.w = spops_matrix_dense(NULL, w_rows, layer->out_channels, a->dtype);
    r.out = spops_matrix_dense(NULL, layer->num_out, layer->out_channels, a->dtype);
    good = bench_alloc(b, (size_t)(r.x.rows * r.x.cols) * element, &r.x.data) &&
           bench_alloc(b, (size_t)(r.w.rows * r.w.cols) * element, &r.w.data) &&
           bench_alloc(b, (size_t)(r.out.rows * r.out.cols) * element, &r.out.data) &&
           bench_block_upload(&a->values, b->backend, r.x.data, r.x.rows * r.x.cols) &&
           bench_block_upload(&a->weights, b->backend, r.w.data, r.w.rows * r.w.cols);
    describe(a, layer, "", &c);
    good = good && time_ways(&r, &c, times);
    describe(a, layer, ", movement", &c);
    for (int i = 0; i < NUM_MOVEMENTS && good; ++i) {
        if (i == MOVED_SCALAR && b->backend != SPOPS_BACKEND_CUDA) break;
        if (i == MOVED_WIDE && a->dtype == SPOPS_DTYPE_F32) continue;
        good = time_movement(&r, &c, i, &moved[i]);
    }
    if (good) {
        bench_case_print(b, &c);
        derive_products(&r, times, &moved[MOVED]);
    }
    bench_free(b, r.x.data), bench_free(b, r.w.data), bench_free(b, r.out.data);
    return good;
}

// ---- The network --------------------------------------------------------------------------------

static void print_totals(ablation *a, const char *name, const totals *all, const char *const *names,
                         int num)
{
    bench_case c = {.suite = "conv_ablation", .dtype = a->dtype, .cols = 1};
    snprintf(c.name, sizeof c.name, "all layers%s", name);
    snprintf(c.what, sizeof c.what, "%d layers", a->num_layers);
    for (int i = 0; i < num; ++i) {
        if (all[i].layers != a->num_layers) continue;
        bench_variant *v = bench_case_add(&c, names[i], false);
        for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
            v->has[mode] = a->b->options.modes[mode];
            v->timing[mode] = all[i].timing[mode];
        }
    }
    if (c.num_variants > 0) bench_case_print(a->b, &c);
}

static bool read_tuning(ablation *a, const char *path)
{
    bench *b = a->b;
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long bytes = 0;
    bool good = false;

    if (f == NULL) return bench_fail(b, "%s cannot be opened", path);
    if (fseek(f, 0, SEEK_END) == 0 && (bytes = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0)
        text = bench_host(b, bytes, 1);
    good = text != NULL && fread(text, 1, (size_t)bytes, f) == (size_t)bytes;
    fclose(f);
    if (!good) bench_fail(b, "%s cannot be read", path);
    good = good &&
           bench_check(b, path,
                       spops_sparseconv_load_choices(b->ctx, text, (size_t)bytes, NULL, 0,
                                                     &a->num_tuning)) &&
           (a->tuning = bench_host(b, a->num_tuning + 1, sizeof *a->tuning)) != NULL &&
           bench_check(b, path,
                       spops_sparseconv_load_choices(b->ctx, text, (size_t)bytes, a->tuning,
                                                     a->num_tuning, &a->num_tuning));
    free(text);
    return good;
}

// A real scan where the test data are, else a made one.
static bool load_scan(bench *b, spops_coords **coords)
{
    int64_t n = 0, cols = 0, num_rows = 0;
    float *points = bench_load_npy(b, "kitti_odom_a.npy", "<f4", &n, &cols);
    bench_scene scene = {.name = "lidar"};
    int32_t *rows;
    void *device = NULL;
    bool good;

    if (points != NULL) {
        rows = unet_voxels(points, n, cols, CELL_M, &num_rows);
    } else {
        scene.rows = rows = bench_host(b, 4 * (1 << 18), sizeof *rows);
        if (rows != NULL) bench_scene_sweep(&scene), bench_scene_unique(&scene);
        num_rows = scene.num_rows;
    }
    free(points);
    if (b->options.quick && num_rows > BENCH_QUICK_ROWS) num_rows = BENCH_QUICK_ROWS;
    good = rows != NULL && bench_upload(b, rows, (size_t)num_rows * 4 * sizeof *rows, &device) &&
           bench_check(b, "coords", spops_coords_create(b->ctx, 3, num_rows, device, NULL, coords));
    bench_free(b, device);
    free(rows);
    return good;
}

static void measure_network(ablation *a)
{
    const unet *net = &a->net;
    bool good = true;
    for (int i = 0; i < net->num_layers; ++i)
        a->num_layers += net->layers[i].count;
    for (int i = 0, next; i < net->num_layers && good; i = next) {
        map_plans m = {.map = net->layers[i].map};
        int64_t in = 0, out = 0;
        for (next = i; next < net->num_layers && net->layers[next].map == m.map; ++next) {
            if (net->layers[next].in_channels > in) in = net->layers[next].in_channels;
            if (net->layers[next].out_channels > out) out = net->layers[next].out_channels;
        }
        bench_progress("conv ablation, %s: plans", net->layers[i].name);
        good = make_plans(a, &m, in, out) && make_movement(a, &m, &net->layers[i]);
        for (int l = i; l < next && good; ++l)
            good = measure_layer(a, &m, &net->layers[l]);
        close_map(a->b, &m);
    }
    if (!good) return;
    print_totals(a, "", a->whole, way_names, NUM_WAYS);
    print_totals(a, ", products", a->products, way_names, NUM_WAYS);
    print_totals(a, ", movement", a->movement, movement_names, NUM_MOVEMENTS);
}

void bench_conv_ablation(bench *b, spops_dtype dtype, const char *tuning)
{
    ablation a = {.b = b, .dtype = dtype};
    spops_coords *coords = NULL;

    if (!bench_block_create(dtype, 3, -1.0f, 1.0f, &a.values) ||
        !bench_block_create(dtype, 4, -0.125f, 0.125f, &a.weights))
        bench_fail(b, "out of memory");
    else if ((tuning == NULL || read_tuning(&a, tuning)) && load_scan(b, &coords)) {
        if (unet_create(b->ctx, coords, 1.0, &a.net))
            measure_network(&a);
        else
            bench_fail(b, "pyramid: %s", spops_last_error(b->ctx));
    }
    unet_destroy(&a.net);
    spops_coords_destroy(coords);
    bench_block_destroy(&a.values);
    bench_block_destroy(&a.weights);
    free(a.tuning);
}
