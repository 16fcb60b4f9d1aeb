// SPDX-License-Identifier: Apache-2.0
// Fuzzes sets of coordinates, what is made from them, and their maps: any rows, any kernel, any
// choice. What is accepted is held against the definition, pair by pair.
#include "fuzz.h"

// Small, so that a thousand inputs are run in a second.
enum { MAX_ROWS = 12, MAX_TAPS = 27 };

// Kernels are small or wild; rows near each other or anywhere.
typedef struct fuzz_head {
    int32_t dims, num_rows, near;
    spops_coords_options options;
    spops_kernel_map_kind kind;
    spops_kernel_shape kernel;
    spops_kernel_map_options map;
    int64_t fail_at;
} fuzz_head;

// One context serves every input. It has one thread: what several do is tested elsewhere.
static struct {
    fuzz_memory memory;
    spops_context *ctx;
} kept;

static void give_back(void)
{
    fuzz_context_destroy(kept.ctx, &kept.memory);
}

static fuzz_head read_head(fuzz_input *input)
{
    fuzz_head h;
    memset(&h, 0, sizeof h);
    h.dims = fuzz_i32(input);
    h.num_rows = fuzz_i32(input);
    h.near = fuzz_i32(input);
    h.options = spops_coords_options_default();
    h.options.order = (spops_coords_order)fuzz_i32(input);
    h.options.search = (spops_coords_search)fuzz_i32(input);
    h.options.duplicates = (spops_coords_duplicates)fuzz_i32(input);
    h.options.max_grid_bytes = 1 << 12;
    h.kind = (spops_kernel_map_kind)fuzz_i32(input);
    h.map = spops_kernel_map_options_default();
    h.map.contents = fuzz_i32(input);
    h.map.tile_rows = fuzz_i32(input);
    h.kernel.struct_size = sizeof h.kernel;
    h.kernel.dims = h.dims;
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        h.kernel.size[a] = fuzz_i32(input);
        h.kernel.stride[a] = fuzz_i32(input);
        h.kernel.padding[a] = fuzz_i32(input);
        h.kernel.dilation[a] = fuzz_i32(input);
    }
    h.fail_at = fuzz_i32(input) & 31;
    return h;
}

static int acceptable(spops_context *ctx, spops_status status, const void *made)
{
    FUZZ_REQUIRE((status == SPOPS_STATUS_OK) == (made != NULL), "%s: %s", spops_status_name(status),
                 spops_last_error(ctx));
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_INVALID_ARGUMENT ||
                     status == SPOPS_STATUS_OUT_OF_MEMORY,
                 "%s: %s", spops_status_name(status), spops_last_error(ctx));
    return status == SPOPS_STATUS_OK;
}

// The call, and then whether it made `object`.
static spops_status called;
#define MADE(ctx, call, object) (called = (call), acceptable((ctx), called, (object)))

// Whether tap k of a kernel joins coarse to fine.
static int joins(const fuzz_head *h, const int32_t *padding, int32_t k, const int32_t *coarse,
                 const int32_t *fine)
{
    if (coarse[0] != fine[0]) return 0;
    for (int a = h->dims - 1; a >= 0; --a) {
        const int64_t t = k % h->kernel.size[a];
        k /= h->kernel.size[a];
        if (fine[a + 1] !=
            (int64_t)h->kernel.stride[a] * coarse[a + 1] - padding[a] + h->kernel.dilation[a] * t)
            return 0;
    }
    return 1;
}

static void check_map(spops_context *ctx, const fuzz_head *h, const spops_kernel_map *map,
                      const spops_coords *in, const spops_coords *out)
{
    spops_kernel_map_view v = spops_kernel_map_view_default();
    spops_coords_view a = spops_coords_view_default(), b = spops_coords_view_default();
    int32_t padding[SPOPS_MAX_DIMS];
    FUZZ_REQUIRE(spops_kernel_map_get_view(ctx, map, &v) == SPOPS_STATUS_OK, "view");
    FUZZ_REQUIRE(spops_coords_get_view(ctx, in, &a) == SPOPS_STATUS_OK, "view");
    FUZZ_REQUIRE(spops_coords_get_view(ctx, out, &b) == SPOPS_STATUS_OK, "view");
    if (v.out->table == NULL || a.max_rows * b.max_rows * v.num_taps > 20000) return;
    for (int i = 0; i < h->dims; ++i)
        padding[i] = h->kind == SPOPS_MAP_SUBMANIFOLD
                         ? h->kernel.dilation[i] * (h->kernel.size[i] / 2)
                         : h->kernel.padding[i];
    for (int64_t i = 0; i < b.max_rows; ++i)
        for (int32_t k = 0; k < v.num_taps; ++k) {
            const int32_t *to = b.rows + i * (h->dims + 1);
            int32_t expected = -1;
            for (int64_t j = 0; j < a.max_rows; ++j) {
                const int32_t *from = a.rows + j * (h->dims + 1);
                if (h->kind == SPOPS_MAP_TRANSPOSED ? joins(h, padding, k, from, to)
                                                    : joins(h, padding, k, to, from))
                    expected = (int32_t)j;
            }
            FUZZ_REQUIRE(v.out->table[i * v.table_stride + k] == expected,
                         "row %lld, tap %d: %d, expected %d", (long long)i, k,
                         v.out->table[i * v.table_stride + k], expected);
        }
}

static void make_map(spops_context *ctx, const fuzz_head *h, const spops_coords *in,
                     const spops_coords *out)
{
    spops_kernel_map *map = NULL, *inverse = NULL;
    const spops_status status =
        spops_kernel_map_create(ctx, h->kind, &h->kernel, in, out, &h->map, &map);
    if (acceptable(ctx, status, map)) {
        check_map(ctx, h, map, in, out);
        (void)MADE(ctx, spops_kernel_map_create_inverse(ctx, map, &h->map, &inverse), inverse);
    }
    spops_kernel_map_destroy(map);
    spops_kernel_map_destroy(inverse);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input input = {data, bytes, 0};
    const fuzz_head h = read_head(&input);
    spops_coords *in = NULL, *other = NULL, *both = NULL;
    if (h.num_rows > MAX_ROWS || spops_kernel_shape_num_taps(&h.kernel) > MAX_TAPS) return 0;
    const int32_t columns = h.dims >= 1 && h.dims <= SPOPS_MAX_DIMS ? h.dims + 1 : 1;
    const int64_t n = h.num_rows > 0 ? h.num_rows * columns : 0;
    int32_t *rows = fuzz_i32s(&input, n);
    for (int64_t i = 0; i < n && (h.near & 1); ++i)
        rows[i] = i % columns == 0 ? rows[i] & 1 : (rows[i] & 7) - 4;

    if (kept.ctx == NULL) {
        kept.ctx = fuzz_context_create(&kept.memory, 1);
        FUZZ_REQUIRE(atexit(give_back) == 0, "no room to say what is to be freed");
    }
    spops_context *ctx = kept.ctx;
    FUZZ_REQUIRE(kept.memory.num_live == 1, "%lld blocks, expected the context's own",
                 (long long)kept.memory.num_live);
    kept.memory.fail_at = h.fail_at > 0 ? kept.memory.num_allocs + h.fail_at : 0;
    if (MADE(ctx, spops_coords_create(ctx, h.dims, h.num_rows, rows, &h.options, &in), in)) {
        const spops_status status =
            h.kind == SPOPS_MAP_TRANSPOSED
                ? spops_coords_create_upsampled(ctx, in, &h.kernel, &h.options, &other)
                : spops_coords_create_downsampled(ctx, in, &h.kernel, &h.options, &other);
        if (h.kind == SPOPS_MAP_SUBMANIFOLD)
            make_map(ctx, &h, in, in);
        else if (acceptable(ctx, status, other))
            make_map(ctx, &h, in, other);
        if (other != NULL)
            (void)MADE(ctx, spops_coords_create_union(ctx, in, other, &h.options, &both), both);
    }
    spops_coords_destroy(both);
    spops_coords_destroy(other);
    spops_coords_destroy(in);
    kept.memory.fail_at = 0;
    free(rows);
    return 0;
}
