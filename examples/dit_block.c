// SPDX-License-Identifier: Apache-2.0
/*
 * A transformer block as TRELLIS.2's flow models have 30 of: self attention over all tokens, cross
 * attention to an image, an MLP; on the CPU or as one CUDA Graph. Read it in this order:
 *
 *     dit_block.c              what is run and printed
 *     dit_block/block.h, .c    parameters, plans, memory, and the work of the block
 *     dit_block/reference.c    the same in FP64
 */
#include "dit_block/block.h"
#include "networks/options.h"
#include "networks/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "dit_block [OPTION]...\n"
    "  without an option: few tokens, and --check\n"
    "  --tokens N          32768\n"
    "  --context N         tokens of the image: 4101\n"
    "  --heads N           12, of 128 columns\n"
    "  --dtype f32|f16|bf16  of rows and weights: f16 on a GPU, f32 on the CPU\n"
    "  --backend cpu|cuda  where it runs: a GPU where there is one\n"
    "  --check             compare with FP64\n"
    "  --ceilings T,G      a device's TFLOP/s and GB/s, for floors: 790,4200\n"
    "  --output FILE       append what was measured, a JSON object a line\n";

typedef struct options {
    network_options network;
    shape s;
    const char *dtype; /* bf16 too */
} options;

static int read_options(int argc, char **argv, options *o)
{
    const options defaults = {
        .network = network_options_default(), .s = {32768, 4101, 12, 128, 1024, 96}, .dtype = ""};
    const shape small = {200, 77, 2, 128, 64, 16};
    const option_row own[] = {{"--tokens", OPTION_COUNT, &o->s.tokens},
                              {"--context", OPTION_COUNT, &o->s.context},
                              {"--heads", OPTION_INT, &o->s.heads},
                              {"--dtype", OPTION_TEXT, &o->dtype}};

    *o = defaults;
    if (argc == 1) {
        o->s = small;
        o->network.check = 1;
    }
    return network_options_read(argc, argv, &o->network, own, sizeof own / sizeof *own) ||
           !(o->s.tokens > 0 && o->s.tokens <= 40000 && o->s.context > 0 &&
             o->s.context <= 1000000 && o->s.heads <= 32 && o->network.num_files == 0);
}

/* ---- Parts ------------------------------------------------------------------------------------ */

static const char *const names[NUM_PARTS] = {
    "norms 1",         "qkv",       "self attention", "self out",   "norms 2",    "q", "k and v",
    "cross attention", "cross out", "norms 3",        "MLP, widen", "MLP, narrow"};

static work linear_work(const block *b, int i, double rows, int residual)
{
    return work_of_layer(rows, rows, rows, 1, linear_in(b, i), linear_out(b, i),
                         residual ? b->channels : 0, (double)spops_dtype_bytes(b->dtype), 0);
}

static work part_work(const block *b, int part)
{
    const double each = (double)spops_dtype_bytes(b->dtype), n = (double)b->s.tokens;
    const double m = (double)b->s.context, c = b->channels;
    work w = {0};
    switch (part) {
    case PART_QKV: return linear_work(b, QKV, n, 0);
    case PART_OUT: return linear_work(b, OUT, n, 1);
    case PART_CROSS_Q: return linear_work(b, CROSS_Q, n, 0);
    case PART_CROSS_KV: return linear_work(b, CROSS_KV, m, 0);
    case PART_CROSS_OUT: return linear_work(b, CROSS_OUT, n, 1);
    case PART_WIDEN: return linear_work(b, WIDEN, n, 0);
    case PART_NARROW: return linear_work(b, NARROW, n, 1);
    case PART_SELF:
        w.flops = 4 * n * n * c;
        w.exps = n * n * b->s.heads;
        w.bytes = each * 4 * n * c;
        return w;
    case PART_CROSS:
        w.flops = 4 * n * m * c;
        w.exps = n * m * b->s.heads;
        w.bytes = each * (2 * n + 2 * m) * c;
        return w;
    default: w.bytes = each * 2 * n * c; return w;
    }
}

typedef struct part_call {
    block *b;
    int part;
} part_call;

static spops_status run_part(void *user)
{
    const part_call *call = (const part_call *)user;
    return block_enqueue_part(call->b, call->part);
}

static int measure(block *b, const options *o, graph *whole, FILE *json)
{
    const int launches = b->d->backend == SPOPS_BACKEND_CUDA ? 9 : 1;
    const report to = {json, "dit_block", "32768 tokens", b->d, b->dtype};
    double whole_us = 0, floors_us = 0, flops = 0;

    if (graph_time(whole, launches, &whole_us)) return 1;
    printf("  %-16s %10s %10s %8s\n", "part", "us", "floor us", "TFLOP/s");
    for (int part = 0; part < NUM_PARTS; ++part) {
        const work w = part_work(b, part);
        part_call call = {b, part};
        double us = 0;
        int kernels = 0;
        if (graph_time_part(b->d, run_part, &call, 1, launches, &us, &kernels)) return 1;
        floors_us += floor_us(o->network.ceilings, w);
        flops += w.flops;
        printf("  %-16s %10.1f %10.1f %8.1f\n", names[part], us, floor_us(o->network.ceilings, w),
               w.flops / us * 1e-6);
        if (o->s.tokens == 32768 &&
            report_part(&to, names[part], us, floor_us(o->network.ceilings, w), kernels))
            return 1;
    }
    printf("  %-16s %10.1f %10.1f %8.1f, %d kernels\n", "block, one graph", whole_us, floors_us,
           flops / whole_us * 1e-6, graph_num_kernels(whole));
    return o->s.tokens == 32768 &&
           report_part(&to, "whole", whole_us, floors_us, graph_num_kernels(whole));
}

static int check(const block *b)
{
    const double tolerance = b->dtype == SPOPS_DTYPE_F32   ? 1e-5
                             : b->dtype == SPOPS_DTYPE_F16 ? 1e-2
                                                           : 5e-2;
    double difference = 0;
    if (reference_compare(b, &difference)) return 1;
    printf("  agrees with FP64 to %.1e of the largest: %s\n", difference,
           difference <= tolerance ? "right" : "WRONG");
    return !(difference <= tolerance);
}

int main(int argc, char **argv)
{
    options o;
    device d;
    block b;
    graph *whole = NULL;
    FILE *json = NULL;
    spops_dtype dtype;
    int failed;

    if (read_options(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    if (network_options_output(&o.network, &json) || device_open(&d, o.network.backend)) return 1;
    dtype = d.backend == SPOPS_BACKEND_CPU ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16;
    for (int t = SPOPS_DTYPE_F32; t <= SPOPS_DTYPE_BF16; ++t)
        if (strcmp(o.dtype, spops_dtype_name((spops_dtype)t)) == 0) dtype = (spops_dtype)t;
    printf("%lld tokens, %d heads of %d, %lld of an image; %s on %s\n", (long long)o.s.tokens,
           o.s.heads, o.s.dim, (long long)o.s.context, spops_dtype_name(dtype),
           d.backend == SPOPS_BACKEND_CPU ? "the CPU" : "a GPU");
    failed = block_create(&b, &d, &o.s, dtype) ||
             block_enqueue(&b) != SPOPS_STATUS_OK || /* kernels are loaded */
             (whole = graph_capture(&d, block_enqueue, &b, 1)) == NULL ||
             (o.network.check && (graph_launch(whole) || check(&b))) ||
             measure(&b, &o, whole, json);
    graph_destroy(whole);
    block_destroy(&b);
    if (json != NULL) failed |= fclose(json) != 0;
    device_close(&d);
    return failed;
}
