// SPDX-License-Identifier: Apache-2.0
// Weights of convolutions between the canonical layout and those of other libraries. A layout is a
// stride for each index; the copy walks the canonical order.
#include "spops/weights.h"

#include <stdbool.h>
#include <string.h>

#include "core/status.h"

// Where a layout keeps the three parts of an index, slowest first.
typedef enum part { TAP, IN, OUT } part;

typedef struct layout_rule {
    const char *name;
    part parts[3];
    bool first_axis_fastest;          // of the taps
    bool even_taps_last_axis_fastest; // the rule above is for an odd number of taps only
} layout_rule;

static const layout_rule layout_rules[] = {
    [SPOPS_WEIGHTS_CANONICAL] = {"canonical", {TAP, IN, OUT}, false, false},
    [SPOPS_WEIGHTS_TORCH] = {"torch", {OUT, IN, TAP}, false, false},
    [SPOPS_WEIGHTS_TORCH_TRANSPOSED] = {"torch_transposed", {IN, OUT, TAP}, false, false},
    [SPOPS_WEIGHTS_SPCONV1] = {"spconv1", {TAP, IN, OUT}, false, false},
    [SPOPS_WEIGHTS_SPCONV2] = {"spconv2", {OUT, TAP, IN}, false, false},
    [SPOPS_WEIGHTS_MINKOWSKI] = {"minkowski", {TAP, IN, OUT}, true, false},
    [SPOPS_WEIGHTS_TORCHSPARSE] = {"torchsparse", {TAP, IN, OUT}, true, true},
    [SPOPS_WEIGHTS_WARPCONVNET] = {"warpconvnet", {TAP, IN, OUT}, false, false},
    [SPOPS_WEIGHTS_FLEXGEMM] = {"flexgemm", {OUT, TAP, IN}, false, false},
    [SPOPS_WEIGHTS_FVDB] = {"fvdb", {OUT, IN, TAP}, false, false},
};
enum { NUM_LAYOUTS = sizeof layout_rules / sizeof *layout_rules };

// A kernel's weights in some layout, in elements.
typedef struct weights_strides {
    int64_t axis[SPOPS_MAX_DIMS]; // of a step along an axis of the kernel
    int64_t in, out;
} weights_strides;

static weights_strides strides_of(const layout_rule *rule, const spops_kernel_shape *kernel,
                                  int64_t num_taps, int64_t in_channels, int64_t out_channels)
{
    weights_strides strides = {{0}, 0, 0};
    const bool first_fastest =
        rule->first_axis_fastest && !(rule->even_taps_last_axis_fastest && num_taps % 2 == 0);
    int64_t step = 1, tap_step = 0;

    for (int i = 2; i >= 0; --i) {
        switch (rule->parts[i]) {
        case TAP: tap_step = step, step *= num_taps; break;
        case IN: strides.in = step, step *= in_channels; break;
        case OUT: strides.out = step, step *= out_channels; break;
        }
    }
    for (int i = 0; i < kernel->dims; ++i) {
        const int axis = first_fastest ? i : kernel->dims - 1 - i;
        strides.axis[axis] = tap_step;
        tap_step *= kernel->size[axis];
    }
    return strides;
}

// Where tap number k (canonical) begins.
static int64_t tap_offset(const weights_strides *strides, const spops_kernel_shape *kernel,
                          int64_t k)
{
    int64_t offset = 0;
    for (int axis = kernel->dims - 1; axis >= 0; --axis) {
        offset += k % kernel->size[axis] * strides->axis[axis];
        k /= kernel->size[axis];
    }
    return offset;
}

// The arguments of a conversion, checked.
static spops_status check_weights(spops_context *ctx, const char *call, spops_weights_layout layout,
                                  const spops_kernel_shape *kernel, int64_t in_channels,
                                  int64_t out_channels, spops_dtype dtype, const void *from,
                                  const void *to)
{
    int64_t num_taps, elements;
    uintptr_t from_address = (uintptr_t)from, to_address = (uintptr_t)to;
    size_t bytes;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_REQUIRE(ctx, (int)layout >= 0 && (int)layout < NUM_LAYOUTS,
                  "%s: layout is %d, expected 0 to %d", call, (int)layout, NUM_LAYOUTS - 1);
    SPOPS_REQUIRE(ctx, kernel != NULL, "%s: kernel is NULL", call);
    num_taps = spops_kernel_shape_num_taps(kernel);
    SPOPS_REQUIRE(ctx, num_taps > 0,
                  "%s: kernel has no taps, expected 1 to %d axes of size 1 to %d", call,
                  SPOPS_MAX_DIMS, SPOPS_MAX_KERNEL_SIZE);
    SPOPS_REQUIRE(ctx, in_channels >= 1, "%s: in_channels is %" PRId64 ", expected 1 or more", call,
                  in_channels);
    SPOPS_REQUIRE(ctx, out_channels >= 1, "%s: out_channels is %" PRId64 ", expected 1 or more",
                  call, out_channels);
    SPOPS_REQUIRE(ctx, spops_dtype_bytes(dtype) > 0,
                  "%s: dtype is %s (%d), expected one of whole bytes", call,
                  spops_dtype_name(dtype), (int)dtype);
    SPOPS_REQUIRE(ctx,
                  !__builtin_mul_overflow(num_taps, in_channels, &elements) &&
                      !__builtin_mul_overflow(elements, out_channels, &elements) &&
                      !__builtin_mul_overflow((size_t)elements, spops_dtype_bytes(dtype), &bytes) &&
                      bytes <= PTRDIFF_MAX,
                  "%s: %" PRId64 " taps of %" PRId64 " x %" PRId64 " are too large", call, num_taps,
                  in_channels, out_channels);
    SPOPS_REQUIRE(ctx, from != NULL, "%s: from is NULL", call);
    SPOPS_REQUIRE(ctx, to != NULL, "%s: to is NULL", call);
    SPOPS_REQUIRE(ctx, from_address >= to_address + bytes || to_address >= from_address + bytes,
                  "%s: to overlaps from", call);
    return SPOPS_STATUS_OK;
}

// Copy between canonical weights and those with `strides`; load: towards the canonical ones.
static void convert(const weights_strides *strides, const spops_kernel_shape *kernel,
                    int64_t in_channels, int64_t out_channels, size_t element, bool load,
                    const void *from, void *to)
{
    const int64_t num_taps = spops_kernel_shape_num_taps(kernel);
    int64_t canonical = 0;

    for (int64_t k = 0; k < num_taps; ++k) {
        const int64_t tap = tap_offset(strides, kernel, k);
        for (int64_t c = 0; c < in_channels; ++c) {
            for (int64_t o = 0; o < out_channels; ++o, ++canonical) {
                const int64_t other = tap + c * strides->in + o * strides->out;
                memcpy((char *)to + (size_t)(load ? canonical : other) * element,
                       (const char *)from + (size_t)(load ? other : canonical) * element, element);
            }
        }
    }
}

static spops_status convert_checked(spops_context *ctx, const char *call, bool load,
                                    spops_weights_layout layout, const spops_kernel_shape *kernel,
                                    int64_t in_channels, int64_t out_channels, spops_dtype dtype,
                                    const void *from, void *to)
{
    weights_strides strides;

    SPOPS_TRY(check_weights(ctx, call, layout, kernel, in_channels, out_channels, dtype, from, to));
    strides = strides_of(&layout_rules[layout], kernel, spops_kernel_shape_num_taps(kernel),
                         in_channels, out_channels);
    convert(&strides, kernel, in_channels, out_channels, spops_dtype_bytes(dtype), load, from, to);
    return SPOPS_STATUS_OK;
}

spops_status spops_weights_load(spops_context *ctx, spops_weights_layout layout,
                                const spops_kernel_shape *kernel, int64_t in_channels,
                                int64_t out_channels, spops_dtype dtype, const void *from, void *to)
{
    return convert_checked(ctx, "weights_load", true, layout, kernel, in_channels, out_channels,
                           dtype, from, to);
}

spops_status spops_weights_save(spops_context *ctx, spops_weights_layout layout,
                                const spops_kernel_shape *kernel, int64_t in_channels,
                                int64_t out_channels, spops_dtype dtype, const void *from, void *to)
{
    return convert_checked(ctx, "weights_save", false, layout, kernel, in_channels, out_channels,
                           dtype, from, to);
}

const char *spops_weights_layout_name(spops_weights_layout layout)
{
    return (int)layout >= 0 && (int)layout < NUM_LAYOUTS ? layout_rules[layout].name : "?";
}
