// SPDX-License-Identifier: Apache-2.0
/*
 * CenterPoint's sparse encoder for nuScenes with voxels of 0.075 m: from points to dense features
 * seen from above, on the CPU or as one CUDA Graph that is captured once and launched for a frame
 * after the other, whatever their sizes. Read it in this order:
 *
 *     centerpoint.c              what is run and printed
 *     centerpoint/network.h, .c  grids, layers, parameters and their file
 *     centerpoint/encoder.h, .c  sets, maps, plans, memory, and the work of a frame
 *     centerpoint/reference.c    the same in FP64, to check the output
 *     networks/                  memory, graphs and clocks (device), scans, parameters, floors
 */
#include "centerpoint/encoder.h"
#include "centerpoint/reference.h"
#include "networks/options.h"
#include "networks/report.h"
#include "networks/scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "centerpoint [OPTION]... [FILE]...\n"
    "  FILE                a sweep, .npy, .pcd or .bin of f32: x, y, z in m, intensity. Each "
    "begins a\n"
    "                      frame, and all frames go through the same graph\n"
    "  without FILE: two small simulated sweeps; without an option too, as with\n"
    "                      --sweeps 24 --step 0.001 --check\n"
    "  --sweeps N          a frame is N sweeps side by side: its file and those after it, from "
    "the\n"
    "                      first again after the last; sweep k is k steps behind, 0.05 s apart: 1\n"
    "  --step M            of --sweeps, along x: 0.5\n"
    "  --check             compare with FP64, for 20,000 points at most\n"
    "  --layers            time of each layer\n" NETWORK_OPTIONS_USAGE;

typedef struct options {
    network_options all;
    int sweeps;
    double step_m;
} options;

static int read_options(int argc, char **argv, options *o)
{
    const option_row own[] = {{"--sweeps", OPTION_INT, &o->sweeps},
                              {"--step", OPTION_NUMBER, &o->step_m}};
    o->all = network_options_default();
    o->all.check = argc == 1;
    o->sweeps = argc == 1 ? 24 : 1; /* so that voxels have more points than count */
    o->step_m = argc == 1 ? 0.001 : 0.5;
    return network_options_read(argc, argv, &o->all, own, 2) || o->sweeps > 100;
}

/* ---- Frames ---------------------------------------------------------------------------------- */

enum { NUM_EDGE_POINTS = 18 };

/* A simulated sweep has points at the faces, edges and corners of the grid, too, where outputs of the
   strided layers end. */
static void add_edge_points(frame *f)
{
    for (int i = 0; i < NUM_EDGE_POINTS; ++i) {
        float *p = f->points + NUM_FEATURES * f->num_points++;
        p[0] = 53.98f * (float)(i % 3 - 1);
        p[1] = 53.98f * (float)(i / 3 % 3 - 1);
        p[2] = i / 9 == 0 ? -4.9f : 2.9f;
        p[3] = 0.1f * (float)i;
        p[4] = 0.0f;
    }
}

/* Sweeps first, first + 1, .. of the scans, in turn. */
static int make_frame(const options *o, const scan *scans, int num_scans, int first, frame *f)
{
    int64_t n = NUM_EDGE_POINTS;
    for (int k = 0; k < o->sweeps; ++k)
        n += scans[(first + k) % num_scans].num_points;
    f->num_points = 0;
    f->points =
        n < INT32_MAX ? (float *)malloc((size_t)n * NUM_FEATURES * sizeof(float) + 1) : NULL;
    if (f->points == NULL) {
        fprintf(stderr, "a frame of %lld points: there is no memory for it\n", (long long)n);
        return 1;
    }
    if (o->all.num_files == 0) add_edge_points(f);
    for (int k = 0; k < o->sweeps; ++k) {
        const scan *s = &scans[(first + k) % num_scans];
        for (int64_t i = 0; i < s->num_points; ++i) {
            float *p = f->points + NUM_FEATURES * f->num_points++;
            memcpy(p, s->points + 4 * i, 4 * sizeof *p);
            p[0] -= (float)(k * o->step_m);
            p[4] = 0.05f * (float)k;
        }
    }
    return 0;
}

static int load_frames(const options *o, frame *frames, int *num_frames)
{
    scan scans[OPTIONS_FILES];
    const int wanted = o->all.num_files > 0 ? o->all.num_files : 2;
    int num_scans = 0, failed = 0;

    *num_frames = 0;
    for (; num_scans < wanted && !failed; ++num_scans) /* the second has half the rays */
        failed = o->all.num_files > 0
                     ? scan_load(o->all.files[num_scans], &scans[num_scans])
                     : scan_simulate(o->all.beams, o->all.rays >> num_scans, &scans[num_scans]);
    for (; *num_frames < wanted && !failed; ++*num_frames)
        failed = make_frame(o, scans, num_scans, *num_frames, &frames[*num_frames]);
    while (num_scans > 0)
        scan_free(&scans[--num_scans]);
    return failed;
}

/* ---- What a part of the work must do at least ------------------------------------------------ */

static work layer_work(const encoder *e, const encoder_sizes *s, const layer *l)
{
    const double each = (double)spops_dtype_bytes(e->dtype);
    const int l_in = l->level - l->down;
    return work_of_layer((double)(l->down ? s->to_pairs[l->level] : s->within_pairs[l->level]),
                         (double)s->rows[l_in], (double)s->rows[l->level], l->taps, l->in, l->out,
                         l->residual >= 0 ? l->out : 0, each, 1);
}

/* Each array once: coordinates of 16 bytes, a table, mask and order for each row of a map. */
static work part_work(const encoder *e, const encoder_sizes *s, int part, int64_t num_points)
{
    const double each = (double)spops_dtype_bytes(e->dtype), points = (double)num_points;
    work w = {0, 0, 0};
    switch (part) {
    case PART_VOXELS: w.bytes = 16 * points + 4 * points + 16 * (double)s->rows[0]; break;
    case PART_SETS:
        for (int l = 1; l < NUM_LEVELS; ++l)
            w.bytes += 16.0 * (double)(s->rows[l - 1] + s->rows[l]);
        break;
    case PART_MAPS:
        for (int l = 0; l < NUM_LEVELS; ++l) {
            const double rows = (double)s->rows[l];
            if (l > 0) w.bytes += rows * (16 + 4 * (l + 1 < NUM_LEVELS ? 28 : 4) + 8);
            if (l + 1 < NUM_LEVELS) w.bytes += rows * (16 + 4 * 28 + 8);
        }
        break;
    case PART_MEAN: w.bytes = each * NUM_INPUTS * (points + (double)s->rows[0]); break;
    case PART_DENSE:
        w.bytes =
            each * ((double)s->rows[NUM_LEVELS - 1] * NUM_OUTPUTS + (double)encoder_bev_elements());
        break;
    default: break; /* plans: nothing that must be moved; layers: one by one */
    }
    return w;
}

/* ---- Measuring ------------------------------------------------------------------------------- */

typedef struct call_of {
    encoder *e;
    int i;
} call_of;

static spops_status run_part(void *user)
{
    const call_of *call = (const call_of *)user;
    return encoder_enqueue_part(call->e, call->i);
}
static spops_status run_layer(void *user)
{
    const call_of *call = (const call_of *)user;
    return encoder_enqueue_layer(call->e, call->i);
}
static spops_status run_frame(void *user)
{
    return encoder_enqueue_frame((encoder *)user);
}

/* Sums of all layers; with --layers each of them. */
static int measure_layers(encoder *e, const options *o, const encoder_sizes *s, FILE *json,
                          double *gflop, double *least_sum_us)
{
    const int gpu = e->d->backend == SPOPS_BACKEND_CUDA;
    if (o->all.layers)
        printf("  %-18s %8s %5s %4s %4s %10s %8s %9s\n", "layer", "rows", "taps", "in", "out", "us",
               "TFLOP/s", "floor us");
    for (int i = 0; i < e->net->num_layers; ++i) {
        const layer *l = &e->net->layers[i];
        const work w = layer_work(e, s, l);
        const double least_us = floor_us(o->all.ceilings, w);
        call_of call = {e, i};
        double time_us = 0;
        int kernels = 0;
        *gflop += w.flops * 1e-9;
        *least_sum_us += least_us;
        if (!o->all.layers) continue;
        if (graph_time_part(e->d, run_layer, &call, gpu ? 10 : 1, gpu ? 15 : 3, &time_us, &kernels))
            return 1;
        printf("  %-18s %8lld %5d %4d %4d %10.1f %8.2f %9.1f\n", l->name,
               (long long)s->rows[l->level], l->taps, l->in, l->out, time_us,
               w.flops / time_us * 1e-6, least_us);
        if (json != NULL)
            fprintf(json,
                    "{\"layer\": \"%s\", \"rows\": %lld, \"in\": %d, \"out\": %d, \"taps\": %d, "
                    "\"us\": %.2f, \"gflop\": %.3f, \"floor_us\": %.2f}\n",
                    l->name, (long long)s->rows[l->level], l->in, l->out, l->taps, time_us,
                    w.flops * 1e-9, least_us);
    }
    return 0;
}

static void write_frame(FILE *json, const encoder *e, const options *o, const char *name,
                        const frame *f, const encoder_sizes *s)
{
    fprintf(json,
            "{\"frame\": \"%s\", \"sweeps\": %d, \"backend\": \"%s\", \"dtype\": \"%s\", "
            "\"points\": %lld, \"left_out\": %lld, \"rows\": [%lld, %lld, %lld, %lld, %lld]",
            name, o->sweeps, e->d->backend == SPOPS_BACKEND_CPU ? "cpu" : "cuda",
            spops_dtype_name(e->dtype), (long long)f->num_points, (long long)s->left_out,
            (long long)s->rows[0], (long long)s->rows[1], (long long)s->rows[2],
            (long long)s->rows[3], (long long)s->rows[4]);
}

/* One frame: sizes, the whole and its parts. */
static int measure_frame(encoder *e, const options *o, graph *whole, const frame *f,
                         const char *name, FILE *json)
{
    static const char *const names[NUM_PARTS] = {"voxels", "sets",   "maps", "plans",
                                                 "mean",   "layers", "dense"};
    const int launches = e->d->backend == SPOPS_BACKEND_CUDA ? 50 : 3;
    encoder_sizes s;
    const report to = {json, "centerpoint", name, e->d, e->dtype};
    double frame_us = 0, gflop = 0, layers_us = 0, floors_us = 0, parts_us[NUM_PARTS],
           parts_floor_us[NUM_PARTS];
    int failed = 0, parts_kernels[NUM_PARTS];

    if (encoder_upload(e, f) || graph_time(whole, launches, &frame_us) || encoder_get_sizes(e, &s))
        return 1;
    printf("%s: %lld points, %lld outside the grid; rows %lld %lld %lld %lld %lld\n", name,
           (long long)f->num_points, (long long)s.left_out, (long long)s.rows[0],
           (long long)s.rows[1], (long long)s.rows[2], (long long)s.rows[3], (long long)s.rows[4]);
    if (measure_layers(e, o, &s, json, &gflop, &layers_us)) return 1;
    if (json != NULL) write_frame(json, e, o, name, f, &s);
    printf("  %-8s %10s %10s %8s\n", "part", "us", "floor us", "kernels");
    for (int part = 0; part < NUM_PARTS; ++part) {
        const double least_us =
            part == PART_LAYERS ? layers_us
                                : floor_us(o->all.ceilings, part_work(e, &s, part, f->num_points));
        call_of call = {e, part};
        double time_us = 0;
        int kernels = 0;
        if (graph_time_part(e->d, run_part, &call, 1, launches, &time_us, &kernels)) return 1;
        floors_us += least_us;
        parts_us[part] = time_us;
        parts_floor_us[part] = least_us;
        parts_kernels[part] = kernels;
        printf("  %-8s %10.1f %10.1f %8d\n", names[part], time_us, least_us, kernels);
        if (json != NULL)
            fprintf(json, ", \"%s_us\": %.1f, \"%s_floor_us\": %.2f", names[part], time_us,
                    names[part], least_us);
    }
    printf("  %-8s %10.1f %10.1f %8d   %.1f a second, %.2f GFLOP of layers\n", "frame", frame_us,
           floors_us, graph_num_kernels(whole), 1e6 / frame_us, gflop);
    if (json != NULL)
        fprintf(json, ", \"frame_us\": %.1f, \"floor_us\": %.2f, \"gflop\": %.3f}\n", frame_us,
                floors_us, gflop);
    for (int part = 0; part < NUM_PARTS; ++part)
        failed |= report_part(&to, names[part], parts_us[part], parts_floor_us[part],
                              parts_kernels[part]);
    return failed || report_part(&to, "whole", frame_us, floors_us, graph_num_kernels(whole));
}

/* ---- All of it ------------------------------------------------------------------------------- */

static int check_frame(encoder *e, graph *whole, const frame *f, const char *name)
{
    /* Largest difference from FP64 that rounding explains, over the largest element. */
    const double tolerance = e->dtype == SPOPS_DTYPE_F32 ? 1e-4 : 3e-2;
    double difference = 0;
    int64_t nonzero = 0;
    int right;

    if (encoder_upload(e, f) || graph_launch(whole) ||
        reference_compare(e, f, &difference, &nonzero))
        return 1;
    right = difference <= tolerance && nonzero > 0;
    printf("%s: dense features agree with FP64 to %.1e of the largest, %lld are not 0: %s\n", name,
           difference, (long long)nonzero, right ? "right" : "WRONG");
    return !right;
}

static int run(const options *o, const device *d, const network *net, const frame *frames,
               int num_frames)
{
    const spops_dtype dtype = network_options_dtype(&o->all, d);
    const size_t used = device_used_bytes(d);
    encoder e;
    graph *whole = NULL;
    FILE *json;
    int failed = 0;

    if (network_options_output(&o->all, &json)) return 1;
    failed = encoder_create(&e, d, net, dtype, frames, num_frames) ||
             (whole = graph_capture(d, run_frame, &e, 1)) == NULL;
    for (int i = 0; i < num_frames && !failed; ++i) {
        const char *name = o->all.num_files > 0 ? file_name(o->all.files[i]) : "simulated frame";
        const report to = {json, "centerpoint", name, d, dtype};
        failed = measure_frame(&e, o, whole, &frames[i], name, json) ||
                 report_latency(&to, whole, d->backend == SPOPS_BACKEND_CPU ? 5 : 500, used) ||
                 (o->all.check && check_frame(&e, whole, &frames[i], name));
    }
    graph_destroy(whole);
    encoder_destroy(&e);
    if (json != NULL) failed |= fclose(json) != 0;
    return failed;
}

int main(int argc, char **argv)
{
    options o;
    device d;
    network net;
    frame frames[OPTIONS_FILES];
    int num_frames = 0, failed;

    if (read_options(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    if (device_open(&d, o.all.backend)) return 1;
    network_create(&net);
    failed = load_frames(&o, frames, &num_frames) ||
             (o.all.weights != NULL ? network_load(d.host, &net, o.all.weights)
                                    : network_generate(&net)) ||
             (o.all.generate != NULL && network_save(d.host, &net, o.all.generate));
    if (!failed) {
        printf("CenterPoint's encoder: %d layers on %s\n", net.num_layers,
               d.backend == SPOPS_BACKEND_CPU ? "the CPU" : "a GPU");
        failed = run(&o, &d, &net, frames, num_frames);
    }
    for (int i = 0; i < num_frames; ++i)
        free(frames[i].points);
    network_destroy(&net);
    device_close(&d);
    return failed;
}
