// SPDX-License-Identifier: Apache-2.0
// make_seeds DIR RIG_JSON: the fuzzers' seed corpus, from valid plans, into DIR/{ranks,intervals,
// load,rig,coords,kernel_map,api,cloud,model}.
#include <errno.h>
#include <sys/stat.h>

#include "fuzz_map_sets.h"
#include "tests/support/cloud_cases.h"
#include "tests/support/onnx_file.h"
#include "tests/support/saved.h"

static const char *root;

static void put_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    FUZZ_REQUIRE(mkdir(path, 0777) == 0 || errno == EEXIST, "%s", path);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    FILE *file = fopen(path, "wb");
    FUZZ_REQUIRE(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0,
                 "cannot write %s", path);
}

typedef struct buffer {
    uint8_t data[1 << 20];
    size_t used;
} buffer;
static buffer bytes_out;

static void put_i32s(const int32_t *values, int64_t n)
{
    for (int64_t i = 0; i < n; ++i)
        for (int b = 0; b < 4; ++b)
            bytes_out.data[bytes_out.used++] = (uint8_t)((uint32_t)values[i] >> (8 * b));
}

static void put_head(const spops_bev_plan_info *info, int32_t backward)
{
    const spops_bev_shape s = info->shape;
    const int32_t head[16] = {s.num_batches,
                              s.num_cameras,
                              s.num_depths,
                              s.feature_height,
                              s.feature_width,
                              s.num_cells_x,
                              s.num_cells_y,
                              s.num_cells_z,
                              (int32_t)info->num_points,
                              (int32_t)info->num_intervals,
                              backward,
                              4};
    bytes_out.used = 0;
    put_i32s(head, 16);
}

// Two batches of two cameras that look along x and along -x.
static spops_bev_plan *make_plan(spops_context *ctx, int32_t backward, double cell_m)
{
    static const double intrinsics[9] = {20, 0, 16, 0, 20, 8, 0, 0, 1};
    static const double forward[16] = {0, 0, 1, 0.5, -1, 0, 0, 0, 0, -1, 0, 1.5, 0, 0, 0, 1};
    static const double back[16] = {0, 0, -1, -0.5, 1, 0, 0, 0, 0, -1, 0, 1.5, 0, 0, 0, 1};
    const spops_bev_shape shape = {2, 2, 8, 3, 5, 12, 12, 2};
    spops_bev_camera cameras[4];
    spops_bev_geometry geometry;
    spops_bev_options options = spops_bev_options_default();
    spops_bev_plan *plan = NULL;
    memset(&geometry, 0, sizeof geometry);
    for (int i = 0; i < 4; ++i) {
        memcpy(cameras[i].intrinsics, intrinsics, sizeof intrinsics);
        memcpy(cameras[i].camera_to_ego, i % 2 == 0 ? forward : back, sizeof forward);
        spops_bev_camera_set_resize_crop(&cameras[i], 1.0, 0.0, 0.0);
    }
    geometry.struct_size = sizeof geometry;
    geometry.shape = shape;
    geometry.input_height = 16;
    geometry.input_width = 32;
    geometry.depth_start_m = 1.0;
    geometry.depth_step_m = 1.0;
    geometry.grid_lower_m[0] = geometry.grid_lower_m[1] = -6.0 * cell_m;
    geometry.grid_lower_m[2] = -2.0;
    geometry.cell_size_m[0] = geometry.cell_size_m[1] = cell_m;
    geometry.cell_size_m[2] = 3.0;
    geometry.cameras = cameras;
    options.backward = backward;
    options.max_cols = 4;
    FUZZ_REQUIRE(spops_bev_plan_create(ctx, &geometry, &options, &plan) == SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    return plan;
}

static void put_bev_plan(spops_context *ctx, const spops_bev_plan *plan, const char *name,
                         int32_t backward)
{
    fuzz_input input = {NULL, 0, 0}; // zeros
    spops_bev_plan_info info;
    spops_bev_ranks_out ranks;
    spops_bev_intervals_out intervals;
    size_t bytes = 0;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    FUZZ_REQUIRE(spops_bev_plan_get_info_sync(ctx, plan, &info) == SPOPS_STATUS_OK &&
                     info.num_points > 0,
                 "the seed plan has %lld points", (long long)info.num_points);

    ranks = fuzz_ranks(&input, info.num_points, info.num_intervals);
    FUZZ_REQUIRE(spops_bev_plan_get_ranks_sync(ctx, plan, &ranks) == SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    put_head(&info, backward);
    put_i32s(ranks.ranks_depth, info.num_points);
    put_i32s(ranks.ranks_feat, info.num_points);
    put_i32s(ranks.ranks_bev, info.num_points);
    put_i32s(ranks.interval_starts, info.num_intervals);
    put_i32s(ranks.interval_lengths, info.num_intervals);
    put_file("ranks", name, bytes_out.data, bytes_out.used);

    intervals = fuzz_intervals(&input, info.num_points, info.num_intervals);
    FUZZ_REQUIRE(spops_bev_plan_get_intervals_sync(ctx, plan, &intervals) == SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    put_head(&info, backward);
    put_i32s(intervals.indices, info.num_points);
    put_i32s(intervals.intervals, 3 * info.num_intervals);
    put_file("intervals", name, bytes_out.data, bytes_out.used);

    FUZZ_REQUIRE(saved_put(ctx, plan, bytes_out.data, sizeof bytes_out.data, &bytes) ==
                     SPOPS_STATUS_OK,
                 "%s", spops_last_error(ctx));
    put_file("load", name, bytes_out.data, bytes);

    fuzz_free_ranks(&ranks);
    fuzz_free_intervals(&intervals);
}

static void put_segments(spops_context *ctx)
{
    const int32_t offsets[] = {0, 2, 2, 5, 9}, keys[] = {3, 0, 3, 1, 1, 2, 3, 0, 0};
    const int32_t idx[] = {4, 0, 1, 4, 2, 3, 0, 0, 1}, weight_idx[] = {0, 1, 2, 2, 1, 0, 1, 1, 0};
    spops_segments_options options = spops_segments_options_default();
    spops_segments *segments = NULL;
    size_t bytes = 0;
    for (int i = 0; i < 3; ++i) {
        char name[32];
        if (i > 0) {
            options.idx = idx;
            options.num_rows = 5;
            options.weight_idx = weight_idx;
            options.num_weights = 3;
            options.gradients = SPOPS_GRADIENTS_LINEAR;
        }
        const spops_status status =
            i < 2 ? spops_segments_create(ctx, 4, offsets, &options, &segments)
                  : spops_segments_create_from_keys(ctx, 4, 9, keys, SPOPS_KEYS_UNSORTED, &options,
                                                    &segments);
        FUZZ_REQUIRE(status == SPOPS_STATUS_OK, "%s", spops_last_error(ctx));
        FUZZ_REQUIRE(saved_put(ctx, segments, bytes_out.data, sizeof bytes_out.data, &bytes) ==
                         SPOPS_STATUS_OK,
                     "%s", spops_last_error(ctx));
        snprintf(name, sizeof name, "segments_%d", i);
        put_file("load", name, bytes_out.data, bytes);
        spops_segments_destroy(segments);
    }
}

static void put_partition(spops_context *ctx)
{
    static const int32_t rows[4][4] = {{0, -9, 1, 1}, {0, 40, 1, 1}, {1, 1, 80, 1}, {1, 1, 1, 2}};
    spops_partition_options options = spops_partition_options_default();
    spops_partition *partition = NULL;
    spops_coords *coords = NULL;
    size_t bytes;

    options.num_chunks = 3;
    FUZZ_REQUIRE(spops_coords_create(ctx, 3, 4, rows[0], NULL, &coords) == SPOPS_STATUS_OK &&
                     spops_partition_create(ctx, NULL, coords, &options, &partition) ==
                         SPOPS_STATUS_OK &&
                     saved_put(ctx, partition, bytes_out.data, sizeof bytes_out.data, &bytes) ==
                         SPOPS_STATUS_OK,
                 "%s", spops_last_error(ctx));
    put_file("load", "partition", bytes_out.data, bytes);
    spops_partition_destroy(partition);
    spops_coords_destroy(coords);
}

static void put_rigs(const char *shipped)
{
    static const char small[] =
        "{\"cameras\": [{\"name\": \"FRONT\", \"width\": 64, \"height\": 32, "
        "\"intrinsics\": [[20, 0, 32], [0, 20, 16], [0, 0, 1]], "
        "\"cam2ego\": [[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1.5], [0, 0, 0, 1]]}]}";
    FILE *file = fopen(shipped, "rb");
    FUZZ_REQUIRE(file != NULL, "cannot read %s", shipped);
    bytes_out.used = fread(bytes_out.data, 1, sizeof bytes_out.data, file);
    fclose(file);
    put_file("rig", "shipped.json", bytes_out.data, bytes_out.used);
    put_file("rig", "small.json", small, sizeof small - 1);
}

// Maps between the fixed sets, after the byte that names them.
static void put_maps(spops_context *ctx)
{
    fuzz_map_sets sets = fuzz_map_sets_create(ctx);
    for (int which = 0; which < FUZZ_MAP_SETS; ++which) {
        char name[32];
        size_t bytes = 0;
        const spops_coords *in = fuzz_map_in(&sets, which), *out = fuzz_map_out(&sets, which);
        const spops_kernel_shape *kernel = which == 0 ? &sets.cube : &sets.window;
        spops_kernel_map_options options = spops_kernel_map_options_default();
        spops_kernel_map *map = NULL;
        options.contents = which == 1 ? SPOPS_MAP_TABLE : 31;
        FUZZ_REQUIRE(spops_kernel_map_create(ctx, (spops_kernel_map_kind)which, kernel, in, out,
                                             &options, &map) == SPOPS_STATUS_OK,
                     "%s", spops_last_error(ctx));
        bytes_out.data[0] = (uint8_t)which;
        FUZZ_REQUIRE(saved_put_map(ctx, map, in, out, bytes_out.data + 1, sizeof bytes_out.data - 1,
                                   &bytes) == SPOPS_STATUS_OK,
                     "%s", spops_last_error(ctx));
        snprintf(name, sizeof name, "map_%d", which);
        put_file("kernel_map", name, bytes_out.data, bytes + 1);
        spops_kernel_map_destroy(map);
    }
    fuzz_map_sets_destroy(&sets);
}

// Heads as fuzz_coords.c reads them, each before rows.
static void put_coords(void)
{
    for (int32_t i = 0; i < 6; ++i) {
        char name[32];
        const int32_t dims = 1 + i % 4, kind = i % 3, size = kind == 0 ? 3 : 2 + i % 2;
        const int32_t head[9] = {dims, 12, 1, i % 4, i % 4, 1, kind, i < 3 ? 31 : 1, 16};
        bytes_out.used = 0;
        put_i32s(head, 9);
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
            put_i32s(
                (const int32_t[]){size, kind == 0 ? 1 : 2, kind == 0 ? 0 : size - 2, 1 + i / 5}, 4);
        put_i32s((const int32_t[]){0}, 1);
        for (int32_t r = 0; r < 12 * (dims + 1); ++r)
            put_i32s((const int32_t[]){r * 29 / 3 + r * r % 13}, 1);
        snprintf(name, sizeof name, "rows_%d", i);
        put_file("coords", name, bytes_out.data, bytes_out.used);
    }
}

// Bytes of any value choose calls and arguments; long runs of equal ones would choose the same.
static void put_calls(void)
{
    uint32_t x = 1;
    for (int i = 0; i < 40; ++i) {
        char name[32];
        const size_t n = 100 + 50 * (size_t)i;
        for (size_t b = 0; b < n; ++b) {
            x = x * 1664525u + 1013904223u;
            bytes_out.data[b] = (uint8_t)(x >> 24);
        }
        snprintf(name, sizeof name, "calls_%d", i);
        put_file("api", name, bytes_out.data, n);
    }
}

static void put_clouds(void)
{
    static const float points[6][4] = {{1, 2, 3, 4}, {1, 2, 3, 5},  {1, 2, 3, 4},
                                       {1, 2, 3, 9}, {-8, 0, 1, 2}, {7, 7.5f, 0.25f, 200}};
    for (int k = 0; k < NUM_CLOUD_CASES; ++k) {
        size_t bytes;
        unsigned char *data = cloud_case_bytes((cloud_case)k, points[0], 6, &bytes);
        put_file("cloud", cloud_case_name((cloud_case)k), data, bytes);
        free(data);
    }
}

// ---- Models -----------------------------------------------------------------------------------------

static const int fine_size[3] = {6, 7, 8}, coarse_size[3] = {3, 4, 4};
static uint16_t halves[8 * 27 * 8]; // f16 of 0.5 to 0.996, of both signs

static void put_conv(onnx_file *f, const char *name, const char *x, const char *out, int kind,
                     const float *ranges)
{
    const int *in_size = kind == 2 ? coarse_size : fine_size;
    const int *out_size = kind == 1 ? coarse_size : fine_size, stride = kind == 0 ? 1 : 2;
    onnx_conv c = {.name = name,
                   .x = x,
                   .out = out,
                   .rulebook = kind == 0 ? "fine" : "down",
                   .activation = kind == 2 ? "ReLU" : "None",
                   .in = 8,
                   .out_cols = 8,
                   .kernel = {3, 3, 3},
                   .stride = {stride, stride, stride},
                   .padding = {1, 1, 1},
                   .subm = kind == 0,
                   .inverse = kind == 2,
                   .output_bound = 40,
                   .weight = halves,
                   .bias = kind == 1 ? NULL : halves,
                   .input_range = 2,
                   .weight_ranges = ranges};
    memcpy(c.in_shape, in_size, sizeof c.in_shape);
    memcpy(c.out_shape, out_size, sizeof c.out_shape);
    onnx_put_conv(f, &c);
}

// As libspconv's exporter writes them: 0 down and up again, 1 int8 and a dense output.
static void put_exported(int which)
{
    static const float ranges[8] = {1, 1, 0.5f, 1, 0, 1, 2, 1};
    const int64_t dims[2] = {100, 8}, turned[5] = {0, 1, 4, 2, 3}, flat[4] = {1, 64, -1, 7};
    onnx_file f;
    onnx_file_begin(&f);
    put_conv(&f, "conv0", "0", "1", 0, which == 1 ? ranges : NULL);
    if (which == 0) {
        put_conv(&f, "conv1", "1", "2", 1, NULL);
        onnx_put_node(&f, "Relu", "relu0", "2", NULL, "3");
        onnx_put_node(&f, "Add", "add0", "2", "3", "4");
        put_conv(&f, "conv2", "4", "5", 2, NULL);
        onnx_put_node(&f, "QuantAdd", "add1", "1", "5", "6");
    } else {
        onnx_put_scatter(&f, "scatter0", "1", "2", "xyz", 1, 8, fine_size);
        onnx_put_ints(&f, "Transpose", "transpose0", "2", "3", "dims", 5, turned);
        onnx_put_ints(&f, "Reshape", "reshape0", "3", "6", "dims", 4, flat);
    }
    onnx_value(&f, 11, "0", ONNX_FLOAT16, 2, dims);
    onnx_value(&f, 12, "6", ONNX_FLOAT16, 2, dims);
    onnx_file_end(&f);
    put_file("model", which == 0 ? "exported" : "exported_int8", f.model.data, f.model.num);
    onnx_file_free(&f);
}

// Operators of the library: segments into a capacity, a sum, a norm.
static void put_own_operators(spops_context *ctx)
{
    const int64_t keys[1] = {32}, one[1] = {1}, x[2] = {32, 8}, out[2] = {6, 8};
    int64_t ints[64];
    int32_t num = 0;
    float gamma[8] = {1, 2, 1, 1, 0.5f, 1, 1, 1};
    spops_segments *segments = NULL;
    onnx_file f;
    FUZZ_REQUIRE(spops_segments_reserve(ctx, 6, 32, NULL, &segments) == SPOPS_STATUS_OK &&
                     spops_plan_describe(ctx, (spops_plan *)segments, ints, 64, &num) ==
                         SPOPS_STATUS_OK,
                 "%s", spops_last_error(ctx));
    spops_segments_destroy(segments);
    onnx_file_begin(&f);
    onnx_node_begin(&f, "segments", "plan", "spops",
                    (const char *const[]){"keys", "", "", "num", NULL},
                    (const char *const[]){"plan", NULL});
    onnx_ints(&f, "segments_ints", num, ints);
    onnx_int(&f, "num_segments", 6);
    onnx_node_end(&f);
    onnx_node_begin(&f, "segreduce", "sum", "spops", (const char *const[]){"x", "", "plan", NULL},
                    (const char *const[]){"y", NULL});
    onnx_text(&f, "reduce", "mean");
    onnx_node_end(&f);
    onnx_node_begin(&f, "rmsnorm", "norm", "spops", (const char *const[]){"y", "gamma", NULL},
                    (const char *const[]){"z", NULL});
    onnx_float(&f, "epsilon", 0.5f);
    onnx_node_end(&f);
    onnx_initializer(&f, "gamma", ONNX_FLOAT, 1, (const int64_t[]){8}, gamma, sizeof gamma);
    onnx_value(&f, 11, "keys", ONNX_INT32, 1, keys);
    onnx_value(&f, 11, "num", ONNX_INT32, 1, one);
    onnx_value(&f, 11, "x", ONNX_FLOAT, 2, x);
    onnx_value(&f, 13, "y", ONNX_FLOAT, 2, out);
    onnx_value(&f, 12, "z", ONNX_FLOAT, 2, out);
    onnx_file_end(&f);
    put_file("model", "own_operators", f.model.data, f.model.num);
    onnx_file_free(&f);
}

int main(int argc, char **argv)
{
    fuzz_memory memory;
    if (argc != 3) {
        fprintf(stderr, "usage: make_seeds DIR RIG_JSON\n");
        return 2;
    }
    root = argv[1];
    FUZZ_REQUIRE(mkdir(root, 0777) == 0 || errno == EEXIST, "%s", root);
    spops_context *ctx = fuzz_context_create(&memory, 1);
    for (int i = 0; i < 4; ++i) {
        char name[32];
        spops_bev_plan *plan = make_plan(ctx, i & 1, i < 2 ? 1.0 : 3.0);
        snprintf(name, sizeof name, "plan_%d", i);
        put_bev_plan(ctx, plan, name, i & 1);
        spops_bev_plan_destroy(plan);
    }
    put_segments(ctx);
    put_partition(ctx);
    put_maps(ctx);
    put_coords();
    put_calls();
    put_clouds();
    for (size_t i = 0; i < sizeof halves / sizeof *halves; ++i)
        halves[i] = (uint16_t)((i % 3 == 0 ? 0xb800 : 0x3800) + i * 37 % 1024);
    put_exported(0);
    put_exported(1);
    put_own_operators(ctx);
    fuzz_context_destroy(ctx, &memory);
    put_rigs(argv[2]);
    return 0;
}
