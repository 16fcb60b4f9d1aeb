// SPDX-License-Identifier: Apache-2.0
/*
 * What a MinkUNet takes on a scan: every plan, counted by the allocator that a context is given, and
 * the features of its 50 layers. For inference and for training:
 *   memory_of_network [SCAN.npy|.bin|.pcd [SIZE_M]]     else a simulated street
 */
#include <math.h>
#include <stdlib.h>

#include "points_file.h"
#include "try.h"

enum { LEVELS = 5, BEAMS = 64, RAYS = 1800 };

/* ---- An allocator that counts ------------------------------------------------------------------ */

static int64_t live_bytes;

static void *count_alloc(void *user, size_t bytes)
{
    (void)user;
    void *memory = NULL;
    if (posix_memalign(&memory, 256, bytes > 0 ? bytes : 1) != 0) return NULL;
    live_bytes += (int64_t)bytes;
    return memory;
}

static void count_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    live_bytes -= memory != NULL ? (int64_t)bytes : 0;
    free(memory);
}

/* What was allocated since the last call, in MB. */
static double grown_mb(void)
{
    static int64_t before;
    const int64_t grown = live_bytes - before;
    before = live_bytes;
    return (double)grown * 1e-6;
}

/* ---- Points ------------------------------------------------------------------------------------ */

/* A street of 16 m between walls, as 64 beams see it. */
static float *scan_street(int64_t *n)
{
    float *points_m = malloc(sizeof(float[BEAMS * RAYS][3]));
    *n = 0;
    for (int i = 0; points_m != NULL && i < BEAMS * RAYS; ++i) {
        const double pitch = (i / RAYS - 48) * 0.009, yaw = i % RAYS * (6.283185307179586 / RAYS);
        const double d[3] = {cos(yaw) * cos(pitch), sin(yaw) * cos(pitch), sin(pitch)};
        const double wall_m = 7.9 / fabs(d[1]), road_m = d[2] < 0 ? -1.7 / d[2] : 1e9;
        const double range_m = wall_m < road_m ? wall_m : road_m;
        for (int a = 0; a < 3 && range_m < 80; ++a)
            points_m[3 * *n + a] = (float)(d[a] * range_m);
        *n += range_m < 80;
    }
    return points_m;
}

/* ---- Plans and features ------------------------------------------------------------------------ */

/* Megabytes of f16 features on levels of these rows: what inference keeps at once (a matrix of a
   level's way down and up side by side, and two to work in), and what gradients need of all layers. */
static void print_features(const int64_t *rows)
{
    static const int channels[9] = {32,  32,  64, 128, 256,
                                    256, 128, 96, 96}; /* SPVNAS's MinkUNet 1.0 */
    double kept = 0, all = 0;
    for (int level = 0; level < LEVELS; ++level) {
        const int down = channels[level], up = level + 1 < LEVELS ? channels[8 - level] : 0;
        const int widest = down > up ? down : up;
        kept += 2.0 * (double)rows[level] * (down + up + 2 * widest);
        /* Two residual blocks of two layers each way, and the layer between levels. */
        all += 2.0 * (double)rows[level] * (5.0 * down + 5.0 * up);
    }
    printf("features, f16: inference %.1f MB, training %.1f MB\n", kept * 1e-6, all * 1e-6);
}

static int plan_network(spops_context *ctx, const spops_coords *coords, int gradients)
{
    spops_pyramid_options options = spops_pyramid_options_default();
    spops_sparseconv_options conv_options = spops_sparseconv_options_default();
    spops_pyramid_info info = spops_pyramid_info_default();
    spops_pyramid *pyramid = NULL;
    spops_sparseconv *convs[3 * LEVELS] = {NULL};
    int num_convs = 0;

    options.num_levels = LEVELS;
    options.contents = SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | (gradients ? SPOPS_MAP_REVERSE : 0);
    conv_options.backward = gradients;
    grown_mb();
    TRY(spops_pyramid_create(ctx, coords, &options, &pyramid));
    const double maps_mb = grown_mb();
    for (int relation = SPOPS_PYRAMID_WITHIN; relation <= SPOPS_PYRAMID_UP; ++relation)
        for (int level = 0; level < LEVELS; ++level) {
            const spops_kernel_map *map =
                spops_pyramid_map(pyramid, (spops_pyramid_relation)relation, level);
            if (map != NULL)
                TRY(spops_sparseconv_create(ctx, map, &conv_options, &convs[num_convs++]));
        }
    const double convs_mb = grown_mb();
    TRY(spops_pyramid_get_info_sync(ctx, pyramid, &info));
    if (!gradients) {
        printf("rows of the levels:");
        for (int level = 0; level < LEVELS; ++level)
            printf(" %lld", (long long)info.num_rows[level]);
        printf("; %lld pairs on the finest\n", (long long)info.num_pairs[0]);
        print_features(info.num_rows);
    }
    printf("%s: levels and maps %.1f MB, %d plans of convolutions and scratch %.1f MB\n",
           gradients ? "training" : "inference", maps_mb, num_convs, convs_mb);
    for (int i = 0; i < num_convs; ++i)
        spops_sparseconv_destroy(convs[i]);
    spops_pyramid_destroy(pyramid);
    return 0;
}

int main(int argc, char **argv)
{
    spops_context_options context_options = spops_context_options_default();
    spops_voxels_options options = spops_voxels_options_default();
    spops_context *ctx = NULL;
    spops_voxels *voxels = NULL;
    int64_t n = 0, cols = 3;
    float *scan = argc > 1 ? points_read(argv[1], &n, &cols) : scan_street(&n);
    if (scan == NULL)
        return fprintf(stderr, "usage: %s [SCAN.npy|.bin|.pcd [SIZE_M]]\n", argv[0]), 2;

    context_options.backend = SPOPS_BACKEND_CPU;
    context_options.allocator.host_alloc = count_alloc;
    context_options.allocator.host_free = count_free;
    TRY(spops_context_create(&context_options, &ctx));
    grown_mb();
    options.dims = 3;
    options.max_cols = 8;
    for (int a = 0; a < 3; ++a)
        options.size_m[a] = argc > 2 ? atof(argv[2]) : 0.1;
    TRY(spops_voxels_create(ctx, spops_matrix_dense(scan, n, cols, SPOPS_DTYPE_F32), NULL, &options,
                            &voxels));
    printf("%lld points: voxels of %g m and the plan of their means %.1f MB\n", (long long)n,
           options.size_m[0], grown_mb());
    if (plan_network(ctx, spops_voxels_coords(voxels), 0) != 0) return 1;
    if (plan_network(ctx, spops_voxels_coords(voxels), 1) != 0) return 1;
    spops_voxels_destroy(voxels);
    spops_context_destroy(ctx);
    free(scan);
    return live_bytes == 0 ? 0 : 1;
}
