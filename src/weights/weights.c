// SPDX-License-Identifier: Apache-2.0
// Weights of convolutions between the canonical layout and those of other libraries. A layout is a
// stride for each part of an index; the copy walks the canonical order.
#include "spops/weights.h"

#include <stdbool.h>
#include <string.h>

#include "core/check.h"

// The parts of an index into weights. IN and OUT are channels of one group.
typedef enum part { TAP, GROUP, IN, OUT, NUM_PARTS } part;

// Which axis of the kernel runs fastest among the taps.
typedef enum tap_order {
    LAST_FASTEST,
    FIRST_FASTEST,
    FIRST_FASTEST_IF_ODD // where the number of taps is odd; LAST_FASTEST where it is even
} tap_order;

// Which numbers of groups the layers of a library have.
typedef enum group_rule {
    ANY_GROUPS,
    ONE_GROUP,
    ONE_OR_CHANNELWISE // as many groups as there are input and output channels
} group_rule;

typedef struct layout_rule {
    const char *name;
    part parts[NUM_PARTS]; // slowest first
    tap_order order;
    bool mirrored; // tap t of an axis stands where size - 1 - t would
    group_rule groups;
} layout_rule;

static const layout_rule layout_rules[] = {
    [SPOPS_WEIGHTS_CANONICAL] =
        {"canonical", {TAP, IN, GROUP, OUT}, LAST_FASTEST, false, ANY_GROUPS},
    [SPOPS_WEIGHTS_TORCH] = {"torch", {GROUP, OUT, IN, TAP}, LAST_FASTEST, false, ANY_GROUPS},
    [SPOPS_WEIGHTS_TORCH_TRANSPOSED] =
        {"torch_transposed", {GROUP, IN, OUT, TAP}, LAST_FASTEST, false, ANY_GROUPS},
    [SPOPS_WEIGHTS_SPCONV1] = {"spconv1", {TAP, GROUP, IN, OUT}, LAST_FASTEST, false, ONE_GROUP},
    [SPOPS_WEIGHTS_SPCONV2] = {"spconv2", {GROUP, OUT, TAP, IN}, LAST_FASTEST, false, ONE_GROUP},
    [SPOPS_WEIGHTS_MINKOWSKI] =
        {"minkowski", {TAP, GROUP, IN, OUT}, FIRST_FASTEST, false, ONE_OR_CHANNELWISE},
    [SPOPS_WEIGHTS_TORCHSPARSE] =
        {"torchsparse", {TAP, GROUP, IN, OUT}, FIRST_FASTEST_IF_ODD, false, ONE_GROUP},
    [SPOPS_WEIGHTS_WARPCONVNET] =
        {"warpconvnet", {TAP, GROUP, IN, OUT}, LAST_FASTEST, false, ANY_GROUPS},
    [SPOPS_WEIGHTS_FLEXGEMM] = {"flexgemm", {GROUP, OUT, TAP, IN}, LAST_FASTEST, false, ONE_GROUP},
    [SPOPS_WEIGHTS_FVDB] = {"fvdb", {GROUP, OUT, IN, TAP}, LAST_FASTEST, false, ONE_GROUP},
    [SPOPS_WEIGHTS_TORCHSPARSE_GENERATIVE] =
        {"torchsparse_generative", {TAP, GROUP, IN, OUT}, FIRST_FASTEST_IF_ODD, true, ONE_GROUP},
    [SPOPS_WEIGHTS_FVDB_0_3] = {"fvdb_0_3", {GROUP, OUT, IN, TAP}, FIRST_FASTEST, false, ONE_GROUP},
    [SPOPS_WEIGHTS_FVDB_0_3_TRANSPOSED] =
        {"fvdb_0_3_transposed", {GROUP, IN, OUT, TAP}, FIRST_FASTEST, false, ONE_GROUP},
    [SPOPS_WEIGHTS_POINTELLIGENCE] =
        {"pointelligence", {TAP, GROUP, IN, OUT}, LAST_FASTEST, false, ANY_GROUPS},
    [SPOPS_WEIGHTS_SPCONV2_NATIVE] =
        {"spconv2_native", {TAP, GROUP, OUT, IN}, LAST_FASTEST, false, ONE_GROUP},
    [SPOPS_WEIGHTS_MINKOWSKI_CROSS] =
        {"minkowski_cross", {TAP, GROUP, IN, OUT}, FIRST_FASTEST, false, ANY_GROUPS},
};
enum { NUM_LAYOUTS = sizeof layout_rules / sizeof *layout_rules };

// A convolution's weights: what a conversion is called with.
typedef struct weights_sizes {
    const spops_kernel_shape *kernel;
    int64_t num_taps, groups, in, out; // in and out of one group
} weights_sizes;

// Such weights in some layout, in elements.
typedef struct weights_strides {
    int64_t first;                // where tap 0 is
    int64_t axis[SPOPS_MAX_DIMS]; // of a step along an axis of the kernel
    int64_t part[NUM_PARTS];      // of a step in one of the others
} weights_strides;

static weights_strides strides_of(const layout_rule *rule, const weights_sizes *w)
{
    const int64_t counts[NUM_PARTS] = {
        [TAP] = w->num_taps, [GROUP] = w->groups, [IN] = w->in, [OUT] = w->out};
    const bool first_fastest = rule->order == FIRST_FASTEST ||
                               (rule->order == FIRST_FASTEST_IF_ODD && w->num_taps % 2 == 1);
    weights_strides strides = {0};
    int64_t step = 1;

    // spconv 2 multiplies by the tensor of one tap, [out][1]..[1][in], as if it were [in][out].
    const part *parts = rule == &layout_rules[SPOPS_WEIGHTS_SPCONV2] && w->num_taps == 1
                            ? layout_rules[SPOPS_WEIGHTS_SPCONV1].parts
                            : rule->parts;
    for (int i = NUM_PARTS - 1; i >= 0; --i) {
        strides.part[parts[i]] = step;
        step *= counts[parts[i]];
    }
    step = strides.part[TAP];
    for (int i = 0; i < w->kernel->dims; ++i) {
        const int axis = first_fastest ? i : w->kernel->dims - 1 - i;
        const int32_t size = w->kernel->size[axis];
        strides.axis[axis] = rule->mirrored ? -step : step;
        if (rule->mirrored) strides.first += (size - 1) * step;
        step *= size;
    }
    return strides;
}

// Where tap number k (canonical) begins.
static int64_t tap_offset(const weights_strides *strides, const spops_kernel_shape *kernel,
                          int64_t k)
{
    int64_t offset = strides->first;
    for (int axis = kernel->dims - 1; axis >= 0; --axis) {
        offset += k % kernel->size[axis] * strides->axis[axis];
        k /= kernel->size[axis];
    }
    return offset;
}

// The number of groups is one that the layout's library has.
static spops_status check_groups(spops_context *ctx, const char *call, const layout_rule *rule,
                                 int32_t groups, int64_t in_channels, int64_t out_channels)
{
    const bool channelwise = groups == in_channels && groups == out_channels;

    SPOPS_REQUIRE(ctx, groups >= 0, "%s: groups is %" PRId32 ", expected 0 or more", call, groups);
    if (groups <= 1) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, in_channels % groups == 0,
                  "%s: in_channels is %" PRId64 ", expected a multiple of groups = %" PRId32, call,
                  in_channels, groups);
    SPOPS_REQUIRE(ctx, out_channels % groups == 0,
                  "%s: out_channels is %" PRId64 ", expected a multiple of groups = %" PRId32, call,
                  out_channels, groups);
    SPOPS_REQUIRE(ctx, rule->groups != ONE_GROUP,
                  "%s: groups is %" PRId32 ", expected 1: layers of %s have no groups", call,
                  groups, rule->name);
    SPOPS_REQUIRE(ctx, rule->groups != ONE_OR_CHANNELWISE || channelwise,
                  "%s: groups is %" PRId32 ", expected 1, or %" PRId64
                  " as in_channels and out_channels: layers of %s have no other groups",
                  call, groups, in_channels, rule->name);
    return SPOPS_STATUS_OK;
}

// The arguments of a conversion, checked; `sizes` of the weights.
static spops_status check_weights(spops_context *ctx, const char *call, spops_weights_layout layout,
                                  const spops_kernel_shape *kernel, int32_t groups,
                                  int64_t in_channels, int64_t out_channels, spops_dtype dtype,
                                  const void *from, const void *to, weights_sizes *sizes)
{
    int64_t num_taps, elements;
    uintptr_t from_address = (uintptr_t)from, to_address = (uintptr_t)to;
    size_t bytes;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, (int)layout >= 0 && (int)layout < NUM_LAYOUTS,
                  "%s: layout is %d, expected 0 to %d", call, (int)layout, NUM_LAYOUTS - 1);
    if (layout == SPOPS_WEIGHTS_MINKOWSKI_CROSS)
        return spops_fail(
            ctx, SPOPS_STATUS_NOT_SUPPORTED,
            "%s: layout is minkowski_cross, whose taps lie on the axes alone, expected "
            "that of a kernel with a tap at every place of its box",
            call);
    SPOPS_TRY(spops_check_object(ctx, call, "kernel", kernel, _Alignof(spops_kernel_shape)));
    num_taps = spops_kernel_shape_num_taps(kernel);
    SPOPS_REQUIRE(ctx, num_taps > 0,
                  "%s: kernel has no taps, expected 1 to %d axes of size 1 to %d", call,
                  SPOPS_MAX_DIMS, SPOPS_MAX_KERNEL_SIZE);
    SPOPS_REQUIRE(ctx, in_channels >= 1, "%s: in_channels is %" PRId64 ", expected 1 or more", call,
                  in_channels);
    SPOPS_REQUIRE(ctx, out_channels >= 1, "%s: out_channels is %" PRId64 ", expected 1 or more",
                  call, out_channels);
    SPOPS_TRY(check_groups(ctx, call, &layout_rules[layout], groups, in_channels, out_channels));
    groups = groups > 1 ? groups : 1;
    SPOPS_REQUIRE(ctx, spops_dtype_bytes(dtype) > 0,
                  "%s: dtype is %s (%d), expected one of whole bytes", call,
                  spops_dtype_name(dtype), (int)dtype);
    SPOPS_REQUIRE(ctx,
                  !__builtin_mul_overflow(num_taps, in_channels / groups, &elements) &&
                      !__builtin_mul_overflow(elements, out_channels, &elements) &&
                      !__builtin_mul_overflow((size_t)elements, spops_dtype_bytes(dtype), &bytes) &&
                      bytes <= PTRDIFF_MAX,
                  "%s: %" PRId64 " taps of %" PRId64 " x %" PRId64 " are too large", call, num_taps,
                  in_channels / groups, out_channels);
    SPOPS_REQUIRE(ctx, from != NULL, "%s: from is NULL", call);
    SPOPS_REQUIRE(ctx, to != NULL, "%s: to is NULL", call);
    SPOPS_REQUIRE(ctx, from_address >= to_address + bytes || to_address >= from_address + bytes,
                  "%s: to overlaps from", call);
    *sizes = (weights_sizes){kernel, num_taps, groups, in_channels / groups, out_channels / groups};
    return SPOPS_STATUS_OK;
}

// Copy between canonical weights and those with `strides`; load: towards the canonical ones.
static void convert(const weights_strides *strides, const weights_sizes *w, size_t element,
                    bool load, const void *from, void *to)
{
    const int64_t out_channels = w->groups * w->out;
    int64_t canonical = 0;

    for (int64_t row = 0; row < w->num_taps * w->in; ++row) {
        const int64_t other_row =
            tap_offset(strides, w->kernel, row / w->in) + row % w->in * strides->part[IN];
        for (int64_t c = 0; c < out_channels; ++c, ++canonical) {
            const int64_t other =
                other_row + c / w->out * strides->part[GROUP] + c % w->out * strides->part[OUT];
            memcpy((char *)to + (size_t)(load ? canonical : other) * element,
                   (const char *)from + (size_t)(load ? other : canonical) * element, element);
        }
    }
}

static spops_status convert_checked(spops_context *ctx, const char *call, bool load,
                                    spops_weights_layout layout, const spops_kernel_shape *kernel,
                                    int32_t groups, int64_t in_channels, int64_t out_channels,
                                    spops_dtype dtype, const void *from, void *to)
{
    weights_sizes sizes = {0};
    weights_strides strides;

    SPOPS_TRY(check_weights(ctx, call, layout, kernel, groups, in_channels, out_channels, dtype,
                            from, to, &sizes));
    strides = strides_of(&layout_rules[layout], &sizes);
    convert(&strides, &sizes, spops_dtype_bytes(dtype), load, from, to);
    return SPOPS_STATUS_OK;
}

spops_status spops_weights_load(spops_context *ctx, spops_weights_layout layout,
                                const spops_kernel_shape *kernel, int32_t groups,
                                int64_t in_channels, int64_t out_channels, spops_dtype dtype,
                                const void *from, void *to)
{
    return convert_checked(ctx, "weights_load", true, layout, kernel, groups, in_channels,
                           out_channels, dtype, from, to);
}

spops_status spops_weights_save(spops_context *ctx, spops_weights_layout layout,
                                const spops_kernel_shape *kernel, int32_t groups,
                                int64_t in_channels, int64_t out_channels, spops_dtype dtype,
                                const void *from, void *to)
{
    return convert_checked(ctx, "weights_save", false, layout, kernel, groups, in_channels,
                           out_channels, dtype, from, to);
}

const char *spops_weights_layout_name(spops_weights_layout layout)
{
    return (int)layout >= 0 && (int)layout < NUM_LAYOUTS ? layout_rules[layout].name : "?";
}
