// SPDX-License-Identifier: Apache-2.0
/*
 * An engine that is not ours: a minimal graph runner in C that drives libspops by a list of nodes, through
 * spops/call.h alone, and runs the decoder of generative sparse voxels with a peak of memory that is
 * known before anything is allocated. Read it in this order:
 *
 *     engine/spops_nodes.h, .c    operators as nodes: what an engine copies
 *     engine/graph.h, .c          tensors, nodes, the arena
 *     engine/decoder_nodes.h, .c  the decoder as a list of nodes
 *     decoder/weights.h, .c       parameters in a file
 *     engine.c                    what is run and printed
 */
#define _POSIX_C_SOURCE 200112L
#include "decoder/surface.h"
#include "engine/decoder_nodes.h"
#include "networks/draw.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "engine [OPTION]...\n"
    "  without an option: narrow and small, on the CPU\n"
    "  --size N            cells along an axis of the finest grid, a multiple of 32: 256\n"
    "  --shape gyroid|predicted  whose children: a gyroid's surface, or logits above 0\n"
    "  --growth G          of predicted: room for G times the rows of the level before: 8\n"
    "  --width W           of all channels, 0.125 to 1: 1\n"
    "  --slice N           output ranges: so many rows at a time; 0: all: 0\n"
    "  --memory GB         refuse to take more: 12; 0: any\n"
    "  --dtype f32|f16     of features and weights: f16 on a GPU, f32 on the CPU\n"
    "  --backend cpu|cuda  where it runs: the CPU\n"
    "  --weights FILE      .safetensors; else they are drawn\n"
    "  --dry               say what it will take, and no more\n";

enum { NUM_FRAMES = 2 };

typedef struct options {
    int size, given, cuda, f16, dry;
    int64_t slice_rows;
    double growth, width, memory_gb;
    const char *weights;
} options;

static int read_options(int argc, char **argv, options *o)
{
    const options defaults = {256, 1, 0, -1, 0, 0, 8, 1, 12, NULL};
    *o = defaults;
    for (int i = 1; i < argc; ++i) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        ++i; /* most have a value */
        if (strcmp(name, "--size") == 0)
            o->size = atoi(value);
        else if (strcmp(name, "--shape") == 0)
            o->given = strcmp(value, "predicted") != 0;
        else if (strcmp(name, "--growth") == 0)
            o->growth = atof(value);
        else if (strcmp(name, "--width") == 0)
            o->width = atof(value);
        else if (strcmp(name, "--slice") == 0)
            o->slice_rows = atoll(value);
        else if (strcmp(name, "--memory") == 0)
            o->memory_gb = atof(value);
        else if (strcmp(name, "--dtype") == 0)
            o->f16 = strcmp(value, "f16") == 0;
        else if (strcmp(name, "--backend") == 0)
            o->cuda = strcmp(value, "cuda") == 0;
        else if (strcmp(name, "--weights") == 0 && value[0] != 0)
            o->weights = value;
        else if (--i, strcmp(name, "--dry") == 0)
            o->dry = 1;
        else
            return 1;
    }
    if (argc == 1) {
        o->size = 32;
        o->width = 0.125;
        o->given = 0;
        o->growth = 5;
        o->slice_rows = 300; /* several slices, and a shorter one at the end */
    }
    if (o->f16 < 0) o->f16 = o->cuda;
    return !(o->size >= 32 && o->size <= 4096 && o->size % 32 == 0 && o->growth >= 1 &&
             o->growth <= 8 && o->slice_rows >= 0 && o->memory_gb >= 0);
}

/* ---- Frames ----------------------------------------------------------------------------------- */

/* Latents on the rows (0, x, y, z) of the coarsest set, and which children are kept. */
typedef struct frame {
    int64_t num_rows, level_rows[LEVELS];
    int32_t *rows;
    uint8_t *keep[LEVELS];
} frame;

/* What the surface keeps of each level's children. */
static int give_children(frame *f, int size)
{
    int32_t *rows = (int32_t *)malloc((size_t)f->num_rows * 4 * sizeof *rows);

    if (rows == NULL) return 1;
    memcpy(rows, f->rows, (size_t)f->num_rows * 4 * sizeof *rows);
    f->level_rows[0] = f->num_rows;
    for (int l = 0; l + 1 < LEVELS; ++l) {
        const int64_t n = f->level_rows[l];
        int32_t *fine = NULL;
        int64_t num_fine = 0;
        f->keep[l] = (uint8_t *)malloc((size_t)n * CHILDREN + 1);
        for (int64_t i = 0; i < n && f->keep[l] != NULL; ++i) {
            surface_children(size >> (LEVELS - 1 - l), rows + 4 * i, f->keep[l] + CHILDREN * i);
            for (int child = 0; child < CHILDREN; ++child)
                num_fine += f->keep[l][CHILDREN * i + child];
        }
        if (f->keep[l] != NULL) fine = (int32_t *)malloc((size_t)num_fine * 4 * sizeof *fine + 1);
        for (int64_t i = 0, to = 0; i < CHILDREN * n && fine != NULL; ++i)
            if (f->keep[l][i])
                child_of(rows + 4 * (i / CHILDREN), (int)(i % CHILDREN), fine + 4 * to++);
        free(rows);
        rows = fine;
        f->level_rows[l + 1] = num_fine;
        if (fine == NULL) return 1;
    }
    free(rows);
    return 0;
}

/* The surface in the coarsest grid, and the first half of its rows. */
static int make_frames(const options *o, frame *frames)
{
    memset(frames, 0, NUM_FRAMES * sizeof *frames);
    for (int i = 0; i < NUM_FRAMES; ++i) {
        frame *f = &frames[i];
        f->rows = surface_rows(o->size >> (LEVELS - 1), &f->num_rows);
        if (f->rows == NULL || f->num_rows < 2) return 1;
        f->num_rows /= i + 1;
        if (o->given && give_children(f, o->size)) return 1;
    }
    return 0;
}

static void free_frames(frame *frames)
{
    for (int i = 0; i < NUM_FRAMES; ++i) {
        free(frames[i].rows);
        for (int l = 0; l < LEVELS; ++l)
            free(frames[i].keep[l]);
    }
}

/* Room for both frames: as many rows as they have, or growth times those of the level before. */
static void set_capacities(const options *o, const frame *frames, int64_t max_rows[LEVELS])
{
    for (int l = 0; l < LEVELS; ++l) {
        int64_t n = l == 0 ? frames[0].num_rows : (int64_t)(o->growth * (double)max_rows[l - 1]);
        if (o->given)
            n = frames[0].level_rows[l] > frames[1].level_rows[l] ? frames[0].level_rows[l]
                                                                  : frames[1].level_rows[l];
        max_rows[l] = (n + 127) / 128 * 128;
    }
}

static int upload_frame(graph *g, const decoder_tensors *t, const frame *f, int f16)
{
    const int32_t count = (int32_t)f->num_rows;
    const int64_t n = f->num_rows * LATENT_CHANNELS;
    float *latents = (float *)malloc((size_t)n * sizeof *latents);
    void *narrow = malloc((size_t)n * sizeof *latents);
    graph host;
    int failed = graph_open(&host, 0) || latents == NULL || narrow == NULL;

    for (int64_t k = 0; k < n && !failed; ++k) /* f16 holds these */
        latents[k] = roundf(64 * drawn_number((uint64_t)k, -2, 2)) / 64;
    failed = failed || decoder_convert(&host, "f32", latents, f16 ? "f16" : "f32", narrow, n) ||
             graph_write(g, t->latents, narrow, (size_t)n * (f16 ? 2 : 4)) ||
             graph_write(g, t->rows, f->rows, (size_t)f->num_rows * 4 * sizeof *f->rows) ||
             graph_write(g, t->count, &count, sizeof count);
    for (int l = 0; l + 1 < LEVELS && !failed; ++l)
        if (t->given[l] != NULL)
            failed = graph_write(g, t->given[l], f->keep[l], (size_t)f->level_rows[l] * CHILDREN);
    graph_close(&host);
    free(latents);
    free(narrow);
    return failed;
}

/* ---- Results ---------------------------------------------------------------------------------- */

/* A number for the bits of all outputs as f32: FNV-1a. */
static int print_bits(graph *g, const decoder_tensors *t, int64_t rows, int f16)
{
    const int64_t n = rows * OUTPUT_CHANNELS;
    void *stored = malloc((size_t)n * 4 + 1);
    float *values = (float *)malloc((size_t)n * sizeof *values + 1);
    uint64_t bits = UINT64_C(0xcbf29ce484222325);
    graph host;
    int failed = graph_open(&host, 0) || stored == NULL || values == NULL ||
                 graph_read(g, t->out, stored, (size_t)n * (f16 ? 2 : 4)) ||
                 decoder_convert(&host, f16 ? "f16" : "f32", stored, "f32", values, n);

    for (int64_t k = 0; k < 4 * n && !failed; ++k)
        bits = (bits ^ ((const uint8_t *)values)[k]) * UINT64_C(0x100000001b3);
    if (!failed) printf("  bits of the outputs: %016" PRIx64 "\n", bits);
    graph_close(&host);
    free(stored);
    free(values);
    return failed;
}

static int run_frame(graph *g, const decoder_tensors *t, const frame *f, const options *o)
{
    struct timespec begin, end;
    int32_t rows[LEVELS];

    if (upload_frame(g, t, f, o->f16) || graph_run(g) || graph_wait(g)) return 1;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (graph_run(g) || graph_wait(g)) return 1; /* the same again, with what it needs loaded */
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("frame of %" PRId64 " rows: levels", f->num_rows);
    for (int l = 0; l < LEVELS; ++l) {
        if (graph_read(g, t->num_rows[l], &rows[l], sizeof rows[l])) return 1;
        printf(" %" PRId32, rows[l]);
    }
    printf("; %.1f ms\n", 1e3 * (double)(end.tv_sec - begin.tv_sec) +
                              1e-6 * (double)(end.tv_nsec - begin.tv_nsec));
    return print_bits(g, t, rows[LEVELS - 1], o->f16);
}

static int run(graph *g, const options *o, const network *net, const weights_file *weights,
               const frame *frames)
{
    const size_t used = graph_device_used(g), limit = (size_t)(1e9 * o->memory_gb);
    decoder_options d = {o->f16, o->given, o->size, o->slice_rows, {0}};
    decoder_tensors t;
    char name[64];

    set_capacities(o, frames, d.max_rows);
    snprintf(name, sizeof name, "the decoder at %d^3 in %s", o->size, o->f16 ? "f16" : "f32");
    if (decoder_build(g, net, &d, &t) || graph_plan(g) || graph_announce(g, name, limit)) return 1;
    if (o->dry) return 0;
    if (graph_allocate(g) || decoder_upload(g, net, weights, &t)) return 1;
    for (int i = 0; i < NUM_FRAMES; ++i)
        if (run_frame(g, &t, &frames[i], o)) return 1;
    if (g->on_cuda)
        printf("  the device's memory in use has grown by %.3f GB\n",
               1e-9 * (double)(graph_device_used(g) - used));
    return 0;
}

int main(int argc, char **argv)
{
    options o;
    network net;
    weights_file weights;
    frame frames[NUM_FRAMES];
    graph g;
    int failed;

    if (read_options(argc, argv, &o) || network_create(&net, o.width)) {
        fputs(usage, stderr);
        return 2;
    }
    memset(&weights, 0, sizeof weights);
    failed = make_frames(&o, frames);
    if (failed) fprintf(stderr, "a set in a grid of %d^3: there is no memory for it\n", o.size);
    failed = failed || (o.weights != NULL && weights_open(&weights, o.weights));
    if (!failed) {
        failed = graph_open(&g, o.cuda) ||
                 run(&g, &o, &net, o.weights == NULL ? NULL : &weights, frames);
        graph_close(&g);
    }
    weights_close(&weights);
    free_frames(frames);
    return failed;
}
