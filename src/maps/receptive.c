// SPDX-License-Identifier: Apache-2.0
// Receptive fields: for every place that an output's voxel can have, which voxels of each value it
// reads, from the last layer to the first; and the farthest of them.
#include "spops/receptive.h"

#include <math.h>
#include <stdio.h>

#include "core/check.h"

static const char call[] = "receptive_field";

enum { MAX_VALUES = SPOPS_RECEPTIVE_MAX_LAYERS + 1 };

// Voxels from low to high of a value along an axis; none where low > high.
typedef struct span {
    int64_t low, high;
} span;

static const span no_span = {INT64_MAX, INT64_MIN}, all_of_it = {INT64_MIN, INT64_MAX};

static bool is_empty(span s)
{
    return s.low > s.high;
}

static bool is_unbounded(span s)
{
    return s.low == INT64_MIN;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return -floor_div(-a, b);
}

static span hull(span a, span b)
{
    return (span){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}

// ---- One axis -----------------------------------------------------------------------------------

// A layer along an axis.
typedef struct axis_layer {
    spops_receptive_kind kind;
    int32_t from[2];
    int64_t size, stride, padding, dilation, shift;
} axis_layer;

// A network along an axis.
typedef struct axis {
    int32_t num_layers;
    axis_layer layers[SPOPS_RECEPTIVE_MAX_LAYERS];
    int64_t strides[MAX_VALUES]; // of values
    int64_t places;              // of an output's voxel, after which everything repeats
} axis;

// What a layer reads for voxels `of` of what it gives.
static span read_by(const axis_layer *layer, span of)
{
    const int64_t s = layer->stride, reach = layer->dilation * (layer->size - 1);

    if (is_empty(of)) return of;
    if (layer->kind == SPOPS_RECEPTIVE_ALL) return all_of_it;
    if (is_unbounded(of)) return of;
    switch (layer->kind) {
    case SPOPS_RECEPTIVE_SUBMANIFOLD: return (span){of.low - reach / 2, of.high + reach / 2};
    case SPOPS_RECEPTIVE_CONVOLUTION:
        return (span){of.low * s - layer->padding, of.high * s - layer->padding + reach};
    case SPOPS_RECEPTIVE_TRANSPOSED:
        return (span){ceil_div(of.low + layer->padding - reach, s),
                      floor_div(of.high + layer->padding, s)};
    case SPOPS_RECEPTIVE_LINEAR:
        // The first half of a coarse voxel reads the one before it, the second half the one after it;
        // the middle voxel of an odd stride has both halves.
        return (span){floor_div(2 * of.low - s, 2 * s), ceil_div(2 * of.high + 2 - s, 2 * s)};
    case SPOPS_RECEPTIVE_WINDOW: {
        const int64_t size = layer->size, shift = layer->shift;
        if (size == 0) return all_of_it;
        return (span){floor_div(of.low + shift, size) * size - shift,
                      floor_div(of.high + shift, size) * size - shift + size - 1};
    }
    default: return of;
    }
}

// ---- Checks -------------------------------------------------------------------------------------

static bool has_taps(spops_receptive_kind kind)
{
    return kind == SPOPS_RECEPTIVE_SUBMANIFOLD || kind == SPOPS_RECEPTIVE_CONVOLUTION ||
           kind == SPOPS_RECEPTIVE_TRANSPOSED;
}

static spops_status check_number(int32_t i, const char *name, int a, int64_t found, int64_t least,
                                 int64_t most)
{
    SPOPS_REQUIRE(NULL, found >= least && found <= most,
                  "%s: layers[%d].kernel->%s[%d] is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                  call, (int)i, name, a, found, least, most);
    return SPOPS_STATUS_OK;
}

static spops_status check_axis(const axis_layer *layer, int32_t i, int a)
{
    enum { FAR = 1 << 20 };

    if (layer->kind == SPOPS_RECEPTIVE_WINDOW)
        return check_number(i, "size", a, layer->size, 0, FAR);
    if (has_taps(layer->kind))
        SPOPS_TRY(check_number(i, "size", a, layer->size, 1, SPOPS_MAX_KERNEL_SIZE));
    SPOPS_TRY(check_number(i, "stride", a, layer->stride, 1, FAR));
    if (!has_taps(layer->kind)) return SPOPS_STATUS_OK;
    SPOPS_TRY(check_number(i, "dilation", a, layer->dilation, 1, FAR));
    SPOPS_TRY(check_number(i, "padding", a, layer->padding, -FAR, FAR));
    if (layer->kind != SPOPS_RECEPTIVE_SUBMANIFOLD) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(
        NULL, layer->stride == 1 && layer->size % 2 == 1,
        "%s: layers[%d].kernel has size %d and stride %d on axis %d, expected an odd size and "
        "stride 1 of a submanifold layer",
        call, (int)i, (int)layer->size, (int)layer->stride, a);
    return SPOPS_STATUS_OK;
}

static spops_status check_layer(const spops_receptive_layer *layer, int32_t i)
{
    SPOPS_REQUIRE(NULL, (unsigned)layer->kind <= SPOPS_RECEPTIVE_ALL,
                  "%s: layers[%d].kind is %d, expected 0 to %d", call, (int)i, (int)layer->kind,
                  SPOPS_RECEPTIVE_ALL);
    SPOPS_REQUIRE(NULL, layer->from[0] >= 0 && layer->from[0] <= i,
                  "%s: layers[%d].from[0] is %d, expected 0 to %d", call, (int)i,
                  (int)layer->from[0], (int)i);
    SPOPS_REQUIRE(NULL,
                  layer->from[1] == -1 || (layer->kind == SPOPS_RECEPTIVE_ROW &&
                                           layer->from[1] >= 0 && layer->from[1] <= i),
                  "%s: layers[%d].from[1] is %d, expected -1%s", call, (int)i, (int)layer->from[1],
                  layer->kind == SPOPS_RECEPTIVE_ROW ? ", or a value before the layer" : "");
    return SPOPS_STATUS_OK;
}

// A layer along axis a.
static spops_status read_layer(int32_t dims, const spops_receptive_layer *given, int32_t i, int a,
                               axis_layer *layer)
{
    spops_kernel_shape k = {0};
    char name[64];

    SPOPS_TRY(check_layer(given, i));
    *layer =
        (axis_layer){given->kind, {given->from[0], given->from[1]}, 1, 1, 0, 1, given->shift[a]};
    if (given->kind == SPOPS_RECEPTIVE_ROW || given->kind == SPOPS_RECEPTIVE_ALL)
        return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(NULL, given->kernel != NULL, "%s: layers[%d].kernel is NULL", call, (int)i);
    snprintf(name, sizeof name, "layers[%d].kernel", (int)i);
    SPOPS_TRY(spops_read_struct(NULL, call, name, given->kernel, &k, sizeof k));
    SPOPS_REQUIRE(NULL, k.dims == dims, "%s: layers[%d].kernel->dims is %d, expected %d", call,
                  (int)i, (int)k.dims, (int)dims);
    layer->size = k.size[a];
    layer->stride = k.stride[a];
    layer->padding = k.padding[a];
    layer->dilation = k.dilation[a];
    return check_axis(layer, i, a);
}

static spops_status check_call(int32_t dims, const double *size_m,
                               const spops_receptive_layer *layers, int32_t n, int32_t output,
                               const spops_reach *reach)
{
    SPOPS_REQUIRE(NULL, dims >= 1 && dims <= SPOPS_MAX_DIMS, "%s: dims is %d, expected 1 to %d",
                  call, (int)dims, SPOPS_MAX_DIMS);
    SPOPS_REQUIRE(NULL, n >= 0 && n <= SPOPS_RECEPTIVE_MAX_LAYERS,
                  "%s: num_layers is %d, expected 0 to %d", call, (int)n,
                  SPOPS_RECEPTIVE_MAX_LAYERS);
    if (n > 0)
        SPOPS_TRY(
            spops_check_object(NULL, call, "layers", layers, _Alignof(spops_receptive_layer)));
    SPOPS_REQUIRE(NULL, output >= 0 && output <= n, "%s: output is %d, expected 0 to %d", call,
                  (int)output, (int)n);
    SPOPS_TRY(spops_check_object(NULL, call, "reach", reach, _Alignof(spops_reach)));
    for (int a = 0; a < dims && size_m != NULL; ++a)
        SPOPS_REQUIRE(NULL, size_m[a] > 0.0 && isfinite(size_m[a]),
                      "%s: voxel_size_m[%d] is %g, expected more than 0, and finite", call, a,
                      size_m[a]);
    return SPOPS_STATUS_OK;
}

// ---- Strides ------------------------------------------------------------------------------------

enum { MAX_STRIDE = 1 << 24 };

static spops_status find_strides(axis *x, int a)
{
    x->strides[0] = 1;
    for (int32_t i = 0; i < x->num_layers; ++i) {
        const axis_layer *layer = &x->layers[i];
        const int64_t of = x->strides[layer->from[0]];
        x->strides[i + 1] = of;
        if (layer->from[1] >= 0)
            SPOPS_REQUIRE(NULL, x->strides[layer->from[1]] == of,
                          "%s: layers[%d] reads values %d and %d, whose strides on axis %d are "
                          "%" PRId64 " and %" PRId64 ", expected one stride",
                          call, (int)i, (int)layer->from[0], (int)layer->from[1], a, of,
                          x->strides[layer->from[1]]);
        if (layer->kind == SPOPS_RECEPTIVE_CONVOLUTION) {
            SPOPS_REQUIRE(NULL, of * layer->stride <= MAX_STRIDE,
                          "%s: layers[%d] has stride %" PRId64 " on axis %d, expected at most %d",
                          call, (int)i, of * layer->stride, a, MAX_STRIDE);
            x->strides[i + 1] = of * layer->stride;
        }
        if (layer->kind != SPOPS_RECEPTIVE_TRANSPOSED && layer->kind != SPOPS_RECEPTIVE_LINEAR)
            continue;
        SPOPS_REQUIRE(NULL, of % layer->stride == 0,
                      "%s: layers[%d].kernel->stride[%d] is %" PRId64
                      ", expected a divisor of %" PRId64 ", the stride of value %d",
                      call, (int)i, a, layer->stride, of, (int)layer->from[0]);
        x->strides[i + 1] = of / layer->stride;
    }
    return SPOPS_STATUS_OK;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

static spops_status count_places(axis *x, int32_t output, int a)
{
    const int64_t own = x->strides[output];
    int64_t period = own;

    for (int32_t v = 0; v <= x->num_layers; ++v) {
        const bool is_window = v > 0 && x->layers[v - 1].kind == SPOPS_RECEPTIVE_WINDOW;
        const int64_t size = is_window ? x->layers[v - 1].size : 1;
        const int64_t repeats = x->strides[v] * (size > 0 ? size : 1);
        const int64_t factor = repeats / common_divisor(period, repeats);
        if (period / own > SPOPS_RECEPTIVE_MAX_PLACES / factor)
            return spops_fail(NULL, SPOPS_STATUS_NOT_SUPPORTED,
                              "%s: strides and windows repeat after more than %d voxels on axis %d",
                              call, SPOPS_RECEPTIVE_MAX_PLACES, a);
        period *= factor;
    }
    x->places = period / own;
    return SPOPS_STATUS_OK;
}

static spops_status read_axis(int32_t dims, const spops_receptive_layer *layers, int32_t n,
                              int32_t output, int a, axis *x)
{
    x->num_layers = n;
    for (int32_t i = 0; i < n; ++i)
        SPOPS_TRY(read_layer(dims, &layers[i], i, a, &x->layers[i]));
    SPOPS_TRY(find_strides(x, a));
    return count_places(x, output, a);
}

// ---- Reach --------------------------------------------------------------------------------------

// Voxels of all values that a voxel of the output reads.
static void read_of(const axis *x, int32_t output, int64_t o, span read[MAX_VALUES])
{
    for (int32_t v = 0; v <= x->num_layers; ++v)
        read[v] = v == output ? (span){o, o} : no_span;
    for (int32_t i = x->num_layers - 1; i >= 0; --i)
        for (int f = 0; f < 2; ++f) {
            const int32_t from = x->layers[i].from[f];
            if (from >= 0) read[from] = hull(read[from], read_by(&x->layers[i], read[i + 1]));
        }
}

// A voxel of the output at place o along axis a.
static void add_place(const axis *x, int a, int32_t output, int64_t o, spops_reach *reach)
{
    const int64_t begin = o * x->strides[output], end = begin + x->strides[output] - 1;
    span read[MAX_VALUES];

    read_of(x, output, o, read);
    for (int32_t v = 0; v <= x->num_layers; ++v) {
        const int64_t s = x->strides[v];
        if (is_empty(read[v])) continue;
        reach[v].is_read = 1;
        if (is_unbounded(read[v])) {
            reach[v].lower[a] = reach[v].upper[a] = SPOPS_REACH_UNBOUNDED;
            continue;
        }
        const int64_t lower = floor_div(begin, s) - read[v].low;
        const int64_t upper = read[v].high - floor_div(end, s);
        const double lower_in = (double)(begin - read[v].low * s);
        const double upper_in = (double)((read[v].high + 1) * s - 1 - end);
        if (lower > reach[v].lower[a]) reach[v].lower[a] = lower;
        if (upper > reach[v].upper[a]) reach[v].upper[a] = upper;
        if (lower_in > reach[v].lower_m[a]) reach[v].lower_m[a] = lower_in;
        if (upper_in > reach[v].upper_m[a]) reach[v].upper_m[a] = upper_in;
    }
}

// Lengths, which were counted in voxels of the input.
static void set_lengths(spops_reach *reach, int a, const double *size_m)
{
    const double size = size_m == NULL ? 0.0 : size_m[a];
    const bool is_all = reach->lower[a] == SPOPS_REACH_UNBOUNDED;

    reach->lower_m[a] = is_all && size_m != NULL ? INFINITY : reach->lower_m[a] * size;
    reach->upper_m[a] = is_all && size_m != NULL ? INFINITY : reach->upper_m[a] * size;
}

spops_status spops_receptive_field(int32_t dims, const double *voxel_size_m,
                                   const spops_receptive_layer *layers, int32_t num_layers,
                                   int32_t output, spops_reach *reach)
{
    axis x;

    SPOPS_TRY(check_call(dims, voxel_size_m, layers, num_layers, output, reach));
    for (int a = 0; a < dims; ++a)
        SPOPS_TRY(read_axis(dims, layers, num_layers, output, a, &x));
    for (int32_t v = 0; v <= num_layers; ++v)
        reach[v] = (spops_reach){0};
    for (int a = 0; a < dims; ++a) {
        SPOPS_TRY(read_axis(dims, layers, num_layers, output, a, &x)); // one axis fits the stack
        for (int64_t o = 0; o < x.places; ++o)
            add_place(&x, a, output, o, reach);
        for (int32_t v = 0; v <= num_layers; ++v) {
            reach[v].stride[a] = x.strides[v];
            set_lengths(&reach[v], a, voxel_size_m);
        }
    }
    return SPOPS_STATUS_OK;
}
