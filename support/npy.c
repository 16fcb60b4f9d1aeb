// SPDX-License-Identifier: Apache-2.0
#include "support/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC_BYTES  6
#define HEADER_BYTES 128 // that we write: any multiple of 64 that has room
#define HEADER_MOST  4096
#define VALUES_MOST  ((int64_t)1 << 40)

static const char magic[MAGIC_BYTES + 1] = "\x93NUMPY";

static const char *descr(npy_type type)
{
    static const char *const names[] = {"<f4", "|u1", "<f2", "<f8"};
    return names[type];
}

static size_t type_bytes(npy_type type)
{
    static const size_t bytes[] = {4, 1, 2, 8};
    return bytes[type];
}

__attribute__((format(printf, 3, 4))) static bool fail(char *error, size_t bytes,
                                                       const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, bytes, format, args);
    va_end(args);
    return false;
}

bool npy_write(const char *path, npy_type type, int64_t rows, int64_t cols, const void *values,
               char *error, size_t error_bytes)
{
    unsigned char header[HEADER_BYTES];
    char shape[64];
    const size_t all = (size_t)rows * (size_t)(cols > 0 ? cols : 1) * type_bytes(type);

    memset(header, ' ', sizeof header);
    memcpy(header, magic, MAGIC_BYTES);
    header[6] = 1, header[7] = 0, header[8] = HEADER_BYTES - 10, header[9] = 0;
    if (cols > 0)
        snprintf(shape, sizeof shape, "(%" PRId64 ", %" PRId64 ")", rows, cols);
    else
        snprintf(shape, sizeof shape, "(%" PRId64 ",)", rows);
    const int length =
        snprintf((char *)header + 10, sizeof header - 10,
                 "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr(type), shape);
    header[10 + length] = ' ';
    header[HEADER_BYTES - 1] = '\n';

    FILE *f = fopen(path, "wb");
    if (f == NULL) return fail(error, error_bytes, "%s: %s", path, strerror(errno));
    const bool wrote =
        fwrite(header, 1, sizeof header, f) == sizeof header && fwrite(values, 1, all, f) == all;
    const bool closed = fclose(f) == 0;
    return (wrote && closed) || fail(error, error_bytes, "%s: cannot be written", path);
}

// The shape in a header: one or two numbers. Returns how many, 0 where it is none.
static int parse_shape(const char *header, int64_t shape[2])
{
    const char *at = strstr(header, "'shape':");
    char *end;
    int dims = 0;
    if (at == NULL || (at = strchr(at, '(')) == NULL) return 0;
    for (++at; dims < 2;) {
        errno = 0;
        const long long value = strtoll(at, &end, 10);
        if (end == at || errno != 0 || value < 0) return 0;
        shape[dims++] = value;
        at = end + strspn(end, " ");
        if (*at == ',') at += 1 + strspn(at + 1, " ");
        if (*at == ')') return dims;
    }
    return 0;
}

// The first of `types` that the header has; num_types where it has none.
static int find_type(const char *header, const npy_type *types, int num_types)
{
    int i = 0;
    while (i < num_types && strstr(header, descr(types[i])) == NULL)
        ++i;
    return i;
}

// The text of a header after `key`, from a character of `from` to one of `to`; "?" where there is none.
static void find_text(const char *header, const char *key, const char *from, const char *to,
                      char text[64])
{
    const char *at = strstr(header, key);
    if (at != NULL) at = strpbrk(at + strlen(key), from);
    const size_t length = at != NULL ? strcspn(at + 1, to) : 0;
    if (at == NULL || at[1 + length] == '\0' || length > 61) {
        snprintf(text, 64, "?");
        return;
    }
    snprintf(text, 64, "%.*s", (int)length, at + 1);
}

// The text that says what the array is.
static bool read_header(FILE *f, const char *path, char header[HEADER_MOST + 1], char *error,
                        size_t error_bytes)
{
    unsigned char start[12];

    if (fread(start, 1, 10, f) != 10 || memcmp(start, magic, MAGIC_BYTES) != 0 ||
        (start[6] != 1 && start[6] != 2))
        return fail(error, error_bytes, "%s: not a .npy file of format 1 or 2", path);
    size_t length = start[8] + 256u * start[9];
    if (start[6] == 2) {
        if (fread(start + 10, 1, 2, f) != 2)
            return fail(error, error_bytes, "%s: its header ends early", path);
        length += 65536u * start[10] + 16777216u * start[11];
    }
    if (length > HEADER_MOST || fread(header, 1, length, f) != length)
        return fail(error, error_bytes, "%s: its header ends early or is too long", path);
    header[length] = '\0';
    return true;
}

// cols -1: any number of columns, which *found_cols gets.
static bool read_array(const char *path, const npy_type *types, int num_types, int64_t cols,
                       npy_type *found, int64_t *rows, int64_t *found_cols, void **values,
                       char *error, size_t error_bytes)
{
    char header[HEADER_MOST + 1];
    int64_t shape[2] = {0, 0};
    bool ok = false;

    *values = NULL;
    *rows = 0;
    FILE *f = fopen(path, "rb");
    if (f == NULL) return fail(error, error_bytes, "%s: %s", path, strerror(errno));
    if (!read_header(f, path, header, error, error_bytes)) goto done;
    const int dims = parse_shape(header, shape);
    const int64_t wide = dims == 2 ? shape[1] : 0;
    const int which = find_type(header, types, num_types);
    if (cols < 0 && dims == 2) cols = wide;
    if (which == num_types || strstr(header, "'fortran_order': False") == NULL || dims == 0 ||
        wide != cols || shape[0] > VALUES_MOST / (cols > 0 ? cols : 1)) {
        char wanted[32] = "";
        if (cols > 0 && num_types == 1) snprintf(wanted, sizeof wanted, ", %" PRId64, cols);
        char has_type[64], has_shape[64];
        find_text(header, "'descr':", "'[", "']", has_type);
        find_text(header, "'shape':", "(", ")", has_shape);
        fail(error, error_bytes,
             "%s: is %s of shape [%s]%s, expected %s%s of shape [n%s] in C order", path, has_type,
             has_shape, strstr(header, "'fortran_order': False") == NULL ? " in Fortran order" : "",
             descr(types[0]), num_types > 1 ? ", <f2 or <f8" : "",
             num_types > 1 ? ", columns" : wanted);
        goto done;
    }
    const npy_type type = types[which];
    const size_t all = (size_t)shape[0] * (size_t)(cols > 0 ? cols : 1) * type_bytes(type);
    // Longer than the file says: read no more memory than there is to fill.
    long here = ftell(f), end = -1;
    if (here >= 0 && fseek(f, 0, SEEK_END) == 0) end = ftell(f);
    if (end < 0 || (size_t)(end - here) != all || fseek(f, here, SEEK_SET) != 0) {
        fail(error, error_bytes, "%s: its shape asks for %zu bytes, and it has %ld", path, all,
             end - here);
        goto done;
    }
    *values = malloc(all > 0 ? all : 1);
    if (*values == NULL || fread(*values, 1, all, f) != all) {
        fail(error, error_bytes, "%s: %s", path,
             *values == NULL ? "no memory for it" : "cannot be read");
        free(*values);
        *values = NULL;
        goto done;
    }
    *rows = shape[0];
    *found_cols = cols;
    *found = type;
    ok = true;

done:
    fclose(f);
    return ok;
}

bool npy_read(const char *path, npy_type type, int64_t cols, int64_t *rows, void **values,
              char *error, size_t error_bytes)
{
    npy_type found;
    int64_t found_cols;
    return read_array(path, &type, 1, cols, &found, rows, &found_cols, values, error, error_bytes);
}

bool npy_read_matrix(const char *path, npy_type *type, int64_t *rows, int64_t *cols, void **values,
                     char *error, size_t error_bytes)
{
    static const npy_type types[] = {NPY_F32, NPY_F16, NPY_F64};
    *cols = 0;
    return read_array(path, types, 3, -1, type, rows, cols, values, error, error_bytes);
}
