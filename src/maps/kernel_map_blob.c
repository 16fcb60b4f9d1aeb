// SPDX-License-Identifier: Apache-2.0
// Kernel maps as bytes: what a map is, fingerprints of its sets, masks, and the input of each pair
// by output and tap. What is read is checked against the coordinates, pair by pair.

#include <stdio.h>
#include <string.h>

#include "maps/kernel_maps.h"

#define MAP_VERSION 2u // 2: the checksum is XXH3
static const char map_magic[SPOPS_BLOB_MAGIC_BYTES] = "SPOPMAP";

// A map in host memory.
typedef struct map_image {
    spops_map_choices choices;
    int64_t num_in, num_out, num_pairs;
    uint64_t in_print, out_print; // of the sets' rows
    int32_t mask_words, table_stride;
    int32_t *in_rows, *out_rows; // the sets' rows [num][1 + dims]; out_rows may be in_rows
    int32_t *table;              // [num_out][table_stride]
    uint32_t *masks;             // [num_out][mask_words]
} map_image;

// n + 1 zeroed elements: NULL means failure.
static void *alloc_array(spops_context *ctx, int64_t n, int64_t width)
{
    const size_t count = spops_add_bytes(spops_mul_bytes((size_t)n, (size_t)width), 1);
    return spops_host_alloc(ctx, count, sizeof(int32_t));
}

static void free_array(spops_context *ctx, void *array, int64_t n, int64_t width)
{
    if (array != NULL) spops_host_free(ctx, array, (size_t)n * (size_t)width + 1, sizeof(int32_t));
}

static void free_image(spops_context *ctx, map_image *image)
{
    const int32_t columns = image->choices.taps.dims + 1;
    if (image->out_rows != image->in_rows)
        free_array(ctx, image->out_rows, image->num_out, columns);
    free_array(ctx, image->in_rows, image->num_in, columns);
    free_array(ctx, image->masks, image->num_out, image->mask_words);
    free_array(ctx, image->table, image->num_out, image->table_stride);
}

static spops_status fetch_rows(spops_context *ctx, const spops_coords *coords, int64_t n,
                               int32_t **rows)
{
    const int64_t columns = coords->arrays.layout.dims + 1;
    *rows = alloc_array(ctx, n, columns);
    if (*rows == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    return ctx->backend->download(ctx, *rows, coords->arrays.rows,
                                  (size_t)(n * columns) * sizeof **rows);
}

// Rows of both sets, and their fingerprints.
static spops_status fetch_sets(spops_context *ctx, const spops_coords *in, const spops_coords *out,
                               map_image *image)
{
    const size_t row_bytes = (size_t)(in->arrays.layout.dims + 1) * sizeof(int32_t);
    SPOPS_TRY(fetch_rows(ctx, in, image->num_in, &image->in_rows));
    image->out_rows = image->in_rows;
    if (out != in) {
        image->out_rows = NULL;
        SPOPS_TRY(fetch_rows(ctx, out, image->num_out, &image->out_rows));
    }
    image->in_print = spops_blob_checksum(image->in_rows, (size_t)image->num_in * row_bytes);
    image->out_print = spops_blob_checksum(image->out_rows, (size_t)image->num_out * row_bytes);
    return SPOPS_STATUS_OK;
}

static spops_status alloc_table(spops_context *ctx, map_image *image)
{
    image->masks = alloc_array(ctx, image->num_out, image->mask_words);
    if (image->masks == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    image->table = alloc_array(ctx, image->num_out, image->table_stride);
    return image->table == NULL ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_OK;
}

// The sets of a call that saves or loads: there, where ctx runs, with their counts on the host.
static spops_status check_set(spops_context *ctx, const char *call, const char *name,
                              const spops_coords *coords)
{
    SPOPS_TRY(spops_coords_check(ctx, call, name, coords));
    SPOPS_REQUIRE(ctx, !coords->base.refillable, "%s: %s was made by coords_reserve", call, name);
    return SPOPS_STATUS_OK;
}

// ---- Save ---------------------------------------------------------------------------------------

static void write_axes(spops_blob_writer *w, const int32_t *values)
{
    spops_blob_write_i32s(w, values, SPOPS_MAX_DIMS);
}

// With a writer that only measures, the arrays are not needed.
static void write_image(const map_image *image, spops_blob_writer *w)
{
    const spops_map_choices *c = &image->choices;
    spops_blob_write_header(w, map_magic, MAP_VERSION);
    spops_blob_write_i32(w, (int32_t)c->kind);
    spops_blob_write_i32(w, c->contents);
    spops_blob_write_i32(w, c->tile_rows);
    spops_blob_write_i32(w, c->kernel.dims);
    write_axes(w, c->kernel.size);
    write_axes(w, c->kernel.stride);
    write_axes(w, c->kernel.padding);
    write_axes(w, c->kernel.dilation);
    spops_blob_write_i64(w, image->num_in);
    spops_blob_write_i64(w, image->num_out);
    spops_blob_write_i64(w, image->num_pairs);
    spops_blob_write_i64(w, (int64_t)image->in_print);
    spops_blob_write_i64(w, (int64_t)image->out_print);
    spops_blob_write_i32s(w, (const int32_t *)image->masks, image->num_out * image->mask_words);
    if (w->data == NULL) {
        spops_blob_write_i32s(w, NULL, image->num_pairs);
    } else {
        for (int64_t i = 0; i < image->num_out; ++i)
            for (int32_t k = 0; k < c->taps.num_taps; ++k) {
                const int32_t j = image->table[i * image->table_stride + k];
                if (j >= 0) spops_blob_write_i32(w, j);
            }
    }
    spops_blob_write_checksum(w);
}

static map_image describe(const spops_kernel_map *map)
{
    const spops_map_arrays *a = &map->arrays;
    map_image image;
    memset(&image, 0, sizeof image);
    image.choices.kind = map->kind;
    image.choices.kernel = map->kernel;
    image.choices.taps = a->taps;
    image.choices.contents = map->contents;
    image.choices.tile_rows = a->tile_rows;
    image.num_in = a->in.max_rows;
    image.num_out = a->out.max_rows;
    image.num_pairs = map->state.num_pairs;
    image.mask_words = a->mask_words;
    image.table_stride = a->table_stride;
    return image;
}

spops_status spops_kernel_map_save(spops_context *ctx, const spops_kernel_map *map,
                                   const spops_coords *in, const spops_coords *out, void *buffer,
                                   size_t capacity, size_t *bytes)
{
    static const char call[] = "kernel_map_save";
    spops_status status = SPOPS_STATUS_OK;
    spops_blob_writer measure = {NULL, 0, 0};
    spops_blob_writer writer = {buffer, capacity, 0};
    map_image image;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_map_check(ctx, call, "map", map));
    SPOPS_TRY(spops_check_object(ctx, call, "bytes", bytes, sizeof *bytes));
    SPOPS_REQUIRE(ctx, !map->base.refillable, "%s: the map was made by kernel_map_reserve", call);
    SPOPS_REQUIRE(ctx, map->contents & SPOPS_MAP_TABLE,
                  "%s: the map has no table, expected SPOPS_MAP_TABLE", call);
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    if (out == NULL) out = in;
    SPOPS_TRY(check_set(ctx, call, "in", in));
    SPOPS_TRY(check_set(ctx, call, "out", out));
    image = describe(map);
    SPOPS_REQUIRE(ctx,
                  in->arrays.max_rows == image.num_in && out->arrays.max_rows == image.num_out &&
                      in->arrays.layout.dims == image.choices.taps.dims &&
                      out->arrays.layout.dims == image.choices.taps.dims,
                  "%s: in and out have %" PRId64 " and %" PRId64 " rows, expected %" PRId64
                  " and %" PRId64 " (and the map's axes)",
                  call, in->arrays.max_rows, out->arrays.max_rows, image.num_in, image.num_out);
    write_image(&image, &measure);
    *bytes = measure.used;
    if (buffer == NULL) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, capacity >= measure.used, "%s: capacity is %zu, expected at least %zu", call,
                  capacity, measure.used);
    SPOPS_TRY_GOTO(fetch_sets(ctx, in, out, &image), status, done);
    SPOPS_TRY_GOTO(alloc_table(ctx, &image), status, done);
    SPOPS_TRY_GOTO(
        ctx->backend->download(ctx, image.masks, map->arrays.out.masks,
                               (size_t)(image.num_out * image.mask_words) * sizeof *image.masks),
        status, done);
    SPOPS_TRY_GOTO(
        ctx->backend->download(ctx, image.table, map->arrays.out.table,
                               (size_t)(image.num_out * image.table_stride) * sizeof *image.table),
        status, done);
    write_image(&image, &writer);

done:
    free_image(ctx, &image);
    return status;
}

// ---- Load ---------------------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) static spops_status corrupt(spops_context *ctx,
                                                                  const char *format, ...)
{
    char text[SPOPS_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return spops_fail(ctx, SPOPS_STATUS_CORRUPT_DATA, "%s", text);
}

static spops_status check_number(spops_context *ctx, const char *call, const char *name,
                                 int64_t value, int64_t expected)
{
    if (value == expected) return SPOPS_STATUS_OK;
    return corrupt(ctx, "%s: %s is %" PRId64 ", expected %" PRId64 " as the coordinates have", call,
                   name, value, expected);
}

// The head of a blob; what is wrong with a kernel or a choice is wrong with the data.
static spops_status read_head(spops_context *ctx, const char *call, const spops_coords *in,
                              const spops_coords *out, spops_blob_reader *r, map_image *image)
{
    spops_kernel_shape kernel;
    spops_kernel_map_options options = spops_kernel_map_options_default();
    spops_status status;
    int32_t kind;

    memset(&kernel, 0, sizeof kernel);
    kernel.struct_size = sizeof kernel;
    kind = spops_blob_read_i32(r);
    options.contents = spops_blob_read_i32(r);
    options.tile_rows = spops_blob_read_i32(r);
    kernel.dims = spops_blob_read_i32(r);
    spops_blob_read_i32s(r, kernel.size, SPOPS_MAX_DIMS);
    spops_blob_read_i32s(r, kernel.stride, SPOPS_MAX_DIMS);
    spops_blob_read_i32s(r, kernel.padding, SPOPS_MAX_DIMS);
    spops_blob_read_i32s(r, kernel.dilation, SPOPS_MAX_DIMS);
    image->num_in = spops_blob_read_i64(r);
    image->num_out = spops_blob_read_i64(r);
    image->num_pairs = spops_blob_read_i64(r);
    image->in_print = (uint64_t)spops_blob_read_i64(r);
    image->out_print = (uint64_t)spops_blob_read_i64(r);
    if (r->failed) return corrupt(ctx, "%s: the data ends within its header", call);
    SPOPS_TRY(check_number(ctx, call, "dims", kernel.dims, in->arrays.layout.dims));
    for (int a = kernel.dims; a < SPOPS_MAX_DIMS; ++a)
        if (kernel.size[a] != 0 || kernel.stride[a] != 0 || kernel.padding[a] != 0 ||
            kernel.dilation[a] != 0)
            return corrupt(ctx, "%s: the kernel has more than %" PRId32 " axes", call, kernel.dims);
    SPOPS_TRY(check_number(ctx, call, "num_in", image->num_in, in->arrays.max_rows));
    SPOPS_TRY(check_number(ctx, call, "num_out", image->num_out, out->arrays.max_rows));
    // Whatever number it is, it is compared before it is used as an enumerator.
    if (kind < SPOPS_MAP_SUBMANIFOLD || kind > SPOPS_MAP_TRANSPOSED)
        return corrupt(ctx, "%s: kind is %" PRId32 ", expected %d to %d", call, kind,
                       (int)SPOPS_MAP_SUBMANIFOLD, (int)SPOPS_MAP_TRANSPOSED);
    status = spops_map_read_choices(ctx, call, (spops_kernel_map_kind)kind, &kernel, kernel.dims,
                                    &options, &image->choices);
    if (status != SPOPS_STATUS_OK)
        return spops_fail(ctx, SPOPS_STATUS_CORRUPT_DATA, "%s", spops_last_error(ctx));
    if (!(options.contents & SPOPS_MAP_TABLE) || image->choices.contents != options.contents)
        return corrupt(ctx, "%s: contents is %" PRId32 ", expected those of a saved map", call,
                       options.contents);
    if (kind == SPOPS_MAP_SUBMANIFOLD && in != out)
        return corrupt(ctx, "%s: it is a submanifold's, and out is another set than in", call);
    image->mask_words = (image->choices.taps.num_taps + 31) / 32;
    image->table_stride = (image->choices.taps.num_taps + 3) / 4 * 4;
    return SPOPS_STATUS_OK;
}

static spops_status read_arrays(spops_context *ctx, const char *call, spops_blob_reader *r,
                                map_image *image)
{
    const int64_t num_masks = image->num_out * image->mask_words;
    const int32_t num_taps = image->choices.taps.num_taps;
    const int64_t most = image->num_in > 0 ? image->num_out * num_taps : 0;
    int64_t num_pairs = 0;

    // Nothing is allocated before it is known to fit.
    if (image->num_pairs < 0 || image->num_pairs > most)
        return corrupt(ctx, "%s: num_pairs is %" PRId64 ", expected 0 to %" PRId64, call,
                       image->num_pairs, most);
    if (spops_blob_left(r) != (size_t)(num_masks + image->num_pairs) * sizeof(int32_t))
        return corrupt(ctx,
                       "%s: %zu bytes of arrays, expected those of %" PRId64 " masks and %" PRId64
                       " pairs",
                       call, spops_blob_left(r), num_masks, image->num_pairs);
    SPOPS_TRY(alloc_table(ctx, image));
    spops_blob_read_i32s(r, (int32_t *)image->masks, num_masks);
    for (int64_t i = 0; i < image->num_out; ++i) {
        const uint32_t *mask = image->masks + i * image->mask_words;
        int32_t *taps = image->table + i * image->table_stride;
        for (int32_t k = 0; k < 32 * image->mask_words; ++k) {
            const bool set = mask[k / 32] >> (k % 32) & 1;
            if (set && k >= num_taps)
                return corrupt(ctx, "%s: masks[%" PRId64 "] has tap %" PRId32 " of %" PRId32, call,
                               i, k, num_taps);
            if (set) {
                if (num_pairs++ == image->num_pairs)
                    return corrupt(ctx, "%s: the masks have more than %" PRId64 " taps", call,
                                   image->num_pairs);
                taps[k] = spops_blob_read_i32(r);
                if (taps[k] < 0 || taps[k] >= image->num_in)
                    return corrupt(ctx,
                                   "%s: table[%" PRId64 "][%" PRId32 "] is %" PRId32
                                   ", expected 0 to %" PRId64,
                                   call, i, k, taps[k], image->num_in - 1);
            } else if (k < image->table_stride) {
                taps[k] = -1;
            }
        }
    }
    if (num_pairs != image->num_pairs)
        return corrupt(ctx, "%s: the masks have %" PRId64 " taps, expected %" PRId64, call,
                       num_pairs, image->num_pairs);
    return SPOPS_STATUS_OK;
}

// Whether tap k joins output i to input j.
static bool is_pair(const map_image *image, int64_t i, int32_t k, int32_t j)
{
    const spops_taps *taps = &image->choices.taps;
    const int64_t columns = taps->dims + 1;
    const int32_t *out = image->out_rows + i * columns, *in = image->in_rows + j * columns;
    const bool transposed = image->choices.kind == SPOPS_MAP_TRANSPOSED;
    const int32_t *fine = transposed ? out : in, *coarse = transposed ? in : out;
    if (in[0] != out[0]) return false;
    for (int a = taps->dims - 1; a >= 0; --a) {
        const int32_t t = k % taps->size[a];
        k /= taps->size[a];
        if (fine[a + 1] != spops_tap_fine(taps, a, coarse[a + 1], t)) return false;
    }
    return true;
}

// Every pair is one of these coordinates; a submanifold's pairs have their mirror images.
static spops_status check_pairs(spops_context *ctx, const char *call, const map_image *image)
{
    const int32_t num_taps = image->choices.taps.num_taps;
    const bool mirrored = image->choices.kind == SPOPS_MAP_SUBMANIFOLD;
    for (int64_t i = 0; i < image->num_out; ++i)
        for (int32_t k = 0; k < num_taps; ++k) {
            const int32_t j = image->table[i * image->table_stride + k];
            if (j < 0) continue;
            if (!is_pair(image, i, k, j))
                return corrupt(ctx,
                               "%s: table[%" PRId64 "][%" PRId32 "] is %" PRId32
                               ", which that tap does not reach",
                               call, i, k, j);
            if (mirrored && image->table[j * (int64_t)image->table_stride + num_taps - 1 - k] != i)
                return corrupt(ctx,
                               "%s: table[%" PRId64 "][%" PRId32 "] is %" PRId32
                               ", without its mirror image",
                               call, i, k, j);
        }
    return SPOPS_STATUS_OK;
}

static spops_status check_prints(spops_context *ctx, const char *call, const map_image *image,
                                 const map_image *saved)
{
    if (image->in_print != saved->in_print)
        return corrupt(ctx, "%s: the map was made from other coordinates than in", call);
    if (image->out_print != saved->out_print)
        return corrupt(ctx, "%s: the map was made from other coordinates than out", call);
    return SPOPS_STATUS_OK;
}

// Where the backend runs: table, masks, counts.
static spops_status upload_image(spops_context *ctx, const map_image *image, spops_kernel_map *map)
{
    spops_status status = SPOPS_STATUS_OK;
    const spops_backend *backend = ctx->backend;
    const int32_t num_taps = image->choices.taps.num_taps;
    const spops_map_arrays *a = &map->arrays;
    int32_t *counts = alloc_array(ctx, num_taps, 1);

    if (counts == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    for (int64_t i = 0; i < image->num_out; ++i)
        for (int32_t k = 0; k < num_taps; ++k)
            counts[k] += image->table[i * image->table_stride + k] >= 0;
    map->state.num_in = (int32_t)image->num_in;
    map->state.num_out = (int32_t)image->num_out;
    map->state.num_pairs = image->num_pairs;
    SPOPS_TRY_GOTO(backend->upload(ctx, a->state, &map->state, sizeof map->state), status, done);
    SPOPS_TRY_GOTO(backend->upload(ctx, a->tap_counts, counts, (size_t)num_taps * sizeof *counts),
                   status, done);
    SPOPS_TRY_GOTO(
        backend->upload(ctx, a->out.masks, image->masks,
                        (size_t)(image->num_out * image->mask_words) * sizeof *image->masks),
        status, done);
    SPOPS_TRY_GOTO(
        backend->upload(ctx, a->out.table, image->table,
                        (size_t)(image->num_out * image->table_stride) * sizeof *image->table),
        status, done);

done:
    free_array(ctx, counts, num_taps, 1);
    return status;
}

spops_status spops_kernel_map_load(spops_context *ctx, const spops_coords *in,
                                   const spops_coords *out, const void *data, size_t bytes,
                                   spops_kernel_map **map)
{
    static const char call[] = "kernel_map_load";
    spops_status status = SPOPS_STATUS_OK;
    spops_blob_reader reader;
    spops_kernel_map *m = NULL;
    map_image image, saved;

    SPOPS_BEGIN_CREATE(ctx, call, map);
    if (out == NULL) out = in;
    SPOPS_TRY(check_set(ctx, call, "in", in));
    SPOPS_TRY(check_set(ctx, call, "out", out));
    SPOPS_REQUIRE(ctx, in->arrays.layout.dims == out->arrays.layout.dims,
                  "%s: out has %" PRId32 " axes, expected %" PRId32 " as in has", call,
                  out->arrays.layout.dims, in->arrays.layout.dims);
    SPOPS_TRY(spops_blob_open(ctx, call, data, bytes, map_magic, MAP_VERSION, &reader));
    memset(&image, 0, sizeof image);
    SPOPS_TRY(read_head(ctx, call, in, out, &reader, &image));
    saved = image;
    SPOPS_TRY_GOTO(read_arrays(ctx, call, &reader, &image), status, fail);
    SPOPS_TRY_GOTO(fetch_sets(ctx, in, out, &image), status, fail);
    SPOPS_TRY_GOTO(check_prints(ctx, call, &image, &saved), status, fail);
    SPOPS_TRY_GOTO(check_pairs(ctx, call, &image), status, fail);
    SPOPS_TRY_GOTO(spops_map_alloc(ctx, call, &image.choices, image.num_in, image.num_out, &m),
                   status, fail);
    SPOPS_TRY_GOTO(upload_image(ctx, &image, m), status, fail);
    SPOPS_TRY_GOTO(spops_maps_enqueue_sides(ctx, (const spops_kernel_map *const *)&m, 1), status,
                   fail);
    SPOPS_TRY_GOTO(spops_map_finish(ctx, call, m), status, fail);
    free_image(ctx, &image);
    *map = m;
    return SPOPS_STATUS_OK;

fail:
    spops_kernel_map_destroy(m);
    free_image(ctx, &image);
    return status;
}
