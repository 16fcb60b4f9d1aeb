// SPDX-License-Identifier: Apache-2.0
// Little-endian bytes in and out, checked against the buffer's end. What the numbers mean, and
// whether they make sense, is for the plans that are saved this way.
#include "core/blob.h"

#include <string.h>

#define XXH_INLINE_ALL // its functions are this file's own
#include "third_party/xxhash/xxhash.h"

static void put_bytes(spops_blob_writer *w, const void *bytes, size_t n)
{
    if (w->data != NULL && w->used <= w->capacity && n <= w->capacity - w->used)
        memcpy(w->data + w->used, bytes, n);
    w->used = n > SIZE_MAX - w->used ? SIZE_MAX : w->used + n;
}

static void put_u64(spops_blob_writer *w, uint64_t value, size_t n)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < n; ++i)
        bytes[i] = (unsigned char)(value >> (8 * i));
    put_bytes(w, bytes, n);
}

void spops_blob_write_header(spops_blob_writer *w, const char magic[SPOPS_BLOB_MAGIC_BYTES],
                             uint32_t version)
{
    put_bytes(w, magic, SPOPS_BLOB_MAGIC_BYTES);
    put_u64(w, version, 4);
}

void spops_blob_write_i32(spops_blob_writer *w, int32_t value)
{
    put_u64(w, (uint32_t)value, 4);
}
void spops_blob_write_i64(spops_blob_writer *w, int64_t value)
{
    put_u64(w, (uint64_t)value, 8);
}

void spops_blob_write_i32s(spops_blob_writer *w, const int32_t *values, int64_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n > 0) put_bytes(w, values, (size_t)n * sizeof *values);
#else
    for (int64_t i = 0; i < n; ++i)
        spops_blob_write_i32(w, values[i]);
#endif
}

void spops_blob_write_zeros(spops_blob_writer *w, size_t n)
{
    static const unsigned char zeros[256];
    for (; w->data != NULL && n > sizeof zeros; n -= sizeof zeros)
        put_bytes(w, zeros, sizeof zeros);
    if (w->data != NULL)
        put_bytes(w, zeros, n);
    else
        w->used += n;
}

void spops_blob_write_checksum(spops_blob_writer *w)
{
    const bool complete = w->data != NULL && w->used <= w->capacity;
    put_u64(w, complete ? spops_blob_checksum(w->data, w->used) : 0, SPOPS_BLOB_CHECKSUM_BYTES);
}

static uint64_t get_u64(const unsigned char *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; ++i)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static uint64_t read_u64(spops_blob_reader *r, size_t n)
{
    uint64_t value;
    if (r->failed || n > r->bytes - r->at) {
        r->failed = true;
        return 0;
    }
    value = get_u64(r->data + r->at, n);
    r->at += n;
    return value;
}

spops_status spops_blob_open(spops_context *ctx, const char *call, const void *data, size_t bytes,
                             const char magic[SPOPS_BLOB_MAGIC_BYTES], uint32_t version,
                             spops_blob_reader *r)
{
    const size_t least = SPOPS_BLOB_MAGIC_BYTES + 4 + SPOPS_BLOB_CHECKSUM_BYTES;
    const unsigned char *d = (const unsigned char *)data;
    uint32_t found;
    uint64_t checksum, expected;

    SPOPS_REQUIRE(ctx, data != NULL, "%s: data is NULL", call);
    if (bytes < least)
        return spops_fail(ctx, SPOPS_STATUS_CORRUPT_DATA, "%s: %zu bytes, expected at least %zu",
                          call, bytes, least);
    if (memcmp(d, magic, SPOPS_BLOB_MAGIC_BYTES) != 0)
        return spops_fail(ctx, SPOPS_STATUS_CORRUPT_DATA,
                          "%s: the data does not begin with \"%.8s\"", call, magic);
    found = (uint32_t)get_u64(d + SPOPS_BLOB_MAGIC_BYTES, 4);
    if (found != version)
        return spops_fail(ctx, SPOPS_STATUS_CORRUPT_DATA,
                          "%s: the data has format version %" PRIu32 ", expected %" PRIu32, call,
                          found, version);
    checksum = get_u64(d + bytes - SPOPS_BLOB_CHECKSUM_BYTES, SPOPS_BLOB_CHECKSUM_BYTES);
    expected = spops_blob_checksum(d, bytes - SPOPS_BLOB_CHECKSUM_BYTES);
    if (checksum != expected)
        return spops_fail(ctx, SPOPS_STATUS_CORRUPT_DATA,
                          "%s: the checksum is %016" PRIx64 ", expected %016" PRIx64, call,
                          checksum, expected);
    r->data = d;
    r->bytes = bytes - SPOPS_BLOB_CHECKSUM_BYTES;
    r->at = SPOPS_BLOB_MAGIC_BYTES + 4;
    r->failed = false;
    return SPOPS_STATUS_OK;
}

int32_t spops_blob_read_i32(spops_blob_reader *r)
{
    return (int32_t)(uint32_t)read_u64(r, 4);
}
int64_t spops_blob_read_i64(spops_blob_reader *r)
{
    return (int64_t)read_u64(r, 8);
}

void spops_blob_read_i32s(spops_blob_reader *r, int32_t *values, int64_t n)
{
    if (r->failed || n < 0 || (uint64_t)n > (r->bytes - r->at) / sizeof *values) {
        r->failed = true;
        return;
    }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n > 0) memcpy(values, r->data + r->at, (size_t)n * sizeof *values);
    r->at += (size_t)n * sizeof *values;
#else
    for (int64_t i = 0; i < n; ++i)
        values[i] = spops_blob_read_i32(r);
#endif
}

size_t spops_blob_left(const spops_blob_reader *r)
{
    return r->failed ? 0 : r->bytes - r->at;
}

uint64_t spops_blob_checksum(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

bool spops_blob_read_zeros(spops_blob_reader *r, size_t n)
{
    if (r->failed || n > r->bytes - r->at) {
        r->failed = true;
        return false;
    }
    for (; n > 0; --n)
        if (r->data[r->at++] != 0) return false;
    return true;
}
