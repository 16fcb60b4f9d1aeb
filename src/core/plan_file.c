// SPDX-License-Identifier: Apache-2.0
// Plans as bytes: what they begin and end with, and the order in which an image is filled.
#include "core/plan_file.h"

#include <stddef.h>
#include <string.h>

#include "core/check.h"

#define XXH_INLINE_ALL // its functions are this file's own
#include "third_party/xxhash/xxhash.h"

uint64_t spops_file_checksum(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

// Between the host's order of bytes and a file's.
static void copy_numbers(unsigned char *to, const unsigned char *from, size_t n, size_t width)
{
    if (n == 0) return;
    memcpy(to, from, n * width);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    for (size_t i = 0; i < n * width; ++i)
        to[i] = from[i / width * width + width - 1 - i % width];
#endif
}

void spops_file_numbers(spops_file *f, void *values, int64_t n, size_t width)
{
    const size_t bytes = (size_t)n * width;

    if (f->from != NULL && (f->failed || bytes > f->bytes - f->at)) {
        f->failed = true;
        memset(values, 0, bytes);
        return;
    }
    if (f->from != NULL) copy_numbers(values, f->from + f->at, (size_t)n, width);
    if (f->to != NULL) copy_numbers(f->to + f->at, values, (size_t)n, width);
    f->at += bytes;
}

void spops_file_int32s(spops_file *f, int32_t *const *places, size_t num_places, int64_t n)
{
    for (size_t i = 0; i < num_places; ++i)
        spops_file_numbers(f, places[i], n, sizeof *places[i]);
}

spops_status spops_file_check(spops_context *ctx, const char *call, const char *name, int64_t value,
                              int64_t low, int64_t high)
{
    SPOPS_REQUIRE(ctx, low != high || value == low, "%s: %s is %" PRId64 ", expected %" PRId64,
                  call, name, value, low);
    SPOPS_REQUIRE(ctx, value >= low && value <= high,
                  "%s: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, call, name, value, low,
                  high);
    return SPOPS_STATUS_OK;
}

// ---- Save ---------------------------------------------------------------------------------------

static void put_file(spops_file *f, const spops_plan_file *file, void *image, int32_t *arrays,
                     int64_t num)
{
    spops_plan_file head = *file;
    uint64_t checksum = 0;

    spops_file_numbers(f, head.magic, sizeof head.magic, 1);
    spops_file_numbers(f, &head.version, 1, sizeof head.version);
    file->numbers(f, image);
    spops_file_numbers(f, arrays, num, sizeof *arrays);
    if (f->to != NULL) checksum = spops_file_checksum(f->to, f->at);
    spops_file_numbers(f, &checksum, 1, sizeof checksum);
}

typedef union file_image {
    max_align_t aligned;
    char bytes[SPOPS_FILE_IMAGE_BYTES];
} file_image;

// An empty image of a kind, with what it stands on.
static spops_status open_image(spops_context *ctx, const char *call, spops_plan_kind kind,
                               const spops_plan *const *parents, int32_t num_parents,
                               file_image *image)
{
    const spops_plan_file *file = spops_plan_file_of(kind);
    const char *name = spops_plan_kinds(NULL)[kind - 1].name;

    memset(image, 0, sizeof *image);
    if (file == NULL)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: plans of kind %s are not saved",
                          call, name);
    if (file->stand != NULL) return file->stand(ctx, call, parents, num_parents, image);
    SPOPS_REQUIRE(ctx, num_parents == 0, "%s: num_parents is %" PRId32 ", expected 0 of kind %s",
                  call, num_parents, name);
    return SPOPS_STATUS_OK;
}

static spops_status save_image(spops_context *ctx, const char *call, const spops_plan *plan,
                               void *image, void *buffer, size_t capacity, size_t *bytes)
{
    const spops_plan_file *file = plan->ops->file;
    spops_file measured = {0}, written = {.to = buffer};
    spops_status status;
    int32_t *arrays;
    int64_t num;

    SPOPS_REQUIRE(ctx, !plan->refillable, "%s: the plan was made by %s_reserve", call,
                  spops_plan_kinds(NULL)[plan->kind - 1].name);
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(file->describe(ctx, call, plan, image));
    num = file->place(image, NULL);
    put_file(&measured, file, image, NULL, num);
    *bytes = measured.at;
    if (buffer == NULL) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, capacity >= *bytes, "%s: capacity is %zu, expected at least %zu", call,
                  capacity, *bytes);
    arrays = spops_host_alloc(ctx, (size_t)num, sizeof *arrays);
    if (arrays == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    (void)file->place(image, arrays);
    status = file->fetch(ctx, plan, image);
    if (status == SPOPS_STATUS_OK) put_file(&written, file, image, arrays, num);
    spops_host_free(ctx, arrays, (size_t)num, sizeof *arrays);
    return status;
}

spops_status spops_plan_save(spops_context *ctx, const spops_plan *plan,
                             const spops_plan *const *parents, int32_t num_parents, void *buffer,
                             size_t capacity, size_t *bytes)
{
    static const char call[] = "plan_save";
    file_image image;

    SPOPS_BEGIN_CALL(ctx, call);
    ctx->call = call;
    SPOPS_TRY(spops_plan_check(ctx, call, "plan", plan));
    SPOPS_TRY(spops_check_object(ctx, call, "bytes", bytes, sizeof *bytes));
    SPOPS_TRY(open_image(ctx, call, plan->kind, parents, num_parents, &image));
    return save_image(ctx, call, plan, &image, buffer, capacity, bytes);
}

// ---- Load ---------------------------------------------------------------------------------------

// Magic, version and checksum; f stands behind the version, and ends before the checksum.
static spops_status open_file(spops_context *ctx, const char *call, const spops_plan_file *file,
                              const void *data, size_t bytes, spops_file *f)
{
    const size_t least =
        sizeof file->magic + sizeof file->version + (size_t)SPOPS_FILE_CHECKSUM_BYTES;
    char magic[sizeof file->magic];
    uint32_t version;
    uint64_t checksum, expected;

    SPOPS_REQUIRE(ctx, bytes >= least, "%s: %zu bytes, expected at least %zu", call, bytes, least);
    *f = (spops_file){.from = data, .bytes = bytes, .at = bytes - SPOPS_FILE_CHECKSUM_BYTES};
    spops_file_numbers(f, &checksum, 1, sizeof checksum);
    f->bytes -= SPOPS_FILE_CHECKSUM_BYTES;
    f->at = 0;
    spops_file_numbers(f, magic, sizeof magic, 1);
    spops_file_numbers(f, &version, 1, sizeof version);
    SPOPS_REQUIRE(ctx, memcmp(magic, file->magic, sizeof magic) == 0,
                  "%s: the data does not begin with \"%.8s\"", call, file->magic);
    SPOPS_REQUIRE(ctx, version == file->version,
                  "%s: the data has format version %" PRIu32 ", expected %" PRIu32, call, version,
                  file->version);
    expected = spops_file_checksum(data, f->bytes);
    SPOPS_REQUIRE(ctx, checksum == expected,
                  "%s: the checksum is %016" PRIx64 ", expected %016" PRIx64, call, checksum,
                  expected);
    return SPOPS_STATUS_OK;
}

static spops_status read_file(spops_context *ctx, const char *call, const spops_plan_file *file,
                              void *image, const void *data, size_t bytes, void *out)
{
    spops_file f;
    spops_status status;
    int32_t *arrays;
    int64_t num;
    size_t expected;

    SPOPS_TRY(open_file(ctx, call, file, data, bytes, &f));
    file->numbers(&f, image);
    SPOPS_REQUIRE(ctx, !f.failed, "%s: the data ends within its numbers", call);
    SPOPS_TRY(file->check(ctx, call, image));
    num = file->place(image, NULL);
    expected = spops_mul_bytes((size_t)num, sizeof *arrays);
    // Nothing is allocated before it is known to fit.
    SPOPS_REQUIRE(ctx, f.bytes - f.at == expected, "%s: %zu bytes of arrays, expected %zu", call,
                  f.bytes - f.at, expected);
    arrays = spops_host_alloc(ctx, (size_t)num, sizeof *arrays);
    if (arrays == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    spops_file_numbers(&f, arrays, num, sizeof *arrays);
    (void)file->place(image, arrays);
    status = file->make(ctx, call, image, out);
    spops_host_free(ctx, arrays, (size_t)num, sizeof *arrays);
    return status;
}

spops_status spops_plan_load(spops_context *ctx, spops_plan_kind kind,
                             const spops_plan *const *parents, int32_t num_parents,
                             const void *data, size_t bytes, spops_plan **plan)
{
    static const char call[] = "plan_load";
    int32_t num_kinds = 0;
    spops_status status;
    file_image image;

    SPOPS_BEGIN_CREATE(ctx, call, plan);
    ctx->call = call;
    (void)spops_plan_kinds(&num_kinds);
    SPOPS_REQUIRE(ctx, (int)kind >= 1 && (int)kind <= num_kinds, "%s: kind is %d, expected 1 to %d",
                  call, (int)kind, (int)num_kinds);
    SPOPS_TRY(open_image(ctx, call, kind, parents, num_parents, &image));
    SPOPS_REQUIRE(ctx, data != NULL, "%s: data is NULL", call);
    status = read_file(ctx, call, spops_plan_file_of(kind), &image, data, bytes, plan);
    if (status != SPOPS_STATUS_INVALID_ARGUMENT) return status;
    return spops_fail(ctx, SPOPS_STATUS_CORRUPT_DATA, "%s", spops_last_error(ctx));
}
