// SPDX-License-Identifier: Apache-2.0
// Kernel maps as bytes: what a map is, fingerprints of its sets, masks, and the input of each pair
// by output and tap. What is read is checked against the coordinates, pair by pair.
#include <string.h>

#include "core/plan_file.h"
#include "maps/kernel_maps.h"

typedef struct map_image {
    const spops_coords *in, *out; // of the call
    spops_map_choices choices;    // that follow from what is before the counts
    int32_t kind, contents, tile_rows;
    spops_kernel_shape kernel;
    int64_t num_in, num_out, num_pairs;
    uint64_t in_print, out_print; // of the sets' rows
    int32_t mask_words, table_stride;
    uint32_t *masks; // [num_out][mask_words]
    int32_t *pairs;  // [num_pairs], by output and tap
} map_image;

// Rows of the sets [num][1 + dims] and the table [num_out][table_stride], in host memory.
typedef struct map_tables {
    int32_t *in, *out, *table;
    size_t num; // of all, which lie at in
} map_tables;

static spops_status fetch_tables(spops_context *ctx, const map_image *image, map_tables *t)
{
    const size_t columns = (size_t)image->kernel.dims + 1;
    const size_t num_in = (size_t)image->num_in * columns;
    const size_t num_out = (size_t)image->num_out * columns;

    t->num = num_in + num_out + (size_t)image->num_out * (size_t)image->table_stride;
    t->in = spops_host_alloc(ctx, t->num, sizeof *t->in);
    if (t->in == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    t->out = t->in + num_in;
    t->table = t->out + num_out;
    SPOPS_TRY(ctx->backend->download(ctx, t->in, image->in->arrays.rows, num_in * sizeof *t->in));
    return ctx->backend->download(ctx, t->out, image->out->arrays.rows, num_out * sizeof *t->out);
}

static void free_tables(spops_context *ctx, map_tables *t)
{
    if (t->in != NULL) spops_host_free(ctx, t->in, t->num, sizeof *t->in);
}

static uint64_t print_of(const int32_t *rows, const int32_t *end)
{
    return spops_file_checksum(rows, (size_t)(end - rows) * sizeof *rows);
}

static void put_numbers(spops_file *f, void *to)
{
    map_image *image = to;
    spops_kernel_shape *kernel = &image->kernel;
    int32_t *const ints[] = {&image->kind, &image->contents, &image->tile_rows, &kernel->dims};
    int32_t *const axes[] = {kernel->size, kernel->stride, kernel->padding, kernel->dilation};
    int64_t *const counts[] = {&image->num_in, &image->num_out, &image->num_pairs};

    spops_file_int32s(f, ints, sizeof ints / sizeof *ints, 1);
    spops_file_int32s(f, axes, sizeof axes / sizeof *axes, SPOPS_MAX_DIMS);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i)
        spops_file_numbers(f, counts[i], 1, sizeof *counts[i]);
    spops_file_numbers(f, &image->in_print, 1, sizeof image->in_print);
    spops_file_numbers(f, &image->out_print, 1, sizeof image->out_print);
}

static int64_t place_arrays(void *to, int32_t *at)
{
    map_image *image = to;
    const int64_t num_masks = image->num_out * image->mask_words;
    image->masks = (uint32_t *)at;
    image->pairs = at == NULL ? NULL : at + num_masks;
    return num_masks + image->num_pairs;
}

// ---- Save ---------------------------------------------------------------------------------------

_Static_assert(sizeof(map_image) <= SPOPS_FILE_IMAGE_BYTES, "an image has no room");

static spops_status describe(spops_context *ctx, const char *call, const spops_plan *plan, void *to)
{
    const spops_kernel_map *map = (const spops_kernel_map *)plan;
    const spops_map_arrays *a = &map->arrays;
    map_image *image = to;

    SPOPS_REQUIRE(ctx, map->contents & SPOPS_MAP_TABLE,
                  "%s: the map has no table, expected SPOPS_MAP_TABLE", call);
    image->kind = (int32_t)map->kind;
    image->kernel = map->kernel;
    image->contents = map->contents;
    image->tile_rows = a->tile_rows;
    image->num_in = a->in.max_rows;
    image->num_out = a->out.max_rows;
    image->num_pairs = map->state.num_pairs;
    image->mask_words = a->mask_words;
    image->table_stride = a->table_stride;
    SPOPS_REQUIRE(ctx,
                  image->in->arrays.max_rows == image->num_in &&
                      image->out->arrays.max_rows == image->num_out &&
                      image->in->arrays.layout.dims == a->taps.dims &&
                      image->out->arrays.layout.dims == a->taps.dims,
                  "%s: in and out have %" PRId64 " and %" PRId64 " rows, expected %" PRId64
                  " and %" PRId64 " (and the map's axes)",
                  call, image->in->arrays.max_rows, image->out->arrays.max_rows, image->num_in,
                  image->num_out);
    return SPOPS_STATUS_OK;
}

static spops_status fetch(spops_context *ctx, const spops_plan *plan, void *to)
{
    const spops_map_arrays *a = &((const spops_kernel_map *)plan)->arrays;
    map_image *image = to;
    const int64_t num_slots = image->num_out * image->table_stride;
    spops_status status;
    map_tables t = {0};
    int64_t n = 0;

    SPOPS_TRY_GOTO(fetch_tables(ctx, image, &t), status, done);
    SPOPS_TRY_GOTO(
        ctx->backend->download(ctx, t.table, a->out.table, (size_t)num_slots * sizeof *t.table),
        status, done);
    SPOPS_TRY_GOTO(
        ctx->backend->download(ctx, image->masks, a->out.masks,
                               (size_t)(image->num_out * image->mask_words) * sizeof *image->masks),
        status, done);
    image->in_print = print_of(t.in, t.out);
    image->out_print = print_of(t.out, t.table);
    for (int64_t i = 0; i < num_slots; ++i)
        if (i % image->table_stride < a->taps.num_taps && t.table[i] >= 0)
            image->pairs[n++] = t.table[i];

done:
    free_tables(ctx, &t);
    return status;
}

// ---- Load ---------------------------------------------------------------------------------------

static spops_status check_numbers(spops_context *ctx, const char *call, void *to)
{
    map_image *image = to;
    const spops_kernel_shape *k = &image->kernel;
    const int64_t num_in = image->in->arrays.max_rows, num_out = image->out->arrays.max_rows;
    const int32_t dims = image->in->arrays.layout.dims;
    spops_kernel_map_options options = spops_kernel_map_options_default();

    SPOPS_TRY(spops_file_check(ctx, call, "dims", k->dims, dims, dims));
    for (int a = dims; a < SPOPS_MAX_DIMS; ++a)
        SPOPS_REQUIRE(
            ctx, k->size[a] == 0 && k->stride[a] == 0 && k->padding[a] == 0 && k->dilation[a] == 0,
            "%s: the kernel has more than %" PRId32 " axes", call, dims);
    SPOPS_TRY(spops_file_check(ctx, call, "num_in", image->num_in, num_in, num_in));
    SPOPS_TRY(spops_file_check(ctx, call, "num_out", image->num_out, num_out, num_out));
    // Whatever number it is, it is compared before it is used as an enumerator.
    SPOPS_TRY(spops_file_check(ctx, call, "kind", image->kind, SPOPS_MAP_SUBMANIFOLD,
                               SPOPS_MAP_TRANSPOSED));
    options.contents = image->contents;
    options.tile_rows = image->tile_rows;
    image->kernel.struct_size = sizeof image->kernel;
    SPOPS_TRY(spops_map_read_choices(ctx, call, (spops_kernel_map_kind)image->kind, k, dims,
                                     &options, &image->choices));
    SPOPS_REQUIRE(
        ctx, (image->contents & SPOPS_MAP_TABLE) != 0 && image->choices.contents == image->contents,
        "%s: contents is %" PRId32 ", expected those of a saved map", call, image->contents);
    SPOPS_REQUIRE(ctx, image->kind != SPOPS_MAP_SUBMANIFOLD || image->in == image->out,
                  "%s: it is a submanifold's, and out is another set than in", call);
    image->mask_words = (image->choices.taps.num_taps + 31) / 32;
    image->table_stride = (image->choices.taps.num_taps + 3) / 4 * 4;
    return spops_file_check(ctx, call, "num_pairs", image->num_pairs, 0,
                            num_in > 0 ? num_out * image->choices.taps.num_taps : 0);
}

// The table of masks and pairs.
static spops_status fill_table(spops_context *ctx, const char *call, const map_image *image,
                               int32_t *table)
{
    const int32_t num_taps = image->choices.taps.num_taps;
    int64_t n = 0;

    for (int64_t i = 0; i < image->num_out; ++i) {
        const uint32_t *mask = image->masks + i * image->mask_words;
        int32_t *taps = table + i * image->table_stride;
        for (int32_t k = 0; k < 32 * image->mask_words; ++k) {
            const bool set = mask[k / 32] >> (k % 32) & 1;
            if (!set && k < image->table_stride) taps[k] = -1;
            if (!set) continue;
            SPOPS_REQUIRE(ctx, k < num_taps,
                          "%s: masks[%" PRId64 "] has tap %" PRId32 " of %" PRId32, call, i, k,
                          num_taps);
            SPOPS_REQUIRE(ctx, n < image->num_pairs,
                          "%s: the masks have more than %" PRId64 " taps", call, image->num_pairs);
            taps[k] = image->pairs[n++];
            SPOPS_REQUIRE(ctx, taps[k] >= 0 && taps[k] < image->num_in,
                          "%s: table[%" PRId64 "][%" PRId32 "] is %" PRId32
                          ", expected 0 to %" PRId64,
                          call, i, k, taps[k], image->num_in - 1);
        }
    }
    SPOPS_REQUIRE(ctx, n == image->num_pairs,
                  "%s: the masks have %" PRId64 " taps, expected %" PRId64, call, n,
                  image->num_pairs);
    return SPOPS_STATUS_OK;
}

// Whether tap k joins output i to input j.
static bool is_pair(const map_image *image, const map_tables *t, int64_t i, int32_t k, int32_t j)
{
    const spops_taps *taps = &image->choices.taps;
    const int64_t columns = taps->dims + 1;
    const int32_t *out = t->out + i * columns, *in = t->in + j * columns;
    const bool transposed = image->kind == SPOPS_MAP_TRANSPOSED;
    const int32_t *fine = transposed ? out : in, *coarse = transposed ? in : out;
    if (in[0] != out[0]) return false;
    for (int a = taps->dims - 1; a >= 0; --a) {
        const int32_t tap = k % taps->size[a];
        k /= taps->size[a];
        if (fine[a + 1] != spops_tap_fine(taps, a, coarse[a + 1], tap)) return false;
    }
    return true;
}

// The sets are the saved ones; every pair is one of their coordinates; a submanifold's pairs have their
// mirror images.
static spops_status check_pairs(spops_context *ctx, const char *call, const map_image *image,
                                const map_tables *t)
{
    const int32_t num_taps = image->choices.taps.num_taps;
    const bool mirrored = image->kind == SPOPS_MAP_SUBMANIFOLD;

    SPOPS_REQUIRE(ctx, image->in_print == print_of(t->in, t->out),
                  "%s: the map was made from other coordinates than in", call);
    SPOPS_REQUIRE(ctx, image->out_print == print_of(t->out, t->table),
                  "%s: the map was made from other coordinates than out", call);
    for (int64_t i = 0; i < image->num_out; ++i)
        for (int32_t k = 0; k < num_taps; ++k) {
            const int32_t j = t->table[i * image->table_stride + k];
            if (j < 0) continue;
            SPOPS_REQUIRE(ctx, is_pair(image, t, i, k, j),
                          "%s: table[%" PRId64 "][%" PRId32 "] is %" PRId32
                          ", which that tap does not reach",
                          call, i, k, j);
            SPOPS_REQUIRE(
                ctx,
                !mirrored || t->table[j * (int64_t)image->table_stride + num_taps - 1 - k] == i,
                "%s: table[%" PRId64 "][%" PRId32 "] is %" PRId32 ", without its mirror image",
                call, i, k, j);
        }
    return SPOPS_STATUS_OK;
}

// Where the backend runs: table, masks, counts.
static spops_status upload_image(spops_context *ctx, const map_image *image, const int32_t *table,
                                 spops_kernel_map *map)
{
    const spops_backend *backend = ctx->backend;
    const int32_t num_taps = image->choices.taps.num_taps;
    const int64_t num_slots = image->num_out * image->table_stride;
    const spops_map_arrays *a = &map->arrays;
    int32_t counts[SPOPS_MAX_KERNEL_TAPS] = {0};

    for (int64_t i = 0; i < num_slots; ++i)
        if (table[i] >= 0) ++counts[i % image->table_stride];
    map->state.num_in = (int32_t)image->num_in;
    map->state.num_out = (int32_t)image->num_out;
    map->state.num_pairs = image->num_pairs;
    SPOPS_TRY(backend->upload(ctx, a->state, &map->state, sizeof map->state));
    SPOPS_TRY(backend->upload(ctx, a->tap_counts, counts, (size_t)num_taps * sizeof *counts));
    SPOPS_TRY(backend->upload(ctx, a->out.masks, image->masks,
                              (size_t)(image->num_out * image->mask_words) * sizeof *image->masks));
    return backend->upload(ctx, a->out.table, table, (size_t)num_slots * sizeof *table);
}

static spops_status make(spops_context *ctx, const char *call, const void *from, void *out)
{
    const map_image *image = from;
    spops_status status;
    spops_kernel_map *m = NULL;
    map_tables t = {0};

    SPOPS_TRY_GOTO(fetch_tables(ctx, image, &t), status, done);
    SPOPS_TRY_GOTO(fill_table(ctx, call, image, t.table), status, done);
    SPOPS_TRY_GOTO(check_pairs(ctx, call, image, &t), status, done);
    SPOPS_TRY_GOTO(spops_map_alloc(ctx, call, &image->choices, image->num_in, image->num_out, &m),
                   status, done);
    SPOPS_TRY_GOTO(upload_image(ctx, image, t.table, m), status, done);
    SPOPS_TRY_GOTO(spops_maps_enqueue_sides(ctx, (const spops_kernel_map *const *)&m, 1), status,
                   done);
    SPOPS_TRY_GOTO(spops_map_finish(ctx, call, m), status, done);
    *(spops_kernel_map **)out = m;
    m = NULL;

done:
    spops_kernel_map_destroy(m);
    free_tables(ctx, &t);
    return status;
}

// The sets of a map that is saved or loaded: there, where ctx runs, with their counts on the host.
static spops_status take_sets(spops_context *ctx, const char *call,
                              const spops_plan *const *parents, int32_t num_parents, void *to)
{
    static const char *const names[] = {"parents[0] (in)", "parents[1] (out)"};
    map_image *image = to;

    SPOPS_REQUIRE(ctx, num_parents == 1 || num_parents == 2,
                  "%s: num_parents is %" PRId32
                  ", expected 1 or 2 of kind kernel_map: the sets in and out",
                  call, num_parents);
    SPOPS_REQUIRE(ctx, parents != NULL, "%s: parents is NULL", call);
    for (int32_t i = 0; i < num_parents; ++i) {
        SPOPS_TRY(spops_plan_check(ctx, call, names[i], parents[i]));
        SPOPS_REQUIRE(ctx, parents[i]->kind == SPOPS_PLAN_COORDS,
                      "%s: %s is of kind %s, expected coords", call, names[i],
                      spops_plan_kinds(NULL)[parents[i]->kind - 1].name);
        SPOPS_REQUIRE(ctx, !parents[i]->refillable, "%s: %s was made by coords_reserve", call,
                      names[i]);
    }
    image->in = (const spops_coords *)parents[0];
    image->out = (const spops_coords *)parents[num_parents - 1];
    SPOPS_REQUIRE(ctx, image->in->arrays.layout.dims == image->out->arrays.layout.dims,
                  "%s: %s has %" PRId32 " axes, expected %" PRId32 " as %s has", call, names[1],
                  image->out->arrays.layout.dims, image->in->arrays.layout.dims, names[0]);
    return SPOPS_STATUS_OK;
}

const spops_plan_file spops_kernel_map_file = {
    .magic = "SPOPMAP",
    .version = 2,
    .stand = take_sets,
    .numbers = put_numbers,
    .place = place_arrays,
    .describe = describe,
    .fetch = fetch,
    .check = check_numbers,
    .make = make,
};
