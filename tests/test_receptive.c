// SPDX-License-Identifier: Apache-2.0
// Receptive fields against networks that run: NaN in one voxel of the input, on sets that have every
// voxel, and which outputs are NaN then; and what is refused.
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/spops.h"
#include "tests/support/random.h"

enum { MAX_LAYERS = 8, LENGTH = 640, MAX_PERIOD = 64 };

static spops_context *open_cpu(void)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    options.backend = SPOPS_BACKEND_CPU;
    options.num_threads = 1;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
    return ctx;
}

#define OK(ctx, call) cr_assert_eq((call), SPOPS_STATUS_OK, "%s: %s", #call, spops_last_error(ctx))

// ---- A network along one axis -------------------------------------------------------------------

typedef struct network {
    spops_context *ctx;
    int32_t num_layers;
    spops_receptive_layer layers[MAX_LAYERS];
    spops_kernel_shape kernels[MAX_LAYERS];
    bool has_gaps; // a transposed layer reads no row for some voxels, or not the farthest
    int64_t period;
    // Of values: the set that they are at, by the value that made it, and their stride.
    int32_t set_of[MAX_LAYERS + 1];
    int64_t stride[MAX_LAYERS + 1];
    spops_coords *sets[MAX_LAYERS + 1]; // NULL: another value's
    int64_t num_rows[MAX_LAYERS + 1];
    int32_t *rows[MAX_LAYERS + 1];
    spops_kernel_map *maps[MAX_LAYERS];
    spops_sparseconv *convs[MAX_LAYERS];
} network;

static void keep_set(network *n, int32_t value, spops_coords *set)
{
    spops_coords_view view = spops_coords_view_default();

    n->sets[value] = set;
    n->set_of[value] = value;
    OK(n->ctx, spops_coords_get_num_rows_sync(n->ctx, set, &n->num_rows[value]));
    OK(n->ctx, spops_coords_get_view(n->ctx, set, &view));
    n->rows[value] = malloc((size_t)n->num_rows[value] * 2 * sizeof(int32_t));
    memcpy(n->rows[value], view.rows, (size_t)n->num_rows[value] * 2 * sizeof(int32_t));
}

// A value before `end` at a finer set than value `from`, whose stride a transposed layer can reach; -1.
static int32_t finer_value(const network *n, int32_t from, int32_t end)
{
    for (int32_t v = end - 1; v >= 0; --v)
        if (n->stride[v] < n->stride[from] && n->stride[from] % n->stride[v] == 0) return v;
    return -1;
}

static int32_t same_set(const network *n, int32_t value, int32_t end, test_rng *rng)
{
    int32_t found = value;
    for (int32_t v = 0; v < end; ++v)
        if (n->set_of[v] == n->set_of[value] && test_rng_below(rng, 2) != 0) found = v;
    return found;
}

// Layer i, which reads the value before it.
static void add_layer(network *n, int32_t i, test_rng *rng)
{
    spops_receptive_layer *layer = &n->layers[i];
    spops_kernel_shape *k = &n->kernels[i];
    const int32_t finer = finer_value(n, i, i);
    const int kind = (int)test_rng_below(rng, 4);
    const spops_coords *in = n->sets[n->set_of[i]], *out = in;
    spops_kernel_map_kind map = SPOPS_MAP_SUBMANIFOLD;

    *k = spops_kernel_shape_cube(1, 3 + 2 * (int32_t)test_rng_below(rng, 2), 1,
                                 1 + (int32_t)test_rng_below(rng, 2));
    k->padding[0] = k->dilation[0] * (k->size[0] / 2);
    *layer = (spops_receptive_layer){SPOPS_RECEPTIVE_SUBMANIFOLD, {i, -1}, k, {0}};
    n->stride[i + 1] = n->stride[i];
    n->set_of[i + 1] = n->set_of[i];
    if (kind == 1 && n->stride[i] < 8) {
        spops_coords *made = NULL;
        k->size[0] = 1 + (int32_t)test_rng_below(rng, 4);
        k->stride[0] = 2 + (int32_t)(n->stride[i] == 1 && test_rng_below(rng, 3) == 0);
        k->padding[0] = (int32_t)test_rng_below(rng, 3);
        layer->kind = SPOPS_RECEPTIVE_CONVOLUTION;
        map = SPOPS_MAP_CONVOLUTION;
        OK(n->ctx, spops_coords_create_downsampled(n->ctx, in, k, NULL, &made));
        keep_set(n, i + 1, made);
        out = made;
        n->stride[i + 1] *= k->stride[0];
    } else if (kind == 2 && finer >= 0) {
        k->size[0] = 1 + (int32_t)test_rng_below(rng, 5);
        k->stride[0] = (int32_t)(n->stride[i] / n->stride[finer]);
        k->padding[0] = (int32_t)test_rng_below(rng, 2);
        layer->kind = SPOPS_RECEPTIVE_TRANSPOSED;
        map = SPOPS_MAP_TRANSPOSED;
        out = n->sets[n->set_of[finer]];
        n->set_of[i + 1] = n->set_of[finer];
        n->stride[i + 1] = n->stride[finer];
        if (k->dilation[0] > 1 || k->size[0] < k->stride[0]) n->has_gaps = true;
    } else if (kind == 3) {
        layer->kind = SPOPS_RECEPTIVE_ROW;
        layer->kernel = NULL;
        layer->from[1] = same_set(n, i, i, rng);
        return;
    }
    spops_kernel_map_options options = spops_kernel_map_options_default();
    OK(n->ctx,
       spops_kernel_map_create(n->ctx, map, k, in, map == SPOPS_MAP_SUBMANIFOLD ? NULL : out,
                               &options, &n->maps[i]));
    OK(n->ctx, spops_sparseconv_create(n->ctx, n->maps[i], NULL, &n->convs[i]));
}

static int64_t lcm(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y, y = rest;
    }
    return a / x * b;
}

static void draw_network(network *n, test_rng *rng)
{
    spops_coords *finest = NULL;
    int32_t rows[LENGTH][2];

    for (int32_t i = 0; i < LENGTH; ++i)
        rows[i][0] = 0, rows[i][1] = i - LENGTH / 2;
    OK(n->ctx, spops_coords_create(n->ctx, 1, LENGTH, rows[0], NULL, &finest));
    keep_set(n, 0, finest);
    n->stride[0] = n->period = 1;
    n->num_layers = 1 + (int32_t)test_rng_below(rng, MAX_LAYERS);
    for (int32_t i = 0; i < n->num_layers; ++i) {
        add_layer(n, i, rng);
        n->period = lcm(n->period, n->stride[i + 1]);
    }
}

// Values for NaN in row `at` of the input: [values][rows], of f32 in one column.
static void run_network(network *n, int64_t at, float values[MAX_LAYERS + 1][LENGTH + 64])
{
    float ones[8];

    for (int k = 0; k < 8; ++k)
        ones[k] = 1.0f;
    for (int64_t r = 0; r < LENGTH; ++r)
        values[0][r] = r == at ? NAN : 0.0f;
    for (int32_t i = 0; i < n->num_layers; ++i) {
        const int64_t rows = n->num_rows[n->set_of[i + 1]], from = n->num_rows[n->set_of[i]];
        if (n->convs[i] == NULL) {
            for (int64_t r = 0; r < rows; ++r)
                values[i + 1][r] =
                    values[n->layers[i].from[0]][r] + values[n->layers[i].from[1]][r];
            continue;
        }
        OK(n->ctx, spops_sparseconv_execute(
                       n->ctx, n->convs[i], spops_matrix_dense(values[i], from, 1, SPOPS_DTYPE_F32),
                       spops_matrix_dense(ones, n->kernels[i].size[0], 1, SPOPS_DTYPE_F32), NULL,
                       spops_matrix_dense(values[i + 1], rows, 1, SPOPS_DTYPE_F32)));
    }
}

static void free_network(network *n)
{
    for (int32_t i = 0; i < n->num_layers; ++i) {
        spops_sparseconv_destroy(n->convs[i]);
        spops_kernel_map_destroy(n->maps[i]);
    }
    for (int32_t v = 0; v <= n->num_layers; ++v) {
        spops_coords_destroy(n->sets[v]);
        free(n->rows[v]);
    }
}

// The farthest outputs that NaN in a voxel reaches, in voxels of the input.
static void measure(network *n, int32_t output, int64_t *lower, int64_t *upper)
{
    static float values[MAX_LAYERS + 1][LENGTH + 64];
    const int64_t stride = n->stride[output];

    *lower = *upper = INT64_MIN;
    for (int64_t i = 0; i < n->period; ++i) {
        run_network(n, LENGTH / 2 + i, values);
        for (int64_t r = 0; r < n->num_rows[n->set_of[output]]; ++r) {
            const int64_t begin = n->rows[n->set_of[output]][2 * r + 1] * stride;
            if (!isnan(values[output][r])) continue;
            if (begin - i > *lower) *lower = begin - i;
            if (i - (begin + stride - 1) > *upper) *upper = i - (begin + stride - 1);
        }
    }
}

Test(receptive, is_what_networks_read)
{
    spops_context *ctx = open_cpu();
    const double size_m = 0.25;
    int exact = 0, up = 0;

    for (uint64_t draw = 0; draw < 400; ++draw) {
        test_rng rng = test_rng_make(77000 + draw);
        network n = {.ctx = ctx};
        spops_reach reach[MAX_LAYERS + 1];
        draw_network(&n, &rng);
        cr_assert_leq(n.period, MAX_PERIOD);
        for (int32_t output = 0; output <= n.num_layers; ++output) {
            int64_t lower, upper;
            OK(NULL, spops_receptive_field(1, &size_m, n.layers, n.num_layers, output, reach));
            measure(&n, output, &lower, &upper);
            if (lower < 0) lower = 0;
            if (upper < 0) upper = 0;
            cr_assert(reach[0].lower[0] >= lower && reach[0].upper[0] >= upper,
                      "draw %d, value %d: %d and %d, network %d and %d", (int)draw, (int)output,
                      (int)reach[0].lower[0], (int)reach[0].upper[0], (int)lower, (int)upper);
            if (!n.has_gaps)
                cr_assert(reach[0].lower[0] == lower && reach[0].upper[0] == upper,
                          "draw %d, value %d: %d and %d, expected %d and %d", (int)draw,
                          (int)output, (int)reach[0].lower[0], (int)reach[0].upper[0], (int)lower,
                          (int)upper);
            exact += !n.has_gaps && lower > 0;
            cr_assert_eq(reach[0].lower_m[0], size_m * (double)reach[0].lower[0]);
            cr_assert_eq(reach[output].stride[0], n.stride[output]);
            cr_assert(reach[output].is_read && reach[output].lower[0] == 0);
        }
        for (int32_t i = 0; i < n.num_layers; ++i)
            up += n.layers[i].kind == SPOPS_RECEPTIVE_TRANSPOSED;
        free_network(&n);
    }
    cr_assert(exact > 300 && up > 100, "%d networks are exact, %d layers go up", exact, up);
    spops_context_destroy(ctx);
}

// ---- By hand ------------------------------------------------------------------------------------

static spops_receptive_layer layer_of(spops_receptive_kind kind, int32_t from,
                                      const spops_kernel_shape *kernel)
{
    return (spops_receptive_layer){kind, {from, -1}, kernel, {0}};
}

Test(receptive, windows_interpolation_and_all)
{
    spops_kernel_shape window = spops_kernel_shape_cube(2, 8, 1, 1), two = window, three = window;
    spops_receptive_layer layers[2];
    spops_reach reach[3];

    window.size[1] = 0;
    layers[0] = layer_of(SPOPS_RECEPTIVE_WINDOW, 0, &window);
    layers[0].shift[0] = 3;
    OK(NULL, spops_receptive_field(2, NULL, layers, 1, 1, reach));
    cr_assert(reach[0].lower[0] == 7 && reach[0].upper[0] == 7);
    cr_assert(reach[0].lower[1] == SPOPS_REACH_UNBOUNDED && reach[0].lower_m[1] == 0.0);
    // From voxels that are two wide: the first voxel of one reads the one before it and itself.
    two = spops_kernel_shape_cube(2, 2, 2, 1);
    layers[0] = layer_of(SPOPS_RECEPTIVE_CONVOLUTION, 0, &two);
    layers[1] = layer_of(SPOPS_RECEPTIVE_LINEAR, 1, &two);
    OK(NULL, spops_receptive_field(2, (double[]){0.5, 2.0}, layers, 2, 2, reach));
    cr_assert(reach[1].lower[0] == 1 && reach[1].upper[0] == 1 && reach[1].stride[0] == 2);
    cr_assert(reach[0].lower[0] == 2 && reach[0].upper[0] == 2);
    cr_assert(reach[0].lower_m[0] == 1.0 && reach[0].upper_m[1] == 4.0);
    three = spops_kernel_shape_cube(2, 3, 1, 1);
    layers[0] = layer_of(SPOPS_RECEPTIVE_ALL, 0, NULL);
    layers[1] = layer_of(SPOPS_RECEPTIVE_SUBMANIFOLD, 1, &three);
    OK(NULL, spops_receptive_field(2, (double[]){0.5, 2.0}, layers, 2, 2, reach));
    cr_assert(reach[0].upper[0] == SPOPS_REACH_UNBOUNDED && isinf(reach[0].upper_m[1]));
    cr_assert(reach[1].upper[0] == 1 && reach[1].upper_m[1] == 2.0);
    OK(NULL, spops_receptive_field(2, NULL, layers, 2, 0, reach));
    cr_assert(reach[0].is_read && !reach[1].is_read && !reach[2].is_read);
}

// ---- Refusals -----------------------------------------------------------------------------------

static void refuses(int32_t dims, const double *size_m, const spops_receptive_layer *layers,
                    int32_t n, int32_t output, spops_status status, const char *text)
{
    spops_reach reach[3], before[3];
    memset(reach, 0x5a, sizeof reach);
    memcpy(before, reach, sizeof reach);
    cr_assert_eq(spops_receptive_field(dims, size_m, layers, n, output, reach), status, "%s", text);
    cr_assert_str_eq(spops_last_error(NULL), text);
    cr_assert_eq(memcmp(before, reach, sizeof reach), 0, "%s: it wrote", text);
}

Test(receptive, refusals)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_kernel_shape k = spops_kernel_shape_cube(1, 3, 2, 1), wide = k;
    spops_receptive_layer layers[2] = {layer_of(SPOPS_RECEPTIVE_CONVOLUTION, 0, &k),
                                       layer_of(SPOPS_RECEPTIVE_ROW, 1, NULL)};
    const double none = 0.0;

    refuses(0, NULL, layers, 1, 1, invalid, "receptive_field: dims is 0, expected 1 to 4");
    refuses(1, NULL, layers, 1025, 1, invalid,
            "receptive_field: num_layers is 1025, expected 0 to 1024");
    refuses(1, NULL, NULL, 1, 1, invalid, "receptive_field: layers is NULL");
    refuses(1, NULL, layers, 1, 2, invalid, "receptive_field: output is 2, expected 0 to 1");
    refuses(1, &none, layers, 1, 1, invalid,
            "receptive_field: voxel_size_m[0] is 0, expected more than 0, and finite");
    layers[1].from[1] = 0;
    refuses(1, NULL, layers, 2, 1, invalid,
            "receptive_field: layers[1] reads values 1 and 0, whose strides on axis 0 are 2 and 1, "
            "expected one stride");
    layers[1].from[1] = 2;
    refuses(1, NULL, layers, 2, 1, invalid,
            "receptive_field: layers[1].from[1] is 2, expected -1, or a value before the layer");
    layers[1].from[0] = 2;
    refuses(1, NULL, layers, 2, 1, invalid,
            "receptive_field: layers[1].from[0] is 2, expected 0 to 1");
    layers[0].from[1] = 0;
    refuses(1, NULL, layers, 1, 1, invalid, "receptive_field: layers[0].from[1] is 0, expected -1");
    layers[0] = layer_of(SPOPS_RECEPTIVE_SUBMANIFOLD, 0, &k);
    refuses(
        1, NULL, layers, 1, 1, invalid,
        "receptive_field: layers[0].kernel has size 3 and stride 2 on axis 0, expected an odd size "
        "and stride 1 of a submanifold layer");
    layers[0].kind = SPOPS_RECEPTIVE_TRANSPOSED;
    refuses(
        1, NULL, layers, 1, 1, invalid,
        "receptive_field: layers[0].kernel->stride[0] is 2, expected a divisor of 1, the stride of "
        "value 0");
    refuses(2, NULL, layers, 1, 1, invalid,
            "receptive_field: layers[0].kernel->dims is 1, expected 2");
    layers[0].kernel = NULL;
    refuses(1, NULL, layers, 1, 1, invalid, "receptive_field: layers[0].kernel is NULL");
    layers[0].kind = (spops_receptive_kind)7;
    refuses(1, NULL, layers, 1, 1, invalid,
            "receptive_field: layers[0].kind is 7, expected 0 to 6");
    k.size[0] = 0;
    layers[0] = layer_of(SPOPS_RECEPTIVE_CONVOLUTION, 0, &k);
    refuses(1, NULL, layers, 1, 1, invalid,
            "receptive_field: layers[0].kernel->size[0] is 0, expected 1 to 7");
    k.size[0] = 3, k.dilation[0] = 0;
    refuses(1, NULL, layers, 1, 1, invalid,
            "receptive_field: layers[0].kernel->dilation[0] is 0, expected 1 to 1048576");
    k.dilation[0] = 1, k.padding[0] = 2000000;
    refuses(
        1, NULL, layers, 1, 1, invalid,
        "receptive_field: layers[0].kernel->padding[0] is 2000000, expected -1048576 to 1048576");
    k.padding[0] = 0, k.stride[0] = 0;
    refuses(1, NULL, layers, 1, 1, invalid,
            "receptive_field: layers[0].kernel->stride[0] is 0, expected 1 to 1048576");
    k.stride[0] = 1 << 20, wide.stride[0] = 32;
    layers[1] = layer_of(SPOPS_RECEPTIVE_CONVOLUTION, 1, &wide);
    refuses(1, NULL, layers, 2, 1, invalid,
            "receptive_field: layers[1] has stride 33554432 on axis 0, expected at most 16777216");
    wide.stride[0] = 3;
    refuses(1, NULL, layers, 2, 0, SPOPS_STATUS_NOT_SUPPORTED,
            "receptive_field: strides and windows repeat after more than 1048576 voxels on axis 0");
    cr_assert_eq(spops_receptive_field(1, NULL, NULL, 0, 0, NULL), invalid);
    cr_assert_str_eq(spops_last_error(NULL), "receptive_field: reach is NULL");
}
