// SPDX-License-Identifier: Apache-2.0
/*
 * spconv's own benchmark network on a point cloud, forward and backward, on the CPU or as one CUDA
 * Graph. Read it in this order:
 *
 *     spconv_benchmark.c               what is run and printed
 *     spconv_benchmark/engine.h, .c    the network, its plans and memory, and the work of a step
 *     spconv_benchmark/reference.c     the same in FP64, to check a small cloud
 *     networks/device.c                memory, graphs and clocks on the CPU and on a GPU
 */
#include "networks/options.h"
#include "networks/report.h"
#include "networks/scan.h"
#include "points_file.h"
#include "spconv_benchmark/engine.h"
#include "spconv_benchmark/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "spconv_benchmark [FILE] [OPTION]...\n"
    "  FILE                points, .npy, .bin or .pcd, x y z in m first; without one: a small\n"
    "                      simulated scan, and --check\n"
    "  --copies N          N times the points, each time moved by 1 m along y: 1. spconv's large\n"
    "                      case has 8\n"
    "  --dtype f32|f16     of rows and weights: f16 on a GPU, f32 on the CPU\n"
    "  --backend cpu|cuda  where it runs: a GPU where there is one\n"
    "  --check             first compare a small cut of the points with FP64, and a GPU with the "
    "CPU\n"
    "  --ceilings T,G      a device's TFLOP/s and GB/s, for floors: 790,4200\n"
    "  --output FILE       append what was measured, an object a line\n";

typedef struct options {
    network_options network;
    const char *file; /* NULL: a simulated scan */
    int copies;
} options;

static int read_options(int argc, char **argv, options *o)
{
    const options defaults = {.network = network_options_default(), .copies = 1};
    const option_row own[] = {{"--copies", OPTION_INT, &o->copies}};

    *o = defaults;
    if (network_options_read(argc, argv, &o->network, own, 1)) return 1;
    if (o->network.num_files > 0)
        o->file = o->network.files[0];
    else
        o->network.check = 1;
    return o->copies > 64 || o->network.num_files > 1;
}

/* ---- The points ------------------------------------------------------------------------------- */

static int in_range(const float *p)
{
    for (int a = 0; a < 3; ++a)
        if (!((double)p[a] >= range_lower_m[a] && (double)p[a] < range_upper_m[a])) return 0;
    return 1;
}

/* All copies, and of them the points within the range. */
static int load_cloud(const options *o, cloud *c)
{
    int64_t rows = 0, cols = 4;
    scan s = {0, NULL};
    float *from;
    memset(c, 0, sizeof *c);
    if (o->file == NULL && scan_simulate(16, 200, &s)) return 1;
    if (o->file == NULL) rows = s.num_points;
    from = o->file == NULL ? s.points : points_read(o->file, &rows, &cols);
    if (from == NULL) return 1;
    c->points = (float *)malloc((size_t)rows * (size_t)o->copies * 3 * sizeof(float) + 1);
    for (int k = 0; k < o->copies && c->points != NULL; ++k)
        for (int64_t i = 0; i < rows; ++i) {
            float *p = c->points + 3 * c->num_points;
            memcpy(p, from + cols * i, 3 * sizeof *p);
            p[1] += (float)k;
            c->num_points += in_range(p);
        }
    free(from);
    if (c->points != NULL && c->num_points > 0 && c->num_points < INT32_MAX) return 0;
    fprintf(stderr, "%s: no points in the range, too many, or no memory\n",
            o->file == NULL ? "the simulated scan" : o->file);
    free(c->points);
    return 1;
}

typedef struct ranked {
    double distance_m2;
    int64_t i;
} ranked;

static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = (const ranked *)a, *y = (const ranked *)b;
    if (x->distance_m2 != y->distance_m2) return x->distance_m2 < y->distance_m2 ? -1 : 1;
    return (x->i > y->i) - (x->i < y->i);
}

/* The points nearest to the one in the middle of the list. */
static int cut_cloud(const cloud *c, cloud *cut)
{
    enum { MOST = 400 };
    const size_t n = (size_t)c->num_points;
    ranked *all = (ranked *)malloc(n * sizeof *all);
    const float *middle = c->points + 3 * (n / 2);
    cut->num_points = c->num_points < MOST ? c->num_points : MOST;
    cut->points = (float *)malloc((size_t)cut->num_points * 3 * sizeof(float));
    if (all == NULL || cut->points == NULL) {
        free(all);
        free(cut->points);
        return 1;
    }
    for (size_t i = 0; i < n; ++i) {
        all[i].distance_m2 = 0;
        all[i].i = (int64_t)i;
        for (int a = 0; a < 3; ++a) {
            const double away_m = (double)c->points[3 * i + (size_t)a] - (double)middle[a];
            all[i].distance_m2 += away_m * away_m;
        }
    }
    qsort(all, n, sizeof *all, compare_ranked);
    for (int64_t i = 0; i < cut->num_points; ++i)
        memcpy(cut->points + 3 * i, c->points + 3 * all[i].i, 3 * sizeof(float));
    free(all);
    return 0;
}

/* ---- Is it right? ----------------------------------------------------------------------------- */

/* Largest difference that rounding explains, over the largest element. */
static double tolerance(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F32 ? 1e-5 : 1e-2;
}

static const char *verdict(int right)
{
    return right ? "right" : "WRONG";
}

/* An engine for the cut, and a step of it over outputs of NaN; its differences from FP64. */
static int check_engine(engine *e, const device *d, spops_dtype dtype, const cloud *cut)
{
    differences found;
    graph *g = NULL;
    int right = 0;
    int failed = engine_create(e, d, dtype, cut) ||
                 (g = graph_capture(d, engine_enqueue_step, e, 1)) == NULL || reference_poison(e) ||
                 graph_launch(g) || spops_context_wait_sync(d->ctx) != SPOPS_STATUS_OK ||
                 reference_compare(e, &found);
    graph_destroy(g);
    if (failed) return 1;
    right = found.output <= tolerance(dtype) && found.gradients <= tolerance(dtype);
    printf("%s, %s, %d voxels: agrees with FP64 to %.1e (output) and %.1e (gradients): %s\n",
           d->backend == SPOPS_BACKEND_CPU ? "CPU" : "CUDA", spops_dtype_name(dtype),
           (int)e->sizes.num_rows[0], found.output, found.gradients, verdict(right));
    return !right;
}

static int compare_engines(const engine *gpu, const engine *cpu)
{
    const spops_matrix m = cpu->rows[PARTS];
    double *x = engine_download(gpu, gpu->rows[PARTS], gpu->rows[PARTS].rows);
    double *expected = engine_download(cpu, m, m.rows), difference = 0;
    int right = x != NULL && expected != NULL && gpu->rows[PARTS].rows == m.rows;
    if (right) {
        difference = reference_difference(expected, x, (size_t)(m.rows * m.cols));
        right = difference <= tolerance(gpu->dtype);
    }
    printf("CUDA agrees with the CPU to %.1e: %s\n", difference, verdict(right));
    free(x);
    free(expected);
    return !right;
}

static int check(const device *d, spops_dtype dtype, const cloud *c)
{
    cloud cut;
    engine e, on_cpu;
    device cpu;
    int failed;
    if (cut_cloud(c, &cut)) return 1;
    failed = check_engine(&e, d, dtype, &cut);
    if (!failed && d->backend != SPOPS_BACKEND_CPU) {
        if (device_open(&cpu, SPOPS_BACKEND_CPU)) return 1;
        failed = check_engine(&on_cpu, &cpu, dtype, &cut) || compare_engines(&e, &on_cpu);
        engine_destroy(&on_cpu);
        device_close(&cpu);
    }
    engine_destroy(&e);
    free(cut.points);
    return failed;
}

/* ---- What parts must do at least, and what they take ------------------------------------------ */

/* Products; rows, weights and pairs once each. */
static work part_work(const engine *e, int p, int backward)
{
    const part *t = &e->parts[p];
    const double each = (double)spops_dtype_bytes(e->dtype), ways = backward ? 2 : 1;
    const double in_rows = (double)e->rows[p].rows, out_rows = (double)e->rows[p + 1].rows;
    const double weights = t->pools ? 0 : (double)TAPS * t->in * t->out;
    const double pairs = t->pools ? in_rows : (double)e->sizes.num_pairs[t->level];
    work w;
    w.flops = t->pools ? 0 : ways * 2 * pairs * t->in * t->out;
    w.bytes = each * (ways * in_rows * t->in + out_rows * t->out + weights) + 4 * pairs +
              (backward ? 4 * weights : 0);
    return w;
}

typedef struct part_call {
    engine *e;
    int p;
} part_call;

static spops_status run_part(void *user)
{
    const part_call *call = (const part_call *)user;
    return engine_enqueue_part(call->e, call->p);
}

static spops_status run_part_backward(void *user)
{
    const part_call *call = (const part_call *)user;
    return engine_enqueue_part_backward(call->e, call->p);
}

/* What convolutions or poolings take together, one way. */
typedef struct way_sum {
    double us, floor_us;
    int kernels;
} way_sum;

/* A line a part; floors_us has the sums of both ways, sums those of convolutions and poolings. */
static int print_parts(engine *e, const options *o, FILE *json, double floors_us[2],
                       way_sum sums[2][2])
{
    static const enqueue_function ways[2] = {run_part, run_part_backward};
    const int gpu = e->d->backend == SPOPS_BACKEND_CUDA;
    printf("%-14s %8s %9s %4s %4s %11s %9s %11s %9s\n", "part", "rows", "pairs", "in", "out",
           "forward us", "floor us", "backward us", "floor us");
    floors_us[0] = floors_us[1] = 0;
    for (int p = 0; p < PARTS; ++p) {
        const part *t = &e->parts[p];
        const int64_t rows = e->rows[p + 1].rows;
        const int64_t pairs = t->pools ? e->rows[p].rows : e->sizes.num_pairs[t->level];
        part_call call = {e, p};
        double us[2], floors[2];
        int kernels;
        for (int way = 0; way < 2; ++way) {
            floors[way] = floor_us(o->network.ceilings, part_work(e, p, way));
            floors_us[way] += floors[way];
            if (graph_time_part(e->d, ways[way], &call, gpu ? 10 : 1, gpu ? 15 : 3, &us[way],
                                &kernels))
                return 1;
            sums[t->pools][way].us += us[way];
            sums[t->pools][way].floor_us += floors[way];
            sums[t->pools][way].kernels += kernels;
        }
        printf("%-14s %8lld %9lld %4d %4d %11.1f %9.1f %11.1f %9.1f\n", t->name, (long long)rows,
               (long long)pairs, t->in, t->out, us[0], floors[0], us[1], floors[1]);
        if (json != NULL)
            fprintf(json,
                    "{\"part\": \"%s\", \"rows\": %lld, \"pairs\": %lld, \"in\": %d, \"out\": %d, "
                    "\"forward_us\": %.2f, \"forward_floor_us\": %.2f, \"backward_us\": %.2f, "
                    "\"backward_floor_us\": %.2f}\n",
                    t->name, (long long)rows, (long long)pairs, t->in, t->out, us[0], floors[0],
                    us[1], floors[1]);
    }
    return 0;
}

enum { VOXELS, PYRAMID, PLANS, FEATURES, FORWARD, BACKWARD, STEP, NUM_TIMES };

/* The step in parts that do not overlap, in the format of all networks. */
static int report_step(const engine *e, const options *o, FILE *json, const double *us,
                       const int *kernels, way_sum sums[2][2], double maps_floor_us)
{
    static const char *const names[2][2] = {{"convolutions", "convolutions backward"},
                                            {"poolings", "poolings backward"}};
    char frame[32];
    const report to = {json, "spconv_benchmark", frame, e->d, e->dtype};
    double floors_us = maps_floor_us;
    int failed;

    snprintf(frame, sizeof frame, "%d x %d voxels", o->copies, (int)e->sizes.num_rows[0]);
    failed = report_part(&to, "voxels", us[VOXELS], 0, kernels[VOXELS]) ||
             report_part(&to, "mean", us[FEATURES], 0, kernels[FEATURES]) ||
             report_part(&to, "maps", us[PYRAMID] + us[PLANS], maps_floor_us,
                         kernels[PYRAMID] + kernels[PLANS]);
    for (int i = 0; i < 4; ++i) {
        const way_sum *s = &sums[i % 2][i / 2];
        floors_us += s->floor_us;
        failed = failed || report_part(&to, names[i % 2][i / 2], s->us, s->floor_us, s->kernels);
    }
    return failed || report_part(&to, "whole", us[STEP], floors_us, kernels[STEP]);
}

static int measure(engine *e, const options *o, FILE *json)
{
    static const enqueue_function calls[NUM_TIMES] = {
        engine_enqueue_voxels,   engine_enqueue_pyramid, engine_enqueue_plans,
        engine_enqueue_features, engine_enqueue_layers,  engine_enqueue_layers_backward,
        engine_enqueue_step};
    const int launches = e->d->backend == SPOPS_BACKEND_CUDA ? 50 : 3;
    const double maps_floor_us = floor_us(o->network.ceilings, maps_work(&e->sizes, e->num_points));
    double us[NUM_TIMES], floors_us[2], maps_us;
    way_sum sums[2][2] = {{{0, 0, 0}}};
    int kernels[NUM_TIMES];
    graph *whole = graph_capture(e->d, engine_enqueue_step, e, 1);
    const int failed = whole == NULL || graph_launch(whole) ||
                       spops_context_wait_sync(e->d->ctx) != SPOPS_STATUS_OK;
    graph_destroy(whole); /* its rows are there for the parts */
    if (failed || print_parts(e, o, json, floors_us, sums)) return 1;
    for (int i = 0; i < NUM_TIMES; ++i)
        if (graph_time_part(e->d, calls[i], e, 1, launches, &us[i], &kernels[i])) return 1;
    maps_us = us[PYRAMID] + us[PLANS];
    printf("voxels %.0f us, features %.0f; maps %.0f (pyramid %.0f, plans %.0f; floor with voxels "
           "%.0f)\n",
           us[VOXELS], us[FEATURES], maps_us, us[PYRAMID], us[PLANS], maps_floor_us);
    printf("forward %.0f us with maps, %.0f without (floor %.0f); backward %.0f (floor %.0f)\n",
           maps_us + us[FORWARD], us[FORWARD], floors_us[0], us[BACKWARD], floors_us[1]);
    printf("all as one %s: %.0f us, %d kernels\n",
           kernels[STEP] > 0 ? "graph" : "run, not captured", us[STEP], kernels[STEP]);
    if (json != NULL)
        fprintf(json,
                "{\"points\": %lld, \"copies\": %d, \"voxels\": %lld, \"dtype\": \"%s\", "
                "\"backend\": \"%s\", \"voxels_us\": %.1f, \"features_us\": %.1f, "
                "\"pyramid_us\": %.1f, \"plans_us\": %.1f, \"maps_floor_us\": %.1f, "
                "\"forward_us\": %.1f, \"forward_floor_us\": %.1f, \"backward_us\": %.1f, "
                "\"backward_floor_us\": %.1f, \"step_us\": %.1f, \"kernels\": %d}\n",
                (long long)e->num_points, o->copies, (long long)e->sizes.num_rows[0],
                spops_dtype_name(e->dtype), e->d->backend == SPOPS_BACKEND_CPU ? "cpu" : "cuda",
                us[VOXELS], us[FEATURES], us[PYRAMID], us[PLANS], maps_floor_us, us[FORWARD],
                floors_us[0], us[BACKWARD], floors_us[1], us[STEP], kernels[STEP]);
    return report_step(e, o, json, us, kernels, sums, maps_floor_us);
}

int main(int argc, char **argv)
{
    options o;
    device d;
    cloud c;
    engine e;
    spops_dtype dtype;
    FILE *json = NULL;
    int failed;

    if (read_options(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    if (load_cloud(&o, &c)) return 1;
    if (network_options_output(&o.network, &json) || device_open(&d, o.network.backend)) return 1;
    dtype = network_options_dtype(&o.network, &d);
    failed = o.network.check && check(&d, dtype, &c);
    if (!failed) {
        failed = engine_create(&e, &d, dtype, &c) || measure(&e, &o, json);
        engine_destroy(&e);
    }
    if (json != NULL) fclose(json);
    free(c.points);
    device_close(&d);
    return failed;
}
