// SPDX-License-Identifier: Apache-2.0
/*
 * The decoder of generative sparse voxels of TRELLIS.2's shape VAE: from latents on a coarse set to
 * outputs on a set 16 times as fine, whose rows it predicts on the way; on the CPU or as one CUDA Graph
 * that is captured once and launched for a frame after the other. Read it in this order:
 *
 *     decoder.c              what is run and printed
 *     decoder/network.h, .c  layers, operations, drawn parameters
 *     decoder/engine.h, .c   sets, maps, plans, memory known beforehand, and the work of a frame
 *     decoder/weights.h, .c  parameters in a file, as the original has them
 *     decoder/surface.h, .c  sets on a surface, which drawn parameters do not predict
 *     decoder/reference.c    the same in FP64, to check the output
 *     networks/              memory, graphs and clocks (device), floors, draws, lines of results
 */
#include "decoder/engine.h"
#include "decoder/reference.h"
#include "decoder/surface.h"
#include "networks/draw.h"
#include "networks/options.h"
#include "networks/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "decoder [OPTION]...\n"
    "  without an option: narrow and small, both shapes, and --check\n"
    "  --size N            cells along an axis of the finest grid, a multiple of 32: 256\n"
    "  --shape gyroid      children are those on a gyroid's surface, whatever the logits say, so\n"
    "                      that sets grow as those of a trained network do; logits are computed\n"
    "                      and not used\n"
    "  --shape predicted   children are those whose logits are above 0\n"
    "  --growth G          of predicted: room for G times the rows of the level before: 8\n"
    "  --width W           of all channels, 0.125 to 1: 1\n"
    "  --slice N           rows of an MLP at a time; 0: all: 0\n"
    "  --memory GB         refuse to take more of the device\n"
    "  --dtype f32|f16     of features and weights: f16 on a GPU, f32 on the CPU\n"
    "  --backend cpu|cuda  where it runs: a GPU where there is one\n"
    "  --weights FILE      .safetensors with parameters, named as the original's\n"
    "  --generate FILE     write drawn parameters to such a file\n"
    "  --check             compare with FP64, and a GPU with the CPU, for some thousand rows\n"
    "  --layers            time of each part by level\n"
    "  --no-times          nothing is timed\n"
    "  --ceilings T,G      a device's TFLOP/s and GB/s, for floors: 790,4200\n"
    "  --output FILE       append what was measured, a JSON object a line\n";

enum { NUM_FRAMES = 2 };

typedef struct options {
    network_options network;
    int size, no_times;
    shape_kind shape;
    double growth, width, memory_gb;
    int64_t slice_rows;
} options;

static int read_options(int argc, char **argv, options *o)
{
    const options defaults = {.network = network_options_default(),
                              .size = 256,
                              .shape = SHAPE_GIVEN,
                              .growth = 8,
                              .width = 1};
    const char *shape = "gyroid";
    const option_row own[] = {
        {"--size", OPTION_INT, &o->size},          {"--shape", OPTION_TEXT, &shape},
        {"--growth", OPTION_NUMBER, &o->growth},   {"--width", OPTION_NUMBER, &o->width},
        {"--slice", OPTION_COUNT, &o->slice_rows}, {"--memory", OPTION_NUMBER, &o->memory_gb},
        {"--no-times", OPTION_FLAG, &o->no_times},
    };

    *o = defaults;
    if (network_options_read(argc, argv, &o->network, own, sizeof own / sizeof *own)) return 1;
    if (strcmp(shape, "predicted") == 0) o->shape = SHAPE_PREDICTED;
    return !(o->shape == SHAPE_PREDICTED || strcmp(shape, "gyroid") == 0) ||
           !(o->size >= 32 && o->size <= 4096 && o->size % 32 == 0 && o->growth >= 1 &&
             o->growth <= 8 && o->network.num_files == 0);
}

/* ---- Frames ----------------------------------------------------------------------------------- */

/* What the surface keeps of each level's children. */
static int give_children(frame *f, int size)
{
    int32_t *rows = (int32_t *)malloc((size_t)f->num_rows * 4 * sizeof *rows);
    int64_t n = f->num_rows;

    if (rows == NULL) return 1;
    memcpy(rows, f->rows, (size_t)n * 4 * sizeof *rows);
    for (int l = 0; l < LEVELS; ++l) {
        int32_t *fine;
        int64_t num_fine = 0;
        f->level_rows[l] = n;
        if (l + 1 == LEVELS) break;
        f->keep[l] = (uint8_t *)malloc((size_t)n * CHILDREN);
        if (f->keep[l] == NULL) break;
        for (int64_t i = 0; i < n; ++i) {
            surface_children(size >> (LEVELS - 1 - l), rows + 4 * i, f->keep[l] + CHILDREN * i);
            for (int child = 0; child < CHILDREN; ++child)
                num_fine += f->keep[l][CHILDREN * i + child];
        }
        fine = (int32_t *)malloc((size_t)num_fine * 4 * sizeof *fine + 1);
        if (fine == NULL) break;
        for (int64_t i = 0, to = 0; i < CHILDREN * n; ++i)
            if (f->keep[l][i])
                child_of(rows + 4 * (i / CHILDREN), (int)(i % CHILDREN), fine + 4 * to++);
        free(rows);
        rows = fine;
        n = num_fine;
    }
    free(rows);
    return f->level_rows[LEVELS - 1] == 0;
}

/* The surface in the coarsest grid, and the first half of its rows. Latents are drawn. */
static int make_frames(const options *o, frame *frames)
{
    memset(frames, 0, NUM_FRAMES * sizeof *frames);
    for (int i = 0; i < NUM_FRAMES; ++i) {
        frame *f = &frames[i];
        f->rows = surface_rows(o->size >> (LEVELS - 1), &f->num_rows);
        if (f->rows == NULL || f->num_rows < 2) break;
        f->num_rows /= i + 1;
        f->latents = (float *)malloc((size_t)f->num_rows * LATENT_CHANNELS * sizeof(float));
        if (f->latents == NULL) break;
        for (int64_t k = 0; k < f->num_rows * LATENT_CHANNELS; ++k) /* f16 holds these */
            f->latents[k] = roundf(64 * drawn_number((uint64_t)k, -2, 2)) / 64;
        if (o->shape == SHAPE_GIVEN && give_children(f, o->size)) break;
        if (i + 1 == NUM_FRAMES) return 0;
    }
    fprintf(stderr, "a set in a grid of %d^3: there is no memory for it\n", o->size);
    return 1;
}

static void free_frame(frame *f)
{
    free(f->rows);
    free(f->latents);
    for (int l = 0; l < LEVELS; ++l)
        free(f->keep[l]);
}

/* ---- What an operation must do at least ------------------------------------------------------- */

typedef struct sizes {
    int64_t rows[LEVELS], pairs[LEVELS];
} sizes;

/* Each array once; hidden columns of an MLP need not leave the chip. */
static work op_work(const engine *e, const sizes *s, const op *o)
{
    const double each = (double)spops_dtype_bytes(e->o.dtype), n = (double)s->rows[o->level];
    const double coarse = o->level > 0 ? (double)s->rows[o->level - 1] : 0;
    const double pairs = (double)s->pairs[o->level], c = e->net->channels[o->level];
    const int before = o->level > 0 ? e->net->channels[o->level - 1] : 0;
    const layer *l = o->layer < 0 ? NULL : &e->net->layers[o->layer];
    work w = {0};

    switch (o->kind) {
    case OP_SET: w.bytes = 32 * n; break;
    case OP_CHILDREN: w.bytes = (16 + CHILDREN) * coarse + 16 * n; break;
    case OP_MAP: w.bytes = n * (16 + 4 * 28 + 8); break;
    case OP_NORM:
    case OP_FINE_NORM:
    case OP_UP_NORM: w.bytes = 2 * each * n * c; break;
    case OP_TO_SPACE: w.bytes = 2 * each * n * (c + before / CHILDREN); break;
    case OP_MLP:
        w.flops = 2 * 2 * n * c * 4 * c;
        w.bytes = each * (3 * n * c + 2 * 4 * c * c);
        break;
    case OP_CONV:
    case OP_UP_CONV:
    case OP_FINE_CONV: w = work_of_layer(pairs, n, n, TAPS, l->in, l->out, 0, each, 1); break;
    case OP_SKIP: w.bytes = each * n * (l->in + 2 * c); break;
    case OP_LATENT:
    case OP_LOGITS:
    case OP_OUTPUT: w = work_of_layer(n, n, n, 1, l->in, l->out, 0, each, 0); break;
    }
    return w;
}

/* ---- Measuring -------------------------------------------------------------------------------- */

typedef struct op_call {
    engine *e;
    int i;
    graph *g;
    double us[32];
} op_call;

static spops_status run_op(void *user)
{
    const op_call *call = (const op_call *)user;
    return engine_enqueue_op(call->e, call->i);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median time of each operation where it stands in a frame: with what the one before it left in caches. */
static int time_ops(engine *e, int times, op_call *calls)
{
    const int n = e->net->num_ops;
    int failed = 0;

    for (int i = 0; i < n && !failed; ++i) {
        calls[i].e = e;
        calls[i].i = i;
        failed = (calls[i].g = graph_capture(e->d, run_op, &calls[i], 1)) == NULL;
    }
    for (int t = -1; t < times; ++t) /* the first does not count */
        for (int i = 0; i < n && !failed; ++i)
            failed = graph_time_once(calls[i].g, &calls[i].us[t < 0 ? 0 : t]);
    for (int i = 0; i < n; ++i)
        qsort(calls[i].us, (size_t)times, sizeof calls[i].us[0], compare_doubles);
    return failed;
}

/* What operations took together. */
typedef struct part_sum {
    double us, floor_us, flops;
    int calls, kernels;
} part_sum;

static void print_sum(const char *name, const part_sum *p)
{
    printf("  %-18s %5d %10.1f %10.1f %7.2f %8.1f %8d\n", name, p->calls, p->us, p->floor_us,
           p->floor_us > 0 ? p->us / p->floor_us : 0, p->flops / p->us * 1e-6, p->kernels);
}

/* A line for every part, with --layers after its levels. */
static int print_parts(engine *e, const options *o, const sizes *s, const report *to, part_sum *all)
{
    const int times = e->d->backend == SPOPS_BACKEND_CUDA ? 9 : 1;
    op_call *calls = (op_call *)calloc(MAX_OPS, sizeof *calls);
    part_sum sums[NUM_PARTS][LEVELS + 1];
    int failed = calls == NULL || time_ops(e, times, calls);

    memset(sums, 0, sizeof sums);
    for (int i = 0; i < e->net->num_ops && !failed; ++i) {
        const op *p = &e->net->ops[i];
        const work w = op_work(e, s, p);
        part_sum *const to_sum[3] = {&sums[part_of(p->kind)][p->level],
                                     &sums[part_of(p->kind)][LEVELS], all};
        for (int k = 0; k < 3; ++k) {
            to_sum[k]->us += calls[i].us[times / 2];
            to_sum[k]->floor_us += floor_us(o->network.ceilings, w);
            to_sum[k]->flops += w.flops;
            to_sum[k]->kernels += graph_num_kernels(calls[i].g);
            ++to_sum[k]->calls;
        }
    }
    for (int i = 0; calls != NULL && i < e->net->num_ops; ++i)
        graph_destroy(calls[i].g);
    free(calls);
    printf("  %-18s %5s %10s %10s %7s %8s %8s\n", "part", "calls", "us", "floor us", "times",
           "TFLOP/s", "kernels");
    for (int k = 0; k < NUM_PARTS && !failed; ++k) {
        for (int l = 0; l < LEVELS; ++l) {
            char name[64];
            if (!o->network.layers || sums[k][l].calls == 0) continue;
            snprintf(name, sizeof name, "  %lld x %d", (long long)s->rows[l], e->net->channels[l]);
            print_sum(name, &sums[k][l]);
        }
        print_sum(part_name((part_kind)k), &sums[k][LEVELS]);
        failed = report_part(to, part_name((part_kind)k), sums[k][LEVELS].us,
                             sums[k][LEVELS].floor_us, sums[k][LEVELS].kernels);
    }
    return failed;
}

/* The whole, and, where it is to be reported, its parts. */
static int measure_frame(engine *e, const options *o, graph *whole, const sizes *s,
                         const report *to)
{
    const int launches = e->d->backend == SPOPS_BACKEND_CUDA ? 9 : 1;
    part_sum all;
    double frame_us = 0;

    memset(&all, 0, sizeof all);
    if (graph_time(whole, launches, &frame_us)) return 1;
    if (to == NULL) {
        printf("  frame, one graph: %.1f us\n", frame_us);
        return 0;
    }
    if (print_parts(e, o, s, to, &all)) return 1;
    print_sum("all, one by one", &all);
    all.us = frame_us;
    all.kernels = graph_num_kernels(whole);
    print_sum("frame, one graph", &all);
    return report_part(to, "whole", frame_us, all.floor_us, all.kernels);
}

/* ---- Is it right? ----------------------------------------------------------------------------- */

static const char *verdict(int right)
{
    return right ? "right" : "WRONG";
}

/* Largest difference that rounding explains, over the largest element. */
static double tolerance(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F32 ? 1e-4 : 3e-2;
}

static int run_plain(engine *e)
{
    if (engine_enqueue_frame(e) == SPOPS_STATUS_OK) return 0;
    fprintf(stderr, "%s\n", spops_last_error(e->d->ctx));
    return 1;
}

/* A GPU's output beside that of the same frame on the CPU, with the children that the GPU kept. */
static int compare_with_cpu(const engine *e, const frame *f, const sizes *s)
{
    const size_t n = (size_t)s->rows[LEVELS - 1] * OUTPUT_CHANNELS;
    engine_options o = e->o;
    engine on_cpu;
    device cpu;
    frame same = *f;
    double worst = 0, largest = 0;
    float *found = NULL, *expected = NULL;
    int failed = device_open(&cpu, SPOPS_BACKEND_CPU), right;

    if (failed) return 1;
    o.shape = SHAPE_GIVEN;
    o.memory_limit = 0;
    for (int l = 0; l + 1 < LEVELS && e->o.shape == SHAPE_PREDICTED; ++l) {
        const size_t bytes = (size_t)s->rows[l] * CHILDREN;
        same.level_rows[l] = s->rows[l];
        same.keep[l] = (uint8_t *)malloc(bytes + 1);
        failed |=
            same.keep[l] == NULL || device_download(e->d, same.keep[l], e->predicted[l], bytes);
    }
    failed = engine_create(&on_cpu, &cpu, e->net, &o) || failed || engine_upload(&on_cpu, &same) ||
             run_plain(&on_cpu) ||
             (found = reference_download_output(e, s->rows[LEVELS - 1])) == NULL ||
             (expected = reference_download_output(&on_cpu, s->rows[LEVELS - 1])) == NULL;
    for (size_t k = 0; k < n && !failed; ++k) {
        const double error = fabs((double)found[k] - (double)expected[k]);
        if (!(error <= worst)) worst = error;
        largest = fmax(largest, fabs((double)expected[k]));
    }
    right = !failed && worst <= tolerance(o.dtype) * largest;
    printf("  CUDA agrees with the CPU to %.1e of the largest: %s\n", worst / largest,
           verdict(right));
    for (int l = 0; l < LEVELS && e->o.shape == SHAPE_PREDICTED; ++l)
        free(same.keep[l]);
    free(found);
    free(expected);
    engine_destroy(&on_cpu);
    device_close(&cpu);
    return !right;
}

/* A number for the bits of all outputs as f32: FNV-1a. examples/engine.c prints the same. */
static int print_bits(const engine *e, int64_t rows)
{
    float *values = reference_download_output(e, rows);
    const uint8_t *bytes = (const uint8_t *)values;
    uint64_t bits = UINT64_C(0xcbf29ce484222325);

    if (values == NULL) return 1;
    for (size_t k = 0; k < (size_t)rows * OUTPUT_CHANNELS * sizeof *values; ++k)
        bits = (bits ^ bytes[k]) * UINT64_C(0x100000001b3);
    printf("  bits of the outputs: %016" PRIx64 "\n", bits);
    free(values);
    return 0;
}

static int check_frame(engine *e, const frame *f, const sizes *s)
{
    differences found;
    int right;

    if (reference_compare(e, f, &found)) return 1;
    right = found.output <= tolerance(e->o.dtype) && found.logits <= tolerance(e->o.dtype);
    printf("  %lld children as expected; agrees with FP64 to %.1e of the largest (output) and %.1e "
           "(logits): %s\n",
           (long long)found.kept, found.output, found.logits, verdict(right));
    printf("  the largest output is %.9g\n", found.largest);
    return !right || print_bits(e, s->rows[LEVELS - 1]) ||
           (e->d->backend == SPOPS_BACKEND_CUDA && compare_with_cpu(e, f, s));
}

/* ---- All of it -------------------------------------------------------------------------------- */

/* Room for both frames: as many rows as they have, or growth times those of the level before. */
static void set_capacities(const options *o, const frame *frames, int64_t max_rows[LEVELS])
{
    for (int l = 0; l < LEVELS; ++l) {
        int64_t n = l == 0 ? frames[0].num_rows : (int64_t)(o->growth * (double)max_rows[l - 1]);
        if (o->shape == SHAPE_GIVEN)
            n = frames[0].level_rows[l] > frames[1].level_rows[l] ? frames[0].level_rows[l]
                                                                  : frames[1].level_rows[l];
        max_rows[l] = (n + 127) / 128 * 128;
    }
}

static int run_frame(engine *e, const options *o, graph *whole, const frame *f, const char *name,
                     const report *to)
{
    sizes s;
    if (engine_upload(e, f) || graph_launch(whole) || engine_get_sizes(e, s.rows, s.pairs))
        return 1;
    printf("%s: rows", name);
    for (int l = 0; l < LEVELS; ++l)
        printf(" %lld", (long long)s.rows[l]);
    printf("; pairs");
    for (int l = 0; l < LEVELS; ++l)
        printf(" %lld", (long long)s.pairs[l]);
    printf("\n");
    return (o->network.check && check_frame(e, f, &s)) ||
           (!o->no_times && measure_frame(e, o, whole, &s, to));
}

static int run(const options *o, const device *d, const network *net, const weights_file *weights,
               FILE *json)
{
    const spops_dtype dtype = network_options_dtype(&o->network, d);
    const size_t used = device_used_bytes(d);
    engine_options eo = {.dtype = dtype,
                         .shape = o->shape,
                         .size = o->size,
                         .slice_rows = o->slice_rows,
                         .memory_limit = (size_t)(1e9 * o->memory_gb),
                         .weights = weights};
    frame frames[NUM_FRAMES];
    engine e;
    graph *whole = NULL;
    int failed = make_frames(o, frames);

    printf("%s children in a grid of %d^3, %s on %s\n",
           o->shape == SHAPE_GIVEN ? "a gyroid's" : "predicted", o->size, spops_dtype_name(dtype),
           d->backend == SPOPS_BACKEND_CPU ? "the CPU" : "a GPU");
    if (!failed) {
        set_capacities(o, frames, eo.max_rows);
        failed = engine_create(&e, d, net, &eo) || engine_upload(&e, &frames[0]) ||
                 run_plain(&e) || /* kernels are loaded */
                 (whole = graph_capture(d, engine_enqueue_frame, &e, 1)) == NULL;
        if (used > 0 && !failed)
            printf("  the device's memory in use has grown by %.2f GB\n",
                   1e-9 * (double)(device_used_bytes(d) - used));
        for (int i = 0; i < NUM_FRAMES && !failed; ++i) {
            char name[64];
            report to = {json, "decoder", name, d, eo.dtype};
            snprintf(name, sizeof name, "%s%s %d", i == 0 ? "" : "half of ",
                     o->shape == SHAPE_GIVEN ? "gyroid" : "predicted", o->size);
            failed = run_frame(&e, o, whole, &frames[i], name, i == 0 ? &to : NULL);
        }
        graph_destroy(whole);
        engine_destroy(&e);
    }
    for (int i = 0; i < NUM_FRAMES; ++i)
        free_frame(&frames[i]);
    return failed;
}

/* Both shapes, narrow and small. */
static int run_small(options o, const device *d, const network *net)
{
    o.network.check = 1;
    o.no_times = 1;
    o.size = 32;
    o.shape = SHAPE_PREDICTED;
    o.slice_rows = 48; /* several slices, and a shorter one at the end */
    if (run(&o, d, net, NULL, NULL)) return 1;
    o.size = 64;
    o.shape = SHAPE_GIVEN;
    o.slice_rows = 0;
    return run(&o, d, net, NULL, NULL);
}

int main(int argc, char **argv)
{
    options o;
    device d;
    network net;
    weights_file weights;
    FILE *json = NULL;
    int failed;

    if (read_options(argc, argv, &o) || network_create(&net, argc == 1 ? 0.125 : o.width)) {
        fputs(usage, stderr);
        return 2;
    }
    if (network_options_output(&o.network, &json) || device_open(&d, o.network.backend)) return 1;
    memset(&weights, 0, sizeof weights);
    failed = (o.network.generate != NULL && weights_write(o.network.generate, &net)) ||
             (o.network.weights != NULL && weights_open(&weights, o.network.weights));
    if (!failed)
        failed = argc == 1 ? run_small(o, &d, &net)
                           : run(&o, &d, &net, o.network.weights == NULL ? NULL : &weights, json);
    weights_close(&weights);
    if (json != NULL) failed |= fclose(json) != 0;
    device_close(&d);
    return failed;
}
