// SPDX-License-Identifier: Apache-2.0
// Host time of execute calls: nanoseconds of a call on next to no data, on the CPU with one thread. What
// is left is the check of the call and the way to the backend. It uses the public interface alone, so it
// is built against another version of the library as well, with that one's names:
//
//     cc -O2 -I OLD/include bench/host_times.c OLD/build/libspops.a -lpthread -lm -ldl
//
// host_times [ROUNDS [CALL]] prints `call nanoseconds`: the least of ROUNDS (40) rounds of 400 calls.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "spops/spops.h"

enum { COLS = 4, CALLS = 400, MAX_CASES = 32 };

static spops_context *ctx;
static spops_segments *segments;
static spops_triplets *triplets;
static spops_coords *coords;
static spops_kernel_map *map;
static spops_sparseconv *conv;
static spops_neighbors *neighbors;
static spops_pointconv *pointconv;
static spops_pool *pool;
static spops_bev_plan *bev;
static spops_patches *patches;
static spops_nearest *nearest;

static float memory[16][1024];
static int32_t zeros[8], lengths[8] = {1}, ends[2] = {0, 1}, found[8];
static uint8_t codes[64];

static void need(spops_status status)
{
    if (status == SPOPS_STATUS_OK) return;
    fprintf(stderr, "host_times: %s %s\n", spops_last_error(ctx), spops_last_error(NULL));
    exit(1);
}

static spops_matrix matrix(int which, int64_t rows, int64_t cols)
{
    return spops_matrix_dense(memory[which], rows, cols, SPOPS_DTYPE_F32);
}

static spops_matrix row(int which)
{
    return matrix(which, 1, COLS);
}

static void make_plans(void)
{
    spops_segments_options s = spops_segments_options_default();
    spops_triplets_options t = spops_triplets_options_default();
    const spops_triplets_shape shape = {1, 1, 1, 1};
    spops_kernel_shape kernel = spops_kernel_shape_default();
    spops_kernel_map_options m = spops_kernel_map_options_default();
    spops_sparseconv_options c = spops_sparseconv_options_default();
    spops_neighbors_options n = spops_neighbors_options_default();
    spops_pointconv_options p = spops_pointconv_options_default();
    spops_pool_options o = spops_pool_options_default();
    spops_bev_options b = spops_bev_options_default();
    const spops_bev_shape bev_shape = {1, 1, 1, 1, 1, 1, 1, 1};
    spops_bev_ranks ranks = spops_bev_ranks_default();
    const spops_patch_lists lists = {1, ends, zeros, NULL, NULL, 0};
    const spops_point_cloud cloud = {.points = matrix(9, 1, 3)};

    s.gradients = o.gradients = SPOPS_GRADIENTS_ALL;
    s.max_cols = o.max_cols = b.max_cols = COLS;
    s.num_weights = 1;
    t.backward = c.backward = p.backward = b.backward = 1;
    t.max_matrix_elements = COLS * COLS;
    c.max_in_channels = c.max_out_channels = p.max_in_channels = p.max_out_channels = COLS;
    need(spops_segments_create(ctx, 1, ends, &s, &segments));
    need(spops_triplets_create(ctx, &shape, zeros, zeros, zeros, &t, &triplets));
    need(spops_coords_create(ctx, 3, 1, zeros, NULL, &coords));
    kernel.dims = 3;
    for (int a = 0; a < 3; ++a) {
        kernel.size[a] = 3;
        kernel.stride[a] = kernel.padding[a] = kernel.dilation[a] = 1;
    }
    m.contents = SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_REVERSE;
    need(spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, coords, &m, &map));
    need(spops_sparseconv_create(ctx, map, &c, &conv));
    n.radius_m = 1.0F;
    n.taps = 3;
    n.tap_size_m = 0.5F;
    n.contents = SPOPS_NEIGHBORS_BY_TAP | SPOPS_NEIGHBORS_REVERSE;
    need(spops_neighbors_create(ctx, NULL, &cloud, &n, &neighbors));
    need(spops_pointconv_create(ctx, neighbors, &p, &pointconv));
    need(spops_pool_create(ctx, map, &o, &pool));
    ranks.num_points = ranks.num_intervals = 1;
    ranks.ranks_depth = ranks.ranks_feat = ranks.ranks_bev = ranks.interval_starts = zeros;
    ranks.interval_lengths = lengths;
    need(spops_bev_plan_create_from_ranks(ctx, &bev_shape, &ranks, &b, &bev));
    need(spops_patches_create(ctx, 1, &lists, &patches));
    need(spops_nearest_create(ctx, &cloud, &nearest));
    need(spops_context_reserve(ctx, 1 << 20));
}

static void destroy_plans(void)
{
    spops_nearest_destroy(nearest);
    spops_patches_destroy(patches);
    spops_bev_plan_destroy(bev);
    spops_pool_destroy(pool);
    spops_pointconv_destroy(pointconv);
    spops_neighbors_destroy(neighbors);
    spops_sparseconv_destroy(conv);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    spops_triplets_destroy(triplets);
    spops_segments_destroy(segments);
}

// ---- Calls --------------------------------------------------------------------------------------

static spops_status segreduce(void)
{
    return spops_segreduce_execute(ctx, segments, SPOPS_REDUCE_SUM, row(0), NULL, row(1), NULL);
}

static spops_status segreduce_backward(void)
{
    const spops_matrix grad_x = row(1);
    return spops_segreduce_execute_backward(ctx, segments, SPOPS_REDUCE_SUM, row(2), row(0), NULL,
                                            &grad_x, NULL);
}

static spops_status gather(void)
{
    return spops_gather_execute(ctx, segments, row(0), NULL, row(1));
}

static spops_status gather_backward(void)
{
    const spops_matrix grad_x = row(1);
    return spops_gather_execute_backward(ctx, segments, row(2), row(0), NULL, &grad_x, NULL);
}

static spops_status mvmr(void)
{
    return spops_mvmr_execute(ctx, triplets, row(0), matrix(3, COLS, COLS), NULL, NULL, row(1));
}

static spops_status mvmr_backward(void)
{
    const spops_matrix grad_x = row(1), grad_w = matrix(4, COLS, COLS);
    return spops_mvmr_execute_backward(ctx, triplets, row(2), row(0), matrix(3, COLS, COLS), NULL,
                                       NULL, &grad_x, &grad_w, NULL);
}

static spops_status vvor(void)
{
    return spops_vvor_execute(ctx, triplets, row(0), row(2), NULL, NULL, matrix(4, COLS, COLS));
}

static spops_status sparseconv(void)
{
    return spops_sparseconv_execute(ctx, conv, row(0), matrix(3, 27 * COLS, COLS), NULL, row(1));
}

static spops_status sparseconv_layer(void)
{
    const spops_matrix residual = row(2);
    spops_conv_layer layer = spops_conv_layer_default();
    layer.bias = layer.scale = layer.shift = memory[5];
    layer.residual = &residual;
    layer.activation = SPOPS_ACTIVATION_RELU;
    return spops_sparseconv_execute(ctx, conv, row(0), matrix(3, 27 * COLS, COLS), &layer, row(1));
}

static spops_status sparseconv_backward(void)
{
    const spops_matrix grad_x = row(1), grad_w = matrix(4, 27 * COLS, COLS);
    return spops_sparseconv_execute_backward(ctx, conv, row(2), row(0), matrix(3, 27 * COLS, COLS),
                                             NULL, &grad_x, &grad_w, NULL);
}

static spops_status pointconv_forward(void)
{
    return spops_pointconv_execute(ctx, pointconv, row(0), matrix(3, 27 * COLS, COLS), NULL,
                                   row(1));
}

static spops_status pointconv_backward(void)
{
    const spops_matrix grad_x = row(1), grad_w = matrix(4, 27 * COLS, COLS);
    return spops_pointconv_execute_backward(
        ctx, pointconv, row(2), row(0), matrix(3, 27 * COLS, COLS), NULL, &grad_x, &grad_w, NULL);
}

static spops_status pool_forward(void)
{
    return spops_pool_execute(ctx, pool, SPOPS_REDUCE_MAX, row(0), row(1));
}

static spops_status pool_backward(void)
{
    return spops_pool_execute_backward(ctx, pool, SPOPS_REDUCE_MAX, row(2), row(0), row(1));
}

static spops_status bevpool(void)
{
    spops_bevpool_args args = spops_bevpool_args_default();
    args.layout = SPOPS_BEV_CHANNELS_LAST;
    args.depth = matrix(2, 1, 1);
    args.feat = row(0);
    args.out = row(1);
    return spops_bevpool_execute(ctx, bev, &args);
}

static spops_status bevpool_backward(void)
{
    const spops_matrix grad_depth = matrix(1, 1, 1), grad_feat = row(4);
    return spops_bevpool_execute_backward(ctx, bev, SPOPS_BEV_CHANNELS_LAST, row(5),
                                          matrix(2, 1, 1), row(0), &grad_depth, &grad_feat);
}

static spops_status attention(void)
{
    spops_attention_options options = spops_attention_options_default();
    options.heads = 1;
    return spops_attention_execute(ctx, patches, row(0), row(2), row(3), &options, row(1), NULL);
}

static spops_status attention_heads(void)
{
    spops_attention_options options = spops_attention_options_default();
    spops_attention_rotary rotary = spops_attention_rotary_default();
    options.heads = 2;
    rotary.coords = matrix(9, 1, 3);
    options.qkv_head_stride = 12;
    options.rotary = &rotary;
    return spops_attention_execute(ctx, patches, matrix(0, 1, 24), matrix(2, 1, 24),
                                   matrix(3, 1, 24), &options, matrix(1, 1, 24), memory[6]);
}

static spops_status attention_backward(void)
{
    spops_attention_options options = spops_attention_options_default();
    const spops_matrix grad_q = row(1), grad_k = row(6), grad_v = row(7);
    options.heads = 1;
    return spops_attention_execute_backward(ctx, patches, row(4), row(0), row(2), row(3), row(5),
                                            memory[8], &options, &grad_q, &grad_k, &grad_v, NULL,
                                            NULL, NULL);
}

static spops_status statistics(void)
{
    return spops_batchnorm_statistics_execute(ctx, row(0), NULL, memory[1], memory[2], NULL, NULL);
}

static spops_status batchnorm(void)
{
    return spops_batchnorm_execute(ctx, row(0), memory[5], memory[6], memory[7], memory[8], NULL,
                                   row(1));
}

static spops_status batchnorm_backward(void)
{
    return spops_batchnorm_execute_backward(ctx, row(2), row(0), memory[5], memory[6], memory[7],
                                            memory[8], NULL, row(1), memory[3], memory[4]);
}

static spops_status layernorm(void)
{
    return spops_layernorm_execute(ctx, row(0), memory[7], memory[8], NULL, row(1));
}

static spops_status layernorm_backward(void)
{
    return spops_layernorm_execute_backward(ctx, row(2), row(0), memory[7], memory[8], NULL, row(1),
                                            memory[3], memory[4]);
}

static spops_status quantize_scale(void)
{
    return spops_quantize_scale_execute(ctx, row(0), SPOPS_DTYPE_F8E4M3, memory[1]);
}

static spops_status quantize(void)
{
    return spops_quantize_execute(ctx, row(0), memory[8],
                                  spops_matrix_dense(codes, 1, COLS, SPOPS_DTYPE_F8E4M3), NULL);
}

static spops_status dequantize(void)
{
    return spops_dequantize_execute(ctx, spops_matrix_dense(codes, 1, COLS, SPOPS_DTYPE_F8E4M3),
                                    memory[8], NULL, row(1));
}

static spops_status find_nearest(void)
{
    const spops_point_cloud cloud = {.points = matrix(9, 1, 3)};
    return spops_nearest_execute(ctx, nearest, &cloud, 1, found, NULL);
}

static const struct {
    const char *name;
    spops_status (*call)(void);
} cases[] = {{"segreduce", segreduce},
             {"segreduce_backward", segreduce_backward},
             {"gather", gather},
             {"gather_backward", gather_backward},
             {"mvmr", mvmr},
             {"mvmr_backward", mvmr_backward},
             {"vvor", vvor},
             {"sparseconv", sparseconv},
             {"sparseconv_layer", sparseconv_layer},
             {"sparseconv_backward", sparseconv_backward},
             {"pointconv", pointconv_forward},
             {"pointconv_backward", pointconv_backward},
             {"pool", pool_forward},
             {"pool_backward", pool_backward},
             {"bevpool", bevpool},
             {"bevpool_backward", bevpool_backward},
             {"attention", attention},
             {"attention_heads", attention_heads},
             {"attention_backward", attention_backward},
             {"batchnorm_statistics", statistics},
             {"batchnorm", batchnorm},
             {"batchnorm_backward", batchnorm_backward},
             {"layernorm", layernorm},
             {"layernorm_backward", layernorm_backward},
             {"quantize_scale", quantize_scale},
             {"quantize", quantize},
             {"dequantize", dequantize},
             {"nearest", find_nearest}};

enum { NUM_CASES = sizeof cases / sizeof *cases };

static double now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 40;
    spops_context_options options = spops_context_options_default();
    double least[NUM_CASES];

    options.backend = SPOPS_BACKEND_CPU;
    options.num_threads = 1;
    need(spops_context_create(&options, &ctx));
    for (int m = 0; m < 16; ++m)
        for (int i = 0; i < 1024; ++i)
            memory[m][i] = 0.5F;
    make_plans();
    for (int r = 0; r < rounds; ++r) {
        for (int i = 0; i < NUM_CASES; ++i) {
            if (argc > 2 && strcmp(argv[2], cases[i].name) != 0) continue;
            const double begin = now_ns();
            double ns;
            for (int k = 0; k < CALLS; ++k)
                if (cases[i].call() != SPOPS_STATUS_OK) need(SPOPS_STATUS_INVALID_ARGUMENT);
            ns = (now_ns() - begin) / CALLS;
            if (r == 0 || ns < least[i]) least[i] = ns;
        }
    }
    for (int i = 0; i < NUM_CASES; ++i)
        if (argc <= 2 || strcmp(argv[2], cases[i].name) == 0)
            printf("%-22s %7.1f\n", cases[i].name, least[i]);
    destroy_plans();
    spops_context_destroy(ctx);
    return 0;
}
