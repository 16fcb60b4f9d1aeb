// SPDX-License-Identifier: Apache-2.0
// Plans of segments as images in host memory: fetched from a plan, made into one, saved, and loaded
// with every number checked.
#include "segments/segments.h"

#include <string.h>

// ---- Arrays -------------------------------------------------------------------------------------

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
    bytes = spops_add_bytes(bytes, spops_mul_bytes(terms, inverse             ? 96
                                                          : image->parts != 0 ? 32
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

int64_t spops_segments_image_place(void *to, int32_t *at)
{
    spops_segments_image *image = to;
    const int64_t terms = image->parts & SPOPS_IMAGE_TERM ? image->num_terms : 0;
    const int64_t pairs = image->parts & SPOPS_IMAGE_PAIRS ? image->num_terms : 0;
    const int64_t num = image->num_segments + 1 + 2 * pairs + terms;
    const int64_t least = (int64_t)(plan_bytes(image) / (SPOPS_SEGMENTS_IMAGE_COST * sizeof *at));

    image->num_zeros = least > num ? least - num : 0;
    if (at != NULL) {
        image->offsets = at;
        image->a = pairs > 0 ? at + image->num_segments + 1 : NULL;
        image->b = pairs > 0 ? image->a + pairs : NULL;
        image->term = terms > 0 ? at + num - terms : NULL;
        image->zeros = at + num;
    }
    return num + image->num_zeros;
}

spops_status spops_segments_image_alloc(spops_context *ctx, spops_segments_image *image)
{
    const int64_t num = spops_segments_image_place(image, NULL);
    int32_t *arrays = spops_host_alloc(ctx, (size_t)num, sizeof *arrays);
    if (arrays == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    (void)spops_segments_image_place(image, arrays);
    return SPOPS_STATUS_OK;
}

void spops_segments_image_free(spops_context *ctx, spops_segments_image *image)
{
    const int64_t num = spops_segments_image_place(image, NULL);
    if (image->offsets != NULL)
        spops_host_free(ctx, image->offsets, (size_t)num, sizeof *image->offsets);
    image->offsets = NULL;
}

// ---- Of a plan, and into one ----------------------------------------------------------------------

spops_status spops_segments_image_describe(spops_context *ctx, const spops_segments *segments,
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
    if (image->num_terms == 0) return SPOPS_STATUS_OK;
    if (segments->forward.pairs != NULL) image->parts |= SPOPS_IMAGE_PAIRS;
    if (segments->forward.order != NULL) image->parts |= SPOPS_IMAGE_TERM;
    return SPOPS_STATUS_OK;
}

spops_status spops_segments_image_fetch(spops_context *ctx, const spops_segments *segments,
                                        spops_segments_image *image)
{
    spops_status status = SPOPS_STATUS_OK;
    const spops_backend *backend = ctx->backend;
    const spops_lists *lists = &segments->forward;
    const size_t n = (size_t)image->num_terms;
    int32_t *pairs = NULL;

    SPOPS_TRY(backend->download(ctx, image->offsets, lists->offsets,
                                (size_t)(image->num_segments + 1) * sizeof(int32_t)));
    if (image->term != NULL)
        SPOPS_TRY(backend->download(ctx, image->term, lists->order, n * sizeof(int32_t)));
    if (image->a == NULL) return SPOPS_STATUS_OK;
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
    spops_segments_sizes sizes;
    spops_lists_source source;
    spops_segments *s = NULL;
    int32_t *keys = NULL;
    spops_segments_image there = *image; // where the backend runs

    *out = NULL;
    memset(&sizes, 0, sizeof sizes);
    sizes.num_segments = image->num_segments;
    sizes.max_terms = image->num_terms;
    sizes.num_rows = image->num_rows;
    sizes.num_weights = image->num_weights;
    sizes.num_sources = image->num_sources;
    sizes.max_cols = image->max_cols;
    sizes.gradients = (spops_gradients)image->gradients;
    sizes.pairs = image->a != NULL;
    sizes.order = image->term != NULL;
    sizes.in_order = true;
    sizes.extra_bytes = (size_t)(spops_segments_image_place(&there, NULL) - image->num_zeros) *
                        sizeof *image->offsets;
    sizes.extra_scratch_bytes = extra_scratch_bytes;
    if (image->a != NULL && !image->pools && spops_segments_keeps_keys(ctx)) {
        keys = spops_host_alloc(ctx, (size_t)image->num_terms, sizeof *keys);
        if (keys == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        sizes.keys = find_keys(image, keys);
    }
    SPOPS_TRY_GOTO(spops_segments_alloc(ctx, call, &sizes, &s), status, done);
    (void)spops_segments_image_place(&there, s->extra);
    SPOPS_TRY_GOTO(ctx->backend->upload(ctx, there.offsets, image->offsets, sizes.extra_bytes),
                   status, done);
    if (s->keys != NULL)
        SPOPS_TRY_GOTO(
            ctx->backend->upload(ctx, s->keys, keys, (size_t)image->num_terms * sizeof *keys),
            status, done);

    memset(&source, 0, sizeof source);
    source.offsets = there.offsets;
    source.num_terms = image->num_terms;
    source.a = there.a;
    source.b = there.b;
    source.term = there.term;
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

// ---- Saved --------------------------------------------------------------------------------------

void spops_segments_image_numbers(spops_file *f, void *to)
{
    spops_segments_image *image = to;
    spops_file_numbers(f, &image->num_segments, 1, sizeof(int64_t));
    spops_file_numbers(f, &image->num_terms, 1, sizeof(int64_t));
    spops_file_numbers(f, &image->num_rows, 1, sizeof(int64_t));
    spops_file_numbers(f, &image->num_weights, 1, sizeof(int64_t));
    spops_file_numbers(f, &image->num_sources, 1, sizeof(int64_t));
    spops_file_numbers(f, &image->max_cols, 1, sizeof(int64_t));
    spops_file_numbers(f, &image->gradients, 1, sizeof(int32_t));
    spops_file_numbers(f, &image->parts, 1, sizeof(int32_t));
}

spops_status spops_segments_image_check(spops_context *ctx, const char *call, void *to)
{
    const spops_segments_image *image = to;
    const int64_t max = SPOPS_MAX_COUNT, terms = image->num_terms;
    // A term without pairs takes the row and the weight of its own number.
    const int64_t taken = image->parts & SPOPS_IMAGE_PAIRS ? 0 : terms;
    SPOPS_TRY(spops_file_check(ctx, call, "num_segments", image->num_segments, 0, max));
    SPOPS_TRY(spops_file_check(ctx, call, "num_terms", terms, 0, max));
    SPOPS_TRY(spops_file_check(ctx, call, "num_rows", image->num_rows, taken, max));
    SPOPS_TRY(spops_file_check(ctx, call, "num_weights", image->num_weights, taken, max));
    SPOPS_TRY(spops_file_check(ctx, call, "num_sources", image->num_sources, terms, max));
    SPOPS_TRY(spops_file_check(ctx, call, "max_cols", image->max_cols, 1, max));
    SPOPS_TRY(spops_file_check(ctx, call, "gradients", image->gradients, 0, SPOPS_GRADIENTS_ALL));
    SPOPS_REQUIRE(ctx,
                  image->parts == 0 || image->parts == SPOPS_IMAGE_PAIRS ||
                      image->parts == (SPOPS_IMAGE_PAIRS | SPOPS_IMAGE_TERM),
                  "%s: flags are %" PRId32 ", expected 0, %d or %d", call, image->parts,
                  SPOPS_IMAGE_PAIRS, SPOPS_IMAGE_PAIRS | SPOPS_IMAGE_TERM);
    return SPOPS_STATUS_OK;
}

static spops_status check_elements(spops_context *ctx, const char *call, const char *name,
                                   const int32_t *array, int64_t n, int64_t high)
{
    if (array == NULL) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, n == 0 || high > 0,
                  "%s: %s has %" PRId64 " elements, and there is nothing to name", call, name, n);
    for (int64_t i = 0; i < n; ++i)
        SPOPS_REQUIRE(ctx, array[i] >= 0 && array[i] < high,
                      "%s: %s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64, call, name, i,
                      array[i], high - 1);
    return SPOPS_STATUS_OK;
}

spops_status spops_segments_image_check_arrays(spops_context *ctx, const char *call,
                                               const spops_segments_image *image)
{
    const int32_t *offsets = image->offsets, *term = image->term;
    const int64_t n = image->num_terms;

    SPOPS_REQUIRE(ctx, offsets[0] == 0, "%s: offsets[0] is %" PRId32 ", expected 0", call,
                  offsets[0]);
    for (int64_t s = 0; s < image->num_segments; ++s)
        SPOPS_REQUIRE(ctx, offsets[s + 1] >= offsets[s],
                      "%s: offsets[%" PRId64 "] is %" PRId32 ", less than %" PRId32, call, s + 1,
                      offsets[s + 1], offsets[s]);
    SPOPS_REQUIRE(ctx, offsets[image->num_segments] == n,
                  "%s: offsets[%" PRId64 "] is %" PRId32 ", expected %" PRId64, call,
                  image->num_segments, offsets[image->num_segments], n);
    SPOPS_TRY(check_elements(ctx, call, "rows", image->a, n, image->num_rows));
    SPOPS_TRY(check_elements(ctx, call, "weights", image->b, n, image->num_weights));
    SPOPS_TRY(check_elements(ctx, call, "terms", term, n, image->num_sources));
    // Ties and the order of sums rest on this.
    for (int64_t s = 0; term != NULL && s < image->num_segments; ++s)
        for (int64_t p = (int64_t)offsets[s] + 1; p < offsets[s + 1]; ++p)
            SPOPS_REQUIRE(ctx, term[p] > term[p - 1],
                          "%s: terms[%" PRId64 "] is %" PRId32 ", expected more than %" PRId32
                          " before it in segment %" PRId64,
                          call, p, term[p], term[p - 1], s);
    for (int64_t i = 0; i < image->num_zeros; ++i)
        SPOPS_REQUIRE(ctx, image->zeros[i] == 0,
                      "%s: something is where %" PRId64 " zeros should be", call, image->num_zeros);
    return SPOPS_STATUS_OK;
}

_Static_assert(sizeof(spops_segments_image) <= SPOPS_FILE_IMAGE_BYTES, "an image has no room");

static spops_status describe(spops_context *ctx, const char *call, const spops_plan *plan,
                             void *image)
{
    (void)call;
    return spops_segments_image_describe(ctx, (const spops_segments *)plan, image);
}

static spops_status fetch(spops_context *ctx, const spops_plan *plan, void *image)
{
    return spops_segments_image_fetch(ctx, (const spops_segments *)plan, image);
}

static spops_status make(spops_context *ctx, const char *call, const void *image, void *out)
{
    SPOPS_TRY(spops_segments_image_check_arrays(ctx, call, image));
    return spops_segments_image_build(ctx, call, image, 0, out);
}

const spops_plan_file spops_segments_file = {
    .magic = "SPOPSEG",
    .version = 4, // zeros are whole numbers
    .numbers = spops_segments_image_numbers,
    .place = spops_segments_image_place,
    .describe = describe,
    .fetch = fetch,
    .check = spops_segments_image_check,
    .make = make,
};
