// SPDX-License-Identifier: Apache-2.0
// Bytes of saved plans: a writer and a reader of little-endian numbers that never leave their
// buffer, and the checksum that closes a blob.
//
//     magic (8 bytes) | version u32 | content ... | checksum u64 of everything before it
#ifndef SPOPS_CORE_BLOB_H
#define SPOPS_CORE_BLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPOPS_BLOB_MAGIC_BYTES    8
#define SPOPS_BLOB_CHECKSUM_BYTES 8

// Writes into data, or only counts where data is NULL. Bytes that do not fit are counted, not
// written.
typedef struct spops_blob_writer {
    unsigned char *data;
    size_t capacity;
    size_t used;
} spops_blob_writer;

void spops_blob_write_header(spops_blob_writer *w, const char magic[SPOPS_BLOB_MAGIC_BYTES],
                             uint32_t version);
void spops_blob_write_i32(spops_blob_writer *w, int32_t value);
void spops_blob_write_i64(spops_blob_writer *w, int64_t value);
void spops_blob_write_i32s(spops_blob_writer *w, const int32_t *values, int64_t n);
void spops_blob_write_zeros(spops_blob_writer *w, size_t n);
void spops_blob_write_checksum(spops_blob_writer *w);

// Reads; past the end it yields 0 and sets failed, which sticks.
typedef struct spops_blob_reader {
    const unsigned char *data;
    size_t bytes;
    size_t at;
    bool failed;
} spops_blob_reader;

// Check magic, version and checksum, and stand after the version; the checksum is cut off.
// CORRUPT_DATA, naming `call`, if they are not as expected.
spops_status spops_blob_open(spops_context *ctx, const char *call, const void *data, size_t bytes,
                             const char magic[SPOPS_BLOB_MAGIC_BYTES], uint32_t version,
                             spops_blob_reader *r);
int32_t spops_blob_read_i32(spops_blob_reader *r);
int64_t spops_blob_read_i64(spops_blob_reader *r);
void spops_blob_read_i32s(spops_blob_reader *r, int32_t *values, int64_t n);
size_t spops_blob_left(const spops_blob_reader *r);
// Whether the next n bytes are there and zero; they are skipped.
bool spops_blob_read_zeros(spops_blob_reader *r, size_t n);

// XXH3, 64 bits, without a seed: the same on every processor.
uint64_t spops_blob_checksum(const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
