// SPDX-License-Identifier: Apache-2.0
// Plans of segments as images in host memory: fetched from a plan, made into one, written to bytes,
// and read back with every number checked.
#include "segments/segments.h"

#include <stdio.h>
#include <string.h>

#define IMAGE_VERSION 3u // 2: the checksum is XXH3; 3: zeros after plans that cost much
static const char image_magic[SPOPS_BLOB_MAGIC_BYTES] = "SPOPSEG";

static int32_t *alloc_i32(spops_context *ctx, int64_t n)
{
    return spops_host_alloc(ctx, (size_t)n, sizeof(int32_t));
}

// Of count + 1 elements. Where nothing was allocated, count may be any number that was read.
static void free_i32(spops_context *ctx, int32_t *array, int64_t count)
{
    if (array != NULL) spops_host_free(ctx, array, (size_t)count + 1, sizeof *array);
}

spops_status spops_segments_image_alloc(spops_context *ctx, spops_segments_image *image)
{
    image->offsets = alloc_i32(ctx, image->num_segments + 1);
    if (image->offsets == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    // Always one element at least, so that NULL means failure.
    if (image->has_pairs) {
        image->a = alloc_i32(ctx, image->num_terms + 1);
        if (image->a == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        image->b = alloc_i32(ctx, image->num_terms + 1);
        if (image->b == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    }
    if (image->has_term) {
        image->term = alloc_i32(ctx, image->num_terms + 1);
        if (image->term == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    }
    return SPOPS_STATUS_OK;
}

void spops_segments_image_free(spops_context *ctx, spops_segments_image *image)
{
    free_i32(ctx, image->term, image->num_terms);
    free_i32(ctx, image->b, image->num_terms);
    free_i32(ctx, image->a, image->num_terms);
    free_i32(ctx, image->offsets, image->num_segments);
    image->offsets = image->a = image->b = image->term = NULL;
}

spops_status spops_segments_image_describe_sync(spops_context *ctx, const spops_segments *segments,
                                                spops_segments_image *image)
{
    spops_schedule schedule;
    memset(image, 0, sizeof *image);
    SPOPS_TRY(spops_segments_schedule_sync(ctx, segments, &schedule));
    image->num_segments = segments->num_segments;
    image->num_terms = schedule.num_terms;
    image->num_rows = segments->num_rows;
    image->num_weights = segments->num_weights;
    image->num_sources = segments->num_sources;
    image->max_cols = segments->max_cols;
    image->gradients = segments->gradients;
    // Without terms a plan may or may not have arrays for them; its image has none.
    image->has_pairs = image->num_terms > 0 && segments->forward.pairs != NULL;
    image->has_term = image->num_terms > 0 && segments->forward.order != NULL;
    return SPOPS_STATUS_OK;
}

spops_status spops_segments_image_fetch_sync(spops_context *ctx, const spops_segments *segments,
                                             spops_segments_image *image)
{
    spops_status status = SPOPS_STATUS_OK;
    const spops_backend *backend = ctx->backend;
    const spops_lists *lists = &segments->forward;
    const size_t n = (size_t)image->num_terms;
    int32_t *pairs = NULL;

    SPOPS_TRY(spops_segments_image_alloc(ctx, image));
    SPOPS_TRY(backend->download(ctx, image->offsets, lists->offsets,
                                (size_t)(image->num_segments + 1) * sizeof(int32_t)));
    if (n == 0) return SPOPS_STATUS_OK;
    if (image->has_term)
        SPOPS_TRY(backend->download(ctx, image->term, lists->order, n * sizeof(int32_t)));
    if (!image->has_pairs) return SPOPS_STATUS_OK;
    pairs = spops_host_alloc(ctx, n, 2 * sizeof *pairs);
    if (pairs == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY_GOTO(backend->download(ctx, pairs, lists->pairs, n * 2 * sizeof *pairs), status,
                   done);
    for (size_t p = 0; p < n; ++p) {
        image->a[p] = pairs[2 * p];
        image->b[p] = pairs[2 * p + 1];
    }

done:
    spops_host_free(ctx, pairs, n, 2 * sizeof *pairs);
    return status;
}

typedef struct image_arrays {
    int32_t *offsets, *a, *b, *term;
} image_arrays;

static image_arrays carve_image(const spops_segments_image *image, spops_carver *c)
{
    image_arrays arrays;
    const size_t size = sizeof(int32_t);
    arrays.offsets = spops_carve(c, image->num_segments + 1, 1, size);
    arrays.a = image->has_pairs ? spops_carve(c, image->num_terms, 1, size) : NULL;
    arrays.b = image->has_pairs ? spops_carve(c, image->num_terms, 1, size) : NULL;
    arrays.term = image->has_term ? spops_carve(c, image->num_terms, 1, size) : NULL;
    return arrays;
}

static spops_status upload_image(spops_context *ctx, const spops_segments_image *image,
                                 const image_arrays *to)
{
    const spops_backend *backend = ctx->backend;
    const size_t bytes = (size_t)image->num_terms * sizeof(int32_t);
    SPOPS_TRY(backend->upload(ctx, to->offsets, image->offsets,
                              (size_t)(image->num_segments + 1) * sizeof(int32_t)));
    if (to->a != NULL) SPOPS_TRY(backend->upload(ctx, to->a, image->a, bytes));
    if (to->b != NULL) SPOPS_TRY(backend->upload(ctx, to->b, image->b, bytes));
    if (to->term != NULL) SPOPS_TRY(backend->upload(ctx, to->term, image->term, bytes));
    return SPOPS_STATUS_OK;
}

// keys[t] = the segment of term t, which is row and weight t; false where a term is not.
static bool find_keys(const spops_segments_image *image, int32_t *keys)
{
    memset(keys, 0xff, (size_t)image->num_terms * sizeof *keys);
    for (int64_t s = 0; s < image->num_segments; ++s)
        for (int32_t p = image->offsets[s]; p < image->offsets[s + 1]; ++p) {
            const int32_t t = image->a[p];
            if (t != image->b[p] || t >= image->num_terms || keys[t] >= 0) return false;
            keys[t] = (int32_t)s;
        }
    return true;
}

spops_status spops_segments_image_build(spops_context *ctx, const char *call,
                                        const spops_segments_image *image,
                                        size_t extra_scratch_bytes, spops_segments **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_carver carver = {NULL, 0};
    spops_segments_sizes sizes;
    spops_lists_source source;
    spops_segments *s = NULL;
    int32_t *keys = NULL;
    image_arrays arrays;

    *out = NULL;
    memset(&sizes, 0, sizeof sizes);
    sizes.num_segments = image->num_segments;
    sizes.max_terms = image->num_terms;
    sizes.num_rows = image->num_rows;
    sizes.num_weights = image->num_weights;
    sizes.num_sources = image->num_sources;
    sizes.max_cols = image->max_cols;
    sizes.gradients = image->gradients;
    sizes.pairs = image->has_pairs;
    sizes.order = image->has_term;
    sizes.in_order = true;
    (void)carve_image(image, &carver);
    sizes.extra_bytes = carver.used;
    sizes.extra_scratch_bytes = extra_scratch_bytes;
    if (image->has_pairs && !image->pools && spops_segments_keeps_keys(ctx)) {
        keys = spops_host_alloc(ctx, (size_t)image->num_terms, sizeof *keys);
        if (keys == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        sizes.keys = find_keys(image, keys);
    }
    SPOPS_TRY_GOTO(spops_segments_alloc(ctx, call, &sizes, &s), status, done);
    carver = (spops_carver){s->extra, 0};
    arrays = carve_image(image, &carver);
    SPOPS_TRY_GOTO(upload_image(ctx, image, &arrays), status, done);
    if (s->keys != NULL)
        SPOPS_TRY_GOTO(
            ctx->backend->upload(ctx, s->keys, keys, (size_t)image->num_terms * sizeof *keys),
            status, done);

    memset(&source, 0, sizeof source);
    source.offsets = arrays.offsets;
    source.num_terms = image->num_terms;
    source.a = arrays.a;
    source.b = arrays.b;
    source.term = arrays.term;
    source.a_limit = image->num_rows;
    source.b_limit = image->num_weights;
    SPOPS_TRY_GOTO(spops_segments_enqueue_build(ctx, s, &source), status, done);
    SPOPS_TRY_GOTO(spops_segments_finish(ctx, s), status, done);
    *out = s;
    s = NULL;

done:
    spops_host_free(ctx, keys, (size_t)image->num_terms, sizeof *keys);
    spops_segments_destroy(s);
    return status;
}

// Bytes

enum { IMAGE_PAIRS = 1, IMAGE_TERM = 2 };

static size_t arrays_bytes(const spops_segments_image *image)
{
    // Counts are below 2^31, so this does not overflow.
    size_t n = (size_t)image->num_segments + 1;
    if (image->has_pairs) n += (size_t)image->num_terms * 2;
    if (image->has_term) n += (size_t)image->num_terms;
    return n * sizeof(int32_t);
}

// Bytes that a plan of this image takes at most, on any backend: lists with what they are sorted in,
// and scratch, with its tickets.
static size_t plan_bytes(const spops_segments_image *image)
{
    const bool inverse = image->gradients != SPOPS_GRADIENTS_NONE;
    const size_t segments = (size_t)image->num_segments, terms = (size_t)image->num_terms;
    const size_t others = (size_t)image->num_rows + (size_t)image->num_weights;
    const size_t split = terms / 128; // no backend cuts shorter pieces, or more than 4,096
    const size_t pieces = split < 4096 ? split : 4096;
    const size_t state = spops_mul_bytes((size_t)image->max_cols, 10);
    size_t bytes = spops_mul_bytes(segments, 64);
    bytes = spops_add_bytes(bytes, spops_mul_bytes(terms, inverse            ? 96
                                                          : image->has_pairs ? 32
                                                                             : 0));
    bytes = spops_add_bytes(bytes, spops_mul_bytes(inverse ? others : 0, 64));
    bytes = spops_add_bytes(bytes, spops_mul_bytes(pieces, spops_add_bytes(state, 32)));
    if (image->gradients == SPOPS_GRADIENTS_ALL)
        bytes = spops_add_bytes(bytes, spops_mul_bytes(segments, state));
    if (!image->pools) return bytes;
    bytes = spops_add_bytes(
        bytes, spops_mul_bytes(spops_add_bytes(segments, (size_t)image->num_rows), state));
    return spops_add_bytes(bytes, spops_mul_bytes((size_t)image->num_weights, 64));
}

// Zeros after the arrays of an image.
static size_t padding_of(const spops_segments_image *image)
{
    const size_t least = plan_bytes(image) / SPOPS_SEGMENTS_IMAGE_COST;
    const size_t arrays = arrays_bytes(image);
    return least > arrays ? least - arrays : 0;
}

void spops_segments_image_write(const spops_segments_image *image, spops_blob_writer *w)
{
    spops_blob_write_i64(w, image->num_segments);
    spops_blob_write_i64(w, image->num_terms);
    spops_blob_write_i64(w, image->num_rows);
    spops_blob_write_i64(w, image->num_weights);
    spops_blob_write_i64(w, image->num_sources);
    spops_blob_write_i64(w, image->max_cols);
    spops_blob_write_i32(w, (int32_t)image->gradients);
    spops_blob_write_i32(w,
                         (image->has_pairs ? IMAGE_PAIRS : 0) | (image->has_term ? IMAGE_TERM : 0));
    spops_blob_write_i32s(w, image->offsets, image->num_segments + 1);
    if (image->has_pairs) {
        spops_blob_write_i32s(w, image->a, image->num_terms);
        spops_blob_write_i32s(w, image->b, image->num_terms);
    }
    if (image->has_term) spops_blob_write_i32s(w, image->term, image->num_terms);
    spops_blob_write_zeros(w, padding_of(image));
}

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

// A saved number must be low to high.
static spops_status check_number(spops_context *ctx, const char *call, const char *name,
                                 int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) return SPOPS_STATUS_OK;
    return corrupt(ctx, "%s: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, call, name,
                   value, low, high);
}

static spops_status check_numbers(spops_context *ctx, const char *call,
                                  const spops_segments_image *image, int32_t flags)
{
    // A term without pairs takes the row and the weight of its own number.
    const int64_t taken = flags & IMAGE_PAIRS ? 0 : image->num_terms;
    const int64_t max = SPOPS_MAX_COUNT;
    SPOPS_TRY(check_number(ctx, call, "num_segments", image->num_segments, 0, max));
    SPOPS_TRY(check_number(ctx, call, "num_terms", image->num_terms, 0, max));
    SPOPS_TRY(check_number(ctx, call, "num_rows", image->num_rows, taken, max));
    SPOPS_TRY(check_number(ctx, call, "num_weights", image->num_weights, taken, max));
    SPOPS_TRY(check_number(ctx, call, "num_sources", image->num_sources, image->num_terms, max));
    SPOPS_TRY(check_number(ctx, call, "max_cols", image->max_cols, 1, max));
    SPOPS_TRY(
        check_number(ctx, call, "gradients", (int64_t)image->gradients, 0, SPOPS_GRADIENTS_ALL));
    if (flags != 0 && flags != IMAGE_PAIRS && flags != (IMAGE_PAIRS | IMAGE_TERM))
        return corrupt(ctx, "%s: flags are %" PRId32 ", expected 0, %d or %d", call, flags,
                       IMAGE_PAIRS, IMAGE_PAIRS | IMAGE_TERM);
    return SPOPS_STATUS_OK;
}

static spops_status check_elements(spops_context *ctx, const char *call, const char *name,
                                   const int32_t *array, int64_t n, int64_t high)
{
    if (n > 0 && high == 0)
        return corrupt(ctx, "%s: %s has %" PRId64 " elements, and there is nothing to name", call,
                       name, n);
    for (int64_t i = 0; i < n; ++i)
        if (array[i] < 0 || array[i] >= high)
            return corrupt(ctx, "%s: %s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64, call,
                           name, i, array[i], high - 1);
    return SPOPS_STATUS_OK;
}

static spops_status check_image(spops_context *ctx, const char *call,
                                const spops_segments_image *image)
{
    const int32_t *offsets = image->offsets, *term = image->term;
    if (offsets[0] != 0)
        return corrupt(ctx, "%s: offsets[0] is %" PRId32 ", expected 0", call, offsets[0]);
    for (int64_t s = 0; s < image->num_segments; ++s)
        if (offsets[s + 1] < offsets[s])
            return corrupt(ctx, "%s: offsets[%" PRId64 "] is %" PRId32 ", less than %" PRId32, call,
                           s + 1, offsets[s + 1], offsets[s]);
    if (offsets[image->num_segments] != image->num_terms)
        return corrupt(ctx, "%s: offsets[%" PRId64 "] is %" PRId32 ", expected %" PRId64, call,
                       image->num_segments, offsets[image->num_segments], image->num_terms);
    if (image->has_pairs) {
        SPOPS_TRY(check_elements(ctx, call, "rows", image->a, image->num_terms, image->num_rows));
        SPOPS_TRY(
            check_elements(ctx, call, "weights", image->b, image->num_terms, image->num_weights));
    }
    if (!image->has_term) return SPOPS_STATUS_OK;
    SPOPS_TRY(check_elements(ctx, call, "terms", term, image->num_terms, image->num_sources));
    // Ties and the order of sums rest on this.
    for (int64_t s = 0; s < image->num_segments; ++s)
        for (int64_t p = (int64_t)offsets[s] + 1; p < offsets[s + 1]; ++p)
            if (term[p] <= term[p - 1])
                return corrupt(ctx,
                               "%s: terms[%" PRId64 "] is %" PRId32 ", expected more than %" PRId32
                               " before it in segment %" PRId64,
                               call, p, term[p], term[p - 1], s);
    return SPOPS_STATUS_OK;
}

spops_status spops_segments_image_read(spops_context *ctx, const char *call, spops_blob_reader *r,
                                       bool pools, spops_segments_image *image)
{
    int32_t gradients, flags;
    size_t arrays, padding;

    memset(image, 0, sizeof *image);
    image->pools = pools;
    image->num_segments = spops_blob_read_i64(r);
    image->num_terms = spops_blob_read_i64(r);
    image->num_rows = spops_blob_read_i64(r);
    image->num_weights = spops_blob_read_i64(r);
    image->num_sources = spops_blob_read_i64(r);
    image->max_cols = spops_blob_read_i64(r);
    gradients = spops_blob_read_i32(r);
    flags = spops_blob_read_i32(r);
    if (r->failed) return corrupt(ctx, "%s: the data ends within its header", call);
    SPOPS_TRY(check_number(ctx, call, "gradients", gradients, 0, SPOPS_GRADIENTS_ALL));
    image->gradients = (spops_gradients)gradients;
    SPOPS_TRY(check_numbers(ctx, call, image, flags));
    image->has_pairs = (flags & IMAGE_PAIRS) != 0;
    image->has_term = (flags & IMAGE_TERM) != 0;

    // Nothing is allocated before it fits.
    arrays = arrays_bytes(image);
    padding = padding_of(image);
    if (spops_blob_left(r) < arrays || spops_blob_left(r) - arrays != padding)
        return corrupt(ctx, "%s: %zu bytes of arrays, expected %zu and %zu zeros", call,
                       spops_blob_left(r), arrays, padding);
    SPOPS_TRY(spops_segments_image_alloc(ctx, image));
    spops_blob_read_i32s(r, image->offsets, image->num_segments + 1);
    if (image->has_pairs) {
        spops_blob_read_i32s(r, image->a, image->num_terms);
        spops_blob_read_i32s(r, image->b, image->num_terms);
    }
    if (image->has_term) spops_blob_read_i32s(r, image->term, image->num_terms);
    if (!spops_blob_read_zeros(r, padding))
        return corrupt(ctx, "%s: something is where %zu zeros were expected", call, padding);
    return check_image(ctx, call, image);
}

static void write_blob(const spops_segments_image *image, spops_blob_writer *w)
{
    spops_blob_write_header(w, image_magic, IMAGE_VERSION);
    spops_segments_image_write(image, w);
    spops_blob_write_checksum(w);
}

spops_status spops_segments_save(spops_context *ctx, const spops_segments *segments, void *buffer,
                                 size_t capacity, size_t *bytes)
{
    static const char call[] = "segments_save";
    spops_status status = SPOPS_STATUS_OK;
    spops_blob_writer measure = {NULL, 0, 0};
    spops_blob_writer writer = {buffer, capacity, 0};
    spops_segments_image image;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_segments_check(ctx, call, "segments", segments));
    SPOPS_TRY(spops_check_object(ctx, call, "bytes", bytes, sizeof *bytes));
    SPOPS_REQUIRE(ctx, !segments->base.refillable, "%s: the plan was made by segments_reserve",
                  call);
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(spops_segments_image_describe_sync(ctx, segments, &image));
    write_blob(&image, &measure);
    *bytes = measure.used;
    if (buffer == NULL) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, capacity >= measure.used, "%s: capacity is %zu, expected at least %zu", call,
                  capacity, measure.used);
    SPOPS_TRY_GOTO(spops_segments_image_fetch_sync(ctx, segments, &image), status, done);
    write_blob(&image, &writer);

done:
    spops_segments_image_free(ctx, &image);
    return status;
}

spops_status spops_segments_load(spops_context *ctx, const void *data, size_t bytes,
                                 spops_segments **out)
{
    static const char call[] = "segments_load";
    spops_status status = SPOPS_STATUS_OK;
    spops_blob_reader reader;
    spops_segments_image image;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_blob_open(ctx, call, data, bytes, image_magic, IMAGE_VERSION, &reader));
    SPOPS_TRY_GOTO(spops_segments_image_read(ctx, call, &reader, false, &image), status, done);
    SPOPS_TRY_GOTO(spops_segments_image_build(ctx, call, &image, 0, out), status, done);

done:
    spops_segments_image_free(ctx, &image);
    return status;
}
