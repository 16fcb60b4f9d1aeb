// SPDX-License-Identifier: Apache-2.0
/*
 * Checkpoints: a network's numbers in a file, all little-endian.
 *
 *     0   magic "SPOPSEGM"
 *     8   u32 version (1)
 *    12   u32 flags: 1 weights are bf16, 2 moments follow
 *    16   u32 levels, u32 channels of each; u32 centre_only
 *         f64 voxel, m
 *         i64 step, i64 steps planned; u64 seed; f64 rate; u32 scans of a step; u32 classes
 *         i64 parameters, i64 of them weights of convolutions, i64 statistics
 *         weights, f32 or bf16: layers in order, each [taps][in][out]. The order, of L levels:
 *         stem, encode 0 to L-1, down 0 to L-2, up 0 to L-2, decode 0 to L-2, head; down l leads
 *         from level l to l+1, up l back (docs/training.md). Not the order in which they run
 *         f32 of batch norms: gamma and beta of each layer that has one, in the same order (stem,
 *         encode, down, decode)
 *         f32 statistics: running mean and variance of each of these
 *         f32 first and second moments of all parameters, with flag 2
 *         u64 checksum: FNV-1a, byte by byte, of everything before it
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "segment.h"
#include "support/device.h"
#include "support/elements.h"

#define MAGIC        "SPOPSEGM"
#define VERSION      1u
#define FLAG_NARROW  1u
#define FLAG_MOMENTS 2u
#define HEADER_BYTES (16 + 4 * (1 + SEGMENT_LEVELS + 1) + 8 + 8 + 8 + 8 + 8 + 4 + 4 + 3 * 8)
#define MOST_NUMBERS ((int64_t)1 << 28)

static bool fail(char *error, const char *name, const char *what)
{
    snprintf(error, SEGMENT_ERROR_BYTES, "%s: %s", name, what);
    return false;
}

static uint64_t checksum(const unsigned char *bytes, size_t num)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < num; ++i)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    return sum;
}

/* ---- Numbers ----------------------------------------------------------------------------------- */

static void put(unsigned char **at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; ++i)
        *(*at)++ = (unsigned char)(value >> (8 * i));
}

static uint64_t take(const unsigned char **at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i)
        value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}

static uint64_t bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put_floats(unsigned char **at, const float *values, int64_t num, bool narrow)
{
    for (int64_t i = 0; i < num; ++i) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        put(at, narrow ? elements_bf16_of_float(values[i]) : bits, narrow ? 2 : 4);
    }
}

static void take_floats(const unsigned char **at, float *values, int64_t num, bool narrow)
{
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t bits = (uint32_t)take(at, narrow ? 2 : 4) << (narrow ? 16 : 0);
        memcpy(&values[i], &bits, sizeof bits);
    }
}

/* ---- Saving ------------------------------------------------------------------------------------ */

static size_t bytes_of(int64_t parameters, int64_t weights, int64_t statistics, bool narrow,
                       bool moments)
{
    const int64_t floats = parameters - weights + statistics + (moments ? 2 * parameters : 0);
    return HEADER_BYTES + (size_t)weights * (narrow ? 2 : 4) + 4 * (size_t)floats + 8;
}

static bool write_file(const char *path, const unsigned char *bytes, size_t num,
                       char error[SEGMENT_ERROR_BYTES])
{
    char beside[4096];
    if (snprintf(beside, sizeof beside, "%s.part", path) >= (int)sizeof beside)
        return fail(error, path, "the name is too long");
    FILE *f = fopen(beside, "wb");
    if (f == NULL) return fail(error, beside, strerror(errno));
    bool ok = fwrite(bytes, 1, num, f) == num && fflush(f) == 0 && fsync(fileno(f)) == 0;
    ok = fclose(f) == 0 && ok;
    ok = ok && rename(beside, path) == 0;
    if (ok) return true;
    fail(error, path, strerror(errno));
    unlink(beside);
    return false;
}

bool segment_checkpoint_save(segment_network *n, const segment_checkpoint *about, const char *path)
{
    const bool narrow = about->narrow, moments = about->has_moments;
    const size_t parameter_bytes = (size_t)n->num_parameters * sizeof(float);
    const size_t num =
        bytes_of(n->num_parameters, n->num_weights, n->num_statistics, narrow, moments);
    unsigned char *bytes = malloc(num), *at = bytes;
    float *numbers = malloc(parameter_bytes + sizeof(float));
    bool ok = (bytes != NULL && numbers != NULL) || fail(n->error, path, "no memory to save it");

    if (ok) {
        memcpy(at, MAGIC, 8);
        at += 8;
        put(&at, VERSION, 4);
        put(&at, (narrow ? FLAG_NARROW : 0) | (moments ? FLAG_MOMENTS : 0), 4);
        put(&at, SEGMENT_LEVELS, 4);
        for (int l = 0; l < SEGMENT_LEVELS; ++l)
            put(&at, (uint32_t)n->shape.widths[l], 4);
        put(&at, (uint32_t)n->shape.centre_only, 4);
        put(&at, bits_of_double(n->shape.voxel_m), 8);
        put(&at, (uint64_t)about->step, 8);
        put(&at, (uint64_t)about->num_steps, 8);
        put(&at, about->seed, 8);
        put(&at, bits_of_double(about->rate), 8);
        put(&at, (uint32_t)about->together, 4);
        put(&at, SEGMENT_NUM_CLASSES, 4);
        put(&at, (uint64_t)n->num_parameters, 8);
        put(&at, (uint64_t)n->num_weights, 8);
        put(&at, (uint64_t)n->num_statistics, 8);
    }
    const struct {
        const float *from;
        int64_t num;
    } parts[] = {{n->parameters, n->num_parameters},
                 {n->statistics, n->num_statistics},
                 {n->moment1, n->num_parameters},
                 {n->moment2, n->num_parameters}};
    for (int i = 0; ok && i < (moments ? 4 : 2); ++i) {
        ok = device_download(n->backend, numbers, parts[i].from,
                             (size_t)parts[i].num * sizeof *numbers) ||
             fail(n->error, path, device_error());
        if (!ok) break;
        const int64_t first = i == 0 ? n->num_weights : 0;
        put_floats(&at, numbers, first, narrow);
        put_floats(&at, numbers + first, parts[i].num - first, false);
    }
    if (ok) {
        put(&at, checksum(bytes, num - 8), 8);
        ok = write_file(path, bytes, num, n->error);
    }
    free(bytes);
    free(numbers);
    return ok;
}

/* ---- Loading ----------------------------------------------------------------------------------- */

bool segment_checkpoint_parse(const char *name, const unsigned char *bytes, size_t num_bytes,
                              segment_checkpoint *about, char error[SEGMENT_ERROR_BYTES])
{
    const unsigned char *at = bytes + 8;
    memset(about, 0, sizeof *about);
    if (num_bytes < 12 || memcmp(bytes, MAGIC, 8) != 0)
        return fail(error, name, "not a checkpoint of this program");
    const uint32_t version = (uint32_t)take(&at, 4);
    if (version != VERSION) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: version %u, this program reads %u", name, version,
                 VERSION);
        return false;
    }
    if (num_bytes < HEADER_BYTES + 8) return fail(error, name, "truncated");
    const uint32_t flags = (uint32_t)take(&at, 4), levels = (uint32_t)take(&at, 4);
    if (levels != SEGMENT_LEVELS || (flags & ~(FLAG_NARROW | FLAG_MOMENTS)) != 0)
        return fail(error, name, "of another network");
    about->narrow = (flags & FLAG_NARROW) != 0;
    about->has_moments = (flags & FLAG_MOMENTS) != 0;
    for (int l = 0; l < SEGMENT_LEVELS; ++l)
        about->shape.widths[l] = (int32_t)take(&at, 4);
    about->shape.centre_only = take(&at, 4) != 0;
    about->shape.voxel_m = double_of_bits(take(&at, 8));
    about->step = (int64_t)take(&at, 8);
    about->num_steps = (int64_t)take(&at, 8);
    about->seed = take(&at, 8);
    about->rate = double_of_bits(take(&at, 8));
    about->together = (int32_t)take(&at, 4);
    const uint32_t classes = (uint32_t)take(&at, 4);
    const int64_t parameters = (int64_t)take(&at, 8), weights = (int64_t)take(&at, 8);
    const int64_t statistics = (int64_t)take(&at, 8);
    if (classes != SEGMENT_NUM_CLASSES) return fail(error, name, "of another network");
    if (parameters < 0 || parameters > MOST_NUMBERS || weights < 0 || weights > parameters ||
        statistics < 0 || statistics > MOST_NUMBERS)
        return fail(error, name, "damaged: its counts make no sense");
    const size_t expected =
        bytes_of(parameters, weights, statistics, about->narrow, about->has_moments);
    if (num_bytes != expected) {
        snprintf(error, SEGMENT_ERROR_BYTES, "%s: %s: %zu bytes, expected %zu", name,
                 num_bytes < expected ? "truncated" : "too long", num_bytes, expected);
        return false;
    }
    at = bytes + num_bytes - 8;
    if (take(&at, 8) != checksum(bytes, num_bytes - 8))
        return fail(error, name, "damaged: its checksum is wrong");
    return true;
}

bool segment_checkpoint_read(const char *path, unsigned char **bytes, size_t *num_bytes,
                             segment_checkpoint *about, char error[SEGMENT_ERROR_BYTES])
{
    FILE *f = fopen(path, "rb");
    long length = -1;
    *bytes = NULL;
    *num_bytes = 0;
    if (f == NULL) return fail(error, path, strerror(errno));
    if (fseek(f, 0, SEEK_END) == 0) length = ftell(f);
    bool ok = (length >= 0 && fseek(f, 0, SEEK_SET) == 0) || fail(error, path, "cannot be read");
    if (ok) {
        *num_bytes = (size_t)length;
        *bytes = malloc(*num_bytes + 1);
        ok = (*bytes != NULL && fread(*bytes, 1, *num_bytes, f) == *num_bytes) ||
             fail(error, path, "cannot be read");
    }
    fclose(f);
    ok = ok && segment_checkpoint_parse(path, *bytes, *num_bytes, about, error);
    if (ok) return true;
    free(*bytes);
    *bytes = NULL;
    return false;
}

bool segment_checkpoint_load(segment_network *n, const unsigned char *bytes, size_t num_bytes)
{
    segment_checkpoint about;
    if (!segment_checkpoint_parse("checkpoint", bytes, num_bytes, &about, n->error)) return false;
    const unsigned char *at = bytes + HEADER_BYTES - 3 * 8;
    const int64_t parameters = (int64_t)take(&at, 8), weights = (int64_t)take(&at, 8);
    const int64_t statistics = (int64_t)take(&at, 8);
    if (memcmp(&about.shape, &n->shape, sizeof about.shape) != 0 ||
        parameters != n->num_parameters || weights != n->num_weights ||
        statistics != n->num_statistics)
        return fail(n->error, "checkpoint", "of another network");
    const bool moments = about.has_moments && n->training;
    float *numbers =
        malloc((size_t)(parameters > statistics ? parameters : statistics) * sizeof *numbers);
    bool ok = numbers != NULL || fail(n->error, "checkpoint", "no memory to load it");
    const struct {
        float *to;
        int64_t num;
    } parts[] = {{n->parameters, parameters},
                 {n->statistics, statistics},
                 {n->moment1, parameters},
                 {n->moment2, parameters}};
    for (int i = 0; ok && i < (moments ? 4 : 2); ++i) {
        const int64_t first = i == 0 ? weights : 0;
        take_floats(&at, numbers, first, about.narrow);
        take_floats(&at, numbers + first, parts[i].num - first, false);
        ok = device_upload(n->backend, parts[i].to, numbers,
                           (size_t)parts[i].num * sizeof *numbers) ||
             fail(n->error, "checkpoint", device_error());
    }
    free(numbers);
    return ok && segment_refresh_weights(n);
}
