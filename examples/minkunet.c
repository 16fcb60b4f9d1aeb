// SPDX-License-Identifier: Apache-2.0
/*
 * MinkUNet, a network that names the class of every voxel of a LiDAR scan, as an inference engine:
 * from points to scores, on the CPU or as one CUDA Graph that is captured once and launched for a
 * scan after the other, whatever their sizes. Read it in this order:
 *
 *     minkunet.c             what is run and printed
 *     minkunet/network.h, .c layers, parameters and their file
 *     minkunet/engine.h, .c  plans, memory, and the work of a frame
 *     networks/parameters.c  a layer's parameters: drawn, folded, in a file
 *     minkunet/reference.c   the same in FP64, to check the output
 *     networks/device.c      memory, graphs and clocks on the CPU and on a GPU; scan.c: scans
 */
#include "minkunet/engine.h"
#include "minkunet/reference.h"
#include "networks/options.h"
#include "networks/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "minkunet [OPTION]...\n"
    "  without an option: two small simulated scans, and --check\n"
    "  --scan FILE.npy     a scan, f32 [points][4]: x, y, z in m, reflectance. Again for more\n"
    "                      scans, which go through the same graph. Without: simulated ones\n"
    "  --voxel M           size of a voxel: 0.1\n"
    "  --width W           1, 0.5 or another: 0.5\n"
    "  --check             compare with FP64, for some thousand voxels at most\n"
    "  --layers            time of each layer\n" NETWORK_OPTIONS_USAGE;

typedef struct options {
    network_options all;
    double voxel_m, width;
} options;

static int read_options(int argc, char **argv, options *o)
{
    const option_row own[] = {{"--voxel", OPTION_NUMBER, &o->voxel_m},
                              {"--width", OPTION_NUMBER, &o->width}};
    o->all = network_options_default();
    o->all.check = argc == 1;
    o->voxel_m = 0.1;
    o->width = 0.5;
    return network_options_read(argc, argv, &o->all, own, 2) || o->width > 2;
}

static int load_scans(const options *o, scan *scans, int *num_scans)
{
    *num_scans = 0;
    for (; *num_scans < o->all.num_files; ++*num_scans)
        if (scan_load(o->all.files[*num_scans], &scans[*num_scans])) return 1;
    for (; o->all.num_files == 0 && *num_scans < 2; ++*num_scans) /* the second has half the rays */
        if (scan_simulate(o->all.beams, o->all.rays >> *num_scans, &scans[*num_scans])) return 1;
    return 0;
}

/* ---- What a part of the work must do at least ---------------------------------------------------
 */

/* A layer's products, and its rows, weights and pairs once each. */
static work layer_work(const engine *e, const spops_pyramid_info *info, const layer *l)
{
    const double each = (double)spops_dtype_bytes(e->dtype);
    const double out_rows = (double)info->num_rows[l->level];
    double pairs = out_rows, in_rows = out_rows;
    switch (l->relation) {
    case WITHIN: pairs = (double)info->num_pairs[l->level]; break;
    case DOWN:
        pairs = (double)info->num_down_pairs[l->level - 1];
        in_rows = (double)info->num_rows[l->level - 1];
        break;
    case UP:
        pairs = (double)info->num_down_pairs[l->level];
        in_rows = (double)info->num_rows[l->level + 1];
        break;
    case POINTWISE: break;
    }
    return work_of_layer(pairs, in_rows, out_rows, l->taps, l->in.cols, l->out.cols,
                         l->residual.cols, each, l->relation != POINTWISE);
}

/* ---- Parts, timed apart -------------------------------------------------------------------------
 */

typedef struct layer_call {
    engine *e;
    int i;
} layer_call;

static spops_status run_voxels(void *user)
{
    return engine_enqueue_voxels((engine *)user);
}
static spops_status run_pyramid(void *user)
{
    return engine_enqueue_pyramid((engine *)user);
}
static spops_status run_plans(void *user)
{
    return engine_enqueue_plans((engine *)user);
}
static spops_status run_layers(void *user)
{
    return engine_enqueue_layers((engine *)user);
}
static spops_status run_frame(void *user)
{
    return engine_enqueue_frame((engine *)user);
}
static spops_status run_layer(void *user)
{
    const layer_call *call = (const layer_call *)user;
    return engine_enqueue_layer(call->e, call->i);
}

static const char *dataflow_of(const engine *e, const layer *l)
{
    const spops_sparseconv *conv = l->relation == WITHIN ? e->within[l->level]
                                   : l->relation == DOWN ? e->down[l->level - 1]
                                                         : e->up[l->level];
    spops_conv_choice choice;
    if (l->relation == POINTWISE) return "linear";
    if (spops_sparseconv_get_choice(e->d->ctx, conv, SPOPS_PASS_FORWARD, e->dtype, l->in.cols,
                                    l->out.cols, NULL, &choice) != SPOPS_STATUS_OK)
        return "?";
    return spops_dataflow_name(choice.dataflow);
}

static int print_layers(engine *e, const options *o, const spops_pyramid_info *info, FILE *json,
                        work *sum, double *sum_floor_us)
{
    const int gpu = e->d->backend == SPOPS_BACKEND_CUDA;
    double sum_us = 0;

    if (o->all.layers)
        printf("%-18s %8s %8s %5s %5s %10s %8s %8s  %s\n", "layer", "rows", "taps", "in", "out",
               "us", "TFLOP/s", "floor us", "dataflow");
    for (int i = 0; i < e->net->num_layers; ++i) {
        const layer *l = &e->net->layers[i];
        const work w = layer_work(e, info, l);
        layer_call call = {e, i};
        double time_us = 0;
        int kernels = 0;
        sum->flops += w.flops;
        sum->bytes += w.bytes;
        *sum_floor_us += floor_us(o->all.ceilings, w);
        if (!o->all.layers) continue;
        if (graph_time_part(e->d, run_layer, &call, gpu ? 10 : 1, gpu ? 15 : 3, &time_us, &kernels))
            return 1;
        sum_us += time_us;
        printf("%-18s %8d %8d %5d %5d %10.1f %8.2f %8.1f  %s\n", l->name,
               (int)info->num_rows[l->level], l->taps, l->in.cols, l->out.cols, time_us,
               w.flops / time_us * 1e-6, floor_us(o->all.ceilings, w), dataflow_of(e, l));
        if (json != NULL)
            fprintf(json,
                    "{\"layer\": \"%s\", \"rows\": %d, \"in\": %d, \"out\": %d, \"taps\": %d, "
                    "\"us\": %.2f, \"gflop\": %.3f, \"mbytes\": %.3f, \"floor_us\": %.2f}\n",
                    l->name, (int)info->num_rows[l->level], l->in.cols, l->out.cols, l->taps,
                    time_us, w.flops * 1e-9, w.bytes * 1e-6, floor_us(o->all.ceilings, w));
    }
    if (o->all.layers) printf("%-18s %39.1f\n", "all, one by one", sum_us);
    return 0;
}

/* In the format of all networks. */
static int report_scan(const report *to, double maps_us, double maps_floor_us, int maps_kernels,
                       double layers_us, double layers_floor_us, int layers_kernels,
                       double frame_us, int kernels)
{
    return report_part(to, "maps", maps_us, maps_floor_us, maps_kernels) ||
           report_part(to, "layers", layers_us, layers_floor_us, layers_kernels) ||
           report_part(to, "whole", frame_us, maps_floor_us + layers_floor_us, kernels);
}

/* One scan: sizes, the whole and its parts. */
static int measure_scan(engine *e, const options *o, graph *whole, const scan *s, const char *name,
                        FILE *json)
{
    enum { VOXELS, PYRAMID, PLANS, LAYERS, NUM_PARTS };
    static const enqueue_function parts[NUM_PARTS] = {run_voxels, run_pyramid, run_plans,
                                                      run_layers};
    const int launches = e->d->backend == SPOPS_BACKEND_CUDA ? 50 : 3;
    const report to = {json, "minkunet", name, e->d, e->dtype};
    spops_pyramid_info info;
    work layers = {0, 0, 0};
    double part_us[NUM_PARTS], frame_us = 0, plain_us = 0, layers_floor_us = 0, maps_us, rest_us,
                               maps_floor_us;
    int kernels[NUM_PARTS], maps_kernels, failed;
    graph *plain;

    if (engine_upload(e, s) || graph_time(whole, launches, &frame_us) || engine_sizes(e, &info))
        return 1;
    for (int i = 0; i < NUM_PARTS; ++i)
        if (graph_time_part(e->d, parts[i], e, 1, launches, &part_us[i], &kernels[i])) return 1;
    plain = graph_plain(e->d, run_frame, e);
    failed = plain == NULL || graph_time(plain, launches, &plain_us);
    graph_destroy(plain);
    if (failed) return 1;
    maps_floor_us = floor_us(o->all.ceilings, maps_work(&info, s->num_points));
    maps_us = part_us[VOXELS] + part_us[PYRAMID] + part_us[PLANS];
    maps_kernels = kernels[VOXELS] + kernels[PYRAMID] + kernels[PLANS];
    rest_us = frame_us - maps_us - part_us[LAYERS];
    printf("%s: %d points; rows", name, (int)s->num_points);
    for (int l = 0; l < NUM_LEVELS; ++l)
        printf(" %d", (int)info.num_rows[l]);
    printf("\n");
    if (print_layers(e, o, &info, json, &layers, &layers_floor_us)) return 1;
    printf("  a frame %.0f us, %.1f a second; without a graph %.0f us\n", frame_us, 1e6 / frame_us,
           plain_us);
    printf("  maps %.0f us, %.0f %% (voxels %.0f, pyramid %.0f, plans %.0f; %d kernels; floor "
           "%.0f)\n",
           maps_us, 100 * maps_us / frame_us, part_us[VOXELS], part_us[PYRAMID], part_us[PLANS],
           maps_kernels, maps_floor_us);
    printf("  layers %.0f us, %.0f %% (%.2f GFLOP, %.3f TFLOP/s; %d kernels; floor %.0f)\n",
           part_us[LAYERS], 100 * part_us[LAYERS] / frame_us, layers.flops * 1e-9,
           layers.flops / part_us[LAYERS] * 1e-6, kernels[LAYERS], layers_floor_us);
    printf("  rest %.0f us, %.0f %%\n", rest_us, 100 * rest_us / frame_us);
    if (json != NULL)
        fprintf(json,
                "{\"scan\": \"%s\", \"width\": %g, \"voxel_m\": %g, \"dtype\": \"%s\", "
                "\"points\": %d, \"rows\": [%d, %d, %d, %d, %d], \"frame_us\": %.1f, "
                "\"plain_us\": %.1f, \"voxels_us\": %.1f, \"pyramid_us\": %.1f, "
                "\"plans_us\": %.1f, \"layers_us\": %.1f, \"rest_us\": %.1f, \"gflop\": %.3f, "
                "\"layers_floor_us\": %.1f, \"maps_floor_us\": %.1f, \"maps_kernels\": %d, "
                "\"layers_kernels\": %d}\n",
                name, e->net->width, o->voxel_m, spops_dtype_name(e->dtype), (int)s->num_points,
                (int)info.num_rows[0], (int)info.num_rows[1], (int)info.num_rows[2],
                (int)info.num_rows[3], (int)info.num_rows[4], frame_us, plain_us, part_us[VOXELS],
                part_us[PYRAMID], part_us[PLANS], part_us[LAYERS], rest_us, layers.flops * 1e-9,
                layers_floor_us, maps_floor_us, maps_kernels, kernels[LAYERS]);
    return report_scan(&to, maps_us, maps_floor_us, maps_kernels, part_us[LAYERS], layers_floor_us,
                       kernels[LAYERS], frame_us, graph_num_kernels(whole));
}

/* ---- All of it ----------------------------------------------------------------------------------
 */

/* Largest difference from FP64 that rounding explains, over the largest output. */
static double tolerance(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F32 ? 1e-4 : 3e-2;
}

static int check_scan(engine *e, graph *whole, const scan *s, const char *name)
{
    double difference = 0;
    if (engine_upload(e, s) || graph_launch(whole) || reference_compare(e, &difference)) return 1;
    printf("%s: output agrees with FP64 to %.1e of its largest element: %s\n", name, difference,
           difference <= tolerance(e->dtype) ? "right" : "WRONG");
    return !(difference <= tolerance(e->dtype));
}

static int run(const options *o, const device *d, network *net, const scan *scans, int num_scans)
{
    const spops_dtype dtype = network_options_dtype(&o->all, d);
    const size_t used = device_used_bytes(d);
    engine e;
    graph *whole = NULL;
    FILE *json;
    int failed;

    if (network_options_output(&o->all, &json)) return 1;
    failed = engine_create(&e, d, net, dtype, o->voxel_m, scans, num_scans) ||
             (whole = graph_capture(d, run_frame, &e, 1)) == NULL;
    for (int i = 0; i < num_scans && !failed; ++i) {
        char name[256];
        snprintf(name, sizeof name, "%s",
                 o->all.num_files > 0 ? file_name(o->all.files[i]) : "simulated scan");
        const report to = {json, "minkunet", name, d, dtype};
        failed = measure_scan(&e, o, whole, &scans[i], name, json) ||
                 report_latency(&to, whole, d->backend == SPOPS_BACKEND_CPU ? 5 : 500, used) ||
                 (o->all.check && check_scan(&e, whole, &scans[i], name));
    }
    graph_destroy(whole);
    engine_destroy(&e);
    if (json != NULL) fclose(json);
    return failed;
}

int main(int argc, char **argv)
{
    options o;
    device d;
    network net;
    scan scans[OPTIONS_FILES];
    int num_scans = 0, failed;

    if (read_options(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    if (device_open(&d, o.all.backend)) return 1;
    network_create(&net, o.width);
    failed = load_scans(&o, scans, &num_scans) ||
             (o.all.weights != NULL ? network_load(d.ctx, &net, o.all.weights)
                                    : network_generate(&net)) ||
             (o.all.generate != NULL && network_save(d.ctx, &net, o.all.generate));
    if (!failed) {
        printf("MinkUNet %g: %d layers on %s\n", o.width, net.num_layers,
               d.backend == SPOPS_BACKEND_CPU ? "the CPU" : "a GPU");
        failed = run(&o, &d, &net, scans, num_scans);
    }
    for (int i = 0; i < num_scans; ++i)
        scan_free(&scans[i]);
    network_destroy(&net);
    device_close(&d);
    return failed;
}
