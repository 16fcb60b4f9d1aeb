// SPDX-License-Identifier: Apache-2.0
// Layers of other libraries, from their weights to their outputs. What a library computes is written
// down from its source, by its own tap numbers and relations: which element of the parameter a tap
// has, which input and output it joins, and which outputs there are. The library here gets the
// weights by spops_weights_load, and map, padding and outputs by the table of weights.h. Features and
// weights are small whole numbers, so that sums are exact and have to be equal.
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "spops/kernel_map.h"
#include "spops/sparseconv.h"
#include "spops/weights.h"
#include "tests/support/random.h"

enum { MAX_ROWS = 20000, MAX_TAPS = 256, BATCHES = 2 };

// A layer as its library is given it.
typedef struct layer {
    int32_t dims;
    int32_t size[4], stride[4], dilation[4], padding[4];
    int32_t extent[4];       // of the inputs, which begin at 0 where coordinates have no sign
    int32_t largest[4];      // input
    int32_t groups, in, out; // channels of one group
} layer;

typedef struct rows {
    int64_t n;
    int32_t *at; // [n][1 + dims], sorted
} rows;

static int32_t floor_div(int32_t a, int32_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t volume(const layer *l)
{
    int64_t n = 1;
    for (int a = 0; a < l->dims; ++a)
        n *= l->size[a];
    return n;
}

static int64_t last_fastest(const layer *l, const int32_t *c)
{
    int64_t flat = 0;
    for (int a = 0; a < l->dims; ++a)
        flat = flat * l->size[a] + c[a];
    return flat;
}

static int64_t first_fastest(const layer *l, const int32_t *c)
{
    int64_t flat = 0;
    for (int a = l->dims - 1; a >= 0; --a)
        flat = flat * l->size[a] + c[a];
    return flat;
}

// ---- Elements of parameters: tap c of the library's own loops, group g, channels i and o of it ----

#define ELEMENT(name) static int64_t name(const layer *l, const int32_t *c, int g, int i, int o)

ELEMENT(torch_conv) // weight[g out + o][i][c...]
{
    return ((int64_t)(g * l->out + o) * l->in + i) * volume(l) + last_fastest(l, c);
}

ELEMENT(torch_transposed) // weight[g in + i][o][c...]
{
    return ((int64_t)(g * l->in + i) * l->out + o) * volume(l) + last_fastest(l, c);
}

static bool is_strided(const layer *l)
{
    bool strided = false;
    for (int a = 0; a < l->dims; ++a)
        strided |= l->stride[a] != 1;
    return strided;
}

ELEMENT(spconv_krsc)
{
    (void)g;
    if (volume(l) == 1 && !is_strided(l))
        return i * l->out + o; // weight.view(in, out) of [out][1]..[1][in]
    return (o * volume(l) + last_fastest(l, c)) * l->in + i;
}

ELEMENT(spconv_rsck)
{
    (void)g;
    return (last_fastest(l, c) * l->in + i) * l->out + o;
}

ELEMENT(spconv_rskc)
{
    (void)g;
    return (last_fastest(l, c) * l->out + o) * l->in + i;
}

ELEMENT(minkowski) // kernel index: axis 0 is its remainder first
{
    (void)g;
    return (first_fastest(l, c) * l->in + i) * l->out + o;
}

ELEMENT(minkowski_channelwise) // [volume][channels]
{
    (void)i, (void)o;
    return first_fastest(l, c) * l->groups + g;
}

static int64_t torchsparse_tap(const layer *l, const int32_t *c)
{
    return volume(l) % 2 == 1 ? first_fastest(l, c) : last_fastest(l, c);
}

ELEMENT(torchsparse)
{
    (void)g;
    return (torchsparse_tap(l, c) * l->in + i) * l->out + o;
}

ELEMENT(torchsparse_on_the_fly) // stored under kernel_volume - 1 - kernel_idx
{
    (void)g;
    return ((volume(l) - 1 - torchsparse_tap(l, c)) * l->in + i) * l->out + o;
}

ELEMENT(tap_group_in_out) // WarpConvNet, pointelligence
{
    return ((last_fastest(l, c) * l->groups + g) * l->in + i) * l->out + o;
}

ELEMENT(fvdb) // weight[o][i][c_0][c_1][c_2]
{
    (void)g;
    return ((int64_t)o * l->in + i) * volume(l) + last_fastest(l, c);
}

ELEMENT(fvdb_0_3) // weight[o][i][n2][n3][n4]; the loop over coordinate axis 0 indexes n4
{
    const int64_t n2 = l->size[2], n3 = l->size[1], n4 = l->size[0];
    (void)g;
    return ((((int64_t)o * l->in + i) * n2 + c[2]) * n3 + c[1]) * n4 + c[0];
}

ELEMENT(fvdb_0_3_transposed) // weight[i][o][n2][n3][n4]
{
    const int64_t n2 = l->size[2], n3 = l->size[1], n4 = l->size[0];
    (void)g;
    return ((((int64_t)i * l->out + o) * n2 + c[2]) * n3 + c[1]) * n4 + c[0];
}

// ---- Relations: whether tap c of an axis joins input p to output q ------------------------------------

#define MEETS(name) static bool name(const layer *l, int a, int32_t c, int32_t p, int32_t q)

MEETS(conv_meets) // torch; FlexGEMM: in = q s + c d - padding
{
    return p == l->stride[a] * q - l->padding[a] + l->dilation[a] * c;
}

MEETS(conv_transposed_meets) // torch
{
    return q == l->stride[a] * p - l->padding[a] + l->dilation[a] * c;
}

MEETS(spconv_meets) // (in + padding - c d) / s, where it divides
{
    return l->stride[a] * q == p + l->padding[a] - l->dilation[a] * c;
}

MEETS(spconv_inverse_meets) // the pairs of the layer that went down, in and out exchanged
{
    return spconv_meets(l, a, c, q, p);
}

MEETS(spconv_subm_meets)
{
    return q == p + (l->size[a] / 2) * l->dilation[a] - l->dilation[a] * c;
}

static int32_t minkowski_offset(const layer *l, int a, int32_t c)
{
    return l->dilation[a] * (l->size[a] % 2 == 0 ? c : c - l->size[a] / 2);
}

MEETS(minkowski_meets)
{
    return p == l->stride[a] * q + minkowski_offset(l, a, c);
}

MEETS(minkowski_transposed_meets) // the map from out to in, exchanged
{
    return q == l->stride[a] * p + minkowski_offset(l, a, c);
}

MEETS(torchsparse_meets) // looked up: out s + c - (size - 1) / 2
{
    return p == l->stride[a] * q + c - (l->size[a] - 1) / 2;
}

MEETS(torchsparse_inverse_meets)
{
    return torchsparse_meets(l, a, c, q, p);
}

MEETS(torchsparse_fly_meets) // out = (in + padding + c - (size - 1)) / s, where it divides
{
    return l->stride[a] * q == p + l->padding[a] + c - (l->size[a] - 1);
}

MEETS(torchsparse_generative_meets) // in s is inserted, out + c - (size - 1) / 2 is looked up
{
    return l->stride[a] * p == q + c - (l->size[a] - 1) / 2;
}

static int32_t warp_offset(const layer *l, int a, int32_t c)
{
    return l->dilation[a] * (c - (l->size[a] % 2 == 1 ? (l->size[a] - 1) / 2 : 0));
}

MEETS(warp_meets)
{
    return p == l->stride[a] * q + warp_offset(l, a, c);
}

MEETS(warp_transposed_meets)
{
    return q == l->stride[a] * p + warp_offset(l, a, c);
}

MEETS(flex_subm_meets)
{
    return p == q + l->dilation[a] * (c - l->size[a] / 2);
}

MEETS(fvdb_meets) // fine = s coarse + c - (size - 1) / 2
{
    return p == l->stride[a] * q + c - (l->size[a] - 1) / 2;
}

MEETS(fvdb_transposed_meets)
{
    return fvdb_meets(l, a, c, q, p);
}

MEETS(point_meets) // (input - query) / grid, rounded, + size / 2, on points that lie on a grid
{
    return c == p - q + l->size[a] / 2;
}

// ---- Outputs: whether an input at p makes an output at q, on an axis -----------------------------------

struct peer_layer;
#define GIVES(name)                                                                                \
    static bool name(const struct peer_layer *peer, const layer *l, int a, int32_t p, int32_t q)

typedef struct peer_layer {
    const char *name;
    int32_t min_dims, max_dims;
    bool odd, strided, dilated, padded, negative;
    enum { ONE, GROUPS, CHANNELS } groups;
    int64_t (*element)(const layer *, const int32_t *, int, int, int);
    bool (*meets)(const layer *, int, int32_t, int32_t, int32_t);
    bool (*gives)(const struct peer_layer *, const layer *, int, int32_t, int32_t);
    // The table of weights.h.
    spops_weights_layout layout;
    enum { SUBMANIFOLD, CONVOLUTION, TRANSPOSED, INVERSE } map;
    enum { OWN, CENTRE, CENTRE_ODD, LOWER, UPPER } pads;
    enum {
        INPUTS,
        GRID,
        DOWN,
        DOWN_IN_BOX,
        DOWN_BY_FLOOR,
        DOWN_TORCHSPARSE,
        UP,
        UP_IN_BOX,
        UP_LOWER,
        BEFORE
    } outputs;
} peer_layer;

static bool touches(const peer_layer *peer, const layer *l, int a, int32_t p, int32_t q)
{
    for (int32_t c = 0; c < l->size[a]; ++c)
        if (peer->meets(l, a, c, p, q)) return true;
    return false;
}

static int32_t conv_extent(const layer *l, int a)
{
    return floor_div(l->extent[a] + 2 * l->padding[a] - l->dilation[a] * (l->size[a] - 1) - 1,
                     l->stride[a]) +
           1;
}

static int32_t deconv_extent(const layer *l, int a) // without output padding
{
    return (l->extent[a] - 1) * l->stride[a] - 2 * l->padding[a] + l->size[a];
}

GIVES(gives_inputs)
{
    (void)peer, (void)l, (void)a;
    return p == q;
}

GIVES(gives_grid) // torch: dense
{
    (void)peer, (void)p;
    return q >= 0 && q < conv_extent(l, a);
}

GIVES(gives_transposed_grid)
{
    (void)peer, (void)p;
    return q >= 0 && q < (l->extent[a] - 1) * l->stride[a] - 2 * l->padding[a] +
                             l->dilation[a] * (l->size[a] - 1) + 1;
}

GIVES(gives_touched)
{
    return touches(peer, l, a, p, q);
}

GIVES(gives_touched_in_grid) // spconv, FlexGEMM
{
    return q >= 0 && q < conv_extent(l, a) && touches(peer, l, a, p, q);
}

GIVES(gives_spconv_before) // of the layer that went down
{
    (void)peer;
    for (int32_t c = 0; c < l->size[a]; ++c)
        if (spconv_meets(l, a, c, p, q)) return q >= 0 && q < conv_extent(l, a);
    return false;
}

GIVES(gives_up_in_grid) // spconv
{
    return q >= 0 && q < deconv_extent(l, a) && touches(peer, l, a, p, q);
}

GIVES(gives_floor) // MinkowskiEngine, WarpConvNet
{
    (void)peer;
    return q == floor_div(p, l->stride[a]);
}

static bool torchsparse_floors(const layer *l)
{
    for (int a = 0; a < l->dims; ++a)
        if (l->stride[a] != 1 && l->stride[a] != l->size[a]) return false;
    return true;
}

GIVES(gives_torchsparse_fly)
{
    const int32_t most =
        floor_div(l->largest[a] + 2 * l->padding[a] - (l->size[a] - 1), l->stride[a]);
    (void)peer;
    for (int32_t c = 0; c < l->size[a]; ++c)
        if (torchsparse_fly_meets(l, a, c, p, q)) return q >= 0 && q <= most;
    return false;
}

GIVES(gives_torchsparse)
{
    return torchsparse_floors(l) ? gives_floor(peer, l, a, p, q)
                                 : gives_torchsparse_fly(peer, l, a, p, q);
}

GIVES(gives_torchsparse_up) // in s + kernel offset, clamped to the spatial range
{
    (void)peer;
    for (int32_t c = 0; c < l->size[a]; ++c) {
        const int32_t to = l->stride[a] * p + c - (l->size[a] - 1) / 2;
        const int32_t most = l->extent[a] * l->stride[a] - 1;
        if (q == (to < 0 ? 0 : to > most ? most : to)) return true;
    }
    return false;
}

// ---- The libraries ------------------------------------------------------------------------------------

enum { no = 0, yes = 1 };

// clang-format off
static const peer_layer peers[] = {
    // name, dims, odd strided dilated padded negative, groups, definition; layout, map, padding, outputs
    {"nn.Conv", 1, 3, no, yes, yes, yes, no, GROUPS, torch_conv, conv_meets, gives_grid,
     SPOPS_WEIGHTS_TORCH, CONVOLUTION, OWN, GRID},
    {"nn.ConvTranspose", 1, 3, no, yes, yes, yes, no, GROUPS, torch_transposed, conv_transposed_meets, gives_transposed_grid,
     SPOPS_WEIGHTS_TORCH_TRANSPOSED, TRANSPOSED, OWN, GRID},
    {"spconv 2 SubMConv", 1, 4, yes, no, yes, no, no, ONE, spconv_krsc, spconv_subm_meets, gives_inputs,
     SPOPS_WEIGHTS_SPCONV2, SUBMANIFOLD, CENTRE, INPUTS},
    {"spconv 2 SparseConv", 1, 4, no, yes, yes, yes, no, ONE, spconv_krsc, spconv_meets, gives_touched_in_grid,
     SPOPS_WEIGHTS_SPCONV2, CONVOLUTION, OWN, DOWN_IN_BOX},
    {"spconv 2 SparseConvTranspose", 1, 4, no, yes, no, yes, no, ONE, spconv_krsc, conv_transposed_meets, gives_up_in_grid,
     SPOPS_WEIGHTS_SPCONV2, TRANSPOSED, OWN, UP_IN_BOX},
    {"spconv 2 SparseInverseConv", 1, 4, no, yes, yes, yes, no, ONE, spconv_krsc, spconv_inverse_meets, gives_spconv_before,
     SPOPS_WEIGHTS_SPCONV2, INVERSE, OWN, BEFORE},
    {"spconv 1 SparseConv", 1, 4, no, yes, yes, yes, no, ONE, spconv_rsck, spconv_meets, gives_touched_in_grid,
     SPOPS_WEIGHTS_SPCONV1, CONVOLUTION, OWN, DOWN_IN_BOX},
    {"spconv 1 SparseConvTranspose", 1, 4, no, yes, no, yes, no, ONE, spconv_rsck, conv_transposed_meets, gives_up_in_grid,
     SPOPS_WEIGHTS_SPCONV1, TRANSPOSED, OWN, UP_IN_BOX},
    {"spconv 2 native SparseConv", 1, 4, no, yes, yes, yes, no, ONE, spconv_rskc, spconv_meets, gives_touched_in_grid,
     SPOPS_WEIGHTS_SPCONV2_NATIVE, CONVOLUTION, OWN, DOWN_IN_BOX},
    {"Minkowski Convolution", 1, 4, no, yes, yes, no, yes, ONE, minkowski, minkowski_meets, gives_floor,
     SPOPS_WEIGHTS_MINKOWSKI, CONVOLUTION, CENTRE_ODD, DOWN_BY_FLOOR},
    {"Minkowski ChannelwiseConvolution", 1, 4, no, yes, yes, no, yes, CHANNELS, minkowski_channelwise, minkowski_meets, gives_floor,
     SPOPS_WEIGHTS_MINKOWSKI, CONVOLUTION, CENTRE_ODD, DOWN_BY_FLOOR},
    {"Minkowski GenerativeConvolutionTranspose", 1, 4, no, yes, yes, no, yes, ONE, minkowski, minkowski_transposed_meets, gives_touched,
     SPOPS_WEIGHTS_MINKOWSKI, TRANSPOSED, CENTRE_ODD, UP},
    {"TorchSparse stride 1", 3, 3, yes, no, no, no, no, ONE, torchsparse, torchsparse_meets, gives_inputs,
     SPOPS_WEIGHTS_TORCHSPARSE, CONVOLUTION, LOWER, INPUTS},
    {"TorchSparse hashmap", 3, 3, no, yes, no, yes, no, ONE, torchsparse, torchsparse_meets, gives_torchsparse,
     SPOPS_WEIGHTS_TORCHSPARSE, CONVOLUTION, LOWER, DOWN_TORCHSPARSE},
    {"TorchSparse on the fly", 3, 3, no, yes, no, yes, no, ONE, torchsparse_on_the_fly, torchsparse_fly_meets, gives_torchsparse_fly,
     SPOPS_WEIGHTS_TORCHSPARSE, CONVOLUTION, OWN, DOWN_IN_BOX},
    {"TorchSparse transposed", 3, 3, no, yes, no, no, no, ONE, torchsparse, torchsparse_inverse_meets, gives_torchsparse,
     SPOPS_WEIGHTS_TORCHSPARSE, INVERSE, LOWER, BEFORE},
    {"TorchSparse generative", 3, 3, no, yes, no, no, no, ONE, torchsparse, torchsparse_generative_meets, gives_torchsparse_up,
     SPOPS_WEIGHTS_TORCHSPARSE_GENERATIVE, TRANSPOSED, UPPER, UP_LOWER},
    {"WarpConvNet", 2, 3, no, yes, yes, no, yes, GROUPS, tap_group_in_out, warp_meets, gives_floor,
     SPOPS_WEIGHTS_WARPCONVNET, CONVOLUTION, CENTRE_ODD, DOWN_BY_FLOOR},
    {"WarpConvNet generative transposed", 2, 3, no, yes, yes, no, yes, GROUPS, tap_group_in_out, warp_transposed_meets, gives_touched,
     SPOPS_WEIGHTS_WARPCONVNET, TRANSPOSED, CENTRE_ODD, UP},
    {"FlexGEMM submanifold", 3, 3, yes, no, yes, no, no, ONE, spconv_krsc, flex_subm_meets, gives_inputs,
     SPOPS_WEIGHTS_FLEXGEMM, SUBMANIFOLD, CENTRE, INPUTS},
    {"FlexGEMM sparse_conv3d", 3, 3, no, yes, yes, yes, no, ONE, spconv_krsc, conv_meets, gives_touched_in_grid,
     SPOPS_WEIGHTS_FLEXGEMM, CONVOLUTION, OWN, DOWN_IN_BOX},
    {"fVDB SparseConv3d", 3, 3, no, yes, no, no, yes, ONE, fvdb, fvdb_meets, gives_touched,
     SPOPS_WEIGHTS_FVDB, CONVOLUTION, LOWER, DOWN},
    {"fVDB SparseConvTranspose3d", 3, 3, no, yes, no, no, yes, ONE, fvdb, fvdb_transposed_meets, gives_touched,
     SPOPS_WEIGHTS_FVDB, TRANSPOSED, LOWER, UP},
    {"fVDB 0.3 SparseConv3d", 3, 3, no, yes, no, no, yes, ONE, fvdb_0_3, fvdb_meets, gives_touched,
     SPOPS_WEIGHTS_FVDB_0_3, CONVOLUTION, LOWER, DOWN},
    {"fVDB 0.3 transposed", 3, 3, no, yes, no, no, yes, ONE, fvdb_0_3_transposed, fvdb_transposed_meets, gives_touched,
     SPOPS_WEIGHTS_FVDB_0_3_TRANSPOSED, TRANSPOSED, LOWER, UP},
    {"pointelligence", 3, 3, yes, no, no, no, yes, GROUPS, tap_group_in_out, point_meets, gives_inputs,
     SPOPS_WEIGHTS_POINTELLIGENCE, CONVOLUTION, CENTRE, INPUTS},
    {"pointelligence before", 3, 3, yes, no, no, no, yes, GROUPS, torch_transposed, point_meets, gives_inputs,
     SPOPS_WEIGHTS_TORCH_TRANSPOSED, CONVOLUTION, CENTRE, INPUTS},
};
// clang-format on
enum { NUM_PEERS = sizeof peers / sizeof *peers };

// ---- Layers and their rows ----------------------------------------------------------------------------

// Extents so small that brute force is quick, by dims.
static const int32_t extents[] = {0, 14, 8, 6, 4};

static layer random_layer(const peer_layer *peer, int32_t dims, test_rng *random)
{
    layer l = {.dims = dims};
    bool fits;
    do {
        fits = true;
        for (int a = 0; a < dims; ++a) {
            l.size[a] = 1 + (int32_t)test_rng_below(random, dims == 4 ? 3 : 4);
            if (peer->odd) l.size[a] |= 1;
            l.stride[a] = peer->strided ? 1 + (int32_t)test_rng_below(random, 3) : 1;
            l.dilation[a] = peer->dilated ? 1 + (int32_t)test_rng_below(random, 2) : 1;
            l.padding[a] = peer->padded ? (int32_t)test_rng_below(random, 3) : 0;
            l.extent[a] = extents[dims];
            fits &= conv_extent(&l, a) >= 1 && deconv_extent(&l, a) >= 1;
        }
    } while (!fits);
    l.groups = peer->groups == ONE ? 1 : 1 + (int32_t)test_rng_below(random, 3);
    l.in = peer->groups == CHANNELS ? 1 : 1 + (int32_t)test_rng_below(random, 3);
    l.out = peer->groups == CHANNELS ? 1 : 1 + (int32_t)test_rng_below(random, 3);
    return l;
}

// Sorted rows of a set in the box of the extents; negative: with the origin in its middle.
static rows random_rows(const peer_layer *peer, layer *l, test_rng *random)
{
    rows set = {0, malloc(MAX_ROWS * 5 * sizeof(int32_t))};
    int64_t cells = BATCHES;

    for (int a = 0; a < l->dims; ++a)
        cells *= l->extent[a], l->largest[a] = INT32_MIN;
    for (int64_t cell = 0; cell < cells; ++cell) {
        int32_t *row = set.at + set.n * (1 + l->dims);
        int64_t rest = cell;
        if (test_rng_below(random, 3) != 0) continue;
        for (int a = l->dims - 1; a >= 0; --a) {
            row[1 + a] = (int32_t)(rest % l->extent[a]) - (peer->negative ? l->extent[a] / 2 : 0);
            if (row[1 + a] > l->largest[a]) l->largest[a] = row[1 + a];
            rest /= l->extent[a];
        }
        row[0] = (int32_t)rest;
        ++set.n;
    }
    return set;
}

static int sorted_dims;
static int compare_rows(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    for (int i = 0; i <= sorted_dims; ++i)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

// Every output that a row of `in` makes by the library's rule, sorted.
static rows outputs_of(const peer_layer *peer, const layer *l, const rows *in)
{
    enum { LOW = -40, HIGH = 80 };
    const int width = 1 + l->dims;
    rows set = {0, NULL};
    int64_t room = 0, unique = 0;

    for (int64_t r = 0; r < in->n; ++r) {
        const int32_t *p = in->at + r * width;
        int32_t found[4][HIGH - LOW], count[4];
        int64_t many = 1;
        for (int a = 0; a < l->dims; ++a) {
            count[a] = 0;
            for (int32_t q = LOW; q < HIGH; ++q)
                if (peer->gives(peer, l, a, p[1 + a], q)) found[a][count[a]++] = q;
            many *= count[a];
        }
        if (set.n + many > room) {
            room = 2 * (set.n + many);
            set.at = realloc(set.at, (size_t)(room * width) * sizeof(int32_t));
        }
        for (int64_t k = 0; k < many; ++k) {
            int32_t *row = set.at + set.n++ * width;
            int64_t rest = k;
            row[0] = p[0];
            for (int a = 0; a < l->dims; ++a) {
                row[1 + a] = found[a][rest % count[a]];
                rest /= count[a];
            }
        }
    }
    sorted_dims = l->dims;
    if (set.n > 0) qsort(set.at, (size_t)set.n, (size_t)width * sizeof(int32_t), compare_rows);
    for (int64_t r = 0; r < set.n; ++r) {
        const int32_t *row = set.at + r * width;
        if (unique == 0 || compare_rows(set.at + (unique - 1) * width, row) != 0)
            memmove(set.at + unique++ * width, row, (size_t)width * sizeof(int32_t));
    }
    set.n = unique;
    return set;
}

// What the library computes; the number of pairs.
static int64_t reference(const peer_layer *peer, const layer *l, const rows *in, const rows *out,
                         const float *x, const float *w, double *y)
{
    const int width = 1 + l->dims;
    int64_t pairs = 0;

    memset(y, 0, (size_t)(out->n * l->groups * l->out) * sizeof *y);
    for (int64_t q = 0; q < out->n; ++q)
        for (int64_t p = 0; p < in->n; ++p) {
            const int32_t *at = out->at + q * width, *from = in->at + p * width;
            int32_t taps[4][8], count[4];
            int64_t many = at[0] == from[0];
            for (int a = 0; a < l->dims && many > 0; ++a) {
                count[a] = 0;
                for (int32_t c = 0; c < l->size[a]; ++c)
                    if (peer->meets(l, a, c, from[1 + a], at[1 + a])) taps[a][count[a]++] = c;
                many *= count[a];
            }
            pairs += many;
            for (int64_t k = 0; k < many; ++k) {
                int32_t c[4];
                int64_t rest = k;
                for (int a = 0; a < l->dims; ++a) {
                    c[a] = taps[a][rest % count[a]];
                    rest /= count[a];
                }
                for (int g = 0; g < l->groups; ++g)
                    for (int o = 0; o < l->out; ++o)
                        for (int i = 0; i < l->in; ++i)
                            y[q * l->groups * l->out + g * l->out + o] +=
                                (double)x[p * l->groups * l->in + g * l->in + i] *
                                (double)w[peer->element(l, c, g, i, o)];
            }
        }
    return pairs;
}

// ---- The same by the table of weights.h ----------------------------------------------------------------

static spops_context *ctx;

static void open_context(void)
{
    spops_context_options options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CPU;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
}

static void close_context(void)
{
    spops_context_destroy(ctx);
}

TestSuite(weights_peers, .init = open_context, .fini = close_context);

#define OK(call) cr_assert_eq((call), SPOPS_STATUS_OK, "%s", spops_last_error(ctx))

static spops_coords *set_of(const layer *l, const rows *set)
{
    spops_coords *coords;
    OK(spops_coords_create(ctx, l->dims, set->n, set->at, NULL, &coords));
    return coords;
}

static int32_t padding_by_table(const peer_layer *peer, const layer *l, int a)
{
    const int32_t size = l->size[a];
    switch (peer->pads) {
    case OWN: return l->padding[a];
    case CENTRE: return l->dilation[a] * (size / 2);
    case CENTRE_ODD: return size % 2 == 0 ? 0 : l->dilation[a] * (size / 2);
    case LOWER: return (size - 1) / 2;
    default: return size / 2;
    }
}

static spops_kernel_shape kernel_by_table(const peer_layer *peer, const layer *l)
{
    spops_kernel_shape kernel = spops_kernel_shape_cube(l->dims, 1, 1, 1);
    for (int a = 0; a < l->dims; ++a) {
        kernel.size[a] = l->size[a];
        kernel.stride[a] = l->stride[a];
        kernel.dilation[a] = l->dilation[a];
        kernel.padding[a] = padding_by_table(peer, l, a);
    }
    return kernel;
}

// The box that the notes of the table name.
static spops_coords_box box_by_table(const peer_layer *peer, const layer *l)
{
    spops_coords_box box = {{0}, {BATCHES - 1}};
    for (int a = 0; a < l->dims; ++a) {
        const int32_t size = l->size[a], s = l->stride[a], p = l->padding[a], n = l->extent[a];
        int32_t upper;
        if (peer->layout == SPOPS_WEIGHTS_TORCHSPARSE)
            upper = floor_div(l->largest[a] + 2 * p - (size - 1), s);
        else if (peer->outputs == UP_LOWER)
            upper = n * s - 1; // the spatial range of this test's layers
        else if (peer->outputs == UP_IN_BOX)
            upper = (n - 1) * s - 2 * p + size - 1;
        else
            upper = floor_div(n + 2 * p - l->dilation[a] * (size - 1) - 1, s);
        box.upper[1 + a] = upper;
    }
    return box;
}

static bool box_is_empty(const layer *l, const spops_coords_box *box)
{
    for (int a = 0; a < l->dims; ++a)
        if (box->upper[1 + a] < 0) return true;
    return false;
}

// The outputs of a layer on `in`; NULL: the table's box is empty.
static spops_coords *outputs_by_table(const peer_layer *peer, const layer *l,
                                      const spops_coords *in, const rows *theirs)
{
    spops_coords_options options = spops_coords_options_default();
    const spops_coords_box box = box_by_table(peer, l);
    spops_kernel_shape kernel = kernel_by_table(peer, l);
    spops_coords *out = NULL;
    bool floors = peer->outputs == DOWN_BY_FLOOR;
    bool boxed =
        peer->outputs == DOWN_IN_BOX || peer->outputs == UP_IN_BOX || peer->outputs == UP_LOWER;

    if (peer->outputs == GRID) return set_of(l, theirs);
    if (peer->outputs == DOWN_TORCHSPARSE || peer->outputs == BEFORE) {
        floors = peer->layout == SPOPS_WEIGHTS_TORCHSPARSE && torchsparse_floors(l);
        boxed = !floors;
    }
    options.order = SPOPS_COORDS_ORDER_LEXICOGRAPHIC;
    if (boxed) options.box = &box;
    if (boxed && box_is_empty(l, &box)) return NULL;
    for (int a = 0; a < l->dims; ++a) {
        if (floors) {
            kernel.size[a] = l->stride[a];
            kernel.dilation[a] = 1;
            kernel.padding[a] = 0;
        } else if (peer->layout == SPOPS_WEIGHTS_TORCHSPARSE)
            kernel.padding[a] = l->padding[a];
        else if (peer->outputs == UP_LOWER)
            kernel.padding[a] = (l->size[a] - 1) / 2;
    }
    if (peer->outputs == UP || peer->outputs == UP_IN_BOX || peer->outputs == UP_LOWER)
        OK(spops_coords_create_upsampled(ctx, in, &kernel, &options, &out));
    else
        OK(spops_coords_create_downsampled(ctx, in, &kernel, &options, &out));
    return out;
}

static void expect_rows(const char *name, const layer *l, const spops_coords *coords,
                        const rows *theirs)
{
    spops_coords_view view = spops_coords_view_default();
    int64_t n = 0;
    OK(spops_coords_get_view(ctx, coords, &view));
    OK(spops_coords_get_num_rows_sync(ctx, coords, &n));
    cr_assert_eq(n, theirs->n, "%s: %lld outputs, expected %lld", name, (long long)n,
                 (long long)theirs->n);
    cr_assert_arr_eq(view.rows, theirs->at, (size_t)(n * (1 + l->dims)) * sizeof(int32_t),
                     "%s: outputs differ", name);
}

static spops_kernel_map *map_by_table(const peer_layer *peer, const layer *l,
                                      const spops_coords *in, const spops_coords *out)
{
    static const spops_kernel_map_kind kinds[] = {SPOPS_MAP_SUBMANIFOLD, SPOPS_MAP_CONVOLUTION,
                                                  SPOPS_MAP_TRANSPOSED};
    spops_kernel_map_options options = spops_kernel_map_options_default();
    const spops_kernel_shape kernel = kernel_by_table(peer, l);
    spops_kernel_map *down, *map;

    options.contents = SPOPS_MAP_TABLE | SPOPS_MAP_PAIRS;
    if (peer->map != INVERSE) {
        OK(spops_kernel_map_create(ctx, kinds[peer->map], &kernel, in, out, &options, &map));
        return map;
    }
    OK(spops_kernel_map_create(ctx, SPOPS_MAP_CONVOLUTION, &kernel, out, in, &options, &down));
    OK(spops_kernel_map_create_inverse(ctx, down, &options, &map));
    spops_kernel_map_destroy(down);
    return map;
}

// y by the library here, its weights loaded as `layout`.
static void run_layer(const peer_layer *peer, const layer *l, spops_weights_layout layout,
                      const spops_coords *in, const spops_coords *out, int64_t num_in,
                      int64_t num_out, float *x, const float *theirs, float *y)
{
    const int64_t c_in = l->groups * l->in, c_out = l->groups * l->out;
    const spops_kernel_shape kernel = kernel_by_table(peer, l);
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_conv_layer choices = spops_conv_layer_default();
    float *w = malloc((size_t)(volume(l) * l->in * c_out) * sizeof *w);
    spops_kernel_map *map = map_by_table(peer, l, in, out);
    spops_sparseconv *conv;

    options.dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND;
    choices.groups = l->groups;
    OK(spops_weights_load(ctx, layout, &kernel, l->groups, c_in, c_out, SPOPS_DTYPE_F32, theirs,
                          w));
    OK(spops_sparseconv_create(ctx, map, &options, &conv));
    OK(spops_sparseconv_execute(ctx, conv, spops_matrix_dense(x, num_in, c_in, SPOPS_DTYPE_F32),
                                spops_matrix_dense(w, volume(l) * l->in, c_out, SPOPS_DTYPE_F32),
                                &choices, spops_matrix_dense(y, num_out, c_out, SPOPS_DTYPE_F32)));
    spops_sparseconv_destroy(conv);
    spops_kernel_map_destroy(map);
    free(w);
}

// One random layer. Its pairs, and how many elements differ when the weights are loaded as `layout`.
typedef struct outcome {
    int64_t pairs, elements, differ;
} outcome;

static float *random_numbers(int64_t n, int32_t most, test_rng *random)
{
    float *v = malloc((size_t)(n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; ++i)
        v[i] = (float)((int32_t)test_rng_below(random, 2 * most + 1) - most);
    return v;
}

static outcome try_layer(const peer_layer *peer, spops_weights_layout layout, int32_t dims,
                         test_rng *random)
{
    layer l = random_layer(peer, dims, random);
    const rows given = random_rows(peer, &l, random), made = outputs_of(peer, &l, &given);
    spops_coords *fine = set_of(&l, &given), *other;
    const bool back = peer->map == INVERSE; // the layer goes from what was made to what was given
    const rows *in = back ? &made : &given, *out = back ? &given : &made;
    const int64_t c_in = l.groups * l.in, c_out = l.groups * l.out;
    float *x = random_numbers(in->n * c_in, 4, random);
    float *w = random_numbers(volume(&l) * l.in * c_out, 8, random);
    float *y = malloc((size_t)(out->n * c_out + 1) * sizeof *y);
    double *expected = malloc((size_t)(out->n * c_out + 1) * sizeof *expected);
    outcome result = {0, out->n * c_out, 0};

    if (layout == SPOPS_WEIGHTS_SPCONV2 && volume(&l) == 1 && is_strided(&l))
        layout = SPOPS_WEIGHTS_TORCH; // as docs/weights.md says
    if (peer->outputs == INPUTS)
        other = set_of(&l, &made);
    else
        other = outputs_by_table(peer, &l, fine, &made);
    if (other == NULL)
        cr_assert_eq(made.n, 0, "%s", peer->name);
    else {
        expect_rows(peer->name, &l, other, &made);
        result.pairs = reference(peer, &l, in, out, x, w, expected);
        run_layer(peer, &l, layout, back ? other : fine,
                  peer->map == SUBMANIFOLD ? fine
                  : back                   ? fine
                                           : other,
                  in->n, out->n, x, w, y);
        for (int64_t i = 0; i < result.elements; ++i)
            result.differ += !((double)y[i] == expected[i]);
    }
    spops_coords_destroy(other);
    spops_coords_destroy(fine);
    free(expected), free(y), free(w), free(x), free(made.at), free(given.at);
    return result;
}

enum { LAYERS = 10 };

Test(weights_peers, agree_with_the_library)
{
    test_rng random = test_rng_make(1);
    for (int i = 0; i < NUM_PEERS; ++i)
        for (int32_t dims = peers[i].min_dims; dims <= peers[i].max_dims; ++dims) {
            int64_t pairs = 0;
            for (int k = 0; k < LAYERS; ++k) {
                const outcome at = try_layer(&peers[i], peers[i].layout, dims, &random);
                pairs += at.pairs;
                cr_assert_eq(at.differ, 0, "%s, %d axes, seed %llu: %lld of %lld outputs differ",
                             peers[i].name, (int)dims, (unsigned long long)test_seed(),
                             (long long)at.differ, (long long)at.elements);
            }
            cr_assert_gt(pairs, 40, "%s, %d axes: %lld pairs", peers[i].name, (int)dims,
                         (long long)pairs);
        }
}

// Weights in another layout of the same size give other sums: the comparison above can fail.
Test(weights_peers, another_layout_gives_other_sums)
{
    static const struct {
        const char *name;
        spops_weights_layout taken;
    } wrong[] = {{"nn.ConvTranspose", SPOPS_WEIGHTS_WARPCONVNET},
                 {"WarpConvNet", SPOPS_WEIGHTS_CANONICAL},
                 {"pointelligence", SPOPS_WEIGHTS_CANONICAL},
                 {"TorchSparse generative", SPOPS_WEIGHTS_TORCHSPARSE},
                 {"fVDB 0.3 SparseConv3d", SPOPS_WEIGHTS_FVDB},
                 {"fVDB 0.3 transposed", SPOPS_WEIGHTS_FVDB_0_3},
                 {"spconv 2 native SparseConv", SPOPS_WEIGHTS_SPCONV1},
                 {"Minkowski Convolution", SPOPS_WEIGHTS_TORCHSPARSE}};
    test_rng random = test_rng_make(2);

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        int64_t differ = 0;
        for (int p = 0; p < NUM_PEERS; ++p) {
            if (strcmp(peers[p].name, wrong[i].name) != 0) continue;
            for (int k = 0; k < LAYERS; ++k)
                differ += try_layer(&peers[p], wrong[i].taken, 3, &random).differ;
        }
        cr_assert_gt(differ, 0, "%s taken for %s", wrong[i].name,
                     spops_weights_layout_name(wrong[i].taken));
    }
}

// Every layout that is a library's has a layer here, but for the one that is refused.
Test(weights_peers, cover_every_layout)
{
    for (int layout = SPOPS_WEIGHTS_TORCH;
         strcmp(spops_weights_layout_name((spops_weights_layout)layout), "?") != 0; ++layout) {
        bool found = layout == SPOPS_WEIGHTS_MINKOWSKI_CROSS;
        for (int p = 0; p < NUM_PEERS; ++p)
            found |= (int)peers[p].layout == layout;
        cr_assert(found, "no layer of %s", spops_weights_layout_name((spops_weights_layout)layout));
    }
}
