// SPDX-License-Identifier: Apache-2.0
/* Parameters in a .safetensors file: 8 bytes of a length, a header of JSON, numbers. */
#include "decoder/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 16 << 20 };

static int refuse(const weights_file *f, const char *name, const char *why)
{
    fprintf(stderr, "%s: %s: %s\n", f->path, name, why);
    return 1;
}

/* ---- Reading ---------------------------------------------------------------------------------- */

int weights_open(weights_file *f, const char *path)
{
    unsigned char length[8];
    uint64_t bytes = 0;

    memset(f, 0, sizeof *f);
    f->path = path;
    f->file = fopen(path, "rb");
    if (f->file == NULL) return refuse(f, "the file", "cannot be read");
    if (fread(length, 1, sizeof length, f->file) != sizeof length)
        return refuse(f, "the file", "is too short");
    for (int i = 7; i >= 0; --i)
        bytes = bytes << 8 | length[i];
    if (bytes < 2 || bytes > MAX_HEADER) return refuse(f, "the header", "has no sensible length");
    f->header = (char *)calloc(bytes + 1, 1);
    if (f->header == NULL || fread(f->header, 1, bytes, f->file) != bytes)
        return refuse(f, "the header", "cannot be read");
    f->data_at = (int64_t)(8 + bytes);
    if (fseek(f->file, 0, SEEK_END) != 0) return refuse(f, "the file", "has no end");
    f->data_bytes = (int64_t)ftell(f->file) - f->data_at;
    return 0;
}

void weights_close(weights_file *f)
{
    if (f->file != NULL) fclose(f->file);
    free(f->header);
    memset(f, 0, sizeof *f);
}

/* Where the value of a key begins in the object that begins at `object`; NULL where it has none. */
static const char *value_of(const char *object, const char *end, const char *key)
{
    char quoted[96];
    const char *at;
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    at = strstr(object, quoted);
    if (at == NULL || at >= end) return NULL;
    at += strlen(quoted);
    at += strspn(at, " \t\r\n");
    if (*at != ':') return NULL;
    ++at;
    return at + strspn(at, " \t\r\n");
}

/* `expected` numbers of a tensor as f32. */
static int read_tensor(weights_convert convert, void *user, const weights_file *f, const char *name,
                       int64_t expected, float *values)
{
    static const struct {
        const char *name;
        spops_dtype dtype;
    } dtypes[] = {
        {"\"F32\"", SPOPS_DTYPE_F32}, {"\"F16\"", SPOPS_DTYPE_F16}, {"\"BF16\"", SPOPS_DTYPE_BF16}};
    const char *object = value_of(f->header, f->header + strlen(f->header), name), *end, *at;
    int64_t first = 0, last = 0, bytes;
    void *as_stored;
    int k = 0, failed;

    end = object == NULL ? NULL : strchr(object, '}');
    if (end == NULL || *object != '{') return refuse(f, name, "is not in the file");
    at = value_of(object, end, "dtype");
    while (k < 3 && (at == NULL || strncmp(at, dtypes[k].name, strlen(dtypes[k].name)) != 0))
        ++k;
    if (k == 3) return refuse(f, name, "has another dtype than F32, F16 or BF16");
    at = value_of(object, end, "data_offsets");
    if (at == NULL || sscanf(at, "[%" SCNd64 " ,%" SCNd64, &first, &last) != 2 || first < 0 ||
        last < first || last > f->data_bytes)
        return refuse(f, name, "lies outside the file");
    bytes = expected * (int64_t)spops_dtype_bytes(dtypes[k].dtype);
    if (last - first != bytes) return refuse(f, name, "has another number of elements");
    as_stored = malloc((size_t)bytes + 1);
    failed = as_stored == NULL || fseek(f->file, (long)(f->data_at + first), SEEK_SET) != 0 ||
             fread(as_stored, 1, (size_t)bytes, f->file) != (size_t)bytes ||
             convert(user, dtypes[k].dtype, as_stored, values, expected);
    free(as_stored);
    return failed ? refuse(f, name, "cannot be read") : 0;
}

/* Element (tap, c, o) of a layer in its file. */
static size_t place_in_file(const layer *l, int tap, int c, int o)
{
    const int theirs = tap % 3 * 9 + tap / 3 % 3 * 3 + tap / 9;
    if (l->kind == LAYER_LINEAR) return (size_t)o * (size_t)l->in + (size_t)c;
    return ((size_t)o * TAPS + (size_t)theirs) * (size_t)l->in + (size_t)c;
}

static int num_taps(const layer *l)
{
    return l->kind == LAYER_CONV ? TAPS : 1;
}

int weights_read(weights_convert convert, void *user, const weights_file *f, const network *net,
                 int i, float *weights, float *first, float *second)
{
    const layer *l = &net->layers[i];
    const int out = layer_file_outputs(net, i), taps = num_taps(l);
    const int64_t n = (int64_t)taps * l->in * out;
    char weight[64], bias[64];
    float *theirs;

    snprintf(weight, sizeof weight, "%s.weight", l->name);
    snprintf(bias, sizeof bias, "%s.bias", l->name);
    if (l->kind == LAYER_NORM)
        return read_tensor(convert, user, f, weight, l->out, first) ||
               read_tensor(convert, user, f, bias, l->out, second);
    for (int o = 0; o < l->out; ++o)
        first[o] = 0;
    theirs = (float *)malloc((size_t)n * sizeof *theirs);
    if (theirs == NULL || read_tensor(convert, user, f, bias, out, first) ||
        read_tensor(convert, user, f, weight, n, theirs)) {
        free(theirs);
        return 1;
    }
    for (int k = 0; k < taps; ++k)
        for (int c = 0; c < l->in; ++c)
            for (int o = 0; o < l->out; ++o)
                *weights++ = o < out ? theirs[place_in_file(l, k, c, o)] : 0;
    free(theirs);
    return 0;
}

/* ---- Writing ---------------------------------------------------------------------------------- */

/* The header's entry of a tensor; returns where the next one begins. */
static int64_t write_entry(FILE *file, const char *name, const char *what, const char *shape,
                           int64_t elements, int64_t at)
{
    fprintf(file,
            "%s\"%s.%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%" PRId64 ",%" PRId64
            "]}",
            at == 0 ? "{" : ",", name, what, shape, at, at + 4 * elements);
    return at + 4 * elements;
}

static void write_header(FILE *file, const network *net)
{
    int64_t at = 0;
    for (int i = 0; i < net->num_layers; ++i) {
        const layer *l = &net->layers[i];
        const int out = layer_file_outputs(net, i);
        char shape[64], vector[16];
        if (l->kind == LAYER_REPEAT) continue;
        snprintf(vector, sizeof vector, "%d", out);
        if (l->kind == LAYER_CONV)
            snprintf(shape, sizeof shape, "%d,3,3,3,%d", out, l->in);
        else
            snprintf(shape, sizeof shape, "%d,%d", out, l->in);
        at = write_entry(file, l->name, "weight", l->kind == LAYER_NORM ? vector : shape,
                         l->kind == LAYER_NORM ? out : (int64_t)num_taps(l) * l->in * out, at);
        at = write_entry(file, l->name, "bias", vector, out, at);
    }
    fputs("}", file);
}

static int write_layer(FILE *file, const network *net, int i)
{
    const layer *l = &net->layers[i];
    const size_t n = (size_t)layer_num_weights(l), out = (size_t)layer_file_outputs(net, i);
    float *values = (float *)malloc((2 * n + 2 * (size_t)l->out) * sizeof *values);
    float *theirs = values + n, *first = theirs + n, *second = first + l->out, *from = values;
    int failed = values == NULL;

    if (!failed) {
        network_draw(net, i, values, first, second);
        for (int k = 0; k < num_taps(l) && n > 0; ++k)
            for (int c = 0; c < l->in; ++c)
                for (int o = 0; o < l->out; ++o, ++from)
                    if ((size_t)o < out) theirs[place_in_file(l, k, c, o)] = *from;
        if (l->kind == LAYER_NORM)
            failed = fwrite(first, sizeof *first, out, file) != out ||
                     fwrite(second, sizeof *second, out, file) != out;
        else
            failed = fwrite(theirs, sizeof *theirs, n / (size_t)l->out * out, file) !=
                         n / (size_t)l->out * out ||
                     fwrite(first, sizeof *first, out, file) != out;
    }
    free(values);
    return failed;
}

int weights_write(const char *path, const network *net)
{
    FILE *file = fopen(path, "wb");
    const unsigned char empty[8] = {0};
    int failed = file == NULL || fwrite(empty, 1, sizeof empty, file) != sizeof empty;

    if (!failed) {
        long bytes;
        write_header(file, net);
        bytes = ftell(file) - 8;
        for (; bytes % 8 != 0; ++bytes)
            fputc(' ', file);
        failed = fseek(file, 0, SEEK_SET) != 0;
        for (int k = 0; k < 8; ++k)
            fputc((int)((uint64_t)bytes >> (8 * k) & 255), file);
        failed |= fseek(file, 0, SEEK_END) != 0;
        for (int i = 0; i < net->num_layers && !failed; ++i)
            if (net->layers[i].kind != LAYER_REPEAT) failed = write_layer(file, net, i);
    }
    if (file != NULL) failed |= fclose(file) != 0;
    if (failed) fprintf(stderr, "%s: cannot be written\n", path);
    return failed;
}
