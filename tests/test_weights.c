// SPDX-License-Identifier: Apache-2.0
// Weights of other libraries against golden tensors that were written out by hand: a kernel of
// 2 x 1 x 3 or 3 x 1 x 3 taps, all different, 2 input and 2 output channels. An element's value
// says what it is: 1000 t_0 + 100 t_2 + 10 in + out.
#include <criterion/criterion.h>
#include <stdbool.h>
#include <string.h>

#include "spops/weights.h"

enum { IN = 2, OUT = 2, MAX_ELEMENTS = 9 * IN * OUT };

typedef struct golden {
    spops_weights_layout layout;
    int32_t size_0; // the kernel is size_0 x 1 x 3
    int16_t values[MAX_ELEMENTS];
} golden;

#define TAP(t0, t2)            1000 * t0 + 100 * t2
#define TAP_IN_OUT(t0, t2)     TAP(t0, t2) + 0, TAP(t0, t2) + 1, TAP(t0, t2) + 10, TAP(t0, t2) + 11
#define TAP_OUT_IN(t0, t2)     TAP(t0, t2) + 0, TAP(t0, t2) + 10, TAP(t0, t2) + 1, TAP(t0, t2) + 11
#define AXIS_0_FASTEST(in_out) /* six taps of one pair of channels */                              \
    TAP(0, 0) + in_out, TAP(1, 0) + in_out, TAP(0, 1) + in_out, TAP(1, 1) + in_out,                \
        TAP(0, 2) + in_out, TAP(1, 2) + in_out
#define IN_OUT_FIRST(in_out, t0) /* three taps of one pair of channels */                          \
    TAP(t0, 0) + in_out, TAP(t0, 1) + in_out, TAP(t0, 2) + in_out
#define TAPS_THEN_IN(out, t0)                                                                      \
    TAP(t0, 0) + out, TAP(t0, 0) + 10 + out, TAP(t0, 1) + out, TAP(t0, 1) + 10 + out,              \
        TAP(t0, 2) + out, TAP(t0, 2) + 10 + out
#define LAST_AXIS_FASTEST_2                                                                        \
    {                                                                                              \
        TAP_IN_OUT(0, 0), TAP_IN_OUT(0, 1), TAP_IN_OUT(0, 2), TAP_IN_OUT(1, 0), TAP_IN_OUT(1, 1),  \
            TAP_IN_OUT(1, 2)                                                                       \
    }

static const golden goldens[] = {
    {SPOPS_WEIGHTS_CANONICAL, 2, LAST_AXIS_FASTEST_2},
    {SPOPS_WEIGHTS_SPCONV1, 2, LAST_AXIS_FASTEST_2},
    {SPOPS_WEIGHTS_WARPCONVNET, 2, LAST_AXIS_FASTEST_2},
    {SPOPS_WEIGHTS_TORCHSPARSE, 2, LAST_AXIS_FASTEST_2},
    {SPOPS_WEIGHTS_TORCHSPARSE,
     3,
     {TAP_IN_OUT(0, 0), TAP_IN_OUT(1, 0), TAP_IN_OUT(2, 0), TAP_IN_OUT(0, 1), TAP_IN_OUT(1, 1),
      TAP_IN_OUT(2, 1), TAP_IN_OUT(0, 2), TAP_IN_OUT(1, 2), TAP_IN_OUT(2, 2)}},
    {SPOPS_WEIGHTS_MINKOWSKI,
     2,
     {TAP_IN_OUT(0, 0), TAP_IN_OUT(1, 0), TAP_IN_OUT(0, 1), TAP_IN_OUT(1, 1), TAP_IN_OUT(0, 2),
      TAP_IN_OUT(1, 2)}},
    {SPOPS_WEIGHTS_TORCH, /* out 0: in 0, in 1; then out 1 */
     2,
     {IN_OUT_FIRST(0, 0), IN_OUT_FIRST(0, 1), IN_OUT_FIRST(10, 0), IN_OUT_FIRST(10, 1),
      IN_OUT_FIRST(1, 0), IN_OUT_FIRST(1, 1), IN_OUT_FIRST(11, 0), IN_OUT_FIRST(11, 1)}},
    {SPOPS_WEIGHTS_FVDB,
     2,
     {IN_OUT_FIRST(0, 0), IN_OUT_FIRST(0, 1), IN_OUT_FIRST(10, 0), IN_OUT_FIRST(10, 1),
      IN_OUT_FIRST(1, 0), IN_OUT_FIRST(1, 1), IN_OUT_FIRST(11, 0), IN_OUT_FIRST(11, 1)}},
    {SPOPS_WEIGHTS_TORCH_TRANSPOSED, /* in 0: out 0, out 1; then in 1 */
     2,
     {IN_OUT_FIRST(0, 0), IN_OUT_FIRST(0, 1), IN_OUT_FIRST(1, 0), IN_OUT_FIRST(1, 1),
      IN_OUT_FIRST(10, 0), IN_OUT_FIRST(10, 1), IN_OUT_FIRST(11, 0), IN_OUT_FIRST(11, 1)}},
    {SPOPS_WEIGHTS_FVDB_0_3, /* axis 0 fastest */
     2,
     {AXIS_0_FASTEST(0), AXIS_0_FASTEST(10), AXIS_0_FASTEST(1), AXIS_0_FASTEST(11)}},
    {SPOPS_WEIGHTS_FVDB_0_3_TRANSPOSED,
     2,
     {AXIS_0_FASTEST(0), AXIS_0_FASTEST(1), AXIS_0_FASTEST(10), AXIS_0_FASTEST(11)}},
    {SPOPS_WEIGHTS_TORCHSPARSE_GENERATIVE,
     2,
     {TAP_IN_OUT(1, 2), TAP_IN_OUT(1, 1), TAP_IN_OUT(1, 0), TAP_IN_OUT(0, 2), TAP_IN_OUT(0, 1),
      TAP_IN_OUT(0, 0)}},
    {SPOPS_WEIGHTS_TORCHSPARSE_GENERATIVE,
     3,
     {TAP_IN_OUT(2, 2), TAP_IN_OUT(1, 2), TAP_IN_OUT(0, 2), TAP_IN_OUT(2, 1), TAP_IN_OUT(1, 1),
      TAP_IN_OUT(0, 1), TAP_IN_OUT(2, 0), TAP_IN_OUT(1, 0), TAP_IN_OUT(0, 0)}},
    {SPOPS_WEIGHTS_POINTELLIGENCE, 2, LAST_AXIS_FASTEST_2},
    {SPOPS_WEIGHTS_SPCONV2_NATIVE,
     2,
     {TAP_OUT_IN(0, 0), TAP_OUT_IN(0, 1), TAP_OUT_IN(0, 2), TAP_OUT_IN(1, 0), TAP_OUT_IN(1, 1),
      TAP_OUT_IN(1, 2)}},
    {SPOPS_WEIGHTS_SPCONV2,
     2,
     {TAPS_THEN_IN(0, 0), TAPS_THEN_IN(0, 1), TAPS_THEN_IN(1, 0), TAPS_THEN_IN(1, 1)}},
    {SPOPS_WEIGHTS_FLEXGEMM,
     2,
     {TAPS_THEN_IN(0, 0), TAPS_THEN_IN(0, 1), TAPS_THEN_IN(1, 0), TAPS_THEN_IN(1, 1)}},
};

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

TestSuite(weights, .init = open_context, .fini = close_context);

static spops_kernel_shape shape_of(int32_t size_0)
{
    spops_kernel_shape kernel = spops_kernel_shape_cube(3, 1, 1, 1);
    kernel.size[0] = size_0;
    kernel.size[2] = 3;
    return kernel;
}

// Canonical weight number i of a kernel of size_0 x 1 x 3.
static int16_t canonical_value(int i)
{
    const int out = i % OUT, in = i / OUT % IN, tap = i / (IN * OUT);
    return (int16_t)(1000 * (tap / 3) + 100 * (tap % 3) + 10 * in + out);
}

Test(weights, match_the_golden_tensors)
{
    for (size_t g = 0; g < sizeof goldens / sizeof *goldens; ++g) {
        const golden *c = &goldens[g];
        const spops_kernel_shape kernel = shape_of(c->size_0);
        const int elements = c->size_0 * 3 * IN * OUT;
        const char *name = spops_weights_layout_name(c->layout);
        int16_t loaded[MAX_ELEMENTS], saved[MAX_ELEMENTS];

        memset(loaded, 0xee, sizeof loaded);
        memset(saved, 0xee, sizeof saved);
        cr_assert_eq(spops_weights_load(ctx, c->layout, &kernel, 1, IN, OUT, SPOPS_DTYPE_F16,
                                        c->values, loaded),
                     SPOPS_STATUS_OK, "%s", spops_last_error(ctx));
        for (int i = 0; i < elements; ++i)
            cr_assert_eq(loaded[i], canonical_value(i), "%s: canonical %d is %d, expected %d", name,
                         i, loaded[i], canonical_value(i));
        cr_assert_eq(
            spops_weights_save(ctx, c->layout, &kernel, 1, IN, OUT, SPOPS_DTYPE_F16, loaded, saved),
            SPOPS_STATUS_OK);
        cr_assert_arr_eq(saved, c->values, (size_t)elements * sizeof *saved, "%s", name);
        for (int i = elements; i < MAX_ELEMENTS; ++i) /* nothing after the end */
            cr_assert(loaded[i] == (int16_t)0xeeee && saved[i] == (int16_t)0xeeee);
    }
}

// Two groups of 2 input and 3 output channels, one tap: the value 100 group + 10 in + out says where an
// element of the layer's parameter belongs.
Test(weights, match_the_golden_tensors_of_groups)
{
    static const struct {
        spops_weights_layout layout;
        int16_t values[2 * 2 * 3];
    } golden_groups[] = {
        {SPOPS_WEIGHTS_CANONICAL, {0, 1, 2, 100, 101, 102, 10, 11, 12, 110, 111, 112}},
        {SPOPS_WEIGHTS_TORCH, {0, 10, 1, 11, 2, 12, 100, 110, 101, 111, 102, 112}},
        {SPOPS_WEIGHTS_TORCH_TRANSPOSED, {0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112}},
        {SPOPS_WEIGHTS_WARPCONVNET, {0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112}},
        {SPOPS_WEIGHTS_POINTELLIGENCE, {0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112}},
    };
    const int16_t *canonical = golden_groups[0].values;
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 1, 1, 1);

    for (size_t g = 0; g < sizeof golden_groups / sizeof *golden_groups; ++g) {
        const char *name = spops_weights_layout_name(golden_groups[g].layout);
        int16_t loaded[12], saved[12];
        cr_assert_eq(spops_weights_load(ctx, golden_groups[g].layout, &kernel, 2, 4, 6,
                                        SPOPS_DTYPE_F16, golden_groups[g].values, loaded),
                     SPOPS_STATUS_OK);
        cr_assert_arr_eq(loaded, canonical, sizeof loaded, "%s", name);
        cr_assert_eq(spops_weights_save(ctx, golden_groups[g].layout, &kernel, 2, 4, 6,
                                        SPOPS_DTYPE_F16, loaded, saved),
                     SPOPS_STATUS_OK);
        cr_assert_arr_eq(saved, golden_groups[g].values, sizeof saved, "%s", name);
    }
}

// Every layout has a golden tensor.
Test(weights, cover_every_layout)
{
    for (int layout = 0; strcmp(spops_weights_layout_name((spops_weights_layout)layout), "?") != 0;
         ++layout) {
        bool found = layout == SPOPS_WEIGHTS_MINKOWSKI_CROSS; // refused, below
        for (size_t g = 0; g < sizeof goldens / sizeof *goldens; ++g)
            found |= (int)goldens[g].layout == layout;
        cr_assert(found, "no golden tensor for %s",
                  spops_weights_layout_name((spops_weights_layout)layout));
    }
}

// There and back is the same bytes, in 1 to 4 dimensions and with elements of 1, 2 and 4 bytes.
Test(weights, survive_a_round_trip)
{
    static const spops_dtype dtypes[] = {SPOPS_DTYPE_I8, SPOPS_DTYPE_BF16, SPOPS_DTYPE_F32};
    static unsigned char from[5 * 2 * 3 * 2 * 7 * 3 * 4], there[sizeof from], back[sizeof from];

    for (size_t i = 0; i < sizeof from; ++i)
        from[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims) {
        spops_kernel_shape kernel = spops_kernel_shape_cube(dims, 1, 1, 1);
        static const int32_t sizes[SPOPS_MAX_DIMS] = {5, 2, 3, 2};
        memcpy(kernel.size, sizes, sizeof sizes);
        for (int layout = 0; layout < SPOPS_WEIGHTS_MINKOWSKI_CROSS; ++layout) {
            for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; ++d) {
                const size_t bytes = (size_t)spops_kernel_shape_num_taps(&kernel) * 7 * 3 *
                                     spops_dtype_bytes(dtypes[d]);
                memset(there, 0x5a, sizeof there);
                memset(back, 0xa5, sizeof back);
                cr_assert_eq(spops_weights_load(ctx, (spops_weights_layout)layout, &kernel, 1, 7, 3,
                                                dtypes[d], from, there),
                             SPOPS_STATUS_OK);
                cr_assert_eq(spops_weights_save(ctx, (spops_weights_layout)layout, &kernel, 1, 7, 3,
                                                dtypes[d], there, back),
                             SPOPS_STATUS_OK);
                cr_assert_arr_eq(back, from, bytes);
            }
        }
    }
}

static void expect_refused(spops_status status, const char *message)
{
    cr_assert_eq(status, SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_str_eq(spops_last_error(ctx), message);
}

// spconv 2 multiplies by a kernel of one tap, [out][1]..[1][in], as if it were [in][out].
Test(weights, spconv2_of_one_tap_is_in_out)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 1, 1, 1);
    const float from[6] = {1, 2, 3, 4, 5, 6};
    float to[6], back[6];

    cr_assert_eq(
        spops_weights_load(ctx, SPOPS_WEIGHTS_SPCONV2, &kernel, 1, 2, 3, SPOPS_DTYPE_F32, from, to),
        SPOPS_STATUS_OK);
    cr_assert_arr_eq(to, from, sizeof from);
    cr_assert_eq(
        spops_weights_save(ctx, SPOPS_WEIGHTS_SPCONV2, &kernel, 1, 2, 3, SPOPS_DTYPE_F32, to, back),
        SPOPS_STATUS_OK);
    cr_assert_arr_eq(back, from, sizeof from);
}

Test(weights, refuse_bad_arguments)
{
    const spops_kernel_shape kernel = shape_of(2);
    spops_kernel_shape no_taps = kernel;
    int16_t from[MAX_ELEMENTS] = {1}, to[MAX_ELEMENTS];
    const spops_weights_layout torch = SPOPS_WEIGHTS_TORCH;
    const spops_dtype f16 = SPOPS_DTYPE_F16;

    memset(to, 0xee, sizeof to);
    no_taps.size[1] = 0;
    expect_refused(
        spops_weights_load(ctx, (spops_weights_layout)16, &kernel, 1, IN, OUT, f16, from, to),
        "weights_load: layout is 16, expected 0 to 15");
    expect_refused(spops_weights_load(ctx, torch, NULL, 1, IN, OUT, f16, from, to),
                   "weights_load: kernel is NULL");
    expect_refused(spops_weights_load(ctx, torch, &no_taps, 1, IN, OUT, f16, from, to),
                   "weights_load: kernel has no taps, expected 1 to 4 axes of size 1 to 7");
    expect_refused(spops_weights_load(ctx, torch, &kernel, 1, 0, OUT, f16, from, to),
                   "weights_load: in_channels is 0, expected 1 or more");
    expect_refused(spops_weights_save(ctx, torch, &kernel, 1, IN, -1, f16, from, to),
                   "weights_save: out_channels is -1, expected 1 or more");
    expect_refused(
        spops_weights_save(ctx, torch, &kernel, 1, IN, OUT, SPOPS_DTYPE_F4E2M1, from, to),
        "weights_save: dtype is f4e2m1 (5), expected one of whole bytes");
    expect_refused(spops_weights_load(ctx, torch, &kernel, 1, INT64_MAX / 8, OUT, f16, from, to),
                   "weights_load: 6 taps of 1152921504606846975 x 2 are too large");
    expect_refused(spops_weights_load(ctx, torch, &kernel, 1, IN, OUT, f16, NULL, to),
                   "weights_load: from is NULL");
    expect_refused(spops_weights_load(ctx, torch, &kernel, 1, IN, OUT, f16, from, NULL),
                   "weights_load: to is NULL");
    expect_refused(spops_weights_load(ctx, torch, &kernel, 1, IN, OUT, f16, from, from + 1),
                   "weights_load: to overlaps from");
    expect_refused(spops_weights_load(ctx, torch, &kernel, -1, IN, OUT, f16, from, to),
                   "weights_load: groups is -1, expected 0 or more");
    expect_refused(spops_weights_load(ctx, torch, &kernel, 3, IN, 3, f16, from, to),
                   "weights_load: in_channels is 2, expected a multiple of groups = 3");
    expect_refused(spops_weights_load(ctx, torch, &kernel, 2, IN, 3, f16, from, to),
                   "weights_load: out_channels is 3, expected a multiple of groups = 2");
    expect_refused(
        spops_weights_load(ctx, SPOPS_WEIGHTS_SPCONV2, &kernel, 2, IN, OUT, f16, from, to),
        "weights_load: groups is 2, expected 1: layers of spconv2 have no groups");
    expect_refused(
        spops_weights_load(ctx, SPOPS_WEIGHTS_MINKOWSKI, &kernel, 2, 4, 2, f16, from, to),
        "weights_load: groups is 2, expected 1, or 4 as in_channels and out_channels: "
        "layers of minkowski have no other groups");
    cr_assert_eq(
        spops_weights_load(ctx, SPOPS_WEIGHTS_MINKOWSKI_CROSS, &kernel, 1, IN, OUT, f16, from, to),
        SPOPS_STATUS_NOT_SUPPORTED);
    cr_assert_str_eq(spops_last_error(ctx),
                     "weights_load: layout is minkowski_cross, whose taps lie on the axes alone, "
                     "expected that of a kernel with a tap at every place of its box");
    cr_assert_eq(spops_weights_load(NULL, torch, &kernel, 1, IN, OUT, f16, from, to),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    for (size_t i = 0; i < MAX_ELEMENTS; ++i)
        cr_assert_eq(to[i], (int16_t)0xeeee);
}
