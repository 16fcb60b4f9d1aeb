// SPDX-License-Identifier: Apache-2.0
/* Parameters in a .safetensors file: 8 bytes of a length, a header of JSON, numbers. */
#include "engine/weights.h"

#include "engine/decoder_nodes.h"

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
static int read_tensor(graph *host, const weights_file *f, const char *name, int64_t expected,
                       float *values)
{
    static const struct {
        const char *name;
        const char *dtype;
        int64_t bytes;
    } dtypes[] = {{"\"F32\"", "f32", 4}, {"\"F16\"", "f16", 2}, {"\"BF16\"", "bf16", 2}};
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
    bytes = expected * dtypes[k].bytes;
    if (last - first != bytes) return refuse(f, name, "has another number of elements");
    as_stored = malloc((size_t)bytes + 1);
    failed = as_stored == NULL || fseek(f->file, (long)(f->data_at + first), SEEK_SET) != 0 ||
             fread(as_stored, 1, (size_t)bytes, f->file) != (size_t)bytes ||
             decoder_convert(host, dtypes[k].dtype, as_stored, "f32", values, expected);
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

int weights_read(graph *host, const weights_file *f, const network *net, int i, float *weights,
                 float *first, float *second)
{
    const layer *l = &net->layers[i];
    const int out = layer_file_outputs(net, i), taps = num_taps(l);
    const int64_t n = (int64_t)taps * l->in * out;
    char weight[64], bias[64];
    float *theirs;

    snprintf(weight, sizeof weight, "%s.weight", l->name);
    snprintf(bias, sizeof bias, "%s.bias", l->name);
    if (l->kind == LAYER_NORM)
        return read_tensor(host, f, weight, l->out, first) ||
               read_tensor(host, f, bias, l->out, second);
    for (int o = 0; o < l->out; ++o)
        first[o] = 0;
    theirs = (float *)malloc((size_t)n * sizeof *theirs);
    if (theirs == NULL || read_tensor(host, f, bias, out, first) ||
        read_tensor(host, f, weight, n, theirs)) {
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
