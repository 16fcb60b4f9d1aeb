// SPDX-License-Identifier: Apache-2.0
// .pcd by the Point Cloud Library's description of version 0.7, .ply by Turk's of 1.0, .las by the
// ASPRS specifications 1.2 to 1.4.
#include "support/cloud_records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cloud_fail(const cloud_source *s, const char *format, ...)
{
    va_list args;
    const int used = snprintf(s->error, s->error_bytes, "%s: ", s->name);
    va_start(args, format);
    if (used >= 0 && (size_t)used < s->error_bytes)
        vsnprintf(s->error + used, s->error_bytes - (size_t)used, format, args);
    va_end(args);
    return false;
}

int64_t cloud_type_bytes(cloud_type type)
{
    static const int64_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
    return bytes[type];
}

// ---- Numbers ------------------------------------------------------------------------------------

static uint64_t bits_of(const unsigned char *at, int64_t bytes, bool big_endian)
{
    uint64_t bits = 0;
    for (int64_t i = 0; i < bytes; ++i)
        bits |= (uint64_t)at[big_endian ? bytes - 1 - i : i] << (8 * i);
    return bits;
}

static double f64_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double f32_of(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return (double)value;
}

double cloud_number(const cloud_records *r, int64_t i, const cloud_field *field)
{
    const int64_t bytes = cloud_type_bytes(field->type);
    const uint64_t bits = bits_of(
        r->data + field->offset + i * (r->planar ? bytes : r->record_bytes), bytes, r->big_endian);
    double number = 0.0;
    switch (field->type) {
    case CLOUD_I8: number = (double)(int8_t)bits; break;
    case CLOUD_I16: number = (double)(int16_t)bits; break;
    case CLOUD_I32: number = (double)(int32_t)bits; break;
    case CLOUD_I64: number = (double)(int64_t)bits; break;
    case CLOUD_U8:
    case CLOUD_U16:
    case CLOUD_U32:
    case CLOUD_U64: number = (double)bits; break;
    case CLOUD_F32: number = f32_of(bits); break;
    case CLOUD_F64: number = f64_of(bits); break;
    }
    return field->scale * number + field->shift;
}

// ---- Lines and words of headers -----------------------------------------------------------------

enum { LINE_BYTES = 1024, MOST_WORDS = CLOUD_MOST_FIELDS + 1 };

typedef struct lines {
    const cloud_source *s;
    size_t at;
    char now[LINE_BYTES];
    char *words[MOST_WORDS];
    int num_words;
} lines;

// The next line of a header, cut into words.
static bool next_line(lines *l)
{
    const unsigned char *from = l->s->data + l->at;
    const unsigned char *end = memchr(from, '\n', l->s->bytes - l->at);
    const size_t n = end == NULL ? 0 : (size_t)(end - from);
    if (end == NULL) return cloud_fail(l->s, "its header ends early");
    if (n >= sizeof l->now)
        return cloud_fail(l->s, "a line of its header has %zu bytes, expected less than %d", n,
                          LINE_BYTES);
    memcpy(l->now, from, n);
    l->now[n] = '\0';
    l->at += n + 1;
    l->num_words = 0;
    for (char *word = strtok(l->now, " \t\r"); word != NULL; word = strtok(NULL, " \t\r")) {
        if (l->num_words == MOST_WORDS)
            return cloud_fail(l->s, "a line of its header has more than %d words", MOST_WORDS);
        l->words[l->num_words++] = word;
    }
    return true;
}

static bool starts(const lines *l, const char *word)
{
    return l->num_words > 0 && strcmp(l->words[0], word) == 0;
}

// A count; false where it is none, or above most.
static bool count_of(const char *word, int64_t most, int64_t *count)
{
    char *end;
    if (strlen(word) > 18 || strspn(word, "0123456789") != strlen(word)) return false;
    *count = strtoll(word, &end, 10);
    return end != word && *count <= most;
}

static bool add_field(const cloud_source *s, cloud_records *out, const char *name, cloud_type type)
{
    cloud_field *f = &out->fields[out->num_fields];
    if (out->num_fields == CLOUD_MOST_FIELDS)
        return cloud_fail(s, "has more than %d fields", CLOUD_MOST_FIELDS);
    if (strlen(name) >= sizeof f->name)
        return cloud_fail(s, "field name %.40s.. has %zu letters, expected less than %d", name,
                          strlen(name), CLOUD_NAME_BYTES);
    *f = (cloud_field){.type = type, .offset = out->record_bytes, .scale = 1.0};
    memcpy(f->name, name, strlen(name) + 1);
    out->record_bytes += cloud_type_bytes(type);
    ++out->num_fields;
    return true;
}

// The points lie at `at` of the file as records.
static bool place_binary(const cloud_source *s, size_t at, cloud_records *out)
{
    if (out->num > 0 && (int64_t)((s->bytes - at) / (size_t)out->record_bytes) < out->num)
        return cloud_fail(s,
                          "ends early: %" PRId64 " points of %" PRId64 " bytes after a header of "
                          "%zu, found %zu bytes",
                          out->num, out->record_bytes, at, s->bytes - at);
    out->data = s->data + at;
    return true;
}

// Numbers as text from `at` on become records of f64. skip: words that come before the points.
static bool read_text(const cloud_source *s, size_t at, int64_t skip, cloud_records *out)
{
    const char *text = (const char *)s->data + at;
    double *values;
    // A number and what parts it from the next have two bytes at least; the last may end the file.
    if (out->num * out->num_fields + skip > (int64_t)(s->bytes - at + 1) / 2)
        return cloud_fail(s,
                          "ends early: %" PRId64 " points of %d numbers, found %zu bytes of text",
                          out->num, out->num_fields, s->bytes - at);
    values = malloc((size_t)(out->num * out->num_fields) * sizeof *values + 1);
    if (values == NULL) return cloud_fail(s, "no memory for it");
    out->owned = (unsigned char *)values;
    out->data = out->owned;
    for (int64_t i = -skip; i < out->num * out->num_fields; ++i) {
        char *end;
        const double value = strtod(text, &end);
        if (end == text || strchr(" \t\r\n", *end) == NULL) { // strchr: also the end of the text
            text += strspn(text, " \t\r\n");
            if (i < 0)
                return cloud_fail(s, "found \"%.*s\" before the points, expected a number",
                                  (int)strcspn(text, " \t\r\n") % 20, text);
            return cloud_fail(s, "%s of point %" PRId64 " is \"%.*s\", expected a number",
                              out->fields[i % out->num_fields].name, i / out->num_fields,
                              (int)strcspn(text, " \t\r\n") % 20, text);
        }
        if (i >= 0) values[i] = value;
        text = end;
    }
    for (int f = 0; f < out->num_fields; ++f) {
        out->fields[f].type = CLOUD_F64;
        out->fields[f].offset = f * (int64_t)sizeof *values;
    }
    out->record_bytes = out->num_fields * (int64_t)sizeof *values;
    return true;
}

// ---- .pcd ---------------------------------------------------------------------------------------

enum { PCD_ASCII, PCD_BINARY, PCD_COMPRESSED };

typedef struct pcd_header {
    int num_fields;
    char names[CLOUD_MOST_FIELDS][CLOUD_NAME_BYTES];
    int64_t sizes[CLOUD_MOST_FIELDS], counts[CLOUD_MOST_FIELDS];
    char types[CLOUD_MOST_FIELDS];
    int64_t points;
    int coding;
} pcd_header;

static bool pcd_type(char letter, int64_t bytes, cloud_type *type)
{
    static const struct {
        char letter;
        int bytes;
        cloud_type type;
    } types[] = {{'I', 1, CLOUD_I8},  {'U', 1, CLOUD_U8},  {'I', 2, CLOUD_I16}, {'U', 2, CLOUD_U16},
                 {'I', 4, CLOUD_I32}, {'U', 4, CLOUD_U32}, {'I', 8, CLOUD_I64}, {'U', 8, CLOUD_U64},
                 {'F', 4, CLOUD_F32}, {'F', 8, CLOUD_F64}};
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
        if (types[i].letter == letter && types[i].bytes == bytes) {
            *type = types[i].type;
            return true;
        }
    return false;
}

// A line of the header with a word a field.
static bool pcd_words(lines *l, const pcd_header *h)
{
    if (l->num_words - 1 == h->num_fields && h->num_fields > 0) return true;
    return cloud_fail(l->s, "%s has %d words, expected %d as FIELDS before it", l->words[0],
                      l->num_words - 1, h->num_fields);
}

static bool read_pcd_line(lines *l, pcd_header *h)
{
    if (starts(l, "FIELDS") || starts(l, "COLUMNS")) {
        h->num_fields = l->num_words - 1;
        for (int f = 0; f < h->num_fields; ++f) {
            if (strlen(l->words[1 + f]) >= CLOUD_NAME_BYTES)
                return cloud_fail(l->s, "field name %.40s.. is too long", l->words[1 + f]);
            strcpy(h->names[f], l->words[1 + f]);
            h->counts[f] = 1;
        }
    } else if (starts(l, "SIZE") || starts(l, "COUNT")) {
        int64_t *to = starts(l, "SIZE") ? h->sizes : h->counts;
        if (!pcd_words(l, h)) return false;
        for (int f = 0; f < h->num_fields; ++f)
            if (!count_of(l->words[1 + f], 65536, &to[f]))
                return cloud_fail(l->s, "%s of field %s is %.20s, expected a small count",
                                  l->words[0], h->names[f], l->words[1 + f]);
    } else if (starts(l, "TYPE")) {
        if (!pcd_words(l, h)) return false;
        for (int f = 0; f < h->num_fields; ++f)
            h->types[f] = l->words[1 + f][0];
    } else if (starts(l, "POINTS")) {
        if (l->num_words != 2 || !count_of(l->words[1], INT32_MAX - 1, &h->points))
            return cloud_fail(l->s, "POINTS is %.20s, expected 0 to %d",
                              l->num_words > 1 ? l->words[1] : "missing", INT32_MAX - 1);
    } else if (starts(l, "DATA")) {
        static const char *const codings[] = {"ascii", "binary", "binary_compressed"};
        for (h->coding = 0; h->coding < 3; ++h->coding)
            if (l->num_words == 2 && strcmp(l->words[1], codings[h->coding]) == 0) return true;
        return cloud_fail(l->s, "DATA is %.20s, expected ascii, binary or binary_compressed",
                          l->num_words > 1 ? l->words[1] : "missing");
    }
    return true; // VERSION, WIDTH, HEIGHT, VIEWPOINT and comments say nothing about the numbers
}

// LZF (Lehmann): runs of literals, and of bytes that came before. False where it is damaged.
static bool expand_lzf(const unsigned char *from, size_t from_bytes, unsigned char *to,
                       size_t to_bytes)
{
    size_t i = 0, o = 0;
    while (i < from_bytes) {
        const unsigned control = from[i++];
        if (control < 32) {
            const size_t n = control + 1;
            if (from_bytes - i < n || to_bytes - o < n) return false;
            memcpy(to + o, from + i, n);
            i += n, o += n;
            continue;
        }
        size_t n = control >> 5, back = (size_t)(control & 31) << 8;
        if (n == 7) {
            if (i == from_bytes) return false;
            n += from[i++];
        }
        if (i == from_bytes) return false;
        back += from[i++] + 1u;
        n += 2;
        if (back > o || to_bytes - o < n) return false;
        for (; n > 0; --n, ++o)
            to[o] = to[o - back];
    }
    return o == to_bytes;
}

static bool place_compressed(const cloud_source *s, size_t at, cloud_records *out)
{
    enum { MOST_EXPANSION = 100 }; // 264 bytes from 3
    const uint64_t all = (uint64_t)(out->num * out->record_bytes);
    int64_t offset = 0;
    if (s->bytes - at < 8)
        return cloud_fail(s, "ends early: no sizes before its compressed points");
    const uint64_t from = bits_of(s->data + at, 4, false), to = bits_of(s->data + at + 4, 4, false);
    if (from > s->bytes - at - 8 || to != all || to / MOST_EXPANSION > from)
        return cloud_fail(
            s, "says that %" PRIu64 " bytes become %" PRIu64 ", found %zu bytes for %" PRIu64, from,
            to, s->bytes - at - 8, all);
    out->owned = malloc((size_t)to + 1);
    if (out->owned == NULL) return cloud_fail(s, "no memory for it");
    if (!expand_lzf(s->data + at + 8, (size_t)from, out->owned, (size_t)to))
        return cloud_fail(s, "its compressed points are damaged");
    out->data = out->owned;
    out->planar = true;
    for (int f = 0; f < out->num_fields; ++f) { // a field of several counts was laid out by record
        out->fields[f].offset = offset;
        offset += out->num * cloud_type_bytes(out->fields[f].type);
    }
    return true;
}

bool cloud_records_of_pcd(const cloud_source *s, cloud_records *out)
{
    static const char *const formats[] = {"PCD, ascii", "PCD, binary", "PCD, binary_compressed"};
    lines l = {.s = s};
    pcd_header h = {.points = -1};
    bool spread = false;

    do {
        if (!next_line(&l) || !read_pcd_line(&l, &h)) return false;
    } while (!starts(&l, "DATA"));
    if (h.points < 0) return cloud_fail(s, "its header has no POINTS");
    *out = (cloud_records){.format = formats[h.coding], .num = h.points, .nan_is_missing = true};
    for (int f = 0; f < h.num_fields; ++f) {
        cloud_type type;
        if (!pcd_type(h.types[f], h.sizes[f], &type))
            return cloud_fail(s,
                              "field %s is of TYPE %c and SIZE %" PRId64 ", expected I or U of 1, "
                              "2, 4 or 8, or F of 4 or 8",
                              h.names[f], h.types[f] != '\0' ? h.types[f] : '?', h.sizes[f]);
        spread |= h.counts[f] != 1;
        for (int64_t k = 0; k < h.counts[f]; ++k)
            if (!add_field(s, out, strcmp(h.names[f], "_") == 0 ? "" : h.names[f], type))
                return false;
    }
    if (out->num_fields == 0) return cloud_fail(s, "its header has no FIELDS");
    if (h.coding == PCD_ASCII) return read_text(s, l.at, 0, out);
    if (h.coding == PCD_BINARY) return place_binary(s, l.at, out);
    if (spread) return cloud_fail(s, "is compressed and has a COUNT that is not 1, expected 1");
    return place_compressed(s, l.at, out);
}

// ---- .ply ---------------------------------------------------------------------------------------

static bool ply_type(const char *word, cloud_type *type)
{
    static const struct {
        const char *names[2];
        cloud_type type;
    } types[] = {{{"char", "int8"}, CLOUD_I8},      {{"uchar", "uint8"}, CLOUD_U8},
                 {{"short", "int16"}, CLOUD_I16},   {{"ushort", "uint16"}, CLOUD_U16},
                 {{"int", "int32"}, CLOUD_I32},     {{"uint", "uint32"}, CLOUD_U32},
                 {{"float", "float32"}, CLOUD_F32}, {{"double", "float64"}, CLOUD_F64}};
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
        if (strcmp(word, types[i].names[0]) == 0 || strcmp(word, types[i].names[1]) == 0) {
            *type = types[i].type;
            return true;
        }
    return false;
}

typedef enum ply_part { PLY_BEFORE, PLY_VERTEX, PLY_AFTER } ply_part;

typedef struct ply_header {
    const char *coding; // of format
    bool text;
    ply_part part; // whose properties come
    int64_t count; // of the element before the vertices that comes
    int64_t skip_bytes, skip_words;
} ply_header;

static bool read_ply_property(lines *l, ply_header *h, cloud_records *out)
{
    cloud_type type;
    if (h->part == PLY_AFTER) return true;
    if (l->num_words > 1 && strcmp(l->words[1], "list") == 0)
        return cloud_fail(l->s, "has a list %s the vertices, expected numbers",
                          h->part == PLY_VERTEX ? "among" : "before");
    if (l->num_words != 3 || !ply_type(l->words[1], &type))
        return cloud_fail(l->s, "property is of type %.20s, expected char to double",
                          l->num_words > 1 ? l->words[1] : "none");
    if (h->part == PLY_VERTEX) return add_field(l->s, out, l->words[2], type);
    h->skip_bytes += h->count * cloud_type_bytes(type);
    h->skip_words += h->count;
    return h->skip_bytes <= (int64_t)l->s->bytes ||
           cloud_fail(l->s, "ends before its vertices begin");
}

static bool read_ply_line(lines *l, ply_header *h, cloud_records *out)
{
    if (starts(l, "format")) {
        static const char *const codings[] = {"ascii", "binary_little_endian", "binary_big_endian"};
        static const char *const formats[] = {"PLY, ascii", "PLY, binary_little_endian",
                                              "PLY, binary_big_endian"};
        for (int i = 0; i < 3; ++i)
            if (l->num_words > 1 && strcmp(l->words[1], codings[i]) == 0) {
                out->format = formats[i];
                h->text = i == 0;
                out->big_endian = i == 2;
                return true;
            }
        return cloud_fail(l->s,
                          "format is %.20s, expected ascii, binary_little_endian or "
                          "binary_big_endian",
                          l->num_words > 1 ? l->words[1] : "missing");
    }
    if (starts(l, "element")) {
        const bool vertex = l->num_words == 3 && strcmp(l->words[1], "vertex") == 0;
        if (h->part != PLY_BEFORE) {
            h->part = PLY_AFTER;
            return true;
        }
        if (l->num_words != 3 || !count_of(l->words[2], INT32_MAX - 1, &h->count))
            return cloud_fail(l->s, "element %.20s has a count of %.20s, expected 0 to %d",
                              l->num_words > 1 ? l->words[1] : "",
                              l->num_words > 2 ? l->words[2] : "nothing", INT32_MAX - 1);
        if (!vertex) return true;
        h->part = PLY_VERTEX;
        out->num = h->count;
        return true;
    }
    return !starts(l, "property") || read_ply_property(l, h, out);
}

bool cloud_records_of_ply(const cloud_source *s, cloud_records *out)
{
    lines l = {.s = s};
    ply_header h = {0};

    *out = (cloud_records){0};
    do {
        if (!next_line(&l) || !read_ply_line(&l, &h, out)) return false;
    } while (!starts(&l, "end_header"));
    if (out->format == NULL) return cloud_fail(s, "its header has no format");
    if (h.part == PLY_BEFORE || out->num_fields == 0)
        return cloud_fail(s, "its header has no element vertex with properties");
    if (h.text) {
        out->big_endian = false;
        return read_text(s, l.at, h.skip_words, out);
    }
    if ((size_t)h.skip_bytes > s->bytes - l.at)
        return cloud_fail(s, "ends before its vertices begin");
    return place_binary(s, l.at + (size_t)h.skip_bytes, out);
}

// ---- .las ---------------------------------------------------------------------------------------

bool cloud_records_of_las(const cloud_source *s, cloud_records *out)
{
    // Bytes of a record by its format; what a record has beyond them is the writer's own.
    static const int64_t record_bytes[] = {20, 28, 26, 34, 57, 63, 30, 36, 38, 59, 67};
    enum { NUM_FORMATS = sizeof record_bytes / sizeof *record_bytes };
    enum { MINOR = 25, DATA_AT = 96, FORMAT = 104, RECORD = 105, NUM = 107, SCALE = 131 };
    enum { SHIFT = 155, SHORTEST = 227, NUM_1_4 = 247, SHORTEST_1_4 = 375 };
    static const char *const axes[] = {"x", "y", "z"};
    const unsigned char *d = s->data;

    if (s->bytes < SHORTEST)
        return cloud_fail(s, "has %zu bytes, expected a header of %d", s->bytes, SHORTEST);
    const unsigned format = d[FORMAT];
    const bool longer = d[MINOR] >= 4 && s->bytes >= SHORTEST_1_4;
    const uint64_t at = bits_of(d + DATA_AT, 4, false);
    const uint64_t legacy = bits_of(d + NUM, 4, false);
    const uint64_t num = longer && legacy == 0 ? bits_of(d + NUM_1_4, 8, false) : legacy;
    if (d[MINOR - 1] != 1 || d[MINOR] > 4)
        return cloud_fail(s, "is LAS %d.%d, expected 1.0 to 1.4", d[MINOR - 1], d[MINOR]);
    if (format >= 64)
        return cloud_fail(s,
                          "is compressed (LAZ), expected LAS; `laszip -i FILE.laz -o FILE.las` or "
                          "`pdal translate FILE.laz FILE.las` converts it");
    if (format >= NUM_FORMATS)
        return cloud_fail(s, "has points of format %u, expected 0 to %d", format, NUM_FORMATS - 1);
    if (num >= INT32_MAX)
        return cloud_fail(s, "has %" PRIu64 " points, expected less than %d", num, INT32_MAX);
    *out = (cloud_records){.format = "LAS", .num = (int64_t)num};
    for (int a = 0; a < 3; ++a)
        if (!add_field(s, out, axes[a], CLOUD_I32)) return false;
    for (int a = 0; a < 3; ++a) {
        out->fields[a].scale = f64_of(bits_of(d + SCALE + 8 * a, 8, false));
        out->fields[a].shift = f64_of(bits_of(d + SHIFT + 8 * a, 8, false));
    }
    if (!add_field(s, out, "intensity", CLOUD_U16) ||
        !add_field(s, out, "classification", CLOUD_U8))
        return false;
    out->fields[4].offset = format < 6 ? 15 : 16;
    out->record_bytes = (int64_t)bits_of(d + RECORD, 2, false);
    if (out->record_bytes < record_bytes[format])
        return cloud_fail(s,
                          "has points of %" PRId64 " bytes, expected %" PRId64 " or more of "
                          "format %u",
                          out->record_bytes, record_bytes[format], format);
    if (at < SHORTEST || at > s->bytes)
        return cloud_fail(s, "has its points at byte %" PRIu64 ", expected %d to %zu", at, SHORTEST,
                          s->bytes);
    return place_binary(s, (size_t)at, out);
}
